"""Which prediction answers for which object: points to boxes (detection), queries to boxes (grounding), coarse voxels
to labels (occupancy).

Everything is right by default; ``released=True`` restores what the released EmbodiedScan code does instead, for
comparison with its checkpoints and recorded outputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from embodied_perceptron.geometry import boxes as bx
from embodied_perceptron.geometry.compute_path import runs_compiled
from embodied_perceptron.geometry.transforms import constant
from embodied_perceptron.nn.backbone import SiteMask
from embodied_perceptron.sparse.sites import Sites
from embodied_perceptron.sparse.tensor import SparseTensor
from embodied_perceptron.weights.categories import OCCUPANCY_IGNORED
from embodied_perceptron_training.training.losses import full_precision

Tensor = torch.Tensor
_PAIRS_AT_A_TIME = 1 << 22  # of points and boxes: 50 MB of offsets


# --------------------------------------------------------------------------------------------------------------------
# detection


@dataclass(frozen=True)
class PointAssignment:
    """One scene's points and the boxes they learn.

    Attributes:
        box: (P,) int64 index of the box that each point regresses, -1 for background.
        centerness: (P,) target in (0, 1]; 0 for background.
        level: (G,) int64 the level that each box is learned on.
    """

    box: Tensor
    centerness: Tensor
    level: Tensor

    @property
    def positive(self) -> Tensor:
        """(P,) bool."""
        return self.box >= 0


@dataclass(frozen=True)
class PaddedBoxes:
    """Boxes of B scenes, padded to the same number.

    Attributes:
        boxes: (B, G, 9); padding is a cube of one metre at the origin.
        there: (B, G) False at padding.
        row: (B, G) int64 of each among all boxes, one scene behind the other; their number at padding.
    """

    boxes: Tensor
    there: Tensor
    row: Tensor

    @cached_property
    def rotation(self) -> Tensor:
        """(B, G, 3, 3)."""
        return bx.rotations(self.boxes)

    @cached_property
    def volume(self) -> Tensor:
        """(B, G) cubic metres."""
        return self.boxes[..., 3:6].prod(-1)

    def repeated(self, times: int) -> PaddedBoxes:
        """The scenes so often, one after the other."""
        return PaddedBoxes(*(x.repeat(times, *[1] * (x.ndim - 1)) for x in (self.boxes, self.there, self.row)))

    @staticmethod
    def of(scenes: Sequence[Tensor]) -> PaddedBoxes:
        """(G_b, 9) of each scene."""
        counts = [len(boxes) for boxes in scenes]
        cube = constant((0.0, 0, 0, 1, 1, 1, 0, 0, 0), scenes[0].device, scenes[0].dtype)
        joined = torch.cat([*scenes, cube[None]])
        rows = padded_rows(counts).to(joined.device, non_blocking=True)
        return PaddedBoxes(joined[rows], rows < sum(counts), rows)


def padded_rows(counts: Sequence[int]) -> Tensor:
    """How many rows each of B runs has, one behind the other -> (B, most) int64 the rows of each, their number at
    padding; on the host."""
    first = [0, *itertools.accumulate(counts)]
    most = max(counts, default=0)
    rows = [[first[b] + i if i < n else first[-1] for i in range(most)] for b, n in enumerate(counts)]
    return torch.tensor(rows, dtype=torch.int64).view(len(counts), most)


@dataclass(frozen=True)
class ScenePoints:
    """Points of B scenes: L levels, finest first, and within each the scenes in order; padded, every point of a scene
    beside the others.

    Attributes:
        row: (B, M) int64 row of each point among all of them, their number at padding.
        level: (B, M) int64, L at padding.
        points: (B, M, 3) metres.
        levels, total: L, and the number of points.
    """

    row: Tensor
    level: Tensor
    points: Tensor
    levels: int
    total: int

    @staticmethod
    def of(points: Sequence[Tensor], bounds: Sequence[Sequence[int]]) -> ScenePoints:
        """Per level (N_l, 3) metres and the B + 1 bounds of the scenes' rows."""
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

    def scene_of_points(self) -> Tensor:
        """(P,) int64."""
        return self.scatter(torch.arange(len(self.row), device=self.row.device)[:, None].expand_as(self.row))

    def scatter(self, values: Tensor) -> Tensor:
        """(B, M) of each scene's points -> (P,) of all points."""
        return values.new_zeros(self.total + 1).scatter_(0, self.row.flatten(), values.flatten())[: self.total]

    def counts(self, inside: Tensor) -> Tensor:
        """(B, M, G) bool -> (B, L, G) how many points of each level."""
        return torch.stack([(inside & (self.level == i)[..., None]).sum(1) for i in range(self.levels)], 1)


@dataclass(frozen=True)
class BatchAssignment:
    """What the boxes of a batch learn from: T places, of which only those that are ``taken`` count.

    Attributes:
        row: (T,) int64 the point; box: (T,) int64 the row of its box among (B * G); scene: (T,) int64.
        centerness: (T,) target in (0, 1].
        taken: (T,) bool.
        level: (B, G) int64 the level that each box is learned on.
    """

    row: Tensor
    box: Tensor
    scene: Tensor
    centerness: Tensor
    taken: Tensor
    level: Tensor

    def taken_only(self) -> BatchAssignment:
        """Without places that do not count: a device would be waited for."""
        rows = self.taken.nonzero()[:, 0]
        row, box, scene, centerness, taken = (
            x[rows] for x in (self.row, self.box, self.scene, self.centerness, self.taken)
        )
        return BatchAssignment(row, box, scene, centerness, taken, self.level)


def centerness_of(face_distances: Tensor) -> Tensor:
    """(..., 6) distances to the faces -x +x -y +y -z +z, all positive -> (...) 1 at the centre, 0 on a face."""
    low, high = face_distances[..., 0::2], face_distances[..., 1::2]
    ratio = torch.minimum(low, high) / torch.maximum(low, high)
    return torch.sqrt(ratio.prod(-1))


def assign_points(
    points: list[Tensor],
    boxes: Tensor,
    min_points: int = 27,
    top_points: int = 18,
    min_size_m: float = 0.0,
    released: bool = False,
) -> PointAssignment:
    """:func:`assign_batch` for one scene, point by point.

    Args:
        points: per level (N_l, 3) metres, finest first; the result runs over their concatenation.
        boxes: (G, 9).
        min_points, top_points, min_size_m, released: see there.
    """
    P = sum(len(p) for p in points)
    box, centerness = torch.full((P + 1,), -1, device=boxes.device), boxes.new_zeros(P + 1)
    if P == 0 or len(boxes) == 0:
        return PointAssignment(box[:P], centerness[:P], torch.zeros(len(boxes), dtype=torch.int64, device=boxes.device))
    scene = ScenePoints.of(points, [[0, len(p)] for p in points])
    found = assign_batch(scene, PaddedBoxes.of([boxes]), min_points, top_points, min_size_m, released)
    rows = torch.where(found.taken, found.row, P)
    box.scatter_(0, rows, found.box)
    centerness.scatter_(0, rows, found.centerness)
    return PointAssignment(box[:P], centerness[:P], found.level[0])


@torch.no_grad()
def assign_batch(
    points: ScenePoints,
    truth: PaddedBoxes,
    min_points: int = 27,
    top_points: int = 18,
    min_size_m: float = 0.0,
    released: bool = False,
) -> BatchAssignment:
    """FCAF3D's assignment for rotated boxes, for the scenes of a batch at once; nothing is read back from a device.

    A box takes its points from one level, the coarsest on which it holds ``min_points`` (the finest when there is
    none); of those its ``top_points`` most central ones. A point claimed by several boxes learns the smallest.

    Args:
        points, truth: of the scenes.
        min_size_m: for finding points, boxes are at least this thick: without it a picture on a wall may lie between
            the points and never be learned. 0 as published.
        released: the inverse rotation is taken to be that of the negated angles (wrong unless only alpha is set), all
            points that tie with the first one left out are left out too, and every finer level must hold
            ``min_points`` as well: the same, unless finer levels were pruned of what is learned on coarser ones.

    A box without any point, and a scene without boxes or points, are simply not learned from.
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
    # the most central ones of each box come first, of equals the first
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
    """(..., L, G) points of each box on each level, finest first -> (..., G) the level that it is learned on."""
    enough = counts >= min_points
    if released:
        return (torch.cumprod(enough.long(), dim=-2).sum(-2) - 1).clamp_min(0)
    return (enough * torch.arange(counts.shape[-2], device=counts.device)[:, None]).amax(-2)


def learning_levels(points: ScenePoints, truth: PaddedBoxes, min_points: int) -> Tensor:
    """-> (B, G) the level that :func:`assign_batch` will take, or a finer one if more points are still to come."""
    return _learning_level(points.counts(points.inside(truth)), min_points)


def sites_in_boxes(
    boxes: Sequence[Tensor], levels: Sequence[SparseTensor], voxel_size_m: float, min_points: int
) -> SiteMask:
    """For :meth:`PerceptionNetwork.detect`: sites whose centre lies in one of their scene's (G, 9) boxes, down to
    the level that each box is learned on, as far as the fused ``levels`` (finest first) can tell.

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
    """(P,) bool: a cell is reached into by a box that a finer level learns: grown by half an edge of the cell on every
    side, the box holds its centre.

    Args:
        points: centres of the cells. truth: the boxes.
        reach_m: half the edge of a cell of each level.
        level: (B, G) that each box is learned on.
    """
    reach = constant((*reach_m, 0.0), points.points.device, points.points.dtype)[points.level]
    finer = truth.there[:, None] & (level[:, None] < points.level[..., None])
    return points.scatter((points.inside(truth, reach) & finer).any(2))


# --------------------------------------------------------------------------------------------------------------------
# grounding


def hungarian(cost: Tensor) -> tuple[Tensor, Tensor]:
    """(Q, G) cost on the host -> indices of the matched queries and boxes, min(Q, G) of each, by rising query.

    Raises ``ValueError`` when an entry is not finite: an exploded network must not be trained on a random matching.
    """
    if not bool(torch.isfinite(cost).all()):
        row, column = (~torch.isfinite(cost)).nonzero()[0].tolist()
        raise ValueError(f"matching cost of query {row} and box {column} is {cost[row, column].item()}")
    query, box = linear_sum_assignment(cost.double().numpy())
    return torch.from_numpy(query), torch.from_numpy(box)


@dataclass(frozen=True)
class QueryMatcher:
    """Hungarian matching of queries with the boxes that a sentence speaks of.

    Attributes:
        focal, l1, iou: weights of the three costs.
        released: the L1 cost subtracts raw angles, so that pi and -pi are far apart.
    """

    focal: float = 1.0
    l1: float = 2.0
    iou: float = 2.0
    released: bool = False

    @torch.no_grad()
    def costs(self, logits: Tensor, boxes: Tensor, gt_boxes: Tensor, positive: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(..., Q, L) token logits (-inf = padding), (..., Q, 9), (..., G, 9), (..., G, L) -> weighted focal, L1 and
        IoU costs (..., Q, G)."""
        p = torch.sigmoid(logits.double())
        hit = -0.25 * (1 - p) ** 2 * torch.log(p + 1e-12)  # the focal loss of a token that should be 1
        miss = -0.75 * p**2 * torch.log(1 - p + 1e-12)  # and of one that should be 0
        y = positive.to(p.dtype)
        y = y * torch.isfinite(logits).any(-2, keepdim=True)  # padding belongs to nobody
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
        """The matched (query indices, box indices), on the host, of each of B sentences; a device is waited for once.

        Args:
            logits: (B, Q, L). boxes: (B, Q, 9). truth: (B, G) boxes. positive: (B, G, L).
        """
        if truth.boxes.shape[1] == 0:
            return [(torch.zeros(0, dtype=torch.int64),) * 2 for _ in boxes]
        cost = torch.stack(self.costs(logits, boxes, truth.boxes, positive)).sum(0)
        cost = torch.cat([cost, truth.there[:, None].to(cost)], 1).cpu()  # how many boxes there are comes along
        return [hungarian(one[:-1, : int(one[-1].sum())]) for one in cost]

    def __call__(self, logits: Tensor, boxes: Tensor, gt_boxes: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
        """:meth:`match` for one sentence: (Q, L), (Q, 9), (G, 9), (G, L)."""
        return self.match(logits[None], boxes[None], PaddedBoxes.of([gt_boxes]), positive[None])[0]


# --------------------------------------------------------------------------------------------------------------------
# occupancy


def coarse_labels(labels: Tensor, ratio: int, classes: int) -> Tensor:
    """(B, X, Y, Z) labels, 0 = free, 255 = unknown -> (B, X/r, Y/r, Z/r) labels of cells ``ratio`` times as large.

    A cell takes the most frequent label of its occupied voxels (of equals the lowest); it is free when something in it
    is known and nothing occupied, unknown when nothing is known. Raises ``ValueError`` for a size that ``ratio`` does
    not divide or, on the CPU, a label that is neither below ``classes`` nor 255.
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
    # what is unknown is counted behind the last class
    index = cells.clamp(max=classes)
    counts = cells.new_zeros(len(cells), classes + 1).scatter_add_(1, index, torch.ones_like(index))
    occupied = counts[:, 1:classes]
    best = occupied.argmax(1) + 1
    unknown = counts[:, classes] == ratio**3
    result = torch.where(occupied.sum(1) > 0, best, torch.where(unknown, OCCUPANCY_IGNORED, 0))
    return result.reshape(shape).to(labels.dtype)


def released_coarse_labels(occupancy: Tensor, mask: Tensor | None, grid: tuple[int, int, int], ratio: int) -> Tensor:
    """The released code's coarse targets: (M, 4) x, y, z, label in order and (X, Y, Z) visibility -> labels.

    The last voxel written wins, and labels of voxels that were never seen leak into cells that were seen in part.
    """
    coarse = np.zeros([n // ratio for n in grid], dtype=np.int64)
    for x, y, z, label in occupancy.tolist():
        coarse[x // ratio, y // ratio, z // ratio] = label
    if mask is not None:
        seen = mask.cpu().numpy().reshape(grid[0] // ratio, ratio, grid[1] // ratio, ratio, grid[2] // ratio, ratio)
        coarse[~seen.any(axis=(1, 3, 5))] = OCCUPANCY_IGNORED
    return torch.from_numpy(coarse)
