"""Semantic occupancy as EmbodiedScan counts it.

Voxels are counted over all scenes, without unobserved ones. A class without ground-truth voxels is dropped, also where
it is predicted: its predictions are misses of the true classes. (The released code counts it as 0; on a whole
validation split every class occurs, and both are the same.) The column "empty" is not the IoU of label 0 but that of
occupied against free, and is part of the mean: a convention of the benchmark, kept for comparison.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.weights.categories import OCCUPANCY_IGNORED


@dataclass(frozen=True, eq=False)
class SceneOccupancy:
    """One scene; arrays of any one shape."""

    predicted: NDArray[np.integer]  # integer labels, 0 = free, 1.. = classes
    truth: NDArray[np.integer]  # the same, 255 = unknown
    seen: NDArray[np.bool_] | None = None  # bool, voxels to count; None = all


def confusion(scenes: Iterable[SceneOccupancy], classes: int) -> NDArray[np.int64]:
    """(classes + 1, classes + 1) voxel counts, truth by rows, predictions by columns.

    Raises ``ValueError`` naming the scene (by number) and the shape or label that does not fit.
    """
    size = classes + 1
    counts = np.zeros((size, size), dtype=np.int64)
    for number, scene in enumerate(scenes):
        predicted, truth = np.asarray(scene.predicted), np.asarray(scene.truth)
        keep = truth != OCCUPANCY_IGNORED
        if scene.seen is not None and np.shape(scene.seen) != truth.shape:
            raise ValueError(f"scene {number}: mask {np.shape(scene.seen)} does not fit labels {truth.shape}")
        if predicted.shape != truth.shape:
            raise ValueError(f"scene {number}: predictions {predicted.shape} do not fit ground truth {truth.shape}")
        if scene.seen is not None:
            keep = keep & np.asarray(scene.seen, dtype=bool)
        p, t = predicted[keep].astype(np.int64), truth[keep].astype(np.int64)
        for kind, labels in (("predicted", p), ("ground-truth", t)):
            wrong = labels[(labels < 0) | (labels >= size)]
            if len(wrong):
                raise ValueError(f"scene {number}: {kind} label {int(wrong[0])} is not in 0..{classes}")
        counts += np.bincount(t * size + p, minlength=size * size).reshape(size, size)
    return counts


def occupancy_metrics(
    scenes: Iterable[SceneOccupancy], classes: Sequence[str], released: bool = False
) -> dict[str, float]:
    """Flat figures in percent: ``mIoU`` (the benchmark's), ``mIoU_classes`` (without "empty"), ``IoU/empty``,
    ``IoU/<class>``. ``classes`` names the labels from 1. ``released``: a class that is only predicted counts 0. Raises
    ``ValueError`` when no voxel is counted at all."""
    counts = confusion(scenes, len(classes))
    if counts.sum() == 0:
        raise ValueError("no voxel with known ground truth")
    hit = np.diag(counts)
    union = counts.sum(0) + counts.sum(1) - hit
    occupied_hit, occupied_union = counts[1:, 1:].sum(), counts.sum() - counts[0, 0]
    columns: dict[str, float] = {}
    if occupied_union:
        columns["empty"] = float(occupied_hit / occupied_union)
    counted = union if released else counts.sum(1)
    for label, name in enumerate(classes, start=1):
        if counted[label]:
            columns[name] = float(hit[label] / union[label])
    result = {}
    if columns:
        result["mIoU"] = 100 * float(np.mean(list(columns.values())))
    of_classes = [value for name, value in columns.items() if name != "empty"]
    if of_classes:
        result["mIoU_classes"] = 100 * float(np.mean(of_classes))
    return {**result, **{f"IoU/{name}": 100 * value for name, value in columns.items()}}
