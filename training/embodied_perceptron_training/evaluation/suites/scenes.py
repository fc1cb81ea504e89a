"""What the suites of other systems share: what to run on, its scenes, and the driver.

The map of a scene is built from all of its used views and perceived as a whole. Ground truth enters no answer, except
that of the upper bounds (``bound_*``), whose masks are those of a detector without faults or with simulated ones.

Synthetic homes have instance images, in which visible pixels are counted. For real scans the infos say which instances
a view shows.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import Perception
from embodied_perceptron_training.evaluation.runner.evaluate import (
    EvaluationSpec,
    cached_predictor,
    dataset,
    load,
    scene_names,
)
from embodied_perceptron_training.evaluation.runner.parallel import CorruptSceneError, EvaluationError, map_scenes
from embodied_perceptron_training.evaluation.runner.scene_tasks import mapped_scene
from embodied_perceptron_training.evaluation.runner.scenes import EvaluationScene, choose_views
from embodied_perceptron_training.homes.generate import load_record
from embodied_perceptron_training.processes import Workers

I64 = NDArray[np.int64]
Result = TypeVar("Result")
Progress = Callable[[int, int], None]
Scored = tuple[dict[str, float], dict[str, Any]]  # figures in percent, and notes about the run
UNNAMED = frozenset(("object",))
STRUCTURE = frozenset(("wall", "floor", "ceiling"))


@dataclass(frozen=True)
class SuiteSpec:
    """What to run on; plain values, so that they can be sent to worker processes. Without ``training`` 3D-POPE uses the
    scene list of the shipped weights for homes and the training split of the data for real scans; without
    ``references`` ARKitSceneRefer asks one sentence for each small object."""

    data: str  # folder in EmbodiedScan's layout, homes with instance images
    split: str = "test"  # train, val or test
    weights: str = "tiny"  # shipped name or path
    scenes: int | None = None  # number of scenes, from the first; None = all
    views: int = 20  # per scene, evenly spaced
    seed: int = 0  # of random negatives and of the noisy detector
    training: str | None = None  # scene list of the training set for 3D-POPE
    references: str | None = None  # ARKitSceneRefer records about the scans
    detector: str = ""  # detector, layout: ONNX file of a 2-D detector to lift too; "" = none, or recognised
    layout: str = ""
    cluster_m: float = 0.02  # largest distance of hits in a cluster, as published for every tenth frame of a video
    levels: int = 5  # of each factor of robustness, where ``views`` is the number of targets of each home and factor

    def __post_init__(self) -> None:
        if self.levels < 2:
            raise EvaluationError(f"a curve needs at least two levels, got {self.levels}")
        if self.layout and not self.detector:
            raise EvaluationError("--detector-layout needs a --detector")

    @property
    def plain(self) -> EvaluationSpec:
        """Scenes and network."""
        return EvaluationSpec(self.data, self.split, self.weights, ("detection",), self.scenes, self.views)


@dataclass(frozen=True, eq=False)
class SuiteRun(Generic[Result]):
    """Figures in percent, results per scene, skipped scenes with reasons, notes about the run, and wall seconds."""

    figures: dict[str, float]
    results: list[Result]
    skipped: dict[str, str]
    notes: dict[str, Any]
    seconds: float


@dataclass(frozen=True, eq=False)
class SuiteScene:
    """A scene, with instance images where it is a synthetic home."""

    scene: EvaluationScene  # frames and truth
    instances: tuple[I64, ...] | None  # per frame (H, W) int64 annotation ids, -1 = none; None for a real scan

    @property
    def label_of(self) -> dict[int, str]:
        """Class by annotation id."""
        return dict(zip(self.scene.ids.tolist(), self.scene.labels, strict=True))


def is_home(name: str) -> bool:
    """Whether a scan is a synthetic home, by its sample_idx."""
    return name.split("/")[0] == "synthetic"


def load_suite_scene(spec: SuiteSpec, name: str) -> SuiteScene:
    """Read a scene. Raises :class:`CorruptSceneError` naming a file that is missing or does not fit."""
    scene = load(spec.plain, name)
    if not is_home(name):
        return SuiteScene(scene, None)
    try:
        images = dataset(spec.data, spec.split).by_name(name).images
        record = load_record(spec.data, name)
        number = {int(i["object_id"]) + 1: int(i["bbox_id"]) for i in record["instances"]}
    except (OSError, ValueError, KeyError) as error:
        raise CorruptSceneError(f"{name}: the record has no instances of a synthetic home: {error}") from error
    found = []
    for frame, view in zip(scene.frames, choose_views(len(images), spec.views), strict=True):
        color = images[view].color_path
        path = color.parent.parent / "ids" / f"{color.stem}.png"
        image = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        if image is None or image.shape != frame.frame.depth_m.shape:
            raise CorruptSceneError(f"{path} is missing or not of the depth image's size")
        lookup = np.full(int(image.max()) + 1, -1, np.int64)
        for pixel, annotation in number.items():
            if pixel < len(lookup):
                lookup[pixel] = annotation
        found.append(lookup[image])
    return SuiteScene(scene, tuple(found))


def perceive_scene(spec: SuiteSpec, scene: EvaluationScene) -> tuple[Perceptron, Perception]:
    """The deployed perceptron after all views, and its perception of the whole scene."""
    perceptron = mapped_scene(scene, cached_predictor(spec.weights), every_box=False)
    return perceptron, perceptron.perceive(window_m=math.inf)


@dataclass(frozen=True)
class Suite(Generic[Result]):
    """The parts of a suite; ``evaluate`` can be sent to worker processes.

    Attributes:
        evaluate: result of one scene, by name.
        score: figures and notes of all results.
        write: writes further files of a run into a folder.
        check: raises for wrong settings, which are no fault of a scene.
    """

    evaluate: Callable[[SuiteSpec, str], Result]
    score: Callable[[SuiteSpec, list[Result]], Scored]
    write: Callable[[SuiteSpec, SuiteRun[Result], Path], None]
    check: Callable[[SuiteSpec], object] = lambda spec: None

    def run(self, spec: SuiteSpec, workers: Workers = 1, progress: Progress | None = None) -> SuiteRun[Result]:
        """Evaluate every scene of ``spec``, then score all results.

        Raises :class:`EvaluationError` where no scene is left, and what the parts raise.
        """
        start = time.perf_counter()
        self.check(spec)
        outcome = map_scenes(functools.partial(self.evaluate, spec), scene_names(spec.plain), workers, progress)
        if not outcome.results:
            raise EvaluationError("no scene to score")
        figures, notes = self.score(spec, outcome.results)
        return SuiteRun(figures, outcome.results, outcome.skipped, notes, time.perf_counter() - start)
