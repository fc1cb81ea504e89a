"""Votes over views: hand-computed evidence, and groups that do not depend on the order of things."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from support.lift_world import CUP_BOX, K, photograph
from support.online_world import look_at
from support.scene_builder import snapshot_of

from embodied_perceptron.detection2d import association
from embodied_perceptron.detection2d.association import (
    FitCache,
    LiftedView,
    affinities,
    agreed_points,
    find_candidates,
    fully_visible,
    group_detections,
)
from embodied_perceptron.detection2d.lifting import LiftedDetection, VoxelIndex, box_along
from embodied_perceptron.geometry.suppression import (
    LIFTED_AFFINITY,
    LIFTED_OTHER_NAME_AFFINITY,
    LIFTED_OTHER_NAME_SIZE,
)
from embodied_perceptron.inference.posterior import SIZES
from embodied_perceptron.sensors.frame import RgbdFrame

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
        out.append(LiftedView("any", i, posed.frame, T, some))
    return out


def silent(candidate):
    """Detector -> its silent views of any size."""
    return {source: sum(views) for source, views in candidate.missed.items()}


def only(candidates):
    assert len(candidates) == 1
    return candidates[0]


def test_what_was_said_and_what_was_not_is_counted():
    some = views([detection(score=0.5)], [detection(score=0.7, seed=1)], [], [detection(score=0.3, seed=2)], [])
    cup = only(find_candidates(some))
    assert cup.reported == {"any": {"cup": (3, 0.7)}}
    assert silent(cup) == {"any": 2}
    assert cup.views == 3
    np.testing.assert_allclose(cup.box[:3], CUP_BOX[:3], atol=0.01)


def test_each_detector_is_counted_for_itself():
    one, two = views([detection(score=0.5)], []), views([detection(score=0.6, label="bowl")], [])
    of_two = [LiftedView("other", v.key, v.frame, v.T_world_camera, v.lifted) for v in two]
    cup = only(find_candidates([*one, *of_two]))
    assert cup.reported == {"any": {"cup": (1, 0.5)}, "other": {"bowl": (1, 0.6)}}
    assert silent(cup) == {"any": 1, "other": 1}


def test_views_that_look_elsewhere_do_not_speak_against():
    seen = [[detection(score=0.7)], [detection(score=0.7, seed=1)]]
    assert silent(only(find_candidates(views(*seen, [], [])))) == {"any": 2}
    away = views(*seen) + views([], [], look=(-1.9, 1.9, 2.0))
    assert silent(only(find_candidates(away))) == {}


def test_what_is_hidden_was_not_missed():
    some = views([detection(score=0.7)], [detection(score=0.7, seed=1)], [])
    hidden = some[2].frame.depth_m.copy()
    hidden[:] = 0.5  # a hand before the camera
    frame = RgbdFrame(9, "front", some[2].frame.color, hidden, K)
    covered = [*some[:2], LiftedView("any", 2, frame, some[2].T_world_camera, [])]
    assert silent(only(find_candidates(covered))) == {}
    assert silent(only(find_candidates(some))) == {"any": 1}


def test_one_look_that_is_hardly_sure_is_not_followed_up():
    assert find_candidates(views([detection(score=0.39)], [])) == []
    assert len(find_candidates(views([detection(score=0.39)], [detection(score=0.35, seed=1)]))) == 1


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
        found = find_candidates([some[i] for i in order])
        values = [(c.reported, c.missed, np.round(c.box, 6).tolist()) for c in found]
        expected = values if expected is None else expected
        assert values == expected
    assert [list(v[0]["any"]) for v in expected] == [["cup"], ["chair"]]


def test_two_cups_side_by_side_stay_two():
    left, right = CUP_BOX[:3], CUP_BOX[:3] + np.array([0.0, 0.2, 0.0])
    some = views(*[[detection(left, score=0.8, seed=i), detection(right, score=0.79, seed=i + 9)] for i in range(3)])
    assert len(find_candidates(some)) == 2


def test_a_cup_is_no_part_of_its_table():
    rng = np.random.default_rng(0)
    top = np.stack([rng.uniform(0.2, 1.0, 900), rng.uniform(-0.7, 0.7, 900), rng.uniform(0.72, 0.74, 900)], axis=1)
    table = LiftedDetection("table", 0.8, top, box_along(top, 0.0), True, 90.0, 1, 0.0)
    found = find_candidates(views([table, detection(score=0.81)], [table, detection(score=0.82, seed=1)]))
    assert sorted(name for c in found for name in c.reported["any"]) == ["cup", "table"]


def test_what_left_the_map_does_not_count():
    some = views([detection(score=0.8)], [detection(score=0.8, seed=1)])
    there = VoxelIndex.of(snapshot_of(np.concatenate([cube(CUP_BOX[:3], seed=s) for s in range(4)])))
    gone = VoxelIndex.of(snapshot_of(cube([1.5, 1.5, 0.2])))
    assert len(find_candidates(some, index=there)) == 1
    assert find_candidates(some, index=gone) == []


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


def slow_visible(points_m, view, least_px):
    seen = []
    probes = points_m[:: 1 + len(points_m) // 48]
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
    return len(shown) >= 0.75 * len(seen) and np.ptp(shown, axis=0).max() >= least_px


@pytest.mark.parametrize("seed", range(3))
def test_visibility_is_as_its_slow_twin(seed):
    rng = np.random.default_rng(seed)
    some = views([], [], [], [])
    centers = [CUP_BOX[:3], *rng.uniform([-2, -2, 0], [2, 2, 1.5], (12, 3))]
    things = [cube(c, s, 100, i) for i, (c, s) in enumerate(zip(centers, [0.08] * 6 + [0.5] * 7, strict=True))]
    fast = fully_visible(things, some, 12.0) > 0
    assert fast.tolist() == [[slow_visible(c, view, 12.0) for view in some] for c in things]
    assert fast.any()
    assert not fast.all()


def test_the_size_of_a_thing_in_the_picture_is_told():
    some = views([])
    on_table = np.array([*CUP_BOX[:2], CUP_BOX[2] - CUP_BOX[5] / 2])
    flat = np.random.default_rng(1).uniform(-0.5, 0.5, (200, 3)) * [1.0, 1.0, 0.0]
    distance_m = np.linalg.norm(some[0].T_world_camera[:3, 3] - CUP_BOX[:3])
    of_picture = 1.0 / distance_m * K.fx / max(K.width, K.height)  # of a metre there
    sides = [0.7 * SIZES[0] / of_picture, 0.7 * SIZES[1] / of_picture, 1.5 * SIZES[1] / of_picture]
    sizes = fully_visible([on_table + flat * side for side in sides], some, 1.0)[:, 0]
    assert sizes.tolist() == [1, 2, 3]


def test_nothing_gives_nothing():
    assert find_candidates([]) == []
    assert find_candidates(views([], [])) == []
    assert fully_visible([], views([]), 12.0).shape == (0, 1)


def test_what_is_remembered_of_the_last_call_is_what_is_found_anew():
    rng, cache, some = np.random.default_rng(4), FitCache(), []
    for step in range(8):
        cups = [detection(CUP_BOX[:3] + rng.normal(0, 0.01, 3), score=0.5 + 0.05 * step, seed=step)]
        chairs = [detection((-1.0, 1.1, 0.4), "chair", 0.6, 0.6, seed=20 + step)] if step % 3 else []
        (new,) = views([*cups, *chairs])
        some.append(LiftedView("any", step, new.frame, new.T_world_camera.copy(), new.lifted))
        if step == 5:
            some.pop(1)  # its keyframe has left
        if step == 6:  # its pose was corrected, and what it lifted with it
            T = some[0].T_world_camera.copy()
            T[:3, 3] += 5.0
            some[0] = LiftedView("any", 0, some[0].frame, T, [])
        for known, anew in zip(find_candidates(some, cache=cache), find_candidates(some), strict=True):
            assert (known.reported, known.missed, known.whole, known.members) == (
                anew.reported,
                anew.missed,
                anew.whole,
                anew.members,
            )
            np.testing.assert_array_equal(known.box, anew.box)
            np.testing.assert_array_equal(known.points_m, anew.points_m)


def slow_affinity(a, b):
    """As said in :func:`affinities`."""
    size = [d.box[3:6].max() for d in (a, b)]
    ratio, small = min(size) / max(size), [s < 0.45 for s in size]
    shared = len(set(a.cells_large.tolist()) & set(b.cells_large.tolist()))
    value = shared / min(len(set(d.cells_large.tolist())) for d in (a, b))
    if all(small):
        apart = np.linalg.norm(a.box[:3] - b.box[:3])
        value = np.exp(-0.5 * (apart / max(0.25 * sum(size), 0.04)) ** 2)
    elif any(small) and ratio <= 0.5:
        value = 0.0
    same = value >= LIFTED_AFFINITY
    other = value >= LIFTED_OTHER_NAME_AFFINITY and ratio >= LIFTED_OTHER_NAME_SIZE
    return value if (same if a.label == b.label else other) else 0.0


def test_affinities_are_as_their_slow_twin():
    rng = np.random.default_rng(2)
    some = [
        detection(rng.uniform(-0.3, 0.3, 3), str(rng.choice(["cup", "bowl"])), 0.5, side, seed)
        for seed, side in enumerate(rng.uniform(0.05, 0.9, 24))
    ]
    found = affinities(association._items(views(some[:12], some[12:]), None))
    assert found == pytest.approx(np.array([[slow_affinity(a, b) for b in some] for a in some]))
    assert 0.05 < (found > 0).mean() < 0.9
