"""Objects of a home that are carried elsewhere, with everything on them, and a short second drive that shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import make_transform
from embodied_perceptron_training.homes.assets.mesh import rotation
from embodied_perceptron_training.homes.assets.objects import PlacedObject
from embodied_perceptron_training.homes.building.floorplan import HomeError
from embodied_perceptron_training.homes.building.freespace import FreeSpace, free_space
from embodied_perceptron_training.homes.building.home import Home
from embodied_perceptron_training.homes.rendering.ray_renderer import RayCastRenderer
from embodied_perceptron_training.homes.trajectories import (
    PROBE,
    RobotSpec,
    Stop,
    inspection_trajectory,
    look_at,
)

F64 = NDArray[np.float64]
_CARRIED_M = 1.3  # footprint's diagonal of what one person can carry, at most
_CARRIED_SHARE = 0.3
_TRIES = 40
_NEW_M, _BESIDE_M = 1.5, 0.4  # least way of a carried object; free floor around it, so that the robot can pass
_VIEW_M = 1.8, 3.5  # distances from which the robot looks at a place
_LONG_S = 8.0  # look at the new place
_OUT = make_transform(np.eye(3), np.array([0.0, 0.0, -50.0]))  # of what is out of the home, and nobody sees
_VIEWS = 64  # places of the robot that are compared


def is_portable(thing: PlacedObject) -> bool:
    """Whether one person can carry an object; what stands on it is carried with it."""
    return thing.mounted == "floor" and bool(np.hypot(*thing.box9()[3:5]) <= _CARRIED_M)


def carrier(home: Home, thing: PlacedObject) -> int:
    """Id of the object on the floor that carries ``thing``."""
    while thing.support is not None:
        thing = home.objects[thing.support]
    return thing.id


def load_of(home: Home, number: int) -> set[int]:
    """Ids of an object and of everything on it."""
    return {other.id for other in home.objects if carrier(home, other) == number}


def with_poses(home: Home, poses: Mapping[int, F64]) -> Home:
    """The home with some objects, by id, at other (4, 4) poses ``T_world_object``."""
    objects = list(home.objects)
    for k, T in poses.items():
        thing = replace(home.objects[k], T_world_object=T)
        room = next((r.index for r in home.rooms if _is_inside(r.rect, thing.box9()[:2])), thing.room)
        objects[k] = replace(thing, room=room)
    return replace(home, objects=tuple(objects))


def carried(home: Home, number: int, xy: F64, turn_rad: float = 0.0) -> Home:
    """The home with an object, and everything on it, at another (2,) place of the floor."""
    center = home.objects[number].box9()[:3]
    T = make_transform(rotation("z", turn_rad), np.array([*xy, 0.0]))
    T = T @ make_transform(np.eye(3), np.array([*-center[:2], 0.0]))
    return with_poses(home, {k: T @ home.objects[k].T_world_object for k in load_of(home, number)})


def _is_inside(rect: Sequence[float], xy: F64) -> bool:
    return bool(rect[0] <= xy[0] <= rect[2] and rect[1] <= xy[1] <= rect[3])


def carry(
    home: Home, rng: np.random.Generator, away: frozenset[int] = frozenset(), out_share: float = 0.0
) -> tuple[Home, set[int], frozenset[int]]:
    """Carry some portable objects to random places or out of the home.

    ``away``: ids of objects that are out of the home; they are brought back. Returns the home, the ids of objects at
    another place, and those of objects that are out now.
    """
    later, moved, out, taken = home, set[int](), set[int](), list[F64]()
    space = free_space(home)
    cells = space.cells()
    for thing in home.objects:
        if not is_portable(thing) or (thing.id not in away and rng.random() > _CARRIED_SHARE):
            continue
        load = load_of(home, thing.id)
        if thing.id not in away and out_share and rng.random() < out_share:
            out |= load
            continue
        radius_m = np.hypot(*thing.box9()[3:5]) / 2
        for _ in range(_TRIES):
            cell = cells[int(rng.integers(len(cells)))]
            xy = space.center_of(cell[None])[0]
            if space.clearance_m[tuple(cell)] > radius_m and all(np.hypot(*(xy - at)) > 1 for at in taken):
                break
        else:
            out |= load & away
            continue
        taken.append(xy)
        later = carried(later, thing.id, xy, float(rng.uniform(-np.pi, np.pi)))
        moved |= load
    return later, moved, frozenset(out)


# --------------------------------------------------------------------------------------------------------------------
# a second drive


@dataclass(frozen=True, eq=False)
class SecondDrive:
    """Objects that were carried in a home, and a short drive that shows their old and new places.

    Attributes:
        poses: their (4, 4) poses now, by id.
        T_world_base: (frames + 1, 4, 4) base poses, one more than there are frames.
    """

    poses: dict[int, F64]
    T_world_base: F64


def second_drive(before: Home, known: Sequence[int], rate_hz: float, spec: RobotSpec) -> SecondDrive:
    """Carry an object out of the home and another to another room (of a single room: within it), and look at their old
    and new places.

    ``known``: ids of objects that a first drive showed well, best first. Raises :class:`HomeError` for a home without
    two such objects that one person can carry and that have nothing on them, or without free floor for one.
    """
    chosen = [k for k in known if is_portable(before.objects[k]) and load_of(before, k) == {k}][:2]
    if len(chosen) < 2:
        raise HomeError(f"{len(chosen)} objects can be carried alone, two are needed")
    out, moved = chosen
    home = with_poses(before, {out: _OUT @ before.objects[out].T_world_object})
    old = before.objects[moved].room
    room = next((r.index for r in before.rooms if r.index != old), old)
    home = carried(home, moved, _free_place(home, moved, room))
    was, now = RayCastRenderer(before.render_scene()), RayCastRenderer(home.render_scene())
    looks: dict[int, list[tuple[RayCastRenderer, PlacedObject, float]]] = {}  # room -> objects, and for how long
    looks.setdefault(before.objects[out].room, []).append((was, before.objects[out], spec.rest_s))
    looks.setdefault(old, []).append((was, before.objects[moved], spec.rest_s))
    looks.setdefault(room, []).append((now, home.objects[moved], _LONG_S))
    space, near, stops = free_space(home), home.objects[moved].box9()[:2], list[Stop]()
    for number, things in looks.items():
        near = _best_view(space, before.rooms[number].rect, things, spec.camera_height_m, near)
        stops.append(Stop(near, tuple((thing.box9()[:2], seconds) for _, thing, seconds in things)))
    poses = {k: home.objects[k].T_world_object for k in chosen}
    return SecondDrive(poses, inspection_trajectory(space, stops, rate_hz, spec))


def _free_place(home: Home, number: int, room: int) -> F64:
    """(2,) place of a room for an object: the nearest to its old one that leaves the robot room to pass, if any."""
    box, space = home.objects[number].box9(), free_space(home)
    cells = space.cells()
    xy, clear_m = space.center_of(cells), space.clearance_m[cells[:, 0], cells[:, 1]]
    fits = np.array([_is_inside(home.rooms[room].rect, at) for at in xy], bool)
    beside_m, way_m = clear_m - np.hypot(*box[3:5]) / 2, np.hypot(*(xy - box[:2]).T)
    fits &= (beside_m > 0) & (way_m > _NEW_M)
    if not fits.any():
        raise HomeError(f"no free floor for the {home.objects[number].label} in room {room}")
    return np.asarray(xy[fits][np.lexsort([way_m[fits], -np.minimum(beside_m[fits], _BESIDE_M)])[0]])


def _best_view(
    space: FreeSpace,
    rect: Sequence[float],
    things: Sequence[tuple[RayCastRenderer, PlacedObject, float]],
    height_m: float,
    near: F64,
) -> F64:
    """(2,) place of the robot in a room from which all of some objects are seen well, with the shortest way
    from ``near``."""
    at = np.array([thing.box9()[:2] for _, thing, _ in things])
    xy = space.center_of(space.cells())
    away = np.hypot(*(xy[:, None] - at[None]).transpose(2, 0, 1))
    worst_m = np.maximum(_VIEW_M[0] - away, away - _VIEW_M[1]).max(axis=1).clip(0.0)
    worst_m += [0.0 if _is_inside(rect, p) else np.inf for p in xy]
    xy = xy[np.flatnonzero(worst_m == worst_m.min())]
    xy = xy[np.linspace(0, len(xy) - 1, min(_VIEWS, len(xy))).astype(int)]
    seen = np.zeros((len(xy), len(things)))
    for n, place in enumerate(xy):
        for k, (renderer, thing, _) in enumerate(things):
            ids = renderer.ids(PROBE, look_at(np.array([*place, height_m]), thing.box9()[:3]))[1]
            seen[n, k] = (ids == thing.id + 1).mean()
    good = seen.min(axis=1) >= 0.5 * seen.min(axis=1).max()
    ways = [np.diff(space.path(near, place), axis=0) for place in xy[good]]
    return np.asarray(xy[good][np.argmin([np.hypot(*way.T).sum() for way in ways])])
