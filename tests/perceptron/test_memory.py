"""A map and what belongs to it are freed as soon as nobody holds them, without the garbage collector.

A map holds hundreds of megabytes in a few objects. The collector counts objects, not bytes: it lets many unreachable
maps pile up before it looks at them.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
from support import lift_world
from support.online_world import config, inference, walk

from embodied_perceptron.detection2d.pipeline import DetectionLift, LiftSettings
from embodied_perceptron.detection2d.scheduler import SchedulerRules
from embodied_perceptron.language.answer import ground_objects
from embodied_perceptron.language.query import Query
from embodied_perceptron.language.relations import SceneGeometry
from embodied_perceptron.mapping.volume import FeatureVolume
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import ObjectState, SceneObject
from embodied_perceptron.scene.live_map import LiveMap

FRAMES = walk(30, 4)
SENTENCES = ("the chair left of the table", "how many lamps are there?", "the red one in front of the bed")


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """All kernels: a compiler at work keeps the frames that called it, and what they hold, until a collection."""
    live(with_network=True)
    live(with_network=False)
    live_with_detector()[1].stop()
    gc.collect()


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def live(with_network: bool) -> Perceptron:
    """Has done all that a perceptron does."""
    it = Perceptron(config(), inference=inference() if with_network else None)
    for frame in FRAMES:
        it.integrate(frame)
        it.perceive()
    if with_network:
        it.predict()
    it.recall()
    for sentence in SENTENCES:
        it.ground(sentence)
    it.correct_keyframes(dict(it.keyframe_poses()))
    it.clear_box(np.array([0.0, 0.0, 1.0, 0.1, 0.1, 0.1, 0.0, 0.0, 0.0]))
    it.perceive()
    return it


def freed(*refs: weakref.ref[object]) -> bool:
    return all(ref() is None for ref in refs)


@pytest.mark.parametrize("with_network", [False, True])
def test_a_perceptron_is_freed_by_counting_references(with_network):
    it = live(with_network)
    refs = [weakref.ref(it), weakref.ref(it.volume), weakref.ref(it.map._objects), weakref.ref(it.volume._map)]
    if with_network:
        refs += [weakref.ref(it.volume.features), weakref.ref(it.prediction), weakref.ref(it.inference.network)]
    assert not freed(*refs[:1])
    del it
    assert freed(*refs)


def test_a_perceptron_that_saved_and_loaded_is_freed(tmp_path):
    it = live(with_network=True)
    old = weakref.ref(it.map._objects)
    it.save(tmp_path / "map.safetensors")
    it.load(tmp_path / "map.safetensors")
    assert freed(old)  # what was replaced goes at once, not with the perceptron
    it.perceive()
    refs = weakref.ref(it), weakref.ref(it.volume)
    del it
    assert freed(*refs)


def live_with_detector() -> tuple[Perceptron, DetectionLift]:
    frames, shown = lift_world.tour(3)
    detector = lift_world.KnowingDetector(shown)
    lift = DetectionLift(lambda: detector, LiftSettings(schedule=SchedulerRules(max_rate_hz=50.0, burst=50)))
    it = Perceptron(lift_world.config(), lift=lift)
    for posed in frames:
        it.integrate(posed)
    it.perceive()
    it.ground("the cup on the table")
    lift.start()
    return it, lift


def test_a_perceptron_with_a_detector_is_freed_once_its_thread_is_stopped():
    it, lift = live_with_detector()
    assert lift.stop()
    refs = weakref.ref(it), weakref.ref(it.volume), weakref.ref(lift)
    del it, lift
    assert freed(*refs)


def test_a_volume_is_freed_by_counting_references():
    volume = FeatureVolume(config().volume, config().keyframes)
    for frame in FRAMES:
        volume.integrate(frame)
    volume.snapshot()
    volume.copy()
    volume.statistics()
    refs = weakref.ref(volume), weakref.ref(volume.keyframes), weakref.ref(volume._map)
    del volume
    assert freed(*refs)


def test_a_live_map_is_freed_by_counting_references(tmp_path):
    it = LiveMap(config(), FeatureVolume(config().volume))
    it.save(tmp_path / "map.safetensors")
    it.load(tmp_path / "map.safetensors")
    it.reset()
    refs = weakref.ref(it), weakref.ref(it.volume), weakref.ref(it._objects)
    del it
    assert freed(*refs)


def test_what_a_sentence_computed_is_freed_with_its_answer(monkeypatch):
    made: list[weakref.ref[object]] = []
    build = SceneGeometry.__init__

    def noted(self: SceneGeometry, *args: object, **more: object) -> None:
        made.append(weakref.ref(self))
        build(self, *args, **more)

    monkeypatch.setattr(SceneGeometry, "__init__", noted)
    boxes = np.array([[i, 0.3 * i, 0.4, 0.6, 0.5, 0.8, 0.0, 0, 0] for i in range(4)], dtype=np.float64)
    things = [
        SceneObject(i, label, 0.9, box, ObjectState.CONFIRMED)
        for i, (label, box) in enumerate(zip(("chair", "table", "lamp", "bed"), boxes, strict=True))
    ]
    for sentence in SENTENCES:
        assert ground_objects(Query(sentence).parsed({"chair", "table", "lamp", "bed"}), things) is not None
    assert made
    assert freed(*made)
