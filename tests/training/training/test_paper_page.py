"""``docs/paper.md`` says what ``train --preset paper`` would do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from embodied_perceptron_training.training.description import describe
from embodied_perceptron_training.training.training_run import TrainingRun

PAGE = Path(__file__).parents[3] / "docs" / "paper.md"


def rows(number: int = 0) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Tasks of a table of settings, and per setting the cells behind its name."""
    tables = re.findall(r"(?m)^\| Setting .*\n(?:\|.*\n)+", PAGE.read_text(encoding="utf-8"))
    lines = tables[number].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    tasks = re.findall(r"`([a-z-]+)` (?:paper|release)", lines[0])
    return tasks, [(re.findall(r"`([^`]+)`", row[0])[0], row[1:]) for row in cells[2:]]


def value(run: dict[str, Any], setting: str) -> str:
    """As the page writes it."""
    found: Any = run
    for key in setting.split(".", 1):
        found = None if found is None else found.get(key)
    if found is None:
        return "none"
    return str(found).lower() if isinstance(found, bool | str) else f"{found:g}"


@pytest.mark.parametrize("column", range(4))
def test_the_page_has_the_numbers_of_the_preset(column: int) -> None:
    tasks, table = rows()
    run = describe(TrainingRun.of({}, task=tasks[column], preset="paper"))
    assert len(table) >= 18
    for setting, cells in table:
        assert cells[2 * column + 1] == value(run, setting), (tasks[column], setting)


def test_the_page_has_the_numbers_of_grounding() -> None:
    tasks, table = rows(1)
    run = describe(TrainingRun.of({}, task="grounding", preset="paper"))
    assert tasks == ["grounding"]
    assert len(table) >= 9
    for setting, (release, here) in table:
        assert here == release == value(run, setting), setting


def test_the_preset_is_the_paper_in_every_row() -> None:
    tasks, table = rows()
    assert tasks == ["continuous-detection", "detection", "monocular-detection", "occupancy"]
    for setting, cells in table:
        assert cells[::2] == cells[1::2], setting
