"""Rules for when two boxes are of the same object, with one table of their thresholds.

No other module compares an overlap with a constant (a test checks this). Settings that users may change are
in :class:`~embodied_perceptron.config.TrackingConfig` (``match_iou``, ``stacked_iou``); presets of networks and layouts
of 2-D detectors take theirs from here.

Boxes of the network and objects of the map are compared by the exact IoU of 9-DoF boxes; the candidates of a sentence,
possibly hundreds, by the IoU of their axis-aligned bounds (:class:`~embodied_perceptron.geometry.boxes.Bounds`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation
from torch import Tensor

from embodied_perceptron.geometry import overlap
from embodied_perceptron.geometry.boxes import (
    Bounds,
    box_rotations,
    checked_solids,
    flatten_boxes,
    iou_of_arrays,
    matrix_to_euler,
    paired_iou_of_arrays,
)
from embodied_perceptron.geometry.transforms import F64

UNNAMED = "object"  # label of objects found by shape alone

# --------------------------------------------------------------------------------------------------------------------
# the table of overlap thresholds

# a network's boxes, by exact IoU
NMS_IOU = 0.25  # NMS per class: our presets
PUBLISHED_NMS_IOU = 0.5  # NMS per class as published: preset `paper`, and the default
VOTING_IOU = 0.3  # boxes of one class that vote on position and size
REFINED_TOGETHER_IOU = 0.5  # boxes refined once for all of their names
QUERY_NMS_IOU = 0.4  # boxes of any class that are one query of the grounding head
PHRASE_NMS_IOU = 0.5  # NMS per phrase, also across windows
SAME_THING_IOU = 0.5  # a named and an unnamed box, or two synonyms, are one object
CONFLICT_IOU = 0.25  # boxes that exclude each other
PIECE_SHARE = 0.6  # share of a box's volume inside of an enlarged one of its name: it is a part of it
_PIECE_END_M = 0.1  # tolerance of top and bottom for an unnamed part

# 2-D boxes of detectors that leave NMS to the user, with their usual thresholds
DETECTOR_NMS_IOU = {"nanodet": 0.6, "nanodet-plus": 0.6, "yolov8": 0.7, "yolo11": 0.7, "yolov5": 0.45, "yolox": 0.45}

# lifted 2-D detections
LIFTED_OTHER_NAME_AFFINITY = 0.5  # share of common cells of objects of two names that are one
LIFTED_OTHER_NAME_SIZE = 0.4  # least ratio of sizes: a cup is not part of its table
LIFTED_ONE_BOX_IOU = 0.6  # 2-D boxes of two names in one image that are of one object
SHAPE_SHARE = 0.5  # share of an object's points in a shape of the map
_LIFTED_ONE_IOU, _LIFTED_ONE_SHARE = 0.3, 0.7  # exact IoU, or share inside for one name, of equal objects
_LIFTED_ONE_NAME_IOU = 0.1  # of one name, where no image shows two: objects of one class do not intersect
_FUSED_SAME_NAME_IOU, _FUSED_OTHER_NAME_IOU = 0.15, 0.25  # a box of the network and a lifted one
_FUSED_PART_SHARE, _FUSED_PART_RATIO = 0.4, 0.05  # for one name: share inside the other, and ratio of volumes
_FUSED_INSIDE_SHARE, _FUSED_INSIDE_RATIO = 0.7, 0.25  # the same for two names

# objects of the map, by exact IoU of thickened boxes
INSIDE_SHARE = 0.7  # share of a box inside another: it is a part of it
_THINNEST_M = 0.1  # predictions of one flat object differ by a few centimetres
DENIED_IOU = 0.3  # a detection of an object that the user denied
_DENIED_AT_ONCE = 256
_ONE_OBJECT_IOU = 0.5  # two objects, one unnamed, are one
_ONE_NAME_IOU = 0.15  # of one name: objects of one class do not intersect
_TWO_NAMES_IOU = 0.3  # of two names: an uncertain network finds one object under several names
_LAYERED_IOU = 0.65  # a curtain and its window, or a door and its frame, are two objects at one location
_LAYERED = frozenset(
    {"blinds", "curtain", "door", "doorframe", "doorway", "garage door", "window", "window frame", "windowsill"}
)
_MIN_GROWTH = 0.15  # least volume of a part relative to the whole it grew into
_MIN_SHRINKAGE = 0.35  # a smaller detection is a part of the known object, or another object
_OTHER_NAME = 0.7  # affinity across names
_OTHER_NAME_IOU = 0.5  # for an object of a settled other name
_BLEND_IOU = 0.6  # boxes that overlap less are not averaged
_BLEND_RAD = 0.6  # nor boxes rotated by more

# candidates of a sentence, by IoU of bounds
ONE_THING_IOU = 0.4  # candidates that are one object
ONE_PLACE_IOU = 0.5  # candidates that share their score between names
PROPOSED_IOU = 0.2  # a proposal of the grounding head matches an object
RELATED_IOU = 0.3  # objects that overlap too much for a spatial relation
BETWEEN_IOU = 0.2  # objects that overlap too much for an object between them

# objects of two maps of one place
UNCHANGED_IOU = 0.25  # the same object under any name
UNCHANGED_NAME_IOU = 0.1  # the same object under one name


# --------------------------------------------------------------------------------------------------------------------
# greedy suppression


def nms(boxes: Tensor, scores: Tensor, labels: Tensor, iou_threshold: float) -> Tensor:
    """Non-maximum suppression with exact IoU, per label.

    Args:
        boxes: (N, 9), scores: (N,) float, labels: (N,) integer; iou_threshold: a box is removed when its IoU
            with a kept box of its label and a better score (on a tie the lower index) is greater.

    Returns:
        (K,) int64 indices of the kept boxes, best score first, on the device of ``boxes``.
    """
    order, solids, label = _by_score(boxes, scores, labels, iou_threshold)
    keep, _ = overlap.greedy_nms(solids, label, iou_threshold, np.zeros(0), 0.0)
    return torch.from_numpy(order[keep]).to(boxes.device)


def grouped_nms(boxes: Tensor, scores: Tensor, iou_threshold: float, limit: int) -> tuple[Tensor, Tensor, Tensor]:
    """Run :func:`nms` on boxes of one label and return the boxes that each kept one suppresses.

    Args:
        boxes: (N, 9), scores: (N,) float, iou_threshold: see :func:`nms`. limit: number of boxes kept.

    Returns:
        (K,) int64 indices as :func:`nms`; (P,) and (P,) pairs of a position among those and the index of a box whose
        IoU with it is greater than ``iou_threshold``, itself included. On the device of ``boxes``.
    """
    labels = torch.zeros(len(scores), dtype=torch.int64, device=scores.device)
    order, solids, _ = _by_score(boxes, scores, labels, iou_threshold)
    kept, pairs = overlap.greedy_groups(solids, iou_threshold, limit)
    found = (order[kept], pairs[:, 0].copy(), order[pairs[:, 1]])
    first, second, third = (torch.from_numpy(rows).to(boxes.device) for rows in found)
    return first, second, third


def voted_nms(
    boxes: Tensor, scores: Tensor, labels: Tensor, iou_threshold: float, voting_iou: float
) -> tuple[Tensor, Tensor]:
    """Run :func:`nms` with box voting: each kept box becomes the weighted mean of the boxes of its label around it.

    The mean over many predictions is more accurate than the best one (Gidaris and Komodakis, ICCV 2015, section 4.2).
    Centres and sizes are averaged with score times IoU as weight; the rotation stays, and the sides of other boxes are
    assigned to its nearest axes.

    Args:
        boxes: (N, 9) with volume; scores: (N,) >= 0; labels: (N,) integer; iou_threshold: see :func:`nms`.
        voting_iou: boxes with a greater IoU vote; at least 0.

    Returns:
        (K,) as :func:`nms`, and (K, 9) voted boxes; a kept box of score 0 is unchanged.
    """
    if not 0.0 <= voting_iou <= 1.0:
        raise ValueError(f"voting_iou must be in [0, 1], got {voting_iou}")
    order, solids, label = _by_score(boxes, scores, labels, iou_threshold)
    weight = scores.detach().to("cpu", torch.float64).numpy()[order]
    kept, sums = overlap.greedy_nms(solids, label, iou_threshold, weight, voting_iou)
    keep, sums = order[kept], sums[kept]
    result = boxes.detach().to("cpu", torch.float64).numpy()[keep]
    voted = sums[:, 0] > 0
    result[voted, :3] = sums[voted, 1:4] / sums[voted, :1]
    result[voted, 3:6] = 2.0 * sums[voted, 4:] / sums[voted, :1]
    return torch.from_numpy(keep).to(boxes.device), torch.from_numpy(result).to(boxes)


def _by_score(
    boxes: Tensor, scores: Tensor, labels: Tensor, iou_threshold: float
) -> tuple[NDArray[np.int64], F64, NDArray[np.int64]]:
    """Check the input; return the order of descending score, and sorted solids and labels."""
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
    label = labels.detach().to("cpu", torch.int64).numpy()
    return order, checked_solids(boxes, "boxes")[order], label[order]


def footprint_nms(boxes: Tensor, scores: Tensor, labels: Tensor, iou_threshold: float) -> Tensor:
    """Run :func:`nms` on the bird's-eye view of the boxes."""
    return nms(flatten_boxes(boxes), scores, labels, iou_threshold)


def picture_nms(boxes: F64, scores: F64, classes: NDArray[np.int64], iou_threshold: float) -> NDArray[np.int64]:
    """Non-maximum suppression of 2-D boxes per class; return the kept rows, best first.

    Non-finite boxes are not compared and stay; they are dropped and counted later.

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


def thickened(boxes: F64) -> F64:
    """Return (N, 9) boxes with sides of at least the difference of two predictions."""
    thick: F64 = boxes.copy()
    thick[:, 3:6] = np.maximum(thick[:, 3:6], _THINNEST_M)
    return thick


def overlaps(a: F64, b: F64) -> tuple[F64, F64]:
    """(N, 9), (M, 9) boxes -> (N, M) IoU, and (N, M) share of a's volume inside b."""
    iou = iou_of_arrays(a, b)
    volume_a, volume_b = a[:, 3:6].prod(axis=1)[:, None], b[:, 3:6].prod(axis=1)[None, :]
    shared: F64 = iou * (volume_a + volume_b) / (1.0 + iou)
    return iou, shared / np.maximum(volume_a, 1e-12)


def paired_overlaps(a: F64, b: F64) -> tuple[F64, F64]:
    """(P, 9), (P, 9) boxes -> (P,) IoU, and (P,) share of a's volume inside b."""
    iou = paired_iou_of_arrays(a, b)
    volume_a, volume_b = a[:, 3:6].prod(axis=1), b[:, 3:6].prod(axis=1)
    shared: F64 = iou * (volume_a + volume_b) / (1.0 + iou)
    return iou, shared / np.maximum(volume_a, 1e-12)


def touching_pairs(boxes: F64) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return rows i < j of (N, 9) boxes whose thickened bounds overlap, ordered by i, then j."""
    bounds = Bounds.of(thickened(boxes))
    i, j = bounds.pairs_within(bounds, 0.0)
    touching = (i < j) & (bounds.low[i, 2] <= bounds.high[j, 2]) & (bounds.low[j, 2] <= bounds.high[i, 2])
    return i[touching], j[touching]


# --------------------------------------------------------------------------------------------------------------------
# a network's boxes


def same_thing_pairs(
    boxes: F64, things: NDArray[np.int64], named: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the pairs of a row of ``things`` and one of ``named`` whose (N, 9) boxes are of one object."""
    thick = thickened(boxes)
    center, reach = thick[:, :3], 0.5 * np.linalg.norm(thick[:, 3:6], axis=1)
    volume = thick[:, 3:6].prod(axis=1)
    apart = np.abs(center[things][:, None] - center[named][None]).max(axis=2)
    ratio = volume[things][:, None] / volume[named][None]
    # IoU is at most the ratio of volumes, and 0 for disjoint bounding spheres
    near = (apart < reach[things][:, None] + reach[named][None]) & (ratio > SAME_THING_IOU)
    near &= ratio < 1.0 / SAME_THING_IOU
    i, j = np.nonzero(near)
    a, b = things[i], named[j]
    iou = paired_iou_of_arrays(thick[a], thick[b])
    return a[iou >= SAME_THING_IOU], b[iou >= SAME_THING_IOU]


class OverlappingDetections(NamedTuple):
    """Pairs of conflicting boxes: row ``by[p]``, one of ``counted``, overlaps row ``of[p]``. (C,), (P,), (P,) rows."""

    counted: NDArray[np.int64]
    of: NDArray[np.int64]
    by: NDArray[np.int64]

    def best_scores(self, scores: F64) -> F64:
        """Return (N,) the best score of the boxes that overlap each; 0 without one."""
        best = np.zeros(len(scores))
        np.maximum.at(best, self.of, scores[self.by])
        return best


def overlapping_detections(boxes: F64, counted: NDArray[np.int64]) -> OverlappingDetections:
    """Find conflicting pairs (:data:`CONFLICT_IOU`) of (N, 9) boxes, one of each pair in ``counted``."""
    volume = boxes[:, 3:6].prod(axis=1)
    i, j = Bounds.of(boxes).pairs_within(Bounds.of(boxes[counted]), 0.0)
    j = counted[j]
    # IoU is at most the ratio of volumes
    near = (i != j) & (np.minimum(volume[i], volume[j]) > CONFLICT_IOU * np.maximum(volume[i], volume[j]))
    i, j = i[near], j[near]
    conflict = paired_iou_of_arrays(boxes[i], boxes[j]) > CONFLICT_IOU
    return OverlappingDetections(counted, i[conflict], j[conflict])


def without_pieces(boxes: F64, scores: F64, labels: Sequence[str], grown: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return (K,) rows, in order, without parts of enlarged boxes.

    A part lies inside of an enlarged box and has its name and at most its score, or is unnamed and of its height.

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
    """Return (N, M) affinities in [0, 1] of boxes of the network and lifted boxes; 0 for different objects.

    Args:
        network, lifted: (N, 9) and (M, 9).
        same_name: (N, M) True where the names agree.
        unnamed: (N,) True for unnamed boxes of the network.
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
    # the back of a chair is thin, and the whole chair may extend half out of another estimate
    part = np.where(
        same_name,
        (inside >= _FUSED_PART_SHARE) & (ratio >= _FUSED_PART_RATIO),
        (inside >= _FUSED_INSIDE_SHARE) & (ratio >= _FUSED_INSIDE_RATIO),
    )
    value = np.maximum(iou, 0.5 * np.maximum(share_a, share_b))
    result: F64 = np.where(enough | part, value + same_name, 0.0) / 2  # pairs of one name first
    return result


def distinct_lifted(boxes: F64, labels: Sequence[str]) -> list[int]:
    """Return rows of (N, 9) lifted boxes, given best first, without duplicates of a better one of their name."""
    if len(boxes) == 0:
        return []
    thick = thickened(boxes)
    iou, share = overlaps(thick, thick)
    kept: list[int] = []
    for i, label in enumerate(labels):
        alike = [j for j in kept if labels[j] == label]
        inside = any(max(share[i, j], share[j, i]) >= _LIFTED_ONE_SHARE for j in alike)
        if not inside and all(iou[i, j] < _LIFTED_ONE_IOU for j in alike):
            kept.append(i)
    return kept


def fragment_pairs(boxes: F64, labels: Sequence[str]) -> list[tuple[int, int]]:
    """Return rows i < j of (N, 9) lifted boxes of one name that intersect, by descending IoU of the thickened boxes.

    They are of one object unless an image shows two.
    """
    first, second = touching_pairs(boxes)
    same = np.array([labels[i] == labels[j] for i, j in zip(first, second, strict=True)], dtype=bool)
    first, second = first[same], second[same]
    thick = thickened(boxes)
    iou, _ = paired_overlaps(thick[first], thick[second])
    order = [p for p in np.argsort(-iou, kind="stable") if iou[p] >= _LIFTED_ONE_NAME_IOU]
    return [(int(first[p]), int(second[p])) for p in order]


# --------------------------------------------------------------------------------------------------------------------
# objects of the map


def one_object_iou(a: str, b: str) -> float:
    """Return the IoU from which two objects of these names are one."""
    if UNNAMED in (a, b):
        return _ONE_OBJECT_IOU
    if a == b:
        return _ONE_NAME_IOU
    return _LAYERED_IOU if are_layered(a, b) else _TWO_NAMES_IOU


def are_layered(a: str, b: str) -> bool:
    """Return True when objects of these two names are usually at one location, as a door and its frame."""
    return a != b and a in _LAYERED and b in _LAYERED


def is_one_object(iou: float, thin_iou: float, name_a: str, name_b: str, two: bool) -> bool:
    """Return True when two known objects are one.

    Args:
        iou: of the thickened boxes (:func:`thickened`).
        thin_iou: of the boxes themselves.
        two: there is evidence of two objects (both were found at once), so the overlap must be larger.
    """
    least = one_object_iou(name_a, name_b)
    if two:
        least = max(least, _ONE_OBJECT_IOU)
    if iou < least:
        return False
    # thin objects side by side, such as books, overlap only because they are thickened
    return not two or thin_iou >= 0.5 * least


def one_object_pairs(boxes: F64, labels: Sequence[str]) -> tuple[NDArray[np.intp], NDArray[np.intp], F64]:
    """Return rows i < j of (N, 9) boxes that may be one object, ordered by i, then j, and the IoU of the boxes
    without thickening."""
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
    """Return (N,) True for detections of an object that the user denied: same name or unnamed, at its location.

    Args:
        boxes, denied: (N, 9) and (M, 9); labels, denied_labels: their names.
    """
    wrong = np.zeros(len(boxes), dtype=bool)
    boxes, denied = thickened(boxes), thickened(denied)
    numbers = {label: number for number, label in enumerate({UNNAMED, *labels, *denied_labels})}
    names = np.array([numbers[label] for label in labels], np.intp)
    denied_names = np.array([numbers[label] for label in denied_labels], np.intp)
    bounds = Bounds.of(boxes)
    for start in range(0, len(denied), _DENIED_AT_ONCE):  # bounds the memory of pairs
        part = slice(start, start + _DENIED_AT_ONCE)
        i, j = bounds.pairs_within(Bounds.of(denied[part]), 0.0)
        a, b = names[i], denied_names[part][j]
        same = (a == b) | (a == numbers[UNNAMED]) | (b == numbers[UNNAMED])
        i, j = i[same & ~wrong[i]], j[same & ~wrong[i]]
        iou, _ = paired_overlaps(boxes[i], denied[part][j])
        wrong[i[iou >= DENIED_IOU]] = True
    return wrong


def found_inside(boxes: F64, is_found: NDArray[np.bool_]) -> tuple[list[list[int]], F64]:
    """Return, for each missed box, the rows of found boxes that touch it, and the share of it that they fill.

    Boxes that contain it are excluded: a found whole is no evidence against its part.
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


def box_affinity(known: F64, found: F64) -> F64:
    """(N, 9), (M, 9) -> (N, M) affinity in [0, 1] of two boxes of one name.

    The IoU; for a part that grew into a whole (or, less, the reverse) half of the share of the smaller in the larger.
    """
    iou, share_known, share_found, ratio = _compared(known, found)
    grown = (share_known >= INSIDE_SHARE) & (ratio >= _MIN_GROWTH)
    shrunk = (share_found >= INSIDE_SHARE) & (ratio >= _MIN_SHRINKAGE)
    part = (share_found >= INSIDE_SHARE) & (ratio < _MIN_SHRINKAGE)
    share = np.where(grown, share_known, np.where(shrunk, share_found, 0.0))
    affinity: F64 = np.where(part & ~grown, 0.0, np.maximum(iou, 0.5 * share))
    return affinity


def association_affinity(
    known: F64,
    found: F64,
    same_name: NDArray[np.bool_],
    settled: NDArray[np.bool_],
    cut: NDArray[np.bool_],
) -> F64:
    """Return (N, M) affinities in [0, 1] of detections with known objects; 0 = different objects.

    A part never takes the identity of a whole: boxes of other names must fill the same space (a chair under a table
    overlaps it little), and a small box inside a large one of its name is a part of it.

    Args:
        known, found: (N, 9) and (M, 9).
        same_name: (N, M) True where the names agree or one is missing.
        settled: (N,) True for objects whose name is certain.
        cut: (M,) True for boxes cut by the border of the predicted region, which may be parts.
    """
    affinity = box_affinity(known, found)
    iou, _, share_found, ratio = _compared(known, found)
    part = cut[None] & (share_found >= INSIDE_SHARE) & (ratio >= _MIN_GROWTH)
    affinity = np.where(part, np.maximum(affinity, 0.5 * share_found), affinity)
    other = np.where(settled[:, None] & (iou < _OTHER_NAME_IOU), 0.0, _OTHER_NAME * iou)
    return np.asarray(np.where(same_name, affinity, other))


def _compared(known: F64, found: F64) -> tuple[F64, F64, F64, F64]:
    """Return (N, M) IoU, share of the known box in the found one, the reverse, and smaller over larger volume."""
    known, found = thickened(known), thickened(found)
    iou, share_known = overlaps(known, found)
    volume_known, volume_found = known[:, 3:6].prod(axis=1)[:, None], found[:, 3:6].prod(axis=1)[None, :]
    share_found = share_known * volume_known / np.maximum(volume_found, 1e-12)
    ratio = np.minimum(volume_known, volume_found) / np.maximum(np.maximum(volume_known, volume_found), 1e-12)
    return iou, share_known, share_found, ratio


_AXIS_NAMES = Rotation.create_group("O").as_matrix().round()  # (24, 3, 3) rotations that permute a box's axes


def blend_boxes(old: F64, new: F64, gains: F64) -> F64:
    """Interpolate (N, 9) boxes by (N,) ``gains`` from ``old`` to ``new``, with the axis permutation nearest to the old.

    Boxes that differ too much are not interpolated: the new one counts if it contains the old one, otherwise the one
    that the gain favours.
    """
    iou, share_old = paired_overlaps(thickened(old), thickened(new))
    gain, alike = gains[:, None], iou >= _BLEND_IOU
    result: F64 = np.where((gain >= 0.5) | (~alike & (share_old >= INSIDE_SHARE))[:, None], new, old)
    upright = alike & ~(old[:, 7:].any(axis=1) | new[:, 7:].any(axis=1))  # these stay exactly upright
    turns = np.round((new[:, 6] - old[:, 6]) / (np.pi / 2))
    turned = np.where((turns % 2 == 1)[:, None], new[:, [0, 1, 2, 4, 3, 5, 6, 7, 8]], new)
    turned[:, 6] -= turns * np.pi / 2
    blended = old + gain * (turned - old)
    blended[:, 6] = (blended[:, 6] + np.pi / 2) % np.pi - np.pi / 2
    result[upright] = blended[upright]
    for row in np.flatnonzero(alike & ~upright):
        R_old, R_new = box_rotations(np.stack([old[row], new[row]]))
        named = R_new @ _AXIS_NAMES  # (24, 3, 3)
        agreement = np.einsum("ij,kij->k", R_old, named)  # 1 + 2 cos of the angle between
        best = int(agreement.argmax())
        if np.arccos(np.clip((agreement[best] - 1.0) / 2.0, -1.0, 1.0)) <= _BLEND_RAD:
            size = np.abs(_AXIS_NAMES[best]).T @ new[row, 3:6]
            u, _, vt = np.linalg.svd((1.0 - gains[row]) * R_old + gains[row] * named[best])
            result[row, :6] = old[row, :6] + gains[row] * (np.concatenate([new[row, :3], size]) - old[row, :6])
            result[row, 6:] = matrix_to_euler(torch.from_numpy(u @ vt)).numpy()
    return result
