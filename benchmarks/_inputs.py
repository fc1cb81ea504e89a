"""Inputs that several benchmarks share: a simulated drive, homes to learn from. Made once, kept between runs."""

from __future__ import annotations

from pathlib import Path

from embodied_perceptron_ros.demo.simulated import render, simulated_recording
from embodied_perceptron_training.homes.generate import HomeSampleSpec, generate

SHORT_DRIVE = ("--rooms", "1", "--frames", "30", "--size", "160x120", "--workers", "1")
SEED = 700_000  # of homes that are in nobody's training, validation or test


def simulated_drive(seed: int, short: bool) -> Path:
    """The demo's drive through the home of a seed; ``short``: 30 small frames of one room."""
    recording = simulated_recording(seed)
    if short:
        recording = recording.with_name(f"{recording.name}_short")
    render(recording, seed, SHORT_DRIVE if short else ())
    return recording


def simulated_homes(folder: Path, train: int, val: int, views: int = HomeSampleSpec().views) -> Path:
    """``folder`` with homes in EmbodiedScan's layout, splits ``train`` and ``val``."""
    for split, first, count in (("train", SEED, train), ("val", SEED + train, val)):
        generate(folder, list(range(first, first + count)), HomeSampleSpec(views=views), split)
    return folder
