"""Counting and timing of the volume."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter


@dataclass(frozen=True)
class VolumeStatistics:
    """Size and history of a volume.

    Attributes:
        blocks, voxels: stored now.
        memory_bytes: voxel memory that has been written to, plus keyframes.
        reserved_bytes: voxel memory for the whole block budget (address space on the CPU, real memory on a GPU).
        keyframes: kept now; ``keyframes_dropped`` were pushed out by newer ones.
        frames_fused: since the start, the last reset or load.
        voxels_cleared: seen through, since then.
        points_refused: points that found no room, since then.
        blocks_evicted: by reason, since then.
    """

    blocks: int
    voxels: int
    memory_bytes: int
    reserved_bytes: int
    keyframes: int
    keyframes_dropped: int
    frames_fused: int
    voxels_cleared: int
    points_refused: int
    blocks_evicted: dict[str, int]


@dataclass
class Counters:
    """What happened so far."""

    frames_fused: int = 0
    voxels_cleared: int = 0
    points_refused: int = 0
    blocks_evicted: dict[str, int] = field(default_factory=lambda: {"radius": 0, "budget": 0})


class StageClock:
    """Wall time by stage."""

    def __init__(self) -> None:
        self.stage_ms: dict[str, float] = {}
        self._last = perf_counter()

    def lap(self, stage: str) -> None:
        """Book the time since the last lap on ``stage``."""
        now = perf_counter()
        self.stage_ms[stage] = self.stage_ms.get(stage, 0.0) + (now - self._last) * 1e3
        self._last = now
