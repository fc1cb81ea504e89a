"""Poses over time: buffers, and a small tree of transforms between named frames, looked up by stamp.

A lookup never raises for a missing pose and never guesses one; its result tells whether waiting helps.

========================  =====================================  ==============
result                    meaning                                does waiting help
========================  =====================================  ==============
:class:`Found`            the pose                               --
:class:`TooEarly`         poses have not reached the stamp yet   yes
:class:`Disconnected`     no chain of transforms (yet)           yes
:class:`TooOld`           the stamp lies before the history      no
:class:`Gap`              neighbours too far apart in time       no
========================  =====================================  ==============
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Protocol

import numpy as np

from embodied_perceptron.geometry.transforms import (
    F64,
    FloatArray,
    check_transform,
    interpolate_transform,
    invert_transform,
)

JUMP_NS = 1_000_000_000  # a larger offset is more than lateness of one message
EVIDENCE = 3  # stamps in a row that confirm a jump of the stream

Verdict = Literal["fits", "odd", "moved"]


class StampJudge:
    """Outlier and jump detection for the stamps of one stream.

    A stamp is *odd* when it is earlier than the newest by more than ``jump_ns``, or later by more than ``jump_ns`` plus
    the time passed on the receiver's clock (a recording played fast is recognised by the steps between its stamps). An
    earlier stamp still fits if it continues one of the last two that fitted, because stamps that were each a little
    ahead may add up. After :data:`EVIDENCE` ascending odd stamps in a row the stream has *moved*. A fitting stamp in
    between discards the odd ones.

    Attributes:
        newest_ns: the newest fitting stamp; None before the first.
        suspects: odd stamps in a row, including the last.
        shift_ns: size of the last jump, estimated from arrival times.
        received_ns: receiver's clock at the last stamp.
    """

    def __init__(self, jump_ns: int = JUMP_NS) -> None:
        self._jump_ns = jump_ns
        self.restart()

    def restart(self) -> None:
        """Accept any next stamp."""
        self.newest_ns: int | None = None
        self.received_ns: int | None = None
        self.shift_ns = 0
        self.suspects: list[int] = []
        self._newest_at_ns: int | None = None
        self._steps: deque[int] = deque(maxlen=3)
        self._fitted: deque[tuple[int, int]] = deque(maxlen=2)  # the last two: stamp, receiver's clock
        self._suspected_shift_ns = 0

    def judge(self, stamp_ns: int, now_ns: int | None = None) -> Verdict:
        """Classify the next stamp; ``now_ns``: receiver's clock, None = unknown: no stamp is too far ahead."""
        self.received_ns = now_ns
        shift_ns = self._odd_by(stamp_ns, now_ns)
        if shift_ns == 0:
            self._accept(stamp_ns, now_ns)
            return "fits"
        if not self.suspects or stamp_ns <= self.suspects[-1]:
            self.suspects, self._suspected_shift_ns = [], shift_ns
        self.suspects.append(stamp_ns)
        if len(self.suspects) < EVIDENCE:
            return "odd"
        self.shift_ns = self._suspected_shift_ns
        self._steps.clear()
        self._steps.extend(after - before for before, after in pairwise(self.suspects))
        self._fitted.clear()
        self.newest_ns = None
        self._accept(stamp_ns, now_ns)
        return "moved"

    def near(self, first_ns: int, last_ns: int) -> bool:
        """True when the newest stamp is within ``jump_ns`` of the interval from ``first_ns`` to ``last_ns``."""
        return self.newest_ns is not None and first_ns - self._jump_ns <= self.newest_ns <= last_ns + self._jump_ns

    def _odd_by(self, stamp_ns: int, now_ns: int | None) -> int:
        """Return the offset of the stamp from the expected time; 0 = it fits."""
        if self.newest_ns is None:
            return 0
        step_ns = stamp_ns - self.newest_ns
        passed_ns = 0 if now_ns is None or self._newest_at_ns is None else max(now_ns - self._newest_at_ns, 0)
        if step_ns < -self._jump_ns:
            return 0 if self._goes_on(stamp_ns, now_ns) else step_ns - passed_ns
        usual_ns = min(self._steps) if len(self._steps) >= EVIDENCE - 1 else 0
        if now_ns is not None and step_ns - passed_ns > max(self._jump_ns, 2 * usual_ns):
            return step_ns - passed_ns
        return 0

    def _goes_on(self, stamp_ns: int, now_ns: int | None) -> bool:
        """True when equal time passed on both clocks since one of the last two fitting stamps."""
        return now_ns is not None and any(
            abs((stamp_ns - before_ns) - (now_ns - at_ns)) <= self._jump_ns for before_ns, at_ns in self._fitted
        )

    def _accept(self, stamp_ns: int, now_ns: int | None) -> None:
        self.suspects = []
        if now_ns is not None:
            self._fitted.append((stamp_ns, now_ns))
        if self.newest_ns is None or stamp_ns > self.newest_ns:
            if self.newest_ns is not None:
                self._steps.append(stamp_ns - self.newest_ns)
            self.newest_ns, self._newest_at_ns = stamp_ns, now_ns


NS_PER_S = 1_000_000_000
MAX_LINKS = 10_000  # of a transform tree; robots have hundreds
MAX_FRAME_NAME = 256  # characters; with names of any length 10,000 links can take hundreds of megabytes
_NEAR_NS = NS_PER_S


def seconds_to_ns(seconds: float) -> int:
    """Convert seconds to integer nanoseconds."""
    return round(seconds * NS_PER_S)


def format_stamp(stamp_ns: int) -> str:
    """Format a stamp as exact seconds, ``12.345678900``."""
    sign = "-" if stamp_ns < 0 else ""
    return f"{sign}{abs(stamp_ns) // NS_PER_S}.{abs(stamp_ns) % NS_PER_S:09d}"


@dataclass(frozen=True, eq=False)
class Found:
    """The transform, (4, 4) float64, ``T_target_source``."""

    T: F64


@dataclass(frozen=True)
class TooEarly:
    """The newest pose is older than the stamp; the pose may still arrive."""

    stamp_ns: int
    newest_ns: int | None
    where: str = ""

    def __str__(self) -> str:
        have = "none has arrived" if self.newest_ns is None else f"the newest is at {format_stamp(self.newest_ns)}"
        return f"no pose{self.where and ' of ' + self.where} at {format_stamp(self.stamp_ns)} yet; {have}"


@dataclass(frozen=True)
class TooOld:
    """The stamp is before the oldest kept pose; waiting cannot help."""

    stamp_ns: int
    oldest_ns: int
    where: str = ""

    def __str__(self) -> str:
        return (
            f"{format_stamp(self.stamp_ns)} lies before the oldest pose{self.where and ' of ' + self.where} "
            f"that is kept ({format_stamp(self.oldest_ns)})"
        )


@dataclass(frozen=True)
class Gap:
    """The poses around the stamp are too far apart in time to interpolate."""

    stamp_ns: int
    before_ns: int
    after_ns: int
    where: str = ""

    def __str__(self) -> str:
        gap_s = (self.after_ns - self.before_ns) / NS_PER_S
        return (
            f"poses{self.where and ' of ' + self.where} around {format_stamp(self.stamp_ns)} are {gap_s:.3f} s apart, "
            "too far to interpolate"
        )


@dataclass(frozen=True)
class Disconnected:
    """No chain of transforms between two frames.

    Attributes:
        target, source: the frames of the lookup.
        missing: the missing link, e.g. ``"'map' is unknown; known frames: base, odom"``.
    """

    target: str
    source: str
    missing: str

    def __str__(self) -> str:
        return f"no transform from {self.source!r} to {self.target!r}: {self.missing}"


PoseLookup = Found | TooEarly | TooOld | Gap | Disconnected


class TransformLookup(Protocol):
    """Transforms between named frames over time: :class:`TransformTree`, or a robot's transform listener."""

    def lookup(self, target: str, source: str, stamp_ns: int) -> PoseLookup:
        """Return ``T_target_source`` at ``stamp_ns`` (maps points of ``source`` into ``target``), or why not."""
        ...


class PoseSource(Protocol):
    """Poses of cameras over time."""

    def lookup(self, camera: str, stamp_ns: int) -> PoseLookup:
        """Return ``T_world_camera`` of the camera's optical frame at ``stamp_ns``, or why there is none."""
        ...


InsertResult = Literal["added", "replaced", "restarted", "ignored"]


class PoseBuffer:
    """Stamped poses of one frame, sorted by stamp, bounded, interpolated (linear translation, slerp rotation).

    Rules:
        * equal stamps: the later insertion replaces the earlier one (``"replaced"``);
        * out of order within the history: inserted (``"added"``); before the history of a bounded buffer: not kept
          (``"ignored"``);
        * lookups never extrapolate.
    """

    def __init__(
        self,
        *,
        history_s: float | None = 10.0,
        max_gap_s: float | None = None,
        name: str = "",
    ) -> None:
        """Args: ``None`` = no limit.

        history_s: poses older than the newest by more are deleted.
        max_gap_s: longest gap that is interpolated.
        name: of the moving frame, for messages.
        """
        for label, value in (("history_s", history_s), ("max_gap_s", max_gap_s)):
            if value is not None and not value >= 0:
                raise ValueError(f"{label} must not be negative, got {value}")
        self._history_ns = None if history_s is None else seconds_to_ns(history_s)
        self._max_gap_ns = None if max_gap_s is None else seconds_to_ns(max_gap_s)
        self.name = name
        self._stamps: list[int] = []
        self._poses: list[F64] = []

    def __len__(self) -> int:
        return len(self._stamps)

    @property
    def newest_ns(self) -> int | None:
        """Return the stamp of the newest pose; None when empty."""
        return self._stamps[-1] if self._stamps else None

    def clear(self) -> None:
        """Delete all poses."""
        self._stamps.clear()
        self._poses.clear()

    def insert(self, stamp_ns: int, T: FloatArray) -> InsertResult:
        """Add a (4, 4) pose; see the class for equal and unordered stamps.

        Raises ``ValueError`` for a pose that is not finite or not rigid.
        """
        return self.insert_checked(
            stamp_ns, check_transform(T, f"pose{self.name and ' of ' + self.name} at {format_stamp(stamp_ns)}")
        )

    def insert_checked(self, stamp_ns: int, T: F64) -> InsertResult:
        """:meth:`insert` of a pose that is known to be rigid."""
        pose = T.copy()
        pose.setflags(write=False)
        if self._stamps and self._history_ns is not None and stamp_ns < self._stamps[-1] - self._history_ns:
            return "ignored"
        i = bisect_left(self._stamps, stamp_ns)
        if i < len(self._stamps) and self._stamps[i] == stamp_ns:
            self._poses[i] = pose
            return "replaced"
        self._stamps.insert(i, stamp_ns)
        self._poses.insert(i, pose)
        self._forget()
        return "added"

    def _forget(self) -> None:
        if self._history_ns is None:
            return
        # keep one pose before the horizon, so that the whole history can be interpolated
        first = bisect_left(self._stamps, self._stamps[-1] - self._history_ns) - 1
        # deleting from the front of a list moves the rest: do it in batches
        if first > 64 and first > len(self._stamps) // 2:
            del self._stamps[:first], self._poses[:first]

    def lookup(self, stamp_ns: int) -> Found | TooEarly | TooOld | Gap:
        """Return the pose at ``stamp_ns``; never extrapolates."""
        if not self._stamps or stamp_ns > self._stamps[-1]:
            return TooEarly(stamp_ns, self.newest_ns, self.name)
        if stamp_ns < self._stamps[0]:
            return TooOld(stamp_ns, self._stamps[0], self.name)
        i = bisect_left(self._stamps, stamp_ns)
        after = self._stamps[i]
        if after == stamp_ns:
            return Found(self._poses[i])
        before = self._stamps[i - 1]
        if self._max_gap_ns is not None and after - before > self._max_gap_ns:
            return Gap(stamp_ns, before, after, self.name)
        fraction = (stamp_ns - before) / (after - before)
        return Found(interpolate_transform(self._poses[i - 1], self._poses[i], fraction))


def frame_name(name: str) -> str:
    """Return a frame id without the leading slash of ROS 1. Raises ``ValueError`` for an empty name."""
    stripped = name[1:] if name.startswith("/") else name
    if not stripped:
        raise ValueError(f"frame name must not be empty, got {name!r}")
    return stripped


class _Link:
    """The transform ``T_parent_child`` of one child: static, or a buffer over time."""

    def __init__(self, parent: str, moving: PoseBuffer | None, judge: StampJudge) -> None:
        self.parent = parent
        self.moving = moving
        self.fixed: F64 | None = None
        self.judge = judge
        self.odd: list[tuple[int, F64]] = []  # waiting for the next stamps
        self.odd_since = 0  # number of fitting transforms in the tree when the first odd one arrived

    def at(self, stamp_ns: int) -> Found | TooEarly | TooOld | Gap:
        if self.fixed is not None:
            return Found(self.fixed)
        assert self.moving is not None
        answer = self.moving.lookup(stamp_ns)
        if isinstance(answer, TooOld | Gap) and self.odd and stamp_ns >= self.odd[0][0] - _NEAR_NS:
            return TooEarly(stamp_ns, self.odd[-1][0], self.moving.name)  # time may be restarting
        return answer

    def forget(self) -> None:
        """Delete stamped transforms."""
        self.odd.clear()
        self.judge.restart()
        if self.moving is not None:
            self.moving.clear()


class TransformTree:
    """Transforms by child frame; every frame has at most one parent.

    Works as ``tf2`` (each link is interpolated at the stamp, then the chain is multiplied), without ROS; the result for
    a broken chain names the missing link.

    Rules:
        * a child with a new parent restarts under that parent (counted in :attr:`reparented`: ``doctor`` reports two
          conflicting publishers of a frame);
        * a static transform replaces a moving one of the same child, and vice versa;
        * a stamp that is off its link by more than ``jump_s`` (:class:`StampJudge`) is one late or wrong message: late
          ones are inserted, nothing is deleted. If the next stamps follow it, the link restarts there, and with it
          every moving link unless one has continued as before;
        * a transform that would close a loop, values that are not finite or not rigid, and names longer than
          :data:`MAX_FRAME_NAME` raise ``ValueError``.

    Not thread-safe.
    """

    def __init__(
        self, *, history_s: float | None = 10.0, max_gap_s: float | None = None, jump_s: float | None = 1.0
    ) -> None:
        """Args: ``None`` = no limit.

        history_s, max_gap_s: see :class:`PoseBuffer`, of which every moving link has one.
        jump_s: see the class; ``None`` = every stamp is inserted.
        """
        if jump_s is not None and not jump_s >= 0:
            raise ValueError(f"jump_s must not be negative, got {jump_s}")
        self._history_s = history_s
        self._max_gap_s = max_gap_s
        self._jump_ns = None if jump_s is None else seconds_to_ns(jump_s)
        self._links: dict[str, _Link] = {}
        self._fitted = 0
        self.reparented: dict[str, int] = {}
        self.restarts = 0

    # ---- filling

    def insert(
        self, parent: str, child: str, stamp_ns: int, T_parent_child: FloatArray, now_ns: int | None = None
    ) -> InsertResult:
        """Add one moving (4, 4) transform at ``stamp_ns``.

        ``now_ns``: receiver's clock, to detect future stamps; None = unknown, no stamp is too far ahead.
        Raises ``ValueError`` (see the class).
        """
        parent, child = frame_name(parent), frame_name(child)
        checked = check_transform(T_parent_child, f"transform {parent!r} -> {child!r}")
        link = self._link(parent, child)
        if link.moving is None:
            link.fixed = None
            link.moving = self._buffer(parent, child)
            link.judge.restart()
        verdict = "fits" if self._jump_ns is None else link.judge.judge(stamp_ns, now_ns)
        if verdict == "fits":
            self._fitted += 1
            link.odd.clear()
            return link.moving.insert_checked(stamp_ns, checked)
        if len(link.judge.suspects) == 1:
            link.odd, link.odd_since = [], self._fitted
        link.odd.append((stamp_ns, checked.copy()))
        if verdict == "moved":
            return self._restart(link)
        newest_ns = link.moving.newest_ns
        if newest_ns is not None and stamp_ns < newest_ns:
            return link.moving.insert_checked(stamp_ns, checked)
        return "ignored"

    def _restart(self, link: _Link) -> InsertResult:
        """Restart a link at its odd stamps, and all links if none continued as before: time itself restarted."""
        self.restarts += 1
        together = link.odd_since == self._fitted
        assert link.moving is not None
        link.moving.clear()
        for stamp_ns, T in link.odd:
            link.moving.insert_checked(stamp_ns, T)
        link.odd = []
        for other in self._links.values():
            if together and other is not link and other.moving is not None:
                odd = list(other.odd)
                other.forget()
                for stamp_ns, T in odd:  # transforms of the new time
                    other.judge.judge(stamp_ns)
                    other.moving.insert_checked(stamp_ns, T)
        return "restarted"

    def insert_static(self, parent: str, child: str, T_parent_child: FloatArray) -> None:
        """Add a (4, 4) transform that is valid at every time. Raises ``ValueError`` (see the class)."""
        parent, child = frame_name(parent), frame_name(child)
        fixed = check_transform(T_parent_child, f"static transform {parent!r} -> {child!r}").copy()
        fixed.setflags(write=False)
        link = self._link(parent, child)
        link.forget()
        link.moving = None
        link.fixed = fixed

    def clear_moving(self) -> None:
        """Delete stamped transforms; static ones and the links stay."""
        for link in self._links.values():
            link.forget()

    def _buffer(self, parent: str, child: str) -> PoseBuffer:
        return PoseBuffer(
            history_s=self._history_s,
            max_gap_s=self._max_gap_s,
            name=f"{parent!r} -> {child!r}",
        )

    def _link(self, parent: str, child: str) -> _Link:
        link = self._links.get(child)
        if link is not None and link.parent == parent:
            return link
        for name in (parent, child):
            if len(name) > MAX_FRAME_NAME:
                short = f"{name[:40]}... of {len(name)} characters"
                raise ValueError(f"frame names may have at most {MAX_FRAME_NAME} characters, got {short}")
        if parent == child or child in self._ancestors(parent):
            raise ValueError(f"transform {parent!r} -> {child!r} would close a loop: {child!r} is above {parent!r}")
        if link is None and len(self._links) >= MAX_LINKS:  # bounds the memory against invented names
            raise ValueError(f"transform {parent!r} -> {child!r}: more than {MAX_LINKS} frames are known")
        if link is not None:
            self.reparented[child] = self.reparented.get(child, 0) + 1
        link = self._links[child] = _Link(parent, self._buffer(parent, child), StampJudge(self._jump_ns or 0))
        return link

    # ---- lookups

    @property
    def frames(self) -> tuple[str, ...]:
        """Return all frames, sorted."""
        return tuple(sorted(set(self._links) | {link.parent for link in self._links.values()}))

    @property
    def links(self) -> Mapping[str, str]:
        """Return child -> parent."""
        return {child: link.parent for child, link in self._links.items()}

    def lookup(self, target: str, source: str, stamp_ns: int) -> PoseLookup:
        """Return ``T_target_source`` at ``stamp_ns`` (maps points of ``source`` into ``target``), or why not."""
        target, source = frame_name(target), frame_name(source)
        if target == source:
            return Found(np.eye(4))
        chain = self._chain(target, source)
        if isinstance(chain, Disconnected):
            return chain
        up, down = chain
        T_ancestor_source = self._climb(up, stamp_ns)
        if not isinstance(T_ancestor_source, Found):
            return T_ancestor_source
        T_ancestor_target = self._climb(down, stamp_ns)
        if not isinstance(T_ancestor_target, Found):
            return T_ancestor_target
        return Found(invert_transform(T_ancestor_target.T) @ T_ancestor_source.T)

    def latest_common_ns(self, target: str, source: str) -> int | None:
        """Return the newest stamp at which :meth:`lookup` finds a transform.

        None when the frames are not connected or a link has no transform yet; 0 for a chain of static transforms.
        """
        target, source = frame_name(target), frame_name(source)
        chain = ([], []) if target == source else self._chain(target, source)
        if isinstance(chain, Disconnected):
            return None
        newest: list[int] = []
        for child in (*chain[0], *chain[1]):
            moving = self._links[child].moving
            if moving is None:
                continue
            if moving.newest_ns is None:
                return None
            newest.append(moving.newest_ns)
        return min(newest, default=0)

    def lookup_latest(self, target: str, source: str) -> PoseLookup:
        """Return ``T_target_source`` at :meth:`latest_common_ns`."""
        stamp = self.latest_common_ns(target, source)
        return self.lookup(target, source, 0 if stamp is None else stamp)

    def _ancestors(self, frame: str) -> list[str]:
        """Return ``frame`` and its ancestors, bottom first."""
        path = [frame]
        while path[-1] in self._links:
            path.append(self._links[path[-1]].parent)
        return path

    def _chain(self, target: str, source: str) -> tuple[list[str], list[str]] | Disconnected:
        """Return the children on the paths from ``source`` and from ``target`` to their common ancestor."""
        for frame in (target, source):
            if frame not in self._links and frame not in self.frames:
                listed = ", ".join(self.frames) or "none"
                return Disconnected(target, source, f"frame {frame!r} is unknown; known frames: {listed}")
        above_source, above_target = self._ancestors(source), self._ancestors(target)
        common = next((frame for frame in above_source if frame in above_target), None)
        if common is None:
            missing = f"{source!r} is under {above_source[-1]!r}, {target!r} under {above_target[-1]!r}"
            return Disconnected(target, source, f"{missing}; no transform links these roots")
        return above_source[: above_source.index(common)], above_target[: above_target.index(common)]

    def _climb(self, children: list[str], stamp_ns: int) -> Found | TooEarly | TooOld | Gap:
        """Return ``T_ancestor_frame`` of the chain that starts at ``children[0]``."""
        T = np.eye(4)
        for child in children:
            answer = self._links[child].at(stamp_ns)
            if not isinstance(answer, Found):
                return answer
            T = answer.T @ T
        return Found(T)


class CameraPoses:
    """A :class:`PoseSource` from transforms: each camera's pose is that of the frame of its images.

    Attributes:
        frames: camera -> optical frame; may grow as images arrive.
    """

    def __init__(self, transforms: TransformLookup, world_frame: str, frames: Mapping[str, str] | None = None) -> None:
        self._transforms = transforms
        self._world_frame = world_frame
        self.frames = dict(frames or {})

    def lookup(self, camera: str, stamp_ns: int) -> PoseLookup:
        """See :class:`PoseSource`."""
        frame = self.frames.get(camera, "")
        if not frame:
            return Disconnected(self._world_frame, camera, f"images of camera {camera!r} carry no frame_id")
        return self._transforms.lookup(self._world_frame, frame, stamp_ns)

    def mount(self, color_frame: str, depth_frame: str, stamp_ns: int) -> PoseLookup:
        """Return ``T_color_depth`` between two frames of one camera, or why there is none."""
        return self._transforms.lookup(color_frame, depth_frame, stamp_ns)
