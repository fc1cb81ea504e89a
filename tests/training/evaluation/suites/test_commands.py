"""Commands of `evaluate` share the declaration of their options."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from embodied_perceptron.apps.command_line import with_option_groups
from embodied_perceptron_training import evaluation
from embodied_perceptron_training.evaluation.evaluate_command import evaluate_app
from embodied_perceptron_training.evaluation.runner import report
from embodied_perceptron_training.evaluation.runner.options import Common
from embodied_perceptron_training.evaluation.suites.commands import register, suite_spec
from embodied_perceptron_training.processes import Cluster

SHARED = {"data", "out", "split", "weights", "scenes", "views", "workers", "ray"}


def parameters(app):
    return {name: {p.name: p for p in c.params} for name, c in typer.main.get_command(app).commands.items()}


def test_every_suite_has_the_common_options_and_its_own():
    app = typer.Typer()
    register(app)
    known = parameters(app)
    assert set(known) == {"pope", "arkitscenerefer", "openlex3d", "robustness", "lifting"}
    assert all(set(options) >= SHARED for options in known.values())
    assert {"scene_list", "answers"} < set(known["pope"])
    assert "references" in known["arkitscenerefer"]
    assert "predictions" in known["openlex3d"]
    assert {"levels", "detector", "detector_layout"} < set(known["robustness"])
    assert known["pope"]["data"].required
    assert [known[name]["views"].default for name in ("pope", "robustness")] == [20, 4]
    assert [known[name]["scenes"].default for name in ("pope", "robustness")] == [None, 6]


def test_values_reach_the_suite(tmp_path):
    told = []

    def suite(
        common: Common,
        views: Annotated[int, typer.Option(min=2, help="Own.")] = 4,
        twist: Annotated[float, typer.Option(help="Own.")] = 0.5,
    ) -> None:
        """A suite."""
        told.append((common, views, twist))

    app = typer.Typer()
    app.command("suite")(with_option_groups(suite))
    words = ["--data", str(tmp_path), "--out", str(tmp_path / "o"), "--views", "7", "--workers", "3"]
    assert CliRunner().invoke(app, [*words, "--twist", "0.25"]).exit_code == 0
    common, views, twist = told[0]
    assert (common.data, common.views, common.workers, common.split) == (tmp_path, 7, 3, "test")
    assert (views, twist) == (7, 0.25)
    spec = suite_spec(common, seed=5, training=tmp_path / "homes.json")
    assert (spec.data, spec.views, spec.seed, spec.training) == (str(tmp_path), 7, 5, str(tmp_path / "homes.json"))
    assert CliRunner().invoke(app, [*words, "--ray", "auto"]).exit_code == 0
    assert told[-1][0].cluster == Cluster("auto")
    for wrong in (["--views", "1"], ["--workers", "0"]):
        assert CliRunner().invoke(app, [*words, *wrong]).exit_code == 2
    assert CliRunner().invoke(app, ["--out", str(tmp_path)]).exit_code == 2


def test_help_is_the_suites_own():
    app = typer.Typer()
    register(app)
    shown = CliRunner().invoke(app, ["robustness", "--help"]).output
    assert "BEHAVIOR" in shown
    assert "articulation" in shown


def test_an_option_that_several_commands_have_is_declared_once():
    """What the same option of two commands says was typed out up to four times, and could come to differ."""
    folder = Path(evaluation.__file__).parent
    names = ("runner/options.py", "evaluate_command.py", "suites/commands.py")
    sources = [(folder / name).read_text() for name in names]
    declared = re.findall(r'Annotated\[[^\[\]]*(?:\[[^\]]*\])?[^\[\]]*help="([^"]+)"', "\n".join(sources))
    assert len(declared) > 20
    assert [text for text, times in Counter(declared).items() if times > 1] == []
    known = parameters(evaluate_app)
    for name in ("all", "pope", "arkitscenerefer", "openlex3d", "robustness"):
        assert set(known[name]) >= SHARED, name
    for name in ("views", "scenes", "workers"):
        said = {
            known[c][name].help.split(" Default:")[0]  # a command may add its own default
            for c in ("all", "pope", "openlex3d", "calibrate", "calibrate-scores")
        }
        assert len(said) == 1, name


@pytest.mark.parametrize("task", [["all", "--only", "detection"], ["detection"]])  # the second is a former name
def test_a_task_gets_its_options(monkeypatch, tmp_path, task):
    told = []
    monkeypatch.setattr(report, "run_evaluation", lambda *values: told.append(values))
    words = [*task, "--data", str(tmp_path), "--out", str(tmp_path / "o"), "--views", "3", "--split", "val"]
    (tmp_path / "own.safetensors").touch()
    words += [
        "--weights",
        str(tmp_path / "own.safetensors"),
        "--scenes",
        "4",
        "--workers",
        "1",
        "--turn-seed",
        "9",
        "--pictures",
        "0",
    ]
    assert CliRunner().invoke(evaluate_app, words).exit_code == 0
    title, spec, out, workers, _, pictures = told[0]
    assert (title, spec.tasks, spec.data, out) == ("detection", ("detection",), str(tmp_path), tmp_path / "o")
    assert (Path(spec.weights).name, spec.split, spec.scenes, spec.views) == ("own.safetensors", "val", 4, 3)
    assert (spec.turn_seed, spec.prompts, workers, pictures) == (9, "vg", 1, 0)
