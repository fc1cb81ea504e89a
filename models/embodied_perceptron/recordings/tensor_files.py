"""Safetensors with limits: claimed sizes are checked before memory is allocated, and a full disk is an OSError.

A file is opened and read once, so that the result is consistent even when another file replaces it meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from embodied_perceptron.recordings import plain_values

MAX_HEADER_BYTES = 32 * 2**20  # names, shapes and JSON, which takes about ten times as much in Python
MAX_FILE_BYTES = 16 * 2**30  # of a whole file
_LOG = logging.getLogger(__name__)
_LENGTH = struct.Struct("<Q")


class TensorFileError(ValueError):
    """The file is not a safetensors file, is damaged, or exceeds the limits."""


@dataclass(frozen=True)
class FileState:
    """Identity of a file's content: renaming keeps it, writing changes it."""

    device: int
    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileState:
        """Convert the result of ``os.stat``."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def read_tensors(path: str | Path) -> tuple[dict[str, torch.Tensor], dict[str, str], FileState]:
    """Read tensors, metadata and identity of a safetensors file.

    Raises :class:`TensorFileError` unless the file is complete and within the limits, and ``OSError`` with the path
    when it cannot be opened.
    """
    with _checked(path) as (file, state):
        data = file.read(state.size + 1)
    try:
        tensors = load(data)
    except (SafetensorError, AssertionError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise TensorFileError(f"{path} is damaged, cut short, or of another kind: {error}") from error
    (length,) = _LENGTH.unpack_from(data)
    return tensors, _metadata(path, data[_LENGTH.size : _LENGTH.size + length]), state


def read_metadata(path: str | Path) -> dict[str, str]:
    """Read the metadata of a safetensors file without its tensors. Raises as :func:`read_tensors`."""
    with _checked(path) as (file, _):
        first = file.read(_LENGTH.size)
        if len(first) < _LENGTH.size:
            raise TensorFileError(f"{path} is damaged, cut short, or of another kind: it has {len(first)} bytes")
        (length,) = _LENGTH.unpack(first)
        return _metadata(path, file.read(min(length, MAX_HEADER_BYTES)))


def parse_json(text: str | bytes, source: str = "", longest: int = plain_values.MAX_NAME) -> Any:
    """Call ``json.loads``, with a ``ValueError`` also for too deep nesting.

    ``source``: file whose texts are names; they are cleaned (:func:`~.plain_values.cleaned`), and their number logged.
    """
    changed: list[str] = []
    try:
        values = json.loads(text)
        values = plain_values.clean_texts(values, longest, changed) if source else values
    except RecursionError:
        raise ValueError("JSON that is nested too deep") from None
    if changed:
        shown = f"{changed[0][:60]!a} ({plain_values.forbidden_character(changed[0]) or 'too long'})"
        _LOG.warning("%s: %d names were cleaned, the first is %s", source, len(changed), shown)
    return values


@contextlib.contextmanager
def _checked(path: str | Path) -> Iterator[tuple[BinaryIO, FileState]]:
    """Open a file and check the size of the file and its header."""
    # opening a pipe must not block
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise TensorFileError(f"{path} is not a regular file")
        if status.st_size > MAX_FILE_BYTES:
            raise TensorFileError(f"{path} has {status.st_size} bytes, at most {MAX_FILE_BYTES} are read")
        first = file.read(_LENGTH.size)
        header_bytes = _LENGTH.unpack(first)[0] if len(first) == _LENGTH.size else 0
        if MAX_HEADER_BYTES < header_bytes <= status.st_size:
            raise TensorFileError(f"{path} has a header of {header_bytes} bytes, at most {MAX_HEADER_BYTES} are read")
        file.seek(0)
        yield file, FileState.of(status)


def _metadata(path: str | Path, header: bytes) -> dict[str, str]:
    try:
        parsed = parse_json(header)
    except ValueError as error:
        raise TensorFileError(f"{path} is damaged, cut short, or of another kind: {error}") from error
    metadata = parsed.get("__metadata__", {}) if isinstance(parsed, dict) else None
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise TensorFileError(f"{path} is damaged, cut short, or of another kind: its metadata are no texts")
    return metadata


@contextlib.contextmanager
def disk_errors(path: str | Path) -> Iterator[None]:
    """Convert disk errors of ``save_file`` (a full disk) to ``OSError``."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(f"{path} cannot be written: {error}") from error
