"""From a sentence to its typed meaning: which object is meant, and what must hold of it.

    parse("the chair left of the red sofa")
      target       chair
      constraints  left(couch[colour red])

The parser is shallow and never fails: rules over the sequence of nouns and relation words, no grammar. In human
descriptions of rooms a dependency parser finds the target less often than these do. Well under a millisecond, without
any object or geometry; :mod:`~embodied_perceptron.language.answer` brings both together.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from re import Match, Pattern

from embodied_perceptron.language.lexicon import Mention, Word, lexicon, relation_words, split_words, word_set
from embodied_perceptron.language.meaning import (
    ANYTHING,
    Constraint,
    Meaning,
    ObjectPhrase,
    Span,
    SpeakerViewpoint,
)
from embodied_perceptron.language.reader import PatternReading, rewrite
from embodied_perceptron.language.request import read_request

OWN_SIDES = {"left": "own-left", "right": "own-right"}  # "on the couch's left": whoever speaks, and from where

_PREPOSITIONS = word_set("prepositions")
_ORDERS = word_set("orders")
_ADJECTIVES = word_set("adjectives")
_DETERMINERS = word_set("determiners")
_OPENERS = word_set("openers")
_NO_NOUNS = word_set("no_nouns")
_NOT_ADJECTIVES = frozenset((".", ",", "with"))
_VAGUE = word_set("vague")
_PARTITIVES = word_set("partitives") | word_set("comparatives")
_THERE = word_set("expletives")
_HANGING = word_set("on_walls") | {"drawer"}
_ARTICLES = word_set("articles") | word_set("determiners")
_ROOMS = word_set("rooms")

_INVERSE = {
    "left": "right", "right": "left", "above": "below", "below": "above", "on": "supporting", "supporting": "on",
    "front": "behind", "behind": "front", "in": "with", "with": "in",
}  # fmt: skip
_ATTRIBUTIVE = frozenset(["large", "small", "tall", "short", "long", "narrow", "round"])
_PLACES = frozenset(["corner", "middle", "wall"])
_PRONOUNS = frozenset(["it", "this", "him", "itself"])
_SUBJECTS = frozenset(("it", "this", "one", "which", "it's"))
_OUTRIGHT = 3.0  # weight of "the tallest": a tall one is told from the others loosely
_FROM_ABOVE = {"top": "high", "bottom": "low"}
_STATURE = frozenset(("large", "small", "tall", "short", "long", "narrow", "high", "low"))
_NESTED, _CONTEXT = 0.5, 0.3  # weights of what is said of an anchor rather than of the target
_LIKE_NOUN = 0.85  # similarity of two nouns for one thing, each to the other: "bin" and "trash can"
_LOOKS_THERE = frozenset(("facing", "faces", "face", "turned", "pointing", "points", "angled"))
_ONE_OF = word_set("comparatives") | word_set("places_in_a_row")  # "the left of the two monitors"
_SEATS = frozenset(("chair", "armchair", "stool", "seat"))
_STANDING = frozenset(("standing", "stand", "stood", "sitting", "sit", "you"))
_BEFORE_PLACES = frozenset(("in", "on", "at", "against", "the", "a", "far", "very", "so"))
_TO_A_PLACE = frozenset(("in", "at", "the", "a", "very", "are"))
_AT_SIDES = frozenset(("end", "ends", "head", "foot", "side", "edge", "corner", "section"))
_ANCHOR_DEPTH = 3  # "by the table under the lamp at the window": people say no more of an anchor
_MOST_OF_ANCHOR = 4  # relations of one anchor
_REACH = 9  # words after a relation in which its anchor must stand
_BESIDE_LANDMARKS = frozenset(  # of what is "with" something, or "on" it, people name parts too
    ("near", "left", "right", "front", "behind", "above", "below", "closest", "across", "viewer-left", "viewer-right")
)
_PARTS = word_set("parts") | word_set("whole_parts")
_LONGEST_UNKNOWN = 3  # words of a noun that nobody knows
_AFTER_NOUNS = frozenset(("and", "or", "that", "which", "is", "are", "but"))
_END = frozenset(".!?")
_GROUPS = frozenset(("row", "line", "group", "three", "others", "five", "set", "them", "other"))
_FACES = frozenset(("facing", "faces"))  # who faces it is faced by it: never the other way round
_VERBS = _FACES | frozenset(
    ("supports", "supporting", "carries", "carrying", "bears", "bearing", "holds", "holding", "contains", "containing",
     "encloses", "houses", "has", "have")
)  # fmt: skip
_NOT = frozenset(("neither", "nor", "not", "isn't", "aren't", "doesn't", "isnt", "never", "wasn't"))
_ORDINALS = {
    word: rank
    for rank, words in enumerate(
        ("first 1st", "second 2nd", "third 3rd", "fourth 4th", "fifth 5th", "sixth 6th", "seventh 7th", "eighth 8th",
         "ninth 9th", "tenth 10th", "eleventh 11th", "twelfth 12th"), 1,
    )
    for word in words.split()
}  # fmt: skip
_CARDINALS = {
    "a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
    "ten": 10, "eleven": 11, "twelve": 12,
}  # fmt: skip
_TENS = {
    "fifteen": 15, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80,
    "ninety": 90,
}  # fmt: skip
_ORDINAL = "(?:" + "|".join(_ORDINALS) + ")"
_ME = r"(?:me|you|us|myself|yourself|the robot|where (?:i|you)(?:'m|'re| am| are)?(?: standing| sitting| stand)?)"
_EGOCENTRIC = (
    ("behind-me", rf"(?:right |directly )?(?:behind|in back of) {_ME}|(?:at|behind) (?:my|your) back"),
    ("ahead-of-me", rf"(?:right |straight |directly )?(?:in front|ahead) of {_ME}|(?:straight|right) ahead"),
    ("left-of-me", rf"(?:to|on|at) (?:my|your) (?:immediate )?left(?: ?-?hand)?(?: side)?|(?:to the )?left of {_ME}"),
    (
        "right-of-me",
        rf"(?:to|on|at) (?:my|your) (?:immediate )?right(?: ?-?hand)?(?: side)?|(?:to the )?right of {_ME}",
    ),
    (
        "nearest-me",
        rf"(?:closest|nearest|closer|nearer)(?: (?!the |a )[\w-]+){{0,2}}? to {_ME}|"
        rf"(?:near|next to|close to|beside|by) {_ME}",
    ),
    (
        "farthest-me",
        rf"(?:farthest|furthest|farther|further|far|most distant)(?: (?!the |a )[\w-]+){{0,2}}? from {_ME}",
    ),
)
_LONGEST_M = 1e6  # of a length that a sentence states
_UNITS = {  # by how they begin; metres
    "m": 1.0, "met": 1.0, "cm": 0.01, "cen": 0.01, "ft": 0.3048, "foo": 0.3048, "fee": 0.3048, "inc": 0.0254,
    "mm": 0.001,
}  # fmt: skip
_LENGTH = (
    r"(?P<half>half(?: an?)? )?"
    r"(?P<count>an?|one|two|three|four|five|six|seven|eight|nine|ten|fifteen|twenty|thirty|forty|fifty|sixty|"
    r"seventy|eighty|ninety|\d+(?:[.,]\d+)?)?(?(count) )"
    r"(?P<more>and a half )?(?P<unit>met(?:re|er)s?|centimet(?:re|er)s?|cms?|mm|m|f(?:oo|ee)t|ft|inch(?:es)?)"
    r"(?P<half_more> and a half)?"
)
_MEASURED = (
    (
        "larger",
        rf"(?:at least|more than|over|higher than|above|higher up than) {_LENGTH} (?P<axis>(?:off|above|from|over|"
        rf"up from) "
        r"the (?:floor|ground))",
    ),
    (
        "smaller",
        rf"(?:at most|less than|under|below|lower than|no more than|not more than) {_LENGTH} (?P<axis>(?:off|above|"
        rf"from|"
        r"over|up from) the (?:floor|ground))",
    ),
    (
        "within",
        r"(?:within|less than|closer than|nearer than|no more than|not more than|at most|under|up to) "
        rf"(?:about )?{_LENGTH}"
        r"(?P<tail> (?:away )?(?:of|from|to))?(?! (?:and a half|tall|high|wide|long|deep|in height|in width)\b)",
    ),
    (
        "beyond",
        rf"(?:more than|farther than|further than|at least|over|greater than) (?:about )?{_LENGTH}"
        r"(?P<tail> (?:away )?(?:from|of))?(?! (?:and a half|tall|high|wide|long|deep|in height|in width)\b)",
    ),
    ("larger", rf"(?P<axis>taller|higher|wider|longer|bigger|larger|deeper) than {_LENGTH}"),
    ("smaller", rf"(?P<axis>shorter|lower|narrower|smaller) than {_LENGTH}"),
    ("larger", rf"(?:at least|more than|over) {_LENGTH} (?P<axis>tall|high|wide|long|deep|in height|in width)"),
    (
        "smaller",
        rf"(?:at most|less than|under|no more than|not more than) {_LENGTH} "
        r"(?P<axis>tall|high|wide|long|deep|in height|in width)",
    ),
)
_NOTHING = (
    r"(?:without|with no|with nothing|has nothing|has no|have nothing|without having)(?: anything| things?| objects?)?"
    r" (?:on|on top of) (?:it|them|top)|with nothing on"
)


def _patterns(pairs: Sequence[tuple[str, str]]) -> tuple[tuple[str, Pattern[str]], ...]:
    return tuple((name, re.compile(rf"(?<![\w-])(?:{pattern})(?![\w-])")) for name, pattern in pairs)


_EGOCENTRIC_PATTERNS, _MEASURED_PATTERNS = _patterns(_EGOCENTRIC), _patterns(_MEASURED)
((_, _NOTHING_ON),) = _patterns((("nothing", _NOTHING),))
_NTH_FROM = re.compile(
    rf"(?<![\w-])(?:(?P<nth>{_ORDINAL})|number (?P<number>\d{{1,2}}|{'|'.join(_CARDINALS)}))"
    r" (?:[\w-]+ ){0,3}?(?:counting )?from (?:the )?(?:(?P<side>left|right|top|bottom)(?![\w-])|(?=[\w-]))"
)


_NEGATIVE_LENGTH = re.compile(rf"(?<![\w.,])[-\u2212]\d+(?:[.,]\d+)? ?(?:{'|'.join(sorted(_UNITS))})", re.IGNORECASE)
_COUNTED = re.compile(
    r"(?<!from )\b(left|right) to (?:the )?(?:right|left)\b|"
    r"\b(?:count|counting|counted|start|starting|beginning) (?:(?!from\b|at\b)[\w-]+ ){0,3}?"
    r"(?:from|at) (?:the )?(left|right)\b"
)
_NUMBERED = re.compile(rf"\bnumber (\d{{1,2}}|{'|'.join(_CARDINALS)})\b")


def _metres(said: dict[str, str | None]) -> float:
    """The length that the groups of :data:`_LENGTH` hold, metres."""
    unit, count = said["unit"] or "m", said["count"] or "1"
    number = _CARDINALS.get(count) or _TENS.get(count)
    value = float(count.replace(",", ".")) if number is None else float(number)
    value = (0.5 * value if said["half"] else value) + (0.5 if said["more"] or said["half_more"] else 0.0)
    scale = next(scale for name, scale in sorted(_UNITS.items(), reverse=True) if unit.startswith(name))
    return min(value * scale, _LONGEST_M)


_AXES = {
    "taller": "height", "higher": "height", "tall": "height", "high": "height", "in height": "height",
    "lower": "height", "shorter": "height", "narrower": "width",
}  # fmt: skip


def parse(text: str, labels: Iterable[str] = ()) -> Meaning:
    """The meaning of ``text``; ``labels`` of the scene count as nouns beside the lexicon's.

    Never raises for a text that :func:`~embodied_perceptron.language.query.query_problem` accepts.
    """
    labels = tuple(labels)
    request = read_request(text, labels)
    if request.problem:
        return Meaning(text, None, problem=request.problem, invalid=request.invalid)
    if _NEGATIVE_LENGTH.search(text):
        return Meaning(text, None, problem="a length cannot be negative", invalid=True)
    parser = Parser(text, labels, request.words)
    meaning = parser.meaning()
    told_by_rule = request.rearranged and any(c.anchors for c in meaning.constraints)
    more = request.excluded or request.every or request.number or meaning.speaker
    if request.kind in _ASKS_FOR_ONE and not (more or request.put_together or told_by_rule):
        # before these words stands a command, behind them where the object shall go
        start = min((word.start for word in request.words), default=0)
        end = max((word.end for word in request.words), default=0)
        heard = list(" " * start + text[start:end])
        for first, last in request.aside:
            heard[first:last] = " " * len(heard[first:last])
        words = rewrite("".join(heard), labels, _read_by_patterns(meaning), without_verbs)
        meaning = meaning if words is None else _completed(meaning, Parser(text, labels, words).meaning())
    excluded = [_excluded(text, labels, words, meaning.target) for words in request.excluded]
    target = meaning.target
    if target is None or (excluded and not target.known and meaning.text):
        target = next((e.target for e in excluded if e.target is not None and e.target.known), target)
    if target is None:
        return meaning
    place = _PLACE_OF.get(target.noun)
    if place is not None and target.noun not in labels:  # weak: whoever stands elsewhere may be called so too
        relation, noun = place
        there = Constraint(relation, (ObjectPhrase(noun, target.span),), weight=_NESTED, span=target.span)
        meaning = replace(meaning, constraints=(*meaning.constraints, there))
    landmarks, unread = parser.unread()
    meaning = replace(meaning, constraints=(*meaning.constraints, *landmarks), unmatched=unread)
    single = lexicon().always_plural(target.noun)
    if request.kind in ("count", "contents") or request.every:
        meaning = replace(meaning, constraints=tuple(_absolute(c, text) for c in meaning.constraints))
    return replace(
        meaning,
        target=target,
        kind=request.kind,
        every=request.every or request.kind != "object" or (target.plural and not single),
        number=request.number,
        any_of=request.any_of,
        is_place=request.is_place,
        length=sum(word.text[0].isalnum() for word in request.words),
        excluded=tuple(e for e in excluded if e.target is not None),
    )


_PLACE_OF = {  # kinds that are named after where they stand
    "bedside lamp": ("near", "bed"), "bedside table": ("near", "bed"), "desk lamp": ("on", "desk"),
    "desk chair": ("near", "desk"), "dining chair": ("near", "dining table"),
}  # fmt: skip


def _absolute(c: Constraint, text: str) -> Constraint:
    """ "How many baskets stand on the floor": each of them, and not the lowest."""
    if c.relation != "low" or not text[slice(*c.span)].lower().endswith(("floor", "ground")):
        return c
    return replace(c, relation="smaller", value="elevation", amount_m=_ON_THE_FLOOR_M)


_ON_THE_FLOOR_M = 0.2


def _completed(patterns: Meaning, network: Meaning) -> Meaning:
    """The network's reading, with what the patterns have read of the same object beside its relation to the others."""
    if patterns.target is None or network.target is None or patterns.target.noun != network.target.noun:
        return network
    told = {c.span for c in network.constraints}
    # "flanked on its right by the lamp" puts nothing on the right of the room
    sides = any(c.relation in ("left", "right") for c in network.constraints)
    own = (
        c
        for c in patterns.constraints
        if not c.anchors and c.span not in told and not (sides and c.relation in ("left-of-all", "right-of-all"))
    )
    return replace(network, constraints=(*network.constraints, *own))


_LOOKS = ("colour", "material", "large", "small", "tall", "short", "long", "narrow", "round")
_ASKS_FOR_ONE = ("object", "where", "exists")


def _read_by_patterns(meaning: Meaning) -> PatternReading:
    """What the constraints of a meaning account for."""
    spans: list[Span] = [] if meaning.target is None else [meaning.target.span]
    waiting = list(meaning.constraints)
    while waiting:
        constraint = waiting.pop()
        spans += [constraint.span, *(anchor.span for anchor in constraint.anchors)]
        waiting += [said for anchor in constraint.anchors for said in anchor.constraints]
    relations = tuple((c.relation, tuple(a.span for a in c.anchors)) for c in meaning.constraints if c.anchors)
    conditions = tuple(c.span for c in meaning.constraints if c.relation not in _LOOKS)
    target = None if meaning.target is None else meaning.target.span
    return PatternReading(target, relations, tuple(spans), conditions)


def _cut_below(constraint: Constraint, depth: int) -> Constraint:
    """Without the relations of its anchors more than ``depth`` levels down; what needs no anchor stays.

    Nouns of a sentence share their conditions, so that unlimited nesting doubles with every "between".
    """
    anchors = (
        replace(a, constraints=tuple(_cut_below(c, depth - 1) for c in a.constraints if depth > 0 or not c.anchors))
        if a.constraints
        else a
        for a in constraint.anchors
    )
    return replace(constraint, anchors=tuple(anchors)) if constraint.anchors else constraint


def _excluded(text: str, labels: Sequence[str], words: Sequence[Word], target: ObjectPhrase | None) -> Meaning:
    """The meaning of "the red one" beside a target; "one" stands for it."""
    if target is not None:
        one = [w for w in words if w.text in ("one", "ones")]
        words = [replace(w, text=target.noun) if w.text in ("one", "ones") else w for w in words]
        if not one and not lexicon().mentions(words, labels):
            end = words[-1].end
            words = [*words, Word(target.noun, end, end)]
        words = [Word(part, w.start, w.end) for w in words for part in w.text.split()]
    return Parser(text, labels, words).meaning()


@dataclass(frozen=True)
class _Trigger:
    """Words [first, last) that say ``name``."""

    first: int
    last: int
    name: str


class Parser:
    """The state of parsing one sentence: its words, its nouns, and which of them is the target."""

    def __init__(self, text: str, labels: Iterable[str] = (), words: Sequence[Word] | None = None) -> None:
        self.text = text
        self.words, self._owned = _owners(split_words(text) if words is None else list(words))
        self.tokens = [word.text for word in self.words]
        self.mentions = with_anything(self.tokens, lexicon().mentions(self.words, labels))
        self.mentions = with_unknown(self.tokens, without_verbs(self.tokens, self.mentions))
        self.target = choose_target(self.tokens, self.mentions)
        if self.target is not None:
            self.mentions, self.target = with_ones(self.tokens, self.mentions, self.target)
        self.joined = " ".join(self.tokens)
        self._word_at: list[int] = []
        for i, token in enumerate(self.tokens):
            self._word_at += [i] * (len(token) + 1)
        self._is_target = [self._means_target(k) for k in range(len(self.mentions))]
        self._nested: dict[str, tuple[Constraint, ...]] = {}  # constraints of other nouns than the target's
        self._taken = [False] * len(self.tokens)  # words of egocentric and measured conditions
        self._parted: list[tuple[_Trigger, int]] = []  # "the closest ... to", and its rank

    def meaning(self) -> Meaning:
        """Target, constraints and point of view."""
        if self.target is None:
            return Meaning(self.text, None)
        speaker, viewpoint_words = self._speaker()
        stated = [*self._measured(), *self._egocentric(speaker), *self._empty()]
        ordinals = self._ordinals()
        unary = self._unary()
        anchored = self._with_own_sides(self._relations(viewpoint_words))
        taken = [
            w for c in anchored if c.relation in ("left", "right", *OWN_SIDES.values()) for w in self._around(c.span)
        ]
        unary = [
            c for c in unary
            if not (c.relation in ("left-of-all", "right-of-all") and self._words_of(c.span)[0] in taken)
        ]  # fmt: skip
        if any(c.relation in ("above", "on", "supporting", "with") for c in anchored):
            unary = [c for c in unary if c.relation != "high" or c.weight >= _OUTRIGHT or self._is_attribute(c)]
        spans = [c.span for c in anchored]  # "above it is a mirror" is not high up
        unary = [c for c in unary if not (c.relation in ("high", "low") and c.span in spans)]
        # the longest walk from the door makes nothing long, its opposite corner is no corner of the room
        far = [c.span for c in anchored if c.relation == "farthest"]
        unary = [c for c in unary if not any(start <= c.span[0] and c.span[1] <= end for start, end in far)]
        colours = self._colours(self.target)
        unary = [self._seen_from(c, speaker) for c in unary]
        target = self._phrase(self.mentions[self.target])
        of = self._of_several()
        seen = speaker is not None and speaker.anchor.span == target.span  # "facing the printers, the left"
        if (of and self.tokens[of - 1] in _ONE_OF) or (target.plural and (seen or self._one_of_them())):
            target = replace(target, plural=False)
        others = {m.noun: self._phrase(m) for k, m in enumerate(self.mentions) if not self._is_target[k]}
        others.pop(target.noun, None)
        unary, anchored = [self._ranked(c) for c in unary], [self._ranked(c) for c in anchored]
        if any(c.relation in ("from-left", "from-right") for c in ordinals):
            unary = [c for c in unary if c.relation not in ("left-of-all", "right-of-all")]  # "counted from the left"
        if any(c.relation in ("from-left", "from-right") or c.rank > 1 for c in (*unary, *anchored, *stated)):
            ordinals = [c for c in ordinals if c.relation != "nth"]
        constraints = (*colours, *unary, *anchored)
        return Meaning(self.text, target, (*constraints, *stated, *ordinals), speaker, tuple(others.values()))

    def _is_attribute(self, c: Constraint) -> bool:
        """Whether a word stands right before the target: "the top box"."""
        return self._words_of(c.span)[1] == self.mentions[self.target or 0].first

    def _of_several(self) -> int:
        """Where "of" stands before a target in plural, "the left of the two monitors"; 0 where it does not."""
        target = self.mentions[self.target or 0]
        word, place = governor(self.tokens, target)
        return place if word == "of" and target.plural else 0

    def _one_of_them(self) -> bool:
        """Whether a target in plural is followed by the one of them that is meant: "there are two pictures, choose the
        lower one", "of both beds the bed by the window"."""
        target = self.mentions[self.target or 0]
        for i in range(target.last, len(self.tokens)):
            if self.tokens[i] == "one":
                m = Mention(i, i + 1, target.noun, plural=False)
            else:
                again = (m for m in self.mentions if m.first == i and m.noun == target.noun and not m.plural)
                m = next(again, target)
            word, place = governor(self.tokens, m)
            definite = {"the", "this", "that"} & set(self.tokens[place + 1 : m.first])
            if m is not target and definite and word not in _PREPOSITIONS:
                return True
        # "counting the chairs from the right, number two"
        return _COUNTED.search(self.joined) is not None and _NUMBERED.search(self.joined) is not None

    # ------------------------------------------------------------------------- distances, sizes, the speaker, ordinals

    def _claim(self, match: Match[str]) -> Span | None:
        """The words of a match, claimed for it; None where another has one of them."""
        last = match.end() - 1 - (self.joined[match.end() - 1] == " ")
        first, end = self._word_at[match.start()], self._word_at[last] + 1
        if any(self._taken[first:end]):
            return None
        self._taken[first:end] = [True] * (end - first)
        return first, end

    def _measured(self) -> list[Constraint]:
        """ "Within two metres of the door", "taller than 80 cm"."""
        found = []
        for name, pattern in _MEASURED_PATTERNS:
            for match in pattern.finditer(self.joined):
                words = self._claim(match)
                if words is None:
                    continue
                said = match.groupdict()
                amount_m = _metres(said)
                span = self._span(*words)
                if name in ("larger", "smaller"):
                    axis = _AXES.get(
                        said["axis"], "elevation" if said["axis"].endswith(("floor", "ground")) else "length"
                    )
                    found.append(Constraint(name, value=axis, span=span, amount_m=amount_m))
                    continue
                anchor = next((k for k, m in enumerate(self.mentions) if 0 <= m.first - words[1] <= 3), None)
                other = anchor is not None and not self._is_target[anchor] and said.get("tail")
                anchors = (self._phrase(self.mentions[anchor]),) if other and anchor is not None else ()
                found.append(Constraint(name, anchors, span=span, amount_m=amount_m))
        return found

    def _egocentric(self, speaker: SpeakerViewpoint | None) -> list[Constraint]:
        """ "Behind me", "the nearest": where the asker's own pose decides, unless the sentence states a viewpoint."""
        found = []
        for name, pattern in _EGOCENTRIC_PATTERNS:
            if speaker is not None and name in ("left-of-me", "right-of-me"):
                continue
            for match in pattern.finditer(self.joined):
                words = self._claim(match)
                if words is not None:
                    negated = any(t in _NOT for t in self.tokens[max(0, words[0] - 2) : words[0]])
                    found.append(Constraint(name, negated=negated, span=self._span(*words)))
        for i, token in enumerate(self.tokens):
            near = token in ("closest", "nearest")
            if self._taken[i] or not (near or token in ("farthest", "furthest")):
                continue
            to = self._followed_by(i, ("to", "from", "by", "on") if near else ("from", "to", "on"))
            side = {"left", "right"} & set(self.tokens[i + 1 : (to or i) + 3])
            if side and not (to is not None and self.tokens[to] == "from"):
                self._taken[i] = True
                found.append(Constraint(f"{side.pop()}most", span=self._span(i, i + 1)))
                continue
            if to is not None and self.tokens[to] == "on":
                to = None
            if to == i + 1 or (to is None and self._anchor_follows(i + 1)):
                continue  # said in one piece
            rank = _ORDINALS.get(self.tokens[i - 1], 1) if i else 1
            name = "closest" if near else "farthest"
            if to is not None:
                self._taken[i] = self._taken[to] = True
                self._parted.append((_Trigger(to, to + 1, name), rank))
            elif speaker is None:
                self._taken[i] = True
                relation = "nearest-me" if near else "farthest-me"
                found.append(Constraint(relation, rank=rank, span=self._span(i, i + 1)))
        return found

    def _followed_by(self, i: int, wanted: tuple[str, ...]) -> int | None:
        """The place of a word after ``i``, before anything but adjectives and the target."""
        for j in range(i + 1, min(i + 6, len(self.tokens))):
            if self.tokens[j] in wanted:
                return j
            if self.tokens[j] in (".", ",", "and", "that", "which", "is") or self.tokens[j] in _PREPOSITIONS:
                return None
        return None

    def _anchor_follows(self, i: int) -> bool:
        return any(0 <= m.first - i <= 2 and not self._is_target[k] for k, m in enumerate(self.mentions))

    def _empty(self) -> list[Constraint]:
        """ "Without anything on it"."""
        found = []
        for match in _NOTHING_ON.finditer(self.joined):
            words = self._claim(match)
            if words is not None:
                span = self._span(*words)
                anchor = ObjectPhrase(ANYTHING, span, plural=True)
                found.append(Constraint("supporting", (anchor,), negated=True, span=span))
        return found

    def _ordinals(self) -> list[Constraint]:
        """ "The fifth from the left", "chair number two", "the second from the door"; ranks that nothing else says."""
        found: list[Constraint] = []
        for match in _NTH_FROM.finditer(self.joined):
            rank = _ORDINALS.get(match["nth"] or "") or _CARDINALS.get(match["number"] or "") or int(match["number"])
            words = self._claim(match)
            if words is None:
                continue
            if match["side"] in _FROM_ABOVE:
                relation = _FROM_ABOVE[match["side"]]
                found.append(Constraint(relation, rank=rank, weight=_OUTRIGHT, span=self._span(*words)))
            elif match["side"]:
                found.append(Constraint(f"from-{match['side']}", rank=rank, span=self._span(*words)))
            else:
                self._parted.append((_Trigger(words[1] - 1, words[1], "closest"), rank))
        if found or self.target is None:
            return found
        m = self.mentions[self.target]
        before = m.first
        while before > 0 and self.tokens[before - 1] in _ADJECTIVES and self.tokens[before - 1] not in _ORDINALS:
            before -= 1
        rank = _ORDINALS.get(self.tokens[before - 1], 0) if before else 0
        counted = _COUNTED.search(self.joined)  # "the third chair, left to right"
        number = _NUMBERED.search(self.joined)
        if counted and not rank:
            said = next((t for t in self.tokens if t in _ORDINALS), "")
            rank = _ORDINALS.get(said, 0)
            if not rank and number:
                rank = _CARDINALS.get(number[1]) or int(number[1])
        if rank and counted:
            return [Constraint(f"from-{counted[1] or counted[2]}", rank=rank, span=self._span(m.first, m.last))]
        numbered = self.tokens[m.last : m.last + 2]
        if len(numbered) == 2 and numbered[0] == "number":
            rank = _CARDINALS.get(numbered[1], int(numbered[1]) if numbered[1].isdecimal() else 0)
        if rank > 1:
            found.append(Constraint("nth", rank=rank, span=self._span(m.first, m.last)))
        return found

    def _ranked(self, c: Constraint) -> Constraint:
        """ "The second tallest": a superlative after an ordinal."""
        if not c.is_superlative or c.rank > 1:
            return c
        first = self._words_of(c.span)[0]
        rank = _ORDINALS.get(self.tokens[first - 1], 1) if first else 1
        return replace(c, rank=rank)

    def unread(self) -> tuple[tuple[Constraint, ...], tuple[str, ...]]:
        """Landmarks of the target that nobody knows, "next to the wugglefrotz", as constraints; and other words that
        may be nouns and that neither a noun nor a table of words has."""
        table = relation_words()
        read = list(self._taken)
        spans = [(m.first, m.last) for m in self.mentions]
        relations = [(name, span) for name, pattern in table.relations for span in self._matches(pattern)]
        patterns = (table.viewpoint, *(pattern for _, pattern in table.unary))
        spans += [span for pattern in patterns for span in self._matches(pattern)]
        for first, last in (*spans, *(span for _, span in relations)):
            read[first:last] = [True] * (last - first)
        left = [
            not (known or t in table.colours or t in table.materials or t in _ROOMS or t in _PARTS) and _may_be_noun(t)
            for t, known in zip(self.tokens, read, strict=True)
        ]
        landmarks: list[Constraint] = []
        for name, (first, last) in relations:
            noun = self._unknown_noun(last, left) if name in _BESIDE_LANDMARKS else None
            if noun is not None and self._subject(first)[0] is None:
                left[slice(*noun)] = [False] * (noun[1] - noun[0])
                anchor = ObjectPhrase(" ".join(self.tokens[slice(*noun)]), self._span(*noun), known=False)
                negated = self._is_negated(first, last)
                landmarks.append(Constraint(name, (anchor,), negated=negated, span=self._span(first, last)))
        return tuple(landmarks), tuple(t for t, unread in zip(self.tokens, left, strict=True) if unread)

    def _unknown_noun(self, first: int, unread: Sequence[bool]) -> Span | None:
        """The words of a noun phrase with an article that begins at a word, where nobody knows them."""
        i = first
        while i < len(self.tokens) and self.tokens[i] in _ADJECTIVES and self.tokens[i] not in _NOT_ADJECTIVES:
            i += 1
        last = i
        while last < len(self.tokens) and unread[last]:
            last += 1
        follows = self.tokens[last : last + 1]
        stops = _PREPOSITIONS | _AFTER_NOUNS
        ends = not follows or not follows[0][0].isalpha() or (follows[0] in stops and follows[0] != "of")
        named = i < last <= i + _LONGEST_UNKNOWN and not _ARTICLES.isdisjoint(self.tokens[first:i])
        return (i, last) if named and ends else None

    # ---------------------------------------------------------------------------------------------------------- words

    def _span(self, first: int, last: int) -> Span:
        return self.words[first].start, self.words[last - 1].end

    def _words_of(self, span: Span) -> Span:
        inside = [i for i, w in enumerate(self.words) if w.start < span[1] and w.end > span[0]]
        return (inside[0], inside[-1] + 1) if inside else (0, 0)

    def _around(self, span: Span) -> range:
        first, last = self._words_of(span)
        return range(first - 1, last)

    def _matches(self, pattern: Pattern[str]) -> list[Span]:
        """Word ranges of all matches of a compiled pattern over the joined words."""
        found = []
        for match in pattern.finditer(self.joined):
            if match.end() > match.start():
                last = match.end() - 1 - (self.joined[match.end() - 1] == " ")
                found.append((self._word_at[match.start()], self._word_at[last] + 1))
        return found

    def _sentence_start(self, word: int) -> int:
        return max((i for i in range(word) if self.tokens[i] in _END), default=-1) + 1

    def _sentence_end(self, word: int) -> int:
        return next((i for i in range(word, len(self.tokens)) if self.tokens[i] in _END), len(self.tokens))

    def _phrase(self, mention: Mention) -> ObjectPhrase:
        """The mention with what is said of it, where it is not the target."""
        k = self.mentions.index(mention)
        said: tuple[Constraint, ...] = ()
        if not self._is_target[k]:
            said = (*self._colours(k), *self._nested.get(mention.noun, ()))
        return ObjectPhrase(mention.noun, self._span(mention.first, mention.last), mention.plural, mention.known, said)

    def _means_target(self, k: int) -> bool:
        """Whether a mention speaks of the target: itself, the same noun again with a definite article, or a shorter or
        like one as the subject of a later sentence, "this is an office chair. the chair is ..."."""
        if self.target is None:
            return False
        m, target = self.mentions[k], self.mentions[self.target]
        if k == self.target:
            return True
        if m.plural or self.tokens[m.first] in ("one", "ones"):
            return False
        if m.noun != target.noun:
            return self._is_subject_again(m, target)
        before = self.tokens[m.first - 1] if m.first else "."
        start = self._sentence_start(m.first)
        listed = self.tokens[start : m.first]  # "the yellow , pink and white picture"
        if listed[:1] in (["the"], ["this"]) and all(t == "," or t in _ADJECTIVES for t in listed):
            return True
        own, said = (self.tokens[governor(self.tokens, n)[1] + 1 : n.first] for n in (m, target))
        if own[:1] == ["the"] and own[1:] and own[1:] == [t for t in said if t not in _ARTICLES]:
            return True  # "... . to the right of the white bucket is"
        definite = ("the", "this", "that", ".")
        return before in definite or governor(self.tokens, m)[0] in ("the", "this", "^", ".")

    def _is_subject_again(self, m: Mention, target: Mention) -> bool:
        start = self._sentence_start(m.first)
        lead = self.tokens[start : m.first]
        subject = lead[:1] in (["the"], ["this"], ["that"]) and only_adjectives(lead[1:])
        # "above the bathroom sink is a mirror. left of the sink is a towel"
        placed = lead[-1:] == ["the"] and lead[0] in _PLACE_WORDS
        place = placed and not _STANDS_THERE.isdisjoint(self.tokens[m.last : m.last + 1])
        if start < target.last or not (subject or place):
            return False
        words = lexicon()
        synonyms = words.meaning.get(m.noun, {}) == words.meaning.get(target.noun)
        alike = min(words.similarity(m.noun, target.noun), words.similarity(target.noun, m.noun)) >= _LIKE_NOUN
        return synonyms or alike or target.noun.split()[-1] == m.noun

    # ------------------------------------------------------------------------------------------- what is said of one

    def _unary(self) -> list[Constraint]:
        """Sizes, ordinals and places in the room that are said of the target."""
        found: dict[str, Constraint] = {}
        for name, pattern in relation_words().unary:
            relation, _, rank = name.partition(" ")
            if relation == "from":  # "from left 2"
                side, _, rank = rank.partition(" ")
                relation = f"from-{side}"
            elif relation in ("left", "right"):
                relation += "-of-all"
            for first, last in self._matches(pattern):
                if any(self._taken[first:last]) or name in found or not self._is_of_target(relation, first, last):
                    continue
                told = relation
                if relation == "middle" and self._among_its_kind(last):
                    told = "middle-of-kind"
                if relation in ("high", "low") and any(m.first <= first and last <= m.last for m in self.mentions):
                    continue  # "the floor lamp"
                negated = self._is_denied(first)
                outright = told in _STATURE and any(t.endswith(("est", "most")) for t in self.tokens[first:last])
                outright |= told in ("high", "low") and self.tokens[last : last + 1] in (["shelf"], ["board"], ["rack"])
                weight = _OUTRIGHT if outright else 1.0
                span = self._span(first, last)
                if told in ("left-of-all", "right-of-all") and self._is_side_of_anchor(told, first, last):
                    weight = _NESTED  # likely true of both
                found[name] = Constraint(told, rank=int(rank or 1), negated=negated, weight=weight, span=span)
        target = self.mentions[self.target or 0]
        for side in ("left", "right"):  # "facing the printers, left printer"
            before = next((i for i in range(target.first - 1, -1, -1) if not only_adjectives([self.tokens[i]])), -1)
            own = [i for i in range(before + 1, target.first) if self.tokens[i] == side]
            if own and not _ARTICLES.isdisjoint(self.tokens[own[0] : target.first]):
                own = []  # "i left the lamp there"
            if own and side not in found and not self._taken[own[0]]:
                found[side] = Constraint(f"{side}-of-all", span=self._span(own[0], own[0] + 1))
        names = {c.relation for c in found.values()}
        for side in ("left", "right"):
            if names & {f"{side}most", "from-left", "from-right"}:
                found.pop(side, None)
        return list(found.values())

    def _is_denied(self, first: int) -> bool:
        """Whether "not" stands before a place or size at word ``first``: "not in the far corner"."""
        before = first
        while before > 0 and self.tokens[before - 1] in _BEFORE_PLACES:
            before -= 1
        return before > 0 and self.tokens[before - 1] in _NOT

    def _among_its_kind(self, last: int) -> bool:
        """Whether "middle" before word ``last`` compares like things: not "of the room", "of the wall"."""
        if self.tokens[last : last + 1] not in (["of"], ["part"]):
            return True
        return bool(_GROUPS & set(self.tokens[last : last + 5])) or last == self._of_several()

    def _is_of_target(self, relation: str, first: int, last: int) -> bool:
        target = self.mentions[self.target or 0]
        after = [k for k, m in enumerate(self.mentions) if m.first >= first]
        start = self._sentence_start(first)
        before = [k for k, m in enumerate(self.mentions) if start <= m.first and m.last <= first]
        if relation in _ATTRIBUTIVE:
            return self._size_of_target(first, after, before)
        if relation in ("left-of-all", "right-of-all"):  # "a chair facing to the right" may stand anywhere
            return first == 0 or self.tokens[first - 1] not in _LOOKS_THERE
        if relation in ("high", "low") and self.tokens[last : last + 1] in (["left"], ["right"]):
            return target.noun.split()[-1] in _HANGING  # "the upper left chair" is far away rather than high
        if relation == "alone" and after and self.tokens[first] in ("only", "single", "lone"):
            follows = self.mentions[after[0]]
            return follows.noun == target.noun or not only_adjectives(self.tokens[last : follows.first])
        if relation not in _PLACES:
            return True
        if self._stands_speaker(first):
            return False
        if relation != "wall" and self.tokens[last : last + 1] == ["of"] and after:
            follows = self.mentions[after[0]]
            near = follows.first - first <= 6 and "room" not in self.tokens[last : last + 4]
            if near and last != self._of_several():
                return False  # the corner of the table
        if before:
            subject = self.mentions[before[-1]]
            between = self.tokens[subject.last : first]
            separate = any(t in (",", "and", "it", "which", "but", ";") for t in between)
            if not self._is_target[before[-1]] and subject.noun != target.noun and not separate and len(between) <= 4:
                said = Constraint(relation, weight=_NESTED, span=self._span(first, last))
                self._nested[subject.noun] = (*self._nested.get(subject.noun, ()), said)
                return False
        compound = bool(after) and self.mentions[after[0]].first == first + 1 and not self._is_target[after[0]]
        return not (compound and relation in ("corner", "middle"))

    def _is_side_of_anchor(self, relation: str, first: int, last: int) -> bool:
        """Whether words [first, last) are an adjective of another noun, which keeps it: "on the left nightstand"."""
        k = next((k for k, m in enumerate(self.mentions) if m.first == last), None)
        if k is None or self._is_target[k] or self.mentions[k].plural:
            return False
        m = self.mentions[k]
        if m.noun == self.mentions[self.target or 0].noun:
            return False
        said = Constraint(relation, span=self._span(first, last))
        if all(c.span != said.span for c in self._nested.get(m.noun, ())):
            self._nested[m.noun] = (*self._nested.get(m.noun, ()), said)
        return True

    def _stands_speaker(self, word: int) -> bool:
        """Whether a place at ``word`` is where somebody stands to look: "standing in the middle of the room"."""
        lead = self.tokens[self._sentence_start(word) : word]
        while lead and lead[-1] in _TO_A_PLACE:
            lead.pop()
        if lead[-1:] and lead[-1] in _STANDING:
            return all(not self._is_target[k] for k, m in enumerate(self.mentions) if m.last <= word)
        return lead[-1:] == ["from"] and any(t.startswith("look") for t in lead)

    def _size_of_target(self, first: int, after: list[int], before: list[int]) -> bool:
        if after:
            m = self.mentions[after[0]]
            between = self.tokens[first + 1 : m.first]
            close = m.first - first <= 2 and not any(t in (".", ",") for t in self.tokens[first : m.first])
            if close or only_adjectives(between):
                own = self._is_target[after[0]] or m.noun == self.mentions[self.target or 0].noun
                return own or any(t in ("it", "this", "one") for t in self.tokens[first + 1 : first + 3])
        recent = self.tokens[max(self._sentence_start(first), first - 3) : first]
        return not before or self._is_target[before[-1]] or any(t in ("it", "this", "one") for t in recent)

    def _colours(self, k: int) -> tuple[Constraint, ...]:
        """Colours and substances said of mention ``k``."""
        if not self._is_target[k]:
            return tuple(self._looks.get(k, {}).values())
        owners = [owner for owner in self._looks if self._is_target[owner]]
        said = [c for owner in owners for c in self._looks[owner].values()]
        return tuple({(c.relation, c.value): c for c in sorted(said, key=lambda c: c.span)}.values())

    @cached_property
    def _looks(self) -> dict[int, dict[tuple[str, str], Constraint]]:
        """Colours and substances of the sentence by the mention that they are said of."""
        table = relation_words()
        found: dict[int, dict[tuple[str, str], Constraint]] = {}
        for i, token in enumerate(self.tokens):
            colour = table.colours.get(token, "")
            owner = self._owner(i) if colour or token in table.materials else None
            if owner is None:
                continue
            relation, value = ("colour", colour) if colour else ("material", token)
            negated = any(t in _NOT for t in self.tokens[max(0, i - 2) : i])
            said = Constraint(relation, value=value, negated=negated, span=self._span(i, i + 1))
            found.setdefault(owner, {})[relation, value] = said
        return found

    def _owner(self, i: int) -> int | None:
        """The mention that an adjective at word ``i`` belongs to."""
        if any(m.first <= i < m.last for m in self.mentions):
            return None  # part of a noun: "paper towel"
        after = [k for k, m in enumerate(self.mentions) if m.first > i]
        if after and only_adjectives(self.tokens[i + 1 : self.mentions[after[0]].first]):
            return after[0]
        start = self._sentence_start(i)
        before = [k for k, m in enumerate(self.mentions) if start <= m.first and m.last <= i]
        if not before or any(t in _SUBJECTS for t in self.tokens[self.mentions[before[-1]].last : i]):
            return self.target
        return before[-1]

    # ---------------------------------------------------------------------------------------------- point of view

    def _speaker(self) -> tuple[SpeakerViewpoint | None, Span]:
        """Where the speaker stands, if the sentence says so, and the words that say it."""
        for first, last in self._matches(relation_words().viewpoint):
            said = self.tokens[first:last]
            if any(t.startswith(("enter", "walk", "come", "coming")) or t in ("go", "going") for t in said):
                return SpeakerViewpoint("from", ObjectPhrase("door", self._span(first, last))), (first, last)
            subject = self.tokens[first - 1] if first else ""
            if said[0] in ("facing", "face") and subject in ("is", "chair", "are", "couch", "and", "desk", "table"):
                continue
            if said[0] in ("facing", "face") and any(
                m.last == first and self._is_target[k] for k, m in enumerate(self.mentions)
            ):
                continue  # "the ottoman facing the tv"
            stands = subject in ("is", "are", "been", "that's", "was") or any(m.last == first for m in self.mentions)
            if said[0] == "standing" and stands:
                continue  # "the lamp standing before the couch" is no speaker
            ahead = [m for m in self.mentions if 0 <= m.first - last <= 4]
            if not ahead:
                continue
            if said[0] == "from":  # "from the door, the left chair": not "away from", "second from"
                named = ahead[0].noun in ("door", "doorway", "entrance", "entry") and first == 0
                if not named:
                    continue
            kind = "away" if "back" in said else ("from" if "from" in said else "at")
            if kind == "at" and first == 0:
                kind = "before"
            return SpeakerViewpoint(kind, self._phrase(ahead[0])), (first, last)
        return None, (0, 0)

    def _seen_from(self, c: Constraint, speaker: SpeakerViewpoint | None) -> Constraint:
        """'Facing the couch, the lamp on the left': left of the couch for who faces it."""
        if speaker is None or speaker.kind != "before" or c.relation not in ("left-of-all", "right-of-all"):
            return c
        return replace(c, relation=f"viewer-{c.relation.removesuffix('-of-all')}", anchors=(speaker.anchor,))

    # ----------------------------------------------------------------------------------------------------- relations

    def _relations(self, viewpoint_words: Span) -> list[Constraint]:
        triggers = self._triggers(viewpoint_words)
        stops = [t.first for t in triggers[1:]] + [len(self.tokens)]
        found: list[Constraint] = []
        for _ in range(2):  # what is said of an anchor may follow it: the second time it is known
            read = (self._relation(trigger, stop) for trigger, stop in zip(triggers, stops, strict=False))
            found = [c for c in read if c is not None]
        told = {a.span for c in found if c.relation != "with" for a in c.anchors}
        found = [c for c in found if c.relation != "with" or not told & {a.span for a in c.anchors}]  # "with X on it"
        sides = self._possessive_sides()
        had = {a.span for c, owned in sides if owned for a in c.anchors}
        found = [c for c in found if c.relation not in ("with", "in", "on") or not had & {a.span for a in c.anchors}]
        return [*found, *(c for c, _ in sides)]

    def _triggers(self, viewpoint_words: Span) -> list[_Trigger]:
        used = list(self._taken)
        found = [trigger for trigger, _ in self._parted]
        for name, pattern in relation_words().relations:
            for first, last in self._matches(pattern):
                if any(used[first:last]):
                    continue
                used[first:last] = [True] * (last - first)
                if not (
                    first < viewpoint_words[1] and last > viewpoint_words[0]
                ):  # "facing the" is no "in front of" then
                    found.append(_Trigger(first, last, name))
        return sorted(found, key=lambda t: t.first)

    def _relation(self, trigger: _Trigger, stop: int) -> Constraint | None:
        """What a relation word says, with its anchors; None when it says nothing that can be told."""
        first, last, name = trigger.first, trigger.last, trigger.name
        end = self._sentence_end(first)
        limit = end if name == "between" else min(end, stop)
        objects = [k for k, m in enumerate(self.mentions) if last <= m.first < min(limit, last + _REACH)]
        pronoun = any(t in _PRONOUNS for t in self.tokens[last : min(limit, last + 3)])
        pronoun &= not (objects and self.mentions[objects[0]].first - last <= 2)
        chosen = objects[: 2 if name == "between" or self._joined(objects) else 1]
        anchors = [k for k in chosen if not self._is_target[k]]
        about_target = pronoun or any(self._is_target[k] for k in chosen)
        subject, nested = self._subject(first)
        span = self._span(first, last)
        said_of_target = about_target and not anchors
        if not objects and not pronoun and self._of_what_precedes(first, last):
            said_of_target, subject = True, self._before(first)
        there = self._stands_there(last, objects) if about_target and subject is None else None
        if there is not None:  # "behind it is a desk"
            said_of_target, subject = True, there
        if said_of_target:
            if subject is None:
                again = [k for k in chosen if k != self.target and self.mentions[k].first - last <= 1]
                if self.target is None or pronoun or not again or self.mentions[self.target].last != first:
                    return None
                other = self._phrase(self.mentions[again[0]])  # "the desk on the desk": another one
                return Constraint(name, (other,), negated=self._is_negated(first, last), span=span)
            other = self._phrase(self.mentions[subject])
            if set(self.tokens[first:last]) & _FACES:
                return Constraint(name, (other,), negated=self._is_negated(first, last), span=span)
            without = self._is_without(self.mentions[subject])  # "without a lamp on it"
            return Constraint(_INVERSE.get(name, name), (other,), negated=without, span=span)
        if not anchors:
            return None
        phrases = tuple(self._phrase(self.mentions[k]) for k in anchors)
        rank = next((rank for parted, rank in self._parted if parted == trigger), 1)
        ahead = self.mentions[anchors[0]].first
        if name == "on" and subject is None and self._sits_at(self.tokens[last:ahead]):
            name, span = "near", self._span(first, ahead)
        constraint = Constraint(name, phrases, rank=rank, negated=self._is_negated(first, last), span=span)
        if subject is None:
            return constraint
        self._remember(subject, constraint)
        if nested:  # "the lamp on the desk by the window": likely true of both
            return replace(constraint, weight=_NESTED)
        return Constraint("near", phrases, weight=_CONTEXT, span=span)

    def _sits_at(self, lead: Sequence[str]) -> bool:
        """Whether the target is a seat and "on" tells at which side of a table it stands: "on the end of the"."""
        seat = self.target is not None and self.mentions[self.target].noun.split()[-1] in _SEATS
        return seat and bool(_AT_SIDES & set(lead)) and "of" in lead

    def _stands_there(self, last: int, objects: list[int]) -> int | None:
        """What "behind it (there) is a desk" says to stand there: the mention; None in other clauses."""
        skip = next((i for i in range(last, min(last + 4, len(self.tokens))) if self.tokens[i] in _STANDS_THERE), None)
        if skip is None:
            return None
        told = self.tokens[last:skip]
        pronoun = told[:1] and told[0] in _PRONOUNS and told[1:] in ([], ["there"], [","], [",", "there"])
        own = bool(objects) and self._is_target[objects[0]] and self.mentions[objects[0]].last in (skip, skip - 1)
        if not (pronoun or own):
            return None
        after = [k for k, m in enumerate(self.mentions) if m.first > skip]
        if not after or self._is_target[after[0]]:
            return None
        lead = self.tokens[skip + 1 : self.mentions[after[0]].first]
        return after[0] if only_adjectives([t for t in lead if t not in _ROOMS]) else None  # "is the bathroom sink"

    def _before(self, word: int) -> int | None:
        """The last mention before a word."""
        return max((k for k, m in enumerate(self.mentions) if m.last <= word), default=None)

    def _of_what_precedes(self, first: int, last: int) -> bool:
        """Whether words [first, last) say something of their object, and it stands before: "the cup that the table
        carries"."""
        subject = self._before(first)
        if subject is None or self._is_target[subject] or self.target is None:
            return False
        target = self.mentions[self.target]
        if target.last > self.mentions[subject].first or not set(self.tokens[first:last]) & _VERBS:
            return False
        clause = self.tokens[target.last : self.mentions[subject].first]
        aside = self.tokens[self.mentions[subject].last : first]
        return any(t in ("that", "which") for t in clause) and len(clause) <= 3 and len(aside) <= 1

    def _joined(self, objects: list[int]) -> bool:
        """Whether the first two objects are named together: 'the couch and the table'."""
        if len(objects) < 2:
            return False
        return self.tokens[self.mentions[objects[0]].last] in ("and", ",")

    def _subject(self, first: int) -> tuple[int | None, bool]:
        """Which other object a relation at word ``first`` is said of (None = the target), and whether perhaps both."""
        start = self._sentence_start(first)
        before = [k for k, m in enumerate(self.mentions) if m.last <= first and m.first >= start]
        if not before:
            return None, False
        k = before[-1]
        m = self.mentions[k]
        between = self.tokens[m.last : first]
        if self.tokens[start : start + 1] == ["there"] and len(before) > 1 and not self._is_target[before[0]]:
            said = self.tokens[self.mentions[before[0]].last : m.first]
            if said[:1] in (["with"], ["of"]) and "," not in said:  # "there is a door with glass left of it"
                return before[0], False
        if self._is_target[k] or any(t in ("it", "which", "one", "it's") for t in between):
            return None, False
        target_before = any(self._is_target[j] for j in before)
        pronoun_before = any(t in ("it", "this", "that", "it's") for t in self.tokens[start : m.first])
        if any(t in (",", "and", ";", "that", "but") for t in between) or target_before or pronoun_before:
            nested = len(between) <= 2 and "and" not in between and "," not in between
            if self.tokens[m.first] in ("one", "ones"):
                return k, False  # "the chair next to the one by the door" stands where it stands
            return (k, True) if nested else (None, False)
        return k, False

    def _remember(self, subject: int, constraint: Constraint) -> None:
        noun = self.mentions[subject].noun
        relation = "near" if constraint.relation == "closest" else constraint.relation
        known = self._nested.get(noun, ())
        new = constraint.anchors[0].noun != noun and all(c.span != constraint.span for c in known)
        if new and len(known) < _MOST_OF_ANCHOR:
            said = replace(constraint, relation=relation)
            self._nested[noun] = (*known, _cut_below(said, _ANCHOR_DEPTH - 1))

    def _is_negated(self, first: int, last: int) -> bool:
        own = self.tokens[first:last]
        if own[0] in ("not", "nowhere"):
            return False  # "not far from" is near
        near = self.tokens[max(0, first - 2) : last]
        denied = {"without", "no"} & {*own, *self.tokens[last : last + 1]}  # "that has | no book"
        return bool(denied) or any(t in _NOT for t in near)

    def _is_without(self, mention: Mention) -> bool:
        word, place = governor(self.tokens, mention)
        denied = word in ("have", "has", "having", "any") and any(
            t in _NOT for t in self.tokens[max(0, place - 2) : place]
        )
        return word in ("without", "no") or denied

    def _possessive_sides(self) -> list[tuple[Constraint, bool]]:
        """'To its left is a lamp', 'with a lamp on its right': the target lies on the other side of the lamp; or
        on this one, and True, where the lamp has it there."""
        found: list[tuple[Constraint, bool]] = []
        for side, other in (("left", "right"), ("right", "left")):
            for i, token in enumerate(self.tokens):
                if token != side or i < 2 or self.tokens[i + 1 : i + 2] == ["of"]:
                    continue
                owner = next((j for j in (i - 1, i - 2) if self.tokens[j] in ("its", "it's", "the")), 0)
                if owner == 0 or self.tokens[owner - 1] not in ("to", "on", "at"):
                    continue
                had = self._had_by(owner) if self.tokens[owner] != "the" else None
                if had is not None:
                    span = self._span(owner - 1, i + 1)
                    found.append((Constraint(side, (self._phrase(self.mentions[had]),), span=span), True))
                    continue
                lamp = self._at_side(owner - 1, i + 1, possessive=self.tokens[owner] != "the")
                if lamp is not None:
                    span = self._span(owner - 1, i + 1)
                    said_before = self.tokens[owner - 2] in ("has", "have", "having") if owner > 1 else False
                    found.append((Constraint(other, (self._phrase(self.mentions[lamp]),), span=span), said_before))
        return found

    def _had_by(self, word: int) -> int | None:
        """'The desk has this lamp on its left': the mention that has the target, before a word."""
        before = [k for k, m in enumerate(self.mentions) if m.last <= word]
        if len(before) < 2 or not self._is_target[before[-1]] or self._is_target[before[-2]]:
            return None
        between = self.tokens[self.mentions[before[-2]].last : self.mentions[before[-1]].first]
        return before[-2] if set(between) & {"has", "have"} else None

    def _with_own_sides(self, found: list[Constraint]) -> list[Constraint]:
        """'On the couch's left': its own left side, in place of what the words before it would say alone."""
        own: list[Constraint] = []
        for i, (side, last) in self._owned.items():
            k = next((k for k, m in enumerate(self.mentions) if m.first <= i < m.last), None)
            if k is None or self._is_target[k]:
                continue
            anchor = self._phrase(self.mentions[k])
            found = [c for c in found if all(a.span != anchor.span for a in c.anchors)]
            own.append(Constraint(OWN_SIDES[side], (anchor,), span=self._span(i, last)))
        return [*found, *own]

    def _at_side(self, first: int, last: int, possessive: bool) -> int | None:
        """The mention that stands at the target's side, told by words [first, last)."""
        while last < len(self.tokens) and self.tokens[last] in ("hand", "side"):
            last += 1
        start = self._sentence_start(first)
        before = [k for k, m in enumerate(self.mentions) if m.last <= first and m.first >= start]
        if self.tokens[last : last + 1] in (["is"], ["are"], ["there"]):
            after = [k for k, m in enumerate(self.mentions) if 0 <= m.first - last <= 6]
            return after[0] if after and not self._is_target[after[0]] else None
        if possessive and first and self.tokens[first - 1] in ("has", "have", "having"):  # "has on its left the lamp"
            after = [k for k, m in enumerate(self.mentions) if 0 <= m.first - last <= 3]
            return after[0] if after and before and self._is_target[before[-1]] else None
        if not before or self._is_target[before[-1]]:
            return None
        m = self.mentions[before[-1]]
        if possessive:
            return before[-1] if first - m.last <= 3 else None
        owns = any(t in ("has", "with", "have") for t in self.tokens[start : m.first])
        return before[-1] if owns and first - m.last <= 2 else None


def _owners(words: Sequence[Word]) -> tuple[list[Word], dict[int, tuple[str, int]]]:
    """The words, those that own a side ("the couch's left") without their ending; and for each of these, by its place,
    which side is meant and the place behind the words that say it."""
    plain, owned = list(words), dict[int, tuple[str, int]]()
    for i, word in enumerate(words):
        if not word.text.endswith(("'s", "\u2019s")) or word.text[:-2] in (
            "it",
            "that",
            "there",
            "what",
            "where",
            "who",
        ):
            continue
        at = i + 1 + (words[i + 1 : i + 2] != [] and words[i + 1].text == "own")
        side = words[at].text.removesuffix("-hand") if at < len(words) else ""
        follows = words[at + 1].text if at + 1 < len(words) else ""
        if side not in OWN_SIDES or (i and words[i - 1].text in _ADJECTIVES and words[i - 1].text in OWN_SIDES):
            continue
        if follows and follows not in ("side", "hand", ".", ",", "and", "that", "which", "is", "?", "!"):
            continue  # "the couch's left leg" is a part of it
        plain[i] = replace(word, text=word.text[:-2], end=word.end - 2)
        last = at + 1
        while last < len(words) and words[last].text in ("side", "hand"):
            last += 1
        owned[i] = side, last
    return plain, owned


# --------------------------------------------------------------------------------------------------------------------
# which noun of a sentence is its target


def with_unknown(tokens: Sequence[str], mentions: Sequence[Mention]) -> list[Mention]:
    """The mentions, and before them the noun that a sentence begins with when nobody knows it: "find the unicorn"."""
    i, asked = 0, False
    while i < len(tokens) and (tokens[i] in _OPENERS or tokens[i] in _ORDERS):
        asked, i = True, i + 1
    asked |= i < len(tokens) and tokens[i] in _DETERMINERS
    known = mentions[0].first if mentions else len(tokens)
    while i < min(known, len(tokens)) and (tokens[i] in _DETERMINERS or tokens[i] in _ADJECTIVES):
        i += 1
    last = i
    while last < min(len(tokens), i + 3) and _may_be_noun(tokens[last]):
        last += 1
    if last == i or any(m.first < last and m.last > i for m in mentions) or tokens[last - 1] in _LIKE:
        return list(mentions)  # "an average sized, flat pillow"
    if tokens[last : last + 1] == ["of"]:
        return list(mentions)  # "the set of towels"
    following = next((tokens[last : m.first] for m in mentions if m.first >= last), None)
    if (
        following is not None
        and len(following) <= 5
        and all(t in _ADJECTIVES or t in _LIKE or t in _SITES or _may_be_noun(t) for t in following[:-1])
        and all(t in _ADJECTIVES or t in _LIKE or t in _SITES or _may_be_noun(t) or _swings(t) for t in following[-1:])
    ):
        return list(mentions)  # an adjective that nobody knows: "the ornate desk"
    if not asked and last < len(tokens):
        return list(mentions)  # no noun phrase
    if mentions and (tokens[i - 1 : i] == ["to"] or _does_something(tokens, i, last)):
        return list(mentions)  # "the cat keeps knocking over the lamp", "i dropped my keys in the bucket"
    return [Mention(i, last, " ".join(tokens[i:last]), False, known=False), *mentions]


def _does_something(tokens: Sequence[str], first: int, last: int) -> bool:
    """Whether words [first, last), which nobody knows, are somebody and a verb, or a verb, rather than a thing."""
    words = tokens[first:last]
    before, after = tokens[first - 1] if first else "", tokens[last : last + 2]
    verb = words[-1].endswith(("ed", "es", "ps", "ts", "ds", "ks", "ns", "ys")) and len(words) > 1
    done = words[0].endswith("ed") or before in ("i", "we", "they", "he", "she", "you")
    kept = len(after) == 2 and after[0] in ("are", "is", "were") and after[1] in _KEPT | {"in", "inside"}
    return verb or done or kept


_KEPT = frozenset(("kept", "stored", "locked", "hidden"))


def with_ones(tokens: Sequence[str], mentions: Sequence[Mention], target: int) -> tuple[list[Mention], int]:
    """The mentions with "the one" that something is beside, "next to the green one", "left of two others", called like
    the target; and the place of the target among them."""
    noun, found = mentions[target].noun, list(mentions)
    for i, token in enumerate(tokens):
        known = i <= mentions[target].first or any(m.first <= i < m.last for m in mentions)
        if known or token not in ("one", "ones", "others"):
            continue
        first = i
        while first > 0 and tokens[first - 1] in _ADJECTIVES and tokens[first - 1] not in _NOT_ADJECTIVES:
            first -= 1
        definite = token == "others" or not {"the", "other", "another"}.isdisjoint(tokens[first:i])
        if token == "others" and tokens[first - 1] == "between":
            continue  # in the middle of its kind
        if definite and first > 1 and tokens[first - 1] in _BESIDE:
            found.append(Mention(i, i + 1, noun, token != "one"))
    found.sort(key=lambda m: m.first)
    return found, found.index(mentions[target])


_BESIDE = frozenset(
    (
        "to",
        "of",
        "from",
        "beside",
        "behind",
        "near",
        "above",
        "below",
        "under",
        "beneath",
        "by",
        "between",
        "opposite",
        "underneath",
        "over",
        "on",
        "against",
        "atop",
        "inside",
    )
)


def with_anything(tokens: Sequence[str], mentions: Sequence[Mention]) -> list[Mention]:
    """The mentions, and before them "something" where a sentence is about whatever there is."""
    start = 0
    while start < len(tokens) and (tokens[start] in _OPENERS or tokens[start] in _ORDERS):
        start += 1
    thing = _best_thing(tokens, mentions)
    if thing is not None:
        return sorted([*mentions, Mention(thing, thing + 1, ANYTHING, plural=False)], key=lambda m: m.first)
    if tokens[start : start + 1] not in ([ANYTHING], ["something"], ["everything"]):
        return list(mentions)
    if any(m.first <= start < m.last for m in mentions):
        return list(mentions)  # "something to sit on"
    return [Mention(start, start + 1, ANYTHING, plural=True), *mentions]


def _best_thing(tokens: Sequence[str], mentions: Sequence[Mention]) -> int | None:
    """Where "the tallest thing on the table" says "thing", before any other noun; None elsewhere."""
    for i, token in enumerate(tokens[:-1]):
        if any(m.first <= i for m in mentions):
            return None
        best = i > 0 and (tokens[i - 1] in _ONE_OF or tokens[i - 1].endswith("est"))
        word, place = governor(tokens, Mention(i, i + 1, token, plural=False))
        some = token == "thing" and "a" in tokens[place + 1 : i] and word != "of"  # "there's a red thing between"
        if (token in ("thing", "object", "item") and best) or some:
            return i
    return None


def _is_verb(tokens: Sequence[str], m: Mention, ends: set[int]) -> bool:
    """ "The tv the dresser supports", "it sticks", "the basket that stands the highest": verbs."""
    before = tokens[m.first - 1] if m.first else ""
    if m.last - m.first != 1 or not tokens[m.first].endswith("s"):
        return False
    if tokens[m.first] == "supports" and m.first in ends:
        return True
    after = tokens[m.last : m.last + 2]
    best = after[:1] == ["the"] and after[-1].endswith("est")
    return before in ("it", "he", "she") or (before in ("that", "which") and tokens[m.first] == "stands" and best)


def without_verbs(tokens: Sequence[str], mentions: Sequence[Mention]) -> list[Mention]:
    """The mentions less verbs that look like one: "the cart stands below the window"."""
    ends = {m.last for m in mentions}
    subjects = ("it", "which", "that", "one", "there", "who")
    return [
        m for m in mentions
        if not _is_verb(tokens, m, ends) and not (
            m is not mentions[-1]  # a verb has an object
            and m.last - m.first == 1 and tokens[m.first] in ("stands", "stand")
            and (m.first in ends or (m.first > 0 and tokens[m.first - 1] in subjects))
            and tokens[m.last : m.last + 1] != [] and tokens[m.last] not in ("is", "that", "which", ",", ".", "with")
        )
    ]  # fmt: skip


_SITES = frozenset(("floor", "wall", "room", "home", "house"))  # "the hotel room bed" is a bed
_LIKE = frozenset(("type", "style", "kind", "looking", "shaped", "sized", "colored", "coloured"))


def _swings(token: str) -> bool:
    """Whether a word tells how a thing is rather than where: "an oscillating fan", not "a unicorn facing a fan"."""
    return token.endswith("ing") and not (token in _PREPOSITIONS or token in _NO_NOUNS or token in _VERBS)


def _may_be_noun(token: str) -> bool:
    stops = (_PREPOSITIONS, _ADJECTIVES, _ORDERS, _OPENERS, _DETERMINERS, _NO_NOUNS)
    return (
        len(token) > 1
        and token[0].isalpha()
        and "'" not in token
        and not token.endswith("ing")
        and not any(token in words for words in stops)
    )


def only_adjectives(tokens: Sequence[str]) -> bool:
    """Whether nothing but adjectives and articles stands in ``tokens``."""
    return all(t in _ADJECTIVES and t not in _NOT_ADJECTIVES for t in tokens)


def governor(tokens: Sequence[str], mention: Mention) -> tuple[str, int]:
    """The word before the noun phrase of ``mention`` and its place; ("^", -1) at the beginning."""
    i = mention.first - 1
    if i > 0 and tokens[i] in ("front", "back", "rear") and tokens[i - 1] in _ADJECTIVES:
        i -= 1  # "the front pillow"
    while i >= 0 and tokens[i] in _ADJECTIVES and tokens[i] not in (",", ".", "with", "and"):
        i -= 1
    return (tokens[i], i) if i >= 0 else ("^", -1)


def choose_target(tokens: Sequence[str], mentions: Sequence[Mention]) -> int | None:
    """Index of the mention that the sentence is about, or None without any noun.

    Points for what stands before a noun, tuned on human descriptions: an order ("choose the"), the beginning of a
    sentence, "it is a"; against nouns behind prepositions and late ones.
    """
    if not mentions:
        return None
    pointed = _pointed_at(tokens, mentions)
    if pointed is not None:
        return pointed
    named = _named(tokens, mentions)
    if named is not None:
        return named
    counts = Counter(m.noun for m in mentions)
    first_end = tokens.index(".") if "." in tokens else len(tokens)
    scores = [_points(tokens, mentions, k, counts, first_end) for k in range(len(mentions))]
    for k in range(len(mentions) - 1):  # "the couch blanket" is a blanket
        if mentions[k + 1].first == mentions[k].last and not mentions[k].plural:
            scores[k + 1] = max(scores[k + 1], scores[k] + 0.1)
    return max(range(len(mentions)), key=lambda k: (scores[k], -k))


_WANTED = (
    ("i", "want"), ("i", "need"), ("i", "mean"), ("i", "meant"), ("i", "am", "looking", "for"),
    ("you", "should", "take"), ("i'm", "looking", "for"),
    ("i", "would", "like"), ("we", "want"), ("we", "need"), ("you", "want"), ("you", "have", "to"), ("i", "have", "to"),
    ("i", "am", "after"), ("i'm", "after"), ("i", "am", "talking", "about"), ("i'm", "talking", "about"),
)  # fmt: skip


def _pointed_at(tokens: Sequence[str], mentions: Sequence[Mention]) -> int | None:
    """The only mention that a single clause points at: "the desk carries this lamp", "... is over the desk I want",
    "between the bed and the desk there is a chair"."""
    if any(t in ("it", ".") for t in tokens[:-1]) or len(mentions) < 2:
        return None
    this = [k for k, m in enumerate(mentions) if m.first > 0 and said_this(tokens, m)]
    if len(this) == 1 and this[0] > 0 and tokens[0] != "this":
        return this[0]
    for k, m in enumerate(mentions):
        tail = list(tokens[m.last : m.last + 5])
        tail = tail[1:] if tail[:1] in (["that"], ["which"]) else tail
        said = next((words for words in _WANTED if tuple(tail[: len(words)]) == words), ())
        wanted = m.last + len(said) + (len(tokens[m.last : m.last + 5]) - len(tail))
        if said and tokens[0] not in ("it's", "it", "this", "that's") and not _noun_follows(tokens, mentions, wanted):
            return k
    if tokens[0] in ("between", "overhead"):
        behind = 2 if tokens[0] == "between" else 1
        if len(mentions) == behind + 1 and _said_to_be_there(
            tokens[mentions[behind - 1].last : mentions[behind].first]
        ):
            return behind
    return None


def _noun_follows(tokens: Sequence[str], mentions: Sequence[Mention], place: int) -> bool:
    """Whether a noun phrase begins at a word: "between the two beds you want | the chair"."""
    after = next((m for m in mentions if m.first >= place), None)
    return after is not None and only_adjectives([t for t in tokens[place : after.first] if t not in ("front", "back")])


def _named(tokens: Sequence[str], mentions: Sequence[Mention]) -> int | None:
    """The mention that is said to be the one: "we are looking for the X", "the object is a X", "the X is the item ...";
    or that every clause gives a place beside: "left of the X is a lamp. right of the X is a desk"."""
    for k in reversed(range(len(mentions))):
        m = mentions[k]
        first = m.first
        while first > 0 and tokens[first - 1] in _ADJECTIVES and tokens[first - 1] not in (*_NOT_ADJECTIVES, "and"):
            first -= 1
        before, after = tuple(tokens[max(0, first - 2) : first]), tuple(tokens[m.last : m.last + 3])
        sought = before == ("looking", "for") and tokens[max(0, first - 4) : first - 2][-1:] != ["not"]
        identity = before in _IDENTITIES and first - 2 > 0
        item = after[:2] == ("is", "the") and after[2:] and (after[2] in _ANY_THING or after[2] == "one")
        if sought or identity:
            return k
        if item:
            return _head(tokens, mentions, k)
    clauses = _placed(tokens, mentions)
    nouns = {mentions[anchor].noun.split()[-1] for anchor, _ in clauses}  # "the bathroom sink ... the sink"
    if len(clauses) >= 2 and len(nouns) == 1:
        return clauses[0][0]
    return clauses[0][1] if len(clauses) == 1 and tokens.count(".") <= 1 else None


def _head(tokens: Sequence[str], mentions: Sequence[Mention], k: int) -> int:
    """The mention that a phrase which ends in the ``k``-th is about: "the chair that hides the lamp"."""
    first = k
    while first > 0:
        between = tokens[mentions[first - 1].last : mentions[first].first]
        joined = any(t in _PREPOSITIONS or t in ("that", "which", "who") for t in between)
        if len(between) > 6 or not joined or not _PARTING.isdisjoint(between):
            break
        first -= 1
    return k if governor(tokens, mentions[first])[0] in _PREPOSITIONS else first


_PARTING = frozenset((",", ".", ";", "and", "is", "are", "there", "but", "not"))
_IDENTITIES = frozenset((thing, "is") for thing in ("object", "item", "thing"))
_STANDS_THERE = frozenset(("is", "are", "stands", "hangs", "sits", "lies"))


def _placed(tokens: Sequence[str], mentions: Sequence[Mention]) -> list[tuple[int, int]]:
    """Of clauses that begin with a place, "left of the bed is the lamp", the mentions of both; none unless all do."""
    found: list[tuple[int, int]] = []
    start = 0
    for end in [*(i for i, t in enumerate(tokens) if t in _END), len(tokens)]:
        if end > start:
            inside = [k for k, m in enumerate(mentions) if start <= m.first and m.last <= end]
            if len(inside) < 2 or tokens[start] not in _PLACE_WORDS:
                return []
            anchor, thing = inside[0], inside[1]
            lead, link = tokens[start : mentions[anchor].first], tokens[mentions[anchor].last : mentions[thing].first]
            link = [t for t in link if t not in _ROOMS]  # "is the bathroom sink"
            if len(lead) > 8 or not link or link[0] not in _STANDS_THERE or not only_adjectives(link[1:]):
                return []
            found.append((anchor, thing))
        start = end + 1
    return found


_PLACE_WORDS = frozenset(
    ("to", "on", "left", "right", "above", "below", "under", "underneath", "beneath", "behind", "beside", "next",
     "near", "in", "across", "over", "against", "at", "directly", "opposite", "atop", "adjacent")
)  # fmt: skip


def said_this(tokens: Sequence[str], mention: Mention) -> bool:
    """Whether "this" stands before a noun, or before its adjectives."""
    i = mention.first - 1
    while i > 0 and tokens[i] in _ADJECTIVES and tokens[i] not in ("this", ",", ".", "with", "and"):
        i -= 1
    return tokens[i] == "this"


def _said_to_be_there(tokens: Sequence[str]) -> bool:
    """ "There is a", "stands a", "hangs the", "you will see a"."""
    said = ("is", "are", "stands", "stand", "hangs", "lies", "sits", "see", "find", "rests", "there's")
    return any(t in said for t in tokens)


_LOOK_THEN = frozenset((verb, then) for verb in ("look", "walk", "go") for then in ("and", "then"))
_ANY_THING = frozenset(("object", "item", "thing", "structure"))


def _points(tokens: Sequence[str], mentions: Sequence[Mention], k: int, counts: Counter[str], first_end: int) -> float:
    m = mentions[k]
    word, place = governor(tokens, m)
    before = tokens[place - 1] if place > 0 else "^"
    points = -0.35 * k - (2.0 if m.first > first_end else 0.0)
    if word == "^":
        points += 2.2
    elif word in (".", ",", ";"):
        points += 1.2
    elif word in ("at", "to") and (before, tokens[place - 2] if place > 1 else "") in _LOOK_THEN:
        points += 3.5  # "walk over to the window and look at the seat"
    elif word in _ORDERS and (before in _NOT or before in ("don't", "dont")):
        points -= 3.0  # "do not choose the sofas"
    elif word in _ORDERS:
        points += 0.8 * k  # of several orders the last: "you want the bed on the left, choose the pillow"
        points += 4.0 if word not in ("mean", "meant") else 6.5  # whatever the sentences before it spoke of
    elif word in ("is", "it's", "its", "are"):
        points += 2.5 if before in _THERE or word != "is" else 0.6
        if before == "there" and k > 0 and any(t in ("it", "him") for t in tokens[m.last : m.last + 8]):
            points -= 3.0  # "... there is a lamp on it"
    elif word == "of":
        among = before in _PARTITIVES and place > 1 and tokens[place - 2] in _PREPOSITIONS  # "on one of the shelves"
        points += -1.8 if among else 1.8 if before in _PARTITIVES or place == 0 else -1.5
    elif word in _PREPOSITIONS:
        points -= 1.8
    if counts[m.noun] > 1:
        points += 0.3
    if m.first > 0 and tokens[m.first - 1] == "this":
        points += 2.0
    elif word == "this":
        points += 1.0
    if m.noun in _VAGUE:
        points -= 0.8
    elif m.noun in _ANY_THING:
        points -= 3.0  # "this object is a white bathtub"
    compound = k + 1 < len(mentions) and mentions[k + 1].first == m.last
    if compound and tokens[m.last - 1] != ",":
        points -= 1.5
    return points
