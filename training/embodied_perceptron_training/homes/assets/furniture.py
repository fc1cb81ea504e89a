"""Furniture: seats, tables, cases, and rare large things."""

from __future__ import annotations

import numpy as np

from embodied_perceptron_training.homes.assets.common import (
    CORNERS,
    Rng,
    carcass,
    choice,
    drawer,
    four_legs,
    hinged_door,
    model,
    top_surface,
)
from embodied_perceptron_training.homes.assets.mesh import MeshBuilder, rotation
from embodied_perceptron_training.homes.assets.objects import ObjectModel, Part, Surface
from embodied_perceptron_training.homes.rendering import materials as mat

# -- seats


def chair(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A dining chair: seat, four legs, back with slats or a panel."""
    frame = mat.wood(rng) if rng.random() < 0.7 else mat.metal(rng)
    seat = mat.fabric(rng) if rng.random() < 0.5 else frame
    w, d = rng.uniform(0.40, 0.48), rng.uniform(0.40, 0.48)
    h, back = rng.uniform(0.43, 0.47), rng.uniform(0.38, 0.52)
    four_legs(b, w, d, h - 0.03, 0.035, frame, round_=bool(rng.random() < 0.3))
    b.box((w, d, 0.035), (0, 0, h - 0.0175), seat)
    for s in (-1, 1):
        b.box((0.035, 0.03, back), (s * (w - 0.035) / 2, d / 2 - 0.015, h + back / 2), frame)
    style = choice(rng, ("slats", "panel", "ladder"))
    if style == "panel":
        b.box((w - 0.07, 0.02, back * 0.7), (0, d / 2 - 0.015, h + back * 0.62), seat)
    elif style == "slats":
        for x in np.linspace(-w / 2 + 0.09, w / 2 - 0.09, 4):
            b.box((0.025, 0.015, back * 0.9), (x, d / 2 - 0.015, h + back * 0.45), frame)
        b.box((w - 0.07, 0.025, 0.05), (0, d / 2 - 0.015, h + back - 0.025), frame)
    else:
        for z in np.linspace(0.3, 0.95, 3):
            b.box((w - 0.07, 0.018, 0.05), (0, d / 2 - 0.015, h + back * z - 0.025), frame)
    surfaces = [top_surface(w, d - 0.06, h, "seat", back)]
    return model("chair", b, seat, surfaces=surfaces, synonyms=("seat",), style="dining")


def office_chair(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A swivel chair on five castors."""
    cover = mat.fabric(rng, ("black", "gray", "blue", "red")) if rng.random() < 0.6 else mat.leather(rng)
    dark = mat.plastic(rng, ("black",))
    h = rng.uniform(0.44, 0.50)
    for k in range(5):
        a = 2 * np.pi * k / 5 + np.pi / 2
        tip = (0.29 * np.cos(a), 0.29 * np.sin(a))
        b.rod((0, 0, 0.1), (*tip, 0.075), 0.018, dark, 6)
        b.ellipsoid((0.03, 0.03, 0.03), (*tip, 0.03), dark, segments=8)
    b.cylinder(0.025, h - 0.15, (0, 0, 0.1 + (h - 0.15) / 2), dark)
    b.rounded_box((0.48, 0.46, 0.09), (0, 0, h - 0.045), cover, 0.3)
    back = rng.uniform(0.45, 0.62)
    b.rounded_box((0.44, 0.08, back), (0, 0.22, h + 0.08 + back / 2), cover, 0.3, rotation("x", -0.08))
    if rng.random() < 0.6:
        for s in (-1, 1):
            b.box((0.04, 0.26, 0.03), (s * 0.27, 0, h + 0.2), dark)
            b.box((0.03, 0.03, 0.22), (s * 0.27, 0.05, h + 0.09), dark)
    surfaces = [top_surface(0.36, 0.3, h, "seat", 0.4)]
    return model("chair", b, cover, surfaces=surfaces, synonyms=("office chair", "swivel chair"), style="office")


def armchair(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """An upholstered chair with arms."""
    return _upholstered(rng, b, "chair", rng.uniform(0.78, 0.95), 1, ("armchair", "easy chair"))


def couch(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A sofa with two or three seats."""
    seats = int(rng.integers(2, 4))
    return _upholstered(rng, b, "couch", 0.35 + 0.62 * seats, seats, ("sofa", "settee"))


def _upholstered(
    rng: Rng, b: MeshBuilder, category: str, width: float, seats: int, synonyms: tuple[str, ...]
) -> ObjectModel:
    cover = mat.leather(rng) if rng.random() < 0.3 else mat.fabric(rng)
    feet = mat.wood(rng)
    d, h = rng.uniform(0.80, 0.95), rng.uniform(0.40, 0.46)
    arm, back = rng.uniform(0.12, 0.2), rng.uniform(0.36, 0.46)
    foot = rng.uniform(0.05, 0.12)
    four_legs(b, width - 0.04, d - 0.04, foot, 0.05, feet)
    b.box((width, d, h - 0.14 - foot), (0, 0, foot + (h - 0.14 - foot) / 2), cover)
    inner = width - 2 * arm
    for k in range(seats):
        x = -inner / 2 + inner * (k + 0.5) / seats
        b.rounded_box((inner / seats - 0.005, d - 0.2, 0.16), (x, -0.09, h - 0.08), cover, 0.25)
        b.rounded_box((inner / seats - 0.01, 0.18, back), (x, d / 2 - 0.24, h + back / 2 - 0.02), cover, 0.35)
    b.box((width, 0.18, h + back - 0.1 - foot), (0, d / 2 - 0.09, foot + (h + back - 0.1 - foot) / 2), cover)
    arm_h = h + rng.uniform(0.12, 0.2)
    for s in (-1, 1):
        b.box((arm, d - 0.03, arm_h - foot), (s * (width - arm) / 2, -0.015, foot + (arm_h - foot) / 2), cover)
    seat = top_surface(inner, d - 0.42, h - 0.005, "couch", back, y=-0.16)
    size = {1: "", 2: "two-seat", 3: "three-seat"}[seats]
    return model(category, b, cover, surfaces=[seat], synonyms=synonyms, style=size or "upholstered")


def stool(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A low or a bar stool."""
    frame = mat.wood(rng) if rng.random() < 0.6 else mat.metal(rng)
    seat = mat.leather(rng) if rng.random() < 0.4 else frame
    h, r = (rng.uniform(0.42, 0.5) if rng.random() < 0.6 else rng.uniform(0.62, 0.75)), rng.uniform(0.15, 0.19)
    b.cylinder(r, 0.04, (0, 0, h - 0.02), seat, segments=20)
    for a in np.pi / 4 + np.arange(4) * np.pi / 2:
        b.rod((r * np.cos(a), r * np.sin(a), 0.012), (0.6 * r * np.cos(a), 0.6 * r * np.sin(a), h - 0.04), 0.014, frame)
    surfaces = [top_surface(r * 1.3, r * 1.3, h, "seat")]
    names = ("bar stool" if h > 0.6 else "low stool",)
    return model("stool", b, seat, surfaces=surfaces, has_front=False, synonyms=names)


def bench(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A bench without a back."""
    frame = mat.wood(rng)
    w, d, h = rng.uniform(0.9, 1.4), rng.uniform(0.32, 0.42), rng.uniform(0.42, 0.48)
    b.box((w, d, 0.045), (0, 0, h - 0.0225), frame)
    for s in (-1, 1):
        b.box((0.05, d - 0.04, h - 0.045), (s * (w / 2 - 0.12), 0, (h - 0.045) / 2), frame)
    b.box((w - 0.28, 0.03, 0.08), (0, 0, h * 0.4), frame)
    return model("bench", b, frame, surfaces=[top_surface(w, d, h, "seat")], has_front=False)


def ottoman(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """An upholstered block without a back."""
    cover = mat.fabric(rng)
    w, d, h = rng.uniform(0.45, 0.8), rng.uniform(0.42, 0.6), rng.uniform(0.36, 0.44)
    four_legs(b, w - 0.05, d - 0.05, 0.06, 0.04, mat.wood(rng))
    b.box((w, d, h - 0.16), (0, 0, 0.06 + (h - 0.16) / 2), cover)
    b.rounded_box((w, d, 0.12), (0, 0, h - 0.06), cover, 0.25)
    return model("ottoman", b, cover, surfaces=[top_surface(w, d, h, "seat")], synonyms=("pouf",), has_front=False)


def footstool(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A small stool for the feet."""
    cover, frame = mat.fabric(rng), mat.wood(rng)
    w, h = rng.uniform(0.32, 0.42), rng.uniform(0.22, 0.3)
    four_legs(b, w, w * 0.75, h - 0.07, 0.035, frame)
    b.rounded_box((w, w * 0.75, 0.09), (0, 0, h - 0.045), cover, 0.3)
    return model("footstool", b, cover, has_front=False, synonyms=("footrest",))


def beanbag(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A shapeless seat."""
    cover = mat.fabric(rng)
    r = rng.uniform(0.36, 0.46)
    upper = [(r * 0.9, r * 0.7), (r * 0.45, r * 1.25), (0.05, r * 1.6), (0, r * 1.6)]
    b.lathe([(0, 0), (r * 0.8, 0.0), (r, r * 0.3), *upper], cover, 20)
    return model("beanbag", b, cover, has_front=False, synonyms=("bean bag chair",))


# -- tables and desks


def dining_table(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A rectangular or round dining table."""
    top = mat.wood(rng)
    frame = top if rng.random() < 0.7 else mat.metal(rng)
    h = rng.uniform(0.72, 0.76)
    if rng.random() < 0.3:
        r = rng.uniform(0.48, 0.62)
        b.cylinder(r, 0.035, (0, 0, h - 0.0175), top, segments=32)
        b.cylinder(0.05, h - 0.075, (0, 0, 0.04 + (h - 0.075) / 2), frame)
        b.cylinder(0.3, 0.04, (0, 0, 0.02), frame, top_radius=0.22, segments=20)
        surface, shape = top_surface(r * 1.3, r * 1.3, h, "dining"), "round"
    else:
        w, d = rng.uniform(1.2, 1.8), rng.uniform(0.75, 0.95)
        b.box((w, d, 0.035), (0, 0, h - 0.0175), top)
        four_legs(b, w - 0.06, d - 0.06, h - 0.035, 0.06, frame)
        for s in (-1, 1):
            b.box((w - 0.18, 0.02, 0.07), (0, s * (d / 2 - 0.06), h - 0.07), frame)
        surface, shape = top_surface(w, d, h, "dining"), "rectangular"
    return model(
        "table", b, top, surfaces=[surface], synonyms=("dining table",), has_front=False, style="dining", shape=shape
    )


def coffee_table(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A low table with a shelf below the top."""
    m = mat.wood(rng)
    w, d, h = rng.uniform(0.8, 1.2), rng.uniform(0.5, 0.65), rng.uniform(0.38, 0.48)
    b.box((w, d, 0.03), (0, 0, h - 0.015), m)
    four_legs(b, w - 0.02, d - 0.02, h - 0.03, 0.05, m)
    b.box((w - 0.1, d - 0.1, 0.018), (0, 0, 0.14), m)
    below = Surface((0, 0, 0.149), (w / 2 - 0.12, d / 2 - 0.1), h - 0.2, "inside", "books")
    surfaces = [top_surface(w, d, h, "coffee"), below]
    return model("table", b, m, surfaces=surfaces, synonyms=("coffee table", "low table"), has_front=False, style="low")


def side_table(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A small round table."""
    m = mat.wood(rng) if rng.random() < 0.5 else mat.metal(rng)
    r, h = rng.uniform(0.2, 0.28), rng.uniform(0.48, 0.62)
    b.cylinder(r, 0.025, (0, 0, h - 0.0125), m, segments=24)
    for a in np.pi / 2 + np.arange(3) * 2 * np.pi / 3:
        top = (0.3 * r * np.cos(a), 0.3 * r * np.sin(a), h - 0.025)
        b.rod((r * 0.9 * np.cos(a), r * 0.9 * np.sin(a), 0.011), top, 0.013, m)
    surfaces = [top_surface(r * 1.3, r * 1.3, h, "bedside")]
    names = ("side table", "end table")
    return model("table", b, m, surfaces=surfaces, synonyms=names, has_front=False, style="side", shape="round")


def desk(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A desk with drawers on one side."""
    m = mat.wood(rng)
    w, d, h = rng.uniform(1.1, 1.6), rng.uniform(0.6, 0.75), rng.uniform(0.72, 0.76)
    b.box((w, d, 0.03), (0, 0, h - 0.015), m)
    handle, inner = mat.metal(rng), mat.wood(rng, ("birch",))
    side = 1 if choice(rng, ("left", "right")) == "right" else -1
    box_w, depth = 0.38, d - 0.04
    x = side * (w / 2 - box_w / 2)
    case = MeshBuilder()  # of the drawers
    carcass(case, box_w, depth, h - 0.03, m)
    mesh = case.build()
    shift = np.array([x, 0.0, 0.0])
    b.add(mesh.triangles + shift, mesh.normals, mesh.uv, m, collide=True)
    b.box((0.03, d - 0.04, h - 0.03), (-side * (w / 2 - 0.015), 0, (h - 0.03) / 2), m)
    b.box((w - box_w, 0.02, 0.3), (-side * box_w / 2, d / 2 - 0.05, h - 0.18), m)
    rows = 3
    parts = []
    for k in range(rows):
        front = (x, -depth / 2 - 0.009, 0.005 + (h - 0.04) * (k + 0.5) / rows)
        tall = (h - 0.04) / rows - 0.006
        parts.append(drawer(f"drawer{k}", box_w - 0.004, tall, depth - 0.03, front, m, inner, handle))
    return model("desk", b, m, parts, [top_surface(w, d, h, "desk")], ("writing desk", "workstation"))


def kitchen_island(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A free-standing block with a stone top."""
    m, top = mat.wood(rng), mat.stone(rng)
    w, d, h = rng.uniform(1.1, 1.7), rng.uniform(0.65, 0.85), 0.9
    b.box((w - 0.1, d - 0.1, h - 0.04), (0, 0, (h - 0.04) / 2), m)
    b.box((w, d, 0.04), (0, 0, h - 0.02), top)
    surfaces = [top_surface(w, d, h, "counter")]
    return model("kitchen island", b, m, surfaces=surfaces, has_front=False, synonyms=("island",))


# -- cases with doors, drawers and shelves


def shelf(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A bookshelf with a surface on each board."""
    m = mat.wood(rng)
    w, d, h = rng.uniform(0.6, 1.1), rng.uniform(0.26, 0.36), rng.uniform(1.0, 2.0)
    t = carcass(b, w, d, h, m)
    count = max(2, round(h / 0.36))
    levels = np.linspace(t, h - t, count + 1)[:-1]
    half, clearance = (w / 2 - t - 0.02, d / 2 - 0.03), float(levels[1] - levels[0]) - 1.5 * t
    surfaces = []
    for k, z in enumerate(levels):
        if k:
            b.box((w - 2 * t, d - 0.01, t), (0, -0.003, z), m)
        surfaces.append(Surface((0, -0.01, float(z) + (t / 2 if k else 0)), half, clearance, "inside", "books"))
    if h < 1.5:
        surfaces.append(top_surface(w, d, h, "decor"))
    return model("shelf", b, m, surfaces=surfaces, synonyms=("bookshelf", "bookcase"))


def wall_shelf(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A board on the wall."""
    m = mat.wood(rng)
    w, d = rng.uniform(0.5, 0.9), rng.uniform(0.16, 0.24)
    b.box((w, d, 0.025), (0, 0, 0.0875), m)
    for s in (-1, 1):
        b.box((0.02, d * 0.8, 0.075), (s * w * 0.35, d * 0.1, 0.0375), m)
    return model("shelf", b, m, surfaces=[top_surface(w, d, 0.1, "decor", 0.4)], synonyms=("wall shelf",), style="wall")


def _fronts(
    rng: Rng, w: float, d: float, z0: float, h: float, m: mat.Material, kind: str, columns: int, rows: int
) -> list[Part]:
    """Doors ('doors') or drawers ('drawers') that fill the front of a case."""
    handle = mat.metal(rng)
    inner = mat.wood(rng, ("birch", "pine"))
    y = -d / 2 - 0.009
    parts = []
    for column in range(columns):
        width = w / columns - 0.004
        x = -w / 2 + w * (column + 0.5) / columns
        if kind == "doors":
            hinge = "left" if (column % 2 == 0 and columns > 1) or (columns == 1 and rng.random() < 0.5) else "right"
            parts.append(hinged_door(f"door{column}", width, h - 0.006, (x, y, z0 + h / 2), m, handle, hinge))
            continue
        for row in range(rows):
            height = h / rows - 0.006
            z = z0 + h * (row + 0.5) / rows
            parts.append(drawer(f"drawer{column}_{row}", width, height, d - 0.03, (x, y, z), m, inner, handle))
    return parts


def cabinet(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A sideboard or a tall cabinet with doors."""
    m = mat.wood(rng)
    tall = rng.random() < 0.35
    low, high = ((0.5, 0.35, 1.3), (0.9, 0.42, 1.8)) if tall else ((0.8, 0.36, 0.7), (1.5, 0.45, 0.95))
    w, d, h = (float(v) for v in rng.uniform(low, high))
    foot = 0.08
    four_legs(b, w - 0.02, d - 0.02, foot, 0.05, m)
    t = carcass(b, w, d, h - foot, m, foot)
    shelves = np.linspace(foot + t, h - t, 4 if tall else 3)[:-1]
    half, clear = (w / 2 - t - 0.02, d / 2 - 0.05), float(shelves[1] - shelves[0]) - 2 * t
    inside = []
    for k, z in enumerate(shelves):
        if k:
            b.box((w - 2 * t, d - 0.05, t), (0, 0.02, z), m)
        inside.append(Surface((0, 0.01, float(z) + (t / 2 if k else 0)), half, clear, "inside", "storage"))
    parts = _fronts(rng, w, d, foot, h - foot, m, "doors", 2 if w < 1.0 else 3, 1)
    surfaces = [*inside, *([] if h > 1.5 else [top_surface(w, d, h, "decor")])]
    return model("cabinet", b, m, parts, surfaces, ("cupboard", "sideboard" if not tall else "tall cupboard"))


def wall_cabinet(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A kitchen cabinet that hangs on the wall."""
    m = mat.wood(rng)
    w, d, h = rng.uniform(0.6, 0.9), 0.34, rng.uniform(0.6, 0.72)
    t = carcass(b, w, d, h, m)
    b.box((w - 2 * t, d - 0.04, t), (0, 0.01, h / 2), m)
    half = (w / 2 - t - 0.02, d / 2 - 0.04)
    inside = [Surface((0, 0.01, z), half, h / 2 - 3 * t, "inside", "kitchen") for z in (t, h / 2 + t / 2)]
    parts = _fronts(rng, w, d, 0, h, m, "doors", 2, 1)
    return model("cabinet", b, m, parts, inside, ("wall cabinet", "cupboard"), style="wall")


def dresser(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A chest of drawers."""
    m = mat.wood(rng)
    w, d, h = rng.uniform(0.75, 1.2), rng.uniform(0.42, 0.5), rng.uniform(0.75, 1.1)
    carcass(b, w, d, h, m, 0.0)
    parts = _fronts(rng, w, d, 0.03, h - 0.04, m, "drawers", 1 if w < 0.9 else 2, 3 if h < 0.9 else 4)
    return model("dresser", b, m, parts, [top_surface(w, d, h, "decor")], ("chest of drawers", "drawers"))


def commode(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A low chest with two drawers on legs."""
    m = mat.wood(rng)
    w, d, h, foot = rng.uniform(0.7, 1.0), 0.42, rng.uniform(0.62, 0.78), 0.18
    four_legs(b, w - 0.02, d - 0.02, foot, 0.045, m)
    carcass(b, w, d, h - foot, m, foot)
    parts = _fronts(rng, w, d, foot + 0.01, h - foot - 0.02, m, "drawers", 1, 2)
    return model("commode", b, m, parts, [top_surface(w, d, h, "decor")], ("low chest",))


def wardrobe(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A tall wardrobe with a rail inside."""
    m = mat.wood(rng)
    w, d, h = rng.uniform(0.9, 1.8), rng.uniform(0.55, 0.62), rng.uniform(1.85, 2.15)
    t = carcass(b, w, d, h, m)
    b.rod((-w / 2 + t, 0, h - 0.2), (w / 2 - t, 0, h - 0.2), 0.012, mat.metal(rng))
    inside = [Surface((0, 0, t), (w / 2 - t - 0.05, d / 2 - 0.08), h - 0.5, "inside", "storage")]
    columns = 2 if w < 1.35 else 3
    return model("wardrobe", b, m, _fronts(rng, w, d, 0, h, m, "doors", columns, 1), inside, ("closet", "armoire"))


def nightstand(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A bedside stand with a drawer."""
    m = mat.wood(rng)
    w, d, h = rng.uniform(0.38, 0.52), rng.uniform(0.34, 0.42), rng.uniform(0.45, 0.6)
    foot, body = h * 0.35, h * 0.65
    four_legs(b, w, d, foot, 0.04, m)
    carcass(b, w, d, body, m, foot)
    parts = _fronts(rng, w, d, foot + body * 0.45, body * 0.5, m, "drawers", 1, 1)
    inside = Surface((0, 0, foot + 0.02), (w / 2 - 0.05, d / 2 - 0.04), body * 0.4 - 0.03, "inside", "books")
    return model("stand", b, m, parts, [top_surface(w, d, h, "bedside"), inside], ("nightstand", "bedside table"))


def tv_stand(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A low, long stand."""
    m = mat.wood(rng)
    w, d, h = rng.uniform(1.2, 1.8), rng.uniform(0.38, 0.45), rng.uniform(0.4, 0.55)
    t = carcass(b, w, d, h, m)
    third = (w - 2 * t) / 3
    for s in (-1, 1):
        b.box((t, d - 0.01, h - 2 * t), (s * third / 2, 0.0, h / 2), m)
    inside = Surface((0, 0, t), (third / 2 - 0.04, d / 2 - 0.05), h - 3 * t, "inside", "media")
    parts = [
        hinged_door(f"door{k}", third, h - 0.006, (s * third, -d / 2 - 0.009, h / 2), m, mat.metal(rng), hinge)
        for k, (s, hinge) in enumerate(((-1, "left"), (1, "right")))
    ]
    return model("stand", b, m, parts, [top_surface(w, d, h, "tv"), inside], ("tv stand", "media console"), style="low")


def rack(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A shoe rack of rods."""
    m = mat.metal(rng) if rng.random() < 0.5 else mat.wood(rng)
    w, d, h = rng.uniform(0.6, 0.9), 0.3, rng.uniform(0.4, 0.7)
    for sx, sy in CORNERS:
        b.rod((sx * w / 2, sy * d / 2, 0), (sx * w / 2, sy * d / 2, h), 0.012, m)
    surfaces = []
    levels = np.linspace(0.1, h - 0.02, 2 if h < 0.5 else 3)
    for k, z in enumerate(levels):
        for y in np.linspace(-d / 2, d / 2, 5):
            b.rod((-w / 2, y, z), (w / 2, y, z), 0.008, m, 6)
        gap = float(levels[1] - levels[0]) - 0.03 if k + 1 < len(levels) else 0.5
        surfaces.append(Surface((0, 0, float(z) + 0.008), (w / 2 - 0.03, d / 2 - 0.01), gap, "ontop", "shoes"))
    return model("rack", b, m, surfaces=surfaces, synonyms=("shoe rack",))


def coat_rack(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A standing coat rack."""
    m = mat.wood(rng)
    h = rng.uniform(1.6, 1.85)
    b.cylinder(0.18, 0.03, (0, 0, 0.015), m, segments=20)
    b.cylinder(0.022, h - 0.03, (0, 0, 0.03 + (h - 0.03) / 2), m)
    for k in range(6):
        a = np.pi / 3 * k
        z = h - 0.1 - 0.18 * (k % 2)
        b.rod((0, 0, z), (0.15 * np.cos(a), 0.15 * np.sin(a), z + 0.1), 0.011, m, 6)
    return model("rack", b, m, has_front=False, synonyms=("coat rack", "coat stand"), style="standing")


# -- rare large things


def piano(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """An upright piano."""
    m = mat.wood(rng, ("ebony", "walnut", "cherry"))
    b.box((1.45, 0.35, 1.2), (0, 0.12, 0.6), m)
    b.box((1.45, 0.26, 0.12), (0, -0.18, 0.68), m)
    b.box((1.3, 0.15, 0.02), (0, -0.22, 0.75), mat.Material((0.95, 0.94, 0.9)))
    for x in np.linspace(-0.6, 0.6, 25):
        if round((x + 0.6) / 0.05) % 7 not in (2, 6):
            b.box((0.022, 0.09, 0.015), (x, -0.19, 0.767), mat.Material((0.06, 0.06, 0.06)), collide=False)
    for s in (-1, 1):
        b.box((0.07, 0.07, 0.62), (s * 0.66, -0.26, 0.31), m)
    surfaces = [top_surface(1.4, 0.3, 1.2, "decor", 0.6, 0.03, 0.12)]
    return model("piano", b, m, surfaces=surfaces, synonyms=("upright piano",))


def bicycle(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A bicycle along its local x axis."""
    m, dark = mat.metal(rng, ("red", "blue", "green", "black", "white")), mat.plastic(rng, ("black",))
    for s in (-1, 1):
        rim = [(s * 0.52 + 0.33 * np.cos(a), 0, 0.345 + 0.33 * np.sin(a)) for a in np.linspace(0, 2 * np.pi, 25)]
        b.tube(rim, 0.015, dark, 6)
        for a in np.linspace(0, np.pi, 5)[:-1]:
            d = np.array([0.32 * np.cos(a), 0, 0.32 * np.sin(a)])
            b.rod(np.array([s * 0.52, 0, 0.345]) - d, np.array([s * 0.52, 0, 0.345]) + d, 0.002, dark, 4)
    seat, bar, crank = (-0.18, 0, 0.82), (0.4, 0, 0.88), (-0.05, 0, 0.32)
    for p, q in ((seat, crank), (seat, bar), (bar, crank), (crank, (-0.52, 0, 0.345)), (seat, (-0.52, 0, 0.345)),
                 (bar, (0.52, 0, 0.345)), (bar, (0.37, 0, 0.98)), (seat, (-0.2, 0, 0.92))):  # fmt: skip
        b.rod(p, q, 0.016, m, 8)
    b.rod((0.37, -0.27, 0.98), (0.37, 0.27, 0.98), 0.013, dark)
    b.rounded_box((0.26, 0.15, 0.06), (-0.21, 0, 0.94), dark, 0.4)
    return model("bicycle", b, m, synonyms=("bike",), has_front=False)


def exercise_bike(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A stationary bike."""
    m, dark = mat.metal(rng, ("gray", "black", "red")), mat.plastic(rng, ("black",))
    for y in (-0.4, 0.4):
        b.rod((-0.25, y, 0.03), (0.25, y, 0.03), 0.03, dark)
    b.rod((0, -0.4, 0.05), (0, 0.4, 0.05), 0.03, m)
    b.cylinder(0.22, 0.06, (0, -0.25, 0.33), m, axis="x", segments=24)
    b.rod((0, 0.15, 0.05), (0, 0.22, 0.85), 0.028, m)
    b.rounded_box((0.24, 0.28, 0.08), (0, 0.22, 0.88), dark, 0.4)
    b.rod((0, -0.25, 0.3), (0, -0.35, 1.1), 0.03, m)
    b.rod((-0.25, -0.33, 1.1), (0.25, -0.33, 1.1), 0.016, dark)
    return model("excercise equipment", b, m, synonyms=("exercise bike", "stationary bike"))


def ironing_board(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """An ironing board, annotated as a stand."""
    m, cover = mat.metal(rng, ("gray", "white")), mat.fabric(rng)
    b.box((0.36, 1.0, 0.03), (0, 0, 0.86), cover)
    b.lathe([(0.18, -0.015), (0.18, 0.015), (0, 0.015)], cover, 24, center=(0, -0.5, 0.86))
    for s in (-1, 1):
        b.rod((0.1, s * 0.42, 0.015), (0.1, -s * 0.35, 0.85), 0.014, m)
        b.rod((-0.15, s * 0.42, 0.015), (0.15, s * 0.42, 0.015), 0.014, m)
    surfaces = [top_surface(0.3, 0.8, 0.875, "laundry", 0.5)]
    return model("stand", b, cover, surfaces=surfaces, synonyms=("ironing board",))


def cart(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A serving trolley with two trays."""
    m = mat.metal(rng) if rng.random() < 0.5 else mat.wood(rng)
    w, d, h = 0.6, 0.4, 0.78
    four_legs(b, w, d, h, 0.025, m)
    for z in (0.25, h - 0.06):
        b.box((w - 0.05, d - 0.05, 0.02), (0, 0, z), m)
    for sx, sy in CORNERS:
        wheel = (sx * (w / 2 - 0.05), sy * (d / 2 - 0.04), 0.03)
        b.cylinder(0.03, 0.02, wheel, mat.plastic(rng, ("black",)), axis="x")
    low = top_surface(w - 0.08, d - 0.08, 0.26, "kitchen", 0.42)
    top = top_surface(w - 0.08, d - 0.08, h - 0.05, "dining", 0.5)
    return model("cart", b, m, surfaces=[low, top], has_front=False, synonyms=("trolley", "serving cart"))


def water_cooler(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A water dispenser with a bottle on top."""
    m = mat.plastic(rng, ("white", "gray"))
    b.box((0.3, 0.3, 0.95), (0, 0, 0.475), m)
    blue = mat.Material((0.45, 0.65, 0.85), gloss=0.7, color_name="blue", substance="plastic")
    b.lathe([(0.05, 0), (0.13, 0.05), (0.13, 0.33), (0, 0.36)], blue, 20, center=(0, 0, 0.95))
    for s in (-1, 1):
        b.box((0.03, 0.04, 0.03), (s * 0.06, -0.17, 0.75), mat.plastic(rng, ("red",) if s > 0 else ("blue",)))
    return model("water cooler", b, m, synonyms=("water dispenser",))


def divider(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A folding screen of three panels."""
    m = mat.wood(rng)
    cloth = mat.fabric(rng, ("white", "beige"))
    for k, (x, angle) in enumerate(((-0.42, 0.45), (0.0, -0.45), (0.42, 0.45))):
        R = rotation("z", angle)
        b.box((0.46, 0.025, 1.6), (x, 0.0, 0.82), m if k == 1 else cloth, R)
    return model("divider", b, m, synonyms=("folding screen", "room divider"))
