"""Folders that scanning apps and data sets write: depth of another size than colour, poses in files of their own.

    ScanNet's exporter   color/0.jpg  depth/0.png  pose/0.txt  intrinsic/intrinsic_color.txt  intrinsic_depth.txt
    Stray Scanner        rgb.mp4  depth/000000.png (or .npy)  confidence/000000.png  odometry.csv  camera_matrix.csv
    Polycam              keyframes/images/N.jpg  keyframes/cameras/N.json  keyframes/depth/N.png (raw data export)
    ARKitScenes          lowres_wide/ID_T.png  lowres_depth/ID_T.png  lowres_wide_intrinsics/ID_T.pincam
                         lowres_wide.traj
    Record3D             NAME.r3d, its contents, or its export of EXR and RGB (:mod:`.record3d`)

Each reader makes a list of :class:`ExportedFrame`; everything else is one core. Both images of a frame are of one
camera: depth is brought to the pixels of colour by their calibrations alone, each pixel of colour taking the nearest
one of depth, so that no depth is made up between a thing and what is behind it. Colour larger than
:data:`MAX_COLOR_PIXELS` is made smaller first. Depth is 16-bit millimetres.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import (
    Intrinsics,
    check_transform,
    invert_transform,
    make_transform,
    transform_from_pose,
)
from embodied_perceptron.recordings.conventions import convert_pose
from embodied_perceptron.recordings.files import read_image, read_text
from embodied_perceptron.recordings.image_codec import decode_color_file, decode_depth_file
from embodied_perceptron.recordings.record3d import record3d_frames
from embodied_perceptron.recordings.recording import (
    CalibrationSample,
    ColorSample,
    DepthSample,
    LeftOut,
    RecordingError,
    Sample,
    TransformSample,
)
from embodied_perceptron.sensors.camera_model import CameraModel, register_depth
from embodied_perceptron.sensors.poses import NS_PER_S
from embodied_perceptron.sensors.synchronizer import BadImage

MAX_COLOR_PIXELS = 640  # longer side of what is fused
CAMERA = "camera"
_MAX_TEXT_BYTES = 2**28
_SCANNET_FPS = 30.0
_LEAST_CONFIDENCE = 1  # of ARKit's 0, 1, 2

ColorImage = NDArray[np.uint8]
DepthImage = NDArray[np.float32]


@dataclass(frozen=True)
class ExportedFrame:
    """One frame of a folder.

    Attributes:
        stamp_ns: of both images.
        T_world_camera: (4, 4) pose of the optical frame, world z up; None = lost.
        color, depth: read the images: (H, W, 3) uint8 RGB, (h, w) float32 metres with 0 = unknown. Both raise
            :class:`RecordingError`.
        color_camera, depth_camera: of each image at its size; ``depth_camera`` None = that of colour at depth's size.
    """

    stamp_ns: int
    T_world_camera: NDArray[np.float64] | None
    color: Callable[[], ColorImage]
    depth: Callable[[], DepthImage]
    color_camera: Intrinsics
    depth_camera: Intrinsics | None = None


# --------------------------------------------------------------------------------------------------------------------
# registration


def matched(
    color: ColorImage, color_camera: Intrinsics, depth: DepthImage, depth_camera: Intrinsics | None
) -> tuple[ColorImage, DepthImage, Intrinsics]:
    """Colour, and depth at its pixels, and the camera of both. Raises ``ValueError`` for sizes that do not fit."""
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
        folder: where it lies.
        frames: in the order of their stamps.
        left_out: frames that the reader has left out.
        world_frame: name of the frame of the poses.
        tolerate_damage: images that cannot be read become :class:`.BadImage` samples instead of raising.
    """

    def __init__(
        self,
        folder: Path,
        frames: tuple[ExportedFrame, ...],
        left_out: LeftOut,
        world_frame: str = "odom",
        tolerate_damage: bool = False,
    ) -> None:
        self._folder, self._frames, self._left_out = folder, frames, left_out
        self._world_frame, self._tolerate_damage = world_frame, tolerate_damage

    @property
    def source(self) -> Path:
        """The folder."""
        return self._folder

    @property
    def cameras(self) -> tuple[str, ...]:
        """The one camera."""
        return (CAMERA,)

    @property
    def world_frame(self) -> str:
        """Frame of the poses."""
        return self._world_frame

    @property
    def truth(self) -> Mapping[str, Any] | None:
        """Nothing is known."""
        return None

    @property
    def left_out(self) -> LeftOut:
        """Frames without a pose that can be read."""
        return self._left_out

    def camera_frame(self, camera: str) -> str:
        """Optical frame of the camera. Raises ``KeyError`` for another one."""
        if camera != CAMERA:
            raise KeyError(f"unknown camera {camera!r}; known: {CAMERA}")
        return f"{CAMERA}_optical_frame"

    def depth_scale(self, camera: str) -> float | None:
        """Depth comes in metres from here. Raises ``KeyError`` for another camera."""
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
            camera = frame.color_camera
            try:
                color, depth, camera = self._images(frame)
            except RecordingError as error:
                if not self._tolerate_damage:
                    raise
                color = depth = BadImage(str(error))
            if frame.T_world_camera is not None:
                yield TransformSample(frame.stamp_ns, self._world_frame, optical, frame.T_world_camera)
            yield CalibrationSample(frame.stamp_ns, CAMERA, CameraModel(camera))
            yield ColorSample(frame.stamp_ns, CAMERA, color)
            yield DepthSample(frame.stamp_ns, CAMERA, depth)

    def _images(self, frame: ExportedFrame) -> tuple[ColorImage, DepthImage, Intrinsics]:
        try:
            return matched(frame.color(), frame.color_camera, frame.depth(), frame.depth_camera)
        except ValueError as error:
            if isinstance(error, RecordingError):
                raise
            raise RecordingError(f"{self._folder}: frame at {frame.stamp_ns} ns: {error}") from error


def read_color(path: Path) -> ColorImage:
    """(H, W, 3) uint8 RGB of a file. Raises :class:`RecordingError` naming it."""
    color: ColorImage = read_image(path, decode_color_file)
    return color


def read_depth(path: Path, scale: float, confidence: Path | None = None) -> DepthImage:
    """(h, w) float32 metres of a file with ``scale`` units in a metre, 16-bit PNG or numpy's .npy.

    Where ``confidence`` names an image of that size, what it calls uncertain is unknown. Raises :class:`RecordingError`
    naming the file.
    """
    raw = read_image(path, _numpy_depth if path.suffix == ".npy" else decode_depth_file)
    metres: DepthImage = raw.astype(np.float32) / np.float32(scale)
    metres[raw == np.iinfo(np.uint16).max] = 0.0
    if confidence is not None and confidence.exists():
        certain = read_image(confidence, lambda data: cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_GRAYSCALE))
        if certain is None or certain.shape != metres.shape:
            raise RecordingError(f"{confidence} is no image of the size of {path.name}")
        metres[certain < _LEAST_CONFIDENCE] = 0.0
    return metres


def _numpy_depth(data: bytes) -> NDArray[np.uint16]:
    raw = np.load(io.BytesIO(data), allow_pickle=False)
    if raw.ndim != 2 or raw.dtype != np.uint16:
        raise ValueError(f"depth must be (H, W) uint16, got {raw.shape} {raw.dtype}")
    return np.asarray(raw)


def _matrix(path: Path, rows: tuple[int, ...], columns: int) -> NDArray[np.float64]:
    """Numbers of a text file, separated by blanks or commas."""
    try:
        values = np.array([float(word) for word in re.split(r"[\s,]+", read_text(path, _MAX_TEXT_BYTES).strip())])
    except ValueError as error:
        raise RecordingError(f"{path}: {error}") from error
    if values.size not in [r * columns for r in rows]:
        wanted = " or ".join(f"{r}x{columns}" for r in rows)
        raise RecordingError(f"{path} must hold a matrix of {wanted}, got {values.size} numbers")
    return values.reshape(-1, columns)


def _camera(K: NDArray[np.float64], size: tuple[int, int], where: Path) -> Intrinsics:
    """Of a 3x3 or 4x4 matrix and (height, width)."""
    try:
        return Intrinsics(float(K[0, 0]), float(K[1, 1]), float(K[0, 2]), float(K[1, 2]), size[1], size[0])
    except ValueError as error:
        raise RecordingError(f"{where}: {error}") from error


def _numbered(folder: Path, *suffixes: str) -> list[Path]:
    """Files whose names are whole numbers, in their order."""
    found = [p for p in folder.iterdir() if p.suffix in suffixes and p.stem.isdigit()] if folder.is_dir() else []
    return sorted(found, key=lambda p: int(p.stem))


# --------------------------------------------------------------------------------------------------------------------
# formats


def _scannet(folder: Path, scale: float, left_out: LeftOut) -> Iterator[ExportedFrame]:
    """Poses are camera to world in a world with z up; images have no times: 30 in a second."""
    colors = _numbered(folder / "color", ".jpg", ".png")
    if not colors:
        raise RecordingError(f"{folder / 'color'} holds no images 0.jpg, 1.jpg, ...")
    first_depth = folder / "depth" / f"{colors[0].stem}.png"
    K_color, K_depth = (_matrix(folder / "intrinsic" / f"intrinsic_{k}.txt", (3, 4), 4) for k in ("color", "depth"))
    color_camera = _camera(K_color, read_color(colors[0]).shape[:2], folder / "intrinsic" / "intrinsic_color.txt")
    depth_size = read_depth(first_depth, scale).shape
    depth_camera = _camera(K_depth, depth_size, folder / "intrinsic" / "intrinsic_depth.txt")
    for path in colors:
        T = _matrix(folder / "pose" / f"{path.stem}.txt", (4,), 4)
        depth = partial(read_depth, folder / "depth" / f"{path.stem}.png", scale)
        stamp_ns = NS_PER_S + round(int(path.stem) * NS_PER_S / _SCANNET_FPS)
        pose = _pose(T, str(folder / "pose"), left_out)
        yield ExportedFrame(stamp_ns, pose, partial(read_color, path), depth, color_camera, depth_camera)


def _pose(T: NDArray[np.float64], where: str, left_out: LeftOut) -> NDArray[np.float64] | None:
    """A pose, or None for one that is none (a tracker that was lost writes infinite ones)."""
    try:
        return check_transform(T, "pose")
    except ValueError as error:
        left_out.add(where, str(error))
        return None


class _Video:
    """Frames of a video by their number; quick in their order."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._capture: Any = None
        self._next = 0

    def frame(self, number: int) -> ColorImage:
        """(H, W, 3) uint8 RGB, as stored. Raises :class:`RecordingError` where there is none."""
        if self._capture is None or number < self._next:
            self._capture, self._next = cv2.VideoCapture(str(self._path)), 0
            self._capture.set(cv2.CAP_PROP_ORIENTATION_AUTO, 0)
        while self._next < number and self._capture.grab():
            self._next += 1
        there, image = self._capture.read()
        if not there:
            raise RecordingError(f"{self._path} ends before frame {number}")
        self._next += 1
        return np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2RGB), np.uint8)


def _stray(folder: Path, scale: float, left_out: LeftOut) -> Iterator[ExportedFrame]:
    """Poses of the optical frame in ARKit's world, y up."""
    path = folder / "odometry.csv"
    rows = [
        [field.strip() for field in row] for row in csv.reader(io.StringIO(read_text(path, _MAX_TEXT_BYTES))) if row
    ]
    names = rows[0] if rows else []
    needed = ("timestamp", "frame", "x", "y", "z", "qx", "qy", "qz", "qw")
    missing = [name for name in needed if name not in names]
    if missing:
        raise RecordingError(f"{path} has no column {missing[0]!r}: its first line must name {', '.join(needed)}")
    K, video = _matrix(folder / "camera_matrix.csv", (3,), 3), _Video(folder / "rgb.mp4")
    camera = _camera(K, video.frame(0).shape[:2], folder / "camera_matrix.csv")
    for number, row in enumerate(rows[1:], start=2):
        try:
            value = dict(zip(names, map(float, row), strict=True))
            T = transform_from_pose(
                np.array([value[n] for n in ("x", "y", "z")]), np.array([value[n] for n in ("qx", "qy", "qz", "qw")])
            )
        except ValueError as error:
            left_out.add(str(path), f"{path}:{number}: {error}")
            continue
        stem = f"{int(value['frame']):06d}"
        depth = folder / "depth" / f"{stem}.png"
        if not depth.exists():
            depth = depth.with_suffix(".npy")
        yield ExportedFrame(
            round(value["timestamp"] * NS_PER_S),
            convert_pose(T, ("yup",)),
            partial(video.frame, int(value["frame"])),
            partial(read_depth, depth, scale, folder / "confidence" / f"{stem}.png"),
            camera,
        )


def _polycam(folder: Path, scale: float, left_out: LeftOut) -> Iterator[ExportedFrame]:
    """Poses in ARKit's conventions; those that the app has corrected, where it has."""
    inner = folder / "keyframes" if (folder / "keyframes").is_dir() else folder
    before = "corrected_" if (inner / "corrected_cameras").is_dir() else ""
    cameras = _numbered(inner / f"{before}cameras", ".json")
    for path in cameras:
        try:
            said = json.loads(read_text(path, _MAX_TEXT_BYTES))
            T = np.eye(4)
            T[:3] = [[float(said[f"t_{r}{c}"]) for c in range(4)] for r in range(3)]
            fx, fy, cx, cy = (float(said[k]) for k in ("fx", "fy", "cx", "cy"))
            camera = Intrinsics(fx, fy, cx, cy, int(said["width"]), int(said["height"]))
        except (ValueError, KeyError, TypeError) as error:
            raise RecordingError(f"{path}: {error!r:.200}") from error
        pose = _pose(T, str(path.parent), left_out)
        yield ExportedFrame(
            int(path.stem) * 1000,  # the name counts microseconds
            None if pose is None else convert_pose(pose, ("opengl", "yup")),
            partial(read_color, inner / f"{before}images" / f"{path.stem}.jpg"),
            partial(read_depth, inner / "depth" / f"{path.stem}.png", scale, inner / "confidence" / f"{path.stem}.png"),
            camera,
        )


def _arkitscenes(folder: Path, scale: float, left_out: LeftOut) -> Iterator[ExportedFrame]:
    """Poses are world to camera, as a turning vector and a translation; world z up."""
    times, poses = [], []
    path = folder / "lowres_wide.traj"
    for number, line in enumerate(read_text(path, _MAX_TEXT_BYTES).splitlines(), start=1):
        try:
            time_s, *values = (float(word) for word in line.split())
            if len(values) != 6:
                raise ValueError(f"expected 7 columns, got {len(values) + 1}")
        except ValueError as error:
            left_out.add(str(path), f"{path}:{number}: {error}")
            continue
        R = np.asarray(cv2.Rodrigues(np.array(values[:3]))[0], np.float64)
        times.append(time_s)
        poses.append(invert_transform(make_transform(R, np.array(values[3:]))))
    colors = sorted((folder / "lowres_wide").glob("*_*.png"), key=lambda p: _arkit_time(p.stem))
    if not times or not colors:
        raise RecordingError(f"{folder} holds no poses in lowres_wide.traj, or no images in lowres_wide/")
    for color in colors:
        time_s = _arkit_time(color.stem)
        near = int(np.abs(np.array(times) - time_s).argmin())
        pincam = folder / "lowres_wide_intrinsics" / f"{color.stem}.pincam"
        width, height, fx, fy, cx, cy = _matrix(pincam, (1,), 6)[0].tolist()
        K = np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1.0]])
        yield ExportedFrame(
            round(time_s * NS_PER_S),
            poses[near] if abs(times[near] - time_s) < 0.05 else None,  # at ten in a second
            partial(read_color, color),
            partial(read_depth, folder / "lowres_depth" / color.name, scale, folder / "confidence" / color.name),
            _camera(K, (int(height), int(width)), pincam),
        )


def _arkit_time(stem: str) -> float:
    try:
        return float(stem.rpartition("_")[2])
    except ValueError:
        raise RecordingError(f"{stem}: the name of an image must end in its time, ID_SECONDS") from None


def _record3d(path: Path, scale: float, left_out: LeftOut) -> Iterator[ExportedFrame]:
    """Depth is of metres, whatever ``scale``."""
    for frame in record3d_frames(path, left_out):
        yield ExportedFrame(frame.stamp_ns, frame.T_world_camera, frame.color, frame.depth, frame.color_camera)


_Reader = Callable[[Path, float, LeftOut], Iterator[ExportedFrame]]
_FORMATS: Mapping[str, tuple[tuple[tuple[str, ...], ...], _Reader]] = {  # files that one of them has, its reader
    "ScanNet's exporter": ((("color", "depth", "pose", "intrinsic"),), _scannet),
    "Stray Scanner": ((("rgb.mp4", "odometry.csv", "depth"),), _stray),
    "Polycam": ((("keyframes/depth", "keyframes/cameras"),), _polycam),
    "ARKitScenes": ((("lowres_wide.traj", "lowres_wide", "lowres_depth"),), _arkitscenes),
    "Record3D": ((("metadata", "rgbd"), ("metadata.json", "rgb", "depth")), _record3d),
}

EXPORT_FORMATS = tuple(_FORMATS)


def export_format(path: str | Path) -> str:
    """Name of the format of a folder, or of an .r3d file; empty where it is none of these."""
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
    """A recording of a folder of any of these formats.

    Args:
        folder: where it lies.
        world_frame: name of the frame of the poses.
        tolerate_damage: see :class:`ExportRecording`.
        depth_scale: units of depth in a metre; None = 1000.

    Raises :class:`RecordingError` naming the file: none of the formats, no frames, or what cannot be read.
    """
    folder, name = Path(folder), export_format(folder)
    if not name:
        raise RecordingError(f"{folder} is no folder of {', '.join(_FORMATS)}")
    left_out = LeftOut()
    frames = tuple(_FORMATS[name][1](folder, 1000.0 if depth_scale is None else depth_scale, left_out))
    if not frames:
        raise RecordingError(f"{folder} looks like a folder of {name}, but holds no frames")
    ordered = tuple(sorted(frames, key=lambda frame: frame.stamp_ns))
    return ExportRecording(folder, ordered, left_out, world_frame, tolerate_damage)
