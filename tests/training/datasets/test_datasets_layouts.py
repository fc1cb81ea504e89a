"""The four real layouts behind one reader, on miniature folders made here: a tilted floor and a wall seen by a camera.

Truth is geometric: whatever the layout, every measured point must come back onto the plane z = 0 or x = 2.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from support.image_files import with_orientation

from embodied_perceptron.geometry.transforms import (
    Intrinsics,
    back_project,
    invert_transform,
    make_transform,
    transform_points,
)
from embodied_perceptron.weights.categories import ALL_CATEGORIES, OCCUPANCY_CLASSES
from embodied_perceptron_training.datasets.embodiedscan import DatasetError, EmbodiedScanDataset
from embodied_perceptron_training.homes.trajectories import camera_pose

T_ALIGN = make_transform(np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]), np.array([0.3, -0.2, 0.1]))
T_WORLD_CAMERA = camera_pose((0.0, 0.2, 1.4), 0.2, 0.35)


def depth_of(camera: Intrinsics, T: np.ndarray) -> np.ndarray:
    """Exact depth of the planes z = 0 and x = 2."""
    points, _ = back_project(np.ones((camera.height, camera.width), np.float32), camera)
    rays = points @ T[:3, :3].T
    with np.errstate(divide="ignore"):
        floor = np.where(rays[..., 2] < 0, -T[2, 3] / rays[..., 2], np.inf)
        wall = np.where(rays[..., 0] > 0, (2 - T[0, 3]) / rays[..., 0], np.inf)
    return np.minimum(floor, wall)


def matrix4(camera: Intrinsics) -> np.ndarray:
    K = np.eye(4)
    K[:3, :3] = camera.matrix
    return K


def write_scan(root: Path, source: str) -> dict[str, Any]:
    """One view in the layout of ``source``; returns its entry of the infos."""
    color, depth = Intrinsics(50, 52, 31.0, 23.0, 64, 48), Intrinsics(25, 26, 15.5, 11.0, 32, 24)
    T, unit, per_image = T_WORLD_CAMERA, 0.001, False
    if source == "scannet":
        name = "scannet/scene0000_00"
        paths = ("scannet/posed_images/scene0000_00/00000.jpg", "scannet/posed_images/scene0000_00/00000.png")
    elif source == "3rscan":
        name = "3rscan/f62fd5fd-9a3f-2f44-883a-1e5cdf9e4b1e"
        paths = (f"{name}/sequence/frame-000000.color.jpg", f"{name}/sequence/frame-000000.depth.pgm")
        # held upright: the stored image is turned a quarter counter-clockwise against the upright one
        T = T @ make_transform(np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]), np.zeros(3))
    elif source == "matterport3d":
        name, unit, per_image = "matterport3d/17DRP5sb8fy/region0", 1 / 4000, True
        folder = "matterport3d/17DRP5sb8fy"
        paths = (f"{folder}/matterport_color_images/ab_i0_0.jpg", f"{folder}/matterport_depth_images/ab_d0_0.png")
    else:
        name, per_image = "arkitscenes/Training/40753679", True
        folder = f"{name}/40753679_frames"
        paths = (f"{folder}/lowres_wide/40753679_1.png", f"{folder}/lowres_depth/40753679_1.png")
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
    picture = np.zeros((color.height, color.width, 3), np.uint8)
    picture[: color.height // 2] = (40, 80, 200)
    cv2.imwrite(str(root / paths[0]), picture)
    raw = np.round(depth_of(depth, T) / unit)
    cv2.imwrite(str(root / paths[1]), np.where(raw < 65535, raw, 0).astype(np.uint16))
    image: dict[str, Any] = {
        "img_path": paths[0],
        "depth_path": paths[1],
        "cam2global": invert_transform(T_ALIGN) @ T,
        "visible_instance_ids": [0],
    }
    entry: dict[str, Any] = {"sample_idx": name, "axis_align_matrix": T_ALIGN, "images": [image]}
    (image if per_image else entry).update(cam2img=matrix4(color))
    entry["depth_cam2img"] = matrix4(depth)
    chair = ALL_CATEGORIES.index("chair")
    entry["instances"] = [{"bbox_3d": [1, 0, 0.5, 0.5, 0.5, 1, 0.1, 0.2, 0.3], "bbox_label_3d": chair, "bbox_id": 0}]
    return entry


@pytest.fixture
def root(tmp_path: Path) -> Path:
    entries = [write_scan(tmp_path, s) for s in ("scannet", "3rscan", "matterport3d", "arkitscenes")]
    infos = {"metainfo": {"categories": {n: i for i, n in enumerate(ALL_CATEGORIES)}}, "data_list": entries}
    (tmp_path / "embodiedscan_infos_val.pkl").write_bytes(pickle.dumps(infos))
    folder = tmp_path / "embodiedscan_occupancy/scannet/scene0000_00"
    folder.mkdir(parents=True)
    cells = {(1, 2, 3): "chair", (4, 5, 6): "floor", (0, 0, 0): "toothbrush"}
    rows = [[*cell, ALL_CATEGORIES.index(name)] for cell, name in cells.items()]
    np.save(folder / "occupancy.npy", np.array(rows, np.int32))
    mask = np.zeros((40, 40, 16), bool)
    mask[1, 2, 3] = True
    (folder / "visible_occupancy.pkl").write_bytes(pickle.dumps([mask]))
    prompts = [
        {"scan_id": "scannet/scene0000_00", "text": "the chair", "target_id": 0, "target": "chair",
         "distractor_ids": [], "anchors": [], "anchor_ids": [], "tokens_positive": [[4, 9]]},
        {"scan_id": "scannet/scene0000_00", "text": "both chairs", "target_id": [0, 1], "target": "chair",
         "distractor_ids": [1, 2, 3, 4], "anchors": [], "anchor_ids": [], "tokens_positive": None},
        {"scan_id": "scannet/elsewhere", "text": "the chair", "target_id": 0, "target": "chair"},
    ]  # fmt: skip
    (tmp_path / "embodiedscan_val_vg.json").write_text(json.dumps(prompts))
    return tmp_path


@pytest.mark.parametrize("upright", [True, False])
@pytest.mark.parametrize("source", ["scannet", "3rscan", "matterport3d", "arkitscenes"])
def test_points_come_back_onto_the_planes(root: Path, source: str, upright: bool) -> None:
    (scan,) = EmbodiedScanDataset(root, "val", source)
    view = scan.load_view(0, upright)
    points, valid = back_project(view.depth_m, view.depth_camera)
    assert valid.mean() > 0.7
    world = transform_points(view.T_world_camera, points[valid])
    off = np.minimum(np.abs(world[:, 2]), np.abs(world[:, 0] - 2))
    assert off.max() < 0.001  # half a step of the depth unit
    assert (np.abs(world[:, 2]) < 0.001).any()
    assert (np.abs(world[:, 0] - 2) < 0.001).any()
    assert scan.labels == ("chair",)
    np.testing.assert_allclose(scan.boxes[0], [1, 0, 0.5, 0.5, 0.5, 1, 0.1, 0.2, 0.3])
    assert (view.color_camera.width, view.color_camera.height) == view.color.shape[1::-1]


def test_3rscan_images_are_turned_upright(root: Path) -> None:
    (scan,) = EmbodiedScanDataset(root, "val", "3rscan")
    view = scan.load_view(0)
    assert view.color.shape == (64, 48, 3)
    # the camera's y axis points down again, and what was on top of the stored image is on the right
    assert view.T_world_camera[2, 1] < -0.9
    np.testing.assert_allclose(view.T_world_camera, T_WORLD_CAMERA, atol=1e-9)
    assert view.color[:, -5:, 0].mean() > 150 > 50 > view.color[:, :5, 0].mean()
    stored = scan.load_view(0, upright=False)
    assert abs(stored.T_world_camera[2, 1]) < 0.1


def test_pictures_are_read_as_they_are_stored(root: Path) -> None:
    (scan,) = EmbodiedScanDataset(root, "val", "scannet")
    path = scan.images[0].color_path
    before = scan.load_view(0).color
    path.write_bytes(with_orientation(path.read_bytes(), 3))
    np.testing.assert_array_equal(scan.load_view(0).color, before)


def test_occupancy_masks_and_prompts(root: Path) -> None:
    dataset = EmbodiedScanDataset(root, "val")
    scan = dataset.by_name("scannet/scene0000_00")
    grid = dataset.occupancy(scan)
    assert grid is not None
    assert grid[1, 2, 3] == OCCUPANCY_CLASSES.index("chair") + 1
    assert grid[4, 5, 6] == OCCUPANCY_CLASSES.index("floor") + 1
    assert grid[0, 0, 0] == 255  # occupied, but none of the 80 classes
    assert (grid > 0).sum() == 3
    masks = dataset.visible_cells(scan)
    assert masks is not None
    assert masks[0].sum() == 1
    ark = dataset.by_name("arkitscenes/Training/40753679")
    assert dataset.occupancy(ark) is None
    one, many = dataset.prompts()
    assert one.target_ids == (0,)
    assert not one.hard
    assert many.target_ids == (0, 1)
    assert many.hard


def test_broken_sets_are_refused_by_name(root: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no split 'train' .*; it has \w+") as missing:
        EmbodiedScanDataset(root, "train")
    assert isinstance(missing.value, DatasetError)
    assert "Errno" not in str(missing.value)
    with pytest.raises(FileNotFoundError, match="nor any other"):
        EmbodiedScanDataset(root / "absent", "train")
    path = root / "embodiedscan_infos_train.pkl"
    path.write_bytes(pickle.dumps({"metainfo": {}}))
    with pytest.raises(DatasetError, match="categories"):
        EmbodiedScanDataset(root, "train")
    infos = {"metainfo": {"categories": {"chair": 0}}, "data_list": [{"sample_idx": "mars/1", "images": []}]}
    path.write_bytes(pickle.dumps(infos))
    with pytest.raises(DatasetError, match="mars/1"):
        _ = EmbodiedScanDataset(root, "train")[0]
    infos["data_list"] = [{"sample_idx": "scannet/1", "images": [{"img_path": "a.jpg"}]}]
    path.write_bytes(pickle.dumps(infos))
    with pytest.raises(DatasetError, match="scannet/1"):
        _ = EmbodiedScanDataset(root, "train")[0]
    scan = EmbodiedScanDataset(root, "val").by_name("scannet/scene0000_00")
    scan.images[0].color_path.write_bytes(b"no image")
    with pytest.raises(DatasetError, match=r"00000\.jpg"):
        scan.load_view(0)
