"""Compile and load everything before the first frame comes, so that it does not wait for a compiler."""

from __future__ import annotations

import dataclasses

import numpy as np

from embodied_perceptron.config import PerceptronConfig
from embodied_perceptron.frame import PosedFrame, RgbdFrame
from embodied_perceptron.geometry import Intrinsics
from embodied_perceptron.perceptron import Perceptron


def warm_up(config: PerceptronConfig) -> None:
    """Run a small scene through a throw-away perceptron of the same configuration."""
    small = dataclasses.replace(config, volume=dataclasses.replace(config.volume, max_blocks=4096))
    perceptron = Perceptron(small)
    width, height = 64, 48
    intrinsics = Intrinsics(50.0, 50.0, 31.5, 23.5, width, height)
    # level, one metre above a floor that the lower half of the image sees, a wall behind it
    T_world_camera = np.array([[0.0, 0, 1, 0], [-1, 0, 0, 0], [0, -1, 0, 1], [0, 0, 0, 1]])
    rows = np.arange(height)[:, None] - 23.5
    floor_m = np.where(rows > 0, 50.0 / np.maximum(rows, 1e-3), np.inf)
    reach_m = 0.5 * (config.volume.min_range_m + config.volume.max_range_m)
    depth_m = np.broadcast_to(np.minimum(floor_m, reach_m), (height, width)).astype(np.float32)
    color = np.zeros((height, width, 3), np.uint8)
    depth_m = np.ascontiguousarray(depth_m)
    for stamp_ns in range(1, 2 * config.volume.min_hits + 2):
        # kernels are compiled once for images that share a message's memory (read-only), once for converted ones
        color.setflags(write=stamp_ns % 2 == 0)
        perceptron.integrate(PosedFrame(RgbdFrame(stamp_ns, "warm_up", color, depth_m, intrinsics), T_world_camera))
    perceptron.perceive()
