"""Functions recorded as graphs, with a recorder for the CPU that keeps a CUDA graph's rules about memory."""

from __future__ import annotations

import contextlib
import copy
import logging
import pickle
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from support.small_networks import small_config, small_network

from embodied_perceptron.nn import graphed
from embodied_perceptron.nn.graphed import Graphed
from embodied_perceptron.nn.presets import RefinementConfig
from embodied_perceptron.nn.refinement import PLACE_FEATURES, Proposals, RefinementHead
from embodied_perceptron.sparse.tensor import SparseTensor


class Recorder:
    """Records like a CUDA graph: the result and the input stay where they were, and a replay reads the memory that the
    parameters had."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0

    def __call__(
        self, work: graphed.Work, warm_up: graphed.Work | None
    ) -> tuple[tuple[torch.Tensor, ...], graphed.Replay]:
        self.recorded += 1
        if warm_up is not None:
            warm_up()
        results = work()

        def replay() -> None:
            self.replayed += 1
            for result, value in zip(results, work(), strict=True):
                result.copy_(value)

        return results, replay


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        self.graph = Graphed(self._run)

    def _run(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr(graphed, "recorder", lambda device: lambda: made)
    return made


def test_results_are_those_of_the_function_and_stay(recorder: Recorder) -> None:
    layer = Layer().eval()
    inputs = [torch.randn(n, 3) for n in (4, 4, 5, 4)]
    with torch.inference_mode():
        results = [layer.graph(x) for x in inputs]
        given = [x.clone() for x in inputs]
        for x, result in zip(inputs, results, strict=True):
            torch.testing.assert_close(result, layer._run(x), rtol=0, atol=0)
    assert all(torch.equal(a, b) for a, b in zip(inputs, given, strict=True))
    assert (recorder.recorded, recorder.replayed) == (2, 4)
    with torch.no_grad():  # another copy of the weights in the same memory, as a step of training writes it
        layer.linear.weight.mul_(2.0)
    with torch.inference_mode():
        torch.testing.assert_close(layer.graph(inputs[0]), layer._run(inputs[0]), rtol=0, atol=0)
    assert recorder.recorded == 2


def test_few_shapes_are_kept_and_moving_drops_all(recorder: Recorder) -> None:
    layer = Layer().eval()
    with torch.inference_mode():
        for n in (1, 2, 3, 3, 2):
            layer.graph(torch.zeros(n, 3))
    assert recorder.recorded == 3
    assert len(layer.graph._recorded) == 2
    layer.double()
    assert not layer.graph._recorded
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert other.graph._function.__self__ is other
    with torch.inference_mode():
        assert layer.graph(torch.zeros(2, 3).double()).dtype == torch.float64


def test_shapes_in_turn_are_not_recorded_for_ever(recorder: Recorder) -> None:
    layer = Layer().eval()
    with torch.inference_mode():
        for n in (1, 2, 3) * 10:  # as of three cameras with images of different sizes
            x = torch.randn(n, 3)
            torch.testing.assert_close(layer.graph(x), layer._run(x))
        assert recorder.recorded == graphed._MOST_RECORDINGS < 30
        layer.double()
        layer.graph(torch.zeros(4, 3).double())
    assert recorder.recorded == graphed._MOST_RECORDINGS + 1


def test_a_graph_is_recorded_on_a_stream_of_the_inputs_device(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = []

    class Stream:
        def __init__(self, device: torch.device) -> None:
            self.device = device

        def wait_stream(self, other: Stream) -> None:
            assert other.device == self.device

    class Graph:
        def replay(self) -> None:
            recording.append("replay")

    @contextlib.contextmanager
    def record(graph: Graph, *, pool: str, stream: Stream, capture_error_mode: str) -> Iterator[None]:
        assert pool == "pool"
        recording.append((stream.device, capture_error_mode))
        yield

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", record)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    given = torch.ones(2, device="meta")  # any device but the current one
    warm: list[int] = []

    def warm_up() -> tuple[torch.Tensor, ...]:
        warm.append(len(recording))
        return ()

    record_work = graphed.CudaRecorder(given.device)
    (result,), replay = record_work(lambda: (given + 1,), warm_up)
    replay()
    assert result.shape == (2,)
    record_work(lambda: (given,), None)
    assert warm == [0, 0]  # before the first is recorded
    assert recording == [(given.device, "thread_local"), "replay", (given.device, "thread_local")]


def test_gradients_and_other_devices_run_the_function(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = Layer(), torch.randn(2, 3)
    layer.graph(x).sum().backward()
    assert layer.linear.weight.grad is not None
    monkeypatch.setattr(graphed, "recorder", lambda device: None)
    with torch.inference_mode():
        torch.testing.assert_close(layer.graph(x), layer._run(x))
    assert recorder.recorded == 0
    monkeypatch.undo()
    assert graphed.recorder(torch.device("cpu")) is None
    made = graphed.recorder(torch.device("cuda"))
    assert isinstance(made, partial)
    assert made.func is graphed.CudaRecorder


def test_what_cannot_be_recorded_runs_one_by_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> tuple[torch.Tensor, Callable[[], None]]:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    def full(*_: object) -> tuple[torch.Tensor, Callable[[], None]]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    layer, x = Layer().eval(), torch.randn(2, 3)
    with torch.inference_mode(), caplog.at_level(logging.WARNING):
        monkeypatch.setattr(graphed, "recorder", lambda device: lambda: full)
        with pytest.raises(torch.OutOfMemoryError):
            layer.graph(x)
        assert not layer.graph.fault
        monkeypatch.setattr(graphed, "recorder", lambda device: lambda: refuse)
        for _ in range(2):
            torch.testing.assert_close(layer.graph(x), layer._run(x))
    assert "not permitted" in layer.graph.fault
    assert len(caplog.records) == 1


@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_a_network_encodes_and_labels_the_same_with_graphs(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype | None
) -> None:
    network = small_network(small_config("all", "rgbd"))
    colors = torch.randint(0, 256, (2, 48, 80, 3), dtype=torch.uint8)
    level = SparseTensor.from_coords(torch.tensor([[0, 0, 0], [8, 8, 0]]), torch.randn(2, 8), stride=8)
    results = []
    for graphs in (recorder, None):
        monkeypatch.setattr(graphed, "recorder", lambda device, graphs=graphs: graphs and (lambda: graphs))
        with torch.inference_mode():
            maps = network.encode_images(colors, dtype=dtype)
            grid = level.dense((0, 0, 0), (8, 8, 4))
            results.append([*maps, network.occupancy.finest(grid)])
    assert recorder.recorded == 2
    for ours, theirs in zip(*results, strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, rtol=1e-3 if dtype else 0, atol=1e-3 if dtype else 0)


def test_refinement_pads_its_boxes_to_one_shape(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    config = RefinementConfig(channels=4, hidden_channels=8)
    head = RefinementHead(config, (3, 5), 2).eval()
    sources = torch.randn(20, 3), torch.randn(9, 5)
    for count in (0, 1, 7, config.things):
        rows = torch.randint(-1, 9, (count, config.cells**3, 2), dtype=torch.int32)
        given = Proposals(
            torch.zeros(count, 9), torch.randn(count, 2), torch.randn(count, PLACE_FEATURES), rows, sources
        )
        found = []
        for graphs in (recorder, None):
            monkeypatch.setattr(graphed, "recorder", lambda device, graphs=graphs: graphs and (lambda: graphs))
            with torch.inference_mode():
                found.append(head(given))
        torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)
    assert recorder.recorded == 1


class Learner(torch.nn.Module):
    """Running statistics, a parameter that is not reached, an input without gradient, results of which one has none."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        self.norm = torch.nn.BatchNorm1d(2)
        self.unused = torch.nn.Linear(3, 2)
        self.graph = Graphed(self._run, trains=True)

    def _run(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.norm(self.linear(x)).tanh() * mask[:, None]
        return y, (y > 0).sum()


@pytest.mark.parametrize("precision", [None, torch.bfloat16])
def test_recorded_steps_of_training_learn_the_same(recorder: Recorder, precision: torch.dtype | None) -> None:
    torch.manual_seed(0)
    ours = Learner()
    theirs = copy.deepcopy(ours)
    batches = [(torch.randn(5, 3), torch.rand(5) > 0.3) for _ in range(6)]
    for i in range(0, 6, 2):
        for learner, function in ((ours, ours.graph), (theirs, theirs._run)):
            optimiser = torch.optim.SGD(learner.parameters(), lr=0.1)
            optimiser.zero_grad()
            for x, mask in batches[i : i + 2]:  # gradients accumulate
                given = x.clone().requires_grad_()
                with torch.autocast("cpu", precision, enabled=precision is not None):
                    y, positive = function(given, mask)
                assert not positive.requires_grad
                y.float().square().sum().backward()
                learner.seen = given.grad  # type: ignore[assignment]
            optimiser.step()
        torch.testing.assert_close(ours.seen, theirs.seen)
    assert recorder.recorded == 2  # forward and backward
    for (name, a), (_, b) in zip(ours.state_dict().items(), theirs.state_dict().items(), strict=True):
        torch.testing.assert_close(a, b, msg=name)
    assert ours.unused.weight.grad is None


def test_a_second_call_before_the_backward_pass_is_not_replayed(recorder: Recorder) -> None:
    """It would write over what the first has stored."""
    layer, mask = Learner(), torch.ones(4)
    first, second = torch.randn(4, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    every = layer.graph(first, mask)[0].sum() + 2 * layer.graph(second, mask)[0].square().sum()
    assert recorder.replayed == 1
    every.backward()
    twin = copy.deepcopy(layer)
    a, b = (x.detach().clone().requires_grad_() for x in (first, second))
    (twin._run(a, mask)[0].sum() + 2 * twin._run(b, mask)[0].square().sum()).backward()
    torch.testing.assert_close((first.grad, second.grad), (a.grad, b.grad))
    layer.graph(first, mask)  # no backward pass follows
    layer.graph(second, mask)
    assert recorder.replayed == 4


def test_only_training_with_gradients_is_recorded_beside_inference(recorder: Recorder) -> None:
    x, mask = torch.randn(4, 3), torch.ones(4)
    layer = Learner().eval()
    layer.graph(x, mask)
    layer.train().requires_grad_(False).graph(x, mask)
    with torch.no_grad():
        layer.graph(x, mask)
    assert recorder.recorded == 0
