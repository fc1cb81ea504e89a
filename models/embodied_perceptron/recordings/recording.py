"""What a recording is, whatever its format: a stream of stamped samples, exactly like the live one.

A recording yields colour, depth, calibration and transforms in the order of time; :class:`PosedFrameStream` sends them
through the same transform tree and synchronizer as a robot does, so that what is replayed is what is deployed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.config import SynchronizerConfig
from embodied_perceptron.sensors.camera_model import CameraModel
from embodied_perceptron.sensors.frame import PosedFrame
from embodied_perceptron.sensors.poses import CameraPoses, TransformTree
from embodied_perceptron.sensors.synchronizer import BadImage, DepthInput, Drop, RgbdSynchronizer, SynchronizerStats

ImageT = TypeVar("ImageT")


class RecordingError(ValueError):
    """A recording that cannot be read; the message names the file (and line), and what to do where that is known.

    Attributes:
        fault: what is wrong.
        remedy: what to do, "" where nobody knows; the message is both.
    """

    def __init__(self, fault: str, remedy: str = "") -> None:
        super().__init__(f"{fault}; {remedy}" if remedy else fault)
        self.fault = fault
        self.remedy = remedy


@dataclass(frozen=True, eq=False)
class ColorSample:
    """(H, W, 3) uint8 RGB of one camera, or the reason why it could not be decoded."""

    stamp_ns: int
    camera: str
    image: NDArray[np.uint8] | BadImage


@dataclass(frozen=True, eq=False)
class DepthSample:
    """(H, W) float32 canonical depth, registered to colour or with its own camera, or the reason why it could not be
    decoded."""

    stamp_ns: int
    camera: str
    depth_m: DepthInput


@dataclass(frozen=True)
class CalibrationSample:
    """Calibration of one camera, valid from ``stamp_ns`` on."""

    stamp_ns: int
    camera: str
    calibration: CameraModel


@dataclass(frozen=True, eq=False)
class TransformSample:
    """(4, 4) ``T_parent_child`` at ``stamp_ns``, or at every time when ``is_static``."""

    stamp_ns: int
    parent: str
    child: str
    T_parent_child: NDArray[np.float64]
    is_static: bool = False


Sample = ColorSample | DepthSample | CalibrationSample | TransformSample


@dataclass
class LeftOut:
    """Damaged records: they raise, or are skipped and counted where damage is tolerated.

    Attributes:
        counts: number of messages, lines or files by topic, file or folder.
        reasons: reason for the first one.
        tolerates_damage: whether :meth:`record` skips and :meth:`image` replaces damage instead of raising.
    """

    counts: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)
    tolerates_damage: bool = False

    def add(self, where: str, reason: str) -> None:
        """Count one item of a topic or file."""
        self.counts[where] += 1
        self.reasons.setdefault(where, reason)

    @contextmanager
    def record(self, where: str | Path, entry: str | Path, *, may_lack: bool = False) -> Iterator[None]:
        """Read one record of a topic, file or folder: a ``ValueError`` becomes a :class:`RecordingError` that names
        ``entry``, or is counted: where damage is tolerated, and for records that ordinary recordings lack too."""
        try:
            yield
        except ValueError as error:
            fault = error if isinstance(error, RecordingError) else RecordingError(f"{entry}: {error}")
            if not self.tolerates_damage and not may_lack:
                raise fault from error.__cause__ if fault is error else error
            self.add(str(where), str(fault))

    def image(self, read: Callable[[], ImageT]) -> ImageT | BadImage:
        """Read an image that raises :class:`RecordingError`; where damage is tolerated, return why it is unreadable."""
        try:
            return read()
        except RecordingError as error:
            if not self.tolerates_damage:
                raise
            return BadImage(str(error))

    def clear(self) -> None:
        """Reset all counts."""
        self.counts.clear()
        self.reasons.clear()


def checked_depth_scale(depth_scale: float | None, where: str = "") -> float | None:
    """Return raw units per metre, or None. Raises :class:`RecordingError` unless they are positive and finite."""
    if depth_scale is not None and not 1e-30 < depth_scale < 1e30:  # the reciprocal is a float32
        raise RecordingError(f"{where}depth_scale must be positive, got {depth_scale}")
    return depth_scale


class Recording(Protocol):
    """A recorded RGB-D stream. Iterating starts from the beginning every time.

    Samples come in the order of their stamps, except that transforms come ahead of the images that need them. A
    real-time player sends transforms at once and paces by the images.
    """

    @property
    def source(self) -> Path:
        """Folder or file."""
        ...

    @property
    def cameras(self) -> tuple[str, ...]:
        """Names of the cameras."""
        ...

    @property
    def world_frame(self) -> str:
        """Fixed frame in which poses are given."""
        ...

    @property
    def truth(self) -> Mapping[str, Any] | None:
        """Ground truth of the scene (simulated recordings), or None."""
        ...

    @property
    def left_out(self) -> LeftOut:
        """Items that the last iteration skipped, where damage is tolerated."""
        ...

    def camera_frame(self, camera: str) -> str:
        """Optical frame of a camera. Raises ``KeyError`` for an unknown one."""
        ...

    def depth_scale(self, camera: str) -> float | None:
        """Raw units per metre of the depth images of a camera; None for metres. Raises ``KeyError``."""
        ...

    def __len__(self) -> int:
        """Number of colour images over all cameras."""
        ...

    def __iter__(self) -> Iterator[Sample]:
        """Yield samples from the beginning. Raises :class:`RecordingError` for unreadable data."""
        ...


class PosedFrameStream:
    """Iterator over the posed frames of a recording, made as in the live path.

    Attributes:
        colors_played: number of colour images played so far.
    """

    def __init__(
        self,
        recording: Recording,
        config: SynchronizerConfig | None = None,
        *,
        world_frame: str | None = None,
        on_refused: Callable[[TransformSample, str], None] | None = None,
    ) -> None:
        """Args:

        recording: the recording.
        config: tolerances; None = the defaults.
        world_frame: frame of ``T_world_camera``; by default that of the recording.
        on_refused: called with an invalid transform, which is skipped, and the reason; by default it raises.
        """
        config = SynchronizerConfig() if config is None else config
        self._recording = recording
        self._on_refused = on_refused
        self._tree = TransformTree(max_gap_s=config.max_pose_gap_s)
        frames = {camera: recording.camera_frame(camera) for camera in recording.cameras}
        poses = CameraPoses(self._tree, world_frame or recording.world_frame, frames)
        self._synchronizer = RgbdSynchronizer(config, poses, recording.cameras)
        self.colors_played = 0

    @property
    def stats(self) -> SynchronizerStats:
        """Counts so far; after the iteration ``accepted == emitted + sum(dropped)``."""
        return self._synchronizer.stats()

    @property
    def tree(self) -> TransformTree:
        """The transforms played so far."""
        return self._tree

    def take_drops(self) -> list[Drop]:
        """Drops since the last call."""
        return self._synchronizer.take_drops()

    def __iter__(self) -> Iterator[PosedFrame]:
        """Yield posed frames. Raises :class:`RecordingError`, also for invalid transforms."""
        self.colors_played = 0
        now_ns = 0
        for sample in self._recording:
            if isinstance(sample, TransformSample):
                self._insert(sample)
                continue
            # streams may lag behind each other; a restart is detected by the stamps of one stream
            now_ns = max(now_ns, sample.stamp_ns)
            if isinstance(sample, ColorSample):
                self.colors_played += 1
                self._synchronizer.add_color(sample.camera, sample.stamp_ns, sample.image, now_ns)
            elif isinstance(sample, DepthSample):
                self._synchronizer.add_depth(sample.camera, sample.stamp_ns, sample.depth_m, now_ns)
            else:
                self._synchronizer.add_camera_info(sample.camera, sample.stamp_ns, sample.calibration, now_ns)
            yield from self._synchronizer.poll(now_ns)
        yield from self._synchronizer.flush(now_ns)

    def _insert(self, sample: TransformSample) -> None:
        try:
            if sample.is_static:
                self._tree.insert_static(sample.parent, sample.child, sample.T_parent_child)
            else:
                self._tree.insert(sample.parent, sample.child, sample.stamp_ns, sample.T_parent_child)
        except ValueError as error:
            if self._on_refused is None:
                raise RecordingError(f"transform at {sample.stamp_ns} ns: {error}") from error
            self._on_refused(sample, str(error))
