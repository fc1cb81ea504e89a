"""QoS profiles of the node, the players and the doctor."""

from __future__ import annotations

from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.qos_overriding_options import QoSOverridingOptions

EVENTS = 100  # changes of objects that a late subscriber gets


def reliable_qos(depth: int) -> QoSProfile:
    """Reliable: as a publisher it matches reliable and best-effort subscribers."""
    return QoSProfile(depth=depth, history=HistoryPolicy.KEEP_LAST, reliability=ReliabilityPolicy.RELIABLE)


def best_effort_qos(depth: int = 10) -> QoSProfile:
    """Best effort: as a subscriber it matches every publisher."""
    return QoSProfile(depth=depth, history=HistoryPolicy.KEEP_LAST, reliability=ReliabilityPolicy.BEST_EFFORT)


def latched_qos(depth: int = 1) -> QoSProfile:
    """Reliable and transient local: the publisher keeps messages for late subscribers."""
    profile = reliable_qos(depth)
    profile.durability = DurabilityPolicy.TRANSIENT_LOCAL
    return profile


def qos_overrides() -> QoSOverridingOptions:
    """Allow parameters ``qos_overrides.<topic>...`` for history, depth and reliability."""
    return QoSOverridingOptions.with_default_policies()
