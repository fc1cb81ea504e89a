"""Launch files: options -> parameters (always), compiled (always), executed (where launch_ros is importable)."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from embodied_perceptron_ros.players import launch_options as options

ROOT = Path(__file__).resolve().parents[3]
LAUNCH_FILES = sorted((ROOT / "launch").glob("*.launch.py"))
HAS_LAUNCH = importlib.util.find_spec("launch_ros") is not None
needs_launch = pytest.mark.skipif(not HAS_LAUNCH, reason="launch_ros is not importable here")


# --------------------------------------------------------------------------------------------------------------------
# options


@pytest.mark.parametrize(("text", "value"), [("true", True), ("False", False), ("1", True), (" off ", False)])
def test_flags(text: str, value: bool) -> None:
    assert options.parse_flag(text, "rviz") is value


def test_bad_flag_is_named() -> None:
    with pytest.raises(ValueError, match="rviz must be true or false, got 'maybe'"):
        options.parse_flag("maybe", "rviz")


def test_names() -> None:
    assert options.parse_names("front, rear ,") == ["front", "rear"]
    assert options.parse_names("") == []


def test_overrides() -> None:
    assert options.parse_overrides("voxel_size_m: 0.03, autostart: false") == {"voxel_size_m": 0.03, "autostart": False}
    assert options.parse_overrides("{camera: {color_topic: /rgb, rectified: true}}") == {
        "camera.color_topic": "/rgb",
        "camera.rectified": True,
    }
    assert options.parse_overrides("  ") == {}


@pytest.mark.parametrize("text", ["voxel_size_m=0.03", "[1, 2]", "a: {b", "max_blocks:"])
def test_bad_overrides_are_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"parameters"):
        options.parse_overrides(text)


def test_only_what_was_given_overrides_the_file() -> None:
    assert options.node_parameters({}) == {}
    assert options.node_parameters({"viewer": "rerun", "device": "", "weights": "tiny"}) == {
        "weights": "tiny",
        "viewer": "rerun",
    }
    assert options.node_parameters({"weights": "none", "device": "none"}) == {"weights": "none"}, "no network"
    assert options.node_parameters({"classes": "chair, lamp"}) == {"classes": "chair, lamp"}
    frames = {"fusion_frame": "odom2", "output_frame": "map"}
    overrides = {"fusion_frame": "odom3"}
    given = options.node_parameters(frames, cameras=["front", "rear"], use_sim_time=True, overrides=overrides)
    assert given == {
        "cameras": ["front", "rear"],
        "fusion_frame": "odom3",
        "output_frame": "map",
        "use_sim_time": True,
    }


@pytest.mark.parametrize("value", ["odom", "true", "12", "", 'a "quoted" name', True, 3, 0.5, ["a", "b"], 1e-7])
def test_parameter_text_keeps_value_and_type(value: Any) -> None:
    text = options.parameter_text(value)
    assert "\n" not in text
    back = yaml.safe_load(text)
    assert back == value
    assert type(back) is type(value)


def test_ros_arguments(tmp_path: Path) -> None:
    config = tmp_path / "my.yaml"
    with pytest.raises(FileNotFoundError, match=r"my\.yaml"):
        options.ros_arguments(config, {})
    config.write_text("/robot/perception: {ros__parameters: {voxel_size_m: 0.03}}")
    arguments = options.ros_arguments(
        config, {"voxel_size_m": 0.03}, [("a", "b")], namespace="/robot/", log_level="warn"
    )
    assert arguments == [
        *("--ros-args", "-r", "__node:=perception", "--params-file", str(config), "-r", "__ns:=/robot"),
        *("-r", "a:=b", "-p", "voxel_size_m:=0.03", "--log-level", "warn"),
    ]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("/**/perception: {ros__parameters: {camera: {rectified: true}}}", {"camera.rectified": True}),
        ("/**: {ros__parameters: {use_sim_time: true}}", {"use_sim_time": True}),
        ("robot: {perception: {ros__parameters: {device: cpu}}}", {"device": "cpu"}),
        ("other: {ros__parameters: {a: 1}}\nperception: {ros__parameters: {}}", {}),
    ],
)
def test_parameter_file_is_read_as_rcl_does(tmp_path: Path, text: str, values: dict[str, Any]) -> None:
    (tmp_path / "c.yaml").write_text(text)
    assert options.check_config(tmp_path / "c.yaml") == values


@pytest.mark.parametrize("text", ["", "voxel_size_m: 0.03", "preception: {ros__parameters: {a: 1}}", "a: {b"])
def test_parameter_file_that_would_mean_defaults_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"c\.yaml"):
        options.check_config(tmp_path / "c.yaml")


@pytest.mark.parametrize("text", ["a=b", ":=b", "a:="])
def test_bad_pairs_are_named(text: str) -> None:
    with pytest.raises(ValueError, match="remap"):
        options.split_pair(text, "remap")
    assert options.split_pair("a:=b:=c", "remap") == ("a", "b:=c")


def test_rviz_topics_move_with_the_namespace() -> None:
    assert options.rviz_remappings("") == []
    pairs = options.rviz_remappings("/robot/")
    assert pairs == [(topic, f"/robot{topic}") for topic in options.RVIZ_TOPICS]


def test_player_by_what_lies_there(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "rgb.txt").touch()
    (tmp_path / "many").mkdir()
    (tmp_path / "many" / "cameras.json").touch()
    (tmp_path / "bag").mkdir()
    (tmp_path / "bag" / "metadata.yaml").touch()
    (tmp_path / "run.mcap").touch()
    (tmp_path / "empty").mkdir()
    assert [options.player_for(tmp_path / n) for n in ("one", "many", "bag", "run.mcap")] == [
        *("folder_player", "folder_player", "bag_player", "bag_player")
    ]
    with pytest.raises(FileNotFoundError, match="nothing"):
        options.player_for(tmp_path / "nothing")
    with pytest.raises(ValueError, match="empty"):
        options.player_for(tmp_path / "empty")
    with pytest.raises(ValueError, match="rate"):
        options.player_command(tmp_path / "one", rate=0)
    assert options.player_command(tmp_path / "one", 2.0)[1] == [str(tmp_path / "one"), "--rate", "2.0", "--clock"]


# --------------------------------------------------------------------------------------------------------------------
# files


def declared_arguments(tree: ast.Module) -> dict[str, str | None]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "ARGUMENTS":
            return {name: default for name, default, _ in ast.literal_eval(node.value)}
    raise AssertionError("no ARGUMENTS")


@pytest.mark.parametrize("path", LAUNCH_FILES, ids=lambda p: p.name)
def test_launch_file_compiles_and_uses_what_it_declares(path: Path) -> None:
    source = path.read_text()
    tree = ast.parse(source)
    compile(tree, str(path), "exec")
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert {"start", "generate_launch_description"} <= functions
    declared = declared_arguments(tree)
    used = set(re.findall(r'values\["(\w+)"\]', source))
    used |= options.PARAMETER_ARGUMENTS if "node_parameters(values" in source else set()
    assert used == set(declared)


def test_the_simulated_home_is_the_same_everywhere() -> None:
    from embodied_perceptron_ros.demo.simulated import DEFAULT_SEED

    assert declared_arguments(ast.parse((ROOT / "launch/simulate.launch.py").read_text()))["seed"] == str(DEFAULT_SEED)


def test_what_launch_files_import_loads_nothing_heavy() -> None:
    """They run in the system's Python, which may lack the library's packages."""
    modules = {
        module
        for path in LAUNCH_FILES
        for module in re.findall(r"^from (embodied_perceptron_ros[\w.]+) import", path.read_text(), re.MULTILINE)
    }
    assert len(modules) >= 3
    code = f"import sys, {', '.join(sorted(modules))}; print({{'torch', 'numpy', 'rclpy'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_all_launch_files_are_there() -> None:
    assert [p.name for p in LAUNCH_FILES] == ["perceive.launch.py", "replay.launch.py", "simulate.launch.py"]


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.name.split(".")[0] + "_launch", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def package_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An install prefix with this package, laid out as CMakeLists.txt installs it."""
    prefix = tmp_path / "prefix"
    marker = prefix / "share/ament_index/resource_index/packages/embodied_perceptron"
    marker.parent.mkdir(parents=True)
    marker.touch()
    source = ROOT / "ros_ws/src/embodied_perceptron_ros"
    share = prefix / "share/embodied_perceptron"
    share.mkdir()
    for folder in ("launch", "config", "rviz", "foxglove"):
        (share / folder).symlink_to((source / folder).resolve())
    (prefix / "lib").mkdir()
    (prefix / "lib/embodied_perceptron").symlink_to(source / "scripts")
    monkeypatch.setenv("AMENT_PREFIX_PATH", f"{prefix}{os.pathsep}{sys.prefix}")
    return prefix


@needs_launch
@pytest.mark.parametrize("path", LAUNCH_FILES, ids=lambda p: p.name)
def test_launch_file_describes_its_arguments(path: Path, package_prefix: Path) -> None:
    from launch.actions import DeclareLaunchArgument

    description = load(path).generate_launch_description()
    arguments = {a.name for a in description.entities if isinstance(a, DeclareLaunchArgument)}
    assert arguments == set(declared_arguments(ast.parse(path.read_text())))


@needs_launch
def test_perceive_starts_the_node_with_the_given_parameters(package_prefix: Path, tmp_path: Path) -> None:
    output = run_launch(
        package_prefix,
        "perceive.launch.py",
        ["cameras:=front,rear", "output_frame:=map", "parameters:=voxel_size_m: 0.03", "namespace:=robot"],
        until="process started with pid",
        tmp_path=tmp_path,
    )
    command = next(line for line in output.splitlines() if "cmd" in line)
    assert "__node:=perception" in command
    assert "__ns:=/robot" in command
    assert "config/perception.yaml" not in command
    assert "[ERROR]" not in output.split("user interrupted with ctrl-c")[0]


def run_launch(prefix: Path, file: str, arguments: list[str], until: str, tmp_path: Path) -> str:
    """Run a launch file in a process of its own until ``until`` appears, then interrupt it; returns its output."""
    code = (
        "import sys; from launch import LaunchService; from launch.launch_description_sources import *; "
        "from launch.actions import IncludeLaunchDescription; "
        "s = LaunchService(argv=sys.argv[2:], debug=True); "
        "s.include_launch_description(IncludeLaunchDescription(PythonLaunchDescriptionSource(sys.argv[1]), "
        "launch_arguments=[a.split(':=', 1) for a in sys.argv[2:]])); sys.exit(s.run())"
    )
    environment = {**os.environ, "ROS_DOMAIN_ID": str(20 + os.getpid() % 80), "ROS_LOG_DIR": str(tmp_path / "log")}
    log = tmp_path / "launch.log"
    with log.open("wb") as output:
        path = prefix / "share/embodied_perceptron/launch" / file
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(path), *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        try:
            deadline = time.monotonic() + 30
            while until not in log.read_text() and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)
        finally:
            process.kill()
    text = log.read_text()
    assert until in text, text
    return text
