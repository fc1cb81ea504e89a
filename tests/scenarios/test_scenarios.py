"""Every scenario is as it must be; a few in each run, all in the slow one."""

from __future__ import annotations

import numpy as np
import pytest
from support.scenario_world import CAMERA, World, block, chair, look_at
from support.scenarios import FAST, SCENARIOS, Outcome


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in SCENARIOS])
def test_what_must_be_published_when(name):
    assert SCENARIOS[name]().problems() == []


def test_an_outcome_names_what_is_wrong():
    assert Outcome(gone_s=1.0, kept=2, ids=2).problems() == []
    assert Outcome(gone_s=2.5, found_s=float("inf"), kept=1, ids=2, ghosts=1, duplicates=2, hijacked=1).problems() == [
        "gone after 2.5 s, must be 2",
        "found after inf s, must be 2",
        "1 of 2 ids kept",
        "1 ghosts",
        "2 duplicates",
        "1 hijacked",
    ]


def test_the_world_is_where_it_says_it_is():
    """Depth of the pixel in the middle, by hand: a block 1 m deep whose face is 2 m away, then the wall behind."""
    world = World([block("cabinet", (0.0, 0.5), (1.0, 1.0, 2.0))])
    T = look_at((0.0, -2.0, 1.0), (0.0, 0.0, 1.0))
    middle = round(CAMERA.cy), round(CAMERA.cx)
    assert world.frame(T, 1).frame.depth_m[middle] == pytest.approx(2.0, abs=0.02)
    world.things.clear()
    assert world.frame(T, 2).frame.depth_m[middle] == pytest.approx(4.8, abs=0.12)
    world.dropout = 0.1
    missing = world.frame(T, 3).frame.depth_m == 0
    assert 0.07 < missing.mean() < 0.13


def test_boxes_of_things_hold_their_blocks():
    thing = chair((0.3, -0.2), 0.4)
    box = thing.box()
    assert box[3:6] == pytest.approx([0.5, 0.5, 0.92])
    assert box[:3] == pytest.approx([0.3, -0.2, 0.46])
    assert np.cos(4 * (box[6] - 0.4)) == pytest.approx(1.0)  # a square: any quarter turn
