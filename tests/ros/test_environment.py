"""Settings of the terminal with which ROS cannot start: one sentence and an exit code, from every program."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("embodied_perceptron_msgs.msg")

from embodied_perceptron_ros.environment import RosStartError, domain_of_environment
from embodied_perceptron_ros.node import live_doctor, monitor
from embodied_perceptron_ros.players import asking, bag_player, folder_player, live_scene, replaying

pytestmark = pytest.mark.ros
DOMAIN = "ROS_DOMAIN_ID must be a number from 0 to 232, got"
KEYSTORE = {"ROS_SECURITY_ENABLE": "true", "ROS_SECURITY_STRATEGY": "Enforce", "ROS_SECURITY_KEYSTORE": "/missing"}
STARTS: dict[str, Callable[[], Any]] = {
    "ask": lambda: asking.ask_node("the chair"),
    "doctor": lambda: live_doctor.examine_graph(duration_s=0.1),
    "mcp": lambda: live_scene.live_scene(namespace="", timeout_s=1.0).__enter__(),
    "replay": lambda: replaying.choose_domain(None),
    "monitor": monitor.NodeMonitor,
}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
@pytest.mark.parametrize("domain", ["abc", "500", "-1", "1.5"])
def test_a_bad_domain_is_named_by_every_command(
    start: Callable[[], Any], domain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """500 would end the process without a word. The command line shows the project's own errors as one sentence."""
    monkeypatch.setenv("ROS_DOMAIN_ID", domain)
    with pytest.raises(RosStartError, match=f"{DOMAIN} '{domain}'") as caught:
        start()
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("main", [bag_player.main, folder_player.main, monitor.main], ids=lambda f: f.__module__)
def test_programs_end_with_the_sentence(
    main: Callable[[list[str]], int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROS_DOMAIN_ID", "abc")
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert main([] if main is monitor.main else ["recording"]) == 2
    assert f"{DOMAIN} 'abc'" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "domain"), [("", None), ("0", 0), (" 7 ", 7), ("232", 232)])
def test_good_domains(text: str, domain: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROS_DOMAIN_ID", text)
    assert domain_of_environment() == domain


@pytest.mark.parametrize(
    ("module", "environment", "words"),
    [
        ("node", {"ROS_DOMAIN_ID": "abc"}, f"perception cannot start: {DOMAIN} 'abc'"),
        ("node", {"ROS_LOG_DIR": "FILE/logs"}, "FILE/logs': 20: set ROS_LOG_DIR to a folder that you may write"),
        ("node.monitor", KEYSTORE, "check ROS_SECURITY_KEYSTORE (/missing), or set ROS_SECURITY_ENABLE to false"),
        ("node", {"ARGUMENTS": "--ros-args -p 5"}, "check the arguments after --ros-args"),
    ],
)
def test_other_settings_end_in_one_sentence(
    module: str, environment: dict[str, str], words: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    given = {name: value.replace("FILE", str(tmp_path / "file")) for name, value in environment.items()}
    arguments = given.pop("ARGUMENTS", "").split()
    command = [sys.executable, "-m", f"embodied_perceptron_ros.{module}", *arguments]
    done = subprocess.run(command, env={**os.environ, **given}, capture_output=True, text=True, timeout=300)
    assert done.returncode in (1, 2)
    assert words.replace("FILE", str(tmp_path / "file")) in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert "/project/" not in done.stderr.splitlines()[-1], "places in the code of ROS help nobody"
