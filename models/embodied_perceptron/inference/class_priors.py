"""Plausible sizes and heights of object classes, and extents of large tables from the map.

A 2-D detector sees no size: a carpet looks like a bed and a model house like a house. Sizes are counted in synthetic
homes (``class_sizes.json``, which names its source) and completed by hand for classes that homes lack or make too
uniform (``class_ranges.json``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from embodied_perceptron.geometry.suppression import without_pieces
from embodied_perceptron.results import Detections, VoxelSnapshot

_FOLDER = Path(__file__).parent
_SIZES = ("long_m", "short_m", "height_m", "bottom_m", "top_m")
_WIDER, _HIGHER_M = 1.3, 0.1  # real objects vary more than the counted ones
# and still more where a detector names them; things on the floor stay there
_DETECTED_WIDER, _DETECTED_HIGHER_M = 1.6, 0.5
_SLACK_M = 0.05  # noise of a measured edge
_SOFTNESS = 0.2  # of the logarithm of a size beyond its range: one standard deviation
_HEIGHT_SOFTNESS_M = 0.1
_SMALL_M = 0.6
_FLAT_M = 0.06
_WORST = -8.0  # log-likelihood of an impossible size


@dataclass(frozen=True)
class ClassPrior:
    """Plausible sizes of one class, [least, largest], metres.

    Attributes:
        long_m, short_m: sides on the ground.
        height_m: of the object.
        bottom_m, top_m: above the floor.
        mounted: "floor", "object", "wall" or "ceiling": its usual support.
        usual_m: usual long and short side.
    """

    long_m: tuple[float, float]
    short_m: tuple[float, float]
    height_m: tuple[float, float]
    bottom_m: tuple[float, float]
    top_m: tuple[float, float]
    mounted: str
    usual_m: tuple[float, float]

    @property
    def small(self) -> bool:
        """Whether it is small enough to lie on furniture."""
        return max(self.long_m[1], self.height_m[1]) <= _SMALL_M

    @property
    def flat(self) -> bool:
        """Whether it may be as flat as the noise of its supporting surface."""
        return self.height_m[0] <= _FLAT_M / 2

    @property
    def stands(self) -> bool:
        """Whether it stands on the floor."""
        return self.mounted == "floor" and self.bottom_m[1] < 0.3


class ClassPriors:
    """Priors and spellings of class names.

    Args:
        priors: by name as the map uses it.
        names: other names -> names as the map uses them.
    """

    def __init__(self, priors: Mapping[str, ClassPrior], names: Mapping[str, str]) -> None:
        self._priors = dict(priors)
        self._names = dict(names)

    def canonical(self, label: str) -> str:
        """The map's name for a detector's ``label``; the label itself where no other is known."""
        return self._names.get(label, label)

    def get(self, label: str) -> ClassPrior | None:
        """Prior of a canonical name; None where there is none."""
        return self._priors.get(label)

    def log_plausibility(self, label: str, box: NDArray[np.float64], floor_z_m: float, whole: bool = True) -> float:
        """Log-plausibility in [-8, 0] of an upright (9,) box for a name; 0 for names without a prior.

        Args:
            label: canonical name.
            box: in the world; its third axis is up.
            floor_z_m: height of the floor.
            whole: False = parts of the object were not seen, so that the box may be too small but not too large.
        """
        prior = self.get(label)
        if prior is None:
            return 0.0
        _, _, middle_m, first_m, second_m, height_m = box[:6].tolist()  # Python floats cost a fifth of numpy's
        sides = (
            (max(first_m, second_m), prior.long_m),
            (min(first_m, second_m), prior.short_m),
            (height_m, prior.height_m),
        )
        total = 0.0
        for size_m, (least, largest) in sides:
            beyond = log(max(size_m - _SLACK_M, 1e-3) / largest) if size_m - _SLACK_M > largest else 0.0
            if whole and size_m + _SLACK_M < least:
                beyond = log(least / (size_m + _SLACK_M))
            total -= 0.5 * (beyond / _SOFTNESS) ** 2
        bottom_m, top_m = middle_m - height_m / 2 - floor_z_m, middle_m + height_m / 2 - floor_z_m
        above = max(0.0, bottom_m - prior.bottom_m[1] - _SLACK_M) if whole else 0.0
        heights = (
            above,
            max(0.0, top_m - prior.top_m[1] - _SLACK_M),
            max(0.0, prior.top_m[0] - _SLACK_M - top_m),
            max(0.0, prior.bottom_m[0] - _SLACK_M - bottom_m) if whole else 0.0,
        )
        total -= 0.5 * sum((h / _HEIGHT_SOFTNESS_M) ** 2 for h in heights)
        return float(max(total, _WORST))


def _widened(entry: dict[str, Any], wider: float, higher_m: float) -> ClassPrior:
    """Prior with wider ranges than the counted quantiles, and higher ones for what does not stand on the floor."""
    ranges = {}
    for name in _SIZES:
        low, _, high = entry[name]
        ranges[name] = (max(0.0, low / wider), high * wider)
    mounted = max(sorted(entry["mounted"]), key=lambda where: entry["mounted"][where])
    bottom, top, more_m = ranges["bottom_m"], ranges["top_m"], _HIGHER_M if mounted == "floor" else higher_m
    ranges["bottom_m"], ranges["top_m"] = (bottom[0], bottom[1] + more_m), (top[0], top[1] + more_m)
    return ClassPrior(**ranges, mounted=mounted, usual_m=(entry["long_m"][1], entry["short_m"][1]))


@lru_cache(maxsize=1)
def shipped_priors() -> ClassPriors:
    """Priors from the tables of this package."""
    return _from_tables(_WIDER, _HIGHER_M, ("classes",))


@lru_cache(maxsize=1)
def detector_priors() -> ClassPriors:
    """Wider priors, for names that a 2-D detector reports: its images show more kinds than homes have."""
    return _from_tables(_DETECTED_WIDER, _DETECTED_HIGHER_M, ("classes", "detected"))


def _from_tables(wider: float, higher_m: float, sections: tuple[str, ...]) -> ClassPriors:
    counted = json.loads((_FOLDER / "class_sizes.json").read_text(encoding="utf-8"))["classes"]
    by_hand = json.loads((_FOLDER / "class_ranges.json").read_text(encoding="utf-8"))
    names = json.loads((_FOLDER / "class_names.json").read_text(encoding="utf-8"))["names"]
    priors = {label: _widened(entry, wider, higher_m) for label, entry in counted.items()}
    for label, entry in (pair for section in sections for pair in by_hand[section].items()):
        ranges = {name: (float(entry[name][0]), float(entry[name][1])) for name in _SIZES}
        usual = [float(np.sqrt(ranges[name][0] * ranges[name][1])) for name in ("long_m", "short_m")]
        known = priors[label].usual_m if label in priors else (usual[0], usual[1])
        priors[label] = ClassPrior(**ranges, mounted=entry["mounted"], usual_m=known)
    return ClassPriors(priors, names)


# --------------------------------------------------------------------------------------------------------------------
# Extents of large level objects
#
# A network's box names a table, counter or desk; the map shows better how far it reaches. Each side of the box's
# footprint moves outward strip by strip while the level surface at the box's top continues. Boxes stay unchanged where
# that surface is incomplete or not at their top, where they are tilted, and where the result has no plausible size for
# the name. Boxes only grow; heights and rotations stay the network's. Other boxes inside of a grown box are dropped as
# its pieces when they have its name, or no name and its height (the cupboards of a counter).

F64 = NDArray[np.float64]

LEVEL_NAMES = frozenset({"table", "desk", "counter", "countertop", "kitchen island", "bench"})
_MIN_SIDE_M = 0.6  # shorter objects are seen whole
_CELL_M = 0.05
_LEVEL_M = 0.06  # voxels within this of the surface's height belong to it
_TOP_M = 0.1  # largest distance between the surface and the box's top
_COMPLETE = 0.55  # share of the box's own footprint that the surface fills
_GOES_ON = 0.6  # share of a strip that continues the surface
_REACH_M = 2.5  # largest motion of a side
_LEAST_M = 0.1  # smaller motion of all sides together is noise
_UPRIGHT = 0.05  # rad
_MIN_PLAUSIBILITY = -3.0


def refine_extents(
    found: Detections, snapshot: VoxelSnapshot, floor_z_m: float, priors: ClassPriors, min_score: float = 0.0
) -> Detections:
    """Grow boxes of large level objects to the extents in the map, and drop the pieces inside of them.

    Args:
        found: boxes of the network, world frame.
        snapshot: the map.
        floor_z_m: height of the floor.
        priors: plausible sizes.
        min_score: boxes with lower scores stay unchanged, which saves time.

    Returns the boxes in the same order. Equivariant under rotations about gravity.
    """
    boxes, grown = found.boxes.copy(), np.zeros(len(found), dtype=bool)
    points: F64 | None = None
    for row in np.flatnonzero(found.scores >= min_score):
        tilted = abs(boxes[row, 7]) >= _UPRIGHT or abs(boxes[row, 8]) >= _UPRIGHT
        if found.labels[row] not in LEVEL_NAMES or tilted or float(boxes[row, 3:5].max()) < _MIN_SIDE_M:
            continue
        if points is None:
            points = snapshot.mean_point_m.astype(np.float64)
        box = grow_to_surface(boxes[row], points)
        # no larger than the name allows; parts may still be unseen
        if box is None or priors.log_plausibility(found.labels[row], box, floor_z_m, whole=False) < _MIN_PLAUSIBILITY:
            continue
        boxes[row], grown[row] = box, True
    if not grown.any():
        return found
    kept = without_pieces(boxes, found.scores, found.labels, grown)
    return replace(found.take(kept), boxes=boxes[kept])


def grow_to_surface(box: F64, points_m: F64) -> F64 | None:
    """Grow an upright (9,) box over the level surface at its top; None without such a surface, or without growth.

    Args:
        box: x y z dx dy dz alpha beta gamma.
        points_m: (N, 3) occupied voxels of the map.
    """
    top_m = box[2] + box[5] / 2
    near = np.abs(points_m[:, 2] - top_m) <= _TOP_M + _LEVEL_M
    c, s = np.cos(box[6]), np.sin(box[6])
    local = (points_m[near, :2] - box[:2]) @ np.array([[c, -s], [s, c]])  # along the box's sides
    z_m = points_m[near, 2]
    half = box[3:5] / 2
    inside = (np.abs(local) <= half).all(axis=1)
    if not inside.any():
        return None
    # the most frequent level inside of the footprint
    levels, counts = np.unique(np.round(z_m[inside] / 0.02).astype(np.int64), return_counts=True)
    level_m = 0.02 * float(levels[np.argmax(counts)])
    if abs(level_m - top_m) > _TOP_M:
        return None
    level = (np.abs(z_m - level_m) <= _LEVEL_M) & (np.abs(local) <= half + _REACH_M).all(axis=1)
    first = np.ceil(half / _CELL_M).astype(np.int64)  # cells from the middle to the box's side
    reach = first + round(_REACH_M / _CELL_M)
    surface = np.zeros(2 * reach, dtype=bool)
    cell = np.floor(local[level] / _CELL_M).astype(np.int64) + reach
    cell = cell[((cell >= 0) & (cell < 2 * reach)).all(axis=1)]
    surface[tuple(cell.T)] = True
    surface = scipy.ndimage.binary_closing(surface, structure=np.ones((3, 3), dtype=bool)) | surface
    low, high = reach - first, reach + first  # the footprint, in cells
    if float(surface[low[0] : high[0], low[1] : high[1]].mean()) < _COMPLETE:
        return None
    moved = _grow(surface, low.copy(), high.copy())
    more = np.stack([low - moved[0], moved[1] - high]) * _CELL_M  # (2, 2) of the low and high sides
    if more.sum() < _LEAST_M:
        return None
    result: NDArray[np.float64] = box.copy()
    shift = 0.5 * (more[1] - more[0])
    result[:2] += np.array([[c, -s], [s, c]]) @ shift
    result[3:5] += more.sum(axis=0)
    return result


def _grow(
    surface: NDArray[np.bool_], low: NDArray[np.int64], high: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Move the sides of the rectangle [low, high) outward while the surface continues beyond them."""
    going = True
    while going:
        going = False
        for axis in (0, 1):
            strips = np.moveaxis(surface, axis, 0)[:, low[1 - axis] : high[1 - axis]]
            for end, at, step in ((low, low[axis] - 1, -1), (high, high[axis], 1)):
                if 0 <= at < len(strips) and float(strips[at].mean()) >= _GOES_ON:
                    going = True
                    end[axis] += step
    return low, high
