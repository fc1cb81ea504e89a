"""The demo's mission in several homes, as fast as the machine goes: what maps and answers are worth, home by home.

    python benchmarks/missions.py                              # four homes; table, and out/bench/missions.json
    python benchmarks/missions.py --homes 12 --ahead 0 0.25    # windows around the camera, and before it

Each home is driven through as `make demo` does, and replayed without ROS: the same looks at the same recorded times
whatever the machine. Questions of a home that has none of some kind are left out.

AP counts boxes of any score, and the map publishes what is probably right: ``look`` is what the network makes of the
whole map at the end, boxes of any score, and ``look, sure`` those of it from the score on from which objects are
published. What lies between these two is the threshold's; what lies between the second and AP25 is the drive's.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import embodied_perceptron  # noqa: F401  (sets the OpenMP waiting policy, before torch loads)
from embodied_perceptron.apps.replay import ReplayResult, replay
from embodied_perceptron.config import NetworkOptions, PerceptronConfig
from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.results import SceneObject
from embodied_perceptron_ros.demo.mission import MissionQuestion, TimedAnswer, is_right, read_questions
from embodied_perceptron_ros.demo.simulated import render, simulated_recording
from embodied_perceptron_training.evaluation.recordings.final_map import score_objects, score_occupancy
from embodied_perceptron_training.evaluation.runner.scene_tasks import predict_everywhere
from embodied_perceptron_training.homes.mission import MissionError, make_questions
from embodied_perceptron_training.homes.recording import HomeTrajectory, watch_recording

OUT = Path(__file__).resolve().parents[1] / "out" / "bench" / "missions.json"
PERCEIVE_S = 0.4  # as often as two slow cores do beside fusion
SHOWN = ("AP25", "AP25_furniture", "AP50", "AR25", "mIoU", "look", "look, sure")
console = Console()


def questions_of(tour: HomeTrajectory) -> tuple[MissionQuestion, ...]:
    """None where the home has none of some kind."""
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
    """AP25 of what the network makes of the whole map at once: of all its boxes, and of the sure ones alone."""
    found = predict_everywhere(result.perceptron).detections
    inference = result.perceptron.inference
    if found is None or inference is None:
        return {}
    figures = {}
    for name, least in (("look", 0.0), ("look, sure", inference.scores.publish)):
        told = found.above(least)
        rows = enumerate(zip(told.labels, told.scores, told.boxes, strict=True), start=1)
        objects = [SceneObject(i, label, float(score), box) for i, (label, score, box) in rows]
        figures[name] = score_objects(tour, objects)["AP25"]
    return figures


def missions(seed: int, weights: str, shares: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Figures of one home, in percent, and which answers are right, for each share that the window lies ahead."""
    source = simulated_recording(seed)
    render(source, seed)
    tour = watch_recording(source)
    questions = questions_of(tour)
    for ahead in shares:
        console.print(f"home {seed}, window_ahead {ahead}")
        config = PerceptronConfig(network=NetworkOptions(weights=weights, window_ahead=ahead))
        result = replay(open_recording(source), config, perceive_every_s=PERCEIVE_S)
        figures = score_objects(tour, result.perception.objects) | score_occupancy(tour, result.perception.semantic)
        figures |= last_look(result, tour)
        shown = {name: round(figures[name], 1) for name in SHOWN}
        yield {"seed": seed, "window_ahead": ahead, **shown, "answers": ask(result, tour, questions)}


def print_table(rows: list[dict[str, Any]], ahead: float) -> None:
    table = Table("home", *SHOWN, "answers right", title=f"missions, window_ahead {ahead}")
    for row in rows:
        right = row["answers"].values()
        table.add_row(str(row["seed"]), *(str(row[n]) for n in SHOWN), f"{sum(right)} of {len(right)}" if right else "")
    asked = [right for row in rows for right in row["answers"].values()]
    means = (f"{np.mean([row[n] for row in rows]):.1f}" for n in SHOWN)
    table.add_section()
    table.add_row("mean", *means, f"{sum(asked)} of {len(asked)}")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--homes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=700_101, help="of the first home")
    parser.add_argument("--weights", default=NetworkOptions.weights)
    parser.add_argument("--ahead", type=float, nargs="+", default=[NetworkOptions.window_ahead], metavar="SHARE")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for seed in range(arguments.seed, arguments.seed + arguments.homes):
        rows += missions(seed, arguments.weights, arguments.ahead)
    for ahead in arguments.ahead:
        print_table([row for row in rows if row["window_ahead"] == ahead], ahead)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(rows, indent=1))
    console.print(f"wrote {OUT}")


if __name__ == "__main__":
    main()
