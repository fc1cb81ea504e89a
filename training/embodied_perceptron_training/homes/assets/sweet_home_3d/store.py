"""Read the models of this package and make objects of them, some with new colours."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron_training.homes.assets.mesh import MIN_FACE_AREA_M2, Mesh, Piece, face_areas_m2, face_normals
from embodied_perceptron_training.homes.assets.objects import ObjectModel, Part, Surface
from embodied_perceptron_training.homes.rendering.materials import COLORS, Material, Rgb

FOLDER = Path(__file__).parent
FAMILY_PREFIX = "sweet_home_3d."
_KINDS = ("plain", "wood", "fabric", "metal", "glass", "screen")
_TILES = {"wood": ("wood", 0.8, "wooden"), "fabric": ("weave", 0.2, "fabric"), "metal": ("brushed", 0.3, "metal"),
          "glass": ("plain", 1.0, "glass")}  # fmt: skip
_SCREENS = {"tv", "monitor"}
_SCREEN_LUMA = 0.2
_RECOLORED_SHARE = 0.4  # of the objects of ``_ANY_COLOR``
_ANY_COLOR = {
    "chair", "couch", "bed", "stool", "ottoman", "bench", "backpack", "bag", "luggage", "shoe", "hat", "clothes", "toy",
    "box", "bin", "vase", "cup", "bowl", "plate", "ball", "book", "table", "desk", "cabinet", "shelf", "wardrobe",
    "dresser", "stand", "lamp", "divider", "bicycle", "crate", "hamper", "heater", "telephone", "radio", "fan",
}  # fmt: skip
_CREASE = 0.85  # cosine of the largest angle between faces that share a normal


class AssetError(ValueError):
    """A missing or broken file of models."""


@dataclass(frozen=True)
class StoredModel:
    """One model of the file.

    Attributes:
        id: archive and stem, e.g. ``Scopia/leather_sofa``.
        role: parametric family of version 1 that it replaces.
        family: name of its family; near copies share one.
        unseen: whether its family is reserved for testing.
        name, author, licence: from its catalogue.
        index: position in the file.
        surfaces: places for objects.
        boxes: for collision tests.
    """

    id: str
    role: str
    family: str
    unseen: bool
    name: str
    author: str
    licence: str
    index: int
    surfaces: tuple[Mapping[str, Any], ...]
    boxes: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, eq=False)
class ModelStore:
    """All models, by role and by id."""

    by_role: Mapping[str, tuple[StoredModel, ...]]
    _arrays: Mapping[str, NDArray[Any]]
    _starts: NDArray[np.int64]  # (N + 1, 3) of vertices, faces, palettes

    @property
    def models(self) -> tuple[StoredModel, ...]:
        """Every model once, in the order of the file."""
        return tuple(sorted((m for group in self.by_role.values() for m in group), key=lambda m: m.index))

    def geometry(self, model: StoredModel) -> tuple[F64, NDArray[np.int64], NDArray[np.uint8]]:
        """(F, 3, 3) corners in metres, (F,) index into the palette, (C, 5) palette: r, g, b, gloss, kind."""
        (v0, f0, p0), (v1, f1, p1) = self._starts[model.index], self._starts[model.index + 1]
        low, high = self._arrays["bounds"][model.index].astype(np.float64)
        vertices = low + self._arrays["vertices"][v0:v1].astype(np.float64) / 65535 * (high - low)
        faces, color = self._arrays["faces"][f0:f1], self._arrays["color"][f0:f1].astype(np.int64)
        return vertices[faces], color, self._arrays["palette"][p0:p1]

    def object(self, model: StoredModel, like: ObjectModel, rng: np.random.Generator) -> ObjectModel:
        """``model`` as an object with the class, names and front of ``like``, a parametric object of its role."""
        triangles, color, palette = self.geometry(model)
        keep = face_areas_m2(triangles) > 2 * MIN_FACE_AREA_M2
        triangles, color = triangles[keep], color[keep]
        covered: F64 = np.bincount(color, face_areas_m2(triangles), len(palette)).astype(np.float64)
        tinted, name = _tinted(palette, covered, like.category, rng)
        materials, words = _materials(tinted, covered, like.category)
        normals = _smooth_normals(np.ascontiguousarray(triangles).tobytes())
        mesh = Mesh(triangles, normals, _box_uv(triangles), color.astype(np.int32), materials)
        kept = {k: v for k, v in like.attributes.items() if k in ("style", "size")}
        if like.category == "bed":
            kept["style"] = "double" if float(np.ptp(triangles[..., 0])) > 1.3 else "single"
        if like.category == "couch":
            kept.pop("style", None)
        words = {"color": "green"} if like.category == "plant" else words | {"color": name}
        boxes = tuple(Piece(np.array(b[:3]), np.array(b[3:]), np.eye(3)) for b in model.boxes)
        parts, surfaces = (Part("body", mesh, boxes),), tuple(_surface(s) for s in model.surfaces)
        attributes = MappingProxyType(kept | words)
        return replace(like, parts=parts, surfaces=surfaces, attributes=attributes, states=(), box_part="")


def _surface(plain: Mapping[str, Any]) -> Surface:
    x, y, z = plain["at"]
    hx, hy = plain["half"]
    return Surface((x, y, z), (hx, hy), plain["clearance"], plain["relation"], plain["accepts"])


def _tinted(
    palette: NDArray[np.uint8], share: F64, category: str, rng: np.random.Generator
) -> tuple[NDArray[np.uint8], str]:
    """A varied palette, sometimes with a new main colour, and the name of the colour that covers most of the object."""
    rgb = palette[:, :3].astype(np.float64) / 255
    main = rgb[share.argmax()].copy()
    shift = np.exp(rng.normal(0, 0.1)) * np.exp(rng.normal(0, 0.03, 3))
    recolored, wanted = rng.random() < _RECOLORED_SHARE, tuple(COLORS)[int(rng.integers(len(COLORS)))]
    if recolored and category in _ANY_COLOR and palette[share.argmax(), 4] in (0, 2):
        own = np.abs(rgb / max(rgb.sum(1).max(), 1e-9) - main / max(rgb.sum(1).max(), 1e-9)).sum(1) < 0.12
        luma = rgb @ np.array([0.3, 0.6, 0.1])
        rgb[own] = np.array(COLORS[wanted]) * np.clip(luma[own] / max(luma[share.argmax()], 0.05), 0.5, 1.5)[:, None]
    rgb = np.clip(rgb * shift, 0.02, 0.97)
    result = palette.copy()
    result[:, :3] = np.round(rgb * 255)
    main = rgb[share.argmax()]
    return result, min(COLORS, key=lambda name: float(((np.array(COLORS[name]) - main) ** 2).sum()))


def _materials(palette: NDArray[np.uint8], share: F64, category: str) -> tuple[tuple[Material, ...], dict[str, str]]:
    """Materials of a palette's entries, and the word for the material of most of the surface, if known."""
    materials: list[Material] = []
    by_word: dict[str, float] = {}
    for (r, g, b, gloss, kind), covered in zip(palette.tolist(), share, strict=True):
        rgb: Rgb = (r / 255, g / 255, b / 255)
        texture, scale, word = _TILES.get(_KINDS[kind], ("plain", 1.0, ""))
        strength = gloss / 255
        if category in _SCREENS and 0.3 * rgb[0] + 0.6 * rgb[1] + 0.1 * rgb[2] < _SCREEN_LUMA:
            rgb, strength, texture, word = (rgb[0] * 0.7, rgb[1] * 0.7, rgb[2] * 0.7), 0.7, "plain", ""
        materials.append(Material(rgb, texture, 0, scale, strength, 0.0, "", word))
        by_word[word] = by_word.get(word, 0.0) + float(covered)
    word = max(by_word, key=lambda w: by_word[w])
    return tuple(materials), {"material": word} if word and by_word[word] > 0.6 * sum(by_word.values()) else {}


@lru_cache(maxsize=512)
def _smooth_normals(data: bytes) -> F64:
    """(F, 3, 3) unit normals, smooth across edges below the crease angle, of (F, 3, 3) float64 corners."""
    triangles = np.frombuffer(data).reshape(-1, 3, 3)
    normal = face_normals(triangles)
    unit = normal / np.maximum(np.linalg.norm(normal, axis=1, keepdims=True), 1e-12)
    step = max(float(np.ptp(triangles.reshape(-1, 3), axis=0).max()), 1e-6) * 1e-4
    keys = np.round(triangles.reshape(-1, 3) / step).astype(np.int64)
    _, vertex = np.unique(keys, axis=0, return_inverse=True)
    vertex = vertex.reshape(-1)
    order = np.argsort(vertex, kind="stable")
    starts = np.searchsorted(vertex[order], np.arange(int(vertex.max()) + 2))
    result = np.empty((len(vertex), 3))
    for a, b in pairwise(starts):
        corners = order[a:b]
        own, weight = unit[corners // 3], normal[corners // 3]
        near = own @ own.T > _CREASE
        summed = near @ weight
        length = np.linalg.norm(summed, axis=1, keepdims=True)
        result[corners] = np.where(length > 1e-12, summed / np.maximum(length, 1e-12), own)
    return result.reshape(-1, 3, 3)


def _box_uv(triangles: F64) -> F64:
    """(F, 3, 2) metres along the two axes that are most parallel to each face."""
    axis = np.abs(face_normals(triangles)).argmax(1)
    first, second = np.array([1, 0, 0])[axis], np.array([2, 2, 1])[axis]
    rows = np.arange(len(triangles))[:, None]
    corners = np.arange(3)[None, :]
    return np.stack([triangles[rows, corners, first[:, None]], triangles[rows, corners, second[:, None]]], -1)


@lru_cache(maxsize=1)
def open_store() -> ModelStore:
    """The models of this package. Raises :class:`AssetError` when a file is missing or broken."""
    try:
        entries = json.loads((FOLDER / "models.json").read_text())
        with np.load(FOLDER / "models.npz", allow_pickle=False) as data:
            arrays = {name: data[name] for name in ("counts", "bounds", "vertices", "faces", "color", "palette")}
    except (OSError, ValueError, KeyError) as error:
        raise AssetError(f"the models in {FOLDER} cannot be read: {error}") from error
    counts = arrays["counts"].astype(np.int64)
    if len(counts) != len(entries):
        raise AssetError(f"{FOLDER}: models.npz has {len(counts)} models, models.json {len(entries)}")
    by_role: dict[str, list[StoredModel]] = {}
    for index, e in enumerate(entries):
        model = StoredModel(
            e["id"], e["role"], e["family"], e["unseen"], e["name"], e["author"], e["licence"], index,
            tuple(e["surfaces"]), tuple(tuple(b) for b in e["boxes"]),
        )  # fmt: skip
        by_role.setdefault(model.role, []).append(model)
    starts = np.concatenate([np.zeros((1, 3), np.int64), counts.cumsum(0)])
    return ModelStore({role: tuple(group) for role, group in by_role.items()}, arrays, starts)


def store_hash() -> str:
    """SHA-256 of the two files."""
    digest = hashlib.sha256()
    for name in ("models.json", "models.npz"):
        digest.update((FOLDER / name).read_bytes())
    return digest.hexdigest()


def credits_of(families: set[str]) -> list[str]:
    """One line per model of ``families``: name, source, author, licence."""
    used = sorted((m for m in open_store().models if m.family in families), key=lambda m: m.id.lower())
    return [f"{m.name} ({m.id}) by {m.author}: {m.licence}" for m in used]
