"""Two maps of one place: what appeared, left, moved, was renamed; what is uncertain; maps of other places refused."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from support.agent_scenes import StillScene
from support.language_scenes import thing
from support.scene_builder import box_surface, plane, snapshot_of

from embodied_perceptron.results import EventKind, HistoryEntry, Perception
from embodied_perceptron.scene.changes import DifferentPlacesError, check_same_place, compare_maps, displacement

TABLE = thing(1, "table", (0, 0, 0.4), (1.2, 0.8, 0.8))
CHAIR = thing(2, "chair", (1.5, 0, 0.45), (0.5, 0.5, 0.9))
SHELF = thing(3, "shelf", (-2.0, 2.0, 1.0), (1.0, 0.3, 2.0))
WALLS = [
    plane((-4, -4, 0), (8, 0, 0), (0, 0, 2.4), 0.04),
    plane((-4, 4, 0), (8, 0, 0), (0, 0, 2.4), 0.04),
    plane((-4, -4, 0), (0, 8, 0), (0, 0, 2.4), 0.04),
]


def at(item, x, y, number=None, label=None):
    box = item.box.copy()
    box[:2] = x, y
    return dataclasses.replace(item, box=box, id=number or item.id, label=label or item.label)


def scene(*objects, solids=None, walls=WALLS, floor=(-4, -4, 8, 8), shift=(0, 0, 0)):
    """A room with the surfaces of ``solids``, by default those of the objects."""
    shown = StillScene(list(objects) or [TABLE]).scene
    x, y, w, d = floor
    solids = objects if solids is None else solids
    parts = [plane((x, y, 0), (w, 0, 0), (0, d, 0), 0.04), *walls]
    parts += [box_surface(tuple(o.box[:3]), tuple(o.box[3:6]), 0.0, 0.02) for o in solids]
    voxels = snapshot_of(np.concatenate(parts) + np.array(shift))
    return Perception.of(objects, stamp_ns=1, semantic=shown.semantic, grid=shown.grid, voxels=voxels)


def by_kind(changes):
    """Ids by kind, before -> after."""
    kinds = ("appeared", "left", "moved", "renamed", "unsure", "unseen")
    return {
        kind: [(c.before and c.before.id, c.after and c.after.id) for c in found]
        for kind in kinds
        if (found := getattr(changes, kind))
    }


def test_nothing_changed():
    changes = compare_maps(scene(TABLE, CHAIR, SHELF), scene(TABLE, CHAIR, SHELF))
    assert by_kind(changes) == {}
    assert changes.unchanged == 3
    assert changes.aligned == 1.0


def test_ids_of_another_run_change_nothing():
    others = [dataclasses.replace(o, id=o.id + 40) for o in (CHAIR, SHELF, TABLE)]
    changes = compare_maps(scene(TABLE, CHAIR, SHELF), scene(*others))
    assert (by_kind(changes), changes.unchanged) == ({}, 3)


def test_what_appeared_and_left():
    lamp = thing(9, "lamp", (2, -2, 0.8), (0.3, 0.3, 1.6))
    changes = compare_maps(scene(TABLE, CHAIR), scene(TABLE, lamp))
    assert by_kind(changes) == {"appeared": [(None, 9)], "left": [(2, None)]}


def test_what_moved_far_and_a_little():
    changes = compare_maps(scene(TABLE, CHAIR), scene(at(TABLE, 0.3, 0), at(CHAIR, -2, -1, number=8)))
    assert by_kind(changes) == {"moved": [(1, 1), (2, 8)]}
    table, chair = changes.moved
    assert table.moved_m == pytest.approx([0.3, 0, 0])
    assert chair.moved_m == pytest.approx([-3.5, -1, 0])
    assert chair.distance_m == pytest.approx(np.hypot(3.5, 1))
    nearer = compare_maps(scene(TABLE, CHAIR), scene(at(TABLE, 0.1, 0), CHAIR))
    assert (by_kind(nearer), nearer.unchanged) == ({}, 2)


def test_of_two_chairs_each_moved_the_shorter_way():
    a, b = at(CHAIR, -1, -3, 5), at(CHAIR, 1, -3, 6)
    changes = compare_maps(scene(TABLE, a, b), scene(TABLE, at(b, 2, -2, 12), at(a, -2, -2, 11)))
    assert by_kind(changes) == {"moved": [(5, 11), (6, 12)]}


def test_what_has_another_size_or_name_did_not_move_there():
    stool = thing(8, "chair", (-2, -1, 0.2), (0.3, 0.3, 0.4))
    assert by_kind(compare_maps(scene(TABLE, CHAIR), scene(TABLE, stool))) == {
        "appeared": [(None, 8)],
        "left": [(2, None)],
    }
    box = at(CHAIR, -2, -1, 8, "box")
    assert by_kind(compare_maps(scene(TABLE, CHAIR), scene(TABLE, box))) == {
        "appeared": [(None, 8)],
        "left": [(2, None)],
    }


def test_what_has_another_name_in_its_place():
    named = dataclasses.replace(TABLE, user_name="Anna's desk")
    changes = compare_maps(scene(TABLE, CHAIR), scene(named, at(CHAIR, 1.5, 0, 7, "stool")))
    assert by_kind(changes) == {"renamed": [(1, 1), (2, 7)]}


def test_what_was_only_not_recognised_did_not_leave():
    there = scene(TABLE, solids=[TABLE, CHAIR])
    assert by_kind(compare_maps(scene(TABLE, CHAIR), there)) == {"unsure": [(2, None)]}
    assert by_kind(compare_maps(there, scene(TABLE, CHAIR))) == {"unsure": [(None, 2)]}


def test_what_nobody_saw_did_not_leave():
    """The second map ends before the chair."""
    walls = [plane((-4, -4, 0), (0, 8, 0), (0, 0, 2.4), 0.04)]
    half = scene(TABLE, floor=(-4, -4, 4.8, 8), walls=walls)
    assert by_kind(compare_maps(scene(TABLE, CHAIR), half)) == {"unseen": [(2, None)]}


def test_what_stands_in_the_place_of_another_is_distinguished():
    sofa = thing(9, "sofa", (1.4, 0.5, 0.4), (0.9, 2.0, 0.8))
    changes = by_kind(compare_maps(scene(TABLE, CHAIR), scene(TABLE, sofa)))
    assert changes == {"appeared": [(None, 9)], "left": [(2, None)]}


def test_a_box_that_grew_did_not_move():
    box, grown = TABLE.box.copy(), TABLE.box.copy()
    grown[0] += 0.3
    grown[3] += 0.6  # one side stays
    assert np.abs(displacement(box, grown)).max() < 1e-12
    grown[0] += 0.25
    assert displacement(box, grown) == pytest.approx([0.25, 0, 0])


def test_maps_of_other_places_are_refused():
    here = scene(TABLE, CHAIR)
    turned = scene(at(TABLE, 2, 2), walls=[plane((-3, -3.4, 0), (6, 7, 0), (0, 0, 2.4), 0.04)])
    with pytest.raises(DifferentPlacesError, match=r"only \d+% of the walls and furniture"):
        compare_maps(here, turned)
    with pytest.raises(DifferentPlacesError, match=r"0\.0 m2 of ground"):
        compare_maps(here, scene(TABLE, shift=(100, 0, 0)))
    with pytest.raises(DifferentPlacesError, match=r"only \d+% of the walls and furniture"):
        check_same_place(here, scene(TABLE, CHAIR, shift=(0.5, 0.3, 0)))
    assert check_same_place(here, scene(TABLE, CHAIR, shift=(0.05, 0, 0.02))) > 0.9
    empty = scene(TABLE, walls=[], solids=[])
    with pytest.raises(DifferentPlacesError, match="cannot be compared"):
        compare_maps(here, empty)


def test_changes_are_json():
    changes = compare_maps(scene(TABLE, CHAIR), scene(at(TABLE, 0.5, 0)))
    said = json.loads(json.dumps(changes.as_dict(), allow_nan=False))
    assert said["moved"][0]["distance_m"] == 0.5
    assert said["moved"][0]["before"]["id"] == 1
    assert said["left"][0]["after"] is None


@pytest.mark.parametrize("is_one_map", [True, False])
def test_equal_chairs_are_told_apart_by_their_ids_where_one_map_goes_on_from_the_other(is_one_map):
    """Each chair goes to where the other one is nearer; maps that were made apart number their objects apart."""
    born = HistoryEntry(5, EventKind.FOUND, (0.0, 0.0, 0.0))
    first, second = (dataclasses.replace(CHAIR, id=k, history=(born,)) for k in (2, 4))
    before = scene(TABLE, at(first, 1.5, -2.0), at(second, 1.5, 2.0))
    again = (
        dataclasses.replace(c, history=(dataclasses.replace(born, stamp_ns=5 + (not is_one_map)),))
        for c in (first, second)
    )
    new = [at(c, 3.0, y) for c, y in zip(again, (2.0, -2.0), strict=True)]
    moved = compare_maps(before, scene(TABLE, *new)).moved
    assert {c.before.id: c.after.id for c in moved} == ({2: 2, 4: 4} if is_one_map else {2: 4, 4: 2})
