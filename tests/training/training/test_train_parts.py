"""Parts of the training loop: order of samples, averaged weights, schedules, groups of parameters, commands."""

from __future__ import annotations

import json
import math
import multiprocessing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import typer
from support.toy_task import ToyNetwork, ToySamples, ToyTask
from torch import nn
from typer.testing import CliRunner

from embodied_perceptron.apps.command_line import CommandError
from embodied_perceptron_training.training import tasks, train_command
from embodied_perceptron_training.training.data_order import Order, sample_stream
from embodied_perceptron_training.training.nested import to_device
from embodied_perceptron_training.training.optimization import AveragedModel, parameter_groups
from embodied_perceptron_training.training.state import torch_seed
from embodied_perceptron_training.training.training_run import TrainingRun


def taken(order: Order, batches: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for _, batch in zip(range(batches), order, strict=False):
        found += batch
    return found


def test_order_is_a_permutation_per_epoch_from_any_start() -> None:
    places = taken(Order(10, 4, seed=3), 10)
    for epoch in range(4):
        assert sorted(i for e, i in places if e == epoch) == list(range(10))
    assert places[:10] != [(0, i) for i in range(10)]
    assert [i for e, i in places if e == 0] != [i for e, i in places if e == 1]
    assert taken(Order(10, 4, seed=3, start=12), 7) == places[12:]
    assert taken(Order(10, 4, seed=4), 10) != places
    with pytest.raises(ValueError, match="training split has no samples"):
        Order(0, 4, seed=0)


def test_processes_share_the_order_of_one() -> None:
    together = taken(Order(10, 6, seed=0, start=6), 5)
    parts = [taken(Order(10, 2, seed=0, start=6, rank=r, world=3), 5) for r in range(3)]
    for batch in range(5):
        joined = [place for part in parts for place in part[2 * batch : 2 * batch + 2]]
        assert joined == together[6 * batch : 6 * batch + 6]


def test_samples_do_not_depend_on_workers() -> None:
    def stream(workers: int) -> Any:
        return sample_stream(ToySamples(), ToyTask().collate, Order(40, 4, seed=1, start=8), workers)

    with stream(0) as alone, stream(2) as ahead:
        for _ in range(6):
            a, b = next(alone), next(ahead)
            assert a.places == b.places
            assert torch.equal(a.data["x"], b.data["x"])


def test_workers_end_with_the_stream_whatever_happens() -> None:
    """Though they ignore the signals that stop a training."""
    before = {p.pid for p in multiprocessing.active_children()}
    workers: list[Any] = []

    def fail() -> None:
        with sample_stream(ToySamples(), ToyTask().collate, Order(40, 4, seed=1), 2) as batches:
            for _ in range(4):  # both workers are at work
                next(batches)
            workers.extend(p for p in multiprocessing.active_children() if p.pid not in before)
            for process in workers:
                process.terminate()
            next(batches)
            raise KeyError("a fault of the loop")

    with pytest.raises(KeyError):
        fail()
    assert len(workers) == 2
    assert not any(process.is_alive() for process in workers)


def test_seeds_of_steps_and_processes_differ() -> None:
    seeds = {torch_seed(seed, step, rank) for seed in range(3) for step in range(20) for rank in range(3)}
    assert len(seeds) == 180
    assert all(0 <= s < 2**63 for s in seeds)


def test_average_by_hand() -> None:
    model = ToyNetwork()
    average = AveragedModel(model, decay=0.5)
    weights, means, count = [], [], 0
    with torch.no_grad():
        for step in range(1, 4):
            model.out.weight.fill_(float(step))
            model.norm.running_mean.fill_(10.0 * step)
            model.norm.num_batches_tracked.fill_(7 * step)
            weights.append(float(step))
            means.append(10.0 * step)
            if step == 1:  # the first update already averages: with the initial weights, decay 2 / 11
                value, mean = average.module.out.weight.clone(), average.module.norm.running_mean.clone()
            decay = min(0.5, (1 + step) / (10 + step))
            value = decay * value + (1 - decay) * step
            mean = decay * mean + (1 - decay) * 10 * step
            average.update_parameters(model)
            count += 1
    torch.testing.assert_close(average.module.out.weight, value)
    torch.testing.assert_close(average.module.norm.running_mean, mean)
    assert int(average.module.norm.num_batches_tracked) == 21
    assert average.updates == count
    assert not average.module.training
    assert not any(p.requires_grad for p in average.module.parameters())
    plain = AveragedModel(model, decay=0.0)
    with torch.no_grad():
        model.out.weight.fill_(9.0)
    plain.update_parameters(model)
    assert float(plain.module.out.weight.detach()[0, 0]) == 9.0


def rate(run: TrainingRun, progress: float, step: int) -> float:
    return run.learning_rate(1) * run.schedule.factor(progress, step)


def test_schedules_by_hand() -> None:
    cosine = TrainingRun.from_values(steps=10, learning_rate=0.1, final_rate=0.2)
    assert rate(cosine, 0.0, 0) == pytest.approx(0.1)
    assert rate(cosine, 0.5, 5) == pytest.approx(0.1 * 0.6)
    assert rate(cosine, 1.0, 10) == pytest.approx(0.02)
    assert rate(cosine, 7.0, 10) == pytest.approx(0.02)
    paper = TrainingRun.from_values(epochs=12, learning_rate=1e-3, schedule="step")
    assert [rate(paper, epoch / 12, epoch) for epoch in (0, 7.9, 8, 10.9, 11)] == pytest.approx(
        [1e-3, 1e-3, 1e-4, 1e-4, 1e-5]
    )
    warm = TrainingRun.from_values(steps=10, learning_rate=0.4, schedule="constant", warmup_steps=3)
    assert [rate(warm, 0.0, step) for step in range(5)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])
    assert rate(warm, 0.03, 1) == pytest.approx(0.4 * 0.6)  # a short training does not end before it got going
    assert rate(warm, 0.05, 2) == pytest.approx(0.4)
    assert TrainingRun.from_values(epochs=3, batch=4, accumulate=2).total_steps(100, processes=2) == math.ceil(300 / 16)
    assert TrainingRun.from_values(steps=7).total_steps(100, 2) == 7
    assert TrainingRun.from_values(epochs=2, minutes=7).total_steps(100, 2) == 50


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "exactly one of steps, epochs must be positive, got none"),
        ({"steps": 3, "epochs": 2.0}, "got steps = 3, epochs = 2.0"),
        ({"steps": 3, "minutes": -2.0}, "minutes must be >= 0, got -2.0"),
        ({"steps": 3, "colour": 1}, "unknown training settings: colour"),
        ({"steps": 3, "batch": 0}, "batch must be positive, got 0"),
        ({"steps": 3, "clip": -1.0}, "clip must be >= 0, got -1.0"),
        ({"steps": 3, "ema_decay": 1.5}, "ema_decay must lie in"),
        ({"steps": 3, "schedule": "linear"}, "schedule must be one of"),
        ({"steps": 3, "precision": "int8"}, "precision must be one of"),
    ],
)
def test_settings_that_make_no_sense(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainingRun.from_values(**values)


def test_settings_survive_json() -> None:
    run = TrainingRun.from_values(
        steps=3, rate_scales=(("encoder", 0.1),), milestones=(0.5,), data=Path("homes"), repeat=3
    )
    stored = json.loads(json.dumps(run.to_json()))
    assert TrainingRun.from_json(stored) == run
    assert stored["request"]["options"] == {"repeat": "3"}
    with pytest.raises(ValueError, match="unknown training settings: colour"):
        TrainingRun.from_json({"request": {}, "settings": {"steps": 1, "colour": 2}})
    with pytest.raises(ValueError, match="unknown training settings: colour"):
        TrainingRun.from_json({"request": {"colour": 2}, "settings": {"steps": 1}})


# run.json as version 0.1 wrote it, every field of its 60 that was not None
EARLIER = json.loads("""
{"request": {"task": "multi", "preset": "tiny", "data": "/homes/train", "val": "/homes/val", "modality": "rgbd",
  "variant": "ours", "box_loss": "plain", "views": 12, "truth_views": 0, "weights": null, "seed": 7,
  "options": {"images": "imagenet", "classes": "all", "repeat": "2", "balance": "0.15", "turns": "any",
   "site_noise": "0.25", "pictures": "1", "looks": "3", "also": "/homes/more", "w_occupancy": "0.3", "learn": "all"}},
 "settings": {"steps": 500, "epochs": 0.0, "minutes": 0.0, "batch": 4, "accumulate": 2, "learning_rate": 0.0006,
  "weight_decay": 0.01, "betas": [0.9, 0.99], "rate_scales": [["image_encoder", 0.5]], "schedule": "step",
  "final_rate": 0.0, "milestones": [0.5, 0.75], "gamma": 0.1, "warmup_steps": 20, "clip": 10.0, "ema_decay": 0.99,
  "precision": "float32", "freeze_norms": true, "seed": 7, "workers": 3, "validations": 4, "validate_first": false,
  "checkpoint_s": 60.0, "log_every": 5, "max_bad_steps": 10, "max_corrupt_share": 0.01, "device": "cpu"}}
""")


def test_runs_of_earlier_versions_load_and_are_written_alike() -> None:
    run = TrainingRun.from_json(EARLIER)
    assert run.data.training_folders == [Path("/homes/train"), Path("/homes/more")]
    assert (run.data.repeat_factor_threshold, run.augmentation.motion, run.samples.predicted_windows) == (
        0.15,
        "any",
        3,
    )
    assert (run.optimisation.rate_scales, run.optimisation.betas) == ((("image_encoder", 0.5),), (0.9, 0.99))
    assert (run.schedule.shape, run.schedule.milestones, run.validation.count) == ("step", (0.5, 0.75), 4)
    assert (run.losses.box_loss, run.losses.occupancy, run.execution.workers) == ("plain", 0.3, 3)
    written = json.loads(json.dumps(run.to_json()))
    defaults = {"learn": "all"}
    options = {k: v for k, v in EARLIER["request"]["options"].items() if k not in defaults}
    assert written["settings"] == {**EARLIER["settings"], "reference_batch": 0}  # which came later
    assert written["request"] == {**EARLIER["request"], "options": options}


def test_runs_whose_length_was_a_time_get_the_presets() -> None:
    timed = {**EARLIER, "settings": {**EARLIER["settings"], "steps": 0, "minutes": 42.0}}
    run = TrainingRun.from_json(timed)
    assert (run.schedule.steps, run.schedule.epochs, run.execution.minutes) == (0, 24.0, 42.0)
    assert TrainingRun.from_json(timed, steps=9).schedule.steps == 9


def test_minutes_alone_leave_the_length_to_the_preset() -> None:
    run = TrainingRun.of({}, task="multi", minutes=60.0)
    assert (run.schedule.epochs, run.execution.minutes) == (24.0, 60.0)
    assert TrainingRun.of({}, task="multi", minutes=60.0, steps=30).schedule.epochs == 0


def test_every_field_has_one_flat_name() -> None:
    values = TrainingRun.of({}, task="multi").values()
    assert {"data", "balance", "looks", "turns", "size", "schedule", "validations", "validate_first"} < set(values)
    changed = TrainingRun.from_values(**values).replaced(batch=7, balance=0.5, seed=3)
    assert (changed.optimisation.batch, changed.data.repeat_factor_threshold, changed.seed) == (7, 0.5, 3)
    assert {k: v for k, v in changed.values().items() if v != values[k]} == {"batch": 7, "balance": 0.5, "seed": 3}


def test_defaults_are_complete_and_the_papers() -> None:
    for preset in ("tiny", "base", "paper"):
        for task in ("detection", "continuous-detection", "monocular-detection", "occupancy", "grounding", "multi"):
            TrainingRun.of({}, task=task, preset=preset)
    paper = TrainingRun.of({}, task="detection", preset="paper")
    steps = paper.optimisation
    assert (steps.learning_rate, steps.weight_decay, steps.clip, steps.ema_decay) == (1e-3, 1e-4, 10.0, 0.0)
    assert TrainingRun.of({}, task="continuous-detection", preset="paper").optimisation.learning_rate == 2e-4
    occupancy = TrainingRun.of({}, task="occupancy", preset="paper")
    assert (occupancy.optimisation.learning_rate, occupancy.optimisation.weight_decay) == (1e-4, 0.01)
    assert occupancy.schedule.epochs == 24.0


def test_vectors_do_not_decay() -> None:
    model = ToyNetwork()
    groups = parameter_groups(model, 0.3, (("out", 0.1),))
    names = {id(p): n for n, p in model.named_parameters()}
    found = {(g["scale"], g["weight_decay"]): sorted(names[id(p)] for p in g["params"]) for g in groups}
    assert found == {
        (1.0, 0.3): ["hidden.weight", "unused.weight"],
        (1.0, 0.0): ["hidden.bias", "norm.bias", "norm.weight", "unused.bias"],
        (0.1, 0.3): ["out.weight"],
        (0.1, 0.0): ["out.bias"],
    }
    with pytest.raises(ValueError, match="no parameter that learns starts with backbone"):
        parameter_groups(model, 0.3, (("backbone", 0.1),))
    with pytest.raises(ValueError, match="no parameter of the model requires"):
        parameter_groups(nn.Linear(2, 2).requires_grad_(False), 0.3, ())


def test_batches_of_any_shape_are_moved() -> None:
    class Pair(NamedTuple):
        a: torch.Tensor
        b: int

    @dataclass(frozen=True)
    class Sample:
        x: torch.Tensor
        name: str

    t = torch.zeros(2)
    moved = to_device({"p": Pair(t, 3), "s": [Sample(t, "n")], "t": (t, None)}, "meta")
    assert moved["p"].a.device.type == "meta"
    assert moved["p"].b == 3
    assert moved["s"][0].x.device.type == "meta"
    assert moved["s"][0].name == "n"
    assert moved["t"][0].device.type == "meta"
    assert moved["t"][1] is None


# -- the command


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[TrainingRun]:
    """What ``build_task`` was asked for; it gives toys, of which every other one is interrupted in step 3."""
    asked: list[TrainingRun] = []

    def build_task(run: TrainingRun, kept: object = None) -> ToyTask:
        asked.append(run)
        return ToyTask(signal_at=3 if len(asked) == 1 else 0)

    monkeypatch.setattr(tasks, "build_task", build_task)
    return asked


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.command("train")(train_command.train)
    app.command("nothing")(lambda: None)
    return app


def test_command_trains_stops_and_resumes(tmp_path: Path, requests: list[TrainingRun], app: typer.Typer) -> None:
    out = tmp_path / "run"
    arguments = ["--task", "multi", "--data", str(tmp_path), "--out", str(out), "--steps", "6", "--batch", "4"]
    more = ["--workers", "0", "--validations", "1", "--views", "5", "--set", "images=a=b", "--quiet", "--seed", "4"]
    result = CliRunner().invoke(app, ["train", *arguments, *more])
    assert result.exit_code == train_command.EXIT_STOPPED
    assert "resume.sh" in result.output
    expected = {"task": "multi", "data": tmp_path.resolve(), "seed": 4, "views": 5, "steps": 6, "batch": 4}
    expected |= {"workers": 0, "validations": 1}
    assert requests[0] == TrainingRun.of({"images": "a=b"}, **expected)
    again = CliRunner().invoke(app, ["train", "--resume", str(out), "--quiet"])
    assert again.exit_code == 0, again.output
    assert "finished after 6 steps, best figure" in again.output
    assert requests[1] == requests[0]
    run = json.loads((out / "run.json").read_text())
    assert run["settings"]["steps"] == 6
    assert run["settings"]["seed"] == 4
    assert len(run["resumed"]) == 1
    steps = [json.loads(line)["step"] for line in (out / "log.jsonl").read_text().splitlines()]
    assert max(steps) == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "detection", "--steps", "2"], "--data, --out must be given"),
        (["--task", "cooking", "--data", ".", "--out", "OUT", "--steps", "2"], "task must be one of"),
        (["--task", "multi", "--data", ".", "--out", "OUT", "--set", "colour"], "--set needs name=value"),
        (["--task", "multi", "--data", ".", "--out", "OUT", "--steps", "1", "--epochs", "1"], "exactly one of"),
        (["--resume", "OUT"], "holds no run"),
    ],
)
def test_command_says_what_is_wrong(
    tmp_path: Path, requests: list[TrainingRun], app: typer.Typer, arguments: list[str], message: str
) -> None:
    filled = [str(tmp_path / "run") if a == "OUT" else a for a in arguments]
    result = CliRunner().invoke(app, ["train", *filled])
    assert isinstance(result.exception, CommandError)
    assert message in str(result.exception)


def test_a_resumed_run_keeps_its_settings(tmp_path: Path, requests: list[TrainingRun], app: typer.Typer) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"request": {}, "settings": {}}))
    result = CliRunner().invoke(app, ["train", "--resume", str(tmp_path), "--batch", "3", "--steps", "9"])
    assert "batch cannot be changed" in str(result.exception)
