"""What names say of each other, against loops over boxes, names and relations."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from embodied_perceptron.geometry.boxes import box_corners, box_iou
from embodied_perceptron.geometry.suppression import CONFLICT_IOU, overlapping_detections
from embodied_perceptron.inference.confidence_calibration import (
    FORM,
    GAPS_M,
    MIN_EVIDENCE,
    NEAR_M,
    OWN_NUMBERS,
    RELATIONS,
    ContextRescoring,
    context_evidence,
    own_numbers,
)

NAMES = ("bed", "chair", "desk", "mirror", "towel")


def scene(rng, count=40):
    """Boxes up to 12 m apart, a quarter of them at the place of another under another name."""
    boxes = np.zeros((count, 9))
    boxes[:, :3] = rng.uniform([-6, -6, 0], [6, 6, 2], (count, 3))
    boxes[:, 3:6] = rng.uniform(0.1, 1.5, (count, 3))
    boxes[:, 6] = rng.uniform(-3, 3, count)
    twice = count // 4
    boxes[:twice] = boxes[twice : 2 * twice]
    boxes[:twice, :3] += rng.normal(0, 0.03, (twice, 3))
    labels = tuple(rng.choice([*NAMES, "unheard of"], count).tolist())
    return boxes, labels, rng.normal(-1, 2, count), np.sort(rng.permutation(count)[: count * 3 // 4])


def model(rng, directions=3):
    count = len(NAMES)
    return ContextRescoring(
        NAMES,
        rng.normal(0, 1, (count, directions)),
        rng.normal(0, 1, (len(RELATIONS), count, directions)),
        rng.normal(0, 0.3, (OWN_NUMBERS, directions)),
        rng.normal(0, 1, len(FORM)),
        rng.uniform(0.5, 2, len(FORM)),
        rng.normal(0, 0.5, count),
        1.2,
    )


def forms(rng, count):
    return rng.normal(0, 2, (count, len(FORM)))


def grounds(boxes, weight):
    """Bounds on the ground along the direction of most boxes, by corners."""
    main = sum(w * np.exp(4j * box[6]) for w, box in zip(weight, boxes, strict=True))
    turn = np.exp(-0.25j * np.angle(main))
    flat = (box_corners(boxes)[..., 0] + 1j * box_corners(boxes)[..., 1]) * turn
    return np.stack([flat.real.min(1), flat.imag.min(1)], 1), np.stack([flat.real.max(1), flat.imag.max(1)], 1)


def slowly(known, boxes, labels, odds, seen, form):
    iou = box_iou(torch.from_numpy(boxes), torch.from_numpy(boxes)).numpy()
    p = 1 / (1 + np.exp(-odds))
    speaks = [j for j in seen if labels[j] in known.names and p[j] >= MIN_EVIDENCE]
    low, high = grounds(boxes, [p[j] if j in speaks else 0.0 for j in range(len(boxes))])
    out = []
    for i, name in enumerate(labels):
        z = known.scale * odds[i]
        if name in known.names:
            me = known.names.index(name)
            z += known.offset[me]
            around = np.zeros(known.query.shape[1])
            for k, other in enumerate(known.names):
                best = dict.fromkeys(RELATIONS, 0.0)
                for j in speaks:
                    if j == i or labels[j] != other:
                        continue
                    gap_m = np.linalg.norm(np.maximum(0.0, np.maximum(low[i] - high[j], low[j] - high[i])))
                    same = iou[i, j] > CONFLICT_IOU
                    holds = [not same and gap_m < g for g in GAPS_M]
                    holds += [not same and np.linalg.norm(boxes[i, :3] - boxes[j, :3]) < NEAR_M, same]
                    for relation, true in zip(RELATIONS, holds, strict=True):
                        best[relation] = max(best[relation], p[j] if true else 0.0)
                around += sum(best[relation] * known.value[r, k] for r, relation in enumerate(RELATIONS))
            own = [
                float(np.clip((v - m) / s, -3, 3))
                for v, m, s in zip(form[i], known.form_mean, known.form_scale, strict=True)
            ]
            own += [own[a] * own[b] - (a == b) for a in range(5) for b in range(a, 5)]
            z += float(known.query[me] @ (around + np.array(own) @ known.own_value))
        out.append(z)
    return np.array(out)


@pytest.mark.parametrize("seed", range(4))
def test_context_equals_a_loop_over_all_pairs(seed):
    rng = np.random.default_rng(seed)
    boxes, labels, odds, seen = scene(rng)
    known = model(rng)
    overlapping = overlapping_detections(boxes, seen)
    assert len(overlapping.of) > 4
    form = forms(rng, len(boxes))
    expected = slowly(known, boxes, labels, odds, seen, form)
    np.testing.assert_allclose(known(boxes, labels, odds, overlapping, form), expected, atol=1e-5)
    assert np.abs(expected - known.scale * odds).max() > 0.5


def test_turning_the_room_changes_nothing():
    rng = np.random.default_rng(5)
    boxes, labels, odds, seen = scene(rng)
    boxes[:, 6] = rng.choice([0.0, np.pi / 2, np.pi], len(boxes)) + rng.normal(0, 0.02, len(boxes))
    known, form = model(rng), forms(rng, len(boxes))
    before = known(boxes, labels, odds, overlapping_detections(boxes, seen), form)
    for yaw in (0.4, 2.0, -1.1):
        turned = boxes.copy()
        c, s = np.cos(yaw), np.sin(yaw)
        turned[:, :2] = boxes[:, :2] @ np.array([[c, s], [-s, c]])
        turned[:, 6] += yaw
        np.testing.assert_allclose(
            known(turned, labels, odds, overlapping_detections(turned, seen), form), before, atol=1e-4
        )


def test_what_is_far_from_usual_is_held_within_bounds():
    own = own_numbers(np.array([[100.0] + [0.0] * 6]), np.zeros(7), np.ones(7))
    assert own.shape == (1, OWN_NUMBERS)
    assert own[0, :2].tolist() == [3.0, 0.0]
    assert own[0, 7:9].tolist() == [8.0, 0.0]  # its square less the mean of squares, and a product


def test_names_that_nobody_knows_keep_their_place():
    boxes, _, odds, seen = scene(np.random.default_rng(7))
    known = model(np.random.default_rng(8))
    strangers = ("unheard of",) * len(boxes)
    np.testing.assert_array_equal(
        known(boxes, strangers, odds, overlapping_detections(boxes, seen), np.zeros((len(boxes), len(FORM)))),
        1.2 * odds,
    )


def test_nothing_and_nobody_around():
    known = model(np.random.default_rng(1))
    nothing = np.zeros((0, 9))
    no_rows = np.zeros(0, np.int64)
    assert len(known(nothing, (), np.zeros(0), overlapping_detections(nothing, no_rows), np.zeros((0, len(FORM))))) == 0
    one = np.array([[0, 0, 0.5, 1, 1, 1, 0, 0, 0.0]])
    overlapping = overlapping_detections(one, np.arange(1))
    present, evidence = context_evidence(one, np.array([2]), np.array([3.0]), overlapping)
    assert present.tolist() == [2]
    assert not evidence.any()  # nobody is their own company
    assert evidence.shape == (len(RELATIONS), 1, 1)
    known = dataclasses.replace(known, own_value=np.zeros_like(known.own_value))
    expected = [1.2 * 3.0 + known.offset[2]]
    assert known(one, ("desk",), np.array([3.0]), overlapping, np.ones((1, len(FORM)))) == pytest.approx(expected)


def test_a_model_survives_a_file():
    known = model(np.random.default_rng(2))
    again = ContextRescoring.of_dict(json.loads(json.dumps(known.as_dict())))
    assert again.names == known.names
    np.testing.assert_allclose(again.value, known.value, atol=1e-3)
    boxes, labels, odds, seen = scene(np.random.default_rng(3))
    overlapping = overlapping_detections(boxes, seen)
    form = forms(np.random.default_rng(4), len(boxes))
    before = known(boxes, labels, odds, overlapping, form)
    np.testing.assert_allclose(again(boxes, labels, odds, overlapping, form), before, atol=0.05)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"names": ["bed", "bed", "desk", "mirror", "towel"]}, "bed twice"),
        ({"names": ["bed"]}, r"query of 1 names must be \(1, 3\), got \(5, 3\)"),
        ({"tells": [[[1.0]]]}, r"value of 5 names must be \(5, 5, 3\), got \(1, 1, 1\)"),
        ({"offset": [0.0]}, r"offset of 5 names must be \(5,\), got \(1,\)"),
        ({"scale": 0.0}, "above 0"),
        ({"scale": float("nan")}, "above 0"),
        ({"reads": [[float("inf")] * 3] * 5}, "finite"),
        ({"reads": "many"}, "no model"),
        ({"forms": [[0.0] * 3]}, r"own_value of 5 names must be \(22, 3\), got \(1, 3\)"),
        ({"form_mean": [0.0]}, r"form_mean of 5 names must be \(7,\), got \(1,\)"),
        ({"form_scale": [0.0] * 7}, "above 0"),
        ({"relations": ["within 3 m"]}, r"another version \(relations within 3 m; .*calibrate-scores"),
        ({"form": []}, "form none"),
        ({"relations": None}, "no model"),
    ],
)
def test_what_is_no_model_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        ContextRescoring.of_dict(model(np.random.default_rng(2)).as_dict() | change)


@pytest.mark.parametrize("key", ["names", "scale", "offset", "forms"])
def test_a_part_that_is_missing_is_named(key):
    values = model(np.random.default_rng(2)).as_dict()
    del values[key]
    with pytest.raises(ValueError, match=f"no model of context rescoring: KeyError.*'{key}'"):
        ContextRescoring.of_dict(values)
