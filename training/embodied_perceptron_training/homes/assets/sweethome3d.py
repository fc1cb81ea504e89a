"""Replace parametric models by models of Debian's package ``sweethome3d-furniture`` of a similar shape.

The archives (.sh3f, zip files) are read where they are installed; this project contains nothing of them. Models are
static and keep their colours but not their texture images. :func:`attribution_lines` names their authors.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron_training.homes.assets.mesh import MIN_FACE_AREA_M2, Mesh, Piece, face_normals
from embodied_perceptron_training.homes.assets.objects import ObjectModel, Part
from embodied_perceptron_training.homes.rendering.materials import COLORS, Material, Rgb

F64 = NDArray[np.float64]
DEFAULT_FOLDER = Path("/usr/share/sweethome3d/furniture")
FOLDER_VARIABLE = "EMBODIED_SWEETHOME3D_DIR"
_MAX_OBJ_BYTES = 700_000  # larger models are slow
_MAX_STRETCH = 1.35  # largest change of proportions

# class -> pattern in the model's name
_NAMES: dict[str, str] = {
    "chair": r"\b(chair|armchair)\b", "table": r"\btable\b", "couch": r"\b(sofa|couch)\b", "bed": r"\bbed\b",
    "desk": r"\bdesk\b", "shelf": r"\b(bookcase|bookshelf|shelf|shelves)\b", "stool": r"\bstool\b",
    "lamp": r"\blamp\b", "plant": r"\b(plant|ficus|palm)\b", "toilet": r"\btoilet\b", "piano": r"\bpiano\b",
    "vase": r"\bvase\b", "tv": r"\b(tv|television)\b", "laptop": r"\blaptop\b", "bathtub": r"\b(bath|bathtub)\b",
    "guitar": r"\bguitar\b", "bottle": r"\bbottle\b", "clock": r"\bclock\b", "printer": r"\bprinter\b",
    "fireplace": r"\bfireplace\b", "bench": r"\bbench\b", "bicycle": r"\b(bicycle|bike)\b", "globe": r"\bglobe\b",
}  # fmt: skip
_CARRIES_ON_TOP = {"table", "desk", "piano", "fireplace"}


class AssetError(ValueError):
    """A missing or broken asset archive."""


@dataclass(frozen=True)
class CatalogEntry:
    """One model of an archive; ``size_m`` is (width, depth, height)."""

    archive: Path
    member: str
    name: str
    size_m: tuple[float, float, float]
    rotation: tuple[float, ...]
    creator: str
    license: str


@dataclass
class AssetLibrary:
    """The installed models by class.

    Attributes:
        entries: class -> models.
        used: name -> model that a home uses, for the attribution.
    """

    entries: dict[str, list[CatalogEntry]]
    used: dict[str, CatalogEntry] = field(default_factory=dict)
    _meshes: dict[str, Mesh] = field(default_factory=dict)

    def replace(self, model: ObjectModel, rng: np.random.Generator) -> ObjectModel:
        """Return ``model`` with the geometry of an installed model, stretched to the same box.

        Returns ``model`` itself when it has joints or shelves, or when no installed model has similar proportions."""
        if model.joints or any(s.relation == "inside" for s in model.surfaces):
            return model
        low, high = model.bounds()
        size = high - low
        fitting = [e for e in self.entries.get(model.category, []) if _stretch(e, size) < _MAX_STRETCH]
        if not fitting:
            return model
        entry = fitting[int(rng.integers(len(fitting)))]
        if entry.member not in self._meshes:
            self._meshes[entry.member] = read_obj(entry)
        mesh = self._meshes[entry.member]
        if len(mesh) == 0:
            return model
        self.used[entry.name] = entry
        corners = mesh.triangles.reshape(-1, 3)
        lo, hi = corners.min(0), corners.max(0)
        scale = size / np.maximum(hi - lo, 1e-6)
        triangles = (mesh.triangles - (lo + hi) / 2) * scale + (low + high) / 2
        normals = mesh.normals / scale
        normals /= np.maximum(np.linalg.norm(normals, axis=-1, keepdims=True), 1e-12)
        keep = np.linalg.norm(face_normals(triangles), axis=1) > 2.1 * MIN_FACE_AREA_M2
        fitted = Mesh(triangles[keep], normals[keep], mesh.uv[keep], mesh.material[keep], mesh.materials)
        surfaces = model.surfaces if model.category in _CARRIES_ON_TOP else ()
        pieces = model.parts[0].pieces if surfaces else (Piece((low + high) / 2, size / 2, np.eye(3)),)
        words = {k: v for k, v in model.attributes.items() if k not in ("color", "material", "shape")}
        area = np.linalg.norm(face_normals(fitted.triangles), axis=1)
        share = np.bincount(fitted.material, area, len(fitted.materials))
        words["color"] = nearest_color(fitted.materials[int(share.argmax())].color)
        parts = (Part("body", fitted, tuple(pieces)),)
        return replace(model, parts=parts, surfaces=surfaces, attributes=MappingProxyType(words))


def _stretch(entry: CatalogEntry, size: F64) -> float:
    ratio = size / np.array(entry.size_m)
    return float(ratio.max() / ratio.min())


def open_library(folder: str | Path | None = None) -> AssetLibrary:
    """Read the catalogues of all archives in ``folder`` (default: :data:`FOLDER_VARIABLE`, else Debian's folder).

    Raises :class:`AssetError` without archives or for a broken one.
    """
    root = Path(folder or os.environ.get(FOLDER_VARIABLE) or DEFAULT_FOLDER)
    archives = sorted(root.glob("*.sh3f"))
    if not archives:
        raise AssetError(
            f"no furniture archives in {root}: install the Debian package sweethome3d-furniture, or set "
            f"{FOLDER_VARIABLE} to their folder"
        )
    entries: dict[str, list[CatalogEntry]] = {}
    for archive in archives:
        for entry in _catalogue(archive):
            for category, pattern in _NAMES.items():
                if re.search(pattern, entry.name.lower()):
                    entries.setdefault(category, []).append(entry)
                    break
    return AssetLibrary(entries)


def library_hash(folder: str | Path | None = None) -> str:
    """SHA-256 of the names and sizes of the archives."""
    root = Path(folder or os.environ.get(FOLDER_VARIABLE) or DEFAULT_FOLDER)
    digest = hashlib.sha256()
    for archive in sorted(root.glob("*.sh3f")):
        digest.update(f"{archive.name}:{archive.stat().st_size}\n".encode())
    return digest.hexdigest()


def attribution_lines(library: AssetLibrary) -> list[str]:
    """One line per used model: name, archive, author, licence."""
    used = sorted(library.used.values(), key=lambda e: e.name)
    return [f"{e.name} ({e.archive.name}) by {e.creator or 'unknown'}: {e.license}" for e in used]


def _catalogue(archive: Path) -> Iterator[CatalogEntry]:
    try:
        with zipfile.ZipFile(archive) as z:
            text = z.read("PluginFurnitureCatalog.properties").decode("latin-1")
            sizes = {info.filename: info.file_size for info in z.infolist()}
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        raise AssetError(f"{archive} is not a furniture archive: {error}") from error
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    license_ = values.get("license", "").strip()
    for key in (k for k in values if k.startswith("name#")):
        number = key.split("#")[1]
        member = values.get(f"model#{number}", "").lstrip("/").strip()
        if not member.endswith(".obj") or not 0 < sizes.get(member, 0) < _MAX_OBJ_BYTES:
            continue
        try:
            width, depth, height = (float(values[f"{n}#{number}"]) / 100 for n in ("width", "depth", "height"))
        except (KeyError, ValueError):
            continue
        turn = tuple(float(v) for v in values.get(f"modelRotation#{number}", "").split())
        creator = values.get(f"creator#{number}", "").strip()
        size = (width, depth, height)
        if min(size) > 0:
            yield CatalogEntry(archive, member, values[key].strip(), size, turn, creator, license_)


def read_obj(entry: CatalogEntry) -> Mesh:
    """Faces of a model in object axes (x right, y back, z up), without those of zero area.

    Raises :class:`AssetError` for a missing or malformed model.
    """
    try:
        with zipfile.ZipFile(entry.archive) as z:
            text = z.read(entry.member).decode("latin-1")
            folder = posixpath.dirname(entry.member)
            colors: dict[str, Rgb] = {}
            for library in re.findall(r"^mtllib\s+(.+?)\s*$", text, re.M):
                name = posixpath.join(folder, library)
                if name in z.namelist():
                    colors |= _mtl_colors(z.read(name).decode("latin-1"))
        return _parse(text, colors, entry.rotation)
    except (OSError, zipfile.BadZipFile, KeyError, ValueError, IndexError) as error:
        raise AssetError(f"{entry.archive}: model {entry.member} cannot be read: {error}") from error


def _mtl_colors(text: str) -> dict[str, Rgb]:
    colors, name = {}, ""
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == "newmtl":
            name = words[1]
            colors[name] = (0.7, 0.7, 0.7)
        elif len(words) >= 4 and words[0] == "Kd" and name:
            r, g, b = (min(max(float(w), 0.03), 0.95) for w in words[1:4])
            colors[name] = (r, g, b)
    return colors


def _parse(text: str, colors: dict[str, Rgb], rotation: tuple[float, ...]) -> Mesh:
    vertices: list[list[float]] = []
    faces: list[tuple[int, int, int]] = []
    slots: dict[str, int] = {}
    material: list[int] = []
    current = slots.setdefault("", 0)
    for line in text.splitlines():
        words = line.split()
        if not words:
            continue
        if words[0] == "v":
            vertices.append([float(w) for w in words[1:4]])
        elif words[0] == "usemtl":
            current = slots.setdefault(words[1] if len(words) > 1 else "", len(slots))
        elif words[0] == "f":
            corners = [int(w.split("/")[0]) for w in words[1:]]
            corners = [c - 1 if c > 0 else len(vertices) + c for c in corners]
            for k in range(1, len(corners) - 1):
                faces.append((corners[0], corners[k], corners[k + 1]))
                material.append(current)
    points = np.array(vertices).reshape(-1, 3)
    if len(rotation) == 9:
        points = points @ np.array(rotation).reshape(3, 3).T
    points = np.stack([points[:, 0], -points[:, 2], points[:, 1]], -1)  # its y is up, its z to the front
    triangles = points[np.array(faces, np.int64).reshape(-1, 3)]
    extent = float(np.ptp(points, axis=0).max()) if len(points) else 1.0
    triangles = triangles / max(extent, 1e-9)
    normal = face_normals(triangles)
    keep = np.linalg.norm(normal, axis=1) > 2 * MIN_FACE_AREA_M2
    normal = normal[keep] / np.linalg.norm(normal[keep], axis=1, keepdims=True)
    materials = tuple(Material(colors.get(name, (0.7, 0.7, 0.7)), gloss=0.15, substance=name) for name in slots)
    return Mesh(
        triangles[keep],
        np.repeat(normal[:, None], 3, 1),
        np.zeros((int(keep.sum()), 3, 2)),
        np.array(material, np.int32)[keep],
        materials,
    )


def nearest_color(rgb: F64 | Rgb) -> str:
    """Name of the colour nearest to the sRGB colour ``rgb``."""
    return min(COLORS, key=lambda name: float(((np.array(COLORS[name]) - np.asarray(rgb)) ** 2).sum()))
