"""``--preset paper`` has the published settings, and the page shows both, with a reason for each difference."""

from __future__ import annotations

from typing import Any

import pytest

from embodied_perceptron_training.training.description import describe
from embodied_perceptron_training.training.paper import PAPER, PUBLISHED, Published
from embodied_perceptron_training.training.training_run import TrainingRun

CASES = [(row, task) for row in PUBLISHED for task in row.values]


def ours(row: Published, task: str) -> Any:
    found: Any = describe(TrainingRun.of({}, task=task, preset="paper"))
    for key in row.setting.split(".", 1):
        found = None if found is None else found.get(key)
    return found


@pytest.mark.parametrize(("row", "task"), CASES, ids=[f"{row.setting}-{task}" for row, task in CASES])
def test_a_setting_is_the_published_one_or_says_why_not(row: Published, task: str) -> None:
    assert task in PAPER
    assert (ours(row, task) == row.values[task]) == (not row.why), f"source: {row.source}"
