"""Online perception: cost of an update at every prefix against the paper's protocol, cost over laps, rates, stages.

    python benchmarks/online.py                    # table, and out/bench/online.json
    python benchmarks/online.py --weights FILE     # a trained network; else the shipped one, else random weights

Prefixes: one sequence of 50 frames in one run. (a) The paper's protocol: at a prefix of n frames all n images are
encoded and lifted to the voxels again, then the network and its heads run. (b) Ours: one image is encoded, the running
sums are updated, then the same network and heads run. Both take their input sites from the map; making the sites from
all depth images, which (a) would need, is not counted; fusing the newest frame is counted for (b). The boxes of both
are compared. The ratios are those of the sums over the ten prefixes of 41 to 50 frames, which both protocols run in
turn, because frames and the load of the machine differ.

Standing still: the robot stays at its last pose for as many frames as it drove; both protocols run at each of the last
ten frames. Ours encodes no image, and the network does not run once the means of the voxels have settled. The boxes are
compared again.

Laps: a repeated tour of several rooms; an update at the same poses must cost the same in the last lap as in the second.
Rates: one thread fuses at 30 Hz, one encodes and one perceives as fast as it can, as in the node.

Ratios are of CPU time of one torch thread, which other load does not change; rates are of wall time, with as many
threads as the node has.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any, Literal
from unittest.mock import patch

import _report as report
import numpy as np
from numpy.typing import NDArray

import embodied_perceptron  # noqa: F401  (sets the OpenMP waiting policy, before torch loads)

# isort: split
import torch

from embodied_perceptron.config import KeyframeConfig, NetworkOptions, PerceptronConfig, ScorePolicy
from embodied_perceptron.geometry.box_rays import upright_camera, view_boxes
from embodied_perceptron.geometry.transforms import F64, Intrinsics
from embodied_perceptron.inference import predictor as predictor_module
from embodied_perceptron.inference.loading import load_inference
from embodied_perceptron.inference.predictor import MapWindow, Predictor, cores
from embodied_perceptron.mapping.devices import yield_to_fusion
from embodied_perceptron.mapping.export import Window
from embodied_perceptron.mapping.image_features import ImageFeatures, StreamingLookup
from embodied_perceptron.mapping.volume import FeatureVolume, warm_up
from embodied_perceptron.mapping.voxel_counts import WallFrame
from embodied_perceptron.nn.network import PerceptionNetwork
from embodied_perceptron.nn.presets import network_config
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import Detections
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame, ViewDirection
from embodied_perceptron.weights import available
from embodied_perceptron.weights.categories import DETECTION_CLASSES, OCCUPANCY_CLASSES

K = Intrinsics(280.0, 280.0, 159.5, 119.5, 320, 240)
ROOM_M = (4.5, 4.0)
Row = dict[str, Any]


# --------------------------------------------------------------------------------------------------------------------
# the world: rooms in a ring, with furniture, and a camera that drives through their doors


def boxes_of(rooms: int, seed: int = 0) -> F64:
    """(B, 2, 3) lowest and highest corners: walls with door gaps, ceilings left out, and furniture."""
    rng = np.random.default_rng(seed)
    w, d = ROOM_M
    boxes = [((-0.1, -0.1, -0.1), (rooms * w + 0.1, d + 0.1, 0.0))]  # floor
    boxes += [((-0.1, -0.1, 0), (rooms * w + 0.1, 0, 2.5)), ((-0.1, d, 0), (rooms * w + 0.1, d + 0.1, 2.5))]
    for i in range(rooms + 1):
        x = i * w
        if i in (0, rooms):
            boxes.append(((x - 0.05, 0, 0), (x + 0.05, d, 2.5)))
        else:  # a door in the middle
            boxes += [((x - 0.05, 0, 0), (x + 0.05, 1.4, 2.5)), ((x - 0.05, 2.6, 0), (x + 0.05, d, 2.5))]
    for i in range(rooms):
        for _ in range(7):
            size = rng.uniform((0.4, 0.4, 0.4), (1.2, 0.8, 1.6))
            side = 0.05 if rng.random() < 0.5 else d - size[1] - 0.05
            low = np.array([i * w + rng.uniform(0.2, w - size[0] - 0.2), side, 0.0])
            boxes.append((tuple(low), tuple(low + size)))
    return np.array(boxes, dtype=np.float64)


def tour(rooms: int, count: int) -> list[F64]:
    """Camera poses on a closed path through the middle of all rooms, looking from side to side, and back."""
    length = (rooms - 0.5) * ROOM_M[0]
    poses = []
    for i in range(count):
        t = i / count
        out = t < 0.5
        x = 0.25 * ROOM_M[0] + length * (2 * t if out else 2 - 2 * t)
        yaw = (0.0 if out else np.pi) + 0.9 * np.sin(2 * np.pi * 6 * t)
        eye = np.array([x, 2.0 + 0.15 * np.sin(8 * np.pi * t), 1.2])
        poses.append(upright_camera(eye, yaw, np.arctan(0.2)))
    return poses


def photograph(T: F64, boxes: F64) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Colour and depth images of the camera at ``T``."""
    depth, points, _ = view_boxes(T, K, boxes)
    noise = np.random.default_rng(int(1e6 * abs(T[0, 3] + T[1, 0]))).normal(size=depth.shape)
    known = np.isfinite(depth)
    depth[known] += 0.0015 * depth[known] ** 2 * noise[known]
    color = (127 + 100 * np.sin(points * [2.1, 3.3, 4.7]) + 20 * np.sin(points[..., ::-1] * 37.0)).astype(np.uint8)
    return color, depth.astype(np.float32)


def frames_of(rooms: int, count: int) -> list[PosedFrame]:
    """One lap."""
    boxes = boxes_of(rooms)
    out = []
    for i, T in enumerate(tour(rooms, count)):
        color, depth = photograph(T, boxes)
        out.append(PosedFrame(RgbdFrame(200_000_000 * (i + 1), "front", color, depth, K), T))
    return out


def again(frame: PosedFrame, stamp_ns: int) -> PosedFrame:
    f = frame.frame
    return PosedFrame(RgbdFrame(stamp_ns, f.camera, f.color, f.depth_m, f.intrinsics), frame.T_world_camera)


def every_frame(count: int) -> KeyframeConfig:
    return KeyframeConfig(translation_m=1e-6, rotation_rad=1e-6, min_interval_s=0.0, max_count=count)


# --------------------------------------------------------------------------------------------------------------------
# prefixes


def map_and_window(inference: Predictor, count: int) -> tuple[FeatureVolume, ImageFeatures, MapWindow]:
    """An empty map that makes a keyframe of each of ``count`` frames, its image features, and the network's window over
    it, all as by default."""
    features = inference.image_features()
    assert features is not None
    volume = FeatureVolume(None, every_frame(count), features=features)
    return volume, features, inference.open_window(volume, NetworkOptions())


def prefixes(inference: Predictor, count: int, at: Collection[int], still: int = 0) -> list[Row]:
    """Costs of an update by ours and the paper's protocol, over the same voxels, windows and views.

    The robot drives for ``count`` frames and then stands for ``still`` more, of which none is a new view; the paper's
    protocol takes its turn ``at`` some of all.
    """
    frames = frames_of(1, count)
    standing = [again(frames[-1], frames[-1].frame.stamp_ns + 200_000_000 * (i + 1)) for i in range(still)]
    volume, features, live = map_and_window(inference, count)
    window_m = NetworkOptions().window_m
    walls, clock = WallFrame(), _Clock()
    rows: list[Row] = []
    last: Detections | None = None
    for n, frame in enumerate((*frames, *standing), 1):
        with clock("integrate"):
            volume.integrate(frame)
        keyframe = volume.keyframes.newest
        assert keyframe is not None
        encoded = features.encoded
        with clock("encode"):
            features.prefetch(keyframe)
        copy = volume.copy()
        view_direction = ViewDirection.of(frame.T_world_camera)
        timed_lookup = _timed(StreamingLookup.__call__, clock)
        with patch.object(StreamingLookup, "__call__", timed_lookup), clock("predict"):
            manhattan = walls.of(copy.snapshot(), 0.0)
            ours = inference.predict(live, copy, view_direction, 0.0, manhattan=manhattan, keep=True)
        row = {"frames": n, "standing": n > count, "images_encoded": features.encoded - encoded, "ours": _stages(clock)}
        if n in at:
            with clock("encode"):
                views = [inference.view(f) for f in frames[:n]]
            lookup = _timed(inference.network.lookup([views]), clock)
            center = np.array([*(0.5 * (ours.region.lower_m[:2] + ours.region.upper_m[:2])), 0.0])
            window = Window(center, np.array([window_m, window_m, np.inf]), inference._coarsest)
            with clock("predict"):
                sites = copy.as_sparse_tensor(
                    live.site_voxels, window=window, features=inference.site_features, floor_z_m=0.0
                )
                scene = inference.encode(sites, lookup)
                found = inference.boxes(scene, inference.scores.decode)  # as the predictor: before any is left out
                inference.occupancy(scene, [*(0.5 * (ours.region.lower_m[:2] + ours.region.upper_m[:2])), 0.0])
            row["paper"] = _stages(clock)
            assert ours.detections is not None
            row["boxes"] = len(found)
            row["reused"] = ours.detections is last  # the network did not run
            row["same_boxes"] = (nearly_same_boxes if row["reused"] else same_boxes)(found, ours.detections)
        last = ours.detections
        rows.append(row)
    return rows


def same_boxes(a: Detections, b: Detections) -> bool:
    """Whether two protocols found the same, to a millimetre and a thousandth of the score."""
    return (
        a.labels == b.labels
        and bool(np.allclose(a.boxes, b.boxes, atol=1e-3))
        and bool(np.allclose(a.scores, b.scores, atol=1e-3))
    )


def nearly_same_boxes(a: Detections, b: Detections) -> bool:
    """Whether every box has its own of the same name in the other, to a centimetre and 0.05 of the score, where the
    network did not run for what has changed: suppression turns a small change into the score of another site."""
    if sorted(a.labels) != sorted(b.labels):
        return False
    free = list(range(len(b)))
    for box, score, label in zip(a.boxes, a.scores, a.labels, strict=True):
        near = [
            i
            for i in free
            if b.labels[i] == label and np.abs(b.boxes[i] - box).max() <= 0.01 and abs(b.scores[i] - score) <= 0.05
        ]
        if not near:
            return False
        free.remove(min(near, key=lambda i: float(np.abs(b.boxes[i] - box).max())))
    return True


def _timed(lookup: Callable[..., torch.Tensor], clock: _Clock) -> Callable[..., torch.Tensor]:
    """The same lookup, its time booked as ``fuse``."""

    def timed(*args: Any) -> torch.Tensor:
        with clock("fuse"):
            return lookup(*args)

    return timed


def _stages(clock: _Clock) -> Row:
    """CPU milliseconds of an update since the last call."""
    spent = clock.take()
    return {
        "encode": spent["encode"],
        "fuse": spent["fuse"],
        "network": spent["predict"] - spent["fuse"],
        "geometry": spent["integrate"],
    }


class _Clock:
    """CPU milliseconds by name."""

    def __init__(self) -> None:
        self._ms: dict[str, float] = defaultdict(float)
        self._running: list[tuple[str, float]] = []

    def __call__(self, name: str) -> _Clock:
        self._running.append((name, time.process_time()))
        return self

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        name, start = self._running.pop()
        self._ms[name] += (time.process_time() - start) * 1e3

    def take(self) -> dict[str, float]:
        taken, self._ms = self._ms, defaultdict(float)
        return taken


# --------------------------------------------------------------------------------------------------------------------
# laps and rates


def laps(inference: Predictor, rooms: int, count: int, times: int) -> Row:
    """CPU ms of an update (five frames fused, then one perception) by lap, at the same poses."""
    frames = frames_of(rooms, count)
    it = Perceptron(PerceptronConfig(network=NetworkOptions()), inference=inference)
    cost: list[list[float]] = []
    memory: list[float] = []
    stamp_ns = 0
    for _ in range(times):
        lap = []
        for start in range(0, count, 5):
            began = time.process_time()
            for frame in frames[start : start + 5]:
                stamp_ns += 200_000_000
                it.integrate(again(frame, stamp_ns))
            it.perceive()
            lap.append((time.process_time() - began) * 1e3)
        cost.append(lap)
        memory.append(it.statistics().memory_bytes / 1e6)
    ratio = np.array(cost[-1]) / np.array(cost[1])
    return {
        "rooms": rooms,
        "poses": count,
        "median_ms": [float(np.median(lap)) for lap in cost],
        "median_ratio_at_same_poses": float(np.median(ratio)),
        "map_mb": memory,
    }


def rates(inference: Predictor, rooms: int, count: int, seconds: float) -> Row:
    """One thread fuses at 30 Hz, one encodes keyframes, one perceives without pause, with the node's priorities."""
    frames = frames_of(rooms, count)
    it = Perceptron(PerceptronConfig(network=NetworkOptions()), inference=inference)
    for i, frame in enumerate(frames[:10]):
        it.integrate(again(frame, i + 1))
    it.perceive()
    stop, fused, late, stages = threading.Event(), [], [], defaultdict(list)
    arrived: list[float] = []

    def fuse() -> None:
        began, i = time.perf_counter(), 0
        while not stop.is_set():
            due = began + i / 30.0
            if (wait := due - time.perf_counter()) > 0:
                time.sleep(wait)
            # ten frames per pose of the tour: the camera drives slowly
            start = time.perf_counter()
            report = it.integrate(again(frames[(10 + i // 10) % count], 10**9 + i * 33_000_000), encode=False)
            fused.append((time.perf_counter() - start) * 1e3)
            arrived.append((time.perf_counter() - due) * 1e3)
            late.append(start - due)
            for name, ms in report.stage_ms.items():
                stages[f"integrate: {name}"].append(ms)
            i += 1

    def encode() -> None:
        yield_to_fusion()
        while not stop.wait(0.005):
            it.encode_keyframes()

    def perceive() -> None:
        yield_to_fusion()
        while not stop.is_set():
            start, spent = time.perf_counter(), time.thread_time()
            seen = it.perceive()
            looks.append((time.perf_counter() - start) * 1e3)
            cpu.append((time.thread_time() - spent) * 1e3)
            for name, ms in seen.stage_ms.items():
                stages[f"perceive: {name}"].append(ms)

    looks: list[float] = []
    cpu: list[float] = []
    threads = [threading.Thread(target=work) for work in (fuse, encode, perceive)]
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)  # as the node
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    elapsed = time.perf_counter() - began
    stop.set()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(before_s)
    return {
        "perception_hz": len(looks) / elapsed,
        "fusion_hz": len(fused) / elapsed,
        "integrate_ms": {"p50": float(np.percentile(fused, 50)), "p99": float(np.percentile(fused, 99))},
        "image_to_fused_ms": {"p50": float(np.percentile(arrived, 50)), "p99": float(np.percentile(arrived, 99))},
        "perceive_ms": {"p50": float(np.percentile(looks, 50)), "p99": float(np.percentile(looks, 99))},
        "perceive_cpu_ms": float(np.median(cpu)),
        "load": os.getloadavg()[0],
        "behind_schedule_s": float(max(late)),
        "stage_ms": {name: float(np.median(values)) for name, values in stages.items()},
    }


# --------------------------------------------------------------------------------------------------------------------


def network(weights: str, precision: Literal["float32", "auto"]) -> tuple[Predictor, str]:
    """Network of the named weights, else the shipped ones, else random ones."""
    if not weights and "tiny" in available():
        weights = "tiny"
    if weights:
        return load_inference(weights, options=NetworkOptions(precision=precision)), weights
    torch.manual_seed(0)
    net = PerceptionNetwork(network_config("tiny"))
    return Predictor(net, DETECTION_CLASSES, OCCUPANCY_CLASSES, scores=ScorePolicy(0.1)), "random"


def total(spent: Row, *names: str) -> float:
    return sum(spent[name] for name in names)


def show(results: Row) -> None:
    driven = [row for row in results["prefixes"] if "paper" in row]
    report.show("an update, CPU ms, one thread; first and last prefixes", [*driven[:2], *driven[-2:]])
    report.show("an update by lap, at the same poses", results["laps"])
    report.show("while one thread fuses and one perceives, wall time", results["rates"])
    report.show("goals", results["goals"])


def main() -> int:
    """Measure, print, write; exit code 1 when the two protocols give different boxes."""
    parser = report.parser(__doc__)
    parser.add_argument("--weights", default="", help="a shipped name or a file")
    parser.add_argument(
        "--precision", default=NetworkOptions.precision, choices=("float32", "auto"), help="as network.precision"
    )
    parser.add_argument("--frames", type=int, default=50, help="of the longest prefix")
    parser.add_argument("--last", type=int, default=10, help="number of last prefixes for the ratios")
    parser.add_argument("--rooms", type=int, default=4, help="of a lap")
    parser.add_argument("--poses", type=int, default=100, help="of a lap")
    parser.add_argument("--laps", type=int, default=4, help="at least 3")
    parser.add_argument("--seconds", type=float, default=15.0, help="for the rates")
    options = report.parse(parser, frames=6, last=2, rooms=1, poses=10, laps=3, seconds=2.0)
    torch.set_num_threads(1)
    inference, name = network(options.weights, options.precision)
    warm_up()
    count, compared = options.frames, options.last
    at = {*range(10, count, 10), *(end - i for end in (count, 2 * count) for i in range(compared))}
    with patch.object(predictor_module, "parallel", lambda function: function):  # two at once would slow each other
        prefixes(inference, 3, (3,))  # compiles the remaining kernels
        rows = prefixes(inference, count, at, count)

    def ratio(rows: list[Row], *names: str) -> float:
        paper, ours = (sum(total(row[who], *names) for row in rows) for who in ("paper", "ours"))
        return paper / ours

    last, standing = rows[count - compared : count], rows[-compared:]
    everything = ("encode", "fuse", "network", "geometry")
    lap = laps(inference, options.rooms, options.poses, options.laps)
    torch.set_num_threads(max(cores() - 1, 1))  # as the node
    rate = rates(inference, min(options.rooms, 2), min(options.poses, 40), options.seconds)
    results: Row = {
        "weights": name,
        "precision": options.precision,
        "frames": options.frames,
        "encode_fuse_speedup_at_50": ratio(last, "encode", "fuse"),
        "update_speedup_at_50": ratio(last, *everything),
        "standing_still_speedup": ratio(standing, *everything),
        "lap_cost_growth": lap["median_ratio_at_same_poses"] - 1.0,
        "perception_hz": rate["perception_hz"],
        "same_boxes": all(row["same_boxes"] for row in rows if "paper" in row),
        "boxes_compared": sum(row["boxes"] for row in rows if "paper" in row),
        "prefixes": rows,
        "laps": lap,
        "rates": rate,
    }
    results["goals"] = [
        report.goal("encode_fuse_speedup_at_50", results["encode_fuse_speedup_at_50"], least=20.0),
        report.goal("update_speedup_at_50", results["update_speedup_at_50"], least=5.0),
        report.goal("standing_still_speedup", results["standing_still_speedup"], least=50.0),
        report.goal("lap_cost_growth", results["lap_cost_growth"], most=0.15),
        report.goal("perception_hz", results["perception_hz"], least=2.0),
    ]
    show(results)
    report.write(options, results)
    if not results["same_boxes"]:
        report.console.print("[red]the two protocols give different boxes")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
