"""The library's own sub-commands: ``replay`` and ``doctor``.

Imports of the heavy parts stand inside of the commands, so that ``--help`` answers at once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from embodied_perceptron.apps.command_line import (
    EXIT_BAD_RESULT,
    CommandError,
    TaskProgress,
    load_plugin,
    out_folder,
    with_option_groups,
)
from embodied_perceptron.apps.reading_options import (
    DetectionsOption,
    SourceOptions,
    load_settings,
    map_file,
    with_detectors,
    with_network,
)

if TYPE_CHECKING:
    from embodied_perceptron.apps.checks import Finding
    from embodied_perceptron.apps.replay import ReplayResult
    from embodied_perceptron.config import PerceptronConfig
    from embodied_perceptron.perceptron import Perceptron
    from embodied_perceptron.recordings.recording import Recording, TransformSample

ROS_REPLAY_GROUP = "embodied_perceptron.ros_replay"
LIVE_CHECKS_GROUP = "embodied_perceptron.live_checks"

_SHOWN_DROPS = 5

console = Console()


class RosReplay(Protocol):
    """Entry point of :data:`ROS_REPLAY_GROUP`: plays a source over real topics into a running node."""

    def __call__(self, *, source: Path, out: Path, config: Path | None, max_frames: int | None, rate: float) -> int:
        """Write the same files as a direct replay and return the exit code."""
        ...


class LiveChecks(Protocol):
    """Entry point of :data:`LIVE_CHECKS_GROUP`: examines the running system."""

    def __call__(self, *, duration_s: float, namespace: str | None) -> list[Finding]:
        """Return findings after listening for ``duration_s``; ``namespace`` of the node, None = search for one."""
        ...


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command("replay")(replay_command)
    app.command("doctor")(doctor_command)


# --------------------------------------------------------------------------------------------------------------------
# replay

Source = Annotated[
    Path,
    typer.Argument(
        help="Folder in TUM RGB-D layout (rgb.txt, depth.txt, groundtruth.txt, camera.json), or bag: a folder with "
        "metadata.yaml, or a file .mcap, .db3 or .bag.",
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="YAML configuration: sections, volume: {voxel_size_m: 0.02} for example."),
]


@with_option_groups
def replay_command(
    source: Source,
    out: Annotated[Path, out_folder("--out", "-o", help="Folder to write: the results.")],
    direct: Annotated[
        bool, typer.Option("--direct/--ros", help="Directly through the library, or over real ROS 2 topics.")
    ] = True,
    config: ConfigOption = None,
    saved_map: Annotated[
        Path | None, typer.Option("--map", help="A map: to continue, once the robot is localised in it.")
    ] = None,
    max_frames: Annotated[int | None, typer.Option(min=1, help="Stop after so many frames.")] = None,
    perceive_every: Annotated[float, typer.Option(min=0.01, help="Look for objects every so many seconds.")] = 1.0,
    skip_damaged: Annotated[
        bool, typer.Option(help="Skip and count damaged images, poses and messages instead of stopping.")
    ] = False,
    weights: Annotated[
        str | None, typer.Option(help="Network: a shipped name, a weights file, or none = boxes without classes.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Device: cpu, cuda, cuda:N, or auto = cuda where there is one.")
    ] = None,
    rate: Annotated[float, typer.Option(min=0.01, help="Seconds of the recording per second; with --ros.")] = 1.0,
    detector: Annotated[
        list[Path] | None,
        typer.Option(help="ONNX file of a 2-D detector: its detections are lifted into the map; several take turns."),
    ] = None,
    detector_layout: Annotated[
        list[str] | None,
        typer.Option(
            help="Layout of its outputs, where the file does not tell (see docs/detectors.md); one for each detector."
        ),
    ] = None,
    detections: DetectionsOption = None,
    classes: Annotated[
        str | None,
        typer.Option(help="Published names; all others are 'object': a file with one name a line, or a,b,c."),
    ] = None,
    query: Annotated[
        list[str] | None, typer.Option("--query", "-q", help="Ask this about the map at the end; repeatable.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: numbers, objects and answers; with --direct.")
    ] = False,
    *,
    reading: SourceOptions,
) -> None:
    """Build a map from a recording and write it with pictures, objects and timings.

    Writes map.safetensors, voxels.ply, objects.json, occupancy.npz, top_view.png, occupancy_grid.pgm and .yaml,
    timings.json, and groundings.json with --query. Exits with 1 when the map is empty, a detector could not be used, or
    the robot cannot be localised in --map (then nothing is written).
    """
    if (detector or detections) and not direct:
        raise CommandError("--detector and --detections belong to --direct; for a node, set lift: in its configuration")
    if classes is not None and not direct:
        raise CommandError("--classes belongs to --direct; for a node, set network.classes in its configuration")
    if not direct and (conventions := reading.given()):
        names = ", ".join("--" + name.replace("_", "-") for name in conventions)
        raise CommandError(f"{names} belongs to --direct; convert with export-bag, and replay the bag")
    if (weights is not None or device is not None) and not direct:
        raise CommandError("--weights and --device belong to --direct; for a node, set network: in its configuration")
    if saved_map is not None and not direct:
        raise CommandError("--map belongs to --direct; for a node, set its parameter map_file")
    if as_json and not direct:
        raise CommandError("--json belongs to --direct; timings.json has the numbers of a replay over topics")
    if query and not direct:
        raise CommandError("--query belongs to --direct; ask a running node with `ask`")
    if not direct:
        play: RosReplay = load_plugin(ROS_REPLAY_GROUP, "replay --ros")
        raise typer.Exit(play(source=source, out=out, config=config, max_frames=max_frames, rate=rate))
    if not source.exists():
        raise CommandError(f"{source} does not exist")
    settings = with_detectors(load_settings(config), detector, detector_layout, detections)
    settings = with_network(settings, weights, device)
    map_path = None if saved_map is None else map_file(saved_map)
    with TaskProgress(f"reading {source}") as progress:
        from embodied_perceptron.apps.replay import PlaceNotFoundError, timings, write_results
        from embodied_perceptron.recordings.artifacts import groundings_as_dicts

        settings = _with_classes(settings, classes)
        recording = reading.open(source, tolerate_damage=skip_damaged)
        limits = {
            "max_frames": max_frames,
            "world_frame": reading.world_frame,
            "perceive_every_s": perceive_every,
        }
        try:
            perceptron, unplaceable = _with_map(settings, map_path, recording)
            result = _replay_with_progress(recording, perceptron, progress, skip_damaged, **limits)
        except PlaceNotFoundError as error:
            raise CommandError(str(error), EXIT_BAD_RESULT) from error
        if query:
            progress.begin("loading the language part and answering")
        answers = result.ask(query or ())
        progress.begin(f"writing {out}")
        files = write_results(result, out, answers)
    if as_json:
        answered = {"answers": groundings_as_dicts(answers)} if answers else {}
        objects = [thing.as_dict() for thing in result.perception.objects]
        print(json.dumps({**timings(result), "objects": objects, **answered, "out": str(out)}, indent=1))
        raise typer.Exit(EXIT_BAD_RESULT if result.empty_because or result.unusable else 0)
    console.print(_replay_table(source, result))
    for where, count in sorted(recording.left_out.counts.items()):
        first = escape(recording.left_out.reasons[where])
        console.print(
            f"[yellow]{count} of {escape(where)} left out[/], first: {first}", highlight=False, soft_wrap=True
        )
    for answer in answers:
        found = ", ".join(f"{o.label} {o.id} ({o.score:.2f})" for o in answer.candidates[:3])
        words = f"{answer.status.name}  {found}  {answer.reason}"
        console.print(f"[bold]{escape(answer.text)}[/]\n  {escape(words)}", highlight=False, soft_wrap=True)
    console.print(f"wrote {', '.join(files)} to {escape(str(out))}", highlight=False, soft_wrap=True)
    if unplaceable:
        console.print(f"[yellow]{escape(unplaceable)}[/]", highlight=False, soft_wrap=True)
    if result.empty_because:
        console.print(f"[bold red]the map is empty[/]: {escape(result.empty_because)}", highlight=False, soft_wrap=True)
        console.print("`embodied-perceptron doctor` finds the cause")
    if result.unusable:
        console.print(f"[bold red]{escape(result.unusable)}[/]", highlight=False, soft_wrap=True)
    if result.empty_because or result.unusable:
        raise typer.Exit(EXIT_BAD_RESULT)


def _with_map(settings: PerceptronConfig, path: Path | None, recording: Recording) -> tuple[Perceptron, str]:
    """Build a perceptron that continues a saved map; also why localisation in it is impossible, "" where it is not."""
    from embodied_perceptron.perceptron import Perceptron
    from embodied_perceptron.recordings.coco import image_stamps

    perceptron = Perceptron.from_config(settings, image_stamps(recording))
    return perceptron, "" if path is None else perceptron.load(path, find_place=True)


def _with_classes(settings: PerceptronConfig, text: str | None) -> PerceptronConfig:
    """Apply the class list of the command line to the configuration."""
    from dataclasses import replace

    from embodied_perceptron.language.class_list import read_names

    if text is None:
        return settings
    return replace(settings, network=replace(settings.network, classes=read_names(text)))


def _replay_with_progress(
    recording: Recording,
    perceptron: Perceptron,
    shown: TaskProgress,
    tolerant: bool,
    **limits: Any,
) -> ReplayResult:
    from embodied_perceptron.apps.replay import ReplayProgress, replay
    from embodied_perceptron.sensors.synchronizer import Drop

    drops = 0

    def on_progress(p: ReplayProgress) -> None:
        dropped = sum(p.dropped.values())
        shown.update(p.frames, p.total, f"fused {p.fused}" + (f", dropped {dropped}" if dropped else ""))

    def on_drop(drop: Drop) -> None:
        nonlocal drops
        drops += 1
        if drops <= _SHOWN_DROPS:
            shown.console.print(f"[yellow]{escape(str(drop))}[/]", highlight=False, soft_wrap=True)
        elif drops == _SHOWN_DROPS + 1:
            shown.console.print("[yellow]further dropped frames are only counted in the summary[/]")

    def on_refused(_: TransformSample, reason: str) -> None:
        recording.left_out.add("transforms", reason)

    return replay(
        recording,
        perceptron,
        **limits,
        on_progress=on_progress,
        on_drop=on_drop,
        on_refused=on_refused if tolerant else None,
    )


def _replay_table(source: Path, result: ReplayResult) -> Table:
    import numpy as np

    from embodied_perceptron.apps.replay import timings
    from embodied_perceptron.geometry.transforms import yaw_of

    numbers = timings(result)
    table = Table(title=f"replay of {escape(str(source))}", show_header=False)
    table.add_row("frames", f"{result.frames} played, {result.fused} fused")
    for reason, count in numbers["dropped"].items():
        table.add_row(f"  dropped, {reason}", str(count))
    place = result.perceptron.map.found_place
    if place is not None and place.best is not None:
        (x, y, z), yaw = place.best.T_map_world[:3, 3], np.rad2deg(yaw_of(place.best.T_map_world))
        where = f"recording's origin at {x:.2f}, {y:.2f}, {z:.2f} m, yaw {yaw:.1f} degrees"
        features = f"{place.best.recognised:.0f} of {place.best.features} features recognised"
        table.add_row("place in the map", f"found after {place.frames} frames: {where}; {features}")
    for name, label in (("fuse_ms", "fusing, ms a frame"), ("perceive_ms", "perceiving, ms")):
        p50, p99 = numbers[name]["p50"], numbers[name]["p99"]
        table.add_row(label, "-" if p50 is None else f"p50 {p50:.1f}   p99 {p99:.1f}")
    table.add_row("voxels", f"{numbers['voxels']:,}")
    table.add_row("map memory", f"{numbers['memory_mb']} MB, {numbers['keyframes']} keyframes")
    if lift := numbers.get("lift"):
        dropped = "".join(f", {count} {reason}" for reason, count in lift["dropped"].items())
        text = f"{lift['found']} found in {lift['pictures']} images, {lift['lifted']} lifted{dropped}"
        table.add_row("2-D detections", text)
    perception = result.perception
    table.add_row("objects", f"{len(perception.objects)} confirmed, {len(perception.tentative)} tentative")
    return table


# --------------------------------------------------------------------------------------------------------------------
# doctor

_COLORS = {"OK": "green", "INFO": "cyan", "WARNING": "yellow", "ERROR": "bold red"}


@with_option_groups
def doctor_command(
    source: Annotated[Path | None, typer.Argument(help="Folder or bag to examine; none = the installation.")] = None,
    live: Annotated[bool, typer.Option("--live", help="Examine the running ROS 2 system.")] = False,
    duration: Annotated[float, typer.Option(min=0.1, help="Seconds to listen with --live.")] = 5.0,
    namespace: Annotated[
        str | None, typer.Option(help="Namespace of the node: the one to examine with --live.")
    ] = None,
    config: ConfigOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    *,
    reading: SourceOptions,
) -> None:
    """Find out why a map is wrong or missing: transforms, pose conventions, scale, registration, stamps, clocks.

    The last line says what to do first. Exits with 1 when a finding is an error.
    """
    findings: list[Finding] = []
    if source is not None:
        findings += _examine_source(source, config, reading)
    if live:
        look: LiveChecks = load_plugin(LIVE_CHECKS_GROUP, "doctor --live")
        findings += look(duration_s=duration, namespace=namespace)
    if source is None and not live:
        with TaskProgress("examining the installation"):
            from embodied_perceptron.apps.doctor import examine_environment

            findings += examine_environment()
    if as_json:
        print(json.dumps([finding.as_dict() for finding in findings], indent=1))
    else:
        _print_findings(findings)
    from embodied_perceptron.apps.checks import has_errors

    if has_errors(findings):
        raise typer.Exit(EXIT_BAD_RESULT)


def _examine_source(source: Path, config: Path | None, reading: SourceOptions) -> list[Finding]:
    with TaskProgress(f"examining {source}") as progress:
        from embodied_perceptron.apps.checks import Finding, Severity
        from embodied_perceptron.apps.doctor import examine_recording
        from embodied_perceptron.recordings.recording import RecordingError

        settings = load_settings(config)
        try:
            recording = reading.open(source, tolerate_damage=True)
        except RecordingError as error:
            return [Finding("reading", Severity.ERROR, error.fault, error.remedy)]
        return examine_recording(recording, settings.assembler, progress.update, reading.world_frame)


def _print_findings(findings: list[Finding]) -> None:
    from embodied_perceptron.apps.checks import Severity, first_to_fix

    table = Table(show_header=False, box=None, padding=(0, 1))
    for finding in sorted(findings, key=lambda f: -f.severity):
        color = _COLORS[finding.severity.name]
        text = escape(finding.message) + (f"\n[dim]-> {escape(finding.remedy)}[/]" if finding.remedy else "")
        table.add_row(f"[{color}]{finding.severity.name.lower()}[/]", f"[bold]{finding.check}[/]", text)
    console.print(table)
    counts = {s: sum(f.severity == s for f in findings) for s in (Severity.ERROR, Severity.WARNING)}
    console.print(f"{counts[Severity.ERROR]} errors, {counts[Severity.WARNING]} warnings")
    first = first_to_fix(findings)
    if first is not None:
        console.print(f"first: {escape(first.remedy)} ({first.check})", highlight=False, soft_wrap=True)
