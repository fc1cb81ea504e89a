"""Each task of ``--preset paper`` from its first step to a robot, with few channels: it learns, goes on where it
stopped, and writes weights that ``replay`` takes."""

from __future__ import annotations

import dataclasses
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.small_homes import small_homes
from support.small_networks import shrunk

from embodied_perceptron.config import NetworkOptions, PerceptronConfig
from embodied_perceptron.inference import loading
from embodied_perceptron.inference.loading import inference_from_options
from embodied_perceptron.nn.presets import NetworkConfig
from embodied_perceptron.nn.text_encoder import text_encoder
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.weights.checkpoint import load_checkpoint
from embodied_perceptron_training.datasets.embodiedscan import EmbodiedScanDataset
from embodied_perceptron_training.training import tasks
from embodied_perceptron_training.training.ablations import Budget, chosen_rows, run_row
from embodied_perceptron_training.training.prepared_scenes import posed_view
from embodied_perceptron_training.training.run_folder import RunFolder
from embodied_perceptron_training.training.tasks import SceneTask
from embodied_perceptron_training.training.trainer import Trainer
from embodied_perceptron_training.training.training_run import TrainingRun

TASKS = (
    *("detection", "continuous-detection", "monocular-detection"),
    *("occupancy", "continuous-occupancy", "grounding", "multi"),
)

OPTIONS = {
    **{task: {"text": "minilm"} for task in ("grounding", "multi")},
    **{task: {"pretrained": "random"} for task in ("occupancy", "continuous-occupancy")},
}


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
    options = {"cache": str(tmp_path / "prepared"), **OPTIONS.get(task, {})}
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
    options = OPTIONS.get(task, {})
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


def test_views_of_given_weights_of_the_paper_are_scored(
    homes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figure 7: weights of one task, which are no network for all tasks."""
    whole = tasks.task_config
    monkeypatch.setattr(tasks, "task_config", lambda run, classes: small(whole(run, classes)))
    options = {"cache": str(tmp_path / "prepared")}
    task = SceneTask(TrainingRun.of(options, preset="paper", task="detection", data=homes))
    task.save_weights(tmp_path / "w.safetensors", task.model, {})
    (row,) = chosen_rows(["views-2"])
    given = Budget(homes, homes, preset="paper", options=options, weights=tmp_path / "w.safetensors")
    found = run_row(row, given, tmp_path / "out", quiet=True)
    assert found is not None
    assert {"AP25", "AR25", "AP50"} <= set(found["figures"])


@pytest.mark.slow
def test_the_text_encoder_stays_as_it_is(
    homes: Path, tmp_path: Path, roberta_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As released, whose learning rate of it is 0: none of its weights is the optimizer's, its features are the same
    before and after, and what reads a sentence on a robot is that very encoder."""
    before = text_encoder(roberta_folder, max_tokens=64)
    for user in (tasks, loading):  # this one reads 64 tokens at most
        monkeypatch.setattr(user, "text_encoder", partial(text_encoder, max_tokens=64))
    folder = shutil.copytree(roberta_folder, tmp_path / "roberta")
    more = {"workers": 0, "validations": 0, "device": "cpu", "batch": 1, "views": 2, "steps": 2, "log_every": 1}
    options = {"text": str(folder), "cache": str(tmp_path / "prepared")}
    run = TrainingRun.of(options, preset="paper", task="grounding", data=homes, **more)
    task = SceneTask(run, small)
    learned = {name for name, p in task.model.named_parameters() if p.requires_grad}
    assert any(name.startswith("grounding.head.") for name in learned)
    assert not any("model.embeddings" in name or "text_encoder" in name for name in task.model.state_dict())
    start = {k: v.clone() for k, v in task.model.state_dict().items()}
    trained(run, tmp_path / "run")
    found = load_checkpoint(tmp_path / "run" / "last.safetensors").state
    assert any(not torch.equal(found[name], start[name]) for name in learned if name.startswith("grounding."))
    network = inference_from_options(NetworkOptions(weights=str(tmp_path / "run" / "last.safetensors")))
    assert network.text_encoder is not None
    after = network.text_encoder.encode(["the chair next to the table"]).tokens
    assert torch.equal(after, before.encode(["the chair next to the table"]).tokens)
