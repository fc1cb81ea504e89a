"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]

pytest_plugins = ["support.text_encoders"]

os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")  # nodes of tests stay on this machine


ALONE = "EMBODIED_TEST_ALONE"
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that copies its process (``forks``) runs in one of its own, on one thread.

    A fork beside the thread pools of torch, numba and BLAS may stand still for ever in C, where no time-out reaches it.
    """
    if pyfuncitem.get_closest_marker("forks") is None or ALONE in os.environ:
        return None
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", pyfuncitem.nodeid]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")} | ONE_THREAD | {ALONE: "1"}
    root = pyfuncitem.config.rootpath
    done = subprocess.run(command, cwd=root, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.fail(done.stdout[-6000:] + done.stderr[-2000:], pytrace=False)
    return True


def _shared(variable: str, default: Path) -> Path:
    folder = Path(os.environ.get(variable, default))
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent (set {variable})")
    return folder


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Development data that is not part of the repository; tests that need it skip when it is absent."""
    return _shared("EMBODIED_DATA_DIR", REPO.parent / "shared" / "data")


@pytest.fixture(scope="session")
def kitchen_dir(data_dir: Path) -> Path:
    """100 real RGB-D frames in TUM layout."""
    return _shared("EMBODIED_KITCHEN_DIR", data_dir / "kitchen")
