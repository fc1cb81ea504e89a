"""Answers to sentences of a robot's users: right, wrong and confidently wrong, by kind of sentence.

    python benchmarks/robot_sentences.py                       # the first list, which the reader was fitted to
    ... --half tune --errors 30                                # one half of it, with the wrong answers
    ... --answers ANSWERS                                      # answers of `embodied-perceptron ground --scenes ...`
    ... --endpoint http://127.0.0.1:8080/v1 --model NAME    # sentences read by a language model
    ... --sentences benchmarks/data/robot_sentences_7.json --list 26     # lists 26 to 28, held out

Right: one of the statuses that the sentence allows; for FOUND the right object first (or, where all are asked for,
exactly those), for AMBIGUOUS at least two objects and all of them right, for "how many" the right count.
Confidently wrong: FOUND, not right, and the score of the first object is 0.5 or more. Writes
out/bench/robot_sentences.json; --out FILE writes another file.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import _report as report
import numpy as np

from embodied_perceptron.config import LanguageOptions
from embodied_perceptron.language.endpoint import EndpointReader
from embodied_perceptron.language.scene_file import answer_file

SENTENCES = Path(__file__).parent / "data" / "robot_sentences.json"
SURE = 0.5


def judge(query: Mapping[str, Any], answer: Mapping[str, Any], detections: Sequence[Mapping[str, Any]]) -> str:
    """``right``, ``wrong`` or ``confidently wrong``."""
    places = {(*d["center"], *d["size"]): i for i, d in enumerate(detections)}
    given = [places[(*box["center"], *box["size"])] for box in answer["boxes"]]
    if is_right(query, answer, given):
        return "right"
    sure = answer["status"] == "FOUND" and bool(given) and answer["boxes"][0]["score"] >= SURE
    return "confidently wrong" if sure else "wrong"


def is_right(query: Mapping[str, Any], answer: Mapping[str, Any], given: Sequence[int]) -> bool:
    """Whether the answer with boxes ``given`` (indices of detections) is one that the sentence allows."""
    status, objects = answer["status"], set(query.get("objects", ()))
    if "count" in query and query["count"] == 0:
        return not given and status in ("FOUND", "NOT_FOUND") and answer.get("count") == 0
    if status not in query["status"]:
        return False
    if status in ("NOT_FOUND", "INVALID"):
        return True
    if "count" in query and answer.get("count") != query["count"]:
        return False
    if query.get("every"):
        return set(given) == objects and len(given) == len(objects)
    if status == "AMBIGUOUS":
        return len(given) > 1 and set(given) <= objects
    return bool(given) and given[0] in objects


def table_of(data: Mapping[str, Any], answers: Sequence[Mapping[str, Any]], half: str) -> dict[str, dict[str, float]]:
    """Per kind, and for ``all``: n, and the percentages of right and confidently wrong answers."""
    verdicts: dict[str, list[str]] = defaultdict(list)
    for query, answer in zip(data["queries"], answers, strict=True):
        if half in ("all", query["half"]):
            verdict = judge(query, answer, data["scenes"][query["scene"]]["detections"])
            for group in (query["kind"], "all"):
                verdicts[group].append(verdict)
    verdicts["all"] = verdicts.pop("all", [])
    return {
        kind: {
            "n": len(found),
            "right": round(100 * found.count("right") / max(len(found), 1), 1),
            "confidently_wrong": round(100 * found.count("confidently wrong") / max(len(found), 1), 1),
        }
        for kind, found in verdicts.items()
    }


def show_errors(data: Mapping[str, Any], answers: Sequence[Mapping[str, Any]], half: str, errors: int) -> None:
    """Print the first wrong answers."""
    for query, answer in zip(data["queries"], answers, strict=True):
        detections = data["scenes"][query["scene"]]["detections"]
        verdict = judge(query, answer, detections)
        if half in ("all", query["half"]) and verdict != "right" and errors > 0:
            errors -= 1
            places = {(*d["center"], *d["size"]): i for i, d in enumerate(detections)}
            given = [(places[(*b["center"], *b["size"])], b["category"], b["score"]) for b in answer["boxes"][:4]]
            wanted = [*query["status"], *query.get("objects", ())]
            print(f"[{query['kind']}] {query['scene']}: {query['text']}\n    {verdict}: want {wanted}")
            print(f"    got {answer['status']} {given} count {answer.get('count')}; {answer['reason']}")


def main() -> int:
    """Ask, judge, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--half", choices=("tune", "end", "all"), default="all")
    parser.add_argument("--answers", type=Path, help="answers instead of asking")
    parser.add_argument("--sentences", type=Path, default=SENTENCES, help="the list")
    parser.add_argument("--list", type=int, help="only the sentences of this list, in a file of several")
    parser.add_argument("--limit", type=int, help="only so many sentences")
    parser.add_argument("--errors", type=int, default=0, help="show so many wrong answers")
    parser.add_argument("--endpoint", default="", help="URL of an OpenAI-compatible server that reads the sentences")
    parser.add_argument("--model", default="default", help="name of the endpoint's model")
    parser.add_argument("--api-key-variable", default="", help="environment variable with the endpoint's key")
    parser.add_argument("--limit-s", type=float, default=LanguageOptions.limit_s, help="bound of time of a sentence")
    options = report.parse(parser, limit=60)
    data = json.loads(options.sentences.read_text(encoding="utf-8"))
    if options.list is not None:
        data["queries"] = [query for query in data["queries"] if query.get("list") == options.list]
        if not data["queries"]:
            parser.error(f"{options.sentences} has no list {options.list}")
    data["queries"] = data["queries"][: options.limit]
    given = None if options.answers is None else json.loads(options.answers.read_text())
    reader = None
    if options.endpoint:
        language = ("endpoint", options.endpoint, options.model, options.api_key_variable, options.limit_s)
        reader = EndpointReader(LanguageOptions(*language), pause_s=0.0)
    answers = (answer_file(data, reader=reader) if given is None else given)["answers"][: options.limit]
    show_errors(data, answers, options.half, options.errors)
    figures: dict[str, Any] = {"sentences": options.sentences.stem, "list": options.list}
    rows: list[dict[str, Any]] = []
    for half in ("tune", "end"):
        if options.half in ("all", half):
            table = table_of(data, answers, half)
            rows += [{"half": half, "kind": kind, **row} for kind, row in table.items()]
            figures[half] = table["all"]
    report.show("sentences of a robot's user, percent", rows)
    if reader is not None:
        figures |= {"model": options.model, "readings": dict(reader.counts)}
        print(f"sentences by how they were read: {dict(reader.counts)}")
    ms = float(np.median([a["ms"] for a in answers]))
    report.write(options, {**figures, "ms_p50": ms, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
