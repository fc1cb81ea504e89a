"""Two opinions about one room become one."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support.lift_world import tour
from support.scene_builder import box_surface, snapshot_of

from embodied_perceptron.detection2d.association import LiftedView, ScoreEvidence
from embodied_perceptron.detection2d.fusion import _surface, doubts, fuse_detections
from embodied_perceptron.detection2d.lifting import LiftedDetection, box_along
from embodied_perceptron.geometry.suppression import fusion_affinity
from embodied_perceptron.results import Certainty, Detections

CHAIR = [0.0, 0.0, 0.45, 0.5, 0.5, 0.9, 0, 0, 0]
FAR = [3.0, 0.0, 0.45, 0.5, 0.5, 0.9, 0, 0, 0]


def found(*things):
    """(box, score, label) -> detections."""
    boxes = np.array([b for b, _, _ in things], dtype=float).reshape(-1, 9)
    return Detections(boxes, np.array([s for _, s, _ in things], dtype=float), tuple(label for _, _, label in things))


def calibrated(detections):
    return dataclasses.replace(detections, certainty=Certainty.CALIBRATED)


def moved(box, dx=0.0, grow=1.0):
    return [box[0] + dx, *box[1:3], *(grow * v for v in box[3:6]), *box[6:]]


def fuse(network, lifted, trusted=True):
    fused = fuse_detections(network, calibrated(lifted), np.full(len(lifted), trusted))
    return sorted(zip(fused.labels, np.round(fused.scores, 6), np.round(fused.boxes, 6).tolist(), strict=True))


def test_only_probabilities_are_fused_with_a_networks_scores():
    one = found((CHAIR, 0.8, "chair"))
    with pytest.raises(ValueError, match="expected calibrated scores of boxes, got raw ones"):
        fuse_detections(one, one, np.ones(1, bool))
    assert fuse_detections(one, calibrated(one), np.ones(1, bool)).certainty is Certainty.RAW
    assert fuse_detections(calibrated(one), calibrated(one), np.ones(1, bool)).certainty is Certainty.CALIBRATED


def test_agreement_is_counted_together_with_the_better_box():
    network, lifted = found((CHAIR, 0.5, "chair")), found((moved(CHAIR, 0.1), 0.8, "chair"))
    assert fuse(network, lifted) == [("chair", 0.9, moved(CHAIR, 0.1))]
    assert fuse(network, lifted, trusted=False) == [("chair", 0.9, CHAIR)]


def test_the_surer_name_stays():
    network, lifted = found((CHAIR, 0.3, "bin")), found((CHAIR, 0.8, "chair"))
    assert fuse(network, lifted) == [("chair", 0.8, CHAIR)]
    network = found((CHAIR, 0.9, "bin"))
    assert fuse(network, lifted) == [("bin", 0.9, CHAIR)]


def test_what_shapes_found_gets_its_name():
    assert fuse(found((CHAIR, 0.95, "object")), found((CHAIR, 0.6, "chair"))) == [("chair", 0.6, CHAIR)]


def test_other_things_stay_as_they_are():
    network, lifted = found((FAR, 0.4, "chair")), found((CHAIR, 0.6, "chair"))
    assert fuse(network, lifted) == [("chair", 0.4, FAR), ("chair", 0.6, CHAIR)]
    cup = [0.0, 0.0, 0.95, 0.08, 0.08, 0.1, 0, 0, 0]
    table = [0.0, 0.0, 0.45, 1.5, 0.9, 1.0, 0, 0, 0]  # the cup lies within its box
    assert len(fuse(found((table, 0.4, "table")), found((cup, 0.9, "cup")))) == 2


def test_one_of_two_boxes_of_one_thing_goes():
    network = found((CHAIR, 0.5, "chair"), (moved(CHAIR, 0.05), 0.2, "stool"))
    assert fuse(network, found((CHAIR, 0.6, "chair"))) == [("chair", 0.8, CHAIR)]


def test_a_chairs_back_is_the_chair():
    back = [0.0, 0.22, 0.45, 0.5, 0.1, 0.9, 0, 0, 0]
    fused = fuse(found((CHAIR, 0.5, "chair")), found((back, 0.8, "chair")), trusted=False)
    assert fused == [("chair", 0.9, CHAIR)]


def test_nothing_and_nothing():
    nothing = found()
    assert fuse(nothing, nothing) == []
    assert fuse(found((CHAIR, 0.5, "chair")), nothing) == [("chair", 0.5, CHAIR)]
    assert fuse(nothing, found((CHAIR, 0.5, "chair"))) == [("chair", 0.5, CHAIR)]
    assert fusion_affinity(nothing.boxes, nothing.boxes, np.zeros((0, 0), bool), np.zeros(0, bool)).shape == (0, 0)


@pytest.mark.parametrize("seed", range(4))
def test_the_order_does_not_matter_and_scores_stay_probabilities(seed):
    rng = np.random.default_rng(seed)
    names = np.array(["chair", "bin", "table", "object"])

    def some(n):
        rows = [
            ([*rng.uniform(-1, 1, 2), 0.4, *rng.uniform(0.2, 0.9, 3), 0, 0, 0], s, str(rng.choice(names[:3])))
            for s in rng.permutation(np.linspace(0.1, 0.9, n))
        ]
        return found(*rows)

    network, lifted = some(12), some(3)
    first = fuse(network, lifted)
    order = rng.permutation(12)
    assert fuse(network.take(order), lifted) == first
    assert all(0 <= s <= 1 for _, s, _ in first)


def silent_views(*said, count=8):
    """Views around the room's table; ``said`` stands in each."""
    frames, _ = tour(count)
    return [LiftedView(i, f.frame, f.T_world_camera, list(said)) for i, f in enumerate(frames)]


TABLE = [0.6, 0.0, 0.72, 1.4, 0.8, 0.08, np.pi / 2, 0, 0]
MAP = snapshot_of(box_surface((0.6, 0.0, 0.72), (0.8, 1.4, 0.04)))


def test_silence_speaks_against_names_that_the_detector_knows():
    network, evidence = found((TABLE, 0.5, "bed"), (TABLE, 0.5, "counter")), ScoreEvidence()
    vocabulary = frozenset({"bed", "cup"})
    against = doubts(network, vocabulary, silent_views(), MAP, evidence)
    assert against[1] == 0.0
    assert against[0] == pytest.approx(6 * evidence.missed)  # at most six views count
    few = doubts(network, vocabulary, silent_views(count=3), MAP, evidence)
    assert against[0] < few[0] < 0


def test_one_word_ends_the_silence():
    points = np.array([0.6, 0.0, 0.72]) + np.random.default_rng(0).uniform(-0.3, 0.3, (50, 3)) * [1, 1, 0.05]
    bed = LiftedDetection("bed", 0.4, points, box_along(points, 0.0), False, 60.0, 0, 0.0)
    network = found((TABLE, 0.5, "bed"))
    assert doubts(network, frozenset({"bed"}), silent_views(bed), MAP, ScoreEvidence())[0] == 0.0


def test_what_nobody_could_see_is_not_doubted():
    network = found((FAR, 0.5, "bed"))
    behind = snapshot_of(box_surface((3.0, 0.0, 0.45), (0.5, 0.5, 0.9)))  # behind the wall
    assert doubts(network, frozenset({"bed"}), silent_views(), behind, ScoreEvidence())[0] == 0.0
    assert doubts(network, frozenset({"bed"}), [], behind, ScoreEvidence())[0] == 0.0
    assert doubts(found(), frozenset({"bed"}), silent_views(), behind, ScoreEvidence()).shape == (0,)


def test_doubts_lower_odds():
    network = found((CHAIR, 0.5, "bed"))
    fused = fuse_detections(network, calibrated(found()), np.zeros(0, bool), np.array([-np.log(4.0)]))
    assert fused.scores[0] == pytest.approx(0.2)  # odds of one to one become one to four


@pytest.mark.parametrize("seed", range(3))
def test_surfaces_are_as_their_slow_twin(seed):
    rng = np.random.default_rng(seed)
    snapshot = snapshot_of(rng.uniform(-1, 1, (3000, 3)))
    box = np.array([*rng.uniform(-0.4, 0.4, 3), *rng.uniform(0.2, 1.0, 3), rng.uniform(-3, 3), 0, 0])
    points = snapshot.mean_point_m
    fast = _surface(box, points, points[:, 0].copy(), 0.02)
    c, s = np.cos(box[6]), np.sin(box[6])
    local = (points.astype(float) - box[:3]) @ np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])
    inside = points[(np.abs(local) <= box[3:6] / 2 + 0.02).all(axis=1)]
    assert len(inside) > 24
    np.testing.assert_array_equal(fast, inside[:: 1 + len(inside) // 24].astype(float))
