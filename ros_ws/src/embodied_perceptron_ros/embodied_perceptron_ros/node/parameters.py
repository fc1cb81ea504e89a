"""The node's parameters: names, defaults, ranges, and which may change at run time.

ROS parameters carry topics, frames, rates and the path of a configuration file, which has everything else. Parameters
that repeat a value of the file (``voxel_size_m`` ...) override it unless they are 0 or empty; ``weights`` overrides it
unless it is ``config``, since its empty value means "no network".
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    ParameterType,
    SetParametersResult,
)
from rclpy.node import Node
from rclpy.parameter import Parameter
from sensor_msgs.msg import CameraInfo, CompressedImage, Image

from embodied_perceptron.config import PerceptronConfig, load_config
from embodied_perceptron_ros.node.map_folder import MapFolder

Kind = Literal["color", "depth", "info", "depth_info"]
CALIBRATIONS: tuple[Kind, ...] = ("info", "depth_info")
TIME_JUMP_ACTIONS = ("keep", "reset")
INF_MEANINGS = ("free", "unknown")
_DEVICE = re.compile(r"cpu|auto|cuda(:\d+)?")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_FRAME = re.compile(r"/?[A-Za-z0-9_][A-Za-z0-9_./-]*")


class ParameterError(ValueError):
    """Bad parameters; the message names each and what is allowed."""


@dataclass(frozen=True)
class _Declaration:
    """One parameter; ``live``: it may change while the node is configured."""

    default: Any
    description: str
    low: float | None = None
    high: float | None = None
    live: bool = False
    choices: tuple[str, ...] = ()

    def choices_text(self) -> str:
        """``one of a, b (or empty, none)``."""
        named = ", ".join(choice for choice in self.choices if choice)
        return f"one of {named}" + (" (or empty, none)" if "" in self.choices else "")

    def descriptor(self) -> ParameterDescriptor:
        constraints = self.choices_text() if self.choices else ""
        descriptor = ParameterDescriptor(description=self.description, additional_constraints=constraints)
        if self.low is not None and self.high is not None:
            if isinstance(self.default, int):
                integers = IntegerRange(from_value=int(self.low), to_value=int(self.high), step=0)
                descriptor.integer_range = [integers]
            else:
                floats = FloatingPointRange(from_value=float(self.low), to_value=float(self.high), step=0.0)
                descriptor.floating_point_range = [floats]
        if isinstance(self.default, list):
            descriptor.type = ParameterType.PARAMETER_STRING_ARRAY
        return descriptor


def _field(*declared: Any, **options: Any) -> Any:
    """A field that is a parameter; the arguments are those of :class:`_Declaration`."""
    declaration = _Declaration(*declared, **options)
    default = () if isinstance(declaration.default, list) else declaration.default
    return dataclasses.field(default=default, metadata={"declaration": declaration})


def _declarations(kind: type) -> dict[str, _Declaration]:
    return {f.name: f.metadata["declaration"] for f in dataclasses.fields(kind) if f.metadata}


@dataclass(frozen=True)
class CameraParameters:
    """One camera's parameters, ``<name>.<field>``."""

    name: str
    color_topic: str = _field("", "Colour images")
    depth_topic: str = _field("", "Depth images, registered to colour or in a frame of their own")
    info_topic: str = _field("", "sensor_msgs/CameraInfo of the colour images")
    color_transport: str = _field("raw", "Transport of the colour images", choices=("raw", "compressed"))
    depth_transport: str = _field(
        "raw", "Transport of the depth images", choices=("raw", "compressed", "compressedDepth")
    )
    inf_depth: str = _field(
        "free",
        "Meaning of +Inf in depth: 'free' up to max_range_m (REP-117), or 'unknown' for drivers that mean invalid",
        choices=INF_MEANINGS,
    )
    rectified: bool = _field(False, "Whether the images are rectified: P of camera_info holds, not K and D")
    detections_topic: str = _field("", "vision_msgs/Detection2DArray of another program for the colour images")
    depth_info_topic: str = _field(
        "",
        "sensor_msgs/CameraInfo of depth, to register depth of another frame or size; "
        "empty = camera_info in the namespace of the depth images",
    )

    @property
    def depth_info(self) -> str:
        """Topic of depth's calibration; empty if it is colour's."""
        above, _, _ = self.depth_topic.rpartition("/")
        topic = self.depth_info_topic or (f"{above}/camera_info" if above else "")
        return "" if topic == self.info_topic else topic

    @property
    def subscriptions(self) -> dict[Kind, tuple[type, str]]:
        """Message type and topic of each kind, with the names of image_transport."""
        images: dict[Kind, tuple[type, str]] = {}
        for kind, topic, transport in (
            ("color", self.color_topic, self.color_transport),
            ("depth", self.depth_topic, self.depth_transport),
        ):
            images[kind] = (Image, topic) if transport == "raw" else (CompressedImage, f"{topic}/{transport}")
        return {**images, "info": (CameraInfo, self.info_topic)}


@dataclass(frozen=True)
class NodeParameters:
    """Checked parameters: a field for each, and ``config``, which :data:`_OVERRIDES` change."""

    autostart: bool = _field(True, "Configure and activate on start, without a lifecycle manager")
    config_file: str = _field("", "YAML file with the configuration of the algorithm; empty = built-in defaults")
    map_file: str = _field("", "Map to load when the node is configured; empty = start with an empty map")
    find_place: bool = _field(
        True,
        "Whether the robot searches its place in a loaded map by what its cameras see; false = the map lies at the "
        "pose given with it, or where it was saved",
        live=True,
    )
    map_frame: str = _field(
        "", "Frame of the map, published on /tf_static above the fusion frame; empty = a SLAM system does"
    )
    map_folder: str = _field("", "Folder that ~/save_map and ~/load_map write and read; empty = the user's data folder")
    cameras: tuple[CameraParameters, ...] = _field(
        ["camera"], "Names of the cameras; each has parameters <name>.color_topic and so on"
    )
    fusion_frame: str = _field("odom", "Frame in which the map is built; must be continuous (REP-105)")
    output_frame: str = _field("", "Frame of everything published; empty = the fusion frame", live=True)
    base_frame: str = _field("base_link", "Frame of the robot, in which ~/obstacles is published", live=True)
    obstacles_range_m: float = _field(
        3.0, "Range of ~/obstacles; clearing points lie at this distance", 0.5, 20.0, live=True
    )
    moveit: bool = _field(False, "Publish objects on ~/planning_scene for MoveIt; needs the package moveit_msgs")
    viewpoint_frame: str = _field("", "Viewpoint of words like 'left of'; empty = the newest camera", live=True)
    keyframe_path_topic: str = _field("", "nav_msgs/Path of corrected keyframe poses in the fusion frame; empty = none")
    keyframe_path_child: str = _field("", "Frame whose poses that path has; empty = the cameras' optical frames")
    viewer: str = _field("", "Live view in addition to RViz and Foxglove; empty = none", choices=("", "rerun", "web"))
    viewer_file: str = _field("", "File (.rrd) of Rerun's live view; empty = a window")
    web_host: str = _field("127.0.0.1", "Address that viewer:=web listens on; 0.0.0.0 = all networks, with the token")
    web_port: int = _field(8085, "Port that viewer:=web listens on; 0 = any free port", 0, 65535)
    web_token: str = _field("", "Token for browsers (letters, digits, - and _); empty = a new one for other machines")
    perception_hz: float = _field(3.0, "Maximum rate of boxes, occupancy and the grid", 0.05, 30.0, live=True)
    voxels_hz: float = _field(1.0, "Maximum rate of ~/voxels", 0.05, 30.0, live=True)
    voxels_max_points: int = _field(
        200_000,
        "Maximum number of points in ~/voxels, 20 bytes each; a larger map is published in coarser cells",
        1_000,
        10_000_000,
        live=True,
    )
    grid_full_s: float = _field(
        0.0,
        "Seconds between whole messages on ~/occupancy_grid while ~/occupancy_grid_updates has subscribers and only "
        "cells change; 0 = always whole, without updates",
        0.0,
        3600.0,
        live=True,
    )
    overlay_hz: float = _field(2.0, "Maximum rate of ~/overlay/image", 0.05, 30.0, live=True)
    diagnostics_hz: float = _field(1.0, "Rate of /diagnostics", 0.1, 10.0)
    bond_heartbeat_period: float = _field(
        0.1, "Seconds between heartbeats to Nav2's lifecycle manager while the node is active; 0 = none", 0.0, 10.0
    )
    on_time_jump: str = _field(
        "keep",
        "What to do with the map when a bag loops or a simulation restarts",
        live=True,
        choices=TIME_JUMP_ACTIONS,
    )
    max_backlog: int = _field(3, "Frames that may wait for fusion; beyond it the oldest is dropped", 1, 100, live=True)
    query_queue_size: int = _field(64, "Queries that may wait; further ones are answered INVALID at once", 1, 10_000)
    max_standing_queries: int = _field(16, "Number of standing queries; further ones are answered INVALID", 0, 1000)
    max_queries_hz: float = _field(
        100.0, "Queries a second after a burst; further ones are INVALID", 0.1, 1e4, live=True
    )
    default_top_k: int = _field(5, "Candidates of an answer if the query does not say", 1, 100, live=True)
    robot_radius_m: float = _field(
        0.3, "Free radius that the robot needs at the approach of an answer", 0.05, 1.4, live=True
    )
    config: PerceptronConfig = dataclasses.field(default_factory=PerceptronConfig)

    def __post_init__(self) -> None:
        if not self.output_frame:
            object.__setattr__(self, "output_frame", self.fusion_frame)


_D = _Declaration
CAMERA_DECLARATIONS = _declarations(CameraParameters)
DECLARATIONS = {
    **_declarations(NodeParameters),
    # values of the configuration
    "weights": _D(
        "config", "Network: a shipped name or a weights file; '' or 'none' = no network, 'config' = as in config_file"
    ),
    "classes": _D(
        "",
        "Published names; all other objects are 'object': a file with one name a line, or names separated by commas; "
        "empty = as in the configuration (all)",
    ),
    "spill_folder": _D(
        "", "Folder for parts of the map that the robot has left; empty = as in config_file (none: deleted)"
    ),
    "sentence_reader": _D(
        "",
        "Reader of sentences; 'endpoint' sends them to a language model; empty = as in the configuration (learned)",
        choices=("", "learned", "endpoint"),
    ),
    "sentence_endpoint": _D(
        "",
        "URL of the language model's OpenAI-compatible server, asked without a key; empty = as in the configuration, "
        "with the key named there",
    ),
    "sentence_model": _D("", "Name of the language model; empty = as in the configuration"),
    "device": _D("", "Device of the network: cpu, cuda, cuda:0, auto; empty = as in the configuration"),
    "window_m": _D(0.0, "Edge of the network's square window; 0 = as in the configuration", 0.0, 100.0),
    "voxel_size_m": _D(0.0, "Edge length of a map voxel; 0 = as in the configuration", 0.0, 1.0),
    "max_range_m": _D(0.0, "Largest depth that is used; 0 = as in the configuration", 0.0, 100.0),
    "radius_m": _D(0.0, "Radius of the map around the camera; 0 = as in the configuration", 0.0, 1000.0),
    "max_blocks": _D(0, "Largest number of blocks in the map; 0 = as in the configuration", 0, 100_000_000),
    "max_pose_wait_s": _D(0.0, "How long a frame waits for its pose; 0 = as in the configuration", 0.0, 60.0),
    "pair_tolerance_s": _D(0.0, "Largest difference of colour and depth stamps; 0 = as in the configuration", 0.0, 1.0),
    "detections_tolerance_s": _D(
        0.0, "Largest difference of the stamps of 2-D detections and images; 0 = as in the configuration", 0.0, 1.0
    ),
    "persons": _D(
        "",
        "People seen by the node's 2-D detector: 'masked' out of the map, or 'mapped'; empty = as configured",
        choices=("", "masked", "mapped"),
    ),
    "grid_resolution_m": _D(0.0, "Cell size of the navigation grid; 0 = as in the configuration", 0.0, 1.0),
    "min_obstacle_height_m": _D(
        0.0, "Lowest height above the floor that blocks the robot; 0 = as in the configuration", 0.0, 10.0
    ),
    "max_obstacle_height_m": _D(
        0.0, "Largest height above the floor that blocks the robot; 0 = as in the configuration", 0.0, 10.0
    ),
}
# parameter -> section of PerceptronConfig and its field
_OVERRIDES = {
    **{name: ("volume", name) for name in ("voxel_size_m", "max_range_m", "radius_m", "max_blocks")},
    **{name: ("assembler", name) for name in ("max_pose_wait_s", "pair_tolerance_s")},
    **{name: ("network", name) for name in ("device", "window_m")},
    "grid_resolution_m": ("grid", "resolution_m"),
    **{name: ("grid", name) for name in ("min_obstacle_height_m", "max_obstacle_height_m")},
    "detections_tolerance_s": ("lift", "stamp_tolerance_s"),
    "persons": ("lift", "persons"),
    "sentence_reader": ("language", "reader"),
    "sentence_endpoint": ("language", "endpoint"),
    "sentence_model": ("language", "model"),
    "spill_folder": ("spill", "folder"),
}
AS_CONFIGURED, NO_WEIGHTS = "config", "none"  # values of the parameter weights


def declare_parameters(node: Node) -> None:
    """Declare all parameters but those of the cameras. Integers are accepted for floating-point parameters.

    Raises :class:`ParameterError` for unknown names; rclpy raises for a wrong type or range.
    """
    given = node._parameter_overrides  # rclpy has no other access to the values of command line and files
    cameras = given["cameras"].value if "cameras" in given else DECLARATIONS["cameras"].default
    problems = unknown_parameters(given, cameras if isinstance(cameras, (list, tuple)) else ())
    if problems:
        raise ParameterError("; ".join(problems))
    given.update({parameter.name: parameter for parameter in integers_as_doubles(list(given.values()))})
    for name, declaration in DECLARATIONS.items():
        node.declare_parameter(name, declaration.default, declaration.descriptor())
    if hasattr(node, "add_pre_set_parameters_callback"):  # not in Humble: there, "ros2 param set NAME 5.0"
        node.add_pre_set_parameters_callback(integers_as_doubles)


# declared by rclpy in every node
_COMMON_PARAMETERS = ("use_sim_time", "start_type_description_service")
_QOS_OVERRIDE = re.compile(
    r"qos_overrides\..+\.(publisher|subscription)(_[^.]+)?\."
    r"(avoid_ros_namespace_conventions|deadline|depth|durability|history|lifespan|liveliness|liveliness_lease_duration|"
    r"reliability)"
)


def unknown_parameters(names: Iterable[str], cameras: Sequence[str]) -> list[str]:
    """One message for every name that is no parameter of a node with these cameras, with the closest known name.

    The default camera's parameters are always known, since the shipped file has them.
    """
    there = (*cameras, *DECLARATIONS["cameras"].default)
    of_cameras = (f"{camera}.{key}" for camera in there for key in CAMERA_DECLARATIONS)
    known = {*DECLARATIONS, *_COMMON_PARAMETERS, *of_cameras}
    problems = []
    for name in names:
        if name in known or _QOS_OVERRIDE.fullmatch(name):
            continue
        camera, _, key = name.rpartition(".")
        near = difflib.get_close_matches(name, sorted(known), n=1)
        if camera and key in CAMERA_DECLARATIONS and camera not in there:
            problems.append(f"{name}: there is no camera {camera!r}, cameras are {', '.join(cameras)}")
        elif name.startswith("qos_overrides."):
            problems.append(f"{name}: must look like qos_overrides.TOPIC.subscription.reliability")
        else:
            problems.append(f"unknown parameter {name!r}" + (f": did you mean {near[0]!r}?" if near else ""))
    return problems


def unused_overrides(node: Node) -> list[str]:
    """QoS overrides without a publisher or subscription, mostly of a misspelt topic."""
    given: Iterable[str] = node._parameter_overrides
    return sorted(name for name in given if name.startswith("qos_overrides.") and not node.has_parameter(name))


def integers_as_doubles(parameters: list[Parameter[Any]]) -> list[Parameter[Any]]:
    """Convert integers to floating-point numbers for parameters that need them (``max_range_m: 5``)."""
    return [
        Parameter(p.name, Parameter.Type.DOUBLE, float(p.value))
        if p.type_ == Parameter.Type.INTEGER
        and p.name in DECLARATIONS
        and isinstance(DECLARATIONS[p.name].default, float)
        else p
        for p in parameters
    ]


def read_parameters(node: Node) -> NodeParameters:
    """Read and check all parameters; declare those of the cameras.

    Raises ``ValueError`` naming the parameter, ``OSError`` when the configuration file cannot be opened.
    """
    values = {name: _without_none(name, node.get_parameter(name).value) for name in DECLARATIONS}
    for name, value in values.items():
        problem = parameter_problem(name, value)
        if problem:
            raise ValueError(problem)
    cameras = _read_cameras(node, values.pop("cameras"))
    overrides = {name: values.pop(name) for name in (*_OVERRIDES, "weights", "classes")}
    config = _read_config(values["config_file"], overrides)
    cameras, config = _with_detections(cameras, config)
    return NodeParameters(**values, cameras=cameras, config=config)


def _without_none(name: str, value: Any) -> Any:
    """Replace ``none`` by the empty string in parameters that are empty by default."""
    declaration = DECLARATIONS.get(name) or CAMERA_DECLARATIONS.get(name.rpartition(".")[2])
    is_none = isinstance(value, str) and value.strip().lower() == "none"
    may_be = declaration is not None and declaration.default == ""
    return "" if is_none and may_be else value


def _with_detections(
    cameras: tuple[CameraParameters, ...], config: PerceptronConfig
) -> tuple[tuple[CameraParameters, ...], PerceptronConfig]:
    """A ``detections_topic`` sets ``lift.from_topics``; if the configuration sets it, every camera gets a topic."""
    if config.lift.from_topics:
        topics = [camera.detections_topic or f"{camera.name}/detections" for camera in cameras]
        cameras = tuple(
            dataclasses.replace(camera, detections_topic=topic) for camera, topic in zip(cameras, topics, strict=True)
        )
    elif any(camera.detections_topic for camera in cameras):
        config = dataclasses.replace(config, lift=dataclasses.replace(config.lift, from_topics=True))
    return cameras, config


def _read_config(path: str, overrides: dict[str, Any]) -> PerceptronConfig:
    config = load_config(path) if path else PerceptronConfig()
    changes: dict[str, dict[str, Any]] = {section: {} for section, _ in _OVERRIDES.values()}
    for name, (section, field) in _OVERRIDES.items():
        if overrides[name]:
            changes[section][field] = overrides[name]
    if overrides["sentence_endpoint"]:
        changes["language"]["api_key_variable"] = ""  # the file's key goes to the file's endpoint only
    if overrides["weights"] != AS_CONFIGURED:
        changes["network"]["weights"] = "" if overrides["weights"] == NO_WEIGHTS else overrides["weights"]
    if overrides["classes"]:
        try:
            from embodied_perceptron.language.class_list import read_names  # imports torch: only when needed

            changes["network"]["classes"] = read_names(overrides["classes"])
        except ValueError as error:
            raise ValueError(f"classes: {error}") from error
    sections = {name: dataclasses.replace(getattr(config, name), **fields) for name, fields in changes.items()}
    return dataclasses.replace(config, **sections)


def effective_values(parameters: NodeParameters) -> dict[str, Any]:
    """Values in use of the parameters that may say "as configured" or "default", by parameter."""
    config = parameters.config
    values: dict[str, Any] = {"output_frame": parameters.output_frame}
    values |= {name: getattr(getattr(config, section), field) for name, (section, field) in _OVERRIDES.items()}
    values["weights"] = config.network.weights or NO_WEIGHTS
    values["map_folder"] = str(MapFolder(parameters.map_folder).path)
    for camera in parameters.cameras:
        values |= {f"{camera.name}.{key}": getattr(camera, key) for key in CAMERA_DECLARATIONS}
    return values


class ReadBack:
    """Sets parameters to the values in use while the node is configured, and restores the given values afterwards:
    otherwise the next configuration would take them for the user's."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._given: dict[str, Any] = {}
        self.is_writing = False  # the node then accepts every change

    def show(self, values: Mapping[str, Any]) -> None:
        """Set the values in use; rclpy keeps the given one if the range does not allow it (an infinite window)."""
        self._given |= {n: self._node.get_parameter(n).value for n in values if n not in self._given}
        self._write(values)

    def restore(self) -> None:
        """Restore the given values, except those that the user has changed since."""
        given, self._given = self._given, {}
        self._write(given)

    def changed(self, parameters: Sequence[Parameter[Any]]) -> None:
        """Register a change by the user."""
        for parameter in parameters:
            self._given.pop(parameter.name, None)

    def _write(self, values: Mapping[str, Any]) -> None:
        self.is_writing = True
        try:
            changes = [(n, v) for n, v in values.items() if self._node.get_parameter(n).value != v]
            self._node.set_parameters([Parameter(name, value=value) for name, value in changes])
        finally:
            self.is_writing = False


def default_topics(camera: str, alone: bool) -> dict[str, str]:
    """Default topics of a camera; with several cameras, its name is the prefix."""
    prefix = "" if alone else f"{camera}/"
    return {
        "color_topic": f"{prefix}color/image_raw",
        "depth_topic": f"{prefix}depth/image_raw",
        "info_topic": f"{prefix}color/camera_info",
    }


def _read_cameras(node: Node, names: Sequence[str]) -> tuple[CameraParameters, ...]:
    cameras = []
    for name in names:
        defaults = default_topics(name, alone=len(names) == 1)
        values: dict[str, Any] = {}
        for field, declaration in CAMERA_DECLARATIONS.items():
            key = f"{name}.{field}"
            if not node.has_parameter(key):
                node.declare_parameter(key, declaration.default, declaration.descriptor())
            values[field] = _without_none(key, node.get_parameter(key).value) or defaults.get(
                field, declaration.default
            )
            problem = parameter_problem(key, values[field])
            if problem:
                raise ValueError(problem)
        cameras.append(CameraParameters(name, **values))
    return tuple(cameras)


def parameter_problem(name: str, value: Any) -> str:
    """Why ``value`` is bad for parameter ``name``; empty if it is good. rclpy checks ranges."""
    declaration = DECLARATIONS.get(name) or CAMERA_DECLARATIONS.get(name.rpartition(".")[2])
    if declaration is None:
        return ""
    if declaration.choices and value not in declaration.choices:
        return f"{name} must be {declaration.choices_text()}, got {value!r}"
    if name == "device" and value and not _DEVICE.fullmatch(value):
        return f"device must be cpu, cuda, cuda:0 (or another number) or auto, got {value!r}"
    if name == "cameras":
        if not value:
            return "cameras must name at least one camera"
        for camera in value:
            if not _NAME.fullmatch(camera) or camera in DECLARATIONS:
                return f"cameras: {camera!r} is not a valid name (letters, digits, underscores)"
        if len(set(value)) < len(value):
            return f"cameras: names must differ, got {list(value)}"
    optional = ("output_frame", "viewpoint_frame", "map_frame")
    if name.endswith("_frame") and not _FRAME.fullmatch(value) and not (name in optional and not value):
        return f"{name} must be the name of a frame, got {value!r}"
    return ""


def check_change(parameters: Sequence[Parameter[Any]], configured: bool) -> SetParametersResult:
    """Accept or refuse changes at run time; while ``configured``, only live parameters may change."""
    for parameter in parameters:
        problem = parameter_problem(parameter.name, _without_none(parameter.name, parameter.value))
        if problem:
            return SetParametersResult(successful=False, reason=problem)
        declaration = DECLARATIONS.get(parameter.name)
        camera = parameter.name.rpartition(".")[2] in CAMERA_DECLARATIONS and declaration is None
        if configured and (camera or (declaration is not None and not declaration.live)):
            reason = f"{parameter.name} takes effect when the node is configured: clean it up first, then set it"
            return SetParametersResult(successful=False, reason=reason)
    return SetParametersResult(successful=True)


def apply_change(current: NodeParameters, parameters: Sequence[Parameter[Any]]) -> NodeParameters:
    """Apply accepted changes to ``current``."""
    changes = [p for p in parameters if p.name in DECLARATIONS and DECLARATIONS[p.name].live]
    live = {p.name: _without_none(p.name, p.value) for p in changes}
    return dataclasses.replace(current, **live)
