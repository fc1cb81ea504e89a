"""States of objects and relations between them, decided by geometry from boxes, labels and the map.

    objects = with_conditions(perception.objects, perception.voxels)   each with its state, where it is visible

ontop, inside          the relations that sentences use; each object with its best anchor
under                  both stand on one floor, and a legged object reaches over half of the footprint

Only the lowest board of a legged object contains objects: what lies within the box of a bed with a headboard is on the
bed, and what stands on the floor within the box of a table is beside its legs. Fixtures are on nothing, and an object
does not carry a far larger one.

open, closed           door: leaf against its frame, or else against the wall that continues beside it; furniture with
                       doors or drawers: the front is one plane, or surfaces lie before and behind it
filled, empty          open containers: objects inside, or the depth of the surface seen in the middle
folded, unfolded       cloth: folded is a small pile; hanging or spread out is unfolded

Objects whose front was not seen, unclear cases, and objects too small for the voxels (cups, glasses) have no state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import Bounds
from embodied_perceptron.language.relations import Pairs, SceneGeometry, front_probabilities
from embodied_perceptron.results import SceneObject, VoxelSnapshot

RELATIONS = ("ontop", "inside", "under")  # names in labels
_DOORS, _CONTAINERS, _CLOTH = ("open", "closed"), ("filled", "empty"), ("folded", "unfolded")
_CUPBOARDS = (
    "cabinet", "kitchen cabinet", "bathroom cabinet", "cupboard", "closet", "wardrobe", "dresser", "commode", "stand",
    "nightstand", "refrigerator", "fridge", "oven", "stove", "microwave", "dishwasher", "washing machine",
)  # fmt: skip
STATES_OF: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("door", *_CUPBOARDS), _DOORS),
    **dict.fromkeys(("basket", "bin", "bowl"), _CONTAINERS),
    **dict.fromkeys(("blanket", "towel"), _CLOTH),
}
STATES = (*_DOORS, *_CONTAINERS, *_CLOTH)
MIN_SCORE = 0.5
_NO_PLACE = frozenset(("wall", "floor", "ceiling", "door", "doorframe", "window"))  # no anchors of relations
_FIXED = frozenset(("windowsill", "radiator", "counter", "mirror", "socket", "curtain", "blinds"))  # fixed to walls
# objects on shelves count as inside
_LEGGED = frozenset(("table", "desk", "bed", "crib", "bench", "chair", "stool", "couch", "sofa"))
_COVERED, _FLOOR_M, _CLEAR_M = 0.5, 0.1, 0.03
_LOW_BOARD_M = 0.25  # above the floor: below any seat or mattress
_RESTING = 0.8
_RESTS_M = 0.12  # largest gap between a bottom and the top under it (box error)
_LEAST_BEARER = 0.25  # least footprint of an anchor as a share: a plant is wider than its stand
_FRAME_REACH_M = 1.0  # most distance of the middles of leaf and frame
_OPEN_RAD = np.radians(9.0)  # a tenth of a door's range, from which labels call it open
_LEVELS_M = (0.4, 1.9)  # heights above a leaf's foot, between skirting and lintel
_LEVEL_M = 0.1
_BESIDE_M = (0.1, 0.4)  # beyond a leaf's end: past the frame's lining
_PLANE_M = 0.15  # most distance of a wall's surface from the plane of a closed leaf
_WALL_SHARE = 0.5  # least share of occupied levels of a wall
_CELL_M = 0.05  # grid on a front
_BEFORE_M, _WITHIN_M = 0.08, 0.45  # depth range of points before and behind a front's plane
_AT_FRONT_M = (-0.15, 0.09, 0.02)  # possible offsets of a closed front's plane: from, to, step
_PLANE_THICK_M = 0.06
_LEAF_M = (0.1, 0.3)  # depth range that an open leaf covers before a front
_LEAF_HEIGHT, _FOOT = 0.5, 0.1  # least height of a leaf, and height of the floor zone, as shares of the object's
_FRONT_SEEN, _FRONT_KNOWN = 0.4, 0.5  # least share of observed cells, and least probability of the front's side
_CLOSED_SHARE, _OPEN_SHARE = 0.6, 0.4  # of a front's cells in one plane
_MIDDLE = 0.5  # share of a container's half sides, without walls and rim
_LEAST_POINTS = 3
_FULL = 0.5  # share of the height from which it is filled
_PILE_M, _PILE_SIDE_M = 0.3, 0.7  # largest height and side of folded cloth

F64 = NDArray[np.float64]
Pair = tuple[int, str, int]


@dataclass(frozen=True)
class StateLabels:
    """True or predicted relations (row, relation, row) and states by row of one scene."""

    pairs: frozenset[Pair] = frozenset()
    states: Mapping[int, str] = field(default_factory=dict)


def predict_states(boxes: F64, labels: Sequence[str], points_m: F64 | None = None) -> StateLabels:
    """Predict relations and states of (N, 9) boxes, world frame with z up, and their labels.

    ``points_m``: (K, 3) occupied voxels of the map. Without them, doors without a frame and containers without detected
    contents have no state. Raises ``ValueError`` for other shapes.
    """
    if boxes.shape != (len(labels), 9):
        raise ValueError(f"boxes must be ({len(labels)}, 9) for {len(labels)} labels, got {boxes.shape}")
    points = np.zeros((0, 3)) if points_m is None else np.asarray(points_m, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != 3:
        raise ValueError(f"points_m must be (K, 3), got {points.shape}")
    pairs = predict_pairs(boxes, labels)
    holding = {b for _, relation, b in pairs if relation == "inside"}
    states: dict[int, str] = {}
    fronts = _fronts(boxes, labels)
    frames = boxes[[name == "doorframe" for name in labels]]
    points = points[points[:, 0].argsort()]
    for row, label in enumerate(labels):
        kinds = STATES_OF.get(label)
        if kinds is None:
            continue
        reach_m = float(np.linalg.norm(boxes[row, 3:6])) / 2 + _BESIDE_M[1] + _PLANE_M  # includes any leaf
        near = points[slice(*points[:, 0].searchsorted([boxes[row, 0] - reach_m, boxes[row, 0] + reach_m]))]
        near = near[(np.abs(near - boxes[row, :3]) < reach_m).all(axis=1)]
        if label in _CUPBOARDS:
            state = _front_state(boxes[row], fronts[row], near)
        elif kinds == _DOORS:
            state = _door_state(boxes[row], frames, near)
        elif kinds == _CONTAINERS:
            state = "filled" if row in holding else _filling(boxes[row], near)
        else:
            state = _folding(boxes[row])
        if state is not None:
            states[row] = state
    return StateLabels(pairs, states)


def with_conditions(objects: Sequence[SceneObject], voxels: VoxelSnapshot | None) -> tuple[SceneObject, ...]:
    """Set :attr:`~.results.SceneObject.condition` of ``objects`` from the map; "" = unknown."""
    finite = [o for o in objects if np.isfinite(o.box).all()]
    if voxels is None or not any(o.label in STATES_OF for o in finite):
        return tuple(objects)
    boxes = np.stack([o.box for o in finite]).astype(np.float64)
    states = predict_states(boxes, [o.label for o in finite], voxels.mean_point_m.astype(np.float64)).states
    known = {finite[row].id: state for row, state in states.items()}
    return tuple(dataclasses.replace(o, condition=known.get(o.id, "")) for o in objects)


def predict_pairs(boxes: F64, labels: Sequence[str]) -> frozenset[Pair]:
    """Relations :data:`RELATIONS` of (N, 9) boxes by geometry: (row, relation, row of the anchor)."""
    things = np.array([label not in _NO_PLACE for label in labels], dtype=bool)
    if np.count_nonzero(things) < 2:
        return frozenset()
    geometry = SceneGeometry(boxes)
    fixed = np.array([label in _FIXED for label in labels], dtype=bool)
    area = geometry.extent[:, :2].prod(axis=1)
    legged = np.array([label.split()[-1] in _LEGGED for label in labels])  # "coffee table" is a table

    i, j = geometry.bounds.pairs_within(geometry.bounds, 0.0)  # scores of boxes side by side are below MIN_SCORE
    wanted = (things & ~fixed)[i] & things[j] & (i != j) & (area[j] >= _LEAST_BEARER * area[i])
    i, j = i[wanted], j[wanted]
    pairs = Pairs(geometry, i, j)
    inside = pairs.scores("in")
    ontop = pairs.scores("on") * (geometry.low[i, 2] - geometry.high[j, 2] <= _RESTS_M)
    rise = geometry.low[i, 2] - geometry.low[j, 2]
    on_board = (rise >= _FLOOR_M) & (rise <= _LOW_BOARD_M)
    # below the top of the box (headboard, back rest); scores less than resting plainly on another object
    resting = np.where(legged[j] & (rise > _LOW_BOARD_M), _RESTING * inside, 0.0)
    inside = np.where(legged[j] & ~on_board, 0.0, inside)
    ontop = np.maximum(ontop, resting)
    # an object on a shelf also scores for "in"; keep the larger score
    within = inside > ontop
    size = geometry.volume[j]
    found = _best("inside", i, j, np.where(within, inside, 0.0), size)
    found |= _best("ontop", i, j, np.where(within, 0.0, ontop), size)
    i, j = i[legged[j]], j[legged[j]]
    share = _under(geometry.bounds, i, j)
    return found | _best("under", i, j, share, -share)


def _best(relation: str, rows: NDArray[np.intp], anchors: NDArray[np.intp], score: F64, size: F64) -> frozenset[Pair]:
    """The anchor of each row with the least size, the first of equal ones; rows are sorted."""
    kept = np.flatnonzero(score >= MIN_SCORE)
    kept = kept[np.lexsort((anchors[kept], size[kept], rows[kept]))]
    of, first = np.unique(rows[kept], return_index=True)
    return frozenset(zip(of.tolist(), [relation] * len(of), anchors[kept][first].tolist(), strict=True))


def _under(bounds: Bounds, rows: NDArray[np.intp], anchors: NDArray[np.intp]) -> F64:
    """(P,) share of the first's footprint under the second, where more than half."""
    below, above = bounds[rows], bounds[anchors]
    common = np.maximum(np.minimum(below.high, above.high) - np.maximum(below.low, above.low), 0.0)[:, :2].prod(axis=1)
    share = common / np.maximum(below.extent[:, :2].prod(axis=1), 1e-9)
    level = np.abs(below.low[:, 2] - above.low[:, 2]) < _FLOOR_M
    lower = below.high[:, 2] < above.high[:, 2] - _CLEAR_M
    return np.asarray(np.where((share > _COVERED) & level & lower, share, 0.0))


def _door_state(leaf: F64, frames: F64, points_m: F64) -> str | None:
    """Closed: the leaf lies in the plane of its frame, or of a wall that continues beyond both of its ends."""
    apart = np.linalg.norm(frames[:, :2] - leaf[:2], axis=1)
    if len(apart) and apart.min() <= _FRAME_REACH_M:
        turn = _along(leaf) - _along(frames[int(apart.argmin())])
        turn = abs((turn + np.pi / 2) % np.pi - np.pi / 2)
        return "open" if turn > _OPEN_RAD else "closed"
    return _state_in_wall(leaf, points_m)


def _state_in_wall(leaf: F64, points_m: F64) -> str | None:
    """Closed: a wall continues in the plane of an upright (9,) leaf beyond both ends; None: leaf not mapped."""
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
    goes_on = share(near_m, far_m) >= _WALL_SHARE and share(-far_m, -near_m) >= _WALL_SHARE
    return "closed" if goes_on else "open"


def _fronts(boxes: F64, labels: Sequence[str]) -> F64:
    """(N, 4) probability that -y, +x, +y, -x of each box is its front; zero without doors or drawers."""
    asked = np.array([label in _CUPBOARDS for label in labels], dtype=bool)
    if not asked.any():
        return np.zeros((len(labels), 4))
    geometry = SceneGeometry(boxes, barriers=np.array([label == "wall" for label in labels], bool), anchors=asked)
    return front_probabilities(geometry, labels, "estimated")


def _front_state(box: F64, front: F64, points_m: F64) -> str | None:
    """State of an upright (9,) box with doors or drawers. Open: a leaf stands out, or the front has many depths;
    closed: most of the front lies in one plane."""
    side = int(front.argmax())
    if front[side] < _FRONT_KNOWN:
        return None
    axis, sign = ((1, -1.0), (0, 1.0), (1, 1.0), (0, -1.0))[side]
    local = _turned(points_m[:, :2] - box[:2], float(box[6]))
    depth = sign * local[:, axis] - box[3 + axis] / 2  # 0 in the plane of the front, negative inside
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
    """Whether an upright surface, half as high as the object, extends from its front like a leaf."""
    low, high = _LEAF_M
    there = (depth_m >= low) & (depth_m < high) & (across > 0) & (across < 1) & (up > _FOOT) & (up < 1)
    places_m = depth_m - low, across * float(box[4 - axis]), (up - _FOOT) * float(box[5])
    cells = np.unique((np.stack(places_m, axis=1)[there] / _CELL_M).astype(np.int64), axis=0)
    columns, heights = np.unique(cells[:, :2], axis=0, return_counts=True)
    upright = columns[heights * _CELL_M >= _LEAF_HEIGHT * (1.0 - _FOOT) * float(box[5])]
    return len(np.unique(upright[:, 0])) == round((high - low) / _CELL_M)


def _filling(box: F64, points_m: F64) -> str | None:
    """State of an upright (9,) container: filled where the surface in its middle is in the upper half; None where
    it was not seen."""
    local = _turned(points_m[:, :2] - box[:2], float(box[6]))
    z = (points_m[:, 2] - box[2]) / box[5] + 0.5  # share of its height
    middle = (np.abs(local) <= _MIDDLE * box[3:5] / 2).all(axis=1) & (z > -0.1) & (z < 1.1)
    if np.count_nonzero(middle) < _LEAST_POINTS:
        return None
    return "filled" if float(np.median(z[middle])) > _FULL else "empty"


def _folding(box: F64) -> str:
    """State of (9,) cloth by its extent."""
    extent = Bounds.of(box[None]).extent[0]
    pile = extent[2] <= _PILE_M and max(extent[0], extent[1], box[3], box[4]) <= _PILE_SIDE_M
    return "folded" if pile else "unfolded"


def _turned(xy_m: F64, yaw_rad: float) -> F64:
    """(K, 2) positions along and across ``yaw_rad``."""
    c, s = np.cos(yaw_rad), np.sin(yaw_rad)
    return np.asarray(xy_m @ np.array([[c, -s], [s, c]]))


def _along(box: F64) -> float:
    """Yaw of a (9,) box's longer horizontal side."""
    return float(box[6] + (0.0 if box[3] >= box[4] else np.pi / 2))
