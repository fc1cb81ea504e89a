"""States and relations of boxes, by hand and against perfect and random prediction."""

from __future__ import annotations

import numpy as np
import pytest

from embodied_perceptron.language.object_states import StateLabels, predict_states
from embodied_perceptron.results import SceneObject
from embodied_perceptron_training.evaluation.suites.object_states import (
    labels_of_record,
    matched_rows,
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
    assert said.states == {3: "closed"}


@pytest.mark.parametrize("degrees", [20, 90, -60])
def test_a_turned_leaf_is_open_and_one_without_a_frame_unknown(degrees):
    leaf = [2.8, 0.2, 1.0, 0.8, 0.13, 2.0, np.pi / 2 + np.radians(degrees), 0, 0]
    assert predict_states(*room(door=leaf)).states == {3: "open"}
    assert predict_states(*room(doorframe=[9.0, 0, 1.0, 0.9, 0.15, 2.05, 0, 0, 0])).states == {}


def test_what_stands_under_a_table_is_not_inside_of_it():
    stool = [-0.3, 0.0, 0.22, 0.35, 0.35, 0.44, 0, 0, 0]
    said = predict_states(*room(chair=stool))
    assert said.pairs == {(1, "ontop", 0), (4, "under", 0)}
    boxes, labels = room(chair=stool)
    assert (4, "under", 0) not in predict_states(boxes, ["shelf", *labels[1:]]).pairs  # its lowest board carries it


@pytest.mark.parametrize(
    ("label", "bearer", "place", "expected"),
    [
        ("blanket", "bed", [0.3, 0.0, 0.55, 0.6, 0.5, 0.1], "ontop"),  # its headboard is higher
        ("toy", "crib", [0.3, 0.0, 0.5, 0.15, 0.15, 0.2], "ontop"),
        ("book", "coffee table", [0.3, 0.0, 0.18, 0.25, 0.2, 0.05], "inside"),  # on the lowest board
        ("chair", "table", [0.5, 0.6, 0.45, 0.5, 0.5, 0.9], None),  # half-way pushed in: neither under nor in
        ("bag", "table", [0.5, 0.52, 0.2, 0.5, 0.3, 0.4], None),  # on the floor beside the legs
        ("windowsill", "table", [0.0, 0.0, 1.02, 1.0, 0.2, 0.04], None),  # of the wall
        ("book", "shelf", [0.3, 0.0, 0.55, 0.2, 0.1, 0.2], "inside"),
    ],
)
def test_what_a_thing_on_legs_holds(label, bearer, place, expected):
    """A blanket on a bed was said to be inside of it, as was a chair at a table."""
    boxes = np.array([[0.0, 0.0, 0.5, 2.0, 1.0, 1.0, 0, 0, 0], [*place, 0, 0, 0]], float)
    said = {name for row, name, _ in predict_states(boxes, [bearer, label]).pairs if row == 1}
    assert said == ({expected} if expected else set())


def test_nothing_stands_on_what_is_far_smaller():
    boxes = np.array([[0, 0, 0.05, 0.2, 0.15, 0.1, 0, 0, 0], [0, 0, 0.4, 2.0, 1.6, 0.6, 0, 0, 0]], float)
    assert predict_states(boxes, ["toy", "bed"]).pairs == frozenset()
    boxes[1, 3:5] = 0.3
    assert predict_states(boxes, ["toy", "crate"]).pairs == {(1, "ontop", 0)}


def wall(x, low, high, top=2.5):
    """Points of a wall across the x axis."""
    y, z = np.meshgrid(np.arange(low, high, 0.04), np.arange(0.0, top, 0.04))
    return np.stack([np.full(y.size, x), y.ravel(), z.ravel()], axis=1)


@pytest.mark.parametrize("yaw", [0.0, 0.7])
def test_a_leaf_without_a_frame_is_closed_where_the_wall_goes_on_at_both_ends(yaw):
    c, s = np.cos(yaw), np.sin(yaw)
    R = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])
    walls = np.concatenate([wall(3.0, -2.0, -0.45), wall(3.0, 0.45, 2.0)])
    closed, opened = wall(3.0, -0.4, 0.4, 2.0), wall(-0.45, 2.2, 3.0, 2.0)[:, [1, 0, 2]] * [1, -1, 1]
    for middle, turn, state in (([3.0, 0.0], 0.5, "closed"), ([2.6, 0.45], 0.0, "open"), ([0.0, 0.0], 0.0, None)):
        points = np.concatenate([walls, closed if state == "closed" else opened])
        leaf = [*(R[:2, :2] @ middle), 1.0, 0.8, 0.05, 2.0, turn * np.pi + yaw, 0, 0]
        said = predict_states(np.array([leaf]), ["door"], points @ R.T).states
        assert said.get(0) == state
    assert predict_states(np.array([leaf]), ["door"]).states == {}


@pytest.mark.parametrize(("height", "state"), [(0.03, "empty"), (0.27, "filled"), (None, None)])
def test_a_basket_is_as_full_as_one_looks_into_it(height, state):
    basket = np.array([[1.0, 2.0, 0.15, 0.4, 0.4, 0.3, 0.3, 0, 0]])
    angle = np.linspace(0, 2 * np.pi, 60)
    rim = np.stack([1 + 0.19 * np.cos(angle), 2 + 0.19 * np.sin(angle), np.full(60, 0.3)], axis=1)
    floor = np.array([[1 + x, 2 + y, height or 0.0] for x in (-0.05, 0, 0.05) for y in (-0.05, 0, 0.05)])
    points = rim if height is None else np.concatenate([rim, floor])
    assert predict_states(basket, ["basket"], points).states.get(0) == state
    assert predict_states(basket, ["bag"], points).states == {}


def test_a_bowl_with_an_apple_in_it_is_filled():
    boxes = np.array([[0, 0, 0.04, 0.26, 0.26, 0.08, 0, 0, 0], [0.01, 0, 0.045, 0.07, 0.07, 0.07, 0, 0, 0]], float)
    said = predict_states(boxes, ["bowl", "apple"])
    assert said.pairs == {(1, "inside", 0)}
    assert said.states == {0: "filled"}


@pytest.mark.parametrize(
    ("box", "state"),
    [
        ([0, 0, 0.05, 0.5, 0.4, 0.1, 0.3, 0, 0], "folded"),
        ([0, 0, 0.02, 1.0, 0.8, 0.04, 0, 0, 0], "unfolded"),  # spread out
        ([0, 0, 1.2, 0.5, 0.08, 0.6, 0, 0, 0], "unfolded"),  # hangs
        ([0, 0, 1.2, 0.5, 0.6, 0.08, 0, np.pi / 2, 0], "unfolded"),  # the same, its axes named otherwise
    ],
)
def test_cloth_that_is_a_small_pile_is_folded(box, state):
    assert predict_states(np.array([box], float), ["blanket"]).states == {0: state}


def test_points_are_checked():
    with pytest.raises(ValueError, match="points_m"):
        predict_states(*room(), np.zeros((3, 2)))


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
    assert labels_of_record(frames, {3: "door", 7: "laptop"}, [0]) == StateLabels(
        frozenset({(1, "ontop", 0)}), {3: "open"}
    )
    assert len(labels_of_record(frames, {3: "door"}, [0, 1]).pairs) == 2
    with pytest.raises(ValueError, match="frame 0"):
        labels_of_record([{}], {}, [0])


def test_an_empty_scene_says_nothing_and_changes_no_figure():
    nothing = predict_states(np.zeros((0, 9)), [], np.zeros((0, 3)))
    assert nothing == StateLabels()
    some = StateLabels(frozenset({(1, "ontop", 0)}), {3: "open"})
    assert state_metrics([some, nothing], [some, nothing]) == state_metrics([some], [some])
