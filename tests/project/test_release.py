"""What a release needs: the changelog in catkin's form, packages that bloom takes, the bill of materials."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from support.scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
ROS_PACKAGE = ROOT / "ros_ws/src/embodied_perceptron_ros"
PACKAGES = sorted(p.parent for p in (ROOT / "ros_ws/src").glob("*/package.xml"))


def script(name: str) -> ModuleType:
    return load_script(f".ci/{name}.py")


MARKDOWN = """# Changelog

Words before.

## Unreleased

### Added
- A thing with `code_like --this` and [a link](docs/x.md) that
  goes on with a_name_ and 2 * 3.

## 1.2.0 - 2026-02-01

### Fixed
- One.
- Two.

## 1.1.0 - 2026-01-02

- Without a section.
"""


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda p: p.name)
def test_the_changelog_of_each_ros_package_is_current(folder: Path) -> None:
    changelog = script("changelog")
    (package,) = (name for name, path in changelog.TARGETS.items() if path.parent == folder)
    assert f"<name>{package}</name>" in (folder / "package.xml").read_text(encoding="utf-8")
    wanted = changelog.rst((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), package)
    assert (folder / "CHANGELOG.rst").read_text(encoding="utf-8") == wanted, "run: make changelog"


@pytest.mark.filterwarnings("ignore::DeprecationWarning:catkin_pkg")
def test_catkin_reads_the_changelog(tmp_path: Path) -> None:
    reader = pytest.importorskip("catkin_pkg.changelog", reason="catkin-pkg is absent (extra ros-build)")
    changelog = script("changelog")
    path = tmp_path / "CHANGELOG.rst"
    path.write_text(changelog.rst(MARKDOWN))
    versions = {version: entries for version, _, entries in reader.get_changelog_from_path(path).foreach_version()}
    assert sorted(versions) == ["1.1.0", "1.2.0"]
    assert [len(bullets.bullets) for bullets in versions["1.2.0"]] == [2]
    path.write_text(changelog.rst("## 1.0.0 - 2026-01-01\n- Alone.\n"))  # a first release
    assert [v for v, _, _ in reader.get_changelog_from_path(path).foreach_version()] == ["1.0.0"]


def test_words_of_the_changelog_stay_words() -> None:
    text = script("changelog").rst(MARKDOWN)
    assert "Forthcoming\n-----------\n" in text
    assert r"* Added: A thing with ``code_like --this`` and a link that goes on with a\_name\_ and 2 \* 3." in text
    assert "1.2.0 (2026-02-01)\n------------------\n* Fixed: One.\n* Fixed: Two.\n" in text
    assert text.endswith("* Without a section.\n")
    with pytest.raises(ValueError, match="got 'Next'"):
        script("changelog").rst("## Next\n")
    docutils = pytest.importorskip("docutils.core", reason="docutils is absent (extra ros-build)")
    real = [path.read_text(encoding="utf-8") for path in script("changelog").TARGETS.values()]
    for source in (text, *real):  # halt at the first warning
        docutils.publish_doctree(source, settings_overrides={"halt_level": 2, "report_level": 2})


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda p: p.name)
def test_bloom_takes_the_package(folder: Path) -> None:
    """What bloom and REP-149 ask for: validated by the tool that bloom uses."""
    reader = pytest.importorskip("catkin_pkg.package", reason="catkin-pkg is absent (extra ros-build)")
    package = reader.parse_package(str(folder))
    warnings: list[str] = []
    package.validate(warnings=warnings)
    assert warnings == []
    assert package.maintainers
    assert all("@" in m.email for m in package.maintainers)
    assert package.authors
    assert package.licenses == ["Apache-2.0"]
    assert all(license_.file and (folder / license_.file).is_file() for license_ in package.licenses)
    assert re.fullmatch(r"\d+\.\d+\.\d+", package.version)
    assert re.fullmatch(r"[a-z][a-z0-9_]*", package.name)
    assert len(package.description) > 40
    own = {p.name for p in (reader.parse_package(str(f)) for f in PACKAGES)}
    others = {str(d.name) for d in [*package.exec_depends, *package.build_depends, *package.buildtool_depends]} - own
    lists = yaml.safe_load((ROOT / ".ci" / "rosdep_keys.yaml").read_text(encoding="utf-8"))
    known = {key for file in lists["files"].values() for kind in ("keys", "pip") for key in file.get(kind, ())}
    assert not others - known, "keys that rosdep's lists do not have"
    assert not known & set(lists["absent"])
    (released,) = (file["distributions"] for url, file in lists["files"].items() if "DISTRIBUTION" in url)
    supported = yaml.safe_load((ROOT / "docker" / "distributions.yaml").read_text(encoding="utf-8"))["distributions"]
    assert set(released) == set(supported)


def test_every_key_of_the_kept_lists_is_in_use() -> None:
    lists = yaml.safe_load((ROOT / ".ci" / "rosdep_keys.yaml").read_text(encoding="utf-8"))
    text = "".join((folder / "package.xml").read_text(encoding="utf-8") for folder in PACKAGES)
    kept = [key for file in lists["files"].values() for kind in ("keys", "pip") for key in file.get(kind, ())]
    assert [key for key in kept if f">{key}<" not in text] == []
    assert all(lists["commit"] in url for url in lists["files"])


# ---- a package alone, as bloom exports it


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """A copy of the folder of the ROS package without the repository."""
    package = tmp_path / "export" / "embodied_perceptron"
    shutil.copytree(ROS_PACKAGE, package, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    return package


def build(package: Path, prefix: Path) -> subprocess.CompletedProcess[str]:
    """Configure and install as colcon does; ament comes from the environment of this Python."""
    cmake = Path(sys.executable).parent / "cmake"
    if not (cmake.is_file() and (Path(sys.prefix) / "share" / "ament_cmake").is_dir()):
        pytest.skip("cmake or ament_cmake is absent (extra ros-build)")
    folder = package.with_name("build")
    unset = ("PYTHONPATH", "AMENT_PREFIX_PATH", "CMAKE_PREFIX_PATH")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment["PATH"] = f"{cmake.parent}{os.pathsep}{environment['PATH']}"
    configure = [
        *(str(cmake), "-G", "Ninja", "-S", str(package), "-B", str(folder), f"-DCMAKE_INSTALL_PREFIX={prefix}"),
        *(f"-DCMAKE_PREFIX_PATH={sys.prefix}", f"-DPython3_EXECUTABLE={sys.executable}", "-DBUILD_TESTING=OFF"),
    ]
    for command in (configure, [str(cmake), "--build", str(folder)], [str(cmake), "--install", str(folder)]):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            break
    return done


@pytest.mark.timeout(600)
def test_the_ros_package_alone_installs_what_launch_needs(exported: Path, tmp_path: Path) -> None:
    outside = [p for p in exported.rglob("*") if p.is_symlink() and not p.resolve().is_relative_to(exported)]
    assert outside == []
    done = build(exported, tmp_path / "install")
    assert done.returncode == 0, done.stdout + done.stderr
    share = tmp_path / "install" / "share" / "embodied_perceptron"
    for folder in ("launch", "config", "rviz", "foxglove", "security"):
        wanted = {p.name for p in (ROS_PACKAGE / folder).iterdir() if p.is_file()}
        assert wanted
        assert {p.name for p in (share / folder).iterdir()} == wanted
        assert not any(p.is_symlink() for p in (share / folder).iterdir())
    assert {p.name for p in (share / "launch").iterdir()} == {p.name for p in (ROOT / "launch").glob("*.launch.py")}
    assert (tmp_path / "install" / "lib" / "embodied_perceptron" / "perception").is_file()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("folder", ["launch", "config"])
def test_a_link_out_of_the_exported_package_stops_the_build(folder: str, exported: Path, tmp_path: Path) -> None:
    path = exported / folder
    path.unlink() if path.is_symlink() else shutil.rmtree(path)
    path.symlink_to("../../../nowhere")
    done = build(exported, tmp_path / "install")
    assert done.returncode != 0
    assert f"{folder} is no folder" in " ".join(done.stderr.split())


# ---- the bill of materials


def test_the_bill_of_materials_is_current() -> None:
    sbom = script("sbom")
    written = json.loads(sbom.TARGET.read_text(encoding="utf-8"))
    by_name = {c["name"]: c for c in written["components"]}
    pins = sbom.pins()
    libraries = {name: c for name, c in by_name.items() if c["type"] == "library"}
    assert {sbom.normal(r) for r in sbom.required()} <= set(libraries)
    for name, component in libraries.items():
        assert component["version"] == pins[name], f"{name}: run make sbom"
    for path, kind in sbom.assets():
        component = by_name[path]
        assert (component["type"], component["hashes"][0]["content"]) == (kind, sbom.sha256(ROOT / path)), path
    listed = {name for name, c in by_name.items() if c["type"] != "library"}
    assert listed == {path for path, _ in sbom.assets()}, "run: make sbom"


def test_every_component_has_a_licence_that_may_be_shipped() -> None:
    written = json.loads(script("sbom").TARGET.read_text(encoding="utf-8"))
    assert written["bomFormat"] == "CycloneDX"
    assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", written["serialNumber"])
    assert written["metadata"]["component"]["licenses"] == [{"license": {"id": "Apache-2.0"}}]
    references = {c["bom-ref"] for c in written["components"]} | {written["metadata"]["component"]["bom-ref"]}
    assert len(references) == len(written["components"]) + 1
    for component in written["components"]:
        assert component["licenses"], component["name"]
        words = json.dumps(component["licenses"])
        assert not re.search(r"\b(AGPL|SSPL|NonCommercial|NC-SA|UNKNOWN)\b", words), component["name"]
    for row in written["dependencies"]:
        assert {row["ref"], *row["dependsOn"]} <= references


def test_licences_of_files_are_not_guessed() -> None:
    sbom = script("sbom")
    assert sbom.licence({"License-Expression": "MIT OR Apache-2.0"}, []) == "MIT OR Apache-2.0"
    assert sbom.licence({"License": "BSD"}, ["License :: OSI Approved :: MIT License"]) == "MIT"
    assert sbom.licence({"License": "Apache 2.0"}, []) == "Apache-2.0"
    with pytest.raises(ValueError, match="no licence that is known"):
        sbom.licence({"License": "as you like"}, [])
