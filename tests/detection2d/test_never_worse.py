"""A detector never takes names from the map that the network has right, however good or bad it is."""

from __future__ import annotations

import numpy as np
import pytest
from support.lift_world import CUP_BOX, TABLE_BOX, THINGS, KnowingDetector, config, perfect, tour

from embodied_perceptron.detection2d.pipeline import DetectionLift, LiftSettings
from embodied_perceptron.detection2d.scheduler import SchedulerRules
from embodied_perceptron.geometry.boxes import iou_of_arrays
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import UNNAMED, Certainty, Detections

CHAIR_BOX = np.array([-0.975, 1.125, 0.45, 0.45, 0.45, 0.9, 0, 0, 0])
CARPET_BOX = np.array([-0.75, -1.1, 0.006, 1.5, 1.0, 0.02, 0, 0, 0])
PICTURE_BOX = np.array([1.985, -0.6, 1.5, 0.03, 0.6, 0.4, 0, 0, 0])
TRUTH = {"table": TABLE_BOX, "cup": CUP_BOX, "chair": CHAIR_BOX, "carpet": CARPET_BOX, "picture": PICTURE_BOX}
# what the network says: three names right, one unsure, one wrong
SAID = {"table": 0.55, "cup": 0.5, "chair": 0.9}


def network():
    boxes, scores, labels, posteriors = [], [], [], []
    for name, box in TRUTH.items():
        label = name if name in SAID else "window" if name == "picture" else UNNAMED
        score = SAID.get(name, 0.5)
        boxes.append(box)
        scores.append(score)
        labels.append(label)
        posteriors.append(
            {label: score, UNNAMED: min(0.3 * score, 1.0 - score)} if label != UNNAMED else {"mat": 0.2, UNNAMED: 0.3}
        )
    return Detections(np.array(boxes), np.array(scores), tuple(labels), tuple(posteriors), Certainty.CALIBRATED)


def degraded(recall=1.0, confusion=0.0, jitter=0.0, score=(0.9, 0.9), only=tuple(THINGS)):
    """Answers of a worse detector, drawn anew from each image's stamp."""

    def answer(frame, shown):
        rng = np.random.default_rng([frame.stamp_ns % 2**31, 7])
        out = []
        for name, box, _ in perfect(frame, shown):
            keep, confused, which, *noise = rng.random(3).tolist() + rng.normal(0.0, jitter, 4).tolist()
            if keep >= recall or name not in only:
                continue
            said = list(THINGS)[int(which * len(THINGS))] if confused < confusion else name
            sides = np.tile([box[2] - box[0], box[3] - box[1]], 2)
            out.append((said, (np.array(box) + sides * noise).tolist(), float(rng.uniform(*score))))
        return out

    return answer


DEGRADED = {
    "perfect": degraded(),
    "silent": degraded(recall=0.0),
    "half": degraded(recall=0.5),
    "jitter": degraded(jitter=0.08),
    "confused": degraded(confusion=0.3, score=(0.3, 0.6)),
    "unsure": degraded(score=(0.3, 0.4)),
    "weak": degraded(recall=0.3, confusion=0.2, jitter=0.05, score=(0.3, 0.5)),
    "one name": degraded(only=("table",)),
    "always wrong, never sure": degraded(confusion=1.0, score=(0.3, 0.35)),
}


@pytest.fixture(scope="module")
def room():
    frames, shown = tour()
    perceptron = Perceptron(config())
    for frame in frames:
        perceptron.integrate(frame)
    with perceptron.map.perceiving() as (scene, _):
        yield scene, shown


def right_names(found):
    """Objects whose best box has their name; and all objects under any name."""
    right = named = 0
    for name, box in TRUTH.items():
        thick = box.copy()
        thick[3:6] = np.maximum(thick[3:6], 0.1)
        boxes = found.boxes.copy()
        boxes[:, 3:6] = np.maximum(boxes[:, 3:6], 0.1)
        near = np.flatnonzero((iou_of_arrays(boxes, thick[None])[:, 0] >= 0.25) & (found.scores >= 0.25))
        if len(near):
            label = found.labels[near[np.argmax(found.scores[near])]]
            right, named = right + (label == name), named + (label != UNNAMED)
    return right, named


@pytest.mark.parametrize("name", DEGRADED)
def test_names_of_the_network_stay(room, name):
    scene, shown = room
    settings = LiftSettings(schedule=SchedulerRules(max_rate_hz=1000.0, burst=1000))
    lift = DetectionLift(lambda: KnowingDetector(shown, DEGRADED[name]), settings)
    alone, fused = right_names(network()), right_names(lift.with_evidence(network(), scene))
    assert fused[0] >= alone[0] - 1
    assert fused[1] >= alone[1] - 1
    if name == "perfect":
        assert fused[0] > alone[0]
