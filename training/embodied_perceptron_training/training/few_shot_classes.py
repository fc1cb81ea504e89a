"""Examples of few-shot classes: rooms whose things users named, read from corrected maps and labelled recordings.

A labelled room is a map and the boxes of the things that a user named by their kind in it. In a saved map these are the
labels of ``~/correct_object`` and of the browser; beside a recording it is the file that ``embodied-perceptron label``
writes, ``RECORDING.labels.json``. A user's name for one object ("Anna's desk") is no kind and no example. Every
scan of a data set in EmbodiedScan's layout is one too, by its annotations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.config import PerceptronConfig
from embodied_perceptron.geometry.boxes import box_iou
from embodied_perceptron.inference.predictor import Predictor
from embodied_perceptron.mapping.storage import MapFileError, read_map, saved_configs
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.recordings.recording import PosedFrameStream
from embodied_perceptron.results import UNNAMED
from embodied_perceptron.scene.live_map import LABELS_SUFFIX, saved_corrections
from embodied_perceptron.scene.object_map import check_words
from embodied_perceptron.weights.categories import STRUCTURE_CLASSES
from embodied_perceptron_training.datasets.embodiedscan import EmbodiedScanDataset, Scan, infos_file
from embodied_perceptron_training.evaluation.recordings.labels import read_labels
from embodied_perceptron_training.evaluation.runner.scene_tasks import mapped_scene
from embodied_perceptron_training.evaluation.runner.scenes import choose_views, load_scene

F64 = NDArray[np.float64]
MAP_NAME, MAP_SUFFIX = "map.safetensors", ".safetensors"
_SAME_THING_IOU = 0.5  # two labels there contradict each other
_SPLIT = "train"  # what else a data set holds is for measuring
_VIEWS = 20  # of a scan


class FewShotError(ValueError):
    """Examples that no class can be fitted to; the message names the file and the reason."""


@dataclass(frozen=True, eq=False)
class LabelledRoom:
    """One room.

    Attributes:
        source: map, recording, or scan below its data set.
        labels: (T,) kinds of the labelled things.
        boxes: (T, 9) of them, in the world of ``perceptron``.
        open: makes the map, with a network in it.
        doubtful: (T,) bool: it may be such a thing, and is neither example nor counterexample; None = none is.
    """

    source: Path
    labels: tuple[str, ...]
    boxes: F64
    open: Callable[[Predictor], Perceptron]
    doubtful: NDArray[np.bool_] | None = None


def read_labelled_rooms(
    sources: Sequence[Path], classes: Sequence[str], only: Sequence[str] = ()
) -> list[LabelledRoom]:
    """Of maps, recordings and data sets; rooms without a label are among them, as counterexamples.

    Args:
        sources: maps (``.safetensors``, or a folder with ``map.safetensors``), recordings of any format, data sets
            (folders with ``embodiedscan_infos_train.pkl``), whose every scan is one.
        classes: of the network: what is called so in other letters is meant.
        only: kinds to fit; empty = all that are labelled.

    Raises :class:`FewShotError` for labels that contradict each other or name no kind of thing, and when there are
    none; ``MapFileError``, ``RecordingError``, ``LabelError``, ``DatasetError`` or ``OSError`` for what cannot be read.
    """
    wanted = {kind_of(name, classes, "--only") for name in only}
    rooms: list[LabelledRoom] = []
    for k, source in enumerate(sources):
        if source.resolve() in {other.resolve() for other in sources[:k]}:
            raise FewShotError(f"{source} is given twice")
        infos = infos_file(source, _SPLIT)
        if infos.is_file():
            rooms += _scans(source, classes, wanted)
        elif any(source.glob(infos_file(source, "*").name)):
            raise FewShotError(f"{source} has no {infos.name}: only a training split holds examples")
        else:
            rooms.append(_labelled_room(source, classes, wanted))
    if not any(room.labels for room in rooms):
        among = f" called {', '.join(sorted(wanted))}" if wanted else ""
        raise FewShotError(
            f"nothing{among} is labelled in {', '.join(str(s) for s in sources)}: correct labels of objects first "
            "(~/correct_object, or the page of `embodied-perceptron view MAP`)"
        )
    return rooms


def is_unlabelled_recording(source: Path) -> bool:
    """Whether it is a recording without a file of labels beside it: neither a map nor a data set."""
    is_map = (source / MAP_NAME).is_file() or source.suffix == MAP_SUFFIX
    is_data = source.is_dir() and any(source.glob(infos_file(source, "*").name))
    return not is_map and not is_data and not source.with_name(source.name + LABELS_SUFFIX).is_file()


def _labelled_room(source: Path, classes: Sequence[str], wanted: set[str]) -> LabelledRoom:
    map_file = source / MAP_NAME if (source / MAP_NAME).is_file() else source
    if map_file.suffix == MAP_SUFFIX:
        said = [(entry.label, entry.box) for entry in saved_corrections(map_file) if entry.label]
        make = _map_opener(map_file)
    else:
        labels = source.with_name(source.name + LABELS_SUFFIX)
        if source.exists() and not labels.is_file():
            raise FewShotError(f"{source} has no labels: `embodied-perceptron label {labels}` makes them")
        open_recording(source)
        said = [(thing.names[0], thing.box) for thing in read_labels(labels).things if thing.sure]
        make = _recording_opener(source)
    kinds = [(kind_of(label, classes, str(source)), box) for label, box in said]
    _check_agreement(source, kinds)
    return _of_wanted(source, kinds, wanted, make)


def _of_wanted(
    source: Path, kinds: Sequence[tuple[str, F64]], wanted: set[str], make: Callable[[Predictor], Perceptron]
) -> LabelledRoom:
    chosen = [(kind, box) for kind, box in kinds if not wanted or kind in wanted]
    boxes = np.stack([box for _, box in chosen]) if chosen else np.zeros((0, 9))
    return LabelledRoom(source, tuple(kind for kind, _ in chosen), boxes, make)


def _scans(root: Path, classes: Sequence[str], wanted: set[str]) -> list[LabelledRoom]:
    """The scans of a data set: what their views show, by its labels. Surfaces of a room are no things."""
    dataset = EmbodiedScanDataset(root, _SPLIT)
    return [_scan(dataset, scan, classes, wanted) for scan in dataset if scan.images]


def _scan(dataset: EmbodiedScanDataset, scan: Scan, classes: Sequence[str], wanted: set[str]) -> LabelledRoom:
    views = choose_views(len(scan.images), _VIEWS)
    shown = sorted(frozenset[int]().union(*(scan.images[view].visible_ids for view in views)))
    named = [k for k in shown if scan.labels[k] not in STRUCTURE_CLASSES and scan.labels[k] != UNNAMED]
    source = dataset.root / scan.sample_idx
    kinds = [(kind_of(scan.labels[k], classes, str(source)), scan.boxes[k]) for k in named]
    return _of_wanted(source, kinds, wanted, _scan_opener(dataset, scan.sample_idx))


def kind_of(label: str, classes: Sequence[str], where: str) -> str:
    """The class that a label means: the network's where it has one of that name, otherwise a new one."""
    try:
        words = " ".join(check_words(label, "label").casefold().split())
    except ValueError as error:
        raise FewShotError(f"{where}: {error}") from error
    if words in STRUCTURE_CLASSES or words == UNNAMED:
        raise FewShotError(f"{where}: {words!r} is no kind of thing that has boxes")
    return {name.casefold(): name for name in classes}.get(words, words)


def _check_agreement(source: Path, kinds: Sequence[tuple[str, F64]]) -> None:
    if len(kinds) < 2:
        return
    boxes = torch.from_numpy(np.stack([box for _, box in kinds]))
    overlap = box_iou(boxes, boxes)
    for i, (kind, box) in enumerate(kinds):
        for j in range(i):
            if kinds[j][0] != kind and overlap[i, j] > _SAME_THING_IOU:
                place = ", ".join(f"{v:.2f}" for v in box[:3])
                raise FewShotError(f"{source}: the thing at ({place}) is both a {kinds[j][0]!r} and a {kind!r}")


def _map_opener(file: Path) -> Callable[[Predictor], Perceptron]:
    def make(inference: Predictor) -> Perceptron:
        saved = read_map(file)
        volume, keyframes = saved_configs(saved)
        config = PerceptronConfig(volume=volume, keyframes=keyframes)
        try:
            perceptron = Perceptron(config, inference=inference)
        except ValueError as error:
            raise FewShotError(f"{file}: {error}") from error
        perceptron.map.restore(saved)
        if inference.network.config.uses_images and not perceptron.keyframe_poses():
            raise MapFileError(f"{file}: a map without keyframes has no images to read features from")
        return perceptron

    return make


def _scan_opener(dataset: EmbodiedScanDataset, name: str) -> Callable[[Predictor], Perceptron]:
    def make(inference: Predictor) -> Perceptron:
        return mapped_scene(load_scene(dataset, name, _VIEWS), inference)

    return make


def _recording_opener(source: Path) -> Callable[[Predictor], Perceptron]:
    def make(inference: Predictor) -> Perceptron:
        perceptron = Perceptron(PerceptronConfig(), inference=inference)
        fuse_recording(source, perceptron)
        return perceptron

    return make


def fuse_recording(source: Path, perceptron: Perceptron) -> None:
    """All of a recording into a map. Raises :class:`FewShotError` where nothing of it has a pose."""
    stream = PosedFrameStream(open_recording(source), perceptron.config.assembler)
    fused = sum(perceptron.integrate(posed).fused for posed in stream)
    if not fused:
        reasons = ", ".join(f"{name} {count}" for name, count in sorted(stream.stats.dropped.items()))
        raise FewShotError(
            f"{source}: none of its {stream.colors_played} pictures came into a map ({reasons or 'empty'}); "
            "without poses (TF or a trajectory) it gives no examples"
        )
