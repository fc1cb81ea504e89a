"""Commands of the synthetic homes, registered through the entry points of ``embodied_perceptron.commands``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command("render-recording")(render_recording_command)


def parse_size(text: str) -> tuple[int, int]:
    """'640x480' -> (640, 480). Raises ``typer.BadParameter``."""
    try:
        width, height = (int(part) for part in text.lower().split("x"))
    except ValueError:
        raise typer.BadParameter(f"size must look like 640x480, got {text!r}") from None
    return width, height


def render_recording_command(
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    seed: Annotated[int, typer.Option(help="Home, path and noise.")] = 7,
    frames: Annotated[int, typer.Option(help="Number of frames.")] = 250,
    size: Annotated[str, typer.Option(help="WIDTHxHEIGHT.")] = "320x240",
    rate: Annotated[float, typer.Option(help="Frames per second.")] = 10.0,
    sensor: Annotated[str, typer.Option(help="perfect, structured-light or lidar-phone.")] = "structured-light",
    rooms: Annotated[int, typer.Option(help="Number of rooms; 1 is a living room.")] = 1,
    workers: Annotated[int, typer.Option(help="Processes.")] = 2,
) -> None:
    """Render a simulated robot's drive through a furnished home as a TUM RGB-D folder with exact truth."""
    from rich.progress import Progress

    from embodied_perceptron_training.synthetic.home import HomeSpec
    from embodied_perceptron_training.synthetic.noise import NoiseModel
    from embodied_perceptron_training.synthetic.recording import RecordingSpec, render_recording

    width, height = parse_size(size)
    try:
        spec = RecordingSpec(
            seed,
            frames,
            width,
            height,
            rate,
            HomeSpec(rooms, "living room" if rooms == 1 else None),
            NoiseModel(sensor=sensor),  # type: ignore[arg-type]  # checked by NoiseModel
        )
        with Progress() as progress:
            task = progress.add_task(f"Rendering home {seed}", total=frames)
            home = render_recording(spec, out, workers, lambda done, total: progress.update(task, completed=done))
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from error
    typer.echo(f"{out}: {frames} frames of home {seed}, {len(home.objects)} objects, {len(home.rooms)} room(s)")
