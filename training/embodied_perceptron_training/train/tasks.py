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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from embodied_perceptron.boxes import points_in_boxes
from embodied_perceptron.categories import DETECTION_CLASSES, OCCUPANCY_CLASSES
from embodied_perceptron.checkpoint import load_checkpoint, load_into
from embodied_perceptron.geometry import pack_site_keys
from embodied_perceptron.nn.detection import decode_detections
from embodied_perceptron.nn.grounding import GroundingOutput
from embodied_perceptron.nn.inference import NetworkInference
from embodied_perceptron.nn.input_features import join_samples
from embodied_perceptron.nn.network import DetectionOutput, PerceptionNetwork, Viewpoint, pad_samples
from embodied_perceptron.nn.presets import NetworkConfig, fcaf3d, network_config
from embodied_perceptron.nn.text_encoder import text_encoder
from embodied_perceptron.nn.view_fusion import FusionConfig, View, view_lookup
from embodied_perceptron.nn.weights import save_network
from embodied_perceptron.sparse.engine import get_engine
from embodied_perceptron.sparse.tensor import Sites, SparseTensor
from embodied_perceptron_training.criteria import (
    DECOUPLED,
    PLAIN,
    BoxTarget,
    DetectionCriterion,
    GroundingCriterion,
    GroundingTarget,
    OccupancyCriterion,
)
from embodied_perceptron_training.datasets.embodiedscan import DatasetError, EmbodiedScanDataset
from embodied_perceptron_training.evaluation.detection_metrics import SceneBoxes, detection_metrics
from embodied_perceptron_training.evaluation.grounding_metrics import GroundingQuery, grounding_metrics
from embodied_perceptron_training.evaluation.occupancy_metrics import SceneOccupancy, occupancy_metrics
from embodied_perceptron_training.losses import sigmoid_focal
from embodied_perceptron_training.matching import coarse_labels
from embodied_perceptron_training.objectives import detection_predictions, grounding_layers, sites_in_boxes
from embodied_perceptron_training.train.augment import ALIGNED_MOTION, PAPER_MOTION, MotionRange
from embodied_perceptron_training.train.images import ImageTask, load_images
from embodied_perceptron_training.train.interface import Losses, Reduce, SampleError, TaskRequest, TrainingTask
from embodied_perceptron_training.train.samples import SampleMaker, SampleSpec, SceneSample, Sentences
from embodied_perceptron_training.train.scenes import Preparation, SceneCache

WINDOW_M = 6.4  # what the robot looks at
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
_MOTIONS = {"aligned": ALIGNED_MOTION, "any": MotionRange()}
_WINDOWS = 8  # tried before a scene counts as empty: some fall behind a wall
_MIN_BOX_M = 0.12  # thinner objects are looked for in a layer this thick: a picture has no voxel's centre inside
_OFFICIAL_VIEWS = {"detection": 20, "grounding": 20, "multi": 20}  # of the paper; 10 for all others


@dataclass(frozen=True)
class TaskOptions:
    """``--set name=value`` of the scene tasks.

    Attributes:
        images: the image encoder: weights file of ``train --task images``, or ``imagenet`` for the preset's packaged
            one. It is then frozen, and scenes keep its features: many times faster. Empty: it is trained along with
            everything else, as the paper does.
        classes: ``data`` (those that occur in the training split) or ``all``.
        window_m: edge of training windows; 0 = the preset's (``paper``: the whole scene).
        sentences: per sample that has any.
        sentence_share, occupancy_share: of the samples that teach grounding and occupancy; steps get cheaper.
        repeat: windows per scene and epoch.
        balance: scenes with a class that fewer than this share of all scenes has come more often, see
            :func:`balanced_order`; 0 = all alike.
        turns: how scenes are turned in training (not ``paper``): ``aligned`` with the lattice up to quarter turns and a
            few degrees, as :class:`~embodied_perceptron.nn.live.LiveNetwork` turns its lattice, or ``any``.
        cache: folder of prepared scenes; empty = ``.prepared`` below the data.
        w_detection, w_occupancy, w_grounding: of the heads' losses.
    """

    images: str = ""
    classes: str = "data"
    window_m: float = 0.0
    sentences: int = 6
    sentence_share: float = 1.0
    occupancy_share: float = 1.0
    repeat: int = 4
    balance: float = 0.0
    turns: str = "aligned"
    cache: str = ""
    w_detection: float = 1.0
    w_occupancy: float = 0.5
    w_grounding: float = 0.3

    @staticmethod
    def of(options: Mapping[str, str]) -> TaskOptions:
        """From text. Raises ``ValueError`` naming an unknown option or a value of the wrong kind."""
        known = {f.name: f for f in dataclasses.fields(TaskOptions)}
        values: dict[str, Any] = {}
        for name, text in options.items():
            if name not in known:
                raise ValueError(f"unknown option {name!r}; known: {', '.join(known)}")
            kind: Callable[[str], Any] = type(known[name].default)
            try:
                values[name] = kind(text)
            except ValueError:
                raise ValueError(f"option {name} must be {type(known[name].default).__name__}, got {text!r}") from None
        if values.get("turns", "any") not in _MOTIONS:
            raise ValueError(f"option turns must be one of {', '.join(_MOTIONS)}, got {values['turns']!r}")
        return TaskOptions(**values)


def build_task(request: TaskRequest) -> TrainingTask:
    """The task of a request. Raises ``ValueError`` (also :class:`DatasetError`) naming what does not fit, ``OSError``
    for files that cannot be read."""
    if request.task == "images":
        return ImageTask(request)
    return SceneTask(request)


@dataclass(frozen=True, eq=False)
class SceneBatch:
    """Samples of one step."""

    samples: list[SceneSample]

    def sparse(self) -> SparseTensor:
        """The input sites of all samples."""
        device = self.samples[0].feats.device
        keys = [
            pack_site_keys(torch.full((len(s.coords),), i, device=device), s.coords) for i, s in enumerate(self.samples)
        ]
        sites = Sites(torch.cat(keys), 1, len(self.samples), get_engine("auto", str(device)))
        return SparseTensor(sites, torch.cat([s.feats for s in self.samples]))


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
                if len(sample.coords):
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
            load_into(network, load_checkpoint(request.weights).state, str(request.weights))
        if self.options.images not in ("", "imagenet"):
            load_images(network, load_checkpoint(self.options.images).state)
        self.end_to_end = config.uses_images and not self.options.images
        if config.uses_images and not self.end_to_end:
            for part in (network.image_encoder, network.image_projection):
                if part is not None:
                    part.requires_grad_(False)
        self.model: nn.Module = network
        self.fusion = FusionConfig(occlusion_margin_m=0.1)
        order = balanced_order([set(scan.labels) & set(self.classes) for scan in train], self.options.balance)
        source = self._source(train, network, self._spec(training=True))
        self.samples = SceneSource(*source, self.options.repeat, order)
        self._validation = None
        if val is not None:
            self._validation = SceneSource(*self._source(val, network, self._spec(training=False)), 1)
        heads = ("detection", "occupancy", "grounding")
        self.heads = tuple(h for h in heads if getattr(config, h) is not None)
        self.best_metric = {"occupancy": "mIoU", "grounding": "top1_acc25"}.get(_HEADS[request.task], "AP25")
        self.detection_criterion = DetectionCriterion(
            min_size_m=_MIN_BOX_M,
            iou_weight=1.0,
            corner_weights=PLAIN if request.box_loss == "plain" else DECOUPLED,
            two_sided=True,
        )
        self.occupancy_criterion = OccupancyCriterion()
        self.grounding_criterion = GroundingCriterion(iou_weight=1.0, two_sided=True)

    # ----------------------------------------------------------------------------------------------------------- data

    def _spec(self, training: bool) -> SampleSpec:
        motion = None
        if training:
            motion = PAPER_MOTION if self.config.inputs == "xyz" else _MOTIONS[self.options.turns]
        return SampleSpec(
            window_m=self.options.window_m or (math.inf if self.config.inputs == "xyz" else WINDOW_M),
            motion=motion,
            choice=_CHOICES.get(self.request.task, "all"),  # type: ignore[arg-type]
            sentences=(self.options.sentences if training else 16) if self.config.grounding is not None else 0,
            sentence_share=self.options.sentence_share if training else 1.0,
            occupancy_share=self.options.occupancy_share if training else 1.0,
        )

    def _source(
        self, dataset: EmbodiedScanDataset, network: PerceptionNetwork, spec: SampleSpec
    ) -> tuple[SceneCache, SampleMaker]:
        """Cache and sample maker of a split."""
        config = self.config
        views = self.request.views or _OFFICIAL_VIEWS.get(self.request.task, 10)
        inference, digest = None, ""
        if config.uses_images and not self.end_to_end:
            occupied = OCCUPANCY_CLASSES if config.occupancy is not None else ()
            inference = NetworkInference(copy.deepcopy(network), self.classes, occupied)
            digest = image_digest(network)
        text, name = None, ""
        if config.grounding is not None:
            name = config.grounding.text_encoder
            text = text_encoder(name)
        folder = Path(self.options.cache) if self.options.cache else dataset.root / ".prepared"
        preparation = Preparation(views=views, image_encoder=digest, text_encoder=name)
        cache = SceneCache(dataset, folder, preparation, inference, text)
        maker = SampleMaker(config, self.classes, spec, cache.fuse, cache.colors if self.end_to_end else None)
        return cache, maker

    def collate(self, samples: Sequence[SceneSample]) -> SceneBatch:
        """A batch."""
        return SceneBatch(list(samples))

    # --------------------------------------------------------------------------------------------------------- losses

    def losses(self, model: nn.Module, batch: SceneBatch, reduce: Reduce) -> Losses:
        """Weighted losses of every head."""
        network = _network(model)
        run = Run(network, batch, self.fusion, prefer=self.detection_criterion.min_points)
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

    # ----------------------------------------------------------------------------------------------------- validation

    @torch.no_grad()
    def validate(self, model: nn.Module) -> dict[str, float]:
        """Figures on one window of every scene of the validation split, where it stands."""
        if self._validation is None:
            return {}
        network = _network(model)
        found, truth, occupancies, queries = {}, {}, [], []
        for index in range(len(self._validation)):
            sample = self._validation.sample(index, np.random.default_rng(0))
            run = Run(network, SceneBatch([sample]), self.fusion)
            if run.detection is not None and self.config.detection is not None:
                d = self.config.detection
                (boxes,) = decode_detections(
                    run.detection.levels,
                    d.max_per_level,
                    d.min_score,
                    d.iou_threshold,
                    max_candidates=d.max_candidates,
                )
                found[sample.name] = SceneBoxes(
                    boxes.boxes.double().numpy(), boxes.labels.numpy(), boxes.scores.numpy()
                )
                truth[sample.name] = SceneBoxes(sample.boxes.double().numpy(), sample.labels.numpy())
            if network.occupancy is not None and sample.occupancy is not None:
                predicted = run.occupancy([0])[0][0].argmax(0)
                occupancies.append(SceneOccupancy(predicted.numpy(), sample.occupancy.numpy()))
            if network.grounding is not None:
                queries.extend(_answers(run))
        return self._figures(found, truth, occupancies, queries)

    def _figures(
        self,
        found: dict[str, SceneBoxes],
        truth: dict[str, SceneBoxes],
        occupancies: list[SceneOccupancy],
        queries: list[GroundingQuery],
    ) -> dict[str, float]:
        figures: dict[str, float] = {}
        if truth and any(len(t.boxes) for t in truth.values()):
            all_figures = detection_metrics(found, truth, self.classes)
            wanted = ("AP25", "AP50", "AR25", "AR50", "AP25_furniture")
            figures.update({k: v for k, v in all_figures.items() if k in wanted})
        if occupancies:
            figures["mIoU"] = occupancy_metrics(occupancies, OCCUPANCY_CLASSES)["mIoU"]
        if queries:
            figures["top1_acc25"] = grounding_metrics(queries)["top1_acc25"]
        return figures

    def save_weights(self, path: Path, model: nn.Module, extra: Mapping[str, Any]) -> None:
        """A file for :func:`~embodied_perceptron.nn.weights.load_network`."""
        known = {"occupancy_classes": list(OCCUPANCY_CLASSES)} if self.config.occupancy is not None else {}
        save_network(path, _network(model), self.classes, {**known, **extra})


class Run:
    """One pass of a network over a batch; heads are asked for as needed.

    Args:
        network, batch: what passes.
        fusion: how voxels read images.
        prefer: nothing that is learned is pruned, levels being told by this number of points (see
            :func:`sites_in_boxes`); 0 = as at inference.
    """

    def __init__(self, network: PerceptionNetwork, batch: SceneBatch, fusion: FusionConfig, prefer: int = 0) -> None:
        self.network = network
        self.batch = batch
        config = network.config
        self.fusion = fusion
        self.views: list[list[View]] = []
        lookup = None
        if config.uses_images:
            self.views = [views_of(network, s) for s in batch.samples]
            lookup = view_lookup(self.views, network.image_channels, config.voxel_size_m, fusion)
        self.levels = network.encode(batch.sparse(), lookup)
        self.detection: DetectionOutput | None = None
        if network.detection is not None:
            wanted = None
            if prefer:
                boxes = [_thick(s.boxes) for s in batch.samples]
                wanted = sites_in_boxes(boxes, self.levels, config.voxel_size_m, prefer)
            self.detection = network.detect(self.levels, wanted)

    def occupancy(self, rows: Sequence[int]) -> list[Tensor]:
        """Logits per scale of the samples ``rows``, each on its own window."""
        level = self.network.config.occupancy_level()
        config = self.network.config.occupancy
        assert config is not None
        if config.dense_images:  # reads images at the cells themselves: one sample after the other
            parts = [self._dense_occupancy(i) for i in rows]
            return [torch.cat(scale) for scale in zip(*parts, strict=True)]
        moved = [moved_to_origin(only(self.levels[level], i), self.batch.samples[i].occupancy_origin) for i in rows]
        levels = [join_samples(moved) if k == level else t for k, t in enumerate(self.levels)]
        return self.network.occupy(levels, (0, 0, 0), None)

    def _dense_occupancy(self, sample: int) -> list[Tensor]:
        network = self.network
        levels = [only(t, sample) for t in self.levels]
        lookup = None
        if network.config.uses_images:
            views = [self.views[sample]]
            lookup = view_lookup(views, network.image_channels, network.config.voxel_size_m, self.fusion)
        return network.occupy(levels, self.batch.samples[sample].occupancy_origin, lookup)

    def grounding(self) -> tuple[GroundingOutput, list[GroundingTarget], Tensor, tuple[Tensor, Tensor]] | None:
        """All sentences of all samples at once: output (boxes in the world), targets, padding of tokens, and the sum
        and normaliser of the loss of the choice of queries; None without any sentence."""
        branch = self.network.grounding
        assert branch is not None
        spoken = [(i, s.sentences) for i, s in enumerate(self.batch.samples) if s.sentences is not None]
        if not spoken:
            return None
        visual, coords, pad = pad_samples(
            branch.visual(self.levels, self.detection), self.network.config.voxel_size_m, self.network.config.official
        )
        spoken = [(i, s) for i, s in spoken if not bool(pad[i].all())]
        if not spoken:
            return None
        rows = torch.tensor([i for i, s in spoken for _ in range(len(s.tokens))])
        tokens, token_pad = _pad_tokens([s for _, s in spoken])
        viewpoint = Viewpoint(
            torch.stack([s.viewpoint_m for _, s in spoken for _ in range(len(s.tokens))]),
            torch.tensor([s.viewpoint_yaw_rad for _, s in spoken for _ in range(len(s.tokens))]),
        )
        own_coords = coords[rows]
        if self.network.config.inputs != "xyz":
            own_coords = viewpoint.from_world(own_coords)
        out = branch.head(visual[rows], own_coords, pad[rows], tokens, token_pad)
        if self.network.config.inputs != "xyz":
            out = dataclasses.replace(out, boxes=viewpoint.boxes_to_world(out.boxes))
        targets = [
            GroundingTarget(b, functional_pad(p, tokens.shape[1]))
            for _, s in spoken
            for b, p in zip(s.boxes, s.positive, strict=True)
        ]
        return out, targets, token_pad, self._selection(out, coords[rows], pad[rows], targets, token_pad)

    @staticmethod
    def _selection(
        out: GroundingOutput, points: Tensor, pad: Tensor, targets: list[GroundingTarget], token_pad: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Focal loss of every voxel with every token, summed: a voxel inside of what the sentence names fits its words;
        and how many do."""
        total, positives = points.new_zeros(()), points.new_zeros(())
        for b, target in enumerate(targets):
            inside = points_in_boxes(points[b], _thick(target.boxes)).float()  # (N, G)
            wanted = (inside @ target.positive.float()).clamp(max=1.0)
            real, words = ~pad[b], ~token_pad[b]
            total = total + sigmoid_focal(out.selection_logits[b][real][:, words], wanted[real][:, words]).sum()
            positives = positives + wanted[real].sum()
        return total, positives


# --------------------------------------------------------------------------------------------------------------------


def task_config(request: TaskRequest, num_classes: int) -> NetworkConfig:
    """The network of a request."""
    config = network_config(request.preset, _HEADS[request.task], request.modality, num_classes)
    if request.variant != "ours":
        config = fcaf3d(config, our_decoder=request.variant == "fcaf3d+decoder")
    return config


def views_of(network: PerceptionNetwork, sample: SceneSample) -> list[View]:
    """The sample's views with the features that it brings, or with those that the encoder makes of its images now."""
    features = sample.features
    if sample.colors is not None:
        assert network.image_encoder is not None
        maps = network.encode_images(network.image_encoder.prepare(sample.colors, sample.image_size))
        features = tuple(m.permute(0, 2, 3, 1) for m in maps)
    depth = sample.depth_mm.float() / 1000.0
    return [
        View(projection, sample.image_size, tuple(level[v] for level in features), depth[v])
        for v, projection in enumerate(sample.projections)
    ]


def image_digest(network: PerceptionNetwork) -> str:
    """SHA-256 over the weights of the 2-D side."""
    digest = hashlib.sha256(repr(network.config.image).encode())
    for name, value in sorted(network.state_dict().items()):
        if name.startswith(("image_encoder.", "image_projection.")):
            digest.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def only(x: SparseTensor, sample: int) -> SparseTensor:
    """One sample of a batch."""
    rows = slice(x.sites.bounds[sample], x.sites.bounds[sample + 1])
    coords = x.coords[rows]
    keys = pack_site_keys(torch.zeros(len(coords), dtype=torch.int64, device=coords.device), coords)
    return SparseTensor(Sites(keys, x.stride, 1, x.sites.engine), x.feats[rows])


def moved_to_origin(x: SparseTensor, origin: Sequence[int]) -> SparseTensor:
    """``origin`` (a multiple of the stride) becomes (0, 0, 0); order is kept."""
    coords = x.coords - torch.tensor(list(origin), device=x.device)
    keys = pack_site_keys(torch.zeros(len(coords), dtype=torch.int64, device=x.device), coords)
    return SparseTensor(Sites(keys, x.stride, 1, x.sites.engine), x.feats)


def functional_pad(mask: Tensor, length: int) -> Tensor:
    """(G, T) bool -> (G, length)."""
    return nn.functional.pad(mask, (0, length - mask.shape[1]))


def _pad_tokens(sentences: Sequence[Sentences]) -> tuple[Tensor, Tensor]:
    length = max(s.tokens.shape[1] for s in sentences)
    tokens = [nn.functional.pad(s.tokens, (0, 0, 0, length - s.tokens.shape[1])) for s in sentences]
    pad = [nn.functional.pad(s.pad, (0, length - s.pad.shape[1]), value=True) for s in sentences]
    return torch.cat(tokens), torch.cat(pad)


def _thick(boxes: Tensor) -> Tensor:
    return torch.cat([boxes[:, :3], boxes[:, 3:6].clamp_min(_MIN_BOX_M), boxes[:, 6:]], dim=1)


def _answers(run: Run) -> list[GroundingQuery]:
    """Ranked boxes of every sentence: by the mean probability of the tokens that name the target."""
    answered = run.grounding()
    if answered is None:
        return []
    out, targets, _, _ = answered
    queries = []
    for b, target in enumerate(targets):
        words = target.positive.any(0)
        scores = out.logits[-1, b].sigmoid()[:, words].mean(1)
        scores = scores.masked_fill(~out.query_valid[b], -1.0)
        best = scores.argsort(descending=True)[:10]
        queries.append(GroundingQuery(out.boxes[-1, b, best].double().numpy(), target.boxes.double().numpy(), {}))
    return queries


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
