"""Unlabelled objects: papers, cloths, bags, tools, cables and others of random shape and texture.

They are rendered, block the way and fill occupancy cells (as "object"), but have no label, so that training contains
small shapes that are no known object. ``size_m`` is about their largest extent.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron_training.homes.assets.common import Rng, model
from embodied_perceptron_training.homes.assets.mesh import MeshBuilder, rotation
from embodied_perceptron_training.homes.assets.objects import ObjectModel
from embodied_perceptron_training.homes.rendering import materials as mat

UNLABELLED = "object"  # EmbodiedScan's category without a class
Shape = Callable[[Rng, MeshBuilder, float], ObjectModel]
_TILES = ("plain", "plain", "wood", "marble", "weave", "felt", "carpet", "stripes", "brushed", "wallpaper", "leaf",
          "checker")  # fmt: skip
_PICTURES = ("cover", "label", "text", "map", "calendar", "abstract pattern", "flower", "heart", "fish")


def any_material(rng: Rng) -> mat.Material:
    """A random colour, tile and gloss."""
    rgb = rng.uniform(0.05, 0.95, 3) if rng.random() < 0.6 else np.full(3, rng.uniform(0.04, 0.95))
    r, g, b = (float(c) for c in rgb)
    gloss = float(rng.choice([0.0, 0.0, 0.2, 0.5, 0.8]))
    tile = _TILES[int(rng.integers(len(_TILES)))]
    return mat.Material((r, g, b), tile, int(rng.integers(4)), rng.uniform(0.05, 0.5), gloss)


def any_face(rng: Rng) -> mat.Material:
    """A printed picture or a plain material."""
    if rng.random() < 0.5:
        return mat.picture(_PICTURES[int(rng.integers(len(_PICTURES)))], int(rng.integers(60)))
    return any_material(rng)


def _thing(b: MeshBuilder) -> ObjectModel:
    return model(UNLABELLED, b, has_front=False)


def _noise(rng: Rng, shape: tuple[int, int], waves: int = 4) -> F64:
    """Smooth random heights in about [-1, 1] over a grid."""
    v, u = np.meshgrid(np.linspace(0, 1, shape[0]), np.linspace(0, 1, shape[1]), indexing="ij")
    total = np.zeros(shape)
    for k in range(waves):
        f, phase = rng.uniform(0.5, 1.0 + k, 2) * 2 * np.pi, rng.uniform(0, 2 * np.pi, 2)
        total += np.sin(f[0] * u + phase[0]) * np.sin(f[1] * v + phase[1]) / (k + 1)
    return total / 1.5


def papers(rng: Rng, b: MeshBuilder, size_m: float) -> ObjectModel:
    """Sheets of paper on top of each other."""
    for k in range(int(rng.integers(1, 7))):
        w, d = size_m * rng.uniform(0.35, 0.7), size_m * rng.uniform(0.45, 0.9)
        at = (*rng.normal(0, 0.12 * size_m, 2), 0.001 + 0.0025 * k)
        b.box((w, d, 0.002), at, mat.paper(rng), rotation("z", rng.uniform(-3, 3)), faces={"+z": any_face(rng)})
    return _thing(b)


def cloth(rng: Rng, b: MeshBuilder, size_m: float) -> ObjectModel:
    """A dropped cloth with folds."""
    n = 13
    s = np.linspace(-0.5, 0.5, n)
    x, y = np.meshgrid(s * size_m, s * size_m * rng.uniform(0.5, 1.0))
    heap = np.exp(-(x**2 + y**2) / (0.3 * size_m) ** 2)
    z = size_m * (0.16 * np.abs(_noise(rng, (n, n), 5)) + rng.uniform(0.03, 0.22) * heap) + 0.004
    wobble = 0.1 * size_m
    grid = np.stack([x + wobble * _noise(rng, (n, n)), y + wobble * _noise(rng, (n, n)), z], -1)
    b.sheet(grid, mat.fabric(rng) if rng.random() < 0.5 else any_material(rng), 0.004)
    return _thing(b)


def lump(rng: Rng, b: MeshBuilder, size_m: float) -> ObjectModel:
    """A round lump, like dough, a stone or crumpled foil."""
    rows, columns = 9, 13
    phi = np.linspace(-np.pi / 2, np.pi / 2, rows)[:, None]
    theta = np.linspace(-np.pi, np.pi, columns)[None]
    half = size_m / 2 * rng.uniform(0.35, 1.0, 3)
    bumps = 1 + rng.uniform(0.05, 0.3) * _noise(rng, (rows, columns), 5)
    bumps[:, -1] = bumps[:, 0]
    bumps[0], bumps[-1] = bumps[0].mean(), bumps[-1].mean()
    d = np.stack(np.broadcast_arrays(np.cos(phi) * np.cos(theta), np.cos(phi) * np.sin(theta), np.sin(phi)), -1)
    p = d * bumps[..., None] * half
    p[..., 2] -= p[..., 2].min()
    b.sheet(p, any_material(rng), 0.001)
    return _thing(b)


def sack(rng: Rng, b: MeshBuilder, size_m: float) -> ObjectModel:
    """An open or closed bag with or without handles."""
    m = any_material(rng)
    around, along = 17, 8
    v = np.linspace(0, 1, along)
    profile = np.interp(v, [0, 0.1, 0.45, 0.8, 1], [0.6, 0.95, 1.0, rng.uniform(0.3, 0.9), rng.uniform(0.12, 0.8)])
    theta = np.linspace(-np.pi, np.pi, around)
    crumple = 1 + 0.12 * _noise(rng, (along, around), 5)
    crumple[:, -1] = crumple[:, 0]
    rx, ry, h = size_m * rng.uniform(0.25, 0.5), size_m * rng.uniform(0.15, 0.4), size_m * rng.uniform(0.6, 1.0)
    grid = np.stack([rx * profile[:, None] * np.cos(theta) * crumple, ry * profile[:, None] * np.sin(theta) * crumple,
                     np.broadcast_to((v * h)[:, None], (along, around))], -1)  # fmt: skip
    b.sheet(grid, m, 0.003)
    if rng.random() < 0.5:
        for s in (-1, 1):
            w = rx * 0.4
            b.tube([(-w, s * ry * 0.4, h * 0.95), (-w * 0.6, s * ry * 0.3, h * 1.2), (w * 0.6, s * ry * 0.3, h * 1.2),
                    (w, s * ry * 0.4, h * 0.95)], 0.006, m, 5)  # fmt: skip
    return _thing(b)


def tool(rng: Rng, b: MeshBuilder, size_m: float) -> ObjectModel:
    """A handle with a head, like a hammer, a whisk, a drill or a brush."""
    r = size_m * rng.uniform(0.02, 0.06)
    b.rod((-size_m / 2, 0, r * 1.2), (size_m * 0.25, 0, r * 1.2), r, any_material(rng), 8)
    head = any_material(rng)
    kind = int(rng.integers(4))
    at = (size_m * 0.32, 0, max(r * 1.2, 0.012))
    if kind == 0:
        b.box((size_m * 0.14, size_m * rng.uniform(0.15, 0.4), max(0.02, 2 * r)), at, head)
    elif kind == 1:
        b.cylinder(size_m * rng.uniform(0.05, 0.14), 0.02, (at[0], 0, 0.012), head)
    elif kind == 2:
        for y in np.linspace(-0.06, 0.06, 4) * size_m:
            b.rod((size_m * 0.25, y / 2, r), (size_m / 2, y, r), 0.004, head, 5)
    else:
        b.rounded_box((size_m * 0.3, size_m * 0.16, size_m * 0.12), (at[0], 0, size_m * 0.06), head, 0.4)
        b.rod((at[0], 0, 0.02), (at[0] + 0.02, -size_m * 0.3, 0.02), r, head, 6)
    return _thing(b)


def tangle(rng: Rng, b: MeshBuilder, size_m: float) -> ObjectModel:
    """A cable, a hose or a rope in loops."""
    m = any_material(rng)
    r = max(0.003, size_m * rng.uniform(0.008, 0.02))
    turns, n = rng.uniform(1.0, 4.0), 26
    t = np.linspace(0, 1, n)
    radius = size_m / 2 * (0.55 + 0.4 * np.sin(2 * np.pi * rng.uniform(0.5, 3) * t + rng.uniform(0, 6)))
    a = 2 * np.pi * turns * t
    z = r + np.abs(np.sin(3 * a)) * 2.5 * r
    path = np.stack([radius * np.cos(a), radius * np.sin(a) * rng.uniform(0.5, 1), z], -1)
    for p, q in pairwise(path):
        b.rod(p, q, r, m, 5)
    if rng.random() < 0.5:
        b.box((size_m * 0.14, size_m * 0.1, size_m * 0.07), (*path[-1][:2], size_m * 0.035), any_material(rng))
    return _thing(b)


def wrapping(rng: Rng, b: MeshBuilder, size_m: float) -> ObjectModel:
    """A printed packet."""
    w, d, h = size_m * rng.uniform(0.4, 1.0), size_m * rng.uniform(0.2, 0.8), size_m * rng.uniform(0.08, 0.7)
    m = any_material(rng)
    b.box((w, d, h), (0, 0, h / 2), m, faces={"-y": any_face(rng), "+z": any_face(rng), "+x": any_face(rng)})
    if rng.random() < 0.4:
        b.rounded_box((w * 0.9, d * 0.9, h * 0.5), (0, 0, h + h * 0.15), any_material(rng), 0.5)
    return _thing(b)


def gadget(rng: Rng, b: MeshBuilder, size_m: float) -> ObjectModel:
    """A few stacked random bodies, like an unknown appliance."""
    z = 0.0
    for _ in range(int(rng.integers(2, 5))):
        w, d, h = size_m * rng.uniform(0.15, 0.8), size_m * rng.uniform(0.15, 0.6), size_m * rng.uniform(0.1, 0.4)
        x, y = rng.normal(0, 0.08 * size_m, 2)
        kind, m = int(rng.integers(4)), any_material(rng)
        if kind == 0:
            R = rotation("z", rng.uniform(-1, 1))
            b.box((w, d, h), (x, y, z + h / 2), m, R, faces={"-y": any_face(rng)})
        elif kind == 1:
            b.cylinder(min(w, d) / 2, h, (x, y, z + h / 2), m, top_radius=min(w, d) / 2 * rng.uniform(0.2, 1.0))
        elif kind == 2:
            b.ellipsoid((w / 2, d / 2, h / 2), (x, y, z + h / 2), m, segments=12)
        else:
            b.rounded_box((w, d, h), (x, y, z + h / 2), m, rng.uniform(0.2, 0.6))
        z += h * rng.uniform(0.7, 1.0)
    return _thing(b)


def heap(rng: Rng, b: MeshBuilder, size_m: float) -> ObjectModel:
    """A heap of several small bodies."""
    for _ in range(int(rng.integers(4, 10))):
        s = size_m * rng.uniform(0.1, 0.3)
        at = (*rng.normal(0, 0.2 * size_m, 2), s * rng.uniform(0.3, 0.8))
        R = rotation("z", rng.uniform(-3, 3)) @ rotation("x", rng.uniform(-0.5, 0.5))
        if rng.random() < 0.5:
            b.box(s * rng.uniform(0.3, 1.0, 3), at, any_material(rng), R)
        else:
            b.ellipsoid(s / 2 * rng.uniform(0.4, 1.0, 3), at, any_material(rng), R, 10)
    return _thing(b)


def frame(rng: Rng, b: MeshBuilder, size_m: float) -> ObjectModel:
    """A frame of rods, like a drying rack."""
    m, r = any_material(rng), max(0.004, size_m * 0.012)
    points = rng.uniform(-0.5, 0.5, (int(rng.integers(5, 9)), 3)) * size_m * np.array([1.0, 0.7, 0.0])
    points[:, 2] = rng.uniform(0.05, 0.8, len(points)) * size_m
    for p in points:
        b.rod((p[0], p[1], r), p, r, m, 5)
    for p, q in pairwise(points):
        if np.linalg.norm(q - p) > 3 * r:
            b.rod(p, q, r, m, 5)
    return _thing(b)


def organic(rng: Rng, b: MeshBuilder, size_m: float) -> ObjectModel:
    """A bunch of branches, dried flowers or feathers."""
    m, tip = any_material(rng), any_material(rng)
    for _ in range(int(rng.integers(5, 12))):
        d = np.array([*rng.normal(0, 0.5, 2), rng.uniform(0.4, 1.0)])
        end = d / np.linalg.norm(d) * size_m * rng.uniform(0.5, 1.0)
        b.rod((0, 0, 0.005), end, 0.004, m, 4)
        s = size_m * rng.uniform(0.03, 0.1)
        b.ellipsoid((s, s * 0.6, s * 0.3), end, tip, rotation("x", rng.uniform(-1, 1)), 8)
    return _thing(b)


SHAPES: tuple[Shape, ...] = (papers, cloth, lump, sack, tool, tangle, wrapping, gadget, heap, frame, organic)
UNSEEN_SHAPES: frozenset[str] = frozenset({"clutter.heap", "clutter.organic"})
