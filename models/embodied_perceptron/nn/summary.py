"""Table of a network: output, resolution and number of parameters of each stage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from embodied_perceptron.nn.network import GroundingBranch, PerceptionNetwork
from embodied_perceptron.nn.presets import NetworkConfig, network_config


@dataclass(frozen=True)
class StageRow:
    """One row of the table.

    Attributes:
        stage: name.
        channels: of its output.
        stride: relative to the input (pixels or input sites), or empty.
        cell: edge in metres or size of the grid, or empty.
        parameters: number of parameters.
    """

    stage: str
    channels: str
    stride: str = ""
    cell: str = ""
    parameters: int = 0


def networks_of(preset: str, task: str, num_classes: int = 284) -> list[NetworkConfig]:
    """The networks of a preset: ``paper`` has a separate one for occupancy."""
    configs = [network_config(preset, task, num_classes=num_classes)]
    if preset == "paper" and task == "all":
        configs.append(network_config(preset, "occupancy", num_classes=num_classes))
    return configs


def count(*modules: nn.Module | None) -> int:
    """Parameters, buffers not counted."""
    return sum(p.numel() for m in modules if m is not None for p in m.parameters())


def stage_rows(config: NetworkConfig) -> list[StageRow]:
    """All stages in order of computation, without allocating the network."""
    with torch.device("meta"):
        network = PerceptionNetwork(config)
    rows = [*_image_rows(network), *_backbone_rows(network), *_head_rows(network)]
    assert sum(row.parameters for row in rows) == count(network)
    return rows


def _image_rows(network: PerceptionNetwork) -> Iterator[StageRow]:
    encoder, image = network.image_encoder, network.config.image
    if encoder is None:
        return
    size = f"{image.size[1]} x {image.size[0]} px"
    name = f"image {image.encoder}" + (f", base width {image.base_width}" if image.encoder == "resnet50" else "")
    yield StageRow(name, _list(encoder.out_channels), _list(encoder.strides), size, count(encoder))
    if network.image_projection is not None:
        yield StageRow("image projection", _list(network.image_channels), parameters=count(network.image_projection))


def _backbone_rows(network: PerceptionNetwork) -> Iterator[StageRow]:
    config, backbone = network.config, network.backbone
    first = backbone.config.stem_stride
    stem = count(backbone.conv1, backbone.norm1)
    yield StageRow("stem", str(backbone.config.stem_channels), str(first), _metres(config, first), stem)
    for i, (stride, channels) in enumerate(zip(backbone.config.strides, backbone.out_channels, strict=True)):
        stage = backbone.get_submodule(f"layer{i + 1}")
        blocks = backbone.config.blocks[i]
        name = f"layer{i + 1}, {blocks} block" + ("s" if blocks > 1 else "")
        yield StageRow(name, str(channels), str(stride), _metres(config, stride), count(stage))
    if network.level_channels != tuple(backbone.out_channels):
        yield StageRow("fused with images", _list(network.level_channels))
    occupancy = config.occupancy
    if occupancy is not None and occupancy.dense_images and config.uses_images:
        sparse = network.level_channels[config.occupancy_level()]
        images = network.image_channels[0]
        yield StageRow("fused in every cell", f"{sparse} + {images} = {sparse + images}")


def _head_rows(network: PerceptionNetwork) -> Iterator[StageRow]:
    config = network.config
    strides = network.backbone.config.strides
    if network.detection is not None and config.detection is not None:
        d, head = config.detection, network.detection
        yield StageRow("detection neck", str(d.channels), _list(strides), _kept(d.keep), count(head.neck))
        outputs = f"{config.num_classes} + 1 + {head.regression.out_channels}" + (" + 1" if head.object else "")
        yield StageRow("detection head", outputs, parameters=count(head) - count(head.neck))
    if network.occupancy is not None and config.occupancy is not None:
        o, branch = config.occupancy, network.occupancy
        stride = str(strides[config.occupancy_level()])
        grids = ", ".join("x".join(str(n // 2**i) for n in o.cells) for i in range(o.levels))
        if count(branch.project):
            yield StageRow("occupancy projection", str(o.in_channels), parameters=count(branch.project))
        widths = f"{o.in_channels} -> {o.channels}"
        yield StageRow("occupancy pyramid", widths, stride, grids, count(branch.pyramid))
        yield StageRow("occupancy head", f"{o.num_classes} + 1", "", f"{o.cell_size_m:g} m", count(branch.head))
    if network.grounding is not None and config.grounding is not None:
        g, grounding = config.grounding, network.grounding
        if isinstance(grounding, GroundingBranch):
            if grounding.neck is not None:
                neck = count(grounding.neck, grounding.score)
                yield StageRow("grounding neck", str(g.channels), "", _kept(g.keep), neck)
            elif count(grounding.project):
                yield StageRow("grounding projection", str(g.channels), parameters=count(grounding.project))
        text = f"text {g.text_encoder} (frozen)"
        yield StageRow(text, f"{g.text_channels} -> {g.channels}", "", "", count(grounding.head.text_projection))
        decoder = f"grounding decoder, {g.layers} layers"
        rest = count(grounding.head) - count(grounding.head.text_projection)
        yield StageRow(decoder, str(g.channels), "", f"{g.num_queries} {g.queries}", rest)


def _list(values: tuple[int, ...]) -> str:
    return ", ".join(str(v) for v in values)


def _kept(sites: int) -> str:
    return f"<= {sites:,} sites per level"


def _metres(config: NetworkConfig, stride: int) -> str:
    return f"{stride * config.voxel_size_m:g} m"
