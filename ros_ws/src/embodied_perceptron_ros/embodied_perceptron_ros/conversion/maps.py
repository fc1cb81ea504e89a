"""Messages of the map: point clouds, the navigation grid, the list of class names. Pure functions."""

from __future__ import annotations

from typing import Any

import numpy as np
from nav_msgs.msg import MapMetaData, OccupancyGrid
from numpy.typing import NDArray
from sensor_msgs.msg import PointCloud2, PointField
from vision_msgs.msg import LabelInfo, VisionClass

from embodied_perceptron.geometry.transforms import make_transform
from embodied_perceptron.results import OccupancyGrid2d, SemanticVoxels, VoxelSnapshot
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
_FAR_M = 8192.0  # from here on float32 is coarser than 0.5 mm: x, y and z are float64 then
VOXEL_DTYPE = np.dtype([("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("rgb", "<u4"), ("hits", "<u4")])
SEMANTIC_DTYPE = np.dtype(
    [("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("rgb", "<u4"), ("label", "<u4"), ("confidence", "<f4")]
)


def voxels_to_cloud(
    voxels: VoxelSnapshot, stamp_ns: int, frame_id: str, T_out_world: NDArray[np.float64] | None = None
) -> PointCloud2:
    """Occupied voxels -> cloud of their mean points (x y z rgb hits), moved into ``frame_id`` by ``T_out_world``."""
    rows = _rows_at(voxels.mean_point_m, VOXEL_DTYPE, T_out_world)
    rows["rgb"] = _pack_rgb(voxels.mean_color)
    rows["hits"] = voxels.hits
    return _cloud(rows, stamp_ns, frame_id)


def semantic_to_cloud(
    semantic: SemanticVoxels, stamp_ns: int, frame_id: str, T_out_world: NDArray[np.float64] | None = None
) -> PointCloud2:
    """Labelled cells -> cloud of their centres (x y z rgb label confidence).

    ``label`` counts into ``~/label_info``; ``rgb`` is the colour of the class, that of its boxes too: viewers cannot
    look names up, and how things look is in ``~/voxels``.
    """
    rows = _rows_at(semantic.centers_m, SEMANTIC_DTYPE, T_out_world)
    palette = np.array([color_of_class(name) for name in semantic.classes], np.uint8).reshape(-1, 3)
    rows["rgb"] = _pack_rgb(palette[semantic.labels])
    rows["label"] = semantic.labels
    rows["confidence"] = semantic.confidence
    return _cloud(rows, stamp_ns, frame_id)


def cloud_to_rows(cloud: PointCloud2) -> NDArray[Any]:
    """PointCloud2 -> (N,) structured array with the cloud's field names; ``rgb`` comes as uint32.

    Raises ``ValueError`` when the data is shorter than the size that the cloud declares.
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
    """The cloud of :func:`semantic_to_cloud` and its ``~/label_info`` -> labelled cells in the cloud's frame.

    The size of the cells is the smallest step between their centres. Raises ``ValueError`` for a label without a name.
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
    """Smallest distance along an axis between (N, 3) centres of cells; 1 where there are not two."""
    steps = [np.diff(np.unique(centers_m[:, axis])) for axis in range(3)]
    clear = np.concatenate(steps)
    clear = clear[clear > 1e-3]  # the same plane, rounded differently
    return float(clear.min()) if len(clear) else 1.0


def grid_to_message(
    grid: OccupancyGrid2d, stamp_ns: int, frame_id: str, T_out_world: NDArray[np.float64] | None = None
) -> OccupancyGrid:
    """Navigation grid -> nav_msgs/OccupancyGrid; a change of frame goes into the pose of its origin."""
    rows, columns = grid.cells.shape
    T_world_origin = make_transform(np.eye(3), np.array([*grid.origin_m, grid.floor_z_m]))
    T = T_world_origin if T_out_world is None else T_out_world @ T_world_origin
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


def message_to_grid(message: OccupancyGrid) -> OccupancyGrid2d:
    """nav_msgs/OccupancyGrid -> grid in the message's frame. Raises ``ValueError`` when its origin is turned."""
    T = pose_to_matrix(message.info.origin)
    if not np.allclose(T[:3, :3], np.eye(3), atol=1e-6):
        raise ValueError("the grid's origin is turned against its frame")
    cells = np.frombuffer(message.data, np.int8).reshape(message.info.height, message.info.width)
    return OccupancyGrid2d(float(message.info.resolution), T[:2, 3], cells, float(T[2, 3]))


def make_label_info(classes: tuple[str, ...], stamp_ns: int, frame_id: str) -> LabelInfo:
    """Class names -> vision_msgs/LabelInfo: number in ``~/semantic_voxels`` to name in ``~/boxes``."""
    class_map = [VisionClass(class_id=i, class_name=name) for i, name in enumerate(classes)]
    return LabelInfo(header=make_header(stamp_ns, frame_id), class_map=class_map, threshold=0.0)


def _rows_at(points: NDArray[np.float32], dtype: np.dtype[Any], T: NDArray[np.float64] | None) -> NDArray[Any]:
    """Rows of ``dtype`` with x, y and z of (N, 3) points moved by ``T``, as float64 where they are far away."""
    moved: NDArray[Any] = points
    if T is not None:
        # float64 per axis: at 1 km from the origin float32 arithmetic would lose 0.1 mm per product
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
    """What a field of a cloud says it is; ``rgb`` says float32 (see above)."""
    if name == "rgb":
        return int(PointField.FLOAT32)
    return next(int(number) for number, code in _POINT_TYPES.items() if np.dtype(code) == kind)
