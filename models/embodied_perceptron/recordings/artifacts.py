"""Results as files that other programs open: point clouds, objects, navigation maps, pictures, numbers.

Every file is written whole or not at all.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from embodied_perceptron.recordings.files import write_atomically
from embodied_perceptron.recordings.image_codec import encode_color_file
from embodied_perceptron.results import Grounding, OccupancyGrid2d, SceneObject, SemanticVoxels

_PLY_VERTEX = np.dtype(
    [("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("red", "u1"), ("green", "u1"), ("blue", "u1")]
)  # packed, 15 bytes

# map_server's trinary mode: darkness 1 - pixel / 255 against two thresholds
_FREE_PIXEL, _OCCUPIED_PIXEL, _UNKNOWN_PIXEL = 254, 0, 205
_OCCUPIED_THRESHOLD = 0.65
_FREE_THRESHOLD = 0.196  # below the darkness of the unknown pixel (0.19608), so that unknown stays unknown


def write_ply(path: str | Path, points_m: NDArray[np.floating[Any]], colors: NDArray[np.uint8]) -> None:
    """Binary little-endian PLY with ``x y z`` (float) and ``red green blue`` (uchar).

    Args:
        path: of the file.
        points_m: (N, 3), may be empty.
        colors: (N, 3) uint8 RGB.

    Raises:
        ValueError: shapes or types that do not fit, or points that are not finite.
        OSError: the file cannot be written.
    """
    points = np.asarray(points_m)
    if points.ndim != 2 or points.shape[1] != 3:
        raise ValueError(f"points must have shape (N, 3), got {points.shape}")
    if colors.shape != points.shape or colors.dtype != np.uint8:
        raise ValueError(f"colors must be {points.shape} uint8, got {colors.shape} {colors.dtype}")
    if not np.isfinite(points).all():
        raise ValueError("points must be finite")
    vertices = np.empty(len(points), _PLY_VERTEX)
    for axis, name in enumerate("xyz"):
        vertices[name] = points[:, axis]
    for channel, name in enumerate(("red", "green", "blue")):
        vertices[name] = colors[:, channel]
    header = "\n".join(
        [
            "ply",
            "format binary_little_endian 1.0",
            f"element vertex {len(points)}",
            *(f"property float {name}" for name in "xyz"),
            *(f"property uchar {name}" for name in ("red", "green", "blue")),
            "end_header",
            "",
        ]
    )
    write_atomically(path, header.encode("ascii") + vertices.tobytes())


def read_ply(path: str | Path) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    """(N, 3) points in metres and (N, 3) RGB of what :func:`write_ply` wrote. Raises ``ValueError`` or ``OSError``."""
    data = Path(path).read_bytes()
    header, found, body = data.partition(b"end_header\n")
    lines = header.decode("ascii", "replace").split("\n")
    layout = [f"property float {name}" for name in "xyz"]
    layout += [f"property uchar {name}" for name in ("red", "green", "blue")]
    if not found or lines[:2] != ["ply", "format binary_little_endian 1.0"] or lines[3:-1] != layout:
        raise ValueError(f"{path} is no binary PLY of x y z red green blue")
    vertices = np.frombuffer(body, _PLY_VERTEX) if len(body) % _PLY_VERTEX.itemsize == 0 else None
    if vertices is None or lines[2] != f"element vertex {len(vertices)}":
        raise ValueError(f"{path} is cut short: {lines[2]!r}, but {len(body)} bytes")
    points = np.stack([vertices[name] for name in "xyz"], axis=1).astype(np.float64)
    return points, np.stack([vertices[name] for name in ("red", "green", "blue")], axis=1)


def write_json(path: str | Path, value: Any) -> None:
    """Indented JSON. Raises ``ValueError`` for NaN and infinity, which JSON does not have, and ``OSError``."""
    write_atomically(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def write_objects_json(path: str | Path, objects: Iterable[SceneObject]) -> None:
    """``[{id, label, score, state, box: [9]}]``, and ``user_name``, ``condition`` and ``names`` where there are some,
    sorted by id.

    Raises ``OSError``.
    """
    write_json(path, [thing.as_dict() for thing in sorted(objects, key=lambda thing: thing.id)])


def read_objects_json(path: str | Path) -> tuple[SceneObject, ...]:
    """What :func:`write_objects_json` wrote. Raises ``ValueError`` for a file of another kind, or ``OSError``."""
    try:
        rows = json.loads(Path(path).read_text(encoding="utf-8"))
        return tuple(
            SceneObject(
                int(r["id"]),
                str(r["label"]),
                float(r["score"]),
                np.array(r["box"], np.float64),
                str(r["state"]),
                user_name=str(r.get("user_name", "")),
                names=tuple((str(n["label"]), float(n["score"])) for n in r.get("names", ())),
                condition=str(r.get("condition", "")),
            )
            for r in rows
        )
    except (KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} holds no objects: {error!r}") from error


def write_occupancy_npz(path: str | Path, semantic: SemanticVoxels) -> None:
    """Labelled cells: ``centers_m`` (N, 3) float32, ``labels`` (N,) int32 into ``classes`` (text), ``confidence`` (N,)
    float32, ``cell_size_m``. Raises ``OSError``."""
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        centers_m=semantic.centers_m,
        labels=semantic.labels,
        confidence=semantic.confidence,
        classes=np.array(semantic.classes, dtype=np.str_),
        cell_size_m=np.float64(semantic.cell_size_m),
    )
    write_atomically(path, buffer.getvalue())


def read_occupancy_npz(path: str | Path) -> SemanticVoxels:
    """What :func:`write_occupancy_npz` wrote; colours are black. Raises ``ValueError`` or ``OSError``."""
    try:
        with np.load(path, allow_pickle=False) as data:
            centers, labels, confidence = data["centers_m"], data["labels"], data["confidence"]
            classes, cell_size_m = tuple(str(name) for name in data["classes"]), float(data["cell_size_m"])
    except (KeyError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} holds no labelled cells: {error}") from error
    return SemanticVoxels(cell_size_m, centers, np.zeros((len(labels), 3), np.uint8), labels, confidence, classes)


def write_groundings_json(path: str | Path, groundings: Iterable[Grounding]) -> None:
    """``[{text, status, reason, tagged_text, latency_ms, count, candidates: [objects], nearest: [objects], phrases:
    [{text, start, end, ids}]}]`` in the order given.

    Raises ``OSError``.
    """
    rows = [
        {
            "text": grounding.text,
            "status": grounding.status.name,
            "reason": grounding.reason,
            "tagged_text": grounding.tagged_text,
            "latency_ms": round(grounding.latency_ms, 3),
            "count": grounding.count,
            "candidates": [thing.as_dict() for thing in grounding.candidates],
            "nearest": [thing.as_dict() for thing in grounding.nearest],
            "phrases": [phrase.as_dict() for phrase in grounding.phrases],
        }
        for grounding in groundings
    ]
    write_json(path, rows)


def write_png(path: str | Path, image: NDArray[np.uint8]) -> None:
    """(H, W, 3) uint8 RGB -> PNG. Raises ``OSError``."""
    write_atomically(path, encode_color_file(image, ".png"))


def write_occupancy_grid(path_prefix: str | Path, grid: OccupancyGrid2d) -> tuple[Path, Path]:
    """``<prefix>.pgm`` and ``<prefix>.yaml`` as map_server and Nav2 read them.

    The picture's first row is the highest y. Occupied cells become black, free ones white, also those that are free at
    a cost (a picture of three shades cannot tell it), unknown ones grey; an empty grid becomes one unknown cell, since
    a picture cannot be empty.

    Returns:
        The two paths. The YAML is written last: where it is, the picture is whole.

    Raises:
        OSError: a file cannot be written.
    """
    prefix = Path(path_prefix)
    picture, description = prefix.with_name(prefix.name + ".pgm"), prefix.with_name(prefix.name + ".yaml")
    cells = grid.cells if grid.cells.size else np.full((1, 1), -1, np.int8)
    rows, columns = cells.shape
    pixels = np.full((rows, columns), _UNKNOWN_PIXEL, np.uint8)
    pixels[cells >= 0] = _FREE_PIXEL
    pixels[cells >= 100] = _OCCUPIED_PIXEL
    header = f"P5\n{columns} {rows}\n255\n".encode("ascii")
    write_atomically(picture, header + np.flipud(pixels).tobytes())
    meta: Mapping[str, Any] = {
        "image": picture.name,
        "mode": "trinary",
        "resolution": float(grid.resolution_m),
        "origin": [float(grid.origin_m[0]), float(grid.origin_m[1]), 0.0],
        "negate": 0,
        "occupied_thresh": _OCCUPIED_THRESHOLD,
        "free_thresh": _FREE_THRESHOLD,
    }
    write_atomically(description, yaml.safe_dump(meta, sort_keys=False, default_flow_style=None).encode())
    return picture, description
