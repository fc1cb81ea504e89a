"""From which score on a box is an object: the score by which final maps are most right, or the least one by which
enough of what they name is right.

The network predicts once per step of a trajectory; what the map makes of these predictions is then replayed for every
score of the grid. What is counted are the confirmed objects with a name, as they are published: right when of the class
and IoU > 0.25 with something that the views show and that no better object has found. The chosen score has the best F1
over all scenes, or is the lowest one with the wanted precision.

Of a network that tells things without a name, these are asked first: from which score on enough of them are where
something is, whatever it is called. Their scores are then shifted so that this one counts as the chosen one.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.config import PerceptronConfig, ScorePolicy, TrackingConfig
from embodied_perceptron.geometry.boxes import box_iou
from embodied_perceptron.geometry.manhattan import Region
from embodied_perceptron.inference.confidence_calibration import ConfidenceCalibration
from embodied_perceptron.inference.naming import USUAL, Naming, shift_between
from embodied_perceptron.inference.predictor import Predictor
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import UNNAMED, Detections, ObjectState, SceneObject, VoxelSnapshot
from embodied_perceptron.scene.object_map import ObjectMap
from embodied_perceptron.weights import shipped
from embodied_perceptron.weights.checkpoint import load_checkpoint, save_checkpoint
from embodied_perceptron_training.evaluation.metrics.detection import SceneBoxes
from embodied_perceptron_training.evaluation.runner.evaluate import (
    EvaluationSpec,
    cached_predictor,
    check_heads,
    load,
    scene_names,
)
from embodied_perceptron_training.evaluation.runner.parallel import EvaluationError, map_scenes
from embodied_perceptron_training.evaluation.runner.scene_tasks import evaluation_config, is_in_benchmark, object_boxes
from embodied_perceptron_training.evaluation.runner.scenes import EvaluationScene
from embodied_perceptron_training.processes import Workers

EVEN = (0.06, 0.08, 0.1, 0.12, 0.14, 0.16, 0.18, 0.2, 0.22, 0.25, 0.28, 0.32, 0.36, 0.4, 0.45, 0.5, 0.6)
SCORES = EVEN
IOU = 0.25
_Z90 = 1.6449  # standard deviations
PERIOD_NS = 500_000_000  # a robot perceives about twice a second, however far apart a benchmark's views are


@dataclass(frozen=True, eq=False)
class TimedPrediction:
    """One prediction along a trajectory: what the map of objects is updated with."""

    now_ns: int
    found: Detections
    snapshot: VoxelSnapshot
    camera_m: NDArray[np.float64]
    region: Region
    step: int = 0  # views so far


@dataclass(frozen=True)
class Point:
    """The curve at one score: confirmed objects with a name that are right, all of them, and all that was there to
    find.

    Attributes:
        things, things_right: objects without a name, and those of them that are where something is.
        right_flags: whether each object is right, with a name or without; published: for each score of :data:`EVEN`,
            what their scores would be if a box of that score were as likely right as wrong.
    """

    min_score: float
    right: int
    found: int
    true: int
    things: int = 0
    things_right: int = 0
    right_flags: tuple[bool, ...] = field(default=(), repr=False)
    published: tuple[tuple[float, ...], ...] = field(default=(), repr=False)

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

    def pairs(self, even: float) -> list[tuple[float, bool]]:
        """(published score, right) of each object, where a box of score ``even`` (one of :data:`EVEN`) is as likely
        right as wrong."""
        if not self.published:
            return []
        return list(zip(self.published[EVEN.index(even)], self.right_flags, strict=True))

    @property
    def even(self) -> tuple[float, float]:
        """The score at which a box is as likely right as wrong, and with it the mean gap between the scores of what is
        published and the share of it that is right, over bins of scores."""
        if not self.published:
            return self.min_score, 0.0
        error, even = min((self.error(even), even) for even in EVEN)
        return even, error

    def error(self, even: float) -> float:
        """The mean gap between published scores and the share that is right; see :meth:`pairs`."""
        return calibration_error(self.pairs(even))


@dataclass(frozen=True, eq=False)
class Calibration:
    """The curve over all scenes, what was skipped and why, and wall seconds.

    Attributes:
        known_even: the score at which a box is as likely right as wrong, of scores that are probabilities.
    """

    curve: tuple[Point, ...]
    scenes: int
    skipped: dict[str, str]
    seconds: float
    precision: float = 0.0
    nameless_min_score: float | None = None
    known_even: float | None = None

    def even(self, point: Point) -> tuple[float, float]:
        """As :attr:`Point.even`, at the known score where there is one."""
        return point.even if self.known_even is None else (self.known_even, point.error(self.known_even))

    @property
    def best(self) -> Point:
        """With a wanted ``precision`` the lowest score that reaches it, or where none does the most precise one.
        Otherwise the point with the best F1; of equal ones that with the highest score, which publishes least."""
        if self.precision:
            enough = [p for p in self.curve if p.found and p.precision >= self.precision]
            if enough:
                return min(enough, key=lambda p: p.min_score)
            return max(self.curve, key=lambda p: (p.precision, p.right))
        return max(self.curve, key=lambda p: (p.f1, p.min_score))


def robot_config(views: int, base: PerceptronConfig | None = None) -> PerceptronConfig:
    """As :func:`evaluation_config`, with objects kept as a robot keeps them."""
    base = PerceptronConfig() if base is None else base
    return dataclasses.replace(evaluation_config(views, base.network.window_m, base), objects=base.objects)


def predict_around(scene: EvaluationScene, inference: Predictor, every: int) -> list[TimedPrediction]:
    """Integrate the views one by one and predict around the camera after each ``every``, and after the last."""
    perceptron = Perceptron(robot_config(len(scene.frames)), inference=inference)
    predictions: list[TimedPrediction] = []
    for step, frame in enumerate(scene.frames, start=1):
        perceptron.integrate(frame)
        if step % every and step < len(scene.frames):
            continue
        now_ns = (len(predictions) + 1) * PERIOD_NS
        perception = perceptron.perceive(now_ns)
        prediction = perceptron.prediction
        if prediction is None or prediction.detections is None or perception.voxels is None:
            reason = "no prediction" if prediction is None else "; ".join(prediction.diagnostics)
            raise EvaluationError(f"{scene.name}: the network gave no prediction: {reason}")
        camera_m = frame.T_world_camera[:3, 3].copy()
        predictions.append(
            TimedPrediction(now_ns, prediction.detections, perception.voxels, camera_m, prediction.region, step)
        )
    return predictions


def final_objects(
    predictions: Sequence[TimedPrediction], config: TrackingConfig, policy: ScorePolicy
) -> tuple[SceneObject, ...]:
    """Confirmed objects after all predictions, as a perceptron with this policy publishes them."""
    return final_map(predictions, config, policy).objects((ObjectState.CONFIRMED,))


def final_map(predictions: Sequence[TimedPrediction], config: TrackingConfig, policy: ScorePolicy) -> ObjectMap:
    """The map of objects after all predictions."""
    objects = ObjectMap(config)
    for step in predictions:
        objects.update(step.found, step.snapshot, step.now_ns, step.camera_m, looked_at=step.region, scores=policy)
    return objects


def count_right(found: SceneBoxes, truth: SceneBoxes, iou: float = IOU) -> int:
    """How many predictions find something, see :func:`right_flags`."""
    return int(right_flags(found, truth, iou).sum())


def right_flags(found: SceneBoxes, truth: SceneBoxes, iou: float = IOU) -> NDArray[np.bool_]:
    """(N,) whether each prediction finds something: best score first, each the one of its class that it overlaps most
    of those that are left, by more than ``iou``."""
    if found.scores is None:
        raise ValueError("predictions have no scores")
    right = np.zeros(len(found.boxes), bool)
    if len(found.boxes) == 0 or len(truth.boxes) == 0:
        return right
    overlap = box_iou(torch.from_numpy(found.boxes), torch.from_numpy(truth.boxes)).numpy()
    overlap = np.where(found.labels[:, None] == truth.labels[None, :], overlap, 0.0)
    for row in np.argsort(-found.scores, kind="stable"):
        best = int(overlap[row].argmax())
        if overlap[row, best] > iou:
            right[row] = True
            overlap[:, best] = 0.0
    return right


def calibration_error(published: Sequence[tuple[float, bool]], bins: int = 10) -> float:
    """Mean over objects of the gap between mean score and share of right ones in their bin of scores, in [0, 1]."""
    if not published:
        return 0.0
    scores, right = np.array([s for s, _ in published]), np.array([r for _, r in published], float)
    bin_of = np.minimum((scores * bins).astype(int), bins - 1)
    gaps = [abs(scores[bin_of == b].sum() - right[bin_of == b].sum()) for b in range(bins)]
    return float(sum(gaps) / len(published))


@dataclass(frozen=True)
class ReliabilityBin:
    """Objects whose published scores lie in [begin, end).

    Attributes:
        count: of them. score: their mean. right: the share that is right.
        low, high: 90 % interval of that share if every object were drawn anew (Wilson).
    """

    begin: float
    end: float
    count: int = 0
    score: float = 0.0
    right: float = 0.0
    low: float = 0.0
    high: float = 1.0


def reliability_curve(published: Sequence[tuple[float, bool]], bins: int = 10) -> tuple[ReliabilityBin, ...]:
    """Of (score, right) pairs, by score in [0, 1]; a score of 1 belongs to the last bin."""
    scores, right = np.array([s for s, _ in published]), np.array([r for _, r in published], float)
    bin_of = np.minimum((scores * bins).astype(int), bins - 1)
    curve = []
    for k in range(bins):
        mine = bin_of == k
        count, edges = int(mine.sum()), (k / bins, (k + 1) / bins)
        if not count:
            curve.append(ReliabilityBin(*edges))
            continue
        share, z2 = float(right[mine].mean()), _Z90**2
        middle = (share + z2 / (2 * count)) / (1 + z2 / count)
        reach = _Z90 * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2)) / (1 + z2 / count)
        low, high = max(0.0, middle - reach), min(1.0, middle + reach)
        curve.append(ReliabilityBin(*edges, count, float(scores[mine].mean()), share, low, high))
    return tuple(curve)


def lowest_precise(pairs: Sequence[tuple[float, bool]], precision: float, least: int = 20) -> float | None:
    """The lowest score from which on ``precision`` of the pairs (score, right) are right, of at least so many; None
    where no score does it."""
    ordered = sorted(pairs, reverse=True)
    found, right, best = 0, 0, None
    for k, (score, is_right) in enumerate(ordered):
        found, right = found + 1, right + is_right
        last = k + 1 == len(ordered) or ordered[k + 1][0] < score
        if last and found >= least and right >= precision * found:
            best = score
    return best


def _predictions(spec: EvaluationSpec, every: int, name: str) -> tuple[EvaluationScene, list[TimedPrediction]]:
    """Looks with boxes of all kinds, and their scores as the network or its model of them gives them."""
    scene = load(spec, name)
    inference = copy.copy(cached_predictor(spec.weights))
    inference.naming = None
    return scene, predict_around(scene, inference, every)


@dataclass(frozen=True)
class _Things:
    """(score, whether something is there) of every thing without a name in all predictions of a scene."""

    spec: EvaluationSpec
    every: int

    def __call__(self, name: str) -> tuple[tuple[float, bool], ...]:
        scene, predictions = _predictions(self.spec, self.every, name)
        pairs: list[tuple[float, bool]] = []
        for step in predictions:
            selected = USUAL.select(step.found)
            rows = np.flatnonzero([label == UNNAMED for label in selected.labels])
            found = SceneBoxes(selected.boxes[rows], np.zeros(len(rows), np.int64), selected.scores[rows])
            flags = right_flags(found, _any_name(scene.things(step.step)))
            pairs += zip(selected.scores[rows].tolist(), flags.tolist(), strict=True)
        return tuple(pairs)


def _any_name(boxes: NDArray[np.float64]) -> SceneBoxes:
    return SceneBoxes(boxes, np.zeros(len(boxes), np.int64))


@dataclass(frozen=True)
class _Work:
    """The curve of one scene by name, in any process."""

    spec: EvaluationSpec
    every: int
    scores: tuple[float, ...]
    nameless: float | None = None

    def __call__(self, name: str) -> tuple[Point, ...]:
        scene, predictions = _predictions(self.spec, self.every, name)
        truth, things = scene.truth(), _any_name(scene.things())
        config = robot_config(len(scene.frames)).objects.tracking
        points = []
        for score in self.scores:
            shift = 0.0 if self.nameless is None or not 0.0 < score < 1.0 else shift_between(self.nameless, score)
            naming = Naming(shift=shift)
            selected = [dataclasses.replace(step, found=naming.select(step.found)) for step in predictions]
            policy = dataclasses.replace(cached_predictor(self.spec.weights).scores, publish=score)
            if not policy.are_probabilities:
                policy = dataclasses.replace(policy, even=0.0)  # which is looked for
            points.append(_point(score, final_map(selected, config, policy), truth, things))
        return tuple(points)


def _point(min_score: float, found: ObjectMap, truth: SceneBoxes, things: SceneBoxes) -> Point:
    states = (ObjectState.CONFIRMED,)
    everything = found.objects(states)
    known = [thing.label == UNNAMED or is_in_benchmark(thing.label) for thing in everything]
    objects = list(itertools.compress(everything, known))  # of other names nobody knows whether they are right
    nameless = np.array([thing.label == UNNAMED for thing in objects], bool)
    named, plain = np.flatnonzero(~nameless), np.flatnonzero(nameless)
    boxes = np.stack([objects[i].box for i in plain]) if len(plain) else np.zeros((0, 9))
    scores = np.array([objects[i].score for i in plain], np.float64)
    right = np.zeros(len(objects), bool)
    right[named] = right_flags(object_boxes([objects[i] for i in named]), truth)
    right[plain] = right_flags(SceneBoxes(boxes, np.zeros(len(plain), np.int64), scores), things)
    return Point(
        min_score,
        int(right[named].sum()),
        len(named),
        len(truth.boxes),
        len(plain),
        int(right[plain].sum()),
        tuple(right.tolist()),
        tuple(tuple(itertools.compress(found.probabilities(even, states), known)) for even in EVEN),
    )


def calibrate(
    spec: EvaluationSpec,
    every: int = 2,
    scores: Sequence[float] = SCORES,
    workers: Workers = 1,
    progress: Callable[[int, int], None] | None = None,
    precision: float = 0.0,
) -> Calibration:
    """The curve of ``spec``'s scenes; the same whatever the number of workers. ``precision``: see
    :attr:`Calibration.best`; things without a name are asked for at least the same, or for a half.

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
    if not 0.0 <= precision <= 1.0:
        raise ValueError(f"precision must be in [0, 1], got {precision}")
    names = scene_names(spec)
    check_heads(cached_predictor(spec.weights), ("detection",))
    nameless = _nameless_score(spec, every, workers, precision)
    outcome = map_scenes(_Work(spec, every, grid, nameless), names, workers, progress)
    if not outcome.results:
        raise EvaluationError("no scene to calibrate on")
    kinds = ("right", "found", "true", "things", "things_right")
    curve = tuple(
        Point(
            points[0].min_score,
            *(sum(getattr(p, kind) for p in points) for kind in kinds),
            right_flags=tuple(flag for p in points for flag in p.right_flags),
            published=tuple(
                tuple(itertools.chain(*scores)) for scores in zip(*(p.published for p in points), strict=True)
            ),
        )
        for points in zip(*outcome.results, strict=True)
    )
    seconds = time.perf_counter() - start
    scored = cached_predictor(spec.weights).scores
    even = scored.even if scored.are_probabilities else None
    found = Calibration(curve, len(outcome.results), outcome.skipped, seconds, precision, nameless, even)
    if found.best.right == 0:
        raise EvaluationError(f"no object is right at any score, {found.best.true} are there to find")
    return found


def _nameless_score(spec: EvaluationSpec, every: int, workers: Workers, precision: float) -> float | None:
    """From which score on things without a name are right often enough; None for a network that tells no things
    without one, or whose scores of them are probabilities already."""
    inference = cached_predictor(spec.weights)
    detection, reliability = (
        inference.network.config.detection,
        ConfidenceCalibration.of_calibration(inference.calibration),
    )
    if detection is None or not detection.detects_unnamed or (reliability is not None and reliability.things):
        return None
    outcome = map_scenes(_Things(spec, every), scene_names(spec), workers, None)
    pairs = [pair for result in outcome.results for pair in result]
    found = lowest_precise(pairs, precision or 0.5)
    return min(0.99, max((score for score, _ in pairs), default=0.99)) if found is None else found


def check_writable(weights: str) -> Path:
    """The path of a weights file that may be changed. Raises :class:`EvaluationError` for shipped ones."""
    if weights in shipped():
        raise EvaluationError(
            f"{weights!r} is shipped and not changed in place: calibrate a file, then `dev add-weights {weights} FILE`"
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
    even, error = found.even(best)
    entry = {
        "min_score": best.min_score,
        "precision": round(best.precision, 4),
        "recall": round(best.recall, 4),
        "f1": round(best.f1, 4),
        "data": Path(spec.data).name,
        "split": spec.split,
        "scenes": found.scenes,
        "views": spec.views,
        "even_score": even,
        "score_error": round(error, 4),
    }
    if found.nameless_min_score is not None:
        entry |= {
            "nameless_min_score": round(found.nameless_min_score, 4),
            "things": best.things,
            "things_precision": round(best.things_right / max(best.things, 1), 4),
        }
    calibration = {**(known if isinstance(known, dict) else {}), "detection": entry}
    save_checkpoint(path, dataclasses.replace(checkpoint, extra={**checkpoint.extra, "calibration": calibration}))
