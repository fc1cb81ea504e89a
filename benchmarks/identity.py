"""Identity of objects that are carried about: in simulated homes, in one session and over a saved map.

    python benchmarks/identity.py                  # table, and out/bench/identity.json
    python benchmarks/identity.py --quick          # one home, short drives
    python benchmarks/identity.py --fit            # weights of the match, in scene/identity.json

A robot drives through a home, then again after a third of the portable objects were carried (within the room, to
another room, out of the home), and a third time the next day, in the saved map, in other light, after others were
carried and those that were out came back. Image features are those of the shipped network; detections are as those of a
network that reads the map: the true boxes of the objects that the map shows, what was carried away included until its
voxels are gone, with noise, missed detections and wrong names. So the figures are those of identity and not of
detection. Homes have identical chairs. Drives are rendered once and kept between runs.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import _report as report
import numpy as np
from _revisits import F64, Drive, drive, drive_sensor, kept
from numpy.typing import NDArray
from scipy.optimize import minimize

from embodied_perceptron.config import PerceptronConfig, ScorePolicy
from embodied_perceptron.geometry.boxes import Bounds
from embodied_perceptron.geometry.manhattan import Region
from embodied_perceptron.geometry.suppression import thickened
from embodied_perceptron.geometry.transforms import invert_transform, make_transform, project, transform_points
from embodied_perceptron.mapping.voxel_counts import count_voxels_explained, without_bottom
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import (
    Detections,
    EventKind,
    ObjectEvent,
    ObjectState,
    SceneObject,
    VoxelSnapshot,
)
from embodied_perceptron.scene.identity import (
    FEATURE_NAMES,
    LIKE,
    USUAL,
    WEIGHTS,
    WEIGHTS_FILE,
    Identified,
    differences,
)
from embodied_perceptron.scene.live_map import seen_through
from embodied_perceptron_training.homes.assets.objects import PlacedObject
from embodied_perceptron_training.homes.building.home import Home, HomeSpec, build_home
from embodied_perceptron_training.homes.carrying import carry

SEED, ROOMS = 720_000, 2
PERCEIVE_EVERY = 2  # frames
LEAST_PIXELS, LEAST_VOXELS = 40, 30
WINDOW_M = 6.4
FOUND_SHARE, WRONG_NAME, OUT_SHARE = 0.85, 0.08, 0.25
SMALLEST_M, FLAT_M = 0.2, 0.05  # largest and smallest extent of the objects that count
DAY_NS = 86_400_000_000_000
SAME_S = 2.0
SCORES, RIDGE = ScorePolicy(0.25), 0.5
_HAPPENED = EventKind.MOVED, EventKind.LEFT, EventKind.RETURNED, EventKind.APPEARED


@dataclass
class Tally:
    """Counts over homes: of ``(what was right, what there was)`` by name, and of wrong events by kind."""

    right: Counter[str] = field(default_factory=Counter)
    of: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    update_ms: list[float] = field(default_factory=list)
    object_bytes: list[int] = field(default_factory=list)

    def add(self, name: str, right: bool) -> None:
        """Count one case."""
        self.of[name] += 1
        self.right[name] += right

    def figures(self) -> dict[str, Any]:
        """Shares and medians."""
        shares = {f"{name}_share": self.right[name] / count for name, count in self.of.items()}
        return {
            **dict(self.of),
            **shares,
            **{f"wrong_{kind}": count for kind, count in self.wrong.items()},
            "update_ms": float(np.median(self.update_ms)),
            "object_bytes": float(np.mean(self.object_bytes)),
            "object_bytes_most": max(self.object_bytes),
        }


def carried_home(home: Home, number: int, out: frozenset[int]) -> tuple[Home, set[int], frozenset[int]]:
    """The home in a round, what was carried before it, and what is out of the home."""
    if number == 0:
        return home, set(), out
    return carry(home, np.random.default_rng([home.seed, 5, number]), out, OUT_SHARE)


def kept_drive(home: Home, number: int, out: frozenset[int], frames: int) -> Drive:
    """The drive of a round through a home from which some objects are out."""
    far = make_transform(np.eye(3), np.array([0.0, 0.0, -50.0]))
    objects = [replace(o, T_world_object=far @ o.T_world_object) if o.id in out else o for o in home.objects]
    shown = replace(home, objects=tuple(objects))

    def make() -> Drive:
        scene = shown.render_scene()
        scene = replace(scene, ambient=tuple((1.0, 1.0, 0.6)[number] * c for c in scene.ambient))
        return drive(shown, scene, drive_sensor(home.seed), frames, home.seed + 1_000_000 * number, np.eye(4))

    made = kept(f"identity_{home.seed}_{ROOMS}x{frames}_{number}", make)
    return replace(made, T_odom_camera=made.T_home_camera)


class MapReader:
    """Detections of the objects of a home that the map shows."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._placed: dict[tuple[int, bytes], tuple[F64, str]] = {}  # object and place -> box and name
        self._found = set[tuple[int, bytes]]()
        self._most = Counter[tuple[int, bytes]]()  # voxels that the map showed at each place
        self._whole = Counter[int]()  # the same of each object

    def detections(self, home: Home, out: frozenset[int], region: Region, voxels: VoxelSnapshot) -> Detections:
        """Detections in a region."""
        here = [o for o in home.objects if o.id not in out and counts(o)]
        now = {(o.id, np.round(o.box9(), 3).tobytes()): n for n, o in enumerate(here)}
        self._placed |= {key: (here[n].box9(), here[n].label) for key, n in now.items()}
        keys = [key for key, (box, _) in self._placed.items() if region.contains(box[None, :3])[0]]
        if not keys:
            return Detections(np.zeros((0, 9)), np.zeros(0), ())
        boxes, standing = (np.stack(rows) for rows in ([self._placed[k][0] for k in keys], [o.box9() for o in here]))
        others: list[list[int]] = [[] if key in now else list(range(len(here))) for key in keys]
        inside, _, _, taken = count_voxels_explained(voxels, without_bottom(boxes), 0.0, others, standing)
        labels = sorted({label for _, label in self._placed.values()})
        rows, scores, names = [], [], []
        for key, box, left in zip(keys, boxes, (inside - taken).tolist(), strict=True):
            self._most[key], self._whole[key[0]] = max(self._most[key], left), max(self._whole[key[0]], left)
            least = self._most[key] if key in now else max(self._most[key], self._whole[key[0]])
            was_seen = key in now or key in self._found
            if not was_seen or left < max(LEAST_VOXELS, 0.5 * least) or self._rng.random() > FOUND_SHARE:
                continue
            self._found.add(key)
            noise = self._rng.normal(0.0, 1.0, 6) * [*np.minimum(0.02, 0.1 * box[3:6]), *(0.05 * box[3:6])]
            rows.append(box + np.append(noise, np.zeros(3)))
            wrong = self._rng.random() < WRONG_NAME
            names.append(str(self._rng.choice(labels)) if wrong else self._placed[key][1])
            scores.append(float(np.clip(self._rng.normal(0.6, 0.1), 0.3, 0.95)))
        return Detections(np.array(rows).reshape(-1, 9), np.array(scores), tuple(names))


def counts(thing: PlacedObject) -> bool:
    """Whether an object is movable, and large enough to count."""
    size = thing.box9()[3:6]
    return thing.mounted in ("floor", "object") and size.max() >= SMALLEST_M and size.min() >= FLAT_M


def seen_empty(drive: Drive, place_m: F64) -> bool:
    """Whether a camera looked through a (3,) place at least three times."""
    through = 0
    for T, depth_mm in zip(drive.T_home_camera, drive.depth_mm, strict=True):
        at = transform_points(invert_transform(T), place_m[None])
        (u, v), z = project(at, drive.intrinsics)[0][0], at[0, 2]
        height, width = depth_mm.shape
        if 0.3 < z < 4.0 and 0 <= u < width and 0 <= v < height:
            through += depth_mm[int(v), int(u)] > 1000 * (z + 0.3)
    return through >= 3


class Session:
    """A robot with a map, and what it should know."""

    def __init__(self, perceptron: Perceptron, reader: MapReader) -> None:
        self.perceptron, self.reader = perceptron, reader
        self.last_seen_ns: dict[int, int] = {}

    def follow(self, home: Home, out: frozenset[int], seen: Drive, first_ns: int, tally: Tally) -> list[ObjectEvent]:
        """Perceive along a drive; returns the events."""
        events: list[ObjectEvent] = []
        middles, range_m = np.stack([o.box9()[:3] for o in home.objects]), self.perceptron.config.volume.max_range_m
        for index, pixels in enumerate(seen.pixels):
            posed = seen.frame(index, first_ns)
            stamp_ns = posed.frame.stamp_ns
            self.perceptron.integrate(posed)
            is_near = np.linalg.norm(middles - posed.T_world_camera[:3, 3], axis=1) <= range_m
            shown = np.flatnonzero((pixels >= LEAST_PIXELS) & is_near)
            self.last_seen_ns |= dict.fromkeys(shown.tolist(), stamp_ns)
            if index % PERCEIVE_EVERY:
                continue
            with self.perceptron.map.perceiving() as (scene, _):
                objects = self.perceptron.map._objects
                objects.image = self.perceptron.map._image_sampler(scene.volume.keyframes)
                objects.seen_through = partial(seen_through, scene.volume.keyframes)
                at, ahead = posed.T_world_camera[:3, 3], posed.T_world_camera[:3, 2]
                middle, half = at + 0.25 * WINDOW_M * ahead, np.array([WINDOW_M / 2, WINDOW_M / 2, np.inf])
                region = Region(middle - half, middle + half)
                found, began = self.reader.detections(home, out, region, scene.voxels), time.process_time()
                reach_m = self.perceptron.config.volume.radius_m
                events += objects.update(found, scene.voxels, stamp_ns, at, reach_m, region, SCORES)
                tally.update_ms.append(1e3 * (time.process_time() - began))
        return events

    def known(self, home: Home, out: frozenset[int]) -> dict[int, SceneObject]:
        """True object -> confirmed object at its place."""
        there = [o for o in home.objects if o.id not in out and counts(o)]
        mine = self.perceptron.map._objects.objects((ObjectState.CONFIRMED,))
        if not there or not mine:
            return {}
        true, known = (
            Bounds.of(thickened(np.stack(boxes))) for boxes in ([o.box9() for o in there], [o.box for o in mine])
        )
        iou = true.iou(known)
        best = iou.argmax(axis=1)
        return {o.id: mine[int(best[k])] for k, o in enumerate(there) if iou[k, best[k]] >= 0.3}


def one_home(seed: int, frames: int, config: PerceptronConfig, folder: Path, tally: Tally) -> None:
    """Three rounds."""
    home, out = build_home(seed, HomeSpec(ROOMS, version=2)), frozenset[int]()
    reader = MapReader(np.random.default_rng([seed, 6]))
    session = Session(Perceptron.from_config(config), reader)
    first_ns, whose = 1_800_000_000_000_000_000, dict[int, int]()  # id -> true object
    for number in range(3):
        before = home
        home, moved, out = carried_home(home, number, out)
        if number == 2:
            path = folder / f"{seed}.safetensors"
            session.perceptron.save(path)
            session = Session(Perceptron.from_config(config), reader)
            session.perceptron.load(path)
            first_ns += DAY_NS
        seen = kept_drive(home, number, out, frames)
        events = session.follow(home, out, seen, first_ns, tally)
        first_ns += int(frames * 1e9) + 60_000_000_000
        now = session.known(home, out)
        empty = {o.id for o in before.objects if o.id in out and seen_empty(seen, o.box9()[:3])}
        judge(number, events, whose, now, Carried(moved, out, empty), tally)
        for true, thing in now.items():
            true_ns = session.last_seen_ns.get(true)
            if true_ns is not None:
                tally.add("last_seen", abs(thing.last_seen_ns - true_ns) <= SAME_S * 1e9)
            whose.setdefault(thing.id, true)
    data = json.loads(session.perceptron.map._objects.to_json())
    tally.object_bytes += [len(json.dumps(entry)) for entry in data["objects"]]


@dataclass(frozen=True)
class Carried:
    """Ids of objects at another place, of those out of the home, and of the latter those whose place was seen empty."""

    moved: set[int]
    out: frozenset[int]
    empty: set[int]


def judge(
    number: int,
    events: list[ObjectEvent],
    whose: dict[int, int],
    now: dict[int, SceneObject],
    carried: Carried,
    tally: Tally,
) -> None:
    """Compare ids and events of a round with what was carried before it."""
    ids_of, at = {true: i for i, true in whose.items()}, {thing.id: true for true, thing in now.items()}
    for true, thing in now.items():
        if thing.id in whose:
            tally.add("not_merged", whose[thing.id] == true)
        if true in carried.moved and true in ids_of:
            tally.add("kept_over_map" if number == 2 else "kept", thing.id == ids_of[true])
    if not number:
        return
    former = {event.formerly: event.id for event in events}
    reported: set[tuple[str, int]] = set()
    for event in events:
        if event.kind in _HAPPENED:
            number_now = former.get(event.id, event.id)
            true = whose.get(number_now, at.get(number_now, -1))
            right = true in carried.moved or (event.kind == EventKind.LEFT and true in carried.out)
            right = right and (event.kind == EventKind.LEFT or at.get(number_now, true) == true)
            tally.add("event_right", right)
            tally.wrong[event.kind] += not right
            reported.add((event.kind, true))
    for true in carried.moved & set(now) & set(ids_of):
        tally.add("change_reported", bool({(EventKind.MOVED, true), (EventKind.RETURNED, true)} & reported))
    for true in carried.empty & set(ids_of):
        tally.add("change_reported", (EventKind.LEFT, true) in reported)
        tally.add("left_reported", (EventKind.LEFT, true) in reported)


# --------------------------------------------------------------------------------------------------------------------


def pairs_of(seed: int, frames: int, config: PerceptronConfig) -> tuple[F64, NDArray[np.bool_]]:
    """Differences of pairs of objects that were seen in two rounds, each with a map of its own, and which pairs are one
    object."""
    home, out = build_home(seed, HomeSpec(ROOMS, version=2)), frozenset[int]()
    reader = MapReader(np.random.default_rng(seed))
    seen: list[tuple[int, int, Identified]] = []
    for number in range(3):
        home, _, out = carried_home(home, number, out)
        session = Session(Perceptron.from_config(config), reader)
        session.follow(home, out, kept_drive(home, number, out, frames), 1, Tally())
        tracks = session.perceptron.map._objects._tracks
        seen += [(number, true, tracks[thing.id].as_identified()) for true, thing in session.known(home, out).items()]
    views = np.concatenate([a.appearance.views for _, _, a in seen]).astype(np.float32).mean(axis=0)
    pairs = [(a, b, i == j) for (m, i, a), (n, j, b) in itertools.combinations(seen, 2) if m != n]
    table = np.array([differences(a, b, views) for a, b, _ in pairs])
    same = np.array([is_same for *_, is_same in pairs])
    like = same | (table[:, FEATURE_NAMES.index("extent")] < LIKE)
    return np.where(np.isnan(table), USUAL, table)[like], same[like]


def logistic(x: F64, same: NDArray[np.bool_]) -> F64:
    """A constant and a weight of at most 0 per column; pairs of one object and of two weigh the same together."""
    z = np.concatenate([np.ones((len(x), 1)), x], axis=1)
    sign, weight = np.where(same, 1.0, -1.0), np.where(same, 0.5 / same.sum(), 0.5 / (~same).sum()) * len(x)

    def loss(w: F64) -> tuple[float, F64]:
        margin = sign * (z @ w)
        gradient = -z.T @ (weight * sign / (1.0 + np.exp(margin))) + 2.0 * RIDGE * np.append(0.0, w[1:])
        return float(weight @ np.logaddexp(0.0, -margin) + RIDGE * (w[1:] ** 2).sum()), gradient

    bounds = [(None, None), *[(None, 0.0)] * x.shape[1]]
    return np.asarray(minimize(loss, np.zeros(z.shape[1]), jac=True, method="L-BFGS-B", bounds=bounds).x)


def fit(first: int, homes: int, frames: int) -> None:
    """Fit the weights of the match on homes, each validated by a fit without it, and write them."""
    tables = [pairs_of(SEED + number, frames, PerceptronConfig()) for number in range(first, first + homes)]
    rows = []
    for k, (x, same) in enumerate(tables):
        others = [table for n, table in enumerate(tables) if n != k] or tables
        w = logistic(np.concatenate([a for a, _ in others]), np.concatenate([b for _, b in others]))
        sure = w[0] + x @ w[1:] >= np.log(WEIGHTS.least / (1.0 - WEIGHTS.least))
        counts_of = {"one": int(same.sum()), "two": int((~same).sum())}
        rows.append({"home": first + k, **counts_of, "one_sure": sure[same].mean(), "two_sure": sure[~same].mean()})
    report.show("pairs of one and of two objects, by weights fitted to the other homes", rows)
    x, same = (np.concatenate([table[k] for table in tables]) for k in (0, 1))
    w = dict(zip(("bias", *FEATURE_NAMES), logistic(x, same).round(2).tolist(), strict=True))
    command = f"python benchmarks/identity.py --fit --first {first} --homes {homes}"
    text = json.dumps({"command": command, "pairs": [int(same.sum()), int((~same).sum())], "weights": w}, indent=1)
    WEIGHTS_FILE.write_text(text + "\n", encoding="utf-8")
    report.console.print(f"wrote {WEIGHTS_FILE}: {w}", highlight=False)


def main() -> int:
    parser = report.parser(__doc__)
    parser.add_argument("--homes", type=int, default=6)
    parser.add_argument("--first", type=int, default=0, help="number of the first home")
    parser.add_argument("--frames", type=int, default=150, help="of each drive")
    parser.add_argument("--fit", action="store_true", help="fit the weights of the match on these homes instead")
    options = report.parse(parser, homes=1, frames=24)
    if options.fit:
        fit(options.first, options.homes, options.frames)
        return 0
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.first, options.first + options.homes):
            one_home(SEED + number, options.frames, PerceptronConfig(), Path(folder), tally)
            report.console.print(number, tally.figures(), highlight=False)
    figures = tally.figures()
    limits = {"kept": 0.8, "kept_over_map": 0.75, "not_merged": 0.99, "event_right": 0.9, "change_reported": 0.8}
    limits |= {"last_seen": 0.95, "left_reported": 1.0}
    goals = [report.goal(name.replace("_", " "), figures.get(f"{name}_share"), least=v) for name, v in limits.items()]
    goals.append(report.goal("memory of an object, bytes", figures["object_bytes_most"], most=6000))
    report.show("identity", figures)
    report.show("goals", goals)
    report.write(options, {**figures, "goals": goals})
    return 0


if __name__ == "__main__":
    sys.exit(main())
