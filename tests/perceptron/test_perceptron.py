"""The three verbs over a real volume: a room seen by a simulated depth camera."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from support.online_world import look_at

from embodied_perceptron.config import ObjectsConfig, PerceptronConfig, SegmentationConfig, VolumeConfig
from embodied_perceptron.geometry.box_rays import view_boxes
from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.language.query import MAX_QUERY_CHARACTERS
from embodied_perceptron.mapping.storage import MapFileError, write_map
from embodied_perceptron.mapping.volume import FeatureVolume
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import GroundingStatus
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame

K = Intrinsics(120.0, 120.0, 79.5, 59.5, 160, 120)
BOX = (np.array([1.6, -0.3, 0.0]), np.array([2.2, 0.5, 0.6]))  # lowest and highest corner
CONFIG = PerceptronConfig(
    volume=VolumeConfig(voxel_size_m=0.04, max_blocks=4000), objects=ObjectsConfig(SegmentationConfig(min_cells=8))
)


def depth_of(T, boxes):
    """Depth along the optical axis of a floor at 0 and axis-parallel boxes; +Inf beyond."""
    floor = ((-9, -9, -1), (9, 9, 0))
    depth = view_boxes(T, K, [floor, *boxes]).depth_m
    depth[depth >= 6] = np.inf
    return depth.astype(np.float32)


def frame(i, boxes=(BOX,), stamp_ns=None):
    angle = 0.8 * np.sin(i * 0.7)
    eye = np.array([2 - 2.2 * np.cos(angle), -2.2 * np.sin(angle), 1.3])
    T = look_at(eye, [1.9, 0.1, 0.2])
    depth = depth_of(T, boxes)
    color = np.full((K.height, K.width, 3), 90, np.uint8)
    return PosedFrame(RgbdFrame(100_000_000 * (i + 1) if stamp_ns is None else stamp_ns, "camera", color, depth, K), T)


def seen(perceptron, frames=12, boxes=(BOX,), start=0):
    for i in range(start, start + frames):
        assert perceptron.integrate(frame(i, boxes)).fused
    perceptron.perceive()
    return perceptron.perceive()


def test_a_box_on_the_floor_is_found_and_the_floor_is_free():
    perception = seen(Perceptron(CONFIG))
    assert [o.id for o in perception.objects] == [1]
    box = perception.objects[0].box
    assert box[:3] == pytest.approx((BOX[0] + BOX[1]) / 2, abs=0.08)
    assert sorted(box[3:5]) == pytest.approx([0.6, 0.8], abs=0.1)
    assert box[5] == pytest.approx(0.6, abs=0.06)
    assert perception.stamp_ns == 1_200_000_000
    grid = perception.grid

    def cell(x, y):
        column, row = np.floor((np.array([x, y]) - grid.origin_m) / grid.resolution_m).astype(int)
        return grid.cells[row, column]

    assert cell(1.9, 0.1) == 100
    assert cell(1.2, 0.1) == 0
    assert len(perception.voxels) > 1000
    assert set(perception.stage_ms) == {"copy", "snapshot", "floor", "layers", "boxes", "objects", "semantic", "grid"}


def test_nothing_seen_yet():
    perception = Perceptron(CONFIG).perceive()
    assert perception.objects == perception.tentative == perception.stale == ()
    assert len(perception.voxels) == 0
    assert perception.grid.cells.size == 0


def test_an_object_carried_away_disappears_and_is_the_same_when_it_is_brought_back():
    perceptron = Perceptron(CONFIG)
    seen(perceptron, 6)
    assert [o.id for o in seen(perceptron, 6, start=6).objects] == [1]  # found four times: no mistake
    gone = seen(perceptron, 25, boxes=(), start=20)
    assert gone.objects == gone.tentative == gone.stale == ()
    assert [o.id for o in gone.gone] == [1]
    back = seen(perceptron, 12, start=60)
    assert [o.id for o in back.objects] == [1]
    assert back.gone == ()


def test_without_a_floor_nothing_is_called_free():
    perceptron = Perceptron(CONFIG)
    wall = (np.array([3.0, -3, -1]), np.array([3.1, 3, 3.0]))
    for i in range(3):
        T = look_at(np.array([0.0, 0.1 * i, 1.0]), [3.0, 0, 1.0])
        depth = np.where(depth_of(T, (wall,)) < 3.5, depth_of(T, (wall,)), np.inf).astype(np.float32)
        high = (np.arange(K.height)[:, None] < 60) & np.ones(K.width, bool)
        perceptron.integrate(
            PosedFrame(RgbdFrame(i + 1, "camera", np.zeros((120, 160, 3), np.uint8), np.where(high, depth, 0), K), T)
        )
    perception = perceptron.perceive()
    assert len(perception.voxels) > 100
    assert not (perception.grid.cells == 0).any()


def test_save_and_load_keep_map_and_ids(tmp_path):
    a, b = Perceptron(CONFIG), Perceptron(CONFIG)
    seen(a)
    a.save(tmp_path / "map.safetensors")
    seen(b, 3, boxes=())
    b.load(tmp_path / "map.safetensors")
    pa, pb = a.perceive(), b.perceive()
    assert np.array_equal(pa.voxels.coords, pb.voxels.coords)
    assert [o.as_dict() for o in pa.objects] == [o.as_dict() for o in pb.objects]


def test_load_without_objects_and_with_damaged_ones(tmp_path):
    volume = FeatureVolume(CONFIG.volume)
    for i in range(3):
        volume.integrate(frame(i))
    volume.save(tmp_path / "bare.safetensors")
    perceptron = Perceptron(CONFIG)
    perceptron.load(tmp_path / "bare.safetensors")
    before = perceptron.perceive()
    assert len(before.voxels) > 100
    volume.save(tmp_path / "bad.safetensors", extra={"objects": '{"version": 99}'})
    with pytest.raises(MapFileError, match="version 99"):
        perceptron.load(tmp_path / "bad.safetensors")
    assert np.array_equal(perceptron.perceive().voxels.coords, before.voxels.coords)


def test_reset_and_clear_box():
    perceptron = Perceptron(CONFIG)
    seen(perceptron)
    cleared = perceptron.clear_box(np.array([1.9, 0.1, 0.5, 1.0, 1.2, 0.9, 0, 0, 0]))
    assert cleared > 50
    assert perceptron.perceive().objects == ()
    perceptron.reset()
    assert len(perceptron.perceive().voxels) == 0
    assert perceptron.statistics().voxels == 0
    assert [o.id for o in seen(perceptron).objects] == [1]  # a new map


def test_stamps_may_be_forgotten():
    perceptron = Perceptron(CONFIG)
    seen(perceptron)
    with pytest.raises(ValueError, match="not newer"):
        perceptron.integrate(frame(0, stamp_ns=5))
    perceptron.forget_stamps()
    assert perceptron.integrate(frame(0, stamp_ns=5)).fused


def test_perceiving_does_not_block_fusing():
    perceptron = Perceptron(CONFIG)
    seen(perceptron)
    inside, go_on = threading.Event(), threading.Event()
    update = perceptron.map._objects.update

    def held(*args):
        inside.set()
        assert go_on.wait(100)
        return update(*args)

    perceptron.map._objects.update = held
    thread = threading.Thread(target=perceptron.perceive)
    thread.start()
    try:
        assert inside.wait(100)
        for i in range(50, 53):  # would never return if perceive held the volume
            assert perceptron.integrate(frame(i)).fused
        assert perceptron.ground("chair").status == GroundingStatus.INVALID
    finally:
        go_on.set()
        thread.join(100)
    assert not thread.is_alive()


def test_saving_does_not_block_fusing(tmp_path, monkeypatch):
    perceptron = Perceptron(CONFIG)
    seen(perceptron, 3)
    inside, go_on = threading.Event(), threading.Event()

    def slow_disk(*args):
        inside.set()
        assert go_on.wait(100)
        write_map(*args)

    monkeypatch.setattr("embodied_perceptron.scene.live_map.write_map", slow_disk)
    before = perceptron.perceive().voxels
    thread = threading.Thread(target=perceptron.save, args=(tmp_path / "map.safetensors",))
    thread.start()
    try:
        assert inside.wait(100)
        for i in range(50, 53):
            assert perceptron.integrate(frame(i)).fused
        perceptron.perceive()
    finally:
        go_on.set()
        thread.join(100)
    loaded = Perceptron(CONFIG)
    loaded.load(tmp_path / "map.safetensors")  # the map as it was when saving began
    after = loaded.perceive().voxels
    assert np.array_equal(after.coords, before.coords)
    assert np.array_equal(after.hits, before.hits)


def test_two_threads_agree_with_one():
    alone, shared = Perceptron(CONFIG), Perceptron(CONFIG)
    errors = []

    def fuse():
        try:
            for i in range(30):
                shared.integrate(frame(i))
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=fuse)
    thread.start()
    while thread.is_alive():
        perception = shared.perceive()
        assert perception.voxels.coords.shape[0] == perception.voxels.hits.shape[0]
    thread.join()
    for i in range(30):
        alone.integrate(frame(i))
    assert not errors
    a, b = alone.perceive().voxels, shared.perceive().voxels
    assert np.array_equal(a.coords, b.coords)
    assert np.array_equal(a.mean_point_m, b.mean_point_m)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        (" \n\t ", "empty"),
        ("a" * (MAX_QUERY_CHARACTERS + 1), "characters"),
        ("x" * 10_000_000, "10000000 characters"),
        ("the \x00 chair", "U+0000"),
        ("chair\x1b[31m", "U+001B"),
        ("bad \ud800 half", "U+D800"),
        (b"chair", "bytes"),
        (None, "NoneType"),
        ("the chair by the window", "no language model loaded"),
        ("  椅子 🪑 \n", "no language model loaded"),
    ],
)
def test_queries_that_cannot_be_answered(text, reason):
    answer = Perceptron(CONFIG).ground(text)
    assert answer.status == GroundingStatus.INVALID
    assert reason in answer.reason
    assert answer.candidates == ()
    assert len(answer.text) <= MAX_QUERY_CHARACTERS
    answer.text.encode()  # any message can carry it
    answer.reason.encode()
