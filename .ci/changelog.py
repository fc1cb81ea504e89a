#!/usr/bin/env python3
"""CHANGELOG.rst of each ROS package in catkin's form (REP-132), from CHANGELOG.md: `make changelog`.

bloom reads it when a release is made. Sections of CHANGELOG.md become bullets of their version; links keep their words.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "CHANGELOG.md"
TARGETS = {  # by name of the package; bloom wants the same versions in all packages of a repository
    "embodied_perceptron": ROOT / "ros_ws" / "src" / "embodied_perceptron_ros" / "CHANGELOG.rst",
    "embodied_perceptron_msgs": ROOT / "ros_ws" / "src" / "embodied_perceptron_msgs" / "CHANGELOG.rst",
}
WIDTH = 120


def rst(markdown: str, package: str = "embodied_perceptron") -> str:
    """The changelog of a ROS package. Raises ``ValueError`` for a heading that is no version and no known section."""
    title = f"Changelog for package {package}"
    # Without a line between them, docutils takes a lone version for a subtitle, and catkin finds no version.
    lines = ["^" * len(title), title, "^" * len(title), "", f"Made from {SOURCE.name} of the repository."]
    section = ""
    for kind, text in _parts(markdown):
        if kind == "version":
            lines += ["", text, "-" * len(text)]
            section = ""
        elif kind == "section":
            section = text
        else:
            words = textwrap.wrap(f"{section}: {_plain(text)}" if section else _plain(text), WIDTH - 2)
            lines += [f"* {words[0]}", *(f"  {line}" for line in words[1:])]
    return "\n".join(lines) + "\n"


def _parts(markdown: str) -> Iterator[tuple[str, str]]:
    """("version" | "section" | "entry", text) in order."""
    entry: list[str] = []
    for line in [*markdown.splitlines(), ""]:
        if entry and (not line.startswith("  ") or not line.strip()):
            yield "entry", " ".join(entry)
            entry = []
        if line.startswith("## "):
            yield "version", _version(line[3:].strip())
        elif line.startswith("### "):
            yield "section", line[4:].strip()
        elif line.startswith("- "):
            entry = [line[2:].strip()]
        elif entry:
            entry.append(line.strip())


def _version(heading: str) -> str:
    if heading.casefold() == "unreleased":
        return "Forthcoming"
    match = re.fullmatch(r"\[?(\d+\.\d+\.\d+)\]? - (\d{4}-\d{2}-\d{2})", heading)
    if match is None:
        raise ValueError(f"a version must read '## 1.2.3 - 2026-01-31' or '## Unreleased', got {heading!r}")
    return f"{match[1]} ({match[2]})"


def _plain(text: str) -> str:
    """Markdown's links as their words, its code as reStructuredText's; what else means something there is quoted."""
    pieces = re.split(r"(`[^`]*`)", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text))
    return "".join(
        f"``{piece[1:-1]}``"
        if len(piece) > 2 and piece[0] == piece[-1] == "`"
        else re.sub(r"([\\*|_])", r"\\\1", piece)
        for piece in pieces
    )


def main() -> int:
    """Write, or with --check say whether they are current."""
    markdown = SOURCE.read_text(encoding="utf-8")
    stale = False
    for package, target in TARGETS.items():
        text = rst(markdown, package)
        if "--check" in sys.argv:
            current = target.is_file() and target.read_text(encoding="utf-8") == text
            stale |= not current
            print(f"{target.relative_to(ROOT)} is {'current' if current else 'not current: make changelog'}")
        else:
            target.write_text(text, encoding="utf-8")
            print(f"{target.relative_to(ROOT)}: {len(text.splitlines())} lines")
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
