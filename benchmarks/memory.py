"""Memory of a map: bytes per square metre, keyframe, object and kept state of the network, in simulated rooms.

    python benchmarks/memory.py                    # table, and out/bench/memory.json
    python benchmarks/memory.py --rooms 8          # a longer tour

A robot drives through rooms of known floor area and perceives. Then all objects that the map references are counted,
each array once. Voxels are counted twice, as arrays of the map with its copies and as blocks, so that a missed share
shows. The second half of the tour is spilled to the disk. The figures of 2,000 m2 are computed (benchmarks/scaling.py).
"""

from __future__ import annotations

import gc
import sys
import tempfile
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import _report as report
import numpy as np
from scaling import MIB, Coefficients, Site, largest_area_m2, sized

import embodied_perceptron  # noqa: F401  (sets the OpenMP waiting policy, before torch loads)

# isort: split
import torch
from online import ROOM_M, again, frames_of, network

from embodied_perceptron.config import NetworkOptions, PerceptronConfig, SpillConfig, VolumeConfig
from embodied_perceptron.mapping.volume import warm_up
from embodied_perceptron.perceptron import Perceptron

BUDGET_BYTES = 2**30
CLOSE_M = 5.5  # just larger than the reach of the cameras and of the network's window
_CODE = type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType


def held_bytes(roots: Iterable[Any], besides: Iterable[Any] = ()) -> int:
    """Bytes of all arrays, tensor storages and Python objects that are reachable from some objects and not from others.

    Each is counted once; classes, functions and networks are left out."""
    seen: set[int] = set()
    _walk(besides, seen)
    return _walk(roots, seen)


def _walk(roots: Iterable[Any], seen: set[int]) -> int:
    total, left = 0, list(roots)
    while left:
        thing = left.pop()
        if isinstance(thing, (*_CODE, torch.nn.Module)) or id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, np.ndarray):
            while isinstance(thing.base, np.ndarray):
                thing = thing.base
            if thing.base is None and thing.ctypes.data not in seen:
                seen.add(thing.ctypes.data)
                total += thing.nbytes
            continue
        if isinstance(thing, torch.Tensor):
            storage = thing.untyped_storage()
            if storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                total += storage.nbytes()
            continue
        total += sys.getsizeof(thing)
        left += gc.get_referents(thing)
    return total


def drive(it: Perceptron, rooms: int, poses: int) -> None:
    """Drive one lap through the rooms and perceive at every fifth frame."""
    for i, frame in enumerate(frames_of(rooms, poses), 1):
        it.integrate(again(frame, 200_000_000 * i))
        if i % 5 == 0:
            it.perceive()


def measure(rooms: int, poses: int, weights: str) -> dict[str, Any]:
    """Counts and bytes after one lap."""
    inference, name = network(weights, NetworkOptions.precision)
    warm_up()
    before = report.resident_bytes()
    area_m2 = rooms * ROOM_M[0] * ROOM_M[1]
    config = PerceptronConfig(volume=VolumeConfig(radius_m=1e4, device="cpu"))
    it = Perceptron(config, inference=inference)
    drive(it, rooms, poses)
    s, volume = it.statistics(), it.volume
    blocks = 512 * (8 * 4 + 8) * s.blocks
    copies = held_bytes([volume._map._copies, volume._site_cache])  # type: ignore[attr-defined]
    assert it._window is not None
    objects = it.map._objects
    features = 0 if volume.features is None else volume.features.nbytes
    rows: dict[str, Any] = {
        "weights": name,
        "rooms": rooms,
        "area_m2": area_m2,
        "blocks_per_m2": s.blocks / area_m2,
        "voxels_per_m2": s.voxels / area_m2,
        "objects_per_m2": len(objects) / area_m2,
        "keyframes": s.keyframes,
        "bytes": {
            "per_m2_of_voxels": blocks / area_m2,
            "per_m2_of_copies": copies / area_m2,
            "per_m2_of_map": (blocks + copies) / area_m2,
            "per_keyframe": (volume.keyframes.nbytes + features) / max(s.keyframes, 1) * 4.0,  # 320 x 240 -> 640 x 480
            "per_object": held_bytes([objects]) / max(len(objects), 1),
            "labelled_cells_per_m2": held_bytes([it.map._semantic]) / area_m2,
            "network_state": held_bytes([it._window.memory, it._window.last], [volume, *volume.keyframes]),
            "process": before,
        },
        "resident_mib": report.resident_bytes() / MIB,
    }
    rows["bytes"] |= left_behind(rooms, poses, area_m2)
    return rows


def left_behind(rooms: int, poses: int, area_m2: float) -> dict[str, float]:
    """Counts and bytes of the same lap after all blocks were spilled."""
    with tempfile.TemporaryDirectory() as folder:
        volume = VolumeConfig(radius_m=10.0, device="cpu")
        it = Perceptron(PerceptronConfig(volume=volume, network=NetworkOptions("none"), spill=SpillConfig(folder)))
        frames = frames_of(rooms, poses)
        for i, frame in enumerate(frames, 1):
            it.integrate(again(frame, 200_000_000 * i))
        far = again(frames[0], 200_000_000 * (poses + 1))
        T = far.T_world_camera.copy()
        T[0, 3] += 500.0
        it.integrate(type(far)(far.frame, T))
        spill = it.volume._spill
        assert spill is not None
        spill.flush()
        on_disk = sum(path.stat().st_size for path in Path(folder).rglob("*.safetensors"))
        index = held_bytes([segment.keys for segment in spill._segments] + [s.coords for s in spill._segments])
        written = sum(segment.nbytes for segment in spill._segments)
        share = written / max(spill.nbytes, 1)  # the last segment is not full
        spill.close()
    return {"per_m2_on_disk": on_disk / share / area_m2, "per_m2_of_index": index / share / area_m2}


def main() -> int:
    """Measure, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--weights", default="", help="a shipped name or a file")
    parser.add_argument("--rooms", type=int, default=4, help="of a lap")
    parser.add_argument("--poses", type=int, default=100, help="of a lap")
    options = report.parse(parser, rooms=1, poses=10)
    torch.set_num_threads(1)
    found = measure(options.rooms, options.poses, options.weights)
    flat = {f"bytes.{key}": value for key, value in found["bytes"].items()}
    times = {"fusion": {"ours_ms": 0.0}, "online": {"rates.perceive_cpu_ms": 0.0}}  # irrelevant here
    c = Coefficients.read({"memory": flat | {"objects_per_m2": found["objects_per_m2"]}, **times})
    usual, close, whole = (Site(2_000.0, radius_m=radius_m) for radius_m in (10.0, CLOSE_M, 1e4))
    found["computed"] = {
        "map_mib_of_2000_m2": sized(c, usual)["map_mib"],
        f"map_mib_of_2000_m2_with_radius_{CLOSE_M:g}_m": sized(c, close)["map_mib"],
        "map_mib_of_2000_m2_without_the_disk": sized(c, whole)["map_mib"],
        "disk_mib_of_2000_m2": sized(c, usual)["disk_mib"],
        "m2_in_1_gib_without_the_disk": largest_area_m2(c, BUDGET_BYTES, whole),
        f"m2_in_1_gib_with_radius_{CLOSE_M:g}_m": largest_area_m2(c, BUDGET_BYTES, close),
    }
    goal = report.goal(
        f"map of 2,000 m2 in 1 GiB, radius {CLOSE_M:g} m, computed", sized(c, close)["map_mib"], most=BUDGET_BYTES / MIB
    )
    found["goals"] = [goal]
    report.show("memory of a map, bytes", found["bytes"])
    report.show("memory of 2,000 m2, computed from these", found["computed"])
    report.show("goals", found["goals"])
    report.write(options, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
