"""Motion of the map when a SLAM system corrects the poses of keyframes.

Each retained keyframe gets a rigid motion ``D = T_new @ inverse(T_old)``; one without a corrected pose moves like the
corrected one nearest in time, since drift is slow. Voxels seen since the oldest retained keyframe are recomputed from
the keyframes; older voxels move rigidly with that keyframe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import (
    check_transform,
    invert_transform,
    pack_keys,
    transform_points,
    unpack_keys,
)
from embodied_perceptron.mapping.keyframes import Keyframe
from embodied_perceptron.mapping.voxels import (
    COLOR,
    EVIDENCE,
    HITS,
    HITS_CAP,
    OFFSET,
    OFFSET_BITS,
    OFFSET_UNITS,
    RECORD,
    VoxelRows,
)

CameraStamp = tuple[str, int]


@dataclass(frozen=True, eq=False)
class Correction:
    """Rigid motions of the world by time.

    Attributes:
        stamps_ns: (K,) int64 of the retained keyframes, ascending.
        motions: (K, 4, 4) old world -> new world.
        corrected: number of keyframes with a corrected pose.
        unknown: names of poses without a retained keyframe.
    """

    stamps_ns: NDArray[np.int64]
    motions: NDArray[np.float64]
    corrected: int
    unknown: tuple[CameraStamp, ...]

    def at(self, stamp_ns: int) -> NDArray[np.float64]:
        """(4, 4) motion at ``stamp_ns``: that of the keyframe nearest in time, on a tie the older."""
        if len(self.stamps_ns) == 0:
            return np.eye(4)
        motion: NDArray[np.float64] = self.motions[int(np.argmin(np.abs(self.stamps_ns - stamp_ns)))]
        return motion


def correct(
    keyframes: Sequence[Keyframe], poses: Mapping[CameraStamp, NDArray[np.float64]]
) -> tuple[list[Keyframe], Correction]:
    """Keyframes at their corrected poses, in the same order, and the motion of the world.

    Raises ``ValueError`` for a pose that is not rigid; names without a keyframe are reported as unknown.
    """
    wanted = {name: check_transform(T, f"pose of {name}") for name, T in poses.items()}
    order = sorted(keyframes, key=lambda k: k.frame.stamp_ns)
    named = [k for k in order if (k.frame.camera, k.frame.stamp_ns) in wanted]
    have = {(k.frame.camera, k.frame.stamp_ns) for k in named}
    unknown = tuple(name for name in wanted if name not in have)
    motion: dict[int, NDArray[np.float64]] = {}
    for k in named:
        motion[k.id] = wanted[k.frame.camera, k.frame.stamp_ns] @ invert_transform(k.T_world_camera)
    known_ns = np.array([k.frame.stamp_ns for k in named], np.int64)
    for k in order:
        if k.id not in motion:
            nearest = named[int(np.argmin(np.abs(known_ns - k.frame.stamp_ns)))] if named else None
            motion[k.id] = np.eye(4) if nearest is None else motion[nearest.id]
    moved = []
    for k in keyframes:
        name = k.frame.camera, k.frame.stamp_ns
        if name in wanted:
            T = wanted[name]
        elif np.array_equal(motion[k.id], np.eye(4)):
            T = k.T_world_camera
        else:
            T = motion[k.id] @ k.T_world_camera
            u, _, vt = np.linalg.svd(T[:3, :3])
            T[:3, :3] = u @ vt  # without the rounding errors of many products
        moved.append(k if np.array_equal(T, k.T_world_camera) else Keyframe(k.id, k.frame, T))
    correction = Correction(
        np.array([k.frame.stamp_ns for k in order], np.int64),
        np.stack([motion[k.id] for k in order]) if order else np.zeros((0, 4, 4)),
        len(named),
        unknown,
    )
    return moved, correction


def move_voxels(rows: VoxelRows, T: NDArray[np.float64], voxel_size_m: float) -> VoxelRows:
    """Stored voxels after a rigid motion ``T`` (4, 4) old world -> new world, on the same grid, sorted, on the CPU.

    A voxel moves as a whole with its mean point; voxels that meet in one place are summed (evidence, stamp: maximum).
    """
    rows = rows.cpu()
    if len(rows) == 0 or np.allclose(T, np.eye(4), atol=1e-12):
        return rows
    records = rows.records.numpy().astype(np.int64)
    hits = records[:, HITS : HITS + 1]
    place = (records[:, OFFSET : OFFSET + 3] / hits + 0.5) / OFFSET_UNITS
    points = transform_points(T, (rows.coords.numpy() + place) * voxel_size_m)
    fixed = np.floor(points * (OFFSET_UNITS / voxel_size_m)).astype(np.int64)
    coords = fixed >> OFFSET_BITS
    records[:, OFFSET : OFFSET + 3] = (fixed & (OFFSET_UNITS - 1)) * hits
    keys, inverse = np.unique(pack_keys(torch.from_numpy(coords)).numpy(), return_inverse=True)
    merged = np.zeros((len(keys), RECORD), np.int64)
    np.add.at(merged, inverse, records)
    merged[:, EVIDENCE] = 0
    np.maximum.at(merged[:, EVIDENCE], inverse, records[:, EVIDENCE])
    while bool((merged[:, HITS] > HITS_CAP).any()):
        full = merged[:, HITS] > HITS_CAP
        merged[full, : COLOR + 3] >>= 1
    last_seen = np.zeros(len(keys), np.int64)
    np.maximum.at(last_seen, inverse, rows.last_seen_ns.numpy())
    return VoxelRows(
        unpack_keys(torch.from_numpy(keys)).int(),
        torch.from_numpy(merged.astype(np.int32)),
        torch.from_numpy(last_seen),
    )
