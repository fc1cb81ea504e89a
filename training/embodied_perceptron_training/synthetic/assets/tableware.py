"""Dishes, pots, food."""

from __future__ import annotations

import numpy as np

from embodied_perceptron_training.synthetic import materials as mat
from embodied_perceptron_training.synthetic.assets.common import Rng, choice, model
from embodied_perceptron_training.synthetic.mesh import MeshBuilder
from embodied_perceptron_training.synthetic.model import ObjectModel, Surface

_DISH = ("white", "white", "blue", "green", "yellow", "red", "gray")


def _fill(b: MeshBuilder, rng: Rng, radius: float, z: float, colors: tuple[str, ...]) -> str:
    """A disc of liquid or food with even odds; returns the state word."""
    if rng.random() < 0.5:
        return "empty"
    b.lathe([(radius, z), (0, z)], (0, 0, 0), mat.plastic(rng, colors), 16, collide=False)
    return "filled"


def cup(rng: Rng) -> ObjectModel:
    """A mug with a handle, filled or empty."""
    b = MeshBuilder()
    m = mat.ceramic(rng, _DISH)
    r, h = rng.uniform(0.036, 0.045), rng.uniform(0.08, 0.105)
    b.lathe([(0, 0), (r * 0.85, 0), (r, h), (r - 0.004, h), (r * 0.85 - 0.004, 0.006), (0, 0.006)], (0, 0, 0), m, 16)
    b.tube(
        [(r * 0.9, 0, h * 0.8), (r + 0.03, 0, h * 0.75), (r + 0.03, 0, h * 0.35), (r * 0.88, 0, h * 0.25)], 0.005, m, 6
    )
    state = _fill(b, rng, r * 0.92, h * 0.8, ("brown",))
    return model("cup", b, m, synonyms=("mug", "coffee cup"), has_front=False, states=(state,))


def glass(rng: Rng) -> ObjectModel:
    """A drinking glass (opaque to the depth sensor here)."""
    b = MeshBuilder()
    m = mat.Material((0.78, 0.86, 0.88), gloss=0.9, substance="glass")
    r, h = rng.uniform(0.03, 0.038), rng.uniform(0.1, 0.15)
    b.lathe([(0, 0), (r * 0.8, 0), (r, h), (r - 0.003, h), (r * 0.8 - 0.003, 0.008), (0, 0.008)], (0, 0, 0), m, 16)
    state = _fill(b, rng, r * 0.9, h * 0.7, ("orange", "red", "blue"))
    return model("glass", b, m, synonyms=("drinking glass", "tumbler"), has_front=False, states=(state,))


def bowl(rng: Rng) -> ObjectModel:
    """A bowl, filled or empty."""
    b = MeshBuilder()
    m = mat.ceramic(rng, _DISH)
    r, h = rng.uniform(0.07, 0.13), rng.uniform(0.05, 0.08)
    b.lathe(
        [(0, 0), (r * 0.45, 0), (r * 0.8, h * 0.5), (r, h), (r - 0.005, h), (r * 0.75, h * 0.5),
         (r * 0.4, 0.008), (0, 0.008)],
        (0, 0, 0), m, 20,
    )  # fmt: skip
    state = _fill(b, rng, r * 0.88, h * 0.75, ("orange", "yellow", "green", "red"))
    inside = Surface((0, 0, 0.01), (r * 0.4, r * 0.4), 0.2, "inside", "bowl")
    return model("bowl", b, m, surfaces=[inside] if state == "empty" else [], has_front=False, states=(state,))


def plate(rng: Rng) -> ObjectModel:
    """A plate."""
    b = MeshBuilder()
    m = mat.ceramic(rng, _DISH)
    r = rng.uniform(0.09, 0.135)
    b.lathe([(0, 0), (r * 0.6, 0), (r, 0.02), (r, 0.024), (r * 0.62, 0.008), (0, 0.006)], (0, 0, 0), m, 24)
    return model("plate", b, m, synonyms=("dish",), has_front=False)


def bottle(rng: Rng) -> ObjectModel:
    """A bottle with a label."""
    b = MeshBuilder()
    m = mat.plastic(rng, ("green", "brown", "blue", "white", "red"))
    r, h = rng.uniform(0.032, 0.045), rng.uniform(0.22, 0.32)
    b.lathe([(0, 0), (r, 0), (r, h * 0.6), (r * 0.35, h * 0.8), (r * 0.35, h), (0, h)], (0, 0, 0), m, 16)
    label = mat.picture("label", int(rng.integers(20)))
    b.lathe([(r + 0.0008, h * 0.18), (r + 0.0008, h * 0.48)], (0, 0, 0), label, 16, collide=False)
    return model("bottle", b, m, has_front=False)


def wine(rng: Rng) -> ObjectModel:
    """A bottle of wine."""
    b = MeshBuilder()
    m = mat.Material((0.09, 0.16, 0.10), gloss=0.7, color_name="green", substance="glass")
    b.lathe([(0, 0), (0.038, 0), (0.038, 0.19), (0.014, 0.24), (0.014, 0.31), (0, 0.31)], (0, 0, 0), m, 18)
    b.lathe([(0.0385, 0.05), (0.0385, 0.14)], (0, 0, 0), mat.picture("label", int(rng.integers(20))), 18, collide=False)
    return model("wine", b, m, synonyms=("wine bottle",), has_front=False)


def can(rng: Rng) -> ObjectModel:
    """A tin can."""
    b = MeshBuilder()
    m = mat.metal(rng, ("gray", "red", "blue", "green"))
    h = rng.uniform(0.1, 0.15)
    b.cylinder(0.033, h, (0, 0, h / 2), m, segments=16)
    label = mat.picture("label", int(rng.integers(20)))
    b.lathe([(0.0335, h * 0.12), (0.0335, h * 0.88)], (0, 0, 0), label, 16, collide=False)
    return model("can", b, m, synonyms=("tin",), has_front=False)


def jar(rng: Rng) -> ObjectModel:
    """A jar with a lid."""
    b = MeshBuilder()
    body = mat.plastic(rng, ("orange", "red", "brown", "green", "yellow"))
    lid = mat.metal(rng, ("gray", "red", "white"))
    r, h = rng.uniform(0.035, 0.05), rng.uniform(0.09, 0.15)
    b.lathe([(0, 0), (r, 0), (r, h * 0.8), (r * 0.8, h * 0.88), (0, h * 0.88)], (0, 0, 0), body, 16)
    b.cylinder(r * 0.85, h * 0.12, (0, 0, h * 0.94), lid, segments=16)
    return model("jar", b, body, has_front=False)


def teapot(rng: Rng) -> ObjectModel:
    """A teapot."""
    b = MeshBuilder()
    m = mat.ceramic(rng, _DISH)
    b.lathe([(0, 0), (0.05, 0), (0.085, 0.06), (0.06, 0.11), (0.03, 0.12), (0.012, 0.14), (0, 0.145)], (0, 0, 0), m, 20)
    b.tube([(0.07, 0, 0.09), (0.12, 0, 0.1), (0.12, 0, 0.05), (0.075, 0, 0.035)], 0.007, m)
    b.rod((-0.07, 0, 0.05), (-0.13, 0, 0.11), 0.012, m)
    return model("teapot", b, m, has_front=False)


def pitcher(rng: Rng) -> ObjectModel:
    """A jug."""
    b = MeshBuilder()
    m = mat.ceramic(rng, _DISH)
    b.lathe([(0, 0), (0.055, 0), (0.07, 0.09), (0.045, 0.17), (0.055, 0.21), (0.05, 0.21), (0.04, 0.17), (0, 0.1)],
            (0, 0, 0), m, 18)  # fmt: skip
    b.tube([(0.05, 0, 0.18), (0.1, 0, 0.17), (0.1, 0, 0.07), (0.066, 0, 0.06)], 0.007, m)
    return model("pitcher", b, m, synonyms=("jug",), has_front=False)


def pot(rng: Rng) -> ObjectModel:
    """A cooking pot with a lid."""
    b = MeshBuilder()
    m = mat.metal(rng, ("gray", "black", "red"))
    r, h = rng.uniform(0.09, 0.13), rng.uniform(0.1, 0.16)
    b.lathe([(0, 0), (r, 0), (r, h), (0.02, h + 0.025), (0.02, h + 0.04), (0, h + 0.04)], (0, 0, 0), m, 22)
    for s in (-1, 1):
        b.box((0.05, 0.05, 0.012), (s * (r + 0.02), 0, h * 0.8), mat.plastic(rng, ("black",)))
    return model("pot", b, m, synonyms=("cooking pot", "saucepan"), has_front=False)


def pan(rng: Rng) -> ObjectModel:
    """A frying pan."""
    b = MeshBuilder()
    m = mat.metal(rng, ("black", "gray"))
    r = rng.uniform(0.1, 0.14)
    b.lathe([(0, 0), (r * 0.85, 0), (r, 0.045), (r - 0.004, 0.045), (r * 0.84, 0.005), (0, 0.005)], (0, 0, 0), m, 24)
    b.rod((r, 0, 0.04), (r + 0.18, 0, 0.055), 0.011, mat.plastic(rng, ("black", "brown")))
    return model("pan", b, m, synonyms=("frying pan", "skillet"), has_front=False)


def tray(rng: Rng) -> ObjectModel:
    """A tray."""
    b = MeshBuilder()
    m = mat.wood(rng) if rng.random() < 0.5 else mat.plastic(rng)
    w, d = rng.uniform(0.34, 0.46), rng.uniform(0.24, 0.32)
    b.box((w, d, 0.01), (0, 0, 0.005), m)
    for s in (-1, 1):
        b.box((0.01, d, 0.03), (s * (w - 0.01) / 2, 0, 0.025), m)
        b.box((w - 0.02, 0.01, 0.03), (0, s * (d - 0.01) / 2, 0.025), m)
    surface = Surface((0, 0, 0.01), (w / 2 - 0.02, d / 2 - 0.02), 0.4, "ontop", "dishes")
    return model("tray", b, m, surfaces=[surface], has_front=False)


def fruit(rng: Rng) -> ObjectModel:
    """An apple, an orange or a banana."""
    b = MeshBuilder()
    kind = choice(rng, ("apple", "orange", "banana"))
    if kind == "banana":
        m = mat.plastic(rng, ("yellow",))
        arc = [(0.09 * np.cos(a), 0.09 * np.sin(a) - 0.06, 0.018) for a in np.linspace(0.5, 2.6, 7)]
        b.tube(arc, 0.017, m, 8)
    else:
        m = mat.plastic(rng, ("red", "green") if kind == "apple" else ("orange",))
        b.ellipsoid((0.038, 0.038, 0.035), (0, 0, 0.035), m, segments=16)
    return model("fruit", b, m, synonyms=(kind,), has_front=False, style=kind)


def bread(rng: Rng) -> ObjectModel:
    """A loaf."""
    b = MeshBuilder()
    m = mat.Material((0.68, 0.45, 0.22), "felt", 0, 0.1, color_name="brown")
    b.rounded_box((0.26, 0.12, 0.11), (0, 0, 0.055), m, 0.5)
    return model("bread", b, m, synonyms=("loaf of bread",), has_front=False)


def food(rng: Rng) -> ObjectModel:
    """A packet of food."""
    b = MeshBuilder()
    m = mat.paper(rng, ("yellow", "white", "beige"))
    face = mat.picture("cover", int(rng.integers(60)))
    w, h = rng.uniform(0.12, 0.2), rng.uniform(0.2, 0.3)
    b.box((w, 0.06, h), (0, 0, h / 2), m, faces={"-y": face, "+y": face})
    return model("food", b, m, synonyms=("cereal box", "packet"))


def knife(rng: Rng) -> ObjectModel:
    """A kitchen knife."""
    b = MeshBuilder()
    b.box((0.025, 0.17, 0.003), (0, -0.06, 0.008), mat.Material((0.75, 0.75, 0.77), gloss=0.8))
    m = mat.wood(rng)
    b.box((0.022, 0.11, 0.016), (0, 0.08, 0.008), m)
    return model("knife", b, m, has_front=False)


def spoon(rng: Rng) -> ObjectModel:
    """A spoon."""
    b = MeshBuilder()
    m = mat.metal(rng, ("gray",))
    b.ellipsoid((0.019, 0.03, 0.006), (0, -0.07, 0.006), m, segments=12)
    b.box((0.008, 0.14, 0.004), (0, 0.02, 0.006), m)
    return model("spoon", b, m, has_front=False)


def seasoning(rng: Rng) -> ObjectModel:
    """A salt or pepper shaker."""
    b = MeshBuilder()
    m = mat.ceramic(rng, ("white", "black", "gray"))
    b.lathe([(0, 0), (0.022, 0), (0.025, 0.06), (0.015, 0.085), (0, 0.09)], (0, 0, 0), m, 14)
    return model("seasoning", b, m, synonyms=("salt shaker", "pepper shaker"), has_front=False)


def utensil(rng: Rng) -> ObjectModel:
    """A jar of spatulas and spoons."""
    b = MeshBuilder()
    m = mat.ceramic(rng, _DISH)
    b.lathe([(0, 0), (0.05, 0), (0.055, 0.14), (0.05, 0.14), (0.046, 0.01), (0, 0.01)], (0, 0, 0), m, 16)
    for k in range(4):
        a = k * np.pi / 2 + 0.4
        tip = (0.06 * np.cos(a), 0.06 * np.sin(a), 0.28 + 0.02 * k)
        w = mat.wood(rng) if k % 2 else mat.metal(rng)
        b.rod((0.02 * np.cos(a), 0.02 * np.sin(a), 0.03), tip, 0.006, w, 6)
        b.ellipsoid((0.02, 0.02, 0.035), tip, w, segments=8)
    return model("utensil", b, m, synonyms=("cooking utensils",), has_front=False)
