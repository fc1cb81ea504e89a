"""Map files: safetensors, versioned, written atomically.

A file holds the occupied voxels sorted by key (``voxels.*``), the keyframes (``keyframes.<i>.*``) and, as JSON in the
header, the format version and everything that is not an array.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from embodied_perceptron.config import ConfigError, KeyframeConfig, VolumeConfig, config_from_dict
from embodied_perceptron.geometry.transforms import Intrinsics, check_transform, distinct_keys, unpack_keys
from embodied_perceptron.mapping.blocks import split_coords
from embodied_perceptron.mapping.keyframes import Keyframe
from embodied_perceptron.mapping.voxels import COLOR, HITS, OFFSET, OFFSET_UNITS, RECORD, VoxelRows
from embodied_perceptron.recordings.files import atomic_path
from embodied_perceptron.recordings.tensor_files import TensorFileError, disk_errors, open_tensors
from embodied_perceptron.sensors.frame import RgbdFrame

FORMAT = "embodied_perceptron.map"
VERSION = 1


class MapFileError(ValueError):
    """A map file that cannot be used; the message names the file and the reason."""


def write_map(path: str | Path, tensors: dict[str, torch.Tensor], header: dict[str, Any]) -> None:
    """Write a map so that ``path`` holds either the old file or the whole new one, whatever happens meanwhile.

    Raises ``OSError`` when the folder is missing or cannot be written.
    """
    # one entry only: safetensors writes several in random order, and equal maps shall be equal files
    metadata = {FORMAT: json.dumps({"version": VERSION, **header}, sort_keys=True)}
    with atomic_path(path) as temporary, disk_errors(path):
        save_file(tensors, str(temporary), metadata=metadata)


def read_map(path: str | Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Read a map file whole.

    Returns its tensors and header. Raises ``MapFileError`` when the file is cut short, is no map, or is of another
    version; ``OSError`` when it cannot be opened.
    """
    with _opened(path) as file:
        header = _parse_header(path, file.metadata() or {})
        return {name: file.get_tensor(name) for name in file.keys()}, header  # noqa: SIM118 (not a mapping)


def read_some(path: str | Path, prefix: str) -> dict[str, torch.Tensor]:
    """The tensors whose name begins with ``prefix``, without reading the others. Raises as :func:`read_map`."""
    with _opened(path) as file:
        _parse_header(path, file.metadata() or {})
        return {name: file.get_tensor(name) for name in file.keys() if name.startswith(prefix)}  # noqa: SIM118


def read_header(path: str | Path) -> dict[str, Any]:
    """The header alone. Raises as :func:`read_map`."""
    with _opened(path) as file:
        return _parse_header(path, file.metadata() or {})


def read_extra(path: str | Path) -> dict[str, str]:
    """What was saved beside the map, without reading the map. Raises as :func:`read_map`."""
    extra = read_header(path).get("extra", {})
    if not isinstance(extra, dict) or not all(isinstance(v, str) for v in extra.values()):
        raise MapFileError(f"{path}: its extra entries must be text, got {extra!r:.200}")
    return extra


@contextlib.contextmanager
def _opened(path: str | Path) -> Iterator[Any]:
    try:
        with open_tensors(path) as file:
            yield file
    except TensorFileError as error:
        raise MapFileError(f"no map: {error}") from error


def _parse_header(path: str | Path, metadata: dict[str, str]) -> dict[str, Any]:
    if FORMAT not in metadata:
        raise MapFileError(f"{path} is no map: it has no {FORMAT!r} in its header, only {sorted(metadata)}")
    try:
        header = json.loads(metadata[FORMAT])
    except json.JSONDecodeError as error:
        raise MapFileError(f"{path} has no readable header: {error}") from error
    if not isinstance(header, dict):
        raise MapFileError(f"{path}: the header must be a mapping, got {type(header).__name__}")
    if header.get("version") != VERSION:
        raise MapFileError(f"{path} is of map version {header.get('version')}, this program reads version {VERSION}")
    return header


def take_array(
    path: str | Path, tensors: dict[str, torch.Tensor], name: str, dtype: torch.dtype, shape: tuple[int | None, ...]
) -> NDArray[Any]:
    """A tensor of a map file as an array; raises ``MapFileError`` when it is missing or of another type or shape."""
    if name not in tensors:
        raise MapFileError(f"{path}: tensor {name!r} is missing")
    tensor = tensors[name]
    fits = len(tensor.shape) == len(shape) and all(
        w is None or n == w for n, w in zip(tensor.shape, shape, strict=True)
    )
    if tensor.dtype != dtype or not fits:
        raise MapFileError(f"{path}: {name} must be {dtype} {shape}, got {tensor.dtype} {tuple(tensor.shape)}")
    # a copy: tensors of an open file may be mapped memory, which would fault if somebody cut the file short later
    array: NDArray[Any] = tensor.numpy().copy()
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
        entries.append(
            {
                "id": k.id,
                "stamp_ns": k.frame.stamp_ns,
                "camera": k.frame.camera,
                "intrinsics": [c.fx, c.fy, c.cx, c.cy, c.width, c.height],
            }
        )
    return tensors, entries


def unpack_keyframes(path: str | Path, tensors: dict[str, torch.Tensor], entries: Any) -> list[Keyframe]:
    """Inverse of :func:`pack_keyframes`; raises ``MapFileError`` naming the keyframe that does not fit."""
    keyframes = []
    try:
        for i, entry in enumerate(entries):
            fx, fy, cx, cy, width, height = entry["intrinsics"]
            frame = RgbdFrame(
                stamp_ns=entry["stamp_ns"],
                camera=entry["camera"],
                color=take_array(path, tensors, f"keyframes.{i}.color", torch.uint8, (height, width, 3)),
                depth_m=take_array(path, tensors, f"keyframes.{i}.depth_m", torch.float32, (height, width)),
                intrinsics=Intrinsics(fx, fy, cx, cy, width, height),
            )
            T = take_array(path, tensors, f"keyframes.{i}.T_world_camera", torch.float64, (4, 4))
            keyframes.append(Keyframe(entry["id"], frame, check_transform(T, "T_world_camera")))
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, MapFileError):
            raise
        raise MapFileError(f"{path}: keyframe {len(keyframes)} is damaged: {error!r}") from error
    return keyframes


def saved_config(path: str | Path, header: dict[str, Any]) -> VolumeConfig:
    """The configuration in a map file's header; raises ``MapFileError``."""
    try:
        return config_from_dict(VolumeConfig, header.get("volume"), "volume")
    except ConfigError as error:
        raise MapFileError(f"{path}: {error}") from error


def unpack_voxels(path: str | Path, tensors: dict[str, torch.Tensor]) -> VoxelRows:
    """The voxels of a map file; raises ``MapFileError`` for what no volume writes."""
    keys = take_array(path, tensors, "voxels.keys", torch.int64, (None,))
    records = take_array(path, tensors, "voxels.records", torch.int32, (len(keys), RECORD))
    last_seen = take_array(path, tensors, "voxels.last_seen_ns", torch.int64, (len(keys),))
    if len(keys) and (int(keys.min()) < 0 or not bool((np.diff(keys) > 0).all())):
        raise MapFileError(f"{path}: voxels.keys must be positive and strictly increasing")
    if len(keys) and (int(records.min()) < 0 or int(records[:, HITS].min()) < 1):
        raise MapFileError(f"{path}: voxels.records must not be negative and must have at least one hit each")
    if len(keys):  # where a voxel's mean lies, and its colour: halving the sums of many hits may round up a little
        most = records[:, HITS].astype(np.int64)[:, None] * np.array([OFFSET_UNITS] * 3 + [256] * 3)
        if bool((records[:, OFFSET : COLOR + 3] > most).any()):
            raise MapFileError(f"{path}: voxels.records have sums that no points within the voxels add up to")
    coords = unpack_keys(torch.from_numpy(keys)).int()
    return VoxelRows(coords, torch.from_numpy(records), torch.from_numpy(last_seen))


def saved_keyframe_config(path: str | Path, header: dict[str, Any]) -> KeyframeConfig:
    """Which keyframes the saved volume kept. Raises :class:`MapFileError`."""
    try:
        return config_from_dict(KeyframeConfig, header.get("keyframe_config"), "keyframe_config")
    except ConfigError as error:
        raise MapFileError(f"{path}: {error}") from error


@dataclass(frozen=True, eq=False)
class SavedVolume:
    """What a map file holds of a volume: its voxels, its keyframes, and how many it had taken."""

    rows: VoxelRows
    keyframes: list[Keyframe]
    keyframes_taken: int


def read_volume(path: str | Path, config: VolumeConfig) -> SavedVolume:
    """A saved map for a volume of ``config``.

    Raises :class:`MapFileError` for a file that is damaged, of another version or voxel size, or larger than the block
    budget, and ``OSError`` when it cannot be opened.
    """
    tensors, header = read_map(path)
    saved = saved_config(path, header)
    if saved.voxel_size_m != config.voxel_size_m:
        raise MapFileError(f"{path} has voxel_size_m={saved.voxel_size_m}, this volume has {config.voxel_size_m}")
    rows = unpack_voxels(path, tensors)
    keyframes = unpack_keyframes(path, tensors, header.get("keyframes"))
    blocks = len(distinct_keys(split_coords(rows.coords.numpy())[0]))
    if blocks > config.max_blocks:
        raise MapFileError(f"{path} has {blocks} blocks, this volume takes max_blocks={config.max_blocks}")
    taken = header.get("keyframes_taken")
    if not isinstance(taken, int) or taken < len(keyframes):
        raise MapFileError(f"{path}: keyframes_taken must be at least {len(keyframes)}, got {taken!r}")
    return SavedVolume(rows, keyframes, taken)
