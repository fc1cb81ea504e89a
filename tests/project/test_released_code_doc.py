"""The document about the released code names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_named_tests_exist() -> None:
    text = (ROOT / "docs" / "released_code.md").read_text(encoding="utf-8")
    paths = {path.name: path for path in (ROOT / "tests").rglob("test_*.py")}
    file, found = "", 0
    for match in re.finditer(r"(test_\w+\.py)?(?:::(test_\w+))?", text):
        file = match[1] or file
        if match[1]:
            assert match[1] in paths
        if match[2]:
            assert f"def {match[2]}(" in paths[file].read_text(encoding="utf-8"), f"{file}::{match[2]}"
            found += 1
    assert found >= 15
