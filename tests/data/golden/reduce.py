"""The recorded outputs that tests read, cut down from a full recording of the released code.

    python tests/data/golden/reduce.py FULL_RECORDING       # writes the .npz and .json files beside this script

What is cut, and why that is enough, stands beside each entry; README.md says how a full recording is made.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent
Array = NDArray[Any]

# file here -> recording file -> arrays, as they are
WHOLE: dict[str, dict[str, tuple[str, ...]]] = {
    "backbone": {
        "g1_input": ("points",),  # the voxel of a point is floor(point / 0.01 m)
        "g1_mink_resnet34_levels01": ("level0_coords", "level0_feats", "level1_coords", "level1_feats"),
        "g1_mink_resnet34_levels23": ("level2_coords", "level2_feats", "level3_coords", "level3_feats"),
        "g1_mink_resnet34_early": ("maxpool_ch16_coords",),
    },
    "backbone_batch": {"g1c_batch2": ("points1", *(f"level{i}_coords" for i in range(4)))},  # points0 are backbone's
    "duplicate_points": {"g1b_duplicates": ("points", "out_coords", "out_feats")},
    "view_fusion": {
        "g3_batch_point_sample": (
            "proj", "scale_factor", "img_pad_shape", "bilinear_crop_imgflip_l0_uvd", "bilinear_crop_imgflip_l1_uvd",
            *(f"plain_l{i}_feats" for i in range(4)),  # all channels: inputs of the detection head
            *(f"{case}_{what}" for what in ("count", "safe") for case in (
                "plain_l0", "plain_l1", "plain_l2", "plain_l3", "aug_l1", "aug_l2", "aug_flip_l1",
                "bilinear_crop_imgflip_l0", "bilinear_crop_imgflip_l1",
            )),
        ),
    },
    "detection_head": {
        "g4_head_inputs": ("point_feat_scale", "img_feat_scale"),  # inputs = backbone and view_fusion, scaled
        "g4_head_outputs": tuple(f"l{i}_{what}" for i in range(4)
                                 for what in ("coords", "points", "center", "bbox12", "decoded9")),
        "g4_predictions": ("boxes", "scores", "labels", "nms_pre", "iou_thr", "score_thr"),
    },
    "detection_targets": {
        "g4_targets_losses": ("gt_boxes", "gt_labels", *(f"{name}_{what}" for name in ("cfg", "low") for what in (
            "thresholds", "center_targets", "bbox_targets", "cls_targets", "loss_center", "loss_bbox", "loss_cls"))),
    },
    "footprint_nms": {"g4_nms_bev": ("boxes", "scores", "iou_thr", "keep", "iou_exact")},
    "box_geometry": {
        "g5_box_geometry": (
            "boxes", "corners", "loss_corners", "rotmat", "euler_back", "volume", "transform_matrix", "transformed",
            "flip_horizontal", "flip_vertical", "rotate_yaw", "rotate_yaw_matT", "rotate_euler", "rotate_euler_matT",
            "scaled13", "sixd", "sixd_matrix", "sixd_euler", "fd_points", "fd", "fd_inside_official", "fd_centerness",
            "fd_inside_true", "cd_target", "cd_l1_g8_mean", "cd_l1_g8_none",
        ),
    },
    "occupancy_losses": {
        "g6_occ_losses_small": (
            *(f"{case}_{what}" for case in ("c0", "c1") for what in ("logits", "target", "ce", "sem", "geo")),
            "bin_logits", "bin_target", "bin_geo", "all_ignored_sem", "all_ignored_geo",
        ),
    },
    "occupancy_head": {
        "g6_occ_neck_head": (
            "x_slice", "logits2_slice", "pred_occupancy", "pred_top2_margin", "gt_occupancy", "gt_mask",
            *(f"{what}{i}_{seen}" for i in range(3) for seen in ("nomask", "mask") for what in ("sup", "loss")),
        ),
    },
    "average_precision": {"g7_average_precision": ("rec0", "prec0", "rec1", "prec1", "ap")},
    "box_overlap": {"g7_box3d_overlap": ("boxes1", "boxes2", "iou_p3d", "iou_exact")},
    "occupancy_metric": {
        "g7_occupancy_metric": ("s0_pred", "s0_gt4", "s0_mask", "s1_pred", "s1_gt4", "s2_pred", "s2_gt4", "s2_mask"),
    },
    "grounding_decoder": {
        "g8_decoder": (
            "query", "query_coords", "pred_bboxes", "feats", "key_coords", "feats_pad", "text", "text_pad", "boxes",
            "logits", "eqlen_text", "eqlen_boxes_last",
        ),
    },
    "grounding_losses": {
        "g8_grounding_loss": (
            "gt0", "gt1", "posmap0", "posmap1", "gt_inds", "loss_names", "loss_values",
            *(f"cost_b{i}_{name}" for i in range(2) for name in ("BinaryFocalLossCost", "BBox3DL1Cost", "IoU3DCost")),
        ),
    },
    "grounding_scene": {
        "g8_grounder_scene": (
            "pts_prune_threshold", "neck_points", "neck_scores", "text", "text_mask", "enc_max_logit", "query_coords",
            "query_init_boxes", "query_feats", "boxes_all", "scores",
        ),
    },
}  # fmt: skip

# file here -> recording file -> array -> every so manyth along an axis, or the first so many: a wrong weight, order or
# offset moves all channels. Stored as NAME_every_N and NAME_first_N.
EVERY: dict[str, dict[str, dict[str, tuple[int, int]]]] = {
    "backbone": {
        "g1_mink_resnet34_early": {
            f"{layer}_ch16_feats": (0, 8) for layer in ("conv1", "norm1", "maxpool", "layer1_block0")
        },
    },
    "occupancy_head": {
        "g6_occ_neck_head": {f"neck{i}_slice": (0, 8) for i in range(3)} | {f"logits{i}_slice": (0, 4) for i in (0, 1)},
    },
    "grounding_decoder": {
        "g8_decoder": dict.fromkeys(("self_pos0", "cross_pos", "hidden_states", "eqlen_hidden_last"), (-1, 8)),
    },
    "grounding_scene": {"g8_grounder_scene": {"neck_feats": (-1, 16), "hidden_last": (-1, 8)}},
}  # fmt: skip
FIRST: dict[str, dict[str, dict[str, tuple[int, int]]]] = {
    "backbone_batch": {"g1c_batch2": {f"level{i}_feats_ch32": (1, 8) for i in range(4)}},
    "image_encoder": {
        "g2_resnet50_bc16": {"imgs": (0, 1)} | {f"out{i}": (1, 16) for i in range(4)},  # outputs of all three images
    },
    "view_fusion": {
        "g3_batch_point_sample": {
            f"{case}_feats": (1, 16)
            for case in ("aug_l1", "aug_l2", "aug_flip_l1", "bilinear_crop_imgflip_l0", "bilinear_crop_imgflip_l1")
        },
        "g9_cont_det_sweep0_imgfeats": {f"level{i}_imgfeats": (1, 16) for i in range(4)},
    },
    "detection_head": {"g4_head_outputs": {f"l{i}_cls": (1, 32) for i in range(4)}},
}
RENAMED = {"g8_decoder_fcaf_coder": ("grounding_decoder", {"boxes": "face_coder_boxes"})}
JSON = {
    "view_fusion_variants": "g3_variants",
    "detection_metric": "g7_indoor_eval",
    "grounding_metric": "g7_grounding_metric",
    "occupancy_metric": "g7_occupancy_metric",
    "state_dict_detection": "g8_keys_cont_det",  # those of the multi-view models are the same
    "state_dict_occupancy": "g8_keys_cont_occ",
    "state_dict_grounding": "g8_keys_vg",
}


def reduced(full: Path) -> dict[str, dict[str, Array]]:
    """All arrays by file."""
    recorded = {path.stem: np.load(path, allow_pickle=False) for path in full.glob("*.npz")}
    kept: dict[str, dict[str, Array]] = {}
    for name, sources in WHOLE.items():
        kept[name] = {key: recorded[source][key] for source, keys in sources.items() for key in keys}
    for how, table in (("every", EVERY), ("first", FIRST)):
        for name, parts in table.items():
            for source, arrays in parts.items():
                for key, (axis, n) in arrays.items():
                    rows = slice(None, None, n) if how == "every" else slice(n)
                    array = np.moveaxis(np.moveaxis(recorded[source][key], axis, 0)[rows], 0, axis)
                    kept.setdefault(name, {})[f"{key}_{how}_{n}"] = np.ascontiguousarray(array)
    for source, (name, keys) in RENAMED.items():
        kept[name] |= {new: recorded[source][old] for old, new in keys.items()}
    return kept


def main(full: Path) -> None:
    for name, arrays in reduced(full).items():
        np.savez_compressed(HERE / f"{name}.npz", **arrays)
    for name, source in JSON.items():
        content = json.loads((full / f"{source}.json").read_text(encoding="utf-8"))
        (HERE / f"{name}.json").write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
