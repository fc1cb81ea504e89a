"""Names of the 80 classes of COCO in their usual order, and of others (facts of the data sets, cocodataset.org and
storage.googleapis.com/openimages)."""

from __future__ import annotations

from collections.abc import Sequence

COCO_CLASSES: tuple[str, ...] = (
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light",
    "fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow", "elephant",
    "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee", "skis", "snowboard",
    "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard", "tennis racket", "bottle",
    "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple", "sandwich", "orange", "broccoli",
    "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch", "potted plant", "bed", "dining table", "toilet",
    "tv", "laptop", "mouse", "remote", "keyboard", "cell phone", "microwave", "oven", "toaster", "sink",
    "refrigerator", "book", "clock", "vase", "scissors", "teddy bear", "hair drier", "toothbrush",
)  # fmt: skip

# COCO numbers 90 things from 1, of which these were never labelled; detectors of TensorFlow keep the gaps.
_UNLABELLED = frozenset({12, 26, 29, 30, 45, 66, 68, 69, 71, 83})
_NUMBERED = 90

# The 23 of Open Images that the detector of MediaPipe Objectron knows, in its order.
OPEN_IMAGES_CLASSES: tuple[str, ...] = (
    "bicycle", "boot", "laptop", "person", "chair", "cattle", "desk", "cat", "computer mouse", "computer monitor",
    "box", "mug", "coffee cup", "stationary bicycle", "table", "bottle", "high heels", "vehicle", "footwear", "dog",
    "book", "camera", "car",
)  # fmt: skip


def numbered_with_gaps(names: Sequence[str]) -> tuple[str, ...]:
    """Names of COCO's numbers 1 to 90, of which ten are ``""``: nothing is called so."""
    rest = iter(names)
    return tuple("" if number in _UNLABELLED else next(rest) for number in range(1, _NUMBERED + 1))
