"""People are kept out of the map: a walking block that a detector calls a person, before a wall."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from support.lift_world import THINGS, K, KnowingDetector, config, no_detections, photograph
from support.online_world import look_at
from support.onnx_files import write_constant_model

from embodied_perceptron.config import ConfigError, LiftOptions
from embodied_perceptron.detection2d.detectors import COCO_CLASSES
from embodied_perceptron.detection2d.loading import lift_from_options
from embodied_perceptron.detection2d.persons import RATE_HZ, PersonMask, person_mask
from embodied_perceptron.detection2d.pipeline import DetectionLift
from embodied_perceptron.perceptron import Perceptron

EYE = look_at(np.array([1.8, 0.0, 1.4]), [-2.0, 0.0, 0.9])
HZ = 15
NAMES = (*THINGS, "person")
WALL = (np.array([-2.03, -0.7, 0.3]), np.array([-1.97, 0.7, 1.6]))  # what the person walks before


def walker(second, speed=0.9):
    """A block of a person's size, one metre before the wall."""
    y = -0.9 + speed * second
    return [((-1.15, y - 0.2, 0.0), (-0.85, y + 0.2, 1.7))]


@pytest.fixture(scope="module")
def walk():
    """Two seconds, somebody walking through the picture of a camera that stands still."""
    frames, shown = [], {}
    for i in range(2 * HZ):
        stamp_ns = 1_000_000_000 + i * 1_000_000_000 // HZ
        posed, seen = photograph(EYE, stamp_ns, {"person": walker(i / HZ)})
        frames.append(posed)
        shown[stamp_ns] = np.where(seen == 0, len(THINGS), -1)
    return frames, shown


def mapped(frames, mask):
    # without clearing: nothing that was fused is taken away again, whoever walks on
    settings = replace(config(), volume=replace(config().volume, clearing=False))
    perceptron = Perceptron(settings, lift=DetectionLift(persons=mask))
    for posed in frames:
        perceptron.integrate(posed)
    return perceptron


def inside(perceptron, low, high):
    points = perceptron.volume.snapshot().mean_point_m
    return int(((points > low) & (points < high)).all(axis=1).sum())


CORRIDOR = (np.array([-1.3, -1.9, 0.1]), np.array([-0.7, 1.9, 1.9]))


def test_a_person_walking_by_leaves_nothing_and_the_wall_behind_is_mapped(walk):
    frames, shown = walk
    mask = PersonMask([lambda: KnowingDetector(shown, names=NAMES)])
    perceptron = mapped(frames, mask)
    assert inside(perceptron, *CORRIDOR) == 0
    without = mapped([photograph(EYE, 1, {})[0]], None)
    assert inside(perceptron, *WALL) > 0.98 * inside(without, *WALL)
    said = mask.statistics()
    assert said.pictures == pytest.approx(2 * RATE_HZ, abs=1)
    assert said.persons == said.pictures
    assert said.frames == len(frames)
    assert said.pixels > 1000 * len(frames)
    # the same walk, with people as things
    assert inside(mapped(frames, None), *CORRIDOR) > 1000


def test_somebody_whom_the_detector_misses_for_a_moment_stays_out(walk):
    frames, shown = walk

    def blinking(frame, found):
        return [] if (frame.stamp_ns // 200_000_000) % 2 == 0 else [(name, box, 0.9) for name, box in found]

    mask = PersonMask([lambda: KnowingDetector(shown, blinking, NAMES)])
    perceptron = mapped(frames, mask)
    assert mask.statistics().persons < mask.statistics().pictures
    assert inside(perceptron, *CORRIDOR) == 0


def test_who_has_left_hides_nothing_for_long(walk):
    frames, shown = walk
    mask = PersonMask([lambda: KnowingDetector(shown, names=NAMES)])
    assert mask.applied(frames[15]) is not frames[15]
    later = photograph(EYE, frames[15].frame.stamp_ns + 600_000_000, {})[0]
    shown[later.frame.stamp_ns] = np.full((K.height, K.width), -1)
    assert mask.applied(later) is later


def test_only_what_is_a_person_in_the_box_goes(walk):
    posed, seen = photograph(EYE, 1, {"person": walker(1.0)})
    depth = posed.frame.depth_m
    rows, columns = np.nonzero(seen == 0)
    box = np.array([columns.min() - 8, rows.min() - 8, columns.max() + 8, rows.max() + 8], float)
    mask = person_mask(posed.frame, box)
    assert mask is not None
    assert mask[seen == 0].all()
    wall = np.abs(depth - depth[rows.min() - 4, columns.min()]) < 0.1
    assert not (mask & wall).any(), "the wall stays"
    assert person_mask(posed.frame, np.array([40.0, 30, 50, 46])) is None, "nobody is that small"
    empty = replace(posed.frame, depth_m=np.zeros_like(depth))
    assert person_mask(empty, box) is None


def test_posters_couches_and_whole_pictures_are_no_persons():
    poster = {"poster": [((-1.999, -0.4, 0.6), (-1.995, 0.4, 1.9))]}
    couch = {"couch": [((-1.9, -1.0, 0.0), (-1.0, 1.0, 0.45)), ((-1.9, -1.0, 0.45), (-1.6, 1.0, 0.95))]}
    for things in (poster, couch, {"person": walker(1.0)}):
        posed, seen = photograph(EYE, 1, things)
        rows, columns = np.nonzero(seen == 0)
        box = np.array([columns.min(), rows.min(), columns.max(), rows.max()], float)
        assert (person_mask(posed.frame, box) is None) == ("person" not in things), list(things)
        whole = np.array([0.0, 0.0, K.width - 1.0, K.height - 1.0])
        assert person_mask(posed.frame, whole) is None


class Broken(KnowingDetector):
    def detect(self, frame):
        raise RuntimeError("no picture today")


def test_a_detector_that_fails_changes_nothing_and_is_told_of(walk):
    frames, shown = walk
    mask = PersonMask([lambda: Broken(shown, names=NAMES)])
    assert all(mask.applied(posed) is posed for posed in frames)
    said = mask.statistics()
    assert said.failures == 5, "then it is not asked any more"
    assert "no picture today" in said.last_error


class Hanging:
    vocabulary = frozenset({"person"})

    def __init__(self):
        self.calls, self.ends = 0, threading.Event()

    def detect(self, frame):
        self.calls += 1
        self.ends.wait(600)
        return no_detections(frame.camera, frame.stamp_ns), Counter()


def test_frames_do_not_wait_for_a_detector_that_hangs_and_others_keep_people_out(walk):
    frames, shown = walk
    hanging, quick = Hanging(), KnowingDetector(shown, names=NAMES)
    mask = PersonMask([lambda: hanging, lambda: quick], limit_s=0.05)
    mask.live = True
    try:
        hidden = [mask.applied(posed) is not posed for posed in frames]
    finally:
        hanging.ends.set()
    assert hanging.calls == 1
    assert any(hidden)
    statistics = mask.statistics()
    assert statistics.failures == 1
    assert "longer than 0.05 s" in statistics.last_error


def test_a_detector_without_a_word_for_people_is_not_asked(walk):
    frames, shown = walk
    detector = KnowingDetector(shown, names=tuple(THINGS))
    mask = PersonMask([lambda: detector])
    assert not mask.knows_persons
    assert mask.applied(frames[0]) is frames[0]
    assert detector.calls == 0


def test_the_configuration_decides(tmp_path):
    pytest.importorskip("onnxruntime")
    model = write_constant_model(tmp_path / "net.onnx", {"output0": np.zeros((1, 84, 315), np.float32)})
    lift = lift_from_options(LiftOptions(detector=str(model), layout="yolov8"))
    assert lift is not None
    assert lift.persons is not None
    assert lift.statistics().persons is not None
    lift = lift_from_options(LiftOptions(detector=str(model), layout="yolov8", persons="mapped"))
    assert lift is not None
    assert lift.persons is None
    chairs = LiftOptions(detector=str(model), layout="yolov8", classes=("human being", *COCO_CLASSES[1:]))
    lift = lift_from_options(chairs)
    assert lift is not None
    assert lift.persons is None, "it knows nobody"
    with pytest.raises(ConfigError, match="persons must be masked or mapped"):
        LiftOptions(persons="hidden")  # type: ignore[arg-type]
