"""Changes between two maps of one place: objects that appeared, left, moved or have another name.

Objects with one id and one history, of which one map goes on from the other, and objects whose boxes overlap are
paired. Of the rest, objects of equal name and similar size are paired with the shortest total motion. An unpaired
object appeared or left only where the other map shows its place as empty: it is *unseen* where the other map has no
data, and *unsure* where the object's voxels are still there and it was only not recognised.

Both maps must lie in one frame: :func:`compare_maps` refuses maps whose walls and furniture do not coincide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.spatial import cKDTree

from embodied_perceptron.geometry.boxes import Bounds
from embodied_perceptron.geometry.suppression import UNCHANGED_IOU, UNCHANGED_NAME_IOU
from embodied_perceptron.mapping.voxel_counts import count_voxels_explained, without_bottom
from embodied_perceptron.results import UNNAMED, Perception, SceneObject, VoxelSnapshot

F64 = NDArray[np.float64]

_SAME_SIZE = 0.6  # smaller over larger edge
_THERE, _MAPPED = 0.5, 0.2  # share of the voxels of an object, and of those around it, in the other map
_AROUND_M = 0.3
_CELL_M, _COLUMN_M, _LOW_M = 0.1, 0.5, 0.3  # compared cells, columns that both maps saw, least height
_LEAST_COMMON_M2, _LEAST_ALIGNED = 1.0, 0.5


class DifferentPlacesError(ValueError):
    """The maps are of different places, or do not lie in one frame."""


@dataclass(frozen=True, eq=False)
class ObjectChange:
    """One object in both maps, or in one of them.

    Attributes:
        before, after: the object in each map, or None.
        moved_m: (3,) motion of its box, metres in the frame of the maps; growth on one side is no motion.
    """

    before: SceneObject | None
    after: SceneObject | None
    moved_m: F64

    @property
    def distance_m(self) -> float:
        """Length of :attr:`moved_m`."""
        return float(np.linalg.norm(self.moved_m))


@dataclass(frozen=True, eq=False)
class MapChanges:
    """Changes by kind. An object that moved and has another name is in both lists.

    Attributes:
        appeared: at places that are empty in the first map.
        left: from places that are empty in the second map.
        moved: by at least the requested distance.
        renamed: with another class or user's name.
        unsure: not recognised in the other map, which has voxels at the place.
        unseen: at places without data in the other map.
        unchanged: number of unchanged objects.
        aligned: share in [0, 1] of the walls and furniture in both maps that coincides.
    """

    appeared: tuple[ObjectChange, ...]
    left: tuple[ObjectChange, ...]
    moved: tuple[ObjectChange, ...]
    renamed: tuple[ObjectChange, ...]
    unsure: tuple[ObjectChange, ...]
    unseen: tuple[ObjectChange, ...]
    unchanged: int
    aligned: float

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        kinds = ("appeared", "left", "moved", "renamed", "unsure", "unseen")
        return {
            **{kind: [_entry(change) for change in getattr(self, kind)] for kind in kinds},
            "unchanged": self.unchanged,
            "aligned": round(self.aligned, 3),
        }

    def lines(self) -> list[str]:
        """Text lines, one for each change."""
        lines = [f"appeared: {_name(c.after)} at {_place(c.after)}" for c in self.appeared]
        lines += [f"left: {_name(c.before)} from {_place(c.before)}" for c in self.left]
        for c in self.moved:
            x, y, z = c.moved_m
            lines.append(f"moved: {_name(c.after)} by {c.distance_m:.2f} m ({x:+.2f} {y:+.2f} {z:+.2f})")
        lines += [f"renamed: {_name(c.before)} is now {_name(c.after)}" for c in self.renamed]
        lines += [f"unsure: {_name(c.before or c.after)} was not recognised in the other map" for c in self.unsure]
        if self.unseen:
            lines.append(f"{len(self.unseen)} in places that the other map does not show")
        return [*lines, f"{self.unchanged} unchanged"]


def _entry(change: ObjectChange) -> dict[str, Any]:
    return {
        "before": None if change.before is None else change.before.as_dict(),
        "after": None if change.after is None else change.after.as_dict(),
        "moved_m": [round(float(v), 3) for v in change.moved_m],
        "distance_m": round(change.distance_m, 3),
    }


def _name(thing: SceneObject | None) -> str:
    assert thing is not None
    return f"{' '.join((thing.user_name or thing.label).split())} {thing.id}"


def _place(thing: SceneObject | None) -> str:
    assert thing is not None
    x, y, z = thing.box[:3]
    return f"x {x:.2f} y {y:.2f} z {z:.2f}"


def compare_maps(before: Perception, after: Perception, min_moved_m: float = 0.2) -> MapChanges:
    """Changes of the confirmed objects from one map to another; tentative and stale ones may be their partners.

    Args:
        before, after: in one frame.
        min_moved_m: least motion of a moved object.

    Raises :class:`DifferentPlacesError` for maps that do not coincide.
    """
    aligned = check_same_place(before, after)
    a, b = (tuple(p.objects) + tuple(p.tentative) + tuple(p.stale) for p in (before, after))
    pairs = _paired(a, b)
    rest_a = [i for i in range(len(before.objects)) if i not in pairs]
    rest_b = [j for j in range(len(after.objects)) if j not in pairs.values()]
    shown_a = _shown(rest_a, a, before.voxels, after.voxels, b)
    shown_b = _shown(rest_b, b, after.voxels, before.voxels, a)
    gone = [i for i in rest_a if shown_a[i] == "empty"]
    new = [j for j in rest_b if shown_b[j] == "empty"]
    pairs |= _paired_by_kind(a, b, gone, new)
    both = [
        ObjectChange(a[i], b[j], displacement(a[i].box, b[j].box))
        for i, j in sorted(pairs.items())
        if i < len(before.objects) or j < len(after.objects)
    ]
    moved = tuple(c for c in both if c.distance_m >= min_moved_m)
    renamed = tuple(c for c in both if _names(c.before) != _names(c.after))
    alone_a = {i: ObjectChange(a[i], None, np.zeros(3)) for i in rest_a if i not in pairs}
    alone_b = {j: ObjectChange(None, b[j], np.zeros(3)) for j in rest_b if j not in pairs.values()}

    def unpaired(kind: str) -> tuple[ObjectChange, ...]:
        return tuple(c for i, c in alone_a.items() if shown_a[i] == kind) + tuple(
            c for j, c in alone_b.items() if shown_b[j] == kind
        )

    empty = unpaired("empty")
    return MapChanges(
        appeared=tuple(c for c in empty if c.before is None),
        left=tuple(c for c in empty if c.after is None),
        moved=moved,
        renamed=renamed,
        unsure=unpaired("occupied"),
        unseen=unpaired("unmapped"),
        unchanged=len(both) - len({id(c) for c in (*moved, *renamed)}),
        aligned=aligned,
    )


def displacement(before: F64, after: F64) -> F64:
    """(3,) motion of a (9,) box, metres: per axis the smaller motion of its sides, 0 where only the size changed."""
    bounds = Bounds.of(np.stack([before, after]))
    low, high = bounds.low[1] - bounds.low[0], bounds.high[1] - bounds.high[0]
    way = np.where(np.abs(low) < np.abs(high), low, high)
    return np.asarray(np.where(low * high > 0, way, 0.0))


def _names(thing: SceneObject | None) -> tuple[str, str]:
    assert thing is not None
    return thing.label, thing.user_name


def _paired(a: Sequence[SceneObject], b: Sequence[SceneObject]) -> dict[int, int]:
    """Row of ``a`` -> row of ``b``: equal ids that began at one time, which one map has from the other; of the rest,
    the assignment with most overlap, preferring equal names."""
    born = {(o.id, o.history[0].stamp_ns): j for j, o in enumerate(b) if o.history}
    known = {i: born[key] for i, o in enumerate(a) if o.history and (key := (o.id, o.history[0].stamp_ns)) in born}
    rest = [[k for k in range(len(some)) if k not in taken] for some, taken in ((a, known), (b, known.values()))]
    by_place = _paired_by_place([a[i] for i in rest[0]], [b[j] for j in rest[1]])
    return known | {rest[0][i]: rest[1][j] for i, j in by_place.items()}


def _paired_by_place(a: Sequence[SceneObject], b: Sequence[SceneObject]) -> dict[int, int]:
    if not a or not b:
        return {}
    iou = Bounds.of(np.stack([o.box for o in a])).iou(Bounds.of(np.stack([o.box for o in b])))
    same = np.array([[x.label == y.label for y in b] for x in a])
    fits = (iou >= UNCHANGED_IOU) | (same & (iou >= UNCHANGED_NAME_IOU))
    worth = np.where(fits, iou + 0.5 * same, 0.0)
    rows, columns = linear_sum_assignment(worth, maximize=True)
    return {int(i): int(j) for i, j in zip(rows, columns, strict=True) if fits[i, j]}


def _paired_by_kind(
    a: Sequence[SceneObject], b: Sequence[SceneObject], gone: list[int], new: list[int]
) -> dict[int, int]:
    """Row of ``a`` -> row of ``b`` of moved objects: equal name, similar size, shortest total motion."""
    if not gone or not new:
        return {}
    far = 1e6
    way = np.full((len(gone), len(new)), far)
    for r, i in enumerate(gone):
        for c, j in enumerate(new):
            ratio = np.sort(a[i].box[3:6]) / np.sort(b[j].box[3:6])
            if a[i].label == b[j].label != UNNAMED and np.minimum(ratio, 1 / ratio).min() >= _SAME_SIZE:
                way[r, c] = np.linalg.norm(a[i].box[:3] - b[j].box[:3])
    rows, columns = linear_sum_assignment(way)
    return {gone[r]: new[c] for r, c in zip(rows, columns, strict=True) if way[r, c] < far}


def _shown(
    rows: list[int],
    things: Sequence[SceneObject],
    own: VoxelSnapshot,
    other: VoxelSnapshot,
    others: Sequence[SceneObject],
) -> dict[int, str]:
    """State in the ``other`` map of the places of some ``things``: "empty", "occupied" or "unmapped".

    Voxels of the other map inside of its own objects do not count.
    """
    if not rows:
        return {}
    boxes = without_bottom(np.stack([things[i].box for i in rows]))
    known = np.stack([o.box for o in others]) if others else np.zeros((0, 9))
    everybody = [list(range(len(known)))] * len(rows)
    nobody: list[list[int]] = [[]] * len(rows)
    own_in, own_around, _, _ = count_voxels_explained(own, boxes, _AROUND_M, nobody, known)
    other_in, other_around, _, explained = count_voxels_explained(other, boxes, _AROUND_M, everybody, known)
    finer = (other.voxel_size_m / own.voxel_size_m) ** 2  # voxels of a surface
    there = (other_in - explained) * finer >= _THERE * np.maximum(own_in, 1)
    mapped = (other_around + explained) * finer >= _MAPPED * np.maximum(own_around, 1)
    return {i: "occupied" if there[k] else "empty" if mapped[k] else "unmapped" for k, i in enumerate(rows)}


def check_same_place(before: Perception, after: Perception) -> float:
    """Share of walls and furniture that coincides where both maps have data. Raises :class:`DifferentPlacesError`."""
    cells = [_standing_cells(p) for p in (before, after)]
    columns = [set(map(tuple, np.floor(p.voxels.mean_point_m[:, :2] / _COLUMN_M).tolist())) for p in (before, after)]
    common = columns[0] & columns[1]
    area_m2 = len(common) * _COLUMN_M**2
    if area_m2 < _LEAST_COMMON_M2:
        raise DifferentPlacesError(
            f"the maps have {area_m2:.1f} m2 of ground in common: they are of different places, or not in one frame"
        )
    parts = [
        c[[tuple(row) in common for row in np.floor((c[:, :2] + 0.5) * _CELL_M / _COLUMN_M).tolist()]] for c in cells
    ]
    if not len(parts[0]) or not len(parts[1]):
        raise DifferentPlacesError("no walls or furniture where both maps have data: their frames cannot be compared")
    aligned = min(_share_near(parts[0], parts[1]), _share_near(parts[1], parts[0]))
    if aligned < _LEAST_ALIGNED:
        raise DifferentPlacesError(
            f"only {aligned:.0%} of the walls and furniture in both maps coincides: the maps are of different places, "
            "or not in one frame (load one at its place in the other, and save it again)"
        )
    return aligned


def _standing_cells(perception: Perception) -> NDArray[np.int64]:
    """(N, 3) cells above the floor; floors of different rooms would coincide."""
    points = np.asarray(perception.voxels.mean_point_m, np.float64)
    lowest = float(points[:, 2].min(initial=0.0))
    floor_z = perception.grid.floor_z_m if np.isfinite(perception.grid.floor_z_m) else lowest
    above = points[points[:, 2] > floor_z + _LOW_M]
    return np.unique(np.floor(above / _CELL_M).astype(np.int64), axis=0)


def _share_near(cells: NDArray[np.int64], others: NDArray[np.int64]) -> float:
    """Share of cells that are, or touch, one of the others."""
    away = cKDTree(others).query(cells, p=np.inf, distance_upper_bound=1.5)[0]
    return float(np.isfinite(away).mean())
