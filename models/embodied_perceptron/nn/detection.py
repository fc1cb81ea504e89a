"""9-DoF detection on sparse levels: class, centreness, six face distances and a 6-D rotation per site.

EmbodiedScan paper, section 4.2; FCAF3D (Rukhovich et al., ECCV 2022). A box coder takes the point that predicts and its
raw regression; a regression of 12 numbers ends with a 6-D rotation (Zhou et al.), one of 9 with ZXY Euler angles in
radians.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from embodied_perceptron.geometry.boxes import euler_to_matrix, make_boxes, sixd_to_matrix
from embodied_perceptron.geometry.compute_path import runs_compiled
from embodied_perceptron.geometry.suppression import PUBLISHED_NMS_IOU, VOTING_IOU, footprint_nms, nms, voted_nms
from embodied_perceptron.nn.neck import SiteMask, TopDownNeck
from embodied_perceptron.nn.official import CORRECTED, Conventions
from embodied_perceptron.sparse.conv import SparseConv
from embodied_perceptron.sparse.sites import Sites, empty_row
from embodied_perceptron.sparse.tensor import SparseTensor, best_rows, empty_columns

Pruning = Literal["class", "object"]

# exp() of an untrained or diverging network must stay finite; e^10 = 22 km is far beyond any object
MAX_LOG_SIZE = 10.0
# sizes and face distances of refined queries are never smaller, as in the released code
MIN_SIZE_M = 0.02
_NO_LEAN_DEG = 0.5
_ALMOST = 1 - 1e-5  # far beyond the rounding of a score
# More only say that the network knows nothing: random weights make a quarter of a million, whose suppression takes many
# minutes. What was trained makes a fraction of it.
_MOST_CANDIDATES = 50_000

# --------------------------------------------------------------------------------------------------------------------
# box coders


def regression_rotation(rotation: Tensor) -> Tensor:
    """(..., 6) 6-D or (..., 3) Euler regression -> (..., 3, 3). ``ValueError`` for another width."""
    if rotation.shape[-1] == 6:
        return sixd_to_matrix(rotation)
    if rotation.shape[-1] == 3:
        return euler_to_matrix(rotation)
    raise ValueError(f"a rotation is regressed by 6 or 3 numbers, got {rotation.shape[-1]}")


def _assemble(centers: Tensor, sizes: Tensor, rotation: Tensor) -> Tensor:
    if rotation.shape[-1] == 3:  # angles pass through as they are, so that losses on them see no wrap
        return torch.cat([centers, sizes, rotation], dim=-1)
    return make_boxes(centers, sizes, regression_rotation(rotation))


def decode_faces(points: Tensor, regression: Tensor) -> Tensor:
    """FCAF3D-style coder: log distances from the point to the box's six faces along the box's own axes.

    Args:
        points: (..., 3) metres.
        regression: (..., 12) or (..., 9): log distances to the faces -x +x -y +y -z +z, then the rotation.

    Returns:
        (..., 9) boxes.
    """
    distances = regression[..., :6].clamp(max=MAX_LOG_SIZE).exp().clamp(min=MIN_SIZE_M)
    rotation = regression[..., 6:]
    centers, sizes = _faces_to_extent(points, distances, regression_rotation(rotation))
    return _assemble(centers, sizes, rotation)


def faces_to_parts(points: Tensor, distances_m: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Decode a site's regression; losses take the parts, since Euler angles have exploding gradients near beta = 90.

    Args:
        points: (..., 3) metres.
        distances_m: (..., 6) to the faces -x +x -y +y -z +z, not negative.
        rotation: (..., 6) 6-D rotation, (..., 3) Euler angles, or (..., 2) FCAF3D's Moebius coding of yaw.

    Returns:
        (..., 3) centres, (..., 3) sizes, (..., 3, 3) rotations.
    """
    if rotation.shape[-1] == 2:
        return _moebius_parts(points, distances_m, rotation)
    R = regression_rotation(rotation)
    return *_faces_to_extent(points, distances_m, R), R


def boxes_from_faces(points: Tensor, distances_m: Tensor, rotation: Tensor) -> Tensor:
    """As :func:`faces_to_parts`, but (..., 9) boxes."""
    return make_boxes(*faces_to_parts(points, distances_m, rotation))


def _moebius_parts(points: Tensor, distances_m: Tensor, coded: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """FCAF3D (Rukhovich et al., ECCV 2022, section 3.4): yaw and the ratio of the sides, continuous on a Moebius strip.

    The two numbers are ln(w/l) sin(2 yaw) and ln(w/l) cos(2 yaw): turning a box by 90 degrees is swapping its sides.
    The centre moves along the world's axes; a cube has no yaw.
    """
    low, high = distances_m[..., 0::2], distances_m[..., 1::2]
    extent = low + high
    perimeter = extent[..., 0:1] + extent[..., 1:2]
    ratio = coded.norm(dim=-1, keepdim=True).clamp(max=MAX_LOG_SIZE).exp()
    yaw = 0.5 * torch.atan2(coded[..., 0], coded[..., 1])
    side = perimeter / (1.0 + ratio)
    level = torch.zeros_like(yaw)
    sizes = torch.cat([side, side * ratio, extent[..., 2:3]], dim=-1)
    return points + 0.5 * (high - low), sizes, euler_to_matrix(torch.stack([yaw, level, level], dim=-1))


def _faces_to_extent(points: Tensor, distances_m: Tensor, R: Tensor) -> tuple[Tensor, Tensor]:
    low, high = distances_m[..., 0::2], distances_m[..., 1::2]
    return points + torch.einsum("...ij,...j->...i", R, 0.5 * (high - low)), low + high


def decode_offsets(points: Tensor, regression: Tensor) -> Tensor:
    """Centre coder of the grounding head: offset of the centre in metres, log size, rotation.

    Args:
        points: (..., 3) metres.
        regression: (..., 12) or (..., 9).

    Returns:
        (..., 9) boxes.
    """
    sizes = regression[..., 3:6].clamp(max=MAX_LOG_SIZE).exp().clamp(min=MIN_SIZE_M)
    return _assemble(points + regression[..., :3], sizes, regression[..., 6:])


# --------------------------------------------------------------------------------------------------------------------
# the head


@dataclass(frozen=True, eq=False)
class Votes:
    """Of a head whose sites vote: (N, 3) ``points_m`` that vote, (N, 3) ``offsets_m`` to the middle of what they are
    part of, (N,) ``samples``: the scene of each."""

    points_m: Tensor
    offsets_m: Tensor
    samples: Tensor


@dataclass(frozen=True, eq=False)
class DetectionLevel:
    """Raw predictions of one level.

    Attributes:
        sites: where; ``sites.samples`` tells the scene of a row.
        points_m: (N, 3) metres, the predicting points.
        anchors_m: (N, 3) metres, from where each one measures the faces: the point itself, unless the head shifts it.
        center_logits: (N, 1).
        distances_m: (N, 6) metres from the anchor to the faces -x +x -y +y -z +z.
        rotation: (N, 6) 6-D rotation, (N, 3) Euler angles or (N, 2) Moebius coding.
        class_logits: (N, K).
        object_logits: (N, 1) whether the cell holds part of any object, by which the next finer level is pruned; None
            where class scores prune.
        presence_logits: (N, 1) whether the box holds a thing at all, whatever it is called; None where the head has no
            such output.
        votes: by which the sites were found, of a head whose sites vote.
    """

    sites: Sites
    points_m: Tensor
    anchors_m: Tensor
    center_logits: Tensor
    distances_m: Tensor
    rotation: Tensor
    class_logits: Tensor
    object_logits: Tensor | None = None
    presence_logits: Tensor | None = None
    votes: Votes | None = None

    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """(N, 3) centres, (N, 3) sizes, (N, 3, 3) rotations of the boxes."""
        return faces_to_parts(self.anchors_m, self.distances_m, self.rotation)

    def boxes(self) -> Tensor:
        """(N, 9) boxes."""
        return boxes_from_faces(self.anchors_m, self.distances_m, self.rotation)


class DetectionHead(nn.Module):
    """The neck with its per-site predictors.

    Args:
        in_channels: of the fused backbone levels, finest first.
        channels: of the neck's outputs.
        num_classes: K.
        voxel_size_m: edge of a finest voxel (stride 1).
        keep, lateral_channels: of the neck, see :class:`~embodied_perceptron.nn.neck.TopDownNeck`.
        rotation_channels: 6 (6-D rotation), 3 (Euler) or 2 (FCAF3D's Moebius coding of yaw).
        pruning: what says which sites the next finer level keeps. ``class``: the best class score, as published. A
            box is learned on one level only, so its coarser cells learn that nothing is there, and small objects are
            the first to be pruned: harmless while nearly everything is kept (``paper``). ``object``: a score of its
            own (after GSDN, Gwak et al., ECCV 2020), learned at every cell that an object reaches into which a finer
            level learns; sites are then chosen before anything is computed at them (the neck's ``prune_first``).
        anchor_shift: faces are measured from where a site's regression moves its point to. Distances are not negative,
            so a box always holds the point from which they are measured, and measured from sites 8 cm apart nothing
            could be thinner than the way to the nearest one.
        conventions: where points stand in their cells, and how pruning scores are interpolated.
        presence: a further output beside the classes, learned at every thing, also at those whose name is none of the
            classes: what is there but not known can then be told from nothing.
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        channels: int,
        num_classes: int,
        voxel_size_m: float,
        keep: int,
        rotation_channels: int = 6,
        lateral_channels: int = 0,
        pruning: Pruning = "class",
        anchor_shift: bool = False,
        conventions: Conventions = CORRECTED,
        presence: bool = False,
    ) -> None:
        super().__init__()
        if pruning not in ("class", "object"):
            raise ValueError(f"pruning must be class or object, got {pruning!r}")
        if num_classes < 1:
            raise ValueError(f"num_classes must be positive, got {num_classes}")
        if rotation_channels not in (2, 3, 6):
            raise ValueError(f"rotation_channels must be 2, 3 or 6, got {rotation_channels}")
        self.num_classes = num_classes
        self.voxel_size_m = voxel_size_m
        self.conventions = conventions
        self.neck = TopDownNeck(in_channels, channels, keep, lateral_channels, pruning == "object", conventions)
        self.center = SparseConv(channels, 1, kernel_size=1)
        self._rotation = slice(6, 6 + rotation_channels)
        self.anchor_shift = anchor_shift
        self.regression = SparseConv(channels, 6 + rotation_channels + 3 * anchor_shift, kernel_size=1)
        self.classify = SparseConv(channels, num_classes, kernel_size=1, bias=True)
        self.object = SparseConv(channels, 1, kernel_size=1, bias=True) if pruning == "object" else None
        self.presence = SparseConv(channels, 1, kernel_size=1, bias=True) if presence else None
        self.scales = nn.Parameter(torch.ones(len(in_channels)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Small heads; classes start improbable (focal loss)."""
        layers = [self.center, self.regression, self.classify]
        layers += [layer for layer in (self.object, self.presence) if layer is not None]
        for layer in layers:
            nn.init.normal_(layer.kernel, std=0.01)
        for scored in (self.classify, self.presence):
            if scored is not None:
                assert scored.bias is not None
                nn.init.constant_(scored.bias, -4.595)  # sigmoid = 0.01
        nn.init.ones_(self.scales)

    def forward(
        self, levels: Sequence[SparseTensor], prefer: SiteMask | None = None
    ) -> tuple[list[DetectionLevel], list[SparseTensor]]:
        """Fused levels finest first -> predictions and the neck's features per level, finest first."""
        predictions: dict[int, DetectionLevel] = {}

        def score(level: int, out: SparseTensor) -> Tensor:
            predictions[level] = self._predict(level, out)
            by_object = predictions[level].object_logits
            return predictions[level].class_logits.amax(1, keepdim=True) if by_object is None else by_object

        features = self.neck(levels, score, prefer)
        predictions[0] = self._predict(0, features[0])  # nothing is pruned by the finest level
        return [predictions[level] for level in range(len(features))], features

    def _predict(self, level: int, out: SparseTensor) -> DetectionLevel:
        layers = {"center": self.center, "regression": self.regression, "classes": self.classify}
        if self.object is not None and level > 0:
            layers["object"] = self.object
        if self.presence is not None:
            layers["presence"] = self.presence
        said = _side_by_side(layers, out)
        regression = said["regression"]
        distances = (regression[:, :6] * self.scales[level]).clamp(max=MAX_LOG_SIZE).exp()
        points_m = anchors_m = self.conventions.site_points(out.sites, self.voxel_size_m, torch.float32)
        if self.anchor_shift:
            edge_m = out.sites.stride * self.voxel_size_m
            anchors_m = torch.add(points_m, regression[:, self._rotation.stop :], alpha=edge_m)
        return DetectionLevel(
            sites=out.sites,
            points_m=points_m,
            anchors_m=anchors_m,
            center_logits=said["center"],
            distances_m=distances,
            rotation=regression[:, self._rotation],
            class_logits=said["classes"],
            object_logits=said.get("object"),
            presence_logits=said.get("presence"),
        )


def _side_by_side(layers: Mapping[str, SparseConv], out: SparseTensor) -> dict[str, Tensor]:
    """Outputs of pointwise layers on the same features, by one product: half of the time of one after the other."""
    feats, every = out.feats, layers.values()
    biases = [
        empty_row(layer.out_channels, feats.dtype, feats.device) if layer.bias is None else layer.bias
        for layer in every
    ]
    kernels: list[Tensor] = [layer.kernel for layer in every]
    widths = [layer.out_channels for layer in every]
    empty = empty_columns(sum(widths)) if out.sites.compiled else 0
    if empty:
        biases.append(feats.new_zeros(1, empty))
        kernels.append(feats.new_zeros(feats.shape[1], empty))
    product = torch.addmm(torch.cat(biases, 1), feats, torch.cat(kernels, 1))
    return dict(zip(layers, torch.split(product[:, : sum(widths)], widths, dim=1), strict=True))


# --------------------------------------------------------------------------------------------------------------------
# decoding


@dataclass(frozen=True, eq=False)
class BoxPredictions:
    """Final boxes of one scene, best first; on the host.

    Attributes:
        boxes: (D, 9); scores: (D,) in [0, 1]; labels: (D,) int64 class indices; the number of classes stands for a
            thing by whatever name.
    """

    boxes: Tensor
    scores: Tensor
    labels: Tensor


def decode_detections(
    levels: Sequence[DetectionLevel],
    max_per_level: int = 1000,
    min_score: float = 0.01,
    iou_threshold: float = PUBLISHED_NMS_IOU,
    conventions: Conventions = CORRECTED,
    max_candidates: int = 0,
) -> list[BoxPredictions]:
    """Predictions of all levels -> boxes per scene after per-class suppression (:func:`suppress`).

    Presence counts as one more class, the last. The score of a box is class probability times the cube root of its
    centreness; as published, times centreness.
    Centreness is learned inside of boxes alone and ranks those of one thing, but squashes whole classes of flat and
    small things, whose sites are never near a centre.
    """
    batch_size = levels[0].sites.batch_size if levels else 0
    results = []
    for sample in range(batch_size):
        logits, geometry = [], []
        for level in levels:
            rows = _promising(level, sample, max_per_level, min_score, conventions.centerness_power)
            logits.append(label_logits(level, rows))
            parts = (level.center_logits, level.anchors_m, level.distances_m, level.rotation)
            geometry.append(torch.cat(parts, 1)[rows])
        described = torch.cat(geometry)
        scores = torch.cat(logits).sigmoid() * described[:, :1].sigmoid().pow(conventions.centerness_power)
        row, label, score = _candidates(scores, min_score, max_candidates)
        described, row, label, score = _on_host(described, row, label, score)
        solids = faces_to_parts(described[:, 1:4], described[:, 4:10], described[:, 10:])
        boxes = _standing(*solids) if conventions.votes else make_boxes(*solids)
        results.append(_suppressed(boxes[row], score, label, iou_threshold, conventions))
    return results


def _promising(level: DetectionLevel, sample: int, limit: int, min_score: float, centerness_power: float) -> Tensor:
    """(R,) the ``limit`` best rows of a sample, those that cannot score ``min_score`` left out where that is free."""
    first, end = level.sites.bounds[sample : sample + 2]
    if not level.sites.compiled:  # counting the others would synchronise with the device
        if end - first <= limit:
            return torch.arange(first, end, device=level.class_logits.device)
        return first + best_rows(best_scores(level, slice(first, end), centerness_power), limit)
    best = best_scores(level, slice(first, end), centerness_power)
    rows = (~(best <= _ALMOST * min_score)).nonzero()[:, 0]  # the others have no class that could count
    return first + rows[best_rows(best[rows], limit)]


def _standing(centers: Tensor, sizes: Tensor, R: Tensor) -> Tensor:
    """:func:`~..geometry.boxes.make_boxes`, but what leans by less than :data:`_NO_LEAN_DEG` stands: such an angle is
    noise of the regression (0.02 degrees in the middle), and boxes that stand overlap by their footprints alone."""
    boxes = make_boxes(centers, sizes, R)
    stands = R[:, 2, 2].abs() > math.cos(math.radians(_NO_LEAN_DEG))
    alpha = torch.atan2(R[:, 1, 0], R[:, 0, 0])
    boxes[:, 6] = torch.where(stands, alpha, boxes[:, 6])
    boxes[:, 7:] = torch.where(stands[:, None], 0.0, boxes[:, 7:])
    return boxes


def label_logits(level: DetectionLevel, rows: Tensor) -> Tensor:
    """(R, K) class logits of some sites, or (R, K + 1) with their presence last where the head knows it."""
    if level.presence_logits is None:
        return level.class_logits[rows]
    return torch.cat([level.class_logits[rows], level.presence_logits[rows]], dim=1)


def best_scores(level: DetectionLevel, rows: slice, centerness_power: float = CORRECTED.centerness_power) -> Tensor:
    """(N,) score of the best label of each site; see :func:`decode_detections`."""
    # both factors rise with their logits: the best class needs no other's score
    best = level.class_logits[rows].amax(1, keepdim=True)
    if level.presence_logits is not None:
        best = torch.maximum(best, level.presence_logits[rows])
    best = best.sigmoid()
    return (best * level.center_logits[rows].sigmoid().pow(centerness_power))[:, 0]


def suppress(
    boxes: Tensor,
    scores: Tensor,
    min_score: float,
    iou_threshold: float,
    conventions: Conventions = CORRECTED,
    max_candidates: int = 0,
) -> BoxPredictions:
    """(N, 9) boxes, (N, K) scores -> what survives the score threshold and per-class suppression, best first. On the
    host, where it is decided.

    Boxes overlap by volume, and with ``conventions.votes`` vote on those that stay
    (:func:`~embodied_perceptron.geometry.suppression.voted_nms`); with ``conventions.level_boxes`` by their footprints,
    so that a lamp above a table of its class goes.
    ``max_candidates``: only so many pairs of box and class, the best, enter suppression; 0 = all, as published, but for
    a number that only untrained networks reach. Every class of every box is a candidate: an uncertain network makes
    tens of thousands.
    """
    row, label, score = _candidates(scores, min_score, max_candidates)
    boxes, row, label, score = _on_host(boxes, row, label, score)
    return _suppressed(boxes[row], score, label, iou_threshold, conventions)


def _candidates(scores: Tensor, min_score: float, limit: int) -> tuple[Tensor, Tensor, Tensor]:
    """(N, K) scores -> rows, labels and scores of the pairs above ``min_score``, the ``limit`` best (0 = as many as are
    ever suppressed)."""
    limit = limit or _MOST_CANDIDATES
    row, label = (scores > min_score).nonzero(as_tuple=True)
    score = scores[row, label]
    if len(row) > limit:
        best = best_rows(score, limit)
        row, label, score = row[best], label[best], score[best]
    return row, label, score


def _on_host(numbers: Tensor, row: Tensor, label: Tensor, score: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All that suppression reads, by one copy."""
    if runs_compiled(numbers):
        return numbers, row, label, score
    together = torch.cat([numbers.flatten().double(), row, label, score]).cpu()
    numbers, pairs = together[: numbers.numel()].view(numbers.shape).to(numbers.dtype), together[numbers.numel() :]
    row, label, score = pairs.view(3, -1)[0].long(), pairs.view(3, -1)[1].long(), pairs.view(3, -1)[2].to(score.dtype)
    return numbers, row, label, score


def _suppressed(
    boxes: Tensor, score: Tensor, label: Tensor, iou_threshold: float, conventions: Conventions
) -> BoxPredictions:
    """See :func:`suppress`; the boxes are the caller's no more."""
    boxes[:, 3:6].clamp_(min=MIN_SIZE_M)
    if conventions.level_boxes:
        boxes[:, 7:] = 0.0
        keep = footprint_nms(boxes, score, label, iou_threshold)
        return BoxPredictions(boxes[keep], score[keep], label[keep])
    if not conventions.votes:
        keep = nms(boxes, score, label, iou_threshold)
        return BoxPredictions(boxes[keep], score[keep], label[keep])
    keep, kept = voted_nms(boxes, score, label, iou_threshold, VOTING_IOU)
    return BoxPredictions(kept, score[keep], label[keep])
