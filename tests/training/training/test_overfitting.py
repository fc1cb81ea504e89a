"""Each head learns one small scene to near zero loss and returns its boxes, its voxels, its target."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from embodied_perceptron.geometry.boxes import box_iou, points_in_boxes, rotations
from embodied_perceptron.geometry.transforms import floor_site_keys
from embodied_perceptron.nn.detection import decode_detections
from embodied_perceptron.nn.grounding import GroundingOutput
from embodied_perceptron.nn.network import GroundingBranch, PerceptionNetwork, Viewpoint
from embodied_perceptron.nn.presets import Modality, NetworkConfig, network_config
from embodied_perceptron.sparse.sites import Sites
from embodied_perceptron.sparse.tensor import SparseTensor
from embodied_perceptron_training.training.criteria import (
    BoxTarget,
    DetectionCriterion,
    GroundingCriterion,
    GroundingTarget,
    OccupancyCriterion,
    coarse_labels,
    detection_predictions,
    grounding_layers,
    sites_in_boxes,
)

BOXES = torch.tensor(
    [
        [0.6, 0.6, 0.30, 0.6, 0.4, 0.6, 0.4, 0.0, 0.0],
        [1.6, 0.5, 0.20, 0.4, 0.4, 0.4, 0.0, 0.0, 0.0],
        [1.0, 1.5, 0.40, 0.9, 0.3, 0.4, -0.3, 0.2, 0.0],  # leans
    ]
)
LABELS = torch.tensor([0, 1, 2])
VOXEL_M = 0.04


def surface(box: Tensor, generator: torch.Generator) -> Tensor:
    """(4000, 3) points on the faces of a box."""
    local = torch.rand(4000, 3, generator=generator) - 0.5
    face = torch.randint(0, 6, (4000,), generator=generator)
    local[torch.arange(4000), face // 2] = (face % 2).float() - 0.5
    return (local * box[3:6]) @ rotations(box[None])[0].T + box[:3]


@pytest.fixture(scope="module")
def scene() -> SparseTensor:
    generator = torch.Generator().manual_seed(1)
    floor = torch.rand(20_000, 3, generator=generator) * torch.tensor([2.0, 2.0, 0.0])
    points = torch.cat([floor, *(surface(box, generator) for box in BOXES)])
    coords = torch.unique((points / VOXEL_M).floor().long(), dim=0)
    height = (coords[:, 2:].float() + 0.5) * VOXEL_M
    colors = torch.full((len(coords), 3), 0.5)
    for box, color in zip(BOXES, ((0.9, 0.1, 0.1), (0.1, 0.9, 0.1), (0.1, 0.1, 0.9)), strict=True):
        grown = box.clone()
        grown[3:6] += 0.1
        inside = points_in_boxes((coords.float() + 0.5) * VOXEL_M, grown[None])[:, 0]
        colors[inside] = torch.tensor(color)
    one, middle = torch.ones(len(coords), 1), torch.zeros(len(coords), 3)
    return SparseTensor.from_coords(coords, torch.cat([height, colors, one, middle], dim=1))


def small(task: str, modality: Modality = "depth") -> NetworkConfig:
    config = network_config("tiny", task, modality=modality, num_classes=3)
    backbone = dataclasses.replace(config.backbone, stem_channels=8, channels=(16, 24, 32, 32), blocks=(1, 1, 1, 1))
    detection = config.detection and dataclasses.replace(config.detection, keep=300)
    return dataclasses.replace(config, backbone=backbone, detection=detection)


def fit(network: PerceptionNetwork, loss: Callable[[], Tensor], steps: int, rate: float = 3e-3) -> float:
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=rate, total_steps=steps, pct_start=0.2)
    value = math.inf
    for _ in range(steps):
        optimizer.zero_grad()
        total = loss()
        total.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 10.0)
        optimizer.step()
        schedule.step()
        value = float(total.detach())
    # statistics of the one scene that it learned, so that evaluation mode sees what training saw
    for module in network.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.momentum = 1.0
    with torch.no_grad():
        loss()
    network.eval()
    return value


@pytest.mark.slow
def test_detection(scene: SparseTensor) -> None:
    torch.manual_seed(0)
    network = PerceptionNetwork(small("detection"))
    criterion = DetectionCriterion(min_points=4, top_points=9)

    def terms() -> dict[str, Tensor]:
        encoded = network.encode(scene)
        prefer = sites_in_boxes([BOXES], encoded, VOXEL_M, criterion.min_points)
        levels = network.detect(encoded, prefer).levels
        return criterion(detection_predictions(levels, VOXEL_M), [BoxTarget(BOXES, LABELS)])

    def loss() -> Tensor:
        return torch.stack(list(terms().values())).sum()

    # centreness is learned from soft targets, whose cross entropy ends at their entropy: the others end at zero
    hard = ("class", "box", "object")
    start = {name: float(value.detach()) for name, value in terms().items()}
    fit(network, loss, steps=130, rate=5e-3)
    final = {name: float(value.detach()) for name, value in terms().items()}
    assert sum(final[k] for k in hard) < 0.03 * sum(start[k] for k in hard)
    with torch.no_grad():
        (found,) = decode_detections(network.detect(network.encode(scene)).levels, min_score=0.1)
    overlap = box_iou(found.boxes, BOXES)
    for i, label in enumerate(LABELS):
        mine = overlap[found.labels == label, i]
        assert len(mine) > 0, f"box {i} was not found"
        assert float(mine[0]) > 0.7  # the best-scored one
    assert len(found.boxes) <= 5  # and little else


@pytest.mark.slow
def test_occupancy(scene: SparseTensor) -> None:
    """Colours are hidden in the input and seen by the images alone, so that these have to be used."""
    torch.manual_seed(0)
    config = small("occupancy", modality="rgbd")
    assert config.occupancy is not None
    shape = dataclasses.replace(config.occupancy, cells=(16, 16, 8), num_classes=3, in_channels=8, channels=16)
    config = dataclasses.replace(config, occupancy=shape)
    network = PerceptionNetwork(config)
    colors = scene.replace(scene.feats[:, 1:4])
    blind = scene.feats.clone()
    blind[:, 1:4] = 0.5
    grey = scene.replace(blind)

    def lookup(level: int, sites: Sites) -> Tensor:
        cells = sites.find(floor_site_keys(colors.keys, sites.stride))  # every input site lies in one
        padded = torch.zeros(len(sites), network.image_channels[level])
        count = torch.zeros(len(sites), 1).index_add(0, cells, torch.ones(len(colors), 1))
        padded[:, :3] = torch.zeros(len(sites), 3).index_add(0, cells, colors.feats) / count
        return padded

    assert config.occupancy is not None
    size = config.occupancy.cell_size_m
    cells = torch.cartesian_prod(*(torch.arange(n) for n in config.occupancy.cells))
    inside = points_in_boxes((cells.float() + 0.5) * size, BOXES)
    truth = torch.where(inside.any(1), inside.float().argmax(1) + 1, 0).view(1, *config.occupancy.cells)
    targets = [truth, coarse_labels(truth, 2, 4), coarse_labels(truth, 4, 4)]
    criterion = OccupancyCriterion()

    def loss() -> Tensor:
        logits = network.occupy(network.encode(grey, lookup), (0, 0, 0))
        return torch.stack(list(criterion(logits, targets).values())).sum()

    start = float(loss().detach())
    final = fit(network, loss, steps=150, rate=8e-3)
    assert final < 0.05 * start
    with torch.no_grad():
        label = network.occupy(network.encode(grey, lookup), (0, 0, 0))[0].argmax(1)
    occupied = truth > 0
    assert (label[occupied] == truth[occupied]).float().mean() > 0.97
    assert (label[~occupied] == 0).float().mean() > 0.99


@pytest.mark.slow
def test_grounding_with_voxels(scene: SparseTensor) -> None:
    """Three sentences about one scene; each must get its own box, from any viewpoint it was trained on."""
    torch.manual_seed(0)
    config = small("grounding")
    assert config.grounding is not None
    # random features of an untrained encoder must pass without a projection that would have to stay random
    config = dataclasses.replace(
        config,
        grounding=dataclasses.replace(config.grounding, queries="voxels", channels=64, keep=64, num_queries=32),
    )
    network = PerceptionNetwork(config)
    tokens = torch.randn(3, 6, 384)
    token_pad = torch.zeros(3, 6, dtype=torch.bool)
    positive = torch.zeros(1, 6, dtype=torch.bool)
    positive[0, 2] = True
    viewpoint = Viewpoint(torch.tensor([[0.5, 0.2, 0.0]]).expand(3, 3), torch.tensor([0.3, -1.0, 2.0]))
    targets = [GroundingTarget(BOXES[i : i + 1], positive) for i in range(3)]
    # corner distances alone can rest a quarter turn away from the truth, with the sizes nearly swapped
    criterion = GroundingCriterion(two_sided=True, iou_weight=0.5)

    with torch.no_grad():  # one look at the scene serves all sentences
        levels = network.encode(scene)
        shared = network.detect(levels)
    assert isinstance(network.grounding, GroundingBranch)
    batch = [
        SparseTensor.from_coords(t.coords.repeat(3, 1), t.feats.repeat(3, 1), torch.arange(3).repeat_interleave(len(t)))
        for t in network.grounding.visual(levels, shared)
    ]
    network.grounding.visual = lambda *_: batch

    def run() -> GroundingOutput:
        return network.ground(network.candidates(levels, shared), tokens, token_pad, viewpoint)

    def loss() -> Tensor:
        terms = criterion(grounding_layers(run()), targets, ~token_pad)
        return torch.stack(list(terms.values())).sum()

    start = float(loss().detach())
    final = fit(network, loss, steps=250, rate=1e-3)
    assert final < 0.1 * start
    with torch.no_grad():
        out = run()
    best = out.logits[-1, :, :, 2].argmax(dim=1)
    for i in range(3):
        assert float(box_iou(out.boxes[-1, i, best[i]][None], BOXES[i : i + 1])) > 0.8
