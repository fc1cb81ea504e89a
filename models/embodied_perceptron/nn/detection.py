"""9-DoF detection on sparse levels: class, centreness, six face distances and a 6-D rotation per site.

EmbodiedScan paper, section 4.2; FCAF3D (Rukhovich et al., ECCV 2022). A box coder takes the point that predicts and its
raw regression; a regression of 12 numbers ends with a 6-D rotation (Zhou et al.), one of 9 with ZXY Euler angles in
radians.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from embodied_perceptron.geometry.boxes import euler_to_matrix, make_boxes, sixd_to_matrix
from embodied_perceptron.geometry.compute_path import runs_compiled
from embodied_perceptron.geometry.suppression import PUBLISHED_NMS_IOU, VOTING_IOU, footprint_nms, nms, voted_nms
from embodied_perceptron.geometry.transforms import constant, site_coordinates
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
        geometry: (N, 16), or (N, 13) with Euler angles: the columns of the properties below.
        class_logits: (N, K).
        object_logits: (N, 1) objectness of the cell, which prunes the next finer level; None when class scores prune.
        presence_logits: (N, 1) whether the box holds an object of any class; None when the head has no such output.
        votes: votes that gave the sites, of a voting head.
    """

    sites: Sites
    points_m: Tensor
    geometry: Tensor
    class_logits: Tensor
    object_logits: Tensor | None = None
    presence_logits: Tensor | None = None
    votes: Votes | None = None

    @property
    def center_logits(self) -> Tensor:
        """(N, 1)."""
        return self.geometry[:, :1]

    @property
    def anchors_m(self) -> Tensor:
        """(N, 3) metres, origins of the face distances: the points, unless the head shifts them."""
        return self.geometry[:, 1:4]

    @property
    def distances_m(self) -> Tensor:
        """(N, 6) metres from the anchor to the faces -x +x -y +y -z +z."""
        return self.geometry[:, 4:10]

    @property
    def rotation(self) -> Tensor:
        """(N, 6) 6-D rotation or (N, 3) Euler angles."""
        return self.geometry[:, 10:]


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
        found: dict[int, tuple[Sites, dict[str, Tensor]]] = {}
        # of all levels, on devices
        joint = None if levels[0].sites.compiled else _Joint(self._layers(with_object=True))

        def score(level: int, out: SparseTensor) -> Tensor:
            outputs = self._outputs(level, out, joint)
            found[level] = out.sites, outputs
            return outputs["object"] if "object" in outputs else outputs["classes"].amax(1, keepdim=True)

        features = self.neck(levels, score, prefer)
        found[0] = features[0].sites, self._outputs(0, features[0], joint)  # no level is pruned by the finest one
        return self._predictions([found[level] for level in range(len(features))]), features

    def _layers(self, with_object: bool) -> dict[str, SparseConv]:
        layers = {"center": self.center, "regression": self.regression, "classes": self.classify}
        if self.object is not None and with_object:
            layers["object"] = self.object
        if self.presence is not None:
            layers["presence"] = self.presence
        return layers

    def _outputs(self, level: int, out: SparseTensor, joint: _Joint | None = None) -> dict[str, Tensor]:
        """Outputs of the layers at one level, by name."""
        outputs = (joint or _Joint(self._layers(with_object=level > 0), out.sites.compiled))(out.feats)
        return outputs if level > 0 else {name: value for name, value in outputs.items() if name != "object"}

    def _predictions(self, found: Sequence[tuple[Sites, dict[str, Tensor]]]) -> list[DetectionLevel]:
        """Sites and outputs of each level -> predictions. All levels are computed together."""
        sizes, device = [len(sites) for sites, _ in found], self.scales.device

        def by_row(values: Tensor) -> Tensor:
            return torch.cat([value.expand(n, 1) for value, n in zip(values.unbind(), sizes, strict=False)])

        regression = torch.cat([outputs["regression"] for _, outputs in found])
        distances = (regression[:, :6] * by_row(self.scales)).clamp(max=MAX_LOG_SIZE).exp()
        inside = constant(tuple(self.conventions.point_in_cell * s.stride for s, _ in found), device, torch.float32)
        keys = torch.cat([sites.keys for sites, _ in found])
        points_m = anchors_m = (site_coordinates(keys) + by_row(inside)) * self.voxel_size_m
        if self.anchor_shift:
            shifts = zip(
                found,
                torch.split(points_m, sizes),
                torch.split(regression[:, self._rotation.stop :], sizes),
                strict=True,
            )
            anchors_m = torch.cat([torch.add(p, x, alpha=s.stride * self.voxel_size_m) for (s, _), p, x in shifts])
        centers = torch.cat([outputs["center"] for _, outputs in found])
        geometry = torch.cat([centers, anchors_m, distances, regression[:, self._rotation]], 1)
        return [
            DetectionLevel(sites, points, numbers, o["classes"], o.get("object"), o.get("presence"))
            for (sites, o), points, numbers in zip(
                found, torch.split(points_m, sizes), torch.split(geometry, sizes), strict=True
            )
        ]


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
    if not levels:
        return []
    geometry, logits = torch.cat([level.geometry for level in levels]), label_logits(levels)
    first = [0, *itertools.accumulate(len(level.sites) for level in levels)]
    best, results = best_scores(logits, geometry[:, :1], conventions.centerness_power), []
    for sample in range(levels[0].sites.batch_size):
        ends = [[n + end for end in x.sites.bounds[sample : sample + 2]] for n, x in zip(first, levels, strict=False)]
        rows = torch.cat([start + _top_rows(best[start:end], max_per_level, min_score) for start, end in ends])
        described = geometry[rows]
        scores = logits[rows].sigmoid() * described[:, :1].sigmoid().pow(conventions.centerness_power)
        if not levels[0].sites.compiled:  # copy all to the host at once
            described, scores = torch.cat([described, scores], 1).cpu().tensor_split((described.shape[1],), 1)
        row, label, score = _candidates(scores, min_score, max_candidates)
        solids = faces_to_parts(described[:, 1:4], described[:, 4:10], described[:, 10:])
        boxes = _upright_boxes(*solids) if conventions.votes else make_boxes(*solids)
        results.append(_suppressed(boxes[row], score, label, iou_threshold, conventions))
    return results


def _top_rows(best: Tensor, limit: int, min_score: float) -> Tensor:
    """The ``limit`` best rows of (N,) scores, ascending; on the CPU without those that cannot reach ``min_score``."""
    if not runs_compiled(best):  # counting the others would synchronise with the device
        return best_rows(best, limit)
    rows = (~(best <= _ALMOST * min_score)).nonzero()[:, 0]  # other rows have no class above min_score
    return rows[best_rows(best[rows], limit)]


def _upright_boxes(centers: Tensor, sizes: Tensor, R: Tensor) -> Tensor:
    """:func:`~..geometry.boxes.make_boxes` with tilts below :data:`_MAX_TILT_NOISE_DEG` set to 0: these are noise of
    the regression (0.02 degrees in the median), and upright boxes overlap by their footprints alone."""
    boxes = make_boxes(centers, sizes, R)
    stands = R[:, 2, 2].abs() > math.cos(math.radians(_MAX_TILT_NOISE_DEG))
    alpha = torch.atan2(R[:, 1, 0], R[:, 0, 0])
    boxes[:, 6] = torch.where(stands, alpha, boxes[:, 6])
    boxes[:, 7:].masked_fill_(stands[:, None], 0.0)
    return boxes


def label_logits(levels: Sequence[DetectionLevel]) -> Tensor:
    """(P, K) class logits of the sites of all levels, or (P, K + 1) with presence last when the head has it."""
    classes = torch.cat([level.class_logits for level in levels])
    presence = [p for level in levels if (p := level.presence_logits) is not None]
    return torch.cat([classes, torch.cat(presence)], 1) if presence else classes


def best_scores(logits: Tensor, centers: Tensor, centerness_power: float = CORRECTED.centerness_power) -> Tensor:
    """(P, K) :func:`label_logits`, (P, 1) centreness -> (P,) score of the best label of each site; see
    :func:`decode_detections`."""
    # the score is monotonic in the logit: the best label has the best score
    return (logits.amax(1, keepdim=True).sigmoid() * centers.sigmoid().pow(centerness_power))[:, 0]


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
