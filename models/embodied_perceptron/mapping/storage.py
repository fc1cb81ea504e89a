"""Map files: safetensors, versioned, written atomically, with a checksum of every part.

A file holds the occupied voxels sorted by key (``voxels.*``), the keyframes (``keyframes.<i>.*``), and as JSON in the
header the format version and everything that is not an array. The header of version 2 has the CRC-32 of each tensor and
of itself; files of version 1 have no checksums and load unchecked.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from embodied_perceptron.config import ConfigError, KeyframeConfig, VolumeConfig, config_from_dict
from embodied_perceptron.geometry.transforms import (
    MAX_COORDINATE,
    Intrinsics,
    check_transform,
    distinct_keys,
    unpack_keys,
)
from embodied_perceptron.mapping.blocks import split_coords
from embodied_perceptron.mapping.keyframes import Keyframe
from embodied_perceptron.mapping.voxels import COLOR, HITS, OFFSET, OFFSET_UNITS, RECORD, VoxelRows
from embodied_perceptron.recordings import plain_values
from embodied_perceptron.recordings.files import atomic_path
from embodied_perceptron.recordings.plain_values import MAX_TEXT
from embodied_perceptron.recordings.tensor_files import (
    FileState,
    TensorFileError,
    disk_errors,
    parse_json,
    read_metadata,
    read_tensors,
)
from embodied_perceptron.sensors.frame import RgbdFrame

ConfigT = TypeVar("ConfigT", VolumeConfig, KeyframeConfig)
FORMAT = "embodied_perceptron.map"
VERSION = 2
_WITHOUT_CHECKSUMS = 1  # the version before
_BLOCK_BYTES = 20 * 1024  # of voxel memory; see VolumeConfig.max_blocks


class MapFileError(ValueError):
    """An unusable map file; the message names the file and the reason."""


class MapChangedError(OSError):
    """A map file changed by another program, which saving would overwrite."""


@dataclass(frozen=True, eq=False)
class SavedMap:
    """Content of a map file.

    Attributes:
        path: of the file.
        tensors, header: its parts.
        state: identity of the file on the disk; see :func:`write_map`.
    """

    path: Path
    tensors: dict[str, torch.Tensor]
    header: dict[str, Any]
    state: FileState

    @property
    def extra(self) -> dict[str, str]:
        """Further text entries, such as the objects. Raises ``MapFileError``."""
        return _extra(self.path, self.header)


def write_map(
    path: str | Path, tensors: Mapping[str, torch.Tensor], header: dict[str, Any], known: FileState | None = None
) -> FileState:
    """Write a map atomically; returns the state of the new file.

    ``known``: state of the file that the caller last read or wrote there; another file is not overwritten.

    Raises ``OSError`` when the folder is missing or cannot be written, :class:`MapChangedError` for another file.
    """
    described: dict[str, Any] = {"version": VERSION, **header}
    if described["version"] == VERSION:
        described["checksums"] = {name: _tensor_checksum(tensor) for name, tensor in tensors.items()}
        described["checksum"] = _header_checksum(described)
    # one entry: safetensors writes several in random order, and equal maps must be equal files
    metadata = {FORMAT: json.dumps(described, sort_keys=True)}
    with atomic_path(path) as temporary, disk_errors(path):
        save_file(dict(tensors), str(temporary), metadata=metadata)
        check_unchanged(path, known)
        written = FileState.of(temporary.stat())
    return written


def check_unchanged(path: str | Path, known: FileState | None) -> None:
    """Raise :class:`MapChangedError` when ``path`` is another file than ``known``; None = any file is accepted."""
    try:
        now = FileState.of(os.stat(path))
    except FileNotFoundError:
        return
    if known is not None and now != known:
        raise MapChangedError(
            f"{path} was written by another program since it was read or saved here: load it again, "
            "or save under another name"
        )


def _tensor_checksum(tensor: torch.Tensor) -> int:
    """CRC-32 over type, shape and values."""
    values = tensor.detach().cpu().contiguous()
    start = zlib.crc32(f"{values.dtype} {tuple(values.shape)}".encode())
    return zlib.crc32(values.reshape(-1).view(torch.uint8).numpy().data, start) if values.numel() else start


def _header_checksum(header: Mapping[str, Any]) -> int:
    described = {name: value for name, value in header.items() if name != "checksum"}
    return zlib.crc32(json.dumps(described, sort_keys=True).encode())


def read_map(path: str | Path) -> SavedMap:
    """Read a map file.

    Raises ``MapFileError`` when the file is damaged, cut short, no map, or of another version; ``OSError`` when it
    cannot be opened.
    """
    try:
        tensors, metadata, state = read_tensors(path)
    except TensorFileError as error:
        raise MapFileError(f"no map: {error}") from error
    header = _parse_header(path, metadata)
    if header["version"] != _WITHOUT_CHECKSUMS:
        sums = header.get("checksums")
        if not isinstance(sums, dict) or set(sums) != set(tensors):
            raise MapFileError(f"{path} is damaged: it has other tensors than its header says")
        for name, tensor in tensors.items():
            if sums[name] != _tensor_checksum(tensor):
                raise MapFileError(f"{path} is damaged: {name} does not agree with its checksum")
    return SavedMap(Path(path), tensors, header, state)


def read_header(path: str | Path) -> dict[str, Any]:
    """Read the header only. Raises as :func:`read_map`."""
    try:
        return _parse_header(path, read_metadata(path))
    except TensorFileError as error:
        raise MapFileError(f"no map: {error}") from error


def read_extra(path: str | Path) -> dict[str, str]:
    """Read the further text entries only. Raises as :func:`read_map`."""
    return _extra(path, read_header(path))


def _extra(path: str | Path, header: dict[str, Any]) -> dict[str, str]:
    extra = header.get("extra", {})
    if not isinstance(extra, dict) or not all(isinstance(v, str) for v in extra.values()):
        raise MapFileError(f"{path}: its extra entries must be text, got {extra!r:.200}")
    return extra


def _parse_header(path: str | Path, metadata: dict[str, str]) -> dict[str, Any]:
    if FORMAT not in metadata:
        raise MapFileError(f"{path} is no map: it has no {FORMAT!r} in its header, only {sorted(metadata)}")
    try:
        header = parse_json(metadata[FORMAT])
    except ValueError as error:
        raise MapFileError(f"{path} has no readable header: {error}") from error
    if not isinstance(header, dict):
        raise MapFileError(f"{path}: the header must be a mapping, got {type(header).__name__}")
    version = header.get("version")
    if type(version) is not int or version not in (_WITHOUT_CHECKSUMS, VERSION):
        raise MapFileError(f"{path} is of map version {version!r:.20}, this program reads version 1 to {VERSION}")
    # compare the text too: equal values have several spellings
    if version != _WITHOUT_CHECKSUMS and (
        header.get("checksum") != _header_checksum(header) or metadata[FORMAT] != json.dumps(header, sort_keys=True)
    ):
        raise MapFileError(f"{path} is damaged: its header does not agree with its checksum")
    return header


def take_array(
    path: str | Path, tensors: dict[str, torch.Tensor], name: str, dtype: torch.dtype, shape: tuple[int | None, ...]
) -> NDArray[Any]:
    """Tensor of a map file as an array; raises ``MapFileError`` when it is missing or of another type or shape."""
    if name not in tensors:
        raise MapFileError(f"{path}: tensor {name!r} is missing")
    tensor = tensors[name]
    fits = len(tensor.shape) == len(shape) and all(
        w is None or n == w for n, w in zip(tensor.shape, shape, strict=True)
    )
    if tensor.dtype != dtype or not fits:
        raise MapFileError(f"{path}: {name} must be {dtype} {shape}, got {tensor.dtype} {tuple(tensor.shape)}")
    array: NDArray[Any] = tensor.numpy()
    return array


def pack_keyframes(keyframes: list[Keyframe]) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """Keyframes as tensors ``keyframes.<i>.{depth_m,color,T_world_camera}`` and header entries."""
    tensors: dict[str, torch.Tensor] = {}
    entries: list[dict[str, Any]] = []
    for i, k in enumerate(keyframes):
        tensors[f"keyframes.{i}.depth_m"] = torch.from_numpy(k.frame.depth_m)
        tensors[f"keyframes.{i}.color"] = torch.from_numpy(k.frame.color)
        tensors[f"keyframes.{i}.T_world_camera"] = torch.from_numpy(k.T_world_camera)
        c = k.frame.intrinsics
        numbers = [c.fx, c.fy, c.cx, c.cy, c.width, c.height]
        entries.append({"id": k.id, "stamp_ns": k.frame.stamp_ns, "camera": k.frame.camera, "intrinsics": numbers})
    return tensors, entries


def _intrinsics(values: Any) -> Intrinsics:
    numbers = plain_values.sequence(values, "intrinsics")
    if len(numbers) != 6:
        raise ValueError(f"intrinsics must be fx, fy, cx, cy, width and height, got {numbers!r:.100}")
    fx, fy, cx, cy = (plain_values.number(value, "of the intrinsics, each") for value in numbers[:4])
    width, height = (plain_values.whole(value, "of the intrinsics, each size", 1, 2**16) for value in numbers[4:])
    return Intrinsics(fx, fy, cx, cy, width, height)


def unpack_keyframes(saved: SavedMap, reach_m: float) -> list[Keyframe]:
    """Inverse of :func:`pack_keyframes`; raises ``MapFileError`` naming the damaged keyframe.

    ``reach_m``: largest coordinate of a voxel along an axis.
    """
    path, keyframes = saved.path, list[Keyframe]()
    try:
        for i, entry in enumerate(plain_values.sequence(saved.header.get("keyframes"), "keyframes")):
            mapped = plain_values.mapping(entry, "a keyframe")
            intrinsics = _intrinsics(mapped["intrinsics"])
            height, width = intrinsics.height, intrinsics.width
            frame = RgbdFrame(
                stamp_ns=plain_values.stamp_ns(mapped["stamp_ns"], "stamp_ns"),
                camera=plain_values.text(plain_values.clean_texts(mapped["camera"], MAX_TEXT, []), "camera"),
                color=take_array(path, saved.tensors, f"keyframes.{i}.color", torch.uint8, (height, width, 3)),
                depth_m=take_array(path, saved.tensors, f"keyframes.{i}.depth_m", torch.float32, (height, width)),
                intrinsics=intrinsics,
            )
            T = take_array(path, saved.tensors, f"keyframes.{i}.T_world_camera", torch.float64, (4, 4))
            T = check_transform(T, "T_world_camera")
            if np.abs(T[:3, 3]).max() > reach_m:
                raise ValueError(f"the camera at {T[:3, 3].tolist()} m lies further than {reach_m:.0f} m away")
            number = plain_values.whole(mapped["id"], "id", keyframes[-1].id + 1 if keyframes else 0, 2**53)
            keyframes.append(Keyframe(number, frame, T))
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, MapFileError):
            raise
        raise MapFileError(f"{path}: keyframe {len(keyframes)} is damaged: {error}") from error
    return keyframes


def saved_configs(saved: SavedMap) -> tuple[VolumeConfig, KeyframeConfig]:
    """Configurations of a saved volume; raises ``MapFileError``, also when this machine lacks the memory for it."""
    path, config = saved.path, _config_of(saved, VolumeConfig, "volume")
    reserved, memory = config.max_blocks * _BLOCK_BYTES, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if reserved > memory:
        raise MapFileError(
            f"{path}: max_blocks={config.max_blocks} takes {reserved / 2**30:.0f} GiB, "
            f"and this machine has {memory / 2**30:.0f} GiB"
        )
    return config, _config_of(saved, KeyframeConfig, "keyframe_config")


def _config_of(saved: SavedMap, kind: type[ConfigT], name: str) -> ConfigT:
    try:
        return config_from_dict(kind, saved.header.get(name), name)
    except (ConfigError, OverflowError) as error:
        raise MapFileError(f"{saved.path}: {error}") from error


def unpack_voxels(path: str | Path, tensors: dict[str, torch.Tensor]) -> VoxelRows:
    """Voxels of a map file; raises ``MapFileError`` for values that no volume writes."""
    keys = take_array(path, tensors, "voxels.keys", torch.int64, (None,))
    records = take_array(path, tensors, "voxels.records", torch.int32, (len(keys), RECORD))
    last_seen = take_array(path, tensors, "voxels.last_seen_ns", torch.int64, (len(keys),))
    if len(keys) and (int(keys.min()) < 0 or not bool((np.diff(keys) > 0).all())):
        raise MapFileError(f"{path}: voxels.keys must be positive and strictly increasing")
    check_voxel_values(path, records, last_seen)
    coords = unpack_keys(torch.from_numpy(keys)).int()
    return VoxelRows(coords, torch.from_numpy(records), torch.from_numpy(last_seen))


def check_voxel_values(path: str | Path, records: NDArray[np.int32], last_seen: NDArray[np.int64]) -> None:
    """Raise ``MapFileError`` for records (N, 8) and times (N,) that no volume writes."""
    if len(records) == 0:
        return
    if not 0 <= int(last_seen.min()) <= int(last_seen.max()) <= plain_values.MAX_STAMP_NS:
        wrong = int(last_seen.min()) if int(last_seen.min()) < 0 else int(last_seen.max())
        raise MapFileError(f"{path}: voxels.last_seen_ns has {wrong}, no time from 0 to {plain_values.MAX_STAMP_NS} ns")
    if int(records.min()) < 0 or int(records[:, HITS].min()) < 1:
        raise MapFileError(f"{path}: voxels.records must not be negative and must have at least one hit each")
    # mean points lie in their voxel and colours below 256: halved sums may have rounded up
    most = records[:, HITS].astype(np.int64)[:, None] * np.array([OFFSET_UNITS] * 3 + [256] * 3)
    if bool((records[:, OFFSET : COLOR + 3] > most).any()):
        raise MapFileError(f"{path}: voxels.records have sums that no points within the voxels add up to")


@dataclass(frozen=True, eq=False)
class SavedVolume:
    """Content of a volume in a map file; ``keyframes_taken`` includes dropped ones."""

    rows: VoxelRows
    keyframes: list[Keyframe]
    keyframes_taken: int


def unpack_volume(saved: SavedMap, config: VolumeConfig) -> SavedVolume:
    """Content of a saved map, checked against the ``config`` of the volume that loads it.

    Raises :class:`MapFileError` for a file that is damaged, of another voxel size, or larger than the block budget.
    """
    path, header = saved.path, saved.header
    theirs = _config_of(saved, VolumeConfig, "volume")
    if theirs.voxel_size_m != config.voxel_size_m:
        raise MapFileError(f"{path} has voxel_size_m={theirs.voxel_size_m}, this volume has {config.voxel_size_m}")
    rows = unpack_voxels(path, saved.tensors)
    keyframes = unpack_keyframes(saved, config.voxel_size_m * MAX_COORDINATE)
    blocks = len(distinct_keys(split_coords(rows.coords.numpy())[0]))
    if blocks > config.max_blocks:
        raise MapFileError(f"{path} has {blocks} blocks, this volume takes max_blocks={config.max_blocks}")
    try:
        least = keyframes[-1].id + 1 if keyframes else 0
        taken = plain_values.whole(header.get("keyframes_taken"), "keyframes_taken", least, 2**53)
    except ValueError as error:
        raise MapFileError(f"{path}: {error}") from error
    return SavedVolume(rows, keyframes, taken)
