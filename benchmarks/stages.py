"""Where the time of a perception goes, and how far each stage is from what this processor can do (its roofline).

    python benchmarks/stages.py                    # table, and out/bench/stages.json
    python benchmarks/stages.py --looks 40         # more perceptions

A robot drives through the room of online.py; each of its frames is fused and perceived. In every other perception the
CPU time of each stage is taken, in the others its products and sums (*flops*) and the bytes that torch's operations
read and write are counted. What this processor multiplies in a second, and moves within its cache, is measured before
and after, the better counts. The *limit* of a stage is the longer of its flops by the one and its bytes by the other,
and its *share* is limit / time: at 1 nothing but less work helps. Compiled loops (fusing a frame, sites, neighbours,
gathering) are not counted, so that stages that are made of them have no share.

One torch thread, CPU time.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import _report as report
import numpy as np

import embodied_perceptron  # noqa: F401  (sets the OpenMP waiting policy, before torch loads)

# isort: split
import torch
from online import frames_of, map_and_window, network
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from embodied_perceptron.config import NetworkOptions
from embodied_perceptron.inference import predictor as predictor_module
from embodied_perceptron.inference.predictor import Predictor
from embodied_perceptron.mapping.image_features import ImageFeatures, StreamingLookup
from embodied_perceptron.mapping.volume import FeatureVolume, warm_up
from embodied_perceptron.mapping.wall_columns import WallFrame
from embodied_perceptron.nn import network as network_module
from embodied_perceptron.nn.network import PerceptionNetwork
from embodied_perceptron.sensors.camera_rig import ViewDirection

REST = "rest"
# functions whose own time is a stage's: those that they call have theirs
STAGES: dict[str, tuple[Any, str]] = {
    "fuse a frame": (FeatureVolume, "integrate"),
    "copy": (FeatureVolume, "copy"),
    "frame along the walls": (WallFrame, "of"),
    "encode an image": (ImageFeatures, "prefetch"),
    "input sites": (Predictor, "_sites"),
    "image features at sites": (StreamingLookup, "levels"),
    "backbone": (PerceptionNetwork, "encode"),
    "neck and heads": (PerceptionNetwork, "detect"),
    "boxes": (PerceptionNetwork, "proposals"),
    "refinement": (network_module, "refine"),
    "occupancy": (Predictor, "occupancy"),
}
_VIEWS = ("view", "detach", "slice", "select", "permute", "transpose", "expand", "unsqueeze", "squeeze", "as_strided")
_CACHED = 1 << 18  # bytes that stay in the cache of one core
_GATHERS = ("index_select", "index", "gather", "embedding", "_embedding_bag_forward_only")
_SCATTERS = ("index_copy_", "index_add_", "index_put_", "scatter_", "scatter_add_")


class _Counter(TorchDispatchMode):
    """Flops and bytes of torch's operations, booked on the stage that runs."""

    def __init__(self, stages: _Stages) -> None:
        super().__init__()
        self._stages = stages

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name.strip("_") not in _VIEWS:
            tensors = [t for t in tree_flatten((args, kwargs, out))[0] if isinstance(t, torch.Tensor)]
            row = self._stages.counted[self._stages.running[-1]]
            row["bytes"] += moved_bytes(name, tensors)
            row["flops"] += flops(name, tensors, out)
        return out


def moved_bytes(name: str, tensors: list[torch.Tensor]) -> int:
    """Bytes that an operation of torch must read and write at least; ``tensors`` as for :func:`flops`."""
    sizes = [t.numel() * t.element_size() for t in {id(t): t for t in tensors}.values()]
    if name in _GATHERS:  # of what is read, the rows that come out
        return sum(sizes) - sizes[0] + sizes[-1]
    if name in _SCATTERS:  # of what is written to, the rows that go in
        return sum(sizes) - sizes[0] + max(sizes[1:], default=0)
    return sum(sizes)


def flops(name: str, tensors: list[torch.Tensor], out: Any) -> int:
    """Products and sums of an operation of torch; 0 for what does not multiply matrices. ``tensors``: what it reads, in
    the order of its arguments, and ``out``."""
    if name in ("mm", "bmm"):
        return 2 * tensors[0].numel() * int(tensors[1].shape[-1])
    if name in ("addmm", "baddbmm"):
        return 2 * tensors[1].numel() * int(tensors[2].shape[-1])
    if "convolution" in name or name.startswith("conv"):
        weight = tensors[1]
        return 2 * int(out.numel()) * weight[0].numel()
    return 0


class _Stages:
    """Time or counts by stage, innermost first."""

    def __init__(self) -> None:
        self.running = [REST]
        self.ms: dict[str, list[float]] = defaultdict(list)
        self.counted: dict[str, dict[str, float]] = defaultdict(lambda: {"flops": 0.0, "bytes": 0.0})
        self._now: dict[str, float] = defaultdict(float)
        self._last = time.thread_time()

    def lap(self) -> None:
        """Book the time since the last change of stage."""
        now = time.thread_time()
        self._now[self.running[-1]] += (now - self._last) * 1e3
        self._last = now

    def wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self.lap()
            self.running.append(name)
            try:
                return function(*args, **kwargs)
            finally:
                self.lap()
                self.running.pop()

        return run

    def take(self, timed: bool) -> None:
        """One perception is over."""
        self.lap()
        for name in (*STAGES, REST):
            if timed:
                self.ms[name].append(self._now.get(name, 0.0))
        self._now.clear()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(patch.object(predictor_module, "parallel", lambda function, _: function))  # one by one
            for name, (owner, attribute) in STAGES.items():
                stack.enter_context(patch.object(owner, attribute, self.wrapped(name, getattr(owner, attribute))))
            yield


def machine_peak() -> tuple[float, float, float]:
    """Flops, bytes within the cache and bytes in main memory of one thread a second: the best of some products of
    matrices, and of some copies."""
    a, b = torch.randn(1536, 1536), torch.randn(1536, 1536)
    out = torch.empty_like(a)

    def best(call: Callable[[], Any], times: int) -> float:
        found = []
        for _ in range(5):
            start = time.thread_time()
            for _ in range(times):
                call()
            found.append((time.thread_time() - start) / times)
        return min(found)

    def copies(size: int) -> float:
        source = torch.zeros(size, dtype=torch.uint8)
        target = torch.empty_like(source)
        return 2 * size / best(lambda: target.copy_(source), max(1, (1 << 26) // size))

    return 2 * 1536**3 / best(lambda: torch.mm(a, b, out=out), 1), copies(_CACHED), copies(1 << 26)


def table(stages: _Stages, counted_looks: int, flops_s: float, bytes_s: float) -> list[dict[str, Any]]:
    """A row per stage, and their sum."""
    rows = []
    for name in (*STAGES, REST):
        ms = float(np.median(stages.ms[name]))
        per_look = {key: value / max(counted_looks, 1) for key, value in stages.counted[name].items()}
        limit_ms = 1e3 * max(per_look["flops"] / flops_s, per_look["bytes"] / bytes_s)
        rows.append(
            {
                "stage": name,
                "cpu_ms": ms,
                "gflop": per_look["flops"] / 1e9,
                "mb": per_look["bytes"] / 1e6,
                "limit_ms": limit_ms,
                "share": limit_ms / ms if ms > 0 and limit_ms > 0 else None,
            }
        )
    total = {key: sum(row[key] for row in rows) for key in ("cpu_ms", "gflop", "mb", "limit_ms")}
    return [*rows, {"stage": "all", **total, "share": total["limit_ms"] / total["cpu_ms"]}]


def measure(inference: Predictor, looks: int, skipped: int) -> tuple[_Stages, int]:
    """Drive; every other perception is timed, the others are counted."""
    frames = frames_of(1, looks + skipped)
    volume, features, window = map_and_window(inference, len(frames))
    stages, counted, walls = _Stages(), 0, WallFrame()
    for i, frame in enumerate(frames):
        timed = i % 2 == 0
        with contextlib.ExitStack() as stack:
            if i >= skipped:
                stages.take(timed=False)
                stack.enter_context(stages.watching())
                if not timed:
                    stack.enter_context(_Counter(stages))
            volume.integrate(frame)
            newest = volume.keyframes.newest
            assert newest is not None
            features.prefetch(newest)
            copy = volume.copy()
            manhattan = walls.of(copy.snapshot(), 0.0)
            direction = ViewDirection.of(frame.T_world_camera)
            inference.predict(window, copy, direction, 0.0, manhattan=manhattan, keep=True)
        if i >= skipped:
            stages.take(timed)
            counted += not timed
    return stages, counted


def main() -> int:
    """Measure, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--weights", default="", help="a shipped name or a file")
    parser.add_argument(
        "--precision", default=NetworkOptions.precision, choices=("float32", "auto"), help="as network."
    )
    parser.add_argument("--looks", type=int, default=20, help="perceptions, half of them timed")
    options = report.parse(parser, looks=2)
    torch.set_num_threads(1)
    inference, name = network(options.weights, options.precision)
    warm_up()
    before = machine_peak()
    stages, counted = measure(inference, options.looks, 12 if not options.quick else 2)
    flops_s, bytes_s, memory_s = (max(pair) for pair in zip(before, machine_peak(), strict=True))
    rows = table(stages, counted, flops_s, bytes_s)
    report.show("a perception by stage, one thread", rows)
    figures = {
        "weights": name,
        "precision": options.precision,
        "gflop_per_s": flops_s / 1e9,
        "gb_per_s_in_cache": bytes_s / 1e9,
        "gb_per_s_in_memory": memory_s / 1e9,
        "share_of_limit": rows[-1]["share"],
        "stages": rows,
    }
    report.show("this processor", {key: figures[key] for key in ("gflop_per_s", "gb_per_s_in_cache", "share_of_limit")})
    report.write(options, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
