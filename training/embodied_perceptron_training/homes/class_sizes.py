"""Sizes and heights of the objects of each category, measured in synthetic homes.

``python -m embodied_perceptron_training.homes.class_sizes OUT`` writes the table (``class_sizes.json``) with which
detection fusion rejects implausible classes; the same seeds give the same file.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from embodied_perceptron.geometry.boxes import corners
from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron.recordings.files import write_json
from embodied_perceptron.weights.categories import STRUCTURE_CLASSES
from embodied_perceptron_training.homes.building.home import HomeSpec, build_home

HOMES = 300
_QUANTILES = (0.01, 0.5, 0.99)
_MIN_COUNT = 8


def upright_sizes(boxes: F64) -> F64:
    """(N, 9) boxes -> (N, 5) longer and shorter ground side, height, bottom and top above z = 0, of upright bounds.

    Ground sides are those of upright boxes, otherwise of the bounds of the footprint.
    """
    points = corners(torch.from_numpy(boxes)).numpy()  # (N, 8, 3)
    low, high = points.min(axis=1), points.max(axis=1)
    ground = np.where(np.abs(boxes[:, 7:]).max(axis=1, keepdims=True) < 1e-6, boxes[:, 3:5], (high - low)[:, :2])
    ground = np.sort(ground, axis=1)[:, ::-1]
    return np.concatenate([ground, (high - low)[:, 2:], low[:, 2:], high[:, 2:]], axis=1)


def count_sizes(seeds: Sequence[int]) -> dict[str, Any]:
    """Table of the homes of ``seeds``, metres: 1 %, 50 % and 99 % quantiles of the sizes of each category."""
    sizes: dict[str, list[F64]] = defaultdict(list)
    mounted: dict[str, list[str]] = defaultdict(list)
    for seed in seeds:
        home = build_home(seed, HomeSpec(rooms=0))
        for thing, size in zip(home.objects, upright_sizes(home.boxes()), strict=True):
            if thing.label not in STRUCTURE_CLASSES:
                sizes[thing.label].append(size)
                mounted[thing.label].append(thing.mounted)
    classes = {}
    for label in sorted(sizes):
        if len(sizes[label]) < _MIN_COUNT:
            continue
        low, middle, high = np.quantile(np.stack(sizes[label]), _QUANTILES, axis=0).round(3)
        names = ("long_m", "short_m", "height_m", "bottom_m", "top_m")
        classes[label] = {
            "count": len(sizes[label]),
            **{name: [low[i], middle[i], high[i]] for i, name in enumerate(names)},
            "mounted": {
                where: round(mounted[label].count(where) / len(mounted[label]), 3)
                for where in sorted(set(mounted[label]))
            },
        }
    return {
        "source": f"{len(seeds)} synthetic homes, seeds {min(seeds)} to {max(seeds)}, parametric, rooms drawn; "
        "written by embodied_perceptron_training.homes.class_sizes. Numbers are the quantiles 0.01, 0.5, 0.99.",
        "classes": classes,
    }


if __name__ == "__main__":
    write_json(Path(sys.argv[1]), count_sizes(range(HOMES)))
