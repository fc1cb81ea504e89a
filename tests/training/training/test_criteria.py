"""Losses and criteria: hand-computed cases, gradients, empty scenes, recorded values."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from support.golden import GOLDEN, detection_head, level_inputs
from support.point_assignment import assign_points
from support.random_boxes import first_columns, random_boxes

from embodied_perceptron.geometry import boxes as bx
from embodied_perceptron.nn.detection import Votes
from embodied_perceptron_training.training.criteria import (
    BOX_LOSSES,
    BoxParts,
    BoxTarget,
    DetectionCriterion,
    DetectionPrediction,
    GroundingCriterion,
    GroundingLayer,
    GroundingTarget,
    OccupancyCriterion,
    OccupancySums,
    PaddedBoxes,
    QueryMatcher,
    ScenePoints,
    contrastive_alignment,
    decoupled_corner_loss,
    geometric_terms,
    l1_box_loss,
    objects_reach,
    occupancy_cross_entropy,
    rotated_iou_loss,
    semantic_terms,
    sigmoid_focal,
    vote_loss,
    with_fewer_axes,
)


def parts(n: int, seed: int) -> BoxParts:
    return BoxParts.of(random_boxes(n, seed=seed, room_m=0.6))


def cube(x: float = 0.0, size: float = 1.0, yaw: float = 0.0) -> BoxParts:
    return BoxParts.of(torch.tensor([[x, 0, 0, size, size, size, yaw, 0, 0]], dtype=torch.float64))


def corner_chamfer(predicted: BoxParts, target: BoxParts, two_sided: bool = False) -> torch.Tensor:
    return decoupled_corner_loss(predicted, target, (0.0, 0.0, 0.0, 1.0), two_sided)


def semantic_affinity(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return semantic_terms(OccupancySums.of(logits, target).classes)


def geometric_affinity(logits: torch.Tensor, target: torch.Tensor, released: bool = False) -> torch.Tensor:
    if logits.ndim == target.ndim:  # of "occupied" alone
        logits = torch.stack([torch.zeros_like(logits), logits], 1)
        target = torch.where(target == 255, target, (target > 0).to(target.dtype))
    return geometric_terms(OccupancySums.of(logits, target).filled, released)


# -------------------------------------------------------------------------------------------------------------- boxes


def test_votes_are_for_the_middle_of_the_smallest_box_around_a_site() -> None:
    """By hand: a large box with a small one in it; a site in both, one in the large one alone, one in none, and one of
    another scene. (0.5 + 0.25) and (1 + 0.5) over two sites."""
    boxes = [torch.tensor([[0.0, 0, 0, 4, 4, 4, 0, 0, 0], [1.0, 0, 0, 1, 1, 1, 0, 0, 0]]), torch.zeros(0, 9)]
    points = torch.tensor([[1.25, 0, 0], [-1.0, 0.5, 0], [9.0, 0, 0], [0.0, 0, 0]])
    offsets = torch.tensor([[0.25, 0.25, 0], [0.0, 0, 0], [5.0, 5, 5], [5.0, 5, 5]], requires_grad=True)
    votes = Votes(points, offsets, torch.tensor([0, 0, 0, 1]))
    loss = vote_loss(votes, PaddedBoxes.of(boxes))
    assert loss.item() == pytest.approx((0.75 + 1.5) / 2)
    loss.backward()
    assert offsets.grad is not None
    assert offsets.grad[2:].abs().sum() == 0
    assert vote_loss(votes, PaddedBoxes.of([torch.zeros(0, 9)] * 2)).item() == 0.0


def test_parts_and_nine_numbers_are_the_same_box() -> None:
    boxes = random_boxes(20, tilt=1.5)
    torch.testing.assert_close(BoxParts.of(boxes).boxes(), boxes)
    torch.testing.assert_close(BoxParts.of(boxes).corners(), bx.corners(boxes))


def test_corner_chamfer_by_hand() -> None:
    assert corner_chamfer(cube(), cube()).item() == pytest.approx(0.0, abs=1e-12)
    assert corner_chamfer(cube(0.1), cube()).item() == pytest.approx(0.1)  # every corner 0.1 m off in x
    assert corner_chamfer(cube(size=1.2), cube()).item() == pytest.approx(0.3)  # 0.1 m off in x, y and z
    quarter = math.pi / 2
    assert corner_chamfer(cube(yaw=quarter), cube()).item() == pytest.approx(0.0, abs=1e-12)  # the same cube


def test_one_sided_chamfer_does_not_see_what_two_sided_sees() -> None:
    """A flat box whose corners all sit at four of the target's corners: nothing says that the other four are missed."""
    flat = BoxParts.of(torch.tensor([[0.0, 0, 0.5, 1, 1, 0, 0, 0, 0]], dtype=torch.float64))
    assert corner_chamfer(flat, cube()).item() == pytest.approx(0.0, abs=1e-12)
    assert corner_chamfer(flat, cube(), two_sided=True).item() == pytest.approx(0.25)  # half of 4 of 8 at 1 m


def test_decoupled_loss_by_hand() -> None:
    """Off by 0.1 m in x alone: the centre term and the whole each see 0.1 m, size and rotation nothing."""
    assert decoupled_corner_loss(cube(0.1), cube()).item() == pytest.approx(0.2 * 0.1 + 0.4 * 0.1)
    assert decoupled_corner_loss(cube(size=1.2), cube()).item() == pytest.approx(0.2 * 0.3 + 0.4 * 0.3)


def test_iou_loss_by_hand_and_apart() -> None:
    assert rotated_iou_loss(cube(0.5), cube()).item() == pytest.approx(2 / 3)
    far = BoxParts(cube(9.0).center.requires_grad_(), cube().size, cube().rotation)
    loss = rotated_iou_loss(far, cube(), distance_weight=1.0)
    assert loss.item() == pytest.approx(1 + 81 / (100 + 1 + 1))
    loss.backward()
    assert far.center.grad is not None
    assert far.center.grad[0, 0] > 0  # descent brings it back


def test_differences_of_numbers_by_hand() -> None:
    """A right angle changes a cosine by 1; its sign does not show."""
    everything = BOX_LOSSES["l1-cosines"].l1
    assert l1_box_loss(cube(0.3, 1.2), cube(), everything).item() == pytest.approx(0.3 + 3 * 0.2)
    assert l1_box_loss(cube(0.3, yaw=math.pi / 2), cube(), everything).item() == pytest.approx(1.3)
    assert l1_box_loss(cube(0.3, yaw=-0.4), cube(yaw=0.4), ("cosines",)).item() == pytest.approx(0.0, abs=1e-9)


def test_boxes_of_fewer_axes() -> None:
    tilted = parts(5, 3)
    yaw_alone = tilted.boxes()
    yaw_alone[:, 7:] = 0.0
    torch.testing.assert_close(with_fewer_axes(tilted, 7).rotation, BoxParts.of(yaw_alone).rotation)
    assert torch.equal(with_fewer_axes(tilted, 6).rotation, torch.eye(3, dtype=torch.float64).expand(5, 3, 3))
    assert torch.equal(with_fewer_axes(tilted, 7).center, tilted.center)


def test_the_designs_are_those_of_the_papers_table_13() -> None:
    """Sum, average and weights of the distances by centre, size, rotation and whole box (section 4.2, appendix C.2)."""
    corners = {name: terms.corners for name, terms in BOX_LOSSES.items() if any(terms.corners)}
    assert corners == {
        "plain": (0.0, 0.0, 0.0, 1.0),
        "sum": (1.0, 1.0, 1.0, 1.0),
        "average": (0.25, 0.25, 0.25, 0.25),
        "average-by-size": (0.25, 0.25, 0.25, 0.25),
        "decoupled": (0.2, 0.2, 0.2, 0.4),
        "decoupled-iou-7dof": (0.2, 0.2, 0.2, 0.4),
    }
    assert {name for name, terms in BOX_LOSSES.items() if terms.iou_dof == 7} == {"iou-7dof", "decoupled-iou-7dof"}


@pytest.mark.parametrize(
    ("name", "expected"),
    # off by 0.2 m in x alone, of a cube of 2 m: IoU 1.8 / 2.2
    [
        *(("decoupled", {"box": 0.12}), ("plain", {"box": 0.2}), ("sum", {"box": 0.4}), ("average", {"box": 0.1})),
        *(("average-by-size", {"box": 0.05}), ("l1-cosines", {"box": 0.2}), ("iou-7dof", {"iou/7-dof": 2 / 11})),
        ("decoupled-iou-7dof", {"box": 0.12, "iou/7-dof": 2 / 11}),
        ("iou-cosines", {"box": 0.0, "iou/6-dof": 2 / 11}),
    ],
)
def test_designs_of_the_box_loss_by_hand(name: str, expected: dict[str, float]) -> None:
    """One cube, and as many points at its centre as are learned from."""
    points = torch.zeros(1, 3, dtype=torch.float64)
    moved = cube(0.2, 2.0)
    prediction = DetectionPrediction([points], numbers_of(moved), torch.zeros(1, 2).double())
    losses = DetectionCriterion(min_points=1, box=BOX_LOSSES[name])(
        prediction, [BoxTarget(cube(size=2.0).boxes(), torch.tensor([1]))]
    )
    found = {term: loss.item() for term, loss in losses.items() if term not in ("class", "center")}
    assert found == pytest.approx(expected)


def test_box_loss_gradients() -> None:
    target = parts(6, 1)
    center, size, sixd = (
        parts(6, 2).center.requires_grad_(),
        parts(6, 2).size.requires_grad_(),
        first_columns(parts(6, 2).rotation).clone().requires_grad_(),
    )

    def build(c: torch.Tensor, s: torch.Tensor, r: torch.Tensor) -> BoxParts:
        return BoxParts(c, s, bx.sixd_to_matrix(r))

    assert torch.autograd.gradcheck(lambda *a: decoupled_corner_loss(build(*a), target), (center, size, sixd))
    assert torch.autograd.gradcheck(
        lambda *a: rotated_iou_loss(build(*a), target, 0.5), (center, size, sixd), eps=1e-7, atol=1e-5
    )


def test_box_losses_of_no_boxes() -> None:
    empty = BoxParts.of(torch.zeros(0, 9))
    for loss in (corner_chamfer, decoupled_corner_loss, rotated_iou_loss):
        assert loss(empty, empty).shape == (0,)


@pytest.mark.golden
def test_golden_corner_chamfer() -> None:
    z = np.load(GOLDEN / "box_geometry.npz")
    ours, target = BoxParts.of(torch.from_numpy(z["boxes"])), BoxParts.of(torch.from_numpy(z["cd_target"]))
    np.testing.assert_allclose(corner_chamfer(ours, target).numpy(), z["cd_l1_g8_none"].mean(1), atol=1e-5)
    assert corner_chamfer(ours, target).mean().item() == pytest.approx(float(z["cd_l1_g8_mean"]), abs=1e-6)


# ---------------------------------------------------------------------------------------------------------- detection


def numbers_of(boxes: BoxParts, centerness: torch.Tensor | float = 0.0) -> torch.Tensor:
    """(P, 16) predictions of these boxes from their centres."""
    logits = torch.as_tensor(centerness).to(boxes.size).expand(len(boxes.size))[:, None]
    axes = boxes.rotation[:, :, 0], boxes.rotation[:, :, 1]
    return torch.cat([logits, boxes.center, (0.5 * boxes.size).repeat_interleave(2, 1), *axes], 1)


def scene(seed: int = 0, points: int = 200, classes: int = 4) -> tuple[DetectionPrediction, BoxTarget]:
    g = torch.Generator().manual_seed(seed)
    levels = [(torch.rand(n, 3, generator=g) - 0.5) * 2 for n in (points, points // 4)]
    flat = torch.cat(levels)
    size = 0.2 + torch.rand(len(flat), 3, generator=g)
    centerness = torch.randn(len(flat), generator=g)
    solids = BoxParts(flat + 0.01, size, torch.eye(3).expand(len(flat), 3, 3))
    prediction = DetectionPrediction(
        levels,
        numbers_of(solids, centerness).requires_grad_(),
        torch.randn(len(flat), classes, generator=g).requires_grad_(),
    )
    boxes = random_boxes(3, seed=seed).float()
    return prediction, BoxTarget(boxes, torch.randint(0, classes, (3,), generator=g))


def joined(*scenes: DetectionPrediction) -> DetectionPrediction:
    """Predictions of single scenes as those of a batch: level by level."""
    levels = range(len(scenes[0].points))
    counts = [[len(s.points[i]) for s in scenes] for i in levels]

    def of(values: Callable[[DetectionPrediction], torch.Tensor]) -> torch.Tensor:
        parts = [values(s).split([len(p) for p in s.points]) for s in scenes]
        return torch.cat([p[i] for i in levels for p in parts])

    logits = [[s.object_logits[i] for s in scenes] for i in levels if scenes[0].object_logits]
    return DetectionPrediction(
        [torch.cat([s.points[i] for s in scenes]) for i in levels],
        of(lambda s: s.geometry),
        of(lambda s: s.class_logits),
        scenes[0].reaches,
        [None if None in level else torch.cat(level) for level in logits],
        None,
        [[0, *itertools.accumulate(c)] for c in counts],
    )


def test_focal_by_hand() -> None:
    logits = torch.tensor([0.0, 0.0, math.log(3.0)])
    targets = torch.tensor([1.0, 0.0, 1.0])
    expected = [0.25 * 0.25 * math.log(2), 0.75 * 0.25 * math.log(2), 0.25 * 0.0625 * -math.log(0.75)]
    torch.testing.assert_close(sigmoid_focal(logits, targets), torch.tensor(expected))


def test_detection_loss_of_a_perfect_prediction_is_nearly_zero() -> None:
    box = torch.tensor([[0.0, 0, 0, 1, 1, 1, 0.3, 0.2, 0.1]])
    points = torch.zeros(1, 3)
    prediction = DetectionPrediction([points], numbers_of(BoxParts.of(box), 20.0), torch.tensor([[-20.0, 20.0]]))
    losses = DetectionCriterion(iou_weight=1.0)(prediction, [BoxTarget(box, torch.tensor([1]))])
    assert set(losses) == {"class", "center", "box", "iou"}
    for value in losses.values():
        assert value.item() == pytest.approx(0.0, abs=1e-4)


def test_detection_scene_without_objects_learns_background_only() -> None:
    prediction, target = scene()
    empty = BoxTarget(target.boxes[:0], target.labels[:0])
    losses = DetectionCriterion()(prediction, [empty])
    assert losses["center"].item() == losses["box"].item() == 0.0
    expected = sigmoid_focal(prediction.class_logits, torch.zeros_like(prediction.class_logits)).sum()
    torch.testing.assert_close(losses["class"], expected)
    sum(losses.values()).backward()  # type: ignore[union-attr]
    for tensor in (prediction.geometry, prediction.class_logits):
        assert tensor.grad is not None  # every parameter takes part: DDP would wait for it otherwise
        assert torch.isfinite(tensor.grad).all()


def test_detection_scene_without_points() -> None:
    _, target = scene()
    empty = DetectionPrediction([], torch.zeros(0, 16), torch.zeros(0, 4))
    for value in DetectionCriterion()(empty, [target]).values():
        assert value.item() == 0.0


def test_detection_batch_normaliser() -> None:
    a, b = scene(0), scene(1)
    both = DetectionCriterion(min_points=1)(joined(a[0], b[0]), [a[1], b[1]])
    # two processes, each with one scene: the mean of their losses is that of one process with both
    counts = []
    for p, t in (a, b):
        seen: list[torch.Tensor] = []
        DetectionCriterion(min_points=1)(p, [t], lambda n, s=seen: (s.append(n), n)[1])  # type: ignore[misc]
        counts.append(seen[0])
    average = (counts[0] + counts[1]) / 2
    shared = [DetectionCriterion(min_points=1)(p, [t], lambda _: average) for p, t in (a, b)]
    torch.testing.assert_close((shared[0]["box"] + shared[1]["box"]) / 2, both["box"])
    assert both["box"] > 0


def test_detection_gradient_reaches_only_positives_of_the_box_loss() -> None:
    prediction, target = scene(3)
    DetectionCriterion(min_points=1)(prediction, [target])["box"].backward()
    assert prediction.geometry.grad is not None
    touched = (prediction.geometry.grad.abs().sum(1) > 0).sum()
    assert 0 < touched <= 3 * 18


def test_object_scores_by_hand() -> None:
    """Cells of 0.4 m around a box that ends at x = 0.5: the one at 0.6 still reaches in, the one at 0.8 does not."""
    points = torch.tensor([[0.0, 0, 0], [0.6, 0, 0], [0.8, 0, 0]])
    box = torch.tensor([[0.0, 0, 0, 1, 1, 1, 0, 0, 0]])

    def reached(points: torch.Tensor, box: torch.Tensor, reach_m: float) -> list[bool]:
        cells = ScenePoints.of([points[:0], points], [[0, 0], [0, len(points)]])
        level = torch.zeros(1, len(box), dtype=torch.int64)
        return objects_reach(cells, PaddedBoxes.of([box]), [0.5 * reach_m, reach_m], level).tolist()

    assert reached(points, box, 0.2) == [True, True, False]
    assert reached(points, box, 0.0) == [True, False, False]
    assert reached(points, box[:0], 0.2) == [False] * 3
    assert reached(points[:0], box, 0.2) == []
    # learned on the finer level, whose sites the scores choose
    logits = torch.tensor([0.0, math.log(3.0), math.log(3.0)], requires_grad=True)
    fine = DetectionPrediction(
        [points[:1], points],
        numbers_of(BoxParts.of(box.expand(4, 9))),
        torch.zeros(4, 2),
        reaches=[0.1, 0.2],
        object_logits=[None, logits],
    )
    target = BoxTarget(box, torch.tensor([1]))
    expected = (math.log(2.0) - math.log(0.75) - math.log(0.25)) / 3
    for scenes in (1, 2):  # the mean over all cells
        losses = DetectionCriterion()(joined(*[fine] * scenes), [target] * scenes)
        assert losses["object"].item() == pytest.approx(expected, rel=1e-5)
    # learned here: the finer level needs no site of it
    nothing = DetectionCriterion(min_points=1)(fine, [target])["object"]
    assert nothing.item() == pytest.approx((math.log(2.0) + 2 * math.log(4.0)) / 3, rel=1e-5)
    nothing = DetectionCriterion()(fine, [BoxTarget(box[:0], torch.zeros(0).long())])["object"]
    assert nothing.item() == pytest.approx((math.log(2.0) + 2 * math.log(4.0)) / 3, rel=1e-5)
    nothing.backward()
    assert logits.grad is not None
    assert "object" not in DetectionCriterion()(dataclasses.replace(fine, object_logits=[]), [target])


def test_detection_names_a_bad_label() -> None:
    prediction, target = scene()
    with pytest.raises(ValueError, match=r"label 5 is not in \[0, 4\]"):
        DetectionCriterion()(prediction, [BoxTarget(target.boxes, torch.tensor([0, 5, 1]))])


def test_a_head_without_presence_learns_where_nameless_things_are() -> None:
    prediction, target = scene()
    nameless = BoxTarget(target.boxes, torch.full_like(target.labels, prediction.class_logits.shape[1]))
    criterion = DetectionCriterion(min_points=1)
    named, losses = criterion(prediction, [target]), criterion(prediction, [nameless])
    torch.testing.assert_close(losses["box"], named["box"])
    torch.testing.assert_close(losses["center"], named["center"])
    positives = assign_points(prediction.points, target.boxes, 1).positive.sum()
    none = sigmoid_focal(prediction.class_logits, torch.zeros_like(prediction.class_logits)).sum()
    torch.testing.assert_close(losses["class"], none / positives)  # of none of the classes


@pytest.mark.golden
def test_presence_is_learned_at_things_of_every_name_and_of_none() -> None:
    prediction, target = scene(3)
    presence = torch.zeros(len(prediction.class_logits), requires_grad=True)
    known = dataclasses.replace(prediction, presence_logits=presence)
    criterion = DetectionCriterion(min_points=1)
    before, losses = criterion(prediction, [target]), criterion(known, [target])
    torch.testing.assert_close(losses["class"], before["class"])
    nameless = criterion(known, [BoxTarget(target.boxes, torch.full_like(target.labels, 4))])
    torch.testing.assert_close(nameless["presence"], losses["presence"])
    torch.testing.assert_close(nameless["box"], losses["box"])
    assigned = assign_points(prediction.points, target.boxes, 1)
    none = sigmoid_focal(prediction.class_logits, torch.zeros_like(prediction.class_logits)).sum()
    torch.testing.assert_close(nameless["class"], none / assigned.positive.sum())
    losses["presence"].backward()
    assert presence.grad is not None
    assert torch.equal(presence.grad < 0, assigned.positive)  # rises there, falls elsewhere


@pytest.mark.golden
@torch.no_grad()
def test_golden_detection_losses() -> None:
    """From the recorded head's inputs on: what it says has tests of its own (tests/nn/test_heads_golden.py)."""
    z, heads = np.load(GOLDEN / "detection_targets.npz"), np.load(GOLDEN / "detection_head.npz")
    levels, _ = detection_head()(level_inputs())
    prediction = DetectionPrediction(
        [torch.from_numpy(heads[f"l{i}_points"]) for i in range(4)],
        numbers_of(
            BoxParts.of(torch.cat([torch.from_numpy(heads[f"l{i}_decoded9"]) for i in range(4)])),
            torch.cat([level.center_logits for level in levels])[:, 0],
        ),
        torch.cat([level.class_logits for level in levels]),
    )
    target = BoxTarget(torch.from_numpy(z["gt_boxes"]), torch.from_numpy(z["gt_labels"]))
    for name in ("cfg", "low"):
        min_points, top_points = z[f"{name}_thresholds"].tolist()
        losses = DetectionCriterion(min_points, top_points, released=True)(prediction, [target])
        for ours, theirs in (("center", "loss_center"), ("box", "loss_bbox"), ("class", "loss_cls")):
            assert losses[ours].item() == pytest.approx(float(z[f"{name}_{theirs}"]), rel=1e-5)


# ---------------------------------------------------------------------------------------------------------- occupancy


def test_affinity_by_hand() -> None:
    """Two voxels, two classes, the free one certain: P = Q = 1 for it; the other known to 3/4."""
    logits = torch.log(torch.tensor([[[0.9, 0.25], [0.1, 0.75]]], dtype=torch.float64))  # (1, 2 classes, 2 voxels)
    target = torch.tensor([[0, 1]])
    precision, recall, specificity = 0.75 / 0.85, 0.75, 0.9
    expected = -math.log(precision) - math.log(recall) - math.log(specificity)
    assert geometric_affinity(logits, target).item() == pytest.approx(expected)
    free = -math.log(0.9 / 1.15) - math.log(0.9) - math.log(0.75)
    assert semantic_affinity(logits, target).item() == pytest.approx((expected + free) / 2)


def test_affinity_of_a_scene_without_free_voxels_has_no_constant() -> None:
    """Release: 100 for the specificity that nothing measures. Here the term is left out."""
    logits = torch.zeros(1, 2, 3)
    target = torch.tensor([[1, 1, 255]])
    assert geometric_affinity(logits, target).item() == pytest.approx(math.log(2))
    assert geometric_affinity(logits, target, released=True).item() == pytest.approx(100 + math.log(2), rel=1e-5)


def test_all_ignored_is_zero_with_a_gradient() -> None:
    logits = torch.randn(1, 3, 2, 2, 2, requires_grad=True)
    target = torch.full((1, 2, 2, 2), 255)
    losses = OccupancyCriterion()([logits], [target])
    total = torch.stack(list(losses.values())).sum()
    assert total.item() == 0.0
    total.backward()
    assert logits.grad is not None
    assert torch.equal(logits.grad, torch.zeros_like(logits))
    assert math.isnan(occupancy_cross_entropy(logits, target, released=True).item())
    assert geometric_affinity(logits, target, released=True).item() == pytest.approx(300.0)


def test_occupancy_gradients_are_right_and_finite_when_certain() -> None:
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 4, 2, 2, 2, generator=g, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, 4, (2, 2, 2, 2), generator=g)
    target[0, 0, 0, 0] = 255
    assert torch.autograd.gradcheck(lambda x: semantic_affinity(x, target), (logits,))
    assert torch.autograd.gradcheck(lambda x: geometric_affinity(x, target), (logits,))
    wrong = torch.zeros(1, 2, 4)
    wrong[0, 0] = 200.0
    wrong.requires_grad_()
    loss = geometric_affinity(wrong, torch.ones(1, 4)) + semantic_affinity(wrong, torch.ones(1, 4))
    loss.backward()
    assert torch.isfinite(loss)
    assert wrong.grad is not None
    assert torch.isfinite(wrong.grad).all()


def test_occupancy_scales_are_weighted_and_checked() -> None:
    logits, target = torch.randn(1, 3, 4, 4, 4), torch.randint(0, 3, (1, 4, 4, 4))
    once, twice = (OccupancyCriterion()([logits] * n, [target] * n) for n in (1, 2))
    for name in ("cross_entropy", "semantic", "geometric"):
        torch.testing.assert_close(twice[name], 1.5 * once[name])
    with pytest.raises(ValueError, match="scale 0"):
        OccupancyCriterion()([logits], [target[:, :2]])


@pytest.mark.golden
def test_golden_occupancy_losses() -> None:
    z = np.load(GOLDEN / "occupancy_losses.npz")
    for case in ("c0", "c1"):
        logits, target = torch.from_numpy(z[f"{case}_logits"]), torch.from_numpy(z[f"{case}_target"]).long()
        for released in (False, True):  # the same wherever nothing is missing
            assert occupancy_cross_entropy(logits, target, released).item() == pytest.approx(
                float(z[f"{case}_ce"]), rel=1e-5
            )
            geometric = geometric_affinity(logits, target, released).item()
            assert geometric == pytest.approx(float(z[f"{case}_geo"]), rel=1e-5)
        assert semantic_affinity(logits, target).item() == pytest.approx(float(z[f"{case}_sem"]), rel=1e-5)
    binary, target = torch.from_numpy(z["bin_logits"]), torch.from_numpy(z["bin_target"])
    assert geometric_affinity(binary, target).item() == pytest.approx(float(z["bin_geo"]), rel=1e-5)
    everything = torch.full((1, 2, 2, 2), 255)
    logits = torch.zeros(1, 3, 2, 2, 2)
    assert geometric_affinity(logits, everything, released=True).item() == float(z["all_ignored_geo"])
    assert semantic_affinity(logits, everything).item() == float(z["all_ignored_sem"])


@pytest.mark.golden
def test_golden_occupancy_scale() -> None:
    z = np.load(GOLDEN / "occupancy_head.npz")
    logits = torch.from_numpy(z["logits2_slice"])[None]
    for name in ("nomask", "mask"):
        target = torch.from_numpy(z[f"sup2_{name}"]).long()
        released = sum(OccupancyCriterion(released=True)([logits], [target]).values())
        assert 0.25 * float(released) == pytest.approx(float(z[f"loss2_{name}"]), rel=1e-5)
        ours = sum(OccupancyCriterion()([logits], [target]).values())
        missing = 0 if bool((target == 0).any()) else 100
        assert float(ours) == pytest.approx(float(released) - missing, rel=1e-4)


# ---------------------------------------------------------------------------------------------------------- grounding


def test_contrastive_by_hand() -> None:
    """Two queries, two tokens, orthogonal and matched: each softmax puts e^(1/t) against 1."""
    embeddings = torch.eye(2)
    positive, mask = torch.eye(2, dtype=torch.bool), torch.ones(2, dtype=torch.bool)
    expected = math.log(1 + math.exp(-2.0))
    loss = contrastive_alignment(embeddings, embeddings, positive, mask, temperature=0.5)
    assert loss.item() == pytest.approx(4 * expected, rel=1e-5)  # of two queries and two tokens
    swapped = contrastive_alignment(embeddings, embeddings, positive.flip(1), mask, temperature=0.5)
    assert swapped.item() == pytest.approx(4 * (expected + 2.0), rel=1e-5)
    padded = torch.cat([embeddings, torch.full((3, 2), 9.0)])
    wide = torch.cat([positive, torch.ones(2, 3, dtype=torch.bool)], dim=1)
    mask = torch.tensor([True, True, False, False, False])
    assert contrastive_alignment(embeddings, padded, wide, mask, 0.5).item() == pytest.approx(4 * expected, rel=1e-5)
    assert contrastive_alignment(embeddings, embeddings, ~positive & False, mask[:2]).item() == 0.0
    padding_only = torch.tensor([[False, False, True, False, False]]).expand(2, 5)
    assert contrastive_alignment(embeddings, padded, padding_only, mask).item() == 0.0


def test_contrastive_gradients() -> None:
    g = torch.Generator().manual_seed(0)
    q = torch.randn(4, 3, generator=g, dtype=torch.float64, requires_grad=True)
    t = torch.randn(5, 3, generator=g, dtype=torch.float64, requires_grad=True)
    positive, mask = torch.rand(4, 5, generator=g) > 0.6, torch.tensor([True, True, True, True, False])
    assert torch.autograd.gradcheck(lambda a, b: contrastive_alignment(a, b, positive, mask), (q, t))


def grounding_case() -> tuple[GroundingLayer, list[GroundingTarget], torch.Tensor]:
    g = torch.Generator().manual_seed(5)
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[0, 4:] = False
    logits = torch.randn(2, 8, 6, generator=g).masked_fill(~mask[:, None], -math.inf).requires_grad_()
    boxes = torch.stack([random_boxes(8, seed=s, tilt=0.5).float() for s in (1, 2)]).requires_grad_()
    layer = GroundingLayer(logits, boxes, torch.randn(2, 8, 4, generator=g), torch.randn(2, 6, 4, generator=g))
    positive = torch.zeros(2, 6, dtype=torch.bool)
    positive[0, 1] = positive[1, 3] = True
    targets = [GroundingTarget(random_boxes(2, seed=9).float(), positive), GroundingTarget(boxes[1, :0], positive[:0])]
    return layer, targets, mask


def test_sentences_align_together_as_one_by_one() -> None:
    g = torch.Generator().manual_seed(3)
    q, t = torch.randn(3, 4, 8, generator=g), torch.randn(3, 5, 8, generator=g)
    positive, mask = torch.rand(3, 4, 5, generator=g) > 0.6, torch.rand(3, 5, generator=g) > 0.3
    together = contrastive_alignment(q, t, positive, mask)
    alone = [contrastive_alignment(q[i], t[i][mask[i]], positive[i][:, mask[i]], mask[i][mask[i]]) for i in range(3)]
    torch.testing.assert_close(together, torch.stack(alone))


def test_grounding_padding_and_sentences_without_objects() -> None:
    layer, targets, mask = grounding_case()
    losses = GroundingCriterion(contrastive_weight=1.0, iou_weight=1.0)([layer, layer], targets, mask)
    assert list(losses)[:4] == ["layer0/class", "layer0/box", "layer0/iou", "layer0/contrastive"]
    torch.testing.assert_close(losses["layer0/box"], losses["layer1/box"])
    total = torch.stack(list(losses.values())).sum()
    assert torch.isfinite(total)
    total.backward()
    for tensor in (layer.token_logits, layer.boxes):
        assert tensor.grad is not None
        assert torch.isfinite(tensor.grad).all()
    nothing = [GroundingTarget(t.boxes[:0], t.positive[:0]) for t in targets]
    silent = GroundingCriterion()([layer], nothing, mask)
    assert silent["layer0/box"].item() == 0.0
    assert silent["layer0/class"].item() > 0.0


def test_grounding_needs_embeddings_for_alignment() -> None:
    layer, targets, mask = grounding_case()
    bare = GroundingLayer(layer.token_logits, layer.boxes)
    with pytest.raises(ValueError, match="embeddings"):
        GroundingCriterion(contrastive_weight=1.0)([bare], targets, mask)


@pytest.mark.golden
def test_golden_grounding_losses() -> None:
    z, decoder = np.load(GOLDEN / "grounding_losses.npz"), np.load(GOLDEN / "grounding_decoder.npz")
    layers = [
        GroundingLayer(torch.from_numpy(decoder["logits"][i]), torch.from_numpy(decoder["boxes"][i])) for i in range(6)
    ]
    targets = [GroundingTarget(torch.from_numpy(z[f"gt{b}"]), torch.from_numpy(z[f"posmap{b}"]) > 0) for b in range(2)]
    mask = ~torch.from_numpy(decoder["text_pad"])
    losses = GroundingCriterion(QueryMatcher(released=True))(layers, targets, mask)
    recorded = dict(zip(z["loss_names"].tolist(), z["loss_values"].tolist(), strict=True))
    for i in range(6):
        prefix = "" if i == 5 else f"d{i}."
        for ours, theirs in (("class", "loss_cls"), ("box", "loss_bbox")):
            assert losses[f"layer{i}/{ours}"].item() == pytest.approx(recorded[prefix + theirs], rel=1e-5)
