"""Start the node /perception and, if wanted, RViz, Rerun or a bridge to Foxglove.

    ros2 launch embodied_perceptron perceive.launch.py
    ros2 launch embodied_perceptron perceive.launch.py weights:=tiny viewer:=rerun
    ros2 launch embodied_perceptron perceive.launch.py cameras:=front,rear output_frame:=map rviz:=true
    ros2 launch embodied_perceptron perceive.launch.py camera:=realsense namespace:=robot1 respawn:=true
    ros2 launch embodied_perceptron perceive.launch.py color_topic:=/head/rgb depth_topic:=/head/depth \\
        camera_info_topic:=/head/camera_info
    ros2 launch embodied_perceptron perceive.launch.py detections_topic:=/yolo/detections
    ros2 launch embodied_perceptron perceive.launch.py config:=/my/perception.yaml parameters:='voxel_size_m: 0.03'

Missing packages, files, presets and unknown arguments are errors before anything starts. ``none`` is the same as empty
in every argument except ``weights``, where it means no network. A node that fails ends the launch with exit code 1,
unless it is respawned or another launch file includes this one. The node gets only the parameters that are given here;
those of ``SetParameter`` and ``SetParametersFromFile`` in a launch file that includes this one hold for all others.

Without a ROS installation use ``embodied-perceptron perceive`` with the same YAML.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from ament_index_python.packages import get_package_prefix, get_package_share_directory
from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity
from launch.actions import (
    DeclareLaunchArgument,
    LogInfo,
    OpaqueFunction,
    RegisterEventHandler,
    SetEnvironmentVariable,
)
from launch.event_handlers import OnProcessExit
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from embodied_perceptron_ros.environment import PROFILE_VARIABLES, ros_environment
from embodied_perceptron_ros.players.launch_options import (
    LOG_LEVELS,
    check_config,
    check_exit_code,
    check_extras,
    check_typed,
    first_color_topic,
    node_parameters,
    own_foxglove_layout,
    parse_choice,
    parse_flag,
    parse_names,
    parse_overrides,
    rviz_arguments,
    rviz_remappings,
    without_none,
)

ARGUMENTS = (
    # name, default, meaning
    ("config", "", "YAML file with the node's parameters, such as a copy of config/perception.yaml; empty = defaults"),
    ("cameras", "", "names of the cameras, comma-separated; empty = as in config"),
    ("camera", "", "topics of a camera driver: realsense, oak, orbbec, zed, kinect, tum; empty = as in config"),
    ("color_topic", "", "colour images of a single camera; empty = as in config"),
    ("depth_topic", "", "its depth images, preferably registered to colour; empty = as in config"),
    ("camera_info_topic", "", "its calibration; empty = as in config"),
    ("detections_topic", "", "2-D detections of another program; {camera} = each camera's name; empty = as in config"),
    ("fusion_frame", "", "frame in which the map is built; empty = as in config (odom)"),
    ("output_frame", "", "frame of what is published; empty = as in config (the fusion frame)"),
    ("weights", "", "network: a shipped name or a weights file; empty = as in config, none = boxes without classes"),
    ("device", "", "device of the network: cpu, cuda, auto; empty = as in config"),
    ("map_file", "", "saved map to start with; empty = as in config"),
    ("classes", "", "published names, all others are 'object': a file (one a line), or a,b,c; empty = as in config"),
    ("parameters", "", "parameters to override: 'name: value, name: value'"),
    ("namespace", "", "namespace of the node and its topics"),
    ("use_sim_time", "false", "take the time from /clock"),
    ("respawn", "false", "restart the node when it ends"),
    ("rviz", "false", "start RViz"),
    ("rviz_config", "", "layout of RViz; empty = the one of this package"),
    ("viewer", "", "web = a page for the browser (port 8085); rerun = a window of Rerun"),
    ("foxglove", "false", "start foxglove_bridge on port 8765; its layout is foxglove/perception.json"),
    ("log_level", "info", "debug, info, warn, error"),
)


def start(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    """Make the actions from the values of the arguments."""
    check_typed(context.argv)
    values = without_none({name: LaunchConfiguration(name).perform(context) for name, _, _ in ARGUMENTS})
    log_level = parse_choice(values["log_level"], "log_level", LOG_LEVELS)
    check_extras(values, get_package_prefix)
    share = Path(get_package_share_directory("embodied_perceptron"))
    # a launch file that includes this one may have pushed a namespace, and set parameters
    outer = context.launch_configurations.get("ros_namespace", "")
    inner = values["namespace"]
    namespace = inner if inner.startswith("/") else f"{outer}/{inner}"
    file_values: dict[str, Any] = {}
    for entry in context.launch_configurations.get("global_params", ()):
        with suppress(ValueError, OSError):  # a file for other nodes
            file_values |= dict([entry]) if isinstance(entry, tuple) else check_config(Path(entry), namespace)
    config = [str(Path(values["config"]).expanduser())] if values["config"] else []  # defaults would hide outer ones
    for file in config:
        file_values |= check_config(Path(file), namespace)
    sim_time = parse_flag(values["use_sim_time"], "use_sim_time")
    cameras = parse_names(values["cameras"])
    parameters = node_parameters(values, cameras, file_values, sim_time, parse_overrides(values["parameters"]))
    environment = ros_environment(context.environment)  # images need more shared memory; a user's profile has priority
    actions: list[LaunchDescriptionEntity] = [SetEnvironmentVariable(n, environment[n]) for n in PROFILE_VARIABLES]
    respawn = parse_flag(values["respawn"], "respawn")
    perception = Node(
        package="embodied_perceptron",
        executable="perception",
        name="perception",
        namespace=values["namespace"],
        parameters=[*config, *([parameters] if parameters else [])],
        ros_arguments=["--log-level", log_level],
        output="screen",
        emulate_tty=True,
        respawn=respawn,
        respawn_delay=2.0,
        sigterm_timeout="15",  # time to finish a frame or a map that is being saved
    )
    if not respawn:
        ended = OnProcessExit(target_action=perception, on_exit=partial(check_exit_code, "perception"))
        actions.append(RegisterEventHandler(ended))
    actions.append(perception)
    in_use = {**file_values, **parameters}
    sim_time_parameters = [{"use_sim_time": True}] if sim_time else []
    if parse_flag(values["rviz"], "rviz"):
        layout = Path(values["rviz_config"]).expanduser() if values["rviz_config"] else share / "rviz/perception.rviz"
        actions.append(
            Node(
                package="rviz2",
                executable="rviz2",
                remappings=rviz_remappings(values["namespace"], first_color_topic(in_use)),
                arguments=rviz_arguments(layout, in_use),
                parameters=sim_time_parameters,
                output="log",
            )
        )
    if parse_flag(values["foxglove"], "foxglove"):
        layout_file = own_foxglove_layout(share / "foxglove/perception.json", values["namespace"], in_use)
        actions.append(LogInfo(msg=f"layout for Foxglove: {layout_file}"))
        actions.append(
            Node(
                package="foxglove_bridge",
                executable="foxglove_bridge",
                parameters=sim_time_parameters,
                output="log",
            )
        )
    return actions


def generate_launch_description() -> LaunchDescription:
    """Entry point of ``ros2 launch``."""
    declarations = [
        DeclareLaunchArgument(name, default_value=value, description=text) for name, value, text in ARGUMENTS
    ]
    return LaunchDescription([*declarations, OpaqueFunction(function=start)])
