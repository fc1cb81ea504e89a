"""Pictures of scenes and model cards."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from support.small_networks import small_config, small_network

from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.inference.loading import save_network
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.recordings.recording import RecordingError
from embodied_perceptron.results import SceneObject
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame
from embodied_perceptron.weights.categories import DETECTION_CLASSES
from embodied_perceptron.weights.checkpoint import load_checkpoint, state_digest
from embodied_perceptron_training.evaluation.metrics.detection import SceneBoxes
from embodied_perceptron_training.evaluation.runner.model_card import model_card
from embodied_perceptron_training.evaluation.runner.parallel import EvaluationError
from embodied_perceptron_training.evaluation.runner.pictures import (
    FOUND,
    MISSED,
    RIGHT,
    WRONG,
    compare,
    draw_comparison,
    is_shown,
    rank_scenes,
    save_picture,
)
from embodied_perceptron_training.evaluation.runner.results import new_record, read_record, write_record
from embodied_perceptron_training.evaluation.runner.scene_tasks import SceneResult

CHAIR, TABLE = DETECTION_CLASSES.index("chair"), DETECTION_CLASSES.index("table")


def cube(x: float, size: float = 1.0) -> list[float]:
    return [x, 0.0, 0.5, size, size, size, 0.0, 0.0, 0.0]


def boxes(rows: list[list[float]], labels: list[int], scores: list[float] | None = None) -> SceneBoxes:
    return SceneBoxes(np.array(rows), np.array(labels), None if scores is None else np.array(scores))


def wall_view() -> PosedFrame:
    """Looks along x at a wall 4 m away, from 1 m above the floor."""
    camera = Intrinsics(40, 40, 31.5, 23.5, 64, 48)
    color = np.full((48, 64, 3), 120, np.uint8)
    pose = np.eye(4)
    pose[:3, :3] = [[0, 0, 1], [-1, 0, 0], [0, -1, 0]]
    pose[2, 3] = 1.0
    return PosedFrame(RgbdFrame(1, "camera", color, np.full((48, 64), 4.0, np.float32), camera), pose)


def test_colours_tell_right_from_wrong() -> None:
    true = boxes([cube(0), cube(3), cube(6)], [CHAIR, CHAIR, TABLE])
    found = boxes(
        [cube(3.1), cube(3.0), cube(6.0), cube(0.0), cube(9.0)],
        [CHAIR, CHAIR, CHAIR, CHAIR, TABLE],
        [0.9, 0.8, 0.7, 0.05, 0.6],
    )
    sample = compare(found, true, min_score=0.1)
    assert [sample.colors[o.id] for o in sample.true] == [MISSED, FOUND, MISSED]
    assert sample.found == 1
    # the best of two on one chair, a chair where a table is, a table where nothing is; the fifth is too unsure
    assert [sample.colors[o.id] for o in sample.predicted] == [RIGHT, WRONG, WRONG, WRONG]
    assert [o.label for o in sample.predicted] == ["chair", "chair", "chair", "table"]
    assert len({o.id for o in (*sample.true, *sample.predicted)}) == 7
    nothing = boxes([], [], [])
    assert compare(nothing, true, 0.1).predicted == ()
    assert compare(found, boxes([], []), 0.1).found == 0


def test_scenes_are_ranked_by_what_was_found() -> None:
    true = boxes([cube(0)], [CHAIR])
    good, bad = boxes([cube(0)], [CHAIR], [0.9]), boxes([cube(5)], [CHAIR], [0.9])
    results = [
        SceneResult("a", {"detection": [("a", bad, true)]}),
        SceneResult("b", {"detection": [("b", good, true)]}),
        SceneResult("c", {"detection": [("c", good, boxes([], []))]}),
    ]
    assert rank_scenes(results) == [("b", 100.0), ("a", 0.0)]


def test_what_a_view_shows() -> None:
    view = wall_view()

    def thing(x: float, y: float) -> SceneObject:
        return SceneObject(1, "chair", 1.0, np.array([x, y, 1.0, 0.4, 0.4, 0.4, 0, 0, 0]))

    assert is_shown(thing(3.0, 0.0), view)
    assert not is_shown(thing(6.0, 0.0), view)  # behind the wall
    assert not is_shown(thing(-3.0, 0.0), view)  # behind the camera
    assert not is_shown(thing(1.0, 3.0), view)  # beside the image


def test_a_picture_of_truth_beside_predictions(tmp_path: Path) -> None:
    view, perceptron = wall_view(), Perceptron()
    perceptron.integrate(view)
    true, found = boxes([cube(3.5), cube(2.5, 0.3)], [CHAIR, TABLE]), boxes([cube(3.4)], [CHAIR], [0.9])
    picture = draw_comparison(perceptron.perceive(), view, compare(found, true, 0.1), "home")
    assert picture.dtype == np.uint8
    assert picture.ndim == 3
    colors = {tuple(c) for c in picture.reshape(-1, 3)}
    assert {FOUND, MISSED, RIGHT} <= colors
    assert WRONG not in colors
    save_picture(picture, tmp_path / "home.jpg")
    assert (tmp_path / "home.jpg").read_bytes()[:2] == b"\xff\xd8"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "small.safetensors"
    save_network(path, small_network(small_config("detection")), ("chair", "table", "bed", "lamp"))
    return path


def evaluation(folder: Path, tensors: str, **run: object) -> Path:
    folder.mkdir()
    record = {
        "command": "embodied-perceptron evaluate detection --data /home/me/test --out /tmp/x",
        "tasks": ["detection"],
        "split": "test",
        "scenes": 100,
        "first_scene": "synthetic/900000",
        "last_scene": "synthetic/900099",
        "views": 20,
        "seconds": 300.0,
        "turn_seed": None,
        "weights": {"tensors": tensors},
        "true_classes_unknown_to_the_network": ["piano"],
        **run,
    }
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "metrics.json").write_text(json.dumps({"AP25": 41.26, "AP25_furniture": 55.5, "AP25/chair": 60.0}))
    return folder


def test_a_card_says_what_was_run(weights: Path, tmp_path: Path) -> None:
    tensors = state_digest(load_checkpoint(weights).state)
    plain = evaluation(tmp_path / "plain", tensors)
    turned = evaluation(tmp_path / "turned", tensors, turn_seed=1)
    data = tmp_path / "train"
    data.mkdir()
    spec = {"views": 20, "width": 320, "height": 240}
    homes = {"splits": {"train": [100002, 100000, 100001]}, "spec": spec, "generator_version": 1}
    (data / "homes.json").write_text(json.dumps(homes))
    training = tmp_path / "run.json"
    record = {
        "command": f"embodied-perceptron train --task multi --data {data}",
        "request": {"task": "multi", "seed": 7, "data": str(data)},
        "settings": {"batch": 2, "learning_rate": 0.001, "schedule": "cosine", "device": "cpu"},
        "versions": {"commit": "abc1234", "torch": "2.13"},
        "resumed": [{"command": "embodied-perceptron train --resume /home/me/out"}],
    }
    training.write_text(json.dumps(record))
    text = model_card(weights, [plain, turned], [training])
    assert "| % | A | B |" in text
    assert "| AP25, all categories | 41.3 | 41.3 |" in text
    assert "| AP25, largest side at least 0.5 m | 55.5 | 55.5 |" in text
    assert "mIoU" not in text  # a row that no evaluation has
    assert "A: 100 scenes (test: synthetic/900000 to synthetic/900099), 20 views each; `embodied-perceptron" in text
    assert "20 views each, every scene turned and moved at random" in text
    assert "count as missed: piano" in text
    assert "## Classes\n\nchair, table, bed, lamp." in text
    assert "seed 7, commit abc1234" in text
    assert "3 synthetic homes, seeds 100000 to 100002 (train), 20 views of 320x240" in text
    assert "train --resume out" in text
    assert "## Limits" in text
    assert str(tmp_path) not in text
    assert "/home/me" not in text
    assert "/tmp" not in text


def test_a_card_tells_data_and_stages(weights: Path, tmp_path: Path) -> None:
    tensors = state_digest(load_checkpoint(weights).state)
    second = evaluation(tmp_path / "second", tensors, generator_version=2)
    (second / "metrics.json").write_text(json.dumps({"detection/AP25": 35.0}))  # as with several tasks
    stages = tmp_path / "small.training.json"
    stages.write_text(json.dumps({"stages": [{"task": t, "commands": []} for t in ("images", "multi", "multi")]}))
    text = model_card(weights, [second], [stages])
    assert "A: 100 homes of version 2 (test: " in text
    assert "| AP25, all categories | 35.0 |" in text
    assert "3 stages: images (1), multi (2). Their commands, in order, stand in `small.training.json`." in text
    taught = evaluation(tmp_path / "taught", tensors, classes_that_the_benchmark_lacks={"tall plant": 3})
    assert "Classes of the network that the benchmark lacks are left out of the figures: tall plant." in model_card(
        weights, [taught]
    )


def test_a_record_serves_as_an_evaluation(weights: Path, tmp_path: Path) -> None:
    tensors = state_digest(load_checkpoint(weights).state)
    folder = evaluation(tmp_path / "plain", tensors)
    record = new_record(folder, ["AP25"], "1.0.0", "", "a lap top", "2026-01-02")
    write_record(tmp_path / "plain.json", record)
    assert read_record(tmp_path / "plain.json") == record
    assert "| AP25, all categories | 41.3 |" in model_card(weights, [tmp_path / "plain.json"])
    write_record(tmp_path / "other.json", dataclasses.replace(record, weights="0" * 64))
    with pytest.raises(EvaluationError, match="is no evaluation of"):
        model_card(weights, [tmp_path / "other.json"])


def test_a_card_speaks_of_no_other_weights(weights: Path, tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="is no evaluation of"):
        model_card(weights, [evaluation(tmp_path / "other", "0" * 64)])
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    with pytest.raises(RecordingError, match=r"run\.json: "):
        model_card(weights, [tmp_path / "broken"])
    assert "No record of the training" in model_card(weights, [])
