"""Files for other programs, read back by readers that are written here from the formats' definitions."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml

from embodied_perceptron.recordings.artifacts import (
    write_json,
    write_objects_json,
    write_occupancy_grid,
    write_ply,
    write_png,
)
from embodied_perceptron.results import OccupancyGrid2d, SceneObject


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
