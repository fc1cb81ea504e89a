"""The node /perception, and RViz, Rerun or a bridge to Foxglove if wanted.

    ros2 launch embodied_perceptron perceive.launch.py
    ros2 launch embodied_perceptron perceive.launch.py weights:=tiny viewer:=rerun
    ros2 launch embodied_perceptron perceive.launch.py cameras:=front,rear output_frame:=map rviz:=true
    ros2 launch embodied_perceptron perceive.launch.py config:=/my/perception.yaml parameters:='voxel_size_m: 0.03'

Without a ROS installation, ``embodied-perceptron perceive`` does the same with the same YAML.
"""

from __future__ import annotations

from pathlib import Path

from ament_index_python.packages import get_package_share_directory
from launch import LaunchContext, LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction, SetEnvironmentVariable
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from embodied_perceptron_ros.players.launch_options import (
    node_parameters,
    parse_flag,
    parse_names,
    parse_overrides,
    rviz_remappings,
)
from embodied_perceptron_ros.players.processes import ros_environment

ARGUMENTS = (
    # name, default, meaning
    ("config", "", "YAML file with the node's parameters; empty = the one of this package"),
    ("cameras", "", "names of the cameras, comma-separated; empty = as in config"),
    ("fusion_frame", "", "frame in which the map is built; empty = as in config (odom)"),
    ("output_frame", "", "frame of what is published; empty = as in config (the fusion frame)"),
    ("weights", "", "network: a shipped name or a weights file; empty = as in config, none = class-agnostic boxes"),
    ("parameters", "", "parameters to override: 'name: value, name: value'"),
    ("namespace", "", "namespace of the node and its topics"),
    ("use_sim_time", "false", "take the time from /clock"),
    ("rviz", "false", "start RViz with everything visible"),
    ("viewer", "", "rerun = the node shows everything in a window of Rerun"),
    ("foxglove", "false", "start foxglove_bridge on port 8765; its layout is foxglove/perception.json"),
    ("log_level", "info", "debug, info, warn, error"),
)


def start(context: LaunchContext) -> list[SetEnvironmentVariable | Node]:
    """The actions, once the arguments have values."""
    values = {name: LaunchConfiguration(name).perform(context) for name, _, _ in ARGUMENTS}
    share = Path(get_package_share_directory("embodied_perceptron"))
    sim_time = parse_flag(values["use_sim_time"], "use_sim_time")
    parameters = node_parameters(
        cameras=parse_names(values["cameras"]),
        fusion_frame=values["fusion_frame"],
        output_frame=values["output_frame"],
        use_sim_time=sim_time,
        weights=values["weights"] or None,
        viewer=values["viewer"],
        overrides=parse_overrides(values["parameters"]),
    )
    name = "FASTDDS_DEFAULT_PROFILES_FILE"  # images need more shared memory than the default; a user's profile wins
    profile = ros_environment(context.environment).get(name)
    actions: list[SetEnvironmentVariable | Node] = [SetEnvironmentVariable(name, profile)] if profile else []
    actions.append(
        Node(
            package="embodied_perceptron",
            executable="perception",
            name="perception",
            namespace=values["namespace"],
            parameters=[values["config"] or str(share / "config" / "perception.yaml"), parameters],
            ros_arguments=["--log-level", values["log_level"]],
            output="screen",
            emulate_tty=True,
            sigterm_timeout="15",  # a frame in work is finished, a map being saved is whole
        )
    )
    if parse_flag(values["rviz"], "rviz"):
        actions.append(
            Node(
                package="rviz2",
                executable="rviz2",
                remappings=rviz_remappings(values["namespace"]),
                arguments=["-d", str(share / "rviz" / "perception.rviz")],
                parameters=[{"use_sim_time": sim_time}],
                output="log",
            )
        )
    if parse_flag(values["foxglove"], "foxglove"):
        actions.append(
            Node(
                package="foxglove_bridge",
                executable="foxglove_bridge",
                parameters=[{"use_sim_time": sim_time}],
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
