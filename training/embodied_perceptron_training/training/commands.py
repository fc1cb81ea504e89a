"""``embodied-perceptron train ...``."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from embodied_perceptron.apps.errors import CommandError

_TASKS = (
    "detection, continuous-detection, monocular-detection, occupancy, continuous-occupancy, grounding, multi (all "
    "three heads), or images (the 2-D side alone)."
)
EXIT_STOPPED = 75  # as sendmail's EX_TEMPFAIL: nothing is wrong, try again


def train(
    task: Annotated[str, typer.Option(help=_TASKS)] = "",
    data: Annotated[Path | None, typer.Option(file_okay=False, help="Folder of the training split.")] = None,
    out: Annotated[Path | None, typer.Option(file_okay=False, help="Folder of the run.")] = None,
    preset: Annotated[str, typer.Option(help="tiny, base or paper.")] = "tiny",
    val: Annotated[Path | None, typer.Option(file_okay=False, help="Folder of the validation split.")] = None,
    steps: Annotated[int, typer.Option(min=0, help="Optimiser steps.")] = 0,
    epochs: Annotated[float, typer.Option(min=0, help="Passes over the data.")] = 0.0,
    minutes: Annotated[float, typer.Option(min=0, help="Wall clock; the schedule runs over it.")] = 0.0,
    batch: Annotated[int | None, typer.Option(min=1, help="Samples per process and forward pass.")] = None,
    accumulate: Annotated[int | None, typer.Option(min=1, help="Forward passes per step.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Of AdamW.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Of AdamW.")] = None,
    schedule: Annotated[str | None, typer.Option(help="cosine, step or constant.")] = None,
    warmup_steps: Annotated[int | None, typer.Option(min=0, help="Of the learning rate.")] = None,
    clip: Annotated[float | None, typer.Option(min=0, help="Largest norm of the gradient; 0 = any.")] = None,
    ema_decay: Annotated[float | None, typer.Option(help="Of the averaged weights; 0 = none.")] = None,
    precision: Annotated[str | None, typer.Option(help="float32, auto, bfloat16 or float16.")] = None,
    freeze_norms: Annotated[bool | None, typer.Option(help="Batch norms keep their statistics.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, order, augmentation.")] = 0,
    workers: Annotated[int | None, typer.Option(min=0, help="Processes that load data.")] = None,
    validations: Annotated[int | None, typer.Option(min=0, help="Over the whole training.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N.")] = None,
    modality: Annotated[str, typer.Option(help="rgbd, depth, rgb or painting.")] = "rgbd",
    variant: Annotated[str, typer.Option(help="ours, fcaf3d or fcaf3d+decoder.")] = "ours",
    box_loss: Annotated[str, typer.Option(help="decoupled or plain.")] = "decoupled",
    views: Annotated[int, typer.Option(min=0, help="Of a sample; 0 = the preset's.")] = 0,
    weights: Annotated[Path | None, typer.Option(help="Weights to start from.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="name=value: an option of the task.")] = None,
    resume: Annotated[Path | None, typer.Option(file_okay=False, help="Go on with the run in this folder.")] = None,
    quiet: Annotated[bool, typer.Option(help="No progress.")] = False,
) -> None:
    """Train a network. SIGTERM stops it (exit code 75), --resume goes on bit by bit the same.

    Several processes: torchrun --nproc-per-node N -m embodied_perceptron.apps.cli train ...
    """
    chosen = {
        "batch": batch,
        "accumulate": accumulate,
        "learning_rate": learning_rate,
        "weight_decay": weight_decay,
        "schedule": schedule,
        "warmup_steps": warmup_steps,
        "clip": clip,
        "ema_decay": ema_decay,
        "precision": precision,
        "freeze_norms": freeze_norms,
        "workers": workers,
        "validations": validations,
        "device": device,
    }
    chosen = {k: v for k, v in chosen.items() if v is not None}
    length = {k: v for k, v in {"steps": steps, "epochs": epochs, "minutes": minutes}.items() if v}
    try:
        if resume is not None:
            request, values = _stored(resume)
            _only(length | chosen, {"steps", "epochs", "minutes", "workers", "device", "validations"})
            folder = resume
        else:
            missing = [name for name, value in (("--task", task), ("--data", data), ("--out", out)) if not value]
            if missing or data is None or out is None:
                raise ValueError(f"{', '.join(missing)} must be given (or --resume)")
            request = {
                **{"task": task, "preset": preset, "data": data.resolve(), "val": val and val.resolve()},
                **{"seed": seed, "modality": modality, "variant": variant, "box_loss": box_loss, "views": views},
                **{"weights": weights and weights.resolve(), "options": parse_options(set_ or [])},
            }
            values, folder = {}, out
        outcome = start(request, {**values, **chosen}, length, folder, resume is not None, quiet)
    except ValueError as error:
        raise CommandError(str(error)) from error
    if outcome is None:
        typer.echo(f"stopped; nothing is lost: {shlex.quote(str(folder / 'resume.sh'))} goes on")
        raise typer.Exit(EXIT_STOPPED)
    best = "" if outcome.best is None else f", best figure {outcome.best:.2f} ({folder / 'best.safetensors'})"
    speed = f"{outcome.samples_per_s:.2f} samples/s, {100 * outcome.waiting:.1f} % of the time waiting for data"
    typer.echo(f"finished after {outcome.steps} steps{best}; {speed}; last weights: {folder / 'last.safetensors'}")


def start(
    request: Mapping[str, Any],
    chosen: Mapping[str, Any],
    length: Mapping[str, float],
    folder: Path,
    resume: bool = False,
    quiet: bool = False,
) -> Any:
    """What the command does: build the task and train it.

    Args:
        request: fields of :class:`~embodied_perceptron_training.training.task.TaskRequest`.
        chosen: training settings that differ from the preset's defaults.
        length: one of steps, epochs, minutes; empty = the preset's.
        folder: of the run.
        resume: go on with the run in ``folder``.
        quiet: no progress.

    Returns:
        The outcome, or None when it was stopped before its end.
    """
    from embodied_perceptron_training.training.processes import Processes
    from embodied_perceptron_training.training.settings import TrainSettings, default_settings
    from embodied_perceptron_training.training.task import TaskRequest
    from embodied_perceptron_training.training.tasks import build_task
    from embodied_perceptron_training.training.trainer import Trainer

    asked = TaskRequest(**_with_paths(request))
    values = {**({} if resume else default_settings(asked.task, asked.preset)), "seed": asked.seed, **chosen}
    if length:
        values = {**values, "steps": 0, "epochs": 0.0, "minutes": 0.0, **length}
    settings = TrainSettings.from_json(values)
    processes = Processes.start(settings.device)
    try:
        information = {"request": _plain(asked), "processes": processes.world, "command": _command(processes.world)}
        trainer = Trainer(build_task(asked), settings, folder, processes, information, quiet)
        outcome = trainer.run(resume)
        return outcome if outcome.finished else None
    finally:
        processes.stop()


def _command(processes: int) -> str:
    """What was typed, as somebody else would type it."""
    program = ["embodied-perceptron"]
    if processes > 1:
        program = ["torchrun", "--nproc-per-node", str(processes), "-m", "embodied_perceptron.apps.cli"]
    return shlex.join([*program, *sys.argv[1:]])


def _stored(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    path = folder / "run.json"
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return dict(stored["request"]), dict(stored["settings"])
    except FileNotFoundError as error:
        raise ValueError(f"{folder} holds no run: {path.name} is missing") from error
    except (KeyError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from error


def _only(given: Mapping[str, Any], allowed: set[str]) -> None:
    wrong = sorted(set(given) - allowed)
    if wrong:
        raise ValueError(f"a resumed run keeps its settings; {', '.join(wrong)} cannot be changed")


def parse_options(pairs: list[str]) -> dict[str, str]:
    """``name=value`` each. Raises ``ValueError``."""
    for pair in pairs:
        if "=" not in pair:
            raise ValueError(f"--set needs name=value, got {pair!r}")
    return {pair.split("=", 1)[0]: pair.split("=", 1)[1] for pair in pairs}


def _with_paths(request: Mapping[str, Any]) -> dict[str, Any]:
    paths = {k: Path(request[k]) for k in ("data", "val", "weights") if request.get(k) is not None}
    return {**request, **paths}


def _plain(request: Any) -> dict[str, Any]:
    return {k: str(v) if isinstance(v, Path) else v for k, v in dataclasses.asdict(request).items()}
