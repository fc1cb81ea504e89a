"""The trainable tasks: which network, which data, which losses, which figures.

One class serves detection, occupancy, grounding and all of them together: a multi-task step reads one encoder and sums
the losses of whatever heads the network has (the paper trains one network per task and calls this open work).
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from embodied_perceptron.geometry.occupancy_grid import WINDOW_M
from embodied_perceptron.inference.loading import save_network
from embodied_perceptron.inference.predictor import Predictor, view_reading
from embodied_perceptron.nn.network import PerceptionNetwork
from embodied_perceptron.nn.presets import NetworkConfig, fcaf3d, network_config
from embodied_perceptron.nn.text_encoder import text_encoder
from embodied_perceptron.weights.categories import DETECTION_CLASSES, OCCUPANCY_CLASSES
from embodied_perceptron.weights.checkpoint import load_checkpoint, load_into
from embodied_perceptron_training.datasets.embodiedscan import DatasetError, EmbodiedScanDataset
from embodied_perceptron_training.training.augment import PAPER_MOTION
from embodied_perceptron_training.training.criteria import (
    DECOUPLED,
    PLAIN,
    BoxTarget,
    DetectionCriterion,
    GroundingCriterion,
    OccupancyCriterion,
    PointerCriterion,
)
from embodied_perceptron_training.training.images import ImageTask, load_images
from embodied_perceptron_training.training.matching import coarse_labels
from embodied_perceptron_training.training.objectives import detection_predictions, grounding_layers
from embodied_perceptron_training.training.options import MOTIONS, TaskOptions
from embodied_perceptron_training.training.prepared_scenes import Preparation, SceneCache
from embodied_perceptron_training.training.samples import SampleMaker, SampleSpec, SceneSample
from embodied_perceptron_training.training.scene_pass import MIN_BOX_M, Run, SceneBatch
from embodied_perceptron_training.training.task import Losses, Reduce, SampleError, TaskRequest, TrainingTask, to_device
from embodied_perceptron_training.training.validation import Judged

_HEADS = {
    "detection": "detection",
    "continuous-detection": "detection",
    "monocular-detection": "detection",
    "occupancy": "occupancy",
    "continuous-occupancy": "occupancy",
    "grounding": "grounding",
    "multi": "all",
}
_CHOICES = {"continuous-detection": "prefix", "continuous-occupancy": "prefix", "monocular-detection": "one"}
_WINDOWS = 8  # tried before a scene counts as empty: some fall behind a wall
_OFFICIAL_VIEWS = {"detection": 20, "grounding": 20, "multi": 20}  # of the paper; 10 for all others


def build_task(request: TaskRequest) -> TrainingTask:
    """The task of a request. Raises ``ValueError`` (also :class:`DatasetError`) naming what does not fit, ``OSError``
    for files that cannot be read."""
    if request.task == "images":
        return ImageTask(request)
    return SceneTask(request)


class SceneSource:
    """Samples of a split: every scene of ``order`` (None = each one once) ``repeat`` times an epoch, each time another
    window."""

    def __init__(self, cache: SceneCache, maker: SampleMaker, repeat: int, order: Sequence[int] | None = None) -> None:
        self.cache = cache
        self.maker = maker
        self.repeat = repeat
        self._order = range(len(cache)) if order is None else order

    def __len__(self) -> int:
        return len(self._order) * self.repeat

    def sample(self, index: int, rng: np.random.Generator) -> SceneSample:
        """See :class:`~.interface.SampleSource`."""
        scene = self._order[index % len(self._order)]
        try:
            prepared = self.cache[scene]
            for _ in range(_WINDOWS):
                sample = self.maker.make(prepared, rng)
                # where scenes stand still, what the one window shows is the question, and nothing is an answer as well
                if len(sample.coords) or self.maker.spec.motion is None:
                    return sample
        except (DatasetError, OSError) as error:
            raise SampleError(self.cache.dataset[scene].sample_idx, str(error)) from error
        raise SampleError(prepared.name, f"{_WINDOWS} windows in a row show nothing")


class SceneTask:
    """See the module docstring and :class:`~.interface.TrainingTask`."""

    def __init__(self, request: TaskRequest) -> None:
        self.request = request
        self.options = TaskOptions.of(request.options)
        train = EmbodiedScanDataset(request.data, "train")
        val = None if request.val is None else EmbodiedScanDataset(request.val, "val")
        self.classes = _classes(train) if self.options.classes == "data" else tuple(DETECTION_CLASSES)
        config = task_config(request, len(self.classes))
        torch.manual_seed(request.seed)
        network = PerceptionNetwork(config, pretrained_images=self.options.images == "imagenet")
        self.config = config
        if request.weights is not None:
            _start_from(network, request.weights, self.options.learn)
        if self.options.images not in ("", "imagenet"):
            load_images(network, load_checkpoint(self.options.images).state)
        self.end_to_end = config.uses_images and not self.options.images
        if config.uses_images and not self.end_to_end:
            for part in (network.image_encoder, network.image_projection):
                if part is not None:
                    part.requires_grad_(False)
        if self.options.learn == "grounding":
            if network.grounding is None:
                raise ValueError(f"option learn=grounding: a network of task {request.task} has no grounding")
            network.requires_grad_(False)
            network.grounding.requires_grad_(True)
        self.model: nn.Module = network
        self.fusion = view_reading(config)
        known = set(self.classes)
        order = balanced_order([known.intersection(scan.labels) for scan in train], self.options.balance)
        source = self._source(train, network, self._spec(training=True))
        self.samples = SceneSource(*source, self.options.repeat, order)
        self._validation = None
        if val is not None:
            self._validation = SceneSource(*self._source(val, network, self._spec(training=False)), 1)
        heads = ("detection", "occupancy", "grounding")
        self.heads = tuple(h for h in heads if getattr(config, h) is not None)
        self._continuous = self._spec(training=False).choice == "prefix"
        if self.options.learn == "grounding":
            self.heads = ("grounding",)
        learned = _HEADS[request.task] if self.options.learn == "all" else self.options.learn
        self.best_metric = {"occupancy": "mIoU", "grounding": "top1_acc25"}.get(learned, "AP25")
        self.detection_criterion = DetectionCriterion(
            min_size_m=MIN_BOX_M,
            iou_weight=1.0,
            corner_weights=PLAIN if request.box_loss == "plain" else DECOUPLED,
            two_sided=True,
        )
        self.occupancy_criterion = OccupancyCriterion()
        self.grounding_criterion = GroundingCriterion(iou_weight=1.0, two_sided=True)
        self.pointing_criterion = PointerCriterion()

    # ----------------------------------------------------------------------------------------------------------- data

    def _spec(self, training: bool) -> SampleSpec:
        motion = None
        if training:
            motion = PAPER_MOTION if self.config.inputs == "xyz" else MOTIONS[self.options.turns]
        absent = 0.0
        if training and self.config.grounding is not None and self.config.grounding.queries == "objects":
            absent = self.options.absent_share
        return SampleSpec(
            window_m=self.options.window_m or (math.inf if self.config.inputs == "xyz" else WINDOW_M),
            motion=motion,
            choice=_CHOICES.get(self.request.task, "all"),  # type: ignore[arg-type]
            views=0 if training or self.request.truth_views <= self._views else self._views,
            sentences=(self.options.sentences if training else 16) if self.config.grounding is not None else 0,
            absent_share=absent,
            sentence_share=self.options.sentence_share if training else 1.0,
            occupancy_share=(0.0 if self.options.learn == "grounding" else self.options.occupancy_share)
            if training
            else 1.0,
        )

    @property
    def _views(self) -> int:
        """At most so many make a sample."""
        return self.request.views or _OFFICIAL_VIEWS.get(self.request.task, 10)

    def _source(
        self, dataset: EmbodiedScanDataset, network: PerceptionNetwork, spec: SampleSpec
    ) -> tuple[SceneCache, SampleMaker]:
        """Cache and sample maker of a split."""
        config = self.config
        inference, digest = None, ""
        if config.uses_images and not self.end_to_end:
            occupied = OCCUPANCY_CLASSES if config.occupancy is not None else ()
            inference = Predictor(copy.deepcopy(network), self.classes, occupied)
            digest = image_digest(network)
        text, name = None, ""
        if config.grounding is not None:
            name = config.grounding.text_encoder
            text = text_encoder(name)
        folder = Path(self.options.cache) if self.options.cache else dataset.root / ".prepared"
        views = max(self._views, self.request.truth_views) if spec.views else self._views
        preparation = Preparation(views=views, image_encoder=digest, text_encoder=name)
        cache = SceneCache(dataset, folder, preparation, inference, text)
        maker = SampleMaker(config, self.classes, spec, cache, self.end_to_end)
        return cache, maker

    def collate(self, samples: Sequence[SceneSample]) -> SceneBatch:
        """A batch."""
        return SceneBatch(list(samples))

    # --------------------------------------------------------------------------------------------------------- losses

    def losses(self, model: nn.Module, batch: SceneBatch, reduce: Reduce) -> Losses:
        """Weighted losses of every head."""
        network = _network(model)
        if self.options.learn == "grounding":
            for name, part in network.named_children():
                part.train(part.training and name == "grounding")  # statistics of what stays as it is stay too
            with torch.no_grad():
                run = Run(network, batch, self.fusion)
            return _weighted(self.options.w_grounding, "grounding/", self._grounding(run, reduce))
        run = Run(network, batch, self.fusion, self.detection_criterion.min_points)
        total: Losses = {}
        if network.detection is not None:
            total.update(_weighted(self.options.w_detection, "", self._detection(run, reduce)))
        if network.occupancy is not None:
            total.update(_weighted(self.options.w_occupancy, "occupancy/", self._occupancy(run, reduce)))
        if network.grounding is not None:
            total.update(_weighted(self.options.w_grounding, "grounding/", self._grounding(run, reduce)))
        return total

    def _detection(self, run: Run, reduce: Reduce) -> Losses:
        assert run.detection is not None
        predictions = detection_predictions(run.detection.levels, self.config.voxel_size_m)
        targets = [BoxTarget(s.boxes, s.labels) for s in run.batch.samples]
        return dataclasses.replace(self.detection_criterion, reduce=reduce)(predictions, targets)

    def _occupancy(self, run: Run, reduce: Reduce) -> Losses:
        rows = [i for i, s in enumerate(run.batch.samples) if s.occupancy is not None]
        device = run.levels[0].device
        if float(reduce(torch.tensor(float(len(rows)), device=device))) == 0:
            return {}
        assert self.config.occupancy is not None
        classes = self.config.occupancy.num_classes + 1
        if rows:
            logits = run.occupancy(rows)
            truth = torch.stack([o for s in run.batch.samples if (o := s.occupancy) is not None])
            targets = [coarse_labels(truth, truth.shape[1] // scores.shape[2], classes) for scores in logits]
        else:  # other processes have some: this one counts along
            logits = [torch.zeros((0, classes, 1, 1, 1), device=device)] * self.config.occupancy.levels
            targets = [torch.zeros((0, 1, 1, 1), dtype=torch.int64, device=device)] * len(logits)
        losses = dataclasses.replace(self.occupancy_criterion, reduce=reduce)(logits, targets)
        # one figure per kind: nine curves of one head tell little
        return {
            kind: torch.stack([v for k, v in losses.items() if k.endswith(kind)]).sum()
            for kind in ("cross_entropy", "semantic", "geometric")
        }

    def _grounding(self, run: Run, reduce: Reduce) -> Losses:
        assert self.config.grounding is not None
        if self.config.grounding.queries == "objects":
            return self._pointing(run, reduce)
        answered = run.grounding()
        if answered is None:
            nothing = run.levels[0].feats.new_zeros(())
            for _ in range(self.config.grounding.layers + 1):  # as often as processes that do have sentences
                reduce(nothing)
            return {}
        out, targets, pad, (selection, positives) = answered
        losses = dataclasses.replace(self.grounding_criterion, reduce=reduce)(grounding_layers(out), targets, ~pad)
        kinds = sorted({k.split("/")[1] for k in losses})
        summed = {kind: torch.stack([v for k, v in losses.items() if k.endswith(kind)]).mean() for kind in kinds}
        return {**summed, "selection": selection / reduce(positives).clamp_min(1.0)}

    def _pointing(self, run: Run, reduce: Reduce) -> Losses:
        pointed = run.pointed()
        losses = dataclasses.replace(self.pointing_criterion, reduce=reduce)(pointed, run.levels[0].feats)
        if not pointed:  # nothing else may be learned: there has to be a gradient, of zero
            assert run.network.grounding is not None
            losses["named"] = losses["named"] + 0.0 * sum(p.sum() for p in run.network.grounding.parameters())
        return losses

    # ----------------------------------------------------------------------------------------------------- validation

    @torch.no_grad()
    def validate(self, model: nn.Module) -> dict[str, float]:
        """Figures on one window of every scene of the validation split, where it stands.

        A window that shows nothing is answered as a robot's is: nothing is found, and every cell counts as free.
        """
        if self._validation is None:
            return {}
        network = _network(model)
        device = next(network.parameters()).device
        judged = Judged(network, self.classes, self.heads)
        for index in range(len(self._validation)):
            # continuous tasks are judged along the way: every scene after another number of views
            sample = self._validation.sample(index, np.random.default_rng(index if self._continuous else 0))
            seen = None
            if len(sample.coords):
                seen = Run(network, to_device(SceneBatch([sample]), device), self.fusion)
            judged.take(sample, seen)
        return judged.figures()

    def save_weights(self, path: Path, model: nn.Module, extra: Mapping[str, Any]) -> None:
        """A file for :func:`~embodied_perceptron.inference.loading.load_network`."""
        known = {"occupancy_classes": list(OCCUPANCY_CLASSES)} if self.config.occupancy is not None else {}
        save_network(path, _network(model), self.classes, {**known, **extra})


# --------------------------------------------------------------------------------------------------------------------


def task_config(request: TaskRequest, num_classes: int) -> NetworkConfig:
    """The network of a request."""
    config = network_config(request.preset, _HEADS[request.task], request.modality, num_classes)
    if request.variant != "ours":
        config = fcaf3d(config, our_decoder=request.variant == "fcaf3d+decoder")
    return config


def _start_from(network: PerceptionNetwork, path: Path, learn: str) -> None:
    """Load weights; where grounding alone is learned, those of another decoder than the network's are left out."""
    found = load_checkpoint(path)
    state = dict(found.state)
    if learn == "grounding" and found.config.get("grounding") != dataclasses.asdict(network.config)["grounding"]:
        own = network.state_dict()
        state = {k: v for k, v in state.items() if not k.startswith("grounding.")}
        state.update({k: v for k, v in own.items() if k.startswith("grounding.")})
    load_into(network, state, str(path))


def image_digest(network: PerceptionNetwork) -> str:
    """SHA-256 over the weights of the 2-D side."""
    digest = hashlib.sha256(repr(network.config.image).encode())
    for name, value in sorted(network.state_dict().items()):
        if name.startswith(("image_encoder.", "image_projection.")):
            digest.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _weighted(weight: float, prefix: str, losses: Losses) -> Losses:
    return {prefix + name: weight * value for name, value in losses.items()}


def _network(model: nn.Module) -> PerceptionNetwork:
    """The network inside of whatever the loop wraps around it."""
    inner = getattr(model, "module", model)
    assert isinstance(inner, PerceptionNetwork)
    return inner


def balanced_order(classes: Sequence[set[str]], share: float) -> list[int]:
    """Classes of every scene -> scenes of one epoch.

    A scene comes ``sqrt(share / f)`` times, at least once, ``f`` being the share of scenes that have the rarest of its
    classes (repeat factor sampling: Gupta, Dollar, Girshick, LVIS, CVPR 2019). Fractions add up along the scenes, so
    that the number of all is right to one.
    """
    count = Counter(name for scene in classes for name in scene)
    order: list[int] = []
    due = 0.0
    for index, scene in enumerate(classes):
        rarest = min((count[name] for name in scene), default=len(classes)) / len(classes)
        due += max(1.0, math.sqrt(share / rarest))
        while len(order) + 1 <= due + 1e-9:
            order.append(index)
    return order


def _classes(dataset: EmbodiedScanDataset) -> tuple[str, ...]:
    """Detection classes that occur in a split, sorted. Raises :class:`DatasetError` when there is none."""
    present = {name for scan in dataset for name in scan.labels}
    classes = tuple(sorted(present & set(DETECTION_CLASSES)))
    if not classes:
        raise DatasetError(f"{dataset.root}: no instance of split {dataset.split} has a detection class")
    return classes
