"""The suites on a scan in EmbodiedScan's layout as the real sources have it: no instance images, a frame of its own."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from support.small_networks import small_config, small_network

from embodied_perceptron.detection2d.detections2d import Detections2d
from embodied_perceptron.inference.loading import save_network
from embodied_perceptron.recordings.files import write_json
from embodied_perceptron_training.datasets.embodiedscan import EmbodiedScanDataset
from embodied_perceptron_training.evaluation.runner import evaluate
from embodied_perceptron_training.evaluation.runner.parallel import EvaluationError
from embodied_perceptron_training.evaluation.suites import arkitscenerefer, openlex3d, pope
from embodied_perceptron_training.evaluation.suites.arkitscenerefer import (
    axis_aligned,
    detected,
    graspable_references,
)
from embodied_perceptron_training.evaluation.suites.openlex3d import Prompts, TieredLabels, point_truth
from embodied_perceptron_training.evaluation.suites.pope import pope_questions, presence_of
from embodied_perceptron_training.evaluation.suites.scenes import SuiteSpec, load_suite_scene
from embodied_perceptron_training.homes.building.home import HomeSpec
from embodied_perceptron_training.homes.generate import HomeSampleSpec, generate

HOME, SCAN = "synthetic/40", "scannet/scene0040_00"
KNOWN = ("chair", "table", "bed", "picture")
A = np.array([[0.0, -1, 0, 1], [1, 0, 0, -2], [0, 0, 1, 0.1], [0, 0, 0, 1]])  # to the axis-aligned world


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home, told as ScanNet's scans are: cameras in another frame, and nothing but infos, images and sentences."""
    folder = tmp_path_factory.mktemp("scans")
    generate(folder, (40,), HomeSampleSpec(views=4, width=96, height=72, home=HomeSpec(1)), "test")
    infos = pickle.loads((folder / "embodiedscan_infos_test.pkl").read_bytes())
    (entry,) = infos["data_list"]
    entry["sample_idx"], entry["axis_align_matrix"] = SCAN, A
    for image in entry["images"]:
        image["cam2global"] = np.linalg.inv(A) @ image["cam2global"]
    for split in ("test", "train"):
        (folder / f"embodiedscan_infos_{split}.pkl").write_bytes(pickle.dumps(infos))
    sentences = folder / "embodiedscan_test_vg.json"
    sentences.write_text(sentences.read_text().replace(HOME, SCAN))
    (folder / HOME / "record.json").unlink()
    return folder


@pytest.fixture(scope="module")
def spec(root: Path, tmp_path_factory: pytest.TempPathFactory) -> SuiteSpec:
    path = tmp_path_factory.mktemp("weights") / "small.safetensors"
    save_network(path, small_network(small_config()), KNOWN, {"occupancy_classes": ["floor", "wall", "chair"]})
    return SuiteSpec(str(root), weights=str(path), views=4)


def test_pope_asks_for_what_the_infos_call_visible(spec: SuiteSpec, root: Path) -> None:
    scene = load_suite_scene(spec, SCAN)
    assert scene.instances is None
    scan = EmbodiedScanDataset(root, "test")[0]
    shown = {scan.labels[i] for image in scan.images for i in image.visible_ids}
    presence = presence_of(scene)
    structure = {"wall", "floor", "ceiling"}
    assert set(presence.present) == shown - structure - {"object"}
    assert set(presence.unasked) == (set(scan.labels) - set(presence.present) - {"object"}) | structure
    # negatives are of the data's own training split, which here has nothing that the scan lacks
    with pytest.raises(ValueError, match="only 0 of the vocabulary are absent"):
        pope_questions(spec, [presence])
    listed = root / "training.json"
    names = [f"thing {i}" for i in range(len(presence.present))]
    listed.write_text(json.dumps({"scenes": {"a": names}}))
    run = pope.SUITE.run(SuiteSpec(spec.data, weights=spec.weights, views=4, training=str(listed)))
    assert run.figures["random/yes"] <= 100.0
    assert run.notes["questions"] == 2 * len(presence.present)
    assert not any(name.startswith(("states/", "grounded/")) for name in run.figures)


def test_real_scans_without_training_scenes_say_what_is_missing(spec: SuiteSpec, root: Path) -> None:
    presence = presence_of(load_suite_scene(spec, SCAN))
    path = root / "embodiedscan_infos_train.pkl"
    kept = path.read_bytes()
    path.unlink()
    try:
        pope.training_statistics.cache_clear()
        evaluate.dataset.cache_clear()
        with pytest.raises(EvaluationError, match="give --training-scenes"):
            pope_questions(spec, [presence])
    finally:
        path.write_bytes(kept)


def test_records_are_answered_in_their_own_frame(spec: SuiteSpec, root: Path) -> None:
    """The truth itself as what the map holds: a box of the world is found again in the frame of the records."""
    plain = arkitscenerefer.EvaluationSpec(spec.data, "test", spec.weights, ("grounding",), None, 4)
    scene = arkitscenerefer.load(plain, SCAN)
    references = graspable_references(scene)
    assert references
    back = np.linalg.inv(A)
    records = []
    for r in references:
        center = back @ np.append(r.box[:3], 1.0)
        box = np.array([*center[:3], r.box[4], r.box[3], r.box[5]])  # a quarter turn
        records.append(arkitscenerefer.Reference(r.id, "scene0040_00", r.object_id, r.description, r.label, box))
        thing = arkitscenerefer.SceneObject(1, r.label, 1.0, scene.boxes[scene.ids == int(r.object_id)][0])
        grounding = arkitscenerefer.ground_objects(f"the {r.label}", [thing], None)
        answer = arkitscenerefer._first_box(grounding, back)
        assert answer is not None
        np.testing.assert_allclose(answer.box, box, atol=1e-6)
    assert arkitscenerefer._first_box(arkitscenerefer.ground_objects("the unicorn", [thing], None), back) is None
    file = root / "records.json"
    write_json(file, [r.as_dict() for r in records])
    run = arkitscenerefer.SUITE.run(SuiteSpec(spec.data, weights=spec.weights, views=4, references=str(file)))
    assert run.notes["expressions"] == len(records)
    assert list(run.results[0].answers) == [""]  # no masks, no bounds
    stranger = arkitscenerefer.Reference("x", "elsewhere", "1", "a cup", "cup", records[0].box)
    write_json(file, [stranger.as_dict()])
    arkitscenerefer._records.cache_clear()
    with pytest.raises(EvaluationError, match=r"no record of .* is about a scan"):
        arkitscenerefer.SUITE.run(SuiteSpec(spec.data, weights=spec.weights, views=4, references=str(file)))


class OneBox:
    """Finds one cup, from the pixel (10, 20) up to and with (14, 29)."""

    vocabulary = frozenset(("cup",))

    def detect(self, frame: object) -> tuple[Detections2d, None]:
        return Detections2d("camera", 1, np.array([[9.5, 19.5, 14.5, 29.5]]), np.array([0.7]), ("cup",)), None


def test_a_detected_box_is_its_own_mask(spec: SuiteSpec) -> None:
    frame = load_suite_scene(spec, SCAN).scene.frames[0].frame
    (found,) = detected(OneBox(), frame, 3)  # type: ignore[arg-type]
    assert (found.view, found.label, found.score) == (3, "cup", 0.7)
    assert found.box.tolist() == [10, 20, 15, 30]
    rows, columns = np.nonzero(found.mask)
    assert (rows.min(), rows.max(), columns.min(), columns.max(), found.mask.sum()) == (20, 29, 10, 14, 50)


def test_true_points_are_those_in_the_boxes_of_what_a_view_shows(
    spec: SuiteSpec, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = load_suite_scene(spec, SCAN)
    labels = [TieredLabels(int(i), (f"name {i}",)) for i in scene.scene.ids]
    truth = point_truth(scene, labels)
    bounds = axis_aligned(scene.scene.boxes)
    row = {int(i): k for k, i in enumerate(scene.scene.ids)}
    assert len(set(truth.objects.tolist())) >= 3
    for i in set(truth.objects.tolist()):
        points, box = truth.points_m[truth.objects == i], bounds[row[i]]
        assert (np.abs(points - box[:3]) <= box[3:] / 2 + 1e-6).all()
        assert scene.scene.labels[row[i]] not in ("wall", "floor", "ceiling")
    folder = root / "openlex3d" / "scannet"
    folder.mkdir(parents=True)
    made = json.loads((root / "openlex3d" / f"{HOME}.json").read_text())
    (folder / "scene0040_00.json").write_text(json.dumps(made))
    monkeypatch.setattr(
        openlex3d, "embed", lambda texts: Prompts(tuple(texts), np.random.default_rng(0).normal(size=(len(texts), 8)))
    )
    figures = openlex3d.SUITE.run(spec).figures
    assert {"top1/synonyms", "mR", "AP50"} <= set(figures)
