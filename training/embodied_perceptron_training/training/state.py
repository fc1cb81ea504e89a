"""The state of an interrupted training in one safetensors file: tensors and JSON, no pickle.

Names inside: ``model/...``, ``average/...`` (state dicts), ``optimizer/<index>/<key>``; everything else is in the
header.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from embodied_perceptron.recordings.files import atomic_path
from embodied_perceptron.weights.checkpoint import CheckpointError, read_tensors

FORMAT = "embodied_perceptron.training"
VERSION = 1


@dataclass
class Counters:
    """Progress of a training."""

    step: int = 0  # optimiser steps done, skipped ones included
    position: int = 0  # samples seen by all processes
    elapsed_s: float = 0.0  # wall clock, without pauses between interruption and resume
    waited_s: float = 0.0  # of that, for data
    validations: int = 0  # done
    best: float | None = None  # the best figure so far
    skipped: int = 0  # steps that were not finite
    bad_in_a_row: int = 0  # consecutive ones, up to now
    corrupt: int = 0  # skipped samples
    corrupt_epoch: int = 0  # epoch of the next
    corrupt_names: list[str] = field(default_factory=list)  # its different corrupt samples
    sums: dict[str, float] = field(default_factory=dict)  # of the losses in the log's current line
    counts: dict[str, int] = field(default_factory=dict)  # steps of the line with each loss
    summed: int = 0  # steps in the line, of states that were written before there were counts
    average_updates: int = 0  # of the averaged weights
    finished: bool = False  # the training is complete


def save_state(
    path: Path,
    counters: Counters,
    model: nn.Module,
    average: nn.Module,
    optimizer: Optimizer,
    scaler: dict[str, Any] | None = None,
) -> None:
    """Write atomically. Raises ``OSError`` when it cannot be written (for example on a full disk); the old file is
    kept."""
    tensors: dict[str, Tensor] = {}
    for prefix, module in (("model", model), ("average", average)):
        tensors.update({f"{prefix}/{k}": v for k, v in module.state_dict().items()})
    stored = optimizer.state_dict()
    plain: dict[str, dict[str, Any]] = {}
    for index, values in stored["state"].items():
        for key, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer/{index}/{key}"] = value
            else:
                plain.setdefault(str(index), {})[key] = value
    header = {
        "counters": dataclasses.asdict(counters),
        "parameters": optimized_names(model, optimizer),
        "optimizer": plain,
        "scaler": scaler,
    }
    metadata = {"format": FORMAT, "version": str(VERSION), "header": json.dumps(header)}
    # clones, because tensors that share memory (tied weights) cannot be written otherwise
    whole = {k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}
    with atomic_path(path) as temporary:
        try:
            save_file(whole, str(temporary), metadata=metadata)
        except SafetensorError as error:
            raise OSError(f"{path} cannot be written: {error}") from error


def load_state(
    path: Path, model: nn.Module, average: nn.Module, optimizer: Optimizer
) -> tuple[Counters, dict[str, Any] | None]:
    """Restore the state; returns the counters and the gradient scaler's state.

    Raises ``CheckpointError`` when the file is damaged or belongs to another network.
    """
    tensors, metadata = _read(path)
    header = json.loads(metadata["header"])
    if header["parameters"] != optimized_names(model, optimizer):
        raise CheckpointError(f"{path} belongs to another network: the trained parameters differ")
    for prefix, module in (("model", model), ("average", average)):
        state = {k.removeprefix(f"{prefix}/"): v for k, v in tensors.items() if k.startswith(f"{prefix}/")}
        try:
            module.load_state_dict(state)
        except RuntimeError as error:
            raise CheckpointError(f"{path} belongs to another network: {error}") from error
    moments: dict[int, dict[str, Any]] = {int(i): dict(values) for i, values in header["optimizer"].items()}
    for name, value in tensors.items():
        if name.startswith("optimizer/"):
            _, index, key = name.split("/", 2)
            moments.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
    return Counters(**header["counters"]), header["scaler"]


def model_state(path: Path) -> dict[str, Tensor]:
    """The state of the model in a file of :func:`save_state`. Raises ``CheckpointError`` when the file is damaged."""
    return {k.removeprefix("model/"): v for k, v in _read(path)[0].items() if k.startswith("model/")}


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    tensors, metadata = read_tensors(path)
    if (metadata.get("format"), metadata.get("version")) != (FORMAT, str(VERSION)):
        raise CheckpointError(
            f"{path} is no training state of version {VERSION}: {metadata.get('format')!r} {metadata.get('version')!r}"
        )
    return tensors, metadata


def optimized_names(model: nn.Module, optimizer: Optimizer) -> list[str]:
    """Names of the optimiser's parameters, in its order."""
    names = {id(p): name for name, p in model.named_parameters()}
    return [names[id(p)] for group in optimizer.param_groups for p in group["params"]]


def torch_seed(seed: int, step: int, rank: int) -> int:
    """Seed of a step, well mixed, so that neighbouring steps are independent."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0] >> 1)


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed torch (all devices) for one step."""
    torch.manual_seed(torch_seed(seed, step, rank))
