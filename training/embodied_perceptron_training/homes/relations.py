"""Facts about objects from geometry: states, support, and the benchmark's five spatial relations.

Every fact has a margin, so that prompts made from them are unambiguous. World z is up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import Bounds
from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron_training.homes.assets.objects import PlacedObject
from embodied_perceptron_training.homes.building.home import Home

OPEN_FROM = 0.1  # a joint beyond this share of its range is open
_NEAR_MARGIN = 0.15  # the closest (farthest) must differ from the next by this share ...
_NEAR_MARGIN_M = 0.10  # ... and by this distance
_OVERLAP = 0.5  # share of the smaller footprint for above and below
_CONTACT_M = 0.05  # of annotated boxes
_SECTOR_COS = np.cos(np.deg2rad(40.0))  # half width of front, behind, left, right
_ALLOCENTRIC_REACH_M = 2.5


@dataclass(frozen=True, eq=False)
class Scene:
    """Candidate objects of a text, as arrays.

    Attributes:
        objects: the objects; rows of everything below.
        ids: (N,) their ids in the annotations (positions in the instance list).
        low, high: (N, 3) axis-aligned bounds of their geometry.
        center: (N, 3) box centres.
    """

    objects: tuple[PlacedObject, ...]
    ids: NDArray[np.int64]
    low: F64
    high: F64
    center: F64

    def rows_of(self, label: str) -> NDArray[np.intp]:
        """Rows of all objects of a class."""
        return np.array([i for i, o in enumerate(self.objects) if o.label == label], np.intp)

    def labels(self) -> list[str]:
        """Class of each row."""
        return [o.label for o in self.objects]


def make_scene(home: Home, object_ids: Sequence[int]) -> Scene:
    """A :class:`Scene` of the objects ``object_ids`` in this order; annotation ids are positions in it."""
    objects = tuple(home.objects[i] for i in object_ids)
    corners = [o.mesh().triangles.reshape(-1, 3) for o in objects]
    low = np.array([c.min(0) for c in corners]).reshape(-1, 3)
    high = np.array([c.max(0) for c in corners]).reshape(-1, 3)
    center = np.array([o.box9()[:3] for o in objects]).reshape(-1, 3)
    return Scene(objects, np.arange(len(objects)), low, high, center)


def labelled_scene(boxes: F64, labels: Sequence[str], ids: NDArray[np.int64]) -> Scene:
    """A :class:`Scene` of (N, 9) annotated boxes. An object is on another one whose top touches its bottom; fronts,
    attributes and synonyms are unknown, and no text uses them."""
    bounds = Bounds.of(boxes)
    low, high = bounds.low, bounds.high
    model = SimpleNamespace(attributes={}, synonyms=(), has_front=False)
    objects: list[Any] = []
    for row, label in enumerate(labels):
        gap = np.abs(low[row, 2] - high[:, 2])
        under = [k for k in np.argsort(gap) if k != row and gap[k] < _CONTACT_M]
        holds = (k for k in under if _footprint_share(low[row], high[row], low[k], high[k]) > _OVERLAP)
        known = {"model": model, "support": next(holds, None), "support_relation": "ontop"}
        objects.append(SimpleNamespace(id=row, label=label, room=0, **known))
    return Scene(tuple(objects), ids, low, high, boxes[:, :3])


# -- states and support


def unary_states(o: PlacedObject) -> tuple[str, ...]:
    """open / closed from the joints, and states of the model (filled, empty, folded, unfolded)."""
    words = list(o.model.states)
    if o.model.joints:
        is_open = any(o.joint_states.get(part, 0.0) > OPEN_FROM for part in o.model.joints)
        words.append("open" if is_open else "closed")
    return tuple(dict.fromkeys(words))


def support_pairs(home: Home) -> list[tuple[int, str, int]]:
    """(id, relation, id) with relation ontop, inside or under; ids are those of the home's objects.

    ``ontop`` and ``inside`` come from the placement, ``under`` from geometry: the object stands on the floor with at
    least half of its footprint below the other's highest board, with a gap between them.
    """
    pairs = [(o.id, o.support_relation, o.support) for o in home.objects if o.support is not None]
    standing = [o for o in home.objects if o.mounted == "floor"]
    bounds = {o.id: _bounds(o) for o in standing}
    for o in standing:
        low, high = bounds[o.id]
        for other in standing:
            boards = [s for s in other.model.surfaces if s.relation == "ontop"]
            if other.id == o.id or not boards:
                continue
            clear = other.T_world_object[2, 3] + max(s.center_m[2] for s in boards)
            overlap = _footprint_share(low, high, *bounds[other.id])
            if overlap > _OVERLAP and high[2] < clear - 0.01 and bounds[other.id][0][2] < 0.05:
                pairs.append((o.id, "under", other.id))
    return pairs


def _bounds(o: PlacedObject) -> tuple[F64, F64]:
    corners = o.mesh().triangles.reshape(-1, 3)
    return corners.min(0), corners.max(0)


def _footprint_share(low_a: F64, high_a: F64, low_b: F64, high_b: F64) -> float:
    """Overlap of two footprints (top view) as a share of the first."""
    side = np.minimum(high_a, high_b)[:2] - np.maximum(low_a, low_b)[:2]
    area = np.prod((high_a - low_a)[:2])
    return float(max(side[0], 0) * max(side[1], 0) / max(area, 1e-9))


# -- spatial relations between rows of a scene


def nearest_row(scene: Scene, rows: NDArray[np.intp], anchor: int, farthest: bool = False) -> int | None:
    """The row closest to (farthest from) the anchor in the plane, or None without a clear one."""
    distance = np.linalg.norm(scene.center[rows, :2] - scene.center[anchor, :2], axis=1)
    order = np.argsort(-distance if farthest else distance)
    if len(order) < 2:
        return None
    first, second = distance[order[0]], distance[order[1]]
    gap = first - second if farthest else second - first
    clear = gap > _NEAR_MARGIN_M and gap > _NEAR_MARGIN * max(first, second)
    return int(rows[order[0]]) if clear else None


def is_above(scene: Scene, row: int, anchor: int) -> bool:
    """Above the anchor without contact: footprints overlap, with a gap between them."""
    share = max(
        _footprint_share(scene.low[row], scene.high[row], scene.low[anchor], scene.high[anchor]),
        _footprint_share(scene.low[anchor], scene.high[anchor], scene.low[row], scene.high[row]),
    )
    return share > _OVERLAP and scene.low[row, 2] > scene.high[anchor, 2] + 0.05


def is_on(scene: Scene, row: int, anchor: int) -> bool:
    """Supported by the anchor from outside."""
    o = scene.objects[row]
    return o.support == scene.objects[anchor].id and o.support_relation == "ontop"


def is_in(scene: Scene, row: int, anchor: int) -> bool:
    """Supported by the anchor inside."""
    o = scene.objects[row]
    return o.support == scene.objects[anchor].id and o.support_relation == "inside"


def side_of(scene: Scene, row: int, anchor: int) -> str | None:
    """'front', 'behind', 'left' or 'right' of an anchor with a front (its own left), or None when diagonal or too
    far."""
    o = scene.objects[anchor]
    if not o.model.has_front or abs(o.front[2]) > 0.3:
        return None
    offset = scene.center[row, :2] - scene.center[anchor, :2]
    distance = float(np.linalg.norm(offset))
    reach = _ALLOCENTRIC_REACH_M + float(np.linalg.norm((scene.high - scene.low)[anchor, :2])) / 2
    if not 0.2 < distance < reach:
        return None
    front = o.front[:2] / np.linalg.norm(o.front[:2])
    left = np.array([-front[1], front[0]])  # looking along the front, left is counter-clockwise
    for name, direction in (("front", front), ("behind", -front), ("left", left), ("right", -left)):
        if offset @ direction > _SECTOR_COS * distance:
            return name
    return None


def is_between(scene: Scene, row: int, a: int, b: int) -> bool:
    """Whether it lies in the strip from a to b seen from above, well inside of both ends, at a shared height."""
    start, stop, p = scene.center[a, :2], scene.center[b, :2], scene.center[row, :2]
    axis = stop - start
    length = float(np.linalg.norm(axis))
    if length < 0.8:
        return False
    along = float((p - start) @ axis) / length**2
    across = abs(float((p - start) @ np.array([-axis[1], axis[0]]))) / length
    width = min(float((scene.high - scene.low)[k, :2].max()) for k in (a, b)) / 2
    low = max(scene.low[a, 2], scene.low[b, 2])
    high = min(scene.high[a, 2], scene.high[b, 2])
    level = scene.low[row, 2] < high and scene.high[row, 2] > low
    return 0.2 < along < 0.8 and across < max(width, 0.2) and level


def viewer_side(scene: Scene, row: int, anchor: int) -> str | None:
    """'left' or 'right' as seen by a viewer in front of the anchor who faces it, or None when unclear."""
    o = scene.objects[anchor]
    if not o.model.has_front or abs(o.front[2]) > 0.3:
        return None
    front = o.front[:2] / np.linalg.norm(o.front[:2])
    offset = scene.center[row, :2] - scene.center[anchor, :2]
    viewers_right = np.array([-front[1], front[0]])  # the viewer looks along -front
    lateral, forward = float(offset @ viewers_right), float(offset @ front)
    if abs(lateral) < 0.4 or abs(forward) > 1.5 * abs(lateral) or np.linalg.norm(offset) > 3.5:
        return None
    return "right" if lateral > 0 else "left"


def frame_labels(home: Home, visible: set[int]) -> dict[str, Any]:
    """States of the visible objects, and support pairs of visible objects (ids of the home's objects)."""
    return {
        "states": {
            str(i): list(unary_states(home.objects[i])) for i in sorted(visible) if unary_states(home.objects[i])
        },
        "pairs": [[a, r, b] for a, r, b in support_pairs(home) if a in visible and b in visible],
    }
