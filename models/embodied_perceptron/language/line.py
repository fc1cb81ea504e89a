"""Words of a sentence as one line of text, in which patterns are looked for."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from embodied_perceptron.language.lexicon import Word


@dataclass
class Line:
    """Words, and the same joined by spaces, in which patterns are looked for."""

    words: list[Word]
    joined: str = field(init=False)
    starts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.joined = " ".join(w.text for w in self.words)
        self.starts, at = [], 0
        for word in self.words:
            self.starts.append(at)
            at += len(word.text) + 1

    def word_at(self, character: int) -> int:
        """The first word that begins at or after a character of :attr:`joined`."""
        return next((i for i, start in enumerate(self.starts) if start >= character), len(self.words))

    def without(self, first: int, last: int) -> Line:
        return Line(self.words[:first] + self.words[last:])

    def begins(self, pattern: str) -> int:
        """How many words from the start a pattern takes, that ends with a word or a space; 0 = it does not match."""
        match = re.match(rf"(?:{pattern})(?:(?<= )|(?![\w'-]))", self.joined)
        return 0 if match is None or match.end() == 0 else self.word_at(match.end())
