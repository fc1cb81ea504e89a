"""Things to sit on."""

from __future__ import annotations

import numpy as np

from embodied_perceptron_training.synthetic import materials as mat
from embodied_perceptron_training.synthetic.assets.common import Rng, choice, four_legs, model, top_surface
from embodied_perceptron_training.synthetic.mesh import MeshBuilder, rotation
from embodied_perceptron_training.synthetic.model import ObjectModel


def chair(rng: Rng) -> ObjectModel:
    """A dining chair: seat, four legs, back with slats or a panel."""
    b = MeshBuilder()
    frame = mat.wood(rng) if rng.random() < 0.7 else mat.metal(rng)
    seat = mat.fabric(rng) if rng.random() < 0.5 else frame
    w, d = rng.uniform(0.40, 0.48), rng.uniform(0.40, 0.48)
    h, back = rng.uniform(0.43, 0.47), rng.uniform(0.38, 0.52)
    four_legs(b, w, d, h - 0.03, 0.035, frame, round_=bool(rng.random() < 0.3))
    b.box((w, d, 0.035), (0, 0, h - 0.0175), seat)
    for s in (-1, 1):
        b.box((0.035, 0.03, back), (s * (w - 0.035) / 2, d / 2 - 0.015, h + back / 2), frame)
    style = choice(rng, ("slats", "panel", "ladder"))
    if style == "panel":
        b.box((w - 0.07, 0.02, back * 0.7), (0, d / 2 - 0.015, h + back * 0.62), seat)
    elif style == "slats":
        for x in np.linspace(-w / 2 + 0.09, w / 2 - 0.09, 4):
            b.box((0.025, 0.015, back * 0.9), (x, d / 2 - 0.015, h + back * 0.45), frame)
        b.box((w - 0.07, 0.025, 0.05), (0, d / 2 - 0.015, h + back - 0.025), frame)
    else:
        for z in np.linspace(0.3, 0.95, 3):
            b.box((w - 0.07, 0.018, 0.05), (0, d / 2 - 0.015, h + back * z - 0.025), frame)
    return model(
        "chair", b, seat, surfaces=[top_surface(w, d - 0.06, h, "seat", back)], synonyms=("seat",), style="dining"
    )


def office_chair(rng: Rng) -> ObjectModel:
    """A swivel chair on five castors."""
    b = MeshBuilder()
    cover = mat.fabric(rng, ("black", "gray", "blue", "red")) if rng.random() < 0.6 else mat.leather(rng)
    dark = mat.plastic(rng, ("black",))
    h = rng.uniform(0.44, 0.50)
    for k in range(5):
        a = 2 * np.pi * k / 5 + np.pi / 2
        tip = (0.29 * np.cos(a), 0.29 * np.sin(a))
        b.rod((0, 0, 0.1), (*tip, 0.075), 0.018, dark, 6)
        b.ellipsoid((0.03, 0.03, 0.03), (*tip, 0.03), dark, segments=8)
    b.cylinder(0.025, h - 0.15, (0, 0, 0.1 + (h - 0.15) / 2), dark)
    b.rounded_box((0.48, 0.46, 0.09), (0, 0, h - 0.045), cover, 0.3)
    back = rng.uniform(0.45, 0.62)
    b.rounded_box((0.44, 0.08, back), (0, 0.22, h + 0.08 + back / 2), cover, 0.3, rotation("x", -0.08))
    if rng.random() < 0.6:
        for s in (-1, 1):
            b.box((0.04, 0.26, 0.03), (s * 0.27, 0, h + 0.2), dark)
            b.box((0.03, 0.03, 0.22), (s * 0.27, 0.05, h + 0.09), dark)
    return model(
        "chair", b, cover, surfaces=[top_surface(0.36, 0.3, h, "seat", 0.4)], synonyms=("office chair", "swivel chair"),
        style="office",
    )  # fmt: skip


def armchair(rng: Rng) -> ObjectModel:
    """An upholstered chair with arms."""
    return _upholstered(rng, "chair", rng.uniform(0.78, 0.95), 1, ("armchair", "easy chair"))


def couch(rng: Rng) -> ObjectModel:
    """A sofa with two or three seats."""
    seats = int(rng.integers(2, 4))
    return _upholstered(rng, "couch", 0.35 + 0.62 * seats, seats, ("sofa", "settee"))


def _upholstered(rng: Rng, category: str, width: float, seats: int, synonyms: tuple[str, ...]) -> ObjectModel:
    b = MeshBuilder()
    cover = mat.leather(rng) if rng.random() < 0.3 else mat.fabric(rng)
    feet = mat.wood(rng)
    d, h = rng.uniform(0.80, 0.95), rng.uniform(0.40, 0.46)
    arm, back = rng.uniform(0.12, 0.2), rng.uniform(0.36, 0.46)
    foot = rng.uniform(0.05, 0.12)
    four_legs(b, width - 0.04, d - 0.04, foot, 0.05, feet)
    b.box((width, d, h - 0.14 - foot), (0, 0, foot + (h - 0.14 - foot) / 2), cover)
    inner = width - 2 * arm
    for k in range(seats):
        x = -inner / 2 + inner * (k + 0.5) / seats
        b.rounded_box((inner / seats - 0.005, d - 0.2, 0.16), (x, -0.09, h - 0.08), cover, 0.25)
        b.rounded_box((inner / seats - 0.01, 0.18, back), (x, d / 2 - 0.24, h + back / 2 - 0.02), cover, 0.35)
    b.box((width, 0.18, h + back - 0.1 - foot), (0, d / 2 - 0.09, foot + (h + back - 0.1 - foot) / 2), cover)
    arm_h = h + rng.uniform(0.12, 0.2)
    for s in (-1, 1):
        b.box((arm, d - 0.03, arm_h - foot), (s * (width - arm) / 2, -0.015, foot + (arm_h - foot) / 2), cover)
    seat = top_surface(inner, d - 0.42, h - 0.005, "couch", back, y=-0.16)
    size = {1: "", 2: "two-seat", 3: "three-seat"}[seats]
    return model(category, b, cover, surfaces=[seat], synonyms=synonyms, style=size or "upholstered")


def stool(rng: Rng) -> ObjectModel:
    """A low or a bar stool."""
    b = MeshBuilder()
    frame = mat.wood(rng) if rng.random() < 0.6 else mat.metal(rng)
    seat = mat.leather(rng) if rng.random() < 0.4 else frame
    h, r = (rng.uniform(0.42, 0.5) if rng.random() < 0.6 else rng.uniform(0.62, 0.75)), rng.uniform(0.15, 0.19)
    b.cylinder(r, 0.04, (0, 0, h - 0.02), seat, segments=20)
    for a in np.pi / 4 + np.arange(4) * np.pi / 2:
        b.rod((r * np.cos(a), r * np.sin(a), 0.012), (0.6 * r * np.cos(a), 0.6 * r * np.sin(a), h - 0.04), 0.014, frame)
    return model(
        "stool", b, seat, surfaces=[top_surface(r * 1.3, r * 1.3, h, "seat")], has_front=False,
        synonyms=("bar stool" if h > 0.6 else "low stool",),
    )  # fmt: skip


def bench(rng: Rng) -> ObjectModel:
    """A bench without a back."""
    b = MeshBuilder()
    frame = mat.wood(rng)
    w, d, h = rng.uniform(0.9, 1.4), rng.uniform(0.32, 0.42), rng.uniform(0.42, 0.48)
    b.box((w, d, 0.045), (0, 0, h - 0.0225), frame)
    for s in (-1, 1):
        b.box((0.05, d - 0.04, h - 0.045), (s * (w / 2 - 0.12), 0, (h - 0.045) / 2), frame)
    b.box((w - 0.28, 0.03, 0.08), (0, 0, h * 0.4), frame)
    return model("bench", b, frame, surfaces=[top_surface(w, d, h, "seat")], has_front=False)


def ottoman(rng: Rng) -> ObjectModel:
    """An upholstered block without a back."""
    b = MeshBuilder()
    cover = mat.fabric(rng)
    w, d, h = rng.uniform(0.45, 0.8), rng.uniform(0.42, 0.6), rng.uniform(0.36, 0.44)
    four_legs(b, w - 0.05, d - 0.05, 0.06, 0.04, mat.wood(rng))
    b.box((w, d, h - 0.16), (0, 0, 0.06 + (h - 0.16) / 2), cover)
    b.rounded_box((w, d, 0.12), (0, 0, h - 0.06), cover, 0.25)
    return model("ottoman", b, cover, surfaces=[top_surface(w, d, h, "seat")], synonyms=("pouf",), has_front=False)


def footstool(rng: Rng) -> ObjectModel:
    """A small stool for the feet."""
    b = MeshBuilder()
    cover, frame = mat.fabric(rng), mat.wood(rng)
    w, h = rng.uniform(0.32, 0.42), rng.uniform(0.22, 0.3)
    four_legs(b, w, w * 0.75, h - 0.07, 0.035, frame)
    b.rounded_box((w, w * 0.75, 0.09), (0, 0, h - 0.045), cover, 0.3)
    return model("footstool", b, cover, has_front=False, synonyms=("footrest",))


def beanbag(rng: Rng) -> ObjectModel:
    """A shapeless seat."""
    b = MeshBuilder()
    cover = mat.fabric(rng)
    r = rng.uniform(0.36, 0.46)
    b.lathe(
        [(0, 0), (r * 0.8, 0.0), (r, r * 0.3), (r * 0.9, r * 0.7), (r * 0.45, r * 1.25), (0.05, r * 1.6), (0, r * 1.6)],
        (0, 0, 0), cover, 20,
    )  # fmt: skip
    return model("beanbag", b, cover, has_front=False, synonyms=("bean bag chair",))
