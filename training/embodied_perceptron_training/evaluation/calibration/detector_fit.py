"""Fit the likelihood model of 2-D detectors (:mod:`~embodied_perceptron.inference.posterior`).

Simulated recordings with the noise of photographs are replayed. Each perception gives hypotheses with evidence
of detectors and the true state: the name of the object that its box overlaps (IoU 0.25), :data:`UNNAMED` where no
source reports that name, :data:`NOTHING` without an object. The detectors' confusions are counted first, then the
weights are fitted by maximum likelihood; weights of evidence are not negative. The model is validated on homes left out
of both.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import logsumexp

from embodied_perceptron.apps.explanation import ObservedPerceptron
from embodied_perceptron.apps.replay import replay
from embodied_perceptron.config import PerceptronConfig
from embodied_perceptron.detection2d.fusion import FusionContext, Hypothesis, LiftedObject, surface_in
from embodied_perceptron.geometry.boxes import box_iou, points_in_boxes, volumes
from embodied_perceptron.geometry.suppression import thickened
from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron.inference.class_priors import shipped_priors
from embodied_perceptron.inference.posterior import (
    ANY_DETECTOR,
    FEATURES,
    NOTHING,
    PROBABILITIES,
    DetectorConfusions,
    DetectorModel,
    features,
    log_weights,
)
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.results import UNNAMED, Perception
from embodied_perceptron_training.homes.recording import recorded_home

ON_IOU = 0.25
_OF_SHARE = 0.5  # of a detection's points within an object: it is a detection of that object
_RIDGE = 0.05
_START = {"views": 0.5, "score": 0.5, "confusion": 1.0, "plausible": 0.5}
_NOT_NEGATIVE = ("views", "score", "plausible")


@dataclass(frozen=True, eq=False)
class Truth:
    """Objects of a home: (T, 9) boxes and canonical names."""

    boxes: F64
    labels: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class LabelledHypothesis:
    """A hypothesis with its true state."""

    hypothesis: Hypothesis  # with its evidence
    true: str  # name of the object; :data:`UNNAMED` where no source reports it, :data:`NOTHING` without an object
    weight: float  # of the sample, one over the number of perceptions, which are correlated


@dataclass(eq=False)
class HomeRecord:
    """The hypotheses of a home, and the counts of each detector."""

    hypotheses: list[LabelledHypothesis]
    counts: dict[str, DetectorCounts]


@dataclass(eq=False)
class DetectorCounts:
    """See :class:`~embodied_perceptron.inference.posterior.DetectorConfusions`."""

    things: Counter[str]
    reported: defaultdict[str, Counter[str]]

    @classmethod
    def none(cls) -> DetectorCounts:
        return cls(Counter(), defaultdict(Counter))

    def add(self, other: DetectorCounts) -> None:
        self.things.update(other.things)
        for name, row in other.reported.items():
            self.reported[name].update(row)

    def confusions(self) -> DetectorConfusions:
        return DetectorConfusions(dict(self.things), {k: dict(v) for k, v in self.reported.items()})


def record_home(folder: Path, settings: PerceptronConfig, perceive_every_s: float) -> HomeRecord:
    """Replay a simulated recording with its detectors and compare every perception with the truth.

    Raises ``ValueError`` for a recording without truth of this generator, and for a detector that fails.
    """
    # every keyframe, as a robot's detector has time for; nobody walks through simulated homes
    lift_settings = replace(settings.lift, max_rate_hz=1e3, persons="mapped")
    priors = shipped_priors()
    objects = recorded_home(folder).objects
    boxes = np.array([o.box9() for o in objects]).reshape(-1, 9)
    truth = Truth(boxes, tuple(priors.canonical(o.label) for o in objects))
    observed: list[list[Hypothesis]] = []
    last: list[tuple[Sequence[LiftedObject], FusionContext]] = []

    def record(perceptron: Perceptron, perception: Perception) -> None:
        lift = perceptron.lift
        assert lift is not None
        observed.append([one for one in lift.hypotheses if one.evidence])
        if lift.statistics().failures:
            raise ValueError(f"{folder}: a detector failed: {lift.statistics().last_error}")
        last[:] = [(lift.lifted_objects, lift.fusion_context(perception.voxels, lift.floor_z_m))]

    replay(
        open_recording(folder),
        ObservedPerceptron.observed_by(record, replace(settings, lift=lift_settings)),
        perceive_every_s=perceive_every_s,
    )
    if not last:
        raise ValueError(f"{folder}: the recording ends before the first perception; perceive more often")
    hypotheses = [
        LabelledHypothesis(p, true_state(p, truth), 1.0 / len(observed)) for perception in observed for p in perception
    ]
    return HomeRecord(hypotheses, count_detectors(*last[0], truth))


def true_state(hypothesis: Hypothesis, truth: Truth) -> str:
    """Return the true state of :class:`LabelledHypothesis`."""
    iou = box_iou(_thick(hypothesis.box[None]), _thick(truth.boxes)).numpy()[0] if len(truth.boxes) else np.zeros(0)
    on = {truth.labels[k] for k in np.flatnonzero(iou >= ON_IOU)}
    if not on:
        return NOTHING
    known = {} if hypothesis.prior is None else hypothesis.prior
    reported = {name for one in hypothesis.evidence for name in one.reported}
    best = [
        truth.labels[k] for k in np.argsort(-iou) if iou[k] >= ON_IOU and truth.labels[k] in (known.keys() | reported)
    ]
    return best[0] if best else UNNAMED


def count_detectors(
    lifted_objects: Sequence[LiftedObject], around: FusionContext, truth: Truth
) -> dict[str, DetectorCounts]:
    """Count the reports of each detector for the mapped objects of a home, at the end of a replay."""
    counts = {view.source: DetectorCounts.none() for view in around.views}
    for detected in lifted_objects:
        true = _true_object(detected, truth)
        label = NOTHING if true < 0 else truth.labels[true]
        for source, names in detected.candidate.reported.items():
            for name in names:
                counts[source].reported[name][label] += 1
    mapped = [k for k, surface in enumerate(surface_in(truth.boxes, around.snapshot)) if surface is not None]
    for own in counts.values():
        own.things.update(truth.labels[k] for k in mapped)
    return counts


def fit_weights(hypotheses: Sequence[LabelledHypothesis], model: DetectorModel) -> dict[str, float]:
    """Fit weights by maximum likelihood with the confusions of ``model``. Raises ``ValueError`` without a sample."""
    if not hypotheses:
        raise ValueError("no detector reports anything in the recordings: nothing to fit")
    samples = [_sample(sample, model) for sample in hypotheses]
    most = max(len(offset) for _, offset, _ in samples)
    table = np.zeros((len(samples), most, len(FEATURES)))
    offset = np.full((len(samples), most), -np.inf)  # states that a hypothesis does not have
    for k, (values, prior, _) in enumerate(samples):
        table[k, : len(prior)], offset[k, : len(prior)] = values, prior
    every, row = np.arange(len(samples)), np.array([row for *_, row in samples])
    weight = np.array([sample.weight for sample in hypotheses])
    bounds = [
        (1.0, 1.0) if name in PROBABILITIES else (0.0, None) if name in _NOT_NEGATIVE else (None, None)
        for name in FEATURES
    ]
    start = np.array([_START.get(name, 0.0) for name in FEATURES])

    def loss(w: F64) -> float:
        u = log_weights(table, offset, w)
        return float(weight @ (logsumexp(u, axis=1) - u[every, row])) + _RIDGE * float(((w - start) ** 2).sum())

    fitted = minimize(loss, start, method="L-BFGS-B", bounds=bounds)
    return {name: float(w) for name, w in zip(FEATURES, fitted.x, strict=True)}


def fit(homes: Sequence[HomeRecord]) -> DetectorModel:
    """Count confusions over all homes, then fit the weights."""
    totals: dict[str, DetectorCounts] = defaultdict(DetectorCounts.none)
    for home in homes:
        for source, counts in home.counts.items():
            totals[source].add(counts)
    every = DetectorCounts.none()
    for counts in totals.values():
        every.add(counts)
    detectors = {source: counts.confusions() for source, counts in totals.items()}
    detectors[ANY_DETECTOR] = every.confusions()
    unweighted = DetectorModel(dict.fromkeys(FEATURES, 0.0), detectors)
    return DetectorModel(
        fit_weights([p for home in homes for p in with_subsets(home.hypotheses)], unweighted), detectors
    )


def with_subsets(hypotheses: Sequence[LabelledHypothesis]) -> list[LabelledHypothesis]:
    """Return hypotheses with the evidence of all detectors and of each alone, so that one model serves any of them."""
    sources = sorted({one.source for sample in hypotheses for one in sample.hypothesis.evidence})
    if len(sources) < 2:
        return list(hypotheses)
    weighted = []
    for kept in (set(sources), *({source} for source in sources)):
        for sample in hypotheses:
            evidence = tuple(one for one in sample.hypothesis.evidence if one.source in kept)
            hypothesis = replace(sample.hypothesis, evidence=evidence)
            exists = hypothesis.prior is not None or any(one.reported for one in evidence)
            if hypothesis.evidence and exists:
                true = true_state_among(hypothesis, sample.true)
                weighted.append(LabelledHypothesis(hypothesis, true, sample.weight / (1 + len(sources))))
    return weighted


def true_state_among(hypothesis: Hypothesis, true: str) -> str:
    """Return the true state among the names that this evidence reports, else :data:`UNNAMED`."""
    reported = {name for one in hypothesis.evidence for name in one.reported}
    known = set() if hypothesis.prior is None else set(hypothesis.prior)
    return true if true in {NOTHING, UNNAMED} | reported | known else UNNAMED


@dataclass(frozen=True)
class DetectorFitReport:
    """Quality of a model on homes left out.

    Attributes:
        curve: per fifth of the probability of the likeliest name (weight, mean probability, accuracy).
        log_loss: mean over hypotheses, of the network alone and with detectors.
    """

    curve: tuple[tuple[float, float, float], ...]
    log_loss: tuple[float, float]


def cross_validated(homes: Sequence[HomeRecord]) -> DetectorFitReport:
    """Evaluate each home with a model of the others. Raises ``ValueError`` without any named hypothesis."""
    rows, losses = [], []
    for k, home in enumerate(homes):
        model = fit([other for j, other in enumerate(homes) if j != k])
        for sample in home.hypotheses:
            hypothesis = sample.hypothesis
            found = model.posterior(hypothesis.prior, hypothesis.evidence, hypothesis.plausibility)
            alone = {} if hypothesis.prior is None else dict(hypothesis.prior)
            losses.append([sample.weight, *(_loss(p, sample.true) for p in (alone, found))])
            names = {name: p for name, p in found.items() if name != UNNAMED}
            if names:
                best = max(sorted(names), key=lambda name: names[name])
                rows.append((sample.weight, names[best], float(best == sample.true)))
    if not rows:
        raise ValueError("no hypothesis in the recordings has a name: nothing to measure")
    table, loss = np.array(rows), np.array(losses)
    curve = []
    for low in np.arange(0.0, 1.0, 0.2):
        inside = (table[:, 1] >= low) & (table[:, 1] < low + 0.2 + 1e-9)
        weight = table[inside, 0]
        if weight.sum() > 0:
            curve.append((float(weight.sum()), *(float(np.average(table[inside, c], weights=weight)) for c in (1, 2))))
    means = tuple(float(np.average(loss[:, c], weights=loss[:, 0])) for c in (1, 2))
    return DetectorFitReport(tuple(curve), (means[0], means[1]))


def _loss(posterior: Mapping[str, float], true: str) -> float:
    p = 1.0 - sum(posterior.values()) if true == NOTHING else posterior.get(true, 0.0)
    return float(-np.log(np.clip(p, 1e-2, 1.0)))


def _sample(sample: LabelledHypothesis, model: DetectorModel) -> tuple[F64, F64, int]:
    """Return (S, F) features, (S,) log-priors, and the index of the true state."""
    hypothesis = sample.hypothesis
    states, table, offset = features(model, hypothesis.prior, hypothesis.evidence, hypothesis.plausibility)
    return table, offset, states.index(sample.true)


def _thick(boxes: F64) -> torch.Tensor:
    return torch.from_numpy(thickened(boxes))


def _true_object(lifted: LiftedObject, truth: Truth) -> int:
    """Return the index of the smallest object that holds most of the points; -1 = none."""
    if not len(truth.boxes):
        return -1
    few = lifted.candidate.points_m[:: 1 + len(lifted.candidate.points_m) // 200]
    share = points_in_boxes(torch.from_numpy(few), _thick(truth.boxes)).double().mean(dim=0).numpy()
    inside = np.flatnonzero(share >= _OF_SHARE)
    size = volumes(torch.from_numpy(truth.boxes)).numpy()
    return int(inside[np.argmin(size[inside])]) if len(inside) else -1
