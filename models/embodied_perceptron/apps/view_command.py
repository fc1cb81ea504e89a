"""``embodied-perceptron view``: a saved map in the browser, to look at and to ask."""

from __future__ import annotations

import signal
import threading
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from embodied_perceptron.apps.command_line import EXIT_BAD_RESULT, CommandError, TaskProgress

if TYPE_CHECKING:
    from embodied_perceptron.perceptron import Perceptron
    from embodied_perceptron.visualization.web import WebViewer

MAP_NAME = "map.safetensors"  # in a folder of results


def view(
    map_path: Annotated[Path, typer.Argument(metavar="MAP", help=f"A saved map, or a folder with {MAP_NAME}.")],
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 = everybody who has the token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 = any free one.")] = 8085,
    token: Annotated[str, typer.Option(help="What a client must show: a browser; made anew where it is needed.")] = "",
    browser: Annotated[bool, typer.Option(help="Open the page.")] = True,
) -> None:
    """Look at a saved map in the browser, ask it, name and correct things (kept in the map). Ctrl-C ends it."""
    with TaskProgress(f"reading {map_path}"):
        from embodied_perceptron.visualization.web import WebUnavailableError
        from embodied_perceptron.visualization.web_gate import PortTakenError

        perceptron = open_map(map_path)
    try:
        viewer = serve_map(perceptron, map_file(map_path), host, port, token)
    except WebUnavailableError as error:
        raise CommandError(str(error), EXIT_BAD_RESULT) from error
    except (PortTakenError, ValueError) as error:
        raise CommandError(str(error)) from error
    with viewer:
        typer.echo(f"{len(perceptron.objects)} objects; the map is shown at {viewer.url} (Ctrl-C ends it)")
        if browser:
            webbrowser.open(viewer.url)
        stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        try:
            stop.wait()
        except KeyboardInterrupt:
            typer.echo("")


def map_file(path: Path) -> Path:
    """The map that a path means. Raises ``CommandError`` where there is none."""
    file = path / MAP_NAME if path.is_dir() else path
    if not file.is_file():
        raise CommandError(f"no map at {file}")
    return file


def open_map(path: Path) -> Perceptron:
    """A saved map (a file, or a folder with one) with its own configuration, objects and names, without a network.

    Raises ``CommandError`` where there is none, ``MapFileError`` for a damaged one.
    """
    from embodied_perceptron.config import PerceptronConfig
    from embodied_perceptron.mapping.storage import read_map, saved_configs
    from embodied_perceptron.perceptron import Perceptron

    saved = read_map(map_file(path))
    volume, keyframes = saved_configs(saved)
    perceptron = Perceptron(PerceptronConfig(volume=volume, keyframes=keyframes))
    perceptron.map.restore(saved)
    return perceptron


def serve_map(perceptron: Perceptron, file: Path, host: str, port: int, token: str = "") -> WebViewer:
    """A viewer of the map from ``file``, to which names and corrections are written, unless another program wrote the
    file meanwhile: then they are refused, with nothing changed. Raises as ``WebViewer``."""
    from embodied_perceptron.mapping.storage import MapChangedError
    from embodied_perceptron.visualization.web import Controls, WebViewer

    taught = threading.Lock()

    def require_unchanged() -> None:
        try:
            perceptron.map.check_unchanged(file)
        except MapChangedError:
            raise ValueError(
                f"nothing has changed: another program (the robot?) wrote {file.name} since it was opened here; "
                "open it again to name things in the newer map"
            ) from None

    def name(number: int, words: str) -> str:
        with taught:
            require_unchanged()
            thing = perceptron.name_object(number, words)
            keep()
        return f"{thing.label} {number} is called {thing.user_name!r}" if thing.user_name else f"{number} has no name"

    def correct(number: int, label: str, not_there: bool) -> str:
        with taught:
            require_unchanged()
            thing = perceptron.correct_object(number, label, not_there)
            keep()
        return f"there is no {thing.label} {number}" if not_there else f"object {number} is a {thing.label}"

    def keep() -> None:
        perceptron.save(file)
        viewer.show(perceptron.recall())

    def complain(trace: str) -> None:
        typer.secho(trace, err=True)

    viewer = WebViewer(
        Controls(perceptron.ground, name, correct),
        host=host,
        port=port,
        token=token,
        title=file.resolve().parent.name if file.name == MAP_NAME else file.name,
        on_error=complain,
    )
    viewer.show(perceptron.recall())
    return viewer


def register(app: typer.Typer) -> None:
    """Add the sub-command to ``app``."""
    app.command("view")(view)
