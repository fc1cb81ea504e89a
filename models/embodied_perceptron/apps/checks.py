"""Pure checks of what usually keeps a map from being right: evidence in, findings with a remedy out.

They know nothing of files, topics or nodes: a recording (:mod:`embodied_perceptron.apps.doctor`) and a live graph (the
ROS package's doctor) collect the same :class:`CameraEvidence`, and are judged by the same :func:`check_camera`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.apps.findings import Finding as Finding
from embodied_perceptron.apps.findings import Severity as Severity
from embodied_perceptron.apps.findings import has_errors as has_errors
from embodied_perceptron.apps.view_consistency import check_views, check_world_axes
from embodied_perceptron.config import SynchronizerConfig
from embodied_perceptron.geometry.transforms import Intrinsics, back_project, transform_points
from embodied_perceptron.recordings.recording import TransformSample
from embodied_perceptron.scene.segmentation.floor import estimate_up
from embodied_perceptron.sensors.camera_model import CameraModel
from embodied_perceptron.sensors.poses import (
    NS_PER_S,
    Disconnected,
    Found,
    Gap,
    PoseBuffer,
    PoseLookup,
    TooEarly,
    TooOld,
    seconds_to_ns,
)
from embodied_perceptron.sensors.synchronizer import Drop

_Sample = TypeVar("_Sample")

_POSE_GAP_S = 0.25  # between two poses that one between them is told from
_POINTS_PER_IMAGE = 2000
_NEAREST_PLAUSIBLE_M = 0.1
_FURTHEST_PLAUSIBLE_M = 30.0
_UP = np.array([0.0, 0.0, 1.0])
_MAX_TILT_DEG, _LEVEL_DEG = 8.0, 5.0
_PLANE_M = 0.02  # points so far from a plane lie on it
_MIN_PLANE_SHARE = 0.2  # of all points; of what is smaller, planes through clutter may be the largest
_LATE_SHARE = 0.5  # of the time that frames wait for a pose; what takes longer is lost when it varies
_FROZEN_IMAGES = 5
_FUSED_SHARE = 0.5  # of the frames; a recording that loses more of them is not mapped
# a link jumps when it moves by so much (m or rad) faster than robots do (m/s or rad/s), and returns when it comes so
# near to where it was, as a share of the jump
_JUMP, _FASTEST, _RETURNED_SHARE, _MIN_RETURNS = 0.05, 8.0, 0.3, 5
_OLD_S, _AHEAD_S = 5.0, 0.5  # stamps this far from this machine's clock belong to another one


@dataclass
class CameraEvidence:
    """What was collected of one camera, in order of arrival.

    Attributes:
        color_ns, depth_ns: stamps of all images.
        color_size, depth_size: (width, height) of an image; None where none could be decoded.
        frames: frame ids by ``color`` and ``depth``, where they are known.
        registered_here: depth is in a camera of its own, and brought to the pixels of colour while it is read; then
            ``depth_size``, ``depths`` and ``pairs`` are of what comes of it.
        calibrations: one for each change.
        refused: why calibrations could not be used, where some could not.
        depth_scale: raw units per metre that the depth was read with; None where it came in metres, or nobody knows.
        depth_repeats: most images in a row, after the first, that held the very same depth while the camera moved.
        depths: (stamp, (H, W) float32 canonical depth), a few from all over.
        pairs: (colour, depth) of the same moment, a few from all over, as :func:`measure_alignment` has them.
        poses: (stamp, pose lookup in the world frame) of colour images, in order.
    """

    color_ns: list[int] = field(default_factory=list)
    depth_ns: list[int] = field(default_factory=list)
    color_size: tuple[int, int] | None = None
    depth_size: tuple[int, int] | None = None
    frames: dict[str, str] = field(default_factory=dict)
    registered_here: bool = False
    calibrations: list[CameraModel] = field(default_factory=list)
    refused: str = ""
    depth_scale: float | None = None
    depth_repeats: int = 0
    depths: list[tuple[int, NDArray[np.float32]]] = field(default_factory=list)
    pairs: list[tuple[NDArray[np.uint8], NDArray[np.float32]]] = field(default_factory=list)
    poses: list[tuple[int, PoseLookup]] = field(default_factory=list)

    def add_calibration(self, model: CameraModel) -> None:
        """Add a calibration that differs from the last."""
        if not self.calibrations or self.calibrations[-1] != model:
            self.calibrations.append(model)


def check_camera(
    name: str, evidence: CameraEvidence, config: SynchronizerConfig, *, live: bool = False
) -> list[Finding]:
    """Findings of everything that the images, stamps and poses of one camera tell.

    ``live``: a few seconds of a running camera instead of a whole drive. The first and last image may lack their
    partner then, the robot may stand still, and the frame id is still the driver's to choose.
    """
    model = evidence.calibrations[-1] if evidence.calibrations else None
    size = None if model is None else (model.intrinsics.width, model.intrinsics.height)
    findings = check_sizes(evidence.color_size, evidence.depth_size, size, evidence.refused)
    if "color" in evidence.frames and "depth" in evidence.frames:
        findings += check_registration(evidence.frames["color"], evidence.frames["depth"], evidence.registered_here)
    if len(evidence.calibrations) > 1:
        message = f"{name}: camera_info changes {len(evidence.calibrations) - 1} times"
        findings.append(Finding("calibration", Severity.WARNING, message, "frames use the calibration of their stamp"))
    if model is not None and model.is_distorted:
        message = f"{name}: images are distorted ({model.model}); they are rectified on the fly"
        findings.append(Finding("calibration", Severity.INFO, message, "rectify in the driver to save that time"))
    findings += check_depth([depth for _, depth in evidence.depths])
    if len({color.shape for color, _ in evidence.pairs}) == 1:
        findings += check_alignment(evidence.pairs)
    findings += check_order(f"{name} colour", evidence.color_ns)
    findings += check_order(f"{name} depth", evidence.depth_ns)
    colors_ns = evidence.color_ns[1:-1] if live else evidence.color_ns
    findings += check_pairing(colors_ns, evidence.depth_ns, config.pair_tolerance_s)
    findings += check_poses(name, [answer for _, answer in evidence.poses])
    found = {stamp: answer.T for stamp, answer in evidence.poses if isinstance(answer, Found)}
    if not found:
        return findings
    if live:
        optical = check_optical(name, evidence.frames.get("color", ""), list(found.values()))
        findings += optical
        if has_errors(optical):
            return findings
    else:
        findings += check_motion(name, list(found), np.array([T[:3, 3] for T in found.values()]))
    if evidence.depth_repeats >= _FROZEN_IMAGES:
        findings.append(_frozen(name, evidence.depth_repeats))
    if model is not None and evidence.depth_size == size:
        at = zip(evidence.depths, _poses_at(evidence.depths, found), strict=True)
        posed = [(stamped, T) for stamped, T in at if T is not None]
        findings += check_views(
            name,
            [(depth, T) for (_, depth), T in posed],
            model.intrinsics,
            depth_scale=evidence.depth_scale,
            poses_at=lambda offset_s: _poses_at([stamped for stamped, _ in posed], found, offset_s),
            live=live,
        )
        foreign = any(finding.check == "pose convention" for finding in findings)
        axes = [] if foreign else check_world_axes(name, list(found.values()), live)
        findings += axes
        if not foreign and not axes:
            agree = any(finding.check == "views" and finding.severity == Severity.OK for finding in findings)
            findings += check_level(_world_points(evidence.depths, model.intrinsics, found), agree)
    return findings


def _frozen(camera: str, repeats: int) -> Finding:
    message = f"{camera}: {repeats} depth images in a row were the same as the one before, while the camera moved"
    return Finding("depth frozen", Severity.WARNING, message, "restart the depth camera, and check its connection")


def _poses_at(
    depths: Sequence[tuple[int, Any]], poses: Mapping[int, NDArray[np.float64]], offset_s: float = 0.0
) -> list[NDArray[np.float64] | None]:
    """Poses of depth images, between those of colour images a moment before and after; None where there is none.

    ``offset_s`` is added to the stamps of the poses.
    """
    track = PoseBuffer(history_s=None, max_gap_s=_POSE_GAP_S)
    for stamp, T in poses.items():
        track.insert(stamp + seconds_to_ns(offset_s), T)
    answers = [track.lookup(stamp) for stamp, _ in depths]
    return [answer.T if isinstance(answer, Found) else None for answer in answers]


class SpreadSamples(Generic[_Sample]):
    """So many of a stream whose length nobody knows, evenly spread: of a full half every second goes, and from then on
    half as many come.

    Args:
        limit: most that are kept; at least half as many are, once there were so many.
    """

    def __init__(self, limit: int) -> None:
        if limit < 2:
            raise ValueError(f"limit must be at least 2, got {limit}")
        self.items: list[_Sample] = []
        self._limit, self._every, self._seen = limit, 1, 0

    def is_next_wanted(self) -> bool:
        """Whether to :meth:`keep` the one that comes now; call it once for each."""
        self._seen += 1
        return (self._seen - 1) % self._every == 0

    def keep(self, item: _Sample) -> None:
        """Take a wanted one."""
        self.items.append(item)
        if len(self.items) > self._limit:
            self.items = self.items[::2]
            self._every *= 2


def _world_points(
    depths: Sequence[tuple[int, NDArray[np.float32]]], intrinsics: Intrinsics, poses: Mapping[int, NDArray[np.float64]]
) -> NDArray[np.float64]:
    """(N, 3) a few points of each depth image, by the pose nearest in time: enough to see which way is up."""
    stamps = np.array(sorted(poses))
    clouds = [np.zeros((0, 3))]
    for stamp, depth in depths:
        nearest = int(stamps[np.argmin(np.abs(stamps - stamp))])
        points, valid = back_project(np.where(depth < 5.0, depth, 0.0), intrinsics)
        cloud = points[valid]
        step = max(1, len(cloud) // _POINTS_PER_IMAGE)
        clouds.append(transform_points(poses[nearest], cloud[::step]))
    return np.concatenate(clouds)


# --------------------------------------------------------------------------------------------------------------------
# images


def check_depth(depths_m: Sequence[NDArray[np.float32]]) -> list[Finding]:
    """Is depth there, and in metres? ``depths_m``: (H, W) float32 canonical images, a few from all over."""
    if not depths_m:
        return [Finding("depth", Severity.ERROR, "no depth image could be read")]
    known_share = float(np.mean([(depth > 0).mean() for depth in depths_m]))
    empty = sum(not bool((depth > 0).any()) for depth in depths_m)
    if empty == len(depths_m):
        return [
            Finding(
                "depth",
                Severity.ERROR,
                f"no pixel of any of {empty} depth images has a value",
                "check the sensor (emitter on, range), and depth_invalid or the encoding",
            )
        ]
    findings = []
    values = np.concatenate([depth[(depth > 0) & np.isfinite(depth)].ravel()[::17] for depth in depths_m])
    median = float(np.median(values)) if len(values) else 0.0
    if len(values) and median > _FURTHEST_PLAUSIBLE_M:
        remedy = "millimetres were read as metres: use encoding 16UC1, or divide; in camera.json, raise depth_scale"
        findings.append(Finding("depth unit", Severity.ERROR, f"the median depth is {median:.1f} m", remedy))
    elif len(values) and median < _NEAREST_PLAUSIBLE_M:
        remedy = "the unit is too small: 16UC1 means millimetres, 32FC1 metres; in camera.json, lower depth_scale"
        findings.append(Finding("depth unit", Severity.ERROR, f"the median depth is {median * 1e3:.2f} mm", remedy))
    elif len(values):
        findings.append(Finding("depth unit", Severity.OK, f"the median depth is {median:.2f} m"))
    infinite = sum(bool(np.isposinf(depth[depth > 0]).all()) for depth in depths_m) - empty
    if infinite:
        message = f"all values of {infinite} of {len(depths_m)} depth images are +Inf: nothing within range (REP-117)"
        remedy = "they clear what stands there; for a driver that means 'invalid', set its camera's inf_depth: unknown"
        findings.append(Finding("depth +Inf", Severity.WARNING, message, remedy))
    if empty:
        message = f"{empty} of {len(depths_m)} depth images that were looked at have no value at all"
        findings.append(Finding("depth", Severity.WARNING, message, "the sensor may be covered or out of range"))
    if known_share < 0.1:
        message = f"only {known_share:.1%} of the depth pixels have a value"
        findings.append(Finding("depth", Severity.WARNING, message, "check range, emitter, and registration"))
    else:
        findings.append(Finding("depth", Severity.OK, f"{known_share:.0%} of the pixels have a value"))
    return findings


def check_sizes(
    color: tuple[int, int] | None,
    depth: tuple[int, int] | None,
    calibration: tuple[int, int] | None,
    refused: str = "",
) -> list[Finding]:
    """Do the sizes (width, height) agree? None = not seen. ``refused``: why a calibration could not be used."""
    sizes = {"colour": color, "depth": depth, "camera_info": calibration}
    missing = [name for name, size in sizes.items() if size is None]
    if missing:
        because = f": {refused}" if refused and calibration is None else ""
        remedy = "calibrate the camera, or mend its driver" if because else ""
        return [Finding("sizes", Severity.ERROR, f"no {' and no '.join(missing)} could be read{because}", remedy)]
    text = ", ".join(f"{name} {size[0]}x{size[1]}" for name, size in sizes.items() if size)
    if len(set(sizes.values())) == 1:
        return [Finding("sizes", Severity.OK, text)]
    if color is not None and depth is not None and color != depth:
        remedy = "depth is not registered to colour: turn on alignment in the driver (align_depth, depth_registration)"
        if color[0] * depth[1] == depth[0] * color[1]:
            remedy += "; where it is aligned already, publish its camera_info beside it: then it is made as large here"
    else:
        remedy = "camera_info belongs to another resolution: check the topic, or camera.json"
    return [Finding("sizes", Severity.ERROR, text, remedy)]


def check_registration(color_frame: str, depth_frame: str, registered_here: bool = False) -> list[Finding]:
    """Registered depth carries the frame id of the colour camera; other depth is registered by its own calibration."""
    if registered_here:
        message = f"depth in {depth_frame!r} is registered to colour in {color_frame!r} by its own calibration"
        return [Finding("registration", Severity.OK, message)]
    if color_frame == depth_frame:
        return [Finding("registration", Severity.OK, f"colour and depth are both in {color_frame!r}")]
    return [
        Finding(
            "registration",
            Severity.WARNING,
            f"colour is in {color_frame!r} but depth in {depth_frame!r}: depth is probably not registered to colour",
            "turn on alignment in the driver (align_depth, depth_registration) and use that topic, or publish the "
            "camera_info of depth beside it, and the transform between the two: then it is registered here",
        )
    ]


def check_alignment(pairs: Sequence[tuple[NDArray[np.uint8], NDArray[np.float32]]]) -> list[Finding]:
    """Do outlines in depth lie on edges in colour? ``pairs`` as :func:`measure_alignment` takes them."""
    alignment = measure_alignment(pairs)
    if alignment is None:
        return []  # too few outlines to tell
    text = f"outlines of depth lie {alignment.offset_px:.0f} px off those of colour"
    if alignment.offset_share < 0.012 or alignment.gain < 1.15:
        return [Finding("registration", Severity.OK, text)]
    return [
        Finding(
            "registration",
            Severity.WARNING,
            f"{text}: depth is probably not registered to colour, so surfaces get their neighbours' colours",
            "turn on alignment in the driver (align_depth, depth_registration), or calibrate the two cameras",
        )
    ]


# --------------------------------------------------------------------------------------------------------------------
# stamps and poses


def check_order(name: str, stamps_ns: Sequence[int]) -> list[Finding]:
    """Do the stamps of one stream grow? Equal and older ones are dropped."""
    if not stamps_ns:
        return []
    if not any(stamps_ns):
        return [Finding("stamps", Severity.ERROR, f"all {name} stamps are zero", "let the driver stamp its messages")]
    steps = np.diff(np.asarray(stamps_ns, dtype=np.int64))
    equal, back = int((steps == 0).sum()), int((steps < 0).sum())
    if equal or back:
        message = f"{name}: {equal} stamps equal their predecessor, {back} are older"
        return [Finding("stamps", Severity.WARNING, message, "the first counts; check the driver, or the clock")]
    rate = f", {NS_PER_S / float(np.median(steps)):.1f} Hz" if len(steps) else ""
    return [Finding("stamps", Severity.OK, f"{name}: {len(stamps_ns)} in order{rate}")]


def check_pairing(color_ns: Sequence[int], depth_ns: Sequence[int], tolerance_s: float) -> list[Finding]:
    """Does every colour image have a depth image within the tolerance?"""
    if not color_ns or not depth_ns:
        lack = "colour" if not color_ns else "depth"
        return [Finding("pairing", Severity.ERROR, f"there are no {lack} images")]
    depths = np.sort(np.asarray(depth_ns, dtype=np.int64))
    colors = np.asarray(color_ns, dtype=np.int64)
    right = np.clip(np.searchsorted(depths, colors), 0, len(depths) - 1)
    left = np.maximum(right - 1, 0)
    nearer_left = np.abs(depths[left] - colors) <= np.abs(depths[right] - colors)
    offsets = np.where(nearer_left, depths[left], depths[right]) - colors
    alone = int((np.abs(offsets) > seconds_to_ns(tolerance_s)).sum())
    offset_ms = float(np.median(offsets)) / 1e6
    text = f"{len(colors) - alone} of {len(colors)} colour images have depth within {tolerance_s * 1e3:.0f} ms"
    text += f", depth is {offset_ms:+.1f} ms off"
    if alone == 0:
        return [Finding("pairing", Severity.OK, text)]
    severity = Severity.ERROR if alone > len(colors) // 2 else Severity.WARNING
    remedy = "synchronise the streams in the driver"
    if alone > len(colors) // 2 and abs(offset_ms) < 200:
        remedy += f", or set assembler.pair_tolerance_s above {abs(offset_ms) / 1e3:.3f}"
    return [Finding("pairing", severity, text, remedy)]


def check_poses(camera: str, answers: Sequence[PoseLookup]) -> list[Finding]:
    """Is there a pose for every image? ``answers``: lookups at the stamps of the colour images, in order."""
    kinds = Counter(type(answer) for answer in answers)
    found = kinds[Found]
    if not answers or found == len(answers):
        return [Finding("poses", Severity.OK, f"{camera}: all {found} images have a pose")] if answers else []
    text = f"{camera}: {found} of {len(answers)} images have a pose"
    severity = Severity.WARNING if found > 0.9 * len(answers) else Severity.ERROR
    worst = max((kind for kind in kinds if kind is not Found), key=lambda kind: kinds[kind])
    example = next(answer for answer in answers if isinstance(answer, worst))
    remedies: dict[Any, str] = {
        Disconnected: "publish the missing link (odometry, robot_state_publisher, a static transform), or name "
        "another frame; of a recording in parts, /tf_static is in the first one alone",
        TooEarly: "poses end before the images, or lag behind: check the publisher and the clocks",
        TooOld: "poses begin after the images: check the publisher and the clocks",
        Gap: "publish poses more often, or raise assembler.max_pose_gap_s",
    }
    findings = [Finding("poses", severity, f"{text}; {kinds[worst]} times: {example}", remedies[worst])]
    if found == 0 and isinstance(example, (TooEarly, TooOld)):
        findings += _clock_offset(example)
    return findings


def _clock_offset(example: TooEarly | TooOld) -> list[Finding]:
    known = example.newest_ns if isinstance(example, TooEarly) else example.oldest_ns
    if known is None:
        return []
    offset_s = (example.stamp_ns - known) / NS_PER_S
    if abs(offset_s) < 1.0:
        return []
    message = f"images and poses never overlap: they are {abs(offset_s):.1f} s apart"
    remedy = "the clocks differ: synchronise the machines (chrony), or use_sim_time everywhere"
    return [Finding("clock offset", Severity.ERROR, message, remedy)]


def check_clocks(delays_s: Mapping[str, float], limit_s: float = 0.5) -> list[Finding]:
    """Do all sources use one clock? ``delays_s``: time of arrival (or recording) minus stamp, by topic."""
    if len(delays_s) < 2:
        return []
    slow, fast = max(delays_s, key=lambda t: delays_s[t]), min(delays_s, key=lambda t: delays_s[t])
    spread_s = delays_s[slow] - delays_s[fast]
    if spread_s <= limit_s:
        return [Finding("clock offset", Severity.OK, f"stamps of all topics agree within {spread_s * 1e3:.0f} ms")]
    message = (
        f"{slow} arrives {delays_s[slow]:+.2f} s after its stamps but {fast} {delays_s[fast]:+.2f} s: "
        f"{spread_s:.2f} s apart"
    )
    remedy = "clocks differ (synchronise the machines with chrony, or use_sim_time everywhere), or one source is slow"
    return [Finding("clock offset", Severity.WARNING, message, remedy)]


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


def check_pose_delay(camera: str, delays_s: Sequence[float], max_wait_s: float) -> list[Finding]:
    """Do transforms come in time? ``delays_s``: of each image, the seconds from its arrival until its pose was known,
    without those that never had one. ``max_wait_s``: how long a frame waits for its pose."""
    if not delays_s:
        return []
    median = float(np.median(delays_s))
    text = f"{camera}: poses are known {median:.2f} s after the images (median; frames wait up to {max_wait_s:g} s)"
    if median <= _LATE_SHARE * max_wait_s:
        return [Finding("late transforms", Severity.OK, text)]
    severity = Severity.ERROR if median > max_wait_s else Severity.WARNING
    remedy = "publish /tf sooner or more often (localisation at a higher rate), or raise assembler.max_pose_wait_s"
    return [Finding("late transforms", severity, text, remedy)]


def check_motion(
    camera: str, stamps_ns: Sequence[int], positions_m: NDArray[np.float64], max_speed_m_s: float = 5.0
) -> list[Finding]:
    """Does the camera jump? ``positions_m``: (N, 3) at ``stamps_ns``."""
    if len(stamps_ns) < 2:
        return []
    seconds = np.diff(np.asarray(stamps_ns, dtype=np.int64)) / NS_PER_S
    steps = np.linalg.norm(np.diff(positions_m, axis=0), axis=1)
    moving = seconds > 0
    speeds = steps[moving] / seconds[moving]
    jumps = int((speeds > max_speed_m_s).sum())
    if jumps:
        message = f"{camera}: {jumps} jumps, the fastest {float(speeds.max()):.1f} m/s"
        return [Finding("motion", Severity.WARNING, message, "fuse in a continuous frame (odom), not in map")]
    length = float(steps.sum())
    text = f"{camera}: {length:.1f} m in {seconds.sum():.0f} s"
    if length < 0.01:
        return [Finding("motion", Severity.INFO, f"{text}: it does not move", "check that the right frame moves")]
    return [Finding("motion", Severity.OK, text)]


def check_drops(played: int, fused: int, dropped: Mapping[str, int], examples: Mapping[str, Drop]) -> list[Finding]:
    """What becomes of the frames, by the code that ``replay`` and the node join them with.

    Args:
        played: colour images.
        fused: frames that are complete.
        dropped: frames that are not, by reason.
        examples: a drop for each reason.
    """
    if not dropped:
        return [Finding("frames", Severity.OK, f"all {fused} frames can be fused")] if fused else []
    listed = "; ".join(f"{n} {reason}" for reason, n in sorted(dropped.items(), key=lambda item: -item[1]))
    worst = max(dropped, key=lambda reason: dropped[reason])
    example = f", for example {examples[worst]}" if worst in examples else ""
    message = f"{fused} of {played} frames can be fused; dropped are {listed}{example}"
    severity = Severity.ERROR if fused < _FUSED_SHARE * played else Severity.WARNING
    return [Finding("frames", severity, message)]


def check_frames_differ(frames: Mapping[str, str]) -> list[Finding]:
    """Has every camera its own frame? ``frames``: optical frame of each camera."""
    findings = []
    for frame in sorted(set(frames.values())):
        same = [camera for camera, own in frames.items() if own == frame]
        if len(same) > 1:
            message = f"cameras {' and '.join(same)} are all in frame {frame!r}, so they are fused from one place"
            remedy = "give each driver a camera name, or a frame prefix, of its own"
            findings.append(Finding("camera frame", Severity.ERROR, message, remedy))
    return findings


class RivalTransforms:
    """Finds links that several publishers set differently: what they say jumps away and back."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, bool], tuple[int, NDArray[np.float64]]] = {}
        self._left: dict[tuple[str, bool], NDArray[np.float64]] = {}  # where a link was before it jumped
        self._returns: Counter[str] = Counter()
        self._apart_m: dict[str, float] = {}

    def add(self, sample: TransformSample) -> None:
        """The next transform, in order of arrival."""
        key = sample.child, sample.is_static
        before = self._last.get(key)
        self._last[key] = sample.stamp_ns, sample.T_parent_child
        if before is None:
            return
        T = sample.T_parent_child
        apart = _apart(before[1], T)
        if sample.is_static:
            if apart > _JUMP:
                self._note(sample.child, before[1], T)
            return
        passed_s = max((sample.stamp_ns - before[0]) / NS_PER_S, 0.01)
        if apart < max(_JUMP, _FASTEST * passed_s):
            return
        left = self._left.get(key)
        self._left[key] = before[1]
        if left is not None and _apart(left, T) < _RETURNED_SHARE * apart:
            self._note(sample.child, before[1], T)

    def _note(self, child: str, T: NDArray[np.float64], other: NDArray[np.float64]) -> None:
        self._returns[child] += 1
        distance = float(np.linalg.norm(T[:3, 3] - other[:3, 3]))
        self._apart_m[child] = max(self._apart_m.get(child, 0.0), distance)

    def findings(self) -> list[Finding]:
        """An error for every such link."""
        return [
            Finding(
                "transforms",
                Severity.ERROR,
                f"several publishers set {child!r} differently: {count} times it jumps away and back, up to "
                f"{self._apart_m[child]:.2f} m",
                "stop all but one of them, or give each robot a namespace or frame prefix",
            )
            for child, count in sorted(self._returns.items())
            if count >= _MIN_RETURNS or (child, True) in self._last
        ]


def _apart(T: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Distance of two poses: metres, or radians where that is more."""
    turn = (np.trace(T[:3, :3].T @ other[:3, :3]) - 1) / 2
    return max(float(np.linalg.norm(T[:3, 3] - other[:3, 3])), float(np.arccos(np.clip(turn, -1.0, 1.0))))


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


def _share_on(points_m: NDArray[np.float64], normal: NDArray[np.float64]) -> float:
    """Share of the points that lie on the strongest plane with this normal."""
    along = points_m @ normal
    counts = np.bincount(((along - along.min()) / (2 * _PLANE_M)).astype(np.int64))
    pairs = counts[:-1] + counts[1:] if len(counts) > 1 else counts  # a plane may lie between two bins
    return float(pairs.max()) / len(points_m)


def check_level(points_m: NDArray[np.float64], views_agree: bool = False) -> list[Finding]:
    """Is z up? ``points_m``: (N, 3) in the world frame, from all over. ``views_agree``: the poses are known to be those
    of the optical frame."""
    if len(points_m) < 1000:
        return []
    up = estimate_up(points_m, _UP)
    if up is None and views_agree:
        return [Finding("level", Severity.INFO, "no floor or table is in view to tell whether z is up")]
    if up is None:
        return [
            Finding(
                "level",
                Severity.WARNING,
                "no roughly horizontal surface was found",
                "if a floor or table was in view: the camera's frame may not be optical (z forward), or z is not up",
            )
        ]
    tilt = float(np.degrees(np.arccos(np.clip(up[2], -1.0, 1.0))))
    if tilt > _MAX_TILT_DEG:
        share = _share_on(points_m, up)
        level = estimate_up(points_m, _UP, max_tilt_rad=np.radians(_LEVEL_DEG), min_share=0.5 * share, iterations=2000)
        if share < _MIN_PLANE_SHARE or level is not None:
            message = "too little floor is in view to tell whether z is up: no surface stands out"
            return [Finding("level", Severity.INFO, message, "look at the floor, or at a table")]
        message = f"the dominant horizontal surface is tilted by {tilt:.0f} degrees"
        return [Finding("level", Severity.WARNING, message, "check the mount of the camera, and that z is up")]
    return [Finding("level", Severity.OK, f"the dominant horizontal surface is level within {tilt:.1f} degrees")]


# --------------------------------------------------------------------------------------------------------------------
# alignment of depth and colour, measured from the images alone
#
# Where depth steps from near to far there is mostly an edge in the colour image too. Shifting the outlines of depth
# over the colour gradients shows where they fit best: at zero when depth is registered to colour, elsewhere when it is
# not. This is done tile by tile, since the offsets of a wrong focal length point outwards and cancel over the whole
# image.

_STEP = 1.08  # a surface is behind another from this ratio of depths on
_MIN_OUTLINE = 0.45  # pixels of outline in a tile, per pixel of image width, before it is trusted
_MIN_PEAK = 3.0  # standard deviations by which the best shift must stand out


@dataclass(frozen=True)
class Alignment:
    """Result of :func:`measure_alignment`.

    Attributes:
        offset_px: median over the tiles of the distance by which depth must move to fit colour best.
        offset_share: the same as a share of the image width.
        gain: median over the tiles of how much better it fits there than as it is; 1 = no better.
        tiles: tiles that had something to say.
    """

    offset_px: float
    offset_share: float
    gain: float
    tiles: int


def measure_alignment(
    pairs: Sequence[tuple[NDArray[np.uint8], NDArray[np.float32]]], tiles: int = 3
) -> Alignment | None:
    """Offset between colour and depth.

    Args:
        pairs: (H, W, 3) uint8 RGB and (H, W) float32 canonical depth, a dozen from all over; all of one size.
        tiles: per side.

    Returns:
        None when fewer than three tiles show enough outlines to tell.

    Raises:
        ValueError: sizes that differ.
    """
    if not pairs:
        return None
    height, width = pairs[0][1].shape
    reach = max(4, round(0.045 * width))
    score = np.zeros((tiles, tiles, 2 * reach + 1, 2 * reach + 1))
    outline = np.zeros((tiles, tiles))
    for color, depth_m in pairs:
        if color.shape[:2] != depth_m.shape or depth_m.shape != (height, width):
            raise ValueError(f"colour {color.shape} and depth {depth_m.shape} must both be {(height, width)}")
        gradient, edges = np.fft.rfft2(_contrast(color)), _outlines(depth_m)
        for row in range(tiles):
            for column in range(tiles):
                part = np.zeros_like(edges)
                window = np.s_[
                    row * height // tiles : (row + 1) * height // tiles,
                    column * width // tiles : (column + 1) * width // tiles,
                ]
                part[window] = edges[window]
                fit = np.fft.irfft2(gradient * np.conj(np.fft.rfft2(part)), (height, width))
                score[row, column] += np.roll(fit, (reach, reach), (0, 1))[: 2 * reach + 1, : 2 * reach + 1]
                outline[row, column] += part.sum()
    offsets, gains = [], []
    for fit, pixels in zip(score.reshape(-1, *score.shape[2:]), outline.ravel(), strict=True):
        if pixels < _MIN_OUTLINE * width or fit.max() - fit.mean() < _MIN_PEAK * fit.std():
            continue
        y, x = np.unravel_index(int(fit.argmax()), fit.shape)
        offsets.append(float(np.hypot(int(x) - reach, int(y) - reach)))
        gains.append(float(fit.max() / max(fit[reach, reach], 1e-9)))
    if len(offsets) < 3:
        return None
    offset = float(np.median(offsets))
    return Alignment(offset, offset / width, float(np.median(gains)), len(offsets))


def _contrast(color: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(H, W) gradient of brightness, relative to its surroundings so that no single texture decides."""
    grey = np.asarray(cv2.GaussianBlur(cv2.cvtColor(color, cv2.COLOR_RGB2GRAY), (0, 0), 1.0), dtype=np.float32)
    gradient = np.hypot(cv2.Sobel(grey, cv2.CV_32F, 1, 0), cv2.Sobel(grey, cv2.CV_32F, 0, 1))
    around = cv2.blur(gradient, (61, 61)) + 2.0
    return np.asarray(np.minimum(gradient / around, 4.0), dtype=np.float32)


def _outlines(depth_m: NDArray[np.float32]) -> NDArray[np.float32]:
    """(H, W) 1 on the near side of depth steps; sensors leave a gap there, which is bridged."""
    known = (depth_m > 0) & np.isfinite(depth_m)
    near = np.where(known, depth_m, 0.0).astype(np.float32)
    behind = np.asarray(cv2.dilate(near, np.ones((9, 9)))) > _STEP * depth_m
    holes_far = np.where(known, depth_m, 1e6).astype(np.float32)
    border = np.asarray(cv2.dilate(holes_far, np.ones((3, 3)))) > _STEP * depth_m
    edges = (known & behind & border).astype(np.float32)
    edges[:2] = edges[-2:] = 0.0
    edges[:, :2] = edges[:, -2:] = 0.0
    return edges
