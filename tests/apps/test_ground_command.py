"""Scenes and sentences in a file to answers in a file."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from embodied_perceptron.apps.cli import build_app
from embodied_perceptron.apps.command_line import CommandError
from embodied_perceptron.language.scene_file import answer_file, detected_scene


def detection(category: str, x: float, **more) -> dict:
    return {"category": category, "center": [x, 0.0, 0.45], "size": [0.5, 0.5, 0.9], **more}


SCENE = {
    "detections": [
        detection("chair", 0.0, color=[200, 30, 30], score=0.9),
        detection("chair", 2.0, color=[20, 40, 200]),
        detection("table", 4.0),
    ],
    "viewpoint": [1, 0, 0, 1, 0, 0, 1, -3, 0, -1, 0, 1.2, 0, 0, 0, 1],
    "objects": {"never read": None},
}


def ask(*texts: str, scene: dict = SCENE) -> list[dict]:
    data = {"scenes": {"s": scene}, "queries": [{"scene": "s", "text": t, "target": "never read"} for t in texts]}
    return answer_file(data)["answers"]


def test_answers_are_in_the_order_of_the_queries_and_boxes_unchanged():
    answers = ask(
        "the blue chair", "the piano", "how many chairs", "la chaise près de la fenêtre", "the leftmost chair"
    )
    assert [a["status"] for a in answers] == ["FOUND", "NOT_FOUND", "FOUND", "INVALID", "FOUND"]
    assert set(answers[0]) == {"scene", "text", "status", "boxes", "count", "reason", "tagged", "ms"}
    box = answers[0]["boxes"][0]
    assert (box["center"], box["size"], box["category"]) == ([2.0, 0.0, 0.45], [0.5, 0.5, 0.9], "chair")
    assert answers[1]["boxes"] == []
    assert answers[2]["count"] == 2
    assert answers[4]["boxes"][0]["center"] == [0.0, 0.0, 0.45]


def test_what_holds_for_none_gives_the_boxes_that_come_nearest():
    (answer,) = ask("the chair above the table")
    assert answer["status"] == "NOT_FOUND"
    assert sorted(box["center"][0] for box in answer["boxes"]) == [0.0, 2.0]
    assert [box["score"] for box in answer["boxes"]] == sorted((b["score"] for b in answer["boxes"]), reverse=True)
    (counted,) = ask("how many chairs are above the table")
    assert (counted["count"], counted["boxes"]) == (0, [])


def test_scenes_that_say_little():
    assert ask("the chair", scene={"detections": []})[0]["status"] == "NOT_FOUND"
    broken = {"detections": [detection("chair", float("nan")), detection("chair", 1.0)]}
    (answer,) = ask("the chair", scene=broken)
    assert (answer["status"], answer["boxes"][0]["center"][0]) == ("FOUND", 1.0)
    assert ask(None, scene=SCENE)[0]["status"] == "INVALID"


def test_fronts_count_where_every_detection_has_one():
    yawed = [detection("chair", 0.0, yaw=0.0), detection("table", 1.0, yaw=1.0)]
    assert detected_scene("s", {"detections": yawed}).fronts == ("boxes", "boxes")
    assert set(detected_scene("s", SCENE).fronts) == {"none"}


@pytest.mark.parametrize(
    ("scene", "words"),
    [
        ({}, "no list of detections"),
        ({"detections": [{"center": [0, 0, 0], "size": [1, 1, 1]}]}, "detection 0 of scene 's' has no category"),
        ({"detections": [{"category": "chair", "center": [0, 0], "size": [1, 1, 1]}]}, "center of detection 0"),
        ({"detections": [], "viewpoint": [1, 2]}, "viewpoint of scene 's' must be 16 numbers"),
    ],
)
def test_wrong_scenes_are_named(scene, words):
    with pytest.raises(ValueError, match=words):
        ask("the chair", scene=scene)


def test_the_command(tmp_path):
    path, out = tmp_path / "scenes.json", tmp_path / "out" / "answers.json"
    path.write_text(json.dumps({"scenes": {"s": SCENE}, "queries": [{"scene": "s", "text": "the red chair"}]}))
    app = build_app([])
    result = CliRunner().invoke(app, ["ground", "--scenes", str(path), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert json.loads(out.read_text())["answers"][0]["boxes"][0]["center"] == [0.0, 0.0, 0.45]
    path.write_text("{}")
    result = CliRunner().invoke(app, ["ground", "--scenes", str(path), "--out", str(out)])
    assert isinstance(result.exception, CommandError)
