"""Parts of a row of kitchen units: base cabinets, dishwasher, work top with a cut-out, basin.

As in ScanNet's annotations, the work top, the basin, and each appliance and cabinet have one box each.
"""

from __future__ import annotations

from embodied_perceptron_training.homes.assets.common import Rng, drawer, hinged_door, model
from embodied_perceptron_training.homes.assets.kitchen import SINK_STEEL
from embodied_perceptron_training.homes.assets.mesh import MeshBuilder
from embodied_perceptron_training.homes.assets.objects import Joint, ObjectModel, Surface, part_from
from embodied_perceptron_training.homes.rendering import materials as mat

BASE_H, TOP_T = 0.86, 0.04  # metres: below the work top, and the top itself
BASE_D, TOP_D = 0.56, 0.62
_BASIN_D, _BASIN_H = 0.4, 0.17


def base_cabinet(
    rng: Rng,
    b: MeshBuilder,
    width: float,
    front: mat.Material,
    handle: mat.Material,
    with_drawers: bool,
    open_top: bool = False,
) -> ObjectModel:
    """A base cabinet; ``open_top`` leaves room for a basin."""
    t, foot = 0.018, 0.1
    for s in (-1, 1):
        b.box((t, BASE_D, BASE_H - foot), (s * (width - t) / 2, 0, foot + (BASE_H - foot) / 2), front)
    b.box((width - 2 * t, BASE_D, t), (0, 0, foot + t / 2), front)
    b.box((width, BASE_D - 0.06, foot), (0, 0.03, foot / 2), mat.Material((0.2, 0.2, 0.2)))
    if not open_top:
        b.box((width - 2 * t, BASE_D, t), (0, 0, BASE_H - t / 2 - 0.001), front)
    tall = BASE_H - foot - 0.006
    y = -BASE_D / 2 - 0.009
    parts = []
    if with_drawers and not open_top:
        for k in range(3):
            z = foot + tall * (k + 0.5) / 3
            parts.append(drawer(f"drawer{k}", width - 0.004, tall / 3 - 0.006, 0.48, (0, y, z), front, front, handle))
    else:
        columns = 1 if width < 0.6 else 2
        for k in range(columns):
            at = (-width / 2 + width * (k + 0.5) / columns, y, foot + tall / 2)
            hinge = "left" if k == 0 else "right"
            parts.append(hinged_door(f"door{k}", width / columns - 0.004, tall, at, front, handle, hinge))
    return model("cabinet", b, front, parts, synonyms=("kitchen cabinet", "base cabinet"))


def built_in_dishwasher(rng: Rng, b: MeshBuilder) -> ObjectModel:
    """A dishwasher below the work top."""
    m, steel = mat.metal(rng, ("white", "gray", "black")), mat.metal(rng, ("gray",))
    w, d = 0.6, 0.54
    b.box((w, d, BASE_H - 0.002), (0, 0, (BASE_H - 0.002) / 2), m)
    door = MeshBuilder()
    y = -d / 2 - 0.012
    door.box((w - 0.006, 0.022, BASE_H - 0.12), (0, y, 0.1 + (BASE_H - 0.12) / 2), m)
    door.box((w * 0.6, 0.025, 0.02), (0, y - 0.02, BASE_H - 0.1), steel)
    part = part_from(door, "door", Joint("revolute", (1.0, 0.0, 0.0), (0.0, y, 0.1), 1.45))
    return model("dishwasher", b, m, [part])


def worktop(
    b: MeshBuilder, length: float, top: mat.Material, cut: tuple[float, float] | None, splash: bool
) -> ObjectModel:
    """A work top of ``length`` metres, its base at z = 0; ``cut`` is (centre x, width) of a basin."""
    surfaces = []
    left, right = -length / 2, length / 2
    spans = [(left, right)] if cut is None else [(left, cut[0] - cut[1] / 2), (cut[0] + cut[1] / 2, right)]
    for a, c in spans:
        if c - a > 0.02:
            b.box((c - a, TOP_D, TOP_T), ((a + c) / 2, 0, TOP_T / 2), top)
        if c - a > 0.15:
            half = ((c - a) / 2 - 0.03, TOP_D / 2 - 0.04)
            surfaces.append(Surface(((a + c) / 2, 0.0, TOP_T), half, 0.5, "ontop", "counter"))
    if cut is not None:
        edge = (TOP_D - _BASIN_D) / 2
        for s in (-1, 1):
            b.box((cut[1], edge, TOP_T), (cut[0], s * (TOP_D - edge) / 2, TOP_T / 2), top)
    if splash:
        b.box((length, 0.015, 0.1), (0, TOP_D / 2 - 0.0075, TOP_T + 0.05), top)
    return model("counter", b, top, surfaces=surfaces, synonyms=("kitchen counter", "work top"))


def basin(rng: Rng, b: MeshBuilder, width: float) -> ObjectModel:
    """A steel or ceramic basin with a tap for a cut-out of ``width``; the rim is at z = 0."""
    m = SINK_STEEL if rng.random() < 0.75 else mat.ceramic(rng, ("white", "black", "gray"))
    t, w, d = 0.008, width - 0.004, _BASIN_D - 0.004
    for s in (-1, 1):
        b.box((t, d, _BASIN_H), (s * (w - t) / 2, 0, -_BASIN_H / 2), m)
        b.box((w - 2 * t, t, _BASIN_H), (0, s * (d - t) / 2, -_BASIN_H / 2), m)
    b.box((w, d, t), (0, 0, -_BASIN_H + t / 2), m)
    if w > 0.6 and rng.random() < 0.6:
        b.box((t, d - 2 * t, _BASIN_H - 0.03), (w * 0.1, 0, -_BASIN_H / 2 - 0.015), m)
    y = d / 2 - 0.03
    tall = rng.uniform(0.18, 0.36)
    b.tube([(0, y, -0.01), (0, y, tall * 0.85), (0, y - 0.07, tall), (0, y - 0.16, tall * 0.8)], 0.013, SINK_STEEL, 6)
    inside = Surface((0, -0.02, -_BASIN_H + t), (w / 2 - 0.04, d / 2 - 0.08), 0.35, "inside", "dishes")
    return model("sink", b, m, surfaces=[inside], synonyms=("kitchen sink", "basin"))
