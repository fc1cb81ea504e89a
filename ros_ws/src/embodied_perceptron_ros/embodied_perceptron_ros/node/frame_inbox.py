"""Camera messages in, posed frames out: the one place where frames wait, and where it is decided and counted which of
them are dropped.

A frame waits in three forms: as messages that nobody has decoded yet, as images that wait for each other, for their
calibration and for their pose (:mod:`embodied_perceptron.sensors.synchronizer`), and ready. One rule holds for all:
where there is no room the oldest gives way, of the camera that has most. Why a frame can be dropped is in
:class:`~embodied_perceptron.sensors.synchronizer.DropReason` and in the names below; each drop is counted, explained in
the diagnostics and logged by :meth:`FrameInbox.drop`, and nowhere else.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.config import SynchronizerConfig
from embodied_perceptron.sensors.camera_model import CameraModel
from embodied_perceptron.sensors.frame import PosedFrame
from embodied_perceptron.sensors.poses import Disconnected, Found, PoseLookup
from embodied_perceptron.sensors.registration import UnregisteredDepth
from embodied_perceptron.sensors.synchronizer import (
    BadCalibration,
    BadImage,
    DepthInput,
    Drop,
    DropReason,
    RgbdSynchronizer,
    TimeJump,
)
from embodied_perceptron_ros.conversion.values import (
    camera_info_key,
    camera_model,
    color_from_message,
    depth_from_message,
    stamp_to_ns,
)
from embodied_perceptron_ros.node.health import ERROR, WARN, FrameCounts, Health
from embodied_perceptron_ros.node.parameters import CameraParameters, Kind
from embodied_perceptron_ros.node.throttled_log import ThrottledLog
from embodied_perceptron_ros.node.transforms import TransformSource

OVERLOAD = "overload"  # ready, but fusion could not keep up
INTERNAL_ERROR = "internal_error"
TOOK_TOO_LONG = "took_too_long"  # fusion of it was given up
OUT_OF_REACH = "out_of_reach"  # further from the map's origin than a map can hold
UNDECODED_S = 1.0  # messages that wait for longer, while a map is saved, say, give way to newer ones of their kind
_POSE_REASONS = (DropReason.NO_TRANSFORM, DropReason.POSE_TIMEOUT, DropReason.POSE_TOO_OLD, DropReason.POSE_GAP)
_SAMPLED = 16  # every such pixel tells whether an image is the one before
_FROZEN_FRAMES, _FROZEN_S = 10, 2.0  # depth that is the same for so many other colour images, and so long
_HOLD_S = 5.0  # how long diagnostics repeat a missing pose


@dataclass(frozen=True, eq=False)
class Received:
    """One message as it came.

    Attributes:
        kind, camera: what it is.
        message: sensor_msgs Image, CompressedImage or CameraInfo.
        sent_ns: wall clock when the publisher wrote it; when it arrived, where the clocks differ.
    """

    kind: Kind
    camera: str
    message: Any
    sent_ns: int

    @property
    def nbytes(self) -> int:
        """Memory of what it carries."""
        return len(getattr(self.message, "data", ()))


class CameraPoses:
    """Poses of cameras by name, from the frames that their images name and the transforms of the robot."""

    def __init__(self, transforms: TransformSource, fusion_frame: str) -> None:
        self._transforms = transforms
        self._fusion_frame = fusion_frame
        self.frames: dict[str, str] = {}

    def lookup(self, camera: str, stamp_ns: int) -> PoseLookup:
        """``T_fusion_camera`` at ``stamp_ns``, or why there is none."""
        frame = self.frames.get(camera, "")
        if not frame:
            return Disconnected(self._fusion_frame, camera, f"images of camera {camera!r} carry no frame_id")
        return self._transforms.lookup(self._fusion_frame, frame, stamp_ns)

    def mount(self, color_frame: str, depth_frame: str, stamp_ns: int) -> PoseLookup:
        """``T_color_depth`` of two frames of one camera, or why there is none."""
        return self._transforms.lookup(color_frame, depth_frame, stamp_ns)


class Undecoded:
    """Messages by their arrival. No locks."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[int, tuple[Received, float]] = OrderedDict()  # by order of arrival, with its time
        self._of_kind: dict[tuple[str, str], deque[int]] = {}
        self._next = 0
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, received: Received, now_s: float) -> None:
        """Add the newest."""
        self._of_kind.setdefault((received.camera, received.kind), deque()).append(self._next)
        self._waiting[self._next] = received, now_s
        self._next += 1
        self.nbytes += received.nbytes

    def shed(self, camera: str, kind: str, before_s: float, max_bytes: int) -> list[Received]:
        """Give up those of this camera and kind that came before ``before_s``, and the oldest of any while all together
        have more than ``max_bytes``; but one stays, however large."""
        numbers = self._of_kind.get((camera, kind), deque())
        lost = []
        while numbers and self._waiting[numbers[0]][1] < before_s:
            lost.append(self._pop(numbers[0]))
        while self.nbytes > max_bytes and len(self._waiting) > 1:
            lost.append(self._pop(next(iter(self._waiting))))
        return lost

    def _pop(self, number: int) -> Received:
        lost, _ = self._waiting.pop(number)
        self._of_kind[lost.camera, lost.kind].popleft()  # the oldest of all is the oldest of its kind
        self.nbytes -= lost.nbytes
        return lost

    def take_all(self) -> list[Received]:
        """Everything, in order of arrival."""
        taken = [received for received, _ in self._waiting.values()]
        self._waiting.clear()
        self._of_kind.clear()
        self.nbytes = 0
        return taken


class ReadyFrames:
    """Frames with their poses that wait for fusion; cameras take turns, each in the order of its frames.

    Under overload every camera gets the same share: the next frame is of the camera that had its turn longest ago,
    and what has to go is the oldest of the camera that has most waiting.
    """

    def __init__(self) -> None:
        self._frames: list[PosedFrame] = []  # oldest first
        self._turns: dict[str, int] = {}  # camera -> number of its last turn
        self._turn = 0

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def nbytes(self) -> int:
        """Memory of their images."""
        return sum(posed.frame.color.nbytes + posed.frame.depth_m.nbytes for posed in self._frames)

    def extend(self, frames: Iterable[PosedFrame]) -> None:
        """Frames of one camera come in the order of their stamps."""
        self._frames.extend(frames)

    def take(self) -> PosedFrame:
        """The oldest of the camera whose turn it is. Raises ValueError when none waits."""
        index = min(range(len(self._frames)), key=lambda i: self._last_turn(self._frames[i].frame.camera))
        self._turn += 1
        self._turns[self._frames[index].frame.camera] = self._turn
        return self._frames.pop(index)

    def shed(self) -> PosedFrame:
        """The one to do without; of cameras with equally many, the one that had its turn last loses."""
        waiting = Counter(posed.frame.camera for posed in self._frames)
        camera = max(waiting, key=lambda name: (waiting[name], self._last_turn(name)))
        return self._frames.pop(next(i for i, posed in enumerate(self._frames) if posed.frame.camera == camera))

    def take_all_of(self, cameras: Collection[str]) -> list[PosedFrame]:
        """All that wait of some cameras."""
        taken = [posed for posed in self._frames if posed.frame.camera in cameras]
        self._frames = [posed for posed in self._frames if posed.frame.camera not in cameras]
        return taken

    def _last_turn(self, camera: str) -> int:
        return self._turns.get(camera, 0)


class FrameInbox:
    """See the module's docstring. :meth:`put`, :meth:`miss`, :meth:`wake` and what is read may be called from any
    thread, the rest from the one that fuses.

    Bounds: ``config.queue_mib`` of everything that waits, :data:`UNDECODED_S` for a message that nobody has decoded,
    ``max_backlog()`` frames that are ready.

    Args:
        cameras: whose messages come.
        config: waiting times and memory.
        poses: of the cameras.
        health: is told of every drop.
        log: is told now and then.
        max_backlog: asked each time: the answer may change at run time.
        clock: seconds.
    """

    def __init__(
        self,
        cameras: Sequence[CameraParameters],
        config: SynchronizerConfig,
        poses: CameraPoses,
        health: Health,
        log: ThrottledLog,
        max_backlog: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cameras = {camera.name: camera for camera in cameras}
        self._poses = poses
        self._health = health
        self._log = log
        self._max_backlog = max_backlog
        self._clock = clock
        self._max_bytes = int(config.queue_mib * 2**20)
        self._something_new = threading.Event()
        self._lock = threading.Lock()  # of what callbacks and the fusing thread share: the next five
        self._undecoded = Undecoded()
        self._undelivered: dict[str, Counter[str]] = {}
        self._fused = 0
        self._dropped: Counter[str] = Counter()
        self._held_bytes = 0  # of images and ready frames
        self._synchronizer = RgbdSynchronizer(config, poses, self._cameras, on_drop=self.drop)
        self._ready = ReadyFrames()
        self._late = 0
        self._at_work: PosedFrame | None = None
        self._jumps: list[TimeJump] = []
        self._calibrations: dict[tuple[str, str], tuple[Any, CameraModel | BadCalibration]] = {}  # by camera and kind
        self._depths: dict[
            str, tuple[bytes, bytes, int, int]
        ] = {}  # by camera: depth, colour, since, changes of colour
        self._waiting_for_pose = False
        self._counts = FrameCounts()

    # ---- from any thread

    def put(self, received: Received) -> None:
        """Hand one message over."""
        now_s = self._clock()
        with self._lock:
            self._undecoded.put(received, now_s)
            room = self._max_bytes - self._held_bytes
            lost = self._undecoded.shed(received.camera, received.kind, now_s - UNDECODED_S, room)
        for message in lost:
            if message.kind == "color":  # depth without its colour image is a drop of its own
                stamp_ns, detail = stamp_to_ns(message.message.header.stamp), "nobody decoded its message in time"
                self.drop(Drop(message.camera, stamp_ns, DropReason.QUEUE_FULL, detail))
        self._something_new.set()

    def miss(self, camera: str, kind: str, count: int, stamp_ns: int) -> None:
        """So many messages were sent before the one of ``stamp_ns`` and did not arrive.

        A frame is lost when neither colour nor depth arrived: the other half of one that lost only one of them waits
        for its partner, and is counted when it gives up.
        """
        with self._lock:
            lost = self._undelivered.setdefault(camera, Counter())
            before = min(lost["color"], lost["depth"])
            lost[kind] += count
            frames = min(lost["color"], lost["depth"]) - before
        if frames:
            detail = f"{frames} before it were sent, the middleware did not deliver them"
            self.drop(Drop(camera, stamp_ns, DropReason.LOST, detail), frames)

    def wake(self) -> None:
        """Whoever waits in :meth:`wait` shall look."""
        self._something_new.set()

    def transforms_changed(self) -> None:
        """A transform arrived: worth a look only when a frame waits for one."""
        if self._waiting_for_pose:
            self._something_new.set()

    @property
    def counts(self) -> FrameCounts:
        """What became of the frames so far."""
        return self._counts

    def camera_frame(self, camera: str) -> str:
        """Optical frame that the images of a camera name; empty before the first."""
        return self._poses.frames.get(camera, "")

    def camera_model(self, camera: str) -> CameraModel | None:
        """Calibration of a camera; None before the first that can be used."""
        return self._model(camera, "info")

    def _model(self, camera: str, kind: Kind) -> CameraModel | None:
        _, calibration = self._calibrations.get((camera, kind), (None, None))
        return calibration if isinstance(calibration, CameraModel) else None

    # ---- from the thread that fuses

    def wait(self, idle_s: float, waiting_s: float) -> None:
        """Until something is new, for ``idle_s`` at most; for ``waiting_s`` while frames wait for their poses, and not
        at all where frames are ready."""
        if not self._ready:
            self._something_new.wait(waiting_s if self._waiting_for_pose else idle_s)
        self._something_new.clear()

    def take(self, now_ns: int) -> PosedFrame | None:
        """The next frame to fuse, None where none is ready. What becomes of it is told to :meth:`fused` or
        :meth:`refuse`.

        ``now_ns``: on the clock that bounds waiting. Look at :meth:`take_jumps` first, then fuse.
        """
        self._at_work = None
        with self._lock:
            messages = self._undecoded.take_all()
        for received in messages:
            self._decode(received, now_ns)
            self._make_room()
        frames = self._synchronizer.poll(now_ns)
        self._leave_behind_jumps()  # before the frames of the new time join those of the old
        if frames:
            self._ready.extend(frames)
            # frames that all waited for one transform come at once: that is no sign of overload
            self._late = self._synchronizer.late
        while len(self._ready) > self._max_backlog() + self._late:
            self._drop_frame(self._ready.shed(), OVERLOAD, "fusion does not keep up with the cameras")
        self._make_room()
        if self._ready:
            self._late = max(self._late - 1, 0)
            self._at_work = self._ready.take()
            self._look_for_frozen_depth(self._at_work)
        return self._at_work

    def take_jumps(self) -> list[TimeJump]:
        """Time jumps since the last call: frames of :meth:`take` are from after them, earlier ones from before."""
        jumps, self._jumps = self._jumps, []
        return jumps

    def fused(self) -> None:
        """The frame that was taken is in the map."""
        with self._lock:
            self._fused += 1
        self._at_work = None

    def refuse(self, reason: str, detail: str) -> None:
        """The frame that was taken is not fused."""
        if self._at_work is not None:
            self._drop_frame(self._at_work, reason, detail)
            self._at_work = None

    def drop(self, drop: Drop, frames: int = 1) -> None:
        """Frames are gone: count, explain, log. Every drop of whatever stage comes here."""
        with self._lock:
            self._dropped[drop.reason] += frames
        self._health.explain_drop(drop.reason, drop.detail)
        if drop.reason in _POSE_REASONS:
            self._health.problem("transforms", WARN, str(drop), drop.camera, hold_s=_HOLD_S)
        self._log.warning(f"{drop.camera}: {drop.reason}", str(drop))

    def _drop_frame(self, posed: PosedFrame, reason: str, detail: str) -> None:
        self.drop(Drop(posed.frame.camera, posed.frame.stamp_ns, reason, detail))

    def settle(self) -> None:
        """The end of one round: bring :attr:`counts` up to what was told."""
        waiting = self._synchronizer.stats().pending
        self._waiting_for_pose = waiting > 0
        pending = waiting + len(self._ready) + (self._at_work is not None)
        with self._lock:
            dropped = Counter(self._dropped)
            received = self._fused + dropped.total() + pending
            # one assignment, so that readers in other threads never see a half-updated count
            self._counts = FrameCounts(received, self._fused, dropped)

    def _make_room(self) -> None:
        """Ready frames are the oldest; of images that wait for each other the synchronizer keeps to the same bound."""
        held_bytes = self._synchronizer.waiting_bytes + self._ready.nbytes
        while held_bytes > self._max_bytes and self._ready:
            lost = self._ready.shed()
            held_bytes -= lost.frame.color.nbytes + lost.frame.depth_m.nbytes
            detail = f"images of more than {self._max_bytes / 2**20:g} MiB wait"
            self._drop_frame(lost, DropReason.QUEUE_FULL, detail)
        with self._lock:
            self._held_bytes = held_bytes

    def _leave_behind_jumps(self) -> None:
        for jump in self._synchronizer.take_jumps():
            for posed in self._ready.take_all_of(jump.cameras):
                self._drop_frame(posed, DropReason.TIME_JUMP, "was ready when time went on elsewhere")
            self._jumps.append(jump)

    # ---- decoding

    def _decode(self, received: Received, now_ns: int) -> None:
        camera, stamp_ns = received.camera, stamp_to_ns(received.message.header.stamp)
        if received.kind == "info":
            self._synchronizer.add_camera_info(camera, stamp_ns, self._calibration(received), now_ns)
        elif received.kind == "depth_info":
            self._calibration(received)
        elif received.kind == "color":
            self._name_frame(camera, received.message.header.frame_id)
            self._synchronizer.add_color(camera, stamp_ns, self._color(received), now_ns, received.sent_ns)
        else:
            self._synchronizer.add_depth(camera, stamp_ns, self._depth(received), now_ns)

    def _look_for_frozen_depth(self, posed: PosedFrame) -> None:
        """The same depth image again and again while the colour image changes: it is mapped wherever the robot goes."""
        frame = posed.frame
        looks = frame.depth_m[::_SAMPLED, ::_SAMPLED].tobytes(), frame.color[::_SAMPLED, ::_SAMPLED].tobytes()
        depth, color, since_ns, count = self._depths.get(frame.camera, (b"", b"", 0, 0))
        key = f"frozen depth of {frame.camera}"
        if looks[0] != depth:
            self._depths[frame.camera] = (*looks, frame.stamp_ns, 0)
            self._health.clear_problem("frames", key)
            return
        count += looks[1] != color
        self._depths[frame.camera] = (*looks, since_ns, count)
        frozen_s = (frame.stamp_ns - since_ns) / 1e9
        if count >= _FROZEN_FRAMES and frozen_s >= _FROZEN_S:
            words = f"camera {frame.camera!r}: depth is the same for {frozen_s:.1f} s while colour goes on: it hangs"
            self._health.problem("frames", ERROR, words, key)
            self._log.error(key, words, every_s=30.0)

    def _name_frame(self, camera: str, frame: str) -> None:
        """Of two cameras that name one frame, one is fused where the other is."""
        if self._poses.frames.get(camera) == frame:
            return
        self._poses.frames[camera] = frame
        there = sorted(name for name, other in self._poses.frames.items() if other == frame and frame)
        if len(there) > 1:
            words = f"cameras {', '.join(there)} all name the frame {frame!r}: all but one are fused in the wrong place"
            self._health.problem("frames", WARN, words, f"frame {frame}")
            self._log.warning(f"frame {frame}", words)

    def _color(self, received: Received) -> Any:
        try:
            return color_from_message(received.message)
        except (ValueError, OverflowError) as error:
            return BadImage(str(error))

    def _depth(self, received: Received) -> Any:
        try:
            depth_m = depth_from_message(received.message)
        except (ValueError, OverflowError) as error:
            return BadImage(str(error))
        if self._cameras[received.camera].inf_depth == "unknown":  # the driver means "invalid" by a depth of +Inf
            depth_m = np.where(np.isposinf(depth_m), np.float32(0.0), depth_m)
        return self._in_its_camera(received, depth_m)

    def _in_its_camera(self, received: Received, depth_m: NDArray[np.float32]) -> DepthInput:
        """Depth as it is where it is registered to colour, otherwise with what registers it; or why it cannot be."""
        camera, frame = received.camera, received.message.header.frame_id
        expected, own, color = (
            self._poses.frames.get(camera),
            self._model(camera, "depth_info"),
            self.camera_model(camera),
        )
        elsewhere = bool(expected and frame and frame != expected)
        other_size = color is not None and depth_m.shape != (color.intrinsics.height, color.intrinsics.width)
        if not elsewhere and not (other_size and own is not None):
            return depth_m
        T_color_depth = np.eye(4)
        if elsewhere:
            differs = f"depth is in frame {frame!r}, colour in {expected!r}: to register it"
            if own is None:
                topic = self._cameras[camera].depth_info or f"{camera}.depth_info_topic"
                return BadImage(f"{differs} its camera_info is needed, and none that can be used has come on {topic}")
            mount = self._poses.mount(str(expected), frame, stamp_to_ns(received.message.header.stamp))
            if not isinstance(mount, Found):
                return BadImage(f"{differs} the transform between the two is needed: {mount}")
            T_color_depth = mount.T
        assert own is not None
        return UnregisteredDepth(depth_m, own, T_color_depth)

    def _calibration(self, received: Received) -> CameraModel | BadCalibration:
        which, key = (received.camera, received.kind), camera_info_key(received.message)
        known = self._calibrations.get(which)
        if known is None or known[0] != key:
            known = self._calibrations[which] = key, self._read_calibration(received)
        return known[1]

    def _read_calibration(self, received: Received) -> CameraModel | BadCalibration:
        camera, whose = received.camera, "depth of " if received.kind == "depth_info" else ""
        try:
            model = camera_model(received.message, self._cameras[camera].rectified)
        except (ValueError, OverflowError) as error:
            refused = f"camera_info of {whose}{camera!r} refused: {error}"
            if not whose:  # depth that is registered needs none of its own
                self._health.count("camera_info_refused")
                self._health.problem("frames", ERROR, refused, camera)
            self._log.warning(f"{whose}{camera}: camera_info", refused)
            return BadCalibration(str(error))
        if not whose:
            self._health.clear_problem("frames", camera)
        return model
