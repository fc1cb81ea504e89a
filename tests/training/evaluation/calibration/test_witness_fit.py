"""The fit of witnesses: places drawn from a known model give it back, and what it promises holds."""

from __future__ import annotations

import json
from importlib.resources import files

import numpy as np
import pytest

from embodied_perceptron.detection2d.fusion import Place
from embodied_perceptron.inference.posterior import (
    ANY_DETECTOR,
    FEATURES,
    NOTHING,
    DetectorConfusions,
    Evidence,
    WitnessModel,
)
from embodied_perceptron.results import UNNAMED
from embodied_perceptron_training.evaluation.calibration.witness_fit import (
    DetectorCounts,
    HeardPlace,
    HomeRecord,
    Truth,
    cross_validated,
    fit_weights,
    true_state,
    with_subsets,
)

NAMES = ("chair", "couch", "tv")
COUNTED = DetectorConfusions(
    things=dict.fromkeys(NAMES, 100),
    said={name: {name: 60, other: 10} for name, other in zip(NAMES, ("couch", "chair", "chair"), strict=True)},
    views=dict.fromkeys(NAMES, (400, 200)),
)
TRUE = dict(zip(FEATURES, (1.0, 0.8, 0.5, 0.7, 0.6, 0.3, -1.0, -1.5), strict=True))


def drawn(count, seed=0):
    """Places whose true states are drawn from the posterior of :data:`TRUE`."""
    rng, model, places = np.random.default_rng(seed), WitnessModel(TRUE, {ANY_DETECTOR: COUNTED}), []
    for _ in range(count):
        exists, share = rng.uniform(0.05, 0.95), rng.uniform(0.1, 0.9)
        prior = {str(rng.choice(NAMES)): exists * share, UNNAMED: exists * (1 - share)}
        known = None if rng.uniform() < 0.3 else prior
        speaks = known is None or rng.uniform() < 0.6
        said = {str(rng.choice(NAMES)): (int(rng.integers(1, 7)), float(rng.uniform(0.3, 0.95)))} if speaks else {}
        evidence = (Evidence("any", said, int(rng.integers(0 if speaks else 1, 6)), frozenset(NAMES)),)
        plausible = {name: float(-rng.exponential(1.0)) for name in said}
        place = Place(np.zeros(0, np.int64), (), np.array([0, 0, 0, 1, 1, 1, 0, 0, 0.0]), known, evidence, plausible)
        posterior = model.posterior(known, evidence, plausible)
        states = [*posterior, NOTHING]
        p = np.array([*posterior.values(), max(0.0, 1.0 - sum(posterior.values()))])
        places.append(HeardPlace(place, str(rng.choice(states, p=p / p.sum())), 1.0))
    return places


def counts():
    found = DetectorCounts.none()
    for name in NAMES:
        found.things[name] += 100
        found.said[name].update(COUNTED.said[name])
        found.seen[name] += 400
        found.right[name] += 200
    return {"any": found}


@pytest.fixture(scope="module")
def places():
    return drawn(4000)


def test_the_weights_that_drew_the_places_come_back(places):
    fitted = fit_weights(places, WitnessModel(dict.fromkeys(FEATURES, 0.0), {ANY_DETECTOR: COUNTED}))
    for name in FEATURES:
        assert fitted[name] == pytest.approx(TRUE[name], abs=0.35), name


def test_probabilities_are_reliable_on_homes_that_were_left_out(places):
    homes = [HomeRecord(places[k::4], counts()) for k in range(4)]
    report = cross_validated(homes)
    assert len(report.curve) == 5
    for weight, promised, right in report.curve:
        assert right == pytest.approx(promised, abs=0.05 + 1.0 / np.sqrt(weight))
    network, together = report.log_loss
    assert together < network - 0.1


def test_the_shipped_model_was_reliable_where_it_was_measured():
    shipped = json.loads((files("embodied_perceptron.inference") / "witnesses.json").read_text(encoding="utf-8"))
    measured = shipped["measured"]
    assert "calibrate-witnesses" in shipped["source"]
    assert measured["homes"] >= 10
    assert measured["log_loss"]["all"] < measured["log_loss"]["network"] - 0.1
    weight = np.array([row[0] for row in measured["reliability"]])
    gap = np.array([abs(row[1] - row[2]) for row in measured["reliability"]])
    assert (weight * gap).sum() / weight.sum() < 0.06  # mean gap between what is promised and what is right


def test_each_detector_alone_is_fitted_too():
    box = np.array([0.0, 0.0, 0.5, 1.0, 1.0, 1.0, 0, 0, 0])
    evidence = (Evidence("a", {"tv": (1, 0.5)}), Evidence("b", {"chair": (2, 0.5)}))
    alone = HeardPlace(Place(np.zeros(0, np.int64), (), box, None, evidence, {}), "tv", 3.0)
    subsets = with_subsets([alone])
    assert [tuple(one.source for one in s.place.evidence) for s in subsets] == [("a", "b"), ("a",), ("b",)]
    assert [s.true for s in subsets] == ["tv", "tv", UNNAMED]
    assert [s.weight for s in subsets] == [1.0, 1.0, 1.0]


def test_truth_is_what_a_box_lies_on_under_a_name_that_is_said():
    box = np.array([0.0, 0.0, 0.5, 1.0, 1.0, 1.0, 0, 0, 0])
    evidence = (Evidence("any", {"tv": (1, 0.5)}),)
    place = Place(np.zeros(1, np.int64), (), box, {"chair": 0.5}, evidence, {})
    aside = box + 0.3 * np.eye(9)[0]
    assert true_state(place, Truth(np.stack([box, aside]), ("lamp", "tv"))) == "tv"
    assert true_state(place, Truth(np.stack([aside]), ("lamp",))) == UNNAMED
    assert true_state(place, Truth(box[None] + 5.0 * np.eye(9)[:1], ("chair",))) == NOTHING
    assert true_state(place, Truth(np.zeros((0, 9)), ())) == NOTHING
