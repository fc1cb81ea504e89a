"""Kitchen furniture, appliances, dishes and food."""

from __future__ import annotations

import numpy as np

from embodied_perceptron_training.homes.assets.common import (
    CORNERS,
    Rng,
    any_picture,
    carcass,
    choice,
    drawer,
    hinged_door,
    model,
    top_surface,
)
from embodied_perceptron_training.homes.assets.mesh import MeshBuilder
from embodied_perceptron_training.homes.assets.objects import Joint, ObjectModel, Part, Surface, part_from
from embodied_perceptron_training.homes.rendering import materials as mat

_DARK = mat.Material((0.09, 0.09, 0.10), gloss=0.5, color_name="black", substance="glass")
SINK_STEEL = mat.Material((0.72, 0.73, 0.74), "brushed", 0, 0.3, 0.7, 0.0, "gray", "metal")
_DISH = ("white", "white", "blue", "green", "yellow", "red", "gray")
COUNTER_H, COUNTER_D = 0.9, 0.6  # metres


def counter(
    rng: Rng, b: MeshBuilder, width: float, front: mat.Material, top: mat.Material, with_drawers: bool
) -> ObjectModel:
    """A base cabinet with a work top; ``front`` and ``top`` are shared by one kitchen."""
    h = COUNTER_H - 0.04
    carcass(b, width, COUNTER_D - 0.04, h - 0.1, front, 0.1)
    b.box((width, COUNTER_D - 0.1, 0.1), (0, 0.03, 0.05), front)
    b.box((width, COUNTER_D, 0.04), (0, -0.0, COUNTER_H - 0.02), top)
    handle, inner = mat.metal(rng), mat.wood(rng, ("birch",))
    y = -(COUNTER_D - 0.04) / 2 - 0.009
    parts: list[Part] = []
    if with_drawers:
        for k in range(3):
            tall = (h - 0.1) / 3
            z = 0.1 + tall * (k + 0.5)
            parts.append(drawer(f"drawer{k}", width - 0.004, tall - 0.006, 0.5, (0, y, z), front, inner, handle))
    else:
        columns = 1 if width < 0.55 else 2
        for k in range(columns):
            wide = width / columns
            hinge = "left" if k == 0 else "right"
            center = (-width / 2 + wide * (k + 0.5), y, 0.1 + (h - 0.1) / 2)
            parts.append(hinged_door(f"door{k}", wide - 0.004, h - 0.106, center, front, handle, hinge))
    inside = Surface((0, 0.02, 0.12), (width / 2 - 0.06, 0.2), 0.6, "inside", "kitchen")
    surfaces = [top_surface(width, COUNTER_D - 0.02, COUNTER_H, "counter"), *([] if with_drawers else [inside])]
    return model("counter", b, top, parts, surfaces, ("kitchen counter", "base cabinet"))


def sink(rng: Rng, b: MeshBuilder, width: float, front: mat.Material, top: mat.Material) -> ObjectModel:
    """A kitchen sink set into its base cabinet, with a tap."""
    h = COUNTER_H
    steel = SINK_STEEL
    b.box((width, COUNTER_D - 0.04, h - 0.24), (0, 0, (h - 0.24) / 2 + 0.0), front)
    bw, bd, depth, t = min(width - 0.12, 0.5), 0.38, 0.16, 0.01
    side = (width - bw) / 2
    for s in (-1, 1):
        b.box((side, COUNTER_D, 0.04), (s * (bw + side) / 2, 0, h - 0.02), top)
        b.box((bw, (COUNTER_D - bd) / 2, 0.04), (0, s * (bd + COUNTER_D) / 4, h - 0.02), top)
        b.box((t, bd, depth), (s * (bw - t) / 2, 0, h - depth / 2), steel)
        b.box((bw - 2 * t, t, depth), (0, s * (bd - t) / 2, h - depth / 2), steel)
    b.box((bw, bd, t), (0, 0, h - depth), steel)
    b.tube([(0, 0.24, h), (0, 0.24, h + 0.26), (0, 0.16, h + 0.3), (0, 0.08, h + 0.26)], 0.014, steel)
    handle = mat.metal(rng)
    y = -(COUNTER_D - 0.04) / 2 - 0.009
    door = hinged_door("door0", width - 0.004, h - 0.26, (0, y, (h - 0.24) / 2), front, handle)
    basin = Surface((0, 0, h - depth + t / 2), (bw / 2 - 0.03, bd / 2 - 0.03), 0.4, "inside", "dishes")
    return model("sink", b, steel, [door], [basin], ("kitchen sink",))


def refrigerator(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A fridge with one or two doors and shelves inside."""
    m = mat.metal(rng, ("white", "gray", "black", "white"))
    white = mat.plastic(rng, ("white",))
    w, d, h = rng.uniform(0.58, 0.7), rng.uniform(0.58, 0.66), rng.uniform(1.5, 1.9)
    split = h * (0.32 if rng.random() < 0.6 else 0.0)
    t = 0.05
    for s in (-1, 1):
        b.box((t, d, h), (s * (w - t) / 2, 0, h / 2), m)
    b.box((w - 2 * t, t, h), (0, (d - t) / 2, h / 2), m, faces={"-y": white})
    for z in (t / 2, h - t / 2, *([split] if split else [])):
        b.box((w - 2 * t, d - t, t), (0, -t / 2, z), m)
    surfaces = []
    levels = np.linspace(split + t / 2 if split else t, h - 0.35, 4)
    for k, z in enumerate(levels):
        if k:
            b.box((w - 2 * t, d - 0.16, 0.012), (0, 0.03, z), mat.Material((0.8, 0.86, 0.9), gloss=0.6))
        clear = float(levels[1] - levels[0]) - 0.03 if k + 1 < len(levels) else 0.25
        base = float(z) + (0.006 if k else 0.0)
        surfaces.append(Surface((0, 0.04, base), (w / 2 - t - 0.02, d / 2 - 0.12), clear, "inside", "fridge"))
    steel = mat.metal(rng, ("gray",))
    parts = []
    for name, low, high in (("door", split, h), ("freezer", 0.0, split)):
        if high - low < 0.1:
            continue
        door = MeshBuilder()
        y = -d / 2 - 0.03
        door.box((w, 0.055, high - low - 0.008), (0, y, (low + high) / 2), m, faces={"+y": white})
        door.box((0.02, 0.03, min(0.45, (high - low) * 0.5)), (w / 2 - 0.05, y - 0.045, (low + high) / 2), steel)
        parts.append(part_from(door, name, Joint("revolute", (0.0, 0.0, -1.0), (-w / 2, y, 0.0), 1.7)))
    top = top_surface(w, d, h, "storage", 0.4)
    return model("refrigerator", b, m, parts, [*surfaces, top], ("fridge",))


def _oven_door(w: float, low: float, high: float, y: float, m: mat.Material, steel: mat.Material) -> Part:
    door = MeshBuilder()
    z = (low + high) / 2
    door.box((w, 0.03, high - low), (0, y, z), m)
    door.box((w * 0.7, 0.004, (high - low) * 0.55), (0, y - 0.017, z), _DARK)
    door.box((w * 0.75, 0.025, 0.02), (0, y - 0.04, high - 0.05), steel)
    return part_from(door, "door", Joint("revolute", (1.0, 0.0, 0.0), (0.0, y, low), 1.45))


def _oven_box(b: MeshBuilder, w: float, d: float, low: float, high: float, m: mat.Material) -> Surface:
    t = 0.03
    dark = mat.Material((0.16, 0.16, 0.17))
    for s in (-1, 1):
        b.box((t, d, high - low), (s * (w - t) / 2, 0, (low + high) / 2), m)
    b.box((w - 2 * t, t, high - low), (0, (d - t) / 2, (low + high) / 2), m, faces={"-y": dark})
    for z in (low + t / 2, high - t / 2):
        b.box((w - 2 * t, d - t, t), (0, -t / 2, z), m, faces={"+z": dark} if z < high - 0.1 else None)
    return Surface((0, 0, low + t), (w / 2 - t - 0.03, d / 2 - 0.08), high - low - 3 * t, "inside", "oven")


def stove(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A cooker: four plates on top, an oven with a drop-down door below."""
    m, steel = mat.metal(rng, ("white", "gray", "black")), mat.metal(rng, ("gray",))
    w, d, h = 0.6, 0.58, COUNTER_H
    b.box((w, d, 0.12), (0, 0, 0.06), m)
    inside = _oven_box(b, w, d, 0.12, h - 0.14, m)
    b.box((w, d, 0.12), (0, 0, h - 0.08), m)
    b.box((w, d, 0.02), (0, 0, h - 0.01), _DARK)
    for sx, sy in CORNERS:
        b.cylinder(0.085, 0.006, (sx * 0.14, sy * 0.13, h + 0.003), mat.Material((0.2, 0.2, 0.21)), segments=20)
    for x in np.linspace(-0.22, 0.22, 5):
        b.cylinder(0.018, 0.025, (x, -d / 2 - 0.0125, h - 0.075), steel, axis="y", segments=12)
    door = _oven_door(w - 0.01, 0.125, h - 0.145, -d / 2 - 0.015, m, steel)
    top = Surface((0, 0, h + 0.006), (w / 2 - 0.05, d / 2 - 0.05), 0.5, "ontop", "stove")
    return model("stove", b, m, [door], [top, inside], ("cooker", "range"))


def oven(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A table-top oven."""
    m, steel = mat.metal(rng, ("gray", "black", "white")), mat.metal(rng, ("gray",))
    w, d, h = 0.48, 0.36, 0.32
    inside = _oven_box(b, w, d, 0.02, h, m)
    door = _oven_door(w - 0.01, 0.03, h - 0.01, -d / 2 - 0.015, m, steel)
    for sx in (-1, 1):
        b.box((0.03, 0.2, 0.02), (sx * 0.18, 0, 0.01), _DARK)
    return model("oven", b, m, [door], [inside], ("mini oven",))


def microwave(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A microwave whose door swings to the left."""
    m = mat.metal(rng, ("white", "black", "gray"))
    w, d, h = rng.uniform(0.45, 0.52), rng.uniform(0.32, 0.38), rng.uniform(0.26, 0.3)
    inner = w * 0.72
    t = 0.02
    b.box((w, t, h), (0, (d - t) / 2, h / 2), m)
    b.box((t, d - t, h), (-(w - t) / 2, -t / 2, h / 2), m)
    b.box((w - inner, d - t, h), (inner / 2, -t / 2, h / 2), m, faces={"-y": mat.picture("keys", 4)})
    for z in (t / 2, h - t / 2):
        b.box((inner - t, d - t, t), (-(w - inner) / 2 + t / 2, -t / 2, z), m)
    x = -(w - inner) / 2
    door = MeshBuilder()
    y = -d / 2 - 0.0125
    door.box((inner, 0.025, h), (x, y, h / 2), m)
    door.box((inner * 0.72, 0.004, h * 0.62), (x, y - 0.0145, h / 2), _DARK)
    part = part_from(door, "door", Joint("revolute", (0.0, 0.0, -1.0), (-w / 2, y, 0.0), 1.7))
    inside = Surface((x + t / 2, 0, t), (inner / 2 - t - 0.03, d / 2 - 0.05), h - 3 * t, "inside", "oven")
    return model("microwave", b, m, [part], [inside], ("microwave oven",))


def dishwasher(rng: Rng, b: MeshBuilder, top: mat.Material) -> ObjectModel:
    """A dishwasher below the work top."""
    m, steel = mat.metal(rng, ("white", "gray")), mat.metal(rng, ("gray",))
    w, d, h = 0.6, 0.56, COUNTER_H
    b.box((w, d, 0.1), (0, 0, 0.05), _DARK)
    _oven_box(b, w, d, 0.1, h - 0.04, m)
    b.box((w, COUNTER_D, 0.04), (0, 0, h - 0.02), top)
    door = MeshBuilder()
    y = -d / 2 - 0.015
    door.box((w - 0.006, 0.03, h - 0.15), (0, y, 0.1 + (h - 0.15) / 2), m)
    door.box((w * 0.5, 0.025, 0.02), (0, y - 0.025, h - 0.12), steel)
    part = part_from(door, "door", Joint("revolute", (1.0, 0.0, 0.0), (0.0, y, 0.1), 1.45))
    return model("dishwasher", b, m, [part], [top_surface(w, COUNTER_D - 0.02, h, "counter")])


def range_hood(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """An extractor hood on the wall."""
    m = mat.metal(rng, ("gray", "white", "black"))
    b.box((0.6, 0.46, 0.05), (0, 0, 0.025), m)
    b.lathe([(0.3, 0.0), (0.14, 0.18), (0, 0.18)], m, 4, center=(0, 0.0, 0.05))
    b.box((0.22, 0.2, 0.4), (0, 0.12, 0.42), m)
    return model("range hood", b, m, synonyms=("extractor hood", "cooker hood"))


def toaster(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A two-slot toaster."""
    m = mat.metal(rng, ("gray", "black", "red", "white"))
    b.rounded_box((0.28, 0.17, 0.19), (0, 0, 0.1), m, 0.25)
    for s in (-1, 1):
        b.box((0.2, 0.025, 0.006), (0, s * 0.032, 0.194), _DARK)
    b.box((0.012, 0.03, 0.02), (0.145, 0, 0.12), _DARK)
    b.box((0.24, 0.14, 0.012), (0, 0, 0.006), _DARK)
    return model("toaster", b, m)


def kettle(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """An electric kettle."""
    m, dark = mat.metal(rng, ("gray", "white", "black", "red")), _DARK
    b.lathe([(0, 0), (0.085, 0), (0.085, 0.02), (0.08, 0.02), (0.06, 0.21), (0.02, 0.235), (0, 0.24)], m, 20)
    b.tube([(0.06, 0, 0.2), (0.12, 0, 0.19), (0.12, 0, 0.08), (0.075, 0, 0.06)], 0.012, dark)
    b.rod((-0.05, 0, 0.17), (-0.1, 0, 0.21), 0.014, m)
    return model("kettle", b, m, synonyms=("electric kettle",), has_front=False)


def coffee_maker(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A filter coffee machine with its jug."""
    m = mat.plastic(rng, ("black", "white", "red", "gray"))
    b.box((0.2, 0.24, 0.03), (0, 0, 0.015), m)
    b.box((0.2, 0.09, 0.3), (0, 0.075, 0.18), m)
    b.box((0.2, 0.2, 0.09), (0, 0.0, 0.33), m)
    glass = mat.Material((0.2, 0.14, 0.1), gloss=0.8)
    b.lathe([(0, 0), (0.06, 0), (0.07, 0.06), (0.05, 0.13), (0, 0.13)], glass, 16, center=(0, -0.03, 0.035))
    return model("coffee maker", b, m, synonyms=("coffee machine",))


def dish_rack(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A wire rack with plates drying in it."""
    m = mat.metal(rng, ("gray",))
    w, d = 0.4, 0.28
    for s in (-1, 1):
        for z in (0.02, 0.1):
            b.rod((-w / 2, s * d / 2, z), (w / 2, s * d / 2, z), 0.004, m, 6)
            b.rod((s * w / 2, -d / 2, z), (s * w / 2, d / 2, z), 0.004, m, 6)
        for t in (-1, 1):
            b.rod((s * w / 2, t * d / 2, 0), (s * w / 2, t * d / 2, 0.1), 0.005, m, 6)
    for x in np.linspace(-w / 2, w / 2, 10):
        b.rod((x, -d / 2, 0.02), (x, d / 2, 0.02), 0.003, m, 6)
    for x in np.linspace(-0.12, 0.12, int(rng.integers(2, 5))):
        b.cylinder(0.1, 0.008, (x, 0, 0.125), mat.ceramic(rng, ("white", "blue")), axis="x", segments=20)
    return model("dish rack", b, m, synonyms=("drying rack",), has_front=False)


# -- dishes, pots, food


def _fill(b: MeshBuilder, rng: Rng, radius: float, z: float, colors: tuple[str, ...]) -> str:
    """Add liquid or food with probability 0.5; returns the state word."""
    if rng.random() < 0.5:
        return "empty"
    b.lathe([(radius, z), (0, z)], mat.plastic(rng, colors), 16, collide=False)
    return "filled"


def cup(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A mug with a handle, filled or empty."""
    m = mat.ceramic(rng, _DISH)
    r, h = rng.uniform(0.036, 0.045), rng.uniform(0.08, 0.105)
    b.lathe([(0, 0), (r * 0.85, 0), (r, h), (r - 0.004, h), (r * 0.85 - 0.004, 0.006), (0, 0.006)], m, 16)
    path = [(r * 0.9, 0, h * 0.8), (r + 0.03, 0, h * 0.75), (r + 0.03, 0, h * 0.35), (r * 0.88, 0, h * 0.25)]
    b.tube(path, 0.005, m, 6)
    state = _fill(b, rng, r * 0.92, h * 0.8, ("brown",))
    return model("cup", b, m, synonyms=("mug", "coffee cup"), has_front=False, states=(state,))


def glass(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A drinking glass."""
    m = mat.Material((0.78, 0.86, 0.88), gloss=0.9, substance="glass")
    r, h = rng.uniform(0.03, 0.038), rng.uniform(0.1, 0.15)
    b.lathe([(0, 0), (r * 0.8, 0), (r, h), (r - 0.003, h), (r * 0.8 - 0.003, 0.008), (0, 0.008)], m, 16)
    state = _fill(b, rng, r * 0.9, h * 0.7, ("orange", "red", "blue"))
    return model("glass", b, m, synonyms=("drinking glass", "tumbler"), has_front=False, states=(state,))


def bowl(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A bowl, filled or empty."""
    m = mat.ceramic(rng, _DISH)
    r, h = rng.uniform(0.07, 0.13), rng.uniform(0.05, 0.08)
    inner = [(r - 0.005, h), (r * 0.75, h * 0.5), (r * 0.4, 0.008), (0, 0.008)]
    b.lathe([(0, 0), (r * 0.45, 0), (r * 0.8, h * 0.5), (r, h), *inner], m, 20)
    state = _fill(b, rng, r * 0.88, h * 0.75, ("orange", "yellow", "green", "red"))
    inside = Surface((0, 0, 0.01), (r * 0.4, r * 0.4), 0.2, "inside", "bowl")
    return model("bowl", b, m, surfaces=[inside] if state == "empty" else [], has_front=False, states=(state,))


def plate(rng: Rng, b: MeshBuilder) -> ObjectModel:
    m = mat.ceramic(rng, _DISH)
    r = rng.uniform(0.09, 0.135)
    b.lathe([(0, 0), (r * 0.6, 0), (r, 0.02), (r, 0.024), (r * 0.62, 0.008), (0, 0.006)], m, 24)
    return model("plate", b, m, synonyms=("dish",), has_front=False)


def bottle(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A bottle with a label."""
    m = mat.plastic(rng, ("green", "brown", "blue", "white", "red"))
    r, h = rng.uniform(0.032, 0.045), rng.uniform(0.22, 0.32)
    b.lathe([(0, 0), (r, 0), (r, h * 0.6), (r * 0.35, h * 0.8), (r * 0.35, h), (0, h)], m, 16)
    label = any_picture(rng, "label", 20)
    b.lathe([(r + 0.0008, h * 0.18), (r + 0.0008, h * 0.48)], label, 16, collide=False)
    return model("bottle", b, m, has_front=False)


def wine(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A bottle of wine."""
    m = mat.Material((0.09, 0.16, 0.10), gloss=0.7, color_name="green", substance="glass")
    b.lathe([(0, 0), (0.038, 0), (0.038, 0.19), (0.014, 0.24), (0.014, 0.31), (0, 0.31)], m, 18)
    b.lathe([(0.0385, 0.05), (0.0385, 0.14)], any_picture(rng, "label", 20), 18, collide=False)
    return model("wine", b, m, synonyms=("wine bottle",), has_front=False)


def can(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A tin can."""
    m = mat.metal(rng, ("gray", "red", "blue", "green"))
    h = rng.uniform(0.1, 0.15)
    b.cylinder(0.033, h, (0, 0, h / 2), m, segments=16)
    label = any_picture(rng, "label", 20)
    b.lathe([(0.0335, h * 0.12), (0.0335, h * 0.88)], label, 16, collide=False)
    return model("can", b, m, synonyms=("tin",), has_front=False)


def jar(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A jar with a lid."""
    body = mat.plastic(rng, ("orange", "red", "brown", "green", "yellow"))
    lid = mat.metal(rng, ("gray", "red", "white"))
    r, h = rng.uniform(0.035, 0.05), rng.uniform(0.09, 0.15)
    b.lathe([(0, 0), (r, 0), (r, h * 0.8), (r * 0.8, h * 0.88), (0, h * 0.88)], body, 16)
    b.cylinder(r * 0.85, h * 0.12, (0, 0, h * 0.94), lid, segments=16)
    return model("jar", b, body, has_front=False)


def teapot(rng: Rng, b: MeshBuilder) -> ObjectModel:
    m = mat.ceramic(rng, _DISH)
    b.lathe([(0, 0), (0.05, 0), (0.085, 0.06), (0.06, 0.11), (0.03, 0.12), (0.012, 0.14), (0, 0.145)], m, 20)
    b.tube([(0.07, 0, 0.09), (0.12, 0, 0.1), (0.12, 0, 0.05), (0.075, 0, 0.035)], 0.007, m)
    b.rod((-0.07, 0, 0.05), (-0.13, 0, 0.11), 0.012, m)
    return model("teapot", b, m, has_front=False)


def pitcher(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A jug."""
    m = mat.ceramic(rng, _DISH)
    outline = [(0, 0), (0.055, 0), (0.07, 0.09), (0.045, 0.17), (0.055, 0.21), (0.05, 0.21), (0.04, 0.17), (0, 0.1)]
    b.lathe(outline, m, 18)
    b.tube([(0.05, 0, 0.18), (0.1, 0, 0.17), (0.1, 0, 0.07), (0.066, 0, 0.06)], 0.007, m)
    return model("pitcher", b, m, synonyms=("jug",), has_front=False)


def pot(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A cooking pot with a lid."""
    m = mat.metal(rng, ("gray", "black", "red"))
    r, h = rng.uniform(0.09, 0.13), rng.uniform(0.1, 0.16)
    b.lathe([(0, 0), (r, 0), (r, h), (0.02, h + 0.025), (0.02, h + 0.04), (0, h + 0.04)], m, 22)
    for s in (-1, 1):
        b.box((0.05, 0.05, 0.012), (s * (r + 0.02), 0, h * 0.8), mat.plastic(rng, ("black",)))
    return model("pot", b, m, synonyms=("cooking pot", "saucepan"), has_front=False)


def pan(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A frying pan."""
    m = mat.metal(rng, ("black", "gray"))
    r = rng.uniform(0.1, 0.14)
    b.lathe([(0, 0), (r * 0.85, 0), (r, 0.045), (r - 0.004, 0.045), (r * 0.84, 0.005), (0, 0.005)], m, 24)
    b.rod((r, 0, 0.04), (r + 0.18, 0, 0.055), 0.011, mat.plastic(rng, ("black", "brown")))
    return model("pan", b, m, synonyms=("frying pan", "skillet"), has_front=False)


def tray(rng: Rng, b: MeshBuilder) -> ObjectModel:
    m = mat.wood(rng) if rng.random() < 0.5 else mat.plastic(rng)
    w, d = rng.uniform(0.34, 0.46), rng.uniform(0.24, 0.32)
    b.box((w, d, 0.01), (0, 0, 0.005), m)
    for s in (-1, 1):
        b.box((0.01, d, 0.03), (s * (w - 0.01) / 2, 0, 0.025), m)
        b.box((w - 0.02, 0.01, 0.03), (0, s * (d - 0.01) / 2, 0.025), m)
    surface = Surface((0, 0, 0.01), (w / 2 - 0.02, d / 2 - 0.02), 0.4, "ontop", "dishes")
    return model("tray", b, m, surfaces=[surface], has_front=False)


def fruit(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """An apple, an orange or a banana."""
    kind = choice(rng, ("apple", "orange", "banana"))
    if kind == "banana":
        m = mat.plastic(rng, ("yellow",))
        arc = [(0.09 * np.cos(a), 0.09 * np.sin(a) - 0.06, 0.018) for a in np.linspace(0.5, 2.6, 7)]
        b.tube(arc, 0.017, m, 8)
    else:
        m = mat.plastic(rng, ("red", "green") if kind == "apple" else ("orange",))
        b.ellipsoid((0.038, 0.038, 0.035), (0, 0, 0.035), m, segments=16)
    return model("fruit", b, m, synonyms=(kind,), has_front=False, style=kind)


def bread(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A loaf."""
    m = mat.Material((0.68, 0.45, 0.22), "felt", 0, 0.1, color_name="brown")
    b.rounded_box((0.26, 0.12, 0.11), (0, 0, 0.055), m, 0.5)
    return model("bread", b, m, synonyms=("loaf of bread",), has_front=False)


def food(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A packet of food."""
    m = mat.paper(rng, ("yellow", "white", "beige"))
    face = any_picture(rng, "cover", 60)
    w, h = rng.uniform(0.12, 0.2), rng.uniform(0.2, 0.3)
    b.box((w, 0.06, h), (0, 0, h / 2), m, faces={"-y": face, "+y": face})
    return model("food", b, m, synonyms=("cereal box", "packet"))


def knife(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A kitchen knife."""
    b.box((0.025, 0.17, 0.003), (0, -0.06, 0.008), mat.Material((0.75, 0.75, 0.77), gloss=0.8))
    m = mat.wood(rng)
    b.box((0.022, 0.11, 0.016), (0, 0.08, 0.008), m)
    return model("knife", b, m, has_front=False)


def spoon(rng: Rng, b: MeshBuilder) -> ObjectModel:
    m = mat.metal(rng, ("gray",))
    b.ellipsoid((0.019, 0.03, 0.006), (0, -0.07, 0.006), m, segments=12)
    b.box((0.008, 0.14, 0.004), (0, 0.02, 0.006), m)
    return model("spoon", b, m, has_front=False)


def seasoning(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A salt or pepper shaker."""
    m = mat.ceramic(rng, ("white", "black", "gray"))
    b.lathe([(0, 0), (0.022, 0), (0.025, 0.06), (0.015, 0.085), (0, 0.09)], m, 14)
    return model("seasoning", b, m, synonyms=("salt shaker", "pepper shaker"), has_front=False)


def utensil(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A jar of spatulas and spoons."""
    m = mat.ceramic(rng, _DISH)
    b.lathe([(0, 0), (0.05, 0), (0.055, 0.14), (0.05, 0.14), (0.046, 0.01), (0, 0.01)], m, 16)
    for k in range(4):
        a = k * np.pi / 2 + 0.4
        tip = (0.06 * np.cos(a), 0.06 * np.sin(a), 0.28 + 0.02 * k)
        w = mat.wood(rng) if k % 2 else mat.metal(rng)
        b.rod((0.02 * np.cos(a), 0.02 * np.sin(a), 0.03), tip, 0.006, w, 6)
        b.ellipsoid((0.02, 0.02, 0.035), tip, w, segments=8)
    return model("utensil", b, m, synonyms=("cooking utensils",), has_front=False)
