"""Objects answer to words by their looks."""

from __future__ import annotations

import numpy as np
import pytest
from support.lift_world import THINGS, KnowingDetector, boxes_of, config, perfect, tour

from embodied_perceptron.detection2d.detections2d import accept_detections
from embodied_perceptron.detection2d.open_vocabulary import OpenVocabularyLabels
from embodied_perceptron.detection2d.pipeline import DetectionLift, LiftSettings
from embodied_perceptron.detection2d.scheduler import SchedulerRules
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import GroundingStatus, SceneObject

QUICK = LiftSettings(schedule=SchedulerRules(max_rate_hz=50.0, burst=50))
AXES = {"cup": 0, "espresso cup": 0, "table": 1, "chair": 2, "picture": 3, "carpet": 4, "wall": 5, "floor": 6}


def unit(word: str) -> np.ndarray:
    """Words that mean the same thing have one direction; unknown ones have their own."""
    vector = np.zeros(8, np.float32)
    vector[AXES.get(word, 7)] = 1.0
    return vector


class KnowingEncoder:
    """Sees in a picture's boxes what their labels say, and reads words likewise."""

    def texts(self, texts):
        return np.stack([unit(text.removeprefix("a photo of a ")) for text in texts])

    def with_embeddings(self, found, frame):
        vectors = np.stack([unit(label) for label in found.labels]) if len(found) else np.zeros((0, 8), np.float32)
        labels = tuple("thing" for _ in found.labels)  # so that looks alone can tell
        return type(found)(found.camera, found.stamp_ns, found.boxes_px, found.scores, labels, None, vectors)


def thing(number, label, x):
    return SceneObject(number, label, 0.9, np.array([x, 0, 0, 0.2, 0.2, 0.2, 0, 0, 0]))


def likeness(noun, label):
    return float(noun == label)


@pytest.fixture
def looks():
    names = OpenVocabularyLabels(KnowingEncoder())
    objects = [thing(1, "bowl", 0.0), thing(2, "table", 3.0)]
    names.update(objects, np.stack([o.box for o in objects]), [unit("cup"), unit("table")])
    return names, objects


def test_an_object_answers_to_a_word_that_it_looks_like(looks):
    names, objects = looks
    renamed = names.renamed(objects, ["espresso cup"], likeness)
    assert [o.label for o in renamed] == ["espresso cup", "table"]
    assert renamed[0].score == pytest.approx(0.9, abs=1e-3)
    assert [o.id for o in renamed] == [1, 2]


def test_labels_that_answer_are_left_alone(looks):
    names, objects = looks
    assert names.renamed(objects, ["table"], likeness) == tuple(objects)
    assert names.renamed(objects, [], likeness) == tuple(objects)


def test_a_word_that_fits_nothing_names_nothing(looks):
    names, objects = looks
    assert names.renamed(objects, ["zebra"], likeness) == tuple(objects)


def test_shares_compete_with_the_labels(looks):
    names, _ = looks
    assert names.shares("espresso cup", ["bowl"])[1] == pytest.approx(1.0, abs=1e-6)
    assert names.shares("espresso cup", ["cup"])[1] == pytest.approx(0.5, abs=1e-6)  # two words, one meaning
    assert names.shares("espresso cup", [])[2] == pytest.approx(
        0.25
    )  # like nothing of what is asked, nor a neutral word


@pytest.mark.parametrize("over_topics", [False, True])
def test_a_question_finds_what_only_looks_can_tell(over_topics):
    """With a detector of its own, and with another program's detections, which come without embeddings."""
    frames, shown = tour(8)
    make = None if over_topics else lambda: KnowingDetector(shown)
    lift = DetectionLift(make, QUICK, encoder=KnowingEncoder())
    perceptron = Perceptron(config(), lift=lift)
    for posed in frames:
        perceptron.integrate(posed)
        if over_topics:
            said = perfect(posed.frame, boxes_of(shown[posed.frame.stamp_ns], list(THINGS)))
            boxes, scores = np.array([b for _, b, _ in said]), np.array([s for *_, s in said])
            found, drops = accept_detections(
                "front", posed.frame.stamp_ns, boxes, scores, [n for n, *_ in said], (320, 240)
            )
            perceptron.add_detections(found, drops)
    for _ in range(3):
        perceptron.perceive()
    assert "thing" in {o.label for o in perceptron.objects}
    assert len(lift.looks) > 0
    answer = perceptron.ground("the espresso cup")
    assert answer.status == GroundingStatus.FOUND, answer
    np.testing.assert_allclose(answer.candidates[0].box[:3], [0.4, 0.1, 0.79], atol=0.05)
    assert perceptron.ground("the zebra").status == GroundingStatus.NOT_FOUND
    perceptron.reset()
    assert len(lift.looks) == 0


def test_an_encoder_that_fails_is_told_and_perception_goes_on():
    class Failing(KnowingEncoder):
        def with_embeddings(self, found, frame):
            raise RuntimeError("no memory")

    frames, shown = tour(4)
    lift = DetectionLift(None, QUICK, encoder=Failing())
    perceptron = Perceptron(config(), lift=lift)
    for posed in frames:
        perceptron.integrate(posed)
        said = perfect(posed.frame, boxes_of(shown[posed.frame.stamp_ns], list(THINGS)))
        boxes, scores = np.array([b for _, b, _ in said]), np.array([s for *_, s in said])
        perceptron.add_detections(
            *accept_detections("front", posed.frame.stamp_ns, boxes, scores, [n for n, *_ in said], (320, 240))
        )
    perceptron.perceive()
    perceptron.perceive()
    assert "no memory" in lift.statistics().last_error
    assert "table" in {o.label for o in perceptron.perceive().objects}
