"""Pure checks of a running graph: endpoints, arrivals, clocks, frames, the node's words; evidence in, findings out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from rclpy.qos import QoSCompatibility, QoSProfile, qos_check_compatible

from embodied_perceptron.camera_model import CameraModel
from embodied_perceptron.checks import (
    Finding,
    Severity,
    check_clocks,
    check_depth,
    check_level,
    check_order,
    check_pairing,
    check_poses,
    check_registration,
    check_sizes,
)
from embodied_perceptron.config import AssemblerConfig
from embodied_perceptron.geometry import back_project, transform_points
from embodied_perceptron.trajectory import Found, PoseLookup
from embodied_perceptron_ros.monitor import NodeStatus

_OLD_S, _AHEAD_S = 5.0, 0.5  # stamps this far from this machine's clock belong to another one
_POINTS_PER_IMAGE = 3000


@dataclass
class CameraEvidence:
    """What arrived of one camera while listening."""

    color_ns: list[int] = field(default_factory=list)
    depth_ns: list[int] = field(default_factory=list)
    delays_s: dict[str, list[float]] = field(default_factory=dict)
    frames: dict[str, str] = field(default_factory=dict)  # color, depth, info -> frame id
    color_size: tuple[int, int] | None = None
    depth_size: tuple[int, int] | None = None
    model: CameraModel | None = None
    depths: list[tuple[int, NDArray[np.float32]]] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Endpoint:
    """A publisher or subscriber of the graph."""

    node: str
    type: str
    qos: QoSProfile


def check_publishers(topic: str, expected: str, there: Sequence[Endpoint], similar: Sequence[str]) -> list[Finding]:
    """Does anybody publish ``topic`` with type ``expected``? ``similar``: other topics of that type."""
    fitting = [e for e in there if e.type == expected]
    if fitting:
        return [
            Finding("topics", Severity.OK, f"{topic} is published by {', '.join(sorted({e.node for e in fitting}))}")
        ]
    if there:
        message = f"{topic} is published as {there[0].type}, not as {expected}"
        return [Finding("topics", Severity.ERROR, message, "set color_transport or depth_transport of the camera")]
    remedy = "start the driver, or set the camera's *_topic parameters"
    if similar:
        remedy += f"; topics of this type: {', '.join(similar)}"
    return [Finding("topics", Severity.ERROR, f"nobody publishes {topic}", remedy)]


def check_qos(topic: str, publishers: Sequence[Endpoint], subscribers: Sequence[Endpoint]) -> list[Finding]:
    """Can every subscriber of ``topic`` hear every publisher of it?"""
    findings = []
    for publisher in publishers:
        for subscriber in subscribers:
            compatibility, reason = qos_check_compatible(publisher.qos, subscriber.qos)
            if compatibility == QoSCompatibility.ERROR:
                message = f"{topic}: {subscriber.node} cannot hear {publisher.node}: {reason.strip().rstrip(';')}"
                remedy = (
                    "make the subscriber ask for less (best effort, volatile), for this node by "
                    f"-p qos_overrides.{topic}.subscription.reliability:=best_effort, or let the publisher offer more"
                )
                findings.append(Finding("QoS", Severity.ERROR, message, remedy))
    if publishers and subscribers and not findings:
        findings.append(Finding("QoS", Severity.OK, f"{topic}: {len(subscribers)} subscriber(s) fit"))
    return findings


def check_time_source(clock_publishers: int, node_uses_sim_time: bool | None) -> list[Finding]:
    """Do /clock and use_sim_time belong together? ``None``: no node to ask."""
    if node_uses_sim_time and not clock_publishers:
        remedy = "start the simulator or player (--clock), or set use_sim_time to false"
        return [Finding("clock", Severity.ERROR, "the node waits for /clock, which nobody publishes", remedy)]
    if node_uses_sim_time is False and clock_publishers:
        remedy = "start the node with use_sim_time:=true (--sim-time)"
        return [Finding("clock", Severity.WARNING, "/clock is published but the node uses the wall clock", remedy)]
    return []


def check_delays(delays_s: Mapping[str, float], simulated: bool) -> list[Finding]:
    """Are stamps near this machine's clock? ``delays_s``: median of arrival minus stamp, by topic."""
    findings = check_clocks(delays_s)
    if simulated:
        return findings
    far = {topic: delay for topic, delay in delays_s.items() if not -_AHEAD_S <= delay <= _OLD_S}
    if far:
        topic, delay = max(far.items(), key=lambda item: abs(item[1]))
        direction = "behind" if delay > 0 else "ahead of"
        message = f"stamps of {topic} are {abs(delay):.1f} s {direction} this machine's clock"
        remedy = "synchronise the clocks (chrony); for a recording, play with --clock and use simulated time"
        findings.append(Finding("clock offset", Severity.ERROR, message, remedy))
    return findings


def check_optical(camera: str, frame_id: str, poses: Sequence[NDArray[np.float64]]) -> list[Finding]:
    """Is the image's frame an optical one (z forward)? With a body frame (z up) the camera seems to look up."""
    if not poses:
        return []
    upward = float(np.median([T[2, 2] for T in poses]))
    if upward > 0.9:
        message = f"{camera}: frame {frame_id!r} has its z axis up: it is no optical frame (z forward, REP-103)"
        remedy = "let the driver stamp images with its *_optical_frame, and publish that frame"
        return [Finding("camera frame", Severity.ERROR, message, remedy)]
    return [Finding("camera frame", Severity.OK, f"{camera}: {frame_id!r} looks forward")]


def check_arrival(topic: str, publishers: int, received: int, seconds: float) -> list[Finding]:
    """Does data come where somebody publishes?"""
    if not publishers:
        return []
    if received:
        return [Finding("data", Severity.OK, f"{topic}: {received / seconds:.1f} Hz")]
    remedy = (
        "is the driver paused? large images get lost on the way: set FASTDDS_DEFAULT_PROFILES_FILE "
        "(a 32 MB shared-memory segment; the launch files do) for publisher and subscriber"
    )
    return [Finding("data", Severity.ERROR, f"{topic}: nothing arrived in {seconds:.0f} s", remedy)]


def check_node(status: NodeStatus) -> list[Finding]:
    """What the node says of itself."""
    if status.state != "active":
        remedy = "ros2 lifecycle set /perception configure, then activate (or parameter autostart: true)"
        return [Finding("node", Severity.ERROR, f"the node is {status.state}", remedy)]
    total = status.received
    findings = [Finding("node", Severity.OK, f"active; {status.fused} of {total} frames fused")]
    dropped = sum(status.dropped.values())
    if dropped:
        reason = max(status.dropped, key=lambda r: status.dropped[r])
        detail = status.areas.get("frames", {}).get(f"last_drop.{reason}", "")
        severity = Severity.ERROR if status.fused == 0 else Severity.WARNING
        findings.append(Finding("node", severity, f"{dropped} frames dropped, mostly {reason}: {detail}".rstrip(": ")))
    for area, values in sorted(status.areas.items()):
        if area != "frames" and values.get("level") in ("1", "2"):
            severity = Severity.ERROR if values["level"] == "2" else Severity.WARNING
            findings.append(Finding("node", severity, f"{area}: {values.get('message', '')}"))
    return findings


def judge_camera(
    camera: str, evidence: CameraEvidence, answers: Sequence[PoseLookup], config: AssemblerConfig
) -> list[Finding]:
    """Everything that the images themselves tell."""
    findings = [Finding("images", Severity.ERROR, f"{n} times: {text}") for text, n in evidence.faults.items()]
    if not evidence.color_ns and not evidence.depth_ns:
        return findings
    size = None if evidence.model is None else (evidence.model.intrinsics.width, evidence.model.intrinsics.height)
    findings += check_sizes(evidence.color_size, evidence.depth_size, size)
    if "color" in evidence.frames and "depth" in evidence.frames:
        findings += check_registration(evidence.frames["color"], evidence.frames["depth"])
    findings += check_depth([depth for _, depth in evidence.depths])
    findings += check_order(f"{camera} colour", evidence.color_ns)
    findings += check_order(f"{camera} depth", evidence.depth_ns)
    findings += check_pairing(evidence.color_ns[1:-1], evidence.depth_ns, config.pair_tolerance_s)
    findings += check_poses(camera, answers)
    found = [answer.T for answer in answers if isinstance(answer, Found)]
    optical = check_optical(camera, evidence.frames.get("color", ""), found)
    findings += optical
    if found and evidence.model is not None and evidence.depth_size == size and optical[0].severity == Severity.OK:
        findings += check_level(_points(evidence, found[len(found) // 2]))
    return findings


def _points(evidence: CameraEvidence, T_world_camera: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N, 3) points of one depth image: enough to see which way is up."""
    assert evidence.model is not None
    depth = evidence.depths[len(evidence.depths) // 2][1]
    points, valid = back_project(np.where(depth < 5.0, depth, 0.0), evidence.model.intrinsics)
    cloud = points[valid]
    return transform_points(T_world_camera, cloud[:: max(1, len(cloud) // _POINTS_PER_IMAGE)])
