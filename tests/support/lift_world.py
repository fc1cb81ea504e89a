"""A room with a table, a cup, chairs, a carpet and a picture; a camera, and a 2-D detector that knows what is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from support.online_world import look_at

from embodied_perceptron.config import KeyframeConfig, NetworkOptions, ObjectsConfig, PerceptronConfig, VolumeConfig
from embodied_perceptron.detection2d.detections2d import Detections2d, accept_detections
from embodied_perceptron.geometry.box_rays import view_boxes
from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame

K = Intrinsics(240.0, 240.0, 159.5, 119.5, 320, 240)
ROOM = (np.array([-2.0, -2.0, 0.0]), np.array([2.0, 2.0, 2.4]))
Part = tuple[tuple[float, float, float], tuple[float, float, float]]  # low and high corner

TABLE_BOX = np.array([0.6, 0.0, 0.37, 1.4, 0.8, 0.74, np.pi / 2, 0, 0])
CUP_BOX = np.array([0.4, 0.1, 0.79, 0.08, 0.08, 0.1, 0, 0, 0])


def no_detections(camera: str, stamp_ns: int) -> Detections2d:
    """The detections of an image in which nothing was found."""
    return Detections2d(camera, stamp_ns, np.zeros((0, 4)), np.zeros(0), ())


def _table(x: float, y: float) -> list[Part]:
    legs = [
        ((x + sx * 0.35 - 0.03, y + sy * 0.65 - 0.03, 0.0), (x + sx * 0.35 + 0.03, y + sy * 0.65 + 0.03, 0.7))
        for sx in (-1, 1)
        for sy in (-1, 1)
    ]
    return [((x - 0.4, y - 0.7, 0.7), (x + 0.4, y + 0.7, 0.74)), *legs]


THINGS: dict[str, list[Part]] = {
    "table": _table(0.6, 0.0),
    "cup": [((0.36, 0.06, 0.74), (0.44, 0.14, 0.84))],
    "chair": [((-1.2, 0.9, 0.0), (-0.75, 1.35, 0.45)), ((-1.2, 1.3, 0.45), (-0.75, 1.35, 0.9))],
    "carpet": [((-1.5, -1.6, 0.0), (0.0, -0.6, 0.012))],
    "picture": [((1.97, -0.9, 1.3), (2.0, -0.3, 1.7))],
}


def photograph(
    T: NDArray[np.float64], stamp_ns: int, things: Mapping[str, list[Part]] = THINGS, camera: str = "front"
) -> tuple[PosedFrame, NDArray[np.int64]]:
    """The picture, and (H, W) which of ``things`` each pixel shows; -1 = the room."""
    parts = [(number, part) for number, parts in enumerate(things.values()) for part in parts]
    depth, points, part = view_boxes(T, K, [corners for _, corners in parts], ROOM)
    shown = np.append([number for number, _ in parts], -1)[part]
    color = (127 + 120 * np.sin(points * [3.1, 4.3, 5.7] + [0, 1, 2])).astype(np.uint8)
    return PosedFrame(RgbdFrame(stamp_ns, camera, color, depth.astype(np.float32), K), T), shown


def around(count: int = 8) -> list[NDArray[np.float64]]:
    """Poses around the room that look at its middle, the table in view."""
    angle = np.linspace(0.6, 2 * np.pi + 0.6, count, endpoint=False)
    eyes = [np.array([1.6 * np.cos(a), 1.6 * np.sin(a), 1.5]) for a in angle]
    return [look_at(eye, [0.3, 0.05, 0.4]) for eye in eyes]


def boxes_of(shown: NDArray[np.int64], names: list[str], min_pixels: int = 40) -> list[tuple[str, list[float]]]:
    """Name and left, top, right, bottom (edges of pixels) of everything that is shown."""
    found = []
    for number, name in enumerate(names):
        rows, columns = np.nonzero(shown == number)
        if len(rows) >= min_pixels:
            edges = [columns.min() - 0.5, rows.min() - 0.5, columns.max() + 0.5, rows.max() + 0.5]
            found.append((name, [float(e) for e in edges]))
    return found


Answer = Callable[[RgbdFrame, list[tuple[str, list[float]]]], list[tuple[str, list[float], float]]]


def perfect(_: RgbdFrame, shown: list[tuple[str, list[float]]]) -> list[tuple[str, list[float], float]]:
    """Everything, by name, surely."""
    return [(name, box, 0.9) for name, box in shown]


@dataclass
class KnowingDetector:
    """Answers from what the pictures show; ``answer`` may make mistakes."""

    shown: dict[int, NDArray[np.int64]]  # by stamp
    answer: Answer = perfect
    names: tuple[str, ...] = tuple(THINGS)
    calls: int = 0

    @property
    def vocabulary(self) -> frozenset[str]:
        return frozenset(self.names)

    def detect(self, frame: RgbdFrame) -> tuple[Detections2d, Counter[str]]:
        self.calls += 1
        said = self.answer(frame, boxes_of(self.shown[frame.stamp_ns], list(self.names)))
        boxes = np.array([box for _, box, _ in said]).reshape(-1, 4)
        return accept_detections(
            frame.camera,
            frame.stamp_ns,
            boxes,
            np.array([s for *_, s in said]),
            [n for n, *_ in said],
            (K.width, K.height),
        )


def config() -> PerceptronConfig:
    return PerceptronConfig(
        volume=VolumeConfig(voxel_size_m=0.02, max_blocks=20_000, min_hits=1),
        keyframes=KeyframeConfig(min_interval_s=0.0, max_count=20),
        objects=ObjectsConfig(),
        network=NetworkOptions(weights=""),
    )


def tour(
    count: int = 8, things: Mapping[str, list[Part]] = THINGS
) -> tuple[list[PosedFrame], dict[int, NDArray[np.int64]]]:
    """Frames around the room, and what their pixels show by stamp."""
    frames, shown = [], {}
    for i, T in enumerate(around(count)):
        posed, seen = photograph(T, (i + 1) * 500_000_000, things)
        frames.append(posed)
        shown[posed.frame.stamp_ns] = seen
    return frames, shown
