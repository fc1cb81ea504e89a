"""Generated sets: the contract of the files, determinism, resumption, language verified by geometry."""

from __future__ import annotations

import importlib.util
import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from embodied_perceptron.geometry.transforms import back_project, transform_points
from embodied_perceptron.weights.categories import ALL_CATEGORIES
from embodied_perceptron.weights.checkpoint import UnsafePickleError, load_plain_pickle
from embodied_perceptron_training.datasets.embodiedscan import EmbodiedScanDataset
from embodied_perceptron_training.homes import home_commands, relations
from embodied_perceptron_training.homes.building.home import HomeSpec, build_home
from embodied_perceptron_training.homes.descriptions import make_language, openlex_labels
from embodied_perceptron_training.homes.generate import HomeSampleSpec, generate, load_record, write_sample
from embodied_perceptron_training.homes.prompts import (
    FREE,
    PLAIN,
    Fact,
    PromptSpec,
    all_facts,
    is_view_dependent,
    make_negatives,
    plural,
    relation_holds,
)
from embodied_perceptron_training.homes.trajectories import shortest_path
from embodied_perceptron_training.processes import Cluster

SPEC = HomeSampleSpec(views=4, width=96, height=72, home=HomeSpec(1))
SEEDS = range(20, 23)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("set")
    generate(folder, SEEDS, SPEC)
    return folder


def contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def test_infos_follow_the_benchmarks_layout(root: Path) -> None:
    infos = load_plain_pickle(root / "embodiedscan_infos_train.pkl")
    assert set(infos["metainfo"]["categories"]) == set(ALL_CATEGORIES)
    assert [scan["sample_idx"] for scan in infos["data_list"]] == [f"synthetic/{s}" for s in SEEDS]
    for scan in infos["data_list"]:
        assert scan["axis_align_matrix"].shape == scan["cam2img"].shape == (4, 4)
        assert [i["bbox_id"] for i in scan["instances"]] == list(range(len(scan["instances"])))
        seen = set()
        for image in scan["images"]:
            assert (root / image["img_path"]).exists()
            assert (root / image["depth_path"]).exists()
            seen |= set(image["visible_instance_ids"])
        assert seen == set(range(len(scan["instances"])))  # exactly what some view shows


def test_dataset_reads_it_and_depth_lies_on_the_home(root: Path) -> None:
    dataset = EmbodiedScanDataset(root)
    assert len(dataset) == 3
    from embodied_perceptron_training.homes.recording import surface_distance_m

    scan = dataset.by_name("synthetic/21")
    view = scan.load_view(1)
    points, valid = back_project(view.depth_m, view.depth_camera)
    distance = surface_distance_m(build_home(21, SPEC.home), transform_points(view.T_world_camera, points[valid]))
    assert np.median(distance) < 0.01  # structured-light noise
    grid = dataset.occupancy(scan)
    masks = dataset.visible_cells(scan)
    assert grid is not None
    assert masks is not None
    assert grid.shape == (40, 40, 16)
    assert len(masks) == 4
    near = transform_points(view.T_world_camera, points[valid])
    cells = np.floor((near - [-3.2, -3.2, -0.78]) / 0.16).astype(int)
    inside = ((cells >= 0) & (cells < (40, 40, 16))).all(1)
    occupied = grid[tuple(cells[inside].T)] > 0
    assert occupied.mean() > 0.85  # the rest is noise across cell borders
    assert masks[1][tuple(cells[inside].T)].mean() > 0.95


@pytest.mark.slow
def test_same_seed_same_files_whatever_the_workers_and_interruptions(root: Path, tmp_path: Path) -> None:
    first = contents(root)
    again = tmp_path / "again"
    (again / ".partial" / "21" / "color").mkdir(parents=True)  # left by an interrupted run
    (again / "synthetic" / "22").mkdir(parents=True)
    (again / "synthetic" / "22" / "record.json").write_text("{")
    write_sample(20, again, SPEC)
    generate(again, SEEDS, SPEC, workers=2)
    assert contents(again) == first
    assert not (again / ".partial").exists()


@pytest.mark.slow  # starts a cluster of two machines, both this one
def test_a_cluster_makes_the_same_files(root: Path, tmp_path: Path) -> None:
    ray_cluster = pytest.importorskip("ray.cluster_utils")
    cluster = ray_cluster.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=1)
        generate(tmp_path, SEEDS, SPEC, workers=Cluster(cluster.address))
    finally:
        cluster.shutdown()
    assert contents(tmp_path) == contents(root)


def test_a_cluster_that_is_not_there_is_named(tmp_path: Path) -> None:
    if importlib.util.find_spec("ray") is None:
        with pytest.raises(ValueError, match="pip install ray"):
            generate(tmp_path, SEEDS, SPEC, workers=Cluster("local"))
    else:
        with pytest.raises(ValueError, match=r"no Ray cluster at '127\.0\.0\.1:1'"):
            generate(tmp_path, SEEDS, SPEC, workers=Cluster("127.0.0.1:1"))
    with pytest.raises(ValueError, match="at least one worker, got 0"):
        generate(tmp_path, SEEDS, SPEC, workers=0)


def test_finished_samples_are_kept_and_others_made_anew(root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    marker = copy / "synthetic/20/marker"
    marker.write_text("")
    write_sample(20, copy, SPEC)
    assert marker.exists()
    write_sample(20, copy, HomeSampleSpec(views=2, width=96, height=72, home=HomeSpec(1)))
    assert not marker.exists()


def test_prompts_are_unique_by_geometry(root: Path) -> None:
    dataset = EmbodiedScanDataset(root)
    prompts = dataset.prompts()
    assert len(prompts) > 60
    for prompt in prompts:
        scan = dataset.by_name(prompt.scan_id)
        assert [scan.labels[t] for t in prompt.target_ids] == [prompt.target]
        assert all(scan.labels[d] == prompt.target for d in prompt.distractor_ids)
        same = [i for i, label in enumerate(scan.labels) if label == prompt.target]
        assert sorted([*prompt.target_ids, *prompt.distractor_ids]) == same
        (start, stop) = prompt.tokens_positive[0]
        assert prompt.text[start:stop]
    entries = json.loads((root / "embodiedscan_train_vg.json").read_text())
    free = sum(e["form"] == "free" for e in entries)
    assert free >= 0.2 * len(entries)
    assert all(e["view_dependent"] == is_view_dependent(e["text"]) for e in entries)


def fact_holds(scene: relations.Scene, fact: Fact) -> list[int]:
    """All rows of the target's class for which the fact's relation holds."""
    rows = scene.rows_of(scene.objects[fact.target].label)
    if fact.relation == "unique":
        return [int(r) for r in rows]
    if fact.relation == "attribute":
        return [int(r) for r in rows if fact.attribute in scene.objects[r].model.attributes.values()]
    if fact.relation in ("closest", "farthest"):
        row = relations.nearest_row(scene, rows, fact.anchors[0], fact.relation == "farthest")
        return [] if row is None else [row]
    return [int(r) for r in rows if relation_holds(scene, fact.relation, int(r), fact.anchors)]


def test_facts_hold_for_their_target_alone() -> None:
    home = build_home(5, HomeSpec(1, "living room"))
    scene = relations.make_scene(home, range(len(home.objects)))
    facts = all_facts(scene)
    assert {"closest", "farthest", "between"} <= {f.relation for f in facts}
    for fact in facts:
        assert fact_holds(scene, fact) == [fact.target]
        assert all(scene.objects[a].label != scene.objects[fact.target].label for a in fact.anchors)


def test_closest_by_slow_search() -> None:
    home = build_home(5, HomeSpec(1, "living room"))
    scene = relations.make_scene(home, range(len(home.objects)))
    for fact in all_facts(scene):
        if fact.relation not in ("closest", "farthest"):
            continue
        rows = [i for i, o in enumerate(home.objects) if o.label == home.objects[fact.target].label]
        a = home.objects[fact.anchors[0]].box9()[:2]
        distances = {i: float(np.hypot(*(home.objects[i].box9()[:2] - a))) for i in rows}
        best = (min if fact.relation == "closest" else max)(distances, key=distances.__getitem__)
        assert best == fact.target


def test_free_forms_avoid_the_plain_relation_words() -> None:
    plain = {
        "closest", "closer", "nearest", "near", "next", "farthest", "far", "farther", "above", "below", "under",
        "beneath", "inside", "behind", "between", "middle", "left", "right", "top", "supporting",
    }  # fmt: skip
    said = {"left": {"left"}, "right": {"right"}, "viewer left": {"left"}, "viewer right": {"right"}}
    for relation, templates in FREE.items():
        assert relation in PLAIN
        for text in templates:
            words = set(text.replace(",", " ").replace(":", " ").split())
            assert not (words & plain) - said.get(relation, set()), text


def test_negatives_name_what_is_not_there() -> None:
    home = build_home(5, HomeSpec(1, "living room"))
    scene = relations.make_scene(home, range(len(home.objects)))
    labels = {o.label for o in home.objects}
    absent = ["toilet", "bathtub"]
    negatives = make_negatives(scene, "x", PromptSpec(), absent, np.random.default_rng(0))
    assert len(negatives) >= 4
    for entry in negatives:
        if entry["reason"] == "class":
            assert entry["target"] in absent
            assert entry["target"] not in labels
        else:
            color = entry["text"].split()[1]
            have = [o.model.attributes.get("color") for o in home.objects if o.label == entry["target"]]
            assert color not in have


def test_questions_and_tags_refer_to_annotated_objects() -> None:
    home = build_home(6, HomeSpec(1, "bedroom"))
    scene = relations.make_scene(home, range(len(home.objects)))
    language = make_language(scene, ["piano", "stove"], np.random.default_rng(1))
    kinds = {q["kind"] for q in language["qa"]}
    assert kinds == {"existence", "counting", "attribute", "relation"}
    for question in language["qa"]:
        if question["kind"] == "counting" and question["question"].startswith("How many"):
            name = next(n for n in {o.label for o in home.objects} if f"many {plural(n)} are" in question["question"])
            assert int(question["answer"]) == sum(o.label == name for o in home.objects)
    import re

    for text in [language["scene"], *(o["text"] for o in language["objects"])]:
        for number in re.findall(r"<obj_(\d+)>", text):
            assert int(number) < len(home.objects)
    tiers = openlex_labels(scene)
    for entry in tiers:
        assert home.objects[entry["id"]].label == entry["synonyms"][0]
        assert entry["id"] not in entry["clutter"]
    pictures = [t for t in tiers if home.objects[t["id"]].label == "picture"]
    assert all(t["depictions"] for t in pictures)


def test_pickles_that_run_code_are_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return (eval, ("1 + 1",))

    path = tmp_path / "x.pkl"
    path.write_bytes(pickle.dumps({"metainfo": Evil()}))
    with pytest.raises(UnsafePickleError, match=r"builtins\.eval"):
        load_plain_pickle(path)
    path.write_bytes(pickle.dumps({"a": np.arange(3)})[:-4])
    with pytest.raises(UnsafePickleError, match="damaged"):
        load_plain_pickle(path)
    value = {"a": np.float32(2), "b": np.eye(2), "c": [("x", True, None)]}
    path.write_bytes(pickle.dumps(value))
    assert load_plain_pickle(path)["c"] == value["c"]


def test_tour_is_no_longer_than_the_best_of_all_orders() -> None:
    from itertools import permutations

    points = np.random.default_rng(2).uniform(0, 5, (7, 2))

    def length(order: tuple[int, ...]) -> float:
        return float(np.linalg.norm(np.diff(points[list(order)], axis=0), axis=1).sum())

    best = min(length((0, *rest)) for rest in permutations(range(1, 7)))
    assert length(tuple(shortest_path(points))) <= 1.1 * best


def test_commands(root: Path, tmp_path: Path) -> None:
    app = typer.Typer()
    home_commands.register(app)
    runner = CliRunner()
    done = runner.invoke(app, ["inspect", str(root), "--out", str(tmp_path / "i"), "--limit", "1"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "i/sheet_synthetic_20.png").exists()
    assert json.loads((tmp_path / "i/statistics.json").read_text())["scans"] == 3
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = runner.invoke(app, ["generate", "--out", str(blocked / "x"), "--homes", "1"])
    assert done.exit_code == 2
    assert "cannot be written" in " ".join(done.output.replace("│", " ").split())  # wrapped at any word
    done = runner.invoke(app, ["generate", "--out", str(tmp_path / "y"), "--split", "dev", "--homes", "1"])
    assert "split must be one of" in str(done.exception)


def test_record_says_states_and_pairs_per_frame(root: Path) -> None:
    record = load_record(root, "synthetic/21")
    assert len(record["frames"]) == len(record["images"]) == 4
    for frame, image in zip(record["frames"], record["images"], strict=True):
        visible = set(image["visible_instance_ids"])
        assert {int(i) for i in frame["states"]} <= visible
        for a, relation, b in frame["pairs"]:
            assert relation in ("ontop", "inside", "under")
            assert {a, b} <= visible
    with pytest.raises(FileNotFoundError):
        load_record(root, "synthetic/999")


def test_things_under_a_table_are_found_by_geometry() -> None:
    from dataclasses import replace

    from embodied_perceptron_training.homes.assets import furniture, small
    from embodied_perceptron_training.homes.assets.mesh import MeshBuilder
    from embodied_perceptron_training.homes.assets.objects import PlacedObject, pose_at

    home = build_home(5, HomeSpec(1, "living room"))
    rng = np.random.default_rng(0)
    table = PlacedObject(0, furniture.dining_table(rng, MeshBuilder()), pose_at((0, 0, 0), 0.3), 0)
    ball = PlacedObject(1, small.ball(rng, MeshBuilder()), pose_at((0.1, 0.3, 0), 0.0), 0)
    away = PlacedObject(2, small.ball(rng, MeshBuilder()), pose_at((3.0, 0.0, 0), 0.0), 0)
    on_top = PlacedObject(
        3, small.book(rng, MeshBuilder()), pose_at((0, 0, 0.75), 0.0), 0, support=0, support_relation="ontop"
    )
    pairs = relations.support_pairs(replace(home, objects=(table, ball, away, on_top)))
    assert sorted(pairs) == [(1, "under", 0), (3, "ontop", 0)]


def test_a_home_without_free_floor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from embodied_perceptron_training.homes.building import placement
    from embodied_perceptron_training.homes.building.floorplan import HomeError
    from embodied_perceptron_training.homes.building.freespace import free_space

    home = build_home(5, HomeSpec(1, "living room"))
    with pytest.raises(HomeError, match="radius 4"):
        free_space(home, radius_m=4.0)
    monkeypatch.setattr(placement, "ROBOT_RADIUS_M", 3.0)
    with pytest.raises(HomeError, match="free floor"):
        build_home(5, HomeSpec(1, "bathroom"))


def test_a_recording_is_compared_without_a_data_set_of_ones_own(tmp_path, monkeypatch):
    """As the page on one's own rooms has it: versions 1 and 2 beside a recording."""
    asked = []

    def compare(folder, split, recording, progress):
        asked.append((folder, recording))
        return {"version 1": {"holes": "1 %"}, recording.name: {"holes": "9 %"}}

    monkeypatch.setattr("embodied_perceptron_training.homes.comparison.compare", compare)
    app = typer.Typer()
    home_commands.register(app)
    done = CliRunner().invoke(app, ["inspect", "--compare", str(tmp_path), "--out", str(tmp_path / "i")])
    assert done.exit_code == 0, done.output
    assert asked == [(None, tmp_path)]
    assert "9 %" in done.output
    assert (tmp_path / "i" / "comparison.json").is_file()
    nothing = CliRunner().invoke(app, ["inspect"])
    assert "give the folder of a data set" in str(nothing.exception)
