"""Input and output layouts of families of 2-D detectors: image -> network input, and raw outputs -> boxes.

A layout is an input (:class:`InputImage`) with the forms that its outputs may have. A form describes its tensors by
name and shape (:attr:`Form.expected`), so a file is recognised before it runs (:func:`recognise`). Boxes here are left,
top, right, bottom from the corner of the network's input (0 .. width); :class:`PictureFit` converts them to pixels.

Sources: the export and demo scripts of NanoDet (RangiLyu/nanodet), Ultralytics (YOLOv5 to YOLO26, also with NMS or end
to end), YOLOX (Megvii-BaseDetection/YOLOX), RT-DETR (lyuwenyu/RT-DETR), D-FINE, DEIMv2, transformers, RF-DETR
(roboflow/rf-detr), torchvision, and TensorRT's EfficientNMS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.suppression import DETECTOR_NMS_IOU

Outputs = Mapping[str, NDArray[Any]]
Shapes = Mapping[str, Sequence[int | None]]  # None = not fixed
Size = tuple[int, int]  # width, height
F64 = NDArray[np.float64]

_PAD_MULTIPLE = 32
_STRIDES = (8, 16, 32)
_MORE_STRIDES = (8, 16, 32, 64)
_COEFFICIENTS = 32  # of masks
_IMAGENET = ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
_NANODET = ((103.53, 116.28, 123.675), (57.375, 57.12, 58.395))  # BGR
_UNIT, _RAW = ((0.0,) * 3, (255.0,) * 3), ((0.0,) * 3, (1.0,) * 3)


class LayoutError(ValueError):
    """Outputs of another layout than the expected one; the message names layout and shapes."""


def shapes_text(shapes: Shapes) -> str:
    """Return names and shapes of outputs."""
    written = (f"{name} {tuple('?' if side is None else side for side in shape)}" for name, shape in shapes.items())
    return ", ".join(written).replace("'", "") or "none"


def shapes_of(outputs: Outputs) -> dict[str, tuple[int, ...]]:
    """Return the shapes of outputs."""
    return {name: tuple(value.shape) for name, value in outputs.items()}


@dataclass(frozen=True)
class PictureFit:
    """Mapping of an image into the network's input: ``input = picture * scale + offset``, both from their corners."""

    scale: tuple[float, float]
    offset: tuple[float, float]
    picture: Size
    input: Size

    def to_picture(self, boxes: NDArray[np.floating[Any]]) -> F64:
        """Convert (N, 4) boxes in the input to pixels of the image (integers are pixel centres)."""
        scale, offset = np.tile(self.scale, 2), np.tile(self.offset, 2)
        out: F64 = (np.asarray(boxes, dtype=np.float64) - offset) / scale - 0.5
        return out


@dataclass(frozen=True, eq=False)
class RawDetections:
    """Boxes in the network's input, before suppression.

    Attributes:
        boxes: (N, 4) left, top, right, bottom.
        scores: (N,).
        classes: (N,) numbers of their classes.
        coefficients, prototypes: (N, K) and (K, h, w) whose product are masks, or None.
        suppress_iou: IoU threshold of non-maximum suppression per class; None = the network has done it.
    """

    boxes: F64
    scores: NDArray[Any]
    classes: NDArray[Any]
    coefficients: NDArray[np.float32] | None = None
    prototypes: NDArray[np.float32] | None = None
    suppress_iou: float | None = None

    def take(self, rows: NDArray[np.int64], suppress_iou: float | None) -> RawDetections:
        """Return some of the detections, with scores in float64 and class numbers in int64."""
        coefficients = None if self.coefficients is None else self.coefficients[rows].astype(np.float32)
        scores, classes = self.scores[rows].astype(np.float64), self.classes[rows].astype(np.int64)
        return RawDetections(self.boxes[rows], scores, classes, coefficients, self.prototypes, suppress_iou)


@dataclass(frozen=True)
class InputImage:
    """How an image becomes the network's input.

    Attributes:
        mean, std: of the channels, in 0 .. 255.
        place: ``stretched`` to the input's aspect; scaled and ``centered``, or scaled into the ``corner``.
        pad: grey value around a scaled image.
        bgr: channels are blue, green, red.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    place: Literal["stretched", "centered", "corner"]
    pad: int = 114
    bgr: bool = False

    def prepare(self, image: NDArray[np.uint8], size: Size) -> tuple[NDArray[np.float32], PictureFit]:
        """Convert (H, W, 3) uint8 RGB to (1, 3, h, w) float32 of ``size``, and return the mapping."""
        height, width = image.shape[:2]
        scale = min(size[0] / width, size[1] / height)
        new = size if self.place == "stretched" else (max(1, round(width * scale)), max(1, round(height * scale)))
        resized = cv2.resize(image, new, interpolation=cv2.INTER_LINEAR)
        left, top = ((size[0] - new[0]) // 2, (size[1] - new[1]) // 2) if self.place == "centered" else (0, 0)
        canvas = np.full((size[1], size[0], 3), self.pad, dtype=np.uint8)
        canvas[top : top + new[1], left : left + new[0]] = resized
        values = canvas[..., ::-1] if self.bgr else canvas
        scaled = (values.astype(np.float32) - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        fit = PictureFit((new[0] / width, new[1] / height), (left, top), (width, height), size)
        return np.ascontiguousarray(scaled.transpose(2, 0, 1)[None]), fit


def free_input_size(picture: Size, long_side_px: int) -> Size:
    """Return the smallest input size of multiples of 32 that holds the image scaled to a long side."""
    scale = long_side_px / max(picture)
    width, height = (max(_PAD_MULTIPLE, -(-round(side * scale) // _PAD_MULTIPLE) * _PAD_MULTIPLE) for side in picture)
    return width, height


# --------------------------------------------------------------------------------------------------------------------
# parts of decoding


def _checked_scores(scores: NDArray[Any]) -> NDArray[Any]:
    """Check that class scores are probabilities, and clip rounding; NaN stays and is counted later."""
    if ((scores < -1e-3) | (scores > 1.001)).any():
        low, high = float(np.nanmin(scores)), float(np.nanmax(scores))
        raise LayoutError(
            f"class scores should lie in [0, 1] but lie in [{low:.3g}, {high:.3g}], so the outputs have another meaning"
        )
    clipped: NDArray[Any] = np.clip(scores, 0.0, 1.0)
    return clipped


def _best(boxes: F64, scores: NDArray[Any]) -> RawDetections:
    """(A, 4) and (A, C) -> boxes with their best class and its score."""
    classes = np.argmax(scores, axis=1)  # NaN counts as the largest
    return RawDetections(boxes, scores[np.arange(len(scores)), classes], classes)


def _with_masks(raw: RawDetections, outputs: Outputs, coefficients: NDArray[Any]) -> RawDetections:
    """Add the masks of outputs that have prototypes."""
    if "*prototypes" not in outputs:
        return raw
    return replace(raw, coefficients=coefficients, prototypes=outputs["*prototypes"][0].astype(np.float32))


def _from_centers(boxes: NDArray[Any]) -> F64:
    """(N, 4) centre and size -> left, top, right, bottom."""
    b = np.asarray(boxes, dtype=np.float64)
    half = b[:, 2:4] / 2
    return np.concatenate([b[:, :2] - half, b[:, :2] + half], axis=1)


def _grid(size: Size, strides: tuple[int, ...]) -> tuple[F64, F64]:
    """Return (A, 2) column and row and (A,) stride of each cell, row by row and stride by stride."""
    cells, steps = [], []
    for stride in strides:
        width, height = -(-size[0] // stride), -(-size[1] // stride)
        y, x = np.mgrid[:height, :width]
        cells.append(np.stack([x.ravel(), y.ravel()], axis=1))
        steps.append(np.full(width * height, stride))
    return np.concatenate(cells).astype(np.float64), np.concatenate(steps).astype(np.float64)


def _cells(size: Size, strides: tuple[int, ...] = _STRIDES) -> int:
    return sum(-(-size[0] // stride) * -(-size[1] // stride) for stride in strides)


# --------------------------------------------------------------------------------------------------------------------
# forms of outputs

Wanted = Mapping[str, tuple[int | None, ...]]  # shape by name; names beginning with * stand for any name


@dataclass(frozen=True)
class Form:
    """One form of outputs.

    Attributes:
        expected: input size, number of classes -> the sets of tensors that it may have.
        decode: tensors by the names of ``expected``, input size, number of classes -> boxes of all scores.
        certain: the shapes follow from the input's size or the tensors have telling names, so that another form of the
            same shapes is unlikely.
        suppressed: the network has done non-maximum suppression.
    """

    expected: Callable[[Size, int], Iterator[Wanted]]
    decode: Callable[[Outputs, Size, int], RawDetections]
    certain: bool = True
    suppressed: bool = False

    def tensors(self, shapes: Shapes, size: Size, classes: int) -> dict[str, str] | None:
        """Return the output of each expected tensor; None where the outputs have another form."""
        for wanted in self.expected(size, classes):
            found = _assigned(wanted, shapes)
            if found is not None:
                return found
        return None


def _assigned(wanted: Wanted, shapes: Shapes) -> dict[str, str] | None:
    if len(shapes) < len(wanted) or (any(n[0] == "*" for n in wanted) and len(shapes) != len(wanted)):
        return None
    free, found = dict(shapes), {}
    for name, shape in wanted.items():
        able = [n for n, other in free.items() if (n == name or name[0] == "*") and _alike(shape, other)]
        if not able:
            return None
        found[name] = able[0]
        del free[able[0]]
    return found


def _alike(wanted: tuple[int | None, ...], shape: Sequence[int | None]) -> bool:
    return len(wanted) == len(shape) and all(None in (a, b) or a == b for a, b in zip(wanted, shape, strict=True))


def _columns(rows: Callable[[Size], int | None], before: int, turned: bool = False, classes: bool = True) -> Any:
    """Expect (1, rows, before + classes) or turned; or with coefficients of masks and (1, 32, h, w) prototypes."""

    def expected(size: Size, number: int) -> Iterator[Wanted]:
        columns, count = before + (number if classes else 0), rows(size)
        for more in (0, _COEFFICIENTS):
            shape = (1, columns + more, count) if turned else (1, count, columns + more)
            yield {"*table": shape} | ({"*prototypes": (1, _COEFFICIENTS, None, None)} if more else {})

    return expected


def _either(*wanted: Wanted) -> Callable[[Size, int], Iterator[Wanted]]:
    """Expect one of these sets of tensors."""
    return lambda size, classes: iter(wanted)


def _decode_grid(outputs: Outputs, size: Size, classes: int) -> RawDetections:
    """Centre and size in input pixels, class scores, coefficients; a column or a row for each cell."""
    table = outputs["*table"][0]
    table = table.T if table.shape[1] == _cells(size) else table
    raw = _best(_from_centers(table[:, :4]), _checked_scores(table[:, 4 : 4 + classes]))
    return _with_masks(raw, outputs, table[:, 4 + classes :])


def _decode_anchors(outputs: Outputs, size: Size, classes: int) -> RawDetections:
    """Centre and size in input pixels, objectness, class scores, coefficients."""
    table = outputs["*table"][0]
    scores = _checked_scores(table[:, 4 : 5 + classes])
    raw = _best(_from_centers(table[:, :4]), scores[:, :1] * scores[:, 1:])
    return _with_masks(raw, outputs, table[:, 5 + classes :])


def _decode_end_to_end(outputs: Outputs, size: Size, classes: int) -> RawDetections:
    """Corners in input pixels, score, class number, coefficients."""
    table = outputs["*table"][0]
    raw = RawDetections(table[:, :4].astype(np.float64), _checked_scores(table[:, 4]), table[:, 5])
    return _with_masks(raw, outputs, table[:, 6:])


def _decode_end_to_end_queries(outputs: Outputs, size: Size, classes: int) -> RawDetections:
    """Centre and size as shares of the input, score, class number."""
    if "*prototypes" in outputs:
        raise LayoutError("masks of queries are not known")
    raw = _decode_end_to_end(outputs, size, classes)
    return replace(raw, boxes=_from_centers(raw.boxes) * np.tile(np.asarray(size, dtype=np.float64), 2))


def _numbered(raw: RawDetections, classes: int) -> RawDetections:
    """Check the class numbers. Raises :class:`LayoutError` for one that has no name."""
    number = raw.classes
    if len(number) and (number.min() < 0 or number.max() >= classes):
        worst = int(number.max()) if number.max() >= classes else int(number.min())
        hint = " (COCO's 80 classes have the ids 1 to 90 with gaps: layout rtdetr-91)" if classes == 80 else ""
        raise LayoutError(f"label {worst} of {classes} classes{hint}")
    return raw


def _decode_yolox(outputs: Outputs, size: Size, classes: int) -> RawDetections:
    """Offsets and log sizes in cells, objectness, class scores."""
    cell, stride = _grid(size, _STRIDES)
    table = outputs["*table"][0].astype(np.float64)
    center, side = (table[:, :2] + cell) * stride[:, None], np.exp(np.minimum(table[:, 2:4], 20.0)) * stride[:, None]
    boxes = _from_centers(np.concatenate([center, side], axis=1))
    return replace(_decode_anchors(outputs, size, classes), boxes=boxes)


def is_decoded(table: NDArray[Any], size: Size) -> bool:
    """Return True where the centres of a (cells, 4 or more) table lie near their cells, in input pixels."""
    cell, stride = _grid(size, _STRIDES)
    away = np.abs(table[:, :2] - (cell + 0.5) * stride[:, None]) / stride[:, None]
    return bool(np.median(away) < 2.0)


def is_end_to_end_of_queries(table: NDArray[Any]) -> bool:
    """Return True where a (queries, columns) table holds boxes as shares of the input, scores and class numbers."""
    if table.shape[1] != 6 or not table.size:
        return False
    return bool((table[:, 5] % 1 == 0).all() and 0.0 < np.abs(table[:, :4]).max() <= 2.0)


def _expected_nanodet(strides: tuple[int, ...]) -> Callable[[Size, int], Iterator[Wanted]]:
    def expected(size: Size, classes: int) -> Iterator[Wanted]:
        for bins in range(2, 33):
            yield {"*all": (1, _cells(size, strides), classes + 4 * bins)}
        for bins in range(2, 33):
            if 4 * bins != classes:
                sizes = [(s, kind, n) for s in strides for kind, n in (("scores", classes), ("sides", 4 * bins))]
                yield {f"*{kind}{s}": (1, _cells(size, (s,)), n) for s, kind, n in sizes}

    return expected


def _decode_nanodet(middle: float) -> Callable[[Outputs, Size, int], RawDetections]:
    def decode(outputs: Outputs, size: Size, classes: int) -> RawDetections:
        """Class scores, and distributions of the distances of the four sides, in one table or two for each stride."""
        if "*all" in outputs:
            scores, sides = outputs["*all"][0, :, :classes], outputs["*all"][0, :, classes:]
        else:
            scores, sides = (
                np.concatenate([outputs[n][0] for n in outputs if n.startswith(kind)]) for kind in ("*scores", "*sides")
            )
        strides = _STRIDES if len(scores) == _cells(size) else _MORE_STRIDES
        cell, stride = _grid(size, strides)
        bins = sides.shape[1] // 4
        logits = sides.astype(np.float64).reshape(-1, 4, bins)
        weight = np.exp(logits - logits.max(axis=2, keepdims=True))
        distance = (weight @ np.arange(bins)) / weight.sum(axis=2) * stride[:, None]  # (K, 4) l, t, r, b
        center = (cell + middle) * stride[:, None]
        boxes = np.concatenate([center - distance[:, :2], center + distance[:, 2:]], axis=1)
        return _best(boxes, _checked_scores(scores))

    return decode


def _decode_labelled(outputs: Outputs, size: Size, classes: int) -> RawDetections:
    """Corners in pixels of the size fed to the network, scores and class numbers, with or without a batch axis."""
    boxes, scores, labels = (
        next(np.asarray(v) for n, v in outputs.items() if n.endswith(ends))
        for ends in (("boxes",), ("scores",), ("labels", "classes"))
    )
    if boxes.ndim == 3:
        boxes, scores, labels = boxes[0], scores[0], labels[0]
    count = next((int(v.ravel()[0]) for n, v in outputs.items() if n.startswith("num_")), len(boxes))
    return RawDetections(boxes[:count].astype(np.float64), _checked_scores(scores[:count]), labels[:count])


def _decode_queries(outputs: Outputs, size: Size, classes: int) -> RawDetections:
    """Logits of the classes, and centre and size as shares of the input; or both in one table, then with scores."""
    if "*table" in outputs:
        table = outputs["*table"][0]
        boxes, scores = table[:, :4], _checked_scores(table[:, 4 : 4 + classes])
    else:
        boxes = next(v for v in outputs.values() if v.shape[2] == 4)[0]
        logits = next(v for n, v in outputs.items() if n in ("logits", "labels"))[0]
        scores = 1.0 / (1.0 + np.exp(-np.clip(logits.astype(np.float64), -500, 500)))
    return _best(_from_centers(boxes) * np.tile(np.asarray(size, dtype=np.float64), 2), scores)


_GRID = (
    Form(_columns(_cells, 4, turned=True), _decode_grid),
    Form(_columns(_cells, 4), _decode_grid),
)
_ANCHORS = (
    Form(_columns(lambda size: 3 * _cells(size), 5), _decode_anchors),
    Form(_columns(lambda size: 3 * _cells(size, _MORE_STRIDES), 5), _decode_anchors),
)
_END_TO_END = Form(_columns(lambda _: None, 6, classes=False), _decode_end_to_end, certain=False, suppressed=True)
_END_TO_END_QUERIES = Form(
    _columns(lambda _: None, 6, classes=False), _decode_end_to_end_queries, certain=False, suppressed=True
)
_TENSORRT = Form(
    _either(
        *(
            {count: (1, 1), f"{one}_boxes": (1, None, 4), f"{one}_scores": (1, None), f"{one}_classes": (1, None)}
            for count, one in (("num_dets", "det"), ("num_detections", "detection"))
        )
    ),
    _decode_labelled,
    suppressed=True,
)
_LABELLED = Form(_either({"labels": (1, None), "boxes": (1, None, 4), "scores": (1, None)}), _decode_labelled)
_UNBATCHED = Form(_either({"boxes": (None, 4), "labels": (None,), "scores": (None,)}), _decode_labelled)
_TABLE_OF_QUERIES = Form(_columns(lambda _: None, 4), _decode_queries, certain=False)
_LOGITS = Form(lambda _, n: iter([{"logits": (1, None, n), "pred_boxes": (1, None, 4)}]), _decode_queries)
_DETS = Form(lambda _, n: iter([{"labels": (1, None, n), "dets": (1, None, 4)}]), _decode_queries)


@dataclass(frozen=True)
class Layout:
    """Preprocessing and decoding of one family of detectors.

    Attributes:
        name: as in the configuration.
        image: how an image becomes the input.
        forms: of its outputs, the likeliest first.
        long_side_px: of the input where the file leaves it free.
        coco_ids: without names in the file, class numbers are COCO's ids 1 to 90 with gaps.
    """

    name: str
    image: InputImage
    forms: tuple[Form, ...]
    long_side_px: int = 640
    coco_ids: bool = False

    def fitting(self, shapes: Shapes, size: Size, numbers: Sequence[int]) -> Iterator[tuple[Form, int]]:
        """Yield forms, with the number of classes of ``numbers``, that outputs of these shapes may have."""
        for number in numbers:
            yield from ((form, number) for form in self.forms if form.tensors(shapes, size, number) is not None)

    def form(self, shapes: Shapes, size: Size, classes: int) -> tuple[Form, dict[str, str]]:
        """Return the form of outputs and the output of each of its tensors. Raises :class:`LayoutError`."""
        for form in self.forms:
            found = form.tensors(shapes, size, classes)
            if found is not None:
                return form, found
        wanted = (next(form.expected(size, classes)) for form in self.forms)
        expected = "; or ".join(shapes_text({n.strip("*"): s for n, s in each.items()}) for each in wanted)
        raise LayoutError(
            f"layout {self.name}: expected {expected} for {classes} classes and an input of {size[0]} x {size[1]}, got "
            f"outputs {shapes_text(shapes)}"
        )

    def decode(self, outputs: Outputs, size: Size, classes: int, min_score: float) -> RawDetections:
        """Convert outputs by name, for the input's size and a number of classes, to boxes of at least ``min_score``.

        Raises :class:`LayoutError` for outputs of another layout.
        """
        shapes = shapes_of(outputs)
        form, names = self.form(shapes, size, classes)
        try:
            with np.errstate(invalid="ignore"):  # NaN is counted later
                raw = form.decode({name: outputs[found] for name, found in names.items()}, size, classes)
                kept = np.flatnonzero(~(raw.scores < min_score))
                iou = None if form.suppressed else DETECTOR_NMS_IOU.get(self.name.removesuffix("-decoded"))
                return _numbered(raw.take(kept, iou), classes)
        except LayoutError as error:
            raise LayoutError(f"layout {self.name}: {error}; outputs {shapes_text(shapes)}") from None


_LETTERBOX = InputImage(*_UNIT, "centered")
_STRETCHED = InputImage(*_UNIT, "stretched")
_YOLOX_INPUT = InputImage(*_RAW, "corner", bgr=True)
_NANODET_INPUT = InputImage(*_NANODET, "corner", pad=0, bgr=True)
_DETR = (_LABELLED, _LOGITS, _TABLE_OF_QUERIES)
LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout("nanodet", _NANODET_INPUT, (Form(_expected_nanodet(_STRIDES), _decode_nanodet(0.5)),), 416),
        Layout(
            "nanodet-plus",
            _NANODET_INPUT,
            tuple(Form(_expected_nanodet(s), _decode_nanodet(0.0)) for s in (_MORE_STRIDES, _STRIDES)),
            416,
        ),
        Layout("yolov8", _LETTERBOX, (*_GRID, _END_TO_END, _TENSORRT)),
        Layout("yolo11", _LETTERBOX, (*_GRID, _END_TO_END, _TENSORRT)),
        Layout("yolov5", _LETTERBOX, _ANCHORS),
        Layout("yolox", _YOLOX_INPUT, (Form(_columns(_cells, 5), _decode_yolox),)),
        Layout("yolox-decoded", _YOLOX_INPUT, (Form(_columns(_cells, 5), _decode_anchors),)),
        Layout("rtdetr", _STRETCHED, _DETR),
        Layout("rtdetr-91", _STRETCHED, _DETR, coco_ids=True),
        Layout("rtdetr-end2end", _STRETCHED, (_END_TO_END_QUERIES,)),
        Layout("deimv2", InputImage(*_IMAGENET, "centered", pad=0), (_LABELLED,)),
        Layout("rfdetr", InputImage(*_IMAGENET, "stretched"), (_DETS,), 560, coco_ids=True),
        Layout("torchvision", _STRETCHED, (_UNBATCHED,), 800, coco_ids=True),
    )
}
# layouts of the same shapes as another, which values or names in the file tell apart
_TWINS = ("yolo11", "rtdetr-91", "rtdetr-end2end", "deimv2", "yolox-decoded")


def recognise(shapes: Shapes, size: Size, numbers: Callable[[Layout], Sequence[int]]) -> list[tuple[Layout, int]]:
    """Return the layouts, with their numbers of classes, whose outputs have these names and shapes.

    Layouts with a certain form exclude the others; those of :data:`_TWINS` are left out. ``numbers``: of classes that a
    file of a layout may have; the first that fits is taken.
    """
    able = [layout for layout in LAYOUTS.values() if layout.name not in _TWINS]
    fits = [(layout, next(layout.fitting(shapes, size, numbers(layout)), None)) for layout in able]
    found = [(layout, *fit) for layout, fit in fits if fit is not None]
    sure = [(layout, number) for layout, form, number in found if form.certain]
    names = [layout.name for layout, _ in sure]
    if names == ["nanodet", "nanodet-plus"]:  # the released plus networks have four strides
        return sure[:1]
    return sure or [(layout, number) for layout, _, number in found]


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
