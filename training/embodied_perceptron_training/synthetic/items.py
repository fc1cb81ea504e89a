"""Which small things belong on which surface, and how often."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from embodied_perceptron_training.synthetic.arrange import RoomArranger
from embodied_perceptron_training.synthetic.assets import bath, decor, electronics, lighting, small, soft, tableware
from embodied_perceptron_training.synthetic.mesh import rotation
from embodied_perceptron_training.synthetic.model import ObjectModel, PlacedObject

Family = Callable[[np.random.Generator], ObjectModel]

# accepts -> (expected things per square metre, upper limit, [(family, weight)])
SURFACE_ITEMS: dict[str, tuple[float, int, list[tuple[Family, float]]]] = {
    "books": (5.0, 3, [(small.book_row, 5), (small.book, 3), (decor.vase, 0.6), (decor.photo_frame, 0.8),
                       (small.box, 0.4), (decor.small_plant, 0.7), (small.folder, 1.0), (decor.globe, 0.2),
                       (decor.trophy, 0.2), (electronics.camera, 0.2), (small.basket, 0.4)]),
    "decor": (4.0, 4, [(decor.vase, 2), (decor.photo_frame, 2), (decor.small_plant, 2), (lighting.candle, 1),
                       (lighting.candlestick, 0.5), (small.book, 1.5), (decor.statue, 0.6), (lighting.table_lamp, 0.8),
                       (electronics.radio, 0.4), (small.alarm, 0.3), (decor.trophy, 0.3), (soft.hat, 0.2),
                       (electronics.speaker, 0.4), (small.tissue_box, 0.4), (decor.globe, 0.2)]),
    "bedside": (9.0, 3, [(lighting.table_lamp, 4), (small.book, 2), (small.alarm, 1.5), (small.tissue_box, 0.6),
                         (decor.small_plant, 0.6), (decor.photo_frame, 0.6), (electronics.telephone, 0.3)]),
    "coffee": (5.0, 4, [(small.magazine, 2), (small.book, 1.5), (electronics.remote, 2), (decor.vase, 1),
                        (lighting.candle, 0.8), (small.tissue_box, 0.8), (decor.small_plant, 0.7)]),
    "desk": (5.0, 5, [(lighting.desk_lamp, 2), (small.paper, 2), (small.book, 1.5), (small.pen, 1.2),
                      (small.notebook, 1.2), (electronics.telephone, 0.8), (small.stapler, 0.5),
                      (small.scissors, 0.4), (decor.small_plant, 0.7),
                      (electronics.printer, 0.5), (electronics.headphones, 0.5), (small.folder, 0.4),
                      (electronics.speaker, 0.4), (small.tissue_box, 0.3), (electronics.projector, 0.15)]),
    "media": (8.0, 2, [(electronics.speaker, 1), (small.box, 1), (small.book_row, 1), (electronics.radio, 0.5)]),
    "storage": (3.0, 2, [(small.box, 2), (soft.folded_towel, 1), (small.book_row, 1), (soft.blanket, 1),
                         (small.basket, 0.7)]),
    "toys": (10.0, 3, [(small.toy, 3), (small.ball, 1)]),
    "shoes": (12.0, 3, [(soft.shoe, 1)]),
    "sill": (4.0, 3, [(decor.small_plant, 3), (decor.flowerpot, 1), (decor.vase, 0.8), (lighting.candle, 0.5),
                      (decor.statue, 0.3)]),
    "laundry": (4.0, 2, [(small.basket, 1), (soft.folded_towel, 1), (soft.clothes, 0.6), (small.box, 0.4)]),
    "seat": (0.25, 1, [(soft.clothes, 1), (small.book, 0.6), (soft.folded_towel, 0.3), (small.toy, 0.4),
                      (soft.bag, 0.5)]),
    "counter": (5.0, 4, [(tableware.bottle, 1.2), (tableware.bowl, 1), (tableware.cup, 1.5), (tableware.jar, 1),
                         (tableware.utensil, 0.8), (tableware.plate, 0.7), (tableware.food, 1), (tableware.pot, 0.6),
                         (tableware.knife, 0.4), (tableware.bread, 0.5), (tableware.tray, 0.4), (tableware.fruit, 0.6),
                         (tableware.seasoning, 0.6), (tableware.wine, 0.4), (tableware.can, 0.5),
                         (tableware.pitcher, 0.3), (decor.small_plant, 0.3)]),
    "dining": (4.0, 6, [(tableware.plate, 2), (tableware.cup, 2), (tableware.glass, 1.5), (tableware.bowl, 1.5),
                        (tableware.bottle, 0.8), (decor.vase, 0.7), (tableware.seasoning, 0.6), (tableware.spoon, 0.6),
                        (tableware.teapot, 0.4), (tableware.pitcher, 0.4), (tableware.fruit, 0.5),
                        (lighting.candle, 0.4), (tableware.tray, 0.3), (tableware.wine, 0.3), (small.book, 0.3),
                        (small.paper, 0.3)]),
    "kitchen": (8.0, 4, [(tableware.bowl, 1.5), (tableware.plate, 1.5), (tableware.cup, 1.5), (tableware.glass, 1),
                         (tableware.jar, 1), (tableware.can, 1), (tableware.pot, 0.7), (tableware.food, 0.8)]),
    "dishes": (12.0, 3, [(tableware.cup, 2), (tableware.plate, 1.5), (tableware.bowl, 1), (tableware.glass, 1)]),
    "fridge": (12.0, 4, [(tableware.bottle, 2), (tableware.jar, 1.5), (tableware.can, 1.5), (tableware.food, 1),
                         (tableware.fruit, 1.5), (tableware.bowl, 0.5)]),
    "stove": (4.0, 2, [(tableware.pot, 2), (tableware.pan, 2), (tableware.pot, 0.5)]),
    "oven": (4.0, 1, [(tableware.plate, 1), (tableware.bowl, 1), (tableware.pan, 0.4)]),
    "bowl": (80.0, 1, [(tableware.fruit, 1)]),
    "toilet": (20.0, 2, [(bath.toilet_roll, 2), (small.tissue_box, 0.5), (decor.small_plant, 0.4)]),
    "basin": (25.0, 3, [(bath.soap_dispenser, 1.5), (bath.toothbrush, 1.5), (bath.soap, 1), (bath.cosmetics, 1),
                        (bath.shampoo, 0.5), (bath.toiletry, 0.3)]),
}  # fmt: skip

_TILTED = {decor.photo_frame: 0.22}


def fill_surface(arranger: RoomArranger, anchor: PlacedObject, index: int, density: float = 1.0) -> list[PlacedObject]:
    """Put fitting things on surface number ``index`` of ``anchor``; how many follows a Poisson law."""
    surface = anchor.model.surfaces[index]
    if surface.accepts not in SURFACE_ITEMS:
        return []
    rng = arranger.rng
    rate, limit, families = SURFACE_ITEMS[surface.accepts]
    area = 4 * surface.half_m[0] * surface.half_m[1]
    count = min(int(rng.poisson(rate * area * density)), limit)
    weights = np.array([w for _, w in families])
    placed = []
    for _ in range(count):
        family = families[int(rng.choice(len(families), p=weights / weights.sum()))][0]
        model = family(rng)
        yaw = float(rng.normal(0, 0.2)) if model.has_front else float(rng.uniform(-np.pi, np.pi))
        tilt = rotation("x", -_TILTED[family]) if family in _TILTED else None
        if family is small.book_row:
            yaw = 0.0
        done = arranger.on_surface(model, anchor, surface, yaw, tilt)
        if done:
            placed.append(done)
    return placed
