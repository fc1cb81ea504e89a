"""The model card of shipped weights, written from what was run: nothing in it is typed by hand but the limits.

model_card(weights, results, training)   weights file, folders of evaluations, run.json files of the training
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from embodied_perceptron.weights.checkpoint import Checkpoint, load_checkpoint, state_digest
from embodied_perceptron.weights.shipping import without_folders
from embodied_perceptron_training.evaluation.runner.parallel import EvaluationError
from embodied_perceptron_training.evaluation.runner.report import METRICS, RUN

# what is asked of the shipped weights, percent on test homes, by version of their generator
TARGETS: Mapping[int, Mapping[str, float]] = {
    1: {
        "AP25_furniture": 55.0,
        "AP50_furniture": 30.0,
        "AP25": 40.0,
        "AR25": 70.0,
        "mIoU": 30.0,
        "top1_acc25": 50.0,
        "top1_acc25/hard": 35.0,
        "neural/top1_acc25": 40.0,
    },
    2: {
        "AP25": 38.0,
        "AP50": 20.0,
        "AP25_furniture_seen": 55.0,
        "AP25_seen": 40.0,
        "AP25_furniture_unseen": 45.0,
        "AP25_unseen": 33.0,
        "mIoU": 28.0,
        "top1_acc25": 45.0,
    },
}
_ROWS: Mapping[str, str] = {
    "AP25": "AP25, all categories",
    "AP50": "AP50, all categories",
    "AR25": "AR25, all categories",
    "AR50": "AR50, all categories",
    "AP25_furniture": "AP25, largest side at least 0.5 m",
    "AP50_furniture": "AP50, largest side at least 0.5 m",
    "AP25_head": "AP25, head classes",
    "AP25_common": "AP25, common classes",
    "AP25_tail": "AP25, tail classes",
    "AP25_furniture_seen": "AP25, largest side at least 0.5 m, families that training shows",
    "AP25_seen": "AP25, families that training shows",
    "AP25_furniture_unseen": "AP25, largest side at least 0.5 m, families that training never shows",
    "AP25_unseen": "AP25, families that training never shows",
    "AP25_small": "AP25, small (< 0.5 m)",
    "AP25_medium": "AP25, medium (0.5 to 1 m)",
    "AP25_large": "AP25, large (> 1 m)",
    "last/AP25": "AP25 after the last view",
    "mIoU": "mIoU, with occupied against free as one class",
    "mIoU_classes": "mIoU of the classes alone",
    "IoU/empty": "IoU, occupied against free",
    "top1_acc25": "top-1 Acc@.25, as deployed",
    "top1_acc25/easy": "top-1 Acc@.25, easy",
    "top1_acc25/hard": "top-1 Acc@.25, hard (more than 3 distractors)",
    "top1_acc25/view_dependent": "top-1 Acc@.25, view dependent",
    "top1_acc25/view_independent": "top-1 Acc@.25, view independent",
    "top1_acc50": "top-1 Acc@.5, as deployed",
    "neural/top1_acc25": "top-1 Acc@.25, decoder alone",
    "neural/top1_acc25/hard": "top-1 Acc@.25, decoder alone, hard",
    "neural/top10_acc25": "top-10 Acc@.25, decoder alone (the released code's 'AP')",
    "relations/top1_acc25": "top-1 Acc@.25, categories and relations alone",
    "relations/top1_acc25/hard": "top-1 Acc@.25, categories and relations alone, hard",
    "negatives/not_found": "sentences about what is not there answered NOT_FOUND",
    "objects/AP25": "AP25 of the objects in the map",
    "objects/AR25": "AR25 of the objects in the map",
}
LIMITS = (
    "Trained on synthetic homes alone. On real rooms expect less: see the figures on real frames in the repository, "
    "and judge on your own before you rely on it.",
    "Indoor rooms of homes; nothing was trained on offices, shops, streets, people or animals.",
    "Objects smaller than about 0.1 m are mostly missed: input sites are 0.04 m wide.",
    "Boxes are upright in training but for few tilted objects; a box does not tell which of its sides is the front.",
    "Sentences in English.",
    "Scores are no probabilities unless the file carries a calibration.",
    "Not for decisions that can hurt somebody.",
)


def model_card(
    weights: Path, results: Sequence[Path], training: Sequence[Path] = (), limits: Sequence[str] = LIMITS
) -> str:
    """Markdown.

    Args:
        weights: the file.
        results: folders of ``embodied-perceptron evaluate``; each must have evaluated these very tensors.
        training: ``run.json`` of the training, first stage first.
        limits: what a user has to know.

    Raises :class:`EvaluationError` when a folder evaluated other weights or is incomplete, ``CheckpointError`` for a
    file that is none, ``OSError`` for what cannot be read.
    """
    checkpoint = load_checkpoint(weights)
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    tensors = state_digest(checkpoint.state)
    parts = [_head(weights, checkpoint, digest), _training(training), _classes(checkpoint)]
    for folder in results:
        run, figures = _read(folder / RUN), _read(folder / METRICS)
        if run.get("weights", {}).get("tensors") != tensors:
            raise EvaluationError(f"{folder} is no evaluation of {weights}: its weights hold other tensors")
        parts.append(_figures(run, figures))
    parts.append("## Limits\n\n" + "\n".join(f"- {line}" for line in limits))
    return "\n\n".join(parts) + "\n"


def _head(weights: Path, checkpoint: Checkpoint, digest: str) -> str:
    config = checkpoint.config
    heads = [name for name in ("detection", "occupancy", "grounding") if config.get(name) is not None]
    count = sum(v.numel() for v in checkpoint.state.values() if v.is_floating_point())
    lines = [
        f"# {weights.stem}",
        "",
        f"Preset `{config.get('name')}`, modality `{config.get('modality')}`, heads: {', '.join(heads)}.",
        f"{count:,} parameters, {weights.stat().st_size / 2**20:.1f} MiB, SHA-256 `{digest}`.",
        f"License: that of the repository.{_image_encoder(checkpoint)}",
    ]
    return "\n".join(lines)


def _image_encoder(checkpoint: Checkpoint) -> str:
    """Where the 2-D encoder comes from, as far as the training says."""
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
        run = _read(path)
        request, settings = run.get("request", {}), run.get("settings", {})
        lines += [
            f"**{request.get('task', '?')}**, seed {request.get('seed', '?')}, commit "
            f"{run.get('versions', {}).get('commit', '?')}, torch {run.get('versions', {}).get('torch', '?')}:",
            "",
            f"    {without_folders(str(run.get('command', '?')))}",
            *(f"    {without_folders(str(again.get('command', '?')))}" for again in run.get("resumed", ())),
            "",
            f"Batch {settings.get('batch', '?')} x {settings.get('accumulate', 1)} in "
            f"{run.get('processes', 1)} process(es), learning rate "
            f"{settings.get('learning_rate', '?')} ({settings.get('schedule', '?')}), {settings.get('device', '?')}.",
        ]
        lines += [f"Data: {line}" for line in _data(request)] + [""]
    return "\n".join(lines).rstrip()


def _data(request: Mapping[str, Any]) -> list[str]:
    """Seeds of the homes, where the folder is still there."""
    lines = []
    for key in ("data", "val"):
        folder = request.get(key)
        if not folder:
            continue
        overview = Path(folder) / "homes.json"
        if not overview.is_file():
            lines.append(f"{key}: {Path(folder).name}")
            continue
        homes = _read(overview)
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


def _classes(checkpoint: Checkpoint) -> str:
    names = ", ".join(checkpoint.classes)
    text = f"## Classes\n\n{len(checkpoint.classes)} of detection: {names}."
    cells = checkpoint.extra.get("occupancy_classes")
    return text + (f"\n\n{len(cells)} of occupancy: {', '.join(cells)}." if isinstance(cells, list) else "")


def _figures(run: Mapping[str, Any], figures: Mapping[str, float]) -> str:
    unknown = run.get("true_classes_unknown_to_the_network", [])
    turned = "" if run.get("turn_seed") is None else ", every scene turned and moved at random"
    lines = [
        f"## {', '.join(run['tasks'])}{turned}",
        "",
        f"    {without_folders(str(run.get('command', '?')))}",
        "",
        f"{run['scenes']} {_what(run)} ({run['split']}: {run['first_scene']} to {run['last_scene']}), {run['views']} "
        f"views each, {run['seconds']} s.",
    ]
    if unknown:
        lines.append(f"True classes that the network does not know count as missed: {', '.join(unknown)}.")
    outside = run.get("classes_that_the_benchmark_lacks", {})
    if outside:
        names = ", ".join(outside)
        lines.append(f"Classes of the network that the benchmark lacks are left out of the figures: {names}.")
    targets = {} if turned else TARGETS.get(_version(run, figures) or 0, {})
    lines += ["", "| figure | % | target |", "|---|---:|---:|"]
    for key, name in _ROWS.items():
        for full in (key, *(f"{task}/{key}" for task in run["tasks"])):
            if full in figures:
                target = f"{targets[key]:g}" if key in targets else ""
                lines.append(f"| {name} | {figures[full]:.1f} | {target} |")
    for full in sorted(key for key in figures if "AP25/sensor " in key):
        lines.append(f"| AP25, {full.split('/')[-1]} | {figures[full]:.1f} | |")
    return "\n".join(lines)


def _what(run: Mapping[str, Any]) -> str:
    """What the scenes are, where the run tells."""
    version = run.get("generator_version")
    return "scenes" if version is None else f"homes of version {version}"


def _version(run: Mapping[str, Any], figures: Mapping[str, float]) -> int | None:
    """Version of the generator of the scenes; None for scenes that are no such homes.

    Runs did not always tell. Those of homes tell the sensors from version 2 on.
    """
    if "generator_version" in run:
        found = run["generator_version"]
        return found if isinstance(found, int) else None
    return 2 if any("/sensor " in key for key in figures) else 1


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise EvaluationError(f"{path} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise EvaluationError(f"{path} must hold an object, got {type(data).__name__}")
    return data
