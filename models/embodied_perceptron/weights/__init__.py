"""Shipped weights as package data: files, their model cards, and ``manifest.json`` with sizes and SHA-256.

    manifest.json   {name: {"file", "sha256", "preset", "bytes", "card"}}; "card" is empty where there is none

``weights_file`` resolves the argument of everything that takes weights: a shipped name, or a path.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
MANIFEST = "manifest.json"
MAX_BYTES = 16 * 2**20  # limit for files in a git repository and a wheel
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
_CHECKED: set[tuple[Path, int, int]] = set()  # (path, size, mtime) of verified files


class WeightsError(ValueError):
    """Weights do not exist or differ from the manifest; the message names them and the available ones."""


@dataclass(frozen=True)
class ShippedWeights:
    """One entry of the manifest.

    Attributes:
        file: name in the folder of the package.
        sha256: of the file, hexadecimal.
        preset: preset of the network.
        bytes: size of the file.
        card: name of the model card, or "".
    """

    file: str
    sha256: str
    preset: str
    bytes: int
    card: str


def shipped(folder: Path = FOLDER) -> dict[str, ShippedWeights]:
    """Read the manifest, sorted by name. Raises ``WeightsError`` when it is missing or malformed."""
    path = folder / MANIFEST
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(entries, dict):
            raise TypeError(f"it holds a {type(entries).__name__}")
        return {name: ShippedWeights(**entries[name]) for name in sorted(entries)}
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, TypeError) as error:
        raise WeightsError(f"{path} is not a manifest of shipped weights: {error}") from error


def available(folder: Path = FOLDER) -> tuple[str, ...]:
    """Return the names of the shipped weights."""
    return tuple(shipped(folder))


def weights_file(name_or_path: str | Path, folder: Path = FOLDER) -> Path:
    """Return the file of shipped weights by name, or of any weights by path.

    A shipped name takes precedence over a file of the same name in the current folder (``./tiny`` is always a path).
    Shipped files are compared with the manifest once per process.

    Raises ``WeightsError`` when there is no such name or file, and when a shipped file is missing or differs.
    """
    entry = shipped(folder).get(str(name_or_path))
    if entry is not None:
        return _verified(folder / entry.file, str(name_or_path), entry)
    path = Path(name_or_path).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        raise WeightsError(f"{path} is a folder, not a weights file")
    names = ", ".join(available(folder)) or "none in this version"
    raise WeightsError(f"no weights {str(name_or_path)!r}: neither a file nor a shipped name (shipped: {names})")


def add_weights(
    name: str,
    file: str | Path,
    preset: str,
    card: str | Path | None = None,
    folder: Path = FOLDER,
) -> ShippedWeights:
    """Add a trained file to the package and its manifest, replacing one of the same name.

    Args:
        name: lower-case letters, digits, ``-`` and ``_``.
        file: the weights.
        preset: preset of the network.
        card: model card, a Markdown file; None keeps an existing card.

    Raises ``WeightsError`` for an invalid name, file or size; ``OSError`` when the package is not writable.
    """
    source = Path(file)
    if not _NAME.fullmatch(name):
        raise WeightsError(f"a name of weights has a-z, 0-9, - and _, got {name!r}")
    if not source.is_file():
        raise WeightsError(f"{source} is not a file")
    if card is not None and not Path(card).is_file():
        raise WeightsError(f"the model card {card} is not a file")
    size = source.stat().st_size
    if size > MAX_BYTES:
        raise WeightsError(f"{source} has {size:,} bytes; shipped weights have {MAX_BYTES:,} at most")
    entries = shipped(folder)
    card_name = f"{name}.md"
    if card is not None:
        _copy(Path(card), folder / card_name)
    target = folder / f"{name}.safetensors"
    _copy(source, target)
    has_card = (folder / card_name).is_file()
    entry = ShippedWeights(target.name, _sha256(target), preset, size, card_name if has_card else "")
    entries[name] = entry
    from embodied_perceptron.recordings.files import write_json  # torch loads only when something is written

    write_json(folder / MANIFEST, {key: dataclasses.asdict(entries[key]) for key in sorted(entries)}, indent=2)
    return entry


def _verified(path: Path, name: str, entry: ShippedWeights) -> Path:
    try:
        status = path.stat()
    except OSError as error:
        raise WeightsError(f"the shipped weights {name!r} are missing: {path}") from error
    key = (path, status.st_size, status.st_mtime_ns)
    if key in _CHECKED:
        return path
    if status.st_size != entry.bytes:
        hint = " (a Git LFS pointer?)" if status.st_size < 1024 else ""
        raise WeightsError(f"{path} has {status.st_size:,} bytes, shipped were {entry.bytes:,}{hint}")
    found = _sha256(path)
    if found != entry.sha256:
        raise WeightsError(f"{path} is not the file that was shipped: SHA-256 {found}, expected {entry.sha256}")
    _CHECKED.add(key)
    return path


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _copy(source: Path, target: Path) -> None:
    if source.resolve() == target.resolve():
        return
    from embodied_perceptron.recordings.files import atomic_path

    with atomic_path(target) as temporary:
        shutil.copyfile(source, temporary)
