"""Evaluate a recording: replay or read it, score it (:mod:`.score`), and write a report with pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np
import torch

from embodied_perceptron.apps.replay import ReplayProgress, replay
from embodied_perceptron.config import PerceptronConfig
from embodied_perceptron.geometry.boxes import box_corners, transform_boxes
from embodied_perceptron.geometry.transforms import F64, invert_transform, transform_points
from embodied_perceptron.recordings.artifacts import read_objects_json, write_objects_json
from embodied_perceptron.recordings.files import read_json, write_atomically, write_json
from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.recordings.recording import PosedFrameStream, Recording
from embodied_perceptron.results import SceneObject
from embodied_perceptron.sensors.frame import PosedFrame
from embodied_perceptron.visualization.drawing import Color, Image, draw_boxes_on_image
from embodied_perceptron.visualization.top_view import render_top_view
from embodied_perceptron_training.evaluation.recordings.labels import read_labels
from embodied_perceptron_training.evaluation.recordings.score import (
    DUPLICATE,
    MISNAMED,
    NOT_JUDGED,
    PHANTOM,
    ObjectVerdict,
    RecordingScore,
    score_recording,
)
from embodied_perceptron_training.evaluation.recordings.score import RIGHT as IS_RIGHT
from embodied_perceptron_training.evaluation.runner.pictures import (
    FOUND,
    MISSED,
    RIGHT,
    WRONG,
    draw_view,
    is_shown,
    save_picture,
)
from embodied_perceptron_training.reports import markdown_table

_COLORS: dict[str, Color] = {
    IS_RIGHT: FOUND, DUPLICATE: RIGHT, MISNAMED: WRONG, PHANTOM: MISSED, NOT_JUDGED: (170, 170, 170),
}  # fmt: skip
_MARGIN = 0.35  # of a crop, as a share of the box in the image
_LEAST_CROP_PX = 120
_CROP_PX = 360
_OCCLUDED_M = 0.3


def evaluate_recording(
    recording: str | Path,
    labels: str | Path,
    out: str | Path,
    config: PerceptronConfig | None = None,
    objects: str | Path | None = None,
    max_frames: int | None = None,
    pictures: bool = True,
    on_progress: Callable[[ReplayProgress], None] | None = None,
) -> dict[str, float | int | None]:
    """Score the published objects of a recording and write ``metrics.json``, ``recording.md``, ``objects.json`` and,
    with ``pictures``, ``pictures/*.jpg`` into ``out``.

    Args:
        recording: TUM folder or bag.
        labels: file of :mod:`.labels`, in the recording's world frame.
        config: of the replay.
        objects: ``objects.json`` of an earlier direct replay instead of a new one.
        max_frames: largest number of frames to replay.
        on_progress: called after every frame of the replay.

    Returns the figures of :meth:`.RecordingScore.metrics`. Raises :class:`LabelError` for an invalid label file,
    ``RecordingError`` for an unreadable recording, ``ValueError`` for ``objects`` without objects or a replay with an
    empty map, ``OSError`` for files that cannot be opened or written.
    """
    wanted = read_labels(labels)  # first: a replay takes longer
    source = open_recording(recording)
    config = PerceptronConfig() if config is None else config
    if objects is not None:
        published = _read(Path(objects))
    else:
        result = replay(source, config, max_frames=max_frames, on_progress=on_progress)
        if result.empty_because:
            raise ValueError(f"the map of {source.source} stays empty: {result.empty_because}")
        published = _moved(result.perception.objects, result.perception.T_world_map)
    score = score_recording(published, wanted)
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    drawn = _draw(source, config, score, out / "pictures") if pictures else {}
    write_objects_json(out / "objects.json", published)
    write_atomically(out / "recording.md", _markdown(score, drawn).encode())
    figures = score.metrics()
    write_json(out / "metrics.json", figures)
    return figures


def _read(path: Path) -> tuple[SceneObject, ...]:
    """Objects of an earlier replay, moved to the world frame as ``timings.json`` says."""
    beside = path.with_name("timings.json")
    T_world_map = np.eye(4)
    if beside.is_file():
        T_world_map = np.array(read_json(beside).get("T_world_map", T_world_map), np.float64)
    return _moved(read_objects_json(path), T_world_map)


def _moved(objects: Sequence[SceneObject], T_world_map: F64) -> tuple[SceneObject, ...]:
    if np.array_equal(T_world_map, np.eye(4)) or not objects:
        return tuple(objects)
    boxes = transform_boxes(T_world_map, torch.from_numpy(np.stack([o.box for o in objects]))).numpy()
    return tuple(replace(o, box=box) for o, box in zip(objects, boxes, strict=True))


# -- pictures


@dataclass(eq=False)
class _Sight:
    """The best view of one box so far."""

    thing: SceneObject
    name: str
    color: Color
    value: float = 0.0
    frame: PosedFrame | None = None


def _draw(source: Recording, config: PerceptronConfig, score: RecordingScore, folder: Path) -> dict[str, str]:
    """Draw a crop of the best frame for each scored object and each missed one; file names by key."""
    sights = {}
    for verdict in score.verdicts:
        thing, kind = verdict.thing, verdict.verdict
        name = f"{kind.replace(' ', '-')}_{_slug(thing.label)}_{thing.id}.jpg"
        sights[_key(verdict)] = _Sight(thing, name, _COLORS[kind])
    for row in score.missed():
        missed = score.things[row]
        shown = SceneObject(row + 1, missed.names[0], 1.0, missed.box)
        sights[f"missed {row}"] = _Sight(shown, f"missed_{_slug(missed.names[0])}_{row}.jpg", MISSED)
    for frame in PosedFrameStream(source, config.assembler):
        for sight in sights.values():
            value = _visible(sight.thing.box, frame)
            if value > sight.value:
                sight.value, sight.frame = value, frame
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {}
    for key, sight in sights.items():
        if sight.frame is not None:
            save_picture(_crop(sight.thing, sight.frame, sight.color), folder / sight.name)
            drawn[key] = f"{folder.name}/{sight.name}"
    return drawn


def _key(entry: ObjectVerdict) -> str:
    return f"object {entry.thing.id}"


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name)


def _pixels(box: F64, frame: PosedFrame) -> F64 | None:
    """(8, 2) pixels of the corners; None where one is behind the camera."""
    camera = frame.frame.intrinsics
    points = transform_points(invert_transform(frame.T_world_camera), box_corners(box[None])[0])
    if points[:, 2].min() < 0.1:
        return None
    return np.stack(
        [camera.fx * points[:, 0] / points[:, 2] + camera.cx, camera.fy * points[:, 1] / points[:, 2] + camera.cy], -1
    )


def _visible(box: F64, frame: PosedFrame) -> float:
    """How well a frame shows a box: mainly the share of it that is in the image, then its size; 0 = not at all."""
    pixels = _pixels(box, frame)
    if pixels is None:
        return 0.0
    camera = frame.frame.intrinsics
    size = np.array([camera.width, camera.height], np.float64)
    low, high = pixels.min(axis=0), pixels.max(axis=0)
    shown = np.clip(np.minimum(high, size) - np.maximum(low, 0), 0, None)
    u, v = (int(x) for x in (pixels.mean(axis=0)))
    if not (0 <= u < camera.width and 0 <= v < camera.height):
        return 0.0
    z_m = float((frame.T_world_camera[:3, :3].T @ (box[:3] - frame.T_world_camera[:3, 3]))[2])
    measured_m = float(frame.frame.depth_m[v, u])
    hidden = 0 < measured_m < z_m - 0.5 * float(np.linalg.norm(box[3:6])) - _OCCLUDED_M
    inside = float(np.prod(shown / np.maximum(high - low, 1e-6)))
    return 0.0 if hidden else inside * (0.5 + float(np.prod(shown / size)) ** 0.5)


def _crop(thing: SceneObject, frame: PosedFrame, color: Color) -> Image:
    camera = frame.frame.intrinsics
    factor = 2
    size = (camera.width * factor, camera.height * factor)
    image = np.ascontiguousarray(cv2.resize(frame.frame.color, size, interpolation=cv2.INTER_CUBIC))
    image = draw_boxes_on_image(image, [thing], frame.T_world_camera, camera.resized(*size), colors={thing.id: color})
    pixels = _pixels(thing.box, frame)
    assert pixels is not None  # of the frames that show it
    low, high = factor * pixels.min(axis=0), factor * pixels.max(axis=0)
    half = np.maximum((0.5 + _MARGIN) * (high - low), _LEAST_CROP_PX)
    middle = 0.5 * (low + high)
    left, top = np.clip(middle - half, 0, np.array(size) - 2).astype(int)
    right, bottom = np.clip(middle + half, (left + 2, top + 2), size).astype(int)
    crop = image[top:bottom, left:right]
    scale = _CROP_PX / max(crop.shape[:2])
    if scale < 1:
        crop = cv2.resize(crop, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    return np.ascontiguousarray(crop)


# -- table


def _markdown(score: RecordingScore, drawn: dict[str, str]) -> str:
    figures = [(name, "-" if value is None else value) for name, value in score.metrics().items()]
    judged = []
    for entry in score.verdicts:
        thing = entry.thing
        on = score.things[entry.on].names[0] if entry.on >= 0 else "-"
        verdict = f"{entry.verdict} ({entry.why})" if entry.why else entry.verdict
        place = _numbers(thing.box), _link(drawn.get(_key(entry)))
        judged.append((f"{thing.label} {thing.id}", f"{thing.score:.2f}", verdict, on, f"{entry.iou:.2f}", *place))
    missed = [
        (", ".join(thing.names), _numbers(thing.box), thing.note, _link(drawn.get(f"missed {row}")))
        for row, thing in ((row, score.things[row]) for row in score.missed())
    ]
    published = ("published", "score", "verdict", "on", "IoU", "box (x y z, size)", "picture")
    lines = [*markdown_table(("figure", ""), figures), "", *markdown_table(published, judged, "lrllrll"), ""]
    return (
        "\n".join([*lines, *markdown_table(("missed", "box (x y z, size)", "note", "picture"), missed, "llll")]) + "\n"
    )


def _numbers(box: F64) -> str:
    return f"{box[0]:.2f} {box[1]:.2f} {box[2]:.2f}, {box[3]:.2f} x {box[4]:.2f} x {box[5]:.2f}"


def _link(path: str | None) -> str:
    return "-" if path is None else f"![]({path})"


# -- recordings without labels


def draw_recording(
    path: Path,
    out: Path,
    config: PerceptronConfig,
    images: int = 4,
    on_progress: Callable[[ReplayProgress], None] | None = None,
) -> tuple[SceneObject, ...]:
    """Replay a recording and draw the confirmed objects into ``out``: ``top.jpg``, ``view_<k>.jpg``, ``objects.md``.

    The recording is cut into ``images`` equal parts, and the view that shows most objects is drawn of each. Raises what
    opening and replaying raise, and ``OSError`` when ``out`` cannot be written.
    """
    recording = open_recording(path)
    result = replay(recording, config, on_progress=on_progress)
    out.mkdir(parents=True, exist_ok=True)
    objects = result.perception.objects
    save_picture(render_top_view(result.perception, trajectory_m=result.trajectory_m), out / "top.jpg")
    frames = PosedFrameStream(recording, config.assembler)
    for number, view in enumerate(choose_frames(frames, objects, result.fused, images), start=1):
        save_picture(draw_view(view, objects), out / f"view_{number}.jpg")
    rows = []
    for thing in sorted(objects, key=lambda o: (-o.score, o.id)):
        size = " x ".join(f"{v:.2f}" for v in thing.box[3:6])
        center = ", ".join(f"{v:.2f}" for v in np.round(thing.box[:3], 2) + 0.0)
        rows.append((f"{thing.label} {thing.id}", f"{thing.score:.2f}", size, center))
    table = markdown_table(("object", "score", "size (m)", "centre (m)"), rows, "lrll")
    write_atomically(out / "objects.md", ("\n".join(table) + "\n").encode())
    return objects


def choose_frames(
    frames: PosedFrameStream | list[PosedFrame], objects: tuple[SceneObject, ...], total: int, wanted: int
) -> list[PosedFrame]:
    """The frame that shows most objects, in each of ``wanted`` equal parts of ``total`` frames."""
    best: dict[int, tuple[int, PosedFrame]] = {}
    for i, frame in enumerate(frames):
        stretch = min(i * wanted // max(total, 1), wanted - 1)
        count = sum(is_shown(thing, frame) for thing in objects)
        if stretch not in best or count > best[stretch][0]:
            best[stretch] = (count, frame)
    return [best[stretch][1] for stretch in sorted(best)]
