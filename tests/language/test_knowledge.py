"""Sentences that describe a thing without its name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from embodied_perceptron.language.answer import ground_objects
from embodied_perceptron.language.knowledge import TRAITS, is_named, noun_knowledge, vector_of
from embodied_perceptron.language.meaning import ANYTHING, Constraint, Meaning, ObjectPhrase
from embodied_perceptron.language.query import Query
from embodied_perceptron.results import GroundingStatus, SceneObject
from embodied_perceptron_training.language.fit_knowledge import new_knowledge, read_phrases

LABELS = ("microscope", "razor", "chair", "refrigerator", "mirror", "bathtub", "toothbrush")


def scene(labels: tuple[str, ...] = LABELS) -> list[SceneObject]:
    return [
        SceneObject(k + 1, label, 0.9, np.array([1.5 * k, 3.0, 0.5, 0.5, 0.5, 1.0, 0.0, 0.0, 0.0]))
        for k, label in enumerate(labels)
    ]


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("Point at the gizmo you squint down to see germs.", "microscope"),
        ("fetch me the Gillette", "razor"),
        ("tiny bristles at one end, goes round your gob twice a day", "toothbrush"),
    ],
)
def test_a_description_finds_the_object(text: str, label: str) -> None:
    answer = ground_objects(text, scene(), vocabulary=None)
    assert answer.status == GroundingStatus.FOUND
    assert answer.candidates[0].label == label
    assert answer.reason.startswith("by its description")
    without = ground_objects(text, scene(tuple(name for name in LABELS if name != label)), vocabulary=None)
    assert without.status == GroundingStatus.NOT_FOUND or without.candidates[0].score < 0.5


@pytest.mark.parametrize(
    ("text", "labels"),
    [("doc would like a listen to his chest, what'll she put to her ears", ("stethoscope",)), ("what do you see?", ())],
)
def test_a_question_about_anything_may_be_a_description(text: str, labels: tuple[str, ...]) -> None:
    meaning = Meaning(text, ObjectPhrase(ANYTHING, (0, 0), plural=True), kind="contents", every=True)
    names = ("syringe", "bandage", "stethoscope", "thermometer", "crutches")
    answer = ground_objects(Query(text, meaning=meaning), scene(names), vocabulary=None)
    assert answer.status == GroundingStatus.FOUND
    assert {o.label for o in answer.candidates} == set(labels or names)


def test_no_is_an_answer_to_a_question() -> None:
    text, chair = "is the chair red?", ObjectPhrase("chair", (7, 12))
    red = Constraint("colour", value="red", span=(13, 16))
    asked = Meaning(
        text, chair, (red,), kind="exists", every=True, probability=0.7, others=(Meaning(text, chair, probability=0.3),)
    )
    blue = np.tile([30.0, 50.0, 200.0], (len(LABELS), 1))
    assert ground_objects(Query(text, meaning=asked), scene(), colors=blue).status == GroundingStatus.NOT_FOUND


@pytest.mark.parametrize("text", ["where is the piano", "bring me the chainsaw", "the chair by the piano"])
def test_what_is_named_and_absent_is_not_found(text: str) -> None:
    assert ground_objects(text, scene(), vocabulary=None).status == GroundingStatus.NOT_FOUND


def test_an_empty_scene_has_no_guess() -> None:
    assert noun_knowledge().guess("the thing you sit on", ()) == ("", 0.0)
    assert ground_objects("the thing you sit on", [], vocabulary=None).status != GroundingStatus.FOUND


def test_one_label_is_scored() -> None:
    label, traits = noun_knowledge().traits("the thing you sit on", ("chair",))
    assert label == "chair"
    assert traits.shape == (len(TRAITS),)
    assert np.isfinite(traits).all()


def test_a_noun_of_the_sentence_names_its_labels() -> None:
    assert is_named("couch", "the sofa by the window")
    assert not is_named("couch", "somewhere for a nap")


def test_vectors_are_of_what_a_text_is_about() -> None:
    vector = vector_of("microscope")
    assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-5)
    assert float(vector @ vector_of("it makes germs look big")) > float(vector @ vector_of("a place to sit"))


def test_an_unlisted_noun_has_the_vector_of_its_name() -> None:
    knowledge = noun_knowledge()
    assert "sliding wardrobe" not in knowledge.nouns
    label, _ = knowledge.traits("my coats need hanging up behind doors", ("sliding wardrobe", "microscope"))
    assert label == "sliding wardrobe"


def test_phrases_are_read_by_noun(tmp_path: Path) -> None:
    file = tmp_path / "phrases.txt"
    file.write_text(
        "kettle: I'm parched\nkettle: it whistles: loudly\nrazor: the Gillette\nrazor: for chins\n", encoding="utf-8"
    )
    assert read_phrases([file]) == {
        "kettle": ["I'm parched", "it whistles: loudly"],
        "razor": ["the Gillette", "for chins"],
    }
    file.write_text("kettle: I'm parched\nrazor\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"phrases.txt:2: not `noun: phrase`: 'razor'"):
        read_phrases([file])

    file.write_text("kettle: I'm parched\n", encoding="utf-8")
    with pytest.raises(ValueError, match="'kettle' has one phrase"):
        read_phrases([file])


def test_the_closest_two_phrases_and_the_mean_count() -> None:
    said = {
        "kettle": ["I'm parched", "it whistles", "boil some water"],
        "razor": ["the Gillette", "my chin is all stubble"],
    }
    knowledge = new_knowledge(said)
    asked = vector_of("my stubble itches")
    slow = [
        0.5 * (mean @ asked) + 0.5 * np.mean(sorted((vector_of(p) @ asked for p in phrases), reverse=True)[:2])
        for mean, phrases in zip(knowledge.means, said.values(), strict=True)
    ]
    assert np.allclose(knowledge._fits(asked), slow, atol=1e-6)
    assert slow[1] > slow[0]


SHOP = ("clothes rack", "stool", "gas cylinder", "bottle", "razor", "door", "guitar", "stethoscope", "coat rack")


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("the stool by the clothes rail", "stool"), ("Wheel the clothes rail over here", "clothes rack"),
        ("Where stands the gas bottle?", "gas cylinder"), ("Is that old six-string still for sale?", "guitar"),
        ("give me the bottle", "bottle"),
    ],
)  # fmt: skip
def test_other_names_mean_a_label(text: str, label: str) -> None:
    """For landmarks too, and where a more general noun is there: a gas bottle is no bottle."""
    answer = ground_objects(text, scene(SHOP), vocabulary=None)
    assert (answer.status, answer.candidates[0].label) == (GroundingStatus.FOUND, label)


@pytest.mark.parametrize("text", ["the door handle", "the ashtray"])
def test_what_belongs_to_a_label_does_not_mean_it(text: str) -> None:
    assert ground_objects(text, scene(SHOP), vocabulary=None).status == GroundingStatus.NOT_FOUND


@pytest.mark.parametrize("labels", [("bed", "bed", "chair"), ("floor", "bed", "bed"), ("wall", "chair")])
def test_among_few_labels_none_is_described_by_chance(labels: tuple[str, ...]) -> None:
    assert ground_objects("the unicorn", scene(labels), vocabulary=None).status == GroundingStatus.NOT_FOUND


def test_a_sure_description_is_more_than_a_use() -> None:
    text = "Doc needs the thing she hangs round her neck and listens to your chest with."
    answer = ground_objects(text, scene(SHOP), vocabulary=None)
    assert (answer.status, answer.candidates[0].label) == (GroundingStatus.FOUND, "stethoscope")


def test_of_things_that_fit_equally_well_the_described_one_is_meant() -> None:
    """Red: a razor and a stool."""
    objects = scene(("razor", "stool", "bed"))
    colors = np.array([(200, 30, 30), (200, 30, 30), (30, 50, 200)], float)
    answer = ground_objects("the red thing that you shave with", objects, colors=colors, vocabulary=None)
    assert (answer.status, answer.candidates[0].label) == (GroundingStatus.FOUND, "razor")
