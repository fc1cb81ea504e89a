"""Questions of four kinds, answered through the language and scored with what their answers rest on."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from embodied_perceptron.language.answer import ground_objects
from embodied_perceptron.results import SceneObject
from embodied_perceptron_training.evaluation.suites.pope import (
    KINDS,
    GroundedReply,
    answer_grounded,
    asked,
    grounded_metrics,
    read_grounded_questions,
)

# a red chair, a white chair, a brown table with a cup on it
THINGS = {
    1: ("chair", [0.0, 0.0, 0.45, 0.5, 0.5, 0.9, 0, 0, 0], (200, 30, 30)),
    2: ("chair", [3.0, 0.0, 0.45, 0.5, 0.5, 0.9, 0, 0, 0], (240, 240, 240)),
    3: ("table", [1.5, 2.0, 0.37, 1.4, 0.8, 0.74, 0, 0, 0], (120, 80, 40)),
    4: ("cup", [1.5, 2.0, 0.79, 0.08, 0.08, 0.1, 0, 0, 0], (30, 60, 200)),
}
BOXES = {n: np.array(box, float) for n, (_, box, _) in THINGS.items()}
ENTRIES = [
    ("existence", "Is there a cup here?", "yes", "<p>cup</p>[<obj_4>]"),
    ("existence", "Is there a bed here?", "no", ""),
    ("counting", "How many chairs are there?", "2", "<p>chair</p>[<obj_1><obj_2>]"),
    ("counting", "Are there exactly 2 chairs?", "yes", "<p>chair</p>[<obj_1><obj_2>]"),
    ("counting", "Are there exactly 4 chairs?", "no", "<p>chair</p>[<obj_1><obj_2>]"),
    ("attribute", "What color is the cup?", "blue", "<p>cup</p>[<obj_4>]"),
    ("attribute", "Is the cup blue?", "yes", "<p>cup</p>[<obj_4>]"),
    ("attribute", "Is the cup red?", "no", "<p>cup</p>[<obj_4>]"),
    ("relation", "Is there a cup on the table?", "yes", "<p>cup</p>[<obj_4>] <p>table</p>[<obj_3>]"),
    ("relation", "Is there a chair on the table?", "no", "<p>table</p>[<obj_3>]"),
    ("relation", "Which kind of thing is on the table: cup or nothing?", "cup", "<p>cup</p>[<obj_4>]"),
]


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "home.json"
    keys = ("kind", "question", "answer", "grounding")
    path.write_text(json.dumps({"qa": [dict(zip(keys, entry, strict=True)) for entry in ENTRIES]}))
    return read_grounded_questions(path, "home")


def perfect(questions):
    return [GroundedReply(q.answer, np.array([BOXES[n] for n in q.ids]).reshape(-1, 9)) for q in questions]


def score(questions, replies):
    return grounded_metrics(questions, replies, [BOXES] * len(questions))


def test_questions_are_read_with_what_they_rest_on(questions):
    assert len(questions) == len(ENTRIES)
    assert [q.answer for q in questions if isinstance(q.answer, str)] == ["blue", "cup"]  # open questions
    count = next(q for q in questions if q.is_number)
    assert (count.answer, count.ids) == (2, (1, 2))
    assert asked(count) == (count.text, None)
    assert asked(next(q for q in questions if "exactly 4" in q.text)) == ("How many chairs are there?", 4)
    assert asked(next(q for q in questions if q.text == "Is the cup red?"))[0] == "the red cup"


def test_perfect_prediction_is_perfect_whatever_the_order(questions):
    figures = score(questions, perfect(questions))
    assert {name.split("/")[1] for name in figures} == set(KINDS)
    assert all(value == 100.0 for name, value in figures.items() if not name.endswith("/yes"))
    assert figures["grounded/existence/yes"] == 50.0
    assert score(questions[::-1], perfect(questions)[::-1]) == figures


def test_a_yes_that_points_elsewhere_is_right_and_not_located(questions):
    yes = next(k for k, q in enumerate(questions) if q.text == "Is there a cup here?")
    replies = perfect(questions)
    replies[yes] = dataclasses.replace(replies[yes], boxes=BOXES[3][None])
    figures = score(questions, replies)
    assert figures["grounded/existence/accuracy"] == 100.0
    assert figures["grounded/existence/located"] == 0.0


def test_the_deployed_language_answers_them_over_true_boxes(questions):
    objects = [SceneObject(n, label, 0.9, BOXES[n]) for n, (label, _, _) in THINGS.items()]
    colors = np.array([color for _, _, color in THINGS.values()], float)

    def ask(texts):
        return [ground_objects(text, objects, colors=colors) for text in texts]

    replies = answer_grounded(ask, questions)
    wrong = [q.text for q, reply in zip(questions, replies, strict=True) if reply.answer != q.answer]
    assert wrong == []
    assert all(value == 100.0 for name, value in score(questions, replies).items() if name.endswith("/located"))


def test_what_cannot_be_read_names_the_file(tmp_path):
    path = tmp_path / "home.json"
    for content in ("{}", '{"qa": [1]}', '{"qa": [{"kind": "x", "question": "q", "answer": "yes", "grounding": ""}]}'):
        path.write_text(content)
        with pytest.raises(ValueError, match=r"home\.json"):
            read_grounded_questions(path, "home")
    with pytest.raises(ValueError, match="replies"):
        grounded_metrics([], [GroundedReply(True, np.zeros((0, 9)))], [])
