"""Losses of the three heads: elementary terms, assignment of predictions to ground truth, and criteria.

A criterion takes predictions and ground truth of a batch and returns named, weighted scalars whose sum is the loss; it
has no parameters. Normalisers (numbers of positives) pass through ``reduce``: the identity in one process, the mean
over processes in distributed training, so that N processes have the losses of one process with the N-fold batch.

``released=True`` restores the faults of the released EmbodiedScan code, for comparison with its checkpoints and
recorded outputs.

Sources: focal loss (Lin et al. 2017); decoupled corner Chamfer distance (EmbodiedScan, CVPR 2024, equation of the box
loss); scene-class affinity (MonoScene, CVPR 2022); contrastive alignment (MDETR, ICCV 2021; EmbodiedScan, appendix).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional

from embodied_perceptron.geometry import boxes as bx
from embodied_perceptron.geometry import overlap
from embodied_perceptron.geometry.boxes import paired_iou
from embodied_perceptron.geometry.compute_path import runs_compiled
from embodied_perceptron.geometry.transforms import constant
from embodied_perceptron.nn.backbone import SiteMask
from embodied_perceptron.nn.detection import DetectionLevel, Votes, faces_to_parts
from embodied_perceptron.nn.graphed import Graphed
from embodied_perceptron.nn.grounding import GroundingOutput, ObjectGroundingOutput
from embodied_perceptron.sparse.sites import Sites
from embodied_perceptron.sparse.tensor import SparseTensor
from embodied_perceptron.weights.categories import OCCUPANCY_IGNORED
from embodied_perceptron_training.training.nested import map_tensors

P = ParamSpec("P")
R = TypeVar("R")
_EPS = 1e-6
_PROBABILITY_FLOOR = 1e-12  # keeps log and its gradient finite
_FEWEST = 1e-6  # smaller than one voxel divided by any number of processes
_BOXES_AT_A_TIME = 16  # per scene, so that losses of boxes have few shapes on a device
_PAIRS_AT_A_TIME = 1 << 22  # of points and boxes: 50 MB of offsets
Losses = dict[str, Tensor]  # named, weighted scalars; their sum is minimised
Reduce = Callable[[Tensor], Tensor]  # mean of a value over processes, without gradient


def same(value: Tensor) -> Tensor:
    """``reduce`` for one process: the value without gradient."""
    return value.detach()


def full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Compute in float32 at least, also under autocast: coordinates in a room, and sums over thousands of cells, need
    more digits than half precision has."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not any(torch.is_autocast_enabled(device) for device in ("cuda", "cpu")):
            return function(*args, **kwargs)
        with torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
            return function(*_widened(args), **_widened(kwargs))

    return call


def _widened(value: Any) -> Any:
    """The value with half-precision tensors as float32."""
    return map_tensors(value, lambda x: x.float() if x.dtype in (torch.float16, torch.bfloat16) else x)


def shared(sums: Tensor, reduce: Reduce) -> Tensor:
    """Sums over this process's elements -> their mean over processes, with the gradient of this process's part.

    A loss of ratios of such sums has the value, and after averaging over processes the gradient, of one process with
    all elements.
    """
    return reduce(sums) + (sums - sums.detach())


class BoxParts(NamedTuple):
    """Boxes as the heads decode them. Losses take these, because the gradient through Euler angles explodes where beta
    is near a quarter turn.

    Attributes:
        center: (N, 3) metres.
        size: (N, 3) metres.
        rotation: (N, 3, 3), columns are the box's axes.
    """

    center: Tensor
    size: Tensor
    rotation: Tensor

    @staticmethod
    def of(boxes: Tensor) -> BoxParts:
        """From (N, 9)."""
        return BoxParts(boxes[:, :3], boxes[:, 3:6], bx.rotations(boxes))

    def boxes(self) -> Tensor:
        """(N, 9)."""
        return bx.make_boxes(*self)

    def corners(self) -> Tensor:
        """(N, 8, 3)."""
        local = 0.5 * bx.corner_signs(self.center) * self.size[:, None, :]
        return torch.einsum("nij,nkj->nki", self.rotation, local) + self.center[:, None, :]


# -- classification


def sigmoid_focal(logits: Tensor, targets: Tensor) -> Tensor:
    """Element-wise focal loss (alpha 0.25, gamma 2) of independent sigmoids; ``targets`` has the shape of ``logits``,
    entries in {0, 1}."""
    targets = targets.to(logits.dtype)
    cross_entropy = functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    p = torch.sigmoid(logits)
    miss = p * (1 - targets) + (1 - p) * targets
    alpha = 0.25 * targets + 0.75 * (1 - targets)
    return alpha * miss**2.0 * cross_entropy


# -- boxes


def decoupled_corner_loss(
    predicted: BoxParts,
    target: BoxParts,
    weights: tuple[float, float, float, float] = (0.2, 0.2, 0.2, 0.4),
    two_sided: bool = False,
) -> Tensor:
    """(N,) weighted sum of corner Chamfer distances for the centre, the size and the rotation alone (the other parts
    from the target) and for the whole box.

    The distance is the mean over predicted corners of the L1 distance to the nearest target corner. It does not depend
    on which of a box's equivalent descriptions was annotated (turned by 90 degrees with two sizes swapped).
    ``two_sided`` averages both directions, which also penalises target corners without a near predicted one.
    """
    # the four, concatenated
    mixed = BoxParts(
        torch.cat([predicted.center, target.center, target.center, predicted.center]),
        torch.cat([target.size, predicted.size, target.size, predicted.size]),
        torch.cat([target.rotation, target.rotation, predicted.rotation, predicted.rotation]),
    )
    distance = (mixed.corners().view(4, -1, 8, 1, 3) - target.corners()[:, None]).abs().sum(-1)  # (4, N, 8, 8)
    chamfer = distance.amin(-1).mean(-1)
    if two_sided:
        chamfer = 0.5 * (chamfer + distance.amin(-2).mean(-1))
    return sum((w * term for w, term in zip(weights, chamfer.unbind(), strict=True)), torch.zeros_like(chamfer[0]))


def l1_box_loss(predicted: BoxParts, target: BoxParts, parts: Sequence[str]) -> Tensor:
    """(N,) sum of the absolute differences of ``parts``: ``center``, ``size``, ``cosines`` of the Euler angles."""
    differences = {
        "center": predicted.center - target.center,
        "size": predicted.size - target.size,
        "cosines": predicted.boxes()[:, 6:].cos() - target.boxes()[:, 6:].cos(),
    }
    return torch.cat([differences[part] for part in parts], 1).abs().sum(1)


def with_fewer_axes(boxes: BoxParts, dof: int) -> BoxParts:
    """Boxes turned by their yaw alone (7 degrees of freedom) or not at all (6)."""
    turned = boxes.rotation[:, 1, 1], -boxes.rotation[:, 0, 1]  # cosine and sine of yaw, times the cosine of beta
    length = torch.hypot(*turned).clamp_min(_EPS)
    one, zero = torch.ones_like(length), torch.zeros_like(length)
    c, s = (v / length for v in turned) if dof == 7 else (one, zero)
    return boxes._replace(rotation=torch.stack([c, -s, zero, s, c, zero, zero, zero, one], 1).view(-1, 3, 3))


def rotated_iou_loss(predicted: BoxParts, target: BoxParts, distance_weight: float = 0.0) -> Tensor:
    """(N,) one minus the exact IoU; ``distance_weight`` adds the squared distance of centres over the squared diagonal
    of both boxes' common bounds, which attracts boxes without overlap (DIoU)."""
    p = BoxParts(*(t.double() for t in predicted))
    q = BoxParts(*(t.double() for t in target))
    inter = overlap.intersection_volumes(
        p.center, 0.5 * p.size, p.rotation, q.center, 0.5 * q.size, q.rotation
    ).clamp_min(0.0)
    union = p.size.prod(-1) + q.size.prod(-1) - inter
    iou = torch.where(union > 0, inter / torch.where(union > 0, union, 1.0), 0.0)
    loss = 1 - iou
    if distance_weight:
        both = torch.cat([p.corners(), q.corners()], dim=1)
        diagonal2 = ((both.amax(1) - both.amin(1)) ** 2).sum(-1).clamp_min(_EPS)
        loss = loss + distance_weight * ((p.center - q.center) ** 2).sum(-1) / diagonal2
    return loss.to(predicted.center.dtype)


# -- occupancy


def occupancy_cross_entropy(
    logits: Tensor,
    target: Tensor,
    released: bool = False,
    reduce: Reduce = same,
) -> Tensor:
    """(B, C, ...) logits, (B, ...) labels with 255 = ignore -> scalar. 0 when everything is ignored (release: NaN)."""
    target = target.long()
    total = functional.cross_entropy(logits, target, ignore_index=OCCUPANCY_IGNORED, reduction="sum")
    norm = reduce((target != OCCUPANCY_IGNORED).sum().to(logits.dtype))
    return total / (norm if released else torch.where(norm > 0, norm, 1.0))


class OccupancySums(NamedTuple):
    """Sums behind the affinity terms of a grid, over known voxels.

    Attributes:
        classes: (4, C) per class: probability where true, probability anywhere, true voxels, all voxels.
        filled: (5,) occupied: probability where true, anywhere, true voxels; free: probability where true, true voxels.
    """

    classes: Tensor
    filled: Tensor

    @staticmethod
    def of(logits: Tensor, target: Tensor) -> OccupancySums:
        """(B, C, ...) logits, (B, ...) labels, 0 = free, 255 = unknown."""
        known = (target != OCCUPANCY_IGNORED).unsqueeze(1)
        numbers = constant(tuple(range(logits.shape[1])), target.device).view(-1, *[1] * (target.ndim - 1))
        y = target.unsqueeze(1) == numbers
        p = torch.softmax(logits, dim=1) * known  # (B, C, ...)
        every = [d for d in range(logits.ndim) if d != 1]
        hit, predicted, there = (p * y).sum(every), p.sum(every), y.sum(every).to(p.dtype)  # (C,) each
        number = there.sum()
        filled = known[:, 0].to(p.dtype) - p[:, 0]  # 0 where unknown
        occupied = (filled * ~y[:, 0]).sum()
        return OccupancySums(
            torch.stack([hit, predicted, there, number.expand_as(there)]),
            torch.stack([occupied, filled.sum(), number - there[0], hit[0], there[0]]),
        )


def semantic_terms(sums: Tensor, reduce: Reduce = same) -> Tensor:
    """(..., 4, C) :attr:`OccupancySums.classes` -> (...): per class, minus the logarithms of soft precision, recall and
    specificity; mean over the true classes. 0 when everything is ignored."""
    hit, predicted, there, number = shared(sums, reduce).unbind(-2)
    others = number - there
    rejected = others - predicted + hit
    terms = _negative_log(
        torch.stack(
            [
                hit / predicted.clamp_min(_PROBABILITY_FLOOR),
                hit / there.clamp_min(_FEWEST),
                rejected / others.clamp_min(_FEWEST),
            ]
        )
    )
    present = there > 0  # in any process
    terms = terms[0] + terms[1] + terms[2].masked_fill(others <= 0, 0.0)
    return terms.masked_fill(~present, 0.0).sum(-1) / present.sum(-1).clamp_min(1)


def geometric_terms(sums: Tensor, released: bool = False, reduce: Reduce = same) -> Tensor:
    """(..., 5) :attr:`OccupancySums.filled` -> (...): the same for occupied against free.

    A term without voxels is left out. The release instead divides by a small number and takes the logarithm of the
    resulting 0, which adds a constant 100 without gradient: ``released=True``.
    """
    hit, occupied, n_occupied, true_free, n_free = shared(sums, reduce).unbind(-1)
    if released:
        ratios = hit / (occupied + _EPS), hit / (n_occupied + _EPS), true_free / (n_free + _EPS)
        return torch.stack([-torch.log(r).clamp_min(-100.0) for r in ratios]).sum(0)
    terms = _negative_log(
        torch.stack(
            [
                hit / occupied.clamp_min(_PROBABILITY_FLOOR),
                hit / n_occupied.clamp_min(_FEWEST),
                true_free / n_free.clamp_min(_FEWEST),
            ]
        )
    )
    missing = torch.stack([n_occupied, n_occupied, n_free]) <= 0
    return terms.masked_fill(missing, 0.0).sum(0)


def _negative_log(p: Tensor) -> Tensor:
    return -torch.log(p.clamp_min(_PROBABILITY_FLOOR))


# -- alignment of queries and tokens


def contrastive_alignment(
    queries: Tensor, tokens: Tensor, positive: Tensor, token_mask: Tensor, temperature: float = 0.07
) -> Tensor:
    """Contrastive loss of queries and tokens in the common space, equations (3) to (5) of the appendix -> (...).

    Args:
        queries: (..., Q, D) embeddings, normalised here.
        tokens: (..., L, D) embeddings, normalised here.
        positive: (..., Q, L) bool, token l names the target of query q.
        token_mask: (..., L) bool, True = a token (not padding).

    Per query with positives: the mean over its tokens of -log softmax over tokens; per token with positives the same
    over queries; the sum over all of them. 0 without any positive.
    """
    words = token_mask.unsqueeze(-2)
    positive = positive & words
    similarity = functional.normalize(queries, dim=-1) @ functional.normalize(tokens, dim=-1).mT / temperature
    similarity = similarity.masked_fill(~words, torch.finfo(similarity.dtype).min)  # (..., Q, L)
    return _align(similarity, positive) + _align(similarity.mT, positive.mT)


def _align(similarity: Tensor, positive: Tensor) -> Tensor:
    log_p = torch.log_softmax(similarity, dim=-1).masked_fill(~positive, 0.0)
    return -(log_p.sum(-1) / positive.sum(-1).clamp_min(1)).sum(-1)


# -- detection


@dataclass(frozen=True)
class PaddedBoxes:
    """Boxes of B scenes, padded to the same number."""

    boxes: Tensor  # (B, G, 9); padding is a cube of one metre at the origin
    there: Tensor  # (B, G) False at padding
    row: Tensor  # (B, G) int64 position among the concatenated boxes; their number at padding

    @cached_property
    def rotation(self) -> Tensor:
        """(B, G, 3, 3)."""
        return bx.rotations(self.boxes)

    @cached_property
    def volume(self) -> Tensor:
        """(B, G) cubic metres."""
        return self.boxes[..., 3:6].prod(-1)

    def repeated(self, times: int) -> PaddedBoxes:
        """The scenes repeated, one copy after the other."""
        return PaddedBoxes(*(x.repeat(times, *[1] * (x.ndim - 1)) for x in (self.boxes, self.there, self.row)))

    @staticmethod
    def of(scenes: Sequence[Tensor], multiple: int = 1) -> PaddedBoxes:
        """From (G_b, 9) of each scene. ``multiple``: G is a multiple of it."""
        counts = [len(boxes) for boxes in scenes]
        cube = constant((0.0, 0, 0, 1, 1, 1, 0, 0, 0), scenes[0].device, scenes[0].dtype)
        joined = torch.cat([*scenes, cube[None]])
        first, most = [0, *itertools.accumulate(counts)], -(-max(counts) // multiple) * multiple
        padded = [[first[b] + i if i < n else first[-1] for i in range(most)] for b, n in enumerate(counts)]
        rows = torch.tensor(padded, dtype=torch.int64).view(len(counts), most).to(joined.device, non_blocking=True)
        return PaddedBoxes(joined[rows], rows < sum(counts), rows)


@dataclass(frozen=True)
class ScenePoints:
    """Points of B scenes: L levels, finest first, each with the scenes in order; padded by scene."""

    row: Tensor  # (B, M) int64 row of each point among all of them, their number at padding
    level: Tensor  # (B, M) int64, L at padding
    points: Tensor  # (B, M, 3) metres
    levels: int  # L
    total: int  # number of points

    @staticmethod
    def of(points: Sequence[Tensor], bounds: Sequence[Sequence[int]]) -> ScenePoints:
        """From (N_l, 3) metres per level and the B + 1 bounds of the scenes' rows."""
        ends = np.array(bounds, dtype=np.int64).reshape(len(points), -1)
        counts = np.diff(ends, axis=1)  # (L, B)
        cells = np.concatenate([np.zeros((1, counts.shape[1]), np.int64), counts.cumsum(0)])  # in each scene, before
        first = np.concatenate([[0], counts.sum(1).cumsum()[:-1]])[:, None] + ends[:, :-1]
        aside = np.concatenate([first - cells[:-1], np.zeros((1, counts.shape[1]), np.int64)])  # (L + 1, B)
        device, total = points[0].device, int(counts.sum())
        known = torch.from_numpy(np.stack([cells, aside], -1).transpose(1, 0, 2).copy()).to(device, non_blocking=True)
        place = torch.arange(int(cells[-1].max()), device=device)  # (M,)
        level = (place[None, :, None] >= known[:, None, 1:, 0]).sum(2)  # (B, M)
        row = torch.where(level < len(points), place + known[..., 1].gather(1, level), total)
        flat = torch.cat([*points, points[0].new_zeros(1, 3)])
        return ScenePoints(row, level, flat[row], len(points), total)

    @full_precision
    def pairs(self, truth: PaddedBoxes, R: Tensor, function: Callable[[Tensor, slice], Tensor]) -> Tensor:
        """``function`` of every point and every box of its scene -> (B, M, G), a bounded number of points at a time.

        It is called with (B, m, G, 3) points as seen from the centres of the boxes along the axes ``R`` (B, G, 3, 3),
        and with which of the M points these are.
        """
        (B, G), found = truth.there.shape, []
        step = max(_PAIRS_AT_A_TIME // max(B * G, 1), 1)
        for start in range(0, max(self.points.shape[1], 1), step):
            rows = slice(start, start + step)
            offset = self.points[:, rows, None].to(R.dtype) - truth.boxes[:, None, :, :3]
            found.append(function(torch.einsum("bgij,bmgi->bmgj", R, offset), rows))
        return found[0] if len(found) == 1 else torch.cat(found, 1)

    def inside(self, truth: PaddedBoxes, margin: Tensor | None = None) -> Tensor:
        """Boxes, grown on every side by the (B, M) ``margin`` of a point -> (B, M, G) bool; faces count."""
        half = 0.5 * truth.boxes[:, None, :, 3:6]

        def within(local: Tensor, rows: slice) -> Tensor:
            reach = half if margin is None else half + margin[:, rows, None, None]
            return (local.abs() <= reach).all(-1)

        return self.pairs(truth, truth.rotation, within)

    def scatter(self, values: Tensor) -> Tensor:
        """(B, M) of each scene's points -> (P,) of all points."""
        return values.new_zeros(self.total + 1).scatter_(0, self.row.flatten(), values.flatten())[: self.total]

    def counts(self, inside: Tensor) -> Tensor:
        """(B, M, G) bool -> (B, L, G) number of points on each level."""
        numbers = constant(tuple(range(self.levels)), self.level.device)[:, None]
        mine = (self.level[:, None] == numbers).to(torch.float32)  # (B, L, M), whose sums are exact
        return (mine @ inside.to(torch.float32)).long()


@dataclass(frozen=True)
class BatchAssignment:
    """Targets of the boxes of a batch: T places, of which those with ``taken`` count."""

    row: Tensor  # (T,) int64 point
    box: Tensor  # (T,) int64 row of its box among (B * G)
    scene: Tensor  # (T,) int64
    centerness: Tensor  # (T,) target in (0, 1]
    taken: Tensor  # (T,) bool
    level: Tensor  # (B, G) int64 level on which each box is learned

    def taken_only(self) -> BatchAssignment:
        """Only places that count; synchronises with a device."""
        rows = self.taken.nonzero()[:, 0]
        row, box, scene, centerness, taken = (
            x[rows] for x in (self.row, self.box, self.scene, self.centerness, self.taken)
        )
        return BatchAssignment(row, box, scene, centerness, taken, self.level)


@torch.no_grad()
def assign_batch(
    points: ScenePoints,
    truth: PaddedBoxes,
    min_points: int = 27,
    top_points: int = 18,
    min_size_m: float = 0.0,
    released: bool = False,
) -> BatchAssignment:
    """FCAF3D's assignment for rotated boxes, for all scenes of a batch, without reading from a device.

    A box takes its points from one level, the coarsest on which it holds ``min_points`` (the finest where there is
    none), and of those the ``top_points`` most central ones. A point in several boxes learns the smallest.

    Args:
        points, truth: of the scenes.
        min_size_m: least thickness of a box when points are assigned: a thin picture on a wall may lie between the
            points and never be learned. 0 as published.
        released: the inverse rotation is that of the negated angles (wrong unless only alpha is set), points that tie
            with the first one left out are left out too, and every finer level must hold ``min_points`` as well.

    Boxes without points, and scenes without boxes or points, have no targets.
    """
    B, G = truth.there.shape
    R = bx.euler_to_matrix(-truth.boxes[..., 6:]).transpose(-1, -2) if released else truth.rotation
    half = 0.5 * truth.boxes[:, None, :, 3:6].clamp_min(min_size_m)

    def central_inside(local: Tensor, rows: slice) -> Tensor:
        away = local.abs()
        near, far = half - away, half + away  # of each pair of faces
        counts = truth.there[:, None] & (points.level[:, rows, None] < points.levels)
        return torch.where((near > 0).all(-1) & counts, torch.sqrt((near / far).prod(-1)), -1.0)

    centerness = points.pairs(truth, R, central_inside)  # (B, M, G), -1 outside
    inside = centerness >= 0
    level = _learning_level(points.counts(inside), min_points, released)  # (B, G)
    # the most central points of each box first, stable on ties
    ranked, order = centerness.masked_fill(points.level[..., None] != level[:, None], -1.0).sort(
        dim=1, descending=True, stable=True
    )
    central, place = ranked[:, :top_points], order[:, :top_points]  # (B, K, G)
    taken = central >= 0
    if released and ranked.shape[1] > top_points:
        taken = taken & (central > ranked[:, top_points : top_points + 1])
    row = points.row.gather(1, place.flatten(1)).view_as(place)
    rank = truth.volume.argsort(dim=1, stable=True).argsort(dim=1)[:, None].expand_as(row)
    claims = torch.where(taken, row, points.total)
    smallest = torch.full((points.total + 1,), G, device=row.device)
    smallest = smallest.scatter_reduce_(0, claims.flatten(), rank.flatten(), "amin")
    taken = taken & (smallest[row] == rank)
    scene = torch.arange(B, device=row.device)[:, None, None].expand_as(row)
    box = scene * G + torch.arange(G, device=row.device)
    return BatchAssignment(row.flatten(), box.flatten(), scene.flatten(), central.flatten(), taken.flatten(), level)


def _learning_level(counts: Tensor, min_points: int, released: bool = False) -> Tensor:
    """(..., L, G) points of each box on each level, finest first -> (..., G) level on which it is learned."""
    enough = counts >= min_points
    if released:
        return (torch.cumprod(enough.long(), dim=-2).sum(-2) - 1).clamp_min(0)
    return (enough * torch.arange(counts.shape[-2], device=counts.device)[:, None]).amax(-2)


def learning_levels(points: ScenePoints, truth: PaddedBoxes, min_points: int) -> Tensor:
    """(B, G) level that :func:`assign_batch` will take, or a finer one if more points are added later."""
    return _learning_level(points.counts(points.inside(truth)), min_points)


def sites_in_boxes(
    boxes: Sequence[Tensor], levels: Sequence[SparseTensor], voxel_size_m: float, min_points: int
) -> SiteMask:
    """For :meth:`PerceptionNetwork.detect`: sites whose centre is in one of their scene's (G, 9) boxes, down to the
    level on which the box is learned, as far as the fused ``levels`` (finest first) determine it.

    ``min_points``: see :func:`assign_batch`.
    """
    truth = PaddedBoxes.of(boxes)
    centers_m = [_centers(level.sites, voxel_size_m) for level in levels]
    scenes = ScenePoints.of(centers_m, [level.sites.bounds for level in levels])
    strides = constant(tuple(level.stride for level in levels), truth.boxes.device)
    needed = strides[learning_levels(scenes, truth, min_points)]  # (B, G) stride of the level that it is learned on

    def mask(sites: Sites) -> Tensor:
        here = ScenePoints.of([_centers(sites, voxel_size_m)], [sites.bounds])
        wanted = truth.there & (needed <= sites.stride)
        return here.scatter((here.inside(truth) & wanted[:, None]).any(2))

    return mask


def _centers(sites: Sites, voxel_size_m: float) -> Tensor:
    """(N, 3) metres."""
    return (sites.coords.float() + 0.5 * sites.stride) * voxel_size_m


def objects_reach(points: ScenePoints, truth: PaddedBoxes, reach_m: Sequence[float], level: Tensor) -> Tensor:
    """(P,) bool: the cell is touched by a box learned on a finer level (its centre is in the box grown by half a cell
    edge).

    Args:
        points: centres of the cells.
        truth: the boxes.
        reach_m: half the edge of a cell of each level.
        level: (B, G) on which each box is learned.
    """
    reach = constant((*reach_m, 0.0), points.points.device, points.points.dtype)[points.level]
    finer = truth.there[:, None] & (level[:, None] < points.level[..., None])
    return points.scatter((points.inside(truth, reach) & finer).any(2))


# -- grounding


def hungarian(cost: Tensor) -> tuple[Tensor, Tensor]:
    """(Q, G) cost on the host -> indices of the matched queries and boxes, min(Q, G) of each, by rising query.

    Raises ``ValueError`` for entries that are not finite, so that an exploded network is not trained on a random
    matching.
    """
    if not bool(torch.isfinite(cost).all()):
        row, column = (~torch.isfinite(cost)).nonzero()[0].tolist()
        raise ValueError(f"matching cost of query {row} and box {column} is {cost[row, column].item()}")
    query, box = linear_sum_assignment(cost.double().numpy())
    return torch.from_numpy(query), torch.from_numpy(box)


@dataclass(frozen=True)
class QueryMatcher:
    """Hungarian matching of queries with the target boxes of a sentence."""

    focal: float = 1.0  # as l1 and iou, weight of a cost
    l1: float = 2.0
    iou: float = 2.0
    released: bool = False  # the L1 cost subtracts raw angles, so that pi and -pi are far apart

    @torch.no_grad()
    def costs(self, logits: Tensor, boxes: Tensor, gt_boxes: Tensor, positive: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(..., Q, L) token logits (-inf = padding), (..., Q, 9), (..., G, 9), (..., G, L) -> weighted focal, L1 and
        IoU costs (..., Q, G)."""
        p = torch.sigmoid(logits.double())
        hit = -0.25 * (1 - p) ** 2 * torch.log(p + 1e-12)  # the focal loss of a token that should be 1
        miss = -0.75 * p**2 * torch.log(1 - p + 1e-12)  # and of one that should be 0
        y = positive.to(p.dtype)
        y = y * torch.isfinite(logits).any(-2, keepdim=True)  # padding names no object
        focal = hit @ y.mT + miss @ (1 - y).mT
        predicted, wanted = boxes.double().unsqueeze(-2), gt_boxes.double().unsqueeze(-3)  # (..., Q, 1, 9), (..., G, 9)
        difference = predicted - wanted
        if not self.released:
            angle = torch.remainder(difference[..., 6:] + torch.pi, 2 * torch.pi) - torch.pi
            difference = torch.cat([difference[..., :6], angle], dim=-1)
        solid = torch.cat([predicted[..., :3], predicted[..., 3:6].clamp_min(0), predicted[..., 6:]], dim=-1)
        pairs = torch.broadcast_tensors(solid, wanted)
        iou = bx.paired_iou(*(x.reshape(-1, 9) for x in pairs)).view(focal.shape)
        return self.focal * focal, self.l1 * difference.abs().sum(-1), -self.iou * iou

    def match(self, logits: Tensor, boxes: Tensor, truth: PaddedBoxes, positive: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The matched (query indices, box indices), on the host, of each of B sentences; one synchronisation with a
        device.

        Args:
            logits: (B, Q, L).
            boxes: (B, Q, 9).
            truth: (B, G) boxes.
            positive: (B, G, L).
        """
        if truth.boxes.shape[1] == 0:
            return [(torch.zeros(0, dtype=torch.int64),) * 2 for _ in boxes]
        cost = torch.stack(self.costs(logits, boxes, truth.boxes, positive)).sum(0)
        cost = torch.cat([cost, truth.there[:, None].to(cost)], 1).cpu()  # the number of boxes is copied with the costs
        return [hungarian(one[:-1, : int(one[-1].sum())]) for one in cost]

    def __call__(self, logits: Tensor, boxes: Tensor, gt_boxes: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
        """:meth:`match` for one sentence: (Q, L), (Q, 9), (G, 9), (G, L)."""
        return self.match(logits[None], boxes[None], PaddedBoxes.of([gt_boxes]), positive[None])[0]


# -- occupancy


def coarse_labels(labels: Tensor, ratio: int, classes: int) -> Tensor:
    """(B, X, Y, Z) labels, 0 = free, 255 = unknown -> (B, X/r, Y/r, Z/r) labels of cells ``ratio`` times as large.

    A cell takes the most frequent label of its occupied voxels (on a tie the lowest); it is free when it has known
    voxels and no occupied ones, unknown when all are unknown. Raises ``ValueError`` for a size that ``ratio`` does not
    divide or, on the CPU, a label that is neither below ``classes`` nor 255.
    """
    B, X, Y, Z = labels.shape
    if ratio < 1 or X % ratio or Y % ratio or Z % ratio:
        raise ValueError(f"ratio must divide the grid {(X, Y, Z)}, got {ratio}")
    if runs_compiled(labels):
        bad = ((labels >= classes) & (labels != OCCUPANCY_IGNORED)) | (labels < 0)
        if bool(bad.any()):
            raise ValueError(f"label {int(labels[bad][0])} is not below {classes}")
    if ratio == 1:
        return labels.clone()
    shape = (B, X // ratio, Y // ratio, Z // ratio)
    cells = labels.reshape(B, shape[1], ratio, shape[2], ratio, shape[3], ratio)
    cells = cells.permute(0, 1, 3, 5, 2, 4, 6).reshape(-1, ratio**3).long()  # (cells, voxels)
    # unknown voxels are counted in an extra column
    index = cells.clamp(max=classes)
    counts = cells.new_zeros(len(cells), classes + 1).scatter_add_(1, index, torch.ones_like(index))
    occupied = counts[:, 1:classes]
    best = occupied.argmax(1) + 1
    unknown = counts[:, classes] == ratio**3
    result = torch.where(occupied.sum(1) > 0, best, torch.where(unknown, OCCUPANCY_IGNORED, 0))
    return result.reshape(shape).to(labels.dtype)


# weights of the corner distances by centre, size, rotation alone and by the whole box, as the paper
DECOUPLED = (0.2, 0.2, 0.2, 0.4)


@dataclass(frozen=True)
class BoxTerms:
    """A design of the box loss."""

    corners: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)  # (center, size, rotation, whole box)
    by_size: bool = False  # corner distances as shares of the box's mean side
    l1: tuple[str, ...] = ()  # parts of :func:`l1_box_loss`, instead
    iou_dof: int = 0  # IoU loss of boxes with so many degrees of freedom, :func:`with_fewer_axes`; 0 = none


# the designs of Table 13 in its order, then the paper's baselines: L1 on the cosines of Euler angles beside the
# original loss of VoteNet (centre, size), and of FCAF3D and ImVoxelNet (IoU)
BOX_LOSSES: Mapping[str, BoxTerms] = {
    "plain": BoxTerms((0.0, 0.0, 0.0, 1.0)),
    "sum": BoxTerms((1.0, 1.0, 1.0, 1.0)),
    "average": BoxTerms((0.25, 0.25, 0.25, 0.25)),
    "average-by-size": BoxTerms((0.25, 0.25, 0.25, 0.25), by_size=True),
    "decoupled": BoxTerms(DECOUPLED),
    "iou-7dof": BoxTerms(iou_dof=7),
    "decoupled-iou-7dof": BoxTerms(DECOUPLED, iou_dof=7),
    "l1-cosines": BoxTerms(l1=("center", "size", "cosines")),
    "iou-cosines": BoxTerms(l1=("cosines",), iou_dof=6),
}


# -- detection


@dataclass(frozen=True)
class DetectionPrediction:
    """The detection head's output for a batch; its levels concatenated, finest first, each with the scenes in order."""

    points: list[Tensor]  # per level (N_l, 3) metres
    geometry: Tensor  # (P, 16) or (P, 13), see DetectionLevel
    class_logits: Tensor  # (P, C)
    reaches: list[float] = field(default_factory=list)  # half a cell's edge per level, metres
    object_logits: list[Tensor | None] = field(default_factory=list)  # per level (N_l,) or None
    presence_logits: Tensor | None = None  # (P,), if the head has presence
    bounds: list[list[int]] | None = None  # per level B + 1 ends of the scenes' rows; None = one scene
    votes: Votes | None = None  # of a head whose sites vote

    def scenes(self) -> ScenePoints:
        """The points by scene."""
        points = self.points or [self.class_logits.new_zeros(0, 3)]
        return ScenePoints.of(points, self.bounds or [[0, len(p)] for p in points])


def detection_predictions(levels: Sequence[DetectionLevel], voxel_size_m: float) -> DetectionPrediction:
    """Prediction of batched levels, finest first; ``voxel_size_m``: of an input site."""
    presence = [p for level in levels if (p := level.presence_logits) is not None]
    return DetectionPrediction(
        points=[level.points_m for level in levels],
        geometry=torch.cat([level.geometry for level in levels]),
        class_logits=torch.cat([level.class_logits for level in levels]),
        reaches=[0.5 * level.sites.stride * voxel_size_m for level in levels],
        object_logits=[None if level.object_logits is None else level.object_logits[:, 0] for level in levels],
        presence_logits=torch.cat(presence)[:, 0] if presence else None,
        bounds=[level.sites.bounds for level in levels],
        votes=levels[0].votes,
    )


@dataclass(frozen=True)
class BoxTarget:
    """Ground truth of one scene: (G, 9) boxes and (G,) int64 labels. The label ``num_classes`` stands for an object
    without a class: its centre, box and presence are learned."""

    boxes: Tensor
    labels: Tensor


@dataclass(frozen=True)
class DetectionCriterion:
    """Focal classification, binary cross entropy of centreness, decoupled corner Chamfer of boxes. Normalised by the
    positives of the whole batch."""

    min_points: int = 27  # as top_points and min_size_m, see :func:`assign_batch`
    top_points: int = 18
    min_size_m: float = 0.0
    iou_weight: float = 0.0  # of an additional rotated IoU loss
    box: BoxTerms = BOX_LOSSES["decoupled"]  # the design of the box loss
    two_sided: bool = False  # corner distances in both directions
    released: bool = False  # restore the faults of the released assignment

    @full_precision
    def __call__(self, prediction: DetectionPrediction, targets: Sequence[BoxTarget], reduce: Reduce = same) -> Losses:
        """``{"class", "center"[, "box"][, "iou/7-dof"][, "iou"][, "presence"][, "votes"][, "object"]}``; without
        positives only "class", "presence" and "object" count. On a device, unassigned points are computed and masked,
        since reading their number would synchronise. ``reduce``: mean of a value over processes.

        Raises ``ValueError`` for targets that do not fit; their values are checked on the CPU only.
        """
        logits = prediction.class_logits
        points = prediction.scenes()
        if len(targets) != len(points.row):
            raise ValueError(f"need one target per scene, got {len(targets)} for {len(points.row)}")
        labels = torch.cat([_checked(target, logits.shape[1]) for target in targets])
        compiled = runs_compiled(logits)
        truth = PaddedBoxes.of([target.boxes for target in targets], 1 if compiled else _BOXES_AT_A_TIME)
        found = assign_batch(points, truth, self.min_points, self.top_points, self.min_size_m, self.released)
        if compiled:
            found = found.taken_only()
        row = found.row.clamp(max=max(points.total - 1, 0))
        # places that do not count are written to an extra row, objects without a class to an extra column
        written = torch.where(found.taken, row, points.total)
        label = functional.pad(labels, (0, 1))[truth.row.flatten()[found.box]]
        onehot = logits.new_zeros(points.total + 1, logits.shape[1] + 1)
        onehot.view(-1).scatter_(0, written * onehot.shape[1] + label, 1.0)
        turns = truth.rotation.flatten(0, 1).flatten(1)
        wanted = torch.cat([truth.boxes[..., :6].flatten(0, 1), turns], 1)[found.box]
        wanted = torch.cat([wanted, found.centerness[:, None], found.taken[:, None]], 1).to(logits.dtype)
        sums = (
            self._graph(prediction.geometry[row], wanted) if len(row) else self._sums(prediction.geometry[row], wanted)
        )
        of_points = {"class": sigmoid_focal(logits, onehot[:-1, :-1])}
        if prediction.presence_logits is not None:
            positive = logits.new_zeros(points.total + 1).scatter_(0, written, 1.0)[:-1]
            of_points["presence"] = sigmoid_focal(prediction.presence_logits, positive)
        every = torch.cat([torch.stack([values.sum() for values in of_points.values()]), sums])
        norm = reduce(found.taken.to(logits.dtype).sum()).clamp_min(1.0)
        losses = dict(zip((*of_points, "center", *self._terms), (every / norm).unbind(), strict=True))
        if prediction.votes is not None:
            losses["votes"] = vote_loss(prediction.votes, truth, reduce)
        return {**losses, **_object_losses(prediction, points, truth, found.level, reduce)}

    @cached_property
    def _terms(self) -> dict[str, Callable[[BoxParts, BoxParts], Tensor]]:
        """(N,) terms of predicted and wanted boxes, by name."""
        terms: dict[str, Callable[[BoxParts, BoxParts], Tensor]] = {}
        if any(self.box.corners):
            terms["box"] = self._corners
        elif self.box.l1:
            terms["box"] = partial(l1_box_loss, parts=self.box.l1)
        if dof := self.box.iou_dof:
            terms[f"iou/{dof}-dof"] = lambda a, b: rotated_iou_loss(with_fewer_axes(a, dof), with_fewer_axes(b, dof))
        if self.iou_weight:
            terms["iou"] = lambda a, b: self.iou_weight * rotated_iou_loss(a, b, distance_weight=1.0)
        return terms

    def _corners(self, predicted: BoxParts, wanted: BoxParts) -> Tensor:
        corners = decoupled_corner_loss(predicted, wanted, self.box.corners, self.two_sided)
        return corners / wanted.size.mean(1) if self.box.by_size else corners

    @cached_property
    def _graph(self) -> Graphed:
        """:meth:`_sums`, which has as many inputs as the scenes have boxes."""
        return Graphed(self._sums, trains=True)

    def _sums(self, geometry: Tensor, wanted: Tensor) -> Tensor:
        """(T, 16) or (T, 13) predicted numbers; (T, 17) wanted centres, sizes, rotations, centreness, and whether a
        row counts -> sums of the terms: the centreness, then :attr:`_terms`."""
        predicted = BoxParts(*faces_to_parts(geometry[:, 1:4], geometry[:, 4:10], geometry[:, 10:]))
        right = BoxParts(wanted[:, :3], wanted[:, 3:6], wanted[:, 6:15].view(-1, 3, 3))
        centers = wanted[:, 15].clamp_min(0.0)
        found = [functional.binary_cross_entropy_with_logits(geometry[:, 0], centers, reduction="none")]
        found += [term(predicted, right) for term in self._terms.values()]
        return torch.stack(found).masked_fill(wanted[:, 16] == 0, 0.0).sum(1)


def _object_losses(
    prediction: DetectionPrediction, points: ScenePoints, truth: PaddedBoxes, level: Tensor, reduce: Reduce
) -> Losses:
    """Binary cross entropy of "an object learned on a finer level reaches into this cell", the mean over each
    level's cells, then levels.

    The score selects the sites of the next finer level. Objects learned on this level or a coarser one do not need
    them: keeping a bed's thousand sites would prune pictures and plants.
    """
    known = [i for i, logits in enumerate(prediction.object_logits) if logits is not None]
    if not known:
        return {}
    reached = objects_reach(points, truth, prediction.reaches, level).to(prediction.class_logits.dtype)
    wanted = reached.split([len(p) for p in prediction.points])
    cells = torch.tensor([float(len(wanted[i])) for i in known]).to(reached.device, non_blocking=True)
    sums = [
        functional.binary_cross_entropy_with_logits(logits, wanted[i], reduction="sum")
        for i, logits in enumerate(prediction.object_logits)
        if logits is not None
    ]
    return {"object": (torch.stack(sums) / reduce(cells).clamp_min(1.0)).mean()}


def vote_loss(votes: Votes, truth: PaddedBoxes, reduce: Reduce = same) -> Tensor:
    """L1 distance of each vote to the centre of the smallest box around its site, the mean over sites in boxes."""
    boxes, there = truth.boxes[votes.samples], truth.there[votes.samples]  # (N, G, 9), (N, G)
    offset = votes.points_m[:, None] - boxes[..., :3].to(votes.points_m)
    local = torch.einsum("ngij,ngi->ngj", truth.rotation[votes.samples].to(offset), offset)
    inside = (local.abs() <= 0.5 * boxes[..., 3:6]).all(-1) & there
    volume = torch.where(inside, truth.volume[votes.samples].to(offset), torch.inf)
    if not volume.shape[1]:
        return votes.offsets_m.sum() * 0.0 / reduce(votes.offsets_m.new_zeros(())).clamp_min(1.0)
    best = volume.argmin(1, keepdim=True)
    wanted = -offset.gather(1, best[..., None].expand(-1, 1, 3))[:, 0]
    held = inside.any(1)
    apart = torch.where(held, (votes.offsets_m - wanted).abs().sum(1), 0.0)
    return apart.sum() / reduce(held.sum().to(apart.dtype)).clamp_min(1.0)


def _checked(target: BoxTarget, classes: int) -> Tensor:
    """The labels of a scene. Raises ``ValueError`` for a target that does not fit."""
    labels = target.labels
    bx.check_boxes(target.boxes, "ground truth boxes")
    if runs_compiled(labels) and bool((wrong := (labels < 0) | (labels > classes)).any()):
        raise ValueError(f"label {int(labels[wrong][0])} is not in [0, {classes}]")
    return labels


# -- occupancy


class OccupancyCriterion:
    """Cross entropy and scene-class affinity on every scale; scale i has the weight ``0.5 ** i``. A process without
    samples passes grids of batch size 0. ``released``: restore the released faults."""

    def __init__(self, released: bool = False) -> None:
        self._compute = partial(_occupancy_terms, released)
        self._graph = Graphed(partial(self._compute, same), trains=True)

    @full_precision
    def __call__(self, logits: Sequence[Tensor], targets: Sequence[Tensor], reduce: Reduce = same) -> Losses:
        """Per scale (B, C, X, Y, Z) logits and (B, X, Y, Z) labels -> ``{"cross_entropy", "semantic", "geometric"}``,
        sums over scales. ``reduce``: mean of a value over processes."""
        if len(logits) != len(targets):
            raise ValueError(f"need a target per scale, got {len(targets)} for {len(logits)}")
        for i, (scores, target) in enumerate(zip(logits, targets, strict=True)):
            if scores.shape[:1] + scores.shape[2:] != target.shape:
                raise ValueError(f"scale {i}: logits {tuple(scores.shape)} do not fit labels {tuple(target.shape)}")
        compute = self._graph if reduce is same else partial(self._compute, reduce)  # messages are not recorded
        terms: Tensor = compute(*logits, *targets)
        return dict(zip(("cross_entropy", "semantic", "geometric"), terms.unbind(), strict=True))


def _occupancy_terms(released: bool, reduce: Reduce, *given: Tensor) -> Tensor:
    """(3,) terms of the logits and labels of L scales."""
    L = len(given) // 2
    pairs = list(zip(given[:L], given[L:], strict=True))
    entropies = torch.stack([occupancy_cross_entropy(*pair, released, reduce) for pair in pairs])
    classes, filled = map(torch.stack, zip(*(OccupancySums.of(*pair) for pair in pairs), strict=True))
    terms = torch.stack([entropies, semantic_terms(classes, reduce), geometric_terms(filled, released, reduce)])
    return terms @ constant(tuple(0.5**i for i in range(L)), terms.device, terms.dtype)


# -- grounding


@dataclass(frozen=True)
class GroundingLayer:
    """One decoder layer's output for a batch; embeddings are in the common space, None without alignment."""

    token_logits: Tensor  # (B, Q, L) similarity of queries and tokens, -inf at padding
    boxes: Tensor  # (B, Q, 9)
    query_embeddings: Tensor | None = None  # (B, Q, D)
    token_embeddings: Tensor | None = None  # (B, L, D)

    def embeddings(self) -> tuple[Tensor, Tensor]:
        """Embeddings of queries and tokens. Raises ``ValueError`` without alignment."""
        if self.query_embeddings is None or self.token_embeddings is None:
            raise ValueError("contrastive_weight > 0 needs query and token embeddings in every layer")
        return self.query_embeddings, self.token_embeddings


def grounding_layers(output: GroundingOutput) -> list[GroundingLayer]:
    """Every layer of a decoder over voxels, first to last."""
    return [GroundingLayer(logits, boxes) for logits, boxes in zip(output.logits, output.boxes, strict=True)]


@dataclass(frozen=True)
class GroundingTarget:
    """Targets of one sentence: (G, 9) boxes and (G, L) bool, the tokens that name each."""

    boxes: Tensor
    positive: Tensor


@dataclass(frozen=True)
class GroundingCriterion:
    """Hungarian matching per layer; focal loss of query-token similarity, decoupled corner Chamfer of matched boxes,
    contrastive alignment (which needs embeddings); every layer is supervised. A term of weight 0 is left out."""

    matcher: QueryMatcher = field(default_factory=QueryMatcher)
    contrastive_weight: float = 0.0
    iou_weight: float = 0.0  # of an additional rotated IoU loss
    two_sided: bool = False  # corner distances in both directions
    reduce: Reduce = same  # mean of a value over processes

    @full_precision
    def __call__(
        self, layers: Sequence[GroundingLayer], targets: Sequence[GroundingTarget], token_mask: Tensor
    ) -> Losses:
        """``token_mask`` (B, T) bool, True = a token. -> ``{"layer0/class", "layer0/box", ...}``, last layer last."""
        logits = torch.stack([layer.token_logits for layer in layers])  # (L, B, Q, T)
        boxes = torch.stack([layer.boxes for layer in layers])
        number, scenes, queries = logits.shape[:3]
        truth = PaddedBoxes.of([t.boxes for t in targets])
        named = torch.cat([*(t.positive.bool() for t in targets), torch.zeros_like(token_mask[:1])])[truth.row]
        matches = self.matcher.match(
            logits.flatten(0, 1), boxes.flatten(0, 1), truth.repeated(number), named.repeat(number, 1, 1)
        )
        most = truth.boxes.shape[1]
        places = [(n * queries + q, (n % scenes) * most + g) for n, (q, g) in enumerate(matches)]
        row, box = torch.cat([torch.stack(p) for p in places], 1).to(boxes.device, non_blocking=True)  # (M,) each
        positive = torch.zeros_like(logits, dtype=torch.bool)
        positive.view(-1, logits.shape[3])[row] = named.flatten(0, 1)[box]
        words = token_mask[None, :, None]
        # padding is -inf: it must not meet the loss at all
        focal = sigmoid_focal(logits.masked_fill(~words, 0.0), positive).masked_fill(~words, 0.0)
        parts = BoxParts.of(boxes.flatten(0, 2)[row]), BoxParts.of(truth.boxes.flatten(0, 1)[box].to(boxes.dtype))
        layer = torch.div(row, scenes * queries, rounding_mode="floor")
        matched = torch.tensor(float(len(row) // number)).to(boxes.device, non_blocking=True)  # the same in all layers
        norm = self.reduce(matched).clamp_min(1.0)

        def summed(values: Tensor) -> Tensor:
            """(M,) of matched boxes -> (L,)."""
            return values.new_zeros(number).index_add(0, layer, values) / norm

        found = {
            "class": focal.sum((1, 2, 3)) / norm,
            "box": summed(decoupled_corner_loss(*parts, two_sided=self.two_sided)),
        }
        if self.iou_weight:
            found["iou"] = self.iou_weight * summed(rotated_iou_loss(*parts, distance_weight=1.0))
        if self.contrastive_weight:
            embedded = [layer.embeddings() for layer in layers]
            common = [torch.stack(side) for side in zip(*embedded, strict=True)]
            align = contrastive_alignment(*common, positive, token_mask.expand(number, -1, -1))
            found["contrastive"] = self.contrastive_weight * align.mean(1)
        return {f"layer{i}/{name}": of[i] for i in range(number) for name, of in found.items()}


# -- Pointer-network loss of a decoder over detected objects: point at the target of a sentence.
#
# The paper's token loss scores every query independently, and all objects of the class fit the word "chair" of "the
# chair closest to the desk" about equally well. Here the word is a softmax over all objects and "none of these" (as in
# a pointer network: Vinyals et al., NeurIPS 2015), so that the target has to win over similar objects and over the
# anchors, as a robot needs it. All other words mean "none of these".


@dataclass(frozen=True, eq=False)
class PointerOutput:
    """Answers about some scenes, and their targets."""

    output: ObjectGroundingOutput  # S sentences, boxes in the world
    boxes: Sequence[Tensor]  # per sentence the (G, 9) targets, none where absent
    named: Tensor  # (S, T) bool, the tokens that name the target
    pad: Tensor  # (S, T) True at padding


@dataclass(frozen=True)
class PointerCriterion:
    """Cross entropy of every token's shares; the mean over layers, then sentences. A right object overlaps the target
    by an IoU of 0.25 or more; without one, "none of these" is right."""

    other_weight: float = 0.2  # of all words that do not name the target
    reduce: Reduce = same  # mean of a value over processes

    @full_precision
    def __call__(self, answers: Sequence[PointerOutput], like: Tensor) -> Losses:
        """``{"named", "others"}``; 0 without any sentence. ``like``: a tensor on the device."""
        number = self.reduce(like.new_tensor(float(sum(len(a.pad) for a in answers)))).clamp_min(1.0)
        named, others = [like.new_zeros(())], [like.new_zeros(())]
        for answer in answers:
            shares = answer.output.log_shares  # (L, S, 1 + Q, T)
            right = self.targets(answer).to(shares)  # (S, 1 + Q)
            words, rest = answer.named & ~answer.pad, ~answer.named & ~answer.pad
            pointing = -torch.einsum("sq,lsqt->lst", right, shares).mean(0)
            silent = -shares[:, :, 0].mean(0)
            named.append(_mean_of(pointing, words).sum())
            others.append(self.other_weight * _mean_of(silent, rest).sum())
        return {"named": torch.stack(named).sum() / number, "others": torch.stack(others).sum() / number}

    def targets(self, answer: PointerOutput) -> Tensor:
        """(S, 1 + Q) target shares of the naming tokens: "none of these" first, then the objects by their overlap."""
        boxes, valid = answer.output.boxes[-1], answer.output.query_valid  # (S, Q, 9), (S, Q)
        counts = [len(b) for b in answer.boxes]
        best = boxes.new_zeros(boxes.shape[:2])
        if sum(counts):
            # padding boxes have no volume and overlap nothing
            rows = [[start + k if k < n else sum(counts) for k in range(max(counts))] for start, n in _runs(counts)]
            meant = torch.cat([*answer.boxes, boxes.new_zeros(1, 9)])[torch.tensor(rows).to(boxes.device)]  # (S, G, 9)
            pairs = torch.broadcast_tensors(boxes[:, :, None], meant[:, None])
            iou = paired_iou(*(p.reshape(-1, 9).detach().double() for p in pairs)).view(pairs[0].shape[:3])
            best = torch.where(valid, iou.amax(2).to(boxes), 0.0)
        best = torch.where(best >= 0.25, best, 0.0)
        right = torch.cat([(best.sum(1, keepdim=True) == 0).to(best), best], 1)
        return right / right.sum(1, keepdim=True)


def _runs(counts: Sequence[int]) -> list[tuple[int, int]]:
    """First row and length of each of several consecutive runs."""
    return list(zip(itertools.accumulate(counts, initial=0), counts, strict=False))


def _mean_of(values: Tensor, mask: Tensor) -> Tensor:
    """(S, T) -> (S,) means over the masked tokens, 0 without any."""
    return torch.where(mask, values, 0.0).sum(1) / mask.sum(1).clamp_min(1)
