"""Examines a recording or the installation, and says what to do about what it finds.

The checks themselves are pure and stand in :mod:`embodied_perceptron.apps.checks`; a live graph is examined by the
same.
"""

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

from embodied_perceptron.apps.checks import (
    Finding,
    Severity,
    check_alignment,
    check_clocks,
    check_depth,
    check_level,
    check_motion,
    check_order,
    check_pairing,
    check_poses,
    check_registration,
    check_sizes,
)
from embodied_perceptron.config import AssemblerConfig
from embodied_perceptron.geometry.transforms import Intrinsics, back_project, transform_points
from embodied_perceptron.recordings.bag import BagRecording
from embodied_perceptron.recordings.recording import (
    ColorSample,
    DepthSample,
    Recording,
    RecordingError,
    TransformSample,
)
from embodied_perceptron.sensors.camera_model import CameraModel
from embodied_perceptron.sensors.poses import (
    NS_PER_S,
    Disconnected,
    Found,
    PoseLookup,
    TooEarly,
    TransformTree,
    format_stamp,
)
from embodied_perceptron.sensors.synchronizer import BadImage

# --------------------------------------------------------------------------------------------------------------------
# recordings

_LOOKED_AT = 12  # depth images that are looked into, spread over the recording
_POINTS_PER_IMAGE = 2000
_SAME_EXPOSURE_NS = 50_000_000


@dataclass
class _CameraEvidence:
    color_ns: list[int] = field(default_factory=list)
    depth_ns: list[int] = field(default_factory=list)
    color_size: tuple[int, int] | None = None
    depth_size: tuple[int, int] | None = None
    calibrations: list[CameraModel] = field(default_factory=list)
    depths: list[tuple[int, NDArray[np.float32]]] = field(default_factory=list)
    last_color: tuple[int, NDArray[np.uint8]] | None = None
    pairs: list[tuple[NDArray[np.uint8], NDArray[np.float32]]] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    answers: list[PoseLookup] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)  # stamps whose pose is still to be asked for


def examine_recording(
    recording: Recording, config: AssemblerConfig, on_progress: Callable[[int, int], None] | None = None
) -> list[Finding]:
    """Play a recording and look at everything that usually goes wrong.

    Args:
        recording: opened with ``tolerate_damage=True``, otherwise the first damaged image ends the examination.
        config: tolerances.
        on_progress: called with (images seen, images in all).

    Returns:
        Findings of every check, camera by camera; a recording that cannot be read on is a finding too.
    """
    evidence = {camera: _CameraEvidence() for camera in recording.cameras}
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
            elif not camera.calibrations or camera.calibrations[-1] != sample.calibration:
                camera.calibrations.append(sample.calibration)
            _ask_poses(recording, tree, sample.camera, camera, final=False)
    except RecordingError as error:
        findings.append(Finding("reading", Severity.ERROR, str(error)))
    for name, camera in evidence.items():
        _ask_poses(recording, tree, name, camera, final=True)
        findings += _judge_camera(name, camera, config)
    if isinstance(recording, BagRecording):
        findings += _judge_topics(recording)
    return findings + _judge_tree(tree)


def _judge_topics(recording: BagRecording) -> list[Finding]:
    topics = {topic.name: topic for topic in recording.topics}
    findings: list[Finding] = []
    for camera in recording.cameras:
        chosen = recording.camera_topics(camera)
        findings += check_registration(topics[chosen.color].frame_id, topics[chosen.depth].frame_id)
    static = [name for name in topics if name.endswith("_static")]  # latched: recorded whenever the recorder joined
    findings += check_clocks({t.name: t.delay_s for t in recording.topics if t.name not in static})
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


def _take_color(camera: _CameraEvidence, sample: ColorSample) -> None:
    camera.color_ns.append(sample.stamp_ns)
    camera.waiting.append(sample.stamp_ns)
    if isinstance(sample.image, BadImage):
        camera.damaged.append(sample.image.reason)
    else:
        camera.color_size = (sample.image.shape[1], sample.image.shape[0])
        camera.last_color = (sample.stamp_ns, sample.image)


def _take_depth(camera: _CameraEvidence, sample: DepthSample, every: int) -> None:
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
        if abs(color_ns - sample.stamp_ns) < _SAME_EXPOSURE_NS and color.shape[:2] == sample.depth_m.shape:
            camera.pairs.append((color, sample.depth_m))


def _ask_poses(recording: Recording, tree: TransformTree, name: str, camera: _CameraEvidence, *, final: bool) -> None:
    """Ask while the tree still remembers; what may still come is asked again, until the history would run out."""
    while camera.waiting:
        stamp = camera.waiting[0]
        answer = tree.lookup(recording.world_frame, recording.camera_frame(name), stamp)
        late = camera.color_ns[-1] - stamp > 2 * NS_PER_S
        if isinstance(answer, (TooEarly, Disconnected)) and not (final or late):
            return
        camera.answers.append(answer)
        camera.waiting.pop(0)


def _judge_camera(name: str, camera: _CameraEvidence, config: AssemblerConfig) -> list[Finding]:
    findings: list[Finding] = []
    if camera.damaged:
        message = f"{name}: {len(camera.damaged)} images cannot be decoded, first: {camera.damaged[0]}"
        findings.append(Finding("images", Severity.ERROR, message, "record again, or use replay --skip-damaged"))
    model = camera.calibrations[-1] if camera.calibrations else None
    size = None if model is None else (model.intrinsics.width, model.intrinsics.height)
    findings += check_sizes(camera.color_size, camera.depth_size, size)
    if len(camera.calibrations) > 1:
        message = f"{name}: camera_info changes {len(camera.calibrations) - 1} times"
        findings.append(Finding("calibration", Severity.WARNING, message, "frames use the calibration of their stamp"))
    if model is not None and model.is_distorted:
        message = f"{name}: images are distorted ({model.model}); they are rectified on the fly"
        findings.append(Finding("calibration", Severity.INFO, message, "rectify in the driver to save that time"))
    findings += check_depth([depth for _, depth in camera.depths])
    if len({color.shape for color, _ in camera.pairs}) == 1:
        findings += check_alignment(camera.pairs)
    findings += check_order(f"{name} colour", camera.color_ns)
    findings += check_order(f"{name} depth", camera.depth_ns)
    findings += check_pairing(camera.color_ns, camera.depth_ns, config.pair_tolerance_s)
    findings += check_poses(name, camera.answers)
    posed = [(s, a.T) for s, a in zip(camera.color_ns, camera.answers, strict=False) if isinstance(a, Found)]
    if posed:
        positions = np.array([T[:3, 3] for _, T in posed])
        findings += check_motion(name, [stamp for stamp, _ in posed], positions)
        if model is not None and camera.depth_size == size:
            findings += check_level(_points(camera, model.intrinsics, dict(posed)))
    return findings


def _points(
    camera: _CameraEvidence, intrinsics: Intrinsics, poses: dict[int, NDArray[np.float64]]
) -> NDArray[np.float64]:
    stamps = np.array(sorted(poses))
    clouds = [np.zeros((0, 3))]
    for stamp, depth in camera.depths:
        nearest = int(stamps[np.argmin(np.abs(stamps - stamp))])
        points, valid = back_project(np.where(depth < 5.0, depth, 0.0), intrinsics)
        cloud = points[valid]
        step = max(1, len(cloud) // _POINTS_PER_IMAGE)
        clouds.append(transform_points(poses[nearest], cloud[::step]))
    return np.concatenate(clouds)


def _judge_tree(tree: TransformTree) -> list[Finding]:
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
