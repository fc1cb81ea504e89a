"""Robustness along one factor at a time, after BEHAVIOR Vision Suite (arXiv 2405.09546): articulation, lighting,
visibility, zoom, pitch, orbit.

Homes are built again from the seeds that a data set stores. For each home and factor some objects are targets, each in
a view of its own; the view is rendered at equally spaced levels of the factor, with everything else unchanged. At each
level the average precision is taken over all views with the target as the only true box: predictions of its class on
another object of that class are ignored, all others that miss it are wrong. The figures are the area under the curve of
AP over the factor and its lowest point.

A :class:`System` is scored: the deployed perceptron on the single picture (3-D boxes, IoU 0.25), or a 2-D detector
(boxes in the picture, IoU 0.5; masks too where it makes them, IoU 0.5 of their pixels).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.config import LiftOptions
from embodied_perceptron.detection2d.association import ious_px
from embodied_perceptron.detection2d.detectors import Detector, OnnxDetector
from embodied_perceptron.detection2d.loading import limits_from_options
from embodied_perceptron.geometry.boxes import box_iou
from embodied_perceptron.geometry.transforms import F64, Intrinsics
from embodied_perceptron.inference.class_priors import shipped_priors
from embodied_perceptron.inference.predictor import Predictor
from embodied_perceptron.recordings.files import write_atomically, write_json
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame
from embodied_perceptron_training.evaluation.metrics.detection import average_precision
from embodied_perceptron_training.evaluation.runner.evaluate import cached_predictor
from embodied_perceptron_training.evaluation.runner.parallel import CorruptSceneError, EvaluationError
from embodied_perceptron_training.evaluation.runner.scene_tasks import predict_everywhere, scene_perceptron
from embodied_perceptron_training.evaluation.suites.report import TABLES
from embodied_perceptron_training.evaluation.suites.scenes import Scored, Suite, SuiteRun, SuiteSpec
from embodied_perceptron_training.homes.building.floorplan import HomeError
from embodied_perceptron_training.homes.building.home import Home, HomeSpec, build_home
from embodied_perceptron_training.homes.factor_sweeps import FACTORS, Factor, FactorFrame, factor_sweep, factor_targets
from embodied_perceptron_training.homes.generate import load_record
from embodied_perceptron_training.homes.trajectories import rgbd_camera
from embodied_perceptron_training.reports import markdown_table

Ranked = tuple[tuple[float, bool], ...]  # (score, whether right) of the target's class in one picture
OUR = ""  # name of the perceptron's figures
DETECTOR, MASKS = "detector", "masks"
IOU_3D, IOU_2D = 0.25, 0.5
OTHER_IOU = 0.3  # with another object of the class: neither right nor wrong
_LEAST_PIXELS = 100  # of the target at the last level, where it is open, lit, free, near, seen from above
_HIDDEN_PIXELS = 25  # fewer at any level: something comes between, which is another factor
_WIDTH, _HEIGHT = 320, 240
_UNASKED = frozenset(("object",))


# -- one picture


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions of a system in one picture."""

    boxes: F64  # (N, 9) in the world, or (N, 4) left, top, right, bottom in pixels
    scores: F64  # (N,)
    labels: tuple[str, ...]  # class names of the homes
    masks: NDArray[np.bool_] | None = None  # (N, H, W) bool, of a 2-D system with masks


class System(Protocol):
    """A system to score; targets without a name in its vocabulary are left out."""

    dimensions: int  # 2 or 3

    @property
    def vocabulary(self) -> frozenset[str]:
        """Class names."""
        ...

    def predict(self, frame: FactorFrame) -> Predictions:
        """Predictions in one picture."""
        ...


class PerceptronSystem:
    """The deployed perceptron after a single picture with its depth."""

    dimensions = 3

    def __init__(self, inference: Predictor) -> None:
        self._inference = inference

    @property
    def vocabulary(self) -> frozenset[str]:
        """Classes of the network."""
        return frozenset(self._inference.classes)

    def predict(self, frame: FactorFrame) -> Predictions:
        """Boxes of any score."""
        perceptron = scene_perceptron(self._inference, 1)
        perceptron.integrate(PosedFrame(_rgbd(frame), frame.view.T_world_camera))
        found = predict_everywhere(perceptron).detections
        if found is None:
            raise EvaluationError("the network gave no prediction")
        return Predictions(found.boxes, found.scores, found.labels)


class DetectorSystem:
    """A 2-D detector; its class names are mapped to those of the homes."""

    dimensions = 2

    def __init__(self, detector: Detector) -> None:
        self._detector = detector
        self._canonical = shipped_priors().canonical

    @property
    def vocabulary(self) -> frozenset[str]:
        """Its class names, mapped to those of the homes."""
        return frozenset(self._canonical(name) for name in self._detector.vocabulary)

    def predict(self, frame: FactorFrame) -> Predictions:
        """Boxes in pixels."""
        found, _ = self._detector.detect(_rgbd(frame))
        labels = tuple(self._canonical(label) for label in found.labels)
        return Predictions(found.boxes_px, found.scores, labels, found.masks)


def _rgbd(frame: FactorFrame) -> RgbdFrame:
    view = frame.view
    return RgbdFrame(1, "camera", view.color, view.depth_m, view.intrinsics)


def match_target(predictions: Predictions, label: str, target_iou: F64, other_iou: F64, min_iou: float) -> Ranked:
    """Match the predictions of a class with one true box, best score first: the first one that overlaps it is right.

    Args:
        predictions: of one picture.
        label: class of the target.
        target_iou: (N,) overlap of each prediction with the target.
        other_iou: (N,) its largest overlap with another object of that class.
        min_iou: least overlap of a match.
    """
    rows = [i for i, name in enumerate(predictions.labels) if name == label]
    found = False
    scored = []
    for i in sorted(rows, key=lambda i: (-float(predictions.scores[i]), i)):
        hit = bool(target_iou[i] >= min_iou)
        if not hit and other_iou[i] > OTHER_IOU:
            continue
        scored.append((float(predictions.scores[i]), hit and not found))
        found |= hit
    return tuple(scored)


def level_ap(ranked: Sequence[Ranked]) -> float:
    """Average precision in percent over pictures, each with one true box. NaN without any."""
    if not ranked:
        return float("nan")
    scored = [pair for picture in ranked for pair in picture]
    order = np.argsort([-score for score, _ in scored], kind="stable")
    right = np.array([hit for _, hit in scored], dtype=np.float64)[order] if scored else np.zeros(0)
    hits = np.cumsum(right)
    return 100.0 * average_precision(hits / len(ranked), hits / np.arange(1, len(hits) + 1))


def curve_figures(ap: Sequence[float]) -> dict[str, float]:
    """Of a curve of AP at equally spaced levels: ``area`` (mean height of the trapezoids) and ``worst`` point."""
    heights = np.array(ap, dtype=np.float64)
    if len(heights) < 2 or not np.isfinite(heights).all():
        raise ValueError(f"a curve needs at least two levels, all of them measured, got {list(ap)}")
    return {"area": float(((heights[1:] + heights[:-1]) / 2).mean()), "worst": float(heights.min())}


# -- one home


@dataclass
class FactorResult:
    """Results of one home.

    Attributes:
        ranked: by (system[/masks], factor), level
        measured: in the pictures, by factor, level
        views: number of targets shown, by factor.
        unasked: targets without a name, by (system, factor)
    """

    ranked: dict[tuple[str, str], list[list[Ranked]]] = field(default_factory=dict)
    measured: dict[str, list[list[float]]] = field(default_factory=dict)
    views: Counter[str] = field(default_factory=Counter)
    unasked: Counter[tuple[str, str]] = field(default_factory=Counter)


def evaluate_home(
    home: Home,
    systems: Mapping[str, System],
    levels: int,
    views: int,
    factors: Sequence[Factor] = FACTORS,
    camera: Intrinsics | None = None,
) -> FactorResult:
    """All factors of one home, with the same targets and views for all systems and in every call.

    A home may have fewer than ``views`` targets (for example no object with a joint).
    """
    camera = rgbd_camera(_WIDTH, _HEIGHT) if camera is None else camera
    result = FactorResult()
    for factor in factors:
        for name in systems:
            result.ranked[name, factor] = [[] for _ in range(levels)]
        result.measured[factor] = [[] for _ in range(levels)]
        for frames in _videos(home, factor, levels, views, camera, systems):
            result.views[factor] += 1
            label = home.objects[frames[0].target_id].label
            for name, system in systems.items():
                if label not in system.vocabulary:
                    result.unasked[name, factor] += 1
                    continue
                for level, frame in enumerate(frames):
                    found = system.predict(frame)
                    ranked = _match_boxes(home, frame, frames[-1], found, system.dimensions)
                    result.ranked[name, factor][level].append(ranked)
                    if found.masks is not None:
                        of_masks = result.ranked.setdefault((f"{name}/{MASKS}", factor), [[] for _ in range(levels)])
                        of_masks[level].append(_match_masks(home, frame, frames[-1], found))
            for level, frame in enumerate(frames):
                result.measured[factor][level].append(frame.measured)
    return result


def _videos(
    home: Home, factor: Factor, levels: int, views: int, camera: Intrinsics, systems: Mapping[str, System]
) -> Iterator[list[FactorFrame]]:
    known = frozenset[str]().union(*(system.vocabulary for system in systems.values())) - _UNASKED
    targets = [number for number in factor_targets(home, factor) if home.objects[number].label in known]
    shown = 0
    for number in np.random.default_rng([home.seed, 53, FACTORS.index(factor)]).permutation(targets).tolist():
        if shown == views:
            return
        try:
            frames = list(factor_sweep(home, factor, int(number), levels, camera))
        except HomeError:
            continue  # hidden from every free place
        least = min(f.target_pixels for f in frames)
        if frames[-1].target_pixels >= _LEAST_PIXELS and (factor == "visibility" or least >= _HIDDEN_PIXELS):
            shown += 1
            yield frames


def _match_boxes(home: Home, frame: FactorFrame, last: FactorFrame, found: Predictions, dimensions: int) -> Ranked:
    label = home.objects[frame.target_id].label
    if dimensions == 3:
        others = [o.box9() for o in home.objects if o.label == label and o.id != frame.target_id]
        boxes = np.stack([frame.box9, *others])
        overlap = box_iou(torch.from_numpy(found.boxes.reshape(-1, 9)), torch.from_numpy(boxes)).numpy()
        return match_target(found, label, overlap[:, 0], overlap[:, 1:].max(axis=1, initial=0.0), IOU_3D)
    numbers = [o.id for o in home.objects if o.label == label and o.id != frame.target_id]
    # behind the screen the target's box is that of the picture without it
    whole = [box for box in (_box_px(frame, frame.target_id), _box_px(last, frame.target_id)) if box is not None][:1]
    others_px = [box for n in numbers if (box := _box_px(frame, n)) is not None]
    target = np.array(whole).reshape(-1, 4)
    return match_target(
        found,
        label,
        ious_px(found.boxes, target).max(axis=1, initial=0.0),
        ious_px(found.boxes, np.array(others_px).reshape(-1, 4)).max(axis=1, initial=0.0),
        IOU_2D,
    )


def _match_masks(home: Home, frame: FactorFrame, last: FactorFrame, found: Predictions) -> Ranked:
    """By pixels; where a screen hides all of the target, those of the picture without the screen."""
    assert found.masks is not None
    label = home.objects[frame.target_id].label
    target = frame.view.instance == frame.target_id + 1
    if not target.any():
        target = last.view.instance == frame.target_id + 1
    others = [frame.view.instance == o.id + 1 for o in home.objects if o.label == label and o.id != frame.target_id]
    overlap = mask_iou(found.masks, np.stack([target, *others]))
    return match_target(found, label, overlap[:, 0], overlap[:, 1:].max(axis=1, initial=0.0), IOU_2D)


def mask_iou(a: NDArray[np.bool_], b: NDArray[np.bool_]) -> F64:
    """(N, H, W) and (M, H, W) masks -> (N, M) IoU of their pixels; 0 for two empty ones."""
    a, b = (m.reshape(len(m), -1).astype(np.float64) for m in (a, b))
    shared = a @ b.T
    union = a.sum(1)[:, None] + b.sum(1)[None] - shared
    return np.asarray(shared / np.maximum(union, 1.0))


def _box_px(frame: FactorFrame, number: int) -> F64 | None:
    rows, columns = np.nonzero(frame.view.instance == number + 1)
    if len(rows) == 0:
        return None
    return np.array([columns.min() - 0.5, rows.min() - 0.5, columns.max() + 0.5, rows.max() + 0.5])


# -- a data set


def home_of(data: str, name: str) -> Home:
    """The home of a sample, built again. Raises :class:`CorruptSceneError` for a sample without a seed."""
    try:
        record = load_record(data, name)
        return build_home(int(record["seed"]), HomeSpec.of_record(record["spec"]["home"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptSceneError(f"{name} is no synthetic home that can be built again: {error!r}") from error


def _evaluate(spec: SuiteSpec, name: str) -> FactorResult:
    systems: dict[str, System] = {OUR: PerceptronSystem(cached_predictor(spec.weights))}
    if spec.detector:
        limits = limits_from_options(LiftOptions(min_score=0.01))
        systems[DETECTOR] = DetectorSystem(OnnxDetector(spec.detector, spec.layout, (), limits))
    return evaluate_home(home_of(spec.data, name), systems, spec.levels, spec.views)


def curves(results: Sequence[FactorResult]) -> dict[str, list[float]]:
    """AP in percent by level for ``<factor>`` and ``<system>/<factor>``; factors without any target are left out."""
    found: dict[str, list[float]] = {}
    for name, factor in dict.fromkeys(key for result in results for key in result.ranked):
        parts = [result.ranked[name, factor] for result in results if (name, factor) in result.ranked]
        levels = [[j for part in parts for j in part[level]] for level in range(len(parts[0]))]
        if levels and levels[0]:
            found[f"{name}/{factor}" if name else factor] = [level_ap(ranked) for ranked in levels]
    return found


def robustness_figures(results: Sequence[FactorResult]) -> dict[str, float]:
    """``<factor>/{area,worst}`` in percent; of a detector under ``detector/``, of masks under ``detector/masks/``."""
    return {
        f"{name}/{figure}": value for name, ap in curves(results).items() for figure, value in curve_figures(ap).items()
    }


def _score(spec: SuiteSpec, results: Sequence[FactorResult]) -> Scored:
    """:func:`robustness_figures` of all homes. Raises :class:`EvaluationError` where no home has a target."""
    figures = robustness_figures(results)
    if not figures:
        raise EvaluationError("no home has a target for any factor")
    views = sum((r.views for r in results), Counter[str]())
    notes: dict[str, object] = {f"views of {factor}": count for factor, count in sorted(views.items())}
    notes["levels"] = spec.levels
    for (name, factor), count in sorted(sum((r.unasked for r in results), Counter[tuple[str, str]]()).items()):
        notes[f"no name for {f'{name}/' if name else ''}{factor}"] = count
    return figures, notes


# -- what it leaves


def curve_data(results: Sequence[FactorResult]) -> dict[str, object]:
    """``{"levels": [...], "ap": {factor: [...]}, "measured": {factor: [...]}}``; AP in percent."""
    ap = curves(results)
    count = len(next(iter(ap.values()), ()))
    measured = {}
    for factor in FACTORS:
        shown = [r.measured[factor] for r in results if r.views[factor]]
        if shown:
            measured[factor] = [float(np.mean([v for part in shown for v in part[level]])) for level in range(count)]
    levels = np.linspace(0.0, 1.0, count).tolist()
    return {"levels": levels, "ap": ap, "measured": measured}


def curves_markdown(results: Sequence[FactorResult]) -> str:
    """A table of AP by factor and level."""
    ap = curves(results)
    count = len(next(iter(ap.values()), ()))
    levels = [f"{level:.2f}" for level in np.linspace(0.0, 1.0, count)]
    table = markdown_table(("axis", *levels), ((n, *(f"{v:.2f}" for v in values)) for n, values in ap.items()))
    return "\n".join(["", "AP in percent over the factor:", "", *table]) + "\n"


def write_robustness(spec: SuiteSpec, run: SuiteRun[FactorResult], out: Path) -> None:
    """Write ``curves.json``, and add the curves to the report's tables."""
    write_json(out / "curves.json", curve_data(run.results))
    tables = (out / TABLES).read_text(encoding="utf-8")
    write_atomically(out / TABLES, (tables + curves_markdown(run.results)).encode())


SUITE = Suite(_evaluate, _score, write_robustness)
