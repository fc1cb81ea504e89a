"""3D-POPE: does a model claim objects that are not there? Questions, metrics, files and runs.

A question is a triple (scene, "is there a X?", yes or no), with equal numbers of yes and no in every scene. Positives
are the scene's categories. The k negatives for k positives depend on the protocol (3D-GRAND, Yang et al., CVPR 2025,
after POPE):

    random       absent categories, drawn evenly
    popular      the absent categories that are in most scenes of the training set
    adversarial  for each positive the unused absent category that most scenes of the training set have together with it

Ties go to the category in more training scenes, then by name, so the questions do not depend on the order of the input.

Files, all JSON:

    scene list   {"scenes": {id: [category, ...]}} or {"scenes": {id: {"present": [...], "unasked": [...]}}};
                 unasked: in the scene, but neither a positive nor a negative (hardly visible)
    answers      {"answers": [{"scene": id, "category": name, "answer": "yes" or "no"}, ...]}

Questions of 3D-GRAND's kinds are those that the generator writes beside each home (``language/<scene>.json``), proved
by its geometry:

    existence   is there a plant here?                    yes / no
    counting    are there exactly 3 plants?               yes / no; and how many plants are there: a number
    attribute   is the chair red?                         yes / no
    relation    is there a cup on the table?              yes / no

The answer is yes where the perceptron finds a candidate. It is *located* where a box of the answer overlaps an object
that the true answer rests on (IoU 0.25).
"""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import iou_of_arrays
from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron.language.object_states import StateLabels, predict_states
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.recordings import plain_values as checked
from embodied_perceptron.recordings.files import read_object, write_json
from embodied_perceptron.results import Grounding, GroundingStatus, Perception
from embodied_perceptron_training.datasets.embodiedscan import SOURCES, DatasetError, MissingSplitError
from embodied_perceptron_training.datasets.grounded_prompts import grounded_texts
from embodied_perceptron_training.evaluation.metrics.dense_grounding import DenseScore, score_dense
from embodied_perceptron_training.evaluation.runner.evaluate import dataset, scene_names
from embodied_perceptron_training.evaluation.runner.parallel import CorruptSceneError, EvaluationError
from embodied_perceptron_training.evaluation.runner.scenes import EvaluationScene, choose_views
from embodied_perceptron_training.evaluation.suites.object_states import (
    labels_of_record,
    matched_rows,
    renumbered,
    state_metrics,
)
from embodied_perceptron_training.evaluation.suites.scenes import (
    STRUCTURE,
    UNNAMED,
    Scored,
    Suite,
    SuiteRun,
    SuiteScene,
    SuiteSpec,
    is_home,
    load_suite_scene,
    perceive_scene,
)
from embodied_perceptron_training.homes.generate import load_record

PROTOCOLS = ("random", "popular", "adversarial")
FIGURES = ("precision", "recall", "f1", "accuracy", "yes")


@dataclass(frozen=True)
class ScenePresence:
    """Categories of a scene.

    Raises ``ValueError`` naming the scene and a category that is listed twice or is not text.
    """

    scene_id: str  # name
    present: tuple[str, ...]  # categories to ask for, each once
    unasked: tuple[str, ...] = ()  # categories in the scene that are not asked for

    def __post_init__(self) -> None:
        listed = [*self.present, *self.unasked]
        for name in listed:
            if not isinstance(name, str) or not name.strip():
                raise ValueError(f"scene {self.scene_id!r}: {name!r} is no category")
        twice = sorted({name for name in listed if listed.count(name) > 1})
        if twice:
            raise ValueError(f"scene {self.scene_id!r} lists {twice[0]!r} twice")


@dataclass(frozen=True)
class Question:
    """Is there a ``category`` in the scene?"""

    scene_id: str
    category: str
    exists: bool

    @property
    def text(self) -> str:
        """In words."""
        return f"Is there {'an' if self.category[0] in 'aeiou' else 'a'} {self.category} in the scene?"


@dataclass(frozen=True, eq=False)
class CategoryStatistics:
    """How often categories occur, and occur together, in the scenes of a training set."""

    categories: tuple[str, ...]  # (K,) sorted names; negatives are taken from these
    scenes: NDArray[np.int64]  # (K,) int64 scenes that have each
    together: NDArray[np.int64]  # (K, K) int64 scenes that have both

    @classmethod
    def of(cls, scenes: Iterable[ScenePresence]) -> CategoryStatistics:
        """Count scenes, unasked categories included. Raises ``ValueError`` where there is no category."""
        sets = [frozenset((*scene.present, *scene.unasked)) for scene in scenes]
        names = tuple(sorted(frozenset[str]().union(*sets)))
        if not names:
            raise ValueError("the training scenes hold no category")
        has = np.array([[name in there for name in names] for there in sets], np.int64)
        together = has.T @ has
        return cls(names, np.diagonal(together).copy(), together)


def make_questions(
    scenes: Sequence[ScenePresence], statistics: CategoryStatistics, protocol: str, seed: int = 0
) -> list[Question]:
    """Questions sorted by scene, positives before negatives, equally many of each; none for a scene without categories.

    The random protocol draws from ``seed`` and the scene's name, so the questions of a scene do not depend on the
    others.

    Raises ``ValueError`` for an unknown protocol, a scene given twice, or a scene with too few absent categories in the
    vocabulary.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol must be one of {', '.join(PROTOCOLS)}, got {protocol!r}")
    names = [scene.scene_id for scene in scenes]
    if len(set(names)) < len(names):
        raise ValueError(f"scene {next(n for n in names if names.count(n) > 1)!r} is given twice")
    questions: list[Question] = []
    for scene in sorted(scenes, key=lambda s: s.scene_id):
        positives = sorted(scene.present)
        there = {*scene.present, *scene.unasked}
        absent = [k for k, name in enumerate(statistics.categories) if name not in there]
        if len(absent) < len(positives):
            raise ValueError(
                f"scene {scene.scene_id!r} has {len(positives)} categories, "
                f"but only {len(absent)} of the vocabulary are absent"
            )
        if protocol == "random":
            rng = np.random.default_rng([seed, zlib.crc32(scene.scene_id.encode())])
            chosen = sorted(int(k) for k in rng.choice(absent, len(positives), replace=False)) if positives else []
        elif protocol == "popular":
            chosen = _most(absent, statistics.scenes, statistics)[: len(positives)]
        else:
            chosen = _adversarial(positives, absent, statistics)
        questions += [Question(scene.scene_id, name, True) for name in positives]
        questions += [Question(scene.scene_id, statistics.categories[k], False) for k in chosen]
    return questions


def _adversarial(positives: Sequence[str], absent: Sequence[int], statistics: CategoryStatistics) -> list[int]:
    row = {name: k for k, name in enumerate(statistics.categories)}
    left, chosen = list(absent), []
    for name in positives:
        together = statistics.together[row[name]] if name in row else np.zeros_like(statistics.scenes)
        best = _most(left, together, statistics)[0]
        chosen.append(best)
        left.remove(best)
    return chosen


def _most(rows: Sequence[int], count: NDArray[np.int64], statistics: CategoryStatistics) -> list[int]:
    """Sort rows by falling count, then by number of scenes, then by name."""
    return sorted(rows, key=lambda k: (-int(count[k]), -int(statistics.scenes[k]), k))


def pope_metrics(questions: Sequence[Question], answers: Sequence[bool]) -> dict[str, float]:
    """``precision recall f1 accuracy yes`` in percent; ``yes`` is the share of questions answered with yes.

    Precision without any yes, and recall without any positive, are 0. Raises ``ValueError`` when lengths differ, there
    is no question, or an answer is not true or false.
    """
    if not questions:
        raise ValueError("no questions")
    if len(questions) != len(answers):
        raise ValueError(f"{len(answers)} answers for {len(questions)} questions")
    wrong = [a for a in answers if not isinstance(a, (bool, np.bool_))]
    if wrong:
        raise ValueError(f"answers must be true or false, got {wrong[0]!r}")
    exists, answered = np.array([q.exists for q in questions], bool), np.array(answers, bool)
    right = int((exists & answered).sum())
    precision = right / max(int(answered.sum()), 1)
    recall = right / max(int(exists.sum()), 1)
    f1 = 2 * precision * recall / (precision + recall) if right else 0.0
    values = (precision, recall, f1, float((exists == answered).mean()), float(answered.mean()))
    return {name: 100.0 * value for name, value in zip(FIGURES, values, strict=True)}


def answer_questions(questions: Sequence[Question], answers: Mapping[tuple[str, str], bool]) -> list[bool]:
    """Answers in the order of the questions, from those by (scene, category). Raises ``ValueError`` where one is
    missing."""
    for q in questions:
        if (q.scene_id, q.category) not in answers:
            raise ValueError(f"no answer for {q.category!r} in scene {q.scene_id!r}")
    return [answers[q.scene_id, q.category] for q in questions]


# -- Files.


def read_scene_list(path: Path) -> list[ScenePresence]:
    """Scenes of a JSON file (see the module docstring), sorted by name. Raises ``ValueError`` naming file, scene and
    fault."""
    scenes = []
    for name, entry in sorted(_read(path, "scenes", checked.mapping).items()):
        parts = entry if isinstance(entry, dict) else {"present": entry}
        given = {"present": parts.get("present"), "unasked": parts.get("unasked", [])}
        lists = [checked.sequence(v, f"{path}: scene {name!r}: {k!r}") for k, v in given.items()]
        try:
            scenes.append(ScenePresence(name, *map(tuple, lists)))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    return scenes


def write_scene_list(path: Path, scenes: Sequence[ScenePresence]) -> None:
    """Write a file that :func:`read_scene_list` reads. Raises ``OSError``."""
    listed = sorted(scenes, key=lambda s: s.scene_id)
    write_json(path, {"scenes": {s.scene_id: {"present": s.present, "unasked": s.unasked} for s in listed}})


def read_answers(path: Path) -> dict[tuple[str, str], bool]:
    """(scene, category) -> answer. Raises ``ValueError`` naming the file and an entry that is wrong or contradicts
    another."""
    found: dict[tuple[str, str], bool] = {}
    for number, entry in enumerate(_read(path, "answers", checked.sequence)):
        place = f"{path}: answer {number}"
        values = checked.mapping(entry, place)
        scene, category, said = (
            checked.text(values.get(key), f"{place}: {key!r}") for key in ("scene", "category", "answer")
        )
        answered = said.strip().lower()
        if answered not in ("yes", "no"):
            raise ValueError(f"{place} must be yes or no, got {said!r}")
        if found.setdefault((scene, category), answered == "yes") != (answered == "yes"):
            raise ValueError(f"{place} contradicts an earlier one about {category!r} in {scene!r}")
    return found


def write_answers(path: Path, answers: Mapping[tuple[str, str], bool]) -> None:
    """Write a file that :func:`read_answers` reads. Raises ``OSError``."""
    entries = [
        {"scene": scene, "category": name, "answer": "yes" if answered else "no"}
        for (scene, name), answered in sorted(answers.items())
    ]
    write_json(path, {"answers": entries})


def _read(path: Path, key: str, check: Callable[[Any, str], Any]) -> Any:
    return check(read_object(path).get(key), f"{path}: {key!r}")


# -- Questions of 3D-GRAND's kinds.


KINDS = ("existence", "counting", "attribute", "relation")
MIN_IOU = 0.25
_YES = (GroundingStatus.FOUND, GroundingStatus.AMBIGUOUS)
_EXACTLY = re.compile(r"(?:Is|Are) there exactly (\d+) (.+)\?")
_COLOR = re.compile(r"What color is the (.+)\?")
_COLORS = ("black", "white", "gray", "red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "beige")
_WHICH = re.compile(r"Which kind of thing is (.+): (.+) or nothing\?")
_IS_IT = re.compile(r"Is the (.+) (\S+)\?")


@dataclass(frozen=True)
class GroundedQuestion:
    """One question with its answer."""

    scene_id: str  # scene_id, kind, text: as in the file
    kind: str
    text: str
    answer: bool | int | str  # True or False, a number, or a word: a colour or a name
    ids: tuple[int, ...] = ()  # annotation ids of the objects that the answer rests on

    @property
    def is_number(self) -> bool:
        return type(self.answer) is int


@dataclass(frozen=True, eq=False)
class GroundedReply:
    """The answer (yes or no, a number, or a word), and the (N, 9) boxes that it rests on."""

    answer: bool | int | str
    boxes: F64


def read_grounded_questions(path: Path, scene_id: str) -> list[GroundedQuestion]:
    """Questions of a home's language file; each text once.

    Raises ``ValueError`` naming file and entry.
    """
    found: dict[str, GroundedQuestion] = {}
    for number, entry in enumerate(_read(path, "qa", checked.sequence)):
        question = _question(path, scene_id, number, entry)
        found.setdefault(question.text, question)
    return list(found.values())


def _question(path: Path, scene_id: str, number: int, entry: Any) -> GroundedQuestion:
    keys = ("kind", "question", "answer", "grounding")
    if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in keys):
        raise ValueError(f"{path}: question {number} must have {', '.join(keys)}, got {entry!r}")
    if entry["kind"] not in KINDS:
        raise ValueError(f"{path}: question {number} is of no known kind: {entry['kind']!r}")
    words = entry["answer"]
    answer: bool | int | str = int(words) if words.isdecimal() else words
    answer = words == "yes" if words in ("yes", "no") else answer
    ids = tuple(int(n) for n in re.findall(r"<obj_(\d+)>", entry["grounding"]))
    return GroundedQuestion(scene_id, entry["kind"], entry["question"], answer, ids)


def choices(question: GroundedQuestion) -> dict[str, str]:
    """The possible answers to an open question, each with the sentence that it claims; one claims nothing."""
    color, which = _COLOR.fullmatch(question.text), _WHICH.fullmatch(question.text)
    if color is not None:
        return {"unknown": "", **{word: f"the {word} {color[1]}" for word in _COLORS}}
    return {"nothing": "", which[2]: f"the {which[2]} {which[1]}"} if which is not None else {"unknown": ""}


def asked(question: GroundedQuestion) -> tuple[str, int | None]:
    """The sentence for the perceptron, and the number that its count must equal for a yes."""
    exactly = _EXACTLY.fullmatch(question.text)
    if exactly is not None:
        return f"How many {exactly[2]} are there?", int(exactly[1])
    is_it = _IS_IT.fullmatch(question.text) if question.kind == "attribute" else None
    if is_it is not None:
        return f"the {is_it[2]} {is_it[1]}", None
    return question.text, None


def answer_grounded(
    ask: Callable[[Sequence[str]], Sequence[Grounding]], questions: Sequence[GroundedQuestion]
) -> list[GroundedReply]:
    """Ask all questions of one scene; ``ask`` answers sentences. The answer to an open question is the one whose
    sentence is found with the best score."""
    sentences = [asked(question) for question in questions]
    replies = []
    for question, (_, number), answer in zip(questions, sentences, ask([text for text, _ in sentences]), strict=True):
        if isinstance(question.answer, str):
            nothing, *words = choices(question).items()
            claimed = zip(words, ask([text for _, text in words]), strict=True)
            found = [(a.candidates[0].score, word, a.candidates[0].box) for (word, _), a in claimed if a.status in _YES]
            _, best, box = max(found, key=lambda f: f[0], default=(0.0, nothing[0], np.zeros((0, 9))))
            replies.append(GroundedReply(best, box.reshape(-1, 9)))
            continue
        yes = answer.status in _YES
        # plurals are counted; for a singular the count is one if it was found
        count = answer.count if answer.count is not None else int(yes)
        given: bool | int = count if question.is_number else yes if number is None else count == number
        meant = answer.candidates[: max(count, 1)] if question.kind == "counting" else answer.candidates[:1]
        boxes = np.array([o.box for o in meant if yes], dtype=np.float64).reshape(-1, 9)
        replies.append(GroundedReply(given, boxes))
    return replies


def grounded_metrics(
    questions: Sequence[GroundedQuestion],
    replies: Sequence[GroundedReply],
    boxes: Sequence[dict[int, F64]],
) -> dict[str, float]:
    """``grounded/<kind>/{precision,recall,f1,accuracy,yes}``, ``grounded/<kind>/exact`` of numbers and words, and
    ``grounded/<kind>/located``, in percent; kinds without a question have no figures.

    ``located`` is the share of the true yes-answers (and numbers above 0) that were given and have a box on a true
    object.

    Args:
        questions: of all scenes.
        replies: in the same order.
        boxes: for each question, annotation id -> (9,) box of its scene.

    Raises ``ValueError`` when lengths differ.
    """
    if not len(questions) == len(replies) == len(boxes):
        raise ValueError(f"{len(questions)} questions, {len(replies)} replies, boxes of {len(boxes)}")
    figures: dict[str, float] = {}
    for kind in KINDS:
        rows = [i for i, q in enumerate(questions) if q.kind == kind]
        closed = [i for i in rows if isinstance(questions[i].answer, bool)]
        if closed:
            truth = [Question(questions[i].scene_id, questions[i].text, bool(questions[i].answer)) for i in closed]
            values = pope_metrics(truth, [bool(replies[i].answer) for i in closed])
            figures |= {f"grounded/{kind}/{name}": value for name, value in values.items()}
        named = [i for i in rows if i not in closed]
        if named:
            right = [replies[i].answer == questions[i].answer for i in named]
            figures[f"grounded/{kind}/exact"] = 100.0 * float(np.mean(right))
        resting = [i for i in rows if questions[i].answer and questions[i].ids]
        if resting:
            located = [_is_located(questions[i], replies[i], boxes[i]) for i in resting]
            figures[f"grounded/{kind}/located"] = 100.0 * float(np.mean(located))
    return figures


def _is_located(question: GroundedQuestion, reply: GroundedReply, boxes: dict[int, F64]) -> bool:
    # a relation's answer is its first object; the others are anchors
    ids = question.ids[:1] if question.kind == "relation" else question.ids
    true = np.array([boxes[n] for n in ids if n in boxes]).reshape(-1, 9)
    if not reply.answer or len(true) == 0 or len(reply.boxes) == 0:
        return False
    return bool(iou_of_arrays(reply.boxes, true).max() >= MIN_IOU)


# -- The deployed perceptron.

TRAINING_HOMES = Path(__file__).with_name("pope_training_homes.json")
MIN_PIXELS = 200  # with depth, in one view, of an instance of a present category


@dataclass(frozen=True, eq=False)
class PopeResult:
    """One scene."""

    presence: ScenePresence  # its categories
    answers: dict[str, bool]  # by category
    questions: tuple[GroundedQuestion, ...] = ()  # questions, replies: of 3D-GRAND's kinds
    replies: tuple[GroundedReply, ...] = ()
    boxes: dict[int, F64] = field(default_factory=dict)  # (9,) of each object by its annotation id
    states: tuple[StateLabels, StateLabels] = (StateLabels(), StateLabels())  # true, predicted
    dense: DenseScore = field(default_factory=DenseScore)  # grounding of the phrases of descriptions


def presence_of(scene: SuiteScene) -> ScenePresence:
    """Categories of a scene. Present: with an instance of at least 200 pixels with depth in one view, or in a real scan
    with an instance that a view shows. Unasked: all others in the scene, and walls, floor and ceiling."""
    names = set(scene.scene.labels) - UNNAMED
    if scene.instances is None:
        visible = {scene.scene.labels[row] for row in scene.scene.seen_rows()}
    else:
        visible = set[str]()
        labels = scene.label_of
        for frame, instances in zip(scene.scene.frames, scene.instances, strict=True):
            pixels = np.bincount(instances[(frame.frame.depth_m > 0) & (instances >= 0)], minlength=1)
            visible.update(labels[k] for k in np.flatnonzero(pixels >= MIN_PIXELS).tolist() if k in labels)
    present = tuple(sorted((visible & names) - STRUCTURE))
    return ScenePresence(scene.scene.name, present, tuple(sorted(names.union(STRUCTURE).difference(present))))


@functools.lru_cache(maxsize=4)
def training_statistics(training: str | None, data: str | None = None) -> CategoryStatistics:
    """Statistics of the scene list ``training``; of the training split of ``data`` where that is None; of the shipped
    weights' training homes where both are. Raises ``ValueError``."""
    if training is not None or data is None:
        return CategoryStatistics.of(read_scene_list(Path(training or TRAINING_HOMES)))
    try:
        scans = list(dataset(data, "train"))
    except MissingSplitError as error:
        raise EvaluationError(f"negatives are drawn from training scenes: give --training-scenes; {error}") from error
    labels = {scan.sample_idx: sorted(set(scan.labels) - UNNAMED) for scan in scans}
    return CategoryStatistics.of([ScenePresence(name, tuple(found)) for name, found in labels.items()])


def pope_questions(spec: SuiteSpec, scenes: Sequence[ScenePresence]) -> dict[str, list[Question]]:
    """Questions by protocol."""
    real = any(scene.scene_id.split("/")[0] in SOURCES and not is_home(scene.scene_id) for scene in scenes)
    statistics = training_statistics(spec.training, spec.data if real else None)
    return {protocol: make_questions(scenes, statistics, protocol, spec.seed) for protocol in PROTOCOLS}


def existence(perceptron: Perceptron, scene_id: str, categories: Sequence[str]) -> dict[str, bool]:
    """Answers of the deployed perceptron to "is there a X?"; one or more candidates count as yes."""
    asked = perceptron.ground_many([Question(scene_id, name, True).text for name in categories])
    return {name: answer.status in _YES for name, answer in zip(categories, asked, strict=True)}


def _evaluate(spec: SuiteSpec, name: str) -> PopeResult:
    scene = load_suite_scene(spec, name)
    presence = presence_of(scene)
    asked = sorted({q.category for listed in pope_questions(spec, [presence]).values() for q in listed})
    perceptron, perception = perceive_scene(spec, scene.scene)
    language = Path(spec.data) / "language" / f"{name}.json"
    try:
        kinds = read_grounded_questions(language, presence.scene_id) if language.exists() else []
    except ValueError as error:
        raise CorruptSceneError(str(error)) from error
    replies = answer_grounded(perceptron.ground_many, kinds)
    boxes = dict(zip(scene.scene.ids.tolist(), scene.scene.boxes, strict=True))
    states = _states(spec, name, scene.scene, perception) if is_home(name) else (StateLabels(), StateLabels())
    answers = existence(perceptron, presence.scene_id, asked)
    dense = _dense(perceptron, language, boxes) if language.exists() else DenseScore()
    return PopeResult(presence, answers, tuple(kinds), tuple(replies), boxes, states, dense)


def _states(
    spec: SuiteSpec, name: str, scene: EvaluationScene, perception: Perception
) -> tuple[StateLabels, StateLabels]:
    """True states in the used views, and those of the published objects, by annotation id."""
    frames = load_record(spec.data, name)["frames"]
    names = {int(k): label for k, label in zip(scene.ids, scene.labels, strict=True)}
    try:
        truth = labels_of_record(frames, names, choose_views(len(frames), spec.views))
    except ValueError as error:
        raise CorruptSceneError(f"{name}: {error}") from error
    objects = perception.objects
    boxes = np.array([o.box for o in objects]).reshape(-1, 9)
    predicted = predict_states(boxes, [o.label for o in objects], perception.voxels.mean_point_m)
    rows = matched_rows(objects, scene.boxes, scene.labels)
    return truth, renumbered(predicted, {row: int(scene.ids[k]) for row, k in rows.items()})


def _dense(perceptron: Perceptron, language: Path, boxes: Mapping[int, F64]) -> DenseScore:
    """Score the descriptions of a home; a published object matches a tagged one at IoU 0.25."""
    mine = {o.id: o.box for o in perceptron.objects}

    def same(predicted: int, true: int) -> bool:
        if predicted not in mine or true not in boxes:
            return False
        pair = (np.asarray(box, np.float64)[None] for box in (mine[predicted], boxes[true]))
        return bool(iou_of_arrays(*pair) >= MIN_IOU)

    try:
        return score_dense(grounded_texts(language), perceptron.ground_many, same)
    except DatasetError as error:
        raise CorruptSceneError(str(error)) from error


def _check(spec: SuiteSpec) -> None:
    if spec.training is not None:
        training_statistics(spec.training)


def _score(spec: SuiteSpec, results: Sequence[PopeResult]) -> Scored:
    """``{random,popular,adversarial}/{precision,recall,f1,accuracy,yes}`` of the deployed perceptron. For homes also
    ``dense/...`` (:mod:`~embodied_perceptron_training.evaluation.metrics.dense_grounding`), ``grounded/<kind>/...``
    (:func:`grounded_metrics`) and ``states/<name>/...`` (:mod:`.object_states`)."""
    answers = {(r.presence.scene_id, name): yes for r in results for name, yes in r.answers.items()}
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
    return figures, notes


def score_pope(
    questions: Mapping[str, Sequence[Question]], answers: Mapping[tuple[str, str], bool]
) -> dict[str, float]:
    """Figures of all protocols."""
    return {
        f"{protocol}/{name}": value
        for protocol, listed in questions.items()
        for name, value in pope_metrics(listed, answer_questions(listed, answers)).items()
    }


def score_pope_files(spec: SuiteSpec, scene_list: Path | None, answers: Path | None, out: Path) -> Scored:
    """Score ``answers`` about the scenes of a list, or without one about the homes of ``spec``. The questions are
    written to ``out`` first. Raises :class:`EvaluationError` after that where ``answers`` is None."""
    if scene_list is not None:
        scenes = read_scene_list(scene_list)
    else:
        scenes = [presence_of(load_suite_scene(spec, name)) for name in scene_names(spec.plain)]
    questions = pope_questions(spec, scenes)
    write_questions(out / "questions.json", questions)
    if answers is None:
        raise EvaluationError(f"the questions are in {out / 'questions.json'}; give --answers to score them")
    figures = score_pope(questions, read_answers(answers))
    return figures, {"data": f"{len(scenes)} scenes", "answers": answers.name}


def write_questions(path: Path, questions: Mapping[str, Sequence[Question]]) -> None:
    """Write questions by protocol, with the right answers. Raises ``OSError``."""
    entries = {
        protocol: [
            {"scene": q.scene_id, "category": q.category, "question": q.text, "right": "yes" if q.exists else "no"}
            for q in listed
        ]
        for protocol, listed in questions.items()
    }
    write_json(path, entries)


def write_pope(spec: SuiteSpec, run: SuiteRun[PopeResult], out: Path) -> None:
    """Write ``scenes.json``, ``questions.json`` and ``answers.json`` of a run, in the forms of the module docstring."""
    scenes = [r.presence for r in run.results]
    answers = {(r.presence.scene_id, name): yes for r in run.results for name, yes in r.answers.items()}
    write_scene_list(out / "scenes.json", scenes)
    write_questions(out / "questions.json", pope_questions(spec, scenes))
    write_answers(out / "answers.json", answers)


SUITE = Suite(_evaluate, _score, write_pope, _check)
