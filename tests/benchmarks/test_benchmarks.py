"""Every benchmark runs with --quick and writes flat figures; what they share does what it says."""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import _report as report
import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
NAMES = sorted(path.stem for path in BENCHMARKS.glob("*.py") if not path.stem.startswith("_"))
OVER_ROS = ("soak", "start_stop", "missions")
# what docs/results.md is made of
FIGURES = {
    "online": (
        "encode_fuse_speedup_at_50",
        "update_speedup_at_50",
        "standing_still_speedup",
        "lap_cost_growth",
        "perception_hz",
        "same_boxes",
    ),
    "fusion": ("ours_ms", "open3d_ms"),
    "objects": ("ratio_of_most_to_fewest",),
    "day": ("fused", "ids_kept", "ghosts", "healthy"),
}


# the one that is read by module: it keeps its trees
TREES = {"device_ops": ("perceive", "integrate", "train_step", "train_step_paper_grounding")}


def is_figure(value: Any) -> bool:
    return value is None or isinstance(value, (str, bool, int, float))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_runs_quickly_and_writes_flat_figures(name: str, tmp_path: Path) -> None:
    if name in OVER_ROS and importlib.util.find_spec("embodied_perceptron_msgs") is None:
        pytest.skip("needs ROS 2 and its interface packages")
    out = tmp_path / f"{name}.json"
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--quick", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["command"].startswith(f"python benchmarks/{name}.py --quick")
    assert found["quick"] is True
    assert len(found) > 4
    for key in TREES.get(name, ()):
        tree = found.pop(key)
        assert tree["operations"] == sum(of["operations"] for of in tree["by_module"].values()) > 0
        assert tree["waits"] == sum(of["waits"] for of in tree["by_module"].values())
    for key, value in found.items():
        rows = value if isinstance(value, list) else [value]
        for row in rows:
            fields = row.values() if isinstance(row, dict) else [row]
            assert all(is_figure(v) or (isinstance(v, list) and all(map(is_figure, v))) for v in fields), (key, row)
    for key in FIGURES.get(name, ()):
        assert key in found
    if name == "online":
        assert found["same_boxes"] is True
        assert found["boxes_compared"] > 0
        encoded = {row["standing"]: row["images_encoded"] for row in found["prefixes"]}
        assert encoded == {False: 1, True: 0}  # one image each; none where the robot stands


def test_there_are_benchmarks() -> None:
    assert len(NAMES) > 12


# ------------------------------------------------------------------------------------------------- what they share


def options_of(monkeypatch: pytest.MonkeyPatch, *argv: str, **quick: Any) -> argparse.Namespace:
    monkeypatch.setattr(sys, "argv", ["benchmarks/some.py", *argv])
    parser = report.parser("Measures nothing.")
    parser.add_argument("--frames", type=int, default=100)
    return report.parse(parser, **quick)


def test_quick_changes_defaults_and_not_what_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert options_of(monkeypatch, frames=3).frames == 100
    assert options_of(monkeypatch, "--quick", frames=3).frames == 3
    assert options_of(monkeypatch, "--quick", "--frames", "7", frames=3).frames == 7
    assert options_of(monkeypatch).out == report.OUT / "some.json"


def test_files_are_flat(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = options_of(monkeypatch, "--out", str(tmp_path / "new" / "a file.json"))
    table = [{"lap": 1, "ms": {"p50": 2.0}}]
    report.write(options, {"a": {"b": {"c": 1}, "d": np.float32(0.5)}, "nan": float("nan"), "laps": table})
    found = json.loads(options.out.read_text(encoding="utf-8"))
    assert found.pop("command") == f"python benchmarks/some.py --out '{options.out}'"
    assert found.pop("machine")
    assert found == {"quick": False, "a.b.c": 1, "a.d": 0.5, "nan": None, "laps": [{"lap": 1, "ms.p50": 2.0}]}
    with pytest.raises(TypeError, match="where is PosixPath"):
        report.write(options, {"where": tmp_path})


def test_a_goal_that_was_not_measured_is_not_met() -> None:
    met = [report.goal("ms", value, most=3.0)["met"] for value in (2.0, 3.0, 4.0, None)]
    assert met == [True, True, False, False]
    assert [report.goal("x", value, least=3.0)["met"] for value in (2.0, 3.0)] == [False, True]
