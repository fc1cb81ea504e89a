"""Every relation against hand-placed boxes."""

from __future__ import annotations

import numpy as np
import pytest
from support.language_scenes import camera

from embodied_perceptron.geometry.boxes import box_rotations, rotations
from embodied_perceptron.language.relations import (
    PAIR_RELATIONS,
    Pairs,
    SceneGeometry,
    Viewer,
    between,
    front_probabilities,
    main_direction,
    viewer_of,
)
from embodied_perceptron.language.scoring import contrast, leftness, log_share, nth_best

KNOWN = np.array([[1.0, 0.0, 0.0, 0.0]])  # -y is the front


def boxes(*rows: tuple[float, ...]) -> np.ndarray:
    """(x, y, z, dx, dy, dz[, yaw])."""
    return np.array([(*row, *([0.0] * (9 - len(row)))) for row in rows], dtype=np.float64)


def geometry(rows: np.ndarray, oriented: bool = False, **kwargs) -> SceneGeometry:
    fronts = np.repeat(KNOWN, len(rows), axis=0) if oriented else None
    return SceneGeometry(rows, fronts, **kwargs)


def test_rotations_are_those_of_the_library():
    import torch

    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.uniform(-1, 1, (20, 3)), rng.uniform(0.1, 2, (20, 3)), rng.uniform(-3, 3, (20, 3))], 1)
    np.testing.assert_allclose(box_rotations(rows), rotations(torch.from_numpy(rows)).numpy(), atol=1e-12)


def test_bounds_of_tilted_boxes_hold_all_corners():
    import torch

    from embodied_perceptron.geometry.boxes import corners

    rng = np.random.default_rng(1)
    rows = np.concatenate([rng.uniform(-1, 1, (20, 3)), rng.uniform(0.1, 2, (20, 3)), rng.uniform(-3, 3, (20, 3))], 1)
    g = geometry(rows)
    points = corners(torch.from_numpy(rows)).numpy()
    c, s = np.cos(-g.yaw), np.sin(-g.yaw)
    points[..., :2] = points[..., :2] @ np.array([[c, -s], [s, c]]).T
    np.testing.assert_allclose(g.low, points.min(1), atol=1e-9)
    np.testing.assert_allclose(g.high, points.max(1), atol=1e-9)


@pytest.mark.parametrize("yaw", [-0.7, -0.2, 0.0, 0.3, 0.75])
def test_main_direction_is_that_of_most_furniture(yaw):
    rows = boxes((0, 0, 0, 2, 1, 1, yaw), (3, 0, 0, 2, 1, 1, yaw + np.pi / 2), (0, 3, 0, 2, 1, 1, yaw - np.pi))
    found = main_direction(rows, box_rotations(rows))
    assert (found - yaw + np.pi / 4) % (np.pi / 2) - np.pi / 4 == pytest.approx(0.0, abs=1e-6)


# target first, then the wrong ones, then the anchor
CASES = {
    "near": ([(0.6, 0, 0.5, 0.4, 0.4, 1), (2.5, 0, 0.5, 0.4, 0.4, 1)], (0, 0, 0.5, 0.5, 0.5, 1)),
    "on": (
        [
            (0.1, 0, 0.8, 0.2, 0.2, 0.2),
            (0.1, 0, 0.1, 0.2, 0.2, 0.2),
            (0.1, 0, 1.6, 0.2, 0.2, 0.2),
            (2, 0, 0.8, 0.2, 0.2, 0.2),
        ],
        (0, 0, 0.35, 1, 1, 0.7),
    ),
    "supporting": ([(0, 0, 0.35, 1, 1, 0.7), (3, 0, 0.35, 1, 1, 0.7)], (0.1, 0, 0.8, 0.2, 0.2, 0.2)),
    "with": ([(0, 0, 0.35, 1, 1, 0.7), (3, 0, 0.35, 1, 1, 0.7)], (0.1, 0, 0.8, 0.2, 0.2, 0.2)),
    "in": ([(0, 0, 0.3, 0.2, 0.2, 0.2), (0.8, 0, 0.3, 0.2, 0.2, 0.2)], (0, 0, 0.5, 1, 0.6, 1)),
    "above": (
        [(0, 0, 1.7, 0.8, 0.1, 0.6), (2, 0, 1.7, 0.8, 0.1, 0.6), (0, 0, 0.3, 0.8, 0.1, 0.2)],
        (0, 0, 0.4, 2, 0.9, 0.8),
    ),
    "below": (
        [(0, 0, 0.2, 0.3, 0.3, 0.4), (2, 0, 0.2, 0.3, 0.3, 0.4), (0, 0, 1.5, 0.3, 0.3, 0.4)],
        (0, 0, 0.9, 1, 0.6, 0.1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("relation", sorted(CASES))
def test_relations_told_by_distance_and_height(relation):
    rows, anchor = CASES[relation]
    g = geometry(boxes(*rows, anchor))
    scores = g.matrix(relation)[: len(rows), -1]
    assert scores[0] > 0.45
    assert (scores[1:] < 0.5 * scores[0]).all(), scores


@pytest.mark.parametrize("yaw", [0.0, 0.4, -1.2, 2.5])
@pytest.mark.parametrize(
    ("relation", "place"), [("front", (0, -1)), ("left", (1, 0)), ("behind", (0, 1)), ("right", (-1, 0))]
)
def test_sides_of_an_oriented_anchor_are_its_own(relation, place, yaw):
    """The front is -y; looking along it, the anchor's own left is +x."""
    c, s = np.cos(yaw), np.sin(yaw)
    around = [(0, -1), (1, 0), (0, 1), (-1, 0)]
    rows = [(1.2 * (c * x - s * y), 1.2 * (s * x + c * y), 0.5, 0.4, 0.4, 1.0, yaw) for x, y in around]
    g = geometry(boxes(*rows, (0, 0, 0.5, 0.6, 0.6, 1.0, yaw)), oriented=True)
    scores = g.matrix(relation)[:4, 4]
    assert int(scores.argmax()) == around.index(place)
    assert scores.max() > 0.9
    assert np.sort(scores)[-2] < 0.1


def test_sides_end_where_nobody_would_say_so_any_more():
    g = geometry(boxes((0, -1.2, 0.5, 0.4, 0.4, 1), (0, -6, 0.5, 0.4, 0.4, 1), (0, 0, 0.5, 0.6, 0.6, 1)), oriented=True)
    near, far = g.matrix("front")[:2, 2]
    assert near > 0.9
    assert far < 0.05


@pytest.mark.parametrize(("sign", "x"), [("left", -1.0), ("right", 1.0)])
def test_sides_of_an_anchor_without_front_are_the_viewers(sign, x):
    """The viewer stands in the south and looks north: left is west."""
    rows = boxes((x, 0, 0.5, 0.4, 0.4, 1), (-x, 0, 0.5, 0.4, 0.4, 1), (0, 0, 0.5, 0.6, 0.6, 1))
    south = Viewer(np.array([0.0, -3.0]), np.array([0.0, 1.0]))
    north = Viewer(np.array([0.0, 3.0]), np.array([0.0, -1.0]))
    assert geometry(rows, viewer=south).matrix(sign)[0, 2] > 5 * geometry(rows, viewer=south).matrix(sign)[1, 2]
    assert geometry(rows, viewer=north).matrix(sign)[1, 2] > 5 * geometry(rows, viewer=north).matrix(sign)[0, 2]


def test_front_and_behind_of_an_anchor_without_front_are_the_viewers():
    rows = boxes((0, -1, 0.5, 0.4, 0.4, 1), (0, 1, 0.5, 0.4, 0.4, 1), (0, 0, 0.5, 0.6, 0.6, 1))
    g = geometry(rows, viewer=Viewer(np.array([0.0, -3.0]), np.array([0.0, 1.0])))
    assert g.matrix("front")[0, 2] > 5 * g.matrix("front")[1, 2]
    assert g.matrix("behind")[1, 2] > 5 * g.matrix("behind")[0, 2]


def test_without_viewer_sides_are_undecided():
    rows = boxes((-1, 0, 0.5, 0.4, 0.4, 1), (1, 0, 0.5, 0.4, 0.4, 1), (0, 0, 0.5, 0.6, 0.6, 1))
    scores = geometry(rows).matrix("left")[:2, 2]
    assert scores[0] == pytest.approx(scores[1], rel=0.05)


def test_between_is_within_the_strip_and_inside_its_ends():
    rows = boxes(
        (0, 0, 0.5, 0.3, 0.3, 1),
        (0, 1.5, 0.5, 0.3, 0.3, 1),
        (3, 0, 0.5, 0.3, 0.3, 1),
        (-2, 0, 0.5, 0.6, 0.6, 1),
        (2, 0, 0.5, 0.6, 0.6, 1),
    )
    g = geometry(rows)
    scores = between(Pairs(g, np.arange(5), np.full(5, 3)), Pairs(g, np.arange(5), np.full(5, 4)))
    assert scores[0] > 0.5
    assert (scores[1:] < 0.1 * scores[0]).all()


def test_walls_part_rooms():
    rows = boxes(
        (1, 0, 0.5, 0.4, 0.4, 1), (-1, 0, 0.5, 0.4, 0.4, 1), (0, 0, 0.5, 0.4, 0.4, 1), (0.5, 0, 1.2, 0.1, 5, 2.4)
    )
    walls = np.array([False, False, False, True])
    with_wall = SceneGeometry(rows, barriers=walls)
    assert with_wall.matrix("near")[0, 2] < 0.3 * with_wall.matrix("near")[1, 2]
    assert SceneGeometry(rows).matrix("near")[0, 2] == pytest.approx(SceneGeometry(rows).matrix("near")[1, 2])


@pytest.mark.parametrize("relation", sorted(PAIR_RELATIONS))
def test_scores_are_in_range_whatever_the_boxes(relation):
    rng = np.random.default_rng(3)
    rows = np.concatenate([rng.normal(0, 2, (30, 3)), rng.uniform(0.01, 3, (30, 3)), rng.uniform(-3, 3, (30, 3))], 1)
    rows[7] = rows[8]  # twins
    rows[9, 3:6] = 1e-6
    fronts = rng.dirichlet(np.ones(5), 30)[:, :4]
    for viewer in (None, Viewer(rows[3, :2].copy(), np.array([1.0, 0.0]))):
        scores = SceneGeometry(rows, fronts, viewer).matrix(relation)
        assert scores.shape == (30, 30)
        assert np.isfinite(scores).all()
        assert (scores >= 0).all()
        assert (scores <= 1.0 + 1e-9).all()


@pytest.mark.parametrize("relation", sorted(PAIR_RELATIONS))
def test_relations_of_nothing_are_empty(relation):
    assert SceneGeometry(np.zeros((0, 9))).matrix(relation).shape == (0, 0)


@pytest.mark.parametrize("relation", sorted(PAIR_RELATIONS))
def test_relations_move_with_the_world(relation):
    """A common yaw and shift of boxes and viewer changes nothing; 37 degrees is far from any quarter turn."""
    rng = np.random.default_rng(5)
    rows = np.concatenate([rng.uniform(-3, 3, (12, 3)), rng.uniform(0.2, 1.5, (12, 3)), np.zeros((12, 3))], 1)
    rows[:, 6] = rng.choice([0.0, np.pi / 2, np.pi], 12) + 0.1
    fronts = rng.dirichlet(np.ones(4), 12)
    yaw, shift = np.deg2rad(37.0), np.array([4.0, -7.0, 1.3])
    c, s = np.cos(yaw), np.sin(yaw)
    R = np.array([[c, -s], [s, c]])
    turned = rows.copy()
    turned[:, :2] = rows[:, :2] @ R.T
    turned[:, :3] += shift
    turned[:, 6] += yaw
    viewer = Viewer(np.array([0.3, -4.0]), np.array([0.6, 0.8]))
    there = Viewer(R @ viewer.position + shift[:2], R @ viewer.heading)
    before = SceneGeometry(rows, fronts, viewer).matrix(relation)
    np.testing.assert_allclose(SceneGeometry(turned, fronts, there).matrix(relation), before, atol=1e-7)
    unseen = SceneGeometry(rows, fronts).matrix(relation)
    np.testing.assert_allclose(SceneGeometry(turned, fronts).matrix(relation), unseen, atol=1e-7)


# ------------------------------------------------------------------------------------------------------- viewpoints


def test_viewers_of_cameras_and_robots():
    seen = viewer_of(camera((1, 2, 1.5), (1, 5, 1.0)))
    np.testing.assert_allclose(seen.position, [1, 2])
    np.testing.assert_allclose(seen.heading, [0, 1], atol=1e-9)
    robot = np.eye(4)
    robot[:3, :3] = [[0, -1, 0], [1, 0, 0], [0, 0, 1]]  # x forward points to +y
    np.testing.assert_allclose(viewer_of(robot).heading, [0, 1], atol=1e-9)
    down = np.eye(4)
    down[:3, :3] = np.diag([1.0, -1.0, -1.0])  # looks down, the image's upper edge (-y) points to world +y
    np.testing.assert_allclose(viewer_of(down).heading, [0, 1], atol=1e-9)


@pytest.mark.parametrize("bad", [np.eye(3), np.full((4, 4), np.nan), np.zeros((4, 4))])
def test_poses_that_are_none(bad):
    with pytest.raises(ValueError, match="viewpoint"):
        viewer_of(bad)


# ------------------------------------------------------------------------------------------------------ comparisons


def test_contrast_by_hand():
    x = np.array([1.0, 2.0, 3.0, 100.0])
    scores = contrast(x, np.array([1.0, 1.0, 1.0, 0.0]))
    deviation = np.sqrt(2 / 3) + 1e-3
    np.testing.assert_allclose(scores[:3], [-1 / deviation, 0.0, 1 / deviation])
    assert 2.5 < scores[3] < 2.6  # keeps its order, hardly counts
    assert not contrast(x, np.array([1.0, 0.0, 0.0, 0.0])).any()


def test_log_share_by_hand():
    scores = log_share(np.array([0.0, 1.0, 9.0]), np.array([1.0, 1.0, 0.0]))
    np.testing.assert_allclose(scores[:2], np.log([1 / (1 + np.e), np.e / (1 + np.e)]), atol=1e-6)


def test_the_second_from_the_left():
    rows = boxes(*((x, 3, 0.5, 0.3, 0.3, 1) for x in (2.0, -1.0, 0.0, 1.0)))
    group = np.ones(4)
    g = geometry(rows, viewer=Viewer(np.zeros(2), np.array([0.0, 1.0])))
    left = leftness(g, group, None)
    assert list(np.argsort(-left)) == [1, 2, 3, 0]
    assert int(nth_best(left, group, 2).argmax()) == 2
    assert int(nth_best(-left, group, 2).argmax()) == 3
    assert int(nth_best(-left, group, 1).argmax()) == 0
    behind = geometry(rows, viewer=Viewer(np.array([0.5, 6.0]), np.array([0.0, -1.0])))
    assert list(np.argsort(-leftness(behind, group, None))) == [0, 3, 2, 1]


def _sigmoid(x: float) -> float:
    return float(1.0 / (1.0 + np.exp(-x)))


def _seen_plainly(g: SceneGeometry, i: int, j: int) -> tuple[float, float]:
    """Left of, and before, anchor j: the mean over who may look at it."""
    points = [g.viewer.position] if g.viewer is not None else list(g.view_points)
    total = left = before = 0.0
    for point in points:
        d = g.center[j, :2] - point
        r = float(np.linalg.norm(d))
        u, weight = d / max(r, 1e-6), float(np.clip(r - 0.6, 0.0, 1.0))
        if g.viewer is not None:
            u, weight = (g.viewer.heading if r < 0.5 else u), 1.0
        offset = g.center[i, :2] - g.center[j, :2]
        lateral, ahead = float(offset @ (-u[1], u[0])), float(offset @ u)
        aside = max(abs(lateral) - 0.5 * max(g.size[j, :2]) - 0.2, 0.0)
        left += weight * _sigmoid(lateral / 0.2)
        before += weight * _sigmoid(-ahead / 0.25) * float(np.exp(-aside / 0.6))
        total += weight
    return left / max(total, 1e-6), before / max(total, 1e-6)


def _some(rng: np.random.Generator, count: int) -> np.ndarray:
    rows = [rng.uniform(-4, 4, (count, 2)), rng.uniform(0, 2, (count, 1)), rng.uniform(0.1, 2, (count, 3))]
    return np.concatenate([*rows, rng.uniform(-3, 3, (count, 1)), np.zeros((count, 2))], axis=1)


@pytest.mark.parametrize("seed", range(6))
def test_views_are_those_of_a_plain_loop(seed):
    rng = np.random.default_rng(seed)
    viewer = Viewer(rng.uniform(-3, 3, 2), np.array([1.0, 0.0])) if seed % 2 else None
    g = geometry(_some(rng, 9), viewer=viewer)
    left, before = g.every.seen
    for i in range(g.n):
        for j in range(g.n):
            np.testing.assert_allclose((left[i, j], before[i, j]), _seen_plainly(g, i, j), atol=1e-9)


@pytest.mark.parametrize("relation", ["left", "right", "front", "behind"])
def test_for_anchors_alone_it_is_the_same_as_for_all(relation):
    rng = np.random.default_rng(8)
    rows = _some(rng, 20)
    labels = list(rng.choice(["chair", "table", "picture", "lamp", "couch", "stool"], 20))
    anchors = rng.random(20) < 0.3
    assert anchors.any()
    matrices = []
    for wanted in (None, anchors, np.zeros(20, bool)):
        g = SceneGeometry(rows, lambda g: front_probabilities(g, labels, "estimated"), anchors=wanted)
        matrices.append((g.fronts, g.matrix(relation)))
    np.testing.assert_allclose(matrices[1][0][anchors], matrices[0][0][anchors], atol=1e-12)
    np.testing.assert_allclose(matrices[1][1][:, anchors], matrices[0][1][:, anchors], atol=1e-12)
    assert np.isfinite(matrices[2][1]).all()


def test_the_end_of_a_table_is_a_short_side() -> None:
    boxes = np.array([[0, 0, 0.4, 2.4, 0.9, 0.8, 0, 0, 0], [1.4, 0, 0.4, 0.4, 0.4, 0.8, 0, 0, 0],
                      [0.5, 0.7, 0.4, 0.4, 0.4, 0.8, 0, 0, 0]], dtype=np.float64)  # fmt: skip
    for turn in (0.0, np.pi / 2):
        turned = boxes.copy()
        c, s = np.cos(turn), np.sin(turn)
        turned[:, :2] = boxes[:, :2] @ np.array([[c, -s], [s, c]]).T
        turned[:, 6] = turn
        at_end = SceneGeometry(turned).matrix("end")[:, 0]
        assert at_end[1] > 0.5
        assert at_end[1] > 2 * at_end[2]
