"""Choose the family of each object of a home of version 2, and vary its size.

A *family* is one function that builds an object of a kind in an empty builder, or one Sweet Home 3D model; a *role* is
the family of version 1 that a recipe asks for. A role is filled by its own family, an alternative or a model. A fifth
of the families (:data:`UNSEEN`, and those marked in the models' file) is held out for test homes; every category with
two or more families keeps one for training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron_training.homes.assets import bath, decor, electronics, furniture, kitchen, small, soft
from embodied_perceptron_training.homes.assets.mesh import MIN_FACE_AREA_M2, Mesh, MeshBuilder, Piece, face_areas_m2
from embodied_perceptron_training.homes.assets.objects import Joint, ObjectModel, Part
from embodied_perceptron_training.homes.assets.sweet_home_3d.store import ModelStore, StoredModel
from embodied_perceptron_training.homes.assets.varied import clutter, greenery, seats, storage, tables, tableware

Rng = np.random.Generator
Family = Callable[[Rng, MeshBuilder], ObjectModel]

# role -> alternatives to its own family
ALTERNATIVES: Mapping[Family, tuple[Family, ...]] = {
    furniture.chair: (seats.cantilever_chair, seats.shell_chair, seats.folding_chair),
    furniture.office_chair: (seats.mesh_office_chair, seats.shell_chair),
    furniture.armchair: (seats.wing_chair, seats.barrel_chair),
    furniture.couch: (seats.corner_couch, seats.lounge_couch, seats.daybed),
    furniture.stool: (seats.block_stool, seats.bar_stool),
    furniture.bench: (seats.slatted_bench,),
    furniture.dining_table: (tables.long_table, tables.pedestal_table, tables.glass_table),
    furniture.coffee_table: (tables.block_table, tables.nested_table),
    furniture.side_table: (tables.c_table,),
    furniture.desk: (tables.trestle_desk, tables.lift_desk),
    furniture.tv_stand: (tables.console_stand,),
    furniture.nightstand: (tables.drum_stand,),
    furniture.kitchen_island: (tables.rolling_island,),
    furniture.shelf: (storage.cube_shelf, storage.ladder_shelf, storage.metal_shelf),
    furniture.wall_shelf: (storage.ledge_shelf,),
    furniture.cabinet: (storage.glass_cabinet, storage.filing_cabinet, storage.sideboard),
    furniture.wardrobe: (storage.open_wardrobe,),
    furniture.dresser: (storage.tallboy,),
    small.box: (storage.open_carton, storage.plastic_box, storage.crate),
    electronics.monitor: (storage.wide_monitor,),
    small.bin_: (storage.swing_bin,),
    electronics.heater: (storage.ribbed_radiator,),
    decor.board: (storage.pegboard,),
    decor.plant: (greenery.tall_plant, greenery.palm, greenery.round_tree),
    decor.small_plant: (greenery.cactus, greenery.grass_pot),
    kitchen.cup: (tableware.mug,),
    kitchen.bowl: (tableware.square_bowl,),
    decor.vase: (tableware.bottle_vase,),
    kitchen.bottle: (tableware.square_bottle,),
    kitchen.jar: (tableware.canister,),
    kitchen.pot: (tableware.casserole,),
    electronics.table_lamp: (tableware.globe_lamp,),
    electronics.floor_lamp: (tableware.tripod_lamp, tableware.arc_lamp),
    electronics.desk_lamp: (tableware.clamp_lamp,),
    small.basket: (tableware.oval_basket,),
    soft.cushion: (tableware.round_cushion,),
    small.book: (tableware.book_pile,),
    small.paper: (tableware.tablet,),
    small.toy: (tableware.plush,),
}
# roles without a family of version 1
OWN: tuple[Family, ...] = (greenery.hanging_plant, storage.stand_display, storage.crate, tables.work_bench)
# families of version 1 without alternatives
_SINGLES: tuple[Family, ...] = (
    furniture.ottoman, furniture.footstool, furniture.beanbag, furniture.commode, furniture.rack, furniture.coat_rack,
    furniture.piano, furniture.bicycle, furniture.exercise_bike, furniture.ironing_board, furniture.cart,
    furniture.water_cooler, furniture.divider, small.book_row, small.broom, small.mop, small.bucket, small.dumbbell,
    small.fire_extinguisher, small.hamper, small.guitar, small.umbrella, small.ball, small.folder, small.magazine,
    soft.bed, soft.crib, soft.backpack, soft.bag, soft.luggage, soft.clothes, soft.shoe, electronics.fan,
    electronics.laptop, electronics.tv, electronics.printer, electronics.radio, electronics.speaker, kitchen.kettle,
    kitchen.toaster, kitchen.microwave, kitchen.coffee_maker, kitchen.plate, kitchen.glass, kitchen.pan, kitchen.food,
    kitchen.fruit, bath.bathtub, bath.shower, bath.toilet, bath.washbasin, decor.picture, decor.mirror, decor.clock,
    decor.poster, decor.photo_frame, decor.statue,
)  # fmt: skip


def family_name(family: Callable[..., ObjectModel]) -> str:
    """Module and function, e.g. ``seats.shell_chair``."""
    return f"{family.__module__.rpartition('.')[2]}.{family.__name__}"


# held out for testing: about a fifth of all families, never the last of a category
UNSEEN: frozenset[str] = frozenset(
    family_name(f)
    for f in (
        seats.shell_chair, seats.barrel_chair, seats.lounge_couch, seats.block_stool, tables.pedestal_table,
        tables.nested_table, tables.lift_desk, tables.drum_stand, tables.rolling_island, storage.ladder_shelf,
        storage.filing_cabinet, storage.tallboy, storage.plastic_box, storage.swing_bin, storage.wide_monitor,
        storage.open_wardrobe, greenery.palm, greenery.grass_pot, tableware.mug, tableware.bottle_vase,
        tableware.square_bottle, tableware.tripod_lamp, tableware.clamp_lamp, tableware.oval_basket,
        tableware.book_pile, tableware.plush, furniture.footstool, furniture.coat_rack, decor.poster,
    )
) | clutter.UNSEEN_SHAPES  # fmt: skip
# held-out singles -> the family that replaces them in training
_STAND_INS: Mapping[Family, Family] = {
    furniture.footstool: furniture.ottoman, furniture.coat_rack: furniture.rack, decor.poster: decor.picture,
}  # fmt: skip
_UNSEEN_SHARE = 0.5  # of the objects of a test home with held-out families
_OWN_WEIGHT = 1.3  # of the family of version 1; alternatives have 1


@dataclass(frozen=True, eq=False)
class FamilyModel(ObjectModel):
    """A model with its family.

    Attributes:
        family: name of its family, "shell" for parts of the building.
        unseen: whether the family is held out from training.
    """

    family: str = ""
    unseen: bool = False


def with_family(model: ObjectModel, family: str, unseen: bool | None = None) -> FamilyModel:
    """``model`` with its family; ``unseen`` defaults to whether :data:`UNSEEN` has it."""
    values = {f.name: getattr(model, f.name) for f in fields(ObjectModel)}
    return FamilyModel(**values, family=family, unseen=family in UNSEEN if unseen is None else unseen)


@dataclass(frozen=True)
class Catalogue:
    """Draw families.

    Attributes:
        unseen: whether half of the objects whose role has held-out families are of these; else none is.
        models: models that replace parametric families; None = no models.
        model_share: share of models among objects whose role has models.
    """

    unseen: bool = False
    models: ModelStore | None = None
    model_share: float = 0.5

    def draw(self, role: Family, rng: Rng) -> FamilyModel:
        """A model for ``role`` of a random family and size."""
        if self.models is not None:
            stored = self.models.by_role.get(family_name(role), ())
            if stored and rng.random() < self.model_share:
                return self._draw_stored(role, stored, rng)
        options = [role, *ALTERNATIVES.get(role, ())]
        held_out = [f for f in options if family_name(f) in UNSEEN]
        if self.unseen and held_out and rng.random() < _UNSEEN_SHARE:
            options = held_out
        else:
            options = [f for f in options if f not in held_out] or [_STAND_INS[role]]
        weights = np.array([_OWN_WEIGHT if f is role else 1.0 for f in options])
        family = options[int(rng.choice(len(options), p=weights / weights.sum()))]
        model = family(rng, MeshBuilder())
        return with_family(resized(model, size_jitter(model, rng)), family_name(family))

    def _draw_stored(self, role: Family, stored: tuple[StoredModel, ...], rng: Rng) -> FamilyModel:
        assert self.models is not None
        held_out = [m for m in stored if m.unseen]
        options = [m for m in stored if not m.unseen]
        if self.unseen and held_out and rng.random() < _UNSEEN_SHARE:
            options = held_out
        chosen = options[int(rng.integers(len(options)))]
        model = self.models.object(chosen, role(rng, MeshBuilder()), rng)
        return with_family(resized(model, size_jitter(model, rng)), chosen.family, chosen.unseen)

    def distractor(self, size_m: float, rng: Rng) -> FamilyModel:
        """An unlabelled object of about ``size_m``."""
        shapes = [s for s in clutter.SHAPES if self.unseen or family_name(s) not in UNSEEN]
        shape = shapes[int(rng.integers(len(shapes)))]
        return with_family(shape(rng, MeshBuilder(), size_m), family_name(shape))


def size_jitter(model: ObjectModel, rng: Rng) -> F64:
    """(3,) factors: small objects scale uniformly, large ones more in width and depth than in height."""
    low, high = model.bounds()
    if float((high - low).max()) < 0.45:
        factor = rng.normal(0, 0.11) + rng.normal(0, 0.04, 3)
    else:
        factor = rng.normal(0, (0.08, 0.06, 0.04))
    return np.exp(np.clip(factor, -0.25, 0.25))


def resized(model: ObjectModel, factors: F64) -> ObjectModel:
    """``model`` with its joints, surfaces and collision boxes, scaled by ``factors`` (3,) along its axes."""
    s = np.asarray(factors, np.float64)
    parts = tuple(Part(p.name, _stretched(p.mesh, s), tuple(_piece(q, s) for q in p.pieces), _joint(p.joint, s))
                  for p in model.parts)  # fmt: skip
    surfaces = []
    for a in model.surfaces:
        (x, y, z), (half_x, half_y) = a.center_m, a.half_m
        center, half = (x * s[0], y * s[1], z * s[2]), (half_x * s[0], half_y * s[1])
        surfaces.append(replace(a, center_m=center, half_m=half, clearance_m=a.clearance_m * s[2]))
    return replace(model, parts=parts, surfaces=tuple(surfaces))


def _stretched(mesh: Mesh, s: F64) -> Mesh:
    triangles, normals = mesh.triangles * s, mesh.normals / s
    normals /= np.maximum(np.linalg.norm(normals, axis=-1, keepdims=True), 1e-12)
    keep = face_areas_m2(triangles) > 1.01 * MIN_FACE_AREA_M2
    return Mesh(triangles[keep], normals[keep], mesh.uv[keep], mesh.material[keep], mesh.materials)


def _piece(piece: Piece, s: F64) -> Piece:
    # the smallest box around a scaled rotated box
    axes = piece.R * s[:, None]
    grown = np.abs(piece.R.T @ axes) @ piece.half
    return Piece(piece.center * s, grown, piece.R)


def _joint(joint: Joint | None, s: F64) -> Joint | None:
    if joint is None:
        return None
    x, y, z = (float(v) for v in np.asarray(joint.origin_m) * s)
    axis = np.asarray(joint.axis)
    upper = joint.upper if joint.kind == "revolute" else joint.upper * float(np.linalg.norm(axis * s))
    return replace(joint, origin_m=(x, y, z), upper=upper)
