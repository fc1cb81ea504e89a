"""Tables, desks, stands and a kitchen island."""

from __future__ import annotations

import numpy as np

from embodied_perceptron_training.homes.assets.common import Rng, carcass, four_legs, model, top_surface
from embodied_perceptron_training.homes.assets.mesh import MeshBuilder, rotation
from embodied_perceptron_training.homes.assets.objects import ObjectModel, Surface
from embodied_perceptron_training.homes.rendering import materials as mat

_GLASS = mat.Material((0.62, 0.74, 0.74), gloss=0.9, substance="glass")


def _trestles(b: MeshBuilder, w: float, d: float, h: float, m: mat.Material) -> None:
    for s in (-1, 1):
        x = s * (w / 2 - min(0.35, 0.18 * w))
        for t in (-1, 1):
            b.rod((x - 0.14, t * (d / 2 - 0.08), 0.015), (x, t * (d / 2 - 0.12), h), 0.018, m, 6)
            b.rod((x + 0.14, t * (d / 2 - 0.08), 0.015), (x, t * (d / 2 - 0.12), h), 0.018, m, 6)
        b.box((0.05, d - 0.14, 0.05), (x, 0, h - 0.025), m)


def long_table(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A table for eight or more people, up to 3.5 m long."""
    top = mat.wood(rng) if rng.random() < 0.8 else mat.stone(rng)
    w, d, h, t = rng.uniform(1.8, 3.5), rng.uniform(0.8, 1.15), rng.uniform(0.72, 0.77), rng.uniform(0.025, 0.06)
    b.box((w, d, t), (0, 0, h - t / 2), top)
    style = int(rng.integers(3))
    frame = top if rng.random() < 0.5 else mat.metal(rng)
    if style == 0:
        _trestles(b, w, d, h - t, frame)
    elif style == 1:
        for s in (-1, 1):
            b.box((0.06, d * 0.8, h - t), (s * (w / 2 - 0.25), 0, (h - t) / 2), frame)
        b.box((w - 0.5, 0.04, 0.12), (0, 0, h * 0.45), frame)
    else:
        four_legs(b, w - 0.06, d - 0.06, h - t, 0.08, frame)
        if w > 2.6:
            for s in (-1, 1):
                b.box((0.06, 0.06, h - t), (0, s * (d / 2 - 0.08), (h - t) / 2), frame)
    return model("table", b, top, surfaces=[top_surface(w, d, h, "dining")], has_front=False,
                 synonyms=("dining table", "long table"), style="dining", shape="rectangular")  # fmt: skip


def pedestal_table(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A round table on a central foot."""
    top = mat.wood(rng) if rng.random() < 0.6 else mat.stone(rng)
    foot = top if rng.random() < 0.5 else mat.metal(rng)
    r, h = rng.uniform(0.42, 0.75), rng.uniform(0.7, 0.77)
    b.lathe([(0, h - 0.03), (r * 0.97, h - 0.03), (r, h - 0.01), (r, h), (0, h)], top, 32)
    outline = [(0, 0), (r * 0.55, 0), (r * 0.5, 0.03), (0.07, 0.12), (0.05, 0.4), (0.12, h - 0.03), (0, h - 0.03)]
    b.lathe(outline, foot, 20)
    return model("table", b, top, surfaces=[top_surface(r * 1.3, r * 1.3, h, "dining")], has_front=False,
                 synonyms=("dining table", "round table"), style="dining", shape="round")  # fmt: skip


def glass_table(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A glass top on a metal frame."""
    frame = mat.metal(rng)
    w, d, h = rng.uniform(1.2, 1.9), rng.uniform(0.75, 1.0), rng.uniform(0.72, 0.76)
    b.box((w, d, 0.012), (0, 0, h - 0.006), _GLASS)
    four_legs(b, w - 0.16, d - 0.16, h - 0.012, 0.05, frame)
    for s in (-1, 1):
        b.box((w - 0.26, 0.04, 0.04), (0, s * (d / 2 - 0.105), h - 0.032), frame)
    return model("table", b, frame, surfaces=[top_surface(w, d, h, "dining")], has_front=False,
                 synonyms=("glass table", "dining table"), style="dining", shape="rectangular")  # fmt: skip


def block_table(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A low solid coffee table."""
    m = mat.wood(rng) if rng.random() < 0.7 else mat.stone(rng)
    w, d, h = rng.uniform(0.6, 1.3), rng.uniform(0.5, 0.8), rng.uniform(0.26, 0.42)
    b.box((w - 0.08, d - 0.08, h - 0.05), (0, 0, (h - 0.05) / 2), m)
    b.box((w, d, 0.05), (0, 0, h - 0.025), m)
    return model("table", b, m, surfaces=[top_surface(w, d, h, "coffee")], has_front=False,
                 synonyms=("coffee table", "low table"), style="low")  # fmt: skip


def nested_table(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A round low table on hairpin legs."""
    top, steel = mat.wood(rng) if rng.random() < 0.7 else _GLASS, mat.metal(rng, ("black", "gray"))
    r, h = rng.uniform(0.32, 0.5), rng.uniform(0.35, 0.48)
    b.cylinder(r, 0.022, (0, 0, h - 0.011), top, segments=28)
    for k in range(3):
        a = 2 * np.pi * k / 3
        for turn in (-0.12, 0.12):
            b.rod((r * 0.85 * np.cos(a), r * 0.85 * np.sin(a), 0.008),
                  (r * 0.7 * np.cos(a + turn), r * 0.7 * np.sin(a + turn), h - 0.02), 0.006, steel, 5)  # fmt: skip
    return model("table", b, top, surfaces=[top_surface(r * 1.3, r * 1.3, h, "coffee")], has_front=False,
                 synonyms=("coffee table", "round table"), style="low", shape="round")  # fmt: skip


def c_table(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A small table with a foot that fits below a couch."""
    m, top = mat.metal(rng), mat.wood(rng)
    w, d, h = rng.uniform(0.35, 0.5), rng.uniform(0.28, 0.4), rng.uniform(0.5, 0.66)
    b.box((w, d, 0.02), (0, 0, h - 0.01), top)
    for s in (-1, 1):
        b.tube([(-w / 2 + 0.02, s * (d / 2 - 0.02), h - 0.03), (-w / 2 + 0.02, s * (d / 2 - 0.02), 0.014),
                (w / 2 - 0.03, s * (d / 2 - 0.02), 0.014)], 0.012, m, 6)  # fmt: skip
    return model("table", b, top, surfaces=[top_surface(w, d, h, "bedside")], has_front=False,
                 synonyms=("side table", "end table"), style="side")  # fmt: skip


def trestle_desk(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A desk on two trestles."""
    top, frame = mat.wood(rng), mat.wood(rng) if rng.random() < 0.5 else mat.metal(rng)
    w, d, h = rng.uniform(1.2, 2.0), rng.uniform(0.6, 0.8), rng.uniform(0.71, 0.77)
    b.box((w, d, 0.028), (0, 0, h - 0.014), top)
    _trestles(b, w, d, h - 0.028, frame)
    return model("desk", b, top, surfaces=[top_surface(w, d, h, "desk")], synonyms=("writing desk", "work table"))


def lift_desk(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A desk on two columns, sometimes at standing height."""
    top, steel = mat.wood(rng), mat.metal(rng, ("black", "gray", "white"))
    w, d = rng.uniform(1.2, 1.8), rng.uniform(0.68, 0.82)
    h = rng.uniform(0.68, 0.78) if rng.random() < 0.75 else rng.uniform(0.95, 1.12)
    b.box((w, d, 0.025), (0, 0, h - 0.0125), top)
    for s in (-1, 1):
        b.box((0.08, d - 0.08, 0.03), (s * (w / 2 - 0.25), 0, 0.015), steel)
        b.box((0.08, 0.06, h - 0.055), (s * (w / 2 - 0.25), 0.05, 0.03 + (h - 0.055) / 2), steel)
    return model("desk", b, top, surfaces=[top_surface(w, d, h, "desk")], synonyms=("standing desk", "workstation"))


def work_bench(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A heavy workbench with a shelf below and a vice."""
    wood = mat.wood(rng, ("oak", "pine", "birch"))
    w, d, h = rng.uniform(1.4, 2.4), rng.uniform(0.6, 0.8), rng.uniform(0.82, 0.92)
    b.box((w, d, 0.07), (0, 0, h - 0.035), wood)
    four_legs(b, w - 0.1, d - 0.08, h - 0.07, 0.09, wood)
    b.box((w - 0.14, d - 0.12, 0.03), (0, 0, 0.22), wood)
    steel = mat.metal(rng, ("gray", "blue", "green"))
    b.box((0.16, 0.12, 0.12), (w / 2 - 0.2, -d / 2 - 0.02, h - 0.02), steel)
    below = Surface((0, 0, 0.235), (w / 2 - 0.15, d / 2 - 0.12), h - 0.4, "inside", "tools")
    surfaces = [top_surface(w, d, h, "tools"), below]
    return model("table", b, wood, surfaces=surfaces, synonyms=("workbench",), style="work")


def console_stand(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A television stand of two open boards on metal feet."""
    m = mat.wood(rng)
    w, d, h = rng.uniform(1.0, 2.0), rng.uniform(0.36, 0.46), rng.uniform(0.38, 0.6)
    for z in (h - 0.02, h * 0.4):
        b.box((w, d, 0.04), (0, 0, z), m)
    four_legs(b, w - 0.04, d - 0.04, h - 0.04, 0.04, mat.metal(rng))
    inside = Surface((0, 0, h * 0.4 + 0.02), (w / 2 - 0.08, d / 2 - 0.05), h * 0.6 - 0.1, "inside", "media")
    return model("stand", b, m, surfaces=[top_surface(w, d, h, "tv"), inside], synonyms=("tv stand", "media console"),
                 style="low")  # fmt: skip


def drum_stand(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A round bedside stand, or a cube without doors."""
    m = mat.wood(rng) if rng.random() < 0.6 else mat.metal(rng, ("white", "black", "red", "gray"))
    w, h = rng.uniform(0.34, 0.46), rng.uniform(0.4, 0.6)
    if rng.random() < 0.5:
        b.cylinder(w / 2, h, (0, 0, h / 2), m, segments=24)
        top = top_surface(w * 0.65, w * 0.65, h, "bedside")
    else:
        carcass(b, w, w * 0.9, h, m)
        top = top_surface(w, w * 0.9, h, "bedside")
    return model("stand", b, m, surfaces=[top], synonyms=("nightstand", "bedside table"))


def rolling_island(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A kitchen island on four posts with two open shelves."""
    m, top = mat.wood(rng), mat.wood(rng, ("oak", "walnut", "birch"))
    w, d, h = rng.uniform(0.9, 1.5), rng.uniform(0.55, 0.75), 0.9
    four_legs(b, w, d, h - 0.05, 0.07, m)
    b.box((w + 0.04, d + 0.04, 0.05), (0, 0, h - 0.025), top)
    for z in (0.2, 0.5):
        b.box((w - 0.08, d - 0.08, 0.025), (0, 0, z), m, rotation("z", 0.0))
    return model("kitchen island", b, top, surfaces=[top_surface(w, d, h, "counter")], has_front=False,
                 synonyms=("island",))  # fmt: skip
