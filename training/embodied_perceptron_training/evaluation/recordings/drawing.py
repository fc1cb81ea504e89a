"""Draw what a network finds in a recording without labels: pictures and a list, without scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np

from embodied_perceptron.apps.replay import ReplayProgress, replay
from embodied_perceptron.config import PerceptronConfig
from embodied_perceptron.recordings.files import write_atomically
from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.recordings.recording import PosedFrameStream
from embodied_perceptron.results import SceneObject
from embodied_perceptron.sensors.frame import PosedFrame
from embodied_perceptron.visualization.top_view import render_top_view
from embodied_perceptron_training.evaluation.runner.pictures import draw_view, is_shown, save_picture


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
    write_atomically(out / "objects.md", object_table(objects).encode())
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


def object_table(objects: tuple[SceneObject, ...]) -> str:
    """The objects as a Markdown table, best first."""
    lines = ["| object | score | size (m) | centre (m) |", "|---|---:|---|---|"]
    for thing in sorted(objects, key=lambda o: (-o.score, o.id)):
        size = " x ".join(f"{v:.2f}" for v in thing.box[3:6])
        center = ", ".join(f"{v:.2f}" for v in np.round(thing.box[:3], 2) + 0.0)
        lines.append(f"| {thing.label} {thing.id} | {thing.score:.2f} | {size} | {center} |")
    return "\n".join(lines) + "\n"


def with_weights(config: PerceptronConfig, weights: str, min_score: float | None = None) -> PerceptronConfig:
    """``config`` with another network."""
    return dataclasses.replace(
        config, network=dataclasses.replace(config.network, weights=weights, min_score=min_score)
    )
