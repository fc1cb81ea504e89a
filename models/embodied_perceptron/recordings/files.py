"""Atomic writing, and bounded reading of regular files."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from embodied_perceptron.recordings.recording import ImageT, RecordingError

MAX_IMAGE_BYTES = 2**28
_MAX_JSON_BYTES = 2**32  # unless a caller expects less
_STALE_AFTER_S = 600.0
_in_progress: set[Path] = set()  # temporary files that this process is writing
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def read_file(path: str | Path, max_bytes: int) -> bytes:
    """Read a regular file of at most ``max_bytes``.

    Raises ``OSError`` with the path, also for a larger file, and for a device or pipe, which might never end.
    """
    path = Path(path)
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(None, "is not a regular file", str(path))
    if status.st_size > max_bytes:
        raise OSError(None, f"has {status.st_size} bytes, at most {max_bytes} are read", str(path))
    return path.read_bytes()


def is_lfs_pointer(path: str | Path) -> bool:
    """Return True for a Git LFS pointer instead of the content. Raises ``OSError``."""
    with Path(path).open("rb") as file:
        return file.read(len(_LFS_POINTER)) == _LFS_POINTER


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path next to ``path`` that replaces ``path`` when the block ends without an error.

    The new file is flushed to disk and renamed over the old one. When the block raises, the old file stays and the
    temporary one is removed; leftovers of a killed writer are removed by a later write of the same path after ten
    minutes. Raises ``OSError`` when the folder is missing or not writable.
    """
    path = Path(path)
    _remove_stale(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    _in_progress.add(temporary)
    try:
        temporary.touch(exist_ok=False)  # raises OSError with the path, whatever the writer would raise
        mode = temporary.stat().st_mode & 0o777  # by the umask; writers that replace the file may be stricter
        yield temporary
        temporary.chmod(mode)
        _flush(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        _in_progress.discard(temporary)
    _flush(path.parent)


def write_atomically(path: str | Path, data: bytes) -> None:
    """Write ``data`` to ``path`` atomically. Raises like :func:`atomic_path`."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def write_json(path: str | Path, value: Any, indent: int | None = 1) -> None:
    """Write JSON atomically. Raises ``ValueError`` for NaN and infinity, which JSON lacks, and like
    :func:`atomic_path`."""
    write_atomically(path, (json.dumps(value, indent=indent, allow_nan=False) + "\n").encode())


def write_flushed(path: Path, data: bytes) -> None:
    """Write ``data`` to the disk. Raises ``OSError``."""
    path.write_bytes(data)
    _flush(path)


def was_interrupted(path: str | Path) -> bool:
    """Whether a writer of ``path`` in :func:`atomic_path` was killed: its temporary file is still there."""
    return any(True for _ in _leftovers(Path(path)))


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_stale(path: Path) -> None:
    """Remove old leftovers of ``path``."""
    for leftover in _leftovers(path):
        with contextlib.suppress(OSError):  # another process may be removing it as well
            if time.time() - leftover.stat().st_mtime > _STALE_AFTER_S:
                leftover.unlink()


def _leftovers(path: Path) -> Iterator[Path]:
    """Temporary files of dead writers of ``path``. Age alone is no proof: a clock may be set during a write."""
    names = re.compile(re.escape(f".{path.name}.") + r"(\d{1,10})-[0-9a-f]+\.tmp")
    with contextlib.suppress(OSError):  # without the folder the write itself raises
        for entry in os.scandir(path.parent):
            match = names.fullmatch(entry.name)
            if match is not None and not _writes(int(match[1]), path.with_name(entry.name)):
                yield path.with_name(entry.name)


def _writes(pid: int, temporary: Path) -> bool:
    """Return True when the process of a temporary file may still write it."""
    if pid == os.getpid():
        return temporary in _in_progress
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True  # of another user
    except (OSError, OverflowError):
        return False
    return True


def read_text(path: Path, max_bytes: int) -> str:
    """Read text with or without a byte-order mark. Raises :class:`RecordingError` with the file."""
    try:
        return read_file(path, max_bytes).decode("utf-8-sig")
    except FileNotFoundError as error:
        raise RecordingError(f"{path} is missing") from error
    except OSError as error:
        raise RecordingError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecordingError(f"{path}: {error}") from error


def parse_json(data: bytes, where: str | Path) -> Any:
    """Parse JSON. Raises :class:`RecordingError` with ``where``."""
    try:
        return json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise RecordingError(f"{where}: {error}") from error


def read_json(path: Path, max_bytes: int = _MAX_JSON_BYTES) -> Any:
    """Read a JSON file. Raises :class:`RecordingError` with the file."""
    return parse_json(read_text(path, max_bytes).encode(), path)


def read_object(path: Path, max_bytes: int = _MAX_JSON_BYTES) -> dict[str, Any]:
    """Read a JSON file that holds an object. Raises :class:`RecordingError` with the file."""
    data = read_json(path, max_bytes)
    if not isinstance(data, dict):
        raise RecordingError(f"{path} must hold an object, got {type(data).__name__}")
    return data


def read_image(path: Path, decode: Callable[[bytes], ImageT]) -> ImageT:
    """Read and decode an image file. Raises :class:`RecordingError` with the file when it cannot be read, or ``decode``
    raises ``ValueError``."""
    try:
        return decode(read_file(path, MAX_IMAGE_BYTES))
    except OSError as error:
        raise RecordingError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:  # a damaged image, or a path with a null byte
        raise RecordingError(f"{path}: {error}") from error
