"""Start and stop of the node: seconds until its first diagnostics, until it is active, and until its process ended.

    python benchmarks/start_stop.py               # five runs with the shipped network and compiled kernels
    python benchmarks/start_stop.py --runs 10 --weights none

Times are wall times from the start of the process, with imports, configuration and the discovery of the middleware.
The processor time until the node is active shows its own share on a busy machine. The node is stopped by SIGINT as soon
as it is active. Writes out/bench/start_stop.json.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import _report as report
import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

from embodied_perceptron_ros.node.health import read_diagnostics

GOALS = {"diagnostics_s": 2.0, "active_s": 8.0, "active_cpu_s": 6.0, "stop_s": 2.0}
PATIENCE_S = 180.0


def processor_seconds(pid: int) -> float:
    """Processor time that a process has used."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def run(domain: int, weights: str) -> dict[str, Any]:
    """Start and stop a node once. Raises ``TimeoutError`` if it does not become active."""
    context = Context()
    rclpy.init(context=context, domain_id=domain)
    node = Node("start_stop", context=context)
    said: list[dict[str, dict[str, str]]] = []
    node.create_subscription(DiagnosticArray, "/diagnostics", lambda m: said.append(read_diagnostics(m)), 10)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)
    environment = {**os.environ, "ROS_DOMAIN_ID": str(domain), "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}
    command = [sys.executable, "-m", "embodied_perceptron_ros.node", "--ros-args", "-p", f"weights:={weights}"]
    started = time.monotonic()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    times: dict[str, Any] = {}
    try:
        while "active_s" not in times:
            executor.spin_once(timeout_sec=0.05)
            now = time.monotonic() - started
            if said and "diagnostics_s" not in times:
                times["diagnostics_s"] = now
            if said and said[-1].get("node", {}).get("state") == "active":
                times |= {"active_s": now, "active_cpu_s": processor_seconds(process.pid)}
            elif now > PATIENCE_S:
                raise TimeoutError(f"not active after {PATIENCE_S:.0f} s: {said[-1] if said else 'no diagnostics'}")
        stopped_s = time.monotonic()
        process.send_signal(signal.SIGINT)
        times["exit_code"] = process.wait(PATIENCE_S)
        times["stop_s"] = time.monotonic() - stopped_s
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        executor.shutdown()
        node.destroy_node()
        rclpy.shutdown(context=context)
    return times


def main() -> int:
    """Measure, print, write; returns the worst exit code of the nodes."""
    parser = report.parser(__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--weights", default="tiny", help="of the node: a shipped name, a path, or none")
    options = report.parse(parser, runs=1, weights="none")
    runs = [run(1 + (os.getpid() + i) % 100, options.weights) for i in range(options.runs)]
    figures = {
        name: {"median": float(np.median(values)), "worst": max(values)}
        for name in GOALS
        for values in [[r[name] for r in runs]]
    }
    report.show(f"{options.runs} runs, weights {options.weights}", figures)
    report.show(
        "goals", [report.goal(f"{name}, median", figures[name]["median"], most=most) for name, most in GOALS.items()]
    )
    code = max(r["exit_code"] for r in runs)
    report.write(options, {"weights": options.weights, "exit_code": code, **figures, "runs": runs})
    return code


if __name__ == "__main__":
    sys.exit(main())
