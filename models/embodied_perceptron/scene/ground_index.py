"""Which objects may lie where on the ground, without asking all of them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import Bounds
from embodied_perceptron.geometry.manhattan import Region

_WIDE = 1024  # cells: what touches more of them is asked every time


class GroundIndex:
    """Which objects may lie where: ids by the square cells of the ground that their bounds touch."""

    def __init__(self, cell_m: float) -> None:
        self._cell_m = cell_m
        self._ids: dict[tuple[int, int], set[int]] = {}
        self._span: dict[int, tuple[int, int, int, int]] = {}
        self._wide: set[int] = set()

    def put(self, track: int, box: NDArray[np.float64]) -> None:
        """An object stands, or now stands, where its (9,) box is."""
        bounds = Bounds.of(box[None])
        low, high = self._cells(bounds.low[0, :2]), self._cells(bounds.high[0, :2])
        span = (low[0], low[1], high[0], high[1])
        if self._span.get(track) == span:
            return
        self.remove(track)
        self._span[track] = span
        if (span[2] - span[0] + 1) * (span[3] - span[1] + 1) > _WIDE:
            self._wide.add(track)
            return
        for cell in self._of(span):
            self._ids.setdefault(cell, set()).add(track)

    def remove(self, track: int) -> None:
        """An object is no more."""
        span = self._span.pop(track, None)
        if span is None:
            return
        if track in self._wide:
            self._wide.remove(track)
            return
        for cell in self._of(span):
            ids = self._ids[cell]
            ids.discard(track)
            if not ids:
                del self._ids[cell]

    def near(self, low_m: NDArray[np.float64], high_m: NDArray[np.float64]) -> set[int]:
        """Ids of objects in the cells that a rectangle of the ground touches; its (2,) corners may be infinite."""
        if not (low_m <= high_m).all():
            return set()
        limit = 1e6  # cells: further than any robot goes
        low = self._cells(np.clip(low_m, -limit, limit))
        high = self._cells(np.clip(high_m, -limit, limit))
        if (high[0] - low[0] + 1) * (high[1] - low[1] + 1) > len(self._ids):
            cells = [c for c in self._ids if low[0] <= c[0] <= high[0] and low[1] <= c[1] <= high[1]]
        else:
            cells = [c for c in self._of((*low, *high)) if c in self._ids]
        wide = {t for t in self._wide if self._touches(self._span[t], low, high)}
        return wide.union(*(self._ids[c] for c in cells))

    @staticmethod
    def _touches(span: tuple[int, int, int, int], low: tuple[int, int], high: tuple[int, int]) -> bool:
        return span[0] <= high[0] and low[0] <= span[2] and span[1] <= high[1] and low[1] <= span[3]

    def _cells(self, at_m: NDArray[np.float64]) -> tuple[int, int]:
        return math.floor(at_m[0] / self._cell_m), math.floor(at_m[1] / self._cell_m)

    @staticmethod
    def _of(span: tuple[int, int, int, int]) -> list[tuple[int, int]]:
        return [(x, y) for x in range(span[0], span[2] + 1) for y in range(span[1], span[3] + 1)]


def ground_bounds(region: Region) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(2,), (2,) bounds on the ground, in the world, of a region along a Manhattan frame."""
    low, high = region.lower_m[:2], region.upper_m[:2]
    if not np.isfinite([*low, *high]).all():
        if region.manhattan.yaw_rad == 0:
            return low.astype(np.float64), high.astype(np.float64)
        return np.full(2, -np.inf), np.full(2, np.inf)
    corners = np.array([[x, y, 0.0] for x in (low[0], high[0]) for y in (low[1], high[1])])
    world = region.manhattan.to_world(corners)[:, :2]
    return world.min(axis=0), world.max(axis=0)
