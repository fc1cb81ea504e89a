"""Functions of tensors that a CUDA device runs as one graph: one launch instead of one for every operation."""

from __future__ import annotations

import inspect
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

log = logging.getLogger(__name__)
Function = Callable[[Tensor], Tensor]
Replay = Callable[[], None]
_MOST_SHAPES = 2  # of one function at a time
_MOST_RECORDINGS = 8  # of one function: recording takes longer than many calls, so more shapes in turn run as they are


def capture_cuda(function: Function, given: Tensor) -> tuple[Tensor, Replay]:
    """Record ``function(given)``; returns its result and a call that computes it anew from the present ``given``."""
    side = torch.cuda.Stream(given.device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(given.device))
    with torch.cuda.stream(side):
        for _ in range(2):  # libraries choose their algorithms and allocate workspaces
            function(given)
    torch.cuda.current_stream(given.device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    # torch's default stream for recording has one device and serves all threads; these may run on meanwhile
    with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
        result = function(given)
    return result, graph.replay


def recorder(device: torch.device) -> Callable[[Function, Tensor], tuple[Tensor, Replay]] | None:
    """Return :func:`capture_cuda` for CUDA devices, None for others. Tests replace it by a recorder for the CPU."""
    return capture_cuda if device.type == "cuda" else None


class Graphed(nn.Module):
    """Run a function of one tensor as a graph where the device can record it, and as it is elsewhere.

    A graph is recorded at the first call with a shape, in inference mode only, for a few shapes. The function's
    operations and shapes may depend on the shape of its input, not on its values. Results are copies, so
    that the next call leaves them alone. Moving the module to another device drops the graphs, which point to the old
    parameters, and their memory.

    Attributes:
        fault: why recording failed; it is not tried again.
    """

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.fault = ""
        # an owner that holds its graph must not be held by it: a network is freed as soon as nobody uses it
        self._held = weakref.WeakMethod(function) if inspect.ismethod(function) else lambda: function
        self._lock = threading.Lock()  # held while launching, not while the device computes
        self._recorded: dict[tuple[Any, ...], tuple[Tensor, Tensor, Replay]] = {}
        self._recordings = 0

    @property
    def _function(self) -> Function:
        function = self._held()
        assert function is not None  # its caller holds the owner
        return function

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles are without the graphs; the function is that of the copied owner."""
        return Graphed, (self._function,)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Graphed:
        with self._lock:
            self._recorded.clear()
            self._recordings = 0
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def records(self, device: torch.device) -> bool:
        """Whether the next call on this device is a graph's, unless recording fails."""
        return torch.is_inference_mode_enabled() and not self.fault and recorder(device) is not None

    def forward(self, given: Tensor) -> Tensor:
        """``function(given)``; errors are those of the function."""
        capture = recorder(given.device) if self.records(given.device) else None
        if capture is None:
            return self._function(given)
        key = given.shape, given.dtype, given.device, torch.is_autocast_enabled(given.device.type)
        with self._lock:
            if key not in self._recorded and self._recordings < _MOST_RECORDINGS:
                self._recordings += 1
                while len(self._recorded) >= _MOST_SHAPES:
                    del self._recorded[next(iter(self._recorded))]
                own = given.clone()
                try:
                    self._recorded[key] = (own, *capture(self._function, own))
                except torch.OutOfMemoryError:
                    raise
                except RuntimeError as error:
                    self.fault = " ".join(str(error).strip().splitlines()[:1])
                    log.warning("no CUDA graph can be recorded (%s): operations run one by one", self.fault)
            if key in self._recorded:
                own, result, replay = self._recorded[key]
                own.copy_(given)
                replay()
                return result.clone()
        return self._function(given)
