"""The heads with official behaviour on, against recorded outputs of the released code under the same weights."""

from __future__ import annotations

import copy

import pytest
import torch
from support.golden import (
    LEVEL_CHANNELS,
    detection_head,
    level_inputs,
    load_arrays,
    load_recorded,
    relative_error,
)

from embodied_perceptron.nn.backbone import TopDownNeck
from embodied_perceptron.nn.detection import DetectionHead, boxes_from_faces, decode_detections, decode_faces
from embodied_perceptron.nn.grounding import GroundingHead
from embodied_perceptron.nn.occupancy import DensePyramid, OccupancyHead
from embodied_perceptron.nn.official import CORRECTED, RELEASED
from embodied_perceptron.nn.presets import GroundingConfig
from embodied_perceptron.sparse.conv import SparseConv

pytestmark = pytest.mark.golden


@pytest.fixture(scope="module")
def detection() -> DetectionHead:
    return detection_head()


@torch.no_grad()
def test_detection_levels(detection: DetectionHead) -> None:
    expected = load_arrays("detection_head")
    levels, _ = detection(level_inputs())
    for i, level in enumerate(levels):
        assert torch.equal(level.sites.coords, expected[f"l{i}_coords"][:, 1:].long())
        assert relative_error(level.points_m, expected[f"l{i}_points"]) < 1e-6
        assert relative_error(level.center_logits, expected[f"l{i}_center"]) < 1e-4
        assert relative_error(torch.cat([level.distances_m, level.rotation], 1), expected[f"l{i}_bbox12"]) < 1e-4
        assert relative_error(level.class_logits[:, :32], expected[f"l{i}_cls_first_32"]) < 1e-4
        boxes = boxes_from_faces(level.anchors_m, level.distances_m, level.rotation)
        assert relative_error(boxes[:, :6], expected[f"l{i}_decoded9"][:, :6]) < 1e-4


@torch.no_grad()
def test_detection_predictions(detection: DetectionHead) -> None:
    expected = load_arrays("detection_head")
    levels, _ = detection(level_inputs())
    (found,) = decode_detections(
        levels, int(expected["nms_pre"]), float(expected["score_thr"]), float(expected["iou_thr"]), conventions=RELEASED
    )
    # The recorded kernel's overlap is off by up to 0.017, so boxes near the threshold may flip: match one by one.
    unmatched = 0
    for box, score, label in zip(expected["boxes"], expected["scores"], expected["labels"], strict=True):
        same = (found.labels == label) & ((found.scores - score).abs() < 1e-4)
        same &= ((found.boxes[:, :6] - box[:6]).abs() < 1e-3).all(dim=1)
        unmatched += int(not same.any())
    assert unmatched <= 0.005 * len(expected["boxes"])
    assert abs(len(found.boxes) - len(expected["boxes"])) <= 0.005 * len(expected["boxes"])


@pytest.fixture(scope="module")
def grounding() -> GroundingHead:
    head = GroundingHead(GroundingConfig(num_queries=64, rotation="euler", alignment="dot"), RELEASED)
    load_recorded(head, "grounding.head.", "grounding", "decoder.", "bbox_head.", "text_feat_map.")
    return head


# Six layers of random weights multiply rounding errors. Computed in float64, what is left is the rounding of the
# recorded float32 run itself: 2e-6 after the first layer, 4e-4 after the last.
LAYER_TOLERANCE = (1e-4, 1e-4, 1e-4, 1e-4, 2e-4, 5e-4)


def in_double(head: GroundingHead, z: dict[str, torch.Tensor]) -> tuple[GroundingHead, dict[str, torch.Tensor]]:
    return copy.deepcopy(head).double(), {k: v.double() if v.is_floating_point() else v for k, v in z.items()}


@torch.no_grad()
def test_grounding_decoder(grounding: GroundingHead) -> None:
    z = load_arrays("grounding_decoder")
    assert relative_error(grounding.box_position(z["pred_bboxes"])[..., ::8], z["self_pos0_every_8"]) < 1e-5
    assert relative_error(grounding.voxel_position(z["key_coords"])[..., ::8], z["cross_pos_every_8"]) < 1e-5
    head, z = in_double(grounding, z)
    inputs = (z["query"], z["query_coords"], z["pred_bboxes"], z["feats"], z["key_coords"], z["feats_pad"])
    hidden, boxes, logits = head.refine(*inputs, z["text"], z["text_pad"])
    for layer, tolerance in enumerate(LAYER_TOLERANCE):
        assert relative_error(hidden[layer, ..., ::8], z["hidden_states_every_8"][layer]) < tolerance
        assert relative_error(boxes[layer], z["boxes"][layer]) < tolerance
        assert relative_error(logits[layer], z["logits"][layer]) < tolerance


@torch.no_grad()
def test_released_fault_of_equal_lengths_is_behind_the_switch(grounding: GroundingHead) -> None:
    """The released attention adds query positions to the words when there are as many words as queries."""
    z = load_arrays("grounding_decoder")
    inputs = (z["query"], z["query_coords"], z["pred_bboxes"], z["feats"], z["key_coords"], z["feats_pad"])
    no_pad = torch.zeros(2, 16, dtype=torch.bool)
    hidden, boxes, _ = grounding.refine(*inputs, z["eqlen_text"], no_pad)
    assert relative_error(hidden[-1, ..., ::8], z["eqlen_hidden_last_every_8"]) < 1e-2
    assert relative_error(boxes[-1], z["eqlen_boxes_last"]) < 1e-2
    right = copy.deepcopy(grounding)
    right.conventions = CORRECTED
    hidden, _, _ = right.refine(*inputs, z["eqlen_text"], no_pad)
    # one more (padded) word must not change the answer once the fault is off
    text, pad = torch.cat([z["eqlen_text"], z["eqlen_text"][:, :1]], 1), torch.zeros(2, 17, dtype=torch.bool)
    pad[:, -1] = True
    longer, _, _ = right.refine(*inputs, text, pad)
    assert relative_error(hidden[0], longer[0]) < 1e-5
    assert relative_error(hidden[-1, ..., ::8], z["eqlen_hidden_last_every_8"]) > 0.1


@torch.no_grad()
def test_grounding_with_face_coder(grounding: GroundingHead) -> None:
    z = load_arrays("grounding_decoder")
    head, z = in_double(grounding, z)
    head.decode = decode_faces
    inputs = (z["query"], z["query_coords"], z["pred_bboxes"], z["feats"], z["key_coords"], z["feats_pad"])
    _, boxes, _ = head.refine(*inputs, z["text"], z["text_pad"])
    for layer, tolerance in enumerate(LAYER_TOLERANCE):
        assert relative_error(boxes[layer], z["face_coder_boxes"][layer]) < tolerance


@pytest.fixture(scope="module")
def recorded_neck() -> tuple[torch.Tensor, torch.Tensor]:
    """(N, 256) features and (N, 1) scores of our neck, in the order of the recorded points."""
    z = load_arrays("grounding_scene")
    neck = TopDownNeck(LEVEL_CHANNELS, 256, keep=int(z["pts_prune_threshold"]), conventions=RELEASED)
    score = SparseConv(256, 1, kernel_size=1, bias=True)
    parts = torch.nn.ModuleDict({"neck": neck, "score": score})
    load_recorded(parts, "grounding.", "grounding", "neck_3d.")
    with torch.no_grad():
        levels = list(reversed(neck(level_inputs(), lambda _, out: score(out).feats)))
        scores = torch.cat([score(level).feats for level in levels])
    points, feats = torch.cat([level.sites.coords * 0.01 for level in levels]), torch.cat([x.feats for x in levels])
    assert points.shape == z["neck_points"].shape
    order, start = [], 0
    for level in levels:  # rows inside a level are in another order there: match by point
        rows = slice(start, start + len(level))
        distance, match = torch.cdist(z["neck_points"][rows].double(), points[rows].double()).min(1)
        assert float(distance.max()) < 1e-4
        assert match.unique().numel() == len(match)
        order.append(start + match)
        start += len(level)
    return feats[torch.cat(order)], scores[torch.cat(order)]


def test_grounding_neck(recorded_neck: tuple[torch.Tensor, torch.Tensor]) -> None:
    z = load_arrays("grounding_scene")
    feats, scores = recorded_neck
    assert relative_error(feats[:, ::16], z["neck_feats_every_16"]) < 1e-4
    assert relative_error(scores, z["neck_scores"]) < 1e-4


@torch.no_grad()
def test_grounding_scene(grounding: GroundingHead, recorded_neck: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Query selection and six layers behind the neck."""
    z = load_arrays("grounding_scene")
    visual, coords, pad = recorded_neck[0][None], z["neck_points"][None], ~z["text_mask"]
    selection = grounding.alignment(visual, z["text"], pad)
    assert relative_error(selection.max(-1).values[0], z["enc_max_logit"]) < 1e-4
    chosen = set(selection.max(-1).values[0].topk(64).indices.tolist())
    rows = torch.cdist(z["query_feats"][0], visual[0]).argmin(1)
    assert set(rows.tolist()) == chosen
    start = grounding.decode(z["query_coords"], grounding.box_branch(z["query_feats"]))
    assert relative_error(start, z["query_init_boxes"]) < 1e-4
    visual_pad = torch.zeros(visual.shape[:2], dtype=torch.bool)
    hidden, boxes, logits = grounding.refine(
        z["query_feats"], z["query_coords"], start, visual, coords, visual_pad, z["text"], pad
    )
    assert relative_error(boxes, z["boxes_all"]) < 1e-4
    assert relative_error(hidden[-1, ..., ::8], z["hidden_last_every_8"]) < 1e-4
    assert relative_error(logits[-1, 0].sigmoid().max(-1).values, z["scores"]) < 1e-4


@pytest.mark.slow  # 768 channels; test_heads.py has the same arithmetic with four
@pytest.mark.timeout(600)
@torch.no_grad()
def test_occupancy() -> None:
    z = load_arrays("occupancy_head")
    strides = ((4, 5, 5, 4), (4, 2, 2, 2), (4, 1, 1, 1))
    with torch.device("meta"):
        parts = torch.nn.ModuleDict({"pyramid": DensePyramid(768), "head": OccupancyHead(128, 80)})
    load_recorded(parts, "occupancy.", "occupancy", "neck_3d.", "bbox_head.")
    for norm in (m for m in parts.modules() if isinstance(m, torch.nn.BatchNorm3d)):
        norm.num_batches_tracked = torch.zeros((), dtype=torch.long)
    grid = 0.5 * torch.randn(1, 768, 40, 40, 16, generator=torch.Generator().manual_seed(4061))
    assert torch.equal(grid[0, ::97, ::7, ::7, ::5], z["x_slice"])
    pyramid = parts["pyramid"](grid)
    logits = parts["head"](pyramid)
    for i, (c, x, y, zz) in enumerate(strides):
        assert relative_error(pyramid[i][0, :: 8 * c, ::x, ::y, ::zz], z[f"neck{i}_slice_every_8"]) < 1e-4
        step, name = (1, "logits2_slice") if i == 2 else (4, f"logits{i}_slice_every_4")
        assert relative_error(logits[i][0, ::step, ::x, ::y, ::zz], z[name]) < 1e-4
    sure = z["pred_top2_margin"] > 1e-3
    assert torch.equal(logits[0].argmax(1)[sure], z["pred_occupancy"][sure])
