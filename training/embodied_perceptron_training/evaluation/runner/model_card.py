"""The model card of shipped weights: one page made from evaluations and the training record; only the limits are
hand-written."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from embodied_perceptron.recordings.files import read_object
from embodied_perceptron.weights.checkpoint import Checkpoint, load_checkpoint, state_digest, without_folders
from embodied_perceptron_training.evaluation.runner.options import TASKS
from embodied_perceptron_training.evaluation.runner.parallel import EvaluationError
from embodied_perceptron_training.evaluation.runner.results import Record, read_record
from embodied_perceptron_training.reports import markdown_table

# figure -> its row; with several tasks in one evaluation a figure may stand below its task
_ROWS: Mapping[str, str] = {
    "AP25": "AP25, all categories",
    "AP50": "AP50, all categories",
    "AR25": "AR25, all categories",
    "AP25_furniture": "AP25, largest side at least 0.5 m",
    "AP25_small": "AP25, largest side below 0.5 m",
    "last/AP25": "AP25 after the last view",
    "mIoU": "mIoU of occupancy",
    "top1_acc25": "sentences, top-1 Acc@.25",
    "negatives/not_found": "sentences about nothing, NOT_FOUND",
}
LIMITS = (
    "Trained on simulated homes alone: expect less in rooms that exist, and judge on your own.",
    "Indoor rooms of homes; no offices, shops, streets, people or animals.",
    "Things smaller than 0.1 m are mostly missed: input sites are 0.04 m wide.",
    "Boxes do not tell which side is the front; tilted things are rare in training.",
    "Sentences in English.",
    "Not for decisions that can hurt somebody.",
)


def model_card(weights: Path, results: Sequence[Path], training: Sequence[Path] = ()) -> str:
    """The card in Markdown.

    Args:
        weights: the file.
        results: folders of ``embodied-perceptron evaluate``, or records of ``embodied-perceptron dev results``; each
            must have evaluated these tensors.
        training: ``run.json`` of the training, first stage first; or one file that lists ``stages`` with their ``task``
            and ``commands``, which the card counts and names.

    Raises :class:`EvaluationError` when an evaluation is of other weights or incomplete, ``CheckpointError`` for an
    invalid weights file, ``RecordingError`` for unreadable JSON.
    """
    checkpoint = load_checkpoint(weights)
    tensors = state_digest(checkpoint.state)
    records = [read_record(path) for path in results]
    for path, record in zip(results, records, strict=True):
        if record.weights != tensors:
            raise EvaluationError(f"{path} is no evaluation of {weights}: its weights hold other tensors")
    parts = [_head(weights, checkpoint), *([_figures(records)] if records else []), _training(training)]
    parts += [f"## Classes\n\n{', '.join(checkpoint.classes)}.{_cells(checkpoint)}"]
    parts += ["## Limits\n\n" + "\n".join(f"- {line}" for line in LIMITS)]
    return "\n\n".join(parts) + "\n"


def _head(weights: Path, checkpoint: Checkpoint) -> str:
    config = checkpoint.config
    heads = [name for name in ("detection", "occupancy", "grounding") if config.get(name) is not None]
    count = sum(v.numel() for v in checkpoint.state.values() if v.is_floating_point())
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    return "\n".join(
        [
            f"# {weights.stem}",
            "",
            f"Preset `{config.get('name')}`, modality `{config.get('modality')}`, heads: {', '.join(heads)}. {count:,} "
            f"parameters, {weights.stat().st_size / 2**20:.1f} MiB, SHA-256 `{digest}`. License: that of the "
            f"repository.{_image_encoder(checkpoint)}",
        ]
    )


def _image_encoder(checkpoint: Checkpoint) -> str:
    """Origin of the 2-D encoder, where the training record has it."""
    request = checkpoint.extra.get("request", {})
    images = request.get("options", {}).get("images", "") if isinstance(request, dict) else ""
    if images == "imagenet":
        return " The 2-D encoder has ImageNet weights (see THIRD_PARTY_NOTICES.md)."
    return " The 2-D encoder was trained from random weights by `train --task images`." if images else ""


def _training(training: Sequence[Path]) -> str:
    if not training:
        return "## Training\n\nNo record of the training was given."
    lines = ["## Training", ""]
    for path in training:
        run = read_object(path)
        lines += _stages(path, run["stages"]) if "stages" in run else _run(run)
    return "\n".join(lines).rstrip()


def _stages(path: Path, stages: Sequence[Mapping[str, Any]]) -> list[str]:
    counts = ", ".join(f"{task} ({count})" for task, count in Counter(str(s["task"]) for s in stages).items())
    return [f"{len(stages)} stages: {counts}. Their commands, in order, stand in `{path.name}`.", ""]


def _run(run: Mapping[str, Any]) -> list[str]:
    request, settings, versions = (run.get(name, {}) for name in ("request", "settings", "versions"))
    return [
        f"**{request.get('task', '?')}**, seed {request.get('seed', '?')}, commit {versions.get('commit', '?')}, torch "
        f"{versions.get('torch', '?')}:",
        "",
        f"    {without_folders(str(run.get('command', '?')))}",
        *(f"    {without_folders(str(again.get('command', '?')))}" for again in run.get("resumed", ())),
        "",
        f"Batch {settings.get('batch', '?')} x {settings.get('accumulate', 1)} in {run.get('processes', 1)} "
        f"process(es), learning rate {settings.get('learning_rate', '?')} ({settings.get('schedule', '?')}), "
        f"{settings.get('device', '?')}.",
        *(f"Data: {line}" for line in _data(request)),
        "",
    ]


def _data(request: Mapping[str, Any]) -> list[str]:
    """Data sets of a training, with the seeds of homes whose folder still exists."""
    lines = []
    for key in ("data", "val"):
        folder = request.get(key)
        if not folder:
            continue
        overview = Path(folder) / "homes.json"
        if not overview.is_file():
            lines.append(f"{key}: {Path(folder).name}")
            continue
        homes = read_object(overview)
        spec = homes.get("spec", {})
        for split, listed in homes.get("splits", {}).items():
            seeds = sorted(int(seed) for seed in listed)
            described = f"{spec.get('views')} views of {spec.get('width')}x{spec.get('height')}"
            if seeds:
                lines.append(
                    f"{key}: {len(seeds)} synthetic homes, seeds {seeds[0]} to {seeds[-1]} ({split}), {described}, "
                    f"generator version {homes.get('generator_version')}"
                )
    return lines


def _cells(checkpoint: Checkpoint) -> str:
    cells = checkpoint.extra.get("occupancy_classes")
    return f" Cells have {len(cells)} classes." if isinstance(cells, list) else ""


def _figures(records: Sequence[Record]) -> str:
    """A table with a column for each evaluation, and their descriptions."""
    found = [{name: _figure(record.figures, key) for key, name in _ROWS.items()} for record in records]
    letters = [chr(ord("A") + place) for place in range(len(records))]
    rows = [
        (name, *("" if row[name] is None else f"{row[name]:.1f}" for row in found))
        for name in _ROWS.values()
        if any(row[name] is not None for row in found)
    ]
    lines = ["## Figures", "", *markdown_table(("%", *letters), rows), ""]
    for letter, record in zip(letters, records, strict=True):
        lines += [f"{letter}: {record.data}; `{record.command}`. {' '.join(record.notes)}".rstrip(), ""]
    return "\n".join(lines).rstrip()


def _figure(figures: Mapping[str, float], key: str) -> float | None:
    return next((figures[full] for full in (key, *(f"{task}/{key}" for task in TASKS)) if full in figures), None)
