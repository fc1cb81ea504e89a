"""When two boxes are of one thing: every rule of overlap, with its threshold.

Objects of the map are compared by the exact IoU of boxes with nine degrees of freedom; what a sentence compares, which
may be hundreds of boxes, by the IoU of their axis-aligned bounds (:class:`~..geometry.boxes.Bounds`).
"""

from __future__ import annotations

import itertools

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import box_iou, box_rotations, matrix_to_euler, paired_iou

UNNAMED = "object"  # label of what is found by shape alone

INSIDE_SHARE = 0.7  # of a box within another: it is a part of it
PROPOSAL_NMS_IOU = 0.5  # proposals for one phrase, of several windows: only the better stays

# IoU of bounds, above which two boxes
ONE_THING_IOU = 0.4  # are candidates for one thing: one of them is enough
ONE_PLACE_IOU = 0.5  # speak of one place, and share its score between their names
PROPOSED_IOU = 0.2  # are a proposal of the network's grounding and the object that it means
RELATED_IOU = 0.3  # are too much alike to stand in a relation to each other
BETWEEN_IOU = 0.2  # are too much alike for anything to lie between them

# exact IoU, from which two objects of the map are one
_ONE_OBJECT_IOU = 0.5  # where a name is missing
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
_THINNEST_M = 0.1  # pictures and doors that are found a few centimetres further back are the same ones
_BLEND_IOU = 0.6
_BLEND_RAD = 0.6  # boxes that differ by more are two opinions, not one with noise


def one_object_iou(a: str, b: str) -> float:
    """How much two objects of these names overlap when they are one thing."""
    if UNNAMED in (a, b):
        return _ONE_OBJECT_IOU
    if a == b:
        return _ONE_NAME_IOU
    return _LAYERED_IOU if a in _LAYERED and b in _LAYERED else _TWO_NAMES_IOU


def is_one_place(iou: float, thin_iou: float, name_a: str, name_b: str, two: bool) -> bool:
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


def overlaps(a: NDArray[np.float64], b: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(N, 9), (M, 9) boxes -> (N, M) IoU, and (N, M) share of a's volume inside b."""
    iou: NDArray[np.float64] = box_iou(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    volume_a, volume_b = a[:, 3:6].prod(axis=1)[:, None], b[:, 3:6].prod(axis=1)[None, :]
    shared: NDArray[np.float64] = iou * (volume_a + volume_b) / (1.0 + iou)
    return iou, shared / np.maximum(volume_a, 1e-12)


def paired_overlaps(a: NDArray[np.float64], b: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(P, 9), (P, 9) boxes -> (P,) IoU, and (P,) share of a's volume inside b: :func:`overlaps` of pairs."""
    iou: NDArray[np.float64] = paired_iou(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    volume_a, volume_b = a[:, 3:6].prod(axis=1), b[:, 3:6].prod(axis=1)
    shared: NDArray[np.float64] = iou * (volume_a + volume_b) / (1.0 + iou)
    return iou, shared / np.maximum(volume_a, 1e-12)


def thickened(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N, 9) boxes, no side thinner than what two looks differ by."""
    thick: NDArray[np.float64] = boxes.copy()
    thick[:, 3:6] = np.maximum(thick[:, 3:6], _THINNEST_M)
    return thick


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
