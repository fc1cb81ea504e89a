"""A small furnished room, ray cast from a few boxes, as a recording: known geometry, milliseconds a frame."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from embodied_perceptron.geometry.box_rays import upright_camera, view_boxes
from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.recordings.tum import TumWriter

S = 1_000_000_000
INTRINSICS = Intrinsics(130.0, 130.0, 79.5, 59.5, 160, 120)
# low corner, high corner, colour: floor, walls, a table-high block, a stool, a post, a shelf, a lamp, a bin
BOXES = (
    ((-2.5, -2.0, -0.2), (2.5, 2.0, 0.0), (120, 110, 100)),
    ((2.5, -2.0, 0.0), (2.7, 2.0, 2.4), (200, 200, 190)),
    ((-2.5, 2.0, 0.0), (2.5, 2.2, 2.4), (180, 190, 200)),
    ((0.6, -0.5, 0.0), (1.5, 0.6, 0.74), (150, 80, 40)),
    ((0.2, 1.0, 0.0), (0.6, 1.4, 0.45), (40, 90, 160)),
    ((1.2, -1.3, 0.0), (1.3, -1.2, 1.9), (30, 120, 60)),
    ((1.6, 1.0, 1.0), (1.9, 1.8, 1.3), (160, 40, 60)),
    ((1.6, -0.2, 1.1), (1.8, 0.1, 1.6), (220, 200, 60)),
    ((-0.3, -0.9, 0.0), (0.0, -0.6, 0.4), (90, 40, 120)),
)


def camera_pose(i: int, frames: int) -> np.ndarray:
    """Standing at x = -1.5 to -0.5, looking along +x, 1.2 m high, pitched down, turning a little."""
    t = i / max(1, frames - 1)
    yaw, pitch = 0.5 * (t - 0.3), 0.32
    return upright_camera((-1.5 + t, 0.1 * t, 1.2), yaw, pitch)


def render(T_world_camera: np.ndarray, camera: Intrinsics = INTRINSICS) -> tuple[np.ndarray, np.ndarray]:
    """Exact (H, W, 3) colour with a pattern of 10 cm, and (H, W) float32 depth; +Inf where nothing is hit."""
    depth, points, box = view_boxes(T_world_camera, camera, [(low, high) for low, high, _ in BOXES])
    pattern = 0.92 + 0.08 * ((np.floor(points * 10 + 1e-6).sum(-1) % 2) > 0)
    color = np.array([rgb for *_, rgb in BOXES] + [(0, 0, 0)])[box] * pattern[..., None]
    return color.astype(np.uint8), depth.astype(np.float32)


def frames(count: int) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    """(stamp_ns, color, depth_m, T_world_camera) at 10 Hz."""
    for i in range(count):
        T = camera_pose(i, count)
        yield S + i * S // 10, *render(T), T


def write_recording(folder: Path, count: int = 12, **options: object) -> Path:
    """The room as a TUM folder."""
    with TumWriter(folder, INTRINSICS, **options) as writer:  # type: ignore[arg-type]
        for stamp, color, depth, T in frames(count):
            writer.add(stamp, color, depth, T)
    return folder
