"""`evaluate recording`: verdicts worked out by hand, label files that are wrong, and the real kitchen."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.small_recording import write_recording
from typer.testing import CliRunner

from embodied_perceptron.apps.cli import build_app
from embodied_perceptron.config import NetworkOptions, PerceptronConfig
from embodied_perceptron.recordings.artifacts import write_objects_json
from embodied_perceptron.recordings.recording import RecordingError
from embodied_perceptron.results import SceneObject
from embodied_perceptron_training.evaluation.evaluate_command import register
from embodied_perceptron_training.evaluation.recordings.labels import (
    IgnoredRegion,
    LabelError,
    LabelledThing,
    RecordingLabels,
    labels_from_dict,
    labels_from_objects,
    read_labels,
    write_labels,
)
from embodied_perceptron_training.evaluation.recordings.report import evaluate_recording
from embodied_perceptron_training.evaluation.recordings.score import score_recording

KITCHEN_LABELS = Path(__file__).parents[3] / "data" / "kitchen_labels.json"
SHAPES = PerceptronConfig(network=NetworkOptions(weights=""))
FIGURES = ["published", "right", "precision", "recall", "recall_large", "misnamed", "phantoms", "duplicates"]


def box(x, y, z, dx, dy, dz, yaw=0.0):
    return np.array([x, y, z, dx, dy, dz, yaw, 0.0, 0.0], np.float64)


def thing(number, label, where, score=0.5):
    return SceneObject(number, label, score, where)


TABLE = LabelledThing(("table", "desk"), box(0, 0, 0.4, 2, 1, 0.8))
CUP = LabelledThing(("cup",), box(0, 0, 0.85, 0.1, 0.1, 0.1))
UNSURE = LabelledThing(("lamp",), box(5, 0, 1, 1, 1, 1), sure=False)
LABELS = RecordingLabels((TABLE, CUP, UNSURE), (IgnoredRegion(box(10, 0, 0, 2, 2, 2)),))


def verdicts(*objects, labels=LABELS):
    return {j.thing.id: j.verdict for j in score_recording(objects, labels).verdicts}


def test_each_verdict_as_defined():
    objects = (
        thing(1, "desk", TABLE.box, 0.9),
        thing(2, "table", box(0.1, 0, 0.4, 2, 1, 0.8), 0.8),  # the same table again
        thing(3, "bed", box(0, 0, 0.4, 2, 1.1, 0.8), 0.7),
        thing(4, "sofa", box(-5, 0, 0.4, 1, 1, 1), 0.6),
        thing(5, "plant", box(5, 0, 1, 1, 1, 1), 0.5),  # where nobody is sure
        thing(6, "plant", box(10, 0.5, 0, 1, 1, 1), 0.5),  # ignored
        thing(7, "object", box(0, 0, 0.4, 2, 1, 0.8), 0.5),
        thing(8, "object", box(-8, 0, 0.4, 2, 1, 0.8), 0.5),
        thing(9, "table", box(0.9, 0, 0.4, 0.2, 1, 0.8), 0.4),  # IoU 0.1: a piece
    )
    score = score_recording(objects, LABELS)
    assert {j.thing.id: j.verdict for j in score.verdicts} == {
        1: "right", 2: "duplicate", 3: "misnamed", 4: "phantom", 5: "not judged", 6: "not judged", 7: "not judged",
        8: "not judged", 9: "duplicate",
    }  # fmt: skip
    assert score.metrics() == {
        "published": 5, "right": 1, "precision": 0.2, "recall": 0.5, "recall_large": 1.0, "misnamed": 1, "phantoms": 1,
        "duplicates": 2,
    }  # fmt: skip
    assert [LABELS.things[i].names[0] for i in score.missed()] == ["cup"]


def test_of_two_boxes_the_better_score_is_right_whatever_the_order():
    near, far = thing(1, "table", TABLE.box, 0.4), thing(2, "table", box(0.3, 0, 0.4, 2, 1, 0.8), 0.6)
    assert verdicts(near, far) == verdicts(far, near) == {1: "duplicate", 2: "right"}


def test_one_box_finds_one_of_two_like_things_and_the_next_box_the_other():
    two = RecordingLabels(
        (LabelledThing(("chair",), box(0, 0, 0, 1, 1, 1)), LabelledThing(("chair",), box(0.5, 0, 0, 1, 1, 1)))
    )
    between = box(0.25, 0, 0, 1, 1, 1)
    assert verdicts(thing(1, "chair", between, 0.9), labels=two) == {1: "right"}
    score = score_recording([thing(1, "chair", between, 0.9), thing(2, "chair", between, 0.8)], two)
    assert score.metrics()["recall"] == 1.0
    assert score.metrics()["duplicates"] == 0


def test_a_thin_thing_may_be_some_centimetres_beside_its_label():
    labels = RecordingLabels((LabelledThing(("paper",), box(0, 0, 0.735, 0.3, 0.2, 0.01)),))
    at = lambda dz: thing(1, "paper", box(0, 0, 0.735 + dz, 0.3, 0.2, 0.01))  # noqa: E731
    assert verdicts(at(0.05), labels=labels) == {1: "right"}
    assert verdicts(at(0.07), labels=labels) == {1: "phantom"}


def test_object_counts_where_the_labels_accept_it():
    labels = RecordingLabels((LabelledThing(("object", "box"), TABLE.box),))
    assert verdicts(thing(1, "object", TABLE.box), labels=labels) == {1: "right"}


def test_nothing_to_divide_by_is_null():
    figures = score_recording([], RecordingLabels()).metrics()
    assert (figures["precision"], figures["recall"], figures["recall_large"]) == (None, None, None)
    assert score_recording([], LABELS).metrics()["recall"] == 0.0


def test_turning_the_world_changes_no_verdict():
    rng = np.random.default_rng(3)
    objects = [
        thing(
            i, rng.choice(["table", "cup", "bed", "object"]), box(*rng.uniform(-1, 1, 3), *rng.uniform(0.05, 2, 3)), s
        )
        for i, s in enumerate(rng.uniform(0, 1, 30))
    ]

    def turned(b, yaw=0.7):
        x, y = b[:2]
        c, s = np.cos(yaw), np.sin(yaw)
        return np.concatenate([[c * x - s * y, s * x + c * y], b[2:6], [b[6] + yaw], b[7:]])

    other = RecordingLabels(
        tuple(LabelledThing(t.names, turned(t.box), t.sure) for t in LABELS.things),
        tuple(IgnoredRegion(turned(r.box)) for r in LABELS.ignore),
    )
    assert verdicts(*objects) == verdicts(
        *(thing(o.id, o.label, turned(o.box), o.score) for o in objects), labels=other
    )


# -- files


def test_a_label_file_comes_back_as_it_was_written(tmp_path):
    labels = RecordingLabels(
        (LabelledThing(("espresso machine", "coffee maker"), box(1, 2, 3, 1, 1, 1, 0.5), False, "steel"),),
        LABELS.ignore,
        ("espresso machine",),
    )
    write_labels(tmp_path / "labels.json", labels)
    assert read_labels(tmp_path / "labels.json").as_dict() == labels.as_dict()
    write_labels(tmp_path / "none.json", RecordingLabels())
    assert read_labels(tmp_path / "none.json").things == ()


def test_published_objects_are_a_beginning():
    labels = labels_from_objects([thing(3, "cup", CUP.box), thing(1, "spaceship", TABLE.box)])
    assert [(t.names, t.sure) for t in labels.things] == [(("spaceship",), False), (("cup",), False)]
    assert labels_from_dict(labels.as_dict()).extra_names == ("spaceship",)


GOOD = {"names": ["table"], "box": [0, 0, 0, 1, 1, 1, 0, 0, 0]}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "the file must be a mapping"),
        ({}, "lacks 'objects'"),
        ({"objects": [], "ignored": []}, "unknown key 'ignored'"),
        (
            {"objects": [GOOD | {"names": ["tabel"]}]},
            r"objects\[0\].names .* unknown name 'tabel' \(near: table",
        ),
        ({"objects": [GOOD, GOOD | {"names": []}]}, r"objects\[1\].names must hold at least one name"),
        ({"objects": [GOOD | {"names": ["table", "table"]}]}, "'table' twice"),
        ({"objects": [GOOD | {"names": [""]}]}, "a name must be a text of 1 to 1000 characters, got ''"),
        ({"objects": [GOOD | {"names": "table"}]}, "must be a list, got 'table'"),
        ({"objects": [GOOD | {"box": [0, 0, 0, 1, 0, 1, 0, 0, 0]}]}, r"objects\[0\].box has dy = 0"),
        ({"objects": [GOOD | {"box": [0, 0, 0, 1, 1, -2, 0, 0, 0]}]}, "dz = -2"),
        ({"objects": [GOOD | {"box": [0, 0, 0, 1, 1, 1]}]}, "must be a list of 9 entries"),
        ({"objects": [GOOD | {"box": [0, 0, None, 1, 1, 1, 0, 0, 0]}]}, r"box\[2\] must be a finite number, got None"),
        ({"objects": [GOOD | {"box": [0, 0, float("nan"), 1, 1, 1, 0, 0, 0]}]}, "finite number, got nan"),
        ({"objects": [GOOD | {"sure": 1}]}, "sure must be true or false, got 1"),
        ({"objects": [GOOD | {"note": 3}]}, "note must be a text of 1 to 1000 characters, got 3"),
        ({"objects": [], "ignore": [{"box": [0, 0, 0, 0, 1, 1, 0, 0, 0]}]}, r"ignore\[0\].box has dx = 0"),
        ({"objects": [], "extra_names": ["a", " "]}, "extra_names holds ' '"),
    ],
)
def test_wrong_labels_are_named(data, words):
    with pytest.raises(LabelError, match=words):
        labels_from_dict(data)


def test_a_file_that_is_no_json_is_named(tmp_path):
    path = tmp_path / "labels.json"
    path.write_text("{")
    with pytest.raises(ValueError, match=r"labels\.json: Expecting"):
        read_labels(path)


# -- recordings

ROOM = RecordingLabels(
    (
        LabelledThing(("object",), box(1.05, 0.05, 0.37, 1.1, 0.9, 0.74, np.pi / 2)),  # the block
        LabelledThing(("tv",), box(1.7, -0.05, 1.35, 0.2, 0.3, 0.5)),
    )
)


@pytest.fixture
def room(tmp_path):
    write_labels(tmp_path / "labels.json", ROOM)
    return write_recording(tmp_path / "room"), tmp_path / "labels.json"


def test_a_replay_is_judged_and_drawn(room, tmp_path):
    recording, labels = room
    figures = evaluate_recording(recording, labels, tmp_path / "out", SHAPES)
    assert list(figures) == FIGURES
    assert figures["right"] == 1
    assert figures["recall"] == 0.5
    assert json.loads((tmp_path / "out" / "metrics.json").read_text()) == figures
    table = (tmp_path / "out" / "recording.md").read_text()
    assert "| right | object |" in table
    assert "pictures/missed_tv_1.jpg" in table
    drawn = {f"pictures/{p.name}" for p in (tmp_path / "out" / "pictures").iterdir()}
    assert drawn
    assert all(name in table for name in drawn)


def test_objects_of_an_earlier_replay_give_the_same_figures_also_far_from_the_origin(room, tmp_path):
    recording, labels = room
    figures = evaluate_recording(recording, labels, tmp_path / "a", SHAPES, pictures=False)
    again = evaluate_recording(recording, labels, tmp_path / "b", None, tmp_path / "a" / "objects.json", pictures=False)
    assert again == figures
    T_world_map = [[1, 0, 0, 1000], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    shifted = [thing(1, "tv", ROOM.things[1].box - [1000, 0, 0, 0, 0, 0, 0, 0, 0])]
    (tmp_path / "far").mkdir()
    write_objects_json(tmp_path / "far" / "objects.json", shifted)
    (tmp_path / "far" / "timings.json").write_text(json.dumps({"T_world_map": T_world_map}))
    far = evaluate_recording(recording, labels, tmp_path / "c", None, tmp_path / "far" / "objects.json", pictures=False)
    assert far["right"] == 1


def test_the_command_says_what_is_wrong(room, tmp_path):
    recording, labels = room
    app = build_app(plugins=())
    register(app)

    def run(*words):
        return CliRunner().invoke(app, ["evaluate", "recording", *map(str, words), "--out", str(tmp_path / "out")])

    empty = tmp_path / "objects.json"
    write_objects_json(empty, [])
    result = run("--recording", recording, "--labels", labels, "--objects", empty, "--no-pictures")
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["recall"] == 0.0
    labels.write_text('{"objects": [{"names": ["tabel"], "box": [0,0,0,1,1,1,0,0,0]}]}')
    assert "tabel" in str(run("--recording", recording, "--labels", labels).exception)
    write_labels(labels, ROOM)
    assert run("--recording", tmp_path / "none", "--labels", labels).exit_code == 2
    assert "--labels" in str(run("--recording", recording, "--objects", empty).exception)


def test_a_recording_without_colour_is_an_error_that_names_it(room, tmp_path):
    recording, labels = room
    for image in (recording / "color").iterdir():
        image.unlink()
    with pytest.raises(RecordingError, match="color"):
        evaluate_recording(recording, labels, tmp_path / "out", SHAPES)


def test_the_kitchens_labels_are_sound():
    labels = read_labels(KITCHEN_LABELS)
    sure = [t for t in labels.things if t.sure]
    assert sum(t.names[0] == "chair" for t in sure) == 5
    assert sum(t.box[3:6].max() >= 0.5 for t in sure) >= 10
    perfect = [thing(i, t.names[0], t.box) for i, t in enumerate(labels.things)]
    figures = score_recording(perfect, labels).metrics()
    assert (figures["precision"], figures["recall"]) == (1.0, 1.0)


@pytest.mark.slow
def test_the_real_kitchen(kitchen_dir, tmp_path):
    figures = evaluate_recording(kitchen_dir, KITCHEN_LABELS, tmp_path, pictures=True)
    judged = ("right", "duplicates", "misnamed", "phantoms")
    assert figures["published"] == sum(figures[name] for name in judged)
    assert figures["recall_large"] >= 0.5
    assert list((tmp_path / "pictures").glob("right_table*.jpg"))


def test_a_piece_of_an_unsure_thing_is_not_judged_under_its_name():
    row = LabelledThing(("cabinet", "shelf"), box(20, 0, 2, 3, 0.5, 0.6), sure=False)
    labels = RecordingLabels((TABLE, row), ())
    objects = (
        thing(1, "cabinet", box(19, 0, 2, 0.5, 0.5, 0.6)),  # one cupboard of the row: IoU 0.17
        thing(2, "microwave", box(20, 0, 2, 0.5, 0.5, 0.6)),  # there, but claims to be something else
        thing(3, "cabinet", box(19, 0, 1.6, 0.5, 0.5, 0.6)),  # a third of it lies in the row
        thing(4, "cabinet", box(25, 0, 2, 0.5, 0.5, 0.6)),
    )
    wanted = {1: "not judged", 2: "phantom", 3: "phantom", 4: "phantom"}
    assert verdicts(*objects, labels=labels) == wanted
    (piece,) = (j for j in score_recording(objects, labels).verdicts if j.thing.id == 1)
    assert (piece.on, piece.why) == (1, "a piece of an unsure thing")
