"""Fixtures shared by all tests."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch

REPO = Path(__file__).resolve().parents[1]

pytest_plugins = ["support.text_encoders"]

os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")  # nodes of tests stay on this machine
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job that a shell started in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # programs that tests start inherit it


ALONE = "EMBODIED_TEST_ALONE"
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS"), "1")


_ENDED: dict[str, tuple[set[str], str]] = {}  # by module: what passed of its tests that fork, and their output


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Tests that copy their process (``forks``) run in one of their own, those of a module together, on one thread.

    A fork beside the thread pools of torch, numba and BLAS may stand still for ever in C, where no time-out reaches it.
    """
    if pyfuncitem.get_closest_marker("forks") is None or ALONE in os.environ:
        return None
    module = pyfuncitem.nodeid.partition("::")[0]
    if module not in _ENDED:
        chosen = [i.nodeid for i in pyfuncitem.session.items if i.get_closest_marker("forks")]
        chosen = [nodeid for nodeid in chosen if nodeid.partition("::")[0] == module]
        command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:xdist", "-p", "no:cacheprovider", *chosen]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")} | ONE_THREAD | {ALONE: "1"}
        done = subprocess.run(
            command, cwd=pyfuncitem.config.rootpath, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
            text=True,
        )  # fmt: skip
        passed = {line.removeprefix("PASSED ") for line in done.stdout.splitlines() if line.startswith("PASSED ")}
        _ENDED[module] = passed, done.stdout[-6000:] + done.stderr[-2000:]
    passed, output = _ENDED[module]
    if pyfuncitem.nodeid not in passed:
        pytest.fail(output, pytrace=False)
    return True


def _shared(variable: str, default: Path) -> Path:
    folder = Path(os.environ.get(variable, default))
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent (set {variable})")
    return folder


@pytest.fixture(params=["fake", pytest.param("cuda", marks=pytest.mark.gpu)])
def gpu(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Two devices that are not the CPU: one made for tests (:mod:`support.fake_gpu`), and CUDA where it exists."""
    import torch
    from support.fake_gpu import fake_gpu

    pytest.importorskip("warp")
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs CUDA")
    with contextlib.nullcontext(torch.device("cuda", 0)) if request.param == "cuda" else fake_gpu() as device:
        yield device


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Development data that is not part of the repository; tests that need it skip when it is absent."""
    return _shared("EMBODIED_DATA_DIR", REPO.parent / "shared" / "data")


@pytest.fixture(scope="session")
def kitchen_dir(data_dir: Path) -> Path:
    """100 real RGB-D frames in TUM layout."""
    return _shared("EMBODIED_KITCHEN_DIR", data_dir / "kitchen")
