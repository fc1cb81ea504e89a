"""What each head is trained on. A criterion takes predictions and ground truth of a batch and returns named, weighted
scalars whose sum is the loss; it holds no parameters.

Normalisers (numbers of positives) pass through ``reduce``, which is the identity in one process and the mean over
processes in distributed training, so that N processes see the losses of one process with the N-fold batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from embodied_perceptron.geometry import boxes as bx
from embodied_perceptron.geometry.boxes import paired_iou
from embodied_perceptron.geometry.compute_path import runs_compiled
from embodied_perceptron.geometry.transforms import constant
from embodied_perceptron.nn.detection import DetectionLevel, Votes, faces_to_parts
from embodied_perceptron.nn.grounding import GroundingOutput, ObjectGroundingOutput
from embodied_perceptron_training.training.losses import (
    BoxParts,
    Losses,
    OccupancySums,
    Reduce,
    contrastive_alignment,
    decoupled_corner_loss,
    full_precision,
    geometric_terms,
    l1_box_loss,
    occupancy_cross_entropy,
    rotated_iou_loss,
    same,
    semantic_terms,
    sigmoid_focal,
)
from embodied_perceptron_training.training.matching import (
    PaddedBoxes,
    QueryMatcher,
    ScenePoints,
    assign_batch,
    objects_reach,
)

# weights of the corner distances by centre, size, rotation alone and by the whole box, as the paper
DECOUPLED = (0.2, 0.2, 0.2, 0.4)


@dataclass(frozen=True)
class BoxTerms:
    """A design of the box loss.

    Attributes:
        corners: weights of the corner distances by centre, size, rotation alone and by the whole box.
        l1: instead of them centre, size and rotation as numbers, see :func:`l1_box_loss`; None = not so.
    """

    corners: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    l1: Literal["angles", "matrix", "sincos"] | None = None


BOX_LOSSES: Mapping[str, BoxTerms] = {
    "decoupled": BoxTerms(DECOUPLED),
    "decoupled-three": BoxTerms((1 / 3, 1 / 3, 1 / 3, 0.0)),
    "plain": BoxTerms((0.0, 0.0, 0.0, 1.0)),
    "l1-angles": BoxTerms(l1="angles"),
    "l1-matrix": BoxTerms(l1="matrix"),
    "l1-sincos": BoxTerms(l1="sincos"),
    "none": BoxTerms(),
}


# --------------------------------------------------------------------------------------------------------------------
# detection


@dataclass(frozen=True)
class DetectionPrediction:
    """The detection head's output for a batch, its levels concatenated, finest first, in each the scenes in order.

    Attributes:
        points: per level (N_l, 3) metres.
        centerness: (P,) logits.
        boxes: P decoded boxes.
        class_logits: (P, C).
        reaches: half the edge of a cell of each level, metres; needed where there are object logits.
        object_logits: per level (N_l,), or None where a level has none.
        presence_logits: (P,), or None where the head has none.
        bounds: per level the B + 1 ends of the scenes' rows; None = one scene.
        votes: of a head whose sites vote.
    """

    points: list[Tensor]
    centerness: Tensor
    boxes: BoxParts
    class_logits: Tensor
    reaches: list[float] = field(default_factory=list)
    object_logits: list[Tensor | None] = field(default_factory=list)
    presence_logits: Tensor | None = None
    bounds: list[list[int]] | None = None
    votes: Votes | None = None

    def scenes(self) -> ScenePoints:
        """The points of each scene beside each other."""
        points = self.points or [self.class_logits.new_zeros(0, 3)]
        return ScenePoints.of(points, self.bounds or [[0, len(p)] for p in points])


_parts = full_precision(faces_to_parts)


def detection_predictions(levels: Sequence[DetectionLevel], voxel_size_m: float) -> DetectionPrediction:
    """Of batched levels, finest first; ``voxel_size_m`` of an input site."""
    geometry = torch.cat([torch.cat((x.anchors_m, x.distances_m, x.rotation), 1) for x in levels])
    presence = [p for level in levels if (p := level.presence_logits) is not None]
    return DetectionPrediction(
        points=[level.points_m for level in levels],
        centerness=torch.cat([level.center_logits for level in levels])[:, 0],
        boxes=BoxParts(*_parts(geometry[:, :3], geometry[:, 3:9], geometry[:, 9:])),
        class_logits=torch.cat([level.class_logits for level in levels]),
        reaches=[0.5 * level.sites.stride * voxel_size_m for level in levels],
        object_logits=[None if level.object_logits is None else level.object_logits[:, 0] for level in levels],
        presence_logits=torch.cat(presence)[:, 0] if presence else None,
        bounds=[level.sites.bounds for level in levels],
        votes=levels[0].votes,
    )


@dataclass(frozen=True)
class BoxTarget:
    """Ground truth of one scene: (G, 9) boxes and (G,) int64 labels; the number of classes stands for a thing that
    none of them names: its centre and its box are learned, and that it is there by a head that knows presence."""

    boxes: Tensor
    labels: Tensor


@dataclass(frozen=True)
class DetectionCriterion:
    """Focal classification, binary cross entropy of centreness, decoupled corner Chamfer of boxes.

    Attributes:
        min_points, top_points, min_size_m: see :func:`assign_batch`.
        iou_weight: weight of an additional rotated IoU loss; 0 leaves it out.
        box: the design of the box loss.
        two_sided: corner distances in both directions.
        normalize: by the positives of the whole batch, or (as released) of each scene, then the mean over scenes.
        released: restore the faults of the released assignment.
        reduce: mean of a value over processes.
    """

    min_points: int = 27
    top_points: int = 18
    min_size_m: float = 0.0
    iou_weight: float = 0.0
    box: BoxTerms = BOX_LOSSES["decoupled"]
    two_sided: bool = False
    normalize: Literal["batch", "scene"] = "batch"
    released: bool = False
    reduce: Reduce = same

    @full_precision
    def __call__(self, prediction: DetectionPrediction, targets: Sequence[BoxTarget]) -> Losses:
        """``{"class", "center"[, "box"][, "iou"][, "presence"][, "votes"][, "object"]}``; without positives only
        "class", "presence" and "object" count. What no box is learned at is computed along on a device, where to know
        how much there is would be to wait, and does not count.

        Raises ``ValueError`` for targets that do not fit; their numbers are looked at on the CPU alone.
        """
        logits = prediction.class_logits
        points = prediction.scenes()
        if len(targets) != len(points.row):
            raise ValueError(f"need one target per scene, got {len(targets)} for {len(points.row)}")
        labels = torch.cat([_checked(target, logits.shape[1]) for target in targets])
        truth = PaddedBoxes.of([target.boxes for target in targets])
        found = assign_batch(points, truth, self.min_points, self.top_points, self.min_size_m, self.released)
        if runs_compiled(logits):
            found = found.taken_only()
        row = found.row.clamp(max=max(points.total - 1, 0))
        # what is not taken is written to a row behind the last, what has no name to a column behind the last class
        written = torch.where(found.taken, row, points.total)
        label = functional.pad(labels, (0, 1))[truth.row.flatten()[found.box]]
        onehot = logits.new_zeros(points.total + 1, logits.shape[1] + 1)
        onehot.view(-1).scatter_(0, written * onehot.shape[1] + label, 1.0)
        predicted = prediction.boxes.select(row)
        boxes = truth.boxes.flatten(0, 1)[found.box].to(logits.dtype)
        wanted = BoxParts(boxes[:, :3], boxes[:, 3:6], truth.rotation.flatten(0, 1)[found.box].to(logits.dtype))
        of_boxes = {
            "center": functional.binary_cross_entropy_with_logits(
                prediction.centerness[row], found.centerness.to(logits.dtype).clamp_min(0.0), reduction="none"
            ),
        }
        if any(self.box.corners):
            of_boxes["box"] = decoupled_corner_loss(predicted, wanted, self.box.corners, self.two_sided)
        elif self.box.l1:
            of_boxes["box"] = l1_box_loss(predicted, wanted, self.box.l1)
        if self.iou_weight:
            of_boxes["iou"] = self.iou_weight * rotated_iou_loss(predicted, wanted, distance_weight=1.0)
        of_points = {"class": sigmoid_focal(logits, onehot[:-1, :-1]).sum(1)}
        if prediction.presence_logits is not None:
            positive = logits.new_zeros(points.total + 1).scatter_(0, written, 1.0)[:-1]
            of_points["presence"] = sigmoid_focal(prediction.presence_logits, positive)
        counted = {name: torch.where(found.taken, values, 0.0) for name, values in of_boxes.items()}
        number = found.taken.to(logits.dtype)
        if self.normalize == "batch":
            norm = self.reduce(number.sum()).clamp_min(1.0)
            losses = {name: values.sum() / norm for name, values in (of_points | counted).items()}
        else:
            own = logits.new_zeros(len(targets))
            norm = self.reduce(own.index_add(0, found.scene, number)).clamp_min(1.0)
            sums = {name: own.index_add(0, points.scene_of_points(), values) for name, values in of_points.items()}
            sums |= {name: own.index_add(0, found.scene, values) for name, values in counted.items()}
            losses = {name: (values / norm).mean() for name, values in sums.items()}
        if prediction.votes is not None:
            losses["votes"] = vote_loss(prediction.votes, truth, self.reduce)
        return {**losses, **self._object_losses(prediction, points, truth, found.level)}

    def _object_losses(
        self, prediction: DetectionPrediction, points: ScenePoints, truth: PaddedBoxes, level: Tensor
    ) -> Losses:
        """Binary cross entropy of "an object that a finer level learns reaches into this cell", the mean over each
        level's cells, then levels.

        The score says which sites of the next finer level are kept. What is learned here or above does not need them:
        if a bed's thousand sites were kept as well, pictures and plants would be pruned for it.
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
        return {"object": (torch.stack(sums) / self.reduce(cells).clamp_min(1.0)).mean()}


def vote_loss(votes: Votes, truth: PaddedBoxes, reduce: Reduce = same) -> Tensor:
    """L1 distance of each vote to the middle of the smallest box that its site is in, the mean over sites in boxes."""
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
    """The labels of a scene. Raises ``ValueError`` for what does not fit."""
    labels = target.labels
    bx.check_boxes(target.boxes, "ground truth boxes")
    if runs_compiled(labels) and bool((wrong := (labels < 0) | (labels > classes)).any()):
        raise ValueError(f"label {int(labels[wrong][0])} is not in [0, {classes}]")
    return labels


# --------------------------------------------------------------------------------------------------------------------
# occupancy


@dataclass(frozen=True)
class OccupancyCriterion:
    """Cross entropy and scene-class affinity on every scale; scale i counts ``scale_decay ** i``.

    Attributes:
        semantic, geometric: weights of the two affinity terms against cross entropy.
        scale_decay: each coarser scale counts this much of the one before.
        class_weights: of cross entropy, one per class, or None.
        released: restore the released losses' faults (see :mod:`.losses`); its coarse targets are
            :func:`released_coarse_labels`.
        reduce: mean of a value over processes; a process without any sample passes grids without a sample.
    """

    semantic: float = 1.0
    geometric: float = 1.0
    scale_decay: float = 0.5
    class_weights: tuple[float, ...] | None = None
    released: bool = False
    reduce: Reduce = same

    @full_precision
    def __call__(self, logits: Sequence[Tensor], targets: Sequence[Tensor]) -> Losses:
        """Per scale (B, C, X, Y, Z) logits and (B, X, Y, Z) labels -> ``{"scale0/cross_entropy", ...}``."""
        if len(logits) != len(targets):
            raise ValueError(f"need a target per scale, got {len(targets)} for {len(logits)}")
        sums, entropies = [], []
        for i, (scores, target) in enumerate(zip(logits, targets, strict=True)):
            if scores.shape[:1] + scores.shape[2:] != target.shape:
                raise ValueError(f"scale {i}: logits {tuple(scores.shape)} do not fit labels {tuple(target.shape)}")
            per_class = None
            if self.class_weights is not None:
                per_class = constant(self.class_weights, scores.device, scores.dtype)
            entropies.append(occupancy_cross_entropy(scores, target, per_class, self.released, self.reduce))
            sums.append(OccupancySums.of(scores, target))
        classes, filled = (torch.stack(part) for part in zip(*sums, strict=True))
        kinds = {
            "cross_entropy": torch.stack(entropies),
            "semantic": self.semantic * semantic_terms(classes, self.reduce),
            "geometric": self.geometric * geometric_terms(filled, self.released, self.reduce),
        }
        decay = constant(tuple(self.scale_decay**i for i in range(len(sums))), classes.device, classes.dtype)
        return {
            f"scale{i}/{name}": term for name, terms in kinds.items() for i, term in enumerate((decay * terms).unbind())
        }


# --------------------------------------------------------------------------------------------------------------------
# grounding


@dataclass(frozen=True)
class GroundingLayer:
    """One decoder layer's output for a batch.

    Attributes:
        token_logits: (B, Q, L) similarity of queries and tokens, -inf at padding.
        boxes: (B, Q, 9).
        query_embeddings, token_embeddings: (B, Q, D), (B, L, D) in the common space, or None without alignment.
    """

    token_logits: Tensor
    boxes: Tensor
    query_embeddings: Tensor | None = None
    token_embeddings: Tensor | None = None

    def embeddings(self) -> tuple[Tensor, Tensor]:
        """Both, of queries and tokens. Raises ``ValueError`` without alignment."""
        if self.query_embeddings is None or self.token_embeddings is None:
            raise ValueError("contrastive_weight > 0 needs query and token embeddings in every layer")
        return self.query_embeddings, self.token_embeddings


def grounding_layers(output: GroundingOutput) -> list[GroundingLayer]:
    """Every layer of a decoder over voxels, first to last."""
    return [GroundingLayer(logits, boxes) for logits, boxes in zip(output.logits, output.boxes, strict=True)]


@dataclass(frozen=True)
class GroundingTarget:
    """What one sentence speaks of: (G, 9) boxes and (G, L) bool, the tokens that name each."""

    boxes: Tensor
    positive: Tensor


@dataclass(frozen=True)
class GroundingCriterion:
    """Hungarian matching per layer; focal loss of query-token similarity, decoupled corner Chamfer of matched boxes,
    contrastive alignment; every layer is supervised.

    Attributes:
        matcher: costs.
        class_weight, box_weight, contrastive_weight: of the three terms; contrastive needs embeddings, 0 leaves it out.
        temperature: of the contrastive softmax.
        iou_weight: weight of an additional rotated IoU loss; 0 leaves it out.
        two_sided: corner distances in both directions.
        reduce: mean of a value over processes.
    """

    matcher: QueryMatcher = field(default_factory=QueryMatcher)
    class_weight: float = 1.0
    box_weight: float = 1.0
    contrastive_weight: float = 0.0
    temperature: float = 0.07
    iou_weight: float = 0.0
    two_sided: bool = False
    reduce: Reduce = same

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
            "class": self.class_weight * focal.sum((1, 2, 3)) / norm,
            "box": self.box_weight * summed(decoupled_corner_loss(*parts, two_sided=self.two_sided)),
        }
        if self.iou_weight:
            found["iou"] = self.iou_weight * summed(rotated_iou_loss(*parts, distance_weight=1.0))
        if self.contrastive_weight:
            embedded = [layer.embeddings() for layer in layers]
            common = [torch.stack(side) for side in zip(*embedded, strict=True)]
            align = contrastive_alignment(*common, positive, token_mask.expand(number, -1, -1), self.temperature)
            found["contrastive"] = self.contrastive_weight * align.mean(1)
        return {f"layer{i}/{name}": of[i] for i in range(number) for name, of in found.items()}


# --------------------------------------------------------------------------------------------------------------------
# What a decoder over detected objects is trained on: to point at the one that a sentence means.
#
# The paper's token loss judges every query by itself, and all things of the class fit the word "chair" of "the chair
# closest to the desk" about equally well. Here the word is shared out among all objects and "none of these" (a softmax,
# as a pointer network's: Vinyals et al., NeurIPS 2015), so that what the sentence means has to win over its look-alikes
# and over the anchors, which is what a robot acts on. All other words mean "none of these".


@dataclass(frozen=True, eq=False)
class PointerOutput:
    """Answers about some scenes, and what is right.

    Attributes:
        output: S sentences, boxes in the world.
        boxes: per sentence (G, 9) of what it means; none where that is not there.
        named: (S, T) bool, the tokens that name it. pad: (S, T) True at padding.
    """

    output: ObjectGroundingOutput
    boxes: Sequence[Tensor]
    named: Tensor
    pad: Tensor


@dataclass(frozen=True)
class PointerCriterion:
    """Cross entropy of every token's shares; the mean over layers, then sentences.

    Attributes:
        min_iou: an object that overlaps what is meant by at least so much is right; of several each as far as it does.
            Where none is, "none of these" is.
        other_weight: of the words that do not name what is meant, together.
        reduce: mean of a value over processes.
    """

    min_iou: float = 0.25
    other_weight: float = 0.2
    reduce: Reduce = same

    @full_precision
    def __call__(self, answers: Sequence[PointerOutput], like: Tensor) -> Losses:
        """``{"named", "others"}``; 0 without any sentence. ``like``: a tensor of the device to count on."""
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
        """(S, 1 + Q) how the tokens that name what is meant are shared out: "none of these" first, then the objects."""
        boxes, valid = answer.output.boxes[-1], answer.output.query_valid  # (S, Q, 9), (S, Q)
        counts = [len(b) for b in answer.boxes]
        best = boxes.new_zeros(boxes.shape[:2])
        if sum(counts):
            # what stands in where a sentence means fewer things than another has no volume, and overlaps nothing
            rows = [[start + k if k < n else sum(counts) for k in range(max(counts))] for start, n in _runs(counts)]
            meant = torch.cat([*answer.boxes, boxes.new_zeros(1, 9)])[torch.tensor(rows).to(boxes.device)]  # (S, G, 9)
            pairs = torch.broadcast_tensors(boxes[:, :, None], meant[:, None])
            iou = paired_iou(*(p.reshape(-1, 9).detach().double() for p in pairs)).view(pairs[0].shape[:3])
            best = torch.where(valid, iou.amax(2).to(boxes), 0.0)
        best = torch.where(best >= self.min_iou, best, 0.0)
        right = torch.cat([(best.sum(1, keepdim=True) == 0).to(best), best], 1)
        return right / right.sum(1, keepdim=True)


def _runs(counts: Sequence[int]) -> list[tuple[int, int]]:
    """The first row and the length of each of several runs, one behind the other."""
    return list(zip(itertools.accumulate(counts, initial=0), counts, strict=False))


def _mean_of(values: Tensor, mask: Tensor) -> Tensor:
    """(S, T) -> (S,) means over the masked tokens, 0 where there are none."""
    return torch.where(mask, values, 0.0).sum(1) / mask.sum(1).clamp_min(1)
