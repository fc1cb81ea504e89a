"""What the paper compares with is trained by the command that trains everything: it learns, and ``replay`` loads it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.small_homes import small_homes
from support.small_networks import shrunk

from embodied_perceptron.config import NetworkOptions, PerceptronConfig
from embodied_perceptron.inference.loading import inference_from_options
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron_training.datasets.embodiedscan import EmbodiedScanDataset
from embodied_perceptron_training.training.ablations import Budget, _run, chosen_rows
from embodied_perceptron_training.training.criteria import same
from embodied_perceptron_training.training.prepared_scenes import posed_view
from embodied_perceptron_training.training.run_folder import RunFolder
from embodied_perceptron_training.training.tasks import SceneTask
from embodied_perceptron_training.training.trainer import Trainer

STEPS = 12
ROWS = (
    *("detectors-votenet", "detectors-imvoxelnet", "detectors-fcaf3d", "loss-iou-7dof"),
    *("matchers-scanrefer", "matchers-butd-detr"),
)


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_homes(tmp_path_factory.mktemp("homes"), sentences=6)


@pytest.mark.parametrize(
    "name", [name if name == "detectors-fcaf3d" else pytest.param(name, marks=pytest.mark.slow) for name in ROWS]
)
def test_a_row_learns_and_reaches_a_robot(homes: Path, tmp_path: Path, name: str) -> None:
    (row,) = chosen_rows([name])
    options = dict(row.options) | {"cache": str(tmp_path / "prepared")}
    more = {"workers": 0, "validations": 0, "validate_first": False, "device": "cpu", "log_every": 1}
    run = _run(row, Budget(homes, homes, steps=2), options, steps=2, batch=1, ema_decay=0.0, **more).replaced(views=2)
    folder = RunFolder(tmp_path / "run", pictures=False)
    task = SceneTask(run, shrunk)
    Trainer(task, run, folder, quiet=True).run()
    # one sample again and again: each step elsewhere says little of what was learned
    batch = task.collate([task.samples.sample(0, np.random.default_rng(0))])
    optimiser = torch.optim.AdamW((p for p in task.model.parameters() if p.requires_grad), lr=3e-3)
    losses = []
    for _ in range(STEPS):
        terms = task.losses(task.model.train(), batch, same)
        assert ("votes" in terms) == (name == "detectors-votenet")
        total = torch.stack(list(terms.values())).sum()
        optimiser.zero_grad()
        total.backward()
        optimiser.step()
        losses.append(float(total.detach()))
    assert all(np.isfinite(losses))
    assert losses[-1] < 0.96 * losses[0]
    inference = inference_from_options(NetworkOptions(weights=str(tmp_path / "run" / "last.safetensors")))
    it = Perceptron(PerceptronConfig(), inference=inference)
    scan = EmbodiedScanDataset(homes, "val")[0]
    for n in range(2):
        it.integrate(posed_view(scan, n, n))
    it.perceive()
    assert it.prediction is not None
    assert it.ground("the chair").text == "the chair"
