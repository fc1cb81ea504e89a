"""Views of version 2: a hand-held camera that also bends over objects, or a robot's fixed camera, in walking order.

Pitch, roll and near depth follow two real sequences: roll of 3 to 6 degrees, 22 to 25 degrees down, a fifth of the
pixels nearer than 1.2 m. The first n views of a trajectory give an incomplete map.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import F64, Intrinsics, invert_transform
from embodied_perceptron_training.homes.building.freespace import FreeSpace
from embodied_perceptron_training.homes.rendering.ray_renderer import RayCastRenderer
from embodied_perceptron_training.homes.sensor_model import Carrier, SensorModel
from embodied_perceptron_training.homes.trajectories import camera_pose, visits

MAX_PITCH_RAD, MAX_ROLL_RAD = float(np.deg2rad(30)), float(np.deg2rad(6))
_PROBE = Intrinsics(40.0, 40.0, 31.5, 23.5, 64, 48)
_CLOSE_SHARE = {"hand": 0.24, "robot": 0.28}  # share of views close to an object
_CLOSE_M = {"hand": (0.4, 0.85), "robot": (0.5, 1.0)}  # distance of that object
_NOTHING_NEARER_M = 0.22
_TRIES = 6


def handheld_trajectory(
    space: FreeSpace,
    renderer: RayCastRenderer,
    sensor_model: SensorModel,
    count: int,
    seed: int,
    structure: Collection[int] = (),
) -> F64:
    """(count, 4, 4) true poses ``T_world_camera`` in walking order.

    ``structure``: ids of walls, floors and the like, which get no close views. Raises ``ValueError`` for ``count < 1``.
    """
    if count < 1:
        raise ValueError(f"need at least one view, got {count}")
    rng = np.random.default_rng([seed, 82])
    carrier = sensor_model.carrier
    height = (
        float(rng.uniform(1.35, 1.6)) if carrier == "hand" else float(np.exp(rng.uniform(np.log(0.4), np.log(1.35))))
    )
    pitch = float(np.deg2rad(rng.uniform(17, 28) if carrier == "hand" else rng.uniform(4, 26)))
    lean = float(np.deg2rad(rng.normal(0, 3.0 if carrier == "hand" else 0.5)))
    poses = []
    walk = visits(space, renderer, count, height, rng)
    turns_rad = [float(rng.normal(0, 0.12)) for _ in walk]
    for (place, direction), turn_rad in zip(walk, turns_rad, strict=True):
        yaw = direction + turn_rad
        if carrier == "hand":
            xy = place + rng.normal(0, 0.05, 2)
            z = float(np.clip(height + rng.normal(0, 0.1), 1.0, 1.8))
            down = float(np.clip(pitch + np.deg2rad(rng.normal(0, 6)), 0, MAX_PITCH_RAD))
            roll = float(np.clip(lean + np.deg2rad(rng.normal(0, 3.0)), -MAX_ROLL_RAD, MAX_ROLL_RAD))
        else:
            xy, z, down = place, height, pitch
            roll = float(np.clip(lean + np.deg2rad(rng.normal(0, 0.3)), -MAX_ROLL_RAD, MAX_ROLL_RAD))
        pose = camera_pose((xy[0], xy[1], z), yaw, down, roll)
        if rng.random() < _CLOSE_SHARE[carrier]:
            pose = _nearer(pose, space, renderer, carrier, down, roll, structure, rng)
        poses.append(pose)
    return np.array(poses)


def map_views(count: int, seed: int) -> list[int]:
    """Numbers of first views, 3 .. ``count``, at which a growing map is evaluated; the last is ``count``."""
    rng = np.random.default_rng([seed, 83])
    early = [int(n) for n in rng.integers(min(3, count), count + 1, 2)]
    return sorted({*early, count})


def _nearer(
    pose: F64,
    space: FreeSpace,
    renderer: RayCastRenderer,
    carrier: Carrier,
    down: float,
    roll: float,
    structure: Collection[int],
    rng: np.random.Generator,
) -> F64:
    """A pose close to an object in view of ``pose``, or ``pose`` itself when none is reachable."""
    depth, ids = renderer.ids(_PROBE, pose)
    wanted = (ids > 0) & ~np.isin(ids - 1, list(structure)) & (depth > 0.6) & (depth < 4.5)
    rows, columns = np.nonzero(wanted)
    for _ in range(_TRIES if len(rows) else 0):
        i = int(rng.integers(len(rows)))
        ray = np.array([(columns[i] - _PROBE.cx) / _PROBE.fx, (rows[i] - _PROBE.cy) / _PROBE.fy, 1.0])
        target = pose[:3, :3] @ (ray * float(depth[rows[i], columns[i]])) + pose[:3, 3]
        yaw = float(np.arctan2(*(target - pose[:3, 3])[[1, 0]])) + float(rng.normal(0, 0.05))
        distance = float(rng.uniform(*_CLOSE_M[carrier]))
        ahead = np.array([np.cos(yaw), np.sin(yaw)])
        if carrier == "hand":
            pitch = float(rng.uniform(0.1, MAX_PITCH_RAD))
            eye = target + distance * np.array([*(-ahead * np.cos(pitch)), np.sin(pitch)])
            if not 0.45 < eye[2] < 1.85 or not _in_sight(eye, pose, depth):
                continue
        else:
            pitch = down
            reach = float(ahead @ (target - pose[:3, 3])[:2]) - distance
            eye = np.array([*(pose[:2, 3] + ahead * _free_way(space, pose[:2, 3], ahead, reach)), pose[2, 3]])
        near = camera_pose(eye, yaw, pitch, roll)
        seen = renderer.ids(_PROBE, near)[0]
        if float(np.percentile(seen[seen > 0], 3)) > _NOTHING_NEARER_M and float((seen > 0).mean()) > 0.9:
            return near
    return pose


def _in_sight(eye: F64, pose: F64, depth: NDArray[np.float32]) -> bool:
    """Whether the line from the camera at ``pose``, with measured ``depth``, to ``eye`` is free."""
    T = invert_transform(pose)
    x, y, z = T[:3, :3] @ eye + T[:3, 3]
    if z < 0.1:
        return bool(np.linalg.norm(eye - pose[:3, 3]) < 0.3)
    u, v = round(x / z * _PROBE.fx + _PROBE.cx), round(y / z * _PROBE.fy + _PROBE.cy)
    if not (0 <= u < _PROBE.width and 0 <= v < _PROBE.height):
        return False
    around = depth[max(v - 2, 0) : v + 3, max(u - 2, 0) : u + 3]
    return bool(float(around.min()) > z + 0.08)


def _free_way(space: FreeSpace, start: F64, ahead: F64, reach: float) -> float:
    """Free distance along ``ahead`` for the robot, metres, at most ``reach``."""
    way = 0.0
    while way + 0.05 < reach:
        row, column = space.cell_of(start + ahead * (way + 0.05))
        if (
            not (0 <= row < space.region.shape[0] and 0 <= column < space.region.shape[1])
            or not space.region[row, column]
        ):
            break
        way += 0.05
    return way
