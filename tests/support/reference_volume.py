"""The volume once more, as slowly and plainly as possible: one dictionary, one point at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.config import VolumeConfig
from embodied_perceptron.geometry.transforms import back_project, invert_transform, project, transform_points
from embodied_perceptron.sensors.frame import PosedFrame

Coord = tuple[int, int, int]

UNITS = 1024
CAP = 65536


@dataclass
class ReferenceVoxel:
    hits: int = 0
    offset: list[int] = field(default_factory=lambda: [0, 0, 0])
    color: list[int] = field(default_factory=lambda: [0, 0, 0])
    evidence: float = 0.0
    last_seen_ns: int = 0


def block_of(c: Coord) -> Coord:
    return (c[0] // 8, c[1] // 8, c[2] // 8)


class ReferenceVolume:
    """Same rules as ``FeatureVolume``; geometry from ``geometry.py``, culling from nowhere."""

    def __init__(self, config: VolumeConfig) -> None:
        self.config = config
        self.voxels: dict[Coord, ReferenceVoxel] = {}

    def blocks(self) -> set[Coord]:
        return {block_of(c) for c in self.voxels}

    def drop(self, blocks: set[Coord]) -> None:
        self.voxels = {c: v for c, v in self.voxels.items() if block_of(c) not in blocks}

    def distance(self, block: Coord, center: NDArray[np.float64]) -> float:
        x, y, z = (block[i] + 0.5 - center[i] for i in range(3))
        return (x * x + y * y) + z * z

    def integrate(self, posed: PosedFrame) -> dict[str, int]:
        cfg, frame = self.config, posed.frame
        s = cfg.voxel_size_m
        report = {"points": 0, "touched": 0, "cleared": 0, "radius": 0, "budget": 0, "refused": 0}
        if not (np.nan_to_num(frame.depth_m, posinf=1e9) >= max(cfg.min_range_m, 1e-30)).any():
            return report
        center = posed.T_world_camera[:3, 3] / (8 * s)
        radius = cfg.radius_m / (8 * s)

        far = {b for b in self.blocks() if self.distance(b, center) > radius * radius}
        self.drop(far)
        report["radius"] = len(far)

        # points by voxel
        points, valid = back_project(frame.depth_m, frame.intrinsics)
        world = transform_points(posed.T_world_camera, points)
        found: dict[Coord, list[tuple[list[int], list[int]]]] = {}
        for v, u in zip(*np.nonzero(valid), strict=True):
            if not cfg.min_range_m <= float(frame.depth_m[v, u]) <= cfg.max_range_m:
                continue
            report["points"] += 1
            fixed = [math.floor(float(a) / s * UNITS) for a in world[v, u]]
            coord = (fixed[0] // UNITS, fixed[1] // UNITS, fixed[2] // UNITS)
            found.setdefault(coord, []).append(([f % UNITS for f in fixed], frame.color[v, u].tolist()))

        # who may stay
        wanted = {block_of(c) for c in found} - self.blocks()
        wanted = {b for b in wanted if self.distance(b, center) <= radius * radius}
        everyone = sorted(self.blocks() | wanted, key=lambda b: (self.distance(b, center), b))
        kept = set(everyone[: cfg.max_blocks])
        lost = self.blocks() - kept
        self.drop(lost)
        report["budget"] = len(lost)

        touched = set()
        for coord, hits in found.items():
            if block_of(coord) not in kept:
                report["refused"] += len(hits)
                continue
            touched.add(coord)
            voxel = self.voxels.setdefault(coord, ReferenceVoxel())
            for offset, color in hits:
                voxel.hits += 1
                voxel.offset = [a + b for a, b in zip(voxel.offset, offset, strict=True)]
                voxel.color = [a + b for a, b in zip(voxel.color, color, strict=True)]
            while voxel.hits > CAP:
                voxel.hits //= 2
                voxel.offset = [a // 2 for a in voxel.offset]
                voxel.color = [a // 2 for a in voxel.color]
            voxel.evidence = min(voxel.evidence + 0.875, 3.5)
            voxel.last_seen_ns = max(voxel.last_seen_ns, frame.stamp_ns)
        report["touched"] = len(touched)

        if cfg.clearing:
            report["cleared"] = self._clear(posed, touched)
        return report

    def _clear(self, posed: PosedFrame, touched: set[Coord]) -> int:
        cfg, frame = self.config, posed.frame
        s, depth = cfg.voxel_size_m, frame.depth_m
        r = max(1, round(cfg.clearing_window_rad * frame.intrinsics.fx))
        height, width = depth.shape
        T_camera_world = invert_transform(posed.T_world_camera)
        cleared = 0
        for coord in list(self.voxels):
            if coord in touched or self.voxels[coord].last_seen_ns == frame.stamp_ns:
                continue
            p = transform_points(T_camera_world, (np.array(coord) + 0.5) * s)
            z = float(p[2])
            uv, inside = project(p, frame.intrinsics)
            if not inside or not cfg.min_range_m <= z <= cfg.max_range_m:
                continue
            u, v = math.floor(uv[0] + 0.5), math.floor(uv[1] + 0.5)
            if u < r or v < r or u >= width - r or v >= height - r:
                continue
            window = depth[v - r : v + r + 1, u - r : u + r + 1]
            unknown = int((window == 0).sum())
            if depth[v, u] == 0 or 3 * unknown > window.size:
                continue
            nearest = window[window != 0].min()
            limit = z + cfg.clearing_margin_m + cfg.clearing_margin_per_m2 * z * z + 0.5 * math.sqrt(3.0) * s
            if nearest > limit or (depth[v, u] > limit and self._before_plane(posed, uv, u, v, r, p, limit)):
                self.voxels[coord].evidence -= (8 * (window.size - unknown) // window.size) / 16
                if self.voxels[coord].evidence < 0:
                    del self.voxels[coord]
                    cleared += 1
        return cleared

    def _before_plane(
        self, posed: PosedFrame, uv: NDArray[np.float64], u: int, v: int, r: int, p: NDArray[np.float64], limit: float
    ) -> bool:
        """All known pixels of the window lie on one plane, and the voxel at ``p`` in the camera is clear of it."""
        cfg, k = self.config, posed.frame.intrinsics
        depth = posed.frame.depth_m.astype(np.float64)
        at = {(j, i): depth[v + j, u + i] for j in range(-r, r + 1) for i in range(-r, r + 1)}
        known = {offset: 1.0 / d for offset, d in at.items() if d != 0}
        paired = {(j, i): w for (j, i), w in known.items() if (-j, -i) in known}
        # least squares over pixels that lie evenly around the middle: mean and slopes are independent
        offsets = np.array(list(paired), float)
        w = np.array(list(paired.values()))
        if np.linalg.matrix_rank(offsets) < 2:
            return False
        mean = w.mean()
        slope = np.linalg.lstsq(offsets, w, rcond=None)[0]
        tolerance = cfg.clearing_margin_m / at[0, 0] ** 2 + cfg.clearing_margin_per_m2
        if any(abs(w - (mean + np.dot(slope, offset))) > tolerance for offset, w in known.items()):
            return False
        there = mean + slope @ (uv[1] - v, uv[0] - u)
        if there <= 0 or 1.0 / there <= limit:
            return False
        normal = np.array([slope[1] * k.fx, slope[0] * k.fy, mean + slope @ (k.cy - v, k.cx - u)])
        length = np.linalg.norm(normal)
        off_surface = (1.0 - normal @ p) / length
        half = 0.5 * cfg.voxel_size_m * np.abs(posed.T_world_camera[:3, :3] @ normal / length).sum()
        return bool(off_surface > half + cfg.clearing_margin_m)
