"""Sentences answered over boxes: human descriptions, facts of simulated homes in many words, cost over many objects.

    EMBODIED_DATA_DIR=FOLDER python benchmarks/language.py   # with `scanrefer_nr3d_dev.json`, if it is there
    ... --paraphrases 24                                     # facts of 24 homes, each in many wordings
    ... --errors 20                                          # show 20 wrong answers

Human descriptions (ScanRefer, Nr3D) are answered over a detector's axis-aligned boxes without fronts and colours. Scans
are split into two halves by name; words and weights were chosen on the first half only. Writes out/bench/language.json.
"""

from __future__ import annotations

import json
import sys
import time
import zlib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import _report as report
import numpy as np

from embodied_perceptron.geometry.boxes import Bounds
from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron.language.answer import ground_objects
from embodied_perceptron.language.query import Query, read_meaning
from embodied_perceptron.language.relations import SceneGeometry
from embodied_perceptron.results import Grounding, SceneObject
from embodied_perceptron.weights.categories import STRUCTURE_CLASSES
from embodied_perceptron_training.homes.building.home import HomeSpec, build_home
from embodied_perceptron_training.homes.paraphrases import HELD_OUT, PARAPHRASES, TUNED
from embodied_perceptron_training.homes.prompts import FREE_FITTED, FREE_HELD_OUT, all_facts, plural
from embodied_perceptron_training.homes.relations import make_scene

SPOKEN = Path(__file__).parent / "data" / "spoken_forms.json"


def iou_aabb(a: F64, b: F64) -> float:
    """IoU of two axis-aligned (9,) boxes."""
    return float(Bounds.of(a[None]).iou(Bounds.of(b[None]))[0, 0])


class Tally:
    """Shares by group."""

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = defaultdict(list)

    def add(self, groups: Iterable[str], value: float) -> None:
        for group in groups:
            self.values[group].append(value)

    def percent(self) -> dict[str, float]:
        return {k: round(100 * float(np.mean(v)), 1) for k, v in self.values.items()}


# --------------------------------------------------------------------------------------------------------------------
# human descriptions


def box_of(entry: dict[str, Any]) -> F64:
    return np.array([*entry["center"], *np.maximum(entry["size"], 0.01), 0, 0, 0], dtype=np.float64)


def detections_of(scene: dict[str, Any]) -> tuple[SceneObject, ...]:
    """Boxes of the detector."""
    found = enumerate(scene["detections"])
    return tuple(SceneObject(i + 1, d["category"], float(d["score"]), box_of(d)) for i, d in found)


def half_of(scan: str) -> str:
    """The half that a scan belongs to; all scans of one place are in the same half."""
    return "tuned" if zlib.crc32(scan[:9].encode()) % 2 else "held out"


def human(path: Path, errors: int, limit: int | None) -> dict[str, Any]:
    data = json.loads(path.read_text())
    queries = data["queries"][:limit] if limit else data["queries"]
    at25, at50 = Tally(), Tally()
    parse_ms, answer_ms = [], []
    scenes = {scan: detections_of(scene) for scan, scene in data["scenes"].items()}
    labels = {scan: {o.label for o in objects} for scan, objects in scenes.items()}
    for query in queries:
        started = time.perf_counter()
        asked = Query(query["text"]).parsed(labels[query["scene"]])
        parse_ms.append((time.perf_counter() - started) * 1e3)
        grounding = ground_objects(asked, scenes[query["scene"]], fronts="none", vocabulary=None)
        answer_ms.append(grounding.latency_ms - parse_ms[-1])
        truth = box_of(data["scenes"][query["scene"]]["objects"][query["target"]])
        ranked = grounding.choice  # every description has an object, so that the best choice counts
        overlap = iou_aabb(ranked[0].box, truth) if ranked else 0.0
        groups = [query["source"], f"{query['source']} {half_of(query['scene'])}"]
        if "view_dependent" in query:
            groups += [f"nr3d {'easy' if query['easy'] else 'hard'}"]
            groups += [f"nr3d view {'dependent' if query['view_dependent'] else 'independent'}"]
        at25.add(groups, overlap > 0.25)
        at50.add(groups, overlap > 0.5)
        if overlap <= 0.25 and errors and hash_of(query["text"]) % 40 == 0:
            errors -= 1
            show_error(query["text"], grounding, data["scenes"][query["scene"]]["objects"][query["target"]]["category"])
    return {
        "acc25": at25.percent(),
        "acc50": at50.percent(),
        "parse_ms_p50": round(float(np.median(parse_ms)), 3),
        "answer_ms_p50": round(float(np.median(answer_ms)), 3),
        "answer_ms_p99": round(float(np.percentile(answer_ms, 99)), 3),
    }


def hash_of(text: str) -> int:
    return zlib.crc32(text.encode())


def show_error(text: str, grounding: Grounding, truth: str) -> None:
    meaning = read_meaning(text)
    said = [(c.relation, [a.noun for a in c.anchors], c.value) for c in meaning.constraints]
    noun = meaning.target.noun if meaning.target else None
    best = [(c.id, c.label, round(c.score, 2)) for c in grounding.candidates[:3]]
    print(f"{text}\n   want {truth}; target {noun}, {said}\n   {grounding.status.name} {best} {grounding.reason}")


# --------------------------------------------------------------------------------------------------------------------
# one fact of a home in many words

_NEAR_M = 1.2  # a nearest object further away is not called near
_FACTS = 4  # for each relation and home


def paraphrases(count: int) -> dict[str, dict[str, float]]:
    """Top-1 in percent by relation, over the true boxes of ``count`` homes (not rendered).

    Asked in patterns and free forms that the reader was fitted to, in held-out ones, and in the forms of
    :data:`SPOKEN`, of which those at even places were used for tuning."""
    spoken: dict[str, list[str]] = json.loads(SPOKEN.read_text(encoding="utf-8"))
    seen = {relation: forms[::2] for relation, forms in spoken.items()}
    kept = {relation: forms[1::2] for relation, forms in spoken.items()}
    names = ("fitted", "held out", "free, fitted", "free, held out", "spoken, tuned", "spoken, held out")
    tallies = {name: Tally() for name in names}
    grammars = dict(zip(tallies, (TUNED, HELD_OUT, FREE_FITTED, FREE_HELD_OUT, seen, kept), strict=True))
    for seed in range(810_000, 810_000 + count):
        home = build_home(seed, HomeSpec(rooms=1 + seed % 2, version=2, revision=1))
        scene = make_scene(home, range(len(home.objects)))
        labels, boxes = scene.labels(), [np.array(o.box9()) for o in scene.objects]
        objects = [
            SceneObject(k, name, 0.9, boxes[k]) for k, name in enumerate(labels) if name not in STRUCTURE_CLASSES
        ]
        facts = all_facts(scene)
        rng = np.random.default_rng(seed)
        for relation in PARAPHRASES:
            said = [facts[k] for k in rng.permutation(len(facts)) if facts[k].relation == relation]
            if relation == "closest":
                said = [f for f in said if _gap(boxes[f.target], boxes[f.anchors[0]]) < _NEAR_M]
            for fact in said[:_FACTS]:
                nouns = [labels[row] for row in (fact.target, *fact.anchors)]
                words = dict(zip(("target", "anchor", "anchor2"), nouns, strict=False))
                for grammar, patterns in grammars.items():
                    for pattern in patterns[relation]:
                        text = pattern.format(**words, target_plural=plural(nouns[0]))
                        found = ground_objects(text, objects, fronts="boxes").candidates
                        tallies[grammar].add([relation, "all"], bool(found) and found[0].id == fact.target)
    return {name: tally.percent() for name, tally in tallies.items()}


def _gap(a: F64, b: F64) -> float:
    """Metres between the bounds of two (9,) boxes."""
    return float(SceneGeometry(np.stack([a, b])).every.gap[0, 1])


# --------------------------------------------------------------------------------------------------------------------
# what sentences cost over many objects

MANY = 2000
_KINDS = ("chair", "table", "lamp", "cup", "shelf", "book", "plant", "window", "door", "couch")
_OF_MANY = (
    "the chair",
    "the chair next to the table",
    "the red cup on the table by the window",
    "the lamp to the right of the couch",
    "the chair closest to the door",
    "the plant between the table and the window",
    "the second book from the left",
    "how many lamps are there",
    "what is on the table",
)


def many_objects(repeats: int) -> dict[str, float]:
    """Median CPU milliseconds of sentences over :data:`MANY` objects of ten kinds on 60 x 60 m, asked by a robot."""
    rng = np.random.default_rng(0)
    objects = []
    for i in range(MANY):
        box = np.array([*rng.uniform(-30, 30, 2), 0.5, *rng.uniform(0.3, 1.0, 3), 0.0, 0.0, 0.0])
        objects.append(SceneObject(i + 1, _KINDS[i % len(_KINDS)], 0.8, box))
    colors = rng.uniform(0, 255, (MANY, 3))
    rows = {}
    for text in _OF_MANY:
        spent = []
        for _ in range(repeats):
            started = time.process_time()
            ground_objects(text, objects, np.eye(4), colors=colors)
            spent.append((time.process_time() - started) * 1e3)
        rows[text] = round(float(np.median(spent)), 1)
    return rows


def main() -> int:
    """Ask, judge, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--errors", type=int, default=0)
    parser.add_argument("--paraphrases", type=int, default=0, metavar="HOMES", help="facts of so many homes, reworded")
    parser.add_argument("--limit", type=int, help="so many human descriptions only")
    parser.add_argument("--repeats", type=int, default=15, help="of each sentence over many objects")
    options = report.parse(parser, paraphrases=1, limit=100, repeats=1)
    results: dict[str, Any] = {}
    described = report.data_folder("scanrefer_nr3d_dev.json")
    if described is not None:
        results["human"] = human(described, options.errors, options.limit)
    if options.paraphrases:
        results["paraphrases"] = paraphrases(options.paraphrases)
    results["objects"] = MANY
    results["cpu_ms_over_many_objects"] = many_objects(options.repeats)
    for name, value in results.items():
        if isinstance(value, dict):
            report.show(name, value)
    report.write(options, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
