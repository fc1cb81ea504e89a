"""Canonical orientation: which side of an object is its front.

Annotated boxes say it: -y. Predicted ones do not (a box turned by 180 degrees is the same box), but rooms do: furniture
stands with its back to a wall, chairs face tables, pictures and windows look into the room. A small conditional logit
over the four sides reads that from the boxes around; its weights stand in ``lexicon/fronts.json`` with the command that
made them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.language.lexicon import word_set
from embodied_perceptron.language.relations import SceneGeometry

F64 = NDArray[np.float64]
FrontSource = Literal["boxes", "estimated", "none"]

WEIGHTS = Path(__file__).parent / "lexicon" / "fronts.json"
# kinds of things that look the same from all sides, so that nobody speaks of their front
WITHOUT_FRONT = word_set("without_front")
_ON_WALLS = word_set("on_walls")
_TABLES = word_set("tables")
_CEILING = frozenset(("light", "chandelier", "ceiling"))

FEATURES = (
    "company",
    "open_m",
    "open_behind_m",
    "depth_over_width",
    "table",
    "flush_behind",
    "flush",
    "shut",
    "shut_behind",
)
_NEIGHBOURS_M, _BAND_M, _FAR_M = 5.0, 2.5, 4.0
_FAR_OFF_M = 6.0  # what is further off says nothing of a front


def front_sources(sources: FrontSource | Sequence[FrontSource], count: int) -> tuple[FrontSource, ...]:
    """One source for each of ``count`` boxes. Raises ``ValueError`` for anything else, and for another number."""
    each = (sources,) * count if isinstance(sources, str) else tuple(sources)
    for source in (sources,) if isinstance(sources, str) else each:
        if source not in ("boxes", "estimated", "none"):
            raise ValueError(f'fronts must be "boxes", "estimated" or "none", got {source!r}')
    if len(each) != count:
        raise ValueError(f"fronts must be one source or one for each of {count} objects, got {len(each)}")
    return each


def front_probabilities(g: SceneGeometry, labels: Sequence[str], sources: FrontSource | Sequence[FrontSource]) -> F64:
    """(N, 4) probability that -y, +x, +y, -x of each box is its front; rows of things without a front are zero.

    ``sources`` is one for all boxes or one for each. Estimated fronts are given for what may be an anchor of ``g``
    alone.
    Raises ``ValueError`` for an unknown source.
    """
    source = np.array(front_sources(sources, g.n), dtype=object)
    known = np.zeros((g.n, 4))
    if g.n == 0:
        return known
    has_front = np.array([label not in WITHOUT_FRONT for label in labels])
    known[has_front & (source == "boxes"), 0] = 1.0
    estimated = has_front & (source == "estimated")
    rows = g.anchors[estimated[g.anchors]]
    if len(rows) == 0:
        return known
    shared, by_label = _weights()
    weights = np.stack([by_label.get(labels[row], shared) for row in rows])  # (K, F)
    logits = np.einsum("nkf,nf->nk", side_features(g, labels, rows), weights)
    share = np.exp(logits - logits.max(axis=1, keepdims=True))
    known[rows] = share / share.sum(axis=1, keepdims=True)
    return known


@lru_cache(maxsize=1)
def _weights() -> tuple[F64, dict[str, F64]]:
    """(F,) for any label, and by label."""
    data = json.loads(WEIGHTS.read_text(encoding="utf-8"))
    if tuple(data["features"]) != FEATURES:
        raise ValueError(f"{WEIGHTS.name} has weights of {data['features']}, wanted are {list(FEATURES)}")
    return np.array(data["shared"]), {label: np.array(row) for label, row in data["by_label"].items()}


def side_features(g: SceneGeometry, labels: Sequence[str], rows: NDArray[np.intp] | None = None) -> F64:
    """(K, 4, F) what speaks for each side (-y, +x, +y, -x) as the front, in the order of :data:`FEATURES`; of the
    boxes ``rows``, default all."""
    rows = np.arange(g.n, dtype=np.intp) if rows is None else rows
    everything = np.arange(g.n, dtype=np.intp)
    pairs = g.near(rows, everything, _FAR_OFF_M)  # of each of them with each object around, itself too
    pairs = pairs.where(np.ones(pairs.shape, dtype=bool))  # P of them, ordered by rows
    if len(rows) == 0:
        return np.zeros((0, 4, len(FEATURES)))
    place = np.full(g.n, -1, dtype=np.intp)
    place[rows] = np.arange(len(rows))
    one = place[pairs.target]  # (P,)
    begin = np.searchsorted(one, np.arange(len(rows)))
    sides = g.sides[rows]
    towards = -pairs.offset  # (P, 2)
    distance = np.where(pairs.target == pairs.anchor, 1e9, np.maximum(pairs.distance_xy, 1e-6))
    ahead = np.einsum("pd,pkd->pk", towards, sides[one])  # (P, 4)
    cosine = ahead / distance[:, None]
    aside = np.sqrt(np.maximum(distance[:, None] ** 2 - ahead**2, 0.0))
    size = g.size[rows]
    half = 0.5 * np.stack([size[:, 1], size[:, 0], size[:, 1], size[:, 0]], axis=1)  # (K, 4) depth
    width = np.roll(half, 1, axis=1)
    closeness = np.exp(-distance / 1.5) * (distance < _FAR_OFF_M)
    company = np.add.reduceat(closeness[:, None] * np.maximum(cosine, 0.0), begin)
    company /= company.sum(1, keepdims=True) + 1e-6
    # how far the room reaches beyond this side, by what stands there
    standing = np.array([label not in _CEILING for label in labels])[pairs.anchor]
    near = ((distance < _NEIGHBOURS_M) & standing)[:, None] & (aside < _BAND_M)
    depth = 0.5 * np.einsum("pkd,pd->pk", np.abs(sides)[one], g.extent[pairs.anchor, :2])
    reached = np.maximum.reduceat(np.where(near, ahead + depth, 0.0), begin)
    open_m = np.clip(reached - half, -0.5, _FAR_M)
    behind_m = np.roll(open_m, 2, axis=1)
    # chairs
    is_table = np.array([label in _TABLES for label in labels])
    table = np.zeros((len(rows), 4))
    if is_table.any():
        at_table = np.exp(-pairs.gap_xy / 0.4)[:, None] * cosine
        table = np.maximum.reduceat(np.where(is_table[pairs.anchor, None], at_table, -1.0), begin)
        around = np.add.reduceat(is_table[pairs.anchor].astype(np.intp), begin)
        table = np.where((around < int(is_table.sum()))[:, None], np.maximum(table, 0.0), table)  # the same
    # things that hang on a wall in the plane of this side
    hangs = np.array([label in _ON_WALLS for label in labels])[pairs.anchor] & (distance < _FAR_OFF_M)
    flush = np.exp(-np.abs(ahead - half[one] - 0.03) / 0.08) * (hangs[:, None] & (aside < 4.0))
    flush = np.minimum(np.add.reduceat(flush, begin), 3.0)
    columns = [
        company, open_m, behind_m, np.log((half + 0.03) / (width + 0.03)), table, np.roll(flush, 2, axis=1), flush,
        (open_m < 0.15).astype(np.float64), (behind_m < 0.15).astype(np.float64),
    ]  # fmt: skip
    return np.stack(columns, axis=-1)
