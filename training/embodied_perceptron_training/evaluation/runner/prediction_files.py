"""Score predictions from JSON files.

detection   {"classes": [name...], "scenes": {id: {"boxes": [[9]...], "labels": [int...], "scores": [float...]}}}
            scores in predictions only; the ground truth may have "groups": {"head": [class...], ...}
occupancy   {"scenes": {id: {"labels": [int...], "mask": [0/1...]}}}
            labels 0 = free, 1.. = classes, 255 = unknown; mask (observed voxels) in the ground truth, optional;
            "classes": [name...] in the ground truth names labels 1.., by default their numbers are the names
grounding   {"queries": [{"boxes": [[9]...], "scores": [float...]}]}   predictions, in the order of the ground truth
            {"queries": [{"box": [9] or [[9]...], "hard": bool, "view_dependent": bool, "unique": bool}]}
            flags are optional; predicted boxes are ranked by their scores, or taken as ranked without scores
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from embodied_perceptron.weights.categories import OCCUPANCY_IGNORED
from embodied_perceptron_training.evaluation.metrics.detection import SceneBoxes, detection_metrics
from embodied_perceptron_training.evaluation.metrics.grounding import OPPOSITES, GroundingQuery, grounding_metrics
from embodied_perceptron_training.evaluation.metrics.occupancy import SceneOccupancy, occupancy_metrics

Metric = Literal["detection", "grounding", "occupancy"]


def evaluate_files(metric: Metric, predictions: Path, truth: Path) -> dict[str, float]:
    """Flat figures of two files. Raises ``ValueError`` naming the file and the entry that does not fit the format."""
    mine, theirs = _read(predictions), _read(truth)
    evaluate = {"detection": _detection, "grounding": _grounding, "occupancy": _occupancy}[metric]
    try:
        return evaluate(mine, theirs)
    except _EntryError as error:
        raise ValueError(f"{truth if error.in_truth else predictions}: {error}") from error
    except ValueError as error:
        raise ValueError(f"{predictions} against {truth}: {error}") from error


class _EntryError(ValueError):
    def __init__(self, message: str, in_truth: bool) -> None:
        super().__init__(message)
        self.in_truth = in_truth


def _read(path: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ValueError(f"{path} must hold an object, got {type(data).__name__}")
    return data


def _entry(data: Any, key: str, where: str, kind: type, in_truth: bool) -> Any:
    if not isinstance(data, dict) or key not in data:
        raise _EntryError(f"{where} has no {key!r}", in_truth)
    if not isinstance(data[key], kind):
        raise _EntryError(f"{where}: {key!r} must be a {kind.__name__}, got {type(data[key]).__name__}", in_truth)
    return data[key]


def _array(values: Any, dtype: type, what: str, in_truth: bool) -> np.ndarray[Any, Any]:
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise _EntryError(f"{what}: {error}", in_truth) from error
    integer_wanted = np.issubdtype(dtype, np.integer)
    if array.size and not np.issubdtype(array.dtype, np.integer if integer_wanted else np.number):
        raise _EntryError(f"{what} must be {'integers' if integer_wanted else 'numbers'}", in_truth)
    return array.astype(dtype)


def _boxes(values: Any, what: str, in_truth: bool) -> np.ndarray[Any, Any]:
    array = _array(values, np.float64, what, in_truth)
    array = array.reshape(-1, 9) if array.size == 0 or array.shape == (9,) else array
    if array.ndim != 2 or array.shape[1] != 9:
        raise _EntryError(f"{what} must be lists of nine numbers, got shape {array.shape}", in_truth)
    return array


def _detection(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, float]:
    classes = _entry(theirs, "classes", "file", list, True)
    if _entry(mine, "classes", "file", list, False) != classes:
        raise _EntryError("'classes' differ from those of the ground truth", False)
    groups = theirs.get("groups", {})
    if not isinstance(groups, dict):
        raise _EntryError("'groups' must be an object", True)
    return detection_metrics(_scene_boxes(mine, False), _scene_boxes(theirs, True), classes, groups)


def _scene_boxes(data: Mapping[str, Any], in_truth: bool) -> dict[str, SceneBoxes]:
    scenes = {}
    for name, scene in _entry(data, "scenes", "file", dict, in_truth).items():
        where = f"scene {name!r}"
        boxes = _boxes(_entry(scene, "boxes", where, list, in_truth), f"{where}: 'boxes'", in_truth)
        labels = _array(_entry(scene, "labels", where, list, in_truth), np.int64, f"{where}: 'labels'", in_truth)
        scores = None
        if not in_truth:
            listed = _entry(scene, "scores", where, list, in_truth)
            scores = _array(listed, np.float64, f"{where}: 'scores'", in_truth)
        try:
            scenes[name] = SceneBoxes(boxes, labels, scores)
        except ValueError as error:
            raise _EntryError(f"{where}: {error}", in_truth) from error
    return scenes


def _occupancy(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, float]:
    predicted = _entry(mine, "scenes", "file", dict, False)
    truth = _entry(theirs, "scenes", "file", dict, True)
    if set(predicted) != set(truth):
        odd = min(set(predicted) ^ set(truth))
        raise ValueError(f"scene {odd!r} is in one of the files only")
    scenes, highest = [], 0
    for name, scene in truth.items():
        where = f"scene {name!r}"
        t = _array(_entry(scene, "labels", where, list, True), np.int64, f"{where}: 'labels'", True)
        p = _array(_entry(predicted[name], "labels", where, list, False), np.int64, f"{where}: 'labels'", False)
        mask = None
        if "mask" in scene:
            mask = _array(_entry(scene, "mask", where, list, True), np.int64, f"{where}: 'mask'", True) != 0
        if p.shape != t.shape or (mask is not None and mask.shape != t.shape):
            raise _EntryError(f"{where}: {p.shape} labels for {t.shape} in the ground truth", False)
        scenes.append(SceneOccupancy(p, t, mask))
        known = t[t != OCCUPANCY_IGNORED]
        highest = max(highest, int(known.max(initial=0)), int(p.max(initial=0)))
    classes = theirs.get("classes", [str(i) for i in range(1, highest + 1)])
    return occupancy_metrics(scenes, classes)


def _grounding(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, float]:
    predicted = _entry(mine, "queries", "file", list, False)
    truth = _entry(theirs, "queries", "file", list, True)
    if len(predicted) != len(truth):
        raise ValueError(f"{len(predicted)} predictions for {len(truth)} queries")
    queries = []
    for i, (p, t) in enumerate(zip(predicted, truth, strict=True)):
        boxes = _boxes(_entry(p, "boxes", f"query {i}", list, False), f"query {i}: 'boxes'", False)
        if "scores" in p:
            scores = _array(p["scores"], np.float64, f"query {i}: 'scores'", False)
            if scores.shape != (len(boxes),):
                raise _EntryError(f"query {i}: {len(boxes)} boxes have {scores.size} scores", False)
            boxes = boxes[np.argsort(-scores, kind="stable")]
        target = _boxes(_entry(t, "box", f"query {i}", list, True), f"query {i}: 'box'", True)
        flags = {name: bool(t[name]) for name in OPPOSITES if name in t}
        queries.append(GroundingQuery(boxes, target, flags))
    return grounding_metrics(queries)
