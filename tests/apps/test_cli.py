"""The command line: help, exit codes, errors in words, plugins that fail without breaking others."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import typer
from rich.console import Console
from support.small_recording import write_recording
from typer.testing import CliRunner

from embodied_perceptron import __version__
from embodied_perceptron.apps import cli, command_line, network_commands, recording_commands
from embodied_perceptron.apps.checks import Finding, Severity
from embodied_perceptron.apps.command_line import CommandError, announce_slow_start

RUN = CliRunner(env={"COLUMNS": "300", "TERM": "dumb", "NO_COLOR": "1"})


class Plugin:
    """Stands in for an installed entry point."""

    def __init__(self, name: str, loaded: object) -> None:
        self.name = name
        self.loaded = loaded

    def load(self) -> object:
        if isinstance(self.loaded, Exception):
            raise self.loaded
        return self.loaded


def good_plugin(app: typer.Typer) -> None:
    @app.command("greet")
    def greet(name: str) -> None:
        """Say hello."""
        print(f"hello {name}")


def half_plugin(app: typer.Typer) -> None:
    good_plugin(app)
    raise RuntimeError("no second half")


DEV = Plugin("network", network_commands.register)


def app(*plugins: Plugin) -> typer.Typer:
    return cli.build_app(plugins)  # type: ignore[arg-type]


@dataclass
class Ended:
    code: int
    err: str


@pytest.fixture
def run_main(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """The console script with these arguments, in this process."""

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["embodied-perceptron", *arguments])
        monkeypatch.setattr(cli, "errors", Console(stderr=True, width=300))
        monkeypatch.setenv("EMBODIED_PERCEPTRON_TRACEBACK", "0")  # so that it is put back in the end
        monkeypatch.delenv("EMBODIED_PERCEPTRON_TRACEBACK")
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return Ended(int(ended.value.code or 0), capfd.readouterr().err)

    return run


# --------------------------------------------------------------------------------------------------------------------
# the frame


def test_help_lists_the_commands_and_version_is_the_packages() -> None:
    result = RUN.invoke(app(), ["--help"])
    assert result.exit_code == 0
    for name in ("replay", "doctor"):
        assert name in result.output
    assert RUN.invoke(app(), ["--version"]).output.strip() == f"embodied-perceptron {__version__}"


@pytest.mark.parametrize("command", ["replay", "doctor"])
def test_every_command_has_help(command: str) -> None:
    result = RUN.invoke(app(), [command, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_brackets_in_help_are_no_markup() -> None:
    for words, text in ((["ground"], '"center": [x, y, z]'), (["detector", "install"], "[onnx-export]")):
        assert text in RUN.invoke(app(), [*words, "--help"]).output


@pytest.mark.parametrize("weights", ["none", "None"])
def test_no_network_is_called_none_everywhere(tmp_path: Path, weights: str) -> None:
    from embodied_perceptron.config import NetworkOptions

    assert NetworkOptions(weights=weights).weights == ""
    arguments = ["replay", str(write_recording(tmp_path / "room", count=2)), "--out", str(tmp_path / "out")]
    result = RUN.invoke(app(), [*arguments, "--weights", weights, "--device", "cpu"])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(("speaks", "told"), [(False, "starting train ...\n"), (True, "")])
def test_whatever_takes_long_to_begin_says_so(
    speaks: bool, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> None:
        if speaks:
            print("well")
        time.sleep(0.3)

    monkeypatch.setattr(sys, "argv", ["embodied-perceptron", "--traceback", "train", "--steps", "3"])
    monkeypatch.setattr(cli, "build_app", lambda: run)
    monkeypatch.setattr(cli, "announce_slow_start", partial(announce_slow_start, after_s=0.1))
    streams = sys.stdout, sys.stderr
    with pytest.raises(SystemExit):
        cli.main()
    assert (sys.stdout, sys.stderr) == streams
    out, error = capsys.readouterr()
    assert error == told
    assert out == ("well\n" if speaks else "")


def test_help_does_not_load_the_heavy_parts() -> None:
    code = (
        "import sys; from embodied_perceptron.apps import cli; cli.build_app([]); "
        "print([m for m in ('torch', 'numba', 'cv2', 'rosbags', 'rclpy') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert out.strip() == "[]"


@pytest.mark.parametrize(
    "former",
    [
        *("model", "compile", "bench", "results", "ablate", "fit-language", "mission-score"),
        *("mission-questions", "import-official", "simulate", "render-recording"),
        *("weights add", "evaluate card", "evaluate continuous-detection"),
    ],
)
def test_former_names_are_hidden(former: str) -> None:
    *group, name = former.split()
    assert not re.search(rf"│ {name} ", RUN.invoke(cli.build_app(), [*group, "--help"]).output)
    assert RUN.invoke(cli.build_app(), [*group, name, "--help"]).exit_code == 0


def test_a_former_name_prints_the_new_one() -> None:
    result = RUN.invoke(app(DEV), ["model", "tiny", "--task", "detection"])
    assert result.exit_code == 0
    assert result.stderr == "`model` is now `dev model`; the old name goes in 0.4\n"
    assert RUN.invoke(app(DEV), ["dev", "model", "tiny", "--task", "detection"]).stdout == result.stdout


def test_a_plugin_adds_its_commands() -> None:
    result = RUN.invoke(app(Plugin("greetings", good_plugin)), ["greet", "robot"])
    assert (result.exit_code, result.output) == (0, "hello robot\n")


def test_a_plugin_that_cannot_be_imported_says_why_when_called_and_breaks_nothing() -> None:
    broken = Plugin("perceive", ModuleNotFoundError("No module named 'rclpy'"))
    with_both = app(broken, Plugin("greetings", good_plugin))
    assert RUN.invoke(with_both, ["greet", "robot"]).exit_code == 0
    assert "not available" in RUN.invoke(with_both, ["--help"]).output
    result = RUN.invoke(with_both, ["perceive", "--anything", "goes"])
    assert isinstance(result.exception, CommandError)
    assert str(result.exception) == (
        "the plugin 'perceive' could not be loaded: ModuleNotFoundError: No module named 'rclpy'"
    )


def test_an_unknown_command_tells_about_plugins_that_failed() -> None:
    result = RUN.invoke(app(Plugin("ros", ImportError("no rclpy"))), ["simulate"])
    assert result.exit_code == 2
    assert "No such command 'simulate'" in result.output
    assert "ros (ImportError: no rclpy)" in result.output
    assert "plugins" not in RUN.invoke(app(), ["simulate"]).output


def test_a_plugin_that_fails_half_way_keeps_its_first_half() -> None:
    half = app(Plugin("half", half_plugin))
    assert RUN.invoke(half, ["greet", "you"]).output == "hello you\n"
    assert "no second half" in str(RUN.invoke(half, ["half"]).exception)


def test_a_failed_plugin_does_not_hide_a_command_of_its_name() -> None:
    result = RUN.invoke(app(Plugin("doctor", ImportError("x"))), ["doctor", "--help"])
    assert "Find out why" in result.output


def test_installed_entry_points_are_entry_points() -> None:
    assert all(isinstance(e, EntryPoint) for e in cli.entry_points(group=cli.COMMANDS_GROUP))


# --------------------------------------------------------------------------------------------------------------------
# errors and exit codes of the real program


def test_the_real_program_ends_errors_with_one_line_and_exit_code_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "embodied_perceptron.apps.cli", "replay", str(tmp_path / "nowhere"), "--out"]
    result = subprocess.run([*command, str(tmp_path / "out")], capture_output=True, text=True, check=False, timeout=110)
    assert result.returncode == 2
    assert result.stderr.strip().splitlines()[-1] == f"error: {tmp_path / 'nowhere'} does not exist"
    assert not (tmp_path / "out").exists()


def test_where_an_error_came_from_is_shown_on_demand(run_main: Callable[..., Ended], tmp_path: Path) -> None:
    arguments = ("replay", str(tmp_path / "nowhere"), "--out", str(tmp_path / "out"))
    assert "Traceback" not in run_main(*arguments).err
    assert "Traceback" in run_main("--traceback", *arguments).err


def test_errors_that_are_not_the_users_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> typer.Typer:
        raise ZeroDivisionError

    monkeypatch.setattr(cli, "build_app", broken)
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_ctrl_c_is_no_traceback(run_main: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> typer.Typer:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "build_app", interrupted)
    ended = run_main()
    assert (ended.code, ended.err.strip()) == (130, "interrupted")


def test_ctrl_c_is_no_traceback_while_the_program_is_still_imported() -> None:
    """As the installed script starts it, with an interrupt at the first import of anything that is not ours."""
    text = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text()
    module, function = re.findall(r'^embodied-perceptron = "([\w.]+):(\w+)"$', text, re.M)[0]
    code = f"""if True:
        import sys

        class Interrupt:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in ("typer", "rich", "numpy"):
                    raise KeyboardInterrupt

        sys.meta_path.insert(0, Interrupt())
        from {module} import {function}
        {function}()
    """
    done = subprocess.run([sys.executable, "-c", code, "perceive"], capture_output=True, text=True, timeout=110)
    assert (done.returncode, done.stderr.strip()) == (130, "interrupted")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("volume: {voxel_size: 0.02}", "unknown key(s) voxel_size"),
        ("volume: {voxel_size_m: fast}", "voxel_size_m must be float, got 'fast'"),
        ("volume: [", "is not valid YAML"),
    ],
)
def test_a_bad_configuration_is_named(run_main: Callable[..., Ended], tmp_path: Path, text: str, message: str) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(text)
    result = run_main("replay", str(tmp_path), "--out", str(tmp_path / "out"), "--config", str(config))
    assert result.code == 2
    assert message in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    "arguments", [["replay", "src"], ["replay"], ["replay", "src", "--out", "o", "--max-frames", "0"]]
)
def test_wrong_usage(arguments: list[str]) -> None:
    assert RUN.invoke(app(), arguments).exit_code == 2


@pytest.mark.parametrize(
    ("names", "message"),
    [("", "list of classes is empty"), ("chair,,bed", "class 2 of 3 is empty"), ("no.txt", "no file of class")],
)
def test_a_bad_class_list_is_named(run_main: Callable[..., Ended], tmp_path: Path, names: str, message: str) -> None:
    result = run_main("replay", str(tmp_path), "--out", str(tmp_path / "out"), "--classes", names)
    assert result.code == 2
    assert message in result.err
    assert "Traceback" not in result.err


def test_topics_belong_together(tmp_path: Path) -> None:
    result = RUN.invoke(app(), ["replay", str(tmp_path), "--out", str(tmp_path / "o"), "--color-topic", "/c"])
    assert "belong together" in str(result.exception)


# --------------------------------------------------------------------------------------------------------------------
# commands


def test_replay_writes_the_results(tmp_path: Path) -> None:
    source = write_recording(tmp_path / "room")
    config = tmp_path / "c.yaml"
    config.write_text("{volume: {voxel_size_m: 0.05}, network: {weights: ''}}")
    out = tmp_path / "out"
    arguments = ["replay", str(source), "--direct", "--out", str(out), "--config", str(config), "--max-frames", "6"]
    result = RUN.invoke(app(), arguments)
    assert result.exit_code == 0, result.output
    assert {p.name for p in out.iterdir()} == {
        "map.safetensors",
        "voxels.ply",
        "objects.json",
        "scene_objects.json",
        "occupancy.npz",
        "top_view.png",
        "occupancy_grid.pgm",
        "occupancy_grid.yaml",
        "timings.json",
    }
    assert json.loads((out / "timings.json").read_text())["fused"] == 6
    assert "6 fused" in result.output
    assert "fusing, ms a frame" in result.output


def test_replay_publishes_what_a_class_list_names(tmp_path: Path) -> None:
    source = write_recording(tmp_path / "room")
    config = tmp_path / "c.yaml"
    config.write_text("{volume: {voxel_size_m: 0.05}, network: {weights: ''}}")
    arguments = ["replay", str(source), "--out", str(tmp_path / "out"), "--config", str(config), "--max-frames", "4"]
    result = RUN.invoke(app(), [*arguments, "--classes", "chair,table", "--json"])
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["fused"] == 4
    assert printed["objects"] == json.loads((tmp_path / "out" / "objects.json").read_text())
    labels = {thing["label"] for thing in json.loads((tmp_path / "out" / "objects.json").read_text())}
    assert labels <= {"chair", "table", "object"}
    over_ros = RUN.invoke(app(), [*arguments, "--ros", "--classes", "chair"])
    assert "--classes belongs to --direct" in str(over_ros.exception)


def test_replay_that_fuses_nothing_fails_with_the_reasons(tmp_path: Path) -> None:
    source = write_recording(tmp_path / "room")
    (source / "groundtruth.txt").write_text("4.0 0 0 0 0 0 0 1\n")
    result = RUN.invoke(app(), ["replay", str(source), "--out", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "dropped, pose_too_old" in result.output
    assert "lies before the oldest pose" in result.output
    assert "further dropped frames are only counted" in result.output
    assert "the map is empty: 12 of 12 frames were dropped, pose_too_old" in result.output


def test_damaged_images_stop_a_replay_unless_told_otherwise(run_main: Callable[..., Ended], tmp_path: Path) -> None:
    source = write_recording(tmp_path / "room", 4)
    file = source / "depth" / "000001.png"
    file.write_bytes(file.read_bytes()[:100])
    out = tmp_path / "out"
    result = run_main("replay", str(source), "--out", str(out))
    assert result.code == 2
    assert f"{file}: PNG image is cut short" in result.err
    assert not out.exists()
    result = RUN.invoke(app(), ["replay", str(source), "--out", str(out), "--skip-damaged"])
    assert result.exit_code == 0
    assert json.loads((out / "timings.json").read_text())["dropped"] == {"bad_frame": 1}


def test_replay_over_ros_is_the_ros_packages_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[object] = []

    def play(**arguments: object) -> int:
        asked.append(arguments)
        return 7

    found: list[Plugin] = []
    monkeypatch.setattr(
        command_line, "entry_points", lambda group: found if group == recording_commands.ROS_REPLAY_GROUP else []
    )
    arguments = ["replay", "bag", "--ros", "--out", "out", "--rate", "2", "--max-frames", "9"]
    assert "needs the ROS package" in str(RUN.invoke(app(), arguments).exception)
    found.append(Plugin("ros", play))
    assert RUN.invoke(app(), arguments).exit_code == 7
    assert asked == [{"source": Path("bag"), "out": Path("out"), "config": None, "max_frames": 9, "rate": 2.0}]
    found[0] = Plugin("ros", ImportError("no rclpy"))
    assert "replay --ros is not available: ImportError: no rclpy" in str(RUN.invoke(app(), arguments).exception)


def test_doctor_on_a_good_folder(tmp_path: Path) -> None:
    result = RUN.invoke(app(), ["doctor", str(write_recording(tmp_path))])
    assert result.exit_code == 0, result.output
    assert "0 errors, 0 warnings" in result.output


def test_doctor_on_a_bad_folder_gives_remedies_and_exit_code_1(tmp_path: Path) -> None:
    source = write_recording(tmp_path)
    spec = json.loads((source / "camera.json").read_text()) | {"depth_scale": 1.0}
    (source / "camera.json").write_text(json.dumps(spec))
    result = RUN.invoke(app(), ["doctor", str(source)])
    assert result.exit_code == 1
    assert "raise depth_scale" in result.output
    as_json = RUN.invoke(app(), ["doctor", str(source), "--json"])
    assert as_json.exit_code == 1
    findings = json.loads(as_json.stdout)
    assert {"check", "severity", "message", "remedy"} == set(findings[0])
    assert any(f["severity"] == "error" and f["check"] == "depth unit" for f in findings)


def test_doctor_on_what_cannot_be_opened(tmp_path: Path) -> None:
    result = RUN.invoke(app(), ["doctor", str(tmp_path / "nowhere")])
    assert result.exit_code == 1
    assert "does not exist" in result.output


def test_doctor_on_the_installation() -> None:
    result = RUN.invoke(app(), ["doctor"])
    assert result.exit_code == 0
    assert "torch" in result.output


def test_doctor_on_a_live_system_is_the_ros_packages_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(duration_s: float, namespace: str | None) -> list[Finding]:
        return [Finding("tf", Severity.ERROR, f"{namespace}: no transforms in {duration_s:g} s", "publish them")]

    monkeypatch.setattr(command_line, "entry_points", lambda group: [Plugin("ros", look)])
    result = RUN.invoke(app(), ["doctor", "--live", "--duration", "3", "--namespace", "robot1"])
    assert result.exit_code == 1
    assert "robot1: no transforms in 3 s" in result.output


@pytest.fixture
def benchmarks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (tmp_path / "pyproject.toml").touch()
    (folder / "quick.py").write_text('"""Measures nothing.\n\nMore."""\nprint("measured")\nopen("ran", "w")\n')
    (folder / "broken.py").write_text("raise SystemExit(4)\n")
    (folder / "told.py").write_text('import sys\nopen("told", "w").write(" ".join(sys.argv[1:]))\n')
    (folder / "_helper.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return folder


def test_bench_lists_and_runs_by_name(benchmarks: Path) -> None:
    listed = RUN.invoke(app(DEV), ["dev", "bench"])
    assert "quick  Measures nothing." in listed.output
    assert "_helper" not in listed.output
    assert RUN.invoke(app(DEV), ["dev", "bench", "quick"]).exit_code == 0
    assert Path("ran").exists()
    unknown = RUN.invoke(app(DEV), ["dev", "bench", "quicker"])
    assert "unknown benchmark quicker; there are: broken, quick, told" in str(unknown.exception)
    failed = RUN.invoke(app(DEV), ["dev", "bench", "--all", "--quick"])
    assert "1 of 3 benchmarks failed: broken (exit code 4)" in str(failed.exception)
    assert Path("told").read_text() == "--quick"  # those behind the broken one ran too


def test_bench_outside_of_the_source_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_commands, "benchmarks_folder", lambda: None)
    assert "part of the source tree" in str(RUN.invoke(app(DEV), ["dev", "bench"]).exception)
