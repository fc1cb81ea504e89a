"""The training loop: exact resume, signals, bad data, bad disks, bad numbers."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from support.toy_task import ToyTask

from embodied_perceptron.weights.checkpoint import CheckpointError, read_tensors
from embodied_perceptron_training.training import state, trainer
from embodied_perceptron_training.training.run_folder import RunFolder, RunFolderError
from embodied_perceptron_training.training.trainer import Trainer, TrainingError, TrainingOutcome
from embodied_perceptron_training.training.training_run import TrainingRun


def started(work: Any, *arguments: Any) -> Any:
    """A process of its own; spawned, for a fork of a process with threads may stand still."""
    process = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
    process.start()
    return process


def settings(**changes: Any) -> TrainingRun:
    defaults = {"steps": 24, "batch": 4, "workers": 0, "learning_rate": 0.02, "warmup_steps": 3, "validations": 2}
    defaults["validate_first"] = False
    return TrainingRun.from_values(**{**defaults, **changes})


def trained(
    folder: Path, task: ToyTask | None = None, resume: bool = False, **changes: Any
) -> tuple[Trainer, TrainingOutcome]:
    run = RunFolder(folder, pictures=False)
    mine = Trainer(task or ToyTask(dropout=0.2), settings(**changes), run, quiet=True)
    return mine, mine.run(resume)


def lines(folder: Path, event: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line for line in found if line["event"] == event]


def timeless(folder: Path, event: str) -> list[dict[str, Any]]:
    clocks = ("elapsed_s", "waiting", "seconds")
    return [{k: v for k, v in line.items() if k not in clocks} for line in lines(folder, event)]


def assert_same(a: torch.nn.Module, b: torch.nn.Module) -> None:
    first, second = a.state_dict(), b.state_dict()
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def assert_same_training(a: Trainer, b: Trainer) -> None:
    """Weights, averages and moments, bit by bit."""
    assert_same(a.model, b.model)
    assert_same(a.average.module, b.average.module)
    first, second = a.optimizer.state_dict(), b.optimizer.state_dict()
    assert first["param_groups"] == second["param_groups"]
    assert first["state"].keys() == second["state"].keys()
    for index, values in first["state"].items():
        for key, value in values.items():
            assert torch.equal(value, second["state"][index][key])


# -- interruption


@pytest.mark.parametrize(("workers", "accumulate"), [(0, 1), (2, 3)])
def test_interrupted_is_the_same_as_not(tmp_path: Path, workers: int, accumulate: int) -> None:
    """SIGTERM in the middle of an epoch, resumed by fresh objects with other initial weights."""
    changes = {"workers": workers, "accumulate": accumulate, "log_every": 5}
    whole, outcome = trained(tmp_path / "whole", **changes)
    assert outcome.finished
    assert outcome.steps == 24
    cut, first = trained(tmp_path / "cut", ToyTask(dropout=0.2, signal_at=13 * accumulate), **changes)
    assert not first.finished
    assert first.steps == 13  # the step during which the signal came was completed, and no other
    assert cut.counters.position == 13 * 4 * accumulate
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL  # the handler went with the run
    resumed, second = trained(tmp_path / "cut", ToyTask(seed=99, dropout=0.2), resume=True, **changes)
    assert second.finished
    assert second.steps == 24
    assert second.best == outcome.best
    assert_same_training(resumed, whole)
    for event in ("train", "validation"):
        assert timeless(tmp_path / "whole", event) == timeless(tmp_path / "cut", event)


@pytest.mark.slow
def test_a_signal_to_all_processes_stops_the_loop_alone(tmp_path: Path) -> None:
    """As a terminal's Ctrl-C or a scheduler's SIGTERM reaches them: the workers must not die under the loop."""

    process = started(_signalled, tmp_path)
    process.join(120)
    assert process.exitcode == 0
    _, outcome = trained(tmp_path, resume=True)
    assert outcome.finished


class _SignalsAll(ToyTask):
    def losses(self, *args: Any) -> Any:
        if len(self.seen) == 5:
            os.killpg(0, signal.SIGTERM)
            os.killpg(0, signal.SIGINT)
        return super().losses(*args)


def _signalled(folder: Path) -> None:
    os.setpgrp()
    code = 1
    try:
        _, outcome = trained(folder, _SignalsAll(), workers=2)
        code = 0 if not outcome.finished and outcome.steps == 6 else 2
    finally:
        os._exit(code)


class _Dies(ToyTask):
    def losses(self, *args: Any) -> Any:
        if len(self.seen) == 10:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().losses(*args)


def _die(folder: Path) -> None:
    mine = Trainer(_Dies(dropout=0.2), settings(log_every=2), RunFolder(folder, pictures=False))
    plain = mine._save_when_due
    mine._save_when_due = lambda: mine._save() if mine.counters.step == 7 else plain()  # type: ignore[method-assign]
    mine.run()


def test_killed_is_the_same_as_not(tmp_path: Path) -> None:
    """SIGKILL: nothing of the process survives but its last checkpoint, three steps back; log lines after it go."""
    whole, _ = trained(tmp_path / "whole", ToyTask(dropout=0.2), log_every=2)

    process = started(_die, tmp_path / "cut")
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    assert [line["step"] for line in lines(tmp_path / "cut", "train")] == [2, 4, 6, 8, 10]
    resumed, outcome = trained(tmp_path / "cut", ToyTask(seed=1, dropout=0.2), resume=True, log_every=2)
    assert outcome.finished
    assert resumed.task.seen[0] == whole.task.seen[7]  # type: ignore[attr-defined]
    assert_same_training(resumed, whole)
    assert timeless(tmp_path / "cut", "train") == timeless(tmp_path / "whole", "train")


class Clock:
    """Goes on by a second each time it is looked at."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now


def test_minutes_stop_a_training_and_shape_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut by its minutes again and again, it is the uninterrupted training to the byte: weights, moments, log."""
    changes = {"log_every": 1, "checkpoint_s": 1e9}
    whole, _ = trained(tmp_path / "whole", **changes)
    clock = Clock()
    monkeypatch.setattr(trainer, "time", clock)
    said: list[str] = []
    monkeypatch.setattr(trainer.Progress, "say", lambda _, text: said.append(text))
    first, outcome = trained(tmp_path / "cut", minutes=0.2, **changes)
    assert (outcome.finished, outcome.stopped) == (False, trainer.MINUTES)
    assert 12 <= first.counters.elapsed_s < 20
    assert 0 < outcome.steps < 24
    assert said[0].startswith("the schedule runs over 24 steps (2.4 passes over 40 samples); after 0.2 minutes")
    assert lines(tmp_path / "cut", "stopped")[0]["reason"] == trainer.MINUTES
    starts = 1
    while not outcome.finished:
        clock.now += 1e6  # a pause
        before = outcome.steps
        second, outcome = trained(tmp_path / "cut", ToyTask(seed=9, dropout=0.2), resume=True, minutes=0.2, **changes)
        assert outcome.steps > before  # each start has its own minutes
        starts += 1
    assert starts > 2
    assert outcome.stopped == ""
    assert_same_training(second, whole)
    for event in ("train", "validation"):
        assert timeless(tmp_path / "cut", event) == timeless(tmp_path / "whole", event)
    states = [read_tensors(tmp_path / name / "state.safetensors")[0] for name in ("whole", "cut")]
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        assert value.numpy().tobytes() == states[1][name].numpy().tobytes(), name


def test_finished_runs_stay_finished_and_may_be_prolonged(tmp_path: Path) -> None:
    first, _ = trained(tmp_path)
    with pytest.raises(RunFolderError, match="already holds a run"):
        trained(tmp_path)
    again, outcome = trained(tmp_path, resume=True)
    assert outcome.finished
    assert outcome.steps == 24
    assert_same(again.model, first.model)
    _, longer = trained(tmp_path, resume=True, steps=30)
    assert longer.steps == 30


def test_a_run_that_ended_before_its_first_checkpoint_starts_again(tmp_path: Path) -> None:
    class EndsEarly(ToyTask):
        def losses(self, *args: Any) -> Any:
            if len(self.seen) == 4:
                raise MemoryError
            return super().losses(*args)

    with pytest.raises(MemoryError):
        trained(tmp_path, EndsEarly(), log_every=1)
    assert [line["step"] for line in lines(tmp_path, "train")] == [1, 2, 3, 4]
    _, outcome = trained(tmp_path, resume=True, log_every=1)
    assert outcome.finished
    assert [line["step"] for line in lines(tmp_path, "train")] == list(range(1, 25))


def _hold(folder: Path, connection: Any) -> None:
    mine = RunFolder(folder, pictures=False)
    mine.open({}, resume=False)
    connection.send("locked")
    connection.recv()
    mine.close()


@pytest.mark.slow
def test_a_folder_belongs_to_one_process(tmp_path: Path) -> None:
    here, connection = multiprocessing.Pipe()
    process = started(_hold, tmp_path, connection)
    try:
        assert here.recv() == "locked"
        with pytest.raises(RunFolderError, match="another process"):
            trained(tmp_path)
    finally:
        here.send("go")
        process.join(100)


def test_states_of_other_networks_are_refused(tmp_path: Path) -> None:
    trained(tmp_path, steps=1)
    task = ToyTask()
    task.model.extra = torch.nn.Linear(2, 2)
    with pytest.raises(CheckpointError, match="another network"):
        trained(tmp_path, task, resume=True)
    (tmp_path / "state.safetensors").write_bytes((tmp_path / "state.safetensors").read_bytes()[:100])
    with pytest.raises(CheckpointError, match="damaged"):
        trained(tmp_path, resume=True)


# -- what goes wrong


def test_corrupt_samples_are_skipped_and_named(tmp_path: Path) -> None:
    task = ToyTask(count=150, corrupt=[7])
    mine, outcome = trained(tmp_path, task, steps=90)  # more than two epochs
    assert outcome.finished
    assert mine.counters.corrupt >= 2  # once in each epoch
    assert mine.counters.corrupt_names in ([], ["scene 7"])
    assert {(c["sample"], c["reason"]) for c in lines(tmp_path, "corrupt")} == {
        ("scene 7", "its depth image is missing")
    }
    assert all(len(batch) == 4 and 7 not in batch for batch in task.seen)  # another one took its place


def test_too_many_corrupt_samples_end_it(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"2 of an epoch's 150 .* more than 1 %: scene \d+, scene \d+"):
        trained(tmp_path, ToyTask(count=150, corrupt=[7, 8]), steps=90)
    with pytest.raises(TrainingError, match="3 of an epoch's 3 samples"):
        trained(tmp_path / "all", ToyTask(count=3, corrupt=[0, 1, 2]), steps=9)


def test_steps_that_are_not_finite_are_skipped(tmp_path: Path) -> None:
    """Neither weights nor averages nor the statistics of norms are touched by NaN."""
    mine, outcome = trained(tmp_path, ToyTask(poisoned=[5]), steps=24)
    assert outcome.finished
    skipped = lines(tmp_path, "skipped")
    assert len(skipped) == mine.counters.skipped in (2, 3)  # once in each epoch of ten steps
    assert all(s["terms"] == ["square", "absolute"] for s in skipped)
    assert all(any(index == 5 for _, index in s["samples"]) for s in skipped)
    for model in (mine.model, mine.average.module):
        assert all(bool(torch.isfinite(v).all()) for v in model.state_dict().values())
    steps = {int(v["step"]) for v in mine.optimizer.state_dict()["state"].values()}
    assert steps == {24 - mine.counters.skipped}


def test_nothing_but_nan_ends_it(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"5 steps in a row .*square.*step 5"):
        trained(tmp_path, ToyTask(poisoned=range(40)), max_bad_steps=5)


class FullDisk:
    """Writing states fails from call ``first`` until call ``last``."""

    def __init__(self, first: int, last: int) -> None:
        self.calls, self.first, self.last = 0, first, last
        self.write = state.save_file

    def __call__(self, tensors: Any, path: str, metadata: Any = None) -> None:
        self.calls += 1
        if self.first <= self.calls <= self.last:
            Path(path).write_bytes(b"half a file")
            raise OSError(28, "No space left on device", path)
        self.write(tensors, path, metadata=metadata)


def test_full_disk_leaves_the_old_checkpoint_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = trained(tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(state, "save_file", FullDisk(4, 1000))
        with pytest.raises(TrainingError, match=r"could not be written.*No space left.*previous checkpoint.*complete"):
            trained(tmp_path / "cut", checkpoint_s=0, validations=0)
    assert lines(tmp_path / "cut", "checkpoint failed")[0]["step"] == 4
    assert not list((tmp_path / "cut").glob(".*.tmp"))
    resumed, outcome = trained(tmp_path / "cut", resume=True)
    assert outcome.finished
    assert resumed.task.seen[0] == whole.task.seen[3]  # type: ignore[attr-defined]
    assert_same_training(resumed, whole)


def test_full_disk_of_log_and_board_ends_nothing(tmp_path: Path) -> None:
    class FullBoard:
        def add_scalar(self, *_: Any) -> None:
            raise OSError(28, "No space left on device")

    folder = RunFolder(tmp_path, pictures=False)
    folder._board = FullBoard()
    with pytest.warns(UserWarning, match="TensorBoard's file cannot be written"):
        folder.scalars({"loss": 1.0}, 3)
    folder.scalars({"loss": 1.0}, 4)
    path, folder.log_path = folder.log_path, tmp_path / "missing" / "log.jsonl"
    with pytest.warns(UserWarning, match="cannot be written"):
        folder.log({"step": 1})
    folder.log_path = path
    folder.log({"step": 2, "loss": float("nan")})
    assert folder.lines() == [{"step": 1}, {"step": 2, "loss": "nan"}]  # late, but all there


def test_full_disk_for_a_while_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = trained(tmp_path / "whole")
    disk = FullDisk(2, 5)
    monkeypatch.setattr(state, "save_file", disk)
    monkeypatch.setattr(trainer, "_RETRY_S", 0.0)
    mine, outcome = trained(tmp_path / "cut", checkpoint_s=0)
    assert outcome.finished
    assert len(lines(tmp_path / "cut", "checkpoint failed")) == 4
    assert_same_training(mine, whole)


# -- what it learns and writes


def test_learns_and_writes(tmp_path: Path) -> None:
    """With pictures, where their packages are installed."""
    mine = Trainer(ToyTask(), settings(steps=200), tmp_path, information={"command": "train"}, quiet=True)
    outcome = mine.run()
    assert outcome.best is not None
    assert outcome.best > -0.5
    start = ToyTask()
    assert start.validate(start.model.eval())["score"] < -3.0
    losses = [line["loss"] for line in lines(tmp_path, "train")]
    assert losses[-1] < 0.25 * losses[0]
    assert [line["step"] for line in lines(tmp_path, "validation")] == [100, 200]
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["settings"]["steps"] == 200
    assert run["command"] == "train"
    assert {"best.safetensors", "last.safetensors", "state.safetensors"} <= {p.name for p in tmp_path.iterdir()}
    assert os.access(tmp_path / "resume.sh", os.X_OK)
    if importlib.util.find_spec("tensorboard") is not None:
        assert list((tmp_path / "tensorboard").glob("events*"))
    pytest.importorskip("matplotlib")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_fault_of_the_validation_shows_before_the_first_step(tmp_path: Path) -> None:
    class Faulty(ToyTask):
        def validate(self, model: torch.nn.Module) -> dict[str, float]:
            raise KeyError("no such split")

    task = Faulty()
    with pytest.raises(KeyError, match="no such split"):
        trained(tmp_path, task, validate_first=True)
    assert task.seen == []
    assert not (tmp_path / "state.safetensors").exists()
    trained(tmp_path, ToyTask(), validate_first=True)
    checks = lines(tmp_path, "validation")
    assert [line["step"] for line in checks] == [0, 12, 24]
    assert checks[0]["figures"]["score"] < checks[-1]["figures"]["score"]


def test_half_precision_on_the_processor(tmp_path: Path) -> None:
    """Not the default; weights and moments stay float32."""
    half, _ = trained(tmp_path / "half", ToyTask(), steps=1, log_every=1, precision="bfloat16")
    trained(tmp_path / "full", ToyTask(), steps=1, log_every=1, precision="auto")
    assert {p.dtype for p in half.model.parameters()} == {torch.float32}
    a, b = (lines(tmp_path / name, "train")[0] for name in ("half", "full"))
    for figure in ("loss", "norm"):
        assert a[figure] == pytest.approx(b[figure], rel=0.05)
        assert a[figure] != b[figure]


@pytest.mark.parametrize(("best_check", "best_step"), [(1, "0"), (2, "12")])
def test_the_best_weights_are_those_of_the_best_validation(tmp_path: Path, best_check: int, best_step: str) -> None:
    """The validation before the first step counts: a fine-tuning that only worsens keeps what it began with."""

    class Worsens(ToyTask):
        checks = 0

        def validate(self, model: torch.nn.Module) -> dict[str, float]:
            self.checks += 1
            return {"score": 10.0 if self.checks == best_check else float(self.checks)}

    _, outcome = trained(tmp_path, Worsens(), validations=4, validate_first=best_check == 1)
    assert outcome.best == 10.0
    from safetensors import safe_open

    steps = {}
    for name in ("best", "last"):
        with safe_open(str(tmp_path / f"{name}.safetensors"), framework="pt") as file:
            steps[name] = (file.metadata() or {})["step"]
    assert steps == {"best": best_step, "last": "24"}


def test_frozen_norms_keep_their_statistics(tmp_path: Path) -> None:
    task = ToyTask()
    before = {k: v.clone() for k, v in task.model.state_dict().items()}
    trained(tmp_path, task, freeze_norms=True)
    after = task.model.state_dict()
    assert torch.equal(after["norm.running_mean"], before["norm.running_mean"])
    assert not torch.equal(after["norm.weight"], before["norm.weight"])


def test_accumulated_steps_are_larger_batches(tmp_path: Path) -> None:
    """Where norms are frozen and the loss is a mean over samples."""

    class Means(ToyTask):
        def losses(self, model: Any, batch: Any, reduce: Any) -> Any:
            return {"square": ((model.run(batch["x"]) - batch["y"]) ** 2).sum() / len(batch["indices"])}

    a, _ = trained(tmp_path / "a", Means(), batch=8, freeze_norms=True)
    b, _ = trained(tmp_path / "b", Means(), batch=4, accumulate=2, freeze_norms=True)
    assert a.counters.position == b.counters.position == 24 * 8
    for name, value in a.model.state_dict().items():
        torch.testing.assert_close(b.model.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def test_a_training_shorter_than_a_log_interval_has_a_line(tmp_path: Path) -> None:
    """Its curves would be empty. A longer one has what is left of the last interval."""
    trained(tmp_path / "short", ToyTask(), steps=2, log_every=5)
    assert [line["step"] for line in lines(tmp_path / "short", "train")] == [2]
    trained(tmp_path / "longer", ToyTask(), steps=7, log_every=5)
    assert [line["step"] for line in lines(tmp_path / "longer", "train")] == [5, 7]
