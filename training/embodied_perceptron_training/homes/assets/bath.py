"""Bathroom fixtures and toiletries."""

from __future__ import annotations

from embodied_perceptron_training.homes.assets.common import (
    MIRROR,
    Rng,
    any_picture,
    carcass,
    door_pair,
    model,
    top_surface,
)
from embodied_perceptron_training.homes.assets.mesh import MeshBuilder
from embodied_perceptron_training.homes.assets.objects import Joint, ObjectModel, Part, Surface, part_from
from embodied_perceptron_training.homes.rendering import materials as mat

_STEEL = mat.Material((0.75, 0.76, 0.78), "brushed", 0, 0.3, 0.8, 0.0, "gray", "metal")


def toilet(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A toilet with tank and lid."""
    m = mat.ceramic(rng)
    outline = [(0, 0), (0.13, 0), (0.11, 0.15), (0.18, 0.36), (0.19, 0.4), (0.13, 0.4), (0.09, 0.28), (0, 0.26)]
    b.lathe(outline, m, 24, center=(0, -0.08, 0))
    b.box((0.2, 0.3, 0.38), (0, 0.13, 0.19), m)
    b.box((0.38, 0.17, 0.36), (0, 0.235, 0.58), m)
    b.box((0.4, 0.19, 0.03), (0, 0.235, 0.775), m)
    b.cylinder(0.02, 0.015, (0, 0.235, 0.7975), _STEEL)
    lid = MeshBuilder()
    lid.cylinder(0.2, 0.022, (0, -0.08, 0.415), m, segments=28)
    part = part_from(lid, "lid", Joint("revolute", (-1.0, 0.0, 0.0), (0.0, 0.12, 0.42), 1.55))
    return model("toilet", b, m, [part], [top_surface(0.36, 0.15, 0.79, "toilet", 0.5, 0.0, 0.235)])


def bidet(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A bidet with a tap."""
    m = mat.ceramic(rng)
    outline = [(0, 0), (0.13, 0), (0.11, 0.15), (0.18, 0.36), (0.19, 0.39), (0.15, 0.39), (0.1, 0.3), (0, 0.28)]
    b.lathe(outline, m, 24, center=(0, -0.06, 0))
    b.box((0.3, 0.16, 0.39), (0, 0.16, 0.195), m)
    b.tube([(0, 0.16, 0.39), (0, 0.16, 0.47), (0, 0.06, 0.46)], 0.013, _STEEL)
    return model("bidet", b, m)


def washbasin(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A basin on a cabinet or a pedestal, with a tap."""
    m = mat.ceramic(rng)
    w, d, h = rng.uniform(0.55, 0.8), 0.46, 0.85
    parts: list[Part] = []
    t = 0.05
    for s in (-1, 1):
        b.box((t, d, 0.15), (s * (w - t) / 2, 0, h - 0.075), m)
    b.box((w - 2 * t, t, 0.15), (0, -(d - t) / 2, h - 0.075), m)
    b.box((w - 2 * t, 0.12, 0.15), (0, d / 2 - 0.06, h - 0.075), m)
    b.box((w - 2 * t, d - t - 0.12, 0.04), (0, -(0.12 - t) / 2, h - 0.13), m)
    b.tube([(0, d / 2 - 0.06, h), (0, d / 2 - 0.06, h + 0.13), (0, d / 2 - 0.17, h + 0.11)], 0.014, _STEEL)
    if rng.random() < 0.6:
        front = mat.wood(rng)
        carcass(b, w - 0.04, d - 0.06, h - 0.16, front, 0.0)
        y, wide = -(d - 0.06) / 2 - 0.009, (w - 0.04) / 2
        parts = door_pair(wide - 0.004, h - 0.18, (wide / 2, y, (h - 0.16) / 2), front, _STEEL)
    else:
        outline = [(0, 0), (0.12, 0), (0.08, 0.1), (0.07, h - 0.3), (0.11, h - 0.15), (0, h - 0.15)]
        b.lathe(outline, m, 16, center=(0, 0.05, 0))
    rim = Surface((0, d / 2 - 0.06, h), (w / 2 - 0.02, 0.055), 0.5, "ontop", "basin")
    return model("washbasin", b, m, parts, [rim], ("bathroom sink", "hand basin"))


def bathtub(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A bathtub with a tap."""
    m = mat.ceramic(rng)
    w, d, h, t = rng.uniform(1.55, 1.75), rng.uniform(0.7, 0.8), 0.56, 0.06
    for s in (-1, 1):
        b.box((t, d, h), (s * (w - t) / 2, 0, h / 2), m)
        b.box((w - 2 * t, t, h), (0, s * (d - t) / 2, h / 2), m)
    b.box((w - 2 * t, d - 2 * t, 0.12), (0, 0, 0.06), m)
    b.tube([(w / 2 - 0.03, 0, h), (w / 2 - 0.03, 0, h + 0.16), (w / 2 - 0.17, 0, h + 0.15)], 0.016, _STEEL)
    return model("bathtub", b, m, synonyms=("bath", "tub"))


def shower(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A shower tray with a rail, a head and a glass side."""
    m = mat.ceramic(rng)
    w = rng.uniform(0.8, 0.95)
    b.box((w, w, 0.12), (0, 0, 0.06), m)
    b.rod((0, w / 2 - 0.05, 1.0), (0, w / 2 - 0.05, 2.0), 0.012, _STEEL)
    b.rod((0, w / 2 - 0.05, 1.98), (0, w / 2 - 0.3, 2.02), 0.01, _STEEL)
    b.cylinder(0.08, 0.02, (0, w / 2 - 0.3, 1.99), _STEEL, segments=18)
    b.box((0.16, 0.06, 0.06), (0, w / 2 - 0.04, 1.05), _STEEL)
    glass = mat.Material((0.75, 0.84, 0.85), gloss=0.8, substance="glass")
    b.box((0.01, w, 1.85), (-w / 2 + 0.005, 0, 0.12 + 0.925), glass)
    for s in (-1, 1):
        b.box((0.025, 0.025, 1.85), (-w / 2 + 0.0125, s * (w / 2 - 0.0125), 0.12 + 0.925), _STEEL)
    return model("shower", b, m, synonyms=("shower cabin",))


def toilet_paper(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A toilet roll on a wall holder."""
    m = mat.paper(rng, ("white",))
    b.cylinder(0.055, 0.1, (0, 0, 0.055), m, axis="x", segments=20)
    b.rod((-0.07, 0, 0.055), (0.07, 0, 0.055), 0.008, _STEEL)
    b.rod((0.07, 0, 0.055), (0.07, 0.075, 0.055), 0.008, _STEEL)
    return model("toilet paper", b, m, synonyms=("toilet roll",))


def toilet_roll(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A standing toilet roll."""
    m = mat.paper(rng, ("white",))
    b.cylinder(0.055, 0.1, (0, 0, 0.05), m, segments=20)
    return model("toilet paper", b, m, synonyms=("toilet roll",), has_front=False)


def soap_dispenser(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A pump bottle."""
    m = mat.ceramic(rng, ("white", "blue", "green", "black"))
    b.lathe([(0, 0), (0.035, 0), (0.035, 0.11), (0.015, 0.135), (0, 0.135)], m, 16)
    b.tube([(0, 0, 0.13), (0, 0, 0.18), (0, -0.04, 0.175)], 0.006, _STEEL, 6)
    return model("soap dispenser", b, m, synonyms=("liquid soap",))


def soap(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A bar of soap."""
    m = mat.plastic(rng, ("white", "pink", "green", "beige"))
    b.rounded_box((0.085, 0.055, 0.03), (0, 0, 0.015), m, 0.5)
    return model("soap", b, m, synonyms=("bar of soap",), has_front=False)


def shampoo(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A bottle of shampoo."""
    m = mat.plastic(rng)
    h = rng.uniform(0.17, 0.23)
    face = any_picture(rng, "label", 20)
    b.box((0.065, 0.04, h * 0.85), (0, 0, h * 0.425), m, faces={"-y": face})
    b.cylinder(0.016, h * 0.15, (0, 0, h * 0.925), m, segments=12)
    return model("shampoo", b, m, synonyms=("shampoo bottle",))


def toothbrush(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A toothbrush in a cup."""
    m = mat.plastic(rng, ("blue", "red", "green", "pink"))
    b.lathe([(0, 0), (0.033, 0), (0.037, 0.1), (0.033, 0.1), (0.029, 0.006), (0, 0.006)], mat.ceramic(rng), 16)
    b.rod((0.015, 0, 0.01), (-0.035, 0, 0.19), 0.005, m, 6)
    b.box((0.012, 0.015, 0.03), (-0.032, 0, 0.19), mat.plastic(rng, ("white",)))
    return model("toothbrush", b, m, has_front=False)


def cosmetics(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A few small bottles."""
    first = mat.plastic(rng)
    for k in range(3):
        h = rng.uniform(0.05, 0.12)
        b.cylinder(0.018, h, (0.045 * (k - 1), rng.uniform(-0.01, 0.01), h / 2), first if k == 0 else mat.plastic(rng))
    return model("cosmetics", b, first, has_front=False)


def toiletry(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A wash bag."""
    m = mat.fabric(rng)
    b.rounded_box((0.24, 0.12, 0.14), (0, 0, 0.07), m, 0.4)
    b.box((0.2, 0.008, 0.008), (0, 0, 0.139), _STEEL)
    return model("toiletry", b, m, synonyms=("wash bag", "toiletry bag"), has_front=False)


def scale(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """Bathroom scales."""
    m = mat.plastic(rng, ("white", "black", "gray"))
    b.box((0.3, 0.3, 0.035), (0, 0, 0.0175), m)
    b.box((0.09, 0.04, 0.004), (0, 0.1, 0.037), mat.Material((0.55, 0.62, 0.52)))
    return model("scale", b, m, synonyms=("bathroom scale",))


def plunger(rng: Rng, b: MeshBuilder) -> ObjectModel:
    b.lathe([(0.075, 0), (0.06, 0.05), (0.015, 0.085), (0, 0.085)], mat.plastic(rng, ("red", "black")), 16)
    m = mat.wood(rng)
    b.cylinder(0.011, 0.4, (0, 0, 0.28), m, segments=8)
    return model("plunger", b, m, has_front=False)


def toilet_brush(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A toilet brush in its holder."""
    m = mat.plastic(rng, ("white", "gray", "black"))
    b.lathe([(0, 0), (0.055, 0), (0.05, 0.13), (0, 0.14)], m, 16)
    b.cylinder(0.009, 0.26, (0, 0, 0.26), m, segments=8)
    return model("brush", b, m, synonyms=("toilet brush",), has_front=False)


def medicine_cabinet(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A mirror cabinet above a basin."""
    m = mat.wood(rng, ("painted", "birch"))
    w, d, h = rng.uniform(0.5, 0.7), 0.15, rng.uniform(0.55, 0.7)
    t = carcass(b, w, d, h, m)
    b.box((w - 2 * t, d - 0.03, 0.012), (0, 0, h / 2), m)
    parts = door_pair(w / 2 - 0.003, h, (w / 4, -d / 2 - 0.009, h / 2), MIRROR, _STEEL)
    half = (w / 2 - t - 0.02, d / 2 - 0.03)
    inside = [Surface((0, 0, z), half, h / 2 - 0.06, "inside", "basin") for z in (t, h / 2 + 0.006)]
    return model("cabinet", b, m, parts, inside, ("medicine cabinet", "mirror cabinet"), style="wall")


def drain_pipe(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A pipe from the floor to near the ceiling."""
    m = mat.metal(rng, ("white", "gray"))
    b.cylinder(0.045, 2.3, (0, 0, 1.15), m, segments=14)
    for z in (0.4, 1.9):
        b.cylinder(0.055, 0.05, (0, 0, z), m, segments=14)
    return model("pipe", b, m, has_front=False)
