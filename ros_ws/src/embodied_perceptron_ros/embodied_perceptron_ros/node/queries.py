"""Questions about the map: parsing, a bounded queue, one thread that answers, standing questions.

Every query gets exactly one terminal answer: FOUND, NOT_FOUND, AMBIGUOUS or INVALID. A standing query is answered at
once like any other, and again whenever the map changed so that the answer is another one.
"""

from __future__ import annotations

import dataclasses
import json
import threading
import time
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.language.query import Query, printable_query
from embodied_perceptron.results import Grounding, GroundingStatus
from embodied_perceptron.sensors.poses import seconds_to_ns
from embodied_perceptron_ros.node.health import ERROR, Health
from embodied_perceptron_ros.node.watchdog import ANSWER_LIMIT_S, STOP_LIMIT_S, TookTooLongError, Watchdog

MAX_MESSAGE_CHARACTERS = 8_192  # of the JSON form; longer messages are answered without being read
MAX_ID_CHARACTERS = 128
_FIELDS: dict[str, type] = {
    **{"id": str, "text": str, "top_k": int, "standing": bool, "cancel": bool},
    **{"frame_id": str, "frame": str, "stamp": float},
}
_MOVED_M = 0.5  # what was answered and lies further from there now is told again
_LATEST_STAMP_S = 2**31  # of builtin_interfaces/Time


class RateLimit:
    """At most so many events a second in the long run, and a burst at once. From one thread, or where a lost count does
    not matter."""

    def __init__(self, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst = burst
        self._clock = clock
        self._left = float(burst)
        self._since_s = clock()

    def allows(self, per_s: float) -> bool:
        """Whether one more event is within the limit; if so it counts."""
        now_s = self._clock()
        self._left = min(self._left + (now_s - self._since_s) * per_s, float(self._burst))
        self._since_s = now_s
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class QueryError(ValueError):
    """A query that cannot be read; carries what is known of it, so that the answer can name it."""

    def __init__(self, reason: str, query_id: str = "", text: str = "") -> None:
        super().__init__(reason)
        self.query_id = query_id
        self.text = text


def parse_query(data: str) -> Query:
    """A ``grounding_query`` message: plain text, or a JSON object ``{id, text, top_k, standing, frame_id, stamp,
    cancel}``; ``stamp`` is in seconds.

    Raises :class:`QueryError` for anything that starts like JSON and is none, unknown or mistyped fields, and messages
    that are too long to be read.
    """
    if len(data) > MAX_MESSAGE_CHARACTERS:
        raise QueryError(
            f"the query has {len(data)} characters, at most {MAX_MESSAGE_CHARACTERS} are read",
            text=printable_query(data[: 2 * MAX_ID_CHARACTERS]),
        )
    if not data.lstrip().startswith("{"):
        return Query(data)
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise QueryError(f"the query looks like JSON but is none: {error}", text=printable_query(data)) from None
    return _query_from_fields(fields)


def _query_from_fields(fields: dict[str, Any]) -> Query:
    query_id = fields.get("id", "")
    query_id = query_id if isinstance(query_id, str) else str(query_id)
    text = fields.get("text", "")
    known = {"query_id": printable_query(query_id)[:MAX_ID_CHARACTERS], "text": printable_query(text)}
    for name, value in fields.items():
        if name not in _FIELDS:
            raise QueryError(f"the query has the unknown field {printable_query(name)!r}", **known)
        kind = _FIELDS[name]
        if type(value) is not kind and not (name in ("id", "stamp") and type(value) is int):
            raise QueryError(f"the query's field {name!r} must be {kind.__name__}, got {value!r:.80}", **known)
    if len(query_id) > MAX_ID_CHARACTERS or not printable_query(query_id) == query_id.strip():
        raise QueryError(f"the query's id must have at most {MAX_ID_CHARACTERS} printable characters", **known)
    cancel = fields.get("cancel", False)
    if "text" not in fields and not cancel:
        raise QueryError("the query has no field 'text'", **known)
    if cancel and not query_id:
        raise QueryError("a cancellation needs the id of a standing query", **known)
    top_k = fields.get("top_k", 0)
    if not 0 <= top_k <= 1000:
        raise QueryError(f"the query's top_k must be in [0, 1000], got {top_k}", **known)
    stamp_s = fields.get("stamp", 0)
    if not 0 <= stamp_s < _LATEST_STAMP_S:
        raise QueryError(f"the query's stamp must be in [0, {_LATEST_STAMP_S}) seconds, got {stamp_s}", **known)
    frame_id = fields.get("frame_id", fields.get("frame", ""))
    standing = fields.get("standing", False)
    return Query(text, top_k or None, None, frame_id, query_id, standing, cancel, seconds_to_ns(stamp_s))


@dataclass(frozen=True, eq=False)
class Answer:
    """A query and what came of it."""

    query: Query
    grounding: Grounding
    pose: Any = None  # where the answer goes, as whoever answered found it; None = nobody asked


Deliver = Callable[[Answer], None]
Ask = Callable[[Query], Answer]
Begin = Callable[[], None]


class QueryWorker:
    """Answers queries in a thread of its own; all methods may be called from any thread.

    Args:
        ask: the question itself; called in the worker's thread only. May raise: the query is answered INVALID.
        deliver_standing: gets the later answers of standing queries.
    """

    def __init__(
        self,
        ask: Ask,
        deliver_standing: Deliver,
        health: Health,
        logger: Any,
        watchdog: Watchdog,
        *,
        queue_size: int,
        max_standing: int,
    ) -> None:
        self._ask = ask
        self._deliver_standing = deliver_standing
        self._health = health
        self._logger = logger
        self._watchdog = watchdog
        self._queue_size = queue_size
        self._max_standing = max_standing
        self._queue: deque[tuple[Query, Deliver, Begin]] = deque()
        self._standing: OrderedDict[str, Answer] = OrderedDict()
        self._condition = threading.Condition()
        self._map_changed = False
        self._stopping = False
        self._made_ids = 0
        self._thread = self._new_thread()

    def _new_thread(self) -> threading.Thread:
        return threading.Thread(target=self._run, name="queries", daemon=True)

    def start(self) -> None:
        """Begin answering."""
        self._thread.start()

    def stop(self, reason: str) -> None:
        """End; what still waits is answered INVALID with ``reason``."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        if self._thread.is_alive():
            self._thread.join(STOP_LIMIT_S)
        with self._condition:
            waiting = list(self._queue)
            self._queue.clear()
            self._standing.clear()
        for query, deliver, _ in waiting:
            self._finish(Answer(query, invalid(query, reason)), deliver)

    @property
    def status(self) -> dict[str, int]:
        """Counts for diagnostics."""
        with self._condition:
            return {"waiting": len(self._queue), "standing": len(self._standing)}

    @property
    def standing(self) -> list[Grounding]:
        """The last answers of the standing queries."""
        with self._condition:
            return [answer.grounding for answer in self._standing.values()]

    def map_changed(self) -> None:
        """Standing queries are asked again."""
        with self._condition:
            if self._standing:
                self._map_changed = True
                self._condition.notify()

    def move_viewpoints(self, motion: NDArray[np.float64]) -> None:
        """The map moved by ``motion`` (4, 4): so did the places from which standing queries were asked."""
        with self._condition:
            for query_id, answer in self._standing.items():
                if answer.query.viewpoint is not None:
                    query = dataclasses.replace(answer.query, viewpoint=motion @ answer.query.viewpoint)
                    self._standing[query_id] = dataclasses.replace(answer, query=query)

    def submit(self, query: Query, deliver: Deliver, begin: Begin = lambda: None) -> Query:
        """Queue a query; ``deliver`` gets its terminal answer exactly once, perhaps before this returns.

        ``begin`` is called when its turn has come; it must not raise.
        """
        self._health.count("queries_received")
        problem, query = "", self._named(query)
        with self._condition:
            if self._stopping:
                problem = "the node does not answer queries now"
            elif len(self._queue) >= self._queue_size:
                problem = f"too many queries wait (more than {self._queue_size})"
            else:
                self._queue.append((query, deliver, begin))
                self._condition.notify()
        if problem:
            self._health.count("queries_refused")
            self._finish(Answer(query, invalid(query, problem)), deliver)
        return query

    def refuse(self, query: Query, reason: str, deliver: Deliver) -> None:
        """Answer a query INVALID at once: it could not be read."""
        self._health.count("queries_received")
        self._finish(Answer(self._named(query), invalid(query, reason)), deliver)

    def _named(self, query: Query) -> Query:
        """With an id."""
        if query.id:
            return query
        with self._condition:
            self._made_ids += 1
            return dataclasses.replace(query, id=f"query-{self._made_ids}")

    # ---- the thread

    def _run(self) -> None:
        while True:
            with self._condition:
                while not (self._queue or self._map_changed or self._stopping or self._is_given_up):
                    self._condition.wait()
                if self._stopping or self._is_given_up:
                    return
                job = self._queue.popleft() if self._queue else None
                if job is None:
                    self._map_changed = False
            try:
                if job is not None:
                    self._answer_in_time(*job)
                else:
                    self._answer_standing()
            except TookTooLongError:  # the asker was told, and another thread goes on
                return

    @property
    def _is_given_up(self) -> bool:
        return threading.current_thread() is not self._thread

    def _go_on_without(self) -> None:
        """What waits is answered by a new thread: the one at work may come back late, or never."""
        with self._condition:
            if not self._stopping:
                self._thread = self._new_thread()
                self._thread.start()

    def _answer_in_time(self, query: Query, deliver: Deliver, begin: Begin) -> None:
        """Answer; whoever waits is told when it takes too long. Either this or the other is delivered."""
        once, delivered = threading.Lock(), threading.Event()

        def deliver_once(answer: Answer) -> None:
            if once.acquire(blocking=False):
                deliver(answer)
                delivered.set()

        def give_up(words: str) -> None:
            self._go_on_without()
            if once.acquire(blocking=False):
                self._finish(Answer(query, invalid(query, words)), deliver)
                delivered.set()

        watch = self._watchdog.watch("the answer", ANSWER_LIMIT_S, f" to {query.text[:80]!r}", give_up)
        try:
            with watch:
                self._answer(query, deliver_once, begin)
        except TookTooLongError:
            if once.locked() and not delivered.wait(STOP_LIMIT_S):  # there is one, which could not be delivered
                self._finish(Answer(query, invalid(query, watch.words())), deliver)
            raise

    def _answer(self, query: Query, deliver: Deliver, begin: Begin) -> None:
        begin()
        if query.cancel:
            with self._condition:
                known = self._standing.pop(query.id, None)
            reason = "cancelled" if known else f"no standing query has the id {query.id!r}"
            self._finish(Answer(query, invalid(query, reason)), deliver)
            return
        with self._condition:
            others = [key for key in self._standing if key != query.id]
        if query.standing and len(others) >= self._max_standing:
            reason = f"too many standing queries ({self._max_standing}): cancel one first"
            self._finish(Answer(query, invalid(query, reason)), deliver)
            return
        answer = self._safely_ask(query)
        grounding = answer.grounding
        # a standing query that cannot be understood now never will: it does not stand
        if query.standing and grounding.status != GroundingStatus.INVALID:
            with self._condition:
                if self._is_given_up:
                    return
                self._standing[query.id] = answer
        elif query.standing:
            answer = dataclasses.replace(answer, query=dataclasses.replace(query, standing=False))
        self._finish(answer, deliver)

    def _answer_standing(self) -> None:
        with self._condition:
            standing = list(self._standing.values())
        for earlier in standing:
            query = dataclasses.replace(earlier.query, arrived_s=time.monotonic())
            with self._watchdog.watch(
                "the answer", ANSWER_LIMIT_S, f" to {query.text[:80]!r}", partial(self._end_standing, query)
            ):
                answer = self._safely_ask(query)
            with self._condition:
                if self._is_given_up:
                    return
                if query.id not in self._standing or self._stopping:
                    continue
                # a correction may have moved the viewpoint meanwhile
                query = dataclasses.replace(query, viewpoint=self._standing[query.id].query.viewpoint)
                self._standing[query.id] = dataclasses.replace(answer, query=query)
            if answer_key(answer.grounding) != answer_key(earlier.grounding) or has_moved(earlier, answer):
                self._finish(answer, self._deliver_standing)

    def _end_standing(self, query: Query, words: str) -> None:
        """A standing query that takes too long would do so again."""
        with self._condition:
            self._standing.pop(query.id, None)
            self._map_changed = bool(self._standing)  # the others are asked again
        self._go_on_without()
        query = dataclasses.replace(query, standing=False)
        self._finish(Answer(query, invalid(query, words)), self._deliver_standing)

    def _safely_ask(self, query: Query) -> Answer:
        try:
            return self._ask(query)
        except Exception as error:  # a query must be answered whatever happens
            self._health.count("internal_errors")
            self._health.problem("queries", ERROR, f"internal error: {error!r}", hold_s=30.0)
            self._logger.error(f"query {query.id!r} failed:\n{traceback.format_exc()}")
            return Answer(query, invalid(query, f"internal error: {type(error).__name__}: {error}"))

    def _finish(self, answer: Answer, deliver: Deliver) -> None:
        grounding = answer.grounding
        self._health.latency("query", grounding.latency_ms)
        self._health.count(f"queries_{grounding.status.name.lower()}")
        try:
            deliver(answer)
        except Exception:  # one asker's end must not stop the others' answers
            self._health.count("internal_errors")
            self._logger.error(f"answer to {answer.query.id!r} could not be delivered:\n{traceback.format_exc()}")


def invalid(query: Query, reason: str) -> Grounding:
    """The INVALID answer to ``query``."""
    return query.answer(GroundingStatus.INVALID, reason=reason)


def answer_key(grounding: Grounding) -> tuple[Any, ...]:
    """What makes an answer another answer: the status, and which object is meant or which ones are in question.

    Not scores and millimetres, not the order of those that were not meant, not the words of the reason: they change
    with every look.
    """
    if grounding.status == GroundingStatus.AMBIGUOUS:
        return grounding.status, frozenset(c.id for c in grounding.candidates)
    return grounding.status, tuple(c.id for c in grounding.candidates[:1])


def has_moved(before: Answer, now: Answer) -> bool:
    """Whether what was answered lies elsewhere now in the frame of the answers: a localisation jumped, or a loop was
    closed. Objects that move a little are the map's noise."""
    places = []
    for answer in (before, now):
        if not answer.grounding.candidates or answer.pose is None:
            return False
        center_m, T = answer.grounding.candidates[0].box[:3], answer.pose.T_out_world
        places.append(center_m if T is None else T[:3, :3] @ center_m + T[:3, 3])
    return bool(np.linalg.norm(places[1] - places[0]) > _MOVED_M)
