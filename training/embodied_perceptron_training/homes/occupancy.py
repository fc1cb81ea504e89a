"""Ground truth of semantic occupancy on the benchmark's grid, and the visible cells of each view."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.occupancy_grid import BENCHMARK_GRID, OccupancyGridSpec
from embodied_perceptron.geometry.transforms import (
    F64,
    Intrinsics,
    back_project,
    invert_transform,
    project,
    transform_points,
)
from embodied_perceptron_training.homes.building.home import Home


def occupancy_truth(
    home: Home, categories: Sequence[str], grid: OccupancyGridSpec = BENCHMARK_GRID
) -> NDArray[np.int32]:
    """(M, 4) int32 rows (x, y, z, category id) of the cells with surfaces, sorted by x, y, z.

    The category id is the position in ``categories``; a cell that several objects touch belongs to the one with most
    surface in it, objects before walls, floor and ceiling. Surfaces are sampled at a quarter of a cell.
    """
    index = {name: i for i, name in enumerate(categories)}
    votes: list[NDArray[np.int64]] = []
    for o in home.objects:
        cells = _touched(o.mesh().triangles, np.asarray(grid.origin_m), grid.cell_m, np.array(grid.shape))
        if len(cells):
            keys, counts = np.unique(cells, return_counts=True)
            structure = o.label in ("wall", "floor", "ceiling")
            strength = counts if structure else counts + 1_000_000
            votes.append(np.stack([keys, strength, np.full(len(keys), index[o.label])], 1))
    if not votes:
        return np.zeros((0, 4), np.int32)
    table = np.concatenate(votes)
    table = table[np.lexsort((table[:, 2], -table[:, 1], table[:, 0]))]
    _, first = np.unique(table[:, 0], return_index=True)
    coords = np.stack(np.unravel_index(table[first, 0], grid.shape), 1)
    return np.concatenate([coords, table[first, 2:]], 1).astype(np.int32)


@njit(cache=True)
def _touched(triangles: F64, origin: F64, cell: float, shape: NDArray[np.int64]) -> NDArray[np.int64]:
    """Flat index of the cell of every sample of the faces, samples a quarter of a cell apart."""
    result = []
    step = cell / 4
    top = origin + shape * cell
    for t in triangles:
        outside = False
        for k in range(3):
            low = min(t[0, k], t[1, k], t[2, k])
            high = max(t[0, k], t[1, k], t[2, k])
            if high < origin[k] or low > top[k]:
                outside = True
        if outside:
            continue
        a, b, c = t[0], t[1], t[2]
        rows = max(1, int(np.ceil(np.sqrt(((c - a) ** 2).sum()) / step)))
        side = max(1, int(np.ceil(np.sqrt(max(((b - a) ** 2).sum(), ((c - b) ** 2).sum())) / step)))
        for i in range(rows):
            v = (i + 0.5) / rows
            columns = max(1, int(np.ceil(side * (1 - v))))
            for j in range(columns):
                u = (j + 0.5) / columns * (1 - v)
                flat = 0
                inside = True
                for k in range(3):
                    p = a[k] + u * (b[k] - a[k]) + v * (c[k] - a[k])
                    x = int(np.floor((p - origin[k]) / cell))
                    if x < 0 or x >= shape[k]:
                        inside = False
                        break
                    flat = flat * shape[k] + x
                if inside:
                    result.append(flat)
    return np.array(result, np.int64)


def visible_cells(
    depth_m: NDArray[np.float32],
    intrinsics: Intrinsics,
    T_world_camera: F64,
    grid: OccupancyGridSpec = BENCHMARK_GRID,
    max_range_m: float = 6.0,
) -> NDArray[np.bool_]:
    """(nx, ny, nz) bool: cells whose state this view determines: in frame, and not farther than the surface hit.

    A cell counts when it holds a measured point, or its centre lies in front of the measured surface or within one
    cell diagonal behind it.
    """
    coords = np.argwhere(np.ones(grid.shape, bool))
    camera = transform_points(invert_transform(T_world_camera), grid.centers(coords))
    uv, inside = project(camera, intrinsics)
    seen = np.zeros(len(coords), bool)
    pixels = np.rint(uv[inside]).astype(int)
    depth = depth_m[pixels[:, 1], pixels[:, 0]]
    z = camera[inside, 2]
    seen[inside] = (depth > 0) & (z < depth + grid.cell_m * 0.87) & (z < max_range_m)
    mask = seen.reshape(grid.shape)
    points, valid = back_project(np.where(depth_m < max_range_m, depth_m, 0), intrinsics)
    world = transform_points(T_world_camera, points[valid])
    cells, inside = grid.locate(world)
    mask[tuple(cells[inside].T)] = True
    return mask
