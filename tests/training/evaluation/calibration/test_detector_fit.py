"""The fit of the detector model: hypotheses drawn from a known model recover it, and its probabilities hold."""

from __future__ import annotations

import json
from importlib.resources import files

import numpy as np
import pytest
from support.onnx_files import write_constant_model
from support.small_recording import write_recording
from typer.testing import CliRunner

from embodied_perceptron.apps import cli
from embodied_perceptron.apps.command_line import CommandError
from embodied_perceptron.config import LiftOptions
from embodied_perceptron.detection2d.detectors import DetectorFileError
from embodied_perceptron.detection2d.fusion import Hypothesis
from embodied_perceptron.detection2d.loading import lift_from_options
from embodied_perceptron.inference.posterior import (
    ANY_DETECTOR,
    FEATURES,
    NOTHING,
    DetectorConfusions,
    DetectorModel,
    Evidence,
)
from embodied_perceptron.results import UNNAMED
from embodied_perceptron_training.evaluation.calibration import detector_fit
from embodied_perceptron_training.evaluation.calibration.detector_fit import (
    DetectorCounts,
    HomeRecord,
    LabelledHypothesis,
    Truth,
    cross_validated,
    fit_weights,
    true_state,
    with_subsets,
)

NAMES = ("chair", "couch", "tv")
COUNTED = DetectorConfusions(
    things=dict.fromkeys(NAMES, 100),
    reported={name: {name: 60, other: 10} for name, other in zip(NAMES, ("couch", "chair", "chair"), strict=True)},
)
TRUE = dict(zip(FEATURES, (1.0, 0.8, 0.5, 1.0, 0.3, -1.0, -1.5), strict=True))


def drawn(count, seed=0):
    """Places whose true states are drawn from the posterior of :data:`TRUE`."""
    rng, model, places = np.random.default_rng(seed), DetectorModel(TRUE, {ANY_DETECTOR: COUNTED}), []
    for _ in range(count):
        exists, share = rng.uniform(0.05, 0.95), rng.uniform(0.1, 0.9)
        prior = {str(rng.choice(NAMES)): exists * share, UNNAMED: exists * (1 - share)}
        known = None if rng.uniform() < 0.3 else prior
        speaks = known is None or rng.uniform() < 0.6
        said = {str(rng.choice(NAMES)): (int(rng.integers(1, 7)), float(rng.uniform(0.3, 0.95)))} if speaks else {}
        evidence = (Evidence("any", said),) if said else ()
        plausible = {name: float(-rng.exponential(1.0)) for name in said}
        place = Hypothesis(
            np.zeros(0, np.int64), (), np.array([0, 0, 0, 1, 1, 1, 0, 0, 0.0]), known, evidence, plausible
        )
        posterior = model.posterior(known, evidence, plausible)
        states = [*posterior, NOTHING]
        p = np.array([*posterior.values(), max(0.0, 1.0 - sum(posterior.values()))])
        places.append(LabelledHypothesis(place, str(rng.choice(states, p=p / p.sum())), 1.0))
    return places


def counts():
    found = DetectorCounts.none()
    for name in NAMES:
        found.things[name] += 100
        found.reported[name].update(COUNTED.reported[name])
    return {"any": found}


@pytest.fixture(scope="module")
def places():
    return drawn(4000)


def test_the_weights_that_drew_the_places_come_back(places):
    fitted = fit_weights(places, DetectorModel(dict.fromkeys(FEATURES, 0.0), {ANY_DETECTOR: COUNTED}))
    for name in FEATURES:
        assert fitted[name] == pytest.approx(TRUE[name], abs=0.35), name


def test_probabilities_are_reliable_on_homes_that_were_left_out(places):
    homes = [HomeRecord(places[k::4], counts()) for k in range(4)]
    report = cross_validated(homes)
    assert len(report.curve) == 5
    for weight, promised, right in report.curve:
        assert right == pytest.approx(promised, abs=0.05 + 1.0 / np.sqrt(weight))
    network, together = report.log_loss
    assert together < network - 0.1


def test_the_shipped_model_was_reliable_where_it_was_measured():
    shipped = json.loads((files("embodied_perceptron.inference") / "witnesses.json").read_text(encoding="utf-8"))
    measured = shipped["measured"]
    assert "calibrate-witnesses" in shipped["source"]
    assert measured["homes"] >= 10
    assert measured["log_loss"]["all"] < measured["log_loss"]["network"] - 0.1
    weight = np.array([row[0] for row in measured["reliability"]])
    gap = np.array([abs(row[1] - row[2]) for row in measured["reliability"]])
    assert (weight * gap).sum() / weight.sum() < 0.06  # mean gap between what is promised and what is right


def test_each_detector_alone_is_fitted_too():
    box = np.array([0.0, 0.0, 0.5, 1.0, 1.0, 1.0, 0, 0, 0])
    evidence = (Evidence("a", {"tv": (1, 0.5)}), Evidence("b", {"chair": (2, 0.5)}))
    alone = LabelledHypothesis(Hypothesis(np.zeros(0, np.int64), (), box, None, evidence, {}), "tv", 3.0)
    subsets = with_subsets([alone])
    assert [tuple(one.source for one in s.hypothesis.evidence) for s in subsets] == [("a", "b"), ("a",), ("b",)]
    assert [s.true for s in subsets] == ["tv", "tv", UNNAMED]
    assert [s.weight for s in subsets] == [1.0, 1.0, 1.0]


def test_truth_is_what_a_box_lies_on_under_a_name_that_is_said():
    box = np.array([0.0, 0.0, 0.5, 1.0, 1.0, 1.0, 0, 0, 0])
    evidence = (Evidence("any", {"tv": (1, 0.5)}),)
    place = Hypothesis(np.zeros(1, np.int64), (), box, {"chair": 0.5}, evidence, {})
    aside = box + 0.3 * np.eye(9)[0]
    assert true_state(place, Truth(np.stack([box, aside]), ("lamp", "tv"))) == "tv"
    assert true_state(place, Truth(np.stack([aside]), ("lamp",))) == UNNAMED
    assert true_state(place, Truth(box[None] + 5.0 * np.eye(9)[:1], ("chair",))) == NOTHING
    assert true_state(place, Truth(np.zeros((0, 9)), ())) == NOTHING


def chair_everywhere(path):
    """A file of the layout yolov8 that sees one chair in the middle of every picture."""
    table = np.zeros((84, 315), np.float32)
    table[:4, 5] = [80, 48, 60, 50]
    table[4 + 56, 5] = 0.8
    return write_constant_model(path, {"output0": table[None]})


def calibrate(model, out, *recordings, layout="yolov8"):
    arguments = [*map(str, recordings), "--detector", str(model), "--detector-layout", layout, "--out", str(out)]
    app = cli.build_app()
    return CliRunner().invoke(app, ["evaluate", "calibrate-witnesses", *arguments])


def test_the_command_writes_what_a_lift_reads(places, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    homes = [tmp_path / "a", tmp_path / "b"]
    for home in homes:
        home.mkdir()
    of = {home: HomeRecord(places[k::2], {"yolov8": DetectorCounts.none()}) for k, home in enumerate(homes)}
    monkeypatch.setattr(detector_fit, "record_home", lambda folder, *_: of[folder])
    model, out = chair_everywhere(tmp_path / "net.onnx"), tmp_path / "witnesses.json"
    done = calibrate(model, out, *homes)
    assert done.exit_code == 0, done.output
    options = LiftOptions(detector=str(model), layout="yolov8", witnesses=str(out))
    lift = lift_from_options(options)
    assert lift is not None
    assert set(lift.detector_model.detectors) == {"yolov8", ANY_DETECTOR}
    assert lift.detector_model.weights["score"] == pytest.approx(TRUE["score"], abs=0.3)
    out.write_text("{}")
    with pytest.raises(DetectorFileError, match=r"witnesses\.json: not a detector model"):
        lift_from_options(LiftOptions(detector=str(model), layout="yolov8", witnesses=str(out)))


def test_the_command_names_what_it_cannot_use(tmp_path):
    pytest.importorskip("onnxruntime")
    model, out = chair_everywhere(tmp_path / "net.onnx"), tmp_path / "witnesses.json"
    real = write_recording(tmp_path / "room", count=3)
    (tmp_path / "other").mkdir()
    for recordings, reason in (
        ((real,), "two different"),
        ((real, real), "two different"),
        ((real, tmp_path / "other"), "room"),
    ):
        done = calibrate(model, out, *recordings)
        assert isinstance(done.exception, CommandError), done.output
        assert reason in str(done.exception)
    assert not out.exists()


def test_silent_detectors_are_nothing_to_fit():
    with pytest.raises(ValueError, match="nothing to fit"):
        fit_weights([], DetectorModel(TRUE, {ANY_DETECTOR: COUNTED}))


@pytest.mark.slow
def test_two_small_homes_end_to_end(tmp_path):
    pytest.importorskip("onnxruntime")
    app = cli.build_app()
    homes = []
    for seed in ("3", "5"):
        homes.append(tmp_path / seed)
        drawn = [
            "--seed",
            seed,
            "--frames",
            "12",
            "--fps",
            "3",
            "--size",
            "160x120",
            "--workers",
            "1",
            "--version",
            "2",
        ]
        done = CliRunner().invoke(app, ["generate", "--drive", "--out", str(homes[-1]), *drawn])
        assert done.exit_code == 0, done.output
    model, out = chair_everywhere(tmp_path / "net.onnx"), tmp_path / "witnesses.json"
    done = calibrate(model, out, *homes)
    assert done.exit_code == 0, done.output
    assert json.loads(out.read_text())["measured"]["homes"] == 2
    done = calibrate(model, out, *homes, layout="yolox")
    assert isinstance(done.exception, CommandError)
    assert "layout yolox: expected" in str(done.exception)
