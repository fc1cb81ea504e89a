"""A query about the map: the sentence, how to answer it, and its meaning; the checks that every text passes."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.config import SentenceReading
from embodied_perceptron.language.learned.reading import read_meaning
from embodied_perceptron.language.meaning import Meaning
from embodied_perceptron.language.state_words import with_states
from embodied_perceptron.results import GroundedPhrase, Grounding, GroundingStatus, SceneObject

DEFAULT_TOP_K = 5
MAX_QUERY_CHARACTERS = 1_000  # the longest human sentence of the public grounding sets has about 600


@dataclass(frozen=True)
class Query:
    """One query, from its arrival to its answer.

    Attributes:
        text: the sentence.
        top_k: at most so many candidates; None = the default of whoever answers (:data:`DEFAULT_TOP_K`).
        viewpoint: (4, 4) pose of the speaker in the world, a camera's or a robot's; None = unknown.
        frame_id: of the answer; empty = the node's output frame.
        id: the asker's, or made by the node; may be empty.
        standing: answer again when the answer changes.
        cancel: end the standing query ``id`` instead of asking.
        stamp_ns: the time that the viewpoint belongs to; 0 = arrival.
        arrived_s: ``time.monotonic()`` of arrival, from which the latency of the answer counts.
        meaning: of the text; None until :meth:`parsed`.

    Raises ``ValueError`` for top_k below 1.
    """

    text: str
    top_k: int | None = None
    viewpoint: NDArray[np.float64] | None = field(default=None, compare=False)
    frame_id: str = ""
    id: str = ""
    standing: bool = False
    cancel: bool = False
    stamp_ns: int = 0
    arrived_s: float = field(default_factory=time.monotonic, compare=False)
    meaning: Meaning | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {self.top_k}")

    @classmethod
    def of(cls, query: Query | str, viewpoint: NDArray[np.float64] | None = None) -> Query:
        """``query`` itself, or one with that text; from ``viewpoint`` unless it has its own."""
        if not isinstance(query, Query):
            return cls(query, viewpoint=viewpoint)
        return query if viewpoint is None or query.viewpoint is not None else replace(query, viewpoint=viewpoint)

    def parsed(self, labels: Iterable[str], reader: SentenceReading = "learned") -> Query:
        """With its meaning; ``labels`` of the scene count as nouns. Itself when it is parsed or cannot be read.

        ``reader``: see :func:`~.learned.reading.read_meaning`.
        """
        if self.meaning is not None or query_problem(self.text):
            return self
        return replace(self, meaning=with_states(read_meaning(self.text, labels, reader)))

    def answer(
        self,
        status: GroundingStatus,
        candidates: tuple[SceneObject, ...] = (),
        reason: str = "",
        tagged_text: str = "",
        count: int | None = None,
        phrases: tuple[GroundedPhrase, ...] = (),
        nearest: tuple[SceneObject, ...] = (),
    ) -> Grounding:
        """The answer, given now: its latency is the time since arrival."""
        latency_ms = (time.monotonic() - self.arrived_s) * 1e3
        text = printable_query(self.text)
        return Grounding(text, status, candidates, reason, tagged_text, latency_ms, count, phrases, nearest)


def query_problem(text: object) -> str:
    """Why ``text`` cannot be answered, in words; empty when it can.

    Leading and trailing white space is allowed; a control character elsewhere, an unpaired surrogate (which no message
    can carry), nothing but white space, and more than ``MAX_QUERY_CHARACTERS`` are not.
    """
    if not isinstance(text, str):
        return f"the query must be text, got {type(text).__name__}"
    if len(text) > MAX_QUERY_CHARACTERS:  # first: nothing below may walk over megabytes
        return f"the query has {len(text)} characters, at most {MAX_QUERY_CHARACTERS} are allowed"
    words = text.strip()
    if not words:
        return "the query is empty"
    for position, character in enumerate(words):
        if unicodedata.category(character) in ("Cc", "Cs"):
            return f"the query has the control character U+{ord(character):04X} at position {position}"
    return ""


def printable_query(text: object) -> str:
    """``text`` as an answer may repeat it: short, without control characters, encodable."""
    shown = text if isinstance(text, str) else repr(text)
    if len(shown) > MAX_QUERY_CHARACTERS:
        shown = shown[: MAX_QUERY_CHARACTERS - 1] + "…"
    return "".join("�" if unicodedata.category(c) in ("Cc", "Cs") else c for c in shown.strip())
