"""Selection of the device, detection of its failures, and threads of the CPU."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from typing import TypeVar

import torch

from embodied_perceptron.config import ConfigError

ResultT = TypeVar("ResultT")

log = logging.getLogger(__name__)
_NICENESS = 5  # Unix priority steps of background threads
NO_WARP = "" if importlib.util.find_spec("warp") else "a GPU needs the package warp-lang: pip install warp-lang"
_ACCELERATOR_ERROR: type[BaseException] = getattr(torch, "AcceleratorError", torch.OutOfMemoryError)


def resolve_device(name: str, what: str = "device") -> torch.device:
    """Device of a name: "cpu", "cuda", "cuda:0"; "auto" = a working GPU, otherwise the CPU.

    Logs the choice in one line, as ``what``. Raises ``ConfigError`` with one line for an unavailable device and an
    invalid name.
    """
    if name == "auto":
        device, why = _automatic()
        log.info("%s: %s", what, why)
        return device
    kind = name.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise ConfigError(f"{what} must be auto, cpu, cuda or cuda:N, got {name!r}")
    try:
        tried = torch.zeros(1, device=torch.device(name)).add_(1)
        tried.cpu()  # a wheel for other cards fails at the first kernel only
    except (RuntimeError, AssertionError) as error:
        reason = _no_cuda() if kind == "cuda" and not torch.cuda.is_available() else first_line(error)
        raise ConfigError(f"{what} {name!r} is not available: {reason}") from error
    if kind == "cuda" and NO_WARP:
        raise ConfigError(f"{what} {name!r} is not available: {NO_WARP}")
    log.info("%s: %s", what, _described(tried.device))
    return tried.device  # with its number, which Warp needs


@cache
def _automatic() -> tuple[torch.device, str]:
    """Device of ``auto`` in this process, and the reason."""
    if not torch.cuda.is_available():
        return torch.device("cpu"), f"cpu, {_no_cuda()}"
    if NO_WARP:
        return torch.device("cpu"), f"cpu, for {NO_WARP}"
    try:
        device = torch.device("cuda", torch.cuda.current_device())
        torch.zeros(1, device=device).add_(1).cpu()
    except (RuntimeError, AssertionError) as error:
        return torch.device("cpu"), f"cpu, for the GPU does not work: {first_line(error)}"
    return device, _described(device)


def _no_cuda() -> str:
    """Reason why there is no CUDA device."""
    if torch.version.cuda is None and torch.version.hip is None:
        return "this torch is built without CUDA"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and not visible.strip("-1 "):
        return f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU"
    with warnings.catch_warnings(record=True) as caught:  # torch warns of an old or silent driver
        warnings.simplefilter("always")
        torch.cuda.is_available()
    for warning in caught:
        if "driver" in str(warning.message):
            return first_line(warning.message).removeprefix("CUDA initialization: ")
    return "no CUDA device is seen: no GPU, no driver, or one too old for this torch"


def _described(device: torch.device) -> str:
    if device.type != "cuda":
        return str(device)
    free, total = torch.cuda.mem_get_info(device)
    return f"{device} ({torch.cuda.get_device_name(device)}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free)"


def is_device_fault(error: BaseException) -> bool:
    """Whether the error is a failure of a device or its memory, not of the program."""
    if isinstance(error, (torch.OutOfMemoryError, _ACCELERATOR_ERROR)):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in ("CUDA error", "CUDA out of memory"))


def forget_memory() -> None:
    """Release the GPU memory that torch caches; does nothing without a GPU or after it failed."""
    try:
        torch.cuda.empty_cache()
    except RuntimeError as error:
        if not is_device_fault(error):
            raise


def first_line(error: BaseException | str) -> str:
    """First line of a message, at most 200 characters."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def in_thread(function: Callable[[], ResultT], name: str) -> tuple[threading.Thread, Future[ResultT]]:
    """Start ``function`` in a daemon thread; return the thread, and its future result or error."""
    done: Future[ResultT] = Future()

    def work() -> None:
        try:
            done.set_result(function())
        except BaseException as error:
            done.set_exception(error)

    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread, done


def yield_to_fusion() -> None:
    """Lower the priority of the calling thread and of threads it starts later, so that fusion keeps the sensor rate.
    Linux only; elsewhere nothing changes."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, min(os.getpriority(os.PRIO_PROCESS, thread) + _NICENESS, 19))
