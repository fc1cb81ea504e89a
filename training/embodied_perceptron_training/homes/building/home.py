"""A furnished home from a seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron_training.homes.assets.objects import PlacedObject
from embodied_perceptron_training.homes.assets.sweet_home_3d.store import open_store
from embodied_perceptron_training.homes.assets.varied.catalogue import Catalogue
from embodied_perceptron_training.homes.building.exchanged_textures import exchange_textures
from embodied_perceptron_training.homes.building.floorplan import (
    FloorPlan,
    HomeError,
    PlanError,
    Room,
    RoomType,
    make_plan,
)
from embodied_perceptron_training.homes.building.furnishing import furnish
from embodied_perceptron_training.homes.building.placement import Placer, RoomArranger
from embodied_perceptron_training.homes.building.shell import build_shell
from embodied_perceptron_training.homes.building.varied_furnishing import furnish_varied
from embodied_perceptron_training.homes.building.varied_plan import make_varied_plan
from embodied_perceptron_training.homes.rendering.scene import Light, RenderScene, assemble_scene

_ATTEMPTS = 20
VERSIONS = (1, 2)  # of the generator
REVISIONS = {1: 1, 2: 2}  # newest of each version; a seed gives the same bytes within a revision
_MODEL_SHARES = {"parametric": 0.0, "mixed": 0.5, "sweethome3d": 1.0}


@dataclass(frozen=True)
class HomeSpec:
    """Specification of a home.

    Attributes:
        rooms: number of furnished rooms, 1..9; 0 = drawn from the seed.
        kind: type of a single room; None = drawn from the seed.
        clutter: multiplies the number of small things.
        assets: "parametric" families; "sweethome3d" models of this package (:mod:`assets.sweet_home_3d`) where
            available; "mixed" (default of version 2): half of the objects with models. Version 1 has no models.
        version: of the generator; a seed gives the same home within a version and revision.
        unseen: also draw held-out families and plans (version 2 only).
        revision: of the version; 0 = the newest. Revision 1 of version 2 had no models.
        exchanged_textures: share of the objects with textures of other objects, see
            :func:`~embodied_perceptron_training.homes.building.exchanged_textures.exchange_textures`.
    """

    rooms: int = 1
    kind: RoomType | None = None
    clutter: float = 1.0
    assets: Literal["parametric", "sweethome3d", "mixed", ""] = ""  # "" = default of the version
    version: int = 1
    unseen: bool = False
    revision: int = 0
    exchanged_textures: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.rooms <= 9:
            raise HomeError(f"rooms must be in 0..9, got {self.rooms}")
        if self.kind is not None and self.rooms != 1:
            raise HomeError(f"kind={self.kind!r} needs rooms=1, got {self.rooms}")
        if not 0 <= self.clutter <= 5:
            raise HomeError(f"clutter must be in [0, 5], got {self.clutter}")
        if not 0 <= self.exchanged_textures <= 1:
            raise HomeError(f"exchanged_textures must be in [0, 1], got {self.exchanged_textures}")
        if self.version not in VERSIONS:
            raise HomeError(f"version must be one of {VERSIONS}, got {self.version!r}")
        if not 0 <= self.revision <= REVISIONS[self.version]:
            raise HomeError(f"version {self.version} has revisions 1..{REVISIONS[self.version]}, got {self.revision!r}")
        revision = self.revision or REVISIONS[self.version]
        object.__setattr__(self, "revision", revision)
        with_models = self.version > 1 and revision > 1
        object.__setattr__(self, "assets", self.assets or ("mixed" if with_models else "parametric"))
        if self.assets not in _MODEL_SHARES:
            raise HomeError(f"assets must be one of {', '.join(_MODEL_SHARES)}, got {self.assets!r}")
        if self.assets != "parametric" and not with_models:
            which = "version 1" if self.version == 1 else "revision 1 of version 2"
            raise HomeError(f"{which} has no models: assets must be parametric, got {self.assets!r}")
        if self.unseen and self.version == 1:
            raise HomeError("version 1 keeps no families for testing: unseen=True needs version 2")

    @staticmethod
    def of_record(plain: Mapping[str, Any]) -> HomeSpec:
        """From the JSON form in a record or a recording, also without a revision.

        Raises :class:`HomeError` for an invalid value, ``TypeError`` for an unknown field.
        """
        return HomeSpec(**{"assets": "parametric", "revision": 1, **plain})

    def as_dict(self) -> dict[str, Any]:
        """JSON form for a record; homes of before a field keep their form."""
        later = ["version", "unseen", "revision"] if self.version == 1 else []
        later += [] if self.exchanged_textures else ["exchanged_textures"]
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in later}


@dataclass(frozen=True, eq=False)
class Home:
    """A furnished home.

    Attributes:
        seed, spec: of its generation.
        plan: rooms and walls.
        objects: all objects; ids are positions.
        lights: light sources.
        ambient: ambient light, linear RGB.
    """

    seed: int
    spec: HomeSpec
    plan: FloorPlan
    objects: tuple[PlacedObject, ...]
    lights: tuple[Light, ...]
    ambient: tuple[float, float, float]

    @property
    def rooms(self) -> tuple[Room, ...]:
        """The rooms."""
        return self.plan.rooms

    def render_scene(self, objects: Sequence[PlacedObject] | None = None) -> RenderScene:
        """Geometry for a renderer; ``objects`` replaces the home's own (moved joints, removed objects)."""
        parts = [(o.mesh(), o.id) for o in (self.objects if objects is None else objects)]
        return assemble_scene(parts, self.lights, self.ambient)

    def triangles(self) -> F64:
        """(F, 3, 3) all faces, world frame."""
        return np.concatenate([o.mesh().triangles for o in self.objects])

    def boxes(self) -> F64:
        """(N, 9) tight boxes in the order of ``objects``."""
        return np.stack([o.box9() for o in self.objects])

    def with_joint(self, object_id: int, part: str, state: float) -> Home:
        """The same home with one joint at ``state``."""
        target = self.objects[object_id]
        if part not in target.model.joints:
            raise HomeError(f"object {object_id} ({target.label}) has no joint {part!r}; it has {target.model.joints}")
        moved = replace(target, joint_states={**target.joint_states, part: state})
        return replace(self, objects=tuple(moved if o.id == object_id else o for o in self.objects))


def build_home(seed: int, spec: HomeSpec | None = None) -> Home:
    """Generate the home of ``seed``, the same on every machine.

    Raises :class:`HomeError` when none can be furnished, :class:`assets.sweet_home_3d.store.AssetError` for missing
    models.
    """
    if seed < 0:
        raise HomeError(f"seed must not be negative, got {seed}")
    spec = spec or HomeSpec()
    catalogue = None
    if spec.version > 1:
        share = _MODEL_SHARES[spec.assets]
        catalogue = Catalogue(spec.unseen, open_store() if share else None, share)
    for attempt in range(_ATTEMPTS):
        rng = np.random.default_rng([seed, attempt, 20])
        rooms = spec.rooms or int(rng.choice([1, 2, 3, 4, 5, 6], p=[0.3, 0.15, 0.15, 0.15, 0.15, 0.1]))
        try:
            plan = make_plan(rng, rooms, spec.kind) if catalogue is None else make_varied_plan(rng, rooms, spec.kind)
        except PlanError:
            continue
        placer = Placer(plan.rooms)
        build_shell(rng, plan, placer)
        if any(not placer.passable(room.index) for room in plan.rooms):
            continue  # doors block each other: draw another plan
        for room in plan.rooms:
            rng_room = np.random.default_rng([seed, attempt, 21, room.index])
            arranger = RoomArranger(rng_room, placer, room, catalogue=catalogue)
            (furnish if catalogue is None else furnish_varied)(arranger, room, spec.clutter)
        _open_some(rng, placer)
        furniture = [o for o in placer.objects if o.mounted == "floor"]
        if len(furniture) < 2 * rooms:
            continue
        lights, ambient = _lights(rng, plan, placer.objects)
        if not lights:
            continue  # neither a lamp nor a window: the home would be dark
        objects = tuple(placer.objects)
        if spec.exchanged_textures:
            rng = np.random.default_rng([seed, attempt, 22])
            objects = exchange_textures(objects, spec.exchanged_textures, rng)
        return Home(seed, spec, plan, objects, lights, ambient)
    raise HomeError(f"no furnished home with free floor found for seed {seed} and {spec} in {_ATTEMPTS} attempts")


_OPEN_SHARE = 0.12  # share of open doors, drawers and lids


def _open_some(rng: np.random.Generator, placer: Placer) -> None:
    for o in list(placer.objects):
        for part in o.model.joints:
            if o.label not in ("door", "laptop") and rng.random() < _OPEN_SHARE:
                placer.move_joint(o.id, part, round(float(rng.uniform(0.3, 1.0)), 3))


def _lights(
    rng: np.random.Generator, plan: FloorPlan, objects: list[PlacedObject]
) -> tuple[tuple[Light, ...], tuple[float, float, float]]:
    warm = np.array([1.0, 0.93, 0.82])
    day = np.array([0.92, 0.97, 1.0]) * rng.uniform(0.4, 1.4)
    lights = []

    def add(position: F64, color: F64, radius: float, direction: object, room: int) -> None:
        d = np.asarray(direction, np.float64)
        r, g, b = (float(c) for c in color)
        lights.append(
            Light(
                (float(position[0]), float(position[1]), float(position[2])),
                (r, g, b),
                radius,
                (float(d[0]), float(d[1]), float(d[2])),
                plan.rooms[room].rect,
            )
        )

    for o in objects:
        p = o.T_world_object[:3, 3]
        area = plan.rooms[o.room].area_m2
        if o.label in ("light", "chandelier"):
            add(p - np.array([0, 0, 0.25]), warm * rng.uniform(1.6, 2.6) * (area / 18) ** 0.5, 0.15, (0, 0, 0), o.room)
        elif o.label == "window":
            low, high = o.model.bounds()
            middle = p + np.array([0, 0, (high[2] - low[2]) / 2]) + o.front * 0.2
            add(middle, day * 1.6 * (high[0] - low[0]) * (high[2] - low[2]), 0.35, o.front, o.room)
        elif o.label == "lamp" and o.model.attributes.get("style") in ("floor", "table") and rng.random() < 0.4:
            top = o.model.bounds()[1][2]
            add(p + np.array([0, 0, top + 0.05]), warm * rng.uniform(0.25, 0.5), 0.1, (0, 0, 0), o.room)
    level = float(rng.uniform(0.26, 0.36))
    return tuple(lights), (level, level, level * 1.02)
