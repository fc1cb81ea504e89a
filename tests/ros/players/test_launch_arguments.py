"""What the launch files start for which arguments, with a stand-in for launch: names, namespaces, checks before."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from support.launch_stand_in import only, start

from embodied_perceptron_ros.demo.simulated import SimulationError
from embodied_perceptron_ros.players import launch_options as options
from embodied_perceptron_ros.players.launch_options import ProcessFailedError

pytest.importorskip("ament_index_python")
ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "ros_ws/src/embodied_perceptron_ros"
PERCEIVE, REPLAY, SIMULATE = (ROOT / "launch" / f"{name}.launch.py" for name in ("perceive", "replay", "simulate"))


@pytest.fixture(autouse=True)
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An install prefix with this package alone: neither RViz nor Foxglove's bridge."""
    prefix = tmp_path / "prefix"
    install_package(prefix, "embodied_perceptron")
    share = prefix / "share/embodied_perceptron"
    for folder in ("launch", "config", "rviz", "foxglove"):
        (share / folder).symlink_to((PACKAGE / folder).resolve())
    monkeypatch.setenv("AMENT_PREFIX_PATH", str(prefix))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return prefix


def install_package(prefix: Path, name: str) -> None:
    marker = prefix / "share/ament_index/resource_index/packages" / name
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()
    (prefix / "share" / name).mkdir()


def perceive(monkeypatch: pytest.MonkeyPatch, **arguments: str) -> list[Any]:
    return start(PERCEIVE, arguments, monkeypatch)


def parameters(actions: list[Any]) -> dict[str, Any]:
    """What the node is given over its file, if there is one."""
    return only(actions, "Node", executable="perception")["parameters"][-1]


# ------------------------------------------------------------------------------------------------- what has to be there


@pytest.mark.parametrize("file", [PERCEIVE, REPLAY, SIMULATE])
@pytest.mark.parametrize(("argument", "package"), [("rviz", "rviz2"), ("foxglove", "foxglove_bridge")])
def test_packages_are_checked_before_anything_starts(
    file: Path, argument: str, package: str, prefix: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rgb.txt").touch()
    arguments = {"source": str(tmp_path), "recording": str(tmp_path / "drive"), argument: "true"}
    with pytest.raises(RuntimeError, match=f"{argument}:=true needs the package {package}: apt install"):
        start(file, arguments, monkeypatch)
    install_package(prefix, package)
    assert start(file, arguments, monkeypatch)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"config": "/missing.yaml"}, FileNotFoundError, "/missing.yaml"),
        ({"map_file": "/missing.safetensors"}, FileNotFoundError, "/missing.safetensors"),
        ({"camera": "realsens"}, ValueError, "camera must be one of realsense, oak"),
        ({"cameras": "front,rear", "color_topic": "/rgb"}, ValueError, "there are 2 cameras"),
        ({"rviz": "perhaps"}, ValueError, "rviz must be true or false"),
        ({"respawn": "perhaps"}, ValueError, "respawn must be true or false"),
    ],
)
def test_what_is_wrong_is_named(
    arguments: dict[str, str], error: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(error, match=re.escape(words)):
        perceive(monkeypatch, **arguments)


def test_a_missing_layout_is_named(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_package(prefix, "rviz2")
    with pytest.raises(FileNotFoundError, match=r"/missing\.rviz"):
        perceive(monkeypatch, rviz="true", rviz_config="/missing.rviz")


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


def test_the_launch_file_says_so_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("perception: {ros__parameters: {device: cpu}}\n")
    for namespace in ({"namespace": "robot1"}, {"ros_namespace": "/robot1"}):  # an argument, or pushed
        with pytest.raises(ValueError, match="but the node is /robot1/perception"):
            perceive(monkeypatch, config=str(file), **namespace)


def test_the_shipped_file_is_for_every_namespace() -> None:
    for namespace in ("", "robot1", "fleet/robot1"):
        assert options.check_config(options.DEFAULT_CONFIG, namespace)["fusion_frame"] == "odom"


# ------------------------------------------------------------------------------------------------------------ names


@pytest.mark.parametrize("file", options.LAUNCH_FILES)
@pytest.mark.parametrize(("typed", "near"), [("colour_topic", "color_topic"), ("wieghts", "weights"), ("xyz", "")])
def test_a_mistyped_argument_is_named(
    file: str, typed: str, near: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rgb.txt").touch()
    arguments = {"source": str(tmp_path), "recording": str(tmp_path / "drive")}
    monkeypatch.setattr(sys, "argv", ["ros2", "launch", "embodied_perceptron", file])
    assert start(ROOT / "launch" / file, arguments, monkeypatch)
    words = f"there is no argument '{typed}'" + (f": did you mean '{near}'" if near else "")
    with pytest.raises(ValueError, match=words):
        start(ROOT / "launch" / file, {**arguments, typed: "1"}, monkeypatch)


def test_arguments_of_a_launch_file_that_includes_ours_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["ros2", "launch", "my_robot", "bringup.launch.py"])
    assert start(PERCEIVE, {"camera_name": "front", "colour_topic": "/x"}, monkeypatch)


@pytest.mark.parametrize("argv", [["my_robot", "perceive.launch.py"], ["/my/launch/perceive.launch.py"]])
def test_a_launch_file_of_the_same_name_in_another_package_has_its_own_arguments(
    argv: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["ros2", "launch", *argv])
    assert start(PERCEIVE, {"arm": "left"}, monkeypatch)
    monkeypatch.setattr(sys, "argv", ["ros2", "launch", str(PERCEIVE)])
    with pytest.raises(ValueError, match="there is no argument 'arm'"):
        start(PERCEIVE, {"arm": "left"}, monkeypatch)


def test_every_argument_is_known() -> None:
    names = set()
    for file in options.LAUNCH_FILES:
        tree = ast.parse((ROOT / "launch" / file).read_text())
        (declared,) = (n for n in tree.body if isinstance(n, ast.Assign) and n.targets[0].id == "ARGUMENTS")  # type: ignore[attr-defined]
        names |= {name for name, _, _ in ast.literal_eval(declared.value)}
    assert names == options.LAUNCH_ARGUMENTS


def test_a_log_level_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="log_level must be one of debug, info, warn, error, fatal, got 'verbose'"):
        start(PERCEIVE, {"log_level": "verbose"}, monkeypatch)


def test_none_means_without_in_every_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("config", "cameras", "camera", "color_topic", "detections_topic", "output_frame", "device", "map_file")
    none = dict.fromkeys((*names, "classes", "parameters", "namespace", "rviz_config", "viewer"), "none")
    node = only(start(PERCEIVE, {**none, "weights": "none"}, monkeypatch), "Node")
    assert node["parameters"] == [{"weights": "none"}]
    assert node["namespace"] == ""


# ------------------------------------------------------------------------------------------------------ what is started


def test_nothing_given_leaves_the_parameters_to_the_launch_file_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """launch puts a node's own parameters over those of SetParameter and SetParametersFromFile."""
    actions = perceive(monkeypatch)
    node = only(actions, "Node")
    assert node["parameters"] == []
    assert node["respawn"] is False
    outer = {"global_params": [("fusion_frame", "map2"), ("cameras", ["head"]), "/their/file.yaml"]}
    given = parameters(perceive(monkeypatch, camera="oak", **outer))  # type: ignore[arg-type]
    assert given["head.color_topic"] == "/oak/rgb/image_raw"
    assert not {"fusion_frame", "output_frame", "use_sim_time", "cameras"} & set(given)
    (tmp_path / "robot.yaml").write_text("perception: {ros__parameters: {cameras: [front]}}")
    outer = {"global_params": ["/their/file.yaml", str(tmp_path / "robot.yaml")]}
    given = parameters(perceive(monkeypatch, camera="oak", **outer))  # type: ignore[arg-type]
    assert given["front.color_topic"] == "/oak/rgb/image_raw"


def test_rviz_takes_the_time_and_the_frame_from_around_too(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_package(prefix, "rviz2")
    outer = {"global_params": [("fusion_frame", "map2"), ("use_sim_time", True)]}
    rviz = only(perceive(monkeypatch, rviz="true", **outer), "Node", package="rviz2")  # type: ignore[arg-type]
    assert rviz["parameters"] == []
    assert rviz["arguments"][-1] == "map2"


def test_a_file_is_passed_where_one_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("perception: {ros__parameters: {device: cpu}}")
    node = only(perceive(monkeypatch, config=str(config), weights="tiny"), "Node")
    assert node["parameters"] == [str(config), {"weights": "tiny"}]


@pytest.mark.parametrize(
    ("file", "arguments", "words"),
    [
        (REPLAY, {"rate": "abc"}, "rate must be a number, got 'abc'"),
        (REPLAY, {"rate": ""}, "rate must be a number, got ''"),
        (REPLAY, {"rate": "-1"}, "rate must be positive, got -1.0"),
        (SIMULATE, {"rate": "1,5"}, "rate must be a number, got '1,5'"),
        (SIMULATE, {"seed": "x"}, "seed must be a whole number, got 'x'"),
    ],
)
def test_an_argument_that_is_no_number_is_named(
    file: Path, arguments: dict[str, str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rgb.txt").touch()
    paths = {"source": str(tmp_path), "recording": str(tmp_path / "drive")}
    with pytest.raises(ValueError, match=re.escape(words)):
        start(file, {**paths, **arguments}, monkeypatch)


def test_arguments_of_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    map_file = tmp_path / "home.safetensors"
    map_file.touch()
    actions = perceive(
        monkeypatch,
        device="cuda",
        map_file=str(map_file),
        respawn="true",
        namespace="robot1",
        use_sim_time="true",
        color_topic="/head/rgb",
        depth_topic="/head/depth",
        camera_info_topic="/head/info",
    )
    assert parameters(actions) == {
        "camera.color_topic": "/head/rgb",
        "camera.depth_topic": "/head/depth",
        "camera.info_topic": "/head/info",
        "use_sim_time": True,
        "device": "cuda",
        "map_file": str(map_file),
    }
    node = only(actions, "Node")
    assert (node["respawn"], node["namespace"]) == (True, "robot1")


def test_detections_of_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    one = parameters(perceive(monkeypatch, detections_topic="/yolo/detections"))
    assert one == {"camera.detections_topic": "/yolo/detections"}
    two = parameters(perceive(monkeypatch, cameras="front,rear", detections_topic="/yolo/{camera}/detections"))
    assert two["front.detections_topic"] == "/yolo/front/detections"
    assert two["rear.detections_topic"] == "/yolo/rear/detections"
    shared = parameters(perceive(monkeypatch, cameras="front,rear", detections_topic="/yolo"))
    assert {shared[f"{camera}.detections_topic"] for camera in ("front", "rear")} == {"/yolo"}
    with pytest.raises(ValueError, match=r"only \{camera\}"):
        perceive(monkeypatch, detections_topic="/yolo/{cam}")


def test_topics_are_those_of_the_camera_that_the_file_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("perception: {ros__parameters: {cameras: [head]}}")
    given = parameters(perceive(monkeypatch, config=str(config), camera="oak", depth_topic="/other/depth"))
    assert given["head.color_topic"] == "/oak/rgb/image_raw"
    assert given["head.depth_topic"] == "/other/depth"  # one's own stands over the preset


@pytest.mark.parametrize("preset", options.CAMERA_PRESETS)
def test_presets_name_three_topics_that_the_node_takes(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rclpy")
    from embodied_perceptron_ros.node.parameters import unknown_parameters

    given = parameters(perceive(monkeypatch, camera=preset))
    topics = [value for name, value in given.items() if name.endswith("_topic")]
    assert len(set(topics)) == 3
    assert all(topic.startswith("/") for topic in topics)
    assert unknown_parameters(given, ["camera"]) == []


def test_rviz_shows_the_frame_and_the_image_that_there_are(
    prefix: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_package(prefix, "rviz2")
    rviz = only(perceive(monkeypatch, rviz="true"), "Node", package="rviz2")
    assert rviz["arguments"][-2:] == ["-f", "odom"]
    assert rviz["remappings"] == []
    mine = tmp_path / "mine.rviz"
    mine.touch()
    actions = perceive(
        monkeypatch,
        rviz="true",
        rviz_config=str(mine),
        fusion_frame="t265_odom",
        camera="realsense",
        namespace="robot1",
        use_sim_time="true",
    )
    rviz = only(actions, "Node", package="rviz2")
    assert rviz["arguments"] == ["-d", str(mine), "-f", "t265_odom"]
    moved = dict(rviz["remappings"])
    assert moved["/color/image_raw"] == "/camera/camera/color/image_raw"
    assert moved["/perception/voxels"] == "/robot1/perception/voxels"
    assert rviz["parameters"] == [{"use_sim_time": True}]
    rviz = only(perceive(monkeypatch, rviz="true", output_frame="map", cameras="a,b"), "Node", package="rviz2")
    assert rviz["arguments"][-1] == "map"
    assert dict(rviz["remappings"])["/color/image_raw"] == "/a/color/image_raw"


def test_foxgloves_layout_follows_namespace_and_frame(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_package(prefix, "foxglove_bridge")
    told = only(perceive(monkeypatch, foxglove="true"), "LogInfo")["msg"]
    assert told.endswith("foxglove/perception.json")
    told = only(perceive(monkeypatch, foxglove="true", namespace="/robot1/", fusion_frame="map"), "LogInfo")["msg"]
    layout = json.loads(Path(told.partition(": ")[2]).read_text())
    panels = layout["configById"]
    assert "/robot1/perception/voxels" in panels["3D!perception"]["topics"]
    assert panels["3D!perception"]["followTf"] == "map"
    assert panels["Publish!query"]["topicName"] == "/robot1/grounding_query"
    assert panels["RawMessages!answer"]["topicPath"] == "/robot1/perception/grounding"
    assert '"/perception/' not in json.dumps(layout)


def test_the_player_is_in_the_nodes_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rgb.txt").touch()
    actions = start(REPLAY, {"source": str(tmp_path), "namespace": "robot1"}, monkeypatch)
    assert only(actions, "Node", executable="folder_player")["namespace"] == "robot1"
    included = dict(only(actions, "IncludeLaunchDescription")["launch_arguments"])
    assert included == {"use_sim_time": "true", "namespace": "robot1"}
    kinds = [type(action).__name__ for action in actions]
    assert kinds.index("IncludeLaunchDescription") < kinds.index("Node")  # its checks come first


@pytest.mark.usefixtures("launched")
def test_simulate_hands_everything_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = {"recording": str(tmp_path / "drive"), "namespace": "robot1", "keep": "true"}
    handler, render = start(SIMULATE, arguments, monkeypatch)
    assert render["cmd"][:3] == ["python3", "-m", "embodied_perceptron_ros.demo.simulated"]
    (on_exit,) = handler.args
    (replay,) = on_exit["on_exit"](ended(0), launching())
    handed = dict(replay["launch_arguments"])
    assert handed == {"source": str(tmp_path / "drive"), "rate": "1.0", "keep": "true", "namespace": "robot1"}
    with pytest.raises(ProcessFailedError, match="rendering ended with exit code 3"):
        on_exit["on_exit"](ended(3), launching())


def ended(returncode: int) -> SimpleNamespace:
    return SimpleNamespace(returncode=returncode)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """As typed, not included by a robot's own launch file."""
    monkeypatch.setattr(sys, "argv", ["ros2", "launch", "embodied_perceptron", "perceive.launch.py"])


def launching(is_shutdown: bool = False) -> SimpleNamespace:
    return SimpleNamespace(is_shutdown=is_shutdown)


def after(actions: list[Any], executable: str) -> Any:
    """What is done when that process has ended."""
    process = only(actions, "Node", executable=executable)
    handlers = [a.args[0] for a in actions if type(a).__name__ == "RegisterEventHandler"]
    (handler,) = (h for h in handlers if h["target_action"] is process)
    return handler["on_exit"]


@pytest.mark.usefixtures("launched")
def test_a_node_that_fails_fails_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """launch ends with exit code 1 where a handler raises, and with 0 whatever its processes did."""
    on_exit = after(perceive(monkeypatch), "perception")
    with pytest.raises(ProcessFailedError, match="perception ended with exit code 1"):
        on_exit(ended(1), launching())
    assert on_exit(ended(0), launching()) is None
    assert on_exit(ended(-2), launching(is_shutdown=True)) is None  # Ctrl-C ends all
    monkeypatch.setattr(sys, "argv", ["ros2", "launch", "my_robot", "bringup.launch.py"])
    assert on_exit(ended(1), launching()) is None  # the motors' drivers go on
    respawned = perceive(monkeypatch, respawn="true")
    assert not [a for a in respawned if type(a).__name__ == "RegisterEventHandler"]


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize("keep", ["true", "false"])
def test_a_player_that_fails_fails_the_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: str) -> None:
    (tmp_path / "rgb.txt").touch()
    on_exit = after(start(REPLAY, {"source": str(tmp_path), "keep": keep}, monkeypatch), "folder_player")
    with pytest.raises(ProcessFailedError, match="the player ended with exit code 3"):
        on_exit(ended(3), launching())
    assert [type(a).__name__ for a in on_exit(ended(0), launching())] == ([] if keep == "true" else ["EmitEvent"])


def other_python(folder: Path, does: str) -> None:
    """The Python of an active environment, first in the PATH; launch runs in the system's."""
    folder.mkdir()
    (folder / "python3").write_text(f"#!/bin/sh\n{does}\n")
    (folder / "python3").chmod(0o755)


def test_simulate_asks_the_active_environment_for_its_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's Python need not have the renderer."""

    def lacks_it(seed: int) -> Path:
        raise AssertionError("the renderer is looked for in the system's Python")

    monkeypatch.setattr("embodied_perceptron_ros.demo.simulated.simulated_recording", lacks_it)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    other_python(tmp_path / "bin", 'echo "/home/me/drive_$5"')
    _, render = start(SIMULATE, {"seed": "7"}, monkeypatch)
    assert "/home/me/drive_7" in render["cmd"]
    (tmp_path / "bin/python3").write_text("#!/bin/sh\necho 'No module named training' >&2; exit 1\n")
    with pytest.raises(SimulationError, match="No module named training"):
        start(SIMULATE, {}, monkeypatch)


def test_launch_files_run_where_only_the_systems_python_is(tmp_path: Path) -> None:
    """Beside a ROS installation: no torch, no numpy, no rclpy. Each import of them is an error here."""
    for name in ("torch", "numpy", "numba", "cv2", "scipy", "rclpy", "rich", "typer"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('the system has no {name}')\n")
    code = (
        "import sys, pytest; from pathlib import Path; from support.launch_stand_in import start\n"
        "with pytest.MonkeyPatch.context() as patch:\n"
        "    for path in sys.argv[1:4]:\n"
        "        assert start(Path(path), {'source': sys.argv[4]}, patch)\n"
    )
    (tmp_path / "rgb.txt").touch()
    other_python(tmp_path / "bin", "echo /home/me/drive")
    paths = [str(tmp_path), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PATH": path}
    command = [sys.executable, "-c", code, *map(str, (PERCEIVE, REPLAY, SIMULATE)), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_shipped_layout_has_the_topics_that_are_moved() -> None:
    displays = yaml.safe_load((PACKAGE / "rviz/perception.rviz").read_text())["Visualization Manager"]["Displays"]
    topics = {display[key]["Value"] for display in displays for key in display if key.endswith("Topic")}
    assert topics == {pair[0] for pair in options.rviz_remappings("robot1", "/rgb")}
