"""What a sentence asks for, and which of its words describe the object.

"Could you bring the red book to the bed, please" asks for one object, described by "the red book"; "how many chairs are
at the table" for a number; "every chair except the red one" for all but those that "the red one" describes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from embodied_perceptron.language.clauses import restated
from embodied_perceptron.language.errands import to_places
from embodied_perceptron.language.lexicon import Mention, Word, lexicon, split_words, word_set
from embodied_perceptron.language.line import Line
from embodied_perceptron.language.meaning import Kind
from embodied_perceptron.language.plain import rewrite_plainly
from embodied_perceptron.language.preamble import put_aside
from embodied_perceptron.language.wording import corrected, other_language

_NUMBERS = {"both": 2, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8}
_ROOMS = word_set("rooms")
_PARTS = word_set("parts")
_ACCESSORIES = word_set("accessories")
_SIDES = word_set("sides")
_IN_A_ROW = word_set("places_in_a_row") | {"front", "back"}
_ARTICLES = word_set("articles")
_STRUCTURE = frozenset(["room", "wall", "floor", "ceiling", "house"])

# words at the beginning that say nothing of the object
_POLITE = (
    r"(?:(?:hey|hi|hello|ok|okay|well|so|now|dear|robot|please|kindly|sorry|excuse me|thanks|[,!.]) )*"
    r"(?:(?:would you )?be so (?:kind|good|nice) (?:and|as to|to) |"
    r"(?:it would be (?:nice|great|good|kind) )?if you (?:could|would) |"
    r"(?:can|could|would|will) (?:you|someone|somebody|anyone|anybody) (?:mind )?"
    r"(?:please |kindly |just |maybe |go and )*|"
    r"you (?:must|should|have to|need to|ought to|can|could|may|might) (?:please |kindly |just |now )*|"
    r"(?:i|we) (?:would|'d|'ll) (?:like|love|want|need) you to |i'd (?:like|love) you to |"
    r"(?:i|we) (?:want|need) you to |"
    r"(?:i|we) (?:would like|want|need) to (?:have |get |see |find )?|i'd like (?:to (?:have |get |see |find ))?|"
    r"may i (?:have |ask you for )|(?:i'm|i am|we're|we are) (?:just |only )?(?=(?:taking|bringing|carrying) )|"
    r"(?:i am |i'm |we are |we're )?(?:looking|searching|look|search) for |"
    r"let us |let's |try to )?"
    r"(?:(?:please|kindly|just) )*"
)
_PUT = (
    r"(?:put|putting|place|set|hang|stick|throw|toss|chuck|drop|dump|lay|store|stow|move|push|pull|slide|turn|"
    r"(?:pop|shift|pour|wheel|lug|roll|plug|load|stack|prop|lean|shove|stuff|bin)"
    r"(?= (?:the|my|our|your|his|her|that|this|these|those|a|an|all|both|every)\b))"
)
_WASH = r"(?:rinse|wash|soak|boil|fill)(?= (?:the|my|our|your|his|her|that|this|these|those|a|an|all)\b)"
_BRING = (
    r"(?:bring|bringing|carry|carrying|take|taking|deliver|hand|handing|pass|passing|give|giving|fetch|fetching|get|"
    r"getting|grab|grabbing|collect|pick up|pick|lift|hold|return)"
)
_GO = (
    r"(?:(?:roll|take|get|move|drag|bring) yourself|make your way|go|goes|going|drive|walk|move|come|navigate|"
    r"head|travel|run|return|roll|approach|park|stop|stand|wait|stay|"
    r"follow|turn)"
)
_TO = (
    r"(?:back |over |up |right |straight |close |closer |next |away |around |down |in |out )*(?:in front of|next to|"
    r"close to|beside|near|to|towards|toward|at|by|into|onto|behind|for)"
)
_DO = (
    r"(?:turn (?:on|off)|switch (?:on|off)|water|open|close|shut|clean|wipe|dust|vacuum|lock|unlock|start|touch|use|"
    r"navigate|approach|follow|visit|inspect|face|explore|leave|enter)(?= (?:the|my|a|an|all|that|this|your|every)\b)"
)
_RELATIVE = word_set("relative")
_DESTINATION = (
    r"(?<!the )(?:back |over |down |right )*(?:onto|into|on top of|next to|in front of|close to|on|in|to|under|"
    r"beneath|behind|"
    r"beside|near|by|at|between|above|over|against)"
)
_WHERE = (
    r"(?:i|we) (?:can't|cannot|can not|couldn't) (?:find|see|locate)(?= (?:the|my|our|that|any)\b)|where(?:'s| is|"
    r" are| was| were|'re| did you (?:see|find|put)| do (?:i|you|we) (?:find|see|keep)|"
    r" can (?:i|you|we) (?:find|see)| could (?:i|you|we) find| have you seen|(?= (?:the|my|our|his|her|that|"
    r"those)\b))|which way(?: is it)? to|how (?:do|can) (?:i|we|you) get to|"
    r"(?:what's|what is) the (?:quickest |shortest )?way to"
)
_EXISTS = (
    r"(?:is|are) there|any(?: sign of)?(?= [\w' -]+ \?$)|(?:anyone|anybody|someone|somebody) (?:got|"
    r"seen)(?= an? )|do (?:we|you|i) (?:have|see)|did you (?:see|notice|find)|can you see|"
    r"have you (?:seen|got|found)|did (?:i|you|we|someone|somebody|anyone|anybody) (?:leave|forget|bring|"
    r"lose)(?= an? )|"
    r"does (?:the|this) [\w ]+? have|has anybody seen|has anyone seen"
)
_WHICH_THING = (
    r"(?:which|what)(?: (?:thing|object|item|piece of furniture)s?)?(?: (?:(?:in|around|over) )?(?:here|this room|"
    r"the room))?"
    r"(?: that)?(?: is| are|'s)"
)
_COUNT = r"(?:tell me |say |do you know )?(?:how many|(?:what is |what's )?the number of|number of|count up|count)"
_CONTENTS = (
    r"(?:(?:what|which|what kind of)(?: all)?(?: (?:things|objects|items|stuff|thing|"
    r"object))?(?: and things)?(?: else)?"
    r"(?:'s| is| are| stands| stand| lies| lie| sits| sit| rests| hangs| can (?:you|i) (?:see|find)|"
    r" do (?:you|we) (?:see|have)|"
    r" did (?:the|my|our|those) [\w-]+ (?:put|leave|place)|"
    r" have (?:you|we|i|they) got| have (?:they|you|we|i) left|'s been| has been| have been| did (?:you|we|i|they|"
    r"he|she) (?:put|leave)|"
    r" (?:you|we|i|they|he|she|someone|somebody)(?: have| has| had|'ve|'d)? (?:got|left|put|keep|kept)|"
    r"'ve (?:you|we|i|they) (?:got|left|put))(?: all)?(?: that| this| those| there)?(?: being)?(?: still| now|"
    r" currently| usually| up| down| over| about| around)*"
    r"(?: standing| lying| sitting| hanging| placed| hidden| left| stored| kept| resting| stacked| put)?"
    r"(?: about| around)?(?: to (?:read|eat|drink|see|play with))?|"
    r"what(?:'s| is) the (?:thing|object|item)(?: that is| that's| which is)?(?: standing| lying| sitting)?|"
    r"did (?:i|you|we|he|she|they|someone|somebody|anyone|anybody) (?:leave|put|forget) (?:anything|"
    r"something)(?: else)?|"
    r"(?:anything|something)(?: else)?(?: standing| lying| sitting| left| hidden)?|"
    r"(?:is|are) there (?:anything|something)(?: else)?|"
    r"(?:how many|count the|count) (?:things|objects|items)(?: are(?: there)?)?)"
)
_INNER = (
    r"(?:on top of|on|onto|in|inside|under|underneath|beneath|below|behind|next to|near|beside|above|in front of|"
    r"(?:to|on|at) the (?:left|right)(?: side)? of|left of|right of)"
)
_OTHER_THAN = (
    r"(?:(?:(?:we|i|you) are |we're |i'm |you're )?not looking for|other than|except(?: for| from)?|excluding|"
    r"(?:avoid|ignore|skip|forget|never mind)(?= (?:the|that)\b)|"
    r"^(?:please )?(?:leave|don't take|don't touch|do not take|do not touch)(?= (?:the|that|those|these|my)\b.*"
    r"\b(?:other|others|rest)\b)|"
    r"(?:(?:just|but|only|and) )+(?:leave|not take|don't take|don't touch|not touch)(?= (?:the|that|those|this|my)\b)|"
    r"excepting|(?<!far |set |way )(?<!farthest |furthest )(?<!poles |miles )(?<!worlds |stands )apart from|"
    r"(?:but )?neither(?= the\b)|as long as it(?:'s not| isn't| ain't| is not)(?= (?:the|an?)\b)|aside from|"
    r"but not|rather than|not counting|"
    r"anything but|not(?= (?:the|that|those|these|this|my|your)\b)|(?<=\bones )but(?= the\b))"
)
_ALL_BUT = r"(?:all|every|each|any)(?: of)?(?: the)?(?: [\w-]+){0,3}? (but) (?=the|that|those|my)"
_EVERY = r"(?:all|every|each|both)"
_ANOTHER = re.compile(r"\b(?:another|a different|anything but)\b")
_ANY_OF = re.compile(
    r"\b(?:any(?= [\w-]+)|whichever (?:one )?(?:you|is)|no matter which|(?:doesn't|does not|don't|"
    r"do not) (?:matter|mind|care) "
    r"which)\b(?! (?:more|longer|way|sign|other)\b)"
)


@dataclass(frozen=True)
class Request:
    """What is asked for.

    Attributes:
        words: those that describe the object, slips corrected.
        kind: "object", or a question: "exists", "where", "count", "contents" (what is on the table).
        every: all objects are meant that fit.
        number: so many are meant ("both" = 2), or None.
        excluded: descriptions of what is not meant ("except the red one").
        problem: why it cannot be answered, or that it is known not to be there; else empty.
        invalid: the problem is the sentence's, not the scene's.
        put_together: the words are from several sentences, those of a landmark in the place of "it".
        any_of: one will do, whichever: "any chair", "a chair but not the red one".
        is_place: something that is not on the map goes or lies there: "put this paper in the bin".
        rearranged: clauses that name the landmark first were told as one, by a rule for just such clauses.
        aside: characters [start, end) of words that only stand around the request.
    """

    words: tuple[Word, ...]
    kind: Kind = "object"
    every: bool = False
    number: int | None = None
    excluded: tuple[tuple[Word, ...], ...] = ()
    problem: str = ""
    invalid: bool = False
    put_together: bool = False
    any_of: bool = False
    is_place: bool = False
    rearranged: bool = False
    aside: tuple[tuple[int, int], ...] = ()


def read_request(text: str, labels: Iterable[str] = ()) -> Request:
    """What ``text`` asks for; ``labels`` of the scene are words, whatever they look like. Never raises."""
    labels = tuple(labels)
    words = split_words(text)
    language = other_language(words, labels)
    if language:
        return Request(tuple(words), problem=f"this seems to be {language}; only English is understood", invalid=True)
    plain = rewrite_plainly(corrected(words, labels), labels)
    led, is_place = to_places(plain, labels)
    asked = put_aside(led, labels)
    kept = {word.start for word in asked}
    aside = tuple((word.start, word.end) for word in words if word.start not in kept)
    put_together = any(a.start > b.start for a, b in pairwise(asked))
    line = Line(restated(asked, labels))
    rearranged = [w.text for w in line.words] != [w.text for w in asked]
    kind, line = _question(line)
    line = _command(line) if kind == "object" else line
    asked_for = line.joined
    any_of = kind == "object" and _ANY_OF.search(line.joined) is not None
    line, excluded = _exclusions(line)
    if excluded:
        any_of |= _ANOTHER.search(asked_for) is not None
        any_of |= re.match(r"(?:an?|some|another|one of the) ", line.joined) is not None
    every, number, line = _quantity(line)
    request = Request(
        tuple(line.words), kind, every, number, excluded,
        put_together=put_together, any_of=any_of, rearranged=rearranged, aside=aside, is_place=is_place,
    )  # fmt: skip
    problem, invalid = _problem(line, labels, bool(excluded))
    return replace(request, problem=problem, invalid=invalid)


# ----------------------------------------------------------------------------------------------- questions, commands


def _question(line: Line) -> tuple[Kind, Line]:
    polite = line.begins(
        _POLITE
        + r"(?:(?:tell|show) me (?:please )?|say |check |look |see |list |name |report |describe )?(?:if |whether )?"
    )
    rest = line.without(0, polite)
    on_wall = re.search(r"\bon the wall (?=(?:above|over|behind|next to|beside|below|under)\b)", rest.joined)
    if on_wall is not None and rest.joined.startswith("what"):
        rest = rest.without(rest.word_at(on_wall.start()), rest.word_at(on_wall.end()))
    taken = rest.begins(_CONTENTS + rf"(?= {_INNER}\b)")
    if taken:
        counted = rest.joined.startswith(("how many", "count"))
        thing = replace(rest.words[0], text="anything")
        named = re.search(r"\bis (?:it|that|this)(?= (?:a|an|the)\b)", rest.joined)  # "..., is it a tv?"
        if named and not counted:
            first, last = rest.word_at(named.start()), rest.word_at(named.end())
            noun = [w for w in rest.words[last:] if w.text[0].isalnum()]
            return "exists", Line([*noun, *(w for w in rest.words[taken:first] if w.text[0].isalnum())])
        return ("count" if counted else "contents"), Line([thing, *rest.words[taken:]])
    taken = rest.begins(
        _WHICH_THING + r" (?=(?:taller|higher|wider|longer|bigger|larger|deeper|shorter|lower|smaller) than|"
        r"(?:more|less|closer|farther|further) than|within|at (?:least|most))"
    )
    if taken:
        kind_of = "furniture" if "furniture" in rest.joined[: rest.starts[taken]] else "anything"
        return "contents", Line([replace(rest.words[0], text=kind_of), *rest.words[taken:]])
    taken = rest.begins(_COUNT)
    if taken:
        rest = rest.without(0, taken)
        # "chairs are there in the room", "doors does the hall have", "lamps you can see"
        for pattern in (
            r"\b(?:are there|do (?:we|you|i) (?:see|have|find)|can (?:you|i|we) (?:see|find|count)|"
            r"you (?:can )?see|have you (?:seen|found)|(?:have|has) (?:we|you|i|they) got(?: (?:standing|lying|"
            r"left))?(?: here)?|"
            r"does (?:the|this) [\w ]+? have|(?:the|"
            r"this) (?:\w+ )?(?:room|hall|house|"
            r"home|kitchen|office|garage|bathroom|bedroom|place) has|in total|altogether|overall)\b",
            r"\b(?:are|is|stand|lie|sit)\b",
        ):
            match = re.search(pattern, rest.joined)
            if match:
                rest = rest.without(rest.word_at(match.start()), rest.word_at(match.end()))
        if rest.words and not lexicon().mentions(rest.words) and rest.words[0].text not in _ARTICLES:
            rest = Line([replace(rest.words[0], text="the"), *rest.words])  # "how many wheelchairs"
        return "count", rest
    for name, pattern in (("where", _WHERE), ("exists", _EXISTS)):
        taken = rest.begins(pattern)
        if taken and taken < len(rest.words) and not (name == "exists" and "." in rest.joined):
            rest = _cut_tail(rest.without(0, taken), r"(?:anywhere|somewhere|here|around here|around|in here)")
            if name == "where":  # "do you know where the clock is"
                rest = _cut_tail(rest, r"(?:is|are|was|were|hangs|stands|sits|lies|lives|goes|went|could be|might be)")
            return ("where" if name == "where" else "exists"), rest
    return "object", line


def _cut_tail(line: Line, pattern: str) -> Line:
    match = re.search(rf" {pattern}(?= ?[?.!]*$)", line.joined)
    return line if match is None else line.without(line.word_at(match.start() + 1), line.word_at(match.end()))


def _command(line: Line) -> Line:
    """Without politeness, the verb of a command, and where the object shall go."""
    polite = line.begins(_POLITE)
    rest = line.without(0, polite)
    if not rest.words:
        return rest
    for pattern in (_GO + " " + _TO, _DO):
        taken = rest.begins(pattern)
        first = _first_clause(rest.without(0, taken))
        # "stand at the door and look at the window, the chair on the left" tells a viewpoint
        alone = re.sub(r"\bbetween (?:(?!between\b)[\w'-]+ )+?and ", "between ", first.joined)
        if taken and first.words and not re.search(r" , (?=\w)|^, | and (?!(?:an?|the|my|another)\b)| \. \w", alone):
            return first
    taken = rest.begins(_WASH)
    if taken and taken < len(rest.words):
        return _without_destination(
            _first_clause(rest.without(0, taken)), r"(?:in|into)(?= (?:the|my|a|some|hot|cold)\b)"
        )
    taken = rest.begins(_PUT)
    if taken and taken < len(rest.words):
        return _without_destination(_first_clause(rest.without(0, taken)), _DESTINATION)
    taken = rest.begins(_BRING + r"(?: (?:me|us|him|her|over|up|down))*")
    if taken and taken < len(rest.words):
        rest = _first_clause(rest.without(0, taken))
        rest = _without_destination(
            rest,
            r"(?:back |over )*(?:to(?= (?:the|my|a|me|us|him|her|your)\b)(?! the (?:left|right)\b)|into|onto|near to)",
        )
        return _from_where(rest)
    return rest if polite else line


def _first_clause(line: Line) -> Line:
    """What stands before "and put it ..."."""
    match = re.search(
        rf" ,?(?:and|then)(?: then)? (?:{_PUT[3:-1]}|{_BRING[3:-1]}|go|drive|come|give|tell|wait)\b", line.joined
    )
    return line if match is None else Line(line.words[: line.word_at(match.start() + 1)])


def _without_destination(line: Line, pattern: str) -> Line:
    """Up to the last place that is named after the object."""
    nouns = lexicon().mentions(line.words)
    last = None
    pause = next((i for i, w in enumerate(line.words) if i and w.text in (",", ".", ";", ":")), len(line.words))
    for match in re.finditer(rf"\b(?:{pattern})\b", line.joined):
        first = line.word_at(match.start())
        after = line.word_at(match.end())
        if first > pause:
            break  # "pull the bag aside, it blocks the way to the wardrobe"
        named = any(m.last <= first for m in nouns) or first >= 2
        inner = any(m.first < first < m.last for m in nouns)
        follows = line.words[after].text if after < len(line.words) else ""
        clause = line.words[max((m.last for m in nouns if m.last <= first), default=first) : first]
        relative = any(
            word.text in ("that", "which", "that's", "which's") for word in clause
        )  # "the book that is tucked into the shelf"
        relative |= pattern != _DESTINATION and line.words[first - 1].text in _RELATIVE
        if named and not inner and not relative and follows not in ("", "left", "right"):
            whole = line.words[after : after + 3]
            if [w.text for w in whole[1:3]] in (["left", "of"], ["right", "of"]):
                continue
            if last is None or first > last[1]:
                last = first, after
    if last is None:
        return line
    rest = line.words[pause:]  # "..., just not the yellow one" is about the object
    kept = re.search(rf"(?<![\w-]){_OTHER_THAN}(?![\w-])", Line(rest).joined) is not None
    return Line([*line.words[: last[0]], *(rest if kept else [])])


_FAR_WORDS = frozenset(
    (
        "away", "far", "farther", "farthest", "further", "furthest", "across", "apart", "distance", "distant", "end",
        "isolated", "least", "longest", "opposite", "remote", "remotest", "removed", "separate", "separated", "walk",
        "way", "ways",
    )
)  # fmt: skip


_LENGTHS = ("metre", "meter", "centimet", "cm", "feet", "foot", "inch")


def _from_where(line: Line) -> Line:
    """ "The bowl from the table" is the bowl near the table."""
    for match in re.finditer(r"\b(?:out of|from|off)(?= the| my| a)", line.joined):
        i, after = line.word_at(match.start()), line.word_at(match.end())
        before = [word.text for word in line.words[max(0, i - 6) : i]]
        follows = line.words[after + 1].text if after + 1 < len(line.words) else ""
        apart = not _FAR_WORDS.isdisjoint(before) or before[-1:] in (["second"], ["third"], ["first"])
        apart |= bool(before) and before[-1].startswith(_LENGTHS)
        if i and not apart and follows not in ("left", "right"):
            told = "on" if match[0] == "off" else "near"
            return Line([*line.words[:i], replace(line.words[i], text=told), *line.words[after:]])
    return line


# -------------------------------------------------------------------------------------------- exclusion and quantity


def _exclusions(line: Line) -> tuple[Line, tuple[tuple[Word, ...], ...]]:
    excluded = []
    for _ in range(3):
        match = re.search(rf"(?<![\w-]){_OTHER_THAN}(?![\w-])", line.joined)
        start, end = (-1, -1) if match is None else match.span()
        if match is None:
            match = re.search(_ALL_BUT, line.joined)
            if match is None:
                break
            start, end = match.span(1)
        first, last = line.word_at(start), line.word_at(end)
        stop = last
        stops = {".", ",", ";", ":", "?", "!", "but", "please"}
        if line.words[first].text in ("avoid", "ignore", "skip", "forget", "never"):
            stops |= {"and", "then"}
        while stop < len(line.words) and (line.words[stop].text not in stops or _goes_on(line.words, stop)):
            stop += 1
        chunk = line.words[last:stop]
        if not chunk:
            break
        excluded += _alternatives(chunk)
        rest = line.words[stop:]
        if rest and rest[0].text in (",", "but"):
            rest = rest[1:]
        if rest and rest[0].text == "but":
            rest = rest[1:]
        kept = line.words[:first]
        if kept and kept[-1].text in (",", "but", "and"):
            kept = kept[:-1]
        line = Line([*kept, *rest])
    return line, tuple(excluded)


def _goes_on(words: Sequence[Word], i: int) -> bool:
    """Whether a comma parts what is left out: "except the red, | the blue and the black one"."""
    if (
        words[i].text != ","
        or i + 2 >= len(words)
        or words[i + 1].text != "the"
        or words[i + 2].text not in _ADJECTIVES
    ):
        return False
    return i + 3 >= len(words) or words[i + 3].text in (",", "and", "or", "one", "ones")


def _alternatives(chunk: Sequence[Word]) -> list[tuple[Word, ...]]:
    """ "The red one or the blue one": both."""
    parts: list[list[Word]] = [[]]
    for i, word in enumerate(chunk):
        follows = chunk[i + 1].text if i + 1 < len(chunk) else ""
        if word.text in ("or", "and", "nor", ",") and follows in ("the", "that", "those", "my", "not") and parts[-1]:
            parts.append([])
        elif word.text == "not" and not parts[-1]:
            continue
        else:
            parts[-1].append(word)
    return [tuple(part) for part in parts if part]


def _quantity(line: Line) -> tuple[bool, int | None, Line]:
    """Whether all are asked for, how many there should be, and the line without "all" and "every"."""
    match = re.match(
        r"(?:(?:find|show|me|us|get|select|locate|list|bring|where|are|point|out|the|please|,) )*"
        rf"(?:({_EVERY})(?: of)?(?: (?:the|my|those|these))?(?: (two|three|four|five|six|seven|eight)(?= \w))?"
        r"|(?:the|these|those|my) (two|three|four|five|six|seven|eight))(?= [\w])",
        line.joined,
    )
    if match is None:
        return False, None, line
    quantifier, counted, number = match.groups()
    many = counted or number or (quantifier if quantifier == "both" else None)
    after = line.word_at(match.end())
    start = line.word_at(match.start(1) if quantifier else match.start(3))
    if many and quantifier is None and re.search(r"^ ?(?:seat|door|drawer|person|piece)", line.joined[match.end() :]):
        return False, None, line  # "the three seat couch"
    kept = [*line.words[:start], *([] if quantifier is None else [replace(line.words[start], text="the")])]
    return quantifier is not None, _NUMBERS[many] if many else None, Line([*kept, *line.words[after:]])


# ---------------------------------------------------------------------------- what no object of the scene can be: parts


def _problem(line: Line, labels: Sequence[str], excluded: bool) -> tuple[str, bool]:
    """Why the described thing is no object of its own: a room, a part, an accessory."""
    words = [w.text for w in line.words]
    i = 0
    while i < len(words) and (words[i] in _OPENING or not words[i][0].isalnum()):
        i += 1
    if i == len(words):
        return "", False
    room = _room(words, i)
    if room:
        return f"the {room} is a room or a place, no object", True
    mentions = lexicon().mentions(line.words, labels)
    return _part(words, i, mentions, frozenset(label.lower() for label in labels)), False


_OPENING = _ARTICLES | word_set("opening")


def _room(words: Sequence[str], i: int) -> str:
    """The room that the words from ``i`` on name and nothing else, or empty."""
    for length in (3, 2, 1):
        name = " ".join(words[i : i + length])
        if len(words) < i + length or name not in _ROOMS:
            continue
        rest = [w for w in words[i + length :] if w[0].isalnum()]
        if not rest or rest[0] in ("please", "again", "now", "and", "then", "with", "next"):
            return name
    return ""


def _part(words: Sequence[str], i: int, mentions: Sequence[Mention], labels: frozenset[str]) -> str:
    """ "The leg of the table", "the door handle", "the laptop charger": what is meant has no box of its own."""
    start = i
    while (
        words[i + 1 : i + 2] not in ([], ["of"])
        and (words[i] in _ADJECTIVES or words[i] in _WHERE_ON_IT)
        and not any(m.first <= i < m.last and m.last > m.first + 1 for m in mentions)
    ):
        i += 1
    for length in (2, 1):
        name = " ".join(words[i : i + length])
        bare = _singular(name)
        of = words[i + length : i + length + 1]
        if of != ["of"] or (bare not in _PARTS and bare not in _SIDES) or {name, bare} & labels:
            continue
        owner = next((m for m in mentions if m.first >= i + length + 1), None)
        between = words[i + length + 1 : owner.first] if owner else []
        if owner is None or len(between) > 3 or owner.noun in _STRUCTURE:
            continue
        if bare in _IN_A_ROW and owner.plural and not lexicon().always_plural(owner.noun):
            continue  # "the bottom of the three shelves" is one of them
        ends = owner.last >= len(words) or not words[owner.last][0].isalnum()
        if bare in _PARTS or ends:
            return _part_of(bare, owner)
    for k in range(mentions[0].first - 2 if mentions else 0):
        bare = _singular(words[k])
        fixed = (
            bare in _FIXED_TO and words[k + 1] == "on" and words[k + 2] in _ARTICLES and not {words[k], bare} & labels
        )
        if fixed and words[k - 1 : k] not in (["your"], ["my"]) and mentions[0].first <= k + 5:
            return _part_of(bare, mentions[0])
    for k in range(i, mentions[0].first if mentions else i):
        bare, owner = _singular(words[k]), mentions[0]
        if bare in _PARTS and words[k + 1] == "of" and owner.first <= k + 5 and owner.noun not in _STRUCTURE:
            return _part_of(bare, owner)
    if len(words[i:]) and _singular(words[i]) in _WHOLE_PARTS and words[i] not in labels:
        rest = [w for w in words[i + 1 :] if w[0].isalnum()]
        if not rest or rest[0] not in ("of",):
            return f"a {_singular(words[i])} is a part of something; parts have no boxes of their own"
    # compounds: known thing, then what belongs to it
    for m in mentions:
        if not (start <= m.first <= i + 1 or m is mentions[0]) or m.last >= len(words):
            continue
        head = words[m.last]
        if head in ("faces", "stands") and m.last + 1 < len(words) and words[m.last + 1][0].isalnum():
            break  # "the chair faces the wall"
        bare = _singular(head)
        name = " ".join(words[m.first : m.last + 1])
        if bare in _PARTS and m.noun in _WITH_DOORS:
            return f"there is no {name}: it is a part of the {m.noun}"
        answers = max((lexicon().similarity(bare, label) for label in labels), default=0.0)
        if name in labels or head in labels or (answers >= _SAME and bare not in _PARTS):
            continue
        after = words[m.last + 1 : m.last + 2]
        if bare in _ACCESSORIES or bare in _PARTS:
            if any(n.first <= m.last < n.last and n.first < m.last for n in mentions):
                continue
            if after and (after[0] in ("of",) or (bare in _PARTS and after[0] in ("side",))):
                continue
            return f"there is no {name}: it belongs to a {m.noun}, but is none"
        break
    return ""


def _part_of(bare: str, owner: Mention) -> str:
    return f"the {bare} of the {owner.noun} is a part of it; parts have no boxes of their own"


_FIXED_TO = frozenset(
    ("bell", "handle", "knob", "lid", "button", "zip", "zipper", "lock", "strap", "wheel", "pedal", "saddle",
     "handlebar", "drawer", "hinge", "dial", "plug", "cord", "cable", "leg", "armrest", "backrest", "buckle", "pocket")
)  # fmt: skip
_ADJECTIVES = word_set("adjectives") - frozenset((",", ".", "with", "and"))
_WHERE_ON_IT = frozenset(("rear", "front", "back", "hind", "upper", "lower", "inner", "outer", "bottom"))
_WITH_DOORS = word_set("with_doors")
_SAME = 0.7  # a label that answers so well to a word is meant by it
_WHOLE_PARTS = word_set("whole_parts")


def _singular(name: str) -> str:
    if name in lexicon().irregular:
        return lexicon().irregular[name]
    if name.endswith("ies") and name[:-3] + "y" in _PARTS | _ACCESSORIES:
        return name[:-3] + "y"
    if name.endswith("ves") and name[:-3] + "f" in _PARTS | _ACCESSORIES:
        return name[:-3] + "f"
    return name[:-1] if name.endswith("s") and not name.endswith("ss") else name
