"""What is evaluated of one scene, task by task; pure over a loaded scene and a network."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from embodied_perceptron.categories import DETECTION_CLASSES, OCCUPANCY_CLASSES
from embodied_perceptron.nn.inference import NetworkInference
from embodied_perceptron.nn.live import Sight
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import Perception, SceneObject
from embodied_perceptron.scene.detections import Detections
from embodied_perceptron_training.evaluation.detection_metrics import SceneBoxes
from embodied_perceptron_training.evaluation.grounding_task import GroundingResult, ground_scene
from embodied_perceptron_training.evaluation.occupancy_metrics import SceneOccupancy
from embodied_perceptron_training.evaluation.parallel import EvaluationError
from embodied_perceptron_training.evaluation.perceiving import (
    cells_at,
    look_everywhere,
    perceive_everywhere,
    scene_perceptron,
)
from embodied_perceptron_training.evaluation.scenes import EvaluationScene

TASKS = (
    "detection",
    "continuous-detection",
    "monocular-detection",
    "occupancy",
    "continuous-occupancy",
    "grounding",
)
_CLASS_INDEX = {name: k for k, name in enumerate(DETECTION_CLASSES)}
_OCCUPANCY_INDEX = {name: k + 1 for k, name in enumerate(OCCUPANCY_CLASSES)}
Sample = tuple[str, SceneBoxes, SceneBoxes]  # name, predicted, true


@dataclass(eq=False)
class SceneResult:
    """Predictions and truth of one scene.

    Attributes:
        name: sample_idx.
        boxes: per task its samples: one for multi-view, one per step or view for the others; with grounding also
            ``objects``, what the map held when it was asked.
        occupancy: per task its samples.
        grounding: answers, where they were asked for.
        seconds: wall time by stage.
        windows: how many the whole scene took.
        unusable_views: views without usable depth.
    """

    name: str
    boxes: dict[str, list[Sample]] = field(default_factory=dict)
    occupancy: dict[str, list[SceneOccupancy]] = field(default_factory=dict)
    grounding: GroundingResult | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    windows: int = 0
    unusable_views: int = 0

    def clock(self, stage: str, start: float) -> float:
        """Add the time since ``start`` to a stage; returns the time now."""
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - start
        return now


def predicted_boxes(found: Detections) -> SceneBoxes:
    """Labels as positions in DETECTION_CLASSES. Raises ``EvaluationError`` for a class that the benchmark lacks."""
    strangers = sorted(set(found.labels) - set(_CLASS_INDEX))
    if strangers:
        raise EvaluationError(f"the network names classes that the benchmark lacks: {', '.join(strangers[:5])}")
    return SceneBoxes(found.boxes, np.array([_CLASS_INDEX[n] for n in found.labels], np.int64), found.scores)


def object_boxes(objects: Iterable[SceneObject]) -> SceneBoxes:
    """Objects of the map as predictions."""
    listed = [o for o in objects if o.label in _CLASS_INDEX]
    boxes = np.stack([o.box for o in listed]) if listed else np.zeros((0, 9))
    labels = np.array([_CLASS_INDEX[o.label] for o in listed], np.int64)
    return SceneBoxes(boxes, labels, np.array([o.score for o in listed], np.float64))


def evaluate_scene(
    scene: EvaluationScene, inference: NetworkInference, tasks: Iterable[str], window_m: float = 6.4
) -> SceneResult:
    """Everything that ``tasks`` ask of one scene, in as few replays as they allow.

    ``window_m`` is the size of a look; the whole scene is looked at in as many as it takes.
    """
    wanted = set(tasks)
    result = SceneResult(scene.name)
    start = time.perf_counter()
    if wanted - {"monocular-detection"}:
        perceptron = scene_perceptron(inference, len(scene.frames), window_m)
        for step, frame in enumerate(scene.frames, start=1):
            result.unusable_views += not perceptron.integrate(frame).fused
            start = result.clock("integrate", start)
            if wanted & {"continuous-detection", "continuous-occupancy"}:
                _score_step(result, scene, look_everywhere(perceptron), step, inference, wanted)
                start = result.clock("look", start)
        if wanted & {"detection", "occupancy", "grounding"}:
            _score_whole(result, scene, perceptron, inference, wanted)
            start = time.perf_counter()
    if "monocular-detection" in wanted:
        result.boxes["monocular-detection"] = _monocular(scene, inference, window_m)
        result.clock("monocular", start)
    return result


def _score_whole(
    result: SceneResult, scene: EvaluationScene, perceptron: Perceptron, inference: NetworkInference, wanted: set[str]
) -> None:
    """From all views together: one look, and one perception where sentences are asked about it."""
    start = time.perf_counter()
    perception: Perception | None = None
    if "grounding" in wanted:
        perception = perceive_everywhere(perceptron)
        seen = perceptron.sight
        assert seen is not None
        sight = seen
    else:
        sight = look_everywhere(perceptron)
    result.windows = len(sight.parts)
    start = result.clock("look", start)
    if "detection" in wanted:
        result.boxes["detection"] = [(scene.name, sight_boxes(sight), scene.truth())]
    if "occupancy" in wanted:
        result.occupancy["occupancy"] = _occupancy(scene, sight, inference, len(scene.frames))
    if perception is not None:
        result.grounding = ground_scene(scene, perceptron, perception, sight, inference)
        result.boxes["objects"] = [(scene.name, object_boxes(result.grounding.objects), scene.truth())]
        result.clock("grounding", start)


def sight_boxes(sight: Sight) -> SceneBoxes:
    """All boxes of a look as predictions. Raises ``EvaluationError`` when the look failed."""
    if sight.detections is None:
        raise EvaluationError(f"the network could not look: {'; '.join(sight.diagnostics)}")
    return predicted_boxes(sight.detections)


def _score_step(
    result: SceneResult, scene: EvaluationScene, sight: Sight, step: int, inference: NetworkInference, wanted: set[str]
) -> None:
    if "continuous-detection" in wanted:
        sample = (f"{scene.name}#{step:03d}", sight_boxes(sight), scene.truth(0, step))
        result.boxes.setdefault("continuous-detection", []).append(sample)
    if "continuous-occupancy" in wanted:
        result.occupancy.setdefault("continuous-occupancy", []).extend(_occupancy(scene, sight, inference, step))


def _occupancy(scene: EvaluationScene, sight: Sight, inference: NetworkInference, views: int) -> list[SceneOccupancy]:
    """The network's cells at the centres of the true ones, as far as the first ``views`` views determine them."""
    truth = scene.occupancy
    if truth is None:
        return []
    strangers = sorted(set(inference.occupancy_classes) - set(_OCCUPANCY_INDEX))
    if strangers:
        raise EvaluationError(f"the network names occupancy classes that the benchmark lacks: {strangers[:5]}")
    lookup = np.array([0, *(_OCCUPANCY_INDEX[name] for name in inference.occupancy_classes)], np.uint8)
    seen = np.any(np.stack(truth.seen[:views]), axis=0)
    predicted = lookup[cells_at(truth.centers_m, sight.semantic)].reshape(truth.labels.shape)
    return [SceneOccupancy(predicted, truth.labels, seen)]


def _monocular(scene: EvaluationScene, inference: NetworkInference, window_m: float) -> list[Sample]:
    """Each view alone, against what it shows."""
    samples = []
    for view, frame in enumerate(scene.frames):
        perceptron = scene_perceptron(inference, 1, window_m)
        perceptron.integrate(frame)
        truth = scene.truth(view, view + 1)
        samples.append((f"{scene.name}#{view:03d}", sight_boxes(look_everywhere(perceptron)), truth))
    return samples
