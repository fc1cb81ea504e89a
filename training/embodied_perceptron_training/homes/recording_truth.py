"""Truth of what a simulated recording shows: objects with their shares of the views and first stamps, and cells."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.occupancy_grid import BENCHMARK_GRID, OccupancyGridSpec
from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.recordings.tum import read_tum_camera
from embodied_perceptron.weights.categories import ALL_CATEGORIES, OCCUPANCY_CLASSES, OCCUPANCY_IGNORED
from embodied_perceptron_training.homes.building.home import Home
from embodied_perceptron_training.homes.occupancy import occupancy_truth, visible_cells
from embodied_perceptron_training.homes.recording import recorded_home
from embodied_perceptron_training.homes.rendering.ray_renderer import RayCastRenderer

F64 = NDArray[np.float64]
SEEN_SHARE = 0.0004  # of an image's pixels, as for the instances of a sample
_WIDTH = 96  # of the images of ids that are cast: enough for shares
_CELLS_EVERY = 4  # every n-th view determines cells


@dataclass(frozen=True, eq=False)
class Tour:
    """A drive through a home.

    Attributes:
        home: with everything in it.
        stamps_ns: (V,) of the views.
        T_world_camera: (V, 4, 4) their poses.
        intrinsics: of the images that were cast.
        max_range_m: what is further away is not seen.
        share: (V, objects) share of the image that each object of the home takes.
        depth_m: (V, H, W) float32 true depth.
    """

    home: Home
    stamps_ns: NDArray[np.int64]
    T_world_camera: F64
    intrinsics: Intrinsics
    max_range_m: float
    share: F64
    depth_m: NDArray[np.float32]

    @cached_property
    def best_share(self) -> F64:
        """(objects,) the largest share in any view."""
        best: F64 = self.share.max(axis=0)
        return best

    def seen(self, min_share: float = SEEN_SHARE) -> list[int]:
        """Ids of the objects that take at least this share of some view."""
        return [int(i) for i in np.flatnonzero(self.best_share >= min_share)]

    def first_seen_ns(self, object_id: int, min_share: float = SEEN_SHARE) -> int:
        """Stamp of the first view that shows the object so large. Raises ``ValueError`` when none does."""
        views = np.flatnonzero(self.share[:, object_id] >= min_share)
        if len(views) == 0:
            raise ValueError(f"object {object_id} is never seen")
        return int(self.stamps_ns[views[0]])

    def occupancy(
        self, cell_m: float = BENCHMARK_GRID.cell_m
    ) -> tuple[OccupancyGridSpec, NDArray[np.uint8], NDArray[np.bool_]]:
        """Grid over the home on the lattice of ``cell_m``, its labels (0 free, k + 1 = OCCUPANCY_CLASSES[k], 255 not
        judged), and which cells the views determine."""
        corners = self.home.triangles().reshape(-1, 3)
        low = np.floor(corners.min(axis=0) / cell_m).astype(int)
        nx, ny, nz = (np.floor(corners.max(axis=0) / cell_m).astype(int) + 1 - low).tolist()
        x, y, z = (low * cell_m).tolist()
        grid = OccupancyGridSpec((x, y, z), (nx, ny, nz), cell_m)
        lookup = np.array([_LABEL.get(name, OCCUPANCY_IGNORED) for name in ALL_CATEGORIES], np.uint8)
        rows = occupancy_truth(self.home, ALL_CATEGORIES, grid)
        labels = np.zeros(grid.shape, np.uint8)
        labels[tuple(rows[:, :3].T)] = lookup[rows[:, 3]]
        seen = np.zeros(grid.shape, bool)
        for view in range(0, len(self.stamps_ns), _CELLS_EVERY):
            T = self.T_world_camera[view]
            seen |= visible_cells(self.depth_m[view], self.intrinsics, T, grid, self.max_range_m)
        return grid, labels, seen


_LABEL = {name: k + 1 for k, name in enumerate(OCCUPANCY_CLASSES)}


def watch_recording(folder: str | Path, max_range_m: float = 5.0) -> Tour:
    """The tour that a simulated recording shows; its home is built again from the seed.

    Raises ``FileNotFoundError`` for a recording without truth, ``ValueError`` for a truth of another kind or a
    recording that cannot be read.
    """
    home = recorded_home(folder)
    camera = read_tum_camera(folder)
    stamps = np.array([stamp for stamp, _ in camera.poses], np.int64)
    return watch(home, stamps, np.stack([T for _, T in camera.poses]), camera.intrinsics, max_range_m)


def watch(
    home: Home, stamps_ns: NDArray[np.int64], T_world_camera: F64, intrinsics: Intrinsics, max_range_m: float = 5.0
) -> Tour:
    """The tour along given camera poses (V, 4, 4)."""
    small = intrinsics.resized(_WIDTH, max(1, round(_WIDTH * intrinsics.height / intrinsics.width)))
    renderer = RayCastRenderer(home.render_scene())
    share = np.zeros((len(stamps_ns), len(home.objects)))
    depths = np.zeros((len(stamps_ns), small.height, small.width), np.float32)
    for view, T in enumerate(T_world_camera):
        depths[view], ids = renderer.ids(small, T)
        near = ids[(depths[view] > 0) & (depths[view] < max_range_m)]
        share[view] = np.bincount(near, minlength=len(home.objects) + 1)[1:] / ids.size
    return Tour(home, stamps_ns, T_world_camera, small, max_range_m, share, depths)
