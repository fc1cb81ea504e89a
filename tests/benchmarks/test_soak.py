"""The soak benchmark: the way it drives, and what it calls healthy. No node is started."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock, create_autospec

import numpy as np
import pytest

pytest.importorskip("rclpy")
pytest.importorskip("embodied_perceptron_msgs.msg")

from support.scripts import load_script

from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.recordings.tum import TumWriter
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame

CAMERA = Intrinsics(30.0, 30.0, 15.5, 11.5, 32, 24)
ARGUMENTS = argparse.Namespace(minutes=1.0, hz=30.0, homes=1, weights="")


@pytest.fixture(scope="module")
def soak() -> ModuleType:
    return load_script("benchmarks/soak.py")


def test_a_lap_goes_there_and_back(soak: ModuleType, tmp_path: Path) -> None:
    with TumWriter(tmp_path / "home", CAMERA) as writer:
        for index in range(3):
            T = np.eye(4)
            T[0, 3] = 0.1 * index
            writer.add(10**18 + index * 10**8, np.zeros((24, 32, 3), np.uint8), np.ones((24, 32), np.float32), T)
    frames = soak.lap_frames([tmp_path / "home", tmp_path / "home"])
    x = [round(float(posed.T_world_camera[0, 3]), 6) for posed in frames]
    assert x[:6] == [0.0, 0.1, 0.2, 0.2, 0.1, 0.0]
    assert x[6:] == [soak.APART_M + value for value in x[:6]]


def lap(soak: ModuleType, memory_mib: float, unexplained: int = 0, ids_kept: float | None = 1.0) -> object:
    return soak.Lap(10.0, memory_mib, 300, 290, 10, unexplained, 12, ids_kept)


@pytest.mark.parametrize(
    ("memory", "unexplained", "errors", "healthy"),
    [
        ([500, 900, 901, 899, 902], 0, 0, True),  # the first lap builds the map
        ([500, 900, 1000, 1100, 1200], 0, 0, False),
        ([500, 900, 901], 1, 0, False),
        ([500, 900, 901], 0, 2, False),
        ([500], 0, 0, True),
        ([], 0, 0, False),
    ],
)
def test_what_is_healthy(soak: ModuleType, memory: list[int], unexplained: int, errors: int, healthy: bool) -> None:
    done = [lap(soak, float(m), unexplained) for m in memory]
    result = soak.summarise(done, {"overload": 10}, errors, ARGUMENTS)
    assert result["healthy"] is healthy
    assert len(result["laps"]) == len(memory)


def test_growth_is_counted_after_the_first_lap(soak: ModuleType) -> None:
    done = [lap(soak, 100.0, ids_kept=None), lap(soak, 500.0), lap(soak, 510.0, ids_kept=0.5)]
    result = soak.summarise(done, {}, 0, ARGUMENTS)
    assert result["memory_growth_mib_per_lap"] == 10.0
    assert result["ids_kept"] == 0.75


def test_frames_are_published_as_by_a_driver(soak: ModuleType) -> None:
    monitor = MagicMock()
    feeder = soak.Feeder(monitor)
    frame = RgbdFrame(1, "camera", np.zeros((24, 32, 3), np.uint8), np.ones((24, 32), np.float32), CAMERA)
    feeder.send(PosedFrame(frame, np.eye(4)))
    topics = [call.args[1] for call in monitor.node.create_publisher.call_args_list]
    assert topics == ["/color/image_raw", "/depth/image_raw", "/color/camera_info", "/tf"]
    assert feeder.sent == 1


@pytest.mark.parametrize("short", [True, False])
def test_the_shared_drive_is_rendered_with_options_of_its_home(
    short: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = load_script("benchmarks/_inputs.py")
    render = create_autospec(inputs.render)
    monkeypatch.setattr(inputs, "render", render)
    monkeypatch.setattr(inputs, "simulated_recording", lambda seed: tmp_path / "drive")
    assert inputs.simulated_drive(7, short).name == ("drive_short" if short else "drive")
    options = render.call_args.args[1]
    assert options[options.index("--seed") + 1] == "7"
    assert ("160x120" in options) == short
