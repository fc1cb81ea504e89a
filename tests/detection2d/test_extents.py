"""Extents of objects that images show in part: screens without depth, sinks, chairs behind tables."""

from __future__ import annotations

import numpy as np
import pytest
from support.lift_world import K
from support.online_world import look_at

from embodied_perceptron.detection2d.extents import complete_box, grow_to_views, inside_boxes
from embodied_perceptron.detection2d.lifting import LiftedDetection, box_along
from embodied_perceptron.geometry.boxes import box_corners
from embodied_perceptron.geometry.transforms import invert_transform, project, transform_points
from embodied_perceptron.inference.class_priors import detector_priors

PRIORS = detector_priors()
NO_SHAPES = np.zeros((0, 9))
SCREEN = np.array([-1.97, 0.2, 1.5, 1.0, 0.06, 0.54, np.pi / 2, 0, 0])  # on the wall at x = -2
EYES = [np.array([0.5, y, 1.4]) for y in (-0.6, 0.2, 1.0)]


def seen_whole(box, T, points, known=(True,) * 4):
    """A detection whose 2-D box holds the whole (9,) box, but whose surface is ``points``."""
    uv, _ = project(transform_points(invert_transform(T), box_corners(box[None])[0]), K)
    box_px = np.concatenate([uv.min(axis=0), uv.max(axis=0)])
    around = np.zeros((0, 3))
    return LiftedDetection("tv", 0.9, points, box_along(points, np.pi / 2), False, 0, box_px, around, np.array(known))


def cameras(poses):
    return [(invert_transform(T), np.array([K.fx, K.fy, K.cx, K.cy])) for T in poses]


def rim():
    """What depth shows of the screen: a piece of its frame at the lower left."""
    rng = np.random.default_rng(0)
    return np.stack([np.full(80, -1.96), rng.uniform(-0.3, 0.0, 80), rng.uniform(1.23, 1.35, 80)], axis=1) + rng.normal(
        0, 0.005, (80, 3)
    )


@pytest.mark.parametrize("count", [1, 3])
def test_a_screen_without_depth_has_the_extents_of_its_2d_boxes(count):
    poses = [look_at(eye, [-2.0, 0.2, 1.5]) for eye in EYES[-count:]]
    members = [seen_whole(SCREEN, T, rim()) for T in poses]
    small = members[0].box
    grown = grow_to_views(small, members, cameras(poses), PRIORS.get("tv"), 0.0)
    np.testing.assert_allclose(grown[[3, 5]], SCREEN[[3, 5]], atol=0.15)
    np.testing.assert_allclose(grown[:3], SCREEN[:3], atol=0.12)
    assert grown[4] < 0.2, "it does not grow out of the wall"
    assert inside_boxes(grown[None], rim(), 0.02).all(), "its surface stays"


def test_sides_at_the_image_border_ask_for_nothing():
    poses = [look_at(eye, [-2.0, 0.2, 1.5]) for eye in EYES]
    members = [seen_whole(SCREEN, T, rim(), (False,) * 4) for T in poses]
    box = members[0].box
    np.testing.assert_array_equal(grow_to_views(box, members, cameras(poses), PRIORS.get("tv"), 0.0), box)


def test_an_inset_sink_is_no_column():
    rng = np.random.default_rng(1)
    points = rng.uniform([0.0, 0.0, 0.75], [0.45, 0.4, 0.9], (200, 3))
    box = box_along(points, 0.0)
    done = complete_box(box, points, "sink", NO_SHAPES, 0.0, PRIORS)
    np.testing.assert_array_equal(done, box)


BACK = np.random.default_rng(2).uniform([-0.22, -0.03, 0.72], [0.22, 0.03, 0.88], (200, 3))
TABLE_SHAPE = np.array([0.0, 0.5, 0.44, 1.6, 1.2, 0.88, 0, 0, 0])  # reaches over the back of the chair


@pytest.mark.parametrize("outside", [True, False])
def test_a_chair_behind_a_table_reaches_the_floor_and_is_no_table(outside):
    """The views have the table's surface beside the chair's 2-D box, or (with ``outside`` False) in it."""

    def sightings(points):
        far = (np.abs(points[:, 0]) > 0.3) | (np.abs(points[:, 1]) > 0.3)
        return np.full(len(points), 3.0), np.where(outside & far, 0.0, 3.0)

    def surface(box):
        top = np.random.default_rng(3).uniform([-0.8, -0.1, 0.7], [0.8, 1.1, 0.75], (100, 3))
        return top[inside_boxes(box[None], top, 0.0)[:, 0]]

    box = box_along(BACK, 0.0)
    directions = np.array([[0.0, -1.0, 0.0]])
    done = complete_box(box, BACK, "chair", TABLE_SHAPE[None], 0.0, PRIORS, (surface, sightings), directions)
    assert np.array_equal(done, TABLE_SHAPE) != outside
    if outside:
        assert done[2] - done[5] / 2 == pytest.approx(0.0, abs=1e-9)
        assert done[2] + done[5] / 2 == pytest.approx(0.88, abs=0.02)
        assert done[4] >= PRIORS.get("chair").short_m[0]
        assert inside_boxes(done[None], BACK, 0.01).mean() > 0.9


def test_a_completion_that_views_see_outside_of_the_2d_box_is_refused():
    box = box_along(BACK, 0.0)
    front = np.random.default_rng(4).uniform([-0.2, -0.03, 0.1], [0.2, 0.03, 0.7], (50, 3))  # of a cupboard below
    outside = (lambda _: front, lambda points: (np.full(len(points), 2.0), np.zeros(len(points))))
    done = complete_box(box, BACK, "chair", NO_SHAPES, 0.0, PRIORS, outside)
    np.testing.assert_array_equal(done, box)


def test_noise_of_depth_makes_no_picture_thicker_than_pictures_are():
    points = np.random.default_rng(6).uniform(-0.5, 0.5, (300, 3)) * (0.6, 0.15, 0.5) + [0.0, 0.0, 1.5]
    box = box_along(points, 0.0)
    done = complete_box(box, points, "picture", NO_SHAPES, 0.0, PRIORS)
    assert done[4] == PRIORS.get("picture").short_m[1] < 0.5 * box[4]
    np.testing.assert_array_equal(np.delete(done, 4), np.delete(box, 4))


def test_the_back_of_a_door_is_behind_its_face():
    points = np.random.default_rng(7).uniform(-0.5, 0.5, (300, 3)) * (0.8, 0.04, 2.0) + [0.0, 0.0, 1.0]
    box = box_along(points, 0.0)
    for side in (-1.0, 1.0):
        done = complete_box(box, points, "door", NO_SHAPES, 0.0, PRIORS, None, np.array([[0.6, side, 0.0]]))
        assert done[4] == PRIORS.get("door").usual_m[1] > 2 * box[4]
        assert done[1] - side * done[4] / 2 == pytest.approx(box[1] - side * box[4] / 2)


@pytest.mark.parametrize(("label", "face"), [("toaster", (0.29, 0.03, 0.2)), ("cabinet", (0.8, 0.05, 0.75))])
def test_a_face_gets_the_usual_depth_of_its_class_away_from_the_camera(label, face):
    points = np.random.default_rng(5).uniform(-0.5, 0.5, (300, 3)) * face + [0.0, 0.0, 0.4]
    box = box_along(points, 0.0)
    across, along = np.array([[0.0, 1.0, 0.0]]), np.array([[1.0, 0.0, 0.0]])
    done = complete_box(box, points, label, NO_SHAPES, 0.0, PRIORS, None, across)
    assert done[4] == pytest.approx(PRIORS.get(label).usual_m[1])
    assert done[1] - done[4] / 2 == pytest.approx(box[1] - box[4] / 2)
    measured = complete_box(box, points, label, NO_SHAPES, 0.0, PRIORS, None, np.concatenate([across, along]))
    assert measured[4] < done[4]  # the second view shows how deep it is
