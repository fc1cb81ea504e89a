"""Alignment with four degrees of freedom (yaw and shift), as both frames are gravity-aligned.

:class:`SurfaceLayers` finds shifts and yaws under which seen surfaces fit those of a map: the map's surfaces are cells
in layers of height, and for each yaw a Fourier transform counts the cells in common for all shifts at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft, ndimage
from scipy.spatial import cKDTree

from embodied_perceptron.geometry.transforms import F64, level_transform, transform_points, yaw_of

_NORMAL_NEIGHBOURS = 10
_FLAT = 0.15  # thickness against width, squared, of what counts as a plane
_LEAST_PAIRS = 60
_APART_M, _APART_RAD = 0.5, 0.35  # of two places
_STAY = 1e-4  # against the mean of squared normals, which is about 1/3 in a room


@dataclass(frozen=True, eq=False)
class Motions:
    """Level rigid motions.

    Attributes:
        yaw_rad: (K,).
        shift_m: (K, 3).
    """

    yaw_rad: F64
    shift_m: F64

    def __len__(self) -> int:
        return len(self.yaw_rad)

    def __getitem__(self, rows: NDArray[np.integer] | NDArray[np.bool_]) -> Motions:
        return Motions(self.yaw_rad[rows], self.shift_m[rows])

    def matrix(self, row: int) -> F64:
        """Return one as (4, 4)."""
        return level_transform(float(self.yaw_rad[row]), self.shift_m[row])

    def apply(self, points_m: F64) -> F64:
        """(N, 3) -> (K, N, 3)."""
        c, s = np.cos(self.yaw_rad)[:, None], np.sin(self.yaw_rad)[:, None]
        x, y, z = points_m.T
        moved: F64 = np.stack([c * x - s * y, s * x + c * y, np.broadcast_to(z, (len(self), len(z)))], axis=-1)
        moved += self.shift_m[:, None]
        return moved


def difference(A: F64, B: F64, at_m: F64) -> tuple[float, float]:
    """Return the distance (metres) and angle (radians) between two (4, 4) poses of a camera at (3,) ``at_m``."""
    shift = np.linalg.norm(transform_points(A, at_m[None])[0] - transform_points(B, at_m[None])[0])
    return float(shift), abs((yaw_of(A) - yaw_of(B) + np.pi) % (2 * np.pi) - np.pi)


def are_apart(A: F64, B: F64, at_m: F64) -> bool:
    """Return True when two poses bring a camera at (3,) ``at_m`` to different locations."""
    shift, turn = difference(A, B, at_m)
    return shift > _APART_M or turn > _APART_RAD


def motions_of_pairs(from_m: F64, to_m: F64, first: NDArray[np.integer], second: NDArray[np.integer]) -> Motions:
    """Return (K,) motions, each from two matches: rows ``first`` and ``second`` of (N, 3) points."""
    a, b = from_m[second] - from_m[first], to_m[second] - to_m[first]
    yaw = np.arctan2(b[:, 1], b[:, 0]) - np.arctan2(a[:, 1], a[:, 0])
    middle_from, middle_to = (from_m[first] + from_m[second]) / 2, (to_m[first] + to_m[second]) / 2
    c, s = np.cos(yaw), np.sin(yaw)
    x, y, z = middle_from.T
    turned = np.stack([c * x - s * y, s * x + c * y, z], axis=1)
    return Motions((yaw + np.pi) % (2 * np.pi) - np.pi, middle_to - turned)


def best_motion(from_m: F64, to_m: F64, weights: F64) -> F64:
    """Return the (4, 4) level least-squares motion of (N, 3) points to their matches; (N,) weights, N >= 2."""
    share = weights / weights.sum()
    center_from, center_to = share @ from_m, share @ to_m
    a, b = from_m - center_from, to_m - center_to
    cross = float(share @ (a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]))
    dot = float(share @ (a[:, 0] * b[:, 0] + a[:, 1] * b[:, 1]))
    yaw = float(np.arctan2(cross, dot))
    turn = level_transform(yaw, np.zeros(3))
    return level_transform(yaw, center_to - turn[:3, :3] @ center_from)


@dataclass(frozen=True, eq=False)
class Surface:
    """Points of a map's surfaces for alignment.

    Attributes:
        points_m: (N, 3), smoothed onto the surface.
        normals: (N, 3) unit vectors; zero where the surface is not flat.
        tree: over the points.
    """

    points_m: F64
    normals: F64
    tree: cKDTree

    @classmethod
    def of(cls, points_m: F64) -> Surface:
        """Build from (N, 3) points."""
        points_m = np.ascontiguousarray(points_m, np.float64)
        tree = cKDTree(points_m)
        count = min(_NORMAL_NEIGHBOURS, len(points_m))
        around = points_m[tree.query(points_m, k=count)[1].reshape(len(points_m), count)]
        offset = around - around.mean(1, keepdims=True)
        spread, axes = np.linalg.eigh(offset.transpose(0, 2, 1) @ offset)
        flat = spread[:, 0] < _FLAT * spread[:, 1]
        return cls(points_m, axes[:, :, 0] * flat[:, None], tree)

    def distance_m(self, points_m: F64, reach_m: float) -> F64:
        """Return (N,) distances to the nearest surface point; infinite beyond ``reach_m``."""
        distance: F64 = self.tree.query(points_m, distance_upper_bound=reach_m)[0]
        return distance


def least_held(points_m: F64, surface: Surface, T: F64, reach_m: float) -> F64:
    """Return (3,) the horizontal direction in which the surfaces constrain (N, 3) points least at ``T``."""
    distance, nearest = surface.tree.query(transform_points(T, points_m), distance_upper_bound=reach_m)
    normal = surface.normals[nearest[np.isfinite(distance)]]
    _, axes = np.linalg.eigh(normal[:, :2].T @ normal[:, :2])  # eigenvalues grow
    return np.append(axes[:, 0], 0.0)


def refine(points_m: F64, surface: Surface, T: F64, reaches_m: Sequence[float]) -> F64:
    """Refine (4, 4) ``T`` by point-to-plane ICP of (N, 3) points with the surface.

    ``reaches_m``: largest distance of a match, by iteration.
    """
    for reach_m in reaches_m:
        moved = points_m @ T[:3, :3].T + T[:3, 3]
        distance, nearest = surface.tree.query(moved, distance_upper_bound=reach_m)
        nearest = np.where(np.isfinite(distance), nearest, 0)
        normal = surface.normals[nearest]
        kept = np.isfinite(distance) & (np.abs(normal).sum(1) > 0)
        if int(kept.sum()) < _LEAST_PAIRS:
            return T
        moved, matched, normal = moved[kept], surface.points_m[nearest[kept]], normal[kept]
        center = moved.mean(0)
        arm = moved - center
        # residual after a turn w about the vertical through the centre and a shift t: n . (p + w x arm + t - m)
        columns = np.column_stack([normal[:, 1] * arm[:, 0] - normal[:, 0] * arm[:, 1], normal])
        residual = ((moved - matched) * normal).sum(1)
        weight = 1 / (1 + (residual / (0.3 * reach_m)) ** 2)
        weighted = columns * weight[:, None]
        # what no surface holds (along a corridor) stays as it was
        step = -np.linalg.solve(weighted.T @ columns + _STAY * len(moved) * np.eye(4), weighted.T @ residual)
        turn = level_transform(float(step[0]), np.zeros(3))
        turn[:3, 3] = center + step[1:] - turn[:3, :3] @ center
        T = turn @ T
    return T


_CELL_M = 0.12
_LAYER_M = 0.35
_MAX_CELLS = 256  # along an edge of the map; larger maps have larger cells
_TURNS = 72


class SurfaceLayers:
    """Cells of a map's surfaces.

    Args:
        points_m: (N, 3) of the map.
        floor_z_m: of the map; the layer above it fits everywhere and is left out.
    """

    def __init__(self, points_m: F64, floor_z_m: float) -> None:
        self.floor_z_m = floor_z_m
        low, high = points_m[:, :2].min(0), points_m[:, :2].max(0)
        self._cell_m = max(_CELL_M, float((high - low).max()) / _MAX_CELLS)
        self._low_m = low
        self._shape = tuple((np.floor((high - low) / self._cell_m).astype(int) + 1).tolist())
        self._layers = max(1, int(np.ceil((points_m[:, 2].max() - floor_z_m) / _LAYER_M)))
        cells = np.floor((points_m[:, :2] - low) / self._cell_m).astype(np.int64)
        layer = np.floor((points_m[:, 2] - floor_z_m) / _LAYER_M).astype(np.int64)
        kept = layer >= 1
        grid = np.zeros((self._layers, *self._shape), np.float32)
        grid[layer[kept].clip(0, self._layers - 1), cells[kept, 0], cells[kept, 1]] = 1
        blurred = ndimage.maximum_filter(grid, (1, 3, 3)) * 0.5
        self._grid = np.maximum(grid, blurred)
        self._spectra: dict[tuple[int, int], NDArray[np.complex64]] = {}

    def candidates(self, points_m: F64, floor_z_m: float, count: int) -> list[F64]:
        """Return at most ``count`` distinct level (4, 4) motions under which (N, 3) points fit, the best first."""
        shift_z = self.floor_z_m - floor_z_m
        layer = np.floor((points_m[:, 2] - floor_z_m) / _LAYER_M).astype(np.int64)
        points_m, layer = points_m[(layer >= 1) & (layer < self._layers)], layer[(layer >= 1) & (layer < self._layers)]
        if len(points_m) < 50:
            return []
        middle = points_m[:, :2].mean(0)
        reach = int(np.ceil(np.linalg.norm(points_m[:, :2] - middle, axis=1).max() / self._cell_m)) + 1
        size = tuple(fft.next_fast_len(n + 2 * reach + 1, real=True) for n in self._shape)
        spectrum = self._spectrum(size)
        found: list[tuple[float, float, F64]] = []
        for yaw in np.arange(_TURNS) * (2 * np.pi / _TURNS):
            c, s = np.cos(yaw), np.sin(yaw)
            turned = (points_m[:, :2] - middle) @ np.array([[c, s], [-s, c]])
            cells = np.floor(turned / self._cell_m).astype(np.int64) + reach
            seen = np.zeros((self._layers, 2 * reach + 1, 2 * reach + 1), np.float32)
            seen[layer, cells[:, 0], cells[:, 1]] = 1
            total = float(seen.sum())
            product = (spectrum * np.conj(fft.rfft2(seen, size))).sum(0)
            score = fft.irfft2(product, size) / total
            best = np.argpartition(score, -4, axis=None)[-4:]
            for flat in best.tolist():
                at = np.array(np.unravel_index(flat, size))
                at = np.where(at >= np.array(self._shape) + 1, at - np.array(size), at) + reach
                center = self._low_m + at * self._cell_m
                shift = center - np.array([c * middle[0] - s * middle[1], s * middle[0] + c * middle[1]])
                found.append((float(score.flat[flat]), float(yaw), np.array([*shift, shift_z])))
        found.sort(key=lambda entry: -entry[0])
        poses: list[F64] = []
        at_m = np.append(middle, 0.0)
        for _, yaw, shift in found:
            pose = level_transform(yaw, shift)
            if all(are_apart(pose, other, at_m) for other in poses):
                poses.append(pose)
            if len(poses) == count:
                break
        return poses

    def _spectrum(self, size: tuple[int, int]) -> NDArray[np.complex64]:
        if size not in self._spectra:
            self._spectra = {size: fft.rfft2(self._grid, size)}
        return self._spectra[size]
