"""Frames kept whole, selected by motion: what later parts of the map (image features) are computed from."""

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
    """A kept frame.

    Attributes:
        id: counts up from 0 over the life of the map, never reused.
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
        """Forget all keyframes and start counting again."""
        self._kept: deque[Keyframe] = deque()
        self._last: dict[str, tuple[int, NDArray[np.float64]]] = {}  # outlives eviction of the keyframe itself
        self._next_id = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Keyframe]:
        return iter(self._kept)

    @property
    def newest(self) -> Keyframe | None:
        """The last one kept."""
        return self._kept[-1] if self._kept else None

    @property
    def taken(self) -> int:
        """Keyframes taken so far, dropped ones included."""
        return self._next_id

    @property
    def dropped(self) -> int:
        """Keyframes dropped because there were more than ``max_count``."""
        return self._next_id - len(self._kept)

    @property
    def nbytes(self) -> int:
        """Memory of all images."""
        return sum(k.nbytes for k in self._kept)

    def wants(self, posed: PosedFrame) -> bool:
        """Whether ``posed`` moved enough to be kept."""
        last = self._last.get(posed.frame.camera)
        if last is None:
            return True
        stamp_ns, T_world_last = last
        # an older stamp means that time was restarted: the interval says nothing then
        if 0 <= posed.frame.stamp_ns - stamp_ns < self.config.min_interval_s * 1e9:
            return False
        T = posed.T_world_camera
        if float(np.linalg.norm(T[:3, 3] - T_world_last[:3, 3])) >= self.config.translation_m:
            return True
        return rotation_angle_rad(T_world_last[:3, :3].T @ T[:3, :3]) >= self.config.rotation_rad

    def offer(self, posed: PosedFrame) -> bool:
        """Keep a copy of ``posed`` if it moved enough; returns whether it was kept."""
        if not self.wants(posed):
            return False
        f = posed.frame
        copy = RgbdFrame(f.stamp_ns, f.camera, f.color.copy(), f.depth_m.copy(), f.intrinsics)
        self._keep(Keyframe(self._next_id, copy, posed.T_world_camera.copy()))
        self._next_id += 1
        return True

    def restore(self, keyframes: list[Keyframe], next_id: int) -> None:
        """Replace the content by saved keyframes, oldest first; more than ``max_count`` are cut at the old end."""
        self.clear()
        for keyframe in keyframes:
            self._keep(keyframe)
        self._next_id = next_id

    def _keep(self, keyframe: Keyframe) -> None:
        self._kept.append(keyframe)
        self._last[keyframe.frame.camera] = (keyframe.frame.stamp_ns, keyframe.T_world_camera)
        while len(self._kept) > self.config.max_count:
            self._kept.popleft()
