"""Keyframes: whole frames selected by motion, from which image features are computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.config import KeyframeConfig
from embodied_perceptron.geometry.transforms import rotation_angle_rad
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame


@dataclass(frozen=True, eq=False)
class Keyframe:
    """Retained frame.

    Attributes:
        id: counts up from 0, never reused.
        frame: own copy of the images, with stamp, camera and intrinsics.
        T_world_camera: (4, 4) float64.
    """

    id: int
    frame: RgbdFrame
    T_world_camera: NDArray[np.float64]

    @property
    def nbytes(self) -> int:
        """Memory of the images."""
        return self.frame.depth_m.nbytes + self.frame.color.nbytes


class KeyframeStore:
    """The newest ``max_count`` keyframes of all cameras, oldest first.

    A frame is kept when it is the first of its camera, or moved ``translation_m`` or turned ``rotation_rad`` against
    the camera's last keyframe, which is at least ``min_interval_s`` older.
    """

    def __init__(self, config: KeyframeConfig) -> None:
        self.config = config
        self.clear()

    def clear(self) -> None:
        """Remove all keyframes and restart the ids."""
        self._kept: deque[Keyframe] = deque()
        self._last: dict[str, tuple[int, NDArray[np.float64]]] = {}  # also of keyframes dropped since
        self._next_id = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Keyframe]:
        return iter(self._kept)

    @property
    def newest(self) -> Keyframe | None:
        """The last keyframe."""
        return self._kept[-1] if self._kept else None

    @property
    def taken(self) -> int:
        """Number of keyframes so far, including dropped ones."""
        return self._next_id

    @property
    def dropped(self) -> int:
        """Number of keyframes dropped beyond ``max_count``."""
        return self._next_id - len(self._kept)

    @property
    def nbytes(self) -> int:
        """Memory of all images."""
        return sum(k.nbytes for k in self._kept)

    def offer(self, posed: PosedFrame) -> bool:
        """Retain a copy of ``posed`` if the camera moved enough; returns whether it did."""
        f, T, config = posed.frame, posed.T_world_camera, self.config
        if f.camera in self._last:
            stamp_ns, T_last = self._last[f.camera]
            # an older stamp means that time restarted: the interval is meaningless
            if 0 <= f.stamp_ns - stamp_ns < config.min_interval_s * 1e9:
                return False
            if (
                float(np.linalg.norm(T[:3, 3] - T_last[:3, 3])) < config.translation_m
                and rotation_angle_rad(T_last[:3, :3].T @ T[:3, :3]) < config.rotation_rad
            ):
                return False
        copy = RgbdFrame(f.stamp_ns, f.camera, f.color.copy(), f.depth_m.copy(), f.intrinsics)
        self._keep(Keyframe(self._next_id, copy, posed.T_world_camera.copy()))
        self._next_id += 1
        return True

    def restore(self, keyframes: list[Keyframe], next_id: int) -> None:
        """Replace the content by saved keyframes, oldest first; the oldest beyond ``max_count`` are dropped."""
        self.clear()
        for keyframe in keyframes:
            self._keep(keyframe)
        self._next_id = next_id

    def _keep(self, keyframe: Keyframe) -> None:
        self._kept.append(keyframe)
        self._last[keyframe.frame.camera] = (keyframe.frame.stamp_ns, keyframe.T_world_camera)
        while len(self._kept) > self.config.max_count:
            self._kept.popleft()
