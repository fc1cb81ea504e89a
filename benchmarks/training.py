"""Training: scenes per second of each preset, share of the time spent waiting for data, speed of validation.

    python benchmarks/training.py                             # table, and out/bench/training.json
    python benchmarks/training.py --presets tiny,base,paper --seconds 120 --device cuda
    python benchmarks/training.py --data TRAIN --val VAL      # own data sets instead of generated homes

Every preset trains all of its heads with the loop and the loader of `embodied-perceptron train`. With a frozen image
encoder (--images imagenet, the default) prepared scenes keep its features; --images "" trains it along, as the paper
does. Preparing scenes happens once per data set and is timed by itself. The first steps, in which kernels are compiled
and workers start, do not count.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import _report as report
import torch
from _inputs import simulated_homes

from embodied_perceptron_training.training.run_folder import RunFolder
from embodied_perceptron_training.training.tasks import SceneTask, build_task
from embodied_perceptron_training.training.trainer import Trainer
from embodied_perceptron_training.training.training_run import TrainingRun

WARM_UP = 3


class Timed(Trainer):
    """Keeps (wall, processor, waited) seconds of every step; processor seconds are those of the loop's process."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.times: list[tuple[float, float, float]] = []

    def _step(self, batches: Any) -> None:
        wall, processor, waited = time.perf_counter(), time.process_time(), self.counters.waited_s
        super()._step(batches)
        spent = time.perf_counter() - wall, time.process_time() - processor
        self.times.append((*spent, self.counters.waited_s - waited))


def measure(
    task: str, preset: str, data: Path, val: Path, images: str, seconds: float, workers: int, device: str
) -> dict[str, Any]:
    """One preset's figures."""
    timing = {
        "epochs": 1e6,
        "minutes": seconds / 60,
        "validations": 0,
        "checkpoint_s": 1e9,
        "log_every": 1,
    }
    what = {"task": task, "preset": preset, "data": data, "val": val, "images": images}
    config = TrainingRun.of({}, **what, **timing, workers=workers, device=device)
    built = build_task(config)
    assert isinstance(built, SceneTask)
    caches = [source.cache for source in built.samples.sources] + (
        [built._validation.cache] if built._validation else []
    )
    start = time.perf_counter()
    scenes = [(cache, i) for cache in caches for i in range(len(cache))]
    for cache, i in scenes:
        cache.prepare(i)
    prepared = len(scenes) / (time.perf_counter() - start)
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(folder, pictures=False)
        trainer = Timed(built, config, run, quiet=True)
        trainer.run()
    used = trainer.times[WARM_UP:]
    steps = len(used)
    passed, processor, waited = (sum(t[i] for t in used) for i in range(3))
    start = time.perf_counter()
    built.validate(trainer.average.module.cpu())
    checked = (len(caches[1]) if len(caches) > 1 else 0) / (time.perf_counter() - start)
    return {
        "preset": preset,
        "task": task,
        "batch": config.optimisation.batch,
        "steps": steps,
        "seconds_per_step": passed / steps if steps else None,
        "scenes_per_s": config.optimisation.batch * steps / passed if steps else None,
        "processor_s_per_step": processor / steps if steps else None,
        "waiting": waited / passed if steps else None,
        "validation_scenes_per_s": checked,
        "prepared_scenes_per_s": prepared,
        "parameters": sum(p.numel() for p in built.model.parameters() if p.requires_grad),
        "peak_memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def main() -> int:
    """Train, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--presets", default="tiny,base")
    parser.add_argument("--task", default="multi")
    parser.add_argument("--seconds", type=float, default=60.0, help="of training, per preset")
    parser.add_argument("--data", type=Path, help="default: six generated homes")
    parser.add_argument("--val", type=Path)
    parser.add_argument("--images", default="imagenet")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    options = report.parse(parser, presets="tiny", seconds=10.0)
    data = options.data
    if data is None and options.quick:
        data = simulated_homes(report.OUT / "homes_quick", train=1, val=1, views=2)
    elif data is None:
        data = simulated_homes(report.OUT / "training_homes", train=4, val=2)
    rows = [
        measure(
            *(options.task, preset, data, options.val or data, options.images),
            *(options.seconds, options.workers, options.device),
        )
        for preset in options.presets.split(",")
    ]
    report.show("training", rows)
    report.write(options, {"device": options.device, "threads": torch.get_num_threads(), "presets": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
