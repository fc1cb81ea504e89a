"""Places of a map: features of keyframe views, bounded in number and saved with the map.

Places remain after their keyframes are dropped, at about 12 KB each (22 KB for XFeat). A new view replaces an older one
of the same pose, so their number grows with the map and not with the run, and the lighting is that of the last visit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import F64, check_transform, rotation_angle_rad
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
    """Features of one view of the map.

    Attributes:
        kind: of the features.
        stamp_ns: of the view, in the map's time.
        T_map_camera: (4, 4) float64 pose of the camera's optical frame.
        points_mm: (N, 3) int16 of its features in the camera's frame, millimetres.
        descriptors: (N, D) uint8.
    """

    kind: str
    stamp_ns: int
    T_map_camera: F64
    points_mm: NDArray[np.int16]
    descriptors: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.points_mm)

    @property
    def points_m(self) -> F64:
        """Return (N, 3) feature positions in the map."""
        points: F64 = self.points_mm / _MILLIMETRES @ self.T_map_camera[:3, :3].T + self.T_map_camera[:3, 3]
        return points

    @property
    def nbytes(self) -> int:
        """Return the memory of the features."""
        return self.points_mm.nbytes + self.descriptors.nbytes


class PlaceMemory:
    """At most ``max_places`` places, the least recently seen first. Not thread-safe."""

    def __init__(self, max_places: int) -> None:
        self.max_places = max_places
        self._places: list[Place] = []

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Place]:
        return iter(self._places)

    @property
    def nbytes(self) -> int:
        """Return the memory of all features."""
        return sum(place.nbytes for place in self._places)

    def clear(self) -> None:
        """Delete all places."""
        self._places = []

    def add(self, place: Place) -> None:
        """Add a place; it replaces those of the same view, or the least recently seen beyond ``max_places``."""
        others = [other for other in self._places if not _is_same_view(place, other)]
        self._places = [*others, place][-self.max_places :]

    def move(self, motion_at: Callable[[int], F64]) -> None:
        """Apply a correction of the map; ``motion_at`` gives the (4, 4) motion at a stamp."""
        self._places = [replace(p, T_map_camera=motion_at(p.stamp_ns) @ p.T_map_camera) for p in self._places]

    # ---- map files

    def pack(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return tensors and header entries for a map file; empty without places."""
        if not self._places:
            return {}, {}
        tensors = {f"{_HEADER}.T_map_camera": torch.from_numpy(np.stack([p.T_map_camera for p in self._places]))}
        for i, place in enumerate(self._places):
            tensors[f"{_HEADER}.{i}.points_mm"] = torch.from_numpy(place.points_mm)
            tensors[f"{_HEADER}.{i}.descriptors"] = torch.from_numpy(place.descriptors)
        return tensors, {_HEADER: [{"kind": p.kind, "stamp_ns": p.stamp_ns} for p in self._places]}

    @classmethod
    def unpack(cls, saved: SavedMap, max_places: int) -> PlaceMemory:
        """Read the places of a map file, which may have none. Raises :class:`MapFileError` for damaged ones."""
        memory = cls(max_places)
        entries = saved.header.get(_HEADER)
        if entries is None:
            return memory
        path, tensors = saved.path, saved.tensors
        try:
            entries = plain_values.sequence(entries, _HEADER)
            if len(entries) > _MAX_SAVED:
                raise ValueError(f"{len(entries)} places, more than {_MAX_SAVED}")
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
    """Return the place of a keyframe; None with too few features."""
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
