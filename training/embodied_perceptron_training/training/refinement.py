"""``train --task boxes``: train the refinement head (:mod:`~embodied_perceptron.nn.refinement`) over a frozen network.

The proposals in a window of a scene, and the features that the head reads, do not change while the head is trained. So
every scene is predicted a few times, each time moved and cut anew as in other trainings, and the proposals are kept on
the disk: a step costs tens of milliseconds. The scenes should differ from those that the network was trained on, where
it makes fewer errors than on others.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from embodied_perceptron.geometry.boxes import box_iou
from embodied_perceptron.inference.loading import read_network, save_network
from embodied_perceptron.nn.detection import BoxPredictions
from embodied_perceptron.nn.network import PerceptionNetwork
from embodied_perceptron.nn.presets import RefinementConfig
from embodied_perceptron.nn.refinement import Proposals, RefinementHead, refine
from embodied_perceptron.recordings.files import atomic_path
from embodied_perceptron.weights.checkpoint import load_into
from embodied_perceptron_training.evaluation.metrics.detection import SceneBoxes, detection_metrics
from embodied_perceptron_training.training.criteria import Losses, Reduce
from embodied_perceptron_training.training.samples import SceneSample, SceneSource
from embodied_perceptron_training.training.scene_pass import SceneBatch, ScenePass
from embodied_perceptron_training.training.task import JoinedSources, SampleError

_FORMAT_VERSION = 1
_WINDOWS = 4  # of a scene in a sample
_BOXES = 96  # object proposals in a window, and half as many background ones
_PROPOSALS = 320  # in a window: more than are refined later, since background is trained too
_MIN_SCORE = 0.01  # their first score
_PREFIX = "second_look."
_NEAR, _RIGHT = 0.1, 0.5  # IoU of targets 0 and 1
_LEAST_IOU = 0.15
_TRUTH_ABOVE = 0.02  # first score of boxes in the figures before refinement
_FAINT = 0.03  # added to scores when background is drawn, so that every proposal may be drawn
_HALF = ("log_odds", "place", "right")
_FIGURES = ("AP25", "AP50", "AR25", "AP25_furniture")


@dataclass(frozen=True, eq=False)
class LabelledProposals:
    """Proposals of one or several windows, and their targets."""

    seen: Proposals  # P proposals
    right: Tensor  # (P, K + 1) targets of each class, and of presence: 0 to 1 by the overlap


@dataclass(frozen=True, eq=False)
class _Window:
    """A window kept on the disk: proposals, (G, 9) true boxes and (G,) labels."""

    proposals: LabelledProposals
    truth: Tensor
    labels: Tensor


def overlap_targets(iou: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """(P, G) IoU with objects of (G,) ``labels`` -> (P, K + 1) :attr:`LabelledProposals.right`."""
    share = ((iou - _NEAR) / (_RIGHT - _NEAR)).clamp(0.0, 1.0) * (iou > _LEAST_IOU)
    right = iou.new_zeros(len(iou), num_classes + 1)
    right.scatter_reduce_(1, labels[None].expand(len(iou), -1), share, "amax")
    right[:, num_classes] = share.amax(1) if share.shape[1] else 0.0
    return right


def label_proposals(seen: Proposals, truth: Tensor, labels: Tensor, num_classes: int) -> LabelledProposals:
    """Proposals of one window with their targets; ``labels`` of objects without a class are ``num_classes``."""
    iou = box_iou(seen.boxes, truth.to(seen.boxes.dtype))
    return LabelledProposals(seen, overlap_targets(iou, labels, num_classes).float())


class ProposalWindows:
    """Samples: proposals in some of the ``windows`` of one scene.

    Args:
        source: of the windows.
        network: that proposes; on the CPU.
        folder: of kept proposals.
        windows: per scene; number ``k`` of a scene is always the same.
    """

    def __init__(self, source: SceneSource, network: PerceptionNetwork, folder: Path, windows: int) -> None:
        self._source = source
        self._network = network
        self._folder = folder
        self._count = windows
        self._digest = network_digest(network)

    def __len__(self) -> int:
        return len(self._source)

    def sample(self, index: int, rng: np.random.Generator) -> LabelledProposals:
        """See :class:`~embodied_perceptron_training.training.task.SampleSource`."""
        chosen = rng.permutation(self._count)[:_WINDOWS]
        return joined([self._drawn(self.window(index, int(k)).proposals, rng) for k in chosen])

    def window(self, index: int, number: int) -> _Window:
        """Window ``number`` of scene ``index``, read from the disk if it exists."""
        path = self._folder / f"{self._key(index, number)}.safetensors"
        if not path.exists():
            (sample,) = self._source.sample(index, np.random.default_rng([zlib.crc32(path.stem.encode()), number]))
            self._folder.mkdir(parents=True, exist_ok=True)
            with atomic_path(path) as temporary:
                save_file(_stored(self._propose(sample)), temporary)
        try:
            with safe_open(str(path), "pt") as file:
                return _loaded({name: file.get_tensor(name) for name in list(file.keys())})
        except (SafetensorError, KeyError) as error:
            raise SampleError(path.name, f"damaged ({error}): delete it") from error

    @torch.inference_mode()
    def _propose(self, sample: SceneSample) -> _Window:
        features = ScenePass(self._network, SceneBatch([sample])).features
        (seen,) = self._network.proposals(features, _PROPOSALS, _MIN_SCORE)
        proposals = label_proposals(seen, sample.boxes, sample.labels, self._network.config.num_classes)
        return _Window(proposals, sample.boxes, sample.labels)

    def _drawn(self, proposals: LabelledProposals, rng: np.random.Generator) -> LabelledProposals:
        """A random subset of the proposals, with slight variations; background proposals are drawn in proportion to
        their scores."""
        right, seen = proposals.right, proposals.seen
        thing = np.flatnonzero(right.amax(1).numpy() > 0)
        nothing = np.flatnonzero(right.amax(1).numpy() == 0)
        chosen = [rng.permutation(thing)[:_BOXES]]
        if len(nothing):
            weight = torch.sigmoid(seen.log_odds[nothing]).amax(1).double().numpy() + _FAINT
            count = min(len(nothing), _BOXES // 2)
            chosen.append(rng.choice(nothing, count, replace=False, p=weight / weight.sum()))
        rows = torch.from_numpy(np.sort(np.concatenate(chosen)))
        grid = seen.rows[rows]
        edge = round(grid.shape[1] ** (1 / 3))
        for axis in (0, 1):  # a box has no front: turn by 180 degrees, or mirror
            if rng.random() < 0.5:
                grid = grid.reshape(len(rows), edge, edge, edge, *grid.shape[2:]).flip(axis + 1).reshape(grid.shape)
        if rng.random() < 0.2:  # one source is missing
            grid = grid.clone()
            grid[..., int(rng.integers(grid.shape[-1]))] = -1
        log_odds = seen.log_odds[rows]
        if rng.random() < 0.3:
            log_odds = log_odds + torch.from_numpy(rng.normal(0.0, 0.5, log_odds.shape)).to(log_odds.dtype)
        place = seen.place[rows]
        place = place + torch.from_numpy(rng.normal(0.0, 0.03, place.shape)).to(place.dtype)
        drawn = Proposals(seen.boxes[rows], log_odds, place, grid, seen.sources)
        return LabelledProposals(drawn, right[rows])

    def _key(self, index: int, number: int) -> str:
        text = json.dumps([_FORMAT_VERSION, self._digest, self._source.name(index), number])
        return hashlib.sha256(text.encode()).hexdigest()[:24]


class RefinementTask:
    """The task ``train --task boxes``. See the module docstring and
    :class:`~embodied_perceptron_training.training.task.TrainingTask`.

    Args:
        network: frozen, with a refinement head (:func:`with_refinement_head`).
        classes: of the network.
        extra: of its weights file, kept.
        samples, validation: of both splits.
    """

    best_metric = "AP25"

    def __init__(
        self,
        network: PerceptionNetwork,
        classes: tuple[str, ...],
        extra: Mapping[str, Any],
        samples: JoinedSources[ProposalWindows],
        validation: ProposalWindows | None,
    ) -> None:
        assert network.second_look is not None
        self.network = network
        self.classes = classes
        self.extra = extra
        self.samples = samples
        self.model: nn.Module = network.second_look
        self._validation = validation

    def collate(self, samples: Sequence[LabelledProposals]) -> LabelledProposals:
        """A batch."""
        return joined(samples)

    def losses(self, model: nn.Module, batch: LabelledProposals, reduce: Reduce) -> Losses:
        """Binary cross entropy of classes and presence against their targets."""
        logits = model(batch.seen)
        wrong = functional.binary_cross_entropy_with_logits(logits, batch.right, reduction="none")
        boxes = reduce(wrong.new_tensor(float(len(wrong)))).clamp(min=1.0)
        return {"classes": wrong[:, :-1].sum() / boxes, "presence": 0.5 * wrong[:, -1].sum() / boxes}

    @torch.no_grad()
    def validate(self, model: nn.Module) -> dict[str, float]:
        """Figures on one window of every scene of the validation split, after refinement and (``_first``) before it."""
        if self._validation is None:
            return {}
        head = getattr(model, "module", model)
        assert isinstance(head, RefinementHead)
        config = self.network.config.detection
        assert config is not None
        num_classes = len(self.classes)
        found: dict[str, dict[str, SceneBoxes]] = {"": {}, "_first": {}}
        truth: dict[str, SceneBoxes] = {}
        for index in range(len(self._validation)):
            window, name = self._validation.window(index, 0), str(index)
            seen = window.proposals.seen
            again = refine(head, seen, config.min_score, config.iou_threshold)
            found[""][name] = _scored(again, num_classes)
            p = torch.sigmoid(seen.log_odds)
            row, label = (p > _TRUTH_ABOVE).nonzero(as_tuple=True)
            found["_first"][name] = _scored(BoxPredictions(seen.boxes[row], p[row, label], label), num_classes)
            named = window.labels < num_classes
            truth[name] = SceneBoxes(window.truth[named].double().numpy(), window.labels[named].numpy())
        if not any(len(scene.labels) for scene in truth.values()):
            return {}
        figures = {}
        for kind, boxes in found.items():
            metrics = detection_metrics(boxes, truth, self.classes)
            figures.update({name + kind: metrics[name] for name in _FIGURES if name in metrics})
        return figures

    def save_weights(self, path: Path, model: nn.Module, extra: Mapping[str, Any]) -> None:
        """Write the whole network, without the calibration of its file, which no longer fits the scores."""
        network = self.network
        state = {k: v.detach().cpu() for k, v in getattr(model, "module", model).state_dict().items()}
        whole = {**network.state_dict(), **{_PREFIX + k: v for k, v in state.items()}}
        copied = PerceptionNetwork(network.config)
        copied.load_state_dict(whole)
        save_network(path, copied, self.classes, {**self.extra, **extra})


def with_refinement_head(path: Path) -> tuple[PerceptionNetwork, tuple[str, ...], dict[str, Any]]:
    """The network of a weights file, with a new refinement head where it has none; its classes; its kept notes.

    Raises as :func:`~embodied_perceptron.inference.loading.read_network`; ``ValueError`` without detection.
    """
    network, checkpoint = read_network(path)
    config = network.config
    if config.detection is None:
        raise ValueError(f"{path}: a refinement head needs a network with detection")
    extra = {k: v for k, v in checkpoint.extra.items() if k == "occupancy_classes"}
    if config.detection.second_look is None:
        detection = dataclasses.replace(config.detection, second_look=RefinementConfig())
        extended = PerceptionNetwork(dataclasses.replace(config, detection=detection))
        new = {k: v for k, v in extended.state_dict().items() if k.startswith(_PREFIX)}
        load_into(extended, {**network.state_dict(), **new}, str(path))
        network = extended
    network.eval().requires_grad_(False)
    assert network.second_look is not None
    network.second_look.requires_grad_(True)
    return network, checkpoint.classes, extra


def network_digest(network: PerceptionNetwork) -> str:
    """SHA-256 over everything that determines the inputs of a refinement head: the network without that head and
    without the decoders of occupancy and sentences."""
    detection = network.config.detection
    assert detection is not None
    cells = (detection.second_look or RefinementConfig()).cells
    alone = dataclasses.replace(detection, second_look=None)
    config = dataclasses.replace(network.config, detection=alone, occupancy=None, grounding=None)
    digest = hashlib.sha256(repr((config, cells, _PROPOSALS)).encode())
    for name, value in sorted(network.state_dict().items()):
        if not name.startswith((_PREFIX, "occupancy.", "grounding.")):
            digest.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def joined(parts: Sequence[LabelledProposals]) -> LabelledProposals:
    """Proposals of several windows as those of one."""
    rows: list[Tensor] = []
    starts = [0] * len(parts[0].seen.sources)
    for part in parts:
        shift = torch.tensor(starts, dtype=torch.int32)
        rows.append(torch.where(part.seen.rows >= 0, part.seen.rows + shift, -1))
        starts = [start + len(source) for start, source in zip(starts, part.seen.sources, strict=True)]
    sources = zip(*(part.seen.sources for part in parts), strict=True)
    seen = Proposals(
        torch.cat([part.seen.boxes for part in parts]),
        torch.cat([part.seen.log_odds for part in parts]),
        torch.cat([part.seen.place for part in parts]),
        torch.cat(rows),
        tuple(torch.cat(source) for source in sources),
    )
    return LabelledProposals(seen, torch.cat([part.right for part in parts]))


def _scored(found: BoxPredictions, num_classes: int) -> SceneBoxes:
    named = found.labels < num_classes
    boxes, labels, scores = (v[named].cpu().numpy() for v in (found.boxes.double(), found.labels, found.scores))
    return SceneBoxes(boxes, labels, scores)


def _stored(window: _Window) -> dict[str, Tensor]:
    """Tensors for a file; values other than coordinates in half precision."""
    proposals, seen = window.proposals, window.proposals.seen
    tensors = {"boxes": seen.boxes, "rows": seen.rows, "truth": window.truth, "labels": window.labels}
    tensors.update({"log_odds": seen.log_odds, "place": seen.place, "right": proposals.right})
    tensors.update({f"source{i}": source for i, source in enumerate(seen.sources)})
    half = (*_HALF, *(f"source{i}" for i in range(len(seen.sources))))
    return {k: (v.half() if k in half else v).contiguous().clone() for k, v in tensors.items()}


def _loaded(tensors: Mapping[str, Tensor]) -> _Window:
    """Inverse of :func:`_stored`. Raises ``KeyError``."""
    names = sorted(name for name in tensors if name.startswith("source"))
    seen = Proposals(
        tensors["boxes"],
        tensors["log_odds"].float(),
        tensors["place"].float(),
        tensors["rows"],
        tuple(tensors[name] for name in names),
    )
    return _Window(LabelledProposals(seen, tensors["right"].float()), tensors["truth"], tensors["labels"])
