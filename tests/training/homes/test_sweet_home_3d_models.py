"""Models of Sweet Home 3D that ship with the package: the file, and homes with its models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from embodied_perceptron.weights.categories import ALL_CATEGORIES
from embodied_perceptron_training.homes.assets import electronics, furniture, soft
from embodied_perceptron_training.homes.assets.mesh import MeshBuilder
from embodied_perceptron_training.homes.assets.objects import ObjectModel
from embodied_perceptron_training.homes.assets.sweet_home_3d import store
from embodied_perceptron_training.homes.assets.sweet_home_3d.store import FAMILY_PREFIX, AssetError, open_store
from embodied_perceptron_training.homes.assets.varied.catalogue import Catalogue, FamilyModel
from embodied_perceptron_training.homes.building.floorplan import HomeError
from embodied_perceptron_training.homes.building.home import HomeSpec, build_home

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
    made: ObjectModel = family(np.random.default_rng(0), MeshBuilder())
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
        top = kept.object(
            stored, furniture.desk(np.random.default_rng(0), MeshBuilder()), np.random.default_rng(0)
        ).surfaces[0]
        assert 0.5 < top.center_m[2] < 0.95, stored.id
    beds = [
        kept.object(m, soft.bed(np.random.default_rng(0), MeshBuilder()), np.random.default_rng(0))
        for m in kept.by_role["soft.bed"]
    ]
    assert sum(len(bed.surfaces) == 2 for bed in beds) >= len(beds) / 2
    assert {bed.attributes["style"] for bed in beds} == {"single", "double"}


def test_screens_are_such_as_sensors_lose() -> None:
    from embodied_perceptron_training.homes import sensing

    kept = open_store()
    like = electronics.tv(np.random.default_rng(0), MeshBuilder())
    for stored in kept.by_role["electronics.tv"]:
        mesh = kept.object(stored, like, np.random.default_rng(0)).parts[0].mesh
        kinds = {sensing.kind_of("tv", m) for m in mesh.materials}
        assert kinds & {sensing.SCREEN, sensing.DARK}, stored.id


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "FOLDER", tmp_path)
    with pytest.raises(AssetError, match="cannot be read"):
        store.open_store.__wrapped__()
    arrays = {
        **{"counts": np.array([[3, 1, 1]], np.int32), "bounds": np.array([[[0] * 3, [1] * 3]], np.float32)},
        **{"vertices": np.zeros((3, 3), np.uint16), "faces": np.array([[0, 1, 2]], np.uint16)},
        **{"color": np.zeros(1, np.uint8), "palette": np.zeros((1, 5), np.uint8)},
    }
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
    for version, assets in ((1, "mixed"), (1, "sweethome3d"), (2, "mixed")):
        with pytest.raises(HomeError, match="has no models"):
            HomeSpec(version=version, revision=1, assets=assets)
    assert HomeSpec(version=2).assets == "mixed"
    assert HomeSpec(version=1).assets == "parametric"
