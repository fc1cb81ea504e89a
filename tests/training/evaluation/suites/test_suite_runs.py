"""The suites on small homes, end to end and piece by piece, and from files."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from support.small_networks import small_config, small_network
from typer.testing import CliRunner

from embodied_perceptron.geometry.boxes import points_in_boxes
from embodied_perceptron.inference.loading import save_network
from embodied_perceptron.results import Detections, GroundingStatus, SceneObject
from embodied_perceptron_training.datasets.embodiedscan import Prompt
from embodied_perceptron_training.evaluation.evaluate_command import register
from embodied_perceptron_training.evaluation.runner.parallel import CorruptSceneError
from embodied_perceptron_training.evaluation.runner.scenes import EvaluationScene
from embodied_perceptron_training.evaluation.suites import arkitscenerefer, openlex3d, pope, scenes
from embodied_perceptron_training.evaluation.suites.arkitscenerefer import (
    FIGURES,
    Answer,
    biggest_clusters,
    graspable_references,
    lifted_answers,
    read_references,
    refer_metrics,
)
from embodied_perceptron_training.evaluation.suites.openlex3d import (
    RANKING,
    TIERS,
    Prompts,
    TieredLabels,
    class_posteriors,
    point_truth,
    read_labels,
)
from embodied_perceptron_training.evaluation.suites.pope import FIGURES as POPE_FIGURES
from embodied_perceptron_training.evaluation.suites.pope import (
    KINDS,
    PROTOCOLS,
    ScenePresence,
    presence_of,
    read_scene_list,
    write_answers,
)
from embodied_perceptron_training.evaluation.suites.refer_lift import Cluster, lift, perfect_detections
from embodied_perceptron_training.evaluation.suites.report import suite_markdown, write_suite_report
from embodied_perceptron_training.evaluation.suites.scenes import SuiteScene, SuiteSpec, load_suite_scene
from embodied_perceptron_training.homes.building.home import HomeSpec
from embodied_perceptron_training.homes.generate import HomeSampleSpec, generate, load_record

NAMES = ["synthetic/40", "synthetic/41"]
KNOWN = ("chair", "table", "bed", "picture")
CELLS = ("floor", "wall", "chair")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("homes")
    generate(folder, (40, 41), HomeSampleSpec(views=5, width=96, height=72, home=HomeSpec(1)), "test")
    return folder


@pytest.fixture(scope="module")
def spec(root: Path, tmp_path_factory: pytest.TempPathFactory) -> SuiteSpec:
    path = tmp_path_factory.mktemp("weights") / "small.safetensors"
    save_network(path, small_network(small_config()), KNOWN, {"occupancy_classes": list(CELLS)})
    return SuiteSpec(str(root), weights=str(path), views=5)


def invoke(*words: str) -> tuple[int, str]:
    app = typer.Typer()
    register(app)
    result = CliRunner().invoke(app, ["evaluate", *words])
    return getattr(result.exception, "exit_code", result.exit_code), result.output + str(result.exception or "")


def hashed(texts: Sequence[str]) -> Prompts:
    """A stand-in for the text encoder: texts are alike as far as they share words."""
    rows = []
    for text in texts:
        parts = [np.random.default_rng(zlib.crc32(w.encode())).normal(size=64) for w in text.split()]
        rows.append(np.sum(parts, axis=0))
    return Prompts(tuple(texts), np.stack(rows))


# -- scenes


def test_instance_images_carry_the_annotations_ids(spec: SuiteSpec, root: Path) -> None:
    scene = load_suite_scene(spec, NAMES[0])
    boxes = scene.scene.boxes.copy()
    boxes[:, 3:6] += 0.1  # sensor noise
    shown = set()
    for frame, ids in zip(scene.scene.frames, scene.instances, strict=True):
        for number in set(np.unique(ids).tolist()) - {-1}:
            v, u = np.nonzero((ids == number) & (frame.frame.depth_m > 0))
            k, z = frame.frame.intrinsics, frame.frame.depth_m[v, u]
            local = np.stack([(u - k.cx) * z / k.fx, (v - k.cy) * z / k.fy, z], axis=1)
            points = local @ frame.T_world_camera[:3, :3].T + frame.T_world_camera[:3, 3]
            if len(points) >= 30:
                inside = points_in_boxes(torch.from_numpy(points), torch.from_numpy(boxes[number : number + 1]))
                assert inside.double().mean() > 0.8, scene.label_of[number]
                shown.add(number)
    assert len(shown) >= 5
    assert scene.label_of == {i["bbox_id"]: i["label"] for i in load_record(root, NAMES[0])["instances"]}


def test_a_scene_without_instance_images_is_skipped_by_name(spec: SuiteSpec, root: Path) -> None:
    path = root / NAMES[1] / "ids" / "00002.png"
    kept = path.read_bytes()
    path.unlink()
    try:
        with pytest.raises(CorruptSceneError, match=r"00002\.png is missing"):
            load_suite_scene(spec, NAMES[1])
    finally:
        path.write_bytes(kept)


# -- 3D-POPE


def test_positives_have_200_pixels_with_depth_in_one_view(spec: SuiteSpec) -> None:
    scene = load_suite_scene(spec, NAMES[0])
    presence = presence_of(scene)
    most: dict[str, int] = {}
    for frame, ids in zip(scene.scene.frames, scene.instances, strict=True):
        for number, label in scene.label_of.items():
            pixels = int(((ids == number) & (frame.frame.depth_m > 0)).sum())
            most[label] = max(most.get(label, 0), pixels)
    structure = {"wall", "floor", "ceiling"}
    assert set(presence.present) == {label for label, pixels in most.items() if pixels >= 200} - structure
    assert set(presence.unasked) == {label for label, pixels in most.items() if pixels < 200} | structure
    assert presence.present
    assert presence.unasked


def test_the_suite_says_what_ask_says(spec: SuiteSpec) -> None:
    """One decision: the answer to the question as a user types it."""
    scene = load_suite_scene(spec, NAMES[0]).scene
    perceptron, perception = scenes.perceive_scene(spec, scene)
    names = sorted({o.label for o in perception.objects} | {"unicorn", "zebra crossing"})
    said = pope.existence(perceptron, scene.name, names)
    for name in names:
        article = "an" if name[0] in "aeiou" else "a"
        found = perceptron.ground(f"Is there {article} {name} in the scene?").status
        assert said[name] == (found in (GroundingStatus.FOUND, GroundingStatus.AMBIGUOUS)), name
    assert all(said[o.label] for o in perception.objects)
    assert not said["unicorn"]


def test_pope_end_to_end_and_again_from_its_files(spec: SuiteSpec, root: Path, tmp_path: Path) -> None:
    out = tmp_path / "own"
    common = ("--data", str(root), "--weights", spec.weights, "--views", "5", "--workers", "1")
    code, text = invoke("pope", *common, "--out", str(out))
    assert code == 0, text
    figures = json.loads((out / "metrics.json").read_text())
    grounded = {name: figures.pop(name) for name in list(figures) if name.startswith("grounded/")}
    states = {name: figures.pop(name) for name in list(figures) if name.startswith("states/")}
    dense = {name: figures.pop(name) for name in list(figures) if name.startswith("dense/")}
    assert set(dense) == {f"dense/{name}" for name in ("precision", "recall", "f1", "located")}
    assert "states/ontop/recall" in states
    assert all(0.0 <= value <= 100.0 for value in states.values())
    assert {name.split("/")[1] for name in grounded} == set(KINDS)
    assert all(0.0 <= value <= 100.0 for value in grounded.values())
    assert list(figures) == [f"{protocol}/{name}" for protocol in PROTOCOLS for name in POPE_FIGURES]
    assert "| precision |" in (out / "metrics.md").read_text()
    scenes = read_scene_list(out / "scenes.json")
    assert [s.scene_id for s in scenes] == NAMES
    # the same answers about the same scenes
    files = ("--scene-list", str(out / "scenes.json"), "--answers", str(out / "answers.json"))
    code, text = invoke("pope", *common, "--out", str(tmp_path / "again"), *files)
    assert code == 0, text
    assert json.loads((tmp_path / "again" / "metrics.json").read_text()) == figures
    # the truth is perfect
    questions = json.loads((out / "questions.json").read_text())
    right = {(q["scene"], q["category"]): q["right"] == "yes" for listed in questions.values() for q in listed}
    write_answers(tmp_path / "right.json", right)
    code, text = invoke("pope", *common, "--out", str(tmp_path / "p"), "--answers", str(tmp_path / "right.json"))
    assert code == 0, text
    perfect = json.loads((tmp_path / "p" / "metrics.json").read_text())
    assert all(value == (50.0 if name.endswith("yes") else 100.0) for name, value in perfect.items())


# -- ARKitSceneRefer


def test_references_are_of_graspable_objects_once_each(spec: SuiteSpec) -> None:
    scene = arkitscenerefer.load(
        arkitscenerefer.EvaluationSpec(spec.data, "test", spec.weights, ("grounding",), None, 5), NAMES[0]
    )
    references = graspable_references(scene)
    assert len({r.object_id for r in references}) == len(references) > 0
    texts = {p.text: p.target_ids for p in scene.prompts}
    for r in references:
        assert texts[r.description] == (int(r.object_id),)
        assert r.label in arkitscenerefer.GRASPABLE


def test_of_many_objects_the_rarest_classes_come_first() -> None:
    """20 of a scene: all three staplers and most books, whatever their size; no chair, which is furniture."""
    labels = ("book",) * 25 + ("stapler",) * 3 + ("chair", "umbrella")
    boxes = np.tile([0.0, 0, 0, 2, 2, 2, 0, 0, 0], (len(labels), 1))
    prompts = tuple(Prompt("a", f"the {n} {k}", (k,), n, (), (), ()) for k, n in enumerate(labels))
    seen = (frozenset(range(len(labels))),)
    scene = EvaluationScene("a", (), boxes, labels, np.arange(len(labels)), seen, np.eye(4), prompts=prompts)
    chosen = graspable_references(scene)
    assert Counter(r.label for r in chosen) == {"stapler": 3, "umbrella": 1, "book": 16}
    assert {r.label for r in chosen if r.unique} == {"umbrella"}


def cluster(label: str, x: float, hits: int = 1) -> Cluster:
    return Cluster(label, np.array([x, 0, 1.0]), np.array([x, 0, 1.0, 0.2, 0.2, 0.0]), hits, 1.0, 9)


def test_the_biggest_cluster_answers_to_the_class_and_relations_choose() -> None:
    clusters = [cluster("cup", 0.0, 3), cluster("cup", 2.0, 2), cluster("lamp", 2.3)]
    biggest = biggest_clusters(["the cup near the lamp", "the mug", "the piano", "?"], clusters)
    assert [None if a is None else a.center_m[0] for a in biggest] == [0.0, 0.0, None, None]
    related = lifted_answers(["the cup near the lamp", "the lamp", "the piano"], clusters, None)
    assert [None if a is None else a.center_m[0] for a in related] == [2.0, 2.3, None]
    assert lifted_answers(["the cup"], [], None) == [None]


def test_a_perfect_detector_lifts_the_things_of_a_home(spec: SuiteSpec) -> None:
    """Told which cluster is meant, the lift of a perfect detector is near nearly everything that is well seen."""
    scene = load_suite_scene(spec, NAMES[0])
    detections = [d for k, ids in enumerate(scene.instances) for d in perfect_detections(ids, k, scene.label_of)]
    clusters = lift(detections, scene.scene.frames, 0.1)
    references = graspable_references(
        arkitscenerefer.load(
            arkitscenerefer.EvaluationSpec(spec.data, "test", spec.weights, ("grounding",), None, 5), NAMES[0]
        )
    )
    answers = []
    for r in references:
        same = [c for c in clusters if c.label == r.label]
        near = min(same, key=lambda c: float(np.linalg.norm(c.center_m - r.box[:3])))
        answers.append(Answer(near.center_m, near.box))
    assert refer_metrics(answers, references)["Dist@0.3"] >= 90


def test_arkitscenerefer_end_to_end_and_again_from_its_files(spec: SuiteSpec, root: Path, tmp_path: Path) -> None:
    common = ("--data", str(root), "--weights", spec.weights, "--views", "5", "--workers", "1")
    out = tmp_path / "own"
    code, text = invoke("arkitscenerefer", *common, "--out", str(out))
    assert code == 0, text
    figures = json.loads((out / "metrics.json").read_text())
    bounds = ("bound_perfect_masks", "bound_noisy_masks")
    systems = ["", *(f"{bound}{choice}/" for bound in bounds for choice in ("", "/biggest_cluster"))]
    kinds = ("", "unique/", "multiple/")
    assert list(figures) == [system + kind + name for system in systems for kind in kinds for name in FIGURES]
    assert figures["bound_perfect_masks/Dist@0.3"] > 0
    records, repeated = read_references(out / "references.json")
    assert (len(records) > 0, repeated) == (True, 0)
    for system in bounds:
        files = ("--references", str(out / "references.json"), "--answers", str(out / f"answers_{system}.json"))
        code, text = invoke("arkitscenerefer", *common, "--out", str(tmp_path / system), *files)
        assert code == 0, text
        again = json.loads((tmp_path / system / "metrics.json").read_text())
        assert again == pytest.approx({kind + n: figures[f"{system}/{kind}{n}"] for kind in kinds for n in FIGURES})
    code, text = invoke("arkitscenerefer", *common, "--out", str(out), "--answers", str(out / "answers.json"))
    assert (code, "--answers are scored against --references" in text) == (2, True)
    code, text = invoke("arkitscenerefer", *common, "--out", str(out), "--detector-layout", "yolov8")
    assert (code > 0, "1 layouts for 0 files" in text) == (True, True)
    # the records of the run, asked of the own network: the same answers
    records_file = ("--references", str(out / "references.json"))
    code, text = invoke("arkitscenerefer", *common, "--out", str(tmp_path / "asked"), *records_file)
    assert code == 0, text
    assert json.loads((tmp_path / "asked" / "metrics.json").read_text()) == pytest.approx(figures)


# -- OpenLex3D


def test_true_points_lie_on_their_objects(spec: SuiteSpec, root: Path) -> None:
    scene = load_suite_scene(spec, NAMES[0])
    labels, _ = read_labels(root / "openlex3d" / f"{NAMES[0]}.json")  # no label in two tiers: the generator's promise
    truth = point_truth(scene, labels)
    boxes = scene.scene.boxes.copy()
    boxes[:, 3:6] += 0.1
    for o in truth.scored():
        points = truth.points_m[truth.objects == o.object_id]
        if len(points) >= 30:
            inside = points_in_boxes(torch.from_numpy(points), torch.from_numpy(boxes[o.object_id : o.object_id + 1]))
            assert inside.double().mean() > 0.8
    cells = np.column_stack([np.floor(truth.points_m / 0.05), truth.objects])
    assert len(np.unique(cells, axis=0)) == len(cells)


def test_posteriors_weigh_what_the_network_saw_at_the_place() -> None:
    box = np.array([0, 0, 0, 1, 1, 1, 0, 0, 0.0])
    row = {"bed": 0, "chair": 1, "table": 2}
    thing = SceneObject(1, "chair", 0.5, box)
    np.testing.assert_allclose(class_posteriors([thing], None, row), [[0, 1, 0]])
    far = box + np.array([3, 0, 0, 0, 0, 0, 0, 0, 0])
    found = Detections(np.stack([box, box, far]), np.array([0.25, 0.1, 0.9]), ("table", "table", "bed"))
    weights = np.array([0, 0.5**3, 0.25**3])
    np.testing.assert_allclose(class_posteriors([thing], found, row), [weights / weights.sum()])
    assert class_posteriors([], found, row).shape == (0, 3)
    nameless = Detections(np.stack([box, box]), np.array([0.9, 0.25]), ("object", "table"))
    weights = np.array([0, 0.5**3, 0.25**3])
    np.testing.assert_allclose(class_posteriors([thing], nameless, row), [weights / weights.sum()])


def test_openlex3d_end_to_end(spec: SuiteSpec, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openlex3d, "embed", hashed)
    common = ("--data", str(root), "--weights", spec.weights, "--views", "5", "--workers", "1")
    code, text = invoke("openlex3d", *common, "--out", str(tmp_path))
    assert code == 0, text
    figures = json.loads((tmp_path / "metrics.json").read_text())
    tiers = [f"top{n}/{tier}" for n in (1, 5, 10) for tier in TIERS]
    assert [name for name in figures if "depictions/AP" not in name] == [*tiers, *RANKING, "AP", "AP50", "AP25"]
    for n in (1, 5, 10):
        assert sum(figures[f"top{n}/{tier}"] for tier in TIERS) == pytest.approx(100, abs=1e-6)
    assert "closed-set" in (tmp_path / "metrics.md").read_text()


def test_openlex3d_of_anybodys_maps(spec: SuiteSpec, root: Path, tmp_path: Path) -> None:
    """The truth as a map, each object with the feature of its first label: everything named, most retrieved."""
    maps = tmp_path / "maps"
    (maps / "synthetic").mkdir(parents=True)
    labels, _ = read_labels(root / "openlex3d" / f"{NAMES[0]}.json")
    scene = load_suite_scene(spec, NAMES[0])
    truth = point_truth(scene, labels)
    path = maps / f"{NAMES[0]}.npz"
    path.touch()
    out = tmp_path / "out"
    command = ("openlex3d", "--data", str(root), "--views", "5", "--predictions", str(maps), "--out", str(out))
    code, text = invoke(*command)
    assert (code, "prompts.npz cannot be read" in " ".join(text.split())) == (2, True)
    prompts = hashed((out / "prompts.txt").read_text().splitlines())  # what is needed is told
    np.savez(maps / "prompts.npz", labels=np.array(prompts.labels), features=prompts.features)
    features = np.ones((len(truth.points_m), 64))
    for o in labels:
        features[truth.objects == o.object_id] = prompts.features[prompts.row(o.synonyms[0])]
    np.savez(path, points=truth.points_m, features=features, instances=truth.objects)
    code, text = invoke(*command)
    assert code == 0, text
    figures = json.loads((out / "metrics.json").read_text())
    assert figures["top1/synonyms"] == 100.0
    assert figures["AP25"] > 50
    (maps / f"{NAMES[0]}.npz").unlink()
    code, text = invoke("openlex3d", "--data", str(root), "--predictions", str(maps), "--out", str(out))
    assert (code, "holds no" in text) == (2, True)


# -- reports


def test_reports_group_figures(tmp_path: Path) -> None:
    figures = {"random/f1": 12.5, "random/yes": 0.0, "popular/f1": 100.0, "popular/yes": 50.0, "mR": 7.0}
    text = suite_markdown("pope", figures, {"weights": "tiny"}, {"home": "no depth"}, "")
    assert "| % | random | popular |" in text
    assert "| f1 | 12.50 | 100.00 |" in text
    assert "| mR | 7.00 |" in text
    assert "- skipped home: no depth" in text
    write_suite_report(tmp_path / "new", "pope", figures, {}, {})
    assert json.loads((tmp_path / "new" / "metrics.json").read_text()) == figures


def test_data_without_homes_end_with_a_message(tmp_path: Path) -> None:
    for suite in ("pope", "arkitscenerefer", "openlex3d"):
        code, text = invoke(suite, "--data", str(tmp_path), "--out", str(tmp_path / "out"), "--workers", "1")
        assert code == 2
        assert "holds no split" in text
        assert not (tmp_path / "out" / "metrics.json").exists()


def test_absent_classes_of_training_are_asked_for(spec: SuiteSpec) -> None:
    statistics = pope.training_statistics(None)
    questions = pope.pope_questions(spec, [ScenePresence("a", ("bed", "lamp"))])
    for listed in questions.values():
        assert {q.category for q in listed} <= set(statistics.categories)
    # floors and walls are in every home, so that they are the most popular where they are absent
    assert [q.category for q in questions["popular"] if not q.exists] == ["ceiling", "door"]


def test_scored_objects_may_be_none(spec: SuiteSpec) -> None:
    scene = load_suite_scene(spec, NAMES[0])
    bare = SuiteScene(scene.scene, tuple(np.full_like(ids, -1) for ids in scene.instances))
    assert point_truth(bare, [TieredLabels(1, ("lamp",))]).scored() == []
    assert presence_of(bare).present == ()
