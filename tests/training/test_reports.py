"""Figures as tables and as a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from embodied_perceptron_training.reports import figure_table, markdown_table, print_skipped, write_metrics


@pytest.mark.parametrize(
    ("align", "ruler"),
    [("", "|---|---:|---:|"), ("lll", "|---|---|---|"), ("lrl", "|---|---:|---|")],
)
def test_a_markdown_table_has_its_columns_aligned(align: str, ruler: str) -> None:
    lines = markdown_table(("", "n", "%"), [("chair", 3, "12.50"), ("cup", "", "7.00")], align)
    assert lines == ["| | n | % |", ruler, "| chair | 3 | 12.50 |", "| cup |  | 7.00 |"]


def test_metrics_are_written_into_a_new_folder(tmp_path: Path) -> None:
    write_metrics(tmp_path / "a" / "b", {"AP25": 12.5})
    assert json.loads((tmp_path / "a" / "b" / "metrics.json").read_text()) == {"AP25": 12.5}


def test_tables_and_warnings_on_the_screen() -> None:
    console = Console(record=True, width=100)
    console.print(figure_table("objects", ("figure", "%"), [("AP25", "12.50"), ("count", 3)]))
    print_skipped(console, {"scene [1]": "no depth"})
    shown = console.export_text()
    assert "objects" in shown
    assert "AP25" in shown
    assert "skipped scene [1]: no depth" in shown
