"""Sparse backbone (MinkResNet) and top-down feature pyramid with generative up-sampling and pruning.

``paper`` is the released EmbodiedScan encoder: 34 layers, an instance-normalised stem, max pooling, four stages at 8,
16, 32 and 64 times the input stride with 64 to 512 channels. Smaller presets are the same network with other numbers.
Parameter names are those of the released checkpoints.

The pyramid (FCAF3D; EmbodiedScan paper, section 4.2) goes from the coarsest level down: refine, add the skip level,
keep the sites with the highest scores. The score of a site comes from the *coarser* level at its place, so the
``score`` callback evaluates the head of each level before the next finer one is computed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from embodied_perceptron.nn.official import CORRECTED, Conventions
from embodied_perceptron.sparse.conv import (
    SparseActivation,
    SparseBatchNorm,
    SparseConv,
    SparseInstanceNorm,
    SparseMaxPool,
    SparseTransposedConv,
)
from embodied_perceptron.sparse.engine import finished
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


@dataclass(frozen=True)
class BackboneConfig:
    """Numbers of a :class:`MinkResNet`.

    Attributes:
        in_channels: features per input site.
        stem_channels: channels after the first convolution.
        channels: channels of each stage.
        blocks: residual blocks of each stage.
        stem_stride: stride of the first convolution, 1 or 2.
        pool: a max pooling of size 2 and stride 2 after the stem.
        stem_norm: "instance" normalises by the statistics of the whole input, as released: one new voxel then changes
            every output. "batch" keeps outputs local, so that results over a growing map are comparable.
        unet: add a decoder that passes coarser levels to finer ones (:class:`~.baselines.UNetDecoder`).
    """

    in_channels: int = 3
    stem_channels: int = 64
    channels: tuple[int, ...] = (64, 128, 256, 512)
    blocks: tuple[int, ...] = (3, 4, 6, 3)
    stem_stride: int = 2
    pool: bool = True
    stem_norm: str = "instance"
    unet: bool = False

    def __post_init__(self) -> None:
        if not self.channels or len(self.channels) != len(self.blocks):
            raise ValueError(f"channels {self.channels} and blocks {self.blocks} must have one entry per stage")
        if min((self.in_channels, self.stem_channels, *self.channels, *self.blocks)) < 1:
            raise ValueError(f"channels and blocks must be positive, got {self}")
        if self.stem_stride not in (1, 2):
            raise ValueError(f"stem_stride must be 1 or 2, got {self.stem_stride}")
        if self.stem_norm not in ("instance", "batch"):
            raise ValueError(f"stem_norm must be instance or batch, got {self.stem_norm!r}")

    @property
    def strides(self) -> tuple[int, ...]:
        """Stride of each stage's output relative to the input sites."""
        first = self.stem_stride * (2 if self.pool else 1)
        return tuple(first * 2 ** (i + 1) for i in range(len(self.channels)))


class BasicBlock(nn.Module):
    """Two 3x3x3 convolutions with a residual connection, optionally strided."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = SparseConv(in_channels, channels, 3, stride)
        self.norm1: nn.Module = SparseBatchNorm(channels)
        self.conv2 = SparseConv(channels, channels, 3)
        self.norm2: nn.Module = SparseBatchNorm(channels)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or in_channels != channels:
            # A strided kernel of size 1 reads only the voxel exactly at the output site; elsewhere the shortcut is the
            # norm's bias alone. Released weights were trained this way.
            self.downsample = nn.Sequential(SparseConv(in_channels, channels, 1, stride), SparseBatchNorm(channels))

    def forward(self, x: SparseTensor) -> SparseTensor:
        y = _normed(self.conv1, self.norm1, x)
        shortcut: SparseTensor = x if self.downsample is None else self.downsample(x)  # takes part of the map of conv1
        return _normed(self.conv2, self.norm2, y, shortcut.feats)


def _normed(conv: nn.Module, norm: nn.Module, x: SparseTensor, plus: Tensor | None = None) -> SparseTensor:
    """Convolution, norm, sum with ``plus``, ReLU; all in the convolution where the norm is folded into it."""
    y: SparseTensor = conv(x, "relu", plus) if isinstance(norm, nn.Identity) else norm(conv(x))
    return y if isinstance(norm, nn.Identity) else y.replace(finished(y.feats, plus, "relu"))


class MinkResNet(nn.Module):
    """Sparse residual network; see :class:`BackboneConfig`."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.config = config
        stem = config.stem_channels
        self.conv1 = SparseConv(config.in_channels, stem, 3, config.stem_stride)
        self.norm1: nn.Module = SparseInstanceNorm(stem) if config.stem_norm == "instance" else SparseBatchNorm(stem)
        self.maxpool = SparseMaxPool(2, 2) if config.pool else None
        channels = stem
        for i, (out_channels, blocks) in enumerate(zip(config.channels, config.blocks, strict=True)):
            stage = [BasicBlock(channels, out_channels, 2)]
            stage += [BasicBlock(out_channels, out_channels, 1) for _ in range(blocks - 1)]
            self.add_module(f"layer{i + 1}", nn.Sequential(*stage))
            channels = out_channels

    @property
    def out_channels(self) -> Sequence[int]:
        """Channels of each level that :meth:`forward` returns."""
        return self.config.channels

    @property
    def factors(self) -> list[int]:
        """Of the strides of successive sets of sites."""
        factors = self.config.stem_stride, 2 if self.maxpool is not None else 1, *(2 for _ in self.config.channels)
        return [f for f in factors if f > 1]

    def forward(self, x: SparseTensor) -> list[SparseTensor]:
        """Features of every stage, finest first, at ``config.strides`` times the input stride; empty for an empty
        input."""
        x.sites.derive_coarser(self.factors)
        x = _normed(self.conv1, self.norm1, x)
        if self.maxpool is not None:
            x = self.maxpool(x)
        levels = []
        for i in range(len(self.config.channels)):
            x = self.get_submodule(f"layer{i + 1}")(x)
            levels.append(x)
        return levels


# --------------------------------------------------------------------------------------------------------------------
# neck


def conv_block(in_channels: int, out_channels: int, crowded: bool) -> nn.Sequential:
    """Convolution of size 3, norm, ELU; ``crowded``: see :class:`SparseConv`."""
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
    """(N,) scores, row ranges of the samples -> (N,) bool: the ``limit`` highest of each sample. Ties go to the lower
    row, NaN comes last, so that pruning is deterministic."""
    keep = torch.zeros_like(scores, dtype=torch.bool)
    for start, end in itertools.pairwise(bounds):
        keep[start + best_rows(scores[start:end], limit)] = True
    return keep


def spread(mask: Tensor, bounds: Sequence[int], limit: int) -> Tensor:
    """(N,) bool, row ranges of the samples -> (N,) bool: at most ``limit`` rows of the mask per sample, evenly spread:
    of ``n`` rows those with rank ``i * n // limit``. Rows are sorted by place, so every marked object keeps its
    share."""
    before = functional.pad(mask.cumsum(0), (1, 0))
    ends = torch.tensor(list(bounds)).to(mask.device, non_blocking=True)
    table = torch.tensor([[i, a, b - a] for i, (a, b) in enumerate(itertools.pairwise(bounds))])
    table = table.to(mask.device, non_blocking=True)  # sample, its first row, its rows
    sample, first, _ = table.repeat_interleave(table[:, 2], 0, output_size=bounds[-1]).unbind(1)
    of_sample = before[ends].diff()[sample].clamp(min=1)  # n
    rank = before[:-1] - before[first]
    nearest = -(-rank * limit // of_sample)  # the smallest i with i * n // limit >= rank
    return mask & ((of_sample <= limit) | (nearest * of_sample < (rank + 1) * limit))


class _Candidates(NamedTuple):
    """Sites of one step of :class:`TopDownNeck` before pruning: those of the skip level, and those that the coarser
    level splits into; ``covers``: the latter are known to hold the former."""

    skip: SparseTensor
    born: Sites
    covers: bool

    def union(self) -> Sites:
        return self.born if self.covers else union(self.skip.sites, self.born)


class TopDownNeck(nn.Module):
    """Feature pyramid from the finest to the coarsest backbone level.

    Args:
        in_channels: of the fused backbone levels, finest first.
        out_channels: of every returned level.
        keep: sites kept per sample and level.
        lateral_channels: project every level to this width first (cheaper decoders); 0 = keep the levels' widths.
        prune_first: select the sites before computing at them. The selection is the same, because scores come from the
            coarser level; but up-sampling then works on ``keep`` sites instead of up to eight times as many candidates,
            and reads kept neighbours only. False = as published.
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
        # the sites of all but the coarsest level come from splitting coarser ones
        self.out = nn.ModuleList(conv_block(c, out_channels, i + 1 < len(widths)) for i, c in enumerate(widths))
        self.up = nn.ModuleList(_up_block(coarse, fine) for fine, coarse in itertools.pairwise(widths))

    def forward(
        self, levels: Sequence[SparseTensor], score: ScoreFunction, prefer: SiteMask | None = None
    ) -> list[SparseTensor]:
        """Levels finest first, each of twice the stride of the one before -> outputs finest first.

        ``prefer`` marks sites to keep whatever their score, in addition to the ``keep`` best and at most as many.
        Training passes the sites inside of true boxes at the levels where these are learned: an untrained score prunes
        at random, and an object without sites cannot be learned. They are additional so that training still covers all
        sites that inference keeps.

        Raises ``ValueError`` when the number of levels or their strides do not fit.
        """
        if len(levels) != len(self.out):
            raise ValueError(f"expected {len(self.out)} levels, got {len(levels)}")
        strides = [level.stride for level in levels]
        if any(b != 2 * a for a, b in itertools.pairwise(strides)):
            raise ValueError(f"every level must have twice the stride of the one before, got {strides}")
        x = self._project(levels[-1], len(levels) - 1)
        outputs = [self.out[-1](x)]
        covers = not x.sites.compiled  # x is known to have the parents of all skip sites
        for level in range(len(levels) - 2, -1, -1):
            coarse, skip = outputs[-1], levels[level]
            covers = covers and skip.sites.has_parents_in(levels[level + 1].sites)
            pruning_score = coarse.replace(score(level + 1, coarse).detach())
            if self.prune_first:
                candidates = _Candidates(skip, x.sites.children(kernel_size=2, factor=2), covers)
                if self.training or x.sites.compiled:
                    x = self._pruned_first(x, level, candidates, pruning_score, prefer)
                else:
                    x = self._kept_on_device(x, level, candidates, pruning_score)
                covers = covers and len(x) == len(candidates.born)
            else:
                x = union_add(self._project(skip, level), self.up[level](x))
                kept = self._kept_sites(x.sites, pruning_score, prefer)
                if kept is not x.sites:
                    x = SparseTensor(kept, x.feats[x.sites.rows_of(kept)])
            outputs.append(self.out[level](x))
        return outputs[::-1]

    def _pruned_first(
        self, x: SparseTensor, level: int, candidates: _Candidates, pruning_score: SparseTensor, prefer: SiteMask | None
    ) -> SparseTensor:
        """One step of :meth:`forward` with ``prune_first``: compute only at kept sites."""
        skip, born, _ = candidates
        kept = every = candidates.union()
        keep = self._keep(every, pruning_score, prefer)
        if keep is not None:
            stays = (every, keep), (skip.sites, keep[every.rows_of(skip.sites)]), (born, keep[every.rows_of(born)])
            (rows, bounds), (skipped, ends), (new, born_ends) = rows_where(*stays)
            kept = every.derive(every.keys[rows], every.stride, bounds)
            skip = SparseTensor(skip.sites.derive(skip.keys[skipped], skip.stride, ends), skip.feats[skipped])
            born = born.derive(born.keys[new], born.stride, born_ends)
        if len(born) == len(kept):  # equal sets: share kernel maps
            born = kept
        return sum_at(kept, self._project(skip, level), self._refine(x, level, born))

    def _kept_on_device(
        self, x: SparseTensor, level: int, candidates: _Candidates, pruning_score: SparseTensor
    ) -> SparseTensor:
        """:meth:`_pruned_first` on devices: compute both parts at all kept sites, with zeros where a part has no site,
        instead of reading how many sites each part has."""
        skip, born, _ = candidates
        if born.batch_size == 1 and len(born) >= self.keep:
            kept = self._best_of(skip.sites, born, pruning_score)
        else:
            kept = self._kept_sites(candidates.union(), pruning_score, None)
        split = (x.sites.transposed_map(kept, 2).sources < len(x)).any(1, keepdim=True)
        transposed, norm, activation, *rest = self.up[level].children()
        y: SparseTensor = activation(norm(transposed(x, kept)))
        y = y.replace(y.feats * split)
        for layer in rest:
            y = layer(y)
        rows = skip.sites.find(kept.keys)
        here = SparseTensor(kept, skip.feats[rows.clamp(min=0)])
        lateral = self._project(here, level).feats * (rows >= 0)[:, None]
        return SparseTensor(kept, torch.addcmul(lateral, y.feats, split))

    def _best_of(self, skip: Sites, born: Sites, pruning_score: SparseTensor) -> Sites:
        """:meth:`_kept_sites` of the union of skip sites and split ones, of one sample. The split ones alone are
        enough, so the number of sites of the union is not read."""
        keys = torch.cat([skip.keys, born.keys]).sort().values
        repeated = functional.pad(keys[1:] == keys[:-1], (1, 0))
        scores = self._scores(skip.derive(keys, skip.stride), pruning_score)
        lowest = torch.finfo(scores.dtype).min
        scores = scores.nan_to_num(lowest, torch.inf, lowest).masked_fill_(repeated, -torch.inf)  # these come last
        return skip.derive(keys[best_rows(scores, self.keep)], skip.stride, [0, self.keep])

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

    def _kept_sites(self, sites: Sites, pruning_score: SparseTensor, prefer: SiteMask | None) -> Sites:
        """The kept sites; ``sites`` itself when all are kept."""
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
        """(N,) bool mask of the kept sites; None when all are kept."""
        if self._all_stay(sites):
            return None
        keep = keep_best(self._scores(sites, pruning_score), sites.bounds, self.keep)
        return keep if prefer is None else keep | spread(prefer(sites), sites.bounds, self.keep)

    def _all_stay(self, sites: Sites) -> bool:
        return max((b - a for a, b in itertools.pairwise(sites.bounds)), default=0) <= self.keep

    def _scores(self, sites: Sites, pruning_score: SparseTensor) -> Tensor:
        """(N,) interpolated scores."""
        scores, support = interpolate(pruning_score, sites)
        if self.conventions.absent_corners_score_zero:
            return scores[:, 0]
        return (scores[:, 0] / support).masked_fill(support <= 0, float("-inf"))
