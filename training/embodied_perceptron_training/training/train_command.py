"""``embodied-perceptron train ...`` and ``embodied-perceptron dev ablate ...``."""

from __future__ import annotations

import inspect
import json
import os
import shlex
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from embodied_perceptron.apps.command_line import (
    CommandError,
    TaskProgress,
    add_dev_command,
    in_folder,
    out_folder,
    user_errors,
)
from embodied_perceptron_training.training.few_shot_command import learn

EXIT_STOPPED = 75  # EX_TEMPFAIL of sysexits.h
_TASKS = (
    "Task: detection, continuous-detection, monocular-detection, occupancy, continuous-occupancy, grounding, multi "
    "(all three heads), images (the 2-D side alone), or boxes (the refinement head over what --weights finds)."
)
_FOLDER: dict[str, Any] = {"file_okay": False}
# Name, type and default of each option of ``train``; those that are fields of a TrainingRun keep None where the task
# and preset have a default of their own.
_OPTIONS: tuple[tuple[str, Any, Any, dict[str, Any]], ...] = (
    ("task", str, "", {"help": _TASKS}),
    (
        "data",
        Path | None,
        None,
        {**_FOLDER, "exists": True, "help": "Data set in EmbodiedScan's layout: its training split."},
    ),
    ("out", Path | None, None, {"help": "Folder to write: the run."}),
    ("preset", str, "tiny", {"help": "tiny, base or paper."}),
    ("val", Path | None, None, {**_FOLDER, "exists": True, "help": "Data set to check on: its validation split."}),
    ("steps", int, 0, {"min": 0, "help": "Length: optimiser steps."}),
    ("epochs", float, 0.0, {"min": 0, "help": "Length: passes over the data. Default: the preset's."}),
    ("minutes", float | None, None, {"min": 0, "help": "Wall clock until it stops, to be resumed; 0 = it does not."}),
    ("batch", int | None, None, {"min": 1, "help": "Samples per process and forward pass."}),
    ("accumulate", int | None, None, {"min": 1, "help": "Forward passes per step."}),
    ("learning_rate", float | None, None, {"help": "Of AdamW."}),
    ("weight_decay", float | None, None, {"help": "Of AdamW."}),
    ("schedule", str | None, None, {"help": "cosine, step or constant."}),
    ("warmup_steps", int | None, None, {"min": 0, "help": "Of the learning rate."}),
    ("rate_scale", list[str] | None, None, {"help": "prefix=factor: of the rate of parameters so named."}),
    ("clip", float | None, None, {"min": 0, "help": "Largest norm of the gradient; 0 = any."}),
    ("ema_decay", float | None, None, {"help": "Of the averaged weights; 0 = none."}),
    ("precision", str | None, None, {"help": "float32, auto, bfloat16 or float16."}),
    ("freeze_norms", bool | None, None, {"help": "Batch norms keep their statistics."}),
    ("seed", int, 0, {"min": 0, "help": "Seed: of weights, order, augmentation."}),
    ("workers", int | None, None, {"min": 0, "help": "Processes: that load data."}),
    ("validations", int | None, None, {"min": 0, "help": "Over the whole training."}),
    ("device", str | None, None, {"help": "Device: cpu, cuda, cuda:N, or auto = cuda where there is one."}),
    ("modality", str, "rgbd", {"help": "rgbd, depth, rgb or painting."}),
    ("variant", str, "ours", {"help": "ours, or one that the paper compares with."}),
    ("box_loss", str, "decoupled", {"help": "Design of the box loss: decoupled, or one that the paper compares with."}),
    ("views", int, 0, {"min": 0, "help": "Views of a scene: of a sample; 0 = the preset's."}),
    (
        "weights",
        Path | None,
        None,
        {"help": "Network: a shipped name, a weights file (start from it; or, for --task boxes, train what it finds)."},
    ),
    ("set_", list[str] | None, None, {"flag": "--set", "help": "name=value: an option of the task; repeatable."}),
    ("resume", Path | None, None, {**_FOLDER, "help": "Continue the run in this folder."}),
    (
        "print_run",
        bool,
        False,
        {"flag": "--print-run", "help": "Print the settings of the training as JSON, without training."},
    ),
    ("quiet", bool, False, {"help": "No progress."}),
)
# a resumed run may change its length and settings without influence on its figures
_RESUMED = ("steps", "epochs", "minutes", "workers", "device", "validations")
_SETTINGS = tuple(
    name
    for name, _, default, _ in _OPTIONS
    if default is None and name not in ("data", "out", "val", "weights", "set_", "resume", "rate_scale")
)


def _with_options(command: Any) -> Any:
    """The signature that typer reads, of :data:`_OPTIONS`."""
    parameters = []
    for name, kind, default, options in _OPTIONS:
        flags = [options["flag"]] if "flag" in options else []
        declare = out_folder if name == "out" else typer.Option
        option = Annotated[kind, declare(*flags, **{k: v for k, v in options.items() if k != "flag"})]
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=option))
    command.__signature__ = inspect.Signature(parameters)
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def _loading(quiet: bool) -> AbstractContextManager[object]:
    """Progress of loading, shown by the first of several processes."""
    silent = quiet or os.environ.get("RANK", "0") != "0"
    return nullcontext() if silent else TaskProgress("loading the library")


@_with_options
def train(**given: Any) -> None:
    """Train a network. SIGTERM or --minutes stop it (exit code 75); --resume continues it with identical results.

    Several processes: torchrun --nproc-per-node N -m embodied_perceptron.apps.cli train ...
    """
    folder, resume, quiet = given.pop("out"), given.pop("resume"), given.pop("quiet")
    print_run = given.pop("print_run")
    needed = {"--task": given["task"], "--data": given["data"], "--out": folder}
    missing = [name for name, value in needed.items() if not value]
    if resume is None and missing and not print_run:
        raise CommandError(f"{', '.join(missing)} must be given (or --resume)")
    if resume is not None and not (resume / "run.json").is_file():
        raise CommandError(f"{resume} holds no run: run.json is missing")
    with _loading(quiet or print_run):
        from embodied_perceptron_training.training.tasks import train_run
    with user_errors():
        if print_run:
            typer.echo(_described(resume, given))
            return
        run = _run_of(given) if resume is None else _stored_run(resume, given)
        folder = folder if resume is None else resume
        outcome = train_run(run, folder, resume is not None, quiet)
    if not outcome.finished:
        typer.echo(f"stopped ({outcome.stopped}); {shlex.quote(str(folder / 'resume.sh'))} continues the training")
        raise typer.Exit(EXIT_STOPPED)
    best = "" if outcome.best is None else f", best figure {outcome.best:.2f} ({folder / 'best.safetensors'})"
    speed = f"{outcome.samples_per_s:.2f} samples/s, {100 * outcome.waiting:.1f} % of the time waiting for data"
    typer.echo(f"finished after {outcome.steps} steps{best}; {speed}; last weights: {folder / 'last.safetensors'}")


def _described(resume: Path | None, given: Mapping[str, Any]) -> str:
    """JSON of the run of the options, or of the one in the folder ``resume``. Raises ``ValueError``."""
    from embodied_perceptron_training.training.description import describe

    if resume is None and not given["task"]:
        raise ValueError("--task must be given (or --resume)")
    run = _run_of(given) if resume is None else _stored_run(resume, given)
    return json.dumps(describe(run), indent=2)


def _run_of(given: Mapping[str, Any]) -> Any:
    from embodied_perceptron.weights import weights_file
    from embodied_perceptron_training.training.training_run import LENGTHS, TrainingRun

    chosen = {k: v for k, v in given.items() if v is not None and k != "set_" and (v or k not in LENGTHS)}
    scales = tuple((k, _factor(k, v)) for k, v in parse_options(chosen.pop("rate_scale", []), "--rate-scale").items())
    if "weights" in chosen:
        chosen["weights"] = weights_file(str(chosen["weights"]))
    fields = {k: v.resolve() if isinstance(v, Path) else v for k, v in chosen.items()}
    if scales:
        fields["rate_scales"] = scales
    return TrainingRun.of(parse_options(given["set_"] or []), **fields)


def _stored_run(folder: Path, given: Mapping[str, Any]) -> Any:
    """The run in ``folder``, with the settings that a resumed run may change. Raises ``ValueError``."""
    from embodied_perceptron_training.training.training_run import LENGTHS, TrainingRun

    changes = {k: v for k, v in given.items() if (v if k in LENGTHS else v is not None and k in _SETTINGS)}
    path = folder / "run.json"
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        wrong = sorted(set(changes) - set(_RESUMED))
        if wrong:
            raise ValueError(f"a resumed run keeps its settings; {', '.join(wrong)} cannot be changed")
        return TrainingRun.from_json(stored, **changes)
    except (KeyError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from error


def _factor(prefix: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--rate-scale {prefix} must be a number, got {text!r}") from None


def parse_options(pairs: list[str], option: str = "--set") -> dict[str, str]:
    """Parse ``name=value`` texts. Raises ``ValueError``."""
    for pair in pairs:
        if "=" not in pair:
            raise ValueError(f"{option} needs name=value, got {pair!r}")
    return {pair.split("=", 1)[0]: pair.split("=", 1)[1] for pair in pairs}


def ablate(
    data: Annotated[Path | None, in_folder(help="Data set in EmbodiedScan's layout: its training split.")] = None,
    val: Annotated[Path | None, in_folder(help="Data set to check on: the split that scores.")] = None,
    out: Annotated[Path | None, out_folder(help="Folder to write: one below it per row, tables, JSON.")] = None,
    rows: Annotated[
        str,
        typer.Option(
            help="Names of tables (detection, detectors, occupancy, multi-view-occupancy, monocular, matchers, "
            "training-views, fusion, loss, sources, tasks, views, occlusion) or rows."
        ),
    ] = "all",
    dry: Annotated[bool, typer.Option("--dry", help="Print the rows and what each would train, and stop.")] = False,
    minutes_per_row: Annotated[
        float, typer.Option(min=0, help="Wall clock until a training stops, to be resumed by the same command.")
    ] = 0.0,
    steps_per_row: Annotated[int, typer.Option(min=0, help="Of every training; 0 = the preset's length.")] = 0,
    preset: Annotated[str, typer.Option(help="tiny, base or paper.")] = "tiny",
    weights: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Network: a shipped name, a weights file; of the rows that only score."),
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Samples per process and forward pass.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Of AdamW.")] = None,
    ema_decay: Annotated[float | None, typer.Option(help="Of the averaged weights; 0 = none.")] = None,
    workers: Annotated[int | None, typer.Option(min=0, help="Processes: that load data.")] = None,
    device: Annotated[
        str | None, typer.Option(help="Device: cpu, cuda, cuda:N, or auto = cuda where there is one.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed: of weights, order, augmentation.")] = 0,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="name=value: an option of the task; repeatable.")
    ] = None,
    quiet: Annotated[bool, typer.Option(help="No progress.")] = False,
) -> None:
    """The paper's comparisons: every row with the same budget, written as Markdown tables and JSON; resumable.

    Several processes may run with the same --out: each takes rows that no other process has.
    """
    with _loading(quiet):
        from embodied_perceptron.weights import weights_file
        from embodied_perceptron_training.training.ablations import (
            Budget,
            chosen_rows,
            markdown,
            planned,
            run_rows,
            write_tables,
        )

    given = {"batch": batch, "learning_rate": learning_rate, "ema_decay": ema_decay, "workers": workers}
    settings = {k: v for k, v in {**given, "device": device}.items() if v is not None}
    with user_errors():
        if not dry and not (data and val and out):
            raise ValueError("--data, --val and --out must be given (or --dry)")
        budget = Budget(
            data=(data or Path()).resolve(),
            val=(val or Path()).resolve(),
            minutes=minutes_per_row,
            steps=steps_per_row,
            preset=preset,
            seed=seed,
            options=parse_options(set_ or []),
            settings=settings,
            weights=weights and weights_file(str(weights)).resolve(),
        )
        chosen = chosen_rows([name.strip() for name in rows.split(",")], preset)
        if dry or out is None:
            typer.echo(planned(chosen, budget))
            return
        out.mkdir(parents=True, exist_ok=True)
        if not run_rows(chosen, budget, out, quiet, lambda row: typer.echo(f"== {row.table}: {row.label}")):
            typer.echo("stopped; the same command continues")
            raise typer.Exit(EXIT_STOPPED)
    typer.echo(markdown(write_tables(out)))


def register(app: typer.Typer) -> None:
    """Add the sub-commands to ``app``."""
    app.command("train")(train)
    add_dev_command(app, "ablate", ablate, former="ablate")
    app.command("learn")(learn)
