"""States and relations that geometry decides, from boxes and names alone, against the labels of synthetic homes.

    ontop, inside          the relations that the language uses, each thing with the one that carries it best
    under                  both stand on one floor, and what lies over it reaches over half of its footprint
    open, closed           of a door: its leaf against its frame

Filled, empty and folded show in no box and are not predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import Bounds, box_iou
from embodied_perceptron.language.relations import SceneGeometry
from embodied_perceptron.results import SceneObject

_CARRIED = {"ontop": "on", "inside": "in"}  # name of the labels -> of the language
RELATIONS = (*_CARRIED, "under")
DOOR_STATES = ("open", "closed")
MIN_SCORE = 0.5
MATCH_IOU = 0.25
_NO_PLACE = frozenset(("wall", "floor", "ceiling", "door", "doorframe", "window"))  # nothing is put on these
_COVERED, _FLOOR_M, _CLEAR_M = 0.5, 0.1, 0.03
_DOOR, _FRAME = "door", "doorframe"
_FRAME_REACH_M = 1.0  # from the leaf's middle to the frame's
_OPEN_RAD = np.radians(9.0)  # a tenth of a door's way, from where the labels call it open

F64 = NDArray[np.float64]
Pair = tuple[int, str, int]


@dataclass(frozen=True)
class StateLabels:
    """What is so in one scene, or what is said to be: pairs (row, relation, row), and states of doors by row."""

    pairs: frozenset[Pair] = frozenset()
    doors: Mapping[int, str] = field(default_factory=dict)


def predict_states(boxes: F64, labels: Sequence[str]) -> StateLabels:
    """Of (N, 9) boxes, world frame with z up, and their names."""
    if boxes.shape != (len(labels), 9):
        raise ValueError(f"boxes must be ({len(labels)}, 9) for {len(labels)} labels, got {boxes.shape}")
    return StateLabels(_pairs(boxes, labels), _doors(boxes, labels))


def _pairs(boxes: F64, labels: Sequence[str]) -> frozenset[Pair]:
    things = np.array([label not in _NO_PLACE for label in labels], dtype=bool)
    if np.count_nonzero(things) < 2:
        return frozenset()
    geometry = SceneGeometry(boxes)
    usable = things[:, None] & things[None] & ~np.eye(len(labels), dtype=bool)
    scores = {name: np.where(usable, geometry.matrix(word), 0.0) for name, word in _CARRIED.items()}
    under = np.where(usable, _under(boxes), 0.0)
    scores["inside"] = np.where(under > 0, 0.0, scores["inside"])  # a chair pushed under a table lies in its box
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


def _doors(boxes: F64, labels: Sequence[str]) -> dict[int, str]:
    """Doors whose frame is known: closed where the leaf lies in its plane."""
    frames = np.flatnonzero(np.array(labels) == _FRAME)
    found = {}
    for row in np.flatnonzero(np.array(labels) == _DOOR):
        if len(frames) == 0:
            break
        apart = np.linalg.norm(boxes[frames, :2] - boxes[row, :2], axis=1)
        if apart.min() > _FRAME_REACH_M:
            continue
        turn = _along(boxes[row]) - _along(boxes[frames[int(apart.argmin())]])
        turn = abs((turn + np.pi / 2) % np.pi - np.pi / 2)
        found[int(row)] = "open" if turn > _OPEN_RAD else "closed"
    return found


def _along(box: F64) -> float:
    """Direction of a (9,) box's longer ground side."""
    return float(box[6] + (0.0 if box[3] >= box[4] else np.pi / 2))


def matches_by_name(
    boxes: F64, labels: Sequence[str], scores: F64, true_boxes: F64, true_labels: Sequence[str]
) -> dict[int, int]:
    """Row of each of (N, 9) boxes -> row of the one of (M, 9) true boxes of its name that it overlaps most (IoU 0.25 at
    least), where there is one left: each true box once, the best scores first."""
    iou = box_iou(torch.from_numpy(boxes), torch.from_numpy(true_boxes)).numpy()
    names, free = np.array(true_labels, dtype=str), np.ones(len(true_boxes), dtype=bool)
    found: dict[int, int] = {}
    for row in np.argsort(-scores, kind="stable").tolist():
        on = np.flatnonzero(free & (names == labels[row]) & (iou[row] >= MATCH_IOU))
        if len(on):
            found[row] = int(on[np.argmax(iou[row, on])])
            free[found[row]] = False
    return found


def matched_rows(objects: Sequence[SceneObject], boxes: F64, labels: Sequence[str]) -> dict[int, int]:
    """Row of a published object -> row of the true thing of its name that it lies on (IoU 0.25), each thing once."""
    mine = np.array([o.box for o in objects]).reshape(-1, 9)
    scores = np.array([o.score for o in objects], dtype=np.float64)
    return matches_by_name(mine, [o.label for o in objects], scores, boxes, labels)


def renumbered(states: StateLabels, rows: Mapping[int, int]) -> StateLabels:
    """By the true things' rows; what has none keeps a row of its own below 0, and so counts as wrong."""
    at = {row: rows.get(row, -1 - row) for row in {*states.doors, *(k for a, _, b in states.pairs for k in (a, b))}}
    pairs = frozenset((at[a], name, at[b]) for a, name, b in states.pairs)
    return StateLabels(pairs, {at[row]: state for row, state in states.doors.items()})


def state_metrics(truth: Sequence[StateLabels], said: Sequence[StateLabels]) -> dict[str, float]:
    """``states/<name>/{precision,recall,f1}`` in percent over all scenes; names that are nowhere true are left out.

    Raises ``ValueError`` when lengths differ.
    """
    if len(truth) != len(said):
        raise ValueError(f"{len(said)} predictions for {len(truth)} scenes")
    figures = {}
    for name in (*RELATIONS, *DOOR_STATES):
        pairs = [(_of(t, name), _of(s, name)) for t, s in zip(truth, said, strict=True)]
        true, told = sum(len(t) for t, _ in pairs), sum(len(s) for _, s in pairs)
        right = sum(len(t & s) for t, s in pairs)
        if true:
            values = (right / max(told, 1), right / true, 2 * right / (true + told))
            for figure, value in zip(("precision", "recall", "f1"), values, strict=True):
                figures[f"states/{name}/{figure}"] = 100.0 * value
    return figures


def _of(states: StateLabels, name: str) -> set[object]:
    if name in RELATIONS:
        return {pair for pair in states.pairs if pair[1] == name}
    return {row for row, state in states.doors.items() if state == name}


def labels_of_record(frames: Sequence[Mapping[str, object]], doors: Sequence[int], used: Sequence[int]) -> StateLabels:
    """What the used frames of a home's record show, by instance; states only of ``doors``.

    Raises ``ValueError`` for frames without such labels.
    """
    pairs, states = set[Pair](), dict[int, str]()
    for number in used:
        frame = frames[number]
        listed, own = frame.get("pairs"), frame.get("states")
        if not isinstance(listed, list) or not isinstance(own, Mapping):
            raise ValueError(f"frame {number} has no states and pairs")
        pairs |= {(int(a), str(name), int(b)) for a, name, b in listed if name in RELATIONS}
        for row in doors:
            for word in DOOR_STATES:
                if word in own.get(str(row), ()):
                    states[row] = word
    return StateLabels(frozenset(pairs), states)
