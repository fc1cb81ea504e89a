"""What a text says of a scene is right, misnamed or hallucinated."""

from __future__ import annotations

import pytest
from support.language_scenes import living_room, thing

from embodied_perceptron.language.description import Mention, describe, read_mentions
from embodied_perceptron_training.evaluation.metrics.description import score_mentions

TABLE = thing(3, "table", (0, 0, 0.37), (1.6, 0.8, 0.74))
LAPTOP = thing(4, "laptop", (0.2, 0.1, 0.85), (0.3, 0.2, 0.22))
CUP = thing(5, "cup", (-0.4, 0.1, 0.79), (0.08, 0.08, 0.1))
BIN = thing(6, "bin", (0.3, 0.0, 0.2), (0.3, 0.3, 0.4))


@pytest.mark.parametrize("form", ["plain", "dense"])
def test_a_description_by_geometry_is_all_true(form):
    room = living_room()
    score = score_mentions(read_mentions(describe(room, form).text), room).as_dict()
    assert score == {"precision": 100.0, "misnamed": 0.0, "hallucinated": 0.0, "recall": 100.0}


def test_hallucinations_by_hand():
    mentions = [
        Mention("big table", (3,), 0, 0),  # right
        Mention("cups", (5, 77), 0, 0),  # one right, one is no object
        Mention("zebra", (4,), 0, 0),  # a laptop is there
        Mention("ghost", (), 0, 0),
    ]
    score = score_mentions(mentions, [TABLE, LAPTOP, CUP, BIN])
    assert tuple(vars(score).values()) == (2, 1, 2, 2, 4)
    assert score.as_dict() == {"precision": 40.0, "misnamed": 20.0, "hallucinated": 40.0, "recall": 50.0}
    assert (score + score).as_dict() == score.as_dict()


def test_a_map_against_what_really_stands_there():
    found = [TABLE, thing(10, "cup", (5, 5, 1), (0.1, 0.1, 0.1))]
    mentions = [Mention("table", (3,), 0, 0), Mention("cup", (10,), 0, 0)]
    truth = [thing(100, "table", (0.05, 0, 0.37), (1.5, 0.8, 0.74)), thing(101, "lamp", (9, 9, 1), (0.2, 0.2, 0.4))]
    assert tuple(vars(score_mentions(mentions, found, truth)).values()) == (1, 0, 1, 1, 2)
    assert tuple(vars(score_mentions(mentions, found, [])).values()) == (0, 0, 2, 0, 0)
    assert score_mentions([], found, truth).as_dict()["precision"] == 0.0
