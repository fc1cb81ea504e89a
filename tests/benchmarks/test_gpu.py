"""The run for a machine with a GPU: what it keeps when a section fails or takes too long. No section is measured."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SECTIONS = ("map", "boxes", "launches", "live", "training", "peers")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu

    monkeypatch.setattr(gpu, "frames_of", lambda *_: [])
    for name in SECTIONS:
        monkeypatch.setattr(gpu, f"{name}_section", lambda run: {"equal": True})
    return gpu


def ended(bench: ModuleType, file: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, dict[str, Any]]:
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--dry", "--out", str(file)])
    return bench.main(), json.loads(file.read_text())


def test_a_section_that_fails_leaves_the_others(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "gpu.json"
    assert ended(bench, file, monkeypatch)[0] == 0
    monkeypatch.setattr(bench, "boxes_section", lambda run: {"equal": False})
    seen = []

    def launches(run: Any) -> Any:
        seen.append(json.loads(file.read_text()))
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(bench, "launches_section", launches)
    code, found = ended(bench, file, monkeypatch)
    assert code == 1
    assert (found["failed"], found["differs"], found["late"]) == ("launches", "boxes", "")
    assert found["launches.error"] == "RuntimeError: CUDA error: unspecified launch failure"
    assert "peers.section_s" in found
    assert seen[0]["differs"] == "boxes"  # the file is written after every section
    assert "launches.error" not in seen[0]


def test_a_section_that_hangs_is_ended(bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "END_S", 1)
    monkeypatch.setattr(bench, "LAST_START_S", 0.9)
    monkeypatch.setattr(bench, "live_section", lambda run: time.sleep(30))
    code, found = ended(bench, tmp_path / "gpu.json", monkeypatch)
    assert code == 1
    assert (found["failed"], found["late"]) == ("live", "training, peers")
    assert found["live.error"] == "TimeoutError: not done after 1 s"
