"""The deployed algorithm under evaluation, and how its answers are read at the benchmark's places."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.config import KeyframeConfig, PerceptronConfig
from embodied_perceptron.nn.inference import NetworkInference
from embodied_perceptron.nn.live import Sight
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import Perception, SemanticVoxels

F64 = NDArray[np.float64]
EVERYWHERE = math.inf  # window of a look at the whole scene
_RADIUS_M = 1000.0  # nothing of a scene is forgotten


def evaluation_config(views: int, window_m: float = 6.4, base: PerceptronConfig | None = None) -> PerceptronConfig:
    """``base`` with every view kept as a keyframe, nothing evicted, and objects confirmed by one look.

    A benchmark's views are few and far apart, and the whole scene is looked at once.
    """
    base = PerceptronConfig() if base is None else base
    return dataclasses.replace(
        base,
        volume=dataclasses.replace(base.volume, radius_m=_RADIUS_M),
        keyframes=KeyframeConfig(translation_m=1e-9, rotation_rad=1e-9, min_interval_s=0.0, max_count=max(views, 1)),
        objects=dataclasses.replace(base.objects, confirm_count=1),
        network=dataclasses.replace(base.network, window_m=window_m, all_boxes=True),
    )


def scene_perceptron(inference: NetworkInference, views: int, window_m: float = 6.4) -> Perceptron:
    """A perceptron for one scene of so many views."""
    return Perceptron(evaluation_config(views, window_m), inference=inference)


def cells_at(points_m: F64, semantic: SemanticVoxels | None) -> NDArray[np.int64]:
    """(N,) labels of the cells that (N, 3) world points fall into: 0 free or never looked at, k + 1 = class k."""
    labels = np.zeros(len(points_m), np.int64)
    if semantic is None or len(semantic.labels) == 0:
        return labels
    size = semantic.cell_size_m
    wanted = np.floor(points_m / size).astype(np.int64)
    known = np.floor(semantic.centers_m.astype(np.float64) / size).astype(np.int64)
    low, high = wanted.min(axis=0), wanted.max(axis=0)
    near = np.flatnonzero(((known >= low) & (known <= high)).all(axis=1))
    grid = np.zeros(high - low + 1, np.int64)
    grid[tuple((known[near] - low).T)] = semantic.labels[near] + 1
    labels[:] = grid[tuple((wanted - low).T)]
    return labels


def look_everywhere(perceptron: Perceptron) -> Sight:
    """The network over the whole map, boxes of any score."""
    return perceptron.look(EVERYWHERE)


def perceive_everywhere(perceptron: Perceptron) -> Perception:
    """Objects and cells of the whole map; ``perceptron.sight`` is then what the network saw."""
    return perceptron.perceive(window_m=EVERYWHERE)
