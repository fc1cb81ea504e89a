"""What doctor tells to do first is done: every remedy with an option of ours, on the recording that it is told of."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.bag_tools import camera_info, image, transform, write_bag
from support.small_recording import BOXES, INTRINSICS, S, camera_pose, frames, render
from typer.testing import CliRunner

from embodied_perceptron.apps import cli
from embodied_perceptron.geometry.transforms import invert_transform, make_transform, rotation_to_quaternion
from embodied_perceptron.recordings.artifacts import read_objects_json
from embodied_perceptron.recordings.tum import TumWriter

RUN = CliRunner(env={"COLUMNS": "300", "TERM": "dumb", "NO_COLOR": "1"})
APP = cli.build_app(())
COUNT = 12
G = np.diag([1.0, -1.0, -1.0, 1.0])
Y_UP = np.array([[1.0, 0, 0, 0], [0, 0, 1, 0], [0, -1, 0, 0], [0, 0, 0, 1]])


def folder(path: Path, written: Callable[[np.ndarray], np.ndarray] = lambda T: T) -> Path:
    with TumWriter(path, INTRINSICS) as writer:
        for stamp, color, depth_m, T in frames(COUNT):
            writer.add(stamp, color, depth_m, written(T))
    return path


def edit(path: Path, **changes: object) -> Path:
    spec = json.loads((path / "camera.json").read_text()) | changes
    (path / "camera.json").write_text(json.dumps(spec))
    return path


def bag(path: Path, robots: tuple[str, ...] = ("",), offset_s: float = 0.0) -> Path:
    """The room from one camera; ``robots``: namespaces of /tf, the first of which is right."""
    out = []
    for stamp, color, depth_m, T in frames(COUNT):
        raw = np.where(np.isfinite(depth_m), depth_m * 1000, 0).astype(np.uint16)
        later = stamp + round(offset_s * S)
        out += [
            ("/camera/color/image_raw", stamp, image(stamp, "optical", color)),
            ("/camera/depth/image_raw", stamp + 1, image(later, "optical", raw)),
            ("/camera/color/camera_info", stamp + 2, camera_info(stamp, "optical", INTRINSICS)),
        ]
        for number, robot in enumerate(robots):
            T_world = make_transform(np.eye(3), np.array([0.0, 3.0 * number, 0.0])) @ T
            out.append((f"{robot}/tf", stamp - 1, transform(stamp, "odom", "optical", T_world)))
    return write_bag(path, sorted(out, key=lambda m: m[1]))


def late_poses(path: Path, late_s: float = 0.1) -> Path:
    """A drive whose speed changes; its poses go on beyond the images, and their stamps are late."""
    lines = []
    with TumWriter(path, INTRINSICS) as writer:
        for k in range(-1, COUNT + 1):
            T, stamp = camera_pose(6 + 5 * np.sin(0.5 * k), COUNT), 10 * S + k * S // 5
            numbers = " ".join(f"{v:.9f}" for v in (*T[:3, 3], *rotation_to_quaternion(T[:3, :3])))
            lines.append(f"{stamp / S + late_s:.6f} {numbers}\n")
            if 0 <= k < COUNT:
                writer.add(stamp, *render(T), T)
    (path / "groundtruth.txt").write_text("".join(lines))
    return path


FAULTS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "opengl": (lambda p: folder(p, lambda T: T @ G), "OpenGL"),
    "inverse": (lambda p: folder(p, invert_transform), "inverse"),
    "yup": (lambda p: folder(p, lambda T: Y_UP @ T), "y up"),
    "arkit": (lambda p: folder(p, lambda T: Y_UP @ T @ G), "ARKit"),
    "poses in mm": (lambda p: folder(p, lambda T: make_transform(T[:3, :3], 1000 * T[:3, 3])), "scale"),
    "depth scale": (lambda p: edit(folder(p), depth_scale=5000.0), "scale"),
    "poses late": (late_poses, "too late"),
    "two robots": (lambda p: bag(p, ("/robot1", "/robot2")), "transforms"),
}


def run(*arguments: str) -> tuple[int, str]:
    done = RUN.invoke(APP, list(arguments))
    return done.exit_code, done.output


def distance_to_surface(points: np.ndarray) -> np.ndarray:
    distances = []
    for low, high, _ in BOXES:
        q = np.abs(points - (np.array(low) + high) / 2) - (np.array(high) - low) / 2
        distances.append(np.abs(np.linalg.norm(np.maximum(q, 0), axis=1) + np.minimum(q.max(axis=1), 0)))
    return np.min(distances, axis=0)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_first_remedy_mends_the_map(tmp_path: Path, fault: str) -> None:
    make, word = FAULTS[fault]
    source = str(make(tmp_path / "source"))
    code, said = run("doctor", source)
    assert code == 1
    assert word in said
    options = re.findall(r"(--[a-z-]+) ([^\s;,)]+(?:,[a-z]+)*)", said.splitlines()[-1])[-1:]
    assert options, said
    code, said = run("doctor", source, *options[0])
    assert code == 0, said
    out = tmp_path / "out"
    code, said = run("replay", source, *options[0], "--weights", "none", "--out", str(out))
    assert code == 0, said
    assert f"{COUNT} played, {COUNT} fused" in said
    assert json.loads((out / "timings.json").read_text())["dropped"] == {}
    from embodied_perceptron.mapping.storage import read_header  # the map is one
    from embodied_perceptron.perceptron import Perceptron

    assert read_header(out / "map.safetensors")
    perceptron = Perceptron()
    perceptron.load(out / "map.safetensors")
    points = perceptron.perceive().voxels.mean_point_m.astype(float)
    assert np.percentile(distance_to_surface(points), 95) < 0.03
    assert read_objects_json(out / "objects.json") is not None


def test_the_tolerance_that_is_named_pairs_every_image(tmp_path: Path) -> None:
    source = str(bag(tmp_path / "bag", offset_s=0.035))
    code, said = run("doctor", source)
    assert code == 1
    tolerance_s = float(re.findall(r"pair_tolerance_s above ([0-9.]+)", said)[0])
    config = tmp_path / "c.yaml"
    config.write_text(f"assembler: {{pair_tolerance_s: {tolerance_s + 0.001}}}\n")
    code, said = run("doctor", source, "--config", str(config))
    assert code == 0, said


def test_poses_further_apart_are_bridged_as_told(tmp_path: Path) -> None:
    source = folder(tmp_path / "r")
    lines = (source / "groundtruth.txt").read_text().splitlines()
    (source / "groundtruth.txt").write_text("\n".join([*lines[:2], *lines[-2:]]))
    code, said = run("doctor", str(source))
    assert code == 1
    assert "raise assembler.max_pose_gap_s" in said
    config = tmp_path / "c.yaml"
    config.write_text("assembler: {max_pose_gap_s: 2.0}\n")
    assert "all 12 images have a pose" in run("doctor", str(source), "--config", str(config))[1]


def test_damaged_images_and_poses_are_skipped_as_told(tmp_path: Path) -> None:
    source = folder(tmp_path / "r")
    (source / "color" / "000004.png").write_bytes(b"\x89PNG")
    text = (source / "groundtruth.txt").read_text().splitlines()
    text[6] = text[6].split()[0] + " -inf 0 0 0 0 0 1"
    (source / "groundtruth.txt").write_text("\n".join(text))
    code, said = run("doctor", str(source))
    assert code == 1
    assert said.count("use replay --skip-damaged") >= 2
    code, said = run("replay", str(source), "--skip-damaged", "--weights", "none", "--out", str(tmp_path / "out"))
    assert code == 0, said
    assert "12 played, 11 fused" in said
    assert "1 of" in said
    assert "left out" in said
