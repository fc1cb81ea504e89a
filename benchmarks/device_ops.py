"""Operations launched on a GPU and waits for their results, counted without a GPU.

    python benchmarks/device_ops.py             # table, and out/bench/device_ops.json
    python benchmarks/device_ops.py --quick     # a training step of two scenes instead of four

Each small operation costs a GPU its launch, 5 to 20 microseconds of Python; each wait costs all work launched before
it. So the counts bound the time of a perception. The device code runs on CPU tensors; views and empty allocations are
free. A wait is anything that needs a result on the host: a number, a comparison, a size that depends on data, a copy.
Work on tensors that were copied to the host or made there does not count; copying one to the device is an operation.
A Triton kernel, a Warp kernel and a CUDA graph are one operation, whatever computes their results on the CPU; where
Triton is missing, a sparse convolution takes three.

Counted with the shipped weights on the two-room tour of ``benchmarks/online.py`` at its 13th keyframe: one perception,
the integration of the next keyframe, one training step (``tiny``, all heads, generated homes), and one step of
``paper``'s grounding. ``host_frame_ms`` is the host's CPU time for a frame at 640 x 480 into the map.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import _report as report

import embodied_perceptron  # noqa: F401  (sets the OpenMP waiting policy, before torch loads)

# isort: split
import numpy as np
import torch
from online import again, every_frame, frames_of
from torch._C import DispatchKey
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from embodied_perceptron.config import KeyframeConfig, NetworkOptions, PerceptronConfig
from embodied_perceptron.geometry.compute_path import device_path, runs_compiled
from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.inference.loading import load_inference
from embodied_perceptron.mapping.volume import FeatureVolume
from embodied_perceptron.mapping.voxels import HostCopy
from embodied_perceptron.nn import graphed
from embodied_perceptron.nn.presets import NetworkConfig
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame
from embodied_perceptron.sparse import engine
from embodied_perceptron_training.homes.generate import HomeSampleSpec, generate
from embodied_perceptron_training.training.run_folder import RunFolder
from embodied_perceptron_training.training.tasks import SceneTask
from embodied_perceptron_training.training.trainer import Trainer
from embodied_perceptron_training.training.training_run import Precision, TrainingRun

HOMES = range(700_000, 700_004)  # not used for training, validation or test
PACKAGES = ("/embodied_perceptron/", "/embodied_perceptron_training/")
FREE = {
    *("view", "_unsafe_view", "t", "transpose", "permute", "expand", "select", "slice", "unsqueeze", "squeeze"),
    *("detach", "detach_", "alias", "as_strided", "split", "unbind", "split_with_sizes", "unfold", "_reshape_alias"),
    *("lift_fresh", "diagonal", "view_as_real", "set_", "resize_", "is_pinned"),
    *("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"),
}
# operations whose results, or sizes of results, the host reads
WAITING = {
    *("nonzero", "nonzero_numpy", "_local_scalar_dense", "_unique2", "unique_dim", "unique_consecutive"),
    *("masked_select", "equal", "is_nonzero", "bincount", "histc", "_linalg_check_errors"),
}
GEOMETRY = KeyframeConfig(translation_m=1e9, rotation_rad=3.0, min_interval_s=1e9)
HOST = torch.device("cpu", 0)  # of tensors in OperationCount.on_host; the device is "cpu"
Row = dict[str, Any]


class OperationCount:
    """Count torch operations inside of the context, by the innermost file of the project that calls them.

    Attributes:
        operations, waits: by module.
        on_host: tensors that a device run would have on the host.
    """

    active: OperationCount  # the one that was entered last; graphs recorded under another count here

    def __init__(self) -> None:
        self.operations: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self.on_host = WeakIdKeyDictionary()
        self._entered = contextlib.ExitStack()
        self._waits_before: WeakKeyDictionary[HostCopy, int] = WeakKeyDictionary()  # of copies sent meanwhile
        self._quiet = 0

    def __enter__(self) -> OperationCount:
        OperationCount.active = self
        self._entered.enter_context(patch("torch.from_numpy", self._from_numpy(torch.from_numpy)))
        self._entered.enter_context(patch.object(HostCopy, "__init__", self._sent(HostCopy.__init__)))
        self._entered.enter_context(patch.object(HostCopy, "ready", lambda copy: self._ready(copy)))
        self._entered.enter_context(patch.object(HostCopy, "read", self._read(HostCopy.read)))
        self._entered.enter_context(patch.object(graphed, "recorder", lambda _: lambda: self._record))
        self._entered.enter_context(patch.object(engine, "_triton_serves", lambda feats: not runs_compiled(feats)))
        self._entered.enter_context(patch.object(engine, "_triton_multiply", self._multiply))
        if importlib.util.find_spec("warp") is not None:
            self._entered.enter_context(patch("warp.launch", self._launch(importlib.import_module("warp").launch)))
        self._entered.enter_context(_Calls(self))
        self._entered.enter_context(_Operations(self))
        return self

    def __exit__(self, *error: Any) -> None:
        self._entered.close()

    def _from_numpy(self, original: Callable[[Any], torch.Tensor]) -> Callable[[Any], torch.Tensor]:
        def from_numpy(array: Any) -> torch.Tensor:
            tensor = original(array)
            self.on_host[tensor] = True
            return tensor

        return from_numpy

    def _sent(self, original: Callable[..., None]) -> Callable[..., None]:
        def send(copy: HostCopy, tensor: torch.Tensor) -> None:
            original(copy, tensor)
            self._waits_before[copy] = self.waits.total()

        return send

    def _ready(self, copy: HostCopy) -> bool:
        """The host reads it only then."""
        self._waits_before[copy] = -1
        return True

    def _read(self, original: Callable[[HostCopy], torch.Tensor]) -> Callable[[HostCopy], torch.Tensor]:
        """A copy has arrived with whatever the host waited for after it was sent."""

        def read(copy: HostCopy) -> torch.Tensor:
            if self.waits.total() == self._waits_before.get(copy, 0):
                self.wait()
            tensor = original(copy)
            self.on_host[tensor] = True
            return tensor

        return read

    def _launch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def launch(kernel: Any, *args: Any, **options: Any) -> Any:
            self.operation(kernel.key)
            return original(kernel, *args, **options)

        return launch

    def _record(self, work: graphed.Work, _: graphed.Work | None) -> tuple[tuple[torch.Tensor, ...], graphed.Replay]:
        """A graph for the CPU: its work, done anew into the same memory, counts as one launch."""
        with self.quiet():
            results = work()

        def replay() -> None:
            OperationCount.active.operation("graph")
            with OperationCount.active.quiet():
                for result, value in zip(results, work(), strict=True):
                    result.copy_(value)

        return results, replay

    def _multiply(self, *args: Any) -> torch.Tensor:
        """A Triton kernel: one launch, whatever torch needs to compute it on the CPU."""
        self.operation("gather_multiply")
        with self.quiet(), patch.object(engine, "_triton_serves", lambda feats: False):
            return engine._multiply_gathered(*args)

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Count nothing inside of the context."""
        self._quiet += 1
        try:
            yield
        finally:
            self._quiet -= 1

    def operation(self, name: str) -> None:
        """Book one."""
        if self._quiet:
            return
        self.operations[asking_module()] += 1

    def wait(self) -> None:
        """Book one."""
        if self._quiet:
            return
        self.waits[asking_module()] += 1

    def row(self) -> Row:
        """Counts as nested mappings for the JSON file."""
        modules = {
            name: {"operations": count, "waits": self.waits[name]} for name, count in self.operations.most_common()
        }
        for name in self.waits.keys() - modules.keys():
            modules[name] = {"operations": 0, "waits": self.waits[name]}
        return {"operations": self.operations.total(), "waits": self.waits.total(), "by_module": modules}


class _Operations(TorchDispatchMode):
    """Operations, and of them those that wait."""

    def __init__(self, count: OperationCount) -> None:
        super().__init__()
        self._count = count

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Row | None = None) -> Any:
        kwargs = kwargs or {}
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:  # composed of other operations, which are counted instead
                return func._op_dk(DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        first = next((t for t in tensors if t.ndim), tensors[0] if tensors else None)  # numbers may come from anywhere
        result = func(*args, **kwargs)
        if first is not None and first in self._count.on_host:
            for x in tree_leaves(result):
                if isinstance(x, torch.Tensor):
                    self._count.on_host[x] = True
            return result
        name = func._schema.name.split("::")[1]
        if name not in FREE:
            self._count.operation(name)
            if name in WAITING or _by_mask(name, args) or (name == "repeat_interleave" and "output_size" not in kwargs):
                self._count.wait()
        return result


class _Calls(TorchFunctionMode):
    """Count copies between host and device."""

    def __init__(self, count: OperationCount) -> None:
        super().__init__()
        self._count = count

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Row | None = None) -> Any:
        kwargs = kwargs or {}
        on_host = self._count.on_host
        if func in (torch.Tensor.cpu, torch.Tensor.tolist) and args[0] not in on_host:
            self._count.wait()
            if func is torch.Tensor.cpu:
                copy = args[0].view_as(args[0])
                on_host[copy] = True
                return copy
        if func == torch.Tensor.device.__get__ and args[0] in on_host and not runs_compiled(args[0]):  # type: ignore[attr-defined]
            return HOST
        result = func(*args, **kwargs)
        if func is torch.tensor and "device" not in kwargs:
            on_host[result] = True
        elif func is torch.Tensor.to and args[0] in on_host and self._to_device((*args[1:], kwargs.get("device"))):
            self._count.operation("upload")
            copy = result.view_as(result)
            del on_host[copy]
            return copy
        return result

    def _to_device(self, arguments: Sequence[Any]) -> bool:
        """Whether the arguments of ``Tensor.to`` name a device or a tensor on one."""
        to_device = isinstance(arguments[0], torch.Tensor) and arguments[0] not in self._count.on_host
        named = (a for a in arguments if isinstance(a, (torch.device, str)) and a != HOST and a != "cpu")
        return to_device or any(True for _ in named)


def _by_mask(name: str, args: Sequence[Any]) -> bool:
    """Whether the index is a mask, whose number of hits has to be read."""
    if name not in ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"):
        return False
    return any(isinstance(a, torch.Tensor) and a.dtype in (torch.bool, torch.uint8) for a in args[1])


def asking_module() -> str:
    """The innermost frame of the project, as a path within its packages."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        for package in PACKAGES:
            if package in file:
                return file.rsplit(package, 1)[1]
        frame = frame.f_back  # type: ignore[assignment]
    return "torch"


# --------------------------------------------------------------------------------------------------------------------


def counted(call: Callable[[], Any]) -> OperationCount:
    """Run ``call`` on the device path."""
    with device_path(), OperationCount() as count:
        call()
    return count


@cache
def two_rooms() -> list[PosedFrame]:
    """One lap of the tour."""
    return frames_of(2, 20)


def look_and_keyframe() -> tuple[OperationCount, OperationCount]:
    """One perception at the 13th keyframe of the tour, and the integration of the 14th."""
    with device_path():
        inference = load_inference("tiny", "cpu")
    config = PerceptronConfig(keyframes=every_frame(40), network=NetworkOptions(weights="tiny"))
    volume = FeatureVolume(config.volume, config.keyframes, features=inference.image_features(), kernels="warp")
    it = Perceptron(config, volume, inference)
    frames = [again(frame, 200_000_000 * (i + 1)) for i, frame in enumerate(two_rooms()[:14])]
    with device_path(), OperationCount():  # records the graphs
        for frame in frames[:12]:
            it.integrate(frame)
        it.perceive()
        it.integrate(frames[12])
    return counted(it.perceive), counted(lambda: it.integrate(frames[13]))


def vga(frame: PosedFrame, stamp_ns: int) -> PosedFrame:
    """A frame at 640 x 480, its pixels repeated."""
    f, k = frame.frame, frame.frame.intrinsics
    rows, columns = np.arange(480) * k.height // 480, np.arange(640) * k.width // 640
    wide = Intrinsics(k.fx * 640 / k.width, k.fy * 480 / k.height, 319.5, 239.5, 640, 480)
    color, depth_m = (np.ascontiguousarray(image[rows][:, columns]) for image in (f.color, f.depth_m))
    image = RgbdFrame(stamp_ns, f.camera, color, depth_m, wide)
    return PosedFrame(image, frame.T_world_camera)


def host_frame_ms(count: int = 60) -> float:
    """CPU time of the host for a frame at 640 x 480 into the map on a device, without its kernels; median, ms."""
    import warp as wp

    tour, spent = frames_of(2, 4), []
    frames = [vga(tour[i % len(tour)], 33_000_000 * (i + 1)) for i in range(count)]
    empty, kept = np.empty, np.empty(1 << 22, np.uint8)

    def reused(shape: Any, dtype: Any = float) -> Any:
        """For a GPU, torch keeps the memory of uploads."""
        return kept[:shape] if dtype == np.uint8 else empty(shape, dtype)

    packed = patch.object(wp, "launch", partial(wp.launch, record_cmd=True))  # it packs the arguments alone
    with device_path(), packed, patch.object(np, "empty", reused):
        volume = FeatureVolume(None, GEOMETRY, kernels="warp")
        for frame in frames:
            start = time.thread_time()
            volume.integrate(frame)
            spent.append(1e3 * (time.thread_time() - start))
    return sorted(spent)[count // 2]


ALL_HEADS = {"task": "multi", "preset": "tiny", "images": "imagenet"}
PAPER_GROUNDING = {"task": "grounding", "preset": "paper", "text": "minilm", "views": 4}


def training_step(
    scenes: int,
    path: Callable[[], contextlib.AbstractContextManager[None]] = device_path,
    precision: Precision = "float32",
    what: Mapping[str, Any] = ALL_HEADS,
    steps: int = 2,
) -> tuple[OperationCount, list[dict[str, float]]]:
    """Counts of the second training step on generated homes, and the log lines of all steps.

    ``what`` is trained; networks of ``paper`` have a quarter of their channels."""
    config = TrainingRun.of(
        {}, **what, data=Path(_homes(scenes).name), batch=scenes, steps=steps, validations=0, workers=1,
        checkpoint_s=1e9, precision=precision,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        task = SceneTask(config, lambda own: narrowed(own, 4 if own.name == "paper" else 1))
        trainer = _SecondStep(task, config, RunFolder(Path(folder), pictures=False), quiet=True)
        with path():
            trainer.run()
    return trainer.count, trainer.logged


@cache
def _homes(scenes: int) -> tempfile.TemporaryDirectory[str]:
    """Generated homes, kept with their prepared scenes until the process ends."""
    folder = tempfile.TemporaryDirectory()
    generate(Path(folder.name), list(HOMES[:scenes]), HomeSampleSpec(8, 160, 120), "train")
    return folder


def narrowed(config: NetworkConfig, by: int) -> NetworkConfig:
    """Divide all channels of a network by ``by``, except those of its inputs and outputs."""
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


class _SecondStep(Trainer):
    """Counts the second step, after one-time set-up in the first."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.count = OperationCount()
        self.logged: list[dict[str, float]] = []

    def _step(self, batches: Any) -> None:
        with self.count if self.counters.step == 1 else OperationCount():
            super()._step(batches)

    def _log_step(self, values: Mapping[str, float], rate: float) -> None:
        self.logged.append(dict(values))
        super()._log_step(values, rate)


def main() -> int:
    options = report.parse(report.parser(__doc__))
    perceive, integrate = look_and_keyframe()
    scenes = 2 if options.quick else 4
    step, _ = training_step(scenes)
    grounding, _ = training_step(scenes, what=PAPER_GROUNDING)
    results = {"perceive": perceive.row(), "integrate": integrate.row(), "train_step": step.row()}
    results["train_step_paper_grounding"] = grounding.row()
    for name, row in results.items():
        report.show(name, [{"module": module, **of} for module, of in row["by_module"].items()])
    totals = [{"work": name, "operations": row["operations"], "waits": row["waits"]} for name, row in results.items()]
    report.show("all modules", totals)
    figures = {"training_scenes": scenes, "host_frame_ms": host_frame_ms()}
    report.show("host", figures)
    report.write(options, figures, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
