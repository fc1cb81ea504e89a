"""Copies that cost what has changed are the copies of the whole, over random lives of a map."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.volume_frames import assert_same_voxels, posed, random_walk

from embodied_perceptron.config import GridConfig, KeyframeConfig, VolumeConfig
from embodied_perceptron.geometry.boxes import box_rotations
from embodied_perceptron.geometry.manhattan import ManhattanFrame, _columns, wall_heights
from embodied_perceptron.mapping import block_copies
from embodied_perceptron.mapping.block_copies import BlockCache, BlockCopier, BlockRows, blocks_of
from embodied_perceptron.mapping.blocks import block_coords, split_coords
from embodied_perceptron.mapping.export import VolumeCopy, Window, merge_by_sorting, merge_sites
from embodied_perceptron.mapping.host_map import HostMap
from embodied_perceptron.mapping.volume import FeatureVolume
from embodied_perceptron.mapping.voxel_counts import count_voxels, wall_columns
from embodied_perceptron.mapping.voxels import VoxelRows
from embodied_perceptron.results import SemanticVoxels, VoxelSnapshot
from embodied_perceptron.scene.navigation import Columns, count_by_blocks, count_columns
from embodied_perceptron.sensors.frame import PosedFrame

EVERYWHERE = np.array([[-(1 << 30)] * 3, [1 << 30] * 3], np.int32)
CONFIGS = {
    "plain": VolumeConfig(voxel_size_m=0.04, max_blocks=4096),
    "radius": VolumeConfig(voxel_size_m=0.03, max_range_m=2.5, radius_m=2.5, max_blocks=4096, min_hits=1),
    "budget": VolumeConfig(voxel_size_m=0.03, max_blocks=96, min_hits=2),
}


def plain(rows: VoxelRows) -> VoxelRows:
    return VoxelRows(rows.coords.clone(), rows.records.clone(), rows.last_seen_ns.clone())


def whole(volume: FeatureVolume) -> VoxelSnapshot:
    """What is stored now, by no copier."""
    rows = volume._map.gather(max(volume.config.min_hits, 1))
    return VolumeCopy(plain(rows), volume.config.voxel_size_m).snapshot()


def frozen(snapshot: VoxelSnapshot) -> VoxelSnapshot:
    """Its content in memory of its own."""
    return VoxelSnapshot(*(np.array(getattr(snapshot, entry.name)) for entry in fields(VoxelSnapshot)))


def labelled(rng: np.random.Generator, snapshot: VoxelSnapshot, before: SemanticVoxels | None) -> SemanticVoxels | None:
    """Cells around some voxels; some keep their names, and now and then there are none."""
    if rng.random() < 0.1 or len(snapshot) == 0:
        return None
    cells = np.unique(np.floor(snapshot.mean_point_m / 0.16).astype(int), axis=0)
    names = {}
    if before is not None:
        there = np.floor(before.centers_m / 0.16).astype(int)
        names = dict(zip(map(tuple, there.tolist()), before.labels.tolist(), strict=True))
    labels = [names.get(tuple(c), int(rng.integers(4))) if rng.random() < 0.95 else 3 for c in cells.tolist()]
    keep = rng.random(len(cells)) < 0.9
    keep[0] = True
    return SemanticVoxels(
        0.16,
        ((cells + 0.5) * 0.16)[keep].astype(np.float32),
        np.zeros((int(keep.sum()), 3), np.uint8),
        np.array(labels, np.int32)[keep],
        np.ones(int(keep.sum()), np.float32),
        ("floor", "door", "table", "carpet"),
    )


class Life:
    """A map to which something happens at random."""

    def __init__(self, config: VolumeConfig, seed: int, folder: Path) -> None:
        self.rng = np.random.default_rng(seed)
        self.volume = FeatureVolume(config, KeyframeConfig(translation_m=0.2, max_count=4))
        self.frames: list[PosedFrame] = []
        self.seed, self.path = seed, folder / "map.safetensors"
        self.saved = False

    def step(self) -> None:
        kind = self.rng.choice(["frames", "box", "correct", "save", "load", "reset", "nothing"], p=[
            0.55, 0.1, 0.08, 0.07, 0.07, 0.03, 0.1
        ])  # fmt: skip
        volume = self.volume
        if kind == "frames":
            for _ in range(self.rng.integers(1, 4)):
                if not self.frames:
                    self.seed += 1
                    self.frames = random_walk(self.seed % 5 + 50, 8)  # places come again
                    volume.forget_stamps()
                volume.integrate(self.frames.pop())
                volume.forget_stamps()
        elif kind == "box" and len(volume):
            points = volume.snapshot(1).mean_point_m
            volume.clear_box(np.array([*points[self.rng.integers(len(points))], 0.3, 0.3, 0.3, 0.2, 0.0, 0.0]))
        elif kind == "correct" and len(volume.keyframes):
            keyframe = volume.keyframes.newest
            assert keyframe is not None
            T = keyframe.T_world_camera.copy()
            T[:3, 3] += self.rng.normal(size=3) * 0.1
            volume.correct_keyframes({(keyframe.frame.camera, keyframe.frame.stamp_ns): T})
        elif kind == "save":
            volume.save(self.path)
            self.saved = True
        elif kind == "load" and self.saved:
            volume.load(self.path)
        elif kind == "reset":
            volume.reset()


@pytest.fixture
def quick_collections() -> Iterator[None]:
    """A collection looks at what is made from here on, not at torch and all else that is loaded."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("quick_collections")
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("seed", "steps"), [(1, 25), pytest.param(2, 60, marks=pytest.mark.slow)])
def test_copies_are_those_of_the_whole_map(name: str, seed: int, steps: int, tmp_path: Path) -> None:
    life = Life(CONFIGS[name], seed, tmp_path)
    cache, cells, floor_z_m = BlockCache(), None, 0.0
    kept: list[tuple[VolumeCopy, VoxelSnapshot]] = []  # a copy and what it showed, for as long as somebody keeps it
    for _ in range(steps):
        life.step()
        if life.rng.random() < 0.2:
            continue  # several changes before the next copy
        copy = life.volume.copy()
        expected = whole(life.volume)
        assert isinstance(copy.rows, BlockRows)
        assert len(copy) == len(expected)
        assert_same_voxels(copy.snapshot(), expected)
        kept.append((copy, expected))
        if life.rng.random() < 0.5:
            kept.pop(life.rng.integers(len(kept)))
        elif len(kept) > 6:
            kept = kept[3:]
        gc.collect()
        for old, then in kept:
            assert_same_voxels(old.snapshot(), then)
        frames = (
            wall_columns(blocks_of(copy.snapshot()), -0.5),
            _columns(expected.coords, 0.0 + copy.voxel_size_m, *wall_heights(-0.5)),
        )
        for a, b in zip(*frames, strict=True):
            np.testing.assert_array_equal(a, b)
        if life.rng.random() < 0.3:
            floor_z_m = life.rng.uniform(-0.5, 0.5)
        cells = labelled(life.rng, expected, cells)
        config = GridConfig(passable_classes=("door",))
        for known in (cells, None) if life.rng.random() < 0.2 else (cells,):
            found = count_by_blocks(blocks_of(copy.snapshot()), floor_z_m, config, known, cache)
            columns = count_columns(expected.mean_point_m, floor_z_m, config, known)
            for entry in fields(Columns):
                np.testing.assert_array_equal(getattr(found, entry.name), getattr(columns, entry.name), entry.name)
        center = expected.mean_point_m.mean(0).astype(np.float64) if len(expected) else np.zeros(3)
        turned = copy.turned(ManhattanFrame(0.3), center, np.inf)
        for rows in (copy.rows, turned.rows):
            for a, b in zip(
                merge_sites(rows, 2, EVERYWHERE, copy.site_cache), merge_by_sorting(plain(rows), 2, EVERYWHERE),
                strict=True,
            ):  # fmt: skip
                np.testing.assert_array_equal(a.numpy(), b.numpy())
        whole_tensor = VolumeCopy(plain(copy.rows), copy.voxel_size_m)
        window = Window(center, np.array([1.5, 1.5, np.inf]), 4)
        a, b = (x.as_sparse_tensor(2, window=window) for x in (copy, whole_tensor))
        assert a.coords.tolist() == b.coords.tolist()
        np.testing.assert_allclose(a.feats.numpy(), b.feats.numpy(), rtol=1e-6)


def test_voxels_are_counted_by_blocks_as_one_by_one() -> None:
    volume = FeatureVolume(CONFIGS["plain"])
    for frame in random_walk(3, 8):
        volume.integrate(frame)
    snapshot = volume.snapshot(1)
    rng = np.random.default_rng(0)
    at = snapshot.mean_point_m[rng.integers(0, len(snapshot), 40)]
    boxes = np.concatenate([at, rng.uniform(0.05, 3.0, (40, 3)), rng.uniform(-1, 1, (40, 3))], axis=1).astype(float)
    boxes[:20, 7:] = 0.0
    for shown in (snapshot, frozen(snapshot)):  # by the blocks of the copy, and by blocks made here
        for margin_m in (0.0, 0.2):
            inside, around, newest = count_voxels(shown, boxes, margin_m)
            assert [inside.tolist(), around.tolist(), newest.tolist()] == one_by_one(snapshot, boxes, margin_m)
        assert np.array_equal(count_voxels(shown, boxes, 0.0, enough=3)[0], np.minimum(inside, 3))


def one_by_one(snapshot: VoxelSnapshot, boxes: NDArray[np.float64], margin_m: float) -> list[list[int]]:
    found: list[list[int]] = [[], [], []]
    for box, R in zip(boxes, box_rotations(boxes), strict=True):
        excess = np.abs((snapshot.mean_point_m.astype(np.float64) - box[:3]) @ R) - box[3:6] / 2
        worst = excess.max(axis=1) - snapshot.voxel_size_m / 2
        found[0].append(int((worst <= 0).sum()))
        found[1].append(int(((worst > 0) & (worst <= margin_m)).sum()))
        found[2].append(int(snapshot.last_seen_ns[worst <= 0].max(initial=0)))
    return found


def test_no_more_is_copied_than_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a copy does while the map is locked follows the frame, not the map."""
    volume = FeatureVolume(VolumeConfig(voxel_size_m=0.04, max_blocks=4096, min_hits=1))
    for k in range(4):  # walls one behind the other
        volume.integrate(posed(np.full((48, 64), 2.0, np.float32), k + 1, at=(2.0 * k, 0.0, 1.0)))
    store = volume._map
    assert isinstance(store, HostMap)
    copied: list[int] = []
    copy = store._copy_blocks

    def counted(slots: NDArray[np.int32], *rest: Any) -> Any:
        copied.append(len(slots))
        return copy(slots, *rest)

    monkeypatch.setattr(store, "_copy_blocks", counted)
    volume.copy()
    volume.copy()
    volume.integrate(posed(np.full((48, 64), 2.0, np.float32), 7, at=(0.0, 0.0, 1.0)))
    last = volume.copy()
    blocks = volume.statistics().blocks
    assert copied[0] == blocks
    assert copied[1] == 0
    assert 0 < copied[2] <= blocks / 4
    assert_same_voxels(last.snapshot(), whole(volume))


def test_memory_is_used_again_unless_somebody_reads_it() -> None:
    volume = FeatureVolume(VolumeConfig(voxel_size_m=0.04, max_blocks=4096))
    frames = random_walk(7, 8)

    def look() -> VolumeCopy:
        for frame in frames:
            volume.forget_stamps()
            volume.integrate(frame)
        return volume.copy()

    store = volume._map
    assert isinstance(store, HostMap)
    copier: BlockCopier = store._copies
    for _ in range(5):
        look()
    rows = len(copier.arena)
    for _ in range(20):
        look()
    assert len(copier.arena) == rows
    kept = [look() for _ in range(20)]  # somebody who keeps everything pays for it, not the map
    then = [frozen(copy.snapshot()) for copy in kept]
    for _ in range(5):
        look()
    for copy, shown in zip(kept, then, strict=True):
        assert_same_voxels(copy.snapshot(), shown)
    del kept, copy
    for _ in range(5):
        look()
    assert len(copier.arena) <= 4 * rows


def test_nobody_waits_until_a_larger_memory_has_been_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    volume = FeatureVolume(VolumeConfig(voxel_size_m=0.02, max_blocks=1 << 14, min_hits=1))
    moves: list[str] = []
    move = BlockCopier._move
    during = "nothing"

    def counted(copier: BlockCopier, rows: int) -> None:
        moves.append(during)
        move(copier, rows)

    monkeypatch.setattr(BlockCopier, "_move", counted)
    kept = []
    for k in range(12):  # further and further: as much is new each time
        volume.integrate(posed(np.full((48, 64), 2.0, np.float32), k + 1, at=(2.0 * k, 0.0, 1.0)))
        during = "copy"
        copy = volume.copy()
        during = "prepare"
        volume.prepare_copy()
        during = "another copier"
        kept.append((copy, whole(volume)))
    assert moves[0] == "copy"  # the first one could not be known
    assert moves[1:].count("prepare") >= 2
    assert "copy" not in moves[1:]
    for copy, then in kept:
        assert_same_voxels(copy.snapshot(), then)


def test_blocks_of_a_snapshot_by_hand() -> None:
    volume = FeatureVolume(CONFIGS["plain"])
    for frame in random_walk(9, 6):
        volume.integrate(frame)
    snapshot = volume.snapshot(1)
    own, made = blocks_of(snapshot), blocks_of(frozen(snapshot))
    for name in ("keys", "coords", "counts", "newest_ns"):
        np.testing.assert_array_equal(getattr(own, name), getattr(made, name))
    for a, b in zip(own.ranges, made.ranges, strict=True):
        np.testing.assert_array_equal(own.arena.points_m[a[0] : a[1]], made.arena.points_m[b[0] : b[1]])


@pytest.mark.parametrize("most_cells", [0, block_copies._MAX_CELLS])
def test_order_by_blocks(most_cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where voxels lie so far apart that no grid holds their blocks, and where there are none."""
    monkeypatch.setattr(block_copies, "_MAX_CELLS", most_cells)
    rng = np.random.default_rng(3)
    for n in (0, 1, 5000):
        voxels = np.unique(rng.integers(-60, 60, (n, 3)), axis=0).astype(np.int32)
        coords, counts, order = block_copies._block_order(voxels)
        keys, _ = split_coords(voxels)
        distinct, numbers = np.unique(keys, return_counts=True)
        np.testing.assert_array_equal(coords, block_coords(distinct))
        np.testing.assert_array_equal(counts, numbers)
        np.testing.assert_array_equal(order, np.argsort(keys, kind="stable"))
