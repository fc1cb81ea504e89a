"""OpenLex3D: tiers, set ranking and retrieval by hand; files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_perceptron_training.evaluation.suites.openlex3d import (
    RANKING,
    TIERS,
    TOP_N,
    PointPrediction,
    PointTruth,
    Prompts,
    TieredLabels,
    instance_iou,
    nearest_points,
    openlex3d_metrics,
    read_labels,
    read_prediction,
    read_prompts,
    read_truth,
    retrieval_ap,
    scene_prompts,
    segmentation_metrics,
    set_scores,
)

Array = np.ndarray[Any, Any]
LAMP = TieredLabels(1, ("lamp", "light"), ("ball",), ("fan", "vase"), (2,))
DESK = TieredLabels(2, ("desk",), (), ("table",))
WORDS = ("lamp", "light", "ball", "fan", "vase", "desk", "table", "cup", "dog", "cat", "sky", "tree")
PROMPTS = Prompts(WORDS, np.eye(len(WORDS)))


def feature(*words: str) -> Array:
    """Similar to words in this order, to nothing else."""
    row = np.zeros(len(WORDS))
    for k, word in enumerate(words):
        row[WORDS.index(word)] = 1.0 - 0.01 * k
    return row


def row_of_points(first: float, count: int) -> Array:
    """(count, 3), 1 m apart along x."""
    return np.stack([first + np.arange(count), np.zeros(count), np.zeros(count)], axis=1).astype(np.float64)


def prediction(points: Array, features: Array, instance: Array | None = None) -> PointPrediction:
    """A feature for each point; without instances each point is its own."""
    rows = np.arange(len(points))
    if instance is None:
        return PointPrediction(points, features, rows, rows, features)
    names, instance = np.unique(instance, return_inverse=True)
    means = np.array([features[instance == k].mean(axis=0) for k in range(len(names))])
    return PointPrediction(points, features, rows, instance.astype(np.int64), means)


def truth(*objects: TieredLabels, points: int = 4) -> PointTruth:
    """``points`` points of each object, one object after the other."""
    ids = np.repeat([o.object_id for o in objects], points).astype(np.int64)
    return PointTruth(row_of_points(0, len(ids)), ids, objects)


# -- top-N frequency


def test_every_tier_by_hand() -> None:
    """The lamp has eight points, each with what the name says ranked first."""
    labels = (LAMP, DESK)
    points = row_of_points(0, 10)
    scene = PointTruth(points, np.array([1] * 8 + [2] * 2), labels)
    first = ["light", "ball", "vase", "desk", "dog", "lamp", "dog"]
    features = np.stack([*(feature(w, "dog", "cat", "sky", "tree", "cup") for w in first), *[feature("desk")] * 2])
    seen = points[[0, 1, 2, 3, 4, 5, 6, 8, 9]]  # the lamp's last point is missing
    figures = segmentation_metrics([(scene, prediction(seen, features))], PROMPTS, (1,))
    lamp = {"synonyms": 2, "depictions": 1, "vis_sim": 1, "clutter": 1, "incorrect": 2, "missing": 1}
    for tier in TIERS:
        assert figures[f"top1/{tier}"] == pytest.approx(100 * (lamp[tier] / 8 + (tier == "synonyms")) / 2)


def test_the_best_tier_of_the_n_best_counts() -> None:
    scene = truth(LAMP, DESK)
    at_lamp = feature("dog", "desk", "vase", "ball", "light")
    at_desk = feature("cat", "table", "dog", "sky", "tree")
    features = np.stack([at_lamp] * 4 + [at_desk] * 4)
    figures = segmentation_metrics([(scene, prediction(scene.points_m, features))], PROMPTS, (1, 2, 3, 4, 5))
    lamp = ["incorrect", "clutter", "vis_sim", "depictions", "synonyms"]
    for n, tier in enumerate(lamp, start=1):
        desk = "incorrect" if n == 1 else "vis_sim"
        expected = {name: 50.0 * ((name == tier) + (name == desk)) for name in TIERS}
        assert {name: figures[f"top{n}/{name}"] for name in TIERS} == expected


def test_objects_count_alike_however_many_points_they_have() -> None:
    ids = np.array([1] * 9 + [2])
    scene = PointTruth(row_of_points(0, 10), ids, (LAMP, DESK))
    features = np.stack([feature("lamp")] * 9 + [feature("dog")])
    figures = segmentation_metrics([(scene, prediction(scene.points_m, features))], PROMPTS, (1,))
    assert figures["top1/synonyms"] == 50.0


def test_missing_begins_beyond_five_centimetres() -> None:
    true = np.zeros((1, 3))
    assert nearest_points(true, np.array([[0.05, 0, 0]])).tolist() == [0]
    assert nearest_points(true, np.array([[0.0501, 0, 0]])).tolist() == [-1]
    assert nearest_points(true, np.array([[0.04, 0, 0], [0.01, 0, 0]])).tolist() == [1]
    assert nearest_points(true, np.zeros((0, 3))).tolist() == [-1]
    assert nearest_points(np.zeros((0, 3)), true).tolist() == []


def test_structure_and_objects_without_points_are_left_out() -> None:
    wall = TieredLabels(3, ("Wall",))
    nameless = TieredLabels(4, (), ("stripes",))
    scene = PointTruth(row_of_points(0, 3), np.array([1, 3, 4]), (LAMP, DESK, wall, nameless))
    assert [o.object_id for o in scene.scored()] == [1]
    prompts = Prompts((*WORDS, "wall", "stripes"), np.eye(14))
    features = np.concatenate([np.stack([feature("lamp")] * 3), np.zeros((3, 2))], axis=1)
    figures = segmentation_metrics([(scene, prediction(scene.points_m, features))], prompts, (1,))
    assert figures["top1/synonyms"] == 100.0


# -- set ranking


def test_set_scores_by_hand() -> None:
    # synonyms on ranks 0 .. 1 of 0 .. 11
    before, behind = set_scores(np.array([0, 1, 2, 6, 11]), 0, 1, 11)
    np.testing.assert_allclose(before, 1)
    np.testing.assert_allclose(behind, [1, 1, 0.9, 0.5, 0])
    # the second set on ranks 2 .. 4
    before, behind = set_scores(np.array([0, 1, 2, 4, 11]), 2, 4, 11)
    np.testing.assert_allclose(before, [0, 0.5, 1, 1, 1])
    np.testing.assert_allclose(behind, [1, 1, 1, 1, 0])
    # a set that fills all ranks cannot be missed
    before, behind = set_scores(np.array([0, 2]), 0, 2, 2)
    np.testing.assert_allclose(np.minimum(before, behind), 1)


def test_set_ranking_by_hand() -> None:
    """ranks: fan 0, lamp 1, ball 2, light 3, vase 4, others behind."""
    scene = truth(LAMP, DESK)
    scene = PointTruth(scene.points_m[:4], scene.objects[:4], (LAMP, DESK))
    features = np.stack([feature("fan", "lamp", "ball", "light", "vase")] * 4)
    figures = segmentation_metrics([(scene, prediction(scene.points_m, features))], PROMPTS, (1,))
    # S = {lamp 1, light 3} on 0 .. 1: light is 2 of 10 ranks behind; DVS = {ball 2, fan 0, vase 4} on 2 .. 4: fan is
    # 2 of 2 before
    expected = {
        "mR": 100 * (1 + 0.8 + 1 + 0 + 1) / 5,
        "R_S": 50.0,
        "R_DVS": 200 / 3,
        "P_S": 10.0,
        "P_DVS_under": 0.0,
        "P_DVS_over": 100 / 3,
    }
    assert {k: figures[k] for k in RANKING} == pytest.approx(expected)


def test_missing_points_are_not_ranked() -> None:
    scene = PointTruth(row_of_points(0, 4), np.ones(4, np.int64), (LAMP, DESK))
    features = np.stack([feature("lamp", "light", "ball", "fan", "vase")] * 2)
    figures = segmentation_metrics([(scene, prediction(scene.points_m[:2], features))], PROMPTS, (1,))
    assert figures["top1/missing"] == 50.0
    assert {k: figures[k] for k in RANKING} == pytest.approx(
        {"mR": 100.0, "R_S": 100.0, "R_DVS": 100.0, "P_S": 0.0, "P_DVS_under": 0.0, "P_DVS_over": 0.0}
    )
    nothing = segmentation_metrics([(scene, prediction(scene.points_m[:0], features[:0]))], PROMPTS, (1,))
    assert nothing["top1/missing"] == 100.0
    assert (nothing["mR"], nothing["P_S"]) == (0.0, 100.0)


def test_any_label_of_a_neighbour_is_clutter() -> None:
    """The desk's picture, "sky", said of the lamp beside it."""
    desk = TieredLabels(2, ("desk",), ("sky",), ("table",))
    scene = PointTruth(row_of_points(0, 2), np.ones(2, np.int64), (LAMP, desk))
    for word, tier in (("desk", "clutter"), ("sky", "clutter"), ("table", "clutter"), ("dog", "incorrect")):
        found = prediction(scene.points_m, np.stack([feature(word)] * 2))
        assert segmentation_metrics([(scene, found)], PROMPTS, (1,))[f"top1/{tier}"] == 100.0


# -- retrieval


def test_retrieval_by_hand() -> None:
    """Two lamps and a desk; queries lamp (two objects) and desk."""
    first, second = TieredLabels(1, ("lamp",)), TieredLabels(3, ("lamp",))
    scene = truth(first, second, DESK)
    instance = np.repeat([0, 1, 2], 4)
    features = np.stack([feature("lamp")] * 4 + [feature("cup")] * 4 + [feature("desk")] * 4)
    exact = prediction(scene.points_m, features, instance)
    # at similarity 1 two of three wanted are found without a mistake; at 0 the third one among five wrong ones
    found = retrieval_ap([(scene, exact)], PROMPTS)
    assert found["AP25"] == pytest.approx(100 * (2 / 3 + 1 / 3 * 3 / 6))
    assert found == pytest.approx(dict.fromkeys(("AP", "AP50", "AP25"), found["AP25"]))


def test_retrieval_counts_overlap() -> None:
    scene = truth(LAMP, DESK)
    # the set covers three of four points of the lamp, and one of the desk: IoU 3/5
    points = scene.points_m[[0, 1, 2, 4]]
    found = prediction(points, np.stack([feature("lamp", "light")] * 4), np.zeros(4, int))
    iou, ids = instance_iou(scene, found)
    assert ids == [1, 2]
    np.testing.assert_allclose(iou, [[3 / 5, 1 / 7]])
    only_lamp = PointTruth(scene.points_m, scene.objects, (TieredLabels(1, ("lamp",)),))
    figures = retrieval_ap([(only_lamp, found)], PROMPTS)
    assert (figures["AP25"], figures["AP50"]) == (100.0, 100.0)
    assert figures["AP"] == pytest.approx(20.0)  # right at 0.5 and 0.55, wrong from 0.6 on


def test_queries_join_depictions_and_synonyms() -> None:
    assert LAMP.queries == {"synonyms": ("lamp", "light"), "depictions": ("ball lamp", "ball light")}
    labels, queries = scene_prompts([truth(LAMP, DESK, TieredLabels(5, ("floor",)))])
    assert labels == ["ball", "desk", "fan", "floor", "lamp", "light", "table", "vase"]
    assert queries == ["ball lamp", "ball light", "desk", "lamp", "light"]


def test_spacing_variants_are_labels_of_their_own() -> None:
    """As in OpenLex3D's label lists."""
    spelled = truth(TieredLabels(1, ("counter top",), (), ("countertop",)))
    assert scene_prompts([spelled]) == (["counter top", "countertop"], ["counter top"])
    assert Prompts(("counter top", "countertop"), np.eye(2)).row("countertop") == 1


def test_queries_of_synonyms_and_of_depictions_are_scored_apart() -> None:
    """The lamp is found by its name, and another object by its depiction."""
    scene = truth(LAMP, DESK)
    features = np.stack([feature("lamp", "light")] * 4 + [feature("ball")] * 4)
    found = prediction(scene.points_m, features, np.repeat([0, 1], 4))
    texts = ("lamp", "light", "desk", "ball lamp", "ball light")
    queries = Prompts(texts, np.stack([feature("lamp"), feature("light"), feature("desk"), *[feature("ball")] * 2]))
    figures = retrieval_ap([(scene, found)], queries)
    assert {"AP", "AP50", "AP25", "depictions/AP", "depictions/AP50", "depictions/AP25"} == set(figures)
    assert figures["AP25"] > figures["depictions/AP25"]
    undepicted = truth(DESK)
    assert set(retrieval_ap([(undepicted, prediction(undepicted.points_m, features[:4]))], queries)) == {
        *("AP", "AP50", "AP25")
    }


# -- both


def perfect(count: int) -> tuple[PointTruth, PointPrediction, Prompts, Prompts]:
    """Objects k with two synonyms, a depiction and a similar label each, and features that rank these in order."""
    objects, width = [], 4 * count
    words = [[f"name{k}", f"alias{k}", f"motif{k}", f"kin{k}"] for k in range(count)]
    for k, (name, alias, motif, kin) in enumerate(words):
        objects.append(TieredLabels(k, (name, alias), (motif,), (kin,)))
    scene = truth(*objects, points=3)
    features = np.zeros((count, width))
    for k in range(count):
        features[k, 4 * k : 4 * k + 4] = [1.0, 0.99, 0.5, 0.4]
    rows = np.repeat(np.arange(count), 3)
    found = PointPrediction(scene.points_m, features, rows, rows, features)
    prompts = Prompts(tuple(w for group in words for w in group), np.eye(width))
    queries = [q for o in objects for kind in o.queries.values() for q in kind]
    texts = []
    for q in queries:
        parts = [prompts.features[prompts.row(w)] for w in q.split()]
        texts.append(np.sum(parts, axis=0))
    return scene, found, prompts, Prompts(tuple(queries), np.stack(texts))


def test_perfect_is_100() -> None:
    scene, found, prompts, queries = perfect(4)
    figures = openlex3d_metrics([(scene, found)], prompts, queries)
    for n in TOP_N:
        assert figures[f"top{n}/synonyms"] == 100.0
    assert {k: figures[k] for k in ("mR", "R_S", "R_DVS", "AP", "AP50", "AP25")} == pytest.approx(
        dict.fromkeys(("mR", "R_S", "R_DVS", "AP", "AP50", "AP25"), 100.0)
    )
    assert figures["P_S"] == figures["P_DVS_under"] == figures["P_DVS_over"] == 0.0


def random_scene(seed: int) -> tuple[PointTruth, PointPrediction]:
    rng = np.random.default_rng(seed)
    scene, _, _, _ = perfect(6)
    kept = rng.random(len(scene.points_m)) < 0.9
    points = scene.points_m[kept]
    features = rng.normal(size=(len(points), 24))
    return scene, prediction(points, features, rng.integers(0, 4, len(points)))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_figures_sum_up_are_monotone_and_blind_to_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scene, found = random_scene(seed)
    _, _, prompts, queries = perfect(6)
    figures = openlex3d_metrics([(scene, found)], prompts, queries)
    for n in TOP_N:
        assert sum(figures[f"top{n}/{tier}"] for tier in TIERS) == pytest.approx(100)
    rising = (
        [figures[f"top{n}/synonyms"] for n in (1, 5, 10)],
        [-figures[f"top{n}/incorrect"] for n in (1, 5, 10)],
        [figures[name] for name in ("AP", "AP50", "AP25")],
    )
    assert all(np.diff(values).min() >= -1e-9 for values in rising)  # sums of many floats differ in the last bit
    assert all(-1e-9 <= value <= 100 + 1e-9 for value in figures.values())
    a, b, c = rng.permutation(len(scene.points_m)), rng.permutation(len(found.points_m)), rng.permutation(24)
    names = rng.permutation(len(found.instance_features))
    turned = PointPrediction(
        found.points_m[b],
        found.features,
        found.feature_of[b],
        np.argsort(names)[found.instance_of[b]],
        found.instance_features[names],
    )
    shuffled = PointTruth(scene.points_m[a], scene.objects[a], scene.labels[::-1])
    again = openlex3d_metrics([(shuffled, turned)], prompts.take([prompts.labels[i] for i in c]), queries)
    assert again == pytest.approx(figures)


def test_figures_refuse_what_does_not_fit() -> None:
    empty = PointTruth(np.zeros((0, 3)), np.zeros(0, np.int64), ())
    nothing = prediction(np.zeros((0, 3)), np.zeros((0, len(WORDS))))
    with pytest.raises(ValueError, match="no scene has a labelled object"):
        segmentation_metrics([(empty, nothing)], PROMPTS)
    with pytest.raises(ValueError, match="no scene has a labelled object"):
        retrieval_ap([(empty, nothing)], PROMPTS)
    scene = truth(LAMP, DESK)
    found = prediction(scene.points_m, np.stack([feature("lamp")] * 8))
    # a scene without objects beside one with some adds nothing
    alone = segmentation_metrics([(scene, found)], PROMPTS)
    assert segmentation_metrics([(empty, nothing), (scene, found)], PROMPTS) == alone
    with pytest.raises(ValueError, match=r"top-N must be in 1\.\.12, .* got 13"):
        segmentation_metrics([(scene, found)], PROMPTS, (1, 13))
    with pytest.raises(ValueError, match="the prompts lack 'ball lamp'"):
        retrieval_ap([(scene, found)], PROMPTS)
    with pytest.raises(ValueError, match="features have 3 numbers, those of the prompts 12"):
        segmentation_metrics([(scene, prediction(scene.points_m, np.ones((8, 3))))], PROMPTS)
    with pytest.raises(ValueError, match="feature 0 is zero"):
        prediction(scene.points_m, np.zeros((8, 3)))
    with pytest.raises(ValueError, match="object 9 is clutter"):
        PointTruth(np.zeros((1, 3)), np.ones(1, np.int64), (TieredLabels(1, ("lamp",), (), (), (9,)),))
    with pytest.raises(ValueError, match="object 1 is labelled twice"):
        truth(LAMP, DESK, LAMP)
    with pytest.raises(ValueError, match="'lamp' is listed twice"):
        Prompts(("lamp", "lamp"), np.eye(2))


# -- labels


@pytest.mark.parametrize(
    ("tiers", "message"),
    [
        ((("lamp",), ("lamp",)), "'lamp' is in synonyms and in depictions"),
        ((("floor lamp",), (), ("floor lamp",)), "'floor lamp' is in synonyms and in visually_similar"),
        ((("lamp", "  "),), "a label of synonyms is blank"),
    ],
)
def test_labels_stand_in_one_tier(tiers: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=f"object 7: .*{message}"):
        TieredLabels(7, *tiers)


def own_form() -> list[dict[str, Any]]:
    return [
        {"id": 1, "synonyms": ["lamp"], "depictions": ["ball"], "visually_similar": ["fan"], "clutter": [2]},
        {"id": 2, "synonyms": ["desk"], "depictions": [], "visually_similar": [], "clutter": []},
    ]


def test_labels_of_both_forms_are_read(tmp_path: Path) -> None:
    path = tmp_path / "scene.json"
    path.write_text(json.dumps(own_form()))
    labels, twice = read_labels(path)
    assert labels == (TieredLabels(1, ("lamp",), ("ball",), ("fan",), (2,)), TieredLabels(2, ("desk",)))
    assert twice == 0
    attributes = [{k.replace("visually_similar", "vis_sim"): v for k, v in o.items() if k != "id"} for o in own_form()]
    attributes[0]["clutter"] = ["2"]  # as published
    samples = [{"object_id": k + 1, "labels": {"image_attributes": a}} for k, a in enumerate(attributes)]
    path.write_text(json.dumps({"dataset": {"samples": samples}}))
    assert read_labels(path) == (labels, 0)


def test_a_label_in_two_tiers_is_counted_in_the_least(tmp_path: Path) -> None:
    path = tmp_path / "scene.json"
    entries = own_form()
    entries[0]["visually_similar"] = ["fan", "lamp", "ball"]
    path.write_text(json.dumps(entries))
    labels, twice = read_labels(path)
    assert twice == 2
    assert labels[0] == TieredLabels(1, (), (), ("fan", "lamp", "ball"), (2,))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[", "scene.json: Expecting"),
        ("{}", "the objects must be a list"),
        ('[{"id": 1}]', "entry 0 lacks 'visually_similar'"),
        ("[3]", "entry 0: an object must be"),
        ('[{"id": 1, "synonyms": "lamp", "depictions": [], "visually_similar": [], "clutter": []}]', "list of texts"),
        ('[{"id": "x", "synonyms": [], "depictions": [], "visually_similar": [], "clutter": []}]', "entry 0"),
    ],
)
def test_labels_that_are_none(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "scene.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        read_labels(path)
    assert "scene.json" in str(error.value)


# -- arrays


def test_maps_round_trip(tmp_path: Path) -> None:
    scene, found = random_scene(1)
    prompts = perfect(6)[2]
    features = found.features[found.feature_of]
    np.savez(tmp_path / "map.npz", points=found.points_m, features=features, instances=found.instance_of)
    again = read_prediction(tmp_path / "map.npz")
    np.testing.assert_allclose(again.points_m, found.points_m, atol=1e-6)
    np.testing.assert_allclose(again.features[again.feature_of], found.features[found.feature_of], atol=1e-6)
    assert again.instance_of.tolist() == found.instance_of.tolist()
    np.savez(tmp_path / "truth.npz", points=scene.points_m, objects=scene.objects)
    np.savez(tmp_path / "prompts.npz", labels=np.array(prompts.labels), features=prompts.features)
    read = read_truth(tmp_path / "truth.npz", scene.labels)
    figures = segmentation_metrics([(read, again)], read_prompts(tmp_path / "prompts.npz"))
    assert figures == pytest.approx(segmentation_metrics([(scene, found)], prompts), abs=1e-3)


def test_instances_may_be_absent_or_have_gaps(tmp_path: Path) -> None:
    path = tmp_path / "map.npz"
    np.savez(path, points=row_of_points(0, 4), features=np.eye(4), instances=np.array([7, -1, 7, 3]))
    found = read_prediction(path)
    assert found.instance_of.tolist() == [1, -1, 1, 0]
    np.testing.assert_allclose(found.instance_features, [[0, 0, 0, 1], [0.5**0.5, 0, 0.5**0.5, 0]])
    np.savez(path, points=row_of_points(0, 2), features=np.eye(2))
    assert read_prediction(path).instance_of.tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"points": np.zeros((2, 3))}, "lacks 'features'"),
        ({"points": np.zeros((2, 3)), "features": np.eye(3)}, "2 points have 3 features"),
        ({"points": np.zeros((2, 2)), "features": np.eye(2)}, r"must be \(N, 3\)"),
        ({"points": np.full((2, 3), np.nan), "features": np.eye(2)}, "predicted point 0 is not finite"),
        ({"points": np.zeros((2, 3)), "features": np.zeros((2, 2))}, "feature 0 is zero"),
        ({"points": np.zeros((2, 3)), "features": np.eye(2), "instances": np.zeros(2)}, "whole numbers, got float64"),
    ],
)
def test_maps_that_are_none(tmp_path: Path, arrays: dict[str, Array], message: str) -> None:
    path = tmp_path / "map.npz"
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=message) as error:
        read_prediction(path)
    assert "map.npz" in str(error.value)


def test_arrays_of_objects_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts.npz"
    np.savez(path, labels=np.array(["lamp"], dtype=object), features=np.eye(1))
    with pytest.raises(ValueError, match="cannot be read"):
        read_prompts(path)


def test_an_empty_scene_among_others_changes_nothing(tmp_path: Path) -> None:
    scene, found, prompts, queries = perfect(4)
    (tmp_path / "empty.json").write_text("[]")
    labels, twice = read_labels(tmp_path / "empty.json")
    assert (list(labels), twice) == ([], 0)
    bare = PointTruth(np.zeros((0, 3)), np.zeros(0, np.int64), ())
    unseen = prediction(np.zeros((0, 3)), np.zeros((0, prompts.features.shape[1])))
    alone = openlex3d_metrics([(scene, found)], prompts, queries)
    assert openlex3d_metrics([(bare, unseen), (scene, found)], prompts, queries) == alone
