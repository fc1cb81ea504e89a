"""Sentences about states: which object, and what is answered where nobody knows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from embodied_perceptron.language.answer import ground_objects
from embodied_perceptron.language.decoding import speaks_of_states
from embodied_perceptron.language.description import describe
from embodied_perceptron.language.object_states import with_conditions
from embodied_perceptron.language.query import Query
from embodied_perceptron.results import GroundingStatus, SceneObject, VoxelSnapshot

LABELS = ("door", "refrigerator", "cabinet", "basket", "towel", "chair")
FOUND, NOT_FOUND = GroundingStatus.FOUND, GroundingStatus.NOT_FOUND


def said(text: str) -> tuple[str, bool] | None:
    """State and denial that a sentence says of its target."""
    meaning = Query(text).parsed(LABELS).meaning
    assert meaning is not None
    states = [(c.value, c.negated) for c in meaning.constraints if c.relation == "state"]
    assert len(states) < 2
    return states[0] if states else None


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("the open door", ("open", False)),
        ("close the open white cabinet", ("open", False)),
        ("the white closed cabinet next to the refrigerator", ("closed", False)),
        ("is the door open?", ("open", False)),
        ("is the fridge in the kitchen closed?", ("closed", False)),
        ("which door is shut", ("closed", False)),
        ("how many doors are open", ("open", False)),
        ("the door that is not open", ("open", True)),
        ("the door which isn't closed", ("closed", True)),
        ("the cabinet that was left wide open", ("open", False)),
        ("the empty basket", ("empty", False)),
        ("is the basket full?", ("filled", False)),
        ("the folded towel", ("folded", False)),
        ("open the door", None),
        ("go to the door and open it", None),
        ("empty the basket", None),
        ("is the door open or closed?", None),
        ("the door", None),
        ("the empty chair", None),  # a chair is neither filled nor empty
        ("fold the towel on the chair", None),
    ],
)
def test_a_sentence_says_a_state(text: str, state: tuple[str, bool] | None) -> None:
    assert said(text) == state


def test_what_belongs_to_a_landmark_is_its_own() -> None:
    meaning = Query("the chair next to the open door").parsed(LABELS).meaning
    assert meaning is not None
    (near,) = meaning.constraints
    assert [c.value for a in near.anchors for c in a.constraints if c.relation == "state"] == ["open"]
    assert said("is the cabinet next to the open door closed?") == ("closed", False)


@pytest.mark.parametrize(
    ("text", "has_state"),
    [
        ("Find the cabinet that is open.", True),
        ("the door that is closed, please", True),
        ("is the fridge (still) empty?!", True),
        ("is the door Open?", True),
        ("the openers next to the emptied bin", False),
    ],
)
def test_states_are_looked_for_where_a_word_names_one(text: str, has_state: bool) -> None:
    assert speaks_of_states(text) == has_state


def things(*conditions: str, label: str = "door") -> list[SceneObject]:
    return [
        SceneObject(k + 1, label, 0.9, np.array([3.0 * k, 0.0, 1.0, 0.8, 0.1, 2.0, 0, 0, 0]), condition=condition)
        for k, condition in enumerate(conditions)
    ]


def test_the_open_one_is_meant() -> None:
    scene = things("closed", "open", "")
    answer = ground_objects("the open door", scene)
    assert (answer.status, answer.candidates[0].id) == (FOUND, 2)
    assert answer.candidates[0].condition == "open"
    assert "open" in answer.reason
    assert ground_objects("the door that is not open", scene[:2]).candidates[0].id == 1
    chair = SceneObject(9, "chair", 0.9, np.array([4.0, 0.0, 0.4, 0.5, 0.5, 0.9, 0, 0, 0]))
    other = dataclasses.replace(chair, id=8, box=chair.box - [3.6, 0, 0, 0, 0, 0, 0, 0, 0])
    assert ground_objects("the chair near the open door", [*scene[:2], other, chair]).candidates[0].id == 9
    assert ground_objects("the chair near the closed door", [*scene[:2], other, chair]).candidates[0].id == 8


def test_questions_are_answered_by_what_was_seen() -> None:
    assert ground_objects("is the door open?", things("open")).status == FOUND
    closed = ground_objects("is the door open?", things("closed"))
    assert (closed.status, closed.reason) == (NOT_FOUND, "there is a door, but none that is open")
    unknown = ground_objects("is the refrigerator open?", things("", label="refrigerator"))
    assert (unknown.status, unknown.reason) == (NOT_FOUND, "whether the refrigerator is open is not known")
    count = ground_objects("how many doors are open?", things("open", "closed", "open"))
    assert count.count == 2
    for text in ("how many doors are open?", "all the open doors"):
        some = ground_objects(text, things("open", "", "closed"))
        assert (some.status, [o.id for o in some.candidates]) == (FOUND, [1])
    # an order for it is no question: the thing is meant all the same
    order = ground_objects("bring me to the open window", things("", label="window"))
    assert order.status == FOUND
    assert "whether it is open is not known" in order.reason


def cupboard(opened: str) -> VoxelSnapshot:
    """A cabinet at the origin, its front towards -y: one plane, drawers at three depths, or a leaf that stands out."""
    x, z = (v.ravel() for v in np.meshgrid(np.arange(-0.48, 0.5, 0.04), np.arange(0.02, 1.0, 0.04)))
    y = np.full(x.size, -0.25)
    if opened == "drawers":
        y = np.where(z < 0.35, -0.25, np.where(z < 0.7, -0.05, 0.12))
    points = np.stack([x, y, z], axis=1).astype(np.float32)
    if opened == "leaf":
        leaf = np.stack([np.full(x.size, 0.45), x - 0.74, z], axis=1)
        points = np.concatenate([points, leaf]).astype(np.float32)
    coords = np.floor(points / 0.04).astype(np.int32)
    n = len(points)
    ones = np.ones(n, np.int32)
    return VoxelSnapshot(
        0.04, coords, points, np.zeros((n, 3), np.uint8), ones, ones.astype(np.float32), ones.astype(np.int64)
    )


@pytest.mark.parametrize(("opened", "condition"), [("", "closed"), ("drawers", "open"), ("leaf", "open")])
def test_the_front_of_a_cabinet_says_whether_it_is_open(opened: str, condition: str) -> None:
    """By hand: all cells of the front in its plane; a third of them at each of three depths; a leaf across."""
    cabinet = SceneObject(1, "cabinet", 0.9, np.array([0, 0, 0.5, 1.0, 0.5, 1.0, 0, 0, 0], float))
    wall = SceneObject(2, "wall", 0.9, np.array([0, 0.3, 1.2, 5.0, 0.1, 2.4, 0, 0, 0], float))
    table = SceneObject(3, "table", 0.9, np.array([0, -1.6, 0.4, 1.2, 0.8, 0.8, 0, 0, 0], float))
    scene = (cabinet, wall, table)
    known = with_conditions(scene, cupboard(opened))
    assert [o.condition for o in known] == [condition, "", ""]
    assert f"A {condition} cabinet <obj_1>" in describe(known).text.replace("An ", "A ")
    assert next(m.phrase for m in describe(known).mentions if m.ids == (1,)) == f"{condition} cabinet"
    assert with_conditions(scene, None) == scene  # without a map nothing is known
    far = dataclasses.replace(cabinet, box=cabinet.box + np.eye(9)[0] * 9.0)
    assert with_conditions((far, wall, table), cupboard(opened))[0].condition == ""
