"""Resources of a building, a day and a fleet, computed from the figures of memory.py, fusion.py and online.py.

python benchmarks/memory.py && python benchmarks/fusion.py && python benchmarks/online.py
python benchmarks/scaling.py                             # table, and out/bench/scaling.json
python benchmarks/scaling.py --area-m2 5000 --robots 3   # your own place
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import _report as report
from _scaling import SITES, Coefficients, Site, largest_area_m2, sized

FILES = ("memory", "fusion", "online")
# for --quick, which measures nothing: round numbers
_ROUND = Coefficients(6e6, 6e5, 5e3, 4e6, 2e3, 0.5, 6e7, 5e8, 6.0, 200.0)


def read(folder: Path) -> Coefficients:
    """Read the files of the benchmarks. Raises ``ValueError`` naming a missing file or figure."""
    found: dict[str, dict[str, Any]] = {}
    for name in FILES:
        path = folder / f"{name}.json"
        found[name] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return Coefficients.read(found)


def main() -> int:
    """Compute, print, write; exit code 1 where a figure is missing."""
    parser = report.parser(__doc__)
    parser.add_argument("--measured", type=Path, default=report.OUT, metavar="DIR", help="where those files are")
    own = Site()
    parser.add_argument("--area-m2", type=float, default=own.area_m2, help="of floor that is known at the end")
    parser.add_argument("--radius-m", type=float, default=own.radius_m, help="volume.radius_m")
    parser.add_argument("--cameras", type=int, default=own.cameras, help="of one robot")
    parser.add_argument("--frames-hz", type=float, default=own.frames_hz, help="fused frames of a camera a second")
    parser.add_argument("--perception-hz", type=float, default=own.perception_hz, help="perceptions a second")
    parser.add_argument("--robots", type=int, default=own.robots, help="each with its own map")
    parser.add_argument("--hours", type=float, default=own.hours, help="of driving a day")
    options = report.parse(parser)
    try:
        c = _ROUND if options.quick else read(options.measured)
        mine = Site(
            options.area_m2,
            options.radius_m,
            cameras=options.cameras,
            frames_hz=options.frames_hz,
            perception_hz=options.perception_hz,
            robots=options.robots,
            hours=options.hours,
        )
    except ValueError as error:
        report.console.print(f"[red]{error}")
        return 1
    rows = [{"site": name, **sized(c, site)} for name, site in {"yours": mine, **SITES}.items()]
    report.show("measured for one", vars(c))
    report.show("computed", rows)
    report.write(options, {"measured": vars(c), "sites": rows, "m2_in_1_gib": largest_area_m2(c, 2**30, mine)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
