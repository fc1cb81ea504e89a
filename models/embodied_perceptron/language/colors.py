"""Colours of objects: the mean colour of the voxels in each box, and the names that people give it.

How bright a surface measures depends on lamps and exposure: colours are first scaled by what the brightest things of
the scene measure. Then each name is a distribution over CIELAB with long tails; means and covariances stand in
``lexicon/colors.json`` with the command that made them.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import numpy as np
from numba import njit
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import box_rotations
from embodied_perceptron.results import VoxelSnapshot

F64 = NDArray[np.float64]

_LEAST_VOXELS = 5  # of a box whose colour is known
DISTRIBUTIONS = Path(__file__).parent / "lexicon" / "colors.json"
_BRIGHT_PERCENTILE, _BRIGHT = 85.0, 0.6  # so bright (linear) are the brightest of a scene taken to be
_TAIL = 4.0  # degrees of freedom: clear colours lie far from the mean of washed-out ones and are called the same


def mean_colors(snapshot: VoxelSnapshot, boxes: F64) -> F64:
    """(B, 9) boxes -> (B, 3) mean sRGB in 0..255 of the voxels inside; NaN where there are hardly any.

    A voxel that lies in several boxes counts for the smallest of them: the vase, not the table that it stands on.
    """
    if len(boxes) == 0 or len(snapshot) == 0:
        return np.full((len(boxes), 3), np.nan)
    order = np.argsort(boxes[:, 3:6].prod(axis=1), kind="stable")
    reach = np.linalg.norm(boxes[:, 3:6], axis=1) / 2 + snapshot.voxel_size_m
    x = snapshot.coords[:, 0]  # the snapshot is sorted by x first: only a slab of it can lie in a box
    first = np.searchsorted(x, np.floor((boxes[:, 0] - reach) / snapshot.voxel_size_m), side="left")
    last = np.searchsorted(x, np.ceil((boxes[:, 0] + reach) / snapshot.voxel_size_m), side="right")
    half = boxes[:, 3:6] / 2 + snapshot.voxel_size_m / 2
    rows = np.stack([first, last], axis=1).astype(np.int64)
    sums: F64 = _sum_in_slabs(
        snapshot.mean_point_m,
        snapshot.mean_color,
        rows[order],
        boxes[order, :3],
        box_rotations(boxes)[order],
        half[order],
    )
    colors = np.full((len(boxes), 3), np.nan)
    enough = sums[:, 3] >= _LEAST_VOXELS
    colors[order[enough]] = sums[enough, :3] / sums[enough, 3:]
    return colors


@njit(cache=True)
def _sum_in_slabs(
    points: NDArray[np.float32],
    colors: NDArray[np.uint8],
    slabs: NDArray[np.int64],
    center: F64,
    R: F64,
    half: F64,
) -> F64:
    """(B, 4) sums of red, green, blue and count; the first box that a voxel lies in has it."""
    out = np.zeros((len(center), 4))
    taken = np.zeros(len(points), np.bool_)
    for b in range(len(center)):
        for row in range(slabs[b, 0], slabs[b, 1]):
            if taken[row]:
                continue
            inside = True
            for axis in range(3):
                local = 0.0
                for k in range(3):
                    local += (points[row, k] - center[b, k]) * R[b, k, axis]
                if abs(local) > half[b, axis]:
                    inside = False
                    break
            if inside:
                taken[row] = True
                for channel in range(3):
                    out[b, channel] += colors[row, channel]
                out[b, 3] += 1.0
    return out


def to_linear(rgb: F64) -> F64:
    """sRGB in 0..255 -> linear light in 0..1."""
    c = rgb / 255.0
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def linear_to_lab(linear: F64) -> F64:
    """(N, 3) linear RGB -> (N, 3) CIELAB (D65)."""
    M = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = linear @ M.T / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16.0 / 116.0)
    return np.stack([116.0 * f[:, 1] - 16.0, 500.0 * (f[:, 0] - f[:, 1]), 200.0 * (f[:, 1] - f[:, 2])], axis=1)


def scene_lab(rgb: NDArray[np.generic]) -> F64:
    """(N, 3) sRGB in 0..255 of all objects of a scene, NaN = not measured -> (N, 3) CIELAB under usual light."""
    linear = to_linear(np.asarray(rgb, dtype=np.float64))
    known = linear[np.isfinite(linear).all(axis=1)]
    if len(known) == 0:
        return np.full(linear.shape, np.nan)
    luminance = known @ np.array([0.2126, 0.7152, 0.0722])
    gain = _BRIGHT / max(float(np.percentile(luminance, _BRIGHT_PERCENTILE)), 1e-3)
    return linear_to_lab(np.clip(linear * gain, 0.0, 1.2))


@lru_cache(maxsize=1)
def _distributions() -> tuple[tuple[str, ...], F64, F64, F64]:
    """Names, (K, 3) means, (K, 3, 3) inverse covariances, (K,) peak densities."""
    data = json.loads(DISTRIBUTIONS.read_text(encoding="utf-8"))["colors"]
    covariance = np.array([row["covariance"] for row in data.values()])
    peak = 1.0 / np.sqrt((2 * np.pi) ** 3 * np.linalg.det(covariance))
    return tuple(data), np.array([row["mean"] for row in data.values()]), np.linalg.inv(covariance), peak


def color_scores(rgb: NDArray[np.generic], name: str) -> F64:
    """(N, 3) sRGB in 0..255 of all objects of a scene, NaN = not measured -> (N,) probability that somebody calls it
    ``name``; NaN stays NaN.

    Raises ``ValueError`` for a name that is none of the known ones.
    """
    names, mean, inverse, peak = _distributions()
    if name not in names:
        raise ValueError(f"{name!r} is no known colour; known are {', '.join(names)}")
    d = scene_lab(rgb)[:, None] - mean[None]
    distance2 = np.einsum("nki,kij,nkj->nk", d, inverse, d)
    density = peak * (1.0 + distance2 / _TAIL) ** (-0.5 * (_TAIL + 3.0))
    return np.asarray(density[:, names.index(name)] / np.maximum(density.sum(axis=1), 1e-300))
