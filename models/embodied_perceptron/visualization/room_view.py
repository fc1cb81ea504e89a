"""The map as a room in perspective, rendered in software: walls that would hide the inside are left away.

Points become discs with a depth buffer. Eye-dome lighting follows Boucheny (2009): a pixel is darkened by how much
nearer its surroundings are.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import BOX_EDGES, box_corners
from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.transforms import (
    Intrinsics,
    invert_transform,
    make_transform,
    pack_keys,
    transform_points,
    world_to_voxel,
)
from embodied_perceptron.results import Perception, SceneObject
from embodied_perceptron.scene.segmentation.cells import build_cells
from embodied_perceptron.visualization.drawing import (
    PATH_COLOR,
    SHADE,
    Color,
    Image,
    Tags,
    clip_to_near_plane,
    color_of_id,
    label_of,
    line,
    pixel,
    positions_of,
)

_BACKGROUND_TOP, _BACKGROUND_BOTTOM = np.array([58.0, 64.0, 74.0]), np.array([24.0, 26.0, 31.0])
_FIELD_OF_VIEW = np.radians(36.0)
_CEILING_M = 2.05  # above the floor: cut, so that one looks in from above
_AZIMUTHS = 16
_PROBES = 10_000
_SUPERSAMPLE = 2
_LINE_SLACK_M = 0.06
_LIGHT = np.array([0.35, 0.25, 0.9]) / np.linalg.norm([0.35, 0.25, 0.9])

# --------------------------------------------------------------------------------------------------------------------
# points to pixels


def splat(
    points_m: NDArray[np.float64],
    colors: NDArray[np.uint8],
    radius_m: float,
    T_world_camera: NDArray[np.float64],
    intrinsics: Intrinsics,
) -> tuple[Image, NDArray[np.float32], NDArray[np.int32]]:
    """Draw (N, 3) points as discs that bulge towards the camera, so that neighbours meet half-way.

    Returns the (H, W, 3) picture (black where nothing is), (H, W) depth in metres (+Inf where nothing is) and the
    (H, W) number of the point that is seen (-1 where none).
    """
    camera = transform_points(invert_transform(T_world_camera), points_m)
    depth = np.full((intrinsics.height, intrinsics.width), np.inf, dtype=np.float32)
    number = np.full(depth.shape, -1, dtype=np.int32)
    _splat_discs(camera, radius_m, intrinsics.fx, intrinsics.fy, intrinsics.cx, intrinsics.cy, depth, number)
    image = np.zeros((*depth.shape, 3), dtype=np.uint8)
    seen = number >= 0
    image[seen] = colors[number[seen]]
    return image, depth, number


@njit(cache=True)
def _splat_discs(
    camera: NDArray[np.float64],
    radius_m: float,
    fx: float,
    fy: float,
    cx: float,
    cy: float,
    depth: NDArray[np.float32],
    number: NDArray[np.int32],
) -> None:
    rows, columns = depth.shape
    for i in range(len(camera)):
        z = camera[i, 2]
        if z < 0.05:
            continue
        u, v = fx * camera[i, 0] / z + cx, fy * camera[i, 1] / z + cy
        r = max(0.7, fx * radius_m / z)
        if u + r < 0 or v + r < 0 or u - r > columns - 1 or v - r > rows - 1:
            continue
        for y in range(max(0, int(np.ceil(v - r))), min(rows - 1, int(np.floor(v + r))) + 1):
            for x in range(max(0, int(np.ceil(u - r))), min(columns - 1, int(np.floor(u + r))) + 1):
                d2 = ((x - u) * (x - u) + (y - v) * (y - v)) / (r * r)
                if d2 > 1.0:
                    continue
                near = np.float32(z - 0.5 * radius_m * (1.0 - d2))
                if near < depth[y, x]:
                    depth[y, x] = near
                    number[y, x] = i


def eye_dome(depth: NDArray[np.float32], radius_px: int, strength: float = 1.0) -> NDArray[np.float32]:
    """(H, W) factors in (0, 1] that darken pixels with nearer surroundings; 1 where nothing is."""
    known = np.isfinite(depth)
    # where nothing is, is far away: it darkens nobody
    logarithm = np.where(known, np.log2(np.where(known, depth, 1.0)), 100.0).astype(np.float32)
    return _eye_dome(logarithm, radius_px, 60.0 * strength)


@njit(cache=True)
def _eye_dome(logarithm: NDArray[np.float32], radius: int, strength: float) -> NDArray[np.float32]:
    rows, columns = logarithm.shape
    factor = np.ones((rows, columns), dtype=np.float32)
    for y in range(rows):
        for x in range(columns):
            own = logarithm[y, x]
            if own >= 100.0:
                continue
            total = 0.0
            for dy in (-radius, 0, radius):
                for dx in (-radius, 0, radius):
                    v, u = min(max(y + dy, 0), rows - 1), min(max(x + dx, 0), columns - 1)
                    total += max(0.0, own - logarithm[v, u])
            factor[y, x] = np.exp(-strength * min(total / 8.0, 0.02))
    return factor


# --------------------------------------------------------------------------------------------------------------------
# the room


@dataclass(frozen=True, eq=False)
class _Surfels:
    """What is drawn: voxels with what is needed to light and to cut them."""

    points: NDArray[np.float64]
    colors: NDArray[np.uint8]
    normals: NDArray[np.float64]  # zero where unknown
    labels: NDArray[np.int32]  # index into the classes of the perception
    classes: tuple[str, ...]
    size_m: float
    center: NDArray[np.float64]
    extent: NDArray[np.float64]  # (F, 3) points that tell what the picture must hold

    def thinned(self, step: int) -> _Surfels:
        """Every ``step``-th of them."""
        every = slice(None, None, step)
        return replace(
            self,
            points=self.points[every],
            colors=self.colors[every],
            normals=self.normals[every],
            labels=self.labels[every],
        )

    def of(self, name: str) -> NDArray[np.bool_]:
        """(N,) mask of one class; empty when there is no such class."""
        number = self.classes.index(name) if name in self.classes else -1
        mask: NDArray[np.bool_] = self.labels == number
        return mask


def render_3d(
    perception: Perception,
    objects: Sequence[SceneObject] | None = None,
    trajectory_m: NDArray[np.float64] | None = None,
    size: tuple[int, int] = (1280, 800),
    azimuth_deg: float | None = None,
    elevation_deg: float = 42.0,
) -> Image:
    """(height, width, 3) uint8 RGB perspective picture of the map from outside and above, without ceiling.

    Args:
        perception: its voxels are drawn in their colours.
        objects: boxes to draw; None draws the confirmed ones.
        trajectory_m: (T, 3) positions or (T, 4, 4) poses of the camera.
        size: width and height in pixels.
        azimuth_deg: direction to look from, counter-clockwise from the world's x axis; None takes the one that shows
            most of the furniture.
        elevation_deg: height of the viewer above the horizon.
    """
    objects = perception.objects if objects is None else objects
    width, height = size
    if width < 16 or height < 16:
        raise ValueError(f"size must be at least 16 x 16 pixels, got {width} x {height}")
    surfels = _surfels(perception, objects)
    if azimuth_deg is None:
        azimuth_deg = _best_azimuth(surfels, elevation_deg)
    K, T = _viewer(surfels, azimuth_deg, elevation_deg, width, height)
    image, depth = _draw_surfels(surfels, K, T)
    _draw_lines(image, depth, objects, positions_of(trajectory_m), T, K)
    _draw_labels(image, objects, T, K)
    return image


def _surfels(perception: Perception, objects: Sequence[SceneObject]) -> _Surfels:
    """Voxels below the ceiling, with normals and classes from their cells."""
    voxels, semantic = perception.voxels, perception.semantic
    floor_z = perception.grid.floor_z_m if np.isfinite(perception.grid.floor_z_m) else 0.0
    points = np.asarray(voxels.mean_point_m, dtype=np.float64)
    labels = np.zeros(len(points), dtype=np.int32)
    if len(points) and len(semantic.labels):
        size = semantic.cell_size_m
        own = pack_keys(torch.from_numpy(world_to_voxel(points, size))).numpy()
        known = pack_keys(torch.from_numpy(world_to_voxel(semantic.centers_m, size))).numpy()
        order = np.argsort(known)
        at = order[np.minimum(np.searchsorted(known[order], own), len(known) - 1)]
        labels = np.where(known[at] == own, semantic.labels[at], 0).astype(np.int32)
    cells = build_cells(voxels, 3 * voxels.voxel_size_m)
    normals = cells.normal[cells.cell_of_voxel] if len(points) else np.zeros((0, 3))
    shown = points[:, 2] - floor_z <= _CEILING_M
    center, extent = np.array([0.0, 0.0, floor_z]), points[shown][:: max(1, np.count_nonzero(shown) // _PROBES)]
    if len(extent):
        # stray voxels far off must neither move the room out of the middle nor shrink it, nor boxes around them
        low_m, high_m = np.percentile(extent, [1.0, 99.0], axis=0)
        center = (low_m + high_m) / 2
        corners = box_corners(np.stack([o.box for o in objects])).reshape(-1, 3) if objects else np.zeros((0, 3))
        # each corner as heavy as a percent of the room: the fit below leaves a few of the points out
        corners = np.repeat(corners, max(1, len(extent) // 100), axis=0)
        extent = np.concatenate([extent, corners])
        extent = extent[((extent >= low_m - 0.5) & (extent <= high_m + 0.5)).all(axis=1)]
    return _Surfels(
        points[shown],
        voxels.mean_color[shown],
        normals[shown],
        labels[shown],
        semantic.classes,
        voxels.voxel_size_m,
        center,
        extent,
    )


def _viewer(
    surfels: _Surfels, azimuth_deg: float, elevation_deg: float, width: int, height: int
) -> tuple[Intrinsics, NDArray[np.float64]]:
    """Camera that looks at the middle of the room from so far that nearly all of it fits in."""
    azimuth, elevation = np.radians(azimuth_deg), np.radians(np.clip(elevation_deg, 1.0, 89.0))
    towards = np.array(
        [np.cos(azimuth) * np.cos(elevation), np.sin(azimuth) * np.cos(elevation), np.sin(elevation)]
    )  # from the room to the viewer
    forward = -towards
    right = np.cross(forward, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    R = np.stack([right, np.cross(forward, right), forward], axis=1)
    f = height / 2 / np.tan(_FIELD_OF_VIEW / 2)
    K = Intrinsics(f, f, (width - 1) / 2, (height - 1) / 2, width, height)
    if len(surfels.extent) == 0:
        return K, make_transform(R, surfels.center + 5.0 * towards)
    local = (surfels.extent - surfels.center) @ R
    half = np.array([width, height]) / 2 / f * 0.93
    aim = np.zeros(2)
    for _ in range(3):
        # a point at lateral offset a and depth offset d is in view from distance r when a / (r + d) <= tan(half angle)
        needed = (np.abs(local[:, :2] - aim) / half).max(axis=1) - local[:, 2]
        distance = max(float(np.percentile(needed, 99.8)), 0.6)
        seen = (local[:, :2] - aim) / np.maximum(local[:, 2:] + distance, 0.1)
        first, last = np.percentile(seen, [0.15, 99.85], axis=0)
        aim = aim + (first + last) / 2 * distance  # the near side of the room takes more of the picture
    return K, make_transform(R, surfels.center + R[:, :2] @ aim + distance * towards)


def _visible(surfels: _Surfels, eye: NDArray[np.float64]) -> NDArray[np.bool_]:
    """(N,) what is drawn: everything but walls seen from behind."""
    wall = surfels.of("structure")
    inward = surfels.center[:2] - surfels.points[:, :2]
    normal = surfels.normals[:, :2]
    # normals have no sign: the middle of the room is in front of its walls
    oriented = normal * np.sign(np.einsum("ij,ij->i", normal, inward))[:, None]
    to_eye = eye[:2] - surfels.points[:, :2]
    upright = np.abs(surfels.normals[:, 2]) < 0.5
    clear = upright & (np.linalg.norm(normal, axis=1) > 0)
    facing = np.where(clear, np.einsum("ij,ij->i", oriented, to_eye), np.einsum("ij,ij->i", inward, to_eye))
    visible: NDArray[np.bool_] = ~wall | (facing > 0)
    return visible


def _best_azimuth(surfels: _Surfels, elevation_deg: float) -> float:
    """The direction from which most furniture, and floor, is seen."""
    best, best_score = 0.0, -1.0
    # a thinned map with larger discs: what counts is how much of the room is seen, not how large
    step = max(1, len(surfels.points) // _PROBES)
    radius_m = 0.8 * surfels.size_m * np.sqrt(step)
    thin = surfels.thinned(step)
    weight = np.where(thin.of("object"), 1.0, np.where(thin.of("floor"), 0.5, 0.1))
    for azimuth in np.arange(_AZIMUTHS) * 360.0 / _AZIMUTHS + 11.25:
        K, T = _viewer(surfels, float(azimuth), elevation_deg, 360, 225)
        rows = np.flatnonzero(_visible(thin, T[:3, 3]))
        _, _, number = splat(thin.points[rows], thin.colors[rows], radius_m, T, K)
        score = float(weight[rows[np.unique(number[number >= 0])]].sum())
        if score > best_score:
            best, best_score = float(azimuth), score
    return best


def _draw_surfels(
    surfels: _Surfels, intrinsics: Intrinsics, T_world_camera: NDArray[np.float64]
) -> tuple[Image, NDArray[np.float32]]:
    """Lit picture and its depth."""
    width, height = intrinsics.width, intrinsics.height
    fine = intrinsics.resized(width * _SUPERSAMPLE, height * _SUPERSAMPLE)
    rows = np.flatnonzero(_visible(surfels, T_world_camera[:3, 3]))
    colors = _light(surfels, rows, T_world_camera[:3, 3])
    image, depth, _ = splat(surfels.points[rows], colors, 0.8 * surfels.size_m, T_world_camera, fine)
    factor = eye_dome(depth, 2 * _SUPERSAMPLE)
    fade = np.linspace(0.0, 1.0, image.shape[0])[:, None, None]
    canvas = np.broadcast_to(_BACKGROUND_TOP * (1 - fade) + _BACKGROUND_BOTTOM * fade, image.shape)
    lit = np.where(np.isfinite(depth)[:, :, None], image * factor[:, :, None], canvas).astype(np.float32)
    small = cv2.resize(lit, (width, height), interpolation=cv2.INTER_AREA)
    near = depth.reshape(height, _SUPERSAMPLE, width, _SUPERSAMPLE).min(axis=(1, 3))
    picture: Image = np.clip(small, 0, 255).astype(np.uint8)
    return picture, near


def _light(surfels: _Surfels, rows: NDArray[np.int64], eye: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Colours under a lamp above, so that tops, fronts and sides differ."""
    normal = surfels.normals[rows]
    towards = eye - surfels.points[rows]
    side = np.sign(np.einsum("ij,ij->i", normal, towards))[:, None]
    diffuse = np.clip((normal * side) @ _LIGHT, 0.0, 1.0)
    known = np.abs(normal).max(axis=1, initial=0.0) > 0
    shade = np.where(known, 0.72 + 0.36 * diffuse, 0.92)
    lit: NDArray[np.uint8] = np.clip(surfels.colors[rows] * shade[:, None], 0, 255).astype(np.uint8)
    return lit


@dataclass
class _Lines:
    """Lines in space, drawn together: full where they are seen, faint where something is in front of them."""

    T_camera_world: NDArray[np.float64]
    intrinsics: Intrinsics
    depth: NDArray[np.float32]
    seen: list[tuple[NDArray[np.float64], NDArray[np.float64], Color]] = field(default_factory=list)
    hidden: list[tuple[NDArray[np.float64], NDArray[np.float64], Color]] = field(default_factory=list)

    def add(self, start_m: NDArray[np.float64], end_m: NDArray[np.float64], color: Color) -> None:
        """A segment between two (3,) world points."""
        clipped = clip_to_near_plane(*transform_points(self.T_camera_world, np.stack([start_m, end_m])))
        if clipped is None:
            return
        a, b = clipped
        ends = pixel(np.stack([a, b]), self.intrinsics)
        steps = int(np.clip(np.linalg.norm(ends[1] - ends[0]) / 6, 1, 400))
        points = a + np.linspace(0, 1, steps + 1)[:, None] * (b - a)
        pixels = pixel(points, self.intrinsics)
        middle = np.round((pixels[1:] + pixels[:-1]) / 2)
        column, row = np.clip(middle, 0, [self.intrinsics.width - 1, self.intrinsics.height - 1]).astype(int).T
        covered = self.depth[row, column] < (points[1:, 2] + points[:-1, 2]) / 2 - _LINE_SLACK_M
        # pieces of one kind in a row are one line: no joints
        edges = np.flatnonzero(np.diff(covered)) + 1
        for first, last in itertools.pairwise([0, *edges.tolist(), steps]):
            kind = self.hidden if covered[first] else self.seen
            kind.append((pixels[first], pixels[last], color))

    def draw(self, image: Image) -> None:
        """Draw all of them, seen ones over hidden ones."""
        faint = image.copy()
        for p, q, color in self.hidden:
            line(faint, p, q, color, 1)
        cv2.addWeighted(faint, 0.45, image, 0.55, 0.0, dst=image)
        for p, q, _ in self.seen:
            line(image, p, q, SHADE, 4)
        for p, q, color in self.seen:
            line(image, p, q, color, 2)


def _draw_lines(
    image: Image,
    depth: NDArray[np.float32],
    objects: Sequence[SceneObject],
    path: NDArray[np.float64],
    T_world_camera: NDArray[np.float64],
    intrinsics: Intrinsics,
) -> None:
    """Boxes, and the path with a dot at its end."""
    lines = _Lines(invert_transform(T_world_camera), intrinsics, depth)
    for thing in objects:
        corners = box_corners(thing.box[None])[0]
        for i, j in BOX_EDGES:
            lines.add(corners[i], corners[j], color_of_id(thing.id))
    for p, q in itertools.pairwise(path):
        lines.add(p, q, PATH_COLOR)
    lines.draw(image)
    if len(path):
        end = transform_points(lines.T_camera_world, path[-1])
        if end[2] > 0.1:
            u, v = np.round(pixel(end, intrinsics)).astype(int).tolist()
            if 0 <= u < intrinsics.width and 0 <= v < intrinsics.height:
                cv2.circle(image, (u, v), 7, SHADE, -1, cv2.LINE_AA)
                cv2.circle(image, (u, v), 5, PATH_COLOR, -1, cv2.LINE_AA)


def _draw_labels(
    image: Image, objects: Sequence[SceneObject], T_world_camera: NDArray[np.float64], intrinsics: Intrinsics
) -> None:
    """Names over the tops of the boxes; nearer ones take their place first."""
    T_camera_world = invert_transform(T_world_camera)
    tags = Tags(image)
    for thing in sorted(objects, key=lambda o: (float(np.linalg.norm(o.box[:3] - T_world_camera[:3, 3])), o.id)):
        top = transform_points(T_camera_world, thing.box[:3] + np.array([0.0, 0.0, thing.box[5] / 2]))
        if top[2] > 0.1:
            u, v = pixel(top, intrinsics)
            if 0 <= u < intrinsics.width and 0 <= v < intrinsics.height:
                tags.add(label_of(thing), float(u), float(v), color_of_id(thing.id))
