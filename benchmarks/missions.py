"""The demo's mission in several simulated homes, without ROS and as fast as the machine allows: maps and answers.

    python benchmarks/missions.py                              # four homes; table, and out/bench/missions.json
    python benchmarks/missions.py --homes 12 --ahead 0 0.25    # windows around the camera, and ahead of it

Perceptions happen at the same recorded times on every machine. Questions whose kind a home does not have are left out.

AP25 scores the published map. ``look`` scores the network's boxes of any score over the whole map at the end, and
``look, sure`` those from the publishing threshold on. The difference of the two is due to the threshold; the difference
between the second and AP25 is due to the drive.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import _report as report
import numpy as np
from _inputs import simulated_drive
from _report import console

import embodied_perceptron  # noqa: F401  (sets the OpenMP waiting policy, before torch loads)
from embodied_perceptron.apps.replay import ReplayResult, replay
from embodied_perceptron.config import NetworkOptions, PerceptronConfig
from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.results import SceneObject
from embodied_perceptron_ros.demo.demo import is_right
from embodied_perceptron_ros.node.monitor import MissionQuestion, TimedAnswer, read_questions
from embodied_perceptron_training.evaluation.recordings.final_map import score_objects, score_occupancy
from embodied_perceptron_training.evaluation.runner.scene_tasks import predict_everywhere
from embodied_perceptron_training.homes.mission import MissionError, make_questions
from embodied_perceptron_training.homes.recording import HomeTrajectory, watch_recording

PERCEIVE_S = 0.4  # the rate of two slow cores during fusion
SHOWN = ("AP25", "AP25_furniture", "AP50", "AR25", "mIoU", "look", "look, sure")


def questions_of(tour: HomeTrajectory) -> tuple[MissionQuestion, ...]:
    """Questions of a home; None if it lacks a kind."""
    try:
        return read_questions([question.as_dict() for question in make_questions(tour)])
    except MissionError as reason:
        console.print(f"no questions: {reason}")
        return ()


def ask(result: ReplayResult, tour: HomeTrajectory, questions: Sequence[MissionQuestion]) -> dict[str, bool]:
    """Kind of question -> whether its answer is right."""
    right = {}
    for question in questions:
        T_world_camera = result.T_world_camera
        if question.stamp_ns:
            T_world_camera = tour.T_world_camera[int(np.searchsorted(tour.stamps_ns, question.stamp_ns))]
        answer = result.perceptron.ground(question.text, T_world_camera)
        right[question.kind] = bool(is_right(question, [TimedAnswer(answer, answer.latency_ms)]))
        if not right[question.kind]:
            console.print(f"wrong: {question.text!r} -> {answer.status.name}: {answer.reason}")
    return right


def last_look(result: ReplayResult, tour: HomeTrajectory) -> dict[str, float]:
    """AP25 of a prediction over the whole map: of all boxes, and of those above the publishing threshold."""
    found = predict_everywhere(result.perceptron).detections
    inference = result.perceptron.inference
    if found is None or inference is None:
        return {}
    figures = {}
    for name, least in (("look", 0.0), ("look, sure", inference.scores.publish)):
        sure = found.above(least)
        rows = enumerate(zip(sure.labels, sure.scores, sure.boxes, strict=True), start=1)
        objects = [SceneObject(i, label, float(score), box) for i, (label, score, box) in rows]
        figures[name] = score_objects(tour, objects)["AP25"]
    return figures


def missions(seed: int, weights: str, shares: Sequence[float], short: bool) -> Iterator[dict[str, Any]]:
    """Figures of one home, in percent, and correct answers, for each share of the window that lies ahead."""
    source = simulated_drive(seed, short)
    tour = watch_recording(source)
    questions = questions_of(tour)
    for ahead in shares:
        console.print(f"home {seed}, window_ahead {ahead}")
        config = PerceptronConfig(network=NetworkOptions(weights=weights, window_ahead=ahead))
        result = replay(open_recording(source), config, perceive_every_s=PERCEIVE_S)
        figures = score_objects(tour, result.perception.objects) | score_occupancy(tour, result.perception.semantic)
        figures |= last_look(result, tour)
        shown = {name: round(figures[name], 1) for name in SHOWN}
        yield {"seed": seed, "window_ahead": ahead, **shown, "right": ask(result, tour, questions)}


def means(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over homes, and the number of correct answers."""
    asked = [right for row in rows for right in row["right"].values()]
    figures = {name: float(np.mean([row[name] for row in rows])) for name in SHOWN}
    return {**figures, "answers_right": sum(asked), "answers": len(asked)}


def main() -> int:
    """Measure, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--homes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=700_101, help="of the first home")
    parser.add_argument("--weights", default=NetworkOptions.weights)
    parser.add_argument("--ahead", type=float, nargs="+", default=[NetworkOptions.window_ahead], metavar="SHARE")
    options = report.parse(parser, homes=1)
    rows: list[dict[str, Any]] = []
    for seed in range(options.seed, options.seed + options.homes):
        rows += missions(seed, options.weights, options.ahead, options.quick)
    figures = {
        f"window_ahead_{ahead:g}": means([row for row in rows if row["window_ahead"] == ahead])
        for ahead in options.ahead
    }
    report.show("missions, percent", rows)
    report.show("mean of the homes", figures)
    first, *others = figures
    report.write(
        options,
        {
            "homes": options.homes,
            "weights": options.weights,
            **figures[first],
            **{name: figures[name] for name in others},
            "rows": rows,
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
