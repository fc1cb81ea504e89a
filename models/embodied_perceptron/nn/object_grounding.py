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

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor, nn

from embodied_perceptron.geometry.boxes import rotations
from embodied_perceptron.geometry.suppression import QUERY_NMS_IOU, voted_nms
from embodied_perceptron.nn.detection import MIN_SIZE_M, DetectionLevel, best_scores, boxes_from_faces
from embodied_perceptron.nn.grounding import GroundingOutput, check_padding
from embodied_perceptron.sparse.tensor import SparseTensor, best_rows

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

    def scenes(self, rows: Tensor) -> DetectedObjects:
        """Some of the scenes."""
        return DetectedObjects(*(x[rows] for x in vars(self).values()))


@torch.no_grad()
def detected_objects(levels: Sequence[DetectionLevel], features: Sequence[SparseTensor], count: int) -> DetectedObjects:
    """The ``count`` best things of each scene: boxes after suppression whatever their class, what is suppressed having
    its say about place and size (:func:`~embodied_perceptron.geometry.suppression.voted_nms`). No gradient passes.

    Suppression goes box by box and is the host's; it is handed all scenes at once.

    Args:
        levels: raw predictions, finest first.
        features: of the neck at the same sites.
    """
    device = levels[0].class_logits.device
    first = [0, *itertools.accumulate(len(level.sites) for level in levels)]
    scored = torch.cat([best_scores(level, slice(None)) for level in levels])
    chosen = []
    for sample in range(levels[0].sites.batch_size):
        rows = np.concatenate(
            [np.arange(*level.sites.bounds[sample : sample + 2]) + n for n, level in zip(first, levels, strict=False)]
        )
        mine = torch.from_numpy(rows).to(device, non_blocking=True)
        chosen.append(mine[best_rows(scored[mine], _CANDIDATES)])  # ascending
    candidates = torch.cat(chosen)
    numbers = torch.cat([torch.cat((x.anchors_m, x.distances_m, x.rotation), 1) for x in levels])[candidates]
    boxes = boxes_from_faces(numbers[:, :3], numbers[:, 3:9], numbers[:, 9:])
    boxes[:, 3:6].clamp_(min=MIN_SIZE_M)
    scores = scored[candidates]
    found = torch.split(torch.cat([boxes, scores[:, None]], 1).cpu(), [len(rows) for rows in chosen])
    table, kept = torch.full((len(found), count), -1), boxes.new_zeros(len(found), count, 9, device="cpu")
    kept[..., 3:6] = 1.0
    start = 0
    for scene, mine in enumerate(found):
        one_class = torch.zeros(len(mine), dtype=torch.int64)
        keep, voted = voted_nms(mine[:, :9], mine[:, 9], one_class, QUERY_NMS_IOU, QUERY_NMS_IOU)
        number = min(len(keep), count)
        table[scene, :number], kept[scene, :number] = keep[:count] + start, voted[:count]
        start += len(mine)
    table = table.to(device, non_blocking=True)
    valid = table >= 0
    table = torch.where(valid, table, len(candidates))
    padded = torch.cat([candidates, candidates.new_full((1,), first[-1])])[table]  # a row of zeros behind the last

    def of(values: Sequence[Tensor]) -> Tensor:
        return torch.cat([*values, values[0].new_zeros(1, values[0].shape[1])])[padded]

    return DetectedObjects(
        kept.to(device, non_blocking=True),
        of([x.feats for x in features]),
        of([x.class_logits for x in levels]).sigmoid().masked_fill(~valid[..., None], 0.0),
        of([scored[:, None]])[..., 0],
        valid,
    )


def of_sentences(values: Tensor, sentences: int) -> Tensor:
    """(B, ...) of B scenes -> (S, ...) of sentences about them, equally many about each."""
    each = sentences // len(values)
    return values if each == 1 else values.repeat_interleave(each, 0, output_size=sentences)


def joined_objects(parts: Sequence[DetectedObjects], count: int) -> DetectedObjects:
    """The ``count`` best of what is valid in several parts of one scene, all in one frame; without padding."""
    together = DetectedObjects(*(torch.cat([getattr(p, f.name) for p in parts], 1) for f in fields(DetectedObjects)))
    order = together.scores[0].argsort(descending=True, stable=True)
    kept = order[together.valid[0, order]][:count]
    return DetectedObjects(*(getattr(together, f.name)[:, kept] for f in fields(DetectedObjects)))


# --------------------------------------------------------------------------------------------------------------------
# geometry, in the viewpoint's frame


def own_features(boxes: Tensor) -> Tensor:
    """(..., Q, 9) boxes in the viewpoint's frame -> (..., Q, :data:`OWN_FEATURES`): where each is, how large, how
    turned."""
    R = rotations(boxes)
    center, half = boxes[..., :3], _half_extent(boxes, R)
    height, up = center[..., 2:], half[..., 2:]
    away = center[..., :2].norm(dim=-1, keepdim=True)
    x, y = R[..., :1, 0], R[..., 1:2, 0]
    return torch.cat(
        [
            center / 3.0,
            height - up,
            height + up,
            away / 3.0,
            center[..., :2] / away.clamp_min(1e-6),
            boxes[..., 3:6].log(),
            half.log(),
            # of an upright box both axes lie in the plane; squares do not tell an axis from its opposite
            x**2,
            x * y,
            R[..., 2:, 2] ** 2,
        ],
        dim=-1,
    )


def pair_features(boxes: Tensor) -> Tensor:
    """(..., Q, 9) boxes in the viewpoint's frame -> (..., Q, Q, :data:`PAIR_FEATURES`): [i, j] says where j is for i.

    Offset, distance, vertical gaps and relative size; how much they overlap seen from above; the offset along the axes
    of either box (sides of a sofa); bearing and range as seen by the viewer.
    """
    R = rotations(boxes)
    center, half = boxes[..., :3], _half_extent(boxes, R)

    def to_others(values: Tensor) -> Tensor:
        """(..., Q, n) -> (..., Q, Q, n): those of j less those of i."""
        return values[..., None, :, :] - values[..., None, :]

    d = to_others(center)
    level, full = d[..., :2].norm(dim=-1), d.norm(dim=-1)
    low, high = center[..., 2] - half[..., 2], center[..., 2] + half[..., 2]
    mine = torch.einsum("...iab,...ija->...ijb", R, d)  # in the axes of i
    other = torch.einsum("...jab,...ija->...ijb", R, -d)  # of i in the axes of j
    gap = (d.abs() - half[..., None, :, :] - half[..., None, :])[..., :2]
    away = center[..., :2].norm(dim=-1, keepdim=True)
    heading = center[..., :2] / away.clamp_min(1e-6)
    x, y = heading.unbind(-1)
    across = x[..., :, None] * y[..., None, :] - y[..., :, None] * x[..., None, :]
    size = boxes[..., 3:6].clamp_min(MIN_SIZE_M)
    itself = torch.eye(boxes.shape[-2], device=boxes.device, dtype=boxes.dtype)
    parts = [
        d / 2.0,
        torch.stack([level / 2.0, torch.log1p(level), torch.log1p(full)], -1),
        torch.stack([low[..., None, :] - high[..., None], low[..., None] - high[..., None, :]], -1),
        gap / 2.0,
        to_others(size.log()),
        (mine / (0.5 * size)[..., None, :]).clamp(-4.0, 4.0) / 2.0,
        (other / (0.5 * size)[..., None, :, :]).clamp(-4.0, 4.0) / 2.0,
        torch.stack([across, heading @ heading.transpose(-1, -2), to_others(away)[..., 0] / 2.0], -1),
        itself.expand(d.shape[:-1])[..., None],
    ]
    return torch.cat(parts, dim=-1)


def _half_extent(boxes: Tensor, R: Tensor) -> Tensor:
    """(..., Q, 3) half sides of the box along x, y, z that holds each; ``R``: their rotations."""
    half: Tensor = 0.5 * (R.abs() @ boxes[..., 3:6, None])[..., 0]
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
        """(S, Q, C) objects of S sentences about B scenes, (B, Q, Q, E) pairs, (S, Q) -> (S, Q, C)."""
        S, Q, C = x.shape
        B, E = len(pairs), pairs.shape[-1]
        q, k, v = self.content(x).view(S, Q, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)  # (S, H, Q, c)
        asked = self.asked(x).view(B, S // B, Q, self.heads, E)
        pairs = pairs.flatten(0, 1)  # (B * Q, Q, E)
        logits = q @ k.transpose(-1, -2) / math.sqrt(C // self.heads)
        # one product for all sentences and heads of a query: (B * Q, S / B * H, E) @ (B * Q, E, Q)
        near = asked.transpose(1, 2).reshape(B * Q, -1, E) @ pairs.transpose(1, 2) / math.sqrt(E)
        logits = logits + near.view(B, Q, S // B, self.heads, Q).permute(0, 2, 3, 1, 4).flatten(0, 1)
        share = logits.masked_fill(~valid[:, None, None], _NEVER).softmax(dim=-1)  # (S, H, Q, Q)
        seen = (share @ v).transpose(1, 2).flatten(2)  # (S, Q, C)
        shares = share.view(B, S // B, self.heads, Q, Q).permute(0, 3, 1, 2, 4).reshape(B * Q, -1, Q)
        where = (shares @ pairs).view(B, Q, S // B, -1).transpose(1, 2).reshape(S, Q, -1)  # (S, Q, H * E)
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
        """(S, Q, C), (B, Q, Q, E), (S, Q), (S, T, C), (S, T) True at padding -> (S, Q, C)."""
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
        """Ground S sentences in B scenes, equally many in each, those of the first scene first.

        Args:
            objects: boxes in the viewpoint's frame.
            tokens: (S, T, text_channels), T >= 1.
            token_pad: (S, T) True at padding; every sentence needs at least one real token (on a device, where that is
                not looked at: what has none gets NaN).

        Raises:
            ValueError: sentences that cannot be shared out, or one without tokens.
        """
        x, text = self._read(objects, tokens, token_pad)
        valid = of_sentences(objects.valid, len(tokens))
        pairs = self._pairs(objects.boxes)
        token = self.token(text) / math.sqrt(text.shape[-1])
        nothing = self.nothing(text).transpose(1, 2)  # (S, 1, T)
        hidden_layers, share_layers = [], []
        for layer in self.layers:
            x = layer(x, pairs, valid, text, token_pad)
            hidden = self.norm(x)
            hidden_layers.append(hidden)
            share_layers.append(shared_out(nothing, self.query(hidden) @ token.transpose(1, 2), valid))
        return self._output(objects, hidden_layers, share_layers, token_pad)

    def _read(self, objects: DetectedObjects, tokens: Tensor, token_pad: Tensor) -> tuple[Tensor, Tensor]:
        """(S, Q, C) what is known of each object by itself, (S, T, C) words."""
        S, B = len(tokens), len(objects.boxes)
        if B == 0 or S % B:
            raise ValueError(f"need as many sentences of each scene, got {S} for {B}")
        check_padding(token_pad, "token in every sentence")
        own = torch.cat([own_features(objects.boxes), objects.scores[..., None]], -1)
        x = self.appearance(self.appearance_norm(objects.features)) + self.kind(objects.classes.sqrt())
        return of_sentences(x + self.place(own), S), self.text_projection(tokens)

    def _pairs(self, boxes: Tensor) -> Tensor:
        """(B, Q, 9) boxes in the viewpoint's frame -> (B, Q, Q, E) what a pair is to each other."""
        embedded: Tensor = self.pair(pair_features(boxes))
        return embedded

    def _output(
        self, objects: DetectedObjects, hidden: Sequence[Tensor], shares: Sequence[Tensor], token_pad: Tensor
    ) -> ObjectGroundingOutput:
        every = torch.stack(list(shares))
        mine, S = every[:, :, 1:], len(token_pad)
        logits = (mine - torch.log1p(-mine.exp().clamp(max=1.0 - 1e-6))).masked_fill(
            token_pad[:, None, :], float("-inf")
        )
        everywhere = of_sentences(objects.boxes, S).expand(len(shares), -1, -1, -1)
        valid = of_sentences(objects.valid, S)
        return ObjectGroundingOutput(everywhere, logits, torch.stack(list(hidden)), valid, every)


def shared_out(nothing: Tensor, fit: Tensor, valid: Tensor) -> Tensor:
    """(S, 1, T) how much each token means nothing of this, (S, Q, T) how well each object fits it, (S, Q) which objects
    there are -> (S, 1 + Q, T) log shares."""
    shares: Tensor = torch.cat([nothing, fit.masked_fill(~valid[..., None], _NEVER)], 1).log_softmax(dim=1)
    return shares


def _two_layers(in_channels: int, hidden_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(in_channels, hidden_channels), nn.ReLU(inplace=True), nn.Linear(hidden_channels, out_channels)
    )
