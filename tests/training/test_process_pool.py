"""Processes that work beside another one, and its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from embodied_perceptron_training.processes import process_pool

PARENT = """
import os, sys, time
from embodied_perceptron_training.processes import process_pool

with process_pool(2) as pool:
    ids = {pool.submit(os.getpid).result()}
    work = [pool.submit(time.sleep, 600) for _ in range(4)]
    ids |= set(pool._processes)
    print(*ids, flush=True)
"""


def prepared(name: str, value: str) -> None:
    os.environ[name] = value


def test_processes_are_prepared_before_their_work() -> None:
    with process_pool(1, prepared, "PREPARED_FOR", "work") as pool:
        assert pool.submit(os.getenv, "PREPARED_FOR").result() == "work"
        assert pool.submit(os.getenv, "OMP_NUM_THREADS").result() == "1"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_processes_end_with_a_parent_that_is_killed(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        ids = [int(word) for word in parent.stdout.readline().split()]
        assert len(ids) == 2
        assert all(_runs(i) for i in ids)
        parent.send_signal(number)
        parent.wait(60)
        end = time.monotonic() + 60
        while any(_runs(i) for i in ids) and time.monotonic() < end:
            time.sleep(0.02)
        left = [i for i in ids if _runs(i)]
        for i in left:
            os.kill(i, signal.SIGKILL)
        assert not left


def _runs(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
