"""What a box's score is worth once the map is asked."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from scipy.special import expit
from support.online_world import CLASSES, config, inference, walk

from embodied_perceptron.geometry.boxes import box_iou
from embodied_perceptron.inference.class_priors import shipped_priors
from embodied_perceptron.inference.confidence_calibration import (
    FEATURES,
    FORM,
    GAPS_M,
    LEAST_SCORE,
    NO_NAME,
    OWN_NUMBERS,
    RELATIONS,
    THING_FEATURES,
    ConfidenceCalibration,
    ContextRescoring,
    best_names,
    box_features,
    box_forms,
    conflicts_of,
    log_odds,
    name_log_odds,
    surface_support,
)
from embodied_perceptron.inference.loading import load_inference
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import Detections, VoxelSnapshot

CHAIR = [0.0, 0.0, 0.45, 0.5, 0.5, 0.9, 0, 0, 0]
CARPET = [0.0, 0.0, 0.01, 2.0, 1.5, 0.02, 0, 0, 0]
ONES = (0.0,) + (1.0,) * len(FEATURES)


def found(box, score, label, posteriors=None):
    return Detections(np.array([box], float), np.array([score]), (label,), posteriors)


def snapshot_of(points_m, voxel_size_m=0.02):
    coords = np.floor(np.asarray(points_m, float) / voxel_size_m).astype(np.int32)
    order = np.lexsort(coords.T[::-1])
    n = len(coords)
    points = np.asarray(points_m, np.float32)[order]
    return VoxelSnapshot(
        voxel_size_m,
        coords[order],
        points,
        np.zeros((n, 3), np.uint8),
        np.ones(n, np.int32),
        np.ones(n, np.float32),
        np.zeros(n, np.int64),
    )


def random_boxes(rng, count):
    boxes = np.concatenate([rng.uniform(-1, 1, (count, 3)), rng.uniform(0.1, 1.2, (count, 3)), np.zeros((count, 3))], 1)
    boxes[:, 6] = rng.uniform(-1.5, 1.5, count)
    boxes[: count // 3, 7:9] = rng.uniform(-0.4, 0.4, (count // 3, 2))  # tilted ones
    return boxes


def features_of(boxes, snapshot):
    return box_features(boxes, surface_support(boxes.boxes, snapshot), conflicts_of(boxes), 0.0, {}, shipped_priors())


def test_the_surface_of_a_box_under_several_names_is_that_of_the_box_alone():
    rng = np.random.default_rng(4)
    snapshot, boxes = snapshot_of(rng.uniform(-1.5, 1.5, (3000, 3))), random_boxes(rng, 12)
    several = boxes[rng.integers(0, 12, 40)]
    alone = np.concatenate([surface_support(box[None], snapshot) for box in several])
    np.testing.assert_array_equal(surface_support(several, snapshot), alone)


@pytest.mark.parametrize("seed", range(3))
def test_overlapping_detections_are_those_of_all_pairs(seed):
    rng = np.random.default_rng(10 + seed)
    boxes, scores = random_boxes(rng, 60), rng.uniform(0, 1, 60)
    boxes[40:] = boxes[:20] + np.concatenate([rng.normal(0, 0.05, (20, 3)), np.zeros((20, 6))], axis=1)
    iou = box_iou(torch.from_numpy(boxes), torch.from_numpy(boxes)).numpy()
    np.fill_diagonal(iou, 0.0)
    iou[:, scores < LEAST_SCORE] = 0.0  # such a box may be overlapped, and overlaps none
    expected = np.where(iou > 0.25, scores[None], 0.0).max(axis=1)
    assert (expected > 0).sum() > 20
    overlapping = conflicts_of(Detections(boxes, scores, ("chair",) * 60))
    np.testing.assert_allclose(overlapping.best_scores(scores), expected)
    assert {tuple(p) for p in zip(overlapping.of, overlapping.by, strict=True)} == set(
        map(tuple, np.argwhere(iou > 0.25))
    )


def test_a_name_that_is_often_wrong_is_worth_less():
    names = {"chair": (10, 8), "bowl": (6, 0)}
    odds = name_log_odds(names, ("chair", "bowl", "never said"))
    assert odds["bowl"] < odds["never said"] < odds["chair"]
    mean = 9 / 18
    p = (8 + 4 * mean) / 14
    assert odds["chair"] == pytest.approx(np.log(p / (1 - p)))


def test_evidence_of_the_map_speaks_for_a_box():
    """A closed thing, a box with nothing in it, and a piece of something that goes on, by the same score."""
    shell = np.random.default_rng(0).uniform(-0.25, 0.25, (4000, 3))
    shell[:, 2] = shell[:, 2] * 1.8 + 0.45
    table = features_of(found(CHAIR, 0.5, "chair"), snapshot_of(shell))
    nothing = features_of(found(CHAIR, 0.5, "chair"), snapshot_of(shell + 5.0))
    piece = features_of(found(CHAIR, 0.5, "chair"), snapshot_of(shell * [3, 3, 1]))
    surface, closed = FEATURES.index("surface"), FEATURES.index("closed")
    assert table[0, surface] > nothing[0, surface] + 1
    assert table[0, closed] > piece[0, closed] + 0.1
    score = FEATURES.index("score")
    assert table[0, score] == pytest.approx(0.0)


def test_what_cannot_be_a_bed_is_held_down_by_geometry():
    both = Detections(np.array([CARPET, CARPET]), np.array([0.5, 0.5]), ("bed", "carpet"))
    table = features_of(both, snapshot_of(np.zeros((1, 3))))
    bed, carpet = table[:, FEATURES.index("plausible")]
    assert bed < carpet - 1.0
    assert carpet == pytest.approx(0.0, abs=0.1)


def test_bad_posteriors_are_refused():
    for posteriors in (({"chair": 1.5},), ({},), ({"chair": -0.1},), ({"chair": 0.5}, {"bin": 0.5})):
        with pytest.raises(ValueError, match="posteriors"):
            found(CHAIR, 0.5, "chair", posteriors)


def test_probabilities_come_best_first_and_boxes_stay():
    rng = np.random.default_rng(1)
    boxes = random_boxes(rng, 30)
    before = Detections(boxes, rng.uniform(0, 1, 30), tuple(rng.choice(["chair", "bed"], 30).tolist()))
    after = ConfidenceCalibration(ONES, {})(before, snapshot_of(rng.uniform(-1.5, 1.5, (3000, 3))), 0.0)
    assert (np.diff(after.scores) <= 0).all()
    assert ((after.scores >= 0) & (after.scores <= 1)).all()
    keys = sorted(zip(map(tuple, before.boxes.round(9)), before.labels, strict=True))
    assert sorted(zip(map(tuple, after.boxes.round(9)), after.labels, strict=True)) == keys
    nothing = Detections(np.zeros((0, 9)), np.zeros(0), ())
    assert len(ConfidenceCalibration(ONES, {})(nothing, snapshot_of(np.zeros((1, 3))), 0.0)) == 0


def test_context_changes_probabilities_of_names_and_of_unnamed_boxes():
    """Beside a bed, a chair is likelier here than by itself; and so is the thing that is called a chair."""
    tells = np.zeros((len(RELATIONS), 2, 1))
    tells[1:3, 0] = 1.0  # a bed beside it counts twice, one in the room once
    forms = np.zeros((OWN_NUMBERS, 1))
    forms[FORM.index("top")] = 0.5
    mean, scale = np.zeros(len(FORM)), np.ones(len(FORM))
    context = ContextRescoring(
        ("bed", "chair"), np.array([[0.0], [0.8]]), tells, forms, mean, scale, np.array([0.0, -0.1]), 1.25
    )
    alone = ConfidenceCalibration((4.0, *ONES[1:]), {}, things=(0.0, *[0.5] * len(THING_FEATURES)))
    together = dataclasses.replace(alone, context=context)
    bed = np.array([1.0, 0.0, 0.3, 0.9, 2.0, 0.6, 0, 0, 0])
    before = Detections(np.array([bed, CHAIR, CHAIR]), np.array([0.8, 0.5, 0.4]), ("bed", "chair", "object"))
    rng = np.random.default_rng(3)
    voxels = snapshot_of(rng.uniform([-0.4, -0.4, 0.0], [0.4, 0.4, 0.8], (4000, 3)))
    said = [model(before, voxels, 0.0) for model in (alone, together)]
    a, b = (dict(zip(each.labels, each.scores, strict=True)) for each in said)
    assert 0.2 < a["bed"] < 0.99
    odds = {label: float(log_odds(np.array(p))) for label, p in a.items()}
    assert b["bed"] == pytest.approx(float(expit(1.25 * odds["bed"])))
    expected = 1.25 * odds["chair"] - 0.1 + 0.8 * (2 * a["bed"] + 0.5 * 0.9)  # 0.9 m high
    assert b["chair"] == pytest.approx(float(expit(expected)))
    assert b["object"] > a["object"]


def test_what_has_no_name_changes_no_name_and_without_a_model_keeps_its_score():
    """A thing without a name is neither plausible nor wrong under a name, and no rival of what has one."""
    rng = np.random.default_rng(2)
    boxes = random_boxes(rng, 20)
    scores = rng.uniform(0.1, 0.9, 20)
    labels = tuple("object" if i % 3 == 0 else "chair" for i in range(20))
    voxels = snapshot_of(rng.uniform(-1.5, 1.5, (3000, 3)))
    before = Detections(boxes, scores, labels)
    together = ConfidenceCalibration(ONES, {})(before, voxels, 0.0)
    named = np.flatnonzero([label == "chair" for label in labels])
    alone = ConfidenceCalibration(ONES, {})(before.take(named), voxels, 0.0)
    kept = [label == "chair" for label in together.labels]
    np.testing.assert_array_equal(together.scores[kept], alone.scores)
    by_box = {tuple(box): score for box, score in zip(before.boxes, scores, strict=True)}
    for row in np.flatnonzero(~np.array(kept)):
        assert together.scores[row] == by_box[tuple(together.boxes[row])]


def test_a_thing_that_is_there_by_name_and_map_is_likely_there():
    shell = np.random.default_rng(0).uniform(-0.25, 0.25, (4000, 3))
    shell[:, 2] = shell[:, 2] * 1.8 + 0.45
    voxels = snapshot_of(shell)
    model = ConfidenceCalibration(ONES, {}, things=(-3.0,) + (0.5,) * len(THING_FEATURES))
    alone = found(CHAIR, 0.5, "object")
    beside = Detections(np.array([CHAIR, CHAIR]), np.array([0.5, 0.9]), ("object", "chair"))
    (by_map,) = model(alone, voxels, 0.0).scores
    (in_the_air,) = model(alone, snapshot_of(shell + 5.0), 0.0).scores
    named = model(beside, voxels, 0.0)
    by_name = dict(zip(named.labels, named.scores, strict=True))["object"]
    assert by_name > by_map > in_the_air
    # by hand: score, named, surface and closed as of a name's own box, and the thinnest edge
    table = features_of(beside.take(np.array([1])), voxels)[0]
    of = dict(zip(FEATURES, table, strict=True))
    p = dict(zip(named.labels, named.scores, strict=True))["chair"]
    expected = -3.0 + 0.5 * (0.0 + np.log(p / (1 - p)) + of["surface"] + of["closed"] + np.log(0.5))
    assert by_name == pytest.approx(1 / (1 + np.exp(-expected)))


def test_the_best_name_is_that_of_the_same_thing():
    boxes = np.array([CHAIR, CARPET, CHAIR, CHAIR], float)
    best = best_names(boxes, np.array([0, 1]), np.array([2, 3]), np.array([0.3, 0.6]))
    assert best.tolist() == [0.6, NO_NAME]


def test_names_are_selected_by_probabilities(monkeypatch):
    """Of a network that says all names low the model knows better: its things have names, and those that the model
    doubts have none."""
    network = inference("float32", min_score=0.3)
    said = Detections(np.array([CHAIR, CHAIR]), np.array([0.9, 0.2]), ("object", "chair"))
    monkeypatch.setattr(type(network), "boxes", lambda *_: said)

    def seen(weights):
        network.calibration = {"reliability": ConfidenceCalibration(weights, {}, things=(1.0, *[0.0] * 5)).as_dict()}
        it = Perceptron(config(max_count=4), inference=network)
        for frame in walk(3, 3):
            it.integrate(frame)
        it.perceive()
        return it.prediction.detections

    sure, unsure = seen((2.0,) + (0.0,) * 7), seen((-2.0,) + (0.0,) * 7)
    assert sure.labels == ("chair",)
    assert sure.scores[0] == pytest.approx(1 / (1 + np.exp(-2.0)), abs=1e-4)
    assert unsure.labels == ("object", "chair")
    np.testing.assert_allclose(unsure.scores, [1 / (1 + np.exp(-1.0)), 1 / (1 + np.exp(2.0))], atol=1e-4)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"features": list(FEATURES), "weights": list(ONES), "names": {}, "things": [1.0]}, "6 finite weights"),
        (
            {"features": list(FEATURES), "weights": list(ONES), "names": {}, "thing_features": ["score"], "things": []},
            "unnamed objects reads score",
        ),
        ({"features": list(FEATURES), "weights": [1.0], "names": {}}, "8 finite weights"),
        ({"features": list(FEATURES), "weights": [float("nan")] * 8, "names": {}}, "finite"),
        ({"features": list(FEATURES), "weights": list(ONES), "names": {"bowl": [1, 2]}}, "bowl"),
        ({"features": ["score"], "weights": list(ONES), "names": {}}, "reads score"),
        ({"features": list(FEATURES), "weights": list(ONES), "names": {}, "company": {"names": []}}, "relations none"),
        ({"weights": []}, "no model of scores"),
        ({"features": list(FEATURES), "weights": list(ONES), "names": ["chair"]}, "no model of scores"),
    ],
)
def test_what_is_no_model_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        ConfidenceCalibration.of_calibration({"reliability": values})


def context_of_chairs():
    form = np.zeros(len(FORM)), np.ones(len(FORM))
    return ContextRescoring(
        ("chair",), np.ones((1, 2)), np.ones((len(RELATIONS), 1, 2)), np.ones((OWN_NUMBERS, 2)), *form, np.ones(1)
    )


def test_a_model_survives_a_file():
    for things in ((), tuple(0.2 * k for k in range(6))):
        context = context_of_chairs() if things else None
        model = ConfidenceCalibration(tuple(0.1 * k for k in range(8)), {"chair": (10, 8)}, things, context)
        again = ConfidenceCalibration.of_dict(json.loads(json.dumps(model.as_dict())))
        assert again.weights == pytest.approx(model.weights)
        assert again.things == pytest.approx(model.things)
        assert again.names == model.names
        assert (again.context is None) == (context is None)
    assert ConfidenceCalibration.of_calibration({}) is None


def test_a_form_is_read_from_the_floor_up():
    """Edges and height of a box as context reads them; the floor lies 1 m below the world's origin."""
    table = np.zeros((2, len(FEATURES)))
    table[:, FEATURES.index("surface")], table[:, FEATURES.index("closed")] = 0.3, -0.2
    lying = [0.0, 0.0, 0.5, 1.0, 0.2, 2.0, 0.0, 0.0, 0.0]
    form = dict(zip(FORM, box_forms(np.array([CHAIR, lying]), table, -1.0).T, strict=True))
    np.testing.assert_allclose(np.exp(form["tall"]), [0.9, 2.0])
    np.testing.assert_allclose(np.exp(form["long"]), [0.5, 1.0])
    np.testing.assert_allclose(np.exp(form["short"]), [0.5, 0.2])
    np.testing.assert_allclose(form["bottom"], [1.0, 0.5])
    np.testing.assert_allclose(form["top"], [1.9, 2.5])
    assert form["surface"].tolist() == [0.3, 0.3]
    assert form["closed"].tolist() == [-0.2, -0.2]


def test_the_perceptron_publishes_probabilities():
    """The network's own scores without a model; with one, those that the model gives."""
    network = inference("float32", min_score=0.3)
    plain = Perceptron(config(max_count=4), inference=network)
    network.calibration = {"reliability": ConfidenceCalibration((-2.0,) + (0.5,) * 7, {"chair": (9, 1)}).as_dict()}
    weighed = Perceptron(config(max_count=4), inference=network)
    for frame in walk(3, 3):
        plain.integrate(frame)
        weighed.integrate(frame)
    plain.perceive()
    weighed.perceive()
    a, b = plain.prediction.detections, weighed.prediction.detections
    assert len(a) == len(b) > 0
    assert set(b.labels) <= set(CLASSES)
    snapshot, floor_z_m = weighed.volume.snapshot(), weighed.prediction.floor_z_m
    expected = ConfidenceCalibration.of_calibration(network.calibration)(a, snapshot, floor_z_m)
    np.testing.assert_allclose(b.scores, expected.scores, atol=1e-6)
    assert not np.allclose(np.sort(a.scores), np.sort(b.scores))


def test_shipped_weights_bring_a_model():
    model = ConfidenceCalibration.of_calibration(load_inference("tiny").calibration)
    assert model is not None
    weight = dict(zip(FEATURES, model.weights[1:], strict=True))
    assert weight["score"] > 1
    assert weight["name"] > 0
    assert weight["closed"] > 0
    assert weight["plausible"] >= 0
    assert weight["surface"] >= 0
    assert weight["rival"] <= 0


def test_shipped_context_relates_names():
    context = ConfidenceCalibration.of_calibration(load_inference("tiny").calibration).context
    at = {name: k for k, name in enumerate(context.names)}
    affinity = np.einsum("kd,rjd->kj", context.query, context.value[: len(GAPS_M)])  # a box of the name beside it

    for name, friend, stranger in (
        ("counter", "stove", "bed"),
        ("wardrobe", "bed", "couch"),
        ("table", "couch", "bed"),
    ):
        assert affinity[at[name], at[friend]] > affinity[at[name], at[stranger]] + 1.0
