"""Detections of a COCO file in place of a detector: what another program found, or the truth of a simulated home."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.detection2d.detections2d import (
    TOO_MANY,
    Detections2d,
    Limits2d,
    accept_detections,
    clean_label,
)
from embodied_perceptron.detection2d.detectors import DetectorFileError, UnknownImageError
from embodied_perceptron.detection2d.layouts import LayoutError
from embodied_perceptron.recordings.coco import CocoImage, NamedImages, decode_mask, read_coco
from embodied_perceptron.sensors.frame import RgbdFrame
from embodied_perceptron.sensors.poses import format_stamp


class DetectionsFile:
    """A :class:`~.detectors.Detector` that reads its answers from a COCO file.

    Args:
        path: the file.
        limits: on its detections.
        stamp_tolerance_s: largest difference between the stamps of an image of the file and of a frame.
        stamps: stamps of the recording's images by file name, where known: images are then found by name first.

    Raises :class:`.RecordingError` for an invalid file, :class:`.DetectorFileError` when no image of the file can be
    one of the recording.
    """

    def __init__(
        self,
        path: str | Path,
        limits: Limits2d | None = None,
        stamp_tolerance_s: float = 0.005,
        stamps: Mapping[str, int] | None = None,
    ) -> None:
        self.path = Path(path)
        self.limits = limits if limits is not None else Limits2d()
        self._tolerance_ns = int(stamp_tolerance_s * 1e9)
        coco, named = read_coco(path), NamedImages(stamps or {})
        by_name = ((named.stamp_ns(image.file_name), image) for image in coco.images)
        stamped = ((image.stamp_ns if stamp_ns is None else stamp_ns, image) for stamp_ns, image in by_name)
        found = [(stamp_ns, image) for stamp_ns, image in stamped if stamp_ns is not None]
        found.sort(key=lambda pair: pair[0])
        self._stamps, self._images = [stamp for stamp, _ in found], [image for _, image in found]
        self.vocabulary = frozenset(map(clean_label, coco.names)) - {""}
        if not found:
            raise DetectorFileError(
                f"{path}: none of its {len(coco.images)} images has a timestamp or the name of an image of the "
                "recording; add 'timestamp' (seconds) to each of 'images'"
            )
        if stamps and not any(self._near(stamp_ns, "") for stamp_ns in stamps.values()):
            raise DetectorFileError(
                f"{path}: {self._about()}; no image of the recording has such a stamp or name, so the file belongs to "
                "another recording"
            )

    def _about(self) -> str:
        first, last = format_stamp(self._stamps[0]), format_stamp(self._stamps[-1])
        return f"its {len(self._images)} images have the stamps {first} to {last} s"

    def _near(self, stamp_ns: int, camera: str) -> CocoImage | None:
        """Return the image of the nearest stamp within the tolerance."""
        low = bisect.bisect_left(self._stamps, stamp_ns - self._tolerance_ns)
        high = bisect.bisect_right(self._stamps, stamp_ns + self._tolerance_ns)
        able = [i for i in range(low, high) if not camera or self._images[i].camera in ("", camera)]
        return self._images[min(able, key=lambda i: abs(self._stamps[i] - stamp_ns))] if able else None

    def detect(self, frame: RgbdFrame) -> tuple[Detections2d, Counter[str]]:
        """See :class:`.Detector`.

        Raises :class:`.UnknownImageError` for an image that the file does not list, and :class:`.LayoutError` for one
        of another size or with an invalid mask.
        """
        image = self._near(frame.stamp_ns, frame.camera)
        if image is None:
            stamp = format_stamp(frame.stamp_ns)
            raise UnknownImageError(f"{self.path}: no image at {stamp} s of {frame.camera!r}; {self._about()}")
        size = (frame.intrinsics.width, frame.intrinsics.height)
        if image.size not in (None, size):
            raise LayoutError(f"{self.path}: {image.file_name} has {image.size} pixels, the recording's image {size}")
        rows = np.arange(len(image.labels))
        masks, early = None, Counter[str]()
        if any(image.segmentations):
            # masks cost memory: only of as many as may be used
            rows = np.argsort(-image.scores, kind="stable")[: 2 * self.limits.max_count]
            early = Counter({TOO_MANY: len(image.labels) - len(rows)}) if len(rows) < len(image.labels) else early
            try:
                masks = np.stack([self._mask(image, int(i), size) for i in rows])
            except ValueError as error:
                raise LayoutError(f"{self.path}: {image.file_name}: {error}") from error
        labels = [image.labels[i] for i in rows]
        boxes, scores = image.boxes[rows] - 0.5, image.scores[rows]
        found, drops = accept_detections(frame.camera, frame.stamp_ns, boxes, scores, labels, size, self.limits, masks)
        return found, drops + early

    @staticmethod
    def _mask(image: CocoImage, row: int, size: tuple[int, int]) -> NDArray[np.bool_]:
        """Return the mask of a detection; its box where it has none."""
        if image.segmentations[row] is not None:
            return decode_mask(image.segmentations[row], size)
        mask = np.zeros((size[1], size[0]), dtype=bool)
        if np.isfinite(image.boxes[row]).all():
            left, top, right, bottom = np.round(image.boxes[row].clip(0, max(size))).astype(int)
            mask[top:bottom, left:right] = True
        return mask
