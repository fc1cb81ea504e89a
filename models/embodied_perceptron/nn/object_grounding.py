"""Language grounding among detected objects: which of them a sentence means.

The queries are the boxes of the detection head, as in BUTD-DETR (Jain et al., ECCV 2022) and ViL3DRel (Chen et al.,
NeurIPS 2022), so that one query is one thing and the decoder learns nothing but what words say about things. Each layer
lets the objects read the sentence, then each other. What an object reads of another one is not only its content but
also where it is, seen from the object itself and from its viewer: a learned embedding of the pair's geometry takes part
in keys and values (relative positions as in Shaw et al., NAACL 2018; a bias on attention alone would say whom to look
at but not how far away it is). "The chair closest to the desk" is then: chairs find the desk, read their distance, and
compare.

All geometry is that of the viewpoint (origin on the floor below the viewer, x along its heading), so that the answer
moves with the world.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn
from torch.nn import functional

from embodied_perceptron.geometry.boxes import rotations
from embodied_perceptron.geometry.suppression import QUERY_NMS_IOU, voted_nms
from embodied_perceptron.nn.detection import MIN_SIZE_M, DetectionLevel, best_scores, boxes_from_faces
from embodied_perceptron.nn.grounding import GroundingOutput
from embodied_perceptron.sparse.ops import best_rows
from embodied_perceptron.sparse.tensor import SparseTensor

OWN_FEATURES = 17
PAIR_FEATURES = 23
_CANDIDATES = 600  # boxes of a scene that enter suppression: several times as many as there are things in a window
_NEVER = -1e4  # logit of what is not there; finite, so that a share of nothing has no NaN in its gradient


@dataclass(frozen=True, eq=False)
class DetectedObjects:
    """Things of B scenes, best first, padded to the same number.

    Attributes:
        boxes: (B, Q, 9); padding is a cube of one metre at the origin.
        features: (B, Q, C) of the neck at the sites that predict them.
        classes: (B, Q, K) class probabilities there.
        scores: (B, Q) of the detector, 0 at padding.
        valid: (B, Q) False at padding.
    """

    boxes: Tensor
    features: Tensor
    classes: Tensor
    scores: Tensor
    valid: Tensor

    def scene(self, row: int) -> DetectedObjects:
        """One of the scenes, by itself."""
        return DetectedObjects(*(x[row : row + 1] for x in vars(self).values()))


@torch.no_grad()
def detected_objects(levels: Sequence[DetectionLevel], features: Sequence[SparseTensor], count: int) -> DetectedObjects:
    """The ``count`` best things of each scene: boxes after suppression whatever their class, what is suppressed having
    its say about place and size (:func:`~embodied_perceptron.geometry.suppression.voted_nms`). No gradient passes.

    Args:
        levels: raw predictions, finest first.
        features: of the neck at the same sites.
    """
    scenes = [_objects_of(levels, features, b, count) for b in range(levels[0].sites.batch_size)]
    return DetectedObjects(*(torch.stack(part) for part in zip(*scenes, strict=True)))


def _objects_of(
    levels: Sequence[DetectionLevel], features: Sequence[SparseTensor], sample: int, count: int
) -> tuple[Tensor, ...]:
    """Boxes, features, class probabilities, scores, validity of one scene, padded to ``count``."""
    scored = [best_scores(x, slice(x.sites.bounds[sample], x.sites.bounds[sample + 1])) for x in levels]
    joined = torch.cat(scored)
    chosen = best_rows(joined, _CANDIDATES)  # ascending
    columns: list[list[Tensor]] = [[], [], []]
    first = 0
    for level, x, part in zip(levels, features, scored, strict=True):
        mine = chosen[(chosen >= first) & (chosen < first + len(part))] - first + level.sites.bounds[sample]
        columns[0].append(boxes_from_faces(level.anchors_m[mine], level.distances_m[mine], level.rotation[mine]))
        columns[1].append(x.feats[mine])
        columns[2].append(level.class_logits[mine].sigmoid())
        first += len(part)
    boxes, feats, classes = (torch.cat(c) for c in columns)
    scores = joined[chosen]
    boxes[:, 3:6].clamp_(min=MIN_SIZE_M)
    one_class = torch.zeros_like(scores, dtype=torch.int64)
    keep, voted = voted_nms(boxes, scores, one_class, QUERY_NMS_IOU, QUERY_NMS_IOU)
    keep, voted = keep[:count], voted[:count]
    missing = count - len(keep)
    padding = boxes.new_tensor([0.0, 0, 0, 1, 1, 1, 0, 0, 0]).expand(missing, 9)
    return (
        torch.cat([voted, padding]),
        functional.pad(feats[keep], (0, 0, 0, missing)),
        functional.pad(classes[keep], (0, 0, 0, missing)),
        functional.pad(scores[keep], (0, missing)),
        torch.arange(count, device=boxes.device) < len(keep),
    )


def joined_objects(parts: Sequence[DetectedObjects], count: int) -> DetectedObjects:
    """The ``count`` best of what is valid in several parts of one scene, all in one frame; without padding."""
    together = DetectedObjects(*(torch.cat([getattr(p, f.name) for p in parts], 1) for f in fields(DetectedObjects)))
    order = together.scores[0].argsort(descending=True, stable=True)
    kept = order[together.valid[0, order]][:count]
    return DetectedObjects(*(getattr(together, f.name)[:, kept] for f in fields(DetectedObjects)))


# --------------------------------------------------------------------------------------------------------------------
# geometry, in the viewpoint's frame


def own_features(boxes: Tensor) -> Tensor:
    """(Q, 9) boxes in the viewpoint's frame -> (Q, :data:`OWN_FEATURES`): where each is, how large, how turned."""
    center, half = boxes[:, :3], _half_extent(boxes)
    low, high = center[:, 2] - half[:, 2], center[:, 2] + half[:, 2]
    away = center[:, :2].norm(dim=1)
    heading = center[:, :2] / away.clamp_min(1e-6)[:, None]
    R = rotations(boxes)
    return torch.cat(
        [
            center / 3.0,
            torch.stack([low, high, away / 3.0], 1),
            heading,
            boxes[:, 3:6].log(),
            torch.stack([half[:, 0].log(), half[:, 1].log(), half[:, 2].log()], 1),
            # of an upright box both axes lie in the plane; squares do not tell an axis from its opposite
            torch.stack([R[:, 0, 0] ** 2, R[:, 0, 0] * R[:, 1, 0], R[:, 2, 2] ** 2], 1),
        ],
        dim=1,
    )


def pair_features(boxes: Tensor) -> Tensor:
    """(Q, 9) boxes in the viewpoint's frame -> (Q, Q, :data:`PAIR_FEATURES`): [i, j] says where j is for i.

    Offset, distance, vertical gaps and relative size; how much they overlap seen from above; the offset along the axes
    of either box (sides of a sofa); bearing and range as seen by the viewer.
    """
    center, half = boxes[:, :3], _half_extent(boxes)
    d = center[None] - center[:, None]  # (Q, Q, 3)
    level, full = d[..., :2].norm(dim=-1), d.norm(dim=-1)
    low, high = center[:, 2] - half[:, 2], center[:, 2] + half[:, 2]
    R = rotations(boxes)
    mine = torch.einsum("iab,ija->ijb", R, d)  # in the axes of i
    other = torch.einsum("jab,ija->ijb", R, -d)  # of i in the axes of j
    gap = (d.abs() - half[None] - half[:, None])[..., :2]
    away = center[:, :2].norm(dim=1)
    heading = center[:, :2] / away.clamp_min(1e-6)[:, None]
    across = heading[:, None, 0] * heading[None, :, 1] - heading[:, None, 1] * heading[None, :, 0]
    size = boxes[:, 3:6].clamp_min(MIN_SIZE_M)
    parts = [
        d / 2.0,
        torch.stack([level / 2.0, torch.log1p(level), torch.log1p(full)], -1),
        torch.stack([low[None] - high[:, None], low[:, None] - high[None]], -1),
        gap / 2.0,
        size.log()[None] - size.log()[:, None],
        (mine / (0.5 * size)[:, None]).clamp(-4.0, 4.0) / 2.0,
        (other / (0.5 * size)[None]).clamp(-4.0, 4.0) / 2.0,
        torch.stack([across, heading @ heading.T, (away[None] - away[:, None]) / 2.0], -1),
        torch.eye(len(boxes), device=boxes.device, dtype=boxes.dtype)[..., None],
    ]
    return torch.cat(parts, dim=-1)


def _half_extent(boxes: Tensor) -> Tensor:
    """(Q, 3) half sides of the box along x, y, z that holds each."""
    half: Tensor = 0.5 * (rotations(boxes).abs() @ boxes[:, 3:6, None])[..., 0]
    return half


# --------------------------------------------------------------------------------------------------------------------
# decoder


class RelativeAttention(nn.Module):
    """Attention among objects whose keys and values hold the embedding of each pair."""

    def __init__(self, channels: int, heads: int, pair_channels: int) -> None:
        super().__init__()
        if channels % heads:
            raise ValueError(f"channels must be a multiple of heads, got {channels} and {heads}")
        self.heads = heads
        self.content = nn.Linear(channels, 3 * channels)
        self.asked = nn.Linear(channels, heads * pair_channels)  # which geometry a query looks for
        self.read = nn.Linear(heads * pair_channels, channels, bias=False)
        self.out = nn.Linear(channels, channels)

    def forward(self, x: Tensor, pairs: Tensor, valid: Tensor) -> Tensor:
        """(S, Q, C) objects of S sentences about one scene, (Q, Q, E) pairs, (Q,) -> (S, Q, C)."""
        S, Q, C = x.shape
        q, k, v = self.content(x).view(S, Q, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)  # (S, H, Q, c)
        asked = self.asked(x).view(S, Q, self.heads, -1)
        logits = q @ k.transpose(-1, -2) / math.sqrt(C // self.heads)
        # one product for all sentences and heads of a query: (Q, S * H, E) @ (Q, E, Q)
        near = asked.permute(1, 0, 2, 3).flatten(1, 2) @ pairs.transpose(1, 2) / math.sqrt(pairs.shape[-1])
        logits = logits + near.view(Q, S, self.heads, Q).permute(1, 2, 0, 3)
        share = logits.masked_fill(~valid, _NEVER).softmax(dim=-1)  # (S, H, Q, Q)
        seen = (share @ v).transpose(1, 2).flatten(2)  # (S, Q, C)
        where = (share.permute(2, 0, 1, 3).flatten(1, 2) @ pairs).view(Q, S, -1).transpose(0, 1)  # (S, Q, H * E)
        out: Tensor = self.out(seen) + self.read(where)
        return out


class ObjectLayer(nn.Module):
    """Objects read the sentence, then each other, then think; residual, normalised before each."""

    def __init__(self, channels: int, heads: int, hidden_channels: int, pair_channels: int) -> None:
        super().__init__()
        self.text_attention = nn.MultiheadAttention(channels, heads, batch_first=True)
        self.object_attention = RelativeAttention(channels, heads, pair_channels)
        self.feed_forward = nn.Sequential(
            nn.Linear(channels, hidden_channels), nn.ReLU(inplace=True), nn.Linear(hidden_channels, channels)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(3))

    def forward(self, x: Tensor, pairs: Tensor, valid: Tensor, text: Tensor, text_pad: Tensor) -> Tensor:
        """(S, Q, C), (Q, Q, E), (Q,), (S, T, C), (S, T) True at padding -> (S, Q, C)."""
        read = self.text_attention(self.norms[0](x), text, text, key_padding_mask=text_pad, need_weights=False)[0]
        x = x + read
        x = x + self.object_attention(self.norms[1](x), pairs, valid)
        out: Tensor = x + self.feed_forward(self.norms[2](x))
        return out


@dataclass(frozen=True, eq=False)
class ObjectGroundingOutput(GroundingOutput):
    """Beside what every decoder says (boxes are the detected ones in each layer):

    Attributes:
        log_shares: (L, S, 1 + Q, T): every token is shared out among "nothing of this" (row 0) and the objects;
            their logarithms. ``logits`` are the log odds of the objects' shares.
    """

    log_shares: Tensor


class ObjectGroundingHead(nn.Module):
    """The decoder over detected objects.

    Args:
        feature_channels, num_classes: of the detection head's neck and classes.
        text_channels: of the text encoder's tokens.
        channels, layers, heads, hidden_channels: of the decoder.
        pair_channels: of the embedding of a pair.
    """

    def __init__(
        self,
        feature_channels: int,
        num_classes: int,
        text_channels: int,
        channels: int = 96,
        layers: int = 4,
        heads: int = 4,
        hidden_channels: int = 256,
        pair_channels: int = 32,
    ) -> None:
        super().__init__()
        self.appearance = nn.Linear(feature_channels, channels)
        self.appearance_norm = nn.LayerNorm(feature_channels)
        self.kind = nn.Linear(num_classes, channels, bias=False)
        self.place = _two_layers(OWN_FEATURES + 1, channels, channels)
        self.pair = _two_layers(PAIR_FEATURES, 2 * pair_channels, pair_channels)
        self.text_projection = nn.Linear(text_channels, channels)
        self.layers = nn.ModuleList(ObjectLayer(channels, heads, hidden_channels, pair_channels) for _ in range(layers))
        self.norm = nn.LayerNorm(channels)
        self.query = _two_layers(channels, channels, channels)
        self.token = _two_layers(channels, channels, channels)
        self.nothing = nn.Linear(channels, 1)

    def forward(self, objects: DetectedObjects, tokens: Tensor, token_pad: Tensor) -> ObjectGroundingOutput:
        """Ground S sentences in one scene.

        Args:
            objects: of one scene, boxes in the viewpoint's frame.
            tokens: (S, T, text_channels), T >= 1.
            token_pad: (S, T) True at padding; every sentence needs at least one real token.

        Raises:
            ValueError: several scenes, or a sentence without tokens.
        """
        if len(objects.boxes) != 1:
            raise ValueError(f"one scene at a time, got {len(objects.boxes)}")
        if tokens.shape[1] == 0 or bool(token_pad.all(dim=1).any()):
            raise ValueError("grounding needs at least one token in every sentence")
        boxes, valid, S = objects.boxes[0], objects.valid[0], len(tokens)
        own = torch.cat([own_features(boxes), objects.scores[0, :, None]], 1)
        x = self.appearance(self.appearance_norm(objects.features[0])) + self.kind(objects.classes[0].sqrt())
        x = (x + self.place(own))[None].expand(S, -1, -1)
        pairs = self.pair(pair_features(boxes))
        text = self.text_projection(tokens)
        token = self.token(text) / math.sqrt(text.shape[-1])
        nothing = self.nothing(text).transpose(1, 2)  # (S, 1, T)
        hidden_layers, share_layers = [], []
        for layer in self.layers:
            x = layer(x, pairs, valid, text, token_pad)
            hidden = self.norm(x)
            fit = (self.query(hidden) @ token.transpose(1, 2)).masked_fill(~valid[:, None], _NEVER)  # (S, Q, T)
            hidden_layers.append(hidden)
            share_layers.append(torch.cat([nothing, fit], 1).log_softmax(dim=1))
        shares = torch.stack(share_layers)
        mine = shares[:, :, 1:]
        logits = (mine - torch.log1p(-mine.exp().clamp(max=1.0 - 1e-6))).masked_fill(
            token_pad[:, None, :], float("-inf")
        )
        everywhere = boxes.expand(len(self.layers), S, -1, -1)
        return ObjectGroundingOutput(everywhere, logits, torch.stack(hidden_layers), valid.expand(S, -1), shares)


def _two_layers(in_channels: int, hidden_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(in_channels, hidden_channels), nn.ReLU(inplace=True), nn.Linear(hidden_channels, out_channels)
    )
