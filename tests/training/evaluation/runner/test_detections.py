"""2-D detections of evaluations: degraded ones have the wanted rates, and a scene finds its file."""

from __future__ import annotations

import json

import numpy as np
import pytest

from embodied_perceptron_training.evaluation.runner.detections import Degradation, detections_of_scene, write_degraded
from embodied_perceptron_training.evaluation.runner.parallel import EvaluationError


def perfect(folder, count=4000):
    entry = {
        "image_id": 0,
        "category_id": 1,
        "bbox": [10, 20, 100, 50],
        "score": 1.0,
        "segmentation": [[0, 0, 1, 1, 2, 2]],
    }
    data = {
        "images": [{"id": 0, "timestamp": 1.0}],
        "annotations": [{**entry, "id": i} for i in range(count)],
        "categories": [{"id": i, "name": n} for i, n in enumerate(("cup", "chair", "bed"))],
    }
    (folder / "true.json").write_text(json.dumps(data))
    return folder / "true.json"


def degraded(folder, **how):
    target = write_degraded(perfect(folder), folder / "worse.json", Degradation(**how))
    return json.loads(target.read_text())["annotations"]


def test_nothing_changes_without_a_degradation(tmp_path):
    assert degraded(tmp_path) == json.loads(perfect(tmp_path).read_text())["annotations"]


@pytest.mark.parametrize("recall", [0.0, 0.7])
def test_recall(tmp_path, recall):
    assert len(degraded(tmp_path, recall=recall)) / 4000 == pytest.approx(recall, abs=0.03)


def test_confused_ones_never_keep_their_name(tmp_path):
    names = np.array([a["category_id"] for a in degraded(tmp_path, confusion=0.3)])
    assert (names != 1).mean() == pytest.approx(0.3, abs=0.03)
    assert (names == 0).sum() == pytest.approx((names == 2).sum(), rel=0.2)


def test_jitter_is_a_share_of_the_side_and_takes_the_mask(tmp_path):
    entries = degraded(tmp_path, jitter=0.05)
    boxes = np.array([a["bbox"] for a in entries])
    assert boxes[:, 0].std() == pytest.approx(5.0, rel=0.1)
    assert boxes[:, 1].std() == pytest.approx(2.5, rel=0.1)
    assert (boxes[:, 0] + boxes[:, 2]).std() == pytest.approx(5.0, rel=0.1)
    assert not any("segmentation" in a for a in entries)


def test_scores_only_fall_and_stay_probabilities(tmp_path):
    scores = np.array([a["score"] for a in degraded(tmp_path, score=0.5)])
    assert scores.min() >= 0
    assert scores.max() <= 1
    assert scores.mean() == pytest.approx(1 - 0.5 * np.sqrt(2 / np.pi), abs=0.05)


def test_the_seed_decides(tmp_path):
    first, again, other = (degraded(tmp_path, recall=0.5, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_options_as_text():
    assert Degradation.of_text("recall=0.7, jitter=0.05,seed=3") == Degradation(0.7, 0.0, 0.05, seed=3)


@pytest.mark.parametrize("text", ["recall=much", "speed=1", "recall=1.2", "recall", "masks=0", ""])
def test_wrong_options_are_named(text):
    with pytest.raises(EvaluationError, match=text.split("=")[0] or "''"):
        Degradation.of_text(text)


def test_a_scene_has_its_own_file_or_that_of_all(tmp_path):
    (tmp_path / "synthetic" / "7").mkdir(parents=True)
    own, shared = tmp_path / "synthetic" / "7" / "found.json", tmp_path / "all.json"
    own.write_text("{}")
    shared.write_text("{}")
    assert detections_of_scene(tmp_path, "synthetic/7", "found.json") == own
    assert detections_of_scene(tmp_path, "synthetic/7", shared) == shared
    with pytest.raises(EvaluationError, match=r"missing\.json"):
        detections_of_scene(tmp_path, "synthetic/7", "missing.json")
