"""A map's voxels as an OctoMap of occupied leaves: the binary tree that ``octomap_server`` and octovis read (.bt).

    # Octomap OcTree binary file
    id OcTree, size (number of nodes), res (metres), data
    each inner node from the root on, children in order: 16 bits, two for each child, lowest first

Of a child's bits 01 is an occupied leaf, 11 an inner node, 00 unknown; free space is not written. Eight occupied leaves
of one node are one leaf. After Hornung et al., "OctoMap", 2013, and its file format.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.recordings.files import write_atomically

_DEPTH = 16  # levels of every OctoMap; the world's origin is in its middle
_OCCUPIED, _INNER = 0b10, 0b11  # the lower bit is the first of the two


def write_octomap(path: str | Path, coords: NDArray[np.int32], voxel_size_m: float) -> None:
    """Write (N, 3) voxel coordinates. Raises ``OSError``, and ``ValueError`` for a map beyond an OctoMap's size."""
    middle = 1 << (_DEPTH - 1)
    keys = np.asarray(coords, np.int64).reshape(-1, 3) + middle
    if keys.size and (keys.min() < 0 or keys.max() >= 2 * middle):
        reach = f"reaches {middle * voxel_size_m:g} m from the origin"
        raise ValueError(f"an OctoMap of {voxel_size_m:g} m voxels {reach}, the map further")
    codes = np.zeros(len(keys), np.int64)
    for axis in range(3):
        for bit in range(_DEPTH):
            codes |= ((keys[:, axis] >> bit) & 1) << (3 * bit + axis)
    nodes: list[int] = []
    count = 1 + _write(np.unique(codes), _DEPTH, nodes) if len(codes) else 0
    header = (
        "# Octomap OcTree binary file\n# (feel free to add / change comments, but leave the first line as it is!)\n#\n"
        f"id OcTree\nsize {count}\nres {voxel_size_m:.9g}\ndata\n"
    )
    write_atomically(path, header.encode() + np.array(nodes, "<u2").tobytes())


def _write(codes: NDArray[np.int64], level: int, nodes: list[int]) -> int:
    """Append an inner node of ``level`` with the sorted ``codes`` in it and what is below; how many nodes that are."""
    place = len(nodes)
    nodes.append(0)
    shift = 3 * (level - 1)
    bounds = np.searchsorted((codes >> shift) & 7, np.arange(9))
    bits, count = 0, 0
    for child in range(8):
        first, last = int(bounds[child]), int(bounds[child + 1])
        if first == last:
            continue
        count += 1
        if last - first == 1 << shift:  # full, or a voxel
            bits |= _OCCUPIED << (2 * child)
        else:
            bits |= _INNER << (2 * child)
            count += _write(codes[first:last], level - 1, nodes)
    nodes[place] = bits
    return count
