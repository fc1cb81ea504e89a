"""Heads and neck by hand: box coders, pruning, suppression, query selection. The right behaviour is the default; what
the released code does instead stands behind ``RELEASED`` conventions and is shown beside it."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from support.random_boxes import first_columns, random_boxes
from torch import Tensor
from torch.nn import functional

from embodied_perceptron.geometry.boxes import (
    euler_to_matrix,
    matrix_to_euler,
    paired_iou,
    rotations,
)
from embodied_perceptron.geometry.compute_path import device_path
from embodied_perceptron.nn import detection
from embodied_perceptron.nn.backbone import TopDownNeck, keep_best, spread
from embodied_perceptron.nn.detection import (
    BoxPredictions,
    DetectionHead,
    DetectionLevel,
    _candidates,
    _Joint,
    _suppressed,
    boxes_from_faces,
    decode_detections,
    decode_faces,
    decode_offsets,
)
from embodied_perceptron.nn.grounding import GroundingHead
from embodied_perceptron.nn.occupancy import (
    DensePyramid,
    OccupancyHead,
    color_sums,
    decode_cells,
    decode_filled,
)
from embodied_perceptron.nn.official import CORRECTED, PUBLISHED, RELEASED, Conventions
from embodied_perceptron.nn.presets import DetectionConfig, GroundingConfig
from embodied_perceptron.sparse.conv import SparseConv
from embodied_perceptron.sparse.engine import get_engine
from embodied_perceptron.sparse.sites import Sites
from embodied_perceptron.sparse.tensor import SparseTensor, best_rows

# --------------------------------------------------------------------------------------------------------------------
# box coders


@pytest.mark.parametrize("width", [9, 12])
def test_faces_are_along_the_axes_of_the_box(width: int) -> None:
    angles = torch.tensor([[0.3, -0.4, 0.5]])
    R = euler_to_matrix(angles)
    rotation = angles if width == 9 else first_columns(R)
    faces = torch.tensor([[0.2, 0.6, 0.3, 0.3, 0.1, 0.5]])
    point = torch.tensor([[1.0, 2.0, 3.0]])
    box = decode_faces(point, torch.cat([faces.log(), rotation], dim=1))
    torch.testing.assert_close(box[:, :3], point + (R @ torch.tensor([0.2, 0.0, 0.2])))
    torch.testing.assert_close(box[:, 3:6], torch.tensor([[0.8, 0.6, 0.6]]))
    torch.testing.assert_close(rotations(box), R, atol=1e-5, rtol=1e-5)
    moved = decode_offsets(point, torch.cat([torch.ones(1, 3), torch.zeros(1, 3), rotation], dim=1))
    torch.testing.assert_close(moved[:, :6], torch.tensor([[2.0, 3.0, 4.0, 1.0, 1.0, 1.0]]))


def test_diverging_regressions_stay_finite() -> None:
    for raw in (1e4, -1e4):
        regression = torch.full((1, 12), raw)
        for decode in (decode_faces, decode_offsets):
            box = decode(torch.zeros(1, 3), regression)
            assert bool(torch.isfinite(box).all())
            assert bool((box[:, 3:6] > 0).all())


# --------------------------------------------------------------------------------------------------------------------
# pruning


def test_keep_best_is_deterministic() -> None:
    """Ties go to the lower row; each sample has its own limit; fewer than the limit all stay."""
    scores = torch.tensor([1.0, 3.0, 3.0, 3.0, 0.0, 5.0, 5.0, 1.0])
    assert keep_best(scores, [0, 5, 8], 2).tolist() == [False, True, True, False, False, True, True, False]
    assert keep_best(torch.zeros(6), [0, 6], 3).tolist() == [True] * 3 + [False] * 3
    assert keep_best(scores, [0, 5, 8], 9).all()
    assert keep_best(torch.tensor([-torch.inf, 0.0]), [0, 2], 1).tolist() == [False, True]
    assert keep_best(torch.zeros(0), [0, 0, 0], 1).shape == (0,)


def test_spread_takes_a_share_of_everything_that_is_marked() -> None:
    mask = torch.tensor([True] * 6 + [False] * 2 + [True] * 6 + [True])
    chosen = spread(mask, [0, 14, 15], 4)
    assert chosen.sum() == 5
    assert not bool((chosen & ~mask).any())
    assert chosen[:6].sum() == chosen[8:14].sum() == 2
    assert torch.equal(spread(mask, [0, 14, 15], 20), mask)


def two_levels(fine: list[list[int]], coarse: list[list[int]]) -> list[SparseTensor]:
    levels = []
    for coords, stride, channels in ((fine, 1, 3), (coarse, 2, 4)):
        c = torch.tensor(coords).reshape(-1, 3)
        g = torch.Generator().manual_seed(stride)
        levels.append(SparseTensor.from_coords(c, torch.randn(len(c), channels, generator=g), stride=stride))
    return levels


def test_sites_without_support_are_pruned_first() -> None:
    """Released fault: corners without a coarse site count as score 0, which beats every negative logit."""
    far = [[20, 20, 20], [20, 20, 21], [20, 21, 20]]
    levels = two_levels([[0, 0, 0], *far], [[0, 0, 0]])
    children = [list(c) for c in itertools.product((0, 1), repeat=3)]

    def kept(conventions: Conventions, prune_first: bool = False) -> list[list[int]]:
        torch.manual_seed(0)
        neck = TopDownNeck((3, 4), 8, keep=8, prune_first=prune_first, conventions=conventions).eval()
        fine, _ = neck(levels, lambda _, x: torch.full((len(x), 1), -2.0))
        return [list(map(int, c)) for c in fine.sites.coords.tolist()]

    assert sorted(kept(CORRECTED)) == children
    assert sorted(kept(CORRECTED, prune_first=True)) == children
    assert all(c in kept(RELEASED) for c in far)
    assert [0, 0, 0] not in kept(RELEASED)  # the one with full support has the lowest score


def scored(levels: int = 3, seed: int = 0) -> list[SparseTensor]:
    g = torch.Generator().manual_seed(seed)
    coords = torch.unique(torch.randint(-12, 12, (500, 3), generator=g), dim=0)
    x = SparseTensor.from_coords(coords, torch.randn(len(coords), 6, generator=g))
    made = [x]
    for _ in range(levels - 1):
        coarser = made[-1].sites.coarser(2)
        made.append(SparseTensor(coarser, torch.randn(len(coarser), 6, generator=g)))
    return made


def place_score(_: int, x: SparseTensor) -> Tensor:
    """Depends on the place alone."""
    return torch.sin(x.coords.double() @ torch.tensor([0.9, 1.7, 0.4], dtype=torch.float64)).float()[:, None]


def test_choosing_first_keeps_the_same_sites() -> None:
    levels = scored()
    torch.manual_seed(0)
    late = TopDownNeck((6, 6, 6), 8, keep=100, lateral_channels=5).eval()
    torch.manual_seed(0)
    early = TopDownNeck((6, 6, 6), 8, keep=100, lateral_channels=5, prune_first=True).eval()
    for a, b in zip(late(levels, place_score), early(levels, place_score), strict=True):
        assert torch.equal(a.keys, b.keys)
    # and where nothing is pruned the numbers are the same too
    late.keep = early.keep = 100_000
    for a, b in zip(late(levels, place_score), early(levels, place_score), strict=True):
        assert torch.equal(a.keys, b.keys)
        torch.testing.assert_close(a.feats, b.feats, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("prune_first", [False, True])
def test_preferred_sites_come_on_top(prune_first: bool) -> None:
    """Training sees all that inference sees, and the marked sites beside."""
    levels = scored()
    neck = TopDownNeck((6, 6, 6), 8, keep=60, prune_first=prune_first).eval()

    def marked(sites: Sites) -> Tensor:
        return (sites.coords[:, 0] > 8) & (sites.stride == 1)

    plain, trained = neck(levels, place_score)[0], neck(levels, place_score, marked)[0]
    assert len(plain) == 60
    assert bool((trained.sites.find(plain.keys) >= 0).all())
    extra = trained.sites.coords[plain.sites.find(trained.keys) < 0]
    assert 0 < len(extra) <= 60
    assert bool((extra[:, 0] > 8).all())


def test_an_object_score_of_its_own_prunes() -> None:
    """The class scores of a coarse cell say nothing about small objects in it; the object score decides."""
    torch.manual_seed(0)
    head = DetectionHead((6, 6, 6), DetectionConfig(8, 50, pruning="object"), 3, 0.1).eval()
    assert head.object is not None
    levels = scored()
    first = head(levels)[0]
    assert [p.object_logits is None for p in first] == [True, False, False]
    head.classify.kernel.data.normal_()
    again = head(levels)[0]
    assert torch.equal(first[0].sites.keys, again[0].sites.keys)  # other class scores, the same sites
    head.object.kernel.data.normal_()
    assert not torch.equal(head(levels)[0][0].sites.keys, first[0].sites.keys)
    published = DetectionHead((6, 6, 6), DetectionConfig(8, 50), 3, 0.1).eval()
    assert all(p.object_logits is None for p in published(levels)[0])


def test_necks_name_what_does_not_fit() -> None:
    levels = scored()
    neck = TopDownNeck((6, 6, 6), 8, keep=5)
    with pytest.raises(ValueError, match="expected 3 levels, got 2"):
        neck(levels[:2], place_score)
    with pytest.raises(ValueError, match=r"twice the stride of the one before, got \[1, 2, 2\]"):
        neck([*levels[:2], levels[1]], place_score)
    with pytest.raises(ValueError, match="keep must be positive, got 0"):
        TopDownNeck((6,), 8, keep=0)
    with pytest.raises(ValueError, match="num_classes must be positive, got 0"):
        DetectionHead((6,), DetectionConfig(8, 5), 0, 0.1)
    with pytest.raises(ValueError, match="got 'yaw'"):
        DetectionHead((6,), DetectionConfig(8, 5, rotation="yaw"), 3, 0.1)  # type: ignore[arg-type]


@pytest.mark.parametrize("conventions", [CORRECTED, RELEASED])
def test_points_stand_at_the_centre_of_their_cell(conventions: Conventions) -> None:
    """Released weights expect them at the lower corner."""
    head = DetectionHead((6,), DetectionConfig(8, 5), 3, 0.1, conventions)
    x = SparseTensor.from_coords(torch.tensor([[8, -8, 0]]), torch.ones(1, 6), stride=8)
    expected = [0.8, -0.8, 0.0] if conventions is RELEASED else [1.2, -0.4, 0.4]
    torch.testing.assert_close(head([x])[0][0].points_m, torch.tensor([expected]))


def test_a_shifted_anchor_reaches_boxes_thinner_than_the_way_to_them() -> None:
    """A site 8 cm wide, a picture 2 cm thick whose plane lies 3 cm beside the site's centre."""
    x = SparseTensor.from_coords(torch.tensor([[2, 4, 6]]), torch.ones(1, 6), stride=2)
    torch.manual_seed(0)
    head = DetectionHead((6,), DetectionConfig(8, 5, anchor_shift=True), 3, 0.04).eval()
    plain = DetectionHead((6,), DetectionConfig(8, 5), 3, 0.04).eval()
    plain.load_state_dict({**head.state_dict(), "regression.kernel": head.regression.kernel[:, :12]})
    (level,), _ = head([x])
    (fixed,), _ = plain([x])
    assert torch.equal(level.points_m, fixed.points_m)  # who learns a box does not move
    assert torch.equal(fixed.anchors_m, fixed.points_m)
    assert torch.equal(level.distances_m, fixed.distances_m)
    assert torch.equal(level.rotation, fixed.rotation)
    (out,) = head.neck([x], lambda *_: torch.zeros(1, 1))
    raw = out.feats @ head.regression.kernel
    torch.testing.assert_close(level.anchors_m, level.points_m + 0.08 * raw[:, 12:])

    picture = torch.tensor([[0.12 + 0.03, 0.2, 0.28, 0.02, 0.5, 0.6, 0.0, 0.0, 0.0]])
    upright = first_columns(rotations(picture))
    half = (0.5 * picture[:, 3:6]).repeat_interleave(2, dim=1)
    torch.testing.assert_close(boxes_from_faces(picture[:, :3], half, upright), picture)


# --------------------------------------------------------------------------------------------------------------------
# suppression


def level_of(
    boxes: Tensor, classes: Tensor, center: Tensor | None = None, samples: Tensor | None = None
) -> DetectionLevel:
    """A level whose sites predict exactly these (N, 9) boxes from their centres."""
    n = len(boxes)
    samples = torch.zeros(n).long() if samples is None else samples
    x = SparseTensor.from_coords(torch.arange(n)[:, None].expand(n, 3), torch.zeros(n, 1), samples)
    center = torch.full((n, 1), 20.0) if center is None else center
    faces = boxes[:, :3], (0.5 * boxes[:, 3:6]).repeat_interleave(2, dim=1), first_columns(rotations(boxes))
    return DetectionLevel(x.sites, boxes[:, :3], torch.cat([center, *faces], 1), classes)


TILTED = torch.tensor([[0.0, 0, 0, 2, 1, 0.5, 0.3, 0.4, -0.2]])


def test_all_nine_degrees_are_kept() -> None:
    """Released fault: boxes are cut to yaw before suppression and returned so."""
    level = level_of(TILTED, torch.tensor([[2.0]]))
    (found,) = decode_detections([level])
    torch.testing.assert_close(found.boxes, TILTED, atol=1e-5, rtol=1e-5)
    (cut,) = decode_detections([level], conventions=RELEASED)
    torch.testing.assert_close(cut.boxes[0, :7], TILTED[0, :7], atol=1e-5, rtol=1e-5)
    assert cut.boxes[0, 7:].tolist() == [0.0, 0.0]


def test_a_lean_below_half_a_degree_is_none() -> None:
    """The same solids, upside down or not; released boxes stay as they are said."""
    leaning = torch.tensor([[0.0, 0, 0, 2, 1, 0.5, 0.3, 0.004, -0.003], [5.0, 0, 0, 2, 1, 0.5, 0.3, 0.02, 0.0]])
    flipped = leaning.clone()
    flipped[:, 6:] = matrix_to_euler(rotations(leaning) @ torch.diag(torch.tensor([1.0, -1.0, -1.0])))
    for boxes in (leaning, flipped):
        (found,) = decode_detections([level_of(boxes, torch.tensor([[2.0], [1.0]]))])
        assert found.boxes[0, 7:].tolist() == [0.0, 0.0]
        assert found.boxes[0, 6].item() == pytest.approx(0.3, abs=2e-3)
        assert paired_iou(found.boxes[:1].double(), leaning[:1].double()).item() > 0.97
        torch.testing.assert_close(rotations(found.boxes[1:]), rotations(boxes[1:]), atol=1e-5, rtol=1e-5)


def test_joint_outputs_of_pointwise_layers_are_theirs() -> None:
    torch.manual_seed(0)
    x = SparseTensor(Sites(torch.arange(40), 1, 1, get_engine()), torch.randn(40, 6))
    layers = {"a": SparseConv(6, 3, 1), "b": SparseConv(6, 5, 1, bias=True), "c": SparseConv(6, 1, 1, bias=True)}
    for name in "bc":
        torch.nn.init.normal_(layers[name].bias)
    found = _Joint(layers, fills=True)(x.feats)
    assert list(found) == list(layers)
    for name, layer in layers.items():
        torch.testing.assert_close(found[name], layer(x).feats)


def suppress(
    boxes: Tensor, scores: Tensor, min_score: float, iou: float, conventions: Conventions = CORRECTED, limit: int = 0
) -> BoxPredictions:
    row, label, score = _candidates(scores, min_score, limit)
    return _suppressed(boxes[row], score, label, iou, conventions)


def test_suppression_is_by_volume_not_by_footprint() -> None:
    """A lamp hangs above another of its class: the released code sees one, from above."""
    boxes = torch.tensor([[0.0, 0, 0.5, 1, 1, 0.4, 0, 0, 0], [0.0, 0, 2.5, 1, 1, 0.4, 0, 0, 0]])
    scores = torch.tensor([[0.9], [0.8]])
    assert len(suppress(boxes, scores, 0.01, 0.5).boxes) == 2
    assert len(suppress(boxes, scores, 0.01, 0.5, conventions=RELEASED).boxes) == 1


def test_detections_by_hand() -> None:
    boxes = torch.tensor(
        [
            [0.0, 0, 0, 1, 1, 1, 0, 0, 0],
            [0.1, 0, 0, 1, 1, 1, 0, 0, 0],  # nearly the first
            [5.0, 0, 0, 1, 1, 1, 0, 0, 0],
        ]
    )
    logit = torch.logit(torch.tensor([[0.8, 0.001], [0.9, 0.6], [0.5, 0.001]]))
    level = level_of(boxes, logit, torch.logit(torch.tensor([[0.729], [0.125], [0.125]])))
    (found,) = decode_detections([level])
    # class 0: 0.72, 0.45 (suppressed), 0.25; class 1: 0.3 where nothing else of its class is
    torch.testing.assert_close(found.scores, torch.tensor([0.72, 0.3, 0.25]))
    assert found.labels.tolist() == [0, 1, 0]
    iou = 0.9 / 1.1
    place = 0.1 * 0.45 * iou / (0.72 + 0.45 * iou)  # the suppressed one has its say; of the sizes it has nothing to say
    expected = boxes.clone()
    expected[0, 0] = place
    torch.testing.assert_close(found.boxes, expected, atol=1e-5, rtol=1e-5)
    for conventions in (RELEASED, PUBLISHED):
        (published,) = decode_detections([level], conventions=conventions)
        torch.testing.assert_close(published.scores, torch.tensor([0.5832, 0.075, 0.0625]))
        torch.testing.assert_close(published.boxes, boxes, atol=1e-5, rtol=1e-5)


def test_limits_of_decoding() -> None:
    g = torch.Generator().manual_seed(0)
    boxes = torch.cat([10 * torch.rand(50, 3, generator=g), torch.ones(50, 3), torch.zeros(50, 3)], 1)
    logits = torch.randn(50, 2, generator=g)
    samples = torch.arange(50) // 25
    level = level_of(boxes, logits, samples=samples)
    one, two = decode_detections([level], max_per_level=5, min_score=0.0, iou_threshold=1.0)
    for i, found in enumerate((one, two)):
        mine = logits[samples == i].sigmoid()
        best = mine.max(1).values.topk(5)
        assert len(found.boxes) == 10  # five sites, both classes
        torch.testing.assert_close(found.scores[0], best.values[0])
        assert bool((found.scores.diff() <= 0).all())
        places = {tuple(b) for b in boxes[samples == i][best.indices, :3].tolist()}
        assert {tuple(b) for b in found.boxes[:, :3].tolist()} == places
    assert all(bool((f.scores > 0.6).all()) for f in decode_detections([level], min_score=0.6))
    assert all(len(f.boxes) == 0 for f in decode_detections([level], min_score=1.0))
    assert decode_detections([]) == []


def test_flat_boxes_get_a_thickness() -> None:
    flat = torch.tensor([[0.0, 0, 0, 1, 1, 0, 0, 0, 0]])
    found = suppress(flat, torch.tensor([[0.9]]), 0.01, 0.5)
    assert found.boxes[0, 5].item() == pytest.approx(0.02)


# --------------------------------------------------------------------------------------------------------------------
# occupancy


def test_occupancy_by_hand() -> None:
    logits = torch.full((3, 1, 1, 2), -20.0)
    logits[2, 0, 0, 0], logits[:2, 0, 0, 1] = 20.0, torch.tensor([0.0, math.log(3.0)])
    label, confidence = decode_cells(logits)
    assert label.flatten().tolist() == [2, 1]
    torch.testing.assert_close(confidence.flatten(), torch.tensor([1.0, 0.75]))


def test_filled_cells_equal_those_of_the_whole_grid() -> None:
    torch.manual_seed(0)
    logits = torch.randn(7, 5, 4, 3)
    logits[0, :3] += 3.0  # most are empty
    confidence, label = torch.softmax(logits, 0).max(0)
    cells, labels, probability = decode_filled(logits)
    assert 0 < len(cells) < 60
    assert torch.equal(cells, (label != 0).nonzero())
    assert torch.equal(labels, label[label != 0])
    torch.testing.assert_close(probability, confidence[label != 0])
    label, sure = decode_cells(logits)
    filled = tuple(cells.unbind(1))
    assert torch.equal(label.nonzero(), cells)
    assert torch.equal(label[filled], labels)
    torch.testing.assert_close(sure[filled], probability)
    nothing = decode_filled(torch.zeros(7, 5, 4, 3))
    assert not decode_cells(torch.zeros(7, 5, 4, 3))[0].any()
    assert [tuple(part.shape) for part in nothing] == [(0, 3), (0,), (0,)]


@pytest.mark.parametrize("stride", [3, 4])
def test_colors_in_cells_summed_by_compiled_loops_are_those_of_tensors(stride: int) -> None:
    torch.manual_seed(0)
    coords = torch.unique(torch.randint(-9, 9, (900, 3)), dim=0)
    x = SparseTensor.from_coords(coords, torch.rand(len(coords), 3))
    origin, cells = (-2 * stride, -stride, 0), (4, 3, 2)
    found = color_sums(x.sites, x.feats, stride, origin, cells)
    with device_path():
        expected = color_sums(x.sites, x.feats, stride, origin, cells)
    assert expected[:, 3].sum() > 20
    torch.testing.assert_close(found, expected)


def test_occupancy_names_what_does_not_fit() -> None:
    pyramid = DensePyramid(4, 4, levels=3)
    with pytest.raises(ValueError, match="must be divisible by 4"):
        pyramid(torch.zeros(1, 4, 8, 8, 6))
    with pytest.raises(ValueError, match="levels must be at least 1"):
        DensePyramid(4, 4, levels=0)
    with pytest.raises(ValueError, match="expected at most 1 scales, got 2"):
        OccupancyHead(4, 2, levels=1)([torch.zeros(1, 4, 8, 8, 4), torch.zeros(1, 4, 4, 4, 2)])


@torch.no_grad()
def test_a_pyramid_and_its_classes_by_definition() -> None:
    """Every operation from the arrays of the state, by their names; strides and paddings stand here."""
    torch.manual_seed(0)
    pyramid, head, grid = DensePyramid(4, 6, levels=3).eval(), OccupancyHead(6, 2), torch.randn(1, 4, 8, 8, 4)
    state = pyramid.state_dict()
    for name, value in state.items():
        if value.is_floating_point():
            value.copy_(torch.rand_like(value) if "running_var" in name else torch.randn_like(value))

    def conv(x: Tensor, name: str, stride: int = 1) -> Tensor:
        kernel = state[f"{name}.weight"]
        return functional.conv3d(x, kernel, stride=stride, padding=kernel.shape[-1] // 2)

    def norm(x: Tensor, name: str) -> Tensor:
        mean, var, weight, bias = (state[f"{name}.{k}"] for k in ("running_mean", "running_var", "weight", "bias"))
        return functional.batch_norm(x, mean, var, weight, bias)

    levels, x = [], grid
    for i in range(3):
        stride = 1 if i == 0 else 2
        y = norm(conv(x, f"down.{i}.conv1", stride), f"down.{i}.norm1").relu()
        y = norm(conv(y, f"down.{i}.conv2"), f"down.{i}.norm2")
        x = (y + (x if i == 0 else norm(conv(x, f"down.{i}.shortcut.0", stride), f"down.{i}.shortcut.1"))).relu()
        levels.append(x)
    for i in (1, 0):
        y = functional.conv_transpose3d(levels[i + 1], state[f"up.{i}.0.weight"], stride=2)
        y = norm(conv(norm(y, f"up.{i}.1").relu(), f"up.{i}.3"), f"up.{i}.4").relu()
        levels[i] = levels[i] + y
    expected = [norm(conv(x, f"out.{i}.0"), f"out.{i}.1").relu() for i, x in enumerate(levels)]
    found = pyramid(grid)
    for i, (level, logits) in enumerate(zip(found, head(found), strict=True)):
        torch.testing.assert_close(level, expected[i], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(
            logits, functional.conv3d(expected[i], head.classify[i].weight), rtol=1e-4, atol=1e-3
        )


def test_the_finest_scale_alone_is_the_same() -> None:
    torch.manual_seed(0)
    pyramid, head, grid = DensePyramid(4, 6, levels=3).eval(), OccupancyHead(6, 2), torch.randn(1, 4, 8, 8, 4)
    (finest,) = head(pyramid(grid, scales=1))
    assert torch.equal(finest, head(pyramid(grid))[0])


# --------------------------------------------------------------------------------------------------------------------
# grounding


def grounder(conventions: Conventions = CORRECTED, **options: object) -> GroundingHead:
    torch.manual_seed(0)
    sizes = {"channels": 16, "text_channels": 12, "num_queries": 6, "layers": 2, "heads": 2, "hidden_channels": 24}
    return GroundingHead(GroundingConfig(**(sizes | options)), conventions).eval()  # type: ignore[arg-type]


@torch.no_grad()
def test_queries_are_the_voxels_that_match_a_word_best() -> None:
    head = grounder()
    g = torch.Generator().manual_seed(0)
    visual, coords = torch.randn(1, 20, 16, generator=g), torch.rand(1, 20, 3, generator=g)
    tokens, pad = torch.randn(1, 4, 12, generator=g), torch.tensor([[False, False, True, False]])
    visual_pad = torch.arange(20)[None] >= 18
    out = head(visual, coords, visual_pad, tokens, pad)
    real = out.selection_logits[0, :18][:, [0, 1, 3]]
    assert set(out.query_index[0].tolist()) == set(real.amax(1).topk(6).indices.tolist())
    assert bool(out.query_valid.all())
    assert bool((out.selection_logits[0, 18:] == -torch.inf).all())
    # padded voxels and words are as if they were not there
    fewer = head(visual[:, :18], coords[:, :18], visual_pad[:, :18], tokens[:, [0, 1, 3]], pad[:, [0, 1, 3]])
    torch.testing.assert_close(out.boxes, fewer.boxes, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_voxels_that_are_not_numbers_are_no_queries() -> None:
    head = grounder()
    visual, coords = torch.randn(1, 20, 16), torch.rand(1, 20, 3)
    visual[0, 7] = torch.nan
    none, words = torch.zeros(1, 20, dtype=torch.bool), torch.zeros(1, 3, dtype=torch.bool)
    assert 7 not in head(visual, coords, none, torch.randn(1, 3, 12), words).query_index[0].tolist()


@torch.no_grad()
def test_fewer_voxels_than_queries() -> None:
    head = grounder()
    visual, coords = torch.randn(2, 4, 16), torch.rand(2, 4, 3)
    pad = torch.tensor([[False] * 4, [False, True, True, True]])
    out = head(visual, coords, pad, torch.randn(2, 3, 12), torch.zeros(2, 3, dtype=torch.bool))
    assert out.boxes.shape == (2, 2, 4, 9)
    assert out.query_valid.sum(1).tolist() == [4, 1]
    assert bool(torch.isfinite(out.boxes).all())


@torch.no_grad()
def test_one_more_padded_word_changes_nothing() -> None:
    """Released fault: with as many words as queries, the queries' positions are added to the words."""
    g = torch.Generator().manual_seed(0)
    visual, coords = torch.randn(1, 20, 16, generator=g), torch.rand(1, 20, 3, generator=g)
    tokens, none = torch.randn(1, 6, 12, generator=g), torch.zeros(1, 20, dtype=torch.bool)
    pad = torch.zeros(1, 6, dtype=torch.bool)
    longer, longer_pad = torch.cat([tokens, tokens[:, :1]], 1), torch.tensor([[False] * 6 + [True]])
    for conventions in (CORRECTED, RELEASED):
        head = grounder(conventions=conventions)
        a = head(visual, coords, none, tokens, pad).boxes
        b = head(visual, coords, none, longer, longer_pad).boxes
        assert torch.allclose(a, b, atol=1e-5) != (conventions is RELEASED)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"box_coder": "corners"}, "box_coder must be 'offsets' or 'faces', got 'corners'"),
        ({"alignment": "cosine"}, "kind must be 'projected' or 'dot', got 'cosine'"),
    ],
)
def test_grounding_names_what_does_not_fit(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        grounder(**options)


def test_the_best_candidates_are_those_of_a_stable_sort() -> None:
    scores = torch.tensor([0.3, 0.5, 0.3, 0.9, 0.3, 0.1, 0.5])
    for limit in range(1, 7):
        expected = torch.argsort(scores, descending=True, stable=True)[:limit].sort().values
        assert best_rows(scores, limit).tolist() == expected.tolist()
    for limit in (7, 9):
        assert best_rows(scores, limit).tolist() == list(range(7))
    assert best_rows(scores[:0], 3).tolist() == []
    whole = torch.tensor([2, -5, 2, 7])
    assert best_rows(whole, 2).tolist() == [0, 3]
    boxes = torch.cat([torch.arange(7.0)[:, None].expand(7, 3), torch.ones(7, 3), torch.zeros(7, 3)], 1)
    found = suppress(boxes, scores[:, None], 0.0, 0.5, limit=4)
    assert found.boxes[:, 0].tolist() == [3.0, 1.0, 6.0, 0.0]


@torch.no_grad()
def test_scores_that_are_not_numbers_come_last_and_cost_no_row() -> None:
    nan, inf = torch.nan, torch.inf
    scores = torch.tensor([1.0, nan, 3.0, nan, -inf, 0.0])
    assert [best_rows(scores, limit).tolist() for limit in (1, 2, 3, 5)] == [[2], [0, 2], [0, 2, 5], [0, 1, 2, 3, 5]]
    assert best_rows(torch.full((4,), nan), 2).tolist() == [0, 1]
    keep = keep_best(torch.cat([scores, scores]), [0, 6, 6, 12], 4)
    assert keep.tolist() == [True, True, True, False, False, True] * 2
    # nor do they keep boxes out that have a score
    boxes = torch.cat([torch.arange(6.0)[:, None].expand(6, 3), torch.ones(6, 3), torch.zeros(6, 3)], 1)
    logits = torch.tensor([1.0, nan, 3.0, nan, -2.0, 0.0])[:, None]
    (found,) = decode_detections([level_of(boxes, logits)], max_per_level=3)
    assert found.boxes[:, 0].tolist() == [2.0, 0.0, 5.0]


def test_random_scores_are_decoded_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more candidates than anything trained makes the best are suppressed; as published, all of fewer are."""
    torch.manual_seed(0)
    boxes, scores = random_boxes(300, 1).float(), torch.rand(300, 40)
    every = [suppress(boxes.clone(), scores, 0.5, 0.99, conventions=c) for c in (CORRECTED, RELEASED)]
    assert [len(found.boxes) > 5000 for found in every] == [True, True]
    monkeypatch.setattr(detection, "_MOST_CANDIDATES", 200)
    for conventions, all_of_them in zip((CORRECTED, RELEASED), every, strict=True):
        found = suppress(boxes.clone(), scores, 0.5, 0.99, conventions=conventions)
        assert 190 < len(found.boxes) <= 200
        assert torch.equal(found.scores, all_of_them.scores[: len(found.scores)])
