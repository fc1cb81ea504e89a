"""What the patterns of the parser leave unread, read by a network: sentences in forms that nobody wrote down.

"The lamp is on speaking terms with the couch" has no word that the table of relations knows. A network over the first
layers of MiniLM (:mod:`~embodied_perceptron.nn.relation_reader`) says which noun is meant, which are its landmarks, and
how they stand to each other; the sentence is then told in words that the parser knows, "the lamp closest to the couch".
It is asked only where patterns leave a noun or a word unread, of sentences with two or three things, and believed only
where it is sure. Where the package of MiniLM is not installed, such sentences are read by the patterns alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch

from embodied_perceptron.language.lexicon import Mention, Word, lexicon, relation_words, split_words, word_set
from embodied_perceptron.language.plain import rewrite_plainly
from embodied_perceptron.language.wording import corrected
from embodied_perceptron.nn.relation_reader import RELATIONS, RelationReader, probabilities

_LOG = logging.getLogger(__name__)
WEIGHTS = Path(__file__).parent / "lexicon" / "relation_reader.safetensors"
MOST_WORDS = 18  # longer ones are descriptions of a room
FEW_WORDS = 12  # longer ones may be descriptions: a condition that was read gives way only to a surer reading
SURE = 0.5  # probability from which a reading stands where a noun is left unread
SURE_OF_ANOTHER = 0.5  # the same, where it is about another object than the patterns found, which read no relation
SURER = 0.94  # and where the patterns have read another relation of the object
SUREST = 0.98  # and where they have read a relation of another object
SUREST_OF_ALL = 0.9995  # and where the words that they have read stand between both
_MOST_CONDITIONS = 1  # where the patterns have read more, a guess loses more than it wins

Span = tuple[int, int]

_CONVERSE = {  # the relation of the other one of two things
    "closest": "closest", "farthest": "farthest", "on": "supporting", "supporting": "on", "above": "below",
    "below": "above", "left": "right", "right": "left", "front": "behind", "behind": "front",
}  # fmt: skip
_SAID = {
    "closest": "closest to", "farthest": "farthest from", "above": "above", "below": "below", "on": "on top of",
    "supporting": "supporting", "in": "inside", "front": "in front of", "behind": "behind",
    "left": "to the left of", "right": "to the right of", "between": "between",
}  # fmt: skip
_OF_PLACE = frozenset(
    (
        "far", "farther", "further", "away", "apart", "back", "front", "end", "side", "edge", "nowhere", "nothing",
        "behind",
    )
)  # fmt: skip
_LIGHT_SETS = (
    "prepositions", "orders", "adjectives", "determiners", "openers", "expletives", "no_nouns", "request_words",
)  # fmt: skip
_NO_PLACE = frozenset(  # of nothing that the map knows, or short forms of light words
    (
        "north", "south", "east", "west", "northeast", "northwest", "southeast", "southwest", "northern", "southern",
        "eastern", "western", "that's", "it's", "there's", "which's", "who's", "what's", "its", "they're",
    )
)  # fmt: skip
_LIGHT = frozenset[str]().union(*map(word_set, _LIGHT_SETS)) - _OF_PLACE | _NO_PLACE
_ARTICLES = word_set("articles") | word_set("determiners")
_PREPOSITIONS = word_set("prepositions")
_MOST_ATTRIBUTES = 3
_ALIKE = {"near": "closest", "with": "supporting", "across": "front"}  # what patterns call a relation of the network


@dataclass(frozen=True)
class Reading:
    """What a sentence says of two or three of its nouns.

    Attributes:
        relation: one of :data:`~embodied_perceptron.nn.relation_reader.RELATIONS`.
        target, anchors: of the nouns that were given; two anchors of "between", else one.
        probability: that this is what is said.
    """

    relation: str
    target: int
    anchors: tuple[int, ...]
    probability: float


class SentenceReader:
    """Reads relations with a network that has its weights."""

    def __init__(self, network: RelationReader) -> None:
        self.network = network.eval()

    def read(self, text: str, nouns: Sequence[Span], names: Sequence[str]) -> Reading | None:
        """The likeliest reading of ``text``, or None when it says nothing of its nouns or two are not named.

        Args:
            nouns: characters [start, end) of each.
            names: what each is called; the same name means the same thing.
        """
        if len(set(names)) < 2:
            return None
        with torch.inference_mode():
            chance = probabilities(*self.network(self.network.batch([text], [nouns])))[0]  # (M, M, R)
        kinds = list(dict.fromkeys(names))
        member = torch.tensor([[float(name == kind) for name in names] for kind in kinds])  # (K, M)
        chance = torch.einsum("km,mnr,ln->klr", member, chance, member)  # (K, K, R)
        chance[range(len(kinds)), range(len(kinds))] = 0.0
        target, anchor, relation = (int(i) for i in torch.unravel_index(chance.argmax(), chance.shape))
        anchors, likely = [anchor], float(chance[target, anchor, relation])
        if RELATIONS[relation] == "between":
            if len(kinds) < 3:
                return None
            anchors = [k for k in range(len(kinds)) if k != target][:2]
            likely = float(chance[target, :, relation].sum())
        if likely < 1.0 - float(chance.sum()):
            return None
        first = [names.index(kind) for kind in kinds]
        return Reading(RELATIONS[relation], first[target], tuple(first[k] for k in anchors), likely)


@lru_cache(maxsize=1)
def sentence_reader() -> SentenceReader | None:
    """The shipped reader, loaded once (half a second); None where MiniLM's package is missing or not the known one."""
    try:
        network = RelationReader().load_minilm().load_trained(WEIGHTS)
    except (ImportError, OSError, ValueError) as error:
        _LOG.warning("sentences in forms that no pattern knows stay unread: %s", error)
        return None
    return SentenceReader(network)


@dataclass(frozen=True)
class PatternReading:
    """What the patterns made of a sentence: its target, and relations with the nouns and words that they account for.

    Attributes:
        target: characters [start, end) of the noun; None without any.
        relations: of the target: (name, spans of the anchors).
        read: spans of all words that are accounted for.
        conditions: spans of those on the target of where it stands; what it looks like is no matter of relations.
    """

    target: Span | None
    relations: tuple[tuple[str, tuple[Span, ...]], ...]
    read: tuple[Span, ...]
    conditions: tuple[Span, ...]


@dataclass(frozen=True)
class _Thing:
    """A noun phrase: words [first, last) with its adjectives, the last of which are the noun."""

    first: int
    last: int
    mention: Mention
    span: Span


Nouns = Callable[[Sequence[str], Sequence[Mention]], list[Mention]]


def rewrite(text: str, labels: Iterable[str], patterns: PatternReading, nouns_of: Nouns) -> list[Word] | None:
    """The words of ``text`` as the parser knows them, its object first, where the patterns left something unread and
    the network is sure of what it says; None elsewhere. The words keep their places in the sentence.

    ``nouns_of`` takes the words and what the lexicon finds in them, and leaves out what are no nouns here."""
    labels = tuple(labels)
    words = rewrite_plainly(corrected(split_words(text), labels), labels)
    count = sum(word.text[0].isalnum() for word in words)
    if count > MOST_WORDS:
        return None
    things = _things(words, nouns_of([word.text for word in words], lexicon().mentions(words, labels)))
    names = [thing.mention.noun for thing in things]
    if not 2 <= len(set(names)) <= 3:
        return None
    attached = {span for _, anchors in patterns.relations for span in anchors} | {patterns.target}
    told = [span for span in patterns.read if span not in attached]  # "across the table from"
    known = {
        t.mention.noun for t in things if t.span in attached or any(a <= t.span[0] and t.span[1] <= b for a, b in told)
    }
    unattached = known != set(names)
    unread = _unread_words(words, [*patterns.read, *_attributes(words, things)])
    if not unattached and not unread:
        return None
    direct = not unattached and _says_directly(patterns, unread)
    left = [(word.start, word.end) for word in unread] + [t.span for t in things if t.mention.noun not in known]
    told_in = {_clause(words, span) for span in patterns.conditions}
    if len(told_in) > 1 or (told_in and not any(_clause(words, span) in told_in for span in left)):
        return None  # whatever is read, something else would be lost
    reader = sentence_reader()
    reading = None if reader is None else reader.read(text, [thing.span for thing in things], names)
    if reading is None:
        return None
    if reading.target == 1 and reading.relation in _CONVERSE and _is_bare_clause(words, things):
        reading = replace(reading, relation=_CONVERSE[reading.relation], target=0, anchors=(1,))
    about_it = names[reading.target] in {thing.mention.noun for thing in things if thing.span == patterns.target}
    if direct and not about_it:
        return None
    doubtful = not unattached or (count > FEW_WORDS and patterns.conditions)
    if direct:
        least = SUREST_OF_ALL
    elif (patterns.relations and not about_it) or len(patterns.conditions) > _MOST_CONDITIONS:
        least = SUREST
    elif doubtful:
        least = SURER
    else:
        least = SURE if about_it else SURE_OF_ANOTHER
    if reading.probability < least or _agrees(reading, things, patterns):
        return None
    return None if _loses(reading, words, things, patterns, left) else _rewritten(words, things, reading)


def _things(words: Sequence[Word], mentions: Sequence[Mention]) -> list[_Thing]:
    found: list[_Thing] = []
    adjectives = (word_set("adjectives") - {".", ",", "and", "with", "off"}) - _ARTICLES
    for m in mentions:
        first = m.first
        while first > 0 and words[first - 1].text in adjectives and not (found and found[-1].last >= first):
            first -= 1
        if found and found[-1].last == m.first:  # "the couch blanket"
            first = found.pop().first
        found.append(_Thing(first, m.last, m, (words[m.first].start, words[m.last - 1].end)))
    return found


def _says_directly(patterns: PatternReading, unread: Sequence[Word]) -> bool:
    """Whether the object, words that were read, and its landmark follow each other: "the bin by the door | needs
    emptying". What is unread elsewhere is then no matter of where it stands."""
    if patterns.target is None or len(patterns.relations) != 1:
        return False
    name, anchors = patterns.relations[0]
    if name == "with":
        return False  # "the desk that has the window at its back"
    start, end = patterns.target[1], min(anchor[0] for anchor in anchors)
    said = any(start <= first and last <= end for first, last in patterns.conditions)
    return said and not any(start <= word.start < end for word in unread)


def _loses(
    reading: Reading, words: Sequence[Word], things: Sequence[_Thing], patterns: PatternReading, left: Sequence[Span]
) -> bool:
    """Whether a reading takes the place of what the patterns have read of something else.

    It tells one sentence of those that a full stop parts, and there what is ``left`` unread; of conditions beside it
    those stay that name no other landmark."""
    told_in = {_clause(words, things[k].span) for k in reading.anchors}
    if any(_clause(words, span) not in told_in for span in patterns.conditions):
        return True
    if not any(_clause(words, span) in told_in for span in left):
        return True
    called = {thing.span: thing.mention.noun for thing in things}
    target, *anchors = (things[k].mention.noun for k in (reading.target, *reading.anchors))
    if any(anchor.split()[-1] == target.split()[-1] for anchor in anchors):
        return True  # "the office chair. the chair is ..."
    told = {called.get(span) for _, spans in patterns.relations for span in spans}
    return len(patterns.conditions) > _MOST_CONDITIONS and not told <= {target, *anchors}


def _clause(words: Sequence[Word], span: Span) -> int:
    """How many sentences end before characters [start, end)."""
    return sum(word.text in (".", ";") and word.end <= span[0] for word in words)


def _attributes(words: Sequence[Word], things: Sequence[_Thing]) -> list[Span]:
    """What stands between an article and a noun, known or not: "the octagonal | table"."""
    nouns = [word for thing in things for word in words[thing.mention.first : thing.mention.last]]
    spans: list[Span] = []
    for thing in things:
        first = thing.mention.first
        before = words[max(0, first - _MOST_ATTRIBUTES - 1) : first]
        article = max((k for k, word in enumerate(before) if word.text in _ARTICLES), default=None)
        if article is not None and not any(word in nouns or word.text in _PREPOSITIONS for word in before[article:]):
            spans += [(word.start, word.end) for word in before[article + 1 :]]
    return spans


def _unread_words(words: Sequence[Word], read: Iterable[Span]) -> list[Word]:
    """The words that may matter and are not accounted for."""
    table = relation_words()
    spans = list(read)
    return [
        word
        for word in words
        if word.text[0].isalpha()
        and word.text not in _LIGHT
        and word.text not in table.colours
        and word.text not in table.materials
        and not any(start < word.end and word.start < end for start, end in spans)
    ]


def _is_bare_clause(words: Sequence[Word], things: Sequence[_Thing]) -> bool:
    """Whether a sentence is a subject, a verb and an object, "the lamp hugs the couch", and so about its subject."""
    told = [word for word in words if word.text[0].isalnum()]
    ends = len(things) == 2 and told[-1] == words[things[1].last - 1]
    between = {word.text for word in words[things[0].last : things[1].first]}
    return (
        ends
        and all(word.text in _ARTICLES for word in words[: things[0].first])
        and not between & {"this", "whose", ",", ".", ":", ";"}
    )


def _agrees(reading: Reading, things: Sequence[_Thing], patterns: PatternReading) -> bool:
    """Whether the patterns have read the same."""
    nouns = {thing.span: thing.mention.noun for thing in things}
    wanted = {things[k].mention.noun for k in reading.anchors}
    if patterns.target is None or nouns.get(patterns.target) != things[reading.target].mention.noun:
        return False
    return any(
        _ALIKE.get(name, name) == reading.relation and wanted <= {nouns.get(span, "") for span in anchors}
        for name, anchors in patterns.relations
    )


def _rewritten(words: Sequence[Word], things: Sequence[_Thing], reading: Reading) -> list[Word]:
    """ "The lamp closest to the couch"."""
    target = _one_of(things, reading.target)
    anchors = [_one_of(things, k) for k in reading.anchors]
    start, end = sorted((things[reading.target].last - 1, things[reading.anchors[0]].first))
    between = words[start + 1 : end] or words[start : end + 1]

    def say(told: str) -> list[Word]:
        return [Word(part, between[0].start, between[-1].end) for part in told.split()]

    line = [*say("the"), *_phrase(words, target), *say(_SAID[reading.relation])]
    for k, anchor in enumerate(anchors):
        line += [*say("and the" if k else "the"), *_phrase(words, anchor)]
    return line


def _one_of(things: Sequence[_Thing], k: int) -> _Thing:
    """The thing, where it is named in singular if it is anywhere."""
    alike = [thing for thing in things if thing.mention.noun == things[k].mention.noun]
    return next((thing for thing in alike if not thing.mention.plural), alike[0])


def _phrase(words: Sequence[Word], thing: _Thing) -> list[Word]:
    """Adjectives and noun; "one of the lamps" is a lamp."""
    noun = list(words[thing.mention.first : thing.mention.last])
    if thing.mention.plural and not lexicon().always_plural(thing.mention.noun):
        one = thing.mention.noun.split()
        noun = [replace(word, text=part) for word, part in zip(noun, one, strict=False)]
    return [*words[thing.first : thing.mention.first], *noun]
