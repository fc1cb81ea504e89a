"""Places left behind come back from the disk as they were; what cannot be kept is counted and named."""

from __future__ import annotations

import logging
import shutil
import time
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.volume_frames import posed, random_walk, wall

from embodied_perceptron.config import ConfigError, KeyframeConfig, PerceptronConfig, SpillConfig, VolumeConfig
from embodied_perceptron.geometry.transforms import make_transform
from embodied_perceptron.mapping import spill as spill_module
from embodied_perceptron.mapping.spill import Blocks, BlockSpill
from embodied_perceptron.mapping.storage import read_map, write_map
from embodied_perceptron.mapping.volume import FeatureVolume
from embodied_perceptron.mapping.voxels import VoxelRows
from embodied_perceptron.perceptron import Perceptron

CONFIG = VolumeConfig(voxel_size_m=0.04, max_range_m=3.0, radius_m=4.0, max_blocks=4096, min_hits=1)
FAR_M = 40.0


@pytest.fixture(autouse=True)
def small_segments(monkeypatch) -> None:
    monkeypatch.setattr(spill_module, "_SEGMENT_VOXELS", 400)


def volume_with(
    folder: Path, max_bytes: int = 2**30, config: VolumeConfig = CONFIG
) -> tuple[FeatureVolume, BlockSpill]:
    spill = BlockSpill(folder, max_bytes)
    return FeatureVolume(config, KeyframeConfig(), spill=spill), spill


def sorted_rows(volume: FeatureVolume) -> VoxelRows:
    return volume._map.gather(1)


def assert_same(a: VoxelRows, b: VoxelRows) -> None:
    for entry in fields(VoxelRows):
        assert torch.equal(getattr(a, entry.name), getattr(b, entry.name)), entry.name


def some_blocks() -> Blocks:
    """Two blocks, one segment."""
    keys, records = np.array([5, 9], np.int64), np.ones((400, 8), np.int32)
    return Blocks(keys, np.full(2, 200), np.tile(np.arange(200), 2), records, np.ones(400, np.int64))


def blind(stamp_ns: int, x: float) -> object:
    """A camera that sees one point alone, far from everything else that it could clear."""
    depth = np.zeros((48, 64), np.float32)
    depth[24, 32] = 0.5
    return posed(depth, stamp_ns, at=(x, 0.0, 30.0))


def test_a_place_comes_back_bit_for_bit(tmp_path):
    volume, spill = volume_with(tmp_path)
    volume.integrate(wall(2.0, 0))
    volume.integrate(wall(2.0, 1, x=0.1))
    before = sorted_rows(volume)
    assert len(before) > 2 * spill_module._SEGMENT_VOXELS
    volume.integrate(blind(2, FAR_M))
    spill.flush()
    assert len(sorted_rows(volume)) == 1
    files = sorted(tmp_path.rglob("*.safetensors"))
    assert len(files) >= 2
    s = volume.statistics()
    assert s.blocks_left_behind == len(spill) > 0
    assert s.left_behind_bytes == len(before) * spill_module._VOXEL_BYTES
    # back to where it was, looking elsewhere
    for i in range(4):
        volume.integrate(posed(np.full((48, 64), 0.3, np.float32), 3 + i, at=(-0.5, 0.0, 1.0), R=BACK, camera="back"))
        wait_for_reads(spill)
    after = sorted_rows(volume)
    again = after.where(after.last_seen_ns < 2)
    assert_same(again, before)
    assert len(spill) == 1  # what the camera saw far away
    spill.flush()
    spill._disk.submit(int).result()
    assert not [f for f in files if f.exists()]  # a segment that was read goes
    np.testing.assert_array_equal(volume.snapshot().coords, after.coords.numpy())


BACK = np.array([[0.0, 0.0, -1.0], [1.0, 0.0, 0.0], [0.0, -1.0, 0.0]])


def wait_for_reads(spill: BlockSpill) -> None:
    for segment in spill._segments:
        if segment.read is not None:
            segment.read.exception()


def test_the_same_over_random_lives(tmp_path):
    """Whatever leaves and returns, nothing is lost and nothing is there twice, with the clearing off."""
    for seed in range(4):
        config = VolumeConfig(
            voxel_size_m=0.05,
            max_range_m=2.0,
            radius_m=2.5,
            max_blocks=(4096, 90)[seed % 2],
            min_hits=1,
            clearing=False,
        )
        volume, spill = volume_with(tmp_path, config=config)
        every = FeatureVolume(
            VolumeConfig(
                voxel_size_m=0.05, max_range_m=2.0, radius_m=1e3, max_blocks=60_000, min_hits=1, clearing=False
            ),
            KeyframeConfig(),
        )
        refused = 0
        for frame in random_walk(seed, 60, step_m=0.5):
            report = volume.integrate(frame)
            every.integrate(frame)
            refused += report.counts.points_refused
            wait_for_reads(spill)
        here, left = sorted_rows(volume), spill.take(lambda coords: np.ones(len(coords), bool))
        there = [part.rows() for part in left]
        mine = {tuple(c) for part in (here, *there) for c in part.coords.tolist()}
        all_of_them = {tuple(c) for c in sorted_rows(every).coords.tolist()}
        assert there
        assert mine <= all_of_them
        if not refused:
            assert mine == all_of_them
        assert len(set(map(tuple, here.coords.tolist()))) == len(here) == len(volume)
        spill.close()


def test_a_cut_file_is_refused_by_name(tmp_path, caplog):
    volume, spill = volume_with(tmp_path)
    volume.integrate(wall(2.0, 0))
    volume.integrate(blind(1, FAR_M))
    spill.flush()
    cut, changed, *_ = sorted(tmp_path.rglob("*.safetensors"))
    cut.write_bytes(cut.read_bytes()[:-100])
    data = bytearray(changed.read_bytes())
    data[-5] ^= 1
    changed.write_bytes(bytes(data))
    lost = sum(len(s.keys) for s in spill._segments if s.path in (cut, changed))
    with caplog.at_level(logging.WARNING):
        for i in range(4):
            volume.integrate(posed(np.full((48, 64), 0.3, np.float32), 2 + i, at=(-0.5, 0, 1.0), R=BACK, camera="back"))
            wait_for_reads(spill)
    assert volume.statistics().left_behind_lost == {"damaged": lost}
    assert cut.name in caplog.text
    assert changed.name in caplog.text
    assert len(sorted_rows(volume)) > 0


HOSTILE = {
    "counts that overflow": ("counts", lambda v: v.fill_(2**62), "counts from"),
    "counts below one": ("counts", lambda v: v.index_fill_(0, torch.tensor([0]), -5), "counts from -5"),
    "counts of other voxels": ("counts", lambda v: v.index_fill_(0, torch.tensor([0]), 512), "counts from"),
    "voxels outside": ("local", lambda v: v.fill_(512), "voxels 512 to 512 of blocks of 512"),
    "voxels below": ("local", lambda v: v.fill_(-1), "voxels -1 to -1"),
    "negative records": ("records", lambda v: v.fill_(-1), "must not be negative"),
    "times before all": ("last_seen_ns", lambda v: v.fill_(-1), "no time from 0"),
}


@pytest.mark.parametrize(("tensor", "change", "message"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_values_with_valid_checksums_are_refused(tmp_path, caplog, tensor, change, message):
    spill = BlockSpill(tmp_path, 2**30)
    spill.add(some_blocks())
    spill.flush()
    (path,) = tmp_path.rglob("segment-*.safetensors")
    saved = read_map(path)
    change(saved.tensors[tensor])
    write_map(path, saved.tensors, {"segment": path.stem})
    assert spill.take(lambda coords: np.ones(len(coords), bool)) == []
    assert (spill.dropped["damaged"], len(spill)) == (2, 0)
    assert message in caplog.text
    spill.close()


def test_a_segment_that_grew_is_refused_unread(tmp_path, caplog, monkeypatch):
    spill = BlockSpill(tmp_path, 2**30)
    spill.add(some_blocks())
    spill.flush()
    (path,) = tmp_path.rglob("segment-*.safetensors")
    with path.open("r+b") as file:
        file.truncate(2**34)  # takes no room on the disk
    monkeypatch.setattr(spill_module, "read_map", None)
    assert spill.take(lambda coords: np.ones(len(coords), bool)) == []
    assert f"has {2**34} bytes" in caplog.text
    spill.close()


@pytest.mark.parametrize("gone", ["map-*", ""], ids=["of the map", "of all maps"])
def test_a_deleted_folder_is_made_again(tmp_path, gone):
    parent = tmp_path / "spill"
    parent.mkdir()
    spill = BlockSpill(parent, 2**30)
    spill.add(some_blocks())
    spill.flush()
    for folder in list(parent.glob(gone)) if gone else [parent]:
        shutil.rmtree(folder)
    spill.add(some_blocks())
    spill.flush()
    back = spill.take(lambda coords: np.ones(len(coords), bool))
    assert [len(b.keys) for b in back] == [2]
    assert spill.dropped == {"damaged": 2}  # the part that was deleted
    other = BlockSpill(parent, 2**30)  # it is locked anew
    assert spill._folder.exists()
    other.close()
    spill.close()
    assert not list(parent.iterdir())


def test_a_full_disk_is_a_counted_drop(tmp_path, monkeypatch, caplog):
    def no_room(path: Path, *_: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(spill_module, "write_map", no_room)
    volume, spill = volume_with(tmp_path)
    volume.integrate(wall(2.0, 0))
    volume.integrate(blind(1, FAR_M))
    with caplog.at_level(logging.WARNING):
        spill.flush()
    assert volume.statistics().left_behind_lost["disk"] > 0
    assert "No space left on device" in caplog.text
    assert volume.integrate(wall(2.0, 2)).fused  # and the map goes on


def test_the_folder_is_bounded_and_the_oldest_go(tmp_path):
    most = 900 * spill_module._VOXEL_BYTES
    volume, spill = volume_with(tmp_path, most)
    for i in range(4):
        volume.integrate(wall(2.0, i, x=FAR_M * i))
    spill.flush()
    assert spill.nbytes <= most + spill_module._SEGMENT_VOXELS * spill_module._VOXEL_BYTES
    assert spill.dropped["full"] > 0
    spill._disk.submit(int).result()
    on_disk = {path.name for path in tmp_path.rglob("*.safetensors")}
    assert on_disk == {segment.path.name for segment in spill._segments}
    assert "segment-00000000.safetensors" not in on_disk


def test_a_disk_that_is_too_slow_is_a_counted_drop(tmp_path, monkeypatch):
    monkeypatch.setattr(spill_module, "_MOST_WAITING", 1)
    volume, spill = volume_with(tmp_path)
    block = spill._disk.submit(time.sleep, 0.3)
    volume.integrate(wall(2.0, 0))
    volume.integrate(blind(1, FAR_M))
    assert spill.dropped["slow"] > 0
    block.result()


def test_reset_and_the_end_clear_the_folder(tmp_path):
    volume, spill = volume_with(tmp_path)
    volume.integrate(wall(2.0, 0))
    volume.integrate(blind(1, FAR_M))
    spill.flush()
    volume.reset()
    spill._disk.submit(int).result()
    assert (len(spill), spill.nbytes, spill.memory_bytes) == (0, 0, 0)
    assert not list(tmp_path.rglob("*.safetensors"))
    spill.close()
    assert not list(tmp_path.iterdir())


def test_leftovers_of_ended_processes_go_and_nothing_else(tmp_path):
    first = BlockSpill(tmp_path, 2**20)
    killed, early, earliest = (tmp_path / f"{name}-0123456789abcdef" for name in ("map", "new", "new"))
    earliest = earliest.with_name("new-0000000000000000")
    foreign = [
        tmp_path / name for name in ("maps", "map-00000000000000aa", "map-00000000000000ab", "new-00000000000000aa")
    ]
    for folder in (killed, early, earliest, *foreign):
        folder.mkdir()
    for folder in (killed, early, foreign[2]):
        (folder / spill_module._LOCK).touch()
    (killed / "segment-00000000.safetensors").touch()
    (killed / ".segment-00000001.safetensors.12-ab.tmp").touch()
    for folder in foreign[1:]:
        (folder / "thesis.txt").touch()
    (tmp_path / "map-00000000000000ff").symlink_to(foreign[1])
    foreign.append(tmp_path / "map-00000000000000ff")
    second = BlockSpill(tmp_path, 2**20)
    assert first._folder != second._folder
    assert sorted(tmp_path.iterdir()) == sorted([first._folder, second._folder, *foreign])
    assert all((folder / "thesis.txt").exists() for folder in foreign[1:])
    first.close()
    second.close()
    assert sorted(tmp_path.iterdir()) == sorted(foreign)


def test_what_is_left_behind_moves_with_a_correction(tmp_path):
    volume, spill = volume_with(tmp_path)
    volume.integrate(wall(2.0, 0))
    before = volume.snapshot().mean_point_m.astype(np.float64)
    for keyframe in range(1, 4):
        volume.integrate(wall(2.0, keyframe * 10**9, x=FAR_M + keyframe))
    volume.keyframes._kept.popleft()  # the first one is no keyframe any more
    moved: NDArray[np.float64] = make_transform(np.eye(3), np.array([0.0, 0.4, 0.0]))
    poses = {(k.frame.camera, k.frame.stamp_ns): moved @ k.T_world_camera for k in volume.keyframes}
    volume.correct_keyframes(poses)
    left = [part.rows() for part in spill.take(lambda coords: np.ones(len(coords), bool))]
    coords = np.concatenate([part.coords.numpy() for part in left])
    near = coords[:, 0] * CONFIG.voxel_size_m < 5.0
    assert near.sum() == len(before)
    np.testing.assert_allclose(
        (coords[near, 1].mean() + 0.5) * CONFIG.voxel_size_m, before[:, 1].mean() + 0.4, atol=CONFIG.voxel_size_m
    )


def test_a_box_is_cleared_on_the_disk_too(tmp_path):
    volume, spill = volume_with(tmp_path)
    volume.integrate(wall(2.0, 0))
    count = len(volume)
    volume.integrate(blind(1, FAR_M))
    inside = np.array([2.0, 0.0, 1.0, 0.2, 0.8, 8.0, 0.0, 0.0, 0.0])
    cleared = volume.clear_box(inside)
    assert 0 < cleared < count
    left = [part.rows() for part in spill.take(lambda coords: np.ones(len(coords), bool))]
    coords = np.concatenate([part.coords.numpy() for part in left])
    assert len(coords) == count - cleared
    assert (np.abs((coords[:, 1] + 0.5) * CONFIG.voxel_size_m) > 0.4).all()


def test_blocks_are_the_rows_that_they_were_made_of():
    volume = FeatureVolume(CONFIG, KeyframeConfig())
    volume.integrate(wall(2.0, 0))
    rows = volume._map.gather(1)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    mixed = VoxelRows(rows.coords[order], rows.records[order], rows.last_seen_ns[order])
    back = Blocks.of(mixed).rows()
    columns = [x.tolist() for x in (rows.coords, rows.records, rows.last_seen_ns)]
    keys = {tuple(c): (tuple(r), s) for c, r, s in zip(*columns, strict=True)}
    for c, r, s in zip(back.coords.tolist(), back.records.tolist(), back.last_seen_ns.tolist(), strict=True):
        assert keys.pop(tuple(c)) == (tuple(r), s)
    assert not keys


def test_a_spill_needs_a_folder_that_is_there(tmp_path):
    with pytest.raises(ConfigError, match=r"spill\.folder .* cannot be used"):
        BlockSpill(tmp_path / "missing", 2**20)
    with pytest.raises(ValueError, match="max_gib must be in"):
        SpillConfig(max_gib=0.0)


def test_a_perceptron_spills_where_its_configuration_says(tmp_path):
    it = Perceptron(PerceptronConfig(volume=CONFIG, spill=SpillConfig(str(tmp_path), 0.5)))
    it.integrate(wall(2.0, 0))
    it.integrate(blind(1, FAR_M))
    assert it.statistics().blocks_left_behind > 0
    assert list(tmp_path.iterdir())
