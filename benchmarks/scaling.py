"""Resources of a building, a day and a fleet, computed from the figures of memory.py, fusion.py and online.py.

python benchmarks/memory.py && python benchmarks/fusion.py && python benchmarks/online.py
python benchmarks/scaling.py                             # table, and out/bench/scaling.json
python benchmarks/scaling.py --area-m2 5000 --robots 3   # your own place
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import _report as report

MIB = 2**20
_FIELDS = {  # field of Coefficients -> file and figure
    "map_bytes_per_m2": ("memory", "bytes.per_m2_of_map"),
    "disk_bytes_per_m2": ("memory", "bytes.per_m2_on_disk"),
    "index_bytes_per_m2": ("memory", "bytes.per_m2_of_index"),
    "keyframe_bytes": ("memory", "bytes.per_keyframe"),
    "object_bytes": ("memory", "bytes.per_object"),
    "objects_per_m2": ("memory", "objects_per_m2"),
    "network_bytes": ("memory", "bytes.network_state"),
    "fixed_bytes": ("memory", "bytes.process"),
    "fuse_ms": ("fusion", "ours_ms"),
    "perceive_ms": ("online", "rates.perceive_cpu_ms"),
}


@dataclass(frozen=True)
class Coefficients:
    """Measurements of one machine.

    Attributes:
        map_bytes_per_m2: main memory of voxels and their copies, for each square metre of floor.
        disk_bytes_per_m2, index_bytes_per_m2: of places outside of the radius: on the disk, and in main memory.
        keyframe_bytes: images and their features of a keyframe. object_bytes: of an object; ``objects_per_m2``: count.
        network_bytes: kept by the network between perceptions. fixed_bytes: program, libraries, weights.
        fuse_ms, perceive_ms: CPU time of a frame of 640 x 480, and of a perception.
    """

    map_bytes_per_m2: float
    disk_bytes_per_m2: float
    index_bytes_per_m2: float
    keyframe_bytes: float
    object_bytes: float
    objects_per_m2: float
    network_bytes: float
    fixed_bytes: float
    fuse_ms: float
    perceive_ms: float

    @classmethod
    def read(cls, files: Mapping[str, Mapping[str, Any]]) -> Coefficients:
        """From the figures of ``memory.json``, ``fusion.json`` and ``online.json``, by the name of the file.

        Raises ``ValueError`` naming a figure that is missing or not positive, and the benchmark that measures it.
        """
        found = {}
        for field, (file, figure) in _FIELDS.items():
            value = files.get(file, {}).get(figure)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
                raise ValueError(f"{figure} is missing in out/bench/{file}.json: run benchmarks/{file}.py")
            found[field] = float(value)
        return cls(**found)


@dataclass(frozen=True)
class Site:
    """A place and its robots.

    Attributes:
        area_m2: floor that is mapped at the end.
        radius_m: of the map in main memory (``volume.radius_m``); the rest is on the disk.
        keyframes: kept keyframes (``keyframes.max_count``).
        cameras: of one robot, each with ``frames_hz`` fused frames a second of ``pixels``.
        perception_hz: perceptions a second.
        robots: each with its own map.
        hours: of driving a day.
    """

    area_m2: float = 200.0
    radius_m: float = 10.0
    keyframes: int = 50
    cameras: int = 1
    frames_hz: float = 5.0
    pixels: int = 640 * 480
    perception_hz: float = 3.0
    robots: int = 1
    hours: float = 8.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ValueError(f"{name} must be positive, got {value}")


SITES = {
    "a flat": Site(80.0),
    "a floor of 2,000 m2": Site(2_000.0),
    "10,000 m2": Site(10_000.0),
    "8 cameras": Site(2_000.0, cameras=8),
    "20 robots": Site(2_000.0, robots=20),
}


def in_memory_m2(site: Site) -> float:
    """Floor within the radius, in square metres: the most that main memory holds."""
    return min(site.area_m2, math.pi * site.radius_m**2)


def sized(c: Coefficients, site: Site) -> dict[str, float]:
    """Resources of one robot at the end of a day, and of all robots together.

    Keyframes are shared by a robot's cameras; the frames of several cameras are fused one after the other.
    """
    near = in_memory_m2(site)
    objects = site.area_m2 * c.objects_per_m2
    memory = (
        c.network_bytes
        + near * c.map_bytes_per_m2
        + (site.area_m2 - near) * c.index_bytes_per_m2
        + site.keyframes * c.keyframe_bytes * site.pixels / (640 * 480)
        + objects * c.object_bytes
    )
    disk = (site.area_m2 - near) * c.disk_bytes_per_m2
    fusing = site.cameras * site.frames_hz * c.fuse_ms * site.pixels / (640 * 480) / 1e3
    perceiving = site.perception_hz * c.perceive_ms / 1e3
    frames = site.robots * site.cameras * site.frames_hz * 3600 * site.hours
    return {
        "map_mib": memory / MIB,
        "process_mib": (memory + c.fixed_bytes) / MIB,
        "disk_mib": disk / MIB,
        "objects": objects,
        "cores_fusing": fusing,
        "cores_perceiving": perceiving,
        "frames_a_day": frames,
        "all_memory_gib": site.robots * (memory + c.fixed_bytes) / 2**30,
        "all_disk_gib": site.robots * disk / 2**30,
        "all_cores": site.robots * (fusing + perceiving),
    }


def largest_area_m2(c: Coefficients, memory_bytes: float, site: Site) -> float:
    """Largest floor, in square metres, whose map fits into the given main memory; 0 if none fits."""

    def fits(area_m2: float) -> bool:
        return sized(c, replace(site, area_m2=area_m2))["map_mib"] * MIB <= memory_bytes

    low, high = 1e-6, 1e9
    if not fits(low):
        return 0.0
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


FILES = ("memory", "fusion", "online")
OPTIONS = {
    "area_m2": "of floor that is known at the end",
    "radius_m": "volume.radius_m",
    "cameras": "of one robot",
    "frames_hz": "fused frames of a camera a second",
    "perception_hz": "perceptions a second",
    "robots": "each with its own map",
    "hours": "of driving a day",
}
# for --quick, which measures nothing: round numbers
_ROUND = Coefficients(6e6, 6e5, 5e3, 4e6, 2e3, 0.5, 6e7, 5e8, 6.0, 200.0)


def read(folder: Path) -> Coefficients:
    """Read the files of the benchmarks. Raises ``ValueError`` naming a missing file or figure."""
    found: dict[str, dict[str, Any]] = {}
    for name in FILES:
        path = folder / f"{name}.json"
        found[name] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return Coefficients.read(found)


def main() -> int:
    """Compute, print, write; exit code 1 where a figure is missing."""
    parser = report.parser(__doc__)
    parser.add_argument("--measured", type=Path, default=report.OUT, metavar="DIR", help="where those files are")
    for name, meaning in OPTIONS.items():
        default = getattr(Site, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default, help=meaning)
    options = report.parse(parser)
    try:
        c = _ROUND if options.quick else read(options.measured)
        mine = Site(**{name: getattr(options, name) for name in OPTIONS})
    except ValueError as error:
        report.console.print(f"[red]{error}")
        return 1
    rows = [{"site": name, **sized(c, site)} for name, site in {"yours": mine, **SITES}.items()]
    report.show("measured for one", vars(c))
    report.show("computed", rows)
    report.write(options, {"measured": vars(c), "sites": rows, "m2_in_1_gib": largest_area_m2(c, 2**30, mine)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
