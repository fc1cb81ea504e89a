"""Score predictions from JSON files, whose formats `evaluate files --help` describes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.recordings import plain_values as checked
from embodied_perceptron.recordings.files import read_json
from embodied_perceptron.weights.categories import OCCUPANCY_IGNORED
from embodied_perceptron_training.evaluation.metrics.detection import SceneBoxes, detection_metrics
from embodied_perceptron_training.evaluation.metrics.grounding import OPPOSITES, GroundingQuery, grounding_metrics
from embodied_perceptron_training.evaluation.metrics.occupancy import SceneOccupancy, occupancy_metrics

Metric = Literal["detection", "grounding", "occupancy"]


def evaluate_files(metric: Metric, predictions: Path, truth: Path) -> dict[str, float]:
    """Flat figures of two files. Raises ``ValueError`` naming the entry that does not fit the format."""
    evaluate = {"detection": _detection, "grounding": _grounding, "occupancy": _occupancy}[metric]
    return evaluate(*(_Entry(read_json(path), str(path)) for path in (predictions, truth)))


@dataclass(frozen=True)
class _Entry:
    """A value of a file, and its place in messages. All methods raise ``ValueError`` with the place."""

    value: Any
    place: str

    def entry(self, key: str, check: Callable[[Any, str], Any] = checked.sequence) -> _Entry:
        """The value of a key, which has to be there, checked."""
        values = checked.mapping(self.value, self.place)
        if key not in values:
            raise ValueError(f"{self.place} has no {key!r}")
        place = f"{self.place}: {key!r}"
        return _Entry(check(values[key], place), place)

    def scenes(self) -> dict[str, _Entry]:
        """By name."""
        scenes = self.entry("scenes", checked.mapping).value
        return {name: _Entry(scene, f"{self.place}: scene {name!r}") for name, scene in scenes.items()}

    def queries(self) -> list[_Entry]:
        """In their order."""
        return [_Entry(query, f"{self.place}: query {i}") for i, query in enumerate(self.entry("queries").value)]

    def array(self, key: str, dtype: type) -> NDArray[Any]:
        """A list as an array."""
        listed = self.entry(key)
        try:
            array = np.asarray(listed.value)
        except ValueError as error:
            raise ValueError(f"{listed.place}: {error}") from error
        kind, name = (np.integer, "integers") if np.issubdtype(dtype, np.integer) else (np.number, "numbers")
        if array.size and not np.issubdtype(array.dtype, kind):
            raise ValueError(f"{listed.place} must be {name}")
        return array.astype(dtype)

    def boxes(self, key: str) -> NDArray[np.float64]:
        """(N, 9), also of a single box."""
        array = self.array(key, np.float64)
        array = array.reshape(-1, 9) if array.size == 0 or array.shape == (9,) else array
        if array.ndim != 2 or array.shape[1] != 9:
            raise ValueError(f"{self.place}: {key!r} must be lists of nine numbers, got shape {array.shape}")
        return array


def _detection(mine: _Entry, theirs: _Entry) -> dict[str, float]:
    classes = theirs.entry("classes").value
    if mine.entry("classes").value != classes:
        raise ValueError(f"{mine.place}: 'classes' differ from those of the ground truth")
    groups = checked.mapping(theirs.value.get("groups", {}), f"{theirs.place}: 'groups'")
    return detection_metrics(_scene_boxes(mine, True), _scene_boxes(theirs, False), classes, groups)


def _scene_boxes(file: _Entry, scored: bool) -> dict[str, SceneBoxes]:
    scenes = {}
    for name, scene in file.scenes().items():
        boxes, labels = scene.boxes("boxes"), scene.array("labels", np.int64)
        scores = scene.array("scores", np.float64) if scored else None
        try:
            scenes[name] = SceneBoxes(boxes, labels, scores)
        except ValueError as error:
            raise ValueError(f"{scene.place}: {error}") from error
    return scenes


def _occupancy(mine: _Entry, theirs: _Entry) -> dict[str, float]:
    predicted, truth = mine.scenes(), theirs.scenes()
    if odd := set(predicted) ^ set(truth):
        raise ValueError(f"scene {min(odd)!r} is in one of {mine.place} and {theirs.place} only")
    scenes, highest = [], 0
    for name, scene in truth.items():
        t, p = scene.array("labels", np.int64), predicted[name].array("labels", np.int64)
        mask = scene.array("mask", np.int64) != 0 if "mask" in scene.value else None
        if p.shape != t.shape or (mask is not None and mask.shape != t.shape):
            raise ValueError(f"{predicted[name].place}: {p.shape} labels for {t.shape} in the ground truth")
        scenes.append(SceneOccupancy(p, t, mask))
        known = t[t != OCCUPANCY_IGNORED]
        highest = max(highest, int(known.max(initial=0)), int(p.max(initial=0)))
    classes = theirs.value.get("classes", [str(i) for i in range(1, highest + 1)])
    return occupancy_metrics(scenes, classes)


def _grounding(mine: _Entry, theirs: _Entry) -> dict[str, float]:
    predicted, truth = mine.queries(), theirs.queries()
    if len(predicted) != len(truth):
        raise ValueError(f"{mine.place}: {len(predicted)} predictions for {len(truth)} queries")
    queries = []
    for p, t in zip(predicted, truth, strict=True):
        boxes = p.boxes("boxes")
        if "scores" in p.value:
            scores = p.array("scores", np.float64)
            if scores.shape != (len(boxes),):
                raise ValueError(f"{p.place}: {len(boxes)} boxes have {scores.size} scores")
            boxes = boxes[np.argsort(-scores, kind="stable")]
        target = t.boxes("box")
        queries.append(
            GroundingQuery(boxes, target, {name: bool(t.value[name]) for name in OPPOSITES if name in t.value})
        )
    return grounding_metrics(queries)
