"""``embodied-perceptron evaluate recording`` (what is published about a recording, against labels made by hand) and
``mission-score`` (the final map of a simulated one, against the truth)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from embodied_perceptron.apps.command_line import (
    EXIT_BAD_RESULT,
    CommandError,
    TaskProgress,
    in_file,
    out_folder,
    user_errors,
)
from embodied_perceptron.apps.reading_options import DetectionsOption, load_settings, with_detectors, with_network
from embodied_perceptron_training.evaluation.runner.options import DEGRADE_HELP
from embodied_perceptron_training.reports import figure_table

if TYPE_CHECKING:
    from embodied_perceptron.apps.replay import ReplayProgress


def recording(
    recording: Annotated[Path, typer.Option(exists=True, help="Recording: TUM folder or bag.")],
    out: Annotated[Path, out_folder(help="Folder to write: metrics, table and pictures.")],
    labels: Annotated[Path | None, in_file(help="Labels (JSON, see `label`); without, nothing is scored.")] = None,
    objects: Annotated[
        Path | None, in_file(help="objects.json of a map: an earlier `replay --direct`, instead of one.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML configuration: sections, as for `replay`.")] = None,
    detections: DetectionsOption = None,
    degrade: Annotated[str, typer.Option(help=DEGRADE_HELP)] = "",
    weights: Annotated[
        str | None, typer.Option(help="Network: a shipped name, a weights file, or none = boxes without classes.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Device: cpu, cuda, cuda:N, or auto = cuda where there is one.")
    ] = None,
    min_score: Annotated[float | None, typer.Option(help="Score of an object; default: the weights' own.")] = None,
    max_frames: Annotated[int | None, typer.Option(min=1, help="Stop after so many frames.")] = None,
    images: Annotated[int, typer.Option(min=0, help="Camera images to draw on where there are no labels.")] = 4,
    pictures: Annotated[bool, typer.Option(help="A picture of every published object and everything missed.")] = True,
) -> None:
    """Compare the published objects of a recording with hand-made labels.

    Writes metrics.json {published, right, precision, recall, recall_large, misnamed, phantoms, duplicates},
    recording.md (every object with its verdict), objects.json and pictures.

    A named object is RIGHT if it is the first on a sure labelled object (IoU >= 0.25, sides shorter than 0.1 m count
    as 0.1 m) under an accepted name; a DUPLICATE if the labelled object has a box already, or if it is only a piece of
    it; MISNAMED on a sure labelled object under another name; a PHANTOM where nothing is labelled. published = the sum
    of these four, precision = right / published. Listed and not counted are objects named `object`, objects on unsure
    labelled objects, pieces of those under their name, and objects in regions to ignore. recall = found / all sure
    labelled objects; recall_large = of those >= 0.5 m long. Shares are in [0, 1], null without a denominator.

    Without --labels the objects are drawn on images and from above, and nothing is scored.
    """
    if labels is None and objects is not None:
        raise CommandError("--objects belongs to --labels: without labels a recording is replayed and drawn")
    if degrade:
        from embodied_perceptron_training.evaluation.runner.detections import Degradation, write_degraded

        if detections is None:
            raise CommandError("--degrade belongs to --detections")
        out.mkdir(parents=True, exist_ok=True)
        detections = write_degraded(detections, out / "detections.json", Degradation.of_text(degrade))
    settings = with_network(with_detectors(load_settings(config), None, None, detections), weights, device)
    if min_score is not None:
        settings = replace(settings, network=replace(settings.network, min_score=min_score))
    with TaskProgress(f"replaying {recording}" if objects is None else f"judging {objects}") as shown:
        from embodied_perceptron_training.evaluation.recordings.report import draw_recording, evaluate_recording

        def on_progress(p: ReplayProgress) -> None:
            shown.update(p.frames, p.total, f"fused {p.fused}")

        if labels is None:
            found = draw_recording(recording, out, settings, images, on_progress)
        else:
            figures = evaluate_recording(
                recording, labels, out, settings, objects, max_frames, pictures, on_progress=on_progress
            )
    if labels is None:
        typer.echo(f"{out}: {len(found)} objects, nothing is scored")
        return
    rows = [(n, "-" if v is None else f"{v:.3f}" if isinstance(v, float) else v) for n, v in figures.items()]
    Console().print(figure_table(f"{recording.name} against {labels.name}", ("figure", ""), rows))
    typer.echo(f"{out}: metrics.json, recording.md, objects.json" + (", pictures" if pictures else ""))


def mission_score(
    recording: Annotated[Path, typer.Argument(exists=True, help="Folder of a simulated recording.")],
    objects: Annotated[Path, typer.Option(exists=True, help="objects.json of a map.")],
    occupancy: Annotated[Path, typer.Option(exists=True, help="occupancy.npz of the map.")],
    saved_map: Annotated[Path, typer.Option("--map", exists=True, help="A map: map.safetensors.")],
) -> None:
    """Print, as JSON, AP of the objects and mIoU of the cells of a map against what the recording shows, and the mean
    distance in metres of its points to the true surfaces."""
    import json

    from embodied_perceptron.recordings.artifacts import read_objects_json, read_occupancy_npz
    from embodied_perceptron_training.evaluation.recordings.final_map import score_objects, score_occupancy
    from embodied_perceptron_training.homes.recording import map_error_m, map_points, watch_recording

    with user_errors(EXIT_BAD_RESULT):
        trajectory = watch_recording(recording)
        confirmed = [thing for thing in read_objects_json(objects) if thing.state == "confirmed"]
        figures = score_objects(trajectory, confirmed) | score_occupancy(trajectory, read_occupancy_npz(occupancy))
        figures["map_error_m"] = map_error_m(recording, map_points(saved_map))
    typer.echo(json.dumps({name: round(value, 5) for name, value in figures.items()}))
