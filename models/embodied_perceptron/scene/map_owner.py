"""The care for a live map in the hands of who has one: each member is that of :class:`~.live_map.LiveMap`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.mapping.correction import Correction
from embodied_perceptron.mapping.volume import FeatureVolume, VolumeStatistics
from embodied_perceptron.scene.live_map import LiveMap
from embodied_perceptron.sensors.frame import PosedFrame


class MapOwner:
    """Has a live map, and hands what users ask of it on.

    Attributes:
        map: the live map.
    """

    map: LiveMap

    @property
    def volume(self) -> FeatureVolume:
        """Voxels and keyframes."""
        return self.map.volume

    @property
    def T_world_map(self) -> NDArray[np.float64]:  # noqa: N802  frames in names
        """See :attr:`.LiveMap.T_world_map`."""
        return self.map.T_world_map

    @property
    def newest_frame(self) -> PosedFrame | None:
        """See :attr:`.LiveMap.newest_frame`."""
        return self.map.newest_frame

    def save(self, path: str | Path) -> None:
        """See :meth:`.LiveMap.save`."""
        self.map.save(path)

    def load(self, path: str | Path, T_world_saved: NDArray[np.float64] | None = None) -> None:
        """See :meth:`.LiveMap.load`."""
        self.map.load(path, T_world_saved)

    def reset(self) -> None:
        """See :meth:`.LiveMap.reset`."""
        self.map.reset()

    def forget_stamps(self, camera: str | None = None) -> None:
        """See :meth:`.LiveMap.forget_stamps`."""
        self.map.forget_stamps(camera)

    def statistics(self) -> VolumeStatistics:
        """See :meth:`.LiveMap.statistics`."""
        return self.map.statistics()

    def keyframe_poses(self) -> dict[tuple[str, int], NDArray[np.float64]]:
        """See :meth:`.LiveMap.keyframe_poses`."""
        return self.map.keyframe_poses()

    def correct_keyframes(self, poses: Mapping[tuple[str, int], NDArray[np.float64]]) -> Correction:
        """See :meth:`.LiveMap.correct_keyframes`."""
        return self.map.correct_keyframes(poses)

    def clear_box(self, box: NDArray[np.float64]) -> int:
        """See :meth:`.LiveMap.clear_box`."""
        return self.map.clear_box(box)
