"""Language: sentences answered over boxes, against human descriptions and against the prompts of synthetic homes.

    python benchmarks/language.py --homes FOLDER             # prompts of generated homes (EmbodiedScan layout)
    EMBODIED_DATA_DIR=FOLDER python benchmarks/language.py   # `scanrefer_nr3d_dev.json`, if it is there
    ... --ablation [STEP]                                    # every STEP-th sentence without each part
    ... --paraphrases 24                                     # facts of so many homes, each said in many ways
    ... --errors 20                                          # and show so many wrong answers

Human descriptions (ScanRefer, Nr3D) are answered over a detector's axis-aligned boxes without fronts and colours; scans
are split in two halves by name, and words and weights were chosen on the first only. Homes are answered over their true
boxes: with known fronts, with fronts estimated from the room, and with boxes shaken and dropped. What a sentence costs
over 2,000 objects is measured always. Writes out/bench/language.json.
"""

from __future__ import annotations

import json
import sys
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import _report as report
import cv2
import numpy as np
import robot_sentences
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import Bounds
from embodied_perceptron.language.answer import ground_objects
from embodied_perceptron.language.lexicon import Lexicon
from embodied_perceptron.language.query import Query, read_meaning
from embodied_perceptron.language.relations import SceneGeometry
from embodied_perceptron.language.scene_file import answer_file
from embodied_perceptron.language.scoring import WEIGHTS as SCORE_WEIGHTS
from embodied_perceptron.language.scoring import Scorer
from embodied_perceptron.results import Grounding, GroundingStatus, SceneObject
from embodied_perceptron.weights.categories import STRUCTURE_CLASSES
from embodied_perceptron_training.homes.building.home import HomeSpec, build_home
from embodied_perceptron_training.homes.paraphrases import HELD_OUT, PARAPHRASES, TUNED
from embodied_perceptron_training.homes.prompts import FREE_FITTED, FREE_HELD_OUT, all_facts, plural
from embodied_perceptron_training.homes.relations import make_scene

SPOKEN = Path(__file__).parent / "data" / "spoken_forms.json"


def iou_aabb(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
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


def box_of(entry: dict[str, Any]) -> NDArray[np.float64]:
    return np.array([*entry["center"], *np.maximum(entry["size"], 0.01), 0, 0, 0], dtype=np.float64)


def detections_of(scene: dict[str, Any]) -> tuple[SceneObject, ...]:
    """What the detector found."""
    found = enumerate(scene["detections"])
    return tuple(SceneObject(i + 1, d["category"], float(d["score"]), box_of(d)) for i, d in found)


def half_of(scan: str) -> str:
    """Which half a scan belongs to: all scans of one place together."""
    return "tuned" if zlib.crc32(scan[:9].encode()) % 2 else "held out"


def human(path: Path, errors: int, limit: int | None) -> dict[str, Any]:
    data = json.loads(path.read_text())
    queries = data["queries"][:limit] if limit else data["queries"]
    at25, at50 = Tally(), Tally()
    parse_ms, answer_ms = [], []
    confidence: list[tuple[float, bool]] = []
    scenes = {scan: detections_of(scene) for scan, scene in data["scenes"].items()}
    labels = {scan: {o.label for o in objects} for scan, objects in scenes.items()}
    for query in queries:
        started = time.perf_counter()
        asked = Query(query["text"]).parsed(labels[query["scene"]])
        parse_ms.append((time.perf_counter() - started) * 1e3)
        grounding = ground_objects(asked, scenes[query["scene"]], fronts="none", vocabulary=None)
        answer_ms.append(grounding.latency_ms - parse_ms[-1])
        truth = box_of(data["scenes"][query["scene"]]["objects"][query["target"]])
        ranked = grounding.choice  # every sentence means something: a choice has to be made
        overlap = iou_aabb(ranked[0].box, truth) if ranked else 0.0
        groups = [query["source"], f"{query['source']} {half_of(query['scene'])}"]
        if "view_dependent" in query:
            groups += [f"nr3d {'easy' if query['easy'] else 'hard'}"]
            groups += [f"nr3d view {'dependent' if query['view_dependent'] else 'independent'}"]
        at25.add(groups, overlap > 0.25)
        at50.add(groups, overlap > 0.5)
        if ranked:
            confidence.append((ranked[0].score, overlap > 0.25))
        if overlap <= 0.25 and errors and hash_of(query["text"]) % 40 == 0:
            errors -= 1
            show_error(query["text"], grounding, data["scenes"][query["scene"]]["objects"][query["target"]]["category"])
    return {
        "acc25": at25.percent(),
        "acc50": at50.percent(),
        "parse_ms_p50": round(float(np.median(parse_ms)), 3),
        "answer_ms_p50": round(float(np.median(answer_ms)), 3),
        "answer_ms_p99": round(float(np.percentile(answer_ms, 99)), 3),
        "calibration": reliability(confidence),
    }


PARTS = {
    "near": ("near", "with", "end"),
    "closest, farthest": ("closest", "farthest"),
    "between": ("between",),
    "left, right of": ("left", "right", "own-left", "own-right", "viewer-left", "viewer-right"),
    "in front of, behind, across": ("front", "behind", "across"),
    "above, below, on, in": ("above", "below", "on", "in", "supporting"),
    "on the left, ordinals": ("leftmost", "rightmost", "left-of-all", "right-of-all", "from-left", "from-right"),
    "place in the room": ("corner", "middle", "wall", "alone", "middle-of-kind"),
    "size and height": ("large", "small", "tall", "short", "long", "narrow", "round", "high", "low"),
    "what else is named": ("context",),
    "duplicates": ("duplicate",),
    "confidence": ("confidence",),
}


LeftOut = AbstractContextManager[Any]  # while it is entered, a part of the scoring counts nothing


def without_synonyms() -> LeftOut:
    """Labels answer only to the noun that they are, or end in."""

    def plain(self: Lexicon, noun: str, label: str) -> float:
        return 1.0 if noun == label else 0.55 * (noun.split()[-1:] == label.split()[-1:])

    return mock.patch.object(Lexicon, "similarity", plain)


def without_weights(names: Iterable[str]) -> LeftOut:
    """These terms of the score count nothing."""
    return mock.patch.dict(SCORE_WEIGHTS, dict.fromkeys(names, 0.0))


def without_stated_viewpoints() -> LeftOut:
    """ "Facing the door" tells nothing of who speaks."""
    return mock.patch.object(Scorer, "_direction", return_value=None)


def from_one_viewpoint() -> LeftOut:
    """Who speaks stands in one corner of the room instead of anywhere in it."""
    full = SceneGeometry.__dict__["view_points"]
    return mock.patch.object(SceneGeometry, "view_points", property(lambda g: full.func(g)[:1]))


# what carries a sentence, each left out at once, then term by term (PARTS)
_RELATIONS = tuple(name for names in list(PARTS.values())[:9] for name in names)
WHOLE_PARTS: dict[str, Callable[[], LeftOut]] = {
    "synonyms": without_synonyms,
    "all relations, sizes and places": partial(without_weights, (*_RELATIONS, "within", "beyond", "larger", "smaller")),
    "viewpoints that are stated": without_stated_viewpoints,
    "mean over viewpoints (one corner instead)": from_one_viewpoint,
    "priors: confidence, duplicates, what else is named": partial(
        without_weights, ("confidence", "duplicate", "context")
    ),
}


def ablate(path: Path, step: int) -> dict[str, dict[str, float]]:
    """Acc@.25 in percent on every ``step``-th sentence of the tuned half of the scans, by source, with everything and
    without each part. The neural decoder's opinion is no row: these data have no images that it could look at."""
    data = json.loads(path.read_text())
    queries = [query for query in data["queries"] if half_of(query["scene"]) == "tuned"][::step]
    scenes = {query["scene"]: detections_of(data["scenes"][query["scene"]]) for query in queries}

    def measure() -> dict[str, float]:
        tally = Tally()
        for query in queries:
            grounding = ground_objects(query["text"], scenes[query["scene"]], fronts="none", vocabulary=None)
            truth = box_of(data["scenes"][query["scene"]]["objects"][query["target"]])
            ranked = grounding.choice
            hit = bool(ranked) and iou_aabb(ranked[0].box, truth) > 0.25
            tally.add([query["source"]], hit)
        return tally.percent()

    rows = {"everything": measure()}
    parts = WHOLE_PARTS | {part: partial(without_weights, names) for part, names in PARTS.items()}
    for part, left_out in parts.items():
        with left_out():
            rows[f"without {part}"] = measure()
    return rows


def ablate_robot() -> dict[str, dict[str, float]]:
    """A robot user's sentences of the first list's tuned half, right and confidently wrong in percent, with everything
    and without synonyms, the robot's pose, the network that reads, relations."""
    data = json.loads(robot_sentences.SENTENCES.read_text(encoding="utf-8"))
    nowhere = {name: {k: v for k, v in scene.items() if k != "viewpoint"} for name, scene in data["scenes"].items()}

    def measure(scenes: dict[str, Any]) -> dict[str, float]:
        answers = answer_file({**data, "scenes": scenes})["answers"]
        everything = robot_sentences.table_of(data, answers, "tune")["all"]
        return {key: everything[key] for key in ("right", "confidently_wrong")}

    rows = {"everything": measure(data["scenes"]), "without the robot's pose": measure(nowhere)}
    for part in ("synonyms", "the network that reads", "all relations, sizes and places"):
        with WHOLE_PARTS[part]():
            rows[f"without {part}"] = measure(data["scenes"])
    return rows


def hash_of(text: str) -> int:
    return zlib.crc32(text.encode())


def show_error(text: str, grounding: Grounding, truth: str) -> None:
    meaning = read_meaning(text)
    said = [(c.relation, [a.noun for a in c.anchors], c.value) for c in meaning.constraints]
    noun = meaning.target.noun if meaning.target else None
    best = [(c.id, c.label, round(c.score, 2)) for c in grounding.candidates[:3]]
    print(f"{text}\n   want {truth}; target {noun}, {said}\n   {grounding.status.name} {best} {grounding.reason}")


def reliability(pairs: list[tuple[float, bool]], bins: int = 5) -> list[dict[str, float]]:
    """Stated against measured probability, in bins of the stated one."""
    rows = []
    for k in range(bins):
        inside = [(p, hit) for p, hit in pairs if k / bins <= p < (k + 1) / bins or (p == 1.0 and k == bins - 1)]
        if inside:
            stated, right = np.mean(np.array(inside, dtype=float), axis=0)
            rows.append({"n": len(inside), "stated": round(float(stated), 3), "right": round(float(right), 3)})
    return rows


# --------------------------------------------------------------------------------------------------------------------
# prompts of synthetic homes


def shaken(objects: list[SceneObject], rng: np.random.Generator) -> list[SceneObject]:
    """As a detector leaves them: a tenth is missing, centres stray by 6 cm, sizes by 8 %, scores differ."""
    kept = []
    for o in objects:
        if rng.random() < 0.1:
            continue
        box = o.box.copy()
        box[:3] += rng.normal(0, 0.06, 3) * np.minimum(box[3:6] / 0.4, 1.0)
        box[3:6] *= np.exp(rng.normal(0, 0.08, 3))
        box[6] += rng.normal(0, 0.05)
        kept.append(SceneObject(o.id, o.label, float(rng.uniform(0.4, 0.95)), box))
    return kept


Home = tuple[list[SceneObject], NDArray[np.float64]]  # objects and their colours


def load_homes(folder: Path, split: str) -> dict[str, Home]:
    """The true boxes of everything that can be detected."""
    prompts = json.loads((folder / f"embodiedscan_{split}_vg.json").read_text())
    scenes = {}
    for scan in sorted({p["scan_id"] for p in prompts}):
        record = json.loads((folder / scan / "record.json").read_text())
        instances = record["instances"]
        named = [i for i, x in enumerate(instances) if x["label"] not in STRUCTURE_CLASSES]
        objects = [SceneObject(i, instances[i]["label"], 0.9, np.array(instances[i]["bbox_3d"])) for i in named]
        scenes[scan] = (objects, measured_colors(folder / scan, record)[named])
    return scenes


def measured_colors(folder: Path, record: dict[str, Any]) -> NDArray[np.float64]:
    """(N, 3) mean sRGB of each instance's own pixels over all views in which it is visible; NaN where in none."""
    number = {instance["object_id"]: k for k, instance in enumerate(record["instances"])}
    total, count = np.zeros((len(number), 3)), np.zeros(len(number))
    for path in sorted((folder / "color").glob("*.jpg")):
        image, ids = cv2.imread(str(path)), cv2.imread(str(folder / "ids" / f"{path.stem}.png"), cv2.IMREAD_UNCHANGED)
        if image is None or ids is None:
            raise OSError(f"cannot read {path} and its ids")
        color, rows = image[..., ::-1].reshape(-1, 3).astype(np.float64), ids.ravel().astype(np.int64)
        size = int(rows.max()) + 1
        sums = np.stack([np.bincount(rows, color[:, c], size) for c in range(3)], axis=1)
        pixels = np.bincount(rows, minlength=size)
        for object_id, k in number.items():
            if object_id + 1 < size:
                total[k] += sums[object_id + 1]
                count[k] += pixels[object_id + 1]
    return np.where(count[:, None] > 0, total / np.maximum(count, 1)[:, None], np.nan)


def shake_home(objects: list[SceneObject], colors: NDArray[np.float64], rng: np.random.Generator) -> Home:
    """:func:`shaken`, with the colours of what is left."""
    some = shaken(objects, rng)
    row = {o.id: k for k, o in enumerate(objects)}
    return some, colors[[row[o.id] for o in some]]


def homes(folder: Path, split: str, errors: int) -> dict[str, Any]:
    prompts = json.loads((folder / f"embodiedscan_{split}_vg.json").read_text())
    negatives = json.loads((folder / f"embodiedscan_{split}_negatives.json").read_text())
    results: dict[str, Any] = {}
    scenes = load_homes(folder, split)
    for name, fronts, shake in (
        ("true boxes, known fronts", "boxes", False),
        ("true boxes, estimated fronts", "estimated", False),
        ("shaken boxes, estimated fronts", "estimated", True),
    ):
        rng = np.random.default_rng(7)
        tally, status = Tally(), Tally()
        confidence = []
        known: dict[str, Home] = {}
        for scan, (objects, colors) in scenes.items():
            known[scan] = shake_home(objects, colors, rng) if shake else (objects, colors)
        for prompt in prompts:
            objects, colors = known[prompt["scan_id"]]
            grounding = ground_objects(prompt["text"], objects, colors=colors, fronts=fronts)  # type: ignore[arg-type]
            hit = bool(grounding.candidates) and grounding.candidates[0].id == prompt["target_id"]
            groups = ["all", "hard" if prompt["hard"] else "easy", prompt["form"], f"  {prompt['relation']}"]
            groups.append("view dependent" if prompt["view_dependent"] else "view independent")
            tally.add(groups, hit)
            status.add([grounding.status.name.lower()], hit)
            if grounding.candidates:
                confidence.append((grounding.candidates[0].score, hit))
            if (
                not hit
                and errors > 0
                and name.startswith("true")
                and fronts == "boxes"
                and hash_of(prompt["text"]) % 4 == 0
            ):
                errors -= 1
                print(prompt["scan_id"], prompt["relation"], prompt["form"], "target", prompt["target_id"])
                show_error(prompt["text"], grounding, prompt["target"])
        for prompt in negatives:
            objects, colors = known[prompt["scan_id"]]
            grounding = ground_objects(prompt["text"], objects, colors=colors, fronts=fronts)  # type: ignore[arg-type]
            refused = grounding.status == GroundingStatus.NOT_FOUND
            tally.add(["absent", f"  absent {prompt['reason']}"], refused)
        results[name] = tally.percent() | {
            "status": {k: {"n": len(v), "right": round(100 * float(np.mean(v)), 1)} for k, v in status.values.items()},
            "calibration": reliability(confidence),
        }
    return results


# --------------------------------------------------------------------------------------------------------------------
# one fact of a home in many words

_NEAR_M = 1.2  # nearest things that are further off are not said to be near
_FACTS = 4  # of each relation and home


def paraphrases(count: int) -> dict[str, dict[str, float]]:
    """Top-1 in percent by relation, over the true boxes of ``count`` homes that are laid out, not rendered: in the
    patterns and free forms of the prompts that the reader is fitted to, in those that it is not, and in the forms of
    :data:`SPOKEN`, of which those of even places were looked at."""
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


def _gap(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
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
    parser.add_argument("--homes", type=Path, help="folder of generated homes")
    parser.add_argument("--split", default="val")
    parser.add_argument("--errors", type=int, default=0)
    parser.add_argument(
        "--ablation", type=int, nargs="?", const=1, default=0, metavar="STEP", help="each part left out"
    )
    parser.add_argument("--paraphrases", type=int, default=0, metavar="HOMES", help="facts of so many homes, reworded")
    parser.add_argument("--limit", type=int, help="so many human descriptions only")
    parser.add_argument("--repeats", type=int, default=15, help="of each sentence over many objects")
    options = report.parse(parser, paraphrases=1, limit=100, repeats=1)
    results: dict[str, Any] = {}
    described = report.data_folder("scanrefer_nr3d_dev.json")
    if described is not None:
        results["human"] = human(described, options.errors, options.limit)
        if options.ablation:
            results["ablation"] = ablate(described, options.ablation)
    if options.ablation:
        results["ablation_robot"] = ablate_robot()
    if options.homes is not None:
        results["homes"] = homes(options.homes, options.split, options.errors)
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
