"""Options, tables on the screen and JSON files (out/bench/NAME.json) that all benchmarks share.

    parser = report.parser(__doc__)                          # --quick and --out
    parser.add_argument("--frames", type=int, default=3600)
    options = report.parse(parser, frames=600)               # 600 with --quick, unless --frames is given
    report.show("a day", rows)
    report.write(options, {"frames": 600, "p50_ms": 1.2, "stages": rows})

A file is flat: ``command``, ``quick``, ``machine``, then figures by name. A mapping becomes one figure per key with a
dot in between (``memory_mib.per_day``); tables (lists of flat mappings) and lists of values stay as they are.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

REPO = Path(__file__).resolve().parents[1]
OUT = REPO / "out" / "bench"
console = Console(width=140)
Figures = dict[str, Any]


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Parser with the options of every benchmark; ``doc`` is its module docstring."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true", help="small inputs: checks in seconds that it runs")
    name = Path(sys.argv[0]).stem
    made.add_argument("--out", type=Path, default=OUT / f"{name}.json", metavar="FILE", help="where the figures go")
    return made


def parse(made: argparse.ArgumentParser, **quick: Any) -> argparse.Namespace:
    """Parse the command line; with ``--quick``, ``quick`` are the defaults."""
    if made.parse_known_args()[0].quick:
        made.set_defaults(**quick)
    return made.parse_args()


def data_folder(name: str) -> Path | None:
    """Path below ``$EMBODIED_DATA_DIR`` (default ../shared/data), or None when it is absent."""
    path = Path(os.environ.get("EMBODIED_DATA_DIR", REPO.parent / "shared" / "data")) / name
    return path if path.exists() else None


def write(options: argparse.Namespace, figures: Mapping[str, Any], trees: Mapping[str, Any] | None = None) -> Path:
    """Write figures to ``options.out``, flat (see the module docstring); numbers that are not finite become null.

    ``trees`` stay nested.

    Raises ``TypeError`` for a value that is neither a figure nor a table.
    """
    command = ["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]
    found = {
        "command": shlex.join(command),
        "quick": options.quick,
        "machine": machine(),
        **_flat(figures),
        **(trees or {}),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    console.print(f"wrote {options.out}", highlight=False, soft_wrap=True)
    return Path(options.out)


def resident_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def machine() -> str:
    """Name of the processor, number of cores and load of the last minute."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{name}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"


def show(title: str, rows: Iterable[Mapping[str, Any]] | Mapping[str, Any]) -> None:
    """Print a table: a row per mapping, or a figure per row when ``rows`` is a mapping."""
    if isinstance(rows, Mapping):
        rows = [{"": name, "value": value} for name, value in _flat(rows).items() if not isinstance(value, list)]
    rows = [_flat(row) for row in rows]
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(title=title)
    for name in names:
        text = any(isinstance(row.get(name), str) for row in rows)
        table.add_column(name.replace("_", " "), justify="left" if text else "right")
    for row in rows:
        table.add_row(*(_text(row.get(name)) for name in names))
    console.print(table)


def goal(what: str, value: float | None, least: float | None = None, most: float | None = None) -> Figures:
    """Row of a table of targets: bounds of ``value``; a value that was not measured (None) misses them."""
    met = value is not None and (least is None or value >= least) and (most is None or value <= most)
    return {"goal": what, "measured": value, "at least": least, "at most": most, "met": met}


def _flat(figures: Mapping[str, Any], before: str = "") -> Figures:
    flat: Figures = {}
    for name, value in figures.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{before}{name}.")
        elif isinstance(value, (list, tuple)):
            flat[f"{before}{name}"] = [_flat(v) if isinstance(v, Mapping) else _figure(name, v) for v in value]
        else:
            flat[f"{before}{name}"] = _figure(name, value)
    return flat


def _figure(name: str, value: Any) -> str | bool | int | float | None:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if value is None or isinstance(value, (str, bool, int)):
        return value
    raise TypeError(f"{name} is {value!r}, neither a number, a text nor a table")


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
