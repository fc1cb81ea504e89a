"""StampJudge: what is odd, what has moved, and that one stamp alone never moves a stream."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from embodied_perceptron.sensors.poses import EVIDENCE, StampJudge

S = 1_000_000_000
PERIOD = S // 30


def steady(judge: StampJudge, count: int = 10, start_ns: int = 100 * S, now_ns: int = 7 * S) -> None:
    for i in range(count):
        assert judge.judge(start_ns + i * PERIOD, now_ns + i * PERIOD) == "fits"


def test_the_first_stamp_fits_whatever_it_is_and_late_ones_within_the_jump_fit() -> None:
    judge = StampJudge()
    steady(judge)
    newest = judge.newest_ns
    assert newest == 100 * S + 9 * PERIOD
    assert judge.judge(newest - S, 8 * S) == "fits"
    assert judge.newest_ns == newest


def test_a_stretch_of_odd_stamps_moves_the_stream_and_says_how_far() -> None:
    judge = StampJudge()
    steady(judge)
    verdicts = [judge.judge(50 * S + i * PERIOD, 7 * S + (10 + i) * PERIOD) for i in range(EVIDENCE)]
    assert verdicts == ["odd"] * (EVIDENCE - 1) + ["moved"]
    assert judge.shift_ns == 50 * S - (100 * S + 10 * PERIOD), "from where it would be now"
    assert judge.newest_ns == 50 * S + (EVIDENCE - 1) * PERIOD
    assert judge.judge(50 * S + EVIDENCE * PERIOD, 8 * S) == "fits"


def test_a_stamp_that_fits_refutes_the_odd_ones_before_it() -> None:
    judge = StampJudge()
    steady(judge)
    for i in range(20):
        now = 7 * S + (10 + i) * PERIOD
        odd = i % EVIDENCE != EVIDENCE - 1
        stamp = (900 * S if odd else 100 * S) + (10 + i) * PERIOD
        assert judge.judge(stamp, now) == ("odd" if odd else "fits")


def test_stamps_that_do_not_ascend_are_no_evidence() -> None:
    judge = StampJudge()
    steady(judge)
    assert {judge.judge((50 - i) * S, 8 * S) for i in range(20)} == {"odd"}


def test_a_pause_is_no_jump_where_the_receiver_s_clock_paused_too() -> None:
    judge = StampJudge()
    steady(judge)
    assert judge.judge(160 * S, 67 * S) == "fits"
    assert judge.judge(260 * S, 68 * S) == "odd"


def test_without_a_clock_no_stamp_is_too_far_ahead() -> None:
    judge = StampJudge()
    assert [judge.judge(t * S) for t in (1, 1000, 5)] == ["fits", "fits", "odd"]


def test_stamps_that_are_each_a_little_ahead_make_no_right_one_odd() -> None:
    """A tenth of a second, then less than the jump beyond that: together more than the jump."""
    judge = StampJudge()
    steady(judge)
    for i, offset in enumerate((433_333_329, 0, 1_499_999_996)):
        now = 7 * S + (10 + 2 * i) * PERIOD
        assert judge.judge(100 * S + offset, now) == "fits"
        assert judge.judge(100 * S + (11 + 2 * i) * PERIOD, now + PERIOD) == "fits"
    assert judge.judge(98 * S, 8 * S) == "odd"


@given(st.lists(st.integers(-(10**12), 10**12), max_size=30))
def test_single_odd_stamps_never_move_a_stream(offsets: list[int]) -> None:
    """Every second stamp is anything at all."""
    judge = StampJudge()
    steady(judge)
    for i, offset in enumerate(offsets):
        now = 7 * S + (10 + 2 * i) * PERIOD
        judge.judge(100 * S + offset, now)
        assert judge.judge(100 * S + (11 + 2 * i) * PERIOD, now + PERIOD) == "fits"
