"""Pages of reference made from the code when the site is built: parameters, messages, launch arguments, commands.

A hook of MkDocs (``hooks:`` in mkdocs.yml). Nothing of it is written by hand, so that it cannot be out of date.
"""

from __future__ import annotations

import ast
import dataclasses
import math
import re
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
INTERFACES = ROOT / "ros_ws" / "src" / "embodied_perceptron_msgs"
_UNITS = {"m": "m", "s": "s", "ns": "ns", "ms": "ms", "rad": "rad", "hz": "Hz", "mib": "MiB", "m2": "m/m²", "px": "px"}
_UNITS |= {"period": "s", "mib": "MiB"}


def unit_of(name: str) -> str:
    """The unit that the end of a name tells."""
    return _UNITS.get(name.rpartition("_")[2], "")


def _cell(text: object) -> str:
    """Text of a cell; what stands between backticks is shown as it is, so that nothing in it is escaped."""
    parts = " ".join(str(text).split()).replace("|", "\\|").split("`")
    return "`".join(part if k % 2 else part.replace("<", "&lt;") for k, part in enumerate(parts))


def table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table."""
    names = list(header)
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    lines += [f"| {' | '.join(_cell(value) for value in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def parameters_page() -> str:
    """Parameters of the node, and every value of the configuration file."""
    from embodied_perceptron.config import PerceptronConfig, config_parts
    from embodied_perceptron_ros.node.parameters import CAMERA_DECLARATIONS, DECLARATIONS

    def rows(declarations: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, ...]]:
        for name, d in declarations.items():
            if d.choices:
                limits = ", ".join(choice or '""' for choice in d.choices)
            else:
                limits = "" if d.low is None else f"{d.low:g} to {d.high:g}"
            live = "yes" if d.live else ""
            yield f"`{prefix}{name}`", f"`{_yaml(d.default)}`", unit_of(name), limits, live, d.description

    header = ("parameter", "default", "unit", "range", "while running", "meaning")
    parts = [
        "# Parameters",
        "## Of the node",
        "`ros2 param describe /perception NAME` says the same, and `ros2 param get` the value in use. Unknown names are"
        " refused; integers serve for floating-point numbers. *While running*: may be changed on an active node.",
        table(header, rows(DECLARATIONS)),
        "## Of each camera",
        "The camera's name stands in front: `camera.color_topic`, `front.color_topic`.",
        table(header, rows(CAMERA_DECLARATIONS, "<camera>.")),
        "## Of the algorithm",
        "The YAML file that `config_file` names, and `--config` of `replay` and `doctor`. Unknown keys are errors.",
    ]
    for section in dataclasses.fields(PerceptronConfig):
        parts.append(f"### {section.name}")
        for cls, names in config_parts(type(getattr(PerceptronConfig(), section.name))):
            parts.append(_first_sentence(cls))
            if not names:  # it is made of parts alone
                continue
            meanings = attribute_docs(cls)
            fields = [
                (
                    f"`{section.name}.{name}`",
                    f"`{_yaml(getattr(cls(), name))}`",
                    unit_of(name),
                    range_of(cls, name),
                    meanings[name],
                )
                for name in names
            ]
            parts.append(table(("key", "default", "unit", "range", "meaning"), fields))
    return "\n\n".join(parts)


def range_of(cls: type, name: str) -> str:
    """What a field of a configuration class may be, in the words by which the class refuses other values; empty for
    texts and switches."""
    hint, default = typing.get_type_hints(cls)[name], getattr(cls(), name)
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(choice or '""' for choice in typing.get_args(hint))
    if isinstance(default, bool) or not isinstance(default, (int, float)):
        return ""
    rules = []
    for value in (-1, 0, 10**9, -(10**9)) if isinstance(default, int) else (-1.0, 0.0, 1e9, -1e9, math.nan):
        try:
            dataclasses.replace(cls(), **{name: value})
        except ValueError as error:
            rules.append(_rule(str(error), name))
    return "; ".join(dict.fromkeys(rules))


def _rule(message: str, name: str) -> str:
    """ "x must be at least 1, got 0" -> "at least 1"; "need 0 < x < y, got ..." -> "0 < x < y"."""
    text = re.sub(r" \(\S+?\)", "", message.split(", got ")[0].removeprefix("need "))
    return text.removeprefix(f"{name} must ").removeprefix("be ").replace("not be negative", "at least 0")


def _yaml(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(str, value))}]"
    return '""' if value == "" else str(value)


def _first_sentence(cls: type) -> str:
    return " ".join((cls.__doc__ or "").split("\n\n")[0].split())


def attribute_docs(cls: type) -> dict[str, str]:
    """Name of each field of a configuration class -> its meaning, from "Attributes:" of the docstring.

    Raises ``KeyError`` naming fields without one.
    """
    _, _, attributes = (cls.__doc__ or "").partition("Attributes:")
    found: dict[str, str] = {}
    for entry in re.split(r"\n {8}(?=\S)", attributes)[1:]:
        names, _, meaning = entry.partition(":")
        if re.fullmatch(r"\w+(, \w+)*", names):
            found.update(dict.fromkeys(names.split(", "), " ".join(meaning.split())))
    missing = [f.name for f in dataclasses.fields(cls) if f.name not in found]
    if missing:
        raise KeyError(f"{cls.__name__} does not document {', '.join(missing)}")
    return found


def messages_page() -> str:
    """Own interfaces, as their files have them."""
    parts = ["# Messages, services, actions", "The package `embodied_perceptron_msgs`; comments are the contract."]
    for path in sorted(INTERFACES.glob("[msa]*/*.*")):
        parts += [f"## {path.stem}", f"`embodied_perceptron_msgs/{path.parent.name}/{path.stem}`"]
        parts.append(f"```text\n{path.read_text().rstrip()}\n```")
    return "\n\n".join(parts)


def launch_arguments(path: Path) -> list[tuple[str, str | None, str]]:
    """(name, default or None = has to be given, meaning) of the arguments of a launch file."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "ARGUMENTS":
            return [tuple(row) for row in ast.literal_eval(node.value)]
    raise ValueError(f"{path} has no ARGUMENTS")


def launch_page() -> str:
    """Arguments of the launch files."""
    parts = ["# Launch files", "`ros2 launch embodied_perceptron FILE NAME:=VALUE`; `-s` lists the arguments."]
    for path in sorted((ROOT / "launch").glob("*.launch.py")):
        summary = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0]
        rows = [
            (f"`{name}`", "has to be given" if default is None else f"`{_yaml(default)}`", meaning)
            for name, default, meaning in launch_arguments(path)
        ]
        parts += [f"## {path.name}", summary, table(("argument", "default", "meaning"), rows)]
    return "\n\n".join(parts)


def commands_page() -> str:
    """Commands and options of ``embodied-perceptron``."""
    import typer

    from embodied_perceptron.apps.cli import build_app

    parts = ["# Commands", "[Exit codes](../exit_codes.md) are the same for all commands."]
    for name, command in walk(typer.main.get_command(build_app()), "embodied-perceptron"):
        rows = []
        for option in command.params:
            if getattr(option, "hidden", False):
                continue
            declared = ", ".join(f"`{text}`" for text in (*option.opts, *option.secondary_opts))
            meaning = getattr(option, "help", "") or ""
            rows.append((declared or f"`{option.name}`", *default_and_range(option), meaning))
        rows = [row for row in rows if row[0] != "`--help`"]
        parts += [f"## {name}", _plain(command.help or "")]
        if rows:
            parts.append(table(("option or argument", "default", "range", "meaning"), rows))
    return "\n\n".join(parts)


def default_and_range(option: Any) -> tuple[str, str]:
    """What an option is where it is not given, and what it may be; empty where it has no default or no range."""
    value, holders = option.default, (option, getattr(option, "type", None))  # of typer's own click, or of click
    low, high = (next((v for h in holders if (v := getattr(h, k, None)) is not None), None) for k in ("min", "max"))
    choices = getattr(getattr(getattr(option, "type_descriptor", None), "annotation", None), "__members__", {})
    limits = [f"at least {low}" if low is not None else "", f"at most {high}" if high is not None else ""]
    allowed = ", ".join(getattr(m, "value", m) for m in choices.values()) or ", ".join(filter(None, limits))
    if option.required:
        return "has to be given", allowed
    plain = getattr(value, "value", value)
    return "" if plain in (None, "", False) or callable(plain) else f"`{_yaml(plain)}`", allowed


def walk(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every command below a group that is not hidden, with the words that call it."""
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if not hasattr(command, "commands") or command.invoke_without_command:
            yield f"{path} {name}", command
        if hasattr(command, "commands"):
            yield from walk(command, f"{path} {name}")


def _plain(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.replace("<", "&lt;").split("\n\n"))


def paper_page() -> str:
    """Published settings, and those of ``--preset paper``."""
    from embodied_perceptron_training.training.description import describe, setting
    from embodied_perceptron_training.training.paper import PUBLISHED
    from embodied_perceptron_training.training.training_run import TrainingRun

    parts = ["# Settings of the paper", "Source: section or table of EmbodiedScan (CVPR 2024), or its released code."]
    for task in dict.fromkeys(task for row in PUBLISHED for task in row.values):
        run = describe(TrainingRun.of({}, task=task, preset="paper"))
        rows = [
            (f"`{r.setting}`", r.source, _yaml(r.values[task]), _yaml(setting(run, r.setting)), r.why)
            for r in PUBLISHED
            if task in r.values
        ]
        parts += [f"## {task}", table(("setting", "source", "paper", "here", "reason for a difference"), rows)]
    return "\n\n".join(parts)


SECURITY = "SECURITY.md"
CARD = "models/embodied_perceptron/weights/tiny.md"

PAGES = {
    "reference/weights.md": (ROOT / CARD).read_text,
    "reference/security_policy.md": (ROOT / SECURITY).read_text,
    "reference/parameters.md": parameters_page,
    "reference/messages.md": messages_page,
    "reference/launch.md": launch_page,
    "reference/commands.md": commands_page,
    "reference/paper.md": paper_page,
}


def on_files(files: Any, config: Any) -> Any:
    """MkDocs: add the generated pages."""
    from mkdocs.structure.files import File

    for uri, page in PAGES.items():
        files.append(File.generated(config, uri, content=page()))
    return files


def without_roles(html: str) -> str:
    """Docstrings name things by roles (``:meth:`.LiveMap.save```), which are no Markdown: the names stay, as code."""

    def plain(match: re.Match[str]) -> str:
        path = match[1].lstrip("~.")
        return f"<code>{path.rpartition('.')[2] if match[1].startswith('~') else path}</code>"

    return re.sub(r":(?:class|meth|func|attr|data|mod|exc):<code>([\w.~]+)</code>", plain, html)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """MkDocs: roles of docstrings become code."""
    return without_roles(html)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """MkDocs: links that lead out of docs/ in the repository stay within the site."""
    inside = markdown.replace(f"../{CARD}", "reference/weights.md")
    return inside.replace(f"../{SECURITY}", "reference/security_policy.md")
