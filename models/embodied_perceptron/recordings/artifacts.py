"""Writers of results for other programs: point clouds, objects, navigation maps, glTF, OctoMap, COCO, pictures.

Every file is written completely or not at all.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
import yaml
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import BOX_EDGES, CORNER_SIGNS, corners, euler_to_matrix
from embodied_perceptron.geometry.transforms import (
    F64,
    back_project,
    invert_transform,
    project,
    rotation_to_quaternion,
    transform_points,
)
from embodied_perceptron.recordings.files import write_atomically, write_json
from embodied_perceptron.recordings.image_codec import encode_color_file
from embodied_perceptron.results import (
    Grounding,
    OccupancyGrid2d,
    Perception,
    SceneObject,
    SemanticVoxels,
    VoxelSnapshot,
)
from embodied_perceptron.sensors.frame import PosedFrame

Json = dict[str, Any]

_PLY_VERTEX = np.dtype(
    [("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("red", "u1"), ("green", "u1"), ("blue", "u1")]
)  # packed, 15 bytes

# trinary mode of map_server: darkness 1 - pixel / 255 against two thresholds
_FREE_PIXEL, _OCCUPIED_PIXEL, _UNKNOWN_PIXEL = 254, 0, 205
_OCCUPIED_THRESHOLD = 0.65
_FREE_THRESHOLD = 0.196  # below the darkness of the unknown pixel (0.19608)


def write_ply(path: str | Path, points_m: NDArray[np.floating[Any]], colors: NDArray[np.uint8]) -> None:
    """Write a binary little-endian PLY with ``x y z`` (float) and ``red green blue`` (uchar).

    Args:
        path: of the file.
        points_m: (N, 3), may be empty.
        colors: (N, 3) uint8 RGB.

    Raises:
        ValueError: shapes or types do not match, or points are not finite.
        OSError: the file cannot be written.
    """
    points = np.asarray(points_m)
    if points.ndim != 2 or points.shape[1] != 3:
        raise ValueError(f"points must have shape (N, 3), got {points.shape}")
    if colors.shape != points.shape or colors.dtype != np.uint8:
        raise ValueError(f"colors must be {points.shape} uint8, got {colors.shape} {colors.dtype}")
    if not np.isfinite(points).all():
        raise ValueError("points must be finite")
    vertices = np.empty(len(points), _PLY_VERTEX)
    for axis, name in enumerate("xyz"):
        vertices[name] = points[:, axis]
    for channel, name in enumerate(("red", "green", "blue")):
        vertices[name] = colors[:, channel]
    header = "\n".join(
        [
            "ply",
            "format binary_little_endian 1.0",
            f"element vertex {len(points)}",
            *(f"property float {name}" for name in "xyz"),
            *(f"property uchar {name}" for name in ("red", "green", "blue")),
            "end_header",
            "",
        ]
    )
    write_atomically(path, header.encode("ascii") + vertices.tobytes())


def read_ply(path: str | Path) -> tuple[F64, NDArray[np.uint8]]:
    """Read (N, 3) points in metres and (N, 3) RGB from :func:`write_ply`. Raises ``ValueError`` or ``OSError``."""
    data = Path(path).read_bytes()
    header, found, body = data.partition(b"end_header\n")
    lines = header.decode("ascii", "replace").split("\n")
    layout = [f"property float {name}" for name in "xyz"]
    layout += [f"property uchar {name}" for name in ("red", "green", "blue")]
    if not found or lines[:2] != ["ply", "format binary_little_endian 1.0"] or lines[3:-1] != layout:
        raise ValueError(f"{path} is not a binary PLY of x y z red green blue")
    vertices = np.frombuffer(body, _PLY_VERTEX) if len(body) % _PLY_VERTEX.itemsize == 0 else None
    if vertices is None or lines[2] != f"element vertex {len(vertices)}":
        raise ValueError(f"{path} is cut short: {lines[2]!r}, but {len(body)} bytes")
    points = np.stack([vertices[name] for name in "xyz"], axis=1).astype(np.float64)
    return points, np.stack([vertices[name] for name in ("red", "green", "blue")], axis=1)


def write_objects_json(path: str | Path, objects: Iterable[SceneObject]) -> None:
    """Write ``[{id, label, score, state, box: [9]}]`` sorted by id, with ``user_name``, ``condition`` and ``names``
    where known. Raises ``OSError``."""
    write_json(path, [thing.as_dict() for thing in sorted(objects, key=lambda thing: thing.id)])


def write_scene_objects_json(path: str | Path, perception: Perception, objects: Iterable[SceneObject]) -> None:
    """Write ``{version, frame, stamp_ns, T_world_map, objects}``: the list of :func:`write_objects_json` with the frame
    of its boxes (``map``), the stamp of the newest frame, and the (4, 4) pose of the map in the world of the recording.

    Raises ``OSError``.
    """
    rows = [thing.as_dict() for thing in sorted(objects, key=lambda thing: thing.id)]
    place = {"stamp_ns": perception.stamp_ns, "T_world_map": perception.T_world_map.tolist()}
    write_json(path, {"version": 1, "frame": "map", **place, "objects": rows})


def read_objects_json(path: str | Path) -> tuple[SceneObject, ...]:
    """Read objects from :func:`write_objects_json` or :func:`write_scene_objects_json`.

    Raises ``ValueError`` for another kind of file, or ``OSError``.
    """
    try:
        rows = json.loads(Path(path).read_text(encoding="utf-8"))
        if isinstance(rows, dict):
            if rows["version"] != 1:
                raise ValueError(f"{path} has version {rows['version']!r}, known is 1")
            rows = rows["objects"]
        return tuple(
            SceneObject(
                int(r["id"]),
                str(r["label"]),
                float(r["score"]),
                np.array(r["box"], np.float64),
                str(r["state"]),
                user_name=str(r.get("user_name", "")),
                names=tuple((str(n["label"]), float(n["score"])) for n in r.get("names", ())),
                condition=str(r.get("condition", "")),
            )
            for r in rows
        )
    except (KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} holds no objects: {error!r}") from error


def write_occupancy_npz(path: str | Path, semantic: SemanticVoxels) -> None:
    """Write labelled cells: ``centers_m`` (N, 3) float32, ``labels`` (N,) int32 into ``classes`` (text), ``confidence``
    (N,) float32, ``cell_size_m``. Raises ``OSError``."""
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        centers_m=semantic.centers_m,
        labels=semantic.labels,
        confidence=semantic.confidence,
        classes=np.array(semantic.classes, dtype=np.str_),
        cell_size_m=np.float64(semantic.cell_size_m),
    )
    write_atomically(path, buffer.getvalue())


def read_occupancy_npz(path: str | Path) -> SemanticVoxels:
    """Read cells from :func:`write_occupancy_npz`; colours are black. Raises ``ValueError`` or ``OSError``."""
    try:
        with np.load(path, allow_pickle=False) as data:
            centers, labels, confidence = data["centers_m"], data["labels"], data["confidence"]
            classes, cell_size_m = tuple(str(name) for name in data["classes"]), float(data["cell_size_m"])
    except (KeyError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} holds no labelled cells: {error}") from error
    return SemanticVoxels(cell_size_m, centers, np.zeros((len(labels), 3), np.uint8), labels, confidence, classes)


def write_groundings_json(path: str | Path, groundings: Iterable[Grounding]) -> None:
    """Write ``[{text, status, reason, tagged_text, latency_ms, count, candidates: [objects], nearest: [objects],
    phrases: [{text, start, end, ids}]}]`` in the given order.

    Raises ``OSError``.
    """
    write_json(path, groundings_as_dicts(groundings))


def groundings_as_dicts(groundings: Iterable[Grounding]) -> list[Json]:
    """JSON form of answers, as in :func:`write_groundings_json`."""
    return [
        {
            "text": grounding.text,
            "status": grounding.status.name,
            "reason": grounding.reason,
            "tagged_text": grounding.tagged_text,
            "latency_ms": round(grounding.latency_ms, 3),
            "count": grounding.count,
            "candidates": [thing.as_dict() for thing in grounding.candidates],
            "nearest": [thing.as_dict() for thing in grounding.nearest],
            "phrases": [phrase.as_dict() for phrase in grounding.phrases],
        }
        for grounding in groundings
    ]


def write_png(path: str | Path, image: NDArray[np.uint8]) -> None:
    """Write (H, W, 3) uint8 RGB as PNG. Raises ``OSError``."""
    write_atomically(path, encode_color_file(image, ".png"))


def write_occupancy_grid(path_prefix: str | Path, grid: OccupancyGrid2d) -> tuple[Path, Path]:
    """Write ``<prefix>.pgm`` and ``<prefix>.yaml`` for map_server and Nav2.

    The first row of the picture is the highest y. Occupied cells are black, free ones white (whatever their cost), and
    unknown ones grey; an empty grid becomes one unknown cell.

    Returns:
        The two paths. The YAML is written last: if it exists, the picture is complete.

    Raises:
        OSError: a file cannot be written.
    """
    prefix = Path(path_prefix)
    picture, description = prefix.with_name(prefix.name + ".pgm"), prefix.with_name(prefix.name + ".yaml")
    cells = grid.cells if grid.cells.size else np.full((1, 1), -1, np.int8)
    rows, columns = cells.shape
    pixels = np.full((rows, columns), _UNKNOWN_PIXEL, np.uint8)
    pixels[cells >= 0] = _FREE_PIXEL
    pixels[cells >= 100] = _OCCUPIED_PIXEL
    header = f"P5\n{columns} {rows}\n255\n".encode("ascii")
    write_atomically(picture, header + np.flipud(pixels).tobytes())
    meta: Mapping[str, Any] = {
        "image": picture.name,
        "mode": "trinary",
        "resolution": float(grid.resolution_m),
        "origin": [float(grid.origin_m[0]), float(grid.origin_m[1]), 0.0],
        "negate": 0,
        "occupied_thresh": _OCCUPIED_THRESHOLD,
        "free_thresh": _FREE_THRESHOLD,
    }
    write_atomically(description, yaml.safe_dump(meta, sort_keys=False, default_flow_style=None).encode())
    return picture, description


# --------------------------------------------------------------------------------------------------------------------
# glTF


_MAGIC, _VERSION, _JSON, _BINARY = 0x46546C67, 2, 0x4E4F534A, 0x004E4942
_FLOAT, _UNSIGNED_BYTE, _UNSIGNED_SHORT = 5126, 5121, 5123
_POINTS, _LINES = 0, 1
_BOX_COLOR = (235, 134, 92)
_TURN = [-(0.5**0.5), 0.0, 0.0, 0.5**0.5]  # x y z w: z up -> y up


class _GltfBuffer:
    """The binary chunk: concatenated arrays with their accessors."""

    def __init__(self) -> None:
        self.data = b""
        self.views: list[Json] = []
        self.accessors: list[Json] = []

    def add(self, values: NDArray[Any], kind: str, component: int, **more: Any) -> int:
        """Append (N, k) or (N,) ``values`` and return the index of their accessor."""
        self.data += bytes(-len(self.data) % 4)
        raw = np.ascontiguousarray(values).tobytes()
        self.views.append({"buffer": 0, "byteOffset": len(self.data), "byteLength": len(raw)})
        self.data += raw
        accessor = {"bufferView": len(self.views) - 1, "componentType": component, "count": len(values), "type": kind}
        self.accessors.append({**accessor, **more})
        return len(self.accessors) - 1

    def positions(self, points: NDArray[np.float32]) -> int:
        """Append (N, 3) points with their bounds, which glTF requires."""
        low, high = points.min(axis=0).tolist(), points.max(axis=0).tolist()
        return self.add(points, "VEC3", _FLOAT, min=low, max=high)


def write_glb(
    path: str | Path,
    voxels: VoxelSnapshot,
    objects: Sequence[SceneObject],
    colors: Mapping[int, tuple[int, int, int]] | None = None,
) -> None:
    """Write voxels as coloured points and objects as line boxes to a binary glTF 2.0 file.

    A root node turns z up to y up. Each object is a node with its name, and its ``objects.json`` entry in ``extras``;
    all share the mesh of a unit cube. ``colors``: RGB of boxes by id. Raises ``OSError``.
    """
    buffer = _GltfBuffer()
    meshes: list[Json] = []
    materials = [_material("voxels", (255, 255, 255))]
    nodes: list[Json] = [{"name": "map", "rotation": _TURN, "children": []}]

    def place(node: Json) -> None:
        nodes[0]["children"].append(len(nodes))
        nodes.append(node)

    if len(voxels):
        rgba = np.column_stack([voxels.mean_color, np.full(len(voxels), 255, np.uint8)])
        attributes = {
            "POSITION": buffer.positions(voxels.mean_point_m.astype(np.float32)),
            "COLOR_0": buffer.add(rgba, "VEC4", _UNSIGNED_BYTE, normalized=True),
        }
        place({"name": "voxels", "mesh": len(meshes)})
        meshes.append({"primitives": [{"attributes": attributes, "mode": _POINTS, "material": 0}]})
    if objects:
        corners = buffer.positions(0.5 * CORNER_SIGNS.numpy().astype(np.float32))
        edges = buffer.add(np.array(BOX_EDGES, np.uint16).ravel(), "SCALAR", _UNSIGNED_SHORT)
    for thing in objects:
        materials.append(_material(str(thing.id), (colors or {}).get(thing.id, _BOX_COLOR)))
        of_cube = {"attributes": {"POSITION": corners}, "indices": edges, "mode": _LINES}
        place(_box_node(thing, len(meshes)))
        meshes.append({"primitives": [{**of_cube, "material": len(materials) - 1}]})
    if not nodes[0]["children"]:
        del nodes[0]["children"]  # glTF forbids empty lists
    content: Json = {
        "asset": {"version": "2.0", "generator": "embodied-perceptron"},
        "extensionsUsed": ["KHR_materials_unlit"],
        "scene": 0,
        "scenes": [{"nodes": [0]}],
        "nodes": nodes,
        "materials": materials,
    }
    if meshes:
        content |= {"meshes": meshes, "accessors": buffer.accessors, "bufferViews": buffer.views}
        content["buffers"] = [{"byteLength": len(buffer.data)}]
    write_atomically(path, _packed(content, buffer.data))


def _material(name: str, rgb: tuple[int, int, int]) -> Json:
    """Return an unlit material of one colour; glTF colours are linear."""
    factor = [*(round((c / 255) ** 2.2, 4) for c in rgb), 1.0]
    unlit: Json = {"KHR_materials_unlit": {}}
    return {"name": name, "pbrMetallicRoughness": {"baseColorFactor": factor}, "extensions": unlit}


def _box_node(thing: SceneObject, mesh: int) -> Json:
    R = euler_to_matrix(torch.from_numpy(np.asarray(thing.box[6:9], np.float64))).numpy()
    return {
        "name": f"{thing.user_name or thing.label} {thing.id}",
        "mesh": mesh,
        "translation": [float(v) for v in thing.box[:3]],
        "rotation": [float(v) for v in rotation_to_quaternion(R)],
        "scale": [float(v) for v in thing.box[3:6]],
        "extras": thing.as_dict(),
    }


def _packed(content: Json, data: bytes) -> bytes:
    text = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
    chunks = [(_JSON, text + b" " * (-len(text) % 4))]
    if data:
        chunks.append((_BINARY, data + bytes(-len(data) % 4)))
    body = b"".join(struct.pack("<II", len(raw), kind) + raw for kind, raw in chunks)
    return struct.pack("<III", _MAGIC, _VERSION, 12 + len(body)) + body


# --------------------------------------------------------------------------------------------------------------------
# OctoMap


_OCTREE_DEPTH = 16  # levels of every OctoMap; the origin is in its centre
_OCCUPIED, _INNER = 0b10, 0b11  # the file stores the lower bit first


def write_octomap(path: str | Path, coords: NDArray[np.int32], voxel_size_m: float) -> None:
    """Write (N, 3) voxel coordinates as occupied leaves of a binary OctoMap (.bt), for octomap_server and octovis.

    The file (Hornung et al., "OctoMap", 2013) has a text header and 16 bits for each inner node in depth-first order,
    two for each child: 01 an occupied leaf, 11 an inner node, 00 unknown. Free space is not written; eight occupied
    leaves become one. Raises ``OSError``, and ``ValueError`` for a map beyond the size of an OctoMap.
    """
    middle = 1 << (_OCTREE_DEPTH - 1)
    keys = np.asarray(coords, np.int64).reshape(-1, 3) + middle
    if keys.size and (keys.min() < 0 or keys.max() >= 2 * middle):
        reach = f"reaches {middle * voxel_size_m:g} m from the origin"
        raise ValueError(f"an OctoMap of {voxel_size_m:g} m voxels {reach}, the map further")
    codes = np.zeros(len(keys), np.int64)
    for axis in range(3):
        for bit in range(_OCTREE_DEPTH):
            codes |= ((keys[:, axis] >> bit) & 1) << (3 * bit + axis)
    nodes: list[int] = []
    count = 1 + _write_octree(np.unique(codes), _OCTREE_DEPTH, nodes) if len(codes) else 0
    header = (
        "# Octomap OcTree binary file\n# (feel free to add / change comments, but leave the first line as it is!)\n#\n"
        f"id OcTree\nsize {count}\nres {voxel_size_m:.9g}\ndata\n"
    )
    write_atomically(path, header.encode() + np.array(nodes, "<u2").tobytes())


def _write_octree(codes: NDArray[np.int64], level: int, nodes: list[int]) -> int:
    """Append an inner node with the sorted ``codes`` and its subtree; return the number of nodes below it."""
    place = len(nodes)
    nodes.append(0)
    shift = 3 * (level - 1)
    bounds = np.searchsorted((codes >> shift) & 7, np.arange(9))
    bits, count = 0, 0
    for child in range(8):
        first, last = int(bounds[child]), int(bounds[child + 1])
        if first == last:
            continue
        count += 1
        if last - first == 1 << shift:  # full, or a voxel
            bits |= _OCCUPIED << (2 * child)
        else:
            bits |= _INNER << (2 * child)
            count += _write_octree(codes[first:last], level - 1, nodes)
    nodes[place] = bits
    return count


# --------------------------------------------------------------------------------------------------------------------
# COCO labels


MIN_PIXELS = 64  # smallest object that is labelled in a frame
_MARGIN_M = 0.02  # around 3-D boxes: surfaces lie on their faces


def write_coco(
    path: str | Path, frames: Iterable[PosedFrame], objects: Sequence[SceneObject], T_world_map: F64
) -> tuple[int, int]:
    """Write objects of a map in the frames of a recording as COCO JSON, with the frames in ``images/`` next to it.

    A label is the 2-D box and outline of the pixels whose depth lies in the 3-D box of the object, so that occluders
    are left out. Format: https://cocodataset.org/#format-data. Returns the numbers of images and labels.

    Args:
        path: of the JSON file; its folder exists.
        frames: of the recording that the map was built from.
        objects: of the map, boxes in its frame.
        T_world_map: (4, 4) pose of the map in the world frame of the recording.

    Raises ``OSError``.
    """
    path = Path(path)
    (path.parent / "images").mkdir(exist_ok=True)
    names = sorted({thing.label for thing in objects})
    images: list[Json] = []
    annotations: list[Json] = []
    for number, posed in enumerate(frames, start=1):
        height, width = posed.frame.depth_m.shape
        name = f"images/{posed.frame.camera}_{posed.frame.stamp_ns}.jpg".replace(" ", "_")
        write_atomically(path.parent / name, encode_color_file(posed.frame.color, ".jpg"))
        images.append({"id": number, "file_name": name, "width": width, "height": height})
        for thing, mask in visible_objects(posed, objects, T_world_map):
            label = _annotation(mask)
            label |= {"id": len(annotations) + 1, "image_id": number, "category_id": names.index(thing.label) + 1}
            label["attributes"] = {"object_id": thing.id, "score": round(float(thing.score), 6)}
            annotations.append(label)
    categories = [{"id": i, "name": name, "supercategory": ""} for i, name in enumerate(names, start=1)]
    whole = {"info": {"description": "objects of a map of embodied_perceptron"}, "licenses": [], "images": images}
    whole |= {"annotations": annotations, "categories": categories}
    write_atomically(path, json.dumps(whole, indent=1).encode())
    return len(images), len(annotations)


def visible_objects(
    posed: PosedFrame, objects: Sequence[SceneObject], T_world_map: F64
) -> list[tuple[SceneObject, NDArray[np.bool_]]]:
    """Return the visible objects of a frame with their (H, W) masks of at least :data:`MIN_PIXELS` pixels."""
    k = posed.frame.intrinsics
    local, valid = back_project(posed.frame.depth_m, k)
    T_map_camera = invert_transform(T_world_map) @ posed.T_world_camera
    found = []
    for thing in objects:
        box = torch.from_numpy(np.asarray(thing.box, np.float64))[None]
        seen, _ = project(transform_points(invert_transform(T_map_camera), corners(box)[0].numpy()), k)
        if np.isnan(seen).all():
            continue
        # with corners behind the camera the box may be anywhere in the image
        size = np.array([k.width, k.height])
        low, high = (seen.min(0), seen.max(0)) if np.isfinite(seen).all() else (np.zeros(2), size)
        left, top = np.clip(np.floor(low) - 2, 0, size).astype(int)
        right, bottom = np.clip(np.ceil(high) + 3, 0, size).astype(int)
        part = np.s_[top:bottom, left:right]
        R = euler_to_matrix(box[0, 6:9]).numpy()
        inside = np.abs((transform_points(T_map_camera, local[part]) - thing.box[:3]) @ R) <= (
            0.5 * thing.box[3:6] + _MARGIN_M
        )
        mask = np.zeros(valid.shape, bool)
        mask[part] = inside.all(-1) & valid[part]
        if mask.sum() >= MIN_PIXELS:
            found.append((thing, mask))
    return found


def _annotation(mask: NDArray[np.bool_]) -> Json:
    """Return box (left, top, width, height in pixels), area and outline of a non-empty mask."""
    pixels = mask.astype(np.uint8)
    outlines, _ = cv2.findContours(pixels, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    polygons = [[float(v) for v in outline.reshape(-1)] for outline in outlines if len(outline) >= 3]
    return {
        "bbox": [float(v) for v in cv2.boundingRect(pixels)],
        "area": float(mask.sum()),
        "iscrowd": 0,
        "segmentation": polygons,
    }
