"""Each task of ``--preset paper`` from its first step to a robot, with few channels: it learns, goes on where it
stopped, and writes weights that ``replay`` takes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.small_homes import small_homes
from support.small_networks import shrunk

from embodied_perceptron.config import NetworkOptions, PerceptronConfig
from embodied_perceptron.inference.loading import inference_from_options
from embodied_perceptron.nn.presets import NetworkConfig
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron_training.datasets.embodiedscan import EmbodiedScanDataset
from embodied_perceptron_training.training.prepared_scenes import posed_view
from embodied_perceptron_training.training.run_folder import RunFolder
from embodied_perceptron_training.training.tasks import SceneTask
from embodied_perceptron_training.training.trainer import Trainer
from embodied_perceptron_training.training.training_run import TrainingRun

TASKS = (
    *("detection", "continuous-detection", "monocular-detection"),
    *("occupancy", "continuous-occupancy", "grounding", "multi"),
)


def small(config: NetworkConfig) -> NetworkConfig:
    """Its image encoder too."""
    own = shrunk(config)
    image = dataclasses.replace(own.image, base_width=4, pyramid_channels=8 if own.image.pyramid_channels else 0)
    return dataclasses.replace(own, image=image, max_sites=3000)


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_homes(tmp_path_factory.mktemp("homes"), sentences=6)


def trained(run: TrainingRun, folder: Path, resume: bool = False) -> dict[str, torch.Tensor]:
    trainer = Trainer(SceneTask(run, small), run, RunFolder(folder, pictures=False), quiet=True)
    trainer.run(resume)
    return {k: v.clone() for k, v in trainer.average.module.state_dict().items()}


@pytest.mark.parametrize("task", ["grounding", "occupancy"])
def test_a_batch_that_teaches_nothing_is_a_step_of_zero(
    homes: Path, tmp_path: Path, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scans without occupancy (ARKitScenes has none) or without sentences."""
    monkeypatch.setattr(EmbodiedScanDataset, "occupancy", lambda *_: None)
    monkeypatch.setattr(EmbodiedScanDataset, "prompts", lambda *_: [])
    options = {"cache": str(tmp_path / "prepared"), **({"text": "minilm"} if task == "grounding" else {})}
    more = {"workers": 0, "validations": 0, "device": "cpu", "log_every": 1}
    run = TrainingRun.of(options, preset="paper", task=task, data=homes, views=2, steps=1, **more)
    trained(run, tmp_path / "run")
    (line,) = (line for line in RunFolder(tmp_path / "run").lines() if line["event"] == "train")
    assert line["loss"] == line["norm"] == 0.0


@pytest.mark.parametrize(
    "task",
    [task if task in ("grounding", "occupancy") else pytest.param(task, marks=pytest.mark.slow) for task in TASKS],
)
def test_a_task_learns_goes_on_and_reaches_a_robot(homes: Path, tmp_path: Path, task: str) -> None:
    options = {"text": "minilm"} if task in ("grounding", "multi") else {}
    values: dict[str, Any] = {"preset": "paper", "task": task, "data": homes, "val": homes, "batch": 2, "views": 2}
    more = {"workers": 0, "validations": 1, "validate_first": False, "device": "cpu", "log_every": 1}
    run = TrainingRun.of(options, **values, **more, steps=3)
    whole = trained(run, tmp_path / "whole")
    lines = [line for line in RunFolder(tmp_path / "whole").lines() if line["event"] == "train"]
    assert len(lines) == 3
    assert all(np.isfinite(line["loss"]) for line in lines)
    # stopped after one step, and gone on
    trained(run.replaced(steps=1, validations=0), tmp_path / "parts")
    again = trained(run, tmp_path / "parts", resume=True)
    for name, value in whole.items():
        assert torch.equal(value, again[name]), name
    # as replay makes its perceptron
    inference = inference_from_options(NetworkOptions(weights=str(tmp_path / "whole" / "last.safetensors")))
    it = Perceptron(PerceptronConfig(), inference=inference)
    scan = EmbodiedScanDataset(homes, "val")[0]
    for n in range(3):
        it.integrate(posed_view(scan, n, n))
    it.perceive()
    assert it.prediction is not None
