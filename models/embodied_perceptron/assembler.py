"""Colour, depth, calibration and pose of several cameras, joined by stamp into posed frames.

Nothing is lost unexplained. A *candidate* is one exposure of one camera: it begins with the first half (colour or
depth) that arrives and ends as a :class:`~embodied_perceptron.frame.PosedFrame` or as a :class:`Drop` with a reason, so
that at every moment ``accepted == emitted + sum(dropped) + pending``, over all cameras and for each of them.

Time comes in as an argument: ``now_ns`` only bounds waiting, stamps decide everything else. One owner calls it; it
holds no lock.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.camera_model import CameraModel
from embodied_perceptron.config import AssemblerConfig
from embodied_perceptron.drops import AssemblerStats, BadCalibration, BadImage, Drop, DropReason
from embodied_perceptron.exposure_queue import ExposureQueue
from embodied_perceptron.frame import PosedFrame
from embodied_perceptron.geometry import Intrinsics
from embodied_perceptron.trajectory import PoseSource, seconds_to_ns

__all__ = ["AssemblerStats", "BadCalibration", "BadImage", "Drop", "DropReason", "FrameAssembler"]


class FrameAssembler:
    """Pairs colour and depth by stamp, adds calibration and pose, and says what became of every exposure.

    Feed it with :meth:`add_color`, :meth:`add_depth`, :meth:`add_camera_info` in any order, then :meth:`poll`. Frames
    of one camera come out in the order of their stamps.

    Rules:
        * halves whose stamps differ by at most ``pair_tolerance_s`` make a pair; equal stamps, or nearly equal ones,
          pair at once, others when no better partner can come any more;
        * a half whose partner can no longer come is dropped (``no_pair``), at the latest after ``max_pair_wait_s``;
        * calibration: the one stamped like the frame, otherwise the newest before it; where calibration arrives with
          every frame, a frame waits for its own;
        * the pose is asked for at the stamp of the colour image, for at most ``max_pose_wait_s``;
        * more than ``queue_size`` waiting candidates of a camera: the oldest is dropped;
        * stamps or ``now_ns`` that go back by more than ``jump_back_s``: time restarted, what waits is dropped.
    """

    def __init__(
        self,
        config: AssemblerConfig,
        poses: PoseSource,
        cameras: Iterable[str] | None = None,
        *,
        jump_back_s: float = 1.0,
    ) -> None:
        """``cameras``: the names to accept (any other raises ``KeyError``); None = whatever comes."""
        self._config = config
        self._poses = poses
        self._open = cameras is None
        self._jump_back_ns = seconds_to_ns(jump_back_s)
        self._cameras: dict[str, ExposureQueue] = {}
        self._drops: list[Drop] = []
        self._now_ns: int | None = None
        self._retired = AssemblerStats()  # clock jumps; cameras hold the rest
        for name in cameras or ():
            self._cameras[name] = ExposureQueue(name, config, self._jump_back_ns, self._drops)

    # ----------------------------------------------------------------------------------------------------------------
    # filling

    def add_color(self, camera: str, stamp_ns: int, color: NDArray[np.uint8] | BadImage, now_ns: int) -> None:
        """Add an (H, W, 3) uint8 RGB image, or why there is none."""
        self._tick(now_ns)
        self._camera(camera).add("color", stamp_ns, color, now_ns)

    def add_depth(self, camera: str, stamp_ns: int, depth_m: NDArray[np.float32] | BadImage, now_ns: int) -> None:
        """Add an (H, W) float32 canonical depth image (:func:`~embodied_perceptron.frame.canonical_depth`)."""
        self._tick(now_ns)
        self._camera(camera).add("depth", stamp_ns, depth_m, now_ns)

    def add_camera_info(
        self, camera: str, stamp_ns: int, calibration: Intrinsics | CameraModel | BadCalibration, now_ns: int
    ) -> None:
        """Add the calibration that holds from ``stamp_ns`` on, or why there is none from then on."""
        self._tick(now_ns)
        model = CameraModel(calibration) if isinstance(calibration, Intrinsics) else calibration
        self._camera(camera).calibrations.add(stamp_ns, model)

    def _camera(self, name: str) -> ExposureQueue:
        if name not in self._cameras:
            if not self._open:
                raise KeyError(f"unknown camera {name!r}; known: {', '.join(sorted(self._cameras))}")
            self._cameras[name] = ExposureQueue(name, self._config, self._jump_back_ns, self._drops)
        return self._cameras[name]

    def _tick(self, now_ns: int) -> None:
        if self._now_ns is not None and now_ns < self._now_ns - self._jump_back_ns:
            self._retired.time_jumps += 1
            for camera in self._cameras.values():
                camera.restart(DropReason.TIME_JUMP, "the clock went back")
        self._now_ns = now_ns

    # ----------------------------------------------------------------------------------------------------------------
    # taking

    def poll(self, now_ns: int) -> list[PosedFrame]:
        """Everything that is ready, by stamp within each camera; drops what waited too long."""
        self._tick(now_ns)
        frames: list[PosedFrame] = []
        for camera in self._cameras.values():
            frames += camera.poll(self._poses, now_ns)
        frames.sort(key=lambda posed: posed.frame.stamp_ns)  # stable: cameras stay in their order
        return frames

    def flush(self, now_ns: int) -> list[PosedFrame]:
        """The stream has ended: hand out what is ready when nothing more is waited for, drop the rest."""
        self._tick(now_ns)
        frames: list[PosedFrame] = []
        for camera in self._cameras.values():
            frames += camera.poll(self._poses, now_ns, ended=True)
        frames.sort(key=lambda posed: posed.frame.stamp_ns)
        return frames

    def reset(self) -> None:
        """Drop what waits (``flushed``), forget stamps and calibration; counts go on."""
        for camera in self._cameras.values():
            camera.restart(DropReason.FLUSHED, "reset")
            camera.calibrations.clear()
        self._now_ns = None

    def take_drops(self) -> list[Drop]:
        """The drops since the last call, for the log. At most the newest 1000 are kept; the counts lose none."""
        drops, self._drops[:] = list(self._drops), []
        return drops

    def stats(self, camera: str | None = None) -> AssemblerStats:
        """A copy of the counts, of one camera or of all. Raises ``KeyError`` for an unknown camera."""
        if camera is not None and camera not in self._cameras:
            raise KeyError(f"unknown camera {camera!r}; known: {', '.join(sorted(self._cameras))}")
        parts = [self._cameras[camera].stats] if camera else [c.stats for c in self._cameras.values()]
        total = AssemblerStats(time_jumps=0 if camera else self._retired.time_jumps)
        for part in parts:
            total.accepted += part.accepted
            total.emitted += part.emitted
            total.pending += part.pending
            total.dropped.update(part.dropped)
            total.calibration_changes += part.calibration_changes
            total.time_jumps += part.time_jumps
        return total
