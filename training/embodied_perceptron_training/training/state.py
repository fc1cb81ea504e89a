"""The whole state of an interrupted training in one safetensors file: tensors and JSON, no pickle.

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
    """Where a training stands.

    Attributes:
        step: optimiser steps done, skipped ones among them.
        position: samples that all processes had.
        elapsed_s: wall clock, without pauses between interruption and resume.
        waited_s: of that, for data.
        validations: done.
        best: the best figure so far, None before the first.
        skipped, bad_in_a_row: steps that were not finite.
        corrupt: samples skipped altogether.
        corrupt_epoch, corrupt_names: the epoch they are counted in, and its different corrupt samples.
        sums, counts: of the log's current line: losses, and in how many of its steps each of them occurred.
        average_updates: of the averaged weights.
        finished: nothing is left to do.
    """

    step: int = 0
    position: int = 0
    elapsed_s: float = 0.0
    waited_s: float = 0.0
    validations: int = 0
    best: float | None = None
    skipped: int = 0
    bad_in_a_row: int = 0
    corrupt: int = 0
    corrupt_epoch: int = 0
    corrupt_names: list[str] = field(default_factory=list)
    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    summed: int = 0  # steps in the line, of states that were written before there were counts
    average_updates: int = 0
    finished: bool = False


def save_state(
    path: Path,
    counters: Counters,
    model: nn.Module,
    average: nn.Module,
    optimizer: Optimizer,
    scaler: dict[str, Any] | None = None,
) -> None:
    """Write atomically. Raises ``OSError`` when it cannot be written (a full disk, say); the old file then stays."""
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
    """Put the state back; returns the counters and the gradient scaler's state.

    Raises ``CheckpointError`` when the file is damaged or belongs to another network.
    """
    tensors, metadata = read_tensors(path)
    if (metadata.get("format"), metadata.get("version")) != (FORMAT, str(VERSION)):
        raise CheckpointError(
            f"{path} is no training state of version {VERSION}: {metadata.get('format')!r} {metadata.get('version')!r}"
        )
    header = json.loads(metadata["header"])
    if header["parameters"] != optimized_names(model, optimizer):
        raise CheckpointError(f"{path} belongs to another network: the parameters that learn are not the same")
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


def optimized_names(model: nn.Module, optimizer: Optimizer) -> list[str]:
    """Names of the optimiser's parameters, in its order."""
    names = {id(p): name for name, p in model.named_parameters()}
    return [names[id(p)] for group in optimizer.param_groups for p in group["params"]]


def torch_seed(seed: int, step: int, rank: int) -> int:
    """Of a step's dropout and the like: well mixed, so that neighbouring steps share nothing."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0] >> 1)


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed torch (all devices) for one step."""
    torch.manual_seed(torch_seed(seed, step, rank))
