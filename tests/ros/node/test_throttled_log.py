"""One line in a while for each thing that goes on."""

from __future__ import annotations

import pytest

pytest.importorskip("rclpy")

from rclpy.logging import get_logger

from embodied_perceptron_ros.node.health import ThrottledLog

pytestmark = pytest.mark.ros


class Lines:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def __getattr__(self, severity: str):
        return lambda text: self.lines.append(f"{severity}: {text}")


def test_one_line_for_each_key_in_a_while():
    now_s, lines = [0.0], Lines()
    log = ThrottledLog(lines, every_s=5.0, clock=lambda: now_s[0])
    for second in range(11):
        now_s[0] = float(second)
        log.warning("a", f"a{second}")
        log.error("b", f"b{second}", every_s=10.0)
        log.info("c", f"c{second}", every_s=0.0)
    assert [line for line in lines.lines if "a" in line[-3:]] == ["warning: a0", "warning: a5", "warning: a10"]
    assert [line for line in lines.lines if line.startswith("error")] == ["error: b0", "error: b10"]
    assert sum(line.startswith("info") for line in lines.lines) == 11


def test_keys_without_end_take_no_memory_without_end():
    log = ThrottledLog(Lines())
    for number in range(5000):
        log.warning(f"key {number}", "x")
    assert len(log._logged_s) <= 1000


def test_one_key_may_change_its_severity_with_the_logger_of_ros():
    """rclpy raises when one place logs with another severity than before."""
    log = ThrottledLog(get_logger("throttled"), every_s=0.0)
    log.info("key", "one")
    log.warning("key", "two")
    log.error("key", "three")
