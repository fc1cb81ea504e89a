"""Write the table of ROS 2 distributions in docs/robot.md from docker/distributions.yaml.

python .ci/distributions.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

REPO = Path(__file__).resolve().parent.parent
SOURCE, PAGE = REPO / "docker" / "distributions.yaml", REPO / "docs" / "robot.md"
BEGIN, END = "<!-- distributions: begin, made by .ci/distributions.py -->\n", "<!-- distributions: end -->\n"
MACHINES = {"cpu": "x86-64 CPU", "cuda": "x86-64 CUDA", "jetson": "Jetson"}


def table(versions: dict[str, Any]) -> str:
    """Rows of Markdown: a distribution each, what it stands on, and what has been run there."""
    heads = ["ROS 2", "Ubuntu, Python", "supported until", *MACHINES.values()]
    lines = [heads, ["---"] * len(heads)]
    for name, of in versions["distributions"].items():
        run = [of["run"].get(machine, "not run") for machine in MACHINES]
        lines.append([name.capitalize(), f"{of['ubuntu']}, {of['python']}", str(of["until"]), *run])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def page(text: str, versions: dict[str, Any]) -> str:
    """The page with the table between its marks; raises ``ValueError`` where they are missing."""
    before, mark, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise ValueError(f"{PAGE}: no {BEGIN.strip()} or no {END.strip()}")
    return before + mark + table(versions) + end + after


def main() -> None:
    versions = yaml.safe_load(SOURCE.read_text())
    PAGE.write_text(page(PAGE.read_text(), versions))


if __name__ == "__main__":
    main()
