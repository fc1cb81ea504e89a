"""One pass of a network over a batch of scene samples, as training and validation need it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from embodied_perceptron.geometry.boxes import points_in_boxes
from embodied_perceptron.geometry.transforms import pack_site_keys
from embodied_perceptron.nn.grounding import GroundingOutput, VoxelGroundingOutput
from embodied_perceptron.nn.input_features import join_samples
from embodied_perceptron.nn.network import (
    DetectionOutput,
    GroundingBranch,
    ObjectGroundingBranch,
    PerceptionNetwork,
    Viewpoint,
    pad_samples,
)
from embodied_perceptron.nn.view_fusion import View, ViewSamplingConfig, view_lookup
from embodied_perceptron.sparse.engine import get_engine
from embodied_perceptron.sparse.tensor import Sites, SparseTensor
from embodied_perceptron_training.training.criteria import GroundingTarget, PointerOutput
from embodied_perceptron_training.training.losses import sigmoid_focal
from embodied_perceptron_training.training.objectives import sites_in_boxes
from embodied_perceptron_training.training.samples import SceneSample, Sentences

MIN_BOX_M = 0.12  # thinner objects are looked for in a layer this thick: a picture has no voxel's centre inside


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
        sites = Sites(torch.cat(keys), 1, len(self.samples), get_engine("auto", device.type))
        return SparseTensor(sites, torch.cat([s.feats for s in self.samples]))


class Run:
    """One pass of a network over a batch; heads are asked for as needed.

    Args:
        network, batch: what passes.
        fusion: how voxels read images.
        min_points: for training: sites of what is learned are not pruned, see :func:`sites_in_boxes`; 0 = pruned as at
            inference.
    """

    def __init__(
        self, network: PerceptionNetwork, batch: SceneBatch, fusion: ViewSamplingConfig, min_points: int = 0
    ) -> None:
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
            if min_points:
                boxes = [clamp_min_size(s.boxes) for s in batch.samples]
                wanted = sites_in_boxes(boxes, self.levels, config.voxel_size_m, min_points)
            self.detection = network.detect(self.levels, wanted)

    def occupancy(self, rows: Sequence[int], scales: int | None = None) -> list[Tensor]:
        """Logits per scale, finest first (only so many ``scales``), of the samples ``rows``, each on its own window."""
        level = self.network.config.occupancy_level()
        config = self.network.config.occupancy
        assert config is not None
        if config.dense_images:  # reads images at the cells themselves: one sample after the other
            parts = [self._dense_occupancy(i, scales) for i in rows]
            return [torch.cat(scale) for scale in zip(*parts, strict=True)]
        moved = [
            moved_to_origin(select_sample(self.levels[level], i), self.batch.samples[i].occupancy_origin) for i in rows
        ]
        levels = [join_samples(moved) if k == level else t for k, t in enumerate(self.levels)]
        return self.network.occupy(levels, (0, 0, 0), None, scales)

    def _dense_occupancy(self, sample: int, scales: int | None) -> list[Tensor]:
        network = self.network
        levels = [select_sample(t, sample) for t in self.levels]
        lookup = None
        if network.config.uses_images:
            views = [self.views[sample]]
            lookup = view_lookup(views, network.image_channels, network.config.voxel_size_m, self.fusion)
        return network.occupy(levels, self.batch.samples[sample].occupancy_origin, lookup, scales)

    def pointed(self) -> list[PointerOutput]:
        """What a decoder over objects says about the sentences of each sample that has any."""
        branch = self.network.grounding
        assert isinstance(branch, ObjectGroundingBranch)
        assert self.detection is not None
        if all(s.sentences is None for s in self.batch.samples):
            return []
        objects = branch.objects(self.detection)
        answers = []
        for i, sample in enumerate(self.batch.samples):
            sentences = sample.sentences
            if sentences is None:
                continue
            viewpoint = Viewpoint(
                sentences.viewpoint_m[None],
                torch.tensor([sentences.viewpoint_yaw_rad], device=sentences.viewpoint_m.device),
            )
            out = branch(objects.scene(i), sentences.tokens, sentences.pad, viewpoint)
            answers.append(PointerOutput(out, sentences.boxes, sentences.named, sentences.pad))
        return answers

    def answers(self) -> GroundingOutput | None:
        """To the sentences of a batch of one sample; None without any sentence, or anything that is seen."""
        if isinstance(self.network.grounding, ObjectGroundingBranch):
            return next((p.output for p in self.pointed()), None)
        grounded = self.grounding()
        return None if grounded is None else grounded[0]

    def grounding(self) -> tuple[VoxelGroundingOutput, list[GroundingTarget], Tensor, tuple[Tensor, Tensor]] | None:
        """What a decoder over voxels says about all sentences of all samples at once: output (boxes in the world),
        targets, padding of tokens, and the sum and normaliser of the loss of the choice of queries; None without any
        sentence."""
        branch = self.network.grounding
        assert isinstance(branch, GroundingBranch)
        spoken = [(i, s.sentences) for i, s in enumerate(self.batch.samples) if s.sentences is not None]
        if not spoken:
            return None
        visual, coords, pad = pad_samples(
            branch.visual(self.levels, self.detection),
            self.network.config.voxel_size_m,
            self.network.config.conventions,
        )
        spoken = [(i, s) for i, s in spoken if not bool(pad[i].all())]
        if not spoken:
            return None
        rows = torch.tensor([i for i, s in spoken for _ in range(len(s.tokens))])
        tokens, token_pad = _pad_tokens([s for _, s in spoken])
        viewpoint = Viewpoint(
            torch.stack([s.viewpoint_m for _, s in spoken for _ in range(len(s.tokens))]),
            torch.tensor([s.viewpoint_yaw_rad for _, s in spoken for _ in range(len(s.tokens))], device=coords.device),
        )
        own_coords = coords[rows]
        if self.network.config.inputs != "xyz":
            own_coords = viewpoint.from_world(own_coords)
        out = branch.head(visual[rows], own_coords, pad[rows], tokens, token_pad)
        if self.network.config.inputs != "xyz":
            out = dataclasses.replace(out, boxes=viewpoint.boxes_to_world(out.boxes))
        targets = [
            GroundingTarget(b, functional_pad(p[None].expand(len(b), -1), tokens.shape[1]))
            for _, s in spoken
            for b, p in zip(s.boxes, s.named, strict=True)
        ]
        return out, targets, token_pad, self._selection(out, coords[rows], pad[rows], targets, token_pad)

    @staticmethod
    def _selection(
        out: VoxelGroundingOutput, points: Tensor, pad: Tensor, targets: list[GroundingTarget], token_pad: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Focal loss of every voxel with every token, summed: a voxel inside of what the sentence names fits its words;
        and how many do."""
        total, positives = points.new_zeros(()), points.new_zeros(())
        for b, target in enumerate(targets):
            inside = points_in_boxes(points[b], clamp_min_size(target.boxes)).float()  # (N, G)
            wanted = (inside @ target.positive.float()).clamp(max=1.0)
            real, words = ~pad[b], ~token_pad[b]
            total = total + sigmoid_focal(out.selection_logits[b][real][:, words], wanted[real][:, words]).sum()
            positives = positives + wanted[real].sum()
        return total, positives


def views_of(network: PerceptionNetwork, sample: SceneSample) -> list[View]:
    """The sample's views with the features that it brings, or with those that the encoder makes of its images now."""
    features = sample.features
    if sample.colors is not None:
        assert network.image_encoder is not None
        maps = network.encode_images(network.image_encoder.prepare(sample.colors, sample.image_size))
        features = tuple(m.permute(0, 2, 3, 1) for m in maps)
    depth = None if network.config.modality == "rgb" else sample.depth_mm.float() / 1000.0
    return [
        View(projection, sample.image_size, tuple(level[v] for level in features), None if depth is None else depth[v])
        for v, projection in enumerate(sample.projections)
    ]


def select_sample(x: SparseTensor, sample: int) -> SparseTensor:
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


def clamp_min_size(boxes: Tensor) -> Tensor:
    """(G, 9) boxes, no side thinner than :data:`MIN_BOX_M`."""
    return torch.cat([boxes[:, :3], boxes[:, 3:6].clamp_min(MIN_BOX_M), boxes[:, 6:]], dim=1)
