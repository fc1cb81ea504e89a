"""Questions at the end of a replay, and the perceptron that answers them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from support.language_scenes import living_room
from support.small_recording import write_recording
from typer.testing import CliRunner

from embodied_perceptron.apps.cli import build_app
from embodied_perceptron.config import NetworkOptions, PerceptronConfig
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import GroundingStatus
from embodied_perceptron.scene.live_map import PublishedScene

RUN = CliRunner()


def test_replay_answers_every_query(tmp_path: Path) -> None:
    config = tmp_path / "shapes.yaml"
    config.write_text("network: {weights: ''}\n")
    out = tmp_path / "out"
    source = write_recording(tmp_path / "room")
    queries = ["the chair", "a\x07bell", ""]
    options = [item for text in queries for item in ("--query", text)]
    arguments = ["replay", str(source), "--out", str(out), "--config", str(config), "--max-frames", "3", *options]
    result = RUN.invoke(build_app(()), arguments)
    assert result.exit_code == 0, result.output
    answers = json.loads((out / "groundings.json").read_text())
    assert [a["status"] for a in answers] == ["INVALID"] * 3  # nothing gives names here
    for answer, words in zip(answers, ("no language model", "control character", "empty"), strict=True):
        assert words in answer["reason"]
        assert set(answer) == {
            "text",
            "status",
            "reason",
            "tagged_text",
            "latency_ms",
            "count",
            "candidates",
            "nearest",
            "phrases",
        }


def test_a_node_is_asked_on_its_topics(tmp_path: Path) -> None:
    result = RUN.invoke(
        build_app(()), ["replay", str(tmp_path), "--ros", "--out", str(tmp_path / "o"), "--query", "the chair"]
    )
    assert result.exit_code != 0
    assert "--direct" in str(result.exception)


def test_objects_with_names_are_answered_about_without_a_network() -> None:
    """A map that was saved with names keeps them."""
    perceptron = Perceptron(PerceptronConfig(network=NetworkOptions(weights="")))
    assert perceptron.ground("the couch").status == GroundingStatus.INVALID
    perceptron.map.published = PublishedScene(tuple(living_room()))
    answer = perceptron.ground("the book on the table", np.eye(4))
    assert (answer.status, answer.candidates[0].id) == (GroundingStatus.FOUND, 10)
    assert perceptron.ground("the piano").status == GroundingStatus.NOT_FOUND
    assert perceptron.ground("the red couch").status == GroundingStatus.FOUND  # colours were not measured
