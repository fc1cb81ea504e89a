"""What people say around a request, put aside: small talk, wishes, what a thing is needed for, where it shall go; and
sentences that introduce a landmark for the next one.

"I'd like to sit in the armchair that is green" is about the armchair, "the bottle has to go in the fridge" about the
bottle, and "there's a stove. On it stands a pot. Bring me that" about the pot on the stove. Words keep their places in
the sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from embodied_perceptron.language.lexicon import Mention, Word, lexicon, word_set
from embodied_perceptron.language.line import Line

_FEW_WORDS = 25  # longer ones are told loosely, and all of it may count
_MOST_WORDS = 40  # longer ones are descriptions of a room
_ENDS = frozenset(".!?;")
_DETERMINED = r"(?:the|my|our|your|his|her|their|that|this|those|these|an?|any|some|every|all|both)"


# --------------------------------------------------------------------------------------------------------------------
# one sentence

ADDRESS = (
    r"(?:(?:hey|hi|hello|hiya|oi|yo|ok|okay|alright|right|well|so|now|listen|look|dear|robot|mate|love|good (?:morning|"
    r"evening|afternoon)|please|kindly|sorry|excuse me|thanks|and|but|then|just|quick question|[,!.]) )*"
)
_MODAL = r"(?:can|could|would|will|may|might|must|shall|should|have to|has to|need to|needs to|ought to|want to|got to)"
_SOMEBODY = r"(?:you|we|i|he|she|they|one|someone|somebody|anyone|anybody|everybody|everyone)"
_WONDER = (
    r"(?:(?:may|can|could|might) i ask|(?:i|we) (?:wonder|was wondering|am wondering|were wondering|wanted to know|"
    r"would like to know|want to know|"
    r"need to know|forgot|forget|can't remember|cannot remember|can't recall|don't know|do not know)|i'm wondering|"
    r"just wondering|wondering|i'd like to know|i'd love to know|(?:have you )?(?:got )?any idea|"
    r"(?:do|would|does|can|could) (?:you|anyone|anybody|someone|somebody) (?:happen to )?"
    r"(?:know|tell me|say|remember|recall)|you don't happen to know|let me know|remind me|tell me|say|find out|"
    r"check|see)"
)
_ASKS = r"(?:where|what|which|how many|if|whether|is there|are there|do|does|did|is|are|have|has|who)"
_NEEDED_FOR = (  # somebody's wish, up to the thing it needs
    rf"(?:{_SOMEBODY}|{_SOMEBODY}(?:'d|'ll|'m|'re|'ve)|my [\w-]+|the [\w-]+)"
    r"(?: (?:would|could|will|do|did|am|are|is|was|really|just|also|only|now|rather|sooner|still|soon|always|usually))*"
    r" (?:(?:like|love|want|wants|need|needs|prefer|prefers|fancy|mean|try|trying|going|about|have|has|hoping|hope|"
    r"wish|plan|planning|rather) )*"
    r"(?:to (?:sit|lie|lay|rest|stand|work|eat|sleep|read|look|see|use|clean|wash|water|move|get|have|take|play|relax|"
    r"check|inspect|reach|open|close|leave|walk|sand|oil|dust|paint|fix|mend|dry|iron|change|test|try|borrow|keep|"
    r"replace|repair|adjust|plug|charge|feed|tidy|clear|empty|fill|cover|lock|unlock|show|call|write|type|put|"
    r"cook|bake|boil|hang|wear|carry|lift|push|pull|pick|choose)|sit|lie|rest|stand|work|sleep|(?:servicing|fixing|"
    r"cleaning|moving|repairing|"
    r"painting|replacing|selling|testing|measuring|checking|inspecting|using|after|waiting for|missing)|do with|use)"
    r"(?: (?:down|in|on|at|by|with|into|onto|upon|up|through|under))*"
)
_TURNED = rf"{ADDRESS}(?:turn|look|spin) (?:around|round|back)(?: and look)? ?[,.]? (?=(?:behind|there|on|to|you)\b)"
_MAY_BE = (  # "there should be a lamp" says that there is one
    r"(?P<before>\b(?:there|it)) (?:should|must|might|may|could|ought to|used to|will|would) (?:still |also |"
    r"perhaps )?be"
    r"(?= )"
)
_THROWN = (
    r"(?:put|placed|thrown|moved|carried|brought|taken|stored|stowed|hung|laid|tossed|dropped|set|returned|tidied|"
    r"cleared|binned|emptied|poured|dumped|stacked|loaded|delivered|wheeled|pushed|rolled|parked|plugged|chucked|stuck)"
)
_GOES_TO = (
    rf"(?:(?:has|have|had|is|are|was|needs|need|ought|wants|supposed|meant|due) to|must|should|can|could|will|may|"
    rf"shall)"
    rf"(?: (?:now|please|just|probably|really|all|both|then))*"
    rf" (?:go|come|get|live|stand|hang|be (?:{_THROWN}))"
    r"(?: (?:back|away|out|down|over|up|straight))*"
)
_MOVES = (
    r"stick|pop|shift|store|stow|set|lay|roll|wheel|put|place|throw|toss|chuck|drop|dump|move|bring|take|carry|"
    r"give|hand|pass|wash|rinse|fetch|get|grab|push|"
    r"pull|clean|"
    r"wipe|water|open|close|shut|turn|switch|clear|tidy|fold|pick|lift|leave|hang|return|empty|fill|unplug"
)
INTO = (
    r"(?:on|onto|on top of|in|into|inside|to|under|underneath|beneath|next to|beside|near|by|at|behind|in front of|"
    r"against|over|above|between)"
)
_ASKED = frozenset(("that", "which", "who", "what", "where", "you", "i", "we", "if", "there"))
_BELONGS = r"(?:belongs|belong|goes|go)(?: back| away| over)*"


def put_aside(words: Sequence[Word], labels: Iterable[str] = ()) -> list[Word]:
    """``words`` without what only stands around a request; unchanged where nothing does."""
    labels = tuple(labels)
    line = Line(_introduced(_shortened(words), labels))
    line = _asking_clause(line, labels)
    for pattern in (_TURNED, rf"{ADDRESS}{_WONDER} ?,? (?={_ASKS}\b)"):
        line = Line(line.words[line.begins(pattern) :])
    match = re.search(_MAY_BE, line.joined)
    if match is not None:
        first, last = line.word_at(match.end("before")), line.word_at(match.end())
        line = Line([*line.words[:first], replace(line.words[first], text="is"), *line.words[last:]])
    line = _without_wish(line, labels)
    return _without_goal(line, labels).words


def _shortened(words: Sequence[Word]) -> list[Word]:
    """ "The telly's behind you": the telly."""
    result: list[Word] = []
    for i, word in enumerate(words):
        follows = words[i + 1].text if i + 1 < len(words) else ""
        base = word.text.removesuffix("'s")
        is_short = base != word.text and (base,) in lexicon().surfaces and follows in _AFTER_IS
        result.append(replace(word, text=base, end=word.end - 2) if is_short else word)
    return result


_BESIDE = word_set("prepositions") - {"has", "have"}
_AFTER_IS = _BESIDE | word_set("articles") | {
    "not", "too", "over", "here", "there", "just", "still", "now", "lying", "standing", "sitting", "hanging",
}  # fmt: skip
_REASON = (
    r"(?:(?:because|as|since|so) )?(?:(?:i|we|he|she|they)(?:'m|'ve|'re|'ll|'d|'s)?|it's (?!standing|lying|sitting|"
    r"hanging|facing|leaning|touching)\w+ing|(?:my|our|his|her) [\w-]+ (?:is|are|was|were|has|have|needs?|keeps?)|the "
    r"[\w-]+ says)\b(?! (?:want|need|mean|would|see|like|think|am looking|am after|after|looking|"
    r"talking|thinking|left|put)\b)"
)
_BEFORE = r"(?:before|until) (?:it|i|we|he|she|they|you|someone|somebody)(?:'\w+)? \w"
_PERSONAL = r"(?:i|we|he|she|they|someone|somebody)(?:'m|'ve|'re|'s| am| are| have| is| was)\b"


def _asking_clause(line: Line, labels: Sequence[str]) -> Line:
    """The clause that asks: without "I'm up the ladder, ..." before it and "..., we're starting" behind it."""
    if len(line.words) > _FEW_WORDS:
        return line
    for pause in re.finditer(r" [,.!] ", line.joined):
        first, second = line.words[: line.word_at(pause.start() + 1)], line.words[line.word_at(pause.end()) :]
        after = Line(second)
        asks = re.match(rf"{ADDRESS}(?:what(?:'s| is)|anything|something|is there|are there|how many)\b", after.joined)
        ordered = re.match(rf"{ADDRESS}(?:{_MOVES}|show|find|open|go)\b", after.joined)
        named = lexicon().mentions(first, labels)
        personal = re.match(_PERSONAL, Line(first).joined) and lexicon().mentions(second, labels)
        once = ordered and re.match(r"(?:once|when|as soon as|after) (?:i|you|we|he|she|they)\b", Line(first).joined)
        if ((asks or once) and not named) or (ordered and personal and "it" not in after.joined.split()):
            return after
    match = re.search(rf" [,;] (?={_REASON})| (?={_BEFORE})", line.joined)
    if match is None:
        return line
    before, tail = line.words[: line.word_at(match.start() + 1)], line.words[line.word_at(match.end()) :]
    told = {m.noun for m in lexicon().mentions(tail, labels)} & set(labels)
    return line if told or not lexicon().mentions(before, labels) else Line(before)


def _without_wish(line: Line, labels: Sequence[str]) -> Line:
    """ "I'd like to sit in the armchair" wants the armchair; where the speaker is tells where things are."""
    taken = line.begins(rf"{ADDRESS}{_NEEDED_FOR} (?={_DETERMINED} )")
    if not taken or lexicon().mentions(line.words[:taken], labels):
        return line
    return Line(line.words[taken:])


_OF_THE_SCENE = 0.35  # how well a label answers to a noun that means something of the scene


def is_of_scene(noun: str, labels: Iterable[str]) -> bool:
    """Whether a noun means something that one of the ``labels`` of the scene answers to."""
    return any(lexicon().similarity(noun, label) >= _OF_THE_SCENE for label in labels)


_PREDICATE = re.compile(
    rf"(?P<subject>{ADDRESS}{_DETERMINED} (?:(?!that |which |who |and )[\w'-]+ )+?)"
    r"(?P<modal>will|would|won't|can|can't|could|should|might) (?!be |you |i |we |do )[\w'-]+[^.,;!?]*"
)


def _without_predicate(line: Line, labels: Sequence[str]) -> Line:
    """ "The smaller ball will fit in my bag": what a thing will do tells not where it is."""
    match = _PREDICATE.match(line.joined)
    if match is None:
        return line
    modal = line.word_at(match.start("modal"))
    mentions = lexicon().mentions(line.words, labels)
    if any(m.first <= modal < m.last for m in mentions) or not any(m.last <= modal for m in mentions):
        return line  # "the trash can to the right"
    if not labels or any(m.first > modal and is_of_scene(m.noun, labels) for m in mentions):
        return line  # "the lamp would fall on the table"
    return line.without(modal, line.word_at(match.end()))


def _without_goal(line: Line, labels: Sequence[str]) -> Line:
    """ "The bottle has to go in the fridge", "can the cup be thrown in the bin": about what is moved."""
    start = line.begins(rf"{ADDRESS}(?:{_MODAL} )?(?={_DETERMINED} )")
    for pattern in (rf" (?:be {_THROWN}|{_GOES_TO})(?= (?:{INTO})\b| away\b)", rf" {_BELONGS}(?= (?:{INTO})\b)"):
        match = re.search(pattern, line.joined)
        if match is None:
            continue
        first = line.word_at(match.start() + 1)
        before = line.words[start:first]
        if not before or _ASKED & {w.text for w in before[1:]} or not lexicon().mentions(before, labels):
            continue
        return Line(before)
    line = _without_predicate(line, labels)
    wished = re.match(rf"{ADDRESS}(?:i|we)(?:'d| would)? (?:want|need|like) ", line.joined)
    match = (
        re.search(rf"(?<! has)(?<! have)(?<!'s)(?<! was)(?<! is) {_THROWN}(?= (?:{INTO})\b)", line.joined)
        if wished
        else None
    )
    if match is not None and lexicon().mentions(line.words[: line.word_at(match.start() + 1)], labels):
        return Line(line.words[: line.word_at(match.start() + 1)])  # "i want the book placed on the bed"
    match = re.search(rf" , (?:please |and |then |just )*(?:{_MOVES}) (?:it|that|them)\b", line.joined)
    if match is None:
        return line
    before = line.words[: line.word_at(match.start() + 1)]  # "that bottle, toss it in the bucket"
    owns = {"has", "have"} & {w.text for w in before}
    return line if owns or not lexicon().mentions(before, labels) else Line(before)


# --------------------------------------------------------------------------------------------------------------------
# several sentences

_RELATES = (
    r"(?:on top of|on|upon|atop|in front of|inside of|inside|in|within|next to|beside|close to|near|by|against|above|"
    r"over|under|underneath|beneath|below|behind|opposite|across from|from|off|(?:to|on|at) the (?:left|right) of)"
)
_WHO_IS = frozenset(
    ("that", "which", "is", "are", "that's", "stands", "sits", "lies", "hangs", "standing", "lying", "right")
)
_DESCRIBES = r"(?:this is|it is|it's|this|its|these are|the object is|the target)\b"
_SEES = (
    rf"{ADDRESS}(?:(?:far away |over there |way back |over here )?(?:i|we|you)(?: can| do| could|'ll| will|'ve| have|"
    r" should| got)* (?:see|saw|find|notice|spot|know|got|have|own|put)|you know|look at|looking at|"
    r"i'm looking at|find|see|go to|go "
    r"over to|(?:we|i|you)'ve got|we've|i've)\b"
)
_WANTS = re.compile(
    rf"^{ADDRESS}(?:please )?(?:[\w'-]+ (?:wants|needs|would like|likes|is looking for)\b|i'll (?:need|take|have|"
    rf"want)\b|"
    rf"i (?:will|shall) need\b|{_MODAL} (?:you|somebody|someone|anybody|anyone) \w)|"
    rf"^{ADDRESS}(?:please )?(?:{_MODAL} {_SOMEBODY} )?(?:(?:go|come) (?:and|"
    rf"over and) )?(?:don't |do not |never )?"
    r"(?:go|get|take|bring|fetch|grab|move|hand|give|check|clean|pick|want|need|inspect|show|use|stop|turn|switch|open|"
    r"close|shut|wipe|dust|wash|empty|fill|water|carry|pass|push|pull|lift|put|throw|knock|touch|unplug|plug|find|"
    r"tell|is|are|"
    r"was|has|does|do|drive|head|come|follow|look|i want|i need|i mean|i'd like|i would like|that's the|"
    r"that is the|it wants|"
    r"it needs|that one|that \w+ is|what)\b"
)


_GOES_ON = (
    r" (?:there|is|are|was|stands|sits|lies|hangs|needs|wants|has|looks|must|should|can|which|too|,|\.|!|\?|and|"
    r"so|you|you'll|i|we|\w+ing|\w+n't|over|to|into|onto|for|please|up|down|off|on|out|\w{3,}s)|$"
)


def _sentences(words: Sequence[Word]) -> list[list[Word]]:
    found: list[list[Word]] = [[]]
    for word in words:
        found[-1].append(word)
        if word.text in _ENDS:
            found.append([])
    found = [found[0], *(part for sentence in found[1:] for part in _before_order(sentence))]
    return [sentence for sentence in found if any(w.text[0].isalnum() for w in sentence)]


def _before_order(sentence: list[Word]) -> list[list[Word]]:
    """ "I left a book on it, | can you get it?\""""
    for i, word in enumerate(sentence):
        if word.text == "," and i + 2 < len(sentence) and _ORDERS.match(" ".join(w.text for w in sentence[i + 1 :])):
            return [sentence[: i + 1], sentence[i + 1 :]]
    return [sentence]


_ORDERS = re.compile(
    r"(?:and |so |please |now )*(?:(?:can|could|would|will) (?:you|somebody|someone) \w|(?:go|get|bring|fetch|"
    r"grab|take|turn|hand|give|pick)\b)"
)


def _introduced(words: list[Word], labels: tuple[str, ...]) -> list[Word]:
    """One sentence instead of those that name a landmark first and ask for what is on it: with the landmark in the
    place of "it"."""
    if not 5 <= len(words) <= _MOST_WORDS:
        return words
    sentences = _sentences(words)
    if len(sentences) < 2 or re.match(_DESCRIBES, Line(sentences[0]).joined):
        return words
    landmark = _landmark(sentences[0], labels)
    if landmark is None:
        return words
    first, noun = landmark
    told: tuple[list[Word], list[Word]] | None = None  # the thing at the landmark: its phrase, and where it is
    for k, sentence in enumerate(sentences[1:], 1):
        last = k == len(sentences) - 1
        asks = _WANTS.match(Line(sentence).joined) is not None
        place = _place_of_it(sentence, first)
        others = None
        if last and asks and any(w.text in ("one", "ones") for w in sentence):
            others = _others(sentences[0], landmark, labels)
        if others is not None:
            return _said_again(sentence, *others)
        thing = _thing(sentence, noun, labels)
        if (
            last
            and place is not None
            and thing is None
            and re.match(r"(?:what|which|anything|is there)\b", Line(sentence).joined)
        ):
            return [*sentence[: place[0]], *place[2], *sentence[place[1] :]]
        if place is not None and thing is not None:
            start, stop, where = place
            between = [w.text for w in sentence[thing[1].last : start]]
            subject = thing[0] <= 1 and sentence[thing[0]].text in ("the", "that", "those") and set(between) <= _WHO_IS
            if last and (asks or (subject and thing[1].last <= start)):
                return [*sentence[:start], *where, *sentence[stop:]]
            told = sentence[thing[0] : thing[1].last], where
            pointed = re.search(r"\b(?:that's|that is) (?:what|the one)\b", Line(sentence).joined) is not None
            if last and (pointed or re.match(_SEES, Line(sentences[0]).joined)):
                return [*_definite(told[0]), *told[1]]
        elif last and asks and told is not None:
            again = _thing(sentence, noun, labels)
            same = again is not None and again[1].noun == _last_noun(told[0], labels)
            if same or again is None:
                return [*_definite(told[0]), *told[1]]
    return words


def _last_noun(words: Sequence[Word], labels: tuple[str, ...]) -> str:
    """The last noun of a phrase; empty without any."""
    found = lexicon().mentions(words, labels)
    return found[-1].noun if found else ""


def _landmark(sentence: list[Word], labels: tuple[str, ...]) -> tuple[list[Word], str] | None:
    """What a sentence introduces: its phrase with what is said of where it is, and its noun."""
    mentions = lexicon().mentions(sentence, labels)
    if not mentions:
        return None
    words = [w for w in sentence if w.text not in _ENDS]
    lead = next((i for i, w in enumerate(words) if w.text in ("there's", "there", "is", "you'll", "stands")), None)
    chosen = mentions[0]
    if lead and len(mentions) > 1 and words[0].text in word_set("prepositions") | {"to", "over", "left", "right"}:
        chosen = next((m for m in mentions if m.first > lead), chosen)  # "in front of the couch there's a table"
    elif lead and words[0].text in ("on", "in", "to", "over", "at", "far", "way"):
        chosen = next((m for m in mentions if m.first > lead), chosen)
    first = phrase_start(words, chosen)
    if first == chosen.first and not chosen.plural:
        return None  # no article: no sentence about a thing
    before = words[:lead] if lead and lead <= first and words[0].text in word_set("prepositions") else []
    tail = words[chosen.last :]
    told = [m for m in mentions if m.first >= chosen.last and m.noun != chosen.noun]
    if told and tail and tail[0].text in ("has", "with", "holds"):  # "one nightstand has a book on it"
        book = _definite(words[phrase_start(words, told[0]) : told[0].last])
        tail = [replace(tail[0], text="with"), *book]
    elif (
        not tail
        or not re.match(rf"(?:{_RELATES}|to|at)\b", " ".join(w.text for w in tail))
        or "it" in {w.text for w in tail}
    ):
        tail = []
    return [*_definite(words[first : chosen.last]), *(tail or before)], chosen.noun


def phrase_start(words: Sequence[Word], mention: Mention) -> int:
    first = mention.first
    while first > 0 and words[first - 1].text in _BEFORE_NOUN:
        first -= 1
        if words[first].text in _ARTICLES:
            break
    return first


_ARTICLES = word_set("articles") | word_set("determiners") | {"another", "some"}
_BEFORE_NOUN = (word_set("adjectives") | _ARTICLES) - {",", ".", "and", "with", "off"}


def _definite(phrase: Sequence[Word]) -> list[Word]:
    """The phrase with "the" for its article."""
    rest = list(phrase)
    while len(rest) > 1 and rest[0].text in _ARTICLES:
        rest = rest[1:]
    return [replace(rest[0], text="the", end=rest[0].start), *rest]


def _thing(sentence: Sequence[Word], landmark: str, labels: tuple[str, ...]) -> tuple[int, Mention] | None:
    """The first other thing that a sentence names: where its phrase begins, and its mention."""
    for m in lexicon().mentions(sentence, labels):
        if m.noun != landmark and sentence[m.first].text not in ("stands", "stand"):
            return phrase_start(sentence, m), m
    return None


def _place_of_it(sentence: Sequence[Word], landmark: list[Word]) -> tuple[int, int, list[Word]] | None:
    """Where "on it" stands, words [start, stop), and "on the landmark"."""
    line = Line(list(sentence))
    match = re.search(rf"\b({_RELATES}) (?:it|that|them|this)(?={_GOES_ON})", line.joined)
    if match is None:
        return None
    start, stop = line.word_at(match.start()), line.word_at(match.end())
    relation = [replace(w, text="on") if w.text in ("off", "from") else w for w in sentence[start : stop - 1]]
    return start, stop, [*relation, *landmark]


def _others(
    sentence: list[Word], landmark: tuple[list[Word], str], labels: tuple[str, ...]
) -> tuple[Mention, list[Word]] | None:
    """ "The couch has two pillows on it": the pillows, and "on the couch"."""
    subject, noun = landmark
    found = [m for m in lexicon().mentions(sentence, labels) if m.noun != noun]
    if len(found) != 1 or not {"has", "have"} & {w.text for w in sentence}:
        return None
    only = next((k for k, word in enumerate(subject) if word.text == "with"), len(subject))
    place = _place_of_it(sentence, subject[:only])
    return None if place is None else (found[0], place[2])


def _said_again(sentence: Sequence[Word], others: Mention, where: list[Word]) -> list[Word]:
    """ "Give me the red one" of what stood somewhere."""
    result: list[Word] = []
    for word in sentence:
        if word.text in ("one", "ones"):
            result += [replace(word, text=part) for part in others.noun.split()]
            result += where
        else:
            result.append(word)
    return result
