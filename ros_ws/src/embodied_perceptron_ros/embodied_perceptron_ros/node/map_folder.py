"""The folder that the map services read and write: their callers reach no other file.

The parameter ``map_file`` is the operator's and may name any file.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

_MAX_CHARACTERS = 1024


class MapPathError(ValueError):
    """A path that the map services refuse; the message names the folder and the parameter."""


def default_map_folder() -> Path:
    """``embodied_perceptron/maps`` in ``XDG_DATA_HOME`` or ``~/.local/share``."""
    data = os.environ.get("XDG_DATA_HOME", "")
    base = Path(data) if data and Path(data).is_absolute() else Path.home() / ".local" / "share"
    return base / "embodied_perceptron" / "maps"


class MapFolder:
    """Resolves paths of requests to files in one folder, which is created when the first map is written.

    Args:
        folder: empty = :func:`default_map_folder`.
    """

    def __init__(self, folder: str = "") -> None:
        self.path = Path(os.path.abspath(Path(folder).expanduser() if folder else default_map_folder()))

    def to_write(self, text: str) -> Path:
        """The file ``text`` for writing; a sub-folder in it must exist.

        Raises :class:`MapPathError`; ``OSError`` if the map folder cannot be created.
        """
        file = self._inside(text)
        self.path.mkdir(parents=True, exist_ok=True)
        if not file.parent.is_dir():
            raise MapPathError(f"there is no folder {file.parent}")
        self._no_special_file(file)
        return file

    def to_read(self, text: str) -> Path:
        """The file ``text`` for reading. Raises :class:`MapPathError`; ``OSError`` if it does not exist."""
        file = self._inside(text)
        try:
            os.stat(file)
        except FileNotFoundError:
            raise FileNotFoundError(f"there is no map {file}") from None
        self._no_special_file(file)
        return file

    def _inside(self, text: str) -> Path:
        if not text.strip() or len(text) > _MAX_CHARACTERS or not text.isprintable():
            raise MapPathError(f"path must name a file in at most {_MAX_CHARACTERS} characters, got {text[:80]!r}")
        asked = Path(text)
        if ".." in asked.parts:
            raise self._outside(text, "'..' is not allowed")
        # Resolve links first, those of the folder too; nothing is opened here
        root = Path(os.path.realpath(self.path))
        given = self.path / asked
        file = Path(os.path.realpath(given))
        if not given.is_relative_to(self.path) and not given.is_relative_to(root):
            raise self._outside(text, "it is in another folder")
        if file == root or not file.is_relative_to(root):
            raise self._outside(text, "a link leads out" if file != root else "it is the folder itself")
        return file

    def _no_special_file(self, file: Path) -> None:
        if file.exists() and not stat.S_ISREG(file.stat().st_mode):
            raise MapPathError(f"{file} is not a regular file")

    def _outside(self, text: str, why: str) -> MapPathError:
        return MapPathError(
            f"maps are written and read in {self.path} only (parameter map_folder), not at {text[:200]!r}: {why}"
        )
