"""What leaves the volume: means instead of sums."""

from __future__ import annotations

import numpy as np

from embodied_perceptron.fusion.voxels import COLOR, EVIDENCE, EVIDENCE_UNIT, HITS, OFFSET, OFFSET_UNITS, Columns
from embodied_perceptron.results import VoxelSnapshot


def to_snapshot(coords: Columns, records: Columns, last_seen: Columns, voxel_size_m: float) -> VoxelSnapshot:
    """Stored sums -> means. Takes what ``VoxelStore.gather`` returns."""
    hits = records[:, HITS]
    n = np.maximum(hits, 1)[:, None].astype(np.float64)
    # half a unit: a fixed-point number stands for the unit above it
    place = (records[:, OFFSET : OFFSET + 3] / n + 0.5) / OFFSET_UNITS
    color = (2 * records[:, COLOR : COLOR + 3].astype(np.int64) + hits[:, None]) // (2 * np.maximum(hits, 1)[:, None])
    return VoxelSnapshot(
        voxel_size_m=voxel_size_m,
        coords=coords,
        mean_point_m=((coords + place) * voxel_size_m).astype(np.float32),
        mean_color=color.astype(np.uint8),
        hits=hits.copy(),
        evidence=(records[:, EVIDENCE] * EVIDENCE_UNIT).astype(np.float32),
        last_seen_ns=last_seen,
    )
