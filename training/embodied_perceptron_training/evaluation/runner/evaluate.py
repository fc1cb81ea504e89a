"""Evaluate weights on a data set: scenes in, figures out. The code under test is the code that runs on a robot."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from embodied_perceptron.geometry.occupancy_grid import WINDOW_M
from embodied_perceptron.inference.loading import load_inference
from embodied_perceptron.inference.predictor import Predictor
from embodied_perceptron.weights.categories import DETECTION_CLASSES, MONOCULAR_CLASSES, OCCUPANCY_CLASSES
from embodied_perceptron_training.datasets.embodiedscan import DatasetError, EmbodiedScanDataset, Prompt
from embodied_perceptron_training.evaluation.metrics.detection import FREQUENCY_GROUPS, SceneBoxes, detection_metrics
from embodied_perceptron_training.evaluation.metrics.occupancy import occupancy_metrics
from embodied_perceptron_training.evaluation.runner.detections import detections_of_scene
from embodied_perceptron_training.evaluation.runner.options import TASKS, VIEWS
from embodied_perceptron_training.evaluation.runner.parallel import (
    MAX_CORRUPT_SHARE,
    CorruptSceneError,
    EvaluationError,
    map_scenes,
)
from embodied_perceptron_training.evaluation.runner.products import ProductFormat, products_in
from embodied_perceptron_training.evaluation.runner.scene_tasks import (
    Sample,
    SceneResult,
    evaluate_scene,
    score_grounding,
)
from embodied_perceptron_training.evaluation.runner.scenes import (
    POINTS_PER_VIEW,
    PUBLISHED_OCCUPANCY_VIEWS,
    PUBLISHED_VIEWS,
    EvaluationScene,
    by_scan,
    load_scene,
)
from embodied_perceptron_training.processes import Workers

ALL_TASKS = ("detection", "occupancy", "grounding")  # of `evaluate all`: one replay serves them
_BY_SENSOR = ("AP25", "AP25_furniture")


@dataclass(frozen=True)
class EvaluationSpec:
    """What to evaluate; plain values, so that they can be sent to worker processes."""

    data: str  # folder in EmbodiedScan's layout
    split: str  # train, val or test
    weights: str  # shipped name or path
    tasks: tuple[str, ...]  # of :data:`.options.TASKS`
    scenes: int | None = None  # number of scenes, from the first; None = all
    views: int = VIEWS  # per scene, evenly spaced; 0 = :func:`default_views`
    turn_seed: int | None = None  # of a random turn and move of every scene; None = no motion
    prompts: str = "vg"  # sentences of ``embodiedscan_<split>_<prompts>.json``
    window_m: float = WINDOW_M  # edge of a prediction window; larger scenes take overlapping windows
    detections: str = ""  # 2-D detections to lift: a file for all scenes, or its name in each scene's folder
    common: bool = False  # count only the 20 classes of the paper's monocular benchmark
    products: ProductFormat = "float32"  # to which factors of products are rounded, as on a GPU

    def __post_init__(self) -> None:
        unknown = [t for t in self.tasks if t not in TASKS]
        if unknown or not self.tasks:
            raise ValueError(f"tasks must be among {', '.join(TASKS)}, got {', '.join(unknown) or 'none'}")
        if self.detections and (alone := set(self.tasks) - {"detection", "occupancy", "grounding"}):
            raise ValueError(f"2-D detections are lifted into whole maps, not for {', '.join(sorted(alone))}")
        if self.views < 0:
            raise ValueError(f"views must not be negative, got {self.views}")
        if self.scenes is not None and self.scenes < 1:
            raise ValueError(f"scenes must be at least 1, got {self.scenes}")


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Figures and their sources."""

    spec: EvaluationSpec  # what was evaluated
    figures: dict[str, float]  # flat, in percent
    results: list[SceneResult]  # per scene
    skipped: dict[str, str]  # unreadable scene -> reason
    known_classes: tuple[str, ...]  # known_classes, true_classes: detection classes of the network, and of the truth
    true_classes: tuple[str, ...]
    seconds: float  # total wall time


def evaluate(
    spec: EvaluationSpec,
    workers: Workers = 1,
    progress: Callable[[int, int], None] | None = None,
    max_corrupt_share: float = MAX_CORRUPT_SHARE,
) -> Evaluation:
    """Replay the scenes and score them; the figures do not depend on the number of workers.

    Raises :class:`EvaluationError` when the network lacks a head that a task needs, when too many scenes are corrupt,
    or when there is nothing to score; and whatever opening the data set or the weights raises.
    """
    start = time.perf_counter()
    spec = dataclasses.replace(spec, views=spec.views or default_views(spec.weights))
    names = scene_names(spec)
    if "grounding" in spec.tasks:
        sentences(spec.data, spec.split, spec.prompts)  # a missing file is no fault of a scene
    inference = cached_predictor(spec.weights)
    check_heads(inference, spec.tasks)
    outcome = map_scenes(functools.partial(_evaluate_scene, spec), names, workers, progress, max_corrupt_share)
    if not outcome.results:
        raise EvaluationError("no scene to score")
    figures = score(of_common(outcome.results) if spec.common else outcome.results, spec.tasks)
    samples = (s for r in outcome.results for listed in r.boxes.values() for s in listed)
    true = {DETECTION_CLASSES[label] for _, _, t in samples for label in t.labels.tolist()}
    return Evaluation(
        spec,
        figures,
        outcome.results,
        outcome.skipped,
        inference.classes,
        tuple(sorted(true)),
        time.perf_counter() - start,
    )


def head_of(task: str) -> str:
    """The head of the network that a task needs: ``detection``, ``occupancy`` or ``grounding``."""
    return task.rpartition("-")[2]


def of_common(results: list[SceneResult]) -> list[SceneResult]:
    """Results with only the boxes, predicted and true, of the 20 classes of monocular detection."""
    counted = [DETECTION_CLASSES.index(name) for name in MONOCULAR_CLASSES]

    def of(boxes: SceneBoxes) -> SceneBoxes:
        return boxes.take(np.isin(boxes.labels, counted))

    return [
        dataclasses.replace(
            r, boxes={task: [(n, of(p), of(t)) for n, p, t in samples] for task, samples in r.boxes.items()}
        )
        for r in results
    ]


def score(results: list[SceneResult], tasks: tuple[str, ...]) -> dict[str, float]:
    """Figures of all scenes together. Where several tasks share a head, names begin with ``<task>/``."""
    figures: dict[str, float] = {}
    kinds = [head_of(task) for task in tasks]
    for task in tasks:
        found = _score_task(results, task)
        prefix = f"{task}/" if kinds.count(head_of(task)) > 1 else ""
        figures.update({prefix + name: round(value, 4) for name, value in found.items()})
    return figures


def _score_task(results: list[SceneResult], task: str) -> dict[str, float]:
    if head_of(task) == "detection":
        samples = [s for r in results for s in r.boxes.get(task, [])]
        figures = score_boxes(samples)
        for sensor in sorted({r.sensor for r in results if r.sensor and r.boxes.get(task)}):
            of_sensor = score_boxes([s for r in results if r.sensor == sensor for s in r.boxes.get(task, [])])
            figures |= {f"{name}/sensor {sensor}": of_sensor[name] for name in _BY_SENSOR if name in of_sensor}
        if task == "continuous-detection":
            last = [r.boxes[task][-1] for r in results if r.boxes.get(task)]
            figures |= {f"last/{k}": v for k, v in score_boxes(last).items() if "/" not in k}
        return figures
    if head_of(task) == "occupancy":
        cells = [s for r in results for s in r.occupancy.get(task, [])]
        if not cells:
            raise EvaluationError("no scene has occupancy truth")
        figures = occupancy_metrics(cells, OCCUPANCY_CLASSES)
        if task == "continuous-occupancy":
            last = [r.occupancy[task][-1] for r in results if r.occupancy.get(task)]
            figures["last/mIoU"] = occupancy_metrics(last, OCCUPANCY_CLASSES)["mIoU"]
        return figures
    answers = [r.grounding for r in results if r.grounding is not None]
    if not any(a.queries["fused"] for a in answers):
        raise EvaluationError("no scene has sentences about what its views show")
    objects = score_boxes([s for r in results for s in r.boxes.get("objects", [])])
    return score_grounding(answers) | {f"objects/{k}": v for k, v in objects.items() if "/" not in k}


def score_boxes(samples: list[Sample]) -> dict[str, float]:
    """Detection figures of samples; every sample counts as a scene."""
    return detection_metrics(
        {name: found for name, found, _ in samples},
        {name: true for name, _, true in samples},
        DETECTION_CLASSES,
        FREQUENCY_GROUPS,
    )


def check_heads(inference: Predictor, tasks: tuple[str, ...]) -> None:
    """Raise :class:`EvaluationError` for a task whose head the network lacks."""
    config = inference.network.config
    for task in tasks:
        if getattr(config, head := head_of(task)) is None:
            raise EvaluationError(f"{task} needs a network with a {head} head; these weights have none")


def scene_names(spec: EvaluationSpec) -> list[str]:
    """Names of the scenes in order. Raises :class:`EvaluationError` where there is none."""
    names = [scan.sample_idx for scan in dataset(spec.data, spec.split)]
    if not names:
        raise EvaluationError(f"{spec.data} has no scene in split {spec.split}")
    return names[: spec.scenes]


def _evaluate_scene(spec: EvaluationSpec, name: str) -> SceneResult:
    scene = load(spec, name)
    file = detections_of_scene(spec.data, name, spec.detections) if spec.detections else None
    with products_in(spec.products):
        return evaluate_scene(scene, cached_predictor(spec.weights), spec.tasks, spec.window_m, file)


def load(spec: EvaluationSpec, name: str) -> EvaluationScene:
    """Load one scene. Raises :class:`CorruptSceneError` for missing or damaged files."""
    try:
        return load_scene(
            dataset(spec.data, spec.split),
            name,
            spec.views,
            spec.turn_seed,
            occupancy=any(head_of(task) == "occupancy" for task in spec.tasks),
            prompts=sentences(spec.data, spec.split, spec.prompts) if "grounding" in spec.tasks else None,
            negatives=sentences(spec.data, spec.split, "negatives") if "grounding" in spec.tasks else None,
            points=POINTS_PER_VIEW if reads_points(spec.weights) else 0,
        )
    except (DatasetError, OSError, ValueError, KeyError) as error:
        raise CorruptSceneError(f"{type(error).__name__}: {error}") from error


@functools.lru_cache(maxsize=2)
def dataset(data: str, split: str) -> EmbodiedScanDataset:
    """The data set, opened once per process. Raises as :class:`EmbodiedScanDataset`."""
    return EmbodiedScanDataset(Path(data), split)


@functools.lru_cache(maxsize=4)
def sentences(data: str, split: str, name: str) -> dict[str, list[Prompt]]:
    """Sentences of one file by scan; none where the file of ``negatives`` is missing (EmbodiedScan has none)."""
    try:
        return by_scan(dataset(data, split).prompts(name))
    except FileNotFoundError:
        if name == "negatives":
            return {}
        raise


def reads_points(weights: str) -> bool:
    """Whether the network reads sampled points (``paper``) and not a map."""
    return cached_predictor(weights).network.config.inputs == "xyz"


def default_views(weights: str) -> int:
    """Views of a scene: for networks of ``paper`` the published numbers at inference."""
    if not reads_points(weights):
        return VIEWS
    return PUBLISHED_OCCUPANCY_VIEWS if cached_predictor(weights).network.config.occupancy else PUBLISHED_VIEWS


@functools.lru_cache(maxsize=2)
def cached_predictor(weights: str) -> Predictor:
    """The predictor of a weights file, loaded once per process. Raises as ``load_inference``."""
    return load_inference(weights, "auto")
