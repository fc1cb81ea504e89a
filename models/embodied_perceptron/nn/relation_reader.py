"""A network that reads which noun of a sentence is its object, which its landmarks, and how they stand to each other.

The first layers of MiniLM, whose weights come as a package, with low-rank adapters (LoRA, arXiv:2106.09685), and over
their token features a transformer layer that scores every ordered pair of nouns for every relation. Only adapters and
head are trained and stored. The layers are computed here and not by ``transformers``, which takes seconds to import:
a sentence is read while its asker waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from embodied_perceptron.nn.minilm import load_minilm, load_trained, trained_parameters
from embodied_perceptron.nn.text_encoder import TextTokenizer, tokens_between

RELATIONS = (
    "closest", "farthest", "above", "below", "on", "supporting", "in", "front", "behind", "left", "right", "between",
)  # fmt: skip
MAX_TOKENS = 64
_LAYERS, _CHANNELS, _INNER, _HEADS = 3, 384, 1536, 12
_RANK = 8  # of the adapters
_WIDTH = 96  # of the head
_IMPOSSIBLE = -1e4

Span = tuple[int, int]


@dataclass(frozen=True, eq=False)
class NounBatch:
    """Tokenized sentences with their nouns.

    Attributes:
        ids: (B, T) int64 token ids, 0 at padding.
        pad: (B, T) bool, True at padding.
        nouns: (B, M, T) float32, 1 where a token belongs to a noun; all 0 = no such noun.
    """

    ids: torch.Tensor
    pad: torch.Tensor
    nouns: torch.Tensor


class _Adapted(nn.Linear):
    """A frozen linear layer with a trained low-rank term."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(_RANK, inputs) * 0.02)
        self.up = nn.Parameter(torch.zeros(outputs, _RANK))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + (x @ self.down.T) @ self.up.T


class _Layer(nn.Module):
    """A layer of BERT."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.value = _Adapted(_CHANNELS, _CHANNELS), _Adapted(_CHANNELS, _CHANNELS)
        self.key = nn.Linear(_CHANNELS, _CHANNELS).requires_grad_(False)
        self.attended = _Adapted(_CHANNELS, _CHANNELS)
        self.inner, self.outer = _Adapted(_CHANNELS, _INNER), _Adapted(_INNER, _CHANNELS)
        self.norm = nn.LayerNorm(_CHANNELS, eps=1e-12).requires_grad_(False)
        self.last_norm = nn.LayerNorm(_CHANNELS, eps=1e-12).requires_grad_(False)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        """(B, T, C) features and (B, 1, 1, T) bool of the tokens that may be attended to -> (B, T, C)."""
        q, k, v = (
            part(x).unflatten(2, (_HEADS, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )  # (B, H, T, C / H)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        x = self.norm(x + self.drop(self.attended(mixed.transpose(1, 2).flatten(2))))
        y: torch.Tensor = self.last_norm(x + self.drop(self.outer(nn.functional.gelu(self.inner(x)))))
        return y


class RelationReader(nn.Module):
    """See the module. :meth:`load_minilm` must give it the fixed weights before it is of use."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30522, _CHANNELS).requires_grad_(False)
        self.places = nn.Embedding(512, _CHANNELS).requires_grad_(False)
        self.segment = nn.Parameter(torch.zeros(_CHANNELS), requires_grad=False)
        self.norm = nn.LayerNorm(_CHANNELS, eps=1e-12).requires_grad_(False)
        self.layers = nn.ModuleList(_Layer() for _ in range(_LAYERS))
        self.narrow = nn.Linear(_CHANNELS, _WIDTH)
        self.is_noun = nn.Parameter(torch.zeros(_WIDTH))
        self.mix = nn.TransformerEncoderLayer(_WIDTH, 4, 2 * _WIDTH, 0.2, batch_first=True, norm_first=True)
        self.as_target, self.as_anchor = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.as_whole = nn.Linear(_WIDTH, _WIDTH)
        self.relation, self.nothing = nn.Linear(_WIDTH, len(RELATIONS)), nn.Linear(_WIDTH, 1)
        self.drop = nn.Dropout(0.2)
        self.tokenizer: TextTokenizer | None = None

    def load_minilm(self) -> RelationReader:
        """Take the fixed weights and the tokenizer from MiniLM's package.

        Raises ``FileNotFoundError`` where it is not installed, ``ValueError`` when its weights are not the known ones.
        """
        self.tokenizer = load_minilm(self, "words", _LAYERS, MAX_TOKENS)
        return self

    def batch(self, texts: Sequence[str], nouns: Sequence[Sequence[Span]]) -> NounBatch:
        """Sentences and, of each, the characters [start, end) of its nouns."""
        if self.tokenizer is None:
            raise RuntimeError("the reader has no weights yet: call load_minilm first")
        tokens = self.tokenizer(texts)
        most = max((len(spans) for spans in nouns), default=0)
        where = torch.zeros(len(texts), most, tokens.ids.shape[1])
        for b, spans in enumerate(nouns):
            for k, (start, end) in enumerate(spans):
                where[b, k] = tokens_between(tokens.spans[b], start, end)
        return NounBatch(tokens.ids, tokens.mask == 0, where)

    def forward(self, batch: NounBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits: (B, M, M, R) that a noun stands in a relation to another one, and (B, 1) that none is told.

        Those of a noun to itself and of nouns that are none are very low.
        """
        x = self.words(batch.ids) + self.places.weight[: batch.ids.shape[1]] + self.segment
        x, keep = self.norm(x), ~batch.pad
        for layer in self.layers:
            x = layer(x, keep[:, None, None])
        x = self.narrow(self.drop(x)) + batch.nouns.sum(dim=1).clamp(max=1)[..., None] * self.is_noun  # (B, T, W)
        x = self.mix(x, src_key_padding_mask=batch.pad)
        whole = (x * keep[..., None]).sum(dim=1) / keep.sum(dim=1, keepdim=True)
        count = batch.nouns.sum(dim=2, keepdim=True)
        nouns = batch.nouns @ x / count.clamp(min=1)  # (B, M, W)
        pairs = self.as_target(nouns)[:, :, None] + self.as_anchor(nouns)[:, None] + self.as_whole(whole)[:, None, None]
        logits = self.relation(self.drop(pairs.relu()))
        there = count[..., 0] > 0
        valid = there[:, :, None] & there[:, None] & ~torch.eye(nouns.shape[1], dtype=torch.bool)
        return logits.masked_fill(~valid[..., None], _IMPOSSIBLE), self.nothing(self.drop(whole.relu()))

    def trained(self) -> dict[str, torch.Tensor]:
        """The weights that are trained and stored."""
        return trained_parameters(self)

    def load_trained(self, path: str | Path) -> RelationReader:
        """Take the trained weights from a safetensors file.

        Raises ``OSError`` when it cannot be read, ``ValueError`` when it holds other weights than these.
        """
        load_trained(self, path, "relation reader")
        return self


def probabilities(pairs: torch.Tensor, nothing: torch.Tensor) -> torch.Tensor:
    """Logits (B, M, M, R), (B, 1) of :class:`RelationReader` -> (B, M, M, R); what is missing to 1 is for none."""
    both = torch.cat([pairs.flatten(1), nothing], dim=1).softmax(dim=1)
    return both[:, :-1].reshape(pairs.shape)
