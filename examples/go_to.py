#!/usr/bin/env python3
"""Send a robot to what a sentence means: asks the perception node, and Nav2 drives.

    python3 examples/go_to.py "the chair by the window"

Needs the node (``ros2 launch embodied_perceptron perceive.launch.py``) and, for driving, Nav2 (``nav2_msgs``; the
action ``navigate_to_pose``). Exit codes: 0 arrived; 1 nothing to go to, or Nav2 failed; 3 something is not there.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

STATUS = {1: "FOUND", 2: "NOT_FOUND", 3: "AMBIGUOUS", 4: "INVALID"}
_SUCCEEDED = 4  # action_msgs/GoalStatus.STATUS_SUCCEEDED


def goal_of(answer: Any) -> Any:
    """The geometry_msgs/PoseStamped to drive to. Raises ``LookupError`` where an answer has none, with the reason."""
    if answer.status != 1:
        raise LookupError(f"{STATUS[answer.status]}: {answer.reason}")
    if not answer.reachable:
        raise LookupError("it was found, but no free place before it is known")
    return answer.approach


def navigate_to_pose() -> Any:
    """The type of Nav2's action. Raises ``LookupError`` where Nav2 is not installed."""
    try:
        from nav2_msgs.action import NavigateToPose
    except ImportError as error:
        raise LookupError(f"Nav2 is not installed here ({error}): apt install ros-$ROS_DISTRO-nav2-msgs") from error
    return NavigateToPose


def wait(node: Any, future: Any, timeout_s: float | None, what: str) -> Any:
    """The result of a future. Raises ``LookupError`` when it does not come in time."""
    import rclpy

    rclpy.spin_until_future_complete(node, future, timeout_sec=timeout_s)
    if not future.done():
        raise LookupError(f"no answer: {what}")
    return future.result()


def ask(node: Any, sentence: str, service: str, timeout_s: float) -> Any:
    """The perception node's answer. Raises ``LookupError`` when nobody answers."""
    from embodied_perceptron_msgs.srv import Ask

    client = node.create_client(Ask, service)
    if not client.wait_for_service(timeout_sec=timeout_s):
        raise LookupError(f"nobody offers {service}: is the perception node running?")
    return wait(node, client.call_async(Ask.Request(text=sentence)), timeout_s, service).result


def drive(node: Any, kind: Any, goal: Any, action: str, timeout_s: float) -> bool:
    """Whether Nav2 got there."""
    from rclpy.action import ActionClient

    client = ActionClient(node, kind, action)
    if not client.wait_for_server(timeout_sec=timeout_s):
        raise LookupError(f"nobody offers {action}: is Nav2 running?")
    handle = wait(node, client.send_goal_async(kind.Goal(pose=goal)), timeout_s, action)
    if not handle.accepted:
        return False
    return bool(wait(node, handle.get_result_async(), None, action).status == _SUCCEEDED)


def main(arguments: list[str] | None = None) -> int:
    """Ask, then drive; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sentence")
    parser.add_argument("--service", default="/perception/ask")
    parser.add_argument("--action", default="/navigate_to_pose")
    parser.add_argument("--timeout", type=float, default=10.0, help="seconds to wait for either of them")
    options = parser.parse_args(arguments)
    try:
        import rclpy

        kind = navigate_to_pose()
    except (ImportError, LookupError) as error:
        print(f"go_to: {error}", file=sys.stderr)
        return 3
    rclpy.init()
    node = rclpy.create_node("go_to")
    try:
        answer = ask(node, options.sentence, options.service, options.timeout)
        try:
            goal = goal_of(answer)
        except LookupError as nowhere:
            print(f"go_to: {nowhere}", file=sys.stderr)
            return 1
        at = goal.pose.position
        print(f"going to x {at.x:.2f} y {at.y:.2f} in {goal.header.frame_id}, {answer.distance:.2f} m away")
        arrived = drive(node, kind, goal, options.action, options.timeout)
        print("arrived" if arrived else "Nav2 did not get there")
        return 0 if arrived else 1
    except LookupError as error:
        print(f"go_to: {error}", file=sys.stderr)
        return 3
    finally:
        node.destroy_node()
        rclpy.shutdown()


if __name__ == "__main__":
    sys.exit(main())
