"""What lifting a keyframe's 2-D detections into the map costs, beside the detector itself.

    python benchmarks/lifting.py                                     # a simulated drive, and a stand-in for a detector
    python benchmarks/lifting.py RECORDING --detector FILE.onnx --detector-layout nanodet

The stand-in calls a dozen places of each picture something. The recording is replayed as the robot drives: after every
few frames all that is new is lifted, joined with what other views saw and completed by the map. Costs are CPU time of
the thread, so that other programs do not count, and the detector's own time is left out. The first round compiles and
is not counted.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import _report as report
import numpy as np
from _inputs import simulated_drive

import embodied_perceptron  # noqa: F401  (sets the OpenMP waiting policy, before torch loads)
from embodied_perceptron.config import LiftOptions, PerceptronConfig
from embodied_perceptron.detection2d.detections2d import Detections2d
from embodied_perceptron.detection2d.detectors import Detector, OnnxDetector
from embodied_perceptron.detection2d.loading import limits_from_options
from embodied_perceptron.detection2d.pipeline import DetectionLift
from embodied_perceptron.mapping.volume import FeatureVolume
from embodied_perceptron.mapping.wall_columns import WallFrame
from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.recordings.recording import PosedFrameStream
from embodied_perceptron.results import Detections
from embodied_perceptron.scene.live_map import MapCopy
from embodied_perceptron.sensors.camera_rig import LatestCameraPoses
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame

SEED = 700_036


class _StandIn:
    """A dozen boxes in each picture, of a few names, by a seed of its stamp."""

    vocabulary = frozenset({"chair", "table", "lamp"})

    def detect(self, frame: RgbdFrame) -> tuple[Detections2d, Counter[str]]:
        rng = np.random.default_rng(frame.stamp_ns % 2**32)
        size = np.array([frame.color.shape[1], frame.color.shape[0]])
        low = rng.uniform(0.0, 0.7, (12, 2)) * size
        boxes_px = np.concatenate([low, low + rng.uniform(0.1, 0.3, (12, 2)) * size], axis=1)
        labels = tuple(rng.choice(sorted(self.vocabulary), 12).tolist())
        return Detections2d(frame.camera, frame.stamp_ns, boxes_px, np.linspace(0.9, 0.4, 12), labels), Counter()


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
    shapes, walls = PerceptronConfig().objects.segmentation, WallFrame()
    cpu_s, looked_s, calls = 0.0, detector.cpu_s, 0
    for number, posed in enumerate(frames, 1):
        volume.integrate(posed)
        if number % every:
            continue
        copy = volume.copy()
        snapshot = copy.snapshot()
        floor_z_m = float(np.percentile(snapshot.mean_point_m[:, 2], 2))
        scene = MapCopy(copy, LatestCameraPoses(), snapshot, floor_z_m, shapes, walls)
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


def main() -> int:
    """Measure, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("recording", type=Path, nargs="?", help="default: a simulated drive")
    parser.add_argument("--detector", type=Path, help="an ONNX file; default: a stand-in")
    parser.add_argument("--detector-layout", default="", help="needed with --detector")
    parser.add_argument("--every", type=int, default=4, help="frames from one update to the next")
    options = report.parse(parser)
    inner: Detector = _StandIn()
    if options.detector is not None:
        lift = LiftOptions(detector=str(options.detector), layout=options.detector_layout)
        inner = OnnxDetector(options.detector, options.detector_layout, limits=limits_from_options(lift))
    detector = _Remembering(inner)
    recording = open_recording(options.recording or simulated_drive(SEED, short=options.quick))
    frames = list(PosedFrameStream(recording, PerceptronConfig().assembler))
    figures = {"detector": "stand-in" if options.detector is None else options.detector.stem}
    figures |= [_round(frames, detector, options.every) for _ in range(2)][-1]
    report.show("lifting 2-D detections", figures)
    report.write(options, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
