"""What ``import embodied_perceptron`` gives, and what it does not load."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import subprocess
import sys

import pytest

import embodied_perceptron

HEAVY = "[m for m in ('torch', 'numba', 'cv2', 'scipy', 'numpy', 'yaml') if m in sys.modules]"


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.strip()


@pytest.mark.parametrize(
    "code",
    [
        "import embodied_perceptron",
        # what walks through all modules asks for names that none of them has
        "import inspect, embodied_perceptron as e; [getattr(m, '__file__', 0) for m in list(sys.modules.values())]",
    ],
)
def test_importing_the_package_loads_nothing_heavy(code: str) -> None:
    assert run(f"import sys; {code}; print({HEAVY})") == "[]"


@pytest.mark.parametrize("name", embodied_perceptron.__all__)
def test_public_names_are_there_and_listed(name: str) -> None:
    value = getattr(embodied_perceptron, name)
    assert name in dir(embodied_perceptron)
    assert getattr(embodied_perceptron, name) is value


def test_names_are_those_of_their_homes() -> None:
    frames = importlib.import_module("embodied_perceptron.sensors.frame")
    assert embodied_perceptron.RgbdFrame is frames.RgbdFrame
    assert embodied_perceptron.frame.RgbdFrame is frames.RgbdFrame
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = embodied_perceptron.Nothing
    with pytest.raises(AttributeError, match=r"'embodied_perceptron\.boxes' has no attribute 'Nothing'"):
        _ = embodied_perceptron.boxes.Nothing


@pytest.mark.parametrize(
    "code",
    [
        "import embodied_perceptron.boxes as bx; bx.box_iou, bx.nms, bx.grouped_nms, bx.voted_nms, bx.transform_boxes",
        "from embodied_perceptron.boxes import *; box_iou, nms, CORNER_SIGNS, euler_to_matrix",
        "from embodied_perceptron.frame import PosedFrame, RgbdFrame, canonical_depth",
    ],
)
def test_old_ways_of_importing_go_on_working(code: str) -> None:
    """In a process of its own: what one import leaves behind must not help another."""
    assert run(code) == ""


def test_aliases_are_modules_for_the_import_system() -> None:
    assert importlib.import_module("embodied_perceptron.boxes") is embodied_perceptron.boxes
    assert importlib.util.find_spec("embodied_perceptron.boxes").name == "embodied_perceptron.boxes"
    assert pickle.loads(pickle.dumps(embodied_perceptron.boxes.nms)) is embodied_perceptron.boxes.nms
    assert {"box_iou", "nms"} <= set(dir(embodied_perceptron.boxes))
