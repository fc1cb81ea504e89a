"""Stages of a perception: their order and time, which scores they take, and what of the map is computed once."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest
from support import lift_world
from support.online_world import config, inference, walk

from embodied_perceptron.config import ScorePolicy
from embodied_perceptron.detection2d.pipeline import DetectionLift, LiftSettings
from embodied_perceptron.detection2d.scheduler import SchedulerRules
from embodied_perceptron.inference import map_predictor
from embodied_perceptron.inference.confidence_calibration import FEATURES, ConfidenceCalibration
from embodied_perceptron.mapping import voxel_counts
from embodied_perceptron.mapping.volume import FeatureVolume, StageClock
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import Certainty, Detections
from embodied_perceptron.scene import map_copy
from embodied_perceptron.scene.live_map import LiveMap
from embodied_perceptron.scene.stages import GeometryProposer, Stage, run_stages

BOX = Detections(np.array([[0.0, 0.0, 0.5, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]]), np.array([0.5]), ("table",))


def test_stages_run_in_order_and_book_their_time():
    clock = StageClock()
    stages = [
        Stage("half", lambda found, _: found.take(np.array([0]), found.scores * 0.5)),
        Stage("less", lambda found, _: found.take(np.array([0]), found.scores - 0.1)),
    ]
    found = run_stages(stages, BOX, None, clock)  # type: ignore[arg-type]  # no stage reads the map
    assert found is not None
    assert found.scores.tolist() == [0.15]
    assert list(clock.stage_ms) == ["half", "less"]
    assert run_stages(stages, None, None, StageClock()) is None  # type: ignore[arg-type]


def test_scores_of_another_certainty_are_refused():
    live = LiveMap(config(), FeatureVolume(config().volume))
    calibration = ConfidenceCalibration((0.0,) * (1 + len(FEATURES)), {})
    with live.perceiving() as (scene, clock):
        calibrated = calibration(BOX, scene.voxels, scene.floor_z_m)
        assert (BOX.certainty, calibrated.certainty) == (Certainty.RAW, Certainty.CALIBRATED)
        assert calibrated.above(0.0).take(np.array([0])).certainty is Certainty.CALIBRATED
        with pytest.raises(ValueError, match="expected raw scores of boxes, got calibrated ones"):
            calibration(calibrated, scene.voxels, scene.floor_z_m)
        proposal = GeometryProposer().propose(scene, None, clock)
        of_probabilities = dataclasses.replace(proposal, scores=ScorePolicy(0.3).of_probabilities())
        with pytest.raises(ValueError, match="expected calibrated scores of boxes, got raw ones"):
            live.update(scene, of_probabilities, BOX, None, clock)
        live.update(scene, of_probabilities, calibrated, None, clock)


@pytest.mark.parametrize("with_network", [False, True])
def test_walls_and_shapes_are_computed_once_a_perception(with_network, monkeypatch):
    """Network and detector read the same frame along the walls, shapes without names and detector the same shapes."""
    frames, shown = lift_world.tour(4)
    detector = lift_world.KnowingDetector(shown)
    lift = DetectionLift(lambda: detector, LiftSettings(schedule=SchedulerRules(max_rate_hz=50.0, burst=50)))
    it = Perceptron(
        config() if with_network else lift_world.config(), inference=inference() if with_network else None, lift=lift
    )
    for posed in walk(3, 4) if with_network else frames:
        it.integrate(posed)
    calls: Counter[str] = Counter()

    def counted(module: Any, name: str) -> None:
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args: calls.update([name]) or real(*args))

    for module, name in (
        (voxel_counts, "wall_columns"),
        (map_predictor, "wall_aligned_frame"),
        (map_copy, "separate_layers"),
        (map_copy, "find_boxes"),
    ):
        counted(module, name)
    it.perceive()
    assert calls["wall_columns"] == 1
    assert calls["wall_aligned_frame"] == 0  # the predictor is told
    assert calls["separate_layers"] == calls["find_boxes"] == (0 if with_network else 1)
