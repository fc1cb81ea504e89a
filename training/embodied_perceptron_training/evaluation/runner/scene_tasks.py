"""Evaluate one loaded scene, task by task, with the deployed perceptron."""

from __future__ import annotations

import dataclasses
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.config import KeyframeConfig, PerceptronConfig
from embodied_perceptron.detection2d.pipeline import DetectionLift
from embodied_perceptron.geometry.occupancy_grid import WINDOW_M
from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron.inference.predictor import Predictor, ScenePrediction
from embodied_perceptron.language.answer import propose
from embodied_perceptron.language.query import Query
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import UNNAMED, Detections, GroundingStatus, Perception, SceneObject, SemanticVoxels
from embodied_perceptron.weights.categories import DETECTION_CLASSES, OCCUPANCY_CLASSES
from embodied_perceptron_training.datasets.embodiedscan import Prompt
from embodied_perceptron_training.evaluation.metrics.detection import SceneBoxes
from embodied_perceptron_training.evaluation.metrics.grounding import RANKS, GroundingQuery, grounding_metrics
from embodied_perceptron_training.evaluation.metrics.occupancy import SceneOccupancy
from embodied_perceptron_training.evaluation.runner.detections import lift_of_file
from embodied_perceptron_training.evaluation.runner.parallel import EvaluationError
from embodied_perceptron_training.evaluation.runner.scenes import EvaluationScene
from embodied_perceptron_training.homes.prompts import is_view_dependent

_RADIUS_M = 1000.0  # of the map: no part of a scene is dropped
_POINTS_M = 0.01  # voxel size of the map for a network whose input is points


def evaluation_config(
    views: int,
    window_m: float = WINDOW_M,
    base: PerceptronConfig | None = None,
    every_box: bool = True,
    inference: Predictor | None = None,
) -> PerceptronConfig:
    """``base`` with every view as a keyframe, no eviction, and objects confirmed by one perception.

    The views of a benchmark are few and far apart, and the whole scene is perceived once. ``every_box``: the network
    gives boxes of any score, as average precision and fits need them. ``inference``: for ``paper``, whose input is
    points, the map gets the resolution of its sites and no limit of depth.
    """
    base = PerceptronConfig() if base is None else base
    tracking = base.objects.tracking
    volume = dataclasses.replace(base.volume, radius_m=_RADIUS_M)
    if inference is not None and inference.network.config.inputs == "xyz":
        volume = dataclasses.replace(volume, voxel_size_m=min(volume.voxel_size_m, _POINTS_M), max_range_m=_RADIUS_M)
    at_once = dataclasses.replace(tracking, existence=dataclasses.replace(tracking.existence, confirm_count=1))
    return dataclasses.replace(
        base,
        volume=volume,
        keyframes=KeyframeConfig(translation_m=1e-9, rotation_rad=1e-9, min_interval_s=0.0, max_count=max(views, 1)),
        objects=dataclasses.replace(base.objects, tracking=at_once),
        network=dataclasses.replace(base.network, window_m=window_m, all_boxes=every_box),
    )


def scene_perceptron(
    inference: Predictor, views: int, window_m: float = WINDOW_M, lift: DetectionLift | None = None
) -> Perceptron:
    """A perceptron for a scene of ``views`` views."""
    return Perceptron(evaluation_config(views, window_m, inference=inference), inference=inference, lift=lift)


def mapped_scene(
    scene: EvaluationScene,
    inference: Predictor | None = None,
    window_m: float = WINDOW_M,
    every_box: bool = True,
    lift: DetectionLift | None = None,
) -> Perceptron:
    """A perceptron after all views of a scene; without a network where ``inference`` is None. ``every_box``: see
    :func:`evaluation_config`."""
    config = evaluation_config(len(scene.frames), window_m, every_box=every_box, inference=inference)
    perceptron = Perceptron(config, inference=inference, lift=lift)
    for frame in scene.frames:
        perceptron.integrate(frame)
    return perceptron


def cells_at(points_m: F64, semantic: SemanticVoxels | None) -> NDArray[np.int64]:
    """(N,) labels of the cells at (N, 3) world points: 0 free or never observed, k + 1 = class k."""
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


def predict_everywhere(perceptron: Perceptron) -> ScenePrediction:
    """Predict over the whole map, with boxes of any score."""
    return perceptron.predict(math.inf)


# -- Sentences about one scene, answered by the deployed perceptron. The speaker stands at the last view. No truth
# enters any answer.
#
# neural      boxes of the decoder, ranked by the probability of the words that name the target (``tokens_positive``)
# relations   the parsed sentence, answered by categories, colours and geometry of the predictions
# fused       :meth:`Perceptron.ground`, which uses both; its figures have no prefix

VARIANTS = ("fused", "neural", "relations")
_LIMIT = max(RANKS)


@dataclass(eq=False)
class GroundingResult:
    """Answers about one scene, as deployed unless ``queries`` says otherwise; in the order of the prompts."""

    queries: dict[str, list[GroundingQuery]] = field(default_factory=lambda: {v: [] for v in VARIANTS})  # by variant
    statuses: Counter[str] = field(default_factory=Counter)  # for sentences that have a target
    negatives: Counter[str] = field(default_factory=Counter)  # the same for sentences without a target
    skipped: int = 0  # number of sentences about objects that no used view shows
    objects: tuple[SceneObject, ...] = ()  # in the map when it was queried, as predictions


def ground_scene(
    scene: EvaluationScene,
    perceptron: Perceptron,
    perception: Perception,
    prediction: ScenePrediction,
    inference: Predictor,
) -> GroundingResult:
    """Ask all sentences about a scene. ``perception`` is the perceptron's of the whole scene, ``prediction`` the
    network's behind it."""
    result = GroundingResult(objects=perception.objects)
    pose = scene.frames[-1].T_world_camera
    shown = set(scene.ids[scene.seen_rows()].tolist())
    asked = [p for p in scene.prompts if shown.issuperset(p.target_ids)]
    result.skipped = len(scene.prompts) - len(asked)
    sentences = [(p.text, p.tokens_positive[0] if p.tokens_positive else None) for p in asked]
    proposed = propose(inference, prediction, sentences, pose, _LIMIT)
    queries = [Query(p.text, _LIMIT) for p in asked]
    answers = perceptron.ground_many(queries, pose)
    without_network = dataclasses.replace(perceptron.grounder, inference=None)
    plain = without_network.answer(perceptron.map.published, queries, pose)
    for prompt, neural, relations, answer in zip(asked, proposed, plain, answers, strict=True):
        result.statuses[GroundingStatus(answer.status).name] += 1
        found = {"fused": _boxes(answer.candidates), "relations": _boxes(relations.candidates), "neural": neural.boxes}
        truth, flags = scene.boxes_of(prompt.target_ids), flags_of(prompt)
        for variant, boxes in found.items():
            result.queries[variant].append(GroundingQuery(boxes, truth, flags))
    for answer in perceptron.ground_many([p.text for p in scene.negatives], pose):
        result.negatives[GroundingStatus(answer.status).name] += 1
    return result


def flags_of(prompt: Prompt) -> dict[str, bool]:
    """Properties that the benchmark reports separately."""
    return {"hard": prompt.hard, "view_dependent": is_view_dependent(prompt.text), "unique": not prompt.distractor_ids}


def score_grounding(results: Sequence[GroundingResult]) -> dict[str, float]:
    """Figures in percent: of ``fused`` without prefix, of the others as ``neural/...`` and ``relations/...``;
    ``answers/<status>`` for sentences with a target, ``negatives/<status>`` for those without (NOT_FOUND is right)."""
    figures: dict[str, float] = {}
    for variant in VARIANTS:
        found = grounding_metrics([q for r in results for q in r.queries[variant]])
        prefix = "" if variant == "fused" else f"{variant}/"
        figures.update({prefix + name: value for name, value in found.items()})
    figures.update(_shares("answers", [r.statuses for r in results]))
    figures.update(_shares("negatives", [r.negatives for r in results]))
    return figures


def _shares(prefix: str, counters: Sequence[Mapping[str, int]]) -> dict[str, float]:
    total = Counter[str]()
    for counter in counters:
        total.update(counter)
    number = total.total()
    if number == 0:
        return {}
    return {f"{prefix}/{s.name.lower()}": 100.0 * total[s.name] / number for s in GroundingStatus}


def _boxes(objects: Sequence[SceneObject]) -> F64:
    return np.stack([o.box for o in objects]) if objects else np.zeros((0, 9))


# -- Tasks of one scene.

_CLASS_INDEX = {name: k for k, name in enumerate(DETECTION_CLASSES)}
_OCCUPANCY_INDEX = {name: k + 1 for k, name in enumerate(OCCUPANCY_CLASSES)}
Sample = tuple[str, SceneBoxes, SceneBoxes]  # name, predicted, true


@dataclass(eq=False)
class SceneResult:
    """Predictions and truth of one scene; ``boxes`` and ``occupancy`` hold samples by task, ``boxes`` with grounding
    also the map's ``objects``."""

    name: str  # sample_idx
    boxes: dict[str, list[Sample]] = field(default_factory=dict)
    occupancy: dict[str, list[SceneOccupancy]] = field(default_factory=dict)
    grounding: GroundingResult | None = None
    seconds: dict[str, float] = field(default_factory=dict)  # wall time by stage
    windows: int = 0  # number of windows of the whole scene
    unusable_views: int = 0  # number of views without usable depth
    sensor: str = ""  # of depth, where the data name it
    outside: Counter[str] = field(default_factory=Counter)  # publishable boxes with names that the benchmark lacks

    def clock(self, stage: str, start: float) -> float:
        """Add the time since ``start`` to a stage; returns the time now."""
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - start
        return now


def is_in_benchmark(label: str) -> bool:
    """Whether the benchmark's detection has a class of that name."""
    return label in _CLASS_INDEX


def outside_benchmark(found: Detections, min_score: float) -> Counter[str]:
    """Number of boxes of at least ``min_score`` with a name that the benchmark lacks, by name."""
    labels = found.above(min_score).labels
    return Counter(label for label in labels if label != UNNAMED and label not in _CLASS_INDEX)


def object_boxes(objects: Iterable[SceneObject]) -> SceneBoxes:
    """Objects of the map with a name of the benchmark, as predictions."""
    listed = [o for o in objects if is_in_benchmark(o.label)]
    boxes = np.stack([o.box for o in listed]) if listed else np.zeros((0, 9))
    labels = np.array([_CLASS_INDEX[o.label] for o in listed], np.int64)
    return SceneBoxes(boxes, labels, np.array([o.score for o in listed], np.float64))


def evaluate_scene(
    scene: EvaluationScene,
    inference: Predictor,
    tasks: Iterable[str],
    window_m: float = WINDOW_M,
    detections: Path | None = None,
) -> SceneResult:
    """Run all ``tasks`` on one scene, in as few replays as possible.

    ``window_m``: edge of a prediction window; the whole scene is predicted in as many as it needs. ``detections``: file
    of 2-D detections that are lifted into whole maps.
    """
    wanted = set(tasks)
    result = SceneResult(scene.name, sensor=scene.sensor)
    start = time.perf_counter()
    if wanted - {"monocular-detection", "grounding"}:
        lift = None if detections is None else lift_of_file(detections, scene.image_stamps)
        perceptron = scene_perceptron(inference, len(scene.frames), window_m, lift)
        for step, frame in enumerate(scene.frames, start=1):
            result.unusable_views += not perceptron.integrate(frame).fused
            start = result.clock("integrate", start)
            if continuous := wanted & {"continuous-detection", "continuous-occupancy"}:
                prediction = predict_everywhere(perceptron)
                if "continuous-detection" in continuous:
                    sample = (f"{scene.name}#{step:03d}", prediction_boxes(prediction), scene.truth(0, step))
                    result.boxes.setdefault("continuous-detection", []).append(sample)
                if "continuous-occupancy" in continuous:
                    cells = _occupancy(scene, prediction, inference, step)
                    result.occupancy.setdefault("continuous-occupancy", []).extend(cells)
                start = result.clock("look", start)
        if wanted & {"detection", "occupancy"}:
            start = _score_whole(result, scene, perceptron, inference, wanted)
    if "grounding" in wanted:
        lift = None if detections is None else lift_of_file(detections, scene.image_stamps)
        start = _score_sentences(result, scene, inference, window_m, lift)
    if "monocular-detection" in wanted:
        samples = []
        for view, frame in enumerate(scene.frames):
            perceptron = scene_perceptron(inference, 1, window_m)
            perceptron.integrate(frame)
            found = prediction_boxes(predict_everywhere(perceptron))
            samples.append((f"{scene.name}#{view:03d}", found, scene.truth(view, view + 1)))
        result.boxes["monocular-detection"] = samples
        result.clock("monocular", start)
    return result


def _score_whole(
    result: SceneResult, scene: EvaluationScene, perceptron: Perceptron, inference: Predictor, wanted: set[str]
) -> float:
    """Score all views together; returns the time now."""
    start = time.perf_counter()
    prediction = predict_everywhere(perceptron)
    if perceptron.lift is not None and prediction.detections is not None:
        perceptron.perceive(window_m=math.inf)
        prediction = dataclasses.replace(prediction, detections=perceptron.trace["lift"])
    result.windows = len(prediction.parts)
    now = result.clock("look", start)
    if "detection" in wanted:
        result.boxes["detection"] = [(scene.name, prediction_boxes(prediction), scene.truth())]
    if prediction.detections is not None:
        result.outside.update(outside_benchmark(prediction.detections, inference.scores.publish))
    if "occupancy" in wanted:
        result.occupancy["occupancy"] = _occupancy(scene, prediction, inference, len(scene.frames))
    return now


def _score_sentences(
    result: SceneResult,
    scene: EvaluationScene,
    inference: Predictor,
    window_m: float,
    lift: DetectionLift | None,
) -> float:
    """Score sentences on one perception of the whole scene; returns the time now."""
    start = time.perf_counter()
    perceptron = mapped_scene(scene, inference, window_m, every_box=False, lift=lift)
    perception = perceptron.perceive(window_m=math.inf)
    prediction = perceptron.prediction
    assert prediction is not None
    result.windows = len(prediction.parts)
    result.grounding = ground_scene(scene, perceptron, perception, prediction, inference)
    result.boxes["objects"] = [(scene.name, object_boxes(result.grounding.objects), scene.truth())]
    return result.clock("grounding", start)


def prediction_boxes(prediction: ScenePrediction) -> SceneBoxes:
    """All boxes with a name of the benchmark, labels as positions in DETECTION_CLASSES. Raises ``EvaluationError``
    where the prediction failed."""
    found = prediction.detections
    if found is None:
        raise EvaluationError(f"the network gave no prediction: {'; '.join(prediction.diagnostics)}")
    found = found.take(np.flatnonzero([label in _CLASS_INDEX for label in found.labels]))
    return SceneBoxes(found.boxes, np.array([_CLASS_INDEX[n] for n in found.labels], np.int64), found.scores)


def _occupancy(
    scene: EvaluationScene, prediction: ScenePrediction, inference: Predictor, views: int
) -> list[SceneOccupancy]:
    """The network's cells at the centres of the true ones that the first ``views`` views determine."""
    truth = scene.occupancy
    if truth is None:
        return []
    unknown = sorted(set(inference.occupancy_classes) - set(_OCCUPANCY_INDEX))
    if unknown:
        raise EvaluationError(f"the network names occupancy classes that the benchmark lacks: {unknown[:5]}")
    lookup = np.array([0, *(_OCCUPANCY_INDEX[name] for name in inference.occupancy_classes)], np.uint8)
    seen = np.any(np.stack(truth.seen[:views]), axis=0)
    predicted = lookup[cells_at(truth.centers_m, prediction.semantic)].reshape(truth.labels.shape)
    return [SceneOccupancy(predicted, truth.labels, seen)]
