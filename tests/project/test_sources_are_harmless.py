"""No code from data: the sources are searched for whatever could run it. Exceptions stand here by name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("models", "training", "ros_ws", "launch", "benchmarks", ".ci")
# (file, call) that may stay, each with its reason
ALLOWED = {
    # the reader of released checkpoints: an unpickler that builds plain data and refuses every other name
    ("models/embodied_perceptron/weights/checkpoint.py", "pickle.Unpickler"),
    ("models/embodied_perceptron/weights/checkpoint.py", "torch.load(weights_only=False)"),
    # written in the format of EmbodiedScan, never read again but by that reader
    ("training/embodied_perceptron_training/homes/generate.py", "pickle.dumps"),
}
DANGEROUS = {
    *("eval", "exec", "compile", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load"),
    *("pickle.load", "pickle.loads", "pickle.Unpickler", "pickle.dumps", "pickle.dump", "joblib.load"),
    *("marshal.load", "marshal.loads", "shelve.open", "subprocess.getoutput", "subprocess.getstatusoutput"),
}


def sources() -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if "build" not in path.parts)


def dangers(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """(call, line) of everything that may run what a file or a message says."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Name)) and isinstance(getattr(node, "ctx", None), ast.Load):
            name = ast.unparse(node)
            if name in DANGEROUS:
                yield name, node.lineno
        if not isinstance(node, ast.Call):
            continue
        name, given = ast.unparse(node.func), {k.arg: k.value for k in node.keywords}
        shell = given.get("shell")
        if shell is not None and not (isinstance(shell, ast.Constant) and shell.value is False):
            yield f"{name}(shell=...)", node.lineno
        if name == "torch.load" and ast.unparse(given.get("weights_only", ast.Constant(None))) != "True":
            yield f"torch.load(weights_only={ast.unparse(given.get('weights_only', ast.Constant(None)))})", node.lineno
        pickles = given.get("allow_pickle")
        if pickles is not None and not (isinstance(pickles, ast.Constant) and pickles.value is False):
            yield f"{name}(allow_pickle=...)", node.lineno


@pytest.mark.parametrize("folder", FOLDERS)
def test_nothing_runs_what_a_file_says(folder: str) -> None:
    found = []
    for path in sources():
        relative = path.relative_to(ROOT).as_posix()
        if not relative.startswith(f"{folder}/"):
            continue
        for name, line in dangers(ast.parse(path.read_text(encoding="utf-8"))):
            if (relative, name) not in ALLOWED:
                found.append(f"{relative}:{line}: {name}")
    assert not found


def test_what_is_allowed_is_still_there() -> None:
    there = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in sources()
        for name, _ in dangers(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert there >= ALLOWED


@pytest.mark.parametrize(
    "code",
    [
        "eval(x)",
        "run = os.system",
        "subprocess.run(x, shell=True)",
        "np.load(p, allow_pickle=flag)",
        "pickle.load(f)",
        "torch.load(f)",
    ],
)
def test_the_search_finds_them(code: str) -> None:
    assert list(dangers(ast.parse(code)))


def test_the_search_leaves_others_alone() -> None:
    code = "model.eval()\nast.literal_eval(t)\nre.compile(x)\nsubprocess.run(x)\nnp.load(p, allow_pickle=False)"
    assert not list(dangers(ast.parse(code)))
