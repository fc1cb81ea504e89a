"""Boxes in canonical form wherever detections become values, and what depended on which way up they were."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.language_scenes import camera, thing
from support.object_scenes import FLOOR, SECOND, found, ids
from support.scene_builder import chair, snapshot_of

from embodied_perceptron.geometry.boxes import box_rotations, canonical_boxes
from embodied_perceptron.inference.predictor import PhraseCandidates
from embodied_perceptron.language.answer import ground_objects
from embodied_perceptron.results import Detections, SceneObject
from embodied_perceptron.scene.object_map import ObjectMap

CHAIR = (0.0, 0.0, 0.45, 0.46, 0.44, 0.9, 0.3, 0.0, 0.0)


def upside_down(box) -> np.ndarray:
    """The same solid as networks name it: turned by half a turn about its own y."""
    other = np.array(box, dtype=np.float64)
    other[8] += np.pi
    other[6] += np.pi
    return other


def test_detections_and_candidates_take_the_canonical_form():
    rng = np.random.default_rng(0)
    boxes = np.concatenate([rng.normal(size=(200, 3)), rng.uniform(0.1, 2, (200, 3)), rng.uniform(-3, 3, (200, 3))], 1)
    given = boxes.copy()
    seen = Detections(boxes, np.full(200, 0.5), ("a",) * 200)
    assert np.array_equal(boxes, given)  # the caller's array stays
    for same in (seen.boxes, PhraseCandidates(boxes, np.full(200, 0.5)).boxes):
        R = box_rotations(same)
        assert (R[:, 2, 2] >= np.abs(R[:, 2, :2]).max(axis=1) - 1e-9).all()
        assert (same[:, 3] >= same[:, 4] - 1e-9).all()
        assert ((same[:, 6] > -np.pi / 2 - 1e-9) & (same[:, 6] <= np.pi / 2 + 1e-9)).all()
        np.testing.assert_allclose(np.sort(same[:, 3:6], axis=1), np.sort(boxes[:, 3:6], axis=1), atol=1e-12)
    assert np.array_equal(seen.take(np.arange(200)).boxes, seen.boxes)  # to the bit: nothing drifts


def test_what_is_taken_is_what_the_constructor_makes_of_it():
    """Rows are taken without another look at them, several times in every prediction."""
    rng = np.random.default_rng(1)
    boxes = np.concatenate([rng.normal(size=(50, 3)), rng.uniform(0.1, 2, (50, 3)), rng.uniform(-3, 3, (50, 3))], 1)
    labels, shares = tuple(f"name {k}" for k in range(50)), tuple({f"name {k}": 0.5} for k in range(50))
    seen = Detections(boxes, rng.uniform(size=50), labels, shares)
    rows, scores = rng.permutation(50)[:20], rng.uniform(size=20)
    for given, own in ((None, seen.scores[rows]), (scores, scores)):
        taken = seen.take(rows, given)
        made = Detections(boxes[rows], own, tuple(labels[k] for k in rows), tuple(shares[k] for k in rows))
        np.testing.assert_array_equal(taken.boxes, made.boxes)
        np.testing.assert_array_equal(taken.scores, made.scores)
        assert (taken.labels, taken.posteriors) == (made.labels, made.posteriors)
    for wrong in (scores + 1.0, scores * np.nan, scores[:3]):
        with pytest.raises(ValueError, match="scores"):
            seen.take(rows, wrong)


def test_canonical_arrays_stay_to_the_bit_and_upside_down_ones_are_turned():
    box = np.array([CHAIR])
    assert np.array_equal(canonical_boxes(box), box)
    assert canonical_boxes(upside_down(CHAIR)[None]) == pytest.approx(box)
    assert canonical_boxes(np.zeros((0, 9))).shape == (0, 9)


def _chair_then_floor(box) -> ObjectMap:
    """Two seconds at 10 Hz after the chair was seen through; floor and what clung to it remain."""
    objects = ObjectMap()
    surface = chair((0, 0), 0.3)
    surface = surface[surface[:, 1] < -0.14]  # as far as it was seen, from one side
    there = snapshot_of(np.concatenate([FLOOR, surface]), stamp_ns=7)
    rest = snapshot_of(np.concatenate([FLOOR, surface[surface[:, 2] < 0.05]]), stamp_ns=7)  # feet beside the floor
    for i in range(5):
        objects.update(found(box, labels=["chair"]), there, i * SECOND // 10)
    for i in range(5, 26):
        objects.update(found(), rest, i * SECOND // 10)
    return objects


@pytest.mark.parametrize("box", [np.array(CHAIR), upside_down(CHAIR)])
def test_a_removed_chair_is_gone_two_seconds_after_it_was_seen_through(box):
    assert ids(_chair_then_floor(box)) == []


def test_published_boxes_stand_upright_after_blending_moving_and_loading():
    objects = ObjectMap()
    there = snapshot_of(np.concatenate([FLOOR, chair((0, 0), 0.3)]), stamp_ns=7)
    rng = np.random.default_rng(1)
    for i in range(6):
        box = np.array(CHAIR) if i % 2 else upside_down(CHAIR)
        box[:6] += rng.normal(0, 0.01, 6)
        objects.update(found(box, labels=["chair"]), there, i * SECOND // 10)

    def standing(objects: ObjectMap) -> None:
        assert len(objects) == 1
        box = objects.objects()[0].box
        assert box_rotations(box[None])[0, 2, 2] > np.cos(np.radians(10))
        assert box[3] >= box[4]
        assert -np.pi / 2 < box[6] <= np.pi / 2

    standing(objects)
    turn = np.eye(4)
    turn[:2, :2] = [[-1, 0], [0, -1]]
    objects.move(lambda _: turn)
    standing(objects)
    older = json.loads(objects.to_json())
    older["objects"][0]["box"] = upside_down(older["objects"][0]["box"]).tolist()  # a file of an older program
    objects.load_json(json.dumps(older))
    standing(objects)


ROOM = [
    thing(1, "couch", (0, 1.6, 0.4), (2, 0.9, 0.8)),
    thing(2, "table", (0, 0.2, 0.25), (1.0, 0.6, 0.5)),
    thing(3, "lamp", (-1.5, 1.6, 0.8), (0.3, 0.3, 1.6)),
    thing(4, "lamp", (1.5, 1.6, 0.8), (0.3, 0.3, 1.6)),
    thing(5, "tv", (0, -1.9, 0.9), (1.2, 0.1, 0.7)),
    thing(9, "wall", (0, 2.1, 1.3), (4.2, 0.1, 2.6)),
    thing(10, "picture", (0, 2.03, 1.7), (0.8, 0.04, 0.5)),
]


def _as_detected(objects) -> list[SceneObject]:
    """The same room as a network with boxes upside down gives it."""
    seen = Detections(np.stack([upside_down(o.box) for o in objects]), np.ones(len(objects)), ("x",) * len(objects))
    return [SceneObject(o.id, o.label, o.score, box) for o, box in zip(objects, seen.boxes, strict=True)]


FACING = camera((0, -1.7, 1.3), (0, 1.6, 0.5))  # looks north at the couch; west is to the left
BEHIND = camera((0, 5.0, 1.3), (0, 1.6, 0.5))


@pytest.mark.parametrize("seen", [lambda room: room, _as_detected])
@pytest.mark.parametrize(
    ("text", "pose", "wanted"),
    [
        ("the lamp to the left of the couch", None, 4),  # nobody speaks from anywhere: its own left, it looks south
        ("the lamp to the right of the couch", None, 3),
        ("the lamp to the left of the couch", FACING, 3),  # what the speaker sees
        ("the lamp right of the couch", FACING, 4),
        ("the lamp to the left of the couch", BEHIND, 4),
        ("the lamp on the couch's left", FACING, 4),  # asked for
        ("the lamp to the couch's right side", FACING, 3),
        ("the lamp on the couch's left", BEHIND, 4),
        ("the lamp on the couch's own left", None, 4),
    ],
)
def test_left_is_the_speakers_and_its_own_only_when_asked(seen, text, pose, wanted):
    assert ground_objects(text, seen(ROOM), pose).candidates[0].id == wanted


def test_parts_of_things_are_no_sides():
    left_leg = ground_objects("the lamp on the table's left leg", ROOM, FACING)
    assert "own" not in left_leg.reason
