"""Which prediction answers for which object: points to boxes (detection), queries to boxes (grounding), coarse voxels
to labels (occupancy).

Everything is right by default; ``released=True`` restores what the released EmbodiedScan code does instead, for
comparison with its checkpoints and recorded outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from embodied_perceptron.geometry import boxes as bx
from embodied_perceptron.nn.neck import SiteMask
from embodied_perceptron.sparse.sites import Sites
from embodied_perceptron.sparse.tensor import SparseTensor
from embodied_perceptron.weights.categories import OCCUPANCY_IGNORED

Tensor = torch.Tensor


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
    """FCAF3D's assignment for rotated boxes.

    A box takes its points from one level, the coarsest on which it holds ``min_points`` (the finest when there is
    none); of those its ``top_points`` most central ones. A point claimed by several boxes learns the smallest.

    Args:
        points: per level (N_l, 3) metres, finest first; the result runs over their concatenation.
        boxes: (G, 9).
        min_size_m: for finding points, boxes are at least this thick: without it a picture on a wall may lie between
            the points and never be learned. 0 as published.
        released: the inverse rotation is taken to be that of the negated angles (wrong unless only alpha is set), all
            points that tie with the first one left out are left out too, and every finer level must hold
            ``min_points`` as well: the same, unless finer levels were pruned of what is learned on coarser ones.

    A box without any point, and a scene without boxes or points, are simply not learned from.
    """
    flat = torch.cat(points).to(boxes.dtype) if points else boxes.new_zeros(0, 3)
    P, G = flat.shape[0], boxes.shape[0]
    assigned = PointAssignment(
        torch.full((P,), -1, device=flat.device),
        flat.new_zeros(P),
        torch.zeros(G, dtype=torch.int64, device=flat.device),
    )
    if P == 0 or G == 0:
        return assigned
    level = torch.cat([torch.full((len(p),), i, device=flat.device) for i, p in enumerate(points)])
    grown = torch.cat([boxes[:, :3], boxes[:, 3:6].clamp_min(min_size_m), boxes[:, 6:]], dim=1)
    if released:
        grown = bx.make_boxes(grown[:, :3], grown[:, 3:6], bx.euler_to_matrix(-boxes[:, 6:]).transpose(1, 2))
    # pairs (point, box) with the point inside; everything below is over pairs only
    point, box = bx.points_in_boxes(flat, grown).nonzero(as_tuple=True)
    distances = _pair_face_distances(flat[point], grown[box])
    strictly = distances.amin(-1) > 0
    point, box, centerness = point[strictly], box[strictly], centerness_of(distances[strictly])

    counts = torch.zeros(len(points), G, dtype=torch.int64, device=flat.device)
    counts.index_put_((level[point], box), torch.ones_like(point), accumulate=True)
    assigned.level.copy_(_learning_level(counts, min_points, released))
    chosen = level[point] == assigned.level[box]
    point, box, centerness = point[chosen], box[chosen], centerness[chosen]
    chosen = _most_central(box, centerness, top_points, released)
    point, box, centerness = point[chosen], box[chosen], centerness[chosen]

    by_volume = torch.argsort(bx.volumes(boxes), stable=True)
    rank = torch.empty_like(by_volume)
    rank[by_volume] = torch.arange(G, device=rank.device)
    smallest = torch.full((P,), G, device=flat.device).scatter_reduce(0, point, rank[box], "amin")
    wins = smallest[point] == rank[box]
    assigned.box[point[wins]] = box[wins]
    assigned.centerness[point[wins]] = centerness[wins]
    return assigned


def _learning_level(counts: Tensor, min_points: int, released: bool = False) -> Tensor:
    """(L, G) points of each box on each level, finest first -> (G,) the level that it is learned on."""
    enough = (counts >= min_points).to(torch.int64)
    if released:
        return (torch.cumprod(enough, dim=0).sum(0) - 1).clamp_min(0)
    return (enough * torch.arange(len(counts), device=counts.device)[:, None]).amax(0)


def learning_levels(points: Sequence[Tensor], boxes: Tensor, min_points: int) -> Tensor:
    """Per level (N_l, 3) metres, finest first, and (G, 9) boxes -> (G,) the level that :func:`assign_points` will take,
    or a finer one if more points are still to come."""
    counts = torch.stack([bx.points_in_boxes(p.to(boxes.dtype), boxes).sum(0) for p in points])
    return _learning_level(counts, min_points)


def sites_in_boxes(
    boxes: Sequence[Tensor], levels: Sequence[SparseTensor], voxel_size_m: float, min_points: int
) -> SiteMask:
    """For :meth:`PerceptionNetwork.detect`: sites whose centre lies in one of their scene's (G, 9) boxes, down to
    the level that each box is learned on, as far as the fused ``levels`` (finest first) can tell.

    ``min_points``: see :func:`assign_points`.
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
            inside[rows] = bx.points_in_boxes(centers[rows], scene[stride <= sites.stride].to(centers)).any(dim=1)
        return inside

    return mask


def _centers(sites: Sites, voxel_size_m: float) -> Tensor:
    """(N, 3) metres."""
    return (sites.coords.float() + 0.5 * sites.stride) * voxel_size_m


def _pair_face_distances(points: Tensor, boxes: Tensor) -> Tensor:
    """(K, 3), (K, 9) -> (K, 6) distances of the i-th point to the faces of the i-th box."""
    local = torch.einsum("kij,ki->kj", bx.rotations(boxes), points - boxes[:, :3])
    half = 0.5 * boxes[:, 3:6]
    return torch.stack([half + local, half - local], dim=-1).flatten(-2)


def _most_central(box: Tensor, centerness: Tensor, count: int, released: bool) -> Tensor:
    """(K,) pairs -> (K,) bool: among the ``count`` most central of their box; of equals the first (released: none)."""
    order = torch.argsort(centerness, descending=True, stable=True)
    order = order[torch.argsort(box[order], stable=True)]
    sorted_box = box[order]
    starts = torch.searchsorted(sorted_box, sorted_box)  # first row of the own box
    rank = torch.arange(len(order), device=box.device) - starts
    chosen = rank < count
    if released and len(order):
        value = centerness[order]
        cut = starts + count
        last = torch.searchsorted(sorted_box, sorted_box, right=True)
        limit = torch.where(cut < last, value[cut.clamp_max(len(order) - 1)], -1.0)
        chosen = value > limit
    result = torch.zeros_like(chosen)
    result[order] = chosen
    return result


# --------------------------------------------------------------------------------------------------------------------
# grounding


def hungarian(cost: Tensor) -> tuple[Tensor, Tensor]:
    """(Q, G) cost -> indices of the matched queries and boxes, min(Q, G) of each, by rising query.

    Raises ``ValueError`` when an entry is not finite: an exploded network must not be trained on a random matching.
    """
    if not bool(torch.isfinite(cost).all()):
        row, column = (~torch.isfinite(cost)).nonzero()[0].tolist()
        raise ValueError(f"matching cost of query {row} and box {column} is {cost[row, column].item()}")
    query, box = linear_sum_assignment(cost.detach().to("cpu", torch.float64).numpy())
    return torch.as_tensor(query, device=cost.device), torch.as_tensor(box, device=cost.device)


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
        """(Q, L) token logits (-inf = padding), (Q, 9), (G, 9), (G, L) -> weighted focal, L1 and IoU costs (Q, G)."""
        p = torch.sigmoid(logits.double())
        hit = -0.25 * (1 - p) ** 2 * torch.log(p + 1e-12)  # the focal loss of a token that should be 1
        miss = -0.75 * p**2 * torch.log(1 - p + 1e-12)  # and of one that should be 0
        y = positive.to(p.dtype)
        y = y * torch.isfinite(logits).any(0)  # padding belongs to nobody
        focal = hit @ y.T + miss @ (1 - y).T
        difference = boxes.double()[:, None] - gt_boxes.double()[None]  # (Q, G, 9)
        if not self.released:
            angle = torch.remainder(difference[..., 6:] + torch.pi, 2 * torch.pi) - torch.pi
            difference = torch.cat([difference[..., :6], angle], dim=-1)
        solid = torch.cat([boxes[:, :3], boxes[:, 3:6].clamp_min(0), boxes[:, 6:]], dim=1)
        iou = bx.box_iou(solid.double(), gt_boxes.double())
        return self.focal * focal, self.l1 * difference.abs().sum(-1), -self.iou * iou

    def __call__(self, logits: Tensor, boxes: Tensor, gt_boxes: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
        """Matched (query indices, box indices)."""
        if gt_boxes.shape[0] == 0:
            empty = torch.zeros(0, dtype=torch.int64, device=boxes.device)
            return empty, empty
        return hungarian(sum(self.costs(logits, boxes, gt_boxes, positive)))  # type: ignore[arg-type]


def objects_reach(points: Tensor, boxes: Tensor, reach_m: float) -> Tensor:
    """(N, 3) centres of cells, (G, 9) -> (N,) bool: a box grown by half an edge on every side holds the centre."""
    grown = boxes.to(points).clone()
    grown[:, 3:6] += 2 * reach_m
    return bx.points_in_boxes(points, grown).any(1)


# --------------------------------------------------------------------------------------------------------------------
# occupancy


def coarse_labels(labels: Tensor, ratio: int, classes: int) -> Tensor:
    """(B, X, Y, Z) labels, 0 = free, 255 = unknown -> (B, X/r, Y/r, Z/r) labels of cells ``ratio`` times as large.

    A cell takes the most frequent label of its occupied voxels (of equals the lowest); it is free when something in it
    is known and nothing occupied, unknown when nothing is known. Raises ``ValueError`` for a size that ``ratio`` does
    not divide or a label that is neither below ``classes`` nor 255.
    """
    B, X, Y, Z = labels.shape
    if ratio < 1 or X % ratio or Y % ratio or Z % ratio:
        raise ValueError(f"ratio must divide the grid {(X, Y, Z)}, got {ratio}")
    known = labels != OCCUPANCY_IGNORED
    if bool((labels[known] >= classes).any()) or bool((labels < 0).any()):
        worst = labels[(known & (labels >= classes)) | (labels < 0)][0]
        raise ValueError(f"label {int(worst)} is not below {classes}")
    if ratio == 1:
        return labels.clone()
    shape = (B, X // ratio, Y // ratio, Z // ratio)
    cells = labels.reshape(B, shape[1], ratio, shape[2], ratio, shape[3], ratio)
    cells = cells.permute(0, 1, 3, 5, 2, 4, 6).reshape(-1, ratio**3).long()  # (cells, voxels)
    index = torch.arange(len(cells), device=labels.device)[:, None] * 256 + cells
    counts = torch.bincount(index.flatten(), minlength=len(cells) * 256).reshape(-1, 256)
    occupied = counts[:, 1:classes]
    best = occupied.argmax(1) + 1
    unknown = counts[:, OCCUPANCY_IGNORED] == ratio**3
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
