"""What a name of the network is worth beside its score."""

from __future__ import annotations

import numpy as np
import pytest

from embodied_perceptron.lift.class_priors import shipped_priors
from embodied_perceptron.lift.fusion import fuse_detections
from embodied_perceptron.lift.name_evidence import NameEvidence, log_odds, shipped_evidence
from embodied_perceptron.results import Detections

CHAIR = [0.0, 0.0, 0.45, 0.5, 0.5, 0.9, 0, 0, 0]
CARPET = [0.0, 0.0, 0.01, 2.0, 1.5, 0.02, 0, 0, 0]


def found(box, score, label, shares=None):
    return Detections(np.array([box], float), np.array([score]), (label,), shares)


def test_precision_is_the_beta_mean_of_the_counts():
    evidence = NameEvidence({"chair": (10, 8), "bowl": (6, 0)})
    assert evidence.mean == pytest.approx(9 / 18)
    assert evidence.precision("chair") == pytest.approx((8 + 4 * 0.5) / 14)
    assert evidence.precision("bowl") == pytest.approx(2 / 10)
    assert evidence.precision("never said") == pytest.approx(0.5)


def test_only_what_is_right_seldomer_than_calibrated_is_held_down():
    evidence = NameEvidence({"chair": (10, 8), "bowl": (6, 0)}, calibrated=0.6)
    assert evidence.shift("chair") == 0.0
    assert evidence.shift("bowl") == pytest.approx(log_odds(0.2) - log_odds(0.6))
    assert evidence.shift("object") == 0.0
    assert NameEvidence({"bowl": (1000, 0), "chair": (1000, 1000)}).shift("bowl") == -2.0


def test_counts_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="bowl"):
        NameEvidence({"bowl": (1, 2)})


def test_what_cannot_be_a_bed_is_held_down_by_geometry():
    evidence = NameEvidence({"bed": (10, 10), "carpet": (10, 10)}, priors=shipped_priors())
    both = Detections(np.array([CARPET, CARPET]), np.array([0.5, 0.5]), ("bed", "carpet"))
    bed, carpet = evidence.of(both, 0.0)
    assert bed < carpet - 1.0
    assert carpet == pytest.approx(0.0, abs=0.1)


def test_a_misfiring_detector_loses_to_geometry_and_the_network():
    """Before names were weighed together, the detector's 0.7 of a bed beat the network's 0.6 of a carpet."""
    evidence = NameEvidence({"bed": (10, 10), "carpet": (10, 10)})
    network = found(CARPET, 0.6, "carpet")
    lifted = found(CARPET, 0.7, "bed", ({"bed": 0.6, "carpet": 0.3},))
    fused = fuse_detections(network, lifted, np.ones(1, bool), evidence.of(network, 0.0), even=0.3)
    assert fused.labels == ("carpet",)
    assert sum(fused.shares[0].values()) == pytest.approx(1.0)
    assert fused.shares[0]["carpet"] > fused.shares[0]["bed"] > 0.2


def test_shares_of_one_thing_are_those_of_both_sources():
    network, lifted = found(CHAIR, 0.5, "stool"), found(CHAIR, 0.8, "chair", ({"chair": 0.8, "bin": 0.1},))
    fused = fuse_detections(network, lifted, np.ones(1, bool))
    assert fused.labels == ("chair",)
    total = 0.8 + 0.1 + 0.5
    assert fused.shares[0] == pytest.approx({"bin": 0.1 / total, "chair": 0.8 / total, "stool": 0.5 / total})


def test_shipped_counts_are_of_names_that_exist():
    evidence = shipped_evidence()
    assert 0.3 < evidence.mean < evidence.calibrated < 1.0
    assert evidence.shift("chair") <= 0.0


def test_bad_shares_are_refused():
    for shares in (({"chair": 1.5},), ({},), ({"chair": -0.1},), ({"chair": 0.5}, {"bin": 0.5})):
        with pytest.raises(ValueError, match="shares"):
            found(CHAIR, 0.5, "chair", shares)
