"""Pictures of the best and worst scenes: truth beside predictions, from above and in an image.

Green: found. Red: missed. Blue: a right prediction. Orange: a wrong one (other place, size or name, or a duplicate).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.inference.predictor import Predictor
from embodied_perceptron.recordings.image_codec import encode_color_file
from embodied_perceptron.results import Perception, SceneObject
from embodied_perceptron.sensors.frame import PosedFrame
from embodied_perceptron.visualization.drawing import INK, SHADE, Color, Image, draw_boxes_on_image, text, text_size
from embodied_perceptron.visualization.top_view import render_top_view
from embodied_perceptron.weights.categories import DETECTION_CLASSES
from embodied_perceptron_training.evaluation.metrics.detection import (
    MATCH_IOU,
    SceneBoxes,
    detection_metrics,
    match_by_name,
)
from embodied_perceptron_training.evaluation.runner.scene_tasks import SceneResult, mapped_scene
from embodied_perceptron_training.evaluation.runner.scenes import EvaluationScene

FOUND: Color = (94, 210, 110)
MISSED: Color = (255, 84, 84)
RIGHT: Color = (96, 168, 255)
WRONG: Color = (255, 170, 60)
_TOP_PIXELS = 900
_IMAGE_PIXELS = 900


@dataclass(frozen=True, eq=False)
class Comparison:
    """Truth and predictions as drawn, and a colour for each id (truth is numbered from 1, predictions follow)."""

    true: tuple[SceneObject, ...]
    predicted: tuple[SceneObject, ...]
    colors: dict[int, Color]

    @property
    def found(self) -> int:
        """Number of true objects that were found."""
        return sum(self.colors[o.id] == FOUND for o in self.true)


def rank_scenes(results: Sequence[SceneResult]) -> list[tuple[str, float]]:
    """(name, AP25 over the classes of that scene) of scenes with detections, best first."""
    ranked = []
    for result in results:
        for _, found, true in result.boxes.get("detection", [])[:1]:
            if len(true.boxes):
                figure = detection_metrics({"": found}, {"": true}, DETECTION_CLASSES, thresholds=(MATCH_IOU,))["AP25"]
                ranked.append((result.name, figure))
    return sorted(ranked, key=lambda pair: (-pair[1], pair[0]))


def compare(found: SceneBoxes, true: SceneBoxes, min_score: float) -> Comparison:
    """Match predictions of at least ``min_score`` with the truth, best first, at IoU 0.25."""
    assert found.scores is not None
    rows = [i for i in np.argsort(-found.scores, kind="stable").tolist() if found.scores[i] >= min_score]
    matched = match_by_name(found.boxes[rows], found.labels[rows], found.scores[rows], true.boxes, true.labels)
    first = len(true.boxes) + 1
    colors = {i + 1: FOUND if i in matched.values() else MISSED for i in range(len(true.boxes))}
    colors |= {first + k: RIGHT if k in matched else WRONG for k in range(len(rows))}
    predicted = tuple(
        SceneObject(first + k, DETECTION_CLASSES[found.labels[row]], float(found.scores[row]), found.boxes[row])
        for k, row in enumerate(rows)
    )
    truth = tuple(
        SceneObject(i + 1, DETECTION_CLASSES[label], 1.0, true.boxes[i]) for i, label in enumerate(true.labels.tolist())
    )
    return Comparison(truth, predicted, colors)


def draw_scene(scene: EvaluationScene, inference: Predictor, sample: Comparison, title: str) -> Image:
    """One picture: truth and predictions from above, and in the view that shows most true objects."""
    counts = [len(scene.truth(i, i + 1).boxes) for i in range(len(scene.frames))]
    view = scene.frames[int(np.argmax(counts))]
    return draw_comparison(mapped_scene(scene, inference).perceive(), view, sample, title)


def draw_comparison(perception: Perception, view: PosedFrame, sample: Comparison, title: str) -> Image:
    """:func:`draw_scene` for an existing perception and view."""
    panels = []
    for things, name in (
        (sample.true, f"truth: {sample.found} of {len(sample.true)} found"),
        (sample.predicted, f"predicted: {len(sample.predicted)}"),
    ):
        largest_first = sorted(things, key=lambda o: (-float(o.box[3:6].max()), o.id))  # their labels are placed first
        top = render_top_view(perception, largest_first, None, _TOP_PIXELS, colors=sample.colors)
        seen = draw_view(view, things, sample.colors)
        panels.append(_stack([_titled(top, name), seen], axis=0))
    return _titled(_stack(panels, axis=1), title)


def draw_view(view: PosedFrame, things: Sequence[SceneObject], colors: dict[int, Color] | None = None) -> Image:
    """A camera image, enlarged, with the boxes of the objects that it shows."""
    camera = view.frame.intrinsics
    factor = max(1, round(_IMAGE_PIXELS / camera.width))
    size = (camera.width * factor, camera.height * factor)
    image = np.ascontiguousarray(cv2.resize(view.frame.color, size, interpolation=cv2.INTER_CUBIC))
    shown = [o for o in things if is_shown(o, view)]
    return draw_boxes_on_image(image, shown, view.T_world_camera, camera.resized(*size), colors=colors)


def is_shown(thing: SceneObject, view: PosedFrame) -> bool:
    """Whether the centre of a box is in the image and not clearly behind the measured depth."""
    k = view.frame.intrinsics
    T = view.T_world_camera
    x, y, z = T[:3, :3].T @ (thing.box[:3] - T[:3, 3])
    if z < 0.2:
        return False
    u, v = round(k.fx * x / z + k.cx), round(k.fy * y / z + k.cy)
    if not (0 <= u < k.width and 0 <= v < k.height):
        return False
    measured = float(view.frame.depth_m[v, u])
    return measured == 0 or z < measured + 0.5 * float(np.linalg.norm(thing.box[3:6])) + 0.3


def save_picture(image: Image, path: Path) -> None:
    """Write a JPEG. Raises ``OSError`` when it cannot be written."""
    path.write_bytes(encode_color_file(image, ".jpg", 88))


def _titled(image: Image, title: str) -> Image:
    width, height = text_size(title, 0.6)
    bar: NDArray[np.uint8] = np.empty((height + 16, image.shape[1], 3), np.uint8)
    bar[:] = SHADE
    text(bar, title, max(8, (image.shape[1] - width) // 2), height + 7, INK, 0.6)
    return np.concatenate([bar, image])


def _stack(images: Sequence[Image], axis: int) -> Image:
    """Join images side by side (1) or vertically (0), padded with the background."""
    across = 1 - axis
    size = max(i.shape[across] for i in images)
    filled = []
    for image in images:
        shape = list(image.shape)
        shape[across] = size
        full: NDArray[np.uint8] = np.empty(shape, np.uint8)
        full[:] = SHADE
        full[: image.shape[0], : image.shape[1]] = image
        filled.append(full)
    return np.concatenate(filled, axis=axis)
