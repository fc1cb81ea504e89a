"""9-DoF detection on sparse levels: class, centreness, six face distances and a 6-D rotation per site.

EmbodiedScan paper, section 4.2; FCAF3D (Rukhovich et al., ECCV 2022). A box coder takes the point that predicts and its
raw regression; a regression of 12 numbers ends with a 6-D rotation (Zhou et al.), one of 9 with ZXY Euler angles in
radians.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from embodied_perceptron.geometry.boxes import euler_to_matrix, make_boxes, sixd_to_matrix
from embodied_perceptron.geometry.suppression import PUBLISHED_NMS_IOU, VOTING_IOU, footprint_nms, nms, voted_nms
from embodied_perceptron.nn.backbone import SiteMask, TopDownNeck
from embodied_perceptron.nn.official import CORRECTED, Conventions
from embodied_perceptron.nn.presets import ROTATION_CHANNELS, DetectionConfig
from embodied_perceptron.sparse.conv import SparseConv
from embodied_perceptron.sparse.sites import Sites, empty_row
from embodied_perceptron.sparse.tensor import SparseTensor, best_rows, empty_columns

# exp() of an untrained or diverging network must stay finite; e^10 = 22 km is far beyond any object
MAX_LOG_SIZE = 10.0
# sizes and face distances of refined queries are never smaller, as in the released code
MIN_SIZE_M = 0.02
_MAX_TILT_NOISE_DEG = 0.5
_ALMOST = 1 - 1e-5  # margin larger than the rounding of a score
# Trained networks give fewer candidates; random weights give 250,000, whose suppression takes many minutes.
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
        rotation: (..., 6) 6-D rotation or (..., 3) Euler angles.

    Returns:
        (..., 3) centres, (..., 3) sizes, (..., 3, 3) rotations.
    """
    R = regression_rotation(rotation)
    return *_faces_to_extent(points, distances_m, R), R


def boxes_from_faces(points: Tensor, distances_m: Tensor, rotation: Tensor) -> Tensor:
    """As :func:`faces_to_parts`, but (..., 9) boxes."""
    return make_boxes(*faces_to_parts(points, distances_m, rotation))


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
    """Votes of sites: (N, 3) ``points_m`` of the sites, (N, 3) ``offsets_m`` to the centre of their object, (N,)
    ``samples`` with the scene of each."""

    points_m: Tensor
    offsets_m: Tensor
    samples: Tensor


@dataclass(frozen=True, eq=False)
class DetectionLevel:
    """Raw predictions of one level.

    Attributes:
        sites: of the predictions; ``sites.samples`` are their scenes.
        points_m: (N, 3) metres, the predicting points.
        anchors_m: (N, 3) metres, origins of the face distances: the points, unless the head shifts them.
        center_logits: (N, 1).
        distances_m: (N, 6) metres from the anchor to the faces -x +x -y +y -z +z.
        rotation: (N, 6) 6-D rotation or (N, 3) Euler angles.
        class_logits: (N, K).
        object_logits: (N, 1) objectness of the cell, which prunes the next finer level; None when class scores prune.
        presence_logits: (N, 1) whether the box holds an object of any class; None when the head has no such output.
        votes: votes that gave the sites, of a voting head.
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
        config: see :class:`~embodied_perceptron.nn.presets.DetectionConfig`.
        num_classes: K.
        voxel_size_m: edge of a finest voxel (stride 1).
        conventions: positions of points in their cells, and interpolation of pruning scores.
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        config: DetectionConfig,
        num_classes: int,
        voxel_size_m: float,
        conventions: Conventions = CORRECTED,
    ) -> None:
        super().__init__()
        if config.pruning not in ("class", "object"):
            raise ValueError(f"pruning must be class or object, got {config.pruning!r}")
        if num_classes < 1:
            raise ValueError(f"num_classes must be positive, got {num_classes}")
        if config.rotation not in ROTATION_CHANNELS:
            raise ValueError(f"rotation must be one of {sorted(ROTATION_CHANNELS)}, got {config.rotation!r}")
        channels, by_object = config.channels, config.pruning == "object"
        self.num_classes = num_classes
        self.voxel_size_m = voxel_size_m
        self.conventions = conventions
        self.neck = TopDownNeck(in_channels, channels, config.keep, config.lateral_channels, by_object, conventions)
        self.center = SparseConv(channels, 1, kernel_size=1)
        self._rotation = slice(6, 6 + ROTATION_CHANNELS[config.rotation])
        self.anchor_shift = config.anchor_shift
        self.regression = SparseConv(channels, self._rotation.stop + 3 * config.anchor_shift, kernel_size=1)
        self.classify = SparseConv(channels, num_classes, kernel_size=1, bias=True)
        self.object = SparseConv(channels, 1, kernel_size=1, bias=True) if by_object else None
        self.presence = SparseConv(channels, 1, kernel_size=1, bias=True) if config.presence else None
        self.scales = nn.Parameter(torch.ones(len(in_channels)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Small weights; classes start with probability 0.01 (focal loss)."""
        layers = [self.center, self.regression, self.classify]
        layers += [layer for layer in (self.object, self.presence) if layer is not None]
        for layer in layers:
            nn.init.normal_(layer.kernel, std=0.01)
        for scored in (self.classify, self.presence):
            if scored is not None:
                assert scored.bias is not None
                nn.init.constant_(scored.bias, -4.595)
        nn.init.ones_(self.scales)

    def forward(
        self, levels: Sequence[SparseTensor], prefer: SiteMask | None = None
    ) -> tuple[list[DetectionLevel], list[SparseTensor]]:
        """Fused levels finest first -> predictions and the neck's features per level, finest first."""
        predictions: dict[int, DetectionLevel] = {}

        joint = (
            None if levels[0].sites.compiled else _Joint(self._layers(with_object=True))
        )  # of all levels, on devices

        def score(level: int, out: SparseTensor) -> Tensor:
            predictions[level] = self._predict(level, out, joint)
            by_object = predictions[level].object_logits
            return predictions[level].class_logits.amax(1, keepdim=True) if by_object is None else by_object

        features = self.neck(levels, score, prefer)
        predictions[0] = self._predict(0, features[0], joint)  # no level is pruned by the finest one
        return [predictions[level] for level in range(len(features))], features

    def _layers(self, with_object: bool) -> dict[str, SparseConv]:
        layers = {"center": self.center, "regression": self.regression, "classes": self.classify}
        if self.object is not None and with_object:
            layers["object"] = self.object
        if self.presence is not None:
            layers["presence"] = self.presence
        return layers

    def _predict(self, level: int, out: SparseTensor, joint: _Joint | None = None) -> DetectionLevel:
        outputs = (joint or _Joint(self._layers(with_object=level > 0), out.sites.compiled))(out.feats)
        regression = outputs["regression"]
        distances = (regression[:, :6] * self.scales[level]).clamp(max=MAX_LOG_SIZE).exp()
        points_m = anchors_m = self.conventions.site_points(out.sites, self.voxel_size_m, torch.float32)
        if self.anchor_shift:
            edge_m = out.sites.stride * self.voxel_size_m
            anchors_m = torch.add(points_m, regression[:, self._rotation.stop :], alpha=edge_m)
        return DetectionLevel(
            sites=out.sites,
            points_m=points_m,
            anchors_m=anchors_m,
            center_logits=outputs["center"],
            distances_m=distances,
            rotation=regression[:, self._rotation],
            class_logits=outputs["classes"],
            object_logits=outputs.get("object") if level > 0 else None,
            presence_logits=outputs.get("presence"),
        )


class _Joint:
    """Pointwise layers on the same features as one product, in half of the time of separate ones. ``fills``: with zero
    columns as the CPU likes them."""

    def __init__(self, layers: Mapping[str, SparseConv], fills: bool = False) -> None:
        every, like = list(layers.values()), next(iter(layers.values())).kernel
        self._names, self._widths = list(layers), [layer.out_channels for layer in every]
        biases = [
            empty_row(layer.out_channels, like.dtype, like.device) if layer.bias is None else layer.bias
            for layer in every
        ]
        kernels: list[Tensor] = [layer.kernel for layer in every]
        if empty := empty_columns(sum(self._widths)) if fills else 0:
            biases.append(like.new_zeros(1, empty))
            kernels.append(like.new_zeros(len(like), empty))
        self._bias, self._kernel = torch.cat(biases, 1), torch.cat(kernels, 1)

    def __call__(self, feats: Tensor) -> dict[str, Tensor]:
        """(N, C) -> (N, K) output of each layer."""
        product = torch.addmm(self._bias, feats, self._kernel)[:, : sum(self._widths)]
        return dict(zip(self._names, torch.split(product, self._widths, dim=1), strict=True))


# --------------------------------------------------------------------------------------------------------------------
# decoding


@dataclass(frozen=True, eq=False)
class BoxPredictions:
    """Final boxes of one scene, best first; on the host.

    Attributes:
        boxes: (D, 9); scores: (D,) in [0, 1]; labels: (D,) int64 class indices; the number of classes stands for an
            object of any class.
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
    """Predictions of all levels -> boxes per scene after per-class suppression, on the host.

    Overlap is by volume, and with ``conventions.votes`` suppressed boxes vote on the kept ones
    (:func:`~embodied_perceptron.geometry.suppression.voted_nms`); with ``conventions.level_boxes`` it is by footprint.
    ``max_candidates``: number of best pairs of box and class that enter suppression; 0 = all, as published, up to a
    number that only untrained networks reach. Every class of every box is a candidate: an uncertain network gives tens
    of thousands.

    Presence counts as one more class, the last. The score of a box is its class probability times the cube root of its
    centreness; as published, times centreness. Centreness is learned inside of boxes only and ranks boxes of one
    object, but suppresses whole classes of flat and small objects, whose sites are never near a centre.
    """
    batch_size = levels[0].sites.batch_size if levels else 0
    results = []
    for sample in range(batch_size):
        logits, geometry = [], []
        for level in levels:
            rows = _top_rows(level, sample, max_per_level, min_score, conventions.centerness_power)
            logits.append(label_logits(level, rows))
            parts = (level.center_logits, level.anchors_m, level.distances_m, level.rotation)
            geometry.append(torch.cat(parts, 1)[rows])
        described = torch.cat(geometry)
        scores = torch.cat(logits).sigmoid() * described[:, :1].sigmoid().pow(conventions.centerness_power)
        if not levels[0].sites.compiled:  # copy all to the host at once
            described, scores = torch.cat([described, scores], 1).cpu().tensor_split((described.shape[1],), 1)
        row, label, score = _candidates(scores, min_score, max_candidates)
        solids = faces_to_parts(described[:, 1:4], described[:, 4:10], described[:, 10:])
        boxes = _upright_boxes(*solids) if conventions.votes else make_boxes(*solids)
        results.append(_suppressed(boxes[row], score, label, iou_threshold, conventions))
    return results


def _top_rows(
    level: DetectionLevel, sample: int, limit: int, min_score: float, centerness_power: float
) -> Tensor | slice:
    """The ``limit`` best rows of a sample, (R,) or all; on the CPU without those that cannot reach ``min_score``."""
    first, end = level.sites.bounds[sample : sample + 2]
    if not level.sites.compiled:  # counting the others would synchronise with the device
        if end - first <= limit:
            return slice(first, end)
        return first + best_rows(best_scores(level, slice(first, end), centerness_power), limit)
    best = best_scores(level, slice(first, end), centerness_power)
    rows = (~(best <= _ALMOST * min_score)).nonzero()[:, 0]  # other rows have no class above min_score
    return first + rows[best_rows(best[rows], limit)]


def _upright_boxes(centers: Tensor, sizes: Tensor, R: Tensor) -> Tensor:
    """:func:`~..geometry.boxes.make_boxes` with tilts below :data:`_MAX_TILT_NOISE_DEG` set to 0: these are noise of
    the regression (0.02 degrees in the median), and upright boxes overlap by their footprints alone."""
    boxes = make_boxes(centers, sizes, R)
    stands = R[:, 2, 2].abs() > math.cos(math.radians(_MAX_TILT_NOISE_DEG))
    alpha = torch.atan2(R[:, 1, 0], R[:, 0, 0])
    boxes[:, 6] = torch.where(stands, alpha, boxes[:, 6])
    boxes[:, 7:] = torch.where(stands[:, None], 0.0, boxes[:, 7:])
    return boxes


def label_logits(level: DetectionLevel, rows: Tensor | slice) -> Tensor:
    """(R, K) class logits of some sites, or (R, K + 1) with presence last when the head has it."""
    if level.presence_logits is None:
        return level.class_logits[rows]
    return torch.cat([level.class_logits[rows], level.presence_logits[rows]], dim=1)


def best_scores(level: DetectionLevel, rows: slice, centerness_power: float = CORRECTED.centerness_power) -> Tensor:
    """(N,) score of the best label of each site; see :func:`decode_detections`."""
    # the score is monotonic in the class logit: the best class has the best score
    best = level.class_logits[rows].amax(1, keepdim=True)
    if level.presence_logits is not None:
        best = torch.maximum(best, level.presence_logits[rows])
    best = best.sigmoid()
    return (best * level.center_logits[rows].sigmoid().pow(centerness_power))[:, 0]


def _candidates(scores: Tensor, min_score: float, limit: int) -> tuple[Tensor, Tensor, Tensor]:
    """(N, K) scores -> rows, labels and scores of the pairs above ``min_score``, at most the ``limit`` best (0 =
    default)."""
    limit = limit or _MOST_CANDIDATES
    row, label = (scores > min_score).nonzero(as_tuple=True)
    score = scores[row, label]
    if len(row) > limit:
        best = best_rows(score, limit)
        row, label, score = row[best], label[best], score[best]
    return row, label, score


def _suppressed(
    boxes: Tensor, score: Tensor, label: Tensor, iou_threshold: float, conventions: Conventions
) -> BoxPredictions:
    """Suppress boxes per class, see :func:`decode_detections`; changes ``boxes`` in place."""
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
