"""Kernels are compiled step by step, once, and kept for the next process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from embodied_perceptron.apps import network_commands
from embodied_perceptron.apps.warm_up import WarmUpStoppedError, warm_up
from embodied_perceptron.config import ExistenceConfig, ObjectsConfig, PerceptronConfig, TrackingConfig
from embodied_perceptron.detection2d.pipeline import DetectionLift


def test_steps_are_counted_and_may_be_stopped_before_each() -> None:
    config = PerceptronConfig(
        objects=ObjectsConfig(tracking=TrackingConfig(existence=ExistenceConfig(confirm_count=1)))
    )
    told: list[tuple[int, int]] = []
    warm_up(config, on_step=lambda step, steps: told.append((step, steps)))
    total = told[0][1]
    assert told == [(step, total) for step in range(1, total + 1)]
    # five looks: two frames, read-only and not, detections, and two perceptions each, with detections and without;
    # nine more for what looks do not reach
    assert total == 5 * (1 + 2 * config.volume.min_hits + 2) + 9
    told.clear()
    with pytest.raises(WarmUpStoppedError):
        warm_up(config, stopped=lambda: len(told) == 3, on_step=lambda step, steps: told.append((step, steps)))
    assert [step for step, _ in told] == [1, 2, 3]


def test_detections_of_several_views_are_lifted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the first detections of a robot wait half a minute for the compiler."""
    lifts: list[DetectionLift] = []

    class Known(DetectionLift):
        def __init__(self) -> None:
            super().__init__()
            lifts.append(self)

    monkeypatch.setattr("embodied_perceptron.apps.warm_up.DetectionLift", Known)
    warm_up(PerceptronConfig())
    (lift,) = lifts
    statistics = lift.statistics()
    assert statistics.lifted == statistics.found > 0
    assert sum(len(view.lifted) > 0 for view in lift.views) >= 2


def test_the_command_tells_when_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr("embodied_perceptron.apps.warm_up.compile_kernels", asked.append)
    app = typer.Typer()
    network_commands.register(app)
    result = CliRunner().invoke(app, ["dev", "compile"])
    assert result.exit_code == 0, result.output
    assert "kernels are compiled" in result.output
    assert len(asked) == 1


_ASK = """
import sys
from embodied_perceptron.apps import warm_up
from embodied_perceptron.config import PerceptronConfig, VolumeConfig
config = PerceptronConfig(volume=VolumeConfig(voxel_size_m=0.08))
before = warm_up.is_compiled(config)
if sys.argv[1:]:
    warm_up.warm_up(config)
print(before, warm_up.is_compiled(config), warm_up.is_compiled(PerceptronConfig()))
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_whether_everything_is_compiled_can_be_asked(tmp_path: Path) -> None:
    def ask(*arguments: str) -> list[str]:
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
        command = [sys.executable, "-c", _ASK, *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()

    assert ask() == ["False", "False", "False"]
    assert ask("warm up") == ["False", "True", "False"]  # another configuration may need others
    assert ask() == ["True", "True", "False"]
    next(iter(tmp_path.rglob("*.nbi"))).unlink()
    assert ask() == ["False", "False", "False"]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_what_it_compiles_is_there_for_the_next_process(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "embodied_perceptron.apps.cli", "dev", "compile"]

    def kept() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nb?")}

    subprocess.run(command, env=environment, check=True, capture_output=True)
    first = kept()
    assert len(first) > 50
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert kept() == first
