"""From the reader's graph over the words of a sentence to the :class:`~.meaning.Meaning`: nouns, numbers, lengths."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from embodied_perceptron.language.lexicon import (
    Mention,
    Word,
    cardinal,
    is_implement,
    is_known_noun,
    is_served,
    lengths,
    lexicon,
    long_ranks,
    metres,
    ordinal,
    pluralize,
    relation_words,
    serving,
    singular,
    split_words,
    word_set,
)
from embodied_perceptron.language.meaning import (
    ANYTHING,
    ATTRIBUTES,
    EVERY_NUMBER,
    EXCLUDED,
    HELD,
    LANDMARK,
    MENTIONED,
    NO_ENTITY,
    RELATIONS,
    TARGET,
    Constraint,
    Entity,
    Kind,
    Meaning,
    ObjectPhrase,
    Predicate,
    SentenceGraph,
    SpeakerViewpoint,
)
from embodied_perceptron.language.object_states import STATES_OF

_KINDS: dict[str, Kind] = {
    "find": "object",
    "count": "count",
    "exists": "exists",
    "where": "where",
    "contents": "contents",
}
_PRONOUNS, _WHATEVER, _SOMETHING = word_set("pronouns"), word_set("whatever"), word_set("something")
_FOR_SOMETHING, _CLAUSE = word_set("for_something"), word_set("clause")  # first words of a use, and words inside one
_SEVERAL, _ARTICLES, _THE = word_set("several"), word_set("articles"), frozenset(("the", "this", "that"))
_AT = frozenset(("in", "on", "near", "end"))  # places that are not in front of, behind or far from a landmark
_ONES = frozenset(("one", "ones"))
_BACKS = frozenset(("back", "backs"))  # "with its back to the window"
_LIKE_THE_TARGET = word_set("one_like_it") | _ARTICLES  # "between the red and the green one"
_WHOLE_PARTS = word_set("whole_parts")
_PARTS, _SIDES_OF_ALL = word_set("parts") | _WHOLE_PARTS, word_set("sides")
_ROOMS, _ACCESSORIES, _PREPOSITIONS = word_set("rooms"), word_set("accessories"), word_set("prepositions")
_OPEN_ENDS = _PREPOSITIONS | {"for", "with", "of", "to"}
_PARTICLES, _FACING, _AT_MOST = word_set("particles"), word_set("facing"), word_set("at_most")
_LOOKED_AT = _FACING | {"ahead", "see", "sees", "opposite"}
_FROM, _TOWARDS = frozenset(("from", "away", "off")), frozenset(("towards", "toward"))
_SPEAKER = frozenset(("us", "me", "you", "here"))
_SEATED = frozenset(("sit", "sits", "sat", "sitting", "seated"))
_DENIALS = frozenset(("without", "isn't", "aren't", "not", "lacking"))
_PARTING = frozenset((",", ";", "and", "by", "x"))
_FLOORS = frozenset(("floor", "ground", "carpet"))
_ENDS = frozenset((".", "?", "!", ";", "mean"))  # of the sentence before
_STATES = {
    "open": "open", "opened": "open", "ajar": "open", "closed": "closed", "shut": "closed", "filled": "filled",
    "full": "filled", "empty": "empty", "folded": "folded", "unfolded": "unfolded",
}  # fmt: skip
_LOOKS = frozenset(("colour", "material"))
_UNARY = frozenset(ATTRIBUTES) - _LOOKS - {"rank", "every", "number", "any", "other", "amount"}
_STATURE = frozenset(("large", "small", "tall", "short", "long", "narrow", "high", "low"))
_COUNTED_FROM = {
    "leftmost": "from-left", "rightmost": "from-right", "left-of-all": "from-left", "right-of-all": "from-right",
    "from-left": "from-left", "from-right": "from-right",
}  # fmt: skip
_REVERSED = {
    a: b
    for pair in (
        ("from-left", "from-right"), ("large", "small"), ("tall", "short"), ("high", "low"), ("closest", "farthest"),
        ("nearest-me", "farthest-me"),
    )
    for a, b in (pair, pair[::-1])
}  # fmt: skip
_ORDERS = frozenset(("closest", "farthest", "nearest-me", "farthest-me", "round", *_COUNTED_FROM)) | _STATURE
_CONVERSE = {
    "on": "supporting", "supporting": "on", "above": "below", "below": "above", "left": "right", "right": "left",
    "front": "behind", "behind": "front", "in": "with", "with": "in", "near": "near", "closest": "near",
    "across": "across",
}  # fmt: skip
_OF_A_SEAT = {"ahead-of-me": "front", "behind-me": "behind", "left-of-me": "own-left", "right-of-me": "own-right"}
_COMPARED = {"larger": True, "smaller": False, "beyond": True, "within": False}  # whether it is more than a length
_LESS = frozenset(("less", "shorter", "smaller", "narrower", "lower", "nearer", "closer"))
_COMPARATIVES = {"closest": "nearer", "farthest": "farther"}  # with two landmarks
_TALL = frozenset(("tall", "high", "wide", "long", "deep", "broad"))
_AXES = (
    ("height", ("tall", "high", "height", "lower", "shorter", "floor to")),
    ("width", ("wid", "narrow", "broad", "diamet", "across")),
    ("elevation", ("off the floor", "above the floor", "from the floor", "the ground", "above ground")),
)  # fmt: skip
_OUTRIGHT = 3.0  # weight of "the tallest"; "the tall one" has 1
_ON_THE_FLOOR_M = 0.2
_SAME = 0.7  # least similarity of a label that has the meaning of a noun
_LEAST_CLAUSE = 3  # words of a use
_REACH = 4  # most words from "of" to a plural, and from a length to its dimension
_WHOLE_REACH = 8  # most words from a part to its whole
_DEPTH = 3  # levels of landmarks: "by the table under the lamp at the window"
_MOST_OF_ANCHOR, _MOST = 4, 16  # conditions of an anchor and of the target

_Named = tuple[str, tuple[int, int], bool, bool]  # noun, span, plural, known


def speaks_of_states(text: str) -> bool:
    """Whether a text contains a word for a state."""
    return any(word.text in _STATES for word in split_words(text))


class Decoder:
    """Turns one graph over the words of a sentence into a meaning.

    Args:
        text, words, graph: the sentence, its corrected words, and the network's graph.
        labels: of the scene; they count as nouns.
    """

    def __init__(self, text: str, words: Sequence[Word], graph: SentenceGraph, labels: Iterable[str] = ()) -> None:
        self.text, self.words, self.labels = text, words, tuple(labels)
        self.texts = [w.text for w in words]
        graph = self._with_both_ends(graph)
        self.graph = _about_target(replace(graph, predicates=self._in_whole(graph.predicates)))
        kept = (t for t in self.graph.predicates if not (t.name.startswith("own-") and self._is_part(t.last)))
        self.graph = replace(self.graph, predicates=tuple(kept))  # "the table's left leg" is no side of the table
        self._names = [m for m in self._mentions() if m.last > m.first + 1 and m.noun in self.labels]
        self._nouns = self._named_entities()
        self._described: set[int] = set()
        self._target_noun = ""

    def meaning(self) -> Meaning:
        """See :class:`~embodied_perceptron.language.meaning.Meaning`."""
        graph, text = self.graph, self.text
        if graph.intent == "none":
            last = next((word for word in self.texts[::-1] if word.isalpha()), "")
            if last in _ROOMS and not self._mentions():  # "leave the room"
                return self._a_room(last)
            return Meaning(text, self._needed(), probability=1.0 - graph.probability)
        numbers = {t.number: t.kind for t in graph.entities}
        target = next((n for n, kind in numbers.items() if kind == TARGET), NO_ENTITY)
        phrase = self._target(target)
        self._target_noun = "" if phrase.noun == ANYTHING else phrase.noun
        self._described = {target}
        own = [t for t in graph.predicates if t.owner in (target, NO_ENTITY) and not t.name.startswith("speaker-")]
        if phrase.noun in _ROOMS and not self._is_there(phrase.noun):
            return self._a_room(phrase.noun)
        problem = self._no_object(target, phrase, own)
        if problem:
            return Meaning(text, None, problem=problem)
        constraints = self._constraints(target, own[:_MOST], _DEPTH)
        constraints += self._asked_state(target) if graph.intent == "exists" else []
        if graph.intent == "contents" and not constraints:  # "look at the top shelf and tell me what is there"
            constraints = [Constraint("in", (place,), span=place.span) for place in self._unlinked()[:1]]
        says_which = target == NO_ENTITY or any(c.anchors or c.is_superlative for c in constraints)
        if phrase.noun == ANYTHING and not says_which and _WHATEVER.isdisjoint(self._words_of(target)):
            return Meaning(text, self._needed())  # "give it to me"
        names = {t.name for t in own if not t.denied}
        stated_number = next((t for t in own if t.name in ("number", EVERY_NUMBER)), None)
        number = None if stated_number is None else cardinal(self._tokens(stated_number))
        every = bool(names & {"every", EVERY_NUMBER}) or phrase.plural or graph.intent != "find"
        speaker = self._speaker
        if speaker is not None and speaker.kind == "from" and not constraints and speaker.anchor.noun != "door":
            seat = speaker.anchor  # "which tv do I see there?"
            constraints = [Constraint("faced", (seat,), span=seat.span)]
        others = [n for n, kind in numbers.items() if kind in (LANDMARK, MENTIONED) and self._nouns[n]]
        return Meaning(
            text, phrase, tuple(constraints), speaker, tuple(self._phrase(n, 0) for n in others),
            unmatched=self._unread(target, own),
            kind=_KINDS[graph.intent],
            every=every,
            number=int(number) if number is not None and number > 1 and every and graph.intent == "find" else None,
            among=self._among(target) if any(c.relation in (*_COUNTED_FROM, "nth") for c in constraints) else None,
            excluded=tuple(e for n, kind in numbers.items() if kind == EXCLUDED for e in self._excluded(n, phrase)),
            any_of="any" in names and graph.intent == "find",
            is_place=HELD in numbers.values(),
            probability=graph.probability,
            length=sum(t.last - t.first for t in graph.entities) + sum(t.last - t.first for t in graph.predicates),
        )  # fmt: skip

    def _a_room(self, noun: str) -> Meaning:
        return Meaning(self.text, None, problem=f"the {noun} is a room or a place, no object", invalid=True)

    # --------------------------------------------------------------------------------------------------- entities

    def _tokens(self, piece: Entity | Predicate) -> list[str]:
        return self.texts[piece.first : piece.last]

    def _in_whole(self, predicates: Sequence[Predicate]) -> tuple[Predicate, ...]:
        """Give lengths and ranks all their words: the network may read only "five metres" of "two point five metres",
        and "last" or nothing of "last but one". Join relations that are read in two ("is", "facing"). Drop what
        excludes another relation to the same landmark."""
        found: list[Predicate] = []
        for t in predicates:
            same = [p for p in found if t.others and p == replace(t, first=p.first, last=t.first)]
            found = [*(p for p in found if p not in same), replace(t, first=same[0].first) if same else t]
        for name, spans in (("amount", lengths(self.texts)), ("rank", long_ranks(self.texts))):
            for first, last in spans:
                within = [t for t in found if first < t.last and t.first < last]
                own = next((t for t in within if t.name == name), Predicate(first, last, name))
                replaced = within if name == "rank" else [t for t in within if t.name == name]
                if replaced or name == "rank":
                    found = [*(t for t in found if t not in replaced), replace(own, first=first, last=last)]
        apart = {(t.owner, t.others) for t in found if t.others and t.name in ("front", "behind", "farthest")}
        return tuple(t for t in found if t.name not in _AT or (t.owner, t.others) not in apart)

    def _with_both_ends(self, graph: SentenceGraph) -> SentenceGraph:
        """Two landmarks where the network takes both of "between the red one and the black one" for one."""
        for t in graph.predicates:
            ends = [e for e in graph.entities if e.number in t.others and e.first >= t.last]
            if t.name != "between" or len(t.others) != 1 or len(ends) != 2:
                continue
            if "and" in self.texts[ends[0].last : ends[1].first]:
                new = 1 + max(e.number for e in graph.entities)
                entities = tuple(replace(e, number=new) if e == ends[1] else e for e in graph.entities)
                whole = replace(t, others=(*t.others, new))
                behind = range(ends[0].last, ends[1].first)
                own = [replace(p, owner=new) if p.first in behind else whole if p == t else p for p in graph.predicates]
                return replace(graph, entities=entities, predicates=tuple(own))
        return graph

    def _span(self, piece: Entity | Predicate | Mention) -> tuple[int, int]:
        return self.words[piece.first].start, self.words[piece.last - 1].end

    def _mentions(self, first: int = 0, last: int | None = None) -> list[Mention]:
        return lexicon().mentions(self.words[first:last], self.labels)

    def _parts(self, first: int, last: int) -> list[Word]:
        """Words [first, last), of "coffee-table" two."""
        return [replace(w, text=part) for w in self.words[first:last] for part in w.text.split("-") if part]

    def _of(self, number: int) -> list[Entity]:
        return [t for t in self.graph.entities if t.number == number]

    def _words_of(self, number: int) -> list[str]:
        return [token for place in self._of(number) for token in self._tokens(place)]

    def _named_entities(self) -> dict[int, _Named | None]:
        """Entity number -> its noun phrase; None for pronouns."""
        found: dict[int, _Named | None] = {}
        ends: dict[int, int] = {}
        for entity in self.graph.entities:
            named = self._noun(entity)
            old = found.get(entity.number)
            if old is None or (named is not None and self._is_better(named, old, ends[entity.number], entity.first)):
                found[entity.number], ends[entity.number] = named, entity.last
        return found

    def _is_better(self, named: _Named, old: _Named, last: int, first: int) -> bool:
        """Whether a noun names an entity better than an earlier noun; in another sentence the later noun wins."""
        apart = not _ENDS.isdisjoint(self.texts[last:first])
        new, before = (
            (max((lexicon().similarity(n[0], label) for label in self.labels), default=0.0), n[3]) for n in (named, old)
        )
        return new > before or (apart and new == before and not old[0].endswith(named[0]))

    def _noun(self, entity: Entity) -> _Named | None:
        tokens = self._tokens(entity)
        while tokens and (tokens[0] in _PRONOUNS or not tokens[0][0].isalpha()):
            tokens = tokens[1:]
        if not tokens:
            return None
        named = next((m for m in self._names if m.first <= entity.first and entity.last <= m.last), None)
        if named is not None:
            return named.noun, self._span(named), named.plural, True
        first = entity.last - len(tokens)
        span = self.words[first].start, self.words[entity.last - 1].end
        parts = self._parts(first, entity.last)
        for words in (self.words[first : entity.last], parts):
            head = next((m for m in lexicon().mentions(words, self.labels) if m.last == len(words)), None)
            if head is not None:
                return head.noun, span, head.plural, True
        rest = [word for word in tokens if word not in _OPEN_ENDS]
        is_thing = not rest and not _WHATEVER.isdisjoint(self._tokens(entity))  # "the thing with" two blades
        if is_thing or rest[-1:] in (["thing"], ["things"], ["item"]):  # "the flat thing"
            return None
        if "of" in tokens[1:]:  # "the roll of cloth"
            part = self._noun(replace(entity, first=first, last=first + tokens.index("of")))
            if part is not None and self._is_there(part[0]):
                return part[0], span, part[2], True
        tokens = [word.text for word in parts]
        one = singular(tokens[-1])
        return " ".join([*tokens[:-1], one or tokens[-1]]), span, bool(one), False

    def _needed(self) -> ObjectPhrase | None:
        """What serves the need that a sentence without an object states, where the scene has it: "I am so thirsty"."""
        serves = "" if _ROOMS & set(self.texts) else serving(self.texts, self.labels)
        return ObjectPhrase(serves, (0, len(self.text))) if is_served(serves, self.labels) else None

    def _phrase(self, number: int, depth: int) -> ObjectPhrase:
        """The noun phrase of an entity with its constraints down to a depth; circular relations count once."""
        places, named = self._of(number), self._nouns.get(number)
        predicates = [t for t in self.graph.predicates if t.owner == number and not t.name.startswith("speaker-")]
        predicates = [t for t in predicates if self._described.isdisjoint(t.others)][:_MOST_OF_ANCHOR]
        nested: tuple[Constraint, ...] = ()
        if depth > 0 and number not in self._described:
            self._described.add(number)
            nested = tuple(self._constraints(number, predicates, depth - 1))
            self._described.remove(number)
        if named is None:
            tokens = self._words_of(number)
            like = self._target_noun and not _LIKE_THE_TARGET.isdisjoint(tokens)  # "the chair next to the green one"
            span = self._span(places[0]) if places else (0, 0)
            noun = self._target_noun if like else ANYTHING
            return ObjectPhrase(noun, span, not _SEVERAL.isdisjoint(tokens), constraints=nested)
        noun, span, plural, known = named
        return ObjectPhrase(noun, span, plural, known, nested)

    def _target(self, number: int) -> ObjectPhrase:
        """The noun phrase of the target; "one" takes the noun of the excluded entity."""
        if number == NO_ENTITY:
            return ObjectPhrase(ANYTHING, (0, 0), plural=True)
        phrase, places, tokens = self._phrase(number, 0), self._of(number), set(self._words_of(number))
        if self.graph.intent == "contents" and phrase.noun == "wall" and not self._is_there("wall"):
            return replace(phrase, noun=ANYTHING, plural=True)  # "what is fixed to the wall above the sink?"
        serves = self._serving(places, phrase)
        if serves:
            return replace(phrase, noun=serves, known=True, plural=not tokens.isdisjoint(("things", "places")))
        if not phrase.known and places and self._tokens(places[0])[0] in _SOMETHING:  # a use that is not listed
            return replace(phrase, noun=" ".join(self._tokens(places[0])), plural=False)
        if phrase.noun == ANYTHING and not tokens & _WHATEVER:
            first = min((p.first for p in places), default=0)
            others = [t for t in self.graph.entities if t.kind == EXCLUDED]
            if tokens & _ONES or any(ordinal([token]) for token in tokens):  # "two lamps. The red one": an earlier noun
                others += [t for t in reversed(self.graph.entities) if t.last <= first and t.kind != HELD]
            named = next((n for n in (self._nouns[o.number] for o in others) if n is not None), None)
            if named is not None:
                return ObjectPhrase(named[0], phrase.span, bool(tokens & _SEVERAL), named[3])
        plural = phrase.plural and not lexicon().always_plural(phrase.noun)
        single = "one" in tokens or self._one_of_them(number)  # "of the two lamps the red one"
        return replace(phrase, plural=bool(plural and not single))

    def _serving(self, places: Sequence[Entity], phrase: ObjectPhrase) -> str:
        """The noun for a use ("something that I can sit on", "to wash my hands"); empty where none is stated.

        Words that end in a noun are a use only where they begin like one.
        """
        particle = phrase.noun in _PARTICLES  # "I need to lie down"
        is_noun = phrase.noun != ANYTHING and not particle
        known = is_noun and (phrase.known or is_implement(phrase.noun) or self._is_there(phrase.noun))
        for place in places:
            tokens = self._tokens(place)
            if not known or (len(tokens) > 1 and (tokens[0] in _FOR_SOMETHING or not _CLAUSE.isdisjoint(tokens[1:-1]))):
                serves = serving(tokens, self.labels)
                if serves:
                    return serves
        own = [t for t in self.graph.predicates if t.owner in {p.number for p in places}]
        related = any(t.others or t.name == "wall" for t in own)
        clause = particle or any(place.last - place.first >= _LEAST_CLAUSE for place in places)
        alone = any(self._tokens(place)[0] in _SOMETHING and place.last == place.first + 1 for place in places)
        if known or related or not (alone or clause or (is_noun and not is_known_noun(phrase.noun))):
            return ""
        ends = [k for k, word in enumerate(self.texts) if word in _ENDS and word != "mean"]
        first = max((k + 1 for k in ends if k < places[0].first), default=0)
        last = min((k for k in ends if k >= places[0].last), default=len(self.texts))
        needs = [serving(words, self.labels) for words in (self.texts[first:last], self.texts)]
        stated = needs[0] or (needs[1] if clause else "")  # "it is raining. What should I take?"
        return next((need for need in needs if is_served(need, self.labels)), stated if alone or clause else "")

    def _unread(self, number: int, own: Sequence[Predicate]) -> tuple[str, ...]:
        """Words about the target that the map cannot check: "the velvet chair"."""
        attributes = [t for t in own if t.name in ("other", *_LOOKS) and not (self._looks(t) or self._state(number, t))]
        words = [word for t in attributes for word in self._tokens(t)]
        named = self._nouns.get(number)
        noun = "" if named is None else named[0]
        own_words = {form for word in noun.split() for form in (word, pluralize(word))}
        for place in self._of(number) if noun else ():  # a "push bike" is a bicycle
            parts = self._parts(place.first, place.last)
            for m in lexicon().mentions(parts, self.labels):
                own_words |= {part.text for part in parts[m.first : m.last] if m.noun == noun}
        words += [w for w in self._words_of(number) if own_words and not {*w.split("-")} <= own_words | _PRONOUNS]
        return tuple(word for word in words if word not in word_set("adjectives") and word not in _STATES)

    def _is_part(self, position: int) -> bool:
        """Whether a part of an object is named at a position."""
        word = "".join(self.texts[position : position + 1])
        return word not in self.labels and not _PARTS.isdisjoint((word, singular(word)))

    def _no_object(self, number: int, phrase: ObjectPhrase, own: Sequence[Predicate]) -> str:
        """Why the target is no object: a part of one, or what belongs to one; empty for an object."""
        if phrase.noun in _WHOLE_PARTS and phrase.noun not in self.labels:
            return f"a {phrase.noun} is a part of something; parts have no boxes of their own"
        part, whole = self._part(number, own)
        if part:
            return f"the {part} of the {whole} is a part of it; parts have no boxes of their own"
        *owner, head = phrase.noun.split()
        unknown = not phrase.known and head in _ACCESSORIES and not (self._is_there(head) or _SOMETHING & set(owner))
        return f"there is no {phrase.noun}: it belongs to a {' '.join(owner)}, but is none" if unknown and owner else ""

    def _part(self, number: int, own: Sequence[Predicate]) -> tuple[str, str]:
        """The part asked for and its whole, "handle" and "fridge"; the reader may take either for the target."""
        texts, meant = self.texts, {i for p in self._of(number) for i in range(p.first, p.last)}
        alike = {t.first for t in own if t.name == "same-colour"}  # "of the same colour as"
        for k in (k for k, word in enumerate(texts) if word == "of" and k and k not in alike):
            part, whole = texts[k - 1], self._mentions(k + 1, k + 1 + _WHOLE_REACH)
            is_part = self._is_part(k - 1)
            if k - 1 in meant and is_part and whole:
                return part, whole[0].noun
            named = next((m for m in whole if meant & {k + 1 + m.last - 1} and m.last <= _REACH), None)
            if named is None or k < 2 or texts[k - 2] not in _THE or part in self.labels:
                continue
            a_row = named.plural and part in ("top", "bottom", "middle")  # "the top of the shelves": one of them
            is_place = k > 2 and texts[k - 3] in _PREPOSITIONS  # "on top of the table"
            if (is_part or part in _SIDES_OF_ALL) and not a_row and not is_place:
                return part, named.noun
        return "", ""

    def _one_of_them(self, number: int) -> bool:
        """Whether one of several is chosen: "the left of the two monitors", "one of the chairs"."""
        own = [t for t in self.graph.predicates if t.owner == number]
        if any(t.name == "every" for t in own):
            return False
        picks = ("leftmost", "rightmost", "left-of-all", "right-of-all", "rank", "middle-of-kind")
        if any(t.name in picks or _is_best(t, self._tokens(t)) for t in own):
            return True
        first = min((t.first for t in self._of(number)), default=0)
        if any(self.texts[t.last : t.last + 1] in (["are"], ["have"], ["were"]) for t in self._of(number)):
            return False  # "which of the chairs are blue"
        of_all = any(t.name in ("number", EVERY_NUMBER) and self.texts[t.last : t.last + 1] == ["of"] for t in own)
        return "of" in self.texts[max(0, first - _REACH) : first] and not of_all

    def _unlinked(self) -> list[ObjectPhrase]:
        """Landmarks without a relation: "start at the mirror and give me the second ball you come to"."""
        return [
            self._phrase(number, _DEPTH - 1)
            for first, number in self._free_landmarks()
            if _TOWARDS.isdisjoint(self.texts[max(0, first - _REACH) : first])
        ]

    def _free_landmarks(self) -> list[tuple[int, int]]:
        """First word and number of each named landmark without a relation."""
        linked = {n for t in self.graph.predicates for n in t.others}
        free = [t for t in self.graph.entities if t.kind == LANDMARK and t.number not in linked]
        return [(min(p.first for p in self._of(n)), n) for n in {t.number: 0 for t in free} if self._nouns[n]]

    def _among(self, number: int) -> int | None:
        """Number of the objects that an order counts: "the row of four", "there are two chairs ..."."""
        before = {k for place in self._of(number) for k in range(place.first - 1, place.last - 1)}
        for k, word in enumerate(self.texts):
            count = cardinal([word]) if word not in _ARTICLES else None
            in_a_row = self.texts[max(0, k - 2) : k] in (["row", "of"], ["line", "of"], ["group", "of"])
            named = k in before and singular(self.texts[k + 1]) != ""
            if count is not None and count > 1 and (in_a_row or named):
                return int(count)
        return None

    def _excluded(self, number: int, target: ObjectPhrase) -> list[Meaning]:
        """Meanings of an excluded entity: two for two colours, "neither the red nor the blue one"."""
        phrase = self._phrase(number, 0)
        if phrase.noun == ANYTHING:
            phrase = replace(target, span=phrase.span, plural=phrase.plural)
        meant = {t.number for t in self.graph.entities if t.kind == TARGET}
        predicates = [t for t in self.graph.predicates if t.owner == number and meant.isdisjoint(t.others)]
        predicates = [replace(t, denied=False) if t.name in _LOOKS else t for t in predicates]
        constraints = self._constraints(number, predicates[:_MOST_OF_ANCHOR], _DEPTH)
        colours = [c for c in constraints if c.relation == "colour"]
        if len({t.first for t in predicates if t.name == "colour"}) < 2:
            return [Meaning(self.text, phrase, tuple(constraints))]
        return [
            Meaning(self.text, phrase, tuple(c for c in constraints if c == one or c not in colours)) for one in colours
        ]

    @cached_property
    def _speaker(self) -> SpeakerViewpoint | None:
        for t in self.graph.predicates:
            if not t.name.startswith("speaker-"):
                continue
            kind = t.name.removeprefix("speaker-")
            if kind == "from" and all(o.kind == TARGET for o in self.graph.entities if o.number in t.others):
                return SpeakerViewpoint(kind, ObjectPhrase("door", self._span(t)))  # "entering the room"
            phrase = self._phrase(t.others[0], 0) if t.others else None
            if phrase is not None and phrase.noun != ANYTHING:
                return SpeakerViewpoint("before" if kind == "at" and t.first == 0 else kind, phrase)
        if any(t.name in _OF_A_SEAT for t in self.graph.predicates):  # "when I am sat on the couch"
            for first, number in self._free_landmarks():
                if not _SEATED.isdisjoint(self.texts[max(0, first - _REACH) : first]):
                    return SpeakerViewpoint("from", self._phrase(number, 0))
        return None

    # ----------------------------------------------------------------------------------------------------- conditions

    def _constraints(self, number: int, predicates: Sequence[Predicate], depth: int) -> list[Constraint]:
        """Constraints from the predicates of one entity."""
        amounts = [t for t in predicates if t.name == "amount"]
        found = [state for place in self._of(number) for state in self._state(number, place)]
        for t in predicates:
            if t.name == "low" and not _FLOORS.isdisjoint(self._tokens(t)):
                found.append(self._on_the_floor(t))
            elif t.name == "wall" and self._tokens(t)[0] == "on" and number not in self._nouns:  # "what is on the wall"
                found += [Constraint("wall", span=self._span(t)), replace(self._on_the_floor(t), negated=not t.denied)]
            elif t.name in _UNARY:
                speaker, name = self._speaker, t.name
                weight, anchors = _OUTRIGHT if _is_best(t, self._tokens(t)) else 1.0, tuple[ObjectPhrase, ...]()
                if speaker is not None and speaker.kind == "from" and name in _OF_A_SEAT:
                    name, anchors = _OF_A_SEAT[name], (speaker.anchor,)  # "when I sit on the couch, what is before me?"
                elif speaker is not None and name in ("left-of-me", "right-of-me"):
                    name = name.replace("-of-me", "-of-all")
                found.append(Constraint(name, anchors, negated=t.denied, weight=weight, span=self._span(t)))
            elif t.name in RELATIONS:
                found += self._relation(number, t, amounts, depth)
            else:
                found += self._looks(t) or self._state(number, t)
        if not any(t.name in _COMPARED for t in predicates):
            found += self._measured(amounts, {t.first: c for t in predicates for c in found if c.span == self._span(t)})
        for t in predicates:
            rank = ordinal(self._tokens(t)) if t.name == "rank" else None
            if rank is not None:
                counts_on = any(p.name in _COUNTED_FROM and "on" in self._tokens(p) for p in predicates)
                if depth == _DEPTH and not any(c.relation in _ORDERS or c.is_view_dependent for c in found):
                    found += [Constraint("closest", (start,), span=start.span) for start in self._unlinked()[:1]]
                found = _ranked(found, rank, self._span(t), counts_on)
                break
        unique: dict[tuple[str, tuple[ObjectPhrase, ...], str], Constraint] = {}
        for c in found:
            unique.setdefault((c.relation, c.anchors, c.value), c)
        return list(unique.values())

    def _on_the_floor(self, t: Predicate) -> Constraint:
        return Constraint("smaller", span=self._span(t), negated=t.denied, value="elevation", amount_m=_ON_THE_FLOOR_M)

    def _looks(self, t: Predicate) -> list[Constraint]:
        table = relation_words()
        tokens = [part for token in self._tokens(t) for part in (token, *token.split("-"))]
        values: dict[str, None] = {}
        if t.name == "material":
            values = dict.fromkeys([token for token in tokens if token in table.materials][:1])
        elif t.name == "colour":
            values = dict.fromkeys(table.colours[token] for token in tokens if token in table.colours)
        return [Constraint(t.name, value=value, negated=t.denied, span=self._span(t)) for value in values]

    def _state(self, number: int, t: Predicate | Entity) -> list[Constraint]:
        """The state that an attribute or a name with adjectives states, where objects of the kind have it."""
        named = self._nouns.get(number)
        state = next((_STATES[word] for word in self._tokens(t) if word in _STATES), "")
        if named is None or not state or (isinstance(t, Predicate) and t.name != "other"):
            return []
        kinds = [states for label, states in STATES_OF.items() if lexicon().similarity(named[0], label) > _SAME]
        if state not in ("open", "closed") and all(state not in states for states in kinds):
            return []
        return [Constraint("state", value=state, negated=isinstance(t, Predicate) and t.denied, span=self._span(t))]

    def _asked_state(self, number: int) -> list[Constraint]:
        """The state at the end of a question that the reader left out: "is the door open?"."""
        last = max((k for k, word in enumerate(self.texts) if word.isalpha()), default=0)
        pieces: list[Predicate | Entity] = [*self.graph.predicates, *self.graph.entities]
        read = {i for t in pieces for i in range(t.first, t.last)}
        return [] if last in read or "or" in self.texts else self._state(number, Predicate(last, last + 1, "other"))

    def _measured(self, amounts: Sequence[Predicate], begins: Mapping[int, Constraint]) -> list[Constraint]:
        """Sizes without "more" or "less", "ninety centimetres high", and distances before a relation, "half a metre
        above the desk"; ``begins``: the conditions by their first words."""
        found = []
        for t in amounts:
            amount, place = metres(self._tokens(t)), begins.get(t.last)
            if amount is not None and place is not None and place.anchors:
                found.append(Constraint("distance", place.anchors, span=self._span(t), amount_m=amount))
            elif amount is not None:
                before, after = self.texts[max(0, t.first - _REACH) : t.first], self.texts[t.last : t.last + _REACH]
                own = [*_up_to_parting(before[::-1])[::-1], *_up_to_parting(after)]
                axis = "elevation" if after[:1] == ["up"] else _axis(own) or _axis([*before, *after])
                away = not axis and after[:1] == ["from"] and not _SPEAKER.isdisjoint(after)  # "four metres from us"
                name = "distance" if away else "measured"
                found.append(Constraint(name, value=axis, span=self._span(t), amount_m=amount))
        return found

    def _relation(self, number: int, t: Predicate, amounts: Sequence[Predicate], depth: int) -> list[Constraint]:
        tokens, span = self._tokens(t), self._span(t)
        without = not _DENIALS.isdisjoint(tokens) and "far" not in tokens and t.name not in ("within", "beyond")
        if tokens[0] == "no" and t.name in _COMPARED:  # "no further than", where the network read "further than"
            without = _COMPARED[t.name] == _LESS.isdisjoint(tokens)
        if without:
            t = replace(t, denied=True)
        anchors = tuple(self._phrase(o, depth) for o in t.others if o != number)
        amount = next((m for a in amounts if (m := metres(self._tokens(a))) is not None), None)
        if amount is not None and t.name in _COMPARED:
            return [replace(self._compared(t, amounts, anchors), negated=t.denied, span=span, amount_m=amount)]
        name = {"within": "near", "beyond": "farthest"}.get(t.name, t.name)
        if (not _BACKS.isdisjoint(tokens) and "to" in tokens) or (name == "across" and not _FACING.isdisjoint(tokens)):
            name = "back-to" if not (_BACKS | {"away"}).isdisjoint(tokens) else "facing"
        elif name == "front" and not _LOOKED_AT.isdisjoint(tokens):  # "what is the camera looking at?"
            name = "faced"
        if name == "with":  # parts have no boxes
            anchors = tuple(a for a in anchors if a.noun not in _PARTS or a.noun in self.labels)
        if not anchors and t.denied and name in ("on", "supporting", "with"):  # "with nothing on it"
            return [Constraint("supporting", (ObjectPhrase(ANYTHING, span),), span=span, negated=True)]
        if not anchors:
            return []
        stranded = number == NO_ENTITY and tokens[-1] == "on" and not any(map(str.isalpha, self.texts[t.last :]))
        if stranded and anchors[0].span[1] <= span[0]:  # "what is the iron standing on?"
            name = "supporting"
        if name in ("larger", "smaller"):
            return [Constraint(name, anchors, value=_axis(tokens), span=span, negated=t.denied)]
        if name in ("on", "near") and anchors[0].noun in _FLOORS and not self._is_there(anchors[0].noun):
            return [self._on_the_floor(t)]
        if name in ("on", "near", "closest") and anchors[0].noun.split()[-1] == "wall":  # walls are no objects
            return [Constraint("wall", span=span, negated=t.denied)]
        if len(anchors) == 2 and name in _COMPARATIVES:  # "closer to the sink than to the door"
            name, anchors = (_COMPARATIVES[name], anchors) if "than" in self.texts else (name, anchors[:1])
        if name in ("between", *_COMPARATIVES.values()):
            last = max(place.last for o in t.others for place in self._of(o))
            itself = "is" if self.texts[last : last + 1] == ["is"] else ""  # "closer to the sink than the door is"
            return [Constraint(name, anchors, value=itself, negated=t.denied, span=span)]
        return [Constraint(name, (anchor,), negated=t.denied, span=span) for anchor in anchors]

    def _compared(self, t: Predicate, amounts: Sequence[Predicate], anchors: tuple[ObjectPhrase, ...]) -> Constraint:
        """A size, a height above the floor, or a distance that is more or less than a length."""
        more = _COMPARED[t.name]
        after = [word for a in amounts for word in self.texts[a.last : a.last + _REACH]]
        said = [*self._tokens(t), *(w for a in amounts for w in (*self._tokens(a), *self.texts[a.last : a.last + 1]))]
        if not _FLOORS.isdisjoint(after):  # "more than a metre off the floor"
            return Constraint("larger" if more else "smaller", value="elevation")
        if not anchors and (t.name in ("larger", "smaller") or not _TALL.isdisjoint(said)):  # "less than 3 feet tall"
            return Constraint("larger" if more else "smaller", value=_axis(said) or "length")
        words = self.texts[max(0, min(a.first for a in (t, *amounts)) - 2) : t.last]
        if not more and anchors and _AT_MOST.isdisjoint(words) and not _FROM.isdisjoint(self._tokens(t)):
            return Constraint("distance", anchors)  # "two metres from the door"
        return Constraint("beyond" if more else "within", anchors)

    def _is_there(self, noun: str) -> bool:
        return any(lexicon().similarity(noun, label) >= _SAME for label in self.labels)


def _is_best(t: Predicate, tokens: Sequence[str]) -> bool:
    """Whether a predicate is an explicit superlative: "the tallest", "the top shelf"."""
    return t.name in _STATURE and any(w.endswith("est") or w in word_set("outermost") for w in tokens)


def _axis(words: Sequence[str]) -> str:
    """The dimension that words name; empty for none."""
    text = " ".join(words)
    return next((axis for axis, names in _AXES if any(n in text for n in names)), "")


def _up_to_parting(words: Sequence[str]) -> Sequence[str]:
    """The words before the first one that separates two lengths: "80 cm wide and 1.2 m high"."""
    return words[: next((k for k, word in enumerate(words) if word in _PARTING), None)]


def _about_target(graph: SentenceGraph) -> SentenceGraph:
    """Reverse relations so that they lead from the target to its landmarks: "a lamp is on it", "at the desk that has a
    book on it"."""
    links = [(t.owner, o) for t in graph.predicates for o in t.others if not t.name.startswith("speaker-")]
    steps = {t.number: 0 for t in graph.entities if t.kind in (TARGET, EXCLUDED)} | {NO_ENTITY: 0}
    for step in range(1, 1 + len(links)):
        near = {b for pair in links for a, b in (pair, pair[::-1]) if steps.get(a) == step - 1}
        steps.update(dict.fromkeys(near - steps.keys(), step))

    def turned(t: Predicate) -> Predicate:
        away = len(t.others) == 1 and t.name in _CONVERSE and steps.get(t.others[0], 0) < steps.get(t.owner, 0)
        return replace(t, name=_CONVERSE[t.name], owner=t.others[0], others=(t.owner,)) if away else t

    return replace(graph, predicates=tuple(turned(t) for t in graph.predicates))


def _ranked(found: list[Constraint], rank: int, span: tuple[int, int], counts_on: bool) -> list[Constraint]:
    """Give an ordinal to the nearest order in the sentence, or to the default order; a negative one counts from the
    end: the last from the left is the first from the right, but the last "on the right" is so too (``counts_on``)."""
    orders = [k for k, c in enumerate(found) if c.relation in _ORDERS]
    if not orders:
        return [*found, Constraint("nth", rank=abs(rank), span=span)] if abs(rank) > 1 else found
    k = min(orders, key=lambda k: abs(found[k].span[0] - span[1]))
    relation = _COUNTED_FROM.get(found[k].relation, found[k].relation)
    if rank < 0 and not (counts_on and relation in _COUNTED_FROM.values()):
        relation = _REVERSED.get(relation, relation)
    return [*found[:k], replace(found[k], relation=relation, rank=abs(rank), weight=_OUTRIGHT), *found[k + 1 :]]
