"""The score from which a box is an object: chosen by the final maps of trajectories, and stored in the weights."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import json
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
from support.small_networks import small_config, small_network
from typer.testing import CliRunner

from embodied_perceptron.apps.cli import build_app
from embodied_perceptron.config import NetworkOptions, ScorePolicy
from embodied_perceptron.inference.confidence_calibration import ConfidenceCalibration
from embodied_perceptron.inference.loading import load_inference, save_network
from embodied_perceptron.inference.naming import shift_between
from embodied_perceptron.inference.predictor import Predictor
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import UNNAMED, Detections, ObjectState
from embodied_perceptron.weights.categories import DETECTION_CLASSES
from embodied_perceptron.weights.checkpoint import load_checkpoint, state_digest
from embodied_perceptron_training.datasets.embodiedscan import EmbodiedScanDataset
from embodied_perceptron_training.evaluation.calibration import score_thresholds
from embodied_perceptron_training.evaluation.calibration.score_thresholds import (
    EVEN,
    PERIOD_NS,
    Calibration,
    Point,
    TimedPrediction,
    calibrate,
    calibration_error,
    final_map,
    lowest_precise,
    predict_around,
    reliability_curve,
    right_flags,
    robot_config,
    write_calibration,
)
from embodied_perceptron_training.evaluation.metrics.detection import SceneBoxes
from embodied_perceptron_training.evaluation.runner.evaluate import EvaluationSpec
from embodied_perceptron_training.evaluation.runner.parallel import EvaluationError
from embodied_perceptron_training.evaluation.runner.scenes import EvaluationScene, load_scene
from embodied_perceptron_training.homes.building.home import HomeSpec
from embodied_perceptron_training.homes.generate import HomeSampleSpec, generate

NAME = "synthetic/40"
KNOWN = ("chair", "table", "bed", "picture")
CELLS = ("floor", "wall", "chair")
BOX = (0.0, 0.0, 0.5, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("homes")
    generate(folder, range(40, 41), HomeSampleSpec(views=5, width=80, height=60, home=HomeSpec(1)), "val")
    return folder


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "small.safetensors"
    extra = {"occupancy_classes": list(CELLS), "calibration": {"grounding": {"kept": 1}}}
    save_network(path, small_network(small_config()), KNOWN, extra)
    return path


def scene_of(root: Path) -> EvaluationScene:
    return load_scene(EmbodiedScanDataset(root, "val"), NAME, 5)


def test_right_is_what_finds_something_of_its_class_that_is_not_found_yet() -> None:
    moved, far = (0.3, *BOX[1:]), (3.0, *BOX[1:])
    truth = SceneBoxes(np.array([BOX, far]), np.array([1, 2]))
    boxes = np.array([BOX, moved, far, far])
    scores = np.array([0.5, 0.9, 0.8, 0.7])
    # the better of the first two counts alone; of the others only the second has the right name
    assert right_flags(SceneBoxes(boxes, np.array([1, 1, 1, 2]), scores), truth).sum() == 2
    assert right_flags(SceneBoxes(boxes[:1], np.array([2]), scores[:1]), truth).sum() == 0
    assert right_flags(SceneBoxes(np.zeros((0, 9)), np.zeros(0, int), np.zeros(0)), truth).sum() == 0
    close = (0.4, *BOX[1:])  # two things of one class: the second box takes the one that is left
    pair = SceneBoxes(np.array([BOX, close]), np.array([1, 1]))
    both = SceneBoxes(np.array([BOX, (0.1, *BOX[1:])]), np.array([1, 1]), np.array([0.9, 0.8]))
    assert right_flags(both, pair).sum() == 2


def test_figures_of_a_point_by_hand() -> None:
    point = Point(0.1, right=3, found=4, true=8)
    assert (point.precision, point.recall) == (0.75, 0.375)
    assert point.f1 == pytest.approx(0.5)
    nothing = Point(0.9, 0, 0, 8)
    assert nothing.precision == nothing.f1 == 0.0
    assert Calibration((point, Point(0.2, 3, 4, 8), nothing), 1, {}, 0.0).best.min_score == 0.2


def test_objects_are_those_that_a_perceptron_with_this_score_publishes(root: Path) -> None:
    scene = scene_of(root)
    inference = Predictor(small_network(small_config()), KNOWN, CELLS)
    predictions = predict_around(scene, inference, every=2)
    assert [look.now_ns for look in predictions] == [PERIOD_NS, 2 * PERIOD_NS, 3 * PERIOD_NS]  # after views 2, 4 and 5
    config = robot_config(len(scene.frames))
    scores = np.sort(np.concatenate([look.found.scores for look in predictions]))
    counts = []
    for row in (len(scores) - 5, len(scores) // 2):
        min_score = float(scores[row - 1 : row + 1].mean())  # between two scores: rounding must not decide
        inference.scores = ScorePolicy(min_score)
        perceptron, perceived = Perceptron(config, inference=inference), 0
        for step, frame in enumerate(scene.frames, start=1):
            perceptron.integrate(frame)
            if step in (2, 4, 5):
                perceived += 1
                perceptron.perceive(perceived * PERIOD_NS)
        expected = [o.as_dict() for o in perceptron.objects]
        found = final_map(predictions, config.objects.tracking, ScorePolicy(min_score))
        assert [o.as_dict() for o in found.objects((ObjectState.CONFIRMED,))] == expected
        counts.append(len(expected))
    assert counts[1] > 0


def knowing(scene: EvaluationScene, inference: Predictor, every: int) -> list[TimedPrediction]:
    """Looks of a network that knows everything with 0.5 to 0.9, and says as much that is wrong with 0.2."""
    truth = scene.truth()
    names = tuple(DETECTION_CLASSES[i] for i in truth.labels)
    wrong = truth.boxes + np.array([0.0, 0.0, 0.05, 0.9, 0.9, 0.9, 0, 0, 0])
    scores = np.concatenate([np.linspace(0.9, 0.5, len(names)), np.full(len(names), 0.2)])
    found = Detections(np.concatenate([truth.boxes, wrong]), scores, (*names, *("pillow",) * len(names)))
    return [dataclasses.replace(look, found=found) for look in predict_around(scene, inference, every)]


def test_the_score_parts_right_from_wrong_and_is_read_back(
    root: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(score_thresholds, "predict_around", knowing)
    before = load_checkpoint(weights)
    plugin = EntryPoint(
        "evaluate",
        "embodied_perceptron_training.evaluation.evaluate_command:register",
        "embodied_perceptron.commands",
    )
    app = build_app([plugin])
    out = tmp_path / "out"
    arguments = ["evaluate", "calibrate", "--data", str(root), "--weights", str(weights), "--workers", "1"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(out), "--write"])
    assert result.exit_code == 0, result.output
    assert "F1 %" in result.output
    figures = json.loads((out / "metrics.json").read_text())
    rows = list(csv.DictReader((out / "reliability.csv").open()))
    curves = {row["curve"].split(":")[0] for row in rows}
    assert curves == {"as published", "as calibrated"}
    told = [row for row in rows if row["curve"].startswith("as calibrated") and int(row["objects"])]
    assert {float(row["right"]) for row in told} == {1.0}
    if importlib.util.find_spec("matplotlib") is not None:
        assert (out / "reliability.png").read_bytes()[:4] == b"\x89PNG"
    assert "reliability: share of published objects that is right" in result.output
    assert figures["precision"] == 100.0
    assert figures["recall"] > 30.0  # small things overlap and merge, or lie where the few voxels are not
    assert 0.2 < figures["min_score"] <= 0.9
    after = load_checkpoint(weights)
    assert state_digest(after.state) == state_digest(before.state)
    assert after.config == before.config
    assert after.extra["calibration"]["grounding"] == {"kept": 1}
    stored = after.extra["calibration"]["detection"]
    assert stored["min_score"] == figures["min_score"]
    assert (stored["scenes"], stored["split"]) == (1, "val")
    policy = load_inference(weights).scores
    assert policy.publish == figures["min_score"]
    assert policy.even == stored["even_score"] > 0
    assert load_inference(weights, options=NetworkOptions(min_score=0.7)).scores == ScorePolicy(0.7, even=policy.even)


def test_without_writing_the_file_stays(root: Path, weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_thresholds, "predict_around", knowing)
    before = weights.read_bytes()
    found = calibrate(EvaluationSpec(str(root), "val", str(weights), ("detection",)), scores=(0.1, 0.4))
    assert [p.min_score for p in found.curve] == [0.1, 0.4]
    assert found.best.min_score == 0.4
    assert weights.read_bytes() == before


def test_what_cannot_be_calibrated_is_said(root: Path, weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = EvaluationSpec(str(root), "val", str(weights), ("detection",))
    with pytest.raises(ValueError, match="scores"):
        calibrate(spec, scores=(1.5,))
    with pytest.raises(ValueError, match="every"):
        calibrate(spec, every=0)
    monkeypatch.setattr(score_thresholds, "predict_around", lambda *_: [])
    with pytest.raises(EvaluationError, match="no object is right"):
        calibrate(spec)
    with pytest.raises(EvaluationError, match="add-weights"):
        score_thresholds.check_writable("tiny")
    with pytest.raises(EvaluationError, match="no weights file"):
        score_thresholds.check_writable("nowhere.safetensors")


def test_a_new_calibration_replaces_the_old_one(weights: Path) -> None:
    spec = EvaluationSpec("somewhere/homes", "val", str(weights), ("detection",))
    for score in (0.1, 0.3):
        write_calibration(weights, Calibration((Point(score, 3, 4, 8),), 2, {}, 0.0), spec)
    assert load_checkpoint(weights).extra["calibration"]["detection"] == {
        "min_score": 0.3,
        "precision": 0.75,
        "recall": 0.375,
        "f1": 0.5,
        "data": "homes",
        "split": "val",
        "scenes": 2,
        "views": 20,
        "even_score": 0.3,
        "score_error": 0.0,
    }


def test_a_wanted_precision_is_reached_by_the_lowest_score_or_nearly() -> None:
    curve = (Point(0.1, 30, 60, 50), Point(0.2, 25, 30, 50), Point(0.3, 18, 20, 50), Point(0.4, 0, 0, 50))
    assert Calibration(curve, 1, {}, 0.0).best.min_score == 0.2
    assert Calibration(curve, 1, {}, 0.0, precision=0.8).best.min_score == 0.2
    assert Calibration(curve, 1, {}, 0.0, precision=0.85).best.min_score == 0.3
    assert Calibration(curve, 1, {}, 0.0, precision=0.99).best.min_score == 0.3  # none reaches it
    with pytest.raises(ValueError, match="precision must be in"):
        calibrate(EvaluationSpec("x", "val", "y", ("detection",)), precision=1.5)


def test_the_lowest_precise_score_by_hand() -> None:
    pairs = [(0.9, True)] * 3 + [(0.5, True), (0.5, False)] + [(0.3, False)] * 5
    assert lowest_precise(pairs, 0.8, least=1) == 0.5  # four of five
    assert lowest_precise(pairs, 0.9, least=1) == 0.9
    assert lowest_precise(pairs, 0.9, least=4) is None  # too few to say so
    assert lowest_precise([], 0.1) is None


def test_scores_that_are_probabilities_have_no_error() -> None:
    honest = [(0.75, True)] * 3 + [(0.75, False)]
    assert calibration_error(honest) == pytest.approx(0.0)
    assert calibration_error([(1.0, True), (1.0, False)]) == pytest.approx(0.5)
    assert calibration_error([(0.25, True), (0.75, False)]) == pytest.approx(0.75)
    assert calibration_error([]) == 0.0


def test_a_reliability_curve_by_hand() -> None:
    curve = reliability_curve([(0.05, False), (0.62, True), (0.68, False), (0.66, True), (1.0, True)])
    assert [b.count for b in curve] == [1, 0, 0, 0, 0, 0, 3, 0, 0, 1]
    seven = curve[6]
    assert (seven.begin, seven.end) == pytest.approx((0.6, 0.7))
    assert (seven.score, seven.right) == pytest.approx((0.6533, 2 / 3), abs=1e-4)
    for p in (seven.low, seven.high):  # true shares of which 2 of 3 is 1.6449 standard deviations away
        assert abs(2 / 3 - p) == pytest.approx(1.6449 * np.sqrt(p * (1 - p) / 3))
    assert seven.low < 2 / 3 < seven.high
    assert (curve[0].right, curve[9].right) == (0.0, 1.0)
    assert all(0.0 <= b.low <= b.right <= b.high <= 1.0 for b in curve if b.count)
    assert [b.count for b in reliability_curve([])] == [0] * 10


def test_objects_whose_names_the_benchmark_lacks_are_neither_right_nor_wrong(
    root: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stranger(scene: EvaluationScene, inference: Predictor, every: int) -> list[TimedPrediction]:
        predictions = knowing(scene, inference, every)
        labels = [tuple("my crate" if n == "pillow" else n for n in look.found.labels) for look in predictions]
        return [
            dataclasses.replace(look, found=Detections(look.found.boxes, look.found.scores, names))
            for look, names in zip(predictions, labels, strict=True)
        ]

    spec = EvaluationSpec(str(root), "val", str(weights), ("detection",))
    monkeypatch.setattr(score_thresholds, "predict_around", stranger)
    (point,) = calibrate(spec, scores=(0.1,)).curve
    assert point.found == point.right == len(point.right_flags) > 0
    assert {len(scores) for scores in point.published} == {point.found}
    assert sum(b.count for b in reliability_curve(point.pairs(0.2))) == point.found


def test_flags_are_what_is_counted() -> None:
    moved, far = (0.3, *BOX[1:]), (3.0, *BOX[1:])
    truth = SceneBoxes(np.array([BOX, far]), np.array([1, 2]))
    found = SceneBoxes(np.array([BOX, moved, far, far]), np.array([1, 1, 1, 2]), np.array([0.5, 0.9, 0.8, 0.7]))
    assert right_flags(found, truth).tolist() == [False, True, False, True]
    assert right_flags(found, truth).sum() == 2


def test_things_without_a_name_count_by_place_and_their_score_is_shifted(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that calls half of what is there nothing but things, with 0.8, and with 0.3 what is not there."""

    def unsure(scene: EvaluationScene, inference: Predictor, every: int) -> list[TimedPrediction]:
        assert inference.naming is None  # all boxes, with scores as the network gives them, whatever the file says
        truth = scene.truth()
        names = [DETECTION_CLASSES[i] for i in truth.labels]
        half = len(names) // 2
        boxes = np.concatenate([truth.boxes, truth.boxes[:half] + np.array([0, 0, 9.0, 0, 0, 0, 0, 0, 0])])
        labels = (*(UNNAMED,) * half, *names[half:], *(UNNAMED,) * half)
        rest = len(names) - half
        scores = np.concatenate([np.linspace(0.95, 0.8, half), np.full(rest, 0.9), np.full(half, 0.3)])
        order = np.argsort(-scores, kind="stable")
        found = Detections(boxes[order], scores[order], tuple(labels[i] for i in order))
        predictions = predict_around(scene, inference, every)
        return [dataclasses.replace(look, found=found, step=len(scene.frames)) for look in predictions]

    config = small_config()
    assert config.detection is not None
    config = dataclasses.replace(config, detection=dataclasses.replace(config.detection, presence=True))
    path = tmp_path / "knows.safetensors"
    stored = {"detection": {"min_score": 0.2, "nameless_min_score": 0.6}}
    save_network(path, small_network(config), KNOWN, {"occupancy_classes": list(CELLS), "calibration": stored})
    assert load_inference(path).naming.shift < 0
    monkeypatch.setattr(score_thresholds, "predict_around", unsure)
    spec = EvaluationSpec(str(root), "val", str(path), ("detection",))
    found = calibrate(spec, scores=(0.1, 0.4), precision=0.8)
    assert found.nameless_min_score == pytest.approx(0.8)
    point = found.best
    assert point.found == point.right > 0  # those with a name alone
    assert point.things == point.things_right > 0
    assert len(point.right_flags) == point.found + point.things == sum(point.right_flags)
    assert {len(scores) for scores in point.published} == {len(point.right_flags)}
    assert point.even[0] == min(EVEN)  # everything is right: no score is too low to say so
    write_calibration(path, found, spec)
    naming = load_inference(path).naming
    assert naming.shift == pytest.approx(shift_between(found.nameless_min_score, point.min_score), abs=1e-3)
    known = ConfidenceCalibration((0.0,) * 8, {}, things=(0.0,) * 6).as_dict()
    stored["reliability"] = known
    path = tmp_path / "knows_things.safetensors"
    save_network(path, small_network(config), KNOWN, {"occupancy_classes": list(CELLS), "calibration": stored})
    assert load_inference(path).naming.shift == 0.0  # what has a probability of its own is not shifted
    spec = dataclasses.replace(spec, weights=str(path))
    assert calibrate(spec, scores=(0.1, 0.4), precision=0.8).nameless_min_score is None
