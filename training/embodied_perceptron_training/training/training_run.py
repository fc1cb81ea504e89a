"""A training as a value: task, data, network, length, rates.

:class:`TrainingRun` consists of small dataclasses, one per topic. Every field also has a flat name: that of its option
on the command line or after ``--set``, and of its entry in ``run.json`` (:meth:`TrainingRun.to_json`). Flat names are
unique, and unknown ones are errors.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from embodied_perceptron.nn.image_encoder import PACKAGED_WEIGHTS
from embodied_perceptron.nn.presets import Modality, Variant
from embodied_perceptron_training.training.augment import MOTIONS
from embodied_perceptron_training.training.paper import paper_defaults

BoxLoss = Literal[
    "plain", "sum", "average", "average-by-size", "decoupled", "iou-7dof", "decoupled-iou-7dof", "l1-cosines",
    "iou-cosines",
]  # fmt: skip
ScheduleShape = Literal["cosine", "step", "constant"]
Precision = Literal["float32", "auto", "bfloat16", "float16"]
TASKS = (
    *("detection", "continuous-detection", "monocular-detection", "occupancy", "continuous-occupancy"),
    *("grounding", "multi", "images", "boxes"),
)
LENGTHS = ("steps", "epochs")
_LONGEST_WARMUP = 0.05


def _request(name: str = "") -> Mapping[str, Any]:
    """Metadata of a field in the section ``request`` of ``run.json`` (what is trained). ``name``: flat, if it
    differs."""
    return {"section": "request", "name": name}


def _option(name: str = "", of: tuple[str, ...] = ("scenes",)) -> Mapping[str, Any]:
    """Metadata of a field that ``--set`` gives, for tasks over ``scenes``, for task ``images``, or for both."""
    return {"section": "options", "name": name, "of": of}


def _setting(name: str = "") -> Mapping[str, Any]:
    """Metadata of a field in the section ``settings`` (how it is trained)."""
    return {"section": "settings", "name": name}


_BOTH = ("scenes", "images")


@dataclass(frozen=True)
class DataConfig:
    """Scenes, classes, and repetitions in an epoch.

    Attributes:
        train: folder of the training split.
        val: folder of the validation split (possibly the same folder); None = no validation.
        also: further folders with training scenes, separated by commas.
        classes: ``data`` (those in the training split), ``all``, ``monocular`` (the 20 of the paper's monocular
            benchmark), or ``weights``: those of the weights to start from, in their order.
        sources, val_sources: train, or validate, on the scans of these sources alone (``scannet``, ``3rscan``,
            ``matterport3d``, ...), separated by commas. Empty: all.
        repeat: windows per scene and epoch.
        repeat_factor_threshold: scenes with a class in fewer than this share of all scenes are repeated, see
            :func:`~embodied_perceptron_training.training.data_order.repeat_factor_order`; 0 = off.
        cache: folder of prepared scenes; empty = ``.prepared`` below the data.
    """

    train: Path = field(default=Path(), metadata=_request("data"))
    val: Path | None = field(default=None, metadata=_request())
    also: str = field(default="", metadata=_option(of=_BOTH))
    classes: str = field(default="data", metadata=_option())
    sources: str = field(default="", metadata=_option())
    val_sources: str = field(default="", metadata=_option())
    repeat: int = field(default=4, metadata=_option())
    repeat_factor_threshold: float = field(default=0.0, metadata=_option("balance"))
    cache: str = field(default="", metadata=_option())

    def __post_init__(self) -> None:
        _check_choice(self, "classes", ("data", "all", "monocular", "weights"))
        _check_unit(self, "repeat_factor_threshold")

    @property
    def training_folders(self) -> list[Path]:
        """``train`` and ``also``."""
        return [self.train, *(Path(name) for name in self.also.split(",") if name)]


@dataclass(frozen=True)
class NetworkChoice:
    """The network, its initial weights, and its trained parts.

    Attributes:
        preset: ``tiny``, ``base`` or ``paper``.
        modality: input of the network.
        variant: a network of the paper's comparison.
        weights: file to start from, or None.
        images: a frozen image encoder, whose features are cached with the scenes: weights of ``train --task images``,
            or ``imagenet`` for the preset's packaged ones. Empty: the encoder is trained with everything else, as in
            the paper. For task ``images`` itself: initial weights (``imagenet`` or empty).
        pretrained: initial weights of a trained image encoder: ``imagenet`` for the preset's packaged ones, or a
            safetensors file with a ResNet-50 in torchvision's names. Its batch norms keep their statistics, as in the
            release. Empty or ``random``: random.
        refined: ``on``: ``paper`` uses the occlusion test and box decoding of ``tiny`` and ``base``.
        text: the text encoder of grounding: ``minilm`` (the package), a folder with ``config.json``,
            ``model.safetensors`` and a tokenizer, or a name in the local cache. Empty = the preset's.
        presence: ``on``: an additional detection output, whether there is any object, trained on named and unnamed
            objects. Missing in the weights to start from, it starts from random values.
        learn: ``all``; or train one part over a frozen network: the decoder of ``grounding``, which sees its inputs as
            at inference and may have many ``sentences``, that of ``occupancy``, or what reads the images
            (``projections``): the projections of the frozen encoder and the layers that join them with geometry. A
            decoder that differs from the weights' starts from random values. Classes are those of the weights.
        encoder: an image encoder with packaged weights in place of the preset's; empty = the preset's.
        image_size: HxW of its input, multiples of 32; empty = the preset's.
        projections: ``frozen``; or ``learned``: with ``images``, the encoder's own features are cached, and their
            projections are trained. Where the weights to start from have another encoder, they start where they
            reproduce its features.
    """

    preset: str = field(default="tiny", metadata=_request())
    modality: Modality = field(default="rgbd", metadata=_request())
    variant: Variant = field(default="ours", metadata=_request())
    weights: Path | None = field(default=None, metadata=_request())
    images: str = field(default="", metadata=_option(of=_BOTH))
    pretrained: str = field(default="", metadata=_option())
    refined: str = field(default="off", metadata=_option())
    text: str = field(default="", metadata=_option())
    presence: str = field(default="off", metadata=_option())
    learn: str = field(default="all", metadata=_option())
    encoder: str = field(default="", metadata=_option())
    image_size: str = field(default="", metadata=_option())
    projections: str = field(default="frozen", metadata=_option())

    def __post_init__(self) -> None:
        _check_choice(self, "variant", get_args(Variant))
        _check_choice(self, "encoder", ("", *PACKAGED_WEIGHTS))
        _check_choice(self, "projections", ("frozen", "learned"))
        if self.image_size and not re.fullmatch(r"[1-9]\d{0,3}x[1-9]\d{0,3}", self.image_size):
            raise ValueError(f"option image_size must be HxW, got {self.image_size!r}")
        if self.learn == "projections" and self.projections != "learned":
            raise ValueError("option learn=projections needs projections=learned")
        if self.projections == "learned" and not self.images:
            raise ValueError("option projections=learned needs a frozen encoder: images=imagenet, or a file")
        _check_choice(self, "presence", ("off", "on"))
        _check_choice(self, "refined", ("off", "on"))
        if self.pretrained and self.images:
            raise ValueError("option pretrained trains the image encoder along, option images keeps it: choose one")
        _check_choice(self, "learn", ("all", "occupancy", "grounding", "projections"))


@dataclass(frozen=True)
class SampleConfig:
    """Contents of a sample.

    Attributes:
        views: of a sample; 0 = the preset's default.
        random_views: ``on``: drawn anew for each sample from all views of a scan; ``off``: the same evenly spaced ones.
        val_views: of a scene in validation; 0 = as ``views``.
        truth_views: in validation, take the truth of this many views and show ``views`` of them. 0 = the truth of the
            sample's own views.
        window_m: edge of training windows; 0 = the preset's (``paper``: the whole scene).
        prefix_share: of the samples that are maps of the first n of a scene's views.
        prompts: comma-separated sources of sentences: names of EmbodiedScan's files (``vg``, ``mini_vg``),
            ``grounded`` for tagged phrases of descriptions and questions (3D-GRAND), or ``made`` for sentences made
            from annotated boxes. Validation uses ``vg``.
        sentences: per sample that has any.
        absent_share: share of sentences about objects outside of the window, for decoders over objects.
        sentence_share, occupancy_share: of the samples with targets for grounding and occupancy.
        predicted_windows: for task ``boxes``: windows of each scene whose proposals are kept.
        crop_size: for task ``images``: HxW of the crops; empty = half of the preset's input.
        pixels: for task ``images``: per image and level in the loss.
    """

    views: int = field(default=0, metadata=_request())
    truth_views: int = field(default=0, metadata=_request())
    random_views: str = field(default="off", metadata=_option())
    val_views: int = field(default=0, metadata=_option())
    window_m: float = field(default=0.0, metadata=_option())
    prefix_share: float = field(default=0.0, metadata=_option())
    prompts: str = field(default="vg", metadata=_option())
    sentences: int = field(default=6, metadata=_option())
    absent_share: float = field(default=0.25, metadata=_option())
    sentence_share: float = field(default=1.0, metadata=_option())
    occupancy_share: float = field(default=1.0, metadata=_option())
    predicted_windows: int = field(default=4, metadata=_option("looks"))
    crop_size: str = field(default="", metadata=_option("size", of=("images",)))
    pixels: int = field(default=400, metadata=_option(of=("images",)))

    def __post_init__(self) -> None:
        _check_choice(self, "random_views", ("off", "on"))
        _check_unit(self, "absent_share", "prefix_share")
        if self.predicted_windows < 1:
            raise ValueError(f"option looks must be positive, got {self.predicted_windows}")


@dataclass(frozen=True)
class AugmentationConfig:
    """Variation of samples beyond the data.

    Attributes:
        motion: turns of scenes (not ``paper``): ``aligned`` by quarter turns and a few degrees, the error of the
            wall-aligned grid frame at inference, or ``any``.
        site_noise: share of the samples with randomised sites and colours, see
            :class:`~embodied_perceptron_training.training.domain_randomisation.SiteNoise`.
        pictures: sets of randomised images per scene, each shown as often as the original. For a trained encoder they
            are drawn anew for each sample.
    """

    motion: str = field(default="aligned", metadata=_option("turns"))
    site_noise: float = field(default=0.0, metadata=_option())
    pictures: int = field(default=0, metadata=_option())

    def __post_init__(self) -> None:
        _check_choice(self, "motion", tuple(MOTIONS))
        _check_unit(self, "site_noise")
        if self.pictures < 0:
            raise ValueError(f"option pictures must be >= 0, got {self.pictures}")


@dataclass(frozen=True)
class LossConfig:
    """Losses.

    Attributes:
        box_loss: design of the box loss, of :data:`~embodied_perceptron_training.training.criteria.BOX_LOSSES`;
            ``decoupled`` is the paper's.
        box_iou: weight of an additional rotated-IoU loss, which the paper does not have.
        contrastive: weight of the alignment of queries and tokens, for decoders over voxels (EmbodiedScan, appendix).
        detection, occupancy, grounding: weights of the heads.
    """

    box_loss: BoxLoss = field(default="decoupled", metadata=_request())
    box_iou: float = field(default=1.0, metadata=_option("w_iou"))
    contrastive: float = field(default=0.0, metadata=_option("w_contrastive"))
    detection: float = field(default=1.0, metadata=_option("w_detection"))
    occupancy: float = field(default=0.5, metadata=_option("w_occupancy"))
    grounding: float = field(default=0.3, metadata=_option("w_grounding"))

    def __post_init__(self) -> None:
        _check_choice(self, "box_loss", get_args(BoxLoss))
        _check_positive(self, ("box_iou",), zero=True)


@dataclass(frozen=True)
class ScheduleConfig:
    """Length of a training, in exactly one of ``steps`` and ``epochs``, and the learning rate over it.

    Attributes:
        steps: optimiser steps.
        epochs: passes over the training samples; a step has batch x accumulate x processes of them.
        shape: ``cosine`` to ``final_rate``, ``step`` by ``gamma`` at ``milestones``, or ``constant``.
        final_rate: fraction of the learning rate at the end of ``cosine``.
        milestones: fractions of the training.
        gamma: factor at each milestone.
        warmup_steps: of a linear warm-up, which takes at most a twentieth of the training.
    """

    steps: int = field(default=0, metadata=_setting())
    epochs: float = field(default=0.0, metadata=_setting())
    shape: ScheduleShape = field(default="cosine", metadata=_setting("schedule"))
    final_rate: float = field(default=0.0, metadata=_setting())
    milestones: tuple[float, ...] = field(default=(2 / 3, 11 / 12), metadata=_setting())
    gamma: float = field(default=0.1, metadata=_setting())
    warmup_steps: int = field(default=0, metadata=_setting())

    def __post_init__(self) -> None:
        lengths = {name: getattr(self, name) for name in LENGTHS}
        if min(lengths.values()) < 0 or sum(v > 0 for v in lengths.values()) != 1:
            given = ", ".join(f"{k} = {v}" for k, v in lengths.items() if v)
            raise ValueError(f"exactly one of {', '.join(LENGTHS)} must be positive, got {given or 'none'}")
        _check_choice(self, "shape", ("cosine", "step", "constant"))
        _check_positive(self, ("warmup_steps",), zero=True)
        _check_unit(self, "final_rate", "gamma")

    def total_steps(self, samples: int, samples_per_step: int) -> int:
        """Steps of the whole training; ``samples``: of an epoch."""
        return max(1, math.ceil(self.epochs * samples / samples_per_step)) if self.epochs else self.steps

    def factor(self, progress: float, step: int) -> float:
        """Factor of the learning rate in step ``step`` (from 0), at ``progress`` in [0, 1] of the training."""
        progress = min(max(progress, 0.0), 1.0)
        if self.shape == "cosine":
            factor = self.final_rate + (1 - self.final_rate) * 0.5 * (1 + math.cos(math.pi * progress))
        elif self.shape == "step":
            factor = self.gamma ** sum(progress >= m for m in self.milestones)
        else:
            factor = 1.0
        if step < self.warmup_steps:
            factor *= min(1.0, max((step + 1) / (self.warmup_steps + 1), progress / _LONGEST_WARMUP))
        return factor


@dataclass(frozen=True)
class OptimisationConfig:
    """A step of AdamW.

    Attributes:
        batch: samples per process and forward pass.
        accumulate: forward passes per step.
        learning_rate, weight_decay, betas: of AdamW; norms, biases and other vectors do not decay.
        reference_batch: samples per step that the learning rate is for; it is scaled to the samples of all processes in
            a step. 0 = not scaled.
        rate_scales: (prefix of parameter names, factor of the learning rate); the first match counts.
        clip: largest norm of the gradient; 0 = not clipped.
        ema_decay: of the averaged weights; 0 = the current ones.
        precision: of matrix products (autocast). ``auto``: on CUDA bfloat16 or, without support for it, float16; on the
            CPU float32.
        freeze_norms: batch norms keep their statistics (their weights are trained).
        max_bad_steps: this many skipped steps in a row (NaN, infinity) end the training.
    """

    batch: int = field(default=2, metadata=_setting())
    accumulate: int = field(default=1, metadata=_setting())
    learning_rate: float = field(default=1e-3, metadata=_setting())
    weight_decay: float = field(default=1e-4, metadata=_setting())
    betas: tuple[float, float] = field(default=(0.9, 0.999), metadata=_setting())
    reference_batch: int = field(default=0, metadata=_setting())
    rate_scales: tuple[tuple[str, float], ...] = field(default=(), metadata=_setting())
    clip: float = field(default=10.0, metadata=_setting())
    ema_decay: float = field(default=0.999, metadata=_setting())
    precision: Precision = field(default="float32", metadata=_setting())
    freeze_norms: bool = field(default=False, metadata=_setting())
    max_bad_steps: int = field(default=10, metadata=_setting())

    def __post_init__(self) -> None:
        _check_choice(self, "precision", ("float32", "auto", "bfloat16", "float16"))
        _check_positive(self, ("batch", "accumulate", "learning_rate", "max_bad_steps"))
        _check_positive(self, ("weight_decay", "clip", "reference_batch"), zero=True)
        _check_unit(self, "ema_decay")


@dataclass(frozen=True)
class ValidationConfig:
    """Validation of the averaged weights.

    Attributes:
        count: over the whole training, equally spaced, the last at the end.
        before_start: also before the first step, which shows faults of the validation at once.
    """

    count: int = field(default=10, metadata=_setting("validations"))
    before_start: bool = field(default=True, metadata=_setting("validate_first"))

    def __post_init__(self) -> None:
        _check_positive(self, ("count",), zero=True)


@dataclass(frozen=True)
class ExecutionConfig:
    """Use of the machine; without influence on the weights.

    Attributes:
        minutes: wall clock until this start of the training stops, to be resumed; 0 = never.
        workers: processes that load data, per process; 0 = none.
        device: ``auto`` = a working GPU or the CPU, ``cpu``, ``cuda`` or ``cuda:N``.
        checkpoint_s: seconds between checkpoints; 0 = after every step.
        log_every: steps between lines of the log.
        max_corrupt_share: of an epoch's samples; more corrupt ones end the training.
    """

    minutes: float = field(default=0.0, metadata=_setting())
    workers: int = field(default=1, metadata=_setting())
    device: str = field(default="auto", metadata=_setting())
    checkpoint_s: float = field(default=120.0, metadata=_setting())
    log_every: int = field(default=10, metadata=_setting())
    max_corrupt_share: float = field(default=0.01, metadata=_setting())

    def __post_init__(self) -> None:
        _check_positive(self, ("log_every",))
        _check_positive(self, ("minutes", "workers", "checkpoint_s"), zero=True)
        _check_unit(self, "max_corrupt_share")


@dataclass(frozen=True)
class TrainingRun:
    """All settings of a training.

    Attributes:
        task: one of :data:`TASKS`.
        seed: of the initial weights, the order of samples, augmentation and dropout.
    """

    schedule: ScheduleConfig
    task: str = field(default="multi", metadata=_request())
    seed: int = field(default=0, metadata=_request())
    data: DataConfig = field(default_factory=DataConfig)
    network: NetworkChoice = field(default_factory=NetworkChoice)
    samples: SampleConfig = field(default_factory=SampleConfig)
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)
    losses: LossConfig = field(default_factory=LossConfig)
    optimisation: OptimisationConfig = field(default_factory=OptimisationConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    execution: ExecutionConfig = field(default_factory=ExecutionConfig)

    def __post_init__(self) -> None:
        _check_choice(self, "task", TASKS)
        _check_positive(self, ("seed",), zero=True)

    # -- making one

    @staticmethod
    def from_values(**values: Any) -> TrainingRun:
        """From flat names. Raises ``ValueError`` naming an unknown name or an invalid value."""
        unknown = sorted(set(values) - set(_fields()))
        if unknown:
            raise ValueError(f"unknown training settings: {', '.join(unknown)}")
        parts: dict[str, dict[str, Any]] = {name: {} for name in ("", *_PARTS)}
        for name, value in values.items():
            known = _fields()[name]
            parts[known.part][known.field.name] = value
        built = {name: kind(**parts[name]) for name, kind in _PARTS.items()}
        return TrainingRun(**parts[""], **built)

    @staticmethod
    def of(options: Mapping[str, str], **values: Any) -> TrainingRun:
        """From flat names and text ``options`` (``--set``), over the defaults of the task and preset
        (:func:`preset_defaults`); a length in ``values`` replaces the default one.

        Raises ``ValueError`` naming an unknown option or an invalid value.
        """
        task, preset = values.get("task", "multi"), values.get("preset", "tiny")
        if task not in TASKS:  # checked first, since its defaults are needed below
            raise ValueError(f"task must be one of {', '.join(TASKS)}, got {task!r}")
        defaults = preset_defaults(task, preset)
        if "images" in options or values.get("weights") or values.get("modality") == "depth":
            defaults.pop("pretrained", None)
        if any(values.get(name) for name in LENGTHS):
            defaults.pop("epochs", None)
        if values.get("views"):  # of both
            defaults.pop("val_views", None)
        if "learning_rate" in values:  # a given rate is not scaled
            defaults.pop("reference_batch", None)
        return TrainingRun.from_values(**{**defaults, **_parsed(task, options), **values})

    @staticmethod
    def from_json(stored: Mapping[str, Mapping[str, Any]], **changes: Any) -> TrainingRun:
        """Inverse of :meth:`to_json`, with ``changes``; a length among them replaces the stored one.

        Old trainings whose length was a time get the length of their task and preset. Raises ``KeyError`` for a missing
        part, ``ValueError`` naming unknown keys.
        """
        request, settings = dict(stored["request"]), dict(stored["settings"])
        options = request.pop("options", {})
        unknown = sorted({*settings, *changes} - _names("settings")) + sorted(set(request) - _names("request"))
        if unknown:
            raise ValueError(f"unknown training settings: {', '.join(unknown)}")
        for name in ("data", "val", "weights"):
            if request.get(name) is not None:
                request[name] = Path(request[name])
        for name in ("betas", "milestones"):
            if name in settings:
                settings[name] = tuple(settings[name])
        if "rate_scales" in settings:
            settings["rate_scales"] = tuple((str(k), float(v)) for k, v in settings["rate_scales"])
        task, preset = request.get("task", "multi"), request.get("preset", "tiny")
        if any(changes.get(name) for name in LENGTHS):
            settings = {k: v for k, v in settings.items() if k not in LENGTHS}
        elif settings.get("minutes") and not any(settings.get(name) for name in LENGTHS):
            settings["epochs"] = preset_defaults(task, preset)["epochs"]
        return TrainingRun.from_values(**{**request, **_parsed(task, options), **settings, **changes})

    def replaced(self, **values: Any) -> TrainingRun:
        """With other values by flat names. Raises as :meth:`from_values`."""
        return TrainingRun.from_values(**{**self.values(), **values})

    def values(self) -> dict[str, Any]:
        """Values by flat names."""
        parts = {name: getattr(self, name) for name in _PARTS}
        return {n: getattr(parts.get(known.part, self), known.field.name) for n, known in _fields().items()}

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Plain values: ``request`` (what is trained; options that differ from their defaults, as text) and
        ``settings`` (how)."""
        values = {k: str(v) if isinstance(v, Path) else v for k, v in self.values().items()}
        known = {k: v.field for k, v in _fields().items() if v.field.metadata["section"] == "options"}
        options = {k: str(values[k]) for k, option in known.items() if values[k] != option.default}
        request = {k: v for k, v in values.items() if k in _names("request")}
        settings = {k: v for k, v in values.items() if k in _names("settings")}
        return {"request": {**request, "options": options}, "settings": settings}

    # -- length and rate

    def samples_per_step(self, processes: int) -> int:
        """Samples of all processes."""
        return self.optimisation.batch * self.optimisation.accumulate * processes

    def total_steps(self, samples: int, processes: int) -> int:
        """Steps of the whole training; ``samples``: of an epoch."""
        return self.schedule.total_steps(samples, self.samples_per_step(processes))

    def learning_rate(self, processes: int) -> float:
        """Base of the schedule, which :meth:`ScheduleConfig.factor` multiplies."""
        reference = self.optimisation.reference_batch
        scale = self.samples_per_step(processes) / reference if reference else 1.0
        return self.optimisation.learning_rate * scale


# -- flat names

_PARTS: Mapping[str, type] = {
    "data": DataConfig,
    "network": NetworkChoice,
    "samples": SampleConfig,
    "augmentation": AugmentationConfig,
    "losses": LossConfig,
    "schedule": ScheduleConfig,
    "optimisation": OptimisationConfig,
    "validation": ValidationConfig,
    "execution": ExecutionConfig,
}


@dataclass(frozen=True)
class _Field:
    """A field of a part; '' is the run itself."""

    part: str
    field: dataclasses.Field[Any]


@cache
def _fields() -> Mapping[str, _Field]:
    """Flat name -> field."""
    found = [
        (known.metadata["name"] or known.name, _Field(part, known))
        for part, kind in {"": TrainingRun, **_PARTS}.items()
        for known in dataclasses.fields(kind)
        if "section" in known.metadata
    ]
    assert len(dict(found)) == len(found), "two fields share a flat name"
    return dict(found)


@cache
def _names(section: str) -> frozenset[str]:
    """Flat names of a section of ``run.json``; ``seed`` is in both."""
    return frozenset({n for n, known in _fields().items() if known.field.metadata["section"] == section} | {"seed"})


def _parsed(task: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Values of ``--set name=value``. Raises ``ValueError`` naming an unknown option or a value of the wrong type."""
    of = "images" if task == "images" else "scenes"
    defaults = {n: k.field.default for n, k in _fields().items() if of in k.field.metadata.get("of", ())}
    values: dict[str, Any] = {}
    for name, text in options.items():
        if name not in defaults:
            raise ValueError(f"unknown option {name!r}; known: {', '.join(defaults)}")
        kind = type(defaults[name])
        try:
            values[name] = kind(text)
        except ValueError:
            raise ValueError(f"option {name} must be {kind.__name__}, got {text!r}") from None
    return values


# -- checks, with flat names in messages


def _flat_name(part: Any, name: str) -> tuple[str, Any]:
    """Name of a field in messages, and its value."""
    (known,) = (f for f in dataclasses.fields(part) if f.name == name)
    option = "option " if known.metadata["section"] == "options" else ""
    return f"{option}{known.metadata['name'] or name}", getattr(part, name)


def _check_choice(part: Any, name: str, allowed: Sequence[str]) -> None:
    label, value = _flat_name(part, name)
    if value not in allowed:
        raise ValueError(f"{label} must be one of {', '.join(allowed)}, got {value!r}")


def _check_positive(part: Any, names: Sequence[str], zero: bool = False) -> None:
    for name in names:
        label, value = _flat_name(part, name)
        if not (value >= 0 if zero else value > 0):
            raise ValueError(f"{label} must be {'>= 0' if zero else 'positive'}, got {value}")


def _check_unit(part: Any, *names: str) -> None:
    for name in names:
        label, value = _flat_name(part, name)
        if not 0 <= value <= 1:
            raise ValueError(f"{label} must lie in [0, 1], got {value}")


# -- defaults


def preset_defaults(task: str, preset: str) -> dict[str, Any]:
    """Flat names of values that differ from the dataclasses' own defaults, the length in epochs included.

    ``paper``: as published (:mod:`.paper`), without averaged weights. ``tiny`` and ``base``: one cosine with warm-up.
    """
    if preset == "paper":
        return paper_defaults(task)
    if task == "boxes":
        return {"batch": 4, "epochs": 12.0, "warmup_steps": 50, "weight_decay": 0.05, "ema_decay": 0.998}
    rate = 2e-3 if preset == "tiny" else 1e-3
    return {"epochs": 24.0, "learning_rate": rate, "warmup_steps": 100, "weight_decay": 0.01}
