"""True 2-D detections of simulated homes: visible pixels, boxes and masks of named objects, as a COCO file."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.recordings.coco import encode_mask
from embodied_perceptron.weights.categories import STRUCTURE_CLASSES
from embodied_perceptron_training.homes.assets.varied.clutter import UNLABELLED
from embodied_perceptron_training.homes.building.home import Home

DETECTIONS = "detections.json"  # beside a home
_LEAST_PIXELS = 30
_NAMELESS = frozenset((*STRUCTURE_CLASSES, UNLABELLED))


def true_annotations(home: Home, instance: NDArray[np.integer[Any]]) -> list[dict[str, Any]]:
    """Return the entries of :func:`.write_coco` for one view, with ``object_id``.

    ``instance``: (H, W) object id + 1 of each pixel. Walls, floors, ceilings and clutter without a name are left out,
    and objects with fewer than 30 pixels.
    """
    counts = np.bincount(instance.ravel(), minlength=len(home.objects) + 1)[1:]
    found = []
    for i in np.flatnonzero(counts >= _LEAST_PIXELS).tolist():
        if home.objects[i].label in _NAMELESS:
            continue
        mask = instance == i + 1
        found.append(
            {
                "name": home.objects[i].label,
                "bbox": list(cv2.boundingRect(mask.astype(np.uint8))),
                "score": 1.0,
                "segmentation": encode_mask(mask),
                "object_id": i,
            }
        )
    return found


def true_image(
    home: Home, instance: NDArray[np.integer[Any]], file_name: str, timestamp: float | None = None
) -> dict[str, Any]:
    """Return the entry of one image of :func:`.write_coco`."""
    height, width = instance.shape
    image = {"file_name": file_name, "width": width, "height": height, "annotations": true_annotations(home, instance)}
    return image if timestamp is None else {**image, "timestamp": timestamp}
