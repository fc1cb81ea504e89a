"""``explain``: what was said of a thing or place, by whom, and what became of it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.onnx_files import write_constant_model
from support.small_recording import write_recording
from typer.testing import CliRunner

from embodied_perceptron.apps import cli
from embodied_perceptron.apps.command_line import CommandError

RUN = CliRunner(env={"COLUMNS": "300", "TERM": "dumb", "NO_COLOR": "1"})


def run(*arguments):
    return RUN.invoke(cli.build_app([]), list(map(str, arguments)))


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    folder = tmp_path_factory.mktemp("room")
    config = folder / "c.yaml"
    config.write_text("{volume: {voxel_size_m: 0.05}, network: {weights: ''}}")
    return write_recording(folder / "room"), config


@pytest.fixture(scope="module")
def replayed(room, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    done = run("replay", room[0], "--out", out, "--config", room[1])
    assert done.exit_code == 0, done.output
    return out


def some_object(out):
    return json.loads((out / "objects.json").read_text())[0]


@pytest.mark.slow  # replays a recording
def test_an_object_of_a_recording_is_explained(room, replayed):
    thing = some_object(replayed)
    done = run("explain", room[0], "--config", room[1], "--object", thing["id"])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert f"object {thing['id']}, confirmed" in done.output
    assert any("no name has half" in line for line in lines)
    assert "in each perception" in done.output
    assert "2-D detector" not in done.output


@pytest.mark.slow  # replays a recording
def test_a_map_is_looked_at_once_more(room, replayed):
    thing = some_object(replayed)
    point = ",".join(str(round(v, 3)) for v in thing["box"][:3])
    done = run("explain", replayed, "--config", room[1], "--at", point)
    assert done.exit_code == 0, done.output
    assert "confirmed" in done.output


def test_empty_space_has_no_surface(room):
    done = run("explain", room[0], "--config", room[1], "--at", "90,90,1")
    assert done.exit_code == 0, done.output
    assert "no object: the map has no surface there" in done.output


@pytest.mark.slow  # replays a recording
def test_every_view_of_a_detector_is_told(room, replayed, tmp_path):
    pytest.importorskip("onnxruntime")
    table = np.zeros((84, 315), np.float32)
    table[:4, 5] = [80, 48, 150, 90]  # nearly the whole picture
    table[4 + 56, 5] = 0.8
    model = write_constant_model(tmp_path / "net.onnx", {"output0": table[None]})
    options = ("--config", room[1], "--detector", model, "--detector-layout", "yolov8")
    done = run("explain", room[0], *options, "--object", some_object(replayed)["id"])
    assert done.exit_code == 0, done.output
    assert "in each view of a 2-D detector" in done.output
    assert "chair 0.80" in done.output or "says nothing in" in done.output
    assert "how it is weighed" in done.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "--object ID or --at"),
        (("--object", 1, "--at", "0,0,0"), "--object ID or --at"),
        (("--at", "1,2"), "three numbers"),
        (("--object", 987), "there is no object 987"),
    ],
)
def test_what_is_not_meant_is_refused(room, options, said):
    done = run("explain", room[0], "--config", room[1], *options)
    assert isinstance(done.exception, CommandError)
    assert said in str(done.exception)
