"""The simulated drive that several benchmarks share; rendered once and kept between runs."""

from __future__ import annotations

from pathlib import Path

from embodied_perceptron_ros.demo.simulated import first_drive, render, simulated_recording

SHORT_DRIVE = ("--rooms", "1", "--frames", "30", "--size", "160x120", "--workers", "1")


def simulated_drive(seed: int, short: bool) -> Path:
    """The demo's drive through the home of a seed; ``short``: 30 small frames of one room."""
    recording = simulated_recording(seed)
    if short:
        recording = recording.with_name(f"{recording.name}_short")
    render(recording, (*first_drive(seed), *(SHORT_DRIVE if short else ())))
    return recording
