#!/usr/bin/env python3
"""Map a recording and save the map: a folder in TUM RGB-D layout, a bag, or an app's export.

    python3 examples/map_folder.py RECORDING MAP.safetensors

Prints the objects with their class, score and centre in metres. `--weights none` maps without a network.
"""

from __future__ import annotations

import argparse

from embodied_perceptron import Perceptron, PerceptronConfig, PosedFrameStream, open_recording
from embodied_perceptron.config import NetworkOptions

PERCEIVE_EVERY = 10  # frames between two perceptions


def main(arguments: list[str] | None = None) -> int:
    """Fuse every frame, perceive now and then, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recording")
    parser.add_argument("map")
    parser.add_argument("--weights", default="tiny", help="a shipped name, a weights file, or none")
    options = parser.parse_args(arguments)

    perceptron = Perceptron.from_config(PerceptronConfig(network=NetworkOptions(weights=options.weights)))
    for number, posed in enumerate(PosedFrameStream(open_recording(options.recording))):
        perceptron.integrate(posed)
        if number % PERCEIVE_EVERY == PERCEIVE_EVERY - 1:
            perceptron.perceive()
    perception = perceptron.perceive()
    for thing in perception.objects:
        x, y, z = thing.box[:3]
        print(f"{thing.id:4d} {thing.label:20s} {thing.score:.2f}  {x:6.2f} {y:6.2f} {z:6.2f}")
    print(f"{len(perception.voxels)} voxels, {len(perception.objects)} objects")
    perceptron.save(options.map)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
