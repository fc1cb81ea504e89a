"""The fit of context rescoring: it finds what made the truth, and nothing where there is nothing."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from embodied_perceptron.geometry.suppression import overlapping_detections
from embodied_perceptron.inference.confidence_calibration import FEATURES, box_forms
from embodied_perceptron_training.evaluation.calibration import context_fit
from embodied_perceptron_training.evaluation.calibration.confidence_fit import SceneBoxTable, fit_tables
from embodied_perceptron_training.evaluation.calibration.context_fit import MatchedBoxes, fit_context

KITCHEN, BATH = ("stove", "oven", "box"), ("sink", "towel", "box")


def homes(seed: int, count: int, strength: float = 3.0) -> list[MatchedBoxes]:
    """Kitchens and baths, 6 m on a side: whatever is called a stove in a bath is seldom one, a box may be anywhere."""
    rng = np.random.default_rng(seed)
    made = []
    for k in range(count):
        room = (KITCHEN, BATH)[k % 2]
        n = 24
        boxes = np.zeros((n, 9))
        boxes[:, :3] = rng.uniform(-2, 2, (n, 3)) * [1, 1, 0.1]
        boxes[:, 3:6] = 0.1
        labels = tuple(rng.choice(room, n - 6).tolist()) + tuple(rng.choice(KITCHEN + BATH, 6).tolist())
        odds = np.concatenate([rng.normal(2.0, 0.5, n - 6), rng.normal(0.0, 0.5, 6)])
        at_home = np.array([0.0 if label == "box" else 1.0 if label in room else -1.0 for label in labels])
        right = rng.uniform(size=n) < 1 / (1 + np.exp(-odds - strength * at_home))
        made.append(MatchedBoxes(boxes, labels, odds, right, form_of(boxes)))
    return made


def form_of(boxes):
    return box_forms(boxes, np.zeros((len(boxes), len(FEATURES))), 0.0)


def doubt(known, name: str, around: str) -> float:
    """What the log-odds of a name lose or win beside three things of another, a metre away."""
    boxes = np.zeros((4, 9))
    boxes[:, 3:6] = 0.1
    boxes[1:, 0] = (1.0, 1.2, 1.4)
    odds = np.array([0.0, 3.0, 3.0, 3.0])
    known = dataclasses.replace(known, offset=np.zeros(len(known.names)))
    overlapping = overlapping_detections(boxes, np.arange(4))
    return float(known(boxes, (name, around, around, around), odds, overlapping, form_of(boxes))[0])


def test_names_learn_their_company():
    known = fit_context(homes(0, 200))
    assert known.names == ("box", "oven", "sink", "stove", "towel")
    for name, friend, stranger in (("stove", "oven", "towel"), ("towel", "sink", "stove")):
        assert doubt(known, name, friend) > 0.5 + doubt(known, name, stranger)
    assert abs(doubt(known, "box", "oven") - doubt(known, "box", "towel")) < 0.5


def test_names_learn_their_form():
    """A shelf is seldom low, a stool seldom high, and a box has any height."""
    rng = np.random.default_rng(6)
    known = fit_context([shelves_and_stools(rng) for _ in range(100)])
    odds = np.zeros(6)
    boxes = np.zeros((6, 9))
    boxes[:, 0] = 20.0 * np.arange(6)
    boxes[:, 3:6] = 0.1
    boxes[:, 2] = (0.3, 1.7) * 3
    labels = ("shelf", "shelf", "stool", "stool", "box", "box")
    z = known(boxes, labels, odds, overlapping_detections(boxes, np.arange(6)), form_of(boxes))
    assert z[1] > z[0] + 1.0
    assert z[2] > z[3] + 1.0
    assert abs(z[4] - z[5]) < 0.7


def shelves_and_stools(rng) -> MatchedBoxes:
    boxes = np.zeros((20, 9))
    boxes[:, 0] = 20.0 * np.arange(20)
    boxes[:, 3:6] = 0.1
    boxes[:, 2] = rng.uniform(0.1, 1.9, 20)
    labels = tuple(rng.choice(["shelf", "stool", "box"], 20).tolist())
    odds = rng.normal(0.5, 1.0, 20)
    sign = np.array([{"shelf": 1.0, "stool": -1.0, "box": 0.0}[label] for label in labels])
    right = rng.uniform(size=20) < 1 / (1 + np.exp(-odds - 2.0 * sign * (boxes[:, 2] - 1.0)))
    return MatchedBoxes(boxes, labels, odds, right, form_of(boxes))


def test_the_slopes_are_those_of_the_loss(monkeypatch):
    """The optimiser is told the gradient: it has to be that of the loss."""
    asked = {}

    def minimise(loss, start, **_):
        asked["loss"], asked["start"] = loss, start
        return type("Result", (), {"x": start})

    monkeypatch.setattr(context_fit, "minimize", minimise)
    fit_context(homes(1, 6))
    loss, rng = asked["loss"], np.random.default_rng(0)
    at = asked["start"] + rng.normal(0, 0.2, len(asked["start"]))
    for _ in range(6):
        way = rng.normal(0, 1, len(at))
        slope = (loss(at + 1e-5 * way)[0] - loss(at - 1e-5 * way)[0]) / 2e-5
        assert float(loss(at)[1] @ way) == pytest.approx(slope, rel=1e-5)


def of_homes(known: list[MatchedBoxes]) -> list[SceneBoxTable]:
    made = []
    for home in known:
        features = np.zeros((len(home.labels), len(FEATURES)))
        features[:, FEATURES.index("score")] = home.odds
        made.append(SceneBoxTable(home.boxes, features, 1 / (1 + np.exp(-home.odds)), home.labels, home.right))
    return made


def test_context_is_kept_where_it_tells_more_of_homes_that_it_never_met():
    found = fit_tables(of_homes(homes(2, 80)))
    alone, rescored = found.log_loss
    assert rescored < alone - 0.02
    assert found.model.context is not None
    assert found.error < 0.06


def test_context_that_tells_nothing_is_not_kept():
    found = fit_tables(of_homes(homes(3, 24, strength=0.0)))
    alone, rescored = found.log_loss
    assert rescored > alone
    assert found.model.context is None


def test_nothing_likely_is_nothing_to_learn_from():
    unlikely = [dataclasses.replace(home, odds=home.odds - 20.0) for home in homes(4, 4)]
    known = fit_context(unlikely)
    for home in homes(5, 2):
        np.testing.assert_array_equal(home.with_context(known), home.odds)
