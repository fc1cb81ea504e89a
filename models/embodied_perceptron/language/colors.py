"""Colours of objects: the mean colour of the voxels in each box, and probabilities of colour names.

Measured brightness depends on lamps and exposure, so colours are first scaled by the brightest objects of the scene.
Each name is a long-tailed distribution over CIELAB; means and covariances are in ``lexicon/colors.json`` with the
command that made them. Few objects have vivid colours, and lines of equal hue bend in CIELAB's blues, so that saturated
blue is close to purple. Vivid colours are therefore named by their hue in Oklab (B. Ottosson, 2020).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import box_rotations
from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.language.relations import sigmoid
from embodied_perceptron.results import VoxelSnapshot

F64 = NDArray[np.float64]

_NAME_PROBABILITY = 0.2  # from which a colour name is plausible,
_NAME_SHARE = 0.4  # and as a share of the best name: a plainly green object is not yellow
_LEAST_VOXELS = 5  # in a box whose colour is known
DISTRIBUTIONS = Path(__file__).parent / "lexicon" / "colors.json"
_BRIGHT_PERCENTILE, _BRIGHT = 85.0, 0.6  # linear brightness that this percentile of a scene is scaled to
_VIVID, _VIVID_SOFT = 0.125, 0.012  # chroma in Oklab from which the hue decides
# hue of each name in Oklab and its width, degrees; from the sRGB values of the names
_HUES = {
    "pink": (354.0, 14.0), "red": (25.0, 16.0), "orange": (57.0, 13.0), "yellow": (102.0, 15.0), "green": (145.0, 26.0),
    "blue": (256.0, 24.0), "purple": (310.0, 18.0),
}  # fmt: skip
_DARK_ORANGE, _PALE_RED = 0.55, 0.72  # lightness in Oklab: darker orange is brown, lighter red is pink
_COMMON = 0.5  # power of the frequency of a name: rooms differ in their colours
_TO_CONES = np.array(
    [[0.41222147, 0.53633254, 0.05144599], [0.2119035, 0.68069954, 0.10739696], [0.08830246, 0.28171884, 0.6299787]]
)
_CONES_TO_OKLAB = np.array(
    [
        [0.21045426, 0.79361778, -0.00407205],
        [1.97799849, -2.42859221, 0.45059371],
        [0.02590404, 0.78277177, -0.80867577],
    ]
)
_TAIL = 4.0  # degrees of freedom: saturated colours lie far from the mean of their name


def mean_colors(snapshot: VoxelSnapshot, boxes: F64) -> F64:
    """(B, 9) boxes -> (B, 3) mean sRGB in 0..255 of the voxels inside; NaN for fewer than 5 voxels.

    A voxel in several boxes counts for the smallest: the vase, not the table under it.
    """
    if len(boxes) == 0 or len(snapshot) == 0:
        return np.full((len(boxes), 3), np.nan)
    order = np.argsort(boxes[:, 3:6].prod(axis=1), kind="stable")
    boxes, size_m = boxes[order], snapshot.voxel_size_m
    reach = np.linalg.norm(boxes[:, 3:6], axis=1) / 2 + size_m
    x = snapshot.coords[:, 0]  # sorted by x first: only a slab can lie in a box
    first = np.searchsorted(x, np.floor((boxes[:, 0] - reach) / size_m), side="left")
    last = np.searchsorted(x, np.ceil((boxes[:, 0] + reach) / size_m), side="right")
    rows, center, half = np.stack([first, last], axis=1), boxes[:, :3].copy(), boxes[:, 3:6] / 2 + size_m / 2
    sums = _sum_in_slabs(snapshot.mean_point_m, snapshot.mean_color, rows, center, box_rotations(boxes), half)
    colors = np.full((len(boxes), 3), np.nan)
    enough = sums[:, 3] >= _LEAST_VOXELS
    colors[order[enough]] = sums[enough, :3] / sums[enough, 3:]
    return colors


@njit(cache=True)
def _sum_in_slabs(
    points: NDArray[np.float32], colors: NDArray[np.uint8], slabs: NDArray[np.int64], center: F64, R: F64, half: F64
) -> F64:
    """(B, 4) sums of red, green, blue and count; a voxel counts for the first box that contains it."""
    out = np.zeros((len(center), 4))
    taken = np.zeros(len(points), np.bool_)
    for b in range(len(center)):
        for row in range(slabs[b, 0], slabs[b, 1]):
            if taken[row]:
                continue
            x, y, z = points[row, 0] - center[b, 0], points[row, 1] - center[b, 1], points[row, 2] - center[b, 2]
            inside = True
            for axis in range(3):
                local = x * R[b, 0, axis] + y * R[b, 1, axis] + z * R[b, 2, axis]
                inside = inside and abs(local) <= half[b, axis]
            if inside:
                taken[row] = True
                out[b, 3] += 1.0
                for channel in range(3):
                    out[b, channel] += colors[row, channel]
    return out


def linear_to_lab(linear: F64) -> F64:
    """(N, 3) linear RGB -> (N, 3) CIELAB (D65)."""
    M = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = linear @ M.T / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16.0 / 116.0)
    return np.stack([116.0 * f[:, 1] - 16.0, 500.0 * (f[:, 0] - f[:, 1]), 200.0 * (f[:, 1] - f[:, 2])], axis=1)


def scene_lab(rgb: NDArray[np.generic]) -> F64:
    """(N, 3) sRGB in 0..255 of all objects of a scene, NaN = not measured -> (N, 3) CIELAB under usual light."""
    return linear_to_lab(scene_linear(rgb))


def scene_linear(rgb: NDArray[np.generic]) -> F64:
    """(N, 3) sRGB in 0..255 of all objects of a scene, NaN = not measured -> (N, 3) linear RGB under usual light."""
    c = np.asarray(rgb, dtype=np.float64) / 255.0
    linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    known = linear[np.isfinite(linear).all(axis=1)]
    if len(known) == 0:
        return np.full(linear.shape, np.nan)
    luminance = known @ np.array([0.2126, 0.7152, 0.0722])
    gain = _BRIGHT / max(float(np.percentile(luminance, _BRIGHT_PERCENTILE)), 1e-3)
    return np.clip(linear * gain, 0.0, 1.2)


@lru_cache(maxsize=1)
def _distributions() -> tuple[tuple[str, ...], F64, F64, F64]:
    """Names, (K, 3) means, (K, 3, 3) inverse covariances, (K,) peak densities times :data:`_COMMON` of the names."""
    data = json.loads(DISTRIBUTIONS.read_text(encoding="utf-8"))["colors"]
    covariance = np.array([row["covariance"] for row in data.values()])
    peak = np.array([row["share"] for row in data.values()]) ** _COMMON
    peak /= np.sqrt((2 * np.pi) ** 3 * np.linalg.det(covariance))
    return tuple(data), np.array([row["mean"] for row in data.values()]), np.linalg.inv(covariance), peak


def color_scores(rgb: NDArray[np.generic], name: str) -> F64:
    """(N, 3) sRGB in 0..255 of all objects of a scene, NaN = not measured -> (N,) probability that people
    call it ``name``; NaN stays NaN.

    Raises ``ValueError`` for a name that is none of the known ones.
    """
    return np.asarray(_name_probabilities(rgb)[:, _column(name)])


def _column(name: str) -> int:
    names = _distributions()[0]
    if name not in names:
        raise ValueError(f"{name!r} is not a known colour; known are {', '.join(names)}")
    return names.index(name)


def color_likelihood(colors: F64, name: str) -> F64:
    """(N, 3) mean sRGB in 0..255 of all objects -> (N,) likelihood that ``name`` fits each; NaN stays NaN."""
    of_all = _name_probabilities(colors)
    own = np.asarray(of_all[:, _column(name)])
    share = own / np.maximum(of_all.max(axis=1, initial=0.0), 1e-9)
    return sigmoid((own - _NAME_PROBABILITY) / 0.04) * sigmoid((share - _NAME_SHARE) / 0.05)


def _name_probabilities(rgb: NDArray[np.generic]) -> F64:
    """:func:`color_scores` of (N, 3) colours for all K names, (N, K)."""
    names, mean, inverse, peak = _distributions()
    linear = scene_linear(rgb)
    d = linear_to_lab(linear)[:, None] - mean[None]
    distance2 = ((d[:, :, None] @ inverse)[:, :, 0] * d).sum(axis=2)
    density = peak * (1.0 + distance2 / _TAIL) ** (-0.5 * (_TAIL + 3.0))
    dull = density / np.maximum(density.sum(axis=1, keepdims=True), 1e-300)
    vivid, share = _by_hue(linear, names)
    return np.asarray(share[:, None] * vivid + (1.0 - share[:, None]) * dull)


def _by_hue(linear: F64, names: Sequence[str]) -> tuple[F64, F64]:
    """(N, 3) linear RGB -> (N, K) probability of each name by hue, and (N,) weight of the hue; NaN stays NaN."""
    lab = np.cbrt(linear @ _TO_CONES.T) @ _CONES_TO_OKLAB.T
    lightness, chroma = lab[:, 0], np.hypot(lab[:, 1], lab[:, 2])
    hue = np.degrees(np.arctan2(lab[:, 2], lab[:, 1]))
    weights = {}
    for other, (center, width) in _HUES.items():
        apart = (hue - center + 180.0) % 360.0 - 180.0
        weights[other] = np.exp(-0.5 * (apart / width) ** 2) + 1e-6
    dark, pale = sigmoid((_DARK_ORANGE - lightness) / 0.03), sigmoid((lightness - _PALE_RED) / 0.03)
    weights["brown"], weights["orange"] = weights["orange"] * dark, weights["orange"] * (1.0 - dark)
    weights["pink"] = weights["pink"] * (0.3 + 0.7 * pale) + weights["red"] * pale
    weights["red"] = weights["red"] * (1.0 - 0.9 * pale)
    total = np.sum(list(weights.values()), axis=0)
    none = np.zeros(len(linear))
    vivid = np.stack([weights.get(name, none) / total for name in names], axis=1)
    return vivid, sigmoid((chroma - _VIVID) / _VIVID_SOFT)


def same_color(rgb: NDArray[np.generic], rows: NDArray[np.intp]) -> F64:
    """(N, 3) sRGB in 0..255 of all objects of a scene, NaN = not measured -> (N, R) similarity to each of
    ``rows``: agreement of the probabilities of their names (Bhattacharyya); NaN where not measured."""
    root = np.sqrt(_name_probabilities(rgb))
    return np.asarray(root @ root[rows].T)


def color_names(rgb: NDArray[np.generic], rows: NDArray[np.intp] | None = None) -> list[str]:
    """(N, 3) sRGB in 0..255 of all objects of a scene, NaN = not measured -> the colour name of each, or of each of
    ``rows``; empty where not measured."""
    names = _distributions()[0]
    table = _name_probabilities(rgb)
    table = table if rows is None else table[rows]
    return ["" if np.isnan(row).any() else names[row.argmax()] for row in table]
