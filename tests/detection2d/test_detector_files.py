"""Detector files that cannot be used: each ends in one sentence, and a replay that named one fails."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.onnx_files import write_constant_model
from support.small_recording import write_recording
from typer.testing import CliRunner

from embodied_perceptron.apps import cli
from embodied_perceptron.config import LiftOptions
from embodied_perceptron.detection2d.detectors import DetectorFileError
from embodied_perceptron.detection2d.loading import lift_from_options

RUN = CliRunner(env={"COLUMNS": "300", "TERM": "dumb", "NO_COLOR": "1"})
END_TO_END = np.zeros((1, 300, 6), np.float32)


def pointer(path: Path) -> Path:
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 3\n")
    return path


def newer(path: Path) -> Path:
    onnx = pytest.importorskip("onnx")
    model = onnx.load(str(write_constant_model(path, {"output0": END_TO_END})))
    model.opset_import[0].version = 99
    onnx.save(model, str(path))
    return path


def damaged(path: Path) -> Path:
    path.write_bytes(b"no network")
    return path


def cut(path: Path) -> Path:
    whole = write_constant_model(path, {"output0": END_TO_END})
    whole.write_bytes(whole.read_bytes()[:-600])
    return path


@pytest.mark.parametrize(
    ("make", "said"),
    [(pointer, "git lfs pull"), (newer, "older opset"), (damaged, "cannot be used"), (cut, "cannot be used")],
)
def test_files_that_cannot_be_used_are_named_at_the_start(tmp_path: Path, make, said: str) -> None:  # type: ignore[no-untyped-def]
    path = make(tmp_path / "d.onnx")
    with pytest.raises(DetectorFileError, match=said) as caught:
        lift_from_options(LiftOptions(detector=str(path), layout="yolov8"))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_pointer_among_the_files_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    pointer(tmp_path / "model.safetensors")
    with pytest.raises(DetectorFileError, match=r"model\.safetensors is a pointer of Git LFS"):
        lift_from_options(LiftOptions(detector=str(tmp_path), layout="transformers"))


@pytest.mark.parametrize("layout", ["yolov8", "yolox"])
def test_a_replay_whose_detector_has_another_layout_fails_and_says_so(tmp_path: Path, layout: str) -> None:
    model = write_constant_model(tmp_path / "d.onnx", {"output0": END_TO_END}, size=(640, 640))
    source = write_recording(tmp_path / "room", count=3)
    arguments = ["replay", str(source), "--out", str(tmp_path / "out"), "--weights", "none"]
    done = RUN.invoke(cli.build_app(()), [*arguments, "--detector", str(model), "--detector-layout", layout])
    assert done.exit_code == 1, done.output
    assert "the detector could not be used" in done.output
    assert "end-to-end export" in done.output
    assert "3 fused" in done.output, "the map is there all the same"
