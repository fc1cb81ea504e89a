"""Child processes: signals reach them once, stubborn ones are killed with their children, nobody is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from embodied_perceptron_ros.environment import FASTDDS_PROFILE, PROFILE_VARIABLES, ros_environment
from embodied_perceptron_ros.players.processes import Supervisor, combined_exit_code

SLEEPER = "import time; time.sleep(60)"
COUNTER = """
import signal, sys, time
count = 0
def on_interrupt(number, frame):
    global count
    count += 1
signal.signal(signal.SIGINT, on_interrupt)
print("ready", flush=True)
while count == 0:
    time.sleep(0.01)
time.sleep(0.3)  # a second delivery would arrive now
print("interrupts", count, flush=True)
"""
STUBBORN = """
import signal, subprocess, sys, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print("child", child.pid, flush=True)
time.sleep(60)
"""

ROOT = Path(__file__).resolve().parents[3]


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def wait_for_text(path: Path, text: str, timeout_s: float = 60.0) -> str:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        content = path.read_text() if path.exists() else ""
        if text in content:
            return content
        time.sleep(0.02)
    raise AssertionError(f"{text!r} did not appear in {path}: {path.read_text() if path.exists() else 'no file'}")


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until_gone(pid: int, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while is_alive(pid):
        assert time.monotonic() < deadline, f"process {pid} is still alive"
        time.sleep(0.02)


def test_exit_codes_and_logs(tmp_path: Path) -> None:
    with Supervisor() as group:
        group.start("good", python("print('hello')"), log=tmp_path / "good.log")
        assert group.wait(until=["good"], timeout_s=60) == {"good": 0}
        group.start("bad", python("raise SystemExit(3)"), log=tmp_path / "bad.log")
        codes = group.wait(until=["good", "bad"], timeout_s=60)
    assert codes == {"good": 0, "bad": 3}
    assert (tmp_path / "good.log").read_text() == "hello\n"


def test_wait_ends_when_a_process_that_should_run_ends() -> None:
    with Supervisor() as group:
        group.start("player", python(SLEEPER))
        group.start("node", python("raise SystemExit(0)"))
        codes = group.wait(until=["player"], timeout_s=60)
        assert codes == {"player": None, "node": 0}
        stopped = group.stop()
    assert stopped == {"player": -signal.SIGINT, "node": 0}


def test_wait_times_out_without_stopping_anything() -> None:
    with Supervisor() as group:
        pid = group.start("node", python(SLEEPER))
        assert group.wait(timeout_s=0.2) == {"node": None}
        assert is_alive(pid)
    assert not is_alive(pid)


def test_interrupt_is_passed_on_once(tmp_path: Path) -> None:
    with Supervisor() as group:
        group.start("node", python(COUNTER), log=tmp_path / "node.log")
        wait_for_text(tmp_path / "node.log", "ready")
        os.kill(os.getpid(), signal.SIGINT)
        group.wait(timeout_s=60)
        assert group.interrupted
        assert group.stop() == {"node": 0}
    assert "interrupts 1" in (tmp_path / "node.log").read_text()


def test_signal_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Supervisor():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_stubborn_process_is_killed_with_its_children(tmp_path: Path) -> None:
    with Supervisor(grace_s=0.3) as group:
        pid = group.start("stubborn", python(STUBBORN), log=tmp_path / "log")
        grandchild = int(wait_for_text(tmp_path / "log", "child").split()[1])
        assert group.stop() == {"stubborn": -signal.SIGKILL}
    assert not is_alive(pid)
    wait_until_gone(grandchild)


def test_children_die_with_a_killed_parent(tmp_path: Path) -> None:
    parent_code = f"""
import sys, time
from embodied_perceptron_ros.players.processes import Supervisor
with Supervisor() as group:
    print("pid", group.start("node", [sys.executable, "-c", {SLEEPER!r}]), flush=True)
    time.sleep(60)
"""
    parent = subprocess.Popen(python(parent_code), stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline().split()[1])
    assert is_alive(child)
    parent.kill()
    parent.wait()
    wait_until_gone(child)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="grace_s"):
        Supervisor(grace_s=0)
    with Supervisor() as group:
        group.start("a", python("pass"))
        with pytest.raises(ValueError, match="'a'"):
            group.start("a", python("pass"))
        with pytest.raises(ValueError, match="ghost"):
            group.wait(until=["ghost"])
        with pytest.raises(OSError, match="no-such-program"):
            group.start("b", ["/no-such-program"])


@pytest.mark.parametrize(
    ("codes", "interrupted", "expected"),
    [
        ({"a": 0, "b": -signal.SIGINT}, False, 0),
        ({"a": 0, "b": 4}, False, 4),
        ({"a": -signal.SIGSEGV, "b": 0}, False, 128 + signal.SIGSEGV),
        ({"a": None}, False, 0),
        ({"a": 0}, True, 130),
    ],
)
def test_combined_exit_code(codes: dict[str, int | None], interrupted: bool, expected: int) -> None:
    assert combined_exit_code(codes, interrupted) == expected


@pytest.mark.parametrize(
    ("set_there", "profile"),
    [
        ({}, str(FASTDDS_PROFILE)),
        ({"FASTDDS_DEFAULT_PROFILES_FILE": ""}, str(FASTDDS_PROFILE)),
        ({"FASTRTPS_DEFAULT_PROFILES_FILE": "/own.xml"}, "/own.xml"),
        ({"FASTDDS_DEFAULT_PROFILES_FILE": "/own.xml"}, "/own.xml"),
    ],
)
def test_profile_is_set_for_every_fast_dds_unless_the_user_has_one(set_there: dict[str, str], profile: str) -> None:
    assert FASTDDS_PROFILE.is_file()
    assert ros_environment(set_there | {"EMPTY": ""}) == dict.fromkeys(PROFILE_VARIABLES, profile) | {"EMPTY": ""}


def test_this_fast_dds_reads_one_of_the_variables(tmp_path: Path) -> None:
    """Fast DDS 2 (Humble, Jazzy) and 3 have different names for it; a variable that is not read changes nothing."""
    pytest.importorskip("rclpy")
    (tmp_path / "broken.xml").write_text("<dds")
    program = "import rclpy; rclpy.init(); rclpy.create_node('reader')"
    environment = os.environ | dict.fromkeys(PROFILE_VARIABLES, str(tmp_path / "broken.xml"))
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert "broken.xml" in done.stdout + done.stderr


@pytest.mark.parametrize("name", ["embodied_perceptron.recordings.open", "embodied_perceptron_ros.players.bag_player"])
def test_what_reads_and_plays_recordings_starts_without_torch(name: str) -> None:
    """Its import takes longer than everything else that they import."""
    if "ros" in name:
        pytest.importorskip("rclpy")
    program = f"import sys, {name}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("name", ["perception", "folder_player", "bag_player"])
def test_a_terminal_without_the_environment_is_told_what_to_source(name: str) -> None:
    command = [sys.executable, "-I", "-S", str(ROOT / "ros_ws/src/embodied_perceptron_ros/scripts" / name)]
    done = subprocess.run(command, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "there is no rclpy, numpy, embodied_perceptron" in done.stderr
    assert "install/setup.bash" in done.stderr
    assert "Traceback" not in done.stderr
