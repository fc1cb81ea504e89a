"""Networks small enough for unit tests, with random weights that answer something, and scenes for them."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from embodied_perceptron.nn.network import ImageLookup, PerceptionNetwork, Viewpoint
from embodied_perceptron.nn.presets import Modality, NetworkConfig, network_config
from embodied_perceptron.sparse.sites import Sites
from embodied_perceptron.sparse.tensor import SparseTensor

CLASSES = 4
COARSEST = 16  # stride of tiny's last level


def small_config(task: str = "all", modality: Modality = "depth", preset: str = "tiny") -> NetworkConfig:
    """A preset with few channels, layers and cells; its structure stays."""
    return shrunk(network_config(preset, task, modality, num_classes=CLASSES), text_channels=12, classes=3)


def shrunk(config: NetworkConfig, text_channels: int = 0, classes: int = 0) -> NetworkConfig:
    """A network of the same structure with few channels, layers and cells; of the ``text_channels`` and occupancy
    ``classes``, 0 = its own."""
    backbone = dataclasses.replace(config.backbone, stem_channels=8, channels=(8, 12, 16, 16), blocks=(1, 1, 1, 1))
    occupancy = config.occupancy and dataclasses.replace(
        config.occupancy,
        cells=(8, 8, 4),
        in_channels=8,
        channels=8,
        num_classes=classes or config.occupancy.num_classes,
        origin_m=(-0.64, -0.64, -0.32),
    )
    detection = config.detection and dataclasses.replace(
        config.detection, channels=16, lateral_channels=12 if config.detection.lateral_channels else 0, keep=64
    )
    grounding = config.grounding and dataclasses.replace(
        config.grounding,
        channels=16,
        text_channels=text_channels or config.grounding.text_channels,
        keep=32,
        num_queries=8,
        layers=2,
        heads=2,
        hidden_channels=24,
    )
    image = dataclasses.replace(config.image, size=(64, 64))
    small = dataclasses.replace(
        config, backbone=backbone, occupancy=occupancy, detection=detection, grounding=grounding, image=image
    )
    if config.modality == "rgb" and occupancy is not None:
        small = dataclasses.replace(small, max_sites=8 * 8 * 4 * small.backbone.strides[0] ** 3)
    return small


def small_network(config: NetworkConfig, seed: int = 0) -> PerceptionNetwork:
    """In evaluation mode; weights and statistics far from their initial values."""
    torch.manual_seed(seed)
    network = PerceptionNetwork(config)
    for name, p in network.named_parameters():
        if p.ndim > 1:
            torch.nn.init.normal_(p, std=(2.0 / (p.numel() / p.shape[-1])) ** 0.5)
        elif "norm" in name or ".bn." in name:
            torch.nn.init.normal_(p, mean=1.0 if name.endswith("weight") else 0.0, std=0.2)
    for name, b in network.named_buffers():
        if name.endswith("running_mean"):
            b.normal_(std=0.1)
    if network.detection is not None:
        network.detection.regression.kernel.data *= 0.2
        network.detection.center.kernel.data *= 0.2
    return network.eval()


def small_scene(
    seed: int = 0, count: int = 400, extent: int = 40, channels: int = 8, device: str = "cpu"
) -> SparseTensor:
    """Random sites in a cube of ``extent`` sites around the origin, random features."""
    g = torch.Generator().manual_seed(seed)
    coords = torch.unique(torch.randint(-extent // 2, extent // 2, (count, 3), generator=g), dim=0)
    return SparseTensor.from_coords(coords.to(device), torch.rand(len(coords), channels, generator=g).to(device))


def moved(x: SparseTensor, sites: tuple[int, int, int]) -> SparseTensor:
    """The same scene elsewhere."""
    return SparseTensor.from_coords(x.coords + torch.tensor(sites), x.feats, x.samples, batch_size=x.batch_size)


def hash_lookup(network: PerceptionNetwork, shift: tuple[int, int, int] = (0, 0, 0)) -> ImageLookup:
    """Image features that depend on the place alone, differentiable in nothing; ``shift``: where the world went."""

    def lookup(level: int, sites: Sites) -> Tensor:
        place = (sites.coords - torch.tensor(shift)).double() @ torch.tensor([0.37, 1.13, 2.71], dtype=torch.float64)
        waves = torch.arange(1, network.image_channels[level] + 1, dtype=torch.float64)
        return torch.sin(place[:, None] * waves / (level + 1)).float()

    return lookup


def sentence(batch: int = 1, tokens: int = 5, channels: int = 12, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random token features and no padding."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(batch, tokens, channels, generator=g), torch.zeros(batch, tokens, dtype=torch.bool)


def viewer(x: float = 0.1, y: float = -0.2, yaw: float = 0.4, batch: int = 1) -> Viewpoint:
    """Someone on the floor at z = 0."""
    return Viewpoint(torch.tensor([[x, y, 0.0]]).expand(batch, 3), torch.full((batch,), yaw))
