"""Score the final map of a simulated home: objects and cells against the observed part of the truth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.occupancy_grid import BENCHMARK_GRID
from embodied_perceptron.results import SceneObject, SemanticVoxels
from embodied_perceptron.weights.categories import DETECTION_CLASSES, OCCUPANCY_CLASSES
from embodied_perceptron_training.evaluation.metrics.detection import SceneBoxes, detection_metrics
from embodied_perceptron_training.evaluation.metrics.occupancy import SceneOccupancy, occupancy_metrics
from embodied_perceptron_training.homes.recording import HomeTrajectory

_SCENE = "tour"
_UNNAMED = len(DETECTION_CLASSES)  # of predictions whose label is none of the classes: right for no class


def score_objects(trajectory: HomeTrajectory, objects: Sequence[SceneObject]) -> dict[str, float]:
    """``AP25 AR25 AP50 AR50`` and those of furniture, in percent, over the detection classes that the trajectory shows.

    Raises ``ValueError`` when it shows none.
    """
    index = {name: k for k, name in enumerate(DETECTION_CLASSES)}
    seen = [o for o in (trajectory.home.objects[i] for i in trajectory.seen()) if o.label in index]
    truth = SceneBoxes(
        np.array([o.box9() for o in seen]).reshape(-1, 9), np.array([index[o.label] for o in seen], np.int64)
    )
    found = SceneBoxes(
        np.array([o.box for o in objects]).reshape(-1, 9),
        np.array([index.get(o.label, _UNNAMED) for o in objects], np.int64),
        np.array([o.score for o in objects]),
    )
    figures = detection_metrics({_SCENE: found}, {_SCENE: truth}, (*DETECTION_CLASSES, "unnamed"))
    return {name: value for name, value in figures.items() if "/" not in name}


def score_occupancy(trajectory: HomeTrajectory, semantic: SemanticVoxels) -> dict[str, float]:
    """``mIoU`` and ``mIoU_classes`` in percent over the cells that the trajectory determines."""
    grid, truth, seen = trajectory.occupancy(BENCHMARK_GRID.cell_m)
    predicted = rasterise(semantic, np.asarray(grid.origin_m), grid.cell_m, grid.shape)
    figures = occupancy_metrics([SceneOccupancy(predicted, truth, seen)], OCCUPANCY_CLASSES)
    return {name: value for name, value in figures.items() if "/" not in name}


def rasterise(
    semantic: SemanticVoxels, origin_m: NDArray[np.float64], cell_m: float, shape: tuple[int, int, int]
) -> NDArray[np.uint8]:
    """Labels (0 free, k + 1 = OCCUPANCY_CLASSES[k]) of a grid, from cells of any size and lattice.

    A cell of the grid gets the class with the largest total confidence; cells of other classes are ignored.
    """
    lookup = {name: k + 1 for k, name in enumerate(OCCUPANCY_CLASSES)}
    label = np.array([lookup.get(name, 0) for name in semantic.classes] or [0])[semantic.labels]
    cell = np.floor((semantic.centers_m - origin_m) / cell_m).astype(np.int64)
    use = (label > 0) & ((cell >= 0) & (cell < np.array(shape))).all(axis=1)
    flat = np.ravel_multi_index(tuple(cell[use].T), shape)
    votes = np.zeros((int(np.prod(shape)), len(OCCUPANCY_CLASSES) + 1), np.float32)
    np.add.at(votes, (flat, label[use]), semantic.confidence[use] + 1e-6)
    labels: NDArray[np.uint8] = votes.argmax(axis=1).astype(np.uint8).reshape(shape)
    return labels
