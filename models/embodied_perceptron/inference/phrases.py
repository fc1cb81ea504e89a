"""Phrases of sentences: the tokens that name them, and their candidates from the grounding decoder's output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embodied_perceptron.geometry.boxes import nms
from embodied_perceptron.geometry.manhattan import ManhattanFrame
from embodied_perceptron.nn.grounding import GroundingOutput
from embodied_perceptron.nn.text_encoder import tokens_between

Phrase: TypeAlias = "tuple[int, int] | None"  # [start, end) characters; None = the sentence as a whole
Sentences: TypeAlias = Sequence[tuple[str, Sequence[Phrase]]]  # each with its phrases


@dataclass(frozen=True, eq=False)
class PhraseCandidates:
    """Where one phrase of a sentence may be, best first.

    Attributes:
        phrase: of the sentence.
        boxes: (K, 9) float64, world frame.
        scores: (K,) float64 in [0, 1].
    """

    phrase: Phrase
    boxes: NDArray[np.float64]
    scores: NDArray[np.float64]


def phrase_tokens(spans: Sequence[Tensor] | Tensor, sentences: Sentences) -> list[list[Tensor]]:
    """(T,) bool for each phrase of each sentence: the tokens that name it; ``spans`` (S, T, 2) characters of tokens.

    Raises ``ValueError`` for a phrase outside of its text or without any token.
    """
    return [
        [_tokens(own, phrase, text) for phrase in phrases]
        for own, (text, phrases) in zip(spans, sentences, strict=True)
    ]


def _tokens(spans: Tensor, phrase: Phrase, text: str) -> Tensor:
    """(T,) bool tokens of a phrase; ``spans`` (T, 2)."""
    start, end = (0, len(text)) if phrase is None else phrase
    if not 0 <= start <= end <= len(text):
        raise ValueError(f"phrase {phrase} is outside of the text of {len(text)} characters")
    tokens = tokens_between(spans, start, end)
    if not bool(tokens.any()):
        shown = text[start : min(end, start + 40)]
        raise ValueError(f"phrase {(start, end)} {shown!r} has no token; the encoder read up to {int(spans.max())}")
    return tokens


def no_candidates(sentences: Sentences) -> list[list[PhraseCandidates]]:
    """For a scene that holds nothing."""
    return [[PhraseCandidates(p, np.zeros((0, 9)), np.zeros(0)) for p in phrases] for _, phrases in sentences]


def ranked(
    out: GroundingOutput,
    sentences: Sentences,
    named: Sequence[Sequence[Tensor]],
    limit: int,
    iou_threshold: float,
    manhattan: ManhattanFrame,
) -> list[list[PhraseCandidates]]:
    """The decoder's output as candidates for each phrase of each sentence, best first; boxes from ``manhattan`` to the
    world.

    Args:
        out: of the decoder, one row per sentence.
        sentences, named: with their phrases, and the tokens of each (:func:`phrase_tokens`).
        limit: candidates per phrase.
        iou_threshold: of two candidates that overlap more, the better stays.
        manhattan: wall-aligned frame of the decoder's boxes.
    """
    results = []
    for row, ((_, phrases), tokens) in enumerate(zip(sentences, named, strict=True)):
        valid = out.query_valid[row]
        boxes, probability = out.boxes[-1, row][valid], out.logits[-1, row][valid].sigmoid()  # (Q, 9), (Q, T)
        results.append(
            [
                _candidates(phrase, boxes, probability[:, words.to(boxes.device)], limit, iou_threshold, manhattan)
                for phrase, words in zip(phrases, tokens, strict=True)
            ]
        )
    return results


def _candidates(
    phrase: Phrase, boxes: Tensor, words: Tensor, limit: int, iou_threshold: float, manhattan: ManhattanFrame
) -> PhraseCandidates:
    """(Q, 9) boxes and (Q, W) probabilities of the phrase's tokens -> what remains, best first."""
    scores = words.amax(1) if phrase is None else words.mean(1)
    keep = nms(boxes, scores, torch.zeros_like(scores, dtype=torch.int64), iou_threshold)[:limit]
    there = manhattan.boxes_to_world(boxes[keep].double().cpu().numpy())
    return PhraseCandidates(phrase, there, scores[keep].double().cpu().numpy())
