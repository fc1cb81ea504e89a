"""One log line in a while for each thing that goes on: a camera without a pose would otherwise write 30 a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

_MAX_KEYS = 1000  # the oldest is forgotten beyond


class ThrottledLog:
    """At most one line per key in ``every_s``; from any thread.

    Args:
        logger: rclpy's, or one like it.
        every_s: seconds between two lines of one key, unless a call says otherwise.
        clock: seconds.
    """

    def __init__(self, logger: Any, every_s: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._every_s = every_s
        self._clock = clock
        self._lock = threading.Lock()
        self._logged_s: dict[str, float] = {}

    # rclpy knows a call by its place and refuses another severity there: one method, one severity

    def info(self, key: str, text: str, every_s: float | None = None) -> None:
        """Tell how things stand."""
        if self._is_due(key, every_s):
            self._logger.info(text)

    def warning(self, key: str, text: str, every_s: float | None = None) -> None:
        """Tell of something that is lost."""
        if self._is_due(key, every_s):
            self._logger.warning(text)

    def error(self, key: str, text: str, every_s: float | None = None) -> None:
        """Tell of something that is broken."""
        if self._is_due(key, every_s):
            self._logger.error(text)

    def forget(self) -> None:
        """The next line of every key is written."""
        with self._lock:
            self._logged_s.clear()

    def _is_due(self, key: str, every_s: float | None) -> bool:
        now_s = self._clock()
        with self._lock:
            last_s = self._logged_s.pop(key, float("-inf"))
            due = now_s - last_s >= (self._every_s if every_s is None else every_s)
            self._logged_s[key] = now_s if due else last_s
            if len(self._logged_s) > _MAX_KEYS:
                self._logged_s.pop(next(iter(self._logged_s)))
        return due
