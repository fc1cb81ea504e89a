"""Who keeps an id: parts and wholes, things that are replaced, like things side by side, clocks that jump."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from support.object_scenes import FLOOR, SECOND, found, ids
from support.object_scenes import world as build_world
from support.scene_builder import snapshot_of

from embodied_perceptron.config import PlaceConfig, ScorePolicy
from embodied_perceptron.geometry.boxes import Bounds
from embodied_perceptron.geometry.suppression import association_affinity, thickened, touching_pairs
from embodied_perceptron.results import ObjectState
from embodied_perceptron.scene.object_map import ObjectMap, emptiness

NETWORK = ScorePolicy(0.3)
TABLE = (0.0, 0.0, 0.37, 1.2, 0.8, 0.74, 0, 0, 0)
CHAIR = (0.25, -0.2, 0.40, 0.42, 0.42, 0.62, 0, 0, 0)
DRESSER = (0.0, 0.0, 0.4, 0.9, 0.45, 0.8, 0, 0, 0)
DRAWER = (0.0, -0.02, 0.6, 0.85, 0.40, 0.2, 0, 0, 0)


@pytest.mark.parametrize(("count", "side_m"), [(0, 1.0), (1, 1.0), (60, 2.0), (1500, 40.0)])
def test_touching_pairs_are_those_of_a_plain_comparison(count, side_m, monkeypatch):
    """And only boxes near in x and in y are compared: work grows with the boxes, not with their pairs."""
    rng = np.random.default_rng(0)
    places, sizes = rng.uniform(0, side_m, (count, 3)).round(1), rng.uniform(0.1, 1.0, (count, 3)).round(1)
    boxes = np.concatenate([places, sizes, np.zeros((count, 3))], axis=1)
    bounds = Bounds.of(thickened(boxes))
    low, high = bounds.low, bounds.high
    touch = [(low[i] <= high[i + 1 :]).all(axis=1) & (low[i + 1 :] <= high[i]).all(axis=1) for i in range(count)]
    wanted = [(i, i + 1 + k) for i in range(count) for k in np.flatnonzero(touch[i]).tolist()]
    compared, within = [], Bounds.pairs_within

    def counted(self, other, reach_m):
        rows, columns = within(self, other, reach_m)
        compared.append(len(rows))
        return rows, columns

    monkeypatch.setattr(Bounds, "pairs_within", counted)
    first, second = touching_pairs(boxes)
    assert list(zip(first.tolist(), second.tolist(), strict=True)) == wanted
    assert len(compared) > 0
    assert sum(compared) <= 20 * count + 60**2


class Looks:
    """Three looks a second at one map of objects."""

    def __init__(self) -> None:
        self.objects = ObjectMap()
        self.looks = 0

    def see(self, snapshot, times=1, scores=None, **boxes_by_name) -> None:
        """``chair=box`` or ``book=[box, box]``: what the network finds, ``times`` in a row."""
        rows = [(k, b) for k, v in boxes_by_name.items() for b in (v if isinstance(v, list) else [v])]
        for _ in range(times):
            seen = found(*(b for _, b in rows), labels=[k for k, _ in rows], scores=scores or [0.6] * len(rows))
            now_ns = self.looks * SECOND // 3
            now = replace(snapshot, last_seen_ns=np.full_like(snapshot.last_seen_ns, now_ns))  # a camera sees it all
            self.objects.update(seen, now, now_ns, scores=NETWORK)
            self.looks += 1

    def by_id(self):
        return {o.id: o for o in self.objects.objects()}


@pytest.mark.parametrize(
    ("whole", "part"), [(("table", TABLE), ("chair", CHAIR)), (("dresser", DRESSER), ("drawer", DRAWER))]
)
def test_a_part_never_takes_the_identity_of_a_whole(whole, part):
    looks, full = Looks(), build_world(whole[1], part[1])
    looks.see(full, 5, **dict([whole]))
    looks.see(full, 1, **dict([part]))  # the whole is missed once
    looks.see(full, 6, **dict([whole, part]))
    now = looks.by_id()
    assert {i: o.label for i, o in now.items()} == {1: whole[0], 2: part[0]}
    assert now[1].box == pytest.approx(whole[1], abs=1e-6)
    assert now[2].box == pytest.approx(part[1], abs=1e-6)
    looks.see(full, 3, **dict([part]))  # and again
    assert looks.by_id()[1].label == whole[0]
    assert looks.by_id()[1].box == pytest.approx(whole[1], abs=1e-6)


def test_three_drawers_that_hide_a_dresser_for_a_second_do_not_end_it():
    looks, full = Looks(), build_world(DRESSER)
    drawers = [(0.0, -0.02, z, 0.85, 0.40, 0.2, 0, 0, 0) for z in (0.18, 0.4, 0.62)]
    looks.see(full, 6, dresser=DRESSER)
    looks.see(full, 3, drawer=drawers)
    assert looks.by_id()[1].state == ObjectState.CONFIRMED
    looks.see(full, 3, dresser=DRESSER, drawer=drawers)
    assert {i: o.label for i, o in looks.by_id().items()} == {1: "dresser", 2: "drawer", 3: "drawer", 4: "drawer"}


CHAIR_BEFORE = (0.3, 0.2, 0.46, 0.5, 0.5, 0.92, 0, 0, 0)
BIN = (0.3, 0.2, 0.225, 0.32, 0.32, 0.45, 0, 0, 0)


@pytest.mark.parametrize("named", [True, False])
def test_what_replaces_a_thing_gets_a_new_id(named):
    looks = Looks()
    first, second = ("chair", "bin") if named else ("object", "object")
    looks.see(build_world(CHAIR_BEFORE), 10, **{first: CHAIR_BEFORE})
    looks.see(build_world(BIN), 1, **{second: BIN})
    assert 2 in looks.by_id()
    looks.see(build_world(BIN), 5, **{second: BIN})
    (left,) = looks.objects.objects()
    assert (left.id, left.label, left.state) == (2, second, ObjectState.CONFIRMED)
    assert left.box == pytest.approx(BIN, abs=1e-6)


BOOKS = [(0.035 * i, 0, 1.0, 0.25, 0.03, 0.25, np.pi / 2, 0, 0) for i in range(4)]
PLATES = [(0, 0, 0.80, 0.26, 0.26, 0.03, 0, 0, 0), (0, 0, 0.835, 0.26, 0.26, 0.03, 0, 0, 0)]
PILLOWS = [(0, 0, 0.6, 0.45, 0.18, 0.40, 0, 0, 0), (0, 0.14, 0.6, 0.45, 0.18, 0.40, 0, 0, 0)]
CHAIRS = [(0, 0, 0.45, 0.55, 0.55, 0.9, 0, 0, 0), (0.5, 0, 0.45, 0.55, 0.55, 0.9, 0, 0, 0)]
CLOSE_CHAIRS = [(0, 0, 0.45, 0.55, 0.55, 0.9, 0, 0, 0), (0.38, 0, 0.45, 0.55, 0.55, 0.9, 0, 0, 0)]


@pytest.mark.parametrize(
    ("name", "boxes"),
    [("book", BOOKS), ("plate", PLATES), ("pillow", PILLOWS), ("chair", CHAIRS), ("chair", CLOSE_CHAIRS)],
)
def test_like_things_side_by_side_stay_apart(name, boxes):
    looks, full = Looks(), build_world(*boxes)
    rng = np.random.default_rng(0)
    wanted = list(range(1, len(boxes) + 1))
    for _ in range(12):
        noisy = [np.array(b) + np.pad(rng.normal(0, 0.004, 3), (0, 6)) for b in boxes]
        order = rng.permutation(len(boxes))
        looks.see(full, 1, scores=rng.uniform(0.5, 0.7, len(boxes)).tolist(), **{name: [noisy[k] for k in order]})
        assert ids(looks.objects) == wanted
    first = {o.id: o.box[:3].round(1).tolist() for o in looks.objects.objects()}
    looks.see(full, 2, **{name: boxes[1:]})  # one is overlooked for a moment
    looks.see(full, 1, **{name: boxes})
    assert {o.id: o.box[:3].round(1).tolist() for o in looks.objects.objects()} == first
    assert json.loads(looks.objects.to_json())["next_id"] == len(boxes) + 1


def test_one_book_of_four_that_is_taken_away_goes_alone():
    looks = Looks()
    looks.see(build_world(*BOOKS), 6, book=BOOKS)
    by_place = {round(float(o.box[0]), 3): o.id for o in looks.objects.objects()}
    rest = [b for i, b in enumerate(BOOKS) if i != 1]
    looks.see(build_world(*rest), 15, book=rest)
    left = {round(float(o.box[0]), 3): o.id for o in looks.objects.objects()}
    assert {by_place[x] for x in left} == {by_place[round(b[0], 3)] for b in rest}


def test_a_picture_found_twice_a_few_centimetres_apart_is_one():
    picture = (0.0, 0.0, 1.5, 0.6, 0.02, 0.4, 0, 0, 0)
    behind = (0.0, 0.05, 1.5, 0.6, 0.02, 0.4, 0, 0, 0)
    looks = Looks()
    looks.see(build_world(picture), 6, picture=[picture, behind], scores=[0.6, 0.5])
    assert ids(looks.objects) == [1]


def test_clock_set_back_keeps_nothing_alive():
    """Stamps of the future must not keep what is found no more confirmed."""
    real, ghost = (0, 0, 0.4, 0.5, 0.5, 0.8, 0, 0, 0), (2, 2, 0.4, 0.5, 0.5, 0.8, 0, 0, 0)
    full = build_world(real, ghost)
    objects = ObjectMap()
    for k in range(6):
        objects.update(found(real, ghost, labels=["chair", "person"]), full, 1000 * SECOND + k * SECOND // 3)
    for k in range(3 * 20):
        objects.update(found(real, labels=["chair"]), full, k * SECOND // 3)
    assert {o.id: o.state for o in objects.objects()} == {1: ObjectState.CONFIRMED, 2: ObjectState.STALE}
    for k in range(3 * 20, 3 * 65):
        objects.update(found(real, labels=["chair"]), full, k * SECOND // 3)
    assert ids(objects) == [1]


def test_names_across_which_nothing_overlaps_enough_never_associate():
    """The slow twin: of a settled name only the same place counts, whatever lies inside of what."""
    rng = np.random.default_rng(0)
    known = np.concatenate([rng.normal(size=(30, 3)), rng.uniform(0.2, 2, (30, 3)), rng.uniform(-1, 1, (30, 3))], 1)
    part = known.copy()
    part[:, 3:6] *= rng.uniform(0.2, 0.78, (30, 1))  # inside, IoU below 0.5
    yes, no = np.ones((30, 30), bool), np.zeros((30, 30), bool)
    everyone, whole = np.ones(30, bool), np.zeros(30, bool)
    assert np.diag(association_affinity(known, part, no, everyone, whole)).max() == 0.0
    alike = np.diag(association_affinity(known, part, yes, everyone, whole))
    ratio = part[:, 3:6].prod(1) / known[:, 3:6].prod(1)
    assert (alike[ratio > 0.36] >= 0.35).all()
    assert (alike[ratio < 0.34] < 0.35).all()
    cut = np.diag(association_affinity(known, part, yes, everyone, np.ones(30, bool)))
    assert (cut[(ratio > 0.16)] >= 0.35).all()


def test_emptiness_by_hand():
    assert emptiness(100.0, 100.0, 0.0, PlaceConfig()) == 0.0
    assert emptiness(70.0, 100.0, 0.0, PlaceConfig()) == 0.0  # other views, other voxels
    assert emptiness(0.0, 100.0, 0.0, PlaceConfig()) < -5.0
    assert emptiness(10.0, 100.0, 0.0, PlaceConfig()) < -4.0
    assert emptiness(35.0, 100.0, 0.5, PlaceConfig()) == 0.0  # half of it is hidden by what stands in it: 35 of 50
    assert emptiness(0.0, 100.0, 0.9, PlaceConfig()) == 0.0  # hidden: nothing is known
    assert emptiness(0.0, 3.0, 0.0, PlaceConfig()) == 0.0  # of three voxels nothing can be said
    shares = [emptiness(float(n), 100.0, 0.0, PlaceConfig()) for n in range(101)]
    assert (np.diff(shares) >= 0).all()  # more voxels never speak against it
    assert emptiness(0.0, 3.0, 0.0, PlaceConfig(least_support=2.0)) < -5.0
    assert emptiness(0.0, 100.0, 0.9, PlaceConfig(least_open=0.05)) < -5.0
    doubtful = PlaceConfig(gone_sigma=0.3)
    assert emptiness(10.0, 100.0, 0.0, PlaceConfig()) != emptiness(10.0, 100.0, 0.0, doubtful)


def test_existence_does_not_depend_on_how_often_one_looks():
    def unfound(rate_hz: int) -> float:
        looks, full = ObjectMap(), build_world(TABLE)
        for k in range(4):
            looks.update(found(TABLE, labels=["table"]), full, k)
        for k in range(1, 3 * rate_hz + 1):
            looks.update(found(), full, k * SECOND // rate_hz)
        return float(json.loads(looks.to_json())["objects"][0]["log_odds"])

    assert unfound(1) == pytest.approx(unfound(10), abs=1e-6)


def test_floor_beside_a_removed_thing_is_no_evidence_for_it():
    objects = ObjectMap()
    low = (0.0, 0.0, 0.12, 0.5, 0.5, 0.24, 0, 0, 0)
    for k in range(3):
        objects.update(found(low, labels=["stool"]), build_world(low), k * SECOND // 3)
    objects.update(found(), snapshot_of(FLOOR), SECOND)
    assert ids(objects) == []


DOOR = (0.9, 0.8, 0.7, 0.8, 0.08, 1.4, 0, 0, 0)
DOOR_OPENED = (1.3, 1.2, 0.7, 0.08, 0.8, 1.4, 0, 0, 0)
HINGE = (1.1, 0.8, 0.7, 0.4, 0.08, 1.4, 0, 0, 0)  # of the closed leaf, as much as can't be seen through


@pytest.mark.parametrize(
    ("other", "begun_before", "gone"),
    [
        (("door", DOOR_OPENED), False, True),
        (("door", DOOR_OPENED), True, False),  # another leaf beside it, known all along
        (("cabinet", DOOR_OPENED), False, False),
        (("door", (1.3, 1.2, 0.7, 0.08, 0.3, 0.5, 0, 0, 0)), False, False),  # of another size
    ],
)
def test_a_thing_that_moved_a_little_goes_soon_from_where_it_was(other, begun_before, gone):
    looks = Looks()
    before = build_world(DOOR, other[1]) if begun_before else build_world(DOOR)
    looks.see(before, 9, **({"door": [DOOR, DOOR_OPENED]} if begun_before else {"door": DOOR}))
    looks.see(build_world(HINGE, other[1]), 6, **dict([other]))  # two seconds
    assert (looks.by_id()[1].state == ObjectState.CONFIRMED) is not gone
