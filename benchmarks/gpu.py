"""Everything to be measured on a machine with a GPU, in one run of at most eight minutes and one file.

    python benchmarks/gpu.py          # tables, and out/bench/gpu.json
    python benchmarks/gpu.py --dry    # on the CPU, small: proves the script, its times mean nothing
    python benchmarks/gpu.py --quick  # small; on the CPU where there is no GPU

Sections: ``map`` (the map on the device equals that of the CPU, every voxel; time of a frame at 640 x 480), ``boxes``
(every frame a keyframe and a perception: boxes beside those of the CPU, median of each stage on both), ``launches``
(kernels, waits and copies of a frame and of a perception, by torch's profiler), ``live`` (200 frames with a perception
every tenth: drops nothing, median and 99th percentile, memory), ``training`` (windows a second) and ``peers`` (the same
frames by Open3D's VoxelBlockGrid, and one sparse convolution by ours and by spconv-triton; what is not installed is
named). A section that fails is named in ``failed`` and the run goes on; one that would begin after seven minutes is
named in ``late``. The exit code is 1 if any failed, or if map or boxes differ.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import _report as report
import numpy as np
import torch
from device_ops import ALL_HEADS, HOMES
from fusion import open3d_contender
from online import again, every_frame, frames_of, nearly_same_boxes

from embodied_perceptron.config import KeyframeConfig, NetworkOptions, PerceptronConfig, VolumeConfig
from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.inference.loading import load_inference
from embodied_perceptron.mapping.volume import FeatureVolume
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame
from embodied_perceptron.sparse.conv import SparseConv
from embodied_perceptron.sparse.tensor import SparseTensor
from embodied_perceptron_training.homes.generate import HomeSampleSpec, generate
from embodied_perceptron_training.training.run_folder import RunFolder
from embodied_perceptron_training.training.tasks import SceneTask
from embodied_perceptron_training.training.trainer import Trainer
from embodied_perceptron_training.training.training_run import TrainingRun

LAST_START_S = 420.0
GEOMETRY = KeyframeConfig(translation_m=1e9, rotation_rad=3.0, min_interval_s=1e9)
Row = dict[str, Any]


class Run:
    """Device and size of a run."""

    def __init__(self, device: str, small: bool) -> None:
        self.device, self.small = device, small
        self.frames = frames_of(2, 6 if small else 20)

    def volume(self, device: str) -> FeatureVolume:
        """Geometry alone, by the kernels of the device."""
        on_device = device != "host"
        config = VolumeConfig(device=self.device if on_device else "cpu")
        return FeatureVolume(config, GEOMETRY, kernels="warp" if on_device else "numba")

    def perceptron(self, keyframes: KeyframeConfig, device: str = "") -> Perceptron:
        device = device or self.device
        config = PerceptronConfig(
            volume=VolumeConfig(device=device), keyframes=keyframes,
            network=NetworkOptions(weights="tiny", device=device),
        )  # fmt: skip
        return Perceptron(config, inference=load_inference("tiny", device))


def wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def spread(ms: list[float]) -> Row:
    """Median and 99th percentile, without the first fifth."""
    warm = ms[len(ms) // 5 :]
    return {"median_ms": float(np.median(warm)), "p99_ms": float(np.percentile(warm, 99)), "of": len(warm)}


def vga(frame: PosedFrame, stamp_ns: int) -> PosedFrame:
    """A frame at 640 x 480, its pixels repeated."""
    f, k = frame.frame, frame.frame.intrinsics
    rows, columns = np.arange(480) * k.height // 480, np.arange(640) * k.width // 640
    wide = Intrinsics(k.fx * 640 / k.width, k.fy * 480 / k.height, 319.5, 239.5, 640, 480)
    color, depth_m = (np.ascontiguousarray(image[rows][:, columns]) for image in (f.color, f.depth_m))
    image = RgbdFrame(stamp_ns, f.camera, color, depth_m, wide)
    return PosedFrame(image, frame.T_world_camera)


def map_section(run: Run) -> Row:
    here, there, spent = run.volume("host"), run.volume("device"), {"host": [], "device": []}
    laps = 1 if run.small else 5
    for i, frame in enumerate(run.frames * laps):
        posed = vga(frame, 33_000_000 * (i + 1))
        for name, volume in (("host", here), ("device", there)):
            start = time.perf_counter()
            volume.integrate(posed)
            spent[f"{name}"].append(1e3 * (time.perf_counter() - start))
            wait(run.device)
            if name == "device":
                spent.setdefault("device done", []).append(1e3 * (time.perf_counter() - start))
    rows = [volume._map.gather(1).cpu() for volume in (here, there)]
    same = all(torch.equal(getattr(rows[0], n), getattr(rows[1], n)) for n in ("coords", "records", "last_seen_ns"))
    times = {name.replace(" ", "_"): spread(ms) for name, ms in spent.items()}
    return {"equal": same and len(rows[0]) > 0, "voxels": len(rows[0]), "fault": there.fault, **times}


def boxes_section(run: Run) -> Row:
    found, stages = [], {}
    for device in ("cpu", run.device):
        it, spent = run.perceptron(every_frame(len(run.frames)), device), defaultdict(list)
        for i, frame in enumerate(run.frames):
            posed = again(frame, 200_000_000 * (i + 1))
            for name, work in (
                ("integrate", lambda it=it, posed=posed: it.integrate(posed)),
                ("perceive", it.perceive),
            ):
                start = time.perf_counter()
                result = work()
                wait(device)
                spent[name].append(1e3 * (time.perf_counter() - start))
            for name, ms in result.stage_ms.items():
                spent[f"perceive: {name}"].append(ms)
        found.append(it.prediction.detections)
        stages[f"{device}_ms" if not stages else "device_ms"] = {k: spread(ms)["median_ms"] for k, ms in spent.items()}
    row: Row = {"equal": nearly_same_boxes(*found), "boxes": len(found[0]), **stages}
    return row | ({} if run.device == "cpu" else {"peak_memory_mb": torch.cuda.max_memory_allocated() / 1e6})


def launches_section(run: Run) -> Row:
    from torch.profiler import ProfilerActivity, profile

    it = run.perceptron(every_frame(40))
    for i, frame in enumerate(run.frames[:-1]):
        it.integrate(again(frame, 200_000_000 * (i + 1)))
    it.perceive()
    last = again(run.frames[-1], 200_000_000 * (len(run.frames) + 1))
    found = {}
    for name, work in (("keyframe", lambda: it.integrate(last)), ("perceive", it.perceive)):
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if run.device != "cpu" else [])]
        with profile(activities=activities) as profiler:
            work()
            wait(run.device)
        events = profiler.key_averages()
        found[name] = {
            "launches": sum(e.count for e in events if "LaunchKernel" in e.key),
            "waits": sum(e.count for e in events if "Synchronize" in e.key),  # one of them is our own
            "copies": sum(e.count for e in events if "Memcpy" in e.key),
            "operations": sum(e.count for e in events if e.key.startswith("aten::")),
            "device_ms": sum(e.self_device_time_total for e in events) / 1e3,
        }
    return found


def live_section(run: Run) -> Row:
    it, spent = run.perceptron(KeyframeConfig()), {"integrate": [], "perceive": []}
    count = 12 if run.small else 200
    fused = 0
    for i in range(count):
        start = time.perf_counter()
        fused += it.integrate(again(run.frames[i % len(run.frames)], 100_000_000 * (i + 1))).fused
        spent["integrate"].append(1e3 * (time.perf_counter() - start))
        if i % 10 == 9:
            start = time.perf_counter()
            it.perceive()
            spent["perceive"].append(1e3 * (time.perf_counter() - start))
    row: Row = {"frames": count, "fused": fused, "faults": "; ".join(it.device_faults)}
    if run.device != "cpu":
        row["peak_memory_mb"] = torch.cuda.max_memory_allocated() / 1e6
    return row | {name: spread(ms) for name, ms in spent.items()}


def training_section(run: Run) -> Row:
    """All heads of ``tiny`` on generated homes; the first step, which compiles, included."""
    scenes, steps = (2, 2) if run.small else (len(HOMES), 30)
    with tempfile.TemporaryDirectory() as folder:
        homes = Path(folder) / "homes"
        generate(homes, list(HOMES[:scenes]), HomeSampleSpec(8, 160, 120), "train")
        config = TrainingRun.of(
            {}, **ALL_HEADS, data=homes, batch=scenes, steps=steps, validations=0, workers=2, checkpoint_s=1e9,
            device=run.device,
        )  # fmt: skip
        done = Trainer(SceneTask(config), config, RunFolder(Path(folder) / "run", pictures=False), quiet=True).run()
    return {"windows_per_s": done.samples_per_s, "waiting_for_data": done.waiting, "batch": scenes, "steps": done.steps}


def peers_section(run: Run) -> Row:
    """Other packages on the same device: a frame into Open3D's map at the voxels of :func:`map_section`, and a
    convolution of size 3 with 64 channels at 50,000 sites."""
    row: Row = {"left_out": ", ".join(n for n in ("open3d", "spconv_triton") if importlib.util.find_spec(n) is None)}
    if "open3d" not in row["left_out"]:
        theirs = open3d_contender(VolumeConfig(), 16, "CPU:0" if run.device == "cpu" else "CUDA:0")
        frames = [theirs.prepare(vga(frame, 0)) for frame in run.frames]
        row["open3d_frame"] = spread([timed(partial(theirs.fuse, frame), run.device) for frame in frames])
    channels, count = 64, 2000 if run.small else 50_000
    place = torch.randint(0, 64, (count, 3), generator=torch.Generator().manual_seed(0)).unique(dim=0).to(run.device)
    feats = torch.rand(len(place), channels, device=run.device)
    sites = SparseTensor.from_coords(place, feats)
    convolutions: dict[str, Callable[[], Any]] = {}
    convolutions["convolution"] = partial(SparseConv(channels, channels, 3).to(run.device), sites)
    if "spconv_triton" not in row["left_out"]:
        import spconv_triton.pytorch as spconv

        layer = spconv.SubMConv3d(channels, channels, 3, bias=False, indice_key="same").to(run.device)
        there = spconv.SparseConvTensor(feats, torch.nn.functional.pad(place.int(), (1, 0)), [64, 64, 64], 1)
        convolutions["spconv_triton"] = partial(layer, there)
    with torch.inference_mode():
        for name, work in convolutions.items():
            row[name] = spread([timed(work, run.device) for _ in range(5 if run.small else 50)])
    return row


def timed(work: Callable[[], Any], device: str) -> float:
    """Milliseconds until the device has done it."""
    start = time.perf_counter()
    work()
    wait(device)
    return 1e3 * (time.perf_counter() - start)


def main() -> int:
    parser = report.parser(__doc__)
    parser.add_argument("--dry", action="store_true", help="on the CPU, small: proves the script")
    options = report.parse(parser)
    has_gpu = torch.cuda.is_available() and not options.dry
    if not has_gpu and not (options.dry or options.quick):
        print("no CUDA device: python benchmarks/gpu.py --dry proves the script on the CPU")
        return 2
    run = Run("cuda" if has_gpu else "cpu", options.dry or options.quick)
    every: dict[str, Callable[[Run], Row]] = {
        "map": map_section, "boxes": boxes_section, "launches": launches_section, "live": live_section,
        "training": training_section, "peers": peers_section,
    }  # fmt: skip
    found: Row = {"device": torch.cuda.get_device_name() if has_gpu else "cpu", "torch": torch.__version__}
    failed, late, began = [], [], time.perf_counter()
    for name, section in every.items():
        if time.perf_counter() - began > LAST_START_S:
            late.append(name)
            continue
        start = time.perf_counter()
        try:
            found[name] = section(run)
        except Exception as error:
            traceback.print_exc()
            failed.append(name)
            found[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
        found[name]["section_s"] = time.perf_counter() - start
        report.show(name, found[name])
    differs = [name for name in ("map", "boxes") if name not in late and not found[name].get("equal")]
    report.write(
        options, {**found, "failed": ", ".join(failed), "late": ", ".join(late), "differs": ", ".join(differs)}
    )
    return 1 if failed or differs else 0


if __name__ == "__main__":
    sys.exit(main())
