"""The part of tf2_ros's interface that the node uses, for machines without it: tests our side of the border only.

Behaves as tf2 does where it matters: the past of a link is ignored, ``clear`` keeps static transforms, time 0 means
"latest", failures are exceptions whose text is all that tells them apart.
"""

from __future__ import annotations

import types
from typing import Any

from rclpy.time import Time

from embodied_perceptron.sensors.poses import Disconnected, Found, TooEarly, TooOld, TransformTree
from embodied_perceptron_ros.conversion.values import make_transform_stamped, stamp_to_ns, transform_to_matrix


class TransformException(Exception):  # noqa: N818 (its name there)
    """Base of all."""


class LookupException(TransformException):
    """A frame is unknown."""


class ExtrapolationException(TransformException):
    """No transform at that time."""


class Buffer:
    """A buffer that is asked through the core methods."""

    def __init__(self, cache_time: Any = None) -> None:
        self._tree = TransformTree(history_s=cache_time.nanoseconds / 1e9, jump_s=None)

    def set_transform(self, message: Any, authority: str) -> None:
        T, stamp_ns = transform_to_matrix(message.transform), stamp_to_ns(message.header.stamp)
        self._tree.insert(message.header.frame_id, message.child_frame_id, stamp_ns, T)

    def set_transform_static(self, message: Any, authority: str) -> None:
        self._tree.insert_static(
            message.header.frame_id, message.child_frame_id, transform_to_matrix(message.transform)
        )

    def clear(self) -> None:
        self._tree.clear_moving()

    def get_latest_common_time(self, target: str, source: str) -> Time:
        newest = self._tree.latest_common_ns(target, source)
        if newest is None:
            raise LookupException(f'"{source}" is not connected to "{target}"')
        return Time(nanoseconds=newest)

    def lookup_transform_core(self, target: str, source: str, time: Time) -> Any:
        stamp_ns = time.nanoseconds or self.get_latest_common_time(target, source).nanoseconds
        answer = self._tree.lookup(target, source, stamp_ns)
        if isinstance(answer, Found):
            return make_transform_stamped(answer.T, stamp_ns, target, source)
        if isinstance(answer, Disconnected):
            raise LookupException(str(answer))
        assert isinstance(answer, TooEarly | TooOld)
        known_ns = answer.newest_ns if isinstance(answer, TooEarly) else answer.oldest_ns
        where, which = ("future", "latest") if isinstance(answer, TooEarly) else ("past", "earliest")
        raise ExtrapolationException(
            f"Lookup would require extrapolation into the {where}.  Requested time {stamp_ns / 1e9:.6f} but the "
            f"{which} data is at time {(known_ns or 0) / 1e9:.6f}"
        )


def as_module() -> types.ModuleType:
    """Something that ``import tf2_ros`` may find."""
    module = types.ModuleType("tf2_ros")
    for kind in (Buffer, TransformException, LookupException, ExtrapolationException):
        setattr(module, kind.__name__, kind)
    return module
