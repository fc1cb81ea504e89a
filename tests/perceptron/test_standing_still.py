"""The network does not run for a map that is at rest, and runs for every change that matters."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support.online_world import BOXES, config, inference, look_at, photograph, walk

from embodied_perceptron.config import KeyframeConfig
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame

EYE = np.array([-0.6, -0.6, 1.3])
POSE = look_at(EYE, [1.2, 0.2, 0.3])


def standing(monkeypatch: pytest.MonkeyPatch, tolerance: float) -> tuple[Perceptron, list[int]]:
    """A robot that has stood for a while, and how often its network has run since."""
    rng = np.random.default_rng(1)
    settings = config()
    settings = dataclasses.replace(
        settings,
        network=dataclasses.replace(settings.network, reuse_tolerance=tolerance),
        keyframes=KeyframeConfig(max_count=8),
    )
    it, runs = Perceptron(settings, inference=inference()), [0]
    for i in range(40):
        it.integrate(noisy(100_000_000 * (i + 1), rng))
    it.perceive()
    encode = it.inference.encode

    def counted(*args, **kwargs):  # type: ignore[no-untyped-def]
        runs[0] += 1
        return encode(*args, **kwargs)

    monkeypatch.setattr(it.inference, "encode", counted)
    return it, runs


def noisy(stamp_ns: int, rng: np.random.Generator) -> PosedFrame:
    posed = photograph(POSE, stamp_ns)
    depth_m = posed.frame.depth_m * (1 + 0.001 * rng.normal(size=posed.frame.depth_m.shape)).astype(np.float32)
    return PosedFrame(RgbdFrame(stamp_ns, "front", posed.frame.color, depth_m, posed.frame.intrinsics), POSE)


def test_nothing_new_is_not_read_again(monkeypatch):
    it, runs = standing(monkeypatch, 0.0)
    first = it.prediction
    seen = it.perceive()
    assert runs == [0]
    assert it.prediction.detections.labels == first.detections.labels
    assert len(seen.semantic.labels) > 0


@pytest.mark.parametrize("tolerance", [0.0, 2.0])
def test_frames_of_a_standing_robot(monkeypatch, tolerance):
    it, runs = standing(monkeypatch, tolerance)
    rng = np.random.default_rng(0)
    for i in range(8):
        assert not it.integrate(noisy(10**10 + 100_000_000 * i, rng)).keyframe
        it.perceive()
    assert runs == ([8] if tolerance == 0 else [0])


def test_small_changes_add_up(monkeypatch):
    """What the last pass read is compared with, not what the last look saw."""
    it, runs = standing(monkeypatch, 0.05)
    rng = np.random.default_rng(0)
    for i in range(30):
        it.integrate(noisy(10**10 + 100_000_000 * i, rng))
        it.perceive()
    assert 0 < runs[0] < 30


def test_every_change_that_matters_is_read(monkeypatch):
    it, runs = standing(monkeypatch, 2.0)
    count = 0

    def expect_a_run() -> None:
        nonlocal count
        it.perceive()
        count += 1
        assert runs == [count]

    cup = (np.array([0.3, -0.1, 0.0]), np.array([0.4, 0.0, 0.12]))
    it.integrate(photograph(POSE, 10**10, (*BOXES, cup)))  # a small thing comes
    expect_a_run()
    for i in range(20):  # and goes
        it.integrate(photograph(POSE, 10**10 + 100_000_000 * (i + 1)))
    expect_a_run()
    (frame,) = walk(3, 1)  # another view
    it.integrate(PosedFrame(RgbdFrame(2 * 10**10, *list(vars(frame.frame).values())[1:]), frame.T_world_camera))
    expect_a_run()
    poses = it.keyframe_poses()
    moved = {name: T.copy() for name, T in poses.items()}
    for T in moved.values():
        T[:3, 3] += 0.02
    it.correct_keyframes(moved)
    expect_a_run()
    it.perceive(window_m=1.92)
    count += 1
    assert runs == [count]
    expect_a_run()  # the usual window again
    it.release_accelerator()
    expect_a_run()
    it.reset()
    it.perceive()
    assert runs == [count]
    assert len(it.prediction.detections) == 0


def test_another_map_is_read(monkeypatch, tmp_path):
    it, runs = standing(monkeypatch, 2.0)
    it.save(tmp_path / "map.safetensors")
    it.load(tmp_path / "map.safetensors")  # its keyframes are other ones, whose images are encoded anew
    it.perceive()
    assert runs == [1]


def test_the_window_stays_while_the_camera_trembles():
    it = Perceptron(config(), inference=inference())
    cell_m, regions = it.inference._cell_m, []
    for i, x in enumerate((0.0, 0.45, 0.55, 0.45, 0.7, 0.8, 0.55, 0.3, 0.2)):  # in cells; a window has its middle at 0
        it.integrate(photograph(look_at(np.array([x * cell_m, 0.0, 1.2]), [x * cell_m, 1.5, 0.4]), 10**9 * (i + 1)))
        it.perceive()
        regions.append(0.5 * (it.prediction.region.lower_m[0] + it.prediction.region.upper_m[0]) / cell_m)
    np.testing.assert_allclose(regions, [0, 0, 0, 0, 0, 1, 1, 1, 0], atol=1e-9)


def test_a_prediction_that_is_asked_for_keeps_nothing(monkeypatch):
    it, runs = standing(monkeypatch, 1e9)
    it.integrate(noisy(10**10, np.random.default_rng(2)))
    arguments = it._window, it.volume.copy(), it.map._cameras.view_direction, it.prediction.floor_z_m
    it.inference.predict(*arguments, keep=True)
    assert runs == [0]
    it.inference.predict(*arguments)
    assert runs == [1]


def test_a_tolerance_is_not_negative():
    with pytest.raises(ValueError, match="reuse_tolerance must not be negative, got -1"):
        dataclasses.replace(config().network, reuse_tolerance=-1.0)
