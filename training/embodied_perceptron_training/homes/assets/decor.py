"""Decoration and things on walls."""

from __future__ import annotations

import numpy as np

from embodied_perceptron_training.homes.assets.common import MIRROR, Rng, any_picture, choice, model, top_surface
from embodied_perceptron_training.homes.assets.mesh import MeshBuilder, rotation
from embodied_perceptron_training.homes.assets.objects import ObjectModel
from embodied_perceptron_training.homes.rendering import materials as mat
from embodied_perceptron_training.homes.rendering.materials import MOTIFS


def picture(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A framed picture of a motif; its back touches the wall at y = +depth / 2."""
    motif = choice(rng, MOTIFS)
    frame = mat.wood(rng)
    w, h = rng.uniform(0.35, 0.9), rng.uniform(0.35, 0.7)
    edge = 0.03
    for s in (-1, 1):
        b.box((edge, 0.025, h), (s * (w - edge) / 2, 0, h / 2), frame)
        b.box((w - 2 * edge, 0.025, edge), (0, 0, h / 2 + s * (h - edge) / 2), frame)
    face = any_picture(rng, motif, 60)
    b.box((w - 2 * edge, 0.012, h - 2 * edge), (0, 0.0, h / 2), frame, faces={"-y": face})
    return model("picture", b, frame, synonyms=("painting", "wall art"), depiction=motif)


def poster(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A poster on the wall."""
    motif = choice(rng, MOTIFS)
    w, h = rng.uniform(0.4, 0.6), rng.uniform(0.55, 0.85)
    b.box((w, 0.004, h), (0, 0, h / 2), mat.paper(rng), faces={"-y": any_picture(rng, motif, 60)})
    return model("poster", b, synonyms=("print",), depiction=motif)


def map_(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A map on the wall."""
    w, h = rng.uniform(0.8, 1.2), rng.uniform(0.5, 0.75)
    b.box((w, 0.006, h), (0, 0, h / 2), mat.paper(rng), faces={"-y": any_picture(rng, "map", 20)})
    return model("map", b, synonyms=("world map",))


def mirror(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A wall mirror: a bright plain face without reflections."""
    frame = mat.metal(rng)
    w, h = rng.uniform(0.45, 0.8), rng.uniform(0.6, 1.1)
    b.box((w, 0.025, h), (0, 0, h / 2), frame)
    b.box((w - 0.04, 0.004, h - 0.04), (0, -0.0145, h / 2), MIRROR)
    return model("mirror", b, frame, synonyms=("wall mirror", "looking glass"))


def clock(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A round wall clock."""
    rim = mat.plastic(rng, ("black", "white", "red", "blue", "brown"))
    r = rng.uniform(0.12, 0.18)
    b.cylinder(r, 0.035, (0, 0, r), rim, axis="y", segments=28)
    face = any_picture(rng, "clock", 30)
    b.box((r * 1.38, 0.004, r * 1.38), (0, -0.0195, r), face)
    return model("clock", b, rim, synonyms=("wall clock",))


def calendar(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A calendar on the wall."""
    b.box((0.3, 0.008, 0.42), (0, 0, 0.21), mat.paper(rng), faces={"-y": any_picture(rng, "calendar", 20)})
    return model("calendar", b, synonyms=("wall calendar",))


def board(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A whiteboard."""
    rim = mat.metal(rng, ("gray",))
    w, h = rng.uniform(0.9, 1.6), rng.uniform(0.7, 1.0)
    b.box((w, 0.02, h), (0, 0, h / 2), rim, faces={"-y": mat.Material((0.95, 0.95, 0.96), gloss=0.4)})
    b.box((w * 0.5, 0.05, 0.02), (0, -0.03, 0.02), rim)
    return model("board", b, rim, synonyms=("whiteboard",))


def blackboard(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A blackboard in a wooden frame."""
    frame = mat.wood(rng)
    w, h = rng.uniform(0.9, 1.5), rng.uniform(0.6, 0.9)
    slate = mat.Material((0.13, 0.19, 0.16), "felt", 2, 0.8)
    b.box((w, 0.025, h), (0, 0, h / 2), frame)
    b.box((w - 0.06, 0.004, h - 0.06), (0, -0.0145, h / 2), slate)
    return model("blackboard", b, frame, synonyms=("chalkboard",))


def leaning_frame(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A large leaning picture frame."""
    motif = choice(rng, MOTIFS)
    wood = mat.wood(rng)
    w, h = rng.uniform(0.45, 0.7), rng.uniform(0.6, 0.9)
    b.box((w, 0.022, h), (0, 0, h / 2), wood)
    b.box((w - 0.08, 0.004, h - 0.08), (0, -0.013, h / 2), wood, faces={"-y": any_picture(rng, motif, 60)})
    return model("frame", b, wood, synonyms=("picture frame",), depiction=motif)


def photo_frame(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A small picture frame."""
    motif = choice(rng, MOTIFS)
    wood = mat.wood(rng)
    w, h = rng.uniform(0.13, 0.2), rng.uniform(0.16, 0.24)
    b.box((w, 0.014, h), (0, 0, h / 2), wood, faces={"-y": any_picture(rng, motif, 60)})
    return model("frame", b, wood, synonyms=("photo frame",), depiction=motif)


def plant(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A pot plant."""
    pot = mat.ceramic(rng, ("white", "brown", "orange", "gray", "black"))
    rgb = (0.22, rng.uniform(0.40, 0.52), 0.18)
    leaf = mat.Material(rgb, "leaf", int(rng.integers(3)), 0.2, color_name="green")
    h = rng.uniform(0.6, 1.3)
    r = rng.uniform(0.11, 0.16)
    _pot(b, pot, r, 0.24)
    for _ in range(int(rng.integers(14, 24))):
        a, lean = rng.uniform(0, 2 * np.pi), rng.uniform(0.15, 0.75)
        length = rng.uniform(0.45, 1.0) * (h - 0.24)
        middle = np.array([np.sin(lean) * np.cos(a), np.sin(lean) * np.sin(a), np.cos(lean)]) * length
        start = np.array([0.0, 0.0, 0.2])
        b.rod(start, start + middle, 0.006, leaf, 4)
        R = rotation("z", a) @ rotation("y", lean)
        size = rng.uniform(0.07, 0.12)
        b.ellipsoid((size * 0.5, size * 0.9, size * 0.12), start + middle, leaf, R @ rotation("y", -0.9), 8)
    return model("plant", b, leaf, synonyms=("potted plant", "houseplant"), has_front=False)


def _pot(b: MeshBuilder, m: mat.Material, r: float, h: float) -> None:
    b.lathe([(0, 0), (r * 0.72, 0), (r, h), (r - 0.015, h), (r - 0.015, h - 0.02)], m, 20)
    b.lathe([(r - 0.015, h - 0.02), (0, h - 0.02)], mat.Material((0.2, 0.14, 0.1), "carpet", 0, 0.2), 20)


def small_plant(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A small pot plant for shelves and desks."""
    pot = mat.ceramic(rng, ("white", "blue", "orange", "gray", "yellow"))
    leaf = mat.Material((0.25, 0.5, 0.22), "leaf", 1, 0.2, color_name="green")
    _pot(b, pot, 0.06, 0.09)
    for _ in range(10):
        a, lean = rng.uniform(0, 2 * np.pi), rng.uniform(0.1, 0.9)
        d = np.array([np.sin(lean) * np.cos(a), np.sin(lean) * np.sin(a), np.cos(lean)])
        R = rotation("z", a) @ rotation("y", lean)
        b.ellipsoid((0.02, 0.014, 0.05), np.array([0, 0, 0.09]) + d * 0.07, leaf, R, 8)
    return model("plant", b, leaf, synonyms=("small plant", "potted plant"), has_front=False, size="small")


def flowerpot(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """An empty flowerpot."""
    m = mat.ceramic(rng, ("brown", "orange", "white", "gray"))
    _pot(b, m, rng.uniform(0.08, 0.14), rng.uniform(0.14, 0.2))
    return model("flowerpot", b, m, synonyms=("planter",), has_front=False)


def vase(rng: Rng, b: MeshBuilder) -> ObjectModel:
    m = mat.ceramic(rng, ("white", "blue", "green", "red", "black", "yellow"))
    h, r = rng.uniform(0.18, 0.34), rng.uniform(0.05, 0.08)
    upper = [(r * 0.85, h * 0.6), (r * 0.4, h * 0.85), (r * 0.55, h), (r * 0.45, h)]
    b.lathe([(0, 0), (r * 0.6, 0), (r, h * 0.35), *upper], m, 20)
    return model("vase", b, m, has_front=False)


def statue(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A figure on a plinth."""
    m = mat.stone(rng)
    b.box((0.1, 0.1, 0.04), (0, 0, 0.02), m)
    b.lathe([(0, 0.04), (0.035, 0.04), (0.025, 0.12), (0.04, 0.2), (0.015, 0.24), (0, 0.24)], m, 16)
    b.ellipsoid((0.026, 0.026, 0.034), (0, 0, 0.265), m, segments=12)
    return model("statue", b, m, synonyms=("figurine", "sculpture"))


def globe(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A globe on a foot."""
    m = mat.metal(rng)
    b.cylinder(0.08, 0.02, (0, 0, 0.01), m, segments=20)
    b.cylinder(0.01, 0.06, (0, 0, 0.05), m)
    b.ellipsoid((0.12,) * 3, (0, 0, 0.19), mat.picture("map", 3), segments=24)
    return model("globe", b, m, has_front=False)


def trophy(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A cup with handles."""
    m = mat.metal(rng, ("yellow", "gray"))
    b.box((0.09, 0.09, 0.05), (0, 0, 0.025), mat.stone(rng))
    b.lathe([(0.012, 0.05), (0.012, 0.12), (0.05, 0.16), (0.062, 0.26), (0.055, 0.26)], m, 16)
    for s in (-1, 1):
        b.tube([(s * 0.055, 0, 0.24), (s * 0.09, 0, 0.23), (s * 0.085, 0, 0.19), (s * 0.05, 0, 0.17)], 0.005, m, 6)
    return model("trophy", b, m, synonyms=("cup",))


def fireplace(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A fireplace with a mantel."""
    m = mat.stone(rng)
    soot = mat.Material((0.08, 0.07, 0.07))
    w, d, h = rng.uniform(1.2, 1.5), 0.4, rng.uniform(1.0, 1.15)
    for s in (-1, 1):
        b.box((0.28, d, h - 0.06), (s * (w / 2 - 0.16), 0, (h - 0.06) / 2), m)
    b.box((w - 0.6, d, 0.25), (0, 0, h - 0.185), m)
    b.box((w - 0.6, 0.04, h - 0.31), (0, d / 2 - 0.02, (h - 0.31) / 2), soot)
    b.box((w, d + 0.08, 0.06), (0, -0.04, h - 0.03), m)
    return model("fireplace", b, m, surfaces=[top_surface(w, d, h, "decor")], synonyms=("mantelpiece",))
