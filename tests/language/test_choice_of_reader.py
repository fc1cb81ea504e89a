"""Who reads sentences, the network or the closed grammar, is chosen in the configuration and on the command line."""

from __future__ import annotations

import importlib.util
import json
import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from support.language_scenes import thing
from typer.testing import CliRunner

from embodied_perceptron.apps.cli import build_app
from embodied_perceptron.config import ConfigError, SentenceReading, load_config
from embodied_perceptron.language import query as queries
from embodied_perceptron.language.answer import ground_objects
from embodied_perceptron.language.grounder import Grounder
from embodied_perceptron.language.learned import sentence_reader
from embodied_perceptron.language.learned.reading import read_meaning
from embodied_perceptron.language.meaning import Constraint, Meaning, ObjectPhrase
from embodied_perceptron.language.query import Query
from embodied_perceptron.nn.text_encoder import MINILM_PACKAGE
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import GroundingStatus
from embodied_perceptron.scene.published_scene import PublishedScene

TEXT = "the chair"
SIZE = (0.6, 0.6, 1.0)
CHAIR, TABLE = thing(1, "chair", (0.0, 0.0, 0.5), SIZE), thing(2, "table", (2.0, 0.0, 0.5), SIZE)
needs_minilm = pytest.mark.skipif(
    importlib.util.find_spec(MINILM_PACKAGE) is None, reason=f"package {MINILM_PACKAGE} is not installed"
)


@pytest.fixture
def reads_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that reads every sentence as "the table", which the closed grammar never does."""

    def read(text: str, labels: Iterable[str], reader: SentenceReading) -> Meaning:
        table = Meaning(text, ObjectPhrase("table", (4, 9)))
        return table if reader == "learned" else read_meaning(text, labels, reader)

    monkeypatch.setattr(queries, "read_meaning", read)


@pytest.mark.usefixtures("reads_tables")
def test_the_choice_reaches_every_way_to_ask(tmp_path: Path) -> None:
    for reader, wanted in (("grammar", 1), ("learned", 2)):
        scene = PublishedScene(objects=(CHAIR, TABLE))
        assert Grounder(named=True, reader=reader).answer(scene, [TEXT])[0].candidates[0].id == wanted
        called = PublishedScene(objects=(replace(CHAIR, user_name="my throne"), TABLE))
        assert Grounder(named=True, reader=reader).answer(called, ["my throne"])[0].candidates[0].id == wanted
        file, out = tmp_path / "scenes.json", tmp_path / "answers.json"
        detections = [
            {"category": o.label, "center": o.box[:3].tolist(), "size": o.box[3:6].tolist()} for o in (CHAIR, TABLE)
        ]
        file.write_text(
            json.dumps({"scenes": {"s": {"detections": detections}}, "queries": [{"scene": "s", "text": TEXT}]})
        )
        asked = ["ground", "--scenes", str(file), "--out", str(out), "--reader", reader]
        assert CliRunner().invoke(build_app([]), asked).exit_code == 0
        assert json.loads(out.read_text())["answers"][0]["boxes"][0]["category"] == (CHAIR, TABLE)[wanted - 1].label


def test_the_configuration_chooses(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("network: {weights: none}")
    assert Perceptron.from_config(load_config(path)).grounder.reader == "learned"
    path.write_text("network: {weights: none}\nlanguage: {reader: grammar}")
    assert Perceptron.from_config(load_config(path)).grounder.reader == "grammar"
    for gone in ("guess", "both", "rules"):
        path.write_text(f"language: {{reader: {gone}}}")
        with pytest.raises(ConfigError, match=r"language\.reader.*learned.*grammar"):
            load_config(path)


def test_without_minilm_the_closed_grammar_reads_and_the_log_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing() -> None:
        raise FileNotFoundError("MiniLM is not installed")

    monkeypatch.setattr(sentence_reader, "new_network", missing)
    sentence_reader.sentence_reader.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                read = Query(TEXT).parsed(("chair",)).meaning
                assert read == read_meaning(TEXT, ("chair",), "grammar")
                assert ground_objects("the chair left of the table", [CHAIR, TABLE]).candidates[0].id == CHAIR.id
    finally:
        sentence_reader.sentence_reader.cache_clear()
    said = [r.getMessage() for r in caplog.records if "by the closed grammar" in r.getMessage()]
    assert len(said) == 1
    assert "MiniLM is not installed" in said[0]


@needs_minilm
def test_the_learned_reader_says_how_sure_it_is_and_the_grammar_does_not() -> None:
    learned, grammar = read_meaning(TEXT), read_meaning(TEXT, (), "grammar")
    assert learned.probability < 1.0 == grammar.probability
    assert learned.target is not None
    assert learned.target.noun == "chair"


@pytest.mark.parametrize("reader", ["learned", "grammar"])
@pytest.mark.parametrize(
    "text",
    [
        "?", "...", "\u4f60\u597d", "\U0001f600 chair", "e\u0301" * 200, "the chair by " * 76, "[t] <p> {0} %s",
        "1e999 m of chair",
        "le fauteuil \u00e0 c\u00f4t\u00e9 de la table", "hundred " * 120, "left " * 190, "\u200b\u200b chair",
    ],
)  # fmt: skip
def test_every_text_has_its_answer(text: str, reader: SentenceReading) -> None:
    asked = Query(text).parsed(("chair", "table"), reader)
    assert asked.meaning is not None
    assert ground_objects(asked, [CHAIR, TABLE]).status in GroundingStatus


def meaning_of(noun: str, probability: float, *others: Meaning, relation: str = "") -> Meaning:
    told = (Constraint(relation, (ObjectPhrase("table", (0, 0)),)),) if relation else ()
    return Meaning(TEXT, ObjectPhrase(noun, (4, 9)), told, probability=probability, others=others)


def test_a_reading_of_what_is_not_there_gives_way_to_the_other_one() -> None:
    other = meaning_of("table", 0.3)
    assert ground_objects(Query(TEXT, meaning=meaning_of("piano", 0.5)), [CHAIR, TABLE]).status == (
        GroundingStatus.NOT_FOUND
    )
    both = ground_objects(Query(TEXT, meaning=meaning_of("piano", 0.5, other)), [CHAIR, TABLE])
    assert both.candidates[0].id == TABLE.id
    there = ground_objects(Query(TEXT, meaning=meaning_of("chair", 0.5, other)), [CHAIR, TABLE])
    assert there.candidates[0].id == CHAIR.id


def test_of_two_readings_the_one_is_meant_that_stands_so() -> None:
    beside, lone = thing(3, "lamp", (2.6, 0.0, 0.5), SIZE), thing(4, "lamp", (9.0, 9.0, 0.5), SIZE)
    on, near = (meaning_of("lamp", p, relation=name) for p, name in ((0.5, "on"), (0.3, "near")))
    objects = [CHAIR, TABLE, lone, beside]
    assert ground_objects(Query(TEXT, meaning=on), objects).status != GroundingStatus.FOUND
    found = ground_objects(Query(TEXT, meaning=replace(on, others=(near,))), objects)
    assert (found.status, found.candidates[0].id) == (GroundingStatus.FOUND, beside.id)
    alone = ground_objects(Query(TEXT, meaning=near), objects)
    assert found.candidates[0].score < alone.candidates[0].score  # the reading might be the other one
    hardly = ground_objects(Query(TEXT, meaning=replace(on, others=(replace(near, probability=1e-6),))), objects)
    assert hardly.status != GroundingStatus.FOUND


def test_what_says_that_it_is_of_a_kind_is_meant_where_nothing_answers_better() -> None:
    trainer, bicycle = thing(3, "exercise bike", (0.0, 3.0, 0.5), SIZE), thing(4, "bicycle", (0.0, 5.0, 0.5), SIZE)
    assert [o.id for o in ground_objects("the bike", [CHAIR, trainer]).candidates] == [trainer.id]
    assert ground_objects("the bike", [CHAIR, trainer, bicycle]).candidates[0].id == bicycle.id


def test_what_was_hardly_read_is_answered_with_less() -> None:
    sure, unsure = (
        ground_objects(Query(TEXT, meaning=Meaning(TEXT, ObjectPhrase("chair", (4, 9)), probability=p)), [CHAIR])
        for p in (1.0, 1e-4)
    )
    assert unsure.candidates[0].score < 0.5 * sure.candidates[0].score
