"""The benchmark of lifting runs, and counts what it says it counts."""

from __future__ import annotations

import importlib
from pathlib import Path

from support.lift_world import KnowingDetector, tour


def test_a_round_of_the_benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    lifting = importlib.import_module("lifting")
    frames, shown = tour(4)
    figures = lifting._round(frames, lifting._Remembering(KnowingDetector(shown)), 2)
    assert (figures["keyframes"], figures["calls"]) == (4, 2)
    assert figures["detections"] >= 8
    assert figures["cpu_ms_per_keyframe"] > 0
