"""The heartbeat as Nav2's lifecycle manager sees it: formed by beats of the node's name, broken by a farewell."""

from __future__ import annotations

import time

import pytest
import rclpy
from bond.msg import Status
from rclpy.executors import SingleThreadedExecutor
from support.ros_live import own_domain

from embodied_perceptron_ros.node.health import Heartbeat


@pytest.fixture
def context():
    with own_domain() as domain:
        context = rclpy.Context()
        rclpy.init(context=context, domain_id=domain)
        yield context
        rclpy.try_shutdown(context=context)


def spin_until(executor, condition, timeout_s=60.0):
    end = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < end:
        executor.spin_once(timeout_sec=0.05)
    assert condition()


def test_a_manager_sees_the_node_live_and_let_go(context):
    node = rclpy.create_node("perception", context=context)
    manager = rclpy.create_node("lifecycle_manager", context=context)
    heard = []
    manager.create_subscription(Status, "bond", heard.append, 10)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)
    executor.add_node(manager)
    heartbeat = Heartbeat(node, 0.05)
    spin_until(executor, lambda: len(heard) >= 4)
    assert {m.id for m in heard} == {"perception"}
    assert len({m.instance_id for m in heard}) == 1
    assert all(m.active for m in heard)
    assert heard[0].heartbeat_period == pytest.approx(0.05)
    assert heard[0].heartbeat_timeout > 10 * heard[0].heartbeat_period
    heartbeat.close()
    spin_until(executor, lambda: not heard[-1].active)
    count = len(heard)
    spin_end = time.monotonic() + 0.3
    while time.monotonic() < spin_end:
        executor.spin_once(timeout_sec=0.05)
    assert len(heard) == count, "it goes on beating"
    executor.shutdown()


def test_two_instances_are_told_apart(context):
    node = rclpy.create_node("perception", context=context)
    first, second = Heartbeat(node, 1.0), Heartbeat(node, 1.0)
    assert first._instance != second._instance
    first.close()
    second.close()
