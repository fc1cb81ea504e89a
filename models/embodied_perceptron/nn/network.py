"""The whole network, built from a preset.

    features = network(sites, network.lookup(views))             encode and fuse once, for all heads
    network.boxes(features)                                      decoded boxes, per scene
    network.occupy(features.levels, origin, features.lookup)     logits of a grid of cells
    candidates = network.candidates(features.levels, features.detection)
    network.ground(candidates, tokens, token_pad, viewpoint)     boxes per sentence, among voxels or detected objects

Training, evaluation, the live map and the benchmarks call these functions only. Images enter through a *lookup*:
``lookup(level, sites)`` returns the averaged level-``level`` image features at those sites, (N, C).
:meth:`PerceptionNetwork.lookup` makes it from a batch of views, the live volume from its running sums.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from embodied_perceptron.geometry.transforms import pack_site_keys
from embodied_perceptron.nn.backbone import MinkResNet, SiteMask, TopDownNeck, keep_best
from embodied_perceptron.nn.baselines import ButdDetrHead, ScanReferHead, UNetDecoder, VotingHead
from embodied_perceptron.nn.detection import BoxPredictions, DetectionHead, DetectionLevel, decode_detections
from embodied_perceptron.nn.graphed import Graphed
from embodied_perceptron.nn.grounding import (
    DetectedObjects,
    GroundingHead,
    GroundingOutput,
    ObjectGroundingHead,
    ObjectGroundingOutput,
    detected_objects,
    of_sentences,
)
from embodied_perceptron.nn.image_encoder import ImageEncoder, PyramidEncoder, ResNetEncoder, mobile_encoder
from embodied_perceptron.nn.input_features import join_samples
from embodied_perceptron.nn.occupancy import DensePyramid, OccupancyHead
from embodied_perceptron.nn.official import Conventions
from embodied_perceptron.nn.presets import INPUT_CHANNELS, GroundingConfig, NetworkConfig
from embodied_perceptron.nn.refinement import Proposals, RefinementHead, merge_labels, propose, refine
from embodied_perceptron.nn.view_fusion import View, ViewLookup, ViewSamplingConfig, read_levels
from embodied_perceptron.sparse.conv import SparseConv
from embodied_perceptron.sparse.sites import Sites
from embodied_perceptron.sparse.tensor import SparseTensor, rows_where

_REFINEMENT_LEVELS = 3  # levels of the backbone and of the neck that the refinement head samples
ImageLookup = Callable[[int, Sites], Tensor]
# fused levels, finest first -> the sites that pruning keeps
Preference = Callable[[Sequence[SparseTensor]], SiteMask]


@dataclass(frozen=True, eq=False)
class DetectionOutput:
    """Predictions per level, finest first, and the neck's features at the same sites."""

    levels: list[DetectionLevel]
    features: list[SparseTensor]


@dataclass(frozen=True, eq=False)
class SharedFeatures:
    """Features of a batch of scenes that all heads share.

    Attributes:
        sites: the input, at stride 1.
        levels: fused backbone levels, finest first.
        lookup: image features, or None.
        detection: raw predictions and neck features, or None for a network without detection.
    """

    sites: SparseTensor
    levels: list[SparseTensor]
    lookup: ImageLookup | None
    detection: DetectionOutput | None


@dataclass(frozen=True, eq=False)
class CandidateVoxels:
    """Voxels of B scenes for the decoder over voxels, coarsest level first, padded to the same number.

    Attributes:
        features: (B, N, C).
        points_m: (B, N, 3) in the world.
        pad: (B, N) True at padding.
    """

    features: Tensor
    points_m: Tensor
    pad: Tensor

    def of_sentences(self, count: int, scenes: Tensor | None) -> CandidateVoxels:
        """One row per sentence: of the (count,) ``scenes``, or (None) of the single scene of all sentences."""
        if scenes is not None:
            return CandidateVoxels(*(x[scenes] for x in vars(self).values()))
        if len(self.features) == 1 < count:
            return CandidateVoxels(*(x.expand(count, *x.shape[1:]) for x in vars(self).values()))
        return self


@dataclass(frozen=True, eq=False)
class Viewpoint:
    """A gravity-aligned reference frame per scene for sentences.

    Attributes:
        origin_m: (B, 3) on the floor below the viewer.
        yaw_rad: (B,) heading of the viewer about z.
    """

    origin_m: Tensor
    yaw_rad: Tensor

    def rotation(self) -> Tensor:
        """(B, 3, 3) world <- viewpoint."""
        c, s, zero, one = (
            torch.cos(self.yaw_rad),
            torch.sin(self.yaw_rad),
            torch.zeros_like(self.yaw_rad),
            torch.ones_like(self.yaw_rad),
        )
        return torch.stack([c, -s, zero, s, c, zero, zero, zero, one], -1).view(-1, 3, 3)

    def from_world(self, points_m: Tensor) -> Tensor:
        """(B, N, 3) world -> viewpoint."""
        return (points_m - self.origin_m[:, None]) @ self.rotation()

    def boxes_from_world(self, boxes: Tensor) -> Tensor:
        """(B, Q, 9) world -> viewpoint; inverse of :meth:`boxes_to_world`."""
        alpha = boxes[..., 6:7] - self.yaw_rad[:, None, None]
        return torch.cat([self.from_world(boxes[..., :3]), boxes[..., 3:6], alpha, boxes[..., 7:]], dim=-1)

    def boxes_to_world(self, boxes: Tensor) -> Tensor:
        """(..., B, Q, 9) viewpoint -> world; only yaw and position change."""
        centers = boxes[..., :3] @ self.rotation().transpose(1, 2) + self.origin_m[:, None]
        alpha = boxes[..., 6:7] + self.yaw_rad[:, None, None]
        return torch.cat([centers, boxes[..., 3:6], alpha, boxes[..., 7:]], dim=-1)


class PreparedEncoder(Protocol):
    """Interface of image encoders, by torch or ONNX Runtime."""

    def prepare(self, colors: Tensor, size: tuple[int, int]) -> Tensor:
        """(V, H, W, 3) uint8 RGB -> (V, 3, h, w) input."""
        ...

    def __call__(self, images: Tensor) -> list[Tensor]:
        """(V, 3, h, w) -> a map per level."""
        ...


class OccupancyBranch(nn.Module):
    """Projection (where widths differ), dense pyramid, classifiers."""

    def __init__(self, fused_channels: int, in_channels: int, channels: int, levels: int, num_classes: int) -> None:
        super().__init__()
        # without bias empty cells stay zero, so that projecting sites equals projecting the grid
        self.project: nn.Module = nn.Identity()
        if fused_channels != in_channels:
            self.project = nn.Linear(fused_channels, in_channels, bias=False)
        self.pyramid = DensePyramid(in_channels, channels, levels)
        self.head = OccupancyHead(channels, num_classes, levels)
        self.finest, self.all_scales = Graphed(self._finest), Graphed(self._all_scales, trains=True)

    def _finest(self, grid: Tensor) -> Tensor:
        logits: list[Tensor] = self.head(self.pyramid(grid, 1))
        return logits[0]

    def _all_scales(self, grid: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.head(self.pyramid(grid)))

    def forward(
        self,
        level: SparseTensor,
        origin: Sequence[int],
        cells: Sequence[int],
        images: SparseTensor | None,
        scales: int | None = None,
    ) -> list[Tensor]:
        """Fused level, window, image features of all of its cells or None -> logits per scale, finest first."""
        if images is None:
            grid = level.replace(self.project(level.feats)).dense(origin, cells)  # (B, C, X, Y, Z)
        else:
            grid = torch.cat([images.dense(origin, cells), level.dense(origin, cells)], dim=1)
            if not isinstance(self.project, nn.Identity):
                grid = self.project(grid.movedim(1, -1)).movedim(-1, 1)
        if scales == 1:
            return [self.finest(grid)]
        if scales is None or scales == len(self.pyramid.out):
            return list(self.all_scales(grid))
        logits: list[Tensor] = self.head(self.pyramid(grid, scales))
        return logits


class GroundingBranch(nn.Module):
    """Voxel queries: a separate neck or a projection of the shared features, and the decoder."""

    def __init__(
        self, config: GroundingConfig, level_channels: Sequence[int], shared_channels: int, conventions: Conventions
    ) -> None:
        super().__init__()
        self.keep = config.keep
        self.neck: TopDownNeck | None = None
        self.score: SparseConv | None = None
        self.project: nn.Module = nn.Identity()
        if config.own_neck:
            self.neck = TopDownNeck(level_channels, config.channels, config.keep, conventions=conventions)
            self.score = SparseConv(config.channels, 1, kernel_size=1, bias=True)
        elif shared_channels != config.channels:
            self.project = nn.Linear(shared_channels, config.channels)
        self.head = GroundingHead(config, conventions)

    def visual(self, levels: Sequence[SparseTensor], shared: DetectionOutput | None) -> list[SparseTensor]:
        """Voxels for the decoder, per level."""
        if self.neck is not None:
            assert self.score is not None
            score = self.score
            own: list[SparseTensor] = self.neck(levels, lambda _, out: score(out).feats)
            return own
        assert shared is not None
        chosen = []
        for prediction, features in zip(shared.levels, shared.features, strict=True):
            pruning_score = (prediction.class_logits.amax(1) + prediction.center_logits[:, 0]).detach()
            ((rows, bounds),) = rows_where((features.sites, keep_best(pruning_score, features.sites.bounds, self.keep)))
            sites = features.sites.derive(features.keys[rows], features.stride, bounds)
            chosen.append(SparseTensor(sites, self.project(features.feats[rows])))
        return chosen


class ObjectGroundingBranch(nn.Module):
    """Object queries from the detection head, and the decoder."""

    def __init__(self, config: GroundingConfig, shared_channels: int, num_classes: int) -> None:
        super().__init__()
        self.num_queries = config.num_queries
        head = {"ours": ObjectGroundingHead, "scanrefer": ScanReferHead, "butd-detr": ButdDetrHead}[config.matcher]
        self.head = head(shared_channels, num_classes, config)

    def objects(self, shared: DetectionOutput) -> DetectedObjects:
        """Candidate objects, in the world."""
        return detected_objects(shared.levels, shared.features, self.num_queries)

    def forward(
        self, objects: DetectedObjects, tokens: Tensor, token_pad: Tensor, viewpoint: Viewpoint
    ) -> ObjectGroundingOutput:
        """Sentences (S, T, C) about B scenes with one viewpoint each, the same number per scene, those of the first
        scene first -> output with boxes in the world."""
        seen = dataclasses.replace(objects, boxes=viewpoint.boxes_from_world(objects.boxes))
        out: ObjectGroundingOutput = self.head(seen, tokens, token_pad)
        return dataclasses.replace(out, boxes=of_sentences(objects.boxes, len(tokens)).expand_as(out.boxes))


class PerceptionNetwork(nn.Module):
    """Encoders, fusion and heads of one preset.

    Args:
        config: the numbers.
        pretrained_images: load the packaged ImageNet weights of the image encoder, if any.

    Attributes:
        view_sampling: how voxels sample images, see :func:`view_sampling`; not stored with weights.
    """

    def __init__(self, config: NetworkConfig, pretrained_images: bool = False) -> None:
        super().__init__()
        self.config = config
        self.view_sampling = view_sampling(config)
        self.image_encoder: ImageEncoder | None = None
        self.image_projection: nn.ModuleList | None = None
        image_channels: tuple[int, ...] = ()
        if config.uses_images:
            self.image_encoder = build_image_encoder(config, pretrained_images)
            image_channels = self.image_encoder.out_channels
            if config.image.projected_channels:
                self.image_projection = nn.ModuleList(
                    nn.Conv2d(c, p, 1) for c, p in zip(image_channels, config.image.projected_channels, strict=True)
                )
                image_channels = config.image.projected_channels
        self.image_channels = image_channels
        self.image_graph = Graphed(self._packed_maps)
        in_channels = image_channels[0] if config.modality == "rgb" else INPUT_CHANNELS[config.inputs]
        if config.modality == "painting":
            in_channels += image_channels[0]
        self.backbone = MinkResNet(dataclasses.replace(config.backbone, in_channels=in_channels))
        self.unet = UNetDecoder(self.backbone.out_channels) if config.backbone.unet else None
        widths = list(self.backbone.out_channels)
        dense_images = config.occupancy is not None and config.occupancy.dense_images
        if config.modality == "rgbd" and not dense_images:
            widths = [c + i for c, i in zip(widths, image_channels, strict=True)]
        self.level_channels = tuple(widths)
        self.detection: DetectionHead | None = None
        self.second_look: RefinementHead | None = None  # keeps its key in weights files and configurations
        self.occupancy: OccupancyBranch | None = None
        self.grounding: GroundingBranch | ObjectGroundingBranch | None = None
        self._build_heads()

    def _build_heads(self) -> None:
        config = self.config
        if config.detection is not None:
            head = VotingHead if config.detection.neck == "votes" else DetectionHead
            self.detection = head(
                self.level_channels, config.detection, config.num_classes, config.voxel_size_m, config.conventions
            )
            if config.detection.second_look is not None:
                if not config.reads_map:
                    raise ValueError(
                        "the refinement head needs heights and colours of a map: not modality rgb or inputs xyz"
                    )
                self.second_look = RefinementHead(
                    config.detection.second_look, self.refinement_channels(), config.num_classes
                )
        if config.occupancy is not None:
            fused = self.level_channels[config.occupancy_level()]
            if config.occupancy.dense_images and config.uses_images:
                fused += self.image_channels[0]
            o = config.occupancy
            self.occupancy = OccupancyBranch(fused, o.in_channels, o.channels, o.levels, o.num_classes)
        if config.grounding is not None:
            shared = config.detection.channels if config.detection is not None else 0
            if config.grounding.queries == "objects":
                self.grounding = ObjectGroundingBranch(config.grounding, shared, config.num_classes)
            else:
                self.grounding = GroundingBranch(config.grounding, self.level_channels, shared, config.conventions)

    # ------------------------------------------------------------------------------------------------------- features

    def encode_images(
        self,
        colors: Tensor,
        size: tuple[int, int] | None = None,
        encoder: PreparedEncoder | None = None,
        dtype: torch.dtype | None = None,
    ) -> list[Tensor]:
        """(V, H, W, 3) uint8 RGB -> feature maps per level, (V, C, h / s, w / s).

        Args:
            colors: images of one size.
            size: (h, w) of the encoder's input; None = the preset's.
            encoder: replaces the network's own; its maps are still projected here.
            dtype: of the maps; None = as computed. A GPU then computes in float16 where maps are float16.

        Raises ``ValueError`` for a network without images.
        """
        encoder = self.image_encoder if encoder is None else encoder
        if encoder is None:
            raise ValueError(f"a {self.config.modality} network has no image encoder")
        device = next(self.parameters()).device
        size = self.config.image.size if size is None else size
        autocast: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if dtype == torch.float16 and device.type == "cuda":  # without a cache of weights, which a graph would keep
            autocast = torch.autocast(device.type, torch.float16, cache_enabled=False)
        own = self.image_encoder if size == self.config.image.size and self.image_graph.records(device) else None
        with autocast:
            if own is None or encoder is not own:
                return [m if dtype is None else m.to(dtype) for m in self._maps(encoder, colors, size)]
            flat = self.image_graph(colors.to(device))
        levels = zip(own.strides, self.image_channels, strict=True)
        shapes = [(len(colors), size[0] // stride, size[1] // stride, c) for stride, c in levels]
        parts = flat.to(flat.dtype if dtype is None else dtype).split([math.prod(shape) for shape in shapes])
        return [part.view(shape).permute(0, 3, 1, 2) for part, shape in zip(parts, shapes, strict=True)]

    def _maps(self, encoder: PreparedEncoder, colors: Tensor, size: tuple[int, int]) -> list[Tensor]:
        images = encoder.prepare(colors, size)
        maps = [m.to(next(self.parameters()).device) for m in encoder(images)]
        if self.image_projection is None:
            return maps
        return [project(m) for project, m in zip(self.image_projection, maps, strict=True)]

    def _packed_maps(self, colors: Tensor) -> Tensor:
        """The maps of all levels in one row of numbers, channels last."""
        assert self.image_encoder is not None
        maps = self._maps(self.image_encoder, colors, self.config.image.size)
        return torch.cat([m.permute(0, 2, 3, 1).flatten() for m in maps])

    def lookup(self, views: Sequence[Sequence[View]]) -> ImageLookup:
        """Lookup of image features from the views of each scene of a batch."""
        return ViewLookup(views, self.image_channels, self.config.voxel_size_m, self.view_sampling)

    def forward(
        self,
        sites: SparseTensor,
        lookup: ImageLookup | None = None,
        prefer: Preference | None = None,
        on_levels: Callable[[SharedFeatures], None] | None = None,
    ) -> SharedFeatures:
        """Run backbone, fusion and detection neck over a batch of scenes.

        Args:
            sites, lookup: see :meth:`encode`.
            prefer: for training: sites that the detection neck must keep.
            on_levels: called with the levels before the neck runs.
        """
        levels = self.encode(sites, lookup)
        if on_levels is not None:
            on_levels(SharedFeatures(sites, levels, lookup, None))
        detection: DetectionOutput | None = None
        if self.detection is not None:
            detection = self.detect(levels, None if prefer is None else prefer(levels))
        return SharedFeatures(sites, levels, lookup, detection)

    def encode(self, x: SparseTensor, lookup: ImageLookup | None = None) -> list[SparseTensor]:
        """Input sites -> fused levels, finest first.

        Args:
            x: input features at stride 1 (see :class:`NetworkConfig`: ``inputs``); ``rgb`` uses its sites only.
            lookup: image features; needed by every modality but ``depth``.
        """
        if self.config.uses_images and lookup is None:
            raise ValueError(f"a {self.config.modality} network needs image features")
        if lookup is not None and self.config.modality == "rgb":
            x = x.replace(lookup(0, x.sites))
        elif lookup is not None and self.config.modality == "painting":
            x = x.replace(torch.cat([x.feats, lookup(0, x.sites)], dim=1))
        levels: list[SparseTensor] = self.backbone(x)
        if self.unet is not None:
            levels = self.unet(levels)
        if lookup is None or self.level_channels == tuple(self.backbone.out_channels):
            return levels
        shown = read_levels(lookup, [t.sites for t in levels])
        return [t.replace(torch.cat([t.feats, images], dim=1)) for t, images in zip(levels, shown, strict=True)]

    def detect(self, levels: Sequence[SparseTensor], prefer: SiteMask | None = None) -> DetectionOutput:
        """Fused levels -> raw predictions; :func:`~embodied_perceptron.nn.detection.decode_detections` makes boxes.

        ``prefer``: see :meth:`TopDownNeck.forward`; for training.
        """
        if self.detection is None:
            raise ValueError("this network has no detection head")
        return DetectionOutput(*self.detection(levels, prefer))

    # ---------------------------------------------------------------------------------------------------------- heads

    def boxes(self, features: SharedFeatures, min_score: float = 0.0) -> list[BoxPredictions]:
        """Predictions -> each scene's boxes above ``min_score`` and the preset's own limit, best first. A network with
        presence also gives boxes of unknown objects, with label ``num_classes``.

        Raises ``ValueError`` for a network without detection.
        """
        config = self.config.detection
        if config is None or features.detection is None:
            raise ValueError("this network has no detection head")
        lowest = max(config.min_score, min_score)
        if self.second_look is None:
            return self.first_boxes(features.detection, lowest)
        return [refine(self.second_look, p, lowest, config.iou_threshold) for p in self.proposals(features)]

    def first_boxes(self, detection: DetectionOutput, min_score: float) -> list[BoxPredictions]:
        """As :meth:`boxes`, without refinement."""
        config = self.config.detection
        assert config is not None
        return decode_detections(
            detection.levels,
            config.max_per_level,
            min_score,
            config.iou_threshold,
            self.config.conventions,
            config.max_candidates,
        )

    def refinement_channels(self) -> tuple[int, ...]:
        """Channels of the sources of refinement: input sites, and the finest levels before and after the neck."""
        assert self.config.detection is not None
        levels = self.level_channels[:_REFINEMENT_LEVELS]
        return (INPUT_CHANNELS[self.config.inputs], *levels, *(self.config.detection.channels for _ in levels))

    def proposals(self, features: SharedFeatures, limit: int = 0, min_score: float | None = None) -> list[Proposals]:
        """Input of refinement per scene, for ``limit`` boxes (0 = as configured) with a score above ``min_score`` (None
        = as configured). Raises ``ValueError`` for a network without refinement."""
        config, detection, sites = self.config.detection, features.detection, features.sites
        if config is None or config.second_look is None or detection is None:
            raise ValueError("this network has no refinement head")
        sources = (sites, *features.levels[:_REFINEMENT_LEVELS], *detection.features[:_REFINEMENT_LEVELS])
        lowest = max(config.min_score, config.second_look.min_score) if min_score is None else min_score
        proposals = []
        for sample, found in enumerate(self.first_boxes(detection, lowest)):
            rows, scores = merge_labels(found, self.config.num_classes, limit or config.second_look.things)
            boxes, first = found.boxes[rows], scores[:, : self.config.num_classes]
            floor_z_m = _floor_z_m(sites, sample, self.config.voxel_size_m)
            proposals.append(
                propose(sources, sample, boxes, first, self.config.voxel_size_m, floor_z_m, config.second_look.cells)
            )
        return proposals

    def occupy(
        self,
        levels: Sequence[SparseTensor],
        origin: Sequence[int],
        lookup: ImageLookup | None = None,
        scales: int | None = None,
    ) -> list[Tensor]:
        """Fused levels -> logits (B, classes + 1, X, Y, Z) per scale, finest first.

        Args:
            levels: of :meth:`encode`.
            origin: lower corner of the window in input sites, a multiple of the cells' stride.
            lookup: image features, sampled at every cell with ``dense_images``.
            scales: number of scales to compute, finest first; None = all, for training.
        """
        config = self.config.occupancy
        if self.occupancy is None or config is None:
            raise ValueError("this network has no occupancy head")
        level = levels[self.config.occupancy_level()]
        images: SparseTensor | None = None
        if config.dense_images and self.config.uses_images:
            if lookup is None:
                raise ValueError("this occupancy head needs image features")
            cells = window_sites(level.sites, origin, config.cells)
            images = SparseTensor(cells, lookup(0, cells))
        logits: list[Tensor] = self.occupancy(level, origin, config.cells, images, scales)
        return logits

    def occupy_scenes(
        self,
        features: SharedFeatures,
        origins: Mapping[int, Sequence[int]],
        views: Sequence[Sequence[View]] = (),
        scales: int | None = None,
    ) -> list[Tensor]:
        """:meth:`occupy` for some scenes of a batch, each on its own window.

        Args:
            features: of the batch.
            origins: scene (index in the batch) -> lower corner of its window.
            views: of every scene of the batch; needed with ``dense_images``.
            scales: see :meth:`occupy`.
        """
        config = self.config.occupancy
        if config is not None and config.dense_images:  # images are sampled at the cells, scene by scene
            parts = []
            for scene, origin in origins.items():
                lookup = self.lookup([views[scene]]) if self.config.uses_images else None
                parts.append(self.occupy([_scene(t, scene) for t in features.levels], origin, lookup, scales))
            return [torch.cat(scale) for scale in zip(*parts, strict=True)]
        level = self.config.occupancy_level()
        levels = list(features.levels)
        levels[level] = join_samples([_scene(levels[level], scene, origin) for scene, origin in origins.items()])
        return self.occupy(levels, (0, 0, 0), None, scales)

    def candidates(
        self, levels: Sequence[SparseTensor], detection: DetectionOutput | None
    ) -> CandidateVoxels | DetectedObjects:
        """Candidate voxels or objects for grounding, in the world. Raises ``ValueError`` without grounding."""
        if self.grounding is None:
            raise ValueError("this network has no grounding head")
        if isinstance(self.grounding, GroundingBranch):
            visual = self.grounding.visual(levels, detection)
            return _voxels(visual, self.config.voxel_size_m, self.config.conventions)
        assert detection is not None
        return self.grounding.objects(detection)

    def ground(
        self,
        candidates: CandidateVoxels | DetectedObjects,
        tokens: Tensor,
        token_pad: Tensor,
        viewpoint: Viewpoint | None = None,
        scenes: Tensor | None = None,
    ) -> GroundingOutput:
        """Sentences -> boxes in the world and their alignment with each token.

        Args:
            candidates: of :meth:`candidates`.
            tokens: (S, T, C) text features; token_pad: (S, T) True at padding.
            viewpoint: one for all, or one per sentence; None for networks in world coordinates (``inputs`` is ``xyz``).
            scenes: (S,) scene of each sentence; None = one sentence per scene, or all about a single scene.

        Raises:
            ValueError: a missing viewpoint, a sentence without tokens, or a scene without voxels as queries.
        """
        if self.grounding is None:
            raise ValueError("this network has no grounding head")
        if viewpoint is None and self.config.inputs != "xyz":
            raise ValueError("this network needs a viewpoint for sentences")
        if isinstance(candidates, DetectedObjects):
            assert isinstance(self.grounding, ObjectGroundingBranch)
            assert viewpoint is not None
            if scenes is not None or len(candidates.boxes) != len(viewpoint.yaw_rad):  # one viewpoint per sentence
                rows = torch.zeros(len(tokens), dtype=torch.int64) if scenes is None else scenes
                candidates = candidates.scenes(rows.to(candidates.boxes.device, non_blocking=True))
            answered: GroundingOutput = self.grounding(candidates, tokens, token_pad, viewpoint)
            return answered
        assert isinstance(self.grounding, GroundingBranch)
        mine = candidates.of_sentences(len(tokens), scenes)
        points = mine.points_m if viewpoint is None else viewpoint.from_world(mine.points_m)
        out: GroundingOutput = self.grounding.head(mine.features, points, mine.pad, tokens, token_pad)
        return out if viewpoint is None else dataclasses.replace(out, boxes=viewpoint.boxes_to_world(out.boxes))


def _floor_z_m(sites: SparseTensor, sample: int, voxel_size_m: float) -> Tensor:
    """Floor height below the heights of a scene's input sites, a scalar; 0 without sites."""
    first, end = sites.sites.bounds[sample : sample + 2]
    if first == end:
        return sites.feats.new_zeros(())
    middle_m = (sites.coords[first:end, 2] + 0.5) * voxel_size_m
    return (middle_m - sites.feats[first:end, 0]).median()


def view_sampling(config: NetworkConfig) -> ViewSamplingConfig:
    """Sampling of views: with an occlusion test, unless the conventions have none or the network has no depth."""
    margin_m = None if config.modality == "rgb" else config.conventions.occlusion_margin_m
    return ViewSamplingConfig(occlusion_margin_m=margin_m, conventions=config.conventions)


def build_image_encoder(config: NetworkConfig, pretrained: bool) -> ImageEncoder:
    """The image encoder of a configuration. ``ValueError`` names an unknown one."""
    image = config.image
    if image.encoder == "resnet50":
        encoder: ImageEncoder = ResNetEncoder(image.base_width)
    else:
        encoder = mobile_encoder(image.encoder, pretrained)
    return PyramidEncoder(encoder, image.pyramid_channels) if image.pyramid_channels else encoder


def window_sites(like: Sites, origin: Sequence[int], cells: Sequence[int]) -> Sites:
    """All sites of a window at the stride of ``like``, for every sample.

    ``origin`` is in input sites and a multiple of the stride.
    """
    axes = [torch.arange(n, device=like.device) * like.stride + o for n, o in zip(cells, origin, strict=True)]
    coords = torch.cartesian_prod(*axes)
    samples = torch.arange(like.batch_size, device=like.device).repeat_interleave(len(coords))
    coords = coords.repeat(like.batch_size, 1)
    return like.derive(pack_site_keys(samples, coords), like.stride)


def _scene(x: SparseTensor, scene: int, origin: Sequence[int] | None = None) -> SparseTensor:
    """One scene of a batch, rows in order; ``origin`` (a multiple of the stride) becomes (0, 0, 0)."""
    rows = slice(x.sites.bounds[scene], x.sites.bounds[scene + 1])
    coords = x.coords[rows]
    if origin is not None:
        coords = coords - torch.tensor(list(origin), device=x.device)
    keys = pack_site_keys(torch.zeros(len(coords), dtype=torch.int64, device=coords.device), coords)
    return SparseTensor(Sites(keys, x.stride, 1, x.sites.engine), x.feats[rows])


def _voxels(levels: Sequence[SparseTensor], voxel_size_m: float, conventions: Conventions) -> CandidateVoxels:
    """Voxels of all levels, per scene."""
    batch_size = levels[0].batch_size
    feats, points = [], []
    for sample in range(batch_size):
        f, p = [], []
        for level in reversed(levels):
            rows = slice(level.sites.bounds[sample], level.sites.bounds[sample + 1])
            f.append(level.feats[rows])
            p.append(conventions.site_points(level.sites, voxel_size_m, level.feats.dtype)[rows])
        feats.append(torch.cat(f))
        points.append(torch.cat(p))
    pad_feats = nn.utils.rnn.pad_sequence(feats, batch_first=True)
    pad_points = nn.utils.rnn.pad_sequence(points, batch_first=True)
    lengths = torch.tensor([len(f) for f in feats]).to(pad_feats.device, non_blocking=True)
    pad = torch.arange(pad_feats.shape[1], device=pad_feats.device)[None] >= lengths[:, None]
    return CandidateVoxels(pad_feats, pad_points, pad)
