"""``--preset paper`` has the published settings, and the page shows both, with a reason for each difference."""

from __future__ import annotations

import pytest
from support.scripts import load_script

from embodied_perceptron_training.training.description import describe, setting
from embodied_perceptron_training.training.paper import PAPER, PUBLISHED, Published
from embodied_perceptron_training.training.training_run import TrainingRun

CASES = [(row, task) for row in PUBLISHED for task in row.values]


@pytest.mark.parametrize(("row", "task"), CASES, ids=[f"{row.setting}-{task}" for row, task in CASES])
def test_a_setting_is_the_published_one_or_says_why_not(row: Published, task: str) -> None:
    assert task in PAPER
    found = setting(describe(TrainingRun.of({}, task=task, preset="paper")), row.setting)
    assert (found == row.values[task]) == (not row.why), f"source: {row.source}"


def test_the_page_shows_the_papers_values_and_ours() -> None:
    text = load_script("docs/reference_pages.py").PAGES["reference/paper.md"]()
    assert "| `steps` | 5.1, A.1 | 258375 | 258375 |  |" in text  # 24 epochs of 689,000 frames, 8 GPUs of 8
    assert "| `keep` | release | 20000 | 20000 |  |" in text
    assert "| `image_encoder.pretrained` | A.1 | true | false | no published weights fit" in text
