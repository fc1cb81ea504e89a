"""2-D detectors: the interface, and ONNX files with a declared output layout, run by ONNX Runtime."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from embodied_perceptron.detection2d.detections2d import Detections2d, Limits2d, accept_detections
from embodied_perceptron.detection2d.layouts import (
    LAYOUTS,
    Layout,
    LayoutError,
    free_input_size,
    picture_masks,
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
        """Return the names that it can report; a missing detection of such a name is evidence of absence."""
        ...

    def detect(self, frame: RgbdFrame) -> tuple[Detections2d, Counter[str]]:
        """Return the detections of an image, and the number of dropped ones by reason."""
        ...


@runtime_checkable
class OpenVocabularyDetector(Protocol):
    """A detector that is prompted with words."""

    @property
    def vocabulary(self) -> frozenset[str]:
        """Return the current words."""
        ...

    def look_for(self, words: Iterable[str]) -> None:
        """Replace the words, from the next image on."""
        ...


class OnnxDetector:
    """An ONNX file with one of the :data:`~embodied_perceptron.detection2d.layouts.LAYOUTS`.

    Args:
        path: the file.
        layout: name of its layout.
        classes: names by class number; empty = those of the file's metadata (as Ultralytics writes them), else COCO's.
        limits: on its output.
        long_side_px: of the input where the file leaves it free; 0 = the layout's default.
        providers, threads: of ONNX Runtime; see :class:`~embodied_perceptron.inference.onnx.OnnxImageEncoder`.

    Raises ``ValueError`` for an unknown layout, an input that is no image or a too large one, unreadable metadata,
    ``FileNotFoundError``, and the errors of opening an ONNX session.
    """

    def __init__(
        self,
        path: str | Path,
        layout: str,
        classes: Sequence[str] = (),
        limits: Limits2d | None = None,
        long_side_px: int = 0,
        providers: Sequence[str] = CPU,
        threads: int = 1,
    ) -> None:
        if layout not in LAYOUTS:
            raise ValueError(f"detector layout must be one of {sorted(LAYOUTS)}, got {layout!r}")
        self.layout: Layout = LAYOUTS[layout]
        self.limits = limits if limits is not None else Limits2d()
        self._path = Path(path)
        self._session = open_session(path, providers, threads)
        self.classes = tuple(classes) or _names_in(self._session) or COCO_CLASSES
        inputs = self._session.get_inputs()
        pictures = [i for i in inputs if len(i.shape) == 4]
        batch, channels = pictures[0].shape[:2] if len(pictures) == 1 else (None, None)
        wrong = (isinstance(batch, int) and batch > 1) or (isinstance(channels, int) and channels != 3)
        if len(pictures) != 1 or wrong:
            shapes = ", ".join(f"{i.name} {i.shape}" for i in inputs)
            raise ValueError(f"{path} should have one input (1, 3, H, W), but has {shapes}")
        self._input = pictures[0].name
        self._half = pictures[0].type == "tensor(float16)"
        self._sizes = [i.name for i in inputs if i.name != self._input]  # RT-DETR scales its boxes to this size
        height, width = pictures[0].shape[2:]
        largest = max((side for side in (height, width) if isinstance(side, int)), default=0)
        if largest > _LARGEST_INPUT_PX:
            raise ValueError(
                f"{path} has an input of {width} x {height} pixels, the limit is {_LARGEST_INPUT_PX} a side"
            )
        fixed = isinstance(height, int) and isinstance(width, int) and height > 0 and width > 0
        self._size = (int(width), int(height)) if fixed else None
        self._long_side_px = long_side_px or self.layout.long_side_px
        if not 32 <= self._long_side_px <= _LARGEST_INPUT_PX:
            raise ValueError(f"long_side_px must be in [32, {_LARGEST_INPUT_PX}], got {long_side_px}")

    @property
    def vocabulary(self) -> frozenset[str]:
        """Return the names of its classes, without empty ones."""
        return frozenset(self.classes) - {""}

    def detect(self, frame: RgbdFrame) -> tuple[Detections2d, Counter[str]]:
        """See :class:`Detector`. Raises :class:`~.layouts.LayoutError` for outputs of another layout."""
        picture = (frame.intrinsics.width, frame.intrinsics.height)
        if self._size is not None:
            size = self._size
        elif self.layout.stretched:
            size = (self._long_side_px, self._long_side_px)
        else:
            size = free_input_size(picture, self._long_side_px)
        tensor, fit = self.layout.prepare(frame.color, size)
        feed: dict[str, Any] = {self._input: tensor.astype(np.float16) if self._half else tensor}
        feed |= {name: np.array([size], dtype=np.int64) for name in self._sizes}
        names = [output.name for output in self._session.get_outputs()]
        outputs = dict(zip(names, (np.asarray(v) for v in run_session(self._session, names, feed)), strict=True))
        try:
            raw = self.layout.decode(outputs, size, len(self.classes), self.limits.min_score)
        except LayoutError as error:
            raise LayoutError(f"{self._path}: {error}") from None
        iou = self.layout.suppress_iou
        rows = np.arange(len(raw.scores)) if iou is None else picture_nms(raw.boxes, raw.scores, raw.classes, iou)
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


def _names_in(session: Any) -> tuple[str, ...]:
    """Read the class names that Ultralytics writes as a Python dictionary; () without such an entry."""
    text = session.get_modelmeta().custom_metadata_map.get("names")
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
