"""Shelves, cabinets, containers, displays and boards."""

from __future__ import annotations

import numpy as np

from embodied_perceptron_training.homes.assets.common import (
    CORNERS,
    MIRROR,
    Rng,
    any_picture,
    carcass,
    door_pair,
    drawer,
    four_legs,
    model,
    screen,
    top_surface,
)
from embodied_perceptron_training.homes.assets.mesh import MeshBuilder, rotation
from embodied_perceptron_training.homes.assets.objects import ObjectModel, Surface
from embodied_perceptron_training.homes.rendering import materials as mat

_GLASS = mat.Material((0.68, 0.76, 0.76), gloss=0.85, substance="glass")


def cube_shelf(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A shelf of square cells."""
    m = mat.wood(rng, ("painted", "oak", "birch", "ebony", "walnut"))
    columns, rows = int(rng.integers(1, 5)), int(rng.integers(2, 6))
    cell, d, t = rng.uniform(0.32, 0.38), rng.uniform(0.3, 0.4), 0.025
    w, h = columns * cell + t, rows * cell + t
    for k in range(columns + 1):
        b.box((t, d, h), (-w / 2 + t / 2 + k * cell, 0, h / 2), m)
    surfaces = []
    for r in range(rows + 1):
        b.box((w - 2 * t, d - 0.004, t), (0, 0, t / 2 + r * cell), m)
        for k in range(columns if r < rows else 0):
            x = -w / 2 + t / 2 + (k + 0.5) * cell
            half = (cell / 2 - t, d / 2 - 0.03)
            surfaces.append(Surface((x, 0, r * cell + t), half, cell - 2 * t, "inside", "books"))
    if h < 1.5:
        surfaces.append(top_surface(w, d, h, "decor"))
    if rng.random() < 0.6:
        b.box((w - 2 * t, 0.006, h - 2 * t), (0, d / 2 - 0.006, h / 2), m, collide=False)
    return model("shelf", b, m, surfaces=surfaces, synonyms=("bookshelf", "cube shelf"))


def ladder_shelf(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """Boards between two leaning ladders."""
    m, frame = mat.wood(rng), mat.metal(rng) if rng.random() < 0.5 else mat.wood(rng)
    w, h = rng.uniform(0.55, 0.9), rng.uniform(1.5, 1.95)
    surfaces = []
    levels = np.linspace(0.12, h - 0.08, int(rng.integers(4, 6)))
    for z in levels:
        d = 0.5 - 0.28 * z / h
        b.box((w, d, 0.02), (0, 0.25 - d / 2, z), m)
        surfaces.append(Surface((0, 0.25 - d / 2, float(z) + 0.01), (w / 2 - 0.04, d / 2 - 0.03),
                                float(levels[1] - levels[0]) - 0.05, "inside", "books"))  # fmt: skip
    for s in (-1, 1):
        b.rod((s * w / 2, -0.25, 0.015), (s * w / 2, 0.04, h), 0.016, frame, 6)
        b.rod((s * w / 2, 0.24, 0.015), (s * w / 2, 0.24, h), 0.016, frame, 6)
    return model("shelf", b, m, surfaces=surfaces, synonyms=("bookshelf", "ladder shelf"))


def metal_shelf(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A workshop shelf of four posts and metal boards."""
    m = mat.metal(rng, ("gray", "gray", "black", "white", "blue"))
    w, d, h = rng.uniform(0.8, 1.4), rng.uniform(0.35, 0.5), rng.uniform(1.5, 2.0)
    four_legs(b, w, d, h, 0.035, m)
    levels = np.linspace(0.1, h - 0.05, int(rng.integers(4, 6)))
    surfaces = []
    for k, z in enumerate(levels):
        b.box((w - 0.01, d - 0.01, 0.025), (0, 0, z), m)
        clear = float(levels[1] - levels[0]) - 0.06 if k + 1 < len(levels) else 0.3
        surfaces.append(Surface((0, 0, float(z) + 0.0125), (w / 2 - 0.06, d / 2 - 0.05), clear, "inside", "tools"))
    return model("shelf", b, m, surfaces=surfaces, synonyms=("metal shelf", "storage rack"))


def ledge_shelf(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """Two or three boards on rails on the wall."""
    m, rail = mat.wood(rng), mat.metal(rng)
    w, d, count = rng.uniform(0.6, 1.2), rng.uniform(0.18, 0.26), int(rng.integers(2, 4))
    step = rng.uniform(0.24, 0.32)
    surfaces = []
    for k in range(count):
        z = 0.03 + k * step
        b.box((w, d, 0.022), (0, 0, z), m)
        surfaces.append(Surface((0, 0, z + 0.011), (w / 2 - 0.03, d / 2 - 0.02), step - 0.05 if k + 1 < count else 0.3,
                                "ontop", "decor"))  # fmt: skip
    for s in (-1, 1):
        middle = (s * w * 0.32, d / 2 - 0.0075, 0.03 + step * (count - 1) / 2)
        b.box((0.025, 0.015, step * (count - 1) + 0.06), middle, rail, collide=False)
    return model("shelf", b, m, surfaces=surfaces, synonyms=("wall shelf",), style="wall")


def glass_cabinet(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A tall cabinet with panes in its doors."""
    m, handle = mat.wood(rng), mat.metal(rng)
    w, d, h = rng.uniform(0.7, 1.1), rng.uniform(0.34, 0.42), rng.uniform(1.5, 2.0)
    t = carcass(b, w, d, h, m)
    levels = np.linspace(t, h - t, 5)[:-1]
    half, clear = (w / 2 - t - 0.03, d / 2 - 0.06), float(levels[1] - levels[0]) - 0.05
    surfaces = []
    for k, z in enumerate(levels):
        if k:
            b.box((w - 2 * t, d - 0.06, 0.012), (0, 0.01, z), m)
        surfaces.append(Surface((0, 0, float(z) + (0.006 if k else 0.0)), half, clear, "inside", "kitchen"))
    parts = door_pair(w / 2 - 0.004, h - 0.006, (w / 4, -d / 2 - 0.009, h / 2), _GLASS, handle)
    return model("cabinet", b, m, parts, surfaces, ("display cabinet", "glass cabinet", "cupboard"))


def filing_cabinet(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """Drawers of sheet metal."""
    m, handle = mat.metal(rng, ("gray", "white", "black", "beige", "green")), mat.metal(rng, ("gray",))
    w, d, rows = rng.uniform(0.4, 0.5), rng.uniform(0.5, 0.65), int(rng.integers(2, 5))
    h = 0.05 + rows * rng.uniform(0.28, 0.33)
    carcass(b, w, d, h, m)
    tall = (h - 0.04) / rows
    parts = [drawer(f"drawer{k}", w - 0.01, tall - 0.008, d - 0.05, (0, -d / 2 - 0.009, 0.02 + tall * (k + 0.5)), m, m,
                    handle) for k in range(rows)]  # fmt: skip
    tops = [top_surface(w, d, h, "desk")] if h < 1.3 else []
    return model("cabinet", b, m, parts, tops, ("filing cabinet", "drawers"))


def sideboard(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A long low cabinet on slim legs with sliding doors, up to 2.4 m wide."""
    m, front = mat.wood(rng), mat.wood(rng)
    w, d, h = rng.uniform(1.3, 2.4), rng.uniform(0.38, 0.48), rng.uniform(0.6, 0.85)
    four_legs(b, w - 0.2, d - 0.06, 0.16, 0.035, mat.metal(rng), round_=True)
    carcass(b, w, d, h - 0.16, m, 0.16)
    for k in range(3):
        at = ((k - 1) * (w / 3 - 0.01), -d / 2 + 0.02 + 0.018 * (k % 2), (h + 0.16) / 2)
        b.box((w / 3 + 0.02, 0.016, h - 0.2), at, front)
    return model("cabinet", b, m, surfaces=[top_surface(w, d, h, "decor")], synonyms=("sideboard", "credenza"))


def open_wardrobe(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A wardrobe with sliding doors, sometimes one with a mirror."""
    m = mat.wood(rng)
    w, d, h = rng.uniform(1.2, 2.4), rng.uniform(0.58, 0.66), rng.uniform(1.95, 2.25)
    carcass(b, w, d, h, m)
    count = 2 if w < 1.7 else 3
    glass = int(rng.integers(count)) if rng.random() < 0.35 else -1
    for k in range(count):
        x = -w / 2 + w * (k + 0.5) / count
        at = (x, -d / 2 - 0.012 - 0.022 * (k % 2), h / 2)
        b.box((w / count - 0.002, 0.02, h - 0.06), at, MIRROR if k == glass else m)
    return model("wardrobe", b, m, synonyms=("closet", "sliding wardrobe"))


def tallboy(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A narrow high chest of drawers with round knobs."""
    m, knob = mat.wood(rng), mat.metal(rng)
    w, d, h, rows = rng.uniform(0.45, 0.65), rng.uniform(0.38, 0.46), rng.uniform(1.0, 1.35), int(rng.integers(5, 7))
    b.box((w, d, h - 0.06), (0, 0, 0.06 + (h - 0.06) / 2), m)
    four_legs(b, w, d, 0.06, 0.05, m)
    for k in range(rows):
        z = 0.08 + (h - 0.1) * (k + 0.5) / rows
        b.box((w - 0.04, 0.016, (h - 0.1) / rows - 0.012), (0, -d / 2 - 0.008, z), m)
        for s in (-1, 1):
            b.ellipsoid((0.014,) * 3, (s * w * 0.22, -d / 2 - 0.026, z), knob, segments=8)
    return model("dresser", b, m, surfaces=[top_surface(w, d, h, "decor")], synonyms=("chest of drawers", "tallboy"))


def crate(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A crate of slats or of plastic, open on top."""
    wooden = rng.random() < 0.5
    colors = ("blue", "red", "green", "gray", "yellow", "black")
    m = mat.wood(rng, ("pine", "birch", "oak")) if wooden else mat.plastic(rng, colors)
    w, d, h = rng.uniform(0.35, 0.62), rng.uniform(0.26, 0.42), rng.uniform(0.2, 0.36)
    t = 0.014
    b.box((w, d, t), (0, 0, t / 2), m)
    rows = 3 if wooden else 5
    for k in range(rows):
        z, tall = h * (k + 0.5) / rows, h / rows * (0.8 if wooden else 0.7)
        for s in (-1, 1):
            b.box((w, t, tall), (0, s * (d - t) / 2, z), m)
            b.box((t, d - 2 * t, tall), (s * (w - t) / 2, 0, z), m)
    for sx, sy in CORNERS:
        b.box((0.03, 0.03, h), (sx * (w / 2 - 0.02), sy * (d / 2 - 0.02), h / 2), m)
    inside = Surface((0, 0, t), (w / 2 - 0.05, d / 2 - 0.05), h + 0.05, "inside", "tools")
    return model(
        "crate", b, m, surfaces=[inside], has_front=False, synonyms=("wooden crate",) if wooden else ("plastic crate",)
    )


def open_carton(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A cardboard box with its flaps up or hanging."""
    m = mat.Material((0.66, 0.5, 0.34), "felt", 0, 0.6, color_name="brown", substance="paper")
    w, d, h, t = rng.uniform(0.25, 0.6), rng.uniform(0.22, 0.45), rng.uniform(0.18, 0.45), 0.006
    b.box((w, d, t), (0, 0, t / 2), m)
    for s in (-1, 1):
        b.box((t, d, h), (s * (w - t) / 2, 0, h / 2), m)
        b.box((w - 2 * t, t, h), (0, s * (d - t) / 2, h / 2), m)
        lean = rng.uniform(0.2, 1.2)
        flap = d / 2 * 0.8
        b.box((w - 2 * t, t, flap), (0, s * (d / 2 + flap / 2 * np.sin(lean)), h + flap / 2 * np.cos(lean)), m,
              rotation("x", -s * lean))  # fmt: skip
    return model("box", b, m, has_front=False, synonyms=("cardboard box", "carton"))


def plastic_box(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A storage box of plastic with a lid."""
    m, lid = mat.plastic(rng), mat.plastic(rng, ("white", "gray", "blue", "black"))
    w, d, h = rng.uniform(0.28, 0.58), rng.uniform(0.2, 0.4), rng.uniform(0.14, 0.34)
    b.box((w * 0.94, d * 0.94, h), (0, 0, h / 2), m)
    b.box((w, d, 0.03), (0, 0, h - 0.015), lid)
    surfaces = [top_surface(w, d, h, "storage", 0.3)]
    return model("box", b, m, surfaces=surfaces, has_front=False, synonyms=("storage box", "tub"))


def stand_display(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A large screen on a pole with a foot on wheels."""
    dark, face = mat.plastic(rng, ("black", "gray")), mat.picture("screen", int(rng.integers(30)), emission=0.4)
    if rng.random() < 0.5:
        face = mat.Material((0.05, 0.05, 0.06), gloss=0.7)
    w = rng.uniform(0.9, 1.7)
    h, middle = w * 0.57, rng.uniform(1.15, 1.45)
    b.box((w, 0.05, h), (0, 0, middle), dark)
    b.box((w - 0.03, 0.004, h - 0.03), (0, -0.027, middle), face, collide=False)
    for s in (-1, 1):
        b.box((0.06, 0.05, middle), (s * 0.12, 0.05, middle / 2), dark)
        b.box((0.06, 0.6, 0.06), (s * w * 0.3, 0.0, 0.05), dark)
    b.box((w * 0.66, 0.06, 0.05), (0, 0.05, 0.1), dark)
    return model("tv", b, dark, synonyms=("display", "television", "screen"), style="standing")


def wide_monitor(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A wide, slightly bent screen on a foot."""
    dark = mat.plastic(rng, ("black", "gray", "white"))
    face = screen(rng)
    w, h, z = rng.uniform(0.6, 0.85), rng.uniform(0.33, 0.38), rng.uniform(0.1, 0.16)
    for s in (-1, 1):
        R = rotation("z", s * 0.12)
        b.box((w / 2, 0.03, h), (s * w / 4, -0.015, z + h / 2), dark, R)
        b.box((w / 2 - 0.012, 0.004, h - 0.02), (s * w / 4, -0.033, z + h / 2), face, R, collide=False)
    b.box((0.05, 0.04, z + h / 2), (0, 0.03, (z + h / 2) / 2), dark)
    b.box((0.28, 0.2, 0.015), (0, 0, 0.0075), dark)
    return model("monitor", b, dark, synonyms=("screen", "computer screen"))


def swing_bin(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A square bin with a swinging lid, or a round waste-paper bin."""
    if rng.random() < 0.6:
        m = mat.plastic(rng, ("white", "gray", "black", "green", "blue"))
        w, h = rng.uniform(0.26, 0.42), rng.uniform(0.45, 0.75)
        b.box((w * 0.95, w * 0.8, h * 0.8), (0, 0, h * 0.4), m)
        b.box((w, w * 0.84, h * 0.06), (0, 0, h * 0.82), m)
        b.rounded_box((w * 0.9, w * 0.75, h * 0.22), (0, 0, h * 0.89), m, 0.5)
    else:
        m = mat.metal(rng, ("black", "gray"))
        r, h = rng.uniform(0.12, 0.16), rng.uniform(0.28, 0.36)
        b.lathe([(0, 0), (r * 0.8, 0), (r, h), (r - 0.006, h), (r * 0.78, 0.01)], m, 20)
    return model("bin", b, m, has_front=False, synonyms=("trash can", "waste bin"))


def ribbed_radiator(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """An oil heater with ribs, on wheels."""
    m = mat.metal(rng, ("white", "black", "gray"))
    count = int(rng.integers(5, 9))
    for k in range(count):
        b.rounded_box((0.035, 0.16, 0.5), ((k - (count - 1) / 2) * 0.055, 0, 0.36), m, 0.4)
    for s in (-1, 1):
        b.box((0.03, 0.26, 0.05), (s * count * 0.02, 0, 0.05), m)
        b.box((0.03, 0.03, 0.08), (s * count * 0.02, 0, 0.09), m)
    return model("heater", b, m, synonyms=("radiator", "oil heater"))


def pegboard(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A board on the wall with notes."""
    rim = mat.wood(rng)
    cork = mat.Material((0.72, 0.56, 0.36), "carpet", 1, 0.4, color_name="brown")
    w, h = rng.uniform(0.6, 1.3), rng.uniform(0.45, 0.9)
    b.box((w, 0.02, h), (0, 0, h / 2), rim, faces={"-y": cork})
    for _ in range(int(rng.integers(2, 8))):
        s = rng.uniform(0.07, 0.2, 2)
        x, z = rng.uniform(-w / 2 + 0.12, w / 2 - 0.12), rng.uniform(0.12, h - 0.12)
        note = any_picture(rng, "text", 20) if rng.random() < 0.5 else mat.paper(rng, ("yellow", "pink", "white"))
        b.box((s[0], 0.003, s[1]), (x, -0.0125, z), mat.paper(rng), rotation("y", rng.normal(0, 0.1)),
              faces={"-y": note}, collide=False)  # fmt: skip
    return model("board", b, rim, synonyms=("pin board", "cork board"))
