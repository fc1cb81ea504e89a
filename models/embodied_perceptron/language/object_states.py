"""States and relations that geometry decides, from boxes, names and the map.

    objects = with_conditions(perception.objects, perception.voxels)   each with its condition, where one is seen

    ontop, inside          the relations that the language uses, each thing with the one that carries it best
    under                  both stand on one floor, and a board on legs reaches over half of its footprint

Nothing is inside of a thing on legs except on its lowest board: what lies within the box of a bed with a headboard lies
on it, and what stands on the floor within the box of a table is beside its legs. What is fixed to the building is not
put on anything, and nothing carries what is far larger than itself.

    open, closed           of a door: its leaf against its frame; without one, against the wall that goes on beside it
                           of what has doors or drawers: its front is one plane, or things are before and behind it
    filled, empty          of what is open at the top: whether things lie in it, or how deep one looks into its middle
    folded, unfolded       of cloth: what is folded lies as a small pile, what is not hangs, or is spread wide

Of a thing whose front was not seen, or that lies between the two, no state is said, and none of what is too small for
the map's voxels (cups, glasses).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import Bounds
from embodied_perceptron.language.relations import SceneGeometry, front_probabilities
from embodied_perceptron.results import SceneObject, VoxelSnapshot

_CARRIED = {"ontop": "on", "inside": "in"}  # name of the labels -> of the language
RELATIONS = (*_CARRIED, "under")
_DOORS, _CONTAINERS, _CLOTH = ("open", "closed"), ("filled", "empty"), ("folded", "unfolded")
_CUPBOARDS = (
    "cabinet", "kitchen cabinet", "bathroom cabinet", "cupboard", "closet", "wardrobe", "dresser", "commode", "stand",
    "nightstand", "refrigerator", "fridge", "oven", "stove", "microwave", "dishwasher", "washing machine",
)  # fmt: skip
STATES_OF: Mapping[str, tuple[str, str]] = {
    "door": _DOORS,
    **dict.fromkeys(_CUPBOARDS, _DOORS),
    "basket": _CONTAINERS,
    "bin": _CONTAINERS,
    "bowl": _CONTAINERS,
    "blanket": _CLOTH,
    "towel": _CLOTH,
}
STATES = (*_DOORS, *_CONTAINERS, *_CLOTH)
MIN_SCORE = 0.5
_NO_PLACE = frozenset(("wall", "floor", "ceiling", "door", "doorframe", "window"))  # nothing is put on these
_FIXED = frozenset(("windowsill", "radiator", "counter", "mirror", "socket", "curtain", "blinds"))  # carried by walls
_LEGGED = frozenset(
    ("table", "desk", "bed", "crib", "bench", "chair", "stool", "couch", "sofa")
)  # what shelves hold is in them
_COVERED, _FLOOR_M, _CLEAR_M = 0.5, 0.1, 0.03
_LOW_BOARD_M = 0.25  # above the floor: the board between the legs of a table, below any seat or mattress
_RESTING = 0.8
_LEAST_BEARER = 0.25  # of the footprint of what it carries: a crown of leaves is wider than its stand
_DOOR, _FRAME = "door", "doorframe"
_FRAME_REACH_M = 1.0  # from the leaf's middle to the frame's
_OPEN_RAD = np.radians(9.0)  # a tenth of a door's way, from where the labels call it open
_LEVELS_M = (0.4, 1.9)  # above a leaf's foot: skirtings and lintels are left out
_LEVEL_M = 0.1
_BESIDE_M = (0.1, 0.4)  # beyond a leaf's end: past the frame's lining
_PLANE_M = 0.15  # a wall's surface lies so near to the plane of the leaf in it
_WALL_SHARE = 0.5  # of the levels beside a leaf
_CELL_M = 0.05  # of a front
_BEFORE_M, _WITHIN_M = 0.08, 0.45  # of a front's plane: how far things count that are seen there
_AT_FRONT_M = (-0.15, 0.09, 0.02)  # where the plane of a closed front may lie, and the step that it is looked for by
_PLANE_THICK_M = 0.06
_LEAF_M = (0.1, 0.3)  # before a front, all along which an open leaf stands
_LEAF_HEIGHT, _FOOT = 0.5, 0.1  # at least, as a share of the thing's; below the foot there is the floor
_FRONT_SEEN, _FRONT_KNOWN = 0.4, 0.5  # share of its cells, and probability of the side, from which on it says something
_CLOSED_SHARE, _OPEN_SHARE = 0.6, 0.4  # of a front's cells that lie in one plane
_MIDDLE = 0.5  # of a container's half sides: its walls and rim are left out
_LEAST_POINTS = 3
_FULL = 0.5  # of its height, up to which it is filled
_PILE_M, _PILE_SIDE_M = 0.3, 0.7  # highest and longest pile of something folded

F64 = NDArray[np.float64]
Pair = tuple[int, str, int]


@dataclass(frozen=True)
class StateLabels:
    """What is so in one scene, or what is said to be: pairs (row, relation, row), and the state of things by row."""

    pairs: frozenset[Pair] = frozenset()
    states: Mapping[int, str] = field(default_factory=dict)


def predict_states(boxes: F64, labels: Sequence[str], points_m: F64 | None = None) -> StateLabels:
    """Of (N, 9) boxes, world frame with z up, and their names; ``points_m``: (K, 3) the map's occupied voxels, without
    which doors without a frame, and containers in which nothing was found, have no state."""
    if boxes.shape != (len(labels), 9):
        raise ValueError(f"boxes must be ({len(labels)}, 9) for {len(labels)} labels, got {boxes.shape}")
    points = np.zeros((0, 3)) if points_m is None else np.asarray(points_m, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != 3:
        raise ValueError(f"points_m must be (K, 3), got {points.shape}")
    pairs = _pairs(boxes, labels)
    holding = {b for _, relation, b in pairs if relation == "inside"}
    states: dict[int, str] = {}
    fronts = _fronts(boxes, labels)
    for row, label in enumerate(labels):
        kinds = STATES_OF.get(label)
        if kinds is None:
            continue
        reach_m = float(np.linalg.norm(boxes[row, 3:6])) / 2 + _BESIDE_M[1] + _PLANE_M  # also past any leaf
        near = points[(np.abs(points - boxes[row, :3]) < reach_m).all(axis=1)]
        if label in _CUPBOARDS:
            state = _front_state(boxes[row], fronts[row], near)
        elif kinds == _DOORS:
            state = _door_state(boxes[row], boxes[[name == _FRAME for name in labels]], near)
        elif kinds == _CONTAINERS:
            state = "filled" if row in holding else _filling(boxes[row], near)
        elif kinds == _CLOTH:
            state = _folding(boxes[row])
        else:
            state = None
        if state is not None:
            states[row] = state
    return StateLabels(pairs, states)


def with_conditions(objects: Sequence[SceneObject], voxels: VoxelSnapshot | None) -> tuple[SceneObject, ...]:
    """``objects`` with :attr:`~.results.SceneObject.condition`, as the map shows it; "" where it does not."""
    asked = [o.label in STATES_OF and bool(np.isfinite(o.box).all()) for o in objects]
    if voxels is None or not any(asked):
        return tuple(objects)
    finite = [o for o in objects if np.isfinite(o.box).all()]
    boxes = np.stack([o.box for o in finite]).astype(np.float64)
    states = predict_states(boxes, [o.label for o in finite], voxels.mean_point_m.astype(np.float64)).states
    known = {finite[row].id: state for row, state in states.items()}
    return tuple(dataclasses.replace(o, condition=known.get(o.id, "")) for o in objects)


def _pairs(boxes: F64, labels: Sequence[str]) -> frozenset[Pair]:
    things = np.array([label not in _NO_PLACE for label in labels], dtype=bool)
    if np.count_nonzero(things) < 2:
        return frozenset()
    geometry = SceneGeometry(boxes)
    fixed = np.array([label in _FIXED for label in labels], dtype=bool)
    area = geometry.extent[:, :2].prod(axis=1)
    usable = (things & ~fixed)[:, None] & things[None] & ~np.eye(len(labels), dtype=bool)
    usable &= area[None] >= _LEAST_BEARER * area[:, None]
    scores = {name: np.where(usable, geometry.matrix(word), 0.0) for name, word in _CARRIED.items()}
    legged = np.array([label.split()[-1] in _LEGGED for label in labels])  # a coffee table is a table
    under = np.where(usable & legged[None], _under(boxes), 0.0)
    rise = geometry.low[:, None, 2] - geometry.low[None, :, 2]
    on_board = (rise >= _FLOOR_M) & (rise <= _LOW_BOARD_M)
    # beneath the top of its box, as of a headboard or a back rest; less than what lies plainly on something else
    resting = np.where(legged[None] & (rise > _LOW_BOARD_M), _RESTING * scores["inside"], 0.0)
    scores["inside"] = np.where(legged[None] & ~on_board, 0.0, scores["inside"])
    scores["ontop"] = np.maximum(scores["ontop"], resting)
    # to the language what is on a shelf is in it too, only less plainly
    inside = scores["inside"] > scores["ontop"]
    scores["inside"], scores["ontop"] = np.where(inside, scores["inside"], 0.0), np.where(inside, 0.0, scores["ontop"])
    found = set[Pair]()
    for name, score in {**scores, "under": under}.items():
        best = score.argmax(axis=1)
        found |= {(i, name, int(j)) for i, j in enumerate(best) if score[i, j] >= MIN_SCORE}
    return frozenset(found)


def _under(boxes: F64) -> F64:
    """(N, N) share of the first's footprint that the second reaches over, where that is more than half."""
    bounds = Bounds.of(boxes)
    low, high = bounds.low, bounds.high
    common = bounds.common_extent(bounds, 0) * bounds.common_extent(bounds, 1)
    share = common / np.maximum(bounds.extent[:, :2].prod(axis=1), 1e-9)[:, None]
    level = np.abs(low[:, None, 2] - low[None, :, 2]) < _FLOOR_M
    lower = high[:, None, 2] < high[None, :, 2] - _CLEAR_M
    found: F64 = np.where((share > _COVERED) & level & lower, share, 0.0)
    return found


def _door_state(leaf: F64, frames: F64, points_m: F64) -> str | None:
    """Closed where the leaf lies in its frame's plane, or in that of a wall that goes on beyond both of its ends."""
    apart = np.linalg.norm(frames[:, :2] - leaf[:2], axis=1)
    if len(apart) and apart.min() <= _FRAME_REACH_M:
        turn = _along(leaf) - _along(frames[int(apart.argmin())])
        turn = abs((turn + np.pi / 2) % np.pi - np.pi / 2)
        return "open" if turn > _OPEN_RAD else "closed"
    in_wall = _in_wall(leaf, points_m)
    return None if in_wall is None else "closed" if in_wall else "open"


def _in_wall(leaf: F64, points_m: F64) -> bool | None:
    """Whether a wall goes on in the plane of an upright (9,) leaf beyond both of its ends; None where not even the leaf
    is mapped."""
    x, y = _turned(points_m[:, :2] - leaf[:2], _along(leaf)).T
    z = points_m[:, 2] - (leaf[2] - leaf[5] / 2)
    half, (low, high) = max(leaf[3], leaf[4]) / 2, _LEVELS_M
    near = (np.abs(y) <= _PLANE_M) & (z >= low) & (z < high)
    levels = round((high - low) / _LEVEL_M)

    def share(low_m: float, high_m: float) -> float:
        there = near & (x >= low_m) & (x < high_m)
        return len(np.unique(((z[there] - low) / _LEVEL_M).astype(np.int64))) / levels

    if share(-half, half) < _WALL_SHARE:
        return None
    near_m, far_m = half + _BESIDE_M[0], half + _BESIDE_M[1]
    return share(near_m, far_m) >= _WALL_SHARE and share(-far_m, -near_m) >= _WALL_SHARE


def _fronts(boxes: F64, labels: Sequence[str]) -> F64:
    """(N, 4) probability that -y, +x, +y, -x of each box is its front; zero where none is asked for."""
    asked = np.array([label in _CUPBOARDS for label in labels], dtype=bool)
    if not asked.any():
        return np.zeros((len(labels), 4))
    geometry = SceneGeometry(boxes, barriers=np.array([label == "wall" for label in labels], bool), anchors=asked)
    return front_probabilities(geometry, labels, "estimated")


def _front_state(box: F64, front: F64, points_m: F64) -> str | None:
    """Of an upright (9,) thing with doors or drawers: open where a leaf stands out of its front, or the front lies at
    many depths; closed where most of it lies in one plane."""
    side = int(front.argmax())
    if front[side] < _FRONT_KNOWN:
        return None
    axis, sign = ((1, -1.0), (0, 1.0), (1, 1.0), (0, -1.0))[side]
    local = _turned(points_m[:, :2] - box[:2], float(box[6]))
    depth = sign * local[:, axis] - box[3 + axis] / 2  # 0 in the plane of the front, below it within
    across = local[:, 1 - axis] / box[4 - axis] + 0.5
    up = (points_m[:, 2] - box[2]) / box[5] + 0.5
    if _leaf_before(box, axis, depth, across, up):
        return "open"
    deepest = -min(_WITHIN_M, 0.9 * float(box[3 + axis]))
    there = (depth < _BEFORE_M) & (depth > deepest) & (across >= 0) & (across < 1) & (up >= 0) & (up < 1)
    columns, rows = (max(round(float(box[k]) / _CELL_M), 1) for k in (4 - axis, 5))
    cell = (across[there] * columns).astype(np.int64) * rows + (up[there] * rows).astype(np.int64)
    outermost = np.full(columns * rows, -np.inf)
    np.maximum.at(outermost, cell, depth[there])
    seen = outermost[np.isfinite(outermost)]
    if len(seen) < _FRONT_SEEN * len(outermost):
        return None
    planes = np.arange(*_AT_FRONT_M)
    share = float((np.abs(seen[None] - planes[:, None]) <= _PLANE_THICK_M / 2).mean(1).max())
    return "closed" if share >= _CLOSED_SHARE else "open" if share <= _OPEN_SHARE else None


def _leaf_before(box: F64, axis: int, depth_m: F64, across: F64, up: F64) -> bool:
    """Whether something upright, half as high as the thing, goes on from its front for as long as a leaf is wide."""
    low, high = _LEAF_M
    there = (depth_m >= low) & (depth_m < high) & (across > 0) & (across < 1) & (up > _FOOT) & (up < 1)
    bins = np.stack(
        [
            (depth_m[there] - low) / _CELL_M,
            across[there] * float(box[4 - axis]) / _CELL_M,
            (up[there] - _FOOT) * float(box[5]) / _CELL_M,
        ],
        axis=1,
    ).astype(np.int64)
    cells = np.unique(bins, axis=0)
    columns, heights = np.unique(cells[:, :2], axis=0, return_counts=True)
    upright = columns[heights * _CELL_M >= _LEAF_HEIGHT * (1.0 - _FOOT) * float(box[5])]
    return len(np.unique(upright[:, 0])) == round((high - low) / _CELL_M)


def _filling(box: F64, points_m: F64) -> str | None:
    """Of an upright (9,) container: filled where what is seen of its middle is in its upper half, unknown where nothing
    of it is seen."""
    local = _turned(points_m[:, :2] - box[:2], float(box[6]))
    z = (points_m[:, 2] - box[2]) / box[5] + 0.5  # share of its height
    middle = (np.abs(local) <= _MIDDLE * box[3:5] / 2).all(axis=1) & (z > -0.1) & (z < 1.1)
    if np.count_nonzero(middle) < _LEAST_POINTS:
        return None
    return "filled" if float(np.median(z[middle])) > _FULL else "empty"


def _folding(box: F64) -> str:
    """Of (9,) cloth, by its sides in the world."""
    extent = Bounds.of(box[None]).extent[0]
    pile = extent[2] <= _PILE_M and max(extent[0], extent[1], box[3], box[4]) <= _PILE_SIDE_M
    return "folded" if pile else "unfolded"


def _turned(xy_m: F64, yaw_rad: float) -> F64:
    """(K, 2) positions along and across a direction."""
    c, s = np.cos(yaw_rad), np.sin(yaw_rad)
    turned: F64 = xy_m @ np.array([[c, -s], [s, c]])
    return turned


def _along(box: F64) -> float:
    """Direction of a (9,) box's longer ground side."""
    return float(box[6] + (0.0 if box[3] >= box[4] else np.pi / 2))
