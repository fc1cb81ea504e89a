"""A small scripted world: things made of blocks in a room, cameras in it, and detections that follow the map.

Everything is exact and quick: rays against axis-aligned blocks in the frame of each thing. Things are put in, moved and
taken away while the robot goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import canonical_boxes
from embodied_perceptron.geometry.transforms import Intrinsics, make_transform
from embodied_perceptron.mapping.voxel_counts import count_voxels_explained, without_bottom
from embodied_perceptron.results import Detections, VoxelSnapshot
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame

F64 = NDArray[np.float64]
Block = tuple[tuple[float, float, float], tuple[float, float, float]]  # low and high corner, metres

CAMERA = Intrinsics(85.0, 85.0, 55.5, 41.5, 112, 84)
DEPTH_NOISE = 0.001  # standard deviation at 1 m; grows with the square of depth


@dataclass(eq=False)
class Thing:
    """Blocks in the frame of the thing: origin on the floor below its middle, front towards -y.

    Attributes:
        name: class name.
        blocks: solid parts.
        xy: where it stands, metres.
        yaw: about the vertical, radians.
        z: height that it stands at.
        color: RGB.
    """

    name: str
    blocks: tuple[Block, ...]
    xy: tuple[float, float]
    yaw: float = 0.0
    z: float = 0.0
    color: tuple[int, int, int] = (150, 110, 80)

    def bounds(self) -> tuple[F64, F64]:
        """(3,), (3,) of all blocks in its own frame."""
        return np.min([b[0] for b in self.blocks], axis=0), np.max([b[1] for b in self.blocks], axis=0)

    def turn(self) -> F64:
        """(3, 3) world <- thing."""
        c, s = np.cos(self.yaw), np.sin(self.yaw)
        return np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])

    def box(self) -> F64:
        """(9,) canonical box around it, world frame."""
        low, high = self.bounds()
        center = self.turn() @ ((low + high) / 2) + [*self.xy, self.z]
        return canonical_boxes(np.array([[*center, *(high - low), self.yaw, 0.0, 0.0]]))[0]


def chair(xy: tuple[float, float], yaw: float = 0.0) -> Thing:
    """0.5 x 0.5 x 0.92 m, four legs."""
    legs = [((x - 0.02, y - 0.02, 0.0), (x + 0.02, y + 0.02, 0.43)) for x in (-0.23, 0.23) for y in (-0.23, 0.23)]
    seat, back = ((-0.25, -0.25, 0.43), (0.25, 0.25, 0.48)), ((-0.25, 0.21, 0.48), (0.25, 0.25, 0.92))
    return Thing("chair", (*legs, seat, back), xy, yaw)


def table(xy: tuple[float, float], yaw: float = 0.0) -> Thing:
    """1.4 x 0.8 x 0.74 m, four legs."""
    legs = [((x - 0.03, y - 0.03, 0.0), (x + 0.03, y + 0.03, 0.7)) for x in (-0.65, 0.65) for y in (-0.35, 0.35)]
    return Thing("table", (*legs, ((-0.7, -0.4, 0.7), (0.7, 0.4, 0.74))), xy, yaw, color=(180, 140, 90))


def couch(xy: tuple[float, float], yaw: float = 0.0) -> Thing:
    """2 x 0.9 x 0.85 m."""
    blocks = (((-1.0, -0.45, 0.0), (1.0, 0.45, 0.42)), ((-1.0, 0.25, 0.42), (1.0, 0.45, 0.85)))
    return Thing("couch", blocks, xy, yaw, color=(90, 100, 130))


def block(
    name: str, xy: tuple[float, float], size: tuple[float, float, float], yaw: float = 0.0, z: float = 0.0
) -> Thing:
    """One block, for a cabinet, a bin, a plate."""
    half_x, half_y = size[0] / 2, size[1] / 2
    return Thing(name, (((-half_x, -half_y, 0.0), (half_x, half_y, size[2])),), xy, yaw, z, (110, 110, 120))


def person(xy: tuple[float, float], yaw: float = 0.0) -> Thing:
    """Two legs, a trunk and a head, 1.74 m."""
    legs = (((-0.2, -0.1, 0.0), (-0.04, 0.08, 0.85)), ((0.04, -0.1, 0.0), (0.2, 0.08, 0.85)))
    return Thing("person", (*legs, ((-0.24, -0.13, 0.85), (0.24, 0.12, 1.74))), xy, yaw, color=(160, 60, 60))


def look_at(eye: Sequence[float], target: Sequence[float]) -> F64:
    """(4, 4) T_world_camera of an upright camera, optical frame."""
    z = np.asarray(target, float) - np.asarray(eye, float)
    z /= np.linalg.norm(z)
    x = np.cross(z, [0.0, 0.0, 1.0])
    x /= np.linalg.norm(x)
    return make_transform(np.stack([x, np.cross(z, x), z], axis=1), np.asarray(eye, float))


@dataclass(eq=False)
class World:
    """A closed room with things in it.

    Attributes:
        things: there now.
        low, high: (3,) corners of the room.
        dropout: share of the pixels of depth that are missing, independently.
        seed: of noise.
    """

    things: list[Thing] = field(default_factory=list)
    low: tuple[float, float, float] = (-3.2, -2.8, 0.0)
    high: tuple[float, float, float] = (3.2, 2.8, 2.6)
    dropout: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def frame(self, T_world_camera: F64, stamp_ns: int, k: Intrinsics = CAMERA) -> PosedFrame:
        """What a camera sees now; depth in metres, 0 = missing."""
        u, v = np.meshgrid(np.arange(k.width), np.arange(k.height))
        local = np.stack([(u - k.cx) / k.fx, (v - k.cy) / k.fy, np.ones_like(u, float)], axis=-1).reshape(-1, 3)
        rays = local @ T_world_camera[:3, :3].T
        rays = np.where(np.abs(rays) < 1e-9, 1e-9, rays)
        eye = T_world_camera[:3, 3]
        depth = np.maximum((np.array(self.low) - eye) / rays, (np.array(self.high) - eye) / rays).min(axis=1)
        color = np.full((len(rays), 3), (220, 215, 205), np.uint8)
        for thing in self.things:
            turn = thing.turn()
            origin, towards = turn.T @ (eye - [*thing.xy, thing.z]), rays @ turn
            low, high = thing.bounds()
            near, far = _slab(origin, towards, low, high)
            rows = np.flatnonzero((near < far) & (far > 0) & (near < depth))
            for part_low, part_high in thing.blocks:
                near, far = _slab(origin, towards[rows], np.array(part_low), np.array(part_high))
                hit = (near < far) & (near > 0) & (near < depth[rows])
                depth[rows[hit]] = near[hit]
                color[rows[hit]] = thing.color
        depth = depth + self.rng.normal(0.0, DEPTH_NOISE, len(depth)) * depth**2
        depth[self.rng.random(len(depth)) < self.dropout] = 0.0
        shape = k.height, k.width
        rgbd = RgbdFrame(stamp_ns, "front", color.reshape(*shape, 3), depth.reshape(shape).astype(np.float32), k)
        return PosedFrame(rgbd, T_world_camera)


def _slab(origin: F64, rays: F64, low: F64, high: F64) -> tuple[F64, F64]:
    """(R,), (R,) where rays enter and leave a block."""
    a, b = (low - origin) / rays, (high - origin) / rays
    return np.minimum(a, b).max(axis=1), np.maximum(a, b).min(axis=1)


class ScriptedDetector:
    """Detections as a network would give them that reads the map: a thing is found while its voxels are there.

    Args:
        seed: of noise.
        found_share: probability that a thing is found.
        score: mean of the scores.
        noise_m: of centres and sizes.
    """

    def __init__(self, seed: int = 0, found_share: float = 0.9, score: float = 0.55, noise_m: float = 0.015) -> None:
        self.rng = np.random.default_rng(seed)
        self.found_share, self.score, self.noise_m = found_share, score, noise_m
        self._most: dict[int, int] = {}  # voxels of each thing at one place, when it was seen best
        self._whole: dict[int, int] = {}  # the same of each thing wherever it was
        self._placed: dict[int, tuple[str, F64]] = {}

    def detections(self, things: Sequence[Thing], snapshot: VoxelSnapshot) -> Detections:
        """Of what stands, or has stood, somewhere and is in the map; ``things`` are those that stand there now."""
        for thing in things:
            box = thing.box()
            self._placed[hash((thing.name, *np.round(box, 4).tolist()))] = thing.name, box
        standing = np.array([thing.box() for thing in things]).reshape(-1, 9)
        names, boxes, scores = [], [], []
        for key, (name, box) in self._placed.items():
            now = (np.abs(standing - box) < 1e-9).all(axis=1)
            others = [] if now.any() else list(range(len(standing)))  # what stands there now is no voxel of it
            inside, _, _, taken = count_voxels_explained(
                snapshot, without_bottom(box[None]), 0.0, [others], standing if others else box[None]
            )
            left = int(inside[0] - taken[0])
            self._most[key] = max(self._most.get(key, 0), left)
            shape = hash((name, *np.round(box[3:6], 4).tolist()))
            self._whole[shape] = max(self._whole.get(shape, 0), left)
            there = left >= 8 and left >= 0.5 * self._most[key]
            if not now.any():  # what turned past here left less than a thing that stood: a network tells the two apart
                there = there and left >= 0.35 * self._whole[shape]
            if not there or self.rng.random() > self.found_share:
                continue
            noisy = box.copy()
            noisy[:6] += self.rng.normal(0.0, np.minimum(self.noise_m, 0.1 * box[[3, 4, 5, 3, 4, 5]]))
            names.append(name)
            boxes.append(noisy)
            scores.append(float(np.clip(self.rng.normal(self.score, 0.08), 0.1, 0.9)))
        return Detections(np.array(boxes).reshape(-1, 9), np.array(scores), tuple(names))
