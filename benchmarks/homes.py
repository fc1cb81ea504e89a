"""Synthetic homes: seconds per stage on one core, renderers beside each other, and whole homes per minute.

    python benchmarks/homes.py [--homes N] [--workers N] [--version 1|2]      # tables, and out/bench/homes.json

Stages are timed on one core (processor seconds, so that other load on the machine does not count); homes per minute is
wall time with everything written, start of the worker processes included.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.weights.categories import ALL_CATEGORIES
from embodied_perceptron_training.homes.building.freespace import free_space
from embodied_perceptron_training.homes.building.home import VERSIONS, HomeSpec, build_home
from embodied_perceptron_training.homes.generate import HomeSampleSpec, generate, write_sample
from embodied_perceptron_training.homes.noise import NoiseModel, noisy_depth
from embodied_perceptron_training.homes.occupancy import occupancy_truth
from embodied_perceptron_training.homes.prompts import PromptSpec, make_prompts
from embodied_perceptron_training.homes.relations import make_scene
from embodied_perceptron_training.homes.rendering.gl_renderer import GlRenderer, GlUnavailableError
from embodied_perceptron_training.homes.rendering.ray_renderer import RayCastRenderer
from embodied_perceptron_training.homes.sensing import measured_color, measured_depth, surface_kinds
from embodied_perceptron_training.homes.sensor_model import SENSORS, draw_sensor_model
from embodied_perceptron_training.homes.trajectories import rgbd_camera, view_set

OUT = Path(__file__).resolve().parents[1] / "out" / "bench" / "homes.json"


def processor_seconds(call: Callable[[], Any], repeats: int = 3) -> float:
    """Median over ``repeats``; the first call, which may compile, is not counted."""
    call()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return float(np.median(times))


def stages(seed: int, version: int) -> dict[str, float]:
    """Processor milliseconds of every stage for one home of three rooms."""
    spec = HomeSpec(3, version=version)
    home = build_home(seed, spec)
    scene = home.render_scene()
    caster, space = RayCastRenderer(scene), free_space(home)
    poses = view_set(space, caster, 5, seed)
    rows = {
        "build a home of 3 rooms": lambda: build_home(seed, spec),
        "prepare ray casting": lambda: RayCastRenderer(home.render_scene()),
        "choose 20 views": lambda: view_set(space, caster, 20, seed),
        "occupancy truth": lambda: occupancy_truth(home, ALL_CATEGORIES),
        "60 prompts": lambda: make_prompts(
            make_scene(home, range(len(home.objects))), "x", PromptSpec(), np.random.default_rng(0)
        ),
    }
    result = {name: processor_seconds(call) * 1000 for name, call in rows.items()}
    view = caster.render(rgbd_camera(320, 240), poses[0])
    rng = np.random.default_rng(0)
    result["structured-light noise 320x240"] = 1000 * processor_seconds(
        lambda: noisy_depth(view.depth_m, view.incidence, "structured-light", rng)
    )
    kinds = surface_kinds(home, scene)
    for sensor in SENSORS if version > 1 else ():
        rig = draw_sensor_model(seed, 320, 240, NoiseModel(sensor=sensor))
        result[f"depth by {sensor}, 320x240"] = 1000 * processor_seconds(
            lambda rig=rig: measured_depth(view, kinds, rig, rng)
        )
        result[f"colour beside {sensor}, 320x240"] = 1000 * processor_seconds(
            lambda rig=rig: measured_color(view, rig, rng)
        )
    for size in ((320, 240), (640, 480)):
        k = rgbd_camera(*size)

        def views(renderer: RayCastRenderer | GlRenderer, k: Intrinsics = k) -> None:
            for T in poses:
                renderer.render(k, T)

        name = f"view {size[0]}x{size[1]}"
        result[f"{name}, ray caster"] = 1000 * processor_seconds(lambda v=views: v(caster)) / len(poses)
        try:
            gl = GlRenderer(scene)
        except GlUnavailableError:
            continue
        start = time.perf_counter()
        views(gl)
        views(gl)
        result[f"{name}, OpenGL (wall)"] = 500 * (time.perf_counter() - start) / len(poses)
        gl.close()
    return result


def main() -> None:
    """Measure, print and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--homes", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--version", type=int, default=2, choices=VERSIONS)
    options = parser.parse_args()
    numbers: dict[str, Any] = {"version": options.version, "stages_ms": stages(7, options.version)}
    table = Table("stage", "ms on one core")
    for name, ms in numbers["stages_ms"].items():
        table.add_row(name, f"{ms:.1f}")
    console = Console()
    console.print(table)
    noise = NoiseModel() if options.version == 1 else NoiseModel(sensor="mixed")
    spec = HomeSampleSpec(home=HomeSpec(0, version=options.version), noise=noise)
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        for seed in range(100, 104):
            write_sample(seed, Path(folder) / "one", spec)
        numbers["sample_processor_s"] = (time.process_time() - start) / 4
        start = time.perf_counter()
        generate(Path(folder) / "many", range(200, 200 + options.homes), spec, workers=options.workers)
        wall = time.perf_counter() - start
    numbers |= {"homes": options.homes, "workers": options.workers, "wall_s": wall}
    numbers["homes_per_minute"] = 60 * options.homes / wall
    console.print(
        f"a sample (20 views at 320x240, everything written): {numbers['sample_processor_s']:.2f} s on one core, that "
        f"is {60 / numbers['sample_processor_s']:.0f} homes a minute and core"
    )
    console.print(
        f"{options.homes} homes with {options.workers} workers: {wall:.1f} s wall, "
        f"{numbers['homes_per_minute']:.0f} homes a minute (goal on 2 cores: 15 of version 1, 2.5 of version 2)"
    )
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(numbers, indent=1))


if __name__ == "__main__":
    main()
