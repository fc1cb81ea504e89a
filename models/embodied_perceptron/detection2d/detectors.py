"""2-D detectors: the interface, and ONNX files of the usual families, run by ONNX Runtime."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.detection2d.detections2d import Detections2d, Limits2d, accept_detections
from embodied_perceptron.detection2d.layouts import (
    LAYOUTS,
    Layout,
    LayoutError,
    Shapes,
    free_input_size,
    is_decoded,
    is_end_to_end_of_queries,
    picture_masks,
    recognise,
    shapes_of,
    shapes_text,
)
from embodied_perceptron.geometry.suppression import picture_nms
from embodied_perceptron.inference.onnx import CPU, open_session, run_session
from embodied_perceptron.sensors.frame import RgbdFrame

# the 80 classes of COCO in their usual order (facts of the data set, cocodataset.org)
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
# the same by COCO's own ids: 0 and ten others are not used
_UNUSED_IDS = (0, 12, 26, 29, 30, 45, 66, 68, 69, 71, 83)
_names = iter(COCO_CLASSES)
COCO_BY_ID: tuple[str, ...] = tuple("" if i in _UNUSED_IDS else next(_names) for i in range(91))
_IMAGE_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
_OTHER_TYPES = _IMAGE_TYPES | {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
_DINO = b"dinov3"  # in the names of the weights of DEIMv2 S to X
_MOST_CLASSES = 400
_LARGEST_INPUT_PX = 4096
_LONGEST_NAMES = 200_000
_TEXT = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")
_LITERALS = re.compile(r"\s*[\[({][\d\s:,]*[\])}]\s*")  # without texts; deeper nesting can exhaust Python's parser


class DetectorFileError(ValueError):
    """A detector file that cannot be used; the message names file, cause and, where known, the remedy."""


class UnknownImageError(LookupError):
    """A detector has no answer about an image: a file of detections does not list it."""


class Detector(Protocol):
    """Finds named boxes in images."""

    @property
    def vocabulary(self) -> frozenset[str]:
        """Return the names that it can report."""
        ...

    def detect(self, frame: RgbdFrame) -> tuple[Detections2d, Counter[str]]:
        """Return the detections of an image, and the number of dropped ones by reason."""
        ...


@runtime_checkable
class OpenVocabularyDetector(Detector, Protocol):
    """A detector that is prompted with words; its vocabulary are the current ones."""

    def look_for(self, words: Iterable[str]) -> None:
        """Replace the words, from the next image on."""
        ...


class OnnxDetector:
    """An ONNX file with one of the :data:`~embodied_perceptron.detection2d.layouts.LAYOUTS`.

    Args:
        path: the file.
        layout: name of its layout; "" = recognised from metadata, names and shapes of inputs and outputs. Where the
            shapes are not fixed or do not tell, the network runs once on a grey image.
        classes: names by class number; empty = those of the file's metadata (as Ultralytics writes them), else COCO's.
        limits: on its output.
        long_side_px: of the input where the file leaves it free; 0 = as in the metadata, else the layout's default.
        providers, threads: of ONNX Runtime; see :class:`~embodied_perceptron.inference.onnx.OnnxImageEncoder`.

    Raises ``ValueError`` for an unknown layout, an input that is no image or a too large one, unreadable metadata,
    :class:`~.layouts.LayoutError` for outputs of no or of several layouts, ``FileNotFoundError``, and the errors of
    opening an ONNX session.
    """

    def __init__(
        self,
        path: str | Path,
        layout: str = "",
        classes: Sequence[str] = (),
        limits: Limits2d | None = None,
        long_side_px: int = 0,
        providers: Sequence[str] = CPU,
        threads: int = 1,
    ) -> None:
        if layout and layout not in LAYOUTS:
            raise ValueError(f"detector layout must be one of {sorted(LAYOUTS)}, got {layout!r}")
        self.limits = limits if limits is not None else Limits2d()
        self._path = Path(path)
        self._session = open_session(path, providers, threads)
        metadata = self._session.get_modelmeta().custom_metadata_map
        if (task := metadata.get("task", "detect")) not in ("detect", "segment"):
            raise ValueError(f"{path} is a network for the task {task!r}, not for 'detect' or 'segment'")
        self._given = tuple(classes) or _names_in(metadata)
        inputs = self._session.get_inputs()
        pictures = [i for i in inputs if len(i.shape) == 4] or [i for i in inputs if i.shape[:1] == [3]]
        channels = pictures[0].shape[-3] if len(pictures) == 1 else None
        batch = pictures[0].shape[0] if len(pictures) == 1 and len(pictures[0].shape) == 4 else 1
        wrong = (isinstance(batch, int) and batch > 1) or (isinstance(channels, int) and channels != 3)
        if len(pictures) != 1 or wrong or pictures[0].type not in _IMAGE_TYPES:
            shapes = ", ".join(f"{i.name} {i.shape} {i.type}" for i in inputs)
            raise ValueError(f"{path} should have one input (1, 3, H, W), but has {shapes}")
        self._input = pictures[0]
        self._others = [i for i in inputs if i is not self._input]
        for other in self._others:
            _value_of(other, (32, 32))  # raises for one that is not known
        height, width = self._input.shape[-2:]
        if any(isinstance(side, int) and side > _LARGEST_INPUT_PX for side in (height, width)):
            raise ValueError(
                f"{path} has an input of {width} x {height} pixels, the limit is {_LARGEST_INPUT_PX} a side"
            )
        fixed = isinstance(height, int) and isinstance(width, int) and height > 0 and width > 0
        self._size = (int(width), int(height)) if fixed else None
        if long_side_px and not 32 <= long_side_px <= _LARGEST_INPUT_PX:
            raise ValueError(f"long_side_px must be in [32, {_LARGEST_INPUT_PX}], got {long_side_px}")
        long_side_px = long_side_px or _long_side_in(metadata)
        shapes_known = {
            o.name: [s if isinstance(s, int) else None for s in o.shape] for o in self._session.get_outputs()
        }
        try:
            self.layout, count = self._recognised(layout, shapes_known, metadata, long_side_px)
        except LayoutError as error:
            raise LayoutError(f"{path}: {error}") from None
        self._long_side_px = long_side_px or self.layout.long_side_px
        self.classes = self._names(self.layout, count)

    def _names(self, layout: Layout, count: int) -> tuple[str, ...]:
        """Return the names by class number; "" for numbers without a name."""
        names = self._given or (COCO_BY_ID if layout.coco_ids else COCO_CLASSES)
        return names + ("",) * (count - len(names))

    def _numbers(self, layout: Layout) -> tuple[int, ...]:
        """Return the numbers of classes that outputs of a layout may have; RF-DETR has one more for no object."""
        count = len(self._names(layout, 0))
        return (count, count + 1) if layout.name == "rfdetr" else (count,)

    def _recognised(
        self, name: str, shapes: Shapes, metadata: Mapping[str, str], long_side_px: int
    ) -> tuple[Layout, int]:
        """Return the layout and its number of classes."""
        size = self._size or (long_side_px or 640,) * 2
        fixed = self._size is not None and None not in [side for shape in shapes.values() for side in shape]
        if name:
            layout = LAYOUTS[name]
            numbers = self._numbers(layout)
            if fixed:
                number = next((n for _, n in layout.fitting(shapes, size, numbers)), numbers[0])
                layout.form(shapes, size, number)  # raises where none fits
                return layout, number
            return layout, numbers[0]
        outputs: dict[str, NDArray[Any]] = {}
        if not fixed:
            outputs = self._run(np.full((1, 3, size[1], size[0]), 0.5, np.float32), size)
            shapes = shapes_of(outputs)
        found = recognise(shapes, size, self._numbers)
        if len(found) > 1 and "description" in metadata:
            query = "detr" in metadata["description"].lower()
            found = [pair for pair in found if (pair[0].name == "rtdetr") == query] or found
        if len(found) > 1:
            readings = " or ".join(f"{layout.name} with {number} classes" for layout, number in found)
            raise LayoutError(
                f"outputs {shapes_text(shapes)} fit {readings}: say which with --detector-layout (lift.layout)"
            )
        if not found:
            raise LayoutError(self._unknown(shapes, size))
        layout, number = found[0]
        if layout.name == "yolox":
            outputs = outputs or self._run(np.full((1, 3, size[1], size[0]), 114, np.float32), size)
            if is_decoded(next(iter(outputs.values()))[0], size):
                layout = LAYOUTS["yolox-decoded"]
        elif len(shapes) == 1 and next(iter(shapes.values()))[-1] == 6:
            outputs = outputs or self._run(np.full((1, 3, size[1], size[0]), 0.5, np.float32), size)
            if is_end_to_end_of_queries(next(iter(outputs.values()))[0]):
                layout = LAYOUTS["rtdetr-end2end"]
        elif layout.name == "rtdetr" and _DINO in self._path.read_bytes():
            layout = LAYOUTS["deimv2"]  # its sizes S to X, whose inputs are normalised
        return layout, number

    def _unknown(self, shapes: Shapes, size: tuple[int, int]) -> str:
        """Return the message for outputs of no layout with the known number of classes."""
        fits = [
            f"{pair[0].name} with {number} classes"
            for number in range(1, _MOST_CLASSES)
            for pair in recognise(shapes, size, lambda _, n=number: (n,))  # type: ignore[misc]
        ]
        named = f"{len(self._given)} class names" if self._given else "no class names, so COCO's are taken"
        advice = (
            f"they would fit {', '.join(fits[:4])}: give the names with lift.classes"
            if fits
            else f"known layouts: {', '.join(LAYOUTS)}; the page on detectors has the export command of each family"
        )
        return (
            f"outputs {shapes_text(shapes)} of an input of {size[0]} x {size[1]} with {named} fit no layout; {advice}"
        )

    def _run(self, tensor: NDArray[np.float32], size: tuple[int, int]) -> dict[str, NDArray[Any]]:
        """Run the network on an input (1, 3, h, w) of ``size`` and return its outputs by name."""
        image = tensor.astype(_IMAGE_TYPES[self._input.type])
        feed: dict[str, Any] = {self._input.name: image if len(self._input.shape) == 4 else image[0]}
        feed |= {other.name: _value_of(other, size) for other in self._others}
        names = [output.name for output in self._session.get_outputs()]
        found = (np.asarray(v) for v in run_session(self._session, names, feed))
        return {n: v.astype(np.float32) if v.dtype == np.float16 else v for n, v in zip(names, found, strict=True)}

    @property
    def vocabulary(self) -> frozenset[str]:
        """Return the names of its classes, without empty ones."""
        return frozenset(self.classes) - {""}

    def detect(self, frame: RgbdFrame) -> tuple[Detections2d, Counter[str]]:
        """See :class:`Detector`. Raises :class:`~.layouts.LayoutError` for outputs of another layout."""
        picture = (frame.intrinsics.width, frame.intrinsics.height)
        if self._size is not None:
            size = self._size
        elif self.layout.image.place == "stretched":
            size = (self._long_side_px, self._long_side_px)
        else:
            size = free_input_size(picture, self._long_side_px)
        tensor, fit = self.layout.image.prepare(frame.color, size)
        outputs = self._run(tensor, size)
        try:
            raw = self.layout.decode(outputs, size, len(self.classes), self.limits.min_score)
        except LayoutError as error:
            raise LayoutError(f"{self._path}: {error}") from None
        rows = np.arange(len(raw.scores))
        if raw.suppress_iou is not None:
            rows = picture_nms(raw.boxes, raw.scores, raw.classes, raw.suppress_iou)
        return accept_detections(
            frame.camera,
            frame.stamp_ns,
            fit.to_picture(raw.boxes[rows]),
            raw.scores[rows],
            [self.classes[i] for i in raw.classes[rows]],
            picture,
            self.limits,
            picture_masks(raw, rows, fit),
        )


def _value_of(tensor: Any, size: tuple[int, int]) -> NDArray[Any]:
    """Return the value of an input beside the image, by its name and type. Raises ``ValueError`` for an unknown one."""
    name, kind = tensor.name.lower(), _OTHER_TYPES.get(tensor.type)
    if kind is not None and "scale" in name:
        return np.ones((1, 2), kind)
    if kind is not None and "im_shape" in name:  # of PaddleDetection: height, width
        return np.array([size[::-1]], kind)
    if kind is not None and "size" in name:  # of RT-DETR: width, height, to which it scales its boxes
        return np.array([size], kind)
    advice = ""
    if name in ("input_ids", "attention_mask", "token_type_ids", "tokens", "text", "txt_feats"):
        advice = "; a network that reads words needs them put in before the export: see the page on detectors"
    raise ValueError(f"the input {tensor.name} {tensor.shape} {tensor.type} is not known{advice}")


def _long_side_in(metadata: Mapping[str, str]) -> int:
    """Return the long side of ``imgsz`` in the metadata; 0 without one that can be used."""
    sides = [int(side) for side in re.findall(r"\d{1,5}", metadata.get("imgsz", ""))]
    return max((side for side in sides if 32 <= side <= _LARGEST_INPUT_PX), default=0)


def _names_in(metadata: Mapping[str, str]) -> tuple[str, ...]:
    """Read the class names that Ultralytics writes as a Python dictionary; () without such an entry."""
    text = metadata.get("names")
    if not text:
        return ()
    if len(text) > _LONGEST_NAMES:
        raise ValueError(
            f"the file's entry 'names' has {len(text)} characters, more than the limit of {_LONGEST_NAMES}"
        )
    if _LITERALS.fullmatch(_TEXT.sub("", text)) is None:
        raise ValueError(f"the file's entry 'names' cannot be read: {text[:80]!r}")
    try:
        names = ast.literal_eval(text)  # literals only, no code
    except (ValueError, SyntaxError, MemoryError) as error:
        raise ValueError(f"the file's entry 'names' cannot be read: {text[:80]!r}") from error
    if isinstance(names, dict) and set(names) == set(range(len(names))):
        names = [names[i] for i in range(len(names))]
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"the file's entry 'names' should number class names from 0: {text[:80]!r}")
    return tuple(names)
