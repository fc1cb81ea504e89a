"""The device that a name stands for, and a map that outlives its device."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.online_world import config as online_config
from support.online_world import inference, walk
from support.volume_frames import random_walk

from embodied_perceptron.config import ConfigError, KeyframeConfig, LiftOptions, NetworkOptions, VolumeConfig
from embodied_perceptron.mapping import devices, volume
from embodied_perceptron.mapping.devices import is_device_fault, resolve_device
from embodied_perceptron.mapping.numba_voxels import NumbaVoxels
from embodied_perceptron.mapping.torch_voxels import TorchVoxels
from embodied_perceptron.mapping.volume import FeatureVolume
from embodied_perceptron.perceptron import Perceptron

COLUMNS = ("coords", "mean_point_m", "mean_color", "hits", "evidence", "last_seen_ns")
LOST = RuntimeError("CUDA error: unspecified launch failure\nmore lines")


@pytest.fixture(autouse=True)
def automatic() -> Any:
    """The choice is made once a process."""
    devices._automatic.cache_clear()
    yield
    devices._automatic.cache_clear()


def test_auto_is_the_default_everywhere() -> None:
    assert {VolumeConfig().device, NetworkOptions().device, LiftOptions().device} == {"auto"}


def test_a_name_that_is_none_gets_one_line() -> None:
    for name in ("gpu", "warp9", "", "cuda0", "CPU"):
        with pytest.raises(ConfigError, match=f"network device must be auto, cpu, cuda or cuda:N, got {name!r}"):
            resolve_device(name, "network device")
    assert resolve_device("cpu") == torch.device("cpu")


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


def test_what_counts_as_a_fault_of_a_device() -> None:
    assert is_device_fault(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_device_fault(LOST)
    assert not is_device_fault(RuntimeError("shapes do not fit"))
    assert not is_device_fault(ValueError("CUDA error"))


def failing(monkeypatch: pytest.MonkeyPatch, method: str, at: int, error: RuntimeError, for_good: bool) -> None:
    """From call ``at`` on (or at this one alone) a method of the device's voxels fails."""
    calls = [0]
    original: Callable[..., Any] = getattr(TorchVoxels, method)

    def call(self: TorchVoxels, *args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == at or (for_good and calls[0] > at):
            raise error
        return original(self, *args, **kwargs)

    monkeypatch.setattr(TorchVoxels, method, call)


@pytest.mark.parametrize("method", ["accumulate", "gather"])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), LOST])
def test_a_map_outlives_its_device(method: str, error: RuntimeError, monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of memory in the middle of a frame, and of a copy: the voxels move as they are."""
    frames = random_walk(3, 8)
    expected, found = FeatureVolume(VolumeConfig()), FeatureVolume(VolumeConfig(), kernels="torch")
    failing(monkeypatch, method, 4, error, for_good=False)
    for frame in frames:
        a, b = expected.integrate(frame), found.integrate(frame)
        assert (a.points, a.voxels_touched, a.voxels_cleared) == (b.points, b.voxels_touched, b.voxels_cleared)
        for name in COLUMNS:
            np.testing.assert_array_equal(getattr(found.snapshot(1), name), getattr(expected.snapshot(1), name))
    assert isinstance(found._store, NumbaVoxels)
    assert str(error).splitlines()[0] in found.fault
    assert "\n" not in found.fault
    assert len(found) == len(expected)


def test_a_device_that_gives_nothing_back_leaves_the_keyframes(monkeypatch: pytest.MonkeyPatch) -> None:
    every = KeyframeConfig(translation_m=1e-6, rotation_rad=1e-6, min_interval_s=0.0, max_count=40)
    frames = random_walk(3, 6)
    expected, found = FeatureVolume(VolumeConfig(), every), FeatureVolume(VolumeConfig(), every, kernels="torch")
    for frame in frames[:-1]:
        expected.integrate(frame)
        found.integrate(frame)
    failing(monkeypatch, "accumulate", 1, LOST, for_good=True)
    failing(monkeypatch, "gather", 1, LOST, for_good=True)
    expected.integrate(frames[-1])
    assert found.integrate(frames[-1]).fused
    assert f"made anew from {len(frames) - 1} keyframes" in found.fault
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(found.snapshot(1), name), getattr(expected.snapshot(1), name))


def test_faults_of_the_program_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    found = FeatureVolume(VolumeConfig(), kernels="torch")
    failing(monkeypatch, "accumulate", 1, RuntimeError("shapes do not fit"), for_good=True)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        found.integrate(random_walk(3, 1)[0])
    assert not found.fault


def test_a_card_without_room_for_the_voxels(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object) -> TorchVoxels:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.2 GiB")

    monkeypatch.setattr(volume, "TorchVoxels", no_room)
    found = FeatureVolume(VolumeConfig(), kernels="torch")
    assert isinstance(found._store, NumbaVoxels)
    assert "no room for max_blocks=60000" in found.fault
    with pytest.raises(ConfigError, match="no room for max_blocks=60000"):
        FeatureVolume(VolumeConfig(device="cpu"), kernels="torch")


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), LOST])
def test_a_network_goes_on_on_the_cpu(error: RuntimeError, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that is lost, and one without room even for the smallest window; the answers are those of the CPU."""
    frames = walk(0, 5)
    there, here = (Perceptron(online_config(), inference=inference("float32")) for _ in range(2))
    assert there._network is not None
    predictor = there._network.predictor
    predictor._device = torch.device("cuda")  # a fake one, until the first prediction
    original, sizes = predictor._predict, []

    def predict(copy: Any, direction: Any, floor_z_m: float, size_m: float, manhattan: Any) -> Any:
        if predictor._device.type != "cpu":
            sizes.append(size_m)
            raise error
        return original(copy, direction, floor_z_m, size_m, manhattan)

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
