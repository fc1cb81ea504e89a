"""The fit of what scores are worth: it finds what made the truth, and says honestly what it gains."""

from __future__ import annotations

import numpy as np
import pytest

from embodied_perceptron.lift.reliability import FEATURES
from embodied_perceptron_training.evaluation.parallel import EvaluationError
from embodied_perceptron_training.evaluation.reliability_fit import (
    PRECISIONS,
    SceneBoxTable,
    _right_at,
    count_names,
    fit_tables,
)

SCORE, NAME, SURFACE = (FEATURES.index(name) for name in ("score", "name", "surface"))


def tables(seed: int, count: int = 24, boxes: int = 300, surface: float = 1.0) -> list[SceneBoxTable]:
    """Boxes whose truth is a logistic of the score, of the name and of the surface."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        features = rng.normal(0, 1, (boxes, len(FEATURES)))
        labels = tuple(rng.choice(["chair", "bowl"], boxes).tolist())
        known = np.where(np.array(labels) == "chair", 1.0, -2.0)
        log_odds = -1.0 + 1.5 * features[:, SCORE] + known + surface * features[:, SURFACE]
        right = rng.uniform(size=boxes) < 1 / (1 + np.exp(-log_odds))
        scores = 1 / (1 + np.exp(-features[:, SCORE]))
        made.append(SceneBoxTable(features, scores, labels, right))
    return made


def test_weights_are_those_that_made_the_truth():
    found = fit_tables(tables(0))
    weights = found.model.weights[1:]
    assert weights[SCORE] == pytest.approx(1.5, abs=0.15)
    assert weights[SURFACE] == pytest.approx(1.0, abs=0.12)
    others = [w for k, w in enumerate(weights) if k not in (SCORE, NAME, SURFACE)]
    assert np.abs(others).max() < 0.1
    assert weights[NAME] > 0.5
    assert found.error < 0.03
    for precision in (0.9, 0.8, 0.7):
        before, after = found.at_precision[precision]
        assert after > 1.2 * before


def test_what_speaks_for_a_box_never_speaks_against_it():
    """Chance alone may say so in few homes; whoever asks a robot why would not understand."""
    found = fit_tables(tables(3, surface=-0.5))
    assert found.model.weights[1 + SURFACE] == 0.0
    assert found.model.weights[1 + SCORE] > 1.0


def test_features_that_say_nothing_gain_nothing():
    """A model must not look better on homes that were left out than what there is to know."""
    rng = np.random.default_rng(1)
    noise = [
        SceneBoxTable(t.features, t.scores, ("chair",) * len(t.scores), rng.uniform(size=len(t.scores)) < t.scores)
        for t in tables(2, surface=0.0)
    ]
    found = fit_tables(noise)
    for precision in (0.9, 0.8, 0.7):
        before, after = found.at_precision[precision]
        assert abs(after - before) < 0.1 * before + 20
    assert found.error < 0.03


def test_counts_are_of_boxes_that_count():
    table = SceneBoxTable(
        np.zeros((3, len(FEATURES))),
        np.array([0.5, 0.19, 0.3]),
        ("chair", "chair", "bed"),
        np.array([True, True, False]),
    )
    assert count_names([table, table]) == {"chair": (2, 2), "bed": (2, 0)}


def test_right_at_a_precision_by_hand():
    scores, right = np.array([0.9, 0.8, 0.7, 0.6]), np.array([True, False, True, True])
    assert _right_at(scores, right, 0.9) == 1
    assert _right_at(scores, right, 0.7) == 3
    assert _right_at(scores, np.zeros(4, bool), 0.5) == 0


def test_too_little_is_said():
    (one, two) = tables(3, count=2)
    with pytest.raises(EvaluationError, match="1 scenes"):
        fit_tables([one])
    wrong = SceneBoxTable(two.features, two.scores, two.labels, np.zeros(len(two.scores), bool))
    with pytest.raises(EvaluationError, match="0 of 600 right"):
        fit_tables([wrong, wrong])
    assert set(fit_tables([one, two]).at_precision) == set(PRECISIONS)
