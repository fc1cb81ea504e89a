"""Fit the probability that an answer to a sentence is right (:mod:`embodied_perceptron.language.answer`).

    python -m embodied_perceptron_training.language.fit_language [--homes 60] [--seed 700000]
    ... --people FILE LIST --cost TIMES
    ... --check [--out FILE]

Homes are generated without rendering. Facts of their geometry are worded by a separate grammar (:data:`SENTENCES`, no
sentence of :mod:`embodied_perceptron_training.homes.prompts`) and answered over simulated detections
(:func:`detected`): noisy, missing, mislabelled and spurious boxes. Half of the sentences have misspellings and fillers;
the words of some are shuffled, and every answer to these counts as wrong. A logistic regression over the traits of the
answers gives the probability that the first box is the object meant. ``--people FILE LIST`` adds the sentences of a
list of ``benchmarks/data``, whose writers the reader was not fitted to; all lists together count three times as
much as the homes.
A wrong answer costs a user more than a right one that is asked about again: ``--cost TIMES`` lowers the log odds so
that 0.5 is where both cost the same.
Writes ``lexicon/calibration.json`` of the installed package; ``--check`` prints the reliability on other homes instead.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from embodied_perceptron.language import answer as answers
from embodied_perceptron.language.answer import FEATURES, WEIGHTS, Traits, ground_objects, probability_right
from embodied_perceptron.language.lexicon import lexicon
from embodied_perceptron.language.query import Query
from embodied_perceptron.language.scene_file import detected_scene
from embodied_perceptron.recordings.files import write_atomically, write_json
from embodied_perceptron.results import Grounding, SceneObject
from embodied_perceptron_training.homes.building.home import HomeSpec, build_home
from embodied_perceptron_training.homes.prompts import STRUCTURE, Fact, all_facts
from embodied_perceptron_training.homes.relations import Scene, make_scene
from embodied_perceptron_training.language.markup import MarkedSentence
from embodied_perceptron_training.language.variation import Variation

F64 = NDArray[np.float64]
Observed = tuple[F64, NDArray[np.bool_]]  # features of answers, and whether each is right

# separate from the plain and the free forms of the prompts
SENTENCES: dict[str, tuple[str, ...]] = {
    "closest": (
        "this is a {target}. it stands right beside the {anchor}",
        "i mean the {target} close by the {anchor}",
        "there is a {target} adjacent to the {anchor}. choose it",
        "the {target} that you reach first when you leave the {anchor}",
        "could you go to the {target} next to the {anchor}",
    ),
    "farthest": (
        "the {target} furthest away from the {anchor}",
        "not the {target} by the {anchor}, the most distant one from it",
        "this {target} is the farthest from the {anchor}",
    ),
    "above": ("the {target} is higher up, over the {anchor}", "this is the {target} hanging above the {anchor}"),
    "below": ("there is a {target}. it is underneath the {anchor}", "a {target} below the {anchor}"),
    "on": ("the {target} sits on the {anchor}", "get me the {target} from the top of the {anchor}"),
    "supporting": ("the {target} which has a {anchor} on it", "the {target} carrying the {anchor}"),
    "in": ("the {target} lies inside of the {anchor}", "take the {target} out of the {anchor}"),
    "front": ("this {target} is placed in front of the {anchor}", "the {target} before the {anchor}"),
    "behind": ("the {target} is at the rear of the {anchor}", "there is a {target} behind the {anchor}"),
    "left": ("the {target} on the {anchor}'s left", "this {target} is left of the {anchor}"),
    "right": ("the {target} on the {anchor}'s right", "this {target} is right of the {anchor}"),
    "between": ("the {target} stands between the {anchor} and the {anchor2}",),
    "viewer left": ("when you face the {anchor} it is the {target} to the left",),
    "viewer right": ("when you face the {anchor} it is the {target} to the right",),
    "unique": ("a {target}", "please go to the {target}", "i am looking for the {target}"),
}
_PER_HOME = 40
_MISSING, _RENAMED, _SPURIOUS = 0.12, 0.08, 0.1  # shares of the objects
_NOISY, _SHUFFLED = 0.5, 0.06  # shares of the sentences
_LEAST_SHUFFLED = 6  # words of a sentence that may be shuffled
NOTHING = -1  # target of a shuffled sentence
_PEOPLE = 3  # weight of the lists beside the homes
_ALIKE = 0.3  # least similarity of labels that are confused


@dataclass(frozen=True)
class Sentence:
    """A sentence about the objects of a home; ``target``: id of the object meant, or :data:`NOTHING`."""

    text: str
    objects: tuple[SceneObject, ...]
    target: int
    ground: Callable[[str], Grounding] | None = None  # of a list; None = a home's
    right: frozenset[int] = frozenset()


def of_people(file: Path, number: int) -> Iterator[Sentence]:
    """The sentences of a list, each with the ids of the objects that answer it."""
    data = json.loads(file.read_text(encoding="utf-8"))
    scenes = {name: detected_scene(name, scene) for name, scene in data["scenes"].items()}
    for query in data["queries"]:
        if query.get("list") == number:
            scene, found = scenes[query["scene"]], "FOUND" in query["status"]
            right = frozenset(i + 1 for i in query.get("objects", ())) if found else frozenset()
            yield Sentence(query["text"], scene.objects, NOTHING, scene.ground, right)


def sentence_of(scene: Scene, fact: Fact, rng: np.random.Generator) -> str:
    """Word a fact by :data:`SENTENCES`."""
    names = [scene.objects[row].label for row in (fact.target, *fact.anchors)]
    forms = SENTENCES[fact.relation]
    words = dict(zip(("target", "anchor", "anchor2"), names, strict=False))
    return forms[int(rng.integers(len(forms)))].format(**words)


def detected(scene: Scene, rng: np.random.Generator) -> tuple[SceneObject, ...]:
    """Simulate detections; ids are rows of the scene, followed by ids of spurious boxes."""
    found = []
    labels = [o.label for o in scene.objects]
    named = sorted(set(labels) - STRUCTURE)
    boxes = [np.array(o.box9()) for o in scene.objects]
    rows = [k for k, label in enumerate(labels) if label not in STRUCTURE]
    for k in rows:
        if rng.random() < _MISSING:
            continue
        score, label = float(rng.uniform(0.35, 0.95)), labels[k]
        if rng.random() < _RENAMED:
            alike = [n for n in named if n != label and lexicon().similarity(label, n) >= _ALIKE]
            if alike:
                label, score = alike[int(rng.integers(len(alike)))], 0.7 * score
        found.append(SceneObject(k, label, score, shaken(boxes[k], rng)))
    for number in range(round(_SPURIOUS * len(rows))):
        k = rows[int(rng.integers(len(rows)))]
        box = boxes[k] + np.array([*rng.normal(0, 1.5, 2), 0, 0, 0, 0, 0, 0, 0])
        label = named[int(rng.integers(len(named)))]
        found.append(SceneObject(len(labels) + number, label, float(rng.uniform(0.2, 0.6)), box))
    return tuple(found)


def shaken(box: F64, rng: np.random.Generator) -> F64:
    """Add noise to a (9,) box: centre 6 cm (less for small objects), sizes 8 %, yaw 3 degrees."""
    box = box.copy()
    box[:3] += rng.normal(0, 0.06, 3) * np.minimum(box[3:6] / 0.4, 1.0)
    box[3:6] *= np.exp(rng.normal(0, 0.08, 3))
    box[6] += rng.normal(0, 0.05)
    return box


def sentences(seeds: Sequence[int]) -> Iterator[Sentence]:
    """Sentences about the homes of ``seeds``; reproducible."""
    for seed in seeds:
        home = build_home(seed, HomeSpec(rooms=1 + seed % 2, version=2, revision=1))
        scene = make_scene(home, range(len(home.objects)))
        rng = np.random.default_rng(seed)
        objects = detected(scene, rng)
        facts = [f for f in all_facts(scene) if f.relation in SENTENCES]
        by_relation: dict[str, list[Fact]] = {}
        for k in rng.permutation(len(facts)):
            by_relation.setdefault(facts[k].relation, []).append(facts[k])
        turns = [(place, name) for name, pile in sorted(by_relation.items()) for place in range(len(pile))]
        for place, name in sorted(turns)[:_PER_HOME]:  # relations in turn, for balance
            fact = by_relation[name][place]
            text = sentence_of(scene, fact, rng)
            words = text.replace(".", "").replace(",", "").split()
            if len(words) >= _LEAST_SHUFFLED and rng.random() < _SHUFFLED:
                yield Sentence(" ".join(words[int(k)] for k in rng.permutation(len(words))), objects, NOTHING)
            else:
                yield Sentence(noisy(text, rng), objects, fact.target)


def noisy(text: str, rng: np.random.Generator) -> str:
    """Add misspellings, fillers and politeness to half of the sentences."""
    return Variation(rng, noise=_NOISY)(MarkedSentence("find", text), keep=1.0).text


def observe(drawn: Iterator[Sentence]) -> Observed:
    """(M, F) features of the answers with a candidate, and (M,) whether the first is the object meant."""
    seen: list[Traits] = []

    def record(traits: Traits) -> float:
        seen.append(traits)
        return 0.5

    features, hits = [], []
    answers.probability_right = record
    try:
        for sentence in drawn:
            seen.clear()
            if sentence.ground is not None:
                grounding = sentence.ground(sentence.text)
            else:
                query = Query(sentence.text).parsed({o.label for o in sentence.objects})
                if query.meaning is not None:  # only the first reading
                    query = replace(query, meaning=replace(query.meaning, others=()))
                grounding = ground_objects(query, sentence.objects, vocabulary=None)
            if seen and grounding.candidates and grounding.count is None:
                features.append(seen[0 if sentence.ground is not None else -1].features())
                hits.append(grounding.candidates[0].id in (sentence.right or {sentence.target}))
    finally:
        answers.probability_right = probability_right
    return np.array(features).reshape(-1, len(FEATURES)), np.array(hits, dtype=bool)


def fit(features: F64, hits: NDArray[np.bool_]) -> F64:
    """(F,) weights of a logistic regression with a little shrinkage; signs are constrained, so that better evidence
    never lowers the probability."""
    y = hits.astype(np.float64)
    signs = {"fit_share": 1, "weakest": 1, "unsure_view": -1, "kind": 1, "reading": 1, "use": -1}
    bounds = [{1: (0, None), -1: (None, 0)}.get(signs.get(name, 0), (None, None)) for name in FEATURES]

    def loss(beta: F64) -> float:
        z = features @ beta
        return float((np.logaddexp(0, z) - y * z).mean() + 1e-3 * (beta[1:] ** 2).sum())

    return np.asarray(minimize(loss, np.zeros(len(FEATURES)), bounds=bounds, method="L-BFGS-B").x)


def joined(homes: Observed, lists: Sequence[Observed]) -> Observed:
    """Features and hits of homes and lists; all lists together count :data:`_PEOPLE` times as much as the homes."""
    count = sum(len(hits) for _, hits in lists)
    times = max(round(_PEOPLE * len(homes[1]) / count), 1) if count else 0
    parts = [homes, *[part for part in lists for _ in range(times)]]
    return np.concatenate([f for f, _ in parts]), np.concatenate([h for _, h in parts])


def reliability(stated: F64, hits: NDArray[np.bool_], bins: int = 10) -> list[dict[str, float]]:
    """Stated and measured probability in bins of the stated one."""
    place = np.minimum((stated * bins).astype(int), bins - 1)
    return [
        {
            "n": int((place == k).sum()),
            "stated": float(stated[place == k].mean()),
            "right": float(hits[place == k].mean()),
        }
        for k in range(bins)
        if (place == k).any()
    ]


def calibration_error(stated: F64, hits: NDArray[np.bool_], bins: int = 10) -> float:
    """Expected calibration error: mean difference over the bins, weighted by their answers."""
    rows = reliability(stated, hits, bins)
    return sum(row["n"] * abs(row["stated"] - row["right"]) for row in rows) / max(len(hits), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--homes", type=int, default=60)
    parser.add_argument("--seed", type=int, default=700_000, help="of the first home")
    parser.add_argument("--out", type=Path, help="JSON for the reliability curve")
    parser.add_argument(
        "--people", nargs=2, action="append", default=[], metavar=("FILE", "LIST"), help="also of a list"
    )
    parser.add_argument("--cost", type=float, default=1.0, help="of a wrong answer, as a multiple of that of no answer")
    parser.add_argument("--check", action="store_true", help="reliability of the current weights on other homes")
    arguments = parser.parse_args()
    first = arguments.seed + 1000 * arguments.check
    homes = observe(sentences(range(first, first + arguments.homes)))
    asked = [observe(of_people(Path(file), int(number))) for file, number in arguments.people]
    features, hits = joined(homes, asked)
    if arguments.check:
        beta = np.array(json.loads(WEIGHTS.read_text(encoding="utf-8"))["weights"])
    else:
        beta = fit(features, hits)
        beta[0] -= np.log(arguments.cost)
        command = "python -m embodied_perceptron_training.language.fit_language"
        command += "".join(f" --people {file} {number}" for file, number in arguments.people)
        command += f" --cost {arguments.cost:g}"
        content = {
            "comment": f"Made by `{command} --homes {arguments.homes} --seed {first}`.",
            "homes": arguments.homes, "seed": first, "sentences": len(hits),
            "features": list(FEATURES), "weights": [round(float(b), 3) for b in beta],
        }  # fmt: skip
        write_atomically(WEIGHTS, (json.dumps(content) + "\n").encode())
    stated = 1.0 / (1.0 + np.exp(-(features @ beta)))
    error = calibration_error(stated, hits)
    print(f"{len(hits)} answers, {100 * hits.mean():.1f} % right, calibration error {error:.3f}")
    rows = reliability(stated, hits)
    if arguments.out is not None:
        curve = {"answers": len(hits), "right": float(hits.mean()), "calibration_error": error, "bins": rows}
        write_json(arguments.out, curve | {"homes": arguments.homes, "seed": first})
    for row in rows:
        print(f"  stated {row['stated']:.2f}  right {row['right']:.2f}  n {row['n']}")


if __name__ == "__main__":
    main()
