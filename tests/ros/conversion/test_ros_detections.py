"""vision_msgs/Detection2DArray -> boxes in pixels."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("rclpy")
pytest.importorskip("vision_msgs")

from rclpy.serialization import serialize_message
from std_msgs.msg import Header
from support.ros_detections import detection_2d
from vision_msgs.msg import Detection2D, Detection2DArray

from embodied_perceptron_ros.conversion.detections import count_serialized, detections_from_message, has_class_numbers

pytestmark = pytest.mark.ros


def test_a_message_becomes_boxes_from_pixel_centres():
    message = Detection2DArray(detections=[detection_2d("cup", (10.0, 20.0, 30.0, 60.0), 0.75)])
    raw = detections_from_message(message)
    np.testing.assert_allclose(raw.boxes_px, [[9.5, 19.5, 29.5, 59.5]])
    assert raw.labels == ("cup",)
    np.testing.assert_allclose(raw.scores, [0.75])


def test_nothing_seen_is_a_message_too():
    raw = detections_from_message(Detection2DArray())
    assert raw.boxes_px.shape == (0, 4)
    assert raw.labels == ()


def test_the_best_hypothesis_counts_and_none_has_no_name():
    two = detection_2d("cup", (0, 0, 9, 9), 0.3)
    two.results += detection_2d("bowl", (0, 0, 9, 9), 0.6).results
    raw = detections_from_message(Detection2DArray(detections=[two, Detection2D()]))
    assert raw.labels == ("bowl", "")
    np.testing.assert_allclose(raw.scores, [0.6, 0.0])


def test_a_score_that_is_no_number_is_not_hidden_by_another():
    odd = detection_2d("cup", (0, 0, 9, 9), math.nan)
    odd.results += detection_2d("bowl", (0, 0, 9, 9), 0.6).results
    assert math.isnan(detections_from_message(Detection2DArray(detections=[odd])).scores[0])


@pytest.mark.parametrize(("class_id", "name"), [("1", "b"), (" 0 ", "a"), ("2", ""), ("99999999", ""), ("b1", "b1")])
def test_numbered_classes(class_id, name):
    message = Detection2DArray(detections=[detection_2d(class_id, (0, 0, 9, 9), 0.5)])
    assert detections_from_message(message, ("a", "b")).labels == (name,)


@pytest.mark.parametrize(("class_id", "name"), [("56", "object"), (" 7 ", "object"), ("chair", "chair"), ("", "")])
def test_numbers_without_names_are_objects(class_id, name):
    message = Detection2DArray(detections=[detection_2d(class_id, (0, 0, 9, 9), 0.5)])
    assert detections_from_message(message).labels == (name,)


def test_a_turned_box_becomes_the_upright_one_around_it():
    turned = detection_2d("cup", (10.0, 20.0, 30.0, 60.0), 0.5)  # 20 x 40 about (20, 40)
    turned.bbox.center.theta = math.pi / 2
    raw = detections_from_message(Detection2DArray(detections=[turned]))
    np.testing.assert_allclose(raw.boxes_px, [[-0.5, 29.5, 39.5, 49.5]], atol=1e-9)
    turned.bbox.center.theta = math.pi / 4
    half = 30 / math.sqrt(2)
    raw = detections_from_message(Detection2DArray(detections=[turned]))
    np.testing.assert_allclose(raw.boxes_px[0], [20 - half - 0.5, 40 - half - 0.5, 20 + half - 0.5, 40 + half - 0.5])


@pytest.mark.parametrize("frame_id", ["", "a", "cam", "head_camera_optical_frame", "x" * 300])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_detections_are_counted_without_reading_them(frame_id, count):
    message = Detection2DArray(header=Header(frame_id=frame_id))
    message.detections = [detection_2d("cup", (0, 0, 9, 9), 0.5) for _ in range(count)]
    assert count_serialized(serialize_message(message)) == count


@pytest.mark.parametrize("data", [b"", b"\0" * 15, b"\0\1\0\0" + b"\0" * 8 + b"\xff\xff\xff\x7f" + b"\0" * 8])
def test_bytes_that_are_no_message_are_refused(data):
    with pytest.raises(ValueError, match="Detection2DArray"):
        count_serialized(data)


@pytest.mark.parametrize(
    ("class_id", "number"), [("56", True), (" 7 ", True), ("chair", False), ("", False), ("2x", False)]
)
def test_numbers_in_place_of_names_are_noticed(class_id, number):
    assert has_class_numbers(Detection2DArray(detections=[detection_2d(class_id, (0, 0, 9, 9), 0.3)])) == number
