"""Sentence network: the role of each word, and the relations between words.

All layers of MiniLM, whose weights come as a package, with low-rank adapters (LoRA, arXiv:2106.09685). Linear heads
over its word features give the intent of the sentence, the role of each word and its negation; biaffine scores of pairs
of words (arXiv:1611.01734) give the object that a word describes, the object that it relates to, and coreference. Only
adapters and heads are trained and stored; after loading, adapters are merged into the layers. The layers are computed
here and not by ``transformers``, which takes seconds to import.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from embodied_perceptron.nn.text_encoder import TextTokenizer, load_minilm, load_trained, trained_parameters

MAX_TOKENS = 256
_LAYERS, _CHANNELS, _INNER, _HEADS = 6, 384, 1536, 12
_RANK = 24  # of the adapters
_WIDTH = 128  # of the biaffine scores
ARCS = ("owner", "other", "same")

Span = tuple[int, int]


@dataclass(frozen=True, eq=False)
class WordBatch:
    """Tokenized sentences and their words.

    Attributes:
        ids: (B, T) int64 token ids, 0 at padding.
        pad: (B, T) bool, True at padding.
        words: (B, W, T) float32 weights of the tokens of each word; all 0 = no such word.
    """

    ids: torch.Tensor
    pad: torch.Tensor
    words: torch.Tensor


@dataclass(frozen=True, eq=False)
class Scores:
    """Logits of a batch.

    Attributes:
        intent: (B, I).
        parts: (B, W, 1 + 2 K): no role, first word of each role, further word of each role.
        denied: (B, W) negation of the attribute of a word.
        arcs: for each of :data:`ARCS` (B, W, 1 + W): from each word to no word, and to each word.
    """

    intent: torch.Tensor
    parts: torch.Tensor
    denied: torch.Tensor
    arcs: dict[str, torch.Tensor]


class _Adapted(nn.Linear):
    """A frozen linear layer with a trained low-rank term."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(_RANK, inputs) * inputs**-0.5)
        self.up = nn.Parameter(torch.zeros(outputs, _RANK))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + nn.functional.linear(nn.functional.linear(x, self.down), self.up)

    def merged(self) -> nn.Linear:
        """The layer with the low-rank term added to its weights."""
        layer = nn.Linear(self.in_features, self.out_features)
        layer.weight = nn.Parameter(self.weight + self.up @ self.down, requires_grad=False)
        layer.bias = self.bias
        return layer


class _Layer(nn.Module):
    """A layer of BERT."""

    def __init__(self, drop: float) -> None:
        super().__init__()
        self.query, self.key, self.value = (_Adapted(_CHANNELS, _CHANNELS) for _ in range(3))
        self.attended = _Adapted(_CHANNELS, _CHANNELS)
        self.inner, self.outer = _Adapted(_CHANNELS, _INNER), _Adapted(_INNER, _CHANNELS)
        self.norm = nn.LayerNorm(_CHANNELS, eps=1e-12).requires_grad_(False)
        self.last_norm = nn.LayerNorm(_CHANNELS, eps=1e-12).requires_grad_(False)
        self.drop = nn.Dropout(drop)

    def forward(self, x: torch.Tensor, keep: torch.Tensor | None) -> torch.Tensor:
        """(B, T, C) features, (B, 1, 1, T) bool mask of attended tokens (None = all) -> (B, T, C)."""
        q, k, v = (
            part(x).unflatten(2, (_HEADS, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )  # (B, H, T, C / H)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        x = self.norm(x + self.drop(self.attended(mixed.transpose(1, 2).flatten(2))))
        y: torch.Tensor = self.last_norm(x + self.drop(self.outer(nn.functional.gelu(self.inner(x)))))
        return y


class _Arcs(nn.Module):
    """Biaffine scores of pairs of words, and of each word with no word."""

    def __init__(self, drop: float) -> None:
        super().__init__()
        self.tail, self.head = nn.Linear(_CHANNELS, _WIDTH), nn.Linear(_CHANNELS, _WIDTH)
        self.weight = nn.Parameter(torch.randn(_WIDTH, _WIDTH) * _WIDTH**-0.5)
        self.bias = nn.Linear(_WIDTH, 1)
        self.nobody = nn.Linear(_WIDTH, 1)
        self.drop = nn.Dropout(drop)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, W, C) -> (B, W, 1 + W)."""
        tail, head = self.drop(nn.functional.gelu(self.tail(x))), self.drop(nn.functional.gelu(self.head(x)))
        pairs = tail @ self.weight @ head.transpose(1, 2) + self.bias(head).transpose(1, 2)
        return torch.cat([self.nobody(tail), pairs], dim=2)


class SentenceNetwork(nn.Module):
    """See the module. Call :meth:`load_minilm` first, which loads the fixed weights.

    Args:
        intents: I, number of intents.
        kinds: K, number of roles of words.
        drop: dropout in training.
    """

    def __init__(self, intents: int, kinds: int, drop: float = 0.1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30522, _CHANNELS).requires_grad_(False)
        self.places = nn.Embedding(512, _CHANNELS).requires_grad_(False)
        self.segment = nn.Parameter(torch.zeros(_CHANNELS), requires_grad=False)
        self.norm = nn.LayerNorm(_CHANNELS, eps=1e-12).requires_grad_(False)
        self.layers = nn.ModuleList(_Layer(drop) for _ in range(_LAYERS))
        self.kind = nn.Linear(_CHANNELS, kinds)
        self.place = nn.Linear(_CHANNELS, 3)  # no role, first word, further word
        self.intent = nn.Linear(2 * _CHANNELS, intents)
        self.denied = nn.Linear(_CHANNELS, 1)
        self.arcs = nn.ModuleDict({name: _Arcs(2 * drop) for name in ARCS})
        self.drop = nn.Dropout(2 * drop)
        self.tokenizer: TextTokenizer | None = None

    def load_minilm(self) -> SentenceNetwork:
        """Load the fixed weights and the tokenizer from MiniLM's package.

        Raises ``FileNotFoundError`` when it is not installed, ``ValueError`` when its weights are not the known ones.
        """
        self.tokenizer = load_minilm(self, "embedding", _LAYERS, MAX_TOKENS)
        return self

    def batch(self, texts: Sequence[str], words: Sequence[Sequence[Span]]) -> WordBatch:
        """Batch of sentences with the characters [start, end) of their words."""
        if self.tokenizer is None:
            raise RuntimeError("the network has no weights: call load_minilm first")
        tokens = self.tokenizer(texts)
        count, most = tokens.ids.shape[1], max((len(spans) for spans in words), default=0)
        share = torch.zeros(len(texts), most, count)
        for b, spans in enumerate(words):
            if not spans:
                continue
            first, last = tokens.spans[b].unbind(dim=1)
            start, end = torch.tensor(spans).unbind(dim=1)
            inside = (first < end[:, None]) & (last > start[:, None]) & (last > first)
            share[b, : len(spans)] = inside.float()
        share /= share.sum(dim=2, keepdim=True).clamp(min=1.0)
        return WordBatch(tokens.ids, tokens.mask == 0, share)

    def features(self, batch: WordBatch, layers: Iterable[nn.Module] | None = None) -> torch.Tensor:
        """(B, T, C) features of the tokens; ``layers``: others than the network's own."""
        embedded = self.embedding(batch.ids) + self.places.weight[: batch.ids.shape[1]] + self.segment
        x: torch.Tensor = self.norm(embedded)
        keep = ~batch.pad[:, None, None] if batch.pad.any() else None
        for layer in self.layers if layers is None else layers:
            x = layer(x, keep)
        return x

    def forward(self, batch: WordBatch) -> Scores:
        """Logits of intents, roles, negations and arcs."""
        x = self.features(batch).float()
        keep = ~batch.pad
        mean = (x * keep[..., None]).sum(dim=1) / keep.sum(dim=1, keepdim=True)
        intent = self.intent(self.drop(torch.cat([x[:, 0], mean], dim=1)))
        words = self.drop(batch.words @ x)  # (B, W, C)
        kind, place = self.kind(words), self.place(words)
        parts = torch.cat([place[..., :1], kind + place[..., 1:2], kind + place[..., 2:3]], dim=2)
        arcs = {name: score(words) for name, score in self.arcs.items()}
        return Scores(intent, parts, self.denied(words)[..., 0], arcs)

    def trained(self) -> dict[str, torch.Tensor]:
        """The trained weights, which are stored."""
        return trained_parameters(self)

    def load_trained(self, path: str | Path) -> SentenceNetwork:
        """Load the trained weights from a safetensors file.

        Raises ``OSError`` when it cannot be read, ``ValueError`` when it has other weights.
        """
        load_trained(self, path, "sentence network")
        return self

    def merge(self) -> SentenceNetwork:
        """Merge the adapters into the layers for speed; the network can no longer be trained or stored."""
        self.layers = merged(self.layers)
        return self.eval()


def merged(layers: Iterable[nn.Module]) -> nn.ModuleList:
    """Copies of layers, with the adapters merged into their weights."""
    copies = nn.ModuleList(copy.deepcopy(layer) for layer in layers)
    for layer in copies:
        for name, part in list(layer.named_children()):
            if isinstance(part, _Adapted):
                setattr(layer, name, part.merged())
    return copies.eval()
