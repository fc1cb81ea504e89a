"""The benchmark of taught things: what counts for a kind, by its new name and by its old one."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from support.families import all_families
from support.scripts import load_script

from embodied_perceptron_training.evaluation.metrics.detection import SceneBoxes, detection_metrics
from embodied_perceptron_training.homes.assets.varied.catalogue import UNSEEN

CLASSES = ("chair", "couch", "table")


@pytest.fixture(scope="module")
def teach():
    return load_script("benchmarks/teach.py")


def boxes(*x):
    return np.array([[value, 0.0, 0.5, 0.8, 0.8, 1.0, 0.0, 0.0, 0.0] for value in x], np.float64).reshape(-1, 9)


def a_home(teach):
    """Two chairs, of which the second is a wing chair, and a table."""
    true = boxes(0.0, 2.0, 4.0)
    scene = SimpleNamespace(
        name="home",
        boxes=true,
        labels=("chair", "chair", "table"),
        ids=np.array([10, 11, 12]),
        seen_rows=lambda: [0, 1, 2],
        boxes_of=lambda ids: true[np.isin([10, 11, 12], ids)],
    )
    return teach.MappedHome(scene, {11: "wing chair"})


def test_families_are_drawn_for_homes_that_are_not_for_testing(teach):
    families = {family for family, _ in teach.KINDS.values()}
    assert families <= set(all_families())
    assert not families & UNSEEN  # those take a place in test homes alone


def test_by_its_old_name_other_things_of_that_name_are_no_mistakes(teach):
    home, number = a_home(teach), list(teach.KINDS).index("wing chair")
    found = SceneBoxes(boxes(0.0, 2.05, 4.0, 8.0), np.array([0, 0, 2, 0]), np.array([0.9, 0.5, 0.8, 0.3]))
    mine = teach.by_old_name(found, home, CLASSES)
    assert mine.labels.tolist() == [number, number]  # the wing chair, and the one where nothing stands
    assert mine.boxes[:, 0].tolist() == [2.05, 8.0]
    truth = {"home": SceneBoxes(home.boxes("wing chair"), np.array([number]))}
    figures = detection_metrics({"home": mine}, truth, list(teach.KINDS))
    assert figures["AP25/wing chair"] == pytest.approx(100.0)  # the surest is right
    assert len(teach.by_old_name(found, home, ("lamp",)).boxes) == 0


def test_labels_get_the_numbers_of_the_kinds(teach):
    found = SceneBoxes(boxes(0.0, 1.0, 2.0), np.array([3, 5, 4]), np.array([0.1, 0.2, 0.3]))
    mine = teach.renamed(found, {5: 0, 3: 1})
    assert (mine.labels.tolist(), mine.scores.tolist()) == ([1, 0], [0.1, 0.2])
    assert teach.overlaps(boxes(), boxes(1.0)).shape == (0, 1)
    assert teach.overlaps(boxes(1.0), boxes()).tolist() == [[0.0]]
