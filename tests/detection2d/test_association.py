"""Votes over views: hand-computed evidence, and groups that do not depend on the order of things."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest
from support.lift_world import CUP_BOX, K, photograph
from support.online_world import look_at
from support.scene_builder import snapshot_of

from embodied_perceptron.detection2d.association import (
    Candidate,
    LiftedView,
    ScoreEvidence,
    agreed_points,
    find_candidates,
    group_detections,
    visible_views,
)
from embodied_perceptron.detection2d.lifting import LiftedDetection, box_along
from embodied_perceptron.detection2d.rays import VoxelIndex
from embodied_perceptron.inference.class_priors import shipped_priors
from embodied_perceptron.sensors.frame import RgbdFrame

PRIORS = shipped_priors()
EYES = [np.array([0.4 + 0.7 * np.cos(a), 0.1 + 0.7 * np.sin(a), 1.5]) for a in np.linspace(0.5, 5.5, 6)]


def cube(center, size=0.08, count=300, seed=0):
    return np.asarray(center) + np.random.default_rng(seed).uniform(-0.5, 0.5, (count, 3)) * size


def detection(center=CUP_BOX[:3], label="cup", score=0.5, size=0.08, seed=0):
    points = cube(center, size, seed=seed)
    return LiftedDetection(label, score, points, box_along(points, 0.0), False, 40.0, 0, 0.0)


def views(*lifted, look=(0.4, 0.1, 0.79)):
    """One view for each list of detections, from around, all with the cup before them."""
    out = []
    for i, some in enumerate(lifted):
        T = look_at(EYES[i % len(EYES)], look)
        posed, _ = photograph(T, i + 1)
        out.append(LiftedView(i, posed.frame, T, some))
    return out


def only(candidates):
    assert len(candidates) == 1
    return candidates[0]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_existence_is_the_sum_of_the_evidence():
    evidence = ScoreEvidence(prior=-2.0, share=0.5)
    some = views([detection(score=0.5)], [detection(score=0.7, seed=1)], [], [detection(score=0.3, seed=2)], [])
    cup = only(find_candidates(some, PRIORS, 0.0, evidence))
    missed = 0.5 * np.log(0.65 / 0.95)
    by_hand = -2.0 + 0.5 * (2.2 + 3.2 + 1.0) + 2 * missed
    assert cup.exists == pytest.approx(sigmoid(by_hand), abs=1e-9)
    assert (cup.views, cup.visible, cup.label) == (3, 5, "cup")
    # and its name: the same evidence against "something else"
    assert cup.posterior["cup"] == pytest.approx(sigmoid(0.5 * (2.2 + 3.2 + 1.0)), abs=1e-9)
    assert cup.probability == pytest.approx(cup.exists * cup.posterior["cup"])
    np.testing.assert_allclose(cup.box[:3], CUP_BOX[:3], atol=0.01)


def test_views_that_look_elsewhere_do_not_speak_against():
    seen = [[detection(score=0.7)], [detection(score=0.7, seed=1)]]
    near = only(find_candidates(views(*seen, [], []), PRIORS, 0.0))
    away = views(*seen) + views([], [], look=(-1.9, 1.9, 2.0))
    assert only(find_candidates(away, PRIORS, 0.0)).exists > near.exists


def test_what_is_hidden_was_not_missed():
    some = views([detection(score=0.7)], [detection(score=0.7, seed=1)], [])
    hidden = some[2].frame.depth_m.copy()
    hidden[:] = 0.5  # a hand before the camera
    frame = RgbdFrame(9, "front", some[2].frame.color, hidden, K)
    covered = [*some[:2], LiftedView(2, frame, some[2].T_world_camera, [])]
    assert only(find_candidates(covered, PRIORS, 0.0)).visible == 2
    assert only(find_candidates(some, PRIORS, 0.0)).visible == 3


def test_names_are_voted_for_and_geometry_has_its_say():
    some = views([detection(score=0.7)], [detection(score=0.5, label="bottle", seed=1)], [detection(score=0.5, seed=2)])
    assert only(find_candidates(some, PRIORS, 0.0)).label == "cup"
    # three carpets against one cup, 0.8 m above the floor
    carpets = [detection(score=0.7, label="carpet", seed=i) for i in range(3)]
    some = views([carpets[0]], [carpets[1]], [carpets[2], detection(score=0.5, seed=7)])
    thing = only(find_candidates(some, PRIORS, 0.0))
    assert thing.label == "cup"
    assert thing.posterior["carpet"] < 0.02


def test_the_order_of_views_does_not_matter():
    rng = np.random.default_rng(3)
    lists = [
        [
            detection(CUP_BOX[:3] + rng.normal(0, 0.01, 3), score=s, seed=i),
            detection([-1, -1, 0.5], "chair", s - 0.1, 0.6),
        ]
        for i, s in enumerate((0.5, 0.61, 0.72, 0.83))
    ]
    some = views(*lists)
    expected = None
    for order in permutations(range(4)):
        found = find_candidates([some[i] for i in order], PRIORS, 0.0)
        values = [(c.label, round(c.probability, 9), *np.round(c.box, 6)) for c in found]
        expected = values if expected is None else expected
        assert values == expected
    assert [v[0] for v in expected] == ["cup", "chair"] or [v[0] for v in expected] == ["chair", "cup"]


def test_two_cups_side_by_side_stay_two():
    left, right = CUP_BOX[:3], CUP_BOX[:3] + np.array([0.0, 0.2, 0.0])
    some = views(*[[detection(left, score=0.8, seed=i), detection(right, score=0.79, seed=i + 9)] for i in range(3)])
    assert len(find_candidates(some, PRIORS, 0.0)) == 2


def test_a_cup_is_no_part_of_its_table():
    rng = np.random.default_rng(0)
    top = np.stack([rng.uniform(0.2, 1.0, 900), rng.uniform(-0.7, 0.7, 900), rng.uniform(0.72, 0.74, 900)], axis=1)
    table = LiftedDetection("table", 0.8, top, box_along(top, 0.0), True, 90.0, 1, 0.0)
    found = find_candidates(views([table, detection(score=0.81)], [table, detection(score=0.82, seed=1)]), PRIORS, 0.0)
    assert sorted(c.label for c in found) == ["cup", "table"]


def test_what_left_the_map_does_not_count():
    some = views([detection(score=0.8)], [detection(score=0.8, seed=1)])
    there = VoxelIndex.of(snapshot_of(np.concatenate([cube(CUP_BOX[:3], seed=s) for s in range(4)])))
    gone = VoxelIndex.of(snapshot_of(cube([1.5, 1.5, 0.2])))
    assert len(find_candidates(some, PRIORS, 0.0, index=there)) == 1
    assert find_candidates(some, PRIORS, 0.0, index=gone) == []


def slow_groups(affinity, scores):
    groups = []
    for i in sorted(range(len(scores)), key=lambda k: (-scores[k], k)):
        best, chosen = 0.0, None
        for g in groups:
            values = [affinity[i][j] for j in g]
            if sum(v > 0 for v in values) >= 0.5 * len(values) and np.mean(values) > best + 1e-12:
                best, chosen = np.mean(values), g
        if chosen is None:
            groups.append([i])
        else:
            chosen.append(i)
    return sorted(sorted(g) for g in groups)


@pytest.mark.parametrize("seed", range(6))
def test_groups_are_as_their_slow_twin(seed):
    rng = np.random.default_rng(seed)
    raw = rng.uniform(0, 1, (40, 40)) * (rng.uniform(size=(40, 40)) < 0.25)
    affinity = (raw + raw.T) / 2
    np.fill_diagonal(affinity, 1.0)
    scores = rng.permutation(np.linspace(0.1, 0.9, 40))
    fast = sorted(g.tolist() for g in group_detections(affinity, scores))
    assert fast == slow_groups(affinity, scores)
    assert 1 < len(fast) < 40


def test_points_that_one_view_of_four_has_fall_out():
    members = [detection(seed=i, size=0.06) for i in range(4)]
    stray = cube(CUP_BOX[:3] + np.array([0.3, 0, 0]), 0.02, 50)
    points = np.concatenate([members[0].points_m, stray])
    members[0] = LiftedDetection("cup", 0.5, points, members[0].box, False, 40.0, 0, 0.0)
    kept = agreed_points(members, small=True)
    assert len(kept) > 800
    assert kept[:, 0].max() < CUP_BOX[0] + 0.1


def slow_visible(candidate, view, least_px):
    seen = []
    probes = candidate.points_m[:: 1 + len(candidate.points_m) // 48]
    own = min(0.15, np.linalg.norm(np.ptp(probes, axis=0)))
    for p in probes:
        camera = np.linalg.inv(view.T_world_camera) @ np.append(p, 1.0)
        if camera[2] <= 0:
            seen.append(None)
            continue
        u, v = K.fx * camera[0] / camera[2] + K.cx, K.fy * camera[1] / camera[2] + K.cy
        inside = -0.5 <= u < K.width - 0.5 and -0.5 <= v < K.height - 0.5
        behind = inside and camera[2] - view.frame.depth_m[round(v), round(u)]
        noise = 0.05 + 0.02 * camera[2]
        on = inside and -noise < behind < noise + own
        seen.append((u, v) if on else None)
    shown = np.array([s for s in seen if s is not None])
    return len(shown) >= 0.5 * len(seen) and np.ptp(shown, axis=0).max() >= least_px


@pytest.mark.parametrize("seed", range(3))
def test_visibility_is_as_its_slow_twin(seed):
    rng = np.random.default_rng(seed)
    some = views([], [], [], [])
    centers = [CUP_BOX[:3], *rng.uniform([-2, -2, 0], [2, 2, 1.5], (12, 3))]
    things = [
        Candidate(cube(c, s, 100, i), np.zeros(9))
        for i, (c, s) in enumerate(zip(centers, [0.08] * 6 + [0.5] * 7, strict=True))
    ]
    fast = visible_views(things, some, 12.0)
    assert fast.tolist() == [[slow_visible(c, view, 12.0) for view in some] for c in things]
    assert fast.any()
    assert not fast.all()


def test_nothing_gives_nothing():
    assert find_candidates([], PRIORS, 0.0) == []
    assert find_candidates(views([], []), PRIORS, 0.0) == []
    assert visible_views([], views([]), 12.0).shape == (0, 1)


@pytest.mark.parametrize(
    "bad",
    [{"scores": (0.5, 0.4)}, {"recall": 0.01}, {"share": 0.0}, {"scores": (0.1,)}, {"scores": (0.5,) * 6}],
)
def test_evidence_is_checked(bad):
    with pytest.raises(ValueError, match=r"scores|recall|share"):
        ScoreEvidence(**bad)


def test_evidence_grows_with_the_score_and_is_constant_beyond():
    evidence = ScoreEvidence()
    values = [evidence.detected(s) for s in np.linspace(0, 1, 21)]
    assert all(b >= a for a, b in pairwise(values))
    assert evidence.detected(0.0) == evidence.detected(0.2)
    assert evidence.missed < 0


def test_worth_of_a_score_is_linear_between_the_measured_ones():
    evidence = ScoreEvidence()
    for score in np.linspace(-0.1, 1.1, 121):
        slow = evidence.share * np.interp(score, evidence.scores, evidence.log_ratios)
        assert evidence.detected(float(score)) == pytest.approx(slow, abs=1e-12)
    assert ScoreEvidence(scores=(0.5,), log_ratios=(2.0,)).detected(0.1) == pytest.approx(1.0)
