"""A map's life with a network: files, moved things, threads."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.online_world import BOXES, CELLS, config, inference, look_at, perceptron, photograph, walk
from support.small_networks import small_network

from embodied_perceptron.geometry.manhattan import Region
from embodied_perceptron.geometry.transforms import make_transform
from embodied_perceptron.inference.predictor import Predictor, ScenePrediction
from embodied_perceptron.mapping.storage import MapFileError, read_map, write_map
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import Detections, EventKind
from embodied_perceptron.scene.segmentation.components import find_boxes
from embodied_perceptron.scene.segmentation.layers import separate_layers


def answers(it: Perceptron):
    seen = it.perceive()
    return [o.as_dict() for o in seen.objects], seen.semantic.labels.tolist(), seen.semantic.centers_m.tolist()


# ------------------------------------------------------------------------------------------------------------------
# files


def test_a_loaded_map_goes_on_as_if_it_had_never_been_away(tmp_path):
    it = perceptron()
    frames = walk(20, 9)
    for frame in frames[:6]:
        it.integrate(frame)
        it.perceive()
    it.save(tmp_path / "map.safetensors")
    other = perceptron()
    other.load(tmp_path / "map.safetensors")
    assert [o.as_dict() for o in other.objects] == [o.as_dict() for o in it.objects]
    for frame in frames[6:]:
        it.integrate(frame)
        other.integrate(frame)
    assert answers(it) == answers(other)


def test_features_of_two_networks_are_never_mixed(tmp_path):
    it = perceptron()
    for frame in walk(21, 5):
        it.integrate(frame)
    it.perceive()
    it.save(tmp_path / "map.safetensors")
    names = ("ground", "wall", "thing")
    network = small_network(inference().network.config, seed=5)
    other = Perceptron(config(), inference=Predictor(network, inference().classes, names))
    other.load(tmp_path / "map.safetensors")
    assert other.map._semantic.cells() is None  # labels of other names mean nothing here
    seen = other.perceive()
    assert seen.semantic.classes == names
    fresh = Perceptron(config(), inference=Predictor(network, inference().classes, names))
    for frame in walk(21, 5):
        fresh.integrate(frame)
    a, b = other.predict().detections, fresh.predict().detections
    np.testing.assert_allclose(a.boxes, b.boxes, atol=1e-5)
    shapes = Perceptron(config())  # and without any network
    shapes.load(tmp_path / "map.safetensors")
    assert shapes.perceive().semantic.classes != names


@pytest.mark.parametrize(
    "damage",
    [
        lambda t: t.pop("semantic.labels"),
        lambda t: t.update({"semantic.labels": t["semantic.labels"] + 1000}),
        lambda t: t.update({"semantic.centers_m": t["semantic.centers_m"] * float("nan")}),
        lambda t: t.update({"semantic.confidence": t["semantic.confidence"][:3]}),
    ],
)
def test_damaged_cells_are_refused_and_change_nothing(damage, tmp_path):
    it = perceptron()
    for frame in walk(22, 3):
        it.integrate(frame)
    before = answers(it)
    it.save(tmp_path / "map.safetensors")
    saved = read_map(tmp_path / "map.safetensors")
    damage(saved.tensors)
    write_map(tmp_path / "bad.safetensors", saved.tensors, saved.header)
    voxels = len(it.volume)
    with pytest.raises(MapFileError, match=r"semantic\.|labelled cells"):
        it.load(tmp_path / "bad.safetensors")
    assert len(it.volume) == voxels
    assert [o["id"] for o in before[0]] == [o.id for o in it.objects]


# ------------------------------------------------------------------------------------------------------------------
# moved things


def see_shapes(monkeypatch, it: Perceptron) -> None:
    """A network that finds what stands there by its shape, and calls chair what is as high as one."""

    def predict(self, window, copy, view_direction, floor_z_m, window_m=None, manhattan=None, keep=False):
        snapshot = copy.snapshot()
        shapes = it.config.objects.segmentation
        found = find_boxes(snapshot, separate_layers(snapshot, floor_z_m, shapes), shapes)
        found = found.take(np.flatnonzero(found.boxes[:, 5] > 0.4))
        named = Detections(found.boxes, found.scores, ("chair",) * len(found))
        return ScenePrediction(named, None, Region.everywhere(), Region.nowhere(), floor_z_m=floor_z_m)

    monkeypatch.setattr(Predictor, "predict", predict)


def test_a_chair_moved_in_view_leaves_its_place_within_two_seconds(monkeypatch):
    it = Perceptron(config(max_count=20), inference=inference("float32", "depth"))
    see_shapes(monkeypatch, it)
    chair = (np.array([0.6, -0.25, 0.0]), np.array([1.0, 0.25, 0.8]))
    moved = (np.array([0.6, 0.9, 0.0]), np.array([1.0, 1.4, 0.8]))
    eye = np.array([-1.2, 0.2, 1.5])

    def film(start_s: float, seconds: float, box) -> list[int]:
        here = []
        for i in range(int(seconds * 10)):  # 10 Hz
            target = np.array([0.8, 0.3 + 0.5 * np.sin(0.9 * i), 0.3])
            stamp_ns = int((start_s + 0.1 * i) * 1e9) + 1
            posed = photograph(look_at(eye + 0.2 * np.sin(0.3 * i), target), stamp_ns, (box,))
            grey = np.full_like(posed.frame.color, 127)  # the colours of this room belong to places, not to things
            it.integrate(replace(posed, frame=replace(posed.frame, color=grey)))
            if i % 5 == 4:  # perceiving at 2 Hz
                it.perceive()
                here = [o.id for o in it.objects if np.linalg.norm(o.box[:2] - [0.8, 0.0]) < 0.3]
        return here

    (old_id,) = film(0.0, 3.0, chair)
    assert film(3.0, 2.0, moved) == []  # two seconds later nothing is left of it
    film(5.0, 1.0, moved)
    new = [o for o in it.objects if np.linalg.norm(o.box[:2] - [0.8, 1.15]) < 0.3]
    assert len(new) == 1
    assert new[0].id == old_id  # its old place is empty, and it looks the same: it is the same chair
    assert new[0].history[-1].kind == EventKind.MOVED


# ------------------------------------------------------------------------------------------------------------------
# corrections


def test_the_whole_world_moves_rigidly_with_its_objects():
    it = perceptron(max_count=20)
    for i, frame in enumerate(walk(23, 8)):
        it.integrate(frame)
        if i % 2:
            it.perceive()
    before = {o.id: o for o in it.objects}
    labels = it.map._semantic.cells()
    assert before
    assert labels is not None
    shift = make_transform(np.eye(3), np.array([0.64, -1.28, 0.0]))  # whole steps of every lattice
    poses = it.keyframe_poses()
    it.correct_keyframes({name: shift @ T for name, T in poses.items()})
    after = {o.id: o for o in it.objects}
    assert set(after) == set(before)
    for i, old in before.items():
        np.testing.assert_allclose(after[i].box[:3], old.box[:3] + shift[:3, 3], atol=1e-9)
        np.testing.assert_allclose(after[i].box[3:], old.box[3:], atol=1e-6)
    moved = it.map._semantic.cells()
    assert moved is not None
    np.testing.assert_allclose(
        np.sort(moved.centers_m, axis=0), np.sort(labels.centers_m + shift[:3, 3], axis=0), atol=1e-4
    )
    seen = it.perceive()  # and the next look knows them all again
    assert {o.id for o in seen.objects} | {o.id for o in seen.stale} >= set(before)


def test_one_named_keyframe_moves_its_neighbours_in_time_with_it():
    it = perceptron(max_count=20)
    for frame in walk(24, 4):
        it.integrate(frame)
    poses = it.keyframe_poses()
    names = list(poses)
    shift = make_transform(np.eye(3), np.array([0.1, 0.0, 0.0]))
    it.correct_keyframes({names[0]: shift @ poses[names[0]], names[3]: poses[names[3]]})
    now = it.keyframe_poses()
    moved = [bool(np.linalg.norm(now[n][:3, 3] - poses[n][:3, 3]) > 0.05) for n in names]
    assert moved == [True, True, False, False]


def test_a_correction_that_is_not_rigid_changes_nothing():
    it = perceptron()
    for frame in walk(25, 3):
        it.integrate(frame)
    before = answers(it)
    name, T = next(iter(it.keyframe_poses().items()))
    bad = T.copy()
    bad[0, 0] += 0.1
    with pytest.raises(ValueError, match="pose of"):
        it.correct_keyframes({name: bad})
    assert it.correct_keyframes({("nobody", 5): np.eye(4)}).corrected == 0
    np.testing.assert_array_equal(it.keyframe_poses()[name], T)
    assert answers(it)[1] == before[1]


# ------------------------------------------------------------------------------------------------------------------
# threads


def test_fusing_goes_on_while_the_network_looks(monkeypatch):
    it = perceptron()
    frames = walk(26, 6)
    it.integrate(frames[0])
    looking, go_on = threading.Event(), threading.Event()
    real = Predictor._predict

    def slow(self, *args):
        looking.set()
        assert go_on.wait(100)
        return real(self, *args)

    monkeypatch.setattr(Predictor, "_predict", slow)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(it.perceive()))
    thread.start()
    assert looking.wait(100)
    for frame in frames[1:]:  # would wait for ever if looking held the volume, or the encoder
        assert it.integrate(frame).fused
    assert it.ground("the chair").text == "the chair"
    go_on.set()
    thread.join(100)
    assert not thread.is_alive()
    assert seen[0].stamp_ns == frames[0].frame.stamp_ns


def test_two_threads_end_where_one_would():
    it, alone = perceptron(max_count=12), perceptron(max_count=12)
    frames = walk(27, 12)
    done = threading.Event()

    def perceive() -> None:
        while not done.is_set():
            it.perceive()
            time.sleep(0.01)

    thread = threading.Thread(target=perceive)
    thread.start()
    try:
        for frame in frames:
            it.integrate(frame)
            time.sleep(0.005)
    finally:
        done.set()
        thread.join(60)
    for frame in frames:
        alone.integrate(frame)
    a, b = it.predict(), alone.predict()
    assert a.detections.labels == b.detections.labels
    np.testing.assert_allclose(a.detections.boxes, b.detections.boxes, atol=1e-4)
    assert it.volume.features.encoded == alone.volume.features.encoded == 12


def test_labels_outside_of_the_window_stay():
    it = perceptron(window_m=1.28)
    for frame in walk(28, 4):
        it.integrate(frame)
    it.perceive()
    first = it.map._semantic.cells()
    T = look_at([1.2, 1.2, 1.2], [-1.0, -1.0, 0.3])
    it.integrate(photograph(T, 10**10, BOXES))
    seen = it.perceive().semantic
    assert seen.classes == CELLS
    low = seen.centers_m.min(0)
    assert low[0] <= first.centers_m[:, 0].min() + 1e-6
    cells = np.round(seen.centers_m / 0.16 - 0.5).astype(int)
    assert len(np.unique(cells, axis=0)) == len(cells)


def test_half_and_full_precision_agree_on_what_matters():
    assert inference().network.view_sampling.occlusion_margin_m == 0.1  # as in training
    frames = walk(29, 5)
    pair = [Perceptron(config(features=f), inference=inference(f)) for f in ("float32", "float16")]
    for frame in frames:
        for it in pair:
            it.integrate(frame)
    full, half = (it.predict().detections for it in pair)
    assert {level.dtype for k in pair[1].volume.keyframes for level in pair[1].volume.features.view(k).levels} == {
        torch.float16
    }
    n = min(len(full), len(half), 10)
    assert n > 0
    np.testing.assert_allclose(full.scores[:n], half.scores[:n], atol=0.02)
