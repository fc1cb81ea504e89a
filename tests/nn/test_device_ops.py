"""What a GPU is asked for, by module: bounds on ``benchmarks/device_ops.py``, what it counts, and the same answers.

A bound may be lowered with the code. Raising one means that a perception on a GPU gets slower: look at the table that
the benchmark prints first.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from embodied_perceptron.geometry.compute_path import device_path, takes_loops

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

# (operations, waits) of a module at most; of one that is not named: SMALL
SMALL = (12, 1)
PERCEIVE = {
    "nn/view_fusion.py": (90, 0),
    "geometry/boxes.py": (620, 24),
    "sparse/sites.py": (500, 10),
    "sparse/ops.py": (250, 9),
    "nn/detection.py": (200, 5),
    "geometry/transforms.py": (180, 0),
    "nn/refinement.py": (120, 1),
    "sparse/engine.py": (110, 0),
    "nn/occupancy.py": (50, 3),
    "mapping/export.py": (40, 2),
    "sparse/conv.py": (40, 0),
    "inference/predictor.py": (25, 7),
    "nn/input_features.py": (30, 4),
    "mapping/torch_voxels.py": (30, 1),
    "nn/official.py": (30, 0),
    "nn/neck.py": (30, 5),
    "inference/loading.py": (30, 0),
    "nn/backbone.py": (20, 0),
    "sparse/tensor.py": (20, 2),
    "mapping/voxels.py": (5, 6),
}
INTEGRATE = {
    "mapping/torch_voxels.py": (600, 30),
    "nn/image_encoder.py": (120, 0),
    "nn/network.py": (20, 0),
    "geometry/transforms.py": (20, 0),
}


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import device_ops
    finally:
        sys.path.remove(str(BENCHMARKS))
    return device_ops


def test_a_look_and_a_keyframe_ask_for_no_more(bench: ModuleType) -> None:
    counts = bench.look_and_keyframe()
    for count, bounds in zip(counts, (PERCEIVE, INTEGRATE), strict=True):
        for module, row in count.row()["by_module"].items():
            operations, waits = bounds.get(module, SMALL)
            assert row["operations"] <= operations, module
            assert row["waits"] <= waits, module
        assert set(bounds) <= set(count.row()["by_module"])  # the path of devices was taken


def test_counts_by_hand(bench: ModuleType) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    with bench.OperationCount() as count:
        y = x.t()[1:].reshape(2, 2)  # a view, and a copy
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
        lambda: torch.repeat_interleave(torch.tensor([1, 2])),
        lambda: torch.equal(y, y),
        lambda: y.index_put((y > 0,), torch.zeros(())),
    ):
        with bench.OperationCount() as count:
            wait()
        assert count.row()["waits"] == 1
    assert len(z) == 4


def test_the_path_of_devices_is_this_threads_alone_and_ends() -> None:
    x = torch.from_numpy(np.zeros(3))
    assert takes_loops(x)
    with device_path():
        assert not takes_loops(x)
    assert takes_loops(x)
    assert not takes_loops(x, torch.zeros(1, device="meta"))
