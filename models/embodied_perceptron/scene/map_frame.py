"""Place and time of a map: its own origin near the start, and a time that never goes back.

*Place.* Voxels are stored as float32 relative to the origin, so a map far from it is coarse (6 cm at a UTM coordinate
of 10^6 m). Maps whose first frame is further than :data:`FAR_M` from the origin are anchored at the multiple of
:data:`ANCHOR_STEP_M` nearest to the first camera: *world* is the frame of the given poses, *map* has the same axes and
its origin at the anchor. A saved map may be placed anywhere in the present world, also rotated about the vertical.

*Time.* When the clock of a camera is set, or a recording loops, its stamps jump. The map's time continues: each camera
has an offset between its stamps and the map's time, which changes after :meth:`MapFrame.forget_stamps`. So nothing in
the map lies in the future: missed objects expire, and a correction finds what is older than its keyframes.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import (
    check_transform,
    invert_transform,
    level_transform,
    make_transform,
    transform_points,
    yaw_of,
)
from embodied_perceptron.recordings import plain_values
from embodied_perceptron.recordings.tensor_files import parse_json
from embodied_perceptron.sensors.frame import PosedFrame

FAR_M = 1000.0  # float32 then still resolves 0.06 mm
ANCHOR_STEP_M = 100.0
MAX_WORLD_M = 2e7  # half of the Earth's circumference; includes UTM and Earth-centred coordinates
REACH_M = 8000.0  # float32 resolves 0.5 mm up to 8192 m
_LEVEL_RAD = 0.02  # tolerated tilt of a localisation's pose
_NEAR_NS = 1_000_000_000
_STEP_NS = 1_000_000  # from the newest time of the map to the first frame after a jump of stamps
_MAX_SPANS = 64


class MapLimitError(ValueError):
    """A camera is further from the map's origin than the map can hold."""


@dataclass
class _CameraTime:
    """Spans of one camera's stamps: (first time of the map, offset), where map = stamp + offset."""

    spans: list[tuple[int, int]] = field(default_factory=list)
    newest_ns: int | None = None  # time of the map
    settled: bool = True  # False after a jump of stamps, until the next frame

    def offset_at(self, map_ns: int) -> int:
        return next((offset for first, offset in reversed(self.spans) if first <= map_ns), self.spans[0][1])


class MapFrame:
    """See the module docstring. Not thread-safe.

    Attributes:
        T_world_map: (4, 4) float64, level; identity for maps that begin near the world's origin.
        reach_m: largest distance of a camera from the map's origin along an axis.
    """

    def __init__(self, reach_m: float = REACH_M) -> None:
        self.reach_m = min(reach_m, REACH_M)
        self.clear()

    def clear(self) -> None:
        """Reset; the next frame determines place and time."""
        self.T_world_map: NDArray[np.float64] = np.eye(4)
        self._anchored = False
        self._cameras: dict[str, _CameraTime] = {}
        self._newest_ns: int | None = None
        self._offset_ns = 0
        self._loaded = False

    # ---- into the map

    def enter(self, posed: PosedFrame, fresh: bool) -> PosedFrame:
        """Convert a frame to the map's place and time; the frame itself where they agree. :meth:`entered` confirms it.

        ``fresh``: the map is empty and may be anchored. Raises :class:`MapLimitError`.
        """
        position_m = posed.T_world_camera[:3, 3]
        if fresh and not self._anchored:
            far = np.abs(position_m).max() > min(FAR_M, self.reach_m / 2)
            anchor_m = np.round(position_m / ANCHOR_STEP_M) * ANCHOR_STEP_M if far else np.zeros(3)
            self.T_world_map = make_transform(np.eye(3), anchor_m)
        T_map_world = invert_transform(self.T_world_map)
        off_m = float(np.abs(transform_points(T_map_world, position_m[None])[0]).max())
        if off_m > self.reach_m:
            raise MapLimitError(
                f"camera {posed.frame.camera!r} is at {np.round(position_m, 1).tolist()} m, {off_m:.0f} m along an "
                f"axis from the map's origin at {self.T_world_map[:3, 3].tolist()} m, and the map reaches "
                f"{self.reach_m:.0f} m: save or reset the map to begin another one here"
            )
        return self._moved(posed, posed.frame.stamp_ns + self._offset_of(posed), T_map_world)

    def entered(self, posed: PosedFrame, in_map: PosedFrame) -> None:
        """Confirm that the converted frame ``in_map`` was fused."""
        self._anchored = True
        map_ns = in_map.frame.stamp_ns
        offset_ns = map_ns - posed.frame.stamp_ns
        camera = self._cameras.setdefault(posed.frame.camera, _CameraTime())
        if not camera.spans or camera.spans[-1][1] != offset_ns:
            camera.spans = [*camera.spans, (map_ns, offset_ns)][-_MAX_SPANS:]
        camera.newest_ns, camera.settled = map_ns, True
        self._offset_ns = offset_ns
        self._newest_ns = map_ns if self._newest_ns is None else max(self._newest_ns, map_ns)

    def forget_stamps(self, camera: str | None = None) -> None:
        """Expect a jump of the stamps of a camera (None = all): its next frame follows the newest of the map."""
        for name, known in self._cameras.items():
            if camera in (None, name):
                known.settled = False

    def place_in_map(self, T_world: NDArray[np.float64]) -> NDArray[np.float64]:
        """(4, 4) pose in the world -> pose in the map."""
        T: NDArray[np.float64] = invert_transform(self.T_world_map) @ T_world
        return T

    def now(self, stamp_ns: int) -> int:
        """Convert a time on the clock of the newest frame to the map's time."""
        return stamp_ns + self._offset_ns

    def time_in_map(self, camera: str, stamp_ns: int) -> int:
        """Convert a recent stamp of a camera to the map's time."""
        known = self._cameras.get(camera)
        return stamp_ns + (known.spans[-1][1] if known is not None and known.spans else self._offset_ns)

    def _offset_of(self, posed: PosedFrame) -> int:
        camera, stamp_ns = self._cameras.get(posed.frame.camera), posed.frame.stamp_ns
        if camera is not None and camera.settled:
            return camera.spans[-1][1]
        if self._newest_ns is None:
            return 0
        # another camera jumped in the same way, or the stamps continue as before
        for offset_ns in dict.fromkeys([self._offset_ns, *(c.spans[-1][1] for c in self._cameras.values() if c.spans)]):
            map_ns = stamp_ns + offset_ns
            after_own = camera is None or camera.newest_ns is None or map_ns > camera.newest_ns
            if abs(map_ns - self._newest_ns) <= _NEAR_NS and after_own:
                return offset_ns
        if camera is None and not self._loaded:
            return self._offset_ns  # another camera with its own clock
        if self._loaded and stamp_ns > self._newest_ns:
            return 0
        return self._newest_ns + _STEP_NS - stamp_ns

    # ---- out of the map

    def leave(self, in_map: PosedFrame) -> PosedFrame:
        """The inverse of :meth:`enter`."""
        return self._moved(in_map, self.stamp_of(in_map.frame.camera, in_map.frame.stamp_ns), self.T_world_map)

    def leave_time(self, in_map: PosedFrame) -> PosedFrame:
        """The frame with its original stamp, in the map's place."""
        return self._moved(in_map, self.stamp_of(in_map.frame.camera, in_map.frame.stamp_ns), np.eye(4))

    def place_in_world(self, T_map: NDArray[np.float64]) -> NDArray[np.float64]:
        """(4, 4) pose in the map -> pose in the world."""
        T: NDArray[np.float64] = self.T_world_map @ T_map
        return T

    def put(self, T_world_saved: NDArray[np.float64]) -> None:
        """Place the map: the world at the time of saving lies at (4, 4) ``T_world_saved`` in the present world.

        Raises ``ValueError`` for a pose that is not rigid, not level (down is known), or too far away.
        """
        T = _level(check_transform(T_world_saved, "place of the map"))
        self.T_world_map = _near(level_transform(yaw_of(T), T[:3, 3]) @ self.T_world_map)

    def place(self, T_map_world: NDArray[np.float64]) -> None:
        """Place the map: the present world lies at (4, 4) ``T_map_world`` in the map. Raises as :meth:`put`."""
        self.T_world_map = _near(_level(invert_transform(check_transform(T_map_world, "place in the map"))))

    def stamp_of(self, camera: str, map_ns: int) -> int:
        """Convert a time of the map to the stamp of a camera."""
        known = self._cameras.get(camera)
        return map_ns if known is None or not known.spans else map_ns - known.offset_at(map_ns)

    @staticmethod
    def _moved(posed: PosedFrame, stamp_ns: int, T: NDArray[np.float64]) -> PosedFrame:
        stays = np.array_equal(T, np.eye(4))
        if stamp_ns == posed.frame.stamp_ns and stays:
            return posed
        frame = copy.copy(posed.frame)  # the images are checked already
        object.__setattr__(frame, "stamp_ns", stamp_ns)
        return PosedFrame(frame, posed.T_world_camera if stays else T @ posed.T_world_camera, posed.arrival_ns)

    # ---- map files

    def to_json(self) -> str:
        """JSON text for :meth:`load_json`."""
        spans = {name: camera.spans for name, camera in sorted(self._cameras.items())}
        data = {"T_world_map": self.T_world_map.tolist(), "newest_ns": self._newest_ns, "spans": spans}
        return json.dumps(data, sort_keys=True)

    def load_json(self, text: str, newest_ns: int | None) -> None:
        """Continue a saved map; for an old map without ``text`` its newest time is ``newest_ns``. Raises
        ``ValueError``."""
        self.clear()
        self._anchored = self._loaded = True
        self._newest_ns = newest_ns
        if not text:
            return
        try:
            data = plain_values.mapping(parse_json(text, "the map's frame", plain_values.MAX_TEXT), "the map's frame")
            T_world_map = check_transform(np.array(data["T_world_map"], dtype=np.float64), "T_world_map")
            T_world_map = _near(_level(T_world_map))
            newest = data["newest_ns"]
            if newest is not None:
                newest = plain_values.stamp_ns(newest, "newest_ns")
            cameras = {
                plain_values.text(name, "a camera"): _CameraTime(_checked_spans(name, spans), None, False)
                for name, spans in plain_values.mapping(data["spans"], "spans").items()
            }
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"place and time of the map cannot be read: {error}") from error
        self.T_world_map, self._cameras = T_world_map, cameras
        if newest is not None:
            self._newest_ns = newest


def _level(T: NDArray[np.float64]) -> NDArray[np.float64]:
    tilt_rad = float(np.arccos(np.clip(T[2, 2], -1.0, 1.0)))
    if tilt_rad > _LEVEL_RAD:
        raise ValueError(f"the place of a map must be level (rotated about z only), it tilts by {tilt_rad:.4f} rad")
    return T


def _near(T_world_map: NDArray[np.float64]) -> NDArray[np.float64]:
    if np.abs(T_world_map[:3, 3]).max() > MAX_WORLD_M:
        raise ValueError(
            f"T_world_map must lie within {MAX_WORLD_M:.0f} m of the world's origin, "
            f"got {T_world_map[:3, 3].tolist()} m"
        )
    return T_world_map


def _checked_spans(camera: str, spans: Any) -> list[tuple[int, int]]:
    limit = plain_values.MAX_STAMP_NS
    checked = []
    for span in plain_values.sequence(spans, f"spans of {camera!r}"):
        first, offset = plain_values.sequence(span, f"a span of {camera!r}")
        checked.append((plain_values.stamp_ns(first, "a span"), plain_values.whole(offset, "an offset", -limit, limit)))
    if len(checked) > _MAX_SPANS:
        raise ValueError(f"{camera!r} has {len(checked)} spans, at most {_MAX_SPANS} are allowed")
    return checked
