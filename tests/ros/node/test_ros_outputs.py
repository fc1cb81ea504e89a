"""Where results go: the choice of the transform, how often, and of which frame. No node is started."""

from __future__ import annotations

import dataclasses
import logging
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("rclpy")
pytest.importorskip("vision_msgs")
pytest.importorskip("tf2_msgs")
pytest.importorskip("map_msgs")
pytest.importorskip("embodied_perceptron_msgs")

from nav_msgs.msg import OccupancyGrid
from sensor_msgs.msg import PointField
from support.ros_live import MAPPING_CAMERA, T_ODOM_CAMERA, scene_depth, turned

from embodied_perceptron.config import NetworkOptions, PerceptronConfig, VolumeConfig
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import EventKind, ObjectEvent, OccupancyGrid2d
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame
from embodied_perceptron.sensors.poses import TransformTree
from embodied_perceptron_ros.conversion import maps
from embodied_perceptron_ros.conversion.maps import cloud_to_rows
from embodied_perceptron_ros.conversion.objects import ObjectEventMessage
from embodied_perceptron_ros.conversion.values import stamp_to_ns
from embodied_perceptron_ros.node.health import FrameCounts, Health
from embodied_perceptron_ros.node.outputs import OutputPose, Outputs, find_output_pose
from embodied_perceptron_ros.node.queries import ViewpointError, find_viewpoint

pytestmark = pytest.mark.ros
S = 1_000_000_000


@pytest.fixture
def tree() -> TransformTree:
    tree = TransformTree(max_gap_s=0.5)
    for t, forward_m in ((10, 1.0), (11, 2.0)):
        tree.insert("map", "odom", t * S, turned(0.0, forward_m))
    return tree


def test_the_fusion_frame_needs_no_transform(tree):
    for name in ("odom", "/odom"):
        assert find_output_pose(tree, "odom", name, 5 * S) == OutputPose("odom", None)
    assert OutputPose("odom", None).inverse() is None


def test_the_transform_at_the_results_own_stamp(tree):
    for t, forward_m in ((10, 1.0), (11, 2.0)):
        tree.insert("odom", "base_link", t * S, np.linalg.inv(turned(0.0, forward_m)))
    pose = find_output_pose(tree, "odom", "base_link", 10 * S)
    np.testing.assert_allclose(pose.T_out_world, turned(0.0, 1.0))
    np.testing.assert_allclose(pose.inverse() @ pose.T_out_world, np.eye(4), atol=1e-12)


@pytest.mark.parametrize("stamp_ns", [0, 9 * S, 10 * S, 10 * S + S // 2, 12 * S])
def test_a_frame_above_has_its_newest_pose(tree, stamp_ns):
    """An empty or loaded map, a gap between rare transforms, a correction by localisation."""
    pose = find_output_pose(tree, "odom", "map", stamp_ns)
    np.testing.assert_allclose(pose.T_out_world, turned(0.0, 2.0))


def test_a_frame_that_is_not_connected_is_named(tree):
    assert "atlantis" in find_output_pose(tree, "odom", "atlantis", 10 * S)


@pytest.mark.parametrize(
    ("stamp_ns", "now_ns", "forward_m"),
    [
        (10 * S, 99 * S, 1.0),  # where it was at the query's stamp, wherever it is now
        (11 * S, 11 * S, 2.0),
        (0, 10 * S, 1.0),
        (0, 11 * S + 1, 2.0),  # no transform of this very moment yet
        (12 * S, 12 * S, 2.0),
        (0, 5 * S, 2.0),  # another clock than the transforms'
    ],
)
def test_the_viewpoint_is_that_of_the_query(tree, stamp_ns, now_ns, forward_m):
    T = find_viewpoint(tree, "map", "odom", stamp_ns, now_ns)
    np.testing.assert_allclose(T, turned(0.0, forward_m))


@pytest.mark.parametrize(("frame", "stamp_ns"), [("odom", 5 * S), ("odom", 10 * S + S // 2), ("atlantis", 0)])
def test_a_viewpoint_that_nobody_knows_is_refused_by_name(tree, frame, stamp_ns):
    with pytest.raises(ViewpointError, match=f"the viewpoint '{frame}' is not known"):
        find_viewpoint(tree, "map", frame, stamp_ns, 11 * S)


class Publisher:
    """A publisher with one subscriber that keeps what it gets."""

    def __init__(self) -> None:
        self.sent: list = []

    def get_subscription_count(self) -> int:
        return 1

    def publish(self, message) -> None:
        self.sent.append(message)


class Publishers(dict):
    """Stands in for the node: publishers by topic."""

    def get_logger(self):
        return logging.getLogger("outputs")

    def create_lifecycle_publisher(self, kind, topic, qos, **_) -> Publisher:
        return self.setdefault(topic, Publisher())


def test_overlay_and_latency_speak_of_the_frame_that_the_boxes_are_of(tree):
    perceptron = Perceptron(PerceptronConfig(volume=VolumeConfig(voxel_size_m=0.05, max_blocks=2000)))
    color = np.zeros((60, 80, 3), np.uint8)
    frames = [RgbdFrame((10 + i) * S, "cam", color, scene_depth(), MAPPING_CAMERA) for i in range(2)]
    sent_ns = time.time_ns() - S
    perceptron.integrate(PosedFrame(frames[0], T_ODOM_CAMERA, sent_ns))
    perception = perceptron.perceive()
    perceptron.integrate(PosedFrame(frames[1], T_ODOM_CAMERA, sent_ns + S))  # while the boxes were found

    publishers, health = Publishers(), Health("perception")
    parameters = SimpleNamespace(
        **{"fusion_frame": "odom", "output_frame": "odom", "voxels_hz": 1.0, "overlay_hz": 1.0},
        **{
            "base_frame": "odom",
            "obstacles_range_m": 3.0,
            "voxels_max_points": 1000,
            "grid_full_s": 0.0,
            "config": PerceptronConfig(),
            "moveit": False,
        },
    )
    outputs = Outputs(publishers, tree, health, lambda: parameters, {"cam": "optical"}.get)
    outputs.publish(perception)
    outputs.publish(perception, everything=True)  # for a new listener

    for topic in ("~/boxes", "~/overlay/image"):
        assert [stamp_to_ns(message.header.stamp) for message in publishers[topic].sent] == [10 * S, 10 * S]
    assert publishers["~/overlay/image"].sent[0].header.frame_id == "optical"
    status = health.diagnostics(0, "active", FrameCounts(), {}).status[1]
    boxes = {value.key: float(value.value) for value in status.values if value.key.startswith("boxes_ms")}
    assert boxes["boxes_ms.count"] == 1
    assert 1000 <= boxes["boxes_ms.p50"] < 20_000


class Robot(Publishers):
    """The node, with a log that is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.warnings: list[str] = []

    def get_logger(self):
        return SimpleNamespace(warning=self.warnings.append)


def seen_scene():
    perceptron = Perceptron(PerceptronConfig(volume=VolumeConfig(voxel_size_m=0.05, max_blocks=2000)))
    for i in range(2):
        frame = RgbdFrame((10 + i) * S, "cam", np.zeros((60, 80, 3), np.uint8), scene_depth(), MAPPING_CAMERA)
        perceptron.integrate(PosedFrame(frame, T_ODOM_CAMERA, time.time_ns()))
    return perceptron.perceive()


def outputs_of(robot: Robot, tree, **changes) -> tuple[Outputs, Health]:
    values = {"fusion_frame": "odom", "output_frame": "odom", "voxels_hz": 1.0, "overlay_hz": 1.0}
    values |= {
        "base_frame": "base_link",
        "obstacles_range_m": 3.0,
        "voxels_max_points": 1000,
        "config": PerceptronConfig(),
        "grid_full_s": 0.0,
        "moveit": False,
    }
    parameters, health = SimpleNamespace(**values | changes), Health("perception")
    return Outputs(robot, tree, health, lambda: parameters, {"cam": "optical"}.get), health


def test_without_its_messages_the_planning_scene_is_one_line_of_the_log(tree, monkeypatch):
    monkeypatch.setitem(sys.modules, "moveit_msgs.msg", None)
    robot = Robot()
    outputs, _ = outputs_of(robot, tree, moveit=True)
    for _ in range(2):
        outputs.publish(seen_scene())
    (line,) = [line for line in robot.warnings if "planning_scene" in line]
    assert "is not published" in line
    assert "moveit_msgs" in line
    assert "~/planning_scene" not in robot


def test_objects_go_to_the_planning_scene_when_something_changes(tree, monkeypatch):
    class Scenes:
        type = object

        def difference(self, objects, stamp_ns, frame_id, T_out_world, everything):
            asked.append((len(objects), stamp_ns, frame_id, everything))
            return "scene" if len(asked) == 1 or everything else None

    asked: list = []
    monkeypatch.setattr("embodied_perceptron_ros.node.outputs.PlanningScenes", Scenes)
    robot = Robot()
    outputs, _ = outputs_of(robot, tree, moveit=True)
    perception = seen_scene()
    for everything in (False, False, True):
        outputs.publish(perception, everything)
    place = len(perception.objects), perception.stamp_ns, "odom"
    assert asked == [(*place, False), (*place, False), (*place, True)]
    assert robot["~/planning_scene"].sent == ["scene", "scene"]


def test_an_output_frame_that_nobody_publishes_is_counted_told_and_logged(tree):
    robot = Robot()
    outputs, health = outputs_of(robot, tree, output_frame="mapp")
    for _ in range(3):
        outputs.publish(seen_scene())
    assert health.counted("outputs_without_transform") == 3
    (line,) = robot.warnings  # once in a while, not each time
    assert "output_frame 'mapp'" in line
    status = {s.name: s.message for s in health.diagnostics(0, "active", FrameCounts(), {"transforms": {}}).status}
    assert "'mapp'" in status["perception: transforms"]
    assert not robot["~/boxes"].sent


def test_obstacles_are_points_around_the_base(tree):
    T = np.eye(4)
    T[:3, 3] = 0.5, 0.0, 0.1  # base_link in odom
    tree.insert_static("odom", "base_link", T)
    robot = Robot()
    outputs, health = outputs_of(robot, tree)
    outputs.publish(seen_scene())
    (cloud,) = robot["~/obstacles"].sent
    assert cloud.header.frame_id == "base_link"
    rows = cloud_to_rows(cloud)
    face = np.abs(rows["x"] - 1.0) < 0.06  # the box at 1.5 m
    assert face.sum() > 30
    assert rows["z"].min() > -0.1 + 0.06  # nothing of the floor
    assert health.counted("obstacles_without_transform") == 0


def test_obstacles_without_a_base_are_told_and_harm_nothing_else(tree):
    robot = Robot()
    outputs, health = outputs_of(robot, tree)
    outputs.publish(seen_scene())
    assert not robot["~/obstacles"].sent
    assert health.counted("obstacles_without_transform") == 1
    assert "base_frame 'base_link'" in robot.warnings[0]
    assert len(robot["~/boxes"].sent) == 1


def test_obstacles_of_an_anchored_map_are_around_the_base_too(tree):
    """At UTM coordinates the map has an origin of its own."""
    utm = np.array([448_300.0, 5_411_900.0, 200.0])
    T = np.eye(4)
    T[:3, 3] = utm + np.array([0.5, 0.0, 0.1])
    tree.insert_static("odom", "base_link", T)
    robot = Robot()
    outputs, _ = outputs_of(robot, tree)
    perception = seen_from(utm)
    assert perception.T_world_map[:3, 3].any()
    outputs.publish(perception)
    (cloud,) = robot["~/obstacles"].sent
    rows = cloud_to_rows(cloud)
    assert (np.abs(rows["x"] - 1.0) < 0.06).sum() > 30


@pytest.mark.parametrize("output_frame", ["map", "earth", "odom", "base_link"])
def test_a_jump_moves_what_was_published_though_no_frame_comes(tree, output_frame):
    tree.insert_static("earth", "map", np.eye(4))
    for t in (10, 11):
        tree.insert("odom", "base_link", t * S, turned(0.0, 0.0))
    robot, perception = Robot(), seen_scene()
    outputs, _ = outputs_of(robot, tree, output_frame=output_frame)
    outputs.publish(perception)
    assert not outputs.has_moved(perception)
    tree.insert("map", "odom", 12 * S, turned(0.0, 5.0))  # the perception is of 11 s
    tree.insert("odom", "base_link", 12 * S, turned(0.0, 0.5))  # the robot drives on: its frame at 11 s stays
    jumped = output_frame in ("map", "earth")
    assert outputs.has_moved(perception) == jumped
    outputs.publish(perception, everything=True)
    assert not outputs.has_moved(perception)
    before, after = robot["~/occupancy_grid"].sent
    assert after.info.origin.position.x - before.info.origin.position.x == pytest.approx(3.0 if jumped else 0.0)


def test_what_could_not_be_published_follows_once_its_transform_comes(tree):
    robot, perception = Robot(), seen_scene()
    outputs, _ = outputs_of(robot, tree, output_frame="earth")
    outputs.publish(perception)
    assert not outputs.has_moved(perception)
    tree.insert_static("earth", "map", np.eye(4))
    assert outputs.has_moved(perception)


class Heard:
    """Outputs whose messages are kept, in a frame of one's choice."""

    def __init__(self, tree, output_frame: str) -> None:
        self.publishers = Robot()
        values = {"fusion_frame": "odom", "output_frame": output_frame, "voxels_hz": 1.0, "overlay_hz": 1.0}
        values |= {"base_frame": "base_link", "obstacles_range_m": 3.0, "voxels_max_points": 1000, "grid_full_s": 0.0}
        values["moveit"] = False
        values |= {"config": PerceptronConfig()}
        parameters = SimpleNamespace(**values)
        camera_frame = {"cam": "optical"}.get
        self.outputs = Outputs(self.publishers, tree, Health("perception"), lambda: parameters, camera_frame)

    def publish(self, perception):
        self.outputs.publish(perception, everything=True)
        return {topic.removeprefix("~/"): p.sent[-1] for topic, p in self.publishers.items() if p.sent}


def seen_from(offset_m, count=3, start_ns=10 * S):
    perceptron = Perceptron(PerceptronConfig(volume=VolumeConfig(voxel_size_m=0.05, max_blocks=2000)))
    color = np.zeros((60, 80, 3), np.uint8)
    T = T_ODOM_CAMERA.copy()
    T[:3, 3] += offset_m
    for i in range(count):
        perceptron.integrate(PosedFrame(RgbdFrame(start_ns + i, "cam", color, scene_depth(), MAPPING_CAMERA), T))
        perception = perceptron.perceive()
    return perception


def xyz(cloud):
    rows = cloud_to_rows(cloud)
    return np.stack([rows[axis].astype(float) for axis in "xyz"], axis=1)


@pytest.mark.parametrize(("frame", "T_out_odom"), [("odom", np.eye(4)), ("map", turned(0.7, 3.0))])
def test_outputs_at_utm_coordinates_are_exact_to_a_millimetre(frame, T_out_odom):
    """In the fusion frame itself, and in one that is turned against it: boxes, voxels and the grid."""
    tree = TransformTree()
    tree.insert_static("map", "odom", turned(0.7, 3.0))
    utm = np.array([448_300.0, 5_411_900.0, 200.0])
    near, far = seen_from(np.zeros(3)), seen_from(utm)
    np.testing.assert_array_equal(far.T_world_map[:3, 3], utm)
    a, b = Heard(tree, "odom").publish(near), Heard(tree, frame).publish(far)
    assert {m.header.frame_id for m in (b["voxels"], b["boxes"], b["occupancy_grid"])} == {frame}

    def place(p):
        return (np.asarray(p, float) + utm) @ T_out_odom[:3, :3].T + T_out_odom[:3, 3]

    assert b["voxels"].fields[0].datatype == PointField.FLOAT64, "float32 is rounded to 0.5 m there"
    assert a["voxels"].fields[0].datatype == PointField.FLOAT32
    np.testing.assert_allclose(xyz(b["voxels"]), place(xyz(a["voxels"])), atol=1e-3)
    assert len(a["boxes"].detections) == len(b["boxes"].detections) > 0
    for x, y in zip(a["boxes"].detections, b["boxes"].detections, strict=True):
        p, q = x.bbox.center.position, y.bbox.center.position
        np.testing.assert_allclose([q.x, q.y, q.z], place([p.x, p.y, p.z]), atol=1e-3)
    p, q = (message["occupancy_grid"].info.origin.position for message in (a, b))
    if frame == "odom":  # in a turned frame the grid is made anew along that frame's axes
        np.testing.assert_allclose([q.x, q.y, q.z], place([p.x, p.y, p.z]), atol=1e-3)


def test_a_jump_of_the_map_frame_moves_what_is_published_at_once(tree):
    """A localisation corrects itself by 5 m and a quarter turn: the map in odom stays, its place in map is new."""
    perception = seen_from(np.zeros(3))
    in_odom = Heard(tree, "odom").publish(perception)["boxes"].detections
    heard = Heard(tree, "map")
    assert in_odom
    for stamp_ns, T in ((12 * S, turned(0.0, 1.0)), (12 * S + 2, turned(np.pi / 2, 5.0))):
        tree.insert("map", "odom", stamp_ns, T)
        boxes = heard.publish(dataclasses.replace(perception, stamp_ns=stamp_ns))["boxes"]
        assert boxes.header.frame_id == "map"
        for before, after in zip(in_odom, boxes.detections, strict=True):
            p, q = before.bbox.center.position, after.bbox.center.position
            np.testing.assert_allclose([q.x, q.y, q.z], T[:3, :3] @ [p.x, p.y, p.z] + T[:3, 3], atol=1e-6)


def test_no_grid_is_latched_before_there_is_one(tree):
    """An empty one would resize a costmap to nothing; after a reset the same place is all unknown."""
    robot = Robot()
    outputs, _ = outputs_of(robot, tree)
    seen, empty = seen_scene(), Perceptron(PerceptronConfig()).perceive()
    outputs.publish(empty)
    assert robot["~/occupancy_grid"].sent == []
    outputs.publish(seen)
    outputs.publish(empty)
    before, after = robot["~/occupancy_grid"].sent
    assert after.info == before.info
    assert set(before.data) != {-1}
    assert len(after.data) == len(before.data)
    assert set(after.data) == {-1}


@pytest.mark.parametrize(("listed", "named"), [(("chair",), True), ((), False)])
def test_under_a_list_of_names_the_one_for_the_rest_is_among_the_labels(tree, listed, named):
    robot = Robot()
    config = PerceptronConfig(network=NetworkOptions(classes=listed))
    outputs, _ = outputs_of(robot, tree, config=config)
    seen = seen_scene()
    classes = tuple("chair" if name == "object" else name for name in seen.semantic.classes)
    cells = dataclasses.replace(seen.semantic, classes=classes)
    outputs.publish(dataclasses.replace(seen, semantic=cells))
    names = [c.class_name for c in robot["~/label_info"].sent[0].class_map]
    assert names == [*classes, *(["object"] if named else [])]


class StaticLayer:
    """As Nav2's static layer: a costmap of the size and place of the last whole grid, updates written into it."""

    def __init__(self) -> None:
        self.cells, self.info, self.frame = None, None, ""

    def hear(self, message) -> None:
        if isinstance(message, OccupancyGrid):
            self.info, self.frame = message.info, message.header.frame_id
            self.cells = np.array(message.data, np.int8).reshape(message.info.height, message.info.width)
            return
        assert self.frame == message.header.frame_id
        assert message.x + message.width <= self.info.width
        assert message.y + message.height <= self.info.height
        part = np.array(message.data, np.int8).reshape(message.height, message.width)
        self.cells[message.y : message.y + message.height, message.x : message.x + message.width] = part


def test_whole_grids_and_updates_make_the_same_costmap(tree):
    """A map that changes and grows: updates in between are small, and nothing is missed by who hears both topics."""
    robot, costmap, order = Robot(), StaticLayer(), []
    outputs, _ = outputs_of(robot, tree, grid_full_s=1000.0)
    base, rng = seen_scene(), np.random.default_rng(5)
    cells = rng.choice(np.array([-1, 0, 100], np.int8), (40, 50))
    origin_m = np.array([-1.0, 0.35])
    for step in range(30):
        if step % 10 == 9:  # one row and column more at the lower end
            cells = np.pad(cells, ((1, 0), (1, 0)), constant_values=-1)
            origin_m = origin_m - 0.05
        else:
            cells = cells.copy()
            row, column = rng.integers(0, 30, 2)
            cells[row : row + 3, column : column + 2] = rng.choice([-1, 0, 100])
        grid = OccupancyGrid2d(0.05, origin_m, cells, 0.01 * step)
        for publisher in robot.values():
            publisher.sent.clear()
        outputs.publish(dataclasses.replace(base, grid=grid))
        heard = [*robot["~/occupancy_grid"].sent, *robot["~/occupancy_grid_updates"].sent]
        assert len(heard) <= 1
        order += [type(message).__name__ for message in heard]
        for message in heard:
            costmap.hear(message)
        want = maps.pad_grid(grid)
        np.testing.assert_array_equal(costmap.cells, want.cells)
        np.testing.assert_allclose(
            [costmap.info.origin.position.x, costmap.info.origin.position.y], want.origin_m, atol=1e-9
        )
    assert order[0] == "OccupancyGrid"
    assert order.count("OccupancyGridUpdate") >= 20
    (update,) = robot["~/occupancy_grid_updates"].sent or [None]
    assert update is None or update.width * update.height <= 6


def test_a_grid_that_moved_is_sent_whole(tree):
    """The same cells at another place: an update would leave them where they were."""
    robot = Robot()
    outputs, _ = outputs_of(robot, tree, grid_full_s=1000.0)
    base, cells = seen_scene(), np.full((40, 50), 100, np.int8)
    for origin_m in ([0.0, 0.0], [0.0, 0.0], [6.4, 0.0]):
        outputs.publish(dataclasses.replace(base, grid=OccupancyGrid2d(0.05, np.array(origin_m), cells, 0.0)))
    whole = [message.info.origin.position.x for message in robot["~/occupancy_grid"].sent]
    assert len(whole) == 2
    assert whole[1] - whole[0] == pytest.approx(6.4)


def test_without_listeners_to_updates_each_grid_is_whole(tree):
    robot = Robot()
    outputs, _ = outputs_of(robot, tree, grid_full_s=1000.0)
    robot["~/occupancy_grid_updates"].get_subscription_count = lambda: 0
    perception = seen_scene()
    for _ in range(3):
        outputs.publish(perception)
    assert len(robot["~/occupancy_grid"].sent) == 3
    assert not robot["~/occupancy_grid_updates"].sent


def test_a_new_listener_gets_the_whole_grid(tree):
    robot = Robot()
    outputs, _ = outputs_of(robot, tree, grid_full_s=1000.0)
    perception = seen_scene()
    outputs.publish(perception)
    outputs.publish(perception)
    assert len(robot["~/occupancy_grid"].sent) == 1
    outputs.publish(perception, everything=True)
    assert len(robot["~/occupancy_grid"].sent) == 2


@pytest.mark.skipif(ObjectEventMessage is None, reason="the interface package is older: make setup builds it")
def test_events_are_sent_once_and_wait_for_their_transform(tree):
    robot, seen = Robot(), seen_from(np.zeros(3))
    outputs, _ = outputs_of(robot, tree, output_frame="earth")
    thing = dataclasses.replace(seen.objects[0], id=5)
    event = ObjectEvent(10 * S, EventKind.LEFT, 5, thing, None, 0.9, "its place was seen empty")
    told = dataclasses.replace(seen, events=(event,))
    outputs.publish(told)
    assert robot["~/events"].sent == []
    tree.insert_static("earth", "map", np.eye(4))
    outputs.publish(told, everything=True)
    outputs.publish(told, everything=True)
    (message,) = robot["~/events"].sent
    assert (message.kind, message.id, message.after, message.header.frame_id) == (message.LEFT, 5, [], "earth")


def test_a_program_newer_than_its_messages_says_what_to_build(tree, monkeypatch):
    monkeypatch.setattr("embodied_perceptron_ros.node.outputs.ObjectEventMessage", None)
    robot, seen = Robot(), seen_from(np.zeros(3))
    outputs, _ = outputs_of(robot, tree)
    event = ObjectEvent(10 * S, EventKind.LEFT, 5, seen.objects[0], None, 0.9)
    outputs.publish(dataclasses.replace(seen, events=(event,)))
    assert robot["~/occupancy_grid"].sent
    assert [line for line in robot.warnings if "~/events" in line and "make setup" in line]
