"""COCO files of 2-D detections: boxes, scores, class names and masks by image (format: cocodataset.org/#format-data).

``images`` have ``id``, ``width``, ``height``, ``file_name`` and, where known, ``timestamp`` (seconds) and ``camera``;
``annotations`` have ``image_id``, ``category_id``, ``bbox`` (left, top, width, height from the image's corner) and
optionally ``score`` (1 where absent) and ``segmentation`` (polygons, or run lengths as counts or as text);
``categories`` have ``id`` and ``name``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron.recordings import plain_values as checked
from embodied_perceptron.recordings.files import read_json, write_atomically
from embodied_perceptron.recordings.recording import Recording, RecordingError
from embodied_perceptron.recordings.tum import TumRecording, parse_stamp

MAX_COCO_BYTES = 2**30
_MAX_ID = 2**53


@dataclass(frozen=True, eq=False)
class CocoImage:
    """Detections of one image.

    Attributes:
        file_name: as in the file; "" = none.
        stamp_ns: None where it is unknown.
        camera: its name; "" = any.
        size: width and height in pixels; None where the file has none.
        boxes: (N, 4) left, top, right, bottom from the image's corner; may hold NaN.
        scores: (N,) may hold NaN.
        labels: N names; "" for a class number that the file does not name.
        segmentations: N of polygons, run lengths, or None.
    """

    file_name: str
    stamp_ns: int | None
    camera: str
    size: tuple[int, int] | None
    boxes: F64
    scores: F64
    labels: tuple[str, ...]
    segmentations: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class CocoFile:
    """Contents of a file: images in their order, and the names of its categories."""

    images: tuple[CocoImage, ...]
    names: tuple[str, ...]


def read_coco(path: str | Path) -> CocoFile:
    """Read and check a file. Raises :class:`.RecordingError` with the file and the entry that is wrong."""
    path = Path(path)
    data = read_json(path, MAX_COCO_BYTES)
    if not isinstance(data, dict) or not all(isinstance(data.get(key), list) for key in ("images", "annotations")):
        raise RecordingError(
            f"{path} is no COCO file: it needs the lists 'images', 'annotations' and 'categories' (a list of results "
            "alone does not say which image or class a number means)"
        )
    if not isinstance(data.get("categories"), list):
        raise RecordingError(f"{path} has no 'categories': its class numbers have no names")
    try:
        names = {_id(c, f"categories[{i}]"): str(c.get("name", "")) for i, c in enumerate(data["categories"])}
        of_image: dict[int, list[dict[str, Any]]] = {
            _id(image, f"images[{i}]"): [] for i, image in enumerate(data["images"])
        }
        for i, a in enumerate(data["annotations"]):
            where = f"annotations[{i}]"
            number = _id(checked.mapping(a, where), where, "image_id")
            if number not in of_image:
                raise ValueError(f"{where} is of image {number}, which is not among the {len(of_image)} images")
            of_image[number].append({**a, "where": where})
        images = tuple(_image(image, of_image[image["id"]], names) for image in data["images"])
    except (ValueError, TypeError) as error:
        raise RecordingError(f"{path}: {error}") from error
    return CocoFile(images, tuple(names.values()))


def _id(entry: Any, where: str, key: str = "id") -> int:
    return checked.whole(checked.entry(checked.mapping(entry, where), key), f"{where}.{key}", 0, _MAX_ID)


def _image(image: Mapping[str, Any], annotations: Sequence[Mapping[str, Any]], names: Mapping[int, str]) -> CocoImage:
    file_name, stamp = str(image.get("file_name", "")), image.get("timestamp")
    stem = PurePosixPath(file_name.replace("\\", "/")).stem
    if stamp is None and "." in stem:  # the folders of TUM's data sets name images by their stamps
        stamp = stem
    stamp_ns = None
    if isinstance(stamp, str):
        try:
            stamp_ns = parse_stamp(stamp)
        except ValueError:
            if stamp is not stem:
                raise
    elif stamp is not None:
        stamp_ns = checked.seconds(stamp, f"timestamp of image {image['id']}")
    sides = image.get("width"), image.get("height")
    size = None if None in sides else tuple(checked.whole(s, "a side", 1, checked.MAX_SIDE) for s in sides)
    corners = np.array([_numbers(a, "bbox", 4) for a in annotations]).reshape(-1, 4)
    corners[:, 2:] += corners[:, :2]
    return CocoImage(
        file_name,
        stamp_ns,
        str(image.get("camera", "")),
        size,  # type: ignore[arg-type]  # two sides
        corners,
        np.array([_numbers({"score": [1.0], **a}, "score", 1)[0] for a in annotations]),
        tuple(names.get(_id(a, a["where"], "category_id"), "") for a in annotations),
        tuple(a.get("segmentation") or None for a in annotations),
    )


def _numbers(annotation: Mapping[str, Any], key: str, count: int) -> list[float]:
    """Return numbers, which may be NaN or infinite."""
    values = annotation.get(key)
    values = values if isinstance(values, list) else [values]
    if len(values) != count or not all(type(v) in (int, float) for v in values):
        raise ValueError(f"{annotation['where']}.{key} must be {count} number(s), got {values!r:.80}")
    return [float(v) if abs(v) < 1e12 else math.nan for v in values]


# --------------------------------------------------------------------------------------------------------------------
# masks


def decode_mask(segmentation: Any, size: tuple[int, int]) -> NDArray[np.bool_]:
    """Return the (H, W) mask of polygons or run lengths. Raises ``ValueError`` for another form or size."""
    width, height = size
    if isinstance(segmentation, list):
        mask = np.zeros((height, width), np.uint8)
        for polygon in segmentation:
            points = np.asarray(polygon, dtype=np.float64).reshape(-1, 2)
            if not np.isfinite(points).all():
                raise ValueError("a polygon has coordinates that are not finite")
            # 8 bits of fraction; COCO counts from the image's corner, OpenCV from the first pixel's centre
            corners = np.round((points.clip(-(2.0**16), 2.0**16) - 0.5) * 256).astype(np.int32)
            cv2.fillPoly(mask, [corners], 1, shift=8)
        return np.asarray(mask, dtype=bool)
    counts = segmentation.get("counts") if isinstance(segmentation, dict) else None
    if isinstance(counts, str):
        counts = _counts_of_text(counts)
    if not isinstance(counts, list) or not all(type(c) is int and c >= 0 for c in counts):
        raise ValueError("a mask must be a list of polygons, or {'size': [height, width], 'counts': run lengths}")
    if list(segmentation.get("size", ())) != [height, width] or sum(counts) != width * height:
        raise ValueError(
            f"a mask of size {segmentation.get('size')} with {sum(counts)} pixels for an image of {width} x {height}"
        )
    pixels: NDArray[np.bool_] = np.repeat(np.arange(len(counts)) % 2 == 1, counts).reshape(width, height).T
    return pixels


def encode_mask(mask: NDArray[np.bool_]) -> dict[str, Any]:
    """Return the run lengths of an (H, W) mask: counts of 0 and 1 in turn, column by column, zeros first."""
    starts = np.flatnonzero(np.diff(mask.T.ravel(), prepend=False))
    counts = np.diff(starts, prepend=0, append=mask.size)
    return {"size": list(mask.shape), "counts": counts.tolist()}


def _counts_of_text(text: str) -> list[int]:
    """Decode run lengths as the COCO API writes them: five bits a character, differences to the last but one."""
    counts: list[int] = []
    value, shift = 0, 0
    for character in text:
        code = ord(character) - 48
        if not 0 <= code < 64:
            raise ValueError(f"run lengths cannot hold the character {character!r}")
        value |= (code & 31) << shift
        shift += 5
        if not code & 32:
            if code & 16:
                value -= 1 << shift
            counts.append(value + (counts[-2] if len(counts) > 2 else 0))
            value, shift = 0, 0
    return counts


# --------------------------------------------------------------------------------------------------------------------
# images by name and writing


def image_stamps(recording: Recording) -> dict[str, int]:
    """Return the stamps of the colour images of a folder in TUM layout by file name; empty for other recordings."""
    original = getattr(recording, "original", recording)  # of a converted recording
    if not isinstance(original, TumRecording):
        return {}
    files = [pair for name in original.cameras for pair in original.camera(name).color_files]
    return {path.relative_to(original.source).as_posix(): stamp_ns for stamp_ns, path in files}


class NamedImages:
    """Search of images by file name: the longest ending of a path decides. ``stamps``: stamp by path."""

    def __init__(self, stamps: Mapping[str, int]) -> None:
        self._by_ending: dict[str, int | None] = {}  # None = several images
        for name, stamp_ns in stamps.items():
            for ending in _endings(name):
                self._by_ending[ending] = None if ending in self._by_ending else stamp_ns

    def stamp_ns(self, file_name: str) -> int | None:
        """Return the stamp of an image; None without one, or where several images have that name."""
        known = (self._by_ending[ending] for ending in _endings(file_name) if ending in self._by_ending)
        return next(known, None)


def _endings(name: str) -> list[str]:
    """Return ``a/b/c``, ``b/c`` and ``c``."""
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    return ["/".join(parts[i:]) for i in range(len(parts))]


def write_coco(path: str | Path, images: Iterable[Mapping[str, Any]]) -> int:
    """Write a file and return its number of annotations. Raises ``OSError``.

    Each image has ``file_name``, ``width``, ``height``, optionally ``timestamp``, and ``annotations`` with ``name``,
    ``bbox``, ``score`` and optionally ``segmentation``.
    """
    data: dict[str, list[dict[str, Any]]] = {"images": [], "annotations": [], "categories": []}
    numbers: dict[str, int] = {}
    for number, image in enumerate(images):
        data["images"].append({"id": number, **{k: v for k, v in image.items() if k != "annotations"}})
        for a in image["annotations"]:
            category = numbers.setdefault(a["name"], len(numbers) + 1)
            own = {k: v for k, v in a.items() if k != "name"}
            area = round(a["bbox"][2] * a["bbox"][3], 3)
            ids = {"id": len(data["annotations"]), "image_id": number, "category_id": category, "iscrowd": 0}
            data["annotations"].append({**ids, "area": area, **own})
    data["categories"] = [{"id": number, "name": name} for name, number in numbers.items()]
    write_atomically(path, (json.dumps(data) + "\n").encode())
    return len(data["annotations"])
