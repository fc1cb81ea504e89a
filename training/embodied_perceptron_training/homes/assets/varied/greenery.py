"""Plants."""

from __future__ import annotations

import numpy as np

from embodied_perceptron_training.homes.assets.common import Rng, model
from embodied_perceptron_training.homes.assets.mesh import MeshBuilder, rotation
from embodied_perceptron_training.homes.assets.objects import ObjectModel
from embodied_perceptron_training.homes.rendering import materials as mat


def _leaf(rng: Rng) -> mat.Material:
    g = rng.uniform(0.3, 0.55)
    rgb = (g * rng.uniform(0.4, 0.8), g, g * rng.uniform(0.3, 0.6))
    return mat.Material(rgb, "leaf", int(rng.integers(3)), 0.2, color_name="green")


def _planter(b: MeshBuilder, rng: Rng, r: float, h: float) -> None:
    m = mat.ceramic(rng, ("white", "brown", "orange", "gray", "black", "blue"))
    if rng.random() < 0.3:
        m = mat.colored(rng, "wicker", ("brown", "beige"), texture="wicker", scale_m=0.3)
    low = rng.uniform(0.65, 1.0)
    b.lathe([(0, 0), (r * low, 0), (r, h), (r - 0.015, h), (r - 0.015, h - 0.02), (0, h - 0.02)], m, 20)


def _blade(
    b: MeshBuilder, start: np.ndarray, a: float, lean: float, length: float, wide: float, droop: float, m: mat.Material
) -> None:
    """A long leaf that bends down."""
    s = np.linspace(0, 1, 6)
    angle = lean + droop * s
    out = np.concatenate([[0], np.cumsum(np.sin(angle[:-1]))]) * length / 5
    up = np.concatenate([[0], np.cumsum(np.cos(angle[:-1]))]) * length / 5
    half = wide * np.array([0.35, 0.9, 1.0, 0.8, 0.5, 0.08]) / 2
    along = np.stack([out * np.cos(a), out * np.sin(a), up], -1) + start
    across = np.array([-np.sin(a), np.cos(a), 0.0])
    b.sheet(np.stack([along - half[:, None] * across, along, along + half[:, None] * across], 1), m, 0.002)


def tall_plant(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A plant of 1.2 to 2.2 m with stems and tufts of long leaves."""
    leaf, bark = _leaf(rng), mat.Material((0.42, 0.32, 0.22), "wood", 2, 0.3, color_name="brown")
    pot_h, r, h = rng.uniform(0.25, 0.42), rng.uniform(0.15, 0.24), rng.uniform(1.2, 2.2)
    _planter(b, rng, r, pot_h)
    for _ in range(int(rng.integers(1, 4))):
        foot = np.array([*(rng.uniform(-0.4, 0.4, 2) * r), pot_h - 0.03])
        top = foot + np.array([*rng.normal(0, 0.08, 2), (h - pot_h) * rng.uniform(0.5, 0.8)])
        b.rod(foot, top, rng.uniform(0.012, 0.025), bark, 6)
        for _ in range(int(rng.integers(10, 20))):
            _blade(b, top, rng.uniform(0, 2 * np.pi), rng.uniform(0.1, 0.8), rng.uniform(0.3, 0.6),
                   rng.uniform(0.025, 0.06), rng.uniform(0.5, 1.6), leaf)  # fmt: skip
    return model("plant", b, leaf, synonyms=("potted plant", "tall plant", "houseplant"), has_front=False, size="large")


def palm(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """Fronds that rise from the pot and bend outwards."""
    leaf = _leaf(rng)
    pot_h, r = rng.uniform(0.22, 0.36), rng.uniform(0.14, 0.22)
    _planter(b, rng, r, pot_h)
    for _ in range(int(rng.integers(9, 18))):
        a, lean, length = rng.uniform(0, 2 * np.pi), rng.uniform(0.05, 0.6), rng.uniform(0.6, 1.3)
        wide, droop = rng.uniform(0.08, 0.16), rng.uniform(0.4, 1.2)
        _blade(b, np.array([0, 0, pot_h - 0.03]), a, lean, length, wide, droop, leaf)
    return model("plant", b, leaf, synonyms=("palm", "potted plant"), has_front=False)


def round_tree(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A stem with a crown of many small leaves."""
    leaf, bark = _leaf(rng), mat.Material((0.42, 0.32, 0.22), "wood", 1, 0.3, color_name="brown")
    pot_h, r, h = rng.uniform(0.2, 0.36), rng.uniform(0.13, 0.2), rng.uniform(0.9, 1.8)
    _planter(b, rng, r, pot_h)
    crown = rng.uniform(0.22, 0.42)
    b.rod((0, 0, pot_h - 0.03), (0, 0, h - crown), 0.018, bark, 6)
    for _ in range(int(rng.integers(40, 70))):
        d = rng.normal(0, 1, 3)
        d *= rng.uniform(0.5, 1.0) * crown / np.linalg.norm(d)
        R = rotation("z", rng.uniform(0, 6.28)) @ rotation("x", rng.normal(0, 0.6))
        b.ellipsoid((0.045, 0.07, 0.008), np.array([0, 0, h - crown]) + d, leaf, R, 8)
    return model("plant", b, leaf, synonyms=("potted plant", "small tree"), has_front=False)


def hanging_plant(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A pot on cords below the ceiling, with leaves that hang down."""
    leaf = _leaf(rng)
    cord = mat.fabric(rng, ("white", "beige", "brown"))
    r, pot_h, drop = rng.uniform(0.09, 0.15), rng.uniform(0.12, 0.18), rng.uniform(0.3, 0.7)
    _planter(b, rng, r, pot_h)
    top = pot_h + drop
    for k in range(3):
        a = 2 * np.pi * k / 3
        b.rod((r * np.cos(a), r * np.sin(a), pot_h), (0, 0, top), 0.004, cord, 4)
    b.cylinder(0.02, 0.015, (0, 0, top), cord, segments=8)
    for _ in range(int(rng.integers(8, 16))):
        a = rng.uniform(0, 2 * np.pi)
        start = np.array([r * 0.8 * np.cos(a), r * 0.8 * np.sin(a), pot_h])
        _blade(b, start, a, rng.uniform(0.6, 1.4), rng.uniform(0.25, 0.6), rng.uniform(0.03, 0.07),
               rng.uniform(1.2, 2.2), leaf)  # fmt: skip
    return model("plant", b, leaf, synonyms=("hanging plant",), has_front=False, style="hanging")


def cactus(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A cactus of a few columns."""
    leaf = _leaf(rng)
    scale = rng.uniform(0.5, 1.6)
    _planter(b, rng, 0.07 * scale, 0.09 * scale)
    for _ in range(int(rng.integers(1, 4))):
        x, y = rng.uniform(-0.025, 0.025, 2) * scale
        h = rng.uniform(0.08, 0.28) * scale
        b.ellipsoid((0.03 * scale, 0.03 * scale, h / 2 + 0.01), (x, y, 0.07 * scale + h / 2), leaf, segments=12)
    return model("plant", b, leaf, synonyms=("cactus", "small plant"), has_front=False, size="small")


def grass_pot(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A small pot with long thin leaves or herbs."""
    leaf = _leaf(rng)
    r, h = rng.uniform(0.05, 0.09), rng.uniform(0.07, 0.13)
    _planter(b, rng, r, h)
    for _ in range(int(rng.integers(10, 22))):
        a, lean, length = rng.uniform(0, 2 * np.pi), rng.uniform(0, 0.7), rng.uniform(0.1, 0.28)
        _blade(b, np.array([0, 0, h - 0.02]), a, lean, length, rng.uniform(0.01, 0.03), rng.uniform(0.2, 1.5), leaf)
    return model("plant", b, leaf, synonyms=("small plant", "herbs"), has_front=False, size="small")
