"""Rare large things: the tail of the class distribution."""

from __future__ import annotations

import numpy as np

from embodied_perceptron_training.synthetic import materials as mat
from embodied_perceptron_training.synthetic.assets.common import Rng, four_legs, model, top_surface
from embodied_perceptron_training.synthetic.mesh import MeshBuilder, rotation
from embodied_perceptron_training.synthetic.model import ObjectModel


def piano(rng: Rng) -> ObjectModel:
    """An upright piano."""
    b = MeshBuilder()
    m = mat.wood(rng, ("ebony", "walnut", "cherry"))
    b.box((1.45, 0.35, 1.2), (0, 0.12, 0.6), m)
    b.box((1.45, 0.26, 0.12), (0, -0.18, 0.68), m)
    b.box((1.3, 0.15, 0.02), (0, -0.22, 0.75), mat.Material((0.95, 0.94, 0.9)))
    for x in np.linspace(-0.6, 0.6, 25):
        if round((x + 0.6) / 0.05) % 7 not in (2, 6):
            b.box((0.022, 0.09, 0.015), (x, -0.19, 0.767), mat.Material((0.06, 0.06, 0.06)), collide=False)
    for s in (-1, 1):
        b.box((0.07, 0.07, 0.62), (s * 0.66, -0.26, 0.31), m)
    return model(
        "piano", b, m, surfaces=[top_surface(1.4, 0.3, 1.2, "decor", 0.6, 0.03, 0.12)], synonyms=("upright piano",)
    )


def bicycle(rng: Rng) -> ObjectModel:
    """A bicycle standing along a wall (it stands along its local x)."""
    b = MeshBuilder()
    m, dark = mat.metal(rng, ("red", "blue", "green", "black", "white")), mat.plastic(rng, ("black",))
    for s in (-1, 1):
        rim = [(s * 0.52 + 0.33 * np.cos(a), 0, 0.345 + 0.33 * np.sin(a)) for a in np.linspace(0, 2 * np.pi, 25)]
        b.tube(rim, 0.015, dark, 6)
        for a in np.linspace(0, np.pi, 5)[:-1]:
            d = np.array([0.32 * np.cos(a), 0, 0.32 * np.sin(a)])
            b.rod(np.array([s * 0.52, 0, 0.345]) - d, np.array([s * 0.52, 0, 0.345]) + d, 0.002, dark, 4)
    seat, bar, crank = (-0.18, 0, 0.82), (0.4, 0, 0.88), (-0.05, 0, 0.32)
    for p, q in ((seat, crank), (seat, bar), (bar, crank), (crank, (-0.52, 0, 0.345)), (seat, (-0.52, 0, 0.345)),
                 (bar, (0.52, 0, 0.345)), (bar, (0.37, 0, 0.98)), (seat, (-0.2, 0, 0.92))):  # fmt: skip
        b.rod(p, q, 0.016, m, 8)
    b.rod((0.37, -0.27, 0.98), (0.37, 0.27, 0.98), 0.013, dark)
    b.rounded_box((0.26, 0.15, 0.06), (-0.21, 0, 0.94), dark, 0.4)
    return model("bicycle", b, m, synonyms=("bike",), has_front=False)


def treadmill(rng: Rng) -> ObjectModel:
    """A treadmill."""
    b = MeshBuilder()
    m = mat.metal(rng, ("black", "gray"))
    dark = mat.plastic(rng, ("black",))
    b.box((0.75, 1.5, 0.14), (0, 0, 0.07), m)
    b.box((0.5, 1.35, 0.01), (0, 0, 0.145), dark)
    for s in (-1, 1):
        b.rod((s * 0.34, 0.6, 0.12), (s * 0.34, 0.68, 1.2), 0.03, m)
        b.rod((s * 0.34, 0.66, 0.95), (s * 0.34, 0.25, 0.93), 0.022, m)
    b.box((0.75, 0.1, 0.28), (0, 0.66, 1.22), m, rotation("x", -0.3), faces={"-y": mat.picture("screen", 4)})
    return model("treadmill", b, m)


def exercise_bike(rng: Rng) -> ObjectModel:
    """A stationary bike."""
    b = MeshBuilder()
    m, dark = mat.metal(rng, ("gray", "black", "red")), mat.plastic(rng, ("black",))
    for y in (-0.4, 0.4):
        b.rod((-0.25, y, 0.03), (0.25, y, 0.03), 0.03, dark)
    b.rod((0, -0.4, 0.05), (0, 0.4, 0.05), 0.03, m)
    b.cylinder(0.22, 0.06, (0, -0.25, 0.33), m, axis="x", segments=24)
    b.rod((0, 0.15, 0.05), (0, 0.22, 0.85), 0.028, m)
    b.rounded_box((0.24, 0.28, 0.08), (0, 0.22, 0.88), dark, 0.4)
    b.rod((0, -0.25, 0.3), (0, -0.35, 1.1), 0.03, m)
    b.rod((-0.25, -0.33, 1.1), (0.25, -0.33, 1.1), 0.016, dark)
    return model("excercise equipment", b, m, synonyms=("exercise bike", "stationary bike"))


def ironing_board(rng: Rng) -> ObjectModel:
    """An ironing board, annotated as a stand."""
    b = MeshBuilder()
    m, cover = mat.metal(rng, ("gray", "white")), mat.fabric(rng)
    b.box((0.36, 1.0, 0.03), (0, 0, 0.86), cover)
    b.lathe([(0.18, -0.015), (0.18, 0.015), (0, 0.015)], (0, -0.5, 0.86), cover, 24)
    for s in (-1, 1):
        b.rod((0.1, s * 0.42, 0.015), (0.1, -s * 0.35, 0.85), 0.014, m)
        b.rod((-0.15, s * 0.42, 0.015), (0.15, s * 0.42, 0.015), 0.014, m)
    return model(
        "stand", b, cover, surfaces=[top_surface(0.3, 0.8, 0.875, "laundry", 0.5)], synonyms=("ironing board",)
    )


def cart(rng: Rng) -> ObjectModel:
    """A serving trolley with two trays."""
    b = MeshBuilder()
    m = mat.metal(rng) if rng.random() < 0.5 else mat.wood(rng)
    w, d, h = 0.6, 0.4, 0.78
    four_legs(b, w, d, h, 0.025, m)
    for z in (0.25, h - 0.06):
        b.box((w - 0.05, d - 0.05, 0.02), (0, 0, z), m)
    for sx in (-1, 1):
        for sy in (-1, 1):
            wheel = (sx * (w / 2 - 0.05), sy * (d / 2 - 0.04), 0.03)
            b.cylinder(0.03, 0.02, wheel, mat.plastic(rng, ("black",)), axis="x")
    low = top_surface(w - 0.08, d - 0.08, 0.26, "kitchen", 0.42)
    top = top_surface(w - 0.08, d - 0.08, h - 0.05, "dining", 0.5)
    return model("cart", b, m, surfaces=[low, top], has_front=False, synonyms=("trolley", "serving cart"))


def water_cooler(rng: Rng) -> ObjectModel:
    """A water dispenser with a bottle on top."""
    b = MeshBuilder()
    m = mat.plastic(rng, ("white", "gray"))
    b.box((0.3, 0.3, 0.95), (0, 0, 0.475), m)
    blue = mat.Material((0.45, 0.65, 0.85), gloss=0.7, color_name="blue", substance="plastic")
    b.lathe([(0.05, 0), (0.13, 0.05), (0.13, 0.33), (0, 0.36)], (0, 0, 0.95), blue, 20)
    for s in (-1, 1):
        b.box((0.03, 0.04, 0.03), (s * 0.06, -0.17, 0.75), mat.plastic(rng, ("red",) if s > 0 else ("blue",)))
    return model("water cooler", b, m, synonyms=("water dispenser",))


def divider(rng: Rng) -> ObjectModel:
    """A folding screen of three panels."""
    b = MeshBuilder()
    m = mat.wood(rng)
    cloth = mat.fabric(rng, ("white", "beige"))
    for k, (x, angle) in enumerate(((-0.42, 0.45), (0.0, -0.45), (0.42, 0.45))):
        R = rotation("z", angle)
        b.box((0.46, 0.025, 1.6), (x, 0.0, 0.82), m if k == 1 else cloth, R)
    return model("divider", b, m, synonyms=("folding screen", "room divider"))
