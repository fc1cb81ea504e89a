"""``embodied-perceptron export-map``: glTF, PLY and objects.json, which is what its schema says."""

from __future__ import annotations

import importlib.resources
import json

import cv2
import numpy as np
import pytest
from support.online_world import config, walk
from typer.testing import CliRunner

from embodied_perceptron.apps.cli import build_app
from embodied_perceptron.apps.command_line import CommandError
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.recordings.artifacts import read_objects_json, read_occupancy_npz, read_ply
from embodied_perceptron.recordings.coco_annotations import MIN_PIXELS, visible_objects
from embodied_perceptron.recordings.octomap import write_octomap
from embodied_perceptron.recordings.tum import TumWriter
from embodied_perceptron.results import SceneObject


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    live = Perceptron(config())
    for posed in walk(2, 8):
        live.integrate(posed)
        live.perceive()
    live.name_object(live.objects[0].id, "Anna's crate")
    live.save(folder / "map.safetensors")
    return folder, live


def run(*arguments):
    return CliRunner().invoke(build_app([]), ["export-map", *map(str, arguments)])


def test_a_map_is_written_by_the_ending_of_its_name(saved, tmp_path):
    folder, live = saved
    for name in ("a/map.glb", "map.ply", "objects.json"):
        result = run(folder, "--out", tmp_path / name)
        assert result.exit_code == 0, result.output
        assert f"{len(live.objects)} objects" in result.output
    assert (tmp_path / "a/map.glb").read_bytes()[:4] == b"glTF"
    assert len(read_ply(tmp_path / "map.ply")[0]) == len(live.recall().voxels)
    assert [o.id for o in read_objects_json(tmp_path / "objects.json")] == [o.id for o in live.objects]
    result = run(folder, "--out", tmp_path / "map.obj")
    assert isinstance(result.exception, CommandError)
    assert "must end in .glb, .ply, .json, .bt, .npz, got 'map.obj'" in str(result.exception)


def test_objects_are_what_the_schema_says(saved, tmp_path):
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is absent (extra agent)")
    text = (importlib.resources.files("embodied_perceptron.recordings") / "objects.schema.json").read_text()
    schema = json.loads(text)
    jsonschema.Draft202012Validator.check_schema(schema)
    run(saved[0], "--out", tmp_path / "objects.json")
    objects = json.loads((tmp_path / "objects.json").read_text())
    assert any("user_name" in o for o in objects)
    jsonschema.validate(objects, schema)
    for key, wrong in (("id", -1), ("score", 2), ("state", "gone"), ("box", [0] * 8), ("more", 1)):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate([{**objects[0], key: wrong}], schema)


def read_octomap(path):
    """Occupied voxels of a .bt file, (N, 3), its resolution, and its number of nodes: by its definition, bit by bit."""
    header, data = path.read_bytes().split(b"data\n", 1)
    lines = header.decode().splitlines()
    assert lines[0] == "# Octomap OcTree binary file"
    said = dict(line.split() for line in lines if not line.startswith("#"))
    assert said["id"] == "OcTree"
    rest, leaves, nodes = iter(data), [], 1

    def inner(corner, size):
        nonlocal nodes
        bits = [(byte >> i) & 1 for byte in (next(rest), next(rest)) for i in range(8)]
        below = []
        for child in range(8):
            kind = bits[2 * child], bits[2 * child + 1]
            at = corner + np.array([child & 1, child >> 1 & 1, child >> 2 & 1]) * (size // 2)
            nodes += kind != (0, 0)
            assert kind != (1, 0)  # free space is not written
            if kind == (0, 1):
                leaves.append((at, size // 2))
            elif kind == (1, 1):
                below.append(at)
        for at in below:
            inner(at, size // 2)

    if data:
        inner(np.full(3, -(1 << 15)), 1 << 16)
    assert next(rest, None) is None
    steps = [(at + np.stack(np.meshgrid(*[np.arange(size)] * 3), -1).reshape(-1, 3)) for at, size in leaves]
    voxels = np.concatenate(steps) if steps else np.zeros((0, 3), int)
    return {tuple(map(int, v)) for v in voxels}, float(said["res"]), nodes if data else 0, int(said["size"])


def test_voxels_are_an_octomap(saved, tmp_path):
    folder, live = saved
    assert run(folder, "--out", tmp_path / "map.bt").exit_code == 0
    voxels = live.recall().voxels
    found, size_m, nodes, said = read_octomap(tmp_path / "map.bt")
    assert found == {tuple(map(int, c)) for c in voxels.coords}
    assert size_m == pytest.approx(voxels.voxel_size_m)
    assert nodes == said


def test_full_blocks_are_one_leaf_and_empty_maps_are_empty(tmp_path):
    block = np.stack(np.meshgrid(*[np.arange(-8, 0)] * 3), -1).reshape(-1, 3)
    write_octomap(tmp_path / "a.bt", np.concatenate([block, [[5, 6, 7]]]), 0.04)
    found, _, nodes, said = read_octomap(tmp_path / "a.bt")
    assert found == {tuple(map(int, c)) for c in block} | {(5, 6, 7)}
    assert nodes == said == 1 + (13 + 16)  # the block ends three levels above the voxels
    write_octomap(tmp_path / "b.bt", np.zeros((0, 3), np.int32), 0.04)
    assert read_octomap(tmp_path / "b.bt") == (set(), 0.04, 0, 0)
    with pytest.raises(ValueError, match=r"reaches 1310\.72 m from the origin"):
        write_octomap(tmp_path / "c.bt", np.array([[1 << 15, 0, 0]]), 0.04)


def test_the_library_of_octomap_reads_it(saved, tmp_path):
    pyoctomap = pytest.importorskip("pyoctomap", reason="pyoctomap is absent (extra bench)")
    folder, live = saved
    run(folder, "--out", tmp_path / "map.bt")
    tree = pyoctomap.OcTree(0.1)
    assert tree.readBinary(str(tmp_path / "map.bt"))
    voxels = live.recall().voxels
    centers = (voxels.coords[:200] + 0.5) * voxels.voxel_size_m
    assert all(tree.isNodeOccupied(tree.search(center)) for center in centers)
    assert tree.search(centers.min(0) - 3.0) is None


def test_cells_are_written_with_their_classes(saved, tmp_path):
    folder, live = saved
    result = run(folder, "--out", tmp_path / "cells.npz")
    assert result.exit_code == 0, result.output
    cells, expected = read_occupancy_npz(tmp_path / "cells.npz"), live.recall().semantic
    assert (cells.labels == expected.labels).all()
    assert len(cells.labels) > 0
    assert cells.classes == expected.classes


@pytest.fixture(scope="module")
def labelled(saved, tmp_path_factory):
    """The walk as a recording, and what is written of it."""
    folder, live = saved
    out = tmp_path_factory.mktemp("coco")
    frames = list(walk(2, 8))
    with TumWriter(out / "walk", frames[0].frame.intrinsics) as writer:
        for posed in frames:
            writer.add(posed.frame.stamp_ns, posed.frame.color, posed.frame.depth_m, posed.T_world_camera)
    path = out / "a" / "labels.json"
    result = run(folder, "--recording", out / "walk", "--frames", 4, "--out", path)
    assert result.exit_code == 0, result.output
    assert "4 images" in result.output
    return path, json.loads(path.read_text()), frames, live


def test_labels_are_what_coco_has(labelled):
    path, said, _, live = labelled
    assert {"info", "licenses", "images", "annotations", "categories"} <= set(said)
    images, categories = {i["id"]: i for i in said["images"]}, {c["id"]: c["name"] for c in said["categories"]}
    assert len(images) == 4
    assert set(categories.values()) == {o.label for o in live.objects}
    for image in images.values():
        pixels = cv2.imread(str(path.parent / image["file_name"]))
        assert pixels.shape == (image["height"], image["width"], 3)
    assert said["annotations"]
    assert len({a["id"] for a in said["annotations"]}) == len(said["annotations"])
    for label in said["annotations"]:
        image = images[label["image_id"]]
        x, y, w, h = label["bbox"]
        assert 0 <= x < x + w <= image["width"]
        assert 0 <= y < y + h <= image["height"]
        assert MIN_PIXELS <= label["area"] <= w * h
        assert label["iscrowd"] == 0
        assert label["category_id"] in categories
        assert all(len(polygon) % 2 == 0 and len(polygon) >= 6 for polygon in label["segmentation"])
        of = next(o for o in live.objects if o.id == label["attributes"]["object_id"])
        assert categories[label["category_id"]] == of.label


def test_a_label_is_where_its_object_is_seen(labelled):
    """A box known to hold a wall's part: its pixels, and none of what hides it or lies behind."""
    *_, frames, _ = labelled
    posed = frames[0]
    v, u = np.argwhere(np.isfinite(posed.frame.depth_m) & (posed.frame.depth_m > 0)).mean(0).astype(int)
    k, z = posed.frame.intrinsics, float(posed.frame.depth_m[v, u])
    point = posed.T_world_camera @ [(u - k.cx) / k.fx * z, (v - k.cy) / k.fy * z, z, 1.0]
    further = 2 * point[:3] - posed.T_world_camera[:3, 3]
    around = SceneObject(1, "part", 1.0, np.array([*point[:3], 0.8, 0.8, 0.8, 0.2, 0, 0]))
    behind = SceneObject(2, "hidden", 1.0, np.array([*further, 0.4, 0.4, 0.4, 0, 0, 0]))
    ((thing, mask),) = visible_objects(posed, [around, behind], np.eye(4))
    assert thing.id == 1
    assert mask[v, u]
    far = np.argwhere(mask) - [v, u]
    assert np.hypot(*far.T).max() < 0.7 / (z - 0.7) * k.fx + 2


def test_labels_are_json_alone(saved, tmp_path):
    result = run(saved[0], "--recording", tmp_path, "--out", tmp_path / "map.glb")
    assert "labels of a recording are written as .json" in str(result.exception)
