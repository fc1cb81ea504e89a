"""The text files and images of a folder in TUM RGB-D layout, checked; see :mod:`embodied_perceptron.io.tum`."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry import (
    Intrinsics,
    check_transform,
    transform_from_pose,
)
from embodied_perceptron.io.image_codec import (
    ImageDecodeError,
    decode_color_file,
    decode_depth_file,
)
from embodied_perceptron.io.recording import (
    RecordingError,
)
from embodied_perceptron.trajectory import NS_PER_S

REQUIRED_KEYS = ("width", "height", "fx", "fy", "cx", "cy", "depth_scale")
OPTIONAL_KEYS = ("depth_invalid", "camera", "camera_frame", "world_frame", "base_frame", "T_base_camera")
CAMERA_LIST = "cameras.json"
_STAMP = re.compile(r"(\d+)(?:\.(\d{1,18}))?")

ImageT = TypeVar("ImageT", bound=np.generic)


def is_tum_folder(path: str | Path) -> bool:
    """Whether ``path`` looks like such a folder, of one camera or of several."""
    path = Path(path)
    return (path / "rgb.txt").exists() or (path / CAMERA_LIST).exists()


def camera_folders(path: Path) -> list[Path]:
    names = read_json(path / CAMERA_LIST)
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise RecordingError(f"{path / CAMERA_LIST} must hold a list of folder names, got {names!r:.100}")
    return [path / name for name in names]


def read_json(path: Path) -> Any:
    """Raises :class:`RecordingError` naming the file; ``FileNotFoundError`` when it is not there."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise RecordingError(f"{path}: {error}") from error


def parse_stamp(text: str) -> int:
    """Decimal seconds -> exact nanoseconds (digits beyond are cut). Raises ``ValueError`` naming the text."""
    match = _STAMP.fullmatch(text)
    if match is None:
        raise ValueError(f"timestamp must be decimal seconds, got {text!r}")
    seconds, fraction = match.groups()
    return int(seconds) * NS_PER_S + int((fraction or "").ljust(9, "0")[:9])


def associate(a_ns: Sequence[int], b_ns: Sequence[int], tolerance_ns: int) -> list[tuple[int, int]]:
    """Pairs of indices (i, j) of sorted stamps within the tolerance, nearest first, each index at most once; sorted."""
    candidates = []
    for i, a in enumerate(a_ns):
        j = bisect_right(b_ns, a - tolerance_ns - 1)
        while j < len(b_ns) and b_ns[j] <= a + tolerance_ns:
            candidates.append((abs(b_ns[j] - a), i, j))
            j += 1
    pairs: dict[int, int] = {}
    taken: set[int] = set()
    for _, i, j in sorted(candidates):
        if i not in pairs and j not in taken:
            pairs[i] = j
            taken.add(j)
    return sorted(pairs.items())


@dataclass(frozen=True)
class TumCamera:
    """One camera's folder: the contents of its text files, checked; images are read when they are asked for.

    Attributes:
        folder: where it lies.
        name: of the camera.
        optical_frame: frame id of its optical frame.
        intrinsics: of both images.
        depth_scale: raw units per metre.
        depth_invalid: raw values that mean "unknown".
        color_files, depth_files: (stamp_ns, path), sorted by stamp.
        poses: (stamp_ns, ``T_world_camera``), sorted by stamp.
        world_frame, base_frame, T_base_camera: see the module; the last two are None without a base.
    """

    folder: Path
    name: str
    optical_frame: str
    intrinsics: Intrinsics
    depth_scale: float
    depth_invalid: tuple[int, ...]
    color_files: tuple[tuple[int, Path], ...]
    depth_files: tuple[tuple[int, Path], ...]
    poses: tuple[tuple[int, NDArray[np.float64]], ...]
    world_frame: str | None
    base_frame: str | None
    T_base_camera: NDArray[np.float64] | None

    def read_color(self, path: Path) -> NDArray[np.uint8]:
        """(H, W, 3) uint8 RGB. Raises :class:`RecordingError` naming the file."""
        return _read_image(path, decode_color_file)

    def read_depth_raw(self, path: Path) -> NDArray[np.uint16]:
        """(H, W) uint16 as stored. Raises :class:`RecordingError` naming the file."""
        return _read_image(path, decode_depth_file)

    def read_depth(self, path: Path) -> NDArray[np.float32]:
        """(H, W) float32 canonical metres. Raises :class:`RecordingError` naming the file."""
        raw = self.read_depth_raw(path)
        metres: NDArray[np.float32] = raw.astype(np.float32) / np.float32(self.depth_scale)
        for value in self.depth_invalid:
            metres[raw == value] = 0.0
        return metres


def _read_image(path: Path, decode: Callable[[bytes], NDArray[ImageT]]) -> NDArray[ImageT]:
    try:
        return decode(path.read_bytes())
    except OSError as error:
        raise RecordingError(f"cannot read {path}: {error.strerror}") from error
    except ImageDecodeError as error:
        raise RecordingError(f"{path}: {error}") from error


def read_tum_camera(folder: str | Path, name: str | None = None) -> TumCamera:
    """Read and check the text files of one camera's folder; ``name`` where camera.json gives none (default "camera").

    Raises:
        RecordingError: a file is missing or malformed; names the file and the line or key.
    """
    folder = Path(folder)
    spec = _read_camera_json(folder / "camera.json")
    try:
        intrinsics = Intrinsics(*(spec[key] for key in ("fx", "fy", "cx", "cy", "width", "height")))
        mount = spec.get("T_base_camera")
        T_base_camera = None if mount is None else check_transform(np.asarray(mount), "T_base_camera")
    except (ValueError, TypeError) as error:
        raise RecordingError(f"{folder / 'camera.json'}: {error}") from error
    name = spec.get("camera") or name or "camera"
    return TumCamera(
        folder=folder,
        name=name,
        optical_frame=spec.get("camera_frame") or f"{name}_optical_frame",
        intrinsics=intrinsics,
        depth_scale=float(spec["depth_scale"]),
        depth_invalid=tuple(spec.get("depth_invalid", (0,))),
        color_files=_read_list(folder / "rgb.txt"),
        depth_files=_read_list(folder / "depth.txt"),
        poses=_read_poses(folder / "groundtruth.txt"),
        world_frame=spec.get("world_frame"),
        base_frame=spec.get("base_frame"),
        T_base_camera=T_base_camera,
    )


def _read_camera_json(path: Path) -> dict[str, Any]:
    try:
        spec = read_json(path)
    except FileNotFoundError as error:
        raise RecordingError(
            f"{path} is missing: write the intrinsics there, e.g. "
            '{"width": 640, "height": 480, "fx": 525.0, "fy": 525.0, "cx": 319.5, "cy": 239.5, "depth_scale": 5000.0}'
        ) from error
    if not isinstance(spec, dict):
        raise RecordingError(f"{path} must hold an object, got {type(spec).__name__}")
    for key in REQUIRED_KEYS:
        if key not in spec:
            raise RecordingError(f"{path}: key {key!r} is missing")
        if not isinstance(spec[key], (int, float)) or isinstance(spec[key], bool):
            raise RecordingError(f"{path}: {key} must be a number, got {spec[key]!r}")
    unknown = sorted(set(spec) - set(REQUIRED_KEYS) - set(OPTIONAL_KEYS))
    if unknown:
        raise RecordingError(
            f"{path}: unknown key(s) {', '.join(unknown)}; known: {', '.join(REQUIRED_KEYS + OPTIONAL_KEYS)}"
        )
    if not spec["depth_scale"] > 0:
        raise RecordingError(f"{path}: depth_scale must be positive, got {spec['depth_scale']}")
    if (spec.get("base_frame") is None) != (spec.get("T_base_camera") is None):
        raise RecordingError(f"{path}: base_frame and T_base_camera belong together")
    return spec


def _read_lines(path: Path, columns: int) -> Iterator[tuple[int, int, list[str]]]:
    """(line number, stamp_ns, the other columns)."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise RecordingError(f"{path} is missing") from error
    except (OSError, UnicodeDecodeError) as error:
        raise RecordingError(f"{path}: {error}") from error
    for number, line in enumerate(text.splitlines(), start=1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        if len(fields) != columns:
            raise RecordingError(f"{path}:{number}: expected {columns} columns, got {len(fields)}: {line!r}")
        try:
            yield number, parse_stamp(fields[0]), fields[1:]
        except ValueError as error:
            raise RecordingError(f"{path}:{number}: {error}") from error


def _read_list(path: Path) -> tuple[tuple[int, Path], ...]:
    files = [(stamp, path.parent / fields[0]) for _, stamp, fields in _read_lines(path, 2)]
    if not files:
        raise RecordingError(f"{path} lists no images")
    return tuple(sorted(files, key=lambda entry: entry[0]))


def _read_poses(path: Path) -> tuple[tuple[int, NDArray[np.float64]], ...]:
    poses = []
    for number, stamp, fields in _read_lines(path, 8):
        try:
            values = np.array([float(field) for field in fields])
            poses.append((stamp, transform_from_pose(values[:3], values[3:])))
        except ValueError as error:
            raise RecordingError(f"{path}:{number}: {error}") from error
    if not poses:
        raise RecordingError(f"{path} holds no poses")
    return tuple(sorted(poses, key=lambda entry: entry[0]))
