"""Random motion of a whole scene: points, boxes and cameras together, so that every sample has another start of a
robot's odometry.

A motion is an optional mirror, a turn about gravity, a scale and a shift. Images are not changed: a camera in a moved
world is the same camera with another projection, so features of its image stay exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Motion:
    """``p -> shift + Rz(yaw) S M p`` with ``M`` the mirror of x, ``S`` the scale."""

    yaw_rad: float = 0.0  # about z
    mirrored: bool = False  # x -> -x first; exchanges left and right in sentences
    scale: float = 1.0  # of the whole world
    shift_m: tuple[float, float, float] = (0.0, 0.0, 0.0)  # (3,) added last

    @property
    def matrix(self) -> F64:
        """(4, 4) moved <- original; not rigid when mirrored or scaled."""
        c, s = math.cos(self.yaw_rad), math.sin(self.yaw_rad)
        T = np.eye(4)
        T[:3, :3] = np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]]) * self.scale
        if self.mirrored:
            T[:3, 0] *= -1.0
        T[:3, 3] = self.shift_m
        return T

    def points(self, points_m: NDArray[np.floating]) -> F64:
        """(N, 3) -> (N, 3)."""
        T = self.matrix
        moved: F64 = points_m.astype(np.float64) @ T[:3, :3].T + T[:3, 3]
        return moved

    def boxes(self, boxes: F64) -> F64:
        """(G, 9) -> (G, 9). A mirrored box has its first and third angle negated: Rz(a) Rx(b) Ry(g) becomes Rz(-a)
        Rx(b) Ry(-g) between two mirrors of x, and the box itself is symmetric."""
        moved: F64 = boxes.copy()
        moved[:, :3] = self.points(boxes[:, :3])
        moved[:, 3:6] *= self.scale
        if self.mirrored:
            moved[:, 6] *= -1.0
            moved[:, 8] *= -1.0
        moved[:, 6] += self.yaw_rad
        return moved

    def projection(self, projection: F64) -> F64:
        """(3, 4) of a camera in the original world -> of the same image in the moved world; depths do not change."""
        moved: F64 = projection @ np.linalg.inv(self.matrix)
        return moved

    def back(self, points_m: F64) -> F64:
        """(N, 3) moved -> original."""
        T = np.linalg.inv(self.matrix)
        points: F64 = points_m @ T[:3, :3].T + T[:3, 3]
        return points


@dataclass(frozen=True)
class MotionRange:
    """Distribution of motions."""

    yaw_rad: float = math.pi  # turns are uniform in [-yaw_rad, yaw_rad]; pi = any
    mirror: float = 0.5  # probability of a flip along x
    mirror_y: float = 0.0  # probability of a flip along y: the mirror of x and half a turn
    scale: float = 0.1  # factor uniform in [1 - scale, 1 + scale]
    shift_m: float = 20.0  # horizontal shift, uniform in a square of this half size
    floor_m: float = 0.5  # vertical shift, uniform: where the grid cuts the floor
    shift_sigma_m: float = 0.0  # additional normal shift per axis (the paper's 0.1)
    quarter_turns: bool = False  # add a random number of quarter turns

    def draw(self, rng: np.random.Generator) -> Motion:
        """Draw one motion."""
        x, y = rng.uniform(-self.shift_m, self.shift_m, 2)
        z = rng.uniform(-self.floor_m, self.floor_m)
        dx, dy, dz = rng.normal(0.0, self.shift_sigma_m, 3) if self.shift_sigma_m else (0.0, 0.0, 0.0)
        yaw_rad = float(rng.uniform(-self.yaw_rad, self.yaw_rad))
        if self.quarter_turns:
            yaw_rad += int(rng.integers(4)) * math.pi / 2
        mirrored = bool(rng.random() < self.mirror)
        if self.mirror_y and rng.random() < self.mirror_y:
            mirrored, yaw_rad = not mirrored, yaw_rad + math.pi
        return Motion(
            yaw_rad,
            mirrored,
            float(rng.uniform(1.0 - self.scale, 1.0 + self.scale)),
            (float(x + dx), float(y + dy), float(z + dz)),
        )


# the grid frame at inference is aligned with the walls: an error of a few degrees and four directions remain
ALIGNED_MOTION = MotionRange(yaw_rad=math.radians(4.0), quarter_turns=True)
MOTIONS = {"aligned": ALIGNED_MOTION, "any": MotionRange()}  # by the name of option ``turns``
