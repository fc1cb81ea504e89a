"""The fusion thread, fed directly: every bad input is a counted drop with its reason, and the next frame is fused.

No node and no transport: messages go into the inbox as the executor would put them there.
"""

from __future__ import annotations

import array
import dataclasses
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy")
pytest.importorskip("tf2_msgs")

from rclpy.logging import get_logger
from support.fusion_rig import MS, Rig, Transforms
from support.ros_live import MAPPING_CAMERA, OPTICAL, T_ODOM_CAMERA, scene_depth, wait_until

from embodied_perceptron.geometry.transforms import Intrinsics, make_transform
from embodied_perceptron.relocalisation.search import Hypothesis, PlaceEstimate
from embodied_perceptron.sensors.camera_model import register_depth
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame
from embodied_perceptron.sensors.poses import PoseLookup, TooEarly
from embodied_perceptron_ros.conversion.values import make_camera_info, make_image
from embodied_perceptron_ros.node.inputs import INTERNAL_ERROR, OVERLOAD, ReadyFrames

pytestmark = pytest.mark.ros


@pytest.fixture
def rig():
    rig = Rig()
    yield rig
    rig.close()
    assert not [t for t in threading.enumerate() if t.name == "fusion" and t.is_alive()]


COMPILED_AFTER_WARM_UP = """
import numpy as np
from embodied_perceptron.inference.naming import names_from_boxes
from embodied_perceptron.results import Detections, SemanticVoxels
from embodied_perceptron.apps.warm_up import warm_up
from support.fusion_rig import Rig, compiled
from support.ros_live import scene_depth

rig = Rig()
warm_up(rig.config)
before = compiled()
assert sum(before.values()) > 5, before
for n, (encoding, bytes_per_pixel) in enumerate((("rgb8", 3), ("bgr8", 3), ("mono8", 1), ("rgb8", 3))):
    rig.frame(color={"encoding": encoding, "step": 80 * bytes_per_pixel}, depth=scene_depth(1.4 + 0.2 * n))
    rig.wait(fused=n + 1)
    rig.perceptron.perceive()
# no box of a network may be sure enough for this in the room of the warm-up
names, at = ("chair", "table"), np.zeros((2, 3), np.float32)
cells = SemanticVoxels(0.16, at, np.zeros((2, 3), np.uint8), np.zeros(2, np.int32), np.zeros(2, np.float32), names)
names_from_boxes(cells, Detections(np.array([[0, 0, 0, 1, 1, 1, 0.3, 0, 0]]), np.ones(1), ("table",)))
after = compiled()
rig.close()
assert after == before, {key: (before.get(key), n) for key, n in after.items() if n != before.get(key)}
"""


# a network, walls along no axis, colours of what was found
COMPILED_AFTER_WARM_UP_WITH_NETWORK = """
import numpy as np
from embodied_perceptron.sensors.frame import PosedFrame
from embodied_perceptron.geometry.transforms import make_transform
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.apps.warm_up import warm_up
from support.online_world import config, inference, walk
from support.fusion_rig import compiled

network = inference()
warm_up(config(), network)
before = compiled()
it = Perceptron(config(), inference=network)
T = make_transform(np.array([[0.8, -0.6, 0], [0.6, 0.8, 0], [0, 0, 1.0]]), np.zeros(3))
for frame in walk(3, 8):
    it.integrate(PosedFrame(frame.frame, T @ frame.T_world_camera))
    seen = it.perceive()
for text in ("the red chair", "something to sit on", "the table to the left of the cabinet"):
    it.ground(text, np.eye(4))
it.perceive(window_m=float("inf"))
assert it.prediction.parts[0].scene.manhattan.yaw_rad != 0
after = compiled()
assert after == before, {key: (before.get(key), n) for key, n in after.items() if n != before.get(key)}
"""


@pytest.mark.parametrize(
    "script",
    [pytest.param(COMPILED_AFTER_WARM_UP, marks=pytest.mark.slow), COMPILED_AFTER_WARM_UP_WITH_NETWORK],
    ids=["geometry", "network"],
)
def test_nothing_is_compiled_after_the_warm_up(script):
    """In a process of its own: other tests compile, too."""
    command = [sys.executable, "-c", script]
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_frames_are_fused(rig):
    for i in range(5):
        rig.frame()
        rig.wait(fused=i + 1)
    counts = rig.inbox.counts
    assert (counts.received, counts.fused, counts.pending, counts.dropped) == (5, 5, 0, Counter())
    assert rig.perceptron.newest_frame.frame.stamp_ns == rig.stamp_ns
    assert rig.inbox.camera_frame("camera") == OPTICAL
    wait_until(lambda: rig.worker.map_statistics["voxels"] > 100)


@pytest.mark.parametrize(
    ("spoil", "reason", "match"),
    [
        ({"color": {"encoding": "p010"}}, "bad_frame", "'p010'"),
        ({"color": {"encoding": "nv12"}}, "bad_frame", "step"),
        ({"depth_changes": {"encoding": "8UC3"}}, "bad_frame", "'8UC3'"),
        ({"color": {"data": array.array("B", [1, 2, 3])}}, "bad_frame", "cut short"),
        ({"depth_changes": {"data": array.array("B")}}, "bad_frame", "cut short"),
        ({"color": {"height": 0}}, "bad_frame", "size"),
        ({"color": {"step": 3}}, "bad_frame", "step"),
        ({"info": {"k": [0.0] * 9}}, "bad_frame", "not calibrated"),
        ({"info": {"k": [float("nan")] * 9}}, "bad_frame", "fx"),
        ({"info": {"distortion_model": "magic", "d": [0.1] * 4}}, "bad_frame", "magic"),
        ({"info": {"width": 81}}, "size_mismatch", "81x60"),
        ({"depth": scene_depth()[::2, ::2].copy(), "intrinsics": MAPPING_CAMERA}, "size_mismatch", "40x30"),
    ],
)
def test_bad_messages_are_drops_with_a_reason_and_the_next_frame_is_fused(rig, spoil, reason, match):
    rig.frame()
    rig.wait(fused=1)
    rig.frame(**spoil)
    rig.wait(fused=1, **{reason: 1})
    assert match in rig.why(reason)
    rig.frame()
    rig.wait(fused=2, **{reason: 1})


def test_depth_of_another_frame_is_registered_by_its_calibration_and_transform(rig):
    def frame_of(depth_frame, **changes):
        stamp_ns = rig.stamp_ns + 33 * MS
        header = make_image(np.zeros((1, 1), np.float32), "32FC1", stamp_ns, depth_frame).header
        rig.frame(depth_changes={"header": header}, **changes)
        return stamp_ns

    rig.transforms.beside["depth_frame"] = np.eye(4)
    rig.transforms.beside["depth_frame"][0, 3] = 0.05
    frame_of("depth_frame")
    rig.wait(fused=0, bad_frame=1)
    assert "no usable one has come on /camera/camera_info" in rig.why("bad_frame")
    own = dataclasses.replace(MAPPING_CAMERA, fx=1.05 * MAPPING_CAMERA.fx)
    rig.put("depth_info", make_camera_info(own, rig.stamp_ns, "depth_frame"))
    frame_of("elsewhere")
    rig.wait(fused=0, bad_frame=2)
    assert "the transform between the two is needed" in rig.why("bad_frame")
    frame_of("depth_frame")
    rig.wait(fused=1, bad_frame=2)
    expected = register_depth(scene_depth(), own, MAPPING_CAMERA, rig.transforms.beside["depth_frame"])
    assert (rig.perceptron.newest_frame.frame.depth_m == expected).all()
    assert (expected != scene_depth()).any()


@pytest.mark.parametrize("topic", ["/depth/image_raw", "/camera/aligned_depth_to_color/image_raw"])
def test_aligned_depth_with_the_frame_of_the_depth_camera_is_used_as_it_is(rig, topic):
    camera = rig.inbox._cameras["camera"]
    rig.inbox._cameras["camera"] = dataclasses.replace(camera, depth_topic=topic)
    rig.transforms.beside["depth_frame"] = make_transform(np.eye(3), np.array([0.05, 0.0, 0.0]))
    own = MAPPING_CAMERA if topic == "/depth/image_raw" else dataclasses.replace(MAPPING_CAMERA, fx=90.0)
    rig.put("depth_info", make_camera_info(own, rig.stamp_ns, "depth_frame"))
    for number in (1, 2):
        header = make_image(np.zeros((1, 1), np.float32), "32FC1", rig.stamp_ns + 33 * MS, "depth_frame").header
        rig.frame(depth_changes={"header": header})
        rig.wait(fused=number)
        assert (rig.perceptron.newest_frame.frame.depth_m == scene_depth()).all()


def test_smaller_depth_in_the_frame_of_colour_is_registered(rig):
    small = MAPPING_CAMERA.resized(40, 30)
    depth = make_image(scene_depth()[::2, ::2].copy(), "32FC1", 0, OPTICAL)
    fields = {name: getattr(depth, name) for name in ("height", "width", "step", "data")}
    rig.frame(depth_changes=fields)
    rig.wait(fused=0, size_mismatch=1)
    rig.put("depth_info", make_camera_info(small, rig.stamp_ns, OPTICAL))
    rig.frame(depth_changes=fields)
    rig.wait(fused=1, size_mismatch=1)


@pytest.mark.parametrize("value", [0.0, np.nan, -np.inf])
def test_depth_without_a_valid_pixel_is_not_fused(rig, value):
    rig.frame(depth=np.full((60, 80), value, np.float32))
    wait_until(lambda: sum(rig.inbox.counts.dropped.values()) == 1)
    assert rig.inbox.counts.fused == 0
    rig.frame()
    wait_until(lambda: rig.inbox.counts.fused == 1)


@pytest.mark.parametrize("shape", [(1, 1), (4320, 7680)])
def test_sizes_from_one_pixel_to_8k(rig, shape):
    rig.frame(depth=np.full(shape, 2.0, np.float32))
    rig.wait(fused=1)
    rig.frame()  # calibration changes with the size
    rig.wait(fused=2)


def test_missing_transform_names_the_link(rig):
    rig.transforms.known = False
    rig.frame()
    rig.wait(fused=0, no_transform=1)
    assert OPTICAL in rig.why("no_transform")
    rig.transforms.known = True
    rig.frame()
    rig.wait(fused=1, no_transform=1)


def test_late_transform_is_waited_for_and_wakes_the_worker(rig):
    rig.transforms.early = True
    rig.frame()
    time.sleep(0.05)
    assert rig.inbox.counts.fused == 0
    rig.transforms.early = False
    rig.inbox.transforms_changed()
    rig.wait(fused=1)


def test_transform_that_never_comes(rig):
    rig.transforms.early = True
    rig.frame()
    rig.wait(fused=0, pose_timeout=1)


@pytest.mark.parametrize(("offset_ms", "reason"), [(0, "duplicate"), (-20, "out_of_order")])
def test_stamps_that_do_not_advance(rig, offset_ms, reason):
    stamp_ns = rig.frame()
    rig.wait(fused=1)
    rig.frame(stamp_ns=stamp_ns + offset_ms * MS)
    wait_until(lambda: rig.inbox.counts.dropped[reason] >= 1)
    rig.frame()
    wait_until(lambda: rig.inbox.counts.fused == 2)


def test_calibration_may_change_in_the_middle(rig):
    rig.frame()
    rig.wait(fused=1)
    other = Intrinsics(70.0, 70.0, 39.5, 29.5, 80, 60)
    rig.frame(intrinsics=other)
    rig.wait(fused=2)
    assert rig.perceptron.newest_frame.frame.intrinsics == other


@pytest.mark.parametrize("reset", [True, False])
def test_a_loop_of_the_recording_keeps_the_map_or_resets_it(rig, reset):
    rig.reset_on_jump, rig.backlog = reset, 100
    for i in range(3):
        rig.frame()
        rig.wait(fused=i + 1)
    voxels = rig.perceptron.statistics().voxels
    rig.transforms.T = T_ODOM_CAMERA.copy()
    rig.transforms.T[0, 3] = 5.0  # elsewhere
    rig.stamp_ns = 1_000 * MS
    for _ in range(4):
        rig.frame()
    wait_until(lambda: rig.inbox.counts.fused == 7)
    assert rig.health.counted("time_jumps") >= 1
    after = rig.perceptron.statistics()
    assert (after.frames_fused == 4) is reset
    assert (after.voxels > voxels * 1.5) is not reset
    assert rig.inbox.counts.dropped == {}


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("cameras", [("camera",), ("left", "right")])
def test_a_loop_with_a_backlog_ends_no_camera(monkeypatch, reset, cameras):
    """Frames from before the loop that wait for fusion were fused after it; their stamps then refused all others."""
    rig = Rig(cameras)
    try:
        rig.reset_on_jump, rig.backlog = reset, 100
        whole, fused, permits = rig.perceptron.integrate, [], threading.Semaphore(0)

        def slow(posed, **options):
            assert permits.acquire(timeout=60)
            report = whole(posed, **options)
            fused.append((posed.frame.camera, posed.frame.stamp_ns))
            return report

        monkeypatch.setattr(rig.perceptron, "integrate", slow)
        rig.frame()
        wait_until(lambda: not rig.inbox._undecoded.nbytes)
        for _ in range(6):  # while the first is being fused
            rig.frame()
        permits.release(len(cameras))
        wait_until(lambda: len(rig.inbox._ready) >= 5 * len(cameras))
        rig.stamp_ns = 1_000 * MS
        for _ in range(20):
            rig.frame()
        permits.release(1000)
        wait_until(lambda: rig.inbox.counts.pending == 0 and len(fused) >= 20 * len(cameras), 60, str(rig.inbox.counts))
        for camera in cameras:
            mine = [stamp for name, stamp in fused if name == camera]
            assert mine[-20:] == [1_000 * MS + (i + 1) * 33 * MS for i in range(20)]
        assert set(rig.inbox.counts.dropped) == {"time_jump"}
        assert rig.perceptron.newest_frame.frame.stamp_ns == rig.stamp_ns
    finally:
        rig.close()


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("what", ["both", "color", "clock set back"])
def test_no_message_loses_the_map(rig, reset, what):
    rig.reset_on_jump, rig.backlog = reset, 100
    for i in range(12):
        rig.frame()
        rig.wait(fused=i + 1)
    if what == "clock set back":
        rig.stamp_ns -= 1200 * MS
    elif what == "both":
        rig.frame(stamp_ns=rig.stamp_ns + 1533 * MS)
    else:
        rig.stamp_ns += 33 * MS
        ahead = make_image(np.zeros((1, 1), np.float32), "32FC1", rig.stamp_ns + 1500 * MS, OPTICAL).header
        rig.frame(stamp_ns=rig.stamp_ns, color={"header": ahead})
    for _ in range(5):
        rig.frame()
    wait_until(lambda: rig.inbox.counts.fused == 17, 60, str(rig.inbox.counts))
    assert rig.perceptron.statistics().frames_fused == 17, "nothing was reset"
    lost = {"both": {"odd_stamp": 1}, "color": {"odd_stamp": 1, "no_pair": 1}, "clock set back": {}}[what]
    assert rig.inbox.counts.dropped == lost
    assert (rig.health.counted("time_jumps") > 0) is (what == "clock set back")


def test_a_burst_of_frames_that_waited_for_one_transform_is_no_overload(rig):
    """Nine frames of a 90 Hz camera become ready with each transform of a 10 Hz localisation."""
    rig.frame()
    rig.wait(fused=1)
    rig.transforms.early = True
    for _ in range(9):
        rig.frame()
    wait_until(lambda: rig.inbox.counts.pending == 9)
    time.sleep(0.03)
    rig.transforms.early = False
    rig.inbox.transforms_changed()
    rig.wait(fused=10)


@pytest.mark.parametrize("means_invalid", [True, False])
def test_depth_of_plus_inf_frees_the_view_unless_the_driver_means_invalid(means_invalid):
    """REP-117: +Inf is beyond the range, so what was mapped before is gone."""
    rig = Rig(inf_is_unknown={"camera"} if means_invalid else ())
    rig.backlog = 100  # on a busy machine frames shall wait, not be dropped
    try:
        for i in range(2):
            rig.frame()
            rig.wait(fused=i + 1)
        voxels = rig.perceptron.statistics().voxels
        for _ in range(30):
            rig.frame(depth=np.full((60, 80), np.inf, np.float32))
            time.sleep(0.01)
        wait_until(lambda: rig.inbox.counts.pending == 0)
        assert rig.inbox.counts.fused == (2 if means_invalid else 32)
        left = rig.perceptron.statistics().voxels
        assert left == voxels if means_invalid else left < 0.1 * voxels  # all but the border of the view
    finally:
        rig.close()


def test_the_thread_survives_an_error_after_a_warning_with_a_real_logger(monkeypatch):
    """rclpy raises when one call line logs with another severity than before: the handler of the error died of it."""
    rig = Rig(logger=get_logger("fusion_worker_test"))
    try:
        rig.frame(color={"encoding": "p010"})  # a drop: a warning
        rig.wait(fused=0, bad_frame=1)
        whole = rig.perceptron.integrate

        def broken(posed, **options):
            raise MemoryError("no room")

        monkeypatch.setattr(rig.perceptron, "integrate", broken)
        rig.frame()
        rig.wait(fused=0, bad_frame=1, **{INTERNAL_ERROR: 1})
        rig.log._logged_s.clear()
        rig.stamp_ns = 1_000 * MS  # and the lines of a jump, kept and reset
        monkeypatch.setattr(rig.perceptron, "integrate", whole)
        for reset, stamp_ns in ((False, 1_000 * MS), (True, 1)):
            rig.reset_on_jump, rig.stamp_ns = reset, stamp_ns if not reset else 90_000 * MS
            for _ in range(3):
                rig.frame()
        wait_until(lambda: rig.inbox.counts.fused >= 3)
        assert rig.worker._thread.is_alive()
        assert rig.health.counted("internal_errors") == 1
    finally:
        rig.close()


def test_a_camera_out_of_the_map_s_reach_is_a_drop_that_names_the_cause(rig):
    rig.frame()
    rig.wait(fused=1)
    rig.transforms.T = T_ODOM_CAMERA.copy()
    rig.transforms.T[0, 3] += 9000.0
    rig.frame()
    rig.wait(fused=1, out_of_reach=1)
    assert "the map reaches 8000 m" in rig.why("out_of_reach")


def test_frames_do_not_wait_for_an_image_that_is_encoded(rig, monkeypatch):
    """The image of a keyframe takes as long as several frames to encode; those came late by as much."""
    encoding, go_on = threading.Event(), threading.Event()

    def encode_keyframes():
        encoding.set()
        assert go_on.wait(60)
        return {"encode": 1.0}

    booked: dict[str, float] = {}
    monkeypatch.setattr(rig.perceptron, "encode_keyframes", encode_keyframes)
    monkeypatch.setattr(rig.health, "stages", lambda prefix, stage_ms: booked.update(stage_ms))
    rig.frame()  # the first is a keyframe
    rig.wait(fused=1)
    assert encoding.wait(60)
    for n in range(2, 6):
        rig.frame()
        rig.wait(fused=n)
    assert "points" in booked
    assert "encode" not in booked
    go_on.set()
    wait_until(lambda: "encode" in booked, 60, "the time of encoding")


def test_an_exception_while_encoding_is_reported_and_survived(rig, monkeypatch):
    whole, calls = rig.perceptron.encode_keyframes, []

    def broken():
        calls.append(1)
        raise ZeroDivisionError("nothing to encode")

    monkeypatch.setattr(rig.perceptron, "encode_keyframes", broken)
    rig.frame()
    rig.wait(fused=1)
    wait_until(lambda: rig.health.counted("internal_errors") == 1, 60, "the error")
    monkeypatch.setattr(rig.perceptron, "encode_keyframes", whole)
    rig.frame()
    rig.wait(fused=2)


def test_an_exception_while_fusing_is_reported_and_survived(rig, monkeypatch):
    def broken(posed, **options):
        raise MemoryError("no room")

    whole = rig.perceptron.integrate
    monkeypatch.setattr(rig.perceptron, "integrate", broken)
    rig.frame()
    rig.wait(fused=0, **{INTERNAL_ERROR: 1})
    assert "no room" in rig.why(INTERNAL_ERROR)
    assert rig.health.counted("internal_errors") == 1
    monkeypatch.setattr(rig.perceptron, "integrate", whole)
    rig.frame()
    rig.wait(fused=1, **{INTERNAL_ERROR: 1})


def test_overload_drops_the_oldest_and_fuses_the_newest(rig, monkeypatch):
    rig.backlog = 2
    release, entered = threading.Event(), threading.Event()
    whole = rig.perceptron.integrate

    def slow(posed, **options):
        entered.set()
        assert release.wait(60)
        return whole(posed, **options)

    monkeypatch.setattr(rig.perceptron, "integrate", slow)
    rig.frame()
    assert entered.wait(60)
    for _ in range(8):
        rig.frame()
    release.set()
    rig.wait(fused=3, **{OVERLOAD: 6})
    assert rig.perceptron.newest_frame.frame.stamp_ns == rig.stamp_ns
    assert rig.inbox.counts.received == 9


@pytest.mark.parametrize("cameras", [("front", "rear"), ("a", "b", "c", "d", "e")])
@pytest.mark.parametrize("backlog", [1, 2, 3])
def test_an_overloaded_node_fuses_every_camera_alike(monkeypatch, cameras, backlog):
    """All cameras bring a frame while one is fused, again and again."""
    rig, rounds = Rig(cameras), 30
    rig.backlog = backlog
    whole, fused = rig.perceptron.integrate, Counter()

    def slow(posed, **options):
        fused[posed.frame.camera] += 1
        if fused.total() <= rounds:
            rig.frame()
        return whole(posed, **options)

    monkeypatch.setattr(rig.perceptron, "integrate", slow)
    try:
        rig.frame()
        sent = len(cameras) * (rounds + 1)
        # The worker tells what it counted once per turn: it may be in the last one while it tells of the one before.
        wait_until(lambda: rig.inbox.counts.received == sent and rig.inbox.counts.pending == 0, 60, f"{fused}")
        counts = rig.inbox.counts
    finally:
        rig.close()
    assert set(fused) == set(cameras)
    assert max(fused.values()) - min(fused.values()) <= backlog + 1, fused
    assert counts.fused == fused.total()
    assert counts.fused + counts.dropped[OVERLOAD] == sent


def settled(rig: Rig) -> int:
    counts = rig.inbox.counts
    return counts.fused + sum(counts.dropped.values())


class LateTransforms(Transforms):
    """Knows poses up to a stamp."""

    newest_ns = 0

    def lookup(self, target: str, source: str, stamp_ns: int) -> PoseLookup:
        return super().lookup(target, source, stamp_ns) if stamp_ns <= self.newest_ns else TooEarly(stamp_ns, 0)


@pytest.mark.parametrize("hz", [10, 30, 60])
@pytest.mark.parametrize(("late_s", "least"), [(0.45, 0.95), (0.7, 0.0)])
def test_late_transforms_lose_nothing_at_any_rate(hz, late_s, least):
    """0.45 s late is within ``max_pose_wait_s``: two seconds of frames, on a scripted clock. 0.7 s is not."""
    transforms, clock = LateTransforms(), [100_000 * MS]
    rig = Rig(transforms=transforms, max_pose_wait_s=0.5, now_ns=lambda: clock[0])
    rig.backlog = 100
    sent: list[int] = []
    try:
        for k in range(2 * hz + hz):
            clock[0] += 1000 * MS // hz
            transforms.newest_ns = clock[0] - int(late_s * 1e9)
            if k < 2 * hz:
                sent.append(rig.frame(stamp_ns=clock[0]))
            rig.inbox.transforms_changed()
            # the clock stands until the worker has done what there is to do
            wait_until(lambda: rig.inbox.counts.received == len(sent), 60, "taken from the inbox")
            due = sum(stamp <= clock[0] - int(min(late_s, 0.51) * 1e9) for stamp in sent)
            wait_until(lambda due=due: settled(rig) >= due, 60, "fused or dropped")
        wait_until(lambda: rig.inbox.counts.pending == 0, 60, "settled")
        counts = rig.inbox.counts
        assert counts.fused >= least * len(sent)
        assert counts.dropped == ({} if least else {"pose_timeout": len(sent)})
    finally:
        rig.close()


def test_a_slow_camera_loses_nothing_beside_a_fast_one():
    """One that brings a frame for every fifth of the other has its turn at once."""
    ready, lost, taken = ReadyFrames(), Counter(), Counter()
    for k in range(100):
        ready.extend([posed("fast", k * MS)] + ([posed("slow", k * MS)] if k % 5 == 0 else []))
        while len(ready) > 2:
            lost[ready.shed().frame.camera] += 1
        if k % 2:  # half of what the fast one brings
            taken[ready.take().frame.camera] += 1
    assert lost["slow"] == 0
    assert taken["slow"] == 20
    assert taken["fast"] == 30


def test_frames_of_one_camera_are_fused_in_their_order():
    ready = ReadyFrames()
    ready.extend(posed(camera, k * MS) for k in range(4) for camera in ("a", "b"))
    assert [p.frame.stamp_ns // MS for p in ready.take_all_of({"b"})] == [0, 1, 2, 3]
    assert ready.shed().frame.stamp_ns == 0
    assert [ready.take().frame.stamp_ns // MS for _ in range(len(ready))] == [1, 2, 3]


def posed(camera: str, stamp_ns: int) -> PosedFrame:
    """A frame of few pixels."""
    k = Intrinsics(4.0, 4.0, 1.5, 1.5, 4, 4)
    frame = RgbdFrame(stamp_ns, camera, np.zeros((4, 4, 3), np.uint8), np.ones((4, 4), np.float32), k)
    return PosedFrame(frame, np.eye(4))


def test_frames_are_counted_while_the_robots_place_is_looked_for_and_diagnostics_say_why(rig):
    estimates = [PlaceEstimate(False, None, None, f"words {n}", n) for n in (1, 2)]
    best = Hypothesis(np.eye(4), 1.0, 0.0, 50, 60)
    rig.perceptron.map._search = SearchStandIn([*estimates, PlaceEstimate(True, best, None, "", 3)])
    rig.frame()
    rig.wait(fused=0, looking_for_place=1)
    assert "words 1" in rig.why("looking_for_place")
    assert any("words 1" in words for _, area, words in rig.health.problems() if area == "map")
    rig.frame()
    rig.wait(fused=0, looking_for_place=2)
    rig.frame()
    rig.wait(fused=1, looking_for_place=2)
    wait_until(lambda: not rig.health.problems(), 60, "the problem is over")


class SearchStandIn:
    """Gives one estimate after the other."""

    def __init__(self, estimates):
        self._left = list(estimates)
        self.estimate = self._left[0]

    def look(self, posed):
        self.estimate = self._left.pop(0)
        return self.estimate
