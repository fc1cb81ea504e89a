"""Language grounding: text-aware query selection and a decoder that refines boxes layer by layer.

EmbodiedScan paper, section 4.3 and appendix: the voxels that match some word best become queries; each of six layers
attends among the queries, to the words and to the voxels; the position encoding of a query is made from the 9-D box
that the layer before predicted; one box branch is shared by all layers; the answer to a word is the query whose
embedding aligns best with it.

Coordinates are those of a gravity-aligned *reference frame*. ``paper`` uses the world; ``tiny`` and ``base`` use the
viewpoint (origin on the floor below the camera, x along its heading), so that the answer moves with the world.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from embodied_perceptron.geometry.compute_path import runs_compiled
from embodied_perceptron.nn.detection import decode_faces, decode_offsets
from embodied_perceptron.nn.official import CORRECTED, Conventions

BoxCoder = Literal["offsets", "faces"]


def check_padding(pad: Tensor, what: str) -> None:
    """Raise ``ValueError`` when a row of the (B, N) mask is all padding; on devices only when N is 0."""
    if pad.shape[1] == 0 or (runs_compiled(pad) and bool(pad.all(dim=1).any())):
        raise ValueError(f"grounding needs at least one {what}")


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
    """How well each query fits each token.

    ``projected`` (default, the paper's appendix): both sides go through three linear layers into a common space of
    64 channels; cosine similarity over a learned temperature. ``dot`` (the released weights): scaled dot product of
    the decoder's own channels plus a bias.
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
        """(..., Q, C), (B, T, C) -> both in the common space, not normalised: what contrastive training aligns.

        Raises ``ValueError`` for ``dot``, which has no common space.
        """
        if self.kind != "projected":
            raise ValueError("only the projected alignment has a space in which queries and tokens are compared")
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
    """Output of the decoder; layers are stacked first, the last layer answers.

    Attributes:
        boxes: (L, B, Q, 9) in the reference frame.
        logits: (L, B, Q, T) alignment with every token, -inf at padding.
        hidden: (L, B, Q, C).
        query_valid: (B, Q) False where a scene had less to offer than there are queries.
    """

    boxes: Tensor
    logits: Tensor
    hidden: Tensor
    query_valid: Tensor


@dataclass(frozen=True, eq=False)
class VoxelGroundingOutput(GroundingOutput):
    """Output of the decoder over voxels, with the choice of its queries.

    Attributes:
        query_index: (B, Q) rows of the visual input that became queries.
        selection_logits: (B, N, T) alignment of every voxel, from which queries were chosen; -inf at padding.
    """

    query_index: Tensor
    selection_logits: Tensor


class GroundingHead(nn.Module):
    """Text-aware query selection, the decoder, the shared box branch and the token alignment.

    Args:
        channels: of visual features and of the decoder.
        text_channels: of the text encoder's token features.
        num_queries: voxels that become queries.
        layers, heads, hidden_channels: of the decoder.
        box_coder: ``offsets`` (centre offset, log size) or ``faces`` (log face distances).
        regression_channels: 12 = 6-D rotation (default), 9 = Euler angles (released weights).
        alignment: see :class:`TokenAlignment`.
        conventions: of the attention to the text.
    """

    def __init__(
        self,
        channels: int,
        text_channels: int,
        num_queries: int = 256,
        layers: int = 6,
        heads: int = 8,
        hidden_channels: int = 2048,
        box_coder: BoxCoder = "offsets",
        regression_channels: int = 12,
        alignment: Literal["projected", "dot"] = "projected",
        conventions: Conventions = CORRECTED,
    ) -> None:
        super().__init__()
        if regression_channels not in (9, 12):
            raise ValueError(f"regression_channels must be 9 or 12, got {regression_channels}")
        if box_coder not in ("offsets", "faces"):
            raise ValueError(f"box_coder must be 'offsets' or 'faces', got {box_coder!r}")
        self.num_queries = num_queries
        self.conventions = conventions
        self.decode = decode_offsets if box_coder == "offsets" else decode_faces
        self.text_projection = nn.Linear(text_channels, channels)
        self.box_position = PositionEncoding(9, channels)
        self.voxel_position = PositionEncoding(3, channels)
        self.layers = nn.ModuleList(DecoderLayer(channels, heads, hidden_channels) for _ in range(layers))
        self.norm = nn.LayerNorm(channels)
        self.box_branch = nn.Sequential(
            nn.Linear(channels, channels),
            nn.ReLU(inplace=True),
            nn.Linear(channels, channels),
            nn.ReLU(inplace=True),
            nn.Linear(channels, regression_channels),
        )
        self.alignment = TokenAlignment(channels, alignment)

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
            ValueError: a scene without voxels or a sentence without tokens; padding is looked at on the CPU alone.
        """
        check_padding(visual_pad, "voxel in every scene")
        check_padding(token_pad, "token in every sentence")
        text = self.text_projection(tokens)
        selection = self.alignment(visual, text, token_pad).masked_fill(visual_pad[..., None], float("-inf"))
        best = selection.max(dim=-1).values  # (B, N)
        best = best.masked_fill(best.isnan(), float("-inf"))  # which topk would put first
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
        """The decoder alone: projected ``text`` (B, T, C) and initial ``boxes`` (B, Q, 9) in, everything per layer out.

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
            predicted = self.decode(query_coords_m, self.box_branch(query))  # before the norm: it scales boxes away
            hidden_layers.append(hidden)
            box_layers.append(predicted)
            logit_layers.append(self.alignment(hidden, text, token_pad))
            boxes = predicted.detach()  # each layer learns its own refinement (as in iterative box refinement)
        return torch.stack(hidden_layers), torch.stack(box_layers), torch.stack(logit_layers)
