"""Fits what 2-D detectors are worth beside the network (:mod:`~embodied_perceptron.inference.posterior`).

Simulated recordings with the disturbances of photographs are replayed; at each perception every place of which a
detector says, or could have said, something is kept with what all witnesses say and with the truth: the name of the
thing that its box lies on (IoU 0.25), :data:`UNNAMED` where nobody says that name, :data:`NOTHING` where nothing is.
First the detectors' confusions are counted, then the weights are fitted by maximum likelihood; those that say how much
a witness counts are not negative. What the model is worth is measured on homes that were left out of both.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import logsumexp

from embodied_perceptron.apps.explanation import ObservedPerceptron
from embodied_perceptron.apps.replay import replay
from embodied_perceptron.config import PerceptronConfig
from embodied_perceptron.detection2d.association import fully_visible
from embodied_perceptron.detection2d.fusion import MIN_SIZE_PX, LiftedThing, Place, Surroundings, surface_in
from embodied_perceptron.geometry.boxes import box_iou, points_in_boxes, volumes
from embodied_perceptron.geometry.suppression import thickened
from embodied_perceptron.inference.class_priors import shipped_priors
from embodied_perceptron.inference.posterior import (
    ANY_DETECTOR,
    FEATURES,
    NO_SILENCE,
    NOTHING,
    DetectorConfusions,
    WitnessModel,
    features,
    log_weights,
)
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.results import UNNAMED, Perception
from embodied_perceptron_training.homes.recording import recorded_home

F64 = NDArray[np.float64]

ON_IOU = 0.25
_OF_SHARE = 0.5  # of what a detector saw, within a thing: it saw that thing
_RIDGE = 0.05
_START = {"thing": 0.0, "views": 0.5, "score": 0.5, "confusion": 0.5, "silence": 0.5, "plausible": 0.5}
_NOT_NEGATIVE = ("views", "score", "confusion", "silence", "plausible")


@dataclass(frozen=True, eq=False)
class Truth:
    """What stands in a home: (T, 9) boxes, and their canonical names."""

    boxes: F64
    labels: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class HeardPlace:
    """A place of which a detector says, or could have said, something."""

    place: Place  # with what is said
    true: str  # name of what stands there; :data:`UNNAMED` where nobody says it, :data:`NOTHING` where nothing does
    weight: float  # of the sample; perceptions of one home are hardly independent


@dataclass(eq=False)
class HomeRecord:
    """All of one home: its places, and what each detector was counted to say."""

    places: list[HeardPlace]
    counts: dict[str, DetectorCounts]


@dataclass(eq=False)
class DetectorCounts:
    """See :class:`~embodied_perceptron.inference.posterior.DetectorConfusions`; ``seen``, ``right``: (name, size) ->
    views of things in full view, and of these with it said; ``wrong``: those in which another name was said."""

    things: Counter[str]
    said: defaultdict[str, Counter[str]]
    seen: Counter[tuple[str, int]]
    right: Counter[tuple[str, int]]
    wrong: int = 0
    vocabulary: int = 1

    @classmethod
    def none(cls) -> DetectorCounts:
        return cls(Counter(), defaultdict(Counter), Counter(), Counter())

    def add(self, other: DetectorCounts) -> None:
        self.things.update(other.things)
        self.seen.update(other.seen)
        self.right.update(other.right)
        for name, row in other.said.items():
            self.said[name].update(row)
        self.wrong += other.wrong
        self.vocabulary = max(self.vocabulary, other.vocabulary)

    def confusions(self) -> DetectorConfusions:
        views = {
            name: tuple((self.seen[name, size], self.right[name, size]) for size in range(len(NO_SILENCE)))
            for name in {name for name, _ in self.seen}
        }
        false_rate = self.wrong / max(sum(self.seen.values()), 1) / self.vocabulary
        return DetectorConfusions(dict(self.things), {k: dict(v) for k, v in self.said.items()}, views, false_rate)


def record_home(folder: Path, settings: PerceptronConfig, perceive_every_s: float) -> HomeRecord:
    """Replay a simulated recording with its detectors and compare every perception with the truth.

    Raises ``ValueError`` for a recording without truth of this generator, and for a detector that fails.
    """
    # every keyframe, as a robot's detector has time for; nobody walks through simulated homes
    lift_settings = replace(settings.lift, max_rate_hz=1e3, persons="mapped", pictures="rendered")
    priors = shipped_priors()
    objects = recorded_home(folder).objects
    boxes = np.array([o.box9() for o in objects]).reshape(-1, 9)
    truth = Truth(boxes, tuple(priors.canonical(o.label) for o in objects))
    heard: list[list[Place]] = []
    last: list[tuple[Sequence[LiftedThing], Surroundings]] = []

    def record(perceptron: Perceptron, perception: Perception) -> None:
        lift = perceptron.lift
        assert lift is not None
        heard.append([place for place in lift.places if place.is_heard])
        if lift.statistics().failures:
            raise ValueError(f"{folder}: a detector failed: {lift.statistics().last_error}")
        last[:] = [(lift.things, lift.surroundings(perception.voxels, lift.floor_z_m))]

    replay(
        open_recording(folder),
        ObservedPerceptron.observed_by(record, replace(settings, lift=lift_settings)),
        perceive_every_s=perceive_every_s,
    )
    if not last:
        raise ValueError(f"{folder}: the recording ends before the first perception; perceive more often")
    places = [HeardPlace(p, true_state(p, truth), 1.0 / len(heard)) for look in heard for p in look]
    return HomeRecord(places, count_detectors(*last[0], truth))


def true_state(place: Place, truth: Truth) -> str:
    """See :class:`HeardPlace`."""
    iou = box_iou(_thick(place.box[None]), _thick(truth.boxes)).numpy()[0] if len(truth.boxes) else np.zeros(0)
    on = {truth.labels[k] for k in np.flatnonzero(iou >= ON_IOU)}
    if not on:
        return NOTHING
    known = {} if place.prior is None else place.prior
    said = {name for one in place.evidence for name in one.said}
    best = [truth.labels[k] for k in np.argsort(-iou) if iou[k] >= ON_IOU and truth.labels[k] in (known.keys() | said)]
    return best[0] if best else UNNAMED


def count_detectors(things: Sequence[LiftedThing], around: Surroundings, truth: Truth) -> dict[str, DetectorCounts]:
    """What each detector says of the things of a home that stand in full view, at the end of a replay."""
    counts = {source: DetectorCounts.none() for source in around.vocabularies}
    of = [_thing_of(thing, truth) for thing in things]
    said_in: dict[tuple[str, int], set[tuple[int, str]]] = defaultdict(set)  # (detector, thing) -> (view, name)
    for thing, true in zip(things, of, strict=True):
        for source, names in thing.candidate.said.items():
            label = NOTHING if true < 0 else truth.labels[true]
            for name in names:
                counts[source].said[name][label] += 1
        if true >= 0:
            for view, i in thing.candidate.members:
                lifted = around.views[view]
                said_in[lifted.source, true].add((view, lifted.lifted[i].label))
    surfaces = surface_in(truth.boxes, around.snapshot)
    rows = [k for k, surface in enumerate(surfaces) if surface is not None]
    visible = fully_visible([s for s in surfaces if s is not None], around.views, MIN_SIZE_PX)
    for k, in_view in zip(rows, visible, strict=True):
        label = truth.labels[k]
        for source, vocabulary in around.vocabularies.items():
            views = [v for v in np.flatnonzero(in_view).tolist() if around.views[v].source == source]
            if not views:
                continue
            own = counts[source]
            own.vocabulary = max(len(vocabulary), 1)
            own.things[label] += 1
            said = said_in[source, k]
            own.wrong += len({v for v, name in said if name != label})
            if label in vocabulary:
                right = {v for v, name in said if name == label}
                for v in views:
                    size = int(in_view[v]) - 1
                    own.seen[label, size] += 1
                    own.right[label, size] += v in right
    return counts


def fit_weights(places: Sequence[HeardPlace], model: WitnessModel) -> dict[str, float]:
    """Weights by maximum likelihood; of ``model`` the confusions count. Raises ``ValueError`` without a place."""
    if not places:
        raise ValueError("the detectors say nothing of any place in the recordings: there is nothing to fit")
    samples = [_sample(sample, model) for sample in places]
    most = max(len(offset) for _, offset, _ in samples)
    table = np.zeros((len(samples), most, len(FEATURES)))
    offset = np.full((len(samples), most), -np.inf)  # states that a place does not have
    for k, (values, prior, _) in enumerate(samples):
        table[k, : len(prior)], offset[k, : len(prior)] = values, prior
    every, row = np.arange(len(samples)), np.array([row for *_, row in samples])
    weight = np.array([sample.weight for sample in places])
    bounds = [(0.0, None) if name in _NOT_NEGATIVE else (None, None) for name in FEATURES]
    start = np.array([_START.get(name, 0.0) for name in FEATURES])

    def loss(w: F64) -> float:
        u = log_weights(table, offset, w)
        return float(weight @ (logsumexp(u, axis=1) - u[every, row])) + _RIDGE * float(((w - start) ** 2).sum())

    fitted = minimize(loss, start, method="L-BFGS-B", bounds=bounds)
    return {name: float(w) for name, w in zip(FEATURES, fitted.x, strict=True)}


def fit(homes: Sequence[HomeRecord]) -> WitnessModel:
    """Confusions of all homes, and weights."""
    totals: dict[str, DetectorCounts] = defaultdict(DetectorCounts.none)
    for home in homes:
        for source, counts in home.counts.items():
            totals[source].add(counts)
    every = DetectorCounts.none()
    for counts in totals.values():
        every.add(counts)
    detectors = {source: counts.confusions() for source, counts in totals.items()}
    detectors[ANY_DETECTOR] = every.confusions()
    unweighted = WitnessModel(dict.fromkeys(FEATURES, 0.0), detectors)
    return WitnessModel(fit_weights([p for home in homes for p in with_subsets(home.places)], unweighted), detectors)


def with_subsets(places: Sequence[HeardPlace]) -> list[HeardPlace]:
    """Places as all detectors together and as each alone speaks of them, so that one model serves any of them."""
    sources = sorted({one.source for sample in places for one in sample.place.evidence})
    if len(sources) < 2:
        return list(places)
    weighted = []
    for kept in (set(sources), *({source} for source in sources)):
        for sample in places:
            evidence = tuple(one for one in sample.place.evidence if one.source in kept)
            place = replace(sample.place, evidence=evidence)
            spoken = place.prior is not None or any(one.said for one in evidence)
            if place.is_heard and spoken:
                true = true_state_of(place, sample.true)
                weighted.append(HeardPlace(place, true, sample.weight / (1 + len(sources))))
    return weighted


def true_state_of(place: Place, true: str) -> str:
    """The state that is true where fewer speak: a name that nobody says any more is :data:`UNNAMED`."""
    said = {name for one in place.evidence for name in one.said}
    known = set() if place.prior is None else set(place.prior)
    return true if true in {NOTHING, UNNAMED} | said | known else UNNAMED


@dataclass(frozen=True)
class WitnessReport:
    """What a model is worth on homes that were left out.

    Attributes:
        curve: per fifth of the probability of the likeliest name (weight, mean probability, share that is right).
        log_loss: mean of a place, by the network alone and by all witnesses.
    """

    curve: tuple[tuple[float, float, float], ...]
    log_loss: tuple[float, float]


def cross_validated(homes: Sequence[HomeRecord]) -> WitnessReport:
    """Each home by a model of the others. Raises ``ValueError`` where no place has a name."""
    rows, losses = [], []
    for k, home in enumerate(homes):
        model = fit([other for j, other in enumerate(homes) if j != k])
        for sample in home.places:
            place = sample.place
            found = model.posterior(place.prior, place.evidence, place.plausibility)
            alone = {} if place.prior is None else dict(place.prior)
            losses.append([sample.weight, *(_loss(p, sample.true) for p in (alone, found))])
            names = {name: p for name, p in found.items() if name != UNNAMED}
            if names:
                best = max(sorted(names), key=lambda name: names[name])
                rows.append((sample.weight, names[best], float(best == sample.true)))
    if not rows:
        raise ValueError("nobody names any place in the recordings: there is nothing to measure")
    table, loss = np.array(rows), np.array(losses)
    curve = []
    for low in np.arange(0.0, 1.0, 0.2):
        inside = (table[:, 1] >= low) & (table[:, 1] < low + 0.2 + 1e-9)
        weight = table[inside, 0]
        if weight.sum() > 0:
            curve.append((float(weight.sum()), *(float(np.average(table[inside, c], weights=weight)) for c in (1, 2))))
    means = tuple(float(np.average(loss[:, c], weights=loss[:, 0])) for c in (1, 2))
    return WitnessReport(tuple(curve), (means[0], means[1]))


def _loss(posterior: Mapping[str, float], true: str) -> float:
    p = 1.0 - sum(posterior.values()) if true == NOTHING else posterior.get(true, 0.0)
    return float(-np.log(np.clip(p, 1e-2, 1.0)))


def _sample(sample: HeardPlace, model: WitnessModel) -> tuple[F64, F64, int]:
    """(S, F) features, (S,) log-priors, and which state is true."""
    place = sample.place
    states, table, offset = features(model, place.prior, place.evidence, place.plausibility)
    return table, offset, states.index(sample.true)


def _thick(boxes: F64) -> torch.Tensor:
    return torch.from_numpy(thickened(boxes))


def _thing_of(thing: LiftedThing, truth: Truth) -> int:
    """The smallest thing that most of what was seen lies in; -1 = none."""
    if not len(truth.boxes):
        return -1
    few = thing.candidate.points_m[:: 1 + len(thing.candidate.points_m) // 200]
    share = points_in_boxes(torch.from_numpy(few), _thick(truth.boxes)).double().mean(dim=0).numpy()
    inside = np.flatnonzero(share >= _OF_SHARE)
    size = volumes(torch.from_numpy(truth.boxes)).numpy()
    return int(inside[np.argmin(size[inside])]) if len(inside) else -1
