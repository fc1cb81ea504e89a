"""Images that come twice: every frame is fused once, and each copy is one drop."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from embodied_perceptron.config import SynchronizerConfig
from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.sensors.poses import Found
from embodied_perceptron.sensors.synchronizer import DropReason, RgbdSynchronizer

MS = 1_000_000
H, W = 6, 8


class Poses:
    def lookup(self, camera: str, stamp_ns: int) -> Found:
        return Found(np.eye(4))


def run(order: str, frames: int = 20, apart_ns: int = 0, poll_each: bool = False) -> RgbdSynchronizer:
    """``order`` of the images of each frame: c = colour, d = depth; depth is ``apart_ns`` after colour."""
    a = RgbdSynchronizer(SynchronizerConfig(pair_tolerance_s=0.02), Poses())
    a.add_camera_info("cam", 0, Intrinsics(10.0, 10.0, 4.0, 3.0, W, H), 0)
    for i in range(frames):
        stamp = 1000 * MS + 100 * i * MS
        for image in order:
            if image == "c":
                a.add_color("cam", stamp, np.zeros((H, W, 3), np.uint8), stamp)
            else:
                a.add_depth("cam", stamp + apart_ns, np.ones((H, W), np.float32), stamp)
            if poll_each:
                a.poll(stamp)
        a.poll(stamp)
    a.flush(stamp)
    return a


@pytest.mark.parametrize("apart_ns", [0, 3 * MS])
@pytest.mark.parametrize("poll_each", [False, True])
@pytest.mark.parametrize("order", sorted({"".join(p) for p in itertools.permutations("ccdd")}))
def test_each_image_twice_in_any_order(order: str, poll_each: bool, apart_ns: int) -> None:
    stats = run(order, apart_ns=apart_ns, poll_each=poll_each).stats()
    assert (stats.emitted, dict(stats.dropped)) == (20, {DropReason.DUPLICATE: 20})
    assert stats.accepted == 40


@pytest.mark.parametrize("order", ["cccddd", "dddccc", "ccdddc", "cdcdcd"])
def test_three_copies(order: str) -> None:
    stats = run(order).stats()
    assert (stats.emitted, dict(stats.dropped)) == (20, {DropReason.DUPLICATE: 40})


@pytest.mark.parametrize("order", ["ccd", "cdc", "ddc", "dcd"])
def test_one_of_the_two_comes_twice(order: str) -> None:
    stats = run(order).stats()
    assert (stats.emitted, dict(stats.dropped)) == (20, {DropReason.DUPLICATE: 20})
