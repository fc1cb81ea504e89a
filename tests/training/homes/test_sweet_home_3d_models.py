"""Models of Sweet Home 3D that ship with the package: the converter by a small archive, the file, homes with it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import cv2
import numpy as np
import pytest

from embodied_perceptron.weights.categories import ALL_CATEGORIES
from embodied_perceptron_training.homes.assets import electronics, furniture, soft
from embodied_perceptron_training.homes.assets.objects import ObjectModel
from embodied_perceptron_training.homes.assets.sweet_home_3d import convert, decimation, store
from embodied_perceptron_training.homes.assets.sweet_home_3d.store import FAMILY_PREFIX, open_store
from embodied_perceptron_training.homes.assets.sweethome3d import AssetError
from embodied_perceptron_training.homes.assets.varied.catalogue import Catalogue, FamilyModel
from embodied_perceptron_training.homes.building.floorplan import HomeError
from embodied_perceptron_training.homes.building.home import HomeSpec, build_home

CATALOGUE = """
license=Public domain
name#1=Table
model#1=/things/table.obj
width#1=160.0
depth#1=80.0
height#1=75.0
creator#1=Ada
name#2=Slab
model#2=/things/slab.obj
width#2=40
depth#2=30
height#2=10
modelRotation#2=1 0 0 0 0 -1 0 1 0
"""


def box_faces(first: int) -> str:
    quads = ((1, 2, 4, 3), (5, 7, 8, 6), (1, 5, 6, 2), (3, 4, 8, 7), (1, 3, 7, 5), (2, 6, 8, 4))
    return "\n".join("f " + " ".join(f"{i + first}/{k + 1}" for k, i in enumerate(q)) for q in quads)


def corners(low: tuple[float, ...], high: tuple[float, ...]) -> str:
    return "\n".join(f"v {x} {y} {z}" for x in (low[0], high[0]) for y in (low[1], high[1]) for z in (low[2], high[2]))


def table_obj() -> str:
    """A top with a picture on it, and four red legs; y is up, z to the front, in units of their own."""
    parts = [
        "mtllib table.mtl",
        "vt 0.1 0.1",
        "vt 0.4 0.1",
        "vt 0.4 0.4",
        "vt 0.1 0.4",
        corners((-8, 7, -4), (8, 7.5, 4)),
    ]
    parts += ["usemtl top_wood", box_faces(0), "usemtl leg"]
    for k, (x, z) in enumerate(((-8, -4), (7.4, -4), (-8, 3.4), (7.4, 3.4))):
        parts += [corners((x, 0, z), (x + 0.6, 7, z + 0.6)), box_faces(8 + 8 * k)]
    return "\n".join(parts)


MTL = "newmtl top_wood\nKd 1 1 1\nmap_Kd top.png\nnewmtl leg\nKd 0.8 0.1 0.1\nKs 0 0 0\n"


@pytest.fixture(scope="module")
def furniture_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archives")
    texture = np.zeros((8, 8, 3), np.uint8)
    texture[4:, :4] = (200, 60, 20)  # blue, green, red: the lower left quarter, where the coordinates are
    with zipfile.ZipFile(folder / "BlendSwap-CC-0.sh3f", "w") as z:
        z.writestr("PluginFurnitureCatalog.properties", CATALOGUE)
        z.writestr("things/table.obj", table_obj())
        z.writestr("things/table.mtl", MTL)
        z.writestr("things/top.png", cv2.imencode(".png", texture)[1].tobytes())
        z.writestr(
            "things/slab.obj", corners((0, 0, 0), (4, 3, 1)) + "\nvt 0 0\nvt 0 0\nvt 0 0\nvt 0 0\n" + box_faces(0)
        )
    return folder


# -- the converter


def test_a_model_gets_its_size_colours_surface_and_boxes(furniture_folder: Path) -> None:
    roles = {"furniture.dining_table": ["BlendSwap-CC-0/table"]}
    (entry,), (model,) = convert.convert_all(furniture_folder, roles)
    np.testing.assert_allclose(model.vertices.min(0), (-0.8, -0.4, 0), atol=1e-9)
    np.testing.assert_allclose(model.vertices.max(0), (0.8, 0.4, 0.75), atol=1e-9)
    middle = model.triangles.mean(1)
    top = model.palette[model.color[middle[:, 2] > 0.74]]
    np.testing.assert_allclose(top[:, :3], np.tile((20, 60, 200), (len(top), 1)), atol=2)
    assert set(top[:, 4]) == {convert.WOOD}
    legs = model.palette[model.color[middle[:, 2] < 0.5]]
    np.testing.assert_allclose(legs[:, :3], np.tile((204, 26, 26), (len(legs), 1)), atol=2)
    (surface,) = entry["surfaces"]
    assert surface["at"] == pytest.approx([0, 0, 0.75], abs=0.02)
    assert surface["half"] == pytest.approx([0.8, 0.4], abs=0.03)
    boxes = np.array(entry["boxes"])
    low, high = boxes[:, :3] - boxes[:, 3:], boxes[:, :3] + boxes[:, 3:]
    np.testing.assert_allclose(high.max(0), (0.8, 0.4, 0.75), atol=1e-3)
    knee = np.array([0.0, 0.0, 0.4])  # nothing where the knees go
    assert not ((low < knee) & (high > knee)).all(1).any()
    assert entry["licence"] == "CC0 1.0"
    assert "| BlendSwap-CC-0/table | Table | Ada | CC0 1.0 |" in convert.attribution([entry])


def test_a_model_that_lies_is_turned_as_its_catalogue_says(furniture_folder: Path) -> None:
    _, (model,) = convert.convert_all(furniture_folder, {"small.box": ["BlendSwap-CC-0/slab"]})
    np.testing.assert_allclose(np.ptp(model.vertices, axis=0), (0.4, 0.3, 0.1), atol=1e-9)


def test_what_the_file_keeps_is_the_model_to_a_tenth_of_a_millimetre(furniture_folder: Path) -> None:
    _, models = convert.convert_all(furniture_folder, {"small.box": ["BlendSwap-CC-0/slab", "BlendSwap-CC-0/table"]})
    arrays = convert.pack(models)
    starts = np.concatenate([np.zeros((1, 3), np.int64), arrays["counts"].cumsum(0)])
    stored = [store.StoredModel("", "", "", False, "", "", "", k, (), ()) for k in range(2)]
    kept = store.ModelStore({"small.box": tuple(stored)}, arrays, starts)
    for model, known in zip(models, stored, strict=True):
        triangles, color, palette = kept.geometry(known)
        np.testing.assert_allclose(triangles, model.triangles, atol=1e-4)
        np.testing.assert_array_equal(palette[color], model.palette[model.color])


def test_archives_and_models_that_are_not_there_are_named(furniture_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(AssetError, match="no model BlendSwap-CC-0/sofa"):
        convert.convert_all(furniture_folder, {"furniture.couch": ["BlendSwap-CC-0/sofa"]})
    with pytest.raises(AssetError, match=r"Scopia\.sh3f"):
        convert.convert_all(furniture_folder, {"furniture.couch": ["Scopia/sofa"]})
    with pytest.raises(AssetError, match="no surface found on a model"):
        convert.describe("furniture.desk", convert.Model(np.eye(3) * 0.05, np.array([[0, 1, 2]]), np.zeros(1, int),
                                                         np.zeros((1, 5), np.uint8)))  # fmt: skip
    assert convert.main([str(tmp_path)]) == 1


def sheet(n: int) -> tuple[np.ndarray, np.ndarray]:
    """A unit square of 2 n^2 faces, open on all sides."""
    i, j = np.meshgrid(np.arange(n), np.arange(n), indexing="ij")
    a = (i * (n + 1) + j).ravel()
    faces = np.concatenate([np.stack([a, a + n + 1, a + 1], 1), np.stack([a + 1, a + n + 1, a + n + 2], 1)])
    x, y = np.meshgrid(np.linspace(0, 1, n + 1), np.linspace(0, 1, n + 1), indexing="ij")
    return np.stack([x.ravel(), y.ravel(), np.zeros(x.size)], 1), faces


@pytest.mark.slow
def test_an_open_sheet_keeps_its_outline_with_few_faces() -> None:
    vertices, faces = decimation.decimated(*sheet(20), 12)
    assert len(faces) <= 12
    corners = vertices[faces]
    normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    assert np.linalg.norm(normal, axis=1).sum() / 2 == pytest.approx(1.0, abs=1e-6)
    np.testing.assert_allclose(vertices[faces].reshape(-1, 3).min(0), (0, 0, 0), atol=1e-6)
    np.testing.assert_allclose(vertices[faces].reshape(-1, 3).max(0), (1, 1, 0), atol=1e-6)


@pytest.mark.slow
def test_a_fine_box_becomes_twelve_faces() -> None:
    flat, faces = sheet(8)
    turns = (np.eye(3), np.eye(3)[[0, 2, 1]], np.eye(3)[[2, 1, 0]])  # the sheet's normal along z, y, x
    sides = [flat @ turn.T + far * turn[:, 2] for turn in turns for far in (0.0, 1.0)]
    soup = np.concatenate([side[faces] for side in sides])
    vertices, kept = decimation.decimated(*convert._shared(soup), 12)
    assert len(kept) == 12
    corners = {tuple(np.round(p, 6) + 0.0) for p in vertices[kept].reshape(-1, 3)}
    assert corners == {(x, y, z) for x in (0.0, 1.0) for y in (0.0, 1.0) for z in (0.0, 1.0)}
    with pytest.raises(ValueError, match="target"):
        decimation.decimated(vertices, kept, 0)


def test_largest_rectangle_by_slow_search() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        mask = rng.random((7, 6)) < 0.7
        r, c, rows, columns = convert.largest_rectangle(mask)
        assert mask[r : r + rows, c : c + columns].all()
        best = max(
            (b - a) * (d - e)
            for a in range(7) for b in range(a + 1, 8) for e in range(6) for d in range(e + 1, 7)
            if mask[a:b, e:d].all()
        )  # fmt: skip
        assert rows * columns == best


def test_a_fifth_is_held_out_and_near_copies_stay_together() -> None:
    entries = [{"id": f"a/{k}", "role": "r", "size_m": [1.0 + k / 10, 1, 1]} for k in range(10)]
    entries.append({"id": "b/3", "role": "r", "size_m": [1.3, 1, 1.01]})
    entries.append({"id": "b/only", "role": "s", "size_m": [1, 1, 1]})
    names = convert.families(entries)
    assert names[10] == names[3]
    for entry, name in zip(entries, names, strict=True):
        entry["family"] = name
    apart = convert.held_out(entries)
    assert len(apart) == 2
    assert names[11] not in apart


# -- the file


def test_the_file_holds_what_roles_name_and_credits_every_model() -> None:
    models = open_store().models
    roles = json.loads((store.FOLDER / "roles.json").read_text())
    assert {m.id for m in models} == {i for ids in roles.values() for i in ids}
    assert len(models) > 250
    credit = (store.FOLDER / "ATTRIBUTION.md").read_text()
    for m in models:
        assert f"| {m.id} | {m.name} | {m.author} | {m.licence} |" in credit
        assert m.licence in ("CC0 1.0", "CC BY 3.0", "CC BY 3.0 US")
        assert m.author
    assert sum(path.stat().st_size for path in store.FOLDER.glob("models.*")) < 6_000_000


def test_held_out_families_are_a_fifth_and_every_role_keeps_one() -> None:
    by_role = open_store().by_role
    families = {m.family: m.unseen for m in open_store().models}
    assert 0.15 < np.mean(list(families.values())) < 0.22
    for role, models in by_role.items():
        assert any(not m.unseen for m in models), role
    for m in open_store().models:
        assert m.unseen == families[m.family]


def parametric(role: str) -> ObjectModel:
    import importlib

    module, name = role.split(".")
    folder = "varied." if module in ("tables", "storage") else ""
    family = getattr(importlib.import_module(f"embodied_perceptron_training.homes.assets.{folder}{module}"), name)
    made: ObjectModel = family(np.random.default_rng(0))
    return made


def test_every_model_is_an_object_of_a_known_class_and_a_plausible_size() -> None:
    kept = open_store()
    rng = np.random.default_rng(0)
    for role, models in kept.by_role.items():
        like = parametric(role)
        for stored in models:
            made = kept.object(stored, like, rng)
            assert made.category in ALL_CATEGORIES
            low, high = made.bounds()
            size = high - low
            assert abs(low[2]) < 1e-3, stored.id
            assert size.min() > 0.002, stored.id
            assert size.max() < 3.6, stored.id
            assert len(made.parts[0].mesh) <= 820, stored.id
            own = np.ptp(like.bounds(), axis=0)
            ratio = np.cbrt(np.prod(size) / np.prod(np.maximum(own, 0.01)))
            assert 0.2 < ratio < 5, stored.id  # a doll's house is a toy of 0.9 m
            for surface in made.surfaces:  # what carries lies within the model
                assert low[0] - 0.01 <= surface.center_m[0] - surface.half_m[0]
                assert surface.center_m[0] + surface.half_m[0] <= high[0] + 0.01
                assert surface.center_m[2] <= high[2] + 1e-3
            boxes = np.array(stored.boxes)
            assert (boxes[:, :3] - boxes[:, 3:] >= low - 3e-3).all(), stored.id
            assert (boxes[:, :3] + boxes[:, 3:] <= high + 3e-3).all(), stored.id  # none thinner than 2 mm


def test_beds_carry_pillows_and_desks_a_surface_for_work() -> None:
    kept = open_store()
    for stored in kept.by_role["furniture.desk"]:
        top = kept.object(stored, furniture.desk(np.random.default_rng(0)), np.random.default_rng(0)).surfaces[0]
        assert 0.5 < top.center_m[2] < 0.95, stored.id
    beds = [
        kept.object(m, soft.bed(np.random.default_rng(0)), np.random.default_rng(0)) for m in kept.by_role["soft.bed"]
    ]
    assert sum(len(bed.surfaces) == 2 for bed in beds) >= len(beds) / 2
    assert {bed.attributes["style"] for bed in beds} == {"single", "double"}


def test_screens_are_such_as_sensors_lose() -> None:
    from embodied_perceptron_training.homes import sensing

    kept = open_store()
    like = electronics.tv(np.random.default_rng(0))
    for stored in kept.by_role["electronics.tv"]:
        mesh = kept.object(stored, like, np.random.default_rng(0)).parts[0].mesh
        kinds = {sensing.kind_of("tv", m) for m in mesh.materials}
        assert kinds & {sensing.SCREEN, sensing.DARK}, stored.id


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "FOLDER", tmp_path)
    with pytest.raises(AssetError, match="cannot be read"):
        store.open_store.__wrapped__()
    arrays = convert.pack(
        [convert.Model(np.eye(3), np.array([[0, 1, 2]]), np.zeros(1, int), np.zeros((1, 5), np.uint8))]
    )
    np.savez_compressed(tmp_path / "models.npz", **arrays)
    (tmp_path / "models.json").write_text("[]")
    with pytest.raises(AssetError, match="has 1 models"):
        store.open_store.__wrapped__()


# -- homes


def test_half_of_what_there_are_models_for_is_one_of_them() -> None:
    catalogue = Catalogue(False, open_store(), 0.5)
    rng = np.random.default_rng(0)
    drawn = [catalogue.draw(f, rng) for f in (furniture.chair, furniture.couch, soft.bed, electronics.desk_lamp) * 60]
    share = np.mean([m.family.startswith(FAMILY_PREFIX) for m in drawn])
    assert 0.42 < share < 0.58
    assert not any(m.unseen for m in drawn)
    assert len({m.family for m in drawn}) > 30
    sizes = {m.family: [] for m in drawn}
    for m in drawn:
        sizes[m.family].append(float(m.bounds()[1][0]))
    assert all(np.ptp(v) > 0 for name, v in sizes.items() if name.startswith(FAMILY_PREFIX) and len(v) > 2)


def test_test_homes_draw_held_out_models_and_training_never_does() -> None:
    store_ = open_store()
    rng = np.random.default_rng(1)
    tested = [Catalogue(True, store_, 1.0).draw(furniture.chair, rng) for _ in range(80)]
    assert 0.3 < np.mean([m.unseen for m in tested]) < 0.7


def test_homes_of_version_2_mix_models_and_parametric_things() -> None:
    home = build_home(5, HomeSpec(3, version=2))
    made = [o.model for o in home.objects if isinstance(o.model, FamilyModel)]
    stored = [m for m in made if m.family.startswith(FAMILY_PREFIX)]
    assert 5 < len(stored) < len(made)
    only = build_home(5, HomeSpec(1, "office", version=2, assets="parametric"))
    assert not any(o.model.family.startswith(FAMILY_PREFIX) for o in only.objects if isinstance(o.model, FamilyModel))


def test_revision_1_of_version_2_keeps_its_homes() -> None:
    # boxes of a home as the generator made them before there were models
    home = build_home(700001, HomeSpec.of_record({"rooms": 0, "kind": None, "clutter": 1.0, "assets": "parametric",
                                                  "version": 2, "unseen": False}))  # fmt: skip
    assert (home.spec.assets, home.spec.revision) == ("parametric", 1)
    assert len(home.objects) == OLD_COUNT
    total = float(np.abs(home.boxes()[:, :6]).sum())
    assert total == pytest.approx(OLD_SUM, abs=1e-3)


OLD_COUNT, OLD_SUM = 199, 1508.1540


def test_specs_that_make_no_sense_are_named() -> None:
    with pytest.raises(HomeError, match="has revisions 1"):
        HomeSpec(version=2, revision=3)
    with pytest.raises(HomeError, match="mixture"):
        HomeSpec(version=1, assets="mixed")
    with pytest.raises(HomeError, match="has no models"):
        HomeSpec(version=2, revision=1, assets="mixed")
    assert HomeSpec(version=2).assets == "mixed"
    assert HomeSpec(version=1).assets == "parametric"
