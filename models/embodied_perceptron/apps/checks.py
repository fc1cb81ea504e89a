"""Pure checks for the usual causes of a wrong map: evidence in, findings with a remedy out.

They do not depend on files, topics or nodes: a recording (:mod:`embodied_perceptron.apps.doctor`) and a live graph (the
ROS package's doctor) collect the same :class:`CameraEvidence` for :func:`check_camera`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import product
from typing import Any, Generic, TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.config import SynchronizerConfig
from embodied_perceptron.geometry.transforms import (
    F64,
    Intrinsics,
    back_project,
    invert_transform,
    project,
    transform_points,
)
from embodied_perceptron.recordings.conventions import POSE_CONVENTIONS, conventions_text, convert_pose
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

_POSE_GAP_S = 0.25  # largest gap that is interpolated
_POINTS_PER_IMAGE = 2000
_NEAREST_PLAUSIBLE_M = 0.1
_FURTHEST_PLAUSIBLE_M = 30.0
_UP = np.array([0.0, 0.0, 1.0])
_MAX_TILT_DEG, _LEVEL_DEG = 8.0, 5.0
_PLANE_M = 0.02  # largest distance of a plane's points
_MIN_PLANE_SHARE = 0.2  # of all points; below, the largest plane may go through clutter
_LATE_SHARE = 0.5  # of the time that frames wait for a pose; longer delays lose frames when they vary
_FROZEN_IMAGES = 5
_ONE_KIND = "let the driver publish one kind of depth on this topic, or restart it"
_ALTERNATING_SHARE, _REGULAR_SHARE, _ORDINALS = 0.1, 0.6, {2: "second", 3: "third"}
_FUSED_SHARE = 0.5  # of the frames; fewer are an error
# a transform jumps when it changes by _JUMP (m or rad), faster than _FASTEST (m/s or rad/s); it returns when it comes
# back to within a share of the jump
_JUMP, _FASTEST, _RETURNED_SHARE, _MIN_RETURNS = 0.05, 8.0, 0.3, 5
_OLD_S, _AHEAD_S = 5.0, 0.5  # stamps this far from this machine's clock belong to another one


# --------------------------------------------------------------------------------------------------------------------
# findings


class Severity(IntEnum):
    """Severity of a finding."""

    OK = 0
    INFO = 1
    WARNING = 2  # the map will be worse than possible
    ERROR = 3  # the map will be wrong or missing


@dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    Attributes:
        check: name of the check.
        severity: severity.
        message: what was found, with numbers.
        remedy: what to do; empty when nothing is needed.
    """

    check: str
    severity: Severity
    message: str
    remedy: str = ""

    def as_dict(self) -> dict[str, str]:
        """Convert to JSON values."""
        return {
            "check": self.check,
            "severity": self.severity.name.lower(),
            "message": self.message,
            "remedy": self.remedy,
        }


# from cause to consequence: an earlier fault causes later ones
_CAUSES_FIRST = (
    *("reading", "images", "messages", "calibration", "sizes", "clock", "topics", "QoS", "data", "stamps"),
    *("clock offset", "transforms", "poses", "camera frame", "pose convention", "scale", "depth unit", "world axes"),
    *("pairing", "single frames", "registration", "focal length", "depth", "depth frozen"),
)


def has_errors(findings: Sequence[Finding]) -> bool:
    """Return True when a finding is an error."""
    return any(finding.severity == Severity.ERROR for finding in findings)


def first_to_fix(findings: Sequence[Finding]) -> Finding | None:
    """Return the worst finding with a remedy, the likeliest cause first; None without warnings and errors."""
    rank = {check: i for i, check in enumerate(_CAUSES_FIRST)}
    bad = [f for f in findings if f.severity >= Severity.WARNING and f.remedy]
    return min(bad, key=lambda f: (-f.severity, rank.get(f.check, len(rank))), default=None)


# --------------------------------------------------------------------------------------------------------------------
# one camera


@dataclass
class CameraEvidence:
    """Evidence about one camera, in order of arrival.

    Attributes:
        color_ns, depth_ns: stamps of all images.
        color_size, depth_size: (width, height) of an image; None when none could be decoded.
        frames: frame ids by ``color`` and ``depth``, where known.
        registered_here: depth has its own camera and is registered to colour on reading; ``depth_size``, ``depths`` and
            ``pairs`` then describe the registered images.
        says_aligned: depth has the calibration of colour, or comes on a topic of aligned depth.
        calibrations: one for each change.
        refused: reason why a calibration could not be used; "" without one.
        depth_scale: raw units per metre that the depth was read with; None for depth in metres or when unknown.
        depth_repeats: longest run of depth images equal to their predecessor while the camera moved.
        depths: (stamp, (H, W) float32 canonical depth), an even sample.
        pairs: simultaneous (colour, depth), an even sample, as for :func:`measure_alignment`.
        poses: (stamp, pose lookup in the world frame) of colour images, in order.
        inconsistent: (number, stamp, what is wrong) of frames whose depth contradicts the frames before.
        undecided: number of frames whose depth contradicts as many others.
    """

    color_ns: list[int] = field(default_factory=list)
    depth_ns: list[int] = field(default_factory=list)
    color_size: tuple[int, int] | None = None
    depth_size: tuple[int, int] | None = None
    frames: dict[str, str] = field(default_factory=dict)
    registered_here: bool = False
    says_aligned: bool = False
    calibrations: list[CameraModel] = field(default_factory=list)
    refused: str = ""
    depth_scale: float | None = None
    depth_repeats: int = 0
    depths: list[tuple[int, NDArray[np.float32]]] = field(default_factory=list)
    pairs: list[tuple[NDArray[np.uint8], NDArray[np.float32]]] = field(default_factory=list)
    poses: list[tuple[int, PoseLookup]] = field(default_factory=list)
    inconsistent: list[tuple[int, int, str]] = field(default_factory=list)
    undecided: int = 0

    def add_calibration(self, model: CameraModel) -> None:
        """Add a calibration unless it equals the last."""
        if not self.calibrations or self.calibrations[-1] != model:
            self.calibrations.append(model)


def check_camera(
    name: str, evidence: CameraEvidence, config: SynchronizerConfig, *, live: bool = False
) -> list[Finding]:
    """Check the images, stamps and poses of one camera.

    ``live``: the evidence covers a few seconds of a running camera. The first and last image may then lack their
    partner, the robot may stand still, and the driver can still change the frame id.
    """
    model = evidence.calibrations[-1] if evidence.calibrations else None
    size = None if model is None else (model.intrinsics.width, model.intrinsics.height)
    findings = check_sizes(evidence.color_size, evidence.depth_size, size, evidence.refused)
    if "color" in evidence.frames and "depth" in evidence.frames:
        frames = evidence.frames["color"], evidence.frames["depth"]
        findings += check_registration(*frames, evidence.registered_here, evidence.says_aligned)
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
    alternating = check_alternating(name, evidence.undecided, len(found))
    findings += alternating or check_single_frames(name, evidence.inconsistent, len(found))
    bad_ns = np.array([stamp for _, stamp, _ in evidence.inconsistent])
    tolerance_ns = seconds_to_ns(config.pair_tolerance_s)
    depths = [d for d in evidence.depths if not (np.abs(bad_ns - d[0]) <= tolerance_ns).any()]
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
    if model is not None and evidence.depth_size == size and not alternating:  # no other cause fits both kinds
        at = zip(depths, _poses_at(depths, found), strict=True)
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
            findings += check_level(_world_points(depths, model.intrinsics, found), agree)
    return findings


def check_alternating(camera: str, undecided: int, frames: int) -> list[Finding]:
    """Report depth that alternates between two kinds; ``undecided``: see :class:`CameraEvidence`."""
    if undecided <= _ALTERNATING_SHARE * frames:
        return []
    message = f"{camera}: depth alternates, about every second frame, between two kinds that contradict each other"
    return [Finding("single frames", Severity.ERROR, message, _ONE_KIND)]


def check_single_frames(camera: str, inconsistent: Sequence[tuple[int, int, str]], frames: int) -> list[Finding]:
    """Report frames whose depth contradicts the frames before; see :attr:`CameraEvidence.inconsistent`."""
    if not inconsistent:
        return []
    steps = Counter(np.diff([number for number, _, _ in inconsistent]).tolist())
    step, times = max(steps.items(), key=lambda item: item[1], default=(0, 0))
    regular = times >= _REGULAR_SHARE * len(inconsistent)
    every = f", every {_ORDINALS.get(step, f'{step}th')} frame" if regular and step > 1 else ""
    kinds = Counter(detail.partition(",")[0] for _, _, detail in inconsistent).most_common(3)
    listed = ", ".join(f"{count} times {kind}" for kind, count in kinds)
    share = len(inconsistent) / max(frames, 1)
    message = f"{camera}: {len(inconsistent)} of {frames} frames ({share:.0%}{every}) contradict the others: {listed}"
    return [Finding("single frames", Severity.WARNING, f"{message}; they are not fused", _ONE_KIND)]


def _frozen(camera: str, repeats: int) -> Finding:
    message = f"{camera}: {repeats} depth images in a row were the same as the one before, while the camera moved"
    return Finding("depth frozen", Severity.WARNING, message, "restart the depth camera, and check its connection")


def _poses_at(depths: Sequence[tuple[int, Any]], poses: Mapping[int, F64], offset_s: float = 0.0) -> list[F64 | None]:
    """Interpolate the poses of depth images from those of colour images; None where there is none.

    ``offset_s`` is added to the stamps of the poses.
    """
    track = PoseBuffer(history_s=None, max_gap_s=_POSE_GAP_S)
    for stamp, T in poses.items():
        track.insert(stamp + seconds_to_ns(offset_s), T)
    answers = [track.lookup(stamp) for stamp, _ in depths]
    return [answer.T if isinstance(answer, Found) else None for answer in answers]


class SpreadSamples(Generic[_Sample]):
    """An even sample of a stream of unknown length: at the limit every second item is dropped and the step doubles.

    Args:
        limit: largest number of items; at least half as many are kept once it was reached.
    """

    def __init__(self, limit: int) -> None:
        if limit < 2:
            raise ValueError(f"limit must be at least 2, got {limit}")
        self.items: list[_Sample] = []
        self._limit, self._every, self._seen = limit, 1, 0

    def is_next_wanted(self) -> bool:
        """Return True when the current item is to be kept; call it once for each item."""
        self._seen += 1
        return (self._seen - 1) % self._every == 0

    def keep(self, item: _Sample) -> None:
        """Add an item."""
        self.items.append(item)
        if len(self.items) > self._limit:
            self.items = self.items[::2]
            self._every *= 2


def _world_points(
    depths: Sequence[tuple[int, NDArray[np.float32]]], intrinsics: Intrinsics, poses: Mapping[int, F64]
) -> F64:
    """Return (N, 3) world points, a few of each depth image, by the pose nearest in time."""
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
    """Check that depth is present and in metres. ``depths_m``: (H, W) float32 canonical images, an even sample."""
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
        remedy = "they clear the map; if the driver means 'invalid' by +Inf, set the camera's inf_depth: unknown"
        findings.append(Finding("depth +Inf", Severity.WARNING, message, remedy))
    if empty:
        message = f"{empty} of {len(depths_m)} depth images have no value at all"
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
    """Check that the sizes (width, height) agree. None = not received. ``refused``: why a calibration was rejected."""
    sizes = {"colour": color, "depth": depth, "camera_info": calibration}
    missing = [name for name, size in sizes.items() if size is None]
    if missing:
        because = f": {refused}" if refused and calibration is None else ""
        remedy = "calibrate the camera, or repair its driver" if because else ""
        return [Finding("sizes", Severity.ERROR, f"no {' and no '.join(missing)} could be read{because}", remedy)]
    text = ", ".join(f"{name} {size[0]}x{size[1]}" for name, size in sizes.items() if size)
    if len(set(sizes.values())) == 1:
        return [Finding("sizes", Severity.OK, text)]
    if color is not None and depth is not None and color != depth:
        remedy = "depth is not registered to colour: turn on alignment in the driver (align_depth, depth_registration)"
        if color[0] * depth[1] == depth[0] * color[1]:
            remedy += "; if it is aligned already, publish its camera_info next to it: depth is then resized here"
    else:
        remedy = "camera_info belongs to another resolution: check the topic, or camera.json"
    return [Finding("sizes", Severity.ERROR, text, remedy)]


def check_registration(
    color_frame: str, depth_frame: str, registered_here: bool = False, says_aligned: bool = False
) -> list[Finding]:
    """Check that depth has the frame id of the colour camera, or is registered by its own calibration."""
    if registered_here:
        message = f"depth in {depth_frame!r} is registered to colour in {color_frame!r} by its own calibration"
        return [Finding("registration", Severity.OK, message)]
    if color_frame == depth_frame:
        return [Finding("registration", Severity.OK, f"colour and depth are both in {color_frame!r}")]
    if says_aligned:
        message = (
            f"depth has the frame id {depth_frame!r}, but by its calibration or topic it is aligned to colour already: "
            "it is used as it is"
        )
        remedy = f"let the driver write the frame id of colour, {color_frame!r}, into its header"
        return [Finding("registration", Severity.INFO, message, remedy)]
    return [
        Finding(
            "registration",
            Severity.WARNING,
            f"colour is in {color_frame!r} but depth in {depth_frame!r}: depth is probably not registered to colour",
            "turn on alignment in the driver (align_depth, depth_registration) and use that topic, or publish the "
            "camera_info of depth and the transform between the two cameras: depth is then registered here",
        )
    ]


def check_alignment(pairs: Sequence[tuple[NDArray[np.uint8], NDArray[np.float32]]]) -> list[Finding]:
    """Check that outlines in depth lie on edges in colour. ``pairs``: as for :func:`measure_alignment`."""
    alignment = measure_alignment(pairs)
    if alignment is None:
        return []  # too few outlines
    text = f"outlines of depth lie {alignment.offset_px:.0f} px off those of colour"
    if alignment.offset_share < 0.012 or alignment.gain < 1.15:
        return [Finding("registration", Severity.OK, text)]
    return [
        Finding(
            "registration",
            Severity.WARNING,
            f"{text}: depth is probably not registered to colour, so surfaces get the colours of their neighbours",
            "turn on alignment in the driver (align_depth, depth_registration), or calibrate the two cameras",
        )
    ]


# --------------------------------------------------------------------------------------------------------------------
# stamps and poses


def check_order(name: str, stamps_ns: Sequence[int]) -> list[Finding]:
    """Check that the stamps of a stream increase. Equal and older ones are dropped."""
    if not stamps_ns:
        return []
    if not any(stamps_ns):
        return [Finding("stamps", Severity.ERROR, f"all {name} stamps are zero", "let the driver stamp its messages")]
    steps = np.diff(np.asarray(stamps_ns, dtype=np.int64))
    equal, back = int((steps == 0).sum()), int((steps < 0).sum())
    if equal or back:
        message = f"{name}: {equal} stamps equal their predecessor, {back} are older"
        return [Finding("stamps", Severity.WARNING, message, "only the first is used; check the driver, or the clock")]
    rate = f", {NS_PER_S / float(np.median(steps)):.1f} Hz" if len(steps) else ""
    return [Finding("stamps", Severity.OK, f"{name}: {len(stamps_ns)} in order{rate}")]


def check_pairing(color_ns: Sequence[int], depth_ns: Sequence[int], tolerance_s: float) -> list[Finding]:
    """Check that every colour image has a depth image within the tolerance."""
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
    """Check that every image has a pose. ``answers``: lookups at the stamps of the colour images, in order."""
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
        "another frame; in a split recording only the first part has /tf_static",
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
    """Check that stamps are near this machine's clock. ``delays_s``: median of arrival minus stamp, by topic."""
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
    """Check that transforms arrive in time.

    Args:
        camera: its name.
        delays_s: seconds from the arrival of each image until its pose was known, images without a pose left out.
        max_wait_s: how long a frame waits for its pose.
    """
    if not delays_s:
        return []
    median = float(np.median(delays_s))
    text = f"{camera}: poses are known {median:.2f} s after the images (median; frames wait up to {max_wait_s:g} s)"
    if median <= _LATE_SHARE * max_wait_s:
        return [Finding("late transforms", Severity.OK, text)]
    severity = Severity.ERROR if median > max_wait_s else Severity.WARNING
    remedy = "publish /tf sooner or more often (localisation at a higher rate), or raise assembler.max_pose_wait_s"
    return [Finding("late transforms", severity, text, remedy)]


def check_motion(camera: str, stamps_ns: Sequence[int], positions_m: F64, max_speed_m_s: float = 5.0) -> list[Finding]:
    """Check that the camera does not jump. ``positions_m``: (N, 3) at ``stamps_ns``."""
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
    """Check how many frames ``replay`` and the node can fuse.

    Args:
        played: number of colour images.
        fused: number of complete frames.
        dropped: number of incomplete frames by reason.
        examples: one drop for each reason.
    """
    if not dropped:
        return [Finding("frames", Severity.OK, f"all {fused} frames can be fused")] if fused else []
    listed = "; ".join(f"{n} {reason}" for reason, n in sorted(dropped.items(), key=lambda item: -item[1]))
    worst = max(dropped, key=lambda reason: dropped[reason])
    example = f", for example {examples[worst]}" if worst in examples else ""
    message = f"{fused} of {played} frames can be fused; dropped: {listed}{example}"
    severity = Severity.ERROR if fused < _FUSED_SHARE * played else Severity.WARNING
    return [Finding("frames", severity, message)]


def check_frames_differ(frames: Mapping[str, str]) -> list[Finding]:
    """Check that every camera has its own frame. ``frames``: optical frame of each camera."""
    findings = []
    for frame in sorted(set(frames.values())):
        same = [camera for camera, own in frames.items() if own == frame]
        if len(same) > 1:
            message = f"cameras {' and '.join(same)} all have frame {frame!r}, so they are fused from one place"
            remedy = "give each driver its own camera name or frame prefix"
            findings.append(Finding("camera frame", Severity.ERROR, message, remedy))
    return findings


class ConflictingTransforms:
    """Detects transforms that several publishers set differently: they jump away and back."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, bool], tuple[int, F64]] = {}
        self._left: dict[tuple[str, bool], F64] = {}  # value before the last jump
        self._returns: Counter[str] = Counter()
        self._apart_m: dict[str, float] = {}

    def add(self, sample: TransformSample) -> None:
        """Add the next transform, in order of arrival."""
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

    def _note(self, child: str, T: F64, other: F64) -> None:
        self._returns[child] += 1
        distance = float(np.linalg.norm(T[:3, 3] - other[:3, 3]))
        self._apart_m[child] = max(self._apart_m.get(child, 0.0), distance)

    def findings(self) -> list[Finding]:
        """Return an error for every such transform."""
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


def _apart(T: F64, other: F64) -> float:
    """Return the larger of the translation (m) and the rotation (rad) between two poses."""
    turn = (np.trace(T[:3, :3].T @ other[:3, :3]) - 1) / 2
    return max(float(np.linalg.norm(T[:3, 3] - other[:3, 3])), float(np.arccos(np.clip(turn, -1.0, 1.0))))


def check_optical(camera: str, frame_id: str, poses: Sequence[F64]) -> list[Finding]:
    """Check that the image has an optical frame (z forward). With a body frame (z up) the camera seems to look up."""
    if not poses:
        return []
    upward = float(np.median([T[2, 2] for T in poses]))
    if upward > 0.9:
        message = f"{camera}: frame {frame_id!r} has its z axis up: it is not an optical frame (z forward, REP-103)"
        remedy = "let the driver stamp images with its *_optical_frame, and publish that frame"
        return [Finding("camera frame", Severity.ERROR, message, remedy)]
    return [Finding("camera frame", Severity.OK, f"{camera}: {frame_id!r} looks forward")]


def _share_on(points_m: F64, normal: F64) -> float:
    """Return the share of the points on the strongest plane with this normal."""
    along = points_m @ normal
    counts = np.bincount(((along - along.min()) / (2 * _PLANE_M)).astype(np.int64))
    pairs = counts[:-1] + counts[1:] if len(counts) > 1 else counts  # a plane may lie between two bins
    return float(pairs.max()) / len(points_m)


def check_level(points_m: F64, views_agree: bool = False) -> list[Finding]:
    """Check that z is up. ``points_m``: (N, 3) world points. ``views_agree``: the poses are known to be those of the
    optical frame."""
    if len(points_m) < 1000:
        return []
    up = estimate_up(points_m, _UP)
    if up is None and views_agree:
        return [Finding("level", Severity.INFO, "no floor or table is in view to check the direction of z")]
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
            message = "too little floor is in view to check the direction of z"
            return [Finding("level", Severity.INFO, message, "point the camera at the floor or a table")]
        message = f"the dominant horizontal surface is tilted by {tilt:.0f} degrees"
        return [Finding("level", Severity.WARNING, message, "check the mount of the camera, and that z is up")]
    return [Finding("level", Severity.OK, f"the dominant horizontal surface is level within {tilt:.1f} degrees")]


# --------------------------------------------------------------------------------------------------------------------
# alignment of depth and colour, measured from the images alone
#
# Depth steps mostly coincide with edges of the colour image. The shift of the depth outlines that fits the colour
# gradients best is zero when depth is registered to colour. It is measured tile by tile, because the offsets of a wrong
# focal length point outwards and cancel over the whole image.

_STEP = 1.08  # ratio of depths from which on a surface is behind another
_MIN_OUTLINE = 0.45  # outline pixels that a tile needs, per pixel of image width
_MIN_PEAK = 3.0  # standard deviations by which the best shift must stand out


@dataclass(frozen=True)
class Alignment:
    """Result of :func:`measure_alignment`.

    Attributes:
        offset_px: median over the tiles of the shift of depth that fits colour best.
        offset_share: the same as a share of the image width.
        gain: median over the tiles of the fit at that shift by the fit without one.
        tiles: number of tiles that could be measured.
    """

    offset_px: float
    offset_share: float
    gain: float
    tiles: int


def measure_alignment(
    pairs: Sequence[tuple[NDArray[np.uint8], NDArray[np.float32]]], tiles: int = 3
) -> Alignment | None:
    """Measure the offset between colour and depth.

    Args:
        pairs: about a dozen (H, W, 3) uint8 RGB and (H, W) float32 canonical depth, all of one size.
        tiles: per side.

    Returns:
        None when fewer than three tiles show enough outlines.

    Raises:
        ValueError: the sizes differ.
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
    """Return the (H, W) brightness gradient, normalised by its surroundings."""
    grey = np.asarray(cv2.GaussianBlur(cv2.cvtColor(color, cv2.COLOR_RGB2GRAY), (0, 0), 1.0), dtype=np.float32)
    gradient = np.hypot(cv2.Sobel(grey, cv2.CV_32F, 1, 0), cv2.Sobel(grey, cv2.CV_32F, 0, 1))
    around = cv2.blur(gradient, (61, 61)) + 2.0
    return np.asarray(np.minimum(gradient / around, 4.0), dtype=np.float32)


def _outlines(depth_m: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return (H, W) 1 on the near side of depth steps; gaps of the sensor are bridged."""
    known = (depth_m > 0) & np.isfinite(depth_m)
    near = np.where(known, depth_m, 0.0).astype(np.float32)
    behind = np.asarray(cv2.dilate(near, np.ones((9, 9)))) > _STEP * depth_m
    holes_far = np.where(known, depth_m, 1e6).astype(np.float32)
    border = np.asarray(cv2.dilate(holes_far, np.ones((3, 3)))) > _STEP * depth_m
    edges = (known & behind & border).astype(np.float32)
    edges[:2] = edges[-2:] = 0.0
    edges[:, :2] = edges[:, -2:] = 0.0
    return edges


# --------------------------------------------------------------------------------------------------------------------
# poses, scale and focal length judged by depth: two views of the same surfaces must agree
#
# Where they do not, the usual causes are tried on the data: another pose convention, another scale of depth or poses,
# another focal length, stamps that are off. The finding names the cause that makes the views agree, and the option that
# applies it. Views from one place always agree, and so do, for some causes, views along one line: they give no finding.

View = tuple[NDArray[np.float32], F64]  # (H, W) canonical depth, (4, 4) T_world_camera
# offset of the pose stamps in seconds -> poses of the views; None where there is no pose
PosesAt = Callable[[float], Sequence[F64 | None]]

_POINTS = 2000  # of each view
_MAX_NEAR = 15  # pairs of a kind
_MIN_PAIRS = 3  # informative ones
_MIN_COMMON = 300  # points of a pair that both views see
_FAR_M, _FAR_MEDIANS = 5.0, 3.0  # beyond both (m, median depths), depth noise dominates
_MOVED_M, _TURNED_RAD = 0.005, 0.005  # smallest motion between two informative views
_TELLING = 0.008  # disagreement as a share of depth: noise and pose drift of 1 to 2 cm stay below
_WRONG = 0.005  # disagreement from which on a focal length or scale may be wrong
_FOREIGN = 0.01  # disagreement from which on poses may have another convention
_BETTER = 0.5  # largest share of the disagreement that a cause may leave
_MUCH_BETTER = 0.6  # the same for a cause of several parts, relative to each part
_OFF = 0.05  # scales closer to 1 are correct
_UNEXPLAINED = 0.04
_POSE_OFFSETS_S = [round(0.05 * k, 2) for k in range(-10, 11) if k]
_FOCAL_SCALES = np.linspace(0.7, 1.4, 36)  # includes 1
_DEPTH_FACTORS = np.geomspace(1e-4, 1e4, 83)  # steps of a quarter
_USUAL_DEPTH_SCALES = (1.0, 10.0, 100.0, 500.0, 1000.0, 2000.0, 4000.0, 5000.0, 6553.5, 8000.0, 10000.0)
_USUAL_MEDIAN_M = 1.8  # of indoor depth images
_SIDEWAYS = 0.7  # largest vertical part of a view direction that shows which world axis is up
_UP_SHARE, _NOT_UP_SHARE = 0.75, 0.45

# at most one of each group; the first is empty
_CONVENTIONS = tuple(
    tuple(name for name in names if name) for names in product(("", "wxyz"), ("", "inverse"), ("", "opengl", "body"))
)


@dataclass(frozen=True)
class _Cause:
    """A hypothesis why views disagree; the fields are the corrections."""

    conventions: tuple[str, ...] = ()
    depth_factor: float = 1.0
    focal_scale: float = 1.0
    pose_offset_s: float = 0.0


class _Views:
    """Pairs of views, and their disagreement under a cause."""

    def __init__(self, views: Sequence[View], intrinsics: Intrinsics, poses_at: PosesAt | None) -> None:
        self._views = views
        self._poses_at = poses_at
        self._intrinsics = intrinsics
        self._clouds = []
        for depth_m, _ in views:
            known = depth_m[np.isfinite(depth_m) & (depth_m > 0)]
            far_m = max(_FAR_M, _FAR_MEDIANS * float(np.median(known))) if len(known) else _FAR_M
            points, valid = back_project(np.where(depth_m < far_m, depth_m, 0.0), intrinsics)
            cloud = points[valid]
            self._clouds.append(cloud[:: max(1, len(cloud) // _POINTS)])
        count = len(views)
        near: list[tuple[int, int]] = []
        for gap in (1, 2):  # neighbours in time see the same surfaces
            near += _thinned([(i, i + gap) for i in range(count - gap) if self._moved(i, i + gap)], _MAX_NEAR)
        self.near = [pair if n % 2 else pair[::-1] for n, pair in enumerate(near)]
        # distant views show small errors better, where they still overlap
        wide = [(i, j) for i in range(count) for j in range(count) if i != j and self._moved(i, j)]
        self.wide = _thinned(wide, 2 * _MAX_NEAR)

    def _moved(self, i: int, j: int) -> bool:
        T = invert_transform(self._views[j][1]) @ self._views[i][1]
        turn_rad = np.arccos(np.clip((np.trace(T[:3, :3]) - 1) / 2, -1, 1))
        return bool(np.linalg.norm(T[:3, 3]) > _MOVED_M or turn_rad > _TURNED_RAD)

    def disagreements(self, pairs: Sequence[tuple[int, int]], causes: Sequence[_Cause]) -> F64:
        """Return (P, C) disagreements of every pair under every cause: median of |depth of one view's points in the
        other - depth there| / depth; NaN with too few common points."""
        out = np.full((len(pairs), len(causes)), np.nan)
        for c, cause in enumerate(causes):
            poses = [None if T is None else convert_pose(T, cause.conventions) for T in self._poses(cause)]
            for p, (i, j) in enumerate(pairs):
                T_world_i, T_world_j = poses[i], poses[j]
                if T_world_i is not None and T_world_j is not None:
                    out[p, c] = self._disagreement(i, j, invert_transform(T_world_j) @ T_world_i, cause)
        return out

    def _poses(self, cause: _Cause) -> Sequence[F64 | None]:
        if cause.pose_offset_s and self._poses_at is not None:
            return self._poses_at(cause.pose_offset_s)
        return [T for _, T in self._views]

    def _disagreement(self, i: int, j: int, T_j_i: F64, cause: _Cause) -> float:
        k, s = cause.focal_scale, cause.depth_factor
        camera = replace(self._intrinsics, fx=k * self._intrinsics.fx, fy=k * self._intrinsics.fy)
        cloud = transform_points(T_j_i, self._clouds[i] * (s / k, s / k, s))
        uv, inside = project(cloud, camera)
        u, v = np.rint(uv[inside]).astype(np.int64).T
        seen = self._views[j][0][v, u]
        known = np.isfinite(seen) & (seen > 0)
        if known.sum() < _MIN_COMMON:
            return float("nan")
        z = cloud[inside][known, 2]
        return float(np.median(np.abs(z - s * seen[known]) / z))


def _thinned(pairs: list[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    return pairs[:: max(1, -(-len(pairs) // count))]


def _scores(table: F64) -> F64:
    """Return the (C,) median over the informative rows of a (P, C) table; 1 where a cause leaves no overlap.

    Empty with too few informative pairs: two views of a standing robot agree under every cause.
    """
    known = np.isfinite(table)
    spread = np.where(known, table, -np.inf).max(axis=1) - np.where(known, table, np.inf).min(axis=1)
    telling = np.where(known, table, 1.0)[spread >= _TELLING]
    return np.median(telling, axis=0) if len(telling) >= _MIN_PAIRS else np.zeros(0)


def check_views(
    camera: str,
    views: Sequence[View],
    intrinsics: Intrinsics,
    *,
    depth_scale: float | None = None,
    poses_at: PosesAt | None = None,
    live: bool = False,
) -> list[Finding]:
    """Check that the views agree; if not, find the usual cause under which they do.

    Args:
        camera: its name.
        views: in order of time.
        intrinsics: of the depth images.
        depth_scale: raw units per metre that the depth was read with; None for depth in metres.
        poses_at: their poses at other times, to test for an offset of the pose stamps.
        live: give remedies for a running system instead of command options.

    Returns:
        Findings; none for a static camera or without overlap.
    """
    compared = _Views(views, intrinsics, poses_at)
    conventions = _family(compared, [_Cause(names) for names in _CONVENTIONS[1:]])
    # poses of a far too large scale leave no overlap under any convention
    here = 1.0 if conventions is None else conventions.here
    explained = conventions if conventions is not None and conventions.explains(_FOREIGN) else None
    if explained is None:
        focal = _family(compared, [_Cause(focal_scale=float(k)) for k in _FOCAL_SCALES], wide=True)
        scale = _family(compared, [_Cause(depth_factor=float(s)) for s in _DEPTH_FACTORS]) if here >= _WRONG else None
        late = None
        if here >= _WRONG and poses_at is not None:
            late = _family(compared, [_Cause(pose_offset_s=float(s)) for s in _POSE_OFFSETS_S])
        found = [family for family in (focal, scale, late) if family is not None and family.explains(_WRONG)]
        explained = min(found, key=lambda family: family.least / family.here, default=None)
    if explained is None and here > _UNEXPLAINED:  # two causes at once
        both = [_Cause(names, depth_factor=float(s)) for names in _CONVENTIONS for s in _DEPTH_FACTORS]
        together = _family(compared, both)
        explained = together if together is not None and together.explains(_FOREIGN) else None
    if explained is None:
        if conventions is None:
            return []
        if here <= _UNEXPLAINED:
            return [Finding("views", Severity.OK, f"{camera}: views differ by {here:.1%} of the depth")]
        message = f"{camera}: views differ by {here:.1%} of the depth: the poses do not fit the images"
        remedy = "check the poses, their clock and the calibration; none of the usual causes explains it"
        return [Finding("views", Severity.WARNING, message, remedy)]
    cause, least = explained.cause, explained.least
    if cause.depth_factor != 1.0:
        near = [replace(cause, depth_factor=cause.depth_factor * float(f)) for f in np.linspace(0.85, 1.15, 31)]
        finer = _family(compared, near)
        if finer is not None:
            cause, least = finer.cause, finer.least
    differ = f"views differ by {least:.1%} of the depth instead of {explained.here:.1%}"
    findings = []
    if cause.conventions:
        findings.append(_other_convention(camera, cause.conventions, views, differ, live))
    if cause.depth_factor != 1.0:
        findings.append(_other_scale(camera, cause.depth_factor, views, depth_scale, differ, live))
    if cause.pose_offset_s:
        findings.append(_other_time(camera, compared, cause, differ, live))
    if cause.focal_scale != 1.0:
        message = (
            f"{camera}: the calibration does not fit: the images look like focal length "
            f"{cause.focal_scale * intrinsics.fx:.0f}, camera_info says {intrinsics.fx:.0f} ({differ})"
        )
        remedy = "check that camera_info belongs to this camera and resolution; calibrate it again"
        findings.append(Finding("focal length", Severity.ERROR, message, remedy))
    return findings


@dataclass(frozen=True)
class _Family:
    """The best cause of one kind.

    Attributes:
        cause: the simplest cause that leaves hardly more than the least disagreement.
        here, least: disagreement of the views without and with the correction.
        limit: disagreement at the ends of the range, where depth or poses have no influence; inf without such ends.
    """

    cause: _Cause
    here: float
    least: float
    limit: float

    def explains(self, wrong: float) -> bool:
        """Return True when the views agree under the cause, and neither without it nor under any."""
        off = max(abs(self.cause.depth_factor - 1), abs(self.cause.focal_scale - 1))
        return (
            self.here >= wrong
            and self.least <= min(_BETTER * self.here, _MUCH_BETTER * self.limit, _UNEXPLAINED)
            and (bool(self.cause.conventions) or bool(self.cause.pose_offset_s) or off >= _OFF)
        )


def _family(compared: _Views, causes: Sequence[_Cause], *, wide: bool = False) -> _Family | None:
    """Find the best of ``causes``; None when too few pairs distinguish them.

    ``wide``: use distant views that overlap under every cause.
    """
    table = compared.disagreements(compared.wide if wide else compared.near, [_Cause(), *causes])
    scores = _scores(table[np.isfinite(table).all(axis=1)] if wide else table)
    if len(scores) == 0:
        return None
    best = -1
    for parts in sorted({len(cause.conventions) for cause in causes}):
        alike = [c for c, cause in enumerate(causes) if len(cause.conventions) == parts]
        candidate = min(alike, key=lambda c: scores[1 + c])
        if best < 0 or scores[1 + candidate] < _MUCH_BETTER * scores[1 + best]:
            best = candidate
    same = [scores[1 + c] for c, cause in enumerate(causes) if cause.conventions == causes[best].conventions]
    ends = [same[0], same[-1]] if causes[best].depth_factor != 1.0 else [np.inf]
    return _Family(causes[best], float(scores[0]), float(scores[1 + best]), float(min(ends)))


def _other_convention(camera: str, names: tuple[str, ...], views: Sequence[View], differ: str, live: bool) -> Finding:
    names = (*names, *world_axes([convert_pose(T, names) for _, T in views]))
    text = conventions_text(names)
    words = " and ".join(POSE_CONVENTIONS[name] for name in text.split(","))
    remedy = f"use --poses {text}"
    if live:
        remedy = "publish the pose of the optical frame (x right, y down, z forward) in a world with z up (REP-103)"
    return Finding("pose convention", Severity.ERROR, f"{camera}: the poses look like {words}: {differ}", remedy)


def _other_time(camera: str, compared: _Views, cause: _Cause, differ: str, live: bool) -> Finding:
    near = [replace(cause, pose_offset_s=round(cause.pose_offset_s + 0.01 * k, 2)) for k in range(-4, 5)]
    finer = _family(compared, [c for c in near if c.pose_offset_s])
    offset_s = (cause if finer is None else finer.cause).pose_offset_s
    late = "early" if offset_s > 0 else "late"
    message = f"{camera}: the stamps of the poses are {abs(offset_s):g} s too {late} for these images: {differ}"
    remedy = f"use --pose-offset {offset_s:g}"
    if live:
        remedy = "stamp images and poses by one clock, when they are taken and not when they arrive"
    return Finding("clock offset", Severity.ERROR, message, remedy)


def _other_scale(
    camera: str, factor: float, views: Sequence[View], depth_scale: float | None, differ: str, live: bool
) -> Finding:
    """Report a factor between depth and poses; the usual size of rooms decides which of them is wrong."""
    median_m = float(np.median(np.concatenate([depth[np.isfinite(depth) & (depth > 0)][::17] for depth, _ in views])))
    unlikely_now, unlikely_then = (abs(np.log(m / _USUAL_MEDIAN_M)) for m in (median_m, factor * median_m))
    by_how_much = f"{1 / factor:.3g} times too large" if factor < 1 else f"{factor:.3g} times too small"
    if unlikely_then < unlikely_now:
        message = f"{camera}: the scale of the depth is wrong, it is {by_how_much} for these poses: {differ}"
        if depth_scale is None or live:
            return Finding("scale", Severity.ERROR, message, "check the unit of the depth: 16UC1 has mm, 32FC1 m")
        wanted = depth_scale / factor
        usual = min(_USUAL_DEPTH_SCALES, key=lambda scale: abs(np.log(scale / wanted)))
        wanted = usual if abs(np.log(usual / wanted)) < 0.05 else float(f"{wanted:.3g}")
        return Finding("scale", Severity.ERROR, message, f"use --depth-scale {wanted:g}")
    by_how_much = f"{1 / factor:.3g} times too small" if factor < 1 else f"{factor:.3g} times too large"
    message = f"{camera}: the scale of the poses is wrong, they are {by_how_much} for this depth: {differ}"
    if live:
        return Finding("scale", Severity.ERROR, message, "publish poses in metres")
    wanted = 1 / factor
    usual = 10.0 ** round(np.log10(wanted))
    wanted = usual if abs(np.log(usual / wanted)) < 0.05 else float(f"{wanted:.3g}")
    return Finding("scale", Severity.ERROR, message, f"use --pose-scale {wanted:g}")


def world_axes(poses: Sequence[F64]) -> tuple[str, ...]:
    """Return the world convention of (4, 4) optical poses: ``("yup",)``, ``("ydown",)`` or ``()``.

    A camera that looks sideways has the top of its images up. One that only looks along the z axis decides nothing: it
    may look down in a world with z up.
    """
    ups = np.array([-T[:3, 1] for T in poses if abs(T[2, 2]) < _SIDEWAYS]).reshape(-1, 3)
    if len(ups) < max(3, 0.1 * len(poses)):
        return ()
    up = ups.mean(axis=0)
    if abs(up[1]) < _UP_SHARE or abs(up[2]) > _NOT_UP_SHARE:
        return ()
    return ("yup",) if up[1] > 0 else ("ydown",)


def check_world_axes(camera: str, poses: Sequence[F64], live: bool = False) -> list[Finding]:
    """Check that z is up in poses whose views agree; no finding when it is, or cannot be decided."""
    return [
        Finding(
            "world axes",
            Severity.ERROR,
            f"{camera}: the poses are in {POSE_CONVENTIONS[name]}, not with z up",
            "publish poses in a frame with z up (REP-103)" if live else f"use --poses {name}",
        )
        for name in world_axes(poses)
    ]
