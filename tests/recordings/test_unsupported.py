"""What is not supported yet ends in a sentence that names it, for `replay` and `doctor` alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from support.bag_tools import camera_info, compressed, image, transform, write_bag
from support.small_recording import write_recording
from typer.testing import CliRunner

from embodied_perceptron.apps.cli import build_app
from embodied_perceptron.geometry.transforms import Intrinsics, make_transform

COLOR, DEPTH, INFO = "/cam/color/image_raw", "/cam/depth/image_raw", "/cam/color/camera_info"
OPTICAL = "cam_optical"
RVL = "16UC1; compressedDepth rvl"
H, W = 12, 16
CAMERA = Intrinsics(20.0, 20.0, 7.5, 5.5, W, H)


def of(encoding: str, bytes_per_pixel: float, stamp_ns: int) -> Any:
    made = image(stamp_ns, OPTICAL, np.zeros((H, W), np.uint16))
    step = int(W * bytes_per_pixel)
    made.encoding, made.step, made.data = encoding, step, np.zeros(step * H, np.uint8)
    return made


def messages(**other: Callable[[int], tuple[str, Any] | None]) -> list[tuple[str, int, Any]]:
    """Five frames; ``other`` makes one of color, depth, info or static of a stamp: its topic and message, or None."""
    makers: dict[str, Callable[[int], tuple[str, Any] | None]] = {
        "static": lambda t: ("/tf_static", transform(t, "base", OPTICAL, np.eye(4))),
        "color": lambda t: (COLOR, image(t, OPTICAL, np.zeros((H, W, 3), np.uint8))),
        "depth": lambda t: (DEPTH, image(t, OPTICAL, np.full((H, W), 1500, np.uint16))),
        "info": lambda t: (INFO, camera_info(t, OPTICAL, CAMERA)),
        "pose": lambda t: ("/tf", transform(t, "odom", "base", make_transform(np.eye(3), np.zeros(3)))),
    }
    out = []
    for i in range(5):
        stamp_ns = 1_700_000_000_000_000_000 + i * 100_000_000
        for role, make in {**makers, **other}.items():
            made = make(stamp_ns) if i == 0 or role != "static" else None
            if made is not None:
                out.append((made[0], stamp_ns, made[1]))
    return out


def said(command: str, path: Path, tmp_path: Path) -> str:
    arguments = [command, str(path)]
    if command == "replay":
        arguments += ["--out", str(tmp_path / "out"), "--weights", "none"]
    result = CliRunner().invoke(build_app([]), arguments)
    assert result.exit_code != 0
    error = result.exception
    assert error is None or isinstance(error, SystemExit) or hasattr(error, "fault"), error
    return " ".join(f"{result.output} {error}".split())


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "depth 8UC3": ({"depth": lambda t: (DEPTH, of("8UC3", 3, t))}, "8UC3 cannot be read: colour may be"),
    **{
        f"colour {encoding}": (
            {"color": lambda t, e=encoding, b=size: (COLOR, of(e, b, t))},
            f"{encoding} cannot be read: colour may be",
        )
        for encoding, size in (*(("rgb16", 6), ("mono16", 2), ("32FC3", 12), ("p010", 3)),)
    },
    "depth RVL": (
        {
            "depth": lambda t: (
                DEPTH + "/compressedDepth",
                compressed(t, OPTICAL, "16UC1; compressedDepth rvl", b"12345678901234"),
            )
        },
        "RVL image is cut short",
    ),
    "depth of lower resolution": (
        {"depth": lambda t: (DEPTH, image(t, OPTICAL, np.full((H // 2, W // 2), 1500, np.uint16)))},
        "depth must be registered to colour",
    ),
    "no calibration": ({"info": lambda t: None}, "or use --intrinsics fx,fy,cx,cy"),
    "no static transforms": ({"static": lambda t: None}, f"frame '{OPTICAL}' is unknown"),
}


@pytest.mark.parametrize("command", ["replay", "doctor"])
@pytest.mark.parametrize("name", CASES)
def test_a_bag(tmp_path: Path, name: str, command: str) -> None:
    other, words = CASES[name]
    assert words in said(command, write_bag(tmp_path / "bag", messages(**other)), tmp_path)


@pytest.mark.parametrize("command", ["replay", "doctor"])
@pytest.mark.parametrize("kind", ["rtabmap_msgs/msg/RGBDImage", "realsense2_camera_msgs/msg/RGBD"])
def test_a_bag_of_messages_that_combine_colour_and_depth(tmp_path: Path, kind: str, command: str) -> None:
    store = get_typestore(Stores.ROS2_JAZZY)
    store.register(get_types_from_msg("std_msgs/Header header\nsensor_msgs/Image rgb\nsensor_msgs/Image depth\n", kind))
    with Writer(tmp_path / "bag", version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        connection = writer.add_connection("/camera/rgbd", kind, typestore=store)
        color = image(10**18, OPTICAL, np.zeros((H, W, 3), np.uint8))
        message = store.types[kind](color.header, color, color)
        writer.write(connection, 10**18, store.serialize_cdr(message, kind))
    output = said(command, tmp_path / "bag", tmp_path)
    assert f"/camera/rgbd ({kind}): messages that combine colour and depth cannot be read" in output
    assert "use the driver's separate topics" in output


def test_depth_of_lower_resolution_is_named_by_the_doctor(tmp_path: Path) -> None:
    other, _ = CASES["depth of lower resolution"]
    text = said("doctor", write_bag(tmp_path / "bag", messages(**other)), tmp_path)
    assert "publish its camera_info next to it: depth is then resized here" in text


def test_the_doctor_tells_where_static_transforms_are(tmp_path: Path) -> None:
    path = write_bag(tmp_path / "bag", messages(static=lambda t: None))
    assert "in a split recording only the first part has /tf_static" in said("doctor", path, tmp_path)


@pytest.mark.parametrize("command", ["replay", "doctor"])
def test_distorted_images_of_a_folder(tmp_path: Path, command: str) -> None:
    folder = write_recording(tmp_path / "folder")
    camera = json.loads((folder / "camera.json").read_text())
    (folder / "camera.json").write_text(json.dumps({**camera, "k1": 0.1}))
    assert "distortion is written as distortion_model and d" in said(command, folder, tmp_path)
