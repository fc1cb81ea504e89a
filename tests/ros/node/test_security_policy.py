"""The SROS 2 policy against the node itself: everything that it uses is allowed, and nothing else."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("tf2_msgs")
pytest.importorskip("embodied_perceptron_msgs")

import rclpy
from rclpy.context import Context
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.node import NodeNameNonExistentError
from rclpy.parameter import Parameter
from support.ros_live import own_domain

from embodied_perceptron_ros.node.perception_node import PerceptionNode

ROOT = Path(__file__).resolve().parents[3]
POLICY = ROOT / "ros_ws" / "src" / "embodied_perceptron_ros" / "security" / "perception.policy.xml"
pytestmark = [pytest.mark.ros, pytest.mark.timeout(600)]

# heard only with other parameters (transports of images), or only where the middleware sees fit
OPTIONAL = {
    "subscribe": {
        *("/color/image_raw/compressed", "/depth/image_raw/compressed", "/depth/image_raw/compressedDepth"),
        *("/bond", "/parameter_events", "/clock"),
    },
    "publish": {"/rosout", "/perception/planning_scene"},
    "reply": set(),
}


@pytest.fixture(scope="module")
def node() -> Iterator[PerceptionNode]:
    values = {"autostart": False, "weights": "none", "voxel_size_m": 0.05, "max_blocks": 2000}
    with own_domain() as domain:  # no other test's node of this name may be seen
        context = Context()
        rclpy.init(context=context, domain_id=domain)
        node = PerceptionNode(context=context, parameter_overrides=[Parameter(n, value=v) for n, v in values.items()])
        assert node.trigger_configure() == TransitionCallbackReturn.SUCCESS
        assert node.trigger_activate() == TransitionCallbackReturn.SUCCESS
        yield node
        node.close()
        node.destroy_node()
        rclpy.shutdown(context=context)


def allowed(right: str) -> set[str]:
    profile = ElementTree.parse(POLICY).getroot().find("enclaves/enclave/profiles/profile")
    assert profile is not None
    assert (profile.get("ns"), profile.get("node")) == ("/", "perception")
    return {str(item.text) for group in profile if group.get(right) == "ALLOW" for item in group}


def in_graph(node: PerceptionNode, right: str) -> set[str]:
    """Names that the graph has for the node; none as long as it has not heard of the node itself."""
    names = {
        "subscribe": node.get_subscriber_names_and_types_by_node,
        "publish": node.get_publisher_names_and_types_by_node,
        "reply": node.get_service_names_and_types_by_node,
    }[right]
    try:
        return {name for name, _ in names("perception", "/")}
    except NodeNameNonExistentError:
        return set()


def settled(read: Callable[[], set[str]], needed: set[str]) -> set[str]:
    """What ``read`` gives once all that is needed is there: the graph learns of the node itself a little later."""
    deadline = time.monotonic() + 60
    while needed - (names := read()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return names


@pytest.mark.parametrize("right", ["subscribe", "publish", "reply"])
def test_the_policy_is_what_the_node_uses(node: PerceptionNode, right: str) -> None:
    needed = allowed(right) - OPTIONAL[right]
    used = settled(lambda: {name for name in in_graph(node, right) if "/_action/" not in name}, needed)
    assert used - allowed(right) == set(), "the node would not get these"
    assert needed - used == set(), "the node has no use for these"


def test_actions_are_those_of_the_node(node: PerceptionNode) -> None:
    def actions() -> set[str]:
        return {name.partition("/_action/")[0] for name in in_graph(node, "reply") if "/_action/" in name}

    assert settled(actions, allowed("execute")) == allowed("execute")


def test_the_page_names_what_there_is(node: PerceptionNode) -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    for name in ("map_folder", "max_queries_hz", "query_queue_size", "max_standing_queries", "keyframe_path_topic"):
        assert name in page
        assert node.has_parameter(name)
    assert POLICY.name in page
    cmake = (POLICY.parents[1] / "CMakeLists.txt").read_text(encoding="utf-8")
    folders = re.search(r"foreach\(folder ([^)]*)\)", cmake)
    assert folders is not None
    assert "security" in folders[1].split()
