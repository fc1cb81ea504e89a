"""Two small synthetic homes, one to train on and one to validate with."""

from __future__ import annotations

from pathlib import Path

from embodied_perceptron_training.homes.building.home import HomeSpec
from embodied_perceptron_training.homes.generate import HomeSampleSpec, generate
from embodied_perceptron_training.homes.prompts import PromptSpec


def small_homes(root: Path, sentences: int) -> Path:
    """A bedroom of three views in each of the splits train and val below ``root``, which is returned."""
    spec = HomeSampleSpec(3, 96, 64, HomeSpec(1, "bedroom"), prompts=PromptSpec(per_scene=sentences))
    generate(root, [31], spec, "train")
    generate(root, [32], spec, "val")
    return root
