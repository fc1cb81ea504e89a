"""``replay --map``: today's recording goes on in yesterday's map once its place there is found, as a user types it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.textured_rooms import K, TexturedRoom, level_pose, random_room
from typer.testing import CliRunner, Result

from embodied_perceptron.apps.cli import build_app
from embodied_perceptron.apps.command_line import EXIT_BAD_RESULT, CommandError
from embodied_perceptron.mapping.storage import read_map
from embodied_perceptron.recordings.artifacts import read_objects_json
from embodied_perceptron.recordings.tum import TumWriter
from embodied_perceptron.sensors.poses import NS_PER_S

ROOM = replace(random_room(1), boxes=np.concatenate([random_room(1).boxes, [[[0.9, -0.3, 0.0], [1.4, 0.3, 0.7]]]]))
T_TODAY_ROOM = level_pose(2.2, (5.0, -3.0, 0.0))


def record(folder: Path, room: TexturedRoom, at_m: tuple[float, float], yaws: np.ndarray, T: np.ndarray) -> Path:
    with TumWriter(folder, K, depth_scale=5000.0) as writer:
        for posed in room.frames(at_m, yaws, T):
            frame = posed.frame
            writer.add(frame.stamp_ns + NS_PER_S, frame.color, frame.depth_m, posed.T_world_camera)
    return folder


def replay(*arguments: object) -> Result:
    return CliRunner().invoke(build_app([]), ["replay", *map(str, arguments), "--weights", "none"])


@pytest.fixture(scope="module")
def yesterday(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that a replay of yesterday's recording wrote."""
    folder = tmp_path_factory.mktemp("yesterday")
    record(folder / "recording", ROOM, (0.0, 0.0), np.arange(0, 2 * np.pi, 0.4), np.eye(4))
    result = replay(folder / "recording", "--out", folder / "map", "--perceive-every", 3)
    assert result.exit_code == 0, result.output
    return folder / "map"


def test_today_goes_on_in_the_map_of_yesterday(yesterday: Path, tmp_path: Path) -> None:
    today = record(tmp_path / "today", ROOM, (0.2, 0.1), np.arange(0.1, 3.0, 0.4), T_TODAY_ROOM)
    result = replay(today, "--map", yesterday, "--out", tmp_path / "map")  # the folder will do
    assert result.exit_code == 0, result.output
    assert (tmp_path / "map" / "map.safetensors").exists()
    before = {o.id: o.box for o in read_objects_json(yesterday / "objects.json")}
    now = {o.id: o.box for o in read_objects_json(tmp_path / "map" / "objects.json")}
    kept = set(before) & set(now)
    assert kept
    assert all(np.linalg.norm(before[i][:3] - now[i][:3]) < 0.15 for i in kept)  # still in the map's frame


def test_a_recording_goes_on_in_its_own_map_without_doubled_surfaces(yesterday: Path, tmp_path: Path) -> None:
    result = replay(yesterday.parent / "recording", "--map", yesterday, "--out", tmp_path / "map")
    assert result.exit_code == 0, result.output
    words = " ".join(result.output.replace("│", " ").split())
    found = re.search(
        r"place in the map .*found after \d+ frames: .*origin at (\S+), (\S+), (\S+) m,.* (\d+) of \d+ features", words
    )
    assert found, result.output
    assert all(abs(float(value)) <= 0.01 for value in found.groups()[:3])
    assert float(found[4]) >= 12
    before, after = (
        len(read_map(folder / "map.safetensors").tensors["voxels.records"]) for folder in (yesterday, tmp_path / "map")
    )
    assert after < 1.1 * before


def test_without_a_sure_place_nothing_is_written(yesterday: Path, tmp_path: Path) -> None:
    other = record(tmp_path / "other", random_room(40), (0.2, 0.1), np.arange(0.1, 3.0, 0.4), T_TODAY_ROOM)
    result = replay(other, "--map", yesterday / "map.safetensors", "--out", tmp_path / "map")
    assert isinstance(result.exception, CommandError)
    assert result.exception.exit_code == EXIT_BAD_RESULT
    assert "cannot be localised in the map" in str(result.exception)
    assert not (tmp_path / "map").exists()


def test_a_map_that_is_none_is_named(yesterday: Path, tmp_path: Path) -> None:
    today = record(tmp_path / "today", ROOM, (0.2, 0.1), np.arange(0.1, 0.6, 0.4), T_TODAY_ROOM)
    result = replay(today, "--map", tmp_path / "nothing.safetensors", "--out", tmp_path / "map")
    assert result.exit_code != 0
    assert "nothing.safetensors" in f"{result.output} {result.exception}"
    (tmp_path / "cut.safetensors").write_bytes((yesterday / "map.safetensors").read_bytes()[:1000])
    result = replay(today, "--map", tmp_path / "cut.safetensors", "--out", tmp_path / "map")
    assert result.exit_code != 0
    assert "cut.safetensors" in f"{result.output} {result.exception}"
    result = replay(today, "--map", yesterday / "map.safetensors", "--ros", "--out", tmp_path / "map")
    assert isinstance(result.exception, CommandError)
