"""What the images bring and how they start, read from their files: none is built here."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import tomllib
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ("Dockerfile", "Dockerfile.jetson")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
VERSIONS: dict[str, Any] = yaml.safe_load((ROOT / "docker" / "distributions.yaml").read_text(encoding="utf-8"))


def instructions(image: str) -> list[str]:
    """Joined lines, without comments."""
    text = (ROOT / "docker" / image).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return [line for line in "\n".join(lines).replace("\\\n", " ").splitlines() if line.strip()]


@pytest.mark.parametrize("image", IMAGES)
def test_images_bring_encoders_on_the_gpu(image: str) -> None:
    installed = " ".join(line for line in instructions(image) if "pip install" in line)
    if image == "Dockerfile":  # dependencies by themselves, with the named extra
        named = re.search(r"\['optional-dependencies'\]\['([\w-]+)'\]", installed)
        assert named is not None
        extra = named[1]
    else:
        assert 'pip install ".[${ONNXRUNTIME_EXTRA}]"' in installed
        (default,) = (line for line in instructions(image) if line.startswith("ARG ONNXRUNTIME_EXTRA="))
        extra = default.partition("=")[2]
    assert extra == "onnxruntime-gpu"
    assert extra in EXTRAS


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


def test_images_are_of_the_distributions_that_are_named() -> None:
    assert f"ARG ROS_DISTRO={VERSIONS['default']}" in instructions("Dockerfile")
    jetson = " ".join(instructions("Dockerfile.jetson"))
    assert f"ROS_DISTRO={VERSIONS['jetson']}" in jetson
    assert f"ros2/ubuntu {VERSIONS['distributions'][VERSIONS['jetson']]['codename']} main" in jetson
    composed = (ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"\$\{ROS_DISTRO:-(\w+)\}", composed)) == {VERSIONS["default"]}
    files = [*(f"docker/{image}" for image in IMAGES), "docker/compose.yaml"]
    for file in files:  # nowhere else by name: another distribution is one argument away
        text = (ROOT / file).read_text(encoding="utf-8")
        assert not re.findall(rf"(?:ros-|/opt/ros/|ros:)(?:{'|'.join(VERSIONS['distributions'])})", text), file


@pytest.mark.parametrize("name", VERSIONS["distributions"])
def test_python_and_numpy_fit_a_distribution(name: str) -> None:
    """Messages compiled against numpy 1 cannot be imported with numpy 2. pyarrow 26 raises ImportError with numpy 1,
    and the Rerun SDK imports it; 22 takes both."""
    of = VERSIONS["distributions"][name]
    assert of["python"] in SpecifierSet(PROJECT["requires-python"])
    lines = (ROOT / ".ci" / "constraints-ros.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    held = {pin.name: pin.specifier for pin in pins if pin.marker is None or pin.marker.evaluate(_python(of["python"]))}
    assert ("2.0.0" in held.get("numpy", SpecifierSet())) == (of["numpy"] == 2)
    assert "1.26.4" in held.get("numpy", SpecifierSet())
    assert ("26.0.0" in held.get("pyarrow", SpecifierSet())) == (of["numpy"] == 2)


def _python(version: str) -> dict[str, str]:
    return {"python_version": version, "python_full_version": f"{version}.0"}
