"""Binary glTF: what is written holds by the format's own rules, and another reader finds points and boxes in it."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
import torch
from support.language_scenes import thing
from support.scene_builder import plane, snapshot_of

from embodied_perceptron.geometry.boxes import box_corners, euler_to_matrix
from embodied_perceptron.recordings.artifacts import write_glb

VOXELS = snapshot_of(plane((-1, -2, 0), (2, 0, 0), (0, 4, 0.5), 0.1), color=np.array([10, 200, 30]))
OBJECTS = [
    thing(3, "chair", (1, 2, 0.5), (0.5, 0.4, 1.0), yaw=0.7),
    thing(8, "tisch \u00e4 \u6905", (0, 0, 0.4), (1, 2, 0.8)),
]
SIZES = {5126: 4, 5121: 1, 5123: 2}
WIDTHS = {"SCALAR": 1, "VEC3": 3, "VEC4": 4}


def read(path):
    """JSON and binary of a file, its rules checked: lengths, alignment, indices and bounds."""
    raw = path.read_bytes()
    magic, version, length = struct.unpack("<4sII", raw[:12])
    assert (magic, version, length) == (b"glTF", 2, len(raw))
    chunks, at = {}, 12
    while at < len(raw):
        size, kind = struct.unpack("<I4s", raw[at : at + 8])
        assert size % 4 == 0
        chunks[kind], at = raw[at + 8 : at + 8 + size], at + 8 + size
    assert at == len(raw)
    content, data = json.loads(chunks[b"JSON"]), chunks.get(b"BIN\0", b"")
    for buffer in content.get("buffers", []):
        assert 0 <= len(data) - buffer["byteLength"] < 4
    for accessor in content.get("accessors", []):
        view = content["bufferViews"][accessor["bufferView"]]
        size = SIZES[accessor["componentType"]]
        assert view["byteOffset"] % size == 0
        assert accessor["count"] * WIDTHS[accessor["type"]] * size == view["byteLength"]
        assert view["byteOffset"] + view["byteLength"] <= len(data)
    for mesh in content.get("meshes", []):
        for primitive in mesh["primitives"]:
            accessor = content["accessors"][primitive["attributes"]["POSITION"]]
            points = values(content, data, primitive["attributes"]["POSITION"])
            assert points.min(axis=0) == pytest.approx(accessor["min"])
            assert points.max(axis=0) == pytest.approx(accessor["max"])
            assert 0 <= primitive["material"] < len(content["materials"])
            if "indices" in primitive:
                assert values(content, data, primitive["indices"]).max() < len(points)
    children = [child for node in content["nodes"] for child in node.get("children", [])]
    assert sorted([*children, *content["scenes"][0]["nodes"]]) == list(range(len(content["nodes"])))
    return content, data


def values(content, data, number):
    accessor = content["accessors"][number]
    view = content["bufferViews"][accessor["bufferView"]]
    dtype = {5126: np.float32, 5121: np.uint8, 5123: np.uint16}[accessor["componentType"]]
    flat = np.frombuffer(data, dtype, offset=view["byteOffset"], count=accessor["count"] * WIDTHS[accessor["type"]])
    return flat.reshape(accessor["count"], -1)


def test_points_and_boxes_are_where_they_are(tmp_path):
    write_glb(tmp_path / "map.glb", VOXELS, OBJECTS, {3: (255, 0, 0)})
    content, data = read(tmp_path / "map.glb")
    names = [node["name"] for node in content["nodes"]]
    assert names == ["map", "voxels", "chair 3", "tisch \u00e4 \u6905 8"]
    attributes = content["meshes"][0]["primitives"][0]["attributes"]
    assert np.allclose(values(content, data, attributes["POSITION"]), VOXELS.mean_point_m)
    assert (values(content, data, attributes["COLOR_0"])[:, :3] == VOXELS.mean_color).all()
    node = content["nodes"][2]
    assert node["extras"] == OBJECTS[0].as_dict()
    cube = values(content, data, content["meshes"][1]["primitives"][0]["attributes"]["POSITION"]).astype(float)
    x, y, z, w = node["rotation"]
    R = np.array([
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ])  # fmt: skip
    assert np.allclose(R, euler_to_matrix(torch.from_numpy(OBJECTS[0].box[6:])).numpy())
    corners = (cube * node["scale"]) @ R.T + node["translation"]
    assert np.allclose(corners, box_corners(OBJECTS[0].box[None])[0])
    assert content["materials"][1]["pbrMetallicRoughness"]["baseColorFactor"] == [1.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("objects", [[], OBJECTS])
@pytest.mark.parametrize("voxels", [VOXELS, snapshot_of(np.zeros((0, 3)))])
def test_empty_maps_are_files_too(tmp_path, voxels, objects):
    write_glb(tmp_path / "map.glb", voxels, objects)
    content, _ = read(tmp_path / "map.glb")
    assert len(content["nodes"]) == 1 + bool(len(voxels)) + len(objects)


def test_another_reader_finds_the_points_with_y_up(tmp_path):
    trimesh = pytest.importorskip("trimesh", reason="trimesh is absent (extra train)")
    write_glb(tmp_path / "map.glb", VOXELS, [])
    scene = trimesh.load(tmp_path / "map.glb", force="scene")
    points = np.asarray(scene.to_geometry().vertices if hasattr(scene, "to_geometry") else scene.dump()[0].vertices)
    x, y, z = np.asarray(VOXELS.mean_point_m, float).T
    assert np.allclose(np.sort(points, axis=0), np.sort(np.stack([x, z, -y], axis=1), axis=0), atol=1e-5)
