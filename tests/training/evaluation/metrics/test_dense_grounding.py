"""Phrases of texts and the objects that a reader finds for them, by hand, of homes' texts and 3D-GRAND's."""

from __future__ import annotations

import numpy as np
import pytest

from embodied_perceptron.language.answer import ground_objects
from embodied_perceptron.results import GroundedPhrase, Grounding, GroundingStatus, SceneObject
from embodied_perceptron_training.evaluation.metrics.dense_grounding import DenseScore, score_dense

TEXT = (
    "The room has <p>a sofa</p>[<obj_1>] and <p>two chairs</p>[<obj_4><obj_5>]. "
    "<p>A lamp</p>[<obj_7>] stands by <p>a piano</p>[<piano-9>]. Nothing else."
)


def answer(text: str, **ids: tuple[int, ...]) -> Grounding:
    phrases = []
    for noun, known in ids.items():
        start = text.index(noun)
        phrases.append(GroundedPhrase(noun, start, start + len(noun), known))
    return Grounding(text, GroundingStatus.FOUND, (), phrases=tuple(phrases))


def test_by_hand() -> None:
    """Three phrases with four objects. Said: the sofa rightly; of the chairs one rightly and one wrongly; the lamp not
    at all. Right 2 of 3 said, 2 of 4 meant, 2 of 3 phrases."""
    asked: list[str] = []

    def ask(sentences):
        asked.extend(sentences)
        return [
            answer(sentences[0], sofa=(1,), chairs=(5, 6)),
            answer(sentences[1], stands=(7,)),
        ]

    score = score_dense([TEXT, "No tags at all."], ask)
    assert asked == ["The room has a sofa and two chairs.", "A lamp stands by a piano."]
    assert score == DenseScore(right=2, predicted=3, met=2, meant=4, located=2, phrases=3)
    assert score.as_dict() == pytest.approx(
        {"precision": 200 / 3, "recall": 50.0, "f1": 2 * (2 / 3) * 0.5 / (2 / 3 + 0.5) * 100, "located": 200 / 3}
    )
    assert (score + score).as_dict() == pytest.approx(score.as_dict())


def test_ids_may_be_joined_by_boxes() -> None:
    score = score_dense(["<p>a sofa</p>[<obj_1>]."], lambda s: [answer(s[0], sofa=(30,))], lambda a, b: a == 30 * b)
    assert score.as_dict()["f1"] == 100.0


def test_without_phrases_there_is_no_figure() -> None:
    assert score_dense(["Nothing."], lambda s: [answer(x) for x in s]).as_dict() == {}
    assert score_dense([], lambda s: []).phrases == 0


def test_the_reader_grounds_a_description_of_a_room() -> None:
    boxes = {1: ("couch", 0.0), 2: ("table", 1.5), 3: ("lamp", 6.0), 4: ("lamp", 2.7)}
    objects = [
        SceneObject(k, label, 0.9, np.array([x, 0.0, 0.4, 1.0, 0.5, 0.8, 0, 0, 0])) for k, (label, x) in boxes.items()
    ]
    text = "There is a <p>lamp</p>[<obj_4>] near the <p>table</p>[<obj_2>]."
    score = score_dense([text], lambda asked: [ground_objects(s, objects) for s in asked])
    assert score.as_dict()["f1"] == 100.0
