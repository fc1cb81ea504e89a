"""MapFrame: poses and stamps go in and come out again, the map's time never goes back, limits name their cause."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_perceptron.geometry.transforms import Intrinsics, make_transform
from embodied_perceptron.scene.map_frame import MapFrame, MapLimitError
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame

S = 1_000_000_000
K = Intrinsics(5.0, 5.0, 2.0, 1.5, 4, 3)
UTM = np.array([448_262.37, 5_411_932.68, 241.5])


def posed(stamp_ns: int, position_m: object = (0.0, 0.0, 1.0), camera: str = "front") -> PosedFrame:
    frame = RgbdFrame(stamp_ns, camera, np.zeros((3, 4, 3), np.uint8), np.ones((3, 4), np.float32), K)
    return PosedFrame(frame, make_transform(np.eye(3), np.asarray(position_m, float)), arrival_ns=7)


def take(frame: MapFrame, it: PosedFrame) -> int:
    """Its time in the map."""
    in_map = frame.enter(it, fresh=False)
    frame.entered(it, in_map)
    back = frame.leave(in_map)
    assert back.frame.stamp_ns == it.frame.stamp_ns
    np.testing.assert_allclose(back.T_world_camera, it.T_world_camera, atol=1e-9)
    return in_map.frame.stamp_ns


def test_near_the_origin_and_with_one_clock_a_frame_is_itself() -> None:
    frame = MapFrame()
    it = posed(5 * S, (900.0, -900.0, 3.0))
    assert frame.enter(it, fresh=True) is it
    assert frame.leave(it) is it


def test_a_map_that_begins_far_away_lies_around_its_anchor() -> None:
    frame = MapFrame()
    in_map = frame.enter(posed(S, UTM), fresh=True)
    np.testing.assert_array_equal(frame.T_world_map[:3, 3], [448_300, 5_411_900, 200])
    np.testing.assert_allclose(in_map.T_world_camera[:3, 3], UTM - frame.T_world_map[:3, 3], atol=1e-9)
    assert in_map.arrival_ns == 7
    frame.entered(posed(S, UTM), in_map)
    far = posed(2 * S, UTM + np.array([7000, 0, 0]))
    frame.enter(far, fresh=False)
    np.testing.assert_array_equal(frame.T_world_map[:3, 3], [448_300, 5_411_900, 200])  # it stays


def test_beyond_the_reach_the_cause_is_named() -> None:
    frame = MapFrame()
    take(frame, posed(S))
    with pytest.raises(MapLimitError, match=r"camera 'front' is at \[8001\.0.*8001 m.*map reaches 8000 m"):
        frame.enter(posed(2 * S, (8001.0, 0, 0)), fresh=False)
    assert take(frame, posed(3 * S)) == 3 * S
    small = MapFrame(500.0)
    take(small, posed(S))
    with pytest.raises(MapLimitError, match="reaches 500 m"):
        small.enter(posed(2 * S, (0, 501.0, 0)), fresh=False)


@pytest.mark.parametrize("to_s", [1, 98, 5000])
def test_stamps_that_go_on_elsewhere_follow_the_newest_of_the_map(to_s: int) -> None:
    frame = MapFrame()
    for i in range(5):
        assert take(frame, posed(100 * S + i)) == 100 * S + i
    frame.forget_stamps("front")
    first = take(frame, posed(to_s * S))
    assert 0 < first - (100 * S + 4) < S // 10
    assert take(frame, posed(to_s * S + S)) == first + S, "and go on from there"
    assert frame.now(to_s * S + 2 * S) == first + 2 * S
    assert frame.stamp_of("front", 100 * S + 2) == 100 * S + 2, "old names hold"
    assert frame.stamp_of("front", first) == to_s * S


def test_cameras_that_jump_together_stay_together_and_one_alone_follows() -> None:
    frame = MapFrame()
    for i in range(3):
        take(frame, posed(100 * S + i * S // 30))
        take(frame, posed(100 * S + i * S // 30, camera="rear"))
    frame.forget_stamps("front")
    front = [take(frame, posed(S + i * S // 30)) for i in range(3)]
    late = take(frame, posed(100 * S + 3 * S // 30, camera="rear"))  # has not jumped yet
    assert late == 100 * S + 3 * S // 30
    frame.forget_stamps("rear")
    assert take(frame, posed(S + 2 * S // 30, camera="rear")) == front[2], "the same moment"
    assert take(frame, posed(S + 3 * S // 30, camera="third")) - front[2] in (S // 30, S // 30 + 1), (
        "a new camera has that clock too"
    )


def test_forgetting_for_nothing_changes_nothing() -> None:
    frame = MapFrame()
    take(frame, posed(100 * S))
    frame.forget_stamps()
    assert take(frame, posed(100 * S + S // 30)) == 100 * S + S // 30


@given(st.lists(st.tuples(st.sampled_from(["front", "rear"]), st.integers(0, 10**12), st.booleans()), max_size=25))
def test_each_camera_s_time_in_the_map_ascends_whatever_its_clock_does(steps: list[tuple[str, int, bool]]) -> None:
    frame = MapFrame()
    stamps: dict[str, int] = {}
    newest: dict[str, int] = {}
    for camera, stamp_ns, jump in steps:
        if camera in stamps and not jump:
            stamp_ns = stamps[camera] + 1 + stamp_ns % S
        frame.forget_stamps(camera if jump else "nobody")
        map_ns = take(frame, posed(stamp_ns, camera=camera))
        assert map_ns > newest.get(camera, -(2**62))
        stamps[camera], newest[camera] = stamp_ns, map_ns


def test_round_trip_and_going_on_after_it() -> None:
    frame = MapFrame()
    for i in range(3):
        it = posed(100 * S + i, UTM)
        frame.entered(it, frame.enter(it, fresh=i == 0))
    frame.forget_stamps()
    newest = take(frame, posed(5 * S, UTM))
    again = MapFrame()
    again.load_json(frame.to_json(), None)
    assert again.to_json() == frame.to_json()
    assert again.stamp_of("front", newest) == 5 * S
    np.testing.assert_array_equal(again.T_world_map, frame.T_world_map)
    assert take(again, posed(3 * S, UTM)) > newest, "an older clock follows the map"
    later = MapFrame()
    later.load_json(frame.to_json(), None)
    assert take(later, posed(900 * S, UTM)) == 900 * S, "a later one is believed"


@pytest.mark.parametrize("text", ["{", "[]", '{"T_world_map": [1], "newest_ns": 1, "spans": {}}', '{"T_world_map": 1}'])
def test_damaged_entries_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"T_world_map|cannot be read"):
        MapFrame().load_json(text, None)


def level(yaw_rad: float, x_m: float = 0.0, y_m: float = 0.0, z_m: float = 0.0) -> np.ndarray:
    c, s = np.cos(yaw_rad), np.sin(yaw_rad)
    return make_transform(np.array([[c, -s, 0], [s, c, 0], [0, 0, 1.0]]), np.array([x_m, y_m, z_m]))


@given(st.floats(-3.1, 3.1), st.floats(-50, 50), st.floats(-50, 50))
def test_a_map_that_was_put_elsewhere_takes_what_is_seen_from_there(yaw: float, x: float, y: float) -> None:
    """A place of the old world seen today from the same place has the same pose in the map, and comes back."""
    old, new = MapFrame(), MapFrame()
    then = posed(S, UTM)
    in_map = old.enter(then, fresh=True)
    old.entered(then, in_map)
    new.load_json(old.to_json(), None)
    T = level(yaw, x, y, 0.3)
    new.put(T)
    now = PosedFrame(then.frame, T @ then.T_world_camera, then.arrival_ns)
    again = new.enter(now, fresh=False)
    np.testing.assert_allclose(again.T_world_camera, in_map.T_world_camera, atol=1e-6)
    np.testing.assert_allclose(new.leave(again).T_world_camera, now.T_world_camera, atol=1e-6)
    np.testing.assert_allclose(
        new.place_in_world(new.place_in_map(then.T_world_camera)), then.T_world_camera, atol=1e-6
    )


def test_a_place_that_is_not_level_or_not_rigid_is_refused() -> None:
    frame = MapFrame()
    tilted = np.eye(4)
    tilted[1:3, 1:3] = [[np.cos(0.1), -np.sin(0.1)], [np.sin(0.1), np.cos(0.1)]]
    with pytest.raises(ValueError, match=r"tilts by 0\.1000 rad"):
        frame.put(tilted)
    with pytest.raises(ValueError, match="place of the map"):
        frame.put(2.0 * np.eye(4))
    np.testing.assert_array_equal(frame.T_world_map, np.eye(4))
