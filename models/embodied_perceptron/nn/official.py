"""The released EmbodiedScan code: its deviations from the paper, and the parameter names of its checkpoints.

``docs/released_code.md`` lists every deviation with the default here and its test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from embodied_perceptron.sparse.sites import Sites


@dataclass(frozen=True)
class Conventions:
    """Behaviour of a network where the released code deviates from the paper or has a fault.

    Attributes:
        point_in_cell: position in its cell where a site predicts and samples images: 0.5 = centre, 0 = lower corner.
        absent_corners_score_zero: interpolate pruning scores with absent coarse sites as 0, which outranks every
            negative logit. Otherwise only present sites count, and a site without support comes last.
        unmasked_views: sample feature maps with aligned corners, and sum image features over all views whose sample
            falls on the feature map, including those that are not counted (behind the camera, on the border).
        position_on_equal_text: attention adds the queries' positions to the text keys when there are as many tokens as
            queries.
        centerness_power: exponent of the centreness that multiplies class probabilities.
        level_boxes: suppression reduces boxes to their yaw, compares footprints and returns boxes without tilt.
            Otherwise boxes keep nine degrees of freedom, and volumes are compared.
        votes: suppressed boxes vote on the kept ones, and tilts within noise become 0.
        occlusion_margin_m: a voxel this far behind the measured depth does not sample the view; None = no test.
    """

    point_in_cell: float = 0.5
    absent_corners_score_zero: bool = False
    unmasked_views: bool = False
    position_on_equal_text: bool = False
    centerness_power: float = 1.0 / 3.0
    level_boxes: bool = False
    votes: bool = True
    occlusion_margin_m: float | None = 0.1

    def site_points(self, sites: Sites, voxel_size_m: float, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """(N, 3) world positions, metres, where sites predict and sample images."""
        coords = sites.coords if dtype == torch.get_default_dtype() else sites.coords.to(dtype)
        return (coords + self.point_in_cell * sites.stride) * voxel_size_m


CORRECTED = Conventions()
# the paper's text: the release without its faults, and without changes of this project
PUBLISHED = Conventions(centerness_power=1.0, votes=False, occlusion_margin_m=None)
RELEASED = Conventions(
    point_in_cell=0.0,
    absent_corners_score_zero=True,
    unmasked_views=True,
    position_on_equal_text=True,
    centerness_power=1.0,
    level_boxes=True,
    votes=False,
    occlusion_margin_m=None,
)

# --------------------------------------------------------------------------------------------------------------------
# Parameter names. A released detector keeps its sparse neck inside ``bbox_head``, a visual grounder in ``neck_3d``;
# shared branches are stored once per decoder layer, and the last copy counts.

OfficialTask = Literal["detection", "occupancy", "grounding"]

_Rule = tuple[str, str | Callable[[re.Match[str]], str]]


def _one_less(template: str) -> Callable[[re.Match[str]], str]:
    """Released up blocks count from 1."""
    return lambda match: template.format(int(match[1]) - 1, match[2])


def _sparse_neck(source: str, target: str) -> list[_Rule]:
    return [
        (rf"{source}\.out_block_(\d+)\.(.+)", rf"{target}.out.\1.\2"),
        (rf"{source}\.up_block_(\d+)\.(.+)", _one_less(target + ".up.{}.{}")),
    ]


_SPARSE_STREAM: list[_Rule] = [
    (r"backbone_3d\.(.+)", r"backbone.\1"),
    (r"backbone\.(.+)", r"image_encoder.\1"),
]
_RULES: dict[str, list[_Rule]] = {
    "detection": [
        *_SPARSE_STREAM,
        *_sparse_neck("bbox_head", "detection.neck"),
        (r"bbox_head\.conv_center\.(.+)", r"detection.center.\1"),
        (r"bbox_head\.conv_reg\.(.+)", r"detection.regression.\1"),
        (r"bbox_head\.conv_cls\.(.+)", r"detection.classify.\1"),
        (r"bbox_head\.scales\.(\d+)\.scale", r"detection.scales.\1"),
    ],
    "occupancy": [
        (r"backbone_3d\.(.+)", r"backbone.\1"),
        (r"backbone\.(.+)", r"image_encoder.backbone.\1"),
        (r"neck\.(.+)", r"image_encoder.neck.\1"),
        (r"neck_3d\.down_layer_(\d+)\.0\.downsample\.(.+)", r"occupancy.pyramid.down.\1.shortcut.\2"),
        (r"neck_3d\.down_layer_(\d+)\.0\.(.+)", r"occupancy.pyramid.down.\1.\2"),
        (r"neck_3d\.up_block_(\d+)\.(.+)", _one_less("occupancy.pyramid.up.{}.{}")),
        (r"neck_3d\.out_block_(\d+)\.(.+)", r"occupancy.pyramid.out.\1.\2"),
        (r"bbox_head\.occ\.(\d+)\.(.+)", r"occupancy.head.classify.\1.\2"),
    ],
    "grounding": [
        *_SPARSE_STREAM,
        *_sparse_neck("neck_3d", "grounding.neck"),
        (r"neck_3d\.conv_cls\.(.+)", r"grounding.score.\1"),
        (r"bbox_head\.cls_branches\.\d+\.bias", r"grounding.head.alignment.bias"),
        (r"bbox_head\.reg_branches\.\d+\.(.+)", r"grounding.head.box_branch.\1"),
        (r"text_feat_map\.(.+)", r"grounding.head.text_projection.\1"),
        (r"decoder\.norm\.(.+)", r"grounding.head.norm.\1"),
        (r"decoder\.self_posembed\.position_embedding_head\.0\.(.+)", r"grounding.head.box_position.expand.\1"),
        (r"decoder\.self_posembed\.position_embedding_head\.1\.(.+)", r"grounding.head.box_position.norm.\1"),
        (r"decoder\.self_posembed\.position_embedding_head\.3\.(.+)", r"grounding.head.box_position.mix.\1"),
        (r"decoder\.cross_posembed\.position_embedding_head\.0\.(.+)", r"grounding.head.voxel_position.expand.\1"),
        (r"decoder\.cross_posembed\.position_embedding_head\.1\.(.+)", r"grounding.head.voxel_position.norm.\1"),
        (r"decoder\.cross_posembed\.position_embedding_head\.3\.(.+)", r"grounding.head.voxel_position.mix.\1"),
        (r"decoder\.layers\.(\d+)\.self_attn\.attn\.(.+)", r"grounding.head.layers.\1.self_attention.\2"),
        (r"decoder\.layers\.(\d+)\.cross_attn_text\.attn\.(.+)", r"grounding.head.layers.\1.text_attention.\2"),
        (r"decoder\.layers\.(\d+)\.cross_attn\.attn\.(.+)", r"grounding.head.layers.\1.visual_attention.\2"),
        (r"decoder\.layers\.(\d+)\.ffn\.layers\.0\.0\.(.+)", r"grounding.head.layers.\1.feed_forward.0.\2"),
        (r"decoder\.layers\.(\d+)\.ffn\.layers\.1\.(.+)", r"grounding.head.layers.\1.feed_forward.2.\2"),
        (r"decoder\.layers\.(\d+)\.norms\.(.+)", r"grounding.head.layers.\1.norms.\2"),
    ],
}


def map_key(key: str, task: OfficialTask) -> str | None:
    """Our name of a released parameter, or None without a counterpart."""
    for pattern, replacement in _RULES[task]:
        match = re.fullmatch(pattern, key)
        if match:
            return replacement(match) if callable(replacement) else match.expand(replacement)
    return None


def map_state_dict(
    state_dict: Mapping[str, torch.Tensor], task: OfficialTask
) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Released state dict -> (ours, unused released keys).

    1x1 convolutions over points become linear layers, and the scalar scales of the levels become one vector.
    """
    mapped: dict[str, torch.Tensor] = {}
    unused: list[str] = []
    scales: dict[int, torch.Tensor] = {}
    for key, value in state_dict.items():
        name = map_key(key, task)
        if name is None:
            unused.append(key)
        elif name.startswith("detection.scales."):
            scales[int(name.rsplit(".", 1)[1])] = value
        elif name.endswith((".expand.weight", ".mix.weight")):
            mapped[name] = value.squeeze(-1)
        else:
            mapped[name] = value
    if scales:
        mapped["detection.scales"] = torch.stack([scales[i] for i in range(len(scales))])
    return mapped, unused
