"""Exact IoU of rotated boxes and NMS: oracle, Monte Carlo, properties, twins, gradients."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation
from support.golden import GOLDEN
from support.random_boxes import random_boxes
from support.volume_frames import needs_warp

from embodied_perceptron.geometry import boxes as bx
from embodied_perceptron.geometry import overlap
from embodied_perceptron.geometry.compute_path import device_path
from embodied_perceptron.geometry.suppression import grouped_nms, nms, voted_nms
from embodied_perceptron.geometry.transforms import make_transform

PROFILE = settings(max_examples=80, deadline=None)
coordinate = st.floats(-1.0, 1.0)
size = st.floats(0.01, 2.0)
# right angles produce coplanar faces and shared edges: as likely as anything else
angle = st.one_of(st.floats(-math.pi, math.pi), st.sampled_from([0.0, math.pi / 2, -math.pi / 2, math.pi]))
box = st.tuples(coordinate, coordinate, coordinate, size, size, size, angle, angle, angle)


H = math.pi / 2
# a plate and a panel, equal but for a yaw that a turn makes a tilt, whose cosine is 1.0
PLATE = (0.0, 0.0, 0.0, 0.5, 1.0, 0.25)
PANEL = (0.0, 0.0, 0.0, 1.0, 2.0, 0.01)


def as_box(values: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


def boxes_of_corners(corners: object) -> torch.Tensor:
    c = torch.as_tensor(corners, dtype=torch.float64)
    edges = c[:, [4, 2, 1]] - c[:, :1]
    sizes = edges.norm(dim=-1)
    return bx.make_boxes(c.mean(1), sizes, (edges / sizes[..., None]).transpose(1, 2))


def naive_nms(boxes: torch.Tensor, scores: torch.Tensor, labels: torch.Tensor, threshold: float) -> list[int]:
    kept: list[int] = []
    for i in sorted(range(len(boxes)), key=lambda k: (-float(scores[k]), k)):
        rivals = [k for k in kept if labels[k] == labels[i]]
        if not rivals or bool((bx.box_iou(boxes[rivals], boxes[i : i + 1]) <= threshold).all()):
            kept.append(i)
    return kept


# ---------------------------------------------------------------------------------------------------------------- IoU


def test_iou_by_hand() -> None:
    a = torch.tensor([[0.0, 0, 0, 1, 1, 1, 0, 0, 0]], dtype=torch.float64)
    b = torch.tensor(
        [
            [0.0, 0, 0, 1, 1, 1, 0, 0, 0],  # itself
            [0.5, 0, 0, 1, 1, 1, 0, 0, 0],  # half of it
            [0, 0, 0, 0.5, 0.5, 0.5, 0.3, 0.2, 0.1],  # inside
            [0, 0, 0, 1, 1, 1, math.pi / 4, 0, 0],  # octagonal prism
            [1, 0, 0, 1, 1, 1, 0, 0, 0],  # a common face
            [0, 0, 0.25, 1, 1, 0.5, math.pi / 2, 0, 0],  # coplanar faces inside
            [2, 2, 2, 1, 1, 1, 0, 0, 0],  # apart
            [0.9, 0.9, 0, 1, 1, 1, math.pi / 4, 0, 0],  # spheres and world bounds meet, boxes do not
        ],
        dtype=torch.float64,
    )
    octagon = 2 * (math.sqrt(2) - 1)
    expected = [1.0, 1 / 3, 0.125, octagon / (2 - octagon), 0.0, 0.5, 0.0, 0.0]
    torch.testing.assert_close(bx.box_iou(a, b)[0], torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0)


def test_iou_of_cube_and_its_turn_about_the_diagonal() -> None:
    """A unit cube turned by 60 degrees about its diagonal meets itself in a double hexagonal pyramid of volume 3/4."""
    R = Rotation.from_rotvec(np.array([1.0, 1.0, 1.0]) / math.sqrt(3) * math.pi / 3).as_matrix()
    a = torch.tensor([[0.0, 0, 0, 1, 1, 1, 0, 0, 0]], dtype=torch.float64)
    b = bx.make_boxes(a[:, :3], a[:, 3:6], torch.from_numpy(R)[None])
    inter = 0.75
    assert bx.box_iou(a, b).item() == pytest.approx(inter / (2 - inter), abs=1e-12)


def test_iou_against_the_oracle(data_dir: Path) -> None:
    oracle = json.loads((data_dir / "box_iou_oracle.json").read_text())
    iou = bx.box_iou(boxes_of_corners(oracle["boxes1"]), boxes_of_corners(oracle["boxes2"]))
    torch.testing.assert_close(iou, torch.tensor(oracle["ious"], dtype=torch.float64), atol=1e-5, rtol=0)


def test_iou_against_monte_carlo() -> None:
    """3,000 random pairs, 4,000 samples in each box: within five standard deviations of the estimate."""
    pairs, samples = 3000, 4000
    a, b = random_boxes(pairs, seed=20, room_m=1.2), random_boxes(pairs, seed=21, room_m=1.2)
    g = torch.Generator().manual_seed(22)
    unit = torch.rand(samples, 3, generator=g, dtype=torch.float64) - 0.5
    iou = bx.paired_iou(a, b)
    volume_a, volume_b = bx.volumes(a), bx.volumes(b)
    inter = iou * (volume_a + volume_b) / (1 + iou)
    R_a, R_b = bx.rotations(a), bx.rotations(b)
    hits = torch.empty(pairs, dtype=torch.float64)
    for start in range(0, pairs, 100):
        s = slice(start, start + 100)
        world = torch.einsum("nij,npj->npi", R_a[s], unit[None] * a[s, None, 3:6]) + a[s, None, :3]
        local = torch.einsum("nij,npi->npj", R_b[s], world - b[s, None, :3])
        hits[s] = (local.abs() <= 0.5 * b[s, None, 3:6]).all(-1).double().mean(1)
    share = inter / volume_a
    sigma = torch.sqrt((share * (1 - share)).clamp_min(1e-4) / samples)
    assert ((hits - share).abs() < 5 * sigma).all()
    assert (iou > 0.01).sum() > 1000  # the comparison is not about zeros


@PROFILE
@given(box, box)
def test_iou_is_symmetric_bounded_and_equal_to_its_twin(p: tuple[float, ...], q: tuple[float, ...]) -> None:
    a, b = as_box(p), as_box(q)
    iou = bx.box_iou(a, b).item()
    assert 0.0 <= iou <= 1.0
    assert bx.box_iou(b, a).item() == pytest.approx(iou, abs=1e-9)
    assert bx.paired_iou(a, b).item() == pytest.approx(iou, abs=1e-12)
    assert bx.paired_iou(a.clone().requires_grad_(), b).item() == pytest.approx(iou, abs=1e-9)
    assert bx.box_iou(a, a).item() == pytest.approx(1.0, abs=1e-9)


@PROFILE
@given(box, box, st.tuples(coordinate, coordinate, coordinate), st.tuples(angle, angle, angle), st.floats(0.1, 10.0))
@example((*PLATE, 0.0, 0.0, H), (*PLATE, 5.3e-10, 0.0, H), (0.0, 0.0, 0.0), (-H, -H, -H), 1.0)
@example((*PANEL, 0.0, 0.0, H), (*PANEL, 1e-8, 0.0, H), (0.0, 0.0, 0.0), (-H, -H, -H), 1.0)
def test_iou_does_not_see_motion_scale_or_mirror(
    p: tuple[float, ...], q: tuple[float, ...], shift: tuple[float, ...], turn: tuple[float, ...], factor: float
) -> None:
    # A box that moves has its rotation rounded to about 2e-15 and its centre to 2e-15 m. A rotation by t changes an IoU
    # by up to t * longest / shortest size = 200 t, a shift by d by up to 2 d / shortest size = 200 d: together 1e-12.
    a, b = as_box(p), as_box(q)
    iou = bx.box_iou(a, b).item()
    T = make_transform(Rotation.from_euler("xyz", turn).as_matrix(), 10 * np.array(shift))
    assert bx.box_iou(bx.transform_boxes(T, a), bx.transform_boxes(T, b)).item() == pytest.approx(iou, abs=1e-9)
    larger = [torch.cat([boxes[:, :6] * factor, boxes[:, 6:]], dim=1) for boxes in (a, b)]
    assert bx.box_iou(*larger).item() == pytest.approx(iou, abs=1e-9)
    mirror = torch.tensor([1, -1, 1, 1, 1, 1, -1, -1, 1], dtype=torch.float64)  # of y
    assert bx.box_iou(a * mirror, b * mirror).item() == pytest.approx(iou, abs=1e-9)


@PROFILE
@given(box, st.sampled_from([1e-15, 1e-12, 1e-9, 1e-7]), st.integers(0, 8))
def test_iou_is_continuous_at_coplanar_faces(p: tuple[float, ...], nudge: float, entry: int) -> None:
    """Boxes that share all planes but for rounding: the case that makes other implementations raise or jump."""
    a = as_box(p)
    b = a.clone()
    b[0, entry] += nudge
    assert bx.box_iou(a, b).item() == pytest.approx(1.0, abs=1e3 * nudge + 1e-9)


def test_iou_of_a_stack_of_equal_cubes_sharing_faces_edges_and_corners() -> None:
    steps = torch.tensor([[x, y, z] for x in (-1.0, 0, 1) for y in (-1.0, 0, 1) for z in (-1.0, 0, 1)])
    cubes = torch.cat([steps, torch.ones(27, 3), torch.zeros(27, 3)], dim=1).double()
    T = make_transform(Rotation.from_euler("xyz", [0.3, 0.5, 0.7]).as_matrix(), np.array([3.0, 1.0, 2.0]))
    for boxes in (cubes, bx.transform_boxes(T, cubes)):
        torch.testing.assert_close(bx.box_iou(boxes, boxes), torch.eye(27, dtype=torch.float64), atol=1e-9, rtol=0)


def test_iou_of_boxes_without_volume_is_zero() -> None:
    flat = random_boxes(6, seed=30)
    flat[0, 3] = flat[1, 4] = flat[2, 5] = 0
    flat[3, 3:5] = 0
    flat[4, 3:6] = 0
    solid = torch.tensor([[0.0, 0, 0, 4, 4, 4, 0.1, 0.2, 0.3]], dtype=torch.float64)
    assert torch.equal(bx.box_iou(flat[:5], solid), torch.zeros(5, 1, dtype=torch.float64))
    assert torch.equal(bx.box_iou(solid, flat[:5]), torch.zeros(1, 5, dtype=torch.float64))
    assert torch.equal(bx.box_iou(flat[:5], flat[:5]), torch.zeros(5, 5, dtype=torch.float64))
    gradient = flat[:5].clone().requires_grad_()
    bx.paired_iou(gradient, solid.expand(5, 9)).sum().backward()
    assert gradient.grad is not None
    assert torch.isfinite(gradient.grad).all()


def test_iou_of_thin_boxes_keeps_its_digits() -> None:
    a = torch.tensor([[0.0, 0, 0, 1, 1, 1e-6, 0.3, 0.2, 0.1]], dtype=torch.float64)
    b = a.clone()
    b[:, 3] = 0.5
    assert bx.box_iou(a, b).item() == pytest.approx(0.5, rel=1e-6)


def test_iou_far_from_the_origin() -> None:
    a, b = random_boxes(50, seed=31, room_m=1.0), random_boxes(50, seed=32, room_m=1.0)
    shift = torch.tensor([1e4, -2e4, 5e3, 0, 0, 0, 0, 0, 0], dtype=torch.float64)
    torch.testing.assert_close(bx.box_iou(a + shift, b + shift), bx.box_iou(a, b), atol=1e-9, rtol=0)


def test_matrix_equals_pairs_and_keeps_dtype_and_emptiness() -> None:
    a, b = random_boxes(30, seed=33), random_boxes(40, seed=34)
    matrix = bx.box_iou(a, b)
    pairs = bx.paired_iou(a.repeat_interleave(40, 0), b.repeat(30, 1)).reshape(30, 40)
    assert torch.equal(matrix, pairs)
    assert bx.box_iou(a.float(), b.float()).dtype == torch.float32
    assert bx.box_iou(a[:0], b).shape == (0, 40)
    assert bx.box_iou(a, b[:0]).shape == (30, 0)
    assert bx.paired_iou(a[:0], b[:0]).shape == (0,)
    empty = a[:0].clone().requires_grad_()
    assert bx.paired_iou(empty, b[:0]).shape == (0,)


def test_twin_equals_kernel_on_many_pairs() -> None:
    a, b = random_boxes(400, seed=35, room_m=1.0), random_boxes(400, seed=36, room_m=1.0)
    twin = bx.paired_iou(a.clone().requires_grad_(), b).detach()
    torch.testing.assert_close(twin, bx.paired_iou(a, b), atol=1e-12, rtol=0)


def test_twin_equals_kernel_on_boxes_that_stand() -> None:
    """Turned about z alone; many by right angles, with faces in common, one in the other, or the same."""
    a, b = random_boxes(600, seed=40, room_m=1.0), random_boxes(600, seed=41, room_m=1.0)
    a[:, 7:], b[:, 7:] = 0.0, 0.0
    b[:300, 6] = a[:300, 6] + math.pi / 2 * (torch.arange(300) % 4)
    b[:100, :3], b[100:150] = a[:100, :3], a[100:150]
    b[150:200], b[150:200, 2] = a[150:200], a[150:200, 2] + a[150:200, 5]
    b[200:250], b[200:250, 3:6] = a[200:250], 0.5 * a[200:250, 3:6]
    leaning = b.clone()
    leaning[:, 7] = 1e-7  # goes the way of all boxes
    iou = bx.paired_iou(a, b)
    assert (iou > 0.05).sum() > 150
    torch.testing.assert_close(bx.paired_iou(a.clone().requires_grad_(), b).detach(), iou, atol=1e-12, rtol=0)
    torch.testing.assert_close(bx.paired_iou(a, leaning), iou, atol=1e-5, rtol=0)
    torch.testing.assert_close(bx.paired_iou(b, a), iou, atol=1e-12, rtol=0)


def test_paired_iou_gradients() -> None:
    a, b = random_boxes(12, seed=37, room_m=0.5), random_boxes(12, seed=38, room_m=0.5)
    a.requires_grad_()
    b.requires_grad_()
    assert torch.autograd.gradcheck(bx.paired_iou, (a, b), eps=1e-7, atol=1e-5)


def test_descent_on_iou_recovers_a_box() -> None:
    target = torch.tensor([[0.2, -0.1, 0.4, 1.0, 0.6, 0.8, 0.4, 0.2, -0.1]], dtype=torch.float64)
    guess = (target + torch.tensor([[0.15, 0.1, -0.1, 0.2, -0.1, 0.1, -0.2, 0.1, 0.1]])).double().requires_grad_()
    optimiser = torch.optim.Adam([guess], lr=0.01)
    for step in range(300):
        if step == 200:
            optimiser.param_groups[0]["lr"] = 0.001
        optimiser.zero_grad()
        loss = 1 - bx.paired_iou(guess, target).sum()
        loss.backward()
        optimiser.step()
    assert bx.paired_iou(guess.detach(), target).item() > 0.97


def test_bad_boxes_are_named() -> None:
    good = random_boxes(3)
    bad = good.clone()
    bad[1, 0] = float("inf")
    with pytest.raises(ValueError, match=r"b\[1\]"):
        bx.box_iou(good, bad)
    with pytest.raises(ValueError, match="as many"):
        bx.paired_iou(good, good[:2])


@pytest.mark.golden
def test_golden_overlap() -> None:
    z = np.load(GOLDEN / "box_overlap.npz")
    iou = bx.box_iou(torch.from_numpy(z["boxes1"]).double(), torch.from_numpy(z["boxes2"]).double()).numpy()
    np.testing.assert_allclose(iou, z["iou_exact"], atol=1e-6)
    np.testing.assert_allclose(iou, z["iou_p3d"], atol=5e-3)  # the release's kernel errs by up to 3.7e-3


# ---------------------------------------------------------------------------------------------------------------- NMS


@pytest.mark.parametrize("threshold", [0.0, 0.25, 0.5, 1.0])
def test_nms_equals_the_plain_algorithm(threshold: float) -> None:
    centers = random_boxes(12, seed=40)
    g = torch.Generator().manual_seed(41)
    boxes = centers[torch.randint(0, 12, (200,), generator=g)]
    boxes = boxes + 0.08 * torch.randn(200, 9, generator=g, dtype=torch.float64)
    boxes[:, 3:6] = boxes[:, 3:6].clamp_min(0.02)
    scores = (torch.rand(200, generator=g) * 50).round() / 50  # with ties
    labels = torch.randint(0, 3, (200,), generator=g)
    assert nms(boxes, scores, labels, threshold).tolist() == naive_nms(boxes, scores, labels, threshold)


@pytest.mark.parametrize("limit", [1, 12, 1000])
@pytest.mark.parametrize("threshold", [0.0, 0.1, 0.5])
def test_groups_are_those_of_all_pairs(threshold: float, limit: int) -> None:
    rng = np.random.default_rng(7)
    boxes = random_boxes(120, seed=7)
    boxes[80:] = boxes[:40] + torch.from_numpy(rng.normal(0, 0.02, (40, 9)))
    boxes[80:, 3:6] = boxes[80:, 3:6].clamp(min=0.02)
    scores = torch.from_numpy(rng.integers(0, 30, 120) / 30.0)  # some alike
    kept, group, row = grouped_nms(boxes, scores, threshold, limit)
    assert kept.tolist() == naive_nms(boxes, scores, torch.zeros(120), threshold)[:limit]
    same = bx.box_iou(boxes[kept], boxes) > threshold
    same |= kept[:, None] == torch.arange(120)
    pairs = list(zip(group.tolist(), row.tolist(), strict=True))
    assert sorted(pairs) == [tuple(pair) for pair in same.nonzero().tolist()]
    assert len(pairs) > len(kept) or limit == 1


def test_no_boxes_are_no_groups() -> None:
    assert [len(part) for part in grouped_nms(torch.zeros(0, 9), torch.zeros(0), 0.5, 10)] == [0, 0, 0]


def test_nms_by_hand() -> None:
    boxes = torch.tensor([[0.0, 0, 0, 1, 1, 1, 0, 0, 0], [0.1, 0, 0, 1, 1, 1, 0, 0, 0], [0.1, 0, 0, 1, 1, 1, 0, 0, 0]])
    scores, labels = torch.tensor([0.5, 0.9, 0.8]), torch.tensor([0, 0, 1])
    assert nms(boxes, scores, labels, 0.5).tolist() == [1, 2]
    assert nms(boxes[:0], scores[:0], labels[:0], 0.5).shape == (0,)


def test_nms_sees_tilt() -> None:
    """Two long boxes crossed by tilt alone overlap little; seen from above without tilt they would be one box."""
    boxes = torch.tensor([[0.0, 0, 0, 2, 0.2, 0.2, 0, 0, 0.6], [0.0, 0, 0, 2, 0.2, 0.2, 0, 0, -0.6]])
    scores, labels = torch.tensor([0.9, 0.8]), torch.zeros(2, dtype=torch.int64)
    assert nms(boxes, scores, labels, 0.5).tolist() == [0, 1]
    assert nms(bx.flatten_boxes(boxes), scores, labels, 0.5).tolist() == [0]


def test_nms_names_bad_input() -> None:
    boxes, scores, labels = random_boxes(3), torch.rand(3), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ValueError, match="3 scores"):
        nms(boxes, scores[:2], labels, 0.5)
    with pytest.raises(ValueError, match="integers"):
        nms(boxes, scores, labels.float(), 0.5)
    with pytest.raises(ValueError, match="iou_threshold"):
        nms(boxes, scores, labels, 1.5)
    with pytest.raises(ValueError, match=r"scores\[1\]"):
        nms(boxes, torch.tensor([0.1, float("nan"), 0.2]), labels, 0.5)


@pytest.mark.golden
def test_golden_bird_eye_nms() -> None:
    z = np.load(GOLDEN / "footprint_nms.npz")
    boxes = torch.cat([torch.from_numpy(z["boxes"]), torch.zeros(200, 2)], dim=1).double()
    flat = bx.flatten_boxes(boxes)
    np.testing.assert_allclose(bx.box_iou(flat, flat).numpy(), z["iou_exact"], atol=1e-6)
    keep = nms(flat, torch.from_numpy(z["scores"]), torch.zeros(200, dtype=torch.int64), float(z["iou_thr"]))
    assert sorted(keep.tolist()) == sorted(z["keep"].tolist())


# -- voting


def test_boxes_around_a_kept_one_move_it_by_their_weight() -> None:
    a = torch.tensor([0.0, 0.0, 0.0, 2.0, 1.0, 1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    longer = torch.tensor([0.1, 0.0, 0.0, 2.2, 1.0, 1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    boxes, labels = torch.stack([a, longer]), torch.tensor([3, 3])
    w = 0.5 * 2.0 / 2.2  # weight times IoU
    keep, (found,) = voted_nms(boxes, torch.tensor([1.0, 0.5]), labels, 0.5, 0.5)
    assert keep.tolist() == [0]
    expected = (a + w * longer) / (1 + w)
    torch.testing.assert_close(found, expected)
    # the same box under other names of its axes says the same
    renamed = longer.clone()
    renamed[3], renamed[4], renamed[6] = longer[4], longer[3], math.pi / 2
    _, (again,) = voted_nms(torch.stack([a, renamed]), torch.tensor([1.0, 0.5]), labels, 0.5, 0.5)
    torch.testing.assert_close(again, expected)
    # another class, or one that overlaps less, has no say; nor has weight 0, not even about itself
    for other, label, weight in (
        (longer, 4, 0.5),
        (longer + torch.tensor([1.5] + [0.0] * 8), 3, 0.5),
        (longer, 3, 0.0),
    ):
        pair = torch.stack([a, other])
        _, kept = voted_nms(pair, torch.tensor([1.0, weight]), torch.tensor([3, label]), 0.5, 0.5)
        torch.testing.assert_close(kept[0], a)
    _, (kept,) = voted_nms(boxes.flip(0), torch.zeros(2), labels, 0.5, 0.5)
    torch.testing.assert_close(kept, longer)


@pytest.mark.parametrize(("threshold", "voting"), [(0.25, 0.3), (0.4, 0.4), (0.6, 0.3)])
def test_voting_equals_its_slow_twin(threshold: float, voting: float) -> None:
    g = torch.Generator().manual_seed(3)
    seeds = torch.cat([4 * torch.rand(6, 3, generator=g), 0.4 + torch.rand(6, 3, generator=g)], 1)
    seeds = torch.cat([seeds, torch.rand(6, 3, generator=g) - 0.5], 1).double()
    boxes = seeds.repeat(12, 1) + 0.04 * torch.randn(72, 9, generator=g).double()
    labels, weights = torch.randint(0, 2, (72,), generator=g), torch.rand(72, generator=g)
    keep, found = voted_nms(boxes, weights, labels, threshold, voting)
    assert keep.tolist() == nms(boxes, weights, labels, threshold).tolist()
    assert len(keep) > 8
    iou, R = bx.box_iou(boxes, boxes), bx.rotations(boxes)
    heard = 0
    for row, k in zip(found, keep.tolist(), strict=True):
        total, center, size = 0.0, torch.zeros(3).double(), torch.zeros(3).double()
        for j in range(72):
            if labels[j] != labels[k] or not iou[k, j] > voting:
                continue
            w = float(iou[k, j] * weights[j])
            named = [boxes[j, 3 + int((R[k][:, i] @ R[j]).abs().argmax())] for i in range(3)]
            total, center, size = total + w, center + w * boxes[j, :3], size + w * torch.stack(named)
            heard += j != k
        torch.testing.assert_close(row, torch.cat([center / total, size / total, boxes[k, 6:]]))
    assert heard > 8


def test_voting_checks_what_it_is_given_and_takes_nothing() -> None:
    keep, none = voted_nms(torch.zeros(0, 9), torch.zeros(0), torch.zeros(0).long(), 0.5, 0.5)
    assert keep.shape == (0,)
    assert none.shape == (0, 9)
    box = torch.tensor([[0.0, 0, 0, 1, 1, 1, 0, 0, 0]])
    with pytest.raises(ValueError, match="need 1 scores"):
        voted_nms(box, torch.ones(2), torch.zeros(1).long(), 0.5, 0.5)
    with pytest.raises(ValueError, match="iou_threshold"):
        voted_nms(box, torch.ones(1), torch.zeros(1).long(), 1.5, 0.5)
    with pytest.raises(ValueError, match="voting_iou"):
        voted_nms(box, torch.ones(1), torch.zeros(1).long(), 0.5, 1.5)


# ---------------------------------------------------------------------------------------------------- path of devices

# thin, flat, without volume, one in the other, face to face, edge to edge
AWKWARD = torch.tensor(
    [
        [0.0, 0, 0, 1, 1, 1, 0, 0, 0],
        [1.0, 0, 0, 1, 1, 1, 0, 0, 0],
        [0.0, 0, 0, 1, 1, 0, 0, 0, 0],
        [0.0, 0, 0, 0, 0, 0, 0.3, 0.2, 0.1],
        [0.0, 0, 0.5, 1, 1, 1e-9, 0, 0, 0],
        [0.1, 0, 0, 0.2, 0.2, 0.2, 0.3, 0.2, 0.1],
        [0.0, 0, 0, 1, 1, 1, math.pi / 2, 0, 0],
        [0.0, 0, 0, 1, 1, 1, math.pi / 4, math.pi / 2, 0],
        [0.5, 0.5, 0.5, 1, 1, 1, 0, 0, 0],
        [0.0, 0, 0, 50, 40, 30, 1.0, 0.5, 0.2],
        [0.0, 0, 0, 1, 1, 1, 1e-9, -1e-9, 1e-9],
    ],
    dtype=torch.float64,
)


def by_operations(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    with device_path():
        return bx.box_iou(a, b)


@needs_warp
@PROFILE
@given(st.lists(box, min_size=1, max_size=6), st.lists(box, min_size=1, max_size=6))
def test_overlap_on_a_device_is_that_of_the_loops(
    first: list[tuple[float, ...]], second: list[tuple[float, ...]]
) -> None:
    a, b = torch.tensor(first, dtype=torch.float64), torch.tensor(second, dtype=torch.float64)
    torch.testing.assert_close(by_operations(a, b), bx.box_iou(a, b), atol=1e-9, rtol=1e-9)


@needs_warp
def test_overlap_on_a_device_of_awkward_boxes() -> None:
    every = torch.cat([AWKWARD, random_boxes(60, seed=7), random_boxes(40, seed=8, room_m=0.3, tilt=0.0)])
    torch.testing.assert_close(by_operations(every, every), bx.box_iou(every, every), atol=1e-9, rtol=1e-9)
    single = every.float()
    torch.testing.assert_close(by_operations(single, single), bx.box_iou(single, single), atol=1e-6, rtol=1e-6)
    for a, b in ((every[:0], every), (every, every[:0]), (every[:0], every[:0])):
        assert by_operations(a, b).shape == (len(a), len(b))
    with device_path():
        pairs = bx.paired_iou(every[:-1], every[1:])
    torch.testing.assert_close(pairs, bx.paired_iou(every[:-1], every[1:]), atol=1e-9, rtol=1e-9)


@needs_warp
def test_many_overlaps_on_a_device_come_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    boxes = random_boxes(30, seed=3)
    at_once = by_operations(boxes, boxes)
    monkeypatch.setattr(bx, "_PAIRS_AT_A_TIME", 64)
    torch.testing.assert_close(by_operations(boxes, boxes), at_once)


@needs_warp
@pytest.mark.parametrize("device", [False, True])
def test_gradients_of_the_intersection_are_those_of_differences(device: bool) -> None:
    a, b = random_boxes(8, seed=5, room_m=0.4), random_boxes(8, seed=6, room_m=0.4)
    with device_path() if device else contextlib.nullcontext():
        for boxes in ((a.requires_grad_(), b), (a.detach(), b.requires_grad_()), (a.requires_grad_(), b)):
            assert torch.autograd.gradcheck(bx.paired_iou, boxes, eps=1e-7, atol=1e-5)


@needs_warp
def test_gradients_on_a_device_are_those_of_the_loops() -> None:
    every = torch.cat([random_boxes(20, seed=9, room_m=0.5), random_boxes(10, seed=8, room_m=0.3, tilt=0.0)])
    others = ~torch.eye(len(every), dtype=torch.bool).flatten()  # rounding decides between the sides of a box on itself
    a, b = (pairs[others] for pairs in (every.repeat_interleave(len(every), 0), every.repeat(len(every), 1)))
    found = []
    for path in (contextlib.nullcontext, device_path):
        mine = [x.clone().requires_grad_() for x in (a, b)]
        with path():
            (bx.paired_iou(*mine) * torch.arange(1.0, 1 + len(a))).sum().backward()
        found.append([x.grad for x in mine])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


@needs_warp
def test_a_lost_box_gives_no_number() -> None:
    lost = random_boxes(4)
    lost[[0, 1, 2], [0, 1, 2]] = math.nan
    half, R = 0.5 * lost[:, 3:6], bx.rotations(lost)
    for path in (contextlib.nullcontext, device_path):
        with path():
            volume = overlap.intersection_volumes(lost[:, :3], half, R, lost[:, :3] + 0.1, half, R)
        assert volume.isnan().tolist() == [True, True, True, False]
