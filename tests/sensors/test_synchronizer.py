"""RgbdSynchronizer: pairing, waiting, every drop with its reason, and that nothing is lost unexplained."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_perceptron.config import SynchronizerConfig
from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.sensors.camera_model import CameraModel
from embodied_perceptron.sensors.frame import PosedFrame
from embodied_perceptron.sensors.poses import Disconnected, Found, Gap, PoseBuffer, PoseLookup, TooEarly, TooOld
from embodied_perceptron.sensors.synchronizer import BadCalibration, BadImage, DropReason, RgbdSynchronizer

MS = 1_000_000
S = 1000 * MS
H, W = 6, 8
INTRINSICS = Intrinsics(10.0, 10.0, 4.0, 3.0, W, H)
OTHER = Intrinsics(12.0, 12.0, 4.0, 3.0, W, H)


class Poses:
    """A pose source that answers what a test says; by default the x of every pose is its stamp in seconds."""

    def __init__(self, answer: Callable[[str, int], PoseLookup] | None = None) -> None:
        self.answer = answer

    def lookup(self, camera: str, stamp_ns: int) -> PoseLookup:
        if self.answer is not None:
            return self.answer(camera, stamp_ns)
        T = np.eye(4)
        T[0, 3] = stamp_ns / S
        return Found(T)


def color(value: int = 0, shape: tuple[int, int] = (H, W)) -> np.ndarray:
    return np.full((*shape, 3), value, np.uint8)


def depth(value: float = 1.0, shape: tuple[int, int] = (H, W)) -> np.ndarray:
    return np.full(shape, value, np.float32)


def make(poses: Poses | None = None, **config: float) -> RgbdSynchronizer:
    return RgbdSynchronizer(SynchronizerConfig(**config), poses or Poses())


def balanced(synchronizer: RgbdSynchronizer, *cameras: str) -> None:
    for stats in (synchronizer.stats(), *(synchronizer.stats(c) for c in cameras)):
        assert stats.accepted == stats.emitted + sum(stats.dropped.values()) + stats.pending
        assert stats.pending >= 0


def reasons(synchronizer: RgbdSynchronizer) -> dict[str, int]:
    balanced(synchronizer)
    return dict(synchronizer.stats().dropped)


def stamps(frames: list[PosedFrame]) -> list[int]:
    return [posed.frame.stamp_ns for posed in frames]


# --------------------------------------------------------------------------------------------------------------------
# pairing


@pytest.mark.parametrize("order", ["cdi", "dci", "icd", "idc", "cid", "dic"])
def test_any_order_of_colour_depth_and_calibration(order: str) -> None:
    a = make()
    for part in order:
        assert a.poll(S) == []
        if part == "c":
            a.add_color("cam", S, color(7), S)
        elif part == "d":
            a.add_depth("cam", S, depth(2.0), S)
        else:
            a.add_camera_info("cam", S, INTRINSICS, S)
    (posed,) = a.poll(S)
    assert posed.frame.stamp_ns == S
    assert posed.frame.camera == "cam"
    assert posed.frame.color[0, 0, 0] == 7
    assert posed.frame.depth_m[0, 0] == 2.0
    assert posed.frame.intrinsics == INTRINSICS
    assert posed.T_world_camera[0, 3] == 1.0
    assert a.poll(S) == []
    stats = a.stats()
    assert (stats.accepted, stats.emitted, stats.pending, dict(stats.dropped)) == (1, 1, 0, {})


def test_the_arrival_of_the_colour_image_stays_with_its_frame() -> None:
    a = make()
    a.add_camera_info("cam", 0, INTRINSICS, 0)
    for i in range(2):  # depth first, then colour first
        a.add_depth("cam", (1 + i) * S, depth(), S)
        a.add_color("cam", (1 + i) * S, color(), S, arrival_ns=77 + i)
    a.add_color("cam", 3 * S, color(), S, arrival_ns=79)
    a.add_depth("cam", 3 * S, depth(), S)
    a.add_color("cam", 4 * S, color(), S)
    a.add_depth("cam", 4 * S, depth(), S)
    assert [posed.arrival_ns for posed in a.poll(S)] == [77, 78, 79, 0]


def test_pairs_within_the_tolerance_and_takes_the_pose_at_the_colour_stamp() -> None:
    a = make(pair_tolerance_s=0.02)
    a.add_camera_info("cam", 0, INTRINSICS, 0)
    a.add_depth("cam", S + 4 * MS, depth(), S)
    a.add_color("cam", S, color(), S)
    (posed,) = a.poll(S)
    assert posed.frame.stamp_ns == S
    assert posed.T_world_camera[0, 3] == 1.0


def test_images_of_a_time_that_came_later_swallow_no_frame_of_that_time() -> None:
    """A colour and a depth image stamped ahead, 6 ms apart, were dropped; the frame between them is none of theirs."""
    a = make(pair_tolerance_s=0.02, max_pose_wait_s=0.2, max_pair_wait_s=0.2)
    a.add_camera_info("cam", 0, INTRINSICS, 0)
    ahead = S + 3 * S + 50 * MS
    frames = []
    for i in range(36):
        stamp = S + 100 * i * MS + (3 * MS + 50 * MS if i >= 30 else 0)
        if i == 2:
            a.add_color("cam", ahead, color(), stamp)
        if i == 4:
            a.add_depth("cam", ahead + 6 * MS, depth(), stamp)
        a.add_color("cam", stamp, color(), stamp)
        a.add_depth("cam", stamp, depth(), stamp)
        frames += a.poll(stamp)
    assert len(frames) == 36
    assert reasons(a) == {"odd_stamp": 2}
    assert a.stats().accepted == 38


def test_a_pair_that_may_still_be_bettered_waits_for_the_next_image() -> None:
    a = make(pair_tolerance_s=0.02)
    a.add_camera_info("cam", 0, INTRINSICS, 0)
    a.add_color("cam", S, color(1), S)  # its depth was lost
    a.add_depth("cam", S + 18 * MS, depth(5.0), S)  # belongs to the next colour image
    assert a.poll(S) == []
    a.add_color("cam", S + 33 * MS, color(2), S)
    assert a.stats().dropped == {}
    a.add_depth("cam", S + 51 * MS, depth(6.0), S)
    frames = a.poll(S)
    # 15 ms is nearer than 18 ms: depth 5 goes with the second colour image
    assert [(p.frame.color[0, 0, 0], p.frame.depth_m[0, 0]) for p in frames] == [(2, 5.0)]
    assert reasons(a) == {DropReason.NO_PAIR: 1}


def test_inexact_pairs_of_a_steady_stream_lose_nothing() -> None:
    a = make(pair_tolerance_s=0.02)
    a.add_camera_info("cam", 0, INTRINSICS, 0)
    out = []
    for i in range(30):
        t = S + i * 33 * MS
        a.add_color("cam", t, color(i), t)
        out += a.poll(t)
        a.add_depth("cam", t + 12 * MS, depth(1.0 + i), t + 12 * MS)
        out += a.poll(t + 12 * MS)
    out += a.flush(2 * S)
    assert [int(p.frame.color[0, 0, 0]) for p in out] == list(range(30))
    assert [float(p.frame.depth_m[0, 0]) - 1 for p in out] == list(range(30))
    assert reasons(a) == {}


def test_beyond_the_tolerance_both_images_are_dropped() -> None:
    a = make(pair_tolerance_s=0.02, max_pair_wait_s=0.1)
    a.add_color("cam", S, color(), S)
    a.add_depth("cam", S + 21 * MS, depth(), S)
    assert a.poll(S) == []
    assert reasons(a) == {DropReason.NO_PAIR: 1}, "depth has passed the colour image's stamp"
    a.poll(S + 100 * MS)
    assert reasons(a) == {DropReason.NO_PAIR: 2}
    assert [d.detail for d in a.take_drops()] == [
        "colour without depth; the newest is at 1.021000000",
        "depth without colour; the newest is at 1.000000000",
    ]
    assert a.take_drops() == []


def test_a_lost_image_does_not_hold_back_the_next_frame() -> None:
    a = make()
    a.add_camera_info("cam", 0, INTRINSICS, 0)
    a.add_color("cam", S, color(), S)
    a.add_color("cam", S + 33 * MS, color(), S)
    a.add_depth("cam", S + 33 * MS, depth(), S)
    assert stamps(a.poll(S)) == [S + 33 * MS]
    assert reasons(a) == {DropReason.NO_PAIR: 1}


def test_the_other_image_of_a_dropped_frame_is_not_counted_again() -> None:
    a = make(queue_size=2)
    a.add_camera_info("cam", 0, INTRINSICS, 0)
    for i in range(4):  # all colour first: two find no room
        a.add_color("cam", S + i * 100 * MS, color(), S)
    for i in range(4):
        a.add_depth("cam", S + i * 100 * MS, depth(), S)
    assert stamps(a.poll(S)) == [S + 200 * MS, S + 300 * MS]
    assert reasons(a) == {DropReason.QUEUE_FULL: 2}
    assert a.stats().accepted == 4


# --------------------------------------------------------------------------------------------------------------------
# order, bounds, time


@pytest.mark.parametrize(("again_ns", "reason"), [(S, DropReason.DUPLICATE), (S - 10 * MS, DropReason.OUT_OF_ORDER)])
def test_equal_and_older_stamps_are_dropped_once_per_frame(again_ns: int, reason: str) -> None:
    a = make()
    a.add_camera_info("cam", 0, INTRINSICS, 0)
    a.add_color("cam", S, color(), S)
    a.add_depth("cam", S, depth(), S)
    a.add_color("cam", again_ns, color(), S)
    a.add_depth("cam", again_ns, depth(), S)
    assert stamps(a.poll(S)) == [S]
    assert reasons(a) == {reason: 1}


@pytest.mark.parametrize("order", [*sorted(set(itertools.permutations("ccdd"))), tuple("cccd"), tuple("dddcc")])
@pytest.mark.parametrize("behind", [0, 1, 2])
@pytest.mark.parametrize("depth_late_ns", [0, 4 * MS])
def test_images_that_come_more_than_once_cost_no_frame(order: tuple[str, ...], behind: int, depth_late_ns: int) -> None:
    """Whatever the order, and also where the copies come among the images of later frames."""
    a = make(pair_tolerance_s=0.02)
    a.add_camera_info("cam", 0, INTRINSICS, 0)
    frames: list[PosedFrame] = []
    sent = [(i + behind * (kind in order[:j]), j, kind, i) for i in range(20) for j, kind in enumerate(order)]
    for now, _, kind, i in sorted(sent):
        stamp_ns = S + i * 33 * MS
        if kind == "c":
            a.add_color("cam", stamp_ns, color(i), S + now * 33 * MS)
        else:
            a.add_depth("cam", stamp_ns + depth_late_ns, depth(), S + now * 33 * MS)
        frames += a.poll(S + now * 33 * MS)
    frames += a.flush(3 * S)
    assert stamps(frames) == [S + i * 33 * MS for i in range(20)]
    assert [int(posed.frame.color[0, 0, 0]) for posed in frames] == list(range(20))
    assert set(reasons(a)) <= {DropReason.DUPLICATE, DropReason.OUT_OF_ORDER}


def test_a_full_queue_drops_the_oldest() -> None:
    a = make(Poses(lambda _, t: TooEarly(t, None)), queue_size=3)
    a.add_camera_info("cam", 0, INTRINSICS, 0)
    for i in range(10):
        a.add_color("cam", i * 33 * MS, color(), S)
        a.add_depth("cam", i * 33 * MS, depth(), S)
    assert a.poll(S) == []
    assert a.stats().pending == 3
    assert reasons(a) == {DropReason.QUEUE_FULL: 7}
    assert [d.stamp_ns for d in a.take_drops()] == [i * 33 * MS for i in range(7)]


def put(a: RgbdSynchronizer, stamp_ns: int, now_ns: int, camera: str = "cam", depth_ns: int | None = None) -> None:
    a.add_color(camera, stamp_ns, color(), now_ns)
    a.add_depth(camera, stamp_ns if depth_ns is None else depth_ns, depth(), now_ns)


@pytest.mark.parametrize("hz", [10, 30, 60, 90])
def test_a_frame_waits_for_its_pose_whatever_the_rate(hz: int) -> None:
    """Transforms 0.45 s late, which is within ``max_pose_wait_s``; ten frames would be 0.1 s at 90 Hz."""
    now = [0]
    late_ns = 450 * MS
    a = make(Poses(lambda _, t: Found(np.eye(4)) if t <= now[0] - late_ns else TooEarly(t, now[0] - late_ns)))
    a.add_camera_info("cam", 0, INTRINSICS, 0)
    fused: list[int] = []
    sent = [round(i * S / hz) + 1 for i in range(3 * hz)]
    due = list(sent)
    while now[0] < 4 * S:
        while due and due[0] <= now[0]:
            put(a, due.pop(0), now[0])
        fused += stamps(a.poll(now[0]))
        now[0] += 5 * MS
    assert fused == sent
    assert reasons(a) == {}


def test_images_that_wait_are_bounded_by_memory_over_all_cameras() -> None:
    a = make(Poses(lambda _, t: TooEarly(t, None)), queue_mib=1.0, max_pose_wait_s=100.0)
    frame_bytes = 100 * 100 * (3 + 4)
    room = 2**20 // frame_bytes
    for i in range(40):
        for camera in ("left", "right"):
            a.add_color(camera, i * 33 * MS, color(shape=(100, 100)), i * 33 * MS)
            a.add_depth(camera, i * 33 * MS, depth(shape=(100, 100)), i * 33 * MS)
            held = sum(queue.waiting_bytes for queue in a._cameras.values())
            assert held <= 2**20
    assert a.stats().pending in (room - 1, room)
    assert set(reasons(a)) == {DropReason.QUEUE_FULL}
    assert abs(a.stats("left").pending - a.stats("right").pending) <= 1, "the larger queue gives way"
    assert "1 MiB" in a.take_drops()[0].detail


# --------------------------------------------------------------------------------------------------------------------
# odd stamps, and clocks that go on elsewhere


@pytest.mark.parametrize("off_s", [1.5, 3600.0, -1.5, -3600.0])
@pytest.mark.parametrize("both", [True, False])
def test_a_single_odd_stamp_is_a_drop_of_its_own_and_nothing_else_happens(off_s: float, both: bool) -> None:
    a = make()
    a.add_camera_info("cam", 0, INTRINSICS, 0)
    out: list[int] = []
    for i in range(20):
        t = 10_000 * S + i * 33 * MS
        odd = t + round(off_s * S)
        if i == 10:
            put(a, odd, t, depth_ns=odd if both else t)
        else:
            put(a, t, t)
        out += stamps(a.poll(t))
    assert out == [10_000 * S + i * 33 * MS for i in range(20) if i != 10]
    lost = {DropReason.ODD_STAMP: 1} if both else {DropReason.ODD_STAMP: 1, DropReason.NO_PAIR: 1}
    assert reasons(a) == lost
    assert a.stats().time_jumps == 0
    assert a.take_jumps() == []


@pytest.mark.parametrize("step_s", [1.2, -1.2, 3600.0])
def test_a_clock_that_is_set_loses_no_frame_and_is_no_restart(step_s: float) -> None:
    a = make()
    a.add_camera_info("cam", 0, INTRINSICS, 0)
    sent, out = [], []
    for i in range(30):
        now = 10_000 * S + i * 33 * MS
        sent.append(now + (round(step_s * S) if i >= 15 else 0))
        put(a, sent[-1], now)
        out += stamps(a.poll(now))
    assert out == sent
    assert reasons(a) == {}
    assert a.stats().time_jumps == 1
    jumps = a.take_jumps()
    assert [j.restart for j in jumps] == [False, False], "one for each stream"
    assert all(abs(j.shift_ns - step_s * S) < 40 * MS for j in jumps)


def test_one_camera_whose_clock_is_set_back_far_is_no_restart() -> None:
    a = make()
    for camera in ("left", "right"):
        a.add_camera_info(camera, 0, INTRINSICS, 0)
    for i in range(30):
        now = 10_000 * S + i * 33 * MS
        put(a, now - (100 * S if i >= 15 else 0), now, "left")
        put(a, now, now, "right")
        a.poll(now)
    assert [(j.cameras, j.restart) for j in a.take_jumps()] == [(("left",), False)] * 2
    assert reasons(a) == {}


def test_a_loop_of_the_recording_is_a_restart_once_and_nothing_from_before_comes_after_it() -> None:
    """Two cameras; what waits for its pose when the streams go back is dropped, whatever the backlog."""
    newest_ns = [0]
    a = make(Poses(lambda _, t: Found(np.eye(4)) if t <= newest_ns[0] else TooEarly(t, None)), max_pose_wait_s=9.0)
    for camera in ("left", "right"):
        a.add_camera_info(camera, 0, INTRINSICS, 0)
    out: list[tuple[str, int]] = []
    for i in range(60):
        now = 10_000 * S + i * 33 * MS
        looped = i >= 30
        t = S + (i - 30) * 33 * MS if looped else now
        newest_ns[0] = t if looped else now - 300 * MS  # late before the loop: ten frames of each camera wait
        put(a, t, now, "left")
        if not looped or i >= 32:  # the second is behind
            put(a, t, now, "right")
        out += [(p.frame.camera, p.frame.stamp_ns) for p in a.poll(now)]
    for camera, first in (("left", 30), ("right", 32)):
        mine = [t for name, t in out if name == camera]
        back = next(i for i, t in enumerate(mine) if t < 10_000 * S)
        assert all(t < 10_000 * S for t in mine[back:]), "an old frame came out after the loop"
        assert mine[back:] == [S + (i - 30) * 33 * MS for i in range(first, 60)], "no frame of the new time is lost"
    assert set(reasons(a)) == {DropReason.TIME_JUMP}
    assert [j.restart for j in a.take_jumps()].count(True) == 1


def test_a_camera_that_is_silent_does_not_hold_up_the_restart() -> None:
    a = make()
    for camera in ("left", "right"):
        a.add_camera_info(camera, 0, INTRINSICS, 0)
    put(a, 10_000 * S, 10_000 * S, "right")  # and never again
    for i in range(400):
        now = 10_000 * S + i * 33 * MS
        put(a, now - (9000 * S if i >= 380 else 0), now, "left")
        a.poll(now)
    assert [j.restart for j in a.take_jumps()] == [False, True], "with the second stream of the camera that lives"


def test_long_pauses_and_fast_playback_are_no_jumps() -> None:
    a = make()
    a.add_camera_info("cam", 0, INTRINSICS, 0)
    now, t, out, sent = 0, 10 * S, [], []
    for i in range(60):
        pause = 60 * S if i == 20 else 0
        now += 33 * MS + pause
        t += 33 * MS + pause
        if i >= 40:  # 0.5 Hz, played ten times as fast
            now, t = now + 167 * MS, t + 2 * S
        put(a, t, now)
        sent.append(t)
        out += stamps(a.poll(now))
    out += stamps(a.flush(now))
    assert out == sent
    assert a.stats().time_jumps <= 1, "the rate of the fast part is learned once"


def test_a_wrong_calibration_stamp_does_not_hide_the_next_calibration() -> None:
    a = make()
    for i in range(4):
        t = S + i * 33 * MS
        a.add_camera_info("cam", 4000 * S if i == 1 else t, INTRINSICS if i < 1 else OTHER, t)
        put(a, t, t)
    a.poll(2 * S)
    a.add_camera_info("cam", S + 4 * 33 * MS, OTHER, 2 * S)
    put(a, S + 4 * 33 * MS, 2 * S)
    (posed,) = a.poll(2 * S)
    assert posed.frame.intrinsics == OTHER


def test_a_clock_that_jumps_back_restarts_every_camera() -> None:
    a = make(Poses(lambda _, t: TooEarly(t, None)))
    for camera in ("left", "right"):
        a.add_camera_info(camera, 100 * S, INTRINSICS, 100 * S)
        a.add_color(camera, 100 * S, color(), 100 * S)
        a.add_depth(camera, 100 * S, depth(), 100 * S)
    assert a.poll(3 * S) == []
    assert reasons(a) == {DropReason.TIME_JUMP: 2}
    assert a.stats().time_jumps == 1
    assert a.stats().pending == 0


def test_a_small_step_back_of_the_clock_changes_nothing() -> None:
    a = make()
    a.add_camera_info("cam", 0, INTRINSICS, 10 * S)
    a.add_color("cam", S, color(), 10 * S)
    a.add_depth("cam", S, depth(), 10 * S - 20 * MS)
    assert stamps(a.poll(10 * S - 30 * MS)) == [S]
    assert a.stats().time_jumps == 0


# --------------------------------------------------------------------------------------------------------------------
# poses


def test_waits_for_a_late_pose_and_keeps_the_order() -> None:
    base = PoseBuffer()
    a = make(Poses(lambda _, t: base.lookup(t)), max_pose_wait_s=0.5)
    a.add_camera_info("cam", 0, INTRINSICS, 0)
    base.insert(0, np.eye(4))
    for t in (100 * MS, 200 * MS):
        a.add_color("cam", t, color(), t)
        a.add_depth("cam", t, depth(), t)
        assert a.poll(t) == []
    base.insert(150 * MS, np.eye(4))
    assert stamps(a.poll(250 * MS)) == [100 * MS]
    base.insert(250 * MS, np.eye(4))
    assert stamps(a.poll(300 * MS)) == [200 * MS]
    assert reasons(a) == {}


@pytest.mark.parametrize(
    ("answer", "reason", "waits"),
    [
        (TooEarly(S, None), DropReason.POSE_TIMEOUT, True),
        (Disconnected("odom", "cam", "frame 'cam' is unknown"), DropReason.NO_TRANSFORM, True),
        (TooOld(S, 2 * S), DropReason.POSE_TOO_OLD, False),
        (Gap(S, 0, 3 * S), DropReason.POSE_GAP, False),
    ],
)
def test_a_missing_pose_is_a_reason(answer: PoseLookup, reason: str, waits: bool) -> None:
    a = make(Poses(lambda *_: answer), max_pose_wait_s=0.2)
    a.add_camera_info("cam", 0, INTRINSICS, 0)
    a.add_color("cam", S, color(), S)
    a.add_depth("cam", S, depth(), S)
    assert a.poll(S) == []
    assert reasons(a) == ({} if waits else {reason: 1})
    a.poll(S + 199 * MS)
    assert reasons(a) == ({} if waits else {reason: 1})
    a.poll(S + 200 * MS)
    assert reasons(a) == {reason: 1}
    (drop,) = a.take_drops()
    assert str(answer) == drop.detail
    assert "cam 1.000000000 dropped" in str(drop)


def test_a_pose_that_is_not_rigid_is_a_bad_frame() -> None:
    a = make(Poses(lambda *_: Found(np.full((4, 4), np.nan))))
    a.add_camera_info("cam", 0, INTRINSICS, 0)
    a.add_color("cam", S, color(), S)
    a.add_depth("cam", S, depth(), S)
    assert a.poll(S) == []
    assert reasons(a) == {DropReason.BAD_FRAME: 1}
    assert "non-finite" in a.take_drops()[0].detail


def test_flush_hands_out_what_is_ready_and_explains_the_rest() -> None:
    a = make(Poses(lambda _, t: Found(np.eye(4)) if t <= S else TooEarly(t, S)))
    a.add_camera_info("cam", 0, INTRINSICS, 0)
    for t in (S, 2 * S):
        a.add_color("cam", t, color(), t)
        a.add_depth("cam", t, depth(), t)
    a.add_color("cam", 3 * S, color(), 3 * S)
    assert stamps(a.flush(3 * S)) == [S]
    assert reasons(a) == {DropReason.POSE_TIMEOUT: 1, DropReason.NO_PAIR: 1}
    assert a.stats().pending == 0


# --------------------------------------------------------------------------------------------------------------------
# calibration and bad frames


def test_without_calibration_the_frame_waits_and_is_dropped() -> None:
    a = make(max_pair_wait_s=0.3)
    a.add_color("cam", S, color(), S)
    a.add_depth("cam", S, depth(), S)
    assert a.poll(S + 299 * MS) == []
    assert a.stats().pending == 1
    a.poll(S + 300 * MS)
    assert reasons(a) == {DropReason.NO_CAMERA_INFO: 1}


def test_calibration_that_changes_is_counted_and_applied_from_its_stamp_on() -> None:
    a = make()
    out = []
    for i in range(6):
        t = S + i * 33 * MS
        a.add_color("cam", t, color(), t)
        a.add_depth("cam", t, depth(), t)
        out += a.poll(t)  # the calibration of this frame arrives after its images
        a.add_camera_info("cam", t, INTRINSICS if i < 3 else OTHER, t)
        out += a.poll(t)
    assert [p.frame.intrinsics for p in out] == [INTRINSICS] * 3 + [OTHER] * 3
    assert a.stats().calibration_changes == 1
    assert reasons(a) == {}


def test_bad_calibration_spoils_the_frames_of_its_time_and_no_others() -> None:
    a = make()
    out = []
    for i in range(6):
        t = S + i * 33 * MS
        a.add_color("cam", t, color(), t)
        a.add_depth("cam", t, depth(), t)
        out += a.poll(t)  # the calibration of this frame arrives after its images
        a.add_camera_info("cam", t, BadCalibration("fx is zero") if i in (2, 3) else INTRINSICS, t)
        out += a.poll(t)
    assert len(out) == 4
    assert reasons(a) == {DropReason.BAD_FRAME: 2}
    assert {d.detail for d in a.take_drops()} == {"fx is zero"}


def test_calibration_sent_once_does_not_delay_frames() -> None:
    a = make()
    a.add_camera_info("cam", 0, INTRINSICS, 0)
    for i in range(5):
        t = S + i * 33 * MS
        a.add_color("cam", t, color(), t)
        a.add_depth("cam", t, depth(), t)
        assert stamps(a.poll(t)) == [t]


def test_calibration_at_a_low_rate_does_not_delay_frames() -> None:
    a = make()
    for i in range(90):
        t = S + i * 33 * MS
        if i % 30 == 0:
            a.add_camera_info("cam", t, INTRINSICS, t)
        a.add_color("cam", t, color(), t)
        a.add_depth("cam", t, depth(), t)
        assert stamps(a.poll(t)) == [t]


def test_when_per_frame_calibration_stops_the_last_one_is_used_after_the_wait() -> None:
    a = make(max_pair_wait_s=0.1)
    for i in range(4):
        t = S + i * 33 * MS
        a.add_color("cam", t, color(), t)
        a.add_depth("cam", t, depth(), t)
        if i < 3:
            a.add_camera_info("cam", t, INTRINSICS, t)
            assert stamps(a.poll(t)) == [t]
    assert a.poll(t) == []
    assert stamps(a.poll(t + 100 * MS)) == [t]


@pytest.mark.parametrize(
    ("color_shape", "depth_shape"), [((H, W), (H // 2, W // 2)), ((H * 2, W * 2), (H, W)), ((H + 1, W), (H + 1, W))]
)
def test_sizes_that_disagree_are_named(color_shape: tuple[int, int], depth_shape: tuple[int, int]) -> None:
    a = make()
    a.add_camera_info("cam", 0, INTRINSICS, 0)
    a.add_color("cam", S, color(shape=color_shape), S)
    a.add_depth("cam", S, depth(shape=depth_shape), S)
    assert a.poll(S) == []
    assert reasons(a) == {DropReason.SIZE_MISMATCH: 1}
    (drop,) = a.take_drops()
    assert f"colour {color_shape[1]}x{color_shape[0]}" in drop.detail
    assert f"depth {depth_shape[1]}x{depth_shape[0]}" in drop.detail


@pytest.mark.parametrize("value", [np.nan, -1.0, -np.inf])
def test_depth_that_is_not_canonical_is_a_bad_frame(value: float) -> None:
    a = make()
    a.add_camera_info("cam", 0, INTRINSICS, 0)
    a.add_color("cam", S, color(), S)
    a.add_depth("cam", S, depth(value), S)
    a.add_color("cam", 2 * S, color(), 2 * S)
    a.add_depth("cam", 2 * S, depth(), 2 * S)
    assert stamps(a.poll(2 * S)) == [2 * S], "the stream goes on"
    assert reasons(a) == {DropReason.BAD_FRAME: 1}


@pytest.mark.parametrize("bad_color", [True, False])
@pytest.mark.parametrize("other_image_comes", [True, False])
def test_an_undecodable_image_is_one_drop_with_its_reason(bad_color: bool, other_image_comes: bool) -> None:
    a = make()
    a.add_camera_info("cam", 0, INTRINSICS, 0)
    bad = BadImage("image encoding 'yuv' is not supported")
    if bad_color or other_image_comes:
        a.add_color("cam", S, bad if bad_color else color(), S)
    if not bad_color or other_image_comes:
        a.add_depth("cam", S, depth() if bad_color else bad, S)
    assert a.poll(2 * S) == []
    assert reasons(a) == {DropReason.BAD_FRAME: 1}
    assert a.take_drops()[0].detail == bad.reason


def test_distorted_images_are_rectified_before_they_become_frames() -> None:
    model = CameraModel(INTRINSICS, "plumb_bob", (3.0, 0.0, 0.0, 0.0))
    rng = np.random.default_rng(0)
    raw_color, raw_depth = rng.integers(0, 255, (H, W, 3), np.uint8), rng.uniform(1, 2, (H, W)).astype(np.float32)
    a = make()
    a.add_camera_info("cam", 0, model, 0)
    a.add_color("cam", S, raw_color, S)
    a.add_depth("cam", S, raw_depth, S)
    (posed,) = a.poll(S)
    expected_color, expected_depth = model.rectify(raw_color, raw_depth)
    np.testing.assert_array_equal(posed.frame.color, expected_color)
    np.testing.assert_array_equal(posed.frame.depth_m, expected_depth)
    assert (posed.frame.depth_m != raw_depth).any()


@pytest.mark.parametrize(("height", "width"), [(1, 1), (4320, 7680)])
def test_the_smallest_and_the_largest_image(height: int, width: int) -> None:
    a = make()
    a.add_camera_info("cam", 0, Intrinsics(500.0, 500.0, width / 2, height / 2, width, height), 0)
    a.add_color("cam", S, np.zeros((height, width, 3), np.uint8), S)
    a.add_depth("cam", S, np.ones((height, width), np.float32), S)
    assert stamps(a.poll(S)) == [S]


# --------------------------------------------------------------------------------------------------------------------
# several cameras


def test_cameras_do_not_disturb_each_other() -> None:
    a = RgbdSynchronizer(SynchronizerConfig(), Poses(), ["left", "right"])
    a.add_camera_info("left", 0, INTRINSICS, 0)
    a.add_camera_info("right", 0, OTHER, 0)
    a.add_color("left", 2 * S, color(), S)
    a.add_depth("right", S, depth(), S)
    a.add_color("right", S, color(), S)
    a.add_depth("left", 2 * S, depth(), S)
    frames = a.poll(S)
    assert [(p.frame.camera, p.frame.stamp_ns, p.frame.intrinsics) for p in frames] == [
        ("right", S, OTHER),
        ("left", 2 * S, INTRINSICS),
    ]
    with pytest.raises(KeyError, match="unknown camera 'rear'; known: left, right"):
        a.add_color("rear", S, color(), S)
    with pytest.raises(KeyError, match="rear"):
        a.stats("rear")
    balanced(a, "left", "right")


def test_a_waiting_camera_does_not_hold_back_another() -> None:
    a = make(Poses(lambda c, t: TooEarly(t, None) if c == "left" else Found(np.eye(4))))
    for camera in ("left", "right"):
        a.add_camera_info(camera, 0, INTRINSICS, 0)
        a.add_color(camera, S, color(), S)
        a.add_depth(camera, S, depth(), S)
    assert [p.frame.camera for p in a.poll(S)] == ["right"]


# --------------------------------------------------------------------------------------------------------------------
# the invariant, under anything

event = st.tuples(
    st.sampled_from(["color", "depth", "info", "info2", "bad", "poll", "big"]),
    st.sampled_from(["left", "right"]),
    st.one_of(st.integers(0, 60), st.integers(0, 600)),  # stamp, in units of 10 ms; sometimes jumps
    st.integers(-3, 30),  # advance of the clock, in units of 10 ms
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(event, max_size=60),
    st.integers(1, 4),  # 4 = not bounded
    st.sampled_from([0.0, 0.02, 0.1]),
    st.lists(st.sampled_from(["found", "early", "old", "gap", "apart"]), min_size=1, max_size=7),
)
def test_nothing_is_lost_unexplained(events, queue_size, tolerance, answers) -> None:  # type: ignore[no-untyped-def]
    def lookup(camera: str, stamp: int) -> PoseLookup:
        kind = answers[(stamp // MS) % len(answers)]
        return {
            "found": Found(np.eye(4)),
            "early": TooEarly(stamp, None),
            "old": TooOld(stamp, stamp + 1),
            "gap": Gap(stamp, stamp - 1, stamp + 1),
            "apart": Disconnected("odom", camera, "unknown"),
        }[kind]

    bound = queue_size if queue_size < 4 else 0
    a = make(Poses(lookup), queue_size=bound, pair_tolerance_s=tolerance, max_pose_wait_s=0.1)
    now, out, dropped = S, [], 0
    last: dict[str, int] = {}
    jumps = 0

    def took(frames: list[PosedFrame]) -> None:
        nonlocal jumps
        if a.stats().time_jumps != jumps:
            last.clear()
            jumps = a.stats().time_jumps
        for p in frames:
            assert p.frame.stamp_ns > last.get(p.frame.camera, -1), "each camera's frames come in order"
            last[p.frame.camera] = p.frame.stamp_ns
        out.extend(frames)

    for kind, camera, stamp10, advance in events:
        now += advance * 10 * MS
        stamp = stamp10 * 10 * MS
        if kind == "color":
            a.add_color(camera, stamp, color(), now)
        elif kind == "depth":
            a.add_depth(camera, stamp, depth(), now)
        elif kind == "big":
            a.add_depth(camera, stamp, depth(shape=(2 * H, W)), now)
        elif kind == "bad":
            a.add_color(camera, stamp, BadImage("broken"), now)
        elif kind == "poll":
            took(a.poll(now))
        else:
            a.add_camera_info(camera, stamp, INTRINSICS if kind == "info" else OTHER, now)
        balanced(a)
        if bound:
            assert a.stats().pending <= 2 * 2 * (bound + 2), "two more of each stream may be odd"
        dropped += len(a.take_drops())
    took(a.flush(now))
    dropped += len(a.take_drops())
    stats = a.stats()
    assert stats.pending == 0
    assert stats.emitted == len(out)
    assert sum(stats.dropped.values()) == dropped
    assert set(stats.dropped) <= {value for name, value in vars(DropReason).items() if name.isupper()}
    balanced(a)
