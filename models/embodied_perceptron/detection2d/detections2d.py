"""Checked 2-D detections of one image, and the reasons for which raw output is dropped.

Integer pixel coordinates are pixel centres, so an image of width W covers [-0.5, W - 0.5). Output that counts from the
image corner is shifted where it is read.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.config import require_positive, require_within
from embodied_perceptron.recordings.plain_values import forbidden_character

MAX_LABEL_LENGTH = 100

# Reasons for drops, in the order of checking.
NOT_FINITE = "not_finite"  # a coordinate or score is NaN or infinite
BAD_SCORE = "score_out_of_range"  # outside of [0, 1]
NO_LABEL = "no_label"  # empty, too long, or nothing printable
EMPTY_BOX = "empty_box"  # right edge not right of the left one, bottom not below top
OUTSIDE = "outside_of_image"
TOO_SMALL = "too_small"  # the part inside of the image
EMPTY_MASK = "empty_mask"
LOW_SCORE = "low_score"
TOO_MANY = "too_many"  # more than the limit per image
REASONS = (NOT_FINITE, BAD_SCORE, NO_LABEL, EMPTY_BOX, OUTSIDE, TOO_SMALL, EMPTY_MASK, LOW_SCORE, TOO_MANY)


@dataclass(frozen=True, eq=False)
class Detections2d:
    """Named boxes of one image, sorted by score by :func:`accept_detections`.

    Attributes:
        camera: name of the camera.
        stamp_ns: of the image.
        boxes_px: (N, 4) float64 left, top, right, bottom; inside of the image.
        scores: (N,) float64 in [0, 1].
        labels: class name of each.
        masks: (N, H, W) bool of the image's size, or None.
        embeddings: (N, D) float32 unit vectors of the regions, or None.

    Raises ``ValueError`` naming the field.
    """

    camera: str
    stamp_ns: int
    boxes_px: NDArray[np.float64]
    scores: NDArray[np.float64]
    labels: tuple[str, ...]
    masks: NDArray[np.bool_] | None = None
    embeddings: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        count = len(self.labels)
        if self.boxes_px.shape != (count, 4):
            raise ValueError(f"boxes_px must be ({count}, 4) for {count} labels, got {self.boxes_px.shape}")
        if self.scores.shape != (count,):
            raise ValueError(f"scores must be ({count},) for {count} labels, got {self.scores.shape}")
        if not np.isfinite(self.boxes_px).all():
            raise ValueError(
                f"boxes_px has non-finite entries in row {int(np.argwhere(~np.isfinite(self.boxes_px))[0, 0])}"
            )
        if count and not (self.boxes_px[:, 2:] > self.boxes_px[:, :2]).all():
            raise ValueError("boxes_px must be left, top, right, bottom with right > left and bottom > top")
        if not ((self.scores >= 0) & (self.scores <= 1)).all():
            raise ValueError(f"scores must be in [0, 1], got {self.scores.tolist()}")
        if self.masks is not None and (self.masks.ndim != 3 or len(self.masks) != count or self.masks.dtype != bool):
            raise ValueError(f"masks must be ({count}, H, W) bool, got {self.masks.shape} {self.masks.dtype}")
        if self.embeddings is not None and (self.embeddings.ndim != 2 or len(self.embeddings) != count):
            raise ValueError(f"embeddings must be ({count}, D), got {self.embeddings.shape}")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: NDArray[np.integer[Any]]) -> Detections2d:
        """Select detections, in the order of ``rows``."""
        parts = (None if part is None else part[rows] for part in (self.masks, self.embeddings))
        labels = tuple(self.labels[i] for i in rows)
        return Detections2d(self.camera, self.stamp_ns, self.boxes_px[rows], self.scores[rows], labels, *parts)


@dataclass(frozen=True)
class Limits2d:
    """Limits on a detector's output.

    Attributes:
        min_score: least score.
        min_side_px: least side of a box, for a surface to lift.
        max_count: detections per image; the best are kept.

    Raises ``ValueError`` naming the field.
    """

    min_score: float = 0.3
    min_side_px: float = 6.0
    max_count: int = 100

    def __post_init__(self) -> None:
        require_within(self, 0, 1, "min_score")
        require_positive(self, "min_side_px", "max_count")


@lru_cache(maxsize=4096)
def clean_label(label: str) -> str:
    """A class name as the map writes it: lower case, one form of each character, single blanks; '' if nothing is left.

    Names of any language stay what they are: nothing is translated.
    """
    plain = unicodedata.normalize("NFKC", label)
    plain = "".join(" " if not c.isprintable() or forbidden_character(c) else c for c in plain)
    plain = plain.replace("_", " ").lower()
    text = " ".join(plain.split())
    return text if len(text) <= MAX_LABEL_LENGTH else ""


def accept_detections(
    camera: str,
    stamp_ns: int,
    boxes_px: NDArray[np.floating[Any]],
    scores: NDArray[np.floating[Any]],
    labels: Sequence[str],
    image_size: tuple[int, int],
    limits: Limits2d = Limits2d(),
    masks: NDArray[np.bool_] | None = None,
) -> tuple[Detections2d, Counter[str]]:
    """Raw output of any detector -> what can be used, and how many were dropped for which reason.

    Args:
        camera, stamp_ns: of the picture.
        boxes_px: (N, 4) left, top, right, bottom; cut at the picture's border.
        scores: (N,).
        labels: N names, cleaned by :func:`clean_label`.
        image_size: (width, height) of the picture.
        limits: what is used.
        masks: (N, H, W) bool at the picture's size; boxes are then cut to them.

    Raises ``ValueError`` when lengths or shapes do not belong together: that is another layout, not a bad detection.
    """
    boxes = np.asarray(boxes_px, dtype=np.float64).reshape(-1, 4) if np.size(boxes_px) else np.zeros((0, 4))
    given = np.asarray(scores, dtype=np.float64).reshape(-1)
    width, height = image_size
    if len(boxes) != len(given) or len(boxes) != len(labels):
        raise ValueError(f"{len(boxes)} boxes, {len(given)} scores and {len(labels)} labels do not belong together")
    if masks is not None and masks.shape != (len(boxes), height, width):
        raise ValueError(f"masks must be {(len(boxes), height, width)} for this picture, got {masks.shape}")
    names = [clean_label(label) for label in labels]
    drops: Counter[str] = Counter()
    alive = np.ones(len(boxes), dtype=bool)

    def drop(bad: Any, reason: str) -> None:
        nonlocal alive
        if count := int(np.count_nonzero(alive & bad)):
            drops[reason] += count
        alive = alive & ~bad

    drop(~(np.isfinite(boxes).all(axis=1) & np.isfinite(given)), NOT_FINITE)
    drop(~((given >= 0) & (given <= 1)), BAD_SCORE)
    drop(np.array([not name for name in names], dtype=bool), NO_LABEL)
    with np.errstate(invalid="ignore"):
        drop((boxes[:, 2:] <= boxes[:, :2]).any(axis=1), EMPTY_BOX)
        inside = np.clip(boxes, -0.5, np.array([width, height, width, height]) - 0.5)
        size = inside[:, 2:] - inside[:, :2]
        drop((size <= 0).any(axis=1), OUTSIDE)
        drop((size < limits.min_side_px).any(axis=1), TOO_SMALL)
    if masks is not None:
        drop(~masks.any(axis=(1, 2)), EMPTY_MASK)
    drop(given < limits.min_score, LOW_SCORE)
    rows = np.flatnonzero(alive)
    rows = rows[np.argsort(-given[rows], kind="stable")]
    if len(rows) > limits.max_count:
        drops[TOO_MANY] += len(rows) - limits.max_count
        rows = rows[: limits.max_count]
    found = Detections2d(
        camera,
        stamp_ns,
        inside[rows],
        given[rows],
        tuple(names[i] for i in rows),
        None if masks is None else np.asarray(masks[rows], dtype=bool),
    )
    return found, drops
