"""Semantic occupancy: a dense 3-D feature pyramid over the fused grid and one classifier per scale.

EmbodiedScan paper, section 4.2 (dense stream) and appendix: 768 -> 128 channels at 40x40x16, 20x20x8 and 10x10x4 for
the ``paper`` preset. ``tiny`` and ``base`` use the same modules with fewer channels on the shared sparse features.
Grids are laid out (B, C, X, Y, Z).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.sparse import cpu_kernels
from embodied_perceptron.sparse.sites import Sites
from embodied_perceptron.sparse.tensor import rows_in_grid

EMPTY = 0  # class index of free space; 1..K are the semantic classes


class ResidualBlock3d(nn.Module):
    """Two 3x3x3 convolutions with batch norm and a (projected) shortcut."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm3d(out_channels)
        self.conv2 = nn.Conv3d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm3d(out_channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv3d(in_channels, out_channels, 1, stride=stride, bias=False), nn.BatchNorm3d(out_channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        """(B, Cin, X, Y, Z) -> (B, Cout, X/stride, Y/stride, Z/stride)."""
        y = self.norm1(self.conv1(x)).relu_()
        y = self.norm2(self.conv2(y))
        out: Tensor = (y + self.shortcut(x)).relu_()
        return out


def _upsample(in_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.ConvTranspose3d(in_channels, out_channels, 2, stride=2, bias=False),
        nn.BatchNorm3d(out_channels),
        nn.ReLU(inplace=True),
        nn.Conv3d(out_channels, out_channels, 3, padding=1, bias=False),
        nn.BatchNorm3d(out_channels),
        nn.ReLU(inplace=True),
    )


def _output(in_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv3d(in_channels, out_channels, 3, padding=1, bias=False),
        nn.BatchNorm3d(out_channels),
        nn.ReLU(inplace=True),
    )


class DensePyramid(nn.Module):
    """3-D feature pyramid: down by residual blocks (channels double per level), up by transposed convolutions and sums.

    Args:
        in_channels: C of the fused grid.
        out_channels: C of every returned level.
        levels: number of scales; grid sizes must be divisible by ``2 ** (levels - 1)``.
    """

    def __init__(self, in_channels: int, out_channels: int = 128, levels: int = 3) -> None:
        super().__init__()
        if levels < 1:
            raise ValueError(f"levels must be at least 1, got {levels}")
        widths = [in_channels * 2**i for i in range(levels)]
        self.divisor = 2 ** (levels - 1)
        self.down = nn.ModuleList(
            ResidualBlock3d(in_channels if i == 0 else widths[i - 1], widths[i], 1 if i == 0 else 2)
            for i in range(levels)
        )
        self.up = nn.ModuleList(_upsample(widths[i], widths[i - 1]) for i in range(1, levels))
        self.out = nn.ModuleList(_output(w, out_channels) for w in widths)

    def forward(self, grid: Tensor, scales: int | None = None) -> list[Tensor]:
        """(B, Cin, X, Y, Z) -> finest first: [(B, Cout, X, Y, Z), (B, Cout, X/2, Y/2, Z/2), ...].

        ``scales``: number of scales to return, finest first; None = all.

        Raises ``ValueError`` when a grid size is not divisible by ``2 ** (levels - 1)``.
        """
        if any(s % self.divisor for s in grid.shape[2:]):
            raise ValueError(f"grid size {tuple(grid.shape[2:])} must be divisible by {self.divisor} per axis")
        descending = []
        x = grid
        for block in self.down:
            x = block(x)
            descending.append(x)
        ascending = [x]  # coarsest first
        for skip, up in zip(descending[-2::-1], reversed(self.up), strict=True):
            ascending.append(skip + up(ascending[-1]))
        return [out(x) for out, x in zip(self.out[:scales], ascending[::-1][:scales], strict=True)]


class OccupancyHead(nn.Module):
    """A bias-free 1x1x1 classifier per scale: ``num_classes`` semantic classes + :data:`EMPTY` at index 0."""

    def __init__(self, in_channels: int, num_classes: int, levels: int = 3) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.classify = nn.ModuleList(nn.Conv3d(in_channels, num_classes + 1, 1, bias=False) for _ in range(levels))

    def forward(self, pyramid: list[Tensor]) -> list[Tensor]:
        """[(B, C, X, Y, Z), ...] -> logits [(B, num_classes + 1, X, Y, Z), ...] of the same scales, finest first."""
        if len(pyramid) > len(self.classify):
            raise ValueError(f"expected at most {len(self.classify)} scales, got {len(pyramid)}")
        return [layer(x) for layer, x in zip(self.classify, pyramid, strict=False)]


def decode_filled(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(K + 1, X, Y, Z) logits -> (M, 3) indices of the cells that are not empty, (M,) class index and its probability.

    Fast on the CPU, because most cells are empty; see :func:`decode_cells` for devices.
    """
    rows = logits.movedim(0, -1)  # (X, Y, Z, K + 1)
    filled = rows.amax(dim=-1) > rows[..., EMPTY]  # ties go to the first class, which is empty
    chosen = rows[filled]
    return filled.nonzero(), chosen.max(dim=-1).indices, torch.softmax(chosen, dim=-1).amax(-1)


def decode_cells(logits: Tensor) -> tuple[Tensor, Tensor]:
    """(K + 1, X, Y, Z) logits -> (X, Y, Z) class index and its probability, without reading the number of filled cells
    from the device."""
    best, label = logits[1:].max(dim=0)
    label = (label + 1).masked_fill_(best <= logits[EMPTY], EMPTY)  # ties go to the first class, which is empty
    return label, torch.softmax(logits, dim=0).amax(0)


def color_sums(sites: Sites, colors: Tensor, stride: int, origin: Sequence[int], cells: Sequence[int]) -> Tensor:
    """(X * Y * Z, 4) sums of the (N, 3) colours of the sites in each cell of a grid, and their number.

    Args:
        sites: of one sample; colors: of these sites.
        stride: edge of a cell, in sites; origin: lower corner of the grid, in sites; cells: (X, Y, Z) of it.
    """
    count = math.prod(cells)
    if cpu_kernels.serves(colors):
        first, size = np.array(origin, np.int64), np.array(cells, np.int64)
        total = colors.new_zeros(count, colors.shape[1] + 1)
        _sum_in_cells(sites.keys.numpy(), colors.numpy(), first, stride, size, total.numpy())
        return total
    every = torch.cat([colors, torch.ones_like(colors[:, :1])], 1)
    total = colors.new_zeros(count + 1, colors.shape[1] + 1)  # the last cell is for sites outside
    return total.index_add_(0, rows_in_grid(sites, stride, origin, cells), every)[:count]


@njit(cache=True, nogil=True)
def _sum_in_cells(
    keys: NDArray[np.int64],
    feats: NDArray[np.float32],
    first: NDArray[np.int64],
    stride: int,
    cells: NDArray[np.int64],
    total: NDArray[np.float32],
) -> None:
    """Add up columns of the sites in each cell of a grid, and count them.

    Args:
        keys: (N,) site keys of one sample.
        feats: (N, C), any columns.
        first: (3,) lower corner of the grid, in sites; stride: edge of a cell, in sites; cells: (3,) of the grid.
        total: (X * Y * Z, C + 1) out, filled with zeros: sums, and the number of sites.
    """
    for i in range(keys.shape[0]):
        site = cpu_kernels.site_coordinates(keys[i])
        x, y, z = (site[0] - first[0]) // stride, (site[1] - first[1]) // stride, (site[2] - first[2]) // stride
        if x < 0 or y < 0 or z < 0 or x >= cells[0] or y >= cells[1] or z >= cells[2]:
            continue
        flat = (x * cells[1] + y) * cells[2] + z
        for c in range(feats.shape[1]):
            total[flat, c] += feats[i, c]
        total[flat, feats.shape[1]] += 1
