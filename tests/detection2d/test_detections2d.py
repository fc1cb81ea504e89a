"""Raw 2-D detections: what is used, and what is dropped for which reason."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_perceptron.detection2d.detections2d import (
    REASONS,
    Detections2d,
    Limits2d,
    accept_detections,
    clean_label,
)

SIZE = (64, 48)


def accept(boxes, scores=None, labels=None, **options):
    boxes = np.array(boxes, dtype=float).reshape(-1, 4)
    scores = np.full(len(boxes), 0.9) if scores is None else np.array(scores, dtype=float)
    labels = ["cup"] * len(boxes) if labels is None else labels
    return accept_detections("front", 5, boxes, scores, labels, SIZE, **options)


@pytest.mark.parametrize(
    ("box", "score", "label", "reason"),
    [
        ([np.nan, 0, 20, 20], 0.9, "cup", "not_finite"),
        ([0, 0, np.inf, 20], 0.9, "cup", "not_finite"),
        ([0, 0, 20, 20], np.nan, "cup", "not_finite"),
        ([0, 0, 20, 20], 1.2, "cup", "score_out_of_range"),
        ([0, 0, 20, 20], -0.1, "cup", "score_out_of_range"),
        ([0, 0, 20, 20], 0.9, " \t\n", "no_label"),
        ([0, 0, 20, 20], 0.9, "x" * 101, "no_label"),
        ([20, 0, 20, 20], 0.9, "cup", "empty_box"),
        ([0, 20, 20, 5], 0.9, "cup", "empty_box"),
        ([70, 0, 90, 20], 0.9, "cup", "outside_of_image"),
        ([0, -30, 20, -1], 0.9, "cup", "outside_of_image"),
        ([60, 0, 90, 20], 0.9, "cup", "too_small"),
        ([0, 0, 20, 20], 0.1, "cup", "low_score"),
    ],
)
def test_what_cannot_be_used_is_dropped_by_name(box, score, label, reason):
    found, drops = accept([[5, 5, 30, 30], box], [0.8, score], ["chair", label])
    assert found.labels == ("chair",)
    assert dict(drops) == {reason: 1}


def test_ten_thousand_in_a_picture_leave_the_best_hundred():
    rng = np.random.default_rng(0)
    scores = rng.uniform(0.5, 1.0, 10_000)
    found, drops = accept(np.tile([3.0, 4.0, 30.0, 40.0], (10_000, 1)), scores)
    assert len(found) == 100
    assert drops["too_many"] == 9_900
    np.testing.assert_array_equal(found.scores, np.sort(scores)[::-1][:100])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(*[st.floats(-80, 120, width=32)] * 4, st.floats(width=32)), max_size=30))
def test_nothing_is_lost_unnamed(rows):
    values = np.array(rows, dtype=float).reshape(-1, 5)
    found, drops = accept(values[:, :4], values[:, 4])
    assert len(found) + sum(drops.values()) == len(rows)
    assert set(drops) <= set(REASONS)
    assert (found.boxes_px >= -0.5).all()
    assert (found.boxes_px <= [63.5, 47.5, 63.5, 47.5]).all()
    assert (np.diff(found.scores) <= 0).all()


def test_boxes_are_cut_at_the_border():
    found, _ = accept([[-10, -10, 100, 100]])
    np.testing.assert_array_equal(found.boxes_px, [[-0.5, -0.5, 63.5, 47.5]])


@pytest.mark.parametrize(
    ("label", "clean"),
    [
        ("Dining_Table", "dining table"),
        ("  Coffee\n cup ", "coffee cup"),
        ("椅子", "椅子"),
        ("Stühle", "stühle"),
        ("كرسي", "كرسي"),
        ("ｃｕｐ", "cup"),  # full width
        ("\x00\x07", ""),
        ("", ""),
    ],
)
def test_names_of_any_language_stay_what_they_are(label, clean):
    assert clean_label(label) == clean
    assert clean_label(clean) == clean


def test_masks_are_checked_and_empty_ones_dropped():
    masks = np.zeros((2, 48, 64), dtype=bool)
    masks[0, 10:20, 10:20] = True
    found, drops = accept([[5, 5, 30, 30]] * 2, masks=masks)
    assert len(found) == 1
    assert drops == {"empty_mask": 1}
    assert found.masks is not None
    assert found.masks.sum() == 100
    with pytest.raises(ValueError, match=r"\(2, 48, 64\).*\(2, 40, 64\)"):
        accept([[5, 5, 30, 30]] * 2, masks=masks[:, :40])


def test_lengths_that_do_not_belong_together_are_errors():
    with pytest.raises(ValueError, match="2 boxes, 1 scores and 2 labels"):
        accept_detections("front", 5, np.zeros((2, 4)), np.ones(1), ["a", "b"], SIZE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"boxes_px": np.zeros((1, 5))}, "boxes_px must be"),
        ({"boxes_px": np.array([[0.0, 0, np.nan, 1]])}, "non-finite"),
        ({"boxes_px": np.array([[5.0, 0, 5, 1]])}, "right > left"),
        ({"scores": np.array([1.5])}, "scores must be in"),
        ({"scores": np.zeros(2)}, "scores must be"),
        ({"masks": np.zeros((1, 4, 4))}, "masks must be"),
        ({"embeddings": np.zeros((2, 3), np.float32)}, "embeddings must be"),
    ],
)
def test_values_that_do_not_fit_are_refused_by_name(change, message):
    fields = {"boxes_px": np.array([[0.0, 0, 5, 5]]), "scores": np.array([0.5]), "labels": ("cup",)}
    with pytest.raises(ValueError, match=message):
        Detections2d("front", 1, **{**fields, **change})


def test_limits_are_checked():
    for bad in ({"min_score": 1.5}, {"min_side_px": 0.0}, {"max_count": 0}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            Limits2d(**bad)


def test_a_picture_without_detections_is_a_value():
    assert len(accept([])[0]) == 0
    assert accept([])[0].boxes_px.shape == (0, 4)
