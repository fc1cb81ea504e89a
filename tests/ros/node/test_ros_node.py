"""The node in its own process, over real topics: the whole path, bad input, services, queries, lifecycle, time."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy")
pytest.importorskip("tf2_msgs")
pytest.importorskip("vision_msgs")
pytest.importorskip("embodied_perceptron_msgs")

import rclpy
from embodied_perceptron_msgs.action import Ground
from embodied_perceptron_msgs.msg import GroundingResult
from embodied_perceptron_msgs.srv import Ask, ClearBox, CorrectObject, LoadMap, NameObject, SaveMap
from geometry_msgs.msg import Point, Pose, PoseStamped, Quaternion
from lifecycle_msgs.msg import Transition
from nav_msgs.msg import OccupancyGrid
from nav_msgs.msg import Path as NavPath
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import DescribeParameters, GetParameters, ListParameters, SetParameters
from rclpy.action import ActionClient
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.parameter import Parameter as RclpyParameter
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import Image, PointCloud2
from std_msgs.msg import String
from std_srvs.srv import Trigger
from support.ros_live import (
    LATCHED,
    OPTICAL,
    START_S,
    T_ODOM_CAMERA,
    NodeProcess,
    Peer,
    own_domain,
    running_node,
    scene_depth,
    turned,
    wait_until,
)
from vision_msgs.msg import Detection3DArray, LabelInfo
from visualization_msgs.msg import MarkerArray

from embodied_perceptron.apps.warm_up import WarmUpStoppedError, warm_up
from embodied_perceptron.config import PerceptronConfig
from embodied_perceptron_ros.conversion.maps import cloud_to_rows, message_to_grid
from embodied_perceptron_ros.conversion.objects import box_to_message, message_to_box
from embodied_perceptron_ros.conversion.values import make_header, matrix_to_pose, stamp_to_ns
from embodied_perceptron_ros.node.perception_node import PerceptionNode

pytestmark = [pytest.mark.ros, pytest.mark.timeout(600)]
MS = 1_000_000
S = 1_000_000_000


class Stream:
    """Frames of one peer with stamps that always advance."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.stamp_ns = time.time_ns()

    def send(self, n: int = 1, **options) -> int:
        for _ in range(n):
            self.stamp_ns += 33 * MS
            self.peer.send_frame(self.stamp_ns, **options)
            time.sleep(0.02)
        return self.stamp_ns

    def fused(self) -> int:
        return int(self.peer.value("frames", "frames_fused"))

    def send_and_wait(self, n: int = 1, **options) -> None:
        """Send and wait until all are in the map."""
        self.peer.fresh()
        before, target = self.fused(), self.fused() + n
        while (left := target - before) > 0:
            self.send(min(left, 5), **options)
            before += min(left, 5)
            wait_until(lambda before=before: self.fused() >= before, 60, f"{before} fused: {self.peer.areas()}")


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    # services may write and read in the folders of all tests
    maps = tmp_path_factory.getbasetemp()
    with running_node(tmp_path_factory.mktemp("live"), max_pose_wait_s=0.3, map_folder=maps) as (process, peer):
        yield process, peer, Stream(peer)


def empty(peer: Peer) -> None:
    assert peer.call("/perception/reset", Trigger).success


# ------------------------------------------------------------------------------------------------------ whole path


def test_frames_become_every_map_message(live):
    _, peer, stream = live
    empty(peer)
    clouds = peer.listen("/perception/voxels", PointCloud2)
    boxes = peer.listen("/perception/boxes", Detection3DArray)
    markers = peer.listen("/perception/box_markers", MarkerArray)
    states = peer.listen("/perception/states", Detection3DArray)
    semantic = peer.listen("/perception/semantic_voxels", PointCloud2)
    overlays = peer.listen("/perception/overlay/image", Image)
    grids = peer.listen("/perception/occupancy_grid", OccupancyGrid, LATCHED)
    labels = peer.listen("/perception/label_info", LabelInfo, LATCHED)
    for _ in range(6):
        stream.send_and_wait(3)
        time.sleep(0.15)
    newest = stream.stamp_ns
    for topic in (clouds, boxes, semantic, grids):
        wait_until(lambda topic=topic: topic and stamp_to_ns(topic[-1].header.stamp) == newest, 60)
    for topic in (markers, overlays, labels, states):
        wait_until(lambda topic=topic: topic, 60)

    rows = cloud_to_rows(clouds[-1])
    assert clouds[-1].header.frame_id == "odom"
    assert rows["x"].max() == pytest.approx(3.0, abs=0.06)  # the wall
    assert rows["z"].min() == pytest.approx(0.0, abs=0.06)  # the floor
    face = (np.abs(rows["x"] - 1.5) < 0.06) & (rows["z"] > 0.1) & (rows["z"] < 0.55)
    assert face.sum() > 50
    assert (rows["hits"] >= 2).all()

    found = [message_to_box(d.bbox) for d in boxes[-1].detections]
    assert any(abs(b[0] - 1.5) < 0.4 and abs(b[1]) < 0.2 and b[2] < 0.7 for b in found), found
    assert all(d.results[0].hypothesis.class_id for d in boxes[-1].detections)
    assert {m.id for m in markers[-1].markers} >= {int(d.id) for d in boxes[-1].detections}

    names = {c.class_id: c.class_name for c in labels[-1].class_map}
    seen = cloud_to_rows(semantic[-1])
    assert set(np.unique(seen["label"])) <= set(names)
    grid = message_to_grid(grids[-1])
    column, row = ((np.array([1.5, 0.0]) - grid.origin_m) / grid.resolution_m).astype(int)
    assert grid.cells[row - 1 : row + 2, max(column - 1, 0) : column + 2].max() == 100
    column, row = ((np.array([2.4, 1.0]) - grid.origin_m) / grid.resolution_m).astype(int)
    assert grid.cells[row, column] == 0  # floor beside the box

    assert (overlays[-1].width, overlays[-1].height, overlays[-1].encoding) == (80, 60, "rgb8")
    assert overlays[-1].header.frame_id == OPTICAL
    frames = peer.areas()["frames"]
    assert frames["frames_received"] == frames["frames_fused"]
    assert float(peer.value("latency", "fused_ms.p50")) > 0
    assert float(peer.value("latency", "boxes_ms.p99")) > 0
    assert int(peer.value("map", "voxels")) > 500


def test_a_box_that_is_taken_away_leaves_the_map(live):
    _, peer, stream = live
    empty(peer)
    clouds = peer.listen("/perception/voxels", PointCloud2)

    def face() -> int:
        rows = cloud_to_rows(clouds[-1])
        # not the lowest row: at the image's border nothing counts as seen through
        inside = (np.abs(rows["x"] - 1.5) < 0.06) & (rows["z"] > 0.3) & (rows["z"] < 0.55)
        return int((inside & (np.abs(rows["y"]) < 0.25)).sum())

    stream.send_and_wait(5)
    wait_until(lambda: clouds and face() > 40)
    stream.send_and_wait(25, depth_m=scene_depth(None))
    wait_until(lambda: face() == 0, 60, "voxels stayed")


def test_a_late_listener_sees_a_map_that_does_not_change(live):
    _, peer, stream = live
    stream.send_and_wait(3)
    time.sleep(0.8)
    messages: list[PointCloud2] = []
    subscription = peer.node.create_subscription(PointCloud2, "/perception/voxels", messages.append, 10)
    wait_until(lambda: messages)
    peer.node.destroy_subscription(subscription)


# ------------------------------------------------------------------------------------------------------- bad input


def dropped(peer: Peer, reason: str) -> int:
    return int(peer.value("frames", f"frames_dropped.{reason}"))


@pytest.mark.parametrize(
    ("spoil", "reason", "words"),
    [
        ({"color_changes": {"encoding": "p010"}}, "bad_frame", "p010"),
        ({"depth_changes": {"encoding": "64FC1"}}, "bad_frame", "64FC1"),
        ({"info_changes": {"k": [0.0] * 9}}, "bad_frame", "not calibrated"),
        ({"info_changes": {"k": [float("nan")] * 9}}, "bad_frame", "finite"),
        ({"info_changes": {"width": 81}}, "size_mismatch", "81x60"),
        ({"transform": False, "frame_id": "nowhere"}, "no_transform", "nowhere"),
        ({"transform": False}, "pose_timeout", "newest"),
    ],
)
def test_bad_input_is_a_drop_that_diagnostics_explain(live, spoil, reason, words):
    _, peer, stream = live
    peer.fresh()
    before = dropped(peer, reason)
    stream.send(1, **spoil)
    wait_until(lambda: dropped(peer, reason) == before + 1, 60, f"{reason}: {peer.areas()}")
    assert words in peer.value("frames", f"last_drop.{reason}")
    stream.send_and_wait(1)


def test_missing_transform_is_named_as_a_problem(live):
    _, peer, stream = live
    stream.send(1, transform=False, frame_id="lost_camera")
    peer.wait_value("transforms", "message", lambda m: "lost_camera" in m)
    stream.send_and_wait(1)


def test_float_millimetres_are_named_by_the_node_itself(live):
    _, peer, stream = live
    empty(peer)
    stream.send_and_wait(2, depth_m=scene_depth() * 1000)
    peer.wait_value("frames", "message", lambda m: "millimetres were read as metres" in m)
    assert peer.value("frames", "level") == "2"
    assert int(peer.value("node", "frames_with_implausible_depth")) > 0
    stream.send_and_wait(2)
    peer.wait_value("frames", "message", lambda m: "millimetres" not in m)


def test_late_transform_is_waited_for(live):
    _, peer, stream = live
    peer.fresh()
    before = stream.fused()
    stamp_ns = stream.send(1, transform=False)
    time.sleep(0.1)
    assert stream.fused() == before
    peer.send_transform(T_ODOM_CAMERA, stamp_ns)
    wait_until(lambda: stream.fused() == before + 1)


def test_unusable_transforms_are_refused(live):
    _, peer, stream = live
    refused = int(peer.value("transforms", "refused.unused", "0"))
    assert refused == 0
    broken = T_ODOM_CAMERA.copy()
    broken[0, 3] = np.nan
    peer.send_transform(broken, stream.stamp_ns + 1, child="nan_camera")
    wait_until(lambda: any("nan_camera" in key for key in peer.areas().get("transforms", {})))
    stream.send_and_wait(1)


def test_stamps_that_do_not_advance(live):
    _, peer, stream = live
    stream.send_and_wait(1)
    before = dropped(peer, "duplicate"), dropped(peer, "out_of_order")
    peer.send_frame(stream.stamp_ns)
    peer.send_frame(stream.stamp_ns - 10 * MS)
    wait_until(lambda: dropped(peer, "duplicate") > before[0] and dropped(peer, "out_of_order") > before[1])
    stream.send_and_wait(1)


# -------------------------------------------------------------------------------------------------------- services


def new_map(peer: Peer, stream: Stream, frames: int) -> int:
    """A map of so many frames; its voxels."""
    empty(peer)
    stream.send_and_wait(frames)
    peer.wait_value("map", "frames_fused", lambda n: n == str(frames))  # statistics come a little later than counts
    return int(peer.value("map", "voxels"))


def test_save_load_reset_clear_box(live, tmp_path):
    _, peer, stream = live
    voxels = new_map(peer, stream, 4)
    assert voxels > 500
    path = tmp_path / "map.safetensors"
    saved = peer.call("/perception/save_map", SaveMap, SaveMap.Request(path=str(path)))
    assert saved.success, saved.message
    assert path.stat().st_size > 1000

    request = ClearBox.Request()
    request.box = box_to_message(np.array([3.0, 0.0, 1.0, 0.5, 6.0, 3.0, 0, 0, 0]))  # the wall
    cleared = peer.call("/perception/clear_box", ClearBox, request)
    assert cleared.success, cleared.message
    assert cleared.voxels_removed > 100
    peer.wait_value("map", "voxels", lambda v: int(v) == voxels - cleared.voxels_removed)

    empty(peer)
    peer.wait_value("map", "voxels", lambda v: int(v) == 0)
    loaded = peer.call("/perception/load_map", LoadMap, LoadMap.Request(path=str(path)))
    assert loaded.success, loaded.message
    peer.wait_value("map", "voxels", lambda v: int(v) == voxels)
    elsewhere = Pose(position=Point(x=1.5), orientation=Quaternion(z=0.70710678, w=0.70710678))
    moved = peer.call("/perception/load_map", LoadMap, LoadMap.Request(path=str(path), pose=elsewhere))
    assert moved.success, moved.message
    elsewhere = Pose(orientation=Quaternion(x=0.70710678, w=0.70710678))
    refused = peer.call("/perception/load_map", LoadMap, LoadMap.Request(path=str(path), pose=elsewhere))
    assert not refused.success
    assert "level" in refused.message
    stream.send_and_wait(1)


def test_services_fail_in_words(live, tmp_path):
    """One plain sentence for who called, as it stands in ``ros2 service call``, and a warning in the log."""
    process, peer, stream = live
    voxels = new_map(peer, stream, 2)
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(b"not a map")
    for name, kind, request, words in (
        ("save_map", SaveMap, SaveMap.Request(path=""), "path"),
        ("save_map", SaveMap, SaveMap.Request(path=str(tmp_path / "no" / "folder.map")), "no"),
        ("load_map", LoadMap, LoadMap.Request(path=str(tmp_path / "absent.map")), "absent"),
        ("load_map", LoadMap, LoadMap.Request(path=str(damaged)), "damaged"),
        ("save_map", SaveMap, SaveMap.Request(path="/tmp/outside.map"), "map_folder"),
        ("load_map", LoadMap, LoadMap.Request(path="../outside.map"), "map_folder"),
        ("clear_box", ClearBox, ClearBox.Request(), "box"),
        ("clear_box", ClearBox, ClearBox.Request(frame_id="nowhere"), "nowhere"),
        ("save_map", SaveMap, SaveMap.Request(path="m" * 500), "File name too long"),
        ("load_map", LoadMap, LoadMap.Request(path="m" * 500), "File name too long"),
        ("name_object", NameObject, NameObject.Request(id="99", name="Anna's desk"), "there is no object 99"),
        ("name_object", NameObject, NameObject.Request(id="9" * 5000, name="Anna's desk"), "there is no object 999"),
        ("name_object", NameObject, NameObject.Request(id="", name="Anna's desk"), "the id is empty"),
        ("name_object", NameObject, NameObject.Request(id="99", name="the sofas"), "the name of a class"),
        (
            "name_object",
            NameObject,
            NameObject.Request(id="the desk", name="Anna's desk"),
            "describes no single object",
        ),
        ("name_object", NameObject, NameObject.Request(id="x" * 10_240, name="Anna's desk"), "10240 characters"),
        ("correct_object", CorrectObject, CorrectObject.Request(id="99", label="desk"), "there is no object 99"),
        ("correct_object", CorrectObject, CorrectObject.Request(id="99", not_there=True), "there is no object 99"),
        ("correct_object", CorrectObject, CorrectObject.Request(id=" ", label="desk"), "the id is empty"),
        ("correct_object", CorrectObject, CorrectObject.Request(id="99", label="x" * 10_240), "10240 characters"),
    ):
        response = peer.call(f"/perception/{name}", kind, request)
        assert not response.success, response
        assert words in response.message
        assert "Error: " not in response.message  # the name of an exception
        assert response.message.isprintable()
        assert len(response.message) <= 500
        wait_until(lambda said=f"{name} refused: {response.message}": said in process.output, 60, process.output)
    asked = peer.call("/perception/ask", Ask, Ask.Request(text="")).result
    assert (asked.status, asked.reason) == (GroundingResult.INVALID, "the query is empty")
    wait_until(lambda: "ask refused: the query is empty" in process.output)
    peer.fresh()
    assert int(peer.value("map", "voxels")) == voxels
    stream.send_and_wait(1)


# --------------------------------------------------------------------------------------------------------- queries


def test_queries_are_answered_whatever_they_are(live):
    _, peer, stream = live
    stream.send_and_wait(1)
    answers = peer.listen("/perception/grounding", GroundingResult)
    answers.clear()
    queries = (
        ("the chair", "no language model"),
        (json.dumps({"id": "q7", "text": "the chair", "top_k": 2}), "no language model"),
        ('{"id": "q8", "text": ', "JSON"),
        (json.dumps({"id": "q9", "text": "chair", "frame_id": "atlantis"}), "atlantis"),
        ("", "empty"),
        ("bell \u0007", "control character"),
        ("x" * 100_000, "characters"),
    )
    for n, (text, words) in enumerate(queries):
        peer.publish("/grounding_query", String(data=text))
        wait_until(lambda n=n: len(answers) == n + 1, 20, text[:50])
        assert answers[-1].status == GroundingResult.INVALID
        assert words in answers[-1].reason
        assert answers[-1].id
        assert answers[-1].latency_ms >= 0
    assert [a.id for a in answers if a.id.startswith("q7")] == ["q7"]
    assert answers[3].id == "q9"


def test_a_burst_of_queries_is_answered_one_by_one(live):
    _, peer, _ = live
    answers = peer.listen("/perception/grounding", GroundingResult)
    answers.clear()
    for i in range(1000):
        peer.publish("/grounding_query", String(data=json.dumps({"id": f"burst-{i}", "text": "chair"})))
    wait_until(lambda: len([a for a in answers if a.id.startswith("burst-")]) >= 1000, 60, "1000 answers")
    time.sleep(0.3)
    ids = [a.id for a in answers if a.id.startswith("burst-")]
    assert len(ids) == len(set(ids)) == 1000


def test_the_action_answers_too(live):
    _, peer, _ = live
    client = ActionClient(peer.node, Ground, "/perception/ground")
    assert client.wait_for_server(timeout_sec=60)
    stages: list[str] = []
    goal = client.send_goal_async(Ground.Goal(text="the chair"), lambda f: stages.append(f.feedback.stage))
    wait_until(goal.done)
    assert goal.result().accepted
    result = goal.result().get_result_async()
    wait_until(result.done)
    assert result.result().result.result.status == GroundingResult.INVALID
    assert "no language model" in result.result().result.result.reason
    wait_until(lambda: "answering" in stages)
    client.destroy()


def test_the_service_answers_too(live):
    _, peer, stream = live
    stream.send_and_wait(1)
    too_old = Ask.Request(text="the chair")
    too_old.stamp.sec = 1
    for request, words in (
        (Ask.Request(text="the chair"), "no language model"),
        (Ask.Request(text="x" * 10_000_000), "10000000 characters"),
        (Ask.Request(text="the chair", frame_id="atlantis"), "atlantis"),
        (too_old, "viewpoint"),  # nobody knows where the robot was then
    ):
        result = peer.call("/perception/ask", Ask, request).result
        assert result.status == GroundingResult.INVALID
        assert words in result.reason
        assert result.id


# ------------------------------------------------------------------------------------------------------ parameters


def set_parameter(peer: Peer, name: str, value: float | str) -> tuple[bool, str]:
    number = isinstance(value, float)
    kind = ParameterType.PARAMETER_DOUBLE if number else ParameterType.PARAMETER_STRING
    content = {"double_value": value} if number else {"string_value": value}
    parameter = Parameter(name=name, value=ParameterValue(type=kind, **content))
    request = SetParameters.Request(parameters=[parameter])
    result = peer.call("/perception/set_parameters", SetParameters, request).results[0]
    return result.successful, result.reason


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("perception_hz", 1000.0, "range"),
        ("perception_hz", "fast", "type"),
        ("on_time_jump", "explode", "keep, reset"),
        ("output_frame", "two words", "frame"),
        ("fusion_frame", "map", "configured"),
        ("voxel_size_m", 0.1, "configured"),
        ("camera.color_topic", "/elsewhere", "configured"),
    ],
)
def test_bad_parameter_changes_are_refused_with_a_reason(live, name, value, words):
    success, reason = set_parameter(live[1], name, value)
    assert not success
    assert words in reason


def test_values_in_use_can_be_read(live):
    _, peer, _ = live
    request = GetParameters.Request(names=["max_range_m", "voxel_size_m", "output_frame", "camera.color_topic"])
    values = peer.call("/perception/get_parameters", GetParameters, request).values
    assert [v.double_value for v in values[:2]] == [5.0, 0.05]
    assert [v.string_value for v in values[2:]] == ["odom", "color/image_raw"]


def test_a_dump_of_all_values_can_be_restored_while_running(live):
    _, peer, _ = live
    names = peer.call("/perception/list_parameters", ListParameters).result.names
    values = peer.call("/perception/get_parameters", GetParameters, GetParameters.Request(names=names)).values
    read_only = ("qos_", "start_type_description_service")  # by rclpy
    parameters = [Parameter(name=n, value=v) for n, v in zip(names, values, strict=True) if not n.startswith(read_only)]
    request = SetParameters.Request(parameters=parameters)
    results = peer.call("/perception/set_parameters", SetParameters, request).results
    assert [r.reason for r in results if not r.successful] == []


def test_rates_change_while_running(live):
    assert set_parameter(live[1], "perception_hz", 5.0) == (True, "")
    assert set_parameter(live[1], "perception_hz", 10.0) == (True, "")


def test_parameters_are_described(live):
    request = DescribeParameters.Request(names=["perception_hz", "fusion_frame"])
    rate, frame = live[1].call("/perception/describe_parameters", DescribeParameters, request).descriptors
    assert rate.floating_point_range[0].to_value == 30.0
    assert rate.description
    assert frame.description


# ------------------------------------------------------------------------------- nodes with a start of their own


def test_lifecycle(tmp_path):
    with running_node(tmp_path, autostart=False, map_folder=tmp_path) as (_, peer):
        assert peer.state() == "unconfigured"
        assert not peer.change_state(Transition.TRANSITION_ACTIVATE)
        assert peer.change_state(Transition.TRANSITION_CONFIGURE, START_S)  # compiles
        assert peer.state() == "inactive"
        voxels = peer.listen("/perception/voxels", PointCloud2)
        assert peer.change_state(Transition.TRANSITION_ACTIVATE)
        stream = Stream(peer)
        stream.send_and_wait(3)
        wait_until(lambda: voxels)

        assert peer.change_state(Transition.TRANSITION_DEACTIVATE)
        peer.wait_value("node", "state", lambda s: s == "inactive")
        client = ActionClient(peer.node, Ground, "/perception/ground")
        assert client.wait_for_server(timeout_sec=60)
        goal = client.send_goal_async(Ground.Goal(text="the chair"))
        wait_until(goal.done)
        assert not goal.result().accepted  # an inactive node takes no queries
        client.destroy()
        assert peer.node.count_subscribers("/color/image_raw") == 0
        peer.wait_value("map", "voxels", lambda v: int(v) > 0)
        assert peer.call("/perception/save_map", SaveMap, SaveMap.Request(path=str(tmp_path / "m"))).success

        assert peer.change_state(Transition.TRANSITION_ACTIVATE)
        wait_until(lambda: peer.node.count_subscribers("/color/image_raw") == 1)
        stream.send_and_wait(1)
        peer.wait_value("map", "frames_fused", lambda n: int(n) == 4)  # deactivating kept the map

        assert peer.change_state(Transition.TRANSITION_DEACTIVATE)
        assert peer.change_state(Transition.TRANSITION_CLEANUP)
        peer.wait_value("node", "state", lambda s: s == "unconfigured")
        assert "map" not in peer.areas()
        assert peer.change_state(Transition.TRANSITION_CONFIGURE)
        peer.wait_value("map", "voxels", lambda v: v == "0")
        assert peer.change_state(Transition.TRANSITION_INACTIVE_SHUTDOWN)
        assert peer.state() == "finalized"


@pytest.mark.slow
def test_simulation_time_that_jumps_back(tmp_path):
    with running_node(tmp_path, use_sim_time=True) as (_, peer):
        clock = [100 * S]

        def tick(step_ns: int = 33 * MS) -> int:
            clock[0] += step_ns
            seconds, nanoseconds = divmod(clock[0], S)
            message = Clock()
            message.clock.sec, message.clock.nanosec = seconds, nanoseconds
            peer.publish("/clock", message)
            return clock[0]

        def lap() -> None:
            before = int(peer.value("frames", "frames_fused"))
            for _ in range(5):
                peer.send_frame(tick())
                time.sleep(0.03)
            wait_until(lambda: int(peer.value("frames", "frames_fused")) >= before + 4, 60, str(peer.areas()))

        lap()
        frames = peer.areas()["frames"]
        assert "published.voxels_hz" not in frames  # nobody listens: nothing is built
        assert "published.boxes_hz" not in frames
        peer.wait_value("frames", "published.occupancy_grid_hz", lambda v: v != "0")  # latched: for who comes later
        voxels = int(peer.wait_value("map", "voxels", lambda v: int(v) > 500))
        peer.wait_value("map", "frames_fused", lambda n: n == "5")
        clock[0] = 10 * S
        lap()  # by default the map stays
        peer.wait_value("node", "time_jumps", lambda n: int(n) >= 1)
        peer.wait_value("map", "frames_fused", lambda n: int(n) >= 9)
        # and with the parameter set to reset, the map begins anew
        assert set_parameter(peer, "on_time_jump", "reset")[0]
        clock[0] = 1 * S
        lap()
        peer.wait_value("map", "frames_fused", lambda n: n in ("4", "5"))
        peer.wait_value("map", "voxels", lambda v: int(v) == pytest.approx(voxels, rel=0.05))


@pytest.mark.slow
def test_output_frame_follows_its_transform_and_two_cameras(tmp_path):
    parameters = {"cameras": "[front, rear]", "output_frame": "map"}
    for camera in ("front", "rear"):
        for topic in ("color/image_raw", "depth/image_raw", "color/camera_info"):
            parameters[f"qos_overrides./{camera}/{topic}.subscription.reliability"] = "reliable"
    with running_node(tmp_path, **parameters) as (_, peer):
        clouds = peer.listen("/perception/voxels", PointCloud2)
        stream = Stream(peer)
        info = wait_until(lambda: peer.node.get_subscriptions_info_by_topic("/front/color/image_raw"))
        assert [str(i.qos_profile.reliability).rsplit(".")[-1] for i in info] in (["RELIABLE"], ["1"])

        # without map -> odom nothing can be published, and diagnostics say so
        def both(T_map_odom: np.ndarray | None) -> None:
            before = stream.fused()
            for _ in range(3):
                stream.stamp_ns += 33 * MS
                if T_map_odom is not None:
                    peer.send_transform(T_map_odom, stream.stamp_ns, "map", "odom")
                peer.send_frame(stream.stamp_ns, prefix="front/", frame_id="front_optical")
                peer.send_frame(stream.stamp_ns, prefix="rear/", frame_id="rear_optical", T=turned(np.pi))
                time.sleep(0.05)
            wait_until(lambda: stream.fused() == before + 6, 60, str(peer.areas()))

        both(None)
        peer.wait_value("transforms", "message", lambda m: "map" in m)
        assert not clouds
        shift = np.eye(4)
        shift[:3, 3] = (10.0, 0.0, 1.0)
        both(shift)
        wait_until(lambda: clouds)
        rows = cloud_to_rows(clouds[-1])
        assert clouds[-1].header.frame_id == "map"
        assert rows["x"].max() == pytest.approx(13.0, abs=0.06)  # front wall
        assert rows["x"].min() == pytest.approx(7.0, abs=0.06)  # rear wall
        assert rows["z"].min() == pytest.approx(1.0, abs=0.06)
        shift[0, 3] = 20.0  # the localisation jumps
        both(shift)
        wait_until(lambda: cloud_to_rows(clouds[-1])["x"].max() == pytest.approx(23.0, abs=0.06))


@pytest.mark.slow
def test_corrected_keyframes_move_the_map(tmp_path):
    pytest.importorskip("rerun")
    parameters = {"keyframe_path_topic": "/slam/path", "viewer": "rerun", "viewer_file": str(tmp_path / "live.rrd")}
    parameters["voxel_size_m"] = 0.1  # so large that one keyframe alone puts enough points into a voxel
    with running_node(tmp_path, **parameters) as (_, peer):
        clouds = peer.listen("/perception/voxels", PointCloud2)
        stream = Stream(peer)
        stream.send_and_wait(4)
        first_ns = stream.stamp_ns - 3 * 33 * MS  # the first frame is a keyframe, and the robot stood still
        wait_until(lambda: clouds and cloud_to_rows(clouds[-1])["x"].max() == pytest.approx(3.0, abs=0.06), 60, "wall")
        moved = turned(0.0, 2.0)
        corrected = path_of({first_ns: moved, first_ns + 1: moved})
        peer.publish("/slam/path", corrected)
        wait_until(lambda: cloud_to_rows(clouds[-1])["x"].max() == pytest.approx(5.0, abs=0.06), 60, "moved wall")
        peer.wait_value("node", "keyframes_corrected", lambda n: n == "1")
        peer.wait_value("node", "corrections_of_unknown_keyframes", lambda n: n == "1")
        corrected.header.frame_id = "map"
        peer.publish("/slam/path", corrected)
        peer.wait_value("map", "message", lambda m: "must be in 'odom'" in m)
        peer.publish("/grounding_query", String(data="the chair"))
    assert (tmp_path / "live.rrd").stat().st_size > 10_000


def test_with_a_network(tmp_path):
    """Random weights: what it finds means nothing, but everything has to run, be published and be answered."""
    weights = random_weights(tmp_path)
    parameters = {"weights": str(weights), "window_m": 3.2, "perception_hz": 5.0, "voxel_size_m": 0.04}
    # SIGTERM ends it here, SIGINT the nodes of other tests
    with running_node(tmp_path, ending=signal.SIGTERM, **parameters) as (process, peer):
        cells = peer.listen("/perception/semantic_voxels", PointCloud2)
        labels = peer.listen("/perception/label_info", LabelInfo, LATCHED)
        boxes = peer.listen("/perception/boxes", Detection3DArray)
        answers = peer.listen("/perception/grounding", GroundingResult)
        peer.publish(
            "/grounding_query", String(data=json.dumps({"id": "early", "text": "the chair", "standing": True}))
        )
        wait_until(lambda: answers, 60, "an answer before the first frame")
        assert (answers[0].id, answers[0].status, answers[0].standing) == ("early", GroundingResult.NOT_FOUND, True)
        stream = Stream(peer)
        stream.send_and_wait(5, T=turned(0.0, 0.0))
        stream.stamp_ns += S  # the same picture from elsewhere right after it would be stale depth, which is dropped
        stream.send_and_wait(3, T=turned(0.6, 0.5))
        wait_until(lambda: boxes and cells and cells[-1].width > 0, 60, "labelled cells")
        names = {c.class_id: c.class_name for c in labels[-1].class_map}
        assert list(names.values()) == ["floor", "wall", "chair"]
        assert set(cloud_to_rows(cells[-1])["label"].tolist()) <= set(names)
        for text in ("the chair", "the unicorn"):
            peer.publish("/grounding_query", String(data=text))
        asked = lambda: [a for a in answers if a.id != "early"]  # noqa: E731
        wait_until(lambda: len(asked()) == 2, 60, "answers")
        assert {a.status for a in asked()} <= {1, 2, 3, 4}
        assert asked()[1].status in (GroundingResult.NOT_FOUND, GroundingResult.INVALID)
        assert peer.change_state(Transition.TRANSITION_DEACTIVATE)  # gives the network's memory back
        assert peer.change_state(Transition.TRANSITION_ACTIVATE)
        before = len(cells)
        stream.stamp_ns += S
        stream.send_and_wait(2, T=turned(-0.6, 0.5))
        wait_until(lambda: len(cells) > before, 60, "cells after a rest")
        assert peer.areas()["node"].get("internal_errors", "0") == "0"
    assert "Traceback" not in process.output


def random_weights(folder: Path) -> Path:
    from support.small_networks import small_config, small_network

    from embodied_perceptron.inference.loading import save_network

    path = folder / "random.safetensors"
    extra = {"occupancy_classes": ["floor", "wall", "chair"], "calibration": {"detection": {"min_score": 0.3}}}
    save_network(path, small_network(small_config("all", "rgbd"), seed=1), ("chair", "table", "bed", "couch"), extra)
    return path


def path_of(poses: dict[int, np.ndarray], frame_id: str = "odom") -> NavPath:
    stamped = [PoseStamped(header=make_header(t, frame_id), pose=matrix_to_pose(T)) for t, T in poses.items()]
    return NavPath(header=make_header(0, frame_id), poses=stamped)


@pytest.mark.parametrize(
    ("parameter", "words"),
    [
        ("perception_hz:=1000.0", "perception_hz"),  # refused when it is declared
        ("voxel_sise_m:=0.03", "cannot start: unknown parameter 'voxel_sise_m': did you mean 'voxel_size_m'?"),
        ("config_file:=/nowhere/config.yaml", "/nowhere/config.yaml"),  # refused when the node is configured
        ("weights:=/nowhere/mine.safetensors", "/nowhere/mine.safetensors"),
    ],
)
def test_a_bad_start_ends_with_the_reason(tmp_path, parameter, words):
    with own_domain() as domain:
        process = NodeProcess(domain, tmp_path / "log", "-p", parameter)
        try:
            assert process.process.wait(100) == 1
        finally:
            process.stop()
        assert words in process.output


def test_a_configuration_gives_up_when_the_process_shall_end():
    """Compiling may take minutes on a busy machine: a signal does not wait for the end of it."""
    stop = threading.Event()
    with own_domain() as domain:
        context = rclpy.Context()
        rclpy.init(context=context, domain_id=domain)
        node = PerceptionNode(stop=stop, context=context, parameter_overrides=[RclpyParameter("weights", value="none")])
        try:
            stop.set()
            assert node.trigger_configure() == TransitionCallbackReturn.FAILURE
            assert node.trigger_shutdown() == TransitionCallbackReturn.SUCCESS  # from unconfigured: nothing was built
        finally:
            node.close()
            node.destroy_node()
            rclpy.try_shutdown(context=context)
    asked = iter([False, False, True])
    with pytest.raises(WarmUpStoppedError):
        warm_up(PerceptronConfig(), stopped=lambda: next(asked))


@pytest.mark.slow
def test_transforms_that_come_late_lose_nothing_over_topics(tmp_path):
    """30 Hz for four seconds, each transform 0.45 s after its images: what is still waited for at the end follows."""
    with running_node(tmp_path, max_pose_wait_s=0.9) as (_, peer):  # the default and the slack of a busy machine
        stream = Stream(peer)
        stream.send_and_wait(2)
        before, sent = stream.fused(), 120
        start_s, base_ns = time.monotonic(), stream.stamp_ns
        waiting: list[tuple[float, int]] = []
        for k in range(sent):
            at_s = start_s + k / 30
            while (left_s := at_s - time.monotonic()) > 0:
                if waiting and waiting[0][0] <= time.monotonic():
                    peer.send_transform(T_ODOM_CAMERA, waiting.pop(0)[1])
                time.sleep(min(left_s, 0.002))
            stamp_ns = base_ns + round((k + 1) * S / 30)
            peer.send_frame(stamp_ns, transform=False)
            waiting.append((time.monotonic() + 0.45, stamp_ns))
        for due_s, stamp_ns in waiting:
            time.sleep(max(0.0, due_s - time.monotonic()))
            peer.send_transform(T_ODOM_CAMERA, stamp_ns)
        wait_until(lambda: stream.fused() >= before + 0.95 * sent, 60, f"{peer.areas()}")
