"""Camera trajectories in a home: a differential-drive robot, and hand-held views that cover all objects."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embodied_perceptron.geometry.transforms import F64, Intrinsics, make_transform
from embodied_perceptron_training.homes.assets.mesh import rotation
from embodied_perceptron_training.homes.building.freespace import FreeSpace
from embodied_perceptron_training.homes.rendering.ray_renderer import RayCastRenderer

# optical frame (x right, y down, z forward) in a frame with x forward, y left, z up
R_BODY_OPTICAL = np.array([[0.0, 0.0, 1.0], [-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]])

PROBE = Intrinsics(46.0, 46.0, 31.5, 23.5, 64, 48)  # of renderings that only count visible objects
_PROBE_PIXELS = 8
_DIRECTIONS = 8
_WALL_STARE_M = 1.1  # views with a lower median depth show too little


def rgbd_camera(width: int, height: int) -> Intrinsics:
    """Pinhole camera like that of a usual RGB-D sensor: a focal length of 0.83 widths, about 62 degrees across."""
    f = 0.83 * width
    return Intrinsics(f, f, (width - 1) / 2, (height - 1) / 2, width, height)


@dataclass(frozen=True)
class RobotSpec:
    """Speed of the robot and mounting of its camera.

    Attributes:
        speed_m_s, turn_rad_s: linear and angular speed.
        rest_s: standing time at the end of the drive, at most a tenth of it.
        camera_height_m, camera_forward_m, camera_pitch_rad: the camera on the base (pitch down is positive).
    """

    speed_m_s: float = 0.5
    turn_rad_s: float = 0.8
    rest_s: float = 2.0
    camera_height_m: float = 1.2
    camera_forward_m: float = 0.1
    camera_pitch_rad: float = 0.30

    @property
    def T_base_camera(self) -> F64:  # noqa: N802 - frames in names
        """(4, 4) pose of the camera's optical frame in the base frame (x forward, y left, z up, on the floor)."""
        R = rotation("y", self.camera_pitch_rad) @ R_BODY_OPTICAL
        return make_transform(R, np.array([self.camera_forward_m, 0.0, self.camera_height_m]))


def robot_trajectory(space: FreeSpace, frames: int, rate_hz: float, spec: RobotSpec, seed: int) -> F64:
    """(frames, 4, 4) base poses ``T_world_base`` at ``rate_hz``: look around, drive on, look around, ..., stand.

    Way points are farthest points of the free floor; longer recordings repeat the last lap. At the end the robot stands
    still, so that objects that come into view last are seen more than once.
    """
    if frames < 1 or not rate_hz > 0:
        raise ValueError(f"need frames >= 1 and rate_hz > 0, got {frames} and {rate_hz}")
    rng = np.random.default_rng([seed, 31])
    duration = frames / rate_hz
    stops = space.spread(6, int(rng.integers(len(space.cells()))))
    stops = stops[_nearest_order(stops)]
    states: list[tuple[float, float, float]] = []
    heading = float(rng.uniform(-np.pi, np.pi))
    step = 1.0 / rate_hz
    position = stops[0]
    lap = 0
    while len(states) * step < duration + step:
        turn = 2 * np.pi if lap == 0 else float(rng.choice([-1, 1])) * np.pi * 0.75
        heading = _turn(states, position, heading, heading + turn, spec, step)
        goal = stops[(lap + 1) % len(stops)] if len(stops) > 1 else position
        way = space.path(position, goal)
        heading, position = _follow(states, way, heading, spec, step), way[-1]
        lap += 1
    driving = frames - int(min(spec.rest_s, duration / 10) * rate_hz)
    poses = _poses(states[:driving])
    return np.concatenate([poses, np.repeat(poses[-1:], frames - driving, axis=0)])


@dataclass(frozen=True, eq=False)
class Stop:
    """A (2,) place where the robot stands, and (2,) places at which it looks from there, each for some seconds."""

    xy: F64
    looks: tuple[tuple[F64, float], ...]


def inspection_trajectory(space: FreeSpace, stops: Sequence[Stop], rate_hz: float, spec: RobotSpec) -> F64:
    """(frames, 4, 4) base poses ``T_world_base`` at ``rate_hz``: drive from stop to stop, and stand still for each look
    of a stop. The robot starts at the first stop, as in its first look."""
    states: list[tuple[float, float, float]] = []
    position, step = stops[0].xy, 1.0 / rate_hz
    heading = float(np.arctan2(*(stops[0].looks[0][0] - position)[::-1]))
    for stop in stops:
        way = space.path(position, stop.xy)
        heading, position = _follow(states, way, heading, spec, step), way[-1]
        for place, seconds in stop.looks:
            target = float(np.arctan2(*(place - position)[::-1]))
            heading = _turn(states, position, heading, heading + _wrap(target - heading), spec, step)
            states += [(float(position[0]), float(position[1]), heading)] * round(seconds * rate_hz)
    return _poses(states)


def _poses(states: Sequence[tuple[float, float, float]]) -> F64:
    return np.array([make_transform(rotation("z", yaw), np.array([x, y, 0.0])) for x, y, yaw in states])


def _follow(states: list[tuple[float, float, float]], way: F64, heading: float, spec: RobotSpec, step: float) -> float:
    """Drive along (K, 2) way points; returns the heading at the end."""
    for position, point in itertools.pairwise(way):
        offset = point - position
        target = float(np.arctan2(offset[1], offset[0]))
        heading = _turn(states, position, heading, heading + _wrap(target - heading), spec, step)
        _drive(states, position, point, heading, spec, step)
    return heading


def _nearest_order(points: F64) -> list[int]:
    order = [0]
    while len(order) < len(points):
        rest = [i for i in range(len(points)) if i not in order]
        order.append(min(rest, key=lambda i: float(np.linalg.norm(points[i] - points[order[-1]]))))
    return order


def _wrap(angle: float) -> float:
    return float((angle + np.pi) % (2 * np.pi) - np.pi)


def _turn(
    states: list[tuple[float, float, float]], position: F64, start: float, stop: float, spec: RobotSpec, step: float
) -> float:
    count = int(np.ceil(abs(stop - start) / (spec.turn_rad_s * step)))
    for k in range(1, count + 1):
        states.append((float(position[0]), float(position[1]), start + (stop - start) * k / count))
    return stop


def _drive(
    states: list[tuple[float, float, float]], a: F64, b: F64, heading: float, spec: RobotSpec, step: float
) -> None:
    count = max(1, int(np.ceil(float(np.linalg.norm(b - a)) / (spec.speed_m_s * step))))
    for k in range(1, count + 1):
        p = a + (b - a) * k / count
        states.append((float(p[0]), float(p[1]), heading))


def camera_pose(
    xyz: F64 | tuple[float, float, float], yaw_rad: float, pitch_down_rad: float, roll_rad: float = 0.0
) -> F64:
    """(4, 4) ``T_world_camera`` of an optical frame at ``xyz`` that looks along ``yaw``, tilted down by ``pitch``."""
    R = rotation("z", yaw_rad) @ rotation("y", pitch_down_rad) @ rotation("x", roll_rad) @ R_BODY_OPTICAL
    return make_transform(R, np.asarray(xyz, np.float64))


def look_at(eye: F64, target: F64) -> F64:
    """(4, 4) ``T_world_camera`` at ``eye`` looking at ``target``, upright. Raises ``ValueError`` if they agree."""
    d = np.asarray(target, np.float64) - eye
    if np.linalg.norm(d) < 1e-9:
        raise ValueError(f"cannot look from {np.asarray(eye).tolist()} at itself")
    return camera_pose(eye, float(np.arctan2(d[1], d[0])), float(-np.arctan2(d[2], np.hypot(d[0], d[1]))))


@dataclass(frozen=True, eq=False)
class Station:
    """A place of a trajectory: (x, y), directions from best to worst, and the objects seen in the best one.

    Directions are ranked by visible objects; those towards a near wall come last.
    """

    xy: F64
    yaws_rad: tuple[float, ...]
    sees: frozenset[int]

    @property
    def yaw_rad(self) -> float:
        """The best direction."""
        return self.yaws_rad[0]


def _station(renderer: RayCastRenderer, xy: F64, height_m: float, start_rad: float) -> Station:
    ranked: list[tuple[float, float, frozenset[int]]] = []
    for k in range(_DIRECTIONS):
        yaw = start_rad + 2 * np.pi * k / _DIRECTIONS
        depth, ids = renderer.ids(PROBE, camera_pose((xy[0], xy[1], height_m), yaw, 0.3))
        counts = np.bincount(ids.ravel())
        visible = frozenset((np.nonzero(counts[1:] >= _PROBE_PIXELS)[0]).tolist())
        near = float(np.median(depth)) < _WALL_STARE_M
        ranked.append((-len(visible) + (1000.0 if near else 0.0), yaw, visible))
    ranked.sort(key=lambda entry: entry[:2])
    good = [entry for entry in ranked if entry[0] < 0] or ranked[:1]
    return Station(xy, tuple(yaw for _, yaw, _ in good), ranked[0][2])


def view_stations(
    space: FreeSpace, renderer: RayCastRenderer, candidates: int, rng: np.random.Generator, height_m: float = 1.4
) -> list[Station]:
    """Stations of a traversal (after BEHAVIOR Vision Suite): farthest points of the eroded free map; at each the
    direction with most visible objects; stations without new objects are dropped; ordered by a travelling salesman's
    tour."""
    seen: set[int] = set()
    stations = []
    for xy in space.spread(candidates, int(rng.integers(len(space.cells())))):
        station = _station(renderer, xy, height_m, float(rng.uniform(0, 2 * np.pi)))
        if not station.sees <= seen:
            seen |= station.sees
            stations.append(station)
    order = shortest_path(np.array([s.xy for s in stations]).reshape(-1, 2))
    return [stations[i] for i in order]


def shortest_path(points: F64) -> list[int]:
    """(N, 2) -> order of a short open path from point 0: nearest neighbour, then 2-opt until convergence."""
    n = len(points)
    if n <= 2:
        return list(range(n))
    distance = np.linalg.norm(points[:, None] - points[None], axis=-1)
    order = [0]
    rest = set(range(1, n))
    while rest:
        nearest = min(rest, key=lambda j: (distance[order[-1], j], j))
        order.append(nearest)
        rest.remove(nearest)
    improved = True
    while improved:
        improved = False
        for i in range(1, n - 1):
            for j in range(i + 1, n):
                after = distance[order[j], order[j + 1]] if j + 1 < n else 0.0
                crossed = distance[order[i], order[j + 1]] if j + 1 < n else 0.0
                gain = distance[order[i - 1], order[i]] + after - distance[order[i - 1], order[j]] - crossed
                if gain > 1e-9:
                    order[i : j + 1] = order[i : j + 1][::-1]
                    improved = True
    return order


def visits(
    space: FreeSpace, renderer: RayCastRenderer, count: int, height_m: float, rng: np.random.Generator
) -> list[tuple[F64, float]]:
    """``count`` places (x, y) and directions in walking order: the best directions of all stations first, then the
    second best, ..."""
    stations = view_stations(space, renderer, max(6, count), rng, height_m)
    if not stations:
        stations = [_station(renderer, space.spread(1)[0], height_m, 0.0)]
    ranked = sorted((rank, k) for k, station in enumerate(stations) for rank in range(len(station.yaws_rad)))
    chosen = sorted((k, rank) for rank, k in (ranked * (count // len(ranked) + 1))[:count])
    return [(stations[k].xy, stations[k].yaws_rad[rank]) for k, rank in chosen]


def view_set(space: FreeSpace, renderer: RayCastRenderer, count: int, seed: int) -> F64:
    """(count, 4, 4) hand-held views in the order of a trajectory: the best direction of each station, then other
    directions of the same stations."""
    if count < 1:
        raise ValueError(f"need at least one view, got {count}")
    rng = np.random.default_rng([seed, 51])
    poses = []
    for xy, yaw in visits(space, renderer, count, 1.4, rng):
        yaw += float(rng.normal(0, 0.08))
        x, y = xy + rng.normal(0, 0.03, 2)
        height = float(np.clip(rng.normal(1.45, 0.12), 1.1, 1.75))
        poses.append(camera_pose((x, y, height), yaw, float(rng.uniform(0.1, 0.45)), float(rng.normal(0, 0.03))))
    return np.array(poses)
