"""Score the published objects of a recording against hand-made labels (:mod:`.labels`).

A published box is **on** a labelled object where their exact IoU is at least 0.25; sides shorter than 0.1 m count as
0.1 m on both, since labels made from pictures are not exact to the centimetre. Each named box has one verdict:

* right: on a sure object, with an accepted name, and no box of a better score is right for that object;
* duplicate: as right, but the object has a box already; or a piece: too small to be on a sure object of that name, with
at least half of it inside;
* misnamed: on a sure object, without an accepted name;
* phantom: on no labelled object.

Not judged, and not counted as published, are boxes on an unsure object, pieces of one under an accepted name (one
cupboard of a row whose parts cannot be separated), boxes whose centre is in a region to ignore, and boxes named
``object``: these claim no name, so they are neither right nor misnamed, unless the labels accept ``object`` for the
labelled object.

So published = right + duplicates + misnamed + phantoms and precision = right / published. Recall is the share of sure
objects with a right box; ``recall_large`` that of those whose longest side is at least 0.5 m. A figure without a
denominator is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from embodied_perceptron.geometry.boxes import points_in_boxes
from embodied_perceptron.geometry.suppression import overlaps
from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron.results import UNNAMED, SceneObject
from embodied_perceptron_training.evaluation.recordings.labels import IgnoredRegion, LabelledThing, RecordingLabels

ON_IOU = 0.25
LEAST_SIDE_M = 0.1
LARGE_M = 0.5
PIECE_SHARE = 0.5

RIGHT, DUPLICATE, MISNAMED, PHANTOM, NOT_JUDGED = "right", "duplicate", "misnamed", "phantom", "not judged"


@dataclass(frozen=True, eq=False)
class ObjectVerdict:
    """One published object: its verdict, the row of the labelled object that it is on (-1 = none) and their IoU."""

    thing: SceneObject
    verdict: str
    on: int
    iou: float
    why: str = ""


@dataclass(frozen=True, eq=False)
class RecordingScore:
    """All verdicts, in the order of the scores, and for each labelled object whether it was found."""

    verdicts: tuple[ObjectVerdict, ...]
    things: tuple[LabelledThing, ...]
    found: tuple[bool, ...]

    def of(self, verdict: str) -> tuple[ObjectVerdict, ...]:
        """Objects with one verdict."""
        return tuple(j for j in self.verdicts if j.verdict == verdict)

    def missed(self) -> tuple[int, ...]:
        """Rows of the sure objects without a right box."""
        return tuple(i for i, t in enumerate(self.things) if t.sure and not self.found[i])

    def metrics(self) -> dict[str, float | int | None]:
        """``published, right, precision, recall, recall_large, misnamed, phantoms, duplicates``; shares in [0, 1]."""
        right = len(self.of(RIGHT))
        published = sum(j.verdict != NOT_JUDGED for j in self.verdicts)
        sure = [i for i, t in enumerate(self.things) if t.sure]
        large = [i for i in sure if self.things[i].box[3:6].max() >= LARGE_M]
        return {
            "published": published,
            "right": right,
            "precision": _share(right, published),
            "recall": _share(sum(self.found[i] for i in sure), len(sure)),
            "recall_large": _share(sum(self.found[i] for i in large), len(large)),
            "misnamed": len(self.of(MISNAMED)),
            "phantoms": len(self.of(PHANTOM)),
            "duplicates": len(self.of(DUPLICATE)),
        }


def _share(part: int, whole: int) -> float | None:
    return None if whole == 0 else round(part / whole, 4)


def score_recording(objects: Sequence[SceneObject], labels: RecordingLabels) -> RecordingScore:
    """Score published objects; see the module docstring. Boxes of both in the recording's world frame."""
    order = sorted(objects, key=lambda o: (-o.score, o.id))
    boxes, truth, ignore = (_boxes(rows) for rows in (order, labels.things, labels.ignore))
    iou, inside = overlaps(_widened(boxes), _widened(truth))
    ignored = points_in_boxes(torch.from_numpy(boxes[:, :3]), torch.from_numpy(ignore)).any(dim=1).numpy()
    found = [False] * len(labels.things)
    verdicts = []
    for row, thing in enumerate(order):
        verdict = _verdict(thing, iou[row], inside[row], bool(ignored[row]), labels.things, found)
        if verdict.verdict == RIGHT:
            found[verdict.on] = True
        verdicts.append(verdict)
    return RecordingScore(tuple(verdicts), labels.things, tuple(found))


def _verdict(
    thing: SceneObject,
    iou: F64,
    inside: F64,
    ignored: bool,
    things: Sequence[LabelledThing],
    found: Sequence[bool],
) -> ObjectVerdict:
    """The verdict on one box; ``iou`` and ``inside`` (N,) with the N labelled objects, ``found`` by better boxes."""
    nearest = int(np.argmax(iou)) if len(things) else -1
    nearest = nearest if nearest >= 0 and iou[nearest] >= ON_IOU else -1
    overlap = float(iou[nearest]) if nearest >= 0 else 0.0
    if ignored:
        return ObjectVerdict(thing, NOT_JUDGED, nearest, overlap, "in a region to ignore")
    named = [i for i, t in enumerate(things) if t.sure and thing.label in t.names]
    on = [i for i in named if iou[i] >= ON_IOU]
    free = [i for i in on if not found[i]]
    if free:
        best = max(free, key=lambda i: iou[i])
        return ObjectVerdict(thing, RIGHT, best, float(iou[best]))
    if on:
        best = max(on, key=lambda i: iou[i])
        return ObjectVerdict(thing, DUPLICATE, best, float(iou[best]))
    if nearest >= 0 and not things[nearest].sure:
        return ObjectVerdict(thing, NOT_JUDGED, nearest, overlap, "on an unsure thing")
    if thing.label == UNNAMED:
        return ObjectVerdict(thing, NOT_JUDGED, nearest, overlap, "claims no name")
    pieces = [i for i in named if inside[i] >= PIECE_SHARE]
    if pieces:
        best = max(pieces, key=lambda i: inside[i])
        return ObjectVerdict(thing, DUPLICATE, best, float(iou[best]), "a piece")
    if nearest >= 0:
        return ObjectVerdict(thing, MISNAMED, nearest, overlap)
    unsure = [i for i, t in enumerate(things) if not t.sure and thing.label in t.names and inside[i] >= PIECE_SHARE]
    if unsure:
        best = max(unsure, key=lambda i: inside[i])
        return ObjectVerdict(thing, NOT_JUDGED, best, float(iou[best]), "a piece of an unsure thing")
    return ObjectVerdict(thing, PHANTOM, -1, float(iou.max(initial=0.0)))


def _boxes(things: Sequence[SceneObject | LabelledThing | IgnoredRegion]) -> F64:
    return np.array([thing.box for thing in things], np.float64).reshape(-1, 9)


def _widened(boxes: F64) -> F64:
    wide: F64 = boxes.copy()
    wide[:, 3:6] = np.maximum(wide[:, 3:6], LEAST_SIDE_M)
    return wide
