"""The posterior over detectors: by hand, and its guarantees."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
from scipy.special import logsumexp

from embodied_perceptron.inference.posterior import (
    ANY_DETECTOR,
    FEATURES,
    DetectorConfusions,
    DetectorModel,
    Evidence,
    detector_model_json,
    log_weights,
    read_detector_model,
    shipped_detector_model,
)
from embodied_perceptron.results import UNNAMED

COUNTED = DetectorConfusions(
    things={"chair": 40, "couch": 20},
    reported={"chair": {"chair": 30, "couch": 6}},
)
PRIOR = {"chair": 0.5, UNNAMED: 0.2}


def model(**weights):
    return DetectorModel(dict.fromkeys(FEATURES, 0.0) | weights, {ANY_DETECTOR: COUNTED})


def said(name, views=1, score=0.5):
    return Evidence("any", {name: (views, score)})


def test_without_detectors_the_prior_stays():
    assert shipped_detector_model().posterior(PRIOR, [], {}) == PRIOR


def test_evidence_multiplies_odds_by_hand():
    found = model(thing=1.0, views=0.5, score=2.0).posterior(PRIOR, [said("chair", 4, 0.75)], {})
    gain = math.exp(1.0 + 0.5 * math.log(4) + 2.0 * math.log(3.0))
    total = 0.5 * gain + 0.2 * gain + 0.3
    assert found == pytest.approx({"chair": 0.5 * gain / total, UNNAMED: 0.2 * gain / total})


def test_a_name_that_no_box_of_the_network_says_has_its_nameless_part():
    found = model(unsaid=-1.0).posterior(PRIOR, [said("tv")], {"tv": -0.5})
    assert found["tv"] / found[UNNAMED] == pytest.approx(math.exp(-1.0))


def test_shapes_are_named_by_detectors_alone_and_stay_where_these_are_unsure():
    by_hand = model(alone=-1.0)
    alone = by_hand.posterior(None, [said("tv")], {})
    of_shapes = by_hand.posterior({UNNAMED: 0.9}, [said("tv")], {}, can_name=False)
    assert of_shapes["tv"] == alone["tv"]
    assert sum(of_shapes.values()) == pytest.approx(0.9)
    sure = model(alone=5.0)
    unsure_shape = sure.posterior({UNNAMED: 0.1}, [said("tv")], {}, can_name=False)
    assert unsure_shape == pytest.approx(sure.posterior(None, [said("tv")], {}))


def test_a_name_of_one_view_is_as_sure_as_its_score():
    by_hand = model(thing=1.0, score=1.0, confusion=1.0)
    for score in (0.6, 0.8, 0.95):
        found = by_hand.posterior({UNNAMED: 0.4}, [said("dog", 1, score)], {}, can_name=True)
        assert found["dog"] / sum(found.values()) == pytest.approx(score)


def test_views_that_agree_make_a_name_surer_and_those_that_do_not_do_not():
    shipped = shipped_detector_model()

    def share(*evidence):
        found = shipped.posterior({UNNAMED: 0.8}, evidence, {}, can_name=False)
        return found["tv"] / sum(v for name, v in found.items()), sum(found.values())

    unsure = [share(said("tv", views, 0.45)) for views in (1, 2, 4, 8)]
    assert [exists for _, exists in unsure] == pytest.approx([max(0.8, e) for _, e in unsure])  # no less is there
    assert all(a < b for (a, _), (b, _) in itertools.pairwise(unsure))
    assert unsure[0][0] < 0.5 < unsure[-1][0]
    torn = Evidence("any", {"tv": (2, 0.45), "laptop": (2, 0.45), "book": (2, 0.45)})
    assert share(torn)[0] < 0.4


def test_two_detectors_say_more_than_one():
    shipped = shipped_detector_model()
    one = shipped.posterior(None, [said("chair", 3, 0.7)], {})
    both = shipped.posterior(None, [said("chair", 3, 0.7), dataclasses.replace(said("chair", 3, 0.7), source="x")], {})
    assert both["chair"] > one["chair"]


@pytest.mark.parametrize("seed", range(3))
def test_nobody_takes_away_what_another_found(seed):
    """Whatever is said of a place, its existence does not fall."""
    rng, shipped = np.random.default_rng(seed), shipped_detector_model()
    for _ in range(200):
        exists, share = rng.uniform(0.05, 0.95), rng.uniform()
        prior = {"chair": exists * share, UNNAMED: exists * (1 - share)}
        name, score = str(rng.choice(["chair", "tv", "dog"])), rng.uniform(0.3, 0.95)
        found = shipped.posterior(prior, [said(name, int(rng.integers(1, 9)), score)], {name: -0.1})
        assert sum(found.values()) >= exists - 1e-6


def test_the_shipped_model_is_one_of_likelihoods_that_were_measured():
    shipped = shipped_detector_model()
    assert all(shipped.weights[name] >= 0 for name in ("views", "score", "confusion", "plausible"))
    assert set(shipped.detectors) > {ANY_DETECTOR}
    for confusions in shipped.detectors.values():
        assert sum(confusions.things.values()) > 100


def test_files_come_back_and_others_are_refused():
    shipped = shipped_detector_model()
    again = read_detector_model(detector_model_json(shipped, "a command", {}))
    assert again.detectors == shipped.detectors
    assert again.weights == pytest.approx(shipped.weights, abs=1e-3)
    former = json.loads(detector_model_json(shipped, "a command", {}))
    former["weights"]["silence"] = 1.0  # a feature of older versions
    assert read_detector_model(json.dumps(former)) == again
    for text in ("", "[]", "{}", json.dumps({"weights": {}, "detectors": {}})):
        with pytest.raises(ValueError, match="detector model"):
            read_detector_model(text)
    with pytest.raises(ValueError, match="finite weights"):
        model(thing=math.nan)
    with pytest.raises(ValueError, match="called 'any'"):
        DetectorModel(dict.fromkeys(FEATURES, 0.0), {})


def test_log_weights_are_as_by_hand_also_of_states_that_do_not_exist():
    rng = np.random.default_rng(3)
    table, weights = rng.normal(size=(4, 5, len(FEATURES))), rng.normal(size=len(FEATURES))
    offset = rng.normal(size=(4, 5))
    offset[2, 3:] = -np.inf
    column = FEATURES.index("confusion")
    rest = [k for k in range(len(FEATURES)) if k != column]
    plain = offset + table[..., rest] @ weights[rest]
    found = log_weights(table, offset, weights)
    np.testing.assert_allclose(found[:, 0], plain[:, 0])
    confused = plain[:, 1:] + table[:, 1:, column] * weights[column]
    shift = logsumexp(plain[:, 1:], axis=1) - logsumexp(confused, axis=1)
    np.testing.assert_allclose(found[:, 1:], confused + shift[:, None])
    # what is there at all is what the other features say
    np.testing.assert_allclose(logsumexp(found[:, 1:], axis=1), logsumexp(plain[:, 1:], axis=1))
