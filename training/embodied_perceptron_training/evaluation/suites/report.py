"""Files of a suite's run: flat ``metrics.json`` and the table ``metrics.md``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from embodied_perceptron import __version__
from embodied_perceptron.recordings.files import write_atomically
from embodied_perceptron.weights.checkpoint import without_folders
from embodied_perceptron_training.reports import markdown_table, write_metrics

TABLES = "metrics.md"

# Figures of other systems beside ours: name -> (source, table). What they were measured on is another data set.
PUBLISHED: Mapping[str, tuple[str, str]] = {
    "pope": (
        "3D-GRAND (Yang et al., CVPR 2025), ScanNet200, precision random / popular / adversarial",
        "3D-GRAND 93.34 / 73.05 / 69.86; 3D-LLM 50 / 50 / 50; LEO 51.95 / 48.30 / 48.47",
    ),
    "arkitscenerefer": (
        "ARKitSceneRefer (Kato et al., Findings of EMNLP 2023), validation",
        "3DVG-Transformer IoU@0.25 2.21, Dist@0.3 11.70; ScanRefer 0.54, 9.84; OFA lifted from frames of the detected "
        "class Dist@0.3 25.51",
    ),
    "robustness": (
        "BEHAVIOR Vision Suite (Ge et al., CVPR 2024)",
        "curves of open-vocabulary 2-D detectors stand in the paper as pictures; no table to compare with",
    ),
    "openlex3d": (
        "OpenLex3D (Kassab, Morin, Büchner et al., NeurIPS 2025), top-5 synonyms on Replica / ScanNet++ / HM3D",
        "ConceptGraphs (GPT) 47 / 43 / 45; HOV-SG 45 / 40 / 33; OpenMask3D 43 / 27 / 31; ConceptFusion 32 / 29 / 23",
    ),
}


def write_suite_report(
    folder: Path,
    title: str,
    figures: Mapping[str, float],
    facts: Mapping[str, object],
    skipped: Mapping[str, str],
    command: str = "",
) -> None:
    """Write both files into ``folder``, made when absent. Raises ``OSError`` when it cannot be written."""
    rounded = {name: round(value, 9) for name, value in figures.items()}
    write_metrics(folder, rounded)
    write_atomically(folder / TABLES, suite_markdown(title, rounded, facts, skipped, command).encode())


def grouped(figures: Mapping[str, float]) -> tuple[list[str], list[str]]:
    """Groups (the part of a figure's name before the last slash; '' for none) and names of figures, in order."""
    groups = list(dict.fromkeys(name.rpartition("/")[0] for name in figures))
    names = list(dict.fromkeys(name.rpartition("/")[2] for name in figures))
    return groups, names


def suite_markdown(
    title: str, figures: Mapping[str, float], facts: Mapping[str, object], skipped: Mapping[str, str], command: str
) -> str:
    """Tables with a row for each figure and a column for each group."""
    lines = [f"# {title}", ""]
    if command:
        lines += [f"    {without_folders(command)}", ""]
    lines += [f"- {name.replace('_', ' ')}: {value}" for name, value in {**facts, "version": __version__}.items()]
    lines += [f"- skipped {name}: {reason}" for name, reason in skipped.items()]
    for groups, rows in tables_of(figures):
        lines += ["", *markdown_table(("%", *groups), ((n, *(f"{v:.2f}" for v in values)) for n, values in rows))]
    if title in PUBLISHED:
        source, table = PUBLISHED[title]
        lines += ["", f"For comparison, on other data: {source}: {table}."]
    return "\n".join(lines) + "\n"


def tables_of(figures: Mapping[str, float]) -> list[tuple[list[str], list[tuple[str, list[float]]]]]:
    """(column names, (name, values) of rows) of tables; groups with the same figures share a table."""
    tables = []
    for groups in _alike(figures):
        names = [name.rpartition("/")[2] for name in figures if name.rpartition("/")[0] == groups[0]]
        rows = [(name, [figures[f"{g}/{name}" if g else name] for g in groups]) for name in names]
        tables.append(([g or "value" for g in groups], rows))
    return tables


def _alike(figures: Mapping[str, float]) -> list[list[str]]:
    """Lists of groups that have the same figures."""
    members: dict[tuple[str, ...], list[str]] = {}
    for group in grouped(figures)[0]:
        names = tuple(name.rpartition("/")[2] for name in figures if name.rpartition("/")[0] == group)
        members.setdefault(names, []).append(group)
    return list(members.values())
