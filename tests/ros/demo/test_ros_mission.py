"""Questions to a node and the verdict on its answers; what the demonstration says of itself. No node is started."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy")
pytest.importorskip("embodied_perceptron_msgs.msg")

from rich.console import Console

from embodied_perceptron.geometry.transforms import Intrinsics, make_transform
from embodied_perceptron.results import Grounding, GroundingStatus, SceneObject, SemanticVoxels
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame
from embodied_perceptron_ros.conversion.maps import cloud_to_semantic, make_label_info, semantic_to_cloud
from embodied_perceptron_ros.demo.demo import (
    find_problems,
    is_right,
    queries_table,
    richest_view,
    second_rate,
    summarise,
    summary_table,
    verdict,
)
from embodied_perceptron_ros.node.monitor import MissionQuestion, NodeStatus, Sighting, TimedAnswer, read_questions
from embodied_perceptron_ros.node.queries import parse_query
from embodied_perceptron_ros.players.replaying import ReplayOutcome

BOX = (1.0, 2.0, 0.5, 1.0, 1.0, 1.0, 0.3, 0.0, 0.0)
RNG = np.random.default_rng(0)


def found(*shifts_m: float) -> Grounding:
    boxes = [np.add(BOX, [shift_m, *[0.0] * 8]) for shift_m in shifts_m or (0.0,)]
    things = tuple(SceneObject(7 + n, "chair", 0.8, box) for n, box in enumerate(boxes))
    return Grounding("t", GroundingStatus.FOUND, things)


NOT_FOUND = Grounding("t", GroundingStatus.NOT_FOUND, reason="there is none")
CHAIR = MissionQuestion("q", "the chair", "plain", expected="FOUND", box=BOX)
FAR = (9.0, *BOX[1:])
MOVED = MissionQuestion("q", "what moved?", "moved", expected="FOUND", boxes=(BOX, FAR))
ABSENT = MissionQuestion("q", "the bathtub", "absent", expected="NOT_FOUND")


@pytest.mark.parametrize(
    ("question", "groundings", "right"),
    [
        (CHAIR, [found(0.1)], True),
        (CHAIR, [found(5.0)], False),
        (CHAIR, [NOT_FOUND], False),
        (CHAIR, [], False),
        (CHAIR, [NOT_FOUND, found()], True),  # the last one counts
        (CHAIR, [found(), found(5.0)], False),
        (ABSENT, [NOT_FOUND], True),
        (ABSENT, [found()], False),
        (MissionQuestion("q", "anything"), [found()], None),
        (CHAIR, [found(0.1, 5.0)], True),
        (MOVED, [found(8.0, 0.1)], True),
        (MOVED, [found(0.1)], False),  # one is missing
        (MOVED, [found(8.0, 0.1, 4.0)], False),  # one is too many
        (MOVED, [found(0.1, 4.0)], False),
    ],
)
def test_what_is_right(question, groundings, right):
    assert is_right(question, [TimedAnswer(g, 5.0) for g in groundings]) is right


def test_a_query_says_what_the_question_means():
    question = MissionQuestion("a", "the chair", standing=True, stamp_ns=1_500_000_000)
    query = parse_query(question.message())
    assert (query.id, query.text, query.standing, query.stamp_ns) == ("a", "the chair", True, 1_500_000_000)
    plain = parse_query(MissionQuestion("a", "the chair").message())
    assert (plain.standing, plain.stamp_ns) == (False, 0)


def test_questions_are_read_as_the_simulation_tells_them():
    from embodied_perceptron_training.homes.mission import Question as Told

    told = Told("mission-plain", "plain", "the chair", "FOUND", 4, "chair", BOX, True, 5)
    moved = Told("mission-moved", "moved", "what moved?", "FOUND", boxes=(BOX, FAR))
    first, second = read_questions(json.loads(json.dumps([told.as_dict(), moved.as_dict()])))
    assert first == MissionQuestion("mission-plain", "the chair", "plain", True, 5, "FOUND", BOX)
    assert second == replace(MOVED, id="mission-moved")


def outcome(**changes) -> ReplayOutcome:
    status = NodeStatus("active", 10, 9, 0, {"no_pose": 1}, {"query": {"p50": 3.0, "p99": 4.0}})
    published = {"voxels": 3, "boxes": 4, "occupancy_grid": 2}
    return ReplayOutcome(10, status, published, Path("m"), {"wall_s": 3.0}, {}, 3.5, **changes)


class FakePerception:
    voxels = ()
    objects = ()


def test_results_hold_every_figure():
    sightings = tuple(Sighting(i, (), 10.0 + 0.5 * i) for i in range(5))
    answers = {"q": [TimedAnswer(found(), 12.0)]}
    made = outcome(sightings=sightings, answers=answers)
    results = summarise(
        Path("src"), made, FakePerception(), [CHAIR], {"map_error_m": 0.01, "AP25": 41.0, "mIoU": 20.0}, "tiny"
    )
    assert (results["fusion_hz"], results["perception_hz"]) == (3.0, 2.0)
    assert (results["AP25"], results["mIoU"], results["weights"]) == (41.0, 20.0, "tiny")
    assert results["latency_ms"]["query"] == {"p50": 3.0, "p99": 4.0}
    assert results["queries"] == [
        {
            **{"kind": "plain", "text": "the chair", "expected": "FOUND", "status": "FOUND", "object_id": 7},
            **{"label": "chair", "reason": "", "correct": True, "answers": 1, "ms": 12.0},
        }
    ]
    assert find_problems(results) == ()
    json.dumps(results, allow_nan=False)
    console = Console(record=True, width=120)
    console.print(summary_table(results, Path("out")), queries_table(results["queries"]))
    text = console.export_text()
    assert "1 of 1 right" in text
    assert "41.0" in text


def test_brackets_in_questions_and_names_are_shown_and_not_obeyed():
    """``make demo QUERY='...'``: a question must not break the table at the end of it all."""
    row = {"kind": "", "expected": None, "status": "FOUND", "correct": None, "object_id": 7, "reason": "", "ms": None}
    console = Console(record=True, width=160)
    console.print(queries_table([{**row, "text": "the [/b] chair [red]x[/red]", "label": "[bold]chair"}]))
    text = console.export_text()
    assert "the [/b] chair [red]x[/red]" in text
    assert "[bold]chair 7" in text


def test_without_truth_nothing_is_claimed():
    results = summarise(Path("src"), outcome(), FakePerception(), [MissionQuestion("a", "the chair")])
    assert results["AP25"] is None
    assert results["perception_hz"] is None
    (row,) = results["queries"]
    assert (row["expected"], row["status"], row["correct"]) == (None, None, None)
    assert any("never answered" in problem for problem in find_problems(results))


def test_a_wrong_answer_is_told_and_is_no_failure():
    wrong = verdict(CHAIR, [TimedAnswer(NOT_FOUND, 2.0)])
    assert (wrong["status"], wrong["correct"], wrong["object_id"]) == ("NOT_FOUND", False, None)
    results = {**summarise(Path("s"), outcome(), FakePerception()), "queries": [wrong]}
    assert find_problems(results) == ()


@pytest.mark.parametrize(
    ("rate", "perception_hz", "expected"),
    [(1.0, 4.0, 1.0), (1.0, 1.0, 0.5), (2.0, 3.0, 1.5), (1.0, 0.01, 0.2), (1.0, None, 0.2), (0.1, None, 0.1)],
)
def test_a_busy_computer_gets_time_for_the_second_drive(rate, perception_hz, expected):
    assert second_rate(rate, perception_hz) == pytest.approx(expected)


def test_the_richest_view_has_most_objects_in_it():
    camera = Intrinsics(50.0, 50.0, 31.5, 23.5, 64, 48)
    R = np.array([[0.0, 0, 1], [-1, 0, 0], [0, -1, 0]])
    frames = []
    for turn in (1.0, -1.0):  # looking along x, then against it
        T = make_transform(np.diag([turn, turn, 1.0]) @ R, np.zeros(3))
        color, depth = np.zeros((48, 64, 3), np.uint8), np.ones((48, 64), np.float32)
        frames.append(PosedFrame(RgbdFrame(len(frames), "camera", color, depth, camera), T))
    things = [SceneObject(i, "chair", 1.0, np.array([-2.0, 0.1 * i, 0, 1, 1, 1, 0, 0, 0])) for i in range(3)]
    assert richest_view(frames, things) is frames[1]
    assert richest_view([], things) is None


def test_semantic_cloud_comes_back_with_names_and_cell_size():
    n, size = 60, 0.16
    cells = RNG.integers(-9, 9, (n, 3))
    labels = RNG.integers(0, 3, n).astype(np.int32)
    semantic = SemanticVoxels(
        size,
        ((cells + 0.5) * size).astype(np.float32),
        np.zeros((n, 3), np.uint8),
        labels,
        RNG.random(n).astype(np.float32),
        ("floor", "wall", "chair"),
    )
    back = cloud_to_semantic(semantic_to_cloud(semantic, 9, "odom"), make_label_info(semantic.classes, 9, "odom"))
    assert back.classes == semantic.classes
    assert back.cell_size_m == pytest.approx(size, abs=1e-5)
    np.testing.assert_array_equal(back.labels, labels)
    assert len(Counter(map(tuple, back.color.tolist()))) == 3
    with pytest.raises(ValueError, match="label_info"):
        cloud_to_semantic(semantic_to_cloud(semantic, 9, "odom"), make_label_info(("floor",), 9, "odom"))
