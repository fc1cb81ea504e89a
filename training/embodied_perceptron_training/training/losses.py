"""Elementary losses of the three heads, as plain functions; per element where the caller normalises.

Sources: focal loss (Lin et al. 2017); decoupled corner Chamfer distance (EmbodiedScan, CVPR 2024, equation of the box
loss); scene-class affinity (MonoScene, CVPR 2022); contrastive alignment (MDETR, ICCV 2021; EmbodiedScan, appendix).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar

import torch
from torch.nn import functional

from embodied_perceptron.geometry import boxes as bx
from embodied_perceptron.geometry import overlap
from embodied_perceptron.geometry.transforms import constant
from embodied_perceptron.weights.categories import OCCUPANCY_IGNORED
from embodied_perceptron_training.training.nested import map_tensors

Tensor = torch.Tensor
P = ParamSpec("P")
R = TypeVar("R")
_EPS = 1e-6
_PROBABILITY_FLOOR = 1e-12  # keeps log and its gradient finite
_FEWEST = 1e-6  # of what is counted: less than one voxel, shared by any number of processes
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

    def select(self, index: Tensor) -> BoxParts:
        """Rows ``index`` (indices or mask)."""
        return BoxParts(self.center[index], self.size[index], self.rotation[index])

    def corners(self) -> Tensor:
        """(N, 8, 3)."""
        signs = bx.CORNER_SIGNS.to(self.center)
        local = 0.5 * signs * self.size[:, None, :]
        return torch.einsum("nij,nkj->nki", self.rotation, local) + self.center[:, None, :]


# --------------------------------------------------------------------------------------------------------------------
# classification


def sigmoid_focal(logits: Tensor, targets: Tensor, alpha: float = 0.25, gamma: float = 2.0) -> Tensor:
    """Element-wise focal loss of independent sigmoids; ``targets`` has the shape of ``logits``, entries in {0, 1}."""
    targets = targets.to(logits.dtype)
    cross_entropy = functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    p = torch.sigmoid(logits)
    miss = p * (1 - targets) + (1 - p) * targets
    balance = alpha * targets + (1 - alpha) * (1 - targets)
    return balance * miss**gamma * cross_entropy


# --------------------------------------------------------------------------------------------------------------------
# boxes


def _chamfer(distance: Tensor, two_sided: bool) -> Tensor:
    """(..., 8, 8) distances of predicted corners (rows) to those of targets -> (...)."""
    forward = distance.amin(-1).mean(-1)
    return 0.5 * (forward + distance.amin(-2).mean(-1)) if two_sided else forward


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
    # the four, one behind the other
    mixed = BoxParts(
        torch.cat([predicted.center, target.center, target.center, predicted.center]),
        torch.cat([target.size, predicted.size, target.size, predicted.size]),
        torch.cat([target.rotation, target.rotation, predicted.rotation, predicted.rotation]),
    )
    distance = (mixed.corners().view(4, -1, 8, 1, 3) - target.corners()[:, None]).abs().sum(-1)  # (4, N, 8, 8)
    chamfer = _chamfer(distance, two_sided)
    return sum((w * term for w, term in zip(weights, chamfer.unbind(), strict=True)), torch.zeros_like(chamfer[0]))


def l1_box_loss(predicted: BoxParts, target: BoxParts, rotation: Literal["angles", "matrix", "sincos"]) -> Tensor:
    """(N,) sum of the absolute differences of centre, size and rotation: of its three (wrapped) angles, of their sines
    and cosines, or of the nine matrix entries."""
    if rotation == "matrix":
        turned = (predicted.rotation - target.rotation).flatten(1)
    elif rotation == "sincos":
        mine, theirs = predicted.boxes()[:, 6:], target.boxes()[:, 6:]
        turned = torch.cat([mine.sin() - theirs.sin(), mine.cos() - theirs.cos()], 1)
    else:
        turned = predicted.boxes()[:, 6:] - target.boxes()[:, 6:]
        turned = torch.remainder(turned + torch.pi, 2 * torch.pi) - torch.pi
    parts = torch.cat([predicted.center - target.center, predicted.size - target.size, turned], 1)
    return parts.abs().sum(1)


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


# --------------------------------------------------------------------------------------------------------------------
# occupancy


def occupancy_cross_entropy(
    logits: Tensor,
    target: Tensor,
    class_weights: Tensor | None = None,
    released: bool = False,
    reduce: Reduce = same,
) -> Tensor:
    """(B, C, ...) logits, (B, ...) labels with 255 = ignore -> scalar. 0 when everything is ignored (release: NaN)."""
    target = target.long()
    total = functional.cross_entropy(
        logits, target, weight=class_weights, ignore_index=OCCUPANCY_IGNORED, reduction="sum"
    )
    known = target != OCCUPANCY_IGNORED
    counted = known if class_weights is None else class_weights[target.masked_fill(~known, 0)] * known
    norm = reduce(counted.sum().to(logits.dtype))
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


# --------------------------------------------------------------------------------------------------------------------
# alignment of queries and tokens


def contrastive_alignment(
    queries: Tensor, tokens: Tensor, positive: Tensor, token_mask: Tensor, temperature: float = 0.07
) -> Tensor:
    """Contrastive loss of queries and tokens in the common space; both directions, averaged -> (...).

    Args:
        queries: (..., Q, D) embeddings, normalised here.
        tokens: (..., L, D) embeddings, normalised here.
        positive: (..., Q, L) bool, token l names the target of query q.
        token_mask: (..., L) bool, True = a token (not padding).

    Per query with positives: the mean over its tokens of -log softmax over tokens; per token with positives the same
    over queries; each direction averaged over its members. 0 without any positive.
    """
    words = token_mask.unsqueeze(-2)
    positive = positive & words
    similarity = functional.normalize(queries, dim=-1) @ functional.normalize(tokens, dim=-1).mT / temperature
    similarity = similarity.masked_fill(~words, torch.finfo(similarity.dtype).min)  # (..., Q, L)
    return 0.5 * (_align(similarity, positive) + _align(similarity.mT, positive.mT))


def _align(similarity: Tensor, positive: Tensor) -> Tensor:
    log_p = torch.log_softmax(similarity, dim=-1).masked_fill(~positive, 0.0)
    of_rows = log_p.sum(-1) / positive.sum(-1).clamp_min(1)  # 0 without positives
    return -of_rows.sum(-1) / positive.any(-1).sum(-1).clamp_min(1)
