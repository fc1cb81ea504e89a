"""Configuration of networks: one frozen tree, three presets, and the variants of the paper's tables.

``paper``: MinkResNet34 on 0.01 m sites with raw xyz, ResNet-50 images, RoBERTa text; the numbers of EmbodiedScan
(CVPR 2024). ``tiny`` and ``base``: the same architecture on 0.04 m and 0.02 m sites, gravity-aligned (height above
the floor and colour, never absolute x and y), one sparse stream for all three heads.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Literal

from embodied_perceptron.geometry.occupancy_grid import BENCHMARK_GRID
from embodied_perceptron.geometry.suppression import NMS_IOU, PUBLISHED_NMS_IOU
from embodied_perceptron.nn.backbone import BackboneConfig
from embodied_perceptron.nn.official import CORRECTED, PUBLISHED, RELEASED, Conventions

Modality = Literal["rgbd", "depth", "rgb", "painting"]
Inputs = Literal["xyz", "height_color", "height_color_offset"]
Pruning = Literal["class", "object"]
RotationCoder = Literal["sixd", "euler"]
Neck = Literal["top-down", "votes"]
Matcher = Literal["ours", "scanrefer", "butd-detr"]
Variant = Literal["ours", "fcaf3d", "imvoxelnet", "votenet", "minkunet", "no-fpn", "scanrefer", "butd-detr"]
MODALITIES: tuple[Modality, ...] = ("rgbd", "depth", "rgb", "painting")
PRESETS = ("tiny", "base", "paper")
TASKS = ("detection", "occupancy", "grounding")
ROTATION_CHANNELS: dict[str, int] = {"sixd": 6, "euler": 3}
DECODING = ("max_per_level", "min_score", "iou_threshold", "max_candidates")  # fields of DetectionConfig
INPUT_CHANNELS: dict[str, int] = {"xyz": 3, "height_color": 5, "height_color_offset": 8}


@dataclass(frozen=True)
class ImageConfig:
    """Image encoder.

    Attributes:
        encoder: ``resnet50`` with ``base_width``, or the name of a mobile encoder.
        base_width: of a ResNet.
        pyramid_channels: channels of a feature pyramid behind the encoder; 0 = none.
        projected_channels: channels per level after a 1x1 convolution; empty = the encoder's own. Projecting before
            lifting equals projecting after it (averaging is linear) and shrinks a keyframe's features several times.
        size: (height, width) that images are resized to.
    """

    encoder: str = "resnet50"
    base_width: int = 16
    pyramid_channels: int = 0
    projected_channels: tuple[int, ...] = ()
    size: tuple[int, int] = (480, 480)


@dataclass(frozen=True)
class RefinementConfig:
    """See :class:`~embodied_perceptron.nn.refinement.RefinementHead`.

    Attributes:
        cells: per edge of the grid in a box.
        things: number of boxes of a scene that are refined, the best.
        min_score: detection score from which on boxes are refined; suppressing lower ones costs more than refining.
        channels: of each point of the grid.
        near_channels, whole_channels: of the two convolutions over it.
        said_channels: of the detection's log-odds.
        place_channels: of size and height.
        hidden_channels: of the two joint layers.
        dropout: in training.
        share: factor of the change to the log-odds of classes. The head is overconfident in homes that it has not seen;
            chosen on validation homes.
    """

    cells: int = 5
    things: int = 160
    min_score: float = 0.05
    share: float = 0.4
    channels: int = 32
    near_channels: int = 48
    whole_channels: int = 128
    said_channels: int = 64
    place_channels: int = 32
    hidden_channels: int = 192
    dropout: float = 0.4


@dataclass(frozen=True)
class DetectionConfig:
    """Numbers of a :class:`~embodied_perceptron.nn.detection.DetectionHead` and of ``decode_detections``.

    Attributes:
        channels: of the neck's outputs.
        keep, lateral_channels: see :class:`~embodied_perceptron.nn.backbone.TopDownNeck`.
        pruning: score by which sites of the next finer level are kept. ``class``: the best class score, as published. A
            box is learned on one level only, so coarser cells learn that nothing is there, and small objects are pruned
            first: harmless while nearly all sites are kept (``paper``). ``object``: an objectness score (after GSDN,
            Gwak et al., ECCV 2020), learned at every cell that an object of a finer level reaches into; sites are then
            selected before computing at them (the neck's ``prune_first``).
        rotation: 6-D or Euler angles.
        anchor_shift: a site's regression shifts the origin of its face distances. Distances are not negative, so a box
            always contains their origin; without a shift no box could be thinner than the distance to a site.
        presence: an additional output, learned at all objects including those of no known class, which distinguishes
            unknown objects from none.
        max_per_level, min_score, iou_threshold, max_candidates: of decoding, not of the trained weights
            (:func:`with_current_decoding`).
        second_look: the refinement head (its key in files); None for older weights.
        neck: the pyramid, or a baseline of the paper's tables (:mod:`~embodied_perceptron.nn.baselines`).
    """

    channels: int = 128
    keep: int = 20_000
    lateral_channels: int = 0
    pruning: Pruning = "class"
    rotation: RotationCoder = "sixd"
    anchor_shift: bool = False
    presence: bool = False
    max_per_level: int = 1000
    min_score: float = 0.01
    iou_threshold: float = PUBLISHED_NMS_IOU
    max_candidates: int = 0
    second_look: RefinementConfig | None = None
    neck: Neck = "top-down"

    @property
    def detects_unnamed(self) -> bool:
        """Whether it detects objects of unknown classes."""
        return self.presence or self.second_look is not None


@dataclass(frozen=True)
class OccupancyConfig:
    """The dense grid and its network.

    Attributes:
        cells: of the window, per axis.
        cell_size_m: of the finest scale.
        origin_m: lower corner of the window relative to its anchor (the scene's origin for ``paper``; the point on the
            floor below the window's centre otherwise).
        in_channels: of the dense pyramid; other widths are projected to it.
        channels: of every scale.
        levels: scales.
        num_classes: semantic classes, without empty.
        dense_images: sample image level 0 at every cell and concatenate (the paper's dense stream).
    """

    cells: tuple[int, int, int] = BENCHMARK_GRID.shape
    cell_size_m: float = BENCHMARK_GRID.cell_m
    origin_m: tuple[float, float, float] = BENCHMARK_GRID.origin_m
    in_channels: int = 768
    channels: int = 128
    levels: int = 3
    num_classes: int = 80
    dense_images: bool = True


@dataclass(frozen=True)
class GroundingConfig:
    """Numbers of a :class:`~embodied_perceptron.nn.grounding.GroundingHead` or
    :class:`~embodied_perceptron.nn.grounding.ObjectGroundingHead`.

    Attributes:
        queries: ``voxels`` that match a token, or detected ``objects``.
        own_neck: for voxels: a separate neck (``paper``); otherwise the detection neck's features are used.
        keep: for voxels: sites kept per level.
        box_coder, rotation, alignment: for voxels.
        pair_channels: for objects: of the embedding of a pair.
        matcher: for objects: the decoder, or a baseline of the paper's tables
            (:mod:`~embodied_perceptron.nn.baselines`).
    """

    queries: Literal["voxels", "objects"] = "voxels"
    channels: int = 256
    text_encoder: str = "roberta-base"
    text_channels: int = 768
    own_neck: bool = True
    keep: int = 1000
    num_queries: int = 256
    layers: int = 6
    heads: int = 8
    hidden_channels: int = 2048
    box_coder: Literal["offsets", "faces"] = "offsets"
    rotation: Literal["sixd", "euler"] = "sixd"
    alignment: Literal["projected", "dot"] = "projected"
    pair_channels: int = 32
    matcher: Matcher = "ours"


@dataclass(frozen=True)
class NetworkConfig:
    """Everything about one network.

    Attributes:
        name: of the preset it comes from.
        voxel_size_m: edge of an input site.
        max_sites: inputs with more sites are thinned, the same ones every time.
        modality: geometry with images lifted to every level (``rgbd``), geometry alone (``depth``), images on a dense
            grid (``rgb``), or images at the input sites only (``painting``).
        inputs: features of an input site, see :func:`~embodied_perceptron.nn.input_features.input_from_points`.
        official: use the :attr:`conventions` of the released code, including its faults.
        refined: let ``paper`` read images and decode boxes as ``tiny`` and ``base`` do, not as published.
    """

    name: str
    voxel_size_m: float
    max_sites: int
    num_classes: int
    backbone: BackboneConfig
    modality: Modality = "rgbd"
    inputs: Inputs = "height_color_offset"
    image: ImageConfig = field(default_factory=ImageConfig)
    detection: DetectionConfig | None = None
    occupancy: OccupancyConfig | None = None
    grounding: GroundingConfig | None = None
    official: bool = False
    refined: bool = False

    def __post_init__(self) -> None:
        if self.voxel_size_m <= 0:
            raise ValueError(f"voxel_size_m must be positive, got {self.voxel_size_m}")
        if self.modality not in MODALITIES:
            raise ValueError(f"modality must be rgbd, depth, rgb or painting, got {self.modality!r}")
        if self.inputs not in INPUT_CHANNELS:
            raise ValueError(f"inputs must be one of {sorted(INPUT_CHANNELS)}, got {self.inputs!r}")
        if self.grounding is not None and not self.grounding.own_neck and self.detection is None:
            raise ValueError("grounding without its own neck needs a detection head")
        if self.grounding is not None and self.grounding.queries == "objects" and self.inputs == "xyz":
            raise ValueError("grounding of objects needs a viewpoint: inputs must not be world coordinates (xyz)")
        if self.occupancy is not None:
            self.occupancy_level()  # raises when no level has the cells' stride

    @property
    def conventions(self) -> Conventions:
        if self.official:
            return RELEASED
        return PUBLISHED if self.name == "paper" and not self.refined else CORRECTED

    @property
    def uses_images(self) -> bool:
        return self.modality != "depth"

    @property
    def reads_map(self) -> bool:
        """Whether input sites are means over the map's voxels, not sampled points or a whole grid."""
        return self.inputs != "xyz" and self.modality != "rgb"

    def occupancy_level(self) -> int:
        """Index of the backbone level whose stride is one occupancy cell. ``ValueError`` when there is none."""
        assert self.occupancy is not None
        stride = round(self.occupancy.cell_size_m / self.voxel_size_m)
        if abs(stride * self.voxel_size_m - self.occupancy.cell_size_m) > 1e-9 or stride not in self.backbone.strides:
            raise ValueError(
                f"no backbone level has cells of {self.occupancy.cell_size_m} m: strides {self.backbone.strides} of "
                f"{self.voxel_size_m} m"
            )
        return self.backbone.strides.index(stride)


def network_config(
    preset: str, task: str = "all", modality: Modality = "rgbd", num_classes: int = 284
) -> NetworkConfig:
    """The configuration of a preset.

    Args:
        preset: ``tiny``, ``base`` or ``paper``.
        task: ``all`` (tiny, base) or one of ``detection``, ``occupancy``, ``grounding``. The paper trains one network
            per task, so ``paper`` with ``all`` builds the detection and grounding stream; its occupancy has an encoder
            of its own.
        modality: see :class:`NetworkConfig`.
        num_classes: of detection.

    Raises:
        ValueError: naming an unknown preset or task.
    """
    if preset not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}")
    if task != "all" and task not in TASKS:
        raise ValueError(f"task must be all or one of {', '.join(TASKS)}, got {task!r}")
    config = _paper(task, num_classes) if preset == "paper" else _shared_stream(preset, num_classes)
    if preset != "paper" and task != "all":
        config = dataclasses.replace(
            config,
            detection=config.detection if task != "occupancy" else None,  # grounding reads its neck
            occupancy=config.occupancy if task == "occupancy" else None,
            grounding=config.grounding if task == "grounding" else None,
        )
    if modality == "painting" and config.occupancy is not None:  # images at the input sites alone
        config = dataclasses.replace(config, occupancy=dataclasses.replace(config.occupancy, dense_images=False))
    return _images_alone(config) if modality == "rgb" else dataclasses.replace(config, modality=modality)


def with_current_decoding(config: NetworkConfig) -> NetworkConfig:
    """The configuration with the current decoding thresholds of its preset instead of those stored with weights. A
    configuration without detection, or of released weights, is returned unchanged."""
    if config.detection is None or config.official or config.name not in PRESETS:
        return config
    preset = network_config(config.name, "detection").detection
    assert preset is not None
    decoding = {name: getattr(preset, name) for name in DECODING}
    return dataclasses.replace(config, detection=dataclasses.replace(config.detection, **decoding))


def _images_alone(config: NetworkConfig) -> NetworkConfig:
    """Use the whole grid at half an occupancy cell as input sites, so that the finest level has occupancy cells."""
    window = config.occupancy if config.occupancy is not None else OccupancyConfig()
    backbone = dataclasses.replace(config.backbone, stem_stride=1, pool=False)
    voxel_size_m = window.cell_size_m / backbone.strides[0]
    max_sites = math.prod(n * backbone.strides[0] for n in window.cells)
    return dataclasses.replace(
        config, modality="rgb", backbone=backbone, voxel_size_m=voxel_size_m, max_sites=max_sites
    )


def compared(config: NetworkConfig, variant: Variant) -> NetworkConfig:
    """A variant of the paper's tables with the numbers of ``config``; see :mod:`~embodied_perceptron.nn.baselines`.

    Raises ``ValueError`` for a configuration without the part that the variant changes.
    """
    detection, grounding, backbone = config.detection, config.grounding, config.backbone
    if variant == "ours":
        return config
    if variant in ("scanrefer", "butd-detr"):
        if grounding is None or grounding.queries != "objects":
            raise ValueError(f"{variant} needs grounding of detected objects: use tiny or base with grounding")
        matcher: Matcher = "scanrefer" if variant == "scanrefer" else "butd-detr"
        return dataclasses.replace(config, grounding=dataclasses.replace(grounding, matcher=matcher))
    if variant == "no-fpn":
        if config.occupancy is None or not config.image.pyramid_channels:
            raise ValueError("no-fpn needs occupancy with an image pyramid: use paper with occupancy")
        return dataclasses.replace(config, image=dataclasses.replace(config.image, pyramid_channels=0))
    if variant == "minkunet":
        size_m = config.voxel_size_m
        if config.occupancy is not None and config.occupancy.dense_images:  # the first stage has the cells' size
            backbone = dataclasses.replace(backbone, stem_stride=1, pool=False)
            size_m = config.occupancy.cell_size_m / backbone.strides[0]
        return dataclasses.replace(config, backbone=dataclasses.replace(backbone, unet=True), voxel_size_m=size_m)
    if detection is None:
        raise ValueError(f"{variant} is a detector: the configuration has no detection")
    plain = dataclasses.replace(detection, rotation="euler", anchor_shift=False)
    if variant == "votenet":
        backbone = dataclasses.replace(backbone, unet=True)
        plain = dataclasses.replace(plain, neck="votes", pruning="class")
    if variant == "imvoxelnet":
        if config.modality != "rgb":
            raise ValueError(f"imvoxelnet needs modality rgb, got {config.modality}")
        plain = dataclasses.replace(plain, pruning="class", keep=1_000_000)
    else:
        config = dataclasses.replace(config, modality="depth")
    return dataclasses.replace(config, backbone=backbone, detection=plain, occupancy=None, grounding=None)


def _shared_stream(preset: str, num_classes: int) -> NetworkConfig:
    tiny = preset == "tiny"
    channels = (32, 64, 96, 128) if tiny else (64, 96, 160, 256)
    voxel_size_m = 0.04 if tiny else 0.02
    return NetworkConfig(
        name=preset,
        voxel_size_m=voxel_size_m,
        max_sites=50_000 if tiny else 60_000,
        num_classes=num_classes,
        backbone=BackboneConfig(
            in_channels=INPUT_CHANNELS["height_color_offset"],
            stem_channels=24 if tiny else 32,
            channels=channels,
            blocks=(1, 1, 2, 1) if tiny else (1, 2, 2, 2),
            stem_stride=1 if tiny else 2,  # levels of 0.08, 0.16, 0.32 and 0.64 m in both
            pool=False,
            stem_norm="batch",
        ),
        image=ImageConfig(
            encoder="mobilenet_v2" if tiny else "efficientnet_lite0",
            projected_channels=(16, 32, 48, 64) if tiny else (32, 48, 64, 96),
            size=(256, 320) if tiny else (480, 640),
        ),
        detection=DetectionConfig(
            channels=64 if tiny else 96,
            keep=8000,
            lateral_channels=48 if tiny else 96,
            pruning="object",
            anchor_shift=True,
            max_per_level=2500,
            iou_threshold=NMS_IOU,
            max_candidates=20_000,
        ),
        occupancy=OccupancyConfig(
            in_channels=16 if tiny else 32,
            channels=32 if tiny else 64,
            dense_images=False,
            origin_m=(*BENCHMARK_GRID.origin_m[:2], -0.8),  # whole cells below the floor
        ),
        grounding=GroundingConfig(
            channels=96 if tiny else 128,
            text_encoder="minilm",
            text_channels=384,
            queries="objects",
            own_neck=False,
            num_queries=64 if tiny else 128,
            layers=4 if tiny else 6,
            heads=4 if tiny else 8,
            hidden_channels=256 if tiny else 512,
        ),
    )


def _paper(task: str, num_classes: int) -> NetworkConfig:
    dense = task == "occupancy"
    return NetworkConfig(
        name="paper",
        voxel_size_m=0.0025 if dense else 0.01,
        max_sites=100_000,
        num_classes=num_classes,
        backbone=BackboneConfig(),
        inputs="xyz",
        image=ImageConfig(base_width=64, pyramid_channels=256) if dense else ImageConfig(),
        detection=None if dense or task == "grounding" else DetectionConfig(keep=100_000),
        occupancy=OccupancyConfig() if dense else None,
        grounding=GroundingConfig() if task in ("grounding", "all") else None,
    )


def released(config: NetworkConfig) -> NetworkConfig:
    """``paper`` as the released checkpoints need it: official behaviour, Euler regression, dot-product alignment."""
    if config.name != "paper":
        raise ValueError(f"only the paper preset has released weights, got {config.name!r}")
    grounding = config.grounding and dataclasses.replace(config.grounding, rotation="euler", alignment="dot")
    return dataclasses.replace(config, official=True, grounding=grounding)
