"""One perception as a line: a proposer gives boxes, stages take and give boxes.

proposal = proposer.propose(scene, None, clock)            boxes of a network, or of shapes alone
found = run_stages(stages, proposal.detections, scene, clock)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from embodied_perceptron.config import EVERY_SCORE, NetworkOptions, ScorePolicy
from embodied_perceptron.detection2d.pipeline import DetectionLift
from embodied_perceptron.geometry.transforms import MAX_SITE_COORDINATE
from embodied_perceptron.inference.box_extents import refine_extents
from embodied_perceptron.inference.class_priors import shipped_priors
from embodied_perceptron.inference.confidence_calibration import ConfidenceCalibration
from embodied_perceptron.inference.map_predictor import MapPredictor, ScenePrediction
from embodied_perceptron.inference.naming import joined_by_name
from embodied_perceptron.inference.predictor import Predictor
from embodied_perceptron.mapping.keyframes import Keyframe
from embodied_perceptron.mapping.volume import FeatureVolume, StageClock
from embodied_perceptron.results import Detections, SemanticVoxels
from embodied_perceptron.scene.map_copy import MapCopy
from embodied_perceptron.scene.navigation import semantic_voxels


@dataclass(frozen=True)
class Stage:
    """One step that takes and gives boxes.

    Attributes:
        name: key of its time in :attr:`Perception.stage_ms`.
        apply: (boxes, the map that they lie in) -> boxes. What it is given with scores of another certainty than it is
            made for, it refuses (:meth:`Detections.require`).
    """

    name: str
    apply: Callable[[Detections, MapCopy], Detections]


def run_stages(
    stages: Sequence[Stage],
    found: Detections | None,
    scene: MapCopy,
    clock: StageClock,
    trace: dict[str, Detections] | None = None,
) -> Detections | None:
    """``found`` after one stage after the other; None stays None. ``trace``: gets what each stage gave, by its name."""
    for stage in stages:
        if found is not None:
            found = stage.apply(found, scene)
            clock.lap(stage.name)
            if trace is not None:
                trace[stage.name] = found
    return found


def scoring_stages(inference: Predictor, calibration: ConfidenceCalibration | None) -> tuple[Stage, ...]:
    """From a network's own boxes to those of its prediction: probabilities, by what the map and the things around a box
    say of it (context rescoring is part of it), and boxes without a name where none is sure enough."""
    stages = [Stage("naming", lambda found, _: inference.select(found))]
    if calibration is not None:
        stages.insert(0, Stage("confidence", lambda found, it: calibration(found, it.voxels, it.floor_z_m)))
    return tuple(stages)


def map_stages(
    proposer: Proposer, lift: DetectionLift | None, name_of: Callable[[str], str] | None
) -> tuple[Stage, ...]:
    """From the boxes of a proposal to those that the object map is told of.

    Args:
        proposer: of the boxes.
        lift: things that a 2-D detector saw.
        name_of: label -> name of the list of classes.
    """
    scores = proposer.scores
    stages = []
    if isinstance(proposer, NetworkProposer):
        priors = shipped_priors()
        stages.append(
            Stage("extents", lambda found, it: refine_extents(found, it.voxels, it.floor_z_m, priors, scores.keep))
        )
    if lift is not None:
        can_name = isinstance(proposer, NetworkProposer)
        stages.append(Stage("lift", lambda found, it: lift.with_evidence(found, it, can_name)))
    if name_of is not None:
        stages.append(Stage("classes", lambda found, _: joined_by_name(found, name_of)))
    return tuple(stages)


@dataclass(frozen=True, eq=False)
class Proposal:
    """What may stand in the map.

    Attributes:
        detections: boxes; None when nothing could be computed.
        scores: which of their scores count for what.
        cells: labelled cells for a map that keeps none.
        prediction: of the network, whose labelled cells the map keeps; None without one.
    """

    detections: Detections | None
    scores: ScorePolicy
    cells: SemanticVoxels
    prediction: ScenePrediction | None = None


class Proposer(Protocol):
    """First guesses of what stands in a map.

    Attributes:
        scores: which scores of its boxes count for what.
        reach_m: how far from the map's origin it can work.
    """

    scores: ScorePolicy
    reach_m: float

    def propose(self, scene: MapCopy, window_m: float | None, clock: StageClock) -> Proposal:
        """What may stand in the map, or in its window of this edge; None = of its usual one."""
        ...


class GeometryProposer:
    """The whole map, cut into shapes without names."""

    scores: ScorePolicy = EVERY_SCORE
    reach_m: float = math.inf

    def propose(self, scene: MapCopy, window_m: float | None, clock: StageClock) -> Proposal:
        """See :class:`Proposer`; there is no window."""
        layers = scene.layers
        clock.lap("layers")
        found = scene.shapes
        clock.lap("boxes")
        cells = semantic_voxels(scene.voxels, layers, scene.config.cell_size_m)
        clock.lap("semantic")
        return Proposal(found, self.scores, cells)


class NetworkProposer:
    """Boxes and labelled cells of a network, its boxes scored and named.

    Args:
        inference: the network.
        volume: of the map, with the image features that it reads.
        options: window, and which boxes are made.

    Raises ``ValueError`` as :class:`MapPredictor`, and for a calibration that cannot be read.
    """

    def __init__(self, inference: Predictor, volume: FeatureVolume, options: NetworkOptions) -> None:
        self.scores = replace(inference.scores, all_boxes=options.all_boxes)
        self.reach_m = inference.network.config.voxel_size_m * MAX_SITE_COORDINATE - volume.config.radius_m
        calibration = ConfidenceCalibration.of_calibration(inference.calibration)
        self.predictor = MapPredictor(
            inference,
            volume.features,
            volume.config.voxel_size_m,
            options.window_m,
            self.scores,
            options.window_ahead,
            options.reuse_tolerance,
        )
        self._features = volume.features
        self._stages = scoring_stages(inference, calibration)

    def propose(self, scene: MapCopy, window_m: float | None, clock: StageClock) -> Proposal:
        """See :class:`Proposer`."""
        with self.predictor.keeping():
            prediction = self.predict(scene, window_m, clock)
        return Proposal(prediction.detections, self.scores, self.predictor.no_cells, prediction)

    def forget(self) -> None:
        """The map is another one."""
        self.predictor.forget()

    def encode(self, keyframe: Keyframe, clock: StageClock) -> None:
        """Compute the image features of a new keyframe now; from the thread that fuses."""
        if self._features is not None:
            self._features.prefetch(keyframe)
        clock.lap("encode")

    def predict(self, scene: MapCopy, window_m: float | None, clock: StageClock) -> ScenePrediction:
        """What the network sees, its boxes scored and named."""
        manhattan = scene.manhattan if self.predictor.reads_map else None
        prediction = self.predictor.predict(
            scene.volume, scene.cameras.view_direction, scene.floor_z_m, window_m, manhattan
        )
        clock.lap("network")
        return replace(prediction, detections=run_stages(self._stages, prediction.detections, scene, clock))
