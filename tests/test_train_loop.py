"""The training loop: exact resume, signals, bad data, bad disks, bad numbers."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_task import ToyTask

from embodied_perceptron_training.train.settings import TrainSettings
from embodied_perceptron_training.train.trainer import Outcome, Trainer


def settings(**changes: Any) -> TrainSettings:
    return TrainSettings(
        **{"steps": 24, "batch": 4, "workers": 0, "learning_rate": 0.02, "warmup_steps": 3, "validations": 2, **changes}
    )


def trained(folder: Path, task: ToyTask | None = None, resume: bool = False, **changes: Any) -> tuple[Trainer, Outcome]:
    trainer = Trainer(task or ToyTask(dropout=0.2), settings(**changes), folder, quiet=True)
    return trainer, trainer.run(resume)


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


@pytest.mark.parametrize(("workers", "accumulate"), [(0, 1), (2, 3)])
def test_interrupted_is_the_same_as_not(tmp_path: Path, workers: int, accumulate: int) -> None:
    """SIGTERM in the middle of an epoch, resumed by another process's objects: bit-identical in everything."""
    changes = {"workers": workers, "accumulate": accumulate, "log_every": 5}
    whole, outcome = trained(tmp_path / "whole", **changes)
    assert outcome.finished
    assert outcome.steps == 24
    cut, first = trained(tmp_path / "cut", ToyTask(dropout=0.2, signal_at=13 * accumulate), **changes)
    assert not first.finished
    assert first.steps == 13  # the step during which the signal came was completed, and no other
    resumed, second = trained(tmp_path / "cut", ToyTask(seed=99, dropout=0.2), resume=True, **changes)
    assert second.finished
    assert second.steps == 24
    assert_same(resumed.model, whole.model)
    assert_same(resumed.average.model, whole.average.model)
    a, b = whole.optimizer.state_dict(), resumed.optimizer.state_dict()
    assert a["param_groups"] == b["param_groups"]
    for index, state in a["state"].items():
        for key, value in state.items():
            assert torch.equal(value, b["state"][index][key])
    assert second.best == outcome.best
    for event in ("train", "validation"):
        figures = [
            [
                {k: v for k, v in line.items() if k not in ("elapsed_s", "waiting", "seconds")}
                for line in lines(f, event)
            ]
            for f in (tmp_path / "whole", tmp_path / "cut")
        ]
        assert figures[0] == figures[1]
    assert cut.counters.position == 13 * 4 * accumulate
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL  # the handler went with the run


def test_learns_and_writes(tmp_path: Path) -> None:
    trainer, outcome = trained(tmp_path, ToyTask(), steps=200)
    assert outcome.best is not None
    assert outcome.best > -0.5
    start = ToyTask()
    assert start.validate(start.model.eval())["score"] < -3.0
    losses = [line["loss"] for line in lines(tmp_path, "train")]
    assert losses[-1] < 0.25 * losses[0]
    assert [line["step"] for line in lines(tmp_path, "validation")] == [100, 200]
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["settings"]["steps"] == 200
    assert {"best.safetensors", "last.safetensors", "state.safetensors", "resume.sh", "curves.png"} <= {
        p.name for p in tmp_path.iterdir()
    }
    assert trainer.counters.finished
