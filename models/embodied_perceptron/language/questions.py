"""Questions about an attribute: "what colour is the couch", "how far is the lamp from the door", "which is bigger, A or
B".

The objects of the question are read like any sentence, with the words of the question blanked out; the answer is
measured on the boxes and colours of the objects found. What a map does not hold is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from embodied_perceptron.language.meaning import Attribute, Meaning, ObjectPhrase
from embodied_perceptron.language.relations import LIKELIHOODS, SceneGeometry, viewer_distance

# attributes that no map holds -> their name in a refusal
UNKNOWN: dict[Attribute, str] = {
    "material": "what {} made of", "shape": "the shape of {}", "use": "the use of {}", "weight": "the weight of {}",
    "age": "the age of {}", "brand": "the brand of {}", "price": "the price of {}",
}  # fmt: skip
_HOW: dict[Attribute, str] = {
    "height": "tall|high", "width": "wide|broad", "length": "long", "depth": "deep", "weight": "heavy", "age": "old",
    "size": "big|large|small", "price": "expensive",
}  # fmt: skip
_OF: dict[Attribute, str] = {
    "colour": "colou?r", "size": "size|dimensions?|measurements?", "material": "material|fabric", "shape": "shape",
    "height": "height", "width": "width", "length": "length", "depth": "depth", "weight": "weight", "age": "age",
    "brand": "brand", "price": "price",
}  # fmt: skip
_IS = r"(?:\s+(?:is|are)|'s)"
_NOUN, _OTHER = r"(?P<noun>\S.*?)", r"(?P<other>\S.*?)"
_ASK = rf"(?:what{_IS}|tell\s+me|say|give\s+me|do\s+you\s+know|can\s+you\s+tell\s+me|i\s+want\s+to\s+know)"
_MORE = r"(?:\w+er|more\s+\w+|less\s+\w+|(?:closer|nearer|further|farther)\s+(?:to|from)\s+.+?)"


_PATTERNS: tuple[tuple[Attribute, str], ...] = (
        ("distance", rf"{_ASK}\s+the\s+distance\s+(?:between|from|of)\s+{_NOUN}\s+(?:and|to|from)\s+{_OTHER}"),
        ("distance", rf"how\s+(?:far|close|near)(?:\s+away|\s+apart)?{_IS}\s+{_NOUN}(?:\s+away)?"
                     rf"(?:\s+(?:from|to)\s+{_OTHER})?"),
        ("relation", rf"{_ASK}\s+the\s+(?:spatial\s+)?relation(?:ship)?\s+(?:between|of)\s+{_NOUN}\s+"
                     rf"(?:and|to|with)\s+{_OTHER}"),
        ("relation", rf"(?:where|how){_IS}\s+{_NOUN}\s+(?:\w+ed\s+)?(?:relative|in\s+relation|with\s+respect|compared)"
                     rf"\s+to\s+{_OTHER}"),
        ("comparison", rf"(?:which|what)(?:\s+(?:one|thing|object))?{_IS}\s+{_MORE}\s*[,:]?\s+{_NOUN}\s*,?\s+or\s+"
                       rf"{_OTHER}"),
        ("comparison", rf"(?:is|are)\s+{_NOUN}\s*,?\s+or\s+{_OTHER}\s+{_MORE}"),
        ("use", rf"what{_IS}\s+{_NOUN}\s+(?:used\s+)?for"),
        ("material", rf"what{_IS}\s+{_NOUN}\s+made\s+(?:out\s+)?(?:of|from)"),
        ("price", rf"how\s+much\s+(?:does|do|did|is|are)\s+{_NOUN}\s+(?:cost|worth)"),
        ("weight", rf"how\s+much\s+(?:does|do)\s+{_NOUN}\s+weigh"),
        *((name, rf"(?:(?:what|which){_IS}?\s+(?:the\s+)?(?:{word})s?(?:{_IS}|\s+does|\s+do|\s+of)\s+{_NOUN}"
                 rf"(?:\s+have|\s+made\s+(?:of|from))?|{_ASK}\s+the\s+(?:{word})\s+of\s+(?P<noun2>\S.*?)|"
                 rf"{_ASK}\s+(?:what|which)\s+(?:{word})\s+(?P<noun3>\S.*?)\s+(?:is|are|has|have))")
          for name, word in _OF.items()),
        *((name, rf"how\s+(?:{word}){_IS}\s+{_NOUN}") for name, word in _HOW.items()),
)  # fmt: skip
# runs of white space are bounded: a match of hostile text must not take quadratic time in each of its parts
_FEW_SPACES = ((asked, p.replace(r"\s+", r"\s{1,3}").replace(r"\s*", r"\s{0,3}")) for asked, p in _PATTERNS)
_QUESTIONS = tuple(
    (asked, re.compile(rf"(?:(?:please|so|and|robot|hey)\W{{1,3}}){{0,3}}(?:{pattern})", re.IGNORECASE))
    for asked, pattern in _FEW_SPACES
)
_SPEAKER = frozenset(("me", "us", "you", "here", "the robot", "yourself"))
_RIGHT_ON = (
    ("on", "on"), ("in", "in"), ("supporting", "under"), ("above", "above"), ("below", "below"), ("left", "left of"),
    ("right", "right of"), ("front", "in front of"), ("behind", "behind"), ("near", "near"),
)  # fmt: skip
_HOLDS = 0.55  # least likelihood of a relation in an answer; sides without viewpoint and front are below it
_FLOATS_M = 0.2  # an elevation that is told beside the height
Read = Callable[[str], Meaning]


def read_question(text: str, read: Read) -> Meaning | None:
    """The meaning of a question about an attribute; None for other sentences.

    ``read`` reads the words for the objects, at their places in ``text``.
    """
    first, last = len(text) - len(text.lstrip()), len(text.rstrip(" ?.!"))
    for asked, pattern in _QUESTIONS:
        found = pattern.fullmatch(text, first, last)
        if found is None:
            continue
        noun = next(found.span(name) for name, words in found.groupdict().items() if words and name != "other")
        other = found.span("other") if found.groupdict().get("other") else None
        meaning = _object(text, noun, read)
        if asked == "comparison" and other is not None:  # the condition is read with the first object
            meaning = read(text[: noun[1]] + " " * (other[1] - noun[1]) + text[other[1] :])
            best = tuple(replace(c, weight=_OUTRIGHT) for c in meaning.constraints if c.is_superlative)
            meaning = replace(meaning, text=text, constraints=best, kind="object", every=False, others=())
            if not best:
                return None
        second: ObjectPhrase | None = None
        if other is not None and text[slice(*other)].lower() not in _SPEAKER:
            part = _object(text, other, read)
            if part.target is None:
                return None
            second = replace(part.target, constraints=part.constraints)
        if meaning.target is None:  # a room, a part, or no object: the reason stands in the meaning
            return meaning if meaning.problem else None
        return replace(meaning, asked=asked, second=second)
    return None


_OUTRIGHT = 3.0  # weight of a comparison: only the two objects count


def _object(text: str, span: tuple[int, int], read: Read) -> Meaning:
    first, last = span
    meaning = read(" " * first + text[first:last])
    return replace(meaning, text=text, others=())


def attribute_words(asked: Attribute, g: SceneGeometry, i: int, color: str, others: list[int]) -> str:
    """The attribute of object ``i`` in words: "is red", "is 0.80 m high"; empty where it is not known.

    ``color``: name of its colour, or empty. ``others``: the objects that a distance or relation refers to, nearest
    first; none = the speaker.
    """
    height, (depth, width) = float(g.extent[i, 2]), np.sort(g.size[i, :2]).tolist()
    if asked == "colour":
        return f"is {color}" if color else ""
    if asked == "size":
        return f"is {width:.2f} m wide, {depth:.2f} m deep and {height:.2f} m high"
    if asked == "height":
        above = float(g.low[i, 2] - g.low[:, 2].min())
        return f"is {height:.2f} m high" + (f", {above:.2f} m above the floor" if above > _FLOATS_M else "")
    if asked in ("width", "length", "depth"):
        named = {"width": (width, "wide"), "length": (max(width, height), "long"), "depth": (depth, "deep")}[asked]
        return f"is {named[0]:.2f} m {named[1]}"
    if not others:
        away = float(viewer_distance(g)[i])
        return f"is {away:.2f} m from you" if asked == "distance" and np.isfinite(away) else ""
    pairs = g.block(np.array([i], dtype=np.intp), np.array(others[:1], dtype=np.intp))
    gap = float(pairs.gap[0, 0])
    words = "" if asked == "distance" else next(
        (said for name, said in _RIGHT_ON if float(LIKELIHOODS[name](pairs)[0, 0]) > _HOLDS), ""
    )  # fmt: skip
    return f"is {words} {{}}, {gap:.2f} m away" if words else f"is {gap:.2f} m from {{}}"
