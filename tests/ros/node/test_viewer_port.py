"""A viewer that cannot be opened keeps no robot from perceiving; a port that is taken makes way for the next."""

from __future__ import annotations

import errno
from types import SimpleNamespace

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("tf2_msgs")

from embodied_perceptron_ros.node import viewers
from embodied_perceptron_ros.node.viewers import open_viewer

pytestmark = pytest.mark.ros


class Node:
    """A node with a log that is kept."""

    def __init__(self, port: int, viewer: str = "web") -> None:
        self.parameters = SimpleNamespace(
            web_host="127.0.0.1", web_port=port, web_token="", viewer=viewer, viewer_file="/nowhere/at/all.rrd"
        )
        self.lines: list[str] = []

    def get_logger(self):
        return SimpleNamespace(info=self.lines.append, warning=self.lines.append, error=self.lines.append)

    def get_fully_qualified_name(self) -> str:
        return "/perception"


CONFIGURED = SimpleNamespace(
    grounding=SimpleNamespace(ask=None), services=SimpleNamespace(name_object=None, correct_object=None)
)


def viewer_class(taken: set[int]):
    def make(controls, port: int, **_):
        if port in taken:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        return SimpleNamespace(url=f"http://localhost:{port or 4000}/", close=lambda: None)

    return make


@pytest.mark.parametrize(("taken", "used"), [(set(), 8085), ({8085}, 8086), ({8085, 8086, 8087}, 8088)])
def test_the_next_free_port_serves_and_is_named(monkeypatch, taken, used):
    monkeypatch.setattr(viewers, "WebViewer", viewer_class(taken))
    node = Node(8085)
    viewer = open_viewer(node, CONFIGURED)
    assert viewer is not None
    assert viewer.url == f"http://localhost:{used}/"
    assert any("port 8085 (parameter web_port) is taken" in line for line in node.lines) is bool(taken)
    assert any(f"the map is shown at http://localhost:{used}/" in line for line in node.lines)


@pytest.mark.parametrize("port", [8085, 65530, 0])
def test_without_any_port_the_node_goes_on(monkeypatch, port):
    monkeypatch.setattr(viewers, "WebViewer", viewer_class({0, *range(1, 65536)}))
    node = Node(port)
    assert open_viewer(node, CONFIGURED) is None
    assert "there is no web viewer" in node.lines[0]
    assert "web_port" in node.lines[0]


def test_without_its_package_the_node_goes_on(monkeypatch):
    def lacks_it(controls, **_):
        raise RuntimeError("the web viewer needs viser")

    monkeypatch.setattr(viewers, "WebViewer", lacks_it)
    node = Node(8085)
    assert open_viewer(node, CONFIGURED) is None
    assert node.lines == ["there is no web viewer: the web viewer needs viser"]


def test_a_recording_of_the_viewer_that_cannot_be_written_ends_nothing():
    node = Node(0, "rerun")
    assert open_viewer(node, CONFIGURED) is None
    assert "there is no viewer" in node.lines[0]
