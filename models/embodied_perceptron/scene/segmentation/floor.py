"""Height of the floor, and the up direction, from the geometry of a map."""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.transforms import FloatArray, distinct_keys
from embodied_perceptron.mapping.block_copies import blocks_of
from embodied_perceptron.results import VoxelSnapshot

_ENOUGH_POINTS = 60_000
_SAME_M = 0.01  # half a layer
_MIX = np.uint64(0x9E3779B97F4A7C15)
_MAX_TABLE = 1 << 24  # cells of all layers in a table; more are sorted
_AROUND_M = 0.15  # half the window in which a layer must stand out; thicker than the noise of a floor


def _check_points(points_m: FloatArray) -> NDArray[np.float64]:
    points = np.asarray(points_m, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != 3:
        raise ValueError(f"points must have shape (N, 3), got {points.shape}")
    if not np.isfinite(points).all():
        raise ValueError("points must be finite")
    return points


def estimate_floor_z(
    points_m: FloatArray,
    *,
    bin_m: float = 0.02,
    cell_m: float = 0.05,
    min_area_m2: float = 0.25,
    min_share: float = 0.2,
) -> float | None:
    """Height of the floor: the lowest strong horizontal layer of points.

    A layer's strength is the ground area that it covers, not its number of points: a wall has many points but covers
    little ground at one height, a distant floor has few but covers much. Reflections below the floor and noise cover
    little. A table can be stronger than the visible floor, hence the *lowest* strong layer, not the strongest.

    Args:
        points_m: (N, 3) points of the map, z up.
        bin_m: height of a layer; about the noise of the points.
        cell_m: size of the counted cells of the ground.
        min_area_m2: least area of a floor.
        min_share: least area of a floor as a share of the strongest layer.

    Returns:
        Its z in metres, or None where no layer is strong enough (only walls, or too few points).

    Raises:
        ValueError: points of another shape, or not finite.
    """
    points = _check_points(points_m)
    if len(points) == 0:
        return None
    layer, cell, layers = _layers_and_cells(points, bin_m, cell_m)
    area = _cells_per_layer(layer, cell, layers) * cell_m**2
    # walls cover the same small area in every layer: a layer must exceed those around it
    around = scipy.ndimage.median_filter(area, size=2 * max(1, round(_AROUND_M / bin_m)) + 1, mode="constant")
    # a surface between two bins, and its noise, fill neighbouring layers
    smooth = np.convolve(np.maximum(area - around, 0.0), (0.5, 1.0, 0.5), mode="same")
    threshold = max(min_area_m2, min_share * float(smooth.max()))
    strong = np.flatnonzero(smooth >= threshold)
    if len(strong) == 0:
        return None
    # from the first strong layer climb to the top of that peak
    peak = int(strong[0])
    while peak + 1 < layers and smooth[peak + 1] > smooth[peak]:
        peak += 1
    near = np.abs(layer - peak) <= 1
    return float(np.median(points[near, 2]))


@njit(cache=True, nogil=True)
def _layers_and_cells(
    points: NDArray[np.float64], bin_m: float, cell_m: float
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """(N,) layer of each of (N, 3) points, from the lowest; (N,) number of its ground cell; number of layers."""
    n = len(points)
    layer, cell = np.empty(n, np.int64), np.empty(n, np.int64)
    x, y = np.empty(n, np.int64), np.empty(n, np.int64)
    z0 = points[0, 2]
    for i in range(n):
        z0 = min(z0, points[i, 2])
    for i in range(n):
        layer[i] = np.int64(np.floor((points[i, 2] - z0) / bin_m))
        x[i] = np.int64(np.floor(points[i, 0] / cell_m))
        y[i] = np.int64(np.floor(points[i, 1] / cell_m))
    first_x, first_y = x.min(), y.min()
    width = y.max() - first_y + 1
    for i in range(n):
        cell[i] = (x[i] - first_x) * width + (y[i] - first_y)
    return layer, cell, layer.max() + 1


def _cells_per_layer(layer: NDArray[np.int64], cell: NDArray[np.int64], layers: int) -> NDArray[np.int64]:
    """(layers,) number of distinct cells in each."""
    if layers * (int(cell.max()) + 1) <= _MAX_TABLE:
        marked: NDArray[np.int64] = _marked_cells(layer, cell, layers, int(cell.max()) + 1)
        return marked
    return np.bincount(distinct_keys(cell * layers + layer) % layers, minlength=layers)


@njit(cache=True, nogil=True)
def _marked_cells(layer: NDArray[np.int64], cell: NDArray[np.int64], layers: int, cells: int) -> NDArray[np.int64]:
    seen = np.zeros((layers, cells), np.bool_)
    counts = np.zeros(layers, np.int64)
    for i in range(len(layer)):
        counts[layer[i]] += not seen[layer[i], cell[i]]
        seen[layer[i], cell[i]] = True
    return counts


def estimate_up(
    points_m: FloatArray,
    up_hint: FloatArray,
    *,
    max_tilt_rad: float = 0.6,
    tolerance_m: float = 0.02,
    iterations: int = 300,
    min_share: float = 0.05,
    max_points: int = 20_000,
    seed: int = 0,
) -> NDArray[np.float64] | None:
    """Unit normal of the dominant, roughly horizontal plane: gravity for a robot without an IMU.

    Of the sampled planes (RANSAC) within ``max_tilt_rad`` of the hint, the one with most points is refitted to them.
    Deterministic.

    Args:
        points_m: (N, 3) points, in any frame.
        up_hint: (3,) roughly up in that frame, e.g. the camera's -y axis.
        max_tilt_rad: largest angle between result and hint.
        tolerance_m: largest distance of a point on a plane.
        iterations: number of sampled planes.
        min_share: least share of the points on the plane.
        max_points: more points are thinned out evenly.
        seed: of the sampling.

    Returns:
        The normal, on the hint's side; None where no plane has enough points.

    Raises:
        ValueError: points of another shape or not finite; a hint that is zero or not finite.
    """
    points = _check_points(points_m)
    hint = np.asarray(up_hint, dtype=np.float64)
    norm = float(np.linalg.norm(hint))
    if hint.shape != (3,) or not np.isfinite(norm) or norm < 1e-9:
        raise ValueError(f"up must be a finite vector of 3 numbers that is not zero, got {hint.tolist()}")
    hint = hint / norm
    if len(points) < 3:
        return None
    if len(points) > max_points:
        points = points[np.linspace(0, len(points) - 1, max_points).astype(np.int64)]
    rng = np.random.default_rng(seed)
    best: NDArray[np.bool_] | None = None
    samples = points[rng.integers(0, len(points), (iterations, 3))]
    normals = np.cross(samples[:, 1] - samples[:, 0], samples[:, 2] - samples[:, 0])
    lengths = np.linalg.norm(normals, axis=1)
    for normal, length, origin in zip(normals, lengths, samples[:, 0], strict=True):
        if length < 1e-9 or abs(normal @ hint) < np.cos(max_tilt_rad) * length:
            continue
        on_plane = np.abs((points - origin) @ (normal / length)) <= tolerance_m
        if best is None or on_plane.sum() > best.sum():
            best = on_plane
    if best is None or best.sum() < max(3, min_share * len(points)):
        return None
    members = points[best]
    for _ in range(3):  # refit, then select the members again
        center = members.mean(axis=0)
        _, _, vh = np.linalg.svd(members - center, full_matrices=False)
        normal = vh[2]
        members = points[np.abs((points - center) @ normal) <= tolerance_m]
    up: NDArray[np.float64] = normal if normal @ hint > 0 else -normal
    return up if float(up @ hint) >= np.cos(max_tilt_rad) else None


def thinned_points(snapshot: VoxelSnapshot, about: int) -> NDArray[np.float64]:
    """(M, 3) mean points of at most ``about`` voxels, approximately; the selection does not depend on their order."""
    blocks, step = blocks_of(snapshot), 1 + len(snapshot) // about
    # every step-th voxel of each block, from a first one that depends on the block's coordinates
    first = (blocks.keys.astype(np.uint64) * _MIX >> np.uint64(32)).astype(np.int64) % step
    points: NDArray[np.float64] = _every(blocks.ranges, first, step, blocks.arena.points_m)
    return points


@njit(cache=True, nogil=True)
def _every(
    ranges: NDArray[np.int64], first: NDArray[np.int64], step: int, points: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Every ``step``-th point of each range of rows, from its ``first``."""
    n = 0
    for b in range(len(ranges)):
        n += max(0, (ranges[b, 1] - ranges[b, 0] - first[b] + step - 1) // step)
    every = np.empty((n, 3), np.float64)
    n = 0
    for b in range(len(ranges)):
        for row in range(ranges[b, 0] + first[b], ranges[b, 1], step):
            for c in range(3):
                every[n, c] = points[row, c]
            n += 1
    return every


class FloorHeight:
    """Height of a map's floor over time: the last known one while no floor is visible, at first just below all points.

    The height stays while a new one differs by less than a centimetre: otherwise the input of the network and the grid
    would change everywhere with every frame.

    Args:
        clearance_m: distance below all points, so that none of them is floor.
    """

    def __init__(self, clearance_m: float) -> None:
        self._clearance_m = clearance_m
        self._last_m: float | None = None

    def of(self, snapshot: VoxelSnapshot) -> float:
        """Height of the floor of the present map."""
        points_m = thinned_points(snapshot, _ENOUGH_POINTS)
        found = estimate_floor_z(points_m)
        if found is not None and (self._last_m is None or abs(found - self._last_m) > _SAME_M):
            self._last_m = found
        if self._last_m is not None:
            return self._last_m
        return float(points_m[:, 2].min()) - self._clearance_m if len(points_m) else 0.0

    def forget(self) -> None:
        """Forget the height: the map was replaced or moved."""
        self._last_m = None
