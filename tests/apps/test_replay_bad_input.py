"""Recordings that are not as they should be: an error that names what is wrong, or a map that follows from what is
there. A replay whose map stays empty says why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.small_recording import INTRINSICS, frames, write_recording
from typer.testing import CliRunner

from embodied_perceptron.apps.cli import build_app
from embodied_perceptron.apps.replay import ReplayResult, replay, write_results
from embodied_perceptron.config import NetworkOptions, PerceptronConfig
from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.recordings.recording import RecordingError
from embodied_perceptron.recordings.tum import TumWriter

SHAPES = PerceptronConfig(network=NetworkOptions(weights=""))
Change = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]


def written(folder: Path, change: Change, camera: Intrinsics = INTRINSICS, count: int = 12) -> Path:
    """The small room with (colour, depth in metres, pose) of every frame changed."""
    with TumWriter(folder, camera) as writer:
        for stamp, *frame in frames(count):
            writer.add(stamp, *change(*frame))
    return folder


def played(folder: Path) -> ReplayResult:
    return replay(open_recording(folder), SHAPES)


def with_depth_scale(folder: Path, factor: float) -> Path:
    """The same files, read as if their unit were another."""
    path = folder / "camera.json"
    camera = json.loads(path.read_text())
    path.write_text(json.dumps(camera | {"depth_scale": camera["depth_scale"] * factor}))
    return folder


def test_without_colour_images_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    folder = write_recording(tmp_path / "room", 3)
    for image in (folder / "color").iterdir():
        image.unlink()
    with pytest.raises(RecordingError, match=r"color/000000\.\w+"):
        played(folder)


def test_a_list_of_colour_images_that_is_empty_says_so(tmp_path: Path) -> None:
    folder = write_recording(tmp_path / "room", 3)
    (folder / "rgb.txt").write_text("# timestamp filename\n")
    with pytest.raises(RecordingError, match=r"rgb\.txt lists no images"):
        played(folder)


def test_sixty_per_cent_of_holes_give_the_same_room(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def holes(color: np.ndarray, depth: np.ndarray, T: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return color, np.where(rng.random(depth.shape) < 0.6, 0, depth), T

    whole, torn = played(write_recording(tmp_path / "whole")), played(written(tmp_path / "torn", holes))
    assert (torn.fused, torn.dropped, torn.empty_because) == (12, {}, "")
    share = len(torn.perception.voxels) / len(whole.perception.voxels)
    assert 0.4 <= share <= 1, "no less than the share of pixels that is left"
    boxes = [np.array([o.box for o in r.perception.objects]) for r in (whole, torn)]
    nearest = np.linalg.norm(boxes[0][:, None, :3] - boxes[1][None, :, :3], axis=2).min(1)
    assert (nearest < 0.1).mean() > 0.6


def test_a_camera_upside_down_maps_the_same_room(tmp_path: Path) -> None:
    turned = Intrinsics(130.0, 130.0, 159 - 79.5, 119 - 59.5, 160, 120)
    half_turn = np.diag([-1.0, -1.0, 1.0, 1.0])

    def flip(color: np.ndarray, depth: np.ndarray, T: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return color[::-1, ::-1].copy(), depth[::-1, ::-1].copy(), T @ half_turn

    upright, hanging = played(write_recording(tmp_path / "up")), played(written(tmp_path / "down", flip, turned))
    assert hanging.fused == 12
    np.testing.assert_allclose(
        np.sort([o.box[:3] for o in hanging.perception.objects], axis=0),
        np.sort([o.box[:3] for o in upright.perception.objects], axis=0),
        atol=0.02,
    )


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (1000.0, r"min_range_m=.*is the unit of the depth right"),
        (0.001, r"max_range_m=.*is the unit of the depth right"),
    ],
)
def test_depth_in_another_unit_leaves_the_map_empty_and_the_reason_is_said(
    tmp_path: Path, factor: float, words: str
) -> None:
    import re

    result = played(with_depth_scale(write_recording(tmp_path / "room", 4), factor))
    assert len(result.perception.voxels) == 0
    assert re.search(words, result.empty_because), result.empty_because
    numbers = json.loads(write_results(result, tmp_path / "out")["timings.json"].read_text())
    assert numbers["empty_because"] == result.empty_because
    assert json.loads((tmp_path / "out" / "objects.json").read_text()) == []


def test_depth_that_is_nowhere_is_said(tmp_path: Path) -> None:
    folder = written(tmp_path / "dark", lambda color, depth, T: (color, np.zeros_like(depth), T), count=3)
    assert played(folder).empty_because == "3 frames have no depth at all"


def test_the_command_says_why_the_map_is_empty_and_fails(tmp_path: Path) -> None:
    source = with_depth_scale(write_recording(tmp_path / "room", 3), 0.001)
    result = CliRunner().invoke(build_app(plugins=()), ["replay", str(source), "--out", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "the map is empty: 3 frames have no depth between" in result.output
