"""Files that are either the old one or the new one, whole, whatever happens in between."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A temporary path beside ``path`` to write to; it takes the place of ``path`` when the block ends well.

    The data is on disk before the name changes, so a crash or a power cut leaves the old file or the new one, never a
    part. On an exception the temporary file is removed and ``path`` is untouched. Parent folders are made.

    Raises ``OSError`` when the folder cannot be written.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    # the suffix is kept: some writers choose the format by it
    handle, name = tempfile.mkstemp(prefix=f".{target.stem}.", suffix=target.suffix, dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        # mkstemp makes 0600; give what an ordinary open() would
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        yield temporary
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name
    finally:
        os.close(folder)


def write_atomically(path: str | Path, data: bytes) -> None:
    """Write ``data`` to ``path``, whole or not at all. Raises ``OSError``."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)
