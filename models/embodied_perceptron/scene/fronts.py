"""Which side of an object is its front.

Annotated boxes say it: -y. Predicted ones do not (a box turned by 180 degrees is the same box), but rooms do: furniture
stands with its back to a wall.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.scene.relations import SceneGeometry
from embodied_perceptron.scene.words import word_set

F64 = NDArray[np.float64]
FrontSource = Literal["boxes", "estimated", "none"]

# kinds of things that look the same from all sides, so that nobody speaks of their front
WITHOUT_FRONT = word_set("without_front")


def front_probabilities(g: SceneGeometry, labels: Sequence[str], source: FrontSource) -> F64:
    """(N, 4) probability that -y, +x, +y, -x of each box is its front; rows of things without a front are zero.

    Raises ``ValueError`` for an unknown source.
    """
    if source not in ("boxes", "estimated", "none"):
        raise ValueError(f'fronts must be "boxes", "estimated" or "none", got {source!r}')
    known = np.zeros((g.n, 4))
    if source == "none" or g.n == 0:
        return known
    has_front = np.array([label not in WITHOUT_FRONT for label in labels])
    if source == "boxes":
        known[has_front, 0] = 1.0
        return known
    return np.where(has_front[:, None], _estimate(g), 0.0)


def _estimate(g: SceneGeometry) -> F64:
    """(N, 4) by the room: the front looks inwards."""
    low, high = g.room
    inward = 0.5 * (low + high)[:2] - g.center[:, :2]
    inward = inward / np.maximum(np.linalg.norm(inward, axis=1, keepdims=True), 0.5)
    logits = 2.0 * np.einsum("nkd,nd->nk", g.sides, inward)
    share = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(share / share.sum(axis=1, keepdims=True))
