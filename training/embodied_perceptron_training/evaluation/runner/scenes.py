"""A scan loaded for evaluation: frames in order, truth, sentences; optionally turned and moved."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import transform_boxes
from embodied_perceptron.geometry.occupancy_grid import BENCHMARK_GRID
from embodied_perceptron.geometry.transforms import F64, level_transform
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame
from embodied_perceptron.sensors.poses import NS_PER_S
from embodied_perceptron.weights.categories import DETECTION_CLASSES, STRUCTURE_CLASSES
from embodied_perceptron_training.datasets.embodiedscan import DatasetError, EmbodiedScanDataset, Prompt, Scan, ScanView
from embodied_perceptron_training.evaluation.metrics.detection import SceneBoxes

CAMERA = "camera"
# of networks of ``paper`` at inference (EmbodiedScan, CVPR 2024, section 5.1 and appendix A.1)
PUBLISHED_VIEWS, PUBLISHED_OCCUPANCY_VIEWS = 50, 20
POINTS_PER_VIEW = 10_000
STEP_S = 1.0  # assumed time between two views
_MOVE_M = 10.0  # of a turned scene, along x and y
_LIFT_M = 0.4  # and along z: where the grid cuts the floor
_CLASS_INDEX = {name: k for k, name in enumerate(DETECTION_CLASSES)}


@dataclass(frozen=True, eq=False)
class OccupancyTruth:
    """Labels of the benchmark's grid."""

    labels: NDArray[np.uint8]  # (40, 40, 16) uint8, 0 free, k + 1 = OCCUPANCY_CLASSES[k], 255 unknown
    seen: tuple[NDArray[np.bool_], ...]  # per used view (40, 40, 16) bool
    centers_m: F64  # (40 * 40 * 16, 3) world positions of the cells' centres, x slowest


@dataclass(frozen=True, eq=False)
class EvaluationScene:
    """A loaded scan; ``held_out`` and ``sensor`` as in
    :class:`~embodied_perceptron_training.datasets.embodiedscan.Scan`."""

    name: str  # sample_idx
    frames: tuple[PosedFrame, ...]  # the used views in order
    boxes: F64  # (N, 9) truth of all instances, in the frames' world
    labels: tuple[str, ...]  # (N,) their names, walls and floors included
    ids: NDArray[np.int64]  # (N,) their ids
    visible: tuple[frozenset[int], ...]  # per used view the rows of the instances that it shows
    T_world_scene: F64  # (4, 4) from the scan's own frame; the identity unless turned
    occupancy: OccupancyTruth | None = None  # None where the source has none
    prompts: tuple[Prompt, ...] = ()  # prompts, negatives: sentences about this scene; ids as in ``ids``
    negatives: tuple[Prompt, ...] = ()
    unlabelled: F64 = field(default_factory=lambda: np.zeros((0, 9)))  # (U, 9) unnamed objects
    visible_unlabelled: tuple[frozenset[int], ...] = ()  # per used view the visible rows of ``unlabelled``
    held_out: tuple[bool, ...] = ()
    sensor: str = ""
    T_world_scan: F64 = field(default_factory=lambda: np.eye(4))  # (4, 4) from the source's files to the frames' world
    image_stamps: Mapping[str, int] = field(default_factory=dict)  # of the used colour images by path from the root

    def things(self, last: int | None = None) -> F64:
        """(M, 9) boxes of all objects, named or not, that the first ``last`` views show; without structure."""
        rows = [r for r in self.seen_rows(0, last) if self.labels[r] not in STRUCTURE_CLASSES]
        nameless = sorted(frozenset[int]().union(*self.visible_unlabelled[:last]))
        return np.concatenate([self.boxes[rows], self.unlabelled[nameless]])

    def seen_rows(self, first: int = 0, last: int | None = None) -> list[int]:
        """Rows of the instances that any of the views ``first`` .. ``last - 1`` shows."""
        return sorted(frozenset[int]().union(*self.visible[first:last]))

    def truth(self, first: int = 0, last: int | None = None) -> SceneBoxes:
        """Instances of detection classes that these views show; labels are positions in DETECTION_CLASSES."""
        rows = [r for r in self.seen_rows(first, last) if self.labels[r] in _CLASS_INDEX]
        held_out = np.array([self.held_out[r] for r in rows], bool) if self.held_out else None
        labels = np.array([_CLASS_INDEX[self.labels[r]] for r in rows], np.int64)
        return SceneBoxes(self.boxes[rows], labels, held_out=held_out)

    def boxes_of(self, ids: tuple[int, ...]) -> F64:
        """(M, 9) boxes of instances by id."""
        return self.boxes[np.isin(self.ids, np.array(ids, np.int64))]


def choose_views(available: int, wanted: int) -> list[int]:
    """Positions of ``wanted`` of ``available`` views, evenly spaced, first and last included."""
    if wanted < 1:
        raise ValueError(f"need at least one view, got {wanted}")
    if available <= wanted:
        return list(range(available))
    return np.round(np.linspace(0, available - 1, wanted)).astype(int).tolist()


def turn_of(name: str, seed: int | None) -> F64:
    """(4, 4) random turn about gravity and move, determined by scene name and seed; None = the identity."""
    if seed is None:
        return np.eye(4)
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    yaw = rng.uniform(-np.pi, np.pi)
    move = rng.uniform(-1.0, 1.0, 3) * (_MOVE_M, _MOVE_M, _LIFT_M)
    return level_transform(yaw, move)


def load_scene(
    dataset: EmbodiedScanDataset,
    name: str,
    views: int,
    turn_seed: int | None = None,
    occupancy: bool = False,
    prompts: dict[str, list[Prompt]] | None = None,
    negatives: dict[str, list[Prompt]] | None = None,
    points: int = 0,
) -> EvaluationScene:
    """Read one scan with ``views`` of its views.

    ``points``: the depth of so many pixels of each view, drawn at random, and colour at its own resolution, as networks
    read them whose input is points; 0 = all depth, and colour in the size of the depth image.

    Raises :class:`DatasetError` or ``OSError`` naming what is missing or damaged, ``ValueError`` for images that do
    not fit their camera.
    """
    scan = dataset.by_name(name)
    if not scan.images:
        raise DatasetError(f"{name} has no images")
    wrong = [i for image in scan.images for i in image.visible_ids if not 0 <= i < len(scan.boxes)]
    if wrong:
        raise DatasetError(f"{name}: an image shows instance {wrong[0]}, the scan has {len(scan.boxes)}")
    chosen = choose_views(len(scan.images), views)
    T = turn_of(name, turn_seed)
    boxes, unlabelled = scan.boxes, scan.unlabelled
    if turn_seed is not None:
        boxes, unlabelled = (transform_boxes(T, torch.from_numpy(b)).numpy() for b in (boxes, unlabelled))
    return EvaluationScene(
        name=name,
        frames=tuple(
            _frame(sampled(scan.load_view(view), points, view) if points else scan.load_registered_view(view), step, T)
            for step, view in enumerate(chosen)
        ),
        boxes=boxes,
        labels=scan.labels,
        ids=scan.ids,
        visible=tuple(frozenset(scan.images[view].visible_ids) for view in chosen),
        T_world_scene=T,
        occupancy=_occupancy(dataset, scan, chosen, T) if occupancy else None,
        prompts=tuple((prompts or {}).get(name, ())),
        negatives=tuple((negatives or {}).get(name, ())),
        unlabelled=unlabelled,
        visible_unlabelled=tuple(frozenset(scan.images[view].visible_unlabelled) for view in chosen),
        held_out=scan.held_out,
        sensor=scan.sensor,
        T_world_scan=T @ scan.T_world_scan,
        image_stamps={
            scan.images[view].color_path.relative_to(dataset.root).as_posix(): _stamp_ns(step)
            for step, view in enumerate(chosen)
        },
    )


def by_scan(prompts: list[Prompt]) -> dict[str, list[Prompt]]:
    """Sentences grouped by scan."""
    found: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        found.setdefault(prompt.scan_id, []).append(prompt)
    return found


def sampled(view: ScanView, points: int, seed: int) -> ScanView:
    """The view with the depth of at most ``points`` of its pixels, in an image of the size of the colour image."""
    (h, w), (height, width) = view.color.shape[:2], view.depth_m.shape
    flat = np.flatnonzero(view.depth_m > 0)
    if len(flat) > points:
        flat = np.random.default_rng(seed).choice(flat, points, replace=False)
    v, u = np.divmod(flat, width)
    depth_m = np.zeros((h, w), np.float32)
    depth_m[(v * 2 + 1) * h // (2 * height), (u * 2 + 1) * w // (2 * width)] = view.depth_m.flat[flat]
    return replace(view, depth_m=depth_m, depth_camera=view.depth_camera.resized(w, h))


def _stamp_ns(step: int) -> int:
    return round((step + 1) * STEP_S * NS_PER_S)


def _frame(view: ScanView, step: int, T_world_scene: F64) -> PosedFrame:
    frame = RgbdFrame(_stamp_ns(step), CAMERA, view.color, view.depth_m, view.depth_camera)
    return PosedFrame(frame, T_world_scene @ view.T_world_camera)


def _occupancy(dataset: EmbodiedScanDataset, scan: Scan, chosen: list[int], T: F64) -> OccupancyTruth | None:
    labels, masks = dataset.occupancy(scan), dataset.visible_cells(scan)
    if labels is None or masks is None:
        return None
    centers = BENCHMARK_GRID.centers(np.indices(BENCHMARK_GRID.shape).reshape(3, -1).T)
    return OccupancyTruth(labels, tuple(masks[view] for view in chosen), centers @ T[:3, :3].T + T[:3, 3])
