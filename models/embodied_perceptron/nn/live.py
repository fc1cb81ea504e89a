"""The network over a growing map: what of it is looked at, and what is kept from one look to the next.

    live = LiveNetwork(inference, voxel_size_m=0.02, window_m=6.4)
    live.remember(keyframe)                              once per keyframe: its image features
    sight = live.look(copy, keyframes, camera_m, floor_z_m)
    sight.detections, sight.semantic

A look is a pure function of the voxels, the keyframes and the window: what is kept (features of keyframes, their sums
at the sites of the window) saves work and changes nothing. The window follows the camera in steps of the network's
coarsest stride, so every site stays on one lattice.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.boxes import nms
from embodied_perceptron.fusion.export import VoxelCopy, Window
from embodied_perceptron.fusion.keyframes import Keyframe
from embodied_perceptron.nn.image_memory import ImageMemory
from embodied_perceptron.nn.inference import LookedAt, NetworkInference
from embodied_perceptron.nn.input_features import input_from_points
from embodied_perceptron.nn.loading import LazyTextEncoder
from embodied_perceptron.nn.view_fusion import StreamingLookup, View
from embodied_perceptron.nn.windows import cover_windows, occupancy_origin, rgb_grid
from embodied_perceptron.results import SemanticVoxels
from embodied_perceptron.scene.detections import Detections
from embodied_perceptron.sparse.engine import get_engine
from embodied_perceptron.sparse.tensor import Sites, SparseTensor

_RETRY_AFTER = 100  # looks with a smaller window, before a larger one is tried again
_SMALLEST_CELLS = 2  # of a window, in coarsest strides


@dataclass(frozen=True, eq=False)
class ScenePart:
    """What the heads read in one window, and where its answers count: [low, high) of the ground, world."""

    scene: LookedAt
    low_m: NDArray[np.float64]
    high_m: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Sight:
    """What one look gave.

    Attributes:
        detections: every box of the network, best first, whatever its score; None when nothing could be computed.
        semantic: cells that are not empty; None for a network without occupancy.
        lower_m, upper_m: (3,) what was looked at; infinite where it was not limited.
        cells_lower, cells_upper: (3,) range of ``semantic`` in cells; cells of it that are not in there are empty.
        scene: what the heads read, for sentences; None after a look in several windows.
        floor_z_m: height of the floor that the look assumed.
        diagnostics: what the user should know, in words.
        parts: what the heads read in each window; their places part the ground.
    """

    detections: Detections | None
    semantic: SemanticVoxels | None
    lower_m: NDArray[np.float64]
    upper_m: NDArray[np.float64]
    cells_lower: NDArray[np.int64] = field(default_factory=lambda: np.zeros(3, np.int64))
    cells_upper: NDArray[np.int64] = field(default_factory=lambda: np.zeros(3, np.int64))
    scene: LookedAt | None = None
    floor_z_m: float = 0.0
    diagnostics: tuple[str, ...] = ()
    parts: tuple[ScenePart, ...] = ()


class LiveNetwork:
    """See the module docstring. :meth:`remember` may run in one thread while :meth:`look` runs in another.

    Args:
        inference: the network; it stays where it is until :meth:`release`.
        voxel_size_m: of the map.
        window_m: edge of what :meth:`look` looks at; infinite = the whole map.

    Raises ``ValueError`` when the network's sites are no multiple of the map's voxels.
    """

    def __init__(self, inference: NetworkInference, voxel_size_m: float, window_m: float) -> None:
        config = inference.network.config
        self.inference = inference
        self.window_m = window_m
        self.memory = ImageMemory(inference.view) if config.uses_images else None
        self._from_map = config.modality != "rgb" and config.inputs == "height_color"
        self._site_voxels = inference.site_voxels(voxel_size_m) if self._from_map else 1
        self._coarsest = config.backbone.strides[-1]
        self._cell_m = config.voxel_size_m * self._coarsest
        self._device = inference.device
        self._moving = threading.Lock()
        self._released = False
        self._lookup = self._new_lookup()
        self._limit_m = math.inf  # of the window, after running out of memory
        self._good_looks = 0

    # ------------------------------------------------------------------------------------------------------ keyframes

    def remember(self, keyframe: Keyframe) -> None:
        """Compute the image features of a new keyframe now, so that the next look finds them.

        Does nothing while released, or when memory is short: then they are computed when they are needed.
        """
        if self.memory is None:
            return
        with self._moving:  # the network stays where it is meanwhile
            if self._released:
                return
            try:
                self.memory.view(keyframe)
            except torch.OutOfMemoryError:
                _free_cache()

    def release(self) -> None:
        """Give the accelerator's memory back; the next look takes it again and computes anew what is missing."""
        with self._moving:
            self._released = True
            self._forget_caches()
            if isinstance(self.inference.text_encoder, LazyTextEncoder):
                self.inference.text_encoder.release()
            self.inference.network.cpu()
            _free_cache()

    def forget(self) -> None:
        """Forget everything about the map."""
        self._forget_caches()

    def _forget_caches(self) -> None:
        if self.memory is not None:
            self.memory.clear()
        self._lookup = self._new_lookup()

    def _restore(self) -> None:
        if self._released:
            with self._moving:
                self.inference.network.to(self._device)
                self._released = False

    def _new_lookup(self) -> StreamingLookup:
        network = self.inference.network
        return StreamingLookup(network.image_channels, network.config.voxel_size_m, self.inference.fusion, self._device)

    # ---------------------------------------------------------------------------------------------------------- looks

    def look(
        self,
        copy: VoxelCopy,
        keyframes: Sequence[Keyframe],
        camera_m: NDArray[np.float64] | None,
        floor_z_m: float,
        window_m: float | None = None,
    ) -> Sight:
        """Boxes and occupancy around the camera, or of the whole map.

        A map that is larger than an infinite window's working size is looked at in overlapping windows of the size
        that the network is used to; of each, the middle counts. When the accelerator runs out of memory the window is
        halved, and stays smaller for a while; the diagnostics say so.

        Args:
            copy: the voxels.
            keyframes: with images, oldest first.
            camera_m: (3,) where the window is; None = at the newest keyframe, or else in the middle of the map.
            floor_z_m: height of the floor.
            window_m: overrides the usual one.
        """
        self._restore()
        wanted = self.window_m if window_m is None else window_m
        if math.isfinite(self._limit_m) and self._good_looks >= _RETRY_AFTER:
            self._limit_m, self._good_looks = self._limit_m * 2, 0
            if self._limit_m >= wanted:
                self._limit_m = math.inf
        reasons: list[str] = []
        while True:
            size_m = min(wanted, self._limit_m)
            try:
                sight = self._look(copy, keyframes, camera_m, floor_z_m, size_m)
            except torch.OutOfMemoryError as error:
                self._forget_caches()
                _free_cache()
                finite_m = self._usual_m() if math.isinf(size_m) else size_m
                self._limit_m, self._good_looks = finite_m / 2, 0
                if finite_m <= _SMALLEST_CELLS * self._cell_m:
                    reason = f"out of memory even in a window of {finite_m:.2f} m: {_first_line(error)}"
                    nowhere = np.zeros(3)
                    self._limit_m = finite_m
                    return Sight(None, None, nowhere, nowhere, diagnostics=(reason,))
                reasons = [f"out of memory in a window of {finite_m:.2f} m ({_first_line(error)})"]
                continue
            self._good_looks += 1
            if self._limit_m < wanted:
                reasons.append(f"the network looks at {self._limit_m:.2f} m instead of {wanted:.2f} m: memory is short")
            return Sight(**{**vars(sight), "diagnostics": tuple(reasons)})

    def _usual_m(self) -> float:
        """Window size of one pass when all of the map is asked for."""
        return self.window_m if math.isfinite(self.window_m) else 6.4

    def _look(
        self,
        copy: VoxelCopy,
        keyframes: Sequence[Keyframe],
        camera_m: NDArray[np.float64] | None,
        floor_z_m: float,
        window_m: float,
    ) -> Sight:
        views = [] if self.memory is None else self.memory.views(keyframes)
        if math.isfinite(window_m):
            center = _middle(copy)[0]
            if camera_m is not None:
                center = camera_m
            elif keyframes:  # of a map from a file
                center = keyframes[-1].T_world_camera[:3, 3]
            self._lookup.views = views
            return self._pass(copy, self._lookup, self._window(center, window_m), floor_z_m)
        return self._everywhere(self._passes(copy, views, min(self._usual_m(), self._limit_m), floor_z_m))

    def _everywhere(self, sight: Sight) -> Sight:
        endless = np.full(3, np.inf)
        return Sight(**{**vars(sight), "lower_m": -endless, "upper_m": endless})

    def _window(self, center_m: NDArray[np.float64], size_m: float) -> Window:
        center = np.array([center_m[0], center_m[1], 0.0])
        return Window(center, np.array([size_m, size_m, np.inf]), self._coarsest)

    def _pass(
        self, copy: VoxelCopy, views: Sequence[View] | StreamingLookup, window: Window, floor_z_m: float
    ) -> Sight:
        """The network over one window."""
        inference, config = self.inference, self.inference.network.config
        lower, upper = window.limits(config.voxel_size_m)
        lower_m, upper_m = lower * config.voxel_size_m, upper * config.voxel_size_m
        anchor = np.array([*(0.5 * (lower_m[:2] + upper_m[:2])), floor_z_m])
        sites = self._sites(copy, window, lower_m, upper_m, floor_z_m, anchor)
        if len(sites) == 0:
            nothing = Detections(np.zeros((0, 9)), np.zeros(0), ())
            return Sight(nothing, None, lower_m, upper_m, floor_z_m=floor_z_m)
        scene = inference.look(sites, views)
        found = Detections(np.zeros((0, 9)), np.zeros(0), ())
        if config.detection is not None:
            found = inference.detections(scene)
        semantic, low, high = None, np.zeros(3, np.int64), np.zeros(3, np.int64)
        if config.occupancy is not None:
            stride = config.backbone.strides[config.occupancy_level()]
            low = np.array(occupancy_origin(config, anchor.tolist()), np.int64) // stride
            high = low + np.array(config.occupancy.cells)
            semantic = inference.occupancy(scene, anchor.tolist())
        everywhere = (ScenePart(scene, np.full(2, -np.inf), np.full(2, np.inf)),)
        return Sight(found, semantic, lower_m, upper_m, low, high, scene, floor_z_m, parts=everywhere)

    def _sites(
        self,
        copy: VoxelCopy,
        window: Window,
        lower_m: NDArray[np.float64],
        upper_m: NDArray[np.float64],
        floor_z_m: float,
        anchor: NDArray[np.float64],
    ) -> SparseTensor:
        """Input of the network, on its device."""
        inference, config = self.inference, self.inference.network.config
        if config.modality == "rgb":
            sites = rgb_grid(config, anchor.tolist())
        elif self._from_map:
            sites = copy.as_sparse_tensor(
                self._site_voxels, window=window, features=inference.site_features, floor_z_m=floor_z_m
            )
        else:  # raw coordinates of points
            points = copy.snapshot().mean_point_m.astype(np.float64)
            inside = ((points >= lower_m) & (points < upper_m)).all(axis=1)
            sites = input_from_points(points[inside], None, config.voxel_size_m, config.inputs)
        if sites.device == self._device:
            return sites
        keys = sites.keys.to(self._device)
        return SparseTensor(Sites(keys, 1, 1, get_engine("auto", self._device.type)), sites.feats.to(self._device))

    def _passes(self, copy: VoxelCopy, views: Sequence[View], window_m: float, floor_z_m: float) -> Sight:
        """As few overlapping windows as cover the map; what lies in two is left to the one that sees more around it."""
        center, extent_m = _middle(copy)
        low_m, high_m = center[:2] - 0.5 * extent_m, center[:2] + 0.5 * extent_m
        parts: list[tuple[Sight, NDArray[np.float64], NDArray[np.float64]]] = []
        for middle, low, high in cover_windows(low_m.tolist(), high_m.tolist(), window_m, self._cell_m):
            window = self._window(np.array([*middle, 0.0]), window_m)
            parts.append((self._pass(copy, views, window, floor_z_m), np.array(low), np.array(high)))
        if len(parts) == 1:
            return parts[0][0]
        return self._joined(parts, floor_z_m)

    def _joined(self, parts: list[tuple[Sight, NDArray[np.float64], NDArray[np.float64]]], floor_z_m: float) -> Sight:
        """Of each window what lies in [low, high); what overlaps all the same is suppressed per class."""
        boxes, scores, labels = [np.zeros((0, 9))], [np.zeros(0)], list[str]()
        cells: list[SemanticVoxels] = []
        for sight, low, high in parts:
            assert sight.detections is not None
            found = sight.detections
            rows = np.flatnonzero(((found.boxes[:, :2] >= low) & (found.boxes[:, :2] < high)).all(axis=1))
            boxes.append(found.boxes[rows])
            scores.append(found.scores[rows])
            labels += [found.labels[i] for i in rows]
            if sight.semantic is not None:
                cells.append(_cells_inside(sight.semantic, low, high))
        box, score = np.concatenate(boxes), np.concatenate(scores)
        names = {name: i for i, name in enumerate(sorted(set(labels)))}
        config = self.inference.network.config.detection
        kept = np.zeros(0, np.int64)
        if len(box) and config is not None:
            ids = torch.tensor([names[label] for label in labels])
            kept = nms(torch.from_numpy(box), torch.from_numpy(score), ids, config.iou_threshold).numpy()
        found = Detections(box[kept], score[kept], tuple(labels[i] for i in kept))
        low_cell, high_cell = np.zeros(3, np.int64), np.zeros(3, np.int64)
        looked = [s for s, _, _ in parts if s.semantic is not None]
        if looked:
            low_cell = np.min([s.cells_lower for s in looked], axis=0)
            high_cell = np.max([s.cells_upper for s in looked], axis=0)
        endless = np.full(3, np.inf)
        return Sight(
            found,
            cells[0].joined_with(*cells[1:]) if cells else None,
            -endless,
            endless,
            low_cell,
            high_cell,
            None,
            floor_z_m,
            parts=tuple(ScenePart(s.scene, low, high) for s, low, high in parts if s.scene is not None),
        )


def _middle(copy: VoxelCopy) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Centre (3,) of the map and its extent (2,) on the ground, metres."""
    if len(copy) == 0:
        return np.zeros(3), np.zeros(2)
    coords = copy.rows.coords
    low, high = coords.amin(0).cpu().numpy(), coords.amax(0).cpu().numpy() + 1
    return 0.5 * (low + high) * copy.voxel_size_m, (high - low)[:2] * copy.voxel_size_m


def _cells_inside(cells: SemanticVoxels, low: NDArray[np.float64], high: NDArray[np.float64]) -> SemanticVoxels:
    inside = ((cells.centers_m[:, :2] >= low) & (cells.centers_m[:, :2] < high)).all(axis=1)
    return cells.take(np.flatnonzero(inside))


def _free_cache() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
