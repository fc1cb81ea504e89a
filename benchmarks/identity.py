"""Identity of objects that are carried about: in simulated homes, in one session and over a saved map.

    python benchmarks/identity.py                  # table, and out/bench/identity.json
    python benchmarks/identity.py --quick          # one home, short drives

A robot drives through a home, then again after a third of the portable objects were carried (within the room, to
another room, out of the home), and a third time the next day, in the saved map, in other light, after others were
carried and those that were out came back. Image features are those of the shipped network; detections are the true
boxes of visible objects with noise, missed detections and wrong names, so that the figures are those of identity and
not of detection. Homes have identical chairs.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import _report as report
import _revisits as revisits
import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.config import PerceptronConfig, ScorePolicy
from embodied_perceptron.geometry.boxes import Bounds
from embodied_perceptron.geometry.transforms import make_transform
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import Detections, EventKind, ObjectEvent, ObjectState, SceneObject
from embodied_perceptron.scene.live_map import saw_through
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame
from embodied_perceptron_training.homes.assets.mesh import rotation
from embodied_perceptron_training.homes.building.freespace import free_space
from embodied_perceptron_training.homes.building.home import Home, HomeSpec, build_home
from embodied_perceptron_training.homes.rendering.ray_renderer import RayCastRenderer
from embodied_perceptron_training.homes.sensing import measured_color, measured_depth, surface_kinds
from embodied_perceptron_training.homes.trajectories import RobotSpec, robot_trajectory

F64 = NDArray[np.float64]
SEED, ROOMS = 720_000, 2
PERCEIVE_EVERY = 2  # frames
LEAST_PIXELS = 150
FOUND_SHARE, WRONG_NAME = 0.85, 0.08
LARGEST_M, SMALLEST_M = 1.3, 0.2  # extents of the objects that count
DAY_NS = 86_400_000_000_000
SAME_S = 2.0
SCORES = ScorePolicy(0.25)


@dataclass
class Tally:
    """Counts over homes."""

    moved: int = 0
    kept: int = 0
    moved_over_map: int = 0
    kept_over_map: int = 0
    identified: int = 0
    merged: int = 0
    events: int = 0
    right_events: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    changes: int = 0
    reported_changes: int = 0
    left: int = 0
    reported_left: int = 0
    seen: int = 0
    seen_right: int = 0
    update_ms: list[float] = field(default_factory=list)
    bytes_of_object: list[int] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """Shares and medians."""

        def share(part: int, whole: int) -> float | None:
            return part / whole if whole else None

        return {
            "moved": self.moved,
            "kept_share": share(self.kept, self.moved),
            "moved_over_map": self.moved_over_map,
            "kept_over_map_share": share(self.kept_over_map, self.moved_over_map),
            "identified": self.identified,
            "merged_share": share(self.merged, self.identified),
            "events": self.events,
            "event_precision": share(self.right_events, self.events),
            **{f"wrong_{kind}": count for kind, count in self.wrong.items()},
            "changes": self.changes,
            "event_recall": share(self.reported_changes, self.changes),
            "left": self.left,
            "left_reported": self.reported_left,
            "last_seen_within_2s": share(self.seen_right, self.seen),
            "update_ms": float(np.median(self.update_ms)) if self.update_ms else None,
            "object_bytes": float(np.mean(self.bytes_of_object)) if self.bytes_of_object else None,
            "object_bytes_most": max(self.bytes_of_object, default=None),
        }


def carry(home: Home, away: set[int], share: float, rng: np.random.Generator) -> tuple[Home, set[int], set[int]]:
    """Carry some objects that stand on the floor, with what is on them, to another place or out, and bring back what
    was away. Returns the home, ids of carried objects and of those that are out."""
    objects, carried, out = list(home.objects), set[int](), set[int]()
    cells, space = free_space(home).cells(), free_space(home)
    for thing in home.objects:
        size = thing.box9()[3:6]
        portable = thing.mounted == "floor" and np.hypot(*size[:2]) <= LARGEST_M
        if not portable or (thing.id not in away and rng.random() > share):
            continue
        if thing.id not in away and rng.random() < 0.25:
            out.add(thing.id)
            continue
        for _ in range(40):
            xy = space.center_of(cells[int(rng.integers(len(cells)))][None])[0]
            if thing.id in away or np.linalg.norm(xy - thing.box9()[:2]) > 0.8:
                break
        turn = make_transform(rotation("z", float(rng.uniform(-np.pi, np.pi))), np.zeros(3))
        center = thing.box9()[:3]
        T = make_transform(np.eye(3), np.array([*xy, 0.0])) @ turn @ make_transform(np.eye(3), [*-center[:2], 0.0])
        for other in home.objects:
            if other.id == thing.id or revisits._carrier(home, other) == thing.id:
                objects[other.id] = replace(other, T_world_object=T @ other.T_world_object)
        carried.add(thing.id)
    out |= {o.id for o in home.objects if revisits._carrier(home, o) in out}
    return replace(home, objects=tuple(objects)), carried, out


def frames_of(home: Home, out: set[int], count: int, seed: int, first_ns: int, light: float) -> list[Any]:
    """(frame, ids -> visible pixels) along a drive."""
    far = make_transform(np.eye(3), np.array([0.0, 0.0, -50.0]))
    shown = replace(home, objects=tuple(
        replace(o, T_world_object=far @ o.T_world_object) if o.id in out else o for o in home.objects
    ))  # fmt: skip
    scene = shown.render_scene()
    scene = replace(scene, ambient=tuple(light * c for c in scene.ambient))
    sensor, kinds = revisits._sensor(home.seed), surface_kinds(shown, scene)
    renderer, spec = RayCastRenderer(scene), RobotSpec()
    poses = robot_trajectory(free_space(shown), count, revisits.RATE_HZ, spec, seed) @ spec.T_base_camera
    frames = []
    for index, T in enumerate(poses):
        rng = np.random.default_rng([seed, 43, index])
        view = renderer.render(sensor.intrinsics, T, 1.0, seed + index)
        depth_m = measured_depth(view, kinds, sensor, rng)
        depth_m = np.where(np.isfinite(depth_m), depth_m, 0.0).astype(np.float32)
        stamp_ns = first_ns + int(index * 1e9 / revisits.RATE_HZ)
        color = measured_color(view, sensor, rng)
        ids, pixels = np.unique(view.instance, return_counts=True)
        seen = {int(i) - 1: int(n) for i, n in zip(ids, pixels, strict=True) if i > 0}
        frames.append((PosedFrame(RgbdFrame(stamp_ns, "camera", color, depth_m, sensor.intrinsics), T), seen))
    return frames


def detections(home: Home, seen: dict[int, int], labels: Sequence[str], rng: np.random.Generator) -> Detections:
    """True boxes of visible objects with noise; some are missed, and some have a wrong name."""
    boxes, scores, names = [], [], []
    for number, pixels in seen.items():
        box = home.objects[number].box9()
        if pixels < LEAST_PIXELS or not counts(box) or rng.random() > FOUND_SHARE:
            continue
        noisy = box + np.array([*rng.normal(0.0, 0.02, 3), *(box[3:6] * rng.normal(0.0, 0.05, 3)), 0.0, 0.0, 0.0])
        boxes.append(noisy)
        wrong = rng.random() < WRONG_NAME
        names.append(str(rng.choice(labels)) if wrong else home.objects[number].label)
        scores.append(float(np.clip(rng.normal(0.6, 0.1), 0.3, 0.95)))
    return Detections(np.array(boxes).reshape(-1, 9), np.array(scores), tuple(names))


def counts(box: F64) -> bool:
    """Whether an object is neither tiny nor furniture that nobody carries."""
    return float(box[3:6].max()) >= SMALLEST_M


class Session:
    """A robot with a map, and what it should know."""

    def __init__(self, perceptron: Perceptron) -> None:
        self.perceptron = perceptron
        self.last_seen_ns: dict[int, int] = {}

    def drive(self, home: Home, frames: list[Any], rng: np.random.Generator, tally: Tally) -> list[ObjectEvent]:
        """Perceive along a drive; returns the events."""
        events: list[ObjectEvent] = []
        labels = sorted({o.label for o in home.objects})
        for index, (posed, seen) in enumerate(frames):
            self.perceptron.integrate(posed)
            for number, pixels in seen.items():
                if pixels >= LEAST_PIXELS:
                    self.last_seen_ns[number] = posed.frame.stamp_ns
            if index % PERCEIVE_EVERY:
                continue
            with self.perceptron.map.perceiving() as (scene, _):
                objects = self.perceptron.map._objects
                objects.image = self.perceptron.map._image_sampler(scene.volume.keyframes)
                objects.saw_through = partial(saw_through, scene.volume.keyframes)
                found, began = detections(home, seen, labels, rng), time.perf_counter()
                at = posed.T_world_camera[:3, 3], 3.5
                events += objects.update(found, scene.voxels, posed.frame.stamp_ns, *at, None, SCORES)
                tally.update_ms.append(1e3 * (time.perf_counter() - began))
        return events

    def objects(self) -> tuple[SceneObject, ...]:
        """All objects, gone ones too."""
        return self.perceptron.map._objects.objects((*ObjectState.ALL, ObjectState.GONE))

    def known(self, home: Home, out: set[int]) -> dict[int, SceneObject]:
        """True object -> confirmed object at its place."""
        there = [o for o in home.objects if o.id not in out and counts(o.box9())]
        mine = [o for o in self.objects() if o.state == ObjectState.CONFIRMED]
        if not there or not mine:
            return {}
        iou = Bounds.of(np.stack([o.box9() for o in there])).iou(Bounds.of(np.stack([o.box for o in mine])))
        best = iou.argmax(axis=1)
        return {o.id: mine[int(best[k])] for k, o in enumerate(there) if iou[k, best[k]] >= 0.3}


def one_home(seed: int, frames: int, config: PerceptronConfig, folder: Path, tally: Tally) -> None:
    """Three rounds."""
    rng = np.random.default_rng([seed, 5])
    home = build_home(seed, HomeSpec(ROOMS, version=2))
    session, out = Session(Perceptron.from_config(config)), set[int]()
    first_ns, whose = 1_800_000_000_000_000_000, dict[int, int]()  # id -> true object
    for round_number in range(3):
        carried = set[int]()
        came_back: set[int] = set()
        if round_number:
            before_out = set(out)
            home, carried, out = carry(home, out, revisits.CARRIED_SHARE, rng)
            came_back = before_out - out
        if round_number == 2:
            path = folder / f"{seed}.safetensors"
            session.perceptron.save(path)
            perceptron = Perceptron.from_config(config)
            perceptron.load(path)
            session = Session(perceptron)
            first_ns += DAY_NS
        light = (1.0, 1.0, 0.6)[round_number]
        before = dict(whose)
        made = frames_of(home, out, frames, seed + 1_000_000 * round_number, first_ns, light)
        events = session.drive(home, made, rng, tally)
        first_ns = made[-1][0].frame.stamp_ns + 60_000_000_000
        now = session.known(home, out)
        ids_of = {o: i for i, o in before.items()}
        for number, thing in now.items():
            earlier = before.get(thing.id)
            if earlier is not None:
                tally.identified += 1
                tally.merged += earlier != number
            if (number in carried or number in came_back) and number in ids_of:
                over = round_number == 2
                tally.moved_over_map += over
                tally.kept_over_map += over and thing.id == ids_of[number]
                tally.moved += not over
                tally.kept += not over and thing.id == ids_of[number]
            true_ns = session.last_seen_ns.get(number, 0)
            if true_ns:
                tally.seen += 1
                tally.seen_right += abs(thing.last_seen_ns - true_ns) <= SAME_S * 1e9
        if round_number:
            judge(events, before, now, carried | came_back, out, ids_of, tally)
        for number, thing in now.items():
            whose.setdefault(thing.id, number)
    tally.bytes_of_object += entries_of(session)


def judge(
    events: list[ObjectEvent], before: dict[int, int], now: dict[int, SceneObject], carried: set[int], out: set[int],
    ids_of: dict[int, int], tally: Tally,
) -> None:  # fmt: skip
    """Compare events with what was carried."""
    reported: set[tuple[str, int]] = set()
    at = {thing.id: number for number, thing in now.items()}
    for event in events:
        if event.kind not in (EventKind.MOVED, EventKind.LEFT, EventKind.RETURNED, EventKind.APPEARED):
            continue
        number = before.get(event.id, at.get(event.id, -1))
        tally.events += 1
        if event.kind == EventKind.LEFT:
            right = number in carried or number in out
        elif event.kind == EventKind.APPEARED:
            right = at.get(event.id, -1) in carried
        else:
            right = number in carried and at.get(event.id, number) == number
        tally.right_events += right
        tally.wrong[event.kind] += not right
        reported.add((event.kind, number))
    for number in carried & set(now) & set(ids_of):
        tally.changes += 1
        tally.reported_changes += bool({(EventKind.MOVED, number), (EventKind.RETURNED, number)} & reported)
    for number in out & set(ids_of):
        tally.changes += 1
        tally.left += 1
        is_reported = (EventKind.LEFT, number) in reported
        tally.reported_changes += is_reported
        tally.reported_left += is_reported


def entries_of(session: Session) -> list[int]:
    """Bytes of each object in a map file."""
    data = json.loads(session.perceptron.map._objects.to_json())
    return [len(json.dumps(entry)) for entry in data["objects"]]


def main() -> int:
    parser = report.parser(__doc__)
    parser.add_argument("--homes", type=int, default=6)
    parser.add_argument("--first", type=int, default=0, help="number of the first home")
    parser.add_argument("--frames", type=int, default=150, help="of each drive")
    options = report.parse(parser, homes=1, frames=24)
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.first, options.first + options.homes):
            one_home(SEED + number, options.frames, PerceptronConfig(), Path(folder), tally)
            report.console.print(number, tally.figures(), highlight=False)
    figures = tally.figures()
    goals = [
        report.goal("moved things keep their ids, in one session", figures["kept_share"], least=0.8),
        report.goal("moved things keep their ids, over a saved map", figures["kept_over_map_share"], least=0.75),
        report.goal("two things merged into one id", figures["merged_share"], most=0.01),
        report.goal("events, precision", figures["event_precision"], least=0.9),
        report.goal("events, recall", figures["event_recall"], least=0.8),
        report.goal("last seen within 2 s", figures["last_seen_within_2s"], least=0.95),
        report.goal("memory of an object, bytes", figures["object_bytes_most"], most=6000),
    ]
    report.show("identity", figures)
    report.show("goals", goals)
    report.write(options, {**figures, "goals": goals})
    return 0


if __name__ == "__main__":
    sys.exit(main())
