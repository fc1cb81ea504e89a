"""Refinement head: classify and score detected boxes again, from features sampled inside of each box.

A site predicts its box from a fixed neighbourhood, whatever the size of the object. The refinement head samples the
input sites, the fused levels and the neck on a small grid in the frame of the box. A dense network over the grid
corrects the log-odds of each class and predicts whether the box contains an object. (Two-stage detectors do the same in
other representations: PV-RCNN, Shi et al., CVPR 2020; CAGroup3D, Wang et al., NeurIPS 2022. Learning the faces of boxes
too gave no better boxes than detection with votes.) It is trained on a frozen network (``train --task boxes``), on
homes that this network has not seen, so that it learns from realistic errors.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from embodied_perceptron.geometry import overlap
from embodied_perceptron.geometry.boxes import canonical_form, rotations
from embodied_perceptron.geometry.suppression import REFINED_TOGETHER_IOU, grouped_nms, nms
from embodied_perceptron.geometry.transforms import constant, site_keys_of
from embodied_perceptron.nn.detection import MIN_SIZE_M, BoxPredictions
from embodied_perceptron.nn.graphed import Graphed
from embodied_perceptron.nn.presets import RefinementConfig
from embodied_perceptron.sparse.sites import Sites, find_in_all
from embodied_perceptron.sparse.tensor import SparseTensor

PLACE_FEATURES = 9
_GRID_SCALE = 1.2  # size of the grid relative to its box,
_MARGIN_M = 0.04  # plus this on every side
_MIN_PROBABILITY = 1e-3
_CONFIDENT = 0.2


@dataclass(frozen=True, eq=False)
class Proposals:
    """Input of the refinement head for P boxes of one scene.

    Attributes:
        boxes: (P, 9) in the canonical form (:func:`~embodied_perceptron.geometry.boxes.canonical_boxes`).
        log_odds: (P, K) of each class, from detection.
        place: (P, 9) log of the edges; lower and upper end above the floor, metres; log of the ratio of the horizontal
            edges; the best detection score; a third of the log of the volume; whether the score is above 0.2.
        rows: (P, G^3, S) int32 row of each source at each point of the grid, -1 where absent.
        sources: per source (N_s, C_s): input sites, fused levels, the neck's.
    """

    boxes: Tensor
    log_odds: Tensor
    place: Tensor
    rows: Tensor
    sources: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.boxes)


def merge_labels(found: BoxPredictions, num_classes: int, limit: int) -> tuple[Tensor, Tensor]:
    """Merge overlapping boxes of several labels to one box with the scores of all labels.

    Args:
        found: boxes of one scene, best first.
        num_classes: K.
        limit: maximal number of boxes, the best.

    Returns:
        (P,) rows of the kept boxes; (P, K + 1) best score of each label among the boxes that overlap them.
    """
    chosen, group, box = grouped_nms(found.boxes, found.scores, REFINED_TOGETHER_IOU, limit)
    scores = found.scores.new_zeros(len(chosen), num_classes + 1)
    flat = group * (num_classes + 1) + found.labels[box]
    scores.view(-1).scatter_reduce_(0, flat, found.scores[box], "amax")
    return chosen, scores


def grid_points(boxes: Tensor, cells: int, R: Tensor | None = None) -> Tensor:
    """(P, 9) boxes -> (P, cells^3, 3) points of a slightly larger grid in the frame of each; x slowest.

    ``R``: (P, 3, 3) rotations of the boxes, if known.
    """
    steps = [(i + 0.5) / cells * 2.0 - 1.0 for i in range(cells)]
    numbers = tuple(itertools.chain.from_iterable(itertools.product(steps, steps, steps)))
    grid = constant(numbers, boxes.device, boxes.dtype).view(-1, 3)
    half = 0.5 * _GRID_SCALE * boxes[:, 3:6] + _MARGIN_M
    R = rotations(boxes) if R is None else R
    return torch.baddbmm(boxes[:, None, :3], grid * half[:, None], R.transpose(1, 2))


def propose(
    sources: Sequence[SparseTensor],
    sample: int,
    boxes: Tensor,
    scores: Tensor,
    voxel_size_m: float,
    floor_z_m: float | Tensor,
    cells: int,
) -> Proposals:
    """Build the input of refinement for boxes of one scene.

    Args:
        sources: sampled tensors, each at its own stride.
        sample: index in the batch.
        boxes: (P, 9); scores: (P, K) of detection, per class; on the host. The output is on the device of the sources.
        voxel_size_m: edge of a site at stride 1.
        floor_z_m: height of the floor, a number or a tensor of one.
        cells: per edge of the grid.
    """
    device, first = sources[0].device, scores.detach().numpy()
    form = canonical_form(boxes.detach().double().numpy())
    turn = overlap.frames(form)[2].reshape(-1, 9)
    geometry = torch.from_numpy(np.concatenate([form, turn, _place(form, first)], 1)).to(device)
    place = geometry[:, 18:]
    place[:, 3:5].sub_(floor_z_m)  # ends above the floor
    points = grid_points(geometry[:, :9], cells, geometry[:, 9:18].view(-1, 3, 3))
    p = np.clip(first, _MIN_PROBABILITY, 1.0 - _MIN_PROBABILITY)
    return Proposals(
        geometry[:, :9],
        torch.from_numpy(np.log(p / (1.0 - p))).to(device),
        place.to(scores.dtype),
        _rows([source.sites for source in sources], sample, points, voxel_size_m),
        tuple(source.feats for source in sources),
    )


def _rows(sources: Sequence[Sites], sample: int, points: Tensor, voxel_size_m: float) -> Tensor:
    """(P, N, 3) points -> (P, N, S) int32 row of the site of each source that contains them, -1 where absent."""
    coords = torch.floor(points.reshape(-1, 3) / voxel_size_m).long()
    rows = find_in_all(sources, site_keys_of(coords, sample))
    return rows.reshape(*points.shape[:-1], len(sources))


def _place(boxes: NDArray[np.float64], scores: NDArray[np.floating]) -> NDArray[np.float64]:
    """(P, 9) :attr:`Proposals.place` for a floor at height 0."""
    edges = np.maximum(boxes[:, 3:6], MIN_SIZE_M)
    bottom = boxes[:, 2] - 0.5 * edges[:, 2]
    best = scores.max(1, initial=0.0).astype(np.float64)
    length, slope, sure = np.log(edges), np.log(edges[:, 0] / edges[:, 1]), (best > _CONFIDENT).astype(np.float64)
    return np.stack([*length.T, bottom, bottom + edges[:, 2], slope, best, length.sum(1) / 3.0, sure], 1)


class RefinementHead(nn.Module):
    """See the module docstring.

    Args:
        config: widths.
        source_channels: of each source, the input sites' first.
        num_classes: K.
    """

    def __init__(self, config: RefinementConfig, source_channels: Sequence[int], num_classes: int) -> None:
        super().__init__()
        if config.cells != 5:
            raise ValueError(f"cells must be 5 for two convolutions of size 3, got {config.cells}")
        width, hidden = config.channels, config.hidden_channels
        self.config = config
        self.num_classes = num_classes
        # input columns have units; features of layers have an arbitrary scale
        self.norms = nn.ModuleList(nn.Identity() if i == 0 else nn.LayerNorm(c) for i, c in enumerate(source_channels))
        self.project = nn.ModuleList(nn.Linear(c, width) for c in source_channels)
        self.there = nn.Linear(len(source_channels), width)
        self.near = nn.Conv3d(width, config.near_channels, 3)
        self.whole = nn.Conv3d(config.near_channels, config.whole_channels, 3)
        self.said = nn.Linear(num_classes, config.said_channels)
        self.place = nn.Linear(PLACE_FEATURES, config.place_channels)
        joined = config.whole_channels + config.said_channels + config.place_channels
        self.dropout = nn.Dropout(config.dropout)
        self.first = nn.Linear(joined, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.classify = nn.Linear(hidden, num_classes + 1)
        self.scale = nn.Parameter(torch.ones(1))
        self.shift = nn.Parameter(torch.zeros(1))
        self.graph = Graphed(self._changed_rows)
        nn.init.normal_(self.classify.weight, std=0.01)
        nn.init.zeros_(self.classify.bias)

    def forward(self, proposals: Proposals) -> Tensor:
        """(P, K + 1) log-odds of every class and, last, of an object of any class."""
        given = self._sampled(proposals), proposals.log_odds, proposals.place
        if len(proposals) == 0 or not self.graph.records(given[0].device):
            return self._changed(*given)
        rows = torch.cat([part.flatten(1) for part in given], 1)  # the graph's input has as many rows as may come
        padded: Tensor = self.graph(functional.pad(rows, (0, 0, 0, -len(rows) % self.config.things)))
        return padded[: len(rows)]

    def _changed_rows(self, rows: Tensor) -> Tensor:
        """:meth:`_changed` of its input in one tensor."""
        cells = self.config.cells**3
        read, log_odds, place = rows.tensor_split((-self.num_classes - PLACE_FEATURES, -PLACE_FEATURES), 1)
        return self._changed(read.reshape(-1, cells, self.config.channels), log_odds, place)

    def _changed(self, read: Tensor, log_odds: Tensor, place: Tensor) -> Tensor:
        """:meth:`forward` from (P, G^3, C) sampled sources."""
        P, edge = len(read), self.config.cells
        x = functional.relu(read).transpose(1, 2).reshape(P, self.config.channels, edge, edge, edge)
        near = functional.relu(self.near(x)).flatten(1)
        # a kernel as large as its grid is a matrix product, at a third of the cost
        x = functional.relu(functional.linear(near, self.whole.weight.flatten(1), self.whole.bias))
        detected, placed = functional.relu(self.said(log_odds)), functional.relu(self.place(place))
        hidden = functional.relu(self.first(self.dropout(torch.cat([x, detected, placed], 1))))
        hidden = functional.relu(self.second(self.dropout(hidden)))
        change = self.classify(hidden)
        named = log_odds * self.scale + self.shift + change[:, :-1]
        return torch.cat([named, change[:, -1:]], 1)

    def _sampled(self, proposals: Proposals) -> Tensor:
        """(P, G^3, C) sums of the projected sources at the points of the grids."""
        dtype = self.there.weight.dtype
        known = [
            functional.linear(norm(features.to(dtype)), project.get_parameter("weight"), there)
            for norm, project, features, there in zip(
                self.norms, self.project, proposals.sources, self._known_biases().unbind(0), strict=True
            )
        ]
        table = torch.cat([*known, known[0].new_zeros(1, self.config.channels)])  # the last row is for absent sites
        first = torch.tensor([0, *(len(rows) for rows in known[:-1])], device=table.device).cumsum(0)
        nothing = len(table) - 1
        rows = torch.where(proposals.rows >= 0, proposals.rows + first, nothing)
        # one table for all sources: a third of the time of one source after the other
        read = functional.embedding_bag(rows.flatten(0, 1), table, mode="sum")
        return (read + self.there.bias).reshape(*proposals.rows.shape[:2], self.config.channels)

    def _known_biases(self) -> Tensor:
        """(S, C) bias of each source: of its projection, and of being present."""
        return torch.stack([project.get_parameter("bias") for project in self.project]) + self.there.weight.t()


def refine(head: RefinementHead, proposals: Proposals, min_score: float, iou_threshold: float) -> BoxPredictions:
    """Final boxes on the host, best first: all labels of proposals with a score above ``min_score``, after suppression
    per label. The configuration's ``share`` scales the changes of the head.
    """
    logits: Tensor = head(proposals)
    named = torch.lerp(proposals.log_odds, logits[:, :-1], head.config.share)
    scores = torch.cat([named, logits[:, -1:]], 1).sigmoid().cpu()
    row, label = (torch.from_numpy(found) for found in (scores.detach().numpy() > min_score).nonzero())
    boxes, chosen = proposals.boxes.to(scores.device)[row], scores[row, label]
    keep = nms(boxes, chosen, label, iou_threshold)
    return BoxPredictions(boxes[keep], chosen[keep], label[keep])
