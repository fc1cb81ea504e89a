"""Tables and desks."""

from __future__ import annotations

import numpy as np

from embodied_perceptron_training.synthetic import materials as mat
from embodied_perceptron_training.synthetic.assets.common import (
    Rng,
    carcass,
    choice,
    drawer,
    four_legs,
    model,
    top_surface,
)
from embodied_perceptron_training.synthetic.mesh import MeshBuilder
from embodied_perceptron_training.synthetic.model import ObjectModel, Surface


def dining_table(rng: Rng) -> ObjectModel:
    """A rectangular or round dining table."""
    b = MeshBuilder()
    top = mat.wood(rng)
    frame = top if rng.random() < 0.7 else mat.metal(rng)
    h = rng.uniform(0.72, 0.76)
    if rng.random() < 0.3:
        r = rng.uniform(0.48, 0.62)
        b.cylinder(r, 0.035, (0, 0, h - 0.0175), top, segments=32)
        b.cylinder(0.05, h - 0.075, (0, 0, 0.04 + (h - 0.075) / 2), frame)
        b.cylinder(0.3, 0.04, (0, 0, 0.02), frame, top_radius=0.22, segments=20)
        surface, shape = top_surface(r * 1.3, r * 1.3, h, "dining"), "round"
    else:
        w, d = rng.uniform(1.2, 1.8), rng.uniform(0.75, 0.95)
        b.box((w, d, 0.035), (0, 0, h - 0.0175), top)
        four_legs(b, w - 0.06, d - 0.06, h - 0.035, 0.06, frame)
        for s in (-1, 1):
            b.box((w - 0.18, 0.02, 0.07), (0, s * (d / 2 - 0.06), h - 0.07), frame)
        surface, shape = top_surface(w, d, h, "dining"), "rectangular"
    return model(
        "table", b, top, surfaces=[surface], synonyms=("dining table",), has_front=False, style="dining", shape=shape
    )


def coffee_table(rng: Rng) -> ObjectModel:
    """A low table with a shelf below the top."""
    b = MeshBuilder()
    m = mat.wood(rng)
    w, d, h = rng.uniform(0.8, 1.2), rng.uniform(0.5, 0.65), rng.uniform(0.38, 0.48)
    b.box((w, d, 0.03), (0, 0, h - 0.015), m)
    four_legs(b, w - 0.02, d - 0.02, h - 0.03, 0.05, m)
    b.box((w - 0.1, d - 0.1, 0.018), (0, 0, 0.14), m)
    below = Surface((0, 0, 0.149), (w / 2 - 0.12, d / 2 - 0.1), h - 0.2, "inside", "books")
    return model(
        "table", b, m, surfaces=[top_surface(w, d, h, "coffee"), below], synonyms=("coffee table", "low table"),
        has_front=False, style="low",
    )  # fmt: skip


def side_table(rng: Rng) -> ObjectModel:
    """A small round table."""
    b = MeshBuilder()
    m = mat.wood(rng) if rng.random() < 0.5 else mat.metal(rng)
    r, h = rng.uniform(0.2, 0.28), rng.uniform(0.48, 0.62)
    b.cylinder(r, 0.025, (0, 0, h - 0.0125), m, segments=24)
    for a in np.pi / 2 + np.arange(3) * 2 * np.pi / 3:
        b.rod(
            (r * 0.9 * np.cos(a), r * 0.9 * np.sin(a), 0.011),
            (0.3 * r * np.cos(a), 0.3 * r * np.sin(a), h - 0.025),
            0.013,
            m,
        )
    return model(
        "table", b, m, surfaces=[top_surface(r * 1.3, r * 1.3, h, "bedside")], synonyms=("side table", "end table"),
        has_front=False, style="side", shape="round",
    )  # fmt: skip


def desk(rng: Rng) -> ObjectModel:
    """A desk with drawers on one side."""
    b = MeshBuilder()
    m = mat.wood(rng)
    w, d, h = rng.uniform(1.1, 1.6), rng.uniform(0.6, 0.75), rng.uniform(0.72, 0.76)
    b.box((w, d, 0.03), (0, 0, h - 0.015), m)
    handle, inner = mat.metal(rng), mat.wood(rng, ("birch",))
    side = 1 if choice(rng, ("left", "right")) == "right" else -1
    box_w, depth = 0.38, d - 0.04
    x = side * (w / 2 - box_w / 2)
    case = MeshBuilder()
    carcass(case, box_w, depth, h - 0.03, m)
    mesh = case.build()
    shift = np.array([x, 0.0, 0.0])
    b.add(mesh.triangles + shift, mesh.normals, mesh.uv, m, collide=True)
    b.box((0.03, d - 0.04, h - 0.03), (-side * (w / 2 - 0.015), 0, (h - 0.03) / 2), m)
    b.box((w - box_w, 0.02, 0.3), (-side * box_w / 2, d / 2 - 0.05, h - 0.18), m)
    rows = 3
    parts = [
        drawer(
            f"drawer{k}", box_w - 0.004, (h - 0.04) / rows - 0.006, depth - 0.03,
            (x, -depth / 2 - 0.009, 0.005 + (h - 0.04) * (k + 0.5) / rows), m, inner, handle,
        )
        for k in range(rows)
    ]  # fmt: skip
    return model("desk", b, m, parts, [top_surface(w, d, h, "desk")], ("writing desk", "workstation"))


def kitchen_island(rng: Rng) -> ObjectModel:
    """A free-standing block with a stone top."""
    b = MeshBuilder()
    m, top = mat.wood(rng), mat.stone(rng)
    w, d, h = rng.uniform(1.1, 1.7), rng.uniform(0.65, 0.85), 0.9
    b.box((w - 0.1, d - 0.1, h - 0.04), (0, 0, (h - 0.04) / 2), m)
    b.box((w, d, 0.04), (0, 0, h - 0.02), top)
    return model(
        "kitchen island", b, m, surfaces=[top_surface(w, d, h, "counter")], has_front=False, synonyms=("island",)
    )
