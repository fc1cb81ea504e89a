"""How often the network is right about each name that it publishes: what `lift/network_names.json` is made of.

    python -m embodied_perceptron_training.evaluation.name_precision --data data/val --split val --out FILE.json

Of homes that no weights were trained on: every box of the whole scene that scores as published objects do is right
where a thing of its name lies within IoU 0.25, each thing once, the best scores first. Counts, not shares, are kept:
what was said twice is not known as well as what was said a hundred times.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from embodied_perceptron.recordings.files import write_atomically
from embodied_perceptron.results import UNNAMED, Detections
from embodied_perceptron_training.evaluation.evaluate import load, scene_names
from embodied_perceptron_training.evaluation.object_states import MATCH_IOU, matches_by_name
from embodied_perceptron_training.evaluation.parallel import CorruptSceneError, map_scenes
from embodied_perceptron_training.evaluation.scenes import EvaluationScene
from embodied_perceptron_training.evaluation.suites import SuiteSpec, perceive_scene


def count_names(found: Detections, scene: EvaluationScene) -> tuple[Counter[str], Counter[str]]:
    """How often each name was said, and how often rightly. Boxes without a name say none."""
    named = found.take(np.flatnonzero([label != UNNAMED for label in found.labels]))
    matches = matches_by_name(named.boxes, named.labels, named.scores, scene.boxes, scene.labels)
    return Counter(named.labels), Counter(named.labels[row] for row in matches)


@dataclass(frozen=True)
class _Work:
    spec: SuiteSpec

    def __call__(self, name: str) -> tuple[Counter[str], Counter[str]]:
        scene = load(self.spec.plain, name)
        perceptron, _ = perceive_scene(self.spec, scene)
        inference, prediction = perceptron.inference, perceptron.prediction
        if inference is None or prediction is None or prediction.detections is None:
            raise CorruptSceneError(f"{name}: the network could not look")
        return count_names(prediction.detections.above(inference.scores.publish), scene)


def main() -> None:
    """Count, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--split", default="val")
    parser.add_argument("--weights", default="tiny")
    parser.add_argument("--scenes", type=int, default=None)
    parser.add_argument("--views", type=int, default=20)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    spec = SuiteSpec(str(args.data), args.split, args.weights, args.scenes, args.views)
    outcome = map_scenes(_Work(spec), scene_names(spec.plain), args.workers)
    said: Counter[str] = sum((a for a, _ in outcome.results), Counter())
    right: Counter[str] = sum((b for _, b in outcome.results), Counter())
    table = {
        "comment": (
            f"[said, right] of each name that the network publishes: {len(outcome.results)} validation homes of the "
            f"second generator, {args.views} views each, IoU {MATCH_IOU}; written by evaluation/name_precision.py"
        ),
        "weights": args.weights,
        "names": {name: [said[name], right[name]] for name in sorted(said)},
    }
    write_atomically(args.out, (json.dumps(table, indent=1) + "\n").encode())
    print(f"{args.out}: {sum(said.values())} said, {sum(right.values())} right")


if __name__ == "__main__":
    main()
