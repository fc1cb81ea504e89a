"""Lamps. Those that shine carry an emissive part; the home adds the light itself."""

from __future__ import annotations

import numpy as np

from embodied_perceptron_training.synthetic import materials as mat
from embodied_perceptron_training.synthetic.assets.common import Rng, choice, model
from embodied_perceptron_training.synthetic.mesh import MeshBuilder
from embodied_perceptron_training.synthetic.model import ObjectModel


def table_lamp(rng: Rng) -> ObjectModel:
    """A lamp with a shade."""
    b = MeshBuilder()
    base, shade = (
        mat.ceramic(rng, ("white", "blue", "green", "brown", "black")),
        mat.fabric(rng, ("white", "beige", "yellow")),
    )
    h, r = rng.uniform(0.32, 0.48), rng.uniform(0.1, 0.15)
    if choice(rng, ("vase", "rod")) == "vase":
        profile = [
            (0, 0),
            (0.06, 0),
            (0.075, h * 0.18),
            (0.04, h * 0.42),
            (0.015, h * 0.55),
            (0.012, h * 0.6),
            (0, h * 0.6),
        ]
        b.lathe(profile, (0, 0, 0), base)
    else:
        b.cylinder(0.07, 0.02, (0, 0, 0.01), base, segments=16)
        b.cylinder(0.012, h * 0.6, (0, 0, h * 0.3), base, segments=8)
    b.lathe([(r, h * 0.55), (r * 0.7, h)], (0, 0, 0), shade, 20)
    b.lathe([(0, h - 0.001), (r * 0.7, h)], (0, 0, 0), mat.glow(emission=0.7), 20)
    return model("lamp", b, shade, synonyms=("table lamp", "bedside lamp"), has_front=False, style="table")


def floor_lamp(rng: Rng) -> ObjectModel:
    """A standing lamp."""
    b = MeshBuilder()
    pole, shade = mat.metal(rng, ("black", "gray")), mat.fabric(rng, ("white", "beige", "yellow", "red"))
    h, r = rng.uniform(1.45, 1.7), rng.uniform(0.17, 0.23)
    b.cylinder(0.15, 0.025, (0, 0, 0.0125), pole, segments=20)
    b.cylinder(0.014, h - 0.15, (0, 0, (h - 0.15) / 2 + 0.02), pole, segments=8)
    b.lathe([(r, h - 0.3), (r * 0.75, h)], (0, 0, 0), shade, 24)
    b.lathe([(0, h - 0.001), (r * 0.75, h)], (0, 0, 0), mat.glow(emission=0.7), 24)
    return model("lamp", b, shade, synonyms=("floor lamp", "standing lamp"), has_front=False, style="floor")


def desk_lamp(rng: Rng) -> ObjectModel:
    """A jointed desk lamp."""
    b = MeshBuilder()
    m = mat.metal(rng, ("black", "gray", "white", "gray"))
    b.cylinder(0.08, 0.02, (0, 0, 0.01), m, segments=20)
    b.rod((0, 0, 0.02), (0.0, 0.1, 0.25), 0.008, m)
    b.rod((0, 0.1, 0.25), (0.0, -0.08, 0.42), 0.008, m)
    b.lathe([(0.075, 0.0), (0.05, 0.07), (0.02, 0.09), (0, 0.09)], (0, -0.1, 0.35), m, 16)
    return model("lamp", b, m, synonyms=("desk lamp", "reading lamp"), style="desk")


def ceiling_light(rng: Rng) -> ObjectModel:
    """A flat round light; its base is the lower side, its top touches the ceiling."""
    b = MeshBuilder()
    r = rng.uniform(0.15, 0.24)
    b.lathe([(0, 0), (r * 0.7, 0.01), (r, 0.05), (r, 0.08), (0, 0.08)], (0, 0, 0), mat.glow(emission=1.6), 24)
    return model("light", b, synonyms=("ceiling light", "ceiling lamp"), has_front=False)


def pendant(rng: Rng) -> ObjectModel:
    """A shade on a cord."""
    b = MeshBuilder()
    m = mat.metal(rng, ("black", "white", "gray"))
    r, cord = rng.uniform(0.16, 0.22), rng.uniform(0.45, 0.7)
    b.lathe([(r, 0.0), (r * 0.85, 0.1), (0.04, 0.2), (0, 0.2)], (0, 0, 0), m, 24)
    b.ellipsoid((0.04, 0.04, 0.05), (0, 0, 0.06), mat.glow(emission=1.8), segments=12)
    b.cylinder(0.006, cord, (0, 0, 0.2 + cord / 2), m, segments=6)
    return model("light", b, m, synonyms=("pendant lamp", "hanging lamp"), has_front=False, style="hanging")


def chandelier(rng: Rng) -> ObjectModel:
    """Arms with bulbs below the ceiling."""
    b = MeshBuilder()
    m = mat.metal(rng, ("yellow", "gray", "black"))
    arms = int(rng.integers(5, 9))
    b.cylinder(0.01, 0.55, (0, 0, 0.335), m, segments=8)
    b.ellipsoid((0.06, 0.06, 0.06), (0, 0, 0.06), m, segments=12)
    for a in 2 * np.pi * np.arange(arms) / arms:
        tip = (0.3 * np.cos(a), 0.3 * np.sin(a))
        b.tube([(0, 0, 0.06), (0.18 * np.cos(a), 0.18 * np.sin(a), 0.03), (*tip, 0.1)], 0.008, m, 6)
        b.ellipsoid((0.03, 0.03, 0.045), (*tip, 0.14), mat.glow(emission=1.8), segments=8)
    return model("chandelier", b, m, has_front=False)


def candle(rng: Rng) -> ObjectModel:
    """A candle."""
    b = MeshBuilder()
    m = mat.plastic(rng, ("white", "beige", "red", "yellow"))
    h = rng.uniform(0.08, 0.18)
    b.cylinder(rng.uniform(0.02, 0.035), h, (0, 0, h / 2), m, segments=14)
    b.cylinder(0.003, 0.015, (0, 0, h + 0.0075), mat.plastic(rng, ("black",)), segments=6)
    return model("candle", b, m, has_front=False)


def candlestick(rng: Rng) -> ObjectModel:
    """A metal holder with a candle in it."""
    b = MeshBuilder()
    m = mat.metal(rng, ("yellow", "gray"))
    h = rng.uniform(0.15, 0.25)
    b.lathe(
        [(0, 0), (0.055, 0), (0.05, 0.015), (0.012, 0.03), (0.012, h), (0.03, h + 0.01), (0, h + 0.012)], (0, 0, 0), m
    )
    b.cylinder(0.011, 0.14, (0, 0, h + 0.08), mat.plastic(rng, ("white", "red")), segments=10)
    return model("candlestick", b, m, has_front=False, synonyms=("candle holder",))
