"""Votes over views: hand-computed evidence, and groups that do not depend on the order of things."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from support.lift_world import CUP_BOX, K, no_detections, photograph
from support.online_world import look_at
from support.scene_builder import snapshot_of

from embodied_perceptron.detection2d.association import (
    FitCache,
    LiftedView,
    find_candidates,
    group_detections,
    hull_points,
    sightings,
)
from embodied_perceptron.detection2d.detections2d import Detections2d
from embodied_perceptron.detection2d.lifting import LiftedDetection, VoxelIndex, box_along
from embodied_perceptron.geometry.transforms import invert_transform, project, transform_points

NOTHING = no_detections("front", 0)
NO_BOX = np.array([0.0, 0.0, 1.0, 1.0])
EYES = [np.array([0.4 + 0.7 * np.cos(a), 0.1 + 0.7 * np.sin(a), 1.5]) for a in np.linspace(0.5, 5.5, 6)]


def cube(center, size=0.08, count=300, seed=0):
    return np.asarray(center) + np.random.default_rng(seed).uniform(-0.5, 0.5, (count, 3)) * size


def detection(center=CUP_BOX[:3], label="cup", score=0.5, size=0.08, seed=0):
    points = cube(center, size, seed=seed)
    return lifted(points, label, score)


def lifted(points, label, score=0.8, around=None):
    around = np.zeros((0, 3)) if around is None else around
    box = box_along(points, 0.0)
    return LiftedDetection(label, score, points, box, False, 0, NO_BOX, around, np.ones(4, bool))


def seen_by(one, T):
    """The detection with the 2-D box in which a camera sees its surface."""
    uv, _ = project(transform_points(invert_transform(T), one.points_m), K)
    return replace(one, box_px=np.concatenate([uv.min(axis=0), uv.max(axis=0)]))


def views(*detections, look=(0.4, 0.1, 0.79)):
    """One view for each list of detections, from around, all with the cup before them."""
    out = []
    for i, some in enumerate(detections):
        T = look_at(EYES[i % len(EYES)], look)
        posed, _ = photograph(T, i + 1)
        out.append(LiftedView("any", i, posed.frame, T, [seen_by(one, T) for one in some], NOTHING))
    return out


def only(candidates):
    assert len(candidates) == 1
    return candidates[0]


def test_what_was_said_is_counted():
    some = views([detection(score=0.5)], [detection(score=0.7, seed=1)], [], [detection(score=0.3, seed=2)], [])
    cup = only(find_candidates(some))
    assert cup.reported == {"any": {"cup": (3, 0.7)}}
    assert {view for view, _ in cup.members} == {0, 1, 3}
    np.testing.assert_allclose(cup.box[:3], CUP_BOX[:3], atol=0.01)


def test_each_detector_is_counted_for_itself():
    one, two = views([detection(score=0.5)], []), views([detection(score=0.6, label="bowl")], [])
    of_two = [LiftedView("other", v.key, v.frame, v.T_world_camera, v.lifted, NOTHING) for v in two]
    cup = only(find_candidates([*one, *of_two]))
    assert cup.reported == {"any": {"cup": (1, 0.5)}, "other": {"bowl": (1, 0.6)}}


def test_one_look_that_is_hardly_sure_is_not_followed_up():
    assert find_candidates(views([detection(score=0.39)], [])) == []
    assert len(find_candidates(views([detection(score=0.39)], [detection(score=0.35, seed=1)]))) == 1


def test_what_was_lifted_behind_an_object_is_no_second_one():
    """One view has the cup in its 2-D box and takes the table behind it for its surface."""
    some = views(*[[detection(score=0.8, seed=i)] for i in range(4)])
    behind = cube((0.75, -0.35, 0.76), 0.08)
    strays = [
        replace(v, lifted=[replace(d, points_m=behind, box=box_along(behind, 0.0)) for d in v.lifted]) for v in some[3:]
    ]
    cup = only(find_candidates([*some[:3], *strays]))
    np.testing.assert_allclose(cup.box[:3], CUP_BOX[:3], atol=0.02)


def test_the_order_of_views_does_not_matter():
    rng = np.random.default_rng(3)
    lists = [
        [
            detection(CUP_BOX[:3] + rng.normal(0, 0.01, 3), score=s, seed=i),
            detection([0.8, -0.4, 0.76], "bowl", s - 0.1, 0.06),
        ]
        for i, s in enumerate((0.5, 0.61, 0.72, 0.83))
    ]
    some = views(*lists)
    expected = None
    for order in permutations(range(4)):
        found = find_candidates([some[i] for i in order])
        values = [(c.reported, np.round(c.box, 6).tolist()) for c in found]
        expected = values if expected is None else expected
        assert values == expected
    assert [list(v[0]["any"]) for v in expected] == [["cup"], ["bowl"]]


def test_two_cups_side_by_side_stay_two():
    left, right = CUP_BOX[:3], CUP_BOX[:3] + np.array([0.0, 0.2, 0.0])
    some = views(*[[detection(left, score=0.8, seed=i), detection(right, score=0.79, seed=i + 9)] for i in range(3)])
    assert len(find_candidates(some)) == 2


def rim(shift_m, seed):
    """A detection of the part of the cup's rim that far from its middle."""
    return detection(CUP_BOX[:3] + np.array([0.0, shift_m, 0.04]), size=0.02, seed=seed)


@pytest.mark.parametrize(("shift_m", "in_one_image", "count"), [(0.03, False, 1), (0.03, True, 2), (0.05, False, 2)])
def test_parts_of_one_name_that_intersect_are_one_object_unless_an_image_shows_both(shift_m, in_one_image, count):
    """Depth that is not registered to colour displaces the surface, to another side in each view."""
    lists = [[rim(shift_m, seed=i)] for i in range(3)] + [[rim(-shift_m, seed=i)] for i in (3, 4)]
    if in_one_image:
        lists[0].append(rim(-shift_m, seed=5))
    found = find_candidates(views(*lists))
    assert len(found) == count
    assert sum(c.reported["any"]["cup"][0] for c in found) == 5 + in_one_image


def test_two_cups_that_one_image_shows_stay_two_although_a_part_lies_between():
    lists = [[rim(0.03, seed=i), rim(-0.03, seed=i + 9)] for i in range(3)]
    lists += [[rim(0.0, seed=i)] for i in (5, 6)]
    found = find_candidates(views(*lists))
    assert sorted(c.reported["any"]["cup"][0] for c in found) == [3, 5]


def test_a_cup_is_no_part_of_its_table():
    rng = np.random.default_rng(0)
    top = np.stack([rng.uniform(0.2, 1.0, 900), rng.uniform(-0.7, 0.7, 900), rng.uniform(0.72, 0.74, 900)], axis=1)
    table = lifted(top, "table")
    found = find_candidates(views([table, detection(score=0.81)], [table, detection(score=0.82, seed=1)]))
    assert sorted(name for c in found for name in c.reported["any"]) == ["cup", "table"]


@pytest.mark.parametrize(("names", "count"), [(("door", "doorframe"), 2), (("cup", "mug"), 1)])
def test_a_door_and_its_frame_are_two_objects(names, count):
    both = [[detection(label=name) for name in names]] * 3
    assert len(find_candidates(views(*both))) == count


@pytest.mark.parametrize("change", [{"score": 0.3}, {"cut": True}, {"fill": 0.2}])
def test_one_view_is_enough_where_its_surface_fills_the_box(change):
    assert len(find_candidates(views([detection()]))) == 1
    assert not find_candidates(views([replace(detection(), **change)]))


@pytest.mark.parametrize(("of_others", "objects"), [(2, ["table"]), (0, ["cup"])])
def test_one_view_of_a_surface_that_is_another_objects_makes_no_object(of_others, objects):
    top = cube((0.4, 0.1, 0.0), 0.8, 3000) * [1, 1, 0] + [0, 0, CUP_BOX[2] - CUP_BOX[5] / 2]
    edge = top[np.linalg.norm(top[:, :2] - [0.4, 0.1], axis=1) < 0.15]
    some = views([lifted(edge, "cup")], *[[lifted(top, "table")] for _ in range(of_others)])
    assert [next(iter(c.reported["any"])) for c in find_candidates(some)] == objects


def test_what_left_the_map_does_not_count():
    some = views([detection(score=0.8)], [detection(score=0.8, seed=1)])
    there = VoxelIndex(snapshot_of(np.concatenate([cube(CUP_BOX[:3], seed=s) for s in range(4)])))
    gone = VoxelIndex(snapshot_of(cube([1.5, 1.5, 0.2])))
    assert len(find_candidates(some, index=there)) == 1
    assert find_candidates(some, index=gone) == []


def slow_groups(seen, view):
    """Groups of one name: joined by the most support while at least half of the sightings agree."""
    groups = [{i} for i in range(len(view))]

    def support(a, b):
        agree = differ = 0.0
        for x, y in ((a, b), (b, a)):
            for i in x:
                for j in y:
                    if view[i] == view[j]:
                        differ += 2.0
                    elif seen[i, view[j]] == j:
                        agree += 1.0
                    elif seen[i, view[j]] != -1:
                        differ += 1.0
        return agree**2 / (agree + differ) if agree >= 2.0 and agree >= 0.5 * (agree + differ) else 0.0

    while True:
        pairs = [(support(a, b), -min(a), -min(b)) for k, a in enumerate(groups) for b in groups[k + 1 :]]
        if not pairs or max(pairs)[0] == 0.0:
            return sorted(sorted(g) for g in groups)
        _, i, j = max(pairs)
        a, b = (next(g for g in groups if min(g) == -k) for k in (i, j))
        groups = [g for g in groups if g not in (a, b)] + [a | b]
        groups.sort(key=min)


@pytest.mark.parametrize("seed", range(6))
def test_groups_are_as_their_slow_twin(seed):
    rng = np.random.default_rng(seed)
    true, view = rng.integers(0, 4, 24), np.arange(24) % 8
    seen = np.full((24, 8), -1)
    for i in range(24):
        for j in range(24):
            if true[i] == true[j] and rng.uniform() < 0.6:
                seen[i, view[j]] = j  # numbers of detections are those of rows here
            elif seen[i, view[j]] == -1 and rng.uniform() < 0.3:
                seen[i, view[j]] = -2
    of = np.stack([view, np.arange(24)], axis=1)
    fast = sorted(g.tolist() for g in group_detections(seen, of, np.zeros(24, np.int64)))
    assert [len(g) for g in fast] == [len(g) for g in slow_groups(seen, view)]
    assert fast == slow_groups(seen, view)


def test_two_sides_of_a_table_without_common_surface_are_one_table():
    rng = np.random.default_rng(0)
    top = np.stack([rng.uniform(0.2, 1.0, 2000), rng.uniform(-0.7, 0.7, 2000), np.full(2000, 0.74)], axis=1)
    left, right = top[top[:, 1] < -0.05], top[top[:, 1] > 0.05]
    some = views([lifted(top, "table")], [lifted(top, "table")])
    halves = [
        replace(view, lifted=[replace(view.lifted[0], points_m=half, box=box_along(half, 0.0))])
        for view, half in zip(some, (left, right), strict=True)
    ]
    table = only(find_candidates(halves))
    assert len(table.members) == 2
    np.testing.assert_allclose(np.sort(table.box[3:5]), [0.8, 1.4], atol=0.08)


def test_what_other_views_have_outside_of_the_box_is_no_part_of_it():
    some = views(*[[detection(seed=i)] for i in range(4)])
    stray = np.array([0.6, 0.4, 0.74]) + np.random.default_rng(0).uniform(-0.03, 0.03, (60, 3)) * [1, 1, 0]  # table
    first = some[0].lifted[0]
    wide = replace(first, points_m=np.concatenate([first.points_m, stray]), box_px=np.array([0.0, 0.0, 319.0, 239.0]))
    kept = hull_points([wide, *(v.lifted[0] for v in some[1:])], some)
    assert np.abs(kept - CUP_BOX[:3]).max() < 0.15


def test_parts_of_a_mask_need_not_be_connected():
    rng = np.random.default_rng(3)
    strips = [rng.uniform([0.4, y, 0.74], [0.8, y + 0.06, 0.74], (300, 3)) for y in (-0.2, 0.2)]
    points = np.concatenate(strips)
    some = views(*[[lifted(points, "doorframe")]] * 3)
    assert len(hull_points([v.lifted[0] for v in some], some)) < 0.6 * len(points)
    masked = []
    for view in some:
        uv, _ = project(transform_points(invert_transform(view.T_world_camera), points), K)
        mask = np.zeros((1, K.height, K.width), bool)
        mask[0, np.rint(uv[:, 1]).astype(int), np.rint(uv[:, 0]).astype(int)] = True
        found = Detections2d("front", 0, view.lifted[0].box_px[None], np.ones(1), ("doorframe",), mask)
        masked.append(replace(view, found=found))
    members = [v.lifted[0] for v in masked]
    kept = hull_points(members, masked)
    assert all((np.abs(kept[:, 1] - y - 0.03) < 0.05).any() for y in (-0.2, 0.2))
    between = rng.uniform([0.4, -0.05, 0.74], [0.8, 0.1, 0.74], (100, 3))
    assert sightings(between, members, some)[1].sum() > 0
    assert sightings(between, members, masked)[1].sum() == 0, "the mask leaves it out of the box"


@pytest.mark.parametrize("seed", range(3))
def test_sightings_are_as_their_slow_twin(seed):
    rng = np.random.default_rng(seed)
    some = views(*[[detection(seed=i)] for i in range(3)])
    points = np.concatenate([cube(CUP_BOX[:3]), rng.uniform([-2, -2, 0], [2, 2, 1.5], (100, 3))])
    seen, inside = np.zeros(len(points)), np.zeros(len(points))
    for view in some:
        low, high = view.lifted[0].box_px[:2], view.lifted[0].box_px[2:]
        grow = 2.0 + 0.04 * (high - low)
        for p, point in enumerate(points):
            x, y, z = (np.linalg.inv(view.T_world_camera) @ np.append(point, 1.0))[:3]
            uv = np.array([K.fx * x / z + K.cx, K.fy * y / z + K.cy])
            column, row = np.floor(uv + 0.5).astype(int)
            if z < 0.05 or not (0 <= column < K.width and 0 <= row < K.height):
                continue
            if abs(z - view.frame.depth_m[row, column]) <= 0.05 + 0.02 * z:
                seen[p] += 1
                inside[p] += (uv >= low - grow).all() and (uv <= high + grow).all()
    fast = sightings(points, [v.lifted[0] for v in some], some)
    np.testing.assert_array_equal(fast[0], seen)
    np.testing.assert_array_equal(fast[1], inside)
    assert 0 < inside.sum() < seen.sum()


def test_nothing_gives_nothing():
    assert find_candidates([]) == []
    assert find_candidates(views([], [])) == []


def test_what_is_remembered_of_the_last_call_is_what_is_found_anew():
    rng, cache, some = np.random.default_rng(4), FitCache(), []
    for step in range(8):
        cups = [detection(CUP_BOX[:3] + rng.normal(0, 0.01, 3), score=0.5 + 0.05 * step, seed=step)]
        chairs = [detection((-1.0, 1.1, 0.4), "chair", 0.6, 0.6, seed=20 + step)] if step % 3 else []
        (new,) = views([*cups, *chairs])
        some.append(LiftedView("any", step, new.frame, new.T_world_camera.copy(), new.lifted, NOTHING))
        if step == 5:
            some.pop(1)  # its keyframe has left
        if step == 6:  # its pose was corrected, and what it lifted with it
            T = some[0].T_world_camera.copy()
            T[:3, 3] += 5.0
            some[0] = LiftedView("any", 0, some[0].frame, T, [], NOTHING)
        for known, anew in zip(find_candidates(some, cache=cache), find_candidates(some), strict=True):
            assert (known.reported, known.members) == (anew.reported, anew.members)
            np.testing.assert_array_equal(known.box, anew.box)
            np.testing.assert_array_equal(known.points_m, anew.points_m)
