"""Objects of a map in the frames of a recording, as the JSON of COCO that labelling tools read.

Of each object that a frame shows: the box around the pixels whose depth lies in the object's 3-D box, so that what
hides it is left out, and their outline. Format: https://cocodataset.org/#format-data.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import corners, euler_to_matrix
from embodied_perceptron.geometry.transforms import back_project, invert_transform, project, transform_points
from embodied_perceptron.recordings.files import write_atomically
from embodied_perceptron.recordings.image_codec import encode_color_file
from embodied_perceptron.results import SceneObject
from embodied_perceptron.sensors.frame import PosedFrame

MIN_PIXELS = 64  # an object with fewer of them in a frame is not labelled there
_MARGIN_M = 0.02  # around 3-D boxes: surfaces lie on their faces
Json = dict[str, Any]


def write_coco(
    path: str | Path, frames: Iterable[PosedFrame], objects: Sequence[SceneObject], T_world_map: NDArray[np.float64]
) -> tuple[int, int]:
    """Write ``path`` and, beside it, ``images/``: pictures and labels, how many of each.

    Args:
        path: of the JSON file; its folder is there.
        frames: of the recording that the map was made of.
        objects: of the map, boxes in its frame.
        T_world_map: (4, 4) where the map lies in the world of the frames' poses.

    Raises ``OSError``.
    """
    path = Path(path)
    (path.parent / "images").mkdir(exist_ok=True)
    names = sorted({thing.label for thing in objects})
    images: list[Json] = []
    annotations: list[Json] = []
    for number, posed in enumerate(frames, start=1):
        height, width = posed.frame.depth_m.shape
        name = f"images/{posed.frame.camera}_{posed.frame.stamp_ns}.jpg".replace(" ", "_")
        write_atomically(path.parent / name, encode_color_file(posed.frame.color, ".jpg"))
        images.append({"id": number, "file_name": name, "width": width, "height": height})
        for thing, mask in visible_objects(posed, objects, T_world_map):
            label = _annotation(mask)
            label |= {"id": len(annotations) + 1, "image_id": number, "category_id": names.index(thing.label) + 1}
            label["attributes"] = {"object_id": thing.id, "score": round(float(thing.score), 6)}
            annotations.append(label)
    categories = [{"id": i, "name": name, "supercategory": ""} for i, name in enumerate(names, start=1)]
    whole = {"info": {"description": "objects of a map of embodied_perceptron"}, "licenses": [], "images": images}
    whole |= {"annotations": annotations, "categories": categories}
    write_atomically(path, json.dumps(whole, indent=1).encode())
    return len(images), len(annotations)


def visible_objects(
    posed: PosedFrame, objects: Sequence[SceneObject], T_world_map: NDArray[np.float64]
) -> list[tuple[SceneObject, NDArray[np.bool_]]]:
    """Objects that a frame shows, each with the (H, W) mask of its pixels, at least :data:`MIN_PIXELS`."""
    k = posed.frame.intrinsics
    local, valid = back_project(posed.frame.depth_m, k)
    T_map_camera = invert_transform(T_world_map) @ posed.T_world_camera
    found = []
    for thing in objects:
        box = torch.from_numpy(np.asarray(thing.box, np.float64))[None]
        seen, _ = project(transform_points(invert_transform(T_map_camera), corners(box)[0].numpy()), k)
        if np.isnan(seen).all():
            continue
        # with corners behind the camera the box may be anywhere in the image
        size = np.array([k.width, k.height])
        low, high = (seen.min(0), seen.max(0)) if np.isfinite(seen).all() else (np.zeros(2), size)
        left, top = np.clip(np.floor(low) - 2, 0, size).astype(int)
        right, bottom = np.clip(np.ceil(high) + 3, 0, size).astype(int)
        part = np.s_[top:bottom, left:right]
        R = euler_to_matrix(box[0, 6:9]).numpy()
        inside = np.abs((transform_points(T_map_camera, local[part]) - thing.box[:3]) @ R) <= (
            0.5 * thing.box[3:6] + _MARGIN_M
        )
        mask = np.zeros(valid.shape, bool)
        mask[part] = inside.all(-1) & valid[part]
        if mask.sum() >= MIN_PIXELS:
            found.append((thing, mask))
    return found


def _annotation(mask: NDArray[np.bool_]) -> Json:
    """Box (left, top, width, height in pixels), area and outline of a mask that is not empty."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    left, top = int(columns[0]), int(rows[0])
    outlines, _ = cv2.findContours(mask.astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    polygons = [[float(v) for v in outline.reshape(-1)] for outline in outlines if len(outline) >= 3]
    box = [left, top, int(columns[-1]) - left + 1, int(rows[-1]) - top + 1]
    return {"bbox": [float(v) for v in box], "area": float(mask.sum()), "iscrowd": 0, "segmentation": polygons}
