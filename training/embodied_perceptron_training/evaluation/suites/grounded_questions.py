"""Questions of 3D-GRAND's kinds that the deployed language answers, each with the things that its answer rests on.

    existence   is there a plant here?                    yes / no
    counting    are there exactly 3 plants?               yes / no; and how many plants are there: a number
    attribute   is the chair red?                         yes / no
    relation    is there a cup on the table?              yes / no

Questions and answers are those that the generator writes beside each home (``language/<scene>.json``), proved by
its geometry. They are asked as :func:`asked` says, in the words that the perceptron reads; its answer is yes where it
finds something, and the number that it counts. What it points at is *located* where a box of its answer lies on a
thing that the true answer rests on (IoU 0.25).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import box_iou
from embodied_perceptron.results import Grounding, GroundingStatus
from embodied_perceptron_training.evaluation.suites.pope import Question, pope_metrics

KINDS = ("existence", "counting", "attribute", "relation")
MIN_IOU = 0.25
_YES = (GroundingStatus.FOUND, GroundingStatus.AMBIGUOUS)
_EXACTLY = re.compile(r"(?:Is|Are) there exactly (\d+) (.+)\?")
_IS_IT = re.compile(r"Is the (.+) (\S+)\?")

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class GroundedQuestion:
    """One question with its answer.

    Attributes:
        scene_id, kind, text: as written.
        answer: True or False, or a number.
        ids: annotation ids of the things that the answer rests on.
    """

    scene_id: str
    kind: str
    text: str
    answer: bool | int
    ids: tuple[int, ...] = ()

    @property
    def is_number(self) -> bool:
        """Whether it asks for a number."""
        return not isinstance(self.answer, bool)


@dataclass(frozen=True, eq=False)
class GroundedReply:
    """What was said: yes or no, or a number, and the (N, 9) boxes that it rests on."""

    said: bool | int
    boxes: F64


def read_grounded_questions(path: Path, scene_id: str) -> list[GroundedQuestion]:
    """Those of a home's language file that have a yes, a no or a number for an answer; each text once.

    Raises ``ValueError`` naming file and entry.
    """
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["qa"]
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} has no questions: {type(error).__name__}: {error}") from error
    found: dict[str, GroundedQuestion] = {}
    for number, entry in enumerate(entries if isinstance(entries, list) else [entries]):
        found_one = _question(path, scene_id, number, entry)
        if found_one is not None:
            found.setdefault(found_one.text, found_one)
    return list(found.values())


def _question(path: Path, scene_id: str, number: int, entry: Any) -> GroundedQuestion | None:
    keys = ("kind", "question", "answer", "grounding")
    if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in keys):
        raise ValueError(f"{path}: question {number} must have {', '.join(keys)}, got {entry!r}")
    if entry["kind"] not in KINDS:
        raise ValueError(f"{path}: question {number} is of no known kind: {entry['kind']!r}")
    words = entry["answer"]
    if words not in ("yes", "no") and not words.isdecimal():
        return None  # names a colour or a thing
    answer = words == "yes" if words in ("yes", "no") else int(words)
    ids = tuple(int(n) for n in re.findall(r"<obj_(\d+)>", entry["grounding"]))
    return GroundedQuestion(scene_id, entry["kind"], entry["question"], answer, ids)


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
    """Ask all questions of one scene; ``ask`` answers sentences."""
    sentences = [asked(question) for question in questions]
    replies = []
    for question, (_, number), answer in zip(questions, sentences, ask([text for text, _ in sentences]), strict=True):
        yes = answer.status in _YES
        # a plural counts its things; where one was understood, one was found
        count = answer.count if answer.count is not None else int(yes)
        said: bool | int = count if question.is_number else yes if number is None else count == number
        meant = answer.candidates[: max(count, 1)] if question.kind == "counting" else answer.candidates[:1]
        boxes = np.array([o.box for o in meant if yes], dtype=np.float64).reshape(-1, 9)
        replies.append(GroundedReply(said, boxes))
    return replies


def grounded_metrics(
    questions: Sequence[GroundedQuestion],
    replies: Sequence[GroundedReply],
    boxes: Sequence[dict[int, F64]],
) -> dict[str, float]:
    """``grounded/<kind>/{precision,recall,f1,accuracy,yes}``, ``grounded/counting/exact`` and
    ``grounded/<kind>/located``, in percent; kinds without a question have no figures.

    ``located`` is the share of the true yes-answers (and numbers above 0) that were given and point at a true thing.

    Args:
        questions: of all scenes.
        replies: in the same order.
        boxes: for each question annotation id -> (9,) box of its scene.

    Raises ``ValueError`` when lengths differ.
    """
    if not len(questions) == len(replies) == len(boxes):
        raise ValueError(f"{len(questions)} questions, {len(replies)} replies, boxes of {len(boxes)}")
    figures: dict[str, float] = {}
    for kind in KINDS:
        rows = [i for i, q in enumerate(questions) if q.kind == kind]
        closed = [i for i in rows if not questions[i].is_number]
        if closed:
            truth = [Question(questions[i].scene_id, questions[i].text, bool(questions[i].answer)) for i in closed]
            values = pope_metrics(truth, [bool(replies[i].said) for i in closed])
            figures |= {f"grounded/{kind}/{name}": value for name, value in values.items()}
        numbers = [i for i in rows if questions[i].is_number]
        if numbers:
            right = [replies[i].said == questions[i].answer for i in numbers]
            figures[f"grounded/{kind}/exact"] = 100.0 * float(np.mean(right))
        resting = [i for i in rows if questions[i].answer and questions[i].ids]
        if resting:
            located = [_is_located(questions[i], replies[i], boxes[i]) for i in resting]
            figures[f"grounded/{kind}/located"] = 100.0 * float(np.mean(located))
    return figures


def _is_located(question: GroundedQuestion, reply: GroundedReply, boxes: dict[int, F64]) -> bool:
    # a relation's answer is its first thing; the others are what it stands by
    ids = question.ids[:1] if question.kind == "relation" else question.ids
    true = np.array([boxes[n] for n in ids if n in boxes]).reshape(-1, 9)
    if not reply.said or len(true) == 0 or len(reply.boxes) == 0:
        return False
    return bool(box_iou(torch.from_numpy(reply.boxes), torch.from_numpy(true)).max() >= MIN_IOU)
