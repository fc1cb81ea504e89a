"""Source of the scene of an agent's tools: a saved map; the ROS package adds a running node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import box_corners
from embodied_perceptron.geometry.transforms import invert_transform, project, transform_points
from embodied_perceptron.mapping.keyframes import Keyframe
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import Grounding, Perception, SceneObject


class SceneUnavailableError(RuntimeError):
    """No scene is available: the node is not running or does not answer in time. The message says what to do."""


class SceneSource(Protocol):
    """A scene for tools. Its methods are called from several threads."""

    @property
    def is_live(self) -> bool:
        """Whether the scene changes."""
        ...

    def frame(self) -> str:
        """Name of the frame of all results: metres, z up."""
        ...

    def views(self, thing: SceneObject) -> tuple[ObjectView, ...]:
        """Pictures of an object. Raises :class:`SceneUnavailableError` where there are none to be had."""
        ...

    def perception(self) -> Perception:
        """The scene at one moment. Raises :class:`SceneUnavailableError`."""
        ...

    def ground(self, sentence: str, viewpoint: NDArray[np.float64] | None) -> Grounding:
        """Answer a sentence; ``viewpoint``: (4, 4) pose of the speaker in :meth:`frame`, None = unknown (a map) or the
        robot's (a node). Raises :class:`SceneUnavailableError`, ``ValueError`` where the viewpoint is fixed."""
        ...


MAX_VIEWS = 3
_LEAST_PIXELS, _MARGIN, _MAX_SIDE = 16, 0.2, 640


@dataclass(frozen=True, eq=False)
class ObjectView:
    """A camera's picture of one object: (H, W, 3) uint8 RGB, cut out around its box, and when it was taken."""

    camera: str
    stamp_ns: int
    picture: NDArray[np.uint8]


def views_of(thing: SceneObject, keyframes: Sequence[Keyframe]) -> tuple[ObjectView, ...]:
    """Pictures of an object in the keyframes that show most of it, at most :data:`MAX_VIEWS`, best first."""
    corners, shown = box_corners(thing.box[None])[0], []
    for keyframe in keyframes:
        frame = keyframe.frame
        height, width = frame.color.shape[:2]
        at = transform_points(invert_transform(keyframe.T_world_camera), corners)
        if at[:, 2].min() < 0.1:
            continue
        uv, _ = project(at, frame.intrinsics)
        low, high = uv.min(axis=0), uv.max(axis=0)
        inside = np.minimum(high, [width, height]) - np.maximum(low, 0.0)
        whole = float((inside.clip(0.0) / np.maximum(high - low, 1e-6)).prod())
        u, v = project(at.mean(axis=0), frame.intrinsics)[0].tolist()
        if inside.min() < _LEAST_PIXELS or not (0 <= u < width and 0 <= v < height):
            continue
        depth_m = float(frame.depth_m[int(v), int(u)])
        if 0.0 < depth_m < at[:, 2].min() - 0.1:  # something stands before it
            continue
        margin = _MARGIN * (high - low)
        a, b = np.maximum(low - margin, 0).astype(int), np.minimum(high + margin, [width, height]).astype(int)
        shown.append((whole * float(inside.prod()), keyframe, a, b))
    shown.sort(key=lambda item: -item[0])
    return tuple(
        ObjectView(k.frame.camera, k.frame.stamp_ns, _small(k.frame.color[a[1] : b[1], a[0] : b[0]]))
        for _, k, a, b in shown[:MAX_VIEWS]
    )


def _small(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    step = -(-max(picture.shape[:2]) // _MAX_SIDE)
    return np.ascontiguousarray(picture[::step, ::step])


class MapSource:
    """A saved map."""

    is_live = False

    def __init__(self, perceptron: Perceptron) -> None:
        self._perceptron = perceptron
        self._perception = perceptron.recall()

    def frame(self) -> str:
        """The frame of the map."""
        return "map"

    def views(self, thing: SceneObject) -> tuple[ObjectView, ...]:
        """Pictures in the keyframes of the map."""
        return views_of(thing, self._perceptron.map.keyframes())

    def perception(self) -> Perception:
        """The objects and voxels of the map."""
        return self._perception

    def ground(self, sentence: str, viewpoint: NDArray[np.float64] | None) -> Grounding:
        """See :meth:`.Perceptron.ground`."""
        return self._perceptron.ground(sentence, viewpoint)
