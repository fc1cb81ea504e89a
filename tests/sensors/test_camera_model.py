"""Calibration messages -> pinhole cameras: distortion is taken out, or refused by name."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.sensors.camera_model import (
    SUPPORTED_MODELS,
    CameraInfoFields,
    CameraModel,
    camera_model_from_info,
)

K = (500.0, 0.0, 320.0, 0.0, 510.0, 240.0, 0.0, 0.0, 1.0)
INTRINSICS = Intrinsics(500.0, 510.0, 320.0, 240.0, 640, 480)
DISTORTION = {
    "plumb_bob": (0.1, -0.05, 0.002, -0.001, 0.01),
    "rational_polynomial": (0.1, -0.05, 0.002, -0.001, 0.01, 0.02, 0.01, 0.005),
    "equidistant": (0.05, -0.01, 0.003, 0.001),
}


def test_a_plain_pinhole() -> None:
    for model, d in (("", ()), ("plumb_bob", (0.0,) * 5), ("plumb_bob", ())):
        camera = camera_model_from_info(CameraInfoFields(width=640, height=480, k=K, distortion_model=model, d=d))
        assert camera.intrinsics == INTRINSICS
        assert not camera.is_distorted
    color, depth = np.zeros((480, 640, 3), np.uint8), np.zeros((480, 640), np.float32)
    assert camera.rectify(color, depth) == (color, depth), "nothing is copied"


@pytest.mark.parametrize("model", SUPPORTED_MODELS)
def test_rectified_images_obey_the_pinhole(model: str) -> None:
    """A spot where the distorted camera sees a 3-D point moves to where the pinhole sees it; its depth stays."""
    d = DISTORTION[model]
    camera = camera_model_from_info(CameraInfoFields(width=640, height=480, k=K, distortion_model=model, d=d))
    point = np.array([[[0.6, -0.35, 1.5]]])
    zero = np.zeros(3)
    if model == "equidistant":
        raw_uv, _ = cv2.fisheye.projectPoints(point, zero, zero, INTRINSICS.matrix, np.array(d))
    else:
        raw_uv, _ = cv2.projectPoints(point, zero, zero, INTRINSICS.matrix, np.array(d))
    u, v = raw_uv.ravel()
    rows, columns = np.mgrid[0:480, 0:640]
    blob = (np.hypot(columns - u, rows - v) < 6).astype(np.uint8)
    color, depth = camera.rectify(
        np.repeat(255 * blob[..., None], 3, axis=2), np.where(blob, 1.5, 3.0).astype(np.float32)
    )
    expected = (500 * 0.6 / 1.5 + 320, 510 * -0.35 / 1.5 + 240)
    assert np.hypot(u - expected[0], v - expected[1]) > 2, "the distortion must matter for the test to mean anything"
    for mask in (color[..., 0] > 127, np.isclose(depth, 1.5)):
        vs, us = np.nonzero(mask)
        assert (us.mean(), vs.mean()) == pytest.approx(expected, abs=0.6)
    assert set(np.unique(depth)) <= {0.0, 1.5, 3.0}, "nearest neighbour: surfaces are never mixed"


def test_what_lies_outside_of_the_raw_image_is_unknown() -> None:
    camera = CameraModel(INTRINSICS, "plumb_bob", (0.5, 0.0, 0.0, 0.0))
    color, depth = camera.rectify(np.full((480, 640, 3), 9, np.uint8), np.ones((480, 640), np.float32))
    assert depth[0, 0] == 0.0
    assert color[0, 0].tolist() == [0, 0, 0]
    assert depth[240, 320] == 1.0


@pytest.mark.parametrize("model", ["thin_prism", "kannala_brandt8", "double_sphere"])
def test_unknown_models_are_refused_by_name(model: str) -> None:
    with pytest.raises(ValueError, match=f"distortion model '{model}' is not supported"):
        camera_model_from_info(CameraInfoFields(width=640, height=480, k=K, distortion_model=model, d=(0.1,) * 5))


D5, D8, F4 = DISTORTION["plumb_bob"], DISTORTION["rational_polynomial"], DISTORTION["equidistant"]


@pytest.mark.parametrize(
    ("model", "d", "expected"),
    [
        ("plumb_bob", (*D5, 0.0, 0.0, 0.0), ("plumb_bob", D5)),  # eight numbers, the last three zero
        ("plumb_bob", (*D5[:4], 0.0, 0.0, 0.0, 0.0), ("plumb_bob", D5[:4])),
        ("plumb_bob", (0.0,) * 8, ("plumb_bob", ())),
        ("plumb_bob", D8, ("rational_polynomial", D8)),
        ("plumb_bob", D5[:1], ("plumb_bob", (*D5[:1], 0.0, 0.0, 0.0))),
        ("plumb_bob", D5[:2], ("plumb_bob", (*D5[:2], 0.0, 0.0))),
        ("", D5, ("plumb_bob", D5)),
        ("Brown-Conrady", D5, ("plumb_bob", D5)),
        ("radtan", D5[:4], ("plumb_bob", D5[:4])),
        ("radial-tangential", D5[:4], ("plumb_bob", D5[:4])),
        ("OPENCV", D8, ("rational_polynomial", D8)),
        ("rational_polynomial", D5, ("plumb_bob", D5)),  # the same formula
        ("rational_polynomial", (*D8, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0), ("rational_polynomial", D8)),
        ("rational_polynomial", D8[:7], ("rational_polynomial", (*D8[:7], 0.0))),
        ("rational_polynomial", (*D8, 0.001), ("rational_polynomial", (*D8, 0.001, 0.0, 0.0, 0.0))),
        ("equidistant", (*F4, 0.0, 0.0, 0.0, 0.0), ("equidistant", F4)),
        ("equidistant", F4[:2], ("equidistant", (*F4[:2], 0.0, 0.0))),
        ("equidistant", (*F4[:2], 0.0, 0.0, *F4[2:], 0.0, 0.0), ("equidistant", F4)),
        ("fisheye", F4, ("equidistant", F4)),
        ("KannalaBrandt4", F4, ("equidistant", F4)),
        ("kannala_brandt4", (*F4, 0.0), ("equidistant", F4)),
        ("double_sphere", (0.0, 0.0), ("plumb_bob", ())),
    ],
)
def test_calibrations_as_drivers_write_them(model: str, d: tuple[float, ...], expected: tuple[str, tuple]) -> None:
    camera = camera_model_from_info(CameraInfoFields(width=640, height=480, k=K, distortion_model=model, d=d))
    assert (camera.model, camera.distortion) == expected


@pytest.mark.parametrize(
    ("model", "d"), [("fisheye", (*F4, 0.1)), ("radtan", (0.1,) * 15), ("equidistant", (0.1,) * 8)]
)
def test_more_coefficients_than_a_model_has_are_refused(model: str, d: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=rf"'{model}' has .* coefficients, got {len(d)}"):
        camera_model_from_info(CameraInfoFields(width=640, height=480, k=K, distortion_model=model, d=d))


def test_coefficients_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="'plumb_bob' has 4 or 5 coefficients, got 3"):
        CameraModel(INTRINSICS, "plumb_bob", (0.1, 0.1, 0.1))
    with pytest.raises(ValueError, match="coefficients must be finite"):
        CameraModel(INTRINSICS, "plumb_bob", (np.nan, 0.0, 0.0, 0.0))
    with pytest.raises(ValueError, match="coefficients must be finite"):
        camera_model_from_info(CameraInfoFields(width=640, height=480, k=K, d=(np.nan, 0.0, 0.0, 0.0)))


@pytest.mark.parametrize(
    ("k", "message"),
    [
        ((0.0,) * 9, "not calibrated"),
        ((np.nan, 0, 320, 0, 510, 240, 0, 0, 1), "fx must be finite"),
        ((500, 0, 320, 0, 0, 240, 0, 0, 1), "fy must be positive"),
        ((500, 0, np.inf, 0, 510, 240, 0, 0, 1), "cx must be finite"),
        ((500, 0), "k must have 9 numbers, got 2"),
    ],
)
def test_bad_matrices_are_refused(k: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        camera_model_from_info(CameraInfoFields(width=640, height=480, k=k))


def test_zero_size_is_refused() -> None:
    with pytest.raises(ValueError, match="width must be positive"):
        camera_model_from_info(CameraInfoFields(width=0, height=480, k=K))


def test_rectified_topics_use_the_projection_matrix_and_no_distortion() -> None:
    p = (450.0, 0, 300.0, 0, 0, 460.0, 230.0, 0, 0, 0, 1, 0)
    camera = camera_model_from_info(CameraInfoFields(640, 480, K, "thin_prism", (1.0,), p=p), image_is_rectified=True)
    assert camera.intrinsics == Intrinsics(450.0, 460.0, 300.0, 230.0, 640, 480)
    assert not camera.is_distorted


def test_binning_and_region_of_interest() -> None:
    binned = camera_model_from_info(CameraInfoFields(width=640, height=480, k=K, binning=(2, 2))).intrinsics
    assert (binned.width, binned.height, binned.fx) == (320, 240, 250.0)
    assert binned.cx == pytest.approx((320 + 0.5) / 2 - 0.5)
    cropped = camera_model_from_info(CameraInfoFields(width=640, height=480, k=K, roi=(100, 40, 200, 160))).intrinsics
    assert cropped == Intrinsics(500.0, 510.0, 220.0, 200.0, 200, 160)


@pytest.mark.parametrize("model", SUPPORTED_MODELS)
def test_boxes_of_the_raw_image_move_with_what_they_show(model: str) -> None:
    camera = CameraModel(INTRINSICS, model, DISTORTION[model])
    raw = np.array([[60.0, 40.0, 160.0, 120.0], [300.0, 200.0, 340.0, 280.0], [420.0, 330.0, 620.0, 470.0]])
    moved = camera.undistort_boxes(raw)
    for (left, top, right, bottom), new in zip(raw, moved, strict=True):
        image = np.zeros((480, 640, 3), np.uint8)
        image[int(top) : int(bottom) + 1, int(left) : int(right) + 1] = 255
        rectified, _ = camera.rectify(image, np.zeros((480, 640), np.float32))
        rows, columns = np.nonzero(rectified[..., 0] > 127)
        new = np.clip(new, 0, [639, 479, 639, 479])  # the image's border, beyond which nothing is shown
        np.testing.assert_allclose(new, [columns.min(), rows.min(), columns.max(), rows.max()], atol=1.5)
    assert np.abs(moved - raw).max() > 3, "the distortion matters"


def test_boxes_of_an_undistorted_camera_stay_and_bad_ones_have_no_place() -> None:
    raw = np.array([[60.0, 40.0, 160.0, 120.0], [np.nan, 0.0, 5.0, 5.0]])
    np.testing.assert_array_equal(CameraModel(INTRINSICS).undistort_boxes(raw), raw)
    moved = CameraModel(INTRINSICS, "plumb_bob", DISTORTION["plumb_bob"]).undistort_boxes(raw)
    assert np.isfinite(moved[0]).all()
    assert np.isnan(moved[1]).all()
    assert CameraModel(INTRINSICS).undistort_boxes(np.zeros((0, 4))).shape == (0, 4)
