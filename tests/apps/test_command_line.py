"""What is shown while something lasts: at once, and on and on where nobody looks at a bar."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from embodied_perceptron.apps import command_line
from embodied_perceptron.apps.command_line import TaskProgress

ROOT = Path(__file__).resolve().parents[2]


def wait_for(condition: Callable[[], bool]) -> None:
    """Fails the test after a minute."""
    end_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_a_line_comes_at_once_and_then_on_and_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while nothing is reported: what lasts is silent for long."""
    monkeypatch.setattr(command_line, "_PROGRESS_PERIOD_S", 0.05)
    out = io.StringIO()
    with TaskProgress("looking at [a] map", Console(file=out)) as shown:
        assert out.getvalue() == "looking at [a] map ...\n"
        wait_for(lambda: len(out.getvalue().splitlines()) >= 3)
        silent = out.getvalue().splitlines()
        assert re.fullmatch(r"looking at \[a\] map \.\.\., \d+ s", silent[-1])
        shown.update(3, 7, "fused 2")
        wait_for(lambda: "fused 2: 3 of 7, " in out.getvalue())
    assert re.fullmatch(r"fused 2: 3 of 7, \d+ s", out.getvalue().splitlines()[-1])
    ended = out.getvalue()
    time.sleep(0.2)
    assert out.getvalue() == ended


def test_a_terminal_has_a_bar_that_goes() -> None:
    out = io.StringIO()
    with TaskProgress("reading", Console(file=out, force_terminal=True, width=80)) as shown:
        shown.update(1, 4)
        wait_for(lambda: "1/4" in out.getvalue())
        shown.say("a line that stays")
    assert "reading" in out.getvalue()
    assert "1/4" in out.getvalue()
    assert "a line that stays" in out.getvalue()


def test_no_command_has_a_bar_of_its_own() -> None:
    """It would say nothing where it is piped. A training and the demo print lines by themselves."""
    by_themselves = {"trainer.py", "demo.py"}
    found = []
    for folder in ("models", "training", "ros_ws/src"):
        for path in (ROOT / folder).rglob("*.py"):
            source = path.read_text()
            if "rich.progress" not in source:
                continue
            imports = {n.module for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ImportFrom)}
            if (
                "rich.progress" in imports
                and path.parts[-2:] != ("apps", "command_line.py")
                and path.name not in by_themselves
            ):
                found.append(path)
    assert found == []


def slow(*commands: str) -> list[Any]:
    return [pytest.param(command, marks=pytest.mark.slow) for command in commands]


@pytest.mark.parametrize(
    "words",
    [
        "replay . --out OUT",
        "doctor .",
        "describe .",
        "generate --drive --out OUT",
        "train --task multi --data . --out OUT",
        "label labels.json --map .",
        "evaluate recording --recording . --out OUT",
        *slow(
            "dev compile",
            "view .",
            "ground --scene-file FILE --out OUT/a.json",
            "generate --out OUT",
            "inspect .",
            "inspect --compare .",
            "export-bag . --out OUT",
            "learn --from . --out learned.safetensors",
            "dev ablate --data . --val . --out OUT",
            "evaluate all --data . --out OUT",
            "evaluate pope --data . --out OUT",
            "evaluate robustness --data . --out OUT",
            "evaluate calibrate --data . --weights tiny",
            "evaluate calibrate-scores --data . --weights tiny",
        ),
    ],
)
def test_a_command_says_what_it_does_before_it_loads_what_takes_long(words: str, tmp_path: Path) -> None:
    """torch and numba take seconds, in which a terminal would be silent."""
    for name in ("file.json", "map.safetensors"):
        (tmp_path / name).write_text("{}")
    words = words.replace("OUT", str(tmp_path / "out")).replace("FILE", str(tmp_path / "file.json"))
    code = """
import sys
from embodied_perceptron.apps import command_line
def enter(self):
    print([name for name in ("torch", "numba", "cv2", "rosbags") if name in sys.modules])
    sys.stdout.flush()
    import os
    os._exit(0)
command_line.TaskProgress.__enter__ = enter
from embodied_perceptron.apps.cli import build_app
build_app()(sys.argv[1:])
"""
    command = [sys.executable, "-c", code, *words.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "[]", f"{words}: {done.stdout}{done.stderr}"
