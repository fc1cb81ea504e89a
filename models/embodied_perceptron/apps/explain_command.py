"""``embodied-perceptron explain``: why something is called so, and why something is not there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from embodied_perceptron.apps.command_line import CommandError, TaskProgress
from embodied_perceptron.apps.reading_options import open_source
from embodied_perceptron.apps.recording_commands import load_settings, with_detectors, with_network
from embodied_perceptron.apps.view_command import MAP_NAME

if TYPE_CHECKING:
    from embodied_perceptron.apps.explanation import PlaceRecorder
    from embodied_perceptron.config import PerceptronConfig
    from embodied_perceptron.perceptron import Perceptron
    from embodied_perceptron.results import Perception


def explain(
    source: Annotated[
        Path, typer.Argument(metavar="MAP_OR_RECORDING", help="A saved map, or a recording: TUM folder or bag.")
    ],
    thing: Annotated[int | None, typer.Option("--object", help="Id of an object of the map.")] = None,
    at: Annotated[str | None, typer.Option(metavar="X,Y,Z", help="A place in the map, metres.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML configuration: sections, as for `replay`.")] = None,
    perceive_every: Annotated[float, typer.Option(min=0.01, help="Look for objects every so many seconds.")] = 1.0,
    weights: Annotated[str | None, typer.Option(help="Network: a shipped name, or a weights file.")] = None,
    detector: Annotated[list[Path] | None, typer.Option(help="ONNX file of a 2-D detector; repeatable.")] = None,
    detector_layout: Annotated[list[str] | None, typer.Option(help="Layout of its outputs, for each of them.")] = None,
) -> None:
    """Tell what each source said of a thing or place, how it was weighed, and what became of it in the map.

    A recording is replayed, and tells what was said in each perception. A map is looked at once more, as a whole.
    """
    if (thing is None) == (at is None):
        raise CommandError("say what is meant, by --object ID or --at X,Y,Z")
    point = None if at is None else _point(at)
    with TaskProgress(f"reading {source}") as progress:
        import numpy as np

        from embodied_perceptron.apps.explanation import ObservedPerceptron, PlaceRecorder, Spot
        from embodied_perceptron.apps.explanation import explain as explain_spot

        settings = with_network(with_detectors(load_settings(config), detector, detector_layout), weights, None)
        recorder = PlaceRecorder()
        is_map = (source.is_file() and source.suffix == ".safetensors") or (source / MAP_NAME).is_file()
        if is_map:
            perceptron, perception = _look_at_map(source, settings, recorder)
        else:
            from embodied_perceptron.apps.replay import replay

            result = replay(
                open_source(source),
                ObservedPerceptron.observed_by(recorder.record, settings),
                perceive_every_s=perceive_every,
                on_progress=lambda p: progress.update(p.frames, p.total, f"fused {p.fused}"),
            )
            perceptron, perception = result.perceptron, result.perception
        if point is not None:
            spot = Spot(np.array(point))
        else:
            every = (*perception.objects, *perception.tentative, *perception.stale)
            meant = [o for o in every if o.id == thing]
            if not meant:
                known = ", ".join(str(o.id) for o in every) or "none"
                raise CommandError(f"there is no object {thing}; there are {known}")
            spot = Spot.of(meant[0])
        lines = explain_spot(perceptron, perception, recorder, spot)
    typer.echo("\n".join(lines))


def _look_at_map(path: Path, settings: PerceptronConfig, recorder: PlaceRecorder) -> tuple[Perceptron, Perception]:
    """A saved map, perceived once as a whole."""
    from dataclasses import replace

    from embodied_perceptron.apps.view_command import map_file
    from embodied_perceptron.mapping.storage import read_map, saved_configs
    from embodied_perceptron.perceptron import Perceptron

    saved = read_map(map_file(path))
    volume, keyframes = saved_configs(saved)
    perceptron = Perceptron.from_config(replace(settings, volume=volume, keyframes=keyframes))
    perceptron.map.restore(saved)
    perception = perceptron.perceive(window_m=float("inf"))
    recorder.record(perceptron, perception)
    return perceptron, perception


def _point(text: str) -> tuple[float, float, float]:
    try:
        x, y, z = (float(part) for part in text.split(","))
    except ValueError:
        raise CommandError(f"--at must be three numbers x,y,z in metres, got {text!r:.100}") from None
    return x, y, z


def register(app: typer.Typer) -> None:
    """Add the sub-command to ``app``."""
    app.command("explain")(explain)
