"""Access to the recorded inputs and outputs of the released EmbodiedScan code."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch


def load_golden(golden_dir: Path, name: str) -> dict[str, np.ndarray]:
    """All arrays of ``name``.npz."""
    with np.load(golden_dir / f"{name}.npz") as arrays:
        return {key: arrays[key] for key in arrays.files}


def golden_weights(golden_dir: Path, state: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """Weights that the folder's rule makes for a module whose keys in the full model start with ``prefix``."""
    spec = importlib.util.spec_from_file_location("weight_rule", golden_dir / "weight_rule.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.make_weights({prefix + key: value.shape for key, value in state.items()})
    # counters are not part of the rule
    return {key: made.get(prefix + key, value) for key, value in state.items()}


def relative_error(value: torch.Tensor, expected: np.ndarray) -> float:
    """Largest difference relative to the largest expected magnitude."""
    assert value.shape == expected.shape, (value.shape, expected.shape)
    if not expected.size:
        return 0.0
    difference = np.abs(value.detach().cpu().numpy().astype(np.float64) - expected).max()
    return float(difference / max(float(np.abs(expected).max()), 1e-12))
