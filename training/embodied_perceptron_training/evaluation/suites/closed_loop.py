"""The suites of other systems on scans in EmbodiedScan's layout, the deployed perceptron in the loop.

    pope             3D-POPE: is there a X?                        :mod:`.pope`
    arkitscenerefer  small objects by expressions, and 2-D lifts   :mod:`.arkitscenerefer`, :mod:`.refer_lift`
    openlex3d        tiers of open-vocabulary labels               :mod:`.openlex3d`

A scene's map is built from all of its used views and looked at as a whole; no truth goes into any answer but that of
the bounds, whose masks are those of a 2-D detector without faults, or with invented ones.

Synthetic homes have instance images: what a view shows is counted in pixels. Of real scans the infos say which
instances a view shows.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.detection2d.detectors import Detector, OnnxDetector
from embodied_perceptron.geometry.boxes import box_iou, points_in_boxes, transform_boxes
from embodied_perceptron.geometry.suppression import overlaps
from embodied_perceptron.inference.class_priors import shipped_priors
from embodied_perceptron.language.answer import ground_objects
from embodied_perceptron.language.lexicon import lexicon
from embodied_perceptron.language.object_states import StateLabels, predict_states
from embodied_perceptron.language.query import read_meaning
from embodied_perceptron.nn.text_encoder import text_encoder
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import Detections, Grounding, GroundingStatus, Perception, SceneObject
from embodied_perceptron.sensors.frame import RgbdFrame
from embodied_perceptron_training.datasets.embodiedscan import (
    SOURCES,
    DatasetError,
    EmbodiedScanDataset,
    MissingSplitError,
)
from embodied_perceptron_training.datasets.grounded_prompts import grounded_texts
from embodied_perceptron_training.evaluation.metrics.dense_grounding import DenseScore, score_dense
from embodied_perceptron_training.evaluation.runner.evaluate import EvaluationSpec, cached_predictor, load, scene_names
from embodied_perceptron_training.evaluation.runner.parallel import CorruptSceneError, EvaluationError, map_scenes
from embodied_perceptron_training.evaluation.runner.scene_tasks import cells_at, mapped_scene, perceive_everywhere
from embodied_perceptron_training.evaluation.runner.scenes import EvaluationScene, choose_views
from embodied_perceptron_training.evaluation.suites.arkitscenerefer import (
    Answer,
    Reference,
    axis_aligned,
    read_references,
    refer_metrics,
)
from embodied_perceptron_training.evaluation.suites.grounded_questions import (
    MIN_IOU,
    GroundedQuestion,
    GroundedReply,
    answer_grounded,
    grounded_metrics,
    read_grounded_questions,
)
from embodied_perceptron_training.evaluation.suites.object_states import (
    labels_of_record,
    matched_rows,
    renumbered,
    state_metrics,
)
from embodied_perceptron_training.evaluation.suites.openlex3d import (
    PointPrediction,
    PointTruth,
    Prompts,
    openlex3d_metrics,
    read_labels,
    read_truth,
    scene_prompts,
)
from embodied_perceptron_training.evaluation.suites.pope import (
    PROTOCOLS,
    CategoryStatistics,
    Question,
    ScenePresence,
    answer_questions,
    make_questions,
    pope_metrics,
    read_scene_list,
)
from embodied_perceptron_training.evaluation.suites.refer_lift import (
    Cluster,
    Detection2d,
    DetectorNoise,
    lift,
    noisy_detections,
    perfect_detections,
)
from embodied_perceptron_training.homes.building.home import HomeSpec, build_home
from embodied_perceptron_training.homes.generate import load_record, sample_idx
from embodied_perceptron_training.processes import Workers

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Result = TypeVar("Result")

TRAINING_HOMES = Path(__file__).with_name("pope_training_homes.json")
MIN_PIXELS = 200  # with depth, in one view, of an instance of a category that is asked for
UNNAMED = frozenset(("object",))
STRUCTURE = frozenset(("wall", "floor", "ceiling"))
SMALL_M = 0.6  # largest side of a small thing
LIFT_EPS_M = 0.02  # of the published baseline, for hits of every tenth frame of a video
DETECTOR_NOISE = DetectorNoise()
_TRUTH_CELL_M = 0.02  # one true point per cell and object
_GROW_M = 0.04  # a box takes the points so close to it: its walls are measured with noise
_SAME_PLACE_IOU = 0.3
_POSTERIOR_POWER = 3
_THINNEST_M = 0.02  # of a lifted box, for the geometry of relations
_YES = (GroundingStatus.FOUND, GroundingStatus.AMBIGUOUS)


@dataclass(frozen=True)
class SuiteSpec:
    """What to run on; plain values, so that worker processes can be told.

    Attributes:
        data: folder in EmbodiedScan's layout with instance images (``embodied-perceptron generate``).
        split: train, val or test.
        weights: shipped name or path.
        scenes: the first so many; None = all.
        views: of each scene, spread evenly.
        seed: of random negatives and of the noisy detector.
        training: scene list of the training set for 3D-POPE; None = that of the shipped weights for homes, the
            training split of the data for real scans.
        references: records of ARKitSceneRefer about the scans; None = one sentence for each small thing.
        detector, layout: ONNX file of a 2-D detector that is lifted too; "" = none.
        cluster_m: hits of lifted detections that are so close are of one thing.
    """

    data: str
    split: str = "test"
    weights: str = "tiny"
    scenes: int | None = None
    views: int = 20
    seed: int = 0
    training: str | None = None
    references: str | None = None
    detector: str = ""
    layout: str = ""
    cluster_m: float = LIFT_EPS_M

    def __post_init__(self) -> None:
        if bool(self.detector) != bool(self.layout):
            raise EvaluationError("--detector and --detector-layout belong together")

    @property
    def plain(self) -> EvaluationSpec:
        """Of the scenes and the network."""
        return EvaluationSpec(self.data, self.split, self.weights, ("detection",), self.scenes, self.views)


@dataclass(frozen=True, eq=False)
class SuiteRun(Generic[Result]):
    """Figures in percent, what they come from, scenes that could not be read, and counts worth knowing."""

    figures: dict[str, float]
    results: list[Result]
    skipped: dict[str, str]
    notes: dict[str, Any]
    seconds: float


# --------------------------------------------------------------------------------------------------------------------
# A scene: frames, instance images, and the map that the perceptron makes of it.


@dataclass(frozen=True, eq=False)
class SuiteScene:
    """A scene, with instance images where it is a home.

    Attributes:
        scene: frames and truth.
        instances: per frame (H, W) int64 annotation ids, -1 = none; None of a real scan.
    """

    scene: EvaluationScene
    instances: tuple[I64, ...] | None

    @property
    def label_of(self) -> dict[int, str]:
        """Class by annotation id."""
        return dict(zip(self.scene.ids.tolist(), self.scene.labels, strict=True))


@functools.lru_cache(maxsize=2)
def _dataset(data: str, split: str) -> EmbodiedScanDataset:
    return EmbodiedScanDataset(Path(data), split)


def is_home(name: str) -> bool:
    """Whether a scan is a synthetic home, by its sample_idx."""
    return name.split("/")[0] == "synthetic"


def load_suite_scene(spec: SuiteSpec, name: str) -> SuiteScene:
    """Read a scene. Raises :class:`CorruptSceneError` naming a file that is missing or does not fit."""
    scene = load(spec.plain, name)
    if not is_home(name):
        return SuiteScene(scene, None)
    try:
        images = _dataset(spec.data, spec.split).by_name(name).images
        record = load_record(spec.data, name)
        number = {int(i["object_id"]) + 1: int(i["bbox_id"]) for i in record["instances"]}
    except (OSError, ValueError, KeyError) as error:
        raise CorruptSceneError(f"{name} has no instances as homes have them: {error}") from error
    found = []
    for frame, view in zip(scene.frames, choose_views(len(images), spec.views), strict=True):
        color = images[view].color_path
        path = color.parent.parent / "ids" / f"{color.stem}.png"
        image = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        if image is None or image.shape != frame.frame.depth_m.shape:
            raise CorruptSceneError(f"{path} is missing or not of the depth image's size")
        lookup = np.full(int(image.max()) + 1, -1, np.int64)
        for pixel, annotation in number.items():
            if pixel < len(lookup):
                lookup[pixel] = annotation
        found.append(lookup[image])
    return SuiteScene(scene, tuple(found))


def perceive_scene(spec: SuiteSpec, scene: EvaluationScene) -> tuple[Perceptron, Perception]:
    """The deployed perceptron after all views, and what it makes of the whole scene."""
    perceptron = mapped_scene(scene, cached_predictor(spec.weights), every_box=False)
    return perceptron, perceive_everywhere(perceptron)


def _run(
    spec: SuiteSpec, work: Callable[[str], Result], workers: Workers, progress: Callable[[int, int], None] | None
) -> tuple[list[Result], dict[str, str]]:
    outcome = map_scenes(work, scene_names(spec.plain), workers, progress)
    if not outcome.results:
        raise EvaluationError("no scene to score")
    return outcome.results, outcome.skipped


# --------------------------------------------------------------------------------------------------------------------
# 3D-POPE.


@dataclass(frozen=True, eq=False)
class PopeResult:
    """One scene: what is in it, the answers by category, and the questions of all kinds with their answers.

    ``boxes``: (9,) of each thing by its annotation id. ``states``: what is so, and what the published objects say.
    ``dense``: how well phrases of descriptions were grounded.
    """

    presence: ScenePresence
    answers: dict[str, bool]
    questions: tuple[GroundedQuestion, ...] = ()
    replies: tuple[GroundedReply, ...] = ()
    boxes: dict[int, F64] = field(default_factory=dict)
    states: tuple[StateLabels, StateLabels] = (StateLabels(), StateLabels())
    dense: DenseScore = field(default_factory=DenseScore)


def presence_of(scene: SuiteScene) -> ScenePresence:
    """Categories with an instance of at least 200 pixels with depth in one view, or of a real scan those of which a
    view shows an instance; the others are there unasked, and so are walls, floor and ceiling, which every room has."""
    names = set(scene.scene.labels) - UNNAMED
    present = tuple(sorted((_visible_labels(scene) & names) - STRUCTURE))
    return ScenePresence(scene.scene.name, present, tuple(sorted(names.union(STRUCTURE).difference(present))))


def _visible_labels(scene: SuiteScene) -> set[str]:
    if scene.instances is None:
        return {scene.scene.labels[row] for row in scene.scene.seen_rows()}
    labels = scene.label_of
    found = set[str]()
    for frame, instances in zip(scene.scene.frames, scene.instances, strict=True):
        seen = instances[(frame.frame.depth_m > 0) & (instances >= 0)]
        pixels = np.bincount(seen, minlength=1)
        found.update(labels[number] for number in np.flatnonzero(pixels >= MIN_PIXELS).tolist() if number in labels)
    return found


def training_homes(seeds: Sequence[int]) -> list[ScenePresence]:
    """Categories of the homes that the generator builds from seeds: what :data:`TRAINING_HOMES` is made of, with
    ``range(100000, 100320)`` (seconds a home)."""
    found = []
    for seed in seeds:
        labels = {o.label for o in build_home(seed, HomeSpec(0)).objects} - UNNAMED
        found.append(ScenePresence(sample_idx(seed), tuple(sorted(labels))))
    return found


@functools.lru_cache(maxsize=4)
def training_statistics(training: str | None, data: str | None = None) -> CategoryStatistics:
    """Of a scene list; None = of the training split of ``data``, or without data of the homes that the shipped weights
    were trained on. Raises ``ValueError``."""
    if training is not None or data is None:
        return CategoryStatistics.of(read_scene_list(Path(training or TRAINING_HOMES)))
    try:
        scans = list(_dataset(data, "train"))
    except MissingSplitError as error:
        raise EvaluationError(f"negatives are drawn from training scenes: give --training-scenes; {error}") from error
    labels = {scan.sample_idx: sorted(set(scan.labels) - UNNAMED) for scan in scans}
    return CategoryStatistics.of([ScenePresence(name, tuple(found)) for name, found in labels.items()])


def pope_questions(spec: SuiteSpec, scenes: Sequence[ScenePresence]) -> dict[str, list[Question]]:
    """By protocol."""
    real = any(scene.scene_id.split("/")[0] in SOURCES and not is_home(scene.scene_id) for scene in scenes)
    statistics = training_statistics(spec.training, spec.data if real else None)
    return {protocol: make_questions(scenes, statistics, protocol, spec.seed) for protocol in PROTOCOLS}


def existence(perceptron: Perceptron, scene_id: str, categories: Sequence[str]) -> dict[str, bool]:
    """The deployed perceptron's answers to "is there a X?", as its users get them: yes is a thing, or several."""
    asked = perceptron.ground_many([Question(scene_id, name, True).text for name in categories])
    return {name: answer.status in _YES for name, answer in zip(categories, asked, strict=True)}


@dataclass(frozen=True)
class _PopeWork:
    spec: SuiteSpec

    def __call__(self, name: str) -> PopeResult:
        scene = load_suite_scene(self.spec, name)
        presence = presence_of(scene)
        questions = pope_questions(self.spec, [presence])
        asked = sorted({q.category for listed in questions.values() for q in listed})
        perceptron, perception = perceive_scene(self.spec, scene.scene)
        language = Path(self.spec.data) / "language" / f"{name}.json"
        try:
            kinds = read_grounded_questions(language, presence.scene_id) if language.exists() else []
        except ValueError as error:
            raise CorruptSceneError(str(error)) from error
        replies = answer_grounded(perceptron.ground_many, kinds)
        boxes = dict(zip(scene.scene.ids.tolist(), scene.scene.boxes, strict=True))
        states = self._states(name, scene, perception) if is_home(name) else (StateLabels(), StateLabels())
        said = existence(perceptron, presence.scene_id, asked)
        dense = _dense(perceptron, language, boxes) if language.exists() else DenseScore()
        return PopeResult(presence, said, tuple(kinds), tuple(replies), boxes, states, dense)

    def _states(self, name: str, scene: SuiteScene, perception: Perception) -> tuple[StateLabels, StateLabels]:
        """True ones of the used views, and those of the published objects, by annotation id."""
        things = scene.scene
        frames = load_record(self.spec.data, name)["frames"]
        names = {int(k): label for k, label in zip(things.ids, things.labels, strict=True)}
        try:
            truth = labels_of_record(frames, names, choose_views(len(frames), self.spec.views))
        except ValueError as error:
            raise CorruptSceneError(f"{name}: {error}") from error
        objects = perception.objects
        boxes = np.array([o.box for o in objects]).reshape(-1, 9)
        said = predict_states(boxes, [o.label for o in objects], perception.voxels.mean_point_m)
        rows = matched_rows(objects, things.boxes, things.labels)
        return truth, renumbered(said, {row: int(things.ids[k]) for row, k in rows.items()})


def _dense(perceptron: Perceptron, language: Path, boxes: Mapping[int, F64]) -> DenseScore:
    """Of the descriptions beside a home: the published object lies on the thing that the tag names (IoU 0.25)."""
    mine = {o.id: o.box for o in perceptron.objects}

    def same(said: int, meant: int) -> bool:
        if said not in mine or meant not in boxes:
            return False
        pair = (torch.from_numpy(np.asarray(b, np.float64)[None]) for b in (mine[said], boxes[meant]))
        return bool(box_iou(*pair) >= MIN_IOU)

    try:
        return score_dense(grounded_texts(language), perceptron.ground_many, same)
    except DatasetError as error:
        raise CorruptSceneError(str(error)) from error


def run_pope(
    spec: SuiteSpec, workers: Workers = 1, progress: Callable[[int, int], None] | None = None
) -> SuiteRun[PopeResult]:
    """``{random,popular,adversarial}/{precision,recall,f1,accuracy,yes}`` of the shipped model, and of homes
    ``dense/...`` of the descriptions (:mod:`..metrics.dense_grounding`) and
    ``grounded/<kind>/...`` of the questions that stand beside them (:mod:`.grounded_questions`), and
    ``states/<name>/...`` of relations, doors, containers and cloth (:mod:`.object_states`)."""
    start = time.perf_counter()
    if spec.training is not None:
        training_statistics(spec.training)  # a damaged file is no fault of a scene
    results, skipped = _run(spec, _PopeWork(spec), workers, progress)
    answers = {(r.presence.scene_id, name): said for r in results for name, said in r.answers.items()}
    figures = score_pope(pope_questions(spec, [r.presence for r in results]), answers)
    figures |= grounded_metrics(
        [q for r in results for q in r.questions],
        [a for r in results for a in r.replies],
        [r.boxes for r in results for _ in r.questions],
    )
    dense = sum((r.dense for r in results), DenseScore())
    figures |= {f"dense/{name}": value for name, value in dense.as_dict().items()}
    homes = [r.states for r in results if is_home(r.presence.scene_id)]
    if homes:
        figures |= state_metrics(*map(list, zip(*homes, strict=True)))
    notes = {
        "questions": 2 * sum(len(r.presence.present) for r in results),
        "grounded_questions": sum(len(r.questions) for r in results),
    }
    return SuiteRun(figures, results, skipped, notes, time.perf_counter() - start)


def score_pope(
    questions: Mapping[str, Sequence[Question]], answers: Mapping[tuple[str, str], bool]
) -> dict[str, float]:
    """Figures of all protocols."""
    return {
        f"{protocol}/{name}": value
        for protocol, listed in questions.items()
        for name, value in pope_metrics(listed, answer_questions(listed, answers)).items()
    }


# --------------------------------------------------------------------------------------------------------------------
# ARKitSceneRefer.

DETECTOR = "detector"
BOUNDS = ("bound_perfect_masks", "bound_noisy_masks")  # what lifting makes of true masks, and of disturbed ones
BIGGEST = "biggest_cluster"  # the published choice: that of most hits, whatever else the expression says


@dataclass(frozen=True, eq=False)
class ReferResult:
    """One scene: its expressions, and per system the answers in their order; '' is ours."""

    name: str
    references: tuple[Reference, ...]
    answers: dict[str, list[Answer | None]]


def small_thing_references(scene: EvaluationScene, max_side_m: float = SMALL_M) -> list[Reference]:
    """One expression for each small thing that the used views show and a prompt singles out."""
    shown = {int(scene.ids[row]): row for row in scene.seen_rows()}
    bounds = axis_aligned(scene.boxes)
    found: dict[int, Reference] = {}
    for prompt in scene.prompts:
        target = prompt.target_ids[0]
        if len(prompt.target_ids) == 1 and target in shown and target not in found:
            row = shown[target]
            if scene.boxes[row, 3:6].max() <= max_side_m:
                name = f"{scene.name}-{target}"
                found[target] = Reference(name, scene.name, str(target), prompt.text, scene.labels[row], bounds[row])
    return [found[k] for k in sorted(found)]


def biggest_clusters(texts: Sequence[str], clusters: Sequence[Cluster]) -> list[Answer | None]:
    """For each expression the biggest cluster of the class that it names; None where nothing of it was detected."""
    labels = {c.label for c in clusters}
    answers: list[Answer | None] = []
    for text in texts:
        named = _named_class(text, labels)
        first = next((c for c in clusters if c.label == named), None)  # the biggest stands first
        answers.append(None if first is None else Answer(first.center_m, first.box))
    return answers


def lifted_answers(texts: Sequence[str], clusters: Sequence[Cluster], viewpoint: F64 | None) -> list[Answer | None]:
    """For each expression the cluster of the named class that its relations mean, as the paper's 2-D model reads the
    whole expression in every frame. Who speaks stands at the (4, 4) ``viewpoint``."""
    objects = [_as_object(k + 1, cluster) for k, cluster in enumerate(clusters)]
    answers: list[Answer | None] = []
    for text in texts:
        found = ground_objects(text, objects, viewpoint).candidates
        chosen = clusters[found[0].id - 1] if found else None
        answers.append(None if chosen is None else Answer(chosen.center_m, chosen.box))
    return answers


def _as_object(number: int, cluster: Cluster) -> SceneObject:
    size = np.maximum(cluster.box[3:], _THINNEST_M)
    return SceneObject(number, cluster.label, cluster.score, np.concatenate([cluster.box[:3], size, np.zeros(3)]))


def _named_class(text: str, labels: set[str]) -> str | None:
    """The detector's class that an expression names best; None where it names none of them."""
    target = read_meaning(text, labels).target
    if target is None:
        return None
    words = lexicon()
    best = max(sorted(labels), key=lambda label: words.similarity(target.noun, label), default=None)
    return best if best is not None and words.similarity(target.noun, best) > 0 else None


@dataclass(frozen=True)
class _ReferWork:
    spec: SuiteSpec

    def __call__(self, name: str) -> ReferResult:
        spec = self.spec
        references = self._references(name)
        if not references:
            return ReferResult(name, (), {})
        scene = load_suite_scene(spec, name)
        texts = [r.description for r in references]
        perceptron, _ = perceive_scene(spec, scene.scene)
        found = perceptron.ground_many(texts, scene.scene.frames[-1].T_world_camera)
        # records are about the frame of the source's files
        T = np.linalg.inv(scene.scene.T_world_scan) if spec.references is not None else np.eye(4)
        answers: dict[str, list[Answer | None]] = {"": [_first_box(g, T) for g in found]}
        frames = [replace(f, T_world_camera=T @ f.T_world_camera) for f in scene.scene.frames]
        for system, detections in self._detections(name, scene).items():
            clusters = lift(detections, frames, spec.cluster_m)
            answers[system] = lifted_answers(texts, clusters, frames[-1].T_world_camera)
            answers[f"{system}/{BIGGEST}"] = biggest_clusters(texts, clusters)
        return ReferResult(name, tuple(references), answers)

    def _references(self, name: str) -> list[Reference]:
        """Records about the scan, or sentences about its small things."""
        spec = self.spec
        if spec.references is not None:
            return [r for r in _records(spec.references) if r.scene_id in (name, name.split("/")[-1])]
        plain = EvaluationSpec(spec.data, spec.split, spec.weights, ("grounding",), spec.scenes, spec.views)
        return small_thing_references(load(plain, name))

    def _detections(self, name: str, scene: SuiteScene) -> dict[str, list[Detection2d]]:
        """By system: what a detector finds, and the bounds where the data have instance images."""
        spec, found = self.spec, dict[str, list[Detection2d]]()
        if spec.detector:
            detector = _detector(spec.detector, spec.layout)
            found[DETECTOR] = [
                d for view, f in enumerate(scene.scene.frames) for d in detected(detector, f.frame, view)
            ]
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
    """What a detector finds in a frame, by the names of the homes; without masks a box is its own mask."""
    found, _ = detector.detect(frame)
    canonical = shipped_priors().canonical
    shape = frame.depth_m.shape
    detections = []
    for i, label in enumerate(found.labels):
        box = found.boxes_px[i] + 0.5  # from the picture's corner, as masks are cut
        if found.masks is not None:
            mask = found.masks[i]
        else:
            u0, v0, u1, v1 = np.round(box).astype(int)
            mask = np.zeros(shape, bool)
            mask[v0 : max(v1, v0 + 1), u0 : max(u1, u0 + 1)] = True
        detections.append(Detection2d(view, canonical(label), box, mask, float(found.scores[i])))
    return detections


def _first_box(answer: Grounding, T: F64) -> Answer | None:
    """The first candidate's axis-aligned box in the frame that ``T`` leads to."""
    if not answer.candidates:
        return None
    box = torch.from_numpy(answer.candidates[0].box)[None]
    return Answer.of_box(axis_aligned(transform_boxes(T, box).numpy())[0])


def run_arkitscenerefer(
    spec: SuiteSpec, workers: Workers = 1, progress: Callable[[int, int], None] | None = None
) -> SuiteRun[ReferResult]:
    """``IoU@k`` and ``Dist@l`` of the shipped model's grounding; under ``detector/`` of a lifted 2-D detector, under
    ``bound_perfect_masks/`` and ``bound_noisy_masks/`` what lifting could reach; and of these with the published choice
    under ``.../biggest_cluster/``."""
    start = time.perf_counter()
    if spec.references is not None:
        _records(spec.references)  # a damaged file is no fault of a scene
    results, skipped = _run(spec, _ReferWork(spec), workers, progress)
    asked = [r for r in results if r.references]
    truth = [record for r in asked for record in r.references]
    if not truth and spec.references is not None:
        raise EvaluationError(f"no record of {spec.references} is about a scan of {spec.data} ({spec.split})")
    if not truth:
        raise EvaluationError(f"no expression is about a thing of at most {SMALL_M} m that the views show")
    systems = [s for s in asked[0].answers if all(s in r.answers for r in asked)]
    scored = {s: refer_metrics([a for r in asked for a in r.answers[s]], truth) for s in systems}
    figures = {f"{s}/{k}" if s else k: v for s in systems for k, v in scored[s].items()}
    notes: dict[str, Any] = {"expressions": len(truth), "classes": len({r.label for r in truth})}
    return SuiteRun(figures, results, skipped, notes, time.perf_counter() - start)


# --------------------------------------------------------------------------------------------------------------------
# OpenLex3D.


@dataclass(frozen=True, eq=False)
class OpenLexResult:
    """One scene: truth, the project's own export, and how many labels stood in two tiers."""

    name: str
    truth: PointTruth
    export: ClosedSetExport
    repeated_labels: int


@dataclass(frozen=True, eq=False)
class ClosedSetExport:
    """A map's points with posteriors over class names.

    Attributes:
        points_m: (N, 3).
        posterior_of: (N,) row of ``posteriors``.
        instance_of: (N,) object, 0 .. I - 1; the first I posteriors are theirs. -1 = none.
        posteriors: (F, K) weights of the classes.
        classes: K names.
        objects: I.
    """

    points_m: F64
    posterior_of: I64
    instance_of: I64
    posteriors: F64
    classes: tuple[str, ...]
    objects: int = 0

    def embedded(self, embeddings: Prompts) -> PointPrediction:
        """With the posterior's mean of the classes' embeddings as feature."""
        features = self.posteriors @ embeddings.take(self.classes).features
        return PointPrediction(self.points_m, features, self.posterior_of, self.instance_of, features[: self.objects])


def point_truth(scene: SuiteScene, labels: Sequence[Any]) -> PointTruth:
    """Measured points of all instances, one for each cell of 2 cm and object; of a real scan those in the boxes of what
    the view shows, where these overlap in the smallest."""
    points, objects = [], []
    for view, frame in enumerate(scene.scene.frames):
        measured = frame.frame.depth_m > 0
        if scene.instances is not None:
            measured &= scene.instances[view] >= 0
        v, u = np.nonzero(measured)
        k = frame.frame.intrinsics
        z = frame.frame.depth_m[v, u].astype(np.float64)
        local = np.stack([(u - k.cx) * z / k.fx, (v - k.cy) * z / k.fy, z], axis=-1)
        here = local @ frame.T_world_camera[:3, :3].T + frame.T_world_camera[:3, 3]
        of = _holders(scene.scene, view, here) if scene.instances is None else scene.instances[view][v, u]
        points.append(here[of >= 0])
        objects.append(of[of >= 0])
    all_points, all_objects = np.concatenate(points), np.concatenate(objects)
    cells = np.column_stack([np.floor(all_points / _TRUTH_CELL_M).astype(np.int64), all_objects])
    _, first = np.unique(cells, axis=0, return_index=True)
    return PointTruth(all_points[first], all_objects[first], tuple(labels))


def _holders(scene: EvaluationScene, view: int, points_m: F64) -> I64:
    """(P,) annotation id of the smallest box of what the view shows that holds each of (P, 3) points, -1 = none; rooms'
    surfaces hold nothing."""
    rows = [r for r in scene.visible[view] if scene.labels[r] not in STRUCTURE | UNNAMED]
    rows.sort(key=lambda r: float(scene.boxes[r, 3:6].prod()))
    if not rows:
        return np.full(len(points_m), -1, np.int64)
    inside = points_in_boxes(torch.from_numpy(points_m), torch.from_numpy(scene.boxes[rows])).numpy()
    held: I64 = np.where(inside.any(axis=1), scene.ids[rows][inside.argmax(axis=1)], -1)
    return held


def closed_set_export(perceptron: Perceptron, perception: Perception) -> ClosedSetExport:
    """Every voxel of the map with the class posterior of the smallest object that holds it, else with the class of its
    labelled cell; voxels of neither are left out."""
    points = perception.voxels.mean_point_m.astype(np.float64)
    objects = perception.objects
    semantic = perception.semantic
    classes = tuple(sorted({*semantic.classes, *_detector_classes(perceptron), *(o.label for o in objects)}))
    row = {name: k for k, name in enumerate(classes)}
    posteriors = np.zeros((len(objects) + len(semantic.classes), len(classes)))
    seen = perceptron.prediction
    posteriors[: len(objects)] = class_posteriors(objects, None if seen is None else seen.detections, row)
    for k, name in enumerate(semantic.classes):
        posteriors[len(objects) + k, row[name]] = 1.0
    instance = np.full(len(points), -1, np.int64)
    if objects:
        boxes = np.stack([o.box for o in objects])
        grown = boxes.copy()
        grown[:, 3:6] += 2 * _GROW_M
        inside = points_in_boxes(torch.from_numpy(points), torch.from_numpy(grown)).numpy()
        order = np.argsort(boxes[:, 3:6].prod(axis=1))
        first = inside[:, order].argmax(axis=1)
        instance = np.where(inside.any(axis=1), order[first], -1).astype(np.int64)
    cell = cells_at(points, semantic)
    posterior_of = np.where(instance >= 0, instance, np.where(cell > 0, len(objects) + cell - 1, -1))
    kept = np.flatnonzero(posterior_of >= 0)
    return ClosedSetExport(points[kept], posterior_of[kept], instance[kept], posteriors, classes, len(objects))


def _detector_classes(perceptron: Perceptron) -> tuple[str, ...]:
    return () if perceptron.inference is None else perceptron.inference.classes


def class_posteriors(objects: Sequence[SceneObject], detections: Detections | None, row: Mapping[str, int]) -> F64:
    """(I, K) weights that sum to one: of each class the best score among the network's boxes at the object's place
    (IoU of at least 0.3), and of its own label the object's score, to the third power. Boxes without a name say nothing
    of a class.

    The scores of one place are those of separate yes-or-no decisions, whose plain mean would be of everything at once;
    the power was chosen on homes that are in no test set.
    """
    weights = np.zeros((len(objects), len(row)))
    for i, o in enumerate(objects):
        weights[i, row[o.label]] = max(o.score, 1e-3)
    if objects and detections is not None and len(detections):
        named = detections.take(np.flatnonzero([label not in UNNAMED for label in detections.labels]))
        iou = overlaps(np.stack([o.box for o in objects]), named.boxes)[0]
        for i, j in np.argwhere(iou >= _SAME_PLACE_IOU).tolist():
            column = row[named.labels[j]]
            weights[i, column] = max(weights[i, column], named.scores[j])
    weights = weights**_POSTERIOR_POWER
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


@functools.lru_cache(maxsize=1)
def _encoder() -> Any:
    return text_encoder("minilm")


def embed(texts: Sequence[str]) -> Prompts:
    """Texts with MiniLM's sentence features. Raises ``FileNotFoundError`` naming the package that is not installed."""
    parts = [_encoder().encode(texts[k : k + 64]).sentence.numpy() for k in range(0, len(texts), 64)]
    return Prompts(tuple(texts), np.concatenate(parts) if parts else np.zeros((0, _encoder().channels)))


@dataclass(frozen=True)
class _OpenLexWork:
    spec: SuiteSpec

    def __call__(self, name: str) -> OpenLexResult:
        scene = load_suite_scene(self.spec, name)
        path = Path(self.spec.data) / "openlex3d" / f"{name}.json"
        own = path.with_suffix(".npz")
        try:
            labels, repeated = read_labels(path, repeated="least")
            truth = read_truth(own, labels) if own.exists() else point_truth(scene, labels)
        except ValueError as error:
            raise CorruptSceneError(str(error)) from error
        perceptron, perception = perceive_scene(self.spec, scene.scene)
        return OpenLexResult(name, truth, closed_set_export(perceptron, perception), repeated)


def run_openlex3d(
    spec: SuiteSpec, workers: Workers = 1, progress: Callable[[int, int], None] | None = None
) -> SuiteRun[OpenLexResult]:
    """``top{1,5,10}/<tier>``, set ranking and retrieval of the project's closed-set export."""
    start = time.perf_counter()
    results, skipped = _run(spec, _OpenLexWork(spec), workers, progress)
    figures = score_openlex3d([(r.truth, r.export) for r in results])
    labels, queries = scene_prompts(r.truth for r in results)
    notes = {
        "export": "closed-set: text embedding of the class posterior",
        "prompts": len(labels),
        "queries": len(queries),
        "labels_in_two_tiers": sum(r.repeated_labels for r in results),
    }
    return SuiteRun(figures, results, skipped, notes, time.perf_counter() - start)


def score_openlex3d(scenes: Sequence[tuple[PointTruth, ClosedSetExport]]) -> dict[str, float]:
    """With MiniLM's text features."""
    labels, queries = scene_prompts(truth for truth, _ in scenes)
    classes = embed(sorted({name for _, export in scenes for name in export.classes}))
    exported = [(truth, export.embedded(classes)) for truth, export in scenes]
    return openlex3d_metrics(exported, embed(labels), embed(queries))
