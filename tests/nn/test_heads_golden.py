"""The heads with official behaviour on, against recorded outputs of the released code under the same weights."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from support.golden import load_arrays, recorded_weights, relative_error

from embodied_perceptron.nn.detection import DetectionHead, decode_detections, decode_faces
from embodied_perceptron.nn.grounding import GroundingHead
from embodied_perceptron.nn.neck import TopDownNeck
from embodied_perceptron.nn.occupancy import DensePyramid, OccupancyHead
from embodied_perceptron.nn.official import CORRECTED, RELEASED, OfficialTask, map_state_dict
from embodied_perceptron.sparse.conv import SparseConv
from embodied_perceptron.sparse.tensor import SparseTensor

pytestmark = pytest.mark.golden
LEVEL_CHANNELS = (128, 256, 512, 1024)


def load_recorded(
    module: torch.nn.Module, prefix: str, golden_dir: Path, keys_file: str, task: OfficialTask, *heads: str
) -> None:
    """Load the part below ``prefix`` of our names, strictly but for batch counters."""
    weights, _ = map_state_dict(recorded_weights(golden_dir, keys_file, lambda k: k.startswith(heads)), task)
    mine = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
    missing, unexpected = module.load_state_dict(mine, strict=False, assign=True)
    assert not unexpected
    assert all(k.endswith("num_batches_tracked") for k in missing)
    module.eval()


def level_inputs(golden_dir: Path) -> list[SparseTensor]:
    z = load_arrays(golden_dir, "g4_head_inputs")
    return [
        SparseTensor.from_coords(z[f"in{i}_coords"][:, 1:].long(), z[f"in{i}_feats"], stride=8 << i) for i in range(4)
    ]


@pytest.fixture(scope="module")
def detection(golden_dir: Path) -> DetectionHead:
    head = DetectionHead(LEVEL_CHANNELS, 128, 284, voxel_size_m=0.01, keep=400, conventions=RELEASED)
    load_recorded(head, "detection.", golden_dir, "g8_keys_cont_det.json", "detection", "bbox_head.")
    return head


@torch.no_grad()
def test_detection_levels(golden_dir: Path, detection: DetectionHead) -> None:
    expected = load_arrays(golden_dir, "g4_head_outputs")
    levels, _ = detection(level_inputs(golden_dir))
    for i, level in enumerate(levels):
        assert torch.equal(level.sites.coords, expected[f"l{i}_coords"][:, 1:].long())
        assert relative_error(level.points_m, expected[f"l{i}_points"]) < 1e-6
        assert relative_error(level.center_logits, expected[f"l{i}_center"]) < 1e-4
        assert relative_error(torch.cat([level.distances_m, level.rotation], 1), expected[f"l{i}_bbox12"]) < 1e-4
        assert relative_error(level.class_logits, expected[f"l{i}_cls"]) < 1e-4
        assert relative_error(level.boxes()[:, :6], expected[f"l{i}_decoded9"][:, :6]) < 1e-4


@torch.no_grad()
def test_detection_predictions(golden_dir: Path, detection: DetectionHead) -> None:
    expected = load_arrays(golden_dir, "g4_predictions")
    levels, _ = detection(level_inputs(golden_dir))
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
def grounding(golden_dir: Path) -> GroundingHead:
    head = GroundingHead(256, 768, num_queries=64, regression_channels=9, alignment="dot", conventions=RELEASED)
    load_recorded(
        head,
        "grounding.head.",
        golden_dir,
        "g8_keys_vg.json",
        "grounding",
        "decoder.",
        "bbox_head.",
        "text_feat_map.",
    )
    return head


# Six layers of random weights multiply rounding errors. Computed in float64, what is left is the rounding of the
# recorded float32 run itself: 2e-6 after the first layer, 4e-4 after the last.
LAYER_TOLERANCE = (1e-4, 1e-4, 1e-4, 1e-4, 2e-4, 5e-4)


def in_double(head: GroundingHead, z: dict[str, torch.Tensor]) -> tuple[GroundingHead, dict[str, torch.Tensor]]:
    return copy.deepcopy(head).double(), {k: v.double() if v.is_floating_point() else v for k, v in z.items()}


@torch.no_grad()
def test_grounding_decoder(golden_dir: Path, grounding: GroundingHead) -> None:
    z = load_arrays(golden_dir, "g8_decoder")
    assert relative_error(grounding.box_position(z["pred_bboxes"]), z["self_pos0"]) < 1e-5
    assert relative_error(grounding.voxel_position(z["key_coords"]), z["cross_pos"]) < 1e-5
    head, z = in_double(grounding, z)
    inputs = (z["query"], z["query_coords"], z["pred_bboxes"], z["feats"], z["key_coords"], z["feats_pad"])
    hidden, boxes, logits = head.refine(*inputs, z["text"], z["text_pad"])
    for layer, tolerance in enumerate(LAYER_TOLERANCE):
        assert relative_error(hidden[layer], z["hidden_states"][layer]) < tolerance
        assert relative_error(boxes[layer], z["boxes"][layer]) < tolerance
        assert relative_error(logits[layer], z["logits"][layer]) < tolerance


@torch.no_grad()
def test_released_fault_of_equal_lengths_is_behind_the_switch(golden_dir: Path, grounding: GroundingHead) -> None:
    """The released attention adds query positions to the words when there are as many words as queries."""
    z = load_arrays(golden_dir, "g8_decoder")
    inputs = (z["query"], z["query_coords"], z["pred_bboxes"], z["feats"], z["key_coords"], z["feats_pad"])
    no_pad = torch.zeros(2, 16, dtype=torch.bool)
    hidden, boxes, _ = grounding.refine(*inputs, z["eqlen_text"], no_pad)
    assert relative_error(hidden[-1], z["eqlen_hidden_last"]) < 1e-2
    assert relative_error(boxes[-1], z["eqlen_boxes_last"]) < 1e-2
    right = copy.deepcopy(grounding)
    right.conventions = CORRECTED
    hidden, _, _ = right.refine(*inputs, z["eqlen_text"], no_pad)
    # one more (padded) word must not change the answer once the fault is off
    text, pad = torch.cat([z["eqlen_text"], z["eqlen_text"][:, :1]], 1), torch.zeros(2, 17, dtype=torch.bool)
    pad[:, -1] = True
    longer, _, _ = right.refine(*inputs, text, pad)
    assert relative_error(hidden[0], longer[0]) < 1e-5
    assert relative_error(hidden[-1], z["eqlen_hidden_last"]) > 0.1


@torch.no_grad()
def test_grounding_with_face_coder(golden_dir: Path, grounding: GroundingHead) -> None:
    z = load_arrays(golden_dir, "g8_decoder")
    expected = load_arrays(golden_dir, "g8_decoder_fcaf_coder")
    head, z = in_double(grounding, z)
    head.decode = decode_faces
    inputs = (z["query"], z["query_coords"], z["pred_bboxes"], z["feats"], z["key_coords"], z["feats_pad"])
    _, boxes, _ = head.refine(*inputs, z["text"], z["text_pad"])
    for layer, tolerance in enumerate(LAYER_TOLERANCE):
        assert relative_error(boxes[layer], expected["boxes"][layer]) < tolerance


@torch.no_grad()
def test_grounding_scene(golden_dir: Path, grounding: GroundingHead) -> None:
    """Query selection and six layers on a real neck output."""
    z = load_arrays(golden_dir, "g8_grounder_scene")
    visual, coords, pad = z["neck_feats"][None], z["neck_points"][None], ~z["text_mask"]
    selection = grounding.alignment(visual, z["text"], pad)
    assert relative_error(selection.max(-1).values[0], z["enc_max_logit"]) < 1e-4
    chosen = set(selection.max(-1).values[0].topk(64).indices.tolist())
    rows = torch.cdist(z["query_feats"][0], z["neck_feats"]).argmin(1)
    assert set(rows.tolist()) == chosen
    start = grounding.decode(z["query_coords"], grounding.box_branch(z["query_feats"]))
    assert relative_error(start, z["query_init_boxes"]) < 1e-4
    visual_pad = torch.zeros(visual.shape[:2], dtype=torch.bool)
    hidden, boxes, logits = grounding.refine(
        z["query_feats"], z["query_coords"], start, visual, coords, visual_pad, z["text"], pad
    )
    assert relative_error(boxes, z["boxes_all"]) < 1e-4
    assert relative_error(hidden[-1], z["hidden_last"]) < 1e-4
    assert relative_error(logits[-1, 0].sigmoid().max(-1).values, z["scores"]) < 1e-4


@torch.no_grad()
def test_grounding_neck(golden_dir: Path) -> None:
    z = load_arrays(golden_dir, "g8_grounder_scene")
    neck = TopDownNeck(LEVEL_CHANNELS, 256, keep=int(z["pts_prune_threshold"]), conventions=RELEASED)
    score = SparseConv(256, 1, kernel_size=1, bias=True)
    parts = torch.nn.ModuleDict({"neck": neck, "score": score})
    load_recorded(parts, "grounding.", golden_dir, "g8_keys_vg.json", "grounding", "neck_3d.")
    levels = neck(level_inputs(golden_dir), lambda _, out: score(out).feats)
    points = torch.cat([level.sites.coords * 0.01 for level in reversed(levels)])
    feats = torch.cat([level.feats for level in reversed(levels)])
    scores = torch.cat([score(level).feats for level in reversed(levels)])
    assert points.shape == z["neck_points"].shape
    start = 0
    for level in reversed(levels):  # rows inside a level are in another order there: match by point
        rows = slice(start, start + len(level))
        start += len(level)
        distance, match = torch.cdist(points[rows].double(), z["neck_points"][rows].double()).min(1)
        assert float(distance.max()) < 1e-4
        assert match.unique().numel() == len(match)
        assert relative_error(feats[rows], z["neck_feats"][rows][match]) < 1e-4
        assert relative_error(scores[rows], z["neck_scores"][rows][match]) < 1e-4


@pytest.mark.slow
@pytest.mark.timeout(600)
@torch.no_grad()
def test_occupancy(golden_dir: Path) -> None:
    z = load_arrays(golden_dir, "g6_occ_neck_head")
    strides = ((4, 5, 5, 4), (4, 2, 2, 2), (4, 1, 1, 1))
    with torch.device("meta"):
        parts = torch.nn.ModuleDict({"pyramid": DensePyramid(768), "head": OccupancyHead(128, 80)})
    load_recorded(parts, "occupancy.", golden_dir, "g8_keys_cont_occ.json", "occupancy", "neck_3d.", "bbox_head.")
    for norm in (m for m in parts.modules() if isinstance(m, torch.nn.BatchNorm3d)):
        norm.num_batches_tracked = torch.zeros((), dtype=torch.long)
    grid = 0.5 * torch.randn(1, 768, 40, 40, 16, generator=torch.Generator().manual_seed(4061))
    assert torch.equal(grid[0, ::97, ::7, ::7, ::5], z["x_slice"])
    pyramid = parts["pyramid"](grid)
    logits = parts["head"](pyramid)
    for i, (c, x, y, zz) in enumerate(strides):
        assert relative_error(pyramid[i][0, ::c, ::x, ::y, ::zz], z[f"neck{i}_slice"]) < 1e-4
        assert relative_error(logits[i][0, :, ::x, ::y, ::zz], z[f"logits{i}_slice"]) < 1e-4
    sure = z["pred_top2_margin"] > 1e-3
    assert torch.equal(logits[0].argmax(1)[sure], z["pred_occupancy"][sure])
