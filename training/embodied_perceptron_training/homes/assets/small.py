"""Small objects that stand on others."""

from __future__ import annotations

import numpy as np

from embodied_perceptron_training.homes.assets.common import CORNERS, Rng, any_picture, choice, model
from embodied_perceptron_training.homes.assets.mesh import MeshBuilder, rotation
from embodied_perceptron_training.homes.assets.objects import ObjectModel, Surface
from embodied_perceptron_training.homes.rendering import materials as mat


def book(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A closed book lying flat."""
    w, d, h = rng.uniform(0.14, 0.2), rng.uniform(0.2, 0.27), rng.uniform(0.018, 0.045)
    cover = mat.colored(rng, "", ("red", "blue", "green", "black", "brown", "orange", "white"))
    pages = mat.paper(rng, ("white", "beige"))
    b.box((w, d, 0.003), (0, 0, 0.0015), cover)
    b.box((w - 0.006, d - 0.008, h - 0.006), (0.002, 0, h / 2), pages)
    b.box((w, d, 0.003), (0, 0, h - 0.0015), cover, faces={"+z": any_picture(rng, "cover", 60)})
    b.box((0.003, d, h - 0.006), (-w / 2 + 0.0015, 0, h / 2), cover)
    return model("book", b, cover, has_front=False)


def book_row(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A row of standing books, one object as in real annotations."""
    width, x = rng.uniform(0.18, 0.4), 0.0
    cover = mat.colored(rng, "")
    while x < width:
        t, h, d = rng.uniform(0.018, 0.045), rng.uniform(0.19, 0.25), rng.uniform(0.13, 0.18)
        m = mat.colored(rng, "")
        b.box((t - 0.001, d, h), (x + t / 2 - width / 2, 0.09 - d / 2, h / 2), m, faces={"+z": mat.paper(rng)})
        x += t
    return model("book", b, cover, synonyms=("books", "row of books"), style="row")


def magazine(rng: Rng, b: MeshBuilder) -> ObjectModel:
    b.box((0.21, 0.28, 0.006), (0, 0, 0.003), mat.paper(rng), faces={"+z": any_picture(rng, "cover", 60)})
    return model("magazine", b, has_front=False)


def paper(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A small stack of paper."""
    h = rng.uniform(0.004, 0.03)
    white = mat.paper(rng, ("white",))
    b.box((0.21, 0.297, h), (0, 0, h / 2), white, faces={"+z": any_picture(rng, "text", 20)})
    return model("paper", b, synonyms=("sheet of paper", "document"), has_front=False)


def notebook(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A spiral notebook."""
    m = mat.colored(rng, "paper")
    b.box((0.15, 0.21, 0.014), (0, 0, 0.007), m)
    for y in np.linspace(-0.09, 0.09, 12):
        b.cylinder(0.008, 0.004, (-0.075, y, 0.01), mat.Material((0.6, 0.6, 0.62)), axis="y", segments=8)
    return model("notebook", b, m, has_front=False)


def folder(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A ring binder standing upright."""
    m = mat.plastic(rng)
    b.box((0.07, 0.28, 0.32), (0, 0, 0.16), m, faces={"-y": any_picture(rng, "label", 10)})
    return model("folder", b, m, synonyms=("binder",))


def box(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A cardboard or storage box, closed or open and filled."""
    card = mat.Material((0.66, 0.51, 0.34), "felt", 0, 0.5, color_name="brown", substance="cardboard")
    m = card if rng.random() < 0.5 else mat.plastic(rng)
    w, d, h = rng.uniform(0.25, 0.5), rng.uniform(0.2, 0.4), rng.uniform(0.15, 0.35)
    if rng.random() < 0.6:
        b.box((w, d, h), (0, 0, h / 2), m)
        if m is card:
            b.box((0.05, d, 0.002), (0, 0, h + 0.001), mat.Material((0.75, 0.65, 0.5)))
        return model("box", b, m, synonyms=("carton",), has_front=False, states=("closed",))
    t = 0.012
    b.box((w, d, t), (0, 0, t / 2), m)
    for s in (-1, 1):
        b.box((t, d, h - t), (s * (w - t) / 2, 0, (h + t) / 2), m)
        b.box((w - 2 * t, t, h - t), (0, s * (d - t) / 2, (h + t) / 2), m)
    inside = Surface((0, 0, t), (w / 2 - 0.03, d / 2 - 0.03), h + 0.1, "inside", "toys")
    return model("box", b, m, surfaces=[inside], synonyms=("open box", "carton"), has_front=False, states=("open",))


def basket(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A wicker basket, filled or empty."""
    m = mat.Material((0.72, 0.56, 0.36), "wicker", 0, 0.12, color_name="brown", substance="wicker")
    r, h = rng.uniform(0.13, 0.22), rng.uniform(0.16, 0.3)
    b.lathe([(0, 0), (r * 0.85, 0), (r, h), (r - 0.012, h), (r * 0.85 - 0.012, 0.02), (0, 0.02)], m, 20)
    filled = rng.random() < 0.5
    if filled:
        b.lathe([(r * 0.93, h * 0.75), (r * 0.5, h * 0.88), (0, h * 0.9)], mat.fabric(rng), 20, collide=False)
    return model(
        "basket", b, m, synonyms=("wicker basket",), has_front=False, states=("filled" if filled else "empty",)
    )


def hamper(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A laundry hamper."""
    m = mat.Material((0.78, 0.66, 0.48), "wicker", 1, 0.15, color_name="beige", substance="wicker")
    r, h = rng.uniform(0.19, 0.24), rng.uniform(0.52, 0.66)
    b.lathe([(0, 0), (r * 0.9, 0), (r, h - 0.02), (r + 0.01, h - 0.02), (r + 0.01, h), (0, h + 0.01)], m, 24)
    return model("hamper", b, m, synonyms=("laundry basket",), has_front=False)


def bin_(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A waste bin, filled or empty."""
    m = mat.plastic(rng) if rng.random() < 0.5 else mat.metal(rng)
    r, h = rng.uniform(0.11, 0.16), rng.uniform(0.26, 0.4)
    b.lathe([(0, 0), (r * 0.8, 0), (r, h), (r - 0.008, h), (r * 0.8 - 0.008, 0.01), (0, 0.01)], m, 20)
    filled = rng.random() < 0.4
    if filled:
        b.ellipsoid((r * 0.8, r * 0.8, h * 0.14), (0, 0, h * 0.84), mat.paper(rng, ("white",)), segments=10)
    return model(
        "bin", b, m, synonyms=("trash can", "waste basket", "garbage can"), has_front=False,
        states=("filled" if filled else "empty",),
    )  # fmt: skip


def bucket(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A bucket with a handle."""
    m = mat.plastic(rng)
    b.lathe([(0, 0), (0.11, 0), (0.15, 0.26), (0.142, 0.26), (0.104, 0.012), (0, 0.012)], m, 20)
    arc = [(0.15 * np.cos(a), 0, 0.25 + 0.12 * np.sin(a)) for a in np.linspace(0, np.pi, 9)]
    b.tube(arc, 0.005, mat.Material((0.5, 0.5, 0.5)), 6)
    return model("bucket", b, m, synonyms=("pail",), has_front=False)


def ball(rng: Rng, b: MeshBuilder) -> ObjectModel:
    m = mat.plastic(rng, ("red", "blue", "yellow", "green", "orange"))
    r = rng.uniform(0.05, 0.12)
    b.ellipsoid((r, r, r), (0, 0, r), m, segments=20)
    return model("ball", b, m, has_front=False)


def toy(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A teddy, blocks or a toy car."""
    kind = choice(rng, ("teddy bear", "toy blocks", "toy car"))
    m = mat.fabric(rng, ("brown", "beige", "pink", "white")) if kind == "teddy bear" else mat.plastic(rng)
    if kind == "teddy bear":
        b.ellipsoid((0.075, 0.06, 0.085), (0, 0, 0.085), m, segments=14)
        b.ellipsoid((0.06, 0.055, 0.055), (0, -0.005, 0.205), m, segments=14)
        for s in (-1, 1):
            b.ellipsoid((0.022, 0.012, 0.022), (s * 0.045, 0, 0.255), m, segments=8)
            b.ellipsoid((0.028, 0.06, 0.028), (s * 0.055, -0.07, 0.03), m, segments=8)
            b.ellipsoid((0.05, 0.025, 0.025), (s * 0.085, -0.02, 0.12), m, segments=8)
    elif kind == "toy blocks":
        for k in range(4):
            c = (rng.uniform(-0.06, 0.06), rng.uniform(-0.06, 0.06), 0.025 + 0.05 * k)
            color = mat.plastic(rng, ("red", "blue", "yellow", "green"))
            b.box((0.05, 0.05, 0.05), c, color, rotation("z", rng.uniform(0, 1.5)))
    else:
        b.rounded_box((0.09, 0.2, 0.05), (0, 0, 0.05), m, 0.3)
        b.rounded_box((0.08, 0.1, 0.05), (0, 0.01, 0.085), mat.Material((0.6, 0.75, 0.85), gloss=0.6), 0.35)
        for sx, sy in CORNERS:
            b.cylinder(0.022, 0.02, (sx * 0.042, sy * 0.062, 0.022), mat.Material((0.1, 0.1, 0.1)), axis="x")
    return model("toy", b, m, synonyms=(kind,), has_front=kind != "toy blocks", style=kind)


def tissue_box(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A box of tissues."""
    m = mat.paper(rng, ("white", "blue", "pink", "green"))
    b.box((0.23, 0.12, 0.09), (0, 0, 0.045), m)
    tissue = mat.paper(rng, ("white",))
    b.lathe([(0.03, 0.0), (0.012, 0.02), (0.03, 0.05), (0, 0.035)], tissue, 8, center=(0, 0, 0.09), collide=False)
    return model("tissue box", b, m, synonyms=("box of tissues",), has_front=False)


def pen(rng: Rng, b: MeshBuilder) -> ObjectModel:
    m = mat.plastic(rng, ("blue", "black", "red", "green"))
    b.cylinder(0.006, 0.15, (0, 0, 0.006), m, axis="x", segments=8)
    return model("pen", b, m, has_front=False)


def scissors(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A pair of scissors."""
    m, steel = mat.plastic(rng, ("red", "black", "blue", "orange")), mat.metal(rng, ("gray",))
    for s in (-1, 1):
        b.box((0.012, 0.11, 0.004), (s * 0.008, -0.05, 0.004), steel, rotation("z", s * 0.12))
        ring = [(s * 0.028 + 0.02 * np.cos(a), 0.035 + 0.026 * np.sin(a), 0.005) for a in np.linspace(0, 2 * np.pi, 11)]
        b.tube(ring, 0.005, m, 5)
    return model("scissors", b, m, has_front=False)


def stapler(rng: Rng, b: MeshBuilder) -> ObjectModel:
    m = mat.plastic(rng, ("black", "red", "blue"))
    b.box((0.04, 0.15, 0.014), (0, 0, 0.007), m)
    b.box((0.036, 0.14, 0.022), (0, 0.0, 0.042), m, rotation("x", -0.14))
    b.box((0.03, 0.03, 0.03), (0, 0.055, 0.027), m)
    return model("stapler", b, m)


def alarm(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """An alarm clock."""
    m = mat.plastic(rng)
    b.box((0.12, 0.05, 0.08), (0, 0, 0.04), m, faces={"-y": any_picture(rng, "clock", 20)})
    return model("alarm", b, m, synonyms=("alarm clock",))


def umbrella(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A closed umbrella."""
    m = mat.fabric(rng)
    b.lathe([(0.0, 0.0), (0.008, 0.05), (0.04, 0.5), (0.02, 0.56), (0.0, 0.57)], m, 12)
    b.tube([(0, 0, 0.56), (0, 0, 0.76), (0.03, 0, 0.8), (0.07, 0, 0.77)], 0.01, mat.wood(rng), 6)
    return model("umbrella", b, m, has_front=False)


def dumbbell(rng: Rng, b: MeshBuilder) -> ObjectModel:
    m = mat.metal(rng, ("black", "gray"))
    b.cylinder(0.015, 0.12, (0, 0, 0.05), m, axis="x")
    for s in (-1, 1):
        b.cylinder(0.05, 0.06, (s * 0.09, 0, 0.05), m, axis="x", segments=12)
    return model("dumbbell", b, m, synonyms=("weight",), has_front=False)


def guitar(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A standing guitar."""
    m, dark = mat.wood(rng, ("oak", "cherry", "pine", "walnut")), mat.wood(rng, ("ebony",))
    b.cylinder(0.19, 0.09, (0, 0, 0.19), m, axis="y", segments=24)
    b.cylinder(0.14, 0.09, (0, 0, 0.42), m, axis="y", segments=24)
    b.cylinder(0.045, 0.004, (0, -0.047, 0.36), dark, axis="y", segments=16)
    b.box((0.055, 0.03, 0.5), (0, -0.03, 0.78), dark)
    b.box((0.08, 0.025, 0.15), (0, -0.025, 1.1), dark)
    return model("guitar", b, m)


def broom(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A standing broom."""
    m = mat.wood(rng)
    b.cylinder(0.013, 1.2, (0, 0, 0.75), m, segments=8)
    b.box((0.32, 0.05, 0.04), (0, 0, 0.13), m)
    b.box((0.31, 0.045, 0.11), (0, 0, 0.055), mat.Material((0.62, 0.5, 0.25), "brushed"))
    return model("broom", b, m)


def mop(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A standing mop."""
    m = mat.plastic(rng)
    b.cylinder(0.013, 1.2, (0, 0, 0.72), m, segments=8)
    b.lathe([(0, 0), (0.14, 0.0), (0.1, 0.08), (0.02, 0.14), (0, 0.14)], mat.fabric(rng, ("white", "gray")), 16)
    return model("mop", b, m, has_front=False)


def fire_extinguisher(rng: Rng, b: MeshBuilder) -> ObjectModel:
    m = mat.metal(rng, ("red",))
    b.lathe([(0, 0), (0.07, 0), (0.07, 0.38), (0.03, 0.44), (0.02, 0.46), (0, 0.46)], m, 18)
    dark = mat.plastic(rng, ("black",))
    b.box((0.03, 0.12, 0.03), (0, -0.03, 0.475), dark)
    b.tube([(0, -0.05, 0.46), (0.09, -0.03, 0.4), (0.085, 0, 0.18)], 0.01, dark, 6)
    return model("fire extinguisher", b, m)
