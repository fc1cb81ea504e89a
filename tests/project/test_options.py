"""One meaning for each option: what two commands call by one name is the same thing in both."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from embodied_perceptron.apps.cli import build_app

# (option, command) -> why its default is another one than elsewhere
OWN_DEFAULTS = {
    ("--views", "evaluate robustness"): "each view is of one target, and rendered anew for every factor",
    **{("--frames", command): "frames to look through, not a drive" for command in ("label", "export-map")},
    ("--perceive-every", "evaluate calibrate-witnesses"): "looks that follow each other at once say the same",
    ("--port", "label"): "it is open beside a viewer",
    ("--port", "mcp"): "so is this one",
    ("--timeout", "mcp"): "an agent asks again sooner than a person",
    **{("--split", command): "what one trains on" for command in ("generate", "inspect", "export-bag")},
    **{("--split", f): "what one fits to" for f in ("learn", "evaluate calibrate", "evaluate calibrate-scores")},
}


def commands(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if not hasattr(command, "commands") or command.invoke_without_command:
            yield f"{path} {name}".strip(), command
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}".strip())


def options() -> dict[str, list[tuple[str, Any]]]:
    """Name -> (command, option) of all that have it for their first; further names are older ones, kept for scripts."""
    found = defaultdict(list)
    for path, command in commands(typer.main.get_command(build_app())):
        for parameter in command.params:
            names = [name for name in parameter.opts if name.startswith("--") and name != "--help"]
            if names:
                found[names[0]].append((path, parameter))
    return found


OPTIONS = options()
SHARED = sorted(name for name, uses in OPTIONS.items() if len(uses) > 1)


def meaning(parameter: Any) -> str:
    """What the help says before it goes into what is special to a command."""
    return re.split(r"[:;,.(]", parameter.help or "", maxsplit=1)[0].strip()


def kind(parameter: Any) -> str:
    """A switch, a number, or a text; of a list, that of its parts."""
    hint = str(parameter.type_descriptor.annotation)
    return "switch" if parameter.is_flag else "number" if re.search(r"\b(int|float)\b", hint) else "text"


@pytest.mark.parametrize("name", SHARED)
def test_an_option_means_the_same_everywhere(name: str) -> None:
    uses = OPTIONS[name]
    meanings = {meaning(parameter) for _, parameter in uses}
    if name == "--out":
        assert meanings <= {"Folder to write", "File to write"}
    else:
        assert len(meanings) == 1, {path: parameter.help for path, parameter in uses}
    assert all(meanings)
    assert len({kind(parameter) for _, parameter in uses}) == 1, uses


def defaults_of(name: str) -> dict[str, str]:
    """Command -> default; "" where nothing is said (None, the empty text, off)."""
    found = {path: p.default for path, p in OPTIONS[name] if not p.required}
    return {path: "" if value in (None, "", False) else str(value) for path, value in found.items()}


@pytest.mark.parametrize("name", SHARED)
def test_an_option_has_the_same_default_everywhere(name: str) -> None:
    usual = {value for path, value in defaults_of(name).items() if value and (name, path) not in OWN_DEFAULTS}
    assert len(usual) <= 1, defaults_of(name)
    for (option, path), reason in OWN_DEFAULTS.items():
        if option == name:
            assert reason
            assert defaults_of(name)[path] not in usual | {""}, f"{path} {name} needs no default of its own"


def test_names_of_before_go_on_working() -> None:
    names = {name for uses in OPTIONS.values() for _, parameter in uses for name in parameter.opts}
    assert {"--rate", "--preset", "--scenes", "--classes", "--precision", "--pictures", "--training"} <= names
    older = {
        "generate": "--rate",
        "export-bag": "--rate",
        "perceive": "--preset",
        "ground": "--scenes",
        "dev model": "--classes",
        "evaluate calibrate": "--precision",
        "evaluate all": "--pictures",
        "evaluate pope": "--training",
    }
    for path, command in commands(typer.main.get_command(build_app())):
        if path in older:
            assert any(older[path] in parameter.opts for parameter in command.params), path


def test_every_option_says_what_it_is() -> None:
    for name, uses in OPTIONS.items():
        for path, parameter in uses:
            assert parameter.help, f"{path} {name}"
