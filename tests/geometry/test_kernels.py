"""Compiled kernels: a damaged cache is said and made anew."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CALL = """
import sys
sys.path.insert(0, sys.argv[1])
from doubling import double
print(double(21), double.stats.cache_hits.total())
"""
KERNEL = """
from embodied_perceptron.geometry.kernels import njit

@njit(cache=True, nogil=True)
def double(x):
    return 2 * x
"""


def call(folder: Path) -> tuple[list[str], str]:
    script = CALL.replace(".total()", "")
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        env={**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split(maxsplit=1), done.stderr


@pytest.mark.parametrize("content", [b"", b"\0" * 64, b"\x80\x05nonsense"], ids=["empty", "zeros", "nonsense"])
def test_a_damaged_cache_is_said_and_made_anew(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "doubling.py").write_text(KERNEL)
    assert call(tmp_path)[0][0] == "42"
    for suffix in (".nbi", ".nbc"):
        (file,) = (tmp_path / "cache").rglob(f"*{suffix}")
        file.write_bytes(content)
        (answer, _), log = call(tmp_path)
        assert answer == "42"
        assert f"{file} is damaged" in log
        (answer, hits), log = call(tmp_path)
        assert (answer, log) == ("42", "")
        assert "1" in hits  # from the disk again


def test_every_cached_kernel_is_made_so() -> None:
    sources = [p for folder in ("models", "training", "ros_ws/src") for p in (ROOT / folder).rglob("*.py")]
    kernels = ROOT / "models/embodied_perceptron/geometry/kernels.py"
    assert [p for p in sources if p != kernels and "numba.njit" in p.read_text()] == []
    assert [p for p in sources if p != kernels and "from numba import" in p.read_text()] == []
