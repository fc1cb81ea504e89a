#!/usr/bin/env python3
"""Ask a saved map for objects.

    python3 examples/ask.py MAP.safetensors "the chair by the window" "how many tables are there"

Prints the status of each answer, its reason and the boxes. Exit code 0 when every question was answered with FOUND.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from embodied_perceptron.apps.reading_options import open_map
from embodied_perceptron.results import GroundingStatus


def main(arguments: list[str] | None = None) -> int:
    """Load the map, answer every question."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("map", type=Path)
    parser.add_argument("questions", nargs="+")
    options = parser.parse_args(arguments)

    perceptron = open_map(options.map)
    answers = [perceptron.ground(question) for question in options.questions]
    for answer in answers:
        print(f"{answer.text}: {answer.status.name} {answer.reason}")
        for thing in answer.candidates:
            x, y, z = thing.box[:3]
            print(f"  {thing.label} {thing.id} at {x:.2f} {y:.2f} {z:.2f} m, score {thing.score:.2f}")
    return 0 if all(answer.status == GroundingStatus.FOUND for answer in answers) else 1


if __name__ == "__main__":
    raise SystemExit(main())
