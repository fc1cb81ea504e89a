"""A training task of numbers: a small network with a batch norm and dropout learns a line."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from embodied_perceptron_training.training.criteria import Losses, OccupancyCriterion, Reduce
from embodied_perceptron_training.training.task import SampleError

TRUTH = torch.tensor([1.0, -2.0, 0.5])


class ToySamples:
    """Noisy points; each sample is a scene of a varying number of them, as scenes have varying numbers of objects."""

    def __init__(self, count: int = 40, corrupt: Sequence[int] = (), poisoned: Sequence[int] = ()) -> None:
        self.count, self.corrupt, self.poisoned = count, set(corrupt), set(poisoned)

    def __len__(self) -> int:
        return self.count

    def sample(self, index: int, rng: np.random.Generator) -> dict[str, Tensor]:
        if index in self.corrupt:
            raise SampleError(f"scene {index}", "its depth image is missing")
        fixed = np.random.default_rng(index)
        x = fixed.normal(size=(1 + index % 5, 3)) + rng.normal(scale=0.1, size=(1, 3))  # points, augmentation
        if index in self.poisoned:
            x[:] = np.nan
        inputs = torch.from_numpy(x).float()
        return {"x": inputs, "y": inputs @ TRUTH + 1.0, "index": torch.tensor(index)}


class ToyNetwork(nn.Module):
    def __init__(self, dropout: float = 0.0, classes: int = 0) -> None:
        super().__init__()
        self.classify = nn.Linear(3, classes) if classes else None
        self.hidden = nn.Linear(3, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(dropout)
        self.out = nn.Linear(16, 1)
        self.unused = nn.Linear(2, 2)  # as the heads that a batch does not reach
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)

    def run(self, x: Tensor) -> Tensor:
        return self.out(self.drop(torch.tanh(self.norm(self.hidden(x)))))[:, 0]


class ToyTask:
    best_metric = "score"

    """``classes``: also name each point's class, learned by losses that are no sums over points."""

    def __init__(
        self, seed: int = 0, dropout: float = 0.0, signal_at: int = 0, classes: int = 0, **samples: Any
    ) -> None:
        torch.manual_seed(seed)
        self.model: nn.Module = ToyNetwork(dropout, classes)
        self.samples = ToySamples(**samples)
        self.seen: list[list[int]] = []
        self.signal_at = signal_at

    def collate(self, samples: Sequence[Any]) -> dict[str, Any]:
        return {
            "x": torch.cat([s["x"] for s in samples]),
            "y": torch.cat([s["y"] for s in samples]),
            "indices": [int(s["index"]) for s in samples],
        }

    def losses(self, model: nn.Module, batch: Any, reduce: Reduce) -> Losses:
        assert isinstance(model, ToyNetwork)
        self.seen.append(batch["indices"])
        if len(self.seen) == self.signal_at:
            os.kill(os.getpid(), signal.SIGTERM)
        errors = model.run(batch["x"]) - batch["y"]
        norm = reduce(torch.tensor(float(len(errors))))
        losses = {"square": (errors**2).sum() / norm, "absolute": 0.1 * errors.abs().sum() / norm}
        if model.classify is not None:
            logits = model.classify(batch["x"]).T[None, :, :, None, None]  # (1, C, N, 1, 1)
            labels = batch["y"].nan_to_num().long().clamp(0, logits.shape[1] - 1)[None, :, None, None]
            losses |= OccupancyCriterion()([logits], [labels], reduce)
        return losses

    def validate(self, model: nn.Module) -> dict[str, float]:
        assert isinstance(model, ToyNetwork)
        assert not model.training
        x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            error = ((model.run(x) - x @ TRUTH - 1.0) ** 2).mean()
        return {"score": -float(error)}

    def save_weights(self, path: Path, model: nn.Module, extra: Mapping[str, Any]) -> None:
        save_file(model.state_dict(), str(path), metadata={"step": str(extra["step"])})
