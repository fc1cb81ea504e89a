"""Errands: what people have in hand, or keep somewhere, has no place on the map; where it goes or lies has.

"Throw this paper in the blue bin" is about the bin, "my scarf is on the second chair, go there" about the chair, and
what else is said meanwhile ("the crumbs are driving me mad") is about nothing. What stands on the map itself stays what
is asked for, and so does what the map could hold and does not: "bring the umbrella from the bench" wants an umbrella.
Words keep their places in the sentence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from embodied_perceptron.language.lexicon import Mention, Word, lexicon, relation_words, word_set
from embodied_perceptron.language.line import Line
from embodied_perceptron.language.preamble import ADDRESS, INTO, is_of_scene, phrase_start
from embodied_perceptron.weights.categories import ALL_CATEGORIES

_MOST_WORDS = 40  # longer ones are descriptions of a room
_NAMED_SO = 0.75  # how well a category answers to a noun that the detector has a name for
_NO_PLACES = frozenset(("wall", "floor", "ceiling", "room"))
_PAUSES = frozenset(".,;:!?")

_ASKS = (
    r"(?:(?:can|could|would|will|won't|may|might) (?:you|someone|somebody|anyone|i|we)(?: (?:please|kindly|just|maybe|"
    r"quickly|be so kind as to|mind))*|you (?:can|could|may|should|must|have to|need to)|(?:i|we)(?:'d| would)? "
    r"(?:like|want|need) you to|i want to|i'd like to|i have to|i need to|go and|go|come and|come|let's|let us|please|"
    r"just|now|then|so|quickly)"
)
_ORDER = rf"{ADDRESS}(?:{_ASKS} )*"
_TO_YOU = (
    rf"{ADDRESS}(?:(?:(?:can|could|would|will|won't) (?:you|someone|somebody|anyone)|you (?:can|could|should|must|"
    rf"have to)|"
    r"(?:i|we)(?:'d| would)? (?:like|want|need) you to|go and|go|come and|let's|please|just|now|then|so|kindly) )*"
)
_HANDS_OVER = r"(?:take|taking|bring|bringing|carry|carrying|give|giving|pass|hand|deliver|return|get|feed|move)"
_PUTS = (
    r"(?:put|putting|place|set|hang|stick|throw|throwing|toss|chuck|drop|dump|lay|store|stow|pop|pour|stuff|bin|leave|"
    r"load|shove|slip|tuck|park|seat|sit|lean|plug|fold|stack|spread|empty|sling|whack|bung)"
)
_FETCHES = (
    rf"(?:{_HANDS_OVER}|fetch|grab|find|pick up|pick|collect|show|locate|look for|search for|where|which|what|"
    r"(?:is|are) there|have you seen|do you see|any|how many|count)"
)
_GOES = r"(?:go|drive|roll|head|come|walk|run|move|wheel|park|stop|wait|stand|hop|pop|nip|get|turn|look|check|clean)"
_BE = (
    r"(?:is|are|was|were|(?:should|must|might|could|may|will|would|ought to|has to|have to) (?:still |all )?(?:be|"
    r"go|lie|"
    r"hang|stand|sit)|has been|have been|lives?|lies|lie|sits?|sat|hangs?|stands?|goes|go|belongs?|(?:can|may|should|"
    r"must|has to|have to|needs? to|need to) (?:all )?(?:go|be (?:put|thrown|left|stored)))"
)
_ADVERBS = (
    r"(?: (?:still|now|always|usually|probably|just|all|right|over|somewhere|lying|sitting|standing|waiting|"
    r"playing|sleeping|kept|locked|stored|down|"
    r"up|back|hidden|hanging|left|put|there|straight|out|away|in))*?"
)
_LEAVES = (
    r"(?:left|put|dropped|drop|keeps?|kept|hid|hides?|stored?|stores|forgot|lost|spilled|spilt|threw|hung|parked|"
    r"has|have|had|saw|seen|leaves?|puts?|write|wrote|took|takes?|places?d?|laid|stuck|stuffed|packed)"
)
_RESTS = (
    r"(?:fell|tripped|stumbled|bumped|ran|walked|spilled|sits?|sat|sleeps?|slept|naps?|rests?|lies|lay|eats?|works?|"
    r"worked|stands?|stood|waits?|live|lives)"
)
_SOMEBODY = (
    r"(?:i|we|he|she|they|you|somebody|someone|everybody|everyone|nobody|(?:my|our|your|his|her|their|the) "
    r"(?!one\b)[\w-]+|(?:mr|mrs|ms|dr) [\w-]+|(?!it\b|that\b|who\b|which\b|there\b|what\b|this\b)[a-z]{3,})(?:'ve|"
    r"'d|'s|'m|'re)?"
)
_OFTEN = (
    r"(?: (?:nearly|almost|have|has|had|must|might|may|always|usually|often|just|only|once|all|already|really|used to|"
    r"would))*"
)
_IN_HAND = r"(?:this|these|those|that|some|it|them|a (?:glass|cup|bit|bowl|drop|piece|can|bag) of)"
_THERE = r"(?:(?:in |on |over |under |up |down )?there|(?:in|on|into|onto|inside|under|to|at|by) (?:it|that|that one))"
_GO_THERE = re.compile(
    rf"{_ORDER}(?:and )?(?:{_GOES}(?: (?:over|right|straight|back|up|and \w+))* {_THERE}|(?:take|lead|bring|get|help|"
    rf"guide|show) (?:me|us|him|her)(?: (?:over|back|the way))* (?:there|to it)|(?:{_GOES}|off you go)$|"
    rf"help me (?:over )?"
    r"to it|(?:can|could) you (?:reach|open) (?:it|that)|(?:reach|open|unlock) (?:it|that)|(?:(?:can|could|will|"
    r"would) you )?(?:show|tell) me (?:which|where) "
    r"(?:one )?(?:that|it|they) (?:is|are)|(?:go and |go )?(?:have|take) a (?:quick |good )?look(?: at it|"
    r" there)?$|(?:go and |go )?"
    r"check it)"
)
_PUT_THERE = re.compile(rf"{_ORDER}(?:and )?(?:{_PUTS}|{_HANDS_OVER}) (?!it\b|them\b)[^,.;!?]+? {_THERE}\b")
_FETCH_IT = re.compile(
    rf"{_ORDER}(?:and )?(?:{_HANDS_OVER}|{_PUTS}|fetch|grab|pick|lift|reach|find|check)(?: (?:me|us|up|down|for))* "
    r"(?P<what>it|that|them|those|these)\b"
)
_TAKES_AND_PUTS = re.compile(  # "take my jacket and hang it on the coat stand"
    rf"{_ORDER}(?:take|here is|here's|here are) (?:my|our|this|these|that|the) [\w' -]+? (?:, |and |"
    rf"then )+{_PUTS} (?:it|them)"
    r"(?: (?:down|back|over|away|up))*"
)
_PERSONAL = (
    r"(?:i|we|he|she|they|you|everybody|everyone|somebody|someone|nobody|anybody)(?:'\w+)?\b"
    r"|(?:me|you) and (?:my )?\w+ \w+|it's \w+ing\b|(?:that|this)(?:'s| is) (?:where|why|when|how)\b|"
    r"there's\b|there (?:is|are|should be|must be|might be|may be|could be)\b"
)
_DOES = (
    r"(?:is|are|was|were|'s|has|have|had|will|can|could|won't|can't|must|should|need|needs|look|looks|smell|smells|"
    r"keep|keeps|feel|feels|start|starts|come|comes|said|says|\w{3,}ed|\w{3,}(?<!s)s)"
)
_ABOUT_OTHERS = (
    rf"(?:my|our|his|her|their|your) [\w'-]+(?: (?!{_DOES}\b)[\w'-]+)?(?:'s| {_DOES})\b"
    r"|(?:the|those|these|some|all|that|this) (?!object\b|thing\b|item\b|one\b|ones\b|target\b|left\b|right\b|side\b)"
    rf"[\w'-]+(?: (?!{_DOES}\b)[\w'-]+)?(?:'s| {_DOES})\b"
    r"|the others?(?: ones?)? (?:is|are|was|were|has|have|hasn't|haven't|isn't|aren't|doesn't|don't|needs?|\w+s)\b"
    r"|that one (?!is (?:on|in|at|by|near|next|under|behind|to)\b)\w+s\b|(?:both|all|none|some) of (?:them|those) \w+"
)
_JOINED = r"(?:and |but |so |or |because |since |as |for |cause |cos |'cause |while |when |before |until )*"
_REMARK = re.compile(rf"{_JOINED}(?:{_PERSONAL}|{_ABOUT_OTHERS})")
_DOING = re.compile(  # whoever speaks is busy
    rf"{_JOINED}(?:i'm|we're|i am|we are|she's|he's|they're) (?!looking|searching|thinking|talking|asking|after|"
    rf"pointing)\w+ing\b"
    r"(?!.*\b(?:it|ones?|that|them)\b)"
)
_IN_IT = re.compile(
    rf"{_JOINED}(?:all )?(?:my|our|his|her|their|the|some) [\w-]+(?: [\w-]+)? (?:is|are|was|were) (?:still )?(?:in|"
    rf"on|inside|under) "
    r"(?:it|there)"
)
_AND_THEN = re.compile(
    r"(?:and|then)(?: then)? (?!the\b|a\b|an\b|my\b|also\b|not\b|is\b|on\b|in\b)\w+ (?:the|my|our|your|me|us|him|her)\b"
)
_PURPOSE = re.compile(  # "i want to reach the top of the fridge", said after what is wanted for it
    rf"{_JOINED}(?:i|we|he|she|they)(?:'d|'ve|'m|'ll|'s|'re| would| am| are| is)? (?:really |just |also )*(?:want|"
    rf"wants|need|needs|"
    r"like|love|have|has|got|going|trying|about|must) (?:to )(?!(?:have|see|get|take|use|know)\b)\w+"
)
_PERSON = re.compile(rf"{_JOINED}(?:i|we|he|she|they|my [\w-]+|our [\w-]+)(?:'\w+)?\b")
_ANSWERED = re.compile(
    rf"{ADDRESS}(?:{_ASKS} )*(?:where|is there|are there|how many|do you (?:have|see)|have you|what|which|"
    rf"any)\b[^.!?]*\?$"
)
_WISH = (
    r"(?:i|we)(?:'d| would)? (?:like|love|want|need|have|prefer) to (?:sit|lie|lay|rest|work|eat|sleep|use|wash|"
    r"have|see)\b"
)
_CHOOSES = re.compile(  # "i want the one by the door"
    rf"{_JOINED}(?:i|we|he|she|they)(?:'d|'m|'re| would| am| are)? (?:really |rather |just )*(?:want|need|mean|"
    rf"meant|like|"
    r"prefer|looking for|after|see|talking about|thinking of|left|put)\b(?! to\b| you to\b| it\b| (?:someone|"
    r"somebody|something|a hand|help)\b)"
)
_READ_OTHERWISE = re.compile(
    r"\b(?:one|ones|it|its|them|itself|other|others|another|left|right|number|first|second|third|fourth|fifth|last|"
    r"me|you|my|"
    r"your|nearest|closest|farthest|furthest|\w+est|most|metres?|meters?|cm|feet|inch|inches|not|except|without)\b"
)


@dataclass(frozen=True)
class _Clause:
    """Words [first, last) between two pauses, and the same joined by spaces."""

    first: int
    last: int
    text: str


def to_places(words: Sequence[Word], labels: Sequence[str]) -> tuple[list[Word], bool]:
    """``words`` about the thing of the map that an errand leads to, and whether it does lead to one: then something
    that is not on the map goes or lies there. Without remarks in any case.

    ``labels`` are those of the scene: without any nobody knows what is on the map.
    """
    if not labels or len(words) > _MOST_WORDS:
        return list(words), False
    return _at_its_place(_without_remarks(list(words), labels), labels)


# --------------------------------------------------------------------------------------------------------------------
# what is said meanwhile


def _without_remarks(words: list[Word], labels: Sequence[str]) -> list[Word]:
    while True:
        clauses = _clauses(words)
        if len(clauses) < 2:
            return words
        body, tail = clauses[:-1], clauses[-1]
        if _names(words[: body[-1].last], labels) and _is_remark(words, tail, labels, trailing=True):
            words = words[: tail.first]
            continue
        head, rest = clauses[0], clauses[1:]
        if _is_order(words, rest[0], labels) and _is_remark(words, head, labels, trailing=False):
            words = words[rest[0].first :]
            continue
        return words


def _clauses(words: Sequence[Word]) -> list[_Clause]:
    """Between pauses, and before "because"."""
    found: list[_Clause] = []
    first = 0
    for i in range(len(words) + 1):
        ends = i == len(words) or words[i].text in _PAUSES
        joins = not ends and i > first and words[i].text in ("because", "cause", "cos")
        if (ends or joins) and i > first:
            found.append(_Clause(first, i, " ".join(w.text for w in words[first:i])))
        if ends or joins:
            first = i if joins else i + 1
    return found


def _names(words: Sequence[Word], labels: Sequence[str]) -> list[Mention]:
    """The nouns that mean something on the map."""
    return [m for m in lexicon().mentions(words, labels) if is_of_scene(m.noun, labels)]


def _is_order(words: Sequence[Word], clause: _Clause, labels: Sequence[str]) -> bool:
    """Whether a clause asks for something of the map."""
    said = words[clause.first : clause.last]
    asks = re.match(
        rf"{_ORDER}(?:{_PUTS}|{_FETCHES}|{_GOES}|open|close|shut|turn|water|help|use|wipe|dust|wash|start|stay|follow|"
        rf"unplug|push|pull|lift|inspect|lock)\b|{_ORDER}(?!(?:i|we|you|he|she|they|it|is|are)\b)\w+ (?:up |out |"
        rf"down )?"
        rf"(?:all|every|the|my|those|these)\b|{ADDRESS}{_WISH}",
        clause.text,
    )
    return asks is not None and bool(_names(said, labels))


def _is_remark(words: Sequence[Word], clause: _Clause, labels: Sequence[str], trailing: bool) -> bool:
    """Whether a clause tells nothing of what is meant."""
    said = words[clause.first : clause.last]
    text = clause.text
    if trailing and _ANSWERED.match(" ".join(w.text for w in words[: clause.first])) and _PERSON.match(text):
        return _CHOOSES.match(text) is None  # "is there a phone? i'd like to call the front desk"
    named = _names(said, labels)
    if trailing and not named and _IN_IT.fullmatch(text):
        return True  # "all my brushes are in it"
    new = all(said[phrase_start(said, m)].text in ("a", "an", "some") for m in named)
    if trailing and new and _DOING.match(text) and _is_order(words, _clauses(words)[0], labels):
        return True  # "bring me the drill, i'm putting up a shelf"
    if trailing and (_PURPOSE.match(text) or re.match(r"the others?\b(?! (?:one )?(?:on|in|by|at|near|next)\b)", text)):
        return True
    if named or re.match(r"(?:that|this|it)(?:'s| is) (?:what|the one|the thing)\b", text):
        return False
    about = _REMARK.match(text) is not None and _CHOOSES.match(text) is None
    if trailing:
        if about and re.search(r"\b(?:it|one|ones)\b", re.sub(r"^(?:that|the other) ones?\b", "", text)) is None:
            return True
        wanted = re.match(rf"{_TO_YOU}(?:{_FETCHES}|{_PUTS})\b", text) is not None
        if not wanted and _AND_THEN.match(text) and re.search(r"\b(?:it|one|ones|them)\b", text) is None:
            return True  # "and send the next people to me"
        return not wanted and not _is_read(text) and _GO_THERE.match(text) is None
    if re.match(rf"(?:{INTO}|of|from|facing|with|through|left|right)\b", text) or re.search(r"\b(?:one|ones)\b", text):
        return False
    wanted = re.match(rf"{_TO_YOU}(?:{_FETCHES}|{_PUTS})\b", text) is not None or _CHOOSES.match(text) is not None
    return not wanted and (about or not _is_read(text))


def _is_read(text: str) -> bool:
    """Whether there are words in it that tell which thing is meant."""
    table = relation_words()
    patterns = (pattern for _, pattern in (*table.relations, *table.unary))
    return (
        _READ_OTHERWISE.search(text) is not None
        or any(pattern.search(text) for pattern in patterns)
        or any(w in table.colours or w in table.materials for w in text.split())
    )


# --------------------------------------------------------------------------------------------------------------------
# where something goes or lies


def _at_its_place(words: list[Word], labels: Sequence[str]) -> tuple[list[Word], bool]:
    words, follow_up = _without_follow_up(words, labels)
    there = _names(words, labels)
    if not there or there[0].noun in _NO_PLACES:
        return words, False
    start = _phrase_start(words, there[0])
    stop = next((i for i in range(there[0].last, len(words)) if words[i].text in _PAUSES), len(words))
    if any(m.first > stop for m in there):
        return words, False  # "if you sat on the desk, the chair would be at your left"
    line = Line(words[:start])
    match = re.fullmatch(rf"(?P<lead>.+?) (?P<where>(?:{INTO}|outside)(?: of)?)", line.joined)
    if match is None:
        return words, False
    where = match["where"]
    lead = re.split(r" [.!?;:] ", match["lead"].strip(" .,!?;"))[-1]  # what was said before names nothing of the map
    if not _leads_there(lead, where, follow_up):
        return words, False
    return words[start:], True


def _phrase_start(words: Sequence[Word], mention: Mention) -> int:
    """Where the phrase of a noun begins: "the lowest of | the cabinets" too."""
    first = phrase_start(words, mention)
    if (
        first > 2
        and words[first - 1].text == "of"
        and (words[first - 2].text in _ONE_OF or words[first - 2].text.endswith("est"))
    ):
        first -= 2
        while words[first - 1].text in ("the", "very", "second", "third"):
            first -= 1
    return first


_ONE_OF = word_set("comparatives") | word_set("places_in_a_row") | {"one"}


_HAS_IT = re.compile(  # "the desk holds a lamp. get that": clauses of a landmark, which say what is asked for
    r"\b(?:it|there|there's|has|have|holds?|carries|supports?|bears|contains?|houses|hides)\b"
)


def _without_follow_up(words: list[Word], labels: Sequence[str]) -> tuple[list[Word], str]:
    """The words without "go there", "put this folder on it" at their end; and which of both it was, or "fetch"."""
    clauses, told = _clauses(words), ""
    if len(clauses) < 2 or not _names(words[: clauses[-1].first], labels):
        return words, told
    text = clauses[-1].text
    if re.match(rf"{_ORDER}(?:and )?{_PUTS} (?:this|these)\b", text) and _PUT_THERE.match(text):
        return words[: clauses[-1].first], "go"
    if not _names(words[clauses[-1].first :], labels):
        owned = _HAS_IT.search(" ".join(w.text for w in words[: clauses[-1].first])) is not None
        if _PUT_THERE.match(text) or _GO_THERE.match(text):
            return (words if owned else words[: clauses[-1].first]), "go"
        match = _FETCH_IT.match(text)
        if match is not None:
            told = "fetch them" if match["what"] in ("them", "those", "these") else "fetch it"
            if len(clauses) == 2 and not owned:
                words = words[: clauses[-1].first]
    return words, told


def _leads_there(lead: str, where: str, follow_up: str) -> bool:
    """Whether the words before a place say that something goes there, or lies there, that the map does not hold."""
    if _TAKES_AND_PUTS.fullmatch(lead) or _LEADS.fullmatch(lead):
        return True
    goes = re.fullmatch(
        rf"{_ORDER}(?:{_PUTS}|{_HANDS_OVER}) (?P<what>.+?)(?: (?:down|back|over|away|up|straight|right|in))*", lead
    )
    if goes is not None:
        puts = re.match(rf"{_ORDER}{_PUTS}\b", lead) is not None
        return _is_in_hand(goes["what"], puts)
    lies = re.fullmatch(rf"{ADDRESS}(?P<what>.+?)(?: {_BE}|'s){_ADVERBS}", lead)
    if lies is not None:
        what = lies["what"]
        goes_there = re.search(r"\b(?:goes|go|belongs?)\b", lead.removeprefix(what)) is not None
        return (goes_there and what in ("this", "that", "these", "those")) or _is_somewhere(
            what, where, follow_up, goes_there
        )
    left = re.fullmatch(rf"{ADDRESS}{_SOMEBODY}{_OFTEN} (?:{_LEAVES}(?P<what> .+?)?|{_RESTS}){_ADVERBS}", lead)
    if left is None:
        return False
    what = (left["what"] or "").strip()
    stored = re.search(r"\b(?:keeps?|kept|stores?|stored)\b", lead) is not None
    return not what or _is_somewhere(what, where, follow_up, stored)


_PEOPLE = (
    r"(?:(?:the|our|my|this|these|all|that) )?(?:next )?(?:visitors?|guests?|patients?|clients?|customers?|lady|"
    r"ladies|gentleman|gentlemen|man|woman|people|children|kids|baby|grandma|grandpa|granny|mum|dad|her|him|them|everyone)"
)
_LEADS = re.compile(rf"{_ORDER}(?:show|take|lead|bring|walk|guide|help|accompany|seat) {_PEOPLE}(?: (?:over|back|up))*")


def _is_in_hand(what: str, puts: bool) -> bool:
    """Whether "put this paper" or "give some water" moves what the speaker has: nothing that the robot has to find."""
    words = what.split()
    if len(words) > 6 or any(w in _PAUSES for w in words):
        return False
    bare = words[0] not in word_set("articles") | word_set("determiners") | {"all", "every", "both", "any", "another"}
    owned = any(w.endswith("'s") for w in words)  # "the gentleman's jacket"
    if re.match(rf"{_IN_HAND}\b", what) or (puts and (bare or owned or words[0] in ("my", "our"))):
        return True
    return puts and not _has_a_name(what)


def _is_somewhere(what: str, where: str, follow_up: str, belongs: bool = False) -> bool:
    """Whether "the folders from 2019" that lie somewhere are nothing that the robot could find; it ``belongs`` there
    wherever it is."""
    words = what.split()
    light = word_set("adjectives") | word_set("articles")
    if belongs and len(words) > 1 and words[0] in ("this", "that"):
        words = words[1:]  # "this fluff can go in the bin"
    if len(words) > 9 or all(w in light for w in words) or not _STRANGE.isdisjoint(words[:1]) or "one" in words:
        return False
    if any(w in _PAUSES for w in words) or not _ASKING.isdisjoint(words):
        return False
    if follow_up == "go" or belongs:
        return True
    many = _is_plural(words)
    if follow_up == ("fetch them" if many else "fetch it"):
        return False
    if follow_up:
        return True
    wanted = re.search(r"\b(?:i|we|you) (?:need|want|use|sent|wrote|ordered|brought)\b", what) is not None
    own = wanted or re.match(r"(?:his|her|their|[\w-]+'s)\b", what) is not None
    return (own or not _has_a_name(what)) and re.match(
        r"(?:in|inside|on|into|onto|at|under|behind|in front|outside)\b", where
    ) is not None


_ASKING = frozenset(("what", "what's", "which", "where", "who", "how"))
_STRANGE = (
    word_set("prepositions")
    | word_set("orders")
    | {"if", "when", "while", "once", "as", "can", "could", "would", "will", "may", "should", "do", "does", "did"}
    | {"there", "here", "it", "it's", "this", "that", "which", "what", "where", "who", "is", "are", "how", "there's"}
)


def _is_plural(words: Sequence[str]) -> bool:
    head = next((i for i, w in enumerate(words) if w in ("that", "which", "from", "of", "for", "i", "we")), len(words))
    return head > 0 and words[head - 1].endswith("s") and not words[head - 1].endswith("ss")


def _is_compound(words: Sequence[Word], mention: Mention) -> bool:
    """Whether a noun has another before it that nobody knows: "cotton pads"."""
    before = words[mention.first - 1].text if mention.first else ""
    light = (
        word_set("adjectives")
        | word_set("articles")
        | word_set("determiners")
        | {"some", "all", "both", "any", "every"}
    )
    return (
        before not in light and before.isalpha() and not before.endswith(("y", "ed", "ing", "ish", "ful", "en", "ous"))
    )


def _has_a_name(what: str) -> bool:
    """Whether the detector has a name for what is said: if it stood there, the map could hold it."""
    words = [Word(w, 0, 0) for w in what.split()]
    found = [m for m in lexicon().mentions(words) if not _is_compound(words, m)]
    return any(lexicon().similarity(m.noun, name) >= _NAMED_SO for m in found for name in ALL_CATEGORIES)
