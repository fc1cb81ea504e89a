"""``embodied-perceptron diff``: two saved maps in lines, JSON and pictures; maps that cannot be compared."""

from __future__ import annotations

import json

import cv2
import pytest
from support.online_world import BOXES, config, walk
from typer.testing import CliRunner

from embodied_perceptron.apps.cli import build_app
from embodied_perceptron.apps.command_line import CommandError
from embodied_perceptron.perceptron import Perceptron


def saved(folder, boxes, label):
    live = Perceptron(config())
    for posed in walk(2, 12, boxes=boxes):
        live.integrate(posed)
        live.perceive()
    for thing in live.objects:
        live.correct_object(thing.id, label)
    live.save(folder / "map.safetensors")
    return folder, live


@pytest.fixture(scope="module")
def maps(tmp_path_factory):
    """The same room with both boxes, and with one of them."""
    return [
        saved(tmp_path_factory.mktemp(name), boxes, label)
        for name, boxes, label in (("both", BOXES, "crate"), ("one", BOXES[:1], "box"))
    ]


def run(*arguments):
    return CliRunner().invoke(build_app([]), ["diff", *map(str, arguments)])


def test_a_map_is_as_itself(maps):
    folder, live = maps[0]
    result = run(folder, folder)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == f"{len(live.objects)} unchanged"


def test_what_changed_is_said_written_and_drawn(maps, tmp_path):
    (before, live), (after, _) = maps
    result = run(before, after, "--out", tmp_path / "report", "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout[result.stdout.index("{") :])
    assert said == json.loads((tmp_path / "report" / "changes.json").read_text())
    assert said["renamed"]
    told = [
        c["before"]["id"]
        for kind in ("left", "moved", "renamed", "unsure", "unseen")
        for c in said[kind]
        if c["before"]
    ]
    assert set(told) <= {o.id for o in live.objects}
    assert all(cv2.imread(str(tmp_path / "report" / f"{side}.png")) is not None for side in ("before", "after"))
    lines = run(before, after).stdout
    assert "renamed: crate" in lines
    assert "is now box" in lines


def test_what_cannot_be_compared_is_said(maps, tmp_path):
    folder, live = maps[0]
    live.map.save(tmp_path / "a.safetensors")
    other = Perceptron(config())
    far = walk(2, 2)
    for posed in far:
        posed.T_world_camera[:3, 3] += [50, 0, 0]
        other.integrate(posed)
    other.perceive()
    other.save(tmp_path / "b.safetensors")
    result = run(folder, tmp_path / "b.safetensors")
    assert isinstance(result.exception, CommandError)
    assert "cannot be compared" in str(result.exception)
    assert "of ground in common" in str(result.exception)
    result = run(folder, tmp_path / "nothing")
    assert "no map at" in str(result.exception)
