"""``doctor``: evidence of a recording for :mod:`embodied_perceptron.apps.checks`, and checks of the installation."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.apps.checks import (
    CameraEvidence,
    ConflictingTransforms,
    Finding,
    Severity,
    check_camera,
    check_clocks,
    check_drops,
    check_frames_differ,
)
from embodied_perceptron.config import SynchronizerConfig
from embodied_perceptron.recordings.bag import TF_TYPES, BagRecording
from embodied_perceptron.recordings.conventions import ConvertedRecording
from embodied_perceptron.recordings.recording import (
    ColorSample,
    DepthSample,
    PosedFrameStream,
    Recording,
    RecordingError,
    Sample,
    TransformSample,
)
from embodied_perceptron.sensors.camera_model import CameraModel, UnregisteredDepth
from embodied_perceptron.sensors.depth_consistency import DepthConsistency
from embodied_perceptron.sensors.frame import PosedFrame
from embodied_perceptron.sensors.poses import NS_PER_S, Disconnected, Found, TooEarly, TransformTree, format_stamp
from embodied_perceptron.sensors.synchronizer import BadImage, Drop

# --------------------------------------------------------------------------------------------------------------------
# recordings

_SAMPLED = 12  # depth images of a recording that are checked,
_PARTNER_NS = 500_000_000  # each with another about this much later, which sees the same surfaces
_SAME_MOMENT_NS = 50_000_000
_MOVED = 0.005  # m, or of a rotation's entries, between two images


@dataclass
class _PlayedCamera(CameraEvidence):
    posed: int = 0
    last_color: tuple[int, NDArray[np.uint8]] | None = None
    damaged: list[str] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)  # stamps without a looked up pose
    sampled_ns: int | None = None  # stamp of a sampled depth image without a partner
    last_depth: tuple[int, int] | None = None  # stamp and checksum
    repeated_ns: list[int] = field(default_factory=list)  # stamps of images equal to their predecessor


class _ObservedRecording:
    """A recording that passes each sample to a callback while it is played."""

    def __init__(self, recording: Recording, on_sample: Callable[[Sample], None]) -> None:
        self._recording = recording
        self._on_sample = on_sample

    def __iter__(self) -> Iterator[Sample]:
        for sample in self._recording:
            self._on_sample(sample)
            yield sample

    def __len__(self) -> int:
        return len(self._recording)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._recording, name)


def examine_recording(
    recording: Recording,
    config: SynchronizerConfig,
    on_progress: Callable[[int, int], None] | None = None,
    world_frame: str | None = None,
) -> list[Finding]:
    """Play a recording as ``replay`` does and run all checks.

    Args:
        recording: opened with ``tolerate_damage=True``, otherwise the first damaged image ends the examination.
        config: tolerances.
        on_progress: called with (images seen, images in all).
        world_frame: of the map; by default the recording's own.

    Returns:
        Findings of every check, camera by camera; a recording that becomes unreadable is a finding too.
    """
    return _Examination(recording, config, on_progress, world_frame or recording.world_frame).run()


class _Examination:
    def __init__(
        self,
        recording: Recording,
        config: SynchronizerConfig,
        on_progress: Callable[[int, int], None] | None,
        world_frame: str,
    ) -> None:
        self._recording = recording
        self._config = config
        self._on_progress = on_progress
        self._world_frame = world_frame
        original = _original(recording)
        self._cameras = {
            camera: _PlayedCamera(
                frames=_image_frames(recording, camera),
                says_aligned=isinstance(original, BagRecording) and original.says_aligned(camera),
                depth_scale=recording.depth_scale(camera),
            )
            for camera in recording.cameras
        }
        self._every = max(1, len(recording) // (_SAMPLED * max(1, len(self._cameras))))
        self._tree = TransformTree(max_gap_s=config.max_pose_gap_s)
        self._conflicts = ConflictingTransforms()
        self._consistency = DepthConsistency()
        self._findings: list[Finding] = []
        self._seen = 0

    def run(self) -> list[Finding]:
        observed: Any = _ObservedRecording(self._recording, self._add)
        stream = PosedFrameStream(
            observed, self._config, world_frame=self._world_frame, on_refused=lambda *refused: None
        )
        first_drops: dict[str, Drop] = {}
        try:
            for posed in stream:
                self._check_consistency(posed)
                for drop in stream.take_drops():
                    first_drops.setdefault(drop.reason, drop)
        except RecordingError as error:
            self._findings.append(Finding("reading", Severity.ERROR, error.fault, error.remedy))
        for drop in stream.take_drops():
            first_drops.setdefault(drop.reason, drop)
        findings = self._findings
        for name, camera in self._cameras.items():
            self._look_up_poses(name, camera, final=True)
            camera.refused = self._refused(name)
            camera.depth_repeats = _longest_freeze(camera)
            camera.undecided = self._consistency.undecided[name]
            if camera.damaged:
                message = f"{name}: {len(camera.damaged)} images cannot be decoded, first: {camera.damaged[0]}"
                remedy = "record again, or use replay --skip-damaged"
                findings.append(Finding("images", Severity.ERROR, message, remedy))
            findings += check_camera(name, camera, self._config)
        findings += _check_left_out(self._recording)
        original = _original(self._recording)
        if isinstance(original, BagRecording):
            findings += _check_topics(original)
        frames = {camera: self._recording.camera_frame(camera) for camera in self._cameras}
        findings += check_frames_differ(frames)
        findings += self._conflicts.findings()
        findings += _check_tree(self._tree)
        findings += check_drops(stream.colors_played, stream.stats.emitted, stream.stats.dropped, first_drops)
        return findings

    def _check_consistency(self, posed: PosedFrame) -> None:
        camera = self._cameras[posed.frame.camera]
        camera.posed += 1
        if detail := self._consistency.check(posed):
            camera.inconsistent.append((camera.posed, posed.frame.stamp_ns, detail))

    def _refused(self, camera: str) -> str:
        """Return the reason why a calibration of a camera was left out."""
        original = _original(self._recording)
        if not isinstance(original, BagRecording):
            return ""
        return original.left_out.reasons.get(original.camera_topics(camera).camera_info, "")

    def _add(self, sample: Sample) -> None:
        if isinstance(sample, TransformSample):
            self._add_transform(sample)
            return
        camera = self._cameras[sample.camera]
        if isinstance(sample, ColorSample):
            self._seen += 1
            _add_color(camera, sample)
            if self._on_progress:
                self._on_progress(self._seen, len(self._recording))
        elif isinstance(sample, DepthSample):
            _add_depth(camera, sample, self._every)
        elif isinstance(sample.calibration, CameraModel):
            camera.add_calibration(sample.calibration)
        self._look_up_poses(sample.camera, camera, final=False)

    def _add_transform(self, sample: TransformSample) -> None:
        try:
            if sample.is_static:
                self._tree.insert_static(sample.parent, sample.child, sample.T_parent_child)
            else:
                self._tree.insert(sample.parent, sample.child, sample.stamp_ns, sample.T_parent_child)
        except ValueError as error:
            message = f"at {format_stamp(sample.stamp_ns)}: {error}"
            finding = Finding("transforms", Severity.ERROR, message, "fix the publisher of that frame")
            if not any(f.message.endswith(str(error)) for f in self._findings):
                self._findings.append(finding)
            return
        self._conflicts.add(sample)

    def _look_up_poses(self, name: str, camera: _PlayedCamera, *, final: bool) -> None:
        """Look up poses while the tree has their time; transforms that may still arrive are waited for."""
        while camera.waiting:
            stamp = camera.waiting[0]
            answer = self._tree.lookup(self._world_frame, self._recording.camera_frame(name), stamp)
            late = camera.color_ns[-1] - stamp > 2 * NS_PER_S
            if isinstance(answer, (TooEarly, Disconnected)) and not (final or late):
                return
            camera.poses.append((stamp, answer))
            camera.waiting.pop(0)


def _original(recording: Recording) -> Any:
    """Return the reader below converted poses."""
    return recording.original if isinstance(recording, ConvertedRecording) else recording


def _image_frames(recording: Recording, camera: str) -> dict[str, str]:
    """Return the frame ids of colour and depth of a bag; folders have none."""
    original = _original(recording)
    if not isinstance(original, BagRecording):
        return {}
    frames = {topic.name: topic.frame_id for topic in original.topics}
    chosen = original.camera_topics(camera)
    return {"color": frames[chosen.color], "depth": frames[chosen.depth]}


def _check_left_out(recording: Recording) -> list[Finding]:
    left_out = recording.left_out
    return [
        Finding(
            "messages",
            Severity.ERROR,
            f"{count} of {where} cannot be used, first: {left_out.reasons[where]}",
            "repair the program that wrote it, or use replay --skip-damaged",
        )
        for where, count in sorted(left_out.counts.items())
    ]


def _check_topics(recording: BagRecording) -> list[Finding]:
    # static transforms are latched: recorded whenever the recorder joined
    delays_s = {topic.name: topic.delay_s for topic in recording.topics if not topic.name.endswith("_static")}
    findings = check_clocks(delays_s)
    others = [t.name for t in recording.topics if t.type in TF_TYPES and t.name not in recording.tf_topics]
    if others:
        message = f"transforms are those of {', '.join(recording.tf_topics)}; {', '.join(others)} are left out"
        findings.append(Finding("transforms", Severity.INFO, message, "another robot: --tf-topic"))
    return findings


def _add_color(camera: _PlayedCamera, sample: ColorSample) -> None:
    camera.color_ns.append(sample.stamp_ns)
    camera.waiting.append(sample.stamp_ns)
    if isinstance(sample.image, BadImage):
        camera.damaged.append(sample.image.reason)
    else:
        camera.color_size = (sample.image.shape[1], sample.image.shape[0])
        camera.last_color = (sample.stamp_ns, sample.image)


def _add_depth(camera: _PlayedCamera, sample: DepthSample, every: int) -> None:
    camera.depth_ns.append(sample.stamp_ns)
    if isinstance(sample.depth_m, BadImage):
        camera.damaged.append(sample.depth_m.reason)
        return
    depth_m = sample.depth_m
    if isinstance(depth_m, UnregisteredDepth):
        camera.registered_here = True
        if not camera.calibrations:
            return
        try:
            depth_m = depth_m.registered(camera.calibrations[-1].intrinsics)
        except ValueError as error:
            camera.damaged.append(str(error))
            return
    camera.depth_size = (depth_m.shape[1], depth_m.shape[0])
    checksum = zlib.crc32(np.ascontiguousarray(depth_m).data)
    if camera.last_depth is not None and camera.last_depth[0] < sample.stamp_ns and camera.last_depth[1] == checksum:
        camera.repeated_ns.append(sample.stamp_ns)
    camera.last_depth = (sample.stamp_ns, checksum)
    due = len(camera.depth_ns) % every == 0 or not camera.depths
    partner = camera.sampled_ns is not None and sample.stamp_ns - camera.sampled_ns >= _PARTNER_NS
    if not due and not partner:
        return
    camera.sampled_ns = sample.stamp_ns if due else None
    camera.depths.append((sample.stamp_ns, depth_m))
    if camera.last_color is None or not due:
        return
    color_ns, color = camera.last_color
    if abs(color_ns - sample.stamp_ns) < _SAME_MOMENT_NS and color.shape[:2] == depth_m.shape:
        camera.pairs.append((color, depth_m))


def _longest_freeze(camera: _PlayedCamera) -> int:
    """Return the longest run of depth images equal to their predecessor while the camera moved."""
    if not camera.repeated_ns:
        return 0
    poses = [(stamp, answer.T) for stamp, answer in camera.poses if isinstance(answer, Found)]
    if len(poses) < 2:
        return 0
    stamps = np.array([stamp for stamp, _ in poses])
    repeated, order = set(camera.repeated_ns), sorted(camera.depth_ns)
    longest = run = 0
    for before_ns, stamp_ns in pairwise(order):
        if stamp_ns in repeated:
            near = [poses[int(np.argmin(np.abs(stamps - t)))][1] for t in (before_ns, stamp_ns)]
            run += int(np.abs(near[0] - near[1]).max() > _MOVED)
        else:
            run = 0
        longest = max(longest, run)
    return longest


def _check_tree(tree: TransformTree) -> list[Finding]:
    findings = []
    for child, times in sorted(tree.reparented.items()):
        message = f"frame {child!r} changed its parent {times} times: it has two publishers"
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
    "viser": ("the viewer in the browser", "pip install 'viser>=1.0'"),
    "mcp": ("the map as tools of an agent", "pip install 'embodied-perceptron[agent]'"),
    "liblzfse": ("depth of Record3D's .r3d files", "pip install 'embodied-perceptron[record3d]'"),
    "onnxruntime": ("encoders through ONNX Runtime", "pip install 'embodied-perceptron[onnxruntime]'"),
    "embreex": ("simulated recordings", "pip install 'embreex>=2.17', which has wheels for x86-64"),
}


def examine_environment(find: Callable[[str], Any] = importlib.util.find_spec) -> list[Finding]:
    """Check the installation: Python, torch and its devices, optional packages. ``find`` as in importlib."""
    import torch

    version = ".".join(map(str, sys.version_info[:3]))
    findings = [Finding("python", Severity.OK, f"{version} on {platform.machine()}, {platform.system()}")]
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no CUDA device, runs on the CPU"
    findings.append(Finding("torch", Severity.OK, f"{torch.__version__}, {device}"))
    findings.append(Finding("numba", Severity.OK, importlib.metadata.version("numba")))
    for name, (purpose, remedy) in _OPTIONAL_PACKAGES.items():
        if _is_installed(find, name):
            findings.append(Finding("packages", Severity.OK, f"{name} is installed ({purpose})"))
        else:
            findings.append(Finding("packages", Severity.INFO, f"{name} is not installed: no {purpose}", remedy))
    return findings


def _is_installed(find: Callable[[str], Any], name: str) -> bool:
    try:
        return find(name) is not None
    except (ImportError, ValueError):  # a broken package, or one without a spec
        return False
