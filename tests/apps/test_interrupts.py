"""Ctrl-C and a full disk: one sentence on what remains and how to go on, no traceback, and a rerun that works."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from support.small_recording import write_recording
from typer.testing import CliRunner

from embodied_perceptron.apps.cli import build_app
from embodied_perceptron.apps.command_line import CommandError, how_to_go_on
from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron_training.datasets.bag_export import export_bag

FULL = OSError(errno.ENOSPC, "No space left on device", "out")


class _Plugin:
    """A command that ends with ``error``."""

    name = "plugin"

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def load(self) -> Callable[[typer.Typer], None]:
        def register(app: typer.Typer) -> None:
            @app.command("write")
            def write() -> None:
                raise self.error

        return register


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (FULL, 2, "No space left on device: 'out'"),
        (OSError("out cannot be written: No space left on device (os error 28)"), 2, "with space on the disk"),
    ],
)
def test_every_command_says_how_to_go_on(error: BaseException, code: int, words: str) -> None:
    result = CliRunner().invoke(build_app([_Plugin(error)]), ["write"])  # type: ignore[list-item]
    assert isinstance(result.exception, CommandError)
    assert result.exception.exit_code == code
    assert words in str(result.exception)
    assert "run the same command again" in str(result.exception)


def test_the_sentence_of_the_command_counts_and_other_errors_pass() -> None:
    with (
        pytest.raises(CommandError, match="interrupted: the homes stay"),
        how_to_go_on(),
        how_to_go_on("the homes stay"),
    ):
        raise KeyboardInterrupt
    with pytest.raises(FileNotFoundError), how_to_go_on():
        raise FileNotFoundError("there")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), FULL])
def test_an_export_that_is_broken_off_leaves_nothing_and_runs_again(tmp_path: Path, error: BaseException) -> None:
    recording = open_recording(write_recording(tmp_path / "room", count=3))

    class Ends:
        """The recording, until the disk is full."""

        def __getattr__(self, name: str) -> Any:
            return getattr(recording, name)

        def __len__(self) -> int:
            return len(recording)

        def __iter__(self) -> Iterator[Any]:
            for number, sample in enumerate(recording):
                if number == 5:
                    raise error
                yield sample

    with pytest.raises(type(error)):
        export_bag(Ends(), tmp_path / "bag")  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["room"]
    assert export_bag(recording, tmp_path / "bag") > 0
    assert len(open_recording(tmp_path / "bag")) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bag", "room"]


POOL = """
import sys, time
from embodied_perceptron_training.processes import spread

if __name__ == "__main__":
    print("ready", flush=True)
    try:
        for item, take in spread(time.sleep, [600, 601, 602], 2):
            take()
    except KeyboardInterrupt:
        sys.exit(130)
"""


def test_an_interrupt_ends_processes_at_once_and_without_tracebacks(tmp_path: Path) -> None:
    """As a terminal sends it: to all processes of the group, also to those that are starting."""
    (tmp_path / "pool.py").write_text(POOL)
    process = subprocess.Popen(
        [sys.executable, tmp_path / "pool.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        deadline = time.monotonic() + 120
        while len(children(process.pid)) < 3 and time.monotonic() < deadline:  # two workers and the tracker
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert (process.returncode, err) == (130, "")


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
