"""Dishes, vases, lamps and other small objects."""

from __future__ import annotations

import numpy as np

from embodied_perceptron_training.homes.assets.common import Rng, any_picture, model
from embodied_perceptron_training.homes.assets.mesh import MeshBuilder, rotation
from embodied_perceptron_training.homes.assets.objects import ObjectModel
from embodied_perceptron_training.homes.rendering import materials as mat

_DISH = ("white", "white", "blue", "green", "yellow", "red", "gray", "beige", "black")


def mug(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A mug with or without a handle."""
    m = mat.ceramic(rng, _DISH)
    r, h, belly = rng.uniform(0.035, 0.05), rng.uniform(0.07, 0.13), rng.uniform(0.75, 1.15)
    wide = r * belly
    outline = [(0.0, 0.0), (wide * 0.9, 0.0), (wide, h * 0.4), (r, h), (r - 0.004, h), (wide - 0.006, h * 0.4)]
    b.lathe([*outline, (0.0, 0.008)], m, 16)
    if rng.random() < 0.7:
        path = [(r, 0, h * 0.8), (r + 0.025, 0, h * 0.75), (r + 0.025, 0, h * 0.3), (r * belly, 0, h * 0.25)]
        b.tube(path, 0.005, m, 5)
    return model("cup", b, m, has_front=False, synonyms=("mug",))


def square_bowl(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A shallow round or octagonal dish."""
    m = mat.ceramic(rng, _DISH) if rng.random() < 0.7 else mat.wood(rng)
    r, h = rng.uniform(0.08, 0.16), rng.uniform(0.035, 0.08)
    outline = [(0, 0), (r * 0.85, 0), (r, h), (r - 0.008, h), (r * 0.85 - 0.006, 0.008), (0, 0.008)]
    b.lathe(outline, m, 8 if rng.random() < 0.4 else 20, smooth=False)
    return model("bowl", b, m, has_front=False, synonyms=("dish",))


def bottle_vase(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A vase, sometimes with twigs."""
    m = mat.ceramic(rng, tuple(mat.COLORS))
    h, r, neck = rng.uniform(0.16, 0.5), rng.uniform(0.05, 0.12), rng.uniform(0.2, 0.9)
    at = rng.uniform(0.2, 0.5)
    b.lathe([(0, 0), (r * 0.6, 0), (r, h * at), (r * neck, h * (at + 0.3)), (r * neck, h), (r * neck * 0.85, h)], m, 20)
    if rng.random() < 0.4:
        twig = mat.Material((0.45, 0.36, 0.22))
        for _ in range(int(rng.integers(3, 8))):
            b.rod((0, 0, h * 0.8), (*rng.normal(0, 0.08, 2), h + rng.uniform(0.1, 0.35)), 0.003, twig, 4)
    return model("vase", b, m, has_front=False)


def square_bottle(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A round or square bottle."""
    m = mat.plastic(rng) if rng.random() < 0.6 else mat.Material((0.4, 0.55, 0.45), gloss=0.8, substance="glass")
    r, h = rng.uniform(0.028, 0.05), rng.uniform(0.14, 0.34)
    outline = [(0.0, 0.0), (r, 0.0), (r, h * 0.7), (r * 0.35, h * 0.8), (r * 0.35, h), (0.0, h)]
    b.lathe(outline, m, int(rng.choice([4, 16])), smooth=False)
    b.cylinder(r * 0.42, 0.02, (0, 0, h), mat.plastic(rng), segments=10)
    return model("bottle", b, m, has_front=False, synonyms=("flask",))


def canister(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A jar with a wide lid."""
    m, lid = mat.ceramic(rng, _DISH), mat.wood(rng)
    r, h = rng.uniform(0.04, 0.075), rng.uniform(0.09, 0.22)
    b.cylinder(r, h - 0.02, (0, 0, (h - 0.02) / 2), m, segments=20)
    b.cylinder(r * 1.04, 0.025, (0, 0, h - 0.0125), lid, segments=20)
    return model("jar", b, m, has_front=False, synonyms=("canister",))


def casserole(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A wide pot with a lid and two handles."""
    m = mat.metal(rng, ("red", "blue", "black", "gray", "orange"))
    r, h = rng.uniform(0.11, 0.17), rng.uniform(0.08, 0.14)
    b.cylinder(r, h, (0, 0, h / 2), m, segments=24)
    b.lathe([(r, h), (r * 0.6, h + 0.03), (0, h + 0.035)], m, 24)
    b.ellipsoid((0.02, 0.02, 0.015), (0, 0, h + 0.045), m, segments=8)
    for s in (-1, 1):
        b.box((0.04, 0.08, 0.015), (s * (r + 0.015), 0, h * 0.8), m)
    return model("pot", b, m, has_front=False, synonyms=("cooking pot", "casserole"))


def globe_lamp(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A glass globe on a foot."""
    foot = mat.ceramic(rng, _DISH) if rng.random() < 0.5 else mat.wood(rng)
    r, h = rng.uniform(0.08, 0.15), rng.uniform(0.1, 0.25)
    b.lathe([(0, 0), (r * 0.7, 0), (r * 0.25, h * 0.5), (r * 0.3, h), (0, h)], foot, 16)
    b.ellipsoid((r, r, r * rng.uniform(0.6, 1.0)), (0, 0, h + r * 0.7), mat.glow(emission=0.6), segments=16)
    return model("lamp", b, foot, has_front=False, synonyms=("table lamp",), style="table")


def tripod_lamp(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A shade on three legs."""
    leg = mat.wood(rng) if rng.random() < 0.6 else mat.metal(rng)
    h, r = rng.uniform(1.25, 1.7), rng.uniform(0.18, 0.28)
    for k in range(3):
        a = 2 * np.pi * k / 3
        b.rod((0.28 * np.cos(a), 0.28 * np.sin(a), 0.012), (0, 0, h - 0.3), 0.014, leg, 6)
    shade = mat.fabric(rng, ("white", "beige", "gray", "black"))
    b.lathe([(r, h - 0.3), (r * 0.75, h)], shade, 24)
    b.lathe([(r * 0.98, h - 0.299), (0, h - 0.25)], mat.glow(emission=0.5), 24)
    return model("lamp", b, shade, has_front=False, synonyms=("floor lamp", "standing lamp"), style="floor")


def arc_lamp(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A lamp on an arc that reaches over a seat."""
    steel = mat.metal(rng)
    h, reach = rng.uniform(1.5, 1.85), rng.uniform(0.5, 0.9)
    b.cylinder(0.16, 0.04, (0, 0.15, 0.02), mat.stone(rng), segments=20)
    a = np.linspace(0, np.pi * 0.62, 8)
    arc = ((0.0, float(0.15 - reach * (1 - np.cos(x)) * 0.7), float(h * 0.6 + h * 0.4 * np.sin(x))) for x in a)
    path = [(0, 0.15, 0.04), *arc]
    b.tube(path, 0.012, steel, 6)
    end = np.array(path[-1])
    b.ellipsoid((0.14, 0.14, 0.1), end - [0, 0, 0.08], steel, segments=16)
    return model("lamp", b, steel, synonyms=("arc lamp", "floor lamp"), style="floor")


def clamp_lamp(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A desk lamp with a light bar on a straight arm."""
    m = mat.metal(rng, ("white", "black", "gray", "red"))
    h = rng.uniform(0.32, 0.5)
    b.box((0.16, 0.12, 0.018), (0, 0.02, 0.009), m)
    b.rod((0, 0.05, 0.018), (0, 0.07, h), 0.009, m, 6)
    b.box((0.34, 0.05, 0.02), (0, -0.02, h), m, faces={"-z": mat.glow(emission=0.9)})
    b.rod((0, 0.07, h), (0, -0.02, h), 0.009, m, 6)
    return model("lamp", b, m, synonyms=("desk lamp",), style="desk")


def oval_basket(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A fabric or wicker basket with two handles."""
    if rng.random() < 0.5:
        m = mat.fabric(rng)
    else:
        m = mat.colored(rng, "wicker", ("brown", "beige", "gray"), texture="wicker", scale_m=0.25)
    r, h = rng.uniform(0.14, 0.24), rng.uniform(0.18, 0.36)
    bulge = rng.uniform(0.95, 1.2)
    b.lathe([(0, 0), (r * 0.9, 0), (r * bulge, h * 0.5), (r, h), (r - 0.012, h), (r * 0.88, 0.02), (0, 0.02)], m, 20)
    for s in (-1, 1):
        path = ((-0.05, h - 0.02), (-0.03, h + 0.05), (0.03, h + 0.05), (0.05, h - 0.02))
        b.tube([(s * r, y, z) for y, z in path], 0.008, m, 5)
    return model("basket", b, m, has_front=False, synonyms=("storage basket",))


def round_cushion(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A round or a long cushion."""
    m = mat.fabric(rng)
    if rng.random() < 0.5:
        b.rounded_box((rng.uniform(0.45, 0.62), 0.14, rng.uniform(0.26, 0.34)), (0, 0, 0.16), m, 0.5)
    else:
        r = rng.uniform(0.16, 0.22)
        b.ellipsoid((r, 0.07, r), (0, 0, r), m, segments=20)
    return model("pillow", b, m, synonyms=("cushion",))


def book_pile(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A few stacked books."""
    z, page = 0.0, mat.Material((0.93, 0.91, 0.85))
    for _ in range(int(rng.integers(2, 6))):
        w, d, h = rng.uniform(0.13, 0.24), rng.uniform(0.18, 0.3), rng.uniform(0.012, 0.045)
        R = rotation("z", rng.normal(0, 0.25))
        at = (rng.normal(0, 0.012), rng.normal(0, 0.012), z + h / 2)
        b.box((w, d, h), at, mat.colored(rng, "paper"), R, faces={"-y": page, "+y": page, "+x": page})
        z += h
    return model("book", b, mat.paper(rng), synonyms=("books", "pile of books"), has_front=False)


def tablet(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A loose pile of sheets."""
    for k in range(int(rng.integers(1, 6))):
        page = any_picture(rng, "text", 20) if rng.random() < 0.6 else mat.paper(rng)
        b.box((0.21, 0.297, 0.002), (*rng.normal(0, 0.02, 2), 0.001 + 0.002 * k), mat.paper(rng),
              rotation("z", rng.normal(0, 0.15)), faces={"+z": page})  # fmt: skip
    return model("paper", b, mat.paper(rng), synonyms=("papers", "sheets"), has_front=False)


def plush(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A stuffed animal or a robot of blocks."""
    s = rng.uniform(0.6, 1.6)
    if rng.random() < 0.6:
        m = mat.fabric(rng)
        b.ellipsoid((0.07 * s, 0.06 * s, 0.09 * s), (0, 0, 0.09 * s), m, segments=12)
        b.ellipsoid((0.06 * s, 0.055 * s, 0.055 * s), (0, -0.01 * s, 0.21 * s), m, segments=12)
        for x in (-1, 1):
            b.ellipsoid((0.02 * s, 0.012 * s, 0.03 * s), (x * 0.045 * s, 0, 0.265 * s), m, segments=8)
            b.ellipsoid((0.03 * s, 0.06 * s, 0.03 * s), (x * 0.05 * s, -0.06 * s, 0.03 * s), m, segments=8)
            b.ellipsoid((0.025 * s, 0.03 * s, 0.06 * s), (x * 0.085 * s, -0.01 * s, 0.13 * s), m, segments=8)
    else:
        for size, z in (((0.1, 0.08, 0.1), 0.11), ((0.07, 0.07, 0.06), 0.2)):
            b.box(np.array(size) * s, (0, 0, z * s), mat.plastic(rng))
        m = mat.plastic(rng)
        for x in (-1, 1):
            b.box(np.array((0.03, 0.05, 0.06)) * s, (x * 0.03 * s, 0, 0.03 * s), m)
            b.box(np.array((0.03, 0.03, 0.09)) * s, (x * 0.07 * s, 0, 0.11 * s), m)
    return model("toy", b, m, synonyms=("stuffed animal", "figure"))
