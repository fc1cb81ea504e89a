"""Tagged texts as sentences to learn from, by hand and of a home."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.small_homes import small_homes

from embodied_perceptron_training.datasets.embodiedscan import DatasetError, EmbodiedScanDataset
from embodied_perceptron_training.datasets.grounded_prompts import (
    grounded_prompts,
    prompts_of_question,
    prompts_of_text,
)
from embodied_perceptron_training.training.prepared_scenes import Preparation, SceneCache, sentences_of


def test_each_phrase_is_asked_for_by_its_sentence() -> None:
    text = (
        "There is a <p>white window</p>[<obj_3>] made of plastic. It is the window closest to the "
        "<p>2 brown doors</p>[<obj_14><obj_15>]."
    )
    window, doors = prompts_of_text("s", text)
    assert (window.text, window.target_ids) == ("There is a white window made of plastic.", (3,))
    assert window.text[slice(*window.tokens_positive[0])] == window.target == "white window"
    assert doors.text == "It is the window closest to the 2 brown doors."
    assert (doors.target_ids, doors.target) == ((14, 15), "2 brown doors")
    assert list(prompts_of_text("s", "Nothing is named here.")) == []


def test_a_question_names_what_its_answer_rests_on() -> None:
    (boxes,) = prompts_of_question("s", "How many boxes are there?", "<p>box</p>[<obj_31><obj_41>]")
    assert (boxes.text, boxes.target, boxes.target_ids) == ("How many boxes are there?", "boxes", (31, 41))
    (couch,) = prompts_of_question("s", "Is the couch yellow?", "<p>yellow couch</p>[<obj_18>]")
    assert couch.text[slice(*couch.tokens_positive[0])] == "couch"
    assert list(prompts_of_question("s", "What stands there?", "<p>vase</p>[<obj_2>]")) == []
    assert list(prompts_of_question("s", "Is there a pillow here?", "")) == []


def test_homes_bring_every_kind_and_scenes_keep_them(tmp_path: Path) -> None:
    root = small_homes(tmp_path, sentences=4)
    dataset = EmbodiedScanDataset(root, "train")
    (scan,) = dataset
    found = sentences_of(dataset, "grounded")
    assert len(found) > 20
    known = set(scan.ids.tolist())
    for prompt in found:
        assert known.issuperset(prompt.target_ids)
        assert prompt.text[slice(*prompt.tokens_positive[0])] == prompt.target
    data = json.loads((root / "language" / f"{scan.sample_idx}.json").read_text())
    kinds = {entry["kind"] for entry in data["qa"]}
    asked = {p.text for p in found}
    assert kinds == {entry["kind"] for entry in data["qa"] if entry["question"] in asked}
    # beside the sentences of the split, kept under another name
    cache = SceneCache(dataset, root / ".prepared", Preparation(views=3, text_encoder="x", prompts=("vg", "grounded")))
    assert len(cache[0].prompts) == len(dataset.prompts("vg")) + len(found)
    plain = SceneCache(dataset, root / ".prepared", Preparation(views=3, text_encoder="x"))
    assert cache.paths(0) != plain.paths(0)
    broken = root / "broken.json"
    broken.write_text('{"qa": [{"question": "?"}]}')
    with pytest.raises(DatasetError, match=r"broken\.json holds no grounded texts"):
        grounded_prompts(broken, scan.sample_idx)
