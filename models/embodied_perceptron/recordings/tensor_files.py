"""Safetensors with limits: what a file claims is checked before memory is taken, and a full disk is an OSError."""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

MAX_HEADER_BYTES = 32 * 2**20  # names, shapes, and the JSON beside them, which takes some ten times that in Python
MAX_FILE_BYTES = 16 * 2**30  # tensors can't be larger than the file that holds them
_LENGTH = struct.Struct("<Q")


class TensorFileError(ValueError):
    """A file that is no safetensors file, is damaged, or larger than anything that is read."""


@contextlib.contextmanager
def open_tensors(path: str | Path) -> Iterator[Any]:
    """An opened safetensors file (``safe_open``, torch).

    Raises :class:`TensorFileError`, also for damage that shows while it is read, and ``OSError`` naming the path when
    it cannot be opened.
    """
    with open(path, "rb") as file:  # an OSError that names the path
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise TensorFileError(f"{path} is no plain file")
        if status.st_size > MAX_FILE_BYTES:
            raise TensorFileError(f"{path} has {status.st_size} bytes, at most {MAX_FILE_BYTES} are read")
        first = file.read(_LENGTH.size)
        header_bytes = _LENGTH.unpack(first)[0] if len(first) == _LENGTH.size else 0
        if MAX_HEADER_BYTES < header_bytes <= status.st_size:
            raise TensorFileError(f"{path} has a header of {header_bytes} bytes, at most {MAX_HEADER_BYTES} are read")
    try:
        with safe_open(str(path), framework="pt") as tensors:
            yield tensors
    except SafetensorError as error:
        raise TensorFileError(f"{path} is damaged, cut short, or of another kind: {error}") from error


@contextlib.contextmanager
def disk_errors(path: str | Path) -> Iterator[None]:
    """Around ``save_file``: what the disk says (it is full, above all) is an ``OSError``."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(f"{path} cannot be written: {error}") from error
