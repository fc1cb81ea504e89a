"""A day of driving in minutes: the online algorithm without ROS, one frame per second of the robot's day.

    python benchmarks/day.py                       # the first hour: table, and out/bench/day.json
    python benchmarks/day.py --frames 86400        # the whole day

A robot drives round a furnished room. Every tenth frame is perceived and followed by a query. Every ten minutes a piece
of furniture moves, every quarter of an hour all keyframes are corrected by two centimetres (there and back), every hour
the map is saved, and every fourth hour loaded again. Objects that stay must keep their ids; the moved object must be
found at its new place and nowhere else; memory and latency must not grow. Slopes are those of a straight line through
the medians of ten minutes each, without the first tenth of the run, with their 95 % interval. There is no network.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import _report as report
import numpy as np
from numpy.typing import NDArray

import embodied_perceptron  # noqa: F401  (sets the OpenMP waiting policy, before torch loads)

# isort: split
from scipy import stats

from embodied_perceptron.config import KeyframeConfig, PerceptronConfig, VolumeConfig
from embodied_perceptron.geometry.box_rays import upright_camera, view_boxes
from embodied_perceptron.geometry.transforms import F64, Intrinsics, make_transform
from embodied_perceptron.mapping.volume import warm_up
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import GroundingStatus
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame

K = Intrinsics(34.0, 34.0, 31.5, 23.5, 64, 48)
S = 1_000_000_000
PERCEIVE_EVERY, WINDOW_S, MOVE_EVERY_S, CORRECT_EVERY_S, SAVE_EVERY_S = 10, 600, 600, 900, 3600
POSES = 180  # of a round
SHIFT_M = 0.02
ROOM = (np.array([-2.6, -2.2, 0.0]), np.array([2.6, 2.2, 2.4]))
# low and high corners of furniture that stays
STAYING = (
    ((1.7, -0.5, 0.0), (2.3, 0.5, 0.75)),
    ((-2.3, 0.9, 0.0), (-1.6, 1.7, 0.55)),
    ((-0.4, 1.5, 0.0), (0.3, 2.0, 1.1)),
)
CARRIED_SIZE = (0.5, 0.5, 0.9)
PLACES = ((-1.9, -1.5), (0.2, -1.6), (1.4, 1.5), (-0.9, -1.6))  # centres on the floor of the furniture that moves
MEMORY_LIMIT_MIB_PER_DAY = 50.0
LATENCY_LIMIT = 0.10  # of the median, over the run


def furniture(place: int) -> list[F64]:
    """(2, 3) corners of every piece, the moving one last."""
    w, d, h = CARRIED_SIZE
    x, y = PLACES[place]
    carried = ((x - w / 2, y - d / 2, 0.0), (x + w / 2, y + d / 2, h))
    return [np.array(piece) for piece in (*STAYING, carried)]


def drive() -> list[F64]:
    """Camera poses of one round, looking outwards and a little down."""
    poses = []
    for i in range(POSES):
        angle = 2 * np.pi * i / POSES
        eye = np.array([-0.5 * np.cos(angle), -0.4 * np.sin(angle), 1.3])
        poses.append(upright_camera(eye, angle, np.arctan(0.35)))
    return poses


def photograph(T: F64, pieces: Sequence[F64]) -> tuple[Any, NDArray[np.float32]]:
    """Colour and depth of the room from ``T``; noise grows with the square of depth, one pixel in fifty is missing."""
    depth, points, _ = view_boxes(T, K, pieces, ROOM)
    rng = np.random.default_rng(int(1e6 * abs(T[0, 3] + 3 * T[1, 3])))
    depth = depth + 0.0015 * depth**2 * rng.normal(size=depth.shape)
    depth[rng.random(depth.shape) < 0.02] = 0.0
    color = (127 + 120 * np.sin(points * [3.1, 4.3, 5.7])).astype(np.uint8)
    return color, depth.astype(np.float32)


class World:
    """Images by second of the day; each place and layout is rendered once."""

    def __init__(self) -> None:
        self._poses = drive()
        self._pictures: dict[tuple[int, int], tuple[Any, NDArray[np.float32]]] = {}

    @staticmethod
    def place(second: int) -> int:
        """Place of the moving piece."""
        return second // MOVE_EVERY_S % len(PLACES)

    @staticmethod
    def shift_m(second: int) -> float:
        """Offset of the SLAM system's frame along x, in metres."""
        return SHIFT_M * (second // CORRECT_EVERY_S % 2)

    def frame(self, second: int) -> PosedFrame:
        index, place = second % POSES, self.place(second)
        if (index, place) not in self._pictures:
            self._pictures[index, place] = photograph(self._poses[index], furniture(place))
        T = self._poses[index].copy()
        T[0, 3] += self.shift_m(second)
        return PosedFrame(RgbdFrame((second + 1) * S, "front", *self._pictures[index, place], K), T)


@dataclass
class Window:
    """Figures of ten minutes.

    Attributes:
        integrate_ms, perceive_ms, query_ms: medians.
        staying_found, staying_kept: fixed pieces found at the end; of those, with their first id.
        carried_found: the moving piece was found at its place; ghosts: confirmed objects at its earlier places.
    """

    end_s: int
    memory_mib: float
    integrate_ms: float
    perceive_ms: float
    query_ms: float
    objects: int
    staying_found: int
    staying_kept: int
    carried_found: bool
    ghosts: int


@dataclass
class Day:
    """State of a run."""

    windows: list[Window] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)
    fused: int = 0
    not_fused: int = 0
    saves: int = 0
    loads: int = 0
    corrections: int = 0
    queries: int = 0
    seconds: float = 0.0


def object_at(objects: Sequence[Any], low: F64, high: F64) -> int | None:
    """Id of the object with the place and about the size of a piece of furniture."""
    for item in objects:
        center, size = item.box[:3], np.sort(item.box[3:5])
        over = (center[:2] > low[:2]).all() and (center[:2] < high[:2]).all()
        if over and (size < 2.0 * np.sort((high - low)[:2])).all():
            return int(item.id)
    return None


def live_through(frames: int, folder: Path) -> Iterator[Day]:
    """Yield the state after every ten minutes of the day."""
    config = PerceptronConfig(
        volume=VolumeConfig(voxel_size_m=0.06, max_blocks=6000),
        keyframes=KeyframeConfig(max_count=40),
    )
    it, world, day = Perceptron(config), World(), Day()
    first_ids: dict[int, int] = {}
    spent: dict[str, list[float]] = {"integrate": [], "perceive": [], "query": []}
    began = time.monotonic()
    for second in range(frames):
        if second and second % CORRECT_EVERY_S == 0:
            step = world.shift_m(second) - world.shift_m(second - 1)
            moved = {
                name: make_transform(np.eye(3), np.array([step, 0, 0])) @ T for name, T in it.keyframe_poses().items()
            }
            correction = it.correct_keyframes(moved)
            day.corrections += correction.corrected > 0
            if correction.unknown:
                day.unexplained.append(f"{second} s: keyframes unknown in a correction")
        if second and second % SAVE_EVERY_S == 0:
            it.save(folder / "day.map")
            day.saves += 1
            if day.saves % 4 == 0:
                it.load(folder / "day.map")
                day.loads += 1
        report = _timed(spent["integrate"], lambda: it.integrate(world.frame(second)))  # noqa: B023
        day.fused += report.fused
        day.not_fused += not report.fused
        if second % PERCEIVE_EVERY == PERCEIVE_EVERY - 1:
            _timed(spent["perceive"], lambda: it.perceive((second + 1) * S))  # noqa: B023
            answer = _timed(spent["query"], lambda: it.ground("the largest thing next to the wall"))
            day.queries += 1
            if answer.status == GroundingStatus.INVALID and "no language model" not in answer.reason:
                day.unexplained.append(f"{second} s: {answer.reason}")
        if second % WINDOW_S == WINDOW_S - 1:
            day.windows.append(_window(it, world, second, first_ids, spent))
            day.seconds = time.monotonic() - began
            for values in spent.values():
                values.clear()
            yield day


def _timed(times: list[float], call: Any) -> Any:
    start = time.process_time()
    result = call()
    times.append((time.process_time() - start) * 1e3)
    return result


def _window(
    it: Perceptron, world: World, second: int, first_ids: dict[int, int], spent: dict[str, list[float]]
) -> Window:
    shift = np.array([world.shift_m(second), 0, 0])
    objects = it.objects
    found = {i: object_at(objects, low + shift, high + shift) for i, (low, high) in enumerate(np.array(STAYING))}
    there = {i: number for i, number in found.items() if number is not None}
    for i, number in there.items():
        first_ids.setdefault(i, number)
    place = world.place(second)
    elsewhere = [furniture(other)[-1] for other in range(len(PLACES)) if other != place]
    return Window(
        end_s=second + 1,
        memory_mib=round(report.resident_bytes() / 2**20, 1),
        **{f"{name}_ms": round(float(np.median(values)), 3) for name, values in spent.items()},
        objects=len(objects),
        staying_found=len(there),
        staying_kept=sum(first_ids[i] == number for i, number in there.items()),
        carried_found=object_at(objects, *(furniture(place)[-1] + shift)) is not None,
        ghosts=sum(object_at(objects, *(piece + shift)) is not None for piece in elsewhere),
    )


def slope(end_s: Sequence[float], values: Sequence[float]) -> dict[str, float] | None:
    """Slope per day and half of its 95 % interval; None for fewer than four points."""
    if len(values) < 4:
        return None
    line = stats.linregress(end_s, values)
    half = float(stats.t.ppf(0.975, len(values) - 2) * line.stderr)
    return {"per_day": round(float(line.slope) * 86_400, 3), "plus_minus": round(half * 86_400, 3)}


def summarise(day: Day, frames: int) -> dict[str, Any]:
    """Contents of ``day.json``. Healthy: nothing unexplained, and no slope with its whole interval above its limit."""
    steady = [w for w in day.windows if w.end_s > 0.1 * frames]
    end_s = [float(w.end_s) for w in steady]
    slopes = {
        name: slope(end_s, [getattr(w, name) for w in steady])
        for name in ("memory_mib", "integrate_ms", "perceive_ms", "query_ms")
    }
    grows = []
    for name, found in slopes.items():
        if found is None:
            continue
        least = found["per_day"] - found["plus_minus"]
        typical = float(np.median([getattr(w, name) for w in steady]))
        over_run = least * frames / 86_400
        limit = (
            MEMORY_LIMIT_MIB_PER_DAY * max(frames / 86_400, 0.5) if name == "memory_mib" else LATENCY_LIMIT * typical
        )
        if over_run > limit:
            grows.append(name)
    seen = sum(w.staying_found for w in steady)
    return {
        "frames": frames,
        "wall_s": round(day.seconds, 1),
        "frames_per_s": round(frames / day.seconds, 1) if day.seconds else None,
        "fused": day.fused,
        "not_fused": day.not_fused,
        "queries": day.queries,
        "corrections": day.corrections,
        "saves": day.saves,
        "loads": day.loads,
        "slopes": slopes,
        "grows": grows,
        "staying_found": round(seen / (len(STAYING) * len(steady)), 4) if steady else None,
        "ids_kept": round(sum(w.staying_kept for w in steady) / seen, 4) if seen else None,
        "carried_found": round(sum(w.carried_found for w in steady) / len(steady), 4) if steady else None,
        "ghosts": sum(w.ghosts for w in steady),
        "unexplained": day.unexplained,
        "healthy": bool(steady) and not grows and not day.unexplained,
        "windows": [asdict(w) for w in day.windows],
    }


def main() -> int:
    """Run the day; exit code 1 when it was not healthy."""
    parser = report.parser(__doc__)
    parser.add_argument("--frames", type=int, default=3600, help="seconds of the day")
    options = report.parse(parser, frames=WINDOW_S)
    if options.frames < WINDOW_S:
        parser.error(f"--frames must be at least {WINDOW_S}")
    warm_up()
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for day in live_through(options.frames, Path(folder)):
            done = day.windows[-1].end_s
            result = summarise(day, done)
            report.write(options, result)  # an interrupted day keeps its figures
            report.console.print(f"{done / 3600:.1f} h, {result['frames_per_s']} frames/s: {day.windows[-1]}")
    report.show("a day", result)
    return 0 if result["healthy"] else 1


if __name__ == "__main__":
    sys.exit(main())
