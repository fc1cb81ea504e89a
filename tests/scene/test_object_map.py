"""Persistent ids: association, states, expiry, merging, persistence."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.object_scenes import FLOOR, SECOND, A, B, C, found, ids, world
from support.scene_builder import box_surface, snapshot_of

from embodied_perceptron.config import EVERY_SCORE, ExistenceConfig, ScorePolicy, TrackingConfig
from embodied_perceptron.geometry.manhattan import Region
from embodied_perceptron.geometry.suppression import blend_boxes, box_affinity
from embodied_perceptron.mapping.voxel_counts import count_voxels, without_bottom
from embodied_perceptron.results import UNNAMED, Detections, ObjectState
from embodied_perceptron.scene.object_map import ObjectMap, _Look


def expected_score(mean, looks):
    """Odds of the mean against clutter (0.1), to the power of the independent looks; existence at its limit."""
    odds = (mean / (1 - mean)) / (0.1 / 0.9)
    right = 1 / (1 + odds ** -min(looks, 1.5))
    return right / (1 + np.exp(-4.0))


def test_tentative_then_confirmed_with_the_same_id():
    objects = ObjectMap(TrackingConfig(existence=ExistenceConfig(confirm_count=3)))
    for i in range(3):
        assert ids(objects, ObjectState.CONFIRMED) == []
        objects.update(found(A, B), world(A, B), i)
    assert ids(objects, ObjectState.CONFIRMED) == [1, 2]
    thing = objects.objects()[0]
    assert thing.box == pytest.approx(A)
    assert thing.last_seen_ns == 7  # from the voxels, not from the clock
    assert thing.score == pytest.approx(expected_score(0.8, 3))


def test_one_perception_confirms_where_asked_for():
    objects = ObjectMap()
    objects.update(found(A), world(A), 0, confirm=True)
    assert ids(objects, ObjectState.CONFIRMED) == [1]
    objects.update(found(A, B), world(A, B), 1)
    assert ids(objects, ObjectState.CONFIRMED) == [1]
    assert ids(objects, ObjectState.TENTATIVE) == [2]


def test_probabilities_follow_from_the_score_of_even_odds():
    objects, known = ObjectMap(), ObjectMap()
    for i in range(3):
        objects.update(found(A, B), world(A, B), i)
        known.update(found(A, B), world(A, B), i, scores=ScorePolicy(0.3, even=0.5))
    doubted = objects.probabilities(0.5)
    assert doubted == pytest.approx([o.score for o in known.objects()])  # whatever they are published from
    assert objects.probabilities(0.1) == pytest.approx([o.score for o in objects.objects()])
    assert all(a < o.score for a, o in zip(doubted, objects.objects(), strict=True))
    assert objects.probabilities(0.5, (ObjectState.STALE,)) == ()


def test_what_is_hardly_right_any_more_is_claimed_no_longer():
    """Two looks said chair, many more at the same thing did not: it is there, but hardly what it was called. Found
    again it is claimed again; what a user has named never ceases to be."""
    policy = ScorePolicy(0.5).of_probabilities()
    objects, named = ObjectMap(), ObjectMap()
    for each in (objects, named):
        for i in range(2):
            each.update(found(A, scores=[0.6], labels=["chair"]), world(A), i, scores=policy)
        assert ids(each, ObjectState.CONFIRMED) == [1]
    named.name(1, "grandpa")
    for i in range(2, 12):
        for each in (objects, named):
            each.update(found(), world(A), i, scores=policy)
    (thing,) = objects.objects()
    assert thing.score < policy.keep
    assert thing.state == ObjectState.TENTATIVE
    assert ids(named, ObjectState.CONFIRMED) == [1]
    for i in range(12, 26):
        objects.update(found(A, scores=[0.9], labels=["chair"]), world(A), i, scores=policy)
    assert ids(objects, ObjectState.CONFIRMED) == [1]


def test_more_looks_at_one_map_do_not_make_a_name_surer():
    """They see the same voxels: what is a chair with a probability of 0.7 is none in three of ten cases, however long
    one looks."""
    policy = ScorePolicy(0.4).of_probabilities()
    objects = ObjectMap()
    for i in range(40):
        objects.update(found(A, scores=[0.7], labels=["chair"]), world(A), i, scores=policy)
        if i == 3:
            early = objects.objects()[0].score
    assert objects.objects()[0].score == pytest.approx(early, abs=0.02)
    assert 0.7 < early < 0.8


def test_what_lies_at_the_score_of_claims_does_not_come_and_go():
    policy = ScorePolicy(0.5).of_probabilities()  # nothing is claimed below 0.2, nor anew below 0.25
    objects, seen = ObjectMap(), []
    for i, score in enumerate([0.6, 0.6, *([0.2] * 6), *([0.4, 0.2] * 6)]):
        objects.update(found(A, scores=[score], labels=["chair"]), world(A), i, scores=policy)
        seen.append(objects.objects()[0])
    assert all(0.2 < thing.score < 0.25 for thing in seen[-8:])
    assert {thing.state for thing in seen[1:]} == {ObjectState.CONFIRMED}
    weak = ObjectMap()
    for i, score in enumerate([0.5, *([0.2] * 4), *([0.4, 0.2] * 6)]):
        weak.update(found(A, scores=[score], labels=["chair"]), world(A), i, scores=policy)
        assert weak.objects()[0].state == ObjectState.TENTATIVE
    assert weak.objects()[0].score > 0.2


def test_means_of_older_maps_had_two_looks_more():
    objects, older = ObjectMap(), ObjectMap()
    for i in range(4):
        objects.update(found(A, scores=[0.6]), world(A), i)
    data = json.loads(objects.to_json())
    data["version"] = 3
    data["objects"][0]["score"] *= 4 / 6
    data["objects"][0]["reference"] *= 4 / 6
    older.load_json(json.dumps(data))
    assert older.objects()[0].score == pytest.approx(objects.objects()[0].score)


def test_without_probabilities_what_is_there_stays_confirmed():
    objects = ObjectMap()
    for i in range(2):
        objects.update(found(A), world(A), i)
    for i in range(2, 12):
        objects.update(found(), world(A), i)
    assert ids(objects, ObjectState.CONFIRMED) == [1]


def test_a_map_of_fewer_sightings_than_are_asked_for_now_keeps_its_objects():
    objects, stricter = (
        ObjectMap(TrackingConfig(existence=ExistenceConfig(confirm_count=2))),
        ObjectMap(TrackingConfig(existence=ExistenceConfig(confirm_count=5))),
    )
    for i in range(2):
        objects.update(found(A), world(A), i)
    stricter.load_json(objects.to_json())
    stricter.update(found(A), world(A), 2)
    assert ids(stricter, ObjectState.CONFIRMED) == [1]


def test_order_of_detections_does_not_move_ids():
    objects = ObjectMap()
    objects.update(found(A, B, C), world(A, B, C), 0)
    objects.update(found(C, A, B), world(A, B, C), 1)
    assert {o.id: o.box[0] for o in objects.objects()} == {1: 0.0, 2: 2.0, 3: -2.0}


def test_a_box_that_grows_keeps_its_id():
    objects = ObjectMap()
    part = (0.0, 0.0, 0.4, 0.4, 0.3, 0.8, 0.0, 0.0, 0.0)
    whole = (0.3, 0.2, 0.4, 1.0, 0.7, 0.8, 0.0, 0.0, 0.0)
    objects.update(found(part), world(part), 0)
    objects.update(found(whole), world(whole), 1)
    assert ids(objects) == [1]
    assert objects.objects()[0].box == pytest.approx(whole)


def test_seen_empty_expires_and_the_id_is_never_used_again():
    objects = ObjectMap()
    for i in range(2):
        objects.update(found(A, B), world(A, B), i)
    objects.update(found(B), world(B), 2)  # A is gone, its floor is still mapped
    assert ids(objects) == [2]
    other = (*A[:3], *(0.4 * edge for edge in A[3:6]), *A[6:])  # too small to be A
    for i in range(3, 5):
        objects.update(found(other, B), world(other, B), i)
    assert ids(objects, ObjectState.CONFIRMED) == [2, 3]


def test_a_place_that_the_map_forgot_keeps_its_object():
    objects = ObjectMap()
    for i in range(2):
        objects.update(found(A, B), world(A, B), i)
    full = world(B)
    far = full.mean_point_m[:, 0] > 1.0  # everything about A was evicted, floor included
    rest = type(full)(
        full.voxel_size_m,
        *(
            getattr(full, name)[far]
            for name in ("coords", "mean_point_m", "mean_color", "hits", "evidence", "last_seen_ns")
        ),
    )
    for i in range(2, 20):
        objects.update(found(B), rest, i * SECOND)
    assert ids(objects, ObjectState.CONFIRMED) == [1, 2]


def test_out_of_reach_is_left_alone():
    objects = ObjectMap()
    for i in range(2):
        objects.update(found(A, B), world(A, B), i)
    objects.update(found(), snapshot_of(FLOOR), 100 * SECOND, camera_m=np.array([20.0, 0, 1]), reach_m=10.0)
    assert ids(objects, ObjectState.CONFIRMED) == [1, 2]
    objects.update(found(), snapshot_of(FLOOR), 101 * SECOND, camera_m=np.array([0.0, 0, 1]), reach_m=10.0)
    assert ids(objects) == []


def test_not_found_but_still_there_grows_stale_and_recovers():
    objects = ObjectMap()
    for i in range(2):
        objects.update(found(A), world(A), i)
    objects.update(found(), world(A), 1 * SECOND)
    assert ids(objects, ObjectState.CONFIRMED) == [1]
    objects.update(found(), world(A), 10 * SECOND)
    assert ids(objects, ObjectState.STALE) == [1]
    objects.update(found(A), world(A), 11 * SECOND)
    assert ids(objects, ObjectState.CONFIRMED) == [1]


def test_tentative_goes_when_it_is_not_found_again():
    objects = ObjectMap()
    objects.update(found(A), world(A), 0)
    objects.update(found(), world(A), 1 * SECOND)
    assert ids(objects, ObjectState.TENTATIVE) == [1]
    objects.update(found(), world(A), 5 * SECOND)
    assert ids(objects) == []


def test_clock_set_back_ages_nothing():
    objects = ObjectMap()
    for i in range(2):
        objects.update(found(A), world(A), 1000 * SECOND + i)
    objects.update(found(), world(A), 0)
    assert ids(objects, ObjectState.CONFIRMED) == [1]


def test_duplicates_merge_into_the_oldest_confirmed():
    objects = ObjectMap()
    left, right = (-0.35, 0, 0.4, 0.7, 0.6, 0.8, 0, 0, 0), (0.35, 0, 0.4, 0.7, 0.6, 0.8, 0, 0, 0)
    whole = (0, 0, 0.4, 1.4, 0.6, 0.8, 0, 0, 0)
    for i in range(2):
        objects.update(found(left, right), world(whole), i)
    assert ids(objects, ObjectState.CONFIRMED) == [1, 2]
    for i in range(4):
        objects.update(found(whole), world(whole), i * SECOND)  # the halves were one thing
    assert ids(objects) == [1]
    assert objects.objects()[0].box == pytest.approx(whole)


@pytest.mark.parametrize("reported", [None, (True, True), (True, False)])
def test_a_door_and_its_frame_stay_two_where_a_detector_reports_both(reported):
    boxes = np.array([[0.0, 0.0, 1.0, 0.8, 0.13, 2.0, 0, 0, 0], [0.0, 0.0, 1.03, 0.92, 0.15, 2.06, 0, 0, 0]])
    of_detector = None if reported is None else np.array(reported)
    detections = Detections(boxes, np.array([0.9, 0.8]), ("door", "doorframe"), reported=of_detector)
    objects = ObjectMap()
    for second in range(1, 4):
        objects.update(detections, world(*boxes), second * SECOND)
    assert len(objects.objects()) == (2 if reported == (True, True) else 1)


def test_a_part_of_something_larger_goes_but_not_at_once():
    objects = ObjectMap()
    front = (0.0, -0.3, 0.4, 1.4, 0.1, 0.8, 0.0, 0.0, 0.0)
    whole = (0.0, 0.05, 0.4, 1.4, 0.8, 0.8, 0.0, 0.0, 0.0)
    for i in range(2):
        objects.update(found(front), world(whole), i)
    objects.update(found(whole), world(whole), 1 * SECOND)
    assert ids(objects, ObjectState.CONFIRMED) == [1]  # a front may be missed for a moment
    for i in range(2, 5):
        objects.update(found(whole), world(whole), i * SECOND)
    assert ids(objects) == [2]


def test_overlapping_duplicates_keep_the_older_id_with_the_newer_box():
    objects = ObjectMap()
    for i in range(2):
        objects.update(found(A), world(A), i)
    objects.update(found(A, (A[0] + 0.1, *A[1:])), world(A), 2)
    assert ids(objects) == [1]


def test_label_by_vote_and_score_by_mean():
    objects = ObjectMap()
    objects.update(found(A, scores=[0.9], labels=["chair"]), world(A), 0)
    objects.update(found(A, scores=[0.5], labels=["stool"]), world(A), 1)
    objects.update(found(A, scores=[0.7], labels=["stool"]), world(A), 2)
    thing = objects.objects()[0]
    assert (thing.id, thing.label) == (1, "stool")
    assert thing.score == pytest.approx(expected_score(2.1 / 3, 3))


@pytest.mark.parametrize("corrected", [False, True])
def test_a_map_made_anew_by_a_correction_keeps_the_ids_of_what_shows_thinner(corrected):
    """Of its keyframes alone it shows a piece of the thing at first; otherwise that means that the rest is gone."""
    objects = ObjectMap()
    piece = (A[0], A[1] - A[4] / 2 + 0.03, *A[2:4], 0.06, *A[5:])
    for i in range(5):
        objects.update(found(A, B), world(A, B), i)
    if corrected:
        objects.move(lambda _: np.eye(4))
    objects.update(found(piece, B), world(piece, B), 5)
    assert (1 in [o.id for o in objects.objects()]) == corrected
    objects.update(found(A, B), world(A, B), 6)
    objects.update(found(A, B), world(A, B), 7)
    assert 1 in ids(objects, ObjectState.CONFIRMED)  # it stayed, or it returned


def test_remove_inside_and_clear():
    objects = ObjectMap()
    objects.update(found(A, B), world(A, B), 0)
    assert objects.remove_inside(np.array([0, 0, 0.5, 1, 1, 1, 0.3, 0, 0])) == (1,)
    assert ids(objects) == [2]
    objects.clear()
    assert len(objects) == 0


def test_saved_objects_go_on_where_they_stopped():
    objects, restored = ObjectMap(), ObjectMap()
    for i in range(3):
        objects.update(found(A, B), world(A, B), i)
    restored.load_json(objects.to_json())
    assert restored.to_json() == objects.to_json()
    for o in (objects, restored):
        o.update(found(A, C, labels=["chair", "lamp"]), world(A, C), 3)
        o.update(found(A, C, labels=["chair", "lamp"]), world(A, C), 4)
    assert restored.to_json() == objects.to_json()
    assert ids(restored) == [1, 3]  # B expired, C is new, no id twice


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d.update(version=99),
        lambda d: d.pop("next_id"),
        lambda d: d.update(next_id=1),
        lambda d: d["objects"][0].pop("box"),
        lambda d: d["objects"][0].update(box=[1, 2]),
        lambda d: d["objects"][0].update(box=[float("nan")] * 9),
        lambda d: d["objects"][0].update(state="happy"),
        lambda d: d["objects"][0].update(unknown=1),
        lambda d: d["objects"][0].update(id=2),
    ],
)
def test_damaged_objects_are_refused_and_change_nothing(damage):
    objects = ObjectMap()
    objects.update(found(A, B), world(A, B), 0)
    before = objects.to_json()
    data = json.loads(before)
    damage(data)
    with pytest.raises(ValueError, match="object"):
        objects.load_json(json.dumps(data))
    assert objects.to_json() == before


def test_not_json_is_refused():
    with pytest.raises(ValueError, match="cannot be read"):
        ObjectMap().load_json("{")


def test_same_updates_give_the_same_objects():
    def run():
        rng = np.random.default_rng(5)
        objects = ObjectMap()
        for i in range(12):
            boxes = [np.array(b) + np.array([*rng.normal(0, 0.02, 6), rng.normal(0, 0.05), 0, 0]) for b in (A, B, C)]
            keep = [b for b in boxes if rng.random() < 0.8]
            objects.update(found(*keep), world(A, B, C), i * SECOND)
        return objects.to_json()

    assert run() == run()
    assert json.loads(run())["next_id"] == 4  # jitter and misses made no fourth object


def test_empty_updates():
    objects = ObjectMap()
    objects.update(found(), snapshot_of(np.zeros((0, 3))), 0)
    assert objects.objects() == ()


def test_blend_knows_that_boxes_turn_by_quarters():
    old = np.array([0, 0, 0.5, 1.0, 0.6, 1.0, 0.0, 0, 0])
    turned = np.array([0, 0, 0.5, 0.62, 1.02, 1.0, np.pi / 2 + 0.02, 0, 0])
    tilted = np.array([0, 0, 0.5, 1.0, 0.6, 1.0, 0.0, 0.2, 0])
    elsewhere = np.array([5, 0, 0.5, 1.0, 0.6, 1.0, 0.0, 0, 0])
    whole = np.array([0, 0, 0.5, 3.0, 2.0, 1.0, 0.0, 0, 0])
    others, gains = (
        np.stack([turned, old, tilted, elsewhere, elsewhere, whole]),
        np.array([0.5, 0.5, 0.5, 0.4, 0.5, 0.1]),
    )
    blended = blend_boxes(np.stack([old] * len(others)), others, gains)
    assert blended[0] == pytest.approx([0, 0, 0.5, 1.01, 0.61, 1.0, 0.01, 0, 0], abs=1e-9)
    assert blended[2] == pytest.approx([0, 0, 0.5, 1.0, 0.6, 1.0, 0.0, 0.1, 0])
    assert np.array_equal(blended[[1, 3, 4, 5]], [old, old, elsewhere, whole])


def test_the_floor_beneath_is_no_evidence():
    flat = np.array([[0, 0, 0.15, 1.0, 1.0, 0.3, 0.4, 0, 0]])
    assert without_bottom(flat)[0] == pytest.approx([0, 0, 0.1875, 1.0, 1.0, 0.225, 0.4, 0, 0])
    inside, around, _ = count_voxels(snapshot_of(FLOOR), without_bottom(flat), 0.3)
    assert inside[0] == 0
    assert around[0] > 2000
    tilted = np.array([[0, 0, 0, 1.0, 1.0, 1.0, 0, np.pi / 2, 0]])  # its own z points along -y
    assert without_bottom(tilted)[0, :3] == pytest.approx([0, -0.05, 0])


def test_affinity_of_equal_disjoint_and_nested_boxes():
    a = np.array([A, B])
    inside = np.array([[*A[:3], 0.6, 0.5, 0.6, *A[6:]]])
    assert box_affinity(a, a) == pytest.approx(np.eye(2), abs=1e-9)
    assert box_affinity(a, inside)[0, 0] == pytest.approx(0.5)
    tiny = np.array([[*A[:3], 0.1, 0.1, 0.1, *A[6:]]])
    assert box_affinity(a, tiny)[0, 0] < 0.01  # a mug on a table is not a table


@pytest.mark.parametrize("widened_m", [0.01, 0.0])
def test_count_voxels_equals_a_plain_version(widened_m):
    rng = np.random.default_rng(0)
    snapshot = snapshot_of(rng.uniform(-1, 1, (20_000, 3)))
    snapshot.last_seen_ns[:] = rng.integers(1, 10**12, len(snapshot))
    boxes = np.concatenate(
        [rng.uniform(-1, 1, (20, 3)), rng.uniform(0.1, 0.8, (20, 3)), rng.uniform(-3, 3, (20, 3))], 1
    )
    inside, around, newest = count_voxels(snapshot, boxes, 0.1, widened_m=widened_m)
    points = snapshot.mean_point_m.astype(np.float64)
    for i, box in enumerate(boxes):
        za, xb, yg = box[6:]
        Rz = np.array([[np.cos(za), -np.sin(za), 0], [np.sin(za), np.cos(za), 0], [0, 0, 1]])
        Rx = np.array([[1, 0, 0], [0, np.cos(xb), -np.sin(xb)], [0, np.sin(xb), np.cos(xb)]])
        Ry = np.array([[np.cos(yg), 0, np.sin(yg)], [0, 1, 0], [-np.sin(yg), 0, np.cos(yg)]])
        excess = (np.abs((points - box[:3]) @ (Rz @ Rx @ Ry)) - box[3:6] / 2 - widened_m).max(axis=1)
        assert inside[i] == np.count_nonzero(excess <= 0)
        assert around[i] == np.count_nonzero((excess > 0) & (excess <= 0.1))
        assert newest[i] == snapshot.last_seen_ns[excess <= 0].max(initial=0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda b, s: (b[:, :7], s, ("a",)), "boxes must be"),
        (lambda b, s: (b, s, ()), "0 labels"),
        (lambda b, s: (b * np.nan, s, ("a",)), "box 0"),
        (lambda b, s: (b * [1, 1, 1, 0, 1, 1, 1, 1, 1], s, ("a",)), "not positive"),
        (lambda b, s: (b, s + 1, ("a",)), "scores"),
    ],
)
def test_detections_refuse_what_does_not_fit(change, words):
    with pytest.raises(ValueError, match=words):
        Detections(*change(np.array([A]), np.array([0.5])))


def of_one_place(score, label, posterior, count=3):
    """A map that found something in one place so often; its JSON and its one object."""
    box = np.array([[0.0, 0.0, 0.5, 0.6, 0.6, 0.8, 0, 0, 0]])
    snapshot = snapshot_of(box_surface((0.0, 0.0, 0.5), (0.6, 0.6, 0.8)))
    objects = ObjectMap()
    for k in range(count):
        objects.update(Detections(box, np.array([score]), (label,), (posterior,)), snapshot, (k + 1) * 10**9)
    (thing,) = objects.objects()
    return objects, thing


def test_an_object_has_its_best_three_names():
    said = {"chair": 0.5, "stool": 0.2, "bin": 0.06, "box": 0.03, UNNAMED: 0.01}
    _, thing = of_one_place(0.5, "chair", said)
    assert [name for name, _ in thing.names] == ["chair", "stool", "bin"]
    assert [p for _, p in thing.names] == pytest.approx([thing.score, 0.4 * thing.score, 0.12 * thing.score])


def test_what_has_no_name_has_its_best_three_too():
    objects, thing = of_one_place(0.9, UNNAMED, {"stool": 0.36, "bin": 0.18, UNNAMED: 0.36})
    assert thing.label == UNNAMED
    assert dict(thing.names) == pytest.approx({"stool": 0.4 * thing.score, "bin": 0.2 * thing.score})
    again = ObjectMap()
    again.load_json(objects.to_json())
    assert again.objects()[0].names == thing.names


def test_maps_of_older_programs_have_the_label_as_the_only_name():
    objects, thing = of_one_place(0.5, "chair", {"chair": 0.5, "stool": 0.2})
    data = json.loads(objects.to_json())
    data["version"] = 4
    for entry in data["objects"]:
        del entry["names"]
    old = ObjectMap()
    old.load_json(json.dumps(data))
    assert old.objects()[0].names == (("chair", thing.score),)


def test_objects_near_a_look_are_those_of_a_new_list_of_places():
    """Boxes of objects that no look reached are not read again; whatever changes them, none is out of date."""
    objects, rng = ObjectMap(), np.random.default_rng(0)
    turn = np.array([[0.0, -1.0, 0.0, 1.5], [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    for i in range(24):
        boxes = [b for b in (A, B, C) if rng.random() < 0.8]
        moved = [(b[0] + 0.05 * i * (b is C), *b[1:]) for b in boxes]
        objects.update(found(*moved), world(*moved, stamp_ns=i), i * SECOND)
        if i % 8 == 5:
            objects.move(lambda stamp_ns: turn)
        if i == 12:
            objects.load_json(objects.to_json())
        for x in (-2.0, 0.0, 2.0):
            here = Region(np.array([x - 0.7, -3.0, -np.inf]), np.array([x + 0.7, 3.0, np.inf]))
            look = _Look(found(), np.zeros(0, bool), world(), i, 0.0, None, np.inf, here, EVERY_SCORE)
            known = [t.id for t in objects._near(look)]
            kept, objects._places = (objects._places, objects._changed_rows), None
            assert known == [t.id for t in objects._near(look)]
            objects._places, objects._changed_rows = kept
