"""Averaged weights: what is validated and deployed."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


class AveragedModel:
    """An exponential moving average of parameters and of floating-point buffers; other buffers are copied.

    The decay rises with the number of updates, ``min(decay, (1 + n) / (10 + n))``, so that the first weights are
    forgotten soon.

    Attributes:
        model: the averaged copy, in evaluation mode, without gradients.
        updates: how many there were.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay
        self.updates = 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move towards ``model``."""
        self.updates += 1
        weight = 1.0 - min(self.decay, (1 + self.updates) / (10 + self.updates)) if self.decay else 1.0
        mine: list[Tensor] = []
        theirs: list[Tensor] = []
        copied: list[Tensor] = []
        sources: list[Tensor] = []
        for own, other in zip(_tensors(self.model), _tensors(model), strict=True):
            if own.is_floating_point() and weight < 1.0:
                mine.append(own)
                theirs.append(other)
            else:
                copied.append(own)
                sources.append(other)
        if mine:
            torch._foreach_lerp_(mine, theirs, weight)
        if copied:
            torch._foreach_copy_(copied, sources)


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*(p.detach() for p in model.parameters()), *model.buffers()]
