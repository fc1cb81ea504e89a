"""Rigid motions with four degrees of freedom: both frames know where down is, so what is sought is a turn about the
vertical and a shift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from embodied_perceptron.geometry.transforms import level_transform, transform_points, yaw_of

F64 = NDArray[np.float64]
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
        """(4, 4) of one."""
        return level_transform(float(self.yaw_rad[row]), self.shift_m[row])

    def apply(self, points_m: F64) -> F64:
        """(N, 3) -> (K, N, 3)."""
        c, s = np.cos(self.yaw_rad)[:, None], np.sin(self.yaw_rad)[:, None]
        x, y, z = points_m.T
        moved: F64 = np.stack([c * x - s * y, s * x + c * y, np.broadcast_to(z, (len(self), len(z)))], axis=-1)
        moved += self.shift_m[:, None]
        return moved


def difference(A: F64, B: F64, at_m: F64) -> tuple[float, float]:
    """How far two (4, 4) poses bring a camera at (3,) ``at_m`` apart, metres, and how much they turn it, radians."""
    shift = np.linalg.norm(transform_points(A, at_m[None])[0] - transform_points(B, at_m[None])[0])
    return float(shift), abs((yaw_of(A) - yaw_of(B) + np.pi) % (2 * np.pi) - np.pi)


def are_apart(A: F64, B: F64, at_m: F64) -> bool:
    """Whether two poses bring a camera at (3,) ``at_m`` to two places."""
    shift, turn = difference(A, B, at_m)
    return shift > _APART_M or turn > _APART_RAD


def motions_of_pairs(from_m: F64, to_m: F64, first: NDArray[np.integer], second: NDArray[np.integer]) -> Motions:
    """Motions that bring two points each onto their matches: (K,) rows ``first`` and ``second`` of (N, 3) points."""
    a, b = from_m[second] - from_m[first], to_m[second] - to_m[first]
    yaw = np.arctan2(b[:, 1], b[:, 0]) - np.arctan2(a[:, 1], a[:, 0])
    middle_from, middle_to = (from_m[first] + from_m[second]) / 2, (to_m[first] + to_m[second]) / 2
    c, s = np.cos(yaw), np.sin(yaw)
    x, y, z = middle_from.T
    turned = np.stack([c * x - s * y, s * x + c * y, z], axis=1)
    return Motions((yaw + np.pi) % (2 * np.pi) - np.pi, middle_to - turned)


def best_motion(from_m: F64, to_m: F64, weights: F64) -> F64:
    """(4, 4) level motion of least squares that brings (N, 3) points onto their matches; (N,) weights, N >= 2."""
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
    """Points of a map's surfaces, to be aligned with.

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
        """Of (N, 3) points."""
        points_m = np.ascontiguousarray(points_m, np.float64)
        tree = cKDTree(points_m)
        count = min(_NORMAL_NEIGHBOURS, len(points_m))
        around = points_m[tree.query(points_m, k=count)[1].reshape(len(points_m), count)]
        offset = around - around.mean(1, keepdims=True)
        spread, axes = np.linalg.eigh(offset.transpose(0, 2, 1) @ offset)
        flat = spread[:, 0] < _FLAT * spread[:, 1]
        return cls(points_m, axes[:, :, 0] * flat[:, None], tree)

    def distance_m(self, points_m: F64, reach_m: float) -> F64:
        """(N,) to the nearest point of the surface; infinite beyond ``reach_m``."""
        distance: F64 = self.tree.query(points_m, distance_upper_bound=reach_m)[0]
        return distance


def least_held(points_m: F64, surface: Surface, T: F64, reach_m: float) -> F64:
    """(3,) horizontal direction along which the surfaces hold (N, 3) points least at ``T``: that of a corridor."""
    distance, nearest = surface.tree.query(transform_points(T, points_m), distance_upper_bound=reach_m)
    normal = surface.normals[nearest[np.isfinite(distance)]]
    _, axes = np.linalg.eigh(normal[:, :2].T @ normal[:, :2])  # eigenvalues grow
    return np.append(axes[:, 0], 0.0)


def refine(points_m: F64, surface: Surface, T: F64, reaches_m: Sequence[float]) -> F64:
    """(4, 4) ``T`` after iterated closest points: (N, 3) points against the planes of the surface.

    ``reaches_m``: how far a match may lie, by iteration.
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
