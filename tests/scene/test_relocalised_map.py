"""A robot that starts anywhere goes on with yesterday's map once its place is sure, and tells how it stands before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.textured_rooms import level_pose, random_room

from embodied_perceptron.config import ConfigError, PerceptronConfig, RelocalisationOptions, config_from_dict
from embodied_perceptron.geometry.transforms import invert_transform
from embodied_perceptron.mapping.storage import read_map, write_map
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.scene import live_map
from embodied_perceptron.scene.live_map import LOOKING_FOR_PLACE

ALL_ROUND = np.arange(0, 2 * np.pi, 0.4)
T_WORLD_ROOM = level_pose(2.2, (5.0, -3.0, 0.0))
# one thing more, which touches no wall
ROOM = replace(random_room(1), boxes=np.concatenate([random_room(1).boxes, [[[0.9, -0.3, 0.0], [1.4, 0.3, 0.7]]]]))
LATER = np.arange(0.1, 3.0, 0.4)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    it = Perceptron()
    for n, posed in enumerate(ROOM.frames((0.0, 0.0), ALL_ROUND, np.eye(4))):
        report = it.integrate(posed)
        assert ("place" in report.stage_ms) == report.keyframe
        if n % 3 == 2:
            it.perceive()
    assert it.objects
    it.correct_object(it.objects[0].id, "workbench")
    path = tmp_path_factory.mktemp("maps") / "home.safetensors"
    it.save(path)
    return path


def test_frames_wait_until_the_place_is_found_and_ids_go_on(saved: Path, tmp_path: Path) -> None:
    before = Perceptron()
    before.load(saved)
    it = Perceptron()
    assert it.load(saved, find_place=True) == ""
    assert it.place_estimate is not None
    voxels = it.statistics().voxels
    waited = 0
    for posed in ROOM.frames((0.2, 0.1), LATER, T_WORLD_ROOM, light=0.7):
        report = it.integrate(posed)
        if report.fused:
            break
        assert report.reason == LOOKING_FOR_PLACE
        assert it.place_estimate is not None
        assert it.place_estimate.reason
        assert it.statistics().voxels == voxels
        waited += 1
    assert waited >= 1
    assert it.place_estimate is None
    assert np.allclose(it.T_world_map, T_WORLD_ROOM, atol=0.06)
    assert {o.id: o.label for o in it.objects} == {o.id: o.label for o in before.objects}
    assert "workbench" in {o.label for o in it.objects}
    it.save(tmp_path / "again.safetensors")
    third = Perceptron()
    third.load(tmp_path / "again.safetensors", find_place=True)
    assert third.place_estimate is not None


def test_without_being_asked_the_map_lies_where_it_was(saved: Path) -> None:
    it = Perceptron()
    assert it.load(saved) == ""
    assert it.place_estimate is None
    assert it.integrate(ROOM.frames((0.2, 0.1), LATER[:1], np.eye(4))[0]).fused


def test_an_old_map_says_that_its_pose_is_used_as_it_is(saved: Path, tmp_path: Path) -> None:
    whole = read_map(saved)
    tensors = {name: t for name, t in whole.tensors.items() if not name.startswith("places")}
    header = {k: v for k, v in whole.header.items() if k not in ("places", "checksums", "checksum")}
    write_map(tmp_path / "old.safetensors", tensors, header)
    it = Perceptron()
    reason = it.load(tmp_path / "old.safetensors", T_WORLD_ROOM, find_place=True)
    assert "used as it is" in reason
    assert "no features of places" in reason
    assert np.allclose(it.T_world_map, T_WORLD_ROOM)
    assert it.integrate(ROOM.frames((0.2, 0.1), LATER[:1], T_WORLD_ROOM)[0]).fused


def test_another_building_is_never_fused_and_a_reset_begins_anew(saved: Path) -> None:
    it = Perceptron()
    it.load(saved, find_place=True)
    frames = random_room(60).frames((0.0, 0.0), LATER, np.eye(4))
    assert not any(it.integrate(posed).fused for posed in frames[:-1])
    it.reset()
    assert it.place_estimate is None
    assert it.integrate(frames[-1]).fused


def test_the_map_is_free_while_features_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What becomes of it in the meantime counts: a corrected pose, another map."""
    it, place_of, meantime = Perceptron(), live_map.place_of, []

    def slow(keyframe, features):  # type: ignore[no-untyped-def]
        place = place_of(keyframe, features)
        assert not it.map._volume_lock.locked()
        if meantime:
            meantime.pop()(keyframe)
        return place

    monkeypatch.setattr(live_map, "place_of", slow)
    frames = ROOM.frames((0.0, 0.0), ALL_ROUND[:3], np.eye(4))
    it.integrate(frames[0])
    T = level_pose(0.1, (0.3, 0.0, 0.0))
    meantime.append(lambda _: it.correct_keyframes({name: T @ pose for name, pose in it.keyframe_poses().items()}))
    it.integrate(frames[1])
    assert not meantime
    for place, keyframe in zip(it.map.places, it.volume.keyframes, strict=True):
        np.testing.assert_allclose(place.T_map_camera, keyframe.T_world_camera, atol=1e-9)
        np.testing.assert_allclose(place.T_map_camera, T @ frames[keyframe.id].T_world_camera, atol=1e-9)
    meantime.append(lambda _: it.reset())
    it.integrate(frames[2])
    assert len(it.map.places) == 0


def test_the_next_frame_does_not_wait_for_the_place_of_a_keyframe(monkeypatch: pytest.MonkeyPatch) -> None:
    it, place_of, asked = Perceptron(), live_map.place_of, []
    monkeypatch.setattr(live_map, "place_of", lambda *args: asked.append(args[0].id) or place_of(*args))
    for frame in ROOM.frames((0.0, 0.0), ALL_ROUND[:3], np.eye(4)):
        assert "place" not in it.integrate(frame, encode=False).stage_ms
    assert (asked, len(it.map.places)) == ([], 0)
    assert "place" in it.encode_keyframes()
    assert asked == [keyframe.id for keyframe in it.volume.keyframes]
    assert len(it.map.places) > 0
    it.encode_keyframes()
    assert len(asked) == len(it.volume.keyframes)  # each once


def test_places_follow_a_corrected_map(saved: Path) -> None:
    it = Perceptron()
    it.load(saved)
    before = [place.points_m for place in it.map.places]
    T = level_pose(0.3, (0.5, -0.2, 0.1))
    it.correct_keyframes({name: T @ pose for name, pose in it.keyframe_poses().items()})
    after = [place.points_m for place in it.map.places]
    assert len(after) == len(before) > 5
    for old, new in zip(before, after, strict=True):
        assert np.allclose(new, old @ T[:3, :3].T + T[:3, 3], atol=1e-6)


def test_features_can_be_left_out_and_misspelt_ones_are_refused(tmp_path: Path) -> None:
    it = Perceptron(PerceptronConfig(relocalisation=RelocalisationOptions(features="none")))
    it.integrate(ROOM.frames((0.0, 0.0), LATER[:1], np.eye(4))[0])
    it.save(tmp_path / "m.safetensors")
    assert "places" not in read_map(tmp_path / "m.safetensors").header
    with pytest.raises(ConfigError, match="'sift'"):
        config_from_dict(PerceptronConfig, {"relocalisation": {"features": "sift"}}, "")
    with pytest.raises(ConfigError, match="max_places"):
        RelocalisationOptions(max_places=0)


def test_what_is_placed_is_the_inverse_of_the_place_in_the_map() -> None:
    it = Perceptron()
    T = level_pose(-1.0, (3.0, 4.0, 0.5))
    it.map._frame.place(T)
    assert np.allclose(it.T_world_map, invert_transform(T))
