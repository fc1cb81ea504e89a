"""The environment of ROS processes. Imports no ROS: launch files use it too."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

FASTDDS_PROFILE = Path(__file__).resolve().parent / "config" / "fastdds_shared_memory.xml"


def ros_environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """``base`` (default: this process's environment) with the Fast DDS profile, unless it names one already.

    Fast DDS's default shared-memory segment holds half a VGA frame, so most best-effort images would be lost.
    """
    environment = dict(os.environ if base is None else base)
    if not any(environment.get(name) for name in ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")):
        environment["FASTDDS_DEFAULT_PROFILES_FILE"] = str(FASTDDS_PROFILE)
    return environment
