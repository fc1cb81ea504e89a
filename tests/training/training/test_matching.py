"""Assignment of points to boxes, queries to boxes, coarse voxels to labels."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.golden import GOLDEN
from support.point_assignment import assign_points
from support.random_boxes import face_distances, random_boxes

from embodied_perceptron.geometry import boxes as bx
from embodied_perceptron.weights.categories import OCCUPANCY_IGNORED
from embodied_perceptron_training.training.criteria import (
    PaddedBoxes,
    QueryMatcher,
    ScenePoints,
    coarse_labels,
    hungarian,
    learning_levels,
)


def released_coarse_labels(
    occupancy: torch.Tensor, mask: torch.Tensor | None, grid: tuple[int, int, int], ratio: int
) -> torch.Tensor:
    """The released code's coarse targets: (M, 4) x, y, z, label in order and (X, Y, Z) visibility -> labels.

    The last voxel written wins, and labels of unobserved voxels leak into partly observed cells.
    """
    coarse = np.zeros([n // ratio for n in grid], dtype=np.int64)
    for x, y, z, label in occupancy.tolist():
        coarse[x // ratio, y // ratio, z // ratio] = label
    if mask is not None:
        seen = mask.cpu().numpy().reshape(grid[0] // ratio, ratio, grid[1] // ratio, ratio, grid[2] // ratio, ratio)
        coarse[~seen.any(axis=(1, 3, 5))] = OCCUPANCY_IGNORED
    return torch.from_numpy(coarse)


def centerness_of(distances: torch.Tensor) -> torch.Tensor:
    """(..., 6) distances to the faces -x +x -y +y -z +z, all positive -> (...) 1 at the centre, 0 on a face."""
    low, high = distances[..., 0::2], distances[..., 1::2]
    return torch.sqrt((torch.minimum(low, high) / torch.maximum(low, high)).prod(-1))


def grid_levels(steps: tuple[float, ...], extent_m: float, seed: int) -> list[torch.Tensor]:
    """Levels of jittered grid points; no two centrenesses tie."""
    g = torch.Generator().manual_seed(seed)
    levels = []
    for step in steps:
        axis = torch.arange(-extent_m, extent_m, step, dtype=torch.float64)
        points = torch.cartesian_prod(axis, axis, axis)
        levels.append(points + 0.1 * step * torch.randn(points.shape, generator=g, dtype=torch.float64))
    return levels


def plain_assignment(
    points: list[torch.Tensor], boxes: torch.Tensor, min_points: int, top_points: int
) -> list[tuple[int, float]]:
    """The definition, box by box and point by point."""
    claims: dict[tuple[int, int], list[tuple[float, int, float]]] = {}
    for g, box in enumerate(boxes):
        counts, central = [], []
        for level in points:
            distances = face_distances(level, box[None])[:, 0]
            inside = [int(i) for i in (distances > 0).all(1).nonzero()[:, 0]]
            counts.append(len(inside))
            central.append(sorted(((float(centerness_of(distances[i])), i) for i in inside), reverse=True))
        best = 0
        for i in range(len(points)):
            if counts[i] >= min_points:
                best = i
        for value, i in central[best][:top_points]:
            claims.setdefault((best, i), []).append((float(bx.volumes(box[None])[0]), g, value))
    result = []
    for level_index, level in enumerate(points):
        for i in range(len(level)):
            owners = claims.get((level_index, i), [])
            result.append((min(owners)[1], min(owners)[2]) if owners else (-1, 0.0))
    return result


# ---------------------------------------------------------------------------------------------------------- detection


def test_centerness_by_hand() -> None:
    distances = torch.tensor([[1.0, 1, 2, 2, 3, 3], [1, 3, 1, 1, 1, 1], [1, 3, 1, 3, 1, 3], [0, 1, 1, 1, 1, 1]])
    expected = torch.tensor([1.0, math.sqrt(1 / 3), math.sqrt(1 / 27), 0.0])
    torch.testing.assert_close(centerness_of(distances), expected)


def test_level_by_hand() -> None:
    """A box of 0.5 m holds 5^3 points of the finest level, 3^3 of the next and 1 of the coarsest."""
    box = torch.tensor([[0.0, 0, 0, 0.5, 0.5, 0.5, 0, 0, 0]])
    fine, middle, coarse = (torch.cartesian_prod(*[torch.arange(-2.0, 3.0) * step] * 3) for step in (0.1, 0.24, 0.48))
    levels = [fine, middle, coarse]
    assigned = assign_points(levels, box, min_points=27, top_points=18)
    assert assigned.positive.sum() == 18
    assert assigned.positive[125:250].sum() == 18  # the middle level: 27 points are enough
    assert assign_points(levels, box, min_points=28).positive[:125].sum() == 18  # the finest
    assert assign_points(levels, box, min_points=126).positive[:125].sum() == 18  # too few anywhere: the finest still
    assert assign_points(levels, box, min_points=1).positive[250:].sum() == 1  # the coarsest
    assert assign_points(levels, box, min_points=1).centerness[250:].max() == 1.0


def test_the_level_of_a_box_does_not_ask_for_points_on_finer_ones() -> None:
    """Finer levels are pruned of what is learned on coarser ones; the release takes a level only in an unbroken row."""
    box = torch.tensor([[0.0, 0, 0, 0.5, 0.5, 0.5, 0, 0, 0]])
    rich = 0.1 * torch.cartesian_prod(*[torch.arange(-2.0, 3.0)] * 3)
    poor = rich[:5]
    assigned = assign_points([rich, poor, rich], box, min_points=27)
    assert assigned.level.tolist() == [2]
    assert assigned.positive[130:].sum() == assigned.positive.sum() == 18
    scene = ScenePoints.of([rich, poor, rich], [[0, 125], [0, 5], [0, 125]])
    assert learning_levels(scene, PaddedBoxes.of([box]), min_points=27).tolist() == [[2]]
    released = assign_points([rich, poor, rich], box, min_points=27, released=True)
    assert released.level.tolist() == [0]
    assert released.positive[:125].sum() == released.positive.sum()


def test_points_on_a_face_belong_to_nobody() -> None:
    box = torch.tensor([[0.0, 0, 0, 1, 1, 1, 0, 0, 0]])
    points = torch.tensor([[0.5, 0, 0], [0, -0.5, 0], [0.25, 0, 0]])
    assert assign_points([points], box, min_points=1).box.tolist() == [-1, -1, 0]


@pytest.mark.parametrize("seed", range(5))
def test_assignment_equals_its_definition(seed: int) -> None:
    levels = grid_levels((0.2, 0.4, 0.8), 1.0, seed)
    boxes = random_boxes(8, seed=seed)
    assigned = assign_points(levels, boxes, min_points=10, top_points=6)
    expected = plain_assignment(levels, boxes, 10, 6)
    assert assigned.box.tolist() == [box for box, _ in expected]
    torch.testing.assert_close(assigned.centerness, torch.tensor([c for _, c in expected], dtype=torch.float64))
    assert assigned.positive.any()


def test_assigned_points_lie_inside_their_tilted_box() -> None:
    levels, boxes = grid_levels((0.1, 0.2), 1.0, 3), random_boxes(10, seed=4)
    assigned = assign_points(levels, boxes)
    inside = bx.points_in_boxes(torch.cat(levels), boxes)
    positive = assigned.positive
    assert inside[positive, assigned.box[positive]].all()


def test_ties_keep_exactly_the_wanted_number() -> None:
    """On a symmetric grid all points tie; the released rule then drops every one of them."""
    corners = torch.cartesian_prod(*[torch.tensor([-0.1, 0.1])] * 3)
    box = torch.tensor([[0.0, 0, 0, 0.5, 0.5, 0.5, 0, 0, 0]])
    assert assign_points([corners], box, 1, 4).positive.sum() == 4
    assert assign_points([corners], box, 1, 4, released=True).positive.sum() == 0
    assert assign_points([corners], box, 1, 8, released=True).positive.sum() == 8


def test_scenes_with_nothing_to_assign() -> None:
    box = torch.tensor([[0.0, 0, 0, 0.5, 0.5, 0.5, 0, 0, 0]])
    points = torch.tensor([[5.0, 5.0, 5.0]])
    for levels, boxes, count in (
        ([points], box, 1),  # a box without any voxel
        ([points], box[:0], 1),
        ([points[:0], points[:0]], box, 0),
        ([], box, 0),
        ([points[:0], points], box, 1),
    ):
        assigned = assign_points(levels, boxes)
        assert assigned.box.tolist() == [-1] * count
        assert assigned.centerness.tolist() == [0.0] * count


def test_minimum_size_gives_a_thin_box_its_points() -> None:
    points = torch.cartesian_prod(torch.arange(5) * 0.1, torch.arange(5) * 0.1, torch.tensor([0.03]))
    picture = torch.tensor([[0.2, 0.2, 0.0, 0.5, 0.5, 0.02, 0, 0, 0]])
    assert not assign_points([points], picture).positive.any()
    assert assign_points([points], picture, min_size_m=0.1).positive.any()


@pytest.mark.golden
def test_golden_assignment() -> None:
    z, heads = np.load(GOLDEN / "detection_targets.npz"), np.load(GOLDEN / "detection_head.npz")
    levels = [torch.from_numpy(heads[f"l{i}_points"]) for i in range(4)]
    boxes, labels = torch.from_numpy(z["gt_boxes"]), torch.from_numpy(z["gt_labels"])
    for name in ("cfg", "low"):
        assigned = assign_points(levels, boxes, *z[f"{name}_thresholds"].tolist(), released=True)
        expected = torch.from_numpy(z[f"{name}_cls_targets"])
        positive = assigned.positive
        assert torch.equal(torch.where(positive, labels[assigned.box.clamp_min(0)], -1), expected)
        np.testing.assert_allclose(assigned.centerness[positive], z[f"{name}_center_targets"][positive], atol=1e-5)
        assert torch.equal(boxes[assigned.box[positive]], torch.from_numpy(z[f"{name}_bbox_targets"])[positive])


@pytest.mark.golden
def test_golden_face_distances_right_where_only_alpha_is_set() -> None:
    z = np.load(GOLDEN / "box_geometry.npz")
    boxes, points = torch.from_numpy(z["boxes"])[:10], torch.from_numpy(z["fd_points"])
    ours = face_distances(points, boxes)
    released_boxes = bx.make_boxes(boxes[:, :3], boxes[:, 3:6], bx.euler_to_matrix(-boxes[:, 6:]).transpose(1, 2))
    np.testing.assert_allclose(face_distances(points, released_boxes), z["fd"], atol=1e-5)
    yaw_only = (boxes[:, 7:] == 0).all(1)
    np.testing.assert_allclose(ours[:, yaw_only], z["fd"][:, yaw_only], atol=1e-5)
    assert torch.equal((ours >= 0).all(-1), torch.from_numpy(z["fd_inside_true"]))
    with np.errstate(invalid="ignore"):
        inside = z["fd_inside_official"]
    centerness = centerness_of(face_distances(points, released_boxes)).numpy()
    np.testing.assert_allclose(centerness[inside], z["fd_centerness"][inside], atol=1e-4)


# ---------------------------------------------------------------------------------------------------------- grounding


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 1000))
def test_hungarian_is_the_cheapest_matching(queries: int, boxes: int, seed: int) -> None:
    cost = torch.rand(queries, boxes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    q, b = hungarian(cost)
    assert len(q) == len(b) == min(queries, boxes)
    wide = cost if queries >= boxes else cost.T
    best = min(sum(float(wide[r, c]) for c, r in enumerate(p)) for p in permutations(range(len(wide)), wide.shape[1]))
    assert float(cost[q, b].sum()) == pytest.approx(best)


def test_hungarian_names_a_broken_cost() -> None:
    with pytest.raises(ValueError, match=r"query 1 and box 0 is nan"):
        hungarian(torch.tensor([[0.0, 1.0], [float("nan"), 0.0]]))


def test_matcher_prefers_the_right_token_and_the_right_box() -> None:
    gt = torch.tensor([[0.0, 0, 0, 1, 1, 1, 0, 0, 0], [3.0, 0, 0, 1, 1, 1, 0, 0, 0]])
    boxes = torch.cat([gt.flip(0), gt + 5.0])
    positive = torch.tensor([[1, 0, 0], [0, 1, 0]])
    logits = torch.zeros(4, 3)
    assert [x.tolist() for x in QueryMatcher()(logits, boxes, gt, positive)] == [[0, 1], [1, 0]]
    logits[2, 0] = logits[3, 1] = 9.0
    words_only = QueryMatcher(focal=1.0, l1=0.0, iou=0.0)
    assert [x.tolist() for x in words_only(logits, boxes, gt, positive)] == [[2, 3], [0, 1]]
    none = QueryMatcher()(logits, boxes, gt[:0], positive[:0])
    assert [len(x) for x in none] == [0, 0]


def test_matcher_knows_that_angles_wrap() -> None:
    gt = torch.tensor([[0.0, 0, 0, 1, 2, 1, math.pi - 0.01, 0, 0]])
    boxes = torch.tensor([[0.0, 0, 0, 1, 2, 1, -math.pi + 0.01, 0, 0]])
    logits, positive = torch.zeros(1, 2), torch.tensor([[1, 0]])
    assert QueryMatcher().costs(logits, boxes, gt, positive)[1].item() == pytest.approx(0.04, abs=1e-5)
    released = QueryMatcher(released=True).costs(logits, boxes, gt, positive)[1].item()
    assert released == pytest.approx(2 * (2 * math.pi - 0.02), abs=1e-5)


@pytest.mark.golden
def test_golden_matching() -> None:
    z, decoder = np.load(GOLDEN / "grounding_losses.npz"), np.load(GOLDEN / "grounding_decoder.npz")
    matcher = QueryMatcher(released=True)
    for sample in range(2):
        gt, positive = torch.from_numpy(z[f"gt{sample}"]), torch.from_numpy(z[f"posmap{sample}"])
        for layer in range(6):
            logits = torch.from_numpy(decoder["logits"][layer, sample])
            boxes = torch.from_numpy(decoder["boxes"][layer, sample])
            query, box = matcher(logits, boxes, gt, positive)
            expected = torch.zeros(16, dtype=torch.int64)
            expected[query] = box + 1
            assert expected.tolist() == z["gt_inds"][layer, sample].tolist()
        for cost, name in zip(
            matcher.costs(logits, boxes, gt, positive),
            ("BinaryFocalLossCost", "BBox3DL1Cost", "IoU3DCost"),
            strict=True,
        ):
            np.testing.assert_allclose(cost.numpy(), z[f"cost_b{sample}_{name}"], atol=1e-5)


# ---------------------------------------------------------------------------------------------------------- occupancy


def test_coarse_labels_by_hand() -> None:
    labels = torch.zeros(1, 4, 2, 2, dtype=torch.int64)
    labels[0, 0, 0, 0], labels[0, 1, 0, 0], labels[0, 1, 1, 1] = 3, 2, 2  # the majority, not the last or the lowest
    labels[0, 0, 1, :] = 255
    assert coarse_labels(labels, 2, 5).flatten().tolist() == [2, 0]
    labels[0, 2:] = 255
    assert coarse_labels(labels, 2, 5).flatten().tolist() == [2, 255]
    labels[0, 3, 1, 1] = 0  # one known voxel, and it is free
    assert coarse_labels(labels, 2, 5).flatten().tolist() == [2, 0]
    labels[0, 3, 1, 0] = 4
    assert coarse_labels(labels, 2, 5).flatten().tolist() == [2, 4]
    assert torch.equal(coarse_labels(labels, 1, 5), labels)


def test_coarse_labels_name_bad_input() -> None:
    with pytest.raises(ValueError, match="divide"):
        coarse_labels(torch.zeros(1, 4, 4, 3, dtype=torch.int64), 2, 5)
    with pytest.raises(ValueError, match="label 7"):
        coarse_labels(torch.full((1, 2, 2, 2), 7), 2, 5)


@pytest.mark.golden
def test_golden_coarse_labels() -> None:
    z = np.load(GOLDEN / "occupancy_head.npz")
    occupancy, mask = torch.from_numpy(z["gt_occupancy"]), torch.from_numpy(z["gt_mask"])
    for scale in range(3):
        for name, seen in (("nomask", None), ("mask", mask)):
            ours = released_coarse_labels(occupancy, seen, (40, 40, 16), 2**scale)
            np.testing.assert_array_equal(ours.numpy(), z[f"sup{scale}_{name}"][0])
