"""Words as they are said plainly: orders whose verb is a noun elsewhere, "right beside", "the sink, the one by ...".

Words keep their places in the sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from embodied_perceptron.language.lexicon import Mention, Word, lexicon, word_set
from embodied_perceptron.language.line import Line

_BEGINS = frozenset((".", ",", "!", "?", ";", ":", "and", "then", "please", "to", "just", "go", "so", "now", "you"))
_NOUN_FOLLOWS = frozenset(("the", "my", "our", "these", "those", "all", "every", "both"))
_HANDED = ("left-hand", "right-hand")
_TITLES = frozenset(("mr", "mrs", "ms", "dr", "st"))
_MODALS = frozenset(("can", "could", "would", "will", "shall", "may", "might"))
_PARTICLES = frozenset(("up", "down", "away", "out", "over"))
_VERBS = frozenset(("can", "left", "right", "throw", "stick", "hand", "box", "place", "set", "rest", "file", "wrap"))
_MOVING = frozenset(("roll", "stand", "wait", "wheel"))
_WAYS = frozenset(("over", "to", "by", "at", "next", "near", "in", "up", "down", "behind", "beside", "close"))
_LOOKED = re.compile(
    r"\b(?:have|take|having|taking) (?:a|another) (?:(?:quick|good|close|closer) )?(?:look|peek|glance|picture|photo|"
    r"snap) (?:at|of) (?=\w)(?!it\b|that\b|this\b)"
)
_POSSIBLE = re.compile(
    r"(?:^|(?<=[.,!] ))(?:(?:is|would) it (?:be )?(?:possible|okay|ok|alright|all right|fine)|(?:do|"
    r"would) you mind|any chance)"
    r"(?: (?:that|if|for (?:me|us|you) to|to))?(?: (?:i|we|you)(?: (?:can|could|may|might))?)?(?= \w)"
)
_GONE = re.compile(
    r"^(?:(?:oh|no|hey|well|[,!]) )*(?P<what>(?:my|the|our|his|her) (?:[\w-]+ )?[\w-]+)(?:'s| is| has|'ve| have|"
    r" are) (?:gone|missing|disappeared|"
    r"vanished|lost|nowhere)(?: missing| again| now)?(?= ?[.?!]*$)"
)
_AND_SEE = re.compile(
    r"(?: ,)? (?:and|to) (?:see|check|tell me|let me know|find out|look) (?:if|whether) [^.!?]*(?= ?[.?!]*$)"
)
_WHERE_IS_IT = re.compile(
    r" [.,;!](?: (?:and|so|but|well|now))*(?: (?:do you know|any idea|can you tell me|tell me|do you remember|"
    r"i wonder))?"
    r" where (?:is (?:it|that)(?: now)?|it is|are they|they are|it went|it's gone|it could be|did (?:it|"
    r"they) go)(?= ?[?.!]*$)"
)
_AFFORDED = (  # what people look for when they ask where they can do something
    (r"wash (?:my|our|your|his|her) hands", "sink"), (r"(?:get|have|find) (?:some |a glass of )?water", "sink"),
    (r"hang (?:up )?(?:my|our|a|the|this|his|her) (?:coat|jacket|scarf|hat)(?: up)?", "coat rack"),
    (
        r"(?:throw|chuck|put|leave|get rid of|dump) (?:this|these|that|my|the|some) [\w -]*?"
        r"(?:away|rubbish|trash|litter|out)",
        "trash can",
    ),
    (r"sit(?: down)?", "seating"), (r"lie down|have a nap|take a nap|sleep", "somewhere to sleep"),
)  # fmt: skip
_WHERE_TO = re.compile(
    r"(?:where|is there (?:anywhere|somewhere|a place(?: where)?)|do you know where|any(?:where|place))(?: (?:can|"
    r"could|do|may|might|"
    r"should) (?:i|we|you)| (?:i|we) (?:can|could|may|might)| to| that i can)* "
)
_ELLIPSIS = re.compile(r"(?<= the )(?P<first>[\w-]+)(?= (?:and|or) the (?P<second>[\w-]+) ones?\b)")
_PICTURED = re.compile(
    r"(?:(?:,|and|then) )+(?:take|make|snap|get|send me) an? (?:picture|photo|photograph|snap) of (?:it|that|them|"
    r"those)(?= |$)"
)
_EXACTLY = re.compile(
    r"(?<!\bthe )(?<!\bmy )(?<!\byour )(?<!\bits )(?<!\bfar )\bright (?=(?:beside|next to|near|by|behind|under|"
    r"underneath|"
    r"beneath|below|above|over|on top|in front|against|between|at the|in the|on the)\b)"
)
_THE_ONE = re.compile(
    r" [,.;] (?:(?:it's|it is|that's|that is|i mean|i want|i'm after) )?(?:the|that) one (?:(?:that's|that is|which is|"
    r"which's) )?(?=(?P<where>[\w']+))"
)
_OF_ITS_KIND = re.compile(
    r"\b(?:of|among|amongst|from|not|don't) (?:all |both )?(?:of )?(?:the|my|those|these|them|two|three|both)\b"
)
_TELLS_WHERE = word_set("prepositions") | {
    "closest", "nearest", "farthest", "furthest", "without", "left", "standing", "lying", "sitting", "hanging",
    "that", "which", "straight", "directly", "just", "up", "down", "inside", "outside",
}  # fmt: skip


def rewrite_plainly(words: Sequence[Word], labels: Iterable[str] = ()) -> list[Word]:
    """``words`` with what they plainly mean in place of such forms; the same where there are none."""
    line = Line(_orders([w for i, w in enumerate(words) if not (w.text == "." and i and words[i - 1].text in _TITLES)]))
    line = _with_ones(
        Line([replace(w, text=w.text.removesuffix("-hand")) if w.text in _HANDED else w for w in line.words])
    )
    for pattern in (_POSSIBLE, _WHERE_IS_IT, _AND_SEE, _LOOKED, _PICTURED, _EXACTLY):
        match = pattern.search(line.joined)
        if match is not None:
            first, last = line.word_at(match.start()), line.word_at(match.end())
            told = [replace(line.words[first], text="check")] if pattern is _LOOKED else []
            line = Line([*line.words[:first], *told, *line.words[last:]])
    line = _place_for(line)
    line = _where_gone(line)
    return _without_apposition(_without_other(line, tuple(labels)), tuple(labels)).words


def _orders(words: Sequence[Word]) -> list[Word]:
    """ "Switch on the projector", "hoover the rug", "pack up both laptops", "go stand by the door": orders."""
    result = list(words)
    for i, word in enumerate(result[:-1]):
        before, after = result[i - 1].text if i else ".", result[i + 1].text
        if before not in _BEGINS or (before == "you" and (i < 2 or result[i - 2].text not in _MODALS)):
            continue
        if after in _PARTICLES and i + 2 < len(result) and result[i + 2].text in _NOUN_FOLLOWS:
            after = result[i + 2].text
        if word.text == "roll" and after in ("me", "us", "him", "her"):
            result[i] = replace(word, text="bring")
        elif word.text == "switch" and (after in ("on", "off", "that", "it", "them") or after in _NOUN_FOLLOWS):
            result[i] = replace(word, text="turn")
        elif word.text in _MOVING and after in _WAYS and (before != "to" or i < 2):
            result[i] = replace(word, text="go")
        elif after in _NOUN_FOLLOWS and (word.text,) in lexicon().surfaces and word.text not in _VERBS:
            result[i] = replace(word, text="check")
    _without_switch(result)
    for i in range(len(result) - 2, -1, -1):
        said = [w.text for w in result[i : i + 3]]
        if said == ["get", "rid", "of"]:
            result[i : i + 3] = [replace(result[i], text="take", end=result[i + 2].end)]
        elif said[:2] in (["throw", "away"], ["throw", "out"], ["clear", "away"]):
            result[i : i + 2] = [replace(result[i], text="take", end=result[i + 1].end)]
    while len(result) > 2 and result[0].text in ("go", "come"):
        following = result[2 if result[1].text == "and" else 1].text
        if following not in ("go", "check"):
            break
        result = result[2 if result[1].text == "and" else 1 :]
    return result


def _without_apposition(line: Line, labels: tuple[str, ...]) -> Line:
    """ "The sink, the one between ...": the sink between ..."; where only one thing is named before."""
    match = _THE_ONE.search(line.joined)
    if match is None or match["where"] not in _TELLS_WHERE or _OF_ITS_KIND.search(line.joined[: match.start()]):
        return line
    first, last = line.word_at(match.start() + 1), line.word_at(match.end())
    if len(lexicon().mentions(line.words[:first], labels)) != 1:
        return line
    return line.without(first, last)


def _without_switch(words: list[Word]) -> None:
    """ "Turn the lamp on it off": off is no place."""
    verb = next((i for i, w in enumerate(words) if w.text == "turn" and (i == 0 or words[i - 1].text in _BEGINS)), None)
    if verb is None or words[verb + 1 : verb + 2] == [] or words[verb + 1].text in ("on", "off", "around", "round"):
        return
    end = next((i for i in range(verb, len(words)) if words[i].text in ".,;!?"), len(words))
    last = end - 1
    while last > verb + 1 and words[last].text in ("please", "for", "me", "us", "now", "again", "a", "bit"):
        last -= 1
    if last > verb + 1 and words[last].text in ("on", "off"):
        words[verb] = replace(words[verb], text="check")
        del words[last]


def _with_ones(line: Line) -> Line:
    """ "Between the red and the green one": the red one and the green one."""
    match = _ELLIPSIS.search(line.joined)
    if match is None or match["first"] not in _ADJECTIVES or match["second"] not in _ADJECTIVES:
        return line
    i = line.word_at(match.start())
    return Line([*line.words[: i + 1], replace(line.words[i], text="one"), *line.words[i + 1 :]])


_ADJECTIVES = word_set("adjectives") - {",", ".", "and", "with", "off", "a", "an", "the", "one"}
_OTHER = re.compile(
    r"\b(?:the other|the remaining|another|a different)(?: (?P<one>ones?))?(?=(?P<next> [\w']+| ?[.,;!?]|$))"
)
_AFTER_OTHER = word_set("prepositions") | {"instead", "please", "over", "out", "back", "here", "up", "down", "then"}


_ASKED_FOR = re.compile(
    r"(?:(?:and|then|now|please|but|just) )*(?:(?:can|could|would|will|may) (?:you|i|we|someone|somebody) |(?:i|"
    r"we)(?:'d|'ll)? "
    r"(?:would |will |really |rather )*(?:like|want|need|prefer|take|have|use|mean)\b|i'm after|(?!the\b|it\b|i\b|"
    r"we\b|that\b)\w+)"
)


def _without_other(line: Line, labels: tuple[str, ...]) -> Line:
    """ "We have read the green book, so bring the other one": the book, not the green one."""
    match = _OTHER.search(line.joined)
    if match is None:
        return line
    first, last = line.word_at(match.start()), line.word_at(match.end())
    pause = max((i for i in range(first) if line.words[i].text in (".", ",", ";", "!")), default=None)
    if pause is None:
        return line
    before, mentions = line.words[:pause], lexicon().mentions(line.words, labels)
    names = {m.noun for m in mentions if m.last <= pause}
    follows = next((m for m in mentions if m.first == last and m.noun in names), None)
    if len(names) != 1 or not (match["one"] or follows or match["next"].strip() in (*_AFTER_OTHER, "", *".,;!?")):
        return line
    noun = next(iter(names))
    named = _attributes(before, [m for m in mentions if m.last <= pause])
    if not named:
        return line
    if not any(w.text in ("not", "neither", "nor", "don't") for w in before):
        named = named[:1]
    end = follows.last if follows else last
    order = [w for w in line.words[pause + 1 : first] if w.text != "so"]
    if not _ASKED_FOR.match(" ".join(w.text for w in order)):
        return line  # "..., the other one is too hard"
    place = [replace(line.words[first], text=t) for t in ("the", *noun.split())]
    tail = line.words[end:]
    stop = next((i for i, w in enumerate(tail) if w.text in (".", ",", ";", "!", "?")), len(tail))
    here = line.words[first]
    not_those = [replace(here, text=",")]
    for k, which in enumerate(named):
        not_those += [replace(here, text=t) for t in ("or" if k else "not", "the")]
        not_those += [*which, replace(here, text="one")]
    return Line([*order, *place, *tail[:stop], *not_those])


def _attributes(words: Sequence[Word], mentions: Sequence[Mention]) -> list[list[Word]]:
    """The adjectives of each noun, or "one", that has any, the last first."""
    found: list[list[Word]] = []
    for head in sorted({m.first for m in mentions} | {i for i, w in enumerate(words) if w.text == "one"}, reverse=True):
        first = head
        while first > 0 and words[first - 1].text in _ADJECTIVES:
            first -= 1
        if first < head:
            found.append(list(words[first:head]))
    return found


def _place_for(line: Line) -> Line:
    """ "Where can I wash my hands?": where is the sink."""
    asked = _WHERE_TO.match(line.joined)
    if asked is None:
        return line
    for done, noun in _AFFORDED:
        match = re.match(rf"(?:{done})\b", line.joined[asked.end() :])
        if match is not None:
            first, last = line.words[0], line.word_at(asked.end() + match.end())
            told = [replace(first, text=part) for part in ("where", "is", "the", *noun.split())]
            return Line([*told, *line.words[last:]])
    return line


def _where_gone(line: Line) -> Line:
    """ "My headset's gone": where is my headset."""
    match = _GONE.match(line.joined)
    if match is None:
        return line
    first, last = line.word_at(match.start("what")), line.word_at(match.end("what"))
    told = line.words[first:last]
    told[-1] = replace(told[-1], text=told[-1].text.removesuffix("'s"))
    return Line([*(replace(told[0], text=part) for part in ("where", "is")), *told])
