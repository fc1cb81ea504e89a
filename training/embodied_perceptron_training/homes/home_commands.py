"""Commands of the synthetic homes, registered through the entry points of ``embodied_perceptron.commands``."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from embodied_perceptron.apps.command_line import (
    CommandError,
    TaskProgress,
    add_dev_command,
    add_former_name,
    how_to_go_on,
    in_folder,
    out_folder,
    user_errors,
    with_option_groups,
)
from embodied_perceptron.apps.reading_options import ReadingOptions

if TYPE_CHECKING:
    from embodied_perceptron.recordings.recording import Recording
    from embodied_perceptron_training.homes.building.home import HomeSpec
    from embodied_perceptron_training.homes.carrying import SecondDrive


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command("generate")(generate_command)
    app.command("inspect")(inspect_command)
    app.command("export-bag")(export_bag_command)
    add_dev_command(app, "mission-questions", mission_questions_command, former="mission-questions")
    add_former_name(app, "render-recording", "generate --drive", generate_command, drive=True)


def parse_size(text: str) -> tuple[int, int]:
    """'640x480' -> (640, 480). Raises ``typer.BadParameter``."""
    try:
        width, height = (int(part) for part in text.lower().split("x"))
    except ValueError:
        raise typer.BadParameter(f"size must look like 640x480, got {text!r}") from None
    return width, height


_SENSOR_HELP = (
    "perfect, structured-light, lidar-phone; version 2 also time-of-flight, stereo, mixed. Default: structured-light, "
    "version 2: mixed."
)

_ASSETS_HELP = (
    "parametric; version 2: mixed (Sweet Home 3D models for half of the objects that have one), sweethome3d (for all "
    "that have one). Default: mixed, version 1: parametric."
)


# options of generate for data sets only, and for --drive only
_DATA_SET_OPTIONS = [
    "homes",
    "views",
    "split",
    "motion_blur",
    "pose_noise",
    "assets",
    "unseen",
    "exchange_textures",
    "ray",
]
_DRIVE_OPTIONS = ["frames", "rate", "after"]
_OF_THE_FIRST = ["seed", "frames", "rooms", "version"]  # a second drive has those of its first


def _require_embree() -> None:
    """Exit with one line if the ray caster of simulated homes is missing, as on machines without wheels of it."""
    if importlib.util.find_spec("embreex") is None:
        raise CommandError("simulated homes need embreex (x86-64): pip install 'embreex>=2.17'")


def generate_command(
    ctx: typer.Context,
    out: Annotated[Path, out_folder(help="Folder to write: the data set, or the recording of --drive.")],
    drive: Annotated[
        bool,
        typer.Option(
            "--drive", help="One robot's drive through one home, as a TUM RGB-D recording with exact ground truth."
        ),
    ] = False,
    after: Annotated[
        Path | None,
        in_folder(
            help="With --drive: a simulated recording. Render a short second drive through its home, an hour later, "
            "after two objects were carried."
        ),
    ] = None,
    homes: Annotated[int, typer.Option(min=1, help="Number of homes.")] = 20,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed: home i has SEED + i. Default: 0, with --drive 7.")
    ] = None,
    views: Annotated[int, typer.Option(min=1, help="Views of a scene: images of each home.")] = 20,
    frames: Annotated[int, typer.Option(min=1, help="Number of frames: of --drive.")] = 250,
    size: Annotated[str, typer.Option(help="WIDTHxHEIGHT.")] = "320x240",
    rate: Annotated[float, typer.Option("--fps", "--rate", min=0.01, help="Frames per second: of --drive.")] = 10.0,
    rooms: Annotated[
        int | None,
        typer.Option(min=0, help="Number of rooms: furnished ones per home; 0 = varies. Default: 0, with --drive 1."),
    ] = None,
    split: Annotated[str, typer.Option(help="Split of the data set: train, val or test.")] = "train",
    version: Annotated[
        int | None,
        typer.Option(
            "--home-version",
            "--version",
            min=1,
            max=2,
            help="Version of the generator of homes: 1, for which the shipped weights were trained, or 2. "
            "Default: 2 for data sets, 1 for drives (`generate --drive`, `demo`).",
        ),
    ] = None,
    sensor: Annotated[str | None, typer.Option(help=_SENSOR_HELP)] = None,
    motion_blur: Annotated[
        float, typer.Option(min=0, help="Exposure time in seconds; 0 = sharp (version 2: as drawn per home).")
    ] = 0.0,
    pose_noise: Annotated[
        float,
        typer.Option(
            min=0, help="Error of the poses in metres: a step per view, or version 2: as a whole; 0 = as drawn."
        ),
    ] = 0.0,
    assets: Annotated[str | None, typer.Option(help=_ASSETS_HELP)] = None,
    unseen: Annotated[
        bool, typer.Option("--unseen", help="Include object families that are kept for testing.")
    ] = False,
    exchange_textures: Annotated[
        float,
        typer.Option(min=0, max=1, help="Share of the objects with textures of other objects of the home."),
    ] = 0.0,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    ray: Annotated[str | None, typer.Option(help="Address of a Ray cluster instead of processes.")] = None,
) -> None:
    """Generate furnished homes in EmbodiedScan's layout, or with --drive one recording of a simulated robot.

    Run again to continue an interrupted data set.
    """
    foreign = _DATA_SET_OPTIONS if drive else _DRIVE_OPTIONS
    given = [name for name in foreign if getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"]
    if given:
        names = ", ".join("--" + name.replace("_", "-") for name in given)
        raise CommandError(f"{names}: {'not for' if drive else 'only with'} --drive")
    width, height = parse_size(size)
    second = after is not None
    if given := [
        n for n in _OF_THE_FIRST if second and getattr(ctx.get_parameter_source(n), "name", "") == "COMMANDLINE"
    ]:
        raise CommandError(f"--{given[0].replace('_', '-')}: not with --after, which has that of the first drive")
    seed, rooms, version = (
        default if value is None else value
        for value, default in zip((seed, rooms, version), (7, 1, 1) if drive else (0, 0, 2), strict=True)
    )
    _require_embree()
    with TaskProgress("loading the generator"):
        from embodied_perceptron_training.homes.building.home import HomeSpec
        from embodied_perceptron_training.homes.generate import HomeSampleSpec, generate
        from embodied_perceptron_training.homes.noise import NoiseModel
        from embodied_perceptron_training.homes.recording import RecordingSpec, render_recording
        from embodied_perceptron_training.processes import choose_workers

    with user_errors():
        home = HomeSpec(rooms, "living room" if rooms == 1 else None, version=version)
        later: SecondDrive | None = None
        if after is not None:
            with TaskProgress(f"reading {after}"):
                seed, home, later = _second_drive(after, rate)
        sensor = sensor or ("structured-light" if home.version == 1 else "mixed")
        if drive:
            incomplete = f"{out} holds no recording yet; the same command renders it from the beginning"
            with how_to_go_on(incomplete), TaskProgress(f"rendering home {seed}") as progress:
                noise = NoiseModel(sensor=sensor)  # type: ignore[arg-type]  # checked by NoiseModel
                recording = RecordingSpec(seed, frames, width, height, rate, home, noise)
                built = render_recording(recording, out, workers, progress.update, later)
            count = frames if later is None else len(later.T_world_base) - 1
            typer.echo(
                f"{out}: {count} frames of home {seed}, {len(built.objects)} objects, {len(built.rooms)} room(s)"
            )
            return
        if unseen and split == "train":
            raise ValueError("training homes never have families that are kept for testing: --unseen needs val or test")
        noise = NoiseModel(
            sensor=sensor,  # type: ignore[arg-type]  # checked by NoiseModel
            motion_blur_s=motion_blur,
            pose_sigma_m=pose_noise,
            pose_sigma_rad=pose_noise * 0.5,
        )
        home = HomeSpec(
            rooms,
            assets=assets or "",  # type: ignore[arg-type]  # checked by HomeSpec
            version=version,
            unseen=unseen,
            exchanged_textures=exchange_textures,
        )
        spec = HomeSampleSpec(views, width, height, home, noise)
        finished = f"the finished homes stay in {out}; the same command continues"
        with how_to_go_on(finished), TaskProgress("generating homes") as progress:
            generate(out, range(seed, seed + homes), spec, split, choose_workers(workers, ray), progress.update)
    typer.echo(f"{out}: {homes} homes, split {split}")


def _second_drive(first: Path, rate_hz: float) -> tuple[int, HomeSpec, SecondDrive]:
    """Seed and kind of the home of a first drive, and a second drive through it."""
    from embodied_perceptron_training.homes.carrying import second_drive
    from embodied_perceptron_training.homes.mission import clear_objects
    from embodied_perceptron_training.homes.recording import watch_recording
    from embodied_perceptron_training.homes.trajectories import RobotSpec

    trajectory = watch_recording(first)
    home = trajectory.home
    return home.seed, home.spec, second_drive(home, clear_objects(trajectory), rate_hz, RobotSpec(rest_s=3.0))


def inspect_command(
    folder: Annotated[
        Path | None,
        typer.Argument(
            exists=True, file_okay=False, help="Folder of a data set in EmbodiedScan's layout; optional with --compare."
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="Split of the data set: train, val or test.")] = "train",
    out: Annotated[Path | None, out_folder(help="Folder to write: pictures; default: FOLDER/inspect.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Number of contact sheets.")] = 12,
    compare: Annotated[
        Path | None,
        typer.Option(
            exists=True, help="A real recording (TUM folder or bag) to compare with versions 1 and 2, and FOLDER."
        ),
    ] = None,
) -> None:
    """Write contact sheets (images with boxes, depth, ids, top view, occupancy, prompts) and statistics of a data
    set."""
    if folder is None:
        if compare is None:
            raise CommandError("give the folder of a data set, or --compare RECORDING")
        _compare(None, split, compare, out)
        return
    target = out or folder / "inspect"
    with user_errors(), TaskProgress(f"looking at {folder}") as progress:
        from embodied_perceptron_training.homes.inspection import inspect

        numbers = inspect(folder, target, split, limit, progress.update)
    _print_statistics(numbers)
    if compare is not None:
        _compare(folder, split, compare, target)
    typer.echo(f"contact sheets and statistics.json in {target}")


def _compare(folder: Path | None, split: str, recording: Path, target: Path | None) -> None:
    from rich.console import Console
    from rich.table import Table

    with user_errors(), TaskProgress(f"comparing with {recording}") as progress:
        from embodied_perceptron_training.homes.comparison import compare

        columns = compare(folder, split, recording, progress=progress.update)
    if target is not None:
        from embodied_perceptron.recordings.files import write_json

        target.mkdir(parents=True, exist_ok=True)
        write_json(target / "comparison.json", columns)
    table = Table("", *columns)
    for row in dict.fromkeys(name for column in columns.values() for name in column):
        table.add_row(row, *(column.get(row, "-") for column in columns.values()))
    Console().print(table)


@with_option_groups
def export_bag_command(
    source: Annotated[
        Path, typer.Argument(exists=True, help="A recording (TUM folder or bag), or with --scan a data set.")
    ],
    out: Annotated[Path, out_folder(help="Folder to write: the bag; must not exist.")],
    scan: Annotated[str | None, typer.Option(help="sample_idx of a scan, e.g. synthetic/7.")] = None,
    split: Annotated[str, typer.Option(help="Split of the data set: train, val or test.")] = "train",
    rate: Annotated[float, typer.Option("--fps", "--rate", min=0.01, help="Frames per second.")] = 10.0,
    *,
    reading: ReadingOptions,
) -> None:
    """Convert a sequence to an MCAP bag with images, camera_info, /tf and /tf_static."""
    if out.exists():
        raise CommandError(f"{out} exists already: choose another folder, or remove it")
    with TaskProgress(f"reading {source}"):
        from embodied_perceptron_training.datasets.bag_export import ScanRecording, export_bag
        from embodied_perceptron_training.datasets.embodiedscan import EmbodiedScanDataset

    with user_errors():
        if scan is None:
            recording: Recording = reading.open(source)
        else:
            recording = ScanRecording(EmbodiedScanDataset(source, split).by_name(scan), rate)
        nothing = f"{out} is not written; the same command begins again"
        with how_to_go_on(nothing), TaskProgress(f"writing {out}") as progress:
            count = export_bag(recording, out, progress.update)
    typer.echo(f"{out}: {count} messages")


def _print_statistics(numbers: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from embodied_perceptron_training.homes.inspection import EMBODIEDSCAN_PROMPTS

    console = Console()
    total = max(sum(EMBODIEDSCAN_PROMPTS.values()), 1)
    table = Table("prompts", "here", "share here", "share in EmbodiedScan")
    ours = numbers["prompts_by_kind"]
    for kind in (*EMBODIEDSCAN_PROMPTS, "other"):
        share = f"{EMBODIEDSCAN_PROMPTS[kind] / total:.1%}" if kind in EMBODIEDSCAN_PROMPTS else "-"
        table.add_row(kind, str(ours.get(kind, 0)), f"{ours.get(kind, 0) / max(numbers['prompts'], 1):.1%}", share)
    console.print(table)
    classes = Table("class", "instances", "median size (m)")
    for name, count in list(numbers["labels"].items())[:15]:
        classes.add_row(name, str(count), " x ".join(f"{v:.2f}" for v in numbers["median_size_m"][name]))
    console.print(classes)
    keys = ("scans", "views", "instances", "classes", "tilted", "prompts", "view_dependent", "hard")
    console.print(", ".join(f"{key} {numbers[key]}" for key in keys))
    console.print("instances by group: " + ", ".join(f"{k} {v}" for k, v in numbers["groups"].items()))


def mission_questions_command(
    recording: Annotated[Path, typer.Argument(exists=True, help="Folder of a simulated recording.")],
) -> None:
    """Print questions about the home of a simulated recording with their answers, as JSON."""
    import json

    from embodied_perceptron_training.homes.mission import Question, make_questions, question_of_change
    from embodied_perceptron_training.homes.recording import moved_objects, recorded_home, watch_recording

    with user_errors():
        if moved := moved_objects(recording):
            questions: tuple[Question, ...] = (question_of_change(recorded_home(recording), moved),)
        else:
            questions = make_questions(watch_recording(recording))
    typer.echo(json.dumps([question.as_dict() for question in questions]))
