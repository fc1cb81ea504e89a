"""Densely grounded text in 3D-GRAND's tagged form, and open-vocabulary labels in OpenLex3D's tiers.

``<p>red chair</p>[<obj_3>]`` ties a noun phrase to the object with annotation id 3.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from embodied_perceptron_training.homes import relations as geo
from embodied_perceptron_training.homes.prompts import STRUCTURE, Fact, all_facts, plural
from embodied_perceptron_training.homes.relations import Scene

_VERB = {
    "closest": "is the {target} closest to",
    "farthest": "is the {target} farthest from",
    "above": "is above",
    "below": "is below",
    "on": "stands on",
    "in": "is inside",
    "front": "is in front of",
    "behind": "is behind",
    "left": "is to the left of",
    "right": "is to the right of",
}

# Classes that are easily confused with each other.
SIMILAR: dict[str, tuple[str, ...]] = {
    "couch": ("bench", "bed", "loveseat"),
    "chair": ("stool", "seat"),
    "stool": ("chair", "side table"),
    "ottoman": ("footstool", "stool", "pouf"),
    "footstool": ("ottoman", "stool"),
    "table": ("desk", "counter"),
    "desk": ("table", "workbench"),
    "cabinet": ("dresser", "cupboard", "wardrobe"),
    "dresser": ("cabinet", "commode", "nightstand"),
    "commode": ("dresser", "cabinet"),
    "wardrobe": ("cabinet", "closet"),
    "shelf": ("rack", "cabinet"),
    "stand": ("table", "cabinet"),
    "rack": ("shelf", "ladder"),
    "bed": ("couch", "mattress"),
    "crib": ("bed", "cage"),
    "pillow": ("cushion",),
    "cushion": ("pillow",),
    "blanket": ("towel", "sheet"),
    "towel": ("blanket", "cloth"),
    "curtain": ("towel", "blanket"),
    "carpet": ("mat",),
    "mat": ("carpet", "towel"),
    "picture": ("poster", "painting", "window"),
    "poster": ("picture", "map"),
    "map": ("poster", "picture"),
    "mirror": ("window", "picture"),
    "tv": ("monitor", "screen"),
    "monitor": ("tv", "screen"),
    "laptop": ("notebook", "monitor"),
    "keyboard": ("remote control",),
    "cup": ("glass", "bowl"),
    "glass": ("cup", "vase"),
    "bowl": ("plate", "pot"),
    "plate": ("bowl",),
    "bottle": ("vase", "shampoo"),
    "vase": ("bottle", "pitcher"),
    "jar": ("can", "bottle"),
    "can": ("jar", "cup"),
    "pot": ("pan", "bowl"),
    "pan": ("pot", "plate"),
    "kettle": ("teapot", "pitcher"),
    "refrigerator": ("cabinet", "wardrobe"),
    "stove": ("oven", "dishwasher"),
    "dishwasher": ("washing machine", "stove"),
    "washing machine": ("clothes dryer", "dishwasher"),
    "clothes dryer": ("washing machine",),
    "microwave": ("oven", "toaster"),
    "counter": ("table", "cabinet"),
    "washbasin": ("sink", "toilet"),
    "sink": ("washbasin",),
    "toilet": ("bidet", "chair"),
    "bathtub": ("shower", "sink"),
    "bin": ("bucket", "basket"),
    "bucket": ("bin",),
    "basket": ("bin", "box"),
    "box": ("case", "bin"),
    "book": ("magazine", "box"),
    "magazine": ("book", "paper"),
    "backpack": ("bag", "luggage"),
    "bag": ("backpack", "purse"),
    "plant": ("vase", "flower"),
    "flowerpot": ("vase", "bin"),
    "lamp": ("light", "fan"),
    "light": ("lamp",),
    "radiator": ("heater",),
    "heater": ("radiator",),
    "door": ("wardrobe", "window"),
    "window": ("picture", "mirror"),
    "clock": ("picture", "plate"),
}


def phrase_of(scene: Scene, row: int) -> str:
    """Colour and class of an object: 'red chair'."""
    o = scene.objects[row]
    words = [o.model.attributes.get("color", ""), o.label]
    return " ".join(w for w in words if w)


def tag(scene: Scene, rows: list[int], phrase: str) -> str:
    """``<p>phrase</p>[<obj_3><obj_5>]``."""
    return f"<p>{phrase}</p>[" + "".join(f"<obj_{int(scene.ids[r])}>" for r in rows) + "]"


def describe_object(scene: Scene, row: int, facts: list[Fact]) -> str:
    """One or two sentences about one object; every noun phrase tagged."""
    o = scene.objects[row]
    text = f"There is {_article(phrase_of(scene, row))} {tag(scene, [row], phrase_of(scene, row))}"
    material = o.model.attributes.get("material", "")
    text += f" made of {material}." if material in ("metal", "plastic", "leather", "stone", "ceramic") else "."
    states = [s for s in geo.unary_states(o) if s in ("open", "closed", "filled", "empty", "folded")]
    if states:
        text += f" It is {' and '.join(states)}."
    about = [f for f in facts if f.target == row and f.relation in _VERB]
    if about:
        fact = about[0]
        anchor = fact.anchors[0]
        verb = _VERB[fact.relation].format(target=o.label)
        text += f" It {verb} the {tag(scene, [anchor], phrase_of(scene, anchor))}."
    return text


def describe_scene(scene: Scene, rng: np.random.Generator, limit: int = 10) -> str:
    """A paragraph with counts of classes, then relations between objects."""
    counts = Counter(name for name in scene.labels() if name not in STRUCTURE)
    parts = []
    for name, n in counts.most_common(limit):
        rows = [int(r) for r in scene.rows_of(name)]
        noun = name if n == 1 else f"{n} {plural(name)}"
        parts.append(f"{_article(name) + ' ' if n == 1 else ''}{tag(scene, rows, noun)}")
    text = (
        "The scene contains " + ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1] + "."
        if parts
        else ""
    )
    facts = [f for f in all_facts(scene) if f.relation in _VERB]
    for k in rng.permutation(len(facts))[:4]:
        fact = facts[int(k)]
        verb = _VERB[fact.relation].format(target=scene.objects[fact.target].label)
        a, b = fact.target, fact.anchors[0]
        text += f" The {tag(scene, [a], phrase_of(scene, a))} {verb} the {tag(scene, [b], phrase_of(scene, b))}."
    return text


def make_language(scene: Scene, absent: list[str], rng: np.random.Generator) -> dict[str, Any]:
    """All text of one scan: ``objects`` and ``scene`` (descriptions), ``qa`` (questions with answers)."""
    facts = all_facts(scene)
    rows = [i for i, name in enumerate(scene.labels()) if name not in STRUCTURE]
    return {
        "objects": [{"id": int(scene.ids[r]), "text": describe_object(scene, r, facts)} for r in rows],
        "scene": describe_scene(scene, rng),
        "qa": make_questions(scene, facts, absent, rng),
    }


def make_questions(
    scene: Scene, facts: list[Fact], absent: list[str], rng: np.random.Generator, per_kind: int = 6
) -> list[dict[str, Any]]:
    """Existence, counting, attribute and relation questions, each also as yes / no; as many yes as no where both exist.

    Keys: kind, question, answer, grounding (tagged phrases of the answer's evidence, to precede it).
    """
    counts = Counter(name for name in scene.labels() if name not in STRUCTURE)
    present = sorted(counts)
    entries: list[dict[str, Any]] = []

    def add(kind: str, question: str, answer: str, rows: list[int], phrase: str = "") -> None:
        grounding = tag(scene, rows, phrase or phrase_of(scene, rows[0])) if rows else ""
        entries.append({"kind": kind, "question": question, "answer": answer, "grounding": grounding})

    for k in range(min(per_kind, len(present), len(absent))):
        here = present[int(rng.integers(len(present)))]
        rows = [int(r) for r in scene.rows_of(here)]
        gone = absent[int(rng.integers(len(absent)))]
        add("existence", f"Is there {_article(here)} {here} here?", "yes", rows, here)
        add("existence", f"Is there {_article(gone)} {gone} here?", "no", [])
        add("counting", f"How many {plural(here)} are there?", str(counts[here]), rows, here)
        wrong = counts[here] + (0 if k % 2 else int(rng.integers(1, 3)))
        verdict = "yes" if wrong == counts[here] else "no"
        noun = here if wrong == 1 else plural(here)
        add("counting", f"{'Is' if wrong == 1 else 'Are'} there exactly {wrong} {noun}?", verdict, rows, here)
    unique = [int(scene.rows_of(name)[0]) for name in present if counts[name] == 1]
    colored = [r for r in unique if scene.objects[r].model.attributes.get("color")]
    for k, i in enumerate(rng.permutation(len(colored))[:per_kind]):
        row = colored[int(i)]
        word, name = scene.objects[row].model.attributes["color"], scene.objects[row].label
        add("attribute", f"What color is the {name}?", word, [row], name)
        other = word if k % 2 else str(rng.choice([c for c in ("red", "blue", "green", "white", "black") if c != word]))
        add("attribute", f"Is the {name} {other}?", "yes" if other == word else "no", [row], name)
    related = [f for f in facts if f.relation in ("above", "on", "in", "front", "behind", "left", "right")]
    for i in rng.permutation(len(related))[:per_kind]:
        fact = related[int(i)]
        anchor, name = fact.anchors[0], scene.objects[fact.target].label
        verb = _VERB[fact.relation].replace("is ", "").replace("stands ", "")
        add(
            "relation",
            f"Which kind of thing is {verb} the {scene.objects[anchor].label}: {name} or nothing?",
            name,
            [fact.target],
        )
        add(
            "relation",
            f"Is there {_article(name)} {name} {verb} the {scene.objects[anchor].label}?",
            "yes",
            [fact.target, anchor],
        )
        opposite = {"left": "right", "right": "left", "front": "behind", "behind": "front"}.get(fact.relation)
        if opposite and not any(geo.side_of(scene, int(r), anchor) == opposite for r in scene.rows_of(name)):
            other_verb = _VERB[opposite].replace("is ", "")
            question = f"Is there {_article(name)} {name} {other_verb} the {scene.objects[anchor].label}?"
            add("relation", question, "no", [anchor])
    return entries


def openlex_labels(scene: Scene) -> list[dict[str, Any]]:
    """Tiers per object: synonyms, depictions, visually similar names, and clutter: ids of objects whose axis-aligned
    box overlaps (IoU > 0) or that carry it or are carried by it."""
    result = []
    for row, o in enumerate(scene.objects):
        if o.label in STRUCTURE:
            continue
        side = np.minimum(scene.high, scene.high[row]) - np.maximum(scene.low, scene.low[row])
        shared = np.prod(np.clip(side, 0, None), axis=1)
        near = {int(k) for k in np.nonzero(shared > 0)[0]}
        near |= {k for k, other in enumerate(scene.objects) if other.support == o.id or o.support == other.id}
        near -= {row}
        clutter = [k for k in sorted(near) if scene.objects[k].label not in STRUCTURE]
        depiction = o.model.attributes.get("depiction", "")
        result.append(
            {
                "id": int(scene.ids[row]),
                "synonyms": [o.label, *o.model.synonyms],
                "depictions": [depiction] if depiction else [],
                # a label belongs to one tier: names of this model are not mistakes
                "visually_similar": [w for w in SIMILAR.get(o.label, ()) if w not in (o.label, *o.model.synonyms)],
                "clutter": [int(scene.ids[k]) for k in clutter],
            }
        )
    return result


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"
