"""Questions about the past: where something was, when it was last seen, what moved, what is new, what is missing.

The noun of a question is looked up by the same code as any sentence, among the objects that are there and those that
are gone; times and places come from the histories of the objects. Times are those of the map.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np

from embodied_perceptron.geometry.boxes import Bounds
from embodied_perceptron.language.query import Query, query_problem
from embodied_perceptron.mapping.block_copies import blocks_of
from embodied_perceptron.mapping.voxel_counts import count_voxels
from embodied_perceptron.results import (
    EventKind,
    Grounding,
    GroundingStatus,
    HistoryEntry,
    ObjectState,
    SceneObject,
    VoxelSnapshot,
)
from embodied_perceptron.scene.live_map import PublishedScene

Lookup = Callable[[str, Sequence[SceneObject]], Grounding]  # a sentence about some objects -> its answer

_S = 1_000_000_000
_CALENDAR_NS = 1_000_000_000 * _S  # stamps before 2001 are no calendar time
_NEAR_M, _ABOVE_M = 0.3, 0.6  # how far from a landmark an object "on" or "at" it may stand
_AROUND_M, _COLUMN_M = 0.3, 3.0  # of a place, where voxels show that somebody looked
_NAMED = 4  # changes in a sentence
_LEAST = 0.5  # probability of a change that is told
_NOUN = r"(?P<noun>.+?)"
_PLACE = r"(?:\s+(?:on|in|at|from|off|under|near|by)\s+(?P<place>(?:the|my|your|our|a)\s.+?))?"
_THINGS = r"(?:what|anything|something|which\s+(?:things|objects))"
_HAS = r"(?:what|has\s+anything)(?:\s+has)?"
_QUESTIONS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(rf"^\s*(?:please\s+|so\s+|and\s+)?{pattern}\s*[?.!]*\s*$", re.IGNORECASE))
    for kind, pattern in (
        ("before", rf"where\s+(?:was|were)\s+{_NOUN}\s+(?:before|earlier|previously|last|until\s+now|yesterday)"),
        ("before", rf"where\s+(?:did|had)\s+{_NOUN}\s+(?:stand|stood|lie|lain|been|be|use\s+to\s+be)(?:\s+before)?"),
        ("seen", rf"when\s+(?:did|have)\s+(?:you|we)\s+(?:last\s+)?(?:see|seen|saw)\s+{_NOUN}(?:\s+last)?"),
        ("seen", rf"when\s+(?:was|were)\s+{_NOUN}\s+(?:last\s+seen|seen\s+last)"),
        ("seen", rf"how\s+long\s+ago\s+did\s+you\s+(?:last\s+)?see\s+{_NOUN}"),
        ("moved", rf"(?:has|have|did)\s+{_NOUN}\s+(?:been\s+)?moved?"),
        ("moved", rf"{_THINGS}\s+(?:has\s+|was\s+|been\s+)*moved?"),
        ("new", rf"(?:{_THINGS}|is\s+anything|is\s+something)(?:\s+is|'s)?\s+new{_PLACE}"),
        ("new", rf"(?:{_THINGS}|what\s+has|has\s+anything)\s+(?:has\s+)?appeared{_PLACE}"),
        ("missing", rf"(?:what|is\s+anything|is\s+something)(?:\s+is|'s)?\s+(?:missing|gone){_PLACE}"),
        ("missing", rf"{_HAS}\s+(?:left|disappeared|vanished|been\s+taken(?:\s+away)?){_PLACE}"),
        ("changed", rf"{_HAS}\s+(?:changed|happened){_PLACE}"),
    )
)
_WITH_TIME = re.compile(rf"^\s*where\s+(?:was|were)\s+{_NOUN}\s*[?.!]*\s*$", re.IGNORECASE)  # a kind "before"
_KINDS = {
    "moved": (EventKind.MOVED, EventKind.RETURNED),
    "new": (EventKind.APPEARED, EventKind.RETURNED),
    "missing": (EventKind.LEFT,),
    "changed": tuple(kind for kind in EventKind.ALL if kind != EventKind.FOUND),
}
_VERBS = {"moved": "moved", "new": "is new", "missing": "is missing", "changed": "changed"}
_SINCE = re.compile(
    r"[\s,]*\b(?:(?:since|from)\s+(?P<time>this\s+morning|noon|yesterday|today|(?:\d{1,2})(?::\d{2})?(?:\s*(?:am|pm|o'clock))?)"
    r"|(?:since\s+|in\s+the\s+last\s+|within\s+the\s+last\s+|during\s+the\s+last\s+)?(?P<count>\d+|a|an|one|two|five|ten)?"
    r"\s*(?P<unit>second|minute|hour|day)s?(?:\s+ago)?|(?P<day>today|yesterday))\s*(?=[?.!]*\s*$)",
    re.IGNORECASE,
)
_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
_HOURS = {"yesterday": -24, "today": 0, "this morning": 0, "noon": 12}  # from the beginning of today
_COUNTS = {"a": 1, "an": 1, "one": 1, "two": 2, "five": 5, "ten": 10}


@dataclass(frozen=True)
class TimeQuestion:
    """A question about the past.

    Attributes:
        kind: before, seen, moved, new, missing or changed.
        noun: the object meant; empty = any.
        place: the landmark at which changes are meant; empty = anywhere.
        since: words for the beginning of the time that is meant; empty = all of it.
        since_ns: that time; 0 = all.
    """

    kind: str
    noun: str = ""
    place: str = ""
    since: str = ""
    since_ns: int = 0


def read_time_question(text: str, now_ns: int) -> TimeQuestion | None:
    """Read a question about the past; None for any other sentence. ``now_ns``: time of the map."""
    found = _SINCE.search(text)
    since, since_ns = "", 0
    if found is not None:
        since, since_ns = " ".join(found[0].split()).strip(" ,"), _time_of(found, now_ns)
        text = text[: found.start()]
    for kind, pattern in (*_QUESTIONS, *((("before", _WITH_TIME),) if since else ())):
        match = pattern.match(text)
        if match is not None:
            noun, place = ((match.groupdict().get(name) or "").strip() for name in ("noun", "place"))
            is_any = noun.lower() in ("anything", "something", "what", "things", "any")
            return TimeQuestion(kind, "" if is_any else noun, place, since, since_ns)
    return None


def _time_of(found: re.Match[str], now_ns: int) -> int:
    if found["unit"]:
        count = _COUNTS.get((found["count"] or "one").lower()) or int(found["count"])
        return max(0, now_ns - count * _UNITS[found["unit"].lower()] * _S)
    words = " ".join((found["time"] or found["day"]).lower().split())
    if now_ns < _CALENDAR_NS:
        return 0
    now = datetime.fromtimestamp(now_ns / _S)
    day = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if words in _HOURS:
        day += timedelta(hours=_HOURS[words])
    else:
        hour, minute = re.match(r"(\d+)(?::(\d+))?", words).groups()  # type: ignore[union-attr]
        hours = int(hour) % 12 + 12 if words.endswith("pm") else int(hour) % 24
        day += timedelta(hours=hours, minutes=int(minute or 0))
        day -= timedelta(days=1) if day > now else timedelta(0)
    return int(day.timestamp() * _S)


def when(stamp_ns: int, now_ns: int) -> str:
    """A time in words: "12 s ago", "5 min ago (09:40)"."""
    ago_s = max(0, now_ns - stamp_ns) / _S
    for limit_s, unit_s, unit in ((100, 1, "s"), (6000, 60, "min"), (172800, 3600, "h"), (1e18, 86400, "days")):
        if ago_s < limit_s:
            words = f"{ago_s / unit_s:.0f} {unit} ago"
            break
    if stamp_ns < _CALENDAR_NS or ago_s < 60:
        return words
    clock = datetime.fromtimestamp(stamp_ns / _S)
    return f"{words} ({clock:%H:%M})" if ago_s < 86400 else f"{words} ({clock:%Y-%m-%d %H:%M})"


def newest_ns(objects: Sequence[SceneObject], gone: Sequence[SceneObject], voxels: VoxelSnapshot | None) -> int:
    """The present time of a scene: that of its newest voxel or event."""
    stamps = [o.last_seen_ns for o in objects]
    stamps += [o.history[-1].stamp_ns for o in (*objects, *gone) if o.history]
    if voxels is not None and len(voxels):
        stamps.append(int(blocks_of(voxels).newest_ns.max()))
    return max(stamps, default=0)


def last_looked_ns(voxels: VoxelSnapshot | None, things: Sequence[SceneObject]) -> list[int]:
    """When a camera last saw something at the place of each object; 0 = not known."""
    if voxels is None:
        return [0] * len(things)
    bounds = Bounds.of(np.array([o.box for o in things]).reshape(-1, 9))
    size = bounds.extent + 2.0 * np.array([_AROUND_M, _AROUND_M, _COLUMN_M])
    center = 0.5 * (bounds.low + bounds.high)
    columns = np.concatenate([center, size, np.zeros_like(center)], axis=1)
    return [int(v) for v in count_voxels(voxels, columns, 0.0)[2]]


def answer_about_past(query: Query, scene: PublishedScene, lookup: Lookup) -> Grounding | None:
    """Answer a question about the past; None for any other sentence."""
    if query_problem(query.text):
        return None
    now_ns = newest_ns(scene.objects, scene.gone, scene.voxels)
    question = read_time_question(query.text, now_ns)
    if question is None:
        return None
    things = [*scene.objects, *scene.gone]
    if question.noun:
        meant = lookup(question.noun, things)
        if meant.status not in (GroundingStatus.FOUND, GroundingStatus.AMBIGUOUS):
            return query.answer(meant.status, reason=meant.reason, nearest=meant.nearest)
        if question.kind == "moved":
            return _changes(query, question, scene, list(meant.candidates[:1]), now_ns)
        chosen = meant.candidates[:1] if meant.status == GroundingStatus.FOUND else meant.candidates
        words = [_past_of(question.kind, o, scene, now_ns) for o in chosen[:_NAMED]]
        return query.answer(meant.status, tuple(chosen), "; ".join(words))
    if question.place:
        landmark = lookup(question.place, scene.objects)
        if landmark.status != GroundingStatus.FOUND:
            return query.answer(landmark.status, landmark.candidates, landmark.reason, nearest=landmark.nearest)
        bounds = Bounds.of(landmark.candidates[0].box[None])
        low, high = bounds.low[0] - _NEAR_M, bounds.high[0] + [_NEAR_M, _NEAR_M, _ABOVE_M]
        things = [o for o in things if o.id != landmark.candidates[0].id]
        things = [o for o in things if ((o.box[:3] >= low) & (o.box[:3] <= high)).all()]
    return _changes(query, question, scene, things, now_ns)


def _changes(
    query: Query, question: TimeQuestion, scene: PublishedScene, things: list[SceneObject], now_ns: int
) -> Grounding:
    found: list[tuple[SceneObject, HistoryEntry]] = []
    for thing in things:
        is_gone = thing.state == ObjectState.GONE
        if (question.kind in ("moved", "new") and is_gone) or (question.kind == "missing" and not is_gone):
            continue
        past = thing.history[-1:] if question.kind == "missing" else thing.history
        entries = [e for e in past if e.kind in _KINDS[question.kind] and e.stamp_ns >= question.since_ns]
        entries = [e for e in entries if e.probability > _LEAST and (question.kind != "moved" or _is_move(thing, e))]
        if question.kind == "moved" and not entries and _likely_former(thing, scene.gone) is not None:
            entries = [e for e in thing.history[:1] if e.stamp_ns >= question.since_ns]
        if entries:
            found.append((thing, entries[-1]))
    found.sort(key=lambda pair: -pair[1].stamp_ns)
    since = f" {question.since}" if question.since else ""
    if not found:
        what = question.noun or (f"nothing at {question.place}" if question.place else "nothing")
        verb = "has not moved" if question.noun else _VERBS[question.kind]
        looked = [ns for ns in last_looked_ns(scene.voxels, things) if ns]
        last = f", last looked at {when(max(looked), now_ns)}" if looked else ""
        reason = f"{what} {verb}{since}; {len(looked)} places known{last}"
        return query.answer(GroundingStatus.NOT_FOUND, reason=reason, count=0)
    gone = scene.gone if question.kind == "moved" else ()
    words = [entry_in_words(thing, entry, now_ns, gone) for thing, entry in found[:_NAMED]]
    if len(found) > _NAMED:
        words.append(f"and {len(found) - _NAMED} more")
    candidates = tuple(thing for thing, _ in found)
    return query.answer(GroundingStatus.FOUND, candidates, "; ".join(words), count=len(found))


def _name(thing: SceneObject) -> str:
    return thing.user_name or f"the {thing.label} {thing.id}"


def _at(at_m: tuple[float, float, float]) -> str:
    return "x {:.2f} y {:.2f} z {:.2f} m".format(*at_m)


def _likely_former(thing: SceneObject, gone: Sequence[SceneObject]) -> SceneObject | None:
    """The object that left another place and that an object probably is."""
    number, probability = thing.maybe_same_as[0] if thing.maybe_same_as else (0, 0.0)
    was_put_there = bool(thing.history) and thing.history[0].kind == EventKind.APPEARED
    left = (o for o in gone if o.id == number and o.history and o.history[-1].probability > _LEAST)
    former = next(left, None) if was_put_there and probability > _LEAST else None
    is_elsewhere = former is not None and float(np.linalg.norm(thing.box[:3] - former.box[:3])) > _NEAR_M
    return former if is_elsewhere else None


def entry_in_words(thing: SceneObject, entry: HistoryEntry, now_ns: int, gone: Sequence[SceneObject] = ()) -> str:
    """One change in words; with those that are ``gone``, of a new object also which of them it probably is."""
    time = when(entry.stamp_ns, now_ns)
    former = _likely_former(thing, gone)
    if former is not None and entry.kind == EventKind.APPEARED:
        start = _at(former.history[-1].at_m)
        return f"{_name(thing)} at {_at(entry.at_m)} is probably {_name(former)}, which left {start}; noticed {time}"
    if entry.kind in (EventKind.MOVED, EventKind.RETURNED):
        before = _before(thing, entry)
        verb = "moved" if entry.kind == EventKind.MOVED else "came back"
        start = f" from {_at(before.at_m)}" if before is not None else ""
        return f"{_name(thing)} {verb}{start} to {_at(entry.at_m)} {time}"
    if entry.kind == EventKind.LEFT:
        return f"{_name(thing)} left {_at(entry.at_m)}; noticed {time}, last seen {when(thing.last_seen_ns, now_ns)}"
    if entry.kind == EventKind.APPEARED:
        return f"{_name(thing)} appeared at {_at(entry.at_m)} {time}"
    return f"{_name(thing)} is {entry.words} since {time}"


def _before(thing: SceneObject, entry: HistoryEntry) -> HistoryEntry | None:
    earlier = thing.history[: thing.history.index(entry)]
    return next((e for e in reversed(earlier) if e.kind not in (EventKind.RENAMED, EventKind.STATE)), None)


def _is_move(thing: SceneObject, entry: HistoryEntry) -> bool:
    """Whether an object is elsewhere after a change: not where it came back to its place."""
    before = _before(thing, entry)
    return before is None or float(np.linalg.norm(np.subtract(entry.at_m, before.at_m))) > _NEAR_M


def _past_of(kind: str, thing: SceneObject, scene: PublishedScene, now_ns: int) -> str:
    seen = f"{_name(thing)} was last seen {when(thing.last_seen_ns, now_ns)} at {_at(tuple(thing.box[:3].tolist()))}"
    if kind == "seen" and thing.state != ObjectState.GONE:
        return seen
    if thing.state == ObjectState.GONE:
        left_ns = thing.history[-1].stamp_ns if thing.history else 0
        looked_ns = max(last_looked_ns(scene.voxels, [thing])[0], left_ns)
        return f"{seen}; it is not there; looked {when(looked_ns, now_ns)}"
    moves = [e for e in thing.history if e.kind in (EventKind.MOVED, EventKind.RETURNED)]
    before = _before(thing, moves[-1]) if moves else None
    if before is None and _likely_former(thing, scene.gone) is not None:
        return entry_in_words(thing, thing.history[0], now_ns, scene.gone)
    if before is None:
        since = thing.history[0].stamp_ns if thing.history else thing.last_seen_ns
        return f"{_name(thing)} has been at {_at(tuple(thing.box[:3].tolist()))} since {when(since, now_ns)}"
    return f"{_name(thing)} was at {_at(before.at_m)} until {when(moves[-1].stamp_ns, now_ns)}"


def with_past(answer: Grounding, scene: PublishedScene, lookup: Lookup) -> Grounding:
    """A NOT_FOUND answer with what is known of a gone object that fits the sentence, and when its place was looked at;
    other answers unchanged."""
    if answer.status != GroundingStatus.NOT_FOUND or not scene.gone:
        return answer
    past = lookup(answer.text, scene.gone)
    if past.status not in (GroundingStatus.FOUND, GroundingStatus.AMBIGUOUS) or not past.candidates:
        return answer
    now_ns = newest_ns(scene.objects, scene.gone, scene.voxels)
    words = _past_of("seen", past.candidates[0], scene, now_ns)
    return replace(answer, reason=f"{answer.reason}; {words}" if answer.reason else words)
