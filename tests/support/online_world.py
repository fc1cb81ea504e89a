"""A small textured world, cameras in it, and networks for the tests of the online algorithm."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from numpy.typing import NDArray
from support.small_networks import small_config, small_network

from embodied_perceptron.config import (
    KeyframeConfig,
    NetworkOptions,
    ObjectsConfig,
    PerceptronConfig,
    ScorePolicy,
    SegmentationConfig,
    VolumeConfig,
)
from embodied_perceptron.geometry.box_rays import view_boxes
from embodied_perceptron.geometry.transforms import Intrinsics, make_transform
from embodied_perceptron.inference.predictor import Predictor
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame

K = Intrinsics(30.0, 30.0, 23.5, 17.5, 48, 36)
CLASSES = ("chair", "table", "lamp", "bed")
CELLS = ("floor", "wall", "chair")
ROOM = (np.array([-2.0, -2.0, 0.0]), np.array([2.0, 2.0, 2.4]))
BOXES = (
    (np.array([0.9, -0.4, 0.0]), np.array([1.5, 0.4, 0.7])),
    (np.array([-1.4, 0.6, 0.0]), np.array([-0.8, 1.2, 0.5])),
)
Boxes = tuple[tuple[NDArray[np.float64], NDArray[np.float64]], ...]


def look_at(eye, target) -> NDArray[np.float64]:
    z = np.asarray(target, float) - eye
    z /= np.linalg.norm(z)
    x = np.cross(z, [0, 0, 1.0])
    x /= np.linalg.norm(x)
    return make_transform(np.stack([x, np.cross(z, x), z], axis=1), np.asarray(eye, float))


def photograph(T: NDArray[np.float64], stamp_ns: int, boxes: Boxes = BOXES, camera: str = "front") -> PosedFrame:
    """A room with boxes in it; colours vary from place to place."""
    depth, points, _ = view_boxes(T, K, boxes, ROOM)
    color = (127 + 120 * np.sin(points * [3.1, 4.3, 5.7] + [0, 1, 2])).astype(np.uint8)
    return PosedFrame(RgbdFrame(stamp_ns, camera, color, depth.astype(np.float32), K), T)


def walk(seed: int, count: int, cameras: int = 1, boxes: Boxes = BOXES) -> list[PosedFrame]:
    """Frames from random places that look at random places, each camera by itself."""
    rng = np.random.default_rng(seed)
    frames = []
    for i in range(count):
        eye = np.array([*rng.uniform(-0.7, 0.7, 2), rng.uniform(0.9, 1.6)])
        target = np.array([*rng.uniform(-1.8, 1.8, 2), rng.uniform(0.0, 0.8)])
        camera = ("front", "left", "rear")[int(rng.integers(cameras))]
        frames.append(photograph(look_at(eye, target), 200_000_000 * (i + 1), boxes, camera))
    return frames


def config(
    max_count: int = 8, window_m: float = 2.56, features: str = "float32", device: str = "cpu"
) -> PerceptronConfig:
    return PerceptronConfig(
        volume=VolumeConfig(voxel_size_m=0.04, max_blocks=4000, min_hits=1, device=device),
        keyframes=KeyframeConfig(max_count=max_count, min_interval_s=0.0),
        objects=ObjectsConfig(SegmentationConfig(min_cells=8)),
        network=NetworkOptions(window_m=window_m, features=features),  # type: ignore[arg-type]
    )


def inference(
    features: str = "float32", modality: str = "rgbd", min_score: float = 0.0, device: str = "cpu"
) -> Predictor:
    small = small_config("all", modality)  # type: ignore[arg-type]
    # few boxes: random weights see things everywhere
    few = dataclasses.replace(small.detection, min_score=0.3, max_per_level=30)  # type: ignore[type-var]
    network = small_network(dataclasses.replace(small, detection=few)).to(device)
    dtype = torch.float32 if features == "float32" else torch.float16
    return Predictor(network, CLASSES, CELLS, feature_dtype=dtype, scores=ScorePolicy(min_score))


def perceptron(max_count: int = 8, window_m: float = 2.56, features: str = "float32") -> Perceptron:
    return Perceptron(config(max_count, window_m, features), inference=inference(features))
