"""What lifting a keyframe's 2-D detections into the map costs, beside the detector itself.

    python benchmarks/lifting.py RECORDING --detector FILE.onnx --detector-layout nanodet

The recording is replayed as the robot drives: after every few frames all that is new is lifted, joined with what other
views saw and completed by the map. Costs are CPU time of the thread, so that other programs do not count, and the
detector's own time is left out. The first round compiles and is not counted. Prints the parts per keyframe, and
writes out/bench/lifting.json.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import embodied_perceptron  # noqa: F401  (sets the OpenMP waiting policy, before torch loads)
from embodied_perceptron.config import LiftOptions, PerceptronConfig
from embodied_perceptron.detection2d.detections2d import Detections2d
from embodied_perceptron.detection2d.detectors import Detector, OnnxDetector
from embodied_perceptron.detection2d.loading import limits_from_options
from embodied_perceptron.detection2d.pipeline import DetectionLift
from embodied_perceptron.mapping.volume import FeatureVolume
from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.recordings.recording import PosedFrameStream
from embodied_perceptron.results import Detections
from embodied_perceptron.scene.map_copy import MapCopy
from embodied_perceptron.sensors.camera_rig import LatestCameraPoses
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame

OUT = Path(__file__).resolve().parents[1] / "out" / "bench" / "lifting.json"


class _Remembering:
    """A detector that looks at each picture once, and counts what its looks cost."""

    def __init__(self, inner: Detector) -> None:
        self._inner = inner
        self._known: dict[int, tuple[Detections2d, Counter[str]]] = {}
        self.vocabulary = inner.vocabulary
        self.cpu_s = 0.0

    def detect(self, frame: RgbdFrame) -> tuple[Detections2d, Counter[str]]:
        began = time.thread_time()
        if frame.stamp_ns not in self._known:
            self._known[frame.stamp_ns] = self._inner.detect(frame)
        self.cpu_s += time.thread_time() - began
        return self._known[frame.stamp_ns]


def _round(frames: Sequence[PosedFrame], detector: _Remembering, every: int) -> dict[str, float]:
    """Costs per keyframe of one drive through the recording."""
    volume = FeatureVolume(PerceptronConfig().volume)
    lift = DetectionLift(lambda: detector)
    nothing = Detections(np.zeros((0, 9)), np.zeros(0), ())
    cpu_s, looked_s, calls = 0.0, detector.cpu_s, 0
    for number, posed in enumerate(frames, 1):
        volume.integrate(posed)
        if number % every:
            continue
        copy = volume.copy()
        snapshot = copy.snapshot()
        floor_z_m = float(np.percentile(snapshot.mean_point_m[:, 2], 2))
        scene = MapCopy(copy, LatestCameraPoses(), snapshot, floor_z_m, PerceptronConfig().objects)
        began = time.thread_time()
        lift.with_evidence(nothing, scene)
        cpu_s += time.thread_time() - began
        calls += 1
    statistics = lift.statistics()
    cpu_s -= detector.cpu_s - looked_s
    return {
        "keyframes": statistics.pictures,
        "calls": calls,
        "detections": statistics.found,
        "cpu_ms_per_keyframe": round(1e3 * cpu_s / max(statistics.pictures, 1), 2),
        "of_it_rays_and_clusters_wall_ms": round(statistics.lift_ms / max(statistics.pictures, 1), 2),
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recording", type=Path)
    parser.add_argument("--detector", type=Path, required=True)
    parser.add_argument("--detector-layout", required=True)
    parser.add_argument("--every", type=int, default=4, help="Frames from one look at the map to the next.")
    args = parser.parse_args()
    options = LiftOptions(detector=str(args.detector), layout=args.detector_layout)
    inner = OnnxDetector(args.detector, args.detector_layout, limits=limits_from_options(options))
    detector = _Remembering(inner)
    recording = open_recording(args.recording)
    frames = list(PosedFrameStream(recording, PerceptronConfig().assembler))
    rounds = [_round(frames, detector, args.every) for _ in range(2)]
    figures = rounds[-1]
    for name, value in figures.items():
        print(f"{name:26} {value}")
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
