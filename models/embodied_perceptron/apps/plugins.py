"""Functions of other packages that commands call: entry points, which keep ROS out of the library."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from embodied_perceptron.apps.errors import CommandError


def load_plugin(group: str, purpose: str) -> Any:
    """The one function of an entry point group. Raises ``CommandError``, which says what ``purpose`` lacks."""
    found = list(entry_points(group=group))
    if not found:
        raise CommandError(f"{purpose} needs the ROS package: run `make setup`, or source your ROS 2 workspace")
    try:
        return found[0].load()
    except Exception as error:
        raise CommandError(f"{purpose} is not available: {type(error).__name__}: {error}") from error
