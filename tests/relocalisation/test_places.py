"""Places are bounded, follow the map, and come back from its file as they were."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.textured_rooms import K, S, camera_pose, level_pose, random_room

from embodied_perceptron.mapping.keyframes import Keyframe
from embodied_perceptron.mapping.storage import MapFileError, read_map, write_map
from embodied_perceptron.relocalisation.features import MAX_FEATURES, OrbExtractor
from embodied_perceptron.relocalisation.places import Place, PlaceMemory, place_of
from embodied_perceptron.sensors.frame import RgbdFrame


def a_place(stamp_ns: int, at_m: tuple[float, float], yaw: float, kind: str = "orb") -> Place:
    rng = np.random.default_rng(stamp_ns)
    points = rng.integers(-3000, 3000, (20, 3)).astype(np.int16)
    return Place(kind, stamp_ns, camera_pose(at_m, yaw), points, rng.integers(0, 256, (20, 32), np.uint8))


def test_the_same_view_is_remembered_once_and_as_it_was_last() -> None:
    memory = PlaceMemory(10)
    memory.add(a_place(1, (0.0, 0.0), 0.0))
    memory.add(a_place(2, (0.1, 0.0), 0.2))  # as good as the same
    memory.add(a_place(3, (0.0, 0.0), 0.6))  # turned
    memory.add(a_place(4, (0.5, 0.0), 0.0))  # moved
    memory.add(a_place(5, (0.0, 0.0), 0.0, "xfeat"))
    assert [p.stamp_ns for p in memory] == [2, 3, 4, 5]


def test_beyond_the_limit_goes_what_was_seen_longest_ago() -> None:
    memory = PlaceMemory(3)
    for n in range(1, 6):
        memory.add(a_place(n, (float(n), 0.0), 0.0))
    memory.add(a_place(6, (3.0, 0.0), 0.0))
    assert [p.stamp_ns for p in memory] == [4, 5, 6]
    assert memory.nbytes == 3 * 20 * (32 + 6)


def test_places_move_with_the_map() -> None:
    memory = PlaceMemory(3)
    memory.add(a_place(1, (1.0, 0.0), 0.3))
    before = next(iter(memory)).points_m
    T = level_pose(0.5, (1.0, 2.0, 0.0))
    memory.move(lambda stamp_ns: T if stamp_ns == 1 else np.eye(4))
    assert np.allclose(next(iter(memory)).points_m, before @ T[:3, :3].T + T[:3, 3])


def test_a_keyframe_becomes_a_place_in_the_map() -> None:
    T = camera_pose((0.2, 0.1), 0.7)
    color, depth_m = random_room(4).photograph(T)
    place = place_of(Keyframe(0, RgbdFrame(7 * S, "front", color, depth_m, K), T), OrbExtractor())
    assert place is not None
    assert place.stamp_ns == 7 * S
    room = random_room(4)
    assert (place.points_m > room.low - 0.02).all()
    assert (place.points_m < room.high + 0.02).all()
    assert place.nbytes <= MAX_FEATURES * 38
    plain = RgbdFrame(1, "front", np.full_like(color, 90), depth_m, K)
    assert place_of(Keyframe(0, plain, T), OrbExtractor()) is None


def test_places_come_back_from_a_file(tmp_path: Path) -> None:
    memory = PlaceMemory(5)
    for n in range(1, 4):
        memory.add(a_place(n, (float(n), 0.0), 0.0))
    tensors, header = memory.pack()
    write_map(tmp_path / "m.map", tensors, header)
    back = list(PlaceMemory.unpack(read_map(tmp_path / "m.map"), 2))
    assert [p.stamp_ns for p in back] == [2, 3]
    for mine, other in zip(list(memory)[1:], back, strict=True):
        assert np.array_equal(mine.points_mm, other.points_mm)
        assert np.array_equal(mine.descriptors, other.descriptors)
        assert np.array_equal(mine.T_map_camera, other.T_map_camera)
    write_map(tmp_path / "old.map", {"voxels.keys": torch.zeros(0)}, {})
    assert len(PlaceMemory.unpack(read_map(tmp_path / "old.map"), 2)) == 0


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda t, h: t.pop("places.0.points_mm"), "missing"),
        (lambda t, h: t.update({"places.0.points_mm": torch.zeros(20, 3)}), "must be torch.int16"),
        (lambda t, h: t.update({"places.0.descriptors": torch.zeros(3, 32, dtype=torch.uint8)}), "descriptors"),
        (lambda t, h: t["places.T_map_camera"].mul_(2), "T_map_camera"),
        (lambda t, h: h.update(places=[{"kind": 3, "stamp_ns": 1}]), "kind"),
        (lambda t, h: h.update(places=[{"kind": "orb"}]), "stamp_ns"),
        (lambda t, h: h.update(places=7), "places"),
    ],
)
def test_damaged_places_are_refused_by_name(tmp_path: Path, change, match: str) -> None:
    memory = PlaceMemory(5)
    memory.add(a_place(1, (0.0, 0.0), 0.0))
    tensors, header = memory.pack()
    change(tensors, header)
    write_map(tmp_path / "m.map", tensors, header)
    with pytest.raises(MapFileError, match=rf"m\.map.*{match}"):
        PlaceMemory.unpack(read_map(tmp_path / "m.map"), 5)
