"""Evaluation of sentences: what is asked, of whom, and how answers are counted."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from embodied_perceptron.geometry.boxes import canonical_boxes
from embodied_perceptron.geometry.manhattan import Region
from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.inference.predictor import PhraseCandidates, ScenePart, ScenePrediction
from embodied_perceptron.language.answer import Grounder, propose
from embodied_perceptron.language.query import Query
from embodied_perceptron.results import Detections, Grounding, GroundingStatus, SceneObject
from embodied_perceptron.scene.live_map import PublishedScene
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame
from embodied_perceptron_training.datasets.embodiedscan import Prompt
from embodied_perceptron_training.evaluation.runner.scene_tasks import flags_of, ground_scene, score_grounding
from embodied_perceptron_training.evaluation.runner.scenes import EvaluationScene

CHAIRS = np.array([[1.0, 0, 0.5, 1, 1, 1, 0, 0, 0], [3.0, 0, 0.5, 1, 1, 1, 0, 0, 0]])
TABLE = np.array([3.0, 1.6, 0.5, 1, 2, 1, 0, 0, 0])
UNSEEN = np.array([9.0, 9.0, 0.5, 1, 1, 1, 0, 0, 0])
BOXES = np.stack([*CHAIRS, TABLE, UNSEEN])
IDS = np.array([10, 11, 12, 13])


def prompt(text: str, *targets: int, span: tuple[int, int] | None = None, distractors: int = 1) -> Prompt:
    spans = () if span is None else (span,)
    return Prompt("synthetic/1", text, targets, "chair", tuple(range(distractors)), (), spans)


def scene(prompts: tuple[Prompt, ...], negatives: tuple[Prompt, ...] = ()) -> EvaluationScene:
    camera = Intrinsics(10, 10, 3.5, 3.5, 8, 8)
    frame = RgbdFrame(1, "camera", np.zeros((8, 8, 3), np.uint8), np.ones((8, 8), np.float32), camera)
    pose = np.eye(4)
    pose[:3, :3] = [[0, 0, 1], [-1, 0, 0], [0, -1, 0]]  # looks along x
    labels = ("chair", "chair", "table", "chair")
    visible = (frozenset({0, 1, 2}),)
    return EvaluationScene(
        "synthetic/1", (PosedFrame(frame, pose),), BOXES, labels, IDS, visible, np.eye(4), None, prompts, negatives
    )


class Refusing:
    """A network that must not be asked."""


class Answering:
    """Stands for a perceptron: knows the seen objects, and answers from a table."""

    def __init__(self, answers: dict[str, tuple[GroundingStatus, list[int]]]) -> None:
        self.objects = tuple(SceneObject(i + 1, n, 0.9, BOXES[i]) for i, n in enumerate(("chair", "chair", "table")))
        self.answers = answers
        self.map = SimpleNamespace(published=PublishedScene(self.objects, prediction=prediction()))
        self.grounder = Grounder(inference=Refusing(), named=True)  # type: ignore[arg-type]
        self.asked: list[str] = []

    def ground_many(self, queries: list[Query | str], viewpoint: np.ndarray) -> list[Grounding]:
        assert viewpoint.shape == (4, 4)
        texts = [Query.of(query).text for query in queries]
        self.asked += texts
        found = [self.answers[text] for text in texts]
        return [
            Grounding(text, status, tuple(self.objects[r] for r in rows), "why")
            for text, (status, rows) in zip(texts, found, strict=True)
        ]


class Decoder:
    """Stands for a network: the same candidates in every window."""

    grounds_objects = False

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows
        self.phrases: list[tuple[int, int] | None] = []

    def ground_many(self, _scene: object, sentences: list, _view: object, limit: int) -> list[list[PhraseCandidates]]:
        self.phrases += [phrase for _, (phrase,) in sentences]
        scores = np.linspace(0.9, 0.1, len(self.rows))
        return [[PhraseCandidates(BOXES[self.rows][:limit], scores[:limit])] for _ in sentences]


def prediction(split_x_m: float | None = None) -> ScenePrediction:
    """A look of one window, or of two that meet at an x."""
    everywhere = Region.everywhere()
    cores = [everywhere]
    if split_x_m is not None:
        middle_high, middle_low = np.array([split_x_m, np.inf, np.inf]), np.array([split_x_m, -np.inf, -np.inf])
        cores = [Region(everywhere.lower_m, middle_high), Region(middle_low, everywhere.upper_m)]
    parts = [ScenePart(None, core) for core in cores]  # type: ignore[arg-type]  # the stand-in reads no scene
    nothing = Detections(np.zeros((0, 9)), np.zeros(0), ())
    return ScenePrediction(nothing, None, everywhere, everywhere, parts=tuple(parts))


def test_three_ways_are_scored_beside_each_other() -> None:
    near, far = prompt("the chair next to the table", 11, span=(4, 9)), prompt("the chair far away", 10, distractors=5)
    hidden = prompt("the chair in the corner", 13)
    gone = prompt("the piano")
    asked = scene((near, far, hidden), (gone, prompt("the red table")))
    perceptron = Answering(
        {
            near.text: (GroundingStatus.FOUND, [1]),
            far.text: (GroundingStatus.AMBIGUOUS, [1, 0]),
            gone.text: (GroundingStatus.NOT_FOUND, []),
            "the red table": (GroundingStatus.FOUND, [2]),
        }
    )
    decoder = Decoder([0, 1])
    result = ground_scene(asked, perceptron, perceptron, prediction(), decoder)  # type: ignore[arg-type]
    assert result.skipped == 1
    assert [o.id for o in result.objects] == [1, 2, 3]
    assert hidden.text not in perceptron.asked
    assert decoder.phrases == [(4, 9), None]
    figures = score_grounding([result])
    assert figures["top1_acc25"] == 50.0
    assert figures["top10_acc25"] == 100.0
    assert figures["neural/top1_acc25"] == 50.0  # the second sentence's
    assert figures["neural/top1_acc25/hard"] == 100.0
    assert figures["neural/top1_acc25/easy"] == 0.0
    assert figures["relations/top1_acc25/easy"] == 100.0  # the real one: chair 11 stands by the table
    assert figures["answers/found"] == figures["answers/ambiguous"] == 50.0
    assert figures["negatives/not_found"] == figures["negatives/found"] == 50.0


def proposed(look: ScenePrediction, decoder: Decoder, sentences: list) -> list[np.ndarray]:
    return [c.boxes for c in propose(decoder, look, sentences, np.eye(4))]  # type: ignore[arg-type]


def test_of_each_window_only_what_it_sees_best_counts() -> None:
    decoder = Decoder([0, 1, 2])
    (boxes,) = proposed(prediction(2.0), decoder, [("the chair", None)])
    assert len(decoder.phrases) == 2
    np.testing.assert_allclose(boxes, canonical_boxes(BOXES[:3]), atol=1e-12)  # each once, by score


def test_a_look_at_nothing_has_no_candidates() -> None:
    empty = ScenePrediction(None, None, Region.nowhere(), Region.nowhere())
    assert [b.shape for b in proposed(empty, Decoder([0]), [("a", None)])] == [(0, 9)]
    assert proposed(prediction(), Decoder([0]), []) == []


def test_more_sentences_than_one_pass_takes_keep_their_order() -> None:
    decoder = Decoder([0])
    assert len(proposed(prediction(), decoder, [(f"the chair number {i}", (0, i + 1)) for i in range(45)])) == 45
    assert decoder.phrases == [(0, i + 1) for i in range(45)]


@pytest.mark.parametrize(
    ("text", "distractors", "expected"),
    [
        ("the chair left of the bed", 4, {"hard": True, "view_dependent": True, "unique": False}),
        ("the chair near the bed", 3, {"hard": False, "view_dependent": False, "unique": False}),
        ("the leftover", 0, {"hard": False, "view_dependent": False, "unique": True}),
    ],
)
def test_flags_follow_the_benchmark(text: str, distractors: int, expected: dict[str, bool]) -> None:
    assert flags_of(prompt(text, 1, distractors=distractors)) == expected
