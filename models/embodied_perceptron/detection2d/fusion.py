"""Fuse boxes of the network with objects lifted from 2-D detections, before the object map.

Boxes of the network around one object and the lifted objects of the detectors there form one :class:`Hypothesis`. Its
boxes get their scores and names from one posterior over all of them (:mod:`~.inference.posterior`). Hypotheses without
observations of a detector stay unchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.detection2d.association import Candidate, LiftedView, ious_px, pixels_of
from embodied_perceptron.detection2d.extents import inside_boxes
from embodied_perceptron.geometry.boxes import box_corners
from embodied_perceptron.geometry.suppression import are_layered, fusion_affinity, same_thing_pairs
from embodied_perceptron.geometry.transforms import transform_points
from embodied_perceptron.inference.class_priors import ClassPriors
from embodied_perceptron.inference.naming import NAME_SHARE
from embodied_perceptron.inference.posterior import DetectorModel, Evidence
from embodied_perceptron.results import UNNAMED, Detections, VoxelSnapshot

_PROBES = 24
_MAX_VIEWS = 12  # of each detector that are checked for each box, evenly over time
_THINNED = 4
_MIN_SURFACE = 6  # points of the map in a box, from which its visibility is judged
_LEAST = 0.01  # probability from which a name gets its own box
_MARGIN = 1e-6
_SHOWN = 0.3  # least share of a box's surface that a view must see to be asked
_HOLDS = 0.6  # of it, in a 2-D box: the 2-D box may show this box
_AGREE = 0.5  # least IoU of the 2-D box and the image part that the box shows


# detector -> name -> (number of views that report it, best score)
Reports = Mapping[str, Mapping[str, tuple[int, float]]]


@dataclass(frozen=True, eq=False)
class LiftedObject:
    """An object lifted from 2-D detections.

    Attributes:
        candidate: the joined detections.
        box: (9,) completed by the map.
        label: likeliest of the reported names.
        probability: that it exists and has this name, from detectors alone.
    """

    candidate: Candidate
    box: NDArray[np.float64]
    label: str
    probability: float = 0.0


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """A possible object: boxes of the network and lifted objects of one location, with their evidence.

    Attributes:
        rows: (R,) of the network's boxes, best first; none where it has no box there.
        lifted: indices of the lifted objects.
        box: (9,) of the best of these.
        prior: of the network (:meth:`.Detections.posterior`); None = it has no box there.
        evidence: of the detectors that report it; empty where none does.
        plausibility: reported name -> log-plausibility of the box.
    """

    rows: NDArray[np.int64]
    lifted: tuple[int, ...]
    box: NDArray[np.float64]
    prior: Mapping[str, float] | None
    evidence: tuple[Evidence, ...]
    plausibility: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class FusionContext:
    """Inputs of the fusion: the detectors' views, the map and its floor."""

    views: Sequence[LiftedView]
    snapshot: VoxelSnapshot
    floor_z_m: float
    priors: ClassPriors


def find_hypotheses(network: Detections, lifted: Sequence[LiftedObject], around: FusionContext) -> list[Hypothesis]:
    """Group all boxes and lifted objects by location; each of them is in exactly one hypothesis."""
    groups = _box_groups(network)
    anchors = np.array([rows[0] for rows in groups], dtype=np.int64)
    labels = np.array([network.labels[i] for i in anchors], dtype=object)
    boxes = np.array([one.box for one in lifted]).reshape(-1, 9)
    names = [{network.labels[r] for r in rows} for rows in groups]
    same = np.array([[one.label in of for one in lifted] for of in names], bool).reshape(len(groups), len(lifted))
    layers = np.array([[are_layered(label, one.label) for one in lifted] for label in labels], bool).reshape(same.shape)
    affinity = np.where(layers, 0.0, fusion_affinity(network.boxes[anchors], boxes, same, labels == UNNAMED))
    near = affinity.argmax(axis=0) if len(groups) else np.zeros(0, np.int64)
    joined = [[j for j in range(len(lifted)) if near[j] == i and affinity[i, j] > 0] for i in range(len(groups))]
    observed = _observe(network.boxes[anchors], names, joined, lifted, around)

    def hypothesis(rows: NDArray[np.int64], numbers: Sequence[int], reports: Reports) -> Hypothesis:
        evidence = evidence_of([lifted[j].candidate for j in numbers], reports)
        box = network.boxes[rows[0]] if len(rows) else lifted[numbers[0]].box
        prior = network.posterior(int(rows[0])) if len(rows) else None
        # the surface that a detector alone shows may be of another object; a box of the network may be a part
        plausibility = plausibilities(evidence, box, around.floor_z_m, around.priors, whole=prior is None)
        return Hypothesis(rows, tuple(numbers), box, prior, evidence, plausibility)

    alone = sorted(set(range(len(lifted))) - {j for js, _ in observed for j in js})
    return [
        *(hypothesis(rows, js, seen) for rows, (js, seen) in zip(groups, observed, strict=True)),
        *(hypothesis(np.zeros(0, np.int64), [j], {}) for j in alone),
    ]


def fuse(
    network: Detections,
    lifted: Sequence[LiftedObject],
    hypotheses: Sequence[Hypothesis],
    model: DetectorModel,
    min_probability: float = 0.4,
    can_name: bool = True,
) -> Detections:
    """Return all boxes with their posterior over network and detectors, best first.

    Args:
        network: boxes of the network, or of shapes alone.
        lifted: objects of the detectors.
        hypotheses: of both (:func:`find_hypotheses`).
        model: likelihoods of the detectors.
        min_probability: least probability to exist of an object without a box of the network, and least probability of
            its name to be named.
        can_name: ``network`` gives names (shapes do not).

    Returns:
        Boxes whose scores have the network's certainty.
    """
    # box, score, label, posterior, and whether a detector reports the label
    fused: list[tuple[NDArray[np.float64], float, str, Mapping[str, float], bool]] = []
    for hypothesis in hypotheses:
        if not hypothesis.evidence:
            for i in hypothesis.rows.tolist():
                fused.append((network.boxes[i], network.scores[i], network.labels[i], network.posterior(i), False))
            continue
        posterior: Mapping[str, float] = model.posterior(
            hypothesis.prior, hypothesis.evidence, hypothesis.plausibility, can_name
        )
        if hypothesis.prior is not None and can_name:
            posterior = _with_sure_name(hypothesis, posterior, model)
        exists = sum(posterior.values())
        if hypothesis.prior is None and exists < min_probability:
            continue
        before = {} if hypothesis.prior is None else hypothesis.prior
        named: dict[str, float] = {}
        reported = {name for one in hypothesis.evidence for name in one.reported}
        for i in hypothesis.rows.tolist():
            label, score = network.labels[i], float(network.scores[i])
            if label != UNNAMED:
                p = _moved(score, before.get(label), posterior.get(label, 0.0))
                named[label] = max(named.get(label, 0.0), p)
                fused.append((network.boxes[i], p, label, posterior, label in reported))
        least = min_probability if hypothesis.prior is None else _LEAST
        for name in sorted(reported - named.keys() - {UNNAMED}):
            if posterior.get(name, 0.0) >= least:
                named[name] = posterior[name]
                fused.append((_box_of(name, hypothesis, network), named[name], name, posterior, True))
        best = max(named.values(), default=0.0)
        nameless = [i for i in hypothesis.rows.tolist() if network.labels[i] == UNNAMED]
        if best >= NAME_SHARE * exists or not (nameless or hypothesis.prior is None or _sure_name(hypothesis.prior)):
            continue
        was = sum(before.values())
        for i in nameless:
            p = max(_moved(float(network.scores[i]), was, exists), best + _MARGIN)
            fused.append((network.boxes[i], p, UNNAMED, posterior, False))
        if not nameless:
            p = max(exists, best + _MARGIN)
            fused.append((_box_of(UNNAMED, hypothesis, network), p, UNNAMED, posterior, False))
    fused.sort(key=lambda one: -min(one[1], 1.0))
    boxes, scores, labels, posteriors, reports = zip(*fused, strict=True) if fused else ((),) * 5
    clipped = np.minimum(np.array(scores, dtype=np.float64), 1.0)
    is_reported = np.array(reports, dtype=bool)
    return Detections(np.array(boxes).reshape(-1, 9), clipped, labels, posteriors, network.certainty, is_reported)


def _with_sure_name(
    hypothesis: Hypothesis, posterior: Mapping[str, float], model: DetectorModel
) -> Mapping[str, float]:
    """Return a posterior that keeps a sure name of the network unless the detectors are sure of another.

    Unsure reports are of the object, not for another name.
    """
    prior = hypothesis.prior
    known = _sure_name(prior)
    if prior is None or not known:
        return posterior
    alone = model.posterior(None, hypothesis.evidence, hypothesis.plausibility)
    others = (p for name, p in alone.items() if name not in (known, UNNAMED))
    if _sure_name(posterior) == known or max(others, default=0.0) >= NAME_SHARE:
        return posterior
    left = min(sum(posterior.values()) / sum(prior.values()), 1.0)
    return {name: p * left for name, p in prior.items()}


def _sure_name(names: Mapping[str, float] | None) -> str:
    """Return the name that has the larger part of an object's probability; "" without one."""
    likeliest = max(
        (pair for pair in (names or {}).items() if pair[0] != UNNAMED), key=lambda n: n[1], default=("", 0.0)
    )
    return likeliest[0] if likeliest[1] >= NAME_SHARE * sum((names or {}).values()) else ""


def _moved(score: float, before: float | None, after: float) -> float:
    """Return the score of a box after its probability changed from ``before`` to ``after``."""
    if before is None or before <= 0.0:
        return score
    return score * after / before if after < before else min(score + after - before, 1.0)


def _box_of(name: str, hypothesis: Hypothesis, network: Detections) -> NDArray[np.float64]:
    """Return the box of the network with that name, else the hypothesis's."""
    of_name = [int(i) for i in hypothesis.rows if network.labels[i] == name]
    return network.boxes[of_name[0]] if of_name else hypothesis.box


def _box_groups(network: Detections) -> list[NDArray[np.int64]]:
    """Group boxes of the same object: rows of each group, best first."""
    order = np.argsort(-network.scores, kind="stable")
    first, second = same_thing_pairs(network.boxes, order, order)
    near: dict[int, list[int]] = {}
    for a, b in zip(first.tolist(), second.tolist(), strict=True):
        if not are_layered(network.labels[a], network.labels[b]):
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


def evidence_of(candidates: Sequence[Candidate], observed: Reports | None = None) -> tuple[Evidence, ...]:
    """Collect the evidence of each detector for one hypothesis.

    Args:
        candidates: joined detections of it.
        observed: reports of views without candidates.
    """
    reported: dict[str, dict[str, tuple[int, float]]] = {}
    for reports in (observed or {}, *(candidate.reported for candidate in candidates)):
        for source, names in reports.items():
            for name, (views, score) in names.items():
                before = reported.setdefault(source, {}).get(name, (0, 0.0))
                reported[source][name] = before[0] + views, max(before[1], score)
    return tuple(Evidence(source, names) for source, names in sorted(reported.items()))


def plausibilities(
    evidence: Sequence[Evidence], box: NDArray[np.float64], floor_z_m: float, priors: ClassPriors, whole: bool = True
) -> dict[str, float]:
    """Return reported name -> log-plausibility of a (9,) box as an object of that name; ``whole`` False = as a part."""
    names = {name for one in evidence for name in one.reported}
    return {name: priors.log_plausibility(name, box, floor_z_m, whole) for name in sorted(names)}


def _observe(
    boxes: NDArray[np.float64],
    names: Sequence[set[str]],
    joined: Sequence[list[int]],
    lifted: Sequence[LiftedObject],
    around: FusionContext,
) -> list[tuple[list[int], Reports]]:
    """Ask the views about (P, 9) boxes of the network.

    Each 2-D detection goes to the box that it shows (:func:`agreement`), first to the box that most views show. A
    lifted object without a box goes with its detections.

    Args:
        boxes: of the network; ``names``: of each.
        joined: lifted objects of each box by place.
        lifted: objects of the detectors.
        around: with the views.

    Returns for each box its lifted objects, and what the views report besides them.
    """
    views = _some(around.views)
    surfaces = surface_in(boxes, around.snapshot)
    known = [i for i, surface in enumerate(surfaces) if surface is not None]
    some = [surface for surface in surfaces if surface is not None]
    labels = [[around.priors.canonical(label) for label in view.found.labels] for view in views]
    fits = []  # (P, E) for each view
    for view, own in zip(views, labels, strict=True):
        fit = np.zeros((len(boxes), len(own)))
        fit[known] = agreement(boxes[known], some, view)
        same = np.array([[label in of for label in own] for of in names], bool).reshape(fit.shape)
        fits.append(np.where(fit > 0, fit + same, 0.0))
    number = {id(view): n for n, view in enumerate(views)}
    pairs = [
        (number[id(around.views[v])], around.views[v].lifted[i].row, j)
        for j, one in enumerate(lifted)
        for v, i in one.candidate.members
        if id(around.views[v]) in number
    ]
    object_of = {(n, row): j for n, row, j in pairs}
    size, placed = Counter(j for *_, j in pairs), {j for js in joined for j in js}
    for n, row, j in pairs:
        if j in placed:
            fits[n][:, row] = 0.0
    shown: list[list[tuple[int, int]]] = [[] for _ in boxes]
    best = np.array([fit.max(axis=1, initial=0.0) for fit in fits]).reshape(len(views), len(boxes))
    while best.any():
        i = int(np.argmax(best.sum(axis=0)))
        for n in np.flatnonzero(best[:, i]).tolist():
            row = int(np.argmax(fits[n][i]))
            shown[i].append((n, row))
            fits[n][:, row] = 0.0
        for fit in fits:
            fit[i] = 0.0
        best = np.array([fit.max(axis=1, initial=0.0) for fit in fits])
    result: list[tuple[list[int], Reports]] = []
    for mine, js in zip(shown, joined, strict=True):
        share = Counter(object_of[pair] for pair in mine if pair in object_of)
        more = sorted(j for j, count in share.items() if count >= 0.5 * size[j] and j not in placed)
        placed.update(more)
        reported: dict[str, dict[str, tuple[int, float]]] = {}
        for n, row in mine:
            if (n, row) not in object_of:
                said = reported.setdefault(views[n].source, {})
                count, score = said.get(labels[n][row], (0, 0.0))
                said[labels[n][row]] = count + 1, max(score, float(views[n].found.scores[row]))
        result.append(([*js, *more], reported))
    return result


def agreement(
    boxes: NDArray[np.float64], surfaces_m: Sequence[NDArray[np.float64]], view: LiftedView
) -> NDArray[np.float64]:
    """Return (B, E) the IoU of the 2-D boxes of a view with the image part that each (9,) box shows.

    That part is the projected box, or its surface in view where something hides the rest. 0 = the 2-D box does not show
    the box. ``surfaces_m``: (K, 3) points in each box, K > 0.
    """
    boxes_px = view.found.boxes_px
    if not len(boxes) or not len(boxes_px):
        return np.zeros((len(boxes), len(boxes_px)))
    T, k = view.camera
    count = np.array([len(surface) for surface in surfaces_m])
    first = np.cumsum(count) - count
    uv, shown = pixels_of(np.concatenate(surfaces_m), T, k, view.frame.depth_m)
    seen = np.add.reduceat(shown.astype(np.float64), first)
    within = np.zeros((len(uv), len(boxes_px)))
    u, v = uv[shown].T[:, :, None]
    within[shown] = (u >= boxes_px[:, 0]) & (v >= boxes_px[:, 1]) & (u <= boxes_px[:, 2]) & (v <= boxes_px[:, 3])
    holds = np.add.reduceat(within, first) >= _HOLDS * np.maximum(seen, 4.0)[:, None]
    holds &= (seen >= _SHOWN * count)[:, None]
    low = np.minimum.reduceat(np.where(shown[:, None], uv, np.inf), first)
    high = np.maximum.reduceat(np.where(shown[:, None], uv, -np.inf), first)
    part = np.concatenate([low, high], axis=1)
    corner = transform_points(T, box_corners(boxes).reshape(-1, 3)).reshape(-1, 8, 3)
    ahead = corner[:, :, 2].min(axis=1) > 0.1
    edge = corner[:, :, :2] / np.maximum(corner[:, :, 2:], 0.1) * k[:2] + k[2:]
    size = np.array([view.frame.intrinsics.width, view.frame.intrinsics.height]) - 0.5
    whole = np.concatenate([edge.min(axis=1).clip(-0.5, size), edge.max(axis=1).clip(-0.5, size)], axis=1)
    iou = np.maximum(np.where(ahead[:, None], ious_px(whole, boxes_px), 0.0), ious_px(part, boxes_px))
    return np.where(holds & (iou >= _AGREE), iou, 0.0)


def _some(views: Sequence[LiftedView]) -> list[LiftedView]:
    """Select at most :data:`_MAX_VIEWS` of each detector, evenly over time."""
    of: dict[str, list[LiftedView]] = {}
    for view in views:
        of.setdefault(view.source, []).append(view)
    return [
        some[i]
        for some in of.values()
        for i in np.unique(np.linspace(0, len(some) - 1, min(_MAX_VIEWS, len(some))).astype(int))
    ]


def surface_in(boxes: NDArray[np.float64], snapshot: VoxelSnapshot) -> list[NDArray[np.float64] | None]:
    """Return (K, 3) some of the map's points in each (B, 9) box; None where there are too few."""
    surface = MapSurface(snapshot)
    surfaces = [surface.within(box) for box in boxes]
    return [surface if len(surface) >= _MIN_SURFACE else None for surface in surfaces]


class MapSurface:
    """A quarter of the points of a map, which is enough for visibility.

    Args:
        snapshot: the map, sorted by x.
    """

    def __init__(self, snapshot: VoxelSnapshot) -> None:
        self._points_m = snapshot.mean_point_m[::_THINNED].copy()
        self._x_m = self._points_m[:, 0].copy()
        self._margin_m = snapshot.voxel_size_m

    def within(self, box: NDArray[np.float64], limit: int = _PROBES) -> NDArray[np.float64]:
        """Return (K, 3) about ``limit`` points in a (9,) box; its tilt is ignored."""
        reach = float(np.linalg.norm(box[3:6])) / 2 + self._margin_m
        # same dtype as the column, or searchsorted converts all of it
        ends = np.searchsorted(self._x_m, np.array([box[0] - reach, box[0] + reach], dtype=np.float32))
        points = self._points_m[ends[0] : ends[1]]
        rows = np.flatnonzero(inside_boxes(box[None], points, self._margin_m)[:, 0])
        few: NDArray[np.float64] = points[rows[:: 1 + len(rows) // limit]].astype(np.float64)
        return few
