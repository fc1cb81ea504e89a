"""One opinion from two: boxes of the network and things that a 2-D detector saw, before they reach the object map.

Both come with probabilities that can be compared: the network's by :mod:`~.inference.confidence_calibration`, where
the weights have such a model, the detector's by its votes and by whether such a thing can have that size at that
height. Where they agree, they are counted together; where they name one thing differently, the more probable name
stays, and the object map is told of every name with its share; and a name that the detector knows but never says of a
thing plainly before it speaks against the network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.detection2d.association import Candidate, LiftedView, ScoreEvidence, visible_views
from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.suppression import fusion_affinity
from embodied_perceptron.results import UNNAMED, Certainty, Detections, VoxelSnapshot

_MAX_MISSES = 6  # views of one background are not independent
_MIN_SIZE_PX = 24.0  # what is smaller in a picture a detector may well miss
_PROBES = 24
_MAX_VIEWS = 12  # that are asked for each box; evenly over time
_THINNED = 4


def fuse_detections(
    network: Detections,
    lifted: Detections,
    completed: NDArray[np.bool_],
    evidence: NDArray[np.float64] | None = None,
    even: float = 0.5,
) -> Detections:
    """Both in one list, in which no thing stands twice; each with the share of every name that was said of it.

    Where names differ, each is as probable as its sources say together (independent, given the thing): the network's
    score against the score at which its boxes are as likely right as wrong, the detector's probability times the share
    of the name there.

    Args:
        network: boxes of the network, or of shapes alone.
        lifted: things of the detector, calibrated; their ``shares`` count where they have some.
        completed: (M,) whether a lifted box's extents can be trusted: a small thing seen whole, or a shape of the map.
        evidence: (N,) log-odds to add to the network's scores, see :func:`doubts`.
        even: the network's score at which a box is as likely right as wrong.

    Returns:
        Boxes with scores of the network's certainty. Raises ``ValueError`` for lifted scores that are no probabilities.
    """
    lifted.require(Certainty.CALIBRATED)
    odds = np.log(np.clip(network.scores, 1e-6, 1 - 1e-6) / np.clip(1 - network.scores, 1e-6, 1.0))
    scores = network.scores.copy()
    if evidence is not None:
        odds = odds + evidence
        scores = np.where(evidence == 0, scores, 1.0 / (1.0 + np.exp(-odds)))
    even = min(max(even, 1e-6), 1.0 - 1e-6)
    right = 1.0 / (1.0 + even / (1.0 - even) * np.exp(-odds))
    known, seen = np.array(network.labels, dtype=object), np.array(lifted.labels, dtype=object)
    affinity = fusion_affinity(network.boxes, lifted.boxes, known[:, None] == seen[None], known == UNNAMED)
    boxes, out_scores, labels, shares = [], [], [], []
    gone = np.zeros(len(network), dtype=bool)
    own: dict[int, Mapping[str, float]] = {}  # shares of the network's boxes whose name stays
    for j in range(len(lifted)):
        box, score, label = lifted.boxes[j], float(lifted.scores[j]), lifted.labels[j]
        rows = [i for i in np.argsort(-affinity[:, j], kind="stable") if affinity[i, j] > 0 and not gone[i]]
        same = [i for i in rows if network.labels[i] == label]
        other = [i for i in rows if network.labels[i] not in (label, UNNAMED)]
        said = _said(lifted, j)
        for i in rows:
            if network.labels[i] != UNNAMED:
                name = network.labels[i]
                said[name] = 1.0 - (1.0 - said.get(name, 0.0)) * (1.0 - float(right[i]))
        total = sum(said.values())
        posterior = {name: p / total for name, p in sorted(said.items())} if total > 0 else {label: 1.0}
        if other and not same and max(said[network.labels[i]] for i in other) > said[label]:
            best = max(other, key=lambda i: said[network.labels[i]])
            own[best] = posterior
            continue  # the network is surer of another name
        if same:
            score = 1.0 - (1.0 - score) * (1.0 - float(scores[same[0]]))
            if not completed[j]:
                box = network.boxes[same[0]]
        gone[rows] = True
        boxes.append(box)
        out_scores.append(score)
        labels.append(label)
        shares.append(posterior)
    kept = np.flatnonzero(~gone)
    return Detections(
        np.concatenate([network.boxes[kept], np.array(boxes).reshape(-1, 9)]),
        np.concatenate([scores[kept], np.array(out_scores)]),
        (*(network.labels[i] for i in kept), *labels),
        (*(own.get(int(i), {network.labels[i]: 1.0}) for i in kept), *shares),
        network.certainty,
    )


def _said(lifted: Detections, row: int) -> dict[str, float]:
    """Name -> probability that a lifted thing exists and is called so."""
    score, label = float(lifted.scores[row]), lifted.labels[row]
    posterior = {} if lifted.shares is None else lifted.shares[row]
    if posterior.get(label, 0.0) <= 0.0:
        return {label: score}
    return {name: score * share / posterior[label] for name, share in posterior.items()}


def doubts(
    network: Detections,
    vocabulary: frozenset[str],
    views: Sequence[LiftedView],
    snapshot: VoxelSnapshot,
    evidence: ScoreEvidence,
) -> NDArray[np.float64]:
    """(N,) log-odds, at most 0, that the detector's silence adds to each of the network's boxes.

    Only for names of the ``vocabulary`` (canonical), and only of views in which the surface was plainly visible. A view
    in which the detector says that very name of an overlapping place is not silent.
    """
    result = np.zeros(len(network))
    views = [views[i] for i in np.unique(np.linspace(0, len(views) - 1, min(_MAX_VIEWS, len(views))).astype(int))]
    rows = [i for i, label in enumerate(network.labels) if label in vocabulary]
    # by x, of which the snapshot is sorted; a quarter of the map is more than enough to see by
    points = snapshot.mean_point_m[::_THINNED].copy()
    x_m = points[:, 0].copy()
    surfaces = {i: _surface(network.boxes[i], points, x_m, snapshot.voxel_size_m) for i in rows}
    rows = [i for i in rows if len(surfaces[i]) >= 6]
    if not rows or not views:
        return result
    things = [Candidate(surfaces[i], network.boxes[i]) for i in rows]
    visible = visible_views(things, views, _MIN_SIZE_PX)
    for n, i in enumerate(rows):
        half = float(np.linalg.norm(network.boxes[i, 3:6])) / 2
        silent = 0
        for v in np.flatnonzero(visible[n]):
            said = any(
                d.label == network.labels[i] and np.linalg.norm(d.box[:3] - network.boxes[i, :3]) < half
                for d in views[v].lifted
            )
            silent += not said
        if silent < np.count_nonzero(visible[n]):
            continue  # it was said at least once: the candidates weigh it
        result[i] = min(silent, _MAX_MISSES) * evidence.missed
    return result


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
