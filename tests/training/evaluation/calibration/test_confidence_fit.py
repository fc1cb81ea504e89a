"""The fit of what scores are worth: it finds what made the truth, and says honestly what it gains."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from embodied_perceptron.inference.confidence_calibration import FEATURES, NO_NAME, THING_FEATURES
from embodied_perceptron_training.evaluation.calibration import confidence_fit
from embodied_perceptron_training.evaluation.calibration.confidence_fit import (
    PRECISIONS,
    SceneBoxTable,
    ThingTable,
    _right_at,
    count_names,
    fit_tables,
    with_best_names,
)
from embodied_perceptron_training.evaluation.runner.evaluate import EvaluationSpec
from embodied_perceptron_training.evaluation.runner.parallel import EvaluationError

SCORE, NAME, SURFACE, RIVAL = (FEATURES.index(name) for name in ("score", "name", "surface", "rival"))


def tables(
    seed: int, count: int = 24, boxes: int = 300, surface: float = 1.0, rival: float = 0.0
) -> list[SceneBoxTable]:
    """Boxes whose truth is a logistic of the score, of the name, of the surface and of a rival."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        features = rng.normal(0, 1, (boxes, len(FEATURES)))
        labels = tuple(rng.choice(["chair", "bowl"], boxes).tolist())
        known = np.where(np.array(labels) == "chair", 1.0, -2.0)
        log_odds = -1.0 + 1.5 * features[:, SCORE] + known + surface * features[:, SURFACE] + rival * features[:, RIVAL]
        right = rng.uniform(size=boxes) < 1 / (1 + np.exp(-log_odds))
        scores = 1 / (1 + np.exp(-features[:, SCORE]))
        made.append(SceneBoxTable(apart(boxes), features, scores, labels, right))
    return made


def apart(count: int) -> np.ndarray:
    """Boxes that are no company: 20 m from each other."""
    boxes = np.tile([0.0, 0.0, 0.5, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0], (count, 1))
    boxes[:, 0] = 20.0 * np.arange(count)
    return boxes


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


def test_what_speaks_against_a_box_never_speaks_for_it():
    found = fit_tables(tables(3, rival=0.5))
    assert found.model.weights[1 + RIVAL] == 0.0
    assert found.model.weights[1 + SCORE] > 1.0
    assert fit_tables(tables(3, rival=-0.5)).model.weights[1 + RIVAL] == pytest.approx(-0.5, abs=0.12)


def test_features_that_say_nothing_gain_nothing():
    """A model must not look better on homes that were left out than what there is to know."""
    rng = np.random.default_rng(1)
    noise = [
        dataclasses.replace(t, labels=("chair",) * len(t.scores), right=rng.uniform(size=len(t.scores)) < t.scores)
        for t in tables(2, surface=0.0)
    ]
    found = fit_tables(noise)
    for precision in (0.9, 0.8, 0.7):
        before, after = found.at_precision[precision]
        assert abs(after - before) < 0.1 * before + 20
    assert found.error < 0.03


def test_things_are_fitted_to_what_is_there():
    """Truth of a logistic of the score and of the best name's probability, whatever home."""
    rng = np.random.default_rng(5)
    made = []
    for table in tables(4):
        count, names = 120, len(table.scores)
        pairs = np.stack([rng.integers(count, size=names), np.arange(names)], axis=1)
        features = rng.normal(0, 1, (count, len(THING_FEATURES)))
        best = np.full(count, NO_NAME)
        # as surely named as the truth of the names is known
        sure = 1 / (1 + np.exp(-(-1.0 + 1.5 * table.features[:, SCORE] + table.features[:, SURFACE])))
        sure = sure * np.where(np.array(table.labels) == "chair", 1.5, 0.3).clip(max=0.95)
        np.maximum.at(best, pairs[:, 0], sure.clip(1e-3, 0.99))
        said = -0.5 + 1.2 * features[:, 0] + 0.8 * np.log(best / (1 - best))
        there = rng.uniform(size=count) < 1 / (1 + np.exp(-said))
        made.append(dataclasses.replace(table, things=ThingTable(features, there, pairs)))
    found = fit_tables(made)
    weights = dict(zip(("constant", *THING_FEATURES), found.model.things, strict=True))
    assert weights["score"] == pytest.approx(1.2, abs=0.2)
    assert weights["named"] > 0.4
    assert max(abs(weights[name]) for name in ("surface", "closed", "thin")) < 0.15
    boxes, right, error = found.things
    assert (boxes, right) == (24 * 120, sum(int(t.things.right.sum()) for t in made))
    assert error < 0.04


def test_without_things_no_model_of_them_is_made():
    found = fit_tables(tables(6, count=4))
    assert found.model.things == ()
    assert found.things == (0, 0, 0.0)


def test_the_best_name_fills_its_column():
    table = ThingTable(np.zeros((3, len(THING_FEATURES))), np.zeros(3, bool), np.array([[0, 1], [0, 0], [2, 0]]))
    filled = with_best_names(table, np.array([0.5, 0.8]))
    expected = [np.log(p / (1 - p)) for p in (0.8, NO_NAME, 0.5)]
    np.testing.assert_allclose(filled[:, THING_FEATURES.index("named")], expected)


def test_counts_are_of_boxes_that_count():
    table = SceneBoxTable(
        apart(3),
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
    wrong = dataclasses.replace(two, right=np.zeros(len(two.scores), bool))
    with pytest.raises(EvaluationError, match="0 of 600 right"):
        fit_tables([wrong, wrong])
    assert set(fit_tables([one, two]).at_precision) == set(PRECISIONS)


def specs_of(folders):
    return [EvaluationSpec(str(folder), "train", "tiny", ("detection",)) for folder in folders]


def test_several_folders_are_fitted_together(monkeypatch, tmp_path):
    judged = []

    def judge(spec, *_):
        judged.append(spec.data)
        return tables(len(judged), count=4), {}

    monkeypatch.setattr(confidence_fit, "collect_boxes", judge)
    monkeypatch.setattr(confidence_fit, "scene_names", lambda spec: ("a",))
    folders = [tmp_path / "hard", tmp_path / "more"]
    figures = confidence_fit.run_confidence_fit(specs_of(folders), write=False)
    assert judged == [str(folder) for folder in folders]
    found = fit_tables([*tables(1, count=4), *tables(2, count=4)])
    assert figures["right@0.8/model"] == found.at_precision[0.8][1]
    assert figures["log_loss/alone"] == pytest.approx(found.log_loss[0])


def test_a_folder_that_is_missing_is_named_before_the_first_is_read(monkeypatch, tmp_path):
    monkeypatch.setattr(confidence_fit, "collect_boxes", lambda *_: pytest.fail("read a folder"))

    def names(spec):
        if spec.data.endswith("nowhere"):
            raise FileNotFoundError(spec.data)
        return ("a",)

    monkeypatch.setattr(confidence_fit, "scene_names", names)
    with pytest.raises(EvaluationError, match="nowhere"):
        confidence_fit.run_confidence_fit(specs_of([tmp_path / "hard", tmp_path / "nowhere"]), write=False)
