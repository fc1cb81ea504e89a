"""``embodied-perceptron weights`` and the library's part of ``dev``, registered by entry point.

Heavy imports stand inside of the commands, so that ``--help`` answers at once.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from embodied_perceptron.apps.command_line import (
    EXIT_BAD_INPUT,
    CommandError,
    TaskProgress,
    add_dev_command,
    add_former_name,
    out_file,
)

weights_app = typer.Typer(help="Shipped weights.", no_args_is_help=True)


Preset = Literal["tiny", "base", "paper"]
Task = Literal["all", "detection", "occupancy", "grounding"]  # heads of the network
ReleasedTask = Literal["detection", "continuous-detection", "occupancy", "grounding"]


def register(app: typer.Typer) -> None:
    """Add the sub-commands to ``app``."""
    app.add_typer(weights_app, name="weights")
    add_dev_command(app, "model", model, former="model")
    add_former_name(app, "import-official", "weights convert --from-release", import_official)
    add_dev_command(app, "compile", compile_command, former="compile")
    add_dev_command(app, "bench", bench_command, former="bench")
    add_dev_command(app, "add-weights", add_weights)
    add_former_name(weights_app, "add", "dev add-weights", add_weights, path="weights ")


def model(
    preset: Annotated[Preset, typer.Argument(help="Which network.")],
    task: Annotated[Task, typer.Option(help="Task: which heads.")] = "all",
    classes: Annotated[int, typer.Option("--class-count", "--classes", min=1, help="Detection classes.")] = 284,
) -> None:
    """Print the stages of a network: channels, strides, cells, parameters."""
    from embodied_perceptron.nn.summary import networks_of, stage_rows  # torch loads only when needed

    console = Console()
    for config in networks_of(preset, task, classes):
        rows = stage_rows(config)
        heads = [n for n in ("detection", "occupancy", "grounding") if getattr(config, n) is not None]
        title = f"{config.name}: {', '.join(heads)}; <= {config.max_sites:,} sites of {config.voxel_size_m:g} m"
        table = Table("stage", "channels", "stride", "cell", title=title)
        table.add_column("parameters", justify="right")
        for row in rows:
            shown = f"{row.parameters:,}" if row.parameters else ""
            table.add_row(row.stage, row.channels, row.stride, row.cell, shown)
        total = sum(row.parameters for row in rows)
        table.add_section()
        table.add_row("total", "", "", f"{total * 2 / 2**20:,.1f} MiB in half precision", f"{total:,}")
        console.print(table)


_RELEASE: dict[str, Any] = {"exists": True, "dir_okay": False, "help": "Released checkpoint (.pth)."}
_ReleasedTask = Annotated[ReleasedTask, typer.Option(help="Task: of the checkpoint.")]
_ConvertedFile = Annotated[Path, out_file(help="File to write: weights (.safetensors).")]


def import_official(
    file: Annotated[Path, typer.Argument(**_RELEASE)], task: _ReleasedTask, out: _ConvertedFile
) -> None:
    """The former form of ``weights convert --from-release``."""
    convert(file, task, out)


@weights_app.command("convert")
def convert(
    file: Annotated[Path, typer.Option("--from-release", **_RELEASE)], task: _ReleasedTask, out: _ConvertedFile
) -> None:
    """Convert a released EmbodiedScan checkpoint to a weights file of the paper preset. Runs no code of the file, and
    lists every tensor without a counterpart."""
    from embodied_perceptron.inference.loading import save_network
    from embodied_perceptron.nn.network import PerceptionNetwork
    from embodied_perceptron.nn.presets import DetectionConfig, network_config, released
    from embodied_perceptron.weights.categories import DETECTION_CLASSES
    from embodied_perceptron.weights.checkpoint import CheckpointError, load_into, load_official, read_official_file

    try:
        kind: Any = task.removeprefix("continuous-")
        imported = load_official(read_official_file(file), kind)
        config = released(network_config("paper", kind, num_classes=len(DETECTION_CLASSES)))
        if task != kind:
            config = dataclasses.replace(config, detection=DetectionConfig(keep=20_000))
        network = PerceptionNetwork(config)
        load_into(network, imported.state, str(file))
        out.parent.mkdir(parents=True, exist_ok=True)
        save_network(out, network, DETECTION_CLASSES, {"imported_from": file.name}, half=False)
    except (CheckpointError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_BAD_INPUT) from error
    typer.echo(f"{out}: {len(imported.state)} parameters of a {task} network")
    typer.echo(f"{len(imported.unused)} keys of {file.name} were not used" + (":" if imported.unused else ""))
    for key in imported.unused:
        typer.echo(f"  {key}")


@weights_app.command("list")
def list_weights(as_json: Annotated[bool, typer.Option("--json", help="Print JSON: the manifest.")] = False) -> None:
    """List shipped weights with preset and size; each file is checked against the manifest."""
    from embodied_perceptron.weights import WeightsError, shipped, weights_file

    table = Table("name", "preset", "MiB", "card", "SHA-256", title="shipped weights")
    damaged = []
    for name, entry in shipped().items():
        try:
            weights_file(name)
        except WeightsError as error:
            damaged.append(str(error))
        table.add_row(name, entry.preset, f"{entry.bytes / 2**20:.2f}", entry.card or "-", entry.sha256[:16])
    if as_json:
        typer.echo(json.dumps({name: dataclasses.asdict(entry) for name, entry in shipped().items()}, indent=1))
    else:
        Console().print(table)
    if damaged:
        raise WeightsError("; ".join(damaged))


@weights_app.command("path")
def path_of_weights(name: Annotated[str, typer.Argument(help="Shipped name or path.")] = "tiny") -> None:
    """Print the path of the shipped weights."""
    from embodied_perceptron.weights import weights_file

    typer.echo(str(weights_file(name)))


def add_weights(
    name: Annotated[str, typer.Argument(help="Name to ship it under, e.g. tiny.")],
    file: Annotated[Path, typer.Argument(help="Trained weights (.safetensors).")],
    card: Annotated[Path | None, typer.Option(help="Model card (.md) to ship with it.")] = None,
) -> None:
    """Add trained weights to the package and its manifest."""
    from embodied_perceptron.weights.checkpoint import add_network  # torch loads only when needed

    entry = add_network(name, file, card)
    typer.echo(f"{name}: {entry.file}, {entry.bytes:,} bytes, preset {entry.preset}, SHA-256 {entry.sha256}")


def compile_command() -> None:
    """Compile the kernels after an installation, so that the first start does not wait for them.

    They are cached next to the package, or in the user's cache if that is not writable (NUMBA_CACHE_DIR overrides).
    """
    import time

    start = time.monotonic()
    with TaskProgress("compiling kernels") as progress:
        from embodied_perceptron.apps.warm_up import compile_kernels

        compile_kernels(lambda step, steps: progress.update(step - 1, steps))
    Console().print(f"kernels are compiled ({time.monotonic() - start:.0f} s)")


def benchmarks_folder() -> Path | None:
    """Find ``benchmarks/`` in the working directory or in the source tree of this package."""
    for root in (Path.cwd(), Path(__file__).resolve().parents[3]):
        if (root / "benchmarks").is_dir() and (root / "pyproject.toml").is_file():
            return root / "benchmarks"
    return None


def bench_command(
    ctx: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(help="Names; none = list them.")] = None,
    run_all: Annotated[bool, typer.Option("--all", help="Run all of them.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Use small inputs: a check that they run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: the benchmarks, without running any.")] = False,
) -> None:
    """Run benchmarks by name: tables on the screen, JSON in out/bench/. Failures are listed at the end."""
    folder = benchmarks_folder()
    if folder is None:
        raise CommandError("benchmarks are part of the source tree: run this in a clone of the repository")
    known = {path.stem: path for path in sorted(folder.glob("*.py")) if not path.stem.startswith("_")}
    chosen = list(known) if run_all else list(names or ())
    if as_json:
        typer.echo(json.dumps({name: _first_line(path) for name, path in known.items()}, indent=1))
        return
    if not chosen:
        for name, path in known.items():
            Console().print(f"[bold]{name}[/]  {escape(_first_line(path))}", highlight=False)
        return
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise CommandError(f"unknown benchmark {', '.join(unknown)}; there are: {', '.join(known) or 'none'}")
    failed = []
    for name in chosen:
        Console().rule(name)
        command = [sys.executable, str(known[name]), *(["--quick"] if quick else [])]
        code = subprocess.run(command, check=False, start_new_session=True).returncode  # Ctrl-C ends it
        if code != 0:
            failed.append(f"{name} (exit code {code})")
    if failed:
        raise CommandError(f"{len(failed)} of {len(chosen)} benchmarks failed: {', '.join(failed)}", 1)


def _first_line(path: Path) -> str:
    """Return the first line of a script's docstring."""
    import ast

    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.splitlines()[0] if docstring else ""
