"""Play the drive of a simulated robot through a furnished home, and map it with the node.

    ros2 launch embodied_perceptron simulate.launch.py
    ros2 launch embodied_perceptron simulate.launch.py seed:=7 rviz:=true keep:=true

The frames are rendered into ``recording`` first; a later start with the same seed plays them at once. All arguments of
perceive.launch.py are accepted.
"""

from __future__ import annotations

from pathlib import Path

from ament_index_python.packages import get_package_prefix, get_package_share_directory
from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity
from launch.actions import (
    DeclareLaunchArgument,
    ExecuteProcess,
    IncludeLaunchDescription,
    OpaqueFunction,
    RegisterEventHandler,
)
from launch.event_handlers import OnProcessExit
from launch.events.process import ProcessExited
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration

from embodied_perceptron_ros.demo.simulated import ask_for_recording, render_command
from embodied_perceptron_ros.players.launch_options import check_exit_code, check_extras, check_typed, parse_number

ARGUMENTS = (
    # name, default, meaning
    ("seed", "700036", "seed of the home and the drive"),
    ("recording", "", "folder of the frames; empty = in the user's cache"),
    ("rate", "1.0", "simulated seconds per second"),
    ("namespace", "", "namespace of node, topics and player"),
    ("keep", "false", "keep the node running after the drive"),
)


def start(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    """Render unless the recording is complete, then replay."""
    check_typed(context.argv)
    values = {name: LaunchConfiguration(name).perform(context) for name, _, _ in ARGUMENTS}
    check_extras(context.launch_configurations, get_package_prefix)
    seed = parse_number(values["seed"], "seed", int)
    parse_number(values["rate"], "rate")  # before anything is rendered
    recording = Path(values["recording"]).expanduser() if values["recording"] else ask_for_recording(seed)
    # not sys.executable: ros2 runs in the system's Python, the library perhaps in an active virtual environment
    render = ExecuteProcess(cmd=["python3", *render_command(recording, seed)], name="render", output="screen")
    share = Path(get_package_share_directory("embodied_perceptron"))
    replay = IncludeLaunchDescription(
        PythonLaunchDescriptionSource(str(share / "launch" / "replay.launch.py")),
        launch_arguments={
            **{"source": str(recording), "rate": values["rate"]},
            **{"keep": values["keep"], "namespace": values["namespace"]},
        }.items(),
    )

    def after_render(event: ProcessExited, context: LaunchContext) -> list[LaunchDescriptionEntity]:
        check_exit_code("rendering", event, context)
        return [] if event.returncode else [replay]

    return [RegisterEventHandler(OnProcessExit(target_action=render, on_exit=after_render)), render]


def generate_launch_description() -> LaunchDescription:
    """Entry point of ``ros2 launch``."""
    declarations = [
        DeclareLaunchArgument(name, default_value=value, description=text) for name, value, text in ARGUMENTS
    ]
    return LaunchDescription([*declarations, OpaqueFunction(function=start)])
