"""Input and output layouts of families of 2-D detectors: image -> network input, and raw outputs -> boxes.

A layout is declared by name, never guessed: other shapes raise :class:`LayoutError`. Boxes here are left, top, right,
bottom from the corner of the network's input (0 .. width); :class:`PictureFit` converts them to image pixels.

Sources of the layouts: the export and demo scripts of NanoDet (RangiLyu/nanodet), Ultralytics YOLOv8 / YOLO11, YOLOX
(Megvii-BaseDetection/YOLOX) and RT-DETR (lyuwenyu/RT-DETR; the exports of Ultralytics and transformers are recognised
by the names and shapes of their outputs).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.suppression import DETECTOR_NMS_IOU

Outputs = Mapping[str, NDArray[Any]]
Size = tuple[int, int]  # width, height

_PAD_MULTIPLE = 32
_NANODET_STRIDES: tuple[int, ...] = (8, 16, 32, 64)
_YOLOX_STRIDES = (8, 16, 32)
_YOLOV8_STRIDES = (8, 16, 32)
_MASK_COEFFICIENTS = 32
_END_TO_END_COLUMNS = 6


class LayoutError(ValueError):
    """Outputs of another layout than the declared one; the message names layout and shapes."""


def _shapes(outputs: Outputs) -> str:
    return ", ".join(f"{name} {tuple(value.shape)}" for name, value in outputs.items()) or "none"


def _misfit(layout: str, expected: str, outputs: Outputs) -> LayoutError:
    text = f"layout {layout}: expected {expected}, got outputs {_shapes(outputs)}"
    if any(
        value.ndim == 3 and value.shape[0] == 1 and value.shape[2] == _END_TO_END_COLUMNS for value in outputs.values()
    ):
        text += "; (1, N, 6) is an end-to-end export (corners, score, class): export without it (nms=False)"
    return LayoutError(text)


@dataclass(frozen=True)
class PictureFit:
    """Mapping of an image into the network's input: ``input = picture * scale + offset``, both from their corners."""

    scale: tuple[float, float]
    offset: tuple[float, float]
    picture: Size
    input: Size

    def to_picture(self, boxes: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Convert (N, 4) boxes in the input to pixels of the image (integers are pixel centres)."""
        scale, offset = np.tile(self.scale, 2), np.tile(self.offset, 2)
        out: NDArray[np.float64] = (np.asarray(boxes, dtype=np.float64) - offset) / scale - 0.5
        return out


@dataclass(frozen=True, eq=False)
class RawDetections:
    """Boxes in the network's input, before suppression.

    Attributes:
        boxes: (N, 4) left, top, right, bottom.
        scores: (N,).
        classes: (N,) int64 numbers of their classes.
        coefficients, prototypes: (N, K) and (K, h, w) whose product are masks, or None.
    """

    boxes: NDArray[np.float64]
    scores: NDArray[np.float64]
    classes: NDArray[np.int64]
    coefficients: NDArray[np.float32] | None = None
    prototypes: NDArray[np.float32] | None = None


Prepare = Callable[[NDArray[np.uint8], Size], tuple[NDArray[np.float32], PictureFit]]
Decode = Callable[[Outputs, Size, int, float], RawDetections]


@dataclass(frozen=True)
class Layout:
    """Preprocessing and decoding of one family of detectors.

    Attributes:
        name: as in the configuration.
        prepare: (H, W, 3) uint8 RGB and the input's (width, height) -> (1, 3, h, w) float32, and the mapping.
        decode: outputs by name, the input's size, number of classes, least score -> boxes of at least that score.
        suppress_iou: IoU threshold of non-maximum suppression per class; None = the network does it.
        long_side_px: of the input where the file leaves it free.
        stretched: the image is stretched to the input's aspect.
    """

    name: str
    prepare: Prepare
    decode: Decode
    suppress_iou: float | None
    long_side_px: int
    stretched: bool = False


# --------------------------------------------------------------------------------------------------------------------
# image -> input


def free_input_size(picture: Size, long_side_px: int) -> Size:
    """Return the smallest input size of multiples of 32 that holds the image scaled to a long side."""
    scale = long_side_px / max(picture)
    width, height = (max(_PAD_MULTIPLE, -(-round(side * scale) // _PAD_MULTIPLE) * _PAD_MULTIPLE) for side in picture)
    return width, height


def _letterbox(image: NDArray[np.uint8], size: Size, pad: int, centered: bool) -> tuple[NDArray[np.uint8], PictureFit]:
    """Scale the image to fit and fill the rest with ``pad``."""
    height, width = image.shape[:2]
    scale = min(size[0] / width, size[1] / height)
    new = max(1, round(width * scale)), max(1, round(height * scale))
    resized = cv2.resize(image, new, interpolation=cv2.INTER_LINEAR)
    left, top = ((size[0] - new[0]) // 2, (size[1] - new[1]) // 2) if centered else (0, 0)
    canvas = np.full((size[1], size[0], 3), pad, dtype=np.uint8)
    canvas[top : top + new[1], left : left + new[0]] = resized
    return canvas, PictureFit((new[0] / width, new[1] / height), (left, top), (width, height), size)


def _tensor(image: NDArray[Any]) -> NDArray[np.float32]:
    """(H, W, 3) -> (1, 3, H, W) float32."""
    return np.ascontiguousarray(image.transpose(2, 0, 1)[None], dtype=np.float32)


def prepare_nanodet(image: NDArray[np.uint8], size: Size) -> tuple[NDArray[np.float32], PictureFit]:
    """BGR, normalised; black padding right and below."""
    canvas, fit = _letterbox(image, size, 0, centered=False)
    mean, std = np.array([103.53, 116.28, 123.675], np.float32), np.array([57.375, 57.12, 58.395], np.float32)
    return _tensor((canvas[..., ::-1].astype(np.float32) - mean) / std), fit


def prepare_yolox(image: NDArray[np.uint8], size: Size) -> tuple[NDArray[np.float32], PictureFit]:
    """BGR from 0 to 255; grey padding right and below."""
    canvas, fit = _letterbox(image, size, 114, centered=False)
    return _tensor(canvas[..., ::-1]), fit


def prepare_yolov8(image: NDArray[np.uint8], size: Size) -> tuple[NDArray[np.float32], PictureFit]:
    """RGB from 0 to 1; centred with grey padding."""
    canvas, fit = _letterbox(image, size, 114, centered=True)
    return _tensor(canvas) / np.float32(255.0), fit


def prepare_rtdetr(image: NDArray[np.uint8], size: Size) -> tuple[NDArray[np.float32], PictureFit]:
    """RGB from 0 to 1; stretched."""
    height, width = image.shape[:2]
    stretched = cv2.resize(image, size, interpolation=cv2.INTER_LINEAR)
    fit = PictureFit((size[0] / width, size[1] / height), (0.0, 0.0), (width, height), size)
    return _tensor(stretched) / np.float32(255.0), fit


# --------------------------------------------------------------------------------------------------------------------
# outputs -> boxes


def _checked_scores(layout: str, scores: NDArray[Any], outputs: Outputs) -> NDArray[Any]:
    """Check that class scores are probabilities, and clip rounding; NaN stays and is counted later."""
    with np.errstate(invalid="ignore"):
        wrong = (scores < -1e-3) | (scores > 1.001)
    if wrong.any():
        low, high = float(np.nanmin(scores)), float(np.nanmax(scores))
        raise LayoutError(
            f"layout {layout}: class scores should lie in [0, 1] but lie in [{low:.3g}, {high:.3g}]: "
            f"outputs {_shapes(outputs)} have another meaning"
        )
    clipped: NDArray[Any] = np.clip(scores, 0.0, 1.0)
    return clipped


def _best(scores: NDArray[Any], min_score: float) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """(A, C) -> rows whose best score is at least ``min_score`` (or NaN), the class, and the score."""
    classes = np.argmax(scores, axis=1)  # NaN counts as the largest
    best = scores[np.arange(len(scores)), classes].astype(np.float64)
    with np.errstate(invalid="ignore"):
        rows = np.flatnonzero(~(best < min_score))
    return rows, classes[rows].astype(np.int64), best[rows]


def _from_centers(boxes: NDArray[Any]) -> NDArray[np.float64]:
    """(N, 4) centre and size -> left, top, right, bottom."""
    b = np.asarray(boxes, dtype=np.float64)
    half = b[:, 2:4] / 2
    return np.concatenate([b[:, :2] - half, b[:, :2] + half], axis=1)


def _grid(size: Size, strides: tuple[int, ...]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (A, 2) column and row and (A,) stride of each cell, row by row and stride by stride."""
    cells, steps = [], []
    for stride in strides:
        width, height = -(-size[0] // stride), -(-size[1] // stride)
        y, x = np.mgrid[:height, :width]
        cells.append(np.stack([x.ravel(), y.ravel()], axis=1))
        steps.append(np.full(width * height, stride))
    return np.concatenate(cells).astype(np.float64), np.concatenate(steps).astype(np.float64)


def _cells(size: Size, stride: int) -> int:
    return -(-size[0] // stride) * -(-size[1] // stride)


def _nanodet(layout: str, middle: float) -> Decode:
    def decode(outputs: Outputs, size: Size, classes: int, min_score: float) -> RawDetections:
        scores, sides, strides = _nanodet_tables(layout, outputs, size, classes)
        cell, stride = _grid(size, strides)
        rows, number, best = _best(_checked_scores(layout, scores, outputs), min_score)
        bins = sides.shape[1] // 4
        logits = sides[rows].astype(np.float64).reshape(-1, 4, bins)
        weight = np.exp(logits - logits.max(axis=2, keepdims=True, initial=-np.inf))
        distance = (weight @ np.arange(bins)) / weight.sum(axis=2) * stride[rows, None]  # (K, 4) left top right bottom
        center = (cell[rows] + middle) * stride[rows, None]
        boxes = np.concatenate([center - distance[:, :2], center + distance[:, 2:]], axis=1)
        return RawDetections(boxes, best, number)

    return decode


def _nanodet_tables(
    layout: str, outputs: Outputs, size: Size, classes: int
) -> tuple[NDArray[Any], NDArray[Any], tuple[int, ...]]:
    """Return (A, C) scores and (A, 4 * bins) distributions of all strides, from one output or two per stride."""
    expected = (
        f"(1, cells, {classes}) and (1, cells, 4 x bins) for each of the strides 8, 16, 32 of an input of "
        f"{size[0]} x {size[1]} ({', '.join(str(_cells(size, s)) for s in (8, 16, 32))} cells), "
        f"or one (1, all cells, {classes} + 4 x bins)"
    )
    values = [value for value in outputs.values() if value.ndim == 3 and value.shape[0] == 1]
    if len(values) != len(outputs) or not values:
        raise _misfit(layout, expected, outputs)
    if len(values) == 1:
        table = values[0][0]
        for levels in (3, 4):
            strides = _NANODET_STRIDES[:levels]
            if len(table) == sum(_cells(size, s) for s in strides):
                sides = table.shape[1] - classes
                if sides < 8 or sides % 4:
                    raise _misfit(layout, expected, outputs)
                return table[:, :classes], table[:, classes:], strides
        raise _misfit(layout, expected, outputs)
    strides = _NANODET_STRIDES[: len(values) // 2]
    scores, sides_of = [], []
    for stride in strides:
        level = [v[0] for v in values if v.shape[1] == _cells(size, stride)]
        named = [v for v in level if v.shape[1] == classes]
        rest = [v for v in level if v.shape[1] != classes and v.shape[1] % 4 == 0 and v.shape[1] >= 8]
        if len(level) != 2 or len(named) != 1 or len(rest) != 1:
            raise _misfit(layout, expected, outputs)
        scores.append(named[0])
        sides_of.append(rest[0])
    if 2 * len(strides) != len(values) or len({s.shape[1] for s in sides_of}) != 1:
        raise _misfit(layout, expected, outputs)
    return np.concatenate(scores), np.concatenate(sides_of), strides


def _decode_yolov8(layout: str, outputs: Outputs, size: Size, classes: int, min_score: float) -> RawDetections:
    """(1, 4 + classes, anchors): centre and size in input pixels, scores; with masks (1, 32, h, w) prototypes too."""
    anchors = sum(_cells(size, s) for s in _YOLOV8_STRIDES)
    expected = f"(1, {4 + classes}, {anchors}) for {classes} classes and an input of {size[0]} x {size[1]}"
    tables = [v for v in outputs.values() if v.ndim == 3]
    prototypes = [v for v in outputs.values() if v.ndim == 4]
    if len(tables) != 1 or len(prototypes) > 1 or len(tables) + len(prototypes) != len(outputs):
        raise _misfit(layout, expected, outputs)
    masked = len(prototypes) == 1
    channels = 4 + classes + (_MASK_COEFFICIENTS if masked else 0)
    if tables[0].shape != (1, channels, anchors) or (masked and prototypes[0].shape[:2] != (1, _MASK_COEFFICIENTS)):
        with_masks = f", or (1, {4 + classes + _MASK_COEFFICIENTS}, {anchors}) and (1, 32, h, w) with masks"
        raise _misfit(layout, expected + with_masks, outputs)
    table = tables[0][0].T  # (A, channels)
    scores = _checked_scores(layout, table[:, 4 : 4 + classes], outputs)
    rows, number, best = _best(scores, min_score)
    coefficients = table[rows, 4 + classes :].astype(np.float32) if masked else None
    return RawDetections(
        _from_centers(table[rows, :4]),
        best,
        number,
        coefficients,
        prototypes[0][0].astype(np.float32) if masked else None,
    )


def decode_yolox(outputs: Outputs, size: Size, classes: int, min_score: float) -> RawDetections:
    """(1, cells, 5 + classes): offsets and log sizes in cells, objectness, class scores."""
    cell, stride = _grid(size, _YOLOX_STRIDES)
    if len(outputs) != 1 or next(iter(outputs.values())).shape != (1, len(cell), 5 + classes):
        expected = f"one (1, {len(cell)}, {5 + classes}) for {classes} classes and an input of {size[0]} x {size[1]}"
        raise _misfit("yolox", expected, outputs)
    table = next(iter(outputs.values()))[0]
    scores = _checked_scores("yolox", table[:, 4:], outputs)
    rows, number, best = _best(scores[:, :1] * scores[:, 1:], min_score)
    raw = table[rows].astype(np.float64)
    center = (raw[:, :2] + cell[rows]) * stride[rows, None]
    side = np.exp(np.minimum(raw[:, 2:4], 20.0)) * stride[rows, None]
    return RawDetections(_from_centers(np.concatenate([center, side], axis=1)), best, number)


def decode_rtdetr(outputs: Outputs, size: Size, classes: int, min_score: float) -> RawDetections:
    """Three forms: ``labels, boxes, scores``; ``logits, pred_boxes``; one (1, queries, 4 + classes).

    The first has left, top, right, bottom in pixels of the size fed to the network; the others have centre and size as
    shares of the input.
    """
    expected = (
        "labels (1, Q), boxes (1, Q, 4) and scores (1, Q); or logits "
        f"(1, Q, {classes}) and pred_boxes (1, Q, 4); or one (1, Q, {4 + classes})"
    )
    whole = np.tile(np.asarray(size, dtype=np.float64), 2)
    if set(outputs) >= {"labels", "boxes", "scores"}:
        labels, boxes, scores = (np.asarray(outputs[name]) for name in ("labels", "boxes", "scores"))
        if labels.ndim != 2 or labels.shape != scores.shape or boxes.shape != (*labels.shape, 4) or len(labels) != 1:
            raise _misfit("rtdetr", expected, outputs)
        known = _checked_scores("rtdetr", scores[0], outputs).astype(np.float64)
        with np.errstate(invalid="ignore"):
            rows = np.flatnonzero(~(known < min_score))
        number = labels[0][rows].astype(np.int64)
        if len(number) and (number.min() < 0 or number.max() >= classes):
            raise LayoutError(f"layout rtdetr: label {int(number.max())} of {classes} classes")
        return RawDetections(boxes[0][rows].astype(np.float64), known[rows], number)
    if set(outputs) >= {"logits", "pred_boxes"}:
        logits, boxes = np.asarray(outputs["logits"]), np.asarray(outputs["pred_boxes"])
        if logits.ndim != 3 or logits.shape[::2] != (1, classes) or boxes.shape != (*logits.shape[:2], 4):
            raise _misfit("rtdetr", expected, outputs)
        scores = 1.0 / (1.0 + np.exp(-logits[0].astype(np.float64)))
        rows, number, best = _best(scores, min_score)
        return RawDetections(_from_centers(boxes[0][rows]) * whole, best, number)
    table = next(iter(outputs.values())) if len(outputs) == 1 else None
    if table is None or table.ndim != 3 or table.shape[0] != 1 or table.shape[2] != 4 + classes:
        raise _misfit("rtdetr", expected, outputs)
    rows, number, best = _best(_checked_scores("rtdetr", table[0, :, 4:], outputs), min_score)
    return RawDetections(_from_centers(table[0, rows, :4]) * whole, best, number)


decode_yolov8 = partial(_decode_yolov8, "yolov8")
decode_yolo11 = partial(_decode_yolov8, "yolo11")  # the same format
decode_nanodet = _nanodet("nanodet", 0.5)
decode_nanodet_plus = _nanodet("nanodet-plus", 0.0)

LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout("nanodet", prepare_nanodet, decode_nanodet, DETECTOR_NMS_IOU["nanodet"], 416),
        Layout("nanodet-plus", prepare_nanodet, decode_nanodet_plus, DETECTOR_NMS_IOU["nanodet-plus"], 416),
        Layout("yolov8", prepare_yolov8, decode_yolov8, DETECTOR_NMS_IOU["yolov8"], 640),
        Layout("yolo11", prepare_yolov8, decode_yolo11, DETECTOR_NMS_IOU["yolo11"], 640),
        Layout("yolox", prepare_yolox, decode_yolox, DETECTOR_NMS_IOU["yolox"], 640),
        Layout("rtdetr", prepare_rtdetr, decode_rtdetr, None, 640, stretched=True),
    )
}


# --------------------------------------------------------------------------------------------------------------------
# boxes in the input -> masks in the image


def picture_masks(raw: RawDetections, rows: NDArray[np.int64], fit: PictureFit) -> NDArray[np.bool_] | None:
    """Return (K, H, W) masks of selected detections at the image's size, each within its box; None without masks."""
    if raw.coefficients is None or raw.prototypes is None:
        return None
    depth, height, width = raw.prototypes.shape
    logits = (raw.coefficients[rows] @ raw.prototypes.reshape(depth, -1)).reshape(-1, height, width)
    out = np.zeros((len(rows), fit.picture[1], fit.picture[0]), dtype=bool)
    # image pixel (u, v) is at input ((u + .5) scale + offset), and in cells of the prototypes minus half a cell
    steps = width / fit.input[0], height / fit.input[1]
    u, v = (np.arange(side, dtype=np.float32) + 0.5 for side in fit.picture)
    x = (u * fit.scale[0] + fit.offset[0]) * steps[0] - 0.5
    y = (v * fit.scale[1] + fit.offset[1]) * steps[1] - 0.5
    boxes = fit.to_picture(raw.boxes[rows])
    for i, box in enumerate(boxes):
        if not np.isfinite(box).all():
            continue
        left, top = np.maximum(np.ceil(box[:2]), 0).astype(int)
        right, bottom = (int(b) for b in np.floor(box[2:]))
        xs, ys = x[left : right + 1], y[top : bottom + 1]
        if len(xs) and len(ys):
            grid = np.meshgrid(xs.astype(np.float32), ys.astype(np.float32))
            value = cv2.remap(logits[i], grid[0], grid[1], cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
            out[i, top : top + len(ys), left : left + len(xs)] = value > 0
    return out
