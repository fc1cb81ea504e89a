"""``replay --ros``: play a recording through the node over real topics, player and node in their own processes; write
the same files as a direct replay."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from embodied_perceptron.apps.replay import write_perception
from embodied_perceptron.config import PerceptronConfig
from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.recordings.bag import BagRecording
from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.recordings.recording import PosedFrameStream, Recording
from embodied_perceptron.results import Perception, SemanticVoxels
from embodied_perceptron.sensors.frame import PosedFrame
from embodied_perceptron_ros.conversion.maps import cloud_to_semantic
from embodied_perceptron_ros.environment import domain_of_environment, ros_environment
from embodied_perceptron_ros.node.monitor import MissionQuestion, NodeMonitor, NodeStatus, Sighting, TimedAnswer
from embodied_perceptron_ros.node.parameters import default_topics
from embodied_perceptron_ros.players.launch_options import DEFAULT_CONFIG, player_command, ros_arguments
from embodied_perceptron_ros.players.processes import Supervisor, combined_exit_code, module_command

_PERIOD_S = 0.2
_START_TIMEOUT_S = 60.0  # while the node does not configure; the first start may compile for minutes
_SETTLE_TIMEOUT_S = 60.0
_DIAGNOSED_S = 1.2  # until diagnostics include the last answers
_KERNELS_S = 60.0  # longest wait for compiled kernels
_LAST_BOXES_S = 15.0  # for the perception of the last frame
_QUIET_S = 3.0  # without news after the player's end, nothing more will come


class ReplayFailedError(RuntimeError):
    """The replay failed; the message names the process, its exit code and its log."""


@dataclass(frozen=True)
class ReplayPlan:
    """What to play, and how.

    Attributes:
        source: folder (TUM RGB-D layout) or bag.
        out: folder for logs, the player's report and ``map.safetensors``.
        rate: recorded seconds per second.
        config: parameter file of the node.
        parameters: override the file and the recording's parameters.
        reliable: subscribe to the images reliably, so that none is lost in transport.
        max_frames: number of frames to play; 0 = all.
        domain_id: ROS domain; None = the environment's, or a random one.
        questions: sent over ``/grounding_query``: standing ones before the first frame, others after the last.
    """

    source: Path
    out: Path
    rate: float = 1.0
    config: Path = DEFAULT_CONFIG
    parameters: Mapping[str, Any] = field(default_factory=dict)
    reliable: bool = True
    max_frames: int = 0
    domain_id: int | None = None
    questions: tuple[MissionQuestion, ...] = ()


@dataclass(frozen=True)
class ReplayOutcome:
    """Result of a replay.

    Attributes:
        sent: frames that the player sent.
        status: the node's last status.
        published: messages per output topic.
        map_file: the saved map.
        report: of the player.
        exit_codes: of the processes.
        wall_s: from the first frame to the last one fused.
        sightings: every message on ``~/boxes``, oldest first.
        semantic: the last labelled voxels; None if none were published.
        answers: by id of the question, oldest first.
    """

    sent: int
    status: NodeStatus
    published: dict[str, int]
    map_file: Path
    report: dict[str, Any]
    exit_codes: dict[str, int]
    wall_s: float
    sightings: tuple[Sighting, ...] = ()
    semantic: SemanticVoxels | None = None
    answers: Mapping[str, Sequence[TimedAnswer]] = field(default_factory=dict)

    @property
    def perception_hz(self) -> float | None:
        """Rate of published objects; None for fewer than two messages."""
        times = [sighting.received_s for sighting in self.sightings]
        return (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 and times[-1] > times[0] else None

    @property
    def unexplained(self) -> int:
        """Frames that were sent but neither fused nor dropped.

        Colour and depth without a partner are two drops of one frame, so the sum may exceed the frames sent.
        """
        return max(0, self.sent - self.status.settled)


def recording_parameters(recording: Recording, reliable: bool) -> dict[str, Any]:
    """Node parameters for a recording: cameras, topics, frames, simulated time, QoS."""
    parameters: dict[str, Any] = {
        "use_sim_time": True,
        "cameras": list(recording.cameras),
        "fusion_frame": recording.world_frame,
    }
    for camera in recording.cameras:
        color, depth, info = default_topics(camera, alone=len(recording.cameras) == 1).values()
        depth_info = ""
        if isinstance(recording, BagRecording):
            topics = recording.camera_topics(camera)
            color, depth, info = topics.color, topics.depth, topics.camera_info
            depth_info = topics.depth_info
        for kind, topic in (("color", color), ("depth", depth)):
            base, transport = _split_transport(topic)
            parameters[f"{camera}.{kind}_topic"] = base
            parameters[f"{camera}.{kind}_transport"] = transport
        parameters[f"{camera}.info_topic"] = info
        if depth_info:
            parameters[f"{camera}.depth_info_topic"] = depth_info
        if reliable:
            for topic in filter(None, (color, depth, info, depth_info)):
                key = f"qos_overrides.{topic if topic.startswith('/') else '/' + topic}.subscription"
                parameters |= {f"{key}.reliability": "reliable", f"{key}.depth": 30}
    return parameters


def frames_sent(report: Mapping[str, Any], parameters: Mapping[str, Any]) -> int:
    """Frames in a player's report: per camera the larger number of colour and depth images."""
    total = 0
    for camera in parameters["cameras"]:
        counts = []
        for kind in ("color", "depth"):
            topic, transport = parameters[f"{camera}.{kind}_topic"], parameters[f"{camera}.{kind}_transport"]
            name = topic if topic.startswith("/") else f"/{topic}"
            counts.append(report["messages"].get(name if transport == "raw" else f"{name}/{transport}", 0))
        total += max(counts)
    return total


def _split_transport(topic: str) -> tuple[str, str]:
    for transport in ("compressedDepth", "compressed"):
        if topic.endswith(f"/{transport}"):
            return topic.removesuffix(f"/{transport}"), transport
    return topic, "raw"


def choose_domain(domain_id: int | None) -> int:
    """The given domain, the environment's, or a random one that every platform supports (1..101).

    Raises :class:`.RosStartError` for a bad ``ROS_DOMAIN_ID``.
    """
    if domain_id is not None:
        return domain_id
    given = domain_of_environment()
    return random.randint(1, 101) if given is None else given


def replay_over_ros(
    plan: ReplayPlan, on_progress: Callable[[str, NodeStatus, int], None] | None = None
) -> ReplayOutcome:
    """Play ``plan.source`` through a new node and save its map.

    ``on_progress(stage, status, total)`` is called several times a second. Raises ``RecordingError`` or ``OSError``
    for a source that cannot be read, :class:`ReplayFailedError` if a process fails, ``KeyboardInterrupt`` after
    Ctrl-C, when all processes have ended.
    """
    recording = open_recording(plan.source)
    total = len(recording)
    parameters = {**recording_parameters(recording, plan.reliable), **plan.parameters}
    parameters["map_folder"] = str(plan.out.absolute())
    total = min(total, plan.max_frames) if plan.max_frames else total
    executable, player_arguments = player_command(plan.source, plan.rate)
    if isinstance(recording, BagRecording):
        played = [recording.camera_topics(camera) for camera in recording.cameras]
        images = sorted({t.color for t in played} | {t.depth for t in played})  # other topics need no subscriber
        player_arguments += ["--depth-topics", *(t.depth for t in played), "--wait-for", *images, "/tf"]
    player_arguments += ["--max-frames", str(plan.max_frames)]
    plan.out.mkdir(parents=True, exist_ok=True)
    report_file = plan.out / "player.json"
    report_file.unlink(missing_ok=True)
    domain_id = choose_domain(plan.domain_id)
    environment = ros_environment()
    environment["ROS_DOMAIN_ID"] = str(domain_id)
    environment.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = environment["ROS_AUTOMATIC_DISCOVERY_RANGE"]  # for the monitor

    with Supervisor() as processes, NodeMonitor(domain_id) as monitor:

        def watch(stage: str) -> None:
            monitor.spin(_PERIOD_S)
            if on_progress is not None:
                on_progress(stage, monitor.status, total)
            codes = processes.exit_codes()
            failed = [name for name, code in codes.items() if code is not None and (name != "player" or code != 0)]
            if processes.interrupted:
                raise KeyboardInterrupt
            if failed:
                name = failed[0]
                log = plan.out / f"{name}.log"
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-8:])
                raise ReplayFailedError(f"the {name} ended with exit code {codes[name]}; log: {log}\n{tail}")

        arguments = ros_arguments(plan.config, parameters)
        command = module_command("node", *arguments)
        processes.start("node", command, environment, plan.out / "node.log")
        wait_until_ready(monitor, lambda: watch("starting"))
        for question in plan.questions:
            if question.standing:
                monitor.ask(question)
        player = module_command(f"players.{executable}", *player_arguments, "--report", str(report_file))
        started = time.monotonic()
        processes.start("player", player, environment, plan.out / "player.log")
        while processes.exit_codes()["player"] is None:
            watch("playing")
        watch("playing")
        report = json.loads(report_file.read_text())
        sent = frames_sent(report, parameters)
        _settle(monitor, sent, lambda: watch("settling"))
        wall_s = time.monotonic() - started
        for question in plan.questions:
            if not question.standing:
                watch("asking")
                monitor.ask(question)
        map_file = (plan.out / "map.safetensors").absolute()
        monitor.save_map(map_file)
        monitor.spin(_DIAGNOSED_S)
        published = dict(monitor.published)
        status = monitor.status
        sightings, answers, semantic = tuple(monitor.sightings), dict(monitor.answers), _last_semantic(monitor)
        exit_codes = processes.stop()
    if combined_exit_code(exit_codes):
        raise ReplayFailedError(f"processes ended with {exit_codes}; logs in {plan.out}")
    return ReplayOutcome(sent, status, published, map_file, report, exit_codes, wall_s, sightings, semantic, answers)


def _last_semantic(monitor: NodeMonitor) -> SemanticVoxels | None:
    cloud, info = monitor.last.get("semantic_voxels"), monitor.last.get("label_info")
    return None if cloud is None or info is None else cloud_to_semantic(cloud, info)


def wait_until_ready(monitor: NodeMonitor, step: Callable[[], None]) -> None:
    """Wait until the node is active, and at most ``_KERNELS_S`` longer for its compiled kernels: until they are loaded
    it perceives nothing of the recording. ``step`` raises if the node ends meanwhile."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while monitor.status.state != "active":
        if monitor.status.state == "configuring":
            deadline = time.monotonic() + _START_TIMEOUT_S
        if time.monotonic() > deadline:
            raise ReplayFailedError(f"the node did not become active within {_START_TIMEOUT_S:g} s")
        step()
    deadline = time.monotonic() + _KERNELS_S
    while monitor.status.areas.get("map", {}).get("kernels") == "loading" and time.monotonic() < deadline:
        step()


def _settle(monitor: NodeMonitor, sent: int, step: Callable[[], None]) -> None:
    """Wait until every frame is fused or dropped, nothing changes any more, or the time-out."""
    deadline = time.monotonic() + _SETTLE_TIMEOUT_S
    changed, last = time.monotonic(), -1
    while monitor.status.settled < sent and time.monotonic() < deadline:
        step()
        if monitor.status.settled != last:
            changed, last = time.monotonic(), monitor.status.settled
        if monitor.status.pending == 0 and time.monotonic() - changed > _QUIET_S:
            return
    _await_last_boxes(monitor, step)


def _await_last_boxes(monitor: NodeMonitor, step: Callable[[], None]) -> None:
    """Wait until a perception that began after the last fused frame is published."""
    settled_s, deadline = time.monotonic(), time.monotonic() + _LAST_BOXES_S
    newest = monitor.sightings[-1].stamp_ns if monitor.sightings else -1
    while time.monotonic() < deadline:
        step()
        last = monitor.sightings[-1] if monitor.sightings else None
        if last is not None and last.stamp_ns > newest:
            newest, settled_s = last.stamp_ns, time.monotonic()
        if time.monotonic() - settled_s > _QUIET_S:
            return


def final_perception(outcome: ReplayOutcome) -> Perception:
    """The saved map with the last published objects.

    Its labelled voxels are those of the saved geometry; ``outcome.semantic`` has the published ones. Raises as
    :meth:`Perceptron.load` does.
    """
    perceptron = Perceptron()
    perceptron.load(outcome.map_file)
    objects = outcome.sightings[-1].objects if outcome.sightings else ()
    return replace(perceptron.perceive(), objects=objects, tentative=(), stale=())


def walk(source: Path, images: int) -> tuple[F64, list[PosedFrame]]:
    """(N, 3) camera positions of all frames of a recording, and about ``images`` of its frames."""
    recording = open_recording(source)
    every = max(1, len(recording) // max(1, images))
    positions, shown = [], []
    for index, posed in enumerate(PosedFrameStream(recording, PerceptronConfig().assembler)):
        positions.append(posed.T_world_camera[:3, 3])
        if index % every == 0:
            shown.append(posed)
    return np.array(positions).reshape(-1, 3), shown


def percentiles(outcome: ReplayOutcome, stage: str) -> dict[str, float | None]:
    """``{"p50": .., "p99": ..}`` of one stage's latency; None if it never ran."""
    statistics = outcome.status.latency_ms.get(stage, {})
    return {key: statistics.get(key) for key in ("p50", "p99")}


def timings(outcome: ReplayOutcome, perception: Perception) -> dict[str, Any]:
    """Contents of ``timings.json``: those of a direct replay, and latencies from image to fusion and boxes."""
    return {
        "frames": outcome.sent,
        "fused": outcome.status.fused,
        "dropped": dict(sorted(outcome.status.dropped.items())),
        "fuse_ms": percentiles(outcome, "fusion"),
        "perceive_ms": percentiles(outcome, "perception"),
        "latency_ms": {stage: percentiles(outcome, stage) for stage in ("fused", "boxes")},
        "voxels": len(perception.voxels),
    }


def write_result_files(out: Path, outcome: ReplayOutcome, perception: Perception, positions_m: F64) -> None:
    """Write the files of a direct replay into ``out``, with the published voxel labels."""
    write_perception(out, perception, positions_m, timings(outcome, perception), outcome.semantic)
