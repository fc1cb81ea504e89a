"""What an evaluation prints fits a screen; its files have the rest."""

from __future__ import annotations

from embodied_perceptron_training.evaluation.runner.report import SCREEN_ROWS, on_one_screen
from embodied_perceptron_training.evaluation.suites.commands import SCREEN_LINES, _on_one_screen


def test_of_many_figures_those_of_everything_are_shown() -> None:
    parts = ("head", "tail", "small", "large", "furniture")
    figures = {"AP25": 1.0, "AR25": 2.0, **{f"AP25_{part}": 3.0 for part in parts}, "mIoU": 4.0}
    assert on_one_screen(figures) == figures  # they fit
    figures |= {f"neural/top1/{k}": 5.0 for k in range(30)}
    assert on_one_screen(figures) == {"AP25": 1.0, "AR25": 2.0, "mIoU": 4.0}
    assert len(figures) > SCREEN_ROWS


def test_suites_print_groups_side_by_side() -> None:
    names = ("precision", "recall", "f1", "yes", "count")
    figures = {f"{group}/{name}": 50.0 for group in ("random", "popular", "adversarial") for name in names}
    (table,) = _on_one_screen(figures)
    assert (table.row_count, len(table.columns)) == (5, 4)
    (turned,) = _on_one_screen({f"{chr(65 + k)}/right": 1.0 for k in range(20)})
    assert (turned.row_count, len(turned.columns)) == (20, 2)
    many = figures | {f"g{k}/only{k}_{n}": 1.0 for k in range(30) for n in range(5)}
    shown = _on_one_screen(many)
    assert 1 < len(shown) < 30
    assert sum(t.row_count + 2 for t in shown) <= SCREEN_LINES
