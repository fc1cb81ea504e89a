"""From messages to posed frames: time of every step between a camera's bytes and the map, on one core.

    python benchmarks/stream.py           # table, and out/bench/stream.json

640 x 480 colour and depth. Everything here happens before fusion starts; the sum of one frame's steps is what the
stream costs beside the map.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import _report as report
import numpy as np

from embodied_perceptron.config import SynchronizerConfig
from embodied_perceptron.geometry.transforms import Intrinsics, make_transform, quaternion_to_rotation
from embodied_perceptron.recordings.image_codec import decode_color_file as decode_jpeg
from embodied_perceptron.recordings.image_codec import decode_depth_file as decode_png
from embodied_perceptron.recordings.image_codec import decode_image, encode_color_file, encode_depth_file
from embodied_perceptron.sensors.camera_model import CameraModel
from embodied_perceptron.sensors.frame import canonical_depth
from embodied_perceptron.sensors.poses import TransformTree, TreePoses
from embodied_perceptron.sensors.synchronizer import RgbdSynchronizer

WIDTH, HEIGHT = 640, 480
INTRINSICS = Intrinsics(525.0, 525.0, 319.5, 239.5, WIDTH, HEIGHT)
MS = 1_000_000


def median_ms(call: Callable[[], Any], repeats: int) -> float:
    """Milliseconds; the first call is not counted."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times)) * 1e3


def smooth_images() -> tuple[np.ndarray, np.ndarray]:
    """Colour and depth that compress about as well as real ones."""
    v, u = np.mgrid[:HEIGHT, :WIDTH]
    noise = np.random.default_rng(0).normal(0, 6, (HEIGHT, WIDTH, 1))
    color = np.clip(128 + 90 * np.sin(u / 37)[..., None] * (1, 0.7, 0.4) + noise, 0, 255).astype(np.uint8)
    depth = (1500 + 700 * np.sin(u / 90) + v + np.random.default_rng(1).integers(0, 4, u.shape)).astype(np.uint16)
    depth[:, :20] = 0
    return color, depth


class Robot:
    """map -> odom -> base -> camera, 50 Hz, and an assembler that looks its poses up there."""

    def __init__(self, model: CameraModel) -> None:
        self.tree = TransformTree()
        self.assembler = RgbdSynchronizer(SynchronizerConfig(), TreePoses(self.tree, "odom", {"camera": "optical"}))
        self.tree.insert_static("base", "optical", np.eye(4))
        self.model = model
        self.now = 0

    def transforms(self) -> None:
        """What arrives between two frames at 30 Hz."""
        for step in (0, 20 * MS):
            half = 1e-11 * (self.now + step)
            T = make_transform(quaternion_to_rotation(np.array([0, 0, np.sin(half), np.cos(half)])), np.zeros(3))
            self.tree.insert("odom", "base", self.now + step, T)
            self.tree.insert("map", "odom", self.now + step, np.eye(4))

    def frame(self, color: np.ndarray, depth_m: np.ndarray) -> None:
        """One frame in, one posed frame out."""
        self.now += 33 * MS
        self.transforms()
        stamp = self.now + 10 * MS  # between two transforms
        self.assembler.add_camera_info("camera", stamp, self.model, self.now)
        self.assembler.add_color("camera", stamp, color, self.now)
        self.assembler.add_depth("camera", stamp, depth_m, self.now)
        if len(self.assembler.poll(self.now)) != 1:
            raise RuntimeError(f"no frame: {self.assembler.take_drops()}")


def measure(repeats: int) -> dict[str, float]:
    """Milliseconds by step."""
    color, depth = smooth_images()
    metres = canonical_depth(depth, "16UC1")
    raw_color, raw_depth = color.tobytes(), depth.tobytes()
    raw_metres = metres.tobytes()
    jpeg, png = encode_color_file(color, ".jpg"), encode_depth_file(depth)
    plain = CameraModel(INTRINSICS)
    distorted = CameraModel(INTRINSICS, "plumb_bob", (0.1, -0.05, 0.001, 0.001, 0.0))
    steps: dict[str, Callable[[], Any]] = {
        "decode rgb8": lambda: decode_image(HEIGHT, WIDTH, "rgb8", 3 * WIDTH, 0, raw_color),
        "decode bgr8": lambda: decode_image(HEIGHT, WIDTH, "bgr8", 3 * WIDTH, 0, raw_color),
        "decode JPEG": lambda: decode_jpeg(jpeg),
        "decode 16UC1 to metres": lambda: canonical_depth(
            decode_image(HEIGHT, WIDTH, "16UC1", 2 * WIDTH, 0, raw_depth), "16UC1"
        ),
        "decode 32FC1 to metres": lambda: canonical_depth(
            decode_image(HEIGHT, WIDTH, "32FC1", 4 * WIDTH, 0, raw_metres), "32FC1"
        ),
        "decode PNG to metres": lambda: canonical_depth(decode_png(png), "16UC1"),
        "rectify colour and depth": lambda: distorted.rectify(color, metres),
    }
    result = {name: median_ms(call, repeats) for name, call in steps.items()}
    robot = Robot(plain)
    assemble = "4 transforms in, pair, look up pose, build frame"
    result[assemble] = median_ms(lambda: robot.frame(color, metres), repeats)
    parts = ("decode rgb8", "decode 16UC1 to metres", assemble)
    result["one frame in all (rgb8, 16UC1)"] = sum(result[part] for part in parts)
    return result


def main() -> int:
    """Measure, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--repeats", type=int, default=60)
    options = report.parse(parser, repeats=3)
    figures = {"repeats": options.repeats, "ms": measure(options.repeats)}
    report.show(f"stream, {WIDTH} x {HEIGHT}, one core, median", figures)
    report.write(options, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
