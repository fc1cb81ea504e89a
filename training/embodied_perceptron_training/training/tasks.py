"""Trainable tasks over scenes: network, data, objectives, figures.

One class serves detection, occupancy, grounding and all of them together: a multi-task step runs one encoder and sums
the losses of the network's heads (the paper trains one network per task and leaves this to future work). The
differences between tasks are in a table (:class:`_Kind`); the trained parts in a strategy (:class:`WholeNetwork`,
:class:`HeadAlone`).
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import math
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from embodied_perceptron.config import config_from_dict
from embodied_perceptron.geometry.occupancy_grid import WINDOW_M
from embodied_perceptron.inference.loading import read_network, save_network
from embodied_perceptron.inference.predictor import Predictor
from embodied_perceptron.nn.image_encoder import check_size
from embodied_perceptron.nn.network import PerceptionNetwork
from embodied_perceptron.nn.occupancy import EMPTY
from embodied_perceptron.nn.presets import TASKS, NetworkConfig, RefinementConfig, compared, network_config
from embodied_perceptron.nn.text_encoder import text_channels, text_encoder
from embodied_perceptron.weights.categories import (
    DETECTION_CLASSES,
    MONOCULAR_CLASSES,
    OCCUPANCY_CLASSES,
    OCCUPANCY_IGNORED,
)
from embodied_perceptron.weights.checkpoint import load_checkpoint, load_into
from embodied_perceptron_training.datasets.embodiedscan import DatasetError, EmbodiedScanDataset
from embodied_perceptron_training.evaluation.metrics.detection import FREQUENCY_GROUPS, SceneBoxes, detection_metrics
from embodied_perceptron_training.evaluation.metrics.grounding import GroundingQuery, grounding_metrics
from embodied_perceptron_training.evaluation.metrics.occupancy import SceneOccupancy, occupancy_metrics
from embodied_perceptron_training.training.augment import MOTIONS, MotionRange
from embodied_perceptron_training.training.criteria import Losses, Reduce
from embodied_perceptron_training.training.data_order import repeat_factor_order
from embodied_perceptron_training.training.domain_randomisation import SiteNoise
from embodied_perceptron_training.training.images import (
    IMAGE_PREFIXES,
    ImageTask,
    check_packaged_images,
    fit_projections,
    load_images,
    start_images,
    views_for_projections,
)
from embodied_perceptron_training.training.nested import to_device
from embodied_perceptron_training.training.objectives import detection_criterion, objectives
from embodied_perceptron_training.training.optimization import Processes
from embodied_perceptron_training.training.paper import PAPER
from embodied_perceptron_training.training.prepared_scenes import Preparation, SceneCache
from embodied_perceptron_training.training.refinement import ProposalWindows, RefinementTask, with_refinement_head
from embodied_perceptron_training.training.run_folder import RunFolder
from embodied_perceptron_training.training.samples import (
    SampleMaker,
    SceneSample,
    SceneSource,
    Sentences,
    ViewChoice,
    WindowSpec,
)
from embodied_perceptron_training.training.scene_pass import SceneBatch, ScenePass, views_of
from embodied_perceptron_training.training.state import model_state
from embodied_perceptron_training.training.task import JoinedSources, TrainingTask
from embodied_perceptron_training.training.trainer import Trainer, TrainingOutcome
from embodied_perceptron_training.training.training_run import TrainingRun

_NEW_OUTPUTS = ("detection.presence.",)  # older weights lack them
_VIEWS = 20  # of a scene whose boxes are refined
_EVERY_VIEW = 1_000_000
_BLIND_VIEWS = 0.1  # while projections of image features are trained


@dataclass(frozen=True)
class _Kind:
    """A task over scenes."""

    heads: str  # of the network, as :func:`network_config` names them
    choice: ViewChoice = "all"  # of a scene's views
    views: int = 10  # of a sample, the paper's
    best_metric: str = "AP25"  # the figure that selects the best weights


TASK_KINDS = {
    "detection": _Kind("detection", views=20),
    "continuous-detection": _Kind("detection", "prefix"),
    "monocular-detection": _Kind("detection", "one"),
    "occupancy": _Kind("occupancy", best_metric="mIoU"),
    "continuous-occupancy": _Kind("occupancy", "prefix", best_metric="mIoU"),
    "grounding": _Kind("grounding", views=20, best_metric="top1_acc25"),
    "multi": _Kind("all", views=20),
}
_BEST_METRICS = {"detection": "AP25", "occupancy": "mIoU", "grounding": "top1_acc25"}  # of one head
_HEADS = ("occupancy", "grounding")  # learn alone


def build_task(run: TrainingRun, kept: RunFolder | None = None) -> TrainingTask:
    """The task of a run; of a resumed one, the network comes from the checkpoint in ``kept``, so that the files that
    it started from may be gone.

    Raises ``ValueError`` (also :class:`DatasetError`) naming the fault, ``OSError`` for unreadable files.
    """
    if kept is not None and not (kept.state.exists() and kept.last.exists()):
        kept = None  # stopped before the first checkpoint
    if run.task == "images":
        return ImageTask(run)
    return refinement_task(run, kept) if run.task == "boxes" else SceneTask(run, kept=kept)


def refinement_task(run: TrainingRun, kept: RunFolder | None = None) -> RefinementTask:
    """``train --task boxes``: train the refinement head alone. Arguments and errors as of :func:`build_task`."""
    if run.network.weights is None:
        raise ValueError("task boxes needs --weights: the network whose boxes are refined")
    if run.network.projections == "learned":
        raise ValueError("task boxes trains no projections of images: leave out --set projections=learned")
    torch.manual_seed(run.seed)
    gone = kept is not None and not run.network.weights.exists()
    network, classes, extra = with_refinement_head(kept.last if kept is not None and gone else run.network.weights)

    def windows_of(root: Path, split: str, training: bool) -> ProposalWindows:
        spec = WindowSpec(window_m=run.samples.window_m or WINDOW_M, occupancy_share=0.0)
        if training:
            spec = _varied(spec, run, run.augmentation.pictures)
        dataset = EmbodiedScanDataset(root, split)
        source = scene_source(run, dataset, network, classes, spec, run.samples.views or _VIEWS)
        order = repeated_order(dataset, classes, run.data.repeat_factor_threshold) if training else None
        windows = run.samples.predicted_windows if training else 1
        return ProposalWindows(
            SceneSource(*source, 1, order, not training), network, source[0].folder / "looked", windows
        )

    samples = JoinedSources([windows_of(root, "train", True) for root in run.data.training_folders])
    validation = None if run.data.val is None else windows_of(run.data.val, "val", False)
    return RefinementTask(network, classes, extra, samples, validation)


def training_data(run: TrainingRun) -> list[EmbodiedScanDataset]:
    """The training splits of a run. Raises as :class:`EmbodiedScanDataset`."""
    return [EmbodiedScanDataset(folder, "train", run.data.sources) for folder in run.data.training_folders]


def _varied(spec: WindowSpec, run: TrainingRun, pictures: int) -> WindowSpec:
    """Training windows: random motion, prefixes of views, domain randomisation."""
    return dataclasses.replace(
        spec,
        motion=MOTIONS[run.augmentation.motion],
        prefix_share=run.samples.prefix_share,
        site_noise=SiteNoise(run.augmentation.site_noise),
        pictures=pictures,
    )


def motion_range(run: TrainingRun, config: NetworkConfig) -> MotionRange | None:
    """Motions of scenes in training: the paper's for networks with absolute inputs (``paper``), else by option
    ``turns``. None = no motion."""
    return PAPER[run.task].motion if config.inputs == "xyz" else MOTIONS[run.augmentation.motion]


class WholeNetwork:
    """Train every head and the backbone (and the image encoder, unless it is frozen).

    Args:
        config: of the network.
        run: with the weights of the losses.
    """

    def __init__(self, config: NetworkConfig, run: TrainingRun) -> None:
        self.objectives = objectives(config, run)
        self.best_metric = TASK_KINDS[run.task].best_metric
        self.occupancy_share = run.samples.occupancy_share
        self.sentences = config.grounding is not None
        self._min_points = detection_criterion(run).min_points

    @property
    def heads(self) -> tuple[str, ...]:
        """Trained and scored heads."""
        return tuple(self.objectives)

    def start_state(self, network: PerceptionNetwork, path: Path) -> dict[str, torch.Tensor]:
        """Initial state from a weights file; an output that it lacks starts from random weights."""
        state = dict(load_checkpoint(path).state)
        new = {k: v for k, v in network.state_dict().items() if k.startswith(_NEW_OUTPUTS) and k not in state}
        return {**state, **new}

    def freeze(self, network: PerceptionNetwork) -> None:
        """Disable gradients of frozen parts: a refinement head is trained by a task of its own."""
        if network.second_look is not None:
            network.second_look.requires_grad_(False)

    def scene_pass(self, network: PerceptionNetwork, batch: SceneBatch) -> ScenePass:
        """One training pass."""
        return ScenePass(network, batch, self._min_points)


class HeadAlone(WholeNetwork):
    """Train one head over a frozen network: occupancy (``learn=occupancy``) or the decoder of sentences
    (``learn=grounding``). Configuration and classes are those of the weights file to start from.

    Raises ``ValueError`` for a network without that head.
    """

    def __init__(self, config: NetworkConfig, run: TrainingRun) -> None:
        super().__init__(config, run)
        self._head = head = run.network.learn
        if head not in self.objectives:
            raise ValueError(f"option learn={head}: a network of task {run.task} has no {head}")
        self.objectives = {head: self.objectives[head]}
        self.best_metric = _BEST_METRICS[head]
        self.occupancy_share = 1.0 if head == "occupancy" else 0.0
        self.sentences = head == "grounding"

    def start_state(self, network: PerceptionNetwork, path: Path) -> dict[str, torch.Tensor]:
        """As before, but a head whose configuration differs from the network's starts from random weights."""
        found = load_checkpoint(path)
        state, own = dict(found.state), f"{self._head}."
        wanted = json.loads(json.dumps(dataclasses.asdict(network.config)[self._head]))  # a file holds lists
        if found.config.get(self._head) != wanted:
            state = {k: v for k, v in state.items() if not k.startswith(own)}
            state.update({k: v for k, v in network.state_dict().items() if k.startswith(own)})
        return state

    def freeze(self, network: PerceptionNetwork) -> None:
        """Freeze everything but the head."""
        network.requires_grad_(False)
        network.get_submodule(self._head).requires_grad_(True)

    def scene_pass(self, network: PerceptionNetwork, batch: SceneBatch) -> ScenePass:
        """A pass without gradient, pruned as at inference; batch statistics of frozen parts do not change."""
        for name, part in network.named_children():
            part.train(part.training and name == self._head)
        with torch.no_grad():
            return ScenePass(network, batch)


class ProjectionsAlone(WholeNetwork):
    """Train what reads the images (``learn=projections``): the projections of the frozen encoder, and the layers that
    join them with geometry, over a frozen network. Configuration, but for the encoder, and classes are those of the
    weights file to start from.
    """

    def __init__(self, config: NetworkConfig, run: TrainingRun) -> None:
        super().__init__(config, run)
        self.objectives = {name: one for name, one in self.objectives.items() if name != "grounding"}
        self.sentences = False

    def freeze(self, network: PerceptionNetwork) -> None:
        """Freeze everything but these layers."""
        network.requires_grad_(False)
        readers = (
            network.image_projection,
            None if network.detection is None else network.detection.neck.lateral,
            None if network.occupancy is None else network.occupancy.project,
        )
        for part in readers:
            if part is not None:
                part.requires_grad_(True)

    def scene_pass(self, network: PerceptionNetwork, batch: SceneBatch) -> ScenePass:
        """A training pass; batch statistics do not change."""
        network.eval()
        return ScenePass(network, batch, self._min_points)


_STRATEGIES = {
    "all": WholeNetwork,
    "projections": ProjectionsAlone,
    "occupancy": HeadAlone,
    "grounding": HeadAlone,
}


class SceneTask:
    """See the module docstring and :class:`~embodied_perceptron_training.training.task.TrainingTask`.

    Args:
        run: see there.
        shape: change of the run's configuration before the network is built, for tests and benchmarks.
        kept: folder of a resumed run: the network and its classes come from the checkpoint.
    """

    def __init__(
        self,
        run: TrainingRun,
        shape: Callable[[NetworkConfig], NetworkConfig] = lambda own: own,
        kept: RunFolder | None = None,
    ) -> None:
        self.run = run
        self._kind = TASK_KINDS[run.task]
        train = training_data(run)
        choice, weights = run.network, run.network.weights
        val = None if run.data.val is None else EmbodiedScanDataset(run.data.val, "val", run.data.val_sources)
        one_part = choice.learn in (*_HEADS, "projections")
        source = kept.last if kept is not None else weights if one_part else None
        stays = read_network(source) if source is not None else None
        self.classes = _classes(run, train) if stays is None else stays[1].classes
        config = shape(task_config(run, len(self.classes)))
        if kept is not None and stays is not None:
            config = stays[0].config
        elif stays is not None:
            part = "image" if choice.learn == "projections" else choice.learn
            config = dataclasses.replace(stays[0].config, **{part: getattr(config, part)})
        elif weights is not None:
            config = _with_refinement_of(config, weights)
        self.config = config
        torch.manual_seed(run.seed)
        check_packaged_images(config, choice)
        network = PerceptionNetwork(config, pretrained_images="imagenet" in (choice.images, choice.pretrained))
        self.learning = _STRATEGIES[choice.learn](config, run)
        learned = choice.projections == "learned"
        if kept is not None:
            load_into(network, model_state(kept.state), str(kept.state))
        else:
            self._start(network, train)
        if choice.pretrained not in ("", "random"):
            start_images(network, choice.pretrained if kept is None else "imagenet")
        self.end_to_end = config.uses_images and not choice.images
        if config.uses_images and not self.end_to_end:
            for part in (network.image_encoder, None if learned else network.image_projection):
                if part is not None:
                    part.requires_grad_(False)
        self.learning.freeze(network)
        self.model: nn.Module = network
        threshold = run.data.repeat_factor_threshold
        self.samples = JoinedSources(
            [
                SceneSource(
                    *self._source(dataset, network, training=True),
                    run.data.repeat,
                    repeated_order(dataset, self.classes, threshold),
                )
                for dataset in train
            ]
        )
        self._validation = None
        if val is not None:
            self._validation = SceneSource(*self._source(val, network, training=False), 1, None, True)
        self.best_metric = self.learning.best_metric

    def _start(self, network: PerceptionNetwork, train: Sequence[EmbodiedScanDataset]) -> None:
        """Load the weights and the image encoder that the run starts from."""
        choice, weights = self.run.network, self.run.network.weights
        images = None
        if choice.images == "imagenet":  # replaces the encoder of the weights to start from
            images = dict(copy.deepcopy(network.state_dict()))
        elif choice.images:
            images = dict(load_checkpoint(choice.images).state)
        learned = choice.projections == "learned"
        other_encoder = False
        if weights is not None:
            state = self.learning.start_state(network, weights)
            other_encoder = images is not None and not _have_one_encoder(images, state)
            if other_encoder:
                own = {k: v for k, v in network.state_dict().items() if k.startswith(IMAGE_PREFIXES)}
                state = {k: v for k, v in state.items() if not k.startswith(IMAGE_PREFIXES)} | own
            load_into(network, state, str(weights))
        if images is not None:
            if learned and weights is not None and not other_encoder:  # learned before
                images |= {k: v for k, v in network.state_dict().items() if k.startswith("image_projection.")}
            load_images(network, images)
        if other_encoder and learned and weights is not None:
            fit_projections(network, read_network(weights)[0], views_for_projections(train))

    # ----------------------------------------------------------------------------------------------------------- data

    def _spec(self, training: bool) -> WindowSpec:
        run = self.run
        grounding = self.config.grounding if self.learning.sentences else None
        everything = WindowSpec(
            window_m=run.samples.window_m or (math.inf if self.config.inputs == "xyz" else WINDOW_M),
            choice=self._kind.choice,
            sentences=16 if grounding is not None else 0,
        )
        if not training:
            return dataclasses.replace(everything, views=self._views if run.samples.truth_views > self._views else 0)
        varied = _varied(everything, run, run.augmentation.pictures if self.config.uses_images else 0)
        return dataclasses.replace(
            varied,
            motion=motion_range(run, self.config),
            random_views=self._views if run.samples.random_views == "on" else 0,
            flip_images=self._kind.choice == "one" and self.config.inputs == "xyz",
            sentences=run.samples.sentences if grounding is not None else 0,
            blind_views=_BLIND_VIEWS if run.network.projections == "learned" else 0.0,
            absent_share=run.samples.absent_share if grounding is not None and grounding.queries == "objects" else 0.0,
            sentence_share=run.samples.sentence_share,
            occupancy_share=self.learning.occupancy_share,
        )

    @property
    def _views(self) -> int:
        """Largest number of views of a sample."""
        return self.run.samples.views or self._kind.views

    def _source(
        self, dataset: EmbodiedScanDataset, network: PerceptionNetwork, training: bool
    ) -> tuple[SceneCache, SampleMaker]:
        """Cache and sample maker of a split."""
        spec, views = self._spec(training), self._views
        if spec.random_views:
            views = _EVERY_VIEW
        elif spec.views:
            views = max(views, self.run.samples.truth_views)
        elif not training:
            views = self.run.samples.val_views or views
        return scene_source(self.run, dataset, network, self.classes, spec, views, self.end_to_end)

    def collate(self, samples: Sequence[Sequence[SceneSample]]) -> SceneBatch:
        """A batch of the maps of all samples. Raises ``ValueError`` for a label that the network does not have, which a
        device would not check."""
        maps = [part for sample in samples for part in sample]
        for sample in maps:
            check_labels(sample.name, sample.labels, self.config.num_classes + 1)
            if sample.occupancy is not None and self.config.occupancy is not None:
                known = sample.occupancy[sample.occupancy != OCCUPANCY_IGNORED]
                check_labels(f"{sample.name}, occupancy", known, self.config.occupancy.num_classes + 1)
        return SceneBatch(maps)

    # ------------------------------------------------------------------------------------------- losses, validation

    def losses(self, model: nn.Module, batch: SceneBatch, reduce: Reduce) -> Losses:
        """Weighted losses of all trained heads."""
        scene_pass = self.learning.scene_pass(_network(model), batch)
        total: Losses = {}
        for objective in self.learning.objectives.values():
            total.update(objective(scene_pass, reduce))
        return total

    @torch.no_grad()
    def validate(self, model: nn.Module) -> dict[str, float]:
        """Figures on all maps of one window of every scene of the validation split, without motion: of continuous
        tasks after every view, of monocular ones of every view.

        An empty window has no detections, and all of its cells are free, as at inference.
        """
        if self._validation is None:
            return {}
        network = _network(model)
        device = next(network.parameters()).device
        metrics = ValidationMetrics(network, self.classes, self.learning.heads)
        for index in range(len(self._validation)):
            maps = self._validation.sample(index, np.random.default_rng(0))
            on_device = to_device(maps, device)
            views = views_of(network, on_device[0]) if network.config.uses_images else []
            for sample, moved in zip(maps, on_device, strict=True):
                shown = [views[: len(sample.projections)]]
                scene_pass = ScenePass(network, SceneBatch([moved]), views=shown) if len(sample.coords) else None
                metrics.add(sample, scene_pass)
        return metrics.figures()

    def save_weights(self, path: Path, model: nn.Module, extra: Mapping[str, Any]) -> None:
        """Write a file for :func:`~embodied_perceptron.inference.loading.load_network`."""
        known = {"occupancy_classes": list(OCCUPANCY_CLASSES)} if self.config.occupancy is not None else {}
        save_network(path, _network(model), self.classes, {**known, **extra})


def check_labels(name: str, labels: torch.Tensor, count: int) -> None:
    """Raise ``ValueError`` unless all labels, on the host, are in [0, count)."""
    wrong = labels[(labels < 0) | (labels >= count)]
    if len(wrong):
        raise ValueError(f"{name}: label {int(wrong[0])} is not in [0, {count - 1}]")


def repeated_order(dataset: EmbodiedScanDataset, classes: Sequence[str], balance: float) -> list[int]:
    """Scenes of an epoch by repeat-factor sampling, see
    :func:`~embodied_perceptron_training.training.data_order.repeat_factor_order`."""
    known = set(classes)
    return repeat_factor_order([known.intersection(scan.labels) for scan in dataset], balance)


def scene_source(
    run: TrainingRun,
    dataset: EmbodiedScanDataset,
    network: PerceptionNetwork,
    classes: tuple[str, ...],
    spec: WindowSpec,
    views: int,
    end_to_end: bool = False,
) -> tuple[SceneCache, SampleMaker]:
    """Cache and sample maker of a split, for a network whose image encoder is frozen unless ``end_to_end``."""
    config = network.config
    predictor, digest = None, ""
    view_bytes = 0
    if config.uses_images and not end_to_end:
        occupied = OCCUPANCY_CLASSES if config.occupancy is not None else ()
        shown = copy.deepcopy(network)
        channels = shown.image_channels
        if run.network.projections == "learned" and shown.image_encoder is not None:
            shown.image_projection, channels = None, shown.image_encoder.out_channels
        predictor = Predictor(shown, classes, occupied)
        digest = image_digest(shown)
        assert shown.image_encoder is not None
        h, w = config.image.size
        view_bytes = sum(
            2 * c * (h // s) * (w // s) for c, s in zip(channels, shown.image_encoder.strides, strict=True)
        )
    text, name = None, ""
    if config.grounding is not None and spec.sentences:
        name = config.grounding.text_encoder
        text = text_encoder(name)
    folder = Path(run.data.cache) if run.data.cache else dataset.root / ".prepared"
    prompts = tuple(part.strip() for part in run.samples.prompts.split(",")) if dataset.split == "train" else ("vg",)
    preparation = Preparation(
        views=views,
        image_encoder=digest,
        view_bytes=view_bytes,
        image_size=config.image.size,
        text_encoder=name,
        pictures=spec.pictures,
        prompts=prompts,
    )
    cache = SceneCache(dataset, folder, preparation, predictor, text)
    cache.check_room()
    return cache, SampleMaker(config, classes, spec, cache, end_to_end)


def task_config(run: TrainingRun, num_classes: int) -> NetworkConfig:
    """The network of a run. Raises ``ValueError`` for options that do not fit, ``FileNotFoundError`` for a missing
    ``text`` encoder."""
    config = network_config(run.network.preset, TASK_KINDS[run.task].heads, run.network.modality, num_classes)
    if run.network.preset == "paper" and config.detection is not None:
        config = dataclasses.replace(config, detection=dataclasses.replace(config.detection, keep=PAPER[run.task].keep))
    if run.network.text:
        if config.grounding is None:
            raise ValueError(f"option text={run.network.text}: a network of task {run.task} has no grounding")
        name = str(Path(run.network.text).resolve()) if Path(run.network.text).is_dir() else run.network.text
        spoken = dataclasses.replace(config.grounding, text_encoder=name, text_channels=text_channels(name))
        config = dataclasses.replace(config, grounding=spoken)
    if run.network.encoder:
        config = dataclasses.replace(config, image=dataclasses.replace(config.image, encoder=run.network.encoder))
    if run.network.image_size:
        h, w = map(int, run.network.image_size.split("x"))
        check_size((h, w))
        config = dataclasses.replace(config, image=dataclasses.replace(config.image, size=(h, w)))
    config = dataclasses.replace(config, refined=run.network.refined == "on")
    config = compared(config, run.network.variant)
    if run.network.presence == "on":
        if config.detection is None:
            raise ValueError(f"option presence=on: a network of task {run.task} has no detection")
        config = dataclasses.replace(config, detection=dataclasses.replace(config.detection, presence=True))
    return config


def _with_refinement_of(config: NetworkConfig, weights: Path) -> NetworkConfig:
    """``config`` with the refinement head of the weights to start from, which is kept.

    Raises as :func:`~embodied_perceptron.weights.checkpoint.load_checkpoint`, ``ValueError`` for a damaged one.
    """
    stored = load_checkpoint(weights).config.get("detection") or {}
    if config.detection is None or not stored.get("second_look"):
        return config
    head = config_from_dict(RefinementConfig, stored["second_look"], f"{weights}: second_look")
    return dataclasses.replace(config, detection=dataclasses.replace(config.detection, second_look=head))


def _have_one_encoder(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> bool:
    """Whether two states have the same image encoder, up to the half precision of files."""
    pairs = [(value, b.get(name)) for name, value in a.items() if name.startswith("image_encoder.")]
    return all(
        y is not None and x.shape == y.shape and torch.allclose(x.float(), y.float(), rtol=2e-3, atol=1e-4)
        for x, y in pairs
    )


def image_digest(network: PerceptionNetwork) -> str:
    """SHA-256 over the weights of the image encoder and its projections."""
    digest = hashlib.sha256(repr(network.config.image).encode())
    for name, value in sorted(network.state_dict().items()):
        if name.startswith(("image_encoder.", "image_projection.")):
            digest.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _network(model: nn.Module) -> PerceptionNetwork:
    """The network without the loop's wrappers."""
    inner = getattr(model, "module", model)
    assert isinstance(inner, PerceptionNetwork)
    return inner


def _classes(run: TrainingRun, datasets: Sequence[EmbodiedScanDataset]) -> tuple[str, ...]:
    """Classes of the network: those of the weights to start from, all, the 20 of monocular detection, or those in the
    training split, sorted.

    Raises ``ValueError`` without weights to take them from, :class:`DatasetError` when none occurs.
    """
    if run.data.classes == "weights":
        if run.network.weights is None:
            raise ValueError("option classes=weights needs weights to start from")
        return load_checkpoint(run.network.weights).classes
    if run.data.classes == "all":
        return tuple(DETECTION_CLASSES)
    if run.data.classes == "monocular":
        return MONOCULAR_CLASSES
    present = {name for dataset in datasets for scan in dataset for name in scan.labels}
    classes = tuple(sorted(present & set(DETECTION_CLASSES)))
    if not classes:
        folders = ", ".join(str(dataset.root) for dataset in datasets)
        raise DatasetError(f"{folders}: no instance of split train has a detection class")
    return classes


# -- Validation.


class ValidationMetrics:
    """Collect predictions and truth sample by sample, and compute their figures.

    Args:
        network: whose heads predict.
        classes: of its boxes.
        heads: to score, of those that the network has.
    """

    def __init__(self, network: PerceptionNetwork, classes: tuple[str, ...], heads: Collection[str] = TASKS) -> None:
        self._heads = {h for h in heads if getattr(network, h) is not None}
        self._classes = classes
        self._found: dict[str, SceneBoxes] = {}
        self._truth: dict[str, SceneBoxes] = {}
        self._occupancies: list[SceneOccupancy] = []
        self._queries: list[GroundingQuery] = []

    def add(self, sample: SceneSample, scene_pass: ScenePass | None) -> None:
        """``scene_pass``: the pass over the sample alone, on any device, with ``sample`` on the CPU; None for a sample
        without input sites: no detections, free cells."""
        if "detection" in self._heads:
            self._found[sample.name] = _boxes(scene_pass, len(self._classes))
            named = sample.labels.numpy() < len(self._classes)
            self._truth[sample.name] = SceneBoxes(sample.boxes.double().numpy()[named], sample.labels.numpy()[named])
        if "occupancy" in self._heads and sample.occupancy is not None:
            predicted = torch.full_like(sample.occupancy, EMPTY)
            if scene_pass is not None:
                (logits,) = scene_pass.occupancy([0], scales=1)
                predicted = logits[0].argmax(0).cpu()
            self._occupancies.append(SceneOccupancy(predicted.numpy(), sample.occupancy.numpy()))
        if "grounding" in self._heads and sample.sentences is not None:
            self._queries.extend(_answers(scene_pass, sample.sentences))

    def figures(self) -> dict[str, float]:
        """Figures in percent, of the heads with truth."""
        figures: dict[str, float] = {}
        if any(len(t.boxes) for t in self._truth.values()):
            groups = {name: group & set(self._classes) for name, group in FREQUENCY_GROUPS.items()}
            all_figures = detection_metrics(self._found, self._truth, self._classes, groups)
            wanted = {"AP25", "AP50", "AR25", "AR50", "AP25_furniture"}
            wanted |= {f"{figure}_{group}" for figure in ("AP25", "AR25") for group in FREQUENCY_GROUPS}
            figures.update({k: v for k, v in all_figures.items() if k in wanted})
        if self._occupancies:
            figures["mIoU"] = occupancy_metrics(self._occupancies, OCCUPANCY_CLASSES)["mIoU"]
        if self._queries:
            figures["top1_acc25"] = grounding_metrics(self._queries)["top1_acc25"]
        return figures


def _boxes(scene_pass: ScenePass | None, classes: int) -> SceneBoxes:
    """Decoded boxes with a class, of a pass over one sample; none without a pass."""
    if scene_pass is None:
        return SceneBoxes(np.zeros((0, 9)), np.zeros(0, np.int64), np.zeros(0))
    (boxes,) = scene_pass.network.boxes(scene_pass.features)
    box, label, score = (v.cpu().numpy() for v in (boxes.boxes.double(), boxes.labels, boxes.scores))
    named = label < classes
    return SceneBoxes(box[named], label[named], score[named])


def _answers(scene_pass: ScenePass | None, sentences: Sentences) -> list[GroundingQuery]:
    """Ranked boxes of every sentence, by the mean probability of the tokens that name the target; none without a
    pass."""
    out = None if scene_pass is None else scene_pass.answers()
    if out is None:
        return [GroundingQuery(np.zeros((0, 9)), boxes.double().numpy(), {}) for boxes in sentences.boxes]
    queries = []
    for b, (words, true) in enumerate(zip(sentences.named, sentences.boxes, strict=True)):
        scores = out.logits[-1, b].sigmoid()[:, words.to(out.logits.device)].mean(1)
        scores = scores.masked_fill(~out.query_valid[b], -1.0)
        best = scores.argsort(descending=True, stable=True)[:10]
        best = best[out.query_valid[b, best]]
        queries.append(GroundingQuery(out.boxes[-1, b, best].double().cpu().numpy(), true.double().numpy(), {}))
    return queries


# -- A whole training.


def train_run(run: TrainingRun, folder: Path, resume: bool = False, quiet: bool = False) -> TrainingOutcome:
    """Build the task of ``run`` and train it in ``folder``.

    Args:
        run: all settings.
        folder: of the run's files.
        resume: continue the run in ``folder``.
        quiet: no progress.

    Raises what the task, the folder and the loop raise.
    """
    processes = Processes.start(run.execution.device)
    try:
        program = ["embodied-perceptron"]
        if processes.world > 1:
            module = "embodied_perceptron.apps.cli"
            program = ["torchrun", "--nproc-per-node", str(processes.world), "-m", module]
        command = shlex.join([*program, *sys.argv[1:]])
        information = {"request": run.to_json()["request"], "processes": processes.world, "command": command}
        task = build_task(run, RunFolder(folder) if resume else None)
        return Trainer(task, run, folder, processes, information, quiet).run(resume)
    finally:
        processes.stop()
