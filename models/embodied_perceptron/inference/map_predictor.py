"""The network over a growing map: which windows of it are predicted, and how their predictions are joined.

    features = image_features(inference)
    volume = FeatureVolume(features=features)
    predictor = MapPredictor(inference, features, voxel_size_m=0.02, window_m=6.4)
    prediction = predictor.predict(volume.copy(), view_direction, floor_z_m)
    prediction.detections, prediction.semantic

A prediction is a pure function of the voxels, the keyframes and the window: what the volume keeps of image features,
and the network of its last pass, saves work and changes nothing. The window goes before the camera in steps of the
network's coarsest stride, so every site stays on one Manhattan frame, and that frame is turned with the walls. A
caller may have window and results kept while others are hardly better, and hold the frame itself: a prediction then
depends on those before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.config import EVERY_SCORE, ScorePolicy
from embodied_perceptron.geometry.manhattan import WORLD, ManhattanFrame, Region, wall_aligned_frame
from embodied_perceptron.geometry.occupancy_grid import WINDOW_M
from embodied_perceptron.geometry.suppression import nms
from embodied_perceptron.inference.beside import beside
from embodied_perceptron.inference.cell_names import MIN_SCORE, names_from_boxes
from embodied_perceptron.inference.loading import LazyTextEncoder
from embodied_perceptron.inference.predictor import Predictor, SceneFeatures
from embodied_perceptron.mapping.devices import first_line, forget_memory, is_device_fault
from embodied_perceptron.mapping.export import VolumeCopy, Window
from embodied_perceptron.mapping.image_features import ImageFeatures, StreamingLookup
from embodied_perceptron.nn.input_features import cover_windows, input_from_points, occupancy_origin, rgb_grid
from embodied_perceptron.nn.view_fusion import View
from embodied_perceptron.results import Detections, SemanticVoxels
from embodied_perceptron.sensors.camera_rig import ViewDirection
from embodied_perceptron.sparse.engine import get_engine
from embodied_perceptron.sparse.incremental import LayerMemory, largest_change
from embodied_perceptron.sparse.sites import Sites
from embodied_perceptron.sparse.tensor import SparseTensor

_RETRY_AFTER = 100  # predictions in a smaller window, before a larger one is tried again
_SMALLEST_CELLS = 2  # of a window, in coarsest strides
# by which a standing camera's heading and place may tremble across the middle between two windows, in coarsest strides
_KEPT_CELLS = 0.25


@dataclass(frozen=True, eq=False)
class ScenePart:
    """What the heads read in one window, and the core of it where its answers count."""

    scene: SceneFeatures
    core: Region


@dataclass(frozen=True, eq=False)
class ScenePrediction:
    """Results of the network over one window or over the whole map.

    Attributes:
        detections: every box of the network, best first, whatever its score, as of
            :meth:`~.predictor.Predictor.boxes`; None when nothing could be computed.
        semantic: cells that are not empty, named by the decoder and by the boxes around them (:mod:`.cell_names`); None
            for a network without occupancy.
        region: the window.
        answered: where ``semantic`` has an answer; cells that are not in it are empty there.
        scene: what the heads read, for sentences; None after several windows.
        floor_z_m: height of the floor that was assumed.
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


@dataclass(frozen=True, eq=False)
class _Pass:
    """The last pass of the network.

    Attributes:
        sites: what it read, of voxels; views: and of images.
        prediction: what it gave.
    """

    sites: SparseTensor
    views: tuple[View, ...]
    prediction: ScenePrediction

    def answers(
        self,
        sites: SparseTensor,
        views: tuple[View, ...],
        region: Region,
        answered: Region,
        tolerance: float,
        cell: int,
    ) -> bool:
        """Whether it holds for this input: the same images and regions, and sites that have changed by no more than
        ``tolerance`` (:func:`~embodied_perceptron.sparse.incremental.largest_change`)."""
        last = self.prediction
        return (
            last.region.same_as(region)
            and last.answered.same_as(answered)
            and self.views == views  # compared by identity: views have no other equality
            and largest_change(self.sites, sites, cell) <= tolerance
        )


def image_features(inference: Predictor) -> ImageFeatures | None:
    """Empty image features for a volume whose map ``inference`` predicts; None for a network that sees no images."""
    network = inference.network
    if not network.config.uses_images:
        return None
    size_m = network.config.voxel_size_m
    return ImageFeatures(inference.view, network.image_channels, size_m, network.view_sampling, inference.device)


class MapPredictor:
    """See the module docstring. For one thread at a time.

    Args:
        inference: the network; it stays where it is until :meth:`release`.
        features: of the volume that is predicted, made by :func:`image_features`.
        voxel_size_m: of the map.
        window_m: edge of the window; infinite = the whole map.
        scores: boxes that score less than its ``decode`` are left out.
        window_ahead: how far before the cameras the window's middle lies, as a share of its edge.
        reuse_tolerance: a prediction that is kept (:meth:`keeping`) holds while the map has changed by no more, in any
            cell of half the coarsest stride, from what it was made of (:func:`.largest_change`); 0 = while nothing has.

    Attributes:
        fault: what the network's device failed by, "" = it has not: predictions are then made on the CPU.

    Raises ``ValueError`` when the network's sites are no multiple of the map's voxels, or the volume has no features
    for a network that sees images.
    """

    def __init__(
        self,
        inference: Predictor,
        features: ImageFeatures | None,
        voxel_size_m: float,
        window_m: float,
        scores: ScorePolicy = EVERY_SCORE,
        window_ahead: float = 0.0,
        reuse_tolerance: float = 0.0,
    ) -> None:
        config = inference.network.config
        if config.uses_images and features is None:
            raise ValueError(f"a {config.modality} network needs a volume with image features")
        self.inference = inference
        self.window_m = window_m
        self.scores = scores
        self.window_ahead = window_ahead
        self.reuse_tolerance = reuse_tolerance
        self._features = features if config.uses_images else None
        self.reads_map = config.reads_map
        self._site_voxels = inference.site_voxels(voxel_size_m) if self.reads_map else 1
        self._coarsest = config.backbone.strides[-1]
        self._cell_m = config.voxel_size_m * self._coarsest
        self._device = inference.device
        self.no_cells = SemanticVoxels(  # the labelled cells before any are predicted
            config.occupancy.cell_size_m if config.occupancy is not None else 1.0,
            np.zeros((0, 3), np.float32),
            np.zeros((0, 3), np.uint8),
            np.zeros(0, np.int32),
            np.zeros(0, np.float32),
            inference.occupancy_classes,
        )
        self.fault = ""
        self._released = False
        self._limit_m = math.inf  # of the window, after running out of memory
        self._good_predictions = 0  # since then
        self._memory = LayerMemory()
        self._last: _Pass | None = None
        self._last_window: Window | None = None
        self._keeps = False

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Within it, predictions stay with the window of the last one that did while another is hardly better, for that
        of a robot that stands trembles with every frame; and with its results, within ``reuse_tolerance``."""
        self._keeps = True
        try:
            yield
        finally:
            self._keeps = False

    def release(self) -> None:
        """Give the accelerator's memory back; the next prediction takes it again and computes anew what is missing."""
        self._released = True
        if self._features is not None:
            self._features.release()
        if isinstance(self.inference.text_encoder, LazyTextEncoder):
            self.inference.text_encoder.release()
        self.inference.network.cpu()
        self._forget_pass()
        forget_memory()

    def forget(self) -> None:
        """The map is another one: the window is chosen anew."""
        self._forget_pass()
        self._last_window = None

    def _forget_pass(self) -> None:
        self._last = None
        self._memory.forget()

    def _restore(self) -> None:
        if self._released:
            self.inference.network.to(self._device)
            self._released = False
            if self._features is not None:
                self._features.resume()

    def predict(
        self,
        copy: VolumeCopy,
        view_direction: ViewDirection | None,
        floor_z_m: float,
        window_m: float | None = None,
        manhattan: ManhattanFrame | None = None,
    ) -> ScenePrediction:
        """Boxes and occupancy before the cameras, or of the whole map.

        A map that is larger than an infinite window's working size is predicted in overlapping windows of the size
        that the network is used to; of each, the middle counts. When the accelerator runs out of memory the window is
        halved, and stays smaller for a while; the diagnostics say so. When that does not help, or the accelerator fails
        otherwise, the CPU predicts from now on (:attr:`fault`).

        Args:
            copy: the map.
            view_direction: of the cameras; None = that of the newest keyframe, or else the window lies in the middle of
                the map.
            floor_z_m: height of the floor.
            window_m: overrides the usual one.
            manhattan: frame along the walls of the map, where it is known already
                (:class:`~embodied_perceptron.mapping.wall_columns.WallFrame` holds it from prediction to prediction).
        """
        self._restore()
        if not self.reads_map:
            manhattan = WORLD
        elif manhattan is None:
            manhattan = wall_aligned_frame(copy.rows.cpu().coords.numpy(), copy.voxel_size_m, floor_z_m)
        wanted = self.window_m if window_m is None else window_m
        if math.isfinite(self._limit_m) and self._good_predictions >= _RETRY_AFTER:
            self._limit_m, self._good_predictions = self._limit_m * 2, 0
            if self._limit_m >= wanted:
                self._limit_m = math.inf
        reasons: list[str] = []
        while True:
            size_m = min(wanted, self._limit_m)
            try:
                prediction = self._predict(copy, view_direction, floor_z_m, size_m, manhattan)
            except RuntimeError as error:
                if not is_device_fault(error):
                    raise
                finite_m = self._usual_m() if math.isinf(size_m) else size_m
                smallest = finite_m <= _SMALLEST_CELLS * self._cell_m
                if self._device.type != "cpu" and (smallest or not isinstance(error, torch.OutOfMemoryError)):
                    self._leave_device(error)
                    copy = replace(copy, rows=copy.rows.cpu())
                    continue
                if self._features is not None:
                    self._features.clear()
                self._forget_pass()
                forget_memory()
                self._limit_m, self._good_predictions = finite_m / 2, 0
                if smallest:
                    reason = f"out of memory even in a window of {finite_m:.2f} m: {first_line(error)}"
                    self._limit_m = finite_m
                    return ScenePrediction(
                        None, None, Region.nowhere(), Region.nowhere(), diagnostics=self._told(reason)
                    )
                reasons = [f"out of memory in a window of {finite_m:.2f} m ({first_line(error)})"]
                continue
            self._good_predictions += 1
            if self._limit_m < wanted:
                reasons.append(f"the network looks at {self._limit_m:.2f} m instead of {wanted:.2f} m: memory is short")
            return replace(self._with_names(prediction), diagnostics=self._told(*reasons))

    def _told(self, *reasons: str) -> tuple[str, ...]:
        """Diagnostics of a prediction."""
        return (self.fault, *reasons) if self.fault else reasons

    def _leave_device(self, error: RuntimeError) -> None:
        """Everything anew on the CPU: the device has failed, and may give nothing back."""
        self.fault = f"the network has moved to the CPU, {self._device} failed: {first_line(error)}"
        self.inference.use_cpu()
        self._device = torch.device("cpu")
        self._limit_m = math.inf
        if self._features is not None:
            self._features.use_cpu()
        self._forget_pass()
        forget_memory()

    def _with_names(self, prediction: ScenePrediction) -> ScenePrediction:
        """Cells take the names of boxes that may count for an object."""
        if prediction.semantic is None or prediction.detections is None:
            return prediction
        least = max(MIN_SCORE, self.scores.keep)
        return replace(prediction, semantic=names_from_boxes(prediction.semantic, prediction.detections, least))

    def _usual_m(self) -> float:
        """Window size of one pass when all of the map is asked for."""
        return self.window_m if math.isfinite(self.window_m) else WINDOW_M

    def _whole_m(self, copy: VolumeCopy) -> float:
        """Edge of the windows that cover a map; ``paper`` detects in whole scenes, as it is trained."""
        config = self.inference.network.config
        if self.reads_map or config.modality == "rgb" or config.occupancy is not None:
            return self._usual_m()
        return max(self._usual_m(), float(_middle(copy)[1].max()) + 2 * self._cell_m)

    def _predict(
        self,
        copy: VolumeCopy,
        view_direction: ViewDirection | None,
        floor_z_m: float,
        window_m: float,
        manhattan: ManhattanFrame,
    ) -> ScenePrediction:
        if math.isinf(window_m):
            views = [] if self._features is None else self._features.views(copy.keyframes, manhattan)
            if manhattan.yaw_rad:
                copy = copy.turned(manhattan, np.zeros(3), math.inf)
            prediction = self._passes(copy, views, min(self._whole_m(copy), self._limit_m), floor_z_m)
            return replace(prediction, region=Region.everywhere())
        lookup: StreamingLookup | Sequence[View] = ()
        if self._features is not None:
            lookup = self._features.lookup(copy.keyframes, manhattan)
        if view_direction is None and copy.keyframes:  # of a map from a file
            view_direction = ViewDirection.of(copy.keyframes[-1].T_world_camera)
        center = _middle(copy)[0] if view_direction is None else view_direction.ahead_m(self.window_ahead * window_m)
        if manhattan.yaw_rad:
            # no more than may lie in the window, which is widened to whole cells, and a voxel's points off its centre
            edge_m = window_m + (2 + 2 * _KEPT_CELLS) * self._cell_m
            copy = copy.turned(manhattan, center, math.sqrt(0.5) * edge_m + 2.0 * copy.voxel_size_m)
        window = self._window(manhattan.from_world(center), window_m)
        if self._keeps:
            window = self._kept_window(window, manhattan.from_world(center))
        return self._pass(copy, lookup, window, floor_z_m, self.reuse_tolerance if self._keeps else 0.0)

    def _kept_window(self, wanted: Window, center_m: NDArray[np.float64]) -> Window:
        """The last window while its middle is hardly further from the centre than that of the wanted one."""
        last = self._last_window
        if last is not None and np.array_equal(last.size_m, wanted.size_m):
            lower, upper = (end[:2] / self._coarsest for end in last.limits(self._cell_m / self._coarsest))
            away = np.abs(center_m[:2] / self._cell_m - 0.5 * (lower + upper))  # in cells
            if away.max() <= 0.5 + _KEPT_CELLS:
                return last
        self._last_window = wanted
        return wanted

    def _window(self, center_m: NDArray[np.float64], size_m: float) -> Window:
        center = np.array([center_m[0], center_m[1], 0.0])
        return Window(center, np.array([size_m, size_m, np.inf]), self._coarsest)

    def _pass(
        self,
        copy: VolumeCopy,
        views: Sequence[View] | StreamingLookup,
        window: Window,
        floor_z_m: float,
        reuse: float | None = None,
    ) -> ScenePrediction:
        """The network over one window; ``reuse``: tolerance within which the last pass holds, None = it is one of many
        windows, of which none is kept."""
        inference, config = self.inference, self.inference.network.config
        lower, upper = window.limits(config.voxel_size_m)
        lower_m, upper_m = lower * config.voxel_size_m, upper * config.voxel_size_m
        anchor = np.array([*(0.5 * (lower_m[:2] + upper_m[:2])), floor_z_m])
        sites = self._sites(copy, window, lower_m, upper_m, floor_z_m, anchor)
        region = Region(lower_m, upper_m, copy.manhattan)
        found = Detections(np.zeros((0, 9)), np.zeros(0), ())
        if len(sites) == 0:
            if reuse is not None:
                self.forget()
            return ScenePrediction(found, None, region, Region.nowhere(), floor_z_m=floor_z_m)
        answered = Region.nowhere()
        if config.occupancy is not None:
            low_m = np.array(occupancy_origin(config, anchor.tolist())) * config.voxel_size_m
            size_m = np.array(config.occupancy.cells) * config.occupancy.cell_size_m
            answered = Region(low_m, low_m + size_m, copy.manhattan)
        seen = tuple(views.views if isinstance(views, StreamingLookup) else views)
        last, cell = self._last, self._coarsest // 2
        if last is not None and reuse is not None and last.answers(sites, seen, region, answered, reuse, cell):
            return last.prediction
        kept = reuse is not None and sites.sites.compiled
        cells: list[Callable[[], SemanticVoxels]] = []

        def fill(levels: SceneFeatures) -> None:
            cells.append(beside(lambda: inference.occupancy(levels, anchor.tolist()), sites.sites.compiled))

        try:
            with self._memory.over(sites) if kept else nullcontext(sites) as sites:
                scene = inference.encode(sites, views, copy.manhattan, None if config.occupancy is None else fill)
            if config.detection is not None:
                found = inference.boxes(scene, self.scores.decode)
        finally:
            semantic = cells[0]() if cells else None
        parts = (ScenePart(scene, Region.everywhere()),)
        prediction = ScenePrediction(found, semantic, region, answered, scene, floor_z_m, parts=parts)
        if reuse is not None:
            self._last = _Pass(sites, seen, prediction)
        return prediction

    def _sites(
        self,
        copy: VolumeCopy,
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
        elif self.reads_map:
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

    def _passes(self, copy: VolumeCopy, views: Sequence[View], window_m: float, floor_z_m: float) -> ScenePrediction:
        """As few overlapping windows as cover the map; what lies in two is left to the one that sees more around it."""
        center, extent_m = _middle(copy)
        low_m, high_m = center[:2] - 0.5 * extent_m, center[:2] + 0.5 * extent_m
        parts: list[tuple[ScenePrediction, Region]] = []
        for middle, low, high in cover_windows(low_m.tolist(), high_m.tolist(), window_m, self._cell_m):
            window = self._window(np.array([*middle, 0.0]), window_m)
            core = Region(np.array([*low, -np.inf]), np.array([*high, np.inf]), copy.manhattan)
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
            everything = Region(low_m, high_m, answered[0].manhattan)
        return ScenePrediction(
            found,
            cells[0].joined_with(*cells[1:]) if cells else None,
            Region.everywhere(),
            everything,
            None,
            floor_z_m,
            parts=tuple(ScenePart(s.scene, core) for s, core in parts if s.scene is not None),
        )


def _middle(copy: VolumeCopy) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Centre (3,) of the map and its extent (2,) on the ground, metres."""
    if len(copy) == 0:
        return np.zeros(3), np.zeros(2)
    coords = copy.rows.cpu().coords
    low, high = coords.amin(0).numpy(), coords.amax(0).numpy() + 1
    return 0.5 * (low + high) * copy.voxel_size_m, (high - low)[:2] * copy.voxel_size_m
