"""Answers scored against the objects that were meant."""

from __future__ import annotations

import json

import pytest

from embodied_perceptron_training.evaluation.suites.referring import iou_of, score_answers, write_report


def box(x: float, category: str = "chair") -> dict:
    return {"center": [x, 0.0, 0.5], "size": [1.0, 1.0, 1.0], "category": category}


DATA = {
    "scenes": {"s": {"objects": {"1": box(0.0), "2": box(3.0), "3": box(6.0, "table")}}},
    "queries": [
        {"source": "nr3d", "scene": "s", "target": "1", "text": "a", "easy": True, "view_dependent": False},
        {"source": "nr3d", "scene": "s", "target": "2", "text": "b", "easy": False, "view_dependent": True},
        {"source": "scanrefer", "scene": "s", "target": "3", "text": "c"},
    ],
}


def answers(*first: dict | None) -> list[dict]:
    return [
        {"scene": "s", "text": q["text"], "boxes": [] if b is None else [b]}
        for q, b in zip(DATA["queries"], first, strict=True)
    ]


def test_shares_by_kind():
    """IoU of boxes of 1 m that are 0.5 m apart is a third: right at .25, wrong at .5."""
    assert iou_of(box(0.0), box(0.5)) == pytest.approx(1 / 3)
    table = score_answers(DATA, answers(box(0.0), box(3.5), None))
    assert table["nr3d"] == {"n": 2, "answered": 100.0, "acc25": 100.0, "acc50": 50.0}
    assert table["nr3d easy"]["acc50"] == 100.0
    assert table["nr3d view dependent"]["acc50"] == 0.0
    assert table["nr3d multiple"]["n"] == 2
    assert table["scanrefer unique"] == {"n": 1, "answered": 0.0, "acc25": 0.0, "acc50": 0.0}


def test_answers_to_something_else_are_refused():
    with pytest.raises(ValueError, match="3 queries, but 1 answers"):
        score_answers(DATA, answers(None, None, None)[:1])
    other = answers(None, None, None)
    other[1]["text"] = "z"
    with pytest.raises(ValueError, match="answer 1 is not to query 1"):
        score_answers(DATA, other)


def test_the_report(tmp_path):
    write_report(score_answers(DATA, answers(box(0.0), None, None)), tmp_path / "out")
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["nr3d"]["acc25"] == 50.0
    assert "| nr3d | 2 | 50.0 | 50.0 | 50.0 |" in (tmp_path / "out" / "metrics.md").read_text()
