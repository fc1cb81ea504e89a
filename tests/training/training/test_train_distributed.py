"""Two processes see the losses of one process with the doubled batch."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
import torch
import torch.multiprocessing
from support.toy_task import ToyTask

from embodied_perceptron_training.training.optimization import Processes
from embodied_perceptron_training.training.run_folder import RunFolder
from embodied_perceptron_training.training.trainer import Trainer
from embodied_perceptron_training.training.training_run import TrainingRun

STEPS = 20


def settings(batch: int) -> TrainingRun:
    """Frozen norms: statistics of half a batch are not those of a whole one."""
    return TrainingRun.from_values(
        steps=STEPS, batch=batch, workers=0, learning_rate=0.02, freeze_norms=True, log_every=1, validations=2
    )


def _process(rank: int, port: int, folder: Path) -> None:
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ.update(address)
    processes = Processes.start("cpu")
    try:
        # a stop in the first part is asked of the second process alone, and must reach both in the same step
        first = ToyTask(signal_at=9 if rank == 1 else 0, classes=4, poisoned=[11])
        outcome = Trainer(first, settings(4), RunFolder(folder, pictures=False), processes, quiet=True).run()
        assert not outcome.finished
        assert outcome.steps == 9
        again = ToyTask(seed=5, classes=4, poisoned=[11])
        trainer = Trainer(again, settings(4), RunFolder(folder, pictures=False), processes, quiet=True)
        assert trainer.run(resume=True).finished
        torch.save(trainer.model.state_dict(), folder / f"rank{rank}.pt")
        (folder / f"seen{rank}.json").write_text(json.dumps([*first.seen, *again.seen]))
    finally:
        processes.stop()


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.mark.slow
def test_two_processes_are_one_with_twice_the_batch(tmp_path: Path) -> None:
    """Every scene has its own number of points and classes, so that losses agree only where normalisers are reduced; a
    step with NaN in one process is left out by both."""
    alone = ToyTask(classes=4, poisoned=[11])
    one = Trainer(alone, settings(8), RunFolder(tmp_path / "one", pictures=False), quiet=True)
    assert one.run().finished
    two = tmp_path / "two"
    torch.multiprocessing.spawn(_process, (_free_port(), two), nprocs=2)
    parts = [json.loads((two / f"seen{rank}.json").read_text()) for rank in (0, 1)]
    assert [a + b for a, b in zip(*parts, strict=True)] == alone.seen
    logs = []
    for folder in (tmp_path / "one", two):
        lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        logs.append({line["step"]: line["loss"] for line in lines if line["event"] == "train"})
        assert sum(line["event"] == "skipped" for line in lines) == STEPS - len(logs[-1]) >= 3
    assert logs[0].keys() == logs[1].keys()
    for step, loss in logs[0].items():
        assert abs(logs[1][step] - loss) < 1e-4 * max(1.0, loss), step
    states = [torch.load(two / f"rank{rank}.pt", weights_only=True) for rank in (0, 1)]
    for name, value in one.model.state_dict().items():
        torch.testing.assert_close(states[0][name], value, rtol=1e-4, atol=1e-5)
        assert torch.equal(states[0][name], states[1][name]), name
