"""3D-GRAND's files: read, scored, and handed on to grounding."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from embodied_perceptron.apps.cli import build_app
from embodied_perceptron.language.scene_file import answer_file
from embodied_perceptron_training.datasets.grand import (
    plain_text,
    read_scenes,
    read_texts,
    scene_file,
    score_ids,
)
from embodied_perceptron_training.evaluation.metrics.description import score_texts
from embodied_perceptron_training.evaluation.suites.referring import score_answers

SCENES = {
    "room@1": {
        "two-seat sofa-0": {"category": "sofa", "centroid": [0, 0, 0.4], "extent": [1.8, 0.9, 0.8]},
        "coffee table-1": {
            "category": "coffee table",
            "centroid": [0, 1.2, 0.25],
            "extent": [1.0, 0.6, 0.5],
            "description": "low and black",
        },
        "corner/side table-2": {"category": "side table", "centroid": [3, 0, 0.3], "extent": [0.5, 0.5, 0.6]},
        "rug-3": {"category": "rug", "centroid": [0, 1, 0], "extent": [2, 1.5, 0]},
    }
}
TEXTS: list[dict[str, Any]] = [
    {
        "id": "room@1@0",
        "scene_id": "room@1",
        "conversations": [
            {"from": "human", "value": "What is in the room?"},
            {
                "from": "gpt",
                "value": "A <p>grey sofa</p>[<two-seat sofa-0>] by the <p>low coffee table</p>[<coffee table-1>], "
                "<p>a lamp</p>[<rug-3>] by <p>a piano</p>[<piano-9>].",
            },
        ],
    },
    {
        "id": "room@1$coffee table-1@0",
        "scene_id": "room@1",
        "conversations": [],
        "referred_object_id": "1",
        "referred_object_text": "coffee table",
        "grounded_object_reference": "the coffee table in front of the <p>sofa</p>[<two-seat sofa-0>].",
        "bbox": [-0.5, 0.9, 0.0, 0.5, 1.5, 0.5],
    },
]


def written(folder: Path, name: str, data: Any) -> Path:
    path = folder / name
    path.write_text(json.dumps(data))
    return path


def test_scenes_and_texts(tmp_path):
    scenes = read_scenes(written(tmp_path, "scenes.json", SCENES))
    room = scenes["room@1"]
    assert [o.label for o in room.objects] == ["sofa", "coffee table", "side table", "rug"]
    assert room.objects[1].box[:6].tolist() == [0, 1.2, 0.25, 1.0, 0.6, 0.5]
    assert room.objects[3].box[5] == 0.01
    assert room.descriptions == {1: "low and black"}
    question, reference = read_texts(written(tmp_path, "qa.json", TEXTS), scenes)
    assert (question.kind, question.asked) == ("question", "What is in the room?")
    assert [(m.phrase, m.ids) for m in question.mentions] == [
        ("grey sofa", (0,)),
        ("low coffee table", (1,)),
        ("lamp", (3,)),
        ("piano", ()),  # the scene has none
    ]
    assert (reference.kind, reference.target) == ("reference", 1)
    assert reference.asked == "the coffee table in front of the <p>sofa</p>[<obj_0>]."


def test_descriptions_by_scene(tmp_path):
    scenes = read_scenes(written(tmp_path, "scenes.json", SCENES))
    said = {"room@1": ["<p>a sofa</p>[<two-seat sofa-0>]", "nothing"]}
    first, second = read_texts(written(tmp_path, "grounded_scene_description.json", said), scenes)
    assert (first.id, first.kind, first.mentions[0].ids) == ("room@1@0", "description", (0,))
    assert second.mentions == ()
    one = {"room@1": "<p>a sofa</p>[<two-seat sofa-0>]"}
    assert len(read_texts(written(tmp_path, "d.json", one), scenes, "description")) == 1


def test_true_texts_score_100_and_invented_ones_0(tmp_path):
    scenes = read_scenes(written(tmp_path, "scenes.json", SCENES))
    true = {"room@1": "<p>two-seat sofa</p>[<two-seat sofa-0>] <p>a coffee table</p>[<coffee table-1>]"}
    figures = score_texts(read_texts(written(tmp_path, "t.json", true), scenes), scenes)
    assert figures == {"precision": 100.0, "misnamed": 0.0, "hallucinated": 0.0, "recall": 50.0}
    wrong = {"room@1": "<p>a zebra</p>[<two-seat sofa-0>] <p>a ghost</p>[<ghost-1>]"}
    figures = score_texts(read_texts(written(tmp_path, "w.json", wrong), scenes), scenes)
    assert figures == {"precision": 0.0, "misnamed": 50.0, "hallucinated": 50.0, "recall": 0.0}
    assert score_texts([], scenes)["precision"] == 0.0


def test_objects_of_texts_against_the_right_ones(tmp_path):
    scenes = read_scenes(written(tmp_path, "scenes.json", SCENES))
    truth = read_texts(written(tmp_path, "qa.json", TEXTS), scenes)
    assert score_ids(truth, truth) == {"precision": 100.0, "recall": 100.0, "f1": 100.0}
    said = {"id": "room@1@0", "scene_id": "room@1"}
    value = "<p>a sofa</p>[<two-seat sofa-0>] on <p>a side table</p>[<corner/side table-2>]"
    told = read_texts(
        written(tmp_path, "a.json", [{**said, "conversations": [{"from": "gpt", "value": value}]}]), scenes
    )
    assert score_ids(told, truth) == {"precision": 50.0, "recall": pytest.approx(100 / 3), "f1": 40.0}
    assert score_ids([], truth) == {"precision": 0.0, "recall": 0.0, "f1": 0.0}
    with pytest.raises(ValueError, match="no right text for 'room@1@0'"):
        score_ids(told, truth[1:])
    with pytest.raises(ValueError, match="'room@1@0' is listed twice"):
        score_ids([*told, *told], truth)


def test_the_command_scores_texts_and_hands_references_on(tmp_path):
    plugin = EntryPoint(
        "evaluate",
        "embodied_perceptron_training.evaluation.evaluate_command:register",
        "embodied_perceptron.commands",
    )
    files = [str(written(tmp_path, "scenes.json", SCENES)), str(written(tmp_path, "qa.json", TEXTS))]
    words = ["evaluate", "grand", "--scenes", files[0], "--texts", files[1], "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(build_app([plugin]), [*words, "--truth", files[1]])
    assert result.exit_code == 0, result.output
    figures = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert figures["hallucinated"] == 25.0  # the piano
    assert figures["question/misnamed"] == 25.0  # the lamp
    assert figures["objects/f1"] == 100.0
    # three of four phrases: the sofa (twice) and the coffee table; the lamp is a rug
    assert figures["dense/located"] == 75.0
    texts = json.loads((tmp_path / "out" / "texts.json").read_text())
    assert texts[0]["mentions"][1] == {"phrase": "low coffee table", "objects": [1]}
    data = json.loads((tmp_path / "out" / "references.json").read_text())
    assert score_answers(data, answer_file(data)["answers"])["3D-GRAND"]["acc50"] == 100.0
    written(tmp_path, "qa.json", [{"scene_id": "b"}])
    result = CliRunner().invoke(build_app([plugin]), words)
    assert result.exit_code != 0
    assert "unknown scene 'b'" in f"{result.output}{result.exception}"


def test_references_can_be_grounded_and_scored(tmp_path):
    scenes = read_scenes(written(tmp_path, "scenes.json", SCENES))
    data = scene_file(scenes, read_texts(written(tmp_path, "qa.json", TEXTS), scenes))
    assert data["queries"] == [
        {"scene": "room@1", "text": "the coffee table in front of the sofa.", "target": "1", "source": "3D-GRAND"}
    ]
    answers = answer_file(data)["answers"]
    assert answers[0]["boxes"][0]["category"] == "coffee table"
    figures = score_answers(data, answers)
    assert next(iter(figures.values()))["acc50"] == 100.0


def test_plain_text():
    assert plain_text("<p>a desk</p>[<obj_3>] by the window <obj_9>.") == "a desk by the window."
    assert plain_text("no tags") == "no tags"


@pytest.mark.parametrize(
    ("scenes", "texts", "words"),
    [
        ([], [], "scenes must be"),
        ({"a": []}, [], "objects must be"),
        ({"a": {"x-0": {"centroid": [0, 0, 0], "extent": [1, 1, 1]}}}, [], "category"),
        ({"a": {"x-0": {"category": "x", "centroid": [0, 0], "extent": [1, 1, 1]}}}, [], "no box"),
        ({"a": {"x-0": {"category": "x", "centroid": [0, 0, 0], "extent": [1, -1, 1]}}}, [], "no box"),
        (SCENES, "x", "texts must be"),
        (SCENES, [{"scene_id": "b"}], "unknown scene 'b'"),
        (SCENES, [{}], "scene_id"),
        (SCENES, ["x"], "record 0"),
        (SCENES, {"room@1": [3]}, "must be text"),
        (SCENES, [{"scene_id": "room@1", "referred_object_id": "77"}], "no object '77'"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path, scenes, texts, words):
    with pytest.raises(ValueError, match=words):
        read_texts(written(tmp_path, "t.json", texts), read_scenes(written(tmp_path, "s.json", scenes)))


def test_a_file_that_is_no_json(tmp_path):
    (tmp_path / "s.json").write_text("{")
    with pytest.raises(ValueError, match=r"s\.json"):
        read_scenes(tmp_path / "s.json")
