"""Replay of a small room: what comes out, that it is the same again, and that every frame is accounted for."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml
from support.small_recording import BOXES, write_recording

from embodied_perceptron.apps.replay import NOT_FUSED, ReplayProgress, ReplayResult, percentiles, replay, write_results
from embodied_perceptron.config import NetworkOptions, PerceptronConfig
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.recordings.artifacts import write_ply
from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.recordings.recording import Recording
from embodied_perceptron.sensors.synchronizer import Drop

SHAPES = PerceptronConfig(network=NetworkOptions(weights=""))  # boxes by shape alone, whatever is shipped
FILES = {
    "map.safetensors",
    "voxels.ply",
    "objects.json",
    "scene_objects.json",
    "occupancy.npz",
    "top_view.png",
    "occupancy_grid.pgm",
    "occupancy_grid.yaml",
    "timings.json",
}


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return open_recording(write_recording(tmp_path_factory.mktemp("room")))


@pytest.fixture(scope="module")
def result(recording: Recording) -> ReplayResult:
    return replay(recording, SHAPES, perceive_every_s=0.3)


def distance_to_surface(points: np.ndarray) -> np.ndarray:
    """Of each point to the nearest box surface (all boxes are seen from outside)."""
    distances = []
    for low, high, _ in BOXES:
        q = np.abs(points - (np.array(low) + high) / 2) - (np.array(high) - low) / 2
        distances.append(np.abs(np.linalg.norm(np.maximum(q, 0), axis=1) + np.minimum(q.max(axis=1), 0)))
    return np.min(distances, axis=0)


def test_the_map_is_the_room(result: ReplayResult) -> None:
    assert (result.frames, result.fused, result.dropped) == (12, 12, {})
    points = result.perception.voxels.mean_point_m.astype(float)
    assert len(points) > 3000
    assert np.percentile(distance_to_surface(points), 99) < 0.01
    np.testing.assert_allclose(result.trajectory_m[[0, -1], 0], (-1.5, -0.5), atol=1e-6)


def test_the_block_is_an_object_and_the_grid_knows_the_floor(result: ReplayResult) -> None:
    low, high, _ = BOXES[3]
    center = (np.array(low) + high) / 2
    near = [o for o in result.perception.objects if np.linalg.norm(o.box[:2] - center[:2]) < 0.25]
    assert near, [o.box[:3] for o in result.perception.objects]
    grid = result.perception.grid

    def cell(x: float, y: float) -> int:
        column, row = ((np.array([x, y]) - grid.origin_m) / grid.resolution_m).astype(int)
        return int(grid.cells[row, column])

    assert cell(-0.2, -0.3) == 0
    assert cell(0.9, 0.0) == 100
    assert grid.floor_z_m == pytest.approx(0.0, abs=0.01)


def test_writes_every_file(result: ReplayResult, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    files = write_results(result, out)
    assert set(files) == FILES
    assert {p.name for p in out.iterdir()} == FILES
    assert all(path.stat().st_size > 0 for path in files.values())

    loaded = Perceptron(SHAPES)
    loaded.load(files["map.safetensors"])
    again = loaded.perceive()
    np.testing.assert_array_equal(again.voxels.mean_point_m, result.perception.voxels.mean_point_m)

    write_ply(tmp_path / "same.ply", again.voxels.mean_point_m, again.voxels.mean_color)
    assert (tmp_path / "same.ply").read_bytes() == files["voxels.ply"].read_bytes()

    objects = json.loads(files["objects.json"].read_text())
    assert {"id", "label", "score", "state", "box"} == set(objects[0])
    assert all(len(o["box"]) == 9 for o in objects)

    view = cv2.imread(str(files["top_view.png"]))
    assert view is not None
    assert view.std() > 5, "something is drawn"

    grid = yaml.safe_load(files["occupancy_grid.yaml"].read_text())
    assert (out / grid["image"]).exists()

    numbers = json.loads(files["timings.json"].read_text())
    assert set(numbers["fuse_ms"]) == {"p50", "p99"}
    assert 0 < numbers["fuse_ms"]["p50"] <= numbers["fuse_ms"]["p99"]
    assert numbers["frames"] == numbers["fused"] == 12
    assert numbers["voxels"] == len(result.perception.voxels)


def test_a_second_run_gives_the_same_files_bit_for_bit(
    recording: Recording, result: ReplayResult, tmp_path: Path
) -> None:
    first = write_results(result, tmp_path / "a")
    second = write_results(replay(recording, SHAPES, perceive_every_s=0.3), tmp_path / "b")
    for name in FILES - {"timings.json"}:
        assert first[name].read_bytes() == second[name].read_bytes(), name


@pytest.mark.slow
def test_a_second_run_on_real_frames_gives_the_same_map_bit_for_bit(kitchen_dir: Path, tmp_path: Path) -> None:
    runs = []
    for name in "ab":
        result = replay(open_recording(kitchen_dir), SHAPES)
        assert (result.frames, result.fused, result.dropped) == (100, 100, {})
        runs.append(write_results(result, tmp_path / name))
    for name in FILES - {"timings.json"}:
        assert runs[0][name].read_bytes() == runs[1][name].read_bytes(), name


def test_every_frame_is_accounted_for(tmp_path: Path) -> None:
    """A lost depth image, a damaged one, one without values, one without a pose."""
    folder = write_recording(tmp_path)
    lines = (folder / "depth.txt").read_text().splitlines()
    (folder / "depth.txt").write_text("\n".join(line for line in lines if "000003" not in line))
    (folder / "depth" / "000005.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    blank = np.zeros((120, 160), np.uint16)
    cv2.imwrite(str(folder / "depth" / "000007.png"), blank)
    poses = (folder / "groundtruth.txt").read_text().splitlines()
    (folder / "groundtruth.txt").write_text("\n".join(poses[:-1]))
    drops: list[Drop] = []
    seen: list[tuple[int, int]] = []

    def on_progress(p: ReplayProgress) -> None:
        seen.append((p.frames, p.fused))
        assert p.total == 12

    result = replay(
        open_recording(folder, tolerate_damage=True),
        SHAPES,
        on_drop=drops.append,
        on_progress=on_progress,
    )
    assert result.dropped == {"no_pair": 1, "bad_frame": 1, NOT_FUSED: 1, "pose_timeout": 1}
    assert result.frames == result.fused + sum(result.dropped.values()) == 12
    assert {d.reason for d in drops} == set(result.dropped)
    assert seen[-1] == (12, 8)
    assert len(result.fuse_ms) == 9, "what had no usable depth was tried"


def test_stops_after_so_many_frames(recording: Recording) -> None:
    result = replay(recording, SHAPES, max_frames=3)
    assert result.fused == 3
    assert result.trajectory_m.shape == (3, 3)


def test_nothing_to_fuse_is_an_empty_map(tmp_path: Path) -> None:
    folder = write_recording(tmp_path, 2)
    (folder / "groundtruth.txt").write_text("99.0 0 0 0 0 0 0 1\n")
    result = replay(open_recording(folder), SHAPES)
    assert (result.fused, result.dropped) == (0, {"pose_too_old": 2})
    files = write_results(result, tmp_path / "out")
    assert json.loads(files["timings.json"].read_text())["fuse_ms"] == {"p50": None, "p99": None}


def test_a_recording_that_starts_over_is_mapped_on(tmp_path: Path) -> None:
    """Stamps that go back (a robot's clock was set) do not stop the map."""

    class Twice:
        def __init__(self, once: Recording) -> None:
            self.once = once

        def __getattr__(self, name: str) -> object:
            return getattr(self.once, name)

        def __len__(self) -> int:
            return 2 * len(self.once)

        def __iter__(self):  # type: ignore[no-untyped-def]
            yield from self.once
            yield from self.once

    once = open_recording(write_recording(tmp_path, 25))
    result = replay(Twice(once), SHAPES)  # type: ignore[arg-type]
    assert (result.frames, result.fused, result.dropped) == (50, 50, {})


def test_limits_are_checked(recording: Recording) -> None:
    with pytest.raises(ValueError, match="max_frames must be positive, got 0"):
        replay(recording, SHAPES, max_frames=0)
    with pytest.raises(ValueError, match=r"perceive_every_s must be positive, got 0\.0"):
        replay(recording, SHAPES, perceive_every_s=0.0)


def test_percentiles() -> None:
    assert percentiles(np.array([3.0, 1.0, 2.0])) == {"p50": 2.0, "p99": 2.98}
