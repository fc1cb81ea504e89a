"""A differential-drive robot that tours a home: base poses over time, and the camera that rides on it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry import make_transform
from embodied_perceptron_training.synthetic.freespace import FreeSpace
from embodied_perceptron_training.synthetic.mesh import rotation

F64 = NDArray[np.float64]

# optical frame (x right, y down, z forward) in a frame with x forward, y left, z up
R_BODY_OPTICAL = np.array([[0.0, 0.0, 1.0], [-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]])


@dataclass(frozen=True)
class RobotSpec:
    """Size and speed of the robot and the place of its camera.

    Attributes:
        speed_m_s, turn_rad_s: how it drives.
        rest_s: how long it stands at the end of its drive, at most a tenth of it.
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


def robot_tour(space: FreeSpace, frames: int, rate_hz: float, spec: RobotSpec, seed: int) -> F64:
    """(frames, 4, 4) base poses ``T_world_base`` at ``rate_hz``: look around, drive on, look around, ..., stand.

    Way points are farthest points of the free floor; the last lap repeats when the recording is longer than the tour.
    At the end the robot stands while its camera goes on: what comes into view last is seen more than once.
    """
    if frames < 1 or not rate_hz > 0:
        raise ValueError(f"need frames >= 1 and rate_hz > 0, got {frames} and {rate_hz}")
    rng = np.random.default_rng([seed, 31])
    duration = frames / rate_hz
    stops = space.spread(6, int(rng.integers(len(space.cells()))))
    stops = stops[_nearest_order(stops)]
    # start where there is room to look around
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
        for point in way[1:]:
            offset = point - position
            target = float(np.arctan2(offset[1], offset[0]))
            heading = _turn(states, position, heading, heading + _wrap(target - heading), spec, step)
            _drive(states, position, point, heading, spec, step)
            position = point
        lap += 1
    driving = frames - int(min(spec.rest_s, duration / 10) * rate_hz)
    poses = np.array([make_transform(rotation("z", yaw), np.array([x, y, 0.0])) for x, y, yaw in states[:driving]])
    return np.concatenate([poses, np.repeat(poses[-1:], frames - driving, axis=0)])


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
