"""Frames are valid once built; bad values are named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame, canonical_depth

CAMERA = Intrinsics(10.0, 10.0, 1.5, 1.0, 4, 3)


def build(**changes: Any) -> RgbdFrame:
    values: dict[str, Any] = {
        "stamp_ns": 5,
        "camera": "front",
        "color": np.zeros((3, 4, 3), np.uint8),
        "depth_m": np.ones((3, 4), np.float32),
        "intrinsics": CAMERA,
    }
    return RgbdFrame(**{**values, **changes})


def test_a_good_frame_builds() -> None:
    for depth_m in (0.0, 1.0, np.inf):
        assert build(depth_m=np.full((3, 4), depth_m, np.float32)).depth_m.max() == depth_m


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"camera": ""}, "camera"),
        ({"stamp_ns": -1}, "stamp_ns"),
        ({"color": np.zeros((3, 4), np.uint8)}, "color"),
        ({"color": np.zeros((3, 4, 3), np.float32)}, "float32"),
        ({"depth_m": np.ones((3, 4))}, "float64"),
        ({"depth_m": np.ones((3, 5), np.float32)}, "registered"),
        ({"color": np.zeros((2, 4, 3), np.uint8), "depth_m": np.ones((2, 4), np.float32)}, "intrinsics say"),
        ({"depth_m": np.full((3, 4), np.nan, np.float32)}, "canonical"),
        ({"depth_m": np.full((3, 4), -1, np.float32)}, "canonical"),
    ],
)
def test_bad_frames_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(**changes)


def test_depth_encodings_follow_rep_118() -> None:
    millimetres = np.array([[0, 1500, 65535, 1]], np.uint16)
    np.testing.assert_allclose(canonical_depth(millimetres, "16UC1"), [[0.0, 1.5, 0.0, 0.001]])
    metres = np.array([[np.nan, np.inf, -np.inf, -1.0, 0.0, 2.5]], np.float32)
    np.testing.assert_array_equal(canonical_depth(metres, "32FC1"), np.array([[0, np.inf, 0, 0, 0, 2.5]], np.float32))


@pytest.mark.parametrize(
    ("depth", "encoding", "message"),
    [
        (np.zeros((2, 2), np.uint16), "8UC1", "8UC1"),
        (np.zeros((2, 2), np.float32), "16UC1", "uint16"),
        (np.zeros((2, 2), np.float64), "32FC1", "float32"),
        (np.zeros((2, 2, 1), np.uint16), "16UC1", "shape"),
    ],
)
def test_depth_that_does_not_fit_its_encoding(depth: np.ndarray, encoding: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        canonical_depth(depth, encoding)


def test_posed_frame_checks_the_pose() -> None:
    assert PosedFrame(build(), np.eye(4)).T_world_camera.dtype == np.float64
    with pytest.raises(ValueError, match="T_world_camera"):
        PosedFrame(build(), np.full((4, 4), np.nan))


@pytest.mark.parametrize(
    ("camera", "message"), [("", "must not be empty"), ("x" * 1_000_000, "at most 1000 characters")]
)
def test_names_of_cameras_have_limits(camera: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        build(camera=camera)
    assert len(str(refused.value)) < 200
