"""Several clauses about one object, told as one: where a landmark is named first, and the object by a pronoun of it.

"See that couch? On it there is a cup that I'd like" becomes "a cup that I'd like on that couch". The words keep their
places in the sentence. Only sentences are rearranged that consist of such clauses from end to end and name two or three
things; every other sentence is left as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from re import Match

from embodied_perceptron.language.lexicon import Mention, Word, lexicon, word_set

_MOST_WORDS = 40  # longer ones are descriptions of a room
_JOINS = frozenset((".", ",", "and", "with", "off", "last", "closest", "nearest", "farthest", "furthest"))
_BEFORE_NOUNS = (word_set("adjectives") | word_set("determiners") | {"other", "my", "your", "our"}) - _JOINS
_ARTICLES = frozenset(("a", "an", "the", "this", "that", "these", "those", "your", "my", "its", "our"))
_INDEFINITE = frozenset(("a", "an", "some", "any", "another"))

# in the shape of a sentence, <d2> is its third noun phrase: definite, <i2> with "a", <b2> without any article
_ANY, _DEFINITE = r"<[dib]\d+>", r"<d\d+>"
_HOW = (
    r"(?:(?:right|just|directly|straight|immediately|out|over|somewhere|up|down|back|way|there|standing|lying|sitting|"
    r"hanging|is|are|it's|that's|which|that) )*"
)
_SIDE = r"(?:(?:to|on|at|towards) )?(?:the )?(?:left|right)(?: ?-?hand)?(?: side)? (?:of|from)"
_PLACE = (
    r"(?:on top of|on|upon|atop|in front of|in back of|at the (?:back|rear|front) of|(?:to|in) the rear of|behind|"
    r"inside of|inside|in|within|next to|beside|near|close to|by|around|against|at|over|above|under|underneath|"
    r"beneath|below|opposite|across from|"
    rf"{_SIDE})"
)
_SELF = r"(?:it|that|this|them|there)"
_PAUSE = r"(?:[.,;:?!] ?|and |then |now |so |well |but )"
_SAYS_THERE = (
    r"(?:,|:|and|there|there's|is|are|that's|where|you|you'll|will|can|could|should|must|be|see|find|"
    r"notice|stands|stand|"
    r"lies|sits|hangs|rests|i|i'd|like|need|want|it|it's|look|somebody|someone|put|left|have|one|finds|please|get|"
    r"grab|take|fetch|me|to|give|for|pick)"
)
_ASIDE = (
    r"(?:,|\.|!|\?|that|which|i|i'd|i'm|like|want|need|would|you|we|is|are|there|in|should|be|please|"
    r"have|a|look|it|get|"
    r"this|go|to|take|bring|me|fetch|grab|move|one|the|over|here|up|out|and|hand|give|for|now|check|could|can|"
    r"looking|searching|talking|thinking|about|of|mean|after|clean|pick|us|ok|right|what|then|inspect|that's|use|show|"
    r"standing|sitting|lying|hanging|needs|stop|some|my)"
)
_MEANS = rf"(?!(?:the|one|right|left|over|there|here|up|out)\b){_ASIDE}"  # tells nothing of where
_ASKED = re.compile(
    r"\b(?:go|get|take|bring|fetch|grab|move|hand|give|check|clean|pick|want|need|like|after|looking|searching|talking|"
    r"thinking|mean|inspect|show|use|stop|ok)\b"
)
_GOES = (
    r"(?:go|walk|drive|head|turn|move|run|step|roll|travel|come|stand|start|stop|look|crouch|leave|"
    r"pass|reach|open|find)"
)
_FETCHES = (
    r"(?:take|get|grab|fetch|bring|check|pick|clean|wipe|dust|stop|choose|find|hand|give|move|inspect|go)"
    r"(?: (?:me|us|up|out|at|on|over|to|for|it|with|of))*"
)
_SEES = r"(?:can |could |do |did )?(?:you )?(?:see|know|notice|notices|spot|remember)"
_NAMES = (
    r"(?:(?:go|walk|drive|head|run|come|move)(?: (?!<)[\w-]+){0,3}|there's|there is|here's|here is|"
    r"find|locate|look for|look at|start (?:at|from|with)|go to|stand (?:by|at|near|next to))"
)
_ABOUT = r"(?: (?:over there|over here|there|here|first))?"

_INVERSE = (
    (r"left", "right of"), (r"right (?:of|from|hand|side)|the right", "left of"),
    (r"on|upon|atop|top", "supporting"), (r"over|above", "below"), (r"under|underneath|beneath|below", "above"),
    (r"in front|front", "behind"), (r"behind|back|rear", "in front of"), (r"inside|in|within", "containing"),
)  # fmt: skip
_HOLDS = {
    "has": "near", "has got": "near", "holds": "on", "carries": "on", "supports": "on", "bears": "on",
    "contains": "inside", "houses": "inside", "hold": "on", "have": "near",
}  # fmt: skip
_DOES_TO = (
    (r"touching|touches|next to|beside|near|close to|leaning against", "near"),
    (r"facing|faces|looking at|looks at|looking towards|pointing at|points at|turned to", "in front of"),
    (r"hides|is hiding|conceals|blocks|obscures|screens|screens off|shields|covers up|keeps out of sight", "behind"),
    (r"supports|holds up|carries|bears|is holding up|is carrying|is supporting", "on"),
    (r"turn(?:ed|ing|s) (?:its|his|the) back (?:on|to)|(?:its|the) back (?:to|on|turned to)", "behind"),
)


def restated(words: Sequence[Word], labels: Iterable[str] = ()) -> list[Word]:
    """``words`` with the object first and its landmark behind the relation, where the sentence has them apart."""
    line = list(words)
    if not 3 <= len(line) <= _MOST_WORDS:
        return line
    labels = tuple(labels)
    line = _without_owners(line)
    for rule in _RULES:
        shape = _Shape(line, lexicon().mentions(line, labels))
        if rule is _of_its_kind or 2 <= len(shape.phrases) <= 3:
            line = rule(shape) or line
    return line


class _Shape:
    """A line whose noun phrases are told by their numbers: "see <d0> ? <d1> in front of it"."""

    def __init__(self, words: Sequence[Word], mentions: Sequence[Mention]) -> None:
        self.words = list(words)
        self.phrases: list[tuple[int, int, Mention]] = []
        for m in mentions:
            first = m.first
            if words[first].text == "stand" and (first == 0 or words[first - 1].text in ("you", "please")):
                continue  # a verb: "stand by the lamp"
            if words[first].text in ("stands", "supports") and self.phrases and self.phrases[-1][1] == first:
                continue  # "the bed stands in front of it"
            while first > 0 and words[first - 1].text in _BEFORE_NOUNS:
                first -= 1
                if words[first].text in _ARTICLES:
                    break
            if self.phrases and self.phrases[-1][1] == m.first:  # "the couch blanket"
                self.phrases[-1] = (self.phrases[-1][0], m.last, m)
            else:
                self.phrases.append((first, m.last, m))
        self.text, self._at = "", list[int]()
        i, k = 0, 0
        while i < len(self.words):
            told = self.words[i].text
            if k < len(self.phrases) and self.phrases[k][0] == i:
                told, following = f"<{self._article(k)}{k}>", self.phrases[k][1]
                k += 1
            else:
                following = i + 1
            self.text += told + " "
            self._at += [i] * (len(told) + 1)
            i = following
        self._at.append(len(self.words))
        self.text = self.text[:-1]

    def _article(self, k: int) -> str:
        first, _, m = self.phrases[k]
        before = {w.text for w in self.words[first : m.first]}
        return "i" if before & _INDEFINITE else ("d" if before & word_set("determiners") else "b")

    def phrase(self, token: str) -> list[Word]:
        """The words of "<d2>"."""
        first, last, _ = self.phrases[int(token[2:-1])]
        return self.words[first:last]

    def noun(self, token: str) -> Mention:
        return self.phrases[int(token[2:-1])][2]

    def of(self, match: Match[str], group: str | int) -> list[Word]:
        """The words of a group of a match over :attr:`text`; none where it is missing."""
        start, end = match.span(group)
        if start < 0 or not match[group].strip():
            return []
        end = start + len(match[group].rstrip())
        start += len(match[group]) - len(match[group].lstrip())
        return self.words[self._at[start] : self._at[min(end + 1, len(self._at) - 1)]]

    def matches(self, pattern: str) -> Match[str] | None:
        """A match of the whole line."""
        return re.fullmatch(rf"(?:(?:ok|okay|hey|well|uh|um|so|robot|please|,) )*{pattern}(?: [.?!])*", self.text)


def _said(text: str, beside: Sequence[Word]) -> list[Word]:
    """Words that stand for ``beside``."""
    start, end = min(w.start for w in beside), max(w.end for w in beside)
    return [Word(part, start, end) for part in text.split()]


def _thing_at(shape: _Shape, match: Match[str], where: Sequence[Word]) -> list[Word]:
    """What was said before the object ("lead", where a pattern keeps it), the object, the relation and the landmark."""
    lead = shape.of(match, "lead") if "lead" in match.re.groupindex else []
    return [*lead, *shape.phrase(match["thing"]), *where, *shape.phrase(match["mark"])]


def _thing_beside(shape: _Shape, match: Match[str], where: Sequence[Word]) -> list[Word]:
    """The object at its landmark's own "side"."""
    return [*shape.phrase(match["thing"]), *_beside(match["side"], shape.phrase(match["mark"]), where)]


def _inverse(shape: _Shape, match: Match[str]) -> list[Word]:
    """Words for the relation that the object has when its landmark is said to have the relation "where" to it."""
    told = next((told for said, told in _INVERSE if re.search(rf"\b(?:{said})\b", match["where"])), "near")
    return _said(told, shape.of(match, "where"))


def _of_its_kind(shape: _Shape) -> list[Word] | None:
    """ "Of all the chairs the one by the door", "not those other chairs, the one ...": the chair by the door."""
    lead = (
        rf"(?:(?:of|among|amongst|out of|from)(?: all)?(?: of)?|not|(?:i )?(?:don't|do not) (?:want|mean|"
        rf"need))(?: all)? (?P<kind>{_ANY})"
        r"(?: (?:elsewhere|over there|there|here|around|in here))?"
        rf"(?P<place> (?:{_PLACE}|along) (?:{_ANY}|the (?:[\w-]+ )?wall))?(?: [,.;:])?"
        r"(?: (?:it's|it is|but|just|only|rather|pick|take|choose|find|get|i (?:want|need|mean)|"
        r"i'm after|go to|bring me|give me))*"
        r" (?:(?:only )?(?:the|that) (?:only )?(?P<which>(?:[\w-]+ ){0,2}?)ones?|whichever(?: one)?|one)\b(?P<rest>.*)"
    )
    match = shape.matches(lead)
    if match is None or not shape.noun(match["kind"]).plural:
        return None
    kind = shape.noun(match["kind"])
    words = shape.words[kind.first : kind.last]
    which, rest = (match["which"] or "").strip(), match["rest"].strip()
    if not which and not rest:
        return None
    noun = [*(shape.of(match, "which") if which else ()), *_said(kind.noun, words), *shape.of(match, "place")]
    return [*_said("the", words), *noun, *(_relative(shape.of(match, "rest"), rest, words) if rest else ())]


def _relative(rest: list[Word], text: str, beside: Sequence[Word]) -> list[Word]:
    """What is said of an object, behind it: "is by the door" is "that is by the door"."""
    verb = text.split()[0] in ("is", "has", "lies", "stands", "sits", "hangs")
    return [*(_said("that", beside) if verb else []), *rest]


def _pronoun_of_landmark(shape: _Shape) -> list[Word] | None:
    """ "See that couch? the lamp next to it": the landmark goes where its pronoun stands."""
    seen = shape.matches(rf"{_SEES} (?P<mark><[db]\d+>){_ABOUT} {_PAUSE}+(?P<rest>.+)")
    match = seen or shape.matches(rf"(?:first )?{_NAMES} (?P<mark>{_DEFINITE}){_ABOUT} {_PAUSE}+(?P<rest>.+)")
    match = match or shape.matches(
        r"(?P<mark><[db]\d+>) (?:isn't|is not|ain't|'s not|wasn't) (?:what|the one|the thing|it)(?: (?:i|we|"
        r"that)?(?:'m| am)? ?"
        r"(?:need|want|mean|meant|after|looking for))? (?:[.,;:] )(?P<rest>.+)"
    )
    if match is None:
        return None
    body = match["rest"]
    names = re.search(rf"(?:{_FETCHES}|there's|there is|<[db]\d+>)", body)
    if not re.search(_ANY, body) or names is None or re.search(r"\b(?:look|face|facing|looking) ", body):
        return None  # "walk over to the window and look at the seat on the left" tells a viewpoint
    # "find the couch. there is a lamp next to it" describes the couch
    if seen is None and not (re.search(_DEFINITE, body) or _ASKED.search(body)):
        return None
    mark = shape.phrase(match["mark"])
    start = len(shape.words) - len(shape.of(match, "rest"))
    tail = _Tail(shape.words[start:])
    return tail.with_landmark(mark)


class _Tail:
    """The clauses behind a landmark, and where they speak of it."""

    def __init__(self, words: Sequence[Word]) -> None:
        self.words = list(words)
        self.text = " ".join(w.text for w in words)

    def _place(self, character: int) -> int:
        return self.text[:character].count(" ")

    def with_landmark(self, mark: list[Word]) -> list[Word] | None:
        """The words with ``mark`` for its pronoun; None without one."""
        own = re.search(r"(?:to|on|at|by) its (?:own )?(left|right|side)\b", self.text)
        if own is not None:
            first = self._place(own.start())
            last = self._place(own.end() - 1) + 1
            return [*self.words[:first], *_beside(own[1], mark, self.words[first:last]), *self.words[last:]]
        found = list(
            re.finditer(rf"(?<![\w'-]){_PLACE} {_SELF}(?![\w'-])|(?<=\bfrom ){_SELF}\b|(?<=\bto )it\b", self.text)
        )
        found = [m for m in found if not m[0].startswith("to ")]
        if found:
            at = self._place(found[0].end() - 1)
            following = [w.text for w in self.words[at + 1 : at + 2]]
            if following and self.words[at].text != "it" and following[0].isalpha() and following[0] not in _AFTER_SELF:
                return None  # "behind that door"
            return [*self.words[:at], *mark, *self.words[at + 1 :]]
        bare = re.search(r"(?:to|on) the (left|right)(?: side)?(?= ?[.?!]*$)", self.text)
        if bare is not None:
            at = self._place(bare.end() - 1) + 1
            return [*self.words[:at], *_said("of", self.words[at - 1 : at]), *mark, *self.words[at:]]
        return None


_AFTER_SELF = frozenset(
    ("there", "there's", "is", "are", "you", "i", "please", "stands", "lies", "sits", "and", "the", "a")
)


def _beside(side: str, mark: list[Word], beside: Sequence[Word]) -> list[Word]:
    """ "At its left" of a landmark: "at the couch's left"; "at its side": "beside the couch"."""
    if side == "side":
        return [*_said("beside", beside), *mark]
    owner = replace(mark[-1], text=mark[-1].text + "'s", end=mark[-1].end + 2)
    return [*_said("at", beside), *mark[:-1], owner, *_said(side, beside)]


def _seat(shape: _Shape) -> list[Word] | None:
    """ "If you sat on the couch, the lamp would be at your left": at the couch's left."""
    match = shape.matches(
        rf"(?:if|when|as|once|suppose|imagine) (?:you|i|someone|somebody|one) [\w' ]*?(?P<mark>{_DEFINITE}) (?:[,:] )?"
        rf"(?P<thing>{_ANY})(?P<aside>(?: {_ASIDE})*?)(?: (?:would|will|'d|stands|stand|lies|sits|be|is))*"
        r" (?:right )?(?P<where>(?:at|on|to) (?:your|my|his|the|their) (?P<side>left|right)(?: ?-?hand)?(?: side)?|"
        r"(?:there )?(?:right )?(?:next to|beside|by|near|close to) (?:you|me|us|him|them)|"
        r"(?:in front of|behind) (?:you|me))"
    )
    if match is None:
        return None
    where = shape.of(match, "where")
    if match["side"]:
        return _thing_beside(shape, match, where)
    if match["where"].startswith(("behind", "in front")):
        return None
    return _thing_at(shape, match, _said("near", where))


def _owner(shape: _Shape) -> list[Word] | None:
    """ "The couch has a lamp beside it, bring that": the lamp beside the couch."""
    match = shape.matches(
        rf"(?P<mark><[db]\d+>) (?P<verb>{'|'.join(sorted(_HOLDS, key=len, reverse=True))}) (?P<thing><[di]\d+>)"
        rf"(?: (?P<where>{_HOW}{_PLACE}) it| (?P<own>(?:(?:standing|hanging|lying|sitting) )?(?:to|on|at|by|"
        rf"along) its (?:own )?(?P<side>left|"
        rf"right|side)(?: ?-?hand)?(?: side)?))?"
        rf"(?P<aside>(?: {_ASIDE}| ;| pass)*)(?P<again> {_ANY})?(?: please)?"
    )
    if match is None or not _ASKED.search(match["aside"]) or not _is_one(shape, match["thing"]):
        return None
    if match["again"] and shape.noun(match["again"].strip()).noun != shape.noun(match["thing"]).noun:
        return None
    if match["where"]:
        return _thing_at(shape, match, shape.of(match, "where"))
    if match["own"]:
        return _thing_beside(shape, match, shape.of(match, "own"))
    return _thing_at(shape, match, _said(_HOLDS[match["verb"]], shape.of(match, "verb")))


def _is_one(shape: _Shape, token: str) -> bool:
    """Whether a phrase brings something new: "a lamp", "one cushion"."""
    return token.startswith("<i") or shape.phrase(token)[0].text == "one"


def _route(shape: _Shape) -> list[Word] | None:
    """ "Go past the couch and take the first lamp": the lamp closest to the couch."""
    match = shape.matches(
        rf"(?:(?:can|could|would|will) you )?(?:please )?{_GOES}(?P<way>(?: (?!<|and |"
        rf"then )[\w-]+)*?) (?P<mark>{_DEFINITE})(?P<behind> behind)?"
        rf" {_PAUSE}+(?:please )?(?P<verb>{_FETCHES}|(?:you'll|you will|you) (?:see|find|meet|reach|run into)) "
        r"(?P<how>(?:(?:the|that|very|most|first|next|nearest|closest|last|remote|distant|farthest|furthest) )*)"
        rf"(?P<thing>{_ANY})(?: (?:there|near there|around there|you (?:meet|see|reach|find|come across)|on your way))*"
        rf"(?P<aside>(?: {_ASIDE})*)"
    )
    if match is None:
        return None
    thing, mark = shape.phrase(match["thing"]), shape.phrase(match["mark"])
    told = {w.text for w in thing} | set(match["how"].split())
    thing = [w for w in thing if w.text not in ("first", "next", "last", "remote", "distant", "most")]
    up = re.search(r"^(up|down) (?:from|at)$", match["way"].strip())
    side = re.search(r"(?:to|on|at) the (left|right)(?: side)? of$", match["way"].strip())
    place = re.search(
        r"(?:under|underneath|beneath|below|behind|in front of|inside|into|on top of)$", match["way"].strip()
    )
    way = shape.of(match, "way") or shape.of(match, "verb")
    if side is not None:
        where = f"to the {side[1]} of"
    elif up is not None:
        where = "above" if up[1] == "up" else "below"
    elif match[0].startswith("open") or (place is not None and place[0] == "into"):
        where = "inside"
    elif told & {"remote", "distant", "last", "farthest", "furthest"}:
        where = "farthest from"
    elif told & {"first", "next", "nearest", "closest"}:
        where = "closest to"
    else:
        where = place[0] if place is not None else "near"
    return [*thing, *_said(where, way), *mark]


def _place_first(shape: _Shape) -> list[Word] | None:
    """ "Look inside the box, the cup should be there": the cup inside the box."""
    match = shape.matches(
        r"(?:(?:look|go|walk|reach|check|search|crouch down and look|there|over|right|just|directly|out|"
        r"up|down|can you|you|see|please) )*"
        rf"(?P<where>{_HOW}{_PLACE}) (?P<mark><[dib]\d+>)(?: (?:and (?:the )?)?(?P<mark2>{_ANY}))??"
        rf"(?: {_SAYS_THERE})+ (?P<thing>{_ANY})(?P<aside>(?: {_ASIDE})*)"
    )
    if match is None or match["mark2"]:
        return None
    return _thing_at(shape, match, shape.of(match, "where"))


def _repeated(shape: _Shape) -> list[Word] | None:
    """ "The cup sits on a desk, and that desk is what I need": the desk that has the cup on it."""
    match = shape.matches(
        rf"(?P<mark>{_ANY}) (?:is |are |sits |stands |lies |rests |hangs |"
        rf"was )(?:\w+ing )?(?P<where>{_PLACE}) (?P<thing>{_ANY})"
        rf" {_PAUSE}+(?:it's |it is )?(?:(?P<again>{_ANY})|(?:that|this)(?: one)?)(?P<aside>(?: (?:{_ASIDE}))+)"
    )
    if match is None or not _ASKED.search(match["aside"]):
        return None
    if match["again"] and shape.noun(match["again"]).noun != shape.noun(match["thing"]).noun:
        return None
    return _thing_at(shape, match, _inverse(shape, match))


_CONTAINERS = frozenset(
    ("box", "bag", "basket", "drawer", "suitcase", "backpack", "bin", "bucket", "crate", "chest", "case", "purse",
     "jar", "bowl", "cup", "trash can", "laundry basket", "hamper", "container")
)  # fmt: skip


def _passive(shape: _Shape) -> list[Word] | None:
    """ "The lamp the couch is touching": the lamp near the couch."""
    verbs = "|".join(said for said, _ in _DOES_TO)
    match = shape.matches(
        rf"(?P<lead>(?:(?!<)\S+ )*?)(?P<thing>{_ANY}) (?:that |which )?(?P<mark>{_DEFINITE})"
        rf" (?:is |are |has |was |stands |sits )?(?:\w+ly |almost |just |right )?(?P<verb>{verbs})"
        rf"(?: from (?:view|sight)| turned (?:on|off))?(?P<aside>(?: {_MEANS})*)"
    )
    if match is None:
        return None
    where = next(told for said, told in _DOES_TO if re.fullmatch(said, match["verb"]))
    if where == "behind" and shape.noun(match["mark"]).noun in _CONTAINERS:
        where = "inside"
    return _thing_at(shape, match, _said(where, shape.of(match, "verb")))


def _had(shape: _Shape) -> list[Word] | None:
    """ "The shelf that the desk has over it", "what the couch has on its right is the table": at the landmark."""
    has = (
        r"(?:has|have|keeps?|holds?|has got)(?: (?:standing|lying|hanging))?(?: right| just)? "
        rf"(?P<where>(?:{_PLACE}) (?:it|itself)|{_OWN_SIDE})"
    )
    match = shape.matches(
        rf"(?P<lead>(?:(?!<)\S+ )*?)(?P<thing>{_ANY}) (?:that |"
        rf"which )?(?P<mark><[db]\d+>) {has}(?P<aside>(?: {_MEANS})*)"
    ) or shape.matches(rf"what (?P<mark><[db]\d+>) {has} is (?P<thing>{_ANY})(?P<aside>(?: {_MEANS})*)")
    if match is None:
        return None
    if match["side"]:
        return _thing_beside(shape, match, shape.of(match, "where"))
    return _thing_at(shape, match, shape.of(match, "where")[:-1])


_OWN_SIDE = r"(?:to|on|at) its (?:own )?(?P<side>left|right)(?: ?-?hand)?(?: side)?"


def _stranded(shape: _Shape) -> list[Word] | None:
    """ "The desk somebody put the lamp on", "the desk on which the lamp stands": the desk supporting the lamp."""
    lead = rf"(?P<lead>(?:(?!<)\S+ )*?)(?P<thing>{_ANY})(?: ,)?"
    verb = r"(?:is|are|was|were|has|been|put|placed|set|left|stands|standing|sits|sitting|lies|lying|rests|hangs|being)"
    who = (
        r"(?:(?:somebody|someone|they|we|i|you|people|he|she) (?:have |has |had )?(?:put|placed|set|left|"
        r"keep|kept|laid) )"
    )
    match = shape.matches(
        rf"{lead} (?:that |which |where )?{who}?(?P<mark>{_ANY})(?: {verb})* (?P<where>on top of|on|upon|inside|"
        rf"in front of|in|"
        rf"underneath|under|beneath|below|over|above|behind|beside|next to|near)(?P<aside>(?: {_MEANS})*)"
    ) or shape.matches(
        rf"{lead} (?P<where>{_PLACE}) which (?:you (?:can |will )?(?:see|find) |there is )?(?P<mark>{_ANY})(?: {verb})*"
    )
    if match is None:
        return None
    return _thing_at(shape, match, _inverse(shape, match))


_ON_THE_WAY = re.compile(
    r"\b(?:halfway|midway|half|walking|going|way|line|path|route|pass|walk|separates|separating|"
    r"divides|dividing|splits)\b"
)
_ENDS = (
    rf"(?:between )?(?P<words>from) (?P<mark>{_ANY}) to (?P<mark2>{_ANY})",
    rf"(?P<words>separat(?:es|ing)|divid(?:es|ing)|splits) (?P<mark>{_ANY}) from (?P<mark2>{_ANY})",
    rf"(?P<words>with|has|having) (?P<mark>{_ANY}) (?:on|at|to) (?:the )?one (?:side|end|"
    rf"hand)(?: of it)?(?: ,)? and (?P<mark2>{_ANY})"
    r" (?:on|at|to) the (?:other|opposite)(?: one| side| end| hand)?",
)


_REST = (
    rf"(?:every|each|all(?: of)?) (?P<kind>{_ANY})(?: (?:in here|here|there|around))?(?: (?:is|are|stands?|sits?|"
    rf"lies?|lie))?"
    r"(?: (?:much|a bit|way|still|all))* (?P<how>nearer|closer|farther|further)(?: away| off)?(?: to| from)? "
    rf"(?P<mark>{_ANY}) than (?P<thing>{_ANY}|(?:this|that|the) one)(?![\w'-])(?P<rest>.*)",
    rf"(?:there is |there's )?(?P<none>no|none of) (?P<thing>{_ANY})(?: (?:in here|here|there|that|"
    rf"which))?(?: (?:is|stands?|sits?|"
    rf"lies|are))? (?:as |so )?(?P<how>near|close|far|distant|nearer|closer|farther|further)(?: away| off)?(?: to|"
    rf" from)? "
    rf"(?P<mark>{_ANY})(?P<rest>.*)",
)


def _than_the_rest(shape: _Shape) -> list[Word] | None:
    """ "Every other chair is nearer to the door than this one", "no chair is as far from the door": the farthest."""
    for pattern in _REST:
        match = shape.matches(pattern)
        if match is None:
            continue
        rest = "kind" in match.groupdict()
        kind = match["kind"] if rest else match["thing"]
        said = {w.text for w in shape.phrase(kind)}
        alike = not match["thing"].startswith("<") or shape.noun(match["thing"]).noun == shape.noun(kind).noun
        if not alike or (rest and "other" not in said):
            return None
        near = match["how"].startswith(("near", "close")) != rest
        noun = shape.noun(kind)
        words = shape.words[noun.first : noun.last]
        told = _said("closest to" if near else "farthest from", shape.of(match, "how"))
        return [*_said("the", words), *_said(noun.noun, words), *told, *shape.phrase(match["mark"])]
    return None


def _between_ends(shape: _Shape) -> list[Word] | None:
    """ "Halfway from the desk to the bed", "with the desk on one side and the bed on the other": between both."""
    if len(shape.phrases) != 3:
        return None
    for pattern in _ENDS:
        match = re.search(rf"(?<!\S){pattern}(?!\S)", shape.text)
        if match is None or (match["words"] == "from" and not _ON_THE_WAY.search(shape.text)):
            continue
        thing = next(t for t in re.findall(_ANY, shape.text) if t not in (match["mark"], match["mark2"]))
        words = shape.of(match, "words")
        first, second = shape.phrase(match["mark"]), shape.phrase(match["mark2"])
        return [*shape.phrase(thing), *_said("between", words), *first, *_said("and", words), *second]
    return None


def _telegram(shape: _Shape) -> list[Word] | None:
    """ "Cup on table", "chair, window side": with the words that were saved."""
    match = shape.matches(rf"(?P<thing>{_ANY}) (?P<where>{_PLACE}) (?P<mark><b\d+>)")
    where = match and shape.of(match, "where")
    if match is None:
        match = shape.matches(rf"(?P<thing>{_ANY}) (?:, )?(?P<mark>{_ANY}) (?P<where>side)")
        where = match and _said("near", shape.of(match, "where"))
    if match is None or not where:
        return None
    mark = shape.phrase(match["mark"])
    article = [] if "the" in (w.text for w in mark) else _said("the", mark[:1])
    return [*shape.phrase(match["thing"]), *where, *article, *mark]


_OWN_PLACES = {"back": "behind", "rear": "behind", "front": "in front of", "side": "beside"}


def _without_owners(words: list[Word]) -> list[Word]:
    """ "At the couch's back": behind the couch."""
    for i, word in enumerate(words):
        if not word.text.endswith("'s") or i < 1 or i + 1 >= len(words) or words[i + 1].text not in _OWN_PLACES:
            continue
        first = next(
            (j for j in range(i - 1, max(i - 4, -1), -1) if words[j].text in ("at", "on", "to", "in", "by")), None
        )
        last = i + 2 + (words[i + 2 : i + 3] != [] and words[i + 2].text == "side")
        follows = words[last].text if last < len(words) else "."
        if first is None or any(words[j].text not in _BEFORE_NOUNS and j < i - 1 for j in range(first + 1, i)):
            continue
        if follows[0].isalnum() and follows not in _AFTER_SELF:
            continue  # "the car's front wheel"
        place = _said(_OWN_PLACES[words[i + 1].text], words[i + 1 : last])
        owner = replace(word, text=word.text[:-2], end=word.end - 2)
        return [*words[:first], *place, *words[first + 1 : i], owner, *words[last:]]
    return words


_RULES = (
    _of_its_kind, _than_the_rest, _pronoun_of_landmark, _between_ends, _seat, _owner, _route, _place_first, _repeated,
    _passive, _had, _stranded, _telegram,
)  # fmt: skip
