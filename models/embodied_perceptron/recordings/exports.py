"""Folders of scanning apps and data sets: depth has another size than colour, poses are in separate files.

    ScanNet's exporter   color/0.jpg  depth/0.png  pose/0.txt  intrinsic/intrinsic_color.txt  intrinsic_depth.txt
    Stray Scanner        rgb.mp4  depth/000000.png (or .npy)  confidence/000000.png  odometry.csv  camera_matrix.csv
    Polycam              keyframes/images/N.jpg  keyframes/cameras/N.json  keyframes/depth/N.png (raw data export)
    ARKitScenes          lowres_wide/ID_T.png  lowres_depth/ID_T.png  lowres_wide_intrinsics/ID_T.pincam
                         lowres_wide.traj
    Record3D             NAME.r3d, its contents, or its export of EXR and RGB

Each reader yields :class:`ExportedFrame`; the rest is shared. Depth is registered to colour by the calibrations, each
colour pixel takes the nearest depth pixel, so that no depth is interpolated across edges. Colour larger than
:data:`MAX_COLOR_PIXELS` is resized first. Depth is 16-bit millimetres, of Record3D float32 metres.
"""

from __future__ import annotations

import importlib
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import (
    F64,
    Intrinsics,
    check_transform,
    invert_transform,
    make_transform,
    transform_from_pose,
)
from embodied_perceptron.recordings import plain_values as checked
from embodied_perceptron.recordings.conventions import convert_pose
from embodied_perceptron.recordings.files import (
    MAX_IMAGE_BYTES,
    parse_json,
    read_file,
    read_image,
    read_json,
    read_text,
)
from embodied_perceptron.recordings.image_codec import (
    DEFLATE_RATIO,
    MAX_PIXELS,
    decode_color_file,
    decode_depth_file,
    decode_grey_file,
    decode_numpy_depth,
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
from embodied_perceptron.sensors.camera_model import CameraModel, register_depth
from embodied_perceptron.sensors.poses import NS_PER_S
from embodied_perceptron.sensors.synchronizer import BadImage

MAX_COLOR_PIXELS = 640  # longer side of the fused image
CAMERA = "camera"
_MAX_TEXT_BYTES = 2**26
_SCANNET_FPS = 30.0
_CALIBRATION_OFF_S = 0.01  # between the times in the names of an image and of its calibration
_NUMBER = re.compile(r"[0-9]{1,18}")
_RECORD3D_COLOR = re.compile(r"rgbd?/([0-9]{1,9})\.(?:jpg|png)")
_MP4_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide")
_LEAST_CONFIDENCE = 1  # of ARKit's 0, 1, 2

ColorImage = NDArray[np.uint8]
DepthImage = NDArray[np.float32]


@dataclass(frozen=True)
class ExportedFrame:
    """One frame of a folder.

    Attributes:
        stamp_ns: of both images.
        T_world_camera: (4, 4) pose of the optical frame, world z up; None = lost.
        color, depth: functions that read (H, W, 3) uint8 RGB and (h, w) float32 metres with 0 = unknown; both raise
            :class:`RecordingError`.
        color_camera, depth_camera: of each image at its size; None = that of colour, scaled to the size of depth.
    """

    stamp_ns: int
    T_world_camera: F64 | None
    color: Callable[[], ColorImage]
    depth: Callable[[], DepthImage]
    color_camera: Intrinsics
    depth_camera: Intrinsics | None = None


# --------------------------------------------------------------------------------------------------------------------
# registration


def matched(
    color: ColorImage, color_camera: Intrinsics, depth: DepthImage, depth_camera: Intrinsics | None
) -> tuple[ColorImage, DepthImage, Intrinsics]:
    """Return colour, registered depth and their camera. Raises ``ValueError`` for sizes that do not match."""
    if color.shape[:2] != (color_camera.height, color_camera.width):
        raise ValueError(
            f"colour is {color.shape[1]}x{color.shape[0]}, its calibration {color_camera.width}x{color_camera.height}"
        )
    if depth_camera is None:
        depth_camera = color_camera.resized(depth.shape[1], depth.shape[0])
    shrink = MAX_COLOR_PIXELS / max(color.shape[:2])
    if shrink < 1:
        width, height = round(color.shape[1] * shrink), round(color.shape[0] * shrink)
        color_camera = color_camera.resized(width, height)
        color = np.asarray(cv2.resize(color, (width, height), interpolation=cv2.INTER_AREA), np.uint8)
    return color, register_depth(depth, depth_camera, color_camera), color_camera


# --------------------------------------------------------------------------------------------------------------------
# the core


class ExportRecording:
    """A :class:`~embodied_perceptron.recordings.recording.Recording` of the frames of a folder.

    Args:
        folder: path.
        frames: in the order of their stamps.
        left_out: frames that the reader skipped; where it tolerates damage, images that cannot be read become
            :class:`.BadImage` samples instead of raising.
        world_frame: name of the frame of the poses.
    """

    cameras = (CAMERA,)
    truth: Mapping[str, Any] | None = None

    def __init__(
        self, folder: Path, frames: tuple[ExportedFrame, ...], left_out: LeftOut, world_frame: str = "odom"
    ) -> None:
        self.source, self.left_out, self.world_frame = folder, left_out, world_frame
        self._frames = frames

    def camera_frame(self, camera: str) -> str:
        """Optical frame of the camera. Raises ``KeyError`` for another one."""
        if camera != CAMERA:
            raise KeyError(f"unknown camera {camera!r}; known: {CAMERA}")
        return f"{CAMERA}_optical_frame"

    def depth_scale(self, camera: str) -> float | None:
        """None: depth is in metres. Raises ``KeyError`` for another camera."""
        self.camera_frame(camera)
        return None

    def __len__(self) -> int:
        """Colour images."""
        return len(self._frames)

    def __iter__(self) -> Iterator[Sample]:
        """See :class:`~embodied_perceptron.recordings.recording.Recording`."""
        optical = self.camera_frame(CAMERA)
        for frame in self._frames:
            color: ColorImage | BadImage
            depth: DepthImage | BadImage
            images = self.left_out.image(partial(self._images, frame))
            if isinstance(images, BadImage):
                color, depth, camera = images, images, frame.color_camera
            else:
                color, depth, camera = images
            if frame.T_world_camera is not None:
                yield TransformSample(frame.stamp_ns, self.world_frame, optical, frame.T_world_camera)
            yield CalibrationSample(frame.stamp_ns, CAMERA, CameraModel(camera))
            yield ColorSample(frame.stamp_ns, CAMERA, color)
            yield DepthSample(frame.stamp_ns, CAMERA, depth)

    def _images(self, frame: ExportedFrame) -> tuple[ColorImage, DepthImage, Intrinsics]:
        try:
            return matched(frame.color(), frame.color_camera, frame.depth(), frame.depth_camera)
        except ValueError as error:
            if isinstance(error, RecordingError):
                raise
            raise RecordingError(f"{self.source}: frame at {frame.stamp_ns} ns: {error}") from error


def read_color(path: Path) -> ColorImage:
    """Read (H, W, 3) uint8 RGB. Raises :class:`RecordingError` with the file."""
    color: ColorImage = read_image(path, decode_color_file)
    return color


def read_depth(path: Path, scale: float, confidence: Path | None = None) -> DepthImage:
    """Read (h, w) float32 metres from a 16-bit PNG or .npy with ``scale`` units per metre.

    Pixels of low ``confidence``, an image of the same size, become unknown. Raises :class:`RecordingError` with the
    file.
    """
    raw = read_image(path, decode_numpy_depth if path.suffix == ".npy" else decode_depth_file)
    metres: DepthImage = raw.astype(np.float32) / np.float32(scale)
    metres[raw == np.iinfo(np.uint16).max] = 0.0
    if confidence is not None and confidence.exists():
        certain = read_image(confidence, decode_grey_file)
        if certain.shape != metres.shape:
            raise RecordingError(f"{confidence} must be an image of the size of {path.name}")
        metres[certain < _LEAST_CONFIDENCE] = 0.0
    return metres


def _matrix(path: Path, rows: tuple[int, ...], columns: int) -> F64:
    """Read the numbers of a text file, separated by blanks or commas; they may be infinite."""
    words = re.findall(r"[^\s,]+", read_text(path, _MAX_TEXT_BYTES))
    if len(words) not in [r * columns for r in rows]:
        wanted = " or ".join(f"{r}x{columns}" for r in rows)
        raise RecordingError(f"{path} must hold a matrix of {wanted}, got {len(words)} numbers")
    try:
        return np.array([float(word) for word in words]).reshape(-1, columns)
    except ValueError as error:
        raise RecordingError(f"{path}: {error!s:.200}") from error


def _camera(K: F64, size: tuple[int, int], where: Path) -> Intrinsics:
    """Build intrinsics from a 3x3 or 4x4 matrix and (height, width)."""
    with LeftOut().record(where, where):
        camera = Intrinsics(float(K[0, 0]), float(K[1, 1]), float(K[0, 2]), float(K[1, 2]), size[1], size[0])
    return camera


def _first_size(paths: Iterable[Path], read: Callable[[Path], NDArray[Any]], left_out: LeftOut) -> tuple[int, int]:
    """Return (height, width) of the first image; of the first readable one where damage is tolerated."""
    fault: RecordingError | None = None
    for path in paths:
        try:
            height, width = read(path).shape[:2]
            return height, width
        except RecordingError as error:
            fault = fault or error
            if not left_out.tolerates_damage:
                break
    raise fault or RecordingError("there are no images")


def _numbered(folder: Path, *suffixes: str) -> list[Path]:
    """Return the files with integer names in numeric order."""
    files = folder.iterdir() if folder.is_dir() else ()
    found = [p for p in files if p.suffix in suffixes and _NUMBER.fullmatch(p.stem)]
    return sorted(found, key=lambda p: int(p.stem))


# --------------------------------------------------------------------------------------------------------------------
# formats


def _scannet(folder: Path, scale: float, left_out: LeftOut) -> Iterator[ExportedFrame]:
    """Poses are camera to world with z up; images have no stamps: 30 per second."""
    colors = _numbered(folder / "color", ".jpg", ".png")
    if not colors:
        raise RecordingError(f"{folder / 'color'} holds no images 0.jpg, 1.jpg, ...")
    depths = {path: folder / "depth" / f"{path.stem}.png" for path in colors}
    K_color, K_depth = (_matrix(folder / "intrinsic" / f"intrinsic_{k}.txt", (3, 4), 4) for k in ("color", "depth"))
    color_size = _first_size(colors, read_color, left_out)
    color_camera = _camera(K_color, color_size, folder / "intrinsic" / "intrinsic_color.txt")
    depth_size = _first_size(depths.values(), partial(read_depth, scale=scale), left_out)
    depth_camera = _camera(K_depth, depth_size, folder / "intrinsic" / "intrinsic_depth.txt")
    for path, depth in depths.items():
        with left_out.record(folder / "pose", path):
            at_ns = checked.stamp_ns(NS_PER_S + round(int(path.stem) * NS_PER_S / _SCANNET_FPS), "time")
            pose = _pose(_matrix(folder / "pose" / f"{path.stem}.txt", (4,), 4), folder / "pose", left_out)
            read = partial(read_color, path), partial(read_depth, depth, scale)
            yield ExportedFrame(at_ns, pose, *read, color_camera, depth_camera)


def _pose(T: F64, where: Path, left_out: LeftOut) -> F64 | None:
    """Return a valid pose, or None (a lost tracker writes infinite poses)."""
    pose = None
    with left_out.record(where, where, may_lack=True):
        pose = check_transform(T, "pose")
    return pose


class _Video:
    """Frames of a video by number; fast in order. Raises :class:`RecordingError` unless it is an MP4 file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        if not path.is_file():
            raise RecordingError(f"{path} is not a regular file")  # a pipe would never end
        with path.open("rb") as file:
            if file.read(8)[4:] not in _MP4_BOXES:  # FFmpeg would follow the addresses in a playlist
                raise RecordingError(f"{path} is not an MP4 video, or is cut short")
        self._capture: Any = None
        self._next = 0

    def frame(self, number: int) -> ColorImage:
        """Read (H, W, 3) uint8 RGB, as stored. Raises :class:`RecordingError` where there is none."""
        if self._capture is None or number < self._next:
            self._capture, self._next = cv2.VideoCapture(str(self._path)), 0
            self._capture.set(cv2.CAP_PROP_ORIENTATION_AUTO, 0)
            size = [self._capture.get(side) for side in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT)]
            if size[0] * size[1] > MAX_PIXELS:
                raise RecordingError(f"{self._path} claims {size[0]:.0f}x{size[1]:.0f} pixels")
        while self._next < number and self._capture.grab():
            self._next += 1
        there, image = self._capture.read()
        if not there:
            raise RecordingError(f"{self._path} ends before frame {number}")
        self._next += 1
        return np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2RGB), np.uint8)


def _stray(folder: Path, scale: float, left_out: LeftOut) -> Iterator[ExportedFrame]:
    """Poses are of the optical frame in the world of ARKit, y up."""
    path = folder / "odometry.csv"
    lines = read_text(path, _MAX_TEXT_BYTES).splitlines()
    rows = [[word.strip() for word in line.split(",")] for line in lines if line.strip()]
    names = rows[0] if rows else []
    needed = ("timestamp", "frame", "x", "y", "z", "qx", "qy", "qz", "qw")
    missing = [name for name in needed if name not in names]
    if missing:
        raise RecordingError(f"{path} has no column {missing[0]!r}: its first line must name {', '.join(needed)}")
    K, video = _matrix(folder / "camera_matrix.csv", (3,), 3), _Video(folder / "rgb.mp4")
    camera = _camera(K, video.frame(0).shape[:2], folder / "camera_matrix.csv")
    for line_number, row in enumerate(rows[1:], start=2):
        with left_out.record(path, f"{path}:{line_number}", may_lack=True):
            if len(row) < len(names):
                raise ValueError(f"expected {len(names)} columns, got {len(row)}")
            value = {n: checked.decimal(row[names.index(n)], n) for n in needed}
            frame = int(checked.number(value["frame"], "frame", 0, 1e9))
            t, q = ([value[n] for n in group] for group in (("x", "y", "z"), ("qx", "qy", "qz", "qw")))
            depth, packed = (folder / "depth" / f"{frame:06d}.{kind}" for kind in ("npy", "png"))
            confidence = folder / "confidence" / f"{frame:06d}.png"
            yield ExportedFrame(
                checked.seconds(value["timestamp"], "timestamp"),
                convert_pose(transform_from_pose(np.array(t), np.array(q)), ("yup",)),
                partial(video.frame, frame),
                partial(read_depth, depth if depth.exists() else packed, scale, confidence),
                camera,
            )


def _polycam(folder: Path, scale: float, left_out: LeftOut) -> Iterator[ExportedFrame]:
    """Poses are in the conventions of ARKit; corrected ones are preferred."""
    inner = folder / "keyframes" if (folder / "keyframes").is_dir() else folder
    before = "corrected_" if (inner / "corrected_cameras").is_dir() else ""
    cameras = _numbered(inner / f"{before}cameras", ".json")
    for path in cameras:
        color = inner / f"{before}images" / f"{path.stem}.jpg"
        with left_out.record(path.parent, path):
            values = checked.mapping(read_json(path, _MAX_TEXT_BYTES), "the file")
            T = np.vstack([[[_real(values, f"t_{r}{c}") for c in range(4)] for r in range(3)], [0.0, 0.0, 0.0, 1.0]])
            if not {"width", "height"} <= values.keys():  # optional: those of the image
                values = dict(zip(("height", "width"), read_color(color).shape[:2], strict=True)) | values
            camera = checked.pinhole(values)
            pose = _pose(T, path.parent, left_out)
            depth, confidence = (inner / kind / f"{path.stem}.png" for kind in ("depth", "confidence"))
            yield ExportedFrame(
                checked.stamp_ns(int(path.stem) * 1000, "time"),  # the name counts microseconds
                None if pose is None else convert_pose(pose, ("opengl", "yup")),
                partial(read_color, color),
                partial(read_depth, depth, scale, confidence),
                camera,
            )


def _real(values: Mapping[str, Any], key: str) -> float:
    """Return a number, which may be infinite."""
    value = checked.entry(values, key)
    return value if isinstance(value, float) else checked.number(value, key)


def _arkitscenes(folder: Path, scale: float, left_out: LeftOut) -> Iterator[ExportedFrame]:
    """Poses are world to camera, as a rotation vector and a translation; world z up."""
    times, poses = [], []
    path = folder / "lowres_wide.traj"
    for line_number, line in enumerate(read_text(path, _MAX_TEXT_BYTES).splitlines(), start=1):
        with left_out.record(path, f"{path}:{line_number}", may_lack=True):
            time_s, *values = (checked.decimal(word, "a number of a pose", -1e9, 1e9) for word in line.split())
            if len(values) != 6:
                raise ValueError(f"expected 7 columns, got {len(values) + 1}")
            R = np.asarray(cv2.Rodrigues(np.array(values[:3]))[0], np.float64)
            times.append(time_s)
            poses.append(invert_transform(make_transform(R, np.array(values[3:]))))
    colors = _by_time(folder / "lowres_wide", ".png", left_out)
    cameras = _by_time(folder / "lowres_wide_intrinsics", ".pincam", left_out)
    if not times or not colors:
        raise RecordingError(f"{folder} holds no poses in lowres_wide.traj, or no images in lowres_wide/")
    pose_times, camera_times = np.array(times), np.array([time_s for time_s, _ in cameras])
    for time_s, color in colors:
        near = int(np.abs(pose_times - time_s).argmin())
        pincam = folder / "lowres_wide_intrinsics" / f"{color.stem}.pincam"
        if cameras and not pincam.exists():  # the time in the name of a calibration may be some milliseconds off
            nearest = int(np.abs(camera_times - time_s).argmin())
            pincam = cameras[nearest][1] if abs(camera_times[nearest] - time_s) < _CALIBRATION_OFF_S else pincam
        with left_out.record(pincam.parent, pincam):
            width, height, fx, fy, cx, cy = _matrix(pincam, (1,), 6)[0].tolist()
            camera = checked.pinhole({"fx": fx, "fy": fy, "cx": cx, "cy": cy, "width": width, "height": height})
            yield ExportedFrame(
                checked.seconds(time_s, "time"),
                poses[near] if abs(times[near] - time_s) < 0.05 else None,  # images come at 10 Hz
                partial(read_color, color),
                partial(read_depth, folder / "lowres_depth" / color.name, scale, folder / "confidence" / color.name),
                camera,
            )


def _by_time(folder: Path, suffix: str, left_out: LeftOut) -> list[tuple[float, Path]]:
    """Return the files ID_SECONDS by the time in their names."""
    found = []
    for path in folder.glob(f"*_*{suffix}"):
        with left_out.record(folder, f"{path}: the name must end in its time, ID_SECONDS"):
            time_s = checked.decimal(path.stem.rpartition("_")[2], "time", 0.0, checked.MAX_STAMP_NS * 1e-9)
            found.append((time_s, path))
    return sorted(found)


# --------------------------------------------------------------------------------------------------------------------
# Record3D


# also of encrypted entries (RuntimeError) and names that are no UTF-8 (ValueError)
_ZIP_FAULTS = (OSError, zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, ValueError, struct.error)
_ZIP_FREE_BYTES, _ZIP_RATIO = 2**20, 100  # an entry may expand to this, and to so many times its packed size


class _Files:
    """Files of a folder or a ZIP by name. Raises :class:`RecordingError` for unreadable ones."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._zip: zipfile.ZipFile | None = None
        if path.is_file():
            try:
                self._zip = zipfile.ZipFile(path)
            except _ZIP_FAULTS as error:
                raise RecordingError(f"{path} is not an .r3d file, or is truncated: {error}") from error

    def names(self) -> list[str]:
        """List all names."""
        if self._zip is not None:
            return self._zip.namelist()
        return [p.relative_to(self._path).as_posix() for p in self._path.rglob("*") if p.is_file()]

    def read(self, name: str, max_bytes: int = MAX_IMAGE_BYTES) -> bytes:
        """Read at most ``max_bytes`` of a file."""
        try:
            if self._zip is None:
                return read_file(self._path / name, max_bytes)
            info = self._zip.getinfo(name)
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise RecordingError(f"{self.where(name)} is compressed by method {info.compress_type}")
            limit = min(max_bytes, _ZIP_FREE_BYTES + _ZIP_RATIO * info.compress_size)
            with self._zip.open(name) as file:
                data = file.read(limit + 1)
        except KeyError as error:
            raise RecordingError(f"{self.where(name)} is missing") from error
        except _ZIP_FAULTS as error:
            raise RecordingError(f"cannot read {name} of {self._path}: {error}") from error
        if len(data) > limit:
            raise RecordingError(f"{self.where(name)} has more than {limit} bytes, packed into {info.compress_size}")
        return data

    def where(self, name: str) -> str:
        """Return the name of a file for messages."""
        return f"{self._path}: {name}"


def _record3d(path: Path, scale: float, left_out: LeftOut) -> Iterator[ExportedFrame]:
    """Read an .r3d file or an exported folder; depth is in metres, whatever ``scale``."""
    files = _Files(path)
    names = set(files.names())
    metadata = "metadata" if "metadata" in names else "metadata.json"
    where = files.where(metadata)
    values = parse_json(files.read(metadata, _MAX_TEXT_BYTES), where)
    with LeftOut().record(path, where):
        values = checked.mapping(values, "it")
        width, height = (checked.whole(checked.entry(values, side), side, 1, checked.MAX_SIDE) for side in "wh")
        own_size = [checked.whole(values[k], k, 1, checked.MAX_SIDE) for k in ("dh", "dw") if values.get(k) is not None]
        shape = (own_size[0], own_size[1]) if len(own_size) == 2 else None
        if shape is not None and shape[0] * shape[1] > MAX_PIXELS:
            raise ValueError(f"depth of {shape[1]}x{shape[0]} pixels")
        K = checked.numbers(checked.entry(values, "K"), "K", 9)[[0, 4, 6, 7]]
        fps = 30.0 if values.get("fps") is None else checked.number(values["fps"], "fps", 1e-3, 1e6)
        poses = checked.sequence(checked.entry(values, "poses"), "poses")
        own, times = (checked.sequence(values.get(k) or [], k) for k in ("perFrameIntrinsicCoeffs", "frameTimestamps"))
    first_s = 1.0 if not times or not isinstance(times[0], (int, float)) or times[0] < 1.0 else 0.0
    found = {int(match[1]): match[0] for match in map(_RECORD3D_COLOR.fullmatch, sorted(names)) if match}  # rgbd last
    colors = {frame: name for frame, name in sorted(found.items()) if frame < len(poses)}
    if lost := len(poses) - len(colors):  # by number of images: metadata may list more poses than any recording has
        first = next(frame for frame in range(len(poses)) if frame not in colors)
        left_out.add(str(path), f"{path}: frame {first} has no colour image")
        left_out.counts[str(path)] += lost - 1
    for frame, color in colors.items():
        depth = f"rgbd/{frame}.depth" if color.startswith("rgbd") else f"depth/{frame}.exr"
        with left_out.record(where, f"{where}: frame {frame}"):
            k = K if frame >= len(own) else checked.numbers(own[frame], "perFrameIntrinsicCoeffs", 4)
            fx, fy, cx, cy = k.tolist()
            camera = Intrinsics(fx, fy, cx, cy, width, height)
            time_s = frame / fps if frame >= len(times) else checked.number(times[frame], "frameTimestamps")
            yield ExportedFrame(
                checked.seconds(first_s + time_s, "time"),
                _record3d_pose(poses[frame], where, frame, left_out),
                partial(_decoded, files, color, decode_color_file),
                partial(_record3d_depth, files, depth, f"rgbd/{frame}.conf", shape, (width, height), names),
                camera,
            )


def _record3d_pose(values: Any, where: str, frame: int, left_out: LeftOut) -> F64 | None:
    pose = None
    with left_out.record(where, f"{where}: pose {frame}", may_lack=True):
        numbers = checked.numbers(values, "pose", 7)
        pose = convert_pose(transform_from_pose(numbers[4:], numbers[:4]), ("opengl", "yup"))
    return pose


def _decoded(files: _Files, name: str, decode: Callable[[bytes], Any]) -> Any:
    try:
        return decode(files.read(name))
    except RecordingError:
        raise
    except ValueError as error:
        raise RecordingError(f"{files.where(name)}: {error}") from error


def _record3d_depth(
    files: _Files,
    name: str,
    confidence: str,
    shape: tuple[int, int] | None,
    color_size: tuple[int, int],
    names: set[str],
) -> NDArray[np.float32]:
    """Read (h, w) float32 metres, 0 = unknown or uncertain."""
    if name.endswith(".exr"):
        depth = _decoded(files, name, _exr)
    else:
        data = _decoded(files, name, lambda packed: _unpacked(packed, shape, 4))
        depth = np.frombuffer(data[: len(data) // 4 * 4], "<f4").astype(np.float32)
        depth = depth.reshape(_record3d_shape(depth.size, shape, color_size, files.where(name)))
    if confidence in names and not name.endswith(".exr"):
        certain = np.frombuffer(_decoded(files, confidence, lambda packed: _unpacked(packed, depth.shape, 1)), np.uint8)
        if certain.size != depth.size:
            raise RecordingError(f"{files.where(confidence)} has {certain.size} pixels, its depth {depth.size}")
        depth[certain.reshape(depth.shape) < _LEAST_CONFIDENCE] = 0.0
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(depth > 0, depth, np.float32(0.0)), np.float32)


def _record3d_shape(
    pixels: int, shape: tuple[int, int] | None, color_size: tuple[int, int], where: str
) -> tuple[int, int]:
    """Return (h, w) from the metadata, otherwise with the aspect ratio of colour."""
    if shape is None:
        height = round((pixels * color_size[1] / color_size[0]) ** 0.5)
        shape = height, pixels // max(height, 1)
    if not pixels or shape[0] * shape[1] != pixels:
        raise RecordingError(f"{where}: depth has {pixels} pixels, not {shape[1]}x{shape[0]}")
    return shape


def _unpacked(data: bytes, shape: tuple[int, int] | None, pixel_bytes: int) -> bytes:
    """Unpack plain, LZFSE or zlib data by its first bytes. Raises ``ValueError``."""
    expected = MAX_IMAGE_BYTES if shape is None else shape[0] * shape[1] * pixel_bytes
    if len(data) > 2 * expected:  # too large for an image of this size
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
    except Exception as error:  # its own error, or MemoryError, for damaged data
        raise ValueError(f"damaged LZFSE data of {len(data)} bytes") from error


def _exr(data: bytes) -> NDArray[np.float32]:
    if data[:4] != b"v/1\x01":
        raise ValueError("is not an EXR image, or is truncated")
    os.environ.setdefault("OPENCV_IO_ENABLE_OPENEXR", "1")  # off by default; read when the first image is decoded
    width, height = _exr_size(data)
    if not 0 < width * height <= min(MAX_PIXELS, len(data) * DEFLATE_RATIO):
        raise ValueError(f"claims {width}x{height} pixels, which {len(data)} bytes cannot hold")
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error as error:
        raise ValueError(f"this build of OpenCV cannot read EXR images ({error.err})") from error
    if image is None or image.dtype != np.float32:
        raise ValueError("is not a float32 EXR image, or is truncated")
    return np.array(image if image.ndim == 2 else image[..., 0])


def _exr_size(data: bytes) -> tuple[int, int]:
    """Return (width, height) of the data window in the header of an EXR file; zeros without a valid one."""
    at = 8  # attributes: name, type, both ended by a zero, length, value
    while (end := data.find(b"\0", data.find(b"\0", at) + 1) + 1) > at and len(data) >= end + 20:
        (length,) = struct.unpack_from("<I", data, end)
        if data[at:end] == b"dataWindow\0box2i\0":
            left, top, right, bottom = struct.unpack_from("<iiii", data, end + 4)
            return right - left + 1, bottom - top + 1
        at = end + 4 + length
    return 0, 0


# --------------------------------------------------------------------------------------------------------------------
# opening

_Reader = Callable[[Path, float, LeftOut], Iterator[ExportedFrame]]
_FORMATS: Mapping[str, tuple[tuple[tuple[str, ...], ...], _Reader]] = {  # alternatives of characteristic files, reader
    "ScanNet's exporter": ((("color", "depth", "pose", "intrinsic"),), _scannet),
    "Stray Scanner": ((("rgb.mp4", "odometry.csv", "depth"),), _stray),
    "Polycam": ((("keyframes/depth", "keyframes/cameras"),), _polycam),
    "ARKitScenes": ((("lowres_wide.traj", "lowres_wide", "lowres_depth"),), _arkitscenes),
    "Record3D": ((("metadata", "rgbd"), ("metadata.json", "rgb", "depth")), _record3d),
}

EXPORT_FORMATS = tuple(_FORMATS)


def export_format(path: str | Path) -> str:
    """Return the name of the format of a folder or .r3d file; "" for another one."""
    path = Path(path)
    if path.suffix == ".r3d" and path.is_file():
        return "Record3D"
    for name, (kinds, _) in _FORMATS.items():
        if any(all((path / part).exists() for part in parts) for parts in kinds):
            return name
    return ""


def open_export(
    folder: str | Path, *, world_frame: str = "odom", tolerate_damage: bool = False, depth_scale: float | None = None
) -> ExportRecording:
    """Open a folder of any of these formats.

    Args:
        folder: path.
        world_frame: name of the frame of the poses.
        tolerate_damage: damaged files beside the images leave their frame out (:attr:`ExportRecording.left_out`),
            images that cannot be read become :class:`.BadImage` samples, instead of raising.
        depth_scale: units of depth in a metre; None = 1000.

    Raises :class:`RecordingError` with the file: unknown format, no frames, or unreadable data.
    """
    folder, name = Path(folder), export_format(folder)
    if not name:
        raise RecordingError(f"{folder} is not a folder of {', '.join(_FORMATS)}")
    left_out = LeftOut(tolerates_damage=tolerate_damage)
    frames = tuple(_FORMATS[name][1](folder, checked_depth_scale(depth_scale) or 1000.0, left_out))
    if not frames and left_out.reasons and tolerate_damage:
        raise RecordingError(next(iter(left_out.reasons.values())))
    if not frames:
        raise RecordingError(f"{folder} has the layout of {name}, but no frames")
    ordered = tuple(sorted(frames, key=lambda frame: frame.stamp_ns))
    return ExportRecording(folder, ordered, left_out, world_frame)
