"""Depth brought to the pixels of colour, where the two images are of other sizes, or of two cameras side by side.

Two cameras with one centre and one direction: each pixel of colour takes that of depth on its ray. Otherwise each pixel
of depth is moved as the small patch of surface that it is: its edges lie half way to those neighbours that are of the
same surface, so that a surface stays closed where colour has more pixels or sees it more from the front, and ends half
a pixel beyond its outline. Where several surfaces come to one pixel of colour the nearest is what the camera sees; what
depth did not see stays unknown. Measured depth is never mixed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.transforms import Intrinsics, check_transform
from embodied_perceptron.sensors.camera_model import CameraModel

SAME_SURFACE = 0.05  # neighbours whose depths differ by a smaller share of the nearer one are of one surface
_MIN_DEPTH_M = 1e-6
_MAX_PATCH_PX = 32.0  # from the middle of a patch to its edge: what lies right before a camera does not fill its image


def register_depth(
    depth: NDArray[np.float32],
    depth_camera: Intrinsics,
    color_camera: Intrinsics,
    T_color_depth: NDArray[np.float64] | None = None,
) -> NDArray[np.float32]:
    """(h, w) canonical depth -> (H, W) depth at the pixels of colour, along its optical axis.

    Args:
        depth: float32 metres; 0 = unknown, +Inf = nothing within range.
        depth_camera, color_camera: of both images, undistorted.
        T_color_depth: (4, 4) pose of the depth camera in that of colour; None = one centre and one direction.

    Raises ``ValueError`` for a depth image that is not of the size of its camera and a transform that is not rigid.
    """
    if depth.shape != (depth_camera.height, depth_camera.width):
        raise ValueError(
            f"depth is {depth.shape[1]}x{depth.shape[0]}, its calibration {depth_camera.width}x{depth_camera.height}"
        )
    T = np.eye(4) if T_color_depth is None else check_transform(T_color_depth, "T_color_depth")
    if np.allclose(T, np.eye(4), rtol=0.0, atol=1e-9):
        return depth if depth_camera == color_camera else _on_the_same_rays(depth, depth_camera, color_camera)
    found = np.zeros((color_camera.height, color_camera.width), np.float32)
    K_color, K_depth = color_camera.matrix, depth_camera.matrix
    M = np.column_stack([K_color @ T[:3, :3] @ np.linalg.inv(K_depth), K_color @ T[:3, 3]])
    finer = max(color_camera.fx / depth_camera.fx, color_camera.fy / depth_camera.fy)
    _move(np.ascontiguousarray(depth), np.ascontiguousarray(M), min(2.0 * finer + 1.0, _MAX_PATCH_PX), found)
    return found


def compile_kernels() -> None:
    """Compile what registers depth, before the first image comes."""
    camera, T = Intrinsics(8.0, 8.0, 3.5, 2.5, 8, 6), np.eye(4)
    T[0, 3] = 0.05
    for writable in (True, False):  # images may share a message's memory
        depth = np.ones((6, 8), np.float32)
        depth.setflags(write=writable)
        register_depth(depth, camera, camera, T)


def _on_the_same_rays(
    depth: NDArray[np.float32], depth_camera: Intrinsics, color_camera: Intrinsics
) -> NDArray[np.float32]:
    u = (np.arange(color_camera.width) - color_camera.cx) / color_camera.fx * depth_camera.fx + depth_camera.cx
    v = (np.arange(color_camera.height) - color_camera.cy) / color_camera.fy * depth_camera.fy + depth_camera.cy
    columns, rows = np.rint(u).astype(np.int64), np.rint(v).astype(np.int64)
    inside_u, inside_v = (columns >= 0) & (columns < depth.shape[1]), (rows >= 0) & (rows < depth.shape[0])
    found = depth[np.ix_(np.where(inside_v, rows, 0), np.where(inside_u, columns, 0))]
    return np.asarray(np.where(inside_v[:, None] & inside_u[None], found, np.float32(0.0)), np.float32)


@njit(cache=True, nogil=True, inline="always")
def _edge(x: float, y: float, z: float, near: float, other: float, to: NDArray[Any], step: NDArray[Any]):  # type: ignore[no-untyped-def]
    """Where a patch at (x, y, z) in colour ends towards a neighbour: half way to it, as both of them compute it, so
    that no pixel falls between them; of another surface, half a pixel on at the patch's own depth."""
    if to[2] > 0 and (near == other or abs(near - other) <= SAME_SURFACE * min(near, other)):
        return 0.5 * (x + to[0]), 0.5 * (y + to[1])
    s = 1.0 if math.isinf(z) else near / z
    return x + 0.5 * s * (step[0] - x * step[2]), y + 0.5 * s * (step[1] - y * step[2])


@njit(cache=True, nogil=True)
def _move_row(depth: NDArray[np.float32], v: int, M: NDArray[np.float64], places: NDArray[np.float64]) -> None:
    """Fill (3, w + 2) ``places`` with x, y, z in colour of row ``v``; z = 0: nothing there, or behind the camera."""
    for u in range(len(depth)):
        z = float(depth[u])
        places[2, u + 1] = 0.0
        if z > 0:
            far = math.isinf(z)  # only turns count there
            s, t = (1.0, 0.0) if far else (z, 1.0)
            pz = (M[2, 0] * u + M[2, 1] * v + M[2, 2]) * s + M[2, 3] * t
            if pz > _MIN_DEPTH_M:
                places[0, u + 1] = ((M[0, 0] * u + M[0, 1] * v + M[0, 2]) * s + M[0, 3] * t) / pz
                places[1, u + 1] = ((M[1, 0] * u + M[1, 1] * v + M[1, 2]) * s + M[1, 3] * t) / pz
                places[2, u + 1] = z if far else pz


@njit(cache=True, nogil=True)
def _move(depth: NDArray[np.float32], M: NDArray[np.float64], reach: float, found: NDArray[np.float32]) -> None:
    """Fill (H, W) ``found``, zeros, with (h, w) ``depth``.

    Args:
        M: (3, 4), of a pixel (u, v) of depth z the pixel of colour is that of M (u z, v z, z, 1).
        reach: most pixels from the middle of a patch to its edge.
    """
    h, w = depth.shape
    H, W = found.shape
    # three rows at a time, with a border that is nowhere; z = 0: nothing there, or behind the camera
    places = np.zeros((3, 3, w + 2))
    right, down = M[:, 0], M[:, 1]
    left, up = -right, -down
    _move_row(depth[0], 0, M, places[0])
    for v in range(h):
        here, above, below = places[v % 3], places[(v + 2) % 3], places[(v + 1) % 3]
        if v + 1 < h:
            _move_row(depth[v + 1], v + 1, M, below)
        else:
            below[2] = 0.0
        for u in range(w):
            j = u + 1
            x, y, z = here[0, j], here[1, j], here[2, j]
            if z <= 0 or not (-reach - 1 < x < W + reach and -reach - 1 < y < H + reach):
                continue
            near = depth[v, u]
            lx, ly = _edge(x, y, z, near, depth[v, max(u - 1, 0)], here[:, j - 1], left)
            rx, ry = _edge(x, y, z, near, depth[v, min(u + 1, w - 1)], here[:, j + 1], right)
            ux, uy = _edge(x, y, z, near, depth[max(v - 1, 0), u], above[:, j], up)
            dx, dy = _edge(x, y, z, near, depth[min(v + 1, h - 1), u], below[:, j], down)
            low_x, high_x = min(lx, rx) + min(ux - x, dx - x, 0.0), max(lx, rx) + max(ux - x, dx - x, 0.0)
            low_y, high_y = min(uy, dy) + min(ly - y, ry - y, 0.0), max(uy, dy) + max(ly - y, ry - y, 0.0)
            first_x, last_x = math.ceil(max(low_x, x - reach, 0.0)), math.ceil(min(high_x, x + reach, float(W)))
            first_y, last_y = math.ceil(max(low_y, y - reach, 0.0)), math.ceil(min(high_y, y + reach, float(H)))
            for row in range(first_y, last_y):
                for column in range(first_x, last_x):
                    if found[row, column] == 0 or z < found[row, column]:
                        found[row, column] = z


@dataclass(frozen=True, eq=False)
class UnregisteredDepth:
    """A depth image in its own camera, to be brought to the pixels of colour where that one's calibration is known.

    Attributes:
        depth_m: (h, w) float32 canonical depth.
        camera: that took it.
        T_color_depth: (4, 4) pose of that camera in the one of colour; None = one centre and one direction.
    """

    depth_m: NDArray[np.float32]
    camera: CameraModel
    T_color_depth: NDArray[np.float64] | None

    @property
    def nbytes(self) -> int:
        """Memory of the image."""
        return self.depth_m.nbytes

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the image."""
        return self.depth_m.shape

    def registered(self, color_camera: Intrinsics) -> NDArray[np.float32]:
        """(H, W) depth at the pixels of colour, undistorted. Raises like :func:`register_depth`."""
        expected = self.camera.intrinsics.height, self.camera.intrinsics.width
        depth_m = self.camera.rectify_depth(self.depth_m) if self.shape == expected else self.depth_m
        return register_depth(depth_m, self.camera.intrinsics, color_camera, self.T_color_depth)
