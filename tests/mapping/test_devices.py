"""The device that a name stands for, and a map that outlives its device."""

from __future__ import annotations

import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.online_world import config as online_config
from support.online_world import inference, walk
from support.volume_frames import assert_same_voxels, needs_warp, random_walk
from torch.utils._python_dispatch import TorchDispatchMode

from embodied_perceptron.config import (
    ConfigError,
    KeyframeConfig,
    LiftOptions,
    NetworkOptions,
    PerceptronConfig,
    VolumeConfig,
)
from embodied_perceptron.mapping import devices, voxels
from embodied_perceptron.mapping.devices import is_device_fault, resolve_device, yield_to_fusion
from embodied_perceptron.mapping.host_map import HostMap
from embodied_perceptron.mapping.volume import FeatureVolume
from embodied_perceptron.perceptron import Perceptron

WARP_MAP = "embodied_perceptron.mapping.warp_map"
LOST = RuntimeError("CUDA error: unspecified launch failure\nmore lines")


@pytest.fixture(autouse=True)
def automatic() -> Any:
    """The choice is made once a process."""
    choice = devices._automatic
    choice.cache_clear()
    yield
    choice.cache_clear()


def test_auto_is_the_default_everywhere() -> None:
    assert {VolumeConfig().device, NetworkOptions().device, LiftOptions().device} == {"auto"}


def test_a_name_that_is_none_gets_one_line() -> None:
    for name in ("gpu", "warp9", "", "cuda0", "CPU"):
        with pytest.raises(ConfigError, match=f"network device must be auto, cpu, cuda or cuda:N, got {name!r}"):
            resolve_device(name, "network device")
    assert resolve_device("cpu") == torch.device("cpu")


def test_a_gpu_gets_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warp finds devices by number: without it, the map of "cuda" was on the CPU."""
    tried = SimpleNamespace(add_=lambda _: tried, cpu=lambda: None, device=torch.device("cuda", 1))
    monkeypatch.setattr(devices.torch, "zeros", lambda *_, device: tried)
    monkeypatch.setattr(devices, "_described", str)
    monkeypatch.setattr(devices, "NO_WARP", "")
    assert resolve_device("cuda") == torch.device("cuda", 1)


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_gpus_that_are_hidden_are_said_to_be(
    hidden: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    with pytest.raises(ConfigError, match=r"CUDA_VISIBLE_DEVICES.*hides every GPU") as error:
        resolve_device("cuda")
    assert "\n" not in str(error.value)
    with caplog.at_level(logging.INFO):
        assert resolve_device("auto", "volume device").type == "cpu"
    (line,) = caplog.messages
    assert line.startswith("volume device: cpu, CUDA_VISIBLE_DEVICES=")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with pytest.raises(ConfigError, match="no GPU, no driver, or one too old"):
        resolve_device("cuda:1")
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(ConfigError, match="built without CUDA"):
        resolve_device("cuda")


@pytest.mark.filterwarnings("ignore:CUDA initialization")
def test_a_driver_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable() -> bool:
        warnings.warn(
            "CUDA initialization: The NVIDIA driver on your system is too old (found version 11040). Please update",
            stacklevel=2,
        )
        return False

    monkeypatch.setattr(torch.cuda, "is_available", unavailable)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(ConfigError, match=r"driver on your system is too old.*11040") as error:
        resolve_device("cuda")
    assert "\n" not in str(error.value)


@needs_warp
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("cuda", "CUDA error: no kernel image is available for execution on the device"),  # torch for other cards
        ("cuda", "CUDA error: all CUDA-capable devices are busy or unavailable"),  # a process has it for itself
        ("cuda", "CUDA out of memory. Tried to allocate 2.00 MiB"),  # others have filled it
        ("cuda:7", "CUDA error: invalid device ordinal"),
    ],
)
def test_auto_leaves_a_gpu_alone_that_does_not_work(
    name: str, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def zeros(*shape: int, device: Any) -> torch.Tensor:
        raise (torch.OutOfMemoryError if "memory" in reason else RuntimeError)(f"{reason}\nCompile with ...")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(devices.torch, "zeros", zeros)
    with caplog.at_level(logging.INFO):
        assert resolve_device("auto").type == "cpu"
    (line,) = caplog.messages
    assert line == f"device: cpu, for the GPU does not work: {reason}"
    with pytest.raises(ConfigError) as error:
        resolve_device(name)
    assert str(error.value) == f"device {name!r} is not available: {reason}"


def test_voxels_go_where_the_network_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that is there stays without voxels when the network is on the CPU; a device that is named is kept."""
    monkeypatch.setattr(devices, "_automatic", lambda: (torch.device("meta"), "a GPU"))
    made = SimpleNamespace(WarpMap=lambda config, device, spill: SimpleNamespace(device=device))
    monkeypatch.setitem(sys.modules, WARP_MAP, made)
    it = Perceptron(PerceptronConfig(network=NetworkOptions(device="cpu")), inference=inference("float32"))
    assert it.devices == {"network": "cpu", "volume": "cpu"}
    assert isinstance(it.volume._map, HostMap)
    assert FeatureVolume(VolumeConfig(max_blocks=64)).device.type == "meta"
    found = FeatureVolume(VolumeConfig(max_blocks=64, device="cpu"), network_device=torch.device("meta"))
    assert found.device.type == "cpu"


def test_what_counts_as_a_fault_of_a_device() -> None:
    assert is_device_fault(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_device_fault(LOST)
    assert is_device_fault(
        RuntimeError("Error launching kernel: merge on device cuda:0: Warp CUDA error 2: out of memory")
    )
    assert not is_device_fault(RuntimeError("shapes do not fit"))
    assert not is_device_fault(ValueError("CUDA error"))


def anew(error: RuntimeError) -> RuntimeError:
    """The same fault anew: an instance that is raised keeps the frames of its traceback, and the map in them."""
    return type(error)(*error.args)


def failing(monkeypatch: pytest.MonkeyPatch, what: str, at: int, error: RuntimeError, for_good: bool) -> None:
    """From call ``at`` on (or at this one alone) a method of the device's map fails, or a kernel of it."""
    from embodied_perceptron.mapping.warp_map import WarpMap

    calls = [0]
    method = what if hasattr(WarpMap, what) else "_launch"
    original: Callable[..., Any] = getattr(WarpMap, method)

    def call(self: WarpMap, *args: Any, **kwargs: Any) -> Any:
        if method == what or args[0].key.endswith(what):
            calls[0] += 1
            if calls[0] == at or (for_good and calls[0] > at):
                raise anew(error)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(WarpMap, method, call)


@needs_warp
@pytest.mark.parametrize("what", ["erase_blocks", "rebuild_table", "accumulate", "merge", "clear_blocks", "gather"])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), LOST])
def test_a_map_outlives_its_device(
    what: str, error: RuntimeError, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Out of memory in the middle of a frame, and of a copy: the voxels move as they are."""
    frames = random_walk(3, 8)
    expected, found = FeatureVolume(VolumeConfig()), FeatureVolume(VolumeConfig(), kernels="warp")
    failing(monkeypatch, what, 4, error, for_good=False)
    for frame in frames:
        a, b = expected.integrate(frame), found.integrate(frame)
        assert (a.points, a.voxels_touched, a.voxels_cleared) == (b.points, b.voxels_touched, b.voxels_cleared)
        assert_same_voxels(found.snapshot(1), expected.snapshot(1))
    assert isinstance(found._map, HostMap)
    assert str(error).splitlines()[0] in found.fault
    assert "\n" not in found.fault
    assert caplog.messages == [found.fault]
    assert len(found) == len(expected)
    assert found.statistics().frames_fused == len(frames)


class FailsOnce(TorchDispatchMode):
    """Out of memory at one operation or launch, of those that are counted from the first on."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count(func is not torch.ops.aten.detach.default)  # which needs no memory
        return func(*args, **(kwargs or {}))

    def count(self, operations: int) -> None:
        self.operations += operations
        if operations and self.operations == self.at:
            raise torch.OutOfMemoryError("CUDA out of memory")


@needs_warp
@pytest.mark.parametrize("max_blocks", [4096, 200])
def test_no_point_counts_twice_wherever_in_a_frame_the_device_fails(
    max_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The map and the report are those of a CPU, whichever operation of the device finds no memory."""
    monkeypatch.setattr(voxels, "BAND_PIXELS", 64 * 24)  # two bands
    frames = random_walk(1, 4)
    from embodied_perceptron.mapping.warp_map import WarpMap

    launch = WarpMap._launch
    config = VolumeConfig(voxel_size_m=0.04, max_blocks=max_blocks, radius_m=5.0)
    expected = FeatureVolume(config)
    reports = [expected.integrate(frame) for frame in frames]
    assert reports[-1].voxels_cleared > 0

    def fails(at: int) -> tuple[FeatureVolume, FailsOnce]:
        found = FeatureVolume(config, kernels="warp")
        for frame in frames[:-1]:
            found.integrate(frame)
        with FailsOnce(at) as device, monkeypatch.context() as patch:
            patch.setattr(WarpMap, "_launch", lambda self, *a: (device.count(1), launch(self, *a)))
            report = found.integrate(frames[-1])
        assert report.counts == reports[-1].counts, at
        assert_same_voxels(found.snapshot(1), expected.snapshot(1), str(at))
        return found, device

    found, device = fails(0)
    assert not found.fault
    last = device.operations
    assert last > 15
    for at in range(1, last + 1):
        found, _ = fails(at)
        assert "out of memory" in found.fault


@needs_warp
def test_a_device_that_gives_nothing_back_leaves_the_keyframes(monkeypatch: pytest.MonkeyPatch) -> None:
    every = KeyframeConfig(translation_m=1e-6, rotation_rad=1e-6, min_interval_s=0.0, max_count=40)
    frames = random_walk(3, 6)
    expected, found = FeatureVolume(VolumeConfig(), every), FeatureVolume(VolumeConfig(), every, kernels="warp")
    for frame in frames[:-1]:
        expected.integrate(frame)
        found.integrate(frame)
    failing(monkeypatch, "accumulate", 1, LOST, for_good=True)
    failing(monkeypatch, "gather", 1, LOST, for_good=True)
    expected.integrate(frames[-1])
    assert found.integrate(frames[-1]).fused
    assert f"made anew from {len(frames) - 1} keyframes" in found.fault
    assert_same_voxels(found.snapshot(1), expected.snapshot(1))


@needs_warp
def test_reports_of_a_device_that_is_lost_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It failed after it was asked: what it did is not known, and the next frame moves the map."""

    from embodied_perceptron.mapping import warp_map

    class Lost:
        def ready(self) -> bool:
            raise anew(LOST)

        read = ready

    frames = random_walk(3, 4)
    found = FeatureVolume(VolumeConfig(), kernels="warp")
    found.integrate(frames[0])
    with monkeypatch.context() as patch:
        patch.setattr(warp_map._Counts, "send", lambda counts: setattr(counts, "_copy", Lost()))
        report = found.integrate(frames[1])
    assert report.counts.ready()
    assert (report.fused, report.points, report.voxels_cleared) == (True, 0, 0)
    failing(monkeypatch, "accumulate", 1, LOST, for_good=True)
    assert found.integrate(frames[2]).points > 0
    assert found.fault
    assert found.statistics().frames_fused == 3


@needs_warp
def test_faults_of_the_program_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    found = FeatureVolume(VolumeConfig(), kernels="warp")
    failing(monkeypatch, "accumulate", 1, RuntimeError("shapes do not fit"), for_good=True)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        found.integrate(random_walk(3, 1)[0])
    assert not found.fault


def test_a_card_without_room_for_the_voxels(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object) -> HostMap:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.2 GiB")

    monkeypatch.setitem(sys.modules, WARP_MAP, SimpleNamespace(WarpMap=no_room))
    found = FeatureVolume(VolumeConfig(), kernels="warp")
    assert isinstance(found._map, HostMap)
    assert "cpu has no room for the map's voxels: CUDA out of memory" in found.fault
    with pytest.raises(ConfigError, match="no room for the map's voxels"):
        FeatureVolume(VolumeConfig(device="cpu"), kernels="warp")


def test_without_the_package_the_cpu_holds_the_map(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, WARP_MAP, None)  # its import fails
    with caplog.at_level(logging.WARNING):
        found = FeatureVolume(VolumeConfig(), kernels="warp")
    assert isinstance(found._map, HostMap)
    assert "voxels are on the CPU: a map on cpu needs the package warp-lang" in found.fault
    assert caplog.messages == [found.fault]
    assert found.integrate(random_walk(3, 1)[0]).points > 0


@needs_warp
def test_a_driver_that_is_too_old_leaves_the_map_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: torch.device) -> None:
        raise RuntimeError(f"CUDA driver 11.4 is older than 12.0, on {device}\nmore lines")

    monkeypatch.setattr("warp.device_from_torch", refuse)
    found = FeatureVolume(VolumeConfig(), kernels="warp")
    assert isinstance(found._map, HostMap)
    assert found.fault.endswith("warp-lang does not work on cpu: CUDA driver 11.4 is older than 12.0, on cpu")


@needs_warp
def test_a_device_gives_memory_as_the_map_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embodied_perceptron.mapping.warp_map._FIRST_SLOTS", 64)
    frames = random_walk(3, 8)
    expected, found = FeatureVolume(VolumeConfig()), FeatureVolume(VolumeConfig(), kernels="warp")
    reserved = [found.statistics().reserved_bytes]
    for frame in frames:
        expected.integrate(frame)
        found.integrate(frame)
        reserved.append(found.statistics().reserved_bytes)
    assert sorted(set(reserved)) == list(dict.fromkeys(reserved))  # never less
    assert 2 < len(set(reserved)) < len(frames)
    assert found.statistics().blocks > 64
    assert reserved[-1] < expected.statistics().reserved_bytes / 4
    assert found.snapshot(1).coords.tolist() == expected.snapshot(1).coords.tolist()


@needs_warp
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), LOST])
@pytest.mark.parametrize("what", ["_allocate", "_size_scratch"])  # of the voxels, and of the table of blocks
def test_a_device_that_fails_as_the_map_grows(
    what: str, error: RuntimeError, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No room, for another process has taken it, and a card that was removed."""
    monkeypatch.setattr("embodied_perceptron.mapping.warp_map._FIRST_SLOTS", 64)
    failing(monkeypatch, what, 2, error, for_good=True)
    expected, found = FeatureVolume(VolumeConfig()), FeatureVolume(VolumeConfig(), kernels="warp")
    with caplog.at_level(logging.WARNING):
        for frame in random_walk(3, 4):
            assert found.integrate(frame).counts == expected.integrate(frame).counts
    assert isinstance(found._map, HostMap)
    assert caplog.messages == [found.fault]
    assert_same_voxels(found.snapshot(1), expected.snapshot(1))


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), LOST])
def test_a_network_goes_on_on_the_cpu(error: RuntimeError, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that is lost, and one without room even for the smallest window; the answers are those of the CPU."""
    frames = walk(0, 5)
    there, here = (Perceptron(online_config(), inference=inference("float32")) for _ in range(2))
    predictor = there.inference
    assert predictor is not None
    predictor._device = torch.device("cuda")  # a fake one, until the first prediction
    original, sizes = predictor._predict, []

    def predict(window: Any, copy: Any, direction: Any, floor_z_m: float, size_m: float, *more: Any) -> Any:
        if predictor._device.type != "cpu":
            sizes.append(size_m)
            raise anew(error)
        return original(window, copy, direction, floor_z_m, size_m, *more)

    monkeypatch.setattr(predictor, "_predict", predict)
    for frame in frames:
        for it in (there, here):
            it.integrate(frame)
    seen, expected = there.perceive(), here.perceive()
    assert there.prediction is not None
    assert here.prediction is not None
    np.testing.assert_array_equal(there.prediction.detections.boxes, here.prediction.detections.boxes)
    assert len(seen.voxels) == len(expected.voxels) > 0
    assert len(sizes) == (1 if error is LOST else len(sizes))
    assert sorted(sizes, reverse=True) == sizes
    (fault,) = there.device_faults
    assert "moved to the CPU, cuda failed: CUDA" in fault
    assert seen.diagnostics[0] == fault
    assert there.devices == {"network": "cpu", "volume": "cpu"}
    assert not here.device_faults
    again = there.perceive()  # and it stays so
    assert fault in again.diagnostics


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of threads")
def test_what_may_take_its_time_gives_way_and_so_do_its_threads() -> None:
    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    found: list[int] = []

    def work() -> None:
        yield_to_fusion()
        found.append(priority())
        child = threading.Thread(target=lambda: found.append(priority()))
        child.start()
        child.join()

    before = priority()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [min(before + 5, 19)] * 2
    assert priority() == before  # fusing goes on as it was
