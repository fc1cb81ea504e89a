"""An object is the same thing after it moved, left, came back, or was seen by another session; a twin is not."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from support.object_scenes import A, found, ids, world
from support.scenario_world import World, block, chair, couch, table
from support.scenarios import Robot
from support.scene_builder import snapshot_of

from embodied_perceptron.geometry.manhattan import Region
from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.mapping.keyframes import Keyframe
from embodied_perceptron.results import EventKind, ObjectState
from embodied_perceptron.scene.history import MAX_ENTRIES, extended, from_list, to_list
from embodied_perceptron.scene.identity import Appearance, last_seen, match, was_put_there
from embodied_perceptron.scene.live_map import seen_through
from embodied_perceptron.scene.object_map import ObjectMap
from embodied_perceptron.sensors.frame import RgbdFrame

SECOND = 1_000_000_000


def room(*things):
    stay = [couch((0.6, 2.3)), block("cabinet", (-1.5, 2.2), (0.8, 0.45, 1.1))]
    return World([*stay, *things])


def one(robot, thing):
    found = robot.of(thing)
    assert len(found) == 1, [(o.id, o.label, o.box[:3]) for o in robot.last]
    return found[0]


def kinds(robot, number):
    return [
        e.kind for e in next(o for o in robot.objects.objects((*ObjectState.ALL, "gone")) if o.id == number).history
    ]


def carried(robot, old, new, seconds=4.0):
    robot.world.things.remove(old)
    if new is not None:
        robot.world.things.append(new)
    robot.run(seconds)


@pytest.mark.parametrize("distance_m", [1.0, 1.6])
def test_moved_object_keeps_its_id(distance_m):
    old = chair((-0.8, 0.3), 0.1)
    robot = Robot(room(old))
    robot.run(3)
    number = one(robot, old).id
    new = replace(old, xy=(old.xy[0] + distance_m, old.xy[1]))
    carried(robot, old, new)
    thing = one(robot, new)
    assert thing.id == number
    assert [e.kind for e in thing.history] == [EventKind.FOUND, EventKind.MOVED]
    assert np.allclose(thing.history[0].at_m[:2], old.xy, atol=0.15)
    moved = [e for e in robot.events if e.id == number]
    assert [e.kind for e in moved] == [EventKind.MOVED]
    assert moved[0].before is not None
    assert np.allclose(moved[0].before.box[:2], old.xy, atol=0.15)


def test_object_that_leaves_and_comes_back():
    thing = chair((-0.5, 0.3), 0.1)
    robot = Robot(room(thing))
    robot.run(3)
    number = one(robot, thing).id
    carried(robot, thing, None, 9.0)
    gone = robot.objects.objects(("gone",))
    assert [o.id for o in gone] == [number]
    robot.world.things.append(thing)
    robot.run(4)
    assert one(robot, thing).id == number
    assert kinds(robot, number) == [EventKind.FOUND, EventKind.LEFT, EventKind.RETURNED]
    assert [e.kind for e in robot.events if e.id == number] == [EventKind.LEFT, EventKind.RETURNED]


@pytest.mark.parametrize("label", ["window", "radiator"])
def test_a_part_of_the_building_never_moves(label):
    old = replace(chair((-0.5, 0.3), 0.1), name=label)
    robot = Robot(room(old))
    robot.run(3)
    number = one(robot, old).id
    new = replace(old, xy=(0.7, 0.3))
    carried(robot, old, new, 9.0)
    assert one(robot, new).id != number
    assert not [e for e in robot.events if (e.before or e.after).label == label]


def test_other_object_is_not_the_gone_one():
    old = chair((-0.5, 0.3), 0.1)
    robot = Robot(room(old))
    robot.run(3)
    number = one(robot, old).id
    new = block("bin", (0.7, 0.3), (0.32, 0.32, 0.45))
    carried(robot, old, new, 9.0)
    assert one(robot, new).id != number
    assert {e.kind for e in robot.events} == {EventKind.LEFT, EventKind.APPEARED}


LEFT, RIGHT = (-1.8, 0.8, 0.4), (1.8, 0.8, 0.4)


def put_down_unseen():
    """A robot that saw a chair and looks away, the number of the chair, and the chair where it is put down then."""
    old = chair((-1.5, 0.5), 0.1)
    robot = Robot(room(old))
    robot.towards_m = LEFT
    robot.run(3)
    number = one(robot, old).id
    robot.towards_m = RIGHT
    robot.run(3)
    new = replace(old, xy=(1.2, 0.5))
    carried(robot, old, new)
    return robot, number, old, new


@pytest.mark.parametrize("confirm", [False, True])
def test_an_object_that_was_confirmed_on_purpose_leaves(confirm):
    objects = ObjectMap()
    objects.update(found(A), world(A, stamp_ns=SECOND), SECOND, confirm=confirm)
    again = ObjectMap()
    again.load_json(objects.to_json())
    events = [e for i in range(2, 30) for e in again.update(found(), world(stamp_ns=i * SECOND), i * SECOND)]
    assert [(e.id, e.kind) for e in events] == [(1, EventKind.LEFT)] * confirm


@pytest.mark.parametrize("is_seen_empty", [False, True])
@pytest.mark.parametrize(("detections", "is_known"), [(3, False), (4, True)])
def test_an_object_that_was_found_rarely_may_be_a_mistake(detections, is_known, is_seen_empty):
    """It did not move, neither from where nobody looks nor from a place that is seen empty, and it does not leave."""
    objects, elsewhere = ObjectMap(), (3.0, *A[1:])
    for i in range(1, 1 + detections):
        objects.update(found(A), world(A, stamp_ns=i * SECOND), i * SECOND)
    snapshot = world(elsewhere) if is_seen_empty else world(A, elsewhere)
    is_new = (snapshot.mean_point_m[:, 0] > 2.4) & (snapshot.mean_point_m[:, 2] > 0.05)
    here = None if is_seen_empty else Region(np.array([2.0, -2.0, -np.inf]), np.array([5.0, 2.0, np.inf]))
    events = []
    for i in range(30, 40):
        snapshot.last_seen_ns[:] = np.where(is_new, i * SECOND, SECOND)
        events += objects.update(found(elsewhere), snapshot, i * SECOND, looked_at=here)
    (thing,) = [o for o in objects.objects((ObjectState.CONFIRMED,)) if o.box[0] > 2]
    assert (thing.id == 1) is is_known
    assert thing.maybe_same_as == ()
    assert [e.kind for e in events] == [EventKind.MOVED if is_known else EventKind.APPEARED]


def test_object_that_is_put_down_while_its_old_place_is_out_of_view():
    robot, number, old, new = put_down_unseen()
    (thing,) = robot.of(new)
    assert thing.id == number
    assert thing.merged_from  # the id under which it was published until it was recognised
    assert f"known as object {thing.merged_from[-1]} until then" in thing.history[-1].reason
    assert robot.objects.history(thing.merged_from[-1]) == robot.objects.history(number)
    assert robot.of(old) == []  # the map has its voxels still
    robot.towards_m = LEFT
    robot.run(4)
    assert robot.of(old) == []
    assert [(e.id, e.kind) for e in robot.events] == [(number, EventKind.MOVED)]
    again = ObjectMap(robot.objects.config)
    again.load_json(robot.objects.to_json())
    assert again.to_json() == robot.objects.to_json()


@pytest.mark.parametrize("pause_s", [0, 60])
def test_a_twin_in_a_place_that_was_never_seen_is_another(pause_s):
    old, new = (2.0, 0.0, *A[2:]), (-2.0, 0.0, *A[2:])
    objects, events = ObjectMap(), []
    for k in range(20):
        i, box = (k + pause_s, new) if k >= 8 else (k, old)
        low, high = np.array([box[0] - 1.5, -2.0, -np.inf]), np.array([box[0] + 1.5, 2.0, np.inf])
        points = world(box).mean_point_m
        snapshot = snapshot_of(points[np.abs(points[:, :2] - box[:2]).max(axis=1) < 1.5], stamp_ns=(i + 1) * SECOND)
        events += objects.update(found(box), snapshot, (i + 1) * SECOND, looked_at=Region(low, high))
    assert events == []
    assert ids(objects, ObjectState.CONFIRMED) == [1, 2]


def test_an_object_seen_gone_rather_than_a_twin_that_nobody_looks_at():
    """The one has left its place for certain; that the other moved too would be a second change."""
    a, b = chair((-1.9, 0.3), 0.1), chair((1.6, 0.5), 0.1)
    robot = Robot(room(a, b))
    robot.towards_m = RIGHT
    robot.run(3)
    second = one(robot, b).id
    robot.towards_m = LEFT
    robot.run(3)
    number, new = one(robot, a).id, replace(a, xy=(-0.8, 0.3))
    carried(robot, a, new, 6.0)
    assert one(robot, new).id == number
    assert [(e.id, e.kind) for e in robot.events] == [(number, EventKind.MOVED)]
    robot.towards_m = RIGHT
    robot.run(3)
    assert one(robot, b).id == second


@pytest.mark.parametrize("loaded", [False, True])
def test_a_doubt_between_twins_ends_when_one_of_them_is_seen_to_stand(loaded):
    a, b = chair((-1.9, 0.3), 0.1), chair((-1.0, 0.3), 0.1)
    robot = Robot(room(a, b))
    robot.towards_m = LEFT
    robot.run(3)
    number, second = one(robot, a).id, one(robot, b).id
    robot.towards_m = RIGHT
    robot.run(3)
    new = replace(a, xy=(1.2, 0.5))
    carried(robot, a, new, 6.0)
    assert {i for i, _ in one(robot, new).maybe_same_as} == {number, second}
    if loaded:
        again = ObjectMap(robot.objects.config)
        again.load_json(robot.objects.to_json())
        robot.objects = again
    robot.towards_m = LEFT
    robot.run(4)
    assert one(robot, b).id == second
    assert [o.id for o in robot.of(new, robot.objects.objects())] == [number]
    assert [e.kind for e in robot.events if e.id == number] == [EventKind.MOVED]


@pytest.mark.parametrize("loaded", [False, True])
def test_an_object_whose_twin_was_recognised_elsewhere_does_not_wait_for_an_earlier_clock(loaded):
    """The clock is set back, or a saved map is loaded under an earlier clock: what stands there is seen."""
    objects = ObjectMap()
    for i in range(3):
        objects.update(found(A), world(A, stamp_ns=(90 + i) * SECOND), (90 + i) * SECOND)
    saved = json.loads(objects.to_json())
    (entry,) = saved["objects"]
    entry |= {"replaced_ns": 92 * SECOND, "state": ObjectState.TENTATIVE}
    objects.load_json(json.dumps(saved))
    if not loaded:
        objects.update(found(A), world(A, stamp_ns=92 * SECOND), 92 * SECOND)
        assert ids(objects, ObjectState.CONFIRMED) == []
    for i in range(1, 4):
        objects.update(found(A), world(A, stamp_ns=i * SECOND), i * SECOND)
    assert ids(objects, ObjectState.CONFIRMED) == [entry["id"]]


@pytest.mark.parametrize(("share", "expected"), [(0.0, (5, 5)), (0.002, (5, 5)), (0.1, (9, 5)), (0.4, (9, 9))])
def test_an_object_was_seen_when_some_of_its_voxels_were_and_surely_there_when_a_quarter_were(share, expected):
    """Voxels of a wall beside it are newer than the object."""
    snapshot = world(A)
    rng = np.random.default_rng(0)
    snapshot.last_seen_ns[:] = np.where(rng.random(len(snapshot)) < share, 9, 5)
    assert last_seen(np.array(A), snapshot) == expected


@pytest.mark.parametrize("side", [-1, 1])
def test_a_wall_beside_an_object_does_not_show_that_the_object_is_there(side):
    snapshot = world(A, (*A[:3], 0.4, 0.3, *A[5:]))  # its back and its seat are away from the sides of its box
    across = (snapshot.mean_point_m[:, :2] - A[:2]) @ [-np.sin(A[6]), np.cos(A[6])]
    snapshot.last_seen_ns[:] = np.where(side * across > A[4] / 2 - 0.04, 9, 5)
    assert last_seen(np.array(A), snapshot) == (9, 5)


def test_old_voxels_do_not_change_what_an_object_looked_like():
    """The map shows an object until a camera sees through it; other things may be in its box by then."""
    objects = ObjectMap()
    for i in range(1, 8):
        objects.update(found(A), world(A, stamp_ns=i * SECOND), i * SECOND)
    color = objects._tracks[1].appearance.color.copy()
    for seen_s, is_same in ((7, True), (120, False)):
        red = world(A, stamp_ns=seen_s * SECOND)
        red.mean_color[:] = (200, 20, 20)
        for i in range(8):
            objects.update(found(A), red, (120 + i) * SECOND)
        assert (objects._tracks[1].appearance.color.tolist() == color.tolist()) is is_same


def test_two_twins_that_both_moved_stay_a_doubt():
    a, b = chair((-1.3, 0.3)), chair((-0.3, 0.3))
    robot = Robot(room(a, b))
    robot.run(3)
    ids = {one(robot, a).id, one(robot, b).id}
    robot.world.things = [t for t in robot.world.things if t not in (a, b)]
    robot.run(4)
    new = chair((0.9, 0.3))
    robot.world.things.append(new)
    robot.run(4)
    thing = one(robot, new)
    assert thing.id not in ids
    assert {i for i, _ in thing.maybe_same_as} == ids
    assert all(0.3 <= p <= 0.6 for _, p in thing.maybe_same_as)


def test_twin_that_stands_there_is_another():
    a, b = chair((-0.8, 0.3)), chair((0.6, 0.3))
    robot = Robot(room(a, b))
    robot.run(3)
    first, second = one(robot, a).id, one(robot, b).id
    carried(robot, a, None, 9.0)
    assert one(robot, b).id == second
    assert [e.kind for e in robot.events] == [EventKind.LEFT]
    assert robot.events[0].id == first


def test_history_survives_a_file_and_goes_on():
    old = chair((-0.8, 0.3), 0.1)
    robot = Robot(room(old))
    robot.run(3)
    number = one(robot, old).id
    text = robot.objects.to_json()
    again = ObjectMap(robot.objects.config)
    again.load_json(text)
    assert again.to_json() == text
    robot.objects = again
    new = replace(old, xy=(0.6, 0.3))
    carried(robot, old, new)
    assert one(robot, new).id == number
    assert kinds(robot, number) == [EventKind.FOUND, EventKind.MOVED]


@pytest.mark.parametrize("what", ["history", "appearance", "maybe"])
@pytest.mark.parametrize("value", [[[1]], ["x"] * 5, 7, [["1", "found", [0, 0, 0], 1.0, "", ""]]])
def test_damaged_past_is_named_and_the_object_stays(what, value, caplog):
    robot = Robot(room(chair((-0.8, 0.3))))
    robot.run(1.5)
    data = json.loads(robot.objects.to_json())
    data["objects"][0][what] = value
    again = ObjectMap(robot.objects.config)
    again.load_json(json.dumps(data))
    assert len(again) == len(robot.objects)
    assert what in caplog.text
    assert f"object {data['objects'][0]['id']}" in caplog.text


def test_old_file_loads():
    robot = Robot(room(chair((-0.8, 0.3))))
    robot.run(2)
    data = json.loads(robot.objects.to_json())
    for entry in data["objects"]:
        del entry["history"], entry["appearance"], entry["maybe"], entry["replaced_ns"]
    data["version"] = 5
    again = ObjectMap(robot.objects.config)
    again.load_json(json.dumps(data))
    assert [o.id for o in again.objects()] == [o.id for o in robot.objects.objects()]
    assert all(o.history[0].kind == EventKind.FOUND for o in again.objects(("confirmed",)))


def test_map_of_another_place_moves_nothing():
    things = [chair((-1.5 + 0.9 * k, 0.2 + 0.5 * (k % 2)), 0.2 * k) for k in range(4)]
    robot = Robot(World(things))
    robot.run(3)
    assert len(robot.last) >= 4
    again = ObjectMap(robot.objects.config)
    again.load_json(robot.objects.to_json())
    ids = {o.id for o in robot.last}
    other = Robot(World([chair((-1.1 + 0.9 * k, 1.2 - 0.5 * (k % 2)), 0.4 * k) for k in range(4)]))
    other.frames, other.objects = robot.frames, again
    other.run(9)
    assert again.doubt.startswith(f"{len(ids)} objects of the loaded map")
    assert not [e for e in other.events if e.id in ids]
    assert ids <= {o.id for o in again.objects((*ObjectState.ALL, "gone"))}


def test_history_is_bounded():
    robot = Robot(room(chair((-0.8, 0.3))))
    robot.run(1.5)
    entry = replace(robot.last[0].history[0], at_m=(1.0, 2.0, 0.5), probability=0.9)
    history = ()
    for k in range(200):
        history = extended(history, replace(entry, stamp_ns=k, kind=EventKind.MOVED))
    assert len(history) == MAX_ENTRIES
    assert (history[0].stamp_ns, history[-1].stamp_ns) == (0, 199)
    assert from_list(to_list(history)) == history


def test_memory_of_an_object():
    robot = Robot(room(table((0.0, 0.4))))
    robot.run(3)
    entry = json.loads(robot.objects.to_json())["objects"][0]
    looks = Appearance()
    rng = np.random.default_rng(0)
    for _ in range(200):
        looks._add(rng.normal(size=64).astype(np.float32), rng.normal(size=3), 1.0)
    entry["appearance"] = looks.to_list()
    assert len(json.dumps(entry)) <= 6000


@pytest.mark.parametrize("count", [0, 1, 200])
def test_appearance_survives_a_file(count):
    """Texts of map files are cut at 100 characters: those of an appearance are shorter."""
    looks, rng = (
        Appearance(color=np.arange(25, dtype=np.uint8)),
        np.random.default_rng(1),
    )
    for _ in range(count):
        looks._add(rng.normal(size=64).astype(np.float32), rng.normal(size=3), 1.0)
    robot = Robot(room(chair((-0.8, 0.3))))
    robot.run(1.5)
    next(iter(robot.objects._tracks.values())).appearance = looks
    text = robot.objects.to_json()
    objects = ObjectMap(robot.objects.config)
    objects.load_json(text)
    assert objects.to_json() == text
    again = next(iter(objects._tracks.values())).appearance
    assert np.allclose(again.views, looks.views, atol=0.01)
    assert np.allclose(again.directions, looks.directions, atol=0.01)
    assert (again.color == looks.color).all()


def test_an_appearance_of_an_older_file_keeps_its_chromaticity():
    """Older files have histograms of lightness and of shape besides."""
    code = [base64.b64encode(np.arange(n, dtype=np.uint8).tobytes()).decode() for n in (33, 16)]
    looks = Appearance.from_list([[], [], *code])
    assert looks.color.tolist() == list(range(25))
    with pytest.raises(ValueError, match="code of 33 values, must have 25"):
        Appearance.from_list([[], [], code[0]])


def test_match_is_one_to_one_and_clear():
    winners, probability = match(np.array([[9.0, 9.0, -9.0], [-np.inf, -9.0, 9.0]]))
    assert set(winners) == {1}
    assert winners[1][0] == 2
    assert np.allclose(probability[0, :2], 0.5, atol=1e-3)
    assert match(np.full((2, 2), 9.0))[0] == {}
    assert {n: m for n, (m, _) in match(np.array([[3.5, 2.5], [2.5, 3.5]]))[0].items()} == {0: 0, 1: 1}
    assert match(np.zeros((0, 0)))[0] == {}


def test_denied_object_stays_denied_after_a_file():
    thing = chair((-0.8, 0.3), 0.1)
    robot = Robot(room(thing))
    robot.run(2)
    robot.objects.deny(one(robot, thing).id)
    objects = ObjectMap(robot.objects.config)
    objects.load_json(robot.objects.to_json())
    robot.objects = objects
    robot.run(2)
    assert robot.of(thing) == []
    assert [c.label for c in objects.corrections.entries] == [""]
    assert robot.events == []


@pytest.mark.parametrize("back_s", [5, 3600])
def test_clock_set_back_loses_no_event_and_keeps_the_order_of_histories(back_s):
    old = chair((-0.8, 0.3), 0.1)
    robot = Robot(room(old))
    robot.run(3)
    number = one(robot, old).id
    carried(robot, old, None, 3.0)
    told = robot.objects.objects(("gone",))[0]
    snapshot = robot.perceptron.volume.copy().snapshot()
    nothing = robot.detector.detections([], snapshot).take(np.zeros(0, int))
    back_ns = told.history[-1].stamp_ns - back_s * 1_000_000_000
    events = [e for k in range(80) for e in robot.objects.update(nothing, snapshot, max(back_ns, 0) + k * 100_000_000)]
    assert [e.kind for e in events if e.id == number] == [EventKind.LEFT]
    assert kinds(robot, number) == [EventKind.FOUND, EventKind.LEFT]
    text = robot.objects.to_json()
    again = ObjectMap(robot.objects.config)
    again.load_json(text)
    assert again.to_json() == text


def test_many_objects_are_matched_within_bounds():
    robot = Robot(room(chair((-0.8, 0.3))))
    robot.run(1.5)
    data = json.loads(robot.objects.to_json())
    entry = data["objects"][0]
    data["objects"] = [
        {**entry, "id": k, "box": [0.7 * (k % 100), 20 + 0.7 * (k // 100), *entry["box"][2:]]} for k in range(1, 10_001)
    ]
    data["next_id"] = 10_001
    objects = ObjectMap(robot.objects.config)
    objects.load_json(json.dumps(data))
    robot.objects = objects
    robot.run(1.5)
    assert len(objects) >= 10_001
    assert not [e for e in robot.events if e.id <= 10_000]
    assert objects.doubt == ""


@pytest.mark.parametrize(
    ("depth_m", "stamp_ns", "ahead_m", "expected"),
    [
        *((3.0, 5, 2.0, 1.0), (2.0, 5, 2.0, 0.0), (0.0, 5, 2.0, 0.0), (3.0, 20, 2.0, 0.0), (3.0, 0, 2.0, 0.0)),
        *((3.0, 5, -2.0, 0.0), (3.0, 5, 0.0, 0.0)),  # behind the camera, and around it
    ],
)
def test_an_object_was_seen_through_where_a_camera_saw_what_is_behind_it(depth_m, stamp_ns, ahead_m, expected):
    k = Intrinsics(100.0, 100.0, 79.5, 59.5, 160, 120)
    depth = np.full((120, 160), depth_m, np.float32)
    frame = RgbdFrame(stamp_ns, "front", np.zeros((120, 160, 3), np.uint8), depth, k)
    points = np.array([0.1, 0.0, ahead_m]) + np.random.default_rng(0).uniform(-0.2, 0.2, (40, 3))
    assert seen_through([Keyframe(1, frame, np.eye(4))], points, 0, 10) == pytest.approx(expected, abs=0.4)
    assert seen_through([], points, 0, 10) == 0.0
    assert seen_through([Keyframe(1, frame, np.eye(4))], points[:5], 0, 10) == 0.0


def keyframe(stamp_ns, wall_m):
    """A level camera at the origin that looks along x, with a wall ahead."""
    k = Intrinsics(100.0, 100.0, 79.5, 59.5, 160, 120)
    T = np.eye(4)
    T[:3, :3] = [[0, 0, 1], [-1, 0, 0], [0, -1, 0]]
    color, depth = np.zeros((120, 160, 3), np.uint8), np.full((120, 160), wall_m, np.float32)
    return Keyframe(1, RgbdFrame(stamp_ns, "front", color, depth, k), T)


@pytest.mark.parametrize(("wall_m", "stays"), [(4.0, False), (1.5, True)])
def test_an_object_left_where_a_camera_saw_through_it_whatever_is_in_its_box(wall_m, stays):
    """The box of a chair beside a wall holds voxels of the wall, which stay when the chair leaves."""
    box = np.array([2.0, 0.0, 0.0, 0.6, 0.6, 0.6, 0.0, 0.0, 0.0])
    objects = ObjectMap()
    for i in range(1, 6):
        objects.update(found(box), world(box, stamp_ns=i * SECOND), i * SECOND)
    assert ids(objects, ObjectState.CONFIRMED) == [1]
    for i in range(6, 8):
        objects.seen_through = partial(seen_through, [keyframe(i * SECOND, wall_m)])
        objects.update(found(), world(box, stamp_ns=i * SECOND), i * SECOND)
    assert (1 in ids(objects, ObjectState.CONFIRMED)) is stays
    assert ([o.id for o in objects.objects(("gone",))] == [1]) is not stays


def test_voxels_that_an_object_left_behind_are_not_the_object():
    """A detector that reads the map finds it in them again; it returned when its place was seen later."""
    box, objects, events = np.array([2.0, 0.0, 0.0, 0.6, 0.6, 0.6, 0.0, 0.0, 0.0]), ObjectMap(), []
    for i in range(1, 20):
        objects.seen_through = partial(seen_through, [keyframe(s * SECOND, 4.0) for s in (6, 7) if s <= i])
        here = [] if i in (6, 7) else [box]
        stamp_ns = SECOND * (i if i > 14 else min(i, 5))
        events += objects.update(found(*here), world(box, stamp_ns=stamp_ns), i * SECOND)
        assert ids(objects, ObjectState.CONFIRMED) == ([] if i in (1, *range(6, 15)) else [1]), i
    assert [e.kind for e in events] == [EventKind.LEFT, EventKind.RETURNED]


def test_a_camera_that_looks_beneath_a_table_does_not_see_it_gone():
    """Most of its box is empty while it stands there; its top is not seen through."""
    box, top = (np.array([2.0, 0.0, z, 0.9, 0.9, h, 0.0, 0.0, 0.0]) for z, h in ((0.0, 0.6), (0.27, 0.06)))
    snapshot, objects, beneath = world(top), ObjectMap(), keyframe(1, 4.0).frame.depth_m
    beneath[38:44] = 1.55  # its front edge, and below it in the image its underside
    beneath[44:50] = 0.24 * 100.0 / (59.5 - np.arange(44, 50))[:, None]
    for i in range(1, 6):
        objects.update(found(box), snapshot, i * SECOND)
    for i in range(6, 9):
        frame = replace(keyframe(1, 4.0).frame, stamp_ns=i * SECOND, depth_m=beneath)
        objects.seen_through = partial(seen_through, [Keyframe(1, frame, keyframe(1, 4.0).T_world_camera)])
        objects.update(found(), snapshot, i * SECOND)
    assert ids(objects, ObjectState.CONFIRMED) == [1]


@pytest.mark.parametrize(
    ("looks_s", "is_told"), [((), False), ((9,), False), ((3, 9), False), ((8, 9), True), ((9, 20), True), (None, True)]
)
def test_an_object_is_said_to_have_left_after_a_second_look(looks_s, is_told):
    """The voxels of its box vanish after 5 s. None = without keyframes: then the voxels decide alone."""
    box, objects, events = np.array([2.0, 0.0, 0.0, 0.6, 0.6, 0.6, 0.0, 0.0, 0.0]), ObjectMap(), []
    for i in range(1, 28):
        if looks_s is not None:
            objects.seen_through = partial(seen_through, [keyframe(s * SECOND, 4.0) for s in looks_s if s <= i])
        here = [box] if i <= 5 else []
        events += objects.update(found(*here), world(*here, stamp_ns=i * SECOND), i * SECOND)
    assert [o.id for o in objects.objects(("gone",))] == [1]
    assert [e.kind for e in events] == [EventKind.LEFT] * is_told


@pytest.mark.parametrize(
    ("floor_ns", "own_ns", "expected"),
    [
        (SECOND, 9 * SECOND, True),
        (None, 9 * SECOND, False),  # nothing was ever seen below it: it was discovered late
        (9 * SECOND, 9 * SECOND, False),  # the floor is seen between its legs
        (SECOND, SECOND, False),  # it was in the map before it was found
    ],
)
def test_an_object_was_put_on_a_floor_that_was_seen_before(floor_ns, own_ns, expected):
    box = np.array([0.0, 0.0, 0.4, 0.5, 0.5, 0.8, 0.0, 0.0, 0.0])
    points = world(box).mean_point_m
    if floor_ns is None:
        points = points[(points[:, 2] > 0.05) | (np.abs(points[:, :2]) > 0.25).any(axis=1)]
    snapshot = snapshot_of(points)
    snapshot.last_seen_ns[:] = np.where(snapshot.mean_point_m[:, 2] < 0.05, floor_ns or SECOND, own_ns)
    assert was_put_there(box, 9 * SECOND, snapshot) is expected
