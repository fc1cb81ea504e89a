"""From the network's outputs to what the criteria compare with the truth."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from embodied_perceptron.geometry.boxes import points_in_boxes
from embodied_perceptron.nn.detection import DetectionLevel
from embodied_perceptron.nn.grounding import GroundingOutput
from embodied_perceptron.nn.neck import SiteMask
from embodied_perceptron.sparse.tensor import Sites, SparseTensor
from embodied_perceptron_training.training.criteria import DetectionPrediction, GroundingLayer
from embodied_perceptron_training.training.losses import BoxParts
from embodied_perceptron_training.training.matching import learning_levels


def detection_predictions(levels: Sequence[DetectionLevel], voxel_size_m: float) -> list[DetectionPrediction]:
    """Batched levels -> one prediction per scene, levels finest first; ``voxel_size_m`` of an input site."""
    batch_size = levels[0].sites.batch_size if levels else 0
    parts = [level.parts() for level in levels]
    scenes = []
    for sample in range(batch_size):
        rows = [slice(level.sites.bounds[sample], level.sites.bounds[sample + 1]) for level in levels]
        scenes.append(
            DetectionPrediction(
                points=[level.points_m[r] for level, r in zip(levels, rows, strict=True)],
                centerness=_rows([level.center_logits for level in levels], rows)[:, 0],
                boxes=BoxParts(*(_rows([p[i] for p in parts], rows) for i in range(3))),
                class_logits=_rows([level.class_logits for level in levels], rows),
                reaches=[0.5 * level.sites.stride * voxel_size_m for level in levels],
                object_logits=[
                    None if level.object_logits is None else level.object_logits[r, 0]
                    for level, r in zip(levels, rows, strict=True)
                ],
            )
        )
    return scenes


def _rows(values: Sequence[Tensor], rows: Sequence[slice]) -> Tensor:
    return torch.cat([v[r] for v, r in zip(values, rows, strict=True)])


def sites_in_boxes(
    boxes: Sequence[Tensor], levels: Sequence[SparseTensor], voxel_size_m: float, min_points: int
) -> SiteMask:
    """For :meth:`PerceptionNetwork.detect`: the sites whose centre lies in one of their scene's (G, 9) boxes, down to
    the level that each box is learned on, as far as the fused ``levels`` (finest first) can tell.

    ``min_points``: see :func:`~embodied_perceptron_training.training.matching.assign_points`.
    """
    strides = torch.tensor([level.stride for level in levels])
    centers_m = [_centers(level.sites, voxel_size_m) for level in levels]
    needed = []  # per sample (G,) stride of the level that each box is learned on
    for sample, scene in enumerate(boxes):
        rows = [slice(x.sites.bounds[sample], x.sites.bounds[sample + 1]) for x in levels]
        points = [centers[r] for centers, r in zip(centers_m, rows, strict=True)]
        needed.append(strides.to(scene.device)[learning_levels(points, scene, min_points)])

    def mask(sites: Sites) -> Tensor:
        centers = _centers(sites, voxel_size_m)
        inside = torch.zeros(len(sites), dtype=torch.bool, device=sites.device)
        for sample, (scene, stride) in enumerate(zip(boxes, needed, strict=True)):
            rows = slice(sites.bounds[sample], sites.bounds[sample + 1])
            inside[rows] = points_in_boxes(centers[rows], scene[stride <= sites.stride].to(centers)).any(dim=1)
        return inside

    return mask


def _centers(sites: Sites, voxel_size_m: float) -> Tensor:
    """(N, 3) metres."""
    return (sites.coords.float() + 0.5 * sites.stride) * voxel_size_m


def grounding_layers(output: GroundingOutput) -> list[GroundingLayer]:
    """Every decoder layer, first to last."""
    return [GroundingLayer(logits, boxes) for logits, boxes in zip(output.logits, output.boxes, strict=True)]
