"""What lifting makes of 2-D detections in simulated homes: the map with the true ones, with degraded ones, and without.

The true detections stand beside each home (``detections.json`` of `generate`).
"""

from __future__ import annotations

import json
import math
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from embodied_perceptron.detection2d.extents import inside_boxes
from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron.inference.class_priors import shipped_priors
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.recordings.files import write_json
from embodied_perceptron.results import UNNAMED
from embodied_perceptron_training.evaluation.metrics.detection import match_by_name
from embodied_perceptron_training.evaluation.runner.detections import (
    Degradation,
    detections_of_scene,
    lift_of_file,
    write_degraded,
)
from embodied_perceptron_training.evaluation.runner.evaluate import cached_predictor, load
from embodied_perceptron_training.evaluation.runner.parallel import CorruptSceneError
from embodied_perceptron_training.evaluation.runner.scene_tasks import evaluation_config
from embodied_perceptron_training.evaluation.suites.scenes import (
    STRUCTURE,
    Scored,
    Suite,
    SuiteRun,
    SuiteSpec,
)
from embodied_perceptron_training.homes.generate import load_record
from embodied_perceptron_training.homes.true_detections import DETECTIONS

LEAST_VIEWS, LEAST_PX = 3, 24  # of an object that counts: views in which its box covers at least 24 x 24 pixels
ALONE = "network alone"
_AT_M = 0.05  # tolerance of a centre in a true box


def forms(seed: int) -> dict[str, Degradation | None]:
    """Return the compared detections by name; None = no detections."""
    return {
        ALONE: None,
        "perfect boxes": Degradation(masks=False),
        "perfect masks": Degradation(),
        "recall 0.7": Degradation(recall=0.7, masks=False, seed=seed),
        "jitter 5 %": Degradation(jitter=0.05, score=0.2, seed=seed),
        "recall 0.7, confusion 0.1, jitter 5 %": Degradation(0.7, 0.1, 0.05, 0.2, seed=seed),
    }


@dataclass
class LiftingResult:
    """Counts of one home by form of the detections: ``wanted`` objects, found ones under their name (``named``) or
    under any (``located``); ``published`` names, and the ``right`` ones among them."""

    name: str
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)  # of perfect boxes, by reason
    lift_ms: list[float] = field(default_factory=list)  # per keyframe, of perfect boxes


def _well_seen(detections: Mapping[str, Any], names: frozenset[str]) -> set[int]:
    """Return the ids of objects that enough of the named images show large enough."""
    used = {image["id"] for image in detections["images"] if image["file_name"] in names}
    views: Counter[int] = Counter(
        a["object_id"]
        for a in detections["annotations"]
        if a["image_id"] in used and a["bbox"][2] * a["bbox"][3] >= LEAST_PX**2
    )
    return {number for number, count in views.items() if count >= LEAST_VIEWS}


def _with_true_boxes(detections: Mapping[str, Any], instances: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the detections of objects that have a true box; others show too little for one, and no name would be
    right there."""
    known = {int(i["object_id"]) for i in instances}
    return {**detections, "annotations": [a for a in detections["annotations"] if a["object_id"] in known]}


def _left_out(
    boxes: F64, names: Sequence[str], right: Collection[int], other_boxes: F64, other_labels: Sequence[str]
) -> int:
    """Return the number of names that do not count: not among ``right`` rows, and at an object of this name that is
    seen too little to be counted, whose extents the views need not show."""
    at = inside_boxes(other_boxes, boxes[:, :3], _AT_M)
    return sum(
        label != UNNAMED and row not in right and any(at[row] & (np.array(other_labels, dtype=str) == label))
        for row, label in enumerate(names)
    )


def _evaluate(spec: SuiteSpec, name: str) -> LiftingResult:
    scene = load(spec.plain, name)
    file = detections_of_scene(spec.data, name, DETECTIONS)
    try:
        true = json.loads(file.read_text(encoding="utf-8"))
        seen = _well_seen(true, frozenset(scene.image_stamps))
        instances = load_record(spec.data, name)["instances"]
        ids = {int(i["bbox_id"]) for i in instances if int(i["object_id"]) in seen}
        true = _with_true_boxes(true, instances)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptSceneError(f"{file} does not hold the true detections of a home: {error!r}") from error
    canonical = shipped_priors().canonical
    rows = [r for r in scene.seen_rows() if scene.labels[r] not in STRUCTURE]
    boxes, labels = scene.boxes[rows], [canonical(scene.labels[r]) for r in rows]
    wanted = {k for k, r in enumerate(rows) if int(scene.ids[r]) in ids}
    others = [k for k in range(len(rows)) if k not in wanted]
    inference = cached_predictor(spec.weights)
    config = evaluation_config(len(scene.frames), every_box=False, inference=inference)
    result = LiftingResult(name)
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "true.json"
        whole.write_text(json.dumps(true), encoding="utf-8")
        for form, how in forms(spec.seed).items():
            lift = None
            if how is not None:
                lift = lift_of_file(write_degraded(whole, Path(folder) / "found.json", how), scene.image_stamps)
            perceptron = Perceptron(config, inference=inference, lift=lift)
            for frame in scene.frames:
                perceptron.integrate(frame)
            objects = [o for o in perceptron.perceive(window_m=math.inf).objects if o.label not in STRUCTURE]
            mine = np.array([o.box for o in objects]).reshape(-1, 9)
            scores, names = np.array([o.score for o in objects]), [canonical(o.label) for o in objects]
            right = match_by_name(mine, names, scores, boxes, labels)
            named = set(right.values())
            left_out = _left_out(mine, names, right, boxes[others], [labels[k] for k in others])
            located = set(match_by_name(mine, [""] * len(mine), scores, boxes, [""] * len(boxes)).values())
            result.counts[form] = Counter(
                wanted=len(wanted),
                named=len(named & wanted),
                located=len(located & wanted),
                published=sum(label != UNNAMED for label in names) - left_out,
                right=len(named),
            )
            if lift is not None and form == "perfect boxes":
                s = lift.statistics()
                result.dropped.update(s.dropped)
                result.lift_ms.append((s.lift_ms + s.join_ms) / max(s.pictures, 1))
    return result


def _score(spec: SuiteSpec, results: list[LiftingResult]) -> Scored:
    """``<form>/{recall,precision,located}`` in percent, and notes."""
    figures: dict[str, float] = {}
    for form in forms(spec.seed):
        total = sum((r.counts[form] for r in results), Counter[str]())
        figures[f"{form}/recall"] = 100.0 * total["named"] / max(total["wanted"], 1)
        figures[f"{form}/precision"] = 100.0 * total["right"] / max(total["published"], 1)
        figures[f"{form}/located"] = 100.0 * total["located"] / max(total["wanted"], 1)
    dropped = sum((r.dropped for r in results), Counter[str]())
    notes = {
        "objects": sum(r.counts[ALONE]["wanted"] for r in results),
        "milliseconds of lifting a view": round(float(np.mean([ms for r in results for ms in r.lift_ms])), 1),
        "perfect boxes dropped": ", ".join(f"{n} {reason}" for reason, n in sorted(dropped.items())) or "none",
    }
    return figures, notes


def write_lifting(spec: SuiteSpec, run: SuiteRun[LiftingResult], folder: Path) -> None:
    """Write the counts of every home and form into ``homes.json``. Raises ``OSError``."""
    counts = {r.name: {form: dict(c) for form, c in r.counts.items()} for r in run.results}
    write_json(folder / "homes.json", counts)


SUITE = Suite(_evaluate, _score, write_lifting)
