"""What may be there beside the objects: who is asked for, what shares of a place do, and what an answer says of it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from support.language_scenes import living_room, thing

from embodied_perceptron.config import ScorePolicy
from embodied_perceptron.geometry.boxes import Bounds, box_iou
from embodied_perceptron.language.answer import UNTRACKED, LowConfidenceCandidates, ground_objects, name_shares
from embodied_perceptron.language.query import read_meaning
from embodied_perceptron.language.relations import SceneGeometry
from embodied_perceptron.results import Detections, GroundingStatus, ObjectState, SceneObject

FOUND, NOT_FOUND, AMBIGUOUS, _ = GroundingStatus
SCORES = ScorePolicy(0.3)


def seen(*rows) -> Detections:
    """(label, score, box) each."""
    boxes = np.array([box for _, _, box in rows], float).reshape(-1, 9)
    return Detections(boxes, np.array([score for _, score, _ in rows], float), tuple(label for label, _, _ in rows))


def box(x, y=0.0, size=0.5):
    return [x, y, 0.5 * size, size, size, size, 0.0, 0.0, 0.0]


def ask(text, objects, found, tentative=(), looks=0, **options):
    low_confidence = LowConfidenceCandidates(objects, tentative, found, SCORES, lambda score: score / (1 + looks))
    return ground_objects(text, objects, low_confidence=low_confidence, **options)


def test_what_was_seen_below_the_score_of_an_object_is_an_answer_with_a_lower_score():
    room = living_room()
    toaster = box(7.0)
    sure = ask("the toaster", [*room, thing(50, "toaster", (7.0, 0.0, 0.25), (0.5, 0.5, 0.5))], None)
    answer = ask("the toaster", room, seen(("toaster", 0.25, toaster)))
    assert (sure.status, answer.status) == (FOUND, FOUND)
    assert (answer.candidates[0].id, answer.candidates[0].state) == (UNTRACKED, ObjectState.TENTATIVE)
    np.testing.assert_allclose(answer.candidates[0].box, toaster)
    assert 0 < answer.candidates[0].score < 0.5 * sure.candidates[0].score
    assert "not confirmed" in answer.reason
    assert "not confirmed" not in sure.reason


def test_too_little_is_no_answer():
    room = living_room()
    for score, status in ((0.29, FOUND), (0.22, FOUND), (0.2, NOT_FOUND), (0.05, NOT_FOUND)):
        assert ask("the toaster", room, seen(("toaster", score, box(7.0)))).status == status, score
    assert ask("the toaster", room, seen()).status == NOT_FOUND
    assert ask("the toaster", [], seen(("toaster", 0.29, box(7.0)))).status == FOUND
    assert ask("the toaster", [], None).status == NOT_FOUND


def test_another_name_at_the_same_place_makes_it_less_likely():
    room = living_room()
    toaster = ("toaster", 0.25, box(7.0))
    assert ask("the toaster", room, seen(toaster)).status == FOUND
    assert ask("the toaster", room, seen(toaster, ("oven", 0.25, box(7.05)))).status == NOT_FOUND
    assert ask("the toaster", room, seen(toaster, ("oven", 0.25, box(9.0)))).status == FOUND


def test_scores_of_the_map_are_probabilities_and_count_once():
    """Of a surer chair farther off and a likely one beside the plant, the map's own score lets the place decide; an
    unknown detector's is held against it twice."""
    plant = thing(1, "plant", (0, 0, 0.5), (0.4, 0.4, 1.0))
    far, near = (thing(i, "chair", (x, y, 0.45), (0.5, 0.5, 0.9)) for i, x, y in ((2, 1.2, 0.0), (3, 0.0, -0.7)))
    objects = [plant, dataclasses.replace(far, score=0.9), dataclasses.replace(near, score=0.4)]
    assert ground_objects("the chair close to the plant", objects).candidates[0].id == 2
    answer = ask("the chair close to the plant", objects, None)
    assert (answer.status, answer.candidates[0].id) == (FOUND, 3)


def test_a_map_of_probabilities_answers_from_what_is_unlikely_too():
    """Names are published from a half on, and asked for from 0.03 on: an answer says how unsure it is."""
    scores = ScorePolicy(0.5).of_probabilities()
    room = living_room()
    for score, status in ((0.035, FOUND), (0.025, NOT_FOUND)):
        low_confidence = LowConfidenceCandidates(room, (), seen(("toaster", score, box(7.0))), scores)
        answer = ground_objects("the toaster", room, low_confidence=low_confidence)
        assert answer.status == status, score
        assert all(c.score < 0.05 for c in answer.candidates)


def test_tentative_objects_answer_with_their_id():
    room = living_room()
    maybe = SceneObject(77, "toaster", 0.29, np.array(box(7.0)), ObjectState.TENTATIVE)
    answer = ask("the toaster", room, seen(("toaster", 0.25, box(7.02))), [maybe])
    assert answer.status == FOUND
    assert [(c.id, c.state) for c in answer.candidates] == [(77, ObjectState.TENTATIVE)]
    assert "<obj_77>" in answer.tagged_text


def test_objects_come_first():
    """What is low_confidence about a thing that stands as an object is not a second thing."""
    room = living_room()
    couch = next(o for o in room if o.label == "couch")
    again = ("couch", 0.25, couch.box + 0.02)
    elsewhere = ("couch", 0.2, np.array(box(9.0, size=0.9)))
    answer = ask("the couch", room, seen(again, elsewhere))
    assert (answer.status, answer.candidates[0].id) == (FOUND, couch.id)
    assert [c.id for c in answer.candidates[1:]] in ([], [UNTRACKED])


def test_doubtful_things_are_anchors():
    room = [thing(n, "chair", (3.0 * n, 0.0, 0.45), (0.5, 0.5, 0.9)) for n in (1, 2, 3)]
    assert ask("the chair next to the toaster", room, None).status == NOT_FOUND
    answer = ask("the chair next to the toaster", room, seen(("toaster", 0.28, box(6.6, 0.2))))
    assert (answer.status, answer.candidates[0].id) == (FOUND, 2)


@pytest.mark.parametrize("sentence", ["the couch next to the toaster", "the couch between the toaster and the door"])
def test_a_doubtful_anchor_elsewhere_is_no_evidence(sentence):
    """The one that is meant may stand where nobody has seen it; a confirmed one stands where it stands."""
    room = [*living_room(), thing(60, "door", (9.0, 6.0, 1.0), (0.9, 0.1, 2.0))]
    far = (9.0, 0.0, 0.25)
    sure = ask(sentence, [*room, thing(50, "toaster", far, (0.5, 0.5, 0.5))], None)
    assert sure.status == NOT_FOUND
    assert "none that is" in sure.reason
    answer = ask(sentence, room, seen(("toaster", 0.25, [*far, 0.5, 0.5, 0.5, 0, 0, 0])))
    assert answer.status == FOUND
    assert answer.candidates[0].label == "couch"
    assert answer.candidates[0].score < ask("the couch", room, None).candidates[0].score


def test_only_what_the_sentence_names_counts_and_not_too_much_of_it():
    room = living_room()
    found = seen(*((name, 0.2, box(20.0 + k)) for k, name in enumerate(["toaster"] * 30 + ["oven"] * 30)))
    low_confidence = LowConfidenceCandidates(room, (), found, SCORES)
    labels = [o.label for o in low_confidence.about(read_meaning("the toaster on the table"))]
    assert set(labels) == {"toaster"}
    assert 1 <= len(labels) < 30
    assert low_confidence.about(read_meaning("the couch")) == ()
    # as an object scores that was looked at once
    quarter = LowConfidenceCandidates(room, (), found, SCORES, lambda score: score / 4)
    assert quarter.about(read_meaning("the oven"))[0].score == pytest.approx(0.05)


def test_shares_are_those_of_a_plain_loop():
    rng = np.random.default_rng(3)
    names = list(rng.choice(["a", "b", "c"], 60))
    scores, overlap = rng.random(60) * (rng.random(60) > 0.2), rng.random((60, 60))
    wanted = []
    for i in range(60):
        own = max((scores[j] for j in range(60) if overlap[i, j] > 0.5 and names[j] == names[i]), default=0.0)
        other = max((scores[j] for j in range(60) if overlap[i, j] > 0.5 and names[j] != names[i]), default=0.0)
        wanted.append(own / (own + other) if own else 1.0)
    np.testing.assert_allclose(name_shares(names, overlap, scores), wanted)
    assert name_shares([], np.zeros((0, 0)), np.zeros(0)).shape == (0,)


def test_overlap_of_bounds():
    """That of exact boxes along the axes, in a scene's turned frame as well."""
    rng = np.random.default_rng(5)
    boxes = np.concatenate([rng.uniform(0, 2, (30, 3)), rng.uniform(0.3, 1.5, (30, 3)), np.zeros((30, 3))], axis=1)
    bounds = Bounds.of(boxes)
    wanted = box_iou(torch.from_numpy(boxes), torch.from_numpy(boxes)).numpy()
    np.testing.assert_allclose(bounds.iou(bounds), wanted, atol=1e-6)
    wide = Bounds.of(np.array([[0.0, 0, 0, 2, 1, 1, np.pi / 2, 0, 0]]))
    deep = Bounds.of(np.array([[0.0, 0, 0, 1, 2, 1, 0, 0, 0]]))
    np.testing.assert_allclose(wide.iou(deep), [[1.0]])
    assert bounds.iou(Bounds.of(boxes[:0])).shape == (30, 0)
    yaw, c, s = 0.4, np.cos(0.4), np.sin(0.4)
    turned = boxes.copy()
    turned[:, :2], turned[:, 6] = boxes[:, :2] @ np.array([[c, s], [-s, c]]), yaw
    scene = SceneGeometry(turned)
    np.testing.assert_allclose(scene.every.iou, wanted, atol=1e-6)
    np.testing.assert_allclose(scene.overlaps(turned[:7]), wanted[:, :7], atol=1e-6)


def test_a_doubtful_rival_makes_no_answer_ambiguous():
    chair = thing(1, "chair", (0.0, 0.0, 0.45), (0.5, 0.5, 0.9))
    another = thing(2, "chair", (3.0, 0.0, 0.45), (0.5, 0.5, 0.9))
    doubt = seen(("chair", 0.2, box(3.0)))
    answer = ask("the chair", [chair], doubt)
    assert (answer.status, answer.candidates[0].id) == (FOUND, 1)
    assert UNTRACKED in [c.id for c in answer.candidates[1:]]
    assert ask("the chair", [chair, another], doubt).status == AMBIGUOUS


def test_a_part_of_a_candidate_is_no_second_one():
    room = [thing(1, "couch", (0.0, 0.0, 0.4), (2.0, 0.9, 0.8)), thing(2, "couch", (0.5, 0.0, 0.3), (0.8, 0.8, 0.5))]
    answer = ground_objects("the couch", room)
    assert answer.status == FOUND
    assert len(answer.candidates) == 1
