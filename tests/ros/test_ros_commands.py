"""Sub-commands of the ROS package: arguments, exit codes, and a node that stops with its command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

pytest.importorskip("rclpy")
pytest.importorskip("embodied_perceptron_msgs.msg")

from support.ros_live import own_domain

from embodied_perceptron_ros import ros_commands
from embodied_perceptron_ros.node.guest import NoAnswerError
from embodied_perceptron_ros.node.monitor import NodeMonitor
from embodied_perceptron_ros.node.parameters import CAMERA_DECLARATIONS, DECLARATIONS
from embodied_perceptron_ros.players import asking


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    ros_commands.register(app)
    return app


def test_commands_are_registered(app: typer.Typer) -> None:
    assert {c.name for c in app.registered_commands if not c.hidden} == {"perceive", "ask"}
    (demo,) = app.registered_groups
    assert [c.name for c in demo.typer_instance.registered_commands] == ["simulate"]


def test_every_parameter_is_listed(app: typer.Typer) -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["perceive", "--list-parameters"])
    assert result.exit_code == 0
    for name in (*DECLARATIONS, *CAMERA_DECLARATIONS):
        assert name in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--config", "/no/such.yaml"], "/no/such.yaml"),
        (["-p", "voxel_size_m=0.03"], "voxel_size_m=0.03"),
        (["-r", "color"], "--remap"),
        (["-p", "voxel_sise_m:=0.03"], "did you mean 'voxel_size_m'?"),
    ],
)
def test_bad_arguments_are_named(app: typer.Typer, arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["perceive", *arguments])
    assert result.exit_code == 2
    assert words in result.output


def test_perceive_takes_what_the_launch_file_takes(
    app: typer.Typer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: dict[str, list[str]] = {}
    monkeypatch.setattr(ros_commands, "run_processes", lambda given: started.update(given) or 0)
    monkeypatch.setattr(ros_commands.shutil, "which", lambda name: f"/opt/{name}")
    (tmp_path / "home.map").touch()
    arguments = ["--preset", "oak", "--depth-topic", "/d", "--device", "cpu", "--map-file", str(tmp_path / "home.map")]
    result = CliRunner().invoke(app, ["perceive", *arguments, "--rviz", "--output-frame", "map"])
    assert result.exit_code == 0, result.output
    node, rviz = (" ".join(started[name]) for name in ("node", "rviz"))
    for part in ('camera.color_topic:="/oak/rgb/image_raw"', 'camera.depth_topic:="/d"', 'device:="cpu"', "home.map"):
        assert part in node
    assert "-f map" in rviz
    assert "-r /color/image_raw:=/oak/rgb/image_raw" in rviz
    for wrong, words in ((["--preset", "webcam"], "webcam"), (["--map-file", "/no/map"], "/no/map")):
        result = CliRunner().invoke(app, ["perceive", *wrong])
        assert result.exit_code == 2
        assert words in result.output


def test_no_node_is_an_exit_code_of_its_own(app: typer.Typer, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask_node(*_: object) -> None:
        raise NoAnswerError("nobody offers /perception/ask")

    monkeypatch.setattr(asking, "ask_node", ask_node)
    result = CliRunner().invoke(app, ["ask", "the chair"])
    assert result.exit_code == 3
    assert "nobody offers /perception/ask" in result.output


def test_typos_in_a_parameter_file_are_named(app: typer.Typer, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    for text, words in (
        ("perception: {ros__parameters: {camera: {colour_topic: /rgb}}}", "unknown parameter 'camera.colour_topic'"),
        ("preception: {ros__parameters: {voxel_size_m: 0.03}}", "only for /preception"),
        ("a: {b", "not valid YAML"),
    ):
        file.write_text(text)
        result = CliRunner().invoke(app, ["perceive", "--config", str(file)])
        assert result.exit_code == 2, result.output
        assert words in result.output


def test_perceive_starts_the_node_with_what_was_asked(app: typer.Typer, monkeypatch: pytest.MonkeyPatch) -> None:
    started: dict[str, list[str]] = {}
    monkeypatch.setattr(ros_commands, "run_processes", lambda given: started.update(given) or 0)
    arguments = ["perceive", "--camera", "front", "--camera", "rear", "--sim-time", "--namespace", "robot"]
    result = CliRunner().invoke(app, [*arguments, "-p", "voxel_size_m:=0.03", "-p", "front.color_topic:=/rgb"])
    assert result.exit_code == 0, result.output
    (command,) = started.values()
    assert command[:3] == [sys.executable, "-m", "embodied_perceptron_ros.node"]
    text = " ".join(command)
    for part in ("cameras:=[front, rear]", "use_sim_time:=true", "__ns:=/robot", "voxel_size_m:=0.03"):
        assert part in text
    assert 'front.color_topic:="/rgb"' in text


def test_demo_of_nothing_is_an_error(app: typer.Typer, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["demo", "--source", str(tmp_path / "nothing"), "--out", str(tmp_path)])
    assert result.exit_code != 0
    assert "nothing" in result.output


@pytest.mark.slow
@pytest.mark.ros
@pytest.mark.timeout(600)
def test_perceive_ends_its_node_on_interrupt(tmp_path: Path) -> None:
    code = (
        "import typer; from embodied_perceptron_ros.ros_commands import register; a = typer.Typer(); register(a); a()"
    )
    with own_domain() as domain, (tmp_path / "log").open("wb") as log:
        environment = {**os.environ, "ROS_DOMAIN_ID": str(domain)}
        command = [sys.executable, "-c", code, "perceive", "-p", "diagnostics_hz:=10.0"]
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            with NodeMonitor(domain) as monitor:
                deadline = time.monotonic() + 120
                while monitor.status.state != "active":
                    assert time.monotonic() < deadline, (tmp_path / "log").read_text()
                    assert process.poll() is None, (tmp_path / "log").read_text()
                    monitor.spin(0.2)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            assert len(children) == 1
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=60) == 0, (tmp_path / "log").read_text()
            assert not Path(f"/proc/{children[0]}").exists()
        finally:
            process.kill()
