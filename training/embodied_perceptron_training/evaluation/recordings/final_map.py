"""Evaluation of recordings: pictures and a list of what is found, and the score of a final map against the truth."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.apps.replay import ReplayProgress, replay
from embodied_perceptron.config import PerceptronConfig
from embodied_perceptron.geometry.occupancy_grid import BENCHMARK_GRID
from embodied_perceptron.recordings.files import write_atomically
from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.recordings.recording import PosedFrameStream
from embodied_perceptron.results import SceneObject, SemanticVoxels
from embodied_perceptron.sensors.frame import PosedFrame
from embodied_perceptron.visualization.top_view import render_top_view
from embodied_perceptron.weights.categories import DETECTION_CLASSES, OCCUPANCY_CLASSES
from embodied_perceptron_training.evaluation.metrics.detection import SceneBoxes, detection_metrics
from embodied_perceptron_training.evaluation.metrics.occupancy import SceneOccupancy, occupancy_metrics
from embodied_perceptron_training.evaluation.runner.pictures import draw_view, is_shown, save_picture
from embodied_perceptron_training.homes.recording import Tour

# --------------------------------------------------------------------------------------------------------------------
# What a network finds in a recording of real frames, as pictures and a list: there is no truth to score against.


def draw_recording(
    path: Path,
    out: Path,
    config: PerceptronConfig,
    images: int = 4,
    on_progress: Callable[[ReplayProgress], None] | None = None,
) -> tuple[SceneObject, ...]:
    """Replay a recording and draw the confirmed objects into ``out``: ``top.jpg``, ``view_<k>.jpg``, ``objects.md``.

    Views are spread over the recording: of each stretch the one that shows most objects. Raises what opening and
    replaying raise, and ``OSError`` when ``out`` cannot be written.
    """
    recording = open_recording(path)
    result = replay(recording, config, on_progress=on_progress)
    out.mkdir(parents=True, exist_ok=True)
    objects = result.perception.objects
    save_picture(render_top_view(result.perception, trajectory_m=result.trajectory_m), out / "top.jpg")
    frames = PosedFrameStream(recording, config.assembler)
    for number, view in enumerate(choose_frames(frames, objects, result.fused, images), start=1):
        save_picture(draw_view(view, objects), out / f"view_{number}.jpg")
    write_atomically(out / "objects.md", object_table(objects).encode())
    return objects


def choose_frames(
    frames: PosedFrameStream | list[PosedFrame], objects: tuple[SceneObject, ...], total: int, wanted: int
) -> list[PosedFrame]:
    """Of ``wanted`` equal stretches of ``total`` frames the frame of each that shows most objects."""
    best: dict[int, tuple[int, PosedFrame]] = {}
    for i, frame in enumerate(frames):
        stretch = min(i * wanted // max(total, 1), wanted - 1)
        count = sum(is_shown(thing, frame) for thing in objects)
        if stretch not in best or count > best[stretch][0]:
            best[stretch] = (count, frame)
    return [best[stretch][1] for stretch in sorted(best)]


def object_table(objects: tuple[SceneObject, ...]) -> str:
    """Markdown: what was found, best first."""
    lines = ["| object | score | size (m) | centre (m) |", "|---|---:|---|---|"]
    for thing in sorted(objects, key=lambda o: (-o.score, o.id)):
        size = " x ".join(f"{v:.2f}" for v in thing.box[3:6])
        center = ", ".join(f"{v:.2f}" for v in np.round(thing.box[:3], 2) + 0.0)
        lines.append(f"| {thing.label} {thing.id} | {thing.score:.2f} | {size} | {center} |")
    return "\n".join(lines) + "\n"


def with_weights(config: PerceptronConfig, weights: str, min_score: float | None = None) -> PerceptronConfig:
    """``config`` with another network."""
    return dataclasses.replace(
        config, network=dataclasses.replace(config.network, weights=weights, min_score=min_score)
    )


# --------------------------------------------------------------------------------------------------------------------
# What a robot's final map of a simulated home is worth: objects and cells against the truth of what it saw.

_SCENE = "tour"
_UNNAMED = len(DETECTION_CLASSES)  # of predictions whose label is none of the classes: right for no class


def score_objects(tour: Tour, objects: Sequence[SceneObject]) -> dict[str, float]:
    """``AP25 AR25 AP50 AR50`` and those of furniture, in percent, over the detection classes that the tour shows.

    Raises ``ValueError`` when it shows none.
    """
    index = {name: k for k, name in enumerate(DETECTION_CLASSES)}
    seen = [o for o in (tour.home.objects[i] for i in tour.seen()) if o.label in index]
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


def score_occupancy(tour: Tour, semantic: SemanticVoxels, cell_m: float = BENCHMARK_GRID.cell_m) -> dict[str, float]:
    """``mIoU`` and ``mIoU_classes`` in percent over the cells that the tour determines."""
    grid, truth, seen = tour.occupancy(cell_m)
    predicted = rasterise(semantic, np.asarray(grid.origin_m), grid.cell_m, grid.shape)
    figures = occupancy_metrics([SceneOccupancy(predicted, truth, seen)], OCCUPANCY_CLASSES)
    return {name: value for name, value in figures.items() if "/" not in name}


def rasterise(
    semantic: SemanticVoxels, origin_m: NDArray[np.float64], cell_m: float, shape: tuple[int, int, int]
) -> NDArray[np.uint8]:
    """Labels (0 free, k + 1 = OCCUPANCY_CLASSES[k]) of a grid, from cells of any size and lattice.

    A cell of the grid gets the class that most confidence falls to; classes of other names say nothing.
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
