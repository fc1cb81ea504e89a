"""Places of a map: views that keyframes had, by their features; bounded, and kept with the map.

Keyframes are dropped after a while, with their images; places stay, some 12 kilobytes each (22 of XFeat). A view that
was had before replaces the older one, so that their number follows the size of the map and not the length of the run,
and the light is that of the last visit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import check_transform, rotation_angle_rad
from embodied_perceptron.mapping.keyframes import Keyframe
from embodied_perceptron.mapping.storage import MapFileError, SavedMap, take_array
from embodied_perceptron.recordings import plain_values
from embodied_perceptron.relocalisation.features import MAX_FEATURES, FeatureExtractor, features_of

_HEADER = "places"  # entry of a map file, and first word of its tensors
_SAME_M, _SAME_RAD = 0.25, 0.35
_LEAST_FEATURES = 12
_MILLIMETRES = 1000.0
_MAX_SAVED = 100_000


@dataclass(frozen=True, eq=False)
class Place:
    """One view of the map.

    Attributes:
        kind: of its features.
        stamp_ns: when it was seen, time of the map.
        T_map_camera: (4, 4) float64 pose of the camera's optical frame.
        points_mm: (N, 3) int16 of its features in the camera's frame, millimetres.
        descriptors: (N, D) uint8.
    """

    kind: str
    stamp_ns: int
    T_map_camera: NDArray[np.float64]
    points_mm: NDArray[np.int16]
    descriptors: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.points_mm)

    @property
    def points_m(self) -> NDArray[np.float64]:
        """(N, 3) of its features in the map."""
        points: NDArray[np.float64] = (
            self.points_mm / _MILLIMETRES @ self.T_map_camera[:3, :3].T + self.T_map_camera[:3, 3]
        )
        return points

    @property
    def nbytes(self) -> int:
        """Memory of its features."""
        return self.points_mm.nbytes + self.descriptors.nbytes


class PlaceMemory:
    """At most ``max_places`` places, the one seen longest ago first. Not thread-safe."""

    def __init__(self, max_places: int) -> None:
        self.max_places = max_places
        self._places: list[Place] = []

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Place]:
        return iter(self._places)

    @property
    def nbytes(self) -> int:
        """Memory of all features."""
        return sum(place.nbytes for place in self._places)

    def clear(self) -> None:
        """Forget all."""
        self._places = []

    def add(self, place: Place) -> None:
        """In place of those that are the same view; beyond ``max_places``, of the one seen longest ago."""
        others = [other for other in self._places if not _is_same_view(place, other)]
        self._places = [*others, place][-self.max_places :]

    def move(self, motion_at: Callable[[int], NDArray[np.float64]]) -> None:
        """After a correction of the map: ``motion_at`` gives the (4, 4) motion of what was seen at a time."""
        self._places = [replace(p, T_map_camera=motion_at(p.stamp_ns) @ p.T_map_camera) for p in self._places]

    # ---- map files

    def pack(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Tensors and header entries of a map file; none where there is no place."""
        if not self._places:
            return {}, {}
        tensors = {f"{_HEADER}.T_map_camera": torch.from_numpy(np.stack([p.T_map_camera for p in self._places]))}
        for i, place in enumerate(self._places):
            tensors[f"{_HEADER}.{i}.points_mm"] = torch.from_numpy(place.points_mm)
            tensors[f"{_HEADER}.{i}.descriptors"] = torch.from_numpy(place.descriptors)
        return tensors, {_HEADER: [{"kind": p.kind, "stamp_ns": p.stamp_ns} for p in self._places]}

    @classmethod
    def unpack(cls, saved: SavedMap, max_places: int) -> PlaceMemory:
        """Those of a map file; none of a file that has none. Raises :class:`MapFileError` for what is none."""
        memory = cls(max_places)
        entries = saved.header.get(_HEADER)
        if entries is None:
            return memory
        path, tensors = saved.path, saved.tensors
        try:
            entries = plain_values.sequence(entries, _HEADER)
            if len(entries) > _MAX_SAVED:
                raise ValueError(f"they are {len(entries)}, more than {_MAX_SAVED}")
            poses = take_array(path, tensors, f"{_HEADER}.T_map_camera", torch.float64, (len(entries), 4, 4))
            for i, entry in enumerate(entries):
                described = plain_values.mapping(entry, "a place")
                points = take_array(path, tensors, f"{_HEADER}.{i}.points_mm", torch.int16, (None, 3))
                if len(points) > MAX_FEATURES:
                    raise ValueError(f"place {i} has {len(points)} features, more than {MAX_FEATURES}")
                memory._places.append(
                    Place(
                        plain_values.text(described["kind"], "kind"),
                        plain_values.stamp_ns(described["stamp_ns"], "stamp_ns"),
                        check_transform(poses[i], "T_map_camera"),
                        points,
                        take_array(path, tensors, f"{_HEADER}.{i}.descriptors", torch.uint8, (len(points), None)),
                    )
                )
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, MapFileError):
                raise
            raise MapFileError(f"{path}: its places are damaged: {error}") from error
        memory._places = memory._places[-max_places:]
        return memory


def place_of(keyframe: Keyframe, of: FeatureExtractor) -> Place | None:
    """The place that a keyframe of the map shows; None where it shows next to nothing."""
    features = features_of(keyframe.frame, of)
    if len(features) < _LEAST_FEATURES:
        return None
    points_mm = np.round(features.points_m * _MILLIMETRES).clip(-32768, 32767).astype(np.int16)
    T = keyframe.T_world_camera
    return Place(of.kind, keyframe.frame.stamp_ns, T.copy(), points_mm, features.descriptors)


def _is_same_view(a: Place, b: Place) -> bool:
    if a.kind != b.kind or float(np.linalg.norm(a.T_map_camera[:3, 3] - b.T_map_camera[:3, 3])) >= _SAME_M:
        return False
    return rotation_angle_rad(a.T_map_camera[:3, :3].T @ b.T_map_camera[:3, :3]) < _SAME_RAD
