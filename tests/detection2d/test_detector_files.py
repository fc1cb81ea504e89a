"""Detector files that cannot be used: each ends in one sentence, and a replay that named one fails."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
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


def vast(path: Path) -> Path:
    return write_constant_model(path, {"output0": END_TO_END}, size=(40_000, 40_000))


def tall(path: Path) -> Path:
    return write_constant_model(path, {"output0": END_TO_END}, input_shape=[1, 3, 5000, "width"])


def many(path: Path) -> Path:
    return write_constant_model(path, {"output0": END_TO_END}, input_shape=[4000, 3, 640, 640])


def named(names: str) -> Callable[[Path], Path]:
    return lambda path: write_constant_model(path, {"output0": END_TO_END}, names=names)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (pointer, "git lfs pull"),
        (newer, "older opset"),
        (damaged, "cannot be used"),
        (cut, "cannot be used"),
        (vast, "an input of 40000 x 40000 pixels, the limit is 4096 a side"),
        (tall, "an input of width x 5000 pixels, the limit is 4096 a side"),
        (many, r"should have one input \(1, 3, H, W\), but has images \[4000, 3, 640, 640\]"),
        (named("-" * 150_000 + "1"), "entry 'names' cannot be read: '-----"),
        (named("[" * 90_000 + "]" * 90_000), r"entry 'names' cannot be read: '\[\[\["),
        (named("{0: 'cup', 1: 'a' + 'b'}"), "entry 'names' cannot be read"),
    ],
)
def test_files_that_cannot_be_used_are_named_at_the_start(tmp_path: Path, make, said: str) -> None:  # type: ignore[no-untyped-def]
    path = make(tmp_path / "d.onnx")
    with pytest.raises(DetectorFileError, match=said) as caught:
        lift_from_options(LiftOptions(detector=str(path), layout="yolov8"))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


ENDLESS = """
import sys
import numpy as np
from embodied_perceptron.detection2d.detectors import OnnxDetector
from embodied_perceptron.detection2d.scheduler import LimitedCalls, TooLateError
from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.sensors.frame import RgbdFrame

color, depth_m = np.zeros((48, 64, 3), np.uint8), np.ones((48, 64), np.float32)
frame = RgbdFrame(0, "front", color, depth_m, Intrinsics(60, 60, 32, 24, 64, 48))

detector = OnnxDetector(sys.argv[1], "yolov8")
try:
    LimitedCalls().call(lambda: detector.detect(frame), 0.2)
except TooLateError as late:
    print(late)
"""


def test_an_endless_loop_in_a_model_does_not_abort_at_exit(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    path = write_constant_model(tmp_path / "d.onnx", {"output0": END_TO_END})
    model, helper = onnx.load(str(path)), onnx.helper
    ports = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, []) for name in ("in", "out")]
    truth = [helper.make_tensor_value_info(name, onnx.TensorProto.BOOL, []) for name in ("go", "on")]
    round_ = helper.make_tensor_value_info("round", onnx.TensorProto.INT64, [])
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Mul", ["in", "in"], ["out"])],
        "body", [round_, truth[0], ports[0]], [truth[1], ports[1]],
    )  # fmt: skip
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "always"))
    model.graph.node[0].output[0] = "start"
    model.graph.node.insert(1, helper.make_node("Loop", ["", "always", "start"], ["mean"], body=body))
    onnx.save(model, str(path))
    command = [sys.executable, "-c", ENDLESS, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "took longer than 0.2 s for an image\n"), done.stderr


def test_a_pointer_among_the_files_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    pointer(tmp_path / "model.safetensors")
    with pytest.raises(DetectorFileError, match=r"model\.safetensors is a pointer of Git LFS"):
        lift_from_options(LiftOptions(detector=str(tmp_path), layout="transformers"))


@pytest.mark.parametrize("layout", ["yolox", "rtdetr"])
def test_another_layout_is_an_error_before_the_first_frame(tmp_path: Path, layout: str) -> None:
    model = write_constant_model(tmp_path / "d.onnx", {"output0": END_TO_END}, size=(640, 640))
    source = write_recording(tmp_path / "room", count=3)
    arguments = ["replay", str(source), "--out", str(tmp_path / "out"), "--weights", "none"]
    done = RUN.invoke(cli.build_app(()), [*arguments, "--detector", str(model), "--detector-layout", layout])
    assert isinstance(done.exception, DetectorFileError), done.output
    assert f"layout {layout}: expected" in str(done.exception)
    assert "output0 (1, 300, 6)" in str(done.exception)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("told", [[], ["--detector-layout", "yolov8"]])
def test_a_replay_uses_an_end_to_end_file(tmp_path: Path, told: list[str]) -> None:
    model = write_constant_model(tmp_path / "d.onnx", {"output0": END_TO_END}, size=(640, 640))
    source = write_recording(tmp_path / "room", count=3)
    arguments = ["replay", str(source), "--out", str(tmp_path / "out"), "--weights", "none", "--detector", str(model)]
    done = RUN.invoke(cli.build_app(()), [*arguments, *told])
    assert done.exit_code == 0, done.output
    assert "0 found in 3 images" in done.output or "0 found in" in done.output


def test_detectors_of_a_configuration_are_named_by_their_layouts(tmp_path: Path) -> None:
    first = write_constant_model(tmp_path / "a.onnx", {"output0": END_TO_END})
    second = write_constant_model(tmp_path / "b.onnx", {"output": np.zeros((1, 315, 85), np.float32)})
    options = LiftOptions(detector=str(first), also=(str(second), f"yolov8:{first}"))
    lift = lift_from_options(options)
    assert lift is not None
    assert [slot.source for slot in lift._slots] == ["yolov8", "yolox", "yolov8 3"]
