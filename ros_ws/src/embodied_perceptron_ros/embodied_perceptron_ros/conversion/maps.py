"""Messages of the map: point clouds, the navigation grid, the list of class names. Pure functions."""

from __future__ import annotations

from typing import Any

import numpy as np
from map_msgs.msg import OccupancyGridUpdate
from nav_msgs.msg import MapMetaData, OccupancyGrid
from numpy.typing import NDArray
from sensor_msgs.msg import PointCloud2, PointField
from vision_msgs.msg import LabelInfo, VisionClass

from embodied_perceptron.geometry.transforms import F64, make_transform
from embodied_perceptron.results import OccupancyGrid2d, SemanticVoxels, VoxelSnapshot
from embodied_perceptron.scene.navigation import Obstacles
from embodied_perceptron.visualization.drawing import color_of_class
from embodied_perceptron_ros.conversion.values import (
    make_header,
    matrix_to_pose,
    message_array,
    ns_to_stamp,
    pose_to_matrix,
)

# `rgb` is a float32 that holds 0x00RRGGBB: the convention of PCL, RViz and Foxglove.
_POINT_TYPES = {
    PointField.INT8: "i1",
    PointField.UINT8: "u1",
    PointField.INT16: "i2",
    PointField.UINT16: "u2",
    PointField.INT32: "i4",
    PointField.UINT32: "u4",
    PointField.FLOAT32: "f4",
    PointField.FLOAT64: "f8",
}
_FAR_M = 8192.0  # beyond it float32 is coarser than 0.5 mm, and x, y and z become float64
VOXEL_DTYPE = np.dtype([("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("rgb", "<u4"), ("hits", "<u4")])
SEMANTIC_DTYPE = np.dtype(
    [("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("rgb", "<u4"), ("label", "<u4"), ("confidence", "<f4")]
)
_POINT_DTYPE = np.dtype([("x", "<f4"), ("y", "<f4"), ("z", "<f4")])


def voxels_to_cloud(
    voxels: VoxelSnapshot,
    stamp_ns: int,
    frame_id: str,
    T_out_world: F64 | None = None,
    max_points: int | None = None,
) -> PointCloud2:
    """Occupied voxels -> cloud of their mean points (x y z rgb hits), moved into ``frame_id`` by ``T_out_world``.

    ``max_points``: merge voxels into the smallest larger cells that give at most so many points; None = no limit.
    """
    points, colors, hits = voxels.mean_point_m, voxels.mean_color, voxels.hits
    if max_points is not None and len(voxels) > max_points:
        points, colors, hits = _coarser(voxels, max_points)
    rows = _rows_at(points, VOXEL_DTYPE, T_out_world)
    rows["rgb"] = _pack_rgb(colors)
    rows["hits"] = hits
    return _cloud(rows, stamp_ns, frame_id)


def _coarser(
    voxels: VoxelSnapshot, max_points: int
) -> tuple[NDArray[np.float32], NDArray[np.uint8], NDArray[np.uint32]]:
    """(M, 3) mean points, (M, 3) mean colours and (M,) hits of cells of n x n x n voxels, for the smallest n with
    M <= ``max_points``."""
    origin = voxels.coords.min(axis=0).astype(np.int64)
    coords = voxels.coords - origin
    n = max(2, int(np.sqrt(len(voxels) / max_points)))  # most voxels lie on surfaces
    while True:
        cells = coords // n
        sides = cells.max(axis=0) + 1
        keys = (cells[:, 0] * sides[1] + cells[:, 1]) * sides[2] + cells[:, 2]
        found, cell = np.unique(keys, return_inverse=True)
        if len(found) <= max_points:
            break
        n += 1
    hits = np.bincount(cell, voxels.hits)
    means = [np.bincount(cell, voxels.hits * v) / hits for v in (*voxels.mean_point_m.T, *voxels.mean_color.T)]
    points, colors = np.stack(means[:3], axis=1), np.stack(means[3:], axis=1)
    return points.astype(np.float32), colors.round().astype(np.uint8), hits.astype(np.uint32)


def semantic_to_cloud(
    semantic: SemanticVoxels, stamp_ns: int, frame_id: str, T_out_world: F64 | None = None
) -> PointCloud2:
    """Labelled voxels -> cloud of their centres (x y z rgb label confidence).

    ``label`` is an index into ``~/label_info``; ``rgb`` is the colour of the class and of its boxes.
    """
    rows = _rows_at(semantic.centers_m, SEMANTIC_DTYPE, T_out_world)
    palette = np.array([color_of_class(name) for name in semantic.classes], np.uint8).reshape(-1, 3)
    rows["rgb"] = _pack_rgb(palette[semantic.labels])
    rows["label"] = semantic.labels
    rows["confidence"] = semantic.confidence
    return _cloud(rows, stamp_ns, frame_id)


def cloud_to_rows(cloud: PointCloud2) -> NDArray[Any]:
    """PointCloud2 -> (N,) structured array with the cloud's field names; ``rgb`` is uint32.

    Raises ``ValueError`` if the data is shorter than the declared size.
    """
    order = ">" if cloud.is_bigendian else "<"
    formats = ["u4" if f.name in ("rgb", "rgba") else _POINT_TYPES[f.datatype] for f in cloud.fields]
    dtype = np.dtype(
        {
            "names": [f.name for f in cloud.fields],
            "formats": [order + f for f in formats],
            "offsets": [f.offset for f in cloud.fields],
            "itemsize": cloud.point_step,
        }
    )
    count = cloud.width * cloud.height
    if len(cloud.data) < count * cloud.point_step:
        raise ValueError(f"cloud of {count} points of {cloud.point_step} bytes has only {len(cloud.data)} bytes")
    return np.frombuffer(cloud.data, dtype, count)


def cloud_to_semantic(cloud: PointCloud2, info: LabelInfo) -> SemanticVoxels:
    """The cloud of :func:`semantic_to_cloud` and its ``~/label_info`` -> labelled voxels in the cloud's frame.

    The voxel size is the smallest distance of their centres. Raises ``ValueError`` for a label without a name.
    """
    rows = cloud_to_rows(cloud)
    names = {c.class_id: c.class_name for c in info.class_map}
    labels = rows["label"].astype(np.int32)
    unknown = sorted(set(np.unique(labels).tolist()) - set(names))
    if unknown:
        raise ValueError(f"label {unknown[0]} has no name in label_info")
    classes = tuple(names.get(i, "") for i in range(max(names, default=-1) + 1))
    centers = np.stack([rows[axis] for axis in "xyz"], axis=1)
    color = unpack_rgb(rows["rgb"])
    return SemanticVoxels(_lattice_step(centers), centers, color, labels, rows["confidence"].copy(), classes)


def _lattice_step(centers_m: NDArray[np.float32]) -> float:
    """Smallest distance along an axis between (N, 3) centres; 1 for fewer than two."""
    steps = np.concatenate([np.diff(np.unique(centers_m[:, axis])) for axis in range(3)])
    steps = steps[steps > 1e-3]  # smaller ones are rounding
    return float(steps.min()) if len(steps) else 1.0


def grid_to_message(
    grid: OccupancyGrid2d,
    stamp_ns: int,
    frame_id: str,
    T_out_world: F64 | None = None,
    padded: bool = False,
) -> OccupancyGrid:
    """Navigation grid -> nav_msgs/OccupancyGrid with cells along the axes of ``frame_id``.

    Nav2's static layer ignores the orientation of a grid's origin, so the cells of a rotated frame come from
    :func:`align_grid`. ``padded``: see :func:`pad_grid`.
    """
    if T_out_world is not None:
        grid = align_grid(grid, T_out_world)
    if padded:
        grid = pad_grid(grid)
    rows, columns = grid.cells.shape
    T = make_transform(np.eye(3), np.array([*grid.origin_m, grid.floor_z_m]))
    message = OccupancyGrid(
        header=make_header(stamp_ns, frame_id),
        info=MapMetaData(
            map_load_time=ns_to_stamp(stamp_ns),
            resolution=float(grid.resolution_m),
            width=columns,
            height=rows,
            origin=matrix_to_pose(T),
        ),
    )
    message.data = message_array(grid.cells.astype(np.int8, copy=False), "b")
    return message


UPDATE_TILE = 64  # cells; step in size of a grid with updates


def pad_grid(grid: OccupancyGrid2d, tile: int = UPDATE_TILE) -> OccupancyGrid2d:
    """Add unknown cells around the grid up to multiples of ``tile`` cells, so that a growing map rarely changes
    position and size."""
    rows, columns = grid.cells.shape
    if grid.cells.size == 0:
        return grid
    first = np.floor(grid.origin_m / grid.resolution_m + 1e-6).astype(np.int64)
    before = first % tile
    after = -(before + np.array([columns, rows])) % tile
    cells = np.pad(grid.cells, ((before[1], after[1]), (before[0], after[0])), constant_values=-1)
    return OccupancyGrid2d(grid.resolution_m, grid.origin_m - before * grid.resolution_m, cells, grid.floor_z_m)


def grid_update(before: OccupancyGrid, now: OccupancyGrid) -> OccupancyGridUpdate | None:
    """The rectangle of cells in which two messages differ, 0 x 0 if they are equal.

    None if position, size or frame differ, so that the whole grid must be sent. The floor's height is ignored.
    """
    a, b = before.info, now.info
    same = before.header.frame_id == now.header.frame_id and (a.width, a.height) == (b.width, b.height)
    places = [(i.resolution, i.origin.position.x, i.origin.position.y) for i in (a, b)]
    if not same or not np.allclose(*places, rtol=0.0, atol=1e-6):
        return None
    old, new = (np.frombuffer(m.data, np.int8).reshape(b.height, b.width) for m in (before, now))
    rows, columns = np.nonzero(old != new)
    update = OccupancyGridUpdate(header=now.header)
    if len(rows):
        top, left = int(rows.min()), int(columns.min())
        part = new[top : int(rows.max()) + 1, left : int(columns.max()) + 1]
        update.x, update.y, update.height, update.width = left, top, *part.shape
        update.data = message_array(np.ascontiguousarray(part), "b")
    return update


_SUBSAMPLES = 3  # per side of a cell; closer than a cell, so that no cell of the source is missed


def align_grid(grid: OccupancyGrid2d, T_out_world: F64) -> OccupancyGrid2d:
    """Resample the grid in another frame, with cells along that frame's axes through its origin.

    Without rotation the cells stay unchanged. Of a tilted frame only heading and height are used. Obstacles never
    shrink: a cell is occupied if any part of it was; otherwise its centre decides between free and unknown.

    Args:
        grid: in the world frame.
        T_out_world: (4, 4) pose of the world frame in the other frame.
    """
    yaw = float(np.arctan2(T_out_world[1, 0], T_out_world[0, 0]))
    c, s = np.cos(yaw), np.sin(yaw)
    R_out_world = np.array([[c, -s], [s, c]])
    middle = grid.origin_m + 0.5 * grid.resolution_m * np.array(grid.cells.shape[::-1])
    moved = T_out_world @ np.array([*middle, grid.floor_z_m, 1.0])
    shift = moved[:2] - R_out_world @ middle  # a tilt is evaluated at the middle of the grid
    rows, columns = grid.cells.shape
    size = grid.resolution_m
    floor_z_m = float(moved[2])
    if grid.cells.size == 0 or abs(yaw) * max(rows, columns) < 1e-3:  # a thousandth of a cell at the far end
        return OccupancyGrid2d(size, grid.origin_m + shift, grid.cells, floor_z_m)
    corners = grid.origin_m + size * np.array([[0, 0], [columns, 0], [0, rows], [columns, rows]], np.float64)
    corners = corners @ R_out_world.T + shift
    low = np.floor(corners.min(axis=0) / size + 1e-6).astype(np.int64)
    wide, high = (np.ceil(corners.max(axis=0) / size - 1e-6).astype(np.int64) - low).tolist()
    cells = np.full((high, wide), -1, np.int8)
    offsets = (np.arange(_SUBSAMPLES) + 0.5) / _SUBSAMPLES
    x, y = np.meshgrid(np.arange(wide), np.arange(high))
    for dx in offsets:
        for dy in offsets:
            points = (np.stack([x + dx, y + dy], axis=-1) + low) * size  # (high, wide, 2) in the other frame
            source = np.floor(((points - shift) @ R_out_world - grid.origin_m) / size).astype(np.int64)
            inside = ((source >= 0) & (source < (columns, rows))).all(axis=-1)
            values = np.full(inside.shape, -1, np.int8)
            values[inside] = grid.cells[source[inside][:, 1], source[inside][:, 0]]
            is_middle = dx == dy == 0.5
            cells = np.where((values > 0) | (is_middle & (cells <= 0)), np.maximum(values, cells), cells)
    return OccupancyGrid2d(size, low * size, cells, floor_z_m)


def obstacles_to_cloud(obstacles: Obstacles, stamp_ns: int, frame_id: str, T_out_world: F64) -> PointCloud2:
    """Obstacle points, then clearing points -> cloud (x y z) in ``frame_id``, for a costmap's obstacle layer."""
    points = np.concatenate([obstacles.points_m, obstacles.clearing_m])
    return _cloud(_rows_at(points, _POINT_DTYPE, T_out_world), stamp_ns, frame_id)


def message_to_grid(message: OccupancyGrid) -> OccupancyGrid2d:
    """nav_msgs/OccupancyGrid -> grid in the message's frame. Raises ``ValueError`` for a rotated origin."""
    T = pose_to_matrix(message.info.origin)
    if not np.allclose(T[:3, :3], np.eye(3), atol=1e-6):
        raise ValueError("the grid's origin is rotated")
    cells = np.frombuffer(message.data, np.int8).reshape(message.info.height, message.info.width)
    return OccupancyGrid2d(float(message.info.resolution), T[:2, 3], cells, float(T[2, 3]))


def make_label_info(classes: tuple[str, ...], stamp_ns: int, frame_id: str) -> LabelInfo:
    """Class names -> vision_msgs/LabelInfo: from numbers of ``~/semantic_voxels`` to names of ``~/boxes``."""
    class_map = [VisionClass(class_id=i, class_name=name) for i, name in enumerate(classes)]
    return LabelInfo(header=make_header(stamp_ns, frame_id), class_map=class_map, threshold=0.0)


def _rows_at(points: NDArray[np.float32], dtype: np.dtype[Any], T: F64 | None) -> NDArray[Any]:
    """Rows of ``dtype`` with x, y and z of (N, 3) points moved by ``T``; far coordinates are float64."""
    moved: NDArray[Any] = points
    if T is not None:
        # float64: 1 km from the origin float32 would lose 0.1 mm per product
        moved = points @ T[:3, :3].T + T[:3, 3]
        if len(moved) and np.abs(moved).max() >= _FAR_M:
            assert dtype.fields is not None
            dtype = np.dtype([(name, "<f8" if name in "xyz" else kind) for name, (kind, _) in dtype.fields.items()])
    rows = np.empty(len(points), dtype)
    for i, axis in enumerate("xyz"):
        rows[axis] = moved[:, i]
    return rows


def _pack_rgb(color: NDArray[np.uint8]) -> NDArray[np.uint32]:
    r, g, b = (color[:, i].astype(np.uint32) for i in range(3))
    return np.asarray((r << 16) | (g << 8) | b, dtype=np.uint32)


def unpack_rgb(packed: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """(N,) 0x00RRGGBB -> (N, 3) uint8 RGB."""
    return np.stack([(packed >> shift) & 255 for shift in (16, 8, 0)], axis=1).astype(np.uint8)


def _cloud(rows: NDArray[Any], stamp_ns: int, frame_id: str) -> PointCloud2:
    dtype = rows.dtype
    assert dtype.fields is not None
    fields = [
        PointField(name=name, offset=offset, datatype=_datatype(name, kind), count=1)
        for name, (kind, offset) in dtype.fields.items()
    ]
    cloud = PointCloud2(
        header=make_header(stamp_ns, frame_id),
        height=1,
        width=len(rows),
        fields=fields,
        is_bigendian=False,
        point_step=dtype.itemsize,
        row_step=dtype.itemsize * len(rows),
        is_dense=True,
    )
    cloud.data = message_array(rows)
    return cloud


def _datatype(name: str, kind: np.dtype[Any]) -> int:
    """Declared type of a cloud's field; ``rgb`` is declared as float32 (see above)."""
    if name == "rgb":
        return int(PointField.FLOAT32)
    return next(int(number) for number, code in _POINT_TYPES.items() if np.dtype(code) == kind)
