"""The three verbs with a network in place."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pytest
import torch
from support.online_world import CELLS, CLASSES, config, inference, look_at, perceptron, photograph, walk
from support.small_networks import small_config, small_network

from embodied_perceptron.config import VolumeConfig
from embodied_perceptron.geometry.transforms import make_transform
from embodied_perceptron.inference.predictor import Predictor
from embodied_perceptron.mapping.volume import FeatureVolume
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import Perception
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame


def run(it: Perceptron, frames, every: int = 3) -> Perception:
    for i, frame in enumerate(frames):
        assert it.integrate(frame).fused
        if i % every == every - 1:
            it.perceive()
    return it.perceive()


def test_objects_have_names_and_cells_have_labels():
    it = perceptron()
    seen = run(it, walk(0, 9))
    assert len(seen.objects) > 0
    assert {o.label for o in seen.objects} <= set(CLASSES)
    assert all(o.state == "confirmed" and 0 < o.score <= 1 and o.box.shape == (9,) for o in seen.objects)
    assert any(abs(o.box[7:]).max() > 0.01 for o in seen.objects)  # nine degrees, tilt included
    assert seen.semantic.classes == CELLS
    assert len(seen.semantic.labels) > 0
    stages = {"copy", "snapshot", "floor", "network", "naming", "extents", "objects", "semantic", "grid"}
    assert stages == set(seen.stage_ms)
    assert seen.diagnostics == ()


def test_every_keyframe_is_encoded_once():
    it = perceptron(max_count=4)
    bare = FeatureVolume(it.config.volume, it.config.keyframes)  # geometry alone
    kept = 0
    for i, frame in enumerate(walk(1, 12)):
        report = it.integrate(frame)
        bare.integrate(frame)
        kept += report.keyframe
        assert ("encode" in report.stage_ms) == report.keyframe
        if i % 2:
            it.perceive()
    memory = it.volume.features
    assert memory.encoded == kept
    assert it.statistics().memory_bytes == bare.statistics().memory_bytes + memory.nbytes
    assert memory.nbytes > 1000 * len(memory)
    assert len(memory) <= 4 + 1  # what left the map left the memory; the sums may hold the last one


def test_the_window_lies_before_the_camera():
    eye = np.array([0.1, 0.2, 1.3])
    frames = [photograph(look_at(eye, [1.8, 0.2, 0.6]), 1), photograph(look_at(eye, [0.1, -1.8, 0.6]), 200_000_000)]
    around, before = (
        Perceptron(
            dataclasses.replace(c, network=dataclasses.replace(c.network, window_ahead=share)), inference=inference()
        )
        for c, share in ((config(), 0.0), (config(), 0.25))
    )
    for frame in frames:
        middles = []
        for it in (around, before):
            assert it.integrate(frame).fused
            it.perceive()
            middles.append(0.5 * (it.prediction.region.lower_m[:2] + it.prediction.region.upper_m[:2]))
        cell_m = before.inference._cell_m
        ahead_m = 0.25 * 2.56 * frame.T_world_camera[:2, 2]
        np.testing.assert_allclose(middles[0], eye[:2], atol=cell_m / 2 + 1e-9)
        np.testing.assert_allclose(middles[1], eye[:2] + ahead_m, atol=cell_m / 2 + 1e-9)
        assert np.linalg.norm(middles[1] - middles[0]) >= 0.9 * cell_m  # so one cannot pass for the other


def test_the_same_frames_give_the_same_answers():
    a, b = run(perceptron(), walk(2, 8)), run(perceptron(), walk(2, 8))
    assert [o.as_dict() for o in a.objects] == [o.as_dict() for o in b.objects]
    np.testing.assert_array_equal(a.semantic.labels, b.semantic.labels)
    np.testing.assert_array_equal(a.semantic.centers_m, b.semantic.centers_m)


@pytest.mark.parametrize("cores", [1, 2])
def test_cells_are_decoded_beside_boxes_where_there_is_a_core_for_them(cores, monkeypatch):
    alone = run(perceptron(), walk(2, 8))
    monkeypatch.setattr("embodied_perceptron.inference.predictor.cores", lambda: cores)
    it, threads = perceptron(), set()
    occupancy = it.inference.occupancy

    def watched(*args):
        threads.add(threading.get_ident() == threading.main_thread().ident)
        return occupancy(*args)

    monkeypatch.setattr(it.inference, "occupancy", watched)
    seen = run(it, walk(2, 8))
    assert threads == {cores == 1}
    assert [o.as_dict() for o in seen.objects] == [o.as_dict() for o in alone.objects]
    np.testing.assert_array_equal(seen.semantic.labels, alone.semantic.labels)


def test_an_empty_map_has_nothing():
    seen = perceptron().perceive()
    assert seen.objects == () == seen.tentative
    assert len(seen.semantic.labels) == 0
    assert seen.semantic.classes == CELLS


def test_boxes_that_cannot_count_are_not_made():
    frames = walk(16, 4)
    every = perceptron()
    run(every, frames)
    scores = every.prediction.detections.scores
    min_score = 2.0 * float(np.median(scores))  # half of what is seen scores less than half of it
    settings = config()
    everything = dataclasses.replace(settings, network=dataclasses.replace(settings.network, all_boxes=True))
    few, all_boxes = (Perceptron(c, inference=inference(min_score=min_score)) for c in (settings, everything))
    objects = [run(it, frames).tentative for it in (few, all_boxes)]
    assert np.array_equal(all_boxes.prediction.detections.scores, scores)
    counting = all_boxes.prediction.detections.above(np.nextafter(0.5 * min_score, 1))
    assert 0 < len(counting) < len(scores)
    assert np.array_equal(few.prediction.detections.scores, counting.scores)
    assert few.prediction.detections.labels == counting.labels
    assert [(o.id, o.label, o.score) for o in objects[0]] == [(o.id, o.label, o.score) for o in objects[1]]


def test_a_network_of_geometry_alone_needs_no_images():
    it = Perceptron(config(), inference=inference(modality="depth"))
    frames = walk(3, 6)
    report = it.integrate(frames[0])
    assert it.volume.features is None
    assert report.stage_ms["encode"] < 5
    seen = run(it, frames[1:])
    assert len(seen.objects) + len(seen.tentative) > 0


@pytest.mark.parametrize("modality", ["rgb", "painting"])
def test_other_modalities_look_at_the_same_map(modality):
    it = Perceptron(config(), inference=inference(modality=modality))
    seen = run(it, walk(13, 3), every=10)
    assert len(seen.tentative) > 0
    assert len(seen.semantic.labels) > 0


def test_a_network_of_raw_points_takes_them_from_the_map():
    network = small_network(small_config("detection", "rgbd", "paper"))
    it = Perceptron(config(), inference=Predictor(network, CLASSES))
    seen = run(it, walk(14, 3), every=10)
    assert len(seen.tentative) > 0
    assert len(seen.semantic.labels) == 0  # it has no occupancy


def test_a_network_without_boxes_labels_cells():
    network = small_network(small_config("occupancy", "depth"))
    it = Perceptron(config(), inference=Predictor(network, CLASSES, CELLS))
    seen = run(it, walk(15, 3), every=10)
    assert seen.tentative == ()
    assert len(seen.semantic.labels) > 0


def test_sites_that_are_no_multiple_of_the_voxels_are_refused():
    with pytest.raises(ValueError, match="no multiple of the map's voxels"):
        Perceptron(dataclasses.replace(config(), volume=VolumeConfig(voxel_size_m=0.03)), inference=inference())


def test_a_volume_without_features_is_refused_for_a_network_that_sees_images():
    with pytest.raises(ValueError, match="needs a volume with image features"):
        Perceptron(config(), FeatureVolume(config().volume), inference())


def test_a_perception_says_which_frame_it_is_made_from():
    it = perceptron()
    assert it.perceive().source is None
    frames = walk(17, 3, cameras=2)
    for frame in frames:
        it.integrate(frame)
        source = it.perceive().source
        assert source.frame is frame.frame
        np.testing.assert_array_equal(source.T_world_camera, frame.T_world_camera)
    blind = RgbdFrame(10**10, "front", frame.frame.color, np.zeros_like(frame.frame.depth_m), frame.frame.intrinsics)
    assert not it.integrate(PosedFrame(blind, frame.T_world_camera)).fused
    assert it.perceive().source.frame is frames[-1].frame  # what was not fused is in no map
    shift = make_transform(np.eye(3), np.array([0.64, 0.0, 0.0]))
    it.correct_keyframes({name: shift @ T for name, T in it.keyframe_poses().items()})
    np.testing.assert_allclose(it.perceive().source.T_world_camera, shift @ frame.T_world_camera, atol=1e-12)
    it.reset()
    assert it.perceive().source is None


def test_reset_forgets_features_and_objects():
    it = perceptron()
    run(it, walk(4, 6))
    it.reset()
    assert len(it.volume.features) == 0
    seen = it.perceive()
    assert seen.objects == () == seen.tentative
    assert len(seen.semantic.labels) == 0
    again = run(it, walk(5, 6))
    fresh = run(perceptron(), walk(5, 6))
    assert [o.as_dict() for o in again.objects] == [o.as_dict() for o in fresh.objects]


def test_released_and_back_again():
    it, other = perceptron(), perceptron()
    frames = walk(6, 8)
    run(it, frames[:5])
    run(other, frames[:5])
    it.release_accelerator()
    assert len(it.volume.features) == 0
    for frame in frames[5:]:
        assert it.integrate(frame).fused  # fusing goes on; images are encoded when they are needed
        other.integrate(frame)
    assert len(it.volume.features) == 0
    a, b = it.perceive(), other.perceive()
    assert [o.as_dict() for o in a.objects] == [o.as_dict() for o in b.objects]


def test_short_memory_makes_the_window_smaller_and_says_so(monkeypatch):
    it = perceptron(window_m=5.12)
    for frame in walk(7, 6):
        it.integrate(frame)
    real, sizes = Predictor._predict, []

    def short(self, window, copy, view_direction, floor_z_m, window_m, manhattan, keep):
        sizes.append(window_m)
        if window_m > 2.0:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return real(self, window, copy, view_direction, floor_z_m, window_m, manhattan, keep)

    monkeypatch.setattr(Predictor, "_predict", short)
    seen = it.perceive()
    assert sizes == [5.12, 2.56, 1.28]
    assert len(seen.objects) + len(seen.tentative) > 0
    assert any("CUDA out of memory" in d for d in seen.diagnostics)
    assert any("1.28 m instead of 5.12 m" in d for d in seen.diagnostics)
    sizes.clear()
    assert any("instead of" in d for d in it.perceive().diagnostics)
    assert sizes == [1.28]  # and it does not run into it again
    monkeypatch.setattr(Predictor, "_predict", real)
    monkeypatch.setattr("embodied_perceptron.inference.predictor._RETRY_AFTER", 2)
    it.perceive()
    it.perceive()
    assert it.perceive().diagnostics == ()  # memory is there again


def test_no_memory_at_all_is_no_crash(monkeypatch):
    it = perceptron()
    before = run(it, walk(8, 6))

    def never(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Predictor, "_predict", never)
    seen = it.perceive()
    assert any("even in a window" in d for d in seen.diagnostics)
    assert [o.id for o in seen.objects] == [o.id for o in before.objects]
    assert len(seen.semantic.labels) == len(before.semantic.labels)


def test_encoding_without_memory_is_made_up_for(monkeypatch):
    it, other = perceptron(), perceptron()
    frames = walk(9, 4)

    def never(_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    real = it.volume.features._encode
    it.volume.features._encode = never
    for frame in frames:
        assert it.integrate(frame).fused
        other.integrate(frame)
    it.volume.features._encode = real
    assert [o.as_dict() for o in it.perceive().tentative] == [o.as_dict() for o in other.perceive().tentative]
