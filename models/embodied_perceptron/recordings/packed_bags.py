"""Bags as rosbags reads them, with bounded decompression and without its limits on who wrote the file.

rosbags unpacks a chunk, a message or a file at once and trusts its claimed size: a few kilobytes may claim, or expand
to, gigabytes. It refuses an MCAP file for its profile and for any channel of another program. Importing this module
replaces its decompressors and its readers of storage files; :func:`unpack` unpacks the files of a bag.
"""

from __future__ import annotations

import os
import shutil
from bz2 import BZ2Decompressor
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import yaml
from lz4.frame import LZ4FrameDecompressor
from rosbags.interfaces import ConnectionExtRosbag2, MessageDefinition, MessageDefinitionFormat
from rosbags.rosbag1 import reader as rosbag1_reader
from rosbags.rosbag2 import reader as rosbag2_reader
from rosbags.rosbag2 import storage_mcap, storage_sqlite3
from rosbags.typesys import Stores, get_typestore

_MOST_BYTES = {"chunk": 2**30, "message": 2**28, "file": 2**30}
_MAX_RATIO = 100  # for larger files: recorded images do not compress that well
_SPARED_BYTES = 2**30  # left free on the disk
_PIECE_BYTES = 2**20
_METADATA = "metadata.yaml"

_zstd: Any = vars(storage_mcap)["zstd"]  # of the standard library, or its backport


def _of_claimed_size(new_decompressor: Callable[[], Any]) -> Callable[[bytes, int], bytes]:
    def decompress(data: bytes, size: int) -> bytes:
        if size > _MOST_BYTES["chunk"]:
            raise ValueError(f"a chunk claims {size} bytes, at most {_MOST_BYTES['chunk']} are unpacked")
        out = new_decompressor().decompress(data, max_length=size + 1)
        if len(out) > size:
            raise ValueError(f"a chunk holds more than the {size} bytes that it claims")
        return bytes(out)

    return decompress


def _of_unknown_size(new_decompressor: Callable[[], Any], what: str) -> Callable[[bytes], bytes]:
    def decompress(data: bytes) -> bytes:
        unpacker, pieces, size = new_decompressor(), [], 0
        while not unpacker.eof:
            piece = unpacker.decompress(data if unpacker.needs_input else b"", max_length=_PIECE_BYTES)
            if not piece and unpacker.needs_input:
                raise ValueError(f"a {what} is truncated")
            data, size = b"", size + len(piece)
            if size > _MOST_BYTES[what]:
                raise ValueError(f"a {what} holds more than {_MOST_BYTES[what]} bytes, the most that is unpacked")
            pieces.append(piece)
        return b"".join(pieces)

    return decompress


storage_mcap.DECOMPRESSORS.update(
    lz4=_of_claimed_size(LZ4FrameDecompressor), zstd=_of_claimed_size(_zstd.ZstdDecompressor)
)
rosbag1_reader.decompressors.update(
    bz2=_of_unknown_size(BZ2Decompressor, "chunk"),
    lz4=_of_unknown_size(LZ4FrameDecompressor, "chunk"),
)
rosbag2_reader.zstd = SimpleNamespace(  # type: ignore[attr-defined,assignment]
    decompress=_of_unknown_size(_zstd.ZstdDecompressor, "message")
)

# --------------------------------------------------------------------------------------------------------------------
# storage files

_PROFILE_AT, _PROFILE = 17, b"\4\0\0\0ros2"  # behind magic, opcode and length of the header of an MCAP file
_definition_of = storage_mcap.get_msgdef


class _AnyProfile(BufferedReader):
    """An MCAP file whose header claims the profile that rosbags requires; the channels tell how they are encoded."""

    def read(self, size: int | None = -1, /) -> bytes:
        at = self.tell()
        data = super().read(size)
        return _PROFILE + data[len(_PROFILE) :] if at == _PROFILE_AT else data


class _McapReader(storage_mcap.McapReader):
    """Reader of the channels of ROS. Messages of ROS 1 are converted; channels of other programs are skipped."""

    def _open(self) -> None:
        file: Any = self.bio
        self.bio = file = _AnyProfile(file.detach())
        super()._open()
        self.bio = BufferedReader(file.detach())
        every: list[Any] = self.connections
        self.connections, self._of_ros1 = [], dict[int, str]()
        types = get_typestore(Stores.LATEST)
        for channel in every:
            encoding, kind, definition = channel.ext.serialization_format, channel.msgtype, channel.msgdef
            if encoding == "ros1":
                kind = "tf2_msgs/msg/TFMessage" if kind == "tf/tfMessage" else kind.replace("/", "/msg/")
                if kind not in types.fielddefs:
                    continue
                self._of_ros1[channel.id] = kind
            elif encoding != "cdr":
                continue
            if kind in types.fielddefs and (encoding == "ros1" or definition.format == MessageDefinitionFormat.NONE):
                text, _ = types.generate_msgdef(kind, ros_version=2)
                definition = MessageDefinition(MessageDefinitionFormat.MSG, text)
            ext = ConnectionExtRosbag2("cdr", channel.ext.offered_qos_profiles)
            self.connections.append(channel._replace(msgtype=kind, msgdef=definition, ext=ext))
        if every and not self.connections:
            encodings = ", ".join(sorted({repr(channel.ext.serialization_format) for channel in every}))
            raise ValueError(f"it has no messages of ROS: its channels are encoded as {encodings:.200}")

    def messages(self, connections: Any, start: int | None = None, stop: int | None = None) -> Any:
        """Yield (channel, time of recording, CDR)."""
        convert = get_typestore(Stores.LATEST).ros1_to_cdr  # skips the sequence number of headers
        for channel, logged_ns, data in super().messages(connections, start, stop):
            if kind := self._of_ros1.get(channel.id):
                try:
                    data = bytes(convert(data, kind))
                except Exception as error:  # of any kind, for damaged bytes
                    raise ValueError(f"a message on {channel.topic} is not {kind} of ROS 1, as it claims") from error
            yield channel, logged_ns, data


class _Sqlite3Reader(storage_sqlite3.Sqlite3Reader):
    """Reader of any path: rosbags puts it into a URI unescaped, where "#", "?" and "%" have a meaning."""

    def __init__(self, path: Path) -> None:
        super().__init__(Path(quote(os.fsencode(path))))


_DEFINITIONS = ("ros2msg", "ros2idl", "omgidl", "")
vars(storage_mcap).update(  # a schema of another program has another encoding, and may be binary
    get_msgdef=lambda schema: _definition_of(schema if schema and schema.encoding in _DEFINITIONS else None),
    read_string=lambda file: storage_mcap.read_bytes(file).decode(errors="replace"),
)
_plugins: Any = rosbag2_reader.Reader.STORAGE_PLUGINS, rosbag2_reader.DirectoryReader.STORAGE_PLUGINS
_plugins[0].update({".mcap": _McapReader, ".db3": _Sqlite3Reader})
_plugins[1].update({"mcap": _McapReader, "sqlite3": _Sqlite3Reader})


# --------------------------------------------------------------------------------------------------------------------
# compressed files


def unpack(path: Path) -> tuple[Path, TemporaryDirectory[str] | None]:
    """Unpack a bag with compressed files into a temporary folder; any other bag is returned with None.

    Raises:
        ValueError: a file expands to more than a recording can hold, or than there is space for.
        OSError: it cannot be read or written.
    """
    if not (path / _METADATA).is_file():
        return path, None
    try:
        described = yaml.safe_load((path / _METADATA).read_text(encoding="utf-8", errors="replace"))
    except yaml.YAMLError:
        described = None  # the reader refuses invalid metadata
    info = described.get("rosbag2_bagfile_information") if isinstance(described, dict) else None
    if not isinstance(info, dict) or str(info.get("compression_mode", "")).lower() != "file":
        return path, None
    if info.get("compression_format") != "zstd":
        raise ValueError(f"its files are compressed by {info.get('compression_format')!r:.40}, only zstd is supported")
    folder = TemporaryDirectory(prefix="embodied-perceptron-bag-")
    names = [PurePath(str(name)).name for name in info.get("relative_file_paths", ())]
    for name in names:
        _unpack_file(path / name, Path(folder.name) / PurePath(name).stem)
    info |= {"compression_mode": "", "compression_format": "", "relative_file_paths": [PurePath(n).stem for n in names]}
    (Path(folder.name) / _METADATA).write_text(yaml.safe_dump(described), encoding="utf-8")
    return Path(folder.name), folder


def _unpack_file(source: Path, target: Path) -> None:
    room = shutil.disk_usage(target.parent).free - _SPARED_BYTES
    most, size = max(_MOST_BYTES["file"], _MAX_RATIO * source.stat().st_size), 0
    with _zstd.open(source, "rb") as packed, target.open("wb") as out:
        while piece := packed.read(_PIECE_BYTES):
            size += len(piece)
            if size > most:
                raise ValueError(f"{source.name} holds more than {most} bytes, which no recording of its size does")
            if size > room:
                raise ValueError(f"{source.name} needs more than the {max(room, 0)} bytes of room in {target.parent}")
            out.write(piece)
