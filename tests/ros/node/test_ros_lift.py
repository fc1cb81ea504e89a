"""2-D detections of another program over real topics: from a stand-in that publishes what was recorded of a room."""

from __future__ import annotations

import array
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy")
pytest.importorskip("tf2_msgs")
pytest.importorskip("vision_msgs")
pytest.importorskip("embodied_perceptron_msgs")
pytest.importorskip("ament_index_python")

from sensor_msgs.msg import CompressedImage
from std_srvs.srv import Trigger
from support.launch_stand_in import only, start
from support.lift_world import CUP_BOX, THINGS, K, boxes_of, tour
from support.ros_detections import detections_2d
from support.ros_live import OPTICAL, Peer, running_node, wait_until
from vision_msgs.msg import Detection3DArray

from embodied_perceptron.detection2d.persons import PersonStatistics
from embodied_perceptron.detection2d.pipeline import LiftStatistics
from embodied_perceptron.language.description import read_mentions
from embodied_perceptron.recordings.image_codec import encode_color_file, encode_depth_file
from embodied_perceptron_ros.conversion.objects import message_to_box
from embodied_perceptron_ros.conversion.values import make_camera_info, make_header
from embodied_perceptron_ros.node.detections import lift_diagnostics

pytestmark = [pytest.mark.ros, pytest.mark.timeout(600)]
LAUNCH = Path(__file__).resolve().parents[3] / "launch/perceive.launch.py"
TOPIC = "/yolo/detections"


class Recorded:
    """A tour of the room with what a detector said of each picture; plays pictures and detections."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        frames, shown = tour(8)
        self.frames = [(p, boxes_of(shown[p.frame.stamp_ns], list(THINGS))) for p in frames]
        self.stamp_ns = time.time_ns()

    def play(self, detections: bool = True) -> int:
        """The whole tour; the stamp of the last picture."""
        self.peer.fresh()
        fused = int(self.peer.value("frames", "frames_fused"))
        for posed, boxes in self.frames:
            self.stamp_ns += 200_000_000
            self.peer.send_transform(posed.T_world_camera, self.stamp_ns)
            picture = posed.frame
            depth_mm = (picture.depth_m * 1000).round().astype(np.uint16)
            for topic, message in (
                ("color/camera_info", make_camera_info(K, self.stamp_ns, OPTICAL)),
                ("color/image_raw/compressed", self._packed(encode_color_file(picture.color, ".jpg"), "jpeg")),
                ("depth/image_raw/compressed", self._packed(encode_depth_file(depth_mm), "16UC1; png")),
            ):
                self.peer.publish(f"/{topic}", message)
            if detections:
                self.say([(name, [e + 0.5 for e in edges], 0.9) for name, edges in boxes])
            fused += 1
            self.peer.wait_value("frames", "frames_fused", lambda value, least=fused: int(value) >= least)
        return self.stamp_ns

    def _packed(self, data: bytes, kind: str) -> CompressedImage:
        """Small, so that a busy machine's transport loses none of it."""
        return CompressedImage(header=make_header(self.stamp_ns, OPTICAL), format=kind, data=array.array("B", data))

    def say(self, boxes, shift_ns: int = 0, frame_id: str = OPTICAL) -> None:
        self.peer.publish(TOPIC, detections_2d(self.stamp_ns + shift_ns, frame_id, boxes))


def launched(prefix: Path, **arguments: str) -> dict[str, str]:
    """The parameters that ``perceive.launch.py`` gives the node; ``prefix`` becomes one that the package lies in."""
    marker = prefix / "share/ament_index/resource_index/packages/embodied_perceptron"
    marker.parent.mkdir(parents=True)
    marker.touch()
    (prefix / "share/embodied_perceptron").symlink_to(LAUNCH.parents[1] / "ros_ws/src/embodied_perceptron_ros")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("AMENT_PREFIX_PATH", str(prefix))
        return only(start(LAUNCH, arguments, monkeypatch), "Node", executable="perception")["parameters"][-1]


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    folder = tmp_path_factory.mktemp("detections")
    config = folder / "config.yaml"
    config.write_text(
        "volume: {voxel_size_m: 0.02, min_hits: 1}\nkeyframes: {min_interval_s: 0.0, max_count: 40}\n"
        "lift: {stamp_tolerance_s: 0.004}\n"
    )
    parameters = {
        "config_file": str(config),
        **launched(folder / "prefix", detections_topic=TOPIC),
        "camera.color_transport": "compressed",
        "camera.depth_transport": "compressed",
        "voxel_size_m": 0.02,
        "perception_hz": 3.0,
    }
    # on a busy machine nothing shall be lost on the way
    for topic in (
        "/color/image_raw/compressed",
        "/depth/image_raw/compressed",
        TOPIC,
    ):  # on a busy machine nothing shall be lost on the way
        parameters[f"qos_overrides.{topic}.subscription.reliability"] = "reliable"
    with running_node(folder, **parameters) as (_, peer):
        yield peer, Recorded(peer)


def accounted(peer: Peer) -> bool:
    return int(peer.value("lift", "found")) == sum(int(peer.value("lift", key)) for key in ("lifted", "dropped"))


def named(messages: list[Detection3DArray]) -> dict[str, np.ndarray]:
    found = {d.results[0].hypothesis.class_id: message_to_box(d.bbox) for d in messages[-1].detections}
    return found if messages else {}


def test_detections_end_as_named_boxes_in_the_map(live):
    peer, recorded = live
    boxes = peer.listen("/perception/boxes", Detection3DArray)
    recorded.play()
    wait_until(lambda: peer.value("lift", "pictures") == "8", 60, f"{peer.areas()}")
    recorded.play()
    wait_until(lambda: boxes and "cup" in named(boxes), 60, f"{peer.areas()}")
    np.testing.assert_allclose(named(boxes)["cup"][:3], CUP_BOX[:3], atol=0.03)
    assert "table" in named(boxes)
    peer.wait_value("lift", "pictures", lambda value: value == "16")
    lift = peer.areas()["lift"]
    assert int(lift["found"]) == 2 * sum(len(b) for _, b in recorded.frames)
    wait_until(lambda: accounted(peer), 60, "every detection is lifted or dropped")
    assert lift["state"] == "none"  # the detector is not the node's


def test_the_map_is_described_by_a_service(live):
    peer, _ = live
    boxes = peer.listen("/perception/boxes", Detection3DArray)
    wait_until(lambda: boxes and "cup" in named(boxes), 60)
    answer = peer.call("/perception/describe", Trigger)
    assert answer.success
    ids = {m.phrase: m.ids for m in read_mentions(answer.message)}
    assert {"table", "cup"} <= set(ids), answer.message
    known = {int(d.id): d.results[0].hypothesis.class_id for d in boxes[-1].detections}
    assert all(known.get(number) == "cup" for number in ids["cup"]), (answer.message, known)
    assert "On the table" in answer.message


CUP = ("cup", [100.0, 100.0, 140.0, 140.0], 0.9)


@pytest.mark.parametrize(
    ("boxes", "shift_ns", "frame_id", "reason", "count"),
    [
        ([("cup", [0.0, 0.0, np.nan, 9.0], 0.9), ("cup", [0, 0, 50, 50], np.nan), CUP], 0, OPTICAL, "not_finite", 2),
        ([("cup", [400.0, 0.0, 500.0, 90.0], 0.9)] * 3, 0, OPTICAL, "outside_of_image", 3),
        ([("cup", [0.0, 0.0, 50.0, 50.0], 1.5)], 0, OPTICAL, "score_out_of_range", 1),
        ([("", [0.0, 0.0, 50.0, 50.0], 0.9)], 0, OPTICAL, "no_label", 1),
        ([CUP] * 150, 0, OPTICAL, "too_many", 50),
        ([CUP] * 10_000, 0, OPTICAL, "too_many_in_message", 10_000),
        ([CUP, CUP], 0, "another_camera", "unknown_camera", 2),
        ([CUP], -100_000_000, OPTICAL, "no_keyframe", 1),  # between two pictures
        ([CUP], -3_600_000_000_000, OPTICAL, "too_late", 1),
    ],
)
def test_bad_detections_are_counted_by_reason(live, boxes, shift_ns, frame_id, reason, count):
    peer, recorded = live
    if int(peer.value("frames", "frames_fused")) == 0:
        recorded.play(detections=False)
    peer.fresh()
    before = int(peer.value("lift", f"dropped.{reason}"))
    recorded.say(boxes, shift_ns, frame_id)
    if reason in ("no_keyframe", "too_late", "not_finite"):
        recorded.play(detections=False)  # a perception looks for their keyframe
    peer.wait_value("lift", f"dropped.{reason}", lambda value: int(value) == before + count, 60)


def test_frames_go_on_while_ten_thousand_detections_come(live):
    peer, recorded = live
    fused = int(peer.value("frames", "frames_fused"))
    for _ in range(3):
        recorded.say([CUP] * 10_000)
    recorded.play(detections=False)
    peer.wait_value("frames", "frames_fused", lambda value: int(value) >= fused + 8, 60)


def test_garbage_on_the_topic_is_survived(live):
    peer, recorded = live
    publisher = peer.publisher(TOPIC, type(detections_2d(0, "", [])))
    before = int(peer.value("lift", "dropped.unreadable"))
    publisher.publish(b"\0\1\0\0" + b"\xff" * 40)
    peer.wait_value("lift", "dropped.unreadable", lambda value: int(value) == before + 1)
    recorded.play()
    peer.fresh()
    assert peer.value("node", "internal_errors", "0") == "0"


def test_people_that_were_kept_out_are_in_the_diagnostics():
    without = lift_diagnostics(LiftStatistics(), 0.0)
    assert not any(key.startswith("persons") for key in without)
    people = PersonStatistics(pictures=4, looking_ms=50.0, persons=3, frames=9, pixels=1000, failures=1, last_error="x")
    values = lift_diagnostics(LiftStatistics(persons=people), 0.0)
    assert values["persons.found"] == 3
    assert values["persons.frames"] == 9
    assert values["persons.looking_ms"] == 12.5
    assert values["persons.last_error"] == "x"
