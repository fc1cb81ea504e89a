"""Build the detection lift of a configuration."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from embodied_perceptron.config import COCO_LAYOUT, LiftOptions, layout_and_file
from embodied_perceptron.detection2d.detections2d import Limits2d
from embodied_perceptron.detection2d.detections_file import DetectionsFile
from embodied_perceptron.detection2d.detectors import Detector, DetectorFileError, OnnxDetector
from embodied_perceptron.detection2d.open_vocabulary import MAX_WORDS, RegionEncoder, ZeroShotDetector
from embodied_perceptron.detection2d.persons import PersonMask
from embodied_perceptron.detection2d.pipeline import DetectionLift, LiftSettings
from embodied_perceptron.detection2d.scheduler import SchedulerRules
from embodied_perceptron.inference.posterior import DetectorModel, read_detector_model, shipped_detector_model
from embodied_perceptron.recordings.files import is_lfs_pointer

_NOT_QUICK = ("transformers", COCO_LAYOUT)  # too slow, or without an answer for most frames
_LOG = logging.getLogger(__name__)

# default words of an open-vocabulary detector: common household objects
DEFAULT_WORDS = (
    "chair", "table", "couch", "bed", "desk", "cabinet", "shelf", "plant", "lamp", "tv", "laptop", "keyboard", "book",
    "cup", "bottle", "bowl", "plate", "backpack", "bag", "box", "bin", "pillow", "clock", "picture", "mirror", "sink",
    "toilet", "refrigerator", "microwave", "oven", "toaster", "kettle", "shoe", "towel", "toy", "telephone",
    "remote control", "person",
)  # fmt: skip


def lift_from_options(
    options: LiftOptions, names: Sequence[str] = (), image_stamps: Mapping[str, int] | None = None
) -> DetectionLift | None:
    """Build the lift; None without a detector.

    ``names``: words of an open-vocabulary detector when ``options.classes`` is empty; ``image_stamps``: of a recording
    by file name, for a file of detections. Raises :class:`~.detectors.DetectorFileError` for a file that cannot be
    used, ``FileNotFoundError`` for a missing one.
    """
    if not options.enabled:
        return None
    if options.layout == "transformers" and not options.classes and len(names) > MAX_WORDS:
        _LOG.warning("the open-vocabulary detector uses the first %d of %d names", MAX_WORDS, len(names))
    settings = LiftSettings(
        min_probability=options.min_probability,
        stamp_tolerance_s=options.stamp_tolerance_s,
        schedule=SchedulerRules(max_rate_hz=options.max_rate_hz, limit_s=options.limit_s)
        if options.layout != COCO_LAYOUT
        else SchedulerRules(max_rate_hz=1e6, burst=1_000_000),  # reading a file takes no time
        detector_model=_detector_model(options.witnesses),
    )

    limits = limits_from_options(options)

    def make(layout: str, file: str, classes: tuple[str, ...]) -> Detector:
        try:
            return build(layout, file, classes)
        except (DetectorFileError, FileNotFoundError):
            raise
        except Exception as error:  # runtimes raise any exception for a bad file
            raise DetectorFileError(_why_unusable(file, error)) from error

    def build(layout: str, file: str, classes: tuple[str, ...]) -> Detector:
        if pointer := _lfs_pointer(Path(file)):
            raise DetectorFileError(f"{pointer} is a pointer of Git LFS, not the network: run `git lfs pull`")
        if layout == "transformers":
            return ZeroShotDetector(file, classes or names or DEFAULT_WORDS, limits, options.device)
        if layout == COCO_LAYOUT:
            return DetectionsFile(file, limits, options.stamp_tolerance_s, image_stamps)
        return OnnxDetector(file, layout, classes, limits, options.input_px, options.providers, options.threads)

    makers: dict[str, Callable[[], Detector]] = {}
    quick: list[Callable[[], Detector]] = []  # fast enough to run before fusion
    entries = [(options.layout, options.detector, options.classes)] if options.detector else []
    for layout, file, classes in (*entries, *((*layout_and_file(entry), ()) for entry in options.also)):
        first = make(layout, file, classes)  # names its layout, and is the detector of the first call
        name = first.layout.name if isinstance(first, OnnxDetector) else layout
        source = name if name not in makers else f"{name} {len(makers) + 1}"
        makers[source] = _first_made(first, partial(make, name, file, classes))
        quick += [] if layout in _NOT_QUICK else [partial(make, name, file, classes)]
    encoder = RegionEncoder(options.embeddings, options.device) if options.embeddings else None
    words = options.classes if options.from_topics else ()
    persons = None
    if options.persons == "masked":
        mask = PersonMask(quick)
        persons = mask if mask.knows_persons else None
    return DetectionLift(makers or None, settings, encoder=encoder, names=words, persons=persons)


def _first_made(first: Detector, make: Callable[[], Detector]) -> Callable[[], Detector]:
    """Return a maker that gives a detector away once, and then makes others."""
    made = [first]
    return lambda: made.pop() if made else make()


def _detector_model(file: str) -> DetectorModel:
    """Read the detector model of a file, or the shipped one."""
    try:
        return read_detector_model(Path(file).read_text(encoding="utf-8")) if file else shipped_detector_model()
    except ValueError as error:
        raise DetectorFileError(f"lift.witnesses: {file}: {error}") from error


def _lfs_pointer(path: Path) -> Path | None:
    """Return the first file, of a path or folder, that is a Git LFS pointer; None without one."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return next((file for file in files if file.is_file() and is_lfs_pointer(file)), None)


def _why_unusable(path: str, error: Exception) -> str:
    text = " ".join(str(error).split())[:1000] or type(error).__name__
    advice = ""
    if "opset" in text.lower() or "ir version" in text.lower():
        advice = "; export it again for an older opset, or install a newer onnxruntime"
    elif isinstance(error, ImportError):
        advice = f"; it needs a package that is not installed: {error.name}" if error.name else ""
    return f"the detector {path} cannot be used: {text}{advice}"


def limits_from_options(options: LiftOptions) -> Limits2d:
    """Return the limits on a detector's output."""
    return Limits2d(min_score=options.min_score, max_count=options.max_detections)
