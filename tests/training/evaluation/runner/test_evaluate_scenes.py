"""Evaluation of weights: scenes as they are loaded, oracles that must score full marks, and the whole command."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import shutil
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.spatial import cKDTree
from support.small_networks import small_config, small_network
from typer.testing import CliRunner

from embodied_perceptron.apps.cli import build_app
from embodied_perceptron.geometry.boxes import points_in_boxes
from embodied_perceptron.geometry.manhattan import Region
from embodied_perceptron.geometry.transforms import back_project, invert_transform, transform_points
from embodied_perceptron.inference.loading import save_network
from embodied_perceptron.inference.predictor import Predictor, ScenePrediction
from embodied_perceptron.results import Detections, SemanticVoxels
from embodied_perceptron.weights.categories import DETECTION_CLASSES, OCCUPANCY_CLASSES
from embodied_perceptron_training.datasets.embodiedscan import DatasetError, EmbodiedScanDataset, Scan
from embodied_perceptron_training.evaluation.metrics.detection import SceneBoxes
from embodied_perceptron_training.evaluation.runner import evaluate as runner
from embodied_perceptron_training.evaluation.runner import scene_tasks
from embodied_perceptron_training.evaluation.runner.evaluate import (
    EvaluationSpec,
    evaluate,
    of_common,
    score,
)
from embodied_perceptron_training.evaluation.runner.parallel import EvaluationError
from embodied_perceptron_training.evaluation.runner.products import ProductFormat, products_in, rounded
from embodied_perceptron_training.evaluation.runner.report import class_rows, markdown, run_record
from embodied_perceptron_training.evaluation.runner.scene_tasks import cells_at, evaluate_scene
from embodied_perceptron_training.evaluation.runner.scenes import EvaluationScene, choose_views, load_scene, turn_of
from embodied_perceptron_training.homes.building.home import HomeSpec
from embodied_perceptron_training.homes.generate import HomeSampleSpec, generate
from embodied_perceptron_training.training.paper import PUBLISHED

SEEDS = range(40, 42)
NAMES = [f"synthetic/{seed}" for seed in SEEDS]
KNOWN = ("chair", "table", "bed", "picture")  # what the small network can say
CELLS = ("floor", "wall", "chair")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("homes")
    generate(folder, SEEDS, HomeSampleSpec(views=5, width=80, height=60, home=HomeSpec(1)), "test")
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = small_config()
    network = small_network(config)
    path = tmp_path_factory.mktemp("weights") / "small.safetensors"
    save_network(path, network, KNOWN, {"occupancy_classes": list(CELLS)})
    return path


def load(root: Path, name: str = NAMES[0], views: int = 5, turn_seed: int | None = None) -> EvaluationScene:
    return load_scene(EmbodiedScanDataset(root, "test"), name, views, turn_seed, occupancy=True)


# -- scenes


def test_views_are_spread_from_first_to_last() -> None:
    assert choose_views(20, 20) == list(range(20))
    assert choose_views(3, 20) == [0, 1, 2]
    assert choose_views(20, 2) == [0, 19]
    assert choose_views(9, 3) == [0, 4, 8]
    assert len(set(choose_views(50, 20))) == 20
    with pytest.raises(ValueError, match="at least one view"):
        choose_views(5, 0)


def test_truth_is_what_the_used_views_show_of_the_detection_classes(root: Path) -> None:
    scene = load(root)
    assert set(scene.labels) - set(DETECTION_CLASSES)  # walls and floors are annotated
    truth = scene.truth()
    assert len(truth.boxes) == sum(name in DETECTION_CLASSES for name in scene.labels)  # every instance is seen once
    counts = [len(scene.truth(0, n).boxes) for n in range(6)]
    assert counts[0] == 0
    assert counts == sorted(counts)
    assert counts[5] == len(truth.boxes)
    alone = [set(scene.seen_rows(i, i + 1)) for i in range(5)]
    assert set(scene.seen_rows(1, 3)) == alone[1] | alone[2]
    few = load(root, views=2)
    assert len(few.frames) == 2
    assert few.seen_rows() == sorted(alone[0] | alone[4])


def test_a_turned_scene_is_the_same_scene_elsewhere(root: Path) -> None:
    plain, turned = load(root), load(root, turn_seed=3)
    T = turned.T_world_scene
    np.testing.assert_array_equal(T, turn_of(plain.name, 3))
    assert not np.allclose(T, turn_of(plain.name, 4))
    assert not np.allclose(T, turn_of("synthetic/41", 3))
    np.testing.assert_allclose(T[2, :3], [0, 0, 1], atol=1e-12)  # upright
    points = []
    for scene in (plain, turned):
        frame = scene.frames[2]
        camera, valid = back_project(frame.frame.depth_m, frame.frame.intrinsics)
        points.append(transform_points(frame.T_world_camera, camera[valid]))
    np.testing.assert_allclose(transform_points(invert_transform(T), points[1]), points[0], atol=1e-9)
    inside = [
        points_in_boxes(torch.from_numpy(p), torch.from_numpy(s.boxes))
        for p, s in zip(points, (plain, turned), strict=True)
    ]
    assert inside[0].any()
    assert float((inside[0] == inside[1]).float().mean()) > 0.9999
    assert plain.occupancy is not None
    assert turned.occupancy is not None
    back = transform_points(invert_transform(T), turned.occupancy.centers_m)
    np.testing.assert_allclose(back, plain.occupancy.centers_m, atol=1e-9)
    np.testing.assert_allclose(plain.occupancy.centers_m[0], [-3.12, -3.12, -0.70])
    np.testing.assert_allclose(plain.occupancy.centers_m[-1], [3.12, 3.12, 1.70])


# -- oracles


def oracle(scene: EvaluationScene) -> ScenePrediction:
    """A network that knows: all boxes of the last views that could be seen, and the true cells on its own lattice."""
    truth, cells = scene.truth(), scene.occupancy
    assert cells is not None
    filled = np.flatnonzero((cells.labels.ravel() > 0) & (cells.labels.ravel() != 255))
    places = (np.floor(cells.centers_m[filled] / 0.16) + 0.5) * 0.16  # the lattice of the network, not of the truth
    semantic = SemanticVoxels(
        0.16,
        places.astype(np.float32),
        np.zeros((len(filled), 3), np.uint8),
        (cells.labels.ravel()[filled] - 1).astype(np.int32),
        np.ones(len(filled), np.float32),
        OCCUPANCY_CLASSES,
    )
    names = tuple(DETECTION_CLASSES[i] for i in truth.labels)
    found = Detections(truth.boxes, np.linspace(0.9, 0.5, len(names)), names)
    return ScenePrediction(found, semantic, Region.everywhere(), Region.everywhere())


@pytest.mark.parametrize("turn_seed", [None, 5])
def test_an_oracle_scores_full_marks(
    root: Path, monkeypatch: pytest.MonkeyPatch, weights: Path, turn_seed: int | None
) -> None:
    results = []
    inference = small_inference()
    inference.occupancy_classes = OCCUPANCY_CLASSES
    for name in NAMES:
        scene = load(root, name, turn_seed=turn_seed)
        monkeypatch.setattr(scene_tasks, "predict_everywhere", lambda _, scene=scene: oracle(scene))
        results.append(evaluate_scene(scene, inference, ("detection", "occupancy")))
    figures = score(results, ("detection", "occupancy"))
    assert figures["AP25"] == figures["AP50"] == figures["AR50"] == figures["AP25_furniture"] == 100.0
    if turn_seed is None:
        assert figures["mIoU"] == figures["IoU/floor"] == 100.0
    else:  # a turned lattice cannot hold it exactly: two true cells may meet in one
        assert 30.0 < figures["IoU/empty"] < 100.0


def test_only_the_classes_of_monocular_detection_count_where_asked() -> None:
    """Of Table 11 the chair is found and the computer is not; the picture, more frequent, is none of its classes."""
    chair, other, rare = (DETECTION_CLASSES.index(name) for name in ("chair", "computer", "picture"))
    boxes = np.array([[x, 0, 0, 1, 1, 1, 0, 0, 0] for x in (0.0, 5.0, 9.0)])
    found = SceneBoxes(boxes[[0, 2]], np.array([chair, rare]), np.array([0.9, 0.8]))
    true = SceneBoxes(boxes, np.array([chair, other, rare]))
    result = scene_tasks.SceneResult("a", boxes={"monocular-detection": [("a#0", found, true)]})

    counted = [score(results, ("monocular-detection",)) for results in ([result], of_common([result]))]
    assert [figures["AP25"] for figures in counted] == pytest.approx([200 / 3, 50.0], abs=1e-3)


def test_truth_of_early_steps_is_what_was_seen_by_then(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever says from the first step on what is seen at the last is right about all, and wrong about the unseen."""
    scene = load(root)
    monkeypatch.setattr(scene_tasks, "predict_everywhere", lambda _: oracle(scene))
    inference = small_inference()
    inference.occupancy_classes = OCCUPANCY_CLASSES
    tasks = ("continuous-detection", "monocular-detection", "continuous-occupancy")
    result = evaluate_scene(scene, inference, tasks)
    assert [len(t.boxes) for _, _, t in result.boxes["continuous-detection"]] == [
        len(scene.truth(0, n).boxes) for n in range(1, 6)
    ]
    assert [len(t.boxes) for _, _, t in result.boxes["monocular-detection"]] == [
        len(scene.truth(i, i + 1).boxes) for i in range(5)
    ]
    seen = [int(o.seen.sum()) for o in result.occupancy["continuous-occupancy"] if o.seen is not None]
    assert seen == sorted(seen)
    assert seen[0] < seen[-1]
    figures = score([result], tasks)
    assert figures["continuous-detection/last/AP25"] == figures["continuous-detection/AR25"] == 100.0
    assert figures["continuous-detection/AP25"] < 100.0
    assert figures["mIoU"] == figures["last/mIoU"] == 100.0


def test_cells_are_read_where_they_are() -> None:
    cells = SemanticVoxels(
        0.16,
        np.array([[0.08, 0.08, 0.08], [-0.08, 0.24, 0.08]], np.float32),
        np.zeros((2, 3), np.uint8),
        np.array([4, 7], np.int32),
        np.ones(2, np.float32),
        OCCUPANCY_CLASSES,
    )
    points = np.array([[0.01, 0.15, 0.1], [-0.01, 0.17, 0.0], [0.01, 0.17, 0.0], [5.0, 5.0, 5.0]])
    assert cells_at(points, cells).tolist() == [5, 8, 0, 0]
    assert cells_at(points, None).tolist() == [0, 0, 0, 0]


# -- the whole way


def small_inference() -> Predictor:
    return Predictor(small_network(small_config()), KNOWN, CELLS)


def command(*arguments: str) -> tuple[int, str]:
    plugin = EntryPoint(
        "evaluate",
        "embodied_perceptron_training.evaluation.evaluate_command:register",
        "embodied_perceptron.commands",
    )
    result = CliRunner().invoke(build_app([plugin]), ["evaluate", *arguments])
    return result.exit_code, result.output + (f"{result.exception}" if result.exception else "")


def test_the_command_writes_figures_tables_and_what_was_run(root: Path, weights: Path, tmp_path: Path) -> None:
    options = ["--data", str(root), "--weights", str(weights), "--views", "3", "--workers", "1"]
    code, output = command("detection", *options, "--out", str(tmp_path / "out"))
    assert code == 0, output
    figures = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert {"AP25", "AP50", "AR25", "AR50", "AP25_furniture"} <= set(figures)
    assert all(isinstance(v, float) and 0 <= v <= 100 for v in figures.values())
    run = json.loads((tmp_path / "out" / "run.json").read_text())
    assert run["scenes"] == 2
    assert run["views"] == 3
    assert run["skipped"] == {}
    assert run["classes_of_the_network"] == 4
    assert "chair" not in run["true_classes_unknown_to_the_network"]
    assert run["true_classes_unknown_to_the_network"]
    rows = list(csv.DictReader((tmp_path / "out" / "classes.csv").open()))
    unknown = {row["class"] for row in rows if row["known"] == "no"}
    assert unknown == set(run["true_classes_unknown_to_the_network"])
    assert all(float(row["AP25"]) == 0 for row in rows if row["known"] == "no")
    mean = np.mean([float(row["AR25"]) for row in rows])  # classes that it does not know count as missed
    assert mean == pytest.approx(figures["AR25"], abs=0.01)
    assert "| AP25 |" in (tmp_path / "out" / "metrics.md").read_text()


@pytest.mark.slow  # starts a cluster on this machine
def test_a_cluster_gives_the_figures_of_this_process(root: Path, weights: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    options = ["--data", str(root), "--weights", str(weights), "--views", "3", "--pictures", "0"]
    found = []
    for place in (["--workers", "1"], ["--ray", "local"]):
        out = tmp_path / place[1]
        code, output = command("detection", *options, *place, "--out", str(out))
        assert code == 0, output
        found.append(json.loads((out / "metrics.json").read_text()))
    assert found[0] == found[1]


def test_names_that_the_benchmark_lacks_are_left_out_and_counted(root: Path, weights: Path, tmp_path: Path) -> None:
    """As ``learn`` writes them: two of four classes have names of the user's."""
    taught = tmp_path / "taught.safetensors"
    names = ("chair", "tall plant", "bed", "my crate")
    save_network(taught, small_network(small_config()), names, {"occupancy_classes": list(CELLS)})
    spec = EvaluationSpec(str(root), "test", str(taught), ("detection",), views=3)
    found = evaluate(spec)
    plain = evaluate(dataclasses.replace(spec, weights=str(weights)))
    # of the classes that both have the figures are the same: nothing else was changed
    for name in ("AP25/chair", "AP25/bed"):
        assert found.figures.get(name) == plain.figures.get(name)
    run = run_record(found, "")
    assert set(run["classes_that_the_benchmark_lacks"]) == {"tall plant", "my crate"}
    assert sum(run["classes_that_the_benchmark_lacks"].values()) > 0
    assert run["generator_version"] == 1
    text = markdown(found, "")
    assert "2 classes of the network are not in the benchmark" in text
    assert "tall plant (" in text
    assert "in the benchmark" not in markdown(plain, "")
    assert run_record(plain, "")["classes_that_the_benchmark_lacks"] == {}


@pytest.mark.parametrize("products", ["tf32", "bfloat16", "float16"])
def test_products_may_have_the_digits_of_a_gpu(root: Path, weights: Path, products: ProductFormat) -> None:
    spec = EvaluationSpec(str(root), "test", str(weights), ("detection",), scenes=1, views=2)
    scores = []
    for given in ("float32", products):
        (result,) = evaluate(dataclasses.replace(spec, products=given)).results
        ((_, found, _),) = result.boxes["detection"]
        scores.append(np.sort(found.scores)[::-1][:20])
    assert len(scores[0]) == 20
    assert (scores[1] != scores[0]).any()
    np.testing.assert_allclose(scores[1], scores[0], atol=0.05)


def test_factors_are_rounded_and_sums_are_not() -> None:
    a, b = torch.rand(40, 300, generator=torch.Generator().manual_seed(0)).sub(0.5).split([20, 20])
    for to, digits in (("tf32", 10), ("bfloat16", 7), ("float16", 10)):
        near = rounded(a, to)
        assert 0 < ((near - a) / a).abs().max() <= 2.0 ** -(digits + 1)
        with products_in(to):
            product, layer = a @ b.t(), torch.nn.functional.linear(a, b, torch.ones(20))
        assert torch.equal(product, near @ rounded(b, to).t())
        torch.testing.assert_close(layer, product + 1.0, rtol=0, atol=1e-5)
    assert rounded(torch.tensor([1e5, -math.inf]), "float16").tolist() == [math.inf, -math.inf]
    assert rounded(torch.tensor([1e5, -math.inf]), "tf32").tolist() == [100032.0, -math.inf]  # ties: away from zero
    assert torch.equal(a @ b.t(), a @ b.t())


@pytest.mark.slow
def test_figures_do_not_depend_on_workers_or_on_what_else_is_scored(root: Path, weights: Path) -> None:
    spec = EvaluationSpec(str(root), "test", str(weights), ("detection", "occupancy"), views=3)
    alone = evaluate(spec, workers=1)
    assert alone.figures["AR25"] >= 0
    assert evaluate(spec, workers=2).figures == alone.figures
    only = evaluate(dataclasses.replace(spec, tasks=("occupancy",)), workers=1)
    assert only.figures == {k: v for k, v in alone.figures.items() if k in only.figures}
    assert {"mIoU", "mIoU_classes", "IoU/empty", "IoU/floor"} <= set(only.figures)
    assert class_rows(alone, "occupancy")


@pytest.mark.parametrize("task", ["detection", "occupancy"])
def test_networks_of_points_are_evaluated_as_published(
    root: Path, tmp_path: Path, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Section 5.1 and appendix A.1: 50 views (occupancy 20), sampled points, no limit of depth, colour not shrunk."""
    path = tmp_path / "paper.safetensors"
    save_network(path, small_network(small_config(task, "rgbd", "paper")), KNOWN, {"occupancy_classes": list(CELLS)})
    published = next(row for row in PUBLISHED if row.setting == "val_views")
    assert runner.default_views(str(path)) == published.values[task], published.source
    monkeypatch.setattr(runner, "POINTS_PER_VIEW", 400)
    scan = EmbodiedScanDataset(root, "test").by_name(NAMES[0])
    view = scan.load_view(0)
    fine = dataclasses.replace(view, color=np.repeat(np.repeat(view.color, 3, 0), 3, 1))
    monkeypatch.setattr(Scan, "load_view", lambda *_: fine)
    spec = EvaluationSpec(str(root), "test", str(path), (task,), views=1)
    posed = runner.load(spec, NAMES[0]).frames[0]
    np.testing.assert_array_equal(posed.frame.color, fine.color)
    points = back_project(posed.frame.depth_m, posed.frame.intrinsics)
    assert int(points[1].sum()) == 400
    every, known = back_project(view.depth_m, view.depth_camera)
    near = cKDTree(every[known]).query(points[0][points[1]])[0]
    assert near.max() < 1e-6  # the measured points themselves
    config = scene_tasks.evaluation_config(1, inference=runner.cached_predictor(str(path)))
    assert config.volume.max_range_m > 65.535  # the largest depth of an image


def test_corrupt_scenes_are_named(root: Path, weights: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(root, broken)
    (broken / NAMES[1] / "depth" / "00002.png").write_bytes(b"no image")
    with pytest.raises(DatasetError, match=r"00002\.png"):
        load(broken, NAMES[1])
    spec = EvaluationSpec(str(broken), "test", str(weights), ("occupancy",), views=5)
    with pytest.raises(EvaluationError, match=r"1 of 2 scenes .*synthetic/41: DatasetError: .*00002\.png"):
        evaluate(spec)
    found = evaluate(spec, max_corrupt_share=0.5)
    assert list(found.skipped) == [NAMES[1]]
    assert [r.name for r in found.results] == [NAMES[0]]
    options = ["--data", str(broken), "--weights", str(weights), "--out", str(tmp_path / "out"), "--workers", "1"]
    code, output = command("occupancy", *options)
    assert code != 0
    assert "1 of 2 scenes" in output
    assert not (tmp_path / "out" / "metrics.json").exists()


def test_what_cannot_be_evaluated_is_said_before_it_starts(root: Path, weights: Path, tmp_path: Path) -> None:
    config = small_config("detection")
    path = tmp_path / "detector.safetensors"
    save_network(path, small_network(config), KNOWN)
    with pytest.raises(EvaluationError, match="occupancy needs a network"):
        evaluate(EvaluationSpec(str(root), "test", str(path), ("occupancy",)))
    code, output = command("detection", "--data", str(root), "--split", "val", "--out", str(tmp_path / "o"))
    assert code != 0
    assert "embodiedscan_infos_val.pkl" in output
    with pytest.raises(ValueError, match="tasks must be among"):
        EvaluationSpec("x", "test", "tiny", ("segmentation",))
    with pytest.raises(ValueError, match="views must not be negative, got -1"):
        EvaluationSpec("x", "test", "tiny", ("detection",), views=-1)
