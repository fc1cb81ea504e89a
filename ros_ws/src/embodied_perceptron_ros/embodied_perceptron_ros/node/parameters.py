"""The node's parameters: names, defaults, ranges, and what may change while it runs.

ROS parameters carry topics, frames, rates and one path to a configuration file; everything else stands in that file.
The few that repeat a value of the file (``voxel_size_m`` ...) override it where they are not 0 or empty; ``weights``,
of which "" means "no network" here as there, overrides it where it is not ``config``.
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
    """Parameters that cannot be used; the message names each, and what would do."""


@dataclass(frozen=True)
class _Declaration:
    """One parameter: default, meaning, range, whether it may change while the node is configured or active."""

    default: Any
    description: str
    low: float | None = None
    high: float | None = None
    live: bool = False
    choices: tuple[str, ...] = ()

    def choices_text(self) -> str:
        """``one of a, b``, the empty one in words."""
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


_D = _Declaration
DECLARATIONS: dict[str, _Declaration] = {
    "autostart": _D(True, "Configure and activate on start, without a lifecycle manager"),
    "config_file": _D("", "YAML file with the configuration of the algorithm; empty = built-in defaults"),
    "map_file": _D("", "Map to load when the node is configured; empty = start with an empty map"),
    "find_place": _D(
        True,
        "Whether the robot finds its place in a loaded map by what its cameras see; false = the map lies at the pose "
        "given with it, or where it was saved",
        live=True,
    ),
    "map_frame": _D("", "Frame of the map, published on /tf_static above the fusion frame; empty = a SLAM system does"),
    "map_folder": _D("", "Folder below which ~/save_map and ~/load_map write and read; empty = the user's data folder"),
    "cameras": _D(["camera"], "Names of the cameras; each has parameters <name>.color_topic and so on"),
    "fusion_frame": _D("odom", "Frame in which the map is built; must be continuous (REP-105)"),
    "output_frame": _D("", "Frame of everything published; empty = the fusion frame", live=True),
    "base_frame": _D("base_link", "Frame of the robot: of ~/obstacles, which are the points around it", live=True),
    "obstacles_range_m": _D(3.0, "How far ~/obstacles reach; clearing points lie there", 0.5, 20.0, live=True),
    "viewpoint_frame": _D("", "Frame that words like 'left of' are seen from; empty = the newest camera", live=True),
    "keyframe_path_topic": _D("", "nav_msgs/Path of corrected keyframe poses in the fusion frame; empty = none"),
    "keyframe_path_child": _D("", "Frame whose poses that path has; empty = the cameras' optical frames"),
    "viewer": _D("", "Live view of everything, beside RViz and Foxglove; empty = none", choices=("", "rerun", "web")),
    "viewer_file": _D("", "Where Rerun's live view is recorded (.rrd); empty = a window"),
    "web_host": _D("127.0.0.1", "Address that viewer:=web listens on; 0.0.0.0 = everybody who has the token"),
    "web_port": _D(8085, "Port that viewer:=web listens on; 0 = any free one", 0, 65535),
    "web_token": _D("", "What a browser must show (letters, digits, - and _); empty = made anew beyond this machine"),
    "perception_hz": _D(3.0, "How often boxes, occupancy and the grid are made at most", 0.05, 30.0, live=True),
    "voxels_hz": _D(1.0, "How often ~/voxels is published at most", 0.05, 30.0, live=True),
    "voxels_max_points": _D(
        200_000,
        "Points of ~/voxels at most, of 20 bytes each; a larger map is published in coarser cells",
        1_000,
        10_000_000,
        live=True,
    ),
    "grid_full_s": _D(
        0.0,
        "How often ~/occupancy_grid is published whole while somebody listens to ~/occupancy_grid_updates and only "
        "cells change; 0 = each time, without updates",
        0.0,
        3600.0,
        live=True,
    ),
    "overlay_hz": _D(2.0, "How often ~/overlay/image is published at most", 0.05, 30.0, live=True),
    "diagnostics_hz": _D(1.0, "How often /diagnostics is published", 0.1, 10.0),
    "bond_heartbeat_period": _D(
        0.1, "Seconds between heartbeats to Nav2's lifecycle manager while the node is active; 0 = none", 0.0, 10.0
    ),
    "on_time_jump": _D(
        "keep",
        "What becomes of the map when a bag loops or a simulation restarts",
        live=True,
        choices=TIME_JUMP_ACTIONS,
    ),
    "max_backlog": _D(3, "Frames that may wait for fusion; the oldest is dropped beyond it", 1, 100, live=True),
    "query_queue_size": _D(64, "Queries that may wait; further ones are answered INVALID at once", 1, 10_000),
    "max_standing_queries": _D(16, "Standing queries at a time; further ones are answered INVALID", 0, 1000),
    "max_queries_hz": _D(
        100.0, "Queries a second beyond a burst; further ones are INVALID unread", 0.1, 1e4, live=True
    ),
    "default_top_k": _D(5, "Candidates in an answer where the query does not say", 1, 100, live=True),
    "robot_radius_m": _D(
        0.3, "Room that the robot needs around it where an answer tells it to go", 0.05, 1.4, live=True
    ),
    "weights": _D(
        "config", "Network: a shipped name or a weights file; '' or 'none' = no network, 'config' = as in config_file"
    ),
    "classes": _D(
        "",
        "Names that are published, what belongs to none of them is 'object': a file with one a line, or several "
        "separated by commas; empty = as in the configuration (all)",
    ),
    "spill_folder": _D(
        "", "Folder for places left behind, which come back on return; empty = as in config_file (none: forgotten)"
    ),
    "sentence_reader": _D(
        "", "What reads sentences; empty = as in the configuration (learned)", choices=("", "learned")
    ),
    "device": _D("", "Where the network runs: cpu, cuda, cuda:0, auto; empty = as in the configuration"),
    "window_m": _D(0.0, "Edge of the square that the network looks at; 0 = as in the configuration", 0.0, 100.0),
    "voxel_size_m": _D(0.0, "Edge length of a map voxel; 0 = as in the configuration", 0.0, 1.0),
    "max_range_m": _D(0.0, "Depth that is used; 0 = as in the configuration", 0.0, 100.0),
    "radius_m": _D(0.0, "The map forgets what is further from the camera; 0 = as in the configuration", 0.0, 1000.0),
    "max_blocks": _D(0, "Block budget of the map; 0 = as in the configuration", 0, 100_000_000),
    "max_pose_wait_s": _D(0.0, "How long a frame waits for its pose; 0 = as in the configuration", 0.0, 60.0),
    "pair_tolerance_s": _D(0.0, "Colour and depth stamps may differ by this; 0 = as in the configuration", 0.0, 1.0),
    "detections_tolerance_s": _D(
        0.0, "Stamps of 2-D detections and images may differ by this; 0 = as in the configuration", 0.0, 1.0
    ),
    "persons": _D(
        "",
        "People whom a 2-D detector of the node sees: 'masked' out of the map, or 'mapped'; empty = as configured",
        choices=("", "masked", "mapped"),
    ),
    "grid_resolution_m": _D(0.0, "Cell of the navigation grid; 0 = as in the configuration", 0.0, 1.0),
    "min_obstacle_height_m": _D(
        0.0, "What is lower above the floor does not block the robot; 0 = as in the configuration", 0.0, 10.0
    ),
    "max_obstacle_height_m": _D(
        0.0, "What is higher above the floor does not block the robot; 0 = as in the configuration", 0.0, 10.0
    ),
}
CAMERA_DECLARATIONS: dict[str, _Declaration] = {
    "color_topic": _D("", "Colour images"),
    "depth_topic": _D("", "Depth images, registered to colour or in a frame of their own"),
    "info_topic": _D("", "sensor_msgs/CameraInfo of the colour images"),
    "depth_info_topic": _D(
        "",
        "sensor_msgs/CameraInfo of depth, which registers it where it is in another frame or of another size; "
        "empty = camera_info beside the depth images",
    ),
    "color_transport": _D("raw", "How colour comes", choices=("raw", "compressed")),
    "depth_transport": _D("raw", "How depth comes", choices=("raw", "compressed", "compressedDepth")),
    "inf_depth": _D(
        "free",
        "What +Inf in depth says: 'free' up to max_range_m (REP-117), or 'unknown' for drivers that mean invalid",
        choices=INF_MEANINGS,
    ),
    "detections_topic": _D("", "vision_msgs/Detection2DArray of another program for the colour images"),
    "rectified": _D(False, "The images are rectified already: P of camera_info holds, not K and D"),
}
_VOLUME_OVERRIDES = ("voxel_size_m", "max_range_m", "radius_m", "max_blocks")
_ASSEMBLER_OVERRIDES = ("max_pose_wait_s", "pair_tolerance_s")
_NETWORK_OVERRIDES = ("device", "window_m")
# parameter -> field of GridConfig
_GRID_OVERRIDES = {
    "grid_resolution_m": "resolution_m",
    "min_obstacle_height_m": "min_obstacle_height_m",
    "max_obstacle_height_m": "max_obstacle_height_m",
}
_LIFT_OVERRIDES = {"detections_tolerance_s": "stamp_tolerance_s", "persons": "persons"}
_LANGUAGE_OVERRIDES = {"sentence_reader": "reader"}
_SPILL_OVERRIDES = {"spill_folder": "folder"}
AS_CONFIGURED, NO_WEIGHTS = "config", "none"  # values of the parameter weights


@dataclass(frozen=True)
class CameraParameters:
    """One camera's topics."""

    name: str
    color_topic: str
    depth_topic: str
    info_topic: str
    color_transport: str
    depth_transport: str
    inf_depth: str
    rectified: bool
    detections_topic: str = ""
    depth_info_topic: str = ""

    @property
    def depth_info(self) -> str:
        """Topic of the calibration of depth; empty where that is colour's."""
        above, _, _ = self.depth_topic.rpartition("/")
        topic = self.depth_info_topic or (f"{above}/camera_info" if above else "")
        return "" if topic == self.info_topic else topic

    @property
    def subscriptions(self) -> dict[Kind, tuple[type, str]]:
        """Message type and topic of each kind, as image_transport names them."""
        images: dict[Kind, tuple[type, str]] = {}
        for kind, topic, transport in (
            ("color", self.color_topic, self.color_transport),
            ("depth", self.depth_topic, self.depth_transport),
        ):
            images[kind] = (Image, topic) if transport == "raw" else (CompressedImage, f"{topic}/{transport}")
        return {**images, "info": (CameraInfo, self.info_topic)}


@dataclass(frozen=True)
class NodeParameters:
    """What the parameters say, checked. Field names are the parameters' names; see :data:`DECLARATIONS`."""

    autostart: bool
    config_file: str
    map_file: str
    find_place: bool
    map_frame: str
    map_folder: str
    fusion_frame: str
    output_frame: str
    base_frame: str
    obstacles_range_m: float
    viewpoint_frame: str
    keyframe_path_topic: str
    keyframe_path_child: str
    viewer: str
    viewer_file: str
    web_host: str
    web_port: int
    web_token: str
    perception_hz: float
    voxels_hz: float
    voxels_max_points: int
    grid_full_s: float
    overlay_hz: float
    diagnostics_hz: float
    bond_heartbeat_period: float
    on_time_jump: str
    max_backlog: int
    query_queue_size: int
    max_standing_queries: int
    max_queries_hz: float
    default_top_k: int
    robot_radius_m: float
    cameras: tuple[CameraParameters, ...]
    config: PerceptronConfig

    def __post_init__(self) -> None:
        if not self.output_frame:
            object.__setattr__(self, "output_frame", self.fusion_frame)


def declare_parameters(node: Node) -> None:
    """Declare everything but the cameras' parameters.

    Raises :class:`ParameterError` for names that nobody knows, and lets integers serve for floating-point numbers;
    rclpy raises for other overrides of a wrong type or out of range.
    """
    given = node._parameter_overrides  # rclpy offers no other way to what the command line and the files say
    cameras = given["cameras"].value if "cameras" in given else DECLARATIONS["cameras"].default
    problems = unknown_parameters(given, cameras if isinstance(cameras, (list, tuple)) else ())
    if problems:
        raise ParameterError("; ".join(problems))
    given.update({parameter.name: parameter for parameter in integers_as_doubles(list(given.values()))})
    for name, declaration in DECLARATIONS.items():
        node.declare_parameter(name, declaration.default, declaration.descriptor())
    if hasattr(node, "add_pre_set_parameters_callback"):  # not in Humble: there, "ros2 param set NAME 5.0"
        node.add_pre_set_parameters_callback(integers_as_doubles)


# rclpy's own, of every node
_COMMON_PARAMETERS = ("use_sim_time", "start_type_description_service")
_QOS_OVERRIDE = re.compile(
    r"qos_overrides\..+\.(publisher|subscription)(_[^.]+)?\."
    r"(avoid_ros_namespace_conventions|deadline|depth|durability|history|lifespan|liveliness|liveliness_lease_duration|"
    r"reliability)"
)


def unknown_parameters(names: Iterable[str], cameras: Sequence[str]) -> list[str]:
    """A sentence for every name that is no parameter of a node with these cameras, with the nearest that is one.

    Parameters of the default camera are known whatever the cameras are: the shipped file has them.
    """
    there = (*cameras, *DECLARATIONS["cameras"].default)
    known = {
        *DECLARATIONS,
        *_COMMON_PARAMETERS,
        *(f"{camera}.{key}" for camera in there for key in CAMERA_DECLARATIONS),
    }
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
    """QoS overrides that were given and that no publisher or subscription has asked for: mostly a misspelt topic."""
    given: Iterable[str] = node._parameter_overrides
    return sorted(name for name in given if name.startswith("qos_overrides.") and not node.has_parameter(name))


def integers_as_doubles(parameters: list[Parameter[Any]]) -> list[Parameter[Any]]:
    """``max_range_m: 5`` for ``5.0``: integers given for floating-point parameters, as such numbers."""
    return [
        Parameter(p.name, Parameter.Type.DOUBLE, float(p.value))
        if p.type_ == Parameter.Type.INTEGER
        and p.name in DECLARATIONS
        and isinstance(DECLARATIONS[p.name].default, float)
        else p
        for p in parameters
    ]


def read_parameters(node: Node) -> NodeParameters:
    """Read and check all parameters, declaring those of the cameras that ``cameras`` names.

    Raises ``ValueError`` naming the parameter, ``OSError`` when the configuration file cannot be opened.
    """
    values = {name: _without_none(name, node.get_parameter(name).value) for name in DECLARATIONS}
    for name, value in values.items():
        problem = parameter_problem(name, value)
        if problem:
            raise ValueError(problem)
    cameras = _read_cameras(node, values.pop("cameras"))
    names = (*_VOLUME_OVERRIDES, *_ASSEMBLER_OVERRIDES, *_NETWORK_OVERRIDES, *_GRID_OVERRIDES, *_LIFT_OVERRIDES)
    names = (*names, *_LANGUAGE_OVERRIDES, *_SPILL_OVERRIDES)
    overrides = {name: values.pop(name) for name in (*names, "weights", "classes")}
    config = _read_config(values["config_file"], overrides)
    cameras, config = _with_detections(cameras, config)
    return NodeParameters(**values, cameras=cameras, config=config)


def _without_none(name: str, value: Any) -> Any:
    """``none`` is the same as empty wherever empty is the default and stands for "without" or "as configured"."""
    declaration = DECLARATIONS.get(name) or CAMERA_DECLARATIONS.get(name.rpartition(".")[2])
    is_none = isinstance(value, str) and value.strip().lower() == "none"
    may_be = declaration is not None and declaration.default == "" and not name.endswith("_frame")
    return "" if is_none and may_be else value


def _with_detections(
    cameras: tuple[CameraParameters, ...], config: PerceptronConfig
) -> tuple[tuple[CameraParameters, ...], PerceptronConfig]:
    """A ``detections_topic`` turns the lift of topics on; where the configuration does, every camera has one."""
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
    volume = {k: overrides[k] for k in _VOLUME_OVERRIDES if overrides[k]}
    assembler = {k: overrides[k] for k in _ASSEMBLER_OVERRIDES if overrides[k]}
    network = {k: overrides[k] for k in _NETWORK_OVERRIDES if overrides[k]}
    grid = {field: overrides[k] for k, field in _GRID_OVERRIDES.items() if overrides[k]}
    lift = {field: overrides[k] for k, field in _LIFT_OVERRIDES.items() if overrides[k]}
    language = {field: overrides[k] for k, field in _LANGUAGE_OVERRIDES.items() if overrides[k]}
    spill = {field: overrides[k] for k, field in _SPILL_OVERRIDES.items() if overrides[k]}
    if overrides["weights"] != AS_CONFIGURED:
        network["weights"] = "" if overrides["weights"] == NO_WEIGHTS else overrides["weights"]
    if overrides["classes"]:
        try:
            from embodied_perceptron.language.class_list import read_names  # torch loads behind the node's first words

            network["classes"] = read_names(overrides["classes"])
        except ValueError as error:
            raise ValueError(f"classes: {error}") from error
    return dataclasses.replace(
        config,
        volume=dataclasses.replace(config.volume, **volume),
        assembler=dataclasses.replace(config.assembler, **assembler),
        network=dataclasses.replace(config.network, **network),
        grid=dataclasses.replace(config.grid, **grid),
        lift=dataclasses.replace(config.lift, **lift),
        spill=dataclasses.replace(config.spill, **spill),
        language=dataclasses.replace(config.language, **language),
    )


def effective_values(parameters: NodeParameters) -> dict[str, Any]:
    """Parameters that stand for "as configured" or "the default" -> the values in use, by name of the parameter."""
    config = parameters.config
    values: dict[str, Any] = {"output_frame": parameters.output_frame}
    values |= {name: getattr(config.volume, name) for name in _VOLUME_OVERRIDES}
    values |= {name: getattr(config.assembler, name) for name in _ASSEMBLER_OVERRIDES}
    values |= {name: getattr(config.network, name) for name in _NETWORK_OVERRIDES}
    values |= {name: getattr(config.grid, field) for name, field in _GRID_OVERRIDES.items()}
    values |= {name: getattr(config.lift, field) for name, field in _LIFT_OVERRIDES.items()}
    values |= {name: getattr(config.language, field) for name, field in _LANGUAGE_OVERRIDES.items()}
    values |= {name: getattr(config.spill, field) for name, field in _SPILL_OVERRIDES.items()}
    values["weights"] = config.network.weights or NO_WEIGHTS
    values["map_folder"] = str(MapFolder(parameters.map_folder).path)
    for camera in parameters.cameras:
        values |= {f"{camera.name}.{key}": getattr(camera, key) for key in CAMERA_DECLARATIONS}
    return values


class ReadBack:
    """Shows the values in use while the node is configured, and what was given again afterwards.

    Otherwise the next configuration would take this one's values for the user's.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._given: dict[str, Any] = {}
        self.is_writing = False  # the node then refuses nothing

    def show(self, values: Mapping[str, Any]) -> None:
        """Write the values in use; those that a parameter's range cannot hold (an infinite window) stay as given."""
        self._given |= {n: self._node.get_parameter(n).value for n in values if n not in self._given}
        self._write(values)

    def restore(self) -> None:
        """Write back what was given, unless it was changed since."""
        given, self._given = self._given, {}
        self._write(given)

    def changed(self, parameters: Sequence[Parameter[Any]]) -> None:
        """Somebody set these: theirs from now on."""
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
    """Topic parameters of a camera: one camera keeps the short names, several are told apart by their own."""
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
    """Why ``value`` does not do for parameter ``name``; empty when it does. Ranges are rclpy's business."""
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
                return f"cameras: {camera!r} is no usable name (letters, digits, underscores)"
        if len(set(value)) < len(value):
            return f"cameras: names must differ, got {list(value)}"
    optional = ("output_frame", "viewpoint_frame", "map_frame")
    if name.endswith("_frame") and not _FRAME.fullmatch(value) and not (name in optional and not value):
        return f"{name} must be the name of a frame, got {value!r}"
    return ""


def check_change(parameters: Sequence[Parameter[Any]], configured: bool) -> SetParametersResult:
    """Whether a change at run time is accepted; what is fixed by configuration is refused while ``configured``."""
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
    """``current`` with the accepted changes."""
    live = {p.name: p.value for p in parameters if p.name in DECLARATIONS and DECLARATIONS[p.name].live}
    return dataclasses.replace(current, **live)
