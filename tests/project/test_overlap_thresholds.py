"""What decides that two boxes are one thing stands in one table: nobody else has a threshold of an overlap."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

LIBRARY = Path(__file__).resolve().parents[2] / "models" / "embodied_perceptron"
TABLE = LIBRARY / "geometry" / "suppression.py"
OVERLAP = re.compile(r"(^|_)(iou|overlap|nms|(inside|piece|part|duplicate)_share)(_|$|s$)", re.IGNORECASE)
# Settings that users may change; their meaning is in the table's docstring and in theirs.
SETTINGS = {("config.py", "match_iou"), ("config.py", "stacked_iou")}


def is_threshold(node: ast.expr | None) -> bool:
    """Whether an expression holds a number between 0 and 1: 0 and 1 are no opinion."""
    return node is not None and any(
        isinstance(n, ast.Constant) and isinstance(n.value, float) and 0.0 < n.value < 1.0 for n in ast.walk(node)
    )


def names_of(node: ast.expr) -> Iterator[str]:
    """Of what is assigned or compared: ``iou``, ``self.iou``, ``iou[i, j]``, ``iou.max()``, ``a, b``."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
        yield from names_of(node.value)
    elif isinstance(node, ast.Subscript):
        yield from names_of(node.value)
    elif isinstance(node, ast.Call):
        yield from names_of(node.func)
    elif isinstance(node, ast.Tuple):
        for part in node.elts:
            yield from names_of(part)


def overlap_names(*nodes: ast.expr) -> list[str]:
    return [name for node in nodes for name in names_of(node) if OVERLAP.search(name)]


def strays(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, name) of every constant, default, argument and comparison that gives an overlap a threshold."""
    for node in ast.walk(tree):
        found: list[str] = []
        if isinstance(node, ast.Assign) and is_threshold(node.value):
            found = overlap_names(*node.targets)
        elif isinstance(node, ast.AnnAssign) and is_threshold(node.value):
            found = overlap_names(node.target)
        elif isinstance(node, ast.Compare) and any(is_threshold(x) for x in (node.left, *node.comparators)):
            found = overlap_names(node.left, *node.comparators)
        elif isinstance(node, ast.keyword) and is_threshold(node.value):
            found = [node.arg] if node.arg and OVERLAP.search(node.arg) else []
        elif isinstance(node, ast.Call) and any(is_threshold(x) for x in node.args if isinstance(x, ast.Constant)):
            found = overlap_names(node.func)
        elif isinstance(node, ast.arguments):
            named = [*node.posonlyargs, *node.args]
            defaults = [*zip(named[len(named) - len(node.defaults) :], node.defaults, strict=True)]
            defaults += zip(node.kwonlyargs, node.kw_defaults, strict=True)
            for argument, value in defaults:
                if is_threshold(value) and OVERLAP.search(argument.arg):
                    yield argument.lineno, argument.arg
        for name in found:
            yield getattr(node, "lineno", getattr(getattr(node, "value", node), "lineno", 0)), name


def test_overlaps_are_compared_with_numbers_of_the_table_alone() -> None:
    found = []
    for path in sorted(LIBRARY.rglob("*.py")):
        if path == TABLE:
            continue
        where = path.relative_to(LIBRARY).as_posix()
        for line, name in strays(ast.parse(path.read_text(encoding="utf-8"))):
            if (where, name) not in SETTINGS:
                found.append(f"{where}:{line}: {name}")
    assert not found, "thresholds of an overlap outside of geometry/suppression.py:\n" + "\n".join(found)


def test_every_threshold_of_the_table_says_what_it_decides() -> None:
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    silent = []
    for node in ast.parse("\n".join(lines)).body:
        if isinstance(node, ast.Assign) and is_threshold(node.value):
            above = lines[node.lineno - 2]
            if "  # " not in lines[node.lineno - 1] and not above.startswith("# "):
                silent.append(lines[node.lineno - 1])
    assert not silent


@pytest.mark.parametrize(
    "source",
    [
        "_VOTING_IOU = 0.3",
        "_SAME_NAME_IOU, _OTHER_NAME_IOU = 0.15, 0.25",
        "class A:\n    nms_iou: float = 0.5",
        "def f(boxes, iou_threshold=0.5): ...",
        "def f(boxes, *, min_iou=0.25): ...",
        "keep = iou[i, j] > 0.25",
        "keep = pairs.iou.max() >= 0.3",
        "keep = nms(boxes, scores, labels, 0.5)",
        "config = Head(iou_threshold=0.25)",
        "_INSIDE_SHARE = 0.75",
    ],
)
def test_strays_are_found(source: str) -> None:
    assert list(strays(ast.parse(source)))


@pytest.mark.parametrize("source", ["iou = 0.0", "keep = iou > 0", "keep = iou > TABLE_IOU", "share = 0.5"])
def test_what_is_no_opinion_is_left_alone(source: str) -> None:
    assert not list(strays(ast.parse(source)))
