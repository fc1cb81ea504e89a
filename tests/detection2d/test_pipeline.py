"""The lift in the online algorithm: a room whose things are known, detectors that are perfect, noisy, or die."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import Counter

import numpy as np
import pytest
import torch
from support.lift_world import (
    CUP_BOX,
    TABLE_BOX,
    THINGS,
    K,
    KnowingDetector,
    boxes_of,
    config,
    no_detections,
    perfect,
    photograph,
    tour,
)
from support.online_world import look_at

from embodied_perceptron.config import ConfigError, LiftOptions, PerceptronConfig, config_from_dict
from embodied_perceptron.detection2d.detections2d import accept_detections
from embodied_perceptron.detection2d.layouts import LayoutError
from embodied_perceptron.detection2d.loading import lift_from_options
from embodied_perceptron.detection2d.pipeline import TOO_SLOW, DetectionLift, LiftSettings
from embodied_perceptron.detection2d.scheduler import SchedulerRules
from embodied_perceptron.geometry.boxes import box_iou
from embodied_perceptron.perceptron import Perceptron

QUICK = LiftSettings(schedule=SchedulerRules(max_rate_hz=50.0, burst=50))


def perceive(detector, frames, settings=QUICK, lift=None):
    lift = DetectionLift(None if detector is None else lambda: detector, settings) if lift is None else lift
    perceptron = Perceptron(config(), lift=lift)
    for posed in frames:
        assert perceptron.integrate(posed).keyframe
    perceptron.perceive()
    return perceptron, perceptron.perceive()


@pytest.fixture(scope="module")
def seen():
    return tour(8)


@pytest.fixture(scope="module")
def perfectly(seen):
    frames, shown = seen
    return perceive(KnowingDetector(shown), frames)


def by_label(objects):
    return {o.label: o for o in objects}


def iou(a, b):
    return float(box_iou(torch.tensor(a[None]), torch.tensor(b[None]))[0, 0])


def test_a_perfect_detector_names_things_where_they_are(perfectly):
    _, perception = perfectly
    things = by_label(perception.objects)
    assert iou(things["table"].box, TABLE_BOX) > 0.75  # legs, that no picture shows whole, among it
    np.testing.assert_allclose(things["cup"].box[:3], CUP_BOX[:3], atol=0.02)
    assert iou(things["cup"].box, CUP_BOX) > 0.4
    np.testing.assert_allclose(things["chair"].box[:2], [-0.975, 1.125], atol=0.15)
    assert things["table"].score > 0.45  # after two looks, two of zero are still in the mean
    assert sum(o.label == "table" for o in perception.objects) == 1
    assert sum(o.label == "cup" for o in perception.objects) == 1


def test_without_a_detector_nothing_has_a_name(seen):
    frames, _ = seen
    perceptron = Perceptron(config())
    for posed in frames:
        perceptron.integrate(posed)
    perceptron.perceive()
    assert {o.label for o in perceptron.perceive().objects} == {"object"}


def noisy(seed):
    rng = np.random.default_rng(seed)

    def answer(_, shown):
        said = []
        for name, box in shown:
            if rng.uniform() < 0.35:
                continue  # missed
            wrong = rng.uniform() < 0.15
            jitter = rng.normal(0, 0.04, 4) * np.tile([box[2] - box[0], box[3] - box[1]], 2)
            said.append(("dog" if wrong else name, (np.array(box) + jitter).tolist(), float(rng.uniform(0.35, 0.8))))
        if rng.uniform() < 0.5:  # something that is nowhere twice
            corner = rng.uniform(0, 200, 2)
            said.append(("cat", [*corner, *(corner + 40)], float(rng.uniform(0.3, 0.6))))
        return said

    return answer


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_a_noisy_detector_is_held_down_by_votes(seed):
    frames, shown = tour(14)
    _, perception = perceive(KnowingDetector(shown, noisy(seed), (*THINGS, "dog", "cat")), frames)
    things = by_label(perception.objects)
    assert {"table", "cup"} <= set(things)
    assert not {"dog", "cat"} & set(things)
    np.testing.assert_allclose(things["cup"].box[:3], CUP_BOX[:3], atol=0.05)


def test_a_carpet_that_is_always_called_bed_is_none(seen):
    frames, shown = seen

    def answer(_, said):
        return [("bed" if name == "carpet" else name, box, 0.9) for name, box in said]

    perceptron, perception = perceive(KnowingDetector(shown, answer), frames)
    assert "bed" not in by_label(perception.objects)
    assert perceptron.lift.statistics().dropped


def test_every_detection_is_accounted_for(perfectly):
    statistics = perfectly[0].lift.statistics()
    assert statistics.pictures == 8
    assert statistics.found == statistics.lifted + sum(statistics.dropped.values())
    assert statistics.state == "running"


def test_a_second_run_gives_the_same_to_the_bit(seen, perfectly):
    frames, shown = seen
    _, again = perceive(KnowingDetector(shown), frames)
    assert [o.as_dict() for o in again.objects] == [o.as_dict() for o in perfectly[1].objects]


def test_what_was_taken_away_is_not_detected_any_more(seen):
    frames, shown = seen
    detector = KnowingDetector(dict(shown))
    lift = DetectionLift(lambda: detector, QUICK)
    perceptron, perception = perceive(None, frames, lift=lift)
    assert "cup" in by_label(perception.objects)
    without = {name: parts for name, parts in THINGS.items() if name != "cup"}
    for i, frame in enumerate([*frames, *frames, *frames]):  # the same tour, three times
        stamp = (len(frames) + i + 1) * 500_000_000
        posed, numbers = photograph(frame.T_world_camera, stamp, without)
        detector.shown[stamp] = np.where(numbers >= 1, numbers + 1, numbers)
        perceptron.integrate(posed)
        perception = perceptron.perceive()
    assert "cup" not in {o.label for o in lift.objects}
    assert "table" in {o.label for o in lift.objects}


def test_things_that_are_kept_are_as_if_completed_now(seen, monkeypatch):
    frames, shown = seen
    detector = KnowingDetector(dict(shown))
    lift = DetectionLift(lambda: detector, QUICK)
    perceptron, completed, kept = Perceptron(config(), lift=lift), [], 0
    complete = lift._complete
    monkeypatch.setattr(lift, "_complete", lambda *given: completed.append(1) or complete(*given))
    for _ in range(2):  # two frames without objects, of which the second adds nothing to the map
        T = look_at(np.array([0.0, 0.0, 1.5]), [-2.0, -2.0, 2.4])
        away, detector.shown[(len(frames) + 1) * 500_000_000] = photograph(T, (len(frames) + 1) * 500_000_000)
        frames = [*frames, away]
    for posed in frames:
        perceptron.integrate(posed)
        completed.clear()
        perceptron.perceive()
        kept += len(lift.lifted_objects) - len(completed)
        for thing in lift.lifted_objects:
            now = complete(thing.candidate)
            assert (thing.label, thing.probability) == (now.label, now.probability)
            np.testing.assert_array_equal(thing.box, now.box)
            assert all(view < len(lift.views) for view, _ in thing.candidate.members)
    assert kept > 0


def test_corrected_poses_move_what_was_lifted(seen):
    frames, shown = seen
    perceptron, _ = perceive(KnowingDetector(shown), frames)
    shift = np.eye(4)
    shift[:3, 3] = [0.5, -0.3, 0.0]
    perceptron.correct_keyframes({key: shift @ T for key, T in perceptron.keyframe_poses().items()})
    perceptron.perceive()
    cups = [o for o in perceptron.lift.objects if o.label == "cup"]
    assert len(cups) == 1
    np.testing.assert_allclose(cups[0].box[:3], CUP_BOX[:3] + shift[:3, 3], atol=0.03)


def test_a_reset_forgets_everything(seen):
    frames, shown = seen
    perceptron, _ = perceive(KnowingDetector(shown), frames)
    assert perceptron.lift.objects
    perceptron.reset()
    assert perceptron.lift.objects == ()
    assert len(perceptron.perceive().objects) == 0


# --------------------------------------------------------------------------------------------------------------------
# detectors that die


class Dying:
    def __init__(self, inner, deaths, error):
        self.inner, self.deaths, self.error, self.built = inner, deaths, error, 0

    def make(self):
        self.built += 1
        return self

    @property
    def vocabulary(self):
        return self.inner.vocabulary

    def detect(self, frame):
        if self.deaths > 0:
            self.deaths -= 1
            raise self.error
        return self.inner.detect(frame)


def test_a_detector_that_dies_is_built_again_and_perception_goes_on(seen):
    frames, shown = seen
    dying = Dying(KnowingDetector(shown), 2, RuntimeError("out of memory"))
    lift = DetectionLift(
        dying.make, dataclasses.replace(QUICK, schedule=SchedulerRules(max_rate_hz=50, burst=50, retry_s=0.5))
    )
    perceptron = Perceptron(config(), lift=lift)
    states = []
    for posed in frames:
        perceptron.integrate(posed)
        perceptron.perceive()
        states.append(lift.statistics().state)
    assert states[:2] == ["retrying", "retrying"]
    assert states[-1] == "running"
    statistics = lift.statistics()
    assert (statistics.failures, statistics.last_error) == (2, "RuntimeError: out of memory")
    assert dying.built == 3
    assert statistics.pictures == len(frames)  # nothing was lost by it
    assert "table" in {o.label for o in lift.objects}


def test_a_detector_that_only_dies_is_disabled_and_perception_goes_on(seen):
    frames, shown = seen
    dying = Dying(KnowingDetector(shown), 10**6, RuntimeError("dead"))
    rules = SchedulerRules(max_rate_hz=50, burst=50, retry_s=0.0, max_failures=3)
    perceptron, perception = perceive(
        None, frames, lift=DetectionLift(dying.make, dataclasses.replace(QUICK, schedule=rules))
    )
    for _ in range(4):
        perception = perceptron.perceive()
    assert perceptron.lift.statistics().state == "disabled"
    assert perceptron.lift.statistics().failures == 3
    assert perception.objects  # by shape alone


def test_another_layout_is_hopeless_at_once(seen):
    frames, shown = seen
    dying = Dying(
        KnowingDetector(shown), 10**6, LayoutError("layout yolox: expected ..., got outputs output0 (1, 9, 315)")
    )
    perceptron, _ = perceive(None, frames, lift=DetectionLift(dying.make, QUICK))
    statistics = perceptron.lift.statistics()
    assert (statistics.state, statistics.failures) == ("disabled", 1)
    assert "output0 (1, 9, 315)" in statistics.last_error


def with_masks_of_another_size(found):
    return dataclasses.replace(found, masks=np.ones((len(found), K.height // 2, K.width // 2), dtype=bool))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda found: dataclasses.replace(found, camera="rear"), "'rear'"),
        (lambda found: dataclasses.replace(found, stamp_ns=found.stamp_ns + 1), "for an image of"),
        (with_masks_of_another_size, "masks have the shape"),
    ],
)
def test_an_answer_about_another_picture_is_no_answer(seen, change, words):
    frames, shown = seen

    class Confused(KnowingDetector):
        def detect(self, frame):
            found, drops = super().detect(frame)
            return change(found), drops

    perceptron, perception = perceive(Confused(shown), frames[:2])
    assert perceptron.lift.statistics().state == "disabled"
    assert words in perceptron.lift.statistics().last_error
    assert perception.objects  # by shape alone


def test_names_of_any_language_reach_the_map(seen):
    frames, shown = seen
    called = {"cup": "кружка", "table": "椅子"}

    class Foreign(KnowingDetector):
        def detect(self, frame):
            found, drops = super().detect(frame)
            return dataclasses.replace(found, labels=tuple(called.get(n, n) for n in found.labels)), drops

    _, perception = perceive(Foreign(shown), frames)
    names = {o.label for o in perception.objects}
    assert set(called.values()) <= names
    assert not set(called) & names


def test_a_detector_that_cannot_be_built_is_an_error_at_the_start():
    with pytest.raises(FileNotFoundError, match=r"no ONNX file at /nowhere/net\.onnx"):
        lift_from_options(LiftOptions(detector="/nowhere/net.onnx", layout="yolov8"))


def test_the_rate_is_bounded_by_the_recordings_stamps(seen):
    frames, shown = seen
    settings = LiftSettings(schedule=SchedulerRules(max_rate_hz=0.5, burst=1))
    detector = KnowingDetector(shown)
    perceptron = Perceptron(config(), lift=DetectionLift(lambda: detector, settings))
    for posed in frames:  # two a second
        perceptron.integrate(posed)
        perceptron.perceive()
    assert detector.calls == 2  # in 3.5 s


def test_a_thread_detects_while_perception_goes_on(seen):
    frames, shown = seen
    detector = KnowingDetector(shown)
    lift = DetectionLift(lambda: detector, QUICK)
    lift.start()
    try:
        perceptron, _ = perceive(None, frames, lift=lift)
        until = time.monotonic() + 60
        while detector.calls < len(frames) and time.monotonic() < until:
            perceptron.perceive()
            time.sleep(0.02)
        perceptron.perceive()
    finally:
        assert lift.stop()
    assert {"table", "cup"} <= {o.label for o in lift.objects}
    assert lift.busy_s == 0.0


class Slow:
    """Knows nothing, and needs its time; ``ends`` lets it come back."""

    vocabulary = frozenset({"sofa"})

    def __init__(self):
        self.calls, self.ends = 0, threading.Event()

    def detect(self, frame):
        self.calls += 1
        self.ends.wait(100)
        return no_detections(frame.camera, frame.stamp_ns), Counter()


def test_a_detector_that_hangs_holds_up_no_other_and_is_counted(seen, caplog):
    frames, shown = seen
    detector, slow = KnowingDetector(shown), Slow()
    schedule = SchedulerRules(max_rate_hz=100, burst=50, retry_s=0.0, limit_s=0.1)
    makers = {"slow": lambda: slow, "quick": lambda: detector}
    lift = DetectionLift(makers, dataclasses.replace(QUICK, schedule=schedule))
    lift.start()
    try:
        perceptron, _ = perceive(None, frames, lift=lift)
        until = time.monotonic() + 60
        while detector.calls < len(frames) and time.monotonic() < until:
            perceptron.perceive()
            time.sleep(0.02)
        perceptron.perceive()
        statistics = lift.statistics()
        assert lift.busy_s > 0.1  # it still hangs, and is told of
    finally:
        slow.ends.set()
        assert lift.stop()
    assert (detector.calls, slow.calls) == (len(frames), 1)
    assert {"table", "cup"} <= {o.label for o in lift.objects}
    assert statistics.dropped[TOO_SLOW] == 1
    assert (statistics.state, statistics.failures) == ("running", 1)
    assert "detector slow: took longer than 0.1 s" in caplog.text


def test_a_replay_waits_for_a_slow_detector(seen):
    frames, _ = seen
    slow = Slow()
    slow.ends.set()
    rules = SchedulerRules(max_rate_hz=50, burst=50, limit_s=1e-6)
    lift = DetectionLift(lambda: slow, dataclasses.replace(QUICK, schedule=rules))
    perceive(None, frames, lift=lift)
    assert slow.calls == len(frames)
    assert lift.statistics().dropped[TOO_SLOW] == 0


# --------------------------------------------------------------------------------------------------------------------
# detections of other programs


def described(posed, numbers, stamp_ns=None, camera=None):
    said = boxes_of(numbers, list(THINGS))
    found, _ = accept_detections(
        camera or posed.frame.camera,
        posed.frame.stamp_ns if stamp_ns is None else stamp_ns,
        np.array([box for _, box in said]),
        np.full(len(said), 0.9),
        [name for name, _ in said],
        (K.width, K.height),
    )
    return found


def test_detections_of_other_programs_find_their_keyframes(seen):
    frames, shown = seen
    lift = DetectionLift(None, QUICK)
    perceptron = Perceptron(config(), lift=lift)
    for i, posed in enumerate(frames):
        if i % 2:  # detections may come before the keyframe or after it, and a little off
            lift.add(described(posed, shown[posed.frame.stamp_ns], posed.frame.stamp_ns + 2_000_000))
        perceptron.integrate(posed)
        if not i % 2:
            lift.add(described(posed, shown[posed.frame.stamp_ns]))
        perceptron.perceive()
    perceptron.perceive()
    assert {"table", "cup"} <= {o.label for o in lift.objects}
    statistics = lift.statistics()
    assert statistics.pictures == len(frames)
    assert statistics.state == "none"


def test_detections_of_nowhere_are_dropped_by_name(seen):
    frames, shown = seen
    lift = DetectionLift(None, QUICK)
    perceptron = Perceptron(config(), lift=lift)
    for posed in frames:
        perceptron.integrate(posed)
    first = frames[0]
    strange = described(first, shown[first.frame.stamp_ns], camera="rear")
    late = described(first, shown[first.frame.stamp_ns], stamp_ns=frames[-1].frame.stamp_ns + 60_000_000_000)
    lift.add(strange)
    lift.add(late)
    perceptron.perceive()
    assert lift.statistics().dropped == {"unknown_camera": len(strange), "no_keyframe": len(late)}
    soon = described(first, shown[first.frame.stamp_ns], stamp_ns=first.frame.stamp_ns + 100_000_000)
    lift.add(soon)  # between two keyframes: none will come any more
    lift.add(dataclasses.replace(soon, stamp_ns=first.frame.stamp_ns - 100_000_000))
    perceptron.perceive()
    assert lift.statistics().dropped["no_keyframe"] == len(late) + len(soon)
    assert lift.statistics().dropped["too_late"] == len(soon)
    ahead = described(first, shown[first.frame.stamp_ns], stamp_ns=frames[-1].frame.stamp_ns + 1_000_000_000)
    lift.add(ahead)  # its keyframe may still come
    perceptron.perceive()
    assert sum(lift.statistics().dropped.values()) == len(strange) + len(late) + 2 * len(soon)


def test_masks_of_another_program_that_do_not_fit_the_picture_are_dropped_by_name(seen):
    frames, shown = seen
    lift = DetectionLift(None, QUICK)
    perceptron = Perceptron(config(), lift=lift)
    for posed in frames[:2]:
        perceptron.integrate(posed)
    found = described(frames[0], shown[frames[0].frame.stamp_ns])
    lift.add(with_masks_of_another_size(found))
    perceptron.perceive()
    assert lift.statistics().dropped == {"masks_of_another_size": len(found)}


def test_what_waits_is_bounded(seen):
    frames, shown = seen
    lift = DetectionLift(None, QUICK)
    some = described(frames[0], shown[frames[0].frame.stamp_ns])
    for i in range(300):
        lift.add(dataclasses.replace(some, stamp_ns=i))
    assert lift.statistics().dropped == {"too_many_waiting": 44 * len(some)}


# --------------------------------------------------------------------------------------------------------------------
# words, and configuration


@dataclasses.dataclass
class Told(KnowingDetector):
    """Says only what it was told to look for."""

    words: tuple[str, ...] = ("table",)

    @property
    def vocabulary(self):
        return frozenset(self.words)

    def look_for(self, words):
        self.words = tuple(words)

    def detect(self, frame):
        self.answer = lambda _, shown: [x for x in perfect(_, shown) if x[0] in self.words]
        return super().detect(frame)


def test_a_question_makes_it_look_for_what_nobody_looked_for(seen):
    frames, shown = seen
    detector = Told(shown)
    perceptron, _ = perceive(detector, frames)
    assert {o.label for o in perceptron.lift.objects} == {"table"}
    perceptron.lift.asked_for(["cup"])
    perceptron.perceive()
    assert {"table", "cup"} <= {o.label for o in perceptron.lift.objects}
    assert perceptron.lift.vocabulary == {"table", "cup"}
    calls = detector.calls
    perceptron.lift.asked_for(["cup"])  # nothing new
    perceptron.perceive()
    assert detector.calls == calls
    knowing = DetectionLift(lambda: KnowingDetector(shown))
    known = knowing.vocabulary
    knowing.asked_for(["teapot"])
    assert knowing.vocabulary == known


def test_what_a_sentence_names_is_looked_for_too(seen):
    frames, shown = seen
    perceptron, _ = perceive(Told(shown), frames)
    perceptron.ground("the cup on the table left of the chair")
    assert perceptron.lift.vocabulary == {"table", "cup", "chair"}
    perceptron.perceive()
    assert {"table", "cup", "chair"} <= {o.label for o in perceptron.lift.objects}


def test_of_what_was_asked_for_the_newest_words_are_kept(seen):
    lift = DetectionLift(lambda: Told({}), QUICK)
    for number in range(50):
        lift.asked_for([f"thing{number}", "table"])
    lift.asked_for(["thing20"])
    assert len(lift.vocabulary) == 33  # the detector's own beside 32
    assert {"table", "thing49", "thing20"} <= lift.vocabulary
    assert "thing17" not in lift.vocabulary


def test_a_detector_that_is_not_told_in_words_ignores_questions(seen):
    frames, shown = seen
    detector = KnowingDetector(shown)
    perceptron, _ = perceive(detector, frames)
    calls = detector.calls
    perceptron.ground("the zebra")
    perceptron.perceive()
    assert detector.calls == calls


def test_detections_of_another_program_come_with_the_cameras_stamps(seen):
    """Also when the clock was set back and the map's time went on."""
    frames, shown = seen
    lift = DetectionLift(None, QUICK)
    perceptron = Perceptron(config(), lift=lift)
    for turn in range(2):
        for posed in frames:
            perceptron.integrate(posed)
            said = perfect(posed.frame, boxes_of(shown[posed.frame.stamp_ns], list(THINGS)))
            boxes, scores = np.array([b for _, b, _ in said]), np.array([s for *_, s in said])
            perceptron.add_detections(
                *accept_detections("front", posed.frame.stamp_ns, boxes, scores, [n for n, *_ in said], (320, 240))
            )
        perceptron.perceive()
        assert lift.statistics().pictures == len(frames) * (turn + 1), lift.statistics()
        perceptron.forget_stamps()
    assert {"table", "cup"} <= {o.label for o in perceptron.perceive().objects}
    with pytest.raises(ValueError, match="from_topics"):
        Perceptron(config()).add_detections(no_detections("front", 1))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"layout": "yolov8"}, "layout needs a detector"),
        ({"detector": "x.onnx", "layout": "yolov99"}, "must be one of"),
        ({"detector": "x.onnx", "layout": "yolox", "from_topics": True}, "exclude"),
        ({"min_score": 2.0}, "min_score"),
        ({"min_probability": -1.0}, "min_probability"),
        ({"max_detections": 0}, "max_detections"),
        ({"input_px": 8}, "input_px"),
        ({"max_rate_hz": 0.0}, "max_rate_hz"),
        ({"stamp_tolerance_s": -0.1}, "stamp_tolerance_s"),
        ({"limit_s": 0.0}, "limit_s must be positive"),
        ({"providers": []}, "providers"),
        ({"threads": -1}, "threads"),
        ({"detektor": "x"}, "unknown key"),
    ],
)
def test_the_configuration_is_strict(bad, message):
    with pytest.raises(ConfigError, match=message):
        config_from_dict(PerceptronConfig, {"lift": bad})


def test_it_is_off_by_default():
    assert not PerceptronConfig().lift.enabled
    assert lift_from_options(LiftOptions()) is None
    assert lift_from_options(LiftOptions(from_topics=True)) is not None


def test_far_from_the_things_nothing_is_lifted(seen):
    _, shown = seen
    posed, numbers = photograph(look_at(np.array([-1.5, -1.5, 1.5]), [-2.0, -1.6, 1.5]), 999)
    shown = {**shown, 999: numbers}
    perceptron, _ = perceive(KnowingDetector(shown), [posed])
    assert perceptron.lift.objects == ()
