"""Names of cells from boxes: against a plain version, and rule by rule."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import rotations
from embodied_perceptron.inference.naming import KEPT_CLASSES, names_from_boxes
from embodied_perceptron.results import Detections, SemanticVoxels

SIZE_M = 0.16
CLASSES = ("floor", "wall", "chair", "table", "book", "door", "blanket")


def cells(labels: list[str], centers_m: NDArray[np.float64], confidence: float | NDArray[np.float64]) -> SemanticVoxels:
    n = len(labels)
    return SemanticVoxels(
        SIZE_M,
        np.asarray(centers_m, np.float32).reshape(n, 3),
        np.full((n, 3), 7, np.uint8),
        np.array([CLASSES.index(name) for name in labels], np.int32),
        np.broadcast_to(np.asarray(confidence, np.float32), n).copy(),
        CLASSES,
    )


def boxes(*found: tuple[str, float, list[float]]) -> Detections:
    """(label, score, box of 7 or 9 numbers)..., best first."""
    full = np.array([[*b, 0.0, 0.0][:9] for _, _, b in found]).reshape(-1, 9)
    return Detections(full, np.array([s for _, s, _ in found]), tuple(label for label, _, _ in found))


def names(voxels: SemanticVoxels) -> list[str]:
    return [CLASSES[k] for k in voxels.labels]


UNIT = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0]


def plain_version(voxels: SemanticVoxels, found: Detections, min_score: float) -> tuple[list[str], list[float]]:
    """The rules once more, cell by cell."""
    out, sure = [], []
    turns = rotations(torch.from_numpy(found.boxes)).numpy()
    for center, label, confidence in zip(voxels.centers_m.astype(float), voxels.labels, voxels.confidence, strict=True):
        name = CLASSES[label]
        claims = []
        if name not in KEPT_CLASSES and not (name == "wall" and confidence >= np.float32(0.8)):
            for box, R, score, claimed in zip(found.boxes, turns, found.scores, found.labels, strict=True):
                if score < min_score or claimed not in CLASSES or claimed in KEPT_CLASSES or confidence >= score + 0.5:
                    continue
                outside = max(float((np.abs((center - box[:3]) @ R) - box[3:6] / 2).max()), 0.0)
                if outside <= SIZE_M / 2:
                    edge = float(np.maximum(box[3:6], 0.05).prod()) ** (1 / 3)
                    claims.append((score / edge**0.5 * np.exp(-1.4 * outside / SIZE_M), claimed, score))
        best = max(claims, key=lambda c: c[0], default=(0.0, name, float(confidence)))
        out.append(best[1])
        sure.append(best[2])
    return out, sure


@pytest.mark.parametrize("seed", range(5))
def test_names_equal_a_plain_version(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, b = 400, 25
    grid = (np.floor(rng.uniform(-1.5, 1.5, (n, 3)) / SIZE_M) + 0.5) * SIZE_M
    voxels = cells(list(rng.choice(CLASSES, n)), grid, rng.random(n))
    placed = np.column_stack(
        [rng.uniform(-1.2, 1.2, (b, 3)), rng.uniform(0.02, 1.6, (b, 3)), rng.uniform(-3, 3, (b, 3))]
    )
    found = Detections(placed, np.sort(rng.random(b))[::-1].copy(), tuple(rng.choice([*CLASSES, "object", "cat"], b)))
    named = names_from_boxes(voxels, found, 0.3)
    expected, sure = plain_version(voxels, found, 0.3)
    assert names(named) == expected
    np.testing.assert_allclose(named.confidence, sure, rtol=1e-6)
    assert names(named) != names(voxels)
    np.testing.assert_array_equal(named.centers_m, voxels.centers_m)
    np.testing.assert_array_equal(named.color, voxels.color)


def test_what_was_given_stays_as_it_was() -> None:
    voxels = cells(["table"], np.zeros((1, 3)), 0.5)
    names_from_boxes(voxels, boxes(("chair", 0.9, UNIT)))
    assert names(voxels) == ["table"]
    assert voxels.confidence[0] == 0.5


@pytest.mark.parametrize(("out_m", "name"), [(0.0, "chair"), (0.079, "chair"), (0.081, "table")])
def test_half_a_cell_around_a_box_is_of_it(out_m: float, name: str) -> None:
    voxels = cells(["table"], np.array([[0.5 + out_m, 0.0, 0.0]]), 0.5)
    assert names(names_from_boxes(voxels, boxes(("chair", 0.9, UNIT)))) == [name]


def test_what_is_small_stands_on_what_is_large() -> None:
    voxels = cells(["table", "table"], np.array([[0.0, 0.0, 0.45], [0.3, 0.3, 0.45]]), 0.5)
    found = boxes(("table", 0.9, UNIT), ("book", 0.6, [0.0, 0.0, 0.45, 0.2, 0.3, 0.1, 0.4]))
    assert names(names_from_boxes(voxels, found)) == ["book", "table"]


@pytest.mark.parametrize("name", sorted(KEPT_CLASSES & set(CLASSES)))
def test_thin_and_hollow_things_stay_between_decoder_and_boxes(name: str) -> None:
    voxels = cells([name, "chair"], np.zeros((2, 3)), 0.2)
    assert names(names_from_boxes(voxels, boxes(("table", 0.9, UNIT)))) == [name, "table"]
    assert names(names_from_boxes(voxels, boxes((name, 0.9, UNIT)))) == [name, "chair"]


@pytest.mark.parametrize(
    ("label", "confidence", "score", "name"),
    [
        ("table", 0.79, 0.3, "chair"),
        ("table", 0.81, 0.3, "table"),  # the decoder is surer by a half
        ("wall", 0.79, 0.9, "chair"),
        ("wall", 0.81, 0.9, "wall"),
        ("table", 0.1, 0.09, "table"),  # too low a score
        ("table", 0.1, 0.1, "chair"),
    ],
)
def test_who_is_surer(label: str, confidence: float, score: float, name: str) -> None:
    voxels = cells([label], np.zeros((1, 3)), confidence)
    named = names_from_boxes(voxels, boxes(("chair", score, UNIT)))
    assert names(named) == [name]
    assert named.confidence[0] == pytest.approx(score if name == "chair" else confidence)


def test_names_that_cells_cannot_have_claim_nothing() -> None:
    voxels = cells(["table"], np.zeros((1, 3)), 0.1)
    assert names_from_boxes(voxels, boxes(("object", 0.9, UNIT), ("teapot", 0.8, UNIT))) is voxels
    assert names_from_boxes(voxels, boxes()) is voxels
    nothing = cells([], np.zeros((0, 3)), 0.1)
    assert names_from_boxes(nothing, boxes(("chair", 0.9, UNIT))) is nothing
