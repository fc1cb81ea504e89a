"""A map as one binary glTF 2.0 file: voxels as coloured points, objects as boxes of lines with their names.

glTF has metres and y up: a root node turns the map, which has z up. Each object is a node of its own, called by its
name, with what ``objects.json`` says of it in ``extras``; its mesh is the unit cube that all of them share.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import BOX_EDGES, CORNER_SIGNS, euler_to_matrix
from embodied_perceptron.geometry.transforms import rotation_to_quaternion
from embodied_perceptron.recordings.files import write_atomically
from embodied_perceptron.results import SceneObject, VoxelSnapshot

_MAGIC, _VERSION, _JSON, _BINARY = 0x46546C67, 2, 0x4E4F534A, 0x004E4942
_FLOAT, _UNSIGNED_BYTE, _UNSIGNED_SHORT = 5126, 5121, 5123
_POINTS, _LINES = 0, 1
_BOX_COLOR = (235, 134, 92)
_TURN = [-(0.5**0.5), 0.0, 0.0, 0.5**0.5]  # x y z w: z up -> y up
Json = dict[str, Any]


class _Buffer:
    """Arrays one behind another, with their accessors."""

    def __init__(self) -> None:
        self.data = b""
        self.views: list[Json] = []
        self.accessors: list[Json] = []

    def add(self, values: NDArray[Any], kind: str, component: int, **more: Any) -> int:
        """Number of the accessor of (N, k) or (N,) ``values``."""
        self.data += bytes(-len(self.data) % 4)
        raw = np.ascontiguousarray(values).tobytes()
        self.views.append({"buffer": 0, "byteOffset": len(self.data), "byteLength": len(raw)})
        self.data += raw
        accessor = {"bufferView": len(self.views) - 1, "componentType": component, "count": len(values), "type": kind}
        self.accessors.append({**accessor, **more})
        return len(self.accessors) - 1

    def positions(self, points: NDArray[np.float32]) -> int:
        """Of (N, 3) points, with the bounds that glTF demands of positions."""
        low, high = points.min(axis=0).tolist(), points.max(axis=0).tolist()
        return self.add(points, "VEC3", _FLOAT, min=low, max=high)


def write_glb(
    path: str | Path,
    voxels: VoxelSnapshot,
    objects: Sequence[SceneObject],
    colors: Mapping[int, tuple[int, int, int]] | None = None,
) -> None:
    """Write voxels and boxes, replacing an older file. ``colors``: RGB of boxes by id. Raises ``OSError``."""
    buffer = _Buffer()
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
        del nodes[0]["children"]  # glTF has no empty lists
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
    """Of one colour, not lit by anything. glTF has linear colours."""
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
