"""Image encoders: RGB views -> feature maps at strides 4, 8, 16 and 32.

``paper`` uses ResNet-50: with base width 16 for the sparse stream, full width and a feature pyramid for the dense one.
Parameter names of both are those of the released checkpoints. The small encoders are in ``mobile_encoder.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

IMAGENET_MEAN = (123.675, 116.28, 103.53)
IMAGENET_STD = (58.395, 57.12, 57.375)
SIZE_MULTIPLE = 32  # the coarsest stride: every level then has exactly size / stride cells


class ImageEncoder(nn.Module):
    """Base of all image encoders.

    Attributes:
        out_channels: channels of each level.
        strides: input pixels per cell of each level.
        mean, std: (3,) of RGB in 0..255, what :meth:`prepare` normalises with.
    """

    out_channels: tuple[int, ...]
    strides: tuple[int, ...]
    mean: torch.Tensor
    std: torch.Tensor

    def __init__(
        self,
        out_channels: Sequence[int],
        strides: Sequence[int],
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        frozen_norm: bool = False,
    ) -> None:
        """``frozen_norm``: batch normalisation keeps its statistics and its affine part in training too."""
        super().__init__()
        self.out_channels = tuple(out_channels)
        self.strides = tuple(strides)
        self.frozen_norm = frozen_norm
        self.register_buffer("mean", torch.tensor(list(mean)), persistent=False)
        self.register_buffer("std", torch.tensor(list(std)), persistent=False)

    def train(self, mode: bool = True) -> ImageEncoder:
        super().train(mode)
        if self.frozen_norm:
            for module in self.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
                    module.requires_grad_(False)
        return self

    def prepare(self, colors: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        """(V, H, W, 3) uint8 RGB -> (V, 3, h, w) float32, resized to ``size`` = (h, w) and normalised.

        The aspect ratio is not kept. Pixel centres map as ``u' = (u + 0.5) * w / W - 0.5``. Raises ``ValueError`` for
        another shape or dtype, or a size that is not a multiple of 32.
        """
        return prepare_images(colors, size, self.mean, self.std)

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        """(V, 3, h, w) normalised images -> one (V, C, h / stride, w / stride) map per level, finest first.

        Raises ``ValueError`` for another shape or a size that is not a multiple of 32. V may be 0.
        """
        check_images(images)
        if not len(images):
            return empty_levels(images, self.out_channels, self.strides)
        return self.encode(images)

    def encode(self, images: torch.Tensor) -> list[torch.Tensor]:
        """What :meth:`forward` does on checked, non-empty input."""
        raise NotImplementedError


def prepare_images(colors: torch.Tensor, size: tuple[int, int], mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    """What :meth:`ImageEncoder.prepare` does, with a given normalisation; on the device of ``mean``."""
    if colors.ndim != 4 or colors.shape[3] != 3 or colors.dtype != torch.uint8:
        raise ValueError(f"colors must be (V, H, W, 3) uint8, got {tuple(colors.shape)} {colors.dtype}")
    _check_size(size)
    images = colors.to(mean.device).permute(0, 3, 1, 2).float()
    if not len(images):
        images = images.new_zeros(0, 3, *size)
    elif images.shape[2:] != size:
        images = F.interpolate(images, size=size, mode="bilinear", align_corners=False)
    return (images - mean[:, None, None]) / std[:, None, None]


def check_images(images: torch.Tensor) -> None:
    """Raise ``ValueError`` unless images are (V, 3, h, w) with a size that every encoder takes."""
    if images.ndim != 4 or images.shape[1] != 3:
        raise ValueError(f"images must be (V, 3, h, w), got {tuple(images.shape)}")
    _check_size((images.shape[2], images.shape[3]))


def empty_levels(images: torch.Tensor, channels: Sequence[int], strides: Sequence[int]) -> list[torch.Tensor]:
    """The levels of no views at all."""
    h, w = images.shape[2:]
    return [images.new_zeros(0, c, h // s, w // s) for c, s in zip(channels, strides, strict=True)]


def _check_size(size: tuple[int, int]) -> None:
    if any(v < SIZE_MULTIPLE or v % SIZE_MULTIPLE for v in size):
        raise ValueError(f"image size must be positive multiples of {SIZE_MULTIPLE}, got {tuple(size)}")


class Bottleneck(nn.Module):
    """1x1, 3x3 (strided), 1x1 convolution with a residual connection."""

    expansion = 4

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        out_channels = width * self.expansion
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or in_channels != out_channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNetEncoder(ImageEncoder):
    """ResNet with bottleneck blocks, without the classification head.

    Args:
        base_width: channels of the stem; the levels have 4, 8, 16 and 32 times as many. 16 for the paper's sparse
            stream, 64 (the usual width) for its dense stream. Usual pretrained weights fit 64 only.
        blocks: per stage; (3, 4, 6, 3) is ResNet-50.
    """

    def __init__(self, base_width: int = 64, blocks: Sequence[int] = (3, 4, 6, 3), frozen_norm: bool = False) -> None:
        if base_width < 1 or len(blocks) != 4 or min(blocks) < 1:
            raise ValueError(f"need a positive width and 4 positive block counts, got {base_width} and {blocks}")
        channels = [base_width * 2**i * Bottleneck.expansion for i in range(4)]
        super().__init__(channels, (4, 8, 16, 32), frozen_norm=frozen_norm)
        self.conv1 = nn.Conv2d(3, base_width, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(base_width)
        in_channels = base_width
        for i, count in enumerate(blocks):
            stage = []
            for j in range(count):
                stage.append(Bottleneck(in_channels, base_width * 2**i, 2 if i > 0 and j == 0 else 1))
                in_channels = channels[i]
            self.add_module(f"layer{i + 1}", nn.Sequential(*stage))
        self.train(self.training)

    def encode(self, images: torch.Tensor) -> list[torch.Tensor]:
        x = F.max_pool2d(torch.relu(self.bn1(self.conv1(images))), 3, 2, padding=1)
        levels = []
        for i in range(4):
            x = self.get_submodule(f"layer{i + 1}")(x)
            levels.append(x)
        return levels


class _NamedConv(nn.Module):
    """A convolution under the name ``conv``, as released checkpoints store those of the feature pyramid."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=kernel_size // 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.conv(x)
        return y


class FeaturePyramid(nn.Module):
    """Top-down pathway with lateral connections (Lin et al., CVPR 2017): all levels get ``out_channels``."""

    def __init__(self, in_channels: Sequence[int], out_channels: int) -> None:
        super().__init__()
        self.out_channels = out_channels
        self.lateral_convs = nn.ModuleList(_NamedConv(c, out_channels, 1) for c in in_channels)
        self.fpn_convs = nn.ModuleList(_NamedConv(out_channels, out_channels, 3) for _ in in_channels)

    def forward(self, levels: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Maps of each level, finest first -> as many maps of ``out_channels``."""
        if len(levels) != len(self.lateral_convs):
            raise ValueError(f"expected {len(self.lateral_convs)} levels, got {len(levels)}")
        merged = [conv(x) for conv, x in zip(self.lateral_convs, levels, strict=True)]
        for i in range(len(merged) - 1, 0, -1):
            merged[i - 1] = merged[i - 1] + F.interpolate(merged[i], size=merged[i - 1].shape[2:], mode="nearest")
        return [conv(x) for conv, x in zip(self.fpn_convs, merged, strict=True)]


class PyramidEncoder(ImageEncoder):
    """An image encoder followed by a feature pyramid: every level has the same number of channels.

    ``levels``: how many levels to return, finest first; None = all.
    """

    def __init__(self, backbone: ImageEncoder, channels: int = 256, levels: int | None = None) -> None:
        count = len(backbone.strides) if levels is None else levels
        if not 1 <= count <= len(backbone.strides):
            raise ValueError(f"levels must be in [1, {len(backbone.strides)}], got {levels}")
        super().__init__([channels] * count, backbone.strides[:count])
        self.mean, self.std = backbone.mean, backbone.std
        self.backbone = backbone
        self.neck = FeaturePyramid(backbone.out_channels, channels)

    def encode(self, images: torch.Tensor) -> list[torch.Tensor]:
        levels: list[torch.Tensor] = self.neck(self.backbone.encode(images))
        return levels[: len(self.strides)]
