"""Makes ``models.npz``, ``models.json`` and ``ATTRIBUTION.md`` again from Debian's package ``sweethome3d-furniture``.

    apt-get download sweethome3d-furniture && dpkg -x sweethome3d-furniture_*.deb unpacked
    python -m embodied_perceptron_training.homes.assets.sweet_home_3d.convert unpacked/usr/share/sweethome3d/furniture

Which models are taken, and for which role, stands in ``roles.json``. Each is decimated (quadric edge collapse), turned
to this project's object axes (x right, front along -y, z up, standing on z = 0 below its middle) and scaled to the size
that its catalogue says. Textures become one colour per face, colours a palette per model. Surfaces that carry things
and boxes for collision tests are found from the geometry here, once.
"""

from __future__ import annotations

import json
import posixpath
import re
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy import ndimage, spatial
from scipy.cluster.vq import kmeans2

from embodied_perceptron_training.homes.assets.sweet_home_3d.decimation import decimated
from embodied_perceptron_training.homes.assets.sweethome3d import AssetError

F64 = NDArray[np.float64]
FOLDER = Path(__file__).parent
ARCHIVES = {
    "BlendSwap-CC-0": "CC0 1.0",
    "BlendSwap-CC-BY": "CC BY 3.0",
    "KatorLegaz": "CC BY 3.0 US",
    "Scopia": "CC BY 3.0",
}
# roles that look like one thing through and through: a box around them is all that collision tests need
_ONE_BOX = {"small", "kitchen", "bath", "electronics", "decor"}
MAX_FACES, MAX_SMALL_FACES, MAX_COLORS = 800, 320, 24
_SMALL_M = 0.45
# kinds of a palette's entry
PLAIN, WOOD, FABRIC, METAL, GLASS, SCREEN = range(6)
_KIND_WORDS = (
    (SCREEN, r"screen|ecran|pantalla|display"),
    (GLASS, r"glass|verre|vidrio|cristal|mirror|miroir|espejo"),
    (WOOD, r"wood|bois|madera|oak|pine|pino|walnut|birch|teak|alder|parquet|mahogany|bambo|wenge|roble"),
    (METAL, r"metal|steel|acero|chrom|inox|alum|iron|brass|silver|cromado"),
    (FABRIC, r"fabric|cloth|tela|tissu|leather|cuir|cuero|cushion|coussin|pillow|mattress|matelas|rattan|towel|wool"),
)
# role -> what its surfaces accept; "inside" for boards within
_TOPS = {
    "furniture.chair": "seat", "furniture.office_chair": "seat", "furniture.armchair": "couch",
    "furniture.couch": "couch", "furniture.stool": "seat", "furniture.bench": "seat", "furniture.ottoman": "seat",
    "furniture.dining_table": "dining", "furniture.desk": "desk", "furniture.coffee_table": "coffee",
    "furniture.tv_stand": "tv", "furniture.nightstand": "bedside", "furniture.cabinet": "decor",
    "furniture.dresser": "decor", "furniture.kitchen_island": "counter", "furniture.piano": "decor",
    "tables.work_bench": "tools", "soft.bed": "bed", "electronics.washing_machine": "laundry",
    "electronics.clothes_dryer": "laundry", "kitchen.refrigerator": "storage", "decor.fireplace": "decor",
}  # fmt: skip
_MUST_CARRY = {"furniture.desk", "furniture.tv_stand", "furniture.dining_table", "tables.work_bench"}
_BOARDS = {"furniture.shelf": "books"}
_HOLLOW = _TOPS.keys() | _BOARDS.keys() | {"furniture.rack", "electronics.floor_lamp", "soft.crib"}


@dataclass(frozen=True, eq=False)
class Model:
    """A converted model.

    Attributes:
        vertices: (V, 3) metres, object axes.
        faces: (F, 3) indices.
        color: (F,) index into the palette.
        palette: (C, 5) uint8: red, green, blue, gloss (255 = 1), kind.
    """

    vertices: F64
    faces: NDArray[np.int64]
    color: NDArray[np.int64]
    palette: NDArray[np.uint8]

    @property
    def triangles(self) -> F64:
        """(F, 3, 3) corners."""
        corners: F64 = self.vertices[self.faces]
        return corners


# --------------------------------------------------------------------------------------------------------------------
# Reading


@dataclass(frozen=True, eq=False)
class Source:
    """What an archive holds of a model: triangles in its own axes, and per face the colour and what it is made of."""

    triangles: F64  # (F, 3, 3)
    rgb: F64  # (F, 3) sRGB 0..1
    look: NDArray[np.int64]  # (F, 2) gloss 0..255, kind


def catalogue(archive: zipfile.ZipFile) -> dict[str, dict[str, str]]:
    """Entries of an archive's catalogue by the stem of their model. Raises :class:`AssetError` when it has none."""
    try:
        text = archive.read("PluginFurnitureCatalog.properties").decode("latin-1")
    except KeyError as error:
        raise AssetError(f"{archive.filename} has no furniture catalogue") from error
    entries: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition("=")
        name, _, number = key.partition("#")
        if number.isdigit():
            entries.setdefault(number, {})[name] = value.strip()
    return {Path(e["model"]).stem: e for e in entries.values() if e.get("model", "").endswith(".obj")}


def read_source(archive: zipfile.ZipFile, member: str) -> Source:
    """Faces of the OBJ file ``member``. Raises :class:`AssetError` when it is malformed or missing."""
    try:
        text = archive.read(member).decode("latin-1")
        folder = posixpath.dirname(member)
        materials: dict[str, _Look] = {}
        for name in re.findall(r"^mtllib\s+(.+?)\s*$", text, re.M):
            path = posixpath.join(folder, name)
            if path in archive.namelist():
                materials |= _materials(archive, path)
        return _faces(text, materials)
    except (KeyError, ValueError, IndexError) as error:
        raise AssetError(f"{archive.filename}: model {member} cannot be read: {error}") from error


@dataclass
class _Look:
    rgb: tuple[float, float, float] = (0.7, 0.7, 0.7)
    specular: float = 0.0
    opacity: float = 1.0
    texture: NDArray[np.uint8] | None = None
    words: str = ""

    @property
    def kind(self) -> int:
        if self.opacity < 0.75:
            return GLASS
        return next((kind for kind, words in _KIND_WORDS if re.search(words, self.words)), PLAIN)

    @property
    def gloss(self) -> int:
        fixed = {METAL: 0.55, GLASS: 0.6, SCREEN: 0.7, WOOD: 0.15, FABRIC: 0.0}
        return round(255 * fixed.get(self.kind, min(0.3, 0.35 * self.specular)))


def _materials(archive: zipfile.ZipFile, member: str) -> dict[str, _Look]:
    looks: dict[str, _Look] = {}
    look = _Look()
    for line in archive.read(member).decode("latin-1").splitlines():
        words = line.split()
        if len(words) < 2:
            continue
        if words[0] == "newmtl":
            look = looks[words[1]] = _Look(words=words[1].lower())
        elif words[0] == "Kd":
            r, g, b = (min(max(float(w), 0.0), 1.0) for w in words[1:4])
            look.rgb = (r, g, b)
        elif words[0] == "Ks":
            look.specular = float(np.mean([float(w) for w in words[1:4]]))
        elif words[0] == "d":
            look.opacity = float(words[1])
        elif words[0] == "map_Kd":
            path = posixpath.join(posixpath.dirname(member), line.split(None, 1)[1].strip())
            look.words += " " + posixpath.basename(path).lower()
            if path in archive.namelist():
                image = cv2.imdecode(np.frombuffer(archive.read(path), np.uint8), cv2.IMREAD_UNCHANGED)
                look.texture = None if image is None else image.astype(np.uint8)
    return looks


def _faces(text: str, materials: dict[str, _Look]) -> Source:
    vertices: list[list[float]] = []
    places: list[list[float]] = []
    corners: list[tuple[int, int, int]] = []
    coords: list[tuple[int, int, int]] = []
    names: list[str] = []
    current = ""
    for line in text.splitlines():
        words = line.split()
        if not words:
            continue
        if words[0] == "v":
            vertices.append([float(w) for w in words[1:4]])
        elif words[0] == "vt":
            places.append([float(w) for w in words[1:3]])
        elif words[0] == "usemtl":
            current = words[1] if len(words) > 1 else ""
        elif words[0] == "f":
            parts = [w.split("/") for w in words[1:]]
            at = [_index(p[0], len(vertices)) for p in parts]
            uv = [_index(p[1], len(places)) if len(p) > 1 and p[1] else -1 for p in parts]
            for k in range(1, len(at) - 1):
                corners.append((at[0], at[k], at[k + 1]))
                coords.append((uv[0], uv[k], uv[k + 1]))
                names.append(current)
    triangles = np.array(vertices).reshape(-1, 3)[np.array(corners, np.int64).reshape(-1, 3)]
    uv_of = np.concatenate([np.array(places).reshape(-1, 2), np.zeros((1, 2))])[np.array(coords).reshape(-1, 3)]
    rgb, look = np.zeros((len(triangles), 3)), np.zeros((len(triangles), 2), np.int64)
    owner = np.array(names)
    for name in sorted(set(names)):
        mine, made = owner == name, materials.get(name, _Look())
        rgb[mine] = made.rgb if made.texture is None else _texture_colors(made.texture, uv_of[mine])
        look[mine] = (made.gloss, made.kind)
    return Source(triangles, rgb, look)


def _index(word: str, count: int) -> int:
    number = int(word)
    index = number - 1 if number > 0 else count + number
    if not 0 <= index < count:
        raise IndexError(f"refers to entry {number} of {count}")
    return index


def _texture_colors(texture: NDArray[np.uint8], uv: F64) -> F64:
    """(F, 3, 2) texture coordinates -> (F, 3) mean sRGB of a few points of each face."""
    image = texture if texture.ndim == 3 else np.repeat(texture[..., None], 3, 2)
    rgb = image[..., 2::-1].astype(np.float64) / 255  # without alpha
    height, width = rgb.shape[:2]
    weights = np.array([[1, 1, 1], [4, 1, 1], [1, 4, 1], [1, 1, 4], [2, 2, 1], [2, 1, 2], [1, 2, 2]], np.float64)
    points = np.einsum("kc,fcd->fkd", weights / weights.sum(1, keepdims=True), uv)
    x = np.floor((points[..., 0] % 1.0) * width).astype(int).clip(0, width - 1)
    y = np.floor(((1.0 - points[..., 1]) % 1.0) * height).astype(int).clip(0, height - 1)
    colors: F64 = (rgb[y, x] ** 2).mean(1) ** 0.5
    return colors


# --------------------------------------------------------------------------------------------------------------------
# Converting


def convert(source: Source, size_m: Sequence[float], rotation: Sequence[float], max_faces: int) -> Model:
    """``source`` decimated, turned and scaled to ``size_m`` (width, depth, height)."""
    points = source.triangles.reshape(-1, 3)
    if len(rotation) == 9:
        points = points @ np.array(rotation).reshape(3, 3).T
    points = np.stack([points[:, 0], -points[:, 2], points[:, 1]], -1)  # its y is up, its z to the front
    low, high = points.min(0), points.max(0)
    points = (points - (low + high) / 2) / np.maximum(high - low, 1e-9) * np.asarray(size_m)
    points[:, 2] += size_m[2] / 2
    triangles = points.reshape(-1, 3, 3)
    area = np.linalg.norm(np.cross(triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0]), axis=1) / 2
    keep = area > 1e-10
    triangles, rgb, look, area = triangles[keep], source.rgb[keep], source.look[keep], area[keep]
    vertices, faces = _shared(triangles)
    if len(faces) > max_faces:
        vertices, faces = decimated(vertices, faces, max_faces)
    corners = vertices[faces]
    faces = faces[np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1) > 2e-8]
    used, inverse = np.unique(faces, return_inverse=True)
    vertices, faces = vertices[used], inverse.reshape(-1, 3)
    low, high = vertices.min(0), vertices.max(0)  # decimation takes corners off
    vertices = (vertices - low) / np.maximum(high - low, 1e-9) * np.asarray(size_m)
    vertices -= (size_m[0] / 2, size_m[1] / 2, 0)
    color, palette = _colors(vertices[faces], triangles, area, rgb, look)
    return Model(vertices, faces, color, palette)


def _shared(triangles: F64) -> tuple[F64, NDArray[np.int64]]:
    """Corners that coincide become one vertex; faces that lose a corner are left out."""
    points = triangles.reshape(-1, 3)
    step = max(float(np.ptp(points, axis=0).max()), 1e-6) * 1e-4
    _, first, inverse = np.unique(
        np.round(points / step).astype(np.int64), axis=0, return_index=True, return_inverse=True
    )
    faces = inverse.reshape(-1, 3)
    whole = (faces[:, 0] != faces[:, 1]) & (faces[:, 1] != faces[:, 2]) & (faces[:, 0] != faces[:, 2])
    return points[first], np.unique(faces[whole], axis=0)


def _colors(
    corners: F64, triangles: F64, area: F64, rgb: F64, look: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Index per new face and palette, from the colours of the nearest points of the old faces."""
    rng = np.random.default_rng(0)
    chosen = rng.choice(len(triangles), 24_000, p=area / area.sum())
    weights = rng.dirichlet((1.0, 1.0, 1.0), len(chosen))
    tree = spatial.cKDTree(np.einsum("nc,ncd->nd", weights, triangles[chosen]))
    inner = np.array([[1, 1, 1], [4, 1, 1], [1, 4, 1], [1, 1, 4]], np.float64)
    samples = np.einsum("kc,fcd->fkd", inner / inner.sum(1, keepdims=True), corners)  # (F, 4, 3)
    nearest = chosen[tree.query(samples)[1]]  # (F, 4) old face
    mean = (rgb[nearest] ** 2).mean(1) ** 0.5
    made = look[nearest[:, 0]]
    features = np.concatenate([mean, made[:, :1] / 255.0, made[:, 1:] * 0.7], 1)
    different = np.unique(np.round(features, 3), axis=0)
    if len(different) <= MAX_COLORS:
        centers = different
    else:
        centers, _ = kmeans2(features, MAX_COLORS, iter=25, minit="++", seed=0)
    color = spatial.cKDTree(centers).query(features)[1].astype(np.int64)
    used, color = np.unique(color, return_inverse=True)
    palette = np.zeros((len(used), 5), np.uint8)
    for k in range(len(used)):
        mine = color == k
        palette[k, :3] = np.round(255 * (mean[mine] ** 2).mean(0) ** 0.5)
        palette[k, 3] = round(float(made[mine, 0].mean()))
        palette[k, 4] = np.bincount(made[mine, 1]).argmax()
    return color.reshape(-1), palette


# --------------------------------------------------------------------------------------------------------------------
# Surfaces and collision boxes

_CELL_M = 0.02
_LEAST_SURFACE_M = 0.16


def _points(triangles: F64, step_m: float) -> tuple[F64, F64]:
    """Points on the faces, at most ``step_m`` apart, and the z of their faces' unit normals (without sign)."""
    normal = np.cross(triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0])
    upright = np.abs(normal[:, 2]) / np.maximum(np.linalg.norm(normal, axis=1), 1e-12)
    longest = np.linalg.norm(triangles - np.roll(triangles, 1, axis=1), axis=2).max(1)
    steps = np.maximum(np.ceil(longest / step_m).astype(int), 1)
    points, up = [], []
    for n in np.unique(steps):
        mine = triangles[steps == n]
        i, j = np.meshgrid(np.arange(n + 1), np.arange(n + 1), indexing="ij")
        u, v = i[i + j <= n] / n, j[i + j <= n] / n
        spread = mine[:, None] - mine[:, None, :1]  # (F, 1, 3, 3) from the first corner
        points.append((mine[:, :1] + u[:, None] * spread[:, :, 1] + v[:, None] * spread[:, :, 2]).reshape(-1, 3))
        up.append(np.repeat(upright[steps == n], len(u)))
    return np.concatenate(points), np.concatenate(up)


def largest_rectangle(mask: NDArray[np.bool_]) -> tuple[int, int, int, int]:
    """(row, column, rows, columns) of the largest rectangle of true cells; zeros when there are none."""
    best, found = 0, (0, 0, 0, 0)
    heights = np.zeros(mask.shape[1] + 1, int)
    for r in range(mask.shape[0]):
        heights[:-1] = np.where(mask[r], heights[:-1] + 1, 0)
        stack: list[int] = []
        for c in range(len(heights)):
            start = c
            while stack and heights[stack[-1]] >= heights[c]:
                top = stack.pop()
                left = stack[-1] + 1 if stack else 0
                area = int(heights[top]) * (c - left)
                if area > best:
                    best, found = area, (r - int(heights[top]) + 1, left, int(heights[top]), c - left)
                start = left
            stack.append(c)
            del start
    return found


def top_surface(
    triangles: F64, soft_m: float = 0.012, between_m: tuple[float, float] = (0.1, 3.0), below: float = 1.0
) -> list[float] | None:
    """[x, y, z, half x, half y] of the largest level rectangle that is open from above; None when there is none.

    ``soft_m`` is how uneven it may be; only heights ``between_m`` and below the share ``below`` of the whole count.
    """
    points, _ = _points(triangles, _CELL_M * 0.7)
    low, high = points.min(0), points.max(0)
    cells = np.floor((points[:, :2] - low[:2]) / _CELL_M).astype(int)
    shape = tuple(cells.max(0) + 1)
    height = np.full(shape, -1.0)
    np.maximum.at(height, (cells[:, 0], cells[:, 1]), points[:, 2])
    covered = height >= 0
    levels = np.arange(between_m[0], min(below * float(high[2]) + 0.02, between_m[1]), 0.01)
    best: tuple[float, list[float]] | None = None
    counts = [int((covered & (np.abs(height - z) <= soft_m)).sum()) for z in levels]
    for k in np.argsort(counts)[::-1][:6]:
        mask = covered & (np.abs(height - levels[k]) <= soft_m)
        r, c, rows, columns = largest_rectangle(mask)
        if min(rows, columns) * _CELL_M < _LEAST_SURFACE_M:
            continue
        part = height[r : r + rows, c : c + columns]
        a = low[:2] + np.array([r, c]) * _CELL_M
        b = np.minimum(a + np.array([rows, columns]) * _CELL_M, high[:2])
        area = float(np.prod(b - a))
        if best is None or area > best[0] * 1.05:
            best = (area, [*((a + b) / 2).tolist(), float(part.max()), *((b - a) / 2 - 0.005).tolist()])
    return None if best is None else best[1]


def boards(triangles: F64) -> list[list[float]]:
    """[x, y, z, half x, half y, free height] of the level boards within a shelf, from below."""
    points, up = _points(triangles, 0.03)
    low, high = points.min(0), points.max(0)
    level = points[up > 0.95]
    if not len(level):
        return []
    area = (high[0] - low[0]) * (high[1] - low[1])
    bins = np.arange(0.0, high[2] + 0.02, 0.01)
    cell = np.unique(
        np.floor(np.stack([level[:, 0] / 0.03, level[:, 1] / 0.03, level[:, 2] / 0.01])).astype(int), axis=1
    )
    count = np.bincount(cell[2].clip(0), minlength=len(bins)) * 0.03**2
    count = np.maximum(count, np.append(count[1:], 0) + count)  # a board near the border of two bins
    good = np.nonzero(count > 0.45 * area)[0]
    groups = np.split(good, np.nonzero(np.diff(good) > 6)[0] + 1) if len(good) else []
    tops = []
    for group in groups:
        near = level[(level[:, 2] > group[0] * 0.01 - 0.001) & (level[:, 2] < group[-1] * 0.01 + 0.021)]
        tops.append((float(np.quantile(near[:, 2], 0.98)), near))
    result = []
    for k, (z, near) in enumerate(tops):
        above = tops[k + 1][0] - 0.04 if k + 1 < len(tops) else high[2] - 0.02
        if above - z < 0.14:
            continue
        a, b = near[:, :2].min(0), near[:, :2].max(0)
        result.append([*((a + b) / 2).tolist(), z, *((b - a) / 2 - 0.03).tolist(), above - z])
    return [[float(v) for v in row] for row in result if min(row[3:5]) > 0.06]


def collision_boxes(triangles: F64, levels_m: Sequence[float] = (), cell_m: float = 0.06) -> list[list[float]]:
    """[x, y, z, half x, half y, half z] of boxes around all that a model fills; ``levels_m`` stay surfaces."""
    points, _ = _points(triangles, cell_m / 3)
    low, high = points.min(0), points.max(0)
    edges = [np.linspace(low[k], high[k], max(1, int(np.ceil((high[k] - low[k]) / cell_m))) + 1) for k in range(3)]
    edges[2] = np.unique(np.concatenate([edges[2], np.asarray(levels_m, np.float64) + 5e-4]))
    where = np.stack(
        [np.clip(np.searchsorted(e, points[:, k], "right") - 1, 0, len(e) - 2) for k, e in enumerate(edges)]
    )
    full = np.zeros([len(e) - 1 for e in edges], bool)
    full[tuple(where)] = True
    padded = np.pad(full, ((1, 1), (1, 1), (1, 1)))
    padded[:, :, 0] = True  # the floor closes what is open below, such as cupboards
    lifted = ndimage.binary_fill_holes(padded)[1:-1, 1:-1, 1:]
    solid = lifted[:, :, : full.shape[2]] | full
    flat = np.ravel_multi_index(tuple(where), full.shape)
    order = np.argsort(flat, kind="stable")
    starts = np.searchsorted(flat[order], np.arange(full.size + 1))
    boxes, left = [], solid.copy()
    while left.any():
        a = np.argwhere(left)[0]
        b = a + 1
        for axis in (2, 0, 1):  # upright first: legs and backs
            while b[axis] < left.shape[axis]:
                next_ = [slice(a[k], b[k]) for k in range(3)]
                next_[axis] = slice(b[axis], b[axis] + 1)
                if not left[tuple(next_)].all():
                    break
                b[axis] += 1
        region = tuple(slice(a[k], b[k]) for k in range(3))
        left[region] = False
        cells = np.arange(full.size).reshape(full.shape)[region].ravel()
        mine = np.concatenate([order[starts[c] : starts[c + 1]] for c in cells])
        if not len(mine):
            continue
        lo, hi = points[mine].min(0), points[mine].max(0)
        hi = np.maximum(hi, lo + 0.002)
        boxes.append([*((lo + hi) / 2).tolist(), *((hi - lo) / 2).tolist()])
    return boxes


def _surfaces(role: str, model: Model) -> list[dict[str, Any]]:
    triangles = model.triangles
    high = float(triangles[..., 2].max())
    if role in _BOARDS:
        return [
            {"at": row[:3], "half": row[3:5], "clearance": row[5], "relation": "inside", "accepts": _BOARDS[role]}
            for row in boards(triangles)
        ]
    if role not in _TOPS:
        return []
    accepts = _TOPS[role]
    seat = accepts in ("seat", "couch", "bed")
    top = top_surface(
        triangles,
        0.035 if seat else 0.012,
        (0.25, 0.8) if seat else (0.1, 3.0),
        0.75 if accepts == "tools" or (seat and high > 0.55) else 1.0,
    )
    if top is None:
        return []
    x, y, z, hx, hy = top
    if accepts == "bed":  # pillows at the head, which is at the back, the rest for covers
        share = 0.24
        return [
            {"at": [x, y + hy * (1 - share), z], "half": [hx, hy * share], "clearance": 1.5, "relation": "ontop",
             "accepts": "pillows"},
            {"at": [x, y - hy * share, z], "half": [hx, hy * (1 - share)], "clearance": 1.5, "relation": "ontop",
             "accepts": "bedding"},
        ]  # fmt: skip
    return [{"at": [x, y, z], "half": [hx, hy], "clearance": 0.6, "relation": "ontop", "accepts": accepts}]


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    return round(value, 4) if isinstance(value, float) else value


def describe(role: str, model: Model) -> dict[str, Any]:
    """Surfaces and collision boxes of a model in its role.

    Raises :class:`AssetError` when it lacks what the role needs.
    """
    surfaces = _surfaces(role, model)
    if role in _MUST_CARRY and not surfaces:
        raise AssetError(f"no surface found on a model for {role}")
    triangles = model.triangles
    low, high = triangles.reshape(-1, 3).min(0), triangles.reshape(-1, 3).max(0)
    boxes = [[*((low + high) / 2).tolist(), *((high - low) / 2).tolist()]]
    if role in _HOLLOW:
        levels = [s["at"][2] for s in surfaces]
        for cell in (0.05, 0.07, 0.1, 0.14, 0.2):
            found = collision_boxes(triangles, levels, cell * max(1.0, float((high - low).max()) / 2))
            if len(found) <= 28:
                boxes = found
                break
    return {"surfaces": _rounded(surfaces), "boxes": _rounded(boxes)}


# --------------------------------------------------------------------------------------------------------------------
# The file


def pack(models: Sequence[Model]) -> dict[str, NDArray[Any]]:
    """Arrays of the file: all models one after the other, corners as 16-bit parts of each model's own box."""
    counts = np.array([[len(m.vertices), len(m.faces), len(m.palette)] for m in models])
    low = np.stack([m.vertices.min(0) for m in models])
    high = np.stack([m.vertices.max(0) for m in models])
    steps = [(m.vertices - a) / np.maximum(b - a, 1e-9) * 65535 for m, a, b in zip(models, low, high, strict=True)]
    return {
        "counts": counts.astype(np.int32),
        "bounds": np.stack([low, high], 1).astype(np.float32),
        "vertices": np.concatenate([np.round(s) for s in steps]).astype(np.uint16),
        "faces": np.concatenate([m.faces for m in models]).astype(np.uint16),
        "color": np.concatenate([m.color for m in models]).astype(np.uint8),
        "palette": np.concatenate([m.palette for m in models]).astype(np.uint8),
    }


def families(entries: Sequence[dict[str, Any]]) -> list[str]:
    """Name of each model's family: its own, or that of an earlier one of the same role and nearly the same size."""
    names: list[str] = []
    for k, entry in enumerate(entries):
        size = np.array(entry["size_m"])
        twin = next(
            (
                names[j]
                for j in range(k)
                if entries[j]["role"] == entry["role"]
                and np.abs(np.array(entries[j]["size_m"]) / size - 1).max() < 0.03
            ),
            f"sweet_home_3d.{entry['id'].replace('/', '.')}",
        )
        names.append(twin)
    return names


def held_out(entries: Sequence[dict[str, Any]]) -> set[str]:
    """A fifth of the families of every role, those of roles with one family never."""
    chosen: set[str] = set()
    carried = 0.0
    for role in dict.fromkeys(e["role"] for e in entries):
        names = list(dict.fromkeys(e["family"] for e in entries if e["role"] == role))
        carried += len(names) / 5
        take = min(int(carried + 1e-9), len(names) - 1)
        carried -= take
        order = np.random.default_rng(sum(role.encode())).permutation(len(names))
        chosen |= {names[i] for i in order[:take]}
    return chosen


def attribution(entries: Sequence[dict[str, Any]]) -> str:
    """The text of ``ATTRIBUTION.md``: one line a model."""
    lines = [
        "# 3-D models of Sweet Home 3D in `models.npz`",
        "",
        "From Debian's package sweethome3d-furniture 1.8 (https://www.sweethome3d.com), changed: decimated, scaled to",
        "the size of their catalogue, textures replaced by one colour per face (`convert.py`). Licences: CC0 1.0",
        "(https://creativecommons.org/publicdomain/zero/1.0/), CC BY 3.0",
        "(https://creativecommons.org/licenses/by/3.0/),",
        "CC BY 3.0 US (https://creativecommons.org/licenses/by/3.0/us/). Models of `Scopia` are attributed to",
        "Emmanuel Puybaret / eTeks and Scopia Visual Interfaces Systems, s.l. (http://www.scopia.es), those of",
        "`KatorLegaz` to Andrew Kator and Jennifer Legaz, those of `BlendSwap-*` (https://www.blendswap.com) to the",
        "authors below, cleaned by Emmanuel Puybaret.",
        "",
        "| model | name | author | licence |",
        "|---|---|---|---|",
    ]
    rows = sorted({(e["id"], e["name"], e["author"], e["licence"]) for e in entries}, key=lambda r: r[0].lower())
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def convert_all(furniture: Path, roles: dict[str, list[str]]) -> tuple[list[dict[str, Any]], list[Model]]:
    """Entries and models that ``roles`` names, from the archives in ``furniture``.

    Raises :class:`AssetError` for an archive or a model that is missing or broken.
    """
    entries: list[dict[str, Any]] = []
    models: list[Model] = []
    for archive_name, licence in ARCHIVES.items():
        wanted = [(role, i) for role, ids in roles.items() for i in ids if i.startswith(archive_name + "/")]
        if not wanted:
            continue
        try:
            archive = zipfile.ZipFile(furniture / f"{archive_name}.sh3f")
        except (OSError, zipfile.BadZipFile) as error:
            raise AssetError(f"{furniture / archive_name}.sh3f cannot be read: {error}") from error
        with archive:
            known = catalogue(archive)
            for role, identifier in wanted:
                entry = known.get(identifier.rpartition("/")[2])
                if entry is None:
                    raise AssetError(f"{archive.filename} has no model {identifier}")
                size = [float(entry[k]) / 100 for k in ("width", "depth", "height")]
                small = role.split(".")[0] in _ONE_BOX and max(size) < _SMALL_M
                source = read_source(archive, entry["model"].lstrip("/"))
                turn = [float(v) for v in entry.get("modelRotation", "").split()]
                model = convert(source, size, turn, MAX_SMALL_FACES if small else MAX_FACES)
                author = "Scopia and eTeks" if archive_name == "Scopia" else entry.get("creator") or "unknown"
                try:
                    found = describe(role, model)
                except AssetError as error:
                    raise AssetError(f"{identifier}: {error}") from None
                entries.append(
                    {"id": identifier, "role": role, "name": entry["name"], "author": author, "licence": licence,
                     "size_m": _rounded(size), **found}
                )  # fmt: skip
                models.append(model)
    for entry, family in zip(entries, families(entries), strict=True):
        entry["family"] = family
    apart = held_out(entries)
    for row in entries:
        row["unseen"] = row["family"] in apart
    return entries, models


def main(arguments: Sequence[str]) -> int:
    """Write the three files beside this one; see the module's text."""
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    roles: dict[str, list[str]] = json.loads((FOLDER / "roles.json").read_text())
    try:
        entries, models = convert_all(Path(arguments[0]), roles)
    except AssetError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    arrays: dict[str, Any] = pack(models)
    np.savez_compressed(FOLDER / "models.npz", **arrays)
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries)
    (FOLDER / "models.json").write_text(f"[\n{lines}\n]\n")
    (FOLDER / "ATTRIBUTION.md").write_text(attribution(entries))
    print(
        f"{len(models)} models, {sum(len(m.faces) for m in models)} faces, "
        f"{(FOLDER / 'models.npz').stat().st_size} bytes"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
