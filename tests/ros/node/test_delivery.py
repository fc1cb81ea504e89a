"""Images lost between a driver and the node: found by sequence numbers or stamps, named with the remedy that works."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy")

from support.fusion_rig import MS, Rig

from embodied_perceptron.apps.checks import Severity, first_to_fix
from embodied_perceptron_ros.environment import FASTDDS_PROFILE, transport_remedy
from embodied_perceptron_ros.node.delivery import DeliveryCount, LostImages
from embodied_perceptron_ros.node.live_doctor import check_arrival

pytestmark = pytest.mark.ros
REMEDY = f"export FASTDDS_DEFAULT_PROFILES_FILE={FASTDDS_PROFILE}"


def numbered(number: int, sender: int = 1) -> dict[str, Any]:
    return {"publication_sequence_number": number, "publisher_gid": {"data": [sender]}}


def test_gaps_of_sequence_numbers_are_counted():
    delivery = DeliveryCount()
    assert [delivery.add(numbered(n), 10 * n) for n in (7, 8, 11, 9, 12)] == [0, 0, 2, 0, 0]  # 9 comes late
    assert delivery.add(numbered(1, sender=2), 130) == 0  # another sender counts for itself
    assert delivery.missed == 2


def test_numbers_without_a_sender_count_while_there_is_one_publisher():
    """Jazzy does not tell whose the numbers are."""
    publishers = [1]
    delivery = DeliveryCount(lambda: publishers[0])

    def missed(*numbers: int) -> list[int]:
        return [delivery.add({"publication_sequence_number": n}, 0) for n in numbers]

    assert missed(700, 701, 704, 703, 705) == [0, 0, 2, 0, 0]
    assert missed(2, 3, 5) == [0, 0, 1]  # it was started again
    publishers[0] = 2
    assert missed(6, 9000, 7, 9001) == [0, 0, 0, 0]
    publishers[0] = 1
    assert missed(9002, 9004) == [0, 1]


@pytest.mark.parametrize("info", [{}, {"publication_sequence_number": 7}], ids=["Humble", "Jazzy"])
@pytest.mark.parametrize("lost", [0.0, 0.1, 0.5])
def test_without_numbers_of_one_sender_steps_of_regular_stamps_are_counted(lost, info):
    """Humble gives no numbers, Jazzy does not tell whose. Stamps of real cameras vary by some milliseconds."""
    rng, delivery = np.random.default_rng(3), DeliveryCount()
    sent = [(33 * i + int(rng.integers(-3, 4))) * MS for i in range(200)]
    kept = [stamp for i, stamp in enumerate(sent) if i in (0, 199) or rng.random() >= lost]
    for stamp in kept:
        delivery.add(info, stamp)
    missing = len(sent) - len(kept)
    assert 0.8 * missing <= delivery.missed <= missing  # the first steps only measure the period


@pytest.mark.parametrize("kind", ["irregular", "pause", "backwards"])
def test_stamps_that_tell_nothing_count_nothing(kind):
    rng, delivery = np.random.default_rng(3), DeliveryCount()
    steps = rng.uniform(20, 200, 100) if kind == "irregular" else np.full(100, 33.0)
    steps[50] = {"irregular": 50, "pause": 5000, "backwards": -900}[kind]
    for stamp in np.cumsum(steps):
        delivery.add({}, int(stamp * MS))
    assert delivery.missed == 0


def test_each_lost_image_explains_one_frame_before_or_after():
    images = LostImages(wait_ns=100)
    assert not images.explains("depth")
    assert images.miss("depth", 3, 10) == 1
    assert [images.explains("depth") for _ in range(3)] == [True, True, False]
    assert images.miss("color", 1, 20) == 0, "another image"


def test_frames_that_lost_both_images_count_once_their_halves_cannot_come_any_more():
    images = LostImages(wait_ns=100)
    images.miss("color", 5, 1)
    assert [images.settle(t) for t in (0, 1000)] == [0, 0]
    images.miss("depth", 3, 2)
    assert images.explains("color")  # a depth image without its colour
    assert [images.settle(t) for t in (2000, 2050, 2100, 2300)] == [0, 0, 3, 0]


class Sender:
    """Frames of a rig as the subscriptions receive them: each kind has its own sequence numbers."""

    def __init__(self, rig: Rig, has_numbers: bool) -> None:
        self.rig, self.has_numbers = rig, has_numbers
        self.counts = {kind: DeliveryCount() for kind in ("color", "depth")}
        self.number = 0

    def send(self, *lost: str) -> None:
        self.number += 1
        stamp_ns = self.rig.stamp_ns + 33 * MS
        for kind, count in self.counts.items():
            if kind in lost:
                continue
            missed = count.add(numbered(self.number) if self.has_numbers else {}, stamp_ns)
            if missed:
                self.rig.inbox.miss("camera", kind, missed, stamp_ns)
        put = self.rig.put
        self.rig.put = lambda kind, message: None if kind in lost else put(kind, message)
        self.rig.frame()
        self.rig.put = put


@pytest.mark.parametrize("has_numbers", [True, False])
@pytest.mark.parametrize(
    ("half", "other", "both"), [("depth", "color", 1), ("color", "depth", 2), ("depth", "depth", 0)]
)
def test_frames_that_lost_an_image_in_transport_are_named(has_numbers, half, other, both):
    """A driver with the defaults of Fast DDS: most frames lose one image, some both, and each counts once."""
    rig = Rig()
    rig.backlog = 1000
    try:
        sender = Sender(rig, has_numbers)
        for _ in range(12):
            sender.send()
        losses = [(half,), (), (other,), *([("color", "depth")] * both), (), (half,), ()]
        for lost in losses:
            sender.send(*lost)
        rig.wait(fused=15, lost_on_the_way=3 + both)
        assert REMEDY in rig.why("lost_on_the_way")
        assert "terminal of the driver" in rig.why("lost_on_the_way")
    finally:
        rig.close()


def test_images_that_were_never_sent_stay_frames_without_partner():
    rig = Rig()
    try:
        for count in range(3):
            rig.frame()
            rig.wait(fused=count + 1)
        put = rig.put
        rig.put = lambda kind, message: None if kind == "depth" else put(kind, message)
        rig.frame()
        rig.put = put
        rig.frame()
        rig.wait(fused=4, no_pair=1)
    finally:
        rig.close()


@pytest.mark.parametrize(("missed", "severity"), [(1, Severity.WARNING), (60, Severity.ERROR)])
def test_the_doctor_names_the_loss_and_the_senders_profile(missed, severity):
    (finding,) = check_arrival("/color", 1, 70, 5.0, missed)
    assert finding.severity == severity
    assert f"{missed} of {70 + missed} messages were sent but did not arrive" in finding.message
    assert first_to_fix([finding]) is finding
    assert REMEDY in finding.remedy
    (silent,) = check_arrival("/color", 1, 0, 5.0)
    assert REMEDY in silent.remedy


def test_the_remedy_is_that_of_the_middleware_in_use():
    assert REMEDY in transport_remedy({})
    assert REMEDY in transport_remedy({"RMW_IMPLEMENTATION": "rmw_fastrtps_cpp"})
    assert "rmw_cyclonedds_cpp larger buffers" in transport_remedy({"RMW_IMPLEMENTATION": "rmw_cyclonedds_cpp"})
