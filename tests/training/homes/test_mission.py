"""What a simulated drive shows, the questions about it with their right answers, and the score of a map."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("embreex")

from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.recordings.artifacts import read_objects_json, read_occupancy_npz, write_objects_json
from embodied_perceptron.recordings.artifacts import write_occupancy_npz as write_cells
from embodied_perceptron.results import SceneObject, SemanticVoxels
from embodied_perceptron_training.evaluation.recordings.final_map import rasterise, score_objects, score_occupancy
from embodied_perceptron_training.homes.building.freespace import free_space
from embodied_perceptron_training.homes.building.home import HomeSpec, build_home
from embodied_perceptron_training.homes.mission import bearings, make_questions
from embodied_perceptron_training.homes.recording import HomeTrajectory, watch
from embodied_perceptron_training.homes.trajectories import RobotSpec, robot_trajectory

CAMERA = Intrinsics(265.6, 265.6, 159.5, 119.5, 320, 240)
FRAMES = 100


@pytest.fixture(scope="module")
def trajectory() -> HomeTrajectory:
    home = build_home(700007, HomeSpec(1, "living room"))
    spec = RobotSpec(rest_s=0.0)  # a view-dependent question wants a robot that looks around
    base = robot_trajectory(free_space(home), 250, 10.0, spec, 700007)[-FRAMES:]
    return watch(home, np.arange(FRAMES) * 100_000_000, base @ spec.T_base_camera, CAMERA)


def test_what_is_seen_is_what_is_before_the_camera(trajectory):
    seen = trajectory.seen()
    assert 5 < len(seen) <= len(trajectory.home.objects)
    assert trajectory.seen(2.0) == []
    first = trajectory.first_seen_ns(seen[0])
    view = int(np.flatnonzero(trajectory.stamps_ns == first)[0])
    assert trajectory.share[view, seen[0]] >= 0.0004 > trajectory.share[:view, seen[0]].max(initial=0.0)
    assert (trajectory.share.sum(axis=1) <= 1.0 + 1e-9).all()
    with pytest.raises(ValueError, match="never seen"):
        trajectory.first_seen_ns(seen[0], 2.0)


def test_cells_that_are_seen_lie_where_surfaces_are(trajectory):
    grid, labels, seen = trajectory.occupancy()
    assert labels.shape == seen.shape == grid.shape
    assert 0.02 < (labels[seen] > 0).mean() < 0.8
    np.testing.assert_allclose(np.array(grid.origin_m) / grid.cell_m, np.round(np.array(grid.origin_m) / grid.cell_m))


def test_bearings_are_positive_to_the_left():
    T = np.array([[0.0, 0, 1, 2], [-1, 0, 0, 0], [0, -1, 0, 1], [0, 0, 0, 1]])  # at x = 2, looking along x
    angles = bearings(T, np.array([[3.0, 1.0, 0.0], [3.0, -1.0, 5.0], [3.0, 0.0, 0.0]]))
    np.testing.assert_allclose(angles, [np.pi / 4, -np.pi / 4, 0.0], atol=1e-12)


def test_questions_are_true(trajectory):
    questions = {q.kind: q for q in make_questions(trajectory)}
    first = ["plain", "relational", "absent", "view-dependent", "standing"]
    assert list(questions) == [*first, "where", "command", "exists", "part", "language"]
    assert make_questions(trajectory) == tuple(questions.values())
    labels = [trajectory.home.objects[i].label for i in trajectory.seen(0.0005)]
    for kind in ("plain", "standing"):
        q = questions[kind]
        assert q.text == f"the {q.label}"
        assert labels.count(q.label) == 1
        assert trajectory.home.objects[q.target].label == q.label
        np.testing.assert_allclose(q.box, trajectory.home.objects[q.target].box9(), atol=1e-5)
    for kind in ("where", "command"):
        q = questions[kind]
        assert q.label in q.text
        assert labels.count(q.label) == 1
        np.testing.assert_allclose(q.box, trajectory.home.objects[q.target].box9(), atol=1e-5)
    for kind, status in (("exists", "NOT_FOUND"), ("part", "NOT_FOUND"), ("language", "INVALID")):
        assert (questions[kind].expected, questions[kind].box) == (status, ())
    absent = questions["absent"]
    assert (absent.expected, absent.target, absent.box) == ("NOT_FOUND", None, ())
    assert absent.text.removeprefix("the ") not in {o.label for o in trajectory.home.objects}
    assert labels.count(questions["relational"].label) >= 2
    side = questions["view-dependent"]
    view = int(np.flatnonzero(trajectory.stamps_ns == side.stamp_ns)[0])
    alike = [i for i in trajectory.seen(0.0005) if trajectory.home.objects[i].label == side.label]
    centers = np.array([trajectory.home.objects[i].box9()[:3] for i in alike])
    angle = dict(zip(alike, bearings(trajectory.T_world_camera[view], centers), strict=True))
    extreme = max if side.text.endswith("on the left") else min
    assert extreme(angle, key=lambda i: angle[i]) == side.target


def test_the_truth_scores_100_and_nothing_scores_0(trajectory):
    boxes = trajectory.home.boxes()
    objects = [SceneObject(i + 1, trajectory.home.objects[i].label, 0.9, boxes[i]) for i in trajectory.seen()]
    assert score_objects(trajectory, objects)["AP25"] == pytest.approx(100.0)
    assert score_objects(trajectory, [])["AP25"] == 0.0
    agnostic = [SceneObject(o.id, "object", 0.9, o.box) for o in objects]
    assert score_objects(trajectory, agnostic)["AP25"] == 0.0


def cells_of(trajectory: HomeTrajectory) -> SemanticVoxels:
    from embodied_perceptron.weights.categories import OCCUPANCY_CLASSES

    grid, labels, _ = trajectory.occupancy()
    cells = np.argwhere((labels > 0) & (labels < 255))
    centers = grid.centers(cells).astype(np.float32)
    mine = labels[tuple(cells.T)].astype(np.int32) - 1
    n = len(cells)
    color = np.zeros((n, 3), np.uint8)
    return SemanticVoxels(0.16, centers, color, mine, np.ones(n, np.float32), OCCUPANCY_CLASSES)


def test_true_cells_score_100(trajectory):
    cells = cells_of(trajectory)
    assert score_occupancy(trajectory, cells)["mIoU_classes"] == pytest.approx(100.0)
    nothing = SemanticVoxels(0.16, cells.centers_m[:0], cells.color[:0], cells.labels[:0], cells.confidence[:0], ("x",))
    assert score_occupancy(trajectory, nothing)["mIoU"] == 0.0


def test_rasterise_takes_the_class_of_most_confidence():
    centers = np.array([[0.02, 0.02, 0.02], [0.06, 0.02, 0.02], [0.1, 0.02, 0.02], [9.0, 0, 0]], np.float32)
    labels = np.array([0, 1, 0, 1], np.int32)
    confidence = np.array([0.2, 0.9, 0.2, 1.0], np.float32)
    semantic = SemanticVoxels(0.04, centers, np.zeros((4, 3), np.uint8), labels, confidence, ("floor", "wall", "thing"))
    raster = rasterise(semantic, np.zeros(3), 0.16, (2, 1, 1))
    assert raster.ravel().tolist() == [2, 0]


def test_files_give_back_what_was_written(trajectory, tmp_path: Path):
    cells = cells_of(trajectory)
    write_cells(tmp_path / "occupancy.npz", cells)
    back = read_occupancy_npz(tmp_path / "occupancy.npz")
    assert back.classes == cells.classes
    assert back.cell_size_m == cells.cell_size_m
    np.testing.assert_array_equal(back.centers_m, cells.centers_m)
    np.testing.assert_array_equal(back.labels, cells.labels)
    thing = SceneObject(4, "chair", 0.5, np.array([1, 2, 3, 1, 1, 1, 0.1, 0, 0]), "stale")
    write_objects_json(tmp_path / "objects.json", [thing])
    (read,) = read_objects_json(tmp_path / "objects.json")
    assert (read.id, read.label, read.score, read.state) == (4, "chair", 0.5, "stale")
    np.testing.assert_array_equal(read.box, thing.box)
    (tmp_path / "bad.json").write_text(json.dumps([{"id": 1}]))
    with pytest.raises(ValueError, match=r"bad\.json"):
        read_objects_json(tmp_path / "bad.json")
