"""Rows of the paper's comparisons, each trained with the same budget, seed and data, or scored on given weights.

A row is a value (:data:`ROWS`); its result is ``result.json`` in a folder of its own, shared by rows with the same
training. Rows with a result are not run again, and an interrupted row is resumed. Several processes may work on the
rows of one folder: each takes a row that no other process has, and the tables show all results.

Rows over numbers of views are scored on the same objects, those that the row with most views shows; otherwise rows with
fewer views would have fewer objects to find, and the figures would not compare.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from embodied_perceptron.nn.network import PerceptionNetwork
from embodied_perceptron.nn.official import CORRECTED
from embodied_perceptron.nn.presets import Modality, Variant
from embodied_perceptron.recordings.files import atomic_path
from embodied_perceptron_training.datasets.embodiedscan import EmbodiedScanDataset
from embodied_perceptron_training.training.run_folder import RunFolder
from embodied_perceptron_training.training.tasks import SceneTask, build_task, train_run
from embodied_perceptron_training.training.trainer import MINUTES
from embodied_perceptron_training.training.training_run import BoxLoss, TrainingRun

Table = Literal[
    "detection", "detectors", "architecture", "occupancy", "loss", "training-views", "tasks", "matchers", "views",
    "occlusion",
]  # fmt: skip
TITLES: Mapping[Table, str] = {
    "detection": "Continuous 3D detection by input (paper, Table 2)",
    "detectors": "Multi-view 3D detection: detectors (paper, Table 3)",
    "architecture": "Encoder and neck",
    "occupancy": "Continuous semantic occupancy by input (paper, Table 4)",
    "loss": "Box loss",
    "training-views": "Views per sample of the training (paper, Figure 7c)",
    "tasks": "One network for all tasks, and one for each",
    "matchers": "Grounding: matchers, over the same detector (paper, Table 5)",
    "views": "Views per scene, the same weights",
    "occlusion": "Occlusion test when voxels read images, the same weights",
}
_DETECTION = ("AP25", "AP25_furniture", "AP50", "AR25", "AR50")
_COLUMNS: Mapping[Table, tuple[str, ...]] = {
    "detection": _DETECTION,
    "detectors": _DETECTION,
    "architecture": _DETECTION,
    "occupancy": ("mIoU",),
    "loss": _DETECTION,
    "training-views": _DETECTION,
    "tasks": (*_DETECTION, "mIoU", "top1_acc25"),
    "matchers": ("top1_acc25", "top1_acc50", "top10_acc25", "ranked_AP25"),
    "views": (*_DETECTION, "mIoU", "top1_acc25"),
    "occlusion": (*_DETECTION, "mIoU", "top1_acc25"),
}


@dataclass(frozen=True)
class Row:
    """One line of a table."""

    name: str  # unique, and a folder's name
    table: Table  # where it is shown
    label: str  # printed text
    task: str = "detection"  # task, modality, variant, box_loss: of the trained network
    modality: Modality = "rgbd"
    variant: Variant = "ours"
    box_loss: BoxLoss = "decoupled"
    options: tuple[tuple[str, str], ...] = ()  # of its training (``--set``), over those of the budget
    scored: bool = False  # score given weights instead of training
    views: int = 0  # of a training sample, or of a scored row; 0 = the default
    truth_views: int = 0  # of a scored row, see :class:`TrainingRun`
    occlusion: bool | None = None  # of a scored row: the occlusion test; None = of the weights

    def folder(self) -> str:
        """Folder of the result; rows with the same training share it."""
        if self.scored:
            return f"scored/{self.name}"
        own = (*("".join(pair) for pair in self.options), *([f"views{self.views}"] if self.views else []))
        return "trained/" + "-".join((self.task, self.modality, self.variant, self.box_loss, *own)).replace("+", "-")


def _by_input(table: Table, task: str) -> tuple[Row, ...]:
    inputs: tuple[tuple[Modality, str], ...] = (("rgb", "RGB"), ("depth", "Depth"), ("rgbd", "RGB-D"))
    return tuple(Row(f"{task}-{m}", table, label, task, m) for m, label in inputs)


def _box_losses() -> Iterator[Row]:
    """Seven designs of the box loss: the corner distances with and without an IoU loss."""
    designs: tuple[tuple[BoxLoss, str], ...] = (
        ("l1-angles", "centre, size, three angles"),
        ("l1-matrix", "centre, size, rotation matrix"),
        ("none", "rotated IoU"),
        ("plain", "corner distance of the whole box"),
        ("decoupled-three", "corner distances by centre, size, rotation"),
        ("decoupled", "these and the whole box (paper)"),
    )
    for design, label in designs:
        name = "iou" if design == "none" else design
        yield Row(f"loss-{name}", "loss", label, box_loss=design, options=(("w_iou", str(float(design == "none"))),))
    yield Row("loss-decoupled-iou", "loss", "the paper's and rotated IoU", options=(("w_iou", "1.0"),))


_IOU = (("w_iou", "1.0"),)
_VIEWS = (1, 2, 5, 10, 20, 50)
_TRAINING_VIEWS = (1, 5, 10, 20, 40)
_ALL_VIEWS = ("val_views", str(_VIEWS[-1]))  # are scored, however few a sample of the training shows
ROWS: tuple[Row, ...] = (
    *_by_input("detection", "continuous-detection"),
    Row("detectors-votenet", "detectors", "votes (VoteNet)", modality="depth", variant="votenet"),
    Row("detectors-imvoxelnet", "detectors", "images (ImVoxelNet)", "detection", "rgb", "imvoxelnet", "none", _IOU),
    Row(
        "detectors-fcaf3d-angles",
        "detectors",
        "FCAF3D, sines and cosines",
        "detection",
        "depth",
        "fcaf3d-angles",
        "l1-sincos",
        _IOU,
    ),
    Row("detectors-fcaf3d", "detectors", "FCAF3D, its own yaw coding", modality="depth", variant="fcaf3d"),
    Row("detectors-decoder", "detectors", "+ our decoder", modality="depth", variant="fcaf3d+decoder"),
    Row("detectors-painting", "detectors", "+ painting", modality="painting"),
    Row("detectors-ours", "detectors", "ours"),
    Row("architecture-ours", "architecture", "ours"),
    Row("architecture-minkunet", "architecture", "MinkUNet", variant="minkunet"),
    Row("architecture-no-fpn", "architecture", "without the top-down pathway", variant="no-fpn"),
    *_by_input("occupancy", "continuous-occupancy"),
    *_box_losses(),
    *(
        Row(f"training-views-{n}", "training-views", str(n), views=n, options=(("random_views", "on"), _ALL_VIEWS))
        for n in _TRAINING_VIEWS
    ),
    Row("tasks-detection", "tasks", "detection alone"),
    Row("tasks-occupancy", "tasks", "occupancy alone", task="occupancy"),
    Row("tasks-grounding", "tasks", "grounding (and its detector)", task="grounding"),
    Row("tasks-multi", "tasks", "all three heads", task="multi"),
    Row("matchers-scanrefer", "matchers", "ScanRefer", task="grounding", variant="scanrefer"),
    Row("matchers-butd-detr", "matchers", "BUTD-DETR", task="grounding", variant="butd-detr"),
    Row("matchers-ours", "matchers", "ours", task="grounding"),
    *(Row(f"views-{n}", "views", str(n), "multi", scored=True, views=n, truth_views=_VIEWS[-1]) for n in _VIEWS),
    Row("occlusion-without", "occlusion", "without", "multi", scored=True, occlusion=False),
    Row("occlusion-with", "occlusion", "with", "multi", scored=True, occlusion=True),
)


def chosen_rows(names: Sequence[str], preset: str = "tiny") -> tuple[Row, ...]:
    """Rows by their names or their tables' names, in the tables' order; ``all`` = every row of the preset (``paper``
    grounds among voxels, and has no ``matchers`` rows).

    Raises ``ValueError`` naming unknown names.
    """
    known = {r.name for r in ROWS} | set(TITLES) | {"all"}
    unknown = sorted(set(names) - known)
    if unknown:
        raise ValueError(f"unknown rows {', '.join(unknown)}; tables: {', '.join(TITLES)}; or rows by name")
    wanted = set(names)
    return tuple(
        r for r in ROWS
        if {r.name, r.table} & wanted or ("all" in wanted and not (preset == "paper" and r.table == "matchers"))
    )  # fmt: skip


@dataclass(frozen=True)
class Budget:
    """Length and data of all rows.

    Attributes:
        steps: of every training; 0 = the preset's length.
        minutes: after which a training stops, to be resumed; 0 = never.
        preset, data, val, seed: see :class:`TrainingRun`
        options: of ``--set``, as text.
        settings: training settings that differ from the preset's.
        weights: of the scored rows, if any.
    """

    data: Path
    val: Path
    minutes: float = 0.0
    steps: int = 0
    preset: str = "tiny"
    seed: int = 0
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    weights: Path | None = None

    def identity(self, row: Row) -> dict[str, Any]:
        """Plain values that determine a row's figures."""
        own = {k: str(v) if isinstance(v, Path) else v for k, v in dataclasses.asdict(self).items()}
        names = ("data", "val", "preset", "seed", "options")
        used = {k: own[k] for k in (*names, *(("weights",) if row.scored else ("steps", "settings")))}
        kind = (
            row.task,
            row.modality,
            row.variant,
            row.box_loss,
            row.scored,
            row.views,
            row.truth_views,
            row.occlusion is not False,
            *row.options,
        )
        return dict(json.loads(json.dumps({"row": kind, **used})))  # the types of a stored one


def run_rows(
    rows: Sequence[Row],
    budget: Budget,
    out: Path,
    quiet: bool = False,
    on_start: Callable[[Row], None] = lambda row: None,
) -> bool:
    """Run ``rows`` until all have a result, possibly beside other processes in the same folder, and write the tables
    after each one; ``on_start`` is called before each one. Returns False when one has no result: its minutes were over,
    or a signal stopped the training.

    A row of another process is waited for at the end, since that process may stop without a result. Raises as
    :func:`run_row`.
    """
    pending, complete = list(rows), True
    for wait in (False, True):
        taken = []
        for row in pending:
            with _claimed(out / row.folder(), wait) as free:
                if not free:
                    taken.append(row)
                    continue
                on_start(row)
                try:
                    complete &= run_row(row, budget, out, quiet) is not None
                except TrainingStopped:
                    return False
            write_tables(out)
        pending = taken
    return complete


class TrainingStopped(Exception):  # noqa: N818 (nothing is wrong)
    """A signal stopped the training of a row."""


@contextlib.contextmanager
def _claimed(folder: Path, wait: bool) -> Iterator[bool]:
    """Lock ``folder`` against other processes; yields False when another one has it and ``wait`` is False."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".claim", "w") as file:
        try:
            # not flock, see RunFolder.open
            fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except (BlockingIOError, PermissionError):
            yield False
            return
        yield True


def write_tables(out: Path) -> list[dict[str, Any]]:
    """Write ``ablations.json`` and ``ablations.md`` of all results in ``out``; returns the results."""
    with _claimed(out, wait=True):
        results = []
        for row in ROWS:
            path = out / row.folder() / "result.json"
            if path.exists():
                results.append(_named(row, json.loads(path.read_text(encoding="utf-8"))))
        with atomic_path(out / "ablations.json") as temporary:
            temporary.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        with atomic_path(out / "ablations.md") as temporary:
            temporary.write_text(markdown(results), encoding="utf-8")
    return results


def _named(row: Row, stored: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": row.name, "table": row.table, "label": row.label, **stored}


def _check_alike(row: Row, identity: Mapping[str, Any], out: Path) -> None:
    """Raise ``ValueError`` naming a row of the same table with another budget, data or weights."""
    for other in ROWS:
        asked = out / other.folder() / "asked.json"
        if other.table != row.table or not asked.exists():
            continue
        theirs = json.loads(asked.read_text(encoding="utf-8"))
        if not theirs.get("minutes"):  # once the length of a training, and 0 where steps were
            theirs.pop("minutes", None)
        if {**theirs, "row": None} != {**identity, "row": None} or (
            other.folder() == row.folder() and theirs != identity
        ):
            raise ValueError(
                f"{asked.parent} belongs to another budget, data or weights: choose another folder, or remove it"
            )


def run_row(row: Row, budget: Budget, out: Path, quiet: bool = False) -> dict[str, Any] | None:
    """The row's result, read from the disk if it exists; None when its minutes were over before its end.

    Raises what training and reading weights raise; :class:`TrainingStopped`; ``ValueError`` when a scored row has no
    weights, or the table has rows of another budget.
    """
    folder = out / row.folder()
    identity, path = budget.identity(row), folder / "result.json"
    _check_alike(row, identity, out)
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "asked.json", identity)
    if not path.exists():
        result = _scored(row, budget) if row.scored else _trained(row, budget, folder, quiet)
        if result is None:
            return None
        _write(path, {"asked": identity, **result})
    return _named(row, json.loads(path.read_text(encoding="utf-8")))


def _write(path: Path, value: Mapping[str, Any]) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _run(row: Row, budget: Budget, options: Mapping[str, str], **values: Any) -> TrainingRun:
    kind = {k: getattr(row, k) for k in ("task", "modality", "variant", "box_loss", "views", "truth_views")}
    data = {k: getattr(budget, k) for k in ("preset", "data", "val", "seed")}
    return TrainingRun.of(options, **kind, **data, **values)


def _trained(row: Row, budget: Budget, folder: Path, quiet: bool) -> dict[str, Any] | None:
    geometry_alone = row.modality == "depth"
    options = {k: v for k, v in budget.options.items() if not (geometry_alone and k == "images")} | dict(row.options)
    settings = {"validations": 1, "validate_first": False, **budget.settings}
    length = {"steps": budget.steps} if budget.steps else {}
    run = _run(row, budget, options, **settings, **length, minutes=budget.minutes)
    outcome = train_run(run, folder, RunFolder(folder).state.exists(), quiet)
    if outcome.stopped == MINUTES:
        return None
    if not outcome.finished:
        raise TrainingStopped(outcome.stopped)
    checks = [line for line in RunFolder(folder).lines() if line["event"] == "validation"]
    if not checks:
        raise ValueError(f"{folder}: the training ended without a validation")
    # the last weights: the best ones were selected on the validation data
    return {"figures": checks[-1]["figures"], "steps": outcome.steps, "seconds": checks[-1]["elapsed_s"]}


def _scored(row: Row, budget: Budget) -> dict[str, Any]:
    if budget.weights is None:
        raise ValueError(f"row {row.name} scores given weights: --weights must say which")
    # features have to come from the weights' own image encoder
    options = {**budget.options, "images": str(budget.weights)}
    task = build_task(_run(row, budget, options, weights=budget.weights))
    assert isinstance(task, SceneTask)
    network = task.model
    assert isinstance(network, PerceptionNetwork)
    if row.occlusion is not None:
        margin_m = CORRECTED.occlusion_margin_m if row.occlusion else None
        network.view_sampling = dataclasses.replace(network.view_sampling, occlusion_margin_m=margin_m)
    torch.manual_seed(budget.seed)
    with torch.no_grad():
        result = {"figures": task.validate(network.eval()), "steps": 0, "seconds": 0.0}
    there = max(len(scan.images) for scan in EmbodiedScanDataset(budget.val, "val"))
    if row.views > there:  # the label must not claim more views than there are
        result["label"] = f"{row.label} (scans have {there})"
    return result


def markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """The tables of ``results`` (of :func:`run_row`) in Markdown; figures in percent."""
    parts = []
    for table, title in TITLES.items():
        rows = [r for r in results if r["table"] == table]
        if not rows:
            continue
        columns = [c for c in _COLUMNS[table] if any(c in r["figures"] for r in rows)]
        lines = [f"**{title}**", "", f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
        for r in rows:
            values = [r["figures"].get(c) for c in columns]
            cells = [f"{v:.2f}" if isinstance(v, (int, float)) and np.isfinite(v) else "-" for v in values]
            lines.append(f"| {r['label']} | {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"
