"""``doctor``: a recording's evidence for :mod:`embodied_perceptron.apps.checks`, and checks of the installation."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.apps.checks import CameraEvidence, Finding, Severity, check_camera, check_clocks
from embodied_perceptron.config import SynchronizerConfig
from embodied_perceptron.recordings.bag import BagRecording
from embodied_perceptron.recordings.recording import (
    ColorSample,
    DepthSample,
    Recording,
    RecordingError,
    TransformSample,
)
from embodied_perceptron.sensors.poses import NS_PER_S, Disconnected, TooEarly, TransformTree, format_stamp
from embodied_perceptron.sensors.synchronizer import BadImage

# --------------------------------------------------------------------------------------------------------------------
# recordings

_LOOKED_AT = 12  # depth images that are looked into, spread over the recording
_SAME_MOMENT_NS = 50_000_000


@dataclass
class _PlayedCamera(CameraEvidence):
    last_color: tuple[int, NDArray[np.uint8]] | None = None
    damaged: list[str] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)  # stamps whose pose is still to be looked up


def examine_recording(
    recording: Recording, config: SynchronizerConfig, on_progress: Callable[[int, int], None] | None = None
) -> list[Finding]:
    """Play a recording and check everything that usually goes wrong.

    Args:
        recording: opened with ``tolerate_damage=True``, otherwise the first damaged image ends the examination.
        config: tolerances.
        on_progress: called with (images seen, images in all).

    Returns:
        Findings of every check, camera by camera; a recording that cannot be read on is a finding too.
    """
    evidence = {camera: _PlayedCamera(frames=_image_frames(recording, camera)) for camera in recording.cameras}
    tree = TransformTree(max_gap_s=config.max_pose_gap_s)
    every = max(1, len(recording) // (_LOOKED_AT * max(1, len(evidence))))
    findings: list[Finding] = []
    seen = 0
    try:
        for sample in recording:
            if isinstance(sample, TransformSample):
                findings += _take_transform(tree, sample)
                continue
            camera = evidence[sample.camera]
            if isinstance(sample, ColorSample):
                seen += 1
                _take_color(camera, sample)
                if on_progress:
                    on_progress(seen, len(recording))
            elif isinstance(sample, DepthSample):
                _take_depth(camera, sample, every)
            else:
                camera.add_calibration(sample.calibration)
            _ask_poses(recording, tree, sample.camera, camera, final=False)
    except RecordingError as error:
        findings.append(Finding("reading", Severity.ERROR, str(error)))
    for name, camera in evidence.items():
        _ask_poses(recording, tree, name, camera, final=True)
        if camera.damaged:
            message = f"{name}: {len(camera.damaged)} images cannot be decoded, first: {camera.damaged[0]}"
            findings.append(Finding("images", Severity.ERROR, message, "record again, or use replay --skip-damaged"))
        findings += check_camera(name, camera, config)
    if isinstance(recording, BagRecording):
        findings += _check_messages(recording)
    return findings + _check_tree(tree)


def _image_frames(recording: Recording, camera: str) -> dict[str, str]:
    """Frame ids of colour and depth; folders tell none."""
    if not isinstance(recording, BagRecording):
        return {}
    frames = {topic.name: topic.frame_id for topic in recording.topics}
    chosen = recording.camera_topics(camera)
    return {"color": frames[chosen.color], "depth": frames[chosen.depth]}


def _check_messages(recording: BagRecording) -> list[Finding]:
    # static transforms are latched: recorded whenever the recorder joined
    delays_s = {topic.name: topic.delay_s for topic in recording.topics if not topic.name.endswith("_static")}
    findings = check_clocks(delays_s)
    for topic, count in sorted(recording.skipped.items()):
        message = f"{count} messages on {topic} hold values that cannot be used (NaN, a zero camera matrix, ...)"
        findings.append(Finding("messages", Severity.ERROR, message, "fix their publisher"))
    return findings


def _take_transform(tree: TransformTree, sample: TransformSample) -> list[Finding]:
    try:
        if sample.is_static:
            tree.insert_static(sample.parent, sample.child, sample.T_parent_child)
        else:
            tree.insert(sample.parent, sample.child, sample.stamp_ns, sample.T_parent_child)
    except ValueError as error:
        message = f"at {format_stamp(sample.stamp_ns)}: {error}"
        return [Finding("transforms", Severity.ERROR, message, "fix the publisher of that frame")]
    return []


def _take_color(camera: _PlayedCamera, sample: ColorSample) -> None:
    camera.color_ns.append(sample.stamp_ns)
    camera.waiting.append(sample.stamp_ns)
    if isinstance(sample.image, BadImage):
        camera.damaged.append(sample.image.reason)
    else:
        camera.color_size = (sample.image.shape[1], sample.image.shape[0])
        camera.last_color = (sample.stamp_ns, sample.image)


def _take_depth(camera: _PlayedCamera, sample: DepthSample, every: int) -> None:
    camera.depth_ns.append(sample.stamp_ns)
    if isinstance(sample.depth_m, BadImage):
        camera.damaged.append(sample.depth_m.reason)
        return
    camera.depth_size = (sample.depth_m.shape[1], sample.depth_m.shape[0])
    if len(camera.depth_ns) % every == 0 or not camera.depths:
        camera.depths.append((sample.stamp_ns, sample.depth_m))
        if camera.last_color is None:
            return
        color_ns, color = camera.last_color
        if abs(color_ns - sample.stamp_ns) < _SAME_MOMENT_NS and color.shape[:2] == sample.depth_m.shape:
            camera.pairs.append((color, sample.depth_m))


def _ask_poses(recording: Recording, tree: TransformTree, name: str, camera: _PlayedCamera, *, final: bool) -> None:
    """Look poses up while the tree still remembers; what may still come is looked up again, until the history would
    run out."""
    while camera.waiting:
        stamp = camera.waiting[0]
        answer = tree.lookup(recording.world_frame, recording.camera_frame(name), stamp)
        late = camera.color_ns[-1] - stamp > 2 * NS_PER_S
        if isinstance(answer, (TooEarly, Disconnected)) and not (final or late):
            return
        camera.poses.append((stamp, answer))
        camera.waiting.pop(0)


def _check_tree(tree: TransformTree) -> list[Finding]:
    findings = []
    for child, times in sorted(tree.reparented.items()):
        message = f"frame {child!r} changed its parent {times} times: two publishers fight over it"
        findings.append(Finding("transforms", Severity.ERROR, message, "stop one of them (publish_tf: false)"))
    if tree.restarts:
        message = f"time went back {tree.restarts} times"
        findings.append(Finding("stamps", Severity.WARNING, message, "the recording starts over, or a clock was set"))
    return findings


# --------------------------------------------------------------------------------------------------------------------
# installation

_OPTIONAL_PACKAGES = {
    "rclpy": ("live topics", "make setup, or source a ROS 2 installation"),
    "embodied_perceptron_msgs": ("live topics", "make setup, or colcon build in ros_ws"),
    "vision_msgs": ("live topics", "make setup, or install ros-DISTRO-vision-msgs"),
    "rerun": ("recordings for the Rerun viewer", "pip install 'embodied-perceptron[viewer]'"),
    "viser": ("the viewer in the browser", "pip install 'embodied-perceptron[web]'"),
    "onnxruntime": ("encoders through ONNX Runtime", "pip install 'embodied-perceptron[onnxruntime]'"),
    "transformers": ("language grounding", "pip install 'embodied-perceptron[language]'"),
    "embreex": ("simulated recordings", "pip install 'embodied-perceptron[train]'"),
}


def examine_environment(find: Callable[[str], Any] = importlib.util.find_spec) -> list[Finding]:
    """Look at the installation: Python, torch and its devices, optional packages. ``find`` as in importlib."""
    import torch

    version = ".".join(map(str, sys.version_info[:3]))
    findings = [Finding("python", Severity.OK, f"{version} on {platform.machine()}, {platform.system()}")]
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no CUDA device, runs on the CPU"
    findings.append(Finding("torch", Severity.OK, f"{torch.__version__}, {device}"))
    findings.append(Finding("numba", Severity.OK, importlib.metadata.version("numba")))
    for name, (purpose, remedy) in _OPTIONAL_PACKAGES.items():
        if _is_there(find, name):
            findings.append(Finding("packages", Severity.OK, f"{name} is there ({purpose})"))
        else:
            findings.append(Finding("packages", Severity.INFO, f"{name} is not installed: no {purpose}", remedy))
    return findings


def _is_there(find: Callable[[str], Any], name: str) -> bool:
    try:
        return find(name) is not None
    except (ImportError, ValueError):  # a broken package, or one that hides its spec
        return False
