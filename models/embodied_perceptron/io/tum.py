"""Folders in TUM RGB-D layout: reader, and a writer for simulated recordings.

    rgb.txt           # timestamp filename            (PNG or JPEG)
    depth.txt         # timestamp filename            (16-bit PNG, registered to colour)
    groundtruth.txt   # timestamp tx ty tz qx qy qz qw: T_world_camera of the optical frame, world z up
    camera.json       width height fx fy cx cy depth_scale (raw units per metre), and optionally depth_invalid (raw
                      values), camera (name), camera_frame (optical frame), world_frame, base_frame with T_base_camera
                      (4x4)
    scene.json        optional: what is known of a simulated scene

Several cameras: one such folder per camera inside of a common folder, whose ``cameras.json`` lists their names (a
folder that merely holds several recordings is none). Stamps are decimal seconds and are kept exact.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from embodied_perceptron.assembler import BadImage
from embodied_perceptron.camera_model import CameraModel
from embodied_perceptron.geometry import invert_transform
from embodied_perceptron.io.recording import (
    CalibrationSample,
    ColorSample,
    DepthSample,
    RecordingError,
    Sample,
    TransformSample,
)
from embodied_perceptron.io.tum_files import (
    CAMERA_LIST,
    TumCamera,
    associate,
    camera_folders,
    is_tum_folder,
    parse_stamp,
    read_json,
    read_tum_camera,
)
from embodied_perceptron.io.tum_writer import TumWriter, write_camera_list
from embodied_perceptron.trajectory import NS_PER_S

__all__ = [
    "TumCamera",
    "TumRecording",
    "TumWriter",
    "associate",
    "is_tum_folder",
    "parse_stamp",
    "read_tum_camera",
    "write_camera_list",
]

ImageT = TypeVar("ImageT")

_LOOKAHEAD_NS = 5 * NS_PER_S


class TumRecording:
    """A :class:`~embodied_perceptron.io.recording.Recording` from such a folder, of one camera or of several.

    Transforms: world -> base -> optical frames where camera.json has a base (the first camera's poses place it),
    otherwise world -> optical frame for each camera.
    """

    def __init__(self, folder: str | Path, *, world_frame: str = "odom", tolerate_damage: bool = False) -> None:
        """Args:

        folder: of one camera, or with one folder per camera.
        world_frame: where camera.json names none.
        tolerate_damage: images that cannot be decoded become
            :class:`~embodied_perceptron.assembler.BadImage` samples instead of raising.

        Raises :class:`RecordingError` (see :func:`read_tum_camera`).
        """
        self._folder = Path(folder)
        single = (self._folder / "rgb.txt").exists()
        if not is_tum_folder(self._folder):
            raise RecordingError(f"{self._folder} holds no rgb.txt, and no {CAMERA_LIST} that lists several cameras")
        folders = [self._folder] if single else camera_folders(self._folder)
        self._cameras = {c.name: c for c in (read_tum_camera(f, None if single else f.name) for f in folders)}
        if len(self._cameras) != len(folders):
            raise RecordingError(f"{self._folder}: two cameras have the same name")
        first = next(iter(self._cameras.values()))
        self._world_frame = first.world_frame or world_frame
        self._tolerate_damage = tolerate_damage
        for camera in self._cameras.values():
            if camera.base_frame != first.base_frame or (camera.world_frame or self._world_frame) != self._world_frame:
                raise RecordingError(
                    f"{camera.folder / 'camera.json'}: base_frame and world_frame must be those of {first.folder}"
                )
        self._truth = self._read_truth()

    @property
    def source(self) -> Path:
        """The folder."""
        return self._folder

    @property
    def cameras(self) -> tuple[str, ...]:
        """Names of the cameras."""
        return tuple(self._cameras)

    @property
    def world_frame(self) -> str:
        """Frame of the poses."""
        return self._world_frame

    @property
    def truth(self) -> Mapping[str, Any] | None:
        """Contents of scene.json, or None."""
        return self._truth

    def camera_frame(self, camera: str) -> str:
        """Optical frame of a camera. Raises ``KeyError`` for an unknown one."""
        return self.camera(camera).optical_frame

    def camera(self, name: str) -> TumCamera:
        """A camera's folder. Raises ``KeyError`` for an unknown one."""
        if name not in self._cameras:
            raise KeyError(f"unknown camera {name!r}; known: {', '.join(self._cameras)}")
        return self._cameras[name]

    def __len__(self) -> int:
        """Colour images over all cameras."""
        return sum(len(camera.color_files) for camera in self._cameras.values())

    def __iter__(self) -> Iterator[Sample]:
        """See :class:`~embodied_perceptron.io.recording.Recording`."""
        transforms = self._transforms()
        ahead = next(transforms, None)
        newest = dict.fromkeys(self._moving_frames(), -1)
        for sample in self._images():
            # up to the first pose behind this image, so that it can be interpolated at once; not further than a
            # transform tree remembers, should one camera's poses end early
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
                yield TransformSample(stamp, self._world_frame, frame, T)
            return
        for camera in cameras:
            assert camera.T_base_camera is not None
            yield TransformSample(0, first.base_frame, camera.optical_frame, camera.T_base_camera, is_static=True)
        T_camera_base = invert_transform(first.T_base_camera)
        for stamp, T in first.poses:
            yield TransformSample(stamp, self._world_frame, first.base_frame, T @ T_camera_base)

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
                yield ColorSample(stamp, camera.name, self._guarded(camera.read_color, path))
            else:
                yield DepthSample(stamp, camera.name, self._guarded(camera.read_depth, path))

    def _guarded(self, read: Callable[[Path], ImageT], path: Path) -> ImageT | BadImage:
        try:
            return read(path)
        except RecordingError as error:
            if not self._tolerate_damage:
                raise
            return BadImage(str(error))

    def _read_truth(self) -> Mapping[str, Any] | None:
        path = self._folder / "scene.json"
        if not path.exists():
            return None
        truth = read_json(path)
        if not isinstance(truth, dict):
            raise RecordingError(f"{path} must hold an object, got {type(truth).__name__}")
        return truth
