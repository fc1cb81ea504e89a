"""Messages <-> values: round trips, hand-computed values, refusals by name. No node is started."""

from __future__ import annotations

import array
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

pytest.importorskip("rclpy")
pytest.importorskip("vision_msgs")
pytest.importorskip("embodied_perceptron_msgs")

from builtin_interfaces.msg import Time
from geometry_msgs.msg import Quaternion, Transform, Vector3
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import CompressedImage, Image
from visualization_msgs.msg import Marker

from embodied_perceptron.geometry.boxes import box_corners
from embodied_perceptron.geometry.transforms import Intrinsics, make_transform, quaternion_to_rotation
from embodied_perceptron.language.query import Query
from embodied_perceptron.recordings.image_codec import encode_color_file, encode_depth_file
from embodied_perceptron.results import (
    EventKind,
    GroundedPhrase,
    Grounding,
    GroundingStatus,
    ObjectEvent,
    OccupancyGrid2d,
    SceneObject,
    SemanticVoxels,
    VoxelSnapshot,
)
from embodied_perceptron.scene.navigation import Obstacles
from embodied_perceptron.sensors.frame import canonical_depth
from embodied_perceptron_ros.conversion import maps as maps
from embodied_perceptron_ros.conversion import objects as objects
from embodied_perceptron_ros.conversion import values as conv

pytestmark = pytest.mark.ros
RNG = np.random.default_rng(3)


def random_transform(rng: np.random.Generator) -> np.ndarray:
    q = rng.normal(size=4)
    return make_transform(quaternion_to_rotation(q / np.linalg.norm(q)), rng.normal(size=3) * 5)


def random_object(rng: np.random.Generator, object_id: int, label: str = "chair") -> SceneObject:
    angles = rng.uniform([-3.1, -1.5, -3.1], [3.1, 1.5, 3.1])
    return SceneObject(object_id, label, 0.75, np.concatenate([rng.normal(size=3), rng.uniform(0.1, 2, 3), angles]))


# ---------------------------------------------------------------------------------------------------------- arrays


def test_message_array_holds_the_same_bytes():
    pixels = RNG.integers(0, 255, (7, 5, 3), np.uint8)
    data = conv.message_array(pixels)
    message = Image()
    message.data = data
    assert bytes(message.data) == pixels.tobytes()


@pytest.mark.parametrize(
    "values",
    [
        np.zeros((0, 3), np.float32),
        np.arange(12, dtype=np.float64).reshape(3, 4)[:, ::2],  # not contiguous
        np.zeros(3, maps.VOXEL_DTYPE),
    ],
)
def test_message_array_takes_any_layout(values):
    assert bytes(conv.message_array(values)) == np.ascontiguousarray(values).tobytes()


@pytest.mark.parametrize("stamp_ns", [0, 1, 999_999_999, 1_000_000_000, 1_700_000_000_123_456_789])
def test_stamps_round_trip(stamp_ns):
    assert conv.stamp_to_ns(conv.ns_to_stamp(stamp_ns)) == stamp_ns


def test_stamp_by_hand():
    assert conv.ns_to_stamp(2_500_000_001) == Time(sec=2, nanosec=500_000_001)


# ------------------------------------------------------------------------------------------------------ transforms


@pytest.mark.parametrize("seed", range(5))
def test_transforms_and_poses_round_trip(seed):
    T = random_transform(np.random.default_rng(seed))
    np.testing.assert_allclose(conv.transform_to_matrix(conv.matrix_to_transform(T)), T, atol=1e-12)
    np.testing.assert_allclose(conv.pose_to_matrix(conv.matrix_to_pose(T)), T, atol=1e-12)


def test_transform_by_hand():
    half = np.sqrt(0.5)
    transform = Transform(translation=Vector3(x=1.0, y=2.0, z=3.0), rotation=Quaternion(x=0.0, y=0.0, z=half, w=half))
    expected = [[0, -1, 0, 1], [1, 0, 0, 2], [0, 0, 1, 3], [0, 0, 0, 1]]
    np.testing.assert_allclose(conv.transform_to_matrix(transform), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("translation", "rotation", "match"),
    [
        ((np.nan, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0), "finite"),
        ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 2.0), "unit norm"),
        ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0), "unit norm"),
        ((0.0, 0.0, 0.0), (np.nan, 0.0, 0.0, 1.0), "unit norm"),
    ],
)
def test_bad_transforms_are_refused(translation, rotation, match):
    message = Transform(
        translation=Vector3(x=translation[0], y=translation[1], z=translation[2]),
        rotation=Quaternion(x=rotation[0], y=rotation[1], z=rotation[2], w=rotation[3]),
    )
    with pytest.raises(ValueError, match=match):
        conv.transform_to_matrix(message)


# ---------------------------------------------------------------------------------------------------------- images


@pytest.mark.parametrize("encoding", ["rgb8", "bgr8", "rgba8", "bgra8", "mono8"])
def test_color_encodings(encoding):
    rgb = RNG.integers(0, 255, (6, 4, 3), np.uint8)
    alpha = np.full((6, 4, 1), 9, np.uint8)
    raw = {
        "rgb8": rgb,
        "bgr8": rgb[..., ::-1],
        "rgba8": np.concatenate([rgb, alpha], -1),
        "bgra8": np.concatenate([rgb[..., ::-1], alpha], -1),
        "mono8": rgb[..., 0],
    }[encoding]
    message = deserialize_message(serialize_message(conv.make_image(raw, encoding, 5, "cam")), Image)
    expected = np.repeat(rgb[..., :1], 3, -1) if encoding == "mono8" else rgb
    np.testing.assert_array_equal(conv.color_from_message(message), expected)


def test_depth_unit_is_decided_by_encoding():
    millimetres = np.array([[0, 1000], [1234, 65535]], np.uint16)
    metres = np.array([[np.nan, 1.0], [np.inf, -np.inf]], np.float32)
    a = conv.depth_from_message(conv.make_image(millimetres, "16UC1", 0, "cam"))
    b = conv.depth_from_message(conv.make_image(metres, "32FC1", 0, "cam"))
    np.testing.assert_allclose(a, [[0, 1], [1.234, 0]], rtol=1e-6)
    np.testing.assert_array_equal(b, [[0, 1], [np.inf, 0]])


def test_compressed_images():
    rgb = RNG.integers(0, 255, (6, 4, 3), np.uint8)
    depth = RNG.integers(0, 5000, (6, 4), np.uint16)
    color = CompressedImage(format="png", data=array.array("B", encode_color_file(rgb)))
    packed = CompressedImage(format="16UC1; png", data=array.array("B", encode_depth_file(depth)))
    np.testing.assert_array_equal(conv.color_from_message(color), rgb)
    np.testing.assert_array_equal(conv.depth_from_message(packed), canonical_depth(depth, "16UC1"))


@pytest.mark.parametrize("encoding", ["p010", "16UC1", "", "RGB8"])
def test_unusable_color_encodings_are_named(encoding):
    message = Image(width=1, height=1, step=2, encoding=encoding, data=array.array("B", [0, 0]))
    with pytest.raises(ValueError, match=repr(encoding)):
        conv.color_from_message(message)


@pytest.mark.parametrize("encoding", ["rgb8", "8UC3", "32SC1"])
def test_unusable_depth_encodings_are_named(encoding):
    with pytest.raises(ValueError, match=repr(encoding)):
        conv.depth_from_message(Image(width=1, height=1, step=8, encoding=encoding, data=array.array("B", [0] * 8)))


def test_short_data_is_refused():
    message = Image(width=4, height=4, step=12, encoding="rgb8", data=array.array("B", [0] * 40))
    with pytest.raises(ValueError, match="cut short"):
        conv.color_from_message(message)


# ---------------------------------------------------------------------------------------------------------- camera


def info(**changes):
    message = conv.make_camera_info(Intrinsics(500.0, 510.0, 319.5, 239.5, 640, 480), 7, "cam")
    for name, value in changes.items():
        setattr(message, name, value)
    return message


def test_camera_info_round_trip():
    model = conv.camera_model(info())
    assert model.intrinsics == Intrinsics(500.0, 510.0, 319.5, 239.5, 640, 480)
    assert not model.is_distorted


def test_distortion_is_kept_unless_the_image_is_rectified():
    message = info(d=[0.1, -0.2, 0.0, 0.0, 0.0], p=[400.0, 0, 300, 0, 0, 410, 200, 0, 0, 0, 1, 0])
    assert conv.camera_model(message).distortion == (0.1, -0.2, 0.0, 0.0)
    rectified = conv.camera_model(message, rectified=True)
    assert not rectified.is_distorted
    assert (rectified.intrinsics.fx, rectified.intrinsics.cy) == (400.0, 200.0)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"k": [0.0] * 9}, "not calibrated"),
        ({"k": [np.nan, 0, 1, 0, 500, 1, 0, 0, 1]}, "fx"),
        ({"width": 0}, "width"),
        ({"distortion_model": "mystery", "d": [0.1, 0.0, 0.0, 0.0]}, "mystery"),
        ({"d": [0.1] * 20}, "20"),
        ({"d": [np.nan] * 5}, "finite"),
    ],
)
def test_unusable_camera_info_is_refused_by_name(changes, match):
    with pytest.raises(ValueError, match=match):
        conv.camera_model(info(**changes))


def test_camera_info_key_sees_every_change_that_matters():
    keys = {conv.camera_info_key(info(**c)) for c in ({}, {"width": 641}, {"d": [0.1] * 5}, {"binning_x": 2})}
    assert len(keys) == 4
    later = info()
    later.header.stamp.sec = 99
    assert conv.camera_info_key(later) == conv.camera_info_key(info())


# ------------------------------------------------------------------------------------------------------------- map


def snapshot(n: int) -> VoxelSnapshot:
    return VoxelSnapshot(
        voxel_size_m=0.02,
        coords=RNG.integers(-100, 100, (n, 3)).astype(np.int32),
        mean_point_m=RNG.normal(size=(n, 3)).astype(np.float32),
        mean_color=RNG.integers(0, 255, (n, 3), np.uint8),
        hits=RNG.integers(1, 900, n).astype(np.int32),
        evidence=np.zeros(n, np.float32),
        last_seen_ns=np.zeros(n, np.int64),
    )


@pytest.mark.parametrize("n", [0, 1, 1000])
def test_voxel_cloud_round_trip(n):
    voxels = snapshot(n)
    cloud = maps.voxels_to_cloud(voxels, 9, "odom")
    rows = maps.cloud_to_rows(cloud)
    assert [f.name for f in cloud.fields] == ["x", "y", "z", "rgb", "hits"]
    assert cloud.header.frame_id == "odom"
    np.testing.assert_array_equal(np.stack([rows["x"], rows["y"], rows["z"]], 1), voxels.mean_point_m)
    np.testing.assert_array_equal(maps.unpack_rgb(rows["rgb"]), voxels.mean_color)
    np.testing.assert_array_equal(rows["hits"], voxels.hits)


def test_cloud_moves_with_its_frame():
    voxels, T = snapshot(50), random_transform(RNG)
    rows = maps.cloud_to_rows(maps.voxels_to_cloud(voxels, 9, "map", T))
    expected = voxels.mean_point_m.astype(np.float64) @ T[:3, :3].T + T[:3, 3]
    np.testing.assert_allclose(np.stack([rows["x"], rows["y"], rows["z"]], 1), expected, atol=1e-5)


def test_a_large_map_is_sent_in_coarser_cells():
    grid = np.stack(np.meshgrid(np.arange(-60, 60), np.arange(-60, 60), [3]), -1).reshape(-1, 3)
    voxels = replace(
        snapshot(len(grid)), coords=grid.astype(np.int32), mean_point_m=(0.05 * (grid + 0.5)).astype(np.float32)
    )
    rows = maps.cloud_to_rows(maps.voxels_to_cloud(voxels, 9, "odom", max_points=4000))
    assert len(rows) == 3600  # two by two
    assert rows["hits"].sum() == voxels.hits.sum()
    nearest = np.abs(rows["x"][:, None] - 0.05 * (np.arange(-60, 60, 2) + 1.0)[None]).min(axis=1)
    assert nearest.max() <= 0.025
    weights = voxels.hits / voxels.hits.sum()
    centre = [(rows["hits"] * rows[axis]).sum() / rows["hits"].sum() for axis in "xyz"]
    np.testing.assert_allclose(centre, weights @ voxels.mean_point_m, atol=1e-4)
    colors = (rows["hits"][:, None] * maps.unpack_rgb(rows["rgb"])).sum(0) / rows["hits"].sum()
    np.testing.assert_allclose(colors, weights @ voxels.mean_color, atol=0.5)
    scattered = snapshot(5000)
    for most in (1, 7, 1000, 4999):
        assert 0 < maps.voxels_to_cloud(scattered, 9, "odom", max_points=most).width <= most
    assert maps.voxels_to_cloud(scattered, 9, "odom", max_points=5000).width == 5000


def test_semantic_cloud_round_trip():
    n = 40
    semantic = SemanticVoxels(
        0.16,
        RNG.normal(size=(n, 3)).astype(np.float32),
        RNG.integers(0, 255, (n, 3), np.uint8),
        RNG.integers(0, 3, n).astype(np.int32),
        RNG.random(n).astype(np.float32),
        ("floor", "wall", "object"),
    )
    cloud = maps.semantic_to_cloud(semantic, 9, "odom")
    rows = maps.cloud_to_rows(cloud)
    assert [f.name for f in cloud.fields] == ["x", "y", "z", "rgb", "label", "confidence"]
    np.testing.assert_array_equal(rows["label"], semantic.labels)
    np.testing.assert_array_equal(rows["confidence"], semantic.confidence)
    names = {c.class_id: c.class_name for c in maps.make_label_info(semantic.classes, 0, "odom").class_map}
    assert names == {0: "floor", 1: "wall", 2: "object"}


def test_cut_cloud_is_refused():
    cloud = maps.voxels_to_cloud(snapshot(3), 9, "odom")
    cloud.data = cloud.data[:-1]
    with pytest.raises(ValueError, match="has only"):
        maps.cloud_to_rows(cloud)


def test_grid_round_trip():
    cells = RNG.choice(np.array([-1, 0, 100], np.int8), (5, 8))
    grid = OccupancyGrid2d(0.05, np.array([-1.0, 2.0]), cells, 0.1)
    message = maps.grid_to_message(grid, 9, "odom")
    assert (message.info.width, message.info.height) == (8, 5)
    assert message.data[3] == cells[0, 3]  # row-major, x fastest
    back = maps.message_to_grid(message)
    np.testing.assert_array_equal(back.cells, cells)
    np.testing.assert_allclose(back.origin_m, grid.origin_m)
    assert back.floor_z_m == pytest.approx(0.1)


def test_grid_in_a_turned_frame_lies_along_its_axes():
    """A quarter turn, by hand: x becomes y, y becomes -x; Nav2 ignores the orientation of the origin."""
    cells = np.array([[0, 100, -1], [0, 0, 0]], np.int8)
    grid = OccupancyGrid2d(0.5, np.array([1.0, 0.0]), cells, 0.0)
    T = make_transform(np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]]), np.array([0.0, 0.0, 5.0]))
    message = maps.grid_to_message(grid, 9, "map", T)
    assert message.info.origin.orientation.w == 1.0
    back = maps.message_to_grid(message)
    np.testing.assert_allclose([*back.origin_m, back.floor_z_m], [-1.0, 1.0, 5.0], atol=1e-12)
    np.testing.assert_array_equal(back.cells, np.array([[0, 0], [0, 100], [0, -1]], np.int8))


@settings(deadline=None, max_examples=50)
@given(
    yaw=st.floats(-np.pi, np.pi),
    x=st.floats(-50, 50),
    y=st.floats(-50, 50),
    cells=arrays(np.int8, (7, 5), elements=st.sampled_from([-1, 0, 100])),
)
def test_what_blocks_never_shrinks_when_a_grid_is_turned(yaw, x, y, cells):
    grid = OccupancyGrid2d(0.05, np.array([-0.3, 0.7]), cells, 0.1)
    c, s = np.cos(yaw), np.sin(yaw)
    T = make_transform(np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]]), np.array([x, y, 2.0]))
    turned = maps.align_grid(grid, T)
    assert turned.floor_z_m == pytest.approx(2.1)
    rows, columns = np.nonzero(cells == 100)
    # every part of an occupied cell, not only its middle
    for du, dv in ((0.5, 0.5), (0.2, 0.3), (0.7, 0.8)):
        points = grid.origin_m + 0.05 * np.stack([columns + du, rows + dv], axis=1)
        moved = points @ T[:2, :2].T + T[:2, 3]
        at = np.floor((moved - turned.origin_m) / 0.05).astype(int)
        near = [turned.cells[max(v - 1, 0) : v + 2, max(u - 1, 0) : u + 2].max() == 100 for u, v in at]
        assert all(near)
    # and grows by no more than the cells that it touches
    assert (turned.cells == 100).sum() <= 5 * max(1, len(rows))
    # occupied where any of nine parts of a cell was: the slow twin, cell by cell
    for v, u in np.ndindex(turned.cells.shape):
        parts = []
        for du, dv in np.ndindex(3, 3):
            part = turned.origin_m + 0.05 * np.array([u + (du + 0.5) / 3, v + (dv + 0.5) / 3])
            i, j = ((np.linalg.inv(T) @ [*part, 0.0, 1.0])[:2] - grid.origin_m) / 0.05
            on_border = min(abs(i - round(i)), abs(j - round(j))) < 1e-6
            parts.append((on_border, 0 <= i < 5 and 0 <= j < 7 and cells[int(j), int(i)] == 100))
        if not any(border for border, _ in parts):
            assert (turned.cells[v, u] == 100) == any(occupied for _, occupied in parts)
    # free and unknown by the middle of each cell
    for v, u in np.ndindex(turned.cells.shape):
        middle = turned.origin_m + 0.05 * np.array([u + 0.5, v + 0.5])
        back = (np.linalg.inv(T) @ [*middle, 0.0, 1.0])[:2]
        i, j = (back - grid.origin_m) / 0.05
        if min(abs(i - round(i)), abs(j - round(j))) < 1e-6:
            continue  # on the border of two cells
        there = 0 <= i < 5 and 0 <= j < 7
        expected = cells[int(j), int(i)] if there else -1
        if turned.cells[v, u] != 100:
            assert turned.cells[v, u] == expected


def test_a_grid_that_is_only_moved_keeps_its_cells():
    cells = RNG.choice(np.array([-1, 0, 100], np.int8), (5, 8))
    grid = OccupancyGrid2d(0.05, np.array([-1.0, 2.0]), cells, 0.1)
    moved = maps.align_grid(grid, make_transform(np.eye(3), np.array([0.013, -1.0, 0.5])))
    np.testing.assert_array_equal(moved.cells, cells)
    np.testing.assert_allclose([*moved.origin_m, moved.floor_z_m], [-0.987, 1.0, 0.6])
    empty = OccupancyGrid2d(0.05, np.zeros(2), np.zeros((0, 0), np.int8), 0.0)
    assert maps.align_grid(empty, make_transform(np.diag([-1.0, -1.0, 1.0]), np.zeros(3))).cells.shape == (0, 0)


def test_obstacles_are_a_cloud_of_plain_points():
    obstacles = Obstacles(np.array([[1, 2, 3]], np.float32), np.array([[4, 5, 6]], np.float32))
    cloud = maps.obstacles_to_cloud(obstacles, 9, "base_link", make_transform(np.eye(3), np.array([0.0, 0.0, -1.0])))
    assert cloud.header.frame_id == "base_link"
    assert [f.name for f in cloud.fields] == ["x", "y", "z"]
    assert cloud.point_step == 12
    assert maps.cloud_to_rows(cloud).tolist() == [(1.0, 2.0, 2.0), (4.0, 5.0, 5.0)]


# --------------------------------------------------------------------------------------------------------- objects


@pytest.mark.parametrize("seed", range(8))
def test_detections_round_trip_with_tilt(seed):
    rng = np.random.default_rng(seed)
    item, T = random_object(rng, 12), random_transform(rng)
    for T_out_world in (None, T):
        detection = objects.object_to_detection(item, 9, "odom", T_out_world)
        assert detection.id == "12"
        assert detection.results[0].hypothesis.class_id == "chair"
        assert detection.results[0].hypothesis.score == 0.75
        back = objects.message_to_box(detection.bbox, None if T_out_world is None else np.linalg.inv(T))
        np.testing.assert_allclose(box_corners(back[None]), box_corners(item.box[None]), atol=1e-9)


def test_further_names_follow_the_one_that_is_published():
    box = np.array([0, 0, 0, 2.0, 1.0, 0.5, 0, 0, 0])
    named = SceneObject(3, "chair", 0.75, box, names=(("chair", 0.75), ("stool", 0.25)))
    nameless = SceneObject(4, "object", 0.875, box, names=(("stool", 0.25), ("bin", 0.125)))
    for thing, said in ((named, ["chair", "stool"]), (nameless, ["object", "stool", "bin"])):
        detection = objects.object_to_detection(thing, 9, "odom")
        assert [result.hypothesis.class_id for result in detection.results] == said
        assert detection.results[0].hypothesis.score == thing.score
        back = objects.detection_to_object(detection)
        assert (back.label, back.score, back.names) == (thing.label, thing.score, thing.names)


def test_box_orientation_by_hand():
    box = np.array([0, 0, 0, 2.0, 1.0, 0.5, np.pi / 2, 0, 0])
    q = objects.box_to_message(box).center.orientation
    np.testing.assert_allclose([q.x, q.y, q.z, q.w], [0, 0, np.sqrt(0.5), np.sqrt(0.5)], atol=1e-12)
    tilted = objects.box_to_message(np.array([0, 0, 0, 2.0, 1.0, 0.5, 0, np.pi / 2, 0])).center.orientation
    np.testing.assert_allclose([tilted.x, tilted.w], [np.sqrt(0.5), np.sqrt(0.5)], atol=1e-12)


@pytest.mark.parametrize("size", [(0.0, 1.0, 1.0), (np.nan, 1.0, 1.0), (-1.0, 1.0, 1.0)])
def test_boxes_without_a_size_are_refused(size):
    message = objects.box_to_message(random_object(RNG, 1).box)
    message.size = Vector3(x=size[0], y=size[1], z=size[2])
    with pytest.raises(ValueError, match="size"):
        objects.message_to_box(message)


def test_markers_delete_what_vanished_and_keep_names():
    first, second, third = (random_object(RNG, i) for i in (3, 7, 9))
    message, shown = objects.object_markers([first, second], set(), 9, "odom")
    assert {m.action for m in message.markers} == {Marker.ADD}
    assert {(m.ns, m.id) for m in message.markers} == shown
    again, shown_again = objects.object_markers([second, third], shown, 10, "odom")
    deleted = {(m.ns, m.id) for m in again.markers if m.action == Marker.DELETE}
    assert {marker_id for _, marker_id in deleted} == {3}
    assert deleted == shown - shown_again
    assert {(m.ns, m.id) for m in again.markers if m.action == Marker.ADD and m.id == 7} == {
        k for k in shown if k[1] == 7
    }
    nothing, _ = objects.object_markers([], shown_again, 11, "odom")
    assert {m.action for m in nothing.markers} == {Marker.DELETE}


def test_markers_say_label_and_id_and_have_the_size_of_the_box():
    item = random_object(RNG, 3)
    message, _ = objects.object_markers([item], set(), 9, "odom")
    cube = next(m for m in message.markers if m.type == Marker.CUBE)
    text = next(m for m in message.markers if m.type == Marker.TEXT_VIEW_FACING)
    np.testing.assert_allclose([cube.scale.x, cube.scale.y, cube.scale.z], item.box[3:6])
    assert "chair 3" in text.text
    assert text.pose.position.z > box_corners(item.box[None])[0, :, 2].max()


def test_names_of_strangers_are_short_and_of_one_line_in_markers():
    """RViz draws every character of a text, wherever it comes from; the id stays."""
    for name in ("x" * 10_240, "a\nb\x1b[31m\u202e"):
        for item in (random_object(RNG, 3), replace(random_object(RNG, 3), user_name=name)):
            strange = replace(item, label=name)
            found = Grounding(name, GroundingStatus.FOUND, (strange,))
            for message, _ in (
                objects.object_markers([strange], set(), 9, "odom"),
                objects.grounding_markers(found, set(), 9, "odom"),
            ):
                (text,) = (m.text for m in message.markers if m.type == Marker.TEXT_VIEW_FACING)
                assert len(text) < 200
                assert text.isprintable()
                assert " 3" in text
    named = replace(random_object(RNG, 3), user_name="Anna's <b>chair</b>")
    message, _ = objects.grounding_markers(Grounding("it", GroundingStatus.FOUND, (named,)), set(), 9, "odom")
    assert "it -> Anna's <b>chair</b> 3" in [m.text for m in message.markers]


@pytest.mark.parametrize("status", list(GroundingStatus))
def test_grounding_round_trip(status):
    candidates = tuple(random_object(RNG, i) for i in (4, 5, 6)) if status in (1, 3) else ()
    phrases = (GroundedPhrase("the chair", 0, 9, (4, 7)), GroundedPhrase("sofa", 13, 17))
    nearest = tuple(random_object(RNG, i) for i in (7, 8)) if status == GroundingStatus.NOT_FOUND else ()
    tagged = "<p>chair</p>[<obj_4>]"
    grounding = Grounding("the chair", status, candidates, "because", tagged, 12.5, 1, phrases, nearest)
    message = objects.grounding_to_message(grounding, Query("it", id="q", standing=True), 9, "odom")
    back = objects.message_to_grounding(message)
    assert (back.text, back.status, back.reason, back.tagged_text) == (
        grounding.text,
        grounding.status,
        grounding.reason,
        grounding.tagged_text,
    )
    assert (back.count, back.phrases) == (1, phrases)
    assert [c.id for c in back.candidates] == [c.id for c in candidates]
    assert [(o.id, o.label) for o in back.nearest] == [(o.id, o.label) for o in nearest]
    assert back.latency_ms == pytest.approx(12.5)
    assert (message.id, message.standing) == ("q", True)


def test_what_is_open_has_the_ids_of_the_boxes() -> None:
    box = np.array([1.0, 2.0, 1.0, 0.8, 0.1, 2.0, 0.3, 0, 0])
    things = [
        SceneObject(3, "door", 0.9, box, condition="open", names=(("door", 0.9), ("wardrobe", 0.05))),
        SceneObject(4, "door", 0.8, box + np.eye(9)[0]),  # nobody knows
        SceneObject(7, "bin", 0.7, box, condition="filled"),
    ]
    message = objects.conditions_to_detections(things, 5, "map")
    said = [(d.id, [r.hypothesis.class_id for r in d.results]) for d in message.detections]
    assert said == [("3", ["open"]), ("7", ["filled"])]
    np.testing.assert_allclose(objects.message_to_box(message.detections[0].bbox), box, atol=1e-9)
    assert message.header.frame_id == "map"


@pytest.mark.skipif(objects.ObjectEventMessage is None, reason="the interface package is older: make setup builds it")
@pytest.mark.parametrize("kind", [k for k in EventKind.ALL if k != EventKind.FOUND])
def test_events_survive_the_wire(kind) -> None:
    box = np.array([1.0, 2.0, 0.4, 0.5, 0.4, 0.8, 0.3, 0.0, 0.0])
    before = None if kind == EventKind.APPEARED else SceneObject(7, "door", 0.8, box, condition="closed")
    after = None if kind == EventKind.LEFT else SceneObject(7, "door", 0.9, box + 0.1, condition="open")
    event = ObjectEvent(5_000_000_123, kind, 7, before, after, 0.75, "it looks the same", 12)
    message = objects.event_to_message(event, "map")
    back = deserialize_message(serialize_message(message), type(message))
    assert back.header.frame_id == "map"
    again = objects.message_to_event(back)
    assert (again.stamp_ns, again.kind, again.id, again.reason, again.formerly) == (
        *(event.stamp_ns, kind, 7, event.reason, 12),
    )
    assert again.confidence == pytest.approx(0.75)
    for here, there in ((before, again.before), (after, again.after)):
        assert (here is None) == (there is None)
        if here is not None and there is not None:
            assert np.allclose(here.box, there.box)
            assert there.condition == (here.condition if kind == EventKind.STATE else "")
