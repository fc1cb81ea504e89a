"""Functions of tensors that a CUDA device runs as one graph: one launch instead of one for every operation."""

from __future__ import annotations

import contextlib
import inspect
import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

log = logging.getLogger(__name__)
Function = Callable[..., Any]  # of tensors, to a tensor or a tuple of tensors
Work = Callable[[], tuple[Tensor, ...]]
Replay = Callable[[], None]
Recorder = Callable[[Work, Work | None], tuple[tuple[Tensor, ...], Replay]]
_MOST_SHAPES = 2  # of one function at a time
_MOST_RECORDINGS = 8  # of one function: recording takes longer than many calls, so more shapes in turn run as they are


class CudaRecorder:
    """Records work as CUDA graphs, on one stream and in one pool of memory: a backward pass reads what its forward pass
    has stored."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Work, warm_up: Work | None) -> tuple[tuple[Tensor, ...], Replay]:
        """Results of the recorded work, and a call that computes them anew in the same memory. ``warm_up`` runs first,
        so that libraries choose their algorithms and allocate workspaces."""
        current = torch.cuda.current_stream(self._device)
        self._side.wait_stream(current)
        with torch.cuda.stream(self._side):
            for _ in range(0 if warm_up is None else 2):
                warm_up()  # type: ignore[misc]
        current.wait_stream(self._side)
        graph = torch.cuda.CUDAGraph()
        # torch's default stream for recording has one device and serves all threads; these may run on meanwhile
        with torch.cuda.graph(graph, pool=self._pool, stream=self._side, capture_error_mode="thread_local"):
            results = work()
        return results, graph.replay


def recorder(device: torch.device) -> Callable[[], Recorder] | None:
    """Return the maker of a :class:`CudaRecorder` for CUDA devices, None for others. Tests replace it by one for the
    CPU."""
    return partial(CudaRecorder, device) if device.type == "cuda" else None


def _copy(into: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy tensors, those of one precision together."""
    for dtype in dict.fromkeys(t.dtype for t in into):
        pairs = [(a, b) for a, b in zip(into, values, strict=True) if a.dtype == dtype]
        torch._foreach_copy_([a for a, _ in pairs], [b for _, b in pairs])


def _copied(values: Sequence[Tensor]) -> tuple[Tensor, ...]:
    fresh = tuple(torch.empty_like(value) for value in values)
    _copy(fresh, values)
    return fresh


class _Token:
    """Lives as long as the backward pass of a replay is to come."""


class _Recording:
    """A recorded function for inputs of one shape, and with ``learns`` its backward pass.

    Attributes:
        learned: numbers of the results that have gradients.
        reached: numbers of the inputs and parameters that get some.
    """

    def __init__(self, function: Function, given: Sequence[Tensor], owner: object, learns: bool, record: Recorder):
        own = tuple(owner.parameters()) if learns and isinstance(owner, nn.Module) else ()
        self.parameters: tuple[Tensor, ...] = tuple(p for p in own if p.requires_grad)
        self._function, self._learns = function, learns
        self._given = tuple(g.detach().clone().requires_grad_(learns and g.requires_grad) for g in given)
        self.learned: list[int] = []
        self.reached: list[int] = []
        self._by: tuple[Tensor, ...] = ()
        self._token: Callable[[], _Token | None] = lambda: None
        buffers = list(owner.buffers()) if learns and isinstance(owner, nn.Module) else []
        before = [b.clone() for b in buffers]  # of running statistics, which recording changes
        self._results, self._replay = record(self._forward, self._both)
        if learns:
            self._by = tuple(torch.zeros_like(self._results[i]) for i in self.learned)
            self._gradients, self._replay_back = record(self._backward, None)
            _copy(buffers, before)

    @property
    def is_busy(self) -> bool:
        """Whether a backward pass still needs what the last replay has stored."""
        return self._token() is not None

    def _forward(self) -> tuple[Tensor, ...]:
        kind = self._given[0].device.type
        autocast: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if self._learns and torch.is_autocast_enabled(kind):  # a cache of weights would stay in the graph
            autocast = torch.autocast(kind, torch.get_autocast_dtype(kind), cache_enabled=False)
        with autocast, torch.enable_grad() if self._learns else contextlib.nullcontext():
            found = self._function(*self._given)
        self._outputs: tuple[Tensor, ...] = (found,) if isinstance(found, Tensor) else tuple(found)
        self.learned = [i for i, x in enumerate(self._outputs) if x.requires_grad]
        return tuple(x.detach() for x in self._outputs)

    def _backward(self) -> tuple[Tensor, ...]:
        every = [*self._given, *self.parameters]
        wanted = [i for i, x in enumerate(every) if x.requires_grad]
        with torch.autocast(self._given[0].device.type, enabled=False):
            found = torch.autograd.grad(
                [self._outputs[i] for i in self.learned], [every[i] for i in wanted], self._by,
                allow_unused=True, retain_graph=True,
            )  # fmt: skip
        self.reached = [i for i, gradient in zip(wanted, found, strict=True) if gradient is not None]
        return tuple(gradient for gradient in found if gradient is not None)

    def _both(self) -> tuple[Tensor, ...]:
        results = self._forward()
        if self._learns:
            self._by = tuple(torch.zeros_like(results[i]) for i in self.learned)
            self._backward()
        return results

    def run(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        _copy(self._given, given)
        self._replay()
        return _copied(self._results)

    def learn(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        results: tuple[Tensor, ...] = _Replayed.apply(self, *given, *self.parameters)  # type: ignore[no-untyped-call]
        return results

    def run_backward(self, by: Sequence[Tensor]) -> tuple[Tensor, ...]:
        _copy(self._by, by)
        self._replay_back()
        return _copied(self._gradients)

    def hold(self) -> _Token:
        """Keep what the replay has stored as long as the returned token lives."""
        token = _Token()
        self._token = weakref.ref(token)
        return token


class _Replayed(torch.autograd.Function):
    """:meth:`_Recording.learn`; the last inputs are the parameters."""

    @staticmethod
    def forward(ctx: Any, recording: _Recording, *tensors: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            results = recording.run(tensors[: len(tensors) - len(recording.parameters)])
        ctx.recording, ctx.number, ctx.token = recording, len(tensors), recording.hold()
        ctx.mark_non_differentiable(*(x for i, x in enumerate(results) if i not in recording.learned))
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *by: Tensor) -> tuple[Tensor | None, ...]:
        recording: _Recording = ctx.recording
        found = dict(zip(recording.reached, recording.run_backward([by[i] for i in recording.learned]), strict=True))
        ctx.token = None
        return (None, *(found.get(i) for i in range(ctx.number)))


def _may_learn(given: Sequence[Tensor], owner: object) -> bool:
    own = owner.parameters() if isinstance(owner, nn.Module) and owner.training else ()
    return any(x.requires_grad for x in (*given, *own))


class Graphed(nn.Module):
    """Run a function of one tensor as a graph where the device can record it, and as it is elsewhere.

    A graph is recorded at the first call with shapes, for a few of them: in inference mode, and with ``trains`` also in
    training with gradients, together with its backward pass. The function's operations and shapes may depend on the
    shapes of its inputs, not on their values. Results and gradients are copies, so that the next call leaves them
    alone. Moving the module to another device drops the graphs, which point to the old parameters, and their memory.

    Args:
        function: a method of a module, whose parameters learn, or a function without parameters.
        trains: record training too.

    Attributes:
        fault: why recording failed; it is not tried again.
    """

    def __init__(self, function: Function, trains: bool = False) -> None:
        super().__init__()
        self.fault = ""
        self.trains = trains
        # an owner that holds its graph must not be held by it: a network is freed as soon as nobody uses it
        self._held = weakref.WeakMethod(function) if inspect.ismethod(function) else lambda: function
        self._lock = threading.Lock()  # held while launching, not while the device computes
        self._recorded: dict[tuple[Any, ...], _Recording] = {}
        self._recordings = 0

    @property
    def _function(self) -> Function:
        function = self._held()
        assert function is not None  # its caller holds the owner
        return function

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles are without the graphs; the function is that of the copied owner."""
        return Graphed, (self._function, self.trains)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Graphed:
        with self._lock:
            self._recorded.clear()
            self._recordings = 0
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def records(self, device: torch.device) -> bool:
        """Whether the next call on this device is a graph's, unless recording fails."""
        called = torch.is_inference_mode_enabled() or (self.trains and torch.is_grad_enabled())
        return called and not self.fault and recorder(device) is not None

    def forward(self, *given: Tensor) -> Any:
        """``function(*given)``; errors are those of the function."""
        device, function = given[0].device, self._function
        owner, learns = getattr(function, "__self__", None), torch.is_grad_enabled()
        capture = recorder(device) if self.records(device) else None
        if capture is None or (learns and not _may_learn(given, owner)):
            return function(*given)
        precision = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
        mode = device, precision, learns, getattr(owner, "training", False)
        key = *mode, *((g.shape, g.dtype, learns and g.requires_grad) for g in given)
        with self._lock:
            if key not in self._recorded and self._recordings < _MOST_RECORDINGS:
                self._recordings += 1
                while len(self._recorded) >= _MOST_SHAPES:
                    del self._recorded[next(iter(self._recorded))]
                try:
                    self._recorded[key] = _Recording(function, given, owner, learns, capture())
                except torch.OutOfMemoryError:
                    raise
                except RuntimeError as error:
                    self.fault = " ".join(str(error).strip().splitlines()[:1])
                    log.warning("no CUDA graph can be recorded (%s): operations run one by one", self.fault)
            known = self._recorded.get(key)
            if known is not None and not known.is_busy:
                results = known.learn(given) if learns else known.run(given)
                return results if len(results) > 1 else results[0]
        return function(*given)
