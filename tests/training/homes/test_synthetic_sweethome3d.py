"""Installed furniture archives: read as they are, fitted into the same boxes, broken ones refused by name."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from embodied_perceptron_training.homes.assets import furniture
from embodied_perceptron_training.homes.assets.sweethome3d import AssetError, attribution_lines, open_library, read_obj
from embodied_perceptron_training.homes.building.home import HomeSpec, build_home

CATALOGUE = """
license=Test licence
name#1=Kitchen chair
model#1=/chairs/chair.obj
width#1=45.0
depth#1=46.0
height#1=92.0
creator#1=Ada
name#2=Fantasy thing
model#2=/chairs/chair.obj
width#2=1
depth#2=1
height#2=1
"""
# a seat of half the height and a back on the rear side; y is up, z points to the front; one face without area
OBJ = """
mtllib chair.mtl
v -1 0 -1
v 1 0 -1
v 1 0 1
v -1 0 1
v -1 2 -1
v 1 2 -1
v 1 4 -1
v -1 4 -1
v -1 2 1
v 1 2 1
usemtl red
f 1 2 6 5
f 5 6 10 9
usemtl blue
f 5 6 7 8
f 1 2 3 4
f 1 1 2
"""
MTL = "newmtl red\nKd 0.8 0.1 0.1\nnewmtl blue\nKd 0.1 0.1 0.8\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with zipfile.ZipFile(tmp_path / "Test.sh3f", "w") as z:
        z.writestr("PluginFurnitureCatalog.properties", CATALOGUE)
        z.writestr("chairs/chair.obj", OBJ)
        z.writestr("chairs/chair.mtl", MTL)
    return tmp_path


def test_models_take_the_box_of_the_parametric_one(folder: Path) -> None:
    library = open_library(folder)
    assert [e.name for e in library.entries["chair"]] == ["Kitchen chair"]
    rng = np.random.default_rng(0)
    chair = furniture.chair(rng)
    replaced = library.replace(chair, rng)
    assert replaced is not chair
    np.testing.assert_allclose(replaced.bounds(), chair.bounds(), atol=1e-9)
    assert attribution_lines(library) == ["Kitchen chair (Test.sh3f) by Ada: Test licence"]
    # the back, blue, stands at the rear: +y
    mesh = replaced.parts[0].mesh
    blue = next(k for k, m in enumerate(mesh.materials) if m.color[2] > 0.5)
    tall = mesh.triangles[mesh.material == blue]
    tall = tall[tall[..., 2].max(1) > 0.5]
    np.testing.assert_allclose(tall[..., 1], chair.bounds()[1][1], atol=1e-9)


def test_what_would_lose_joints_or_proportions_is_kept(folder: Path) -> None:
    library = open_library(folder)
    rng = np.random.default_rng(0)
    for made in (furniture.cabinet(rng), furniture.shelf(rng), furniture.couch(rng)):
        assert library.replace(made, rng) is made
    wide = library.entries["chair"]
    library.entries["couch"] = wide
    couch = furniture.couch(rng)
    assert library.replace(couch, rng) is couch  # two metres of chair


def test_faces_without_area_are_dropped(folder: Path) -> None:
    entry = open_library(folder).entries["chair"][0]
    assert len(read_obj(entry)) == 8


def test_a_home_with_installed_models(folder: Path) -> None:
    library = open_library(folder)
    spec = HomeSpec(1, "living room", assets="sweethome3d")
    home = next(h for h in (build_home(s, spec, library) for s in range(10)) if library.used)
    assert any(o.label == "chair" and o.model.attributes.get("color") for o in home.objects)


def test_missing_and_broken_archives_are_named(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(AssetError, match="sweethome3d-furniture"):
        open_library(empty)
    (empty / "Broken.sh3f").write_bytes(b"PK\x03\x04 no zip")
    with pytest.raises(AssetError, match=r"Broken\.sh3f"):
        open_library(empty)
    with zipfile.ZipFile(folder / "Test.sh3f", "w") as z:
        z.writestr("PluginFurnitureCatalog.properties", CATALOGUE)
        z.writestr("chairs/chair.obj", OBJ.replace("f 1 2 6 5", "f 1 2 60 5"))
    with pytest.raises(AssetError, match=r"chair\.obj"):
        read_obj(open_library(folder).entries["chair"][0])
