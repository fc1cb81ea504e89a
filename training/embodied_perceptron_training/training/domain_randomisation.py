"""Domain randomisation: sites, colours and images as other sensors would measure them.

The passed generator is the only source of randomness, so that a sample is a pure function of its index and its
generator, and prepared images are the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from embodied_perceptron_training.training.images import vary_colors

F64 = NDArray[np.float64]
_GREY = 128


@dataclass(frozen=True)
class SiteNoise:
    """Randomisation of the voxels of a map before they become sites."""

    share: float = 0.0  # of the samples that are randomised at all
    jitter_m: float = 0.008  # largest standard deviation of the mean points, per axis
    dropout: float = 0.3  # largest share of dropped voxels
    holes: int = 12  # largest number of balls without measurements
    hole_m: tuple[float, float] = (0.05, 0.3)  # (least, largest) radius
    colorless: float = 0.2  # share of the randomised samples that are grey or of one colour

    def __call__(
        self,
        points_m: F64,
        colors: NDArray[np.uint8],
        hits: NDArray[np.int32],
        rng: np.random.Generator,
    ) -> tuple[F64, NDArray[np.uint8], NDArray[np.int32]]:
        """(N, 3) points, (N, 3) RGB, (N,) hits -> the remaining ones, randomised; at least one of any."""
        if self.share == 0.0 or len(points_m) == 0 or rng.random() >= self.share:
            return points_m, colors, hits
        kept = rng.random(len(points_m)) >= rng.uniform(0.0, self.dropout)
        for _ in range(int(rng.integers(self.holes + 1))):
            middle = points_m[int(rng.integers(len(points_m)))]
            near = (np.abs(points_m - middle) < self.hole_m[1]).all(axis=1)
            kept[near] &= ((points_m[near] - middle) ** 2).sum(axis=1) > rng.uniform(*self.hole_m) ** 2
        if not kept.any():
            kept[0] = True
        points = points_m[kept] + rng.normal(0.0, rng.uniform(0.0, self.jitter_m), (int(kept.sum()), 3))
        return points, _other_colors(colors[kept], self.colorless, rng), hits[kept]


def _other_colors(colors: NDArray[np.uint8], colorless: float, rng: np.random.Generator) -> NDArray[np.uint8]:
    """(N, 3) RGB under other light and with noise, or without colour."""
    kind = rng.random()
    if kind < 0.5 * colorless:
        return np.full_like(colors, _GREY)
    x: NDArray[Any] = (colors.astype(np.float32) / 255.0) ** rng.uniform(0.6, 1.6)
    x = (x - 0.5) * rng.uniform(0.6, 1.4) + 0.5 + rng.uniform(-0.2, 0.2)
    x = x * rng.uniform(0.75, 1.25, 3).astype(np.float32)
    grey = x.mean(axis=1, keepdims=True)
    x = grey + (x - grey) * (0.0 if kind < colorless else rng.uniform(0.2, 1.5))
    x = x + rng.normal(0.0, rng.uniform(0.0, 0.08), x.shape).astype(np.float32)
    return np.asarray(np.clip(x, 0.0, 1.0) * 255.0 + 0.5, np.uint8)


def randomised_image(color: NDArray[np.uint8], kind: float, rng: np.random.Generator) -> NDArray[np.uint8]:
    """(H, W, 3) RGB as another camera would have taken it.

    ``kind`` in [0, 1) is drawn once per scene: below 0.06 every image is one grey, below 0.2 without colour, below 0.3
    very dark with grain; otherwise light, contrast, colour and sharpness vary strongly. A third of the images that are
    not one grey have dark corners, half of them traces of JPEG compression.
    """
    if kind < 0.06:
        return np.full_like(color, _GREY)
    return _compressed(_vignetted(_other_light(vary_colors(color, rng), kind, rng), rng), rng)


def _other_light(varied: NDArray[np.uint8], kind: float, rng: np.random.Generator) -> NDArray[np.uint8]:
    if kind < 0.2:
        return np.repeat(cv2.cvtColor(varied, cv2.COLOR_RGB2GRAY)[..., None], 3, axis=2).astype(np.uint8)
    x: NDArray[Any] = varied.astype(np.float32) / 255.0
    if kind < 0.3:
        x = x * rng.uniform(0.15, 0.45) + rng.normal(0.0, 0.05, x.shape).astype(np.float32)
    else:
        x = x * rng.uniform(0.8, 1.2, 3).astype(np.float32)
        if rng.random() < 0.3:  # the lamp in the room
            x = x * np.array([1.0, rng.uniform(0.7, 0.95), rng.uniform(0.45, 0.85)], np.float32)
    return np.asarray(np.clip(x, 0.0, 1.0) * 255.0 + 0.5, np.uint8)


def _vignetted(color: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """With probability 0.3, darkened by the square of the distance from the middle: by 20 to 60 % in the corners."""
    if rng.random() >= 0.3:
        return color
    (h, w), loss = color.shape[:2], rng.uniform(0.2, 0.6)
    y, x = np.linspace(-1.0, 1.0, h)[:, None], np.linspace(-1.0, 1.0, w)[None]
    light = (1.0 - loss * (x**2 + y**2) / 2.0).astype(np.float32)
    return np.asarray(color * light[..., None] + 0.5, np.uint8)


def _compressed(color: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """With probability 0.5, as a JPEG of quality 25 to 90 shows it."""
    if rng.random() >= 0.5:
        return color
    quality = int(rng.integers(25, 91))
    _, data = cv2.imencode(".jpg", color[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])
    return np.ascontiguousarray(cv2.imdecode(data, cv2.IMREAD_COLOR)[..., ::-1], np.uint8)
