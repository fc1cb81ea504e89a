"""The table of all scenarios: seconds until gone, ids kept, ghosts, duplicates.

python tests/scenarios/table.py             # and out/bench/scenarios.json; exit 1 when one is not as it must be
python tests/scenarios/table.py removed     # those whose name has the word
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table
from support.scenarios import SCENARIOS

OUT = Path(__file__).resolve().parents[2] / "out" / "bench" / "scenarios.json"


def main() -> int:
    words = sys.argv[1:]
    names = [name for name in SCENARIOS if all(word in name for word in words)]
    console = Console(width=max(110, Console().width))
    table = Table("scenario", "gone s", "found s", "ids kept", "ghosts", "duplicates", "hijacked", "parts", "")
    rows, failed = [], 0
    for name in names:
        outcome = SCENARIOS[name]()
        problems = outcome.problems()
        failed += bool(problems)
        rows.append({"scenario": name, **dataclasses.asdict(outcome), "problems": problems})
        shown = ["" if v is None else f"{v:.1f}" for v in (outcome.gone_s, outcome.found_s)]
        counts = [str(v) for v in (outcome.ghosts, outcome.duplicates, outcome.hijacked, outcome.parts)]
        verdict = "; ".join(problems) or ("named by the doctor" if outcome.named else "as it must be")
        table.add_row(name, *shown, f"{outcome.kept} of {outcome.ids}", *counts, verdict)
    console.print(table)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    result = {"as_they_must_be": len(names) - failed, "of": len(names), "scenarios": rows}
    OUT.write_text(json.dumps(result, indent=1))
    console.print(f"{len(names) - failed} of {len(names)} as they must be; wrote {OUT}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
