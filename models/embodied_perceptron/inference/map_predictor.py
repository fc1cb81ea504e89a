"""The network over a growing map: what of it is looked at, and what is kept from one look to the next.

    live = MapPredictor(inference, voxel_size_m=0.02, window_m=6.4)
    live.remember(keyframe)                              once per keyframe: its image features
    prediction = live.predict(copy, keyframes, view_direction, floor_z_m)
    prediction.detections, prediction.semantic

A look is a pure function of the voxels, the keyframes and the window: what is kept (features of keyframes, their sums
at the sites of the window) saves work and changes nothing. The window goes before the camera in steps of the network's
coarsest stride, so every site stays on one manhattan, and that manhattan is turned with the walls.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.config import EVERY_SCORE, ScorePolicy
from embodied_perceptron.geometry.boxes import nms
from embodied_perceptron.geometry.manhattan import WORLD, ManhattanFrame, Region, wall_aligned_frame
from embodied_perceptron.inference.keyframe_features import KeyframeFeatureCache
from embodied_perceptron.inference.loading import LazyTextEncoder
from embodied_perceptron.inference.predictor import Predictor, SceneFeatures
from embodied_perceptron.mapping.export import VoxelCopy, Window
from embodied_perceptron.mapping.keyframes import Keyframe
from embodied_perceptron.nn.input_features import input_from_points
from embodied_perceptron.nn.view_fusion import StreamingLookup, View
from embodied_perceptron.nn.windows import cover_windows, occupancy_origin, rgb_grid
from embodied_perceptron.results import Detections, SemanticVoxels
from embodied_perceptron.sensors.camera_rig import ViewDirection
from embodied_perceptron.sparse.engine import get_engine
from embodied_perceptron.sparse.tensor import Sites, SparseTensor

_RETRY_AFTER = 100  # looks with a smaller window, before a larger one is tried again
_SMALLEST_CELLS = 2  # of a window, in coarsest strides


@dataclass(frozen=True, eq=False)
class ScenePart:
    """What the heads read in one window, and where its answers count."""

    scene: SceneFeatures
    core: Region


@dataclass(frozen=True, eq=False)
class ScenePrediction:
    """What one look gave.

    Attributes:
        detections: every box of the network, best first, whatever its score; None when nothing could be computed.
        semantic: cells that are not empty; None for a network without occupancy.
        region: what was looked at.
        answered: where ``semantic`` has an answer; cells that are not in it are empty there.
        scene: what the heads read, for sentences; None after a look in several windows.
        floor_z_m: height of the floor that the look assumed.
        diagnostics: what the user should know, in words.
        parts: what the heads read in each window; their cores part the ground.
    """

    detections: Detections | None
    semantic: SemanticVoxels | None
    region: Region
    answered: Region
    scene: SceneFeatures | None = None
    floor_z_m: float = 0.0
    diagnostics: tuple[str, ...] = ()
    parts: tuple[ScenePart, ...] = ()


class MapPredictor:
    """See the module docstring. :meth:`remember` may run in one thread while :meth:`look` runs in another.

    Args:
        inference: the network; it stays where it is until :meth:`release`.
        voxel_size_m: of the map.
        window_m: edge of what :meth:`look` looks at; infinite = the whole map.
        scores: what scores less than its ``decode`` is not made a box of.
        window_ahead: how far before the cameras the window's middle lies, as a share of its edge.

    Raises ``ValueError`` when the network's sites are no multiple of the map's voxels.
    """

    def __init__(
        self,
        inference: Predictor,
        voxel_size_m: float,
        window_m: float,
        scores: ScorePolicy = EVERY_SCORE,
        window_ahead: float = 0.0,
    ) -> None:
        config = inference.network.config
        self.inference = inference
        self.window_m = window_m
        self.scores = scores
        self.window_ahead = window_ahead
        self.memory = KeyframeFeatureCache(inference.view) if config.uses_images else None
        self._from_map = config.reads_map
        self._site_voxels = inference.site_voxels(voxel_size_m) if self._from_map else 1
        self._coarsest = config.backbone.strides[-1]
        self._cell_m = config.voxel_size_m * self._coarsest
        self._device = inference.device
        self._moving = threading.Lock()
        self._released = False
        self._turn_to(WORLD)
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
        self._turn_to(WORLD)

    def _restore(self) -> None:
        if self._released:
            with self._moving:
                self.inference.network.to(self._device)
                self._released = False

    def _turn_to(self, manhattan: ManhattanFrame) -> None:
        """Begin on another manhattan, with nothing known of it."""
        network = self.inference.network
        fusion, size_m = self.inference.fusion, network.config.voxel_size_m
        self._manhattan = manhattan
        self._lookup = StreamingLookup(network.image_channels, size_m, fusion, self._device)
        self._turned = WeakKeyDictionary[View, View]()

    def _views(self, keyframes: Sequence[Keyframe]) -> list[View]:
        """Of all keyframes, looking at the manhattan; the same objects as long as it stays."""
        if self.memory is None:
            return []
        views = self.memory.views(keyframes)
        if self._manhattan.yaw_rad == 0:
            return views
        T = torch.from_numpy(self._manhattan.T_world_manhattan)
        for view in views:
            if view not in self._turned:
                self._turned[view] = dataclasses.replace(view, projection=view.projection @ T)
        return [self._turned[view] for view in views]

    # ---------------------------------------------------------------------------------------------------------- looks

    def predict(
        self,
        copy: VoxelCopy,
        keyframes: Sequence[Keyframe],
        view_direction: ViewDirection | None,
        floor_z_m: float,
        window_m: float | None = None,
    ) -> ScenePrediction:
        """Boxes and occupancy before the cameras, or of the whole map.

        A map that is larger than an infinite window's working size is looked at in overlapping windows of the size
        that the network is used to; of each, the middle counts. When the accelerator runs out of memory the window is
        halved, and stays smaller for a while; the diagnostics say so.

        Args:
            copy: the voxels.
            keyframes: with images, oldest first.
            view_direction: of the cameras; None = that of the newest keyframe, or else the middle of the map is looked
            at.
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
                prediction = self._predict(copy, keyframes, view_direction, floor_z_m, size_m)
            except torch.OutOfMemoryError as error:
                self._forget_caches()
                _free_cache()
                finite_m = self._usual_m() if math.isinf(size_m) else size_m
                self._limit_m, self._good_looks = finite_m / 2, 0
                if finite_m <= _SMALLEST_CELLS * self._cell_m:
                    reason = f"out of memory even in a window of {finite_m:.2f} m: {_first_line(error)}"
                    self._limit_m = finite_m
                    return ScenePrediction(None, None, Region.nowhere(), Region.nowhere(), diagnostics=(reason,))
                reasons = [f"out of memory in a window of {finite_m:.2f} m ({_first_line(error)})"]
                continue
            self._good_looks += 1
            if self._limit_m < wanted:
                reasons.append(f"the network looks at {self._limit_m:.2f} m instead of {wanted:.2f} m: memory is short")
            return replace(prediction, diagnostics=tuple(reasons))

    def _usual_m(self) -> float:
        """Window size of one pass when all of the map is asked for."""
        return self.window_m if math.isfinite(self.window_m) else 6.4

    def _predict(
        self,
        copy: VoxelCopy,
        keyframes: Sequence[Keyframe],
        view_direction: ViewDirection | None,
        floor_z_m: float,
        window_m: float,
    ) -> ScenePrediction:
        manhattan = WORLD
        if self._from_map:
            manhattan = wall_aligned_frame(copy.rows.coords.cpu().numpy(), copy.voxel_size_m, floor_z_m)
        if manhattan != self._manhattan:
            self._turn_to(manhattan)
        views = self._views(keyframes)
        if math.isfinite(window_m):
            if view_direction is None and keyframes:  # of a map from a file
                view_direction = ViewDirection.of(keyframes[-1].T_world_camera)
            center = (
                _middle(copy)[0] if view_direction is None else view_direction.ahead_m(self.window_ahead * window_m)
            )
            self._lookup.views = views
            if manhattan.yaw_rad:
                # no more than may lie in the window, which is widened to whole cells
                copy = copy.turned(manhattan, center, math.sqrt(0.5) * (window_m + 2 * self._cell_m))
            return self._pass(copy, self._lookup, self._window(manhattan.from_world(center), window_m), floor_z_m)
        if manhattan.yaw_rad:
            copy = copy.turned(manhattan, np.zeros(3), math.inf)
        prediction = self._passes(copy, views, min(self._usual_m(), self._limit_m), floor_z_m)
        return replace(prediction, region=Region.everywhere())

    def _window(self, center_m: NDArray[np.float64], size_m: float) -> Window:
        center = np.array([center_m[0], center_m[1], 0.0])
        return Window(center, np.array([size_m, size_m, np.inf]), self._coarsest)

    def _pass(
        self, copy: VoxelCopy, views: Sequence[View] | StreamingLookup, window: Window, floor_z_m: float
    ) -> ScenePrediction:
        """The network over one window of voxels on the manhattan."""
        inference, config = self.inference, self.inference.network.config
        lower, upper = window.limits(config.voxel_size_m)
        lower_m, upper_m = lower * config.voxel_size_m, upper * config.voxel_size_m
        anchor = np.array([*(0.5 * (lower_m[:2] + upper_m[:2])), floor_z_m])
        sites = self._sites(copy, window, lower_m, upper_m, floor_z_m, anchor)
        if len(sites) == 0:
            nothing = Detections(np.zeros((0, 9)), np.zeros(0), ())
            return ScenePrediction(
                nothing, None, Region(lower_m, upper_m, self._manhattan), Region.nowhere(), floor_z_m=floor_z_m
            )
        scene = inference.encode(sites, views, self._manhattan)
        found = Detections(np.zeros((0, 9)), np.zeros(0), ())
        if config.detection is not None:
            found = inference.detections(scene, self.scores.decode)
        semantic, answered = None, Region.nowhere()
        if config.occupancy is not None:
            low_m = np.array(occupancy_origin(config, anchor.tolist())) * config.voxel_size_m
            size_m = np.array(config.occupancy.cells) * config.occupancy.cell_size_m
            answered = Region(low_m, low_m + size_m, self._manhattan)
            semantic = inference.occupancy(scene, anchor.tolist())
        region = Region(lower_m, upper_m, self._manhattan)
        return ScenePrediction(
            found, semantic, region, answered, scene, floor_z_m, parts=(ScenePart(scene, Region.everywhere()),)
        )

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

    def _passes(self, copy: VoxelCopy, views: Sequence[View], window_m: float, floor_z_m: float) -> ScenePrediction:
        """As few overlapping windows as cover the map; what lies in two is left to the one that sees more around it."""
        center, extent_m = _middle(copy)
        low_m, high_m = center[:2] - 0.5 * extent_m, center[:2] + 0.5 * extent_m
        parts: list[tuple[ScenePrediction, Region]] = []
        for middle, low, high in cover_windows(low_m.tolist(), high_m.tolist(), window_m, self._cell_m):
            window = self._window(np.array([*middle, 0.0]), window_m)
            core = Region(np.array([*low, -np.inf]), np.array([*high, np.inf]), self._manhattan)
            parts.append((self._pass(copy, views, window, floor_z_m), core))
        if len(parts) == 1:
            return parts[0][0]
        return self._joined(parts, floor_z_m)

    def _joined(self, parts: list[tuple[ScenePrediction, Region]], floor_z_m: float) -> ScenePrediction:
        """Of each window what lies in its core; what overlaps all the same is suppressed per class."""
        boxes, scores, labels = [np.zeros((0, 9))], [np.zeros(0)], list[str]()
        cells: list[SemanticVoxels] = []
        for prediction, core in parts:
            assert prediction.detections is not None
            found = prediction.detections
            rows = np.flatnonzero(core.contains(found.boxes[:, :3]))
            boxes.append(found.boxes[rows])
            scores.append(found.scores[rows])
            labels += [found.labels[i] for i in rows]
            if prediction.semantic is not None:
                cells.append(prediction.semantic.take(core.contains(prediction.semantic.centers_m)))
        box, score = np.concatenate(boxes), np.concatenate(scores)
        names = {name: i for i, name in enumerate(sorted(set(labels)))}
        config = self.inference.network.config.detection
        kept = np.zeros(0, np.int64)
        if len(box) and config is not None:
            ids = torch.tensor([names[label] for label in labels])
            kept = nms(torch.from_numpy(box), torch.from_numpy(score), ids, config.iou_threshold).numpy()
        found = Detections(box[kept], score[kept], tuple(labels[i] for i in kept))
        answered = [s.answered for s, _ in parts if s.semantic is not None]
        everything = Region.nowhere()
        if answered:
            low_m, high_m = np.min([r.lower_m for r in answered], axis=0), np.max([r.upper_m for r in answered], axis=0)
            everything = Region(low_m, high_m, self._manhattan)
        return ScenePrediction(
            found,
            cells[0].joined_with(*cells[1:]) if cells else None,
            Region.everywhere(),
            everything,
            None,
            floor_z_m,
            parts=tuple(ScenePart(s.scene, core) for s, core in parts if s.scene is not None),
        )


def _middle(copy: VoxelCopy) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Centre (3,) of the map and its extent (2,) on the ground, metres."""
    if len(copy) == 0:
        return np.zeros(3), np.zeros(2)
    coords = copy.rows.coords
    low, high = coords.amin(0).cpu().numpy(), coords.amax(0).cpu().numpy() + 1
    return 0.5 * (low + high) * copy.voxel_size_m, (high - low)[:2] * copy.voxel_size_m


def _free_cache() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
