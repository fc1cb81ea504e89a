"""Names of colours for measured ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

# what people call so, sRGB; light and dark variants of a name stand beside each other
_PROTOTYPES: tuple[tuple[str, tuple[int, int, int]], ...] = (
    ("white", (235, 233, 228)), ("white", (205, 203, 198)), ("gray", (140, 140, 142)), ("gray", (100, 100, 102)),
    ("gray", (170, 170, 172)), ("black", (26, 26, 28)), ("black", (52, 50, 50)), ("beige", (211, 194, 163)),
    ("beige", (190, 165, 125)), ("brown", (115, 77, 48)), ("brown", (160, 120, 78)), ("brown", (75, 50, 36)),
    ("red", (184, 38, 33)), ("red", (120, 35, 32)), ("orange", (222, 120, 33)), ("orange", (170, 95, 35)),
    ("yellow", (224, 191, 56)), ("yellow", (165, 140, 50)), ("green", (64, 120, 64)), ("green", (45, 80, 48)),
    ("green", (110, 160, 100)), ("blue", (43, 82, 148)), ("blue", (35, 55, 95)), ("blue", (110, 150, 200)),
    ("purple", (107, 64, 128)), ("purple", (70, 45, 85)), ("pink", (219, 140, 153)), ("pink", (170, 105, 118)),
)  # fmt: skip
_SPREAD = 14.0  # CIELAB units within which a mean colour of a box strays


def to_lab(rgb: NDArray[np.generic]) -> F64:
    """(N, 3) sRGB in 0..255 -> (N, 3) CIELAB (D65)."""
    c = np.asarray(rgb, dtype=np.float64) / 255.0
    linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    M = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = linear @ M.T / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16.0 / 116.0)
    return np.stack([116.0 * f[:, 1] - 16.0, 500.0 * (f[:, 0] - f[:, 1]), 200.0 * (f[:, 1] - f[:, 2])], axis=1)


_NAMES = tuple(dict.fromkeys(name for name, _ in _PROTOTYPES))
_ROWS = {n: [k for k, (m, _) in enumerate(_PROTOTYPES) if m == n] for n in _NAMES}
_LAB = to_lab(np.array([rgb for _, rgb in _PROTOTYPES]))


def color_scores(rgb: NDArray[np.generic], name: str) -> F64:
    """(N, 3) sRGB in 0..255, NaN = not measured -> (N,) probability that somebody calls it ``name``; NaN stays NaN.

    Raises ``ValueError`` for a name that is none of the twelve.
    """
    if name not in _NAMES:
        raise ValueError(f"{name!r} is no known colour; known are {', '.join(_NAMES)}")
    values = np.asarray(rgb, dtype=np.float64)
    known: NDArray[np.bool_] = np.asarray(np.isfinite(values).all(axis=1))
    d = to_lab(np.where(known[:, None], values, 0.0))[:, None] - _LAB[None]
    d[..., 0] *= 0.6  # light and shade change brightness more than hue
    closeness = np.exp(-0.5 * ((d**2).sum(-1) / _SPREAD**2))
    by_name = np.stack([closeness[:, _ROWS[n]].max(axis=1) for n in _NAMES], axis=1)
    score = by_name[:, _NAMES.index(name)] / (by_name.sum(axis=1) + 1e-3)
    return np.asarray(np.where(known, score, np.nan))
