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
    NO_MISSES,
    DetectorConfusions,
    DetectorModel,
    Evidence,
    Recall,
    VisibleObject,
    detector_model_json,
    log_weights,
    read_detector_model,
    shipped_detector_model,
)
from embodied_perceptron.results import UNNAMED

COUNTED = DetectorConfusions(
    things={"chair": 40, "couch": 20},
    reported={"chair": {"chair": 30, "couch": 6}},
    views={"chair": ((0, 0), (80, 60), (0, 0))},
)
VOCABULARY = frozenset({"chair", "tv"})
PRIOR = {"chair": 0.5, UNNAMED: 0.2}


def model(**weights):
    return DetectorModel(dict.fromkeys(FEATURES, 0.0) | weights, {ANY_DETECTOR: COUNTED})


def said(name, views=1, score=0.5, silent=0):
    return Evidence("any", {name: (views, score)}, (0, silent, 0), VOCABULARY)


def silence(views):
    return Evidence("any", {}, (0, views, 0), VOCABULARY)


def test_without_detectors_the_prior_stays():
    assert shipped_detector_model().posterior(PRIOR, [], {}) == PRIOR
    assert shipped_detector_model().posterior(PRIOR, [silence(0)], {}) == PRIOR


def test_evidence_multiplies_odds_by_hand():
    found = model(thing=1.0, views=0.5, score=2.0).posterior(PRIOR, [said("chair", 4, 0.75)], {})
    gain = math.exp(1.0 + 0.5 * math.log(4) + 2.0 * math.log(3.0))
    total = 0.5 * gain + 0.2 * gain + 0.3
    assert found == pytest.approx({"chair": 0.5 * gain / total, UNNAMED: 0.2 * gain / total})


def test_silence_counts_for_known_names_alone():
    by_hand = model(silence=1.0)
    once = by_hand.posterior(PRIOR, [silence(1)], {})
    odds = once["chair"] / once[UNNAMED] / (0.5 / 0.2)
    known = COUNTED.share_of(VOCABULARY)
    assert known == pytest.approx(40 / 60)
    share = (1.0 - recall_of("chair")) / (known * (1.0 - recall_of(UNNAMED)) + 1.0 - known)
    assert odds == pytest.approx(share)
    lamp = {"lamp": 0.5, UNNAMED: 0.0}
    assert by_hand.posterior(lamp, [silence(9)], {})["lamp"] == pytest.approx(0.5, abs=0.01)


def recall_of(name, recall=COUNTED.recall):
    return recall.of_size[1] * recall.of_name.get(name, 1.0)


def detects(rate, **of_name):
    return Recall(np.full(3, rate), of_name)


def test_the_less_a_detector_misses_the_more_its_silence_says():
    poor, good, perfect = (detects(rate).log_seldom("chair", (0, 4, 0), NO_MISSES) for rate in (0.2, 0.6, 0.95))
    assert perfect < math.log(0.02) < good < math.log(0.3) < poor < 0.0
    assert detects(0.95, chair=0.2).log_seldom("chair", (0, 4, 0), NO_MISSES) > perfect, "but not of chairs"
    views = [detects(0.95).log_seldom("chair", (0, n, 0), NO_MISSES) for n in (0, 1, 2, 9, 60)]
    assert views == sorted(views, reverse=True)
    assert views[0] == 0.0
    assert views[1] == pytest.approx(math.log(0.05))
    assert detects(0.9).log_seldom("chair", (0, 1, 0), (0, 9, 0)) > math.log(0.5), "as often as it must"
    assert detects(0.9).log_seldom("chair", (0, 9, 0), (0, 1, 0)) < math.log(0.02)


def test_recall_is_that_of_views_by_size():
    recall = Recall(np.array([0.1, 0.5, 0.9]), {})
    small, medium, large = (recall.log_seldom("chair", size, NO_MISSES) for size in ((1, 0, 0), (0, 1, 0), (0, 0, 1)))
    assert (small, medium, large) == pytest.approx((math.log(0.9), math.log(0.5), math.log(0.1)))


def map_of(rate, count=40, silent=(), views=4):
    """Objects of a map whose views report them with a rate; ``silent`` are the network's names that none reports."""
    rng = np.random.default_rng(5)
    shown = rng.binomial(views, rate, count).tolist()
    objects = [VisibleObject("chair", 0.9, (0, views - n, 0), (0, n, 0)) for n in shown]
    return objects + [VisibleObject(name, 0.7, (0, views, 0), NO_MISSES) for name in silent]


@pytest.mark.parametrize("rate", [0.3, 0.6, 0.98])
def test_recall_is_estimated_in_the_map(rate):
    recall = detects(0.4).in_map(map_of(rate, silent=("tv",)))
    assert recall_of("chair", recall) == pytest.approx(rate, abs=0.1)


def test_a_name_of_the_network_that_a_good_detector_never_reports_dies_alone_and_lives_in_numbers():
    one = detects(0.4).in_map(map_of(0.98, silent=("tv",)))
    many = detects(0.4).in_map(map_of(0.98, silent=("tv",) * 12))
    assert recall_of("tv", one) > 0.8
    assert recall_of("tv", many) < 0.4, "the detector does not find such objects"


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
    torn = Evidence("any", {"tv": (2, 0.45), "laptop": (2, 0.45), "book": (2, 0.45)}, (0, 0, 0), VOCABULARY)
    assert share(torn)[0] < 0.4
    silent = share(said("tv", 2, 0.45, silent=6))[0]
    assert silent < share(said("tv", 2, 0.45))[0]


def test_two_detectors_say_more_than_one():
    shipped = shipped_detector_model()
    one = shipped.posterior(None, [said("chair", 3, 0.7)], {})
    both = shipped.posterior(None, [said("chair", 3, 0.7), dataclasses.replace(said("chair", 3, 0.7), source="x")], {})
    assert both["chair"] > one["chair"]


@pytest.mark.parametrize("seed", range(3))
def test_nobody_takes_away_what_another_found_without_evidence_of_absence(seed):
    """Whatever is said of a place, its existence does not fall; silence alone lowers it, and by its measure."""
    rng, shipped = np.random.default_rng(seed), shipped_detector_model()
    for _ in range(200):
        exists, share = rng.uniform(0.05, 0.95), rng.uniform()
        prior = {"chair": exists * share, UNNAMED: exists * (1 - share)}
        name, score = str(rng.choice(["chair", "tv", "dog"])), rng.uniform(0.3, 0.95)
        found = shipped.posterior(prior, [said(name, int(rng.integers(1, 9)), score)], {name: -0.1})
        assert sum(found.values()) >= exists - 1e-6


def test_the_shipped_model_is_one_of_likelihoods_that_were_measured():
    shipped = shipped_detector_model()
    assert all(shipped.weights[name] >= 0 for name in ("views", "score", "confusion", "silence", "plausible"))
    assert set(shipped.detectors) > {ANY_DETECTOR}
    for confusions in shipped.detectors.values():
        assert sum(confusions.things.values()) > 100


def test_files_come_back_and_others_are_refused():
    shipped = shipped_detector_model()
    again = read_detector_model(detector_model_json(shipped, "a command", {}))
    assert again.detectors == shipped.detectors
    assert again.weights == pytest.approx(shipped.weights, abs=1e-3)
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
