"""Published figures: records of measurements, and the pages made from them.

docs/results/NAME.json   a record: the command, where it ran, and the published figures
docs/results/page.yaml   the layout: figures, tables and names
docs/results.md          the page, and the table between RESULTS markers in README.md: both made by ``render_page`` and
                         ``render_readme``, never edited by hand
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from embodied_perceptron.recordings.files import read_json, read_object, write_atomically
from embodied_perceptron.weights.checkpoint import without_folders
from embodied_perceptron_training.evaluation.runner.parallel import EvaluationError
from embodied_perceptron_training.reports import METRICS, markdown_table

LAYOUT = "page.yaml"
RUN = "run.json"
README_BEGIN, README_END = "<!-- results: begin, made by `embodied-perceptron dev results` -->", "<!-- results: end -->"


@dataclass(frozen=True)
class Record:
    """Figures printed by one command."""

    command: str  # prints them again
    version: str  # of the project
    commit: str  # of the repository, abbreviated; empty where unknown
    machine: str  # description of the machine
    date: str  # as 2026-11-27
    figures: Mapping[str, float]  # name -> value, as in the command's JSON file; see :func:`flat_figures`
    data: str = ""  # description of the data; empty where the command tells it
    notes: Sequence[str] = ()  # remarks for readers of the figures
    weights: str = ""  # digest of the scored tensors; empty where there are none


@dataclass(frozen=True)
class Row:
    """A line of a table: ``key`` is looked up in every column's record, or one key for each; empty keys show nothing.

    ``source``: the record of this row where the table's columns name none. ``readme``: its text in the README's table,
    which has only such rows.
    """

    name: str
    key: str | list[str]
    unit: str = ""
    digits: int = 1
    scale: float = 1.0
    source: str = ""
    readme: str = ""


@dataclass(frozen=True)
class Section:
    """A table of the page. ``columns``: title -> record; ``needs``: requirements of its commands beside the project."""

    title: str
    needs: str
    rows: tuple[Row, ...]
    text: str = ""
    columns: Mapping[str, str] | None = None

    def cells(self, row: Row) -> list[tuple[str, str]]:
        """(record, key) of every column; an empty key is an empty cell."""
        sources = [row.source] if row.source else list((self.columns or {}).values())
        keys = row.key if isinstance(row.key, list) else [row.key] * len(sources)
        if not sources or len(keys) != len(sources):
            raise EvaluationError(f"{LAYOUT}: row {row.name!r} has {len(keys)} keys for {len(sources)} records")
        return list(zip(sources, keys, strict=True))

    def sources(self) -> list[str]:
        """Names of the records, in the order of their first use."""
        return list(dict.fromkeys(source for row in self.rows for source, key in self.cells(row) if key))


# ---- records


def read_record(path: Path) -> Record:
    """A record from its file, or from the folder of an ``embodied-perceptron evaluate``.

    Raises :class:`EvaluationError` for anything else, ``RecordingError`` for an unreadable file.
    """
    if path.is_dir():
        return _record_of_evaluation(path)
    data = read_object(path)
    known = {f.name for f in fields(Record)}
    if unknown := set(data) - known:
        raise EvaluationError(f"{path}: no record has {', '.join(sorted(unknown))}")
    if missing := {"command", "version", "commit", "machine", "date", "figures"} - set(data):
        raise EvaluationError(f"{path}: a record must have {', '.join(sorted(missing))}")
    return Record(**data)


def read_records(folder: Path) -> dict[str, Record]:
    """Every record of a folder, by the name of its file."""
    return {path.stem: read_record(path) for path in sorted(folder.glob("*.json"))}


def write_record(path: Path, record: Record) -> None:
    """Write a record; raises ``OSError``."""
    shown = {name: value for name, value in asdict(record).items() if value not in ("", (), [])}
    write_atomically(path, (json.dumps(shown | {"commit": record.commit}, indent=2) + "\n").encode())


def flat_figures(data: Any, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Numbers of nested JSON with their paths, joined by ``/``; list positions count from 0."""
    if isinstance(data, Mapping):
        for name, value in data.items():
            yield from flat_figures(value, f"{prefix}/{name}" if prefix else str(name))
    elif isinstance(data, list):
        for place, value in enumerate(data):
            yield from flat_figures(value, f"{prefix}/{place}" if prefix else str(place))
    elif isinstance(data, (int, float)):
        yield prefix, float(data)


def pick(figures: Mapping[str, float], key: str) -> float:
    """The figure of a key; for a key with ``*`` the mean of all matches.

    Raises ``KeyError`` without a match, ``ValueError`` for a figure that is not finite.
    """
    found = [value for name, value in figures.items() if fnmatchcase(name, key)] if "*" in key else [figures[key]]
    if not found:
        raise KeyError(key)
    value = math.fsum(found) / len(found)
    if not math.isfinite(value):
        raise ValueError(f"{key} is {value}")
    return value


def new_record(
    source: Path, keys: Sequence[str], version: str, commit: str, machine: str, date: str, command: str = ""
) -> Record:
    """The record of a result: a folder of ``embodied-perceptron evaluate``, or a JSON file of a benchmark.

    Args:
        keys: the published figures; empty = all.
        command: the command that was run; empty = from the result.

    Raises :class:`EvaluationError` for a result without one of the keys, or without a command.
    """
    if source.is_dir() and (source / RUN).is_file():
        found = _record_of_evaluation(source)
    else:
        path = source / METRICS if source.is_dir() else source
        found = Record("", "", "", "", "", dict(flat_figures(read_json(path))))
    if not (command or found.command):
        raise EvaluationError(f"{source} does not tell its command; give --command")
    try:
        figures = {key: pick(found.figures, key) for key in keys} if keys else found.figures
    except KeyError as error:
        raise EvaluationError(f"{source} has no figure {error}, which {LAYOUT} shows") from error
    return Record(
        without_folders(command or found.command), version, commit, machine, date, figures,
        found.data, found.notes, found.weights,
    )  # fmt: skip


def _record_of_evaluation(folder: Path) -> Record:
    run, figures = read_object(folder / RUN), read_object(folder / METRICS)
    version = run.get("generator_version")
    what = "scenes" if version is None else f"homes of version {version}"
    turned = "" if run.get("turn_seed") is None else ", every scene turned and moved at random"
    data = (
        f"{run['scenes']} {what} ({run['split']}: {run['first_scene']} to {run['last_scene']}), {run['views']} views "
        f"each{turned}"
    )
    notes = []
    if unknown := run.get("true_classes_unknown_to_the_network", []):
        notes.append(f"True classes that the network does not know count as missed: {', '.join(unknown)}.")
    if outside := run.get("classes_that_the_benchmark_lacks", {}):
        notes.append(
            f"Classes of the network that the benchmark lacks are left out of the figures: {', '.join(outside)}."
        )
    return Record(
        command=without_folders(str(run.get("command", "?"))),
        version=str(run.get("version", "")),
        commit="",
        machine="",
        date="",
        figures=dict(flat_figures(figures)),
        data=data,
        notes=notes,
        weights=str(run.get("weights", {}).get("tensors", "")),
    )


# ---- layout


def read_layout(folder: Path) -> tuple[str, tuple[Section, ...]]:
    """Introduction and sections of ``page.yaml``. Raises :class:`EvaluationError` for unknown keys and missing ones."""
    path = folder / LAYOUT
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        sections = tuple(
            Section(**{**section, "rows": tuple(Row(**row) for row in section["rows"])}) for section in data["sections"]
        )
        return data["intro"].strip(), sections
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise EvaluationError(f"{path}: {type(error).__name__}: {error}") from error


def keys_of(sections: Sequence[Section], name: str) -> list[str]:
    """The figures of a record that a layout shows."""
    cells = (cell for section in sections for row in section.rows for cell in section.cells(row))
    return list(dict.fromkeys(key for source, key in cells if source == name and key))


# ---- pages


def render_page(intro: str, sections: Sequence[Section], records: Mapping[str, Record]) -> str:
    """The page in Markdown. Raises :class:`EvaluationError` for missing records and figures."""
    shown = {name for section in sections for name in section.sources()}
    if lost := sorted(set(records) - shown):
        raise EvaluationError(f"{LAYOUT} shows nothing of the records {', '.join(lost)}")
    parts = [f"# Results\n\n{intro}"]
    for section in sections:
        columns = list(section.columns or {"measured": ""})
        lines = [f"## {section.title}", ""]
        if section.text:
            lines += [section.text.strip(), ""]
        rows = [(row.name, row.unit, *_values(section, row, records)) for row in section.rows]
        lines += markdown_table(("", "unit", *columns), rows, "ll" + "r" * len(columns))
        used = section.sources()
        notes = [note for name in used for note in _record(records, name).notes]
        lines += ["", *dict.fromkeys(_where(_record(records, name)) for name in used)]
        lines += ["", *dict.fromkeys(notes)] if notes else []
        lines += ["", f"*Needs {section.needs}.*", "", "```sh"]
        lines += [*dict.fromkeys(_record(records, name).command for name in used), "```"]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def render_readme(text: str, sections: Sequence[Section], records: Mapping[str, Record]) -> str:
    """A README with its table of figures rebuilt. Raises :class:`EvaluationError` where the markers are missing."""
    before, begin, rest = text.partition(README_BEGIN)
    _, end, after = rest.partition(README_END)
    if not (begin and end):
        raise EvaluationError(f"the README must hold the lines {README_BEGIN!r} and {README_END!r}")
    rows = []
    for section in sections:
        for row in section.rows:
            if row.readme:
                values = " / ".join(value for value in _values(section, row, records) if value)
                link = f"docs/results.md#{anchor(section.title)}"
                rows.append((f"[{row.readme}]({link})", f"{values} {row.unit}"))
    return f"{before}{begin}\n" + "\n".join(markdown_table(("figure", "measured"), rows)) + f"\n{end}{after}"


def anchor(title: str) -> str:
    """The anchor that GitHub and MkDocs make of a heading."""
    return re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())


def _values(section: Section, row: Row, records: Mapping[str, Record]) -> list[str]:
    shown = []
    for name, key in section.cells(row):
        if not key:
            shown.append("")
            continue
        figures = _record(records, name).figures
        if key not in figures:
            raise EvaluationError(f"the record {name!r} has no figure {key!r}")
        shown.append(f"{row.scale * figures[key]:,.{row.digits}f}")
    return shown


def _record(records: Mapping[str, Record], name: str) -> Record:
    if name not in records:
        raise EvaluationError(f"there is no record {name!r}; there are {', '.join(records)}")
    return records[name]


def _where(record: Record) -> str:
    commit = f", commit {record.commit}" if record.commit else ""
    data = f"{record.data}; " if record.data else ""
    return f"- {data}{record.machine}; version {record.version}{commit}, {record.date}"
