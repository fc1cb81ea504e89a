"""One trained network with its vocabulary: predictions for sampled scenes and for a growing map. No training code.

    predictor = Predictor(network, classes, text_encoder=...)

Of sampled inputs, as training and evaluation have them:

    scene = predictor.encode(sites, [predictor.view(frame) for frame in frames])
    predictor.detections(scene)                   boxes with names, nine degrees of freedom
    predictor.occupancy(scene, anchor_m)          labelled cells
    predictor.ground_many(scene, sentences)       candidates per phrase

Of a map:

    volume = FeatureVolume(features=predictor.image_features())
    window = predictor.open_window(volume, options)
    prediction = predictor.predict(window, volume.copy(), view_direction, floor_z_m)
    prediction.detections, prediction.semantic

All arithmetic is the network's (:class:`~embodied_perceptron.nn.network.PerceptionNetwork`); names, numpy and the
wall-aligned frame are added here. Nothing here needs gradients. One instance serves one thread at a time.

A prediction depends on the voxels, the keyframes and the window alone: image features of the volume and the kept last
pass save work and change nothing. The window moves in steps of the network's coarsest stride, so that every site stays
on one lattice, which is turned with the walls. With ``keep`` a prediction also depends on those before it: window and
result stay while new ones would hardly differ.
"""

from __future__ import annotations

import contextvars
import dataclasses
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embodied_perceptron.config import EVERY_SCORE, NetworkOptions, ScorePolicy
from embodied_perceptron.geometry.boxes import canonical_boxes
from embodied_perceptron.geometry.manhattan import WORLD, ManhattanFrame, Region, wall_aligned_frame
from embodied_perceptron.geometry.occupancy_grid import WINDOW_M
from embodied_perceptron.geometry.suppression import PHRASE_NMS_IOU, nms
from embodied_perceptron.geometry.transforms import check_transform
from embodied_perceptron.inference.naming import MIN_SCORE, USUAL, Naming, names_from_boxes
from embodied_perceptron.mapping.devices import first_line, forget_memory, in_thread, is_device_fault
from embodied_perceptron.mapping.export import VolumeCopy, Window
from embodied_perceptron.mapping.image_features import ImageFeatures, StreamingLookup
from embodied_perceptron.mapping.volume import FeatureVolume
from embodied_perceptron.mapping.voxels import HostCopy
from embodied_perceptron.nn.grounding import DetectedObjects
from embodied_perceptron.nn.input_features import (
    SITE_FEATURES,
    SiteFeature,
    cover_windows,
    input_from_points,
    occupancy_origin,
    rgb_grid,
    thin,
)
from embodied_perceptron.nn.network import (
    CandidateVoxels,
    ImageLookup,
    ObjectGroundingBranch,
    PerceptionNetwork,
    PreparedEncoder,
    SharedFeatures,
    Viewpoint,
)
from embodied_perceptron.nn.occupancy import color_sums, decode_cells, decode_filled
from embodied_perceptron.nn.presets import NetworkConfig
from embodied_perceptron.nn.text_encoder import TextEncoder, tokens_between
from embodied_perceptron.nn.view_fusion import View, view_projection
from embodied_perceptron.results import UNNAMED, Detections, SemanticVoxels
from embodied_perceptron.sensors.frame import PosedFrame, ViewDirection
from embodied_perceptron.sparse.engine import get_engine
from embodied_perceptron.sparse.incremental import LayerMemory, largest_change
from embodied_perceptron.sparse.sites import Sites
from embodied_perceptron.sparse.tensor import SparseTensor

UNSEEN_COLOR = 128  # of cells that the network fills in where nothing was seen
_RETRY_AFTER = 100  # predictions in a smaller window before a larger one is tried again
_SMALLEST_CELLS = 2  # edge of the smallest window, in coarsest strides
# How far a window's middle may lie beyond half a step from the wanted centre before the window moves, in coarsest
# strides: heading and place of a standing camera jitter.
_KEPT_CELLS = 0.25
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, eq=False)
class SceneFeatures(SharedFeatures):
    """What the heads share about one scene.

    Attributes:
        manhattan: the wall-aligned frame of the sites; results are in the world again.
    """

    manhattan: ManhattanFrame = WORLD


@dataclass(frozen=True, eq=False)
class ScenePart:
    """Features of one window, and the core of the window in which its results count."""

    scene: SceneFeatures
    core: Region


@dataclass(frozen=True, eq=False)
class ScenePrediction:
    """Results of the network over one window or over the whole map.

    Attributes:
        detections: every box of the network with any score, best first, as :meth:`Predictor.boxes` gives; None when
            nothing could be computed.
        semantic: occupied cells, named by the decoder and the boxes around them (:mod:`.cell_names`); None for a
            network without occupancy.
        region: the window.
        answered: where ``semantic`` has a result; cells that are not in it are empty there.
        floor_z_m: height of the floor that was assumed.
        diagnostics: messages for the user.
        parts: features of each window, for sentences; their cores partition the ground.
    """

    detections: Detections | None
    semantic: SemanticVoxels | None
    region: Region
    answered: Region
    floor_z_m: float = 0.0
    diagnostics: tuple[str, ...] = ()
    parts: tuple[ScenePart, ...] = ()


@dataclass(eq=False)
class MapWindow:
    """The window that a predictor lays over one map, and the state of its last prediction.

    Attributes:
        features: image features of the map's volume; None for a network without images.
        site_voxels: map voxels along the edge of an input site.
        options: edge of the window, how far ahead it lies, and when the last result is kept.
        scores: boxes below its ``decode`` are left out.
        memory: outputs of the network's layers in the last pass.
        last: sites and views of the last pass, and its result.
        position: of the window at the last prediction with ``keep``.
    """

    features: ImageFeatures | None
    site_voxels: int
    options: NetworkOptions
    scores: ScorePolicy
    memory: LayerMemory = field(default_factory=LayerMemory)
    last: tuple[SparseTensor, tuple[View, ...], ScenePrediction] | None = None
    position: Window | None = None

    def forget(self) -> None:
        """Forget the last pass and the position: the map was replaced by another."""
        self.forget_pass()
        self.position = None

    def forget_pass(self) -> None:
        """Forget the last pass."""
        self.last = None
        self.memory.forget()

    def usual_m(self) -> float:
        """Window size of one pass when the whole map is asked for, metres."""
        return self.options.window_m if math.isfinite(self.options.window_m) else WINDOW_M

    def keep_position(self, wanted: Window, center_m: NDArray[np.float64], cell_m: float) -> Window:
        """The last position while its middle is hardly further from the centre than that of the wanted one."""
        last = self.position
        if last is not None and np.array_equal(last.size_m, wanted.size_m):
            lower, upper = (end[:2] / wanted.snap for end in last.limits(cell_m / wanted.snap))
            away = np.abs(center_m[:2] / cell_m - 0.5 * (lower + upper))  # in cells
            if away.max() <= 0.5 + _KEPT_CELLS:
                return last
        self.position = wanted
        return wanted


class Predictor:
    """A network with its vocabulary.

    Args:
        network: any modality; switched to evaluation mode.
        classes: names of the detection classes, in the order of the logits.
        occupancy_classes: names of the occupancy classes, label 1 first; needed where there is an occupancy head.
        text_encoder: needed for grounding.
        image_encoder: runs in place of the network's own (ONNX Runtime); the network still projects its maps.
        feature_dtype: of the image features that :meth:`view` gives.
        calibration: the calibration section of the weights file.
        scores: thresholds of scores for users of an object map; :meth:`detections` gives all boxes.

    Attributes:
        naming: when a box is published without a name, for a network that knows presence; None keeps all boxes.
        spare: the same network on the CPU, in case its device fails with all that it holds.
        fault: the error of the network's device; "" = none. After a fault the CPU predicts.

    Raises ``ValueError`` when names do not fit the network.
    """

    def __init__(
        self,
        network: PerceptionNetwork,
        classes: Sequence[str],
        occupancy_classes: Sequence[str] = (),
        text_encoder: TextEncoder | None = None,
        *,
        image_encoder: PreparedEncoder | None = None,
        feature_dtype: torch.dtype = torch.float16,
        calibration: Mapping[str, Any] | None = None,
        scores: ScorePolicy = EVERY_SCORE,
    ) -> None:
        config = network.config
        check_classes(config, tuple(classes))
        if config.occupancy is not None and len(occupancy_classes) != config.occupancy.num_classes:
            raise ValueError(
                f"the network has {config.occupancy.num_classes} occupancy classes, but {len(occupancy_classes)} names "
                "are given"
            )
        wanted = config.grounding.text_channels if config.grounding is not None else 0
        if wanted and text_encoder is not None and text_encoder.channels != wanted:
            raise ValueError(f"the network reads {wanted} text channels, the encoder gives {text_encoder.channels}")
        self.network = network.eval()
        self.classes = tuple(classes)
        self.occupancy_classes = tuple(occupancy_classes)
        self.text_encoder = text_encoder
        self.feature_dtype = feature_dtype
        self.calibration = dict(calibration or {})
        self.scores = scores
        self.naming: Naming | None = USUAL
        self.spare: PerceptionNetwork | None = None
        self.fault = ""
        self._image_encoder = image_encoder
        self._coarsest = config.backbone.strides[-1]
        self._cell_m = config.voxel_size_m * self._coarsest
        self._device = self.device
        self._released = False
        self._limit_m = math.inf  # of windows, after the device ran out of memory
        self._good_predictions = 0  # since then

    @property
    def device(self) -> torch.device:
        """Device of the network's parameters."""
        return next(self.network.parameters()).device

    @property
    def no_cells(self) -> SemanticVoxels:
        """Labelled cells before any are predicted."""
        occupancy = self.network.config.occupancy
        return SemanticVoxels(
            occupancy.cell_size_m if occupancy is not None else 1.0,
            np.zeros((0, 3), np.float32),
            np.zeros((0, 3), np.uint8),
            np.zeros(0, np.int32),
            np.zeros(0, np.float32),
            self.occupancy_classes,
        )

    # --------------------------------------------------------------------------------------------------------- inputs

    def site_voxels(self, voxel_size_m: float) -> int:
        """Number of map voxels along the edge of an input site; for ``FeatureVolume.as_sparse_tensor``.

        Raises ``ValueError`` when it is not a whole number, or the network does not read maps (``paper``: sampled
        points, see :func:`~embodied_perceptron.nn.input_features.input_from_points`).
        """
        config = self.network.config
        if config.inputs == "xyz":
            raise ValueError(f"a {config.name} network reads sampled points ({config.inputs}), not the map")
        ratio = config.voxel_size_m / voxel_size_m
        if round(ratio) < 1 or abs(ratio - round(ratio)) > 1e-6:
            raise ValueError(
                f"sites of {config.voxel_size_m} m are no multiple of the map's voxels of {voxel_size_m} m: choose "
                "another volume.voxel_size_m, or no network (network.weights: '')"
            )
        return round(ratio)

    @property
    def site_features(self) -> tuple[SiteFeature, ...]:
        """Names of the input columns; for ``FeatureVolume.as_sparse_tensor``."""
        return SITE_FEATURES[self.network.config.inputs]

    @torch.inference_mode()
    def view(self, posed: PosedFrame, dtype: torch.dtype | None = None) -> View:
        """Encode the image of one frame; ``dtype``: of the features, default the instance's.

        Features and depth are on the network's device. Raises ``ValueError`` for a network that sees no images.
        """
        dtype = self.feature_dtype if dtype is None else dtype
        size, frame = self.network.config.image.size, posed.frame
        colors = torch.from_numpy(np.ascontiguousarray(frame.color))[None]
        maps = self.network.encode_images(colors, size, self._image_encoder, dtype)
        return View(
            projection=view_projection(posed.T_world_camera, frame.intrinsics, size),
            image_size=size,
            levels=tuple(m[0].permute(1, 2, 0).contiguous() for m in maps),
            depth_m=torch.from_numpy(np.array(frame.depth_m, dtype=np.float32)).to(self.device),
        )

    # ---------------------------------------------------------------------------------------------------------- heads

    @torch.inference_mode()
    def encode(
        self,
        sites: SparseTensor,
        views: Sequence[View] | ImageLookup = (),
        manhattan: ManhattanFrame = WORLD,
        on_levels: Callable[[SceneFeatures], None] | None = None,
    ) -> SceneFeatures:
        """Backbone, fusion and detection neck over one scene.

        Args:
            sites: one sample at stride 1; thinned to the preset's ``max_sites``.
            views: image features, projected from the ``manhattan`` frame; without any, features are zero. Or a lookup
                over a live map (:class:`~embodied_perceptron.mapping.image_features.StreamingLookup`).
            manhattan: the wall-aligned frame of the sites.
            on_levels: called with the input of :meth:`occupancy`, before the neck.
        """
        if sites.batch_size != 1:
            raise ValueError(f"inference is for one scene at a time, got {sites.batch_size}")
        config = self.network.config
        if config.modality != "rgb":
            sites = thin(sites, config.max_sites)
        lookup: ImageLookup | None = None
        if config.uses_images:
            lookup = views if callable(views) else self.network.lookup([views])

        def scene(shared: SharedFeatures) -> SceneFeatures:
            return SceneFeatures(**vars(shared), manhattan=manhattan)

        hook = None if on_levels is None else lambda shared: on_levels(scene(shared))
        return scene(self.network(sites, lookup, on_levels=hook))

    @torch.inference_mode()
    def detections(self, scene: SceneFeatures, min_score: float = 0.0) -> Detections:
        """Named boxes that score more than ``min_score``, best first. A network that knows presence also gives objects
        without a class name, named :data:`~embodied_perceptron.results.UNNAMED`.

        Raises ``ValueError`` for a network without detection.
        """
        return self.select(self.boxes(scene, min_score))

    def select(self, found: Detections) -> Detections:
        """Select from :meth:`boxes` those that :meth:`detections` gives."""
        return found if self.naming is None else self.naming.select(found)

    @torch.inference_mode()
    def boxes(self, scene: SceneFeatures, min_score: float = 0.0) -> Detections:
        """Boxes before naming: for each object a box of every possible name, and one without a name."""
        (found,) = self.network.boxes(scene, min_score)
        names = (*self.classes, UNNAMED)
        return Detections(
            scene.manhattan.boxes_to_world(found.boxes.double().numpy()),
            np.clip(found.scores.double().numpy(), 0.0, 1.0),
            tuple(names[i] for i in found.labels.numpy()),
        )

    @torch.inference_mode()
    def occupancy(self, scene: SceneFeatures, anchor_m: Sequence[float]) -> SemanticVoxels:
        """Occupied cells with label and confidence. A cell of the world has the label of the wall-aligned cell at its
        centre; ``anchor_m``: in the wall-aligned frame, see :func:`occupancy_origin`.

        Raises ``ValueError`` for a network without occupancy.
        """
        return self._occupancy(scene, anchor_m)()

    def _occupancy(self, scene: SceneFeatures, anchor_m: Sequence[float]) -> Callable[[], SemanticVoxels]:
        """:meth:`occupancy`, launched on a device; the returned function waits for the result."""
        config = self.network.config
        origin = occupancy_origin(config, anchor_m)
        assert config.occupancy is not None
        (logits,) = self.network.occupy(scene.levels, origin, scene.lookup, scales=1)
        level = scene.levels[config.occupancy_level()]
        where = level.stride, origin, config.occupancy.cells
        if level.sites.compiled:
            filled, labels, confidence = decode_filled(logits[0])
            colors = self._colors(scene.sites, *where)[tuple(filled.unbind(1))]
            read = partial(tuple, (filled, labels, confidence, colors))
        else:  # all cells, by one copy
            label, sure = decode_cells(logits[0])
            every = torch.cat([label[..., None], sure[..., None], self._colors(scene.sites, *where)], -1)
            read = partial(_read_cells, HostCopy(every))
        size_m, first = config.occupancy.cell_size_m, np.array(origin) // level.stride

        def named() -> SemanticVoxels:
            filled, labels, confidence, colors = read()
            cells, rows = scene.manhattan.world_cells(filled.numpy() + first, size_m)
            return SemanticVoxels(
                cell_size_m=size_m,
                centers_m=((cells + 0.5) * size_m).astype(np.float32),
                color=colors.to(torch.uint8).numpy()[rows],
                labels=(labels - 1).int().numpy()[rows],
                confidence=confidence.float().numpy()[rows],
                classes=self.occupancy_classes,
            )

        return named

    def _colors(self, sites: SparseTensor, stride: int, origin: Sequence[int], cells: Sequence[int]) -> Tensor:
        """(X, Y, Z, 3) mean colour of the input sites in each cell of the grid, whole numbers up to 255."""
        if not self.network.config.reads_map:
            return sites.feats.new_full((*cells, 3), UNSEEN_COLOR)
        total = color_sums(sites.sites, sites.feats[:, 1:4], stride, origin, cells).view(*cells, 4)
        colors = (total[..., :3] / total[..., 3:].clamp(min=1.0) * 255.0).round_().clamp_(0, 255)
        return colors.masked_fill_(total[..., 3:] == 0, UNSEEN_COLOR)

    @torch.inference_mode()
    def ground_many(
        self,
        scene: SceneFeatures,
        sentences: Sentences,
        viewpoint: Viewpoint | None = None,
        limit: int = 10,
    ) -> list[list[PhraseCandidates]]:
        """Candidates for each phrase of each sentence of one speaker, in one pass. A scene without voxels has none.

        Args:
            scene: of :meth:`encode`.
            sentences: (text, phrases); a phrase is [start, end) characters, scored by the mean probability of its
                tokens, or None for the whole sentence, scored by its best token.
            viewpoint: of the speaker, in the world (:func:`viewpoint_of`); unless the preset reads world coordinates.
            limit: candidates per phrase; of two that overlap more than :data:`PHRASE_NMS_IOU`, the better stays.

        Raises ``ValueError`` for a phrase outside of the text or without a token (blank, or behind the end of what the
        encoder reads), for a blank text, and without a grounding head or text encoder.
        """
        among = self.network.candidates(scene.levels, scene.detection) if any(map(len, scene.levels)) else None
        return self._ground(among, sentences, viewpoint, limit, scene.manhattan)

    @property
    def grounds_objects(self) -> bool:
        """Whether sentences choose among detected objects; those of several windows can then be joined."""
        return isinstance(self.network.grounding, ObjectGroundingBranch)

    @torch.inference_mode()
    def objects(self, scene: SceneFeatures, within: Region | None = None) -> DetectedObjects:
        """Objects that sentences choose among, in the world; only those centered ``within`` a region are valid.

        Raises ``ValueError`` unless :attr:`grounds_objects`.
        """
        found = self.network.candidates(scene.levels, scene.detection)
        if not isinstance(found, DetectedObjects):
            raise ValueError("this network grounds sentences among voxels")
        boxes = scene.manhattan.boxes_to_world(found.boxes[0].double().cpu().numpy())
        valid = found.valid
        if within is not None:
            valid = valid & torch.from_numpy(within.contains(boxes[:, :3])).to(valid.device)
        return dataclasses.replace(found, boxes=torch.from_numpy(boxes[None]).to(found.boxes), valid=valid)

    @torch.inference_mode()
    def ground_among(
        self,
        objects: DetectedObjects,
        sentences: Sentences,
        viewpoint: Viewpoint,
        limit: int = 10,
    ) -> list[list[PhraseCandidates]]:
        """:meth:`ground_many` among the :meth:`objects` of one scene. Raises as it does."""
        if not self.grounds_objects:
            raise ValueError("this network grounds sentences among voxels")
        return self._ground(objects if bool(objects.valid.any()) else None, sentences, viewpoint, limit, WORLD)

    def _ground(
        self,
        among: CandidateVoxels | DetectedObjects | None,
        sentences: Sentences,
        viewpoint: Viewpoint | None,
        limit: int,
        manhattan: ManhattanFrame,
    ) -> list[list[PhraseCandidates]]:
        """:meth:`ground_many` among voxels or objects of the ``manhattan`` frame; None = there are none."""
        if not sentences:
            return []
        if self.network.grounding is None or self.text_encoder is None:
            raise ValueError("grounding needs a grounding head and a text encoder")
        features = self.text_encoder.encode([text for text, _ in sentences])
        masks = [
            [_tokens(spans, phrase, text) for phrase in phrases]
            for spans, (text, phrases) in zip(features.spans, sentences, strict=True)
        ]
        if among is None:
            return [[PhraseCandidates(np.zeros((0, 9)), np.zeros(0)) for _ in of_sentence] for of_sentence in masks]
        device = self.device
        speaker = None if viewpoint is None else _from_world(viewpoint, manhattan, device)
        out = self.network.ground(among, features.tokens.to(device), features.pad.to(device), speaker)

        def candidates(row: int, phrase: Phrase, mask: Tensor) -> PhraseCandidates:
            valid = out.query_valid[row]
            boxes, words = out.boxes[-1, row][valid], out.logits[-1, row][valid].sigmoid()  # (Q, 9), (Q, T)
            words = words[:, mask.to(device)]
            scores = words.amax(1) if phrase is None else words.mean(1)
            keep = nms(boxes, scores, torch.zeros_like(scores, dtype=torch.int64), PHRASE_NMS_IOU)[:limit]
            there = manhattan.boxes_to_world(boxes[keep].double().cpu().numpy())
            return PhraseCandidates(there, scores[keep].double().cpu().numpy())

        return [
            [candidates(row, *of_phrase) for of_phrase in zip(phrases, of_sentence, strict=True)]
            for row, ((_, phrases), of_sentence) in enumerate(zip(sentences, masks, strict=True))
        ]

    # ----------------------------------------------------------------------------------------------- windows of a map

    def image_features(self) -> ImageFeatures | None:
        """Empty image features for the volume of a map; None for a network that sees no images."""
        network = self.network
        if not network.config.uses_images:
            return None
        size_m = network.config.voxel_size_m
        return ImageFeatures(self.view, network.image_channels, size_m, network.view_sampling, self.device)

    def open_window(self, volume: FeatureVolume, options: NetworkOptions) -> MapWindow:
        """A window over one map, for :meth:`predict`.

        Raises ``ValueError`` when the network's sites are no multiple of the map's voxels, or the volume has no image
        features for a network that sees images.
        """
        config = self.network.config
        if config.uses_images and volume.features is None:
            raise ValueError(f"a {config.modality} network needs a volume with image features")
        site_voxels = self.site_voxels(volume.config.voxel_size_m) if config.reads_map else 1
        features = volume.features if config.uses_images else None
        return MapWindow(features, site_voxels, options, replace(self.scores, all_boxes=options.all_boxes))

    def predict(
        self,
        window: MapWindow,
        copy: VolumeCopy,
        view_direction: ViewDirection | None,
        floor_z_m: float,
        window_m: float | None = None,
        manhattan: ManhattanFrame | None = None,
        keep: bool = False,
    ) -> ScenePrediction:
        """Boxes and occupancy before the cameras, or of the whole map.

        A map larger than an infinite window's working size is predicted in overlapping windows of the size that the
        network was trained with; of each, the middle counts. When the accelerator runs out of memory the window is
        halved and stays smaller for a while, which the diagnostics say. When that does not help, or the accelerator
        fails otherwise, the CPU predicts from then on (:attr:`fault`).

        Args:
            window: of this map.
            copy: the map.
            view_direction: of the cameras; None = of the newest keyframe, without keyframes the middle of the map.
            floor_z_m: height of the floor.
            window_m: edge of the window in place of the usual one; infinite = the whole map.
            manhattan: frame along the walls of the map; None = it is computed
                (:class:`~embodied_perceptron.mapping.voxel_counts.WallFrame` holds it from prediction to prediction).
            keep: keep the last window while a new one would hardly differ (the pose of a standing robot jitters), and
                the last result while the map changed by no more than ``options.reuse_tolerance``.
        """
        if self._released:
            self.network.to(self._device)
            self._released = False
            if window.features is not None:
                window.features.resume()
        if not self.network.config.reads_map:
            manhattan = WORLD
        elif manhattan is None:
            manhattan = wall_aligned_frame(copy.rows.cpu().coords.numpy(), copy.voxel_size_m, floor_z_m)
        wanted = window.options.window_m if window_m is None else window_m
        if math.isfinite(self._limit_m) and self._good_predictions >= _RETRY_AFTER:
            self._limit_m, self._good_predictions = self._limit_m * 2, 0
            if self._limit_m >= wanted:
                self._limit_m = math.inf
        reasons: list[str] = []
        while True:
            size_m = min(wanted, self._limit_m)
            try:
                prediction = self._predict(window, copy, view_direction, floor_z_m, size_m, manhattan, keep)
            except RuntimeError as error:
                if not is_device_fault(error):
                    raise
                finite_m = window.usual_m() if math.isinf(size_m) else size_m
                smallest = finite_m <= _SMALLEST_CELLS * self._cell_m
                if self._device.type != "cpu" and (smallest or not isinstance(error, torch.OutOfMemoryError)):
                    self._leave_device(window, error)
                    copy = replace(copy, rows=copy.rows.cpu())
                    continue
                if window.features is not None:
                    window.features.clear()
                window.forget_pass()
                forget_memory()
                self._limit_m, self._good_predictions = finite_m / 2, 0
                if smallest:
                    reason = f"out of memory even in a window of {finite_m:.2f} m: {first_line(error)}"
                    self._limit_m = finite_m
                    nowhere = Region.nowhere()
                    return ScenePrediction(None, None, nowhere, nowhere, diagnostics=self._diagnostics(reason))
                reasons = [f"out of memory in a window of {finite_m:.2f} m ({first_line(error)})"]
                continue
            self._good_predictions += 1
            if self._limit_m < wanted:
                reasons.append(f"the window is {self._limit_m:.2f} m instead of {wanted:.2f} m: memory is short")
            semantic = prediction.semantic
            if semantic is not None and prediction.detections is not None:
                least = max(MIN_SCORE, window.scores.keep)  # boxes that may count for an object name cells
                semantic = names_from_boxes(semantic, prediction.detections, least)
            return replace(prediction, semantic=semantic, diagnostics=self._diagnostics(*reasons))

    def release(self, window: MapWindow) -> None:
        """Give the accelerator's memory back; the next prediction takes it again and computes anew what is missing."""
        self._released = True
        if window.features is not None:
            window.features.release()
        release_text = getattr(self.text_encoder, "release", None)
        if release_text is not None:
            release_text()
        self.network.cpu()
        window.forget_pass()
        forget_memory()

    def _diagnostics(self, *reasons: str) -> tuple[str, ...]:
        return (self.fault, *reasons) if self.fault else reasons

    def _leave_device(self, window: MapWindow, error: RuntimeError) -> None:
        """Start anew on the CPU: the device failed, and memory on it may be lost."""
        self.fault = f"the network has moved to the CPU, {self._device} failed: {first_line(error)}"
        self.network = self.network.cpu() if self.spare is None else self.spare.eval()
        use_cpu = getattr(self.text_encoder, "use_cpu", None)
        if use_cpu is not None:
            use_cpu()
        self._device = torch.device("cpu")
        self._limit_m = math.inf
        if window.features is not None:
            window.features.use_cpu()
        window.forget_pass()
        forget_memory()

    def _predict(
        self,
        window: MapWindow,
        copy: VolumeCopy,
        view_direction: ViewDirection | None,
        floor_z_m: float,
        size_m: float,
        manhattan: ManhattanFrame,
        keep: bool,
    ) -> ScenePrediction:
        """One attempt with a window of ``size_m``."""
        features = window.features
        if math.isinf(size_m):
            views = [] if features is None else features.views(copy.keyframes, manhattan)
            if manhattan.yaw_rad:
                copy = copy.turned(manhattan, np.zeros(3), math.inf)
            return replace(self._whole_map(window, copy, views, floor_z_m), region=Region.everywhere())
        lookup: StreamingLookup | Sequence[View] = ()
        if features is not None:
            lookup = features.lookup(copy.keyframes, manhattan)
        if view_direction is None and copy.keyframes:  # of a map from a file
            view_direction = ViewDirection.of(copy.keyframes[-1].T_world_camera)
        ahead_m = window.options.window_ahead * size_m
        center = _middle(copy)[0] if view_direction is None else view_direction.ahead_m(ahead_m)
        if manhattan.yaw_rad:
            # no more than may lie in the window, which is widened to whole cells, and a voxel's points off its center
            edge_m = size_m + (2 + 2 * _KEPT_CELLS) * self._cell_m
            copy = copy.turned(manhattan, center, math.sqrt(0.5) * edge_m + 2.0 * copy.voxel_size_m)
        center = manhattan.from_world(center)
        where = self._window(center, size_m)
        if not keep:
            return self._pass(window, copy, lookup, where, floor_z_m, 0.0)
        where = window.keep_position(where, center, self._cell_m)
        return self._pass(window, copy, lookup, where, floor_z_m, window.options.reuse_tolerance)

    def _window(self, center_m: NDArray[np.float64], size_m: float) -> Window:
        center = np.array([center_m[0], center_m[1], 0.0])
        return Window(center, np.array([size_m, size_m, np.inf]), self._coarsest)

    def _pass(
        self,
        window: MapWindow,
        copy: VolumeCopy,
        views: Sequence[View] | StreamingLookup,
        where: Window,
        floor_z_m: float,
        tolerance: float | None = None,
    ) -> ScenePrediction:
        """The network at one place; ``tolerance``: the last result holds while no cell changed by more, None = one of
        many windows, of which no result is kept."""
        config = self.network.config
        lower, upper = where.limits(config.voxel_size_m)
        lower_m, upper_m = lower * config.voxel_size_m, upper * config.voxel_size_m
        anchor = np.array([*(0.5 * (lower_m[:2] + upper_m[:2])), floor_z_m])
        region = Region(lower_m, upper_m, copy.manhattan)
        sites = self._sites(window, copy, where, region, anchor)
        found = Detections(np.zeros((0, 9)), np.zeros(0), ())
        if len(sites) == 0:
            if tolerance is not None:
                window.forget()
            return ScenePrediction(found, None, region, Region.nowhere(), floor_z_m)
        answered = Region.nowhere()
        if config.occupancy is not None:
            low_m = np.array(occupancy_origin(config, anchor.tolist())) * config.voxel_size_m
            size_m = np.array(config.occupancy.cells) * config.occupancy.cell_size_m
            answered = Region(low_m, low_m + size_m, copy.manhattan)
        seen = tuple(views.views if isinstance(views, StreamingLookup) else views)
        if tolerance is not None and window.last is not None:
            before, seen_before, last = window.last  # views are compared by identity: they have no other equality
            alike = last.region.same_as(region) and last.answered.same_as(answered) and seen == seen_before
            if alike and largest_change(before, sites, self._coarsest // 2) <= tolerance:
                return last
        on_cpu = sites.sites.compiled
        cells: list[Callable[[], SemanticVoxels]] = []

        def fill(levels: SceneFeatures) -> None:
            at = anchor.tolist()  # a device is given this work now, and is read after the boxes
            cells.append(parallel(lambda: self.occupancy(levels, at)) if on_cpu else self._occupancy(levels, at))

        kept = tolerance is not None and on_cpu
        try:
            with window.memory.over(sites) if kept else nullcontext(sites) as sites:
                scene = self.encode(sites, views, copy.manhattan, None if config.occupancy is None else fill)
            if config.detection is not None:
                found = self.boxes(scene, window.scores.decode)
        finally:
            semantic = cells[0]() if cells else None
        parts = (ScenePart(scene, Region.everywhere()),)
        prediction = ScenePrediction(found, semantic, region, answered, floor_z_m, parts=parts)
        if tolerance is not None:
            window.last = sites, seen, prediction
        return prediction

    def _sites(
        self, window: MapWindow, copy: VolumeCopy, where: Window, region: Region, anchor: NDArray[np.float64]
    ) -> SparseTensor:
        """Input of the network, on its device."""
        config = self.network.config
        if config.modality == "rgb":
            sites = rgb_grid(config, anchor.tolist())
        elif config.reads_map:
            sites = copy.as_sparse_tensor(
                window.site_voxels,
                window=where,
                features=self.site_features,
                floor_z_m=float(anchor[2]),
                coarser=self.network.backbone.factors,
            )
        else:  # raw coordinates of points
            points = copy.snapshot().mean_point_m.astype(np.float64)
            inside = ((points >= region.lower_m) & (points < region.upper_m)).all(axis=1)
            sites = input_from_points(points[inside], None, config.voxel_size_m, config.inputs)
        if sites.device == self._device:
            return sites
        keys = sites.keys.to(self._device)
        return SparseTensor(Sites(keys, 1, 1, get_engine("auto", self._device.type)), sites.feats.to(self._device))

    def _whole_map(
        self, window: MapWindow, copy: VolumeCopy, views: Sequence[View], floor_z_m: float
    ) -> ScenePrediction:
        """Overlapping windows that cover the map; where two overlap, the one that sees more around a point counts."""
        center, extent_m = _middle(copy)
        config = self.network.config
        window_m = window.usual_m()
        if not (config.reads_map or config.modality == "rgb" or config.occupancy is not None):
            window_m = max(window_m, float(extent_m.max()) + 2 * self._cell_m)  # ``paper`` is trained on whole scenes
        window_m = min(window_m, self._limit_m)
        low_m, high_m = center[:2] - 0.5 * extent_m, center[:2] + 0.5 * extent_m
        parts: list[tuple[ScenePrediction, Region]] = []
        for middle, low, high in cover_windows(low_m.tolist(), high_m.tolist(), window_m, self._cell_m):
            where = self._window(np.array([*middle, 0.0]), window_m)
            core = Region(np.array([*low, -np.inf]), np.array([*high, np.inf]), copy.manhattan)
            parts.append((self._pass(window, copy, views, where, floor_z_m), core))
        return parts[0][0] if len(parts) == 1 else self._joined(parts, floor_z_m)

    def _joined(self, parts: list[tuple[ScenePrediction, Region]], floor_z_m: float) -> ScenePrediction:
        """Of each window what lies in its core; boxes that still overlap are suppressed per class."""
        found = [
            s.detections.take(np.flatnonzero(core.contains(s.detections.boxes[:, :3])))
            for s, core in parts
            if s.detections is not None
        ]
        cells = [s.semantic.take(core.contains(s.semantic.centers_m)) for s, core in parts if s.semantic is not None]
        boxes, scores = np.concatenate([f.boxes for f in found]), np.concatenate([f.scores for f in found])
        labels = [label for f in found for label in f.labels]
        config = self.network.config.detection
        kept = np.zeros(0, np.int64)
        if labels and config is not None:
            _, ids = np.unique(labels, return_inverse=True)
            rows = torch.from_numpy(boxes), torch.from_numpy(scores), torch.from_numpy(ids)
            kept = nms(*rows, config.iou_threshold).numpy()
        answered = [s.answered for s, _ in parts if s.semantic is not None]
        everything = Region.nowhere()
        if answered:
            low_m, high_m = np.min([r.lower_m for r in answered], axis=0), np.max([r.upper_m for r in answered], axis=0)
            everything = Region(low_m, high_m, answered[0].manhattan)
        return ScenePrediction(
            Detections(boxes[kept], scores[kept], tuple(labels[i] for i in kept)),
            cells[0].joined_with(*cells[1:]) if cells else None,
            Region.everywhere(),
            everything,
            floor_z_m,
            parts=tuple(replace(part, core=core) for s, core in parts for part in s.parts),
        )


def _middle(copy: VolumeCopy) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Center (3,) of the map and its extent (2,) on the ground, metres."""
    if len(copy) == 0:
        return np.zeros(3), np.zeros(2)
    coords = copy.rows.cpu().coords
    low, high = coords.amin(0).numpy(), coords.amax(0).numpy() + 1
    return 0.5 * (low + high) * copy.voxel_size_m, (high - low)[:2] * copy.voxel_size_m


def cores() -> int:
    """Number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _read_cells(copy: HostCopy) -> tuple[Tensor, ...]:
    """Indices of the filled cells, their labels, confidence and colours."""
    cells = copy.read()
    filled = torch.from_numpy(np.argwhere(cells[..., 0].numpy() > 0))
    labels, confidence, *rgb = cells[tuple(filled.unbind(1))].unbind(1)
    return filled, labels, confidence, torch.stack(rgb, 1)


def parallel(function: Callable[[], ResultT]) -> Callable[[], ResultT]:
    """Start ``function`` in its own thread, with the caller's priority and context.

    The returned function must be called: it waits for the result and returns it, or raises what ``function`` raised.
    It calls ``function`` itself where this process has one core. Each call starts a thread: a pool would not survive a
    fork of the process.
    """
    if cores() == 1:
        return function
    thread, done = in_thread(partial(contextvars.copy_context().run, function), "parallel")

    def result() -> ResultT:
        thread.join()
        return done.result()

    return result


def _from_world(viewpoint: Viewpoint, manhattan: ManhattanFrame, device: torch.device) -> Viewpoint:
    """World -> manhattan, on ``device``."""
    R = torch.from_numpy(manhattan.T_world_manhattan[:3, :3]).to(viewpoint.origin_m)
    return Viewpoint((viewpoint.origin_m @ R).to(device), (viewpoint.yaw_rad - manhattan.yaw_rad).to(device))


def viewpoint_of(T_world_camera: NDArray[np.floating[Any]], floor_z_m: float) -> Viewpoint:
    """Gravity-aligned frame of a camera (optical frame: z forward, y down), on the floor below it, x along its heading.

    When the camera looks straight down, the upper edge of its image points along the heading; straight up, the lower.
    """
    T = check_transform(T_world_camera, "T_world_camera")
    forward, up = T[:3, 2], -T[:3, 1]
    level = forward if math.hypot(forward[0], forward[1]) > 1e-3 else up * (-1.0 if forward[2] > 0 else 1.0)
    yaw = math.atan2(level[1], level[0])
    origin = torch.tensor([[T[0, 3], T[1, 3], floor_z_m]], dtype=torch.float32)
    return Viewpoint(origin, torch.tensor([yaw], dtype=torch.float32))


def check_classes(config: NetworkConfig, classes: tuple[str, ...]) -> None:
    """Raise ``ValueError`` unless there is one distinct name per class of the network."""
    if len(classes) != config.num_classes:
        raise ValueError(f"the network has {config.num_classes} classes, but {len(classes)} names are given")
    twice = sorted({name for name in classes if classes.count(name) > 1})
    if twice:
        raise ValueError(f"class names must differ, given twice: {', '.join(twice)}")


# --------------------------------------------------------------------------------------------------------------------
# Phrases of sentences: their tokens and candidates.

Phrase: TypeAlias = "tuple[int, int] | None"  # [start, end) characters; None = the sentence as a whole
Sentences: TypeAlias = Sequence[tuple[str, Sequence[Phrase]]]  # each with its phrases


@dataclass(frozen=True, eq=False)
class PhraseCandidates:
    """Boxes that one phrase of a sentence may mean, best first.

    Attributes:
        boxes: (K, 9) float64, world frame, in canonical form (:func:`~..geometry.boxes.canonical_boxes`).
        scores: (K,) float64 in [0, 1].
    """

    boxes: NDArray[np.float64]
    scores: NDArray[np.float64]

    def __post_init__(self) -> None:
        object.__setattr__(self, "boxes", canonical_boxes(self.boxes))


def _tokens(spans: Tensor, phrase: Phrase, text: str) -> Tensor:
    """(T,) bool tokens of a phrase; ``spans`` (T, 2)."""
    start, end = (0, len(text)) if phrase is None else phrase
    if not 0 <= start <= end <= len(text):
        raise ValueError(f"phrase {phrase} is outside of the text of {len(text)} characters")
    tokens = tokens_between(spans, start, end)
    if not bool(tokens.any()):
        shown = text[start : min(end, start + 40)]
        raise ValueError(f"phrase {(start, end)} {shown!r} has no token; the encoder read up to {int(spans.max())}")
    return tokens
