"""The online algorithm on a GPU and on the CPU: time of each stage, equality of results, and both convolution paths.

    python benchmarks/devices.py                        # table, and out/bench/devices.json
    python benchmarks/devices.py --devices cpu,cuda     # the default; absent devices are left out

A tour of two simulated rooms with the shipped weights: every frame is a keyframe and is followed by a perception. The
voxels stay on the CPU (``device:=cuda``) or lie on the device (``volume.device``). Times are medians of wall times with
a synchronisation at the end of each stage; memory of a GPU is the peak of the process. Convolutions of the network's
layers run offset by offset (CPU path) and by whole neighbourhoods (device path) on the same sites in the same process.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import _report as report
import numpy as np
from online import again, every_frame, frames_of

import embodied_perceptron  # noqa: F401  (sets the OpenMP waiting policy, before torch loads)

# isort: split
import torch

import embodied_perceptron.sparse.engine as engine
from embodied_perceptron.config import NetworkOptions, PerceptronConfig, VolumeConfig
from embodied_perceptron.inference.loading import load_inference
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.sensors.frame import PosedFrame

WARM_UP = 8
SENTENCES = ("the chair that is closest to the door", "the largest cabinet", "a box to the left of the table")
Row = dict[str, Any]


def wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


@contextmanager
def timed(spent: dict[str, list[float]], name: str, device: str) -> Iterator[None]:
    wait(device)
    start = time.perf_counter()
    yield
    wait(device)
    spent[name].append(1e3 * (time.perf_counter() - start))


def chain(frames: list[PosedFrame], device: str, whole: bool, weights: str) -> tuple[Row, Perceptron]:
    """Medians of the stages on one device, and the perception with its map."""
    volume = VolumeConfig(device=device) if whole else VolumeConfig()
    config = PerceptronConfig(
        volume=volume, keyframes=every_frame(len(frames)), network=NetworkOptions(weights=weights, device=device)
    )
    it = Perceptron(config, inference=load_inference(weights, device))
    spent: dict[str, list[float]] = defaultdict(list)
    for i, frame in enumerate(frames):
        counts = spent if i >= min(WARM_UP, len(frames) // 2) else defaultdict(list)
        with timed(counts, "integrate and encode", device):
            it.integrate(again(frame, 200_000_000 * (i + 1)))
        with timed(counts, "perceive", device):
            seen = it.perceive()
        for name, ms in seen.stage_ms.items():
            counts[f"perceive: {name}"].append(ms)
    with timed(spent, "whole map", device):
        it.predict(float("inf"))
    try:
        it.ground_many(SENTENCES)
        with timed(spent, "three sentences", device):
            it.ground_many(SENTENCES)
    except (ImportError, FileNotFoundError) as error:  # no text encoder is installed
        print(f"no sentences: {error}")
    ms = {name: float(np.median(values)) for name, values in spent.items()}
    row: Row = {"device": device, "volume": "device" if whole else "cpu", "ms": ms}
    if device.startswith("cuda"):
        row["peak_memory_mb"] = torch.cuda.max_memory_allocated() / 1e6
    return row, it


def same_boxes(a: Perceptron, b: Perceptron) -> Row:
    """Differences between the last perceptions of both, box by box."""
    left, right = (it.prediction.detections for it in (a, b))  # type: ignore[union-attr]
    assert left is not None
    assert right is not None
    matched = 0
    for box, score, label in zip(left.boxes, left.scores, left.labels, strict=True):
        near = np.abs(right.boxes[:, :6] - box[:6]).max(1) < 0.02
        near &= np.abs(right.scores - score) < 0.02
        matched += any(right.labels[i] == label for i in np.flatnonzero(near))
    return {"left": len(left), "right": len(right), "same": matched}


def convolutions(it: Perceptron, device: str) -> Row:
    """Milliseconds of a prediction with both convolution paths in turn."""
    spent: dict[str, list[float]] = defaultdict(list)
    ways = {"whole": engine._WholeConvolution, "offsets": engine._Convolution}
    for round_ in range(8):
        for name, way in ways.items():
            counts = spent if round_ > 1 else defaultdict(list)
            with patch.object(engine, "_WholeConvolution", way), timed(counts, name, device):
                it.predict()
    ms = {name: float(np.median(values)) for name, values in spent.items()}
    return {"device": device, "predict_ms": ms, "ratio": ms["offsets"] / ms["whole"]}


def main() -> int:
    """Measure, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--devices", default="cpu,cuda")
    parser.add_argument("--weights", default="tiny", help="a shipped name or a file")
    parser.add_argument("--frames", type=int, default=24)
    options = report.parse(parser, frames=3)
    torch.set_num_threads(min(torch.get_num_threads(), 4))  # more threads do not speed up small products
    devices = [d for d in options.devices.split(",") if d == "cpu" or torch.cuda.is_available()]
    chains, same, ways = [], [], []
    first: Perceptron | None = None
    frames = frames_of(2, options.frames)
    for device in devices:
        for whole in (False,) if device == "cpu" else (False, True):
            row, it = chain(frames, device, whole, options.weights)
            chains.append(row)
            if first is None:
                first = it
            else:
                same.append({"device": device, "volume": row["volume"], **same_boxes(first, it)})
        if device != "cpu":
            ways.append(convolutions(it, device))
    results: Row = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "chains": chains,
        "same_boxes": same,
        "convolutions": ways,
    }
    stages = [
        {"stage": name, **{f"{r['device']}, volume on {r['volume']}": r["ms"].get(name) for r in chains}}
        for name in chains[0]["ms"]
    ]
    report.show("stages, ms, median", stages)
    if same:
        report.show("boxes beside those of the first chain", same)
        report.show("a prediction, offset by offset and whole", ways)
    report.write(options, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
