"""Names where the network is sure enough, ``object`` where it only sees that something is there."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from embodied_perceptron.config import ScorePolicy
from embodied_perceptron.geometry.boxes import box_iou
from embodied_perceptron.inference.naming import Naming, shift_between
from embodied_perceptron.inference.predictor import Predictor
from embodied_perceptron.nn.detection import best_scores, label_logits
from embodied_perceptron.nn.input_features import sites_of_voxels
from embodied_perceptron.nn.network import PerceptionNetwork
from embodied_perceptron.nn.presets import network_config
from embodied_perceptron.results import UNNAMED, Detections, VoxelSnapshot
from embodied_perceptron.scene.object_map import ObjectMap


def box(x: float, size: float = 1.0) -> list[float]:
    return [x, 0.0, 0.5, size, size, 1.0, 0.0, 0.0, 0.0]


def selected(
    things: list[tuple[float, float]], names: list[tuple[float, float]], naming: Naming | None = None
) -> list[tuple[float, float, bool]]:
    """(x, score) of boxes without and with a name -> (x, new score, nameless) of those that stay, best first."""
    rows = [*things, *names]
    boxes, scores = np.array([box(x) for x, _ in rows]), np.array([s for _, s in rows])
    nameless = np.arange(len(rows)) < len(things)
    kept, rescored = (naming or Naming())(boxes, scores, nameless)
    return [(float(boxes[i, 0]), float(s), bool(nameless[i])) for i, s in zip(kept, rescored, strict=True)]


def test_a_sure_name_takes_the_place_of_its_thing() -> None:
    assert selected([(0.0, 0.8)], [(0.1, 0.4)]) == [(0.1, 0.4, False)]


def test_an_unsure_name_does_not() -> None:
    kept = selected([(0.0, 0.8)], [(0.1, 0.19)])
    assert kept[0] == (0.0, 0.8, True)
    assert kept[1] == (0.1, 0.19, False)  # still a candidate of an answer


def test_a_thing_beside_a_named_one_stays() -> None:
    assert selected([(2.0, 0.3)], [(0.0, 0.9)]) == [(0.0, 0.9, False), (2.0, 0.3, True)]


def test_what_is_hardly_there_goes() -> None:
    assert selected([(0.0, 0.04)], []) == []
    assert selected([], []) == []


def test_shifted_things_score_as_names_that_promise_as_much() -> None:
    naming = Naming(shift=shift_between(0.5, 0.1))
    ((_, score, _),) = selected([(0.0, 0.5)], [], naming)
    assert score == pytest.approx(0.1)
    kept = selected([(0.0, 0.5)], [(0.0, 0.12)], naming)
    assert kept[0][2]  # and never less than an unsure name of the same thing, which would be published in its place
    assert kept[0][1] > kept[1][1] == 0.12


def named(*rows: tuple[str, float]) -> Detections:
    boxes = np.array([box(0.0)] * len(rows))
    return Naming().select(Detections(boxes, np.array([s for _, s in rows]), tuple(label for label, _ in rows)))


def test_all_that_is_said_of_a_thing_goes_along_with_each_of_its_boxes() -> None:
    found = named((UNNAMED, 0.8), ("chair", 0.5), ("stool", 0.2))
    assert found.labels == ("chair", "stool")
    assert found.posterior(0) == pytest.approx({"chair": 0.5, "stool": 0.2, UNNAMED: 0.1})
    assert found.posterior(1) == pytest.approx({"stool": 0.2, "chair": 0.5, UNNAMED: 0.1})
    unsure = named((UNNAMED, 0.8), ("chair", 0.3), ("stool", 0.2))
    assert unsure.labels[0] == UNNAMED
    assert unsure.posterior(0) == pytest.approx({"chair": 0.3, "stool": 0.2, UNNAMED: 0.3})


def test_a_name_that_is_sure_has_half_of_its_things_posterior() -> None:
    """However much its other names say together: the decided name counts."""
    found = named((UNNAMED, 0.9), ("cabinet", 0.5), ("counter", 0.4), ("stove", 0.3))
    assert found.labels[0] == "cabinet"
    assert found.posterior(0)["cabinet"] >= 0.5 * sum(found.posterior(0).values())
    assert sum(found.posterior(0).values()) == pytest.approx(0.9)


@pytest.mark.parametrize("score", [0.0, 1.0, -1.0])
def test_scores_that_promise_nothing_are_refused(score: float) -> None:
    with pytest.raises(ValueError, match=f"got {score}"):
        shift_between(score, 0.5)


def test_pairs_are_those_of_all_overlaps() -> None:
    """What is near enough to be compared, against every pair compared."""
    rng = np.random.default_rng(0)
    boxes = np.concatenate([rng.uniform(-1, 1, (60, 3)), rng.uniform(0.02, 1, (60, 3)), rng.uniform(-1, 1, (60, 3))], 1)
    boxes[30:45] = boxes[:15] + rng.normal(0, 0.03, (15, 9))
    boxes[:, 3:6] = np.maximum(boxes[:, 3:6], 0.02)
    scores, nameless = rng.uniform(0.1, 1.0, 60), np.arange(60) < 30
    thick = boxes.copy()
    thick[:, 3:6] = np.maximum(thick[:, 3:6], 0.1)
    iou = box_iou(torch.from_numpy(thick), torch.from_numpy(thick)).numpy()
    same = iou[:30, 30:] >= 0.5
    assert same.sum() >= 5
    sure = (same & (scores[None, 30:] >= 0.5 * scores[:30, None])).any(axis=1)
    kept, _ = Naming()(boxes, scores, nameless)
    assert set(kept[kept < 30].tolist()) == set(np.flatnonzero(~sure).tolist())


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    torch.manual_seed(0)
    config = network_config("tiny", "detection", "depth", 3)
    assert config.detection is not None
    config = dataclasses.replace(config, detection=dataclasses.replace(config.detection, presence=True))
    return Predictor(PerceptionNetwork(config), ("bed", "chair", "table"))


def scene_of(predictor: Predictor) -> object:
    rng = np.random.default_rng(1)
    points = rng.uniform(0, 1.5, (3000, 3))
    config = predictor.network.config
    colors, hits = np.full((3000, 3), 128, np.uint8), np.full(3000, 3, np.int32)
    return predictor.encode(sites_of_voxels(points, colors, hits, config.voxel_size_m, config.inputs, 0.0, 5000))


def test_a_network_that_knows_presence_tells_of_things_without_a_name(predictor: Predictor) -> None:
    head = predictor.network.detection
    assert head is not None
    assert head.presence is not None
    with torch.no_grad():
        head.presence.bias.fill_(3.0)  # type: ignore[union-attr]
    found = predictor.detections(scene_of(predictor))  # type: ignore[arg-type]
    assert UNNAMED in found.labels
    assert found.labels[0] == UNNAMED  # the classes are at 0.01
    assert (np.diff(found.scores) <= 0).all()
    with torch.no_grad():
        head.presence.bias.fill_(-9.0)  # type: ignore[union-attr]
        head.classify.bias.fill_(1.0)  # type: ignore[union-attr]
    assert set(predictor.detections(scene_of(predictor)).labels) <= {"bed", "chair", "table"}  # type: ignore[arg-type]


def test_the_best_label_may_be_that_of_a_thing(predictor: Predictor) -> None:
    scene = scene_of(predictor)
    levels = scene.detection.levels  # type: ignore[attr-defined]
    logits, centers = label_logits(levels), torch.cat([level.center_logits for level in levels])
    assert logits.shape == (sum(len(level.sites) for level in levels), levels[0].class_logits.shape[1] + 1)
    slow = logits.sigmoid().amax(1) * centers[:, 0].sigmoid().pow(1 / 3)
    torch.testing.assert_close(best_scores(logits, centers, 1 / 3), slow)


def test_the_map_of_objects_calls_an_unsure_thing_an_object() -> None:
    """Looks that do not agree about the name of a box on the floor."""
    points = np.random.default_rng(0).uniform([-0.5, -0.5, 0.0], [0.5, 0.5, 1.0], (400, 3)).astype(np.float32)
    coords = np.unique(np.floor(points / 0.02).astype(np.int32), axis=0)
    n = len(coords)
    snapshot = VoxelSnapshot(
        0.02, coords, ((coords + 0.5) * 0.02).astype(np.float32), np.zeros((n, 3), np.uint8),
        np.ones(n, np.int32), np.ones(n, np.float32), np.full(n, 1, np.int64),
    )  # fmt: skip
    objects = ObjectMap()
    for step in range(1, 6):
        boxes = np.array([box(0.0), box(0.02)])
        name = ("bowl", "plate", "toy")[step % 3]
        rows, scores = Naming()(boxes, np.array([0.8, 0.19]), np.array([True, False]))
        labels = tuple((UNNAMED, name)[i] for i in rows)
        found = Detections(boxes[rows], scores, labels)
        objects.update(found, snapshot, step * 500_000_000, scores=ScorePolicy(0.2))
    (thing,) = objects.objects(("confirmed",))
    assert thing.label == UNNAMED
