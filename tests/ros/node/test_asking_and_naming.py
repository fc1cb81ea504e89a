"""Over real topics: an agent's tools, ask on the command line, names and corrections, the viewer in the browser."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="ROS 2 is absent")

from embodied_perceptron_msgs.srv import Ask, CorrectObject, LoadMap, NameObject, SaveMap
from support.browser import Page, open_browser
from support.ros_live import own_domain, running_node, scene_depth, turned, wait_until
from vision_msgs.msg import Detection3DArray

from embodied_perceptron.agents.tools import ToolInputError, call_tool
from embodied_perceptron.scene.live_map import labels_path
from embodied_perceptron_ros.node.guest import Guest, NoAnswerError
from embodied_perceptron_ros.players.asking import answer_as_dict, answer_lines
from embodied_perceptron_ros.players.live_scene import live_scene

pytestmark = pytest.mark.ros
MS = 1_000_000


def ask(domain, *arguments):
    """Exit code, stdout, stderr of the command in a process of its own."""
    environment = {**os.environ, "ROS_DOMAIN_ID": str(domain), "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}
    done = subprocess.run(
        [sys.executable, "-m", "embodied_perceptron.apps.cli", "ask", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def look_around(peer, boxes):
    """Frames until the box is an object."""
    stamp_ns = 1_000_000_000

    def found():
        nonlocal stamp_ns
        for _ in range(2):
            stamp_ns += 100 * MS
            peer.send_frame(stamp_ns, depth_m=scene_depth(), T=turned(0.02 * np.sin(stamp_ns)))
        return boxes and boxes[-1].detections

    wait_until(found, 60, "an object")
    return boxes[-1].detections


def check_tools(source, boxes):
    """What an agent's tools say is what the node publishes."""
    answer = wait_until(lambda: call_tool(source, "list_objects", {}).values["objects"], 60, "its box")
    shown = {d.id: d.bbox.center.position for d in boxes[-1].detections}
    assert {str(o["id"]) for o in answer} == set(shown)
    for o in answer:
        at = shown[str(o["id"])]
        assert np.allclose(o["position_m"], [at.x, at.y, at.z], atol=0.05)
    assert source.frame() == boxes[-1].header.frame_id
    found_by = call_tool(source, "find", {"sentence": "the object"}).values
    assert found_by["status"] in ("FOUND", "AMBIGUOUS", "INVALID")
    if found_by["status"] == "INVALID":
        assert "no language model" in found_by["reason"]
    with pytest.raises(ToolInputError, match="answers from the robot's viewpoint"):
        call_tool(source, "find", {"sentence": "the chair", "standing_at": [0, 0, 0]})
    wait_until(lambda: len(source.perception().voxels), 60, "voxels")
    wait_until(lambda: source.perception().grid.cells.size, 60, "the grid")
    assert call_tool(source, "snapshot", {}).pictures[0].std() > 5
    goal = call_tool(source, "goal_near", {"id": answer[0]["id"], "robot_radius_m": 0.1}).values
    assert goal["reachable"] or "no free floor" in goal["reason"]


def test_names_corrections_and_questions(tmp_path, monkeypatch):
    with running_node(tmp_path, map_folder=str(tmp_path)) as (_, peer):
        domain = peer.context.get_domain_id()
        with Guest("ask", domain) as guest:
            wait_until(lambda: "/perception/ask" in dict(guest.node.get_service_names_and_types()))
            with pytest.raises(NoAnswerError, match="nobody offers /nowhere/perception/ask: there is /perception"):
                guest.call(Ask, "/nowhere/perception/ask", Ask.Request(), 0.1)
        boxes = peer.listen("/perception/boxes", Detection3DArray)
        number = look_around(peer, boxes)[0].id
        monkeypatch.setenv("ROS_DOMAIN_ID", str(domain))
        with live_scene(namespace="", timeout_s=60.0) as source:
            check_tools(source, boxes)

        def name(what, words):
            return peer.call("/perception/name_object", NameObject, NameObject.Request(id=what, name=words))

        for bad, reason in (("chair", "name of a class"), ("x" * 10_240, "at most 100"), ("<b>\n</b>", "control")):
            answer = name(number, bad)
            assert (answer.success, reason in answer.message) == (False, True), answer
        assert "no object 99" in name("99", "Anna's crate").message
        named = name(number, "Anna's <b>crate</b>")
        assert (named.success, named.id) == (True, number), named
        answer = peer.call("/perception/ask", Ask, Ask.Request(text="where is anna's <b>crate</b>?")).result
        said = "\n".join(answer_lines(answer))
        assert said.startswith("FOUND")
        assert "'Anna's <b>crate</b>'" in said.replace('"', "'")
        answered = answer_as_dict(answer)
        assert (answered["status"], answered["candidates"][0]["id"]) == ("FOUND", number)
        assert answered["user_name"] == "Anna's <b>crate</b>"
        assert 0.3 < answered["distance"] < 3.0
        code, said, _ = ask(domain, "the elephant", "--json")
        answered = json.loads(said)
        assert (code, answered["status"], answered["approach"]) == (1, "INVALID", None)  # nothing has names here
        assert answered["candidates"] == []

        path = tmp_path / "home.safetensors"
        wrong = CorrectObject.Request(id="Anna's <b>crate</b>", label="crate")
        corrected = peer.call("/perception/correct_object", CorrectObject, wrong)
        assert (corrected.success, corrected.id) == (True, number), corrected
        wait_until(lambda: boxes[-1].detections[0].results[0].hypothesis.class_id == "crate", 60, "the label")
        assert peer.call("/perception/save_map", SaveMap, SaveMap.Request(path=str(path))).success
        labels = json.loads(labels_path(path).read_text())
        assert [(c["id"], c["was"], c["label"]) for c in labels["corrections"]] == [(int(number), "object", "crate")]
        both = CorrectObject.Request(id=number, label="crate", not_there=True)
        assert not peer.call("/perception/correct_object", CorrectObject, both).success
        gone = CorrectObject.Request(id=number, not_there=True)
        assert peer.call("/perception/correct_object", CorrectObject, gone).success
        answer = peer.call("/perception/ask", Ask, Ask.Request(text="Anna's <b>crate</b>")).result
        assert answer.status != answer.FOUND
        assert peer.call("/perception/load_map", LoadMap, LoadMap.Request(path=str(path))).success
        answer = peer.call("/perception/ask", Ask, Ask.Request(text="Anna's <b>crate</b>")).result
        assert (answer.status, answer.candidates[0].id, answer.user_name) == (1, number, "Anna's <b>crate</b>")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_viewer_of_a_live_node(tmp_path):
    pytest.importorskip("viser", reason="viser is absent (extra web)")
    with running_node(tmp_path, viewer="web", web_port=0) as (process, peer), open_browser(tmp_path / "p") as browser:
        boxes = peer.listen("/perception/boxes", Detection3DArray)
        number = look_around(peer, boxes)[0].id
        line = next(part for part in process.output.splitlines() if "the map is shown at" in part)
        page = Page(browser, line.rsplit(" ", 1)[1])
        page.wait_for_text("frames fused", 120)
        page.wait_for(lambda: f"object {number}" in browser.page_source, "the object among those to choose", 120)
        named = peer.call("/perception/name_object", NameObject, NameObject.Request(id=number, name="Anna's crate"))
        assert named.success, named.message
        page.wait_for(lambda: f"Anna's crate {number}" in browser.page_source, "its name", 120)
        page.ask("where is Anna's crate?")
        page.wait_for_text("FOUND", 120)
        assert f"Anna's crate {number}" in page.text()


@pytest.mark.slow
def test_a_taken_port_is_said_by_name_and_the_next_one_serves(tmp_path):
    pytest.importorskip("viser", reason="viser is absent (extra web)")
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with running_node(tmp_path, viewer="web", web_port=port, autostart=False) as (process, peer):
            assert peer.change_state(1, 100.0)
            assert peer.change_state(3, 20.0)
            wait_until(lambda: "the map is shown at" in process.output)
            assert f"port {port} (parameter web_port) is taken" in process.output
            line = next(part for part in process.output.splitlines() if "the map is shown at" in part)
            url = line.rsplit(" ", 1)[1]
            assert f":{port}/" not in url
            with urllib.request.urlopen(url, timeout=60) as page:
                assert page.status == 200


def test_a_guest_whose_node_cannot_be_made_leaves_no_context_open(monkeypatch):
    contexts = []

    def fail(*_, context, **__):
        contexts.append(context)
        raise RuntimeError("no room for a node")

    monkeypatch.setattr("rclpy.create_node", fail)
    with own_domain() as domain, pytest.raises(RuntimeError, match="no room"):
        Guest("ask", domain)
    assert not contexts[0].ok()
