"""The ``embodied-perceptron`` command.

Sub-commands come from the library (:mod:`embodied_perceptron.apps.recording_commands`) and from entry points of the
group ``embodied_perceptron.commands``, each a function ``register(app: typer.Typer) -> None``, so that the library
imports neither ROS nor training code. A plugin that cannot be imported becomes a command that prints the reason.

Exit codes: 0 success; 1 bad result (``doctor`` found errors, nothing could be fused); 2 wrong usage or unreadable
input; 130 interrupted.
"""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from embodied_perceptron import __version__
from embodied_perceptron.apps import detector_commands, map_commands, recording_commands
from embodied_perceptron.apps.command_line import (
    EXIT_BAD_INPUT,
    EXIT_BAD_RESULT,
    EXIT_INTERRUPTED,
    CommandError,
    announce_slow_start,
    how_to_go_on,
)

__all__ = ["CommandError", "build_app", "main"]

COMMANDS_GROUP = "embodied_perceptron.commands"
_TRACEBACK_VARIABLE = "EMBODIED_PERCEPTRON_TRACEBACK"

errors = Console(stderr=True)


class _Group(TyperGroup):
    """Says what remains when a command is interrupted, and names plugins that could not be loaded."""

    failures: dict[str, str]

    def invoke(self, ctx: Any) -> Any:
        with how_to_go_on():
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:
            failed = getattr(self, "failures", {})
            if failed and args and args[0] not in self.list_commands(ctx) and hasattr(error, "message"):
                listed = "; ".join(f"{name} ({reason})" for name, reason in failed.items())
                error.message = f"{error.message} Some plugins could not be loaded: {listed}"
            raise


def build_app(plugins: Iterable[EntryPoint] | None = None) -> typer.Typer:
    """Build the command line with all sub-commands; ``plugins`` replaces the installed entry points."""
    failures: dict[str, str] = {}

    class Group(_Group):
        pass

    Group.failures = failures
    app = typer.Typer(
        name="embodied-perceptron",
        cls=Group,
        help="Incrementally updated sparse voxel perception for robots.",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_global_options)
    for commands in (recording_commands, map_commands, detector_commands):
        commands.register(app)
    for plugin in entry_points(group=COMMANDS_GROUP) if plugins is None else plugins:
        try:
            plugin.load()(app)
        except Exception as error:  # a broken plugin must not break the others
            failures[plugin.name] = f"{type(error).__name__}: {error}"
            _add_stub(app, plugin.name, failures[plugin.name])
    _keep_brackets(app)
    return app


def _keep_brackets(app: typer.Typer) -> None:
    """Escape the brackets of docstrings, which the help would read as markup."""
    for command in app.registered_commands:
        if command.help is None and command.callback is not None:
            command.help = escape(inspect.getdoc(command.callback) or "")
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _keep_brackets(group.typer_instance)


def _version(asked: bool) -> None:
    if asked:
        print(f"embodied-perceptron {__version__}")
        raise typer.Exit


def _global_options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
    show_traceback: Annotated[
        bool, typer.Option("--traceback", help="Show the traceback of an error.", envvar=_TRACEBACK_VARIABLE)
    ] = False,
) -> None:
    if show_traceback:
        os.environ[_TRACEBACK_VARIABLE] = "1"


def _add_stub(app: typer.Typer, name: str, reason: str) -> None:
    taken = {info.name for info in app.registered_commands} | {info.name for info in app.registered_groups}
    if name in taken:
        return

    def stub(ctx: typer.Context) -> None:
        raise CommandError(f"the plugin {name!r} could not be loaded: {reason}", EXIT_BAD_RESULT)

    app.command(
        name,
        help=f"(not available: {escape(reason)})",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )(stub)


def _is_ours(error: BaseException) -> bool:
    """Return True for errors whose message is written for the user: the project's own classes and system errors."""
    return isinstance(error, (CommandError, OSError)) or any(
        kind.__module__.startswith("embodied_perceptron") for kind in type(error).__mro__
    )


def main() -> NoReturn:
    """Entry point of the console script."""
    name = next((word for word in sys.argv[1:] if not word.startswith("-")), "embodied-perceptron")
    try:
        with announce_slow_start(f"starting {name} ..."):
            build_app()()
    except KeyboardInterrupt:
        errors.print("interrupted")
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:
        if not _is_ours(error):
            raise
        if os.environ.get(_TRACEBACK_VARIABLE):
            traceback.print_exc()
        code = getattr(error, "exit_code", EXIT_BAD_INPUT)
        head = "" if code == EXIT_INTERRUPTED else "[bold red]error:[/] "
        errors.print(f"{head}{escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(code)
    sys.exit(0)


if __name__ == "__main__":
    main()
