"""ARKitSceneRefer: metrics by hand, files, and the 2-D lift against what it is made of."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.random_boxes import random_boxes

from embodied_perceptron.geometry.boxes import box_iou
from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.recordings.files import write_json
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame
from embodied_perceptron_training.evaluation.runner.detections import Degradation
from embodied_perceptron_training.evaluation.suites.arkitscenerefer import (
    DISTANCES_M,
    FIGURES,
    IOU_THRESHOLDS,
    Answer,
    Reference,
    aligned_iou,
    axis_aligned,
    read_refer_answers,
    read_references,
    refer_metrics,
    write_refer_answers,
)
from embodied_perceptron_training.evaluation.suites.refer_lift import (
    Detection2d,
    center_hit,
    connected_points,
    lift,
    mask_points,
    noisy_detections,
    perfect_detections,
    trimmed_box,
)


def reference(name: str = "a", box: Any = (0, 0, 0, 1, 1, 1)) -> Reference:
    return Reference(name, "scene", "7", f"the {name} on the table", "cup", np.array(box, float))


# -- metrics


def test_metrics_by_hand() -> None:
    truth = [reference(str(k)) for k in range(5)]
    answers = [
        Answer.of_box(np.array([0, 0, 0, 1, 1, 1.0])),  # all
        Answer.of_box(np.array([0, 0, 0, 1, 1, 0.25])),  # IoU 0.25 exactly, centre right
        Answer.of_box(np.array([0.3, 0, 0, 1, 1, 1.0])),  # IoU 0.7 / 1.3 = 0.538, 0.3 m exactly
        Answer(np.array([0, 0, 0.4])),  # a centre alone
        None,
    ]
    assert refer_metrics(answers, truth) == pytest.approx(
        {
            "IoU@0.05": 60.0,
            "IoU@0.15": 60.0,
            "IoU@0.25": 60.0,
            "IoU@0.5": 40.0,
            "Dist@0.1": 40.0,
            "Dist@0.3": 60.0,
            "Dist@0.5": 80.0,
        }
    )


def test_perfect_is_100_and_silence_0() -> None:
    boxes = axis_aligned(random_boxes(6, 0).numpy())
    truth = [reference(str(k), box) for k, box in enumerate(boxes)]
    assert refer_metrics([Answer.of_box(b) for b in boxes], truth) == dict.fromkeys(FIGURES, 100.0)
    assert refer_metrics([None] * 6, truth) == dict.fromkeys(FIGURES, 0.0)


def test_unique_and_multiple_objects_are_scored_apart() -> None:
    box = [0.0, 0, 0, 1, 1, 1]
    truth = [dataclasses.replace(reference("a", box), unique=u) for u in (True, False, False)]
    figures = refer_metrics([Answer.of_box(np.array(box)), Answer.of_box(np.array(box)), None], truth)
    assert [figures[f"{kind}IoU@0.5"] for kind in ("", "unique/", "multiple/")] == pytest.approx([200 / 3, 100, 50])
    assert figures["multiple/Dist@0.3"] == 50.0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_monotone_in_the_thresholds_and_blind_to_the_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth, answers = [], []
    for k in range(12):
        box = np.concatenate([rng.uniform(-1, 1, 3), rng.uniform(0.1, 1, 3)])
        truth.append(reference(str(k), box))
        answers.append(Answer.of_box(box + rng.normal(0, 0.1, 6).clip(-0.09, 0.3)) if k else None)
    figures = refer_metrics(answers, truth)
    iou = [figures[f"IoU@{k}"] for k in IOU_THRESHOLDS]
    near = [figures[f"Dist@{d}"] for d in DISTANCES_M]
    assert iou == sorted(iou, reverse=True)
    assert near == sorted(near)
    order = rng.permutation(12)
    assert refer_metrics([answers[i] for i in order], [truth[i] for i in order]) == pytest.approx(figures)


def test_axis_aligned_iou_is_that_of_boxes_without_a_turn() -> None:
    boxes = random_boxes(12, 1).numpy()
    boxes[:, 6:] = 0
    aligned = axis_aligned(boxes)
    np.testing.assert_allclose(aligned, boxes[:, :6], atol=1e-9)
    expected = box_iou(torch.from_numpy(boxes[:6]), torch.from_numpy(boxes[6:])).numpy()
    found = [[aligned_iou(a, b) for b in aligned[6:]] for a in aligned[:6]]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_axis_aligned_bounds_a_turned_box() -> None:
    box = np.array([[1, 2, 3, 2, 1, 0.5, np.pi / 2, 0, 0]])
    np.testing.assert_allclose(axis_aligned(box), [[1, 2, 3, 1, 2, 0.5]], atol=1e-6)


def test_flat_boxes_overlap_nothing() -> None:
    flat = np.array([0, 0, 0, 1, 1, 0.0])
    assert aligned_iou(flat, flat) == 0.0


def test_metrics_refuse_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="no expressions"):
        refer_metrics([], [])
    with pytest.raises(ValueError, match="1 answers for 2"):
        refer_metrics([None], [reference("a"), reference("b")])
    with pytest.raises(ValueError, match="negative size"):
        reference("a", (0, 0, 0, 1, -1, 1))
    with pytest.raises(ValueError, match="6 finite"):
        reference("a", (0, 0, 0, 1, np.nan, 1))
    with pytest.raises(ValueError, match="centre"):
        Answer(np.array([0, np.inf, 0]))


# -- files


def published(**changes: Any) -> dict[str, Any]:
    entry = {
        "scene_id": "123",
        "object_id": "9",
        "description": "a cup beside the lamp",
        "token": ["a", "cup", "beside", "the", "lamp"],
        "split": "Training",
        "id": "Training-123-9",
        "center": [0.1, 0.2, 0.3],
        "object_label": "cup",
        "bbox": [0.1, 0.2, 0.3, 0.08, 0.08, 0.1],
    }
    return {k: v for k, v in {**entry, **changes}.items() if v is not ...}


def test_published_records_are_read(tmp_path: Path) -> None:
    path = tmp_path / "val.json"
    path.write_text(json.dumps([published(), published(), published(id="Training-123-8", object_id=8)]))
    records, repeated = read_references(path)
    assert [r.id for r in records] == ["Training-123-9", "Training-123-8"]
    assert repeated == 1
    assert (records[0].label, records[1].object_id) == ("cup", "8")
    np.testing.assert_array_equal(records[0].box, [0.1, 0.2, 0.3, 0.08, 0.08, 0.1])
    write_json(path, [r.as_dict() for r in records])
    again, repeated = read_references(path)
    assert repeated == 0
    assert [r.as_dict() for r in again] == [r.as_dict() for r in records]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({}, "must be a list"),
        ([3], "record 0 must be a mapping"),
        ([published(bbox=...)], "record 0 lacks 'bbox'"),
        ([published(bbox=[1, 2, 3])], "'Training-123-9': bbox must be 6"),
        ([published(bbox="large")], "bbox"),
        ([published(description=" ")], "empty description"),
        ([published(), published(description="another")], "has the id 'Training-123-9'"),
    ],
)
def test_records_that_are_none(tmp_path: Path, entries: Any, message: str) -> None:
    path = tmp_path / "val.json"
    path.write_text(json.dumps(entries))
    with pytest.raises(ValueError, match=message) as error:
        read_references(path)
    assert "val.json" in str(error.value)


def test_answers_round_trip(tmp_path: Path) -> None:
    truth = [reference("a"), reference("b"), reference("c")]
    given_ = [Answer.of_box(np.array([1, 2, 3, 0.1, 0.2, 0.3])), Answer(np.array([1, 2, 3])), None]
    path = tmp_path / "answers.json"
    write_refer_answers(path, truth, given_)
    found = read_refer_answers(path, truth)
    assert found[2] is None
    boxes = [None if a is None or a.box is None else a.box.tolist() for a in found]
    assert boxes == [[1, 2, 3, 0.1, 0.2, 0.3], None, None]
    assert [a.center_m.tolist() for a in found if a is not None] == [[1, 2, 3], [1, 2, 3]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nothing", "answers.json: Expecting"),
        ({"answers": []}, "'answers' must be a mapping"),
        ({"answers": {}}, "no answer for 'a'"),
        ({"answers": {"a": None, "z": None}}, "'z', which is no reference"),
        ({"answers": {"a": {}}}, "answer 'a' must hold"),
        ({"answers": {"a": {"center": [1, 2]}}}, "answer 'a'"),
        ({"answers": {"a": {"bbox": [1, 2, 3, 1, 1, -1]}}}, "negative size"),
    ],
)
def test_answers_that_are_none(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "answers.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ValueError, match=message):
        read_refer_answers(path, [reference("a")])


# -- the lift

CAMERA = Intrinsics(100.0, 100.0, 49.5, 39.5, 100, 80)


def view(depth_m: np.ndarray[Any, Any], T: np.ndarray[Any, Any] | None = None, stamp: int = 0) -> PosedFrame:
    color = np.zeros((80, 100, 3), np.uint8)
    frame = RgbdFrame(stamp + 1, "camera", color, depth_m.astype(np.float32), CAMERA)
    return PosedFrame(frame, np.eye(4) if T is None else T)


def wall_with_plate() -> tuple[PosedFrame, np.ndarray[Any, Any]]:
    """A wall 3 m before the camera, and before it, at 2 m, a plate of 40 x 20 pixels: 0.8 x 0.4 m."""
    depth_m = np.full((80, 100), 3.0)
    instances = np.zeros((80, 100), np.int64)
    depth_m[30:50, 30:70] = 2.0
    instances[30:50, 30:70] = 5
    return view(depth_m), instances


def test_a_plate_is_lifted_to_where_it_hangs() -> None:
    frame, instances = wall_with_plate()
    detections = perfect_detections(instances, 0, {5: "plate", 9: "cup"})
    assert [(d.label, d.box.tolist()) for d in detections] == [("plate", [30, 30, 70, 50])]
    (cluster,) = lift(detections, [frame], 0.02)
    assert (cluster.label, cluster.hits) == ("plate", 1)
    # the ray through the middle of the box: pixel (50, 40), half a pixel right of and below the axis
    np.testing.assert_allclose(cluster.center_m, [0.01, 0.01, 2.0], atol=1e-9)
    # rays at u = 30, 35 .. 65 and v = 30, 35, 40, 45; 5 % of 32 points is one at each end of each axis
    low, high = cluster.box[:3] - cluster.box[3:] / 2, cluster.box[:3] + cluster.box[3:] / 2
    np.testing.assert_allclose(low, [2 * (30 - 49.5) / 100, 2 * (30 - 39.5) / 100, 2.0], atol=1e-9)
    np.testing.assert_allclose(high, [2 * (65 - 49.5) / 100, 2 * (45 - 39.5) / 100, 2.0], atol=1e-9)


def test_the_world_is_where_the_camera_says() -> None:
    frame, instances = wall_with_plate()
    T = np.array([[0, 0, 1, 1.0], [-1, 0, 0, 2.0], [0, -1, 0, 3.0], [0, 0, 0, 1]])
    (cluster,) = lift(perfect_detections(instances, 0, {5: "plate"}), [view(frame.frame.depth_m, T)], 0.02)
    np.testing.assert_allclose(cluster.center_m, T[:3, :3] @ [0.01, 0.01, 2.0] + T[:3, 3], atol=1e-9)


def test_trimming_drops_a_share_of_each_end() -> None:
    points = np.stack([np.arange(100.0), np.zeros(100), -np.arange(100.0)], axis=1)
    points[0, 1], points[99, 1] = -50.0, 50.0  # far off, as rays past an edge
    np.testing.assert_allclose(trimmed_box(points), [49.5, 0, -49.5, 89, 0, 89])
    np.testing.assert_allclose(trimmed_box(points[:1]), [0, -50, 0, 0, 0, 0])


def test_the_ray_takes_the_nearest_measured_pixel_of_the_mask() -> None:
    frame, instances = wall_with_plate()
    depth_m = frame.frame.depth_m.copy()
    depth_m[35:45, 40:60] = 0.0
    (detection,) = perfect_detections(instances, 0, {5: "plate"})
    hit = center_hit(detection, view(depth_m))
    assert hit is not None
    np.testing.assert_allclose(hit[2], 2.0)
    np.testing.assert_allclose(hit[:2], [0.01, 2 * (45 - 39.5) / 100], atol=1e-9)  # five rows below the middle
    assert center_hit(detection, view(np.zeros((80, 100)))) is None
    assert lift([detection], [view(np.zeros((80, 100)))], 0.02) == []


def test_thin_masks_without_a_pixel_on_the_grid_use_all_of_them() -> None:
    frame, instances = wall_with_plate()
    instances = np.zeros_like(instances)
    instances[31:34, 31:34] = 5
    (detection,) = perfect_detections(instances, 0, {5: "button"})
    assert len(mask_points(detection, frame)) == 9


def test_the_biggest_cluster_stands_first_and_classes_stay_apart() -> None:
    frame, instances = wall_with_plate()
    (plate,) = perfect_detections(instances, 0, {5: "plate"})
    other = np.zeros_like(instances)
    other[5:10, 5:15] = 1
    (far,) = perfect_detections(other, 0, {1: "plate"})
    seen_again = [
        Detection2d(1, "plate", plate.box, plate.mask),
        Detection2d(1, "clock", plate.box, plate.mask),
    ]
    clusters = lift([far, plate, *seen_again], [frame, frame], 0.05)
    assert [(c.label, c.hits) for c in clusters] == [("plate", 2), ("clock", 1), ("plate", 1)]
    with pytest.raises(ValueError, match="view 1, there are 1"):
        lift(seen_again, [frame], 0.05)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 40))
def test_points_in_reach_of_each_other_share_a_cluster(seed: int, count: int) -> None:
    points = np.random.default_rng(seed).uniform(0, 1, (count, 3))
    near = np.linalg.norm(points[:, None] - points[None], axis=2) <= 0.2
    for _ in range(count):
        near = near @ near  # whoever is reached over others
    labels = connected_points(points, 0.2)
    np.testing.assert_array_equal(labels[:, None] == labels[None], near)
    assert list(dict.fromkeys(labels.tolist())) == list(range(labels.max() + 1))  # numbered by their first point


def test_a_detector_without_faults_changes_nothing() -> None:
    _, instances = wall_with_plate()
    perfect = perfect_detections(instances, 0, {5: "plate"})
    (same,) = noisy_detections(perfect, ["plate"], Degradation(), np.random.default_rng(0))
    np.testing.assert_array_equal(same.box, perfect[0].box)
    np.testing.assert_array_equal(same.mask, perfect[0].mask)


def test_a_noisy_detector_misses_confuses_and_jitters_as_often_as_it_should() -> None:
    _, instances = wall_with_plate()
    perfect = perfect_detections(instances, 0, {5: "plate"}) * 1000
    noise = Degradation(recall=0.8, confusion=0.3, jitter=0.1)
    found = noisy_detections(perfect, ["plate", "cup", "clock"], noise, np.random.default_rng(0))
    assert len(found) == pytest.approx(800, abs=40)
    assert np.mean([d.label != "plate" for d in found]) == pytest.approx(0.3, abs=0.05)
    shift = np.array([(d.box - perfect[0].box) / [40, 20, 40, 20] for d in found])
    assert shift.std() == pytest.approx(0.1, abs=0.01)
    for d in found[:50]:  # the mask goes with its box
        v, u = np.nonzero(d.mask)
        np.testing.assert_allclose([u.min(), v.min(), u.max() + 1, v.max() + 1], d.box, atol=1.5)
    again = noisy_detections(perfect, ["clock", "plate", "cup"], noise, np.random.default_rng(0))
    assert [d.label for d in again] == [d.label for d in found]
    with pytest.raises(ValueError, match="at least two"):
        noisy_detections(perfect, ["plate"], noise, np.random.default_rng(0))


def test_detections_refuse_boxes_that_are_none() -> None:
    with pytest.raises(ValueError, match="u0 < u1"):
        Detection2d(0, "cup", np.array([5, 5, 5, 9.0]), np.zeros((8, 8), bool))
    with pytest.raises(ValueError, match="score"):
        Detection2d(0, "cup", np.array([5, 5, 6, 9.0]), np.zeros((8, 8), bool), 1.5)
