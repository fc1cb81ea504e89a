"""Stages of a perception: their order and time, which scores they take, and what of the map is computed once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from support import lift_world
from support.online_world import config, inference, walk

from embodied_perceptron.config import ScorePolicy
from embodied_perceptron.detection2d.pipeline import DetectionLift, LiftSettings
from embodied_perceptron.detection2d.scheduler import SchedulerRules
from embodied_perceptron.inference import predictor as predictor_module
from embodied_perceptron.inference.confidence_calibration import FEATURES, ConfidenceCalibration
from embodied_perceptron.mapping import voxel_counts
from embodied_perceptron.mapping.volume import FeatureVolume
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import Certainty, Detections
from embodied_perceptron.scene import live_map
from embodied_perceptron.scene.live_map import LiveMap

BOX = Detections(np.array([[0.0, 0.0, 0.5, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]]), np.array([0.5]), ("table",))


def test_scores_of_another_certainty_are_refused():
    live = LiveMap(config(), FeatureVolume(config().volume), scores=ScorePolicy(0.3).of_probabilities())
    calibration = ConfidenceCalibration((0.0,) * (1 + len(FEATURES)), {})
    with live.perceiving() as (scene, clock):
        calibrated = calibration(BOX, scene.voxels, scene.floor_z_m)
        assert (BOX.certainty, calibrated.certainty) == (Certainty.RAW, Certainty.CALIBRATED)
        assert calibrated.above(0.0).take(np.array([0])).certainty is Certainty.CALIBRATED
        with pytest.raises(ValueError, match="expected raw scores of boxes, got calibrated ones"):
            calibration(calibrated, scene.voxels, scene.floor_z_m)
        with pytest.raises(ValueError, match="expected calibrated scores of boxes, got raw ones"):
            live.update(scene, BOX, None, None, clock)
        live.update(scene, calibrated, None, None, clock)


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
        (predictor_module, "wall_aligned_frame"),
        (live_map, "separate_layers"),
        (live_map, "find_boxes"),
    ):
        counted(module, name)
    perception = it.perceive()
    stages = ["proposal", "extents", "lift"] if with_network else ["proposal", "lift"]
    assert list(it.trace) == stages
    assert set(stages[1:]) < set(perception.stage_ms)
    assert calls["wall_columns"] == 1
    assert calls["wall_aligned_frame"] == 0  # the predictor receives the frame
    assert calls["separate_layers"] == calls["find_boxes"] == (0 if with_network else 1)
