"""The environment of ROS processes, and their start. Imports ROS only to start it: launch files use this module too."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FASTDDS_PROFILE = Path(__file__).resolve().parent / "config" / "fastdds_shared_memory.xml"
PROFILE_VARIABLES = ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")  # from Kilted on; before it


def ros_environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """``base`` (default: this process's environment) with the Fast DDS profile, or with the profile it names already.

    Fast DDS's default shared-memory segment holds half a VGA frame, so most best-effort images would be lost.
    """
    environment = dict(os.environ if base is None else base)
    profile = next(filter(None, map(environment.get, PROFILE_VARIABLES)), str(FASTDDS_PROFILE))
    return {**environment, **{name: environment.get(name) or profile for name in PROFILE_VARIABLES}}


def transport_remedy(environment: Mapping[str, str] | None = None) -> str:
    """What stops the loss of images on their way from a driver. ``environment``: None = this process's."""
    middleware = (os.environ if environment is None else environment).get("RMW_IMPLEMENTATION", "")
    if middleware and "fastrtps" not in middleware:
        return f"give {middleware} larger buffers (sysctl -w net.core.rmem_max=8388608), or use reliable QoS"
    return (
        f"run 'export {' '.join(f'{name}={FASTDDS_PROFILE}' for name in PROFILE_VARIABLES)}' in the terminal of the "
        "driver, and start the driver again there"
    )


MAX_DOMAIN_ID = 232  # Fast DDS ends the process for a larger one


class RosStartError(RuntimeError):
    """ROS cannot start with this environment or these arguments; the message names the setting and the remedy."""

    exit_code = 2


def domain_of_environment() -> int | None:
    """``ROS_DOMAIN_ID``; None if it is not set. Raises :class:`RosStartError` for anything but 0 to 232."""
    text = os.environ.get("ROS_DOMAIN_ID", "").strip()
    if text and not (re.fullmatch("[0-9]{1,3}", text) and int(text) <= MAX_DOMAIN_ID):
        raise RosStartError(f"ROS_DOMAIN_ID must be a number from 0 to {MAX_DOMAIN_ID}, got {text!r}")
    return int(text) if text else None


def start_ros(**options: Any) -> None:
    """Call ``rclpy.init`` with ``options``. Raises :class:`RosStartError` if it fails."""
    import rclpy

    if options.get("domain_id") is None:
        domain_of_environment()
    try:
        rclpy.init(**options)
    except (RuntimeError, ValueError) as error:  # rclpy's errors are RuntimeErrors
        reason = re.sub(r"^failed to initialize \w+: |\.?,? at /\S+:\d+", "", str(error).strip())
        raise RosStartError(f"{reason}: {_start_remedy(reason)}") from error


def _start_remedy(reason: str) -> str:
    if "log directory" in reason:
        return "set ROS_LOG_DIR to a folder that you may write"
    if "SECURITY" in reason or (os.environ.get("ROS_SECURITY_ENABLE") == "true" and "not set" in reason):
        keystore = os.environ.get("ROS_SECURITY_KEYSTORE") or "not set"
        return f"check ROS_SECURITY_KEYSTORE ({keystore}), or set ROS_SECURITY_ENABLE to false"
    return "check the arguments after --ros-args, and the ROS_ variables of this terminal"
