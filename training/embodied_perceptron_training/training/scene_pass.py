"""One pass of the network over the samples of a step, as read by losses and validation metrics."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from embodied_perceptron.geometry.transforms import pack_site_keys
from embodied_perceptron.nn.backbone import SiteMask
from embodied_perceptron.nn.grounding import (
    DetectedObjects,
    GroundingOutput,
    ObjectGroundingOutput,
    VoxelGroundingOutput,
)
from embodied_perceptron.nn.network import CandidateVoxels, PerceptionNetwork, SharedFeatures, Viewpoint
from embodied_perceptron.nn.view_fusion import View
from embodied_perceptron.sparse.engine import get_engine
from embodied_perceptron.sparse.sites import Sites
from embodied_perceptron.sparse.tensor import SparseTensor
from embodied_perceptron_training.training.criteria import PointerOutput, sites_in_boxes
from embodied_perceptron_training.training.samples import SceneSample, Sentences

MIN_BOX_M = 0.12  # least side of a box in the assignment: no voxel centre lies in a thin picture


@dataclass(frozen=True, eq=False)
class SceneBatch:
    samples: list[SceneSample]

    def sparse(self) -> SparseTensor:
        """The input sites of all samples."""
        device = self.samples[0].feats.device
        keys = [
            pack_site_keys(torch.full((len(s.coords),), i, device=device), s.coords) for i, s in enumerate(self.samples)
        ]
        bounds = list(itertools.accumulate((len(s.coords) for s in self.samples), initial=0))
        sites = Sites(torch.cat(keys), 1, len(self.samples), get_engine("auto", device.type), bounds=bounds)
        return SparseTensor(sites, torch.cat([s.feats for s in self.samples]))

    def boxes(self) -> list[Tensor]:
        """(G, 9) of every sample, with no side below :data:`MIN_BOX_M`."""
        return [clamp_min_size(s.boxes) for s in self.samples]


@dataclass(frozen=True, eq=False)
class VoxelAnswers:
    """Answers of a decoder over voxels to the S sentences of all samples."""

    output: VoxelGroundingOutput  # boxes in the world
    boxes: list[Tensor]  # per sentence the (G, 9) targets
    named: list[Tensor]  # per sentence (T,) bool, the tokens that name the target
    tokens: Tensor  # (S, T, C) of the text encoder
    token_pad: Tensor  # (S, T) True at padding


class ScenePass:
    """One pass of a network over a batch.

    Args:
        network, batch: the inputs.
        views: of the samples; None = encoded here. Samples that share the views of the one before are its first ones.
        min_points: in training, sites of boxes learned on a level are not pruned, see
            :func:`~embodied_perceptron_training.training.criteria.sites_in_boxes`; 0 = pruned as at inference.
    """

    def __init__(
        self,
        network: PerceptionNetwork,
        batch: SceneBatch,
        min_points: int = 0,
        views: list[list[View]] | None = None,
    ) -> None:
        self.network = network
        self.batch = batch
        self._views = ([] if views is None else views) if network.config.uses_images else []
        for sample in batch.samples if network.config.uses_images and views is None else ():
            shared = sample.shares_views
            self._views.append(self._views[-1][: len(sample.projections)] if shared else views_of(network, sample))

        def prefer(levels: Sequence[SparseTensor]) -> SiteMask:
            return sites_in_boxes(batch.boxes(), levels, network.config.voxel_size_m, min_points)

        lookup = network.lookup(self._views) if network.config.uses_images else None
        self.features: SharedFeatures = network(batch.sparse(), lookup, prefer if min_points else None)

    def occupancy(self, rows: Sequence[int], scales: int | None = None) -> list[Tensor]:
        """Logits per scale, finest first (only the first ``scales``), of the samples ``rows``, each on its own
        window."""
        origins = {i: self.batch.samples[i].occupancy_origin for i in rows}
        return self.network.occupy_scenes(self.features, origins, self._views, scales)

    def pointed(self) -> list[PointerOutput]:
        """Answers of a decoder over objects to the sentences of all samples that have any."""
        spoken = [(i, s.sentences) for i, s in enumerate(self.batch.samples) if s.sentences is not None]
        if not spoken:
            return []
        objects = self._candidates()
        assert isinstance(objects, DetectedObjects)
        sentences = [s for _, s in spoken]
        each, length = max(len(s.tokens) for s in sentences), max(s.tokens.shape[1] for s in sentences)
        tokens, pad, named = (
            torch.cat([_padded(getattr(s, name), each, length, fill) for s in sentences])
            for name, fill in (("tokens", 0.0), ("pad", True), ("named", False))
        )
        rows = [k * each + n for k, s in enumerate(sentences) for n in range(len(s.tokens))]
        if len(spoken) < len(objects.boxes):
            objects = objects.scenes(_like([i for i, _ in spoken], tokens))
        masked = pad
        if len(rows) < len(pad):  # padding sentences keep one token, a zero, since attention needs one
            masked = pad & ~_like([[n == 0 and k not in rows for n in range(length)] for k in range(len(pad))], pad)
        out = self.network.ground(objects, tokens, masked, _viewpoint(sentences))
        assert isinstance(out, ObjectGroundingOutput)
        boxes = [boxes for s in sentences for boxes in s.boxes]
        if len(rows) == len(pad):
            return [PointerOutput(out, boxes, named, pad)]
        real = _like(rows, tokens)
        mine = ObjectGroundingOutput(
            out.boxes[:, real], out.logits[:, real], out.hidden[:, real], out.query_valid[real], out.log_shares[:, real]
        )
        return [PointerOutput(mine, boxes, named[real], pad[real])]

    def voxel_answers(self) -> VoxelAnswers | None:
        """Answers of a decoder over voxels; None without any sentence about a sample with input sites."""
        spoken = [
            (i, s.sentences)
            for i, s in enumerate(self.batch.samples)
            if s.sentences is not None and len(s.coords)  # such samples have voxels on every level
        ]
        if not spoken:
            return None
        candidates = self._candidates()
        assert isinstance(candidates, CandidateVoxels)
        rows = _like([i for i, s in spoken for _ in range(len(s.tokens))], candidates.pad)
        sentences = [s for _, s in spoken]
        length = max(s.tokens.shape[1] for s in sentences)
        tokens = torch.cat([nn.functional.pad(s.tokens, (0, 0, 0, length - s.tokens.shape[1])) for s in sentences])
        token_pad = torch.cat([nn.functional.pad(s.pad, (0, length - s.pad.shape[1]), value=True) for s in sentences])
        viewers = None  # the world itself
        if self.network.config.inputs != "xyz":
            viewers = _viewpoint([s for s in sentences for _ in range(len(s.tokens))])
        out = self.network.ground(candidates, tokens, token_pad, viewers, rows)
        assert isinstance(out, VoxelGroundingOutput)
        return VoxelAnswers(
            out,
            [boxes for s in sentences for boxes in s.boxes],
            [nn.functional.pad(named, (0, length - len(named))) for s in sentences for named in s.named],
            tokens,
            token_pad,
        )

    def answers(self) -> GroundingOutput | None:
        """Answers for a batch of one sample; None without sentences or input sites."""
        config = self.network.config.grounding
        if config is not None and config.queries == "objects":
            return next((p.output for p in self.pointed()), None)
        answered = self.voxel_answers()
        return None if answered is None else answered.output

    def _candidates(self) -> CandidateVoxels | DetectedObjects:
        return self.network.candidates(self.features.levels, self.features.detection)


def views_of(network: PerceptionNetwork, sample: SceneSample) -> list[View]:
    """The sample's views with its own features, or with those that the encoder computes from its images. Features of
    the encoder itself are projected here, so that the projections learn."""
    features, project = sample.features, network.image_projection
    if features and project is not None and features[0].shape[-1] != network.image_channels[0]:
        features = tuple(
            nn.functional.linear(level.float(), conv.weight.flatten(1), conv.bias)
            for level, conv in zip(features, project, strict=True)
        )
    if sample.colors is not None:
        maps = network.encode_images(sample.colors, sample.image_size)
        features = tuple(m.permute(0, 2, 3, 1) for m in maps)
    depth = None if network.config.modality == "rgb" else sample.depth_mm.float() / 1000.0
    return [
        View(projection, sample.image_size, tuple(level[v] for level in features), None if depth is None else depth[v])
        for v, projection in enumerate(sample.projections)
    ]


def _padded(values: Tensor, rows: int, length: int, fill: float) -> Tensor:
    """(K, T, ...) -> (rows, length, ...), padded with ``fill``."""
    missing = rows - values.shape[0], length - values.shape[1]
    if missing == (0, 0):
        return values
    return nn.functional.pad(values, (*[0, 0] * (values.ndim - 2), 0, missing[1], 0, missing[0]), value=fill)


def _like(values: Sequence[Any], like: Tensor) -> Tensor:
    return torch.tensor(values).to(like.device, non_blocking=True)


def _viewpoint(sentences: Sequence[Sentences]) -> Viewpoint:
    """Viewpoints of sentences."""
    positions = torch.stack([s.viewpoint_m for s in sentences])
    return Viewpoint(positions, _like([s.viewpoint_yaw_rad for s in sentences], positions))


def clamp_min_size(boxes: Tensor) -> Tensor:
    """(G, 9) boxes with no side below :data:`MIN_BOX_M`."""
    return torch.cat([boxes[:, :3], boxes[:, 3:6].clamp_min(MIN_BOX_M), boxes[:, 6:]], dim=1)
