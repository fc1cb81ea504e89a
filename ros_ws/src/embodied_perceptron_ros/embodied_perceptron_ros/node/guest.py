"""A small node beside the perception node, for programs that watch or ask it."""

from __future__ import annotations

import time
from typing import Any, TypeVar

import rclpy
from rclpy.executors import SingleThreadedExecutor

from embodied_perceptron_ros.environment import start_ros

T = TypeVar("T", bound="Guest")


class NoAnswerError(RuntimeError):
    """A service does not exist, or does not answer in time."""


class Guest:
    """A node with its own context; use as a context manager, and call :meth:`spin` often.

    ``domain_id``: ROS domain; None = the environment's. Raises :class:`.RosStartError`.
    """

    def __init__(self, name: str, domain_id: int | None = None) -> None:
        self.context = rclpy.Context()
        start_ros(context=self.context, domain_id=domain_id)
        try:
            self.node: Any = rclpy.create_node(
                name, context=self.context, enable_rosout=False, start_parameter_services=False
            )
        except BaseException:
            rclpy.try_shutdown(context=self.context)
            raise
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *_: object) -> None:
        self.executor.shutdown()
        self.node.destroy_node()
        rclpy.try_shutdown(context=self.context)

    def spin(self, seconds: float) -> None:
        """Process messages for ``seconds``."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.executor.spin_once(timeout_sec=left)

    def call(self, kind: Any, name: str, request: Any, timeout_s: float) -> Any:
        """Call a service of a perception node and return its response. Raises :class:`NoAnswerError`."""
        deadline = time.monotonic() + timeout_s
        client = self.node.create_client(kind, name)
        try:
            if not client.wait_for_service(timeout_sec=timeout_s):
                suffix = "/".join(["", *name.split("/")[-2:]])  # without the namespace
                named = {n for n, _ in self.node.get_service_names_and_types() if n.endswith(suffix)}
                there = sorted(named - {name})  # our own client adds this name
                others = f": there is {', '.join(there)}" if there else ": is the node running, in this ROS_DOMAIN_ID?"
                raise NoAnswerError(f"nobody offers {name}{others}")
            future = client.call_async(request)
            self.executor.spin_until_future_complete(future, timeout_sec=max(0.1, deadline - time.monotonic()))
            if not future.done():
                raise NoAnswerError(f"{name} did not answer within {timeout_s:g} s")
            return future.result()
        finally:
            self.node.destroy_client(client)
