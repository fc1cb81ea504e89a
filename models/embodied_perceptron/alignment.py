"""Does depth lie on colour? Measured from the images alone.

Where depth steps from near to far there is mostly an edge in the colour image too. Shifting the outlines of depth over
the colour gradients shows where they fit best: at zero when depth is registered to colour, elsewhere when it is not.
This is done tile by tile, since the offsets of a wrong focal length point outwards and cancel over the whole image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

_STEP = 1.08  # a surface is behind another from this ratio of depths on
_MIN_OUTLINE = 0.45  # pixels of outline in a tile, per pixel of image width, before it is trusted
_MIN_PEAK = 3.0  # standard deviations by which the best shift must stand out


@dataclass(frozen=True)
class Alignment:
    """Result of :func:`measure_alignment`.

    Attributes:
        offset_px: median over the tiles of the distance by which depth must move to fit colour best.
        offset_share: the same as a share of the image width.
        gain: median over the tiles of how much better it fits there than as it is; 1 = no better.
        tiles: tiles that had something to say.
    """

    offset_px: float
    offset_share: float
    gain: float
    tiles: int


def measure_alignment(
    pairs: Sequence[tuple[NDArray[np.uint8], NDArray[np.float32]]], tiles: int = 3
) -> Alignment | None:
    """Offset between colour and depth.

    Args:
        pairs: (H, W, 3) uint8 RGB and (H, W) float32 canonical depth, a dozen from all over; all of one size.
        tiles: per side.

    Returns:
        None when fewer than three tiles show enough outlines to tell.

    Raises:
        ValueError: sizes that differ.
    """
    if not pairs:
        return None
    height, width = pairs[0][1].shape
    reach = max(4, round(0.045 * width))
    score = np.zeros((tiles, tiles, 2 * reach + 1, 2 * reach + 1))
    outline = np.zeros((tiles, tiles))
    for color, depth_m in pairs:
        if color.shape[:2] != depth_m.shape or depth_m.shape != (height, width):
            raise ValueError(f"colour {color.shape} and depth {depth_m.shape} must both be {(height, width)}")
        gradient, edges = np.fft.rfft2(_contrast(color)), _outlines(depth_m)
        for row in range(tiles):
            for column in range(tiles):
                part = np.zeros_like(edges)
                window = np.s_[
                    row * height // tiles : (row + 1) * height // tiles,
                    column * width // tiles : (column + 1) * width // tiles,
                ]
                part[window] = edges[window]
                fit = np.fft.irfft2(gradient * np.conj(np.fft.rfft2(part)), (height, width))
                score[row, column] += np.roll(fit, (reach, reach), (0, 1))[: 2 * reach + 1, : 2 * reach + 1]
                outline[row, column] += part.sum()
    offsets, gains = [], []
    for fit, pixels in zip(score.reshape(-1, *score.shape[2:]), outline.ravel(), strict=True):
        if pixels < _MIN_OUTLINE * width or fit.max() - fit.mean() < _MIN_PEAK * fit.std():
            continue
        y, x = np.unravel_index(int(fit.argmax()), fit.shape)
        offsets.append(float(np.hypot(int(x) - reach, int(y) - reach)))
        gains.append(float(fit.max() / max(fit[reach, reach], 1e-9)))
    if len(offsets) < 3:
        return None
    offset = float(np.median(offsets))
    return Alignment(offset, offset / width, float(np.median(gains)), len(offsets))


def _contrast(color: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(H, W) gradient of brightness, relative to its surroundings so that no single texture decides."""
    grey = np.asarray(cv2.GaussianBlur(cv2.cvtColor(color, cv2.COLOR_RGB2GRAY), (0, 0), 1.0), dtype=np.float32)
    gradient = np.hypot(cv2.Sobel(grey, cv2.CV_32F, 1, 0), cv2.Sobel(grey, cv2.CV_32F, 0, 1))
    around = cv2.blur(gradient, (61, 61)) + 2.0
    return np.asarray(np.minimum(gradient / around, 4.0), dtype=np.float32)


def _outlines(depth_m: NDArray[np.float32]) -> NDArray[np.float32]:
    """(H, W) 1 on the near side of depth steps; sensors leave a gap there, which is bridged."""
    known = (depth_m > 0) & np.isfinite(depth_m)
    near = np.where(known, depth_m, 0.0).astype(np.float32)
    behind = np.asarray(cv2.dilate(near, np.ones((9, 9)))) > _STEP * depth_m
    holes_far = np.where(known, depth_m, 1e6).astype(np.float32)
    border = np.asarray(cv2.dilate(holes_far, np.ones((3, 3)))) > _STEP * depth_m
    edges = (known & behind & border).astype(np.float32)
    edges[:2] = edges[-2:] = 0.0
    edges[:, :2] = edges[:, -2:] = 0.0
    return edges
