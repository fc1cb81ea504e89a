"""The grammar that the learned reader of relations is fitted on, and the fit."""

from __future__ import annotations

import importlib.util
import json
import re
from collections import defaultdict

import pytest
import torch

from embodied_perceptron.nn.relation_reader import RELATIONS, RelationReader
from embodied_perceptron.nn.text_encoder import MINILM_PACKAGE
from embodied_perceptron_training.language.fit_reader import fit, nouns_of, prepared
from embodied_perceptron_training.language.reader_sentences import NOTHING, Example, _grammar, examples, forms, mirrored

NOUNS = {
    "closest": [("lamp", "couch"), ("chair", "table")],
    "on": [("cup", "desk")],
    "between": [("bed", "door", "sink")],
}
needs_minilm = pytest.mark.skipif(
    importlib.util.find_spec(MINILM_PACKAGE) is None, reason=f"package {MINILM_PACKAGE} is not installed"
)


def test_every_form_names_what_it_is_about_and_tells_a_relation_that_the_network_has():
    for form in forms("all"):
        letters = re.findall(r"\{(\w+)\}", form.pattern)
        assert form.relation in (*RELATIONS, NOTHING), form
        assert {"T", "Ts"} & set(letters), form
        assert set(letters) <= {"T", "Ts", "A", "As", "B", "Bs"}, form
        assert bool({"B", "Bs"} & set(letters)) == (form.relation == "between"), form
        assert {"A", "As"} & set(letters), form


def test_no_whole_sentence_tells_two_relations():
    told: dict[str, set[str]] = defaultdict(set)
    for form in forms("all"):
        if form.kind in ("whole", "none"):
            told[form.pattern].add(form.relation)
    assert {pattern: names for pattern, names in told.items() if len(names) > 1} == {}


def test_right_is_the_mirror_of_left():
    said = "rightwards of the left one, leftward and right there; rightly leftover"
    assert mirrored(said) == "leftwards of the right one, rightward and left there; rightly leftover"
    assert mirrored(mirrored(said)) == said
    groups = _grammar()["relations"]
    left, right = (re.findall(r"\b(?:left|right)\w*", json.dumps(groups[name])) for name in ("left", "right"))
    turned = {"l": "right", "r": "left"}
    assert [turned[word[0]] + word.removeprefix("left").removeprefix("right") for word in left] == right


def test_learned_and_kept_forms_are_others_and_each_draw_says_others():
    learned, kept = ({form.pattern for form in forms(part)} for part in ("learned", "kept"))
    assert learned
    assert len(learned & kept) < 0.01 * len(kept)  # "stands" "on" and "stands on" are two phrases
    first, second = (examples("learned", NOUNS, 1, seed) for seed in (1, 11))
    assert len(first) == len(second)
    same = sum(a == b for a, b in zip(first, second, strict=True))
    assert same < 0.1 * len(first)


@needs_minilm
def test_a_fit_reads_each_draw_and_leaves_minilm_as_it_is():
    said = [
        Example("the lamp beside the couch", "closest", (4, 8), ((20, 25),), "place"),
        Example("the cup is no plate", NOTHING, (4, 7), ((14, 19),), "none"),
    ]
    assert all(len(nouns_of(example)) == 2 for example in said)
    torch.manual_seed(0)
    reader = RelationReader().load_minilm()
    before = {name: value.clone() for name, value in reader.state_dict().items()}
    drawn: list[int] = []

    def draw(epoch: int) -> list[Example]:
        drawn.append(epoch)
        return said

    def likelihood() -> float:
        with torch.inference_mode():
            batch, right = prepared(reader, said)
            pairs, nothing = reader(batch)
            chance = torch.cat([pairs.flatten(1), nothing], 1).log_softmax(1)
            return float(chance.masked_fill(~right, -1e9).logsumexp(1).mean())

    reader.eval()
    start = likelihood()
    fit(reader, draw, 8, 0)
    assert drawn == list(range(8))
    assert likelihood() > start + 0.5
    changed = {name for name, value in reader.state_dict().items() if not torch.equal(value, before[name])}
    assert changed
    assert changed <= set(reader.trained())
