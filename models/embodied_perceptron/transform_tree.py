"""A small transform tree: stamped and static transforms between named frames, looked up by stamp.

It answers what ``tf2`` answers (each link is interpolated at the stamp, then the chain is multiplied), with values
instead of exceptions, and needs no ROS. A broken chain names its missing link.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry import FloatArray, check_transform, invert_transform
from embodied_perceptron.trajectory import (
    Disconnected,
    Found,
    Gap,
    InsertResult,
    PoseBuffer,
    PoseLookup,
    TooEarly,
    TooOld,
    seconds_to_ns,
)


def frame_name(name: str) -> str:
    """Frame id without the leading slash that ROS 1 allowed. Raises ``ValueError`` when nothing is left."""
    stripped = name[1:] if name.startswith("/") else name
    if not stripped:
        raise ValueError(f"frame name must not be empty, got {name!r}")
    return stripped


class _Link:
    """The transform ``T_parent_child`` of one child: static, or a buffer over time."""

    def __init__(self, parent: str, moving: PoseBuffer | None) -> None:
        self.parent = parent
        self.moving = moving
        self.fixed: NDArray[np.float64] | None = None

    def at(self, stamp_ns: int) -> Found | TooEarly | TooOld | Gap:
        if self.fixed is not None:
            return Found(self.fixed)
        assert self.moving is not None
        return self.moving.lookup(stamp_ns)


class TransformTree:
    """Transforms by child frame; every frame has at most one parent.

    Rules:
        * a child that arrives with another parent starts anew under that parent (counted in :attr:`reparented`: two
          publishers that fight over one frame are a fault that ``doctor`` reports);
        * a static transform replaces a moving one of the same child, and the other way round;
        * when one link's stamps jump back by more than ``jump_back_s``, every moving link is cleared: time restarted;
        * a transform that would close a loop, and values that are not finite or not rigid, raise ``ValueError``.

    Not thread-safe: one owner, or a lock around it.
    """

    def __init__(
        self, *, history_s: float | None = 10.0, max_gap_s: float | None = None, jump_back_s: float | None = 1.0
    ) -> None:
        """See :class:`~embodied_perceptron.trajectory.PoseBuffer`, of which every moving link has one."""
        self._history_s = history_s
        self._max_gap_s = max_gap_s
        self._jump_back_s = jump_back_s
        self._jump_back_ns = None if jump_back_s is None else seconds_to_ns(jump_back_s)
        self._links: dict[str, _Link] = {}
        self.reparented: dict[str, int] = {}
        self.restarts = 0

    # ----------------------------------------------------------------------------------------------------------------
    # filling

    def insert(self, parent: str, child: str, stamp_ns: int, T_parent_child: FloatArray) -> InsertResult:
        """Add one moving (4, 4) transform at ``stamp_ns``. Raises ``ValueError`` (see the class)."""
        parent, child = frame_name(parent), frame_name(child)
        checked = check_transform(T_parent_child, f"transform {parent!r} -> {child!r}")
        link = self._link(parent, child)
        if link.moving is None:
            link.fixed = None
            link.moving = self._buffer(parent, child)
        newest = link.moving.newest_ns
        restarted = newest is not None and self._jump_back_ns is not None and stamp_ns < newest - self._jump_back_ns
        if restarted:
            self.clear_moving()
            self.restarts += 1
        result = link.moving.insert_checked(stamp_ns, checked)
        return "restarted" if restarted else result

    def insert_static(self, parent: str, child: str, T_parent_child: FloatArray) -> None:
        """Add one (4, 4) transform that holds at every time. Raises ``ValueError`` (see the class)."""
        parent, child = frame_name(parent), frame_name(child)
        fixed = check_transform(T_parent_child, f"static transform {parent!r} -> {child!r}").copy()
        fixed.setflags(write=False)
        link = self._link(parent, child)
        link.moving = None
        link.fixed = fixed

    def clear_moving(self) -> None:
        """Forget what has stamps; static transforms and the shape of the tree stay."""
        for link in self._links.values():
            if link.moving is not None:
                link.moving.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._links.clear()

    def _buffer(self, parent: str, child: str) -> PoseBuffer:
        return PoseBuffer(
            history_s=self._history_s,
            max_gap_s=self._max_gap_s,
            jump_back_s=self._jump_back_s,
            name=f"{parent!r} -> {child!r}",
        )

    def _link(self, parent: str, child: str) -> _Link:
        link = self._links.get(child)
        if link is not None and link.parent == parent:
            return link
        if parent == child or child in self._ancestors(parent):
            raise ValueError(f"transform {parent!r} -> {child!r} would close a loop: {child!r} is above {parent!r}")
        if link is not None:
            self.reparented[child] = self.reparented.get(child, 0) + 1
        link = self._links[child] = _Link(parent, self._buffer(parent, child))
        return link

    # ----------------------------------------------------------------------------------------------------------------
    # asking

    @property
    def frames(self) -> tuple[str, ...]:
        """All known frames, sorted."""
        return tuple(sorted(set(self._links) | {link.parent for link in self._links.values()}))

    @property
    def links(self) -> Mapping[str, str]:
        """Child -> parent."""
        return {child: link.parent for child, link in self._links.items()}

    def is_static(self, child: str) -> bool:
        """Whether the transform above ``child`` holds at every time. Raises ``KeyError`` for an unknown child."""
        return self._links[frame_name(child)].fixed is not None

    def lookup(self, target: str, source: str, stamp_ns: int) -> PoseLookup:
        """``T_target_source`` at ``stamp_ns`` (points of ``source`` into ``target``), or why there is none."""
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
        """Newest stamp at which :meth:`lookup` can be answered.

        None when the frames are not connected, or a link has no transform yet. A chain of static transforms alone
        answers 0 (it holds at every stamp).
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
        """``T_target_source`` at :meth:`latest_common_ns`."""
        stamp = self.latest_common_ns(target, source)
        return self.lookup(target, source, 0 if stamp is None else stamp)

    def _ancestors(self, frame: str) -> list[str]:
        """``frame`` and everything above it, bottom first."""
        path = [frame]
        while path[-1] in self._links:
            path.append(self._links[path[-1]].parent)
        return path

    def _chain(self, target: str, source: str) -> tuple[list[str], list[str]] | Disconnected:
        """Children whose links lead from ``source``, and from ``target``, up to their common ancestor."""
        for frame in (target, source):
            if frame not in self._links and frame not in self.frames:
                listed = ", ".join(self.frames) or "none"
                return Disconnected(target, source, f"frame {frame!r} is unknown; known frames: {listed}")
        above_source, above_target = self._ancestors(source), self._ancestors(target)
        common = next((frame for frame in above_source if frame in above_target), None)
        if common is None:
            missing = f"{source!r} hangs under {above_source[-1]!r}, {target!r} under {above_target[-1]!r}"
            return Disconnected(target, source, f"{missing}; nothing links these two roots")
        return above_source[: above_source.index(common)], above_target[: above_target.index(common)]

    def _climb(self, children: list[str], stamp_ns: int) -> Found | TooEarly | TooOld | Gap:
        """``T_ancestor_frame`` of the chain that starts at ``children[0]``."""
        T = np.eye(4)
        for child in children:
            answer = self._links[child].at(stamp_ns)
            if not isinstance(answer, Found):
                return answer
            T = answer.T @ T
        return Found(T)


class TreePoses:
    """A :class:`~embodied_perceptron.trajectory.PoseSource`: cameras by their optical frames in a tree."""

    def __init__(self, tree: TransformTree, world_frame: str, camera_frames: Mapping[str, str]) -> None:
        """``camera_frames``: optical frame of each camera; a camera that is not in it is its own frame id."""
        self._tree = tree
        self._world_frame = frame_name(world_frame)
        self._camera_frames = dict(camera_frames)

    def lookup(self, camera: str, stamp_ns: int) -> PoseLookup:
        """See :class:`~embodied_perceptron.trajectory.PoseSource`."""
        return self._tree.lookup(self._world_frame, self._camera_frames.get(camera, camera), stamp_ns)
