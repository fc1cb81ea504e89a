"""PoseBuffer: interpolation against hand-computed poses, and every rule of its contract."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_perceptron.geometry.transforms import make_transform, quaternion_to_rotation, rotation_angle_rad
from embodied_perceptron.sensors.poses import Found, Gap, PoseBuffer, TooEarly, TooOld, format_stamp

S = 1_000_000_000


def rot_z(angle: float) -> np.ndarray:
    return quaternion_to_rotation(np.array([0.0, 0.0, np.sin(angle / 2), np.cos(angle / 2)]))


def pose(x: float = 0.0, yaw: float = 0.0) -> np.ndarray:
    return make_transform(rot_z(yaw), np.array([x, 0.0, 0.0]))


def test_interpolates_translation_linearly_and_rotation_on_the_sphere() -> None:
    buffer = PoseBuffer()
    buffer.insert(1 * S, pose(0.0, 0.0))
    buffer.insert(2 * S, pose(4.0, 2.0))
    found = buffer.lookup(int(1.25 * S))
    assert isinstance(found, Found)
    np.testing.assert_allclose(found.T, pose(1.0, 0.5), atol=1e-12)


def test_interpolation_takes_the_short_way_round() -> None:
    buffer = PoseBuffer()
    buffer.insert(0, pose(yaw=3.0))
    buffer.insert(S, pose(yaw=-3.0))
    found = buffer.lookup(S // 2)
    assert isinstance(found, Found)
    np.testing.assert_allclose(found.T[:3, :3], rot_z(np.pi), atol=1e-9)


def test_exact_stamp_returns_the_pose_itself() -> None:
    buffer = PoseBuffer()
    for i in range(5):
        buffer.insert(i * S // 10, pose(float(i)))
    found = buffer.lookup(3 * S // 10)
    assert isinstance(found, Found)
    np.testing.assert_array_equal(found.T, pose(3.0))


def test_never_extrapolates() -> None:
    buffer = PoseBuffer(name="base")
    assert buffer.lookup(5) == TooEarly(5, None, "base")
    buffer.insert(10 * S, pose())
    assert isinstance(buffer.lookup(10 * S), Found)
    assert buffer.lookup(10 * S + 1) == TooEarly(10 * S + 1, 10 * S, "base")
    assert buffer.lookup(10 * S - 1) == TooOld(10 * S - 1, 10 * S, "base")
    assert "10.000000001" in str(buffer.lookup(10 * S + 1))
    assert "before the oldest" in str(buffer.lookup(1))


def test_gap_is_not_interpolated_over() -> None:
    buffer = PoseBuffer(max_gap_s=0.5)
    buffer.insert(0, pose())
    buffer.insert(S // 2, pose())
    buffer.insert(2 * S, pose())
    assert isinstance(buffer.lookup(S // 4), Found)
    assert buffer.lookup(S) == Gap(S, S // 2, 2 * S)
    assert isinstance(buffer.lookup(2 * S), Found), "the pose at the far side itself is known"
    assert "1.500 s apart" in str(buffer.lookup(S))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_refuses_poses_that_are_not_finite(bad: float) -> None:
    T = pose()
    T[1, 3] = bad
    buffer = PoseBuffer(name="base")
    with pytest.raises(ValueError, match=r"pose of base at 7\.000000000 has non-finite"):
        buffer.insert(7 * S, T)
    assert len(buffer) == 0


def test_refuses_a_rotation_that_is_not_one() -> None:
    T = pose()
    T[:3, :3] *= 1.1
    with pytest.raises(ValueError, match="not a rigid transform"):
        PoseBuffer().insert(0, T)


def test_equal_stamps_replace() -> None:
    buffer = PoseBuffer()
    assert buffer.insert(S, pose(1.0)) == "added"
    assert buffer.insert(S, pose(2.0)) == "replaced"
    assert len(buffer) == 1
    found = buffer.lookup(S)
    assert isinstance(found, Found)
    assert found.T[0, 3] == 2.0


def test_out_of_order_within_the_history_is_sorted_in() -> None:
    buffer = PoseBuffer()
    buffer.insert(0, pose(0.0))
    buffer.insert(S, pose(1.0))
    assert buffer.insert(S // 2, pose(5.0)) == "added"
    found = buffer.lookup(S // 4)
    assert isinstance(found, Found)
    assert found.T[0, 3] == pytest.approx(2.5)


def test_history_is_bounded_and_whole() -> None:
    buffer = PoseBuffer(history_s=1.0)
    for i in range(10_000):
        buffer.insert(i * S // 100, pose(float(i)))
        assert len(buffer) <= 2 * 102 + 64
    newest = buffer.newest_ns
    assert newest is not None
    assert isinstance(buffer.lookup(newest - S), Found)
    assert isinstance(buffer.lookup(newest - 5 * S), TooOld)
    assert buffer.insert(newest - S - 1, pose()) == "ignored"


def test_stored_poses_are_copies() -> None:
    T = pose(1.0)
    buffer = PoseBuffer()
    buffer.insert(0, T)
    T[0, 3] = 9.0
    found = buffer.lookup(0)
    assert isinstance(found, Found)
    assert found.T[0, 3] == 1.0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 400), min_size=1, max_size=20, unique=True),
    st.integers(-10, 420),
    st.randoms(use_true_random=False),
)
def test_agrees_with_a_plain_search_in_any_order_of_insertion(stamps, asked, random) -> None:  # type: ignore[no-untyped-def]
    poses = {t: pose(t**1.1, 0.005 * t) for t in stamps}
    shuffled = list(stamps)
    random.shuffle(shuffled)
    buffer = PoseBuffer(history_s=None)
    for t in shuffled:
        buffer.insert(t, poses[t])
    before = max((t for t in stamps if t <= asked), default=None)
    after = min((t for t in stamps if t >= asked), default=None)
    answer = buffer.lookup(asked)
    if before is None:
        assert answer == TooOld(asked, min(stamps))
    elif after is None:
        assert answer == TooEarly(asked, max(stamps))
    else:
        f = 0.0 if before == after else (asked - before) / (after - before)
        assert isinstance(answer, Found)
        expected_x = (1 - f) * poses[before][0, 3] + f * poses[after][0, 3]
        assert answer.T[0, 3] == pytest.approx(expected_x, abs=1e-9)
        yaw = 0.005 * ((1 - f) * before + f * after)
        assert rotation_angle_rad(answer.T[:3, :3].T @ rot_z(yaw)) < 1e-6


def test_format_stamp_is_exact() -> None:
    assert format_stamp(1_700_000_000_123_456_789) == "1700000000.123456789"
    assert format_stamp(-1) == "-0.000000001"


@pytest.mark.parametrize("name", ["history_s", "max_gap_s"])
def test_negative_limits_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        PoseBuffer(**{name: -1.0})
