"""Cases with doors, drawers and shelves."""

from __future__ import annotations

import numpy as np

from embodied_perceptron_training.synthetic import materials as mat
from embodied_perceptron_training.synthetic.assets.common import (
    Rng,
    carcass,
    drawer,
    four_legs,
    hinged_door,
    model,
    top_surface,
)
from embodied_perceptron_training.synthetic.mesh import MeshBuilder
from embodied_perceptron_training.synthetic.model import ObjectModel, Part, Surface


def shelf(rng: Rng) -> ObjectModel:
    """A bookshelf: every board carries things."""
    b = MeshBuilder()
    m = mat.wood(rng)
    w, d, h = rng.uniform(0.6, 1.1), rng.uniform(0.26, 0.36), rng.uniform(1.0, 2.0)
    t = carcass(b, w, d, h, m)
    count = max(2, round(h / 0.36))
    levels = np.linspace(t, h - t, count + 1)[:-1]
    surfaces = []
    for k, z in enumerate(levels):
        if k:
            b.box((w - 2 * t, d - 0.01, t), (0, -0.003, z), m)
        clearance = float(levels[1] - levels[0]) - 1.5 * t
        surfaces.append(
            Surface(
                (0, -0.01, float(z) + (t / 2 if k else 0)),
                (w / 2 - t - 0.02, d / 2 - 0.03),
                clearance,
                "inside",
                "books",
            )
        )
    if h < 1.5:
        surfaces.append(top_surface(w, d, h, "decor"))
    return model("shelf", b, m, surfaces=surfaces, synonyms=("bookshelf", "bookcase"))


def wall_shelf(rng: Rng) -> ObjectModel:
    """A board on the wall."""
    b = MeshBuilder()
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


def cabinet(rng: Rng) -> ObjectModel:
    """A sideboard or a tall cabinet with doors."""
    b = MeshBuilder()
    m = mat.wood(rng)
    tall = rng.random() < 0.35
    w, d = (
        (rng.uniform(0.5, 0.9), rng.uniform(0.35, 0.42)) if tall else (rng.uniform(0.8, 1.5), rng.uniform(0.36, 0.45))
    )
    h = rng.uniform(1.3, 1.8) if tall else rng.uniform(0.7, 0.95)
    foot = 0.08
    four_legs(b, w - 0.02, d - 0.02, foot, 0.05, m)
    t = carcass(b, w, d, h - foot, m, foot)
    shelves = np.linspace(foot + t, h - t, 4 if tall else 3)[:-1]
    inside = []
    for k, z in enumerate(shelves):
        if k:
            b.box((w - 2 * t, d - 0.05, t), (0, 0.02, z), m)
        clear = float(shelves[1] - shelves[0]) - 2 * t
        inside.append(
            Surface(
                (0, 0.01, float(z) + (t / 2 if k else 0)), (w / 2 - t - 0.02, d / 2 - 0.05), clear, "inside", "storage"
            )
        )
    parts = _fronts(rng, w, d, foot, h - foot, m, "doors", 2 if w < 1.0 else 3, 1)
    surfaces = [*inside, *([] if h > 1.5 else [top_surface(w, d, h, "decor")])]
    return model("cabinet", b, m, parts, surfaces, ("cupboard", "sideboard" if not tall else "tall cupboard"))


def wall_cabinet(rng: Rng) -> ObjectModel:
    """A kitchen cabinet that hangs on the wall."""
    b = MeshBuilder()
    m = mat.wood(rng)
    w, d, h = rng.uniform(0.6, 0.9), 0.34, rng.uniform(0.6, 0.72)
    t = carcass(b, w, d, h, m)
    b.box((w - 2 * t, d - 0.04, t), (0, 0.01, h / 2), m)
    clear = h / 2 - 3 * t
    inside = [
        Surface((0, 0.01, z), (w / 2 - t - 0.02, d / 2 - 0.04), clear, "inside", "kitchen") for z in (t, h / 2 + t / 2)
    ]
    return model(
        "cabinet", b, m, _fronts(rng, w, d, 0, h, m, "doors", 2, 1), inside, ("wall cabinet", "cupboard"), style="wall"
    )


def dresser(rng: Rng) -> ObjectModel:
    """A chest of drawers."""
    b = MeshBuilder()
    m = mat.wood(rng)
    w, d, h = rng.uniform(0.75, 1.2), rng.uniform(0.42, 0.5), rng.uniform(0.75, 1.1)
    carcass(b, w, d, h, m, 0.0)
    parts = _fronts(rng, w, d, 0.03, h - 0.04, m, "drawers", 1 if w < 0.9 else 2, 3 if h < 0.9 else 4)
    return model("dresser", b, m, parts, [top_surface(w, d, h, "decor")], ("chest of drawers", "drawers"))


def commode(rng: Rng) -> ObjectModel:
    """A low chest with two drawers on legs."""
    b = MeshBuilder()
    m = mat.wood(rng)
    w, d, h, foot = rng.uniform(0.7, 1.0), 0.42, rng.uniform(0.62, 0.78), 0.18
    four_legs(b, w - 0.02, d - 0.02, foot, 0.045, m)
    carcass(b, w, d, h - foot, m, foot)
    parts = _fronts(rng, w, d, foot + 0.01, h - foot - 0.02, m, "drawers", 1, 2)
    return model("commode", b, m, parts, [top_surface(w, d, h, "decor")], ("low chest",))


def wardrobe(rng: Rng) -> ObjectModel:
    """A tall wardrobe with a rail inside."""
    b = MeshBuilder()
    m = mat.wood(rng)
    w, d, h = rng.uniform(0.9, 1.8), rng.uniform(0.55, 0.62), rng.uniform(1.85, 2.15)
    t = carcass(b, w, d, h, m)
    b.rod((-w / 2 + t, 0, h - 0.2), (w / 2 - t, 0, h - 0.2), 0.012, mat.metal(rng))
    inside = [Surface((0, 0, t), (w / 2 - t - 0.05, d / 2 - 0.08), h - 0.5, "inside", "storage")]
    columns = 2 if w < 1.35 else 3
    return model("wardrobe", b, m, _fronts(rng, w, d, 0, h, m, "doors", columns, 1), inside, ("closet", "armoire"))


def nightstand(rng: Rng) -> ObjectModel:
    """A bedside stand with a drawer."""
    b = MeshBuilder()
    m = mat.wood(rng)
    w, d, h = rng.uniform(0.38, 0.52), rng.uniform(0.34, 0.42), rng.uniform(0.45, 0.6)
    foot, body = h * 0.35, h * 0.65
    four_legs(b, w, d, foot, 0.04, m)
    carcass(b, w, d, body, m, foot)
    parts = _fronts(rng, w, d, foot + body * 0.45, body * 0.5, m, "drawers", 1, 1)
    inside = Surface((0, 0, foot + 0.02), (w / 2 - 0.05, d / 2 - 0.04), body * 0.4 - 0.03, "inside", "books")
    return model("stand", b, m, parts, [top_surface(w, d, h, "bedside"), inside], ("nightstand", "bedside table"))


def tv_stand(rng: Rng) -> ObjectModel:
    """A low, long stand."""
    b = MeshBuilder()
    m = mat.wood(rng)
    w, d, h = rng.uniform(1.2, 1.8), rng.uniform(0.38, 0.45), rng.uniform(0.4, 0.55)
    t = carcass(b, w, d, h, m)
    third = (w - 2 * t) / 3
    for s in (-1, 1):
        b.box((t, d - 0.01, h - 2 * t), (s * third / 2, 0.0, h / 2), m)
    inside = Surface((0, 0, t), (third / 2 - 0.04, d / 2 - 0.05), h - 3 * t, "inside", "media")
    parts = [
        hinged_door(
            f"door{k}",
            third,
            h - 0.006,
            (s * third, -d / 2 - 0.009, h / 2),
            m,
            mat.metal(rng),
            "left" if s < 0 else "right",
        )
        for k, s in enumerate((-1, 1))
    ]
    return model("stand", b, m, parts, [top_surface(w, d, h, "tv"), inside], ("tv stand", "media console"), style="low")


def rack(rng: Rng) -> ObjectModel:
    """A shoe rack of rods."""
    b = MeshBuilder()
    m = mat.metal(rng) if rng.random() < 0.5 else mat.wood(rng)
    w, d, h = rng.uniform(0.6, 0.9), 0.3, rng.uniform(0.4, 0.7)
    for sx in (-1, 1):
        for sy in (-1, 1):
            b.rod((sx * w / 2, sy * d / 2, 0), (sx * w / 2, sy * d / 2, h), 0.012, m)
    surfaces = []
    levels = np.linspace(0.1, h - 0.02, 2 if h < 0.5 else 3)
    for k, z in enumerate(levels):
        for y in np.linspace(-d / 2, d / 2, 5):
            b.rod((-w / 2, y, z), (w / 2, y, z), 0.008, m, 6)
        gap = float(levels[1] - levels[0]) - 0.03 if k + 1 < len(levels) else 0.5
        surfaces.append(Surface((0, 0, float(z) + 0.008), (w / 2 - 0.03, d / 2 - 0.01), gap, "ontop", "shoes"))
    return model("rack", b, m, surfaces=surfaces, synonyms=("shoe rack",))


def coat_rack(rng: Rng) -> ObjectModel:
    """A standing coat rack."""
    b = MeshBuilder()
    m = mat.wood(rng)
    h = rng.uniform(1.6, 1.85)
    b.cylinder(0.18, 0.03, (0, 0, 0.015), m, segments=20)
    b.cylinder(0.022, h - 0.03, (0, 0, 0.03 + (h - 0.03) / 2), m)
    for k in range(6):
        a = np.pi / 3 * k
        z = h - 0.1 - 0.18 * (k % 2)
        b.rod((0, 0, z), (0.15 * np.cos(a), 0.15 * np.sin(a), z + 0.1), 0.011, m, 6)
    return model("rack", b, m, has_front=False, synonyms=("coat rack", "coat stand"), style="standing")
