"""Writes folders in TUM RGB-D layout; see :mod:`embodied_perceptron.io.tum`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.files import write_atomically
from embodied_perceptron.geometry import (
    FloatArray,
    Intrinsics,
    check_transform,
    rotation_to_quaternion,
)
from embodied_perceptron.io.image_codec import (
    encode_color_file,
    encode_depth_file,
)
from embodied_perceptron.io.tum_files import CAMERA_LIST, REQUIRED_KEYS
from embodied_perceptron.trajectory import format_stamp


class TumWriter:
    """Writes one camera's folder. The lists come last, so that a folder that is cut short is recognised as such.

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
        base_frame: str | None = None,
        T_base_camera: FloatArray | None = None,
    ) -> None:
        """Args:

        folder: made where it is missing; must not hold a recording already.
        intrinsics: of the images.
        camera: name.
        camera_frame: optical frame; by default made from the name.
        depth_scale: raw units per metre: 1000 reaches 65.5 m, 5000 (the TUM data sets) 13.1 m.
        color_extension: ``.png`` (lossless) or ``.jpg``.
        world_frame, base_frame, T_base_camera: see the module.

        Raises:
            FileExistsError: a recording lies there.
            ValueError: base_frame without T_base_camera or the other way round; scale not positive.
        """
        if (base_frame is None) != (T_base_camera is None):
            raise ValueError("base_frame and T_base_camera belong together")
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
        self._spec: dict[str, Any] = {key: getattr(intrinsics, key) for key in REQUIRED_KEYS[:-1]}
        self._spec |= {"depth_scale": depth_scale, "depth_invalid": [0, 65535], "camera": camera}
        for key, frame in (("camera_frame", camera_frame), ("world_frame", world_frame)):
            if frame is not None:
                self._spec[key] = frame
        if base_frame is not None and T_base_camera is not None:
            self._spec |= {
                "base_frame": base_frame,
                "T_base_camera": check_transform(T_base_camera, "T_base_camera").tolist(),
            }
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
            depth_m: (H, W) metres; what is not finite, not positive or too far for 16 bits becomes unknown.
            T_world_camera: (4, 4) pose of the optical frame.

        Raises:
            ValueError: sizes that do not fit the intrinsics, a pose that is not rigid.
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
        """Write a pose alone (poses may come faster than images). Raises ``ValueError`` when it is not rigid."""
        T = check_transform(T_world_camera, "T_world_camera")
        values = (*T[:3, 3], *rotation_to_quaternion(T[:3, :3]))
        self._poses.append(" ".join([format_stamp(stamp_ns), *(f"{v:.9f}" for v in values)]))

    def close(self, truth: Mapping[str, Any] | None = None) -> None:
        """Write the text files, and scene.json where ``truth`` is given. Later calls do nothing."""
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


def write_camera_list(folder: str | Path, names: Sequence[str]) -> None:
    """Make one recording of the cameras whose folders (:class:`TumWriter`) lie in ``folder``.

    The first camera's poses place the base. Raises ``ValueError`` for a name without a recording, ``OSError``.
    """
    for name in names:
        if not (Path(folder) / name / "rgb.txt").exists():
            raise ValueError(f"{Path(folder) / name} holds no recording")
    write_atomically(Path(folder) / CAMERA_LIST, json.dumps(list(names)).encode())


def _write_lines(path: Path, header: str, lines: Sequence[str]) -> None:
    write_atomically(path, "\n".join([header, *lines, ""]).encode())
