"""One picture's detections in the world: a room whose things are known."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from scipy import ndimage
from support.lift_world import CUP_BOX, THINGS, K, boxes_of, photograph
from support.online_world import look_at

from embodied_perceptron.detection2d.detections2d import accept_detections
from embodied_perceptron.detection2d.lifting import (
    box_along,
    box_around,
    connected,
    lift_view,
    sample_pixels,
)
from embodied_perceptron.inference.class_priors import _FOLDER, ClassPriors, shipped_priors
from embodied_perceptron.sensors.frame import RgbdFrame

T = look_at(np.array([-0.6, 1.2, 1.6]), [0.5, 0.0, 0.6])
PRIORS = shipped_priors()


def seen(T=T, things=THINGS, label=None, masks=False):
    """The picture, and a perfect detector's answer (everything called ``label``, if given)."""
    posed, shown = photograph(T, 3, things)
    said = boxes_of(shown, list(things))
    boxes = np.array([box for _, box in said])
    names = [label or name for name, _ in said]
    every = np.stack([shown == list(things).index(name) for name, _ in said]) if masks else None
    found, _ = accept_detections("front", 3, boxes, np.full(len(said), 0.9), names, (K.width, K.height), masks=every)
    return posed.frame, found


def lifted_by_name(frame, found, T=T, **options):
    lifted, drops = lift_view(found, frame, T, 0.0, PRIORS, **options)
    return {d.label: d for d in lifted}, drops


@pytest.mark.parametrize("masks", [False, True])
def test_a_cup_on_a_table_is_lifted_without_the_table(masks):
    frame, found = seen(masks=masks)
    things, _ = lifted_by_name(frame, found)
    cup = things["cup"].points_m
    assert (np.abs(cup[:, :2] - CUP_BOX[:2]) < 0.045).all()
    assert cup[:, 2].min() > 0.745
    np.testing.assert_allclose(things["cup"].box[:3], CUP_BOX[:3], atol=0.03)
    assert PRIORS.log_plausibility("cup", things["cup"].box, 0.0) == 0.0


@pytest.mark.parametrize("shift_px", [0.0, 6.0])
def test_what_a_small_object_stands_on_is_not_among_its_other_points(shift_px):
    """Views from one side have the same part of a table in their 2-D boxes, most of all where these are displaced."""
    frame, found = seen()
    cup = found.labels.index("cup")
    boxes = found.boxes_px[[cup]] + [shift_px, 0.0, shift_px, 0.0]
    found, _ = accept_detections("front", 3, boxes, np.array([0.9]), ["cup"], (K.width, K.height))
    things, _ = lifted_by_name(frame, found)
    assert len(things["cup"].points_m) >= 10
    assert (things["cup"].around_m[:, 2] > 0.745).all()


@pytest.mark.parametrize("masks", [False, True])
def test_a_table_is_lifted_without_floor_and_walls(masks):
    frame, found = seen(masks=masks)
    things, _ = lifted_by_name(frame, found)
    table = things["table"].points_m
    top = np.abs(table[:, 2] - 0.74) < 0.02
    assert top.mean() > 0.6
    outside = (np.abs(table[:, :2] - [0.6, 0.0]) > [0.45, 0.75]).any(axis=1)
    assert outside.mean() < 0.1


def test_a_carpet_is_no_bed_but_a_carpet():
    eye = look_at(np.array([0.5, -0.2, 1.5]), [-0.7, -1.1, 0.0])
    only = {"carpet": THINGS["carpet"]}
    frame, found = seen(eye, only)
    things, _ = lifted_by_name(frame, found, eye)
    np.testing.assert_allclose(things["carpet"].box[:2], [-0.75, -1.1], atol=0.15)
    frame, found = seen(eye, only, label="bed")
    things, drops = lifted_by_name(frame, found, eye)
    assert not things
    assert sum(drops.values()) == 1


def test_a_cupboard_of_a_cups_look_is_no_cup():
    big = {"cup": [((0.8, -0.3, 0.0), (1.3, 0.3, 1.4))]}
    frame, found = seen(things=big)
    _, drops = lifted_by_name(frame, found)
    assert sum(drops.values()) == 1


def test_names_without_a_prior_are_lifted_all_the_same():
    frame, found = seen(label="zorp")
    lifted, _ = lift_view(found, frame, T, 0.0, PRIORS)
    assert {d.label for d in lifted} == {"zorp"}
    assert any(np.linalg.norm(d.box[:3] - CUP_BOX[:3]) < 0.05 for d in lifted)


def test_without_depth_nothing_is_lifted_and_it_is_counted():
    frame, found = seen()
    blind = RgbdFrame(3, "front", frame.color, np.zeros_like(frame.depth_m), K)
    lifted, drops = lift_view(found, blind, T, 0.0, PRIORS)
    assert not lifted
    assert drops == {"no_surface": len(found)}


def test_detections_of_another_picture_are_refused():
    frame, found = seen()
    other = RgbdFrame(4, "front", frame.color, frame.depth_m, K)
    with pytest.raises(ValueError, match="'front' at 3 do not belong"):
        lift_view(found, other, T, 0.0, PRIORS)


@pytest.mark.parametrize("seed", range(3))
def test_turning_the_world_turns_what_is_lifted(seed):
    yaw = np.random.default_rng(seed).uniform(-3, 3)
    turn = np.eye(4)
    turn[:2, :2] = [[np.cos(yaw), -np.sin(yaw)], [np.sin(yaw), np.cos(yaw)]]
    frame, found = seen()
    here, _ = lift_view(found, frame, T, 0.0, PRIORS, yaw_rad=0.2)
    there, _ = lift_view(found, frame, turn @ T, 0.0, PRIORS, yaw_rad=0.2 + yaw)
    assert [d.label for d in here] == [d.label for d in there]
    for a, b in zip(here, there, strict=True):
        if a.label == "cup":  # clusters are cells of the world: large things may gain or lose a cell
            np.testing.assert_allclose((turn[:3, :3] @ a.box[:3]), b.box[:3], atol=0.01)


def test_samples_are_distinct_and_inside_and_ring_are_apart():
    for box in ([10.2, 20.7, 90.1, 60.3], [-0.5, -0.5, 319.5, 239.5], [5.0, 5.0, 12.0, 11.0]):
        uv, inside, offset = sample_pixels(np.array(box), (320, 240), None)
        assert len(np.unique(uv, axis=0)) == len(uv)
        assert (uv >= 0).all()
        assert (uv < [320, 240]).all()
        in_box = (uv >= np.array(box[:2])) & (uv <= np.array(box[2:]))
        assert in_box[inside].all()
        assert not in_box[~inside].all(axis=1).any()
        assert (np.abs(offset[inside]) <= 1).all()
        assert inside.sum() >= 25


def test_masks_are_shrunk_and_their_outside_is_ring():
    mask = np.zeros((240, 320), dtype=bool)
    mask[50:100, 50:100] = True
    uv, inside, _ = sample_pixels(np.array([49.5, 49.5, 149.5, 99.5]), (320, 240), mask)
    assert uv[inside].max() <= 97
    assert (~mask[uv[~inside][:, 1], uv[~inside][:, 0]]).all()


def test_a_mask_of_a_thin_object_is_shrunk_less():
    mask = np.zeros((240, 320), dtype=bool)
    mask[50:150, 50:53] = True
    uv, inside, _ = sample_pixels(np.array([49.5, 49.5, 52.5, 149.5]), (320, 240), mask)
    assert inside.sum() >= 20
    assert (uv[inside][:, 0] == 51).all()


@pytest.mark.parametrize("yaw", [0.0, 0.5, -1.2])
def test_boxes_around_points_of_a_turned_box(yaw):
    rng = np.random.default_rng(1)
    local = rng.uniform(-0.5, 0.5, (4000, 3)) * [1.2, 0.6, 0.4]
    c, s = np.cos(yaw), np.sin(yaw)
    points = local @ np.array([[c, s, 0], [-s, c, 0], [0, 0, 1]]) + [1, 2, 0.5]
    for box in (box_along(points, yaw, 0.0), box_around(points, 0.0, 0.0)):
        np.testing.assert_allclose(box[:3], [1, 2, 0.5], atol=0.02)
        np.testing.assert_allclose(box[3:6], [1.2, 0.6, 0.4], atol=0.03)
        assert abs((box[6] - yaw + np.pi / 2) % np.pi - np.pi / 2) < 0.03
        assert not box[7:].any()


# --------------------------------------------------------------------------------------------------------------------
# priors


def box(x=0.0, z=0.4, long=1.0, short=0.6, height=0.8):
    return np.array([x, 0, z, long, short, height, 0, 0, 0])


def test_plausible_things_are_plausible_and_others_are_not():
    table = box(z=0.37, long=1.4, short=0.8, height=0.74)
    assert PRIORS.log_plausibility("table", table, 0.0) == 0.0
    assert PRIORS.log_plausibility("table", table, -1.0) < -4  # it would float a metre above the floor
    assert PRIORS.log_plausibility("cup", table, 0.0) == -8.0
    carpet = box(z=0.01, long=1.8, short=1.2, height=0.02)
    assert PRIORS.log_plausibility("bed", carpet, 0.0) < -3
    assert PRIORS.log_plausibility("carpet", carpet, 0.0) > -1
    assert PRIORS.log_plausibility("zorp", table, 0.0) == 0.0


def test_parts_may_be_small_but_never_large():
    back = box(z=0.8, long=0.4, short=0.05, height=0.2)
    assert PRIORS.log_plausibility("chair", back, 0.0, whole=False) == 0.0
    assert PRIORS.log_plausibility("chair", back, 0.0, whole=True) < -4
    assert PRIORS.log_plausibility("chair", box(long=3.0), 0.0, whole=False) < -4


def test_plausibility_falls_with_size_beyond_the_range():
    values = [
        PRIORS.log_plausibility("cup", box(z=0.8, long=s, short=0.1, height=0.1), 0.0) for s in (0.1, 0.3, 0.5, 1)
    ]
    assert values[0] == 0.0
    assert all(a > b for a, b in pairwise(values[:3]))
    assert all(a >= b for a, b in pairwise(values))


def test_spellings():
    assert PRIORS.canonical("dining table") == "table"
    assert PRIORS.canonical("sofa") == "couch"
    assert PRIORS.canonical("椅子") == "椅子"
    assert ClassPriors({}, {}).canonical("sofa") == "sofa"


def test_every_spelling_leads_to_a_name_that_homes_or_the_table_know():
    names = json.loads((_FOLDER / "class_names.json").read_text())["names"]
    assert {target for target in names.values() if PRIORS.get(target) is None} == set()


def test_every_prior_is_a_range():
    from embodied_perceptron.detection2d.detectors import COCO_CLASSES
    from embodied_perceptron.weights.categories import DETECTION_CLASSES

    known = 0
    for label in {*COCO_CLASSES, *DETECTION_CLASSES}:
        prior = PRIORS.get(PRIORS.canonical(label))
        if prior is None:
            continue
        known += 1
        for low, high in (prior.long_m, prior.short_m, prior.height_m, prior.bottom_m, prior.top_m):
            assert 0 <= low <= high
            assert high > 0
    assert known > 120


@pytest.mark.parametrize("seed", range(4))
def test_theconnected_is_that_of_labelled_cells(seed):
    rng = np.random.default_rng(seed)
    middles = rng.uniform(-0.5, 0.5, (5, 3))
    points = np.concatenate([rng.normal(m, 0.03, (n, 3)) for m, n in zip(middles, (5, 40, 60, 30, 1), strict=True)])
    weight = rng.uniform(0.1, 1.0, len(points))
    cell = np.floor(points / 0.04).astype(int)
    cell -= cell.min(axis=0)
    filled = np.zeros(cell.max(axis=0) + 1, dtype=bool)
    filled[tuple(cell.T)] = True
    part = ndimage.label(filled, structure=np.ones((3, 3, 3)))[0][tuple(cell.T)]
    largest = part == np.argmax(np.bincount(part, weights=weight))
    assert connected(points, weight, 0.04).tolist() == largest.tolist()
    assert not largest.all()
