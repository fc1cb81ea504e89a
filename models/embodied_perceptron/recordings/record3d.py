"""What Record3D writes: an .r3d file, the same unpacked, or its export of EXR and colour images.

    NAME.r3d (a ZIP)   metadata  rgbd/0.jpg  rgbd/0.depth  rgbd/0.conf
    EXR + RGB export   metadata.json  rgb/0.jpg (or .png)  depth/0.exr

Depth is float32 metres; in .r3d it is compressed by LZFSE, which the extra record3d reads, and where it is plain or
of zlib nothing is needed. The metadata is JSON: size (w, h; dw, dh of depth), the intrinsics column by column (K) and
of each frame (perFrameIntrinsicCoeffs), poses (qx qy qz qw x y z, in ARKit's axes), frameTimestamps or fps.
"""

from __future__ import annotations

import importlib
import json
import os
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import Intrinsics, transform_from_pose
from embodied_perceptron.recordings.conventions import convert_pose
from embodied_perceptron.recordings.files import MAX_IMAGE_BYTES, read_file
from embodied_perceptron.recordings.image_codec import MAX_PIXELS, decode_color_file
from embodied_perceptron.recordings.recording import LeftOut, RecordingError
from embodied_perceptron.sensors.poses import NS_PER_S

_LEAST_CONFIDENCE = 1  # of ARKit's 0, 1, 2
_MAX_METADATA_BYTES = 2**28


@dataclass(frozen=True)
class Record3dFrame:
    """One frame: when, where (None = lost), how to read it, and the camera of its colour image."""

    stamp_ns: int
    T_world_camera: NDArray[np.float64] | None
    color: Callable[[], NDArray[np.uint8]]
    depth: Callable[[], NDArray[np.float32]]
    color_camera: Intrinsics


class _Files:
    """Files of a folder or a ZIP by their names. Raises :class:`RecordingError` naming what cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._zip: zipfile.ZipFile | None = None
        if path.is_file():
            try:
                self._zip = zipfile.ZipFile(path)
            except (zipfile.BadZipFile, OSError) as error:
                raise RecordingError(f"{path} is no .r3d file, or was cut short: {error}") from error

    def names(self) -> list[str]:
        """All of them."""
        if self._zip is not None:
            return self._zip.namelist()
        return [p.relative_to(self._path).as_posix() for p in self._path.rglob("*") if p.is_file()]

    def read(self, name: str, max_bytes: int = MAX_IMAGE_BYTES) -> bytes:
        """The bytes of one, at most ``max_bytes``."""
        try:
            if self._zip is None:
                return read_file(self._path / name, max_bytes)
            if self._zip.getinfo(name).file_size > max_bytes:
                raise RecordingError(f"{self._path}: {name} has more than {max_bytes} bytes")
            with self._zip.open(name) as file:  # what the directory says is not to be trusted
                return file.read(max_bytes + 1)[:max_bytes]
        except KeyError as error:
            raise RecordingError(f"{self._path}: {name} is missing") from error
        except (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError) as error:
            raise RecordingError(f"cannot read {name} of {self._path}: {error}") from error

    def where(self, name: str) -> str:
        """One's name for people."""
        return f"{self._path}: {name}"


def record3d_frames(path: Path, left_out: LeftOut) -> list[Record3dFrame]:
    """Frames of an .r3d file or of an exported folder. Raises :class:`RecordingError` naming the file or the key."""
    files = _Files(path)
    names = set(files.names())
    metadata = "metadata" if "metadata" in names else "metadata.json"
    try:
        said = json.loads(files.read(metadata, _MAX_METADATA_BYTES))
        size = int(said["w"]), int(said["h"])
        shape = (int(said["dh"]), int(said["dw"])) if "dw" in said and "dh" in said else None
        K, own = [float(v) for v in said["K"]], said.get("perFrameIntrinsicCoeffs") or []
        poses, times_s = said["poses"], said.get("frameTimestamps") or []
        fps = float(said.get("fps", 30.0))
        if len(K) != 9 or not fps > 0 or not all(isinstance(each, list) for each in (poses, own, times_s)):
            raise ValueError(f"K must have 9 numbers and fps be positive, got {len(K)} and {fps}")
        if shape is not None and not 0 < shape[0] * shape[1] <= MAX_PIXELS:
            raise ValueError(f"depth of {shape[1]}x{shape[0]} pixels")
    except RecordingError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RecordingError(f"{files.where(metadata)}: {error!r:.200}") from error
    frames = []
    first_s = 1.0 if not times_s or not isinstance(times_s[0], (int, float)) or times_s[0] < 1.0 else 0.0
    for number, pose in enumerate(poses):
        color = next(
            (n for n in (f"{f}/{number}.{e}" for f in ("rgbd", "rgb") for e in ("jpg", "png")) if n in names), ""
        )
        depth = f"rgbd/{number}.depth" if color.startswith("rgbd") else f"depth/{number}.exr"
        if not color:
            left_out.add(str(path), f"{path}: frame {number} has no colour image")
            continue
        try:
            fx, fy, cx, cy = own[number] if number < len(own) else (K[0], K[4], K[6], K[7])
            camera = Intrinsics(float(fx), float(fy), float(cx), float(cy), *size)
            stamp_s = float(times_s[number]) if number < len(times_s) else number / fps
            stamp_ns = round((first_s + stamp_s) * NS_PER_S)
        except (ValueError, TypeError, OverflowError) as error:
            raise RecordingError(f"{files.where(metadata)}: frame {number}: {error!r:.200}") from error
        frames.append(
            Record3dFrame(
                stamp_ns,
                _pose(pose, files.where(metadata), number, left_out),
                lambda color=color: _decoded(files, color, decode_color_file),  # type: ignore[misc]
                lambda depth=depth, n=number: _depth(files, depth, f"rgbd/{n}.conf", shape, size, names),  # type: ignore[misc]
                camera,
            )
        )
    return frames


def _pose(values: Any, where: str, number: int, left_out: LeftOut) -> NDArray[np.float64] | None:
    try:
        pose = np.array([float(v) for v in values])
        if pose.shape != (7,):
            raise ValueError(f"a pose has 7 numbers, got {pose.size}")
        return convert_pose(transform_from_pose(pose[4:], pose[:4]), ("opengl", "yup"))
    except (ValueError, TypeError) as error:
        left_out.add(where, f"{where}: pose {number}: {error}")
        return None


def _decoded(files: _Files, name: str, decode: Callable[[bytes], Any]) -> Any:
    try:
        return decode(files.read(name))
    except RecordingError:
        raise
    except ValueError as error:
        raise RecordingError(f"{files.where(name)}: {error}") from error


def _depth(
    files: _Files,
    name: str,
    confidence: str,
    shape: tuple[int, int] | None,
    color_size: tuple[int, int],
    names: set[str],
) -> NDArray[np.float32]:
    """(h, w) float32 metres, 0 = unknown or uncertain."""
    if name.endswith(".exr"):
        depth = _decoded(files, name, _exr)
    else:
        data = _decoded(files, name, lambda packed: _unpacked(packed, shape, 4))
        depth = np.frombuffer(data[: len(data) // 4 * 4], "<f4").astype(np.float32)
        depth = depth.reshape(_shape(depth.size, shape, color_size, files.where(name)))
    if confidence in names and not name.endswith(".exr"):
        certain = np.frombuffer(_decoded(files, confidence, lambda packed: _unpacked(packed, depth.shape, 1)), np.uint8)
        if certain.size != depth.size:
            raise RecordingError(f"{files.where(confidence)} has {certain.size} pixels, its depth {depth.size}")
        depth[certain.reshape(depth.shape) < _LEAST_CONFIDENCE] = 0.0
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(depth > 0, depth, np.float32(0.0)), np.float32)


def _shape(pixels: int, shape: tuple[int, int] | None, color_size: tuple[int, int], where: str) -> tuple[int, int]:
    """(h, w) as the metadata has it, otherwise of the proportions of colour."""
    if shape is None:
        height = round((pixels * color_size[1] / color_size[0]) ** 0.5)
        shape = height, pixels // max(height, 1)
    if not pixels or shape[0] * shape[1] != pixels:
        raise RecordingError(f"{where}: depth has {pixels} pixels, which are no image of {shape[1]}x{shape[0]}")
    return shape


def _unpacked(data: bytes, shape: tuple[int, int] | None, pixel_bytes: int) -> bytes:
    """Plain, or of LZFSE or zlib, by its first bytes. Raises ``ValueError``."""
    expected = MAX_IMAGE_BYTES if shape is None else shape[0] * shape[1] * pixel_bytes
    if len(data) > 2 * expected:  # no image of its size; not to be unpacked
        raise ValueError(f"{len(data)} bytes are more than {expected} can be packed into")
    if shape is not None and len(data) == expected:
        return data
    if data[:3] == b"bvx":
        return _lzfse(data)
    if data[:1] == b"\x78":
        try:
            return zlib.decompressobj().decompress(data, expected)
        except zlib.error as error:
            raise ValueError(f"damaged ({error})") from error
    return data


def _lzfse(data: bytes) -> bytes:
    try:
        liblzfse: Any = importlib.import_module("liblzfse")
    except ImportError as error:
        raise RecordingError(
            "depth of .r3d files is compressed by LZFSE",
            "pip install 'embodied-perceptron[record3d]', or export EXR and RGB from the app",
        ) from error
    try:
        return bytes(liblzfse.decompress(data))
    except Exception as error:  # of its own kind, or MemoryError for anything damaged
        raise ValueError(f"damaged LZFSE data of {len(data)} bytes") from error


def _exr(data: bytes) -> NDArray[np.float32]:
    if data[:4] != b"v/1\x01":
        raise ValueError("is no EXR image, or was cut short")
    os.environ.setdefault("OPENCV_IO_ENABLE_OPENEXR", "1")  # off unless asked for; read when the first is decoded
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error as error:
        raise ValueError(f"this OpenCV reads no EXR images ({error.err})") from error
    if image is None or image.dtype != np.float32:
        raise ValueError("is no EXR image of float32, or was cut short")
    return np.array(image if image.ndim == 2 else image[..., 0])
