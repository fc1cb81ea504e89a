"""What the launch files and ``embodied-perceptron perceive`` have in common: options -> node parameters.

Values in, values out, so that both ways of starting the node behave alike. Neither ROS nor numpy nor torch is imported:
launch files run in the system's Python.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

DEFAULT_CONFIG = Path(__file__).resolve().parents[1] / "config" / "perception.yaml"
NODE_NAME = "perception"
# Topics of rviz/perception.rviz that move with a namespace (transforms stay global).
RVIZ_TOPICS = (
    "/color/image_raw",
    *(
        f"/{NODE_NAME}/{name}"
        for name in (
            *("voxels", "semantic_voxels", "box_markers", "grounding_markers", "occupancy_grid", "overlay/image"),
            "occupancy_grid_updates",
        )
    ),
)


def parse_flag(text: str, name: str) -> bool:
    """``true``/``false`` in any case (also 1/0, yes/no, on/off) -> bool; ``ValueError`` naming the option else."""
    lowered = text.strip().lower()
    if lowered in ("true", "1", "yes", "on"):
        return True
    if lowered in ("false", "0", "no", "off"):
        return False
    raise ValueError(f"{name} must be true or false, got {text!r}")


def parse_names(text: str) -> list[str]:
    """Comma-separated names -> list; empty text -> empty list."""
    return [name.strip() for name in text.split(",") if name.strip()]


def parse_overrides(text: str) -> dict[str, Any]:
    """``name: value, other: value`` (YAML flow, braces optional) -> flat parameters; nested names are joined by dots.

    Raises ``ValueError`` for text that is no mapping.
    """
    stripped = text.strip()
    if not stripped:
        return {}
    try:
        data = yaml.safe_load(stripped if stripped.startswith("{") else "{" + stripped + "}")
    except yaml.YAMLError as error:
        raise ValueError(f"parameters must be 'name: value, ...', got {text!r}: {error}") from error
    if not isinstance(data, dict):
        raise ValueError(f"parameters must be 'name: value, ...', got {text!r}")
    flat = _flatten(data)
    empty = sorted(name for name, value in flat.items() if value is None)
    if empty:
        raise ValueError(f"parameters: no value for {', '.join(empty)} in {text!r} (write 'name: value')")
    return flat


def _flatten(data: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        name = f"{prefix}{key}"
        flat.update(_flatten(value, f"{name}.") if isinstance(value, dict) else {name: value})
    return flat


def node_parameters(
    cameras: Sequence[str] = (),
    fusion_frame: str = "",
    output_frame: str = "",
    use_sim_time: bool = False,
    overrides: Mapping[str, Any] | None = None,
    *,
    weights: str | None = None,
    viewer: str = "",
) -> dict[str, Any]:
    """Parameters to set over the YAML file: only what was given; ``overrides`` win. ``weights`` "" = no network."""
    parameters: dict[str, Any] = {}
    if cameras:
        parameters["cameras"] = list(cameras)
    if fusion_frame:
        parameters["fusion_frame"] = fusion_frame
    if output_frame:
        parameters["output_frame"] = output_frame
    if use_sim_time:
        parameters["use_sim_time"] = True
    if weights is not None:
        parameters["weights"] = weights
    if viewer:
        parameters["viewer"] = viewer
    return {**parameters, **(overrides or {})}


def ros_arguments(
    config: Path,
    parameters: Mapping[str, Any],
    remappings: Sequence[tuple[str, str]] = (),
    namespace: str = "",
    log_level: str = "",
) -> list[str]:
    """The same as command-line arguments: ``--ros-args ...``.

    Raises as :func:`check_config`.
    """
    check_config(config)
    arguments = ["--ros-args", "-r", f"__node:={NODE_NAME}", "--params-file", str(config)]
    if namespace:
        arguments += ["-r", f"__ns:=/{namespace.strip('/')}"]
    for source, target in remappings:
        arguments += ["-r", f"{source}:={target}"]
    for name, value in parameters.items():
        arguments += ["-p", f"{name}:={parameter_text(value)}"]
    if log_level:
        arguments += ["--log-level", log_level]
    return arguments


def check_config(config: Path) -> dict[str, Any]:
    """What a parameter file says for the node, flat: ``{"camera.color_topic": "/rgb", ...}``.

    Raises ``FileNotFoundError`` for a missing file; ``ValueError`` naming it where it is no YAML, or has nothing for
    a node of this name (rcl would start the node with defaults).
    """
    if not config.is_file():
        raise FileNotFoundError(f"no parameter file at {config}")
    try:
        data = yaml.safe_load(config.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{config} is not valid YAML: {error}") from error
    found: dict[str, Any] = {}
    sections = _sections(data) if isinstance(data, dict) else {}
    mine = [section for name, section in sections.items() if name.rpartition("/")[2] in (NODE_NAME, "*", "**")]
    if not mine:
        there = f", only for {', '.join(sections)}" if sections else ""
        raise ValueError(f"{config} has no 'ros__parameters' for the node {NODE_NAME!r}{there}")
    for section in mine:
        found |= _flatten(section)
    return found


def _sections(data: Mapping[Any, Any], prefix: str = "") -> dict[str, Mapping[Any, Any]]:
    """Parameters by the node's name, whose namespace may be nested or written in front."""
    sections: dict[str, Mapping[Any, Any]] = {}
    for key, value in data.items():
        if key == "ros__parameters":
            sections[prefix] = value if isinstance(value, dict) else {}
        elif isinstance(value, dict):
            sections |= _sections(value, f"{prefix}/{str(key).lstrip('/')}")
    return sections


def parameter_text(value: Any) -> str:
    """A value as rcl reads it on the command line: YAML flow style in one line, strings always quoted."""
    if isinstance(value, str):
        return yaml.safe_dump(value, default_style='"', width=2**20).strip()
    return str(yaml.safe_dump(value, default_flow_style=True, width=2**20)).replace("\n...", "").strip()


def rviz_remappings(namespace: str) -> list[tuple[str, str]]:
    """(from, to) of the layout's topics moved into ``namespace``; none without one."""
    prefix = namespace.strip("/")
    return [(topic, f"/{prefix}{topic}") for topic in RVIZ_TOPICS] if prefix else []


def split_pair(text: str, what: str) -> tuple[str, str]:
    """``a:=b`` -> (a, b); ``ValueError`` naming ``what`` else."""
    left, separator, right = text.partition(":=")
    if not separator or not left or not right:
        raise ValueError(f"{what} must look like name:=value, got {text!r}")
    return left, right


def player_for(source: Path) -> str:
    """Which player plays ``source``: ``folder_player`` (TUM RGB-D layout) or ``bag_player``.

    Raises ``FileNotFoundError`` when there is nothing, ``ValueError`` when it is neither.
    """
    if not source.exists():
        raise FileNotFoundError(f"no recording at {source}")
    if source.suffix in (".mcap", ".db3") or (source / "metadata.yaml").is_file():
        return "bag_player"
    if (source / "rgb.txt").is_file() or (source / "cameras.json").is_file():  # one camera, or several
        return "folder_player"
    raise ValueError(f"{source} is neither a bag (.mcap, .db3, metadata.yaml) nor a TUM RGB-D folder (rgb.txt)")


def player_command(source: Path, rate: float = 1.0, clock: bool = True) -> tuple[str, list[str]]:
    """Executable and arguments that play ``source``; raises like :func:`player_for`, ``ValueError`` for a bad rate."""
    if not rate > 0:
        raise ValueError(f"rate must be positive, got {rate}")
    return player_for(source), [str(source), "--rate", str(rate), *(["--clock"] if clock else [])]
