"""Few-shot classes: AP25 of five kinds of objects that the network does not know, before and after corrections.

    python benchmarks/teach.py                    # table, and out/bench/teach.json
    python benchmarks/teach.py --things 60 --tests 12 --weights tiny --seed 830000 --data FOLDER

A user's workflow in simulated homes: homes are mapped; in some maps objects of the five families are named
(``correct_object``) until ``--things`` were named, the same number of each; ``embodied-perceptron learn --from MAP``
makes weights from these maps; both weights are scored in other homes. Homes are generated once into ``--data``.

Only objects that the network has a box for can be corrected, as in the viewer. "Old name": AP25 under the category that
the network knows for the family; other objects of that category do not count.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _report as report
import numpy as np

from embodied_perceptron.geometry.boxes import iou_of_arrays
from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron.inference.loading import load_inference
from embodied_perceptron.inference.predictor import Predictor
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.weights import weights_file
from embodied_perceptron_training.datasets.embodiedscan import EmbodiedScanDataset
from embodied_perceptron_training.evaluation.metrics.detection import SceneBoxes, detection_metrics
from embodied_perceptron_training.evaluation.runner.scene_tasks import mapped_scene, predict_everywhere
from embodied_perceptron_training.evaluation.runner.scenes import EvaluationScene, load_scene
from embodied_perceptron_training.homes.building.home import HomeSpec, build_home
from embodied_perceptron_training.homes.generate import (
    HomeSampleSpec,
    load_record,
    sample_idx,
    write_index,
    write_sample,
)
from embodied_perceptron_training.homes.noise import NoiseModel
from embodied_perceptron_training.training.few_shot import boxes_of, classifier_rows, room_parts

# kind -> its family in the generator, and its category in the network
KINDS = {
    "corner couch": ("seats.corner_couch", "couch"),
    "metal shelf": ("storage.metal_shelf", "shelf"),
    "open carton": ("storage.open_carton", "box"),
    "tall plant": ("greenery.tall_plant", "plant"),
    "wing chair": ("seats.wing_chair", "chair"),
}
_FAMILIES = {family: kind for kind, (family, _) in KINDS.items()}
_HIT_IOU = 0.25
_MOST_HOMES = 400  # homes searched for objects of the kinds
_SPLIT = "train"  # families reserved for tests replace others in test homes


@dataclass(frozen=True, eq=False)
class MappedHome:
    """A home that was recorded.

    Attributes:
        scene: frames and truth. kinds: id of a visible instance -> its kind of the five.
    """

    scene: EvaluationScene
    kinds: dict[int, str]

    def boxes(self, kind: str) -> F64:
        """(N, 9) boxes of the objects of one kind."""
        return self.scene.boxes_of(tuple(i for i, k in self.kinds.items() if k == kind))


class Homes:
    """Homes with objects of the five kinds, from seeds in order; each is returned once."""

    def __init__(self, data: Path, first_seed: int, views: int, kinds: Sequence[str]) -> None:
        self.kinds = tuple(kinds)
        self._data, self._views = data, views
        self._seeds = iter(range(first_seed, first_seed + _MOST_HOMES))
        self._home = HomeSpec(1, version=2)
        self._sample = HomeSampleSpec(views=views, home=self._home, noise=NoiseModel(sensor="mixed"))

    def those_with(self, wanted: Counter[str]) -> Iterator[MappedHome]:
        """Yield homes with objects of a kind whose ``wanted`` count, which the caller changes, is above 0."""
        for seed in self._seeds:
            home = build_home(seed, self._home)
            inside = Counter(_FAMILIES.get(getattr(thing.model, "family", ""), "") for thing in home.objects)
            if any(wanted[kind] > 0 and inside[kind] for kind in self.kinds):
                yield self._mapped(seed)

    def _mapped(self, seed: int) -> MappedHome:
        name = write_sample(seed, self._data, self._sample)
        write_index(self._data, [name], _SPLIT)
        scene = load_scene(EmbodiedScanDataset(self._data, _SPLIT), name, self._views)
        families = {i["bbox_id"]: i["family"] for i in load_record(self._data, sample_idx(seed))["instances"]}
        seen = [int(scene.ids[row]) for row in scene.seen_rows()]
        kinds = {i: _FAMILIES.get(families[i], "") for i in seen}
        return MappedHome(scene, {i: kind for i, kind in kinds.items() if kind in self.kinds})


def walk(home: MappedHome, inference: Predictor) -> Perceptron:
    """The map of a home, with its objects."""
    perceptron = mapped_scene(home.scene, inference)
    perceptron.perceive(window_m=float("inf"))
    return perceptron


def overlaps(a: F64, b: F64) -> F64:
    """(N, M) IoU; one column of zeros if M is 0."""
    if not len(a) or not len(b):
        return np.zeros((len(a), max(len(b), 1)))
    return iou_of_arrays(a, b)


def teach(homes: Homes, inference: Predictor, things: int, folder: Path) -> tuple[list[Path], Counter[str], int]:
    """Corrected maps, the number of corrections by kind, and the number of objects without a box."""
    room = Counter(dict.fromkeys(homes.kinds, things // len(homes.kinds)))
    maps, taught, missed = [], Counter[str](), 0
    for home in homes.those_with(room):
        perceptron = walk(home, inference)
        objects = perceptron.objects
        boxes = np.stack([o.box for o in objects]) if objects else np.zeros((0, 9))
        said: dict[int, str] = {}
        for number, kind in home.kinds.items():
            overlap = overlaps(home.scene.boxes_of((number,)), boxes)[0]
            if objects and overlap.max() >= _HIT_IOU:
                said[objects[int(overlap.argmax())].id] = kind
        mine = Counter(said.values())
        if not mine or any(mine[kind] > room[kind] for kind in homes.kinds):
            continue  # a map is used only if all its objects of a kind are corrected
        for number, kind in said.items():
            perceptron.correct_object(number, kind)
        maps.append(folder / f"{home.scene.name.replace('/', '_')}.safetensors")
        perceptron.save(maps[-1])
        room.subtract(mine)
        taught.update(mine)
        missed += len(home.kinds) - len(said)
        print(
            f"{home.scene.name}: {dict(mine)}, {sum(taught.values())} of {things} taught", file=sys.stderr, flush=True
        )
        if sum(room.values()) == 0:
            break
    return maps, taught, missed


def look(homes: Homes, old: Predictor, new: Predictor, tests: int) -> dict[str, Any]:
    """Boxes of both networks in other homes, until these have ``tests`` objects of each kind."""
    wanted = Counter(dict.fromkeys(homes.kinds, tests))
    names = list(KINDS)
    found: dict[str, dict[str, SceneBoxes]] = {"new": {}, "old name": {}, "known before": {}, "known after": {}}
    truth: dict[str, dict[str, SceneBoxes]] = {"kinds": {}, "known": {}}
    index = {name: k for k, name in enumerate(old.classes)}
    for home in homes.those_with(wanted):
        scene = home.scene
        perceptron = walk(home, old)
        parts = room_parts(predict_everywhere(perceptron))
        before, after = (boxes_of(parts, classifier_rows(n), old) for n in (old, new))
        theirs = [home.boxes(kind) for kind in names]
        truth["kinds"][scene.name] = SceneBoxes(
            np.concatenate(theirs), np.repeat(np.arange(len(names)), [len(boxes) for boxes in theirs])
        )
        found["new"][scene.name] = renamed(
            after, {new.classes.index(n): k for k, n in enumerate(names) if n in new.classes}
        )
        found["old name"][scene.name] = by_old_name(before, home, old.classes)
        rows = [r for r in scene.seen_rows() if scene.labels[r] in index]
        truth["known"][scene.name] = SceneBoxes(
            scene.boxes[rows], np.array([index[scene.labels[r]] for r in rows], np.int64)
        )
        found["known before"][scene.name] = before
        found["known after"][scene.name] = renamed(after, {k: k for k in range(len(old.classes))})
        wanted.subtract(home.kinds.values())
        print(f"{scene.name}: {dict(Counter(home.kinds.values()))}", file=sys.stderr, flush=True)
        if max(wanted.values()) <= 0:
            break
    figures = {key: detection_metrics(found[key], truth["kinds"], names) for key in ("new", "old name")}
    known = [
        detection_metrics(found[f"known {when}"], truth["known"], old.classes)["AP25"] for when in ("before", "after")
    ]
    counts = Counter(k for t in truth["kinds"].values() for k in np.array(names)[t.labels].tolist())
    return {
        "homes": len(truth["kinds"]),
        "kinds": {
            name: {
                "things": counts[name],
                "old_name": round(figures["old name"].get(f"AP25/{name}", 0.0), 1),
                "after": round(figures["new"].get(f"AP25/{name}", 0.0), 1),
            }
            for name in names
            if counts[name]
        },
        "known": {"before": round(known[0], 1), "after": round(known[1], 1)},
    }


def renamed(found: SceneBoxes, numbers: dict[int, int]) -> SceneBoxes:
    """Boxes of some labels, renumbered."""
    mine = found.take(np.isin(found.labels, list(numbers)))
    labels = np.array([numbers[k] for k in mine.labels.tolist()], np.int64)
    return SceneBoxes(mine.boxes, labels, mine.scores)


def by_old_name(found: SceneBoxes, home: MappedHome, classes: tuple[str, ...]) -> SceneBoxes:
    """Boxes of each kind's category, relabelled as the kind, without those on other objects of the category."""
    boxes, labels, scores = [np.zeros((0, 9))], [np.zeros(0, np.int64)], [np.zeros(0)]
    assert found.scores is not None
    for number, (kind, (_, category)) in enumerate(KINDS.items()):
        if category not in classes:
            continue
        rows = found.labels == classes.index(category)
        others = [
            row
            for row in home.scene.seen_rows()
            if home.scene.labels[row] == category and home.kinds.get(int(home.scene.ids[row])) != kind
        ]
        mine = overlaps(found.boxes[rows], home.boxes(kind)).max(1)
        theirs = overlaps(found.boxes[rows], home.scene.boxes[others]).max(1)
        keep = (theirs <= _HIT_IOU) | (mine > theirs)
        boxes.append(found.boxes[rows][keep])
        scores.append(found.scores[rows][keep])
        labels.append(np.full(int(keep.sum()), number, np.int64))
    return SceneBoxes(np.concatenate(boxes), np.concatenate(labels), np.concatenate(scores))


def learn(maps: list[Path], weights: str, out: Path) -> tuple[bool, str, float]:
    """Whether the command wrote weights, its output, and its seconds."""
    start = time.monotonic()
    command = [sys.executable, "-m", "embodied_perceptron.apps.cli", "learn", "--weights", weights, "--out", str(out)]
    for path in maps:
        command += ["--from", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode == 0, (done.stdout + done.stderr).strip(), time.monotonic() - start


def main() -> int:
    """Correct maps, learn, score, print and write."""
    parser = report.parser(__doc__)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS), help="which of the five")
    parser.add_argument("--things", type=int, default=20, help="corrected objects in all, the same number of each kind")
    parser.add_argument("--tests", type=int, default=6, help="objects of each kind in the scored homes")
    parser.add_argument("--views", type=int, default=20, help="of each home")
    parser.add_argument("--weights", default="tiny", help="a shipped name, or a weights file")
    parser.add_argument("--seed", type=int, default=830_000, help="of the first home")
    parser.add_argument("--data", type=Path, default=report.OUT / "teach", help="folder of homes and maps")
    small = {"kinds": ["tall plant"], "things": 3, "tests": 1, "views": 5, "data": report.OUT / "teach_quick"}
    options = report.parse(parser, **small)
    if options.things < 3 * len(options.kinds):
        parser.error(f"--things must be at least {3 * len(options.kinds)}: three of each kind")
    start = time.monotonic()
    options.data.mkdir(parents=True, exist_ok=True)
    old = load_inference(weights_file(options.weights))
    known = sorted(set(KINDS) & set(old.classes))
    if known:
        parser.error(f"{options.weights} knows {', '.join(known)} already")
    homes = Homes(options.data, options.seed, options.views, options.kinds)
    maps, taught, missed = teach(homes, old, options.things, options.data)
    out = options.data / "mine.safetensors"
    written, said, learn_s = learn(maps, options.weights, out)
    print(said, file=sys.stderr)
    if not written:
        print("nothing was learned", file=sys.stderr)
        return 1
    figures = look(homes, old, load_inference(out), options.tests)
    rows = [{"kind": name, "taught": taught[name], **row} for name, row in figures.pop("kinds").items()]
    mean = {key: float(np.mean([row[key] for row in rows])) for key in ("old_name", "after")}
    report.show("AP25 of things that were taught, in other homes", rows)
    found = {
        "taught": sum(taught.values()),
        "maps": len(maps),
        "without_a_box": missed,
        "learn_s": learn_s,
        "ap25_by_old_name": mean["old_name"],
        "ap25_after": mean["after"],
        **figures,
        "seconds": time.monotonic() - start,
        "kinds": rows,
    }
    report.show("in all", found)
    report.write(options, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
