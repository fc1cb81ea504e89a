"""What became of an exposure that is not a frame: reasons, details, counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from embodied_perceptron.trajectory import format_stamp


class DropReason:
    """Why a candidate did not become a posed frame."""

    NO_PAIR = "no_pair"  # colour without depth, or depth without colour
    OUT_OF_ORDER = "out_of_order"  # older than what the same stream had delivered already
    DUPLICATE = "duplicate"  # same stamp as what the same stream had delivered already
    QUEUE_FULL = "queue_full"  # the oldest makes room for the newest
    NO_CAMERA_INFO = "no_camera_info"
    SIZE_MISMATCH = "size_mismatch"  # colour, depth and calibration disagree: depth is not registered to colour
    BAD_FRAME = "bad_frame"  # undecodable, or values that no frame may have
    POSE_TIMEOUT = "pose_timeout"  # the pose did not arrive within max_pose_wait_s
    POSE_TOO_OLD = "pose_too_old"  # the stamp lies before the oldest pose
    POSE_GAP = "pose_gap"  # poses around the stamp are too far apart
    NO_TRANSFORM = "no_transform"  # the frames were never connected within max_pose_wait_s
    TIME_JUMP = "time_jump"  # was waiting when time went back
    FLUSHED = "flushed"  # was waiting when the stream ended, or was reset

    ALL = (
        NO_PAIR,
        OUT_OF_ORDER,
        DUPLICATE,
        QUEUE_FULL,
        NO_CAMERA_INFO,
        SIZE_MISMATCH,
        BAD_FRAME,
        POSE_TIMEOUT,
        POSE_TOO_OLD,
        POSE_GAP,
        NO_TRANSFORM,
        TIME_JUMP,
        FLUSHED,
    )


@dataclass(frozen=True)
class Drop:
    """One candidate that was dropped: ``detail`` says why in words."""

    camera: str
    stamp_ns: int
    reason: str
    detail: str = ""

    def __str__(self) -> str:
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.camera} {format_stamp(self.stamp_ns)} dropped, {self.reason}{detail}"


@dataclass(frozen=True)
class BadImage:
    """Takes the place of an image that could not be decoded, so that its exposure is counted once, with the reason."""

    reason: str


@dataclass(frozen=True)
class BadCalibration:
    """Takes the place of a calibration that cannot be used: frames of its time are dropped with the reason."""

    reason: str


@dataclass
class AssemblerStats:
    """Counts since the start.

    Attributes:
        accepted: candidates begun.
        emitted: posed frames handed out.
        dropped: candidates dropped, by :class:`DropReason`.
        pending: candidates that wait now.
        calibration_changes: times a camera's calibration changed to other values.
        time_jumps: times that stamps or the clock went back.
    """

    accepted: int = 0
    emitted: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    pending: int = 0
    calibration_changes: int = 0
    time_jumps: int = 0
