"""The probability that an answer is right, fitted on generated homes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from embodied_perceptron.language.answer import FEATURES, WEIGHTS, Traits
from embodied_perceptron_training.homes import prompts
from embodied_perceptron_training.language import fit_language


def test_the_fit_finds_the_probabilities_of_its_data() -> None:
    rng = np.random.default_rng(3)
    features = np.array(
        [Traits(s, s, False, 1.0).features() for s in rng.uniform(0.05, 0.95, 4000)]
    )  # fmt: skip
    chance = 1.0 / (1.0 + np.exp(-(0.3 + 0.8 * features[:, 1])))
    hits = rng.random(len(chance)) < chance
    beta = fit_language.fit(features, hits)
    stated = 1.0 / (1.0 + np.exp(-(features @ beta)))
    assert np.abs(stated - chance).mean() < 0.05
    assert fit_language.calibration_error(stated, hits) < 0.04
    assert fit_language.calibration_error(np.full(len(hits), 0.99), hits) > 0.2


def test_more_that_speaks_for_an_answer_never_makes_it_less_likely() -> None:
    rng = np.random.default_rng(4)
    features = np.array([Traits(s, 0.5, False, 1.0).features() for s in rng.uniform(0.05, 0.95, 500)])
    beta = fit_language.fit(features, rng.random(500) < 1.0 - features[:, 1])  # the data say the opposite
    assert beta[FEATURES.index("fit_share")] >= 0.0


def test_all_lists_together_count_three_times_as_much_as_the_homes() -> None:
    homes, one = (np.zeros((6, 2)), np.ones(6, bool)), (np.ones((1, 2)), np.zeros(1, bool))
    features, hits = fit_language.joined(homes, [one, one])
    assert (len(hits), int(hits.sum()), int(features[:, 0].sum())) == (24, 6, 18)
    assert len(fit_language.joined(homes, [])[1]) == 6


def test_shipped_weights_have_their_origin_and_the_right_signs() -> None:
    data = json.loads(WEIGHTS.read_text(encoding="utf-8"))
    assert "fit_language" in data["comment"]
    assert data["seed"] >= 0
    weight = dict(zip(data["features"], data["weights"], strict=True))
    assert min(weight[name] for name in ("fit_share", "weakest", "kind", "reading")) >= 0.0
    assert max(weight["unsure_view"], weight["use"]) <= 0.0


def test_the_grammar_is_its_own() -> None:
    others = {form for forms in (*prompts.PLAIN.values(), *prompts.FREE.values()) for form in forms}
    own = {form for forms in fit_language.SENTENCES.values() for form in forms}
    assert not own & others
    assert set(fit_language.SENTENCES) <= set(prompts.PLAIN)


@pytest.mark.slow
def test_sentences_follow_from_their_seeds() -> None:
    first, second = (list(fit_language.sentences([7])) for _ in range(2))
    assert [(s.text, s.target) for s in first] == [(s.text, s.target) for s in second]
    assert len(first) > 10
    features, hits = fit_language.observe(iter(first))
    assert features.shape == (len(hits), len(FEATURES))
    assert hits.mean() > 0.3
