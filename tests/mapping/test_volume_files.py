"""Map files: round trip, refusals by name, atomic writing."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.volume_frames import KERNELS, assert_same_voxels, random_walk, wall

from embodied_perceptron.config import KeyframeConfig, VolumeConfig
from embodied_perceptron.mapping import storage
from embodied_perceptron.mapping.storage import MapFileError
from embodied_perceptron.mapping.volume import FeatureVolume
from embodied_perceptron.recordings import files

CONFIG = VolumeConfig(voxel_size_m=0.04, max_blocks=4096)
KEYFRAMES = KeyframeConfig(translation_m=0.05, min_interval_s=0.0, max_count=6)


def assert_same_map(a: FeatureVolume, b: FeatureVolume) -> None:
    assert_same_voxels(a.snapshot(1), b.snapshot(1))
    assert len(a) == len(b)
    assert a.statistics().blocks == b.statistics().blocks
    assert a.keyframes.taken == b.keyframes.taken
    for k, m in zip(a.keyframes, b.keyframes, strict=True):
        assert (k.id, k.frame.stamp_ns, k.frame.camera) == (m.id, m.frame.stamp_ns, m.frame.camera)
        assert k.frame.intrinsics == m.frame.intrinsics
        np.testing.assert_array_equal(k.frame.depth_m, m.frame.depth_m)
        np.testing.assert_array_equal(k.frame.color, m.frame.color)
        np.testing.assert_array_equal(k.T_world_camera, m.T_world_camera)


@pytest.fixture
def volume() -> FeatureVolume:
    volume = FeatureVolume(CONFIG, KEYFRAMES)
    for frame in random_walk(21, 12):
        volume.integrate(frame)
    assert len(volume.keyframes) == 6
    return volume


def volume_of(path: Path, kernels: str = "auto") -> FeatureVolume:
    """A volume with the content and the configuration of a saved map."""
    saved = storage.read_map(path)
    config, keyframes = storage.saved_configs(saved)
    volume = FeatureVolume(config, keyframes, kernels=kernels)  # type: ignore[arg-type]
    volume.restore(storage.unpack_volume(saved, config))
    return volume


@pytest.fixture
def path(volume: FeatureVolume, tmp_path: Path) -> Path:
    """File of a saved ``volume``."""
    volume.save(tmp_path / "map.safetensors")
    return tmp_path / "map.safetensors"


@pytest.mark.parametrize("kernels", KERNELS)
def test_round_trip_and_going_on(volume: FeatureVolume, path: Path, kernels: str) -> None:
    loaded = volume_of(path, kernels=kernels)
    assert loaded.config == CONFIG
    assert loaded.keyframes.config == KEYFRAMES
    assert_same_map(volume, loaded)
    for frame in random_walk(22, 6):  # stamps may start again after loading
        volume.forget_stamps()
        volume.integrate(frame)
        loaded.forget_stamps()
        loaded.integrate(frame)
    assert_same_map(volume, loaded)


def test_the_same_map_gives_the_same_file(volume: FeatureVolume, tmp_path: Path) -> None:
    a, b = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    volume.save(a)
    other = FeatureVolume(CONFIG, KEYFRAMES)
    other.load(a)
    other.save(b)
    assert a.read_bytes() == b.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.safetensors", "b.safetensors"]


def test_an_empty_map_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "empty.safetensors"
    FeatureVolume(CONFIG).save(path)
    assert len(volume_of(path)) == 0


def test_loading_keeps_own_limits(volume: FeatureVolume, path: Path) -> None:
    other = FeatureVolume(replace(CONFIG, max_range_m=3.0), replace(KEYFRAMES, max_count=2))
    other.load(path)
    assert other.config.max_range_m == 3.0
    assert [k.id for k in other.keyframes] == [k.id for k in volume.keyframes][-2:]
    assert len(other) == len(volume)


def refused(path: Path, volume: FeatureVolume, match: str) -> None:
    """Loading fails with the reason, and the map in memory stays."""
    before = volume.snapshot(1)
    with pytest.raises(MapFileError, match=match):
        volume.load(path)
    np.testing.assert_array_equal(volume.snapshot(1).coords, before.coords)
    with pytest.raises(MapFileError):
        volume_of(path).load(path)


def rewrite(path: Path, tensors: dict[str, torch.Tensor] | None = None, **fields: object) -> None:
    """Change tensors or header fields of a map file, as one who knows how to make checksums."""
    saved = storage.read_map(path)
    storage.write_map(path, {**saved.tensors, **(tensors or {})}, {**saved.header, **fields})


def rewrite_as_version_1(path: Path) -> None:
    """As it was written before there were checksums."""
    saved = storage.read_map(path)
    header = {name: value for name, value in saved.header.items() if not name.startswith("checksum")}
    save_file(saved.tensors, path, metadata={storage.FORMAT: json.dumps({**header, "version": 1}, sort_keys=True)})


def test_another_voxel_size_is_refused(volume: FeatureVolume, path: Path) -> None:
    other = FeatureVolume(replace(CONFIG, voxel_size_m=0.05))
    with pytest.raises(MapFileError, match=r"voxel_size_m=0\.04.*0\.05"):
        other.load(path)


def test_a_map_beyond_the_budget_is_refused(volume: FeatureVolume, path: Path) -> None:
    with pytest.raises(MapFileError, match=rf"{volume.statistics().blocks} blocks.*max_blocks=64"):
        FeatureVolume(replace(CONFIG, max_blocks=64)).load(path)


def test_damaged_files_are_refused(volume: FeatureVolume, tmp_path: Path) -> None:
    whole = tmp_path / "whole.safetensors"
    volume.save(whole)
    data = whole.read_bytes()
    for cut in (0, 1, 7, 8, 100, len(data) // 2, len(data) - 1):
        path = tmp_path / f"cut{cut}.safetensors"
        path.write_bytes(data[:cut])
        refused(path, volume, str(path))
    garbage = tmp_path / "garbage.safetensors"
    garbage.write_bytes(np.random.default_rng(0).bytes(4096))
    refused(garbage, volume, "garbage")


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"version": 3}, "version 3.*version 1 to 2"),
        ({"version": True}, "version True"),
        ({"version": None}, "version None"),
        ({"volume": {"voxel_size_m": -1.0}}, "voxel_size_m"),
        ({"volume": {"wings": 2}}, "wings"),
        ({"volume": None}, "volume"),
        ({"keyframes": [{}]}, "keyframe 0"),
        ({"keyframes": 7}, "keyframe 0.*7"),
        ({"keyframes_taken": True}, "keyframes_taken.*True"),
        ({"keyframes_taken": 10**30}, "keyframes_taken"),
        ({"keyframes_taken": 1}, "keyframes_taken"),
    ],
)
def test_other_headers_are_refused(volume: FeatureVolume, path: Path, fields: dict[str, object], match: str) -> None:
    rewrite(path, **fields)
    refused(path, volume, match)


@pytest.mark.parametrize(
    ("metadata", "match"),
    [
        ({"something": "else"}, "no map.*something"),
        ({storage.FORMAT: "{"}, "readable"),
        ({storage.FORMAT: "[]"}, "mapping"),
    ],
)
def test_other_files_are_refused(volume: FeatureVolume, tmp_path: Path, metadata: dict[str, str], match: str) -> None:
    path = tmp_path / "map.safetensors"
    save_file({"voxels.keys": torch.zeros(2)}, path, metadata=metadata)
    refused(path, volume, match)


@pytest.mark.parametrize(
    ("tensors", "match"),
    [
        ({"voxels.records": torch.zeros((3, 8), dtype=torch.int32)}, "voxels.records"),
        ({"voxels.keys": torch.zeros((5,), dtype=torch.float32)}, "voxels.keys"),
        ({"keyframes.2.depth_m": torch.zeros((2, 2))}, r"keyframes\.2\.depth_m"),
        ({"keyframes.1.T_world_camera": torch.full((4, 4), float("nan"), dtype=torch.float64)}, "keyframe 1"),
        ({"keyframes.0.depth_m": torch.full((18, 24), -1.0)}, "keyframe 0"),
    ],
)
def test_other_content_is_refused(
    volume: FeatureVolume, path: Path, tensors: dict[str, torch.Tensor], match: str
) -> None:
    rewrite(path, tensors)
    refused(path, volume, match)


KEYFRAME_FIELDS = [
    ("id", "0"),
    ("id", -1),
    ("id", 2**70),
    ("stamp_ns", 1.5),
    ("stamp_ns", 2**63 - 1),
    ("stamp_ns", True),
    ("camera", 7),
    ("camera", ["camera"]),
    ("camera", ""),
    ("intrinsics", ["20", 20.0, 11.5, 8.5, 24, 18]),
    ("intrinsics", [20.0, 20.0, 11.5, 8.5, 24.0, 18]),
    ("intrinsics", [20.0, 20.0, 11.5, 8.5, 24]),
    ("intrinsics", [float("nan"), 20.0, 11.5, 8.5, 24, 18]),
    ("intrinsics", [10**400, 20.0, 11.5, 8.5, 24, 18]),
]


@pytest.mark.parametrize(("field", "value"), KEYFRAME_FIELDS, ids=str)
def test_keyframes_with_a_wrong_field_are_refused(volume: FeatureVolume, path: Path, field: str, value: object) -> None:
    entries = storage.read_header(path)["keyframes"]
    rewrite(path, keyframes=[{**entries[0], field: value}, *entries[1:]])
    refused(path, volume, rf"map\.safetensors: keyframe 0 .*{field}")


def test_times_and_places_that_no_map_has_are_refused(volume: FeatureVolume, path: Path) -> None:
    seen = load_file(path)["voxels.last_seen_ns"].clone()
    seen[1] = 2**63 - 1
    rewrite(path, {"voxels.last_seen_ns": seen})
    refused(path, volume, str(2**63 - 1))
    volume.save(path)
    T = load_file(path)["keyframes.1.T_world_camera"].clone()
    T[0, 3] = 1e9
    rewrite(path, {"keyframes.1.T_world_camera": T})
    refused(path, volume, r"keyframe 1 .*further than")


def test_a_budget_beyond_this_machine_is_refused_before_memory_is_taken(volume: FeatureVolume, path: Path) -> None:
    rewrite(path, volume={**storage.read_header(path)["volume"], "max_blocks": 2**40})
    with pytest.raises(MapFileError, match=rf"map\.safetensors: max_blocks={2**40} takes .* GiB"):
        volume_of(path)
    volume.load(path)  # which has a budget of its own


def test_a_map_of_version_1_loads(volume: FeatureVolume, path: Path) -> None:
    rewrite_as_version_1(path)
    assert "checksum" not in storage.read_header(path)
    assert_same_map(volume, volume_of(path))


def test_a_flipped_bit_anywhere_is_refused(tmp_path: Path) -> None:
    """One bit of each byte of the header, and of every 97th byte behind it; each bit of the length before it."""
    path = tmp_path / "map.safetensors"
    volume = FeatureVolume(CONFIG, KEYFRAMES)
    volume.integrate(wall(1.0, 0))
    volume.save(path, extra={"objects": "1e-05 \u00e9 \u2028"})
    whole = path.read_bytes()
    header_end = 8 + int.from_bytes(whole[:8], "little")
    rng = np.random.default_rng(5)
    flips = [(byte, bit) for byte in range(8) for bit in range(8)]
    flips += [(byte, int(rng.integers(8))) for byte in range(8, header_end)]
    flips += [(byte, int(rng.integers(8))) for byte in range(header_end, len(whole), 97)]
    flips.append((len(whole) - 1, 0))
    for byte, bit in flips:
        damaged = bytearray(whole)
        damaged[byte] ^= 1 << bit
        path.write_bytes(damaged)
        with pytest.raises(MapFileError, match=r"map\.safetensors"):
            storage.read_map(path)


def test_json_that_is_nested_too_deep_is_refused(volume: FeatureVolume, path: Path) -> None:
    save_file(load_file(path), path, metadata={storage.FORMAT: "[" * 200_000})
    refused(path, volume, "nested too deep")


def test_unsorted_or_empty_voxels_are_refused(volume: FeatureVolume, path: Path) -> None:
    content = load_file(path)
    rewrite(path, {"voxels.keys": content["voxels.keys"].flip(0)})
    refused(path, volume, "increasing")
    volume.save(path)
    rewrite(path, {"voxels.records": content["voxels.records"] * 0})
    refused(path, volume, "hit")


@pytest.mark.parametrize("column", range(1, 7))
def test_sums_that_no_points_add_up_to_are_refused(volume: FeatureVolume, path: Path, column: int) -> None:
    """A mean point kilometres from its voxel made everything that follows reserve memory up to there."""
    records = load_file(path)["voxels.records"]
    records[2, column] = 2**31 - 1
    rewrite(path, {"voxels.records": records})
    refused(path, volume, "sums that no points")


def test_missing_files_and_folders_are_os_errors(volume: FeatureVolume, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        volume.load(tmp_path / "nowhere.safetensors")
    with pytest.raises(OSError, match="absent"):
        volume.save(tmp_path / "absent" / "map.safetensors")


def test_a_failed_save_leaves_the_old_map_and_no_rest(
    volume: FeatureVolume, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.read_bytes()

    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage, "save_file", full_disk)
    with pytest.raises(OSError, match="No space"):
        volume.save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["map.safetensors"]


def test_what_a_killed_writer_left_is_removed_later(volume: FeatureVolume, tmp_path: Path) -> None:
    path = tmp_path / "map.safetensors"
    old, fresh = (tmp_path / f".map.safetensors.{2**31 - 1}-{end}.tmp" for end in ("ab", "cd"))
    for p in (old, fresh):
        p.write_bytes(b"half")
    os.utime(old, (time.time() - 3600, time.time() - 3600))
    volume.save(path)
    assert not old.exists()
    assert fresh.exists()  # may belong to another process that is saving right now


@pytest.mark.forks
@pytest.mark.parametrize("stage", ["write", "flush", "replace"])
def test_death_at_any_stage_of_a_save_leaves_the_old_map(
    volume: FeatureVolume, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """A copy of this process kills itself exactly at a stage; no matter of luck."""
    path = tmp_path / "map.safetensors"
    old = FeatureVolume(CONFIG)
    old.integrate(wall(1.0, 0))
    old.save(path)
    before = path.read_bytes()

    def die(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def write_half_and_die(tensors: dict[str, torch.Tensor], name: str, metadata: dict[str, str]) -> None:
        Path(name).write_bytes(b"12345")
        die()

    if stage == "write":
        monkeypatch.setattr(storage, "save_file", write_half_and_die)
    else:
        monkeypatch.setattr(*{"flush": (files, "_flush", die), "replace": (files.os, "replace", die)}[stage])
    child = os.fork()
    if child == 0:
        try:
            volume.save(path)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert path.read_bytes() == before
    assert sum(p.suffix == ".tmp" for p in tmp_path.iterdir()) == 1
    old.load(path)
