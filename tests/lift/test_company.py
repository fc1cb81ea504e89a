"""What names say of each other, against loops over boxes, names and distances."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from embodied_perceptron.geometry.boxes import box_iou
from embodied_perceptron.lift.company import LEAST_WITNESS, RADII_M, SAME_PLACE_IOU, Company, company, find_rivals

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
    shape = (len(NAMES), directions)
    tells = rng.normal(0, 1, (len(RADII_M), *shape))
    return Company(NAMES, rng.normal(0, 1, shape), tells, rng.normal(0, 0.5, len(NAMES)), 1.2)


def slowly(known, boxes, labels, odds, seen):
    iou = box_iou(torch.from_numpy(boxes), torch.from_numpy(boxes)).numpy()
    p = 1 / (1 + np.exp(-odds))
    out = []
    for i, name in enumerate(labels):
        z = known.scale * odds[i]
        if name in known.names:
            me = known.names.index(name)
            z += known.offset[me]
            for r, radius_m in enumerate(RADII_M):
                for k, other in enumerate(known.names):
                    near = [
                        p[j]
                        for j in seen
                        if j != i
                        and labels[j] == other
                        and p[j] >= LEAST_WITNESS
                        and np.linalg.norm(boxes[i, :3] - boxes[j, :3]) < radius_m
                        and iou[i, j] <= SAME_PLACE_IOU
                    ]
                    z += max(near, default=0.0) * float(known.reads[me] @ known.tells[r, k])
        out.append(z)
    return np.array(out)


@pytest.mark.parametrize("seed", range(4))
def test_company_is_that_of_all_pairs(seed):
    rng = np.random.default_rng(seed)
    boxes, labels, odds, seen = scene(rng)
    known = model(rng)
    rivals = find_rivals(boxes, seen)
    assert len(rivals.of) > 4
    expected = slowly(known, boxes, labels, odds, seen)
    np.testing.assert_allclose(known(boxes, labels, odds, rivals), expected, atol=1e-5)
    assert np.abs(expected - known.scale * odds).max() > 0.5


def test_names_that_nobody_knows_keep_their_place():
    boxes, _, odds, seen = scene(np.random.default_rng(7))
    known = model(np.random.default_rng(8))
    strangers = ("unheard of",) * len(boxes)
    np.testing.assert_array_equal(known(boxes, strangers, odds, find_rivals(boxes, seen)), 1.2 * odds)


def test_nothing_and_nobody_around():
    known = model(np.random.default_rng(1))
    nothing = np.zeros((0, 9))
    no_rows = np.zeros(0, np.int64)
    assert len(known(nothing, (), np.zeros(0), find_rivals(nothing, no_rows))) == 0
    one = np.array([[0, 0, 0.5, 1, 1, 1, 0, 0, 0.0]])
    rivals = find_rivals(one, np.arange(1))
    present, likeliest = company(one, np.array([2]), np.array([3.0]), rivals)
    assert present.tolist() == [2]
    assert not likeliest.any()  # nobody is their own company
    assert likeliest.shape == (len(RADII_M), 1, 1)
    assert known(one, ("desk",), np.array([3.0]), rivals) == pytest.approx([1.2 * 3.0 + known.offset[2]])


def test_a_model_survives_a_file():
    known = model(np.random.default_rng(2))
    again = Company.of_dict(json.loads(json.dumps(known.as_dict())))
    assert again.names == known.names
    np.testing.assert_allclose(again.tells, known.tells, atol=1e-3)
    boxes, labels, odds, seen = scene(np.random.default_rng(3))
    rivals = find_rivals(boxes, seen)
    np.testing.assert_allclose(again(boxes, labels, odds, rivals), known(boxes, labels, odds, rivals), atol=0.02)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"names": ["bed", "bed", "desk", "mirror", "towel"]}, "bed twice"),
        ({"names": ["bed"]}, r"\(1, D\) reads"),
        ({"tells": [[[1.0]]]}, r"got \(5, 3\) and \(1, 1, 1\)"),
        ({"offset": [0.0]}, "5 offsets"),
        ({"scale": 0.0}, "above 0"),
        ({"scale": float("nan")}, "above 0"),
        ({"reads": [[float("inf")] * 3] * 5}, "finite"),
        ({"reads": "many"}, "no model"),
        ({"radii_m": [1.0, 5.0]}, r"got \(1.0, 5.0\)"),
        ({"radii_m": None}, "no model"),
    ],
)
def test_what_is_no_model_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Company.of_dict(model(np.random.default_rng(2)).as_dict() | change)
