"""Compiled kernels: a damaged cache is said and made anew."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numba
import pytest

ROOT = Path(__file__).parents[2]
KERNEL = """
from embodied_perceptron.geometry.kernels import njit

@njit(cache=True, nogil=True)
def double(x):
    return 2 * x
"""


@pytest.mark.parametrize("content", [b"", b"\0" * 64, b"\x80\x05nonsense"], ids=["empty", "zeros", "nonsense"])
def test_a_damaged_cache_is_said_and_made_anew(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def call() -> tuple[int, list[int]]:
        """Answer, and hits of the cache, of a kernel that is imported as at a start."""
        monkeypatch.delitem(sys.modules, "doubling", raising=False)
        caplog.clear()
        kernel = importlib.import_module("doubling").double
        return kernel(21), list(kernel.stats.cache_hits.values())

    (tmp_path / "doubling.py").write_text(KERNEL)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    assert call() == (42, [])
    for suffix in (".nbi", ".nbc"):
        (file,) = (tmp_path / "cache").rglob(f"*{suffix}")
        file.write_bytes(content)
        assert call() == (42, [])
        assert f"{file} is damaged" in caplog.text
        assert call() == (42, [1])  # from the disk again
        assert caplog.text == ""


def test_every_cached_kernel_is_made_so() -> None:
    sources = [p for folder in ("models", "training", "ros_ws/src") for p in (ROOT / folder).rglob("*.py")]
    kernels = ROOT / "models/embodied_perceptron/geometry/kernels.py"
    assert [p for p in sources if p != kernels and "numba.njit" in p.read_text()] == []
    assert [p for p in sources if p != kernels and "from numba import" in p.read_text()] == []
