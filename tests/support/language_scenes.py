"""Rooms of hand-placed boxes for the tests of language."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.box_rays import upright_camera
from embodied_perceptron.results import SceneObject


def thing(number: int, label: str, center, size, yaw: float = 0.0, score: float = 0.9) -> SceneObject:
    """An upright object; its front is -y turned by ``yaw``."""
    return SceneObject(number, label, score, np.array([*center, *size, yaw, 0.0, 0.0], dtype=np.float64))


def living_room() -> list[SceneObject]:
    """5 x 4 m, floor at 0: couch at the north wall looking south, tv opposite, table between, chairs around.

     y
     2   [shelf 6]   [couch 1]      [lamp 5]
     0   [chair 3] [table 2] [chair 4]    [chair 8]
    -2               [tv 7 on stand 9]
    """
    return [
        thing(1, "couch", (0.0, 1.6, 0.4), (2.0, 0.9, 0.8)),
        thing(2, "table", (0.0, 0.0, 0.35), (1.0, 0.7, 0.7)),
        thing(3, "chair", (-0.9, 0.0, 0.45), (0.5, 0.5, 0.9), yaw=np.pi / 2),
        thing(4, "chair", (0.9, 0.0, 0.45), (0.5, 0.5, 0.9), yaw=-np.pi / 2),
        thing(5, "lamp", (1.8, 1.7, 0.8), (0.3, 0.3, 1.6)),
        thing(6, "shelf", (-1.9, 1.8, 1.0), (1.0, 0.3, 2.0)),
        thing(7, "tv", (0.0, -1.85, 0.85), (1.2, 0.1, 0.7), yaw=np.pi),
        thing(8, "chair", (2.3, -0.2, 0.45), (0.5, 0.5, 0.9), yaw=-np.pi / 2),
        thing(9, "stand", (0.0, -1.8, 0.25), (1.4, 0.4, 0.5), yaw=np.pi),
        thing(10, "book", (0.2, 0.1, 0.72), (0.2, 0.15, 0.04)),
        thing(11, "book", (-1.9, 1.8, 1.2), (0.2, 0.15, 0.2)),
        thing(12, "picture", (0.0, 1.97, 1.6), (0.8, 0.04, 0.5)),
        thing(13, "picture", (2.45, 1.0, 1.6), (0.04, 0.8, 0.5)),
    ]


def camera(position, target) -> NDArray[np.float64]:
    """T_world_camera of a level camera (z forward, y down)."""
    x, y, z = np.asarray(target, float) - np.asarray(position, float)
    return upright_camera(position, np.arctan2(y, x), -np.arctan2(z, np.hypot(x, y)))


def moved(objects: list[SceneObject], yaw: float, shift) -> list[SceneObject]:
    """The same room turned about the origin and shifted."""
    c, s = np.cos(yaw), np.sin(yaw)
    R = np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])
    result = []
    for o in objects:
        box = o.box.copy()
        box[:3] = R @ box[:3] + np.asarray(shift, float)
        box[6] += yaw
        result.append(SceneObject(o.id, o.label, o.score, box))
    return result


def moved_pose(T: NDArray[np.float64], yaw: float, shift) -> NDArray[np.float64]:
    """The same viewpoint in the moved room."""
    c, s = np.cos(yaw), np.sin(yaw)
    M = np.array([[c, -s, 0.0, shift[0]], [s, c, 0.0, shift[1]], [0.0, 0.0, 1.0, shift[2]], [0.0, 0.0, 0.0, 1.0]])
    return M @ T
