"""Written results: point clouds, objects, grids, glTF."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
import yaml
from support.language_scenes import thing
from support.scene_builder import plane, snapshot_of

from embodied_perceptron.geometry.boxes import box_corners, euler_to_matrix
from embodied_perceptron.recordings.artifacts import (
    write_glb,
    write_objects_json,
    write_occupancy_grid,
    write_ply,
    write_png,
)
from embodied_perceptron.recordings.files import write_json
from embodied_perceptron.results import OccupancyGrid2d, SceneObject

# --------------------------------------------------------------------------------------------------------------------
# point clouds, objects, grids, pictures


def read_ply(path: Path) -> tuple[np.ndarray, np.ndarray, list[str]]:
    header, _, body = path.read_bytes().partition(b"end_header\n")
    lines = header.decode().splitlines()
    count = next(int(line.split()[-1]) for line in lines if line.startswith("element vertex"))
    assert len(body) == 15 * count
    raw = np.frombuffer(body, np.uint8).reshape(count, 15)
    return raw[:, :12].copy().view("<f4"), raw[:, 12:], lines


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_ply(tmp_path: Path, count: int) -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(count, 3)).astype(np.float32)
    colors = rng.integers(0, 256, (count, 3), dtype=np.uint8)
    write_ply(tmp_path / "v.ply", points, colors)
    xyz, rgb, header = read_ply(tmp_path / "v.ply")
    assert header[:2] == ["ply", "format binary_little_endian 1.0"]
    assert [line.split()[1:] for line in header if line.startswith("property")] == [
        ["float", "x"],
        ["float", "y"],
        ["float", "z"],
        ["uchar", "red"],
        ["uchar", "green"],
        ["uchar", "blue"],
    ]
    np.testing.assert_array_equal(xyz, points)
    np.testing.assert_array_equal(rgb, colors)


def test_ply_is_read_by_a_mesh_library(tmp_path: Path) -> None:
    trimesh = pytest.importorskip("trimesh")
    points = np.array([[0.1, 0.2, 0.3], [1, 2, 3]], np.float32)
    write_ply(tmp_path / "v.ply", points, np.array([[1, 2, 3], [250, 0, 7]], np.uint8))
    cloud = trimesh.load(tmp_path / "v.ply")
    np.testing.assert_allclose(cloud.vertices, points, atol=1e-7)
    np.testing.assert_array_equal(cloud.colors[:, :3], [[1, 2, 3], [250, 0, 7]])


@pytest.mark.parametrize(
    ("points", "colors", "message"),
    [
        (np.zeros((4, 2)), np.zeros((4, 2), np.uint8), r"points must have shape \(N, 3\)"),
        (np.zeros((4, 3)), np.zeros((3, 3), np.uint8), r"colors must be \(4, 3\) uint8"),
        (np.zeros((4, 3)), np.zeros((4, 3)), "uint8, got"),
        (np.full((4, 3), np.nan), np.zeros((4, 3), np.uint8), "points must be finite"),
    ],
)
def test_ply_refuses(tmp_path: Path, points: np.ndarray, colors: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write_ply(tmp_path / "v.ply", points, colors)
    assert list(tmp_path.iterdir()) == []


def test_objects_json(tmp_path: Path) -> None:
    box = np.array([1, 2, 3, 0.5, 0.6, 0.7, 0.1, 0, 0], float)
    objects = [SceneObject(7, "chair", 0.25, box), SceneObject(2, "table", 1.0, box, "tentative")]
    write_objects_json(tmp_path / "o.json", objects)
    assert json.loads((tmp_path / "o.json").read_text()) == [
        {"id": 2, "label": "table", "score": 1.0, "state": "tentative", "box": box.tolist()},
        {"id": 7, "label": "chair", "score": 0.25, "state": "confirmed", "box": box.tolist()},
    ]


def test_json_has_no_nan(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x.json", {"ms": float("nan")})
    assert list(tmp_path.iterdir()) == []


def map_server(path: Path) -> tuple[np.ndarray, dict[str, object]]:
    """What map_server makes of the files: (rows, cols) -1 / 0 / 100, row 0 at the lowest y."""
    meta = yaml.safe_load(path.read_text())
    pixels = cv2.imread(str(path.parent / meta["image"]), cv2.IMREAD_GRAYSCALE)
    darkness = (255 - pixels.astype(float)) / 255
    cells = np.full(pixels.shape, -1)
    cells[darkness < meta["free_thresh"]] = 0
    cells[darkness > meta["occupied_thresh"]] = 100
    return np.flipud(cells), meta


def test_occupancy_grid_comes_back_as_map_server_reads_it(tmp_path: Path) -> None:
    cells = np.array([[-1, 0, 100, 100], [0, 0, 65, -1], [19, 50, 64, 20]], np.int8)
    grid = OccupancyGrid2d(0.05, np.array([-1.25, 2.5]), cells, 0.0)
    picture, description = write_occupancy_grid(tmp_path / "grid.v1", grid)
    assert (picture.name, description.name) == ("grid.v1.pgm", "grid.v1.yaml")
    read, meta = map_server(description)
    np.testing.assert_array_equal(read, [[-1, 0, 100, 100], [0, 0, 0, -1], [0, 0, 0, 0]])  # 1 to 99 is free at a cost
    assert meta["resolution"] == 0.05
    assert meta["origin"] == [-1.25, 2.5, 0.0]
    assert meta["negate"] == 0


def test_an_empty_grid_is_one_unknown_cell(tmp_path: Path) -> None:
    grid = OccupancyGrid2d(0.05, np.zeros(2), np.zeros((0, 0), np.int8), 0.0)
    read, _ = map_server(write_occupancy_grid(tmp_path / "grid", grid)[1])
    np.testing.assert_array_equal(read, [[-1]])


def test_png_keeps_the_order_of_channels(tmp_path: Path) -> None:
    image = np.zeros((4, 5, 3), np.uint8)
    image[..., 0] = 200
    write_png(tmp_path / "a.png", image)
    np.testing.assert_array_equal(cv2.imread(str(tmp_path / "a.png"))[..., ::-1], image)


def test_a_missing_folder_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        write_png(tmp_path / "nowhere" / "a.png", np.zeros((2, 2, 3), np.uint8))


# --------------------------------------------------------------------------------------------------------------------
# glTF


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
