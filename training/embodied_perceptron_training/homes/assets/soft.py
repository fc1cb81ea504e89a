"""Beds and textiles."""

from __future__ import annotations

import numpy as np

from embodied_perceptron_training.homes.assets.common import (
    CORNERS,
    Rng,
    any_picture,
    choice,
    four_legs,
    model,
    top_surface,
)
from embodied_perceptron_training.homes.assets.mesh import MeshBuilder, rotation
from embodied_perceptron_training.homes.assets.objects import ObjectModel
from embodied_perceptron_training.homes.rendering import materials as mat
from embodied_perceptron_training.homes.rendering.materials import MOTIFS


def bed(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A bed with headboard and mattress; its front is the foot end."""
    frame, linen = mat.wood(rng), mat.fabric(rng, ("white", "beige", "gray", "blue"))
    double = rng.random() < 0.6
    w, length = (rng.uniform(1.45, 1.85) if double else rng.uniform(0.92, 1.05)), rng.uniform(1.98, 2.12)
    h = rng.uniform(0.42, 0.55)
    head = h + rng.uniform(0.3, 0.55)
    four_legs(b, w, length, h - 0.3, 0.07, frame)
    b.box((w, length, 0.12), (0, 0, h - 0.24), frame)
    b.box((w, 0.05, head - 0.05), (0, length / 2 - 0.025, (head + 0.05) / 2), frame)
    b.rounded_box((w - 0.06, length - 0.1, 0.2), (0, -0.02, h - 0.1), linen, 0.18)
    pillows = top_surface(w - 0.1, 0.42, h, "pillows", 0.4, y=length / 2 - 0.32)
    cover = top_surface(w - 0.1, length - 0.75, h, "bedding", 0.8, y=-0.28)
    return model(
        "bed", b, linen, surfaces=[pillows, cover], synonyms=("double bed" if double else "single bed",),
        style="double" if double else "single",
    )  # fmt: skip


def crib(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A baby's bed with bars."""
    m = mat.wood(rng, ("painted", "birch", "pine"))
    w, length, h = 0.68, 1.28, 0.95
    four_legs(b, w, length, h, 0.045, m)
    for s in (-1, 1):
        for z in (0.3, h - 0.03):
            b.box((0.025, length - 0.09, 0.05), (s * (w / 2 - 0.022), 0, z), m)
            b.box((w - 0.09, 0.025, 0.05), (0, s * (length / 2 - 0.022), z), m)
        for y in np.linspace(-length / 2 + 0.1, length / 2 - 0.1, 11):
            b.box((0.015, 0.015, h - 0.38), (s * (w / 2 - 0.022), y, (h + 0.3) / 2), m, collide=False)
    b.rounded_box((w - 0.08, length - 0.1, 0.12), (0, 0, 0.38), mat.fabric(rng, ("white", "pink", "blue")), 0.2)
    surfaces = [top_surface(w - 0.2, length - 0.3, 0.44, "toys")]
    return model("crib", b, m, surfaces=surfaces, synonyms=("cot", "baby bed"))


def pillow(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A bed pillow lying flat."""
    m = mat.fabric(rng, ("white", "beige", "gray", "blue", "pink"))
    thick = rng.uniform(0.12, 0.16)
    b.rounded_box((rng.uniform(0.55, 0.7), rng.uniform(0.36, 0.42), thick), (0, 0, thick / 2), m, 0.55)
    return model("pillow", b, m, synonyms=("bed pillow",), has_front=False)


def cushion(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A square cushion leaning back, sometimes with a picture."""
    motif = choice(rng, MOTIFS) if rng.random() < 0.5 else ""
    m = any_picture(rng, motif, 40) if motif else mat.fabric(rng)
    size = rng.uniform(0.36, 0.46)
    b.rounded_box((size, 0.14, size), (0, 0, size / 2), m, 0.5)
    return model("cushion", b, m, synonyms=("throw pillow", "sofa cushion"), depiction=motif)


def blanket(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A folded blanket."""
    m = mat.fabric(rng)
    w, d = rng.uniform(0.4, 0.6), rng.uniform(0.3, 0.45)
    layers = int(rng.integers(2, 5))
    for k in range(layers):
        b.rounded_box((w - 0.01 * k, d - 0.01 * k, 0.035), (0, 0, 0.0175 + 0.032 * k), m, 0.2)
    return model("blanket", b, m, synonyms=("throw",), has_front=False, states=("folded",))


def spread_blanket(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A blanket spread out, with gentle waves."""
    m = mat.fabric(rng)
    w, d = rng.uniform(0.8, 1.2), rng.uniform(0.7, 1.0)
    x, y = np.meshgrid(np.linspace(-w / 2, w / 2, 15), np.linspace(-d / 2, d / 2, 11))
    z = 0.022 + 0.014 * np.sin(9 * x + rng.uniform(0, 6)) * np.sin(7 * y + rng.uniform(0, 6))
    b.sheet(np.stack([x, y, z], -1), m, 0.012)
    return model("blanket", b, m, synonyms=("throw", "bedspread"), has_front=False, states=("unfolded",))


def towel(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A towel hanging over a bar on the wall."""
    m = mat.fabric(rng)
    w, h = rng.uniform(0.35, 0.5), rng.uniform(0.45, 0.65)
    bar = mat.metal(rng)
    b.rod((-w / 2 - 0.05, 0, h), (w / 2 + 0.05, 0, h), 0.01, bar)
    for s in (-1, 1):
        b.rod((s * (w / 2 + 0.05), 0, h), (s * (w / 2 + 0.05), 0.05, h), 0.012, bar)
    for y, drop in ((-0.014, 1.0), (0.014, 0.8)):
        b.box((w, 0.012, h * drop), (0, y, h - h * drop / 2 + 0.012), m)
    return model("towel", b, m, synonyms=("hand towel", "bath towel"), states=("unfolded",))


def folded_towel(rng: Rng, b: MeshBuilder) -> ObjectModel:
    m = mat.fabric(rng)
    w, d = rng.uniform(0.24, 0.34), rng.uniform(0.18, 0.25)
    for k in range(3):
        b.rounded_box((w, d, 0.028), (0, 0, 0.014 + 0.025 * k), m, 0.25)
    return model("towel", b, m, has_front=False, states=("folded",))


def curtain(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A curtain with folds; its base is the lower edge."""
    m = mat.fabric(rng)
    w, h = rng.uniform(0.35, 0.55), rng.uniform(2.0, 2.25)
    x, z = np.meshgrid(np.linspace(-w / 2, w / 2, 33), np.linspace(0, h, 3))
    y = 0.035 * np.sin(2 * np.pi * x / w * int(rng.integers(4, 7)))
    b.sheet(np.stack([x, y, z], -1), m, 0.006)
    return model("curtain", b, m, synonyms=("drape",))


def carpet(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A rug on the floor."""
    m = mat.colored(
        rng, "fabric", ("red", "blue", "gray", "beige", "brown", "green"),
        texture=choice(rng, ("carpet", "stripes", "wallpaper")), seed=int(rng.integers(4)), scale_m=0.6,
    )  # fmt: skip
    w, d = rng.uniform(1.4, 2.2), rng.uniform(1.0, 1.6)
    b.box((w, d, 0.012), (0, 0, 0.006), m)
    return model("carpet", b, m, synonyms=("rug",), has_front=False)


def mat_(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A door or bath mat."""
    m = mat.colored(rng, "fabric", ("gray", "brown", "blue", "beige"), texture="carpet", scale_m=0.4)
    b.box((rng.uniform(0.55, 0.8), rng.uniform(0.4, 0.5), 0.014), (0, 0, 0.007), m)
    return model("mat", b, m, synonyms=("doormat", "bath mat"), has_front=False)


def clothes(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A heap of clothes."""
    first = mat.fabric(rng)
    for k in range(4):
        m = first if k == 0 else mat.fabric(rng)
        r = rng.uniform(0.12, 0.2, 2)
        b.rounded_box((r[0] * 2, r[1] * 2, 0.06), (*rng.uniform(-0.07, 0.07, 2), 0.03 + 0.04 * k), m, 0.6)
    return model("clothes", b, first, synonyms=("laundry", "pile of clothes"), has_front=False, states=("unfolded",))


def hanging_jacket(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A jacket on a wall hook."""
    m = mat.fabric(rng)
    h = rng.uniform(0.65, 0.85)
    b.rounded_box((0.42, 0.14, h), (0, 0, h / 2), m, 0.45)
    for s in (-1, 1):
        b.rounded_box((0.11, 0.11, h * 0.75), (s * 0.24, 0, h * 0.55), m, 0.6, rotation("y", -s * 0.12))
    b.cylinder(0.012, 0.14, (0, 0.0, h), mat.metal(rng), axis="y")
    return model("jacket", b, m, synonyms=("coat",))


def bag(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A shopping bag with handles."""
    m = mat.fabric(rng) if rng.random() < 0.5 else mat.paper(rng, ("beige", "brown", "red", "white"))
    w, d, h = rng.uniform(0.26, 0.36), rng.uniform(0.1, 0.16), rng.uniform(0.28, 0.38)
    b.box((w, d, h), (0, 0, h / 2), m)
    for s in (-1, 1):
        y = s * d / 2
        b.tube([(-w * 0.2, y, h), (-w * 0.15, y, h + 0.1), (w * 0.15, y, h + 0.1), (w * 0.2, y, h)], 0.008, m, 6)
    return model("bag", b, m, synonyms=("shopping bag", "tote"))


def backpack(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A backpack standing on the floor."""
    m = mat.fabric(rng)
    h = rng.uniform(0.42, 0.5)
    b.rounded_box((0.3, 0.18, h), (0, 0, h / 2), m, 0.4)
    b.rounded_box((0.22, 0.1, h * 0.45), (0, -0.1, h * 0.3), m, 0.4)
    for s in (-1, 1):
        b.tube([(s * 0.08, 0.08, h * 0.9), (s * 0.1, 0.15, h * 0.6), (s * 0.1, 0.09, h * 0.15)], 0.016, m, 6)
    return model("backpack", b, m, synonyms=("rucksack",))


def luggage(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A suitcase on wheels."""
    m, dark = mat.plastic(rng), mat.plastic(rng, ("black",))
    w, d, h = rng.uniform(0.36, 0.46), rng.uniform(0.2, 0.28), rng.uniform(0.5, 0.68)
    b.rounded_box((w, d, h), (0, 0, h / 2 + 0.05), m, 0.15)
    for sx, sy in CORNERS:
        b.cylinder(0.03, 0.025, (sx * w * 0.38, sy * d * 0.32, 0.03), dark, axis="x")
    path = [(-0.09, d * 0.4, h), (-0.09, d * 0.4, h + 0.35), (0.09, d * 0.4, h + 0.35), (0.09, d * 0.4, h)]
    b.tube(path, 0.01, dark, 6)
    return model("luggage", b, m, synonyms=("suitcase",))


def shoe(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A pair of shoes, one object as in real annotations."""
    m, sole = mat.leather(rng), mat.plastic(rng, ("black", "white"))
    for s in (-1, 1):
        b.rounded_box((0.095, 0.27, 0.03), (s * 0.06, 0, 0.015), sole, 0.3)
        b.rounded_box((0.088, 0.17, 0.07), (s * 0.06, -0.04, 0.06), m, 0.6)
        b.rounded_box((0.085, 0.13, 0.1), (s * 0.06, 0.06, 0.08), m, 0.4)
    return model("shoe", b, m, synonyms=("pair of shoes", "shoes"))


def hat(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A hat with a brim."""
    m = mat.fabric(rng)
    b.cylinder(0.15, 0.012, (0, 0, 0.006), m, segments=24)
    b.lathe([(0.09, 0.012), (0.085, 0.08), (0.05, 0.11), (0, 0.115)], m, 20)
    return model("hat", b, m, has_front=False)
