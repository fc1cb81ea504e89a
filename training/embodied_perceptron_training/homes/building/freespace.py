"""Free floor for a robot in a home: a grid with clearance in metres, and shortest safe paths."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import dijkstra

from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron_training.homes.building.floorplan import WALL_M, HomeError
from embodied_perceptron_training.homes.building.home import Home
from embodied_perceptron_training.homes.building.placement import CELL_M, ROBOT_HEIGHT_M, ROBOT_RADIUS_M, Pieces


@dataclass(frozen=True, eq=False)
class FreeSpace:
    """Grid of the whole home.

    Attributes:
        origin_m: (2,) world x, y of the lower-left corner of cell (0, 0).
        clearance_m: (rows along y, columns along x) distance to the nearest obstacle, 0 inside of one.
        region: (rows, columns) bool: the largest connected part where the robot's centre may be.
    """

    origin_m: F64
    clearance_m: F64
    region: NDArray[np.bool_]

    def cell_of(self, xy: F64) -> tuple[int, int]:
        """World (2,) -> (row, column)."""
        c = np.floor((np.asarray(xy) - self.origin_m) / CELL_M).astype(int)
        return int(c[1]), int(c[0])

    def center_of(self, cells: NDArray[np.integer]) -> F64:
        """(N, 2) rows and columns -> (N, 2) world x, y."""
        centers: F64 = (np.asarray(cells)[:, ::-1] + 0.5) * CELL_M + self.origin_m
        return centers

    def cells(self) -> NDArray[np.intp]:
        """(N, 2) rows and columns of the region."""
        return np.argwhere(self.region)

    def path(self, start_xy: F64, goal_xy: F64) -> F64:
        """(K, 2) way points from start to goal away from obstacles, on straight lines where free.

        Raises :class:`HomeError` without a path.
        """
        graph, index = self._graph()
        a, b = (index[self._nearest(p)] for p in (start_xy, goal_xy))
        _, previous = dijkstra(graph, indices=a, return_predecessors=True)
        if a != b and previous[b] < 0:
            raise HomeError(f"no way from {np.round(start_xy, 2).tolist()} to {np.round(goal_xy, 2).tolist()}")
        chain = [int(b)]
        while chain[-1] != a:
            chain.append(int(previous[chain[-1]]))
        return self._shortcut(self.center_of(self.cells()[chain[::-1]]))

    def _nearest(self, xy: F64) -> tuple[int, int]:
        cells = self.cells()
        k = int(np.argmin(((self.center_of(cells) - xy) ** 2).sum(1)))
        return int(cells[k, 0]), int(cells[k, 1])

    def _graph(self) -> tuple[coo_matrix, NDArray[np.intp]]:
        index = np.full(self.region.shape, -1, np.intp)
        cells = self.cells()
        index[cells[:, 0], cells[:, 1]] = np.arange(len(cells))
        padded = np.pad(index, 1, constant_values=-1)
        rows, columns, costs = [], [], []
        for dr, dc in ((0, 1), (1, 0), (1, 1), (1, -1)):
            other = padded[cells[:, 0] + 1 + dr, cells[:, 1] + 1 + dc]
            keep = other >= 0
            tight = np.maximum(self.clearance_m[cells[keep, 0], cells[keep, 1]], 0.05)
            rows.append(np.arange(len(cells))[keep])
            columns.append(other[keep])
            costs.append(np.hypot(dr, dc) * (1 + 0.25 / tight))
        r, c, w = np.concatenate(rows), np.concatenate(columns), np.concatenate(costs)
        size = len(cells)
        both = (np.concatenate([w, w]), (np.concatenate([r, c]), np.concatenate([c, r])))
        return coo_matrix(both, (size, size)).tocsr(), index

    def _shortcut(self, points: F64) -> F64:
        kept, i = [points[0]], 0
        while i < len(points) - 1:
            j = min(len(points) - 1, i + 60)
            while j > i + 1 and not self._line_free(points[i], points[j]):
                j -= 1
            kept.append(points[j])
            i = j
        return np.array(kept)

    def _line_free(self, a: F64, b: F64) -> bool:
        steps = max(2, int(np.linalg.norm(b - a) / (CELL_M / 2)))
        cells = np.floor((np.linspace(a, b, steps) - self.origin_m) / CELL_M).astype(int)
        return bool(self.region[cells[:, 1], cells[:, 0]].all())

    def spread(self, count: int, start: int = 0) -> F64:
        """(count, 2) points of the region, each as far as possible from those before (farthest-point sampling)."""
        points = self.center_of(self.cells())
        chosen = [min(start, len(points) - 1)]
        distance = np.linalg.norm(points - points[chosen[0]], axis=1)
        while len(chosen) < min(count, len(points)):
            chosen.append(int(distance.argmax()))
            distance = np.minimum(distance, np.linalg.norm(points - points[chosen[-1]], axis=1))
        return points[chosen]


def free_space(home: Home, radius_m: float = ROBOT_RADIUS_M) -> FreeSpace:
    """Grid of ``home`` for a round robot. Raises :class:`HomeError` without free space."""
    rects = np.array([room.rect for room in home.rooms])
    origin = rects[:, :2].min(0) - 0.5
    size = np.ceil((rects[:, 2:].max(0) + 0.5 - origin) / CELL_M).astype(int)
    free = np.zeros((size[1], size[0]), bool)

    def fill(x0: float, y0: float, x1: float, y1: float, value: bool) -> None:
        # free rectangles count cells by their centre, obstacles all cells that they touch
        inset = 0.5 if value else 0.0
        c0, r0 = (np.ceil if value else np.floor)((np.array([x0, y0]) - origin) / CELL_M - inset).astype(int)
        c1, r1 = (np.floor if value else np.ceil)((np.array([x1, y1]) - origin) / CELL_M + inset).astype(int)
        free[max(r0, 0) : max(r1, 0), max(c0, 0) : max(c1, 0)] = value

    for x0, y0, x1, y1 in rects:
        fill(x0, y0, x1, y1, True)
    for wall in home.plan.walls:
        for opening in wall.openings:
            if opening.kind in ("door", "passage") and not wall.outer:
                a = wall.point(opening.center_m - opening.width_m / 2 + 0.06, -WALL_M)
                b = wall.point(opening.center_m + opening.width_m / 2 - 0.06, WALL_M)
                fill(min(a[0], b[0]), min(a[1], b[1]), max(a[0], b[0]), max(a[1], b[1]), True)
    for o in home.objects:
        if o.label in ("floor", "ceiling", "wall", "doorframe"):
            continue
        pieces = Pieces.of(o.model.posed_pieces(o.joint_states), o.T_world_object)
        if len(pieces.center) == 0:
            continue
        low, high = pieces.center - pieces.reach, pieces.center + pieces.reach
        for k in np.nonzero((low[:, 2] < ROBOT_HEIGHT_M) & (high[:, 2] > 0.03))[0]:
            fill(low[k, 0], low[k, 1], high[k, 0], high[k, 1], False)
    clearance = ndimage.distance_transform_edt(np.pad(free, 1))[1:-1, 1:-1] * CELL_M
    labels, count = ndimage.label(clearance > radius_m, np.ones((3, 3)))
    if count == 0:
        raise HomeError(f"home {home.seed} has no free floor for a robot of radius {radius_m} m")
    largest = int(np.bincount(labels.ravel())[1:].argmax()) + 1
    return FreeSpace(origin, clearance, labels == largest)
