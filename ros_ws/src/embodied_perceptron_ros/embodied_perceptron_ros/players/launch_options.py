"""Options of the launch files and of ``embodied-perceptron perceive`` -> node parameters.

Imports neither ROS nor numpy nor torch: launch files run in the system's Python.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

DEFAULT_CONFIG = Path(__file__).resolve().parents[1] / "config" / "perception.yaml"
NODE_NAME = "perception"
# Topics of rviz/perception.rviz that depend on the namespace (transforms are global).
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
    """``true``/``false`` in any case (also 1/0, yes/no, on/off) -> bool. Raises ``ValueError`` naming the option."""
    lowered = text.strip().lower()
    if lowered in ("true", "1", "yes", "on"):
        return True
    if lowered in ("false", "0", "no", "off"):
        return False
    raise ValueError(f"{name} must be true or false, got {text!r}")


def parse_number(text: str, name: str, kind: type[int] | type[float] = float) -> Any:
    """Text -> number. Raises ``ValueError`` naming the option ``name``."""
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise ValueError(f"{name} must be {what}, got {text!r}") from None


LOG_LEVELS = ("debug", "info", "warn", "error", "fatal")


def parse_choice(text: str, name: str, choices: Sequence[str]) -> str:
    """Return ``text`` in lower case. Raises ``ValueError`` if it is none of ``choices``."""
    lowered = text.strip().lower()
    if lowered not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {text!r}")
    return lowered


def without_none(values: Mapping[str, str], keep: Collection[str] = ("weights",)) -> dict[str, str]:
    """Replace ``none`` by empty, except in the options ``keep``, where it has a meaning of its own."""
    return {n: "" if v.strip().lower() == "none" and n not in keep else v for n, v in values.items()}


_TOPIC_ARGUMENTS = {"color_topic": "color_topic", "depth_topic": "depth_topic", "camera_info_topic": "info_topic"}
_NODE_ARGUMENTS = ("fusion_frame", "output_frame", "viewer", "weights", "device", "classes", "map_file")
PARAMETER_ARGUMENTS = frozenset(("camera", *_TOPIC_ARGUMENTS, "detections_topic", *_NODE_ARGUMENTS))
# all arguments of the launch files
LAUNCH_ARGUMENTS = PARAMETER_ARGUMENTS | {
    *("config", "cameras", "parameters", "namespace", "use_sim_time", "respawn", "rviz", "rviz_config", "foxglove"),
    *("log_level", "source", "rate", "keep", "seed", "recording"),
}
LAUNCH_FILES = ("perceive.launch.py", "replay.launch.py", "simulate.launch.py")


def is_launched(program: Sequence[str] | None = None) -> bool:
    """Whether ``program`` (a command line; None = this process's) starts one of the launch files directly, so that no
    other launch file includes it. Another package may have files of the same names."""
    words = list(sys.argv if program is None else program)
    for before, word in zip(["", *words], words, strict=False):
        folder = Path(word).resolve().parent
        is_path = all((folder / name).is_file() for name in LAUNCH_FILES)
        if Path(word).name in LAUNCH_FILES and (before == "embodied_perceptron" or is_path):
            return True
    return False


def check_typed(typed: Sequence[str], program: Sequence[str] | None = None) -> None:
    """Raise ``ValueError`` for a launch argument (``name:=value``) that none of the launch files has.

    Launch itself accepts any name silently. A launch file that includes one of these may have other arguments.
    ``program``: see :func:`is_launched`.
    """
    if not is_launched(program):
        return
    for text in typed:
        name, separator, _ = text.partition(":=")
        if separator and name not in LAUNCH_ARGUMENTS:
            near = difflib.get_close_matches(name, sorted(LAUNCH_ARGUMENTS), n=1)
            hint = f": did you mean {near[0]!r}?" if near else ", which ros2 launch --show-args lists"
            raise ValueError(f"there is no argument {name!r}{hint}")


def parse_names(text: str) -> list[str]:
    """Comma-separated names -> list; empty text -> empty list."""
    return [name.strip() for name in text.split(",") if name.strip()]


def parse_overrides(text: str) -> dict[str, Any]:
    """``name: value, other: value`` (YAML flow, braces optional) -> flat parameters; dots join nested names.

    Raises ``ValueError`` for text that is not a mapping.
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


# Default topics of common camera drivers; comments name settings that differ from the default.
CAMERA_PRESETS: dict[str, dict[str, Any]] = {
    "realsense": {  # realsense2_camera 4, align_depth.enable:=true
        "color_topic": "/camera/camera/color/image_raw",
        "depth_topic": "/camera/camera/aligned_depth_to_color/image_raw",
        "info_topic": "/camera/camera/color/camera_info",
    },
    "oak": {  # depthai_ros_driver; depth is aligned to colour by default
        "color_topic": "/oak/rgb/image_raw",
        "depth_topic": "/oak/stereo/image_raw",
        "info_topic": "/oak/rgb/camera_info",
    },
    "orbbec": {  # orbbec_camera, depth_registration:=true
        "color_topic": "/camera/color/image_raw",
        "depth_topic": "/camera/depth/image_raw",
        "info_topic": "/camera/color/camera_info",
    },
    "zed": {  # zed_wrapper 5
        "color_topic": "/zed/zed_node/rgb/color/rect/image",
        "depth_topic": "/zed/zed_node/depth/depth_registered",
        "info_topic": "/zed/zed_node/rgb/color/rect/camera_info",
        "rectified": True,
    },
    "kinect": {  # azure_kinect_ros_driver
        "color_topic": "/rgb/image_raw",
        "depth_topic": "/depth_to_rgb/image_raw",
        "info_topic": "/rgb/camera_info",
    },
    "tum": {  # bags of the TUM RGB-D benchmark
        "color_topic": "/camera/rgb/image_color",
        "depth_topic": "/camera/depth/image",
        "info_topic": "/camera/rgb/camera_info",
    },
}


def node_parameters(
    values: Mapping[str, str],
    cameras: Sequence[str] = (),
    file_values: Mapping[str, Any] | None = None,
    use_sim_time: bool = False,
    overrides: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Parameters to set over the YAML file: only those that were given.

    Args:
        values: :data:`PARAMETER_ARGUMENTS` by name; empty = not given. Other names are ignored.
        cameras: their names; empty = those of the file.
        file_values: from :func:`check_config`.
        use_sim_time: whether time comes from /clock.
        overrides: replace all others.

    Raises ``ValueError`` for an unknown preset, for topics with several cameras and for a bad ``detections_topic``,
    ``FileNotFoundError`` for a ``map_file`` that does not exist.
    """
    values = without_none(values)
    given = {name: values[name] for name in _NODE_ARGUMENTS if values.get(name)}
    if "classes" in given and "," not in given["classes"] and Path(given["classes"]).expanduser().is_file():
        given["classes"] = str(Path(given["classes"]).expanduser().absolute())
    if "map_file" in given:
        if not Path(given["map_file"]).expanduser().is_file():
            raise FileNotFoundError(f"no map at {given['map_file']}")
        given["map_file"] = str(Path(given["map_file"]).expanduser().absolute())
    parameters = {**_topics_of_cameras(values, cameras or (file_values or {}).get("cameras", ["camera"])), **given}
    if cameras:
        parameters["cameras"] = list(cameras)
    if use_sim_time:
        parameters["use_sim_time"] = True
    return {**parameters, **(overrides or {})}


def _topics_of_cameras(values: Mapping[str, str], cameras: Sequence[str]) -> dict[str, Any]:
    """Topics of a single camera (the preset's; single topics override them), and the detections of each camera.

    ``{camera}`` in ``detections_topic`` is replaced by each camera's name; without it all cameras share the topic, and
    ``frame_id`` distinguishes them.
    """
    preset, detections = values.get("camera", ""), values.get("detections_topic", "")
    if preset and preset not in CAMERA_PRESETS:
        raise ValueError(f"camera must be one of {', '.join(CAMERA_PRESETS)}, got {preset!r}")
    topics = {**CAMERA_PRESETS.get(preset, {})}
    topics |= {parameter: values[name] for name, parameter in _TOPIC_ARGUMENTS.items() if values.get(name)}
    if topics and len(cameras) != 1:
        raise ValueError(
            f"there are {len(cameras)} cameras ({', '.join(cameras)}): give their topics by "
            f"parameters:='{cameras[0] if cameras else 'front'}.color_topic: TOPIC, ...'"
        )
    if set("{}") & set(detections.replace("{camera}", "")):
        raise ValueError(f"detections_topic: only {{camera}} may stand in braces, got {detections!r}")
    of_each = {f"{name}.detections_topic": detections.replace("{camera}", name) for name in cameras if detections}
    return {**{f"{cameras[0]}.{name}": value for name, value in topics.items()}, **of_each}


def ros_arguments(
    config: Path,
    parameters: Mapping[str, Any],
    remappings: Sequence[tuple[str, str]] = (),
    namespace: str = "",
    log_level: str = "",
) -> list[str]:
    """Parameters as command-line arguments ``--ros-args ...``. Raises as :func:`check_config`."""
    check_config(config, namespace)
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


def check_config(config: Path, namespace: str | None = None) -> dict[str, Any]:
    """The node's parameters in a parameter file, flat: ``{"camera.color_topic": "/rgb", ...}``.

    ``namespace``: of the node; None = any.

    Raises ``FileNotFoundError`` for a missing file; ``ValueError`` for a file that is not YAML or has no parameters
    for a node of this name and namespace (rcl would start the node with defaults).
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
    if namespace is not None:
        path = f"/{namespace.strip('/')}/{NODE_NAME}".replace("//", "/")
        fitting = [section for name, section in sections.items() if _fits(name.strip("/").split("/"), path)]
        if not fitting:
            names = ", ".join(name for name in sections if name.rpartition("/")[2] in (NODE_NAME, "*", "**"))
            raise ValueError(
                f"{config} is for {names}, but the node is {path} (namespace {namespace!r}): "
                f"write /**/{NODE_NAME} in the file, or give the file's namespace"
            )
        mine = fitting
    for section in mine:
        found |= _flatten(section)
    return found


def _fits(pattern: Sequence[str], path: str) -> bool:
    """Match a section's name with a node's as rcl does: ``*`` is one part of it, ``**`` any number."""
    expression = ""
    for part in pattern:
        expression += {"**": "(/[^/]+)*", "*": "/[^/]+"}.get(part, "/" + re.escape(part))
    return re.fullmatch(expression, path) is not None


def _sections(data: Mapping[Any, Any], prefix: str = "") -> dict[str, Mapping[Any, Any]]:
    """Parameters by node name; its namespace may be nested or a prefix."""
    sections: dict[str, Mapping[Any, Any]] = {}
    for key, value in data.items():
        if key == "ros__parameters":
            sections[prefix] = value if isinstance(value, dict) else {}
        elif isinstance(value, dict):
            sections |= _sections(value, f"{prefix}/{str(key).lstrip('/')}")
    return sections


def parameter_text(value: Any) -> str:
    """A value for rcl's command line: YAML flow style in one line, strings always quoted."""
    if isinstance(value, str):
        return yaml.safe_dump(value, default_style='"', width=2**20).strip()
    return str(yaml.safe_dump(value, default_flow_style=True, width=2**20)).replace("\n...", "").strip()


def rviz_remappings(namespace: str, color_topic: str = "color/image_raw") -> list[tuple[str, str]]:
    """(from, to) pairs that move the layout's topics into ``namespace``, and its image to ``color_topic``."""
    prefix = f"/{namespace.strip('/')}".rstrip("/")
    moved = {topic: f"{prefix}{topic}" for topic in RVIZ_TOPICS}
    moved[RVIZ_TOPICS[0]] = color_topic if color_topic.startswith("/") else f"{prefix}/{color_topic}"
    return [(topic, other) for topic, other in moved.items() if topic != other]


def rviz_arguments(layout: Path, values: Mapping[str, Any]) -> list[str]:
    """Arguments of rviz2: the layout, and the output frame as fixed frame.

    ``values`` are the node's parameters. Raises ``FileNotFoundError`` for a missing layout.
    """
    if not layout.is_file():
        raise FileNotFoundError(f"no RViz layout at {layout}")
    return ["-d", str(layout), "-f", values.get("output_frame") or values.get("fusion_frame") or "odom"]


def first_color_topic(values: Mapping[str, Any]) -> str:
    """Colour topic of the first camera; ``values`` are the node's parameters."""
    cameras = list(values.get("cameras") or ["camera"])
    given = values.get(f"{cameras[0]}.color_topic")
    return str(given or ("color/image_raw" if len(cameras) == 1 else f"{cameras[0]}/color/image_raw"))


def foxglove_layout(layout: str, namespace: str, fixed_frame: str) -> str:
    """Adapt a Foxglove layout (JSON) to a node in ``namespace`` and to ``fixed_frame``."""
    prefix = namespace.strip("/")
    data = json.loads(layout)
    scene = data["configById"]["3D!perception"]
    scene["followTf"] = fixed_frame
    text = json.dumps(data, indent=2)
    if prefix:
        text = re.sub(rf'"/({NODE_NAME}/|grounding_query")', rf'"/{prefix}/\1', text)
    return text + "\n"


def own_foxglove_layout(shipped: Path, namespace: str, values: Mapping[str, Any]) -> Path:
    """The shipped layout, or a copy in the user's cache adapted to another namespace or frame."""
    frame = values.get("output_frame") or values.get("fusion_frame") or "odom"
    if not namespace.strip("/") and frame == "odom":
        return shipped
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "embodied_perceptron"
    cache.mkdir(parents=True, exist_ok=True)
    name = "_".join(part for part in (*namespace.strip("/").split("/"), *frame.strip("/").split("/")) if part)
    own = cache / f"foxglove_{name}.json"
    own.write_text(foxglove_layout(shipped.read_text(encoding="utf-8"), namespace, frame), encoding="utf-8")
    return own


# argument of the launch files -> the package that it starts
EXTRAS = {"rviz": "rviz2", "foxglove": "foxglove_bridge"}


class ProcessFailedError(RuntimeError):
    """A process of a launch file failed."""


def check_exit_code(name: str, event: Any, context: Any) -> None:
    """Handle the end of a process (``OnProcessExit``).

    Raises :class:`ProcessFailedError` if it failed by itself: launch then ends the other processes and exits with 1,
    otherwise always with 0. Not if another launch file includes this one: the rest of the robot continues.
    """
    if event.returncode and not context.is_shutdown and is_launched():
        raise ProcessFailedError(f"{name} ended with exit code {event.returncode}: see its output above")


def check_extras(arguments: Mapping[str, str], find: Callable[[str], Any]) -> None:
    """Raise ``RuntimeError`` if the package for ``rviz:=true`` or ``foxglove:=true`` is not installed.

    ``find`` raises ``LookupError`` for a missing package (``ament_index_python.get_package_prefix``).
    """
    for argument, package in EXTRAS.items():
        if parse_flag(arguments.get(argument, "false"), argument):
            try:
                find(package)
            except LookupError as error:
                apt = f"apt install ros-$ROS_DISTRO-{package.replace('_', '-')}"
                raise RuntimeError(f"{argument}:=true needs the package {package}: {apt}") from error


def split_pair(text: str, what: str) -> tuple[str, str]:
    """``a:=b`` -> (a, b). Raises ``ValueError`` naming ``what``."""
    left, separator, right = text.partition(":=")
    if not separator or not left or not right:
        raise ValueError(f"{what} must look like name:=value, got {text!r}")
    return left, right


def player_for(source: Path) -> str:
    """The player for ``source``: ``folder_player`` (TUM RGB-D layout) or ``bag_player``.

    Raises ``FileNotFoundError`` for a missing source, ``ValueError`` for another format.
    """
    if not source.exists():
        raise FileNotFoundError(f"no recording at {source}")
    if source.suffix in (".mcap", ".db3") or (source / "metadata.yaml").is_file():
        return "bag_player"
    if (source / "rgb.txt").is_file() or (source / "cameras.json").is_file():  # one camera, or several
        return "folder_player"
    raise ValueError(f"{source} is neither a bag (.mcap, .db3, metadata.yaml) nor a TUM RGB-D folder (rgb.txt)")


def player_command(source: Path, rate: float = 1.0, clock: bool = True) -> tuple[str, list[str]]:
    """Player and its arguments for ``source``. Raises as :func:`player_for`, and ``ValueError`` for a bad rate."""
    if not rate > 0:
        raise ValueError(f"rate must be positive, got {rate}")
    return player_for(source), [str(source), "--rate", str(rate), *(["--clock"] if clock else [])]
