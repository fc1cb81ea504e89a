"""Parts of the building: doors, windows, radiators, switches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from embodied_perceptron_training.homes.assets.common import Rng, model, top_surface
from embodied_perceptron_training.homes.assets.mesh import MeshBuilder
from embodied_perceptron_training.homes.assets.objects import Joint, ObjectModel, part_from
from embodied_perceptron_training.homes.rendering import materials as mat

DOOR_FRAME_M = 0.06


def door(rng: Rng, b: MeshBuilder, width: float, height: float) -> ObjectModel:
    """A door leaf for an opening of ``width`` x ``height``, hinged on its left, opening towards -y."""
    steel = mat.metal(rng)
    w, h = width - 2 * DOOR_FRAME_M - 0.01, height - DOOR_FRAME_M - 0.012
    for z in (0.2, h * 0.5, h - 0.2):
        b.cylinder(0.012, 0.08, (-w / 2, -0.02, z), steel, segments=8, collide=False)
    leaf = MeshBuilder()
    m = mat.wood(rng)
    leaf.box((w, 0.04, h - 0.008), (0, 0, 0.008 + (h - 0.008) / 2), m)
    for z, tall in ((h * 0.28, h * 0.36), (h * 0.72, h * 0.36)):
        for s in (-1, 1):
            leaf.box((w * 0.62, 0.008, tall), (0, s * 0.024, z), m, collide=False)
    for s in (-1, 1):
        leaf.box((0.12, 0.02, 0.02), (w / 2 - 0.09, s * 0.055, 1.02), steel)
        leaf.cylinder(0.012, 0.05, (w / 2 - 0.05, s * 0.04, 1.02), steel, axis="y", segments=8)
    part = part_from(leaf, "leaf", Joint("revolute", (0.0, 0.0, -1.0), (-w / 2, -0.02, 0.0), 1.75))
    return replace(model("door", b, m, [part], synonyms=("room door",)), box_part="leaf")


def doorframe(rng: Rng, b: MeshBuilder, width: float, height: float, thickness: float) -> ObjectModel:
    """The lining of a door's opening."""
    m = mat.wood(rng)
    f = DOOR_FRAME_M
    for s in (-1, 1):
        b.box((f, thickness + 0.03, height), (s * (width - f) / 2, 0, height / 2), m)
    b.box((width - 2 * f, thickness + 0.03, f), (0, 0, height - f / 2), m)
    return model("doorframe", b, m, synonyms=("door frame",))


def window(rng: Rng, b: MeshBuilder, width: float, height: float, thickness: float) -> ObjectModel:
    """A window with two sashes; the outside is a bright picture."""
    m = mat.plastic(rng, ("white",)) if rng.random() < 0.7 else mat.wood(rng)
    f = 0.055
    depth = 0.07
    for s in (-1, 1):
        b.box((f, depth, height), (s * (width - f) / 2, 0, height / 2), m)
        b.box((width - 2 * f, depth, f), (0, 0, height / 2 + s * (height - f) / 2), m)
    panes = 2 if width > 0.8 else 1
    inner = width - 2 * f
    for k in range(panes):
        x = -inner / 2 + inner * (k + 0.5) / panes
        pane = mat.picture("sky", int(rng.integers(12)), emission=0.55, gloss=0.2)
        b.box((inner / panes, 0.012, height - 2 * f), (x, 0.01, height / 2), m, faces={"-y": pane, "+y": pane})
    if panes == 2:
        b.box((0.06, 0.05, height - 2 * f), (0, 0, height / 2), m)
    b.box((0.02, 0.03, 0.1), (0.05, -0.045, height / 2), mat.metal(rng))
    return model("window", b, m)


def windowsill(rng: Rng, b: MeshBuilder, width: float) -> ObjectModel:
    """A window sill with a surface; its back touches the wall at y = depth / 2."""
    m = mat.stone(rng)
    w, d = width + 0.1, 0.22
    b.box((w, d, 0.03), (0, 0, 0.015), m)
    return model("windowsill", b, m, surfaces=[top_surface(w, d, 0.03, "sill", 0.9)], synonyms=("window sill",))


def radiator(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A ribbed radiator on the wall."""
    m = mat.metal(rng, ("white",))
    w, h = rng.uniform(0.7, 1.2), rng.uniform(0.5, 0.62)
    for x in np.arange(-w / 2 + 0.03, w / 2 - 0.02, 0.06):
        b.rounded_box((0.045, 0.09, h), (x, 0, h / 2), m, 0.25)
    for z in (0.08, h - 0.08):
        b.cylinder(0.02, w, (0, 0, z), m, axis="x", segments=8)
    return model("radiator", b, m)


def switch(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A light switch."""
    m = mat.plastic(rng, ("white", "beige", "gray"))
    b.box((0.082, 0.012, 0.082), (0, 0, 0.041), m)
    b.box((0.05, 0.008, 0.05), (0, -0.009, 0.041), m)
    return model("switch", b, m, synonyms=("light switch",))


def socket(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A wall socket."""
    m = mat.plastic(rng, ("white", "beige", "gray"))
    b.box((0.082, 0.012, 0.082), (0, 0, 0.041), m)
    b.cylinder(0.022, 0.004, (0, -0.008, 0.041), mat.Material((0.3, 0.3, 0.3)), axis="y", segments=14)
    return model("socket", b, m, synonyms=("power outlet", "outlet"))


def column(rng: Rng, b: MeshBuilder, height: float) -> ObjectModel:
    """A pillar from floor to ceiling."""
    m = mat.stone(rng)
    b.cylinder(0.16, height, (0, 0, height / 2), m, segments=20)
    return model("column", b, m, has_front=False, synonyms=("pillar",))
