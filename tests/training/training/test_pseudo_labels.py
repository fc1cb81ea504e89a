"""Pseudo-labels: independent sources, examples, and doubtful objects."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from support.lift_world import THINGS, KnowingDetector
from support.online_world import inference
from support.small_recording import write_recording

from embodied_perceptron.config import LiftOptions
from embodied_perceptron.detection2d.fusion import Hypothesis
from embodied_perceptron.detection2d.pipeline import DetectionLift
from embodied_perceptron.inference.posterior import Evidence, shipped_detector_model
from embodied_perceptron.results import UNNAMED
from embodied_perceptron_training.training import pseudo_labels
from embodied_perceptron_training.training.few_shot import FewShotError, is_unlabelled_recording
from embodied_perceptron_training.training.pseudo_labels import (
    NETWORK,
    AgreedThing,
    agreed_room,
    agreed_things,
    agreement_table,
    check_enough,
)

CLASSES = ("Chair", "couch", "tv")
BOX = np.array([0, 0, 0.4, 0.5, 0.5, 0.8, 0, 0, 0.0])


def things(prior, said):
    """Of one place; ``said``: detector -> name -> (views, score)."""
    evidence = tuple(Evidence(source, names) for source, names in said.items())
    plausible = {name: 0.0 for names in said.values() for name in names}
    lift = SimpleNamespace(
        hypotheses=[Hypothesis(np.zeros(0, np.int64), (), BOX, prior, evidence, plausible)],
        detector_model=shipped_detector_model(),
        can_name=True,
    )
    return agreed_things(lift, CLASSES, 0.6, "room")


CHAIR = {"chair": 0.7, UNNAMED: 0.1}


@pytest.mark.parametrize(
    ("prior", "said", "sources"),
    [
        (CHAIR, {"nanodet": {"chair": (3, 0.7)}}, (NETWORK, "nanodet")),
        (None, {"nanodet": {"chair": (4, 0.8)}, "centernet": {"chair": (4, 0.8)}}, ("nanodet", "centernet")),
        (CHAIR, {}, None),  # the network alone
        (CHAIR, {"nanodet": {"chair": (1, 0.7)}}, None),  # one view is none
        (None, {"nanodet": {"chair": (6, 0.9)}}, None),  # one detector alone
        ({"couch": 0.6, "chair": 0.05}, {"nanodet": {"chair": (2, 0.5)}}, None),  # they contradict each other
    ],
)
def test_two_sources_must_report_a_name(prior, said, sources):
    found = things(prior, said)
    agreed = [thing for thing in found if thing.agreed]
    assert [thing.sources for thing in agreed] == ([] if sources is None else [sources])
    if sources is not None:
        assert agreed[0].name == "Chair", "as the network calls it"
        np.testing.assert_array_equal(agreed[0].box, BOX)
    else:
        assert "Chair" in {thing.name for thing in found if not thing.agreed}, "nor is it a counterexample"


def test_too_little_agreement_is_refused_and_all_of_it_is_told():
    some = [AgreedThing(name, BOX, 0.9, (NETWORK, "nanodet"), True) for name in ("chair", "chair", "tv", "tv")]
    with pytest.raises(FewShotError, match="agree on 4 objects, 5 are needed"):
        check_enough(some)
    check_enough([*some, some[0]])
    assert "| chair | 2 | nanodet 2, network 2 |" in agreement_table(some)


def test_a_recording_is_looked_at_with_its_detectors(tmp_path, monkeypatch):
    source = write_recording(tmp_path / "room", count=6)
    assert is_unlabelled_recording(source)
    asked = []

    class Lift(DetectionLift):
        def with_evidence(self, network, scene, can_name=True):
            fused = super().with_evidence(network, scene, can_name)
            asked.append(len(scene.volume.keyframes))
            said = {"any": {"chair": (3, 0.8)}, "other": {"chair": (3, 0.8)}}
            evidence = tuple(Evidence(name, names) for name, names in said.items())
            self.hypotheses = [Hypothesis(np.zeros(0, np.int64), (), BOX, None, evidence, {"chair": 0.0})]
            return fused

    monkeypatch.setattr(pseudo_labels, "lift_from_options", lambda _: Lift())
    room, agreed = agreed_room(source, inference(min_score=0.25), LiftOptions(), 0.6)
    assert asked
    assert asked[-1] >= 1
    assert room.labels == ("chair",) * len(agreed) == ("chair",)
    assert room.doubtful.tolist() == [False]
    assert room.open(None).lift is not None, "the map is made once"
    room, agreed = agreed_room(source, inference(min_score=0.25), LiftOptions(), 0.6, only=("tv",))
    assert (room.labels, agreed) == ((), [])


def test_detectors_that_fail_are_no_agreement(tmp_path, monkeypatch):
    source = write_recording(tmp_path / "room", count=4)

    class Broken(KnowingDetector):
        def detect(self, frame):
            raise RuntimeError("no picture today")

    broken = Broken({}, names=tuple(THINGS))
    monkeypatch.setattr(pseudo_labels, "lift_from_options", lambda _: DetectionLift(lambda: broken))
    with pytest.raises(FewShotError, match="no picture today"):
        agreed_room(source, inference(min_score=0.25), LiftOptions(), 0.6)
