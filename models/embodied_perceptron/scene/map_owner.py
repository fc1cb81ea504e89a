"""The care for a live map in the hands of who has one: each member is that of :class:`~.live_map.LiveMap`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.mapping.correction import Correction
from embodied_perceptron.mapping.volume import FeatureVolume, VolumeStatistics
from embodied_perceptron.relocalisation.search import PlaceEstimate
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
        """(4, 4) where the map lies in the world. The identity unless the map began far from the world's origin, or was
        put elsewhere by :meth:`load`."""
        return self.map.T_world_map

    @property
    def newest_frame(self) -> PosedFrame | None:
        """The frame that was fused last; None where there is none (an empty map, a map from a file)."""
        return self.map.newest_frame

    def save(self, path: str | Path) -> None:
        """Write voxels, keyframes, objects and labelled cells to one file; atomic. Fusing goes on while the disk works.

        Raises ``OSError`` when it cannot be written, and
        :class:`~embodied_perceptron.mapping.storage.MapChangedError` where another program wrote the file since.
        """
        self.map.save(path)

    @property
    def place_estimate(self) -> PlaceEstimate | None:
        """What is known of the robot's place in the loaded map as long as it is looked for; None = it is not."""
        return self.map.place_estimate

    def load(
        self, path: str | Path, T_world_saved: NDArray[np.float64] | None = None, *, find_place: bool = False
    ) -> str:
        """Replace the map by a saved one; images are encoded anew at the next perception.

        ``T_world_saved``: (4, 4) pose of the world of then in that of now, turned about the vertical alone, where the
        world began elsewhere (odometry does with each start of a robot). With ``find_place`` the next frames find it by
        what they show; they are fused as soon as it is sure, and :attr:`place_estimate` tells how it stands.

        Returns, in words, why the place cannot be looked for; "" where it can, or shall not. Raises ``MapFileError``
        for a file that is no map, ``OSError`` for one that cannot be read, and ``ValueError`` for a pose that is none;
        nothing has changed then.
        """
        return self.map.load(path, T_world_saved, find_place=find_place)

    def reset(self) -> None:
        """Forget everything."""
        self.map.reset()

    def forget_stamps(self, camera: str | None = None) -> None:
        """Accept frames of any stamp again, of one camera or of all: a clock was set, or a recording loops. Map and
        objects stay."""
        self.map.forget_stamps(camera)

    def statistics(self) -> VolumeStatistics:
        """Size and history of the volume."""
        return self.map.statistics()

    def keyframe_poses(self) -> dict[tuple[str, int], NDArray[np.float64]]:
        """(camera, stamp_ns) -> (4, 4) T_world_camera of the retained keyframes, oldest first."""
        return self.map.keyframe_poses()

    def correct_keyframes(self, poses: Mapping[tuple[str, int], NDArray[np.float64]]) -> Correction:
        """Bring the map to corrected poses of its keyframes, as a SLAM system gives them; ids of objects stay.

        ``poses``: (camera, stamp_ns) -> (4, 4) T_world_camera. Raises ``ValueError`` for a pose that is none.
        """
        return self.map.correct_keyframes(poses)

    def clear_box(self, box: NDArray[np.float64]) -> int:
        """Remove voxels and objects inside of the (9,) ``box``, in the map as objects are; returns how many voxels."""
        return self.map.clear_box(box)
