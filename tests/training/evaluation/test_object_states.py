"""States and relations of boxes, by hand and against perfect and random prediction."""

from __future__ import annotations

import numpy as np
import pytest

from embodied_perceptron.results import SceneObject
from embodied_perceptron_training.evaluation.object_states import (
    StateLabels,
    labels_of_record,
    matched_rows,
    predict_states,
    renumbered,
    state_metrics,
)

ROOM = {
    "table": [0.0, 0.0, 0.37, 1.4, 0.8, 0.74, 0, 0, 0],
    "cup": [0.3, 0.1, 0.79, 0.08, 0.08, 0.1, 0, 0, 0],
    "doorframe": [3.0, 0.0, 1.0, 0.9, 0.15, 2.05, np.pi / 2, 0, 0],
    "door": [3.0, 0.0, 1.0, 0.8, 0.13, 2.0, np.pi / 2, 0, 0],
    "chair": [0.0, 3.0, 0.45, 0.5, 0.5, 0.9, 0, 0, 0],
}


def room(**changed):
    things = {**ROOM, **changed}
    return np.array(list(things.values()), float), list(things)


def test_what_stands_on_a_table_and_a_door_in_its_frame():
    said = predict_states(*room())
    assert said.pairs == {(1, "ontop", 0)}
    assert said.doors == {3: "closed"}


@pytest.mark.parametrize("degrees", [20, 90, -60])
def test_a_turned_leaf_is_open_and_one_without_a_frame_unknown(degrees):
    leaf = [2.8, 0.2, 1.0, 0.8, 0.13, 2.0, np.pi / 2 + np.radians(degrees), 0, 0]
    assert predict_states(*room(door=leaf)).doors == {3: "open"}
    assert predict_states(*room(doorframe=[9.0, 0, 1.0, 0.9, 0.15, 2.05, 0, 0, 0])).doors == {}


def test_what_stands_under_a_table_is_not_inside_of_it():
    stool = [-0.3, 0.0, 0.22, 0.35, 0.35, 0.44, 0, 0, 0]
    said = predict_states(*room(chair=stool))
    assert said.pairs == {(1, "ontop", 0), (4, "under", 0)}


def test_perfect_is_perfect_and_random_is_not():
    rng = np.random.default_rng(0)
    truth = [StateLabels(frozenset((k, "ontop", 20 + k % 3) for k in range(20)), {40: "open", 41: "closed"})] * 3
    perfect = state_metrics(truth, truth)
    assert set(perfect.values()) == {100.0}
    assert {name.split("/")[1] for name in perfect} == {"ontop", "open", "closed"}  # nothing is inside anything
    guess = [StateLabels(frozenset((k, "ontop", 20 + int(rng.integers(3))) for k in range(20)))] * 3
    assert 10.0 < state_metrics(truth, guess)["states/ontop/f1"] < 60.0
    assert state_metrics(truth, [StateLabels()] * 3)["states/open/recall"] == 0.0
    assert state_metrics(truth[::-1], truth[::-1]) == perfect
    with pytest.raises(ValueError, match="predictions"):
        state_metrics(truth, [])


def test_published_objects_are_judged_as_the_things_that_they_lie_on():
    boxes, labels = room()
    objects = [SceneObject(k + 1, labels[k], 0.9, boxes[k]) for k in (1, 0)]  # cup, table
    objects.append(SceneObject(9, "cup", 0.5, boxes[1] + [0, 0, 5, 0, 0, 0, 0, 0, 0]))
    rows = matched_rows(objects, boxes, labels)
    assert rows == {0: 1, 1: 0}
    said = predict_states(np.array([o.box for o in objects]), [o.label for o in objects])
    assert renumbered(said, rows).pairs == {(1, "ontop", 0)}
    assert renumbered(StateLabels(frozenset({(2, "ontop", 1)}), {2: "open"}), rows) == StateLabels(
        frozenset({(-3, "ontop", 0)}), {-3: "open"}
    )


def test_labels_are_those_of_the_used_frames():
    frames = [
        {"states": {"3": ["open"], "7": ["closed"]}, "pairs": [[1, "ontop", 0]]},
        {"states": {}, "pairs": [[5, "inside", 0]]},
    ]
    assert labels_of_record(frames, [3], [0]) == StateLabels(frozenset({(1, "ontop", 0)}), {3: "open"})
    assert len(labels_of_record(frames, [3], [0, 1]).pairs) == 2
    with pytest.raises(ValueError, match="frame 0"):
        labels_of_record([{}], [], [0])
