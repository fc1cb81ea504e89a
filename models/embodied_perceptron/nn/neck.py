"""Top-down sparse feature pyramid with generative up-sampling and pruning (FCAF3D; EmbodiedScan paper, section 4.2).

From the coarsest level down: refine, add the skip level, keep the most promising sites. A site is judged by the score
that the *coarser* level gave to its place, so every level's head has to say how promising its sites are before the
next finer one is made: that is the ``score`` callback.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from embodied_perceptron.sparse.conv import SparseActivation, SparseBatchNorm, SparseConv, SparseTransposedConv
from embodied_perceptron.sparse.ops import interpolate, prune, union_add
from embodied_perceptron.sparse.tensor import Sites, SparseTensor

SiteMask = Callable[[Sites], Tensor]
"""sites -> (N,) bool."""
ScoreFunction = Callable[[int, SparseTensor], Tensor]
"""(level, output of that level) -> (N, 1) score; higher is kept."""


def _conv_block(in_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(
        SparseConv(in_channels, out_channels, kernel_size=3),
        SparseBatchNorm(out_channels),
        SparseActivation(nn.ELU()),
    )


def _up_block(in_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(
        SparseTransposedConv(in_channels, out_channels, kernel_size=2, stride=2),
        SparseBatchNorm(out_channels),
        SparseActivation(nn.ELU()),
        SparseConv(out_channels, out_channels, kernel_size=3),
        SparseBatchNorm(out_channels),
        SparseActivation(nn.ELU()),
    )


def keep_best(scores: Tensor, bounds: Sequence[int], limit: int) -> Tensor:
    """(N,) scores, row ranges of the samples -> (N,) bool: the ``limit`` best of each sample.

    Ties go to the lower row (the site that sorts first), so that the same input is pruned the same everywhere.
    """
    keep = torch.ones_like(scores, dtype=torch.bool)
    for start, end in itertools.pairwise(bounds):
        if end - start > limit:
            order = torch.argsort(scores[start:end], descending=True, stable=True)
            keep[start + order[limit:]] = False
    return keep


def spread(mask: Tensor, bounds: Sequence[int], limit: int) -> Tensor:
    """(N,) bool, row ranges of the samples -> (N,) bool: at most ``limit`` rows of the mask per sample, evenly spread.

    Rows are sorted by place, so every object that is marked keeps its share.
    """
    chosen = torch.zeros_like(mask)
    for start, end in itertools.pairwise(bounds):
        rows = start + mask[start:end].nonzero()[:, 0]
        if len(rows) > limit:
            rows = rows[torch.arange(limit, device=rows.device) * len(rows) // limit]
        chosen[rows] = True
    return chosen


class TopDownNeck(nn.Module):
    """Feature pyramid from the finest to the coarsest backbone level.

    Args:
        in_channels: of the fused backbone levels, finest first.
        out_channels: of every returned level.
        keep: sites kept per sample and level.
        lateral_channels: project every level to this width first (cheaper decoders); 0 = work at the levels' widths.
        official: interpolate pruning scores as the released code does, where absent coarse sites count as score zero
            and so outrank supported ones with negative logits. Default: only present sites count, and a site without
            any support comes last.
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        out_channels: int,
        keep: int,
        lateral_channels: int = 0,
        official: bool = False,
    ) -> None:
        super().__init__()
        if not in_channels:
            raise ValueError("in_channels must name at least one level")
        if keep < 1:
            raise ValueError(f"keep must be positive, got {keep}")
        self.keep = keep
        self.official = official
        widths = list(in_channels)
        self.lateral: nn.ModuleList | None = None
        if lateral_channels:
            self.lateral = nn.ModuleList(SparseConv(c, lateral_channels, kernel_size=1, bias=True) for c in in_channels)
            widths = [lateral_channels] * len(in_channels)
        self.out = nn.ModuleList(_conv_block(c, out_channels) for c in widths)
        self.up = nn.ModuleList(_up_block(coarse, fine) for fine, coarse in itertools.pairwise(widths))

    def forward(
        self, levels: Sequence[SparseTensor], score: ScoreFunction, prefer: SiteMask | None = None
    ) -> list[SparseTensor]:
        """Levels finest first, each of twice the stride of the one before -> outputs finest first.

        ``prefer`` marks sites that stay whatever their score, beside the ``keep`` best, at most as many again. Training
        passes those inside of true boxes: an untrained score prunes at random, and an object that has lost all of its
        sites can never be learned. They come on top, so that training sees everything that inference will see.

        Raises ``ValueError`` when the number of levels or their strides do not fit.
        """
        if len(levels) != len(self.out):
            raise ValueError(f"expected {len(self.out)} levels, got {len(levels)}")
        strides = [level.stride for level in levels]
        if any(b != 2 * a for a, b in itertools.pairwise(strides)):
            raise ValueError(f"every level must have twice the stride of the one before, got {strides}")
        if self.lateral is not None:
            levels = [project(level) for project, level in zip(self.lateral, levels, strict=True)]
        x = levels[-1]
        outputs = [self.out[-1](x)]
        for level in range(len(levels) - 2, -1, -1):
            coarse = outputs[-1]
            promise = coarse.replace(score(level + 1, coarse).detach())
            x = union_add(levels[level], self.up[level](x))
            x = self._prune(x, promise, prefer)
            outputs.append(self.out[level](x))
        return outputs[::-1]

    def _prune(self, x: SparseTensor, promise: SparseTensor, prefer: SiteMask | None) -> SparseTensor:
        if max((b - a for a, b in itertools.pairwise(x.sites.bounds)), default=0) <= self.keep:
            return x
        scores = interpolate(promise, x.sites, renormalize=not self.official)[:, 0]
        if not self.official:
            supported = interpolate(promise.replace(torch.ones_like(promise.feats)), x.sites)[:, 0] > 0
            scores = scores.masked_fill(~supported, float("-inf"))
        keep = keep_best(scores, x.sites.bounds, self.keep)
        if prefer is not None:
            keep |= spread(prefer(x.sites), x.sites.bounds, self.keep)
        return prune(x, keep)
