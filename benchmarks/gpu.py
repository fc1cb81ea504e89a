"""Everything to be measured on a machine with a GPU, in one run of at most eight minutes and one file.

    python benchmarks/gpu.py          # tables, and out/bench/gpu.json
    python benchmarks/gpu.py --dry    # on the CPU, small: proves the script, its times mean nothing
    python benchmarks/gpu.py --quick  # small; on the CPU where there is no GPU

Sections: ``map`` (the map on the device equals that of the CPU, every voxel; time of a frame at 640 x 480), ``boxes``
(every frame a keyframe and a perception in full float32: boxes beside those of the CPU, median of each stage on both),
``launches`` (kernels, waits and copies of a frame and of a perception, by torch's profiler), ``live`` (200 frames with
a perception every tenth: drops nothing, median and 99th percentile, memory), ``training`` (windows a second) and
``peers`` (the same frames by Open3D's VoxelBlockGrid, and one sparse convolution by ours and by spconv-triton; what is
not installed or does not work is named). The file is written after every section. One that fails or is not done after
eight minutes is named in ``failed`` and the run goes on; one that would begin after seven is named in ``late``. The
exit code is 1 if any failed, or if map or boxes differ; a device that left its work to the CPU has failed.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import _report as report
import numpy as np
import torch
from device_ops import ALL_HEADS, GEOMETRY, HOMES, vga
from fusion import open3d_contender
from online import again, every_frame, frames_of, nearly_same_boxes

from embodied_perceptron.config import KeyframeConfig, NetworkOptions, PerceptronConfig, VolumeConfig
from embodied_perceptron.geometry.compute_path import device_path
from embodied_perceptron.inference.loading import load_inference
from embodied_perceptron.mapping.volume import FeatureVolume
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.sparse.conv import SparseConv
from embodied_perceptron.sparse.tensor import SparseTensor
from embodied_perceptron_training.homes.generate import HomeSampleSpec, generate
from embodied_perceptron_training.training.run_folder import RunFolder
from embodied_perceptron_training.training.tasks import SceneTask
from embodied_perceptron_training.training.trainer import Trainer
from embodied_perceptron_training.training.training_run import TrainingRun

LAST_START_S, END_S = 420.0, 470
Row = dict[str, Any]


class Run:
    """Device and size of a run."""

    def __init__(self, device: str, small: bool) -> None:
        self.device, self.small = device, small
        self.frames = frames_of(2, 6 if small else 20)

    def path(self) -> contextlib.AbstractContextManager[None]:
        """That of devices, on the CPU too."""
        return device_path() if self.device == "cpu" else contextlib.nullcontext()

    def volume(self, device: str, keyframes: KeyframeConfig = GEOMETRY) -> FeatureVolume:
        """Geometry alone, by the kernels of the device or of the host."""
        on_device = device != "host"
        config = VolumeConfig(device=self.device if on_device else "cpu")
        return FeatureVolume(config, keyframes, kernels="warp" if on_device else "numba")

    def perceptron(self, keyframes: KeyframeConfig, device: str = "device", dtype: Any = torch.float16) -> Perceptron:
        """With the map, the features of images in ``dtype``, and the network on the device or on the host."""
        volume = self.volume(device, keyframes)
        inference = load_inference("tiny", "cpu" if device == "host" else self.device)
        inference.feature_dtype = dtype
        volume.features = inference.image_features()
        config = PerceptronConfig(volume.config, keyframes=keyframes, network=NetworkOptions(weights="tiny"))
        return Perceptron(config, volume, inference)


def wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def spread(ms: list[float]) -> Row:
    """Median and 99th percentile, without the first fifth."""
    warm = ms[len(ms) // 5 :]
    return {"median_ms": float(np.median(warm)), "p99_ms": float(np.percentile(warm, 99)), "of": len(warm)}


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
    equal = same and len(rows[0]) > 0 and not there.fault
    return {"equal": equal, "voxels": len(rows[0]), "fault": there.fault, **times}


def boxes_section(run: Run) -> Row:
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        found, stages, faults = zip(*(boxes_on(run, device) for device in ("host", "device")), strict=True)
    equal = nearly_same_boxes(*found) and not any(faults)
    return {"equal": equal, "boxes": len(found[0]), "faults": "; ".join(faults[1]), "cpu_ms": stages[0],
            "device_ms": stages[1], **memory(run)}  # fmt: skip


def boxes_on(run: Run, device: str) -> tuple[Any, Row, tuple[str, ...]]:
    """Last boxes, median of each stage in ms, and faults."""
    spent = defaultdict(list)
    with contextlib.nullcontext() if device == "host" else run.path():
        it = run.perceptron(every_frame(len(run.frames)), device, torch.float32)
        for i, frame in enumerate(run.frames):
            posed = again(frame, 200_000_000 * (i + 1))
            for name, work in (
                ("integrate", lambda it=it, posed=posed: it.integrate(posed)),
                ("perceive", it.perceive),
            ):
                start = time.perf_counter()
                result = work()
                wait(run.device)
                spent[name].append(1e3 * (time.perf_counter() - start))
            for name, ms in result.stage_ms.items():
                spent[f"perceive: {name}"].append(ms)
    return it.prediction.detections, {k: spread(ms)["median_ms"] for k, ms in spent.items()}, it.device_faults


def launches_section(run: Run) -> Row:
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if run.device != "cpu" else [])]
    it, found = run.perceptron(every_frame(40)), {}
    for i, frame in enumerate(run.frames):
        last = again(frame, 200_000_000 * (i + 1))
        for name, work in (("keyframe", partial(it.integrate, last)), ("perceive", it.perceive)):
            if i < len(run.frames) - 3:
                if name == "keyframe":
                    work()
                continue
            with profile(activities=activities) as profiler:  # the first time graphs are recorded; the last counts
                work()
                wait(run.device)
            events = profiler.key_averages()
            calls: dict[str, int] = {e.key: e.count for e in events if e.key.startswith("cu")}  # CUDA's, of the host
            on_device = [e for e in events if e.device_type != DeviceType.CPU and not e.is_user_annotation]
            found[name] = {
                "launches": sum(n for key, n in calls.items() if "LaunchKernel" in key or "GraphLaunch" in key),
                "waits": sum(n for key, n in calls.items() if "Synchronize" in key),  # one of them is our own
                "copies": sum(n for key, n in calls.items() if "Memcpy" in key),
                "operations": sum(e.count for e in events if e.key.startswith("aten::")),
                "device_ms": sum(e.self_device_time_total for e in on_device) / 1e3,
            }
    return found | {"faults": "; ".join(it.device_faults)}


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
    row: Row = {"frames": count, "fused": fused, "faults": "; ".join(it.device_faults), **memory(run)}
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
    row: Row = {}
    with named_in(row, "open3d"):
        theirs = open3d_contender(VolumeConfig(), 16, "CPU:0" if run.device == "cpu" else "CUDA:0")
        frames = [theirs.prepare(vga(frame, 0)) for frame in run.frames]
        row["open3d_frame"] = spread([timed(partial(theirs.fuse, frame), run.device) for frame in frames])
    channels, count = 64, 2000 if run.small else 50_000
    place = torch.randint(0, 64, (count, 3), generator=torch.Generator().manual_seed(0)).unique(dim=0).to(run.device)
    feats = torch.rand(len(place), channels, device=run.device)
    sites = SparseTensor.from_coords(place, feats)
    convolutions: dict[str, Callable[[], Any]] = {}
    convolutions["convolution"] = partial(SparseConv(channels, channels, 3).to(run.device), sites)
    with named_in(row, "spconv_triton"):
        import spconv_triton.pytorch as spconv

        layer = spconv.SubMConv3d(channels, channels, 3, bias=False, indice_key="same").to(run.device)
        there = spconv.SparseConvTensor(feats, torch.nn.functional.pad(place.int(), (1, 0)), [64, 64, 64], 1)
        convolutions["spconv_triton"] = partial(layer, there)
    with torch.inference_mode():
        for name, work in convolutions.items():
            with contextlib.nullcontext() if name == "convolution" else named_in(row, name):
                row[name] = spread([timed(work, run.device) for _ in range(5 if run.small else 50)])
    return row


@contextlib.contextmanager
def named_in(row: Row, peer: str) -> Iterator[None]:
    """Name a peer that is not installed or fails, and go on."""
    try:
        yield
    except Exception as error:
        row[f"{peer}_left_out"] = f"{type(error).__name__}: {error}"[:300]


def memory(run: Run) -> Row:
    """Most memory of the section."""
    return {} if run.device == "cpu" else {"peak_memory_mb": torch.cuda.max_memory_allocated() / 1e6}


def timed(work: Callable[[], Any], device: str) -> float:
    """Milliseconds until the device has done it."""
    start = time.perf_counter()
    work()
    wait(device)
    return 1e3 * (time.perf_counter() - start)


def too_long(*_: Any) -> None:
    raise TimeoutError(f"not done after {END_S} s")


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
    lists: dict[str, list[str]] = {"failed": [], "late": [], "differs": []}
    began = time.perf_counter()
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(END_S)
    for name, section in every.items():
        if time.perf_counter() - began > LAST_START_S:
            lists["late"].append(name)
        else:
            found[name] = row = measured(section, run, name in ("map", "boxes"))
            lists["failed"] += [name] if "error" in row or row.get("faults") else []
            lists["differs"] += [name] if not row.get("equal", name not in ("map", "boxes")) else []
            report.show(name, row)
        report.write(options, {**found, **{kind: ", ".join(names) for kind, names in lists.items()}})
    signal.alarm(0)
    return 1 if lists["failed"] or lists["differs"] else 0


def measured(section: Callable[[Run], Row], run: Run, compares: bool) -> Row:
    """Figures of a section, or its error. One that ``compares`` both devices chooses the path of each itself."""
    start = time.perf_counter()
    if run.device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    try:
        with contextlib.nullcontext() if compares else run.path():
            row = section(run)
    except Exception as error:
        traceback.print_exc()
        row = {"error": f"{type(error).__name__}: {error}"[:300]}
    return row | {"section_s": time.perf_counter() - start}


if __name__ == "__main__":
    sys.exit(main())
