"""States and relations decided by geometry (:mod:`embodied_perceptron.language.object_states`) against the labels of
synthetic homes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron.language.object_states import RELATIONS, STATES, STATES_OF, Pair, StateLabels
from embodied_perceptron.results import SceneObject
from embodied_perceptron_training.evaluation.metrics.detection import match_by_name


def matched_rows(objects: Sequence[SceneObject], boxes: F64, labels: Sequence[str]) -> dict[int, int]:
    """Row of a published object -> row of the true object of its name that it overlaps (IoU 0.25), each once."""
    mine = np.array([o.box for o in objects]).reshape(-1, 9)
    scores = np.array([o.score for o in objects], dtype=np.float64)
    return match_by_name(mine, [o.label for o in objects], scores, boxes, labels)


def renumbered(states: StateLabels, rows: Mapping[int, int]) -> StateLabels:
    """The states by the rows of the true objects; unmatched objects get rows below 0, and so count as wrong."""
    at = {row: rows.get(row, -1 - row) for row in {*states.states, *(k for a, _, b in states.pairs for k in (a, b))}}
    pairs = frozenset((at[a], name, at[b]) for a, name, b in states.pairs)
    return StateLabels(pairs, {at[row]: state for row, state in states.states.items()})


def state_metrics(truth: Sequence[StateLabels], predicted: Sequence[StateLabels]) -> dict[str, float]:
    """``states/<name>/{precision,recall,f1}`` in percent over all scenes; names that are never true are left out.

    Raises ``ValueError`` when lengths differ.
    """
    if len(truth) != len(predicted):
        raise ValueError(f"{len(predicted)} predictions for {len(truth)} scenes")
    figures = {}
    for name in (*RELATIONS, *STATES):
        pairs = [(_of(t, name), _of(s, name)) for t, s in zip(truth, predicted, strict=True)]
        true, predicted_count = sum(len(t) for t, _ in pairs), sum(len(s) for _, s in pairs)
        right = sum(len(t & s) for t, s in pairs)
        if true:
            values = (right / max(predicted_count, 1), right / true, 2 * right / (true + predicted_count))
            for figure, value in zip(("precision", "recall", "f1"), values, strict=True):
                figures[f"states/{name}/{figure}"] = 100.0 * value
    return figures


def _of(states: StateLabels, name: str) -> set[object]:
    if name in RELATIONS:
        return {pair for pair in states.pairs if pair[1] == name}
    return {row for row, state in states.states.items() if state == name}


def labels_of_record(
    frames: Sequence[Mapping[str, object]], names: Mapping[int, str], used: Sequence[int]
) -> StateLabels:
    """True states and pairs in the used frames of a home's record, by instance; ``names``: class of each instance.

    Raises ``ValueError`` for frames without such labels.
    """
    pairs, states = set[Pair](), dict[int, str]()
    for number in used:
        frame = frames[number]
        listed, own = frame.get("pairs"), frame.get("states")
        if not isinstance(listed, list) or not isinstance(own, Mapping):
            raise ValueError(f"frame {number} has no states and pairs")
        pairs |= {(int(a), str(name), int(b)) for a, name, b in listed if name in RELATIONS}
        for row, name in names.items():
            for word in STATES_OF.get(name, ()):
                if word in own.get(str(row), ()):
                    states[row] = word
    return StateLabels(frozenset(pairs), states)
