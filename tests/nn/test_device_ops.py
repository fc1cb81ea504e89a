"""What a GPU is asked for, by module: bounds on ``benchmarks/device_ops.py``, what it counts, and the same answers.

A bound may be lowered with the code. Raising one means that a perception on a GPU gets slower: look at the table that
the benchmark prints first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from support.fake_gpu import fake_gpu
from support.volume_frames import needs_warp

from embodied_perceptron.config import NetworkOptions, PerceptronConfig
from embodied_perceptron.geometry.compute_path import device_path, runs_compiled
from embodied_perceptron.geometry.transforms import make_transform
from embodied_perceptron.inference.loading import load_inference
from embodied_perceptron.mapping.volume import FeatureVolume
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.sensors.frame import PosedFrame
from embodied_perceptron_training.training import optimization

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

# (operations, waits) of a module at most; of one that is not named: SMALL
SMALL = (12, 0)
PERCEIVE = {
    "nn/backbone.py": (44, 0),
    "nn/refinement.py": (44, 1),
    "nn/detection.py": (42, 1),
    "sparse/tensor.py": (40, 0),
    "sparse/engine.py": (25, 0),
    "nn/view_fusion.py": (25, 0),
    "sparse/sites.py": (24, 1),
    "geometry/compute_path.py": (20, 0),  # kernels in Warp
    "geometry/transforms.py": (17, 0),
    "mapping/warp_map.py": (12, 1),
}
INTEGRATE = {
    "geometry/compute_path.py": (7, 0),
    "nn/graphed.py": (4, 0),
}
TOTAL = (330, 4)  # of a perception; the host reads the map, the number of sites, the candidates and the scores
KEYFRAME_TOTAL = (20, 0)
# of a training step, however many scenes it has; the host reads: the sizes of the coarser sets; what each of three
# prunings keeps, at once; the boxes that suppression is handed; and last the losses and the gradient's norm
TRAIN_STEP = (1290, 4)
TRAIN_WAITS = {"sparse/sites.py": 1, "sparse/tensor.py": 1, "nn/grounding.py": 1, "training/trainer.py": 1}
# of a step of paper's grounding; the host matches queries with boxes, those of all layers and sentences at once
PAPER_GROUNDING_STEP = (6060, 6)
PAPER_GROUNDING_WAITS = {"sparse/sites.py": 4, "training/criteria.py": 1, "training/trainer.py": 1}


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import device_ops
    finally:
        sys.path.remove(str(BENCHMARKS))
    return device_ops


@needs_warp
def test_a_look_and_a_keyframe_ask_for_no_more(bench: ModuleType) -> None:
    counts = bench.look_and_keyframe()
    for count, (operations, waits) in zip(counts, (TOTAL, KEYFRAME_TOTAL), strict=True):
        assert count.operations.total() <= operations
        assert count.waits.total() <= waits
    for count, bounds in zip(counts, (PERCEIVE, INTEGRATE), strict=True):
        for module, row in count.row()["by_module"].items():
            operations, waits = bounds.get(module, SMALL)
            assert row["operations"] <= operations, module
            assert row["waits"] <= waits, module
        assert set(bounds) <= set(count.row()["by_module"])  # the path of devices was taken


@needs_warp
def test_a_look_on_a_device_is_that_of_the_cpu(bench: ModuleType) -> None:
    """Two rooms, walls askew: what is fused, boxes, cells, and the map that is copied."""
    again, every_frame = bench.again, bench.every_frame

    c, s = np.cos(0.2), np.sin(0.2)
    turn = make_transform(np.array([[c, -s, 0], [s, c, 0], [0, 0, 1.0]]), np.zeros(3))
    looks = []
    for path in (contextlib.nullcontext, device_path):
        with path():
            inference = load_inference("tiny", "cpu")
        config = PerceptronConfig(keyframes=every_frame(5), network=NetworkOptions(weights="tiny"))
        kernels = "warp" if looks else "numba"
        volume = FeatureVolume(config.volume, config.keyframes, features=inference.image_features(), kernels=kernels)
        it = Perceptron(config, volume, inference)
        with path():
            for i, frame in enumerate(bench.two_rooms()[:7]):
                moved = PosedFrame(frame.frame, turn @ frame.T_world_camera)
                report = it.integrate(again(moved, 200_000_000 * (i + 1)))
            looks.append((report, it.perceive(), it.prediction))
    (report, seen, here), (same, also, there) = looks
    assert dataclasses.replace(report, stage_ms={}) == dataclasses.replace(same, stage_ms={})
    assert here.parts[0].scene.manhattan.yaw_rad != 0
    assert len(here.detections) > 20
    assert here.detections.labels == there.detections.labels
    np.testing.assert_allclose(there.detections.boxes, here.detections.boxes, atol=1e-4)
    np.testing.assert_allclose(there.detections.scores, here.detections.scores, atol=1e-4)
    np.testing.assert_array_equal(there.semantic.centers_m, here.semantic.centers_m)
    assert (there.semantic.labels == here.semantic.labels).mean() > 0.999
    np.testing.assert_array_equal(there.semantic.color, here.semantic.color)
    np.testing.assert_array_equal(also.voxels.coords, seen.voxels.coords)
    np.testing.assert_array_equal(also.voxels.last_seen_ns, seen.voxels.last_seen_ns)
    np.testing.assert_array_equal(also.voxels.mean_color, seen.voxels.mean_color)


def test_features_of_single_objects_are_read_in_one_transfer_a_keyframe(bench: ModuleType) -> None:
    looks = []
    for path in (contextlib.nullcontext, device_path):
        with path():
            features = load_inference("tiny", "cpu").image_features()
            volume = FeatureVolume(None, bench.every_frame(5), features=features)
            for i, frame in enumerate(bench.two_rooms()[:2]):
                volume.integrate(bench.again(frame, 200_000_000 * (i + 1)))
            points_m = volume.snapshot(1).mean_point_m[::200].astype(np.float64)
            for keyframe in volume.keyframes:
                features.view(keyframe)
            with bench.OperationCount() as count:
                looks.append([features.look(p[None], k) for k in volume.keyframes for p in points_m])
    assert count.waits.total() == len(volume.keyframes)
    assert any(seen.any() for _, seen in looks[0])
    for ours, theirs in zip(*looks, strict=True):
        np.testing.assert_array_equal(ours[0], theirs[0])
        np.testing.assert_array_equal(ours[1], theirs[1])


@pytest.fixture
def one_thread() -> Iterator[None]:
    """The order of sums, and so their rounding, depends on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@needs_warp
@pytest.mark.usefixtures("one_thread")
def test_a_training_step_asks_for_no_more_and_learns_what_the_cpu_does(bench: ModuleType) -> None:
    count, reported = bench.training_step(2)
    operations, waits = TRAIN_STEP
    assert count.operations.total() <= operations
    assert count.waits.total() <= waits
    for module, waited in count.waits.items():
        assert waited <= TRAIN_WAITS.get(module, 0), module
    _, expected = bench.training_step(2, contextlib.nullcontext, steps=1)
    first, theirs = dict(reported[0]), dict(expected[0])  # later ones have learned from each other's rounding
    assert first.pop("norm") == pytest.approx(theirs.pop("norm"), rel=1e-4)
    assert first == pytest.approx(theirs, rel=1e-6)
    assert len(first) > 10
    _, halves = bench.training_step(2, precision="bfloat16", steps=1)  # geometry and losses keep their digits
    assert halves[0]["loss"] == pytest.approx(expected[0]["loss"], rel=0.03)


@needs_warp
@pytest.mark.slow
@pytest.mark.forks  # the fake device has to be there before the first gradient of a process
def test_a_training_step_mixes_no_devices(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses, gradients and optimiser, on a device whose tensors cannot meet the host's."""
    monkeypatch.setattr(bench, "OperationCount", contextlib.nullcontext)
    with fake_gpu():  # registered before the first gradient
        pass
    _, expected = bench.training_step(1, contextlib.nullcontext, steps=1)  # and the texts are encoded on the CPU
    with fake_gpu() as gpu:
        monkeypatch.setattr(optimization, "resolve_device", lambda *_: gpu)
        _, reported = bench.training_step(1, contextlib.nullcontext)
    first, theirs = reported[0], expected[0]
    assert first.pop("norm") == pytest.approx(theirs.pop("norm"), rel=1e-3)
    assert first == pytest.approx(theirs, rel=1e-4)


@needs_warp
@pytest.mark.slow  # the published size
def test_a_step_of_the_papers_grounding_waits_once_for_all_its_matches(bench: ModuleType) -> None:
    count, told = bench.training_step(2, what=bench.PAPER_GROUNDING)
    operations, waits = PAPER_GROUNDING_STEP
    assert count.operations.total() <= operations
    assert count.waits.total() <= waits
    for module, waited in count.waits.items():
        assert waited <= PAPER_GROUNDING_WAITS.get(module, 0), module
    _, expected = bench.training_step(2, contextlib.nullcontext, what=bench.PAPER_GROUNDING, steps=1)
    assert told[0] == pytest.approx(expected[0], rel=1e-3)


def test_counts_by_hand(bench: ModuleType) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    with bench.OperationCount() as count:
        y = x.t()[1:].reshape(4)  # a view, and a copy
        z = torch.empty(4)
        y.add_(1.0)
    assert count.row()["operations"] == 2
    assert count.row()["waits"] == 0
    for wait in (
        lambda: float(y.sum()),
        lambda: bool((y > 0).any()),
        lambda: y[y > 0],
        lambda: y.nonzero(),
        lambda: torch.unique(y),
        lambda: y.cpu(),
        lambda: y.tolist(),
        lambda: torch.repeat_interleave(torch.arange(2)),
        lambda: torch.equal(y, y),
        lambda: y.index_put((y > 0,), torch.zeros(())),
    ):
        with bench.OperationCount() as count:
            wait()
        assert count.row()["waits"] == 1
    assert len(z) == 4
    with bench.OperationCount() as count:  # the host's own business, and what is brought over
        host = torch.from_numpy(np.arange(4.0)) * 2
        assert float((y.cpu() + host).sum()) > 0
        moved = host.to(y.device) + 1
    assert count.row() == {
        "operations": 2, "waits": 1, "by_module": {"torch": {"operations": 2, "waits": 1}}
    }  # fmt: skip
    assert moved.tolist() == [1, 3, 5, 7]


def test_what_a_device_does_at_once_counts_once(bench: ModuleType) -> None:
    """Compilers take the resizing of an image apart; torch by itself doesn't."""
    with bench.OperationCount() as count:
        torch.nn.functional.interpolate(torch.zeros(1, 3, 8, 8), size=(4, 4), mode="bilinear")
    assert count.row()["operations"] == 2  # zeros, and that


def test_the_path_of_devices_is_this_threads_alone_and_ends() -> None:
    x = torch.from_numpy(np.zeros(3))
    assert runs_compiled(x)
    with device_path():
        assert not runs_compiled(x)
    assert runs_compiled(x)
    assert not runs_compiled(x, torch.zeros(1, device="meta"))
