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
from torch.nn import functional

from embodied_perceptron.nn.official import CORRECTED, Conventions
from embodied_perceptron.sparse.conv import SparseActivation, SparseBatchNorm, SparseConv, SparseTransposedConv
from embodied_perceptron.sparse.sites import Sites
from embodied_perceptron.sparse.tensor import (
    SparseTensor,
    best_rows,
    interpolate,
    rows_where,
    sum_at,
    union,
    union_add,
)

SiteMask = Callable[[Sites], Tensor]
"""sites -> (N,) bool."""
ScoreFunction = Callable[[int, SparseTensor], Tensor]
"""(level, output of that level) -> (N, 1) score; higher is kept."""


def conv_block(in_channels: int, out_channels: int, crowded: bool) -> nn.Sequential:
    """Convolution of size 3, norm, ELU; ``crowded``: of sites that were split."""
    return nn.Sequential(
        SparseConv(in_channels, out_channels, kernel_size=3, crowded=crowded),
        SparseBatchNorm(out_channels),
        SparseActivation(nn.ELU(inplace=True)),
    )


def _up_block(in_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(
        SparseTransposedConv(in_channels, out_channels, kernel_size=2, stride=2),
        SparseBatchNorm(out_channels),
        SparseActivation(nn.ELU(inplace=True)),
        SparseConv(out_channels, out_channels, kernel_size=3, crowded=True),
        SparseBatchNorm(out_channels),
        SparseActivation(nn.ELU(inplace=True)),
    )


def keep_best(scores: Tensor, bounds: Sequence[int], limit: int) -> Tensor:
    """(N,) scores, row ranges of the samples -> (N,) bool: the ``limit`` best of each sample.

    Ties go to the lower row (the site that sorts first), so that the same input is pruned the same everywhere; NaN
    comes last.
    """
    keep = torch.zeros_like(scores, dtype=torch.bool)
    for start, end in itertools.pairwise(bounds):
        keep[start + best_rows(scores[start:end], limit)] = True
    return keep


def spread(mask: Tensor, bounds: Sequence[int], limit: int) -> Tensor:
    """(N,) bool, row ranges of the samples -> (N,) bool: at most ``limit`` rows of the mask per sample, evenly spread:
    of more than these, ``n``, the rows ``i * n // limit``.

    Rows are sorted by place, so every object that is marked keeps its share.
    """
    before = functional.pad(mask.cumsum(0), (1, 0))
    ends = torch.tensor(list(bounds)).to(mask.device, non_blocking=True)
    sample, first = _samples(bounds, mask.device)
    of_sample = before[ends].diff()[sample].clamp(min=1)  # n
    rank = before[:-1] - before[first]
    nearest = -(-rank * limit // of_sample)  # the least i for which i * n // limit may be the rank
    return mask & ((of_sample <= limit) | (nearest * of_sample < (rank + 1) * limit))


def _samples(bounds: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Row ranges of the samples -> (N,) the sample of each row, (N,) the first row of that sample."""
    table = torch.tensor([[i, a, b - a] for i, (a, b) in enumerate(itertools.pairwise(bounds))])
    table = table.to(device, non_blocking=True)
    rows = table.repeat_interleave(table[:, 2], 0, output_size=bounds[-1])
    return rows[:, 0], rows[:, 1]


class TopDownNeck(nn.Module):
    """Feature pyramid from the finest to the coarsest backbone level.

    Args:
        in_channels: of the fused backbone levels, finest first.
        out_channels: of every returned level.
        keep: sites kept per sample and level.
        lateral_channels: project every level to this width first (cheaper decoders); 0 = work at the levels' widths.
        prune_first: choose the sites that stay before anything is computed at them. The same sites stay, for the score
            comes from the coarser level; but the up-sampling then works on ``keep`` sites instead of all of their up
            to eight times as many candidates, and sees only what was kept around a site. False = as published.
        conventions: how pruning scores are interpolated.
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        out_channels: int,
        keep: int,
        lateral_channels: int = 0,
        prune_first: bool = False,
        conventions: Conventions = CORRECTED,
    ) -> None:
        super().__init__()
        if not in_channels:
            raise ValueError("in_channels must name at least one level")
        if keep < 1:
            raise ValueError(f"keep must be positive, got {keep}")
        self.keep = keep
        self.prune_first = prune_first
        self.conventions = conventions
        widths = list(in_channels)
        self.lateral: nn.ModuleList | None = None
        if lateral_channels:
            self.lateral = nn.ModuleList(SparseConv(c, lateral_channels, kernel_size=1, bias=True) for c in in_channels)
            widths = [lateral_channels] * len(in_channels)
        # all but the coarsest level are of sites that were split
        self.out = nn.ModuleList(conv_block(c, out_channels, i + 1 < len(widths)) for i, c in enumerate(widths))
        self.up = nn.ModuleList(_up_block(coarse, fine) for fine, coarse in itertools.pairwise(widths))

    def forward(
        self, levels: Sequence[SparseTensor], score: ScoreFunction, prefer: SiteMask | None = None
    ) -> list[SparseTensor]:
        """Levels finest first, each of twice the stride of the one before -> outputs finest first.

        ``prefer`` marks sites that stay whatever their score, beside the ``keep`` best, at most as many again. Training
        passes those inside of true boxes, as far down as these are learned: an untrained score prunes at random, and an
        object that has lost all of its sites can never be learned. They come on top, so that training sees
        everything that inference will see.

        Raises ``ValueError`` when the number of levels or their strides do not fit.
        """
        if len(levels) != len(self.out):
            raise ValueError(f"expected {len(self.out)} levels, got {len(levels)}")
        strides = [level.stride for level in levels]
        if any(b != 2 * a for a, b in itertools.pairwise(strides)):
            raise ValueError(f"every level must have twice the stride of the one before, got {strides}")
        x = self._project(levels[-1], len(levels) - 1)
        outputs = [self.out[-1](x)]
        for level in range(len(levels) - 2, -1, -1):
            coarse, skip = outputs[-1], levels[level]
            pruning_score = coarse.replace(score(level + 1, coarse).detach())
            if self.prune_first and not self.training and not x.sites.compiled:
                x = self._chosen_first(x, skip, level, pruning_score)
            elif self.prune_first:
                x = self._pruned_first(x, skip, level, pruning_score, prefer)
            else:
                x = union_add(self._project(skip, level), self.up[level](x))
                kept = self._kept(x.sites, pruning_score, prefer)
                if kept is not x.sites:
                    x = SparseTensor(kept, x.feats[x.sites.rows_of(kept)])
            outputs.append(self.out[level](x))
        return outputs[::-1]

    def of_level(self, x: SparseTensor, level: int) -> SparseTensor:
        """A level's output from its own features alone."""
        out: SparseTensor = self.out[level](self._project(x, level))
        return out

    def _pruned_first(
        self, x: SparseTensor, skip: SparseTensor, level: int, pruning_score: SparseTensor, prefer: SiteMask | None
    ) -> SparseTensor:
        """What :meth:`forward` does where ``prune_first``: nothing is computed at sites that go."""
        kept = every = union(skip.sites, born := x.sites.children(kernel_size=2, factor=2))
        keep = self._keep(every, pruning_score, prefer)
        if keep is not None:
            stays = (every, keep), (skip.sites, keep[every.rows_of(skip.sites)]), (born, keep[every.rows_of(born)])
            (rows, bounds), (skipped, ends), (new, born_ends) = rows_where(*stays)
            kept = every.derive(every.keys[rows], every.stride, bounds)
            skip = SparseTensor(skip.sites.derive(skip.keys[skipped], skip.stride, ends), skip.feats[skipped])
            born = born.derive(born.keys[new], born.stride, born_ends)
        if len(born) == len(kept):  # the same: neighbours are searched once
            born = kept
        return sum_at(kept, self._project(skip, level), self._refine(x, level, born))

    def _chosen_first(
        self, x: SparseTensor, skip: SparseTensor, level: int, pruning_score: SparseTensor
    ) -> SparseTensor:
        """For devices: what :meth:`forward` does where ``prune_first``, all of it at the sites that stay. What only
        some of them have is zero at the others, so that nothing waits for how many have it."""
        kept = self._kept(union(skip.sites, x.sites.children(kernel_size=2, factor=2)), pruning_score, None)
        born = (x.sites.transposed_map(kept, 2).sources < len(x)).any(1, keepdim=True)
        transposed, norm, activation, *rest = self.up[level].children()
        y: SparseTensor = activation(norm(transposed(x, kept)))
        y = y.replace(y.feats * born)
        for layer in rest:
            y = layer(y)
        rows = skip.sites.find(kept.keys)
        here = SparseTensor(kept, skip.feats[rows.clamp(min=0)])
        lateral = self._project(here, level).feats * (rows >= 0)[:, None]
        return SparseTensor(kept, torch.addcmul(lateral, y.feats, born))

    def _project(self, x: SparseTensor, level: int) -> SparseTensor:
        if self.lateral is None:
            return x
        projected: SparseTensor = self.lateral[level](x)
        return projected

    def _refine(self, x: SparseTensor, level: int, sites: Sites) -> SparseTensor:
        """The up block, at given sites only."""
        transposed, *rest = self.up[level].children()
        y: SparseTensor = transposed(x, sites)
        for layer in rest:
            y = layer(y)
        return y

    def _kept(self, sites: Sites, pruning_score: SparseTensor, prefer: SiteMask | None) -> Sites:
        """The sites that stay; ``sites`` itself when all do."""
        if prefer is None and not self._all_stay(sites):
            scores = self._scores(sites, pruning_score)
            rows = [a + best_rows(scores[a:b], self.keep) for a, b in itertools.pairwise(sites.bounds)]
            bounds = list(itertools.accumulate((len(r) for r in rows), initial=0))
            return sites.derive(sites.keys[rows[0] if len(rows) == 1 else torch.cat(rows)], sites.stride, bounds)
        keep = self._keep(sites, pruning_score, prefer)
        if keep is None:
            return sites
        ((chosen, ends),) = rows_where((sites, keep))
        return sites.derive(sites.keys[chosen], sites.stride, ends)

    def _keep(self, sites: Sites, pruning_score: SparseTensor, prefer: SiteMask | None) -> Tensor | None:
        """(N,) which of the sites stay; None when all do."""
        if self._all_stay(sites):
            return None
        keep = keep_best(self._scores(sites, pruning_score), sites.bounds, self.keep)
        return keep if prefer is None else keep | spread(prefer(sites), sites.bounds, self.keep)

    def _all_stay(self, sites: Sites) -> bool:
        return max((b - a for a, b in itertools.pairwise(sites.bounds)), default=0) <= self.keep

    def _scores(self, sites: Sites, pruning_score: SparseTensor) -> Tensor:
        """(N,) by which sites are chosen."""
        scores, support = interpolate(pruning_score, sites)
        if self.conventions.absent_corners_score_zero:
            return scores[:, 0]
        # nothing supports a site without any corner
        return (scores[:, 0] / support).masked_fill(support <= 0, float("-inf"))
