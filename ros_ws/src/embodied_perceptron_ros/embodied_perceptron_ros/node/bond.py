"""The heartbeat that Nav2's lifecycle manager listens to: a node that stops beating is taken for dead.

The protocol of the package bond: both sides publish ``bond/Status`` with the same id and an instance id of their own
on one topic, ``active`` while they live, and once with ``active`` false when they let go. Nav2's manager begins a bond
with the name of every node that it activates, on ``bond`` in its own namespace.
"""

from __future__ import annotations

import uuid
from typing import Any

from rclpy.clock import Clock, ClockType

TIMEOUT_S = 4.0  # nav2_lifecycle_manager's own


class Heartbeat:
    """Beats from its construction until :meth:`close`; belongs to the executor's thread.

    Args:
        node: whose name the bond has.
        period_s: between two beats.

    Raises ``ImportError`` where the package ``bond`` is not installed.
    """

    def __init__(self, node: Any, period_s: float) -> None:
        from bond.msg import Status

        self._node, self._status = node, Status
        self._instance = str(uuid.uuid4())
        self._period_s = period_s
        self._publisher = node.create_publisher(Status, "bond", 10)
        # steady: simulation time may stand still while the node lives
        self._steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._timer = node.create_timer(period_s, self._beat, clock=self._steady)

    def _beat(self) -> None:
        if self._publisher.get_subscription_count():
            self._publish(active=True)

    def _publish(self, active: bool) -> None:
        message = self._status(
            id=self._node.get_name(),
            instance_id=self._instance,
            active=active,
            heartbeat_timeout=TIMEOUT_S,
            heartbeat_period=self._period_s,
        )
        message.header.stamp = self._node.get_clock().now().to_msg()
        self._publisher.publish(message)

    def close(self) -> None:
        """Let go of the bond."""
        self._publish(active=False)
        self._node.destroy_timer(self._timer)
        self._node.destroy_publisher(self._publisher)
