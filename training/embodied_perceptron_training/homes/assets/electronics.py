"""Devices and lamps. Lamps have an emissive part; the home adds the light source."""

from __future__ import annotations

import numpy as np

from embodied_perceptron_training.homes.assets.common import Rng, choice, model, screen, top_surface
from embodied_perceptron_training.homes.assets.mesh import MeshBuilder, rotation
from embodied_perceptron_training.homes.assets.objects import Joint, ObjectModel, part_from
from embodied_perceptron_training.homes.rendering import materials as mat

_DARK = mat.Material((0.09, 0.09, 0.10), gloss=0.4, color_name="black", substance="plastic")


def tv(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A television on a foot."""
    w = rng.uniform(0.85, 1.3)
    h = w * 0.58
    b.box((w, 0.05, h), (0, 0, h / 2 + 0.06), _DARK, faces={"-y": screen(rng)})
    b.box((0.06, 0.04, 0.06), (0, 0, 0.03), _DARK)
    b.box((w * 0.45, 0.2, 0.012), (0, 0, 0.006), _DARK)
    return model("tv", b, _DARK, synonyms=("television", "television set"))


def wall_tv(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A television on the wall."""
    w = rng.uniform(0.9, 1.3)
    b.box((w, 0.05, w * 0.57), (0, 0, w * 0.285), _DARK, faces={"-y": screen(rng)})
    return model("tv", b, _DARK, synonyms=("television", "flat screen"), style="wall")


def monitor(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A computer monitor on a stand."""
    w = rng.uniform(0.46, 0.62)
    h = w * 0.6
    b.box((w, 0.035, h), (0, 0, h / 2 + 0.12), _DARK, faces={"-y": screen(rng)})
    b.box((0.05, 0.03, 0.14), (0, 0.02, 0.08), _DARK)
    b.box((0.22, 0.17, 0.012), (0, 0.01, 0.006), _DARK)
    return model("monitor", b, _DARK, synonyms=("computer screen", "display"))


def keyboard(rng: Rng, b: MeshBuilder) -> ObjectModel:
    b.box((rng.uniform(0.38, 0.45), 0.14, 0.022), (0, 0, 0.011), _DARK, faces={"+z": mat.picture("keys", 0)})
    return model("keyboard", b, _DARK, synonyms=("computer keyboard",))


def mouse(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A computer mouse."""
    m = mat.plastic(rng, ("black", "white", "gray"))
    b.rounded_box((0.062, 0.11, 0.036), (0, 0, 0.018), m, 0.6)
    return model("mouse", b, m, synonyms=("computer mouse",))


def laptop(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A laptop with a hinged lid."""
    m = mat.metal(rng, ("gray", "black", "white"))
    w, d = rng.uniform(0.31, 0.37), rng.uniform(0.22, 0.26)
    b.box((w, d, 0.016), (0, 0, 0.008), m, faces={"+z": mat.picture("keys", 1)})
    lid = MeshBuilder()
    lid.box((w, d, 0.008), (0, 0, 0.021), m, faces={"-z": screen(rng)})
    joint = Joint("revolute", (-1.0, 0.0, 0.0), (0.0, d / 2, 0.018), 1.95)
    return model("laptop", b, m, [part_from(lid, "lid", joint)], synonyms=("notebook computer",))


def computer(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A tower computer."""
    m = mat.metal(rng, ("black", "gray", "white"))
    h = rng.uniform(0.38, 0.46)
    b.box((0.19, 0.42, h), (0, 0, h / 2), m)
    b.box((0.15, 0.004, 0.04), (0, -0.212, h - 0.06), _DARK)
    b.cylinder(0.012, 0.006, (0.05, -0.213, h - 0.14), mat.glow((0.4, 0.7, 1.0), 0.6), axis="y", segments=10)
    return model("computer", b, m, synonyms=("computer tower", "desktop computer", "pc"))


def printer(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A printer with a paper tray."""
    m = mat.plastic(rng, ("white", "gray", "black"))
    w, d, h = rng.uniform(0.4, 0.5), rng.uniform(0.34, 0.42), rng.uniform(0.18, 0.28)
    b.box((w, d, h), (0, 0, h / 2), m)
    b.box((w * 0.7, 0.12, 0.01), (0, -d / 2 - 0.05, h * 0.3), _DARK)
    b.box((w * 0.6, 0.02, 0.12), (0, d / 2 - 0.03, h + 0.05), mat.paper(rng, ("white",)), R=rotation("x", -0.3))
    b.box((w * 0.25, 0.004, 0.04), (w * 0.3, -d / 2 - 0.002, h - 0.04), _DARK)
    return model("printer", b, m)


def telephone(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A desk telephone."""
    m = mat.plastic(rng, ("black", "white", "gray", "red"))
    b.box((0.18, 0.2, 0.05), (0, 0, 0.025), m, faces={"+z": mat.picture("keys", 2)})
    b.rounded_box((0.05, 0.2, 0.04), (-0.06, 0, 0.07), m, 0.4)
    return model("telephone", b, m, synonyms=("phone", "landline phone"))


def speaker(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A loudspeaker."""
    m = mat.wood(rng) if rng.random() < 0.5 else _DARK
    w, h = rng.uniform(0.15, 0.24), rng.uniform(0.26, 0.5)
    b.box((w, w, h), (0, 0, h / 2), m)
    for z, r in ((0.3, 0.36), (0.7, 0.25)):
        b.cylinder(w * r, 0.01, (0, -w / 2 - 0.005, h * z), _DARK, axis="y", segments=20)
    return model("speaker", b, m, synonyms=("loudspeaker",))


def radio(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A portable radio."""
    m = mat.plastic(rng)
    b.box((0.26, 0.08, 0.15), (0, 0, 0.075), m)
    b.cylinder(0.05, 0.01, (-0.06, -0.045, 0.07), _DARK, axis="y", segments=20)
    b.box((0.1, 0.004, 0.04), (0.06, -0.042, 0.1), mat.picture("label", 2))
    b.rod((0.1, 0.02, 0.15), (0.16, 0.02, 0.36), 0.003, mat.metal(rng))
    return model("radio", b, m)


def remote(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A remote control."""
    b.box((0.05, 0.18, 0.018), (0, 0, 0.009), _DARK, faces={"+z": mat.picture("keys", 3)})
    return model("remote control", b, _DARK, synonyms=("remote", "tv remote"))


def fan(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A standing fan."""
    m = mat.plastic(rng, ("white", "black", "gray"))
    h = rng.uniform(0.9, 1.2)
    b.cylinder(0.19, 0.03, (0, 0, 0.015), m, segments=20)
    b.cylinder(0.015, h - 0.05, (0, 0, h / 2), m, segments=8)
    for a in np.arange(8) * np.pi / 4:
        b.box((0.40, 0.012, 0.006), (0, -0.09, h), m, R=rotation("y", a / 2))
    ring = [(0.21 * np.cos(a), -0.09, h + 0.21 * np.sin(a)) for a in np.linspace(0, 2 * np.pi, 17)]
    b.tube(ring, 0.008, m, 5)
    b.cylinder(0.05, 0.14, (0, -0.03, h), m, axis="y", segments=12)
    return model("fan", b, m, synonyms=("standing fan", "ventilator"))


def heater(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """An oil heater on feet."""
    m = mat.metal(rng, ("white", "gray"))
    for x in np.linspace(-0.18, 0.18, 7):
        b.rounded_box((0.05, 0.14, 0.5), (x, 0, 0.33), m, 0.2)
    for s in (-1, 1):
        b.box((0.03, 0.24, 0.08), (s * 0.15, 0, 0.04), _DARK)
    b.box((0.06, 0.13, 0.42), (0.235, 0, 0.32), m)
    return model("heater", b, m, synonyms=("space heater",))


def air_conditioner(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A wall-mounted air conditioner."""
    m = mat.plastic(rng, ("white",))
    b.rounded_box((rng.uniform(0.75, 0.9), 0.2, 0.28), (0, 0, 0.14), m, 0.15)
    b.box((0.6, 0.01, 0.03), (0, -0.097, 0.06), _DARK)
    return model("air conditioner", b, m, synonyms=("ac unit",))


def projector(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A video projector."""
    m = mat.plastic(rng, ("white", "black", "gray"))
    b.box((0.3, 0.22, 0.1), (0, 0, 0.05), m)
    b.cylinder(0.035, 0.03, (0.08, -0.12, 0.055), _DARK, axis="y", segments=16)
    return model("projector", b, m)


def camera(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A photo camera."""
    b.box((0.13, 0.05, 0.085), (0, 0, 0.0425), _DARK)
    b.cylinder(0.033, 0.06, (0.01, -0.055, 0.042), _DARK, axis="y", segments=16)
    b.box((0.05, 0.04, 0.025), (0.01, 0, 0.095), mat.metal(rng))
    return model("camera", b, _DARK)


def headphones(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """Headphones lying on their cups."""
    m = mat.plastic(rng, ("black", "white", "red", "blue"))
    for s in (-1, 1):
        b.cylinder(0.04, 0.03, (s * 0.08, 0, 0.04), m, axis="x", segments=16)
    arc = [(0.085 * np.cos(a), 0, 0.06 + 0.12 * np.sin(a)) for a in np.linspace(0, np.pi, 9)]
    b.tube(arc, 0.008, m, 6)
    return model("headphones", b, m)


def washing_machine(rng: Rng, b: MeshBuilder, category: str = "washing machine") -> ObjectModel:
    """A front loader with a round door."""
    m = mat.metal(rng, ("white", "gray"))
    b.box((0.6, 0.6, 0.85), (0, 0, 0.425), m)
    b.box((0.56, 0.004, 0.11), (0, -0.302, 0.77), mat.plastic(rng, ("white", "gray")))
    b.cylinder(0.025, 0.02, (0.18, -0.312, 0.77), mat.metal(rng), axis="y")
    door = MeshBuilder()
    door.cylinder(0.2, 0.035, (0, -0.3175, 0.4), mat.metal(rng, ("gray", "black")), axis="y", segments=28)
    door.cylinder(0.14, 0.01, (0, -0.34, 0.4), mat.Material((0.12, 0.14, 0.17), gloss=0.8), axis="y", segments=28)
    part = part_from(door, "door", Joint("revolute", (0.0, 0.0, -1.0), (-0.2, -0.3, 0.4), 1.6))
    return model(category, b, m, [part], [top_surface(0.6, 0.6, 0.85, "laundry")], ("washer",))


def clothes_dryer(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A tumble dryer."""
    made = washing_machine(rng, b, "clothes dryer")
    return ObjectModel(made.category, made.parts, made.surfaces, made.attributes, ("tumble dryer", "dryer"))


# -- lamps and candles


def table_lamp(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A lamp with a shade."""
    base = mat.ceramic(rng, ("white", "blue", "green", "brown", "black"))
    shade = mat.fabric(rng, ("white", "beige", "yellow"))
    h, r = rng.uniform(0.32, 0.48), rng.uniform(0.1, 0.15)
    if choice(rng, ("vase", "rod")) == "vase":
        neck = [(0.04, h * 0.42), (0.015, h * 0.55), (0.012, h * 0.6), (0, h * 0.6)]
        b.lathe([(0, 0), (0.06, 0), (0.075, h * 0.18), *neck], base)
    else:
        b.cylinder(0.07, 0.02, (0, 0, 0.01), base, segments=16)
        b.cylinder(0.012, h * 0.6, (0, 0, h * 0.3), base, segments=8)
    b.lathe([(r, h * 0.55), (r * 0.7, h)], shade, 20)
    b.lathe([(0, h - 0.001), (r * 0.7, h)], mat.glow(emission=0.7), 20)
    return model("lamp", b, shade, synonyms=("table lamp", "bedside lamp"), has_front=False, style="table")


def floor_lamp(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A standing lamp."""
    pole, shade = mat.metal(rng, ("black", "gray")), mat.fabric(rng, ("white", "beige", "yellow", "red"))
    h, r = rng.uniform(1.45, 1.7), rng.uniform(0.17, 0.23)
    b.cylinder(0.15, 0.025, (0, 0, 0.0125), pole, segments=20)
    b.cylinder(0.014, h - 0.15, (0, 0, (h - 0.15) / 2 + 0.02), pole, segments=8)
    b.lathe([(r, h - 0.3), (r * 0.75, h)], shade, 24)
    b.lathe([(0, h - 0.001), (r * 0.75, h)], mat.glow(emission=0.7), 24)
    return model("lamp", b, shade, synonyms=("floor lamp", "standing lamp"), has_front=False, style="floor")


def desk_lamp(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A jointed desk lamp."""
    m = mat.metal(rng, ("black", "gray", "white", "gray"))
    b.cylinder(0.08, 0.02, (0, 0, 0.01), m, segments=20)
    b.rod((0, 0, 0.02), (0.0, 0.1, 0.25), 0.008, m)
    b.rod((0, 0.1, 0.25), (0.0, -0.08, 0.42), 0.008, m)
    b.lathe([(0.075, 0.0), (0.05, 0.07), (0.02, 0.09), (0, 0.09)], m, 16, center=(0, -0.1, 0.35))
    return model("lamp", b, m, synonyms=("desk lamp", "reading lamp"), style="desk")


def ceiling_light(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A flat round ceiling light."""
    r = rng.uniform(0.15, 0.24)
    b.lathe([(0, 0), (r * 0.7, 0.01), (r, 0.05), (r, 0.08), (0, 0.08)], mat.glow(emission=1.6), 24)
    return model("light", b, synonyms=("ceiling light", "ceiling lamp"), has_front=False)


def pendant(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A shade on a cord."""
    m = mat.metal(rng, ("black", "white", "gray"))
    r, cord = rng.uniform(0.16, 0.22), rng.uniform(0.45, 0.7)
    b.lathe([(r, 0.0), (r * 0.85, 0.1), (0.04, 0.2), (0, 0.2)], m, 24)
    b.ellipsoid((0.04, 0.04, 0.05), (0, 0, 0.06), mat.glow(emission=1.8), segments=12)
    b.cylinder(0.006, cord, (0, 0, 0.2 + cord / 2), m, segments=6)
    return model("light", b, m, synonyms=("pendant lamp", "hanging lamp"), has_front=False, style="hanging")


def chandelier(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A chandelier with bulbs on arms."""
    m = mat.metal(rng, ("yellow", "gray", "black"))
    arms = int(rng.integers(5, 9))
    b.cylinder(0.01, 0.55, (0, 0, 0.335), m, segments=8)
    b.ellipsoid((0.06, 0.06, 0.06), (0, 0, 0.06), m, segments=12)
    for a in 2 * np.pi * np.arange(arms) / arms:
        tip = (0.3 * np.cos(a), 0.3 * np.sin(a))
        b.tube([(0, 0, 0.06), (0.18 * np.cos(a), 0.18 * np.sin(a), 0.03), (*tip, 0.1)], 0.008, m, 6)
        b.ellipsoid((0.03, 0.03, 0.045), (*tip, 0.14), mat.glow(emission=1.8), segments=8)
    return model("chandelier", b, m, has_front=False)


def candle(rng: Rng, b: MeshBuilder) -> ObjectModel:
    m = mat.plastic(rng, ("white", "beige", "red", "yellow"))
    h = rng.uniform(0.08, 0.18)
    b.cylinder(rng.uniform(0.02, 0.035), h, (0, 0, h / 2), m, segments=14)
    b.cylinder(0.003, 0.015, (0, 0, h + 0.0075), mat.plastic(rng, ("black",)), segments=6)
    return model("candle", b, m, has_front=False)


def candlestick(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A metal holder with a candle."""
    m = mat.metal(rng, ("yellow", "gray"))
    h = rng.uniform(0.15, 0.25)
    b.lathe([(0, 0), (0.055, 0), (0.05, 0.015), (0.012, 0.03), (0.012, h), (0.03, h + 0.01), (0, h + 0.012)], m)
    b.cylinder(0.011, 0.14, (0, 0, h + 0.08), mat.plastic(rng, ("white", "red")), segments=10)
    return model("candlestick", b, m, has_front=False, synonyms=("candle holder",))
