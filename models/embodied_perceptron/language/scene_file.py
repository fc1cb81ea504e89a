"""Files of scenes and sentences: answers over boxes of any detector, without a map or a network.

The scenes file holds ``scenes`` (name -> ``detections``: ``center`` and ``size`` in metres, ``category``, and where
known ``score``, ``yaw`` in radians with the front at -y (where it is 0 for all, fronts are estimated), ``color``
[r, g, b] in 0..255; ``viewpoint``: 16 numbers, row-major T_world_camera of an optical frame, where known) and
``queries`` (``scene``, ``text``). Other fields are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.language.answer import VOCABULARY, ground_objects
from embodied_perceptron.language.endpoint import meaning_to_json
from embodied_perceptron.language.query import MeaningReader, Query
from embodied_perceptron.language.relations import FrontSource
from embodied_perceptron.recordings.plain_values import words
from embodied_perceptron.results import Grounding, SceneObject

_LEAST_SIZE_M = 0.01  # of flat boxes


@dataclass(frozen=True, eq=False)
class DetectedScene:
    """Boxes of one scene.

    Attributes:
        detections: of the file.
        objects: detections with a finite box; the id is the index in ``detections`` plus 1.
        colors: (N, 3) mean sRGB of the objects in 0..255, NaN where not given; None without any.
        viewpoint: (4, 4) T_world_camera of an optical frame, or None.
        fronts: of each object "boxes" where its detection has a yaw, otherwise "none"; "estimated" where all are 0.
    """

    detections: Sequence[Mapping[str, Any]]
    objects: tuple[SceneObject, ...]
    colors: NDArray[np.float64] | None
    viewpoint: NDArray[np.float64] | None
    fronts: tuple[FrontSource, ...]

    def ground(self, text: str | Query, reader: MeaningReader | None = None) -> Grounding:
        """Answer one sentence as a running perceptron does; labels of an unknown detector are matched more loosely.

        ``reader``: None = the embedded one.
        """
        labels = {o.label for o in self.objects}
        query = Query.of(text).parsed(labels, reader)
        vocabulary = VOCABULARY if labels.issubset(VOCABULARY) else None
        return ground_objects(
            query, self.objects, self.viewpoint, colors=self.colors, fronts=self.fronts, vocabulary=vocabulary
        )

    def answer(
        self, scene: str, text: str, reader: MeaningReader | None = None, explain: bool = False
    ) -> dict[str, Any]:
        """One entry of the answers file; for NOT_FOUND with the closest boxes. ``reader`` as in :meth:`ground`.

        ``explain``: add the meaning of the sentence, without fields at their default.
        """
        query = Query(text).parsed({o.label for o in self.objects}, reader)
        grounding = self.ground(query)
        boxes = []
        for candidate in grounding.choice:
            found = self.detections[candidate.id - 1]
            box = {key: found[key] for key in ("center", "size", "category")}
            boxes.append(box | {"score": round(candidate.score, 4)})
        entry: dict[str, Any] = {
            "scene": scene,
            "text": text,
            "status": grounding.status.name,
            "boxes": boxes,
            "count": grounding.count,
            "reason": grounding.reason,
            "tagged": grounding.tagged_text,
            "ms": round(grounding.latency_ms, 3),
        }
        if explain:
            entry["meaning"] = {} if query.meaning is None else meaning_to_json(query.meaning)
        return entry


def detected_scene(name: str, scene: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> DetectedScene:
    """One scene of the file.

    Detections without a finite box are skipped; flat boxes become a centimetre thick. Raises ``ValueError`` naming
    scene and detection for another form.
    """
    content: Mapping[str, Any] = scene if isinstance(scene, dict) else {"detections": scene}  # a list holds these alone
    detections = content.get("detections")
    if not isinstance(detections, list):
        raise ValueError(f"scene {name!r} has no list of detections")
    objects, colors = [], []
    fronts: list[FrontSource] = []
    for i, d in enumerate(detections):
        where = f"detection {i} of scene {name!r}"
        if not isinstance(d, dict) or not isinstance(d.get("category"), str):
            raise ValueError(f"{where} has no category")
        category = words(d["category"], f"category of {where}")
        center, size = (_numbers(d.get(key), 3, f"{key} of {where}") for key in ("center", "size"))
        yaw = _numbers([d.get("yaw", 0.0)], 1, f"yaw of {where}")[0]
        score = _numbers([d.get("score", 1.0)], 1, f"score of {where}")[0]
        box = np.array([*center, *np.maximum(size, _LEAST_SIZE_M), yaw, 0.0, 0.0])
        if not (np.isfinite(box).all() and np.isfinite(score)):
            continue
        objects.append(SceneObject(i + 1, category, float(np.clip(score, 0.0, 1.0)), box))
        fronts.append("boxes" if "yaw" in d else "none")
        colour = d.get("color")
        colors.append(np.full(3, np.nan) if colour is None else _numbers(colour, 3, f"color of {where}"))
    if "none" not in fronts and not any(o.box[6] for o in objects):  # a detector of boxes along the axes
        fronts = ["estimated"] * len(objects)
    pose = content.get("viewpoint")
    viewpoint = None if pose is None else _numbers(pose, 16, f"viewpoint of scene {name!r}").reshape(4, 4)
    rgb = np.array(colors).reshape(-1, 3)
    known = rgb if np.isfinite(rgb).all(axis=1).any() else None
    return DetectedScene(detections, tuple(objects), known, viewpoint, tuple(fronts))


def _numbers(values: object, count: int, what: str) -> NDArray[np.float64]:
    try:
        array = np.asarray(values, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        array = np.zeros(0)
    if array.shape != (count,):
        raise ValueError(f"{what} must be {count} number{'s' * (count > 1)}, got {values!r}")
    return array


def answer_file(
    data: object,
    progress: Callable[[int, int], None] = lambda done, total: None,
    reader: MeaningReader | None = None,
    explain: bool = False,
) -> dict[str, Any]:
    """Answer all queries of a scenes file in order; ``reader``: None = the embedded one; ``explain``: add meanings.

    Raises ``ValueError`` for an invalid file.
    """
    whole: Mapping[str, Any] = data if isinstance(data, dict) else {}
    scenes, queries = whole.get("scenes"), whole.get("queries")
    if not isinstance(scenes, dict) or not isinstance(queries, list):
        held = f"the object has {', '.join(map(repr, whole)) or 'no keys'}"
        if whole is not data:
            held = f"this is a {type(data).__name__}, {data!r:.60}"
        raise ValueError(f"a scenes file is an object with 'scenes' (an object) and 'queries' (a list); {held}")
    known = {name: detected_scene(name, scene) for name, scene in scenes.items()}
    answers = []
    for i, query in enumerate(queries):
        if not isinstance(query, dict) or not isinstance(query.get("scene"), str) or query["scene"] not in known:
            raise ValueError(f"query {i} names no scene of the file: {query!r:.100}")
        answers.append(known[query["scene"]].answer(query["scene"], query.get("text", ""), reader, explain))
        progress(i + 1, len(queries))
    return {"answers": answers}
