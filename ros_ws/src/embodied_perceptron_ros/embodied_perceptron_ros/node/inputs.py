"""Camera topics -> posed frames: subscriptions, and the inbox, the one place where frames wait and are dropped.

Subscription callbacks only hand messages over; the fusion thread decodes them. A frame waits as undecoded messages,
then as images without partner, calibration or pose (:mod:`embodied_perceptron.sensors.synchronizer`), then ready.
Without room the oldest is dropped, of the camera that has most. The reasons are those of
:class:`~embodied_perceptron.sensors.synchronizer.DropReason` and the names below; :meth:`FrameInbox.drop` counts,
explains and logs every drop.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy
from sensor_msgs.msg import CameraInfo

from embodied_perceptron.config import SynchronizerConfig
from embodied_perceptron.recordings.image_codec import combined_images
from embodied_perceptron.sensors.camera_model import CameraModel, UnregisteredDepth, is_aligned
from embodied_perceptron.sensors.frame import PosedFrame
from embodied_perceptron.sensors.poses import CameraPoses, Found, seconds_to_ns
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
from embodied_perceptron_ros.environment import transport_remedy
from embodied_perceptron_ros.node.delivery import DeliveryCount, LostImages, with_info
from embodied_perceptron_ros.node.health import ERROR, WARN, FrameCounts, Health, ThrottledLog
from embodied_perceptron_ros.node.parameters import CALIBRATIONS, CameraParameters, Kind
from embodied_perceptron_ros.node.qos import best_effort_qos, latched_qos, qos_overrides

OVERLOAD = "overload"  # ready, but fusion could not keep up
INTERNAL_ERROR = "internal_error"
TOOK_TOO_LONG = "took_too_long"  # its fusion was given up
OUT_OF_REACH = "out_of_reach"  # too far from the map's origin
SILENT_S = 5.0  # an input without messages for so long is reported
UNDECODED_S = 1.0  # a message that waits for longer (while a map is saved) is dropped when a newer one comes
_MAX_TRANSPORT_S = 10.0  # a longer transport means that the clocks of two machines differ
_POSE_REASONS = (DropReason.NO_TRANSFORM, DropReason.POSE_TIMEOUT, DropReason.POSE_TOO_OLD, DropReason.POSE_GAP)
_SAMPLING = 16  # pixels between those that are compared to find repeated images
_FROZEN_FRAMES, _FROZEN_S = 10, 2.0  # depth that repeats for so many different colour images, and so long
_HOLD_S = 5.0  # how long diagnostics report a missing pose


class Silence:
    """Finds inputs (colour, depth, calibration of each camera) that receive nothing. Not thread-safe.

    Images are missing after :data:`SILENT_S`, or three times their last period if that is longer; calibration only if
    none ever came, since it may be sent once.

    Args:
        topics: with their namespace and after remapping, by camera and kind.
        clock: seconds.
        remedy: what to do about a topic on which nothing has ever come.
        simulated_ns: time on /clock; None = it is not used.
    """

    def __init__(
        self,
        topics: Mapping[tuple[str, Kind], str],
        clock: Callable[[], float] = time.monotonic,
        remedy: Callable[[str], str] = lambda topic: "check the driver, the topic and its QoS",
        simulated_ns: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._clock = clock
        self._began_s = clock()
        self._topics = topics
        self._remedy, self._simulated_ns = remedy, simulated_ns
        self._moved: tuple[int | None, float] = None, self._began_s  # /clock, and since when it has this value
        self._received_s: dict[tuple[str, Kind], float] = {}
        self._period_s: dict[tuple[str, Kind], float] = {}

    def received(self, camera: str, kind: Kind) -> None:
        """Register a message."""
        now_s, key = self._clock(), (camera, kind)
        if key in self._received_s:
            self._period_s[key] = now_s - self._received_s[key]
        self._received_s[key] = now_s

    def ages(self) -> dict[str, float]:
        """Seconds since the last message of each input, by its diagnostics key; -1 = none has come."""
        now_s = self._clock()
        return {
            f"input.{camera}.{kind}_age_s": round(now_s - self._received_s.get((camera, kind), now_s + 1.0), 1)
            for camera, kind in self._topics
        }

    def silent(self) -> list[str]:
        """One message for each missing input; one for all while /clock stands still."""
        now_s, missing = self._clock(), []
        simulated_ns = self._simulated_ns()
        if simulated_ns is None or simulated_ns != self._moved[0]:
            self._moved = simulated_ns, now_s
        for (camera, kind), topic in self._topics.items():
            last_s = self._received_s.get((camera, kind))
            name = {"color": "colour image", "depth": "depth image", "info": "camera_info"}[kind]
            if last_s is None and now_s - self._began_s > SILENT_S:
                since = f"since the node listens, {now_s - self._began_s:.0f} s"
                missing.append(f"camera {camera!r}: no {name} on {topic} {since}: {self._remedy(topic)}")
            elif last_s is not None and kind != "info":
                age_s = now_s - last_s
                if age_s > max(SILENT_S, 3.0 * self._period_s.get((camera, kind), 0.0)):
                    missing.append(f"camera {camera!r}: no {name} on {topic} for {age_s:.0f} s: the driver has stopped")
        still_s = now_s - self._moved[1]
        if missing and still_s > SILENT_S:
            why = "the simulation or the player is paused or has ended" if simulated_ns else "nobody publishes it"
            return [f"/clock has stood still for {still_s:.0f} s: {why}"]
        return missing


class CameraSubscriptions:
    """Subscriptions of all cameras, from activation to deactivation."""

    def __init__(self, node: Node, cameras: tuple[CameraParameters, ...], inbox: FrameInbox, health: Health) -> None:
        self._node = node
        self._inbox = inbox
        self._health = health
        self._subscriptions: list[Any] = []
        self._calibrations: dict[tuple[str, Kind], Any] = {}  # the last one, by camera and kind
        self._latched: dict[tuple[str, Kind], tuple[Any, str, Any]] = {}  # kinds without calibration yet
        topics = {(c.name, k): node.resolve_topic_name(t) for c in cameras for k, (_, t) in c.subscriptions.items()}
        self.silence = Silence(topics, remedy=self._remedy, simulated_ns=self._simulated_ns)
        for camera in cameras:
            for kind, (message_type, topic) in camera.subscriptions.items():
                self._subscribe(camera.name, kind, message_type, topic)
            if camera.depth_info:
                self._subscribe(camera.name, "depth_info", CameraInfo, camera.depth_info)

    def _subscribe(self, camera: str, kind: Kind, message_type: Any, topic: str) -> None:
        delivery = DeliveryCount(partial(self._node.count_publishers, topic))
        callback = with_info(partial(self._receive, kind, camera, delivery))
        # reliability can be overridden (qos_overrides.<topic>.subscription.reliability) where large messages get lost
        self._subscriptions.append(
            self._node.create_subscription(
                message_type, topic, callback, best_effort_qos(), qos_overriding_options=qos_overrides()
            )
        )
        if kind in CALIBRATIONS:
            self._latched[camera, kind] = message_type, topic, callback

    def _remedy(self, topic: str) -> str:
        types = dict(self._node.get_topic_names_and_types())
        if not self._node.count_publishers(topic):
            return combined_images(types) or "nobody publishes it: start the driver, or set the topics of this camera"
        at_topic = combined_images({topic: types.get(topic, ())})
        return at_topic or f"it is published: check its type and QoS; if its images get lost, {transport_remedy()}"

    def _simulated_ns(self) -> int | None:
        clock: Any = self._node.get_clock()
        return clock.now().nanoseconds if clock.ros_time_is_active else None

    def subscribe_latched(self) -> None:
        """Subscribe to calibration that a publisher sent once and keeps for late subscribers."""
        for key in list(self._latched):
            if key in self._calibrations:
                del self._latched[key]
            elif (latched := create_latched_subscription(self._node, *self._latched[key])) is not None:
                self._subscriptions.append(latched)
                del self._latched[key]

    def _receive(self, kind: Kind, camera: str, delivery: DeliveryCount, message: Any, info: Any) -> None:
        self.silence.received(camera, kind)
        now_ns, stamp_ns = time.time_ns(), stamp_to_ns(message.header.stamp)
        if kind in CALIBRATIONS:
            calibration = stamp_ns, camera_info_key(message)
            if self._calibrations.get((camera, kind)) == calibration:
                return  # both subscriptions received it
            self._calibrations[camera, kind] = calibration
        elif missed := delivery.add(info, stamp_ns):
            self._inbox.miss(camera, kind, missed, stamp_ns)
        sent_ns = int(info.get("source_timestamp", now_ns))
        if not 0 <= now_ns - sent_ns <= _MAX_TRANSPORT_S * 1e9:
            sent_ns = now_ns
        if kind == "color":
            self._health.tick(f"input.{camera}")
            self._health.latency("transport", (now_ns - sent_ns) / 1e6)
            age_ns = self._node.get_clock().now().nanoseconds - stamp_ns
            self._health.latency("stamp_age", age_ns / 1e6)  # large for another clock, or a recording
        self._inbox.put(Received(kind, camera, message, sent_ns))

    def close(self) -> None:
        """Destroy the subscriptions."""
        for subscription in self._subscriptions:
            self._node.destroy_subscription(subscription)
        self._subscriptions = []


def create_latched_subscription(node: Node, message_type: Any, topic: str, callback: Any) -> Any:
    """Create an additional transient-local subscription if a publisher of ``topic`` is transient local, else None.

    Other publishers do not match such a subscription, and would log a warning.
    """
    publishers = node.get_publishers_info_by_topic(topic)
    if not any(info.qos_profile.durability == DurabilityPolicy.TRANSIENT_LOCAL for info in publishers):
        return None
    events = SubscriptionEventCallbacks(use_default_callbacks=False)
    return node.create_subscription(message_type, topic, callback, latched_qos(), event_callbacks=events)


# --------------------------------------------------------------------------------------------------------------------
# the inbox


@dataclass(frozen=True, eq=False)
class Received:
    """One message as it came.

    Attributes:
        kind, camera: what it is.
        message: sensor_msgs Image, CompressedImage or CameraInfo.
        sent_ns: wall clock when it was published; its arrival if the clocks differ.
    """

    kind: Kind
    camera: str
    message: Any
    sent_ns: int

    @property
    def nbytes(self) -> int:
        """Size of the image data."""
        return len(getattr(self.message, "data", ()))


class UndecodedMessages:
    """Queue of messages in order of arrival. Not thread-safe."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[int, tuple[Received, float]] = OrderedDict()  # number -> message, arrival
        self._of_kind: dict[tuple[str, str], deque[int]] = {}
        self._next = 0
        self.nbytes = 0

    def put(self, received: Received, now_s: float) -> None:
        """Append a message."""
        self._of_kind.setdefault((received.camera, received.kind), deque()).append(self._next)
        self._waiting[self._next] = received, now_s
        self._next += 1
        self.nbytes += received.nbytes

    def shed(self, camera: str, kind: str, before_s: float, max_bytes: int) -> list[Received]:
        """Remove messages of this camera and kind that came before ``before_s``, then the oldest of all while the total
        exceeds ``max_bytes``. One message always stays."""
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
        """Remove all messages, in order of arrival."""
        taken = [received for received, _ in self._waiting.values()]
        self._waiting.clear()
        self._of_kind.clear()
        self.nbytes = 0
        return taken


class ReadyFrames:
    """Posed frames that wait for fusion. Cameras take turns, so that under overload each gets the same share."""

    def __init__(self) -> None:
        self._frames: list[PosedFrame] = []  # oldest first
        self._turns: dict[str, int] = {}  # camera -> number of its last turn
        self._turn = 0

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def nbytes(self) -> int:
        """Size of all images."""
        return sum(posed.frame.color.nbytes + posed.frame.depth_m.nbytes for posed in self._frames)

    def extend(self, frames: Iterable[PosedFrame]) -> None:
        """Append frames; those of one camera come in order of their stamps."""
        self._frames.extend(frames)

    def take(self) -> PosedFrame:
        """Remove the oldest frame of the camera served longest ago. Raises ValueError when none waits."""
        index = min(range(len(self._frames)), key=lambda i: self._last_turn(self._frames[i].frame.camera))
        self._turn += 1
        self._turns[self._frames[index].frame.camera] = self._turn
        return self._frames.pop(index)

    def shed(self) -> PosedFrame:
        """Remove the oldest frame of the camera with most frames; on a tie, of the camera served last."""
        waiting = Counter(posed.frame.camera for posed in self._frames)
        camera = max(waiting, key=lambda name: (waiting[name], self._last_turn(name)))
        return self._frames.pop(next(i for i, posed in enumerate(self._frames) if posed.frame.camera == camera))

    def take_all_of(self, cameras: Collection[str]) -> list[PosedFrame]:
        """Remove all frames of some cameras."""
        taken = [posed for posed in self._frames if posed.frame.camera in cameras]
        self._frames = [posed for posed in self._frames if posed.frame.camera not in cameras]
        return taken

    def _last_turn(self, camera: str) -> int:
        return self._turns.get(camera, 0)


class FrameInbox:
    """Messages in, posed frames out. :meth:`put`, :meth:`miss`, :meth:`wake` and the properties are thread-safe; the
    rest belongs to the fusion thread.

    Bounds: ``config.queue_mib`` for everything that waits, :data:`UNDECODED_S` for an undecoded message,
    ``max_backlog()`` frames that are ready.

    Args:
        cameras: their parameters.
        config: waiting times and memory.
        poses: of the cameras.
        health, log: receive every drop.
        max_backlog: called each time, since the parameter may change.
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
        self._news = threading.Event()
        self._lock = threading.Lock()  # guards the next five, which callbacks and the fusion thread share
        self._undecoded = UndecodedMessages()
        wait_ns = seconds_to_ns(2.0 * max(config.max_pair_wait_s, config.max_pose_wait_s))
        self._lost_images = {name: LostImages(wait_ns) for name in self._cameras}
        self._fused = 0
        self._dropped: Counter[str] = Counter()
        self._held_bytes = 0  # of images and ready frames
        self._synchronizer = RgbdSynchronizer(config, poses, self._cameras, on_drop=self.drop)
        self._ready = ReadyFrames()
        self._late = 0
        self._current: PosedFrame | None = None
        self._jumps: list[TimeJump] = []
        self._calibrations: dict[tuple[str, str], tuple[Any, CameraModel | BadCalibration]] = {}  # by camera and kind
        # by camera: samples of depth and colour, stamp of the first such depth, changes of colour since
        self._depths: dict[str, tuple[bytes, bytes, int, int]] = {}
        self._waiting_for_pose = False
        self._counts = FrameCounts()

    # ---- from any thread

    def put(self, received: Received) -> None:
        """Queue one message."""
        now_s = self._clock()
        with self._lock:
            self._undecoded.put(received, now_s)
            room = self._max_bytes - self._held_bytes
            lost = self._undecoded.shed(received.camera, received.kind, now_s - UNDECODED_S, room)
        for message in lost:
            if message.kind == "color":  # depth without its colour image is counted by the synchronizer
                stamp_ns, detail = stamp_to_ns(message.message.header.stamp), "its message was not decoded in time"
                self.drop(Drop(message.camera, stamp_ns, DropReason.QUEUE_FULL, detail))
        self._news.set()

    def miss(self, camera: str, kind: str, count: int, stamp_ns: int) -> None:
        """Register ``count`` undelivered images before the one of ``stamp_ns``: their frames count as
        :attr:`DropReason.LOST`, whichever half was delivered."""
        with self._lock:
            explained = self._lost_images[camera].miss(kind, count, stamp_ns)
            self._dropped[DropReason.NO_PAIR] -= explained
        if explained:
            self.drop(self._lost(camera, stamp_ns, kind), explained)

    def _lost(self, camera: str, stamp_ns: int, kind: str = "") -> Drop:
        what = {"color": "its colour image was", "depth": "its depth image was", "": "its images were"}[kind]
        detail = f"{what} lost between the driver and this node: {transport_remedy()}"
        return Drop(camera, stamp_ns, DropReason.LOST, detail)

    def wake(self) -> None:
        """End a running :meth:`wait`."""
        self._news.set()

    def transforms_changed(self) -> None:
        """Wake the fusion thread if a frame waits for a transform."""
        if self._waiting_for_pose:
            self._news.set()

    @property
    def counts(self) -> FrameCounts:
        """Frames so far, by outcome."""
        return self._counts

    def camera_frame(self, camera: str) -> str:
        """Optical frame of a camera's images; empty before the first."""
        return self._poses.frames.get(camera, "")

    def camera_model(self, camera: str) -> CameraModel | None:
        """Calibration of a camera; None before the first usable one."""
        return self._model(camera, "info")

    def _model(self, camera: str, kind: Kind) -> CameraModel | None:
        _, calibration = self._calibrations.get((camera, kind), (None, None))
        return calibration if isinstance(calibration, CameraModel) else None

    # ---- from the fusion thread

    def wait(self, idle_s: float, waiting_s: float) -> None:
        """Wait for news: at most ``idle_s``, at most ``waiting_s`` while frames wait for poses, not at all while frames
        are ready."""
        if not self._ready:
            self._news.wait(waiting_s if self._waiting_for_pose else idle_s)
        self._news.clear()

    def take(self, now_ns: int) -> PosedFrame | None:
        """The next frame to fuse, or None. Call :meth:`take_jumps` before fusing it, then :meth:`fused` or
        :meth:`refuse`.

        ``now_ns``: on the clock that bounds waiting.
        """
        self._current = None
        with self._lock:
            messages = self._undecoded.take_all()
        for received in messages:
            self._decode(received, now_ns)
            self._make_room()
        frames = self._synchronizer.poll(now_ns)
        for camera, images in self._lost_images.items():
            with self._lock:
                frames_lost = images.settle(now_ns)
            if frames_lost:
                self.drop(self._lost(camera, images.stamp_ns), frames_lost)
        self._drop_before_jumps()  # before frames of the new time join those of the old
        if frames:
            self._ready.extend(frames)
            # frames that waited for one transform come together: that is no overload
            self._late = self._synchronizer.late
        while len(self._ready) > self._max_backlog() + self._late:
            self._drop_frame(self._ready.shed(), OVERLOAD, "fusion does not keep up with the cameras")
        self._make_room()
        if self._ready:
            self._late = max(self._late - 1, 0)
            self._current = self._ready.take()
            self._check_frozen_depth(self._current)
        return self._current

    def take_jumps(self) -> list[TimeJump]:
        """Time jumps since the last call; the frame of the last :meth:`take` is from after them."""
        jumps, self._jumps = self._jumps, []
        return jumps

    def fused(self) -> None:
        """Count the taken frame as fused."""
        with self._lock:
            self._fused += 1
        self._current = None

    def refuse(self, reason: str, detail: str) -> None:
        """Count the taken frame as dropped."""
        if self._current is not None:
            self._drop_frame(self._current, reason, detail)
            self._current = None

    def drop(self, drop: Drop, frames: int = 1) -> None:
        """Count, explain and log dropped frames of any stage."""
        with self._lock:
            if drop.reason == DropReason.NO_PAIR and self._lost_images[drop.camera].explains(drop.missing):
                drop = self._lost(drop.camera, drop.stamp_ns, drop.missing)
            self._dropped[drop.reason] += frames
        self._health.explain_drop(drop.reason, drop.detail)
        if drop.reason in _POSE_REASONS:
            self._health.problem("transforms", WARN, str(drop), drop.camera, hold_s=_HOLD_S)
        self._log.warning(f"{drop.camera}: {drop.reason}", str(drop))

    def _drop_frame(self, posed: PosedFrame, reason: str, detail: str) -> None:
        self.drop(Drop(posed.frame.camera, posed.frame.stamp_ns, reason, detail))

    def settle(self) -> None:
        """Update :attr:`counts` at the end of one round."""
        waiting = self._synchronizer.stats().pending
        self._waiting_for_pose = waiting > 0
        pending = waiting + len(self._ready) + (self._current is not None)
        with self._lock:
            dropped = +self._dropped
            received = self._fused + dropped.total() + pending
            # one assignment: readers in other threads never see a partial update
            self._counts = FrameCounts(received, self._fused, dropped)

    def _make_room(self) -> None:
        """Drop ready frames, which are the oldest; the synchronizer applies the same bound to its images."""
        held_bytes = self._synchronizer.waiting_bytes + self._ready.nbytes
        while held_bytes > self._max_bytes and self._ready:
            lost = self._ready.shed()
            held_bytes -= lost.frame.color.nbytes + lost.frame.depth_m.nbytes
            detail = f"images of more than {self._max_bytes / 2**20:g} MiB wait"
            self._drop_frame(lost, DropReason.QUEUE_FULL, detail)
        with self._lock:
            self._held_bytes = held_bytes

    def _drop_before_jumps(self) -> None:
        for jump in self._synchronizer.take_jumps():
            for posed in self._ready.take_all_of(jump.cameras):
                self._drop_frame(posed, DropReason.TIME_JUMP, "it was ready when time jumped")
            self._jumps.append(jump)

    # ---- decoding

    def _decode(self, received: Received, now_ns: int) -> None:
        camera, stamp_ns = received.camera, stamp_to_ns(received.message.header.stamp)
        if received.kind == "info":
            self._synchronizer.add_camera_info(camera, stamp_ns, self._calibration(received), now_ns)
        elif received.kind == "depth_info":
            self._calibration(received)
        elif received.kind == "color":
            self._set_frame(camera, received.message.header.frame_id)
            try:
                color: Any = color_from_message(received.message)
            except (ValueError, OverflowError) as error:
                color = BadImage(str(error))
            self._synchronizer.add_color(camera, stamp_ns, color, now_ns, received.sent_ns)
        else:
            self._synchronizer.add_depth(camera, stamp_ns, self._depth(received), now_ns)

    def _check_frozen_depth(self, posed: PosedFrame) -> None:
        """Report a depth image that repeats while colour changes: it would be mapped wherever the robot goes."""
        frame = posed.frame
        samples = frame.depth_m[::_SAMPLING, ::_SAMPLING].tobytes(), frame.color[::_SAMPLING, ::_SAMPLING].tobytes()
        depth, color, since_ns, count = self._depths.get(frame.camera, (b"", b"", 0, 0))
        key = f"frozen depth of {frame.camera}"
        if samples[0] != depth:
            self._depths[frame.camera] = (*samples, frame.stamp_ns, 0)
            self._health.clear_problem("frames", key)
            return
        count += samples[1] != color
        self._depths[frame.camera] = (*samples, since_ns, count)
        frozen_s = (frame.stamp_ns - since_ns) / 1e9
        if count >= _FROZEN_FRAMES and frozen_s >= _FROZEN_S:
            message = f"camera {frame.camera!r}: depth has not changed for {frozen_s:.1f} s while colour has: it hangs"
            self._health.problem("frames", ERROR, message, key)
            self._log.error(key, message, every_s=30.0)

    def _set_frame(self, camera: str, frame: str) -> None:
        """Store a camera's frame, and report cameras that share one."""
        if self._poses.frames.get(camera) == frame:
            return
        self._poses.frames[camera] = frame
        same = sorted(name for name, other in self._poses.frames.items() if other == frame and frame)
        if len(same) > 1:
            message = f"cameras {', '.join(same)} all name the frame {frame!r}: only one of them is fused correctly"
            self._health.problem("frames", WARN, message, f"frame {frame}")
            self._log.warning(f"frame {frame}", message)

    def _depth(self, received: Received) -> DepthInput:
        try:
            depth_m = depth_from_message(received.message)
        except (ValueError, OverflowError) as error:
            return BadImage(str(error))
        if self._cameras[received.camera].inf_depth == "unknown":  # the driver means "invalid" by +Inf
            depth_m = np.where(np.isposinf(depth_m), np.float32(0.0), depth_m)
        return self._with_registration(received, depth_m)

    def _with_registration(self, received: Received, depth_m: NDArray[np.float32]) -> DepthInput:
        """Depth unchanged if it is registered to colour, otherwise with what registers it; or why it cannot be."""
        camera, frame = received.camera, received.message.header.frame_id
        expected = self._poses.frames.get(camera)
        own, color = self._model(camera, "depth_info"), self.camera_model(camera)
        elsewhere = bool(expected and frame and frame != expected)
        other_size = color is not None and depth_m.shape != (color.intrinsics.height, color.intrinsics.width)
        aligned = is_aligned(self._cameras[camera].depth_topic, depth_m.shape, own, color)
        if aligned or (not elsewhere and not (other_size and own is not None)):
            return depth_m
        T_color_depth = np.eye(4)
        if elsewhere:
            differs = f"depth is in frame {frame!r}, colour in {expected!r}: to register it"
            if own is None:
                topic = self._cameras[camera].depth_info or f"{camera}.depth_info_topic"
                return BadImage(f"{differs} its camera_info is needed, but no usable one has come on {topic}")
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
            if not whose:  # registered depth needs no calibration of its own
                self._health.count("camera_info_refused")
                self._health.problem("frames", ERROR, refused, camera)
            self._log.warning(f"{whose}{camera}: camera_info", refused)
            return BadCalibration(str(error))
        if not whose:
            self._health.clear_problem("frames", camera)
        return model
