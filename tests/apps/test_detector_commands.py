"""``replay --detector``: the options, what is refused, and what is written."""

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


def replay(source, out, *options):
    return RUN.invoke(cli.build_app([]), ["replay", str(source), "--out", str(out), *map(str, options)])


@pytest.fixture
def room(tmp_path):
    config = tmp_path / "c.yaml"
    config.write_text("{volume: {voxel_size_m: 0.05}, network: {weights: ''}}")
    return write_recording(tmp_path / "room"), config


def yolov8(path):
    """One chair, always, in the middle of the picture."""
    table = np.zeros((84, 315), np.float32)
    table[:4, 5] = [80, 48, 60, 50]
    table[4 + 56, 5] = 0.8
    return write_constant_model(path, {"output0": table[None]})


def test_a_detector_of_the_command_line_is_used_and_told_of(room, tmp_path):
    pytest.importorskip("onnxruntime")
    source, config = room
    model = yolov8(tmp_path / "net.onnx")
    options = ("--config", config, "--detector", model, "--detector-layout", "yolov8")
    result = replay(source, tmp_path / "out", *options)
    assert result.exit_code == 0, result.output
    lift = json.loads((tmp_path / "out" / "timings.json").read_text())["lift"]
    assert lift["pictures"] >= 1
    assert lift["found"] == lift["pictures"]
    assert lift["found"] == lift["lifted"] + sum(lift["dropped"].values())
    assert (lift["detector"], lift["failures"]) == ("running", 0)
    assert lift["detector_ms"] > 0


def test_without_a_detector_nothing_is_told(room, tmp_path):
    source, config = room
    result = replay(source, tmp_path / "out", "--config", config, "--max-frames", 3)
    assert result.exit_code == 0, result.output
    assert "lift" not in json.loads((tmp_path / "out" / "timings.json").read_text())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--detector", "net.onnx"), "belong together"),
        (("--detector-layout", "yolov8"), "belong together"),
        (("--detector", "net.onnx", "--detector-layout", "yolov8", "--ros"), "belongs to --direct"),
    ],
)
def test_options_that_do_not_fit_are_refused(room, tmp_path, options, message):
    result = replay(room[0], tmp_path / "out", *options)
    assert isinstance(result.exception, CommandError)
    assert message in str(result.exception)


def test_unknown_layouts_and_missing_files_are_named(room, tmp_path):
    pytest.importorskip("onnxruntime")
    result = replay(room[0], tmp_path / "out", "--detector", "net.onnx", "--detector-layout", "yolov99")
    assert "lift.layout must be one of" in str(result.exception)
    result = replay(room[0], tmp_path / "out", "--detector", "/no/net.onnx", "--detector-layout", "yolov8")
    assert "/no/net.onnx" in str(result.exception)
