"""The learned reader: sentences in forms that no pattern knows."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from embodied_perceptron.language import reader as reader_module
from embodied_perceptron.language.parser import Meaning, parse
from embodied_perceptron.language.reader import Reading, SentenceReader
from embodied_perceptron.nn.relation_reader import RELATIONS, NounBatch, RelationReader, probabilities
from embodied_perceptron.nn.text_encoder import MINILM_PACKAGE, text_encoder

needs_minilm = pytest.mark.skipif(
    importlib.util.find_spec(MINILM_PACKAGE) is None, reason=f"package {MINILM_PACKAGE} is not installed"
)


def _said(meaning: Meaning) -> tuple[str, list[tuple[str, list[str]]]]:
    assert meaning.target is not None
    relations = [(c.relation, [a.noun for a in c.anchors]) for c in meaning.constraints if c.anchors]
    return meaning.target.noun, relations


class _Fixed:
    """A reader that says one thing, and counts how often it is asked."""

    def __init__(self, reading: Reading | None) -> None:
        self.reading, self.asked = reading, 0

    def read(self, text: str, nouns: object, names: object) -> Reading | None:
        self.asked += 1
        return self.reading


@pytest.fixture
def fixed(monkeypatch: pytest.MonkeyPatch) -> object:
    def install(reading: Reading | None) -> _Fixed:
        stand_in = _Fixed(reading)
        monkeypatch.setattr(reader_module, "sentence_reader", lambda: stand_in)
        return stand_in

    return install


UNKNOWN = "see the lamp: it gossips to the couch"


def test_a_relation_that_no_pattern_knows_is_taken_from_the_network(fixed):
    fixed(Reading("closest", 0, (1,), 0.8))
    assert _said(parse(UNKNOWN)) == ("lamp", [("closest", ["couch"])])


def test_the_words_of_a_reading_keep_their_places_in_the_sentence(fixed):
    fixed(Reading("closest", 0, (1,), 0.8))
    meaning = parse(UNKNOWN)
    assert meaning.target is not None
    assert UNKNOWN[slice(*meaning.target.span)] == "lamp"
    (constraint,) = meaning.constraints
    assert UNKNOWN[slice(*constraint.anchors[0].span)] == "couch"


def test_an_unsure_reading_is_not_taken(fixed):
    fixed(Reading("closest", 0, (1,), reader_module.SURE - 0.01))
    assert _said(parse(UNKNOWN)) == ("lamp", [])


def test_another_object_than_the_patterns_found_needs_a_surer_reading(fixed):
    fixed(Reading("closest", 1, (0,), reader_module.SURE_OF_ANOTHER - 0.01))
    assert _said(parse(UNKNOWN))[0] == "lamp"
    fixed(Reading("closest", 1, (0,), reader_module.SURE_OF_ANOTHER + 0.01))
    assert _said(parse(UNKNOWN)) == ("couch", [("closest", ["lamp"])])


def test_another_relation_than_the_patterns_found_needs_a_surer_reading(fixed):
    text = "the lamp gossips by the couch"
    fixed(Reading("farthest", 0, (1,), reader_module.SURER - 0.01))
    assert _said(parse(text)) == ("lamp", [("near", ["couch"])])
    fixed(Reading("farthest", 0, (1,), reader_module.SURER + 0.01))
    assert _said(parse(text)) == ("lamp", [("farthest", ["couch"])])


def test_a_relation_that_the_patterns_found_goes_to_another_object_where_that_is_all_but_certain(fixed):
    text = "the chair that gossips by the couch over there"
    fixed(Reading("closest", 1, (0,), reader_module.SUREST - 0.01))
    assert _said(parse(text)) == ("chair", [("near", ["couch"])])
    fixed(Reading("closest", 1, (0,), reader_module.SUREST + 0.01))
    assert _said(parse(text)) == ("couch", [("closest", ["chair"])])


def test_what_is_said_in_one_piece_goes_to_no_other_object(fixed):
    text = "the chair by the couch needs gossip"
    fixed(Reading("closest", 1, (0,), 1.0))
    assert _said(parse(text)) == ("chair", [("near", ["couch"])])
    fixed(Reading("in", 0, (1,), reader_module.SUREST_OF_ALL - 0.005))
    assert _said(parse(text)) == ("chair", [("near", ["couch"])])
    fixed(Reading("behind", 0, (1,), reader_module.SUREST_OF_ALL + 0.005))
    assert _said(parse(text)) == ("chair", [("behind", ["couch"])])


@pytest.mark.parametrize(("relation", "converse"), [("closest", "closest"), ("on", "supporting")])
def test_a_bare_clause_is_about_its_subject(fixed, relation, converse):
    fixed(Reading(relation, 1, (0,), 0.99))
    assert _said(parse("the lamp gossips to the couch")) == ("lamp", [(converse, ["couch"])])
    assert _said(parse("the lamp gossips to this couch"))[0] == "couch"


def test_between_has_two_anchors(fixed):
    fixed(Reading("between", 0, (1, 2), 0.9))
    said = _said(parse("the lamp hyphenates the couch, the table"))
    assert said == ("lamp", [("between", ["couch", "table"])])


def test_adjectives_of_both_things_stay(fixed):
    fixed(Reading("closest", 0, (1,), 0.9))
    meaning = parse("the red lamp gossips to the white couch")
    assert [(c.relation, c.value) for c in meaning.constraints if not c.anchors] == [("colour", "red")]
    (near,) = (c for c in meaning.constraints if c.anchors)
    assert [(c.relation, c.value) for c in near.anchors[0].constraints] == [("colour", "white")]


@pytest.mark.parametrize(
    "text",
    [
        "the lamp next to the couch",
        "the lamp",
        "bring the red book to the bed",  # a destination is no landmark
        "put the laptop on the bed",
        "throw the cup",  # a verb, though a throw is a thing
        "how many lamps gossip to the couch",
        "all lamps except the one that gossips to the couch",
        "the lamp gossips to the couch " + "and it is very very nice to have " * 4,
    ],
)
def test_known_forms_counts_and_long_descriptions_never_ask_the_network(fixed, text):
    stand_in = fixed(Reading("farthest", 0, (1,), 1.0))
    parse(text)
    assert stand_in.asked == 0


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        ("the lamp in the corner, left of the table, gossips to the couch", Reading("farthest", 0, (2,), 1.0)),
        ("the lamp is by the couch. it gossips to the table", Reading("farthest", 0, (2,), 1.0)),
        ("the lamp is by the couch. it gossips to the table", Reading("farthest", 0, (1,), 1.0)),
        ("the lamp is by the couch. it gossips loudly", Reading("farthest", 0, (1,), 1.0)),
        ("the small office chair. the chair is in the corner", Reading("closest", 0, (1,), 1.0)),
    ],
)
def test_a_reading_takes_no_place_of_what_is_said_of_something_else(fixed, text, reading):
    fixed(None)
    patterns = parse(text)
    fixed(reading)
    assert parse(text) == patterns


@pytest.mark.parametrize(
    "text",
    [
        "the lamp is left in the corner and gossips with the couch",  # words of it look like places in the room
        "there is a lamp; it gossips by the couch",
        "i know a lamp. it gossips by the couch",
    ],
)
def test_where_patterns_have_read_more_a_reading_has_to_be_all_but_certain(fixed, text):
    fixed(Reading("farthest", 0, (1,), reader_module.SUREST - 0.05))
    assert ("farthest", ["couch"]) not in _said(parse(text))[1]
    fixed(Reading("farthest", 0, (1,), reader_module.SUREST + 0.01))
    assert _said(parse(text)) == ("lamp", [("farthest", ["couch"])])


def test_a_sentence_told_anew_is_read_and_one_put_together_of_several_is_not(fixed):
    fixed(Reading("closest", 0, (1,), 1.0))
    assert _said(parse("of all the chairs, the one that keeps the desk company")) == ("chair", [("closest", ["desk"])])
    stand_in = fixed(Reading("closest", 0, (1,), 1.0))
    assert _said(parse("We've got a couch here. Bring me the pillow from it.")) == ("pillow", [("on", ["couch"])])
    assert stand_in.asked == 0


def test_sizes_are_no_reason_to_leave_a_relation_unread(fixed):
    fixed(Reading("farthest", 0, (1,), 1.0))
    said = [(c.relation, [a.noun for a in c.anchors]) for c in parse("the tall lamp gossips by the couch").constraints]
    assert sorted(said) == [("farthest", ["couch"]), ("tall", [])]


def test_a_side_of_the_landmark_is_no_side_of_the_room(fixed):
    fixed(Reading("left", 0, (1,), 1.0))
    assert _said(parse("the lamp gossips on the right to the couch")) == ("lamp", [("left", ["couch"])])
    assert all(c.anchors for c in parse("the lamp gossips on the right to the couch").constraints)


def test_without_minilm_patterns_read_alone(monkeypatch, caplog):
    monkeypatch.setattr(RelationReader, "load_minilm", _missing)
    reader_module.sentence_reader.cache_clear()
    try:
        with caplog.at_level("WARNING"):
            assert _said(parse(UNKNOWN)) == ("lamp", [])
            parse(UNKNOWN)
        assert caplog.text.count("no such package") == 1
    finally:
        reader_module.sentence_reader.cache_clear()


def _missing(_: RelationReader) -> RelationReader:
    raise FileNotFoundError("no such package")


def test_same_names_are_one_thing_and_nothing_is_no_reading():
    class Network(torch.nn.Module):
        def __init__(self, nothing: float) -> None:
            super().__init__()
            self.none = nothing

        def batch(self, texts: object, nouns: list[list[tuple[int, int]]]) -> int:
            return len(nouns[0])

        def forward(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
            logits = torch.full((1, count, count, len(RELATIONS)), -20.0)
            logits[0, 0, 1, RELATIONS.index("on")] = logits[0, 2, 1, RELATIONS.index("on")] = 0.0
            logits[0, 1, 0, RELATIONS.index("in")] = 0.5
            return logits, torch.full((1, 1), self.none)

    spans, names = [(0, 1), (2, 3), (4, 5)], ["cup", "table", "cup"]
    reading = SentenceReader(Network(-20.0)).read("", spans, names)  # type: ignore[arg-type]
    assert reading is not None
    assert (reading.relation, reading.target, reading.anchors) == ("on", 0, (1,))
    assert reading.probability == pytest.approx(2 / (2 + 2.71828**0.5), abs=1e-3)
    assert SentenceReader(Network(9.0)).read("", spans, names) is None  # type: ignore[arg-type]
    assert SentenceReader(Network(-20.0)).read("", spans[:1], names[:1]) is None  # type: ignore[arg-type]


def test_padding_and_missing_nouns_change_nothing():
    torch.manual_seed(0)
    network = RelationReader().eval()
    ids, nouns = torch.randint(1000, 2000, (1, 7)), torch.zeros(1, 2, 7)
    nouns[0, 0, 1], nouns[0, 1, 4] = 1, 1
    alone = probabilities(*network(NounBatch(ids, torch.zeros(1, 7, dtype=torch.bool), nouns)))
    wide = torch.zeros(1, 3, 9)
    wide[:, :2, :7] = nouns
    pad = torch.tensor([[False] * 7 + [True] * 2])
    padded = probabilities(*network(NounBatch(torch.cat([ids, torch.zeros(1, 2, dtype=ids.dtype)], 1), pad, wide)))
    assert torch.allclose(alone, padded[:, :2, :2], atol=1e-5)
    assert padded[:, 2].max() < 1e-6
    assert alone[0, 0, 0].max() < 1e-6


def test_trained_weights_survive_a_file_and_others_are_refused(tmp_path: Path):
    first, second = RelationReader(), RelationReader()
    save_file({k: v.detach().contiguous() for k, v in first.trained().items()}, tmp_path / "a.safetensors")
    second.load_trained(tmp_path / "a.safetensors")
    assert all(torch.equal(a, second.trained()[k]) for k, a in first.trained().items())
    save_file({"other": torch.zeros(1)}, tmp_path / "b.safetensors")
    with pytest.raises(ValueError, match="other weights"):
        second.load_trained(tmp_path / "b.safetensors")


def test_a_network_without_weights_says_so():
    with pytest.raises(RuntimeError, match="load_minilm"):
        RelationReader().batch(["a"], [[]])


@needs_minilm
def test_layers_are_those_of_minilm():
    network = RelationReader().load_minilm().eval()
    seen: list[torch.Tensor] = []
    network.narrow.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    encoder = text_encoder("minilm")
    encoder.model.encoder.layer = encoder.model.encoder.layer[: len(network.layers)]
    texts = ["the lamp gossips to the couch", "a cup"]
    with torch.inference_mode():
        network(network.batch(texts, [[(4, 8)], []]))
    theirs = encoder.encode(texts)
    assert torch.allclose(seen[0][~theirs.pad], theirs.tokens[~theirs.pad], atol=1e-4)


@needs_minilm
@pytest.mark.parametrize(
    ("text", "target", "relation"),
    [
        ("the lamp rubs shoulders with the couch", "lamp", "closest"),
        ("the lamp is on speaking terms with the couch", "lamp", "closest"),
        ("the table that the vase was put on", "table", "supporting"),
        ("the picture dangles over the bed", "picture", "above"),
    ],
)
def test_the_shipped_reader_reads_what_no_pattern_says(text, target, relation):
    noun, said = _said(parse(text))
    assert noun == target
    assert [name for name, _ in said] == [relation]
