"""An object is the same thing after it moved, left, came back, or was seen by another session; a twin is not."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from support.scenario_world import World, block, chair, couch, table
from support.scenarios import Robot

from embodied_perceptron.results import EventKind, ObjectState
from embodied_perceptron.scene.history import MAX_ENTRIES, extended, from_list, to_list
from embodied_perceptron.scene.identity import Appearance, match
from embodied_perceptron.scene.object_map import ObjectMap


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


def test_other_object_is_not_the_gone_one():
    old = chair((-0.5, 0.3), 0.1)
    robot = Robot(room(old))
    robot.run(3)
    number = one(robot, old).id
    new = block("bin", (0.7, 0.3), (0.32, 0.32, 0.45))
    carried(robot, old, new, 9.0)
    assert one(robot, new).id != number
    assert {e.kind for e in robot.events} == {EventKind.LEFT, EventKind.APPEARED}


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
    again.know_places(robot.perceptron.volume.copy().snapshot())
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
        del entry["history"], entry["appearance"], entry["maybe"]
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


def test_match_is_one_to_one_and_clear():
    winners, probability = match(np.array([[9.0, 9.0, -9.0], [-np.inf, -9.0, 9.0]]))
    assert set(winners) == {1}
    assert winners[1][0] == 2
    assert np.allclose(probability[0, :2], 0.5, atol=1e-3)
    assert match(np.full((2, 2), 9.0))[0] == {}
    assert match(np.zeros((0, 0)))[0] == {}
