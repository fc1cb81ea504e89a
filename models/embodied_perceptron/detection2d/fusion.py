"""One judgement from all witnesses: boxes of the network and things that 2-D detectors saw, before the object map.

Boxes of the network that are of one thing, and the things of the detectors that lie there, are one :class:`Place`.
What all of them say of it becomes one posterior (:mod:`~.inference.posterior`), from which the place's boxes get their
scores and names. Places of which no detector says or could have said anything stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.detection2d.association import Candidate, LiftedView, fully_visible, silent_views
from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.suppression import fusion_affinity, same_thing_pairs
from embodied_perceptron.inference.class_priors import ClassPriors
from embodied_perceptron.inference.naming import NAME_SHARE
from embodied_perceptron.inference.posterior import NO_SILENCE, Evidence, Silence, WitnessModel
from embodied_perceptron.results import UNNAMED, Detections, VoxelSnapshot

MIN_SIZE_PX = 24.0  # what is smaller in a picture a detector may well miss
_PROBES = 24
_MAX_VIEWS = 12  # of each detector that are asked for each box; evenly over time
_THINNED = 4
_MIN_SURFACE = 6  # points; a box with fewer holds nothing that could be seen
_LEAST = 0.01  # probability from which a name is a box of its own
_MARGIN = 1e-6


@dataclass(frozen=True, eq=False)
class Judgement:
    """What detectors alone say of a thing.

    Attributes:
        evidence: of each of them.
        plausibility: name -> log-plausibility of the thing's box, of the names that they say.
        posterior: of these, by the model that the lift has.
    """

    evidence: tuple[Evidence, ...]
    plausibility: Mapping[str, float]
    posterior: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class LiftedThing:
    """A thing that detectors saw.

    Attributes:
        candidate: what the views agree on.
        box: (9,) with what the map adds.
        trusted: the box's extents can be believed: a small thing seen whole, or a shape of the map.
        label: likeliest of the names that they say.
        judgement: what is known of it where nobody else speaks of its place; None = it is to be judged.
    """

    candidate: Candidate
    box: NDArray[np.float64]
    trusted: bool
    label: str
    judgement: Judgement | None = None


@dataclass(frozen=True, eq=False)
class Place:
    """Where something may stand, and what is said of it.

    Attributes:
        rows: (R,) of the network's boxes, best first; none where it has nothing there.
        things: numbers of the detectors' things.
        box: (9,) of the best of these.
        prior: of the network (:meth:`.Detections.posterior`); None = it has nothing there.
        evidence: of the detectors.
        plausibility: name -> log-plausibility of the box, of the names that detectors say.
        posterior: where it is known already; None = it is to be judged.
    """

    rows: NDArray[np.int64]
    things: tuple[int, ...]
    box: NDArray[np.float64]
    prior: Mapping[str, float] | None
    evidence: tuple[Evidence, ...]
    plausibility: Mapping[str, float]
    posterior: Mapping[str, float] | None = None

    @property
    def is_heard(self) -> bool:
        """Whether a detector says something of it, or could have said one of the names that the network says."""
        return any(one.bears_on(self.prior) for one in self.evidence)


@dataclass(frozen=True, eq=False)
class Surroundings:
    """What places are judged in: the detectors' views and vocabularies (canonical names), the map and its floor."""

    views: Sequence[LiftedView]
    vocabularies: Mapping[str, frozenset[str]]
    snapshot: VoxelSnapshot
    floor_z_m: float
    priors: ClassPriors


def find_places(network: Detections, things: Sequence[LiftedThing], around: Surroundings) -> list[Place]:
    """Every place of which the network or a detector speaks; each box and each thing is in one."""
    groups = _things_of(network)
    anchors = np.array([rows[0] for rows in groups], dtype=np.int64)
    labels = np.array([network.labels[i] for i in anchors], dtype=object)
    boxes = np.array([t.box for t in things]).reshape(-1, 9)
    same = np.array(
        [[any(network.labels[r] == thing.label for r in rows) for thing in things] for rows in groups],
        dtype=bool,
    ).reshape(len(groups), len(things))
    affinity = fusion_affinity(network.boxes[anchors], boxes, same, labels == UNNAMED)
    heard: list[list[int]] = [[] for _ in groups]
    alone = []
    for j in range(len(things)):
        best = int(np.argmax(affinity[:, j])) if len(groups) else -1
        if best >= 0 and affinity[best, j] > 0:
            heard[best].append(j)
        else:
            alone.append(j)
    silent = _silences(network.boxes[anchors], [i for i, js in enumerate(heard) if not js], around)
    places = [
        _place(rows, js, network.boxes[rows[0]], network.posterior(int(rows[0])), things, around, silent.get(i, {}))
        for i, (rows, js) in enumerate(zip(groups, heard, strict=True))
    ]
    nothing = np.zeros(0, np.int64)
    return places + [_place(nothing, [j], things[j].box, None, things, around, {}) for j in alone]


def fuse(
    network: Detections,
    things: Sequence[LiftedThing],
    places: Sequence[Place],
    model: WitnessModel,
    min_probability: float = 0.4,
    can_name: bool = True,
) -> Detections:
    """All boxes with what all witnesses together say of them, best first.

    Args:
        network: boxes of the network, or of shapes alone.
        things: of the detectors.
        places: of these (:func:`find_places`).
        model: what the witnesses are worth.
        min_probability: what the network does not have, and is less probably there, is left out; what is less probably
            called so goes without a name.
        can_name: ``network`` gives names (shapes do not).

    Returns:
        Boxes with scores of the network's certainty.
    """
    boxes, scores, labels, posteriors = [], [], [], []

    def add(box: NDArray[np.float64], score: float, label: str, posterior: Mapping[str, float]) -> None:
        boxes.append(box)
        scores.append(min(score, 1.0))
        labels.append(label)
        posteriors.append(posterior)

    for place in places:
        if not place.is_heard:
            for i in place.rows.tolist():
                add(network.boxes[i], float(network.scores[i]), network.labels[i], network.posterior(i))
            continue
        posterior = place.posterior
        if posterior is None:
            posterior = model.posterior(place.prior, place.evidence, place.plausibility, can_name)
        exists = sum(posterior.values())
        if place.prior is None and exists < min_probability:
            continue
        before = {} if place.prior is None else place.prior
        named: dict[str, float] = {}
        for i in place.rows.tolist():
            label, score = network.labels[i], float(network.scores[i])
            if label != UNNAMED:
                p = _moved(score, before.get(label), posterior.get(label, 0.0))
                named[label] = max(named.get(label, 0.0), p)
                add(network.boxes[i], p, label, posterior)
        least = min_probability if place.prior is None else _LEAST
        for name in sorted({name for one in place.evidence for name in one.said} - named.keys()):
            if posterior.get(name, 0.0) >= least:
                named[name] = posterior[name]
                add(_box_of(name, place, network, things), named[name], name, posterior)
        best = max(named.values(), default=0.0)
        nameless = [i for i in place.rows.tolist() if network.labels[i] == UNNAMED]
        if best >= NAME_SHARE * exists or not (nameless or _is_unsure_now(place.prior)):
            continue
        was = sum(before.values())
        for i in nameless:
            p = max(_moved(float(network.scores[i]), was, exists), best + _MARGIN)
            add(network.boxes[i], p, UNNAMED, posterior)
        if not nameless:
            add(_box_of(UNNAMED, place, network, things), max(exists, best + _MARGIN), UNNAMED, posterior)
    order = np.argsort(-np.array(scores), kind="stable")
    return Detections(
        np.array(boxes).reshape(-1, 9)[order],
        np.array(scores, dtype=np.float64)[order],
        tuple(labels[i] for i in order),
        tuple(posteriors[i] for i in order),
        network.certainty,
    )


def _moved(score: float, before: float | None, after: float) -> float:
    """The score of a box whose probability was moved: as it was where no evidence moved it."""
    if before is None or before <= 0.0:
        return score
    return score * after / before if after < before else min(score + after - before, 1.0)


def _is_unsure_now(prior: Mapping[str, float] | None) -> bool:
    """Whether a thing that goes without a name now went under one before, or is new."""
    if prior is None:
        return True
    best = max((p for name, p in prior.items() if name != UNNAMED), default=0.0)
    return best >= NAME_SHARE * sum(prior.values())


def _box_of(name: str, place: Place, network: Detections, things: Sequence[LiftedThing]) -> NDArray[np.float64]:
    """The box under which a name of a place goes: that of who says it, of the network first."""
    of_name = [int(i) for i in place.rows if network.labels[i] == name]
    trusted = [things[j] for j in place.things if things[j].trusted and name in (things[j].label, UNNAMED)]
    if trusted and not of_name:
        return trusted[0].box
    return network.boxes[of_name[0]] if of_name else place.box


def _things_of(network: Detections) -> list[NDArray[np.int64]]:
    """Rows of the boxes of each thing, best first: those that are of one thing with the best of them."""
    order = np.argsort(-network.scores, kind="stable")
    first, second = same_thing_pairs(network.boxes, order, order)
    near: dict[int, list[int]] = {}
    for a, b in zip(first.tolist(), second.tolist(), strict=True):
        near.setdefault(a, []).append(b)
    taken = np.zeros(len(network), dtype=bool)
    groups = []
    for i in order.tolist():
        if taken[i]:
            continue
        rows = np.array([i, *(j for j in near.get(i, ()) if j != i and not taken[j])], dtype=np.int64)
        taken[rows] = True
        groups.append(rows[np.argsort(-network.scores[rows], kind="stable")])
    return groups


def _place(
    rows: NDArray[np.int64],
    numbers: Sequence[int],
    box: NDArray[np.float64],
    prior: Mapping[str, float] | None,
    things: Sequence[LiftedThing],
    around: Surroundings,
    silent: Mapping[str, Silence],
) -> Place:
    known = things[numbers[0]].judgement if prior is None and len(numbers) == 1 else None
    if known is not None:
        return Place(rows, tuple(numbers), box, prior, known.evidence, known.plausibility, known.posterior)
    evidence = evidence_of([things[j].candidate for j in numbers], around.vocabularies, silent)
    plausibility = plausibilities(evidence, box, around.floor_z_m, around.priors)
    return Place(rows, tuple(numbers), box, prior, evidence, plausibility)


def evidence_of(
    candidates: Sequence[Candidate],
    vocabularies: Mapping[str, frozenset[str]],
    silent: Mapping[str, Silence] | None = None,
) -> tuple[Evidence, ...]:
    """What detectors say of one place.

    Args:
        candidates: what they saw there.
        vocabularies: of detectors.
        silent: of a place without candidates: detector -> views that have all of it in full view, by size.
    """
    said: dict[str, dict[str, tuple[int, float]]] = {}
    quiet = {} if silent is None else dict(silent)
    for candidate in candidates:
        for source, names in candidate.said.items():
            for name, (views, score) in names.items():
                before = said.setdefault(source, {}).get(name, (0, 0.0))
                said[source][name] = before[0] + views, max(before[1], score)
        for source in vocabularies:  # of parts of one thing another may be what was said something of
            unsaid = candidate.silent.get(source, NO_SILENCE)
            quiet[source] = min(quiet.get(source, unsaid), unsaid, key=sum)
    return tuple(
        Evidence(source, said.get(source, {}), quiet.get(source, NO_SILENCE), vocabularies.get(source, frozenset()))
        for source in sorted({*said, *quiet})
    )


def plausibilities(
    evidence: Sequence[Evidence], box: NDArray[np.float64], floor_z_m: float, priors: ClassPriors
) -> dict[str, float]:
    """Name that a detector says -> log-plausibility of a (9,) box as such a thing."""
    names = {name for one in evidence for name in one.said}
    return {name: priors.log_plausibility(name, box, floor_z_m, whole=False) for name in sorted(names)}


def _silences(
    boxes: NDArray[np.float64], numbers: Sequence[int], around: Surroundings
) -> dict[int, Mapping[str, Silence]]:
    """Number of a (P, 9) box -> detector -> views of it that have all of the box's surface in full view, by size.

    For the ``numbers`` of those of which no detector says anything.
    """
    views = _some(around.views)
    if not views or not len(numbers):
        return {}
    found = zip(numbers, surface_in(boxes[list(numbers)], around.snapshot), strict=True)
    surfaces = [(i, surface) for i, surface in found if surface is not None]
    visible = fully_visible([surface for _, surface in surfaces], views, MIN_SIZE_PX)
    result: dict[int, Mapping[str, Silence]] = {}
    for (i, _), row in zip(surfaces, visible, strict=True):
        half = float(np.linalg.norm(boxes[i, 3:6])) / 2
        spoken = [  # of something there, if too seldom for a thing
            (v, 0)
            for v in np.flatnonzero(row).tolist()
            if any(np.linalg.norm(d.box[:3] - boxes[i, :3]) < half for d in views[v].lifted)
        ]
        result[i] = silent_views(row, spoken, views)
    return result


def _some(views: Sequence[LiftedView]) -> list[LiftedView]:
    """At most :data:`_MAX_VIEWS` of each detector, evenly over time."""
    of: dict[str, list[LiftedView]] = {}
    for view in views:
        of.setdefault(view.source, []).append(view)
    return [
        some[i]
        for some in of.values()
        for i in np.unique(np.linspace(0, len(some) - 1, min(_MAX_VIEWS, len(some))).astype(int))
    ]


def surface_in(boxes: NDArray[np.float64], snapshot: VoxelSnapshot) -> list[NDArray[np.float64] | None]:
    """Of each (B, 9) box some points of the map in it, (K, 3); None where there are too few to see by."""
    # by x, of which the snapshot is sorted; a quarter of the map is more than enough to see by
    points = snapshot.mean_point_m[::_THINNED].copy()
    x_m = points[:, 0].copy()
    surfaces = [_surface(box, points, x_m, snapshot.voxel_size_m) for box in boxes]
    return [surface if len(surface) >= _MIN_SURFACE else None for surface in surfaces]


def _surface(
    box: NDArray[np.float64], points_m: NDArray[np.float32], x_m: NDArray[np.float32], margin_m: float
) -> NDArray[np.float64]:
    """(K, 3) some of the map's points in a (9,) box; points are sorted by the voxel of their x."""
    reach = float(np.linalg.norm(box[3:6])) / 2 + margin_m
    # of one type, or the whole column would be converted
    first, last = np.searchsorted(x_m, np.array([box[0] - reach, box[0] + reach], dtype=np.float32))
    # tilt is left out: what is asked is what of the place can be seen
    rows = _rows_inside(
        points_m[first:last], box[:3], box[3:6] / 2 + margin_m, float(np.cos(box[6])), float(np.sin(box[6]))
    )
    few: NDArray[np.float64] = points_m[first + rows[:: 1 + len(rows) // _PROBES]].astype(np.float64)
    return few


@njit(cache=True, nogil=True)
def _rows_inside(
    points: NDArray[np.float32], center: NDArray[np.float64], half: NDArray[np.float64], c: float, s: float
) -> NDArray[np.int64]:
    """Rows of the points in an upright box turned by the angle of cosine ``c`` and sine ``s``."""
    rows = np.empty(len(points), np.int64)
    count = 0
    for i in range(len(points)):
        if abs(points[i, 2] - center[2]) > half[2]:
            continue
        x, y = points[i, 0] - center[0], points[i, 1] - center[1]
        if abs(c * x + s * y) <= half[0] and abs(c * y - s * x) <= half[1]:
            rows[count] = i
            count += 1
    return rows[:count]
