"""Baselines of the paper's tables: parts that replace one part of the network in a comparison.

U-Net encoder     MinkUNet (Choy et al., CVPR 2019): every level reads the coarser ones before images are fused
votes             VoteNet (Qi et al., ICCV 2019): sites vote for the centre of their object, and boxes are predicted in
                  the cells that receive votes; the original samples and groups points instead
ScanRefer         Chen et al., ECCV 2020: one score per detected object, from the object and the whole sentence
BUTD-DETR         Jain et al., ECCV 2022: objects and tokens attend to each other, without pair geometry
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from embodied_perceptron.geometry.transforms import pack_site_keys
from embodied_perceptron.nn.backbone import SiteMask, conv_block
from embodied_perceptron.nn.detection import DetectionHead, DetectionLevel, Votes
from embodied_perceptron.nn.grounding import (
    DetectedObjects,
    ObjectGroundingHead,
    log_shares_of,
    of_sentences,
)
from embodied_perceptron.nn.presets import DetectionConfig
from embodied_perceptron.sparse.conv import SparseBatchNorm, SparseConv, SparseTransposedConv
from embodied_perceptron.sparse.tensor import SparseTensor

_MAX_VOTE_M = 3.0


class UNetDecoder(nn.Module):
    """Passes features of each level to the sites of the next finer one; ``channels`` of each level, finest first."""

    def __init__(self, channels: Sequence[int]) -> None:
        super().__init__()
        pairs = list(itertools.pairwise(channels))
        self.up = nn.ModuleList(SparseTransposedConv(coarse, fine, 2, 2) for fine, coarse in pairs)
        self.join = nn.ModuleList(SparseConv(2 * fine, fine, 3) for fine, _ in pairs)
        self.norm = nn.ModuleList(SparseBatchNorm(fine) for fine, _ in pairs)

    def forward(self, levels: Sequence[SparseTensor]) -> list[SparseTensor]:
        """Levels finest first -> levels on the same sites, the coarsest unchanged."""
        found = [levels[-1]]
        for i in range(len(levels) - 2, -1, -1):
            skip, coarse = levels[i], found[0]
            refined: SparseTensor = self.up[i](coarse, skip.sites)
            joined = self.norm[i](self.join[i](skip.replace(torch.cat([skip.feats, refined.feats], dim=1))))
            found.insert(0, joined.replace(joined.feats.relu()))
        return found


class VotingHead(DetectionHead):
    """Detection by votes; same arguments as :class:`DetectionHead`."""

    seeds = 0  # level whose sites vote, and whose cells collect votes

    def __init__(self, in_channels: Sequence[int], config: DetectionConfig, *args: Any) -> None:
        super().__init__(in_channels, config, *args)
        del self.neck
        channels = config.channels
        self.seed = conv_block(in_channels[self.seeds], channels, False)
        self.vote = nn.Sequential(nn.Linear(channels, channels), nn.ReLU(), nn.Linear(channels, 3 + channels))
        self.group = nn.Sequential(conv_block(channels, channels, False), conv_block(channels, channels, False))
        for parameter in self.vote[-1].parameters():  # initial votes are the sites themselves
            nn.init.zeros_(parameter)

    def forward(
        self, levels: Sequence[SparseTensor], prefer: SiteMask | None = None
    ) -> tuple[list[DetectionLevel], list[SparseTensor]]:
        """As :meth:`DetectionHead.forward`, with one level: the cells with votes."""
        x: SparseTensor = self.seed(levels[self.seeds])
        offsets_m, residual = self.vote(x.feats).split([3, x.channels], dim=1)
        offsets_m = offsets_m.clamp(-_MAX_VOTE_M, _MAX_VOTE_M)
        points_m = self.conventions.site_points(x.sites, self.voxel_size_m, torch.float32)
        edge_m = x.stride * self.voxel_size_m
        cells = torch.floor((points_m + offsets_m.detach()) / edge_m).long() * x.stride
        keys, place = torch.unique(pack_site_keys(x.samples, cells), return_inverse=True)
        feats = x.feats + residual
        total = feats.new_zeros(len(keys), feats.shape[1]).index_add(0, place, feats)
        count = torch.bincount(place, minlength=len(keys)).clamp(min=1)
        met: SparseTensor = self.group(SparseTensor(x.sites.derive(keys, x.stride), total / count[:, None]))
        (level,) = self._predictions([(met.sites, self._outputs(0, met))])
        level = dataclasses.replace(level, votes=Votes(points_m, offsets_m, x.samples))
        return [level], [met]


class ScanReferHead(ObjectGroundingHead):
    """Same arguments as :class:`ObjectGroundingHead`, without its layers."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        channels = self.kind.out_features
        self.layers = nn.ModuleList()
        self.match = nn.Sequential(nn.Linear(2 * channels, channels), nn.ReLU(), nn.Linear(channels, channels))
        self.score = nn.Linear(channels, 1)

    def _decode(self, *given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As :meth:`ObjectGroundingHead._decode`, with the same score for every token of a sentence."""
        *of_objects, tokens, token_pad = given
        objects = DetectedObjects(*of_objects)
        x, text = self._read(objects, tokens)
        real = (~token_pad)[..., None]
        whole = (text * real).sum(1) / real.sum(1).clamp(min=1)  # (S, C)
        hidden = self.match(torch.cat([x, whole[:, None].expand_as(x)], dim=-1)).relu()
        fit = self.score(hidden).expand(-1, -1, tokens.shape[1])  # (S, Q, T)
        shares = log_shares_of(self.nothing(text).transpose(1, 2), fit, of_sentences(objects.valid, len(tokens)))
        return self._output([hidden], [shares], token_pad)


class ButdDetrHead(ObjectGroundingHead):
    """Same arguments as :class:`ObjectGroundingHead`: its layers without pair geometry."""

    def _pairs(self, boxes: Tensor) -> Tensor:
        return torch.zeros_like(super()._pairs(boxes))
