"""Folders in TUM RGB-D layout: reader and writer.

    rgb.txt           # timestamp filename            (PNG or JPEG)
    depth.txt         # timestamp filename            (16-bit PNG; may have its own camera in camera.json)
    groundtruth.txt   # timestamp tx ty tz qx qy qz qw: T_world_camera of the optical frame, world z up
    camera.json       width height fx fy cx cy depth_scale (raw units per metre), and optionally depth_invalid (raw
                      values), camera (name), camera_frame (optical frame), world_frame, base_frame with T_base_camera
                      (4x4); distortion_model and d (as in sensor_msgs/CameraInfo) for distorted images; depth_camera
                      (width height fx fy cx cy, distortion_model, d) and T_color_depth (4x4) for unregistered depth
    scene.json        optional: ground truth of a simulated scene

Instead of rgb.txt and depth.txt, associations.txt may list pairs: timestamp filename timestamp filename, colour and
depth in either order; file names with "depth" decide which is which.

Several cameras: one such folder per camera in a common folder, whose ``cameras.json`` lists their names. Stamps are
exact decimal seconds; epochs in milli-, micro- or nanoseconds are recognised by their number of digits.
"""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import (
    F64,
    FloatArray,
    Intrinsics,
    check_transform,
    invert_transform,
    rotation_to_quaternion,
    transform_from_pose,
)
from embodied_perceptron.recordings import plain_values as checked
from embodied_perceptron.recordings.files import read_image, read_json, read_object, read_text, write_atomically
from embodied_perceptron.recordings.image_codec import (
    decode_color_file,
    decode_depth_file,
    encode_color_file,
    encode_depth_file,
)
from embodied_perceptron.recordings.recording import (
    CalibrationSample,
    ColorSample,
    DepthSample,
    LeftOut,
    RecordingError,
    Sample,
    TransformSample,
    checked_depth_scale,
)
from embodied_perceptron.sensors.camera_model import CameraModel, UnregisteredDepth, standard_distortion
from embodied_perceptron.sensors.poses import NS_PER_S, format_stamp

_REQUIRED_KEYS = ("width", "height", "fx", "fy", "cx", "cy", "depth_scale")
_OPTIONAL_KEYS = (
    *("depth_invalid", "camera", "camera_frame", "world_frame", "base_frame", "T_base_camera"),
    *("distortion_model", "d", "depth_camera", "T_color_depth"),
)
_LENS_KEYS = ("distortion", "k1", "k2", "k3", "p1", "p2")
_PINHOLE_KEYS = ("fx", "fy", "cx", "cy", "width", "height")
_NO_CAMERA = (
    ': write the intrinsics there, e.g. {"width": 640, "height": 480, "fx": 525.0, "fy": 525.0, "cx": 319.5, '
    '"cy": 239.5, "depth_scale": 5000.0}'
)
_CAMERA_LIST, _ASSOCIATIONS = "cameras.json", "associations.txt"
_STAMP = re.compile(r"(\d+)(?:\.(\d{1,18}))?")
# (smallest number, nanoseconds per unit): an epoch has 10 digits in seconds, 13, 16 and 19 in smaller units
_STAMP_UNITS = ((10**17, 1), (10**14, 10**3), (10**11, 10**6), (0, NS_PER_S))
_MAX_STEP_S = 1000.0  # between images with integer stamps; larger steps are not seconds
_LOOKAHEAD_NS = 5 * NS_PER_S
_MAX_LIST_BYTES = 2**28

ArrayT = TypeVar("ArrayT")


def is_tum_folder(path: str | Path) -> bool:
    """Return True for a folder in this layout, of one or several cameras."""
    path = Path(path)
    return _is_one_camera(path) or (path / _CAMERA_LIST).exists()


def _is_one_camera(path: Path) -> bool:
    return (path / "rgb.txt").exists() or (path / _ASSOCIATIONS).exists()


class TumRecording:
    """A :class:`~embodied_perceptron.recordings.recording.Recording` from a folder of one or several cameras.

    Transforms: world -> base -> optical frames where camera.json has a base (placed by the poses of the first camera),
    otherwise world -> optical frame for each camera.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        world_frame: str = "odom",
        tolerate_damage: bool = False,
        depth_scale: float | None = None,
    ) -> None:
        """Args:

        folder: of one camera, or with one folder per camera.
        world_frame: used when camera.json has none.
        tolerate_damage: images that cannot be decoded become
            :class:`~embodied_perceptron.sensors.synchronizer.BadImage` samples, damaged lines of lists and poses are
            skipped and counted (:attr:`left_out`), instead of raising.
        depth_scale: raw units per metre, instead of that of camera.json.

        Raises :class:`RecordingError` (see :func:`read_tum_camera`).
        """
        self.source = Path(folder)
        self.left_out = LeftOut(tolerates_damage=tolerate_damage)
        single = _is_one_camera(self.source)
        if not is_tum_folder(self.source):
            raise RecordingError(f"{self.source} holds no rgb.txt, and no {_CAMERA_LIST} that lists several cameras")
        folders = [self.source] if single else _camera_folders(self.source)
        cameras = [read_tum_camera(f, None if single else f.name, self.left_out, depth_scale) for f in folders]
        self._cameras = {c.name: c for c in cameras}
        self.cameras = tuple(self._cameras)
        if len(self._cameras) != len(folders):
            raise RecordingError(f"{self.source}: two cameras have the same name")
        first = next(iter(self._cameras.values()))
        self.world_frame = first.world_frame or world_frame
        for camera in self._cameras.values():
            if camera.base_frame != first.base_frame or (camera.world_frame or self.world_frame) != self.world_frame:
                raise RecordingError(
                    f"{camera.folder / 'camera.json'}: base_frame and world_frame must be those of {first.folder}"
                )
        self.truth = self._read_truth()

    def camera_frame(self, camera: str) -> str:
        """Optical frame of a camera. Raises ``KeyError`` for an unknown one."""
        return self.camera(camera).optical_frame

    def camera(self, name: str) -> TumCamera:
        """Folder of a camera. Raises ``KeyError`` for an unknown one."""
        if name not in self._cameras:
            raise KeyError(f"unknown camera {name!r}; known: {', '.join(self._cameras)}")
        return self._cameras[name]

    def depth_scale(self, camera: str) -> float | None:
        """Raw units per metre of a camera's depth images. Raises ``KeyError`` for an unknown one."""
        return self.camera(camera).depth_scale

    def __len__(self) -> int:
        """Colour images over all cameras."""
        return sum(len(camera.color_files) for camera in self._cameras.values())

    def __iter__(self) -> Iterator[Sample]:
        """See :class:`~embodied_perceptron.recordings.recording.Recording`."""
        transforms = self._transforms()
        ahead = next(transforms, None)
        newest = dict.fromkeys(self._moving_frames(), -1)
        for sample in self._images():
            # up to the first pose after this image, for interpolation; not beyond the history of a transform tree, when
            # the poses of one camera end early
            while (
                ahead is not None
                and min(newest.values()) < sample.stamp_ns
                and ahead.stamp_ns <= sample.stamp_ns + _LOOKAHEAD_NS
            ):
                yield ahead
                if not ahead.is_static:
                    newest[ahead.child] = ahead.stamp_ns
                ahead = next(transforms, None)
            yield sample
        if ahead is not None:
            yield ahead
        yield from transforms

    def _moving_frames(self) -> list[str]:
        cameras = list(self._cameras.values())
        base = cameras[0].base_frame
        return [camera.optical_frame for camera in cameras] if base is None else [base]

    def _transforms(self) -> Iterator[TransformSample]:
        cameras = list(self._cameras.values())
        first = cameras[0]
        if first.base_frame is None or first.T_base_camera is None:
            moving = heapq.merge(
                *(((stamp, c.optical_frame, T) for stamp, T in c.poses) for c in cameras), key=lambda entry: entry[0]
            )
            for stamp, frame, T in moving:
                yield TransformSample(stamp, self.world_frame, frame, T)
            return
        for camera in cameras:
            assert camera.T_base_camera is not None
            yield TransformSample(0, first.base_frame, camera.optical_frame, camera.T_base_camera, is_static=True)
        T_camera_base = invert_transform(first.T_base_camera)
        for stamp, T in first.poses:
            yield TransformSample(stamp, self.world_frame, first.base_frame, T @ T_camera_base)

    def _images(self) -> Iterator[Sample]:
        entries = [
            (stamp, order, camera, kind, path)
            for order, camera in enumerate(self._cameras.values())
            for kind, files in (("color", camera.color_files), ("depth", camera.depth_files))
            for stamp, path in files
        ]
        entries.sort(key=lambda entry: (entry[0], entry[1], entry[3]))
        for stamp, _, camera, kind, path in entries:
            if kind == "color":
                yield CalibrationSample(stamp, camera.name, CameraModel(camera.intrinsics))
                yield ColorSample(stamp, camera.name, self.left_out.image(partial(camera.read_color, path)))
            else:
                yield DepthSample(stamp, camera.name, self.left_out.image(partial(camera.read_depth, path)))

    def _read_truth(self) -> Mapping[str, Any] | None:
        path = self.source / "scene.json"
        if not path.exists():
            return None
        return _object(path)


@dataclass(frozen=True)
class TumCamera:
    """The folder of one camera: validated contents of its text files; images are read on demand.

    Attributes:
        folder: path.
        name: name of the camera.
        optical_frame: frame id of its optical frame.
        intrinsics: of both images after reading: undistorted, depth registered to colour.
        depth_scale: raw units per metre.
        depth_invalid: raw values that mean "unknown".
        color_files, depth_files: (stamp_ns, path), sorted by stamp.
        poses: (stamp_ns, ``T_world_camera``), sorted by stamp.
        world_frame, base_frame, T_base_camera: see the module; the last two are None without a base.
        lens: model of the stored colour images; None = undistorted.
        depth_camera: model of the stored depth images where they are not registered; None = as colour.
        T_color_depth: (4, 4) pose of the depth camera in the colour camera; None = identity.
    """

    folder: Path
    name: str
    optical_frame: str
    intrinsics: Intrinsics
    depth_scale: float
    depth_invalid: tuple[int, ...]
    color_files: tuple[tuple[int, Path], ...]
    depth_files: tuple[tuple[int, Path], ...]
    poses: tuple[tuple[int, F64], ...]
    world_frame: str | None
    base_frame: str | None
    T_base_camera: F64 | None
    lens: CameraModel | None = None
    depth_camera: CameraModel | None = None
    T_color_depth: F64 | None = None

    def read_color(self, path: Path) -> NDArray[np.uint8]:
        """Read (H, W, 3) uint8 RGB. Raises :class:`RecordingError` with the file."""
        color: NDArray[np.uint8] = read_image(path, decode_color_file)
        return color if self.lens is None else self.lens.rectify_color(color)

    def read_depth_raw(self, path: Path) -> NDArray[np.uint16]:
        """Read (H, W) uint16 as stored. Raises :class:`RecordingError` with the file."""
        return read_image(path, decode_depth_file)

    def read_depth(self, path: Path) -> NDArray[np.float32]:
        """Read (H, W) float32 canonical metres, registered to colour. Raises :class:`RecordingError` with the file."""
        raw = self.read_depth_raw(path)
        metres: NDArray[np.float32] = raw.astype(np.float32) / np.float32(self.depth_scale)
        for value in self.depth_invalid:
            metres[raw == value] = 0.0
        if self.depth_camera is None:
            return metres if self.lens is None else self.lens.rectify_depth(metres)
        try:
            own = UnregisteredDepth(metres, self.depth_camera, self.T_color_depth)
            return own.registered(self.intrinsics, mount_is_given=True)
        except ValueError as error:
            raise RecordingError(f"{path}: {error}") from error


def read_tum_camera(
    folder: str | Path, name: str | None = None, left_out: LeftOut | None = None, depth_scale: float | None = None
) -> TumCamera:
    """Read and check the text files of the folder of one camera.

    Args:
        folder: path.
        name: used when camera.json has none (default "camera").
        left_out: what is done with damaged lines of lists and poses; None = they raise.
        depth_scale: raw units per metre; None = that of camera.json.

    Raises:
        RecordingError: a file is missing or malformed; with the file and the line or key.
    """
    folder = Path(folder)
    left_out = LeftOut() if left_out is None else left_out
    checked_depth_scale(depth_scale)
    spec = _object(folder / "camera.json", _NO_CAMERA)
    with LeftOut().record(folder, folder / "camera.json"):
        _check_camera_json(spec)
        model = _lens(spec)
        own = spec.get("depth_camera")
        depth_camera = None if own is None else _lens(checked.mapping(own, "depth_camera"))
        T_color_depth, T_base_camera = (_transform(spec, key) for key in ("T_color_depth", "T_base_camera"))
        if T_color_depth is not None and depth_camera is None:
            raise ValueError("T_color_depth needs depth_camera, the calibration of depth")
    checked_depth_scale(spec["depth_scale"], f"{folder / 'camera.json'}: ")
    name = spec.get("camera") or name or "camera"
    color_files, depth_files = _read_images(folder, left_out)
    return TumCamera(
        folder=folder,
        name=name,
        optical_frame=spec.get("camera_frame") or f"{name}_optical_frame",
        intrinsics=model.intrinsics,
        depth_scale=float(spec["depth_scale"] if depth_scale is None else depth_scale),
        depth_invalid=tuple(spec.get("depth_invalid", (0,))),
        color_files=color_files,
        depth_files=depth_files,
        poses=_read_poses(folder / "groundtruth.txt", left_out),
        world_frame=spec.get("world_frame"),
        base_frame=spec.get("base_frame"),
        T_base_camera=T_base_camera,
        lens=model if model.is_distorted else None,
        depth_camera=depth_camera,
        T_color_depth=T_color_depth,
    )


def _transform(spec: Mapping[str, Any], key: str) -> F64 | None:
    return None if spec.get(key) is None else check_transform(checked.numbers(spec[key], key, 4, 4), key)


def _lens(spec: Mapping[str, Any]) -> CameraModel:
    """Parse a camera model. Raises ``ValueError`` for wrong or missing values."""
    if unknown := sorted(set(spec) - {*_PINHOLE_KEYS, "distortion_model", "d", *_REQUIRED_KEYS, *_OPTIONAL_KEYS}):
        raise ValueError(f"depth_camera: unknown key(s) {', '.join(unknown):.300}")
    model = checked.text(spec.get("distortion_model") or "plumb_bob", "distortion_model")
    d = checked.sequence(spec.get("d") or [], "d")
    return CameraModel(checked.pinhole(spec), *standard_distortion(model, [checked.number(v, "d") for v in d]))


def _check_camera_json(spec: Mapping[str, Any]) -> None:
    for key in _REQUIRED_KEYS:
        checked.number(checked.entry(spec, key), key)
    unknown = sorted(set(spec) - set(_REQUIRED_KEYS) - set(_OPTIONAL_KEYS))
    if lens := [key for key in unknown if key in _LENS_KEYS]:
        raise ValueError(f"{lens[0]}: distortion is written as distortion_model and d, as in CameraInfo")
    if unknown:
        known = ", ".join(_REQUIRED_KEYS + _OPTIONAL_KEYS)
        raise ValueError(f"unknown key(s) {', '.join(unknown):.300}; known: {known}")
    for key in ("camera", "camera_frame", "world_frame", "base_frame"):
        if spec.get(key) not in (None, ""):
            checked.text(spec[key], key)
    for value in checked.sequence(spec.get("depth_invalid", []), "depth_invalid"):
        checked.whole(value, "depth_invalid", 0, 2**16 - 1)
    if (spec.get("base_frame") is None) != (spec.get("T_base_camera") is None):
        raise ValueError("base_frame and T_base_camera belong together")


def _read_lines(
    path: Path, columns: int, parse: Callable[[list[str]], ArrayT], left_out: LeftOut
) -> tuple[tuple[int, ArrayT], ...]:
    """Parse every line to (stamp_ns, ``parse(other columns)``), sorted by stamp.

    Damaged lines raise, or go to ``left_out`` unless no line remains.
    """
    entries = []
    for line_number, line in enumerate(read_text(path, _MAX_LIST_BYTES).splitlines(), start=1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        with left_out.record(path, f"{path}:{line_number}"):
            if len(fields) != columns:
                raise ValueError(f"expected {columns} columns, got {len(fields)}: {line!r:.200}")
            entries.append((parse_stamp(fields[0]), parse(fields[1:])))
    if not entries and str(path) in left_out.reasons:
        raise RecordingError(left_out.reasons[str(path)])
    return tuple(sorted(entries, key=lambda entry: entry[0]))


_Files = tuple[tuple[int, Path], ...]


def _read_images(folder: Path, left_out: LeftOut) -> tuple[_Files, _Files]:
    """Read the colour and depth files of a folder from its two lists or its list of pairs."""
    if (folder / "rgb.txt").exists() or not (folder / _ASSOCIATIONS).exists():
        color, depth = (
            _read_lines(folder / name, 2, lambda fields: folder / checked.text(fields[0], "file name"), left_out)
            for name in ("rgb.txt", "depth.txt")
        )
        return _checked_list(folder / "rgb.txt", color), _checked_list(folder / "depth.txt", depth)
    path = folder / _ASSOCIATIONS

    def pair(fields: list[str]) -> tuple[str, int, str]:
        names = (checked.text(name, "file name") for name in (fields[0], fields[2]))
        return next(names), parse_stamp(fields[1]), next(names)

    lines = _read_lines(path, 4, pair, left_out)
    first = [(stamp, folder / name) for stamp, (name, _, _) in lines]
    second = sorted((stamp, folder / name) for _, (_, stamp, name) in lines)
    are_depth = [
        sum("depth" in name.relative_to(folder).as_posix().lower() for _, name in files) for files in (first, second)
    ]
    if sorted(are_depth) != [0, len(lines)]:
        raise RecordingError(f"{path}: the depth column is unknown: the file names of one column must contain 'depth'")
    colors, depths = (first, second) if are_depth[1] else (second, first)
    return _checked_list(path, tuple(colors)), _checked_list(path, tuple(depths))


def _checked_list(path: Path, files: _Files) -> _Files:
    """Raise :class:`RecordingError` for a list without images, or with stamps in another unit than seconds."""
    if not files:
        raise RecordingError(f"{path} lists no images")
    stamps = np.array([stamp for stamp, _ in files])
    step_s = float(np.median(np.diff(stamps))) / NS_PER_S if len(files) > 1 else 0.0
    if step_s > _MAX_STEP_S and not (stamps % NS_PER_S).any():
        raise RecordingError(f"{path}: images are {step_s:.0f} s apart: the stamps must be in seconds")
    return files


def _read_poses(path: Path, left_out: LeftOut) -> tuple[tuple[int, F64], ...]:
    def parse(fields: list[str]) -> F64:
        values = np.array([checked.decimal(field, "pose") for field in fields])
        return transform_from_pose(values[:3], values[3:])

    poses = _read_lines(path, 8, parse, left_out)
    if not poses:
        raise RecordingError(f"{path} holds no poses")
    return poses


def _camera_folders(path: Path) -> list[Path]:
    names = read_json(path / _CAMERA_LIST, _MAX_LIST_BYTES)
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise RecordingError(f"{path / _CAMERA_LIST} must hold a list of folder names, got {names!r:.100}")
    return [path / name for name in names]


def _object(path: Path, remedy: str = "") -> dict[str, Any]:
    """Read a JSON object. Raises :class:`RecordingError` with the file, and the remedy when it does not exist."""
    if not path.exists():
        raise RecordingError(f"{path} is missing{remedy}")
    return read_object(path, _MAX_LIST_BYTES)


def parse_stamp(text: str) -> int:
    """Convert decimal seconds to exact nanoseconds; further digits are cut, and an epoch in smaller units is recognised
    by its digits. Raises ``ValueError`` with the text."""
    match = _STAMP.fullmatch(text)
    if match is None:
        raise ValueError(f"timestamp must be decimal seconds, got {text!r}")
    integer, fraction = int(match[1]), match[2] or ""
    unit_ns = next(unit for least, unit in _STAMP_UNITS if integer >= least)
    stamp_ns = integer * unit_ns + int(int(fraction or 0) * unit_ns // 10 ** len(fraction))
    if stamp_ns > checked.MAX_STAMP_NS:
        raise ValueError(f"timestamp {text!r} does not fit into 64 bits of nanoseconds")
    return stamp_ns


class CameraMount(NamedTuple):
    """Mount of a camera: the frame of the robot, and the (4, 4) pose of the camera in it, metres."""

    base_frame: str
    T_base_camera: FloatArray


class TumWriter:
    """Writer of the folder of one camera. The lists come last, so that an incomplete folder is recognised.

    Use as a context manager, or call :meth:`close`.
    """

    def __init__(
        self,
        folder: str | Path,
        intrinsics: Intrinsics,
        *,
        camera: str = "camera",
        camera_frame: str | None = None,
        depth_scale: float = 1000.0,
        color_extension: str = ".png",
        world_frame: str | None = None,
        mount: CameraMount | None = None,
    ) -> None:
        """Args:

        folder: created if missing; must not hold a recording.
        intrinsics: of the images.
        camera: name.
        camera_frame: optical frame; by default derived from the name.
        depth_scale: raw units per metre: 1000 reaches 65.5 m, 5000 (the TUM data sets) 13.1 m.
        color_extension: ``.png`` (lossless) or ``.jpg``.
        world_frame, mount: see the module.

        Raises:
            FileExistsError: the folder holds a recording.
            ValueError: ``mount`` is not rigid; the scale is not positive.
        """
        if not depth_scale > 0:
            raise ValueError(f"depth_scale must be positive, got {depth_scale}")
        self._folder = Path(folder)
        if (self._folder / "rgb.txt").exists():
            raise FileExistsError(f"{self._folder} holds a recording already")
        for name in ("color", "depth"):
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        self._intrinsics = intrinsics
        self._scale = depth_scale
        self._extension = color_extension
        self._spec: dict[str, Any] = {key: getattr(intrinsics, key) for key in _REQUIRED_KEYS[:-1]}
        self._spec |= {"depth_scale": depth_scale, "depth_invalid": [0, 65535], "camera": camera}
        for key, frame in (("camera_frame", camera_frame), ("world_frame", world_frame)):
            if frame is not None:
                self._spec[key] = frame
        if mount is not None:
            T = check_transform(mount.T_base_camera, "T_base_camera")
            self._spec |= {"base_frame": mount.base_frame, "T_base_camera": T.tolist()}
        self._colors: list[str] = []
        self._depths: list[str] = []
        self._poses: list[str] = []
        self._closed = False

    def add(
        self, stamp_ns: int, color: NDArray[np.uint8], depth_m: NDArray[np.float32], T_world_camera: FloatArray
    ) -> None:
        """Write one frame and its pose.

        Args:
            stamp_ns: of both images and the pose.
            color: (H, W, 3) uint8 RGB.
            depth_m: (H, W) metres; values that are not finite, not positive or too far for 16 bits become unknown.
            T_world_camera: (4, 4) pose of the optical frame.

        Raises:
            ValueError: sizes do not match the intrinsics, or the pose is not rigid.
        """
        size = (self._intrinsics.height, self._intrinsics.width)
        if color.shape != (*size, 3) or depth_m.shape != size:
            raise ValueError(f"images must be {size}, got colour {color.shape} and depth {depth_m.shape}")
        index = len(self._colors)
        color_name, depth_name = f"color/{index:06d}{self._extension}", f"depth/{index:06d}.png"
        with np.errstate(invalid="ignore"):
            raw = np.rint(depth_m.astype(np.float64) * self._scale)
            raw = np.where((raw >= 1) & (raw <= 65534), raw, 0).astype(np.uint16)
        self.add_pose(stamp_ns, T_world_camera)
        (self._folder / color_name).write_bytes(encode_color_file(color, self._extension))
        (self._folder / depth_name).write_bytes(encode_depth_file(raw))
        self._colors.append(f"{format_stamp(stamp_ns)} {color_name}")
        self._depths.append(f"{format_stamp(stamp_ns)} {depth_name}")

    def add_pose(self, stamp_ns: int, T_world_camera: FloatArray) -> None:
        """Write a pose without images (poses may be more frequent). Raises ``ValueError`` when it is not rigid."""
        T = check_transform(T_world_camera, "T_world_camera")
        values = (*T[:3, 3], *rotation_to_quaternion(T[:3, :3]))
        self._poses.append(" ".join([format_stamp(stamp_ns), *(f"{v:.9f}" for v in values)]))

    def close(self, truth: Mapping[str, Any] | None = None) -> None:
        """Write the text files, and scene.json with ``truth``. Later calls do nothing."""
        if self._closed:
            return
        self._closed = True
        if truth is not None:
            write_atomically(self._folder / "scene.json", json.dumps(truth, indent=1).encode())
        write_atomically(self._folder / "camera.json", json.dumps(self._spec, indent=1).encode())
        header = "# timestamp tx ty tz qx qy qz qw (T_world_camera, optical frame, world z up)"
        _write_lines(self._folder / "groundtruth.txt", header, self._poses)
        _write_lines(self._folder / "depth.txt", "# timestamp filename", self._depths)
        _write_lines(self._folder / "rgb.txt", "# timestamp filename", self._colors)

    def __enter__(self) -> TumWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()


def _write_lines(path: Path, header: str, lines: Sequence[str]) -> None:
    write_atomically(path, "\n".join([header, *lines, ""]).encode())
