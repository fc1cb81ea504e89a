"""Metrics against hand-computed cases, closed forms, plain twins, and the release's recorded results."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from support.golden import GOLDEN, load_json
from support.random_boxes import random_boxes
from typer.testing import CliRunner

from embodied_perceptron.geometry import boxes as bx
from embodied_perceptron_training.evaluation.evaluate_command import register
from embodied_perceptron_training.evaluation.metrics.detection import SceneBoxes, average_precision, detection_metrics
from embodied_perceptron_training.evaluation.metrics.grounding import GroundingQuery, grounding_metrics
from embodied_perceptron_training.evaluation.metrics.occupancy import SceneOccupancy, occupancy_metrics
from embodied_perceptron_training.evaluation.runner.prediction_files import evaluate_files


def cubes(*x: float, size: float = 1.0) -> np.ndarray[Any, Any]:
    return np.array([[v, 0, 0, size, size, size, 0, 0, 0] for v in x], dtype=np.float64).reshape(-1, 9)


def scene(boxes: Any, labels: Any, scores: Any = None) -> SceneBoxes:
    return SceneBoxes(np.asarray(boxes), np.asarray(labels, dtype=np.int64), scores)


def plain_metrics(
    predictions: list[SceneBoxes], truth: list[SceneBoxes], label: int, threshold: float
) -> tuple[float, float]:
    """AP and recall of one class, one detection at a time, the area summed step by step."""
    ranked = []
    for s, scene_ in enumerate(predictions):
        assert scene_.scores is not None
        ranked += [(-scene_.scores[i], s, i) for i in range(len(scene_.labels)) if scene_.labels[i] == label]
    total = sum(int((t.labels == label).sum()) for t in truth)
    found: set[tuple[int, int]] = set()
    curve, right = [], 0
    for tried, (_, s, i) in enumerate(sorted(ranked), start=1):
        candidates = [j for j in range(len(truth[s].labels)) if truth[s].labels[j] == label]
        overlaps = [
            bx.box_iou(torch.from_numpy(predictions[s].boxes[i : i + 1]), torch.from_numpy(truth[s].boxes[j : j + 1]))
            for j in candidates
        ]
        if overlaps:
            best = int(np.argmax([float(o) for o in overlaps]))
            if float(overlaps[best]) > threshold and (s, candidates[best]) not in found:
                found.add((s, candidates[best]))
                right += 1
        curve.append((right / total, right / tried))
    area = sum(
        (curve[k][0] - (curve[k - 1][0] if k else 0.0)) * max(p for _, p in curve[k:]) for k in range(len(curve))
    )
    return area, right / total


# ---------------------------------------------------------------------------------------------------------- detection


def test_average_precision_closed_forms() -> None:
    n = 1000
    k = np.arange(1, n + 1)
    assert average_precision(k / n, np.ones(n)) == pytest.approx(1.0)
    assert average_precision(k / (2 * n), np.ones(n)) == pytest.approx(0.5)
    # every second detection right: precision (m + 1) / 2 at the m-th of 2n tries tends to 1/2
    right = np.cumsum(np.tile([1.0, 0.0], n))
    tried = np.arange(1, 2 * n + 1)
    exact = sum(m / (2 * m - 1) for m in range(1, n + 1)) / n
    assert average_precision(right / n, right / tried) == pytest.approx(exact)
    assert average_precision(np.zeros(0), np.zeros(0)) == 0.0


def test_detection_by_hand() -> None:
    """Three objects; right, wrong, right, then a duplicate: precision 1, 1/2, 2/3, 1/2 at recall 1/3, 1/3, 2/3, 2/3."""
    truth = {"a": scene(cubes(0, 5), [0, 0]), "b": scene(cubes(0), [0])}
    found = {
        "a": scene(cubes(0.1, 9, 5.1, 0.2), [0, 0, 0, 0], [0.9, 0.8, 0.7, 0.6]),
        "b": scene(cubes(), [], []),
    }
    figures = detection_metrics(found, truth, ["chair", "table"])
    assert figures["AP25"] == pytest.approx(100 * (1 / 3 + 1 / 3 * 2 / 3))
    assert figures["AR25"] == pytest.approx(200 / 3)
    assert figures["AP25/chair"] == figures["AP25"]
    assert "AP25/table" not in figures


def test_threshold_is_strict() -> None:
    truth = {"a": scene([[0.0, 0, 0, 1, 1, 1, 0, 0, 0]], [0])}
    half = {"a": scene([[0.0, 0, 0, 1, 1, 0.5, 0, 0, 0]], [0], [1.0])}  # IoU is 0.5 to the last bit
    assert detection_metrics(half, truth, ["c"])["AP50"] == 0.0
    assert detection_metrics(half, truth, ["c"])["AP25"] == 100.0


def test_detection_tests_only_its_best_ground_truth() -> None:
    """The second detection overlaps a free box too, but less than the one that is taken: it is wrong."""
    truth = {"a": scene(cubes(0, 0.4), [0, 0])}
    found = {"a": scene(cubes(0, 0.1), [0, 0], [0.9, 0.8])}
    assert detection_metrics(found, truth, ["c"])["AR25"] == 50.0


def test_families_that_training_never_showed_are_scored_apart() -> None:
    """What finds a thing of the other families neither helps nor harms; what finds nothing is wrong in both."""
    truth = {"a": SceneBoxes(cubes(0, 5, 10), np.zeros(3, int), held_out=np.array([False, True, True]))}
    found = {"a": scene(cubes(0, 20, 5), [0, 0, 0], [0.9, 0.8, 0.7])}
    figures = detection_metrics(found, truth, ["chair"])
    assert figures["AP25_seen"] == pytest.approx(100.0)
    assert figures["AP25_unseen"] == pytest.approx(100 * 0.5 * 0.5)  # one of two, after one that is wrong
    assert figures["AR25_unseen"] == 50.0
    assert figures["AP25_furniture_unseen"] == figures["AP25_unseen"]
    assert "AP25_seen" not in detection_metrics(found, {"a": scene(cubes(0), [0])}, ["chair"])
    with pytest.raises(ValueError, match=r"2 boxes have 1 flags of held-out families"):
        SceneBoxes(cubes(0, 5), np.zeros(2, int), held_out=np.array([True]))


def test_classes_without_truth_do_not_count_and_unpredicted_ones_do() -> None:
    truth = {"a": scene(cubes(0, 5), [0, 1])}
    found = {"a": scene(cubes(0, 9), [0, 2], [0.9, 0.8])}
    figures = detection_metrics(found, truth, ["c0", "c1", "c2"])
    assert figures["AP25"] == 50.0
    assert figures["AP25/c1"] == 0.0
    assert "AP25/c2" not in figures


def test_groups_and_sizes() -> None:
    """A small find is no mistake of the large, and the reverse; a wrong box counts against its own size."""
    truth = {"a": scene(np.concatenate([cubes(0, size=0.4), cubes(5, size=2.0)]), [0, 1])}
    boxes = np.concatenate([cubes(0, size=0.4), cubes(5, size=2.0), cubes(20, size=2.0)])
    found = {"a": scene(boxes, [0, 1, 1], [0.5, 0.6, 0.9])}
    figures = detection_metrics(found, truth, ["cup", "bed"], {"head": ["bed"], "tail": ["cup"], "common": []})
    assert figures["AP25_small"] == 100.0
    assert figures["AP25_large"] == 50.0
    assert figures["AP25_furniture"] == 50.0
    assert figures["AP25_head"] == 50.0
    assert figures["AP25_tail"] == 100.0
    assert "AP25_medium" not in figures
    assert "AP25_common" not in figures


def test_a_find_belongs_to_the_size_of_what_it_found() -> None:
    """A detection of 0.6 m finds a small object: right among the small, no mistake among the medium."""
    truth = {"a": scene(np.concatenate([cubes(0, size=0.45), cubes(5, size=0.7)]), [0, 0])}
    found = {"a": scene(np.concatenate([cubes(0, size=0.6), cubes(5, size=0.7)]), [0, 0], [0.9, 0.8])}
    figures = detection_metrics(found, truth, ["c"])
    assert figures["AP25_small"] == 100.0
    assert figures["AP25_medium"] == 100.0


def test_boxes_without_volume_are_never_found() -> None:
    truth = {"a": scene([[0.0, 0, 0, 1, 1, 0, 0, 0, 0], [5.0, 0, 0, 1, 1, 1, 0, 0, 0]], [0, 0])}
    found = {"a": scene([[0.0, 0, 0, 1, 1, 0, 0, 0, 0], [5.0, 0, 0, 1, 1, 1, 0, 0, 0]], [0, 0], [0.9, 0.8])}
    figures = detection_metrics(found, truth, ["c"])
    assert figures["AR25"] == 50.0
    assert figures["AP25"] == 25.0


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.1, 0.25, 0.5]))
def test_detection_equals_its_plain_twin(seed: int, threshold: float) -> None:
    g = np.random.default_rng(seed)
    truth, found = [], []
    for s in range(3):
        boxes = random_boxes(int(g.integers(1, 6)), seed=seed + s).numpy()
        noisy = np.repeat(boxes, 2, axis=0) + 0.1 * g.normal(size=(2 * len(boxes), 9))
        noisy[:, 3:6] = np.abs(noisy[:, 3:6]) + 0.05
        truth.append(scene(boxes, g.integers(0, 2, len(boxes))))
        found.append(scene(noisy, g.integers(0, 2, len(noisy)), np.round(g.random(len(noisy)), 1)))
    names = ["s0", "s1", "s2"]
    figures = detection_metrics(
        dict(zip(names, found, strict=True)), dict(zip(names, truth, strict=True)), ["a", "b"], None, [threshold]
    )
    suffix = f"{round(100 * threshold):02d}"
    for label, name in enumerate(["a", "b"]):
        if any((t.labels == label).any() for t in truth):
            ap, ar = plain_metrics(found, truth, label, threshold)
            assert figures[f"AP{suffix}/{name}"] == pytest.approx(100 * ap)
            assert figures[f"AR{suffix}/{name}"] == pytest.approx(100 * ar)


@pytest.mark.parametrize(
    ("found", "truth", "message"),
    [
        ({}, {"a": scene(cubes(0), [0])}, "no predictions.*'a'"),
        ({"a": scene(cubes(), [], []), "b": scene(cubes(), [], [])}, {"a": scene(cubes(0), [0])}, "without.*'b'"),
        ({"a": scene(cubes(0), [3], [1.0])}, {"a": scene(cubes(0), [0])}, "predicted label 3"),
        ({"a": scene(cubes(0), [0])}, {"a": scene(cubes(0), [0])}, "no scores"),
        ({"a": scene(cubes(), [], [])}, {"a": scene(cubes(), [])}, "empty"),
    ],
)
def test_detection_names_bad_input(found: Any, truth: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        detection_metrics(found, truth, ["c"])


def test_scene_boxes_name_bad_input() -> None:
    with pytest.raises(ValueError, match="1 boxes have 2 labels"):
        scene(cubes(0), [0, 1])
    with pytest.raises(ValueError, match="score 0"):
        scene(cubes(0), [0], [math.nan])
    with pytest.raises(ValueError, match="negative"):
        scene(cubes(0, size=-1.0), [0])


@pytest.mark.golden
def test_golden_average_precision() -> None:
    z = np.load(GOLDEN / "average_precision.npz")
    for i in range(2):
        assert average_precision(z[f"rec{i}"], z[f"prec{i}"]) == pytest.approx(float(z["ap"][i]), abs=1e-6)


@pytest.mark.golden
def test_golden_detection() -> None:
    recorded = load_json("detection_metric")
    classes = [f"c{i}" for i in range(6)]
    for case in recorded["cases"]:
        truth, found = {}, {}
        for i, s in enumerate(case["scenes"]):
            truth[f"{i:02d}"] = scene(np.array(s["gt_boxes"]).reshape(-1, 9), s["gt_labels"])
            found[f"{i:02d}"] = scene(np.array(s["det_boxes"]).reshape(-1, 9), s["det_labels"], s["det_scores"])
        figures = detection_metrics(found, truth, classes)
        for name, value in case["result"].items():
            kind, threshold = name.rsplit("_", 1)
            suffix = threshold[2:]
            ours = {"mAP": f"AP{suffix}", "mAR": f"AR{suffix}"}.get(kind)
            if ours is None:
                label, what = kind.split("_")
                ours = f"{'AP' if what == 'AP' else 'AR'}{suffix}/{label}"
            assert figures[ours] == pytest.approx(100 * value, abs=1e-4), (case["seed"], name)
        assert sum(k.startswith("AP25/") for k in figures) == sum(k.endswith("AP_0.25") for k in case["result"]) - 1


# ---------------------------------------------------------------------------------------------------------- occupancy


def test_occupancy_by_hand() -> None:
    truth = np.array([0, 0, 1, 1, 2, 255])
    predicted = np.array([0, 1, 1, 2, 2, 1])
    figures = occupancy_metrics([SceneOccupancy(predicted, truth)], ["chair", "table", "bed"])
    assert figures["IoU/chair"] == pytest.approx(100 / 3)  # 1 of {1: 2 true, 2 predicted}
    assert figures["IoU/table"] == pytest.approx(50)
    assert figures["IoU/empty"] == pytest.approx(75)  # occupied against free: 3 of 4
    assert "IoU/bed" not in figures
    assert figures["mIoU"] == pytest.approx((100 / 3 + 50 + 75) / 3)
    assert figures["mIoU_classes"] == pytest.approx((100 / 3 + 50) / 2)


def test_a_class_that_is_nowhere_does_not_count_where_it_is_predicted() -> None:
    """A bed where a chair is: the chair's voxel is missed, and there is no column of beds."""
    figures = occupancy_metrics(
        [SceneOccupancy(np.array([0, 1, 3, 2]), np.array([0, 1, 1, 2]))], ["chair", "table", "bed"]
    )
    assert figures["IoU/chair"] == pytest.approx(50)
    assert "IoU/bed" not in figures
    assert figures["mIoU"] == pytest.approx((100 + 50 + 100) / 3)
    assert figures["mIoU_classes"] == pytest.approx(75)


def test_occupancy_counts_voxels_over_scenes_and_skips_unseen() -> None:
    a = SceneOccupancy(np.array([1, 1, 1]), np.array([1, 1, 2]), np.array([True, True, False]))
    b = SceneOccupancy(np.array([1]), np.array([2]))
    figures = occupancy_metrics([a, b], ["chair", "table"])
    assert figures["IoU/chair"] == pytest.approx(200 / 3)
    assert figures["IoU/table"] == 0.0


def test_occupancy_of_free_space_only_and_of_nothing() -> None:
    free = np.zeros(4, dtype=np.int64)
    assert occupancy_metrics([SceneOccupancy(free, free)], ["chair"]) == {}
    with pytest.raises(ValueError, match="no voxel"):
        occupancy_metrics([SceneOccupancy(free, np.full(4, 255))], ["chair"])


def test_occupancy_names_bad_input() -> None:
    good = np.zeros(3, dtype=np.int64)
    with pytest.raises(ValueError, match=r"scene 1: predictions \(2,\)"):
        occupancy_metrics([SceneOccupancy(good, good), SceneOccupancy(good[:2], good)], ["c"])
    with pytest.raises(ValueError, match="predicted label 7"):
        occupancy_metrics([SceneOccupancy(good + 7, good)], ["c"])
    with pytest.raises(ValueError, match="mask"):
        occupancy_metrics([SceneOccupancy(good, good, np.ones(2, dtype=bool))], ["c"])


@pytest.mark.golden
def test_golden_occupancy() -> None:
    z = np.load(GOLDEN / "occupancy_metric.npz")
    recorded = load_json("occupancy_metric")
    scenes = []
    for i in range(3):
        truth = np.zeros(z[f"s{i}_pred"].shape, dtype=np.int64)
        at = z[f"s{i}_gt4"]
        truth[at[:, 0], at[:, 1], at[:, 2]] = at[:, 3]
        scenes.append(SceneOccupancy(z[f"s{i}_pred"], truth, z.get(f"s{i}_mask")))
    figures = occupancy_metrics(scenes, recorded["classes"], released=True)
    ours = {k.removeprefix("IoU/"): v for k, v in figures.items() if k.startswith("IoU/")}
    assert ours == pytest.approx({k: 100 * v for k, v in recorded["result"].items()})
    assert figures["mIoU"] == pytest.approx(100 * np.mean(list(recorded["result"].values())))


# ---------------------------------------------------------------------------------------------------------- grounding


def test_grounding_by_hand() -> None:
    queries = [
        GroundingQuery(cubes(0, 9), cubes(0), {"hard": True}),  # the best box
        GroundingQuery(cubes(9, 0.3), cubes(0), {"hard": False}),  # the second, IoU 0.54
        GroundingQuery(cubes(*range(1, 11), 0), cubes(0), {"hard": False}),  # the eleventh
        GroundingQuery(cubes(), cubes(0), {"hard": False}),  # nothing
        GroundingQuery(cubes(4.0), cubes(0, 4), {"hard": False}),  # either object will do
    ]
    figures = grounding_metrics(queries)
    assert figures["top1_acc25"] == pytest.approx(40)
    assert figures["top10_acc25"] == pytest.approx(60)
    assert figures["top10_acc50"] == pytest.approx(60)
    assert figures["top1_acc25/hard"] == 100
    assert figures["top1_acc25/easy"] == 25
    # 1; found second: 1/2; beyond the tenth; nothing; one of two objects: 1/2
    assert figures["ranked_AP25"] == pytest.approx(100 * (1 + 0.5 + 0 + 0 + 0.5) / 5)
    assert figures["ranked_AP50/easy"] == pytest.approx(25)
    assert "top1_acc25/view_dependent" not in figures


def test_grounding_names_bad_input() -> None:
    with pytest.raises(ValueError, match="no queries"):
        grounding_metrics([])
    with pytest.raises(ValueError, match="query 0: no ground-truth"):
        grounding_metrics([GroundingQuery(cubes(0), cubes(), {})])
    with pytest.raises(ValueError, match=r"query 0:.*negative"):
        grounding_metrics([GroundingQuery(cubes(0, size=-1.0), cubes(0), {})])


@pytest.mark.golden
def test_golden_grounding() -> None:
    recorded = load_json("grounding_metric")
    queries = []
    for s in recorded["scenes"]:
        order = np.argsort(-np.array(s["target_scores"]), kind="stable")
        flags = {"hard": s["is_hard"], "view_dependent": s["is_view_dep"], "unique": s["is_unique"]}
        queries.append(GroundingQuery(np.array(s["boxes"])[order], np.array(s["gt"]), flags))
    figures = grounding_metrics(queries)
    names = {
        "Easy": "/easy", "Hard": "/hard", "View-Dep": "/view_dependent", "View-Indep": "/view_independent",
        "Unique": "/unique", "Multi": "/multiple", "Overall": "",
    }  # fmt: skip
    for name, value in recorded["result"].items():
        group, threshold = name.split("@")
        ours = f"top10_acc{round(100 * float(threshold))}{names[group]}"
        assert figures[ours] == pytest.approx(100 * value)
    assert figures["top1_acc25"] == pytest.approx(100 * recorded["top1_at_025"])


# -------------------------------------------------------------------------------------------------------------- files


def write(path: Path, data: Any) -> Path:
    path.write_text(json.dumps(data))
    return path


DETECTION_TRUTH = {
    "classes": ["chair", "table"],
    "groups": {"head": ["chair"]},
    "scenes": {"a": {"boxes": cubes(0, 5).tolist(), "labels": [0, 1]}, "b": {"boxes": [], "labels": []}},
}
DETECTION_FOUND = {
    "classes": ["chair", "table"],
    "scenes": {
        "a": {"boxes": cubes(0.1).tolist(), "labels": [0], "scores": [0.9]},
        "b": {"boxes": [], "labels": [], "scores": []},
    },
}


def test_files_of_detections(tmp_path: Path) -> None:
    found, truth = write(tmp_path / "p.json", DETECTION_FOUND), write(tmp_path / "g.json", DETECTION_TRUTH)
    figures = evaluate_files("detection", found, truth)
    assert figures["AP25"] == 50.0
    assert figures["AP25_head"] == 100.0


def test_files_of_occupancy(tmp_path: Path) -> None:
    truth = {"scenes": {"a": {"labels": [0, 1, 2, 255, 1], "mask": [1, 1, 1, 1, 0]}}}
    found = {"scenes": {"a": {"labels": [0, 1, 1, 1, 2]}}}
    figures = evaluate_files("occupancy", write(tmp_path / "p.json", found), write(tmp_path / "g.json", truth))
    assert figures["IoU/1"] == 50.0
    assert figures["IoU/2"] == 0.0
    truth["classes"] = ["chair", "table"]  # type: ignore[assignment]
    named = evaluate_files("occupancy", tmp_path / "p.json", write(tmp_path / "g.json", truth))
    assert named["IoU/chair"] == 50.0


def test_files_of_grounding(tmp_path: Path) -> None:
    truth = {"queries": [{"box": cubes(0)[0].tolist(), "hard": True}, {"box": cubes(0, 4).tolist()}]}
    found = {"queries": [{"boxes": cubes(9, 0).tolist(), "scores": [0.1, 0.9]}, {"boxes": cubes(4).tolist()}]}
    figures = evaluate_files("grounding", write(tmp_path / "p.json", found), write(tmp_path / "g.json", truth))
    assert figures["top1_acc25"] == 100.0
    assert figures["top1_acc25/hard"] == 100.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("classes"), "p.json has no 'classes'"),
        (lambda d: d["classes"].append("bed"), "p.json: 'classes' differ"),
        (lambda d: d["scenes"]["a"].pop("scores"), "p.json: scene 'a' has no 'scores'"),
        (lambda d: d["scenes"]["a"].update(boxes=[[1, 2]]), "p.json: scene 'a': 'boxes' must be lists of nine"),
        (lambda d: d["scenes"]["a"].update(labels=[0.5]), "p.json: scene 'a': 'labels' must be integers"),
        (lambda d: d["scenes"]["a"].update(boxes=[["x"] * 9]), "p.json: scene 'a': 'boxes' must be numbers"),
        (lambda d: d["scenes"]["a"].update(labels=[0, 1]), "p.json: scene 'a': 1 boxes have 2 labels"),
        (lambda d: d["scenes"]["a"].update(labels=[5]), "predicted label 5"),
        (lambda d: d["scenes"].pop("b"), "no predictions.*'b'"),
        (lambda d: d.update(scenes=[]), "p.json: 'scenes' must be a mapping"),
    ],
)
def test_files_name_what_does_not_fit(tmp_path: Path, change: Any, message: str) -> None:
    data = json.loads(json.dumps(DETECTION_FOUND))
    change(data)
    with pytest.raises(ValueError, match=message):
        evaluate_files("detection", write(tmp_path / "p.json", data), write(tmp_path / "g.json", DETECTION_TRUTH))


def test_command_prints_writes_and_fails_by_name(tmp_path: Path) -> None:
    app = typer.Typer()
    register(app)
    found, truth = write(tmp_path / "p.json", DETECTION_FOUND), write(tmp_path / "g.json", DETECTION_TRUTH)
    call = ["evaluate", "files", "--metric", "detection", "--predictions", str(found), "--ground-truth", str(truth)]
    result = CliRunner().invoke(app, [*call, "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "AP25" in result.output
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["AP25"] == 50.0
    found.write_text("{")
    result = CliRunner().invoke(app, call)
    assert "p.json: Expecting" in str(result.exception)
