"""From which score on a box is an object: the score by which the final maps of whole tours are most right.

The network looks once per step of a tour; what the map makes of these looks is then replayed for every score of the
grid. What is counted are the confirmed objects, as they are published: right when of the class and IoU > 0.25 with
something that the views show and that no better object has found. The chosen score has the best F1 over all scenes.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.config import ObjectsConfig, PerceptronConfig, ScorePolicy
from embodied_perceptron.geometry.boxes import box_iou
from embodied_perceptron.geometry.manhattan import Region
from embodied_perceptron.inference.predictor import Predictor
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import Detections, ObjectState, SceneObject, VoxelSnapshot
from embodied_perceptron.scene.object_map import ObjectMap
from embodied_perceptron.weights import shipped
from embodied_perceptron.weights.checkpoint import load_checkpoint, save_checkpoint
from embodied_perceptron_training.evaluation.detection_metrics import SceneBoxes
from embodied_perceptron_training.evaluation.evaluate import (
    EvaluationSpec,
    cached_predictor,
    check_heads,
    load,
    scene_names,
)
from embodied_perceptron_training.evaluation.parallel import EvaluationError, map_scenes
from embodied_perceptron_training.evaluation.scene_tasks import evaluation_config, object_boxes
from embodied_perceptron_training.evaluation.scenes import EvaluationScene

SCORES = (0.06, 0.08, 0.1, 0.12, 0.14, 0.16, 0.18, 0.2, 0.22, 0.25, 0.28, 0.32, 0.36, 0.4, 0.45, 0.5, 0.6)
IOU = 0.25
PERIOD_NS = 500_000_000  # a robot perceives about twice a second, however far apart a benchmark's views are


@dataclass(frozen=True, eq=False)
class Look:
    """One perception of a tour: what the map of objects is told of it."""

    now_ns: int
    found: Detections
    snapshot: VoxelSnapshot
    camera_m: NDArray[np.float64]
    region: Region


@dataclass(frozen=True)
class Point:
    """The curve at one score: confirmed objects that are right, all of them, and all that was there to find."""

    min_score: float
    right: int
    found: int
    true: int

    @property
    def precision(self) -> float:
        """Share of the objects that are right; 0 without any."""
        return self.right / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        """Share of the true ones that are found; 0 without any."""
        return self.right / self.true if self.true else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        return 2.0 * self.right / (self.found + self.true) if self.found + self.true else 0.0


@dataclass(frozen=True, eq=False)
class Calibration:
    """The curve over all scenes, what was skipped and why, and wall seconds."""

    curve: tuple[Point, ...]
    scenes: int
    skipped: dict[str, str]
    seconds: float

    @property
    def best(self) -> Point:
        """The point with the best F1; of equal ones that with the highest score, which publishes least."""
        return max(self.curve, key=lambda p: (p.f1, p.min_score))


def tour_config(views: int, base: PerceptronConfig | None = None) -> PerceptronConfig:
    """As :func:`evaluation_config`, with objects kept as a robot keeps them."""
    base = PerceptronConfig() if base is None else base
    return dataclasses.replace(evaluation_config(views, base.network.window_m, base), objects=base.objects)


def predict_around(scene: EvaluationScene, inference: Predictor, every: int) -> list[Look]:
    """Integrate the views one by one and look around the camera after each ``every``, and after the last."""
    perceptron = Perceptron(tour_config(len(scene.frames)), inference=inference)
    looks: list[Look] = []
    for step, frame in enumerate(scene.frames, start=1):
        perceptron.integrate(frame)
        if step % every and step < len(scene.frames):
            continue
        now_ns = (len(looks) + 1) * PERIOD_NS
        perception = perceptron.perceive(now_ns)
        prediction = perceptron.prediction
        if prediction is None or prediction.detections is None or perception.voxels is None:
            reason = "no prediction" if prediction is None else "; ".join(prediction.diagnostics)
            raise EvaluationError(f"{scene.name}: the network could not look: {reason}")
        camera_m = frame.T_world_camera[:3, 3].copy()
        looks.append(Look(now_ns, prediction.detections, perception.voxels, camera_m, prediction.region))
    return looks


def final_objects(looks: Sequence[Look], config: ObjectsConfig, min_score: float) -> tuple[SceneObject, ...]:
    """Confirmed objects after all looks, as a perceptron with this ``min_score`` publishes them."""
    objects = ObjectMap(config)
    for look in looks:
        objects.update(
            look.found, look.snapshot, look.now_ns, look.camera_m, looked_at=look.region, scores=ScorePolicy(min_score)
        )
    return objects.objects((ObjectState.CONFIRMED,))


def count_right(found: SceneBoxes, truth: SceneBoxes, iou: float = IOU) -> int:
    """How many predictions find something: best score first, each the one of its class that it overlaps most of those
    that are left, by more than ``iou``."""
    if found.scores is None:
        raise ValueError("predictions have no scores")
    if len(found.boxes) == 0 or len(truth.boxes) == 0:
        return 0
    overlap = box_iou(torch.from_numpy(found.boxes), torch.from_numpy(truth.boxes)).numpy()
    overlap = np.where(found.labels[:, None] == truth.labels[None, :], overlap, 0.0)
    right = 0
    for row in np.argsort(-found.scores, kind="stable"):
        best = int(overlap[row].argmax())
        if overlap[row, best] > iou:
            right += 1
            overlap[:, best] = 0.0
    return right


@dataclass(frozen=True)
class _Work:
    """The curve of one scene by name, in any process."""

    spec: EvaluationSpec
    every: int
    scores: tuple[float, ...]

    def __call__(self, name: str) -> tuple[Point, ...]:
        scene = load(self.spec, name)
        inference = cached_predictor(self.spec.weights)
        looks, truth = predict_around(scene, inference, self.every), scene.truth()
        config = tour_config(len(scene.frames)).objects
        points = []
        for score in self.scores:
            objects = final_objects(looks, config, score)
            points.append(Point(score, count_right(object_boxes(objects), truth), len(objects), len(truth.boxes)))
        return tuple(points)


def calibrate(
    spec: EvaluationSpec,
    every: int = 2,
    scores: Sequence[float] = SCORES,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Calibration:
    """The curve of ``spec``'s scenes; the same whatever the number of workers.

    Raises :class:`EvaluationError` when the network has no detection, when too many scenes are corrupt or none is
    left, or when nothing right is found at any score; ``ValueError`` for a score out of range or ``every`` < 1; what
    opening the data set or the weights raises.
    """
    start = time.perf_counter()
    grid = tuple(sorted({float(s) for s in scores}))
    if not grid or not all(0.0 <= s <= 1.0 for s in grid):
        raise ValueError(f"scores must be in [0, 1] and at least one, got {list(scores)}")
    if every < 1:
        raise ValueError(f"every must be at least 1, got {every}")
    names = scene_names(spec)
    check_heads(cached_predictor(spec.weights), ("detection",))
    outcome = map_scenes(_Work(spec, every, grid), names, workers, progress)
    if not outcome.results:
        raise EvaluationError("no scene to calibrate on")
    curve = tuple(
        Point(points[0].min_score, *(sum(getattr(p, kind) for p in points) for kind in ("right", "found", "true")))
        for points in zip(*outcome.results, strict=True)
    )
    found = Calibration(curve, len(outcome.results), outcome.skipped, time.perf_counter() - start)
    if found.best.right == 0:
        raise EvaluationError(f"no object is right at any score, {found.best.true} are there to find")
    return found


def check_writable(weights: str) -> Path:
    """The path of a weights file that may be changed. Raises :class:`EvaluationError` for shipped ones."""
    if weights in shipped():
        raise EvaluationError(
            f"{weights!r} is shipped and not changed in place: calibrate a file, then `weights add {weights} FILE`"
        )
    path = Path(weights).expanduser()
    if not path.is_file():
        raise EvaluationError(f"no weights file {path}")
    return path


def write_calibration(path: Path, found: Calibration, spec: EvaluationSpec) -> None:
    """Store the best score in the weights file, atomically, with what it comes from; tensors stay as they are.

    Raises ``CheckpointError`` when it is no weights file, ``OSError`` when it cannot be written.
    """
    checkpoint = load_checkpoint(path)
    known = checkpoint.extra.get("calibration")
    best = found.best
    entry = {
        "min_score": best.min_score,
        "precision": round(best.precision, 4),
        "recall": round(best.recall, 4),
        "f1": round(best.f1, 4),
        "data": Path(spec.data).name,
        "split": spec.split,
        "scenes": found.scenes,
        "views": spec.views,
    }
    calibration = {**(known if isinstance(known, dict) else {}), "detection": entry}
    save_checkpoint(path, dataclasses.replace(checkpoint, extra={**checkpoint.extra, "calibration": calibration}))
