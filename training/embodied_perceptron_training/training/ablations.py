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
from typing import Any

import numpy as np
import torch

from embodied_perceptron.inference.loading import load_network
from embodied_perceptron.nn.network import PerceptionNetwork
from embodied_perceptron.nn.official import CORRECTED
from embodied_perceptron.nn.presets import TASKS, Modality, Variant
from embodied_perceptron.recordings.files import write_atomically, write_json
from embodied_perceptron.weights.categories import DETECTION_CLASSES
from embodied_perceptron_training.datasets.embodiedscan import EmbodiedScanDataset
from embodied_perceptron_training.evaluation.metrics.detection import FREQUENCY_GROUPS
from embodied_perceptron_training.reports import markdown_table
from embodied_perceptron_training.training.run_folder import RunFolder
from embodied_perceptron_training.training.tasks import SceneTask, build_task, task_config, train_run
from embodied_perceptron_training.training.trainer import MINUTES
from embodied_perceptron_training.training.training_run import BoxLoss, TrainingRun

_BOXES = ("AP25", "AR25", "AP50", "AR50")
_DETECTION = (*_BOXES, *(f"{figure}_{group}" for group in FREQUENCY_GROUPS for figure in ("AP25", "AR25")))
_GROUPED = ("AP25", "AP50", *(f"AP25_{group}" for group in FREQUENCY_GROUPS))
_ALL = ("AP25", "AP25_furniture", "AP50", "AR25", "AR50", "mIoU", "top1_acc25")


@dataclass(frozen=True)
class Table:
    """A table of results."""

    title: str
    columns: tuple[str, ...]
    not_reproduced: tuple[str, ...] = ()  # rows of the paper that have no row here


TABLES: Mapping[str, Table] = {
    "detection": Table("Continuous 3D object detection (paper, Table 2)", _DETECTION),
    "detectors": Table("Multi-view 3D object detection (paper, Table 2)", _DETECTION),
    "occupancy": Table("Continuous occupancy prediction (paper, Table 3)", ("mIoU",)),
    "multi-view-occupancy": Table(
        "Multi-view occupancy prediction (paper, Table 3)", ("mIoU",), ("OccNet", "SurroundOcc")
    ),
    "monocular": Table("Monocular 3D object detection (paper, Table 4)", _BOXES, ("FCOS3D", "ImVoteNet")),
    "matchers": Table(
        "Visual grounding, over the same detector (paper, Table 5)",
        ("top1_acc25", "top1_acc50", "top10_acc25", "ranked_AP25"),
        ("L3Det",),
    ),
    "training-views": Table("Views per sample of the training (paper, Figure 7c)", _DETECTION),
    "fusion": Table("Dense fusion (paper, Table 12)", ("mIoU",)),
    "loss": Table("Sparse decoder (paper, Table 13)", _GROUPED),
    "sources": Table("Training data (paper, Tables 8 and 14)", _GROUPED),
    "tasks": Table("One network for all tasks, and one for each", _ALL),
    "views": Table("Views per scene, the same weights (paper, Figures 7a and 7b)", _ALL),
    "occlusion": Table("Occlusion test when voxels read images, the same weights", _ALL),
}


@dataclass(frozen=True)
class Row:
    """One line of a table."""

    name: str  # unique, and a folder's name
    table: str  # where it is shown
    label: str  # printed text: the paper's name
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
        return "trained/" + "-".join((self.task, self.modality, self.variant, self.box_loss, *own)).replace(",", "+")


_VIEWS = (1, 2, 5, 10, 20, 50)
# all views are scored, however few a sample of the training shows
_TRAINED_VIEWS = (("random_views", "on"), ("val_views", str(_VIEWS[-1])))
_OWN_LOSS = (("w_iou", "0.0"),)  # the design alone, without the IoU loss that tiny and base add
_INPUTS: Mapping[Modality, str] = {"rgb": "Camera-Only", "depth": "Depth-Only", "rgbd": "Multi-Modality"}
_DETECTORS: tuple[tuple[str, str, Modality, Variant, BoxLoss], ...] = (
    ("imvoxelnet", "ImVoxelNet", "rgb", "imvoxelnet", "iou-cosines"),
    ("votenet", "VoteNet", "depth", "votenet", "l1-cosines"),
    ("fcaf3d", "FCAF3D", "depth", "fcaf3d", "iou-cosines"),
    ("decoder", "+our decoder", "depth", "ours", "decoupled"),
    ("painting", "+painting", "painting", "ours", "decoupled"),
    ("ours", "Ours", "rgbd", "ours", "decoupled"),
)
_FUSIONS: tuple[tuple[str, str, Modality, Variant], ...] = (
    ("painting", "Painting", "painting", "ours"),
    ("minkunet", "MinkUNet", "rgbd", "minkunet"),
    ("no-fpn", "MinkResNet (w/o FPN)", "rgbd", "no-fpn"),
    ("ours", "MinkResNet (Ours)", "rgbd", "ours"),
)
_LOSSES: tuple[tuple[BoxLoss, str], ...] = (
    ("plain", "w/o Decouple"),
    ("sum", "Decouple (sum.)"),
    ("average", "Decouple (avg.)"),
    ("average-by-size", "+Norm by 3D Size"),
    ("decoupled", "Decouple (weigh.)"),
    ("iou-7dof", "7-DoF IoU Loss"),
    ("decoupled-iou-7dof", "+ Corner Loss"),
)
_SOURCES = (("ScanNet", "scannet"), ("+3RScan", "scannet,3rscan"), ("+Matterport3D", "scannet,3rscan,matterport3d"))
_MATCHERS: tuple[tuple[Variant, str], ...] = (("scanrefer", "ScanRefer"), ("butd-detr", "BUTD-DETR"), ("ours", "Ours"))
_TASKS = {
    "detection": "detection alone",
    "occupancy": "occupancy alone",
    "grounding": "grounding (and its detector)",
    "multi": "all heads in one network (paper: without occupancy)",
}
ROWS: tuple[Row, ...] = (
    *(
        Row(f"{table}-{modality}", table, label, task, modality)
        for table, task in (
            ("detection", "continuous-detection"),
            ("occupancy", "continuous-occupancy"),
            ("multi-view-occupancy", "occupancy"),
        )
        for modality, label in _INPUTS.items()
    ),
    *(
        Row(f"{table}-{n}", table, label, task, inputs, network, loss, () if loss == "decoupled" else _OWN_LOSS)
        for table, task in (("detectors", "detection"), ("monocular", "monocular-detection"))
        for n, label, inputs, network, loss in _DETECTORS
    ),
    *(Row(f"matchers-{v}", "matchers", label, "grounding", variant=v) for v, label in _MATCHERS),
    *(
        Row(f"training-views-{n}", "training-views", str(n), views=n, options=_TRAINED_VIEWS)
        for n in (1, 5, 10, 20, 40)
    ),
    *(Row(f"fusion-{n}", "fusion", label, "occupancy", inputs, network) for n, label, inputs, network in _FUSIONS),
    *(Row(f"loss-{loss}", "loss", label, box_loss=loss, options=_OWN_LOSS) for loss, label in _LOSSES),
    *(
        Row(f"sources-{n}-{val or 'all'}", "sources", f"{label}; {val_label}", options=options)
        for val, val_label in (("scannet", "ScanNet"), ("", "EmbodiedScan"))
        for n, (label, train) in enumerate(_SOURCES, 1)
        for options in [(("sources", train), *([("val_sources", val)] if val else []))]
    ),
    *(Row(f"tasks-{task}", "tasks", label, task) for task, label in _TASKS.items()),
    *(Row(f"views-{n}", "views", str(n), scored=True, views=n, truth_views=_VIEWS[-1]) for n in _VIEWS),
    *(Row(f"occlusion-{n}", "occlusion", n, scored=True, occlusion=n == "with") for n in ("without", "with")),
)


def chosen_rows(names: Sequence[str], preset: str = "tiny") -> tuple[Row, ...]:
    """Rows by their names or their tables' names, in the tables' order; ``all`` = every row of the preset: ``paper``
    grounds among voxels and has no ``matchers``, the others have no image pyramid and no ``fusion``.

    Raises ``ValueError`` naming unknown names.
    """
    unknown = sorted(set(names) - {r.name for r in ROWS} - set(TABLES) - {"all"})
    if unknown:
        raise ValueError(f"unknown rows {', '.join(unknown)}; tables: {', '.join(TABLES)}; or rows by name")
    wanted, absent = set(names), "matchers" if preset == "paper" else "fusion"
    return tuple(r for r in ROWS if {r.name, r.table} & wanted or ("all" in wanted and r.table != absent))


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
        kind = dataclasses.astuple(dataclasses.replace(row, name="", table="", label=""))
        return dict(json.loads(json.dumps({"row": kind, **used})))  # the types of a stored one


def planned(rows: Sequence[Row], budget: Budget) -> str:
    """One line per row, in their tables: the paper's name and what would be trained or scored; then the paper's rows
    without one. Raises ``ValueError`` for settings that do not fit a row."""
    lines = []
    for name in dict.fromkeys(row.table for row in rows):
        lines.append(TABLES[name].title)
        for row in (r for r in rows if r.table == name):
            if row.scored:
                lines.append(f"  {row.label}: scores given weights with {row.views or 'the usual'} views")
                continue
            run = _trained_run(row, budget)
            task_config(run, len(DETECTION_CLASSES))
            length = f"{run.schedule.steps} steps" if run.schedule.steps else f"{run.schedule.epochs:g} epochs"
            set_ = "".join(f", {key}={value}" for key, value in row.options)
            kind = f"{row.task}, {row.modality}, network {row.variant}, box loss {row.box_loss}{set_}"
            lines.append(f"  {row.label}: trains {kind}; {length} -> {row.folder()}")
        lines += [f"  {label}: not reproduced" for label in TABLES[name].not_reproduced]
    return "\n".join(lines)


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
        write_json(out / "ablations.json", results, indent=2)
        write_atomically(out / "ablations.md", markdown(results).encode())
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
    write_json(folder / "asked.json", identity, indent=2)
    if not path.exists():
        result = _scored(row, budget) if row.scored else _trained(row, budget, folder, quiet)
        if result is None:
            return None
        write_json(path, {"asked": identity, **result}, indent=2)
    return _named(row, json.loads(path.read_text(encoding="utf-8")))


def _run(row: Row, budget: Budget, options: Mapping[str, str], **values: Any) -> TrainingRun:
    kind = {k: getattr(row, k) for k in ("task", "modality", "variant", "box_loss", "views", "truth_views")}
    data = {k: getattr(budget, k) for k in ("preset", "data", "val", "seed")}
    return TrainingRun.of(options, **kind, **data, **values)


def _trained_run(row: Row, budget: Budget) -> TrainingRun:
    options = {k: v for k, v in budget.options.items() if row.modality != "depth" or k not in ("images", "pretrained")}
    settings = {"validations": 1, "validate_first": False, **budget.settings}
    length = {"steps": budget.steps} if budget.steps else {}
    return _run(row, budget, options | dict(row.options), **settings, **length, minutes=budget.minutes)


def _trained(row: Row, budget: Budget, folder: Path, quiet: bool) -> dict[str, Any] | None:
    run = _trained_run(row, budget)
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
    config = load_network(budget.weights)[0].config
    heads = [head for head in TASKS if getattr(config, head) is not None]
    row = dataclasses.replace(row, task=heads[0] if len(heads) == 1 else "multi", modality=config.modality)
    # features have to come from the weights' own image encoder
    own = {"images": str(budget.weights)} if config.uses_images else {}
    options = {"classes": "weights", **budget.options, **own}
    run = _run(row, dataclasses.replace(budget, preset=config.name), options, weights=budget.weights)
    task = build_task(run)
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
    for name, table in TABLES.items():
        rows = [r for r in results if r["table"] == name]
        if not rows:
            continue
        columns = [c for c in table.columns if any(c in r["figures"] for r in rows)]
        shown = []
        for r in rows:
            values = [r["figures"].get(c) for c in columns]
            cells = [f"{v:.2f}" if isinstance(v, (int, float)) and np.isfinite(v) else "-" for v in values]
            shown.append((r["label"], *cells))
        parts.append("\n".join([f"**{table.title}**", "", *markdown_table(("", *columns), shown)]))
    return "\n\n".join(parts) + "\n"
