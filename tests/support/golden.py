"""Recorded outputs of the released EmbodiedScan code (tests/data/golden): reading them, rebuilding their weights."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from embodied_perceptron.nn.detection import DetectionHead
from embodied_perceptron.nn.official import RELEASED, OfficialTask, map_state_dict
from embodied_perceptron.nn.presets import DetectionConfig
from embodied_perceptron.sparse.tensor import SparseTensor

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden"
LEVEL_CHANNELS = (128, 256, 512, 1024)  # of the heads' inputs: backbone and images


def load_arrays(name: str) -> dict[str, torch.Tensor]:
    """All arrays of ``name.npz`` that are numbers."""
    with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as arrays:
        return {key: torch.from_numpy(np.asarray(arrays[key])) for key in arrays.files}


def load_json(name: str) -> Any:
    """Contents of ``name.json``."""
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


def recorded_weights(task: OfficialTask, wanted: Callable[[str], bool]) -> dict[str, torch.Tensor]:
    """State dict as recorded, for the released key names of ``task`` that are ``wanted``; counters are left out."""
    shapes = load_json(f"state_dict_{task}")
    chosen = {k: tuple(s) for k, s in shapes.items() if wanted(k) and not k.endswith("num_batches_tracked")}
    return {key: _weight(key, shape) for key, shape in chosen.items()}


def _weight(key: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The tensor that the recording had under a released key: drawn from a seed of the key alone, at a scale that keeps
    activations near one."""
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big")
    g = torch.Generator().manual_seed(seed)
    leaf, size = key.rsplit(".", 1)[-1], math.prod(shape)
    if leaf == "running_var":
        return 1.0 + 0.2 * torch.rand(shape, generator=g)
    if leaf == "running_mean" or leaf == "bias" or leaf.endswith("_bias"):
        return 0.1 * torch.randn(shape, generator=g)
    if leaf == "kernel":  # sparse: (Cin, Cout) or (K, Cin, Cout)
        inputs = shape[0] if len(shape) == 2 else size // shape[-1]
    elif len(shape) >= 2 and not (len(shape) == 2 and shape[0] == 1):
        inputs = size // shape[0]
    else:  # norms, also as (1, C), and scalar scales
        return 1.0 + 0.1 * torch.randn(shape, generator=g)
    return torch.randn(shape, generator=g) * math.sqrt(2.0 / inputs)


def load_recorded(module: torch.nn.Module, prefix: str, task: OfficialTask, *heads: str) -> None:
    """Load the part below ``prefix`` of our names, strictly but for batch counters."""
    weights, _ = map_state_dict(recorded_weights(task, lambda k: k.startswith(heads)), task)
    mine = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
    missing, unexpected = module.load_state_dict(mine, strict=False, assign=True)
    assert not unexpected
    assert all(k.endswith("num_batches_tracked") for k in missing)
    module.eval()


def level_inputs() -> list[SparseTensor]:
    """What the recorded heads read: features of backbone and images at each level, each times a scale."""
    sites, images, scales = load_arrays("backbone"), load_arrays("view_fusion"), load_arrays("detection_head")
    levels = []
    for i in range(4):
        points = sites[f"level{i}_feats"] * scales["point_feat_scale"][i]
        pixels = images[f"plain_l{i}_feats"] * scales["img_feat_scale"][i]
        coords, feats = sites[f"level{i}_coords"][:, 1:].long(), torch.cat([points, pixels], 1).float()
        levels.append(SparseTensor.from_coords(coords, feats, stride=8 << i))
    return levels


def detection_head() -> DetectionHead:
    """The head that was recorded, with official behaviour."""
    head = DetectionHead(LEVEL_CHANNELS, DetectionConfig(128, 400), 284, 0.01, RELEASED)
    load_recorded(head, "detection.", "detection", "bbox_head.")
    return head


def relative_error(value: torch.Tensor, reference: torch.Tensor) -> float:
    """Largest absolute difference over the largest reference magnitude; infinities must agree exactly."""
    finite = torch.isfinite(reference)
    assert torch.equal(torch.isfinite(value), finite)
    difference = (value.double() - reference.double())[finite].abs().max()
    return float(difference / reference.double()[finite].abs().max())
