"""2-D detections lifted into the scene as in ARKitSceneRefer's baseline.

A ray goes through the centre of every 2-D box to the surface of the scene. Hits of one class are clustered with DBSCAN;
the biggest cluster answers to the class name, and its centre is the mean of its hits. For the 3-D box, rays go through
every mask pixel whose coordinates are divisible by 5, of all detections of the cluster; per axis the lowest and highest
5 % of the points are dropped, and the rest is bounded.

The surface is the depth image of the same view; where it has no depth at the centre, the nearest mask pixel with depth
is used.

Stand-ins for a detector come from instance images: :func:`perfect_detections`, and :func:`noisy_detections` with
jittered boxes, misses and wrong classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron.sensors.frame import PosedFrame
from embodied_perceptron_training.evaluation.runner.detections import Degradation

I64 = NDArray[np.int64]
PIXEL_STEP = 5  # rays through mask pixels whose coordinates divide by it
TRIM = 0.05  # dropped at each end, per axis


@dataclass(frozen=True, eq=False)
class Detection2d:
    """A 2-D detection in one view."""

    view: int  # number of the view
    label: str  # class name
    box: F64  # (4,) float64 u0 v0 u1 v1 in pixels, u1 and v1 exclusive
    mask: NDArray[np.bool_]  # (H, W) bool
    score: float = 1.0  # in [0, 1]

    def __post_init__(self) -> None:
        if self.box.shape != (4,) or not np.isfinite(self.box).all() or not (self.box[2:] > self.box[:2]).all():
            raise ValueError(f"a 2-D box needs u0 < u1 and v0 < v1, got {self.box.tolist()}")
        if not 0 <= self.score <= 1:
            raise ValueError(f"score must be in [0, 1], got {self.score}")


@dataclass(frozen=True, eq=False)
class Cluster:
    """Detections with hits at one location."""

    label: str  # class
    center_m: F64  # (3,) mean of the hits, world frame
    box: F64  # (6,) cx cy cz dx dy dz, axis-aligned
    hits: int  # number of detections
    score: float  # their mean score
    pixels: int  # number of mask pixels of the box


# -- Stand-ins for a detector.


def perfect_detections(instances: NDArray[np.integer], view: int, labels: Mapping[int, str]) -> list[Detection2d]:
    """One detection for every id of ``labels`` that the (H, W) instance image shows, by id."""
    found = []
    for number in np.unique(instances).tolist():
        if number in labels:
            mask = instances == number
            v, u = np.nonzero(mask)
            box = np.array([u.min(), v.min(), u.max() + 1, v.max() + 1], np.float64)
            found.append(Detection2d(view, labels[number], box, mask))
    return found


def noisy_detections(
    detections: Sequence[Detection2d], classes: Sequence[str], how: Degradation, rng: np.random.Generator
) -> list[Detection2d]:
    """The detections, missed, confused and jittered as in ``how``; masks are stretched with their boxes. Detections are
    clipped to the image and dropped where nothing is left. Raises ``ValueError`` for confusion with fewer than two
    classes."""
    names = sorted(set(classes))
    if how.confusion > 0 and len(names) < 2:
        raise ValueError(f"confusing classes needs at least two, got {names}")
    found = []
    for detection in detections:
        missed, confused = rng.random() >= how.recall, rng.random() < how.confusion
        shift = rng.normal(0.0, how.jitter, 4)
        other = names[int(rng.integers(len(names)))]
        if missed:
            continue
        label = detection.label
        if confused:
            label = other if other != label else names[(names.index(other) + 1) % len(names)]
        moved = _stretched(replace(detection, label=label), shift)
        if moved is not None:
            found.append(moved)
    return found


def _stretched(detection: Detection2d, shift: F64) -> Detection2d | None:
    """The detection with its edges moved by shares of its size, and its mask with them."""
    u0, v0, u1, v1 = detection.box
    moved = detection.box + shift * np.array([u1 - u0, v1 - v0, u1 - u0, v1 - v0])
    if moved[2] - moved[0] < 1 or moved[3] - moved[1] < 1:
        return None
    height, width = detection.mask.shape
    scale_u, scale_v = (moved[2] - moved[0]) / (u1 - u0), (moved[3] - moved[1]) / (v1 - v0)
    A = np.array([[scale_u, 0.0, moved[0] - scale_u * u0], [0.0, scale_v, moved[1] - scale_v * v0]])
    mask = cv2.warpAffine(detection.mask.astype(np.uint8), A, (width, height), flags=cv2.INTER_NEAREST).astype(bool)
    box = np.clip(moved, 0.0, [width, height, width, height])
    if box[2] - box[0] < 1 or box[3] - box[1] < 1 or not mask.any():
        return None
    return replace(detection, box=box, mask=mask)


# -- Lifting.


def connected_points(points: F64, eps: float) -> I64:
    """(N,) cluster of each of (N, D) points: those within ``eps`` of each other share one (DBSCAN with one point per
    core). Clusters are numbered by their first point."""
    pairs = cKDTree(points).query_pairs(eps, output_type="ndarray")
    links = coo_matrix((np.ones(len(pairs), bool), (pairs[:, 0], pairs[:, 1])), shape=(len(points), len(points)))
    label = connected_components(links, directed=False)[1]
    _, first, cluster = np.unique(label, return_index=True, return_inverse=True)
    return first.argsort().argsort()[cluster]


def center_hit(detection: Detection2d, frame: PosedFrame) -> F64 | None:
    """(3,) world point where the ray through the box centre hits the surface; None without depth."""
    depth_m = frame.frame.depth_m
    height, width = depth_m.shape
    u = min(int((detection.box[0] + detection.box[2]) / 2), width - 1)
    v = min(int((detection.box[1] + detection.box[3]) / 2), height - 1)
    if depth_m[v, u] <= 0:
        rows, columns = np.nonzero(detection.mask & (depth_m > 0))
        if len(rows) == 0:
            return None
        best = int(np.argmin((rows - v) ** 2 + (columns - u) ** 2))
        v, u = int(rows[best]), int(columns[best])
    hit: F64 = pixels_to_world(np.array([u]), np.array([v]), frame)[0]
    return hit


def mask_points(detection: Detection2d, frame: PosedFrame) -> F64:
    """(P, 3) world points of the mask pixels whose coordinates are divisible by 5; of all where there is none."""
    measured = detection.mask & (frame.frame.depth_m > 0)
    coarse = np.zeros_like(measured)
    coarse[::PIXEL_STEP, ::PIXEL_STEP] = measured[::PIXEL_STEP, ::PIXEL_STEP]
    v, u = np.nonzero(coarse if coarse.any() else measured)
    return pixels_to_world(u, v, frame)


def pixels_to_world(u: NDArray[np.integer], v: NDArray[np.integer], frame: PosedFrame) -> F64:
    """(P,) columns and rows of measured pixels -> (P, 3) world points."""
    k = frame.frame.intrinsics
    z = frame.frame.depth_m[v, u].astype(np.float64)
    points = np.stack([(u - k.cx) * z / k.fx, (v - k.cy) * z / k.fy, z], axis=-1)
    return np.asarray(points @ frame.T_world_camera[:3, :3].T + frame.T_world_camera[:3, 3])


def trimmed_box(points_m: F64) -> F64:
    """(6,) bounds of (P, 3) points, P > 0, without the lowest and highest :data:`TRIM` of each axis."""
    ordered = np.sort(points_m, axis=0)
    cut = int(TRIM * len(ordered))
    low, high = ordered[cut], ordered[len(ordered) - 1 - cut]
    return np.concatenate([(low + high) / 2, high - low])


def lift(detections: Sequence[Detection2d], frames: Sequence[PosedFrame], eps_m: float) -> list[Cluster]:
    """Clusters of every class, sorted by falling hits, then score, then pixels.

    Detections without any measured pixel are dropped. Raises ``ValueError`` for a view that does not exist.
    """
    wrong = [d.view for d in detections if not 0 <= d.view < len(frames)]
    if wrong:
        raise ValueError(f"a detection is of view {wrong[0]}, there are {len(frames)}")
    by_class: dict[str, list[tuple[Detection2d, F64]]] = {}
    for detection in detections:
        hit = center_hit(detection, frames[detection.view])
        if hit is not None:
            by_class.setdefault(detection.label, []).append((detection, hit))
    clusters = []
    for label, members in sorted(by_class.items()):
        hits = np.stack([hit for _, hit in members])
        numbers = connected_points(hits, eps_m)
        for number in range(int(numbers.max()) + 1):
            chosen = [members[i][0] for i in np.flatnonzero(numbers == number)]
            points = np.concatenate([mask_points(d, frames[d.view]) for d in chosen])
            center = hits[numbers == number].mean(axis=0)
            if len(points) == 0:  # the mask has no depth, its box has
                points = hits[numbers == number]
            score = float(np.mean([d.score for d in chosen]))
            clusters.append(Cluster(label, center, trimmed_box(points), len(chosen), score, len(points)))
    return sorted(clusters, key=lambda c: (-c.hits, -c.score, -c.pixels, c.label))
