"""`--preset paper` on a few homes: whether each task's loss goes down, and how fast its steps are.

    python benchmarks/paper_training.py                       # table, and out/bench/paper_training.json
    python benchmarks/paper_training.py --narrow 1 --views 20 --device cuda    # the paper's own size
    python benchmarks/paper_training.py --tasks detection --steps 100 --text FOLDER

Each task trains with its own losses, schedule, augmentation and randomly drawn views, at the published learning rate of
8 GPUs, one home in a step. Two cores need minutes for a step of the published size; unless told otherwise every layer
has a quarter of its channels (--narrow), a sample 4 views of the published 10 or 20, and words come from MiniLM instead
of RoBERTa. Site sizes, points per view and the 480 x 480 images stay. ``loss_before`` and ``loss_after`` are means over
the first and the last two passes through the homes; every pass draws other views. The written weights are then read as
`replay` reads them, and perceive a home of the validation split.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from pathlib import Path
from typing import Any

import _report as report
import numpy as np
import torch

from embodied_perceptron.config import NetworkOptions, PerceptronConfig
from embodied_perceptron.inference.loading import inference_from_options
from embodied_perceptron.nn.presets import NetworkConfig
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron_training.datasets.embodiedscan import EmbodiedScanDataset
from embodied_perceptron_training.homes.building.home import HomeSpec
from embodied_perceptron_training.homes.generate import HomeSampleSpec, generate
from embodied_perceptron_training.training.paper import PAPER
from embodied_perceptron_training.training.prepared_scenes import posed_view
from embodied_perceptron_training.training.run_folder import RunFolder
from embodied_perceptron_training.training.tasks import SceneTask
from embodied_perceptron_training.training.trainer import Trainer
from embodied_perceptron_training.training.training_run import TrainingRun

TASKS = ("detection", "continuous-detection", "monocular-detection", "occupancy", "grounding")
FIRST_SEED = 700_000  # of homes of nobody's training, validation or test
VIEWS = 12  # of a home


def narrowed(config: NetworkConfig, by: int) -> NetworkConfig:
    """The same network with so many times fewer channels everywhere, its input and its answers aside."""
    if by == 1:
        return config

    def divided(part: Any, *names: str) -> Any:
        return part and dataclasses.replace(part, **{name: getattr(part, name) // by for name in names})

    backbone = divided(config.backbone, "stem_channels")
    return dataclasses.replace(
        config,
        backbone=dataclasses.replace(backbone, channels=tuple(c // by for c in config.backbone.channels)),
        image=divided(config.image, "base_width", "pyramid_channels"),
        detection=divided(config.detection, "channels"),
        occupancy=divided(config.occupancy, "in_channels", "channels"),
        grounding=divided(config.grounding, "channels", "hidden_channels"),
    )


def homes(folder: Path, count: int) -> Path:
    """``folder`` with one-room homes: ``count`` to train on, and one more to look at."""
    spec = HomeSampleSpec(views=VIEWS, width=160, height=120, home=HomeSpec(1))
    generate(folder, list(range(FIRST_SEED, FIRST_SEED + count)), spec, "train")
    generate(folder, [FIRST_SEED + count], spec, "val")
    return folder


def train(task: str, data: Path, options: Any, folder: Path) -> dict[str, Any]:
    """One task's figures; its weights are ``last.safetensors`` in ``folder``."""
    words = {"text": options.text} if task == "grounding" and options.text else {}
    run = TrainingRun.of(
        words, task=task, preset="paper", data=data, batch=1, views=min(options.views, PAPER[task].views),
        learning_rate=PAPER[task].learning_rate, steps=options.steps, workers=0, validations=0, checkpoint_s=1e9,
        log_every=1, device=options.device,
    )  # fmt: skip
    built = SceneTask(run, lambda config: narrowed(config, options.narrow))
    files = RunFolder(folder, pictures=False)
    Trainer(built, run, files, quiet=True).run()
    lines = [line for line in files.lines() if line["event"] == "train"]
    losses = [line["loss"] for line in lines]
    passes = 2 * len(built.samples)
    before, after = float(np.mean(losses[:passes])), float(np.mean(losses[-passes:]))
    return {
        "task": task,
        "steps": len(losses),
        "views": run.samples.views,
        "parameters": sum(p.numel() for p in built.model.parameters()),
        "loss_before": before,
        "loss_after": after,
        "ratio": after / before,
        "seconds_per_step": lines[-1]["elapsed_s"] / len(lines),
    }


def perceive(weights: Path, data: Path) -> bool:
    """Whether the written weights perceive a home that they have not seen."""
    inference = inference_from_options(NetworkOptions(weights=str(weights)))
    it = Perceptron(PerceptronConfig(), inference=inference)
    scan = EmbodiedScanDataset(data, "val")[0]
    for n in range(4):
        it.integrate(posed_view(scan, n, n))
    it.perceive()
    return it.prediction is not None


def main() -> int:
    """Train, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--homes", type=int, default=4)
    parser.add_argument("--views", type=int, default=4, help="of a sample, at most")
    parser.add_argument("--narrow", type=int, default=4, help="times fewer channels; 1 = as published")
    parser.add_argument("--text", default="minilm", help="text encoder: minilm, a folder; '' = the paper's")
    parser.add_argument("--device", default="cpu")
    options = report.parse(parser, steps=2, homes=1, views=2, tasks="detection,grounding")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        data = homes(Path(folder) / "homes", options.homes)
        for task in options.tasks.split(","):
            row = train(task, data, options, Path(folder) / task)
            rows.append({**row, "perceives": perceive(Path(folder) / task / "last.safetensors", data)})
            report.show("paper", rows[-1:])
    report.show("training of the paper's tasks", rows)
    settings = {"device": options.device, "threads": torch.get_num_threads(), "narrow": options.narrow}
    report.write(options, {**settings, "homes": options.homes, "tasks": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
