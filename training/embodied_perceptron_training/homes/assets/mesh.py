"""Triangle soups, and the primitives of parametric furniture.

A soup has three corners per face and shares none. Each corner has its own normal and texture coordinate, so hard edges
need no special case.

Object frames: x to the right, y to the back (the front faces -y), z up, origin on the floor below the centre, metres.
Texture coordinates of solid materials are metres on the surface (divided by a tile's ``scale_m``); those of images run
from (0, 0) at the lower left to (1, 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron_training.homes.rendering.materials import Material

MIN_FACE_AREA_M2 = 1e-12


@dataclass(frozen=True, eq=False)
class Mesh:
    """A triangle soup.

    Attributes:
        triangles: (F, 3, 3) float64 corners, metres.
        normals: (F, 3, 3) float64 unit normals per corner, pointing outwards.
        uv: (F, 3, 2) float64 texture coordinates per corner.
        material: (F,) int32 index into ``materials``.
        materials: the materials that faces use.

    Raises ``ValueError`` when shapes disagree, a coordinate is not finite, or a face has no area.
    """

    triangles: F64
    normals: F64
    uv: F64
    material: NDArray[np.int32]
    materials: tuple[Material, ...]

    def __post_init__(self) -> None:
        count = len(self.triangles)
        for name, shape in (("triangles", (count, 3, 3)), ("normals", (count, 3, 3)), ("uv", (count, 3, 2))):
            array = getattr(self, name)
            if array.shape != shape:
                raise ValueError(f"mesh {name} must have shape {shape}, got {array.shape}")
            if not np.isfinite(array).all():
                raise ValueError(f"mesh {name} has non-finite values")
        if self.material.shape != (count,):
            raise ValueError(f"mesh material must have shape ({count},), got {self.material.shape}")
        if count and not 0 <= self.material.min() <= self.material.max() < len(self.materials):
            raise ValueError(f"mesh refers to material {self.material.max()} of {len(self.materials)}")
        flat = int((face_areas_m2(self.triangles) < MIN_FACE_AREA_M2).sum())
        if flat:
            raise ValueError(f"mesh has {flat} zero-area face(s) of {count}")

    def __len__(self) -> int:
        return len(self.triangles)

    def transformed(self, T: F64) -> Mesh:
        """The mesh moved by the rigid transform ``T`` (4, 4)."""
        R, t = T[:3, :3], T[:3, 3]
        return Mesh(self.triangles @ R.T + t, self.normals @ R.T, self.uv, self.material, self.materials)


def face_areas_m2(triangles: F64) -> F64:
    """(F, 3, 3) corners -> (F,) areas."""
    area: F64 = 0.5 * np.sqrt((face_normals(triangles) ** 2).sum(-1))
    return area


def face_normals(triangles: NDArray[Any]) -> F64:
    """(F, 3, 3) corners -> (F, 3) normals, twice the area long."""
    a, b = triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0]
    normal: F64 = np.stack(  # much faster than np.cross
        [
            a[:, 1] * b[:, 2] - a[:, 2] * b[:, 1],
            a[:, 2] * b[:, 0] - a[:, 0] * b[:, 2],
            a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0],
        ],
        -1,
    )
    return normal


def merge_meshes(meshes: Sequence[Mesh]) -> Mesh:
    """One soup from several; equal materials are shared."""
    index: dict[Material, int] = {}
    material = []
    for mesh in meshes:
        remap = np.array([index.setdefault(m, len(index)) for m in mesh.materials], np.int32)
        material.append(remap[mesh.material] if len(mesh) else mesh.material)
    if not meshes:
        raise ValueError("cannot merge an empty list of meshes")
    return Mesh(
        np.concatenate([m.triangles for m in meshes]),
        np.concatenate([m.normals for m in meshes]),
        np.concatenate([m.uv for m in meshes]),
        np.concatenate(material).astype(np.int32),
        tuple(index),
    )


@dataclass(frozen=True, eq=False)
class Piece:
    """The oriented box of one primitive for collision tests: (3,) centre, (3,) half sizes, (3, 3) rotation."""

    center: F64
    half: F64
    R: F64


def rotation(axis: str, angle_rad: float) -> F64:
    """(3, 3) rotation about ``axis`` 'x', 'y' or 'z'."""
    c, s = np.cos(angle_rad), np.sin(angle_rad)
    i, j = {"x": (1, 2), "y": (2, 0), "z": (0, 1)}[axis]
    R = np.eye(3)
    R[i, i], R[i, j], R[j, i], R[j, j] = c, -s, s, c
    return R


_BOX_CORNERS = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], np.float64)
# face -> four corners, counter-clockwise from outside, from the image's lower left
_BOX_FACES = {
    "-x": (2, 0, 1, 3),
    "+x": (4, 6, 7, 5),
    "-y": (0, 4, 5, 1),
    "+y": (6, 2, 3, 7),
    "-z": (2, 6, 4, 0),
    "+z": (1, 5, 7, 3),
}
_FACE_AXES = {"-x": (1, 2), "+x": (1, 2), "-y": (0, 2), "+y": (0, 2), "-z": (0, 1), "+z": (0, 1)}
_UNIT_UV = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], np.float64)
_QUAD = np.array([[0, 1, 2], [0, 2, 3]])
# per triangle: (12, 3, 3) corners of the unit box, normals, texture coordinates, axes of the coordinates
_BOX_TRIANGLES = np.concatenate([_BOX_CORNERS[list(quad)][_QUAD] for quad in _BOX_FACES.values()])
_BOX_NORMALS = np.repeat(
    [[(1.0 if name[0] == "+" else -1.0) * (axis == name[1]) for axis in "xyz"] for name in _BOX_FACES], 6, axis=0
).reshape(12, 3, 3)
_BOX_UV = np.tile(_UNIT_UV[_QUAD], (6, 1, 1))
_BOX_AXES = np.repeat([_FACE_AXES[name] for name in _BOX_FACES], 2, axis=0)


@dataclass
class MeshBuilder:
    """Collect primitives: ``build()`` returns the mesh, ``pieces`` holds the boxes for collision tests."""

    pieces: list[Piece] = field(default_factory=list)
    _triangles: list[F64] = field(default_factory=list)
    _normals: list[F64] = field(default_factory=list)
    _uv: list[F64] = field(default_factory=list)
    _material: list[NDArray[np.int32]] = field(default_factory=list)
    _materials: dict[Material, int] = field(default_factory=dict)

    def add(
        self,
        triangles: F64,
        normals: F64,
        uv: F64,
        material: Material,
        center: Any = (0.0, 0.0, 0.0),
        R: F64 | None = None,
        collide: bool = True,
    ) -> None:
        """Add faces, rotated by ``R`` and moved to ``center``."""
        keep = face_areas_m2(triangles) > MIN_FACE_AREA_M2  # without the flat faces at poles
        triangles, normals, uv = triangles[keep], normals[keep], uv[keep]
        R = np.eye(3) if R is None else R
        c = np.asarray(center, np.float64)
        if collide:
            low, high = triangles.min((0, 1)), triangles.max((0, 1))
            self.pieces.append(Piece(R @ (low + high) / 2 + c, (high - low) / 2, R))
        self._triangles.append(triangles @ R.T + c)
        self._normals.append(normals @ R.T)
        self._uv.append(uv)
        slot = self._materials.setdefault(material, len(self._materials))
        self._material.append(np.full(len(triangles), slot, np.int32))

    def build(self) -> Mesh:
        """The collected soup."""
        if not self._triangles:
            raise ValueError("mesh builder is empty")
        return Mesh(
            np.concatenate(self._triangles),
            np.concatenate(self._normals),
            np.concatenate(self._uv),
            np.concatenate(self._material),
            tuple(self._materials),
        )

    def box(
        self,
        size: Any,
        center: Any,
        material: Material,
        R: F64 | None = None,
        faces: dict[str, Material] | None = None,
        collide: bool = True,
    ) -> None:
        """A box of full ``size``; ``faces`` gives single faces ('-y' = front, '+z' = top...) another material."""
        half = np.asarray(size, np.float64) / 2
        if not (half > 0).all():
            raise ValueError(f"box needs a positive size, got {np.asarray(size).tolist()}")
        triangles = _BOX_TRIANGLES * half
        by_material: dict[Material, list[int]] = {}
        for k, name in enumerate(_BOX_FACES):
            by_material.setdefault((faces or {}).get(name, material), []).append(k)
        for own, sides in by_material.items():
            rows = [2 * k + j for k in sides for j in (0, 1)]
            uv = _BOX_UV[rows]
            if not own.is_image:
                scale = 2 * half[_BOX_AXES[rows]]
                uv = uv * scale[:, None]
                upright = scale[:, 1] > scale[:, 0]  # grain follows the longer side
                uv[upright] = uv[upright][..., ::-1]
            self.add(triangles[rows], _BOX_NORMALS[rows], uv, own, center, R, collide=False)
        if collide:
            rotation_ = np.eye(3) if R is None else R
            self.pieces.append(Piece(np.asarray(center, np.float64), half, rotation_))

    def rounded_box(
        self, size: Any, center: Any, material: Material, bulge: float = 0.35, R: F64 | None = None
    ) -> None:
        """A soft box (cushion, mattress, upholstery): a super-ellipsoid that touches all six faces of ``size``."""
        self._superellipsoid(np.asarray(size, np.float64) / 2, bulge, center, material, R, 14, 10)

    def ellipsoid(self, radii: Any, center: Any, material: Material, R: F64 | None = None, segments: int = 16) -> None:
        """An ellipsoid with half axes ``radii``."""
        self._superellipsoid(np.asarray(radii, np.float64), 1.0, center, material, R, segments, segments // 2)

    def _superellipsoid(
        self, half: F64, exponent: float, center: Any, material: Material, R: F64 | None, around: int, along: int
    ) -> None:
        around += -around % 4  # so that vertices lie on the axes and the shape touches its box
        along += -along % 2
        phi = np.linspace(-np.pi / 2, np.pi / 2, along + 1)[:, None]
        theta = np.linspace(-np.pi, np.pi, around + 1)[None, :]

        def power(v: F64, e: float) -> F64:
            # a small power would make rounding errors large and open the seam
            powered: F64 = np.where(np.abs(v) < 1e-9, 0.0, np.sign(v) * np.maximum(np.abs(v), 1e-9) ** e)
            return powered

        def sphere(e: float) -> F64:
            level = power(np.cos(phi), e)
            z = power(np.sin(phi), e) * np.ones_like(theta)
            return np.stack([level * power(np.cos(theta), e), level * power(np.sin(theta), e), z], -1)

        direction = sphere(exponent)
        normal = sphere(2 - exponent) / np.maximum(half, 1e-9)
        points = direction * half
        uv = np.stack(np.broadcast_arrays(theta / np.pi * half[0] * 2, phi / np.pi * half.max() * 2), -1)
        if material.is_image:
            uv = (direction[..., [0, 2]] if half[1] < half[2] else direction[..., [0, 1]]) / 2 + 0.5
        self._grid(points, normal, uv, material, center, R)

    def _grid(
        self, points: F64, normals: F64, uv: F64, material: Material, center: Any, R: F64 | None, collide: bool = True
    ) -> None:
        """Add an (M, N) grid of vertices, two triangles per cell; rows go up, columns counter-clockwise."""
        normals = normals / np.maximum(np.linalg.norm(normals, axis=-1, keepdims=True), 1e-12)

        def faces(a: F64) -> F64:
            p00, p01, p10, p11 = a[:-1, :-1], a[:-1, 1:], a[1:, :-1], a[1:, 1:]
            lower = np.stack([p00, p01, p11], -2).reshape(-1, 3, a.shape[-1])
            upper = np.stack([p00, p11, p10], -2).reshape(-1, 3, a.shape[-1])
            return np.concatenate([lower, upper])

        self.add(faces(points), faces(normals), faces(uv), material, center, R, collide)

    def lathe(
        self,
        profile: Sequence[tuple[float, float]],
        material: Material,
        segments: int = 16,
        center: Any = (0.0, 0.0, 0.0),
        R: F64 | None = None,
        smooth: bool = True,
        collide: bool = True,
    ) -> None:
        """Turn the (radius, z) ``profile``, from bottom to top along the outside, about the z axis."""
        rz = np.asarray(profile, np.float64)
        segments += -segments % 4
        theta = np.linspace(0, 2 * np.pi, segments + 1)
        ring = np.stack([np.cos(theta), np.sin(theta)], -1)

        def revolved(a: F64) -> F64:
            return np.concatenate([a[:, None, :1] * ring, np.broadcast_to(a[:, None, 1:], (len(a), len(ring), 1))], -1)

        for start, stop in _smooth_runs(rz, smooth):
            part = rz[start : stop + 1]
            d = np.gradient(part, axis=0) if len(part) > 2 else np.repeat(np.diff(part, axis=0), 2, 0)
            slope = np.stack([d[:, 1], -d[:, 0]], -1)
            arc = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(part, axis=0), axis=1))])
            if material.is_image:
                u, v = np.meshgrid(theta / (2 * np.pi), arc / max(arc[-1], 1e-9))
            else:
                u, v = np.meshgrid(theta * max(rz[:, 0].max(), 0.02), arc)
            self._grid(revolved(part), revolved(slope), np.stack([u, v], -1), material, center, R, collide=False)
        if collide:
            radius, low, high = rz[:, 0].max(), rz[:, 1].min(), rz[:, 1].max()
            rotation_ = np.eye(3) if R is None else R
            middle = rotation_ @ np.array([0, 0, (low + high) / 2]) + np.asarray(center, np.float64)
            self.pieces.append(Piece(middle, np.array([radius, radius, (high - low) / 2]), rotation_))

    def cylinder(
        self,
        radius: float,
        height: float,
        center: Any,
        material: Material,
        top_radius: float | None = None,
        axis: str = "z",
        segments: int = 12,
        collide: bool = True,
    ) -> None:
        """A capped cylinder or cone about ``center``, along ``axis``."""
        turn = {"z": np.eye(3), "x": rotation("y", np.pi / 2), "y": rotation("x", -np.pi / 2)}[axis]
        profile = _cone(radius, radius if top_radius is None else top_radius, height)
        self.lathe(profile, material, segments, center, turn, smooth=False, collide=collide)

    def rod(self, start: Any, end: Any, radius: float, material: Material, segments: int = 8) -> None:
        """A cylinder from point to point."""
        a, b = np.asarray(start, np.float64), np.asarray(end, np.float64)
        direction = b - a
        length = float(np.linalg.norm(direction))
        if length < 1e-6:
            raise ValueError(f"rod needs two different points, got {a.tolist()} twice")
        z = direction / length
        x = np.cross([0.0, 1.0, 0.0] if abs(z[1]) < 0.9 else [1.0, 0.0, 0.0], z)
        x /= np.linalg.norm(x)
        R = np.stack([x, np.cross(z, x), z], axis=1)
        self.lathe(_cone(radius, radius, length), material, segments, (a + b) / 2, R, smooth=False)

    def tube(self, points: Any, radius: float, material: Material, segments: int = 8) -> None:
        """Rods along a polyline, with balls at the bends."""
        path = np.asarray(points, np.float64)
        for a, b in pairwise(path):
            self.rod(a, b, radius, material, segments)
        for p in path[1:-1]:
            self.ellipsoid((radius,) * 3, p, material, segments=8)

    def sheet(self, points: F64, material: Material, thickness_m: float = 0.0) -> None:
        """An (M, N, 3) grid of points as a cloth with two sides."""
        if points.ndim != 3 or points.shape[2] != 3 or min(points.shape[:2]) < 2:
            raise ValueError(f"sheet needs an (M, N, 3) grid with M, N >= 2, got {points.shape}")
        du = np.gradient(points, axis=1)
        dv = np.gradient(points, axis=0)
        normal = np.cross(du, dv)
        normal /= np.maximum(np.linalg.norm(normal, axis=-1, keepdims=True), 1e-12)
        rows, columns = points.shape[:2]
        if material.is_image:
            u, v = np.meshgrid(np.linspace(0, 1, columns), np.linspace(0, 1, rows))
        else:
            u = np.cumsum(np.linalg.norm(du, axis=-1), axis=1)
            v = np.cumsum(np.linalg.norm(dv, axis=-1), axis=0)
        uv = np.stack([u, v], -1)
        half = max(thickness_m, 0.001) / 2
        self._grid(points + normal * half, normal, uv, material, (0, 0, 0), None)
        back = (points - normal * half)[:, ::-1]
        self._grid(back, -normal[:, ::-1], uv[:, ::-1], material, (0, 0, 0), None, collide=False)


def _cone(radius: float, top: float, height: float) -> list[tuple[float, float]]:
    """Profile (radius, height) of a capped cylinder or cone about the origin."""
    return [(0.0, -height / 2), (radius, -height / 2), (top, height / 2), (0.0, height / 2)]


def _smooth_runs(profile: F64, smooth: bool) -> list[tuple[int, int]]:
    """Split a profile at corners of more than 40 degrees, or at all of them without ``smooth``."""
    steps = np.diff(profile, axis=0)
    if not smooth:
        return [(i, i + 1) for i in range(len(steps))]
    runs, start = [], 0
    for i in range(1, len(steps)):
        a, b = steps[i - 1], steps[i]
        cosine = a @ b / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-12)
        if cosine < 0.766:
            runs.append((start, i))
            start = i
    return [*runs, (start, len(steps))]
