"""When two boxes are of one thing: every rule of overlap of the library, and one table of their thresholds.

Nobody else compares an overlap with a number of their own (a test searches for it). Settings that users may change are
in :class:`~embodied_perceptron.config.TrackingConfig` (``match_iou``, ``stacked_iou``); presets of networks and layouts
of 2-D detectors take theirs from here.

The network's boxes and the objects of the map are compared by the exact IoU of boxes with nine degrees of freedom; what
a sentence compares, which may be hundreds of boxes, by the IoU of their axis-aligned bounds
(:class:`~embodied_perceptron.geometry.boxes.Bounds`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embodied_perceptron.geometry import overlap
from embodied_perceptron.geometry.boxes import (
    Bounds,
    box_rotations,
    checked_frames,
    flatten_boxes,
    iou_of_arrays,
    matrix_to_euler,
    paired_iou_of_arrays,
)

F64 = NDArray[np.float64]

UNNAMED = "object"  # label of what is found by shape alone

# --------------------------------------------------------------------------------------------------------------------
# the table: an overlap, and what it decides

# a network's boxes, by exact IoU
NMS_IOU = 0.25  # of two boxes of one class that overlap more the better stays: our presets
PUBLISHED_NMS_IOU = 0.5  # the same as published: preset `paper`, and what states nothing else
VOTING_IOU = 0.3  # boxes of one class that overlap more describe one thing, and vote on its place and size
REFINED_TOGETHER_IOU = 0.5  # boxes that overlap more are refined once, under all of their names
QUERY_NMS_IOU = 0.4  # boxes that overlap more are one query of the grounding head, whatever they are called
PHRASE_NMS_IOU = 0.5  # of two boxes for one phrase that overlap more the better stays, also of several windows
SAME_THING_IOU = 0.5  # a box with a name and one without are of one thing, or two whose names stand for one
CONFLICT_IOU = 0.25  # two boxes that overlap more cannot both be right: the score of one speaks against the other
PIECE_SHARE = 0.6  # of a box's volume inside of a grown one of its name: it is a piece of it
_PIECE_END_M = 0.1  # a piece without a name has the top and bottom of the whole, to this

# a 2-D detector's boxes, in the picture: families that leave suppression to their users, as they are deployed
DETECTOR_NMS_IOU = {"nanodet": 0.6, "nanodet-plus": 0.6, "yolov8": 0.7, "yolo11": 0.7, "yolox": 0.45}

# detections of a 2-D detector that were lifted into the map
LIFTED_AFFINITY = 0.25  # share of common cells from which two of one name are of one thing
LIFTED_OTHER_NAME_AFFINITY = 0.5  # and of two names
LIFTED_OTHER_NAME_SIZE = 0.4  # of the larger one's longest side: a cup is no part of the table that it stands on
SHAPE_SHARE = 0.5  # of a thing's surface that a shape of the map holds: it is that shape
_LIFTED_ONE_IOU, _LIFTED_ONE_SHARE = 0.3, 0.7  # exact IoU, or share inside under one name, of things that are one
_FUSED_SAME_NAME_IOU, _FUSED_OTHER_NAME_IOU = 0.15, 0.25  # a box of the network and a lifted one are one thing
_FUSED_PART_SHARE, _FUSED_PART_RATIO = 0.4, 0.05  # or of one name: share inside the other, and of the volumes
_FUSED_INSIDE_SHARE, _FUSED_INSIDE_RATIO = 0.7, 0.25  # the same of two names

# objects of the map, by exact IoU of boxes no thinner than two perceptions differ by
INSIDE_SHARE = 0.7  # of a box within another: it is a part of it
_THINNEST_M = 0.1  # pictures and doors that are found a few centimetres further back are the same ones
DENIED_IOU = 0.3  # a detection is what a user said is not there
_DENIED_AT_ONCE = 256
_ONE_OBJECT_IOU = 0.5  # two objects are one where a name is missing
_ONE_NAME_IOU = 0.15  # of one name: things of one kind do not stand in each other
_TWO_NAMES_IOU = 0.3  # nor do others; a network in doubt finds one thing under several names
_LAYERED_IOU = 0.65  # but a curtain before its window and a door in its frame are two things in one place
_LAYERED = frozenset(
    {"blinds", "curtain", "door", "doorframe", "doorway", "garage door", "window", "window frame", "windowsill"}
)
_MIN_GROWTH = 0.15  # volume of a part, as a share of the whole that it grew into
_MIN_SHRINKAGE = 0.35  # what is found of a known thing is a part of it, or another thing, when it is smaller
_OTHER_NAME = 0.7  # affinity across names: networks in doubt find one thing under several
_OTHER_NAME_IOU = 0.5  # but what has been called otherwise for long must fill the same place
_BLEND_IOU = 0.6  # boxes that overlap less are two opinions, of which one counts; others are averaged
_BLEND_RAD = 0.6  # and so are boxes that are turned by more

# candidates of a sentence, by IoU of bounds
ONE_THING_IOU = 0.4  # candidates that overlap more are one thing: one of them is enough
ONE_PLACE_IOU = 0.5  # candidates that overlap more share their score between their names
PROPOSED_IOU = 0.2  # a proposal of the network's grounding means the object that it overlaps more
RELATED_IOU = 0.3  # things that overlap more are too much alike to stand in a relation to each other
BETWEEN_IOU = 0.2  # and for anything to lie between them

# objects of two maps of one place
UNCHANGED_IOU = 0.25  # what overlaps more is the thing that stood there, whatever it is called
UNCHANGED_NAME_IOU = 0.1  # and of one name
HELD_SHARE = 0.75  # of a thing within another, by volume of bounds: a description says that it is in it


# --------------------------------------------------------------------------------------------------------------------
# greedy suppression


def nms(boxes: Tensor, scores: Tensor, labels: Tensor, iou_threshold: float) -> Tensor:
    """Greedy suppression with exact IoU, each label by itself.

    Args:
        boxes: (N, 9), scores: (N,) float, labels: (N,) integer; iou_threshold: a box goes when its IoU with a kept box
            of its label and a better score (of equal scores the lower index) is greater.

    Returns:
        (K,) int64 indices of the kept boxes, best score first, on the device of ``boxes``.
    """
    order, center, half, rot, label = _by_score(boxes, scores, labels, iou_threshold)
    keep = overlap.greedy_nms(center, half, rot, label, iou_threshold)
    return torch.from_numpy(order[keep]).to(boxes.device)


def grouped_nms(boxes: Tensor, scores: Tensor, iou_threshold: float, limit: int) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`nms` of boxes of one label, and which boxes belong to those that stay; every IoU is computed once.

    Args:
        boxes: (N, 9), scores: (N,) float, iou_threshold: see :func:`nms`. limit: only so many stay, the best.

    Returns:
        (K,) int64 indices as :func:`nms`; (P,) and (P,) pairs of a position among those and the index of a box whose
        IoU with it is greater than ``iou_threshold``, itself included. On the device of ``boxes``.
    """
    labels = torch.zeros(len(scores), dtype=torch.int64, device=scores.device)
    order, center, half, rot, _ = _by_score(boxes, scores, labels, iou_threshold)
    groups = overlap.greedy_groups(center, half, rot, iou_threshold, limit)
    kept, pairs = groups
    found = (order[kept], pairs[:, 0].copy(), order[pairs[:, 1]])
    first, second, third = (torch.from_numpy(rows).to(boxes.device) for rows in found)
    return first, second, third


def voted_nms(
    boxes: Tensor, scores: Tensor, labels: Tensor, iou_threshold: float, voting_iou: float
) -> tuple[Tensor, Tensor]:
    """:func:`nms`, and what all boxes say together about each kept one: the weighted mean of those of its label around.

    Many sites see one thing, each a little differently; the mean of their boxes is nearer to it than the box of the one
    that is most certain (as Gidaris and Komodakis do it in images, ICCV 2015, section 4.2, "bounding box voting").
    Centres and sizes are averaged, weighted by score times IoU; the rotation stays that of the kept box, and the sides
    of the others are named by the axes of it that they are nearest to.

    Args:
        boxes: (N, 9) with volume; scores: (N,) >= 0; labels: (N,) integer; iou_threshold: see :func:`nms`.
        voting_iou: boxes that overlap the kept one by more have a say; at least 0.

    Returns:
        (K,) as :func:`nms`, and (K, 9) what stands in their place; a kept box of score 0 stays as it is.
    """
    if not 0.0 <= voting_iou <= 1.0:
        raise ValueError(f"voting_iou must be in [0, 1], got {voting_iou}")
    order, center, half, rot, label = _by_score(boxes, scores, labels, iou_threshold)
    weight = scores.detach().to("cpu", torch.float64).numpy()[order]
    kept, sums = overlap.greedy_nms_with_votes(center, half, rot, weight, label, iou_threshold, voting_iou)
    keep, sums = order[kept], sums[kept]
    result = boxes.detach().to("cpu", torch.float64).numpy()[keep]
    heard = sums[:, 0] > 0
    result[heard, :3] = sums[heard, 1:4] / sums[heard, :1]
    result[heard, 3:6] = 2.0 * sums[heard, 4:] / sums[heard, :1]
    return torch.from_numpy(keep).to(boxes.device), torch.from_numpy(result).to(boxes)


def _by_score(
    boxes: Tensor, scores: Tensor, labels: Tensor, iou_threshold: float
) -> tuple[NDArray[np.int64], F64, F64, F64, NDArray[np.int64]]:
    """Checked, as arrays: the order of falling score, and in it centres, half sizes, rotations and labels."""
    n = boxes.shape[0]
    if scores.shape != (n,) or labels.shape != (n,):
        raise ValueError(f"need {n} scores and labels, got {tuple(scores.shape)} and {tuple(labels.shape)}")
    if labels.is_floating_point():
        raise ValueError(f"labels must be integers, got {labels.dtype}")
    if not 0.0 <= iou_threshold <= 1.0:
        raise ValueError(f"iou_threshold must be in [0, 1], got {iou_threshold}")
    score = scores.detach().to("cpu", torch.float64).numpy()
    if (unknown := np.flatnonzero(np.isnan(score))).size:
        raise ValueError(f"scores[{unknown[0]}] is NaN")
    order: NDArray[np.int64] = np.argsort(-score, kind="stable")
    center, half, rot = checked_frames(boxes, "boxes")
    label = labels.detach().to("cpu", torch.int64).numpy()
    return order, center[order], half[order], rot[order], label[order]


def footprint_nms(boxes: Tensor, scores: Tensor, labels: Tensor, iou_threshold: float) -> Tensor:
    """Greedy suppression by bird's eye overlap, each label by itself; indices, best first."""
    return nms(flatten_boxes(boxes), scores, labels, iou_threshold)


def picture_nms(boxes: F64, scores: F64, classes: NDArray[np.int64], iou_threshold: float) -> NDArray[np.int64]:
    """Rows that stay when of boxes of one class in a picture that overlap more only the best counts, best first.

    What is not finite is left out of the comparison and stays: it is dropped, and counted, later.

    Args:
        boxes: (N, 4) left, top, right, bottom; scores, classes: (N,); iou_threshold: see :func:`nms`.
    """
    finite = np.isfinite(boxes).all(axis=1) & np.isfinite(scores)
    rows = np.flatnonzero(finite)
    if len(rows):
        sides = np.concatenate([boxes[rows, :2], boxes[rows, 2:] - boxes[rows, :2]], axis=1)
        numbers = classes[rows].astype(np.int32)
        kept = cv2.dnn.NMSBoxesBatched(sides.tolist(), scores[rows].tolist(), numbers.tolist(), 0.0, iou_threshold)
        rows = rows[np.asarray(kept, dtype=np.int64).reshape(-1)]
    rows = np.concatenate([rows, np.flatnonzero(~finite)])
    return rows.astype(np.int64)


# --------------------------------------------------------------------------------------------------------------------
# how much boxes overlap


def thickened(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N, 9) boxes, no side thinner than what two perceptions differ by."""
    thick: NDArray[np.float64] = boxes.copy()
    thick[:, 3:6] = np.maximum(thick[:, 3:6], _THINNEST_M)
    return thick


def overlaps(a: NDArray[np.float64], b: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(N, 9), (M, 9) boxes -> (N, M) IoU, and (N, M) share of a's volume inside b."""
    iou = iou_of_arrays(a, b)
    volume_a, volume_b = a[:, 3:6].prod(axis=1)[:, None], b[:, 3:6].prod(axis=1)[None, :]
    shared: NDArray[np.float64] = iou * (volume_a + volume_b) / (1.0 + iou)
    return iou, shared / np.maximum(volume_a, 1e-12)


def paired_overlaps(a: NDArray[np.float64], b: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(P, 9), (P, 9) boxes -> (P,) IoU, and (P,) share of a's volume inside b: :func:`overlaps` of pairs."""
    iou = paired_iou_of_arrays(a, b)
    volume_a, volume_b = a[:, 3:6].prod(axis=1), b[:, 3:6].prod(axis=1)
    shared: NDArray[np.float64] = iou * (volume_a + volume_b) / (1.0 + iou)
    return iou, shared / np.maximum(volume_a, 1e-12)


def touching_pairs(boxes: NDArray[np.float64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows i < j of (N, 9) boxes, as thick as they count, whose bounds overlap; in the order of i, then j."""
    bounds = Bounds.of(thickened(boxes))
    low, high = bounds.low, bounds.high
    apart = ((low[:, None] > high[None]) | (high[:, None] < low[None])).any(axis=2)
    i, j = np.nonzero(np.triu(~apart, 1))
    return i, j


# --------------------------------------------------------------------------------------------------------------------
# a network's boxes


def same_thing_pairs(
    boxes: F64, things: NDArray[np.int64], named: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs of a row of ``things`` and one of ``named`` whose (N, 9) boxes are of one thing."""
    thick = thickened(boxes)
    center, reach = thick[:, :3], 0.5 * np.linalg.norm(thick[:, 3:6], axis=1)
    volume = thick[:, 3:6].prod(axis=1)
    apart = np.abs(center[things][:, None] - center[named][None]).max(axis=2)
    ratio = volume[things][:, None] / volume[named][None]
    # IoU cannot exceed the ratio of the volumes, nor be anything between spheres that do not touch
    near = (apart < reach[things][:, None] + reach[named][None]) & (ratio > SAME_THING_IOU)
    near &= ratio < 1.0 / SAME_THING_IOU
    i, j = np.nonzero(near)
    a, b = things[i], named[j]
    iou = paired_iou_of_arrays(thick[a], thick[b])
    return a[iou >= SAME_THING_IOU], b[iou >= SAME_THING_IOU]


class OverlappingDetections(NamedTuple):
    """Boxes in conflict: row ``by[p]`` of ``counted``, the rows that count at all, overlaps ``of[p]``, which need not
    count itself. (C,), (P,) and (P,) rows."""

    counted: NDArray[np.int64]
    of: NDArray[np.int64]
    by: NDArray[np.int64]

    def best_scores(self, scores: F64) -> F64:
        """(N,) the best of the ``scores`` of the boxes that overlap each; 0 without one."""
        best = np.zeros(len(scores))
        np.maximum.at(best, self.of, scores[self.by])
        return best


def overlapping_detections(boxes: F64, counted: NDArray[np.int64]) -> OverlappingDetections:
    """Of (N, 9) ``boxes`` the pairs in conflict (:data:`CONFLICT_IOU`); only rows ``counted`` speak against others."""
    volume = boxes[:, 3:6].prod(axis=1)
    i, j = Bounds.of(boxes).pairs_within(Bounds.of(boxes[counted]), 0.0)
    j = counted[j]
    # IoU cannot exceed the ratio of the volumes
    near = (i != j) & (np.minimum(volume[i], volume[j]) > CONFLICT_IOU * np.maximum(volume[i], volume[j]))
    i, j = i[near], j[near]
    conflict = paired_iou_of_arrays(boxes[i], boxes[j]) > CONFLICT_IOU
    return OverlappingDetections(counted, i[conflict], j[conflict])


def without_pieces(boxes: F64, scores: F64, labels: Sequence[str], grown: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(K,) rows, in order, without the pieces of what has grown: what lies in a grown box and has its name and at most
    its score, or has no name and its height.

    Args:
        boxes: (N, 9); scores: (N,); labels: N names; grown: (N,) whether a box was enlarged.
    """
    gone = np.zeros(len(boxes), dtype=bool)
    name = np.array(labels, dtype=object)
    ends_m = boxes[:, 2, None] + boxes[:, 5, None] * np.array([-0.5, 0.5])
    for row in np.flatnonzero(grown)[np.argsort(-scores[grown], kind="stable")]:
        if gone[row]:
            continue
        nameless = (name == UNNAMED) & (np.abs(ends_m - ends_m[row]) <= _PIECE_END_M).all(axis=1)
        alike = (((name == labels[row]) & (scores <= scores[row])) | nameless) & ~gone
        alike[row] = False
        others = np.flatnonzero(alike)
        iou = iou_of_arrays(boxes[others], boxes[row : row + 1])[:, 0]
        volume = boxes[others, 3:6].prod(axis=1)
        common = iou * (volume + boxes[row, 3:6].prod()) / (1 + iou)
        gone[others[common >= PIECE_SHARE * volume]] = True
    return np.flatnonzero(~gone)


# --------------------------------------------------------------------------------------------------------------------
# lifted boxes


def fusion_affinity(network: F64, lifted: F64, same_name: NDArray[np.bool_], unnamed: NDArray[np.bool_]) -> F64:
    """(N, M) affinity in [0, 1] of those pairs of a network's and a lifted box that may be one thing, otherwise 0.

    Args:
        network, lifted: (N, 9) and (M, 9).
        same_name: (N, M) whether the names agree.
        unnamed: (N,) which of the network's boxes have no name.
    """
    if len(network) == 0 or len(lifted) == 0:
        return np.zeros((len(network), len(lifted)))
    a, b = thickened(network), thickened(lifted)
    iou, share_a = overlaps(a, b)
    volume_a, volume_b = a[:, 3:6].prod(axis=1)[:, None], b[:, 3:6].prod(axis=1)[None, :]
    share_b = share_a * volume_a / volume_b
    ratio = np.minimum(volume_a, volume_b) / np.maximum(volume_a, volume_b)
    inside = np.maximum(share_a, share_b)
    enough = np.where(same_name | unnamed[:, None], iou >= _FUSED_SAME_NAME_IOU, iou >= _FUSED_OTHER_NAME_IOU)
    # a chair's back alone is thin, and its whole reaches half out of another's idea of it
    part = np.where(
        same_name,
        (inside >= _FUSED_PART_SHARE) & (ratio >= _FUSED_PART_RATIO),
        (inside >= _FUSED_INSIDE_SHARE) & (ratio >= _FUSED_INSIDE_RATIO),
    )
    value = np.maximum(iou, 0.5 * np.maximum(share_a, share_b))
    result: F64 = np.where(enough | part, value + same_name, 0.0) / 2  # the same name first
    return result


def distinct_lifted(boxes: F64, labels: Sequence[str]) -> list[int]:
    """Rows of (N, 9) lifted boxes, best first, without those that are one thing with a better one."""
    if len(boxes) == 0:
        return []
    thick = thickened(boxes)
    iou, share = overlaps(thick, thick)
    kept: list[int] = []
    for i, label in enumerate(labels):
        alike = [j for j in kept if labels[j] == label]
        inside = any(max(share[i, j], share[j, i]) >= _LIFTED_ONE_SHARE for j in alike)
        if not inside and all(iou[i, j] < _LIFTED_ONE_IOU for j in kept):
            kept.append(i)
    return kept


# --------------------------------------------------------------------------------------------------------------------
# objects of the map


def one_object_iou(a: str, b: str) -> float:
    """How much two objects of these names overlap when they are one thing."""
    if UNNAMED in (a, b):
        return _ONE_OBJECT_IOU
    if a == b:
        return _ONE_NAME_IOU
    return _LAYERED_IOU if a in _LAYERED and b in _LAYERED else _TWO_NAMES_IOU


def is_one_object(iou: float, thin_iou: float, name_a: str, name_b: str, two: bool) -> bool:
    """Whether two known objects are one thing.

    Args:
        iou: of the boxes as thick as they count (:func:`thickened`).
        thin_iou: of the boxes as they are.
        two: there is evidence that they are two (both were found at once): then they must fill one place.
    """
    least = one_object_iou(name_a, name_b)
    if two:
        least = max(least, _ONE_OBJECT_IOU)
    if iou < least:
        return False
    # thin things side by side, as books, overlap by no more than what they are thickened by
    return not two or thin_iou >= 0.5 * least


def one_object_pairs(boxes: F64, labels: Sequence[str]) -> tuple[NDArray[np.intp], NDArray[np.intp], F64]:
    """Rows i < j of (N, 9) boxes that are one object, as far as boxes tell, in the order of i, then j; and the IoU of
    these as thin as they are."""
    first, second = touching_pairs(boxes)
    thick = thickened(boxes)
    iou, _ = paired_overlaps(thick[first], thick[second])
    same = iou >= np.array([one_object_iou(labels[i], labels[j]) for i, j in zip(first, second, strict=True)])
    first, second = first[same], second[same]
    thin_iou, _ = paired_overlaps(boxes[first], boxes[second])
    return first, second, thin_iou


def denied_detections(
    boxes: F64, labels: Sequence[str], denied: F64, denied_labels: Sequence[str]
) -> NDArray[np.bool_]:
    """(N,) which detections are what a user said is not there: of its name, or one has none, and in its place.

    Args:
        boxes, denied: (N, 9) and (M, 9); labels, denied_labels: their names.
    """
    wrong = np.zeros(len(boxes), dtype=bool)
    boxes, denied = thickened(boxes), thickened(denied)
    numbers = {label: number for number, label in enumerate({UNNAMED, *labels, *denied_labels})}
    names = np.array([numbers[label] for label in labels], np.intp)
    denied_names = np.array([numbers[label] for label in denied_labels], np.intp)
    bounds = Bounds.of(boxes)
    for start in range(0, len(denied), _DENIED_AT_ONCE):  # all may lie in one place: memory must not hold every pair
        part = slice(start, start + _DENIED_AT_ONCE)
        i, j = bounds.pairs_within(Bounds.of(denied[part]), 0.0)
        a, b = names[i], denied_names[part][j]
        same = (a == b) | (a == numbers[UNNAMED]) | (b == numbers[UNNAMED])
        i, j = i[same & ~wrong[i]], j[same & ~wrong[i]]
        iou, _ = paired_overlaps(boxes[i], denied[part][j])
        wrong[i[iou >= DENIED_IOU]] = True
    return wrong


def found_inside(
    boxes: NDArray[np.float64], is_found: NDArray[np.bool_]
) -> tuple[list[list[int]], NDArray[np.float64]]:
    """For each box that was not found: the rows of found ones that touch it, and the share of it that they fill.

    What it lies inside of is not among them: a part is no less there for the whole that was found around it.
    """
    others: list[list[int]] = [[] for _ in boxes]
    covered = np.zeros(len(boxes))
    if is_found.all() or not is_found.any():
        return others, covered
    i, j = touching_pairs(boxes)
    missed, by = np.concatenate([i, j]), np.concatenate([j, i])
    wanted = ~is_found[missed] & is_found[by]
    missed, by = missed[wanted], by[wanted]
    _, share = paired_overlaps(boxes[missed], boxes[by])
    for m, f, part in zip(missed.tolist(), by.tolist(), share.tolist(), strict=True):
        if part < INSIDE_SHARE:
            others[m].append(f)
            covered[m] += part
    return others, np.minimum(covered, 1.0)


def box_affinity(known: NDArray[np.float64], found: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N, 9), (M, 9) -> (N, M) how much two boxes of one name may be of the same object, in [0, 1].

    The IoU; and for a part that grew into a whole (or, less far, the reverse), which overlap little, half of the share
    of the smaller inside the larger.
    """
    iou, share_known, share_found, ratio = _compared(known, found)
    grown = (share_known >= INSIDE_SHARE) & (ratio >= _MIN_GROWTH)
    shrunk = (share_found >= INSIDE_SHARE) & (ratio >= _MIN_SHRINKAGE)
    part = (share_found >= INSIDE_SHARE) & (ratio < _MIN_SHRINKAGE)
    share = np.where(grown, share_known, np.where(shrunk, share_found, 0.0))
    affinity: NDArray[np.float64] = np.where(part & ~grown, 0.0, np.maximum(iou, 0.5 * share))
    return affinity


def association_affinity(
    known: NDArray[np.float64],
    found: NDArray[np.float64],
    same_name: NDArray[np.bool_],
    settled: NDArray[np.bool_],
    cut: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """(N, M) how much each detection may be of each known object, in [0, 1]; 0 where it can't be.

    A part never takes the identity of a whole: across names only boxes that fill the same place compare (a chair under
    a table, a drawer in its dresser overlap little), and of one name a small box within a large one is a part of it.

    Args:
        known, found: (N, 9) and (M, 9).
        same_name: (N, M) whether the names agree, or one has none.
        settled: (N,) whose name is beyond doubt.
        cut: (M,) boxes that the border of what was looked at cuts: of these a part is all that can be seen.
    """
    affinity = box_affinity(known, found)
    iou, _, share_found, ratio = _compared(known, found)
    part = cut[None] & (share_found >= INSIDE_SHARE) & (ratio >= _MIN_GROWTH)
    affinity = np.where(part, np.maximum(affinity, 0.5 * share_found), affinity)
    other = np.where(settled[:, None] & (iou < _OTHER_NAME_IOU), 0.0, _OTHER_NAME * iou)
    return np.asarray(np.where(same_name, affinity, other))


def _compared(
    known: NDArray[np.float64], found: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """(N, M) IoU, share of the known box in the found one, the reverse, and the smaller volume over the larger one."""
    known, found = thickened(known), thickened(found)
    iou, share_known = overlaps(known, found)
    volume_known, volume_found = known[:, 3:6].prod(axis=1)[:, None], found[:, 3:6].prod(axis=1)[None, :]
    share_found = share_known * volume_known / np.maximum(volume_found, 1e-12)
    ratio = np.minimum(volume_known, volume_found) / np.maximum(np.maximum(volume_known, volume_found), 1e-12)
    return iou, share_known, share_found, ratio


def _axis_names() -> NDArray[np.float64]:
    """(24, 3, 3) rotations that map a box's axes onto its axes: other names for the same box."""
    found = []
    for order in itertools.permutations(range(3)):
        for signs in itertools.product((1.0, -1.0), repeat=3):
            P = np.zeros((3, 3))
            P[list(order), range(3)] = signs
            if np.linalg.det(P) > 0:
                found.append(P)
    return np.stack(found)


_AXIS_NAMES = _axis_names()


def blend_boxes(old: NDArray[np.float64], new: NDArray[np.float64], gain: float = 0.5) -> NDArray[np.float64]:
    """The (9,) box ``gain`` of the way from ``old`` to ``new``.

    Boxes that do not agree are not blended: what has grown around the old one is known better now, so the new one
    counts; otherwise the one that the gain favours.

    Of the 24 ways to name the new box's axes the one nearest to the old box's counts.
    """
    iou, share_old = overlaps(thickened(old[None]), thickened(new[None]))
    if float(iou[0, 0]) < _BLEND_IOU:
        return np.array(new if gain >= 0.5 or float(share_old[0, 0]) >= INSIDE_SHARE else old)
    if not old[7:].any() and not new[7:].any():  # upright boxes stay exactly upright
        result: NDArray[np.float64] = new.copy()
        turns = round(float((new[6] - old[6]) / (np.pi / 2)))
        result[6] -= turns * np.pi / 2
        if turns % 2:
            result[3], result[4] = new[4], new[3]
        blended: NDArray[np.float64] = old + gain * (result - old)
        blended[6] = (blended[6] + np.pi / 2) % np.pi - np.pi / 2
        return blended
    R_old, R_new = box_rotations(old[None])[0], box_rotations(new[None])[0]
    named = R_new @ _AXIS_NAMES  # (24, 3, 3)
    agreement = np.einsum("ij,kij->k", R_old, named)  # 1 + 2 cos of the angle between
    best = int(agreement.argmax())
    if np.arccos(np.clip((agreement[best] - 1.0) / 2.0, -1.0, 1.0)) > _BLEND_RAD:
        return np.array(new if gain >= 0.5 else old)
    size = np.abs(_AXIS_NAMES[best]).T @ new[3:6]
    u, _, vt = np.linalg.svd((1.0 - gain) * R_old + gain * named[best])
    angles = matrix_to_euler(torch.from_numpy(u @ vt)).numpy()
    place = old[:6] + gain * (np.concatenate([new[:3], size]) - old[:6])
    mean: NDArray[np.float64] = np.concatenate([place, angles])
    return mean
