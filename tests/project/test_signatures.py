"""A function of more than eight arguments is two functions, or its arguments have a name together."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST = 8
# Still to be mended; nothing is added here.
LEFT = {"_fronts"}
COMPILED = {"before_plane"}  # by Numba and by Warp, without a decorator: mapping/plane.py


def is_compiled(node: ast.FunctionDef) -> bool:
    """By Numba, Triton or Warp, which take no objects: arrays and numbers one by one."""
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    marks = ("triton.jit", "wp.kernel", "wp.func")
    return node.name in COMPILED or any("njit" in text or text.startswith(marks) for text in decorators)


def is_command(node: ast.FunctionDef) -> bool:
    """Each option of a command is an argument of its function: the command line is the interface."""
    return any(a.annotation is not None and "typer." in ast.unparse(a.annotation) for a in node.args.args)


def functions(node: ast.AST, inside: tuple[str, ...] = ()) -> Iterator[tuple[str, ast.FunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            name = (*inside, child.name)
            if isinstance(child, ast.FunctionDef):
                yield ".".join(name), child
            yield from functions(child, name)
        else:
            yield from functions(child, inside)


def arguments(node: ast.FunctionDef) -> list[str]:
    """Without ``self`` and ``cls``."""
    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def too_long(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {name: node for name, node in functions(tree) if len(arguments(node)) > MOST}
    return {name for name, node in found.items() if not is_compiled(node) and not is_command(node)}


def long_functions(*folders: str) -> dict[str, set[str]]:
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return {path.relative_to(ROOT).as_posix(): names for path in paths if (names := too_long(path))}


@pytest.mark.parametrize("folder", ["models", "training", "ros_ws"])
def test_no_function_takes_more_than_eight_arguments(folder: str) -> None:
    found = {where: sorted(names - LEFT) for where, names in long_functions(folder).items() if names - LEFT}
    assert not found, found
