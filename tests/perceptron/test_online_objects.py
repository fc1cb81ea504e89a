"""Objects with names: scores over time, duplicates across names, borders of the window, moved things, corrections."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
from support.object_scenes import FLOOR, SECOND, A, B, C, found, ids
from support.object_scenes import world as build_world

from embodied_perceptron.config import ScorePolicy
from embodied_perceptron.geometry.boxes import box_rotations, transform_boxes
from embodied_perceptron.geometry.manhattan import Region
from embodied_perceptron.geometry.suppression import blend_boxes, box_affinity
from embodied_perceptron.geometry.transforms import make_transform
from embodied_perceptron.results import ObjectState
from embodied_perceptron.scene.object_map import ObjectMap

world = cache(build_world)  # nobody changes a snapshot


def by_id(objects: ObjectMap):
    return {o.id: o for o in objects.objects()}


def test_often_and_middling_beats_once_and_high():
    objects = ObjectMap()
    full, policy = world(A, B), ScorePolicy(0.25)
    objects.update(found(A, B, scores=[0.95, 0.5], labels=["bed", "chair"]), full, 0, scores=policy)
    for i in range(1, 8):
        objects.update(found(B, scores=[0.5], labels=["chair"]), full, i * SECOND // 10, scores=policy)
    now = by_id(objects)
    assert now[1].score < 0.2
    assert 0.8 < now[2].score < 1.0  # mean 0.4, where 0.25 is as likely wrong as right
    objects.update(
        found(A, scores=[0.95], labels=["bed"]), full, SECOND, scores=policy
    )  # a second flash still does not
    now = by_id(objects)
    assert now[2].score > now[1].score


def test_scores_go_down_where_nothing_is_found_and_never_above_what_was():
    objects = ObjectMap()
    policy = ScorePolicy(0.25)
    for i in range(60):
        objects.update(found(A, scores=[0.4], labels=["chair"]), world(A), i, scores=policy)
    high = objects.objects()[0].score
    assert 0.7 < high < 1 / (1 + ((0.4 / 0.6) / (0.25 / 0.75)) ** -4.0)  # as much as four independent looks say
    for i in range(3):
        objects.update(found(), world(A), 60 + i, scores=policy)
    assert objects.objects()[0].score < high - 0.05


def test_a_weak_box_continues_an_object_but_begins_none():
    objects = ObjectMap()
    for i in range(2):
        objects.update(found(A, scores=[0.8], labels=["chair"]), world(A, B), i, scores=ScorePolicy(0.5))
    weak = found(A, B, scores=[0.3, 0.3], labels=["chair", "table"])
    objects.update(weak, world(A, B), 2, scores=ScorePolicy(0.5))
    assert ids(objects) == [1]
    assert json.loads(objects.to_json())["objects"][0]["found"] == 3


def test_of_two_names_for_one_box_the_better_counts_and_no_id_is_spent():
    objects = ObjectMap()
    near = (A[0] + 0.02, *A[1:])
    for i in range(4):
        objects.update(found(A, near, scores=[0.4, 0.7], labels=["stool", "chair"]), world(A), i)
    assert [(o.id, o.label) for o in objects.objects()] == [(1, "chair")]
    assert json.loads(objects.to_json())["next_id"] == 2


def test_a_curtain_before_its_window_stays_beside_it():
    objects = ObjectMap()
    window = (0.0, 0.0, 1.2, 1.0, 0.3, 1.0, 0.0, 0.0, 0.0)
    curtain = (0.0, 0.1, 1.2, 1.1, 0.3, 1.1, 0.0, 0.0, 0.0)  # IoU about 0.45
    for i in range(3):
        objects.update(found(window, curtain, labels=["window", "curtain"]), world(window, curtain), i)
    assert sorted(o.label for o in objects.objects()) == ["curtain", "window"]
    for i in range(3):  # two of one name that overlap as much are one
        objects.update(found(window, curtain, labels=["window", "window"]), world(window, curtain), 3 + i)
    assert sum(o.label == "window" for o in objects.objects()) == 1


def test_one_thing_under_several_names_is_one_object():
    objects = ObjectMap()
    shifted, lower = (A[0] + 0.3, *A[1:]), (A[0], A[1], 0.25, A[3], A[4], 0.5, *A[6:])  # IoU about 0.4 and 0.6
    for i in range(3):
        seen = found(A, shifted, lower, scores=[0.7, 0.5, 0.4], labels=["chair", "stool", "table"])
        objects.update(seen, world(A, shifted), i)
    assert [(o.id, o.label) for o in objects.objects()] == [(1, "chair")]
    beside = (A[0] + 0.75, *A[1:])  # another one, that barely touches it
    for i in range(3, 6):
        objects.update(found(A, beside, labels=["chair", "stool"]), world(A, beside), i)
    assert sorted(o.label for o in objects.objects()) == ["chair", "stool"]


def test_names_change_when_later_looks_know_better():
    objects = ObjectMap()
    for i in range(10):
        objects.update(found(A, scores=[0.5], labels=["stool"]), world(A), i)
    for i in range(10):
        objects.update(found(A, scores=[0.6], labels=["chair"]), world(A), 10 + i)
    assert [(o.id, o.label) for o in objects.objects()] == [(1, "chair")]


def test_nothing_stands_in_space_without_voxels():
    objects = ObjectMap()
    for i in range(3):
        objects.update(found(A, B, labels=["chair", "chair"]), world(A), i)
    assert ids(objects) == [1]


def test_outside_of_the_window_objects_are_kept_untouched():
    objects = ObjectMap()
    for i in range(2):
        objects.update(found(A, B, C), world(A, B, C), i)
    before = {i: o.as_dict() for i, o in by_id(objects).items()}
    window = Region(np.array([1.0, -3.0, -np.inf]), np.array([4.0, 3.0, np.inf]))  # B alone
    for i in range(2, 40):
        objects.update(found(B), world(B), i * SECOND, looked_at=window)
    after = {i: o.as_dict() for i, o in by_id(objects).items()}
    assert after[1] == before[1]
    assert after[3] == before[3]
    objects.update(found(B), world(B), 41 * SECOND)  # looked everywhere: they are gone
    assert ids(objects) == [2]


def test_a_box_cut_by_the_window_does_not_shrink_what_is_known():
    objects = ObjectMap()
    for i in range(2):
        objects.update(found(A, labels=["bed"]), world(A), i)
    half = (0.2, 0.0, 0.4, 0.4, 0.6, 0.8, 0.2, 0.0, 0.0)
    window = Region(np.array([0.0, -3.0, -np.inf]), np.array([4.0, 3.0, np.inf]))
    objects.update(found(half, labels=["bed"]), world(A), 3, looked_at=window)
    assert objects.objects()[0].box == pytest.approx(A)
    other = ObjectMap()
    other.update(found(half, labels=["bed"]), world(A), 0, looked_at=window)
    other.update(found(A, labels=["bed"]), world(A), 1)  # the whole replaces the part at once
    assert other.objects()[0].box == pytest.approx(A)
    assert ids(other) == [1]


def test_a_moved_chair_leaves_at_once_and_keeps_its_id_like_a_nudged_one():
    objects = ObjectMap()
    chair = (0.0, 0.0, 0.4, 0.5, 0.5, 0.8, 0.3, 0.0, 0.0)
    for i in range(3):
        objects.update(found(chair, labels=["chair"]), world(chair), i)
    nudged = (0.15, 0.0, 0.4, 0.5, 0.5, 0.8, 0.3, 0.0, 0.0)
    objects.update(found(nudged, labels=["chair"]), world(nudged), 3)
    assert ids(objects, ObjectState.CONFIRMED) == [1]
    away = (1.5, 0.0, 0.4, 0.5, 0.5, 0.8, 0.3, 0.0, 0.0)
    objects.update(found(away, labels=["chair"]), world(away), 4)
    assert ids(objects, ObjectState.CONFIRMED) == []
    objects.update(found(away, labels=["chair"]), world(away), 5)
    assert ids(objects, ObjectState.CONFIRMED) == [1]


def test_what_waits_in_vain_for_long_is_dropped():
    objects = ObjectMap()
    for i in range(2):
        objects.update(found(A, labels=["chair"]), world(A), i)
    for second in (10, 30, 59):
        objects.update(found(), world(A), second * SECOND)
        assert ids(objects, ObjectState.STALE) == [1]
    objects.update(found(), world(A), 62 * SECOND)
    assert ids(objects) == []


def test_time_in_which_nobody_looked_does_not_count():
    objects = ObjectMap()
    elsewhere = Region(np.array([1.0, -3.0, -np.inf]), np.array([4.0, 3.0, np.inf]))
    for i in range(2):
        objects.update(found(A, labels=["chair"]), world(A), i)
    for second in range(1, 200, 5):  # the robot is in another room
        objects.update(found(), world(A), second * SECOND, looked_at=elsewhere)
    objects.update(found(), world(A), 200 * SECOND)  # back, and missed once
    assert ids(objects, ObjectState.CONFIRMED) == [1]
    objects.update(found(), world(A), 206 * SECOND)
    assert ids(objects, ObjectState.STALE) == [1]


def test_a_pause_of_the_program_makes_nothing_old():
    objects, loaded = ObjectMap(), ObjectMap()
    for i in range(2):
        objects.update(found(A, labels=["chair"]), world(A), i)
    loaded.load_json(objects.to_json())
    loaded.update(found(), world(A), 10**18)  # another day, another clock
    assert ids(loaded, ObjectState.CONFIRMED) == [1]


def test_corrected_objects_move_rigidly_and_keep_their_ids():
    objects = ObjectMap()
    for i in range(2):
        objects.update(found(A, B), world(A, B), i)
    before = by_id(objects)
    yaw = 0.4
    R = np.array([[np.cos(yaw), -np.sin(yaw), 0], [np.sin(yaw), np.cos(yaw), 0], [0, 0, 1]])
    T = make_transform(R, np.array([1.0, -2.0, 0.1]))
    objects.move(lambda _: T)
    after = by_id(objects)
    assert set(after) == set(before)
    for i, old in before.items():
        np.testing.assert_allclose(after[i].box[:3], R @ old.box[:3] + T[:3, 3])
        np.testing.assert_allclose(box_rotations(after[i].box[None])[0], R @ box_rotations(old.box[None])[0], atol=1e-9)
    import torch

    moved = [transform_boxes(T, torch.tensor([b], dtype=torch.float64)).numpy()[0] for b in (A, B)]
    objects.update(found(*moved), build_world(*moved), 2)
    assert ids(objects) == [1, 2]


def test_thin_things_are_matched_in_spite_of_centimetres():
    picture = np.array([[0, 0, 1.5, 0.6, 0.02, 0.4, 0, 0, 0]])
    behind = np.array([[0, 0.04, 1.5, 0.6, 0.02, 0.4, 0, 0, 0]])
    assert box_affinity(picture, behind)[0, 0] > 0.4


def test_blend_is_of_the_same_box_whatever_its_axes_are_called():
    rng = np.random.default_rng(0)
    for _ in range(50):
        old = np.concatenate([rng.normal(size=3), rng.uniform(0.5, 0.9, 3), rng.uniform(-1, 1, 3)])
        R = box_rotations(old[None])[0]
        P = np.array([[0, 0, 1.0], [1, 0, 0], [0, 1, 0]])  # the same box by another name
        import torch

        from embodied_perceptron.geometry.boxes import matrix_to_euler

        renamed = np.concatenate([old[:3], P.T @ old[3:6], matrix_to_euler(torch.from_numpy(R @ P)).numpy()])
        assert box_affinity(old[None], renamed[None])[0, 0] == pytest.approx(1.0)
        blended = blend_boxes(old[None], renamed[None], np.array([0.5]))[0]
        np.testing.assert_allclose(blended[:6], old[:6], atol=1e-9)
        np.testing.assert_allclose(box_rotations(blended[None])[0], R, atol=1e-9)


def test_objects_of_an_older_file_are_read():
    objects = ObjectMap()
    objects.update(found(A), world(A), 0)
    data = json.loads(objects.to_json())
    data["version"] = 1
    for entry in data["objects"]:
        del entry["looks"], entry["whole"]
    objects.load_json(json.dumps(data))
    objects.update(found(A), world(A), 1)
    assert ids(objects, ObjectState.CONFIRMED) == [1]


def test_floor_alone_supports_nothing():
    from support.scene_builder import snapshot_of

    objects = ObjectMap()
    objects.update(found(A, labels=["chair"]), world(A), 0)
    objects.update(found(A, labels=["chair"]), world(A), 1)
    objects.update(found(), snapshot_of(FLOOR), 2)
    assert ids(objects) == []
