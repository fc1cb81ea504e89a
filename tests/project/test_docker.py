"""What the images bring and how they start, read from their files: none is built here."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import tomllib
import yaml

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ("Dockerfile", "Dockerfile.jetson")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
BROUGHT = {"language", "onnxruntime-gpu"}


def instructions(image: str) -> list[str]:
    """Joined lines, without comments."""
    text = (ROOT / "docker" / image).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return [line for line in "\n".join(lines).replace("\\\n", " ").splitlines() if line.strip()]


@pytest.mark.parametrize("image", IMAGES)
def test_images_bring_sentences_and_encoders_on_the_gpu(image: str) -> None:
    installed = " ".join(line for line in instructions(image) if "pip install" in line)
    if image == "Dockerfile":  # dependencies by themselves, of the extras that are named
        named = re.search(r"for e in (\(.*?\)) for d", installed)
        assert named is not None
        extras = set(ast.literal_eval(named[1]))
    else:
        named = re.search(r'pip install "\.\[([^\]]*)\]"', installed)
        assert named is not None
        (default,) = (line for line in instructions(image) if line.startswith("ARG ONNXRUNTIME_EXTRA="))
        extras = set(named[1].replace("${ONNXRUNTIME_EXTRA}", default.partition("=")[2]).split(","))
    assert extras == BROUGHT
    assert extras <= set(EXTRAS)


@pytest.mark.parametrize("image", IMAGES)
def test_images_start_on_the_gpu_where_there_is_one(image: str) -> None:
    (command,) = (line for line in instructions(image) if line.startswith("CMD "))
    assert ast.literal_eval(command[4:]) == [
        "ros2",
        "launch",
        "embodied_perceptron",
        "perceive.launch.py",
        "device:=auto",
    ]
    assert any("NVIDIA_VISIBLE_DEVICES=all" in line for line in instructions(image))


def test_the_composed_node_starts_alike_and_may_be_told_otherwise() -> None:
    services = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8"))["services"]
    command = services["perception"]["command"]
    assert command.startswith("ros2 launch embodied_perceptron perceive.launch.py device:=${DEVICE:-auto} ")
    (device,) = services["perception"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia"


def test_the_node_warms_up_before_it_is_ready() -> None:
    """The launch file configures the node, and configuring prepares it: network, kernels, map."""
    node = ROOT / "ros_ws" / "src" / "embodied_perceptron_ros" / "embodied_perceptron_ros" / "node"
    prepare = next(
        f for f in ast.parse((node / "wiring.py").read_text(encoding="utf-8")).body
        if isinstance(f, ast.FunctionDef) and f.name == "prepare"
    )  # fmt: skip
    called = [c.func.id for c in ast.walk(prepare) if isinstance(c, ast.Call) and isinstance(c.func, ast.Name)]
    assert "warm_up" in called
    assert "prepare(" in (node / "perception_node.py").read_text(encoding="utf-8")
