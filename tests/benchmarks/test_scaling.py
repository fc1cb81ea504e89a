"""What a place takes is the sum of its parts, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from scaling import _FIELDS, MIB, Coefficients, Site, in_memory_m2, largest_area_m2, sized

C = Coefficients(
    map_bytes_per_m2=2 * MIB,
    disk_bytes_per_m2=MIB / 2,
    index_bytes_per_m2=MIB / 1024,
    keyframe_bytes=4 * MIB,
    object_bytes=MIB / 1024,
    objects_per_m2=0.5,
    network_bytes=50 * MIB,
    fixed_bytes=400 * MIB,
    fuse_ms=6.0,
    perceive_ms=200.0,
)


def test_a_flat_is_in_main_memory_and_a_building_is_not():
    flat = sized(C, Site(100.0, radius_m=10.0, keyframes=50))
    assert flat["map_mib"] == pytest.approx(50 + 100 * 2 + 50 * 4 + 50 / 1024)
    assert flat["process_mib"] == pytest.approx(flat["map_mib"] + 400)
    assert flat["disk_mib"] == 0
    building = Site(10_000.0, radius_m=10.0, keyframes=50)
    near = math.pi * 100
    assert in_memory_m2(building) == pytest.approx(near)
    found = sized(C, building)
    assert found["disk_mib"] == pytest.approx((10_000 - near) / 2)
    assert found["map_mib"] == pytest.approx(50 + near * 2 + (10_000 - near) / 1024 + 200 + 5_000 / 1024)
    assert found["objects"] == 5_000


def test_cores_follow_cameras_rates_and_robots():
    one = sized(C, Site(cameras=1, frames_hz=30.0, perception_hz=5.0))
    assert one["cores_fusing"] == pytest.approx(0.18)
    assert one["cores_perceiving"] == pytest.approx(1.0)
    many = sized(C, Site(cameras=8, frames_hz=30.0, perception_hz=5.0, robots=20, pixels=320 * 240, hours=1.0))
    assert many["cores_fusing"] == pytest.approx(8 * 0.18 / 4)
    assert many["all_cores"] == pytest.approx(20 * (8 * 0.18 / 4 + 1.0))
    assert many["frames_a_day"] == 20 * 8 * 30 * 3600


def test_the_largest_floor_fills_the_memory():
    without_disk = Site(radius_m=1e4)
    area = largest_area_m2(C, 2**30, without_disk)
    assert sized(C, replace(without_disk, area_m2=area))["map_mib"] == pytest.approx(1024)
    assert largest_area_m2(C, 100 * MIB, without_disk) == 0  # keyframes alone are more
    assert largest_area_m2(C, 2**30, Site(radius_m=10.0)) > 100 * area


def test_coefficients_come_from_the_files_and_missing_ones_are_named():
    files = {"memory": {}, "fusion": {}, "online": {}}
    for i, (file, figure) in enumerate(_FIELDS.values(), 1):
        files[file][figure] = float(i)
    found = Coefficients.read(files)
    assert list(vars(found).values()) == [float(i) for i in range(1, len(_FIELDS) + 1)]
    assert list(vars(found)) == list(_FIELDS)
    del files["online"]["rates.perceive_cpu_ms"]
    with pytest.raises(ValueError, match=r"rates\.perceive_cpu_ms is missing .*: run benchmarks/online\.py"):
        Coefficients.read(files)
    files["online"]["rates.perceive_cpu_ms"] = float("nan")
    with pytest.raises(ValueError, match="is missing"):
        Coefficients.read(files)
    with pytest.raises(ValueError, match="robots must be positive, got 0"):
        Site(robots=0)
