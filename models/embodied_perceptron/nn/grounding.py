"""Language grounding: decoders that score boxes for the tokens of a sentence.

:class:`GroundingHead` decodes voxels (``paper``; EmbodiedScan paper, section 4.3 and appendix): the voxels that match
some token best become queries; each of six layers attends among the queries, to the tokens and to the voxels; the
position encoding of a query comes from the 9-D box that the previous layer predicted; all layers share one box branch;
the answer to a token is the query whose embedding aligns best with it.

:class:`ObjectGroundingHead` decodes detected objects (``tiny`` and ``base``), as BUTD-DETR (Jain et al., ECCV 2022) and
ViL3DRel (Chen et al., NeurIPS 2022) do: a query is one object, so the decoder learns language only. In each layer the
objects attend to the sentence, then to each other. A learned embedding of the geometry of each pair, seen from the
object and from the viewer, takes part in keys and values (relative positions as in Shaw et al., NAACL 2018; a bias on
attention alone would not pass the distance on). For "the chair closest to the desk" chairs find the desk, read their
distance to it, and compare.

Coordinates are those of a gravity-aligned *reference frame*. ``paper`` uses the world; ``tiny`` and ``base`` use the
viewpoint (origin on the floor below the viewer, x along its heading), so that the answer moves with the world.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from embodied_perceptron.geometry.boxes import rotations
from embodied_perceptron.geometry.compute_path import runs_compiled
from embodied_perceptron.geometry.suppression import QUERY_NMS_IOU, voted_nms
from embodied_perceptron.nn.detection import (
    MIN_SIZE_M,
    DetectionLevel,
    best_scores,
    boxes_from_faces,
    decode_faces,
    decode_offsets,
    label_logits,
)
from embodied_perceptron.nn.graphed import Graphed
from embodied_perceptron.nn.official import CORRECTED, Conventions
from embodied_perceptron.nn.presets import ROTATION_CHANNELS, GroundingConfig
from embodied_perceptron.sparse.tensor import SparseTensor, best_rows

OWN_FEATURES = 17
PAIR_FEATURES = 23
_CANDIDATES = 600  # boxes of a scene that enter suppression: several times the number of objects in a window
_TOKENS = 32  # numbers of tokens of recorded graphs are multiples of this
_ABSENT = -1e4  # logit of absent objects; finite, so that gradients have no NaN


def check_padding(pad: Tensor, what: str) -> None:
    """Raise ``ValueError`` when a row of the (B, N) mask is all padding; on devices only when N is 0."""
    if pad.shape[1] == 0 or (runs_compiled(pad) and bool(pad.all(dim=1).any())):
        raise ValueError(f"grounding needs at least one {what}")


# --------------------------------------------------------------------------------------------------------------------
# queries are voxels


class PositionEncoding(nn.Module):
    """Learned encoding of boxes (9 numbers) or points (3 numbers)."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.expand = nn.Linear(in_channels, channels)
        self.norm = nn.BatchNorm1d(channels)
        self.mix = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, in_channels) -> (B, N, channels)."""
        y = self.expand(x)
        y = self.norm(y.flatten(0, 1)).view_as(y)
        out: Tensor = self.mix(torch.relu(y))
        return out


class TokenAlignment(nn.Module):
    """Alignment of queries and tokens.

    ``projected`` (default, the paper's appendix): three linear layers map both sides into a common space of 64
    channels; cosine similarity over a learned temperature. ``dot`` (the released weights): scaled dot product of the
    decoder's own channels plus a bias.
    """

    def __init__(self, channels: int, kind: Literal["projected", "dot"], common_channels: int = 64) -> None:
        super().__init__()
        self.kind = kind
        self.scale = channels**-0.5
        # -log((1 - p) / p) with p = 0.01: focal loss starts with every pair unlikely
        self.bias = nn.Parameter(torch.tensor([-4.595]))
        if kind == "projected":
            self.query = _three_layers(channels, common_channels)
            self.token = _three_layers(channels, common_channels)
            self.log_inverse_temperature = nn.Parameter(torch.tensor(2.6593))  # 1 / 0.07
        elif kind != "dot":
            raise ValueError(f"kind must be 'projected' or 'dot', got {kind!r}")

    def forward(self, queries: Tensor, tokens: Tensor, token_pad: Tensor) -> Tensor:
        """(B, Q, C), (B, T, C), (B, T) True where padded -> logits (B, Q, T), -inf at padded tokens."""
        if self.kind == "projected":
            q = nn.functional.normalize(self.query(queries), dim=-1)
            t = nn.functional.normalize(self.token(tokens), dim=-1)
            logits = q @ t.transpose(1, 2) * self.log_inverse_temperature.clamp(max=4.6052).exp()  # at most 100
        else:
            logits = queries @ tokens.transpose(1, 2) * self.scale
        return (logits + self.bias).masked_fill(token_pad[:, None, :], float("-inf"))

    def embeddings(self, queries: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """(..., Q, C), (B, T, C) -> both in the common space, not normalised, for contrastive training.

        Raises ``ValueError`` for ``dot``, which has no common space.
        """
        if self.kind != "projected":
            raise ValueError(f"alignment must be projected to have a common space, got {self.kind!r}")
        return self.query(queries), self.token(tokens)


def _three_layers(in_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(in_channels, in_channels),
        nn.ReLU(inplace=True),
        nn.Linear(in_channels, in_channels),
        nn.ReLU(inplace=True),
        nn.Linear(in_channels, out_channels),
    )


class DecoderLayer(nn.Module):
    """Self attention, text attention, visual attention, feed-forward; residual, normalised after each."""

    def __init__(self, channels: int, heads: int, hidden_channels: int) -> None:
        super().__init__()
        self.self_attention = nn.MultiheadAttention(channels, heads, batch_first=True)
        self.text_attention = nn.MultiheadAttention(channels, heads, batch_first=True)
        self.visual_attention = nn.MultiheadAttention(channels, heads, batch_first=True)
        self.feed_forward = nn.Sequential(
            nn.Linear(channels, hidden_channels), nn.ReLU(inplace=True), nn.Linear(hidden_channels, channels)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(4))

    def forward(
        self,
        query: Tensor,
        query_position: Tensor,
        text: Tensor,
        text_pad: Tensor,
        visual: Tensor,
        visual_position: Tensor,
        visual_pad: Tensor,
        position_on_equal_text: bool,
    ) -> Tensor:
        """(B, Q, C) -> (B, Q, C); ``*_pad`` are True at padded entries.

        ``position_on_equal_text``: see :class:`~embodied_perceptron.nn.official.Conventions`.
        """
        q = query + query_position
        query = self.norms[0](query + self.self_attention(q, q, query, need_weights=False)[0])
        keys = text
        if position_on_equal_text and text.shape[1] == query.shape[1]:
            keys = text + query_position
        attended = self.text_attention(
            query + query_position, keys, text, key_padding_mask=text_pad, need_weights=False
        )[0]
        query = self.norms[1](query + attended)
        attended = self.visual_attention(
            query + query_position,
            visual + visual_position,
            visual,
            key_padding_mask=visual_pad,
            need_weights=False,
        )[0]
        query = self.norms[2](query + attended)
        out: Tensor = self.norms[3](query + self.feed_forward(query))
        return out


@dataclass(frozen=True, eq=False)
class GroundingOutput:
    """Output of the decoder; the first axis is layers, of which the last answers.

    Attributes:
        boxes: (L, B, Q, 9) in the reference frame.
        logits: (L, B, Q, T) alignment with every token, -inf at padding.
        hidden: (L, B, Q, C).
        query_valid: (B, Q) False where a scene has fewer candidates than there are queries.
    """

    boxes: Tensor
    logits: Tensor
    hidden: Tensor
    query_valid: Tensor


@dataclass(frozen=True, eq=False)
class VoxelGroundingOutput(GroundingOutput):
    """Output of the decoder over voxels, with the selection of its queries.

    Attributes:
        query_index: (B, Q) rows of the visual input that became queries.
        selection_logits: (B, N, T) alignment of every voxel, by which queries are selected; -inf at padding.
    """

    query_index: Tensor
    selection_logits: Tensor


class GroundingHead(nn.Module):
    """Text-aware query selection, the decoder, the shared box branch and the token alignment.

    Args:
        config: widths, box coder and alignment; a rotation of 6-D or (released weights) Euler angles.
        conventions: of the attention to the text.
    """

    def __init__(self, config: GroundingConfig, conventions: Conventions = CORRECTED) -> None:
        super().__init__()
        if config.box_coder not in ("offsets", "faces"):
            raise ValueError(f"box_coder must be 'offsets' or 'faces', got {config.box_coder!r}")
        channels = config.channels
        self.num_queries = config.num_queries
        self.conventions = conventions
        self.decode = decode_offsets if config.box_coder == "offsets" else decode_faces
        self.text_projection = nn.Linear(config.text_channels, channels)
        self.box_position = PositionEncoding(9, channels)
        self.voxel_position = PositionEncoding(3, channels)
        self.layers = nn.ModuleList(
            DecoderLayer(channels, config.heads, config.hidden_channels) for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(channels)
        self.box_branch = nn.Sequential(
            nn.Linear(channels, channels),
            nn.ReLU(inplace=True),
            nn.Linear(channels, channels),
            nn.ReLU(inplace=True),
            nn.Linear(channels, 6 + ROTATION_CHANNELS[config.rotation]),
        )
        self.alignment = TokenAlignment(channels, config.alignment)

    def forward(
        self, visual: Tensor, coords_m: Tensor, visual_pad: Tensor, tokens: Tensor, token_pad: Tensor
    ) -> VoxelGroundingOutput:
        """Ground sentences in scenes.

        Args:
            visual: (B, N, C) voxel features, N >= 1.
            coords_m: (B, N, 3) their centres in the reference frame.
            visual_pad: (B, N) True at padding; every scene needs at least one real voxel.
            tokens: (B, T, text_channels), T >= 1.
            token_pad: (B, T) True at padding; every sentence needs at least one real token.

        Raises:
            ValueError: a scene without voxels or a sentence without tokens; padding is checked on the CPU only.
        """
        check_padding(visual_pad, "voxel in every scene")
        check_padding(token_pad, "token in every sentence")
        text = self.text_projection(tokens)
        selection = self.alignment(visual, text, token_pad).masked_fill(visual_pad[..., None], float("-inf"))
        best = selection.max(dim=-1).values  # (B, N)
        best = best.masked_fill(best.isnan(), float("-inf"))  # topk would put NaN first
        index = best.topk(min(self.num_queries, visual.shape[1]), dim=1).indices
        query = torch.gather(visual, 1, index[..., None].expand(-1, -1, visual.shape[2]))
        query_coords = torch.gather(coords_m, 1, index[..., None].expand(-1, -1, 3))
        valid = ~torch.gather(visual_pad, 1, index)
        boxes = self.decode(query_coords, self.box_branch(query))
        hidden, refined, logits = self.refine(
            query, query_coords, boxes.detach(), visual, coords_m, visual_pad, text, token_pad
        )
        return VoxelGroundingOutput(refined, logits, hidden, valid, index, selection)

    def embeddings(self, hidden: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Layers' ``hidden`` (L, B, Q, C) and the text encoder's (B, T, text_channels) -> (L, B, Q, D), (B, T, D), see
        :meth:`TokenAlignment.embeddings`."""
        return self.alignment.embeddings(hidden, self.text_projection(tokens))

    def refine(
        self,
        query: Tensor,
        query_coords_m: Tensor,
        boxes: Tensor,
        visual: Tensor,
        coords_m: Tensor,
        visual_pad: Tensor,
        text: Tensor,
        token_pad: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run the decoder on projected ``text`` (B, T, C) and initial ``boxes`` (B, Q, 9).

        Returns:
            hidden (L, B, Q, C), boxes (L, B, Q, 9), logits (L, B, Q, T).
        """
        visual_position = self.voxel_position(coords_m)
        hidden_layers, box_layers, logit_layers = [], [], []
        for layer in self.layers:
            query = layer(
                query,
                self.box_position(boxes),
                text,
                token_pad,
                visual,
                visual_position,
                visual_pad,
                self.conventions.position_on_equal_text,
            )
            hidden = self.norm(query)
            predicted = self.decode(query_coords_m, self.box_branch(query))  # the norm would remove the scale
            hidden_layers.append(hidden)
            box_layers.append(predicted)
            logit_layers.append(self.alignment(hidden, text, token_pad))
            boxes = predicted.detach()  # iterative box refinement: no gradient between layers
        return torch.stack(hidden_layers), torch.stack(box_layers), torch.stack(logit_layers)


# --------------------------------------------------------------------------------------------------------------------
# queries are detected objects


@dataclass(frozen=True, eq=False)
class DetectedObjects:
    """Objects of B scenes, best first, padded to the same number.

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
    """The ``count`` best objects of each scene: boxes after class-agnostic suppression, in which suppressed boxes vote
    on position and size (:func:`~embodied_perceptron.geometry.suppression.voted_nms`). Without gradients.

    Suppression runs on the host, for all scenes after one copy.

    Args:
        levels: raw predictions, finest first.
        features: of the neck at the same sites.
    """
    device = levels[0].class_logits.device
    first = [0, *itertools.accumulate(len(level.sites) for level in levels)]
    logits, geometry = label_logits(levels), torch.cat([level.geometry for level in levels])
    scored = best_scores(logits, geometry[:, :1])
    chosen = []
    for sample in range(levels[0].sites.batch_size):
        rows = np.concatenate(
            [np.arange(*level.sites.bounds[sample : sample + 2]) + n for n, level in zip(first, levels, strict=False)]
        )
        mine = torch.from_numpy(rows).to(device, non_blocking=True)
        chosen.append(mine[best_rows(scored[mine], _CANDIDATES)])  # ascending
    candidates = torch.cat(chosen)
    numbers = geometry[candidates]
    boxes = boxes_from_faces(numbers[:, 1:4], numbers[:, 4:10], numbers[:, 10:])
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
    padded = torch.cat([candidates, candidates.new_full((1,), first[-1])])[table]  # the last row is zeros

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
    """(B, ...) of B scenes -> (S, ...) of their sentences, the same number for each scene."""
    each = sentences // len(values)
    return values if each == 1 else values.repeat_interleave(each, 0, output_size=sentences)


def joined_objects(parts: Sequence[DetectedObjects], count: int) -> DetectedObjects:
    """The ``count`` best valid objects of several parts of one scene in one frame, without padding."""
    together = DetectedObjects(*(torch.cat([getattr(p, f.name) for p in parts], 1) for f in fields(DetectedObjects)))
    order = together.scores[0].argsort(descending=True, stable=True)
    kept = order[together.valid[0, order]][:count]
    return DetectedObjects(*(getattr(together, f.name)[:, kept] for f in fields(DetectedObjects)))


def own_features(boxes: Tensor) -> Tensor:
    """(..., Q, 9) boxes in the viewpoint's frame -> (..., Q, :data:`OWN_FEATURES`) of position, size and rotation."""
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
            # both axes of an upright box are horizontal; squares ignore the sign of an axis
            x**2,
            x * y,
            R[..., 2:, 2] ** 2,
        ],
        dim=-1,
    )


def pair_features(boxes: Tensor) -> Tensor:
    """(..., Q, 9) boxes in the viewpoint's frame -> (..., Q, Q, :data:`PAIR_FEATURES`): [i, j] is j relative to i.

    Offset, distance, vertical gaps and relative size; overlap seen from above; the offset along the axes of either box
    (sides of a sofa); bearing and range as seen by the viewer.
    """
    R = rotations(boxes)
    center, half = boxes[..., :3], _half_extent(boxes, R)

    def to_others(values: Tensor) -> Tensor:
        """(..., Q, n) -> (..., Q, Q, n): values of j minus values of i."""
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
    """(..., Q, 3) half sizes of the axis-aligned bounding boxes; ``R``: rotations of the boxes."""
    half: Tensor = 0.5 * (R.abs() @ boxes[..., 3:6, None])[..., 0]
    return half


class RelativeAttention(nn.Module):
    """Attention among objects whose keys and values include the embedding of each pair."""

    def __init__(self, channels: int, heads: int, pair_channels: int) -> None:
        super().__init__()
        if channels % heads:
            raise ValueError(f"channels must be a multiple of heads, got {channels} and {heads}")
        self.heads = heads
        self.content = nn.Linear(channels, 3 * channels)
        self.asked = nn.Linear(channels, heads * pair_channels)  # queries of the pair embedding
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
        share = logits.masked_fill(~valid[:, None, None], _ABSENT).softmax(dim=-1)  # (S, H, Q, Q)
        seen = (share @ v).transpose(1, 2).flatten(2)  # (S, Q, C)
        shares = share.view(B, S // B, self.heads, Q, Q).permute(0, 3, 1, 2, 4).reshape(B * Q, -1, Q)
        where = (shares @ pairs).view(B, Q, S // B, -1).transpose(1, 2).reshape(S, Q, -1)  # (S, Q, H * E)
        out: Tensor = self.out(seen) + self.read(where)
        return out


class ObjectLayer(nn.Module):
    """Attention to the sentence, attention among objects, feed-forward; residual, normalised before each."""

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
    """Output of the decoder over objects; ``boxes`` are the detected ones in each layer.

    Attributes:
        log_shares: (L, S, 1 + Q, T) log probabilities that each token means no object (row 0) or each of the objects.
            ``logits`` are the log-odds of the objects' probabilities.
    """

    log_shares: Tensor


class ObjectGroundingHead(nn.Module):
    """The decoder over detected objects.

    Args:
        feature_channels, num_classes: of the detection head's neck and classes.
        config: widths.
    """

    def __init__(self, feature_channels: int, num_classes: int, config: GroundingConfig) -> None:
        super().__init__()
        channels = config.channels
        self.appearance = nn.Linear(feature_channels, channels)
        self.appearance_norm = nn.LayerNorm(feature_channels)
        self.kind = nn.Linear(num_classes, channels, bias=False)
        self.place = _two_layers(OWN_FEATURES + 1, channels, channels)
        self.pair = _two_layers(PAIR_FEATURES, 2 * config.pair_channels, config.pair_channels)
        self.text_projection = nn.Linear(config.text_channels, channels)
        widths = channels, config.heads, config.hidden_channels, config.pair_channels
        self.layers = nn.ModuleList(ObjectLayer(*widths) for _ in range(config.layers))
        self.norm = nn.LayerNorm(channels)
        self.query = _two_layers(channels, channels, channels)
        self.token = _two_layers(channels, channels, channels)
        self.nothing = nn.Linear(channels, 1)
        self.graph = Graphed(self._decode, trains=True)

    def forward(self, objects: DetectedObjects, tokens: Tensor, token_pad: Tensor) -> ObjectGroundingOutput:
        """Ground S sentences in B scenes, the same number in each, those of the first scene first.

        Args:
            objects: boxes in the viewpoint's frame.
            tokens: (S, T, text_channels), T >= 1.
            token_pad: (S, T) True at padding; every sentence needs at least one real token (not checked on devices,
                where the output is then NaN).

        Raises:
            ValueError: numbers of sentences and scenes that do not fit, or a sentence without tokens.
        """
        S, B, T = len(tokens), len(objects.boxes), tokens.shape[1]
        if B == 0 or S % B:
            raise ValueError(f"need the same number of sentences for each scene, got {S} sentences for {B} scenes")
        check_padding(token_pad, "token in every sentence")
        more = -T % _TOKENS if self.graph.records(tokens.device) else 0  # few shapes are recorded
        if more:
            tokens = nn.functional.pad(tokens, (0, 0, 0, more))
            token_pad = nn.functional.pad(token_pad, (0, more), value=True)
        given = (getattr(objects, f.name) for f in fields(DetectedObjects))
        logits, hidden, shares = self.graph(*given, tokens, token_pad)
        everywhere = of_sentences(objects.boxes, S).expand(len(shares), -1, -1, -1)
        valid = of_sentences(objects.valid, S)
        return ObjectGroundingOutput(everywhere, logits[..., :T], hidden, valid, shares[..., :T])

    def _decode(self, *given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(L, S, Q, T) logits, (L, S, Q, C) hidden features, (L, S, 1 + Q, T) log shares; ``given``: the fields of the
        objects, tokens, and their padding."""
        *of_objects, tokens, token_pad = given
        objects = DetectedObjects(*of_objects)
        x, text = self._read(objects, tokens)
        valid = of_sentences(objects.valid, len(tokens))
        pairs = self._pairs(objects.boxes)
        token = self.token(text) / math.sqrt(text.shape[-1])
        nothing = self.nothing(text).transpose(1, 2)  # (S, 1, T)
        hidden_layers, share_layers = [], []
        for layer in self.layers:
            x = layer(x, pairs, valid, text, token_pad)
            hidden = self.norm(x)
            hidden_layers.append(hidden)
            share_layers.append(log_shares_of(nothing, self.query(hidden) @ token.transpose(1, 2), valid))
        return self._output(hidden_layers, share_layers, token_pad)

    def _read(self, objects: DetectedObjects, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """(S, Q, C) features of each object, (S, T, C) features of the tokens."""
        own = torch.cat([own_features(objects.boxes), objects.scores[..., None]], -1)
        x = self.appearance(self.appearance_norm(objects.features)) + self.kind(objects.classes.sqrt())
        return of_sentences(x + self.place(own), len(tokens)), self.text_projection(tokens)

    def _pairs(self, boxes: Tensor) -> Tensor:
        """(B, Q, 9) boxes in the viewpoint's frame -> (B, Q, Q, E) embedding of each pair."""
        embedded: Tensor = self.pair(pair_features(boxes))
        return embedded

    def _output(
        self, hidden: Sequence[Tensor], shares: Sequence[Tensor], token_pad: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        every = torch.stack(list(shares))
        mine = every[:, :, 1:]
        logits = (mine - torch.log1p(-mine.exp().clamp(max=1.0 - 1e-6))).masked_fill(
            token_pad[:, None, :], float("-inf")
        )
        return logits, torch.stack(list(hidden)), every


def log_shares_of(nothing: Tensor, fit: Tensor, valid: Tensor) -> Tensor:
    """(S, 1, T) logits that a token means no object, (S, Q, T) logits of the objects, (S, Q) mask of valid objects ->
    (S, 1 + Q, T) log probabilities."""
    shares: Tensor = torch.cat([nothing, fit.masked_fill(~valid[..., None], _ABSENT)], 1).log_softmax(dim=1)
    return shares


def _two_layers(in_channels: int, hidden_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(in_channels, hidden_channels), nn.ReLU(inplace=True), nn.Linear(hidden_channels, out_channels)
    )
