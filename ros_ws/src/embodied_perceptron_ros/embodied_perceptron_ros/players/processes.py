"""Start, watch and stop child processes without ``launch_ros``.

As with ``ros2 launch``, Ctrl-C reaches every child exactly once, a child that does not stop is killed with its own
children after a grace period, and no child survives this process, even if it is killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.05


def module_command(module: str, *arguments: str) -> list[str]:
    """Command line that runs ``embodied_perceptron_ros.<module>`` with this Python."""
    return [sys.executable, "-m", f"embodied_perceptron_ros.{module}", *arguments]


# resolved before any fork: the child must not take locks
_PRCTL: Any = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None


class Supervisor:
    """A group of child processes; leaving the ``with`` block stops all of them.

    Call ``start`` from the main thread: the kernel kills the children when the starting thread ends.

    Args:
        grace_s: time for a child to stop after SIGINT, and again after SIGTERM, before SIGKILL.
    """

    def __init__(self, grace_s: float = 10.0) -> None:
        if grace_s <= 0:
            raise ValueError(f"grace_s must be positive, got {grace_s}")
        self.grace_s = grace_s
        self.interrupted = False
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._logs: list[IO[bytes]] = []
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> Supervisor:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous_handlers[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            for number, handler in self._previous_handlers.items():
                signal.signal(number, handler)
            for log in self._logs:
                log.close()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.interrupted = True

    def start(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> int:
        """Start ``command`` under ``name`` and return its process id.

        Output goes to ``log``, or to this process's output. Raises ``ValueError`` for a name in use and ``OSError``
        if the program cannot be started.
        """
        if name in self._children:
            raise ValueError(f"a process named {name!r} was started already")
        output: IO[bytes] | None = None
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            output = log.open("wb")
            self._logs.append(output)
        parent = os.getpid()

        def die_with_parent() -> None:
            if _PRCTL is not None:
                _PRCTL(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
                if os.getppid() != parent:  # the parent died before the line above
                    os._exit(1)

        # in a new session, so that the terminal's Ctrl-C reaches only this process, which passes it on once
        child = subprocess.Popen(
            list(command),
            env=None if environment is None else dict(environment),
            stdout=output,
            stderr=subprocess.STDOUT if output is not None else None,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        self._children[name] = child
        return child.pid

    def exit_codes(self) -> dict[str, int | None]:
        """Exit code of every child; None while it runs, negative = ended by that signal."""
        return {name: child.poll() for name, child in self._children.items()}

    def wait(self, until: Collection[str] = (), timeout_s: float | None = None) -> dict[str, int | None]:
        """Wait for a reason to stop and return :meth:`exit_codes`; stops nothing itself.

        Reasons: a signal (sets ``interrupted``), all of ``until`` have ended, another process has ended, a process of
        ``until`` has failed, or ``timeout_s`` has passed.
        """
        unknown = set(until) - set(self._children)
        if unknown:
            raise ValueError(f"no such process: {', '.join(sorted(unknown))}")
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.interrupted and (deadline is None or time.monotonic() < deadline):
            codes = self.exit_codes()
            if until and all(codes[name] is not None for name in until):
                break
            if any(code is not None and (name not in until or code != 0) for name, code in codes.items()):
                break
            if not codes:
                break
            time.sleep(_POLL_S)
        return self.exit_codes()

    def stop(self, names: Collection[str] | None = None) -> dict[str, int]:
        """Stop children (default: all), newest first; return exit codes.

        Sends SIGINT, after ``grace_s`` SIGTERM, after another ``grace_s`` SIGKILL, to each child's process group.
        """
        chosen = [n for n in reversed(self._children) if names is None or n in names]
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            running = [name for name in chosen if self._children[name].poll() is None]
            for name in running:
                _signal_group(self._children[name].pid, number)
            deadline = time.monotonic() + self.grace_s
            while time.monotonic() < deadline and any(self._children[n].poll() is None for n in running):
                time.sleep(_POLL_S)
        for name in chosen:
            _signal_group(self._children[name].pid, signal.SIGKILL)  # grandchildren that outlived the child
        return {name: self._children[name].wait() for name in chosen}


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)  # a session leader's process group has its pid
    except ProcessLookupError:
        pass
    except PermissionError:  # only zombies are left (macOS) or a setuid child
        pass


def combined_exit_code(codes: Mapping[str, int | None], interrupted: bool = False) -> int:
    """Exit code of a group: 130 after Ctrl-C, else the first failure (128 + n for signal n), else 0.

    Children ended by SIGINT or SIGTERM count as successful.
    """
    if interrupted:
        return 130
    for code in codes.values():
        if code is None or code in (0, -signal.SIGINT, -signal.SIGTERM):
            continue
        return 128 - code if code < 0 else code
    return 0
