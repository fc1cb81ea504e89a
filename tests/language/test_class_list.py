"""Names that shall be published: which categories stand for them, what objects are called then, and bad lists."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from support.lift_world import KnowingDetector, config, tour
from support.object_scenes import A, B, world

from embodied_perceptron.config import ConfigError
from embodied_perceptron.detection2d.pipeline import DetectionLift
from embodied_perceptron.inference.naming import joined_by_name, published_name
from embodied_perceptron.language.class_list import MAX_NEW_NAMES, ClassList, read_names
from embodied_perceptron.nn.text_encoder import TextFeatures
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import UNNAMED, Detections, GroundingStatus
from embodied_perceptron.scene.object_map import ObjectMap

CATEGORIES = ("chair", "stool", "couch", "table", "carpet", "mat", "refrigerator", "piano")


class Letters:
    """A text encoder by letters: words of the same ones mean the same."""

    channels = 26

    def __init__(self):
        self.read = []

    def encode(self, texts):
        self.read += texts
        counts = torch.tensor([[float(text.count(chr(97 + i))) for i in range(26)] for text in texts])
        unit = torch.nn.functional.normalize(counts, dim=1)
        n = len(texts)
        return TextFeatures(counts[:, None], torch.zeros(n, 1).bool(), unit, torch.zeros(n, 1, 2).long(), (0,) * n)


def boxes(*rows):
    """(label, score, box) each."""
    return Detections(np.array([b for *_, b in rows]), np.array([s for _, s, _ in rows]), tuple(n for n, *_ in rows))


# ----------------------------------------------------------------------------------------------------------- matching


def test_categories_stand_for_themselves_and_for_synonyms_without_any_encoder():
    def never():
        raise AssertionError("no name is new")

    names = ClassList(["Chair", "sofa", "fridges", "rug"], CATEGORIES, never)
    assert names.names == ("chair", "sofa", "fridges", "rug")
    expected = {"chair": "chair", "couch": "sofa", "refrigerator": "fridges", "carpet": "rug", "mat": "rug"}
    assert {c: names.name_of(c) for c in CATEGORIES} == dict.fromkeys(CATEGORIES, UNNAMED) | expected
    assert names.unmatched == ()


def test_a_category_of_the_list_is_its_own_though_another_name_means_it_too():
    names = ClassList(["seating", "chair"], CATEGORIES)
    assert names.name_of("chair") == "chair"
    assert names.name_of("couch") == "seating"


def test_new_names_are_compared_by_meaning_above_a_threshold(caplog):
    encoder = Letters()
    with caplog.at_level(logging.WARNING):
        names = ClassList(["aipno", "zzz", "chair"], CATEGORIES, lambda: encoder)
    assert names.name_of("piano") == "aipno"
    assert names.unmatched == ("zzz",)
    assert "no category matches 1 of 3 names: zzz" in caplog.text
    assert "chair" not in encoder.read  # known by word
    assert names.name_of("zzzz") == "zzz"  # a label that comes up later
    assert names.name_of("hook") == UNNAMED


@pytest.mark.slow
def test_meaning_by_the_packaged_encoder():
    from embodied_perceptron.nn.text_encoder import text_encoder

    names = ClassList(["display screen", "drone"], ("screen", "toaster", "chair"), lambda: text_encoder("minilm"))
    assert names.name_of("screen") == "display screen"
    assert (names.name_of("toaster"), names.unmatched) == (UNNAMED, ("drone",))


# ----------------------------------------------------------------------------------------------------- what it changes


def test_votes_are_summed_over_what_stands_for_a_name():
    of = {"chair": "seat", "stool": "seat", "table": UNNAMED, "desk": UNNAMED, "bed": "bed"}.__getitem__
    assert published_name({"chair": 0.3, "stool": 0.3, "table": 0.4}, of) == "seat"
    assert published_name({"chair": 0.3, "table": 0.2, "desk": 0.2}, of) == UNNAMED
    assert published_name({"chair": 0.5, "table": 0.5}, of) == "seat"
    assert published_name({"bed": 0.5, "chair": 0.3, "stool": 0.3}, of) == "seat"


def test_boxes_of_one_thing_under_one_name_become_one_with_their_sum():
    of = {"chair": "seat", "stool": "seat", "table": UNNAMED}.__getitem__
    near = A + np.array([0.01, 0, 0, 0, 0, 0, 0, 0, 0])
    found = boxes(("table", 0.35, A), ("chair", 0.3, A), ("stool", 0.2, near), ("chair", 0.1, B))
    joined = joined_by_name(found, of)
    assert joined.labels == ("chair", "table", "chair")
    assert joined.scores == pytest.approx([0.5, 0.35, 0.1])
    np.testing.assert_array_equal(joined.boxes[0], A)
    assert [joined.posterior(k) for k in range(3)] == [{"chair": 0.3, "stool": 0.2}, {"table": 0.35}, {"chair": 0.1}]
    sure = joined_by_name(boxes(("chair", 0.8, A), ("stool", 0.7, near)), of)
    assert sure.scores.tolist() == [1.0]


def test_boxes_of_two_things_or_two_names_stay_as_they_are():
    of = {"chair": "seat", "stool": "seat", "bed": "bed"}.__getitem__
    found = boxes(("chair", 0.3, A), ("stool", 0.2, B), ("bed", 0.2, A))
    assert joined_by_name(found, of) is found
    nothing = Detections(np.zeros((0, 9)), np.zeros(0), ())
    assert joined_by_name(nothing, of) is nothing


def test_the_map_publishes_listed_names_and_keeps_its_own():
    names = ClassList(["seating", "plant"], CATEGORIES)
    objects = ObjectMap(name_of=names.name_of)
    for i in range(3):
        objects.update(boxes(("couch", 0.8, A), ("piano", 0.8, B)), world(A, B), i)
    seat, piano = objects.objects()
    assert (seat.label, seat.category) == ("seating", "couch")
    assert (piano.label, piano.category) == (UNNAMED, "piano")
    assert "category" not in seat.as_dict()
    objects.relabel(piano.id, "harp")  # what a user says is published, listed or not
    assert objects.objects()[1].label == "harp"
    again = ObjectMap()
    again.load_json(objects.to_json())
    assert [o.label for o in again.objects()] == ["couch", "harp"]


@pytest.fixture(scope="module")
def perceived():
    frames, shown = tour(6)
    labels = sorted(KnowingDetector(shown).names)
    names = ClassList(["grail", "dinner place"], labels, lambda: Known({"grail": "cup", "dinner place": "table"}))
    perceptron = Perceptron(config(), lift=DetectionLift(lambda: KnowingDetector(shown)), classes=names)
    for frame in frames:
        perceptron.integrate(frame)
        perceptron.perceive()
    return perceptron, frames[-1].T_world_camera


class Known(Letters):
    """Knows what some names mean."""

    def __init__(self, same):
        super().__init__()
        self.same = same

    def encode(self, texts):
        return super().encode([self.same.get(text, text) for text in texts])


def test_a_perception_with_a_list(perceived):
    perceptron, T = perceived
    labels = [o.label for o in perceptron.objects]
    assert {"grail", "dinner place"} <= set(labels) <= {"grail", "dinner place", UNNAMED}
    cup = next(o for o in perceptron.objects if o.label == "grail")
    for sentence in ("the cup", "the grail", "the cup on the table", "the grail on the table"):
        answer = perceptron.ground(sentence, T)
        assert answer.status == GroundingStatus.FOUND, (sentence, answer.reason)
        assert (answer.candidates[0].id, answer.candidates[0].label) == (cup.id, "grail")


def test_what_comes_nearest_is_called_as_it_is_published(perceived):
    perceptron, T = perceived
    answer = perceptron.ground("the cup under the table", T)
    assert answer.status == GroundingStatus.NOT_FOUND
    assert {o.label for o in answer.nearest} == {"grail"}


def test_a_map_file_has_no_list_in_it(perceived, tmp_path: Path):
    perceptron, T = perceived
    perceptron.save(tmp_path / "map.safetensors")
    plain = Perceptron(config())
    plain.load(tmp_path / "map.safetensors")
    assert {"cup", "table"} <= {o.label for o in plain.objects}
    listed = Perceptron(config(), classes=ClassList(["mug"], ("cup", "table")))
    listed.load(tmp_path / "map.safetensors")
    assert {o.label for o in listed.objects} == {"mug", UNNAMED}
    assert listed.ground("the table", T).candidates[0].label == UNNAMED  # sentences may use all words


# ----------------------------------------------------------------------------------------------------------- bad lists


def test_duplicates_count_once_and_are_reported_once(caplog):
    with caplog.at_level(logging.WARNING):
        names = ClassList(["chair", "Chair ", "table", "chair"], CATEGORIES)
    assert (names.names, names.doubles) == (("chair", "table"), 2)
    assert caplog.text.count("are duplicates") == 1


def test_five_thousand_names(caplog):
    encoder = Letters()
    with caplog.at_level(logging.WARNING):
        names = ClassList([*(f"thing {i}" for i in range(4_998)), "chair", "sofa"], CATEGORIES, lambda: encoder)
    assert len(names.names) == 5_000
    assert (names.name_of("chair"), names.name_of("couch")) == ("chair", "sofa")
    assert len(encoder.read) <= MAX_NEW_NAMES + len(CATEGORIES)  # that is what costs
    assert f"the first {MAX_NEW_NAMES}" in caplog.text


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "list of classes is empty"),
        (["chair", " "], "class 2 of 2 is empty"),
        (["chair", "\x00\x07"], "class 2 of 2 is empty"),
        (["x" * 10_240], "class 1 has 10,240 characters ('xxx"),
        (["a"] * 10_001, "10,001 classes are more than 10,000"),
    ],
)
def test_bad_lists_are_named(names, message):
    with pytest.raises(ConfigError) as caught:
        ClassList(names)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 200


def test_names_of_any_language_stay_what_they_are():
    assert ClassList(["Stuhl", "椅子", "ＴＶ"]).names == ("stuhl", "椅子", "tv")


def test_lists_as_text_and_in_a_file(tmp_path: Path):
    assert read_names("chair, dining table") == ("chair", "dining table")
    file = tmp_path / "names.txt"
    file.write_text("# mine\nchair\n\n  dining table \n", "utf-8")
    assert read_names(str(file)) == ("chair", "dining table")
    for content, message in (
        (b"\n# a\n", "names no class"),
        (b"\xff\xfe\x00", "can't decode"),
        (b"a\n" * 1_500_000, "at most 2000000 are read"),
    ):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match=message):
            read_names(str(file))
    for text, message in (
        ("", "list of classes is empty"),
        ("chair,,table", "class 2 of 3 is empty"),
        (str(tmp_path / "none.txt"), "no file of class names at"),
        ("x" * 10_240, "10,240 characters"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_names(text)
