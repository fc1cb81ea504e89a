"""Play a recording (folder in TUM RGB-D layout, or a bag) and start the node; time comes from the recording.

    ros2 launch embodied_perceptron replay.launch.py source:=/data/kitchen
    ros2 launch embodied_perceptron replay.launch.py source:=/data/run.mcap rate:=0.5 rviz:=true keep:=true

All arguments of perceive.launch.py are accepted. Topics of the bag that the node publishes itself are not played. For
other topics of a bag set the node's parameters:
parameters:='camera.color_topic: /head/rgb, camera.depth_topic: /head/depth, ...'.
"""

from __future__ import annotations

from pathlib import Path

from ament_index_python.packages import get_package_prefix, get_package_share_directory
from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity
from launch.actions import (
    DeclareLaunchArgument,
    EmitEvent,
    IncludeLaunchDescription,
    OpaqueFunction,
    RegisterEventHandler,
)
from launch.event_handlers import OnProcessExit
from launch.events import Shutdown
from launch.events.process import ProcessExited
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from embodied_perceptron_ros.players.launch_options import (
    check_exit_code,
    check_extras,
    check_typed,
    parse_flag,
    parse_number,
    player_command,
)

ARGUMENTS = (
    # name, default (None = required), meaning
    ("source", None, "folder in TUM RGB-D layout, bag folder, .mcap or .db3"),
    ("rate", "1.0", "recorded seconds per second"),
    ("namespace", "", "namespace of node, topics and player"),
    ("keep", "false", "keep the node running after the recording"),
)


def start(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    """Make the actions from the values of the arguments."""
    check_typed(context.argv)
    values = {name: LaunchConfiguration(name).perform(context) for name, _, _ in ARGUMENTS}
    rate = parse_number(values["rate"], "rate")
    executable, arguments = player_command(Path(values["source"]).expanduser(), rate, clock=True)
    check_extras(context.launch_configurations, get_package_prefix)
    player = Node(
        package="embodied_perceptron",
        executable=executable,
        namespace=values["namespace"],
        arguments=arguments,
        output="screen",
    )
    perceive = Path(get_package_share_directory("embodied_perceptron")) / "launch" / "perceive.launch.py"
    actions: list[LaunchDescriptionEntity] = [
        IncludeLaunchDescription(
            PythonLaunchDescriptionSource(str(perceive)),
            launch_arguments={"use_sim_time": "true", "namespace": values["namespace"]}.items(),
        ),
        player,
    ]
    keep = parse_flag(values["keep"], "keep")

    def after_playing(event: ProcessExited, context: LaunchContext) -> list[LaunchDescriptionEntity]:
        check_exit_code("the player", event, context)
        return [] if keep else [EmitEvent(event=Shutdown(reason="the recording has ended"))]

    return [RegisterEventHandler(OnProcessExit(target_action=player, on_exit=after_playing)), *actions]


def generate_launch_description() -> LaunchDescription:
    """Entry point of ``ros2 launch``."""
    declarations = [
        DeclareLaunchArgument(name, default_value=value, description=text) for name, value, text in ARGUMENTS
    ]
    return LaunchDescription([*declarations, OpaqueFunction(function=start)])
