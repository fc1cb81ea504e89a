"""Writing files so that a reader finds either the old file or the whole new one, and reading what is a file at all."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from embodied_perceptron.recordings.recording import RecordingError

ImageT = TypeVar("ImageT")
MAX_IMAGE_BYTES = 2**28
_STALE_AFTER_S = 600.0
_in_progress: set[Path] = set()  # temporary files that this process is writing
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def read_file(path: str | Path, max_bytes: int) -> bytes:
    """The bytes of a regular file of at most ``max_bytes``.

    Raises ``OSError`` naming the path, also for a device or pipe, from which reading might never end, and for a larger
    file.
    """
    path = Path(path)
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(None, "is no regular file", str(path))
    if status.st_size > max_bytes:
        raise OSError(None, f"has {status.st_size} bytes, at most {max_bytes} are read", str(path))
    return path.read_bytes()


def is_lfs_pointer(path: str | Path) -> bool:
    """Whether a file is what Git LFS leaves where the content was not fetched. Raises ``OSError``."""
    with Path(path).open("rb") as file:
        return file.read(len(_LFS_POINTER)) == _LFS_POINTER


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; what was written there replaces ``path`` when the block ends well.

    The new file is flushed to the disk and renamed over the old one. When the block raises, the old file stays and
    the temporary one goes; what a killed writer left behind is removed by a later write of the same path, once it is
    ten minutes old.

    Raises ``OSError`` when the folder is missing or cannot be written.
    """
    path = Path(path)
    _remove_stale(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    _in_progress.add(temporary)
    try:
        temporary.touch(exist_ok=False)  # a plain OSError by name, whatever the writer would say
        mode = temporary.stat().st_mode & 0o777  # what the umask allows; writers that replace the file may be stricter
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
    """Write ``data`` to ``path``, whole or not at all. Raises like :func:`atomic_path`."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_stale(path: Path) -> None:
    """Remove what dead writers of ``path`` left. Age alone proves nothing: a clock may be set during a write."""
    names = re.compile(re.escape(f".{path.name}.") + r"(\d{1,10})-[0-9a-f]+\.tmp")
    with contextlib.suppress(OSError):  # without the folder, the write itself says so
        for entry in os.scandir(path.parent):
            match = names.fullmatch(entry.name)
            if match is None or _writes(int(match[1]), path.with_name(entry.name)):
                continue
            with contextlib.suppress(OSError):  # another process may be removing it as well
                if time.time() - entry.stat().st_mtime > _STALE_AFTER_S:
                    os.unlink(entry.path)


def _writes(pid: int, temporary: Path) -> bool:
    """Whether the process that began a temporary file may still be writing it."""
    if pid == os.getpid():
        return temporary in _in_progress
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True  # another user's
    except (OSError, OverflowError):
        return False
    return True


def read_text(path: Path, max_bytes: int) -> str:
    """Text with or without a byte-order mark. Raises :class:`RecordingError` naming the file."""
    try:
        return read_file(path, max_bytes).decode("utf-8-sig")
    except FileNotFoundError as error:
        raise RecordingError(f"{path} is missing") from error
    except OSError as error:
        raise RecordingError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecordingError(f"{path}: {error}") from error


def read_image(path: Path, decode: Callable[[bytes], ImageT]) -> ImageT:
    """What ``decode`` makes of the bytes of an image's file. Raises :class:`RecordingError` naming the file, where it
    cannot be read or ``decode`` raises ``ValueError``."""
    try:
        return decode(read_file(path, MAX_IMAGE_BYTES))
    except OSError as error:
        raise RecordingError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:  # a damaged image, or a list that names no file
        raise RecordingError(f"{path}: {error}") from error
