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


def transport_remedy(environment: Mapping[str, str] | None = None) -> str:
    """What stops the loss of images on their way from a driver. ``environment``: None = this process's."""
    middleware = (os.environ if environment is None else environment).get("RMW_IMPLEMENTATION", "")
    if middleware and "fastrtps" not in middleware:
        return f"give {middleware} larger buffers (sysctl -w net.core.rmem_max=8388608), or use reliable QoS"
    return (
        f"run 'export FASTDDS_DEFAULT_PROFILES_FILE={FASTDDS_PROFILE}' in the terminal of the driver, and start the "
        "driver again there"
    )
