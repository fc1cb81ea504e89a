#!/usr/bin/env python3
"""Turn the 2-D boxes of your own detector into objects of the map.

    python3 examples/follow_detector.py RECORDING

Replace `detect` with your detector. The boxes are lifted into the map by depth; objects keep their ids between frames.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from embodied_perceptron import Perceptron, PerceptronConfig, PosedFrameStream, RgbdFrame, open_recording
from embodied_perceptron.config import LiftOptions, NetworkOptions
from embodied_perceptron.detection2d.detections2d import Detections2d


def detect(frame: RgbdFrame) -> Detections2d:
    """Box the largest brown region; stands for a real detector."""
    red, green, blue = (frame.color[..., i].astype(int) for i in range(3))
    rows, columns = np.nonzero((red > 110) & (red - blue > 60) & (red - green > 40))
    if len(rows) < 50:
        return Detections2d(frame.camera, frame.stamp_ns, np.zeros((0, 4)), np.zeros(0), ())
    box = [columns.min(), rows.min(), columns.max(), rows.max()]
    return Detections2d(frame.camera, frame.stamp_ns, np.array([box], np.float64), np.array([0.9]), ("table",))


def main(arguments: list[str] | None = None, detector: Callable[[RgbdFrame], Detections2d] = detect) -> int:
    """Fuse frames and detections, print the objects after each second."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recording")
    options = parser.parse_args(arguments)

    config = PerceptronConfig(network=NetworkOptions(weights="none"), lift=LiftOptions(from_topics=True))
    perceptron, due_ns = Perceptron.from_config(config), 0
    for posed in PosedFrameStream(open_recording(options.recording)):
        perceptron.integrate(posed)
        perceptron.add_detections(detector(posed.frame))
        if posed.frame.stamp_ns >= due_ns:
            due_ns = posed.frame.stamp_ns + 1_000_000_000
            found = perceptron.perceive().objects
            print(", ".join(f"{o.label} {o.id} at {np.round(o.box[:3], 2)}" for o in found) or "no object yet")
    print("; ".join(f"{o.label} {o.id} at {np.round(o.box[:3], 2)}" for o in perceptron.perceive().objects))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
