"""What all commands share: exit codes, errors, progress, plugins, the group ``dev`` and former names."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import inspect
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TextIO, get_type_hints

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

EXIT_BAD_RESULT = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130

_PROGRESS_PERIOD_S = 10.0  # between two lines of progress


class CommandError(Exception):
    """Ends a command with a message instead of a traceback; plugins may raise it too."""

    def __init__(self, message: str, exit_code: int = EXIT_BAD_INPUT) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@contextmanager
def user_errors(exit_code: int = EXIT_BAD_INPUT) -> Iterator[None]:
    """Raise ``CommandError`` with the message of a ``ValueError`` or ``OSError`` of the block."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise CommandError(str(error), exit_code) from error


_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def how_to_go_on(
    sentence: str = "finished files are complete and unfinished ones are removed; run the same command again",
) -> Iterator[None]:
    """Say what remains and how to go on when an interrupt or a full disk ends the block; the innermost block counts.

    Raises ``CommandError`` with the sentence, for an interrupt with its exit code.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        raise CommandError(f"interrupted: {sentence}", EXIT_INTERRUPTED) from error
    except OSError as error:
        if error.errno in _DISK_FULL or "No space left" in str(error):
            raise CommandError(f"{error}: {sentence}, with space on the disk") from error
        raise


def load_plugin(group: str, purpose: str) -> Any:
    """Load the function of an entry point group, which keeps ROS out of the library.

    Raises ``CommandError`` with ``purpose`` when the group is empty or cannot be loaded.
    """
    found = list(entry_points(group=group))
    if not found:
        raise CommandError(f"{purpose} needs the ROS package: run `make setup`, or source your ROS 2 workspace")
    try:
        return found[0].load()
    except Exception as error:
        raise CommandError(f"{purpose} is not available: {type(error).__name__}: {error}") from error


def with_option_groups(run: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameters of dataclass types are options, one for each field.

    A parameter of ``run`` with the name of a field replaces that field's option; its value goes to both.
    """
    own = inspect.signature(run, eval_str=True).parameters
    groups: dict[str, Any] = {n: p.annotation for n, p in own.items() if dataclasses.is_dataclass(p.annotation)}
    options: dict[str, inspect.Parameter] = {}
    for name, parameter in own.items():
        if name not in groups:
            options.setdefault(name, parameter)
            continue
        hints = get_type_hints(groups[name], include_extras=True)
        for field in dataclasses.fields(groups[name]):
            default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
            made = inspect.Parameter(field.name, parameter.kind, default=default, annotation=hints[field.name])
            options[field.name] = own.get(field.name, made)

    def command(**values: Any) -> None:
        filled = {
            name: group(**{field.name: values[field.name] for field in dataclasses.fields(group)})
            for name, group in groups.items()
        }
        run(**filled, **{name: values[name] for name in own if name not in groups})

    command.__name__, command.__doc__ = run.__name__, run.__doc__
    command.__annotations__ = {name: option.annotation for name, option in options.items()}
    keywords = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in options.values()]
    command.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    return command


# --------------------------------------------------------------------------------------------------------------------
# outputs: checked while the command line is read, before anything is loaded


def writable_folder(path: Path | None) -> Path | None:
    """Return the folder; raises ``typer.BadParameter`` when it cannot be written, or made where it is missing."""
    return None if path is None else _writable(path, path)


def writable_file(path: Path | None) -> Path | None:
    """Return the file; raises ``typer.BadParameter`` when it cannot be written."""
    if path is not None and os.path.exists(path) and not path.is_file():  # files are replaced as a whole
        raise typer.BadParameter(f"{path} cannot be written: it is not a regular file")
    return None if path is None else _writable(path, path.parent)


def _writable(path: Path, folder: Path) -> Path:
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.lstat()  # raises for names that no file can have
        nearest = next(known for known in (folder, *folder.parents) if os.path.lexists(known))
        with tempfile.TemporaryFile(dir=nearest):
            return path
    except (OSError, ValueError, StopIteration) as error:
        reason = getattr(error, "strerror", None) or str(error) or "its folder does not exist"
        raise typer.BadParameter(f"{path} cannot be written: {reason}") from error


# options of a folder or file that a command reads, and of one that it writes, whose missing folder is made
in_folder = functools.partial(typer.Option, exists=True, file_okay=False)
in_file = functools.partial(typer.Option, exists=True, dir_okay=False)
out_folder = functools.partial(typer.Option, file_okay=False, callback=writable_folder)
out_file = functools.partial(typer.Option, dir_okay=False, callback=writable_file)


# --------------------------------------------------------------------------------------------------------------------
# commands for developers, and commands that were renamed


def add_dev_command(app: typer.Typer, name: str, command: Callable[..., None], former: str = "") -> None:
    """Add ``dev NAME`` to ``app``, and the top-level command ``former``, its hidden former name."""
    group = next((info.typer_instance for info in app.registered_groups if info.name == "dev"), None)
    if group is None:
        group = typer.Typer(help="For developers of this project: benchmarks, results, weights.", no_args_is_help=True)
        app.add_typer(group, name="dev")
    group.command(name)(command)
    if former:
        add_former_name(app, former, f"dev {name}", command)


def add_former_name(
    app: typer.Typer, name: str, new_name: str, command: Callable[..., None], path: str = "", **fixed: Any
) -> None:
    """Add a hidden command that prints the new name and then runs ``command``.

    Args:
        app: the group that had the command.
        name: its former name within ``app``.
        new_name: words that call it now, without the program.
        command: the function of the new command.
        path: words that call ``app``, without the program, followed by a space.
        fixed: arguments that make ``command`` do what the former command did.
    """

    @functools.wraps(command)
    def run(**values: Any) -> None:
        print(f"`{path}{name}` is now `{new_name}`; the old name goes in 0.4", file=sys.stderr)
        command(**{**values, **fixed})

    app.command(name, hidden=True)(run)


# --------------------------------------------------------------------------------------------------------------------
# progress


class _WatchedStream:
    """A stream that sets an event when something is written to it."""

    def __init__(self, stream: TextIO, written: threading.Event) -> None:
        self._stream = stream
        self._written = written

    def write(self, text: str) -> int:
        self._written.set()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def announce_slow_start(text: str, after_s: float = 0.8) -> Iterator[None]:
    """Print ``text`` on standard error when the block prints nothing for ``after_s``: imports may take seconds."""
    written, streams = threading.Event(), (sys.stdout, sys.stderr)

    def announce() -> None:
        if not written.wait(after_s):
            print(text, file=streams[1], flush=True)

    sys.stdout, sys.stderr = (_WatchedStream(stream, written) for stream in streams)
    threading.Thread(target=announce, name="slow start", daemon=True).start()
    try:
        yield
    finally:
        written.set()
        sys.stdout, sys.stderr = streams


class TaskProgress:
    """Progress of one task on standard error; a context manager.

    A terminal shows a bar. Other outputs get a line at once and then every ten seconds.

    Args:
        what: the task in a few words.
        console: output; by default standard error.
    """

    def __init__(self, what: str, console: Console | None = None) -> None:
        self.console = console if console is not None else Console(stderr=True)
        self._line = f"{what} ..."
        self._what = what
        self._began_s = time.monotonic()
        self._ended = threading.Event()
        self._bar: Progress | None = None
        if self.console.is_terminal:
            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            self._bar = Progress(*columns, TimeRemainingColumn(), console=self.console, transient=True)
            self._task = self._bar.add_task(what, total=None)
        else:
            self._printer = threading.Thread(target=self._print_periodically, name="progress", daemon=True)

    def __enter__(self) -> TaskProgress:
        if self._bar is not None:
            self._bar.start()
        else:
            self._began_s = time.monotonic()
            self.say(self._line)
            self._printer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._bar is not None:
            self._bar.stop()
        else:
            self._printer.join()

    def update(self, done: int, total: int, text: str = "") -> None:
        """Show that ``done`` of ``total`` steps are done; ``text`` replaces the name of the task."""
        text = text or self._what
        self._line = f"{text}: {done} of {total}"
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, description=text)

    def begin(self, what: str) -> None:
        """Begin the next part of the task, whose length is not known."""
        self._line = f"{what} ..."
        if self._bar is not None:
            self._bar.reset(self._task, total=None, description=what)
        else:
            self.say(self._line)

    def say(self, line: str) -> None:
        """Print a line that stays above the bar."""
        (self.console if self._bar is None else self._bar.console).print(
            line, highlight=False, soft_wrap=True, markup=False
        )

    def _print_periodically(self) -> None:
        while not self._ended.wait(_PROGRESS_PERIOD_S):
            self.say(f"{self._line}, {time.monotonic() - self._began_s:.0f} s")
