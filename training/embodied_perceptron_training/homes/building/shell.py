"""The shell of a home: walls with their openings, floors, ceilings, doors, windows, radiators, switches."""

from __future__ import annotations

import numpy as np

from embodied_perceptron_training.homes.assets import structure
from embodied_perceptron_training.homes.assets.mesh import MeshBuilder, rotation
from embodied_perceptron_training.homes.assets.objects import ObjectModel, part_from, pose_at
from embodied_perceptron_training.homes.building.floorplan import SIDE_YAW, WALL_M, FloorPlan, Opening, Room, Side, Wall
from embodied_perceptron_training.homes.building.placement import Placer
from embodied_perceptron_training.homes.rendering import materials as mat

Rng = np.random.Generator
_SLAB_M = 0.04


def build_shell(rng: Rng, plan: FloorPlan, placer: Placer) -> None:
    """Add walls, floors, ceilings, doors and windows to ``placer``, and the keep-out zones of doors."""
    paint = {room.index: _paint(rng, room) for room in plan.rooms}
    outside = mat.Material((0.7, 0.68, 0.64), "brick", 0, 1.0)
    for room in plan.rooms:
        _slabs(rng, room, placer)
    _put_slopes(plan, placer)
    for wall in plan.walls:
        near = paint.get(wall.below, outside)
        far = paint.get(wall.above, outside)
        owner = max(wall.below, wall.above) if wall.outer else wall.above
        x, y = wall.point((wall.stop_m - wall.start_m) / 2)
        T = pose_at((x, y, 0.0), 0.0 if wall.horizontal else np.pi / 2)
        # turned by 90 degrees, local +y points to smaller x
        front, back = (near, far) if wall.horizontal else (far, near)
        placer.put(_wall_model(wall, plan.height_m, front, back), T, owner, mounted="wall", check="none")
        for opening in wall.openings:
            if opening.kind == "door":
                _put_door(rng, wall, opening, placer)
            elif opening.kind == "passage":
                _keep_passage(wall, opening, placer)
            else:
                _put_window(rng, plan, wall, opening, placer)


def _paint(rng: Rng, room: Room) -> mat.Material:
    if room.kind in ("bathroom",) or (room.kind == "kitchen" and rng.random() < 0.3):
        return mat.colored(
            rng, "tiles", ("white", "beige", "blue", "gray"), texture="tiles", seed=1, scale_m=0.8, gloss=0.25
        )
    soft = [
        (0.90, 0.88, 0.83),
        (0.86, 0.88, 0.88),
        (0.88, 0.83, 0.74),
        (0.78, 0.83, 0.79),
        (0.80, 0.82, 0.88),
        (0.9, 0.82, 0.8),
    ]
    color = soft[int(rng.integers(len(soft)))]
    if rng.random() < 0.2:
        return mat.Material(color, "wallpaper", int(rng.integers(4)), 0.7)
    return mat.Material(color, "plaster", int(rng.integers(3)), 1.5)


def _slabs(rng: Rng, room: Room, placer: Placer) -> None:
    x0, y0, x1, y1 = room.rect
    w, d = x1 - x0 + WALL_M, y1 - y0 + WALL_M
    if room.kind in ("bathroom", "kitchen"):
        floor = mat.colored(
            rng, "tiles", ("gray", "white", "beige", "black"), texture=("tiles", "checker")[int(rng.random() < 0.25)],
            scale_m=1.2, gloss=0.3,
        )  # fmt: skip
    elif rng.random() < 0.2:
        floor = mat.colored(rng, "carpet", ("gray", "beige", "brown", "blue"), texture="carpet", scale_m=0.5)
    else:
        planks = [(0.66, 0.48, 0.30), (0.52, 0.36, 0.22), (0.76, 0.62, 0.44), (0.45, 0.32, 0.22)]
        floor = mat.Material(
            planks[int(rng.integers(4))], "planks", int(rng.integers(4)), 1.3, 0.2, 0.0, "brown", "wooden"
        )
    white = mat.Material((0.93, 0.93, 0.92), "plaster", 0, 2.0)
    cx, cy = room.center
    for category, z, material in (("floor", 0.0, floor), ("ceiling", room.height_m + _SLAB_M, white)):
        b = MeshBuilder()
        b.box((w, d, _SLAB_M), (0, 0, -_SLAB_M / 2), material)
        placer.put(_plain(category, b), pose_at((cx, cy, z), 0.0), room.index, mounted="wall", check="none")


def _plain(category: str, b: MeshBuilder) -> ObjectModel:
    return ObjectModel(category, (part_from(b),), has_front=False)


def _wall_model(wall: Wall, height: float, front: mat.Material, back: mat.Material) -> ObjectModel:
    """A wall along local x around its centre: outer faces of the solid cells between openings."""
    # slightly short of the crossing wall, to avoid coplanar faces
    half_length = (wall.stop_m - wall.start_m) / 2 + WALL_M / 2 - 0.001
    xs = {-half_length, half_length}
    zs = {0.0, height}
    # a wall along y is the local frame turned by 90 degrees, so local x grows with world y
    for o in wall.openings:
        x = o.center_m - (wall.stop_m - wall.start_m) / 2
        xs |= {x - o.width_m / 2, x + o.width_m / 2}
        zs |= {o.bottom_m, o.top_m}
    x_edges, z_edges = np.array(sorted(xs)), np.array(sorted(zs))
    solid = np.ones((len(x_edges) + 1, len(z_edges) + 1), bool)  # padded by one empty cell all around
    solid[0], solid[-1], solid[:, 0], solid[:, -1] = False, False, False, False
    for o in wall.openings:
        x = o.center_m - (wall.stop_m - wall.start_m) / 2
        cx, cz = (x_edges[:-1] + x_edges[1:]) / 2, (z_edges[:-1] + z_edges[1:]) / 2
        hole = (np.abs(cx - x) < o.width_m / 2)[:, None] & ((cz > o.bottom_m) & (cz < o.top_m))[None]
        solid[1:-1, 1:-1] &= ~hole
    b = MeshBuilder()
    t = WALL_M / 2
    for i in range(1, len(x_edges)):
        for k in range(1, len(z_edges)):
            if not solid[i, k]:
                continue
            a, c, z0, z1 = x_edges[i - 1], x_edges[i], z_edges[k - 1], z_edges[k]
            faces = {
                "-x": not solid[i - 1, k],
                "+x": not solid[i + 1, k],
                "-z": not solid[i, k - 1],
                "+z": not solid[i, k + 1],
                "-y": True,
                "+y": True,
            }
            _cell(b, (a, -t, z0), (c, t, z1), faces, front, back)
    return _plain("wall", b)


def _cell(
    b: MeshBuilder,
    low: tuple[float, float, float],
    high: tuple[float, float, float],
    faces: dict[str, bool],
    front: mat.Material,
    back: mat.Material,
) -> None:
    size, center = np.subtract(high, low), np.add(low, high) / 2
    whole = MeshBuilder()
    whole.box(size, (0, 0, 0), front)
    mesh = whole.build()
    for k, name in enumerate(("-x", "+x", "-y", "+y", "-z", "+z")):
        if not faces[name]:
            continue
        pick = slice(2 * k, 2 * k + 2)
        uv = mesh.uv[pick]
        if name in ("-y", "+y"):  # continuous texture over the wall
            p = mesh.triangles[pick] + center
            uv = p[..., [0, 2]]
        b.add(mesh.triangles[pick], mesh.normals[pick], uv, back if name == "+y" else front, center, collide=False)


def _put_door(rng: Rng, wall: Wall, opening: Opening, placer: Placer) -> None:
    """Add frame, leaf and switch; keep the leaf's sweep and the passage free on both sides."""
    x, y = wall.point(opening.center_m)
    side = 1.0 if opening.into == wall.above else -1.0  # the leaf opens towards larger or smaller coordinate
    into: Side = ("S" if side > 0 else "N") if wall.horizontal else ("W" if side > 0 else "E")
    yaw = SIDE_YAW[into]  # the leaf's front faces the room that it opens into
    T = pose_at((x, y, 0.0), yaw)
    frame = structure.doorframe(rng, MeshBuilder(), opening.width_m, opening.top_m, WALL_M)
    placer.put(frame, T, opening.into, mounted="wall", check="none")
    door = structure.door(rng, MeshBuilder(), opening.width_m, opening.top_m)
    state = 0.0 if wall.outer else float(rng.choice([0.0, 1.0], p=[0.15, 0.85])) * float(rng.uniform(0.75, 1.0))
    leaf_T = T @ pose_at((0.0, -WALL_M / 2 + 0.03, 0.0), 0.0)
    placer.put(door, leaf_T, opening.into, joint_states={"leaf": round(state, 3)}, mounted="wall", check="none")
    reach = opening.width_m
    for room, sign in ((wall.above, 1.0), (wall.below, -1.0)):
        if room < 0:
            continue
        far = WALL_M / 2 + (reach if room == opening.into else 0.75)
        corner_a = wall.point(opening.center_m - opening.width_m / 2 - 0.05, 0.0)
        corner_b = wall.point(opening.center_m + opening.width_m / 2 + 0.05, sign * far)
        zone = (
            min(corner_a[0], corner_b[0]),
            min(corner_a[1], corner_b[1]),
            max(corner_a[0], corner_b[0]),
            max(corner_a[1], corner_b[1]),
            0.0,
            2.0,
        )
        placer.keep_out.setdefault(room, []).append(zone)
        placer.access.setdefault(room, []).append(wall.point(opening.center_m, sign * (WALL_M / 2 + 0.5)))
    # light switch next to the frame, on the opening side
    gap = opening.width_m / 2 + 0.12
    for along in (opening.center_m + gap, opening.center_m - gap):
        if 0.15 < along < wall.stop_m - wall.start_m - 0.15:
            sx, sy = wall.point(along, side * (WALL_M / 2 + 0.006))
            if placer.put(
                structure.switch(rng, MeshBuilder()), pose_at((sx, sy, 1.1), yaw), opening.into, mounted="wall"
            ):
                break


def _keep_passage(wall: Wall, opening: Opening, placer: Placer) -> None:
    """Keep the middle of a wide passage free on both sides; furniture may reach into the rest."""
    half = min(opening.width_m / 2, 0.6)
    for room, sign in ((wall.above, 1.0), (wall.below, -1.0)):
        a = wall.point(opening.center_m - half, 0.0)
        b = wall.point(opening.center_m + half, sign * (WALL_M / 2 + 0.75))
        zone = (min(a[0], b[0]), min(a[1], b[1]), max(a[0], b[0]), max(a[1], b[1]), 0.0, 2.0)
        placer.keep_out.setdefault(room, []).append(zone)
        placer.access.setdefault(room, []).append(wall.point(opening.center_m, sign * (WALL_M / 2 + 0.5)))


def _put_slopes(plan: FloorPlan, placer: Placer) -> None:
    """Add a tilted ceiling in each room below a roof, which furniture must not intersect."""
    white = mat.Material((0.93, 0.93, 0.92), "plaster", 0, 2.0)
    for index, (side, knee) in plan.slopes.items():
        room = plan.rooms[index]
        x0, y0, x1, y1 = room.rect
        rise, run = room.height_m - knee, min((y1 - y0) * 0.6, (room.height_m - knee) * 1.4)
        angle, length = float(np.arctan2(rise, run)), float(np.hypot(rise, run))
        b = MeshBuilder()
        # along local y from the wall (y = 0, low) inwards (y = -run, high); the slab's lower face is visible
        R = rotation("x", -angle)
        middle = np.array([0.0, -run / 2, knee + rise / 2]) + R @ np.array([0.0, 0.0, 0.02])
        b.box((x1 - x0 - 0.004, length, 0.03), middle, white, R)
        y, yaw = (y1 - 0.03, 0.0) if side == "N" else (y0 + 0.03, np.pi)
        placer.put(_plain("ceiling", b), pose_at(((x0 + x1) / 2, y, 0.0), yaw), index, mounted="wall", check="none")


def _put_window(rng: Rng, plan: FloorPlan, wall: Wall, opening: Opening, placer: Placer) -> None:
    room = plan.rooms[opening.into]
    side = wall_side(wall, room)
    yaw = SIDE_YAW[side]
    inward = 1.0 if side in ("S", "W") else -1.0
    x, y = wall.point(opening.center_m)
    model = structure.window(rng, MeshBuilder(), opening.width_m, opening.top_m - opening.bottom_m, WALL_M)
    placer.put(model, pose_at((x, y, opening.bottom_m), yaw), room.index, mounted="wall", check="none")
    a = wall.point(opening.center_m - opening.width_m / 2 + 0.08, 0.0)
    b = wall.point(opening.center_m + opening.width_m / 2 - 0.08, inward * 0.3)
    zone = (min(a[0], b[0]), min(a[1], b[1]), max(a[0], b[0]), max(a[1], b[1]), opening.bottom_m + 0.06, opening.top_m)
    if room.kind in ("bathroom", "corridor"):
        placer.keep_out.setdefault(room.index, []).append(zone)
        return
    if rng.random() < 0.6:
        sill = structure.windowsill(rng, MeshBuilder(), opening.width_m)
        sx, sy = wall.point(opening.center_m, inward * (WALL_M / 2 + 0.11))
        placer.put(sill, pose_at((sx, sy, opening.bottom_m - 0.032), yaw), room.index, mounted="wall")
    if rng.random() < 0.7 and opening.bottom_m > 0.75:
        rx, ry = wall.point(opening.center_m, inward * (WALL_M / 2 + 0.06))
        placer.put(structure.radiator(rng, MeshBuilder()), pose_at((rx, ry, 0.12), yaw), room.index, mounted="wall")
    placer.keep_out.setdefault(room.index, []).append(zone)


def wall_side(wall: Wall, room: Room) -> Side:
    """Side of ``room`` that the wall bounds."""
    cx, cy = room.center
    if wall.horizontal:
        return "N" if wall.level_m > cy else "S"
    return "E" if wall.level_m > cx else "W"
