"""Over real topics: sentences read by a language model, and by the embedded reader where the model does not answer."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("rclpy", reason="ROS 2 is absent")

from embodied_perceptron_msgs.msg import GroundingResult
from embodied_perceptron_msgs.srv import CorrectObject
from std_msgs.msg import String
from support.model_server import model_server, says
from support.ros_live import running_node, scene_depth, turned, wait_until
from vision_msgs.msg import Detection3DArray

pytestmark = pytest.mark.ros
MS = 1_000_000
CRATE = {"target": {"noun": "crate", "span": "caisse"}}


def an_object(peer) -> str:
    """Id of the object that the cameras found."""
    boxes = peer.listen("/perception/boxes", Detection3DArray)
    stamps = iter(range(1_000 * MS, 1_000_000 * MS, 100 * MS))

    def found():
        peer.send_frame(next(stamps), depth_m=scene_depth(), T=turned(0.02))
        return boxes and boxes[-1].detections

    return wait_until(found, 60, "an object")[0].id


def test_a_node_asks_the_model_and_says_why_it_did_without(tmp_path):
    with model_server(says(CRATE)) as server:
        chosen = {"sentence_reader": "endpoint", "sentence_endpoint": server.url, "sentence_model": "test"}
        with running_node(tmp_path, **chosen) as (_, peer):
            number = an_object(peer)
            crate = CorrectObject.Request(id=number, label="crate")
            assert peer.call("/perception/correct_object", CorrectObject, crate).success
            answers = peer.listen("/perception/grounding", GroundingResult)

            def answer(text: str) -> GroundingResult:
                count = len(answers)
                peer.publish("/grounding_query", String(data=text))
                wait_until(lambda: len(answers) > count, 20, text)
                assert [c.id for c in answers[-1].candidates] == [number], answers[-1]
                return answers[-1]

            read = answer("la caisse")
            assert (read.status, "embedded reader" in read.reason) == (GroundingResult.FOUND, False)
            asked = json.loads(server.asked[-1]["messages"][-1]["content"])
            assert asked == {"sentence": "la caisse", "labels": ["crate"]}
            server.reply = lambda *_: server.released.wait(60)  # the model hangs
            late = answer("the crate")
            assert "the endpoint did not answer within 3 s: the embedded reader read the sentence" in late.reason
            assert late.latency_ms > 3_000
            count = len(server.asked)
            at_once = answer("a crate")
            assert "the endpoint failed a moment ago and is not asked: the embedded reader" in at_once.reason
            assert len(server.asked) == count
