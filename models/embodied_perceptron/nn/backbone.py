"""MinkResNet: a residual network on sparse voxels.

``paper`` is the released EmbodiedScan encoder: 34 layers, an instance-normalised stem, max pooling, four stages at 8,
16, 32 and 64 times the input stride with 64 to 512 channels. Smaller presets are the same network with other numbers.
Parameter names are those of the released checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from embodied_perceptron.sparse.conv import SparseBatchNorm, SparseConv, SparseInstanceNorm, SparseMaxPool
from embodied_perceptron.sparse.tensor import SparseTensor


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
            every output, so results over a growing map are not comparable. "batch" keeps outputs local.
        unet: every level also reads the coarser ones (:class:`~.baselines.UNetDecoder`).
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
        self.norm1 = SparseBatchNorm(channels)
        self.conv2 = SparseConv(channels, channels, 3)
        self.norm2 = SparseBatchNorm(channels)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or in_channels != channels:
            # A strided kernel of size 1 sees only the voxel exactly at the output site; elsewhere the shortcut is the
            # norm's bias alone. Released weights were trained with that.
            self.downsample = nn.Sequential(SparseConv(in_channels, channels, 1, stride), SparseBatchNorm(channels))

    def forward(self, x: SparseTensor) -> SparseTensor:
        y = self.norm1(self.conv1(x))
        y = self.norm2(self.conv2(y.replace(y.feats.relu_())))  # in place: nobody else has them
        shortcut: SparseTensor = x if self.downsample is None else self.downsample(x)
        out: SparseTensor = y.replace((y.feats + shortcut.feats).relu_())
        return out


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

    def forward(self, x: SparseTensor) -> list[SparseTensor]:
        """Features of every stage, finest first, at ``config.strides`` times the input stride.

        An input without any site gives levels without sites.
        """
        factors = (self.config.stem_stride, 2 if self.maxpool is not None else 1, *(2 for _ in self.config.channels))
        x.sites.derive_coarser([f for f in factors if f > 1])
        x = self.norm1(self.conv1(x))
        x = x.replace(x.feats.relu_())
        if self.maxpool is not None:
            x = self.maxpool(x)
        levels = []
        for i in range(len(self.config.channels)):
            x = self.get_submodule(f"layer{i + 1}")(x)
            levels.append(x)
        return levels
