"""Lifting of 2-D detections in homes: which objects count, and the figures."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from embodied_perceptron_training.evaluation.suites import lifting
from embodied_perceptron_training.evaluation.suites.scenes import SuiteSpec


def test_objects_count_that_enough_used_views_show_large_enough():
    images = [{"id": i, "file_name": f"{i}.jpg"} for i in range(5)]
    entries = [{"object_id": 1, "image_id": i, "bbox": [0, 0, 24, 24]} for i in range(3)]
    entries += [{"object_id": 2, "image_id": i, "bbox": [0, 0, 24, 23]} for i in range(5)]
    entries += [{"object_id": 3, "image_id": i, "bbox": [0, 0, 96, 6]} for i in (1, 2, 4)]
    truth = {"images": images, "annotations": entries}
    assert lifting._well_seen(truth, frozenset(f"{i}.jpg" for i in range(5))) == {1, 3}
    assert lifting._well_seen(truth, frozenset(f"{i}.jpg" for i in range(4))) == {1}, "only of the used views"


def test_detections_of_objects_without_a_true_box_are_left_out():
    """A map that follows them would have names where the truth has nothing."""
    truth = {"images": [{"id": 0}], "annotations": [{"object_id": 1}, {"object_id": 2}]}
    kept = lifting._with_true_boxes(truth, [{"object_id": 2, "bbox_id": 9}])
    assert kept == {"images": [{"id": 0}], "annotations": [{"object_id": 2}]}


def test_forms_are_one_without_detections_two_perfect_and_three_degraded():
    kinds = lifting.forms(3)
    assert kinds[lifting.ALONE] is None
    degraded = [how for how in kinds.values() if how is not None]
    assert [how.recall < 1 or how.jitter > 0 for how in degraded] == [False, False, True, True, True]
    assert {how.seed for how in degraded[2:]} == {3}


@pytest.mark.parametrize(
    ("center", "name", "right", "left_out"),
    [
        ((0.1, 0.0, 0.0), "cup", (), 1),  # an object of this name, of which little was seen
        ((0.1, 0.0, 0.0), "cup", (0,), 0),  # found right
        ((0.1, 0.0, 0.0), "bowl", (), 0),  # another name
        ((0.6, 0.0, 0.0), "cup", (), 0),  # elsewhere
        ((0.1, 0.0, 0.0), "object", (), 0),  # no name
    ],
)
def test_a_name_at_an_object_that_is_hardly_seen_counts_only_where_it_is_right(center, name, right, left_out):
    box = np.array([[*center, 0.1, 0.1, 0.1, 0, 0, 0]])
    other = np.array([[0.0, 0.0, 0.0, 0.2, 0.2, 0.2, 0, 0, 0]])
    assert lifting._left_out(box, [name], right, other, ["cup"]) == left_out


def counts(**values):
    return {form: Counter(values) for form in lifting.forms(0)}


def test_figures_are_shares_of_all_homes_together(tmp_path):
    first = counts(wanted=10, named=5, located=8, published=8, right=6)
    first["perfect boxes"] = Counter(wanted=10, named=10, located=10, published=10, right=10)
    results = [
        lifting.LiftingResult("a", first, Counter(no_surface=2), [3.0]),
        lifting.LiftingResult("b", counts(wanted=30, named=5, located=8, published=2, right=1), Counter(), [5.0]),
    ]
    figures, notes = lifting.SUITE.score(SuiteSpec("x"), results)
    assert figures["network alone/recall"] == pytest.approx(25.0)
    assert figures["network alone/precision"] == pytest.approx(70.0)
    assert figures["network alone/located"] == pytest.approx(40.0)
    assert figures["perfect boxes/recall"] == pytest.approx(37.5)
    assert notes["objects"] == 40
    assert notes["milliseconds of lifting a view"] == 4.0
    assert notes["perfect boxes dropped"] == "2 no_surface"
    run = lifting.SuiteRun(figures, results, {}, notes, 1.0)
    lifting.write_lifting(SuiteSpec("x"), run, tmp_path)
    assert json.loads((tmp_path / "homes.json").read_text())["a"]["perfect boxes"]["named"] == 10
