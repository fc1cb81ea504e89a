"""Helpers that the furniture families share."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

import numpy as np

from embodied_perceptron_training.homes.assets.mesh import MeshBuilder
from embodied_perceptron_training.homes.assets.objects import Joint, ObjectModel, Part, Surface, part_from
from embodied_perceptron_training.homes.rendering.materials import Material, picture

Rng = np.random.Generator
CORNERS = ((-1, -1), (-1, 1), (1, -1), (1, 1))  # signs of x and y
MIRROR = Material((0.78, 0.83, 0.86), gloss=0.9)


def choice(rng: Rng, options: Sequence[str]) -> str:
    """One of ``options``."""
    return str(options[int(rng.choice(len(options)))])


def any_picture(rng: Rng, kind: str, variants: int) -> Material:
    """One of the ``variants`` of a picture."""
    return picture(kind, int(rng.integers(variants)))


def screen(rng: Rng) -> Material:
    """A screen, on or off."""
    if rng.random() < 0.6:
        return picture("screen", int(rng.integers(30)), emission=0.5)
    return Material((0.05, 0.05, 0.06), gloss=0.7)


def model(
    category: str,
    body: MeshBuilder,
    main: Material | None = None,
    parts: Sequence[Part] = (),
    surfaces: Sequence[Surface] = (),
    synonyms: Sequence[str] = (),
    has_front: bool = True,
    states: Sequence[str] = (),
    **attributes: str,
) -> ObjectModel:
    """An :class:`ObjectModel` with the colour and substance words of its ``main`` material."""
    words = {"color": main.color_name, "material": main.substance} if main else {}
    kept = MappingProxyType({k: v for k, v in (words | attributes).items() if v})
    all_parts = (part_from(body), *parts)
    return ObjectModel(category, all_parts, tuple(surfaces), kept, tuple(synonyms), has_front, tuple(states))


def four_legs(
    b: MeshBuilder, width: float, depth: float, height: float, thick: float, material: Material, round_: bool = False
) -> None:
    """Legs at the corners of a ``width`` x ``depth`` rectangle, from the floor to ``height``."""
    for sx, sy in CORNERS:
        center = (sx * (width - thick) / 2, sy * (depth - thick) / 2, height / 2)
        if round_:
            b.cylinder(thick / 2, height, center, material, segments=8)
        else:
            b.box((thick, thick, height), center, material)


def top_surface(
    width: float, depth: float, z: float, accepts: str, clearance: float = 0.7, margin: float = 0.03, y: float = 0.0
) -> Surface:
    """The whole top of something ``width`` x ``depth`` at height ``z``."""
    half = (max(width / 2 - margin, 0.01), max(depth / 2 - margin, 0.01))
    return Surface((0.0, y, z), half, clearance, "ontop", accepts)


def hinged_door(
    name: str,
    width: float,
    height: float,
    center: tuple[float, float, float],
    material: Material,
    handle: Material,
    hinge: str = "left",
) -> Part:
    """A cabinet door that opens towards -y about a vertical edge."""
    b, thick = MeshBuilder(), 0.018
    b.box((width, thick, height), center, material)
    side = -1 if hinge == "left" else 1
    grip_x = center[0] - side * (width / 2 - 0.04)
    b.box((0.015, 0.025, min(0.14, height * 0.4)), (grip_x, center[1] - thick / 2 - 0.0125, center[2]), handle)
    origin = (center[0] + side * width / 2, center[1], center[2])
    axis = (0.0, 0.0, -1.0) if hinge == "left" else (0.0, 0.0, 1.0)
    return part_from(b, name, Joint("revolute", axis, origin, 1.7))


def door_pair(
    width: float, height: float, at: tuple[float, float, float], material: Material, handle: Material
) -> list[Part]:
    """Two doors at ``at`` and its mirror image in x, hinged on their outer edges."""
    x, y, z = at
    return [
        hinged_door(f"door{k}", width, height, (s * x, y, z), material, handle, hinge)
        for k, (s, hinge) in enumerate(((-1, "left"), (1, "right")))
    ]


def drawer(
    name: str,
    width: float,
    height: float,
    depth: float,
    front: tuple[float, float, float],
    material: Material,
    inner: Material,
    handle: Material,
) -> Part:
    """A drawer with the centre of its front at ``front`` and a box ``depth`` deep; opens towards -y."""
    b = MeshBuilder()
    x, y, z = front
    b.box((width, 0.018, height), front, material)
    b.box((min(0.16, width * 0.5), 0.022, 0.015), (x, y - 0.02, z), handle)
    inside, wall = depth - 0.03, 0.01
    tall = height * 0.7
    base = z - height / 2 + 0.01
    b.box((width - 0.04, inside, wall), (x, y + 0.009 + inside / 2, base + wall / 2), inner)
    for s in (-1, 1):
        b.box((wall, inside, tall), (x + s * (width - 0.05) / 2, y + 0.009 + inside / 2, base + tall / 2), inner)
    b.box((width - 0.04, wall, tall), (x, y + 0.009 + inside, base + tall / 2), inner)
    return part_from(b, name, Joint("prismatic", (0.0, -1.0, 0.0), (0.0, 0.0, 0.0), depth * 0.6))


def carcass(b: MeshBuilder, width: float, depth: float, height: float, material: Material, z: float = 0.0) -> float:
    """Add a case without a front, its base at height ``z``; returns the board thickness."""
    t = 0.02
    for s in (-1, 1):
        b.box((t, depth, height), (s * (width - t) / 2, 0, z + height / 2), material)
    inner = width - 2 * t
    for level in (z + t / 2, z + height - t / 2):
        b.box((inner, depth, t), (0, 0, level), material)
    b.box((inner, 0.008, height - 2 * t), (0, depth / 2 - 0.004, z + height / 2), material)
    return t
