"""What stands before and behind things, and which way they are turned."""

from __future__ import annotations

import numpy as np
import pytest
from support.language_scenes import thing

from embodied_perceptron.language.answer import ground_objects
from embodied_perceptron.language.scene_file import detected_scene
from embodied_perceptron.results import GroundingStatus, SceneObject

EAST, WEST, NORTH = np.pi / 2, -np.pi / 2, np.pi


def lounge() -> list[SceneObject]:
    """An armchair that looks east at a table, a television on its stand that looks north, two chairs."""
    return [
        thing(1, "armchair", (-1.9, 0.3, 0.4), (0.8, 0.8, 0.8), yaw=EAST),
        thing(2, "coffee table", (0.0, 0.3, 0.2), (1.0, 0.6, 0.4)),
        thing(3, "couch", (0.0, 1.5, 0.4), (2.0, 0.9, 0.8)),
        thing(4, "pillow", (-0.6, 1.4, 0.7), (0.4, 0.2, 0.35)),
        thing(5, "tv", (0.0, -1.85, 0.9), (1.2, 0.1, 0.7), yaw=NORTH),
        thing(6, "stand", (0.0, -1.8, 0.25), (1.4, 0.4, 0.5), yaw=NORTH),
        thing(7, "cat", (0.0, -0.7, 0.12), (0.2, 0.4, 0.24)),
        thing(8, "chair", (1.4, -0.9, 0.45), (0.5, 0.5, 0.9), yaw=WEST),
        thing(9, "chair", (-1.4, -1.0, 0.45), (0.5, 0.5, 0.9), yaw=NORTH),
        thing(10, "speaker", (-1.0, -1.8, 0.4), (0.25, 0.3, 0.8), yaw=NORTH),
        thing(11, "window", (2.45, -0.9, 1.5), (1.2, 0.05, 1.1), yaw=WEST),
    ]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("what is the armchair facing?", 2),
        ("What's standing right in front of the telly?", 7),
        ("what is straight in front of the couch", 2),
        ("the chair with its back to the window", 8),
    ],
)
def test_what_lies_straight_ahead_and_what_has_its_back_there(text: str, meant: int) -> None:
    answer = ground_objects(text, lounge(), fronts="boxes", vocabulary=None)
    assert (answer.status, answer.candidates[0].id) == (GroundingStatus.FOUND, meant)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("when I sit in the armchair, what is in front of me?", 2),
        ("What is the telly looking at, across the room?", 7),
    ],
)
def test_what_somebody_sees_who_sits_there_and_what_is_looked_at(text: str, meant: int) -> None:
    answer = ground_objects(text, lounge(), fronts="boxes", vocabulary=None)
    assert (answer.status, answer.candidates[0].id) == (GroundingStatus.FOUND, meant)


def test_of_many_things_beside_another_each_is_unsure() -> None:
    """Of what stands before a wall of shelves one may be meant; what lies on a table is meant altogether."""
    shelf = thing(1, "shelf", (0.0, 2.0, 1.0), (4.0, 0.4, 2.0))
    before = [
        thing(2 + k, label, (k - 1.5, 1.2, 0.3), (0.4, 0.4, 0.6))
        for k, label in enumerate(("box", "bin", "cup", "cat"))
    ]
    table = thing(6, "table", (0.0, -1.5, 0.4), (2.0, 0.8, 0.8))
    on_it = [
        thing(7 + k, label, (0.4 * k - 0.6, -1.5, 0.85), (0.1, 0.1, 0.1))
        for k, label in enumerate(("jar", "pen", "fork", "key"))
    ]
    objects = [shelf, *before, table, *on_it]
    asked = {
        text: ground_objects(text, objects, fronts="boxes", vocabulary=None)
        for text in ("what is in front of the shelf", "what is on the table")
    }
    assert [answer.count for answer in asked.values()] == [4, 4]
    scores = [answer.candidates[0].score for answer in asked.values()]
    assert scores[0] < 0.5 < scores[1]


def test_an_office_chair_faces_its_desk() -> None:
    objects = [
        thing(1, "office chair", (0.0, -1.4, 0.45), (0.5, 0.5, 0.9)),
        thing(2, "desk", (0.0, -2.1, 0.4), (1.2, 0.6, 0.8)),
        thing(3, "bed", (0.0, 2.0, 0.25), (1.0, 2.0, 0.5)), thing(4, "wardrobe", (-2.0, -2.0, 1.0), (1.0, 0.6, 2.0)),
        thing(5, "bookshelf", (2.4, 0.0, 0.9), (0.3, 1.2, 1.8)),
    ]  # fmt: skip
    answer = ground_objects("what does somebody on the office chair have in front of them?", objects, vocabulary=None)
    assert (answer.status, answer.candidates[0].id) == (GroundingStatus.FOUND, 2)


def test_boxes_along_the_axes_have_no_front_of_their_own() -> None:
    """A detector that turns no box says nothing about fronts: a radiator at the east wall does not look south."""
    boxes = {
        "radiator": ([2.5, 0.0, 0.35], [0.12, 1.2, 0.6]), "window": ([2.57, 0.0, 1.5], [0.06, 1.4, 1.0]),
        "beanbag": ([1.7, -0.1, 0.3], [0.7, 0.7, 0.5]), "bookshelf": ([0.0, 2.2, 0.8], [1.4, 0.36, 1.6]),
        "lamp": ([2.4, -1.2, 0.5], [0.2, 0.2, 1.0]), "bed": ([-1.5, 0.0, 0.3], [2.0, 1.2, 0.6]),
    }  # fmt: skip
    detections = [{"category": k, "center": c, "size": s, "yaw": 0.0} for k, (c, s) in boxes.items()]
    answer = detected_scene("room", {"detections": detections}).ground("what's right in front of the radiator?")
    assert (answer.status, answer.candidates[0].label) == (GroundingStatus.FOUND, "beanbag")
