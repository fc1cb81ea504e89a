"""The network's own grounding as evidence in the answers of a perceptron."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from support.small_networks import small_config, small_network

from embodied_perceptron.config import ScorePolicy
from embodied_perceptron.geometry.manhattan import Region
from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.inference.predictor import Predictor, ScenePart, viewpoint_of
from embodied_perceptron.language import answer as answering
from embodied_perceptron.language.answer import propose
from embodied_perceptron.language.query import Query
from embodied_perceptron.nn.text_encoder import TextFeatures
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import GroundingStatus
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame

CLASSES = ("chair", "table", "bed", "lamp")
POSE = np.array([[0.0, 0, 1, 0], [-1, 0, 0, 0], [0, -1, 0, 1], [0, 0, 0, 1]])  # looks along x from 1 m


class LetterEncoder:
    """One token per letter."""

    channels = 12

    def encode(self, texts: Sequence[str]) -> TextFeatures:
        length = max(len(t) for t in texts)
        tokens, pad = torch.zeros(len(texts), length, 12), torch.ones(len(texts), length).bool()
        spans = torch.zeros(len(texts), length, 2, dtype=torch.int64)
        for row, text in enumerate(texts):
            for k, letter in enumerate(text):
                tokens[row, k] = torch.randn(12, generator=torch.Generator().manual_seed(ord(letter)))
                spans[row, k] = torch.tensor([k, k + 1])
            pad[row, : len(text)] = False
        return TextFeatures(tokens, pad, tokens.mean(1), spans, (0,) * len(texts))


@pytest.fixture
def perceptron() -> Perceptron:
    """After one look at a wall with a step in it."""
    network = small_network(small_config())
    made = Perceptron(inference=Predictor(network, CLASSES, ("a", "b", "c"), LetterEncoder(), scores=ScorePolicy(0.2)))
    camera = Intrinsics(60, 60, 39.5, 29.5, 80, 60)
    depth = np.full((60, 80), 2.0, np.float32)
    depth[20:40, 30:60] = 1.5
    for i in range(3):
        frame = RgbdFrame((i + 1) * 10**9, "camera", np.full((60, 80, 3), 90, np.uint8), depth, camera)
        made.integrate(PosedFrame(frame, POSE))
    made.perceive()
    return made


def test_proposals_reach_the_answer(perceptron: Perceptron, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    real = answering.ground_objects

    def recorded(query: Query, *rest: object, **named: object) -> object:
        taken.append((query.text, named["candidates"]))
        return real(query, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(answering, "ground_objects", recorded)
    answers = perceptron.ground_many(["the chair by the lamp", "   ", "the table"], POSE)
    assert [text for text, _ in taken] == ["the chair by the lamp", "   ", "the table"]
    assert answers[1].status == GroundingStatus.INVALID
    assert taken[1][1] is None
    prediction, inference = perceptron.prediction, perceptron.inference
    assert prediction is not None
    assert inference is not None
    # the words that name what is asked for, and nothing else of the sentence
    expected = propose(inference, prediction, [("the chair by the lamp", (4, 9)), ("the table", (4, 9))], POSE)
    for (_, candidates), wanted in zip((taken[0], taken[2]), expected, strict=True):
        assert len(wanted.boxes) > 0
        np.testing.assert_array_equal(candidates.boxes, wanted.boxes)
        np.testing.assert_array_equal(candidates.scores, wanted.scores)
    alone = perceptron.ground("the table", POSE)
    assert alone.status == answers[2].status
    assert [c.id for c in alone.candidates] == [c.id for c in answers[2].candidates]


def test_an_answer_comes_without_them_too(
    perceptron: Perceptron, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise ImportError("no transformers")

    asked = []
    monkeypatch.setattr(answering, "propose", lambda *a: asked.append(a))
    perceptron.ground("the table")  # nobody knows from where
    Perceptron().ground("the table", POSE)  # no network
    assert not asked
    monkeypatch.setattr(answering, "propose", fails)
    assert perceptron.ground("the table", POSE).text == "the table"
    assert "no transformers" in caplog.text
    perceptron.reset()
    assert perceptron.prediction is None
    assert perceptron.ground("the table", POSE).status == GroundingStatus.NOT_FOUND


def test_windows_are_asked_about_together(perceptron: Perceptron) -> None:
    """A look in two halves knows the same things, each of them once: the answer is that of one look at all."""
    prediction, inference = perceptron.prediction, perceptron.inference
    assert prediction is not None
    assert inference is not None
    assert inference.grounds_objects
    (whole,) = prediction.parts
    middle = float(np.median(inference.objects(whole.scene).boxes[0, :, 0]))
    low, high = np.full(3, -np.inf), np.full(3, np.inf)
    west, east = (np.array([middle, np.inf, np.inf]), np.array([middle, -np.inf, -np.inf]))
    halves = (ScenePart(whole.scene, Region(low, west)), ScenePart(whole.scene, Region(east, high)))
    asked = [("the chair by the lamp", (4, 9)), ("the table", None)]
    expected = propose(inference, prediction, asked, POSE)
    for found, wanted in zip(
        propose(inference, dataclasses.replace(prediction, parts=halves), asked, POSE), expected, strict=True
    ):
        assert len(found.boxes) > 1
        np.testing.assert_allclose(found.boxes, wanted.boxes, atol=1e-5)
        np.testing.assert_allclose(found.scores, wanted.scores, atol=1e-5)
    # as one scene by itself answers, which is how training asks
    question, viewpoint = (asked[0][0], [asked[0][1]]), viewpoint_of(POSE, prediction.floor_z_m)
    ((alone,),) = inference.ground_many(whole.scene, [question], viewpoint)
    np.testing.assert_allclose(alone.boxes, expected[0].boxes, atol=1e-4)
    np.testing.assert_allclose(alone.scores, expected[0].scores, atol=1e-4)
    nothing = dataclasses.replace(prediction, parts=(ScenePart(whole.scene, Region.nowhere()),))
    assert [len(found.boxes) for found in propose(inference, nothing, asked, POSE)] == [0, 0]
