"""Few-shot classes: a row of the detection head each, over frozen features.

The detection head classifies a site by a linear layer, so a class is one row of weights. Rows of the labelled kinds are
fitted by regularised logistic regression: FCAF3D's assignment gives the examples of a labelled object, all other sites
of the same rooms are counterexamples. Boxes, other classes, occupancy and grounding do not change at all.

A labelled room is a map and the boxes of objects whose kind a user named. In a saved map these are the labels of
``~/correct_object`` and of the browser; beside a recording it is the file of ``embodied-perceptron label``,
``RECORDING.labels.json``. A user's name for one object ("Anna's desk") is no kind and no example. Every scan of a data
set in EmbodiedScan's layout is a labelled room too, by its annotations.

Figures are without the refinement head, which does not know new classes and passes their scores on. Every figure is of
objects that the tested row was not fitted to: rooms are left out in turn (or objects, where a kind is labelled in one
room only). The written row is fitted to all of them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from embodied_perceptron.config import PerceptronConfig
from embodied_perceptron.geometry.boxes import iou_of_arrays, points_in_boxes
from embodied_perceptron.geometry.manhattan import ManhattanFrame, Region
from embodied_perceptron.geometry.suppression import nms
from embodied_perceptron.inference.naming import shift_between
from embodied_perceptron.inference.predictor import Predictor, ScenePrediction
from embodied_perceptron.mapping.storage import MapFileError, read_map, saved_configs
from embodied_perceptron.nn.detection import DetectionLevel, decode_detections
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.recordings.recording import PosedFrameStream
from embodied_perceptron.results import UNNAMED
from embodied_perceptron.scene.live_map import LABELS_SUFFIX, saved_corrections
from embodied_perceptron.scene.object_map import check_words
from embodied_perceptron.sparse.sites import Sites
from embodied_perceptron.weights.categories import STRUCTURE_CLASSES
from embodied_perceptron.weights.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from embodied_perceptron_training.datasets.embodiedscan import EmbodiedScanDataset, Scan, infos_file
from embodied_perceptron_training.evaluation.metrics.detection import SceneBoxes, detection_metrics
from embodied_perceptron_training.evaluation.recordings.labels import read_labels
from embodied_perceptron_training.evaluation.runner.scene_tasks import mapped_scene, predict_everywhere
from embodied_perceptron_training.evaluation.runner.scenes import choose_views, load_scene
from embodied_perceptron_training.training.criteria import PaddedBoxes, ScenePoints, assign_batch
from embodied_perceptron_training.training.scene_pass import MIN_BOX_M

F64 = NDArray[np.float64]
MAP_NAME, MAP_SUFFIX = "map.safetensors", ".safetensors"
_SAME_THING_IOU = 0.5  # two labels with such an overlap contradict each other
_SPLIT = "train"  # the other splits are for measuring
_VIEWS = 20  # of a scan
MIN_THINGS = 3  # of a kind, for a fit and its validation
_FOLDS = 5
_DECAY = 0.02  # of a row, in units of the features' spread, against the mean loss of its examples
_STEPS = 60
_MOST_SITES = 200_000  # random counterexamples
_HIT_IOU = 0.25
_SEED = 20
_KERNEL, _BIAS = "detection.classify.kernel", "detection.classify.bias"
_KIND = "grounding.head.kind.weight"
_FIRST, _REFINED = "second_look.said.weight", ("second_look.classify.weight", "second_look.classify.bias")


class FewShotError(ValueError):
    """Examples that no class can be fitted to; the message names the file and the reason."""


@dataclass(frozen=True, eq=False)
class LabelledRoom:
    """One room."""

    source: Path  # map, recording, or scan below its data set
    labels: tuple[str, ...]  # (T,) kinds of the labelled objects
    boxes: F64  # (T, 9) of them, in the world of the perceptron
    open: Callable[[Predictor], Perceptron]  # makes the map, with a network in it
    doubtful: NDArray[np.bool_] | None = None  # (T,) neither example nor counterexample


def read_labelled_rooms(
    sources: Sequence[Path], classes: Sequence[str], only: Sequence[str] = ()
) -> list[LabelledRoom]:
    """Rooms of maps, recordings and data sets; rooms without a label are included, as counterexamples.

    Args:
        sources: maps (``.safetensors``, or a folder with ``map.safetensors``), recordings of any format, data sets
            (folders with ``embodiedscan_infos_train.pkl``), whose every scan is a room.
        classes: of the network; a label that differs from one only in case is that class.
        only: kinds to fit; empty = all labelled ones.

    Raises :class:`FewShotError` for labels that contradict each other or are no kinds of objects, and when there are
    none; ``MapFileError``, ``RecordingError``, ``LabelError``, ``DatasetError`` or ``OSError`` for unreadable sources.
    """
    wanted = {kind_of(name, classes, "--only") for name in only}
    rooms: list[LabelledRoom] = []
    for k, source in enumerate(sources):
        if source.resolve() in {other.resolve() for other in sources[:k]}:
            raise FewShotError(f"{source} is given twice")
        infos = infos_file(source, _SPLIT)
        if infos.is_file():
            dataset = EmbodiedScanDataset(source, _SPLIT)
            rooms += [_scan(dataset, scan, classes, wanted) for scan in dataset if scan.images]
        elif any(source.glob(infos_file(source, "*").name)):
            raise FewShotError(f"{source} has no {infos.name}: only a training split holds examples")
        else:
            rooms.append(_labelled_room(source, classes, wanted))
    if not any(room.labels for room in rooms):
        among = f" called {', '.join(sorted(wanted))}" if wanted else ""
        raise FewShotError(
            f"no object{among} is labelled in {', '.join(str(s) for s in sources)}: correct labels of objects first "
            "(~/correct_object, or the page of `embodied-perceptron view MAP`)"
        )
    return rooms


def is_unlabelled_recording(source: Path) -> bool:
    """Whether it is a recording without a file of labels: neither a map nor a data set."""
    is_map = (source / MAP_NAME).is_file() or source.suffix == MAP_SUFFIX
    is_data = source.is_dir() and any(source.glob(infos_file(source, "*").name))
    return not is_map and not is_data and not source.with_name(source.name + LABELS_SUFFIX).is_file()


def _labelled_room(source: Path, classes: Sequence[str], wanted: set[str]) -> LabelledRoom:
    map_file = source / MAP_NAME if (source / MAP_NAME).is_file() else source
    if map_file.suffix == MAP_SUFFIX:
        labelled = [(entry.label, entry.box) for entry in saved_corrections(map_file) if entry.label]
        make = partial(_open_map, map_file)
    else:
        labels = source.with_name(source.name + LABELS_SUFFIX)
        if source.exists() and not labels.is_file():
            raise FewShotError(f"{source} has no labels: make them with `embodied-perceptron label {labels}`")
        open_recording(source)
        labelled = [(thing.names[0], thing.box) for thing in read_labels(labels).things if thing.sure]
        make = partial(_open_recording, source)
    kinds = [(kind_of(label, classes, str(source)), box) for label, box in labelled]
    _check_agreement(source, kinds)
    return _of_wanted(source, kinds, wanted, make)


def _of_wanted(
    source: Path, kinds: Sequence[tuple[str, F64]], wanted: set[str], make: Callable[[Predictor], Perceptron]
) -> LabelledRoom:
    chosen = [(kind, box) for kind, box in kinds if not wanted or kind in wanted]
    boxes = np.stack([box for _, box in chosen]) if chosen else np.zeros((0, 9))
    return LabelledRoom(source, tuple(kind for kind, _ in chosen), boxes, make)


def _scan(dataset: EmbodiedScanDataset, scan: Scan, classes: Sequence[str], wanted: set[str]) -> LabelledRoom:
    """A scan with the objects that its views show, without structure."""
    views = choose_views(len(scan.images), _VIEWS)
    shown = sorted(frozenset[int]().union(*(scan.images[view].visible_ids for view in views)))
    named = [k for k in shown if scan.labels[k] not in STRUCTURE_CLASSES and scan.labels[k] != UNNAMED]
    source = dataset.root / scan.sample_idx
    kinds = [(kind_of(scan.labels[k], classes, str(source)), scan.boxes[k]) for k in named]

    def make(inference: Predictor) -> Perceptron:
        return mapped_scene(load_scene(dataset, scan.sample_idx, _VIEWS), inference)

    return _of_wanted(source, kinds, wanted, make)


def kind_of(label: str, classes: Sequence[str], where: str) -> str:
    """The class of a label: the network's of that name, or a new one."""
    try:
        words = " ".join(check_words(label, "label").casefold().split())
    except ValueError as error:
        raise FewShotError(f"{where}: {error}") from error
    if words in STRUCTURE_CLASSES or words == UNNAMED:
        raise FewShotError(f"{where}: {words!r} is no kind of object with boxes")
    return {name.casefold(): name for name in classes}.get(words, words)


def _check_agreement(source: Path, kinds: Sequence[tuple[str, F64]]) -> None:
    if len(kinds) < 2:
        return
    boxes = np.stack([box for _, box in kinds])
    overlap = iou_of_arrays(boxes, boxes)
    for i, (kind, box) in enumerate(kinds):
        for j in range(i):
            if kinds[j][0] != kind and overlap[i, j] > _SAME_THING_IOU:
                place = ", ".join(f"{v:.2f}" for v in box[:3])
                raise FewShotError(f"{source}: the object at ({place}) is both a {kinds[j][0]!r} and a {kind!r}")


def _open_map(file: Path, inference: Predictor) -> Perceptron:
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


def _open_recording(source: Path, inference: Predictor) -> Perceptron:
    perceptron = Perceptron(PerceptronConfig(), inference=inference)
    fuse_recording(source, perceptron)
    return perceptron


def fuse_recording(source: Path, perceptron: Perceptron) -> None:
    """Fuse a whole recording into a map. Raises :class:`FewShotError` if no frame has a pose."""
    stream = PosedFrameStream(open_recording(source), perceptron.config.assembler)
    fused = sum(perceptron.integrate(posed).fused for posed in stream)
    if not fused:
        reasons = ", ".join(f"{name} {count}" for name, count in sorted(stream.stats.dropped.items()))
        raise FewShotError(
            f"{source}: none of its {stream.colors_played} images was fused into a map ({reasons or 'empty'}); "
            "examples need poses (TF or a trajectory)"
        )


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of the classifier: (C, K) ``kernel`` and (K,) ``bias``, float32."""

    kernel: Tensor
    bias: Tensor


@dataclass(frozen=True, eq=False)
class RoomPart:
    """Inputs of the classifier in one window of a room."""

    levels: tuple[DetectionLevel, ...]  # raw predictions in the window's wall-aligned frame, without classes
    features: tuple[Tensor, ...]  # (N, C) per level
    manhattan: ManhattanFrame  # that frame
    core: Region  # where this window's boxes count, world

    def flat(self) -> Tensor:
        """(N, C) features of all levels, finest first."""
        return torch.cat(self.features)


@dataclass(frozen=True, eq=False)
class RoomFeatures:
    """Inputs of the classifier in a labelled room."""

    name: str  # of its source
    labels: tuple[str, ...]  # (T,) kinds of the labelled objects
    boxes: F64  # (T, 9) of them, world
    parts: tuple[RoomPart, ...]  # windows that cover the room
    found: F64  # (D, 9) all boxes of the original network
    doubtful: NDArray[np.bool_] | None = None  # see :class:`LabelledRoom`

    @property
    def sure(self) -> NDArray[np.bool_]:
        """(T,) which objects are examples."""
        return np.ones(len(self.labels), bool) if self.doubtful is None else ~self.doubtful

    def count(self, name: str) -> int:
        """Number of examples of a kind."""
        return sum(label == name and bool(sure) for label, sure in zip(self.labels, self.sure, strict=True))


@dataclass(frozen=True)
class ClassReport:
    """Figures of one kind, in percent at IoU 0.25: AP ``before`` and ``after``; ``localised``: the share of its objects
    that the network has any box for, an upper limit."""

    name: str
    is_new: bool
    things: int
    rooms: int
    before: float
    after: float
    localised: float


@dataclass(frozen=True)
class ValidationReport:
    """Figures of scenes that nothing was fitted to: AP25 in percent over the known classes, and published boxes of new
    classes per scene."""

    scenes: int
    before: float
    after: float
    new_boxes: float


@dataclass(frozen=True, eq=False)
class FewShotClasses:
    """Rows for all classes and their figures."""

    classes: tuple[str, ...]
    rows: Rows
    report: tuple[ClassReport, ...]
    validation: ValidationReport | None

    def problems(self, tolerance: float) -> list[str]:
        """Reasons against these weights; empty if there are none. ``tolerance``: points of AP25."""
        found = [
            f"{c.name}: AP25 of left-out objects fell from {c.before:.1f} to {c.after:.1f}"
            for c in self.report
            if c.after < c.before - tolerance
        ]
        before, after = (float(np.mean([getattr(c, k) for c in self.report])) for k in ("before", "after"))
        if not after > before:
            found.append(f"the fitted classes are not better than before: AP25 {before:.1f} -> {after:.1f}")
        if self.validation is not None and self.validation.after < self.validation.before - tolerance:
            v = self.validation
            found.append(
                f"AP25 of the known classes on the validation scenes fell from {v.before:.1f} to {v.after:.1f}"
            )
        return found


# -- inputs of the classifier


def check_network(inference: Predictor) -> None:
    """Raise :class:`FewShotError` for a network whose classes are not a linear layer over fixed features."""
    config = inference.network.config
    if config.detection is None:
        raise FewShotError("these weights have no detection head: there are no classes to fit")
    if config.detection.pruning != "object":
        raise FewShotError(
            f"a {config.name} network prunes by its classes: new ones change its features; train it instead"
        )


def room_features(room: LabelledRoom, inference: Predictor) -> RoomFeatures:
    """The features of a labelled room, as input of the fit. Raises as :func:`read_labelled_rooms`."""
    prediction = predict_everywhere(room.open(inference))
    if prediction.detections is None:
        raise FewShotError(f"{room.source}: the network gave no prediction: {'; '.join(prediction.diagnostics)}")
    parts, found = room_parts(prediction), prediction.detections.boxes
    return RoomFeatures(str(room.source), room.labels, room.boxes, parts, found, room.doubtful)


def room_parts(prediction: ScenePrediction) -> tuple[RoomPart, ...]:
    """Raw predictions and features of every window."""
    parts = []
    for part in prediction.parts:
        detection = part.scene.detection
        assert detection is not None
        levels = tuple(
            dataclasses.replace(
                level,
                # without the caches of the network's layers
                sites=Sites(level.sites.keys, level.sites.stride, level.sites.batch_size, level.sites.engine),
                class_logits=level.center_logits[:, :0],
                object_logits=None,
                presence_logits=None,
            )
            for level in detection.levels
        )
        features = tuple(x.feats.clone() for x in detection.features)
        parts.append(RoomPart(levels, features, part.scene.manhattan, part.core))
    return tuple(parts)


def boxes_of(parts: Sequence[RoomPart], rows: Rows, inference: Predictor) -> SceneBoxes:
    """The boxes that the network gives with these rows as classes, in the world; labels are positions of rows."""
    config = inference.network.config
    assert config.detection is not None
    boxes, scores, labels = [np.zeros((0, 9))], [np.zeros(0)], [np.zeros(0, np.int64)]
    for part in parts:
        levels = [
            dataclasses.replace(level, class_logits=feats @ rows.kernel + rows.bias)
            for level, feats in zip(part.levels, part.features, strict=True)
        ]
        d = config.detection
        (found,) = decode_detections(
            levels, d.max_per_level, d.min_score, d.iou_threshold, config.conventions, d.max_candidates
        )
        world = part.manhattan.boxes_to_world(found.boxes.double().numpy())
        mine = part.core.contains(world[:, :3])
        boxes.append(world[mine])
        scores.append(found.scores.double().clamp(0.0, 1.0).numpy()[mine])
        labels.append(found.labels.numpy()[mine])
    box, score, label = np.concatenate(boxes), np.concatenate(scores), np.concatenate(labels)
    if len(parts) > 1 and len(box):
        kept = nms(*(torch.from_numpy(v) for v in (box, score, label)), config.detection.iou_threshold).numpy()
        box, score, label = box[kept], score[kept], label[kept]
    return SceneBoxes(box, label, score)


# -- examples and rows


@dataclass(frozen=True, eq=False)
class Examples:
    """Sites of one room: (N, C) ``features``, (N,) the object that each is an example of, -1 = none, and (N, T) whether
    each is in an object's box."""

    features: Tensor
    thing: Tensor
    inside: Tensor


def examples_of(room: RoomFeatures) -> Examples:
    """Assign the sites of a room to its labelled objects."""
    features, things, insides = [], [], []
    for part in room.parts:
        turned = ManhattanFrame(-part.manhattan.yaw_rad).boxes_to_world(room.boxes)
        boxes = torch.from_numpy(turned)
        points = [level.points_m for level in part.levels]
        flat = torch.cat(points).double()
        counts = torch.from_numpy(part.core.contains(part.manhattan.to_world(flat.numpy())))
        scene = ScenePoints.of(points, [[0, len(p)] for p in points])
        found = assign_batch(scene, PaddedBoxes.of([boxes]), min_size_m=MIN_BOX_M).taken_only()
        assigned = torch.full((len(flat),), -1).scatter_(0, found.row, found.box)
        grown = boxes.clone()
        grown[:, 3:6].clamp_(min=MIN_BOX_M)
        features.append(part.flat()[counts])
        things.append(assigned[counts])
        insides.append(points_in_boxes(flat, grown)[counts])
    return Examples(torch.cat(features), torch.cat(things), torch.cat(insides))


def fit_rows(
    rooms: Sequence[tuple[Examples, tuple[str, ...], NDArray[np.bool_]]],
    names: Sequence[str],
    prior: Rows,
    decay: float = _DECAY,
) -> Rows:
    """Fit rows of the classes ``names``.

    Args:
        rooms: examples, kinds of the objects (T,), and (T,) bool which objects are examples; sites in others of the
            same kind are neither example nor counterexample.
        names: of the rows.
        prior: rows that regularisation pulls to: the network's, zero for new classes.
        decay: strength of the regularisation.
    """
    x, y, counted = [], [], []
    for examples, labels, used in rooms:
        matches = [[label == name for name in names] for label in labels]
        is_kind = torch.tensor(matches, dtype=torch.bool).reshape(len(labels), len(names))
        positive = is_kind & torch.from_numpy(used)[:, None]
        nothing = torch.zeros((1, len(names)), dtype=torch.bool)
        example = torch.cat([positive, nothing])[examples.thing]
        near = (examples.inside.float() @ is_kind.float()) > 0
        x.append(examples.features)
        y.append(example)
        counted.append(example | ~near)
    features, wanted, use = torch.cat(x), torch.cat(y), torch.cat(counted)
    weight = 1.0
    others = (~wanted.any(1)).nonzero()[:, 0]
    if len(others) > _MOST_SITES:
        weight = len(others) / _MOST_SITES
        drawn = torch.randperm(len(others), generator=torch.Generator().manual_seed(_SEED))[:_MOST_SITES]
        rows = torch.cat([wanted.any(1).nonzero()[:, 0], others[drawn]]).sort().values
        features, wanted, use = features[rows], wanted[rows], use[rows]
    mean, spread = features.mean(0), features.std(0).clamp_min(1e-6)
    z = (features - mean) / spread
    start = prior.kernel * spread[:, None]
    offset = prior.bias + mean @ prior.kernel
    kernel, bias = start.clone().requires_grad_(True), offset.clone().requires_grad_(True)
    importance = use.float() * torch.where(wanted, 1.0, weight)
    count = wanted.sum(0).clamp_min(1).float()
    solver = torch.optim.LBFGS([kernel, bias], max_iter=_STEPS, history_size=10, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        solver.zero_grad()
        logits = torch.addmm(bias, z, kernel)
        loss = functional.binary_cross_entropy_with_logits(logits, wanted.float(), importance, reduction="none")
        total = (loss.sum(0) / count).sum() + decay * (kernel - start).square().sum()
        total.backward()
        return total

    solver.step(closure)
    with torch.no_grad():
        raw = kernel / spread[:, None]
        return Rows(raw.detach(), (bias - mean @ raw).detach())


# -- fit and cross-validation


def fit_classes(
    rooms: Sequence[RoomFeatures],
    inference: Predictor,
    *,
    decay: float = _DECAY,
    progress: Callable[[str], None] = lambda _: None,
) -> FewShotClasses:
    """Rows for the kinds that are labelled in the rooms, with cross-validated figures.

    Kinds with fewer than :data:`MIN_THINGS` objects with sites are left out and reported to ``progress``. Raises
    :class:`FewShotError` where none is left.
    """
    known = classifier_rows(inference)
    rare = _too_rare(rooms)
    rooms = [_without_kinds(room, rare) for room in rooms]
    names = sorted({label for room in rooms for label in room.labels})
    if not names:
        raise FewShotError("; ".join(rare.values()))
    for reason in rare.values():
        progress(f"left out: {reason}")
    examples = [examples_of(room) for room in rooms]
    prior = prior_rows(known, inference.classes, names)
    folds = folds_of(rooms, names)
    outcome: dict[str, list[tuple[SceneBoxes, SceneBoxes]]] = {"before": [], "after": []}
    for fold in range(max(f for of_room in folds for f in of_room) + 1):
        progress(f"checking, part {fold + 1}")
        held_out = [np.array([f == fold for f in of[1:]], bool) & r.sure for of, r in zip(folds, rooms, strict=True)]
        away = [of_room[0] == fold for of_room in folds]  # the whole room is left out
        fitted = fit_rows(
            [(e, r.labels, ~h & r.sure) for e, r, h, a in zip(examples, rooms, held_out, away, strict=True) if not a],
            names,
            prior,
            decay,
        )
        for room, mine, gone in zip(rooms, held_out, away, strict=True):
            if not gone and not mine.any():
                continue
            truth = _labelled(room, names, mine)
            others = _labelled(room, names, ~mine)
            for which, rows in (("before", prior), ("after", fitted)):
                found = _without(boxes_of(room.parts, rows, inference), others, truth)
                if which == "before":
                    had = np.array([name in inference.classes for name in names])
                    found = found.take(had[found.labels])  # the network had no boxes of new classes
                outcome[which].append((found, truth))
    before, after = (_class_figures(outcome[k], names) for k in ("before", "after"))
    progress("fitting to all of them")
    rows = fit_rows([(e, r.labels, r.sure) for e, r in zip(examples, rooms, strict=True)], names, prior, decay)
    new = [n for n in names if n not in inference.classes]
    shift = torch.tensor([_publishing_shift(outcome["after"], k, inference.scores.publish) if n in new else 0.0
                          for k, n in enumerate(names)])  # fmt: skip
    rows = Rows(rows.kernel, rows.bias + shift)
    report = tuple(
        ClassReport(
            name,
            name in new,
            sum(r.count(name) for r in rooms),
            sum(r.count(name) > 0 for r in rooms),
            before.get(name, 0.0),
            after.get(name, 0.0),
            _localised(rooms, name),
        )
        for name in names
    )
    return FewShotClasses((*inference.classes, *new), merged_rows(known, inference.classes, rows, names), report, None)


def classifier_rows(inference: Predictor) -> Rows:
    """The rows of the network."""
    head = inference.network.detection
    assert head is not None
    layer = head.classify
    assert layer.bias is not None
    return Rows(layer.kernel.detach().float().clone(), layer.bias.detach().float()[0].clone())


def prior_rows(known: Rows, classes: Sequence[str], names: Sequence[str]) -> Rows:
    """The network's rows of ``names``; for a new class zero weights and an improbable bias."""
    kernel = known.kernel.new_zeros(len(known.kernel), len(names))
    bias = known.bias.new_full((len(names),), -4.6)
    for column, name in enumerate(names):
        if name in classes:
            row = list(classes).index(name)
            kernel[:, column], bias[column] = known.kernel[:, row], known.bias[row]
    return Rows(kernel, bias)


def merged_rows(known: Rows, classes: Sequence[str], rows: Rows, names: Sequence[str]) -> Rows:
    """All rows: the network's, with those of ``names`` replaced, new ones at the end."""
    kernel, bias = known.kernel.clone(), known.bias.clone()
    new = [k for k, name in enumerate(names) if name not in classes]
    for column, name in enumerate(names):
        if name in classes:
            row = list(classes).index(name)
            kernel[:, row], bias[row] = rows.kernel[:, column], rows.bias[column]
    return Rows(torch.cat([kernel, rows.kernel[:, new]], 1), torch.cat([bias, rows.bias[new]]))


def folds_of(rooms: Sequence[RoomFeatures], names: Sequence[str]) -> list[list[int]]:
    """Per room its fold (-1: the room is never left out), then the fold of each object.

    Whole rooms are left out if every kind is in at least two; otherwise objects.
    """
    by_room = all(sum(room.count(name) > 0 for room in rooms) >= 2 for name in names)
    if not by_room:
        seen = dict.fromkeys(names, 0)
        folds = []
        for room in rooms:
            mine = [-1]
            for label, sure in zip(room.labels, room.sure, strict=True):
                mine.append(seen[label] % 4)
                seen[label] += int(sure)
            folds.append(mine)
        return folds
    count = min(_FOLDS, len(rooms))
    load = [dict.fromkeys(names, 0) for _ in range(count)]
    sizes = [0] * count
    chosen = [0] * len(rooms)
    rarest = {name: sum(room.labels.count(name) for room in rooms) for name in names}
    order = sorted(range(len(rooms)), key=lambda i: (min((rarest[n] for n in rooms[i].labels), default=10**9), i))
    for i in order:
        labels = rooms[i].labels
        fold = min(range(count), key=lambda f: (sum(load[f][n] / rarest[n] for n in labels) + sizes[f] / len(rooms), f))
        chosen[i] = fold
        sizes[fold] += 1
        for name in labels:
            load[fold][name] += 1
    return [[fold] * (1 + len(room.labels)) for fold, room in zip(chosen, rooms, strict=True)]


def _too_rare(rooms: Sequence[RoomFeatures]) -> dict[str, str]:
    """Kinds with too few examples -> a message with their number."""
    total, seen = Counter[str](), Counter[str]()
    for room in rooms:
        total.update({label: room.count(label) for label in room.labels})
        seen.update(room.labels[k] for k in set(examples_of(room).thing.tolist()) if k >= 0 and room.sure[k])
    found = {}
    for name in sorted(total):
        if seen[name] < MIN_THINGS:
            unseen = total[name] - seen[name]
            where = f" ({unseen} of {total[name]} are where the network has no sites)" if unseen else ""
            needed = f"{MIN_THINGS} are needed for the fit and its validation"
            found[name] = f"{name!r} has {seen[name]} examples{where}; {needed}"
    return found


def _without_kinds(room: RoomFeatures, kinds: Collection[str]) -> RoomFeatures:
    """The room without objects of these kinds."""
    kept = [k for k, label in enumerate(room.labels) if label not in kinds]
    labels, doubtful = tuple(room.labels[k] for k in kept), None if room.doubtful is None else room.doubtful[kept]
    return dataclasses.replace(room, labels=labels, boxes=room.boxes[kept], doubtful=doubtful)


def _labelled(room: RoomFeatures, names: Sequence[str], which: NDArray[np.bool_]) -> SceneBoxes:
    rows = np.flatnonzero(which)
    return SceneBoxes(room.boxes[rows], np.array([list(names).index(room.labels[i]) for i in rows], np.int64))


def _without(found: SceneBoxes, others: SceneBoxes, truth: SceneBoxes) -> SceneBoxes:
    """Without boxes of objects that the rows were fitted to."""
    if len(found.boxes) == 0 or len(others.boxes) == 0:
        return found
    theirs = iou_of_arrays(found.boxes, others.boxes)
    theirs[found.labels[:, None] != others.labels[None]] = 0.0
    mine = iou_of_arrays(found.boxes, truth.boxes).max(1, initial=0.0)
    return found.take((theirs.max(1) <= _HIT_IOU) | (mine > theirs.max(1)))


def _class_figures(pairs: Sequence[tuple[SceneBoxes, SceneBoxes]], names: Sequence[str]) -> dict[str, float]:
    found = {str(i): mine for i, (mine, _) in enumerate(pairs)}
    truth = {str(i): theirs for i, (_, theirs) in enumerate(pairs)}
    figures = detection_metrics(found, truth, names)
    return {name: figures[f"AP25/{name}"] for name in names if f"AP25/{name}" in figures}


def _publishing_shift(pairs: Sequence[tuple[SceneBoxes, SceneBoxes]], label: int, publish: float) -> float:
    """Log-odds added to a new class, so that its best F1 on left-out objects is at the score from which boxes are
    published."""
    scores, hits, total = [np.zeros(0)], [np.zeros(0, bool)], 0
    for found, truth in pairs:
        mine, theirs = found.labels == label, truth.boxes[truth.labels == label]
        total += len(theirs)
        if not mine.any():
            continue
        assert found.scores is not None
        scores.append(found.scores[mine])
        hits.append(iou_of_arrays(found.boxes[mine], theirs).max(1, initial=0.0) > _HIT_IOU)
    score, hit = np.concatenate(scores), np.concatenate(hits)
    if not hit.any() or publish <= 0:
        return 0.0
    order = np.argsort(-score, kind="stable")
    right = np.cumsum(hit[order])
    f1 = 2 * right / (np.arange(1, len(right) + 1) + total)
    best = float(np.clip(score[order][int(np.argmax(f1))], 1e-4, 1 - 1e-4))
    return shift_between(best, min(max(publish, 1e-4), 1 - 1e-4)) + 1e-3


def _localised(rooms: Sequence[RoomFeatures], name: str) -> float:
    hits, total = 0, 0
    for room in rooms:
        mine = room.boxes[np.array([label == name for label in room.labels], bool) & room.sure]
        total += len(mine)
        hits += int((iou_of_arrays(mine, room.found).max(1, initial=0.0) > _HIT_IOU).sum())
    return 100.0 * hits / max(total, 1)


def validate(
    fitted: FewShotClasses,
    inference: Predictor,
    data: Path,
    split: str = "val",
    scenes: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> ValidationReport:
    """Figures of both sets of rows on a data set (EmbodiedScan's layout) that nothing was fitted to; raises as its
    reader."""
    dataset = EmbodiedScanDataset(data, split)
    count = len(dataset) if scenes is None else min(scenes, len(dataset))
    if count == 0:
        raise FewShotError(f"{data} has no scene in split {split}")
    old = inference.classes
    index = {name: k for k, name in enumerate(old)}
    known = classifier_rows(inference)
    before, after, truth, new_boxes = {}, {}, {}, 0
    for i in range(count):
        progress(f"validation scene {i + 1} of {count}")
        scene = load_scene(dataset, dataset[i].sample_idx, _VIEWS)
        parts = room_parts(predict_everywhere(mapped_scene(scene, inference)))
        rows = [r for r in scene.seen_rows() if scene.labels[r] in index]
        truth[scene.name] = SceneBoxes(scene.boxes[rows], np.array([index[scene.labels[r]] for r in rows], np.int64))
        before[scene.name] = boxes_of(parts, known, inference)
        mine = boxes_of(parts, fitted.rows, inference)
        assert mine.scores is not None
        is_new = mine.labels >= len(old)
        new_boxes += int((is_new & (mine.scores >= inference.scores.publish)).sum())
        after[scene.name] = mine.take(~is_new)
    try:
        figures = [detection_metrics(found, truth, old)["AP25"] for found in (before, after)]
    except ValueError as error:
        raise FewShotError(f"{data}: {error}") from error
    return ValidationReport(count, *figures, new_boxes / count)


# -- the file


def write_classes(source: Path, out: Path, fitted: FewShotClasses) -> None:
    """Write ``source`` with the fitted rows; everything else is copied bit by bit. Raises as ``load_checkpoint`` and
    ``save_checkpoint``."""
    save_checkpoint(out, with_rows(load_checkpoint(source), fitted))


def with_rows(checkpoint: Checkpoint, fitted: FewShotClasses) -> Checkpoint:
    """A weights file's content with the fitted classes. Unchanged rows keep their bits."""
    state = dict(checkpoint.state)
    new = len(fitted.classes) - len(checkpoint.classes)
    columns = [fitted.classes.index(c.name) for c in fitted.report]
    for key, rows in ((_KERNEL, fitted.rows.kernel), (_BIAS, fitted.rows.bias[None])):
        old = state[key]
        grown = torch.cat([old, old.new_zeros(len(old), new)], 1)
        grown[:, columns] = rows[:, columns].to(old.dtype)
        state[key] = grown
    if _KIND in state:  # grounding gets only place and size of objects of a new class
        state[_KIND] = functional.pad(state[_KIND], (0, new))
    if _FIRST in state:  # the refinement head gets only the first scores of new classes; its last row is presence
        state[_FIRST] = functional.pad(state[_FIRST], (0, new))
        for key in _REFINED:
            known, presence = state[key][:-1], state[key][-1:]
            state[key] = torch.cat([known, presence.new_zeros(new, *presence.shape[1:]), presence])
    report: list[Mapping[str, Any]] = [dataclasses.asdict(c) for c in fitted.report]
    extra = {**checkpoint.extra, "taught": report}
    if fitted.validation is not None:
        extra["taught_validation"] = dataclasses.asdict(fitted.validation)
    return Checkpoint(state, {**checkpoint.config, "num_classes": len(fitted.classes)}, fitted.classes, extra)
