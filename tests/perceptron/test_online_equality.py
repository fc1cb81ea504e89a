"""What is updated bit by bit equals what is computed from scratch over the retained keyframes.

Random sequences of everything that can happen to a map; after each, the live sums, boxes and labels are compared with
a batch that encodes and fuses every retained keyframe anew.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.online_world import config, inference, look_at, photograph, walk

from embodied_perceptron.geometry.manhattan import WORLD, ManhattanFrame
from embodied_perceptron.geometry.transforms import invert_transform, make_transform
from embodied_perceptron.inference.naming import names_from_boxes
from embodied_perceptron.inference.predictor import Predictor, ScenePrediction
from embodied_perceptron.nn.view_fusion import View
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.sensors.frame import PosedFrame
from embodied_perceptron.sparse.engine import TorchEngine
from embodied_perceptron.sparse.sites import Sites
from embodied_perceptron.sparse.tensor import SparseTensor

STEPS = 9
# networks are the same for all sequences; they hold no state of a map
NETWORKS = {features: inference(features, min_score=0.3) for features in ("float32", "float16")}


def retained_views(it: Perceptron, exact: Predictor, manhattan: ManhattanFrame = WORLD) -> list[View]:
    """Every retained keyframe, encoded anew in float32, seen from a manhattan."""
    T_lattice_world = invert_transform(manhattan.T_world_manhattan)
    return [exact.view(PosedFrame(k.frame, T_lattice_world @ k.T_world_camera)) for k in it.volume.keyframes]


def turn(yaw: float) -> np.ndarray:
    c, s = np.cos(yaw), np.sin(yaw)
    return make_transform(np.array([[c, -s, 0], [s, c, 0], [0, 0, 1.0]]), np.zeros(3))


def small_turn(rng: np.random.Generator, size: float) -> np.ndarray:
    T = turn(rng.normal() * size)
    T[:3, 3] = rng.normal(size=3) * size
    return T


def live_sequence(seed: int, features: str, folder) -> Perceptron:
    """A map with a life: several cameras, repeats, evictions, corrections, files, resets."""
    rng = np.random.default_rng(seed)
    it = Perceptron(config(max_count=int(rng.integers(2, 7)), features=features), inference=NETWORKS[features])
    frames = walk(seed, STEPS + 4, cameras=int(rng.integers(1, 4)))
    if seed % 2:  # odometry that started at an angle to the walls
        frames = [PosedFrame(f.frame, turn(0.3 * seed) @ f.T_world_camera) for f in frames]
    stamp_ns, last = 0, frames[0]
    for i in range(STEPS):
        event = rng.choice(["new", "new", "new", "again", "correct", "file", "reset", "look", "release"])
        stamp_ns += 250_000_000
        if event == "again":
            last = posed_at(last, stamp_ns)
            it.integrate(last)
        elif event == "correct" and len(it.volume.keyframes):
            poses = it.keyframe_poses()
            names = [n for n in poses if rng.random() < 0.7] or list(poses)[:1]
            it.correct_keyframes({n: small_turn(rng, 0.05) @ poses[n] for n in names})
        elif event == "file":
            it.save(folder / "map.safetensors")
            if rng.random() < 0.5:
                it = Perceptron(it.config, inference=it.inference)
            it.load(folder / "map.safetensors")
        elif event == "reset" and i < STEPS - 4:
            it.reset()
        elif event == "look":
            it.perceive()
        elif event == "release":
            it.release_accelerator()
        last = posed_at(frames[i], stamp_ns + 1)
        it.integrate(last)
        if rng.random() < 0.3:
            it.perceive()
    it.integrate(posed_at(frames[-1], stamp_ns + 250_000_000))
    return it


def posed_at(frame: PosedFrame, stamp_ns: int) -> PosedFrame:
    f = frame.frame
    return PosedFrame(type(f)(stamp_ns, f.camera, f.color, f.depth_m, f.intrinsics), frame.T_world_camera)


def look(it: Perceptron) -> ScenePrediction:
    """One more look of the live network, as it stands."""
    return it.inference.predict(it._window, it.volume.copy(), it.map._cameras.view_direction, 0.0)


def seeds(fast: int, count: int) -> list[object]:
    return [seed if seed < fast else pytest.param(seed, marks=pytest.mark.slow) for seed in range(count)]


@pytest.mark.parametrize("seed", seeds(15, 30))
def test_live_equals_batch(seed, tmp_path):
    features = "float16" if seed % 3 == 0 else "float32"
    it = live_sequence(seed, features, tmp_path)
    prediction = look(it)
    network = NETWORKS["float32"].network
    manhattan = prediction.region.manhattan
    views = retained_views(it, NETWORKS["float32"], manhattan)
    assert len(views) == len(it.volume.keyframes) > 0
    batch = network.lookup([views])

    # features at every level that the network reads
    scene = prediction.parts[0].scene
    seen = 0
    for level, tensor in enumerate(scene.levels):
        expected = batch(level, tensor.sites)
        found = scene.lookup(level, tensor.sites)
        limit = 1e-4 if features == "float32" else 2e-3 * max(1.0, float(expected.abs().max()))
        assert float((found - expected).abs().max()) <= limit
        seen += int((expected.abs().sum(1) > 0).sum())
    assert seen > 50

    # boxes and labels: a network that never saw this map before, over views of the same precision
    same = retained_views(it, it.inference, manhattan)
    scene = it.inference.encode(scene.sites, same, manhattan)
    expected_boxes = it.inference.detections(scene)
    assert prediction.detections is not None
    assert len(prediction.detections) == len(expected_boxes) > 0
    assert prediction.detections.labels == expected_boxes.labels
    np.testing.assert_allclose(prediction.detections.scores, expected_boxes.scores, atol=1e-4)
    np.testing.assert_allclose(prediction.detections.boxes, expected_boxes.boxes, atol=1e-4)
    anchor = 0.5 * (prediction.region.lower_m[:2] + prediction.region.upper_m[:2])
    cells = it.inference.occupancy(scene, [anchor[0], anchor[1], 0.0])
    cells = names_from_boxes(cells, prediction.detections)
    assert prediction.semantic is not None
    np.testing.assert_array_equal(prediction.semantic.centers_m, cells.centers_m)
    np.testing.assert_array_equal(prediction.semantic.labels, cells.labels)


@pytest.mark.parametrize("seed", seeds(5, 10))
def test_what_the_network_keeps_equals_a_pass_over_everything(seed, tmp_path):
    it = live_sequence(seed, "float32", tmp_path)
    memory, network = it._window.memory, it.inference.network
    shares = []
    for i in range(5):  # a camera that turns a little
        T = look_at(np.array([0.1, -0.2, 1.3]), [1.6, 0.1 * i, 0.4])
        it.integrate(photograph(T, 10**12 + 250_000_000 * i))
        scene = look(it).parts[0].scene
        everything = Sites(scene.sites.keys, 1, 1, TorchEngine())
        with torch.inference_mode():
            whole = network(SparseTensor(everything, scene.sites.feats), scene.lookup)
        for kept, anew in zip(scene.levels, whole.levels, strict=True):
            torch.testing.assert_close(kept.keys, anew.keys, rtol=0, atol=0)
            torch.testing.assert_close(kept.feats, anew.feats, rtol=0, atol=1e-4)
        (found,), (expected,) = (network.boxes(features) for features in (scene, whole))
        torch.testing.assert_close(found.labels, expected.labels, rtol=0, atol=0)
        torch.testing.assert_close(found.boxes, expected.boxes, rtol=0, atol=1e-4)
        torch.testing.assert_close(found.scores, expected.scores, rtol=0, atol=1e-4)
        shares.append(memory.computed / memory.outputs)
    assert min(shares) < 0.9  # some of it was kept


def test_the_comparison_would_notice_a_missing_view():
    it = Perceptron(config(max_count=4), inference=NETWORKS["float32"])
    for frame in walk(99, 4):
        it.integrate(frame)
    prediction = look(it)
    network = NETWORKS["float32"].network
    views = retained_views(it, NETWORKS["float32"])[1:]
    batch = network.lookup([views])
    scene = prediction.parts[0].scene
    tensor = scene.levels[0]
    assert float((scene.lookup(0, tensor.sites) - batch(0, tensor.sites)).abs().max()) > 1e-2


def test_corrected_keyframes_give_the_map_that_right_poses_would_have_given():
    wrong, right = (Perceptron(config(max_count=20), inference=NETWORKS["float32"]) for _ in range(2))
    rng = np.random.default_rng(5)
    frames = walk(7, 6, cameras=2)
    truth = {}
    for frame in frames:
        right.integrate(frame)
        name = frame.frame.camera, frame.frame.stamp_ns
        truth[name] = frame.T_world_camera
        wrong.integrate(PosedFrame(frame.frame, small_turn(rng, 0.1) @ frame.T_world_camera))
    assert len(wrong.volume.keyframes) == len(frames)
    encoded = wrong.volume.features.encoded
    correction = wrong.correct_keyframes({**truth, ("nobody", 1): np.eye(4)})
    assert correction.corrected == len(frames)
    assert correction.unknown == (("nobody", 1),)
    a, b = wrong.volume.copy(1), right.volume.copy(1)
    assert torch.equal(a.rows.coords, b.rows.coords)
    assert torch.equal(a.rows.records, b.rows.records)
    x, y = look(wrong), look(right)
    np.testing.assert_allclose(x.detections.boxes, y.detections.boxes, atol=1e-9)
    assert wrong.volume.features.encoded == encoded  # no image was encoded again


def test_whole_map_in_one_window_is_the_window():
    it = Perceptron(config(window_m=7.68), inference=NETWORKS["float32"])
    for frame in walk(11, 6):
        it.integrate(frame)
    one = look(it)
    everything = it.inference.predict(it._window, it.volume.copy(), None, 0.0, float("inf"))
    assert len(everything.detections) > 0
    assert np.isinf(everything.region.upper_m).all()
    best = set(one.detections.labels[:20])
    assert best & set(everything.detections.labels[:20])


def test_overlapping_windows_answer_for_the_whole_map():
    it = Perceptron(config(window_m=1.28), inference=NETWORKS["float32"])
    for frame in walk(12, 6):
        it.integrate(frame)
    prediction = it.inference.predict(it._window, it.volume.copy(), None, 0.0, float("inf"))
    voxels = it.volume.snapshot().mean_point_m
    centers = prediction.detections.boxes[:, :2]
    assert centers[:, 0].max() - centers[:, 0].min() > 2.0  # from several windows
    cells = np.round(prediction.semantic.centers_m / 0.16 - 0.5).astype(int)
    assert len(np.unique(cells, axis=0)) == len(cells)  # no cell is answered twice
    assert cells[:, 0].max() * 0.16 > 0.5 * voxels[:, 0].max()


def test_a_map_on_the_gpu_is_the_map_on_the_cpu(gpu):
    """The whole chain with the volume, the features and the network on the device, compared with the CPU."""
    networks = {"cpu": NETWORKS["float32"], str(gpu): inference("float32", min_score=0.3, device=str(gpu))}
    maps = [Perceptron(config(max_count=4, device=device), inference=it) for device, it in networks.items()]
    rng = np.random.default_rng(3)
    for i, frame in enumerate(walk(21, 7, cameras=2)):
        turned = small_turn(rng, 0.05)
        for it in maps:
            it.integrate(frame)
            if i == 5:
                it.correct_keyframes({name: turned @ T for name, T in it.keyframe_poses().items()})
    a, b = (it.volume.snapshot(1) for it in maps)
    assert len(a.coords) > 0
    np.testing.assert_array_equal(a.coords, b.coords)
    np.testing.assert_allclose(a.mean_point_m, b.mean_point_m, atol=1e-4)
    x, y = (look(it) for it in maps)
    assert len(x.detections) == len(y.detections) > 0
    # scores that tie to rounding may change places
    order_x, order_y = (np.lexsort(np.round(p.detections.boxes[:, :3], 2).T) for p in (x, y))
    np.testing.assert_allclose(x.detections.boxes[order_x], y.detections.boxes[order_y], atol=5e-3)
    np.testing.assert_allclose(x.detections.scores[order_x], y.detections.scores[order_y], atol=5e-3)
    same = np.mean(x.semantic.labels == y.semantic.labels) if len(x.semantic.labels) == len(y.semantic.labels) else 0.0
    assert same > 0.99
