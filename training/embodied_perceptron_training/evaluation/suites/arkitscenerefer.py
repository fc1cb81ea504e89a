"""ARKitSceneRefer: small everyday objects by people's expressions. Records, answers, metrics and runs.

``IoU@k``: share of expressions whose predicted axis-aligned box overlaps the true one with IoU >= k.
``Dist@l``: share whose predicted centre is at most l metres from the true one (Kato et al., Findings of EMNLP 2023).
A missing answer is a miss; a centre without a box (of a 2-D model) misses every IoU.

File: a JSON list of records as the data set publishes them,

    {"scene_id": "40777060", "object_id": "260", "description": "a bowl on the floor ...", "token": ["a", ...],
     "split": "Training", "id": "Training-40777060-260", "object_label": "bowl", "bbox": [cx, cy, cz, dx, dy, dz]}

with axis-aligned boxes in metres; other keys are ignored. The published files hold a few records twice: identical ones
are read once and counted. Predictions are ``{"answers": {id: {"bbox": [6]}}}``, or ``{"center": [3]}`` for a centre
alone, or ``null``.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from embodied_perceptron.detection2d.detectors import Detector, OnnxDetector
from embodied_perceptron.geometry.boxes import Bounds, transform_boxes
from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron.inference.class_priors import shipped_priors
from embodied_perceptron.language.answer import ground_objects
from embodied_perceptron.language.lexicon import lexicon
from embodied_perceptron.language.query import read_meaning
from embodied_perceptron.recordings import plain_values as checked
from embodied_perceptron.recordings.files import read_json, read_object, write_json
from embodied_perceptron.results import Grounding, SceneObject
from embodied_perceptron.sensors.frame import RgbdFrame
from embodied_perceptron.weights.categories import BY_FREQUENCY
from embodied_perceptron_training.evaluation.runner.detections import Degradation
from embodied_perceptron_training.evaluation.runner.evaluate import EvaluationSpec, load
from embodied_perceptron_training.evaluation.runner.parallel import EvaluationError
from embodied_perceptron_training.evaluation.runner.scenes import EvaluationScene
from embodied_perceptron_training.evaluation.suites.refer_lift import (
    Cluster,
    Detection2d,
    lift,
    noisy_detections,
    perfect_detections,
)
from embodied_perceptron_training.evaluation.suites.scenes import (
    UNNAMED,
    Scored,
    Suite,
    SuiteRun,
    SuiteScene,
    SuiteSpec,
    load_suite_scene,
    perceive_scene,
)

IOU_THRESHOLDS = (0.05, 0.15, 0.25, 0.5)
DISTANCES_M = (0.1, 0.3, 0.5)
FIGURES = (*(f"IoU@{k}" for k in IOU_THRESHOLDS), *(f"Dist@{d}" for d in DISTANCES_M))
# classes of objects that a hand can take, most of them in LVIS
_GRASPABLE = (
    "adhesive tape, album, backpack, bag, ball, basket, book, boots, bottle, bowl, box, bread, broom, brush, "
    "bucket, camera, can, candle, candlestick, cap, case, cleanser, clock, clothes, coat hanger, coffee maker, "
    "cup, cushion, dish rack, dustpan, dvd, eraser, file, flowerpot, folder, food, fruit, glass, globe, glove, "
    "guitar, hair dryer, hanger, hat, headphones, helmets, jacket, jar, kettle, keyboard, knife, lamp, laptop, "
    "letter, luggage, magazine, mask, menu, mop, mouse, napkins, notebook, package, pan, paper, pen, pillow, "
    "pitcher, plant, plate, player, plunger, pot, purse, radio, remote control, rope, salt, scale, scissors, "
    "seasoning, shampoo, shirt, shoe, soap, soap dish, soap dispenser, speaker, sponge, spoon, stapler, statue, "
    "sunglasses, tablet, teapot, telephone, tissue, tissue box, toaster, toilet paper, toiletry, tool, "
    "toothbrush, toothpaste, towel, toy, tray, trophy, umbrella, urn, utensil, vase, wine"
)
GRASPABLE = frozenset(_GRASPABLE.split(", "))
PER_SCENE = 20  # objects of a scene, those of rare classes first
_ROUNDING_M = 1e-9  # a distance that is the threshold but for its last bits reaches it


@dataclass(frozen=True, eq=False)
class Reference:
    """One expression about one object.

    Raises ``ValueError`` naming the record and the fault.
    """

    id: str  # of the expression
    scene_id: str  # scene_id, object_id: scene and object
    object_id: str
    description: str  # the expression
    label: str  # class of the object
    box: F64  # (6,) float64 cx cy cz dx dy dz, axis-aligned, metres, world frame
    unique: bool = True  # whether no other object of the scene has its class

    def __post_init__(self) -> None:
        object.__setattr__(self, "box", check_box(self.box, f"record {self.id!r}: bbox"))
        if not self.description.strip():
            raise ValueError(f"record {self.id!r} has an empty description")

    def as_dict(self) -> dict[str, Any]:
        """The published form."""
        return {
            "scene_id": self.scene_id,
            "object_id": self.object_id,
            "description": self.description,
            "token": self.description.split(),
            "id": self.id,
            "object_label": self.label,
            "bbox": [round(float(v), 6) for v in self.box],
            "unique": self.unique,
        }


@dataclass(frozen=True, eq=False)
class Answer:
    """(3,) predicted centre and, where the model has one, the (6,) axis-aligned box, metres."""

    center_m: F64
    box: F64 | None = None

    def __post_init__(self) -> None:
        center = np.asarray(self.center_m, np.float64)
        if center.shape != (3,) or not np.isfinite(center).all():
            raise ValueError(f"a centre must be 3 finite numbers, got {self.center_m!r}")
        object.__setattr__(self, "center_m", center)
        if self.box is not None:
            object.__setattr__(self, "box", check_box(self.box, "box"))

    @classmethod
    def of_box(cls, box: F64) -> Answer:
        """A (6,) axis-aligned box and its centre."""
        return cls(np.asarray(box, np.float64)[:3], box)


def check_box(box: Any, name: str) -> F64:
    """(6,) float64 with non-negative sizes. Raises ``ValueError`` naming the box."""
    try:
        array = np.asarray(box, np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be 6 numbers, got {box!r}") from error
    if array.shape != (6,) or not np.isfinite(array).all():
        raise ValueError(f"{name} must be 6 finite numbers, got {array.tolist()}")
    if (array[3:] < 0).any():
        raise ValueError(f"{name} has a negative size: {array[3:].tolist()}")
    return array


def axis_aligned(boxes: F64) -> F64:
    """(N, 9) boxes -> (N, 6) bounds cx cy cz dx dy dz of their corners."""
    bounds = Bounds.of(np.asarray(boxes, np.float64).reshape(-1, 9))
    return np.concatenate([(bounds.low + bounds.high) / 2, bounds.extent], axis=1)


def aligned_iou(a: F64, b: F64) -> float:
    """IoU of two (6,) axis-aligned boxes; 0 where neither has a volume."""
    low = np.maximum(a[:3] - a[3:] / 2, b[:3] - b[3:] / 2)
    high = np.minimum(a[:3] + a[3:] / 2, b[:3] + b[3:] / 2)
    shared = float(np.prod(np.clip(high - low, 0.0, None)))
    union = float(np.prod(a[3:]) + np.prod(b[3:])) - shared
    return shared / union if union > 0 else 0.0


def refer_metrics(answers: Sequence[Answer | None], truth: Sequence[Reference]) -> dict[str, float]:
    """:data:`FIGURES` in percent, also of the ``unique/`` and ``multiple/`` expressions where there are both. Raises
    ``ValueError`` when lengths differ or there is no expression."""
    if len(answers) != len(truth):
        raise ValueError(f"{len(answers)} answers for {len(truth)} expressions")
    if not truth:
        raise ValueError("no expressions")
    iou, distance_m = np.zeros(len(truth)), np.full(len(truth), np.inf)
    for i, (answer, reference) in enumerate(zip(answers, truth, strict=True)):
        if answer is not None:
            distance_m[i] = np.linalg.norm(answer.center_m - reference.box[:3])
            iou[i] = 0.0 if answer.box is None else aligned_iou(answer.box, reference.box)
    hits = {f"IoU@{k}": iou >= k for k in IOU_THRESHOLDS}
    hits |= {f"Dist@{d}": distance_m <= d + _ROUNDING_M for d in DISTANCES_M}
    figures = {name: 100.0 * float(hit.mean()) for name, hit in hits.items()}
    unique = np.array([reference.unique for reference in truth])
    for kind, rows in (("unique", unique), ("multiple", ~unique)) if len(set(unique)) == 2 else ():
        figures |= {f"{kind}/{name}": 100.0 * float(hit[rows].mean()) for name, hit in hits.items()}
    return figures


# -- Files.


def read_references(path: Path) -> tuple[list[Reference], int]:
    """Records of a file in its order, and the number of identical repeated ones that were left out.

    Raises ``ValueError`` naming the file, the record and the fault: a missing key, an invalid box, or two different
    records with one id.
    """
    entries = checked.sequence(read_json(path), str(path))
    found: dict[str, Reference] = {}
    repeated = 0
    for number, entry in enumerate(entries):
        checked.mapping(entry, f"{path}: record {number}")
        try:
            texts = [str(entry[key]) for key in ("id", "scene_id", "object_id", "description", "object_label")]
            record = Reference(*texts, entry["bbox"])
        except KeyError as error:
            raise ValueError(f"{path}: record {number} lacks {error}") from error
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        known = found.setdefault(record.id, record)
        if known is not record:
            if known.as_dict() != record.as_dict():
                raise ValueError(f"{path}: record {number} has the id {record.id!r} of another one")
            repeated += 1
    objects = Counter(
        (scene, label) for scene, label, _ in {(r.scene_id, r.label, r.object_id) for r in found.values()}
    )
    declared = {str(entry["id"]): bool(entry["unique"]) for entry in entries if "unique" in entry}  # of own files
    alone = (declared.get(r.id, objects[r.scene_id, r.label] == 1) for r in found.values())
    return [replace(r, unique=unique) for r, unique in zip(found.values(), alone, strict=True)], repeated


def read_refer_answers(path: Path, references: Sequence[Reference]) -> list[Answer | None]:
    """Answers in the order of the references. Raises ``ValueError`` naming file and id of a wrong or missing one."""
    answers = checked.mapping(read_object(path).get("answers"), f"{path}: 'answers'")
    unknown = sorted(set(answers) - {r.id for r in references})
    if unknown:
        raise ValueError(f"{path} answers {unknown[0]!r}, which is no reference")
    return [_answer(path, reference.id, answers) for reference in references]


def write_refer_answers(path: Path, references: Sequence[Reference], answers: Sequence[Answer | None]) -> None:
    """Write a file that :func:`read_refer_answers` reads. Raises ``OSError``."""
    entries: dict[str, dict[str, list[float]] | None] = {}
    for reference, answer in zip(references, answers, strict=True):
        box = {} if answer is None or answer.box is None else {"bbox": answer.box.tolist()}
        entries[reference.id] = None if answer is None else {**box, "center": answer.center_m.tolist()}
    write_json(path, {"answers": entries})


def _answer(path: Path, name: str, answers: Mapping[str, Any]) -> Answer | None:
    if name not in answers:
        raise ValueError(f"{path} has no answer for {name!r}; use null for none")
    entry = answers[name]
    if entry is None:
        return None
    if not isinstance(entry, dict) or not {"bbox", "center"} & set(entry):
        raise ValueError(f"{path}: answer {name!r} must hold 'bbox' or 'center', or be null")
    try:
        box = check_box(entry["bbox"], "bbox") if "bbox" in entry else None
        center = entry["center"] if box is None or "center" in entry else box[:3]
        return Answer(np.asarray(center, np.float64), box)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: answer {name!r}: {error}") from error


# -- The deployed perceptron, and lifted 2-D detections.

DETECTOR_NOISE = Degradation(recall=0.8, confusion=0.1, jitter=0.1)
DETECTOR = "detector"
BOUNDS = ("bound_perfect_masks", "bound_noisy_masks")  # what lifting reaches with true masks, and with noisy ones
BIGGEST = "biggest_cluster"  # the published choice: the cluster of most hits of the named class
_THINNEST_M = 0.02  # of a lifted box, for the geometry of relations


@dataclass(frozen=True, eq=False)
class ReferResult:
    """Expressions of one scene, and per system the answers in their order; '' is the deployed perceptron."""

    name: str
    references: tuple[Reference, ...]
    answers: dict[str, list[Answer | None]]


def graspable_references(scene: EvaluationScene) -> list[Reference]:
    """One expression for each of at most :data:`PER_SCENE` objects of a :data:`GRASPABLE` class that the used views
    show and that a prompt describes uniquely, those of classes that are rarest in EmbodiedScan first."""
    shown = {int(scene.ids[row]): row for row in scene.seen_rows()}
    bounds, count = axis_aligned(scene.boxes), Counter(scene.labels)
    found: dict[int, Reference] = {}
    for prompt in scene.prompts:
        target = prompt.target_ids[0]
        row = shown.get(target, -1)
        if len(prompt.target_ids) == 1 and row >= 0 and target not in found and scene.labels[row] in GRASPABLE:
            label, name = scene.labels[row], f"{scene.name}-{target}"
            unique = count[label] == 1
            found[target] = Reference(name, scene.name, str(target), prompt.text, label, bounds[row], unique)
    rarest = sorted(found, key=lambda k: (-BY_FREQUENCY.index(found[k].label), k))[:PER_SCENE]
    return [found[k] for k in sorted(rarest)]


def biggest_clusters(texts: Sequence[str], clusters: Sequence[Cluster]) -> list[Answer | None]:
    """For each expression the biggest cluster of the class that it names; None where that class was not detected."""
    labels = {c.label for c in clusters}
    answers: list[Answer | None] = []
    for text in texts:
        named = _named_class(text, labels)
        first = next((c for c in clusters if c.label == named), None)  # clusters are sorted by size
        answers.append(None if first is None else Answer(first.center_m, first.box))
    return answers


def lifted_answers(texts: Sequence[str], clusters: Sequence[Cluster], viewpoint: F64 | None) -> list[Answer | None]:
    """For each expression the cluster of the named class that fulfils its relations. ``viewpoint``: (4, 4) pose of the
    speaker."""
    objects = []
    for number, cluster in enumerate(clusters, start=1):
        box = np.concatenate([cluster.box[:3], np.maximum(cluster.box[3:], _THINNEST_M), np.zeros(3)])
        objects.append(SceneObject(number, cluster.label, cluster.score, box))
    answers: list[Answer | None] = []
    for text in texts:
        found = ground_objects(text, objects, viewpoint).candidates
        chosen = clusters[found[0].id - 1] if found else None
        answers.append(None if chosen is None else Answer(chosen.center_m, chosen.box))
    return answers


def _named_class(text: str, labels: set[str]) -> str | None:
    """The detector class most similar to the noun of an expression; None where none is similar at all."""
    target = read_meaning(text, labels).target
    if target is None:
        return None
    words = lexicon()
    best = max(sorted(labels), key=lambda label: words.similarity(target.noun, label), default=None)
    return best if best is not None and words.similarity(target.noun, best) > 0 else None


def _evaluate(spec: SuiteSpec, name: str) -> ReferResult:
    if spec.references is not None:
        references = [r for r in _records(spec.references) if r.scene_id in (name, name.split("/")[-1])]
    else:
        plain = EvaluationSpec(spec.data, spec.split, spec.weights, ("grounding",), spec.scenes, spec.views)
        references = graspable_references(load(plain, name))
    if not references:
        return ReferResult(name, (), {})
    scene = load_suite_scene(spec, name)
    texts = [r.description for r in references]
    perceptron, _ = perceive_scene(spec, scene.scene)
    found = perceptron.ground_many(texts, scene.scene.frames[-1].T_world_camera)
    # records are in the frame of the source's files
    T = np.linalg.inv(scene.scene.T_world_scan) if spec.references is not None else np.eye(4)
    answers: dict[str, list[Answer | None]] = {"": [_first_box(g, T) for g in found]}
    frames = [replace(f, T_world_camera=T @ f.T_world_camera) for f in scene.scene.frames]
    for system, detections in _detections(spec, name, scene).items():
        clusters = lift(detections, frames, spec.cluster_m)
        answers[system] = lifted_answers(texts, clusters, frames[-1].T_world_camera)
        answers[f"{system}/{BIGGEST}"] = biggest_clusters(texts, clusters)
    return ReferResult(name, tuple(references), answers)


def _detections(spec: SuiteSpec, name: str, scene: SuiteScene) -> dict[str, list[Detection2d]]:
    """2-D detections by system: a detector's, and the upper bounds where the data have instance images."""
    found = dict[str, list[Detection2d]]()
    if spec.detector:
        detector = _detector(spec.detector, spec.layout)
        found[DETECTOR] = [d for view, f in enumerate(scene.scene.frames) for d in detected(detector, f.frame, view)]
    if scene.instances is not None:
        labels = {k: v for k, v in scene.label_of.items() if v not in UNNAMED}
        perfect = [d for view, ids in enumerate(scene.instances) for d in perfect_detections(ids, view, labels)]
        rng = np.random.default_rng([spec.seed, *name.encode()])
        noisy = noisy_detections(perfect, sorted(set(labels.values())), DETECTOR_NOISE, rng)
        found |= dict(zip(BOUNDS, (perfect, noisy), strict=True))
    return found


@functools.lru_cache(maxsize=2)
def _records(path: str) -> list[Reference]:
    return read_references(Path(path))[0]


@functools.lru_cache(maxsize=1)
def _detector(path: str, layout: str) -> Detector:
    return OnnxDetector(path, layout)


def detected(detector: Detector, frame: RgbdFrame, view: int) -> list[Detection2d]:
    """Detections in a frame, with the class names of the homes. Without masks the box is the mask."""
    found, _ = detector.detect(frame)
    canonical = shipped_priors().canonical
    shape = frame.depth_m.shape
    detections = []
    for i, label in enumerate(found.labels):
        box = found.boxes_px[i] + 0.5  # measured from the image corner, as masks are
        if found.masks is not None:
            mask = found.masks[i]
        else:
            u0, v0, u1, v1 = np.round(box).astype(int)
            mask = np.zeros(shape, bool)
            mask[v0 : max(v1, v0 + 1), u0 : max(u1, u0 + 1)] = True
        detections.append(Detection2d(view, canonical(label), box, mask, float(found.scores[i])))
    return detections


def _first_box(answer: Grounding, T: F64) -> Answer | None:
    """The first candidate's axis-aligned box, transformed by ``T``."""
    if not answer.candidates:
        return None
    box = torch.from_numpy(answer.candidates[0].box)[None]
    return Answer.of_box(axis_aligned(transform_boxes(T, box).numpy())[0])


def _check(spec: SuiteSpec) -> None:
    if spec.references is not None:
        _records(spec.references)


def _score(spec: SuiteSpec, results: Sequence[ReferResult]) -> Scored:
    """``IoU@k`` and ``Dist@l`` of the deployed perceptron; of a lifted 2-D detector under ``detector/``; upper bounds
    of lifting under ``bound_perfect_masks/`` and ``bound_noisy_masks/``; with the published choice of the cluster under
    ``.../biggest_cluster/``."""
    asked = [r for r in results if r.references]
    truth = [record for r in asked for record in r.references]
    if not truth and spec.references is not None:
        raise EvaluationError(f"no record of {spec.references} is about a scan of {spec.data} ({spec.split})")
    if not truth:
        raise EvaluationError("no expression is about a graspable object that the views show")
    systems = [s for s in asked[0].answers if all(s in r.answers for r in asked)]
    scored = {s: refer_metrics([a for r in asked for a in r.answers[s]], truth) for s in systems}
    figures = {f"{s}/{k}" if s else k: v for s in systems for k, v in scored[s].items()}
    return figures, {"expressions": len(truth), "classes": len({r.label for r in truth})}


def score_refer_files(references: Path | None, answers: Path | None) -> Scored:
    """Score answers to published records. Raises :class:`EvaluationError` without records."""
    if references is None or answers is None:
        raise EvaluationError("--answers are scored against --references")
    records, repeated = read_references(references)
    figures = refer_metrics(read_refer_answers(answers, records), records)
    return figures, {"data": f"{len(records)} expressions of {references.name}", "repeated_records": repeated}


def write_refer(spec: SuiteSpec, run: SuiteRun[ReferResult], out: Path) -> None:
    """Write ``references.json``, ``answers.json`` and ``answers_<system>.json`` of a run."""
    asked = [result for result in run.results if result.references]
    records = [r for result in asked for r in result.references]
    write_json(out / "references.json", [r.as_dict() for r in records])
    for system in (s for s in asked[0].answers if "/" not in s and all(s in r.answers for r in asked)):
        name = f"answers_{system}.json" if system else "answers.json"
        given = [a for result in asked for a in result.answers[system]]
        write_refer_answers(out / name, records, given)


SUITE = Suite(_evaluate, _score, write_refer, _check)
