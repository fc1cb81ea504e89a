#!/usr/bin/env python3
"""Send a robot to an object of a saved map: compute the pose in front of it, for Nav2.

    python3 examples/go_to.py MAP.safetensors "the chair by the window" --publish

Prints the pose and the command that sends it to /goal_pose, where Nav2 takes goals in its map frame; --publish runs the
command. Exit codes: 0 a goal; 1 nothing to go to; 3 ROS 2 is not installed.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import subprocess
import sys
from pathlib import Path

from embodied_perceptron.apps.reading_options import open_map
from embodied_perceptron.results import GroundingStatus
from embodied_perceptron.scene.navigation import approach_pose


def main(arguments: list[str] | None = None) -> int:
    """Ask the map, find a free place in front of the object, send it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("map", type=Path)
    parser.add_argument("sentence")
    parser.add_argument("--publish", action="store_true")
    options = parser.parse_args(arguments)

    perceptron = open_map(options.map)
    answer = perceptron.ground(options.sentence)
    if answer.status != GroundingStatus.FOUND:
        print(f"{answer.status.name}: {answer.reason}", file=sys.stderr)
        return 1
    T = approach_pose(answer.candidates[0].box, perceptron.recall().grid)
    if T is None:
        print("found, but there is no free place in front of it", file=sys.stderr)
        return 1
    x, y, yaw = float(T[0, 3]), float(T[1, 3]), math.atan2(T[1, 0], T[0, 0])
    print(f"{answer.candidates[0].label} {answer.candidates[0].id}: x {x:.2f} y {y:.2f} yaw {yaw:.2f}")
    turn = {"z": math.sin(yaw / 2), "w": math.cos(yaw / 2)}
    goal = {"header": {"frame_id": "map"}, "pose": {"position": {"x": x, "y": y}, "orientation": turn}}
    command = ["ros2", "topic", "pub", "--once", "/goal_pose", "geometry_msgs/msg/PoseStamped", json.dumps(goal)]
    print(shlex.join(command))
    try:
        return subprocess.call(command) if options.publish else 0
    except FileNotFoundError:
        print("ros2 is not installed here: source a ROS 2 installation", file=sys.stderr)
        return 3


if __name__ == "__main__":
    raise SystemExit(main())
