"""Names of colours for measured ones.

How bright a surface measures depends on lamps and exposure: colours are first scaled by what the brightest things of
the scene measure. Then each name is a distribution over CIELAB with long tails; means and covariances stand in
``lexicon/colors.json`` with the command that made them.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

DISTRIBUTIONS = Path(__file__).parent / "lexicon" / "colors.json"
_BRIGHT_PERCENTILE, _BRIGHT = 85.0, 0.6  # so bright (linear) are the brightest of a scene taken to be
_TAIL = 4.0  # degrees of freedom: clear colours lie far from the mean of washed-out ones and are called the same


def to_linear(rgb: F64) -> F64:
    """sRGB in 0..255 -> linear light in 0..1."""
    c = rgb / 255.0
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def linear_to_lab(linear: F64) -> F64:
    """(N, 3) linear RGB -> (N, 3) CIELAB (D65)."""
    M = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = linear @ M.T / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16.0 / 116.0)
    return np.stack([116.0 * f[:, 1] - 16.0, 500.0 * (f[:, 0] - f[:, 1]), 200.0 * (f[:, 1] - f[:, 2])], axis=1)


def scene_lab(rgb: NDArray[np.generic]) -> F64:
    """(N, 3) sRGB in 0..255 of all objects of a scene, NaN = not measured -> (N, 3) CIELAB under usual light."""
    linear = to_linear(np.asarray(rgb, dtype=np.float64))
    known = linear[np.isfinite(linear).all(axis=1)]
    if len(known) == 0:
        return np.full(linear.shape, np.nan)
    luminance = known @ np.array([0.2126, 0.7152, 0.0722])
    gain = _BRIGHT / max(float(np.percentile(luminance, _BRIGHT_PERCENTILE)), 1e-3)
    return linear_to_lab(np.clip(linear * gain, 0.0, 1.2))


@lru_cache(maxsize=1)
def _distributions() -> tuple[tuple[str, ...], F64, F64, F64]:
    """Names, (K, 3) means, (K, 3, 3) inverse covariances, (K,) peak densities."""
    data = json.loads(DISTRIBUTIONS.read_text(encoding="utf-8"))["colors"]
    covariance = np.array([row["covariance"] for row in data.values()])
    peak = 1.0 / np.sqrt((2 * np.pi) ** 3 * np.linalg.det(covariance))
    return tuple(data), np.array([row["mean"] for row in data.values()]), np.linalg.inv(covariance), peak


def color_scores(rgb: NDArray[np.generic], name: str) -> F64:
    """(N, 3) sRGB in 0..255 of all objects of a scene, NaN = not measured -> (N,) probability that somebody calls it
    ``name``; NaN stays NaN.

    Raises ``ValueError`` for a name that is none of the known ones.
    """
    names, mean, inverse, peak = _distributions()
    if name not in names:
        raise ValueError(f"{name!r} is no known colour; known are {', '.join(names)}")
    d = scene_lab(rgb)[:, None] - mean[None]
    distance2 = np.einsum("nki,kij,nkj->nk", d, inverse, d)
    density = peak * (1.0 + distance2 / _TAIL) ** (-0.5 * (_TAIL + 3.0))
    return np.asarray(density[:, names.index(name)] / np.maximum(density.sum(axis=1), 1e-300))
