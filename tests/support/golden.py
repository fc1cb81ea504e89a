"""Recorded outputs of the released EmbodiedScan code: how to read them and rebuild their weights."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch


def load_arrays(golden_dir: Path, name: str) -> dict[str, torch.Tensor]:
    """All arrays of ``name.npz`` as tensors."""
    with np.load(golden_dir / f"{name}.npz", allow_pickle=False) as arrays:
        return {key: torch.from_numpy(np.asarray(arrays[key])) for key in arrays.files}


def recorded_weights(golden_dir: Path, keys_file: str, wanted: Callable[[str], bool]) -> dict[str, torch.Tensor]:
    """State dict under the recorded rule, for the released key names that are ``wanted``; counters are left out."""
    spec = importlib.util.spec_from_file_location("weight_rule", golden_dir / "weight_rule.py")
    assert spec is not None
    assert spec.loader is not None
    rule = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rule)
    shapes = json.loads((golden_dir / keys_file).read_text())
    weights: dict[str, torch.Tensor] = rule.make_weights({k: s for k, s in shapes.items() if wanted(k)})
    return weights


def relative_error(value: torch.Tensor, reference: torch.Tensor) -> float:
    """Largest absolute difference over the largest reference magnitude; infinities must agree exactly."""
    finite = torch.isfinite(reference)
    assert torch.equal(torch.isfinite(value), finite)
    difference = (value.double() - reference.double())[finite].abs().max()
    return float(difference / reference.double()[finite].abs().max())
