"""Storage of evicted blocks on the disk, until the robot returns.

    spill = BlockSpill(folder, max_bytes)
    spill.add(blocks)                                  evicted blocks
    for blocks in spill.returning(center, radius):     blocks that are near again, read by a background thread

Blocks are written in *segments* of some thousand voxels, atomically and with checksums
(:mod:`~embodied_perceptron.mapping.storage`), to a subfolder that is removed with the map. A segment is read once: its
near blocks return, the others join the next segment, and its file is deleted. Fusion never waits for the disk. Segments
that cannot be stored or read (disk full or slow, size limit, damaged file) are dropped, counted by reason and logged.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import secrets
import shutil
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.config import ConfigError
from embodied_perceptron.mapping.blocks import BLOCK_BITS, block_coords, split_coords, squared_distance
from embodied_perceptron.mapping.storage import MapFileError, check_voxel_values, read_map, take_array, write_map
from embodied_perceptron.mapping.voxels import RECORD, VoxelRows

_SEGMENT_VOXELS = 1 << 15
_MOST_WAITING = 16  # segments not yet written
_VOXEL_BYTES = 2 + 4 * RECORD + 8
_BLOCK_VOXELS = 1 << 3 * BLOCK_BITS
_HEADER_BYTES = 1 << 16  # of a segment's file
_FOLDER = re.compile(r"(map|new)-[0-9a-f]{16}")
_LOCK = "in_use"  # file that marks such a folder as a spill's; locked by its process
_OWN = re.compile(rf"{_LOCK}|segment-\d{{8,}}\.safetensors|\.segment-\d{{8,}}\.safetensors\.\d+-[0-9a-f]+\.tmp")
_MOVED = 2.0  # block edges of camera motion between two searches for near blocks
_LOG = logging.getLogger(__name__)
Index = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Blocks:
    """Voxels of some blocks.

    Attributes:
        keys: (B,) int64 distinct block keys. counts: (B,) int64 voxels of each.
        local: (N,) int64 index of each voxel in its block, block by block.
        records: (N, 8) int32. last_seen_ns: (N,) int64.
    """

    keys: Index
    counts: Index
    local: Index
    records: NDArray[np.int32]
    last_seen_ns: Index

    @staticmethod
    def of(rows: VoxelRows) -> Blocks:
        """From voxels in any order, on the CPU."""
        keys, local = split_coords(rows.coords.numpy())
        order = np.lexsort((local, keys))
        distinct, counts = np.unique(keys, return_counts=True)
        records, stamps = rows.records.numpy()[order], rows.last_seen_ns.numpy()[order]
        return Blocks(distinct, counts.astype(np.int64), local[order], records, stamps)

    def rows(self) -> VoxelRows:
        """Voxel by voxel."""
        inside = np.stack([self.local >> 6, (self.local >> 3) & 7, self.local & 7], axis=1)
        coords = (np.repeat(block_coords(self.keys), self.counts, axis=0) << BLOCK_BITS) + inside
        return VoxelRows(*map(torch.from_numpy, (coords.astype(np.int32), self.records, self.last_seen_ns)))

    def where(self, chosen: NDArray[np.bool_]) -> Blocks:
        """Blocks where (B,) ``chosen`` is True."""
        voxels = np.repeat(chosen, self.counts)
        of_voxels = self.local[voxels], self.records[voxels], self.last_seen_ns[voxels]
        return Blocks(self.keys[chosen], self.counts[chosen], *of_voxels)

    @staticmethod
    def joined(parts: Sequence[Blocks]) -> Blocks:
        """Concatenate; a block may be in several parts."""
        return Blocks(
            np.concatenate([part.keys for part in parts]),
            np.concatenate([part.counts for part in parts]),
            np.concatenate([part.local for part in parts]),
            np.concatenate([part.records for part in parts]),
            np.concatenate([part.last_seen_ns for part in parts]),
        )


@dataclass(eq=False)
class _Segment:
    """Blocks written together; ``content`` is None once on the disk, ``written`` and ``read`` are operations."""

    path: Path
    keys: Index
    voxels: int
    content: Blocks | None
    written: Future[None] | None = None
    read: Future[Blocks] | None = None
    coords: NDArray[np.int32] = field(init=False)
    middle: list[float] = field(init=False)  # with ``reach``: sphere around the centres of the blocks
    reach: float = field(init=False)

    def __post_init__(self) -> None:
        self.coords = block_coords(self.keys).astype(np.int32)
        middle = 0.5 * (self.coords.min(axis=0) + self.coords.max(axis=0) + 1.0)
        self.middle = middle.tolist()
        self.reach = float(np.sqrt(squared_distance(self.coords, middle).max()))

    @property
    def nbytes(self) -> int:
        return self.voxels * _VOXEL_BYTES

    def may_be_near(self, center: list[float], radius: float) -> bool:
        """Whether a block may be within ``radius``: a quick test, for thousands of segments."""
        x, y, z = self.middle[0] - center[0], self.middle[1] - center[1], self.middle[2] - center[2]
        return x * x + y * y + z * z <= (radius + self.reach) ** 2


class BlockSpill:
    """See the module docstring. Not thread-safe.

    Args:
        folder: existing parent folder; subfolders of ended processes are removed, those of others never.
        max_bytes: limit on the stored voxels; the oldest are dropped first.

    Attributes:
        dropped: numbers of lost blocks by reason: ``full`` (``max_bytes``), ``disk`` (write error), ``slow`` (too many
            waiting segments), ``damaged`` (read error).

    Raises ``ConfigError`` for a folder that is missing or cannot be written.
    """

    def __init__(self, folder: str | Path, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.dropped: Counter[str] = Counter()
        parent = Path(folder)
        try:
            _remove_leftovers(parent)
            locks: list[int] = []  # files
            self._folder = _new_folder(parent, locks)
        except OSError as error:
            raise ConfigError(f"spill.folder {str(folder)!r} cannot be used: {error}") from error
        self._disk = ThreadPoolExecutor(1, "spill")
        self._open: list[Blocks] = []  # the next segment
        self._open_voxels = 0
        self._segments: list[_Segment] = []  # oldest first
        self._waiting: list[_Segment] = []  # of these, not yet written
        self._returning: list[_Segment] = []  # of these, being read
        self._number = 0
        self._asked: NDArray[np.float64] | None = None  # camera position at the last search for near blocks
        self._locks = locks
        self._closed = weakref.finalize(self, _close, self._disk, self._folder, locks)

    def __len__(self) -> int:
        """Number of stored blocks."""
        return sum(len(s.keys) for s in self._segments) + sum(len(b.keys) for b in self._open)

    @property
    def nbytes(self) -> int:
        """Bytes of the voxels on the disk or waiting for it."""
        return sum(s.nbytes for s in self._segments) + self._open_voxels * _VOXEL_BYTES

    @property
    def memory_bytes(self) -> int:
        """Main memory: voxels waiting for the disk, and the index of the blocks."""
        waiting = sum(s.nbytes for s in self._waiting)
        return waiting + self._open_voxels * _VOXEL_BYTES + 20 * len(self)

    def add(self, blocks: Blocks) -> None:
        """Store evicted blocks."""
        if len(blocks.keys) == 0:
            return
        self._open.append(blocks)
        self._open_voxels += len(blocks.local)
        while self._open_voxels >= _SEGMENT_VOXELS:
            every = Blocks.joined(self._open)
            ends = np.cumsum(every.counts)
            first = np.arange(len(ends)) < max(1, int(np.searchsorted(ends, _SEGMENT_VOXELS, "right")))
            self._write(every.where(first))
            rest = every.where(~first)
            self._open, self._open_voxels = ([rest] if len(rest.keys) else []), len(rest.local)

    def returning(self, center: NDArray[np.float64], radius: float) -> Iterator[Blocks]:
        """Blocks read so far with their centres within ``radius`` of ``center``, (3,) in block edges; each is returned
        once. Starts reading other near blocks for a later call."""
        self._settle()
        ready = [s for s in self._returning if s.read is not None and s.read.done()]
        moved = self._asked is None or float(np.abs(self._asked - center).max()) >= _MOVED
        if not ready and not moved:
            return
        if moved:
            self._asked = center.copy()
            at: list[float] = center.tolist()
            for segment in self._segments:
                if segment.read is not None or not segment.may_be_near(at, radius):
                    continue
                if _near(segment.coords, center, radius).any():
                    self._fetch(segment)
            still_open, self._open, self._open_voxels = self._open, [], 0
            yield from self._part(still_open, center, radius)
        for segment in ready:
            content = self._taken(segment)
            if content is not None:
                yield from self._part([content], center, radius)

    def take(self, wanted: Callable[[NDArray[np.int32]], NDArray[np.bool_]]) -> list[Blocks]:
        """Remove and return all segments with a block whose (B, 3) coordinates are ``wanted``; waits for the disk."""
        taken, self._open, self._open_voxels = self._open, [], 0
        for segment in [s for s in self._segments if wanted(s.coords).any()]:
            if segment.read is None:
                self._fetch(segment)
            content = self._taken(segment)
            if content is not None:
                taken.append(content)
        return taken

    def clear(self) -> None:
        """Remove all blocks and reset the counts of lost ones."""
        for segment in self._segments:
            self._disk.submit(_unlink, segment.path)
        for segments in (self._segments, self._waiting, self._returning):
            segments.clear()
        self._open, self._open_voxels, self._asked = [], 0, None
        self.dropped.clear()

    def flush(self) -> None:
        """Wait until all complete segments are written."""
        for segment in list(self._segments):
            if segment.written is not None:
                segment.written.exception()
        self._settle()

    def close(self) -> None:
        """Remove the folder; the spill is unusable afterwards."""
        self._closed()

    # ----------------------------------------------------------------------------------------------------------------

    def _part(self, contents: list[Blocks], center: NDArray[np.float64], radius: float) -> Iterator[Blocks]:
        """Return the near blocks and store the others again."""
        for content in contents:
            near = _near(block_coords(content.keys), center, radius)
            self.add(content.where(~near))
            if near.any():
                yield content.where(near)

    def _write(self, blocks: Blocks) -> None:
        if len(self._waiting) >= _MOST_WAITING:
            self._settle()
            if len(self._waiting) >= _MOST_WAITING:
                self._drop("slow", len(blocks.keys), f"{_MOST_WAITING} segments wait for {self._folder}")
                return
        path = self._folder / f"segment-{self._number:08d}.safetensors"
        self._number += 1
        segment = _Segment(path, blocks.keys, len(blocks.local), blocks)
        segment.written = self._disk.submit(_write_segment, path, blocks, self._locks)
        self._segments.append(segment)
        self._waiting.append(segment)
        while self.nbytes > self.max_bytes:
            oldest = next((s for s in self._segments if s.read is None), None)
            if oldest is None:
                break
            self._forget(oldest)
            self._disk.submit(_unlink, oldest.path)
            self._drop("full", len(oldest.keys), f"the limit of {self.max_bytes} bytes is reached")

    def _settle(self) -> None:
        """Release written segments from memory; drop those that could not be written."""
        for segment in list(self._waiting):
            if segment.written is None or not segment.written.done():
                continue
            error = segment.written.exception()
            if error is None:
                segment.content = None
                self._waiting.remove(segment)
            elif segment.read is not None:
                continue  # it is read from memory
            elif isinstance(error, OSError):
                self._forget(segment)
                self._drop("disk", len(segment.keys), str(error))
            else:
                raise error

    def _fetch(self, segment: _Segment) -> None:
        segment.read = self._disk.submit(_read_segment, segment)
        self._returning.append(segment)

    def _forget(self, segment: _Segment) -> None:
        for segments in (self._segments, self._waiting, self._returning):
            if segment in segments:
                segments.remove(segment)

    def _taken(self, segment: _Segment) -> Blocks | None:
        """Blocks read from a segment, which is removed; None = it is lost."""
        assert segment.read is not None
        self._forget(segment)
        try:
            content = segment.read.result()
        except (OSError, MapFileError) as error:
            self._drop("damaged", len(segment.keys), str(error))
            content = None
        self._disk.submit(_unlink, segment.path)
        return content

    def _drop(self, reason: str, blocks: int, why: str) -> None:
        self.dropped[reason] += blocks
        _LOG.warning("%d evicted blocks are lost (%s): %s", blocks, reason, why)


def _near(coords: NDArray[np.integer[Any]], center: NDArray[np.float64], radius: float) -> NDArray[np.bool_]:
    near: NDArray[np.bool_] = squared_distance(coords, center) <= radius * radius
    return near


def _write_segment(path: Path, blocks: Blocks, locks: list[int]) -> None:
    if not (path.parent / _LOCK).exists():  # somebody deleted the folder
        path.parent.mkdir(parents=True, exist_ok=True)
        locks.append(_locked(path.parent))
    columns = vars(blocks) | {"local": blocks.local.astype(np.int16)}
    tensors = {name: torch.from_numpy(column) for name, column in columns.items()}
    write_map(path, tensors, {"segment": path.stem})


def _read_segment(segment: _Segment) -> Blocks:
    """Blocks of a segment whose writing has ended. Raises ``OSError``, ``MapFileError``."""
    content = segment.content
    if content is not None:
        return content
    n = segment.voxels
    most = _HEADER_BYTES + n * _VOXEL_BYTES + len(segment.keys) * 16
    if (size := segment.path.stat().st_size) > most:
        raise MapFileError(f"{segment.path} has {size} bytes, at most {most} were written there")
    saved = read_map(segment.path)
    found = [
        take_array(segment.path, saved.tensors, name, dtype, shape)
        for name, dtype, shape in (
            ("keys", torch.int64, (len(segment.keys),)),
            ("counts", torch.int64, (len(segment.keys),)),
            ("local", torch.int16, (n,)),
            ("records", torch.int32, (n, RECORD)),
            ("last_seen_ns", torch.int64, (n,)),
        )
    ]
    if not np.array_equal(found[0], segment.keys):
        raise MapFileError(f"{segment.path} holds other blocks than were written there")
    keys, counts, local, records, stamps = found
    if not (counts.min() >= 1 and counts.max() <= _BLOCK_VOXELS and counts.sum() == n):
        shown = f"from {counts.min()} to {counts.max()}"
        raise MapFileError(f"{segment.path} has counts {shown} for {n} voxels in blocks of 1 to {_BLOCK_VOXELS}")
    if not (local.min() >= 0 and local.max() < _BLOCK_VOXELS):
        raise MapFileError(f"{segment.path} has voxels {local.min()} to {local.max()} of blocks of {_BLOCK_VOXELS}")
    check_voxel_values(segment.path, records, stamps)
    return Blocks(keys, counts, local.astype(np.int64), records, stamps)


def _unlink(path: Path) -> None:
    path.unlink(missing_ok=True)


def _close(disk: ThreadPoolExecutor, folder: Path, locks: list[int]) -> None:
    disk.shutdown(wait=True, cancel_futures=True)
    shutil.rmtree(folder, ignore_errors=True)
    for lock in locks:
        os.close(lock)


def _new_folder(parent: Path, locks: list[int]) -> Path:
    """Make a locked folder; until it is locked, another process may take it for a leftover and remove it."""
    while True:
        name = secrets.token_hex(8)
        begun = parent / f"new-{name}"
        begun.mkdir()
        try:
            locks.append(_locked(begun))
            return begun.rename(parent / f"map-{name}")
        except FileNotFoundError:
            continue


def _locked(folder: Path) -> int:
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def _remove_leftovers(parent: Path) -> None:
    """Remove folders of ended processes. (Process ids repeat between containers.)"""
    for entry in os.scandir(parent):
        if _FOLDER.fullmatch(entry.name) is not None and entry.is_dir(follow_symlinks=False):
            with contextlib.suppress(OSError):  # in use, another user's, or just removed by another process
                _remove_leftover(Path(entry.path))


def _remove_leftover(folder: Path) -> None:
    """Remove a folder that holds files of a spill and nothing else. Raises ``OSError``, also where it is in use."""
    names = os.listdir(folder)
    if _LOCK not in names:  # not marked: a folder of somebody else, or a process ended as it made the folder
        if folder.name.startswith("new-"):
            folder.rmdir()  # raises unless it is empty
        return
    if not all(map(_OWN.fullmatch, names)):
        return
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in names:
            (folder / name).unlink()
        folder.rmdir()
    finally:
        os.close(lock)


def overlapping(lower: NDArray[Any], upper: NDArray[Any]) -> Callable[[NDArray[np.int32]], NDArray[np.bool_]]:
    """Condition for :meth:`BlockSpill.take`: blocks that overlap a box, (3,) in block edges."""

    def wanted(coords: NDArray[np.int32]) -> NDArray[np.bool_]:
        inside: NDArray[np.bool_] = np.all((coords + 1 > lower) & (coords < upper), axis=1)
        return inside

    return wanted
