"""From pixels to the surface that the camera sees: depth where it was measured, the voxel map where it was not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.transforms import Intrinsics, world_to_voxel
from embodied_perceptron.results import VoxelSnapshot
from embodied_perceptron.sparse.cpu_kernels import first_not_below

_BLOCK_BITS = 3  # rays cross empty space by blocks of 8 voxels
_MAX_BLOCKS = 1 << 26  # of the dense table


@dataclass(frozen=True, eq=False)
class VoxelIndex:
    """Look-up of the voxels of a snapshot.

    Attributes:
        voxel_size_m: edge length.
        keys: (N,) int64, ascending; row i is voxel i of the snapshot.
        blocks: (X, Y, Z) bool, blocks of 8 x 8 x 8 voxels with anything in them; empty where the map is too wide.
        origin: (3,) int64 block coordinates of ``blocks[0, 0, 0]``.
    """

    voxel_size_m: float
    keys: NDArray[np.int64]
    blocks: NDArray[np.bool_]
    origin: NDArray[np.int64]

    @staticmethod
    def of(snapshot: VoxelSnapshot) -> VoxelIndex:
        """Of a snapshot, whose voxels are sorted."""
        keys, low, high = _keys_and_bounds(snapshot.coords)
        origin = low >> _BLOCK_BITS
        shape = (high >> _BLOCK_BITS) - origin + 1
        blocks = np.zeros((0, 0, 0), dtype=bool)
        if len(keys) and int(np.prod(shape)) <= _MAX_BLOCKS:
            blocks = _occupied_blocks(snapshot.coords, origin, shape)
        return VoxelIndex(snapshot.voxel_size_m, keys, blocks, origin)

    def near(self, points_m: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
        """(K, 3) points -> (K,) whether a voxel at the point or one of its 26 neighbours is occupied."""
        out: NDArray[np.bool_] = _any_near(self.keys, world_to_voxel(points_m, self.voxel_size_m))
        return out

    def cast(
        self, origin_m: NDArray[np.float64], directions: NDArray[np.float64], min_m: float, max_m: float
    ) -> NDArray[np.float64]:
        """(K, 3) unit directions from (3,) a point -> (K,) distance to where each enters its first voxel; NaN = none.

        Amanatides and Woo, "A fast voxel traversal algorithm for ray tracing" (1987): every voxel that the ray crosses
        between ``min_m`` and ``max_m`` is looked at, in order.
        """
        out: NDArray[np.float64] = _cast(
            self.keys, self.blocks, self.origin, self.voxel_size_m, origin_m, directions, min_m, max_m
        )
        return out


@njit(cache=True, nogil=True)
def _keys_and_bounds(coords: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    keys = np.empty(len(coords), np.int64)
    low, high = np.zeros(3, np.int64), np.zeros(3, np.int64)
    for i in range(len(coords)):
        keys[i] = _key(np.int64(coords[i, 0]), np.int64(coords[i, 1]), np.int64(coords[i, 2]))
        for axis in range(3):
            c = np.int64(coords[i, axis])
            low[axis] = c if i == 0 else min(low[axis], c)
            high[axis] = c if i == 0 else max(high[axis], c)
    return keys, low, high


@njit(cache=True, nogil=True)
def _occupied_blocks(
    coords: NDArray[np.int32], origin: NDArray[np.int64], shape: NDArray[np.int64]
) -> NDArray[np.bool_]:
    blocks = np.zeros((shape[0], shape[1], shape[2]), np.bool_)
    for i in range(len(coords)):
        blocks[
            (np.int64(coords[i, 0]) >> 3) - origin[0],
            (np.int64(coords[i, 1]) >> 3) - origin[1],
            (np.int64(coords[i, 2]) >> 3) - origin[2],
        ] = True
    return blocks


@njit(cache=True, nogil=True)
def _has(keys: NDArray[np.int64], key: int) -> bool:
    at = first_not_below(keys, key, 0, len(keys))
    return bool(at < len(keys) and keys[at] == key)


@njit(cache=True, nogil=True)
def _key(x: int, y: int, z: int) -> int:
    """As :func:`embodied_perceptron.geometry.transforms.pack_keys`."""
    offset = 1 << 20
    return ((x + offset) << 42) | ((y + offset) << 21) | (z + offset)


@njit(cache=True, nogil=True)
def keys_of(points_m: NDArray[np.float64], size_m: float) -> NDArray[np.int64]:
    """(K, 3) points -> (K,) keys of their cells on the lattice of the world's origin."""
    out = np.empty(len(points_m), np.int64)
    for i in range(len(points_m)):
        x, y, z = (
            np.floor(points_m[i, 0] / size_m),
            np.floor(points_m[i, 1] / size_m),
            np.floor(points_m[i, 2] / size_m),
        )
        out[i] = _key(np.int64(x), np.int64(y), np.int64(z))
    return out


@njit(cache=True, nogil=True)
def _any_near(keys: NDArray[np.int64], coords: NDArray[np.int64]) -> NDArray[np.bool_]:
    out = np.zeros(len(coords), np.bool_)
    for i in range(len(coords)):
        x, y, z = coords[i]
        for dx in (0, -1, 1):
            for dy in (0, -1, 1):
                for dz in (0, -1, 1):
                    if not out[i] and _has(keys, _key(x + dx, y + dy, z + dz)):
                        out[i] = True
    return out


@njit(cache=True, nogil=True)
def _cast(
    keys: NDArray[np.int64],
    blocks: NDArray[np.bool_],
    block_origin: NDArray[np.int64],
    size: float,
    origin: NDArray[np.float64],
    directions: NDArray[np.float64],
    min_m: float,
    max_m: float,
) -> NDArray[np.float64]:
    out = np.full(len(directions), np.nan)
    dense = blocks.size > 0
    voxel = np.zeros(3, np.int64)
    step = np.zeros(3, np.int64)
    t_next = np.zeros(3)
    t_delta = np.zeros(3)
    for i in range(len(directions)):
        t = min_m
        for axis in range(3):
            d = directions[i, axis]
            at = (origin[axis] + min_m * d) / size
            voxel[axis] = int(np.floor(at))
            if d > 0:
                step[axis] = 1
                t_delta[axis] = size / d
                t_next[axis] = min_m + (voxel[axis] + 1 - at) * t_delta[axis]
            elif d < 0:
                step[axis] = -1
                t_delta[axis] = -size / d
                t_next[axis] = min_m + (at - voxel[axis]) * t_delta[axis]
            else:
                step[axis] = 0
                t_delta[axis] = np.inf
                t_next[axis] = np.inf
        while t <= max_m:
            inside = True
            if dense:
                bx = (voxel[0] >> 3) - block_origin[0]
                by = (voxel[1] >> 3) - block_origin[1]
                bz = (voxel[2] >> 3) - block_origin[2]
                inside = (
                    0 <= bx < blocks.shape[0]
                    and 0 <= by < blocks.shape[1]
                    and 0 <= bz < blocks.shape[2]
                    and blocks[bx, by, bz]
                )
            if inside and _has(keys, _key(voxel[0], voxel[1], voxel[2])):
                out[i] = t
                break
            axis = 0
            if t_next[1] < t_next[axis]:
                axis = 1
            if t_next[2] < t_next[axis]:
                axis = 2
            t = t_next[axis]
            voxel[axis] += step[axis]
            t_next[axis] += t_delta[axis]
    return out


@dataclass(frozen=True, eq=False)
class Samples:
    """Pixels and what of the world is seen through them.

    Attributes:
        uv: (K, 2) int64 pixels, only those where a surface is known.
        points_m: (K, 3) float64 world.
        depth_m: (K,) float64 along the optical axis.
        cast: (K,) bool: the surface is the map's, not this picture's.
        row: (K,) int64 of the pixels that were asked for.
    """

    uv: NDArray[np.int64]
    points_m: NDArray[np.float64]
    depth_m: NDArray[np.float64]
    cast: NDArray[np.bool_]
    row: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.depth_m)

    def take(self, rows: NDArray[Any]) -> Samples:
        """Some of them, by index or mask."""
        return Samples(self.uv[rows], self.points_m[rows], self.depth_m[rows], self.cast[rows], self.row[rows])


_EDGE_STEP_PX = 2
_EDGE_M, _EDGE_SHARE = 0.02, 0.025  # a surface at a slant changes by less between neighbours


def see_surface(
    depth_m: NDArray[np.float32],
    intrinsics: Intrinsics,
    T_world_camera: NDArray[np.float64],
    uv: NDArray[np.int64],
    index: VoxelIndex | None = None,
    range_m: tuple[float, float] = (0.2, 5.0),
    max_cast: int = 64,
) -> Samples:
    """The surface behind (K, 2) pixels of one picture.

    Pixels at a step of the depth are left out: their depth is of either side, or of neither. Where depth is unknown
    (0), a ray into the voxel map finds the first surface that it remembers, for up to ``max_cast`` evenly chosen ones;
    where nothing was in range (+Inf) there is no surface.

    Args:
        depth_m: (H, W) canonical depth.
        T_world_camera: (4, 4).
        uv: pixels inside of the picture.
        index: of the map; None = measured depth alone.
        range_m: nearest and furthest depth that is used.
        max_cast: rays.
    """
    u, v = uv[:, 0], uv[:, 1]
    z, usable = _measured(depth_m, u, v, range_m[0], range_m[1])
    rows = np.flatnonzero(usable)
    x, y = (u - intrinsics.cx) / intrinsics.fx, (v - intrinsics.cy) / intrinsics.fy
    rays = np.stack([x, y, np.ones(len(uv))], axis=1)  # (K, 3) at depth 1, optical frame
    R, camera_m = T_world_camera[:3, :3], T_world_camera[:3, 3]
    samples = Samples(
        uv[rows], (rays[rows] * z[rows, None]) @ R.T + camera_m, z[rows], np.zeros(len(rows), dtype=bool), rows
    )
    holes = np.flatnonzero(z == 0)
    if index is None or len(index.keys) == 0 or len(holes) == 0:
        return samples
    holes = holes[:: -(-len(holes) // max_cast)]
    length = np.linalg.norm(rays[holes], axis=1)
    distance = index.cast(camera_m, (rays[holes] / length[:, None]) @ R.T, range_m[0], range_m[1])
    hit = np.isfinite(distance)
    # a surface lies on average in the middle of its voxels
    hit_depth = (distance[hit] + 0.5 * index.voxel_size_m) / length[hit]
    hit_points = (rays[holes[hit]] * hit_depth[:, None]) @ R.T + camera_m
    return Samples(
        np.concatenate([samples.uv, uv[holes[hit]]]),
        np.concatenate([samples.points_m, hit_points]),
        np.concatenate([samples.depth_m, hit_depth]),
        np.concatenate([samples.cast, np.ones(len(hit_depth), dtype=bool)]),
        np.concatenate([rows, holes[hit]]),
    )


@njit(cache=True, nogil=True)
def _measured(
    depth_m: NDArray[np.float32], u: NDArray[np.int64], v: NDArray[np.int64], min_m: float, max_m: float
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """(K,) depth at the pixels, and which of them are in range and at no step."""
    height, width = depth_m.shape
    z = np.empty(len(u))
    usable = np.zeros(len(u), np.bool_)
    for i in range(len(u)):
        z[i] = depth_m[v[i], u[i]]
        if not (z[i] >= min_m and z[i] <= max_m):
            continue
        allowed = _EDGE_M + _EDGE_SHARE * z[i]
        usable[i] = True
        for du, dv in ((_EDGE_STEP_PX, 0), (-_EDGE_STEP_PX, 0), (0, _EDGE_STEP_PX), (0, -_EDGE_STEP_PX)):
            row = min(max(v[i] + dv, 0), height - 1)
            column = min(max(u[i] + du, 0), width - 1)
            beside = np.float64(depth_m[row, column])
            if beside > 0 and abs(beside - z[i]) > allowed:
                usable[i] = False
    return z, usable
