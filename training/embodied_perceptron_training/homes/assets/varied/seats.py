"""Chairs, couches, stools and benches."""

from __future__ import annotations

import numpy as np

from embodied_perceptron_training.homes.assets.common import CORNERS, Rng, four_legs, model, top_surface
from embodied_perceptron_training.homes.assets.mesh import MeshBuilder, rotation
from embodied_perceptron_training.homes.assets.objects import ObjectModel
from embodied_perceptron_training.homes.rendering import materials as mat


def cantilever_chair(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A chair on a bent tube, without rear legs."""
    steel = mat.metal(rng, ("gray", "gray", "black"))
    cover = mat.leather(rng) if rng.random() < 0.5 else mat.fabric(rng, ("black", "gray", "beige", "brown", "blue"))
    w, d, h = rng.uniform(0.44, 0.54), rng.uniform(0.46, 0.56), rng.uniform(0.42, 0.48)
    top = h + rng.uniform(0.34, 0.5)
    r, lean = 0.012, rng.uniform(0.03, 0.12)
    for s in (-1, 1):
        x = s * (w / 2 - r)
        b.tube([(x, d / 2, r), (x, -d / 2 + 0.02, r), (x, -d / 2, 0.05), (x, -d / 2 + 0.03, h - 0.03),
                (x, d / 2 - 0.06, h - 0.03), (x, d / 2 - 0.06 + lean, top)], r, steel, 6)  # fmt: skip
    b.rod((-w / 2 + r, d / 2, r), (w / 2 - r, d / 2, r), r, steel, 6)
    b.rounded_box((w - 0.03, d - 0.08, 0.05), (0, -0.02, h - 0.01), cover, 0.25)
    b.rounded_box((w - 0.03, 0.04, top - h - 0.1), (0, d / 2 - 0.06 + lean * 0.6, (top + h + 0.1) / 2), cover, 0.25,
                  rotation("x", -lean / 0.4))  # fmt: skip
    if rng.random() < 0.5:
        for s in (-1, 1):
            b.box((0.04, d * 0.6, 0.02), (s * (w / 2 - 0.01), -0.02, h + 0.2), cover)
            b.rod((s * (w / 2 - r), -d * 0.3, h - 0.03), (s * (w / 2 - r), -d * 0.3, h + 0.19), r, steel, 6)
    surface = top_surface(w - 0.08, d - 0.2, h + 0.015, "seat", 0.4)
    return model("chair", b, cover, surfaces=[surface], synonyms=("cantilever chair", "seat"), style="cantilever")


def _bowl(b: MeshBuilder, w: float, d: float, z: float, back: float, material: mat.Material, thick: float) -> None:
    """A seat and back of one bent sheet, hollow in the middle."""
    u = np.linspace(-1, 1, 9)
    profile = np.array([(-0.5, 0.0), (-0.2, -0.02), (0.15, -0.025), (0.33, 0.03), (0.42, 0.2), (0.46, 0.5), (0.5, 1.0)])
    y = profile[:, 0] * d
    height = np.where(profile[:, 1] > 0.01, profile[:, 1] * back, profile[:, 1])
    narrow = np.array([0.86, 1.0, 1.0, 1.0, 0.98, 0.94, 0.72])
    x = u[None] * narrow[:, None] * w / 2
    hollow = (u[None] ** 2) * np.array([0.01, 0.03, 0.05, 0.08, 0.02, 0.0, 0.0])[:, None]
    forward = (u[None] ** 2) * np.array([0.0, 0.0, 0.0, 0.0, 0.05, 0.07, 0.05])[:, None]
    grid = np.stack([x, y[:, None] - forward, z + height[:, None] + hollow], -1)
    b.sheet(grid, material, thick)


def shell_chair(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A moulded shell on thin legs or on a star."""
    shell = mat.plastic(rng) if rng.random() < 0.7 else mat.wood(rng)
    w, d, h = rng.uniform(0.44, 0.54), rng.uniform(0.46, 0.54), rng.uniform(0.42, 0.47)
    _bowl(b, w, d, h, rng.uniform(0.34, 0.44), shell, 0.012)
    legs = mat.wood(rng) if rng.random() < 0.5 else mat.metal(rng)
    if rng.random() < 0.75:
        for sx, sy in CORNERS:
            b.rod((sx * w * 0.42, sy * d * 0.42, 0.01), (sx * w * 0.2, sy * d * 0.2, h - 0.03), 0.014, legs, 6)
    else:
        b.cylinder(0.02, h - 0.05, (0, 0, (h - 0.05) / 2 + 0.02), legs)
        for k in range(4):
            a = np.pi / 4 + k * np.pi / 2
            b.rod((0, 0, 0.05), (0.27 * np.cos(a), 0.27 * np.sin(a), 0.018), 0.014, legs, 6)
    surface = top_surface(w - 0.14, d - 0.24, h + 0.01, "seat", 0.35)
    return model("chair", b, shell, surfaces=[surface], synonyms=("shell chair", "seat"), style="shell")


def folding_chair(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A folding chair: crossed legs, thin boards."""
    frame = mat.metal(rng) if rng.random() < 0.6 else mat.wood(rng)
    board = mat.plastic(rng) if rng.random() < 0.5 else frame
    w, d, h, top = rng.uniform(0.4, 0.46), 0.42, rng.uniform(0.43, 0.46), rng.uniform(0.76, 0.85)
    for s in (-1, 1):
        b.rod((s * w / 2, -d / 2, 0.012), (s * w / 2, d / 2 - 0.02, top), 0.012, frame, 6)
        b.rod((s * (w / 2 - 0.03), d / 2, 0.012), (s * (w / 2 - 0.03), -d / 2 + 0.06, h - 0.02), 0.012, frame, 6)
    b.box((w - 0.06, d - 0.06, 0.018), (0, 0, h - 0.01), board)
    b.box((w - 0.03, 0.018, 0.16), (0, d / 2 - 0.05, top - 0.09), board, rotation("x", -0.35))
    surface = top_surface(w - 0.08, d - 0.18, h, "seat", 0.3)
    return model("chair", b, board, surfaces=[surface], synonyms=("folding chair", "seat"), style="folding")


def mesh_office_chair(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A swivel chair with a mesh back, a head rest and wide arms."""
    dark, net = mat.plastic(rng, ("black", "gray", "white")), mat.fabric(rng, ("black", "gray", "blue", "green"))
    h, back = rng.uniform(0.45, 0.54), rng.uniform(0.5, 0.65)
    for k in range(5):
        a = 2 * np.pi * k / 5 + np.pi / 2
        tip = (0.32 * np.cos(a), 0.32 * np.sin(a))
        b.box((0.31, 0.04, 0.03), (tip[0] / 2, tip[1] / 2, 0.09), dark, rotation("z", a))
        b.cylinder(0.03, 0.04, (*tip, 0.03), dark, axis="x", segments=8)
    b.cylinder(0.03, h - 0.18, (0, 0, 0.1 + (h - 0.18) / 2), mat.metal(rng, ("gray",)))
    b.rounded_box((0.5, 0.5, 0.08), (0, 0, h - 0.04), net, 0.3)
    u, v = np.meshgrid(np.linspace(-1, 1, 7), np.linspace(0, 1, 6))
    grid = np.stack(
        [u * (0.23 - 0.03 * v), 0.23 + 0.08 * v - 0.06 * u**2 - 0.05 * np.sin(v * np.pi), h + 0.1 + v * back], -1
    )
    b.sheet(grid, net, 0.015)
    b.box((0.06, 0.03, back + 0.1), (0, 0.3, h + back / 2), dark)
    if rng.random() < 0.5:
        b.rounded_box((0.26, 0.05, 0.14), (0, 0.27, h + back + 0.18), net, 0.3)
    for s in (-1, 1):
        b.box((0.08, 0.26, 0.03), (s * 0.3, 0.0, h + 0.22), dark)
        b.box((0.04, 0.06, 0.24), (s * 0.3, 0.05, h + 0.1), dark)
        b.box((0.08, 0.05, 0.03), (s * 0.26, 0.05, h - 0.02), dark)
    surface = top_surface(0.36, 0.3, h, "seat", 0.4)
    return model("chair", b, net, surfaces=[surface], synonyms=("office chair", "desk chair"), style="office")


def wing_chair(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A high upholstered chair with wings, on thin legs."""
    cover = mat.leather(rng) if rng.random() < 0.3 else mat.fabric(rng)
    w, d, h, top = rng.uniform(0.66, 0.78), rng.uniform(0.72, 0.82), 0.42, rng.uniform(1.0, 1.15)
    four_legs(b, w - 0.08, d - 0.08, 0.2, 0.035, mat.wood(rng), round_=True)
    b.rounded_box((w, d - 0.06, 0.24), (0, -0.02, 0.31), cover, 0.25)
    b.rounded_box((w, 0.16, top - 0.3), (0, d / 2 - 0.1, (top + 0.3) / 2), cover, 0.3)
    for s in (-1, 1):
        b.rounded_box((0.1, d * 0.75, 0.3), (s * (w / 2 - 0.05), 0.02, 0.46), cover, 0.35)
        b.rounded_box((0.09, 0.26, 0.42), (s * (w / 2 - 0.05), d / 2 - 0.22, top - 0.24), cover, 0.4)
    surface = top_surface(w - 0.26, d - 0.4, h + 0.01, "couch", 0.5, y=-0.1)
    return model("chair", b, cover, surfaces=[surface], synonyms=("wing chair", "armchair"), style="upholstered")


def barrel_chair(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A round easy chair with a curved back."""
    cover = mat.fabric(rng)
    r, h, top = rng.uniform(0.36, 0.44), rng.uniform(0.38, 0.44), rng.uniform(0.66, 0.8)
    b.cylinder(r * 0.95, h - 0.1, (0, 0, 0.06 + (h - 0.1) / 2), cover, segments=20)
    b.cylinder(r * 0.6, 0.06, (0, 0, 0.03), mat.wood(rng), segments=16)
    a = np.linspace(-0.35, np.pi + 0.35, 15)
    for inner, flip in ((r * 0.78, 1), (r, 1)):
        ring = np.stack([inner * np.cos(a), inner * np.sin(a)], -1)
        levels = np.linspace(h - 0.06, top, 3)
        grid = np.stack([np.concatenate([ring, np.full((len(a), 1), z)], 1) for z in levels])
        b.sheet(grid[:, ::flip], cover, 0.03)
    for k in range(len(a) - 1):
        m = (a[k] + a[k + 1]) / 2
        b.box((r * 0.24, r * (a[1] - a[0]) * 1.05, 0.03), (0.89 * r * np.cos(m), 0.89 * r * np.sin(m), top), cover,
              rotation("z", m), collide=False)  # fmt: skip
    surface = top_surface(r, r, h - 0.03, "couch", 0.4)
    return model("chair", b, cover, surfaces=[surface], synonyms=("tub chair", "armchair"), style="upholstered")


def corner_couch(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """An L-shaped couch."""
    cover = mat.leather(rng) if rng.random() < 0.3 else mat.fabric(rng)
    w, d = rng.uniform(2.1, 3.1), rng.uniform(0.82, 0.98)
    reach = rng.uniform(1.4, 2.1)
    h, back, side = rng.uniform(0.38, 0.46), rng.uniform(0.34, 0.44), (-1 if rng.random() < 0.5 else 1)
    foot = rng.uniform(0.03, 0.1)
    y0 = d / 2  # the wall
    base = h - 0.14 - foot
    b.box((w, d, base), (0, 0, foot + base / 2), cover)
    y = y0 - d - (reach - d) / 2
    b.box((d, reach - d, base), (side * (w - d) / 2, y, foot + base / 2), cover)
    for x in np.linspace(-w / 2 + 0.1, w / 2 - 0.1, 3):
        b.box((0.06, 0.06, foot), (x, y0 - 0.1, foot / 2), mat.wood(rng))
        b.box((0.06, 0.06, foot), (x, y0 - d + 0.1, foot / 2), mat.wood(rng))
    count = int(np.ceil((w - d) / 0.75))
    for k in range(count):
        wide = (w - d) / count
        x = -side * (w / 2 - wide * (k + 0.5))
        b.rounded_box((wide - 0.01, d - 0.2, 0.16), (x, -0.1, h - 0.08), cover, 0.25)
        b.rounded_box((wide - 0.02, 0.18, back), (x, y0 - 0.26, h + back / 2 - 0.02), cover, 0.35)
    corner = (side * (w - d) / 2, y0 - 0.2 - (reach - 0.2) / 2, h - 0.08)
    b.rounded_box((d - 0.2, reach - 0.2, 0.16), corner, cover, 0.2)
    b.box((w, 0.16, h + back - 0.08 - foot), (0, y0 - 0.08, foot + (h + back - 0.08 - foot) / 2), cover)
    tall = h + back - 0.12 - foot
    b.box((0.16, d - 0.16, tall), (side * (w / 2 - 0.08), -0.08, foot + tall / 2), cover)
    if rng.random() < 0.7:
        arm = rng.uniform(0.12, 0.2)
        b.box((arm, d - 0.1, h + 0.16 - foot), (-side * (w - arm) / 2, -0.05, foot + (h + 0.16 - foot) / 2), cover)
    seat = top_surface(w - d - 0.2, d - 0.45, h - 0.005, "couch", back, y=-0.14)
    return model("couch", b, cover, surfaces=[seat], synonyms=("corner sofa", "sectional sofa", "sofa"), style="corner")


def lounge_couch(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A couch on slim legs with thin arms, up to 2.6 m wide."""
    cover, legs = mat.fabric(rng) if rng.random() < 0.7 else mat.leather(rng), mat.metal(rng)
    w, d, h = rng.uniform(1.7, 2.6), rng.uniform(0.78, 0.9), rng.uniform(0.38, 0.44)
    four_legs(b, w - 0.1, d - 0.1, 0.16, 0.03, legs, round_=True)
    b.box((w, d, 0.1), (0, 0, 0.21), cover)
    b.rounded_box((w - 0.12, d - 0.1, 0.16), (0, -0.04, h - 0.08), cover, 0.15)
    back = rng.uniform(0.32, 0.42)
    b.rounded_box((w - 0.1, 0.2, back), (0, d / 2 - 0.12, h + back / 2 - 0.03), cover, 0.25, rotation("x", -0.12))
    for s in (-1, 1):
        b.rounded_box((0.09, d, 0.34), (s * (w / 2 - 0.045), 0, 0.43), cover, 0.3)
    seat = top_surface(w - 0.3, d - 0.42, h + 0.005, "couch", back, y=-0.12)
    return model("couch", b, cover, surfaces=[seat], synonyms=("sofa", "settee"), style="lounge")


def daybed(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A couch without arms: a mattress on a frame and rolls along the wall."""
    frame, cover = mat.wood(rng), mat.fabric(rng)
    w, d, h = rng.uniform(1.8, 2.1), rng.uniform(0.8, 0.95), rng.uniform(0.36, 0.44)
    four_legs(b, w - 0.04, d - 0.04, h - 0.2, 0.06, frame)
    b.box((w, d, 0.06), (0, 0, h - 0.19), frame)
    b.rounded_box((w - 0.02, d - 0.02, 0.18), (0, 0, h - 0.09), cover, 0.12)
    roll = mat.fabric(rng)
    for k in range(3):
        b.rounded_box((w / 3 - 0.02, 0.2, 0.36), ((k - 1) * w / 3, d / 2 - 0.12, h + 0.16), roll, 0.35)
    seat = top_surface(w - 0.2, d - 0.4, h + 0.005, "couch", 0.4, y=-0.15)
    return model("couch", b, cover, surfaces=[seat], synonyms=("daybed", "sofa"), style="daybed")


def block_stool(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A stool of three boards or one block."""
    m = mat.wood(rng) if rng.random() < 0.7 else mat.plastic(rng)
    h, w = rng.uniform(0.38, 0.5), rng.uniform(0.28, 0.4)
    if rng.random() < 0.5:
        b.lathe([(0, 0), (w / 2, 0), (w * 0.38, h * 0.5), (w / 2, h), (0, h)], m, 20)
    else:
        b.box((w, w, 0.03), (0, 0, h - 0.015), m)
        for s in (-1, 1):
            b.box((0.03, w - 0.02, h - 0.03), (s * (w / 2 - 0.03), 0, (h - 0.03) / 2), m)
    return model("stool", b, m, surfaces=[top_surface(w * 0.7, w * 0.7, h, "seat")], has_front=False,
                 synonyms=("low stool",))  # fmt: skip


def bar_stool(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A high stool on a central column, with a low back."""
    steel, cover = mat.metal(rng), mat.leather(rng)
    h = rng.uniform(0.64, 0.8)
    b.lathe([(0, 0), (0.2, 0), (0.19, 0.02), (0.03, 0.04), (0.03, h - 0.05), (0, h - 0.05)], steel, 20)
    b.rounded_box((0.4, 0.38, 0.08), (0, 0, h - 0.04), cover, 0.35)
    b.rounded_box((0.38, 0.06, 0.2), (0, 0.17, h + 0.1), cover, 0.35)
    return model("stool", b, cover, surfaces=[top_surface(0.24, 0.2, h, "seat", 0.3)], synonyms=("bar stool",))


def slatted_bench(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A bench of slats with a back."""
    wood, legs = mat.wood(rng), mat.metal(rng)
    w, d, h = rng.uniform(1.1, 1.7), 0.42, 0.45
    for y in np.linspace(-d / 2 + 0.05, d / 2 - 0.08, 4):
        b.box((w, 0.07, 0.025), (0, y, h - 0.0125), wood)
    for z in (0.62, 0.74):
        b.box((w, 0.022, 0.08), (0, d / 2 - 0.01, z), wood)
    for s in (-1, 1):
        x = s * (w / 2 - 0.15)
        front, rear = -d / 2 + 0.03, d / 2 - 0.03
        b.tube([(x, front, 0.012), (x, front, h - 0.03), (x, rear, h - 0.03), (x, d / 2, 0.012)], 0.018, legs, 6)
        b.rod((x, d / 2 - 0.03, h - 0.03), (x, d / 2 + 0.01, 0.78), 0.018, legs, 6)
    surfaces = [top_surface(w - 0.1, d - 0.14, h, "seat", 0.3)]
    return model("bench", b, wood, surfaces=surfaces, synonyms=("garden bench",))
