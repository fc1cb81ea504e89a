"""What doctor tells to do first is done: every remedy with an option of ours, on the recording that it is told of."""

from __future__ import annotations

import ast
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


@pytest.mark.parametrize(("factor", "word"), [(1 / 1000, "raise"), (1000, "lower")])
def test_the_unit_of_depth_is_mended_where_it_is_told(tmp_path: Path, factor: float, word: str) -> None:
    """Images in millimetres that are read as metres, and the reverse: the number in camera.json, as told."""
    source = folder(tmp_path / "r")
    right = json.loads((source / "camera.json").read_text())["depth_scale"]
    edit(source, depth_scale=right * factor)
    code, said = run("doctor", str(source))
    assert code == 1
    assert f"in camera.json, {word} depth_scale" in said
    edit(source, depth_scale=right)
    code, said = run("doctor", str(source))
    assert code == 0, said


def test_the_file_that_is_shown_is_one(tmp_path: Path) -> None:
    """Without camera.json doctor shows one: pasted, it is read."""
    source = folder(tmp_path / "r")
    spec = json.loads((source / "camera.json").read_text())
    (source / "camera.json").unlink()
    code, said = run("doctor", str(source))
    assert code == 1
    shown = json.loads(re.search(r"\{[^}]*\}", said)[0])
    (source / "camera.json").write_text(json.dumps(shown | {k: spec[k] for k in shown}))  # the camera's own numbers
    code, said = run("doctor", str(source))
    assert code == 0, said


def test_a_file_of_a_bag_is_named_as_told(tmp_path: Path) -> None:
    source = bag(tmp_path / "bag")
    (source / "metadata.yaml").unlink()
    code, said = run("doctor", str(source))
    assert code == 1
    assert "name one of the files" in said
    (file,) = (f for f in source.iterdir() if f.suffix in (".mcap", ".db3"))
    code, said = run("doctor", str(file))
    assert code == 0, said


def test_doctor_ends_with_the_one_thing_to_do_first(tmp_path: Path) -> None:
    """Of several faults the cause before the consequence; where all is well there is nothing to do."""
    source = folder(tmp_path / "r", lambda T: T @ G)
    (source / "color" / "000004.png").write_bytes(b"\x89PNG")
    code, said = run("doctor", str(source))
    assert code == 1
    first = said.strip().splitlines()[-1]
    assert first.startswith("first: ")
    assert "--skip-damaged" in first
    assert len(re.findall("^first: ", said, re.M)) == 1
    well = run("doctor", str(folder(tmp_path / "well")))[1]
    assert "first: " not in well or "0 errors" in well


def spoken() -> list[tuple[str, str]]:
    """(file, text) of every string of what examines recordings and running systems, and of what reads recordings."""
    root = Path(__file__).resolve().parents[2]
    files = [
        *(root / "models/embodied_perceptron/apps").glob("*.py"),
        *(root / "models/embodied_perceptron/recordings").glob("*.py"),
        root / "ros_ws/src/embodied_perceptron_ros/embodied_perceptron_ros/node/live_doctor.py",
    ]
    return [
        (file.name, node.value)
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
    ]


def test_what_is_told_to_be_set_exists() -> None:
    """Options, keys of the configuration and commands that any message names."""
    import typer

    from embodied_perceptron.config import PerceptronConfig, config_keys
    from embodied_perceptron_ros.node.parameters import CAMERA_DECLARATIONS, DECLARATIONS

    def names_of(command: object) -> set[str]:
        below = getattr(command, "commands", {}).values()
        own = {name for p in command.params for name in (*p.opts, *p.secondary_opts)}  # type: ignore[attr-defined]
        return own.union(*(names_of(c) for c in below))

    app = typer.main.get_command(cli.build_app())
    options = names_of(app) | {"--help", "--clock", "--ros-args", "--packages-select", "--symlink-install", "--no-deps"}
    config = PerceptronConfig()
    sections = {s: set(config_keys(type(getattr(config, s)))) for s in config_keys(PerceptronConfig)}
    parameters = {*DECLARATIONS, *CAMERA_DECLARATIONS}
    told = 0
    for file, text in spoken():
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+[a-z]", text):
            assert option in options, f"{file}: {option} in {text!r}"
            told += 1
        for section, key in re.findall(r"\b(assembler|volume|objects|grid|network|lift)\.([a-z]+_[a-z_]+)", text):
            assert key in sections[section], f"{file}: {section}.{key} in {text!r}"
            told += 1
        for command in re.findall(r"`?embodied-perceptron ([a-z-]+)", text):
            assert command in app.commands, f"{file}: {command} in {text!r}"  # type: ignore[attr-defined]
            told += 1
        for parameter in re.findall(r"\b(use_sim_time|inf_depth|autostart|web_port)\b", text):
            assert parameter in parameters | {"use_sim_time"}, f"{file}: {parameter}"
    assert told > 20
