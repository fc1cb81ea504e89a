"""Both transform sources hear the same messages and give the same answers."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy")
pytest.importorskip("tf2_msgs")

from rclpy.clock import Clock
from rclpy.qos import DurabilityPolicy, QoSProfile
from support import tf2_stand_in
from support.ros_live import Peer, own_domain, turned, wait_until
from tf2_msgs.msg import TFMessage

from embodied_perceptron.geometry.transforms import interpolate_transform, invert_transform, make_transform
from embodied_perceptron.sensors.poses import Disconnected, Found, TooEarly, TooOld
from embodied_perceptron_ros.conversion.values import make_transform_stamped, transform_to_matrix
from embodied_perceptron_ros.node.transforms import (
    MapFramePublisher,
    Tf2Transforms,
    TreeTransforms,
    make_transform_source,
    tf2_available,
)

pytestmark = pytest.mark.ros
S = 1_000_000_000
STATIC = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


@pytest.fixture(scope="module")
def peer():
    with own_domain() as domain:
        peer = Peer(domain)
        yield peer
        peer.close()


@pytest.fixture(params=["tree", "tf2", "tf2 stand-in"])
def source(request, peer, monkeypatch):
    if request.param == "tf2" and not tf2_available():
        pytest.skip("tf2_ros is not installed")
    if request.param == "tf2 stand-in":
        monkeypatch.setitem(sys.modules, "tf2_ros", tf2_stand_in.as_module())
    source = (TreeTransforms if request.param == "tree" else Tf2Transforms)(peer.node)
    yield source
    source.close()


def feed(source, *stamped) -> None:
    """Straight into the callback: what the wire does is tested below."""
    for message in stamped:
        source._receive(TFMessage(transforms=[message]), False)


def test_lookup_interpolates_and_chains(source):
    mount = turned(0.3)
    source._receive(TFMessage(transforms=[make_transform_stamped(mount, 0, "base", "camera")]), True)
    a, b = turned(0.0, 1.0), turned(0.8, 2.0)
    feed(source, make_transform_stamped(a, 10 * S, "odom", "base"), make_transform_stamped(b, 11 * S, "odom", "base"))
    answer = source.lookup("odom", "camera", 10 * S + S // 4)
    assert isinstance(answer, Found)
    np.testing.assert_allclose(answer.T, interpolate_transform(a, b, 0.25) @ mount, atol=1e-6)
    back = source.lookup("camera", "odom", 10 * S + S // 4)
    np.testing.assert_allclose(back.T @ answer.T, np.eye(4), atol=1e-6)
    np.testing.assert_allclose(source.lookup_latest("odom", "camera").T, b @ mount, atol=1e-6)


def test_answers_without_a_pose(source):
    feed(source, *(make_transform_stamped(turned(0), t * S, "odom", "base") for t in (10, 11)))
    early = source.lookup("odom", "base", 12 * S)
    assert isinstance(early, TooEarly)
    assert early.newest_ns == 11 * S
    old = source.lookup("odom", "base", 9 * S)
    assert isinstance(old, TooOld)
    assert old.oldest_ns == 10 * S
    missing = source.lookup("map", "base", 10 * S)
    assert isinstance(missing, Disconnected)
    assert "map" in str(missing)
    assert isinstance(source.lookup_latest("map", "base"), Disconnected)


def test_leading_slashes_do_not_matter(source):
    feed(source, *(make_transform_stamped(turned(0), t * S, "/odom", "/base") for t in (10, 11)))
    assert isinstance(source.lookup("odom", "/base", 10 * S), Found)


def test_bad_transforms_are_counted_and_nothing_else(source):
    message = make_transform_stamped(turned(0), 10 * S, "odom", "base")
    message.transform.rotation.w = 5.0
    not_finite = make_transform_stamped(turned(0), 10 * S, "odom", "base")
    not_finite.transform.translation.x = float("nan")
    feed(source, message, not_finite)
    assert sum(source.refused.values()) == 2
    assert "unit norm" in " ".join(source.refused)
    assert isinstance(source.lookup("odom", "base", 10 * S), Disconnected)
    feed(source, make_transform_stamped(turned(0), 10 * S, "odom", "base"))
    assert isinstance(source.lookup("odom", "base", 10 * S), Found)


def test_a_flood_of_bad_transforms_does_not_grow_the_count_table(source):
    for i in range(100):
        message = make_transform_stamped(turned(0), 10 * S, "odom", f"frame_{i}")
        message.transform.rotation.w = 5.0
        feed(source, message)
    assert sum(source.refused.values()) == 100
    assert len(source.refused) < 30


def test_time_jumping_back_starts_the_history_anew(source):
    feed(source, *(make_transform_stamped(turned(0.1), t * S, "odom", "base") for t in (100, 101)))
    for i in range(3):
        assert source.restarts == 0
        feed(source, make_transform_stamped(turned(0.5), 10 * S + i * S // 50, "odom", "base"))
        if i < 2:
            assert isinstance(source.lookup("odom", "base", 10 * S + S // 100), Found | TooEarly), "wait for it"
    assert source.restarts == 1
    np.testing.assert_allclose(source.lookup("odom", "base", 10 * S).T, turned(0.5), atol=1e-6)
    assert isinstance(source.lookup("odom", "base", 100 * S), TooEarly)


@pytest.mark.parametrize("off_s", [-2, -50, 500])
def test_one_message_of_another_time_clears_nothing(source, off_s):
    for i in range(20):
        for parent, child in (("map", "odom"), ("odom", "base")):
            feed(source, make_transform_stamped(turned(0.1), 100 * S + i * S // 50, parent, child))
    feed(source, make_transform_stamped(turned(0.9), (100 + off_s) * S, "map", "odom"))
    assert source.restarts == 0
    at = source.lookup("map", "base", 100 * S + S // 5 + S // 100)
    assert isinstance(at, Found)
    np.testing.assert_allclose(at.T, turned(0.1) @ turned(0.1), atol=1e-6)
    assert isinstance(source.lookup("map", "base", 101 * S), TooEarly)


def test_a_loop_is_refused_by_name_and_the_tree_goes_on(source):
    feed(source, *(make_transform_stamped(turned(0.1), t * S, "odom", "base") for t in (100, 101)))
    feed(source, make_transform_stamped(turned(0.1), 100 * S, "base", "odom"))
    source._receive(TFMessage(transforms=[make_transform_stamped(turned(0.1), 0, "base", "odom")]), True)
    assert sum(source.refused.values()) == 2
    assert "would close a loop" in " ".join(source.refused)
    assert isinstance(source.lookup("odom", "base", 100 * S), Found)


def test_clear_keeps_static_transforms(source):
    source._receive(TFMessage(transforms=[make_transform_stamped(turned(0.3), 0, "base", "camera")]), True)
    feed(source, make_transform_stamped(turned(0), 10 * S, "odom", "base"))
    source.clear()
    assert isinstance(source.lookup("base", "camera", 5 * S), Found)
    assert not isinstance(source.lookup("odom", "camera", 10 * S), Found)


def test_over_the_wire_static_before_subscribing(peer):
    static = peer.node.create_publisher(TFMessage, "/tf_static", STATIC)
    static.publish(TFMessage(transforms=[make_transform_stamped(turned(0.3), 0, "base", "camera")]))
    changes: list[int] = []
    source = make_transform_source(peer.node, lambda: changes.append(1))
    try:
        wait_until(lambda: isinstance(source.lookup("base", "camera", 5 * S), Found))
        peer.send_transform(turned(0.1), 10 * S, "odom", "base")
        wait_until(lambda: isinstance(source.lookup("odom", "camera", 10 * S), Found))
        assert changes
    finally:
        source.close()
        peer.node.destroy_publisher(static)


class Node:
    """Collects what is published."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.topics: list[str] = []

    def create_publisher(self, kind: type, topic: str, qos: Any) -> Any:
        self.topics.append(topic)
        return self

    def publish(self, message: Any) -> None:
        self.sent += message.transforms

    def get_clock(self) -> Clock:
        return Clock()


class Map:
    """A perceptron whose map lies somewhere."""

    place_estimate: Any = None
    T_world_map = np.eye(4)


def test_the_transform_is_sent_once_for_each_place():
    node, owner = Node(), Map()
    publisher = MapFramePublisher(node, owner, "map", "odom")
    assert node.topics == ["/tf_static"]
    owner.place_estimate = "looked for"
    publisher.update()
    assert not node.sent
    owner.place_estimate = None
    publisher.update()
    publisher.update()
    assert len(node.sent) == 1
    c, s = np.cos(0.7), np.sin(0.7)
    owner.T_world_map = make_transform(np.array([[c, -s, 0], [s, c, 0], [0, 0, 1.0]]), np.array([1.0, 2.0, 0.0]))
    publisher.update()
    assert len(node.sent) == 2
    last = node.sent[-1]
    assert (last.header.frame_id, last.child_frame_id) == ("map", "odom")
    assert np.allclose(transform_to_matrix(last.transform), invert_transform(owner.T_world_map))
