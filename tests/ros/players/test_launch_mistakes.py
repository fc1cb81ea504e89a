"""Mistakes at a launch that used to pass: other namespaces, mistyped names, levels and words for "without"."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.launch_stand_in import only, start

from embodied_perceptron_ros.players import launch_options as options

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "ros_ws/src/embodied_perceptron_ros"
LAUNCH = ROOT / "launch"


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("ament_index_python")
    prefix = tmp_path / "prefix"
    marker = prefix / "share/ament_index/resource_index/packages/embodied_perceptron"
    marker.parent.mkdir(parents=True)
    marker.touch()
    share = prefix / "share/embodied_perceptron"
    share.mkdir()
    for folder in ("launch", "config", "rviz", "foxglove"):
        (share / folder).symlink_to((PACKAGE / folder).resolve())
    monkeypatch.setenv("AMENT_PREFIX_PATH", str(prefix))
    return prefix


# ------------------------------------------------------------------------------------------------------- namespaces


@pytest.mark.parametrize(
    ("key", "namespace", "fits"),
    [
        ("perception", "", True),
        ("/perception", "", True),
        ("perception", "robot1", False),
        ("/robot1/perception", "robot1", True),
        ("/robot1/perception", "/robot1/", True),
        ("/robot1/perception", "", False),
        ("/robot2/perception", "robot1", False),
        ("/**/perception", "", True),
        ("/**/perception", "fleet/robot1", True),
        ("/**", "robot1", True),
        ("/*/perception", "robot1", True),
        ("/*/perception", "", False),
        ("/*/perception", "fleet/robot1", False),
        ("/fleet/**/perception", "fleet/robot1", True),
    ],
)
def test_a_parameter_file_for_another_namespace_is_refused(
    tmp_path: Path, key: str, namespace: str, fits: bool
) -> None:
    """rcl would match nothing and start the node with its defaults."""
    file = tmp_path / "mine.yaml"
    file.write_text(f"{key}: {{ros__parameters: {{device: cpu}}}}\n")
    if fits:
        assert options.check_config(file, namespace) == {"device": "cpu"}
        return
    with pytest.raises(ValueError, match=r"mine\.yaml is for .*perception, but the node is .*write /\*\*/perception"):
        options.check_config(file, namespace)
    with pytest.raises(ValueError, match="but the node is"):
        options.ros_arguments(file, {}, namespace=namespace)


def test_only_what_is_for_the_node_counts(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("/robot1/perception: {ros__parameters: {device: cuda}}\n/**: {ros__parameters: {max_backlog: 2}}\n")
    assert options.check_config(file, "robot1") == {"device": "cuda", "max_backlog": 2}
    assert options.check_config(file, "robot2") == {"max_backlog": 2}


def test_the_launch_file_says_so_before_anything_starts(
    prefix: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("perception: {ros__parameters: {device: cpu}}\n")
    with pytest.raises(ValueError, match="but the node is /robot1/perception"):
        start(LAUNCH / "perceive.launch.py", {"config": str(file), "namespace": "robot1"}, monkeypatch)
    pushed = {"config": str(file), "ros_namespace": "/robot1"}
    with pytest.raises(ValueError, match="but the node is /robot1/perception"):
        start(LAUNCH / "perceive.launch.py", pushed, monkeypatch)


def test_the_shipped_file_is_for_every_namespace() -> None:
    for namespace in ("", "robot1", "fleet/robot1"):
        assert options.check_config(options.DEFAULT_CONFIG, namespace)["fusion_frame"] == "odom"


# ------------------------------------------------------------------------------------------------------------ names


@pytest.mark.parametrize("file", options.LAUNCH_FILES)
@pytest.mark.parametrize(("typed", "near"), [("colour_topic", "color_topic"), ("wieghts", "weights"), ("xyz", "")])
def test_a_mistyped_argument_is_named(
    file: str, typed: str, near: str, prefix: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rgb.txt").touch()
    arguments = {"source": str(tmp_path), "recording": str(tmp_path / "drive")}
    monkeypatch.setattr(sys, "argv", ["ros2", "launch", "embodied_perceptron", file])
    assert start(LAUNCH / file, arguments, monkeypatch)
    words = f"there is no argument '{typed}'" + (f": did you mean '{near}'" if near else "")
    with pytest.raises(ValueError, match=words):
        start(LAUNCH / file, {**arguments, typed: "1"}, monkeypatch)


def test_arguments_of_a_launch_file_that_includes_ours_are_its_own(
    prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["ros2", "launch", "my_robot", "bringup.launch.py"])
    assert start(LAUNCH / "perceive.launch.py", {"camera_name": "front", "colour_topic": "/x"}, monkeypatch)


def test_every_argument_is_known(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ast

    names = set()
    for file in options.LAUNCH_FILES:
        tree = ast.parse((LAUNCH / file).read_text())
        (declared,) = (n for n in tree.body if isinstance(n, ast.Assign) and n.targets[0].id == "ARGUMENTS")  # type: ignore[attr-defined]
        names |= {name for name, _, _ in ast.literal_eval(declared.value)}
    assert names == options.LAUNCH_ARGUMENTS


def test_a_log_level_that_is_none_is_named(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="log_level must be one of debug, info, warn, error, fatal, got 'verbose'"):
        start(LAUNCH / "perceive.launch.py", {"log_level": "verbose"}, monkeypatch)


def test_none_means_without_in_every_argument(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("config", "cameras", "camera", "color_topic", "detections_topic", "output_frame", "device", "map_file")
    none = dict.fromkeys((*names, "classes", "parameters", "namespace", "rviz_config", "viewer"), "none")
    node = only(start(LAUNCH / "perceive.launch.py", {**none, "weights": "none"}, monkeypatch), "Node")
    assert node["parameters"][1] == {"weights": "none"}
    assert node["namespace"] == ""


@pytest.mark.ros
def test_none_means_without_in_every_parameter_where_empty_does() -> None:
    pytest.importorskip("rclpy")
    import rclpy
    from rclpy.context import Context
    from rclpy.parameter import Parameter

    from embodied_perceptron_ros.node import parameters

    context = Context()
    rclpy.init(context=context)
    names = [n for n, d in parameters.DECLARATIONS.items() if d.default == "" and not n.endswith("_frame")]
    given = [Parameter(name, value="none") for name in (*names, "weights", "camera.detections_topic")]
    node = rclpy.create_node("perception", context=context, parameter_overrides=given)
    try:
        parameters.declare_parameters(node)
        values = parameters.read_parameters(node)
        assert (values.viewer, values.map_file, values.keyframe_path_topic) == ("", "", "")
        assert values.config.network.weights == ""
        assert values.config.network.classes == ()
        assert values.cameras[0].detections_topic == ""
    finally:
        node.destroy_node()
        rclpy.shutdown(context=context)


@pytest.mark.ros
@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("viewer", "windows", "viewer must be one of rerun, web (or empty, none), got 'windows'"),
        ("device", "gpu", "device must be cpu, cuda, cuda:0 (or another number) or auto, got 'gpu'"),
    ],
)
def test_a_wrong_value_is_answered_by_the_right_ones(name: str, value: str, words: str) -> None:
    pytest.importorskip("rclpy")
    from embodied_perceptron_ros.node.parameters import parameter_problem

    assert parameter_problem(name, value) == words


# -------------------------------------------------------------------------------------------------------- processes


@pytest.mark.parametrize("name", ["perception", "folder_player", "bag_player"])
def test_a_terminal_without_the_environment_is_told_what_to_source(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", str(PACKAGE / "scripts" / name)]
    done = subprocess.run(command, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "there is no rclpy, numpy, embodied_perceptron" in done.stderr
    assert "install/setup.bash" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.ros
def test_ctrl_c_several_times_ends_a_player_without_a_traceback(tmp_path: Path) -> None:
    """A terminal sends SIGINT to the whole group, and ros2 launch again to each process."""
    pytest.importorskip("rclpy")
    program = """
import contextlib, sys, time, rclpy
from embodied_perceptron_ros.players.playback import PlaybackReport, player_parser, read_ahead, run_player

class Player:
    report = PlaybackReport("nothing")

def endless():
    while True:
        time.sleep(30)
        yield 1

def play(player, options):
    print("playing", flush=True)
    for _ in read_ahead(endless(), 2, lambda: not rclpy.ok()):
        pass

opened = lambda node, options: contextlib.nullcontext(Player())
sys.exit(run_player(player_parser("toy", "", "SOURCE"), opened, play, ["nothing"]))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "playing\n"
        for _ in range(4):
            process.send_signal(signal.SIGINT)
            time.sleep(0.05)
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 130
        assert "Traceback" not in errors, errors
    finally:
        process.kill()
