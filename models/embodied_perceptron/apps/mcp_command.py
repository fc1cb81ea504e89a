"""``embodied-perceptron mcp``: a saved map or a running node as tools of a language-model agent."""

from __future__ import annotations

import secrets
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from embodied_perceptron.apps.command_line import EXIT_BAD_RESULT, CommandError, TaskProgress, load_plugin

if TYPE_CHECKING:
    from embodied_perceptron.agents.source import SceneSource

LIVE_SCENE_GROUP = "embodied_perceptron.live_scene"
TOKEN_VARIABLE = "EMBODIED_PERCEPTRON_TOKEN"


class LiveScene(Protocol):
    """What an entry point of :data:`LIVE_SCENE_GROUP` is: the scene of a running node."""

    def __call__(self, *, namespace: str, timeout_s: float) -> AbstractContextManager[SceneSource]:
        """Listens to the node in ``namespace`` while it is open; tools wait ``timeout_s`` for it at most."""
        ...


def mcp(
    map_path: Annotated[
        Path | None, typer.Option("--map", help="A map: its file, or a folder with one; without it, the running node.")
    ] = None,
    namespace: Annotated[str, typer.Option(help="Namespace of the node: as it was given to perceive.")] = "",
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds to wait for the node: that it is there and answers.")
    ] = 10.0,
    http: Annotated[bool, typer.Option("--http", help="Over HTTP instead of standard input and output.")] = False,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 = all of this machine.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port to listen on; fixed, since agents are told it.")
    ] = 8090,
    token: Annotated[
        str,
        typer.Option(
            envvar=TOKEN_VARIABLE, help="What a client must show: an agent over HTTP; made anew where not given."
        ),
    ] = "",
) -> None:
    """Give a language-model agent the map as tools (Model Context Protocol): find, list, look, go. Ends with its
    input, or with Ctrl-C."""
    if map_path is not None and namespace:
        raise CommandError("--namespace belongs to a running node, not to --map")
    with TaskProgress("starting" if map_path is None else f"reading {map_path}"):
        try:
            from embodied_perceptron.agents.server import PATH, serve_http, serve_stdio
        except ImportError as error:
            raise CommandError(
                f"{error}: install the extra agent, pip install 'embodied-perceptron[agent]'", EXIT_BAD_RESULT
            ) from error
        opened = _open(map_path, namespace, timeout)
    with opened as source:
        if not http:
            serve_stdio(source)
            return
        if not token:
            token = secrets.token_urlsafe(24)
            typer.echo(f"token: {token}", err=True)
        typer.echo(f"the map is served at http://{host}:{port}{PATH} (Ctrl-C ends it)", err=True)
        serve_http(source, host, port, token)


def _open(map_path: Path | None, namespace: str, timeout_s: float) -> AbstractContextManager[SceneSource]:
    if map_path is None:
        connect: LiveScene = load_plugin(LIVE_SCENE_GROUP, "mcp over a running node")
        return connect(namespace=namespace, timeout_s=timeout_s)
    from embodied_perceptron.agents.source import MapSource
    from embodied_perceptron.apps.view_command import open_map

    return nullcontext(MapSource(open_map(map_path)))


def register(app: typer.Typer) -> None:
    """Add the sub-command to ``app``."""
    app.command("mcp")(mcp)
