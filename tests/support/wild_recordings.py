"""Damaged and hostile recordings, as strategies of ``hypothesis``: what one file of a recording becomes.

:data:`RECORDINGS` writes a small valid recording for each reader; :func:`change` applies a drawn case to one of its
files; :func:`frames_read` is what a user gets: the number of frames, or None for a refusal, whose words are checked.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from rosbags.rosbag2 import StoragePlugin
from support import bag_tools
from support.export_folders import MAKERS, contents, metres, r3d
from support.small_recording import INTRINSICS, frames

from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.recordings.recording import PosedFrameStream, RecordingError

_PLACES = st.floats(0, 1)  # a share of the length
_DAMAGE = st.one_of(
    st.tuples(st.just("cut"), _PLACES),
    st.tuples(st.just("flip"), _PLACES | _PLACES.map(lambda x: x**6), st.integers(1, 255)),
    st.tuples(st.just("insert"), _PLACES, st.binary(max_size=16)),
    st.tuples(st.just("drop"), _PLACES, st.integers(1, 64)),
    st.tuples(st.just("number"), _PLACES, st.sampled_from([0, 1, 0x7FFFFFFF, 0x80000000, 2**32 - 1])),
)
DAMAGES = st.lists(_DAMAGE, min_size=1, max_size=3)


def damaged(data: bytes, damages: Sequence[Sequence[Any]]) -> bytes:
    """``data`` after each of ``damages`` in turn."""
    for kind, share, *rest in damages:
        where = min(int(share * len(data)), max(len(data) - 1, 0))
        if kind == "cut":
            data = data[:where]
        elif kind == "flip" and data:
            data = data[:where] + bytes([data[where] ^ rest[0]]) + data[where + 1 :]
        elif kind == "insert":
            data = data[:where] + rest[0] + data[where:]
        elif kind == "drop":
            data = data[:where] + data[where + rest[0] :]
        elif kind == "number":
            data = data[:where] + struct.pack("<I", rest[0]) + data[where + 4 :]
    return data


_NUMBER = re.compile(rb"-?\d+\.?\d*(?:e-?\d+)?")
_TEXT = (".txt", ".json", ".csv", ".pincam", ".traj", ".yaml", "", ".npy")
WORDS = [
    "NaN",
    "Infinity",
    "-inf",
    "1e400",
    "9" * 400,
    "9" * 5000,
    "-1",
    "0",
    "",
    "true",
    "null",
    "[]",
    '{"a": 1}',
    '"x"',
]
WORDS += [
    "1e300",
    "1e-320",
    "0.5",
    "[" * 5000,
    "1e18",
    "1000000000",
    "99999",
    "\u0663",
    "\x00",
    "(9,)",
    "a" * 3000,
    '"',
]
_WORDS = st.tuples(st.just("word"), _PLACES, st.sampled_from(WORDS))
_LINES = st.tuples(st.just("line"), _PLACES, st.sampled_from(["drop", "twice", "x", "1 2 3", ",,,", "[]"]))
_FILES = st.sampled_from(["missing", "empty", "pipe", "folder", "loop"]).map(lambda kind: (kind,))
CHANGES = st.one_of(_WORDS, _WORDS, _LINES, _FILES, st.tuples(st.just("bytes"), DAMAGES))
# the file by its share of the list; text files, which say the most, in every second case
CASES = st.fixed_dictionaries({"file": _PLACES, "text": st.booleans(), "change": CHANGES, "tolerant": st.booleans()})


def _words_changed(data: bytes, share: float, word: str) -> bytes:
    found = list(_NUMBER.finditer(data))
    if not found:
        return data + word.encode()
    match = found[min(int(share * len(found)), len(found) - 1)]
    return data[: match.start()] + word.encode() + data[match.end() :]


def _lines_changed(data: bytes, share: float, line: str) -> bytes:
    lines = data.splitlines(keepends=True) or [b""]
    at = min(int(share * len(lines)), len(lines) - 1)
    lines[at : at + 1] = {"drop": [], "twice": lines[at : at + 1] * 2}.get(line, [line.encode() + b"\n"])
    return b"".join(lines)


def change(path: Path, kind: str, *values: Any) -> None:
    """Change one file."""
    if kind in ("word", "line", "bytes"):
        alter: Callable[..., bytes] = {"word": _words_changed, "line": _lines_changed, "bytes": damaged}[kind]
        path.write_bytes(alter(path.read_bytes(), *values))
        return
    path.unlink()
    if kind == "empty":
        path.touch()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)


def changed_copy(source: Path, target: Path, case: Mapping[str, Any]) -> Path:
    """A copy of a recording with one changed file; of an .r3d file every second change is to one of its entries."""
    packed = source.is_file() and source.suffix == ".r3d" and case["text"]
    if packed:
        with zipfile.ZipFile(source) as file:
            file.extractall(target)
    elif source.is_dir():
        shutil.copytree(source, target)
    else:
        target.mkdir()
        shutil.copy(source, target / source.name)
    files = sorted(p for p in target.rglob("*") if p.is_file())
    texts = [p for p in files if p.suffix in _TEXT]
    chosen = texts if case["text"] and texts else files
    change(chosen[min(int(case["file"] * len(chosen)), len(chosen) - 1)], *case["change"])
    if packed:
        with zipfile.ZipFile(target / source.name, "w", zipfile.ZIP_DEFLATED) as file:
            for path in files:
                if path.is_file():
                    file.write(path, path.relative_to(target).as_posix())
    return target if source.is_dir() else target / source.name


def frames_read(path: Path, tolerant: bool) -> int | None:
    """Frames of a recording, or None when it is refused. The refusal is one sentence that names a file."""
    try:
        recording = open_recording(path, tolerate_damage=tolerant)
        return len(list(PosedFrameStream(recording)))
    except RecordingError as error:
        text = str(error)
        assert str(path) in text or "transform at" in text, text
        assert "\n" not in text, text
        assert len(text) < 1500, text
        return None


# ------------------------------------------------------------------------------------------------------------- readers


def _bag(path: Path, storage: StoragePlugin | None) -> Path:
    """Without storage a bag of ROS 1."""
    eye, messages = "eye", []
    for stamp, color, depth, T in frames(3):
        messages += [
            ("/tf", stamp, bag_tools.transform(stamp, "odom", eye, T)),
            ("/camera/color/image", stamp, bag_tools.image(stamp, eye, color)),
            ("/camera/color/camera_info", stamp, bag_tools.camera_info(stamp, eye, INTRINSICS)),
            ("/camera/depth/image", stamp, bag_tools.image(stamp, eye, depth)),
        ]
    if storage is None:
        return bag_tools.write_ros1_bag(path.with_suffix(".bag"), messages)
    return bag_tools.write_bag(path, messages, storage)


def _numpy_depth(folder: Path, twin: Path) -> Path:
    """Stray Scanner with depth as .npy."""
    MAKERS["Stray Scanner"](folder, twin)
    for i, _, depth, _ in contents(twin):
        (folder / "depth" / f"{i:06d}.png").unlink()
        np.save(folder / "depth" / f"{i:06d}.npy", (metres(depth) * 1000).astype(np.uint16))
    return folder


RECORDINGS: Mapping[str, Callable[[Path, Path], Path]] = {
    "TUM": lambda folder, twin: shutil.copytree(twin, folder),
    "MCAP": lambda folder, twin: _bag(folder, StoragePlugin.MCAP),
    "SQLite": lambda folder, twin: _bag(folder, StoragePlugin.SQLITE3),
    "ROS 1": lambda folder, twin: _bag(folder, None),
    **MAKERS,
    "Stray Scanner, .npy": _numpy_depth,
    "Record3D, .r3d": lambda folder, twin: r3d(folder.with_suffix(".r3d"), twin, bytes),
}
