"""2-D detections of files for evaluations: of a scene's images, and degraded as those of a weaker detector."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from embodied_perceptron.config import COCO_LAYOUT, LiftOptions
from embodied_perceptron.detection2d.loading import lift_from_options
from embodied_perceptron.detection2d.pipeline import DetectionLift
from embodied_perceptron.recordings.coco import MAX_COCO_BYTES
from embodied_perceptron.recordings.files import read_json, write_atomically
from embodied_perceptron_training.evaluation.runner.parallel import EvaluationError


@dataclass(frozen=True)
class Degradation:
    """How detections differ from those of the file.

    Attributes:
        recall: share that is kept.
        confusion: share of the kept ones that get the name of another category, drawn evenly.
        jitter: standard deviation of each edge, as a share of the box's side; such boxes lose their masks.
        score: standard deviation of the noise that is taken from each score.
        masks: False removes all masks.
        seed: of the draws.

    Raises :class:`.EvaluationError` naming the value.
    """

    recall: float = 1.0
    confusion: float = 0.0
    jitter: float = 0.0
    score: float = 0.0
    masks: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("recall", "confusion", "jitter", "score"):
            if not 0 <= getattr(self, name) <= 1:
                raise EvaluationError(f"{name} must be in [0, 1], got {getattr(self, name)}")

    @classmethod
    def of_text(cls, text: str) -> Degradation:
        """Parse ``recall=0.7,confusion=0.1``. Raises :class:`.EvaluationError` with the text."""
        values: dict[str, Any] = {}
        known = {f.name for f in fields(cls)} - {"masks"}
        for part in text.split(","):
            name, _, value = (word.strip() for word in part.partition("="))
            try:
                values[name] = int(value) if name == "seed" else float(value)
            except ValueError:
                raise EvaluationError(f"{part!r} is no number of {', '.join(sorted(known))}: {text!r:.200}") from None
            if name not in known:
                raise EvaluationError(f"a degradation has {', '.join(sorted(known))}, not {name!r}")
        return cls(**values)


def write_degraded(source: str | Path, target: str | Path, how: Degradation) -> Path:
    """Write a degraded copy of a COCO file. Raises :class:`.RecordingError` for an unreadable one, ``OSError``."""
    data = read_json(Path(source), MAX_COCO_BYTES)
    rng = np.random.default_rng(how.seed)
    categories = sorted(c["id"] for c in data["categories"])
    kept = []
    for annotation in data["annotations"]:
        keep, confused, other, *draws = rng.random(3).tolist() + rng.standard_normal(5).tolist()
        if keep >= how.recall:
            continue
        a = dict(annotation)
        if not how.masks or how.jitter > 0:
            a.pop("segmentation", None)
        if confused < how.confusion and len(categories) > 1:
            others = [c for c in categories if c != a["category_id"]]
            a["category_id"] = others[int(other * len(others))]
        left, top, width, height = a["bbox"]
        low = left + how.jitter * width * draws[0], top + how.jitter * height * draws[1]
        high = left + width * (1 + how.jitter * draws[2]), top + height * (1 + how.jitter * draws[3])
        a["bbox"] = [low[0], low[1], high[0] - low[0], high[1] - low[1]]
        a["score"] = float(np.clip(a.get("score", 1.0) - how.score * abs(draws[4]), 0.0, 1.0))
        kept.append(a)
    write_atomically(target, (json.dumps({**data, "annotations": kept}) + "\n").encode())
    return Path(target)


def detections_of_scene(data: str | Path, name: str, detections: str | Path) -> Path:
    """Return the file of a scene: ``detections`` in the scene's folder, or ``detections`` itself for all scenes.

    Raises :class:`.EvaluationError` without either.
    """
    own = Path(data) / name / detections
    if own.is_file() or Path(detections).is_file():
        return own if own.is_file() else Path(detections)
    raise EvaluationError(f"neither {own} nor {detections} is a file of detections")


def lift_of_file(path: str | Path, image_stamps: Mapping[str, int]) -> DetectionLift:
    """Return the lift of a file's detections of rendered images. Raises as :func:`.lift_from_options`."""
    options = LiftOptions(detector=str(path), layout=COCO_LAYOUT)
    lift = lift_from_options(options, (), image_stamps)
    assert lift is not None
    return lift
