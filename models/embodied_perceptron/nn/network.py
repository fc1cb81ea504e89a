"""The whole network: what the presets wire together, and nothing else.

Images enter through a *lookup*: ``lookup(level, sites)`` returns the averaged level-``level`` image features at those
sites, (N, C). Training makes it from a batch of views, the live volume from its running sums; the network cannot tell.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from embodied_perceptron.geometry.transforms import pack_site_keys
from embodied_perceptron.nn.backbone import BackboneConfig, MinkResNet
from embodied_perceptron.nn.detection import DetectionHead, DetectionLevel
from embodied_perceptron.nn.grounding import GroundingHead, GroundingOutput
from embodied_perceptron.nn.image_encoder import ImageEncoder, PyramidEncoder, ResNetEncoder, mobile_encoder
from embodied_perceptron.nn.neck import SiteMask, TopDownNeck, keep_best
from embodied_perceptron.nn.object_grounding import (
    DetectedObjects,
    ObjectGroundingHead,
    ObjectGroundingOutput,
    detected_objects,
)
from embodied_perceptron.nn.occupancy import DensePyramid, OccupancyHead
from embodied_perceptron.nn.official import Conventions
from embodied_perceptron.nn.presets import INPUT_CHANNELS, ROTATION_CHANNELS, GroundingConfig, NetworkConfig
from embodied_perceptron.sparse.conv import SparseConv
from embodied_perceptron.sparse.tensor import Sites, SparseTensor

ImageLookup = Callable[[int, Sites], Tensor]


@dataclass(frozen=True, eq=False)
class DetectionOutput:
    """Predictions per level, finest first, and the neck's features at the same sites."""

    levels: list[DetectionLevel]
    features: list[SparseTensor]


@dataclass(frozen=True, eq=False)
class Viewpoint:
    """A gravity-aligned frame per scene in which sentences are understood.

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
        """(B, Q, 9) world -> viewpoint, undone by :meth:`boxes_to_world`."""
        alpha = boxes[..., 6:7] - self.yaw_rad[:, None, None]
        return torch.cat([self.from_world(boxes[..., :3]), boxes[..., 3:6], alpha, boxes[..., 7:]], dim=-1)

    def boxes_to_world(self, boxes: Tensor) -> Tensor:
        """(..., B, Q, 9) viewpoint -> world; only yaw and position change, so tilt stays what it is."""
        centers = boxes[..., :3] @ self.rotation().transpose(1, 2) + self.origin_m[:, None]
        alpha = boxes[..., 6:7] + self.yaw_rad[:, None, None]
        return torch.cat([centers, boxes[..., 3:6], alpha, boxes[..., 7:]], dim=-1)


class OccupancyBranch(nn.Module):
    """Projection (where widths differ), dense pyramid, classifiers."""

    def __init__(self, fused_channels: int, in_channels: int, channels: int, levels: int, num_classes: int) -> None:
        super().__init__()
        # without bias: an empty cell stays zero, so that projecting sites is the same as projecting the grid
        self.project: nn.Module = nn.Identity()
        if fused_channels != in_channels:
            self.project = nn.Linear(fused_channels, in_channels, bias=False)
        self.pyramid = DensePyramid(in_channels, channels, levels)
        self.head = OccupancyHead(channels, num_classes, levels)

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
        logits: list[Tensor] = self.head(self.pyramid(grid, scales))
        return logits


class GroundingBranch(nn.Module):
    """Voxel queries: a neck of its own where the preset says so, the projection of shared features otherwise, and the
    decoder."""

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
        self.head = GroundingHead(
            config.channels,
            config.text_channels,
            config.num_queries,
            config.layers,
            config.heads,
            config.hidden_channels,
            config.box_coder,
            6 + ROTATION_CHANNELS[config.rotation],
            config.alignment,
            conventions,
        )

    def visual(self, levels: Sequence[SparseTensor], shared: DetectionOutput | None) -> list[SparseTensor]:
        """The voxels that the decoder reads, per level."""
        if self.neck is not None:
            assert self.score is not None
            score = self.score
            own: list[SparseTensor] = self.neck(levels, lambda _, out: score(out).feats)
            return own
        assert shared is not None
        chosen = []
        for prediction, features in zip(shared.levels, shared.features, strict=True):
            pruning_score = (prediction.class_logits.amax(1) + prediction.center_logits[:, 0]).detach()
            rows = keep_best(pruning_score, features.sites.bounds, self.keep).nonzero()[:, 0]
            sites = features.sites.derive(features.keys[rows], features.stride)
            chosen.append(SparseTensor(sites, self.project(features.feats[rows])))
        return chosen


class ObjectGroundingBranch(nn.Module):
    """Object queries: what the detection head finds, and the decoder."""

    def __init__(self, config: GroundingConfig, shared_channels: int, num_classes: int) -> None:
        super().__init__()
        self.num_queries = config.num_queries
        self.head = ObjectGroundingHead(
            shared_channels,
            num_classes,
            config.text_channels,
            config.channels,
            config.layers,
            config.heads,
            config.hidden_channels,
            config.pair_channels,
        )

    def objects(self, shared: DetectionOutput) -> DetectedObjects:
        """The things that the decoder chooses among, in the world."""
        return detected_objects(shared.levels, shared.features, self.num_queries)

    def forward(
        self, objects: DetectedObjects, tokens: Tensor, token_pad: Tensor, viewpoint: Viewpoint
    ) -> ObjectGroundingOutput:
        """Sentences (S, T, C) about one scene, seen from one viewpoint -> answers with boxes in the world."""
        seen = dataclasses.replace(objects, boxes=viewpoint.boxes_from_world(objects.boxes))
        out: ObjectGroundingOutput = self.head(seen, tokens, token_pad)
        return dataclasses.replace(out, boxes=objects.boxes.expand_as(out.boxes))


class PerceptionNetwork(nn.Module):
    """Encoders, fusion and heads of one preset.

    Args:
        config: the numbers.
        pretrained_images: load packaged ImageNet weights where the image encoder has some.
    """

    def __init__(self, config: NetworkConfig, pretrained_images: bool = False) -> None:
        super().__init__()
        self.config = config
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
        self.backbone = MinkResNet(_backbone_config(config, image_channels))
        widths = list(self.backbone.out_channels)
        dense_images = config.occupancy is not None and config.occupancy.dense_images
        if config.modality == "rgbd" and not dense_images:
            widths = [c + i for c, i in zip(widths, image_channels, strict=True)]
        self.level_channels = tuple(widths)
        self.detection: DetectionHead | None = None
        self.occupancy: OccupancyBranch | None = None
        self.grounding: GroundingBranch | ObjectGroundingBranch | None = None
        self._build_heads()

    def _build_heads(self) -> None:
        config = self.config
        if config.detection is not None:
            self.detection = DetectionHead(
                self.level_channels,
                config.detection.channels,
                config.num_classes,
                config.voxel_size_m,
                config.detection.keep,
                ROTATION_CHANNELS[config.detection.rotation],
                config.detection.lateral_channels,
                config.detection.pruning,
                config.detection.anchor_shift,
                config.conventions,
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

    def encode_images(self, images: Tensor) -> list[Tensor]:
        """(V, 3, h, w) images from ``image_encoder.prepare`` -> maps per level, (V, C, h / s, w / s)."""
        if self.image_encoder is None:
            raise ValueError(f"a {self.config.modality} network sees no images")
        return self.project_images(self.image_encoder(images))

    def project_images(self, maps: list[Tensor]) -> list[Tensor]:
        """The encoder's maps -> those that voxels read."""
        if self.image_projection is None:
            return maps
        return [project(m) for project, m in zip(self.image_projection, maps, strict=True)]

    def encode(self, x: SparseTensor, lookup: ImageLookup | None = None) -> list[SparseTensor]:
        """Input sites -> fused levels, finest first.

        Args:
            x: input features at stride 1 (see :class:`NetworkConfig`: ``inputs``); any features for ``rgb``, whose
                sites alone count.
            lookup: image features; needed by every modality but ``depth``.
        """
        if self.config.uses_images and lookup is None:
            raise ValueError(f"a {self.config.modality} network needs image features")
        if lookup is not None and self.config.modality == "rgb":
            x = x.replace(lookup(0, x.sites))
        elif lookup is not None and self.config.modality == "painting":
            x = x.replace(torch.cat([x.feats, lookup(0, x.sites)], dim=1))
        levels: list[SparseTensor] = self.backbone(x)
        if lookup is None or self.level_channels == tuple(self.backbone.out_channels):
            return levels
        return [t.replace(torch.cat([t.feats, lookup(i, t.sites)], dim=1)) for i, t in enumerate(levels)]

    def detect(self, levels: Sequence[SparseTensor], prefer: SiteMask | None = None) -> DetectionOutput:
        """Fused levels -> raw predictions; :func:`~embodied_perceptron.nn.detection.decode_detections` makes boxes.

        ``prefer``: see :meth:`TopDownNeck.forward`; for training.
        """
        if self.detection is None:
            raise ValueError("this network has no detection head")
        return DetectionOutput(*self.detection(levels, prefer))

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
            lookup: image features, read at every cell where the preset has ``dense_images``.
            scales: only so many, the finest; the others are for training.
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

    def ground(
        self,
        levels: Sequence[SparseTensor],
        shared: DetectionOutput | None,
        tokens: Tensor,
        token_pad: Tensor,
        viewpoint: Viewpoint | None = None,
    ) -> GroundingOutput:
        """Sentences -> boxes in the world and how well each fits each token.

        One sentence per scene of the batch, or any number about a single scene.

        Args:
            levels: of :meth:`encode`.
            shared: of :meth:`detect`, for presets whose grounding reads its neck.
            tokens: (B, T, C) text features; token_pad: (B, T) True at padding.
            viewpoint: needed unless the preset reads world coordinates (``inputs`` is ``xyz``).

        Raises:
            ValueError: a missing viewpoint, a sentence without tokens; where voxels are the queries, a scene without
                any.
        """
        if self.grounding is None:
            raise ValueError("this network has no grounding head")
        if viewpoint is None and self.config.inputs != "xyz":
            raise ValueError("this network understands sentences from a viewpoint: none was given")
        if isinstance(self.grounding, ObjectGroundingBranch):
            assert shared is not None
            assert viewpoint is not None
            return _ground_objects(self.grounding, shared, tokens, token_pad, viewpoint)
        visual, coords, pad = pad_samples(
            self.grounding.visual(levels, shared), self.config.voxel_size_m, self.config.conventions
        )
        if len(visual) == 1 < len(tokens):  # many sentences about one scene
            visual, coords, pad = (x.expand(len(tokens), *x.shape[1:]) for x in (visual, coords, pad))
        if viewpoint is not None:
            coords = viewpoint.from_world(coords)
        out: GroundingOutput = self.grounding.head(visual, coords, pad, tokens, token_pad)
        return out if viewpoint is None else dataclasses.replace(out, boxes=viewpoint.boxes_to_world(out.boxes))


def _ground_objects(
    branch: ObjectGroundingBranch, shared: DetectionOutput, tokens: Tensor, token_pad: Tensor, viewpoint: Viewpoint
) -> GroundingOutput:
    """See :meth:`PerceptionNetwork.ground`."""
    objects = branch.objects(shared)
    if len(objects.boxes) == 1 == len(viewpoint.yaw_rad):
        found: GroundingOutput = branch(objects, tokens, token_pad, viewpoint)
        return found
    answers: list[ObjectGroundingOutput] = []
    for row in range(len(tokens)):
        scene = objects if len(objects.boxes) == 1 else objects.scene(row)
        speaker = Viewpoint(viewpoint.origin_m[row : row + 1], viewpoint.yaw_rad[row : row + 1])
        answers.append(branch(scene, tokens[row : row + 1], token_pad[row : row + 1], speaker))
    return GroundingOutput(
        boxes=torch.cat([a.boxes for a in answers], dim=1),
        logits=torch.cat([a.logits for a in answers], dim=1),
        hidden=torch.cat([a.hidden for a in answers], dim=1),
        query_valid=torch.cat([a.query_valid for a in answers]),
    )


def build_image_encoder(config: NetworkConfig, pretrained: bool) -> ImageEncoder:
    """The image encoder of a configuration. ``ValueError`` names an unknown one."""
    image = config.image
    if image.encoder == "resnet50":
        encoder: ImageEncoder = ResNetEncoder(image.base_width)
    else:
        encoder = mobile_encoder(image.encoder, pretrained)
    return PyramidEncoder(encoder, image.pyramid_channels) if image.pyramid_channels else encoder


def _backbone_config(config: NetworkConfig, image_channels: Sequence[int]) -> BackboneConfig:
    channels = INPUT_CHANNELS[config.inputs]
    if config.modality == "rgb":
        channels = image_channels[0]
    elif config.modality == "painting":
        channels += image_channels[0]
    return dataclasses.replace(config.backbone, in_channels=channels)


def window_sites(like: Sites, origin: Sequence[int], cells: Sequence[int]) -> Sites:
    """Every site of a window at the stride of ``like``, for every sample: a dense grid as sparse sites.

    ``origin`` is in input sites and a multiple of the stride.
    """
    axes = [torch.arange(n, device=like.device) * like.stride + o for n, o in zip(cells, origin, strict=True)]
    coords = torch.cartesian_prod(*axes)
    samples = torch.arange(like.batch_size, device=like.device).repeat_interleave(len(coords))
    coords = coords.repeat(like.batch_size, 1)
    return like.derive(pack_site_keys(samples, coords), like.stride)


def pad_samples(
    levels: Sequence[SparseTensor], voxel_size_m: float, conventions: Conventions
) -> tuple[Tensor, Tensor, Tensor]:
    """Levels -> (B, N, C) features, (B, N, 3) points in metres, (B, N) True where padded; coarsest level first."""
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
    lengths = torch.tensor([len(f) for f in feats], device=pad_feats.device)
    pad = torch.arange(pad_feats.shape[1], device=pad_feats.device)[None] >= lengths[:, None]
    return pad_feats, pad_points, pad
