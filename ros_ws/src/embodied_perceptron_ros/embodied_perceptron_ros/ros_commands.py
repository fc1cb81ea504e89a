"""Sub-commands that need ROS, registered through the entry points ``embodied_perceptron.commands``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from embodied_perceptron.apps.command_line import add_former_name, out_folder, with_option_groups
from embodied_perceptron.apps.reading_options import ReadingOptions

_CONFIG_HELP = "YAML configuration: a ROS file with the node's parameters; default: the one of the package."


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command("perceive")(perceive_command)
    app.command("ask")(ask_command)
    demo = typer.Typer(invoke_without_command=True)
    demo.callback()(demo_command)
    demo.command("simulate")(simulate_command)
    app.add_typer(demo, name="demo")
    add_former_name(app, "simulate", "demo simulate", simulate_command)


def _fail(message: object, code: int = 1) -> NoReturn:
    typer.secho(f"error: {message}", fg=typer.colors.RED, err=True)
    raise typer.Exit(code)


def require_ros() -> None:
    """Exit with one line if ROS or the interfaces are missing."""
    for module in ("rclpy", "tf2_msgs.msg", "vision_msgs.msg", "embodied_perceptron_msgs.msg"):
        try:
            __import__(module)
        except ImportError as error:
            _fail(f"{error}: run make setup, or source a ROS 2 installation and this workspace", 3)


def perceive_command(
    config: Annotated[Path | None, typer.Option(help=_CONFIG_HELP)] = None,
    camera: Annotated[list[str] | None, typer.Option(help="Name of a camera; may be repeated.")] = None,
    preset: Annotated[
        str,
        typer.Option(
            "--camera-preset",
            "--preset",
            help="Topics of a camera driver: realsense, oak, orbbec, zed, kinect, tum.",
        ),
    ] = "",
    color_topic: Annotated[str, typer.Option(help="Colour topic: of a single camera.")] = "",
    depth_topic: Annotated[str, typer.Option(help="Depth topic: of a single camera, preferably registered.")] = "",
    camera_info_topic: Annotated[str, typer.Option(help="Calibration topic of a single camera.")] = "",
    detections_topic: Annotated[
        str, typer.Option(help="Another program's 2-D detections; {camera} = each camera's name.")
    ] = "",
    fusion_frame: Annotated[str, typer.Option(help="Frame in which the map is built.")] = "",
    output_frame: Annotated[str, typer.Option(help="Frame of everything published.")] = "",
    weights: Annotated[
        str | None, typer.Option(help="Network: a shipped name, a weights file, or none = boxes without classes.")
    ] = None,
    device: Annotated[str, typer.Option(help="Device: cpu, cuda, cuda:N, or auto = cuda where there is one.")] = "",
    map_file: Annotated[str, typer.Option(help="Saved map to start with.")] = "",
    classes: Annotated[
        str, typer.Option(help="Published names; all others are 'object': a file with one name a line, or a,b,c.")
    ] = "",
    viewer: Annotated[str, typer.Option(help="web = a page for the browser; rerun = a window of Rerun.")] = "",
    sim_time: Annotated[bool, typer.Option("--sim-time", help="Take the time from /clock.")] = False,
    namespace: Annotated[str, typer.Option(help="Namespace of the node, its topics and services.")] = "",
    parameter: Annotated[list[str] | None, typer.Option("-p", "--parameter", help="name:=value, repeatable.")] = None,
    remap: Annotated[list[str] | None, typer.Option("-r", "--remap", help="from:=to, repeatable.")] = None,
    rviz: Annotated[bool, typer.Option("--rviz", help="Start RViz too, if it is installed.")] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warn, error.")] = "info",
    list_parameters: Annotated[bool, typer.Option("--list-parameters", help="List the parameters and exit.")] = False,
) -> None:
    """Start the live node: the same node and YAML as perceive.launch.py. Ctrl-C ends it."""
    from embodied_perceptron_ros.players.launch_options import (
        DEFAULT_CONFIG,
        LOG_LEVELS,
        check_config,
        node_parameters,
        parse_choice,
        parse_overrides,
        split_pair,
    )
    from embodied_perceptron_ros.players.launch_options import ros_arguments as make_arguments
    from embodied_perceptron_ros.players.processes import module_command

    require_ros()
    if list_parameters:
        _list_parameters()
        return
    try:
        overrides: dict[str, Any] = {}
        for text in parameter or []:
            name, value = split_pair(text, "--parameter")
            overrides |= parse_overrides(f"{name}: {value}")
        file_values = check_config(config or DEFAULT_CONFIG, namespace)
        log_level = parse_choice(log_level, "log level", LOG_LEVELS)
        given = {
            **{"camera": preset, "color_topic": color_topic, "depth_topic": depth_topic},
            **{"camera_info_topic": camera_info_topic, "detections_topic": detections_topic},
            **{"fusion_frame": fusion_frame, "output_frame": output_frame, "viewer": viewer, "device": device},
            **{"map_file": map_file, "classes": classes, "weights": "none" if weights == "" else weights or ""},
        }
        values = node_parameters(given, camera or (), file_values, sim_time, overrides)
        in_use = {**file_values, **values}
        _check_names(in_use)
        remappings = [split_pair(text, "--remap") for text in remap or []]
        arguments = make_arguments(config or DEFAULT_CONFIG, values, remappings, namespace, log_level)
    except (ValueError, OSError) as error:
        _fail(error, 2)
    commands = {"node": module_command("node", *arguments)}
    if rviz:
        commands["rviz"] = _rviz_command(namespace, in_use)
    raise typer.Exit(run_processes(commands))


def _check_names(values: Mapping[str, Any]) -> None:
    """Raise ``ParameterError`` for unknown parameters before the node starts."""
    from embodied_perceptron_ros.node.parameters import ParameterError, unknown_parameters

    problems = unknown_parameters(values, values.get("cameras", ["camera"]))
    if problems:
        raise ParameterError("; ".join(problems))


def _rviz_command(namespace: str, values: Mapping[str, Any]) -> list[str]:
    from embodied_perceptron_ros.players.launch_options import first_color_topic, rviz_arguments, rviz_remappings

    program = shutil.which("rviz2")
    if program is None:
        _fail("rviz2 is not installed here: it comes with a ROS 2 installation (or docker/compose.yaml)", 3)
    layout = Path(__file__).resolve().parent.parent / "rviz" / "perception.rviz"
    if not layout.is_file():
        from ament_index_python.packages import get_package_share_directory

        layout = Path(get_package_share_directory("embodied_perceptron")) / "rviz" / "perception.rviz"
    renamed = [
        part for pair in rviz_remappings(namespace, first_color_topic(values)) for part in ("-r", ":=".join(pair))
    ]
    return [program, *rviz_arguments(layout, values), *(["--ros-args"] if renamed else []), *renamed]


def run_processes(commands: dict[str, list[str]], until: tuple[str, ...] = (), what: str = "") -> int:
    """Run commands until all of ``until`` have ended, another one has ended, or Ctrl-C; return one exit code.

    ``what``: printed at the end, with how it ended.
    """
    from embodied_perceptron_ros.environment import ros_environment
    from embodied_perceptron_ros.players.processes import Supervisor, combined_exit_code

    with Supervisor() as processes:
        for name, command in commands.items():
            processes.start(name, command, ros_environment())
        processes.wait(until)
        interrupted = processes.interrupted
        code = combined_exit_code(processes.stop())
    if what:
        how = "stopped" if interrupted else f"failed with exit code {code}" if code else "ended"
        typer.echo(f"{what}: {how}; the same command plays it again")
    return code


def _list_parameters() -> None:
    from rich.console import Console
    from rich.table import Table

    from embodied_perceptron_ros.node.parameters import CAMERA_DECLARATIONS, DECLARATIONS

    table = Table("parameter", "default", "range", "meaning")
    for prefix, declarations in (("", DECLARATIONS), ("<camera>.", CAMERA_DECLARATIONS)):
        for name, declaration in declarations.items():
            limits = "" if declaration.low is None else f"{declaration.low:g} .. {declaration.high:g}"
            table.add_row(
                prefix + name,
                repr(declaration.default),
                limits or ", ".join(declaration.choices),
                declaration.description,
            )
    Console().print(table)


def ask_command(
    sentence: Annotated[str, typer.Argument(help='Description of an object: "the chair by the window".')],
    namespace: Annotated[str, typer.Option(help="Namespace of the node.")] = "",
    frame: Annotated[str, typer.Option(help="Frame of the answer; empty = the node's output frame.")] = "",
    top_k: Annotated[int, typer.Option(min=0, max=1000, help="Candidates at most; 0 = the node's default.")] = 0,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds to wait for the node: to be found and to answer.")
    ] = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: the whole answer.")] = False,
) -> None:
    """Ask a running node for an object. Exit code 0: found; 1: not found, ambiguous or invalid; 3: no node answers."""
    require_ros()
    from embodied_perceptron_ros.node.guest import NoAnswerError
    from embodied_perceptron_ros.players.asking import EXIT_CODES, answer_as_dict, answer_lines, ask_node

    try:
        answer = ask_node(sentence, namespace, frame, top_k, timeout)
    except NoAnswerError as error:
        _fail(error, 3)
    if as_json:
        typer.echo(json.dumps(answer_as_dict(answer), ensure_ascii=False, indent=1, allow_nan=False))
    else:
        typer.echo("\n".join(answer_lines(answer)))
    raise typer.Exit(EXIT_CODES[answer.status])


def simulate_command(
    seed: Annotated[int | None, typer.Option(min=0, help="Seed: of the home and the drive.")] = None,
    recording: Annotated[
        Path | None, typer.Option(help="Recording: simulated TUM folder of the drive; default: in the user's cache.")
    ] = None,
    rate: Annotated[float, typer.Option(min=0.01, help="Seconds of the recording per second.")] = 1.0,
    node: Annotated[bool, typer.Option(help="Start the node too; --no-node only plays.")] = True,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the node running afterwards.")] = False,
) -> None:
    """Play a simulated robot's drive through a furnished home on real topics, with the node that maps it."""
    from embodied_perceptron_ros.demo.simulated import (
        DEFAULT_SEED,
        SimulationError,
        first_drive,
        render,
        simulated_recording,
    )

    require_ros()
    seed = DEFAULT_SEED if seed is None else seed
    try:
        folder = recording or simulated_recording(seed)
        render(folder, first_drive(seed))
    except (SimulationError, OSError) as error:
        _fail(error)
    raise typer.Exit(_play(folder, rate, with_node=node, keep=keep))


def _play(source: Path, rate: float, with_node: bool, keep: bool) -> int:
    from embodied_perceptron.recordings.open import open_recording
    from embodied_perceptron_ros.players.launch_options import DEFAULT_CONFIG, player_command
    from embodied_perceptron_ros.players.launch_options import ros_arguments as make_arguments
    from embodied_perceptron_ros.players.processes import module_command
    from embodied_perceptron_ros.players.replaying import recording_parameters

    try:
        executable, player = player_command(source, rate)
        parameters = recording_parameters(open_recording(source), reliable=True)
    except (ValueError, OSError) as error:
        _fail(error, 2)
    commands = {"player": module_command(f"players.{executable}", *player)}
    if with_node:
        arguments = make_arguments(DEFAULT_CONFIG, parameters)
        commands = {"node": module_command("node", *arguments), **commands}
    what = f"played {source} on ROS topics" + (", with the node" if with_node else "; no node was started (--no-node)")
    return run_processes(commands, until=("player", "node") if keep and with_node else ("player",), what=what)


@with_option_groups
def demo_command(
    ctx: typer.Context,
    source: Annotated[
        Path | None, typer.Option(exists=True, help="Folder (TUM RGB-D) or bag; default: a simulated drive.")
    ] = None,
    out: Annotated[Path, out_folder(help="Folder to write: pictures and figures.")] = Path("out/demo"),
    rate: Annotated[float, typer.Option(min=0.01, help="Seconds of the recording per second.")] = 1.0,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed: of the simulated home.")] = None,
    version: Annotated[
        int,
        typer.Option(
            "--home-version",
            "--version",
            min=1,
            max=2,
            help="Version of the generator of homes: 1, for which the shipped weights were trained, or 2.",
        ),
    ] = 1,
    weights: Annotated[
        str | None, typer.Option(help="Network: a shipped name, a weights file, or none = boxes without classes.")
    ] = None,
    query: Annotated[list[str] | None, typer.Option(help="Ask this about the map at the end; repeatable.")] = None,
    view: Annotated[bool, typer.Option(help="Open the Rerun viewer if there is a display.")] = True,
    *,
    reading: ReadingOptions,
) -> None:
    """Run the whole system on a recording: topics, node, live map and answers; write pictures and figures.

    `demo simulate` only plays a simulated drive to a node.
    """
    if ctx.invoked_subcommand is not None:
        return
    require_ros()
    from embodied_perceptron_ros.demo.demo import open_viewer, run_demo
    from embodied_perceptron_ros.demo.simulated import DEFAULT_SEED, converted

    number = DEFAULT_SEED if seed is None else seed
    options = reading.given()
    if options and source is None:
        _fail(ValueError("--poses, --pose-scale, --depth-scale and --tf-topic are of a --source"), 2)
    if options and source is not None:
        source = _guarded(partial(converted, source, out, options))
    result = _guarded(
        lambda: run_demo(out, source, rate, number, version=version, weights=weights, sentences=query or ())
    )
    if view:
        open_viewer(out)
    for problem in result.problems:
        typer.secho(f"problem: {problem}", fg=typer.colors.RED, err=True)
    raise typer.Exit(1 if result.problems else 0)


def replay_over_topics(*, source: Path, out: Path, config: Path | None, max_frames: int | None, rate: float) -> int:
    """``replay --ros``: run player and node, write the files of a direct replay, and return the exit code."""
    require_ros()
    from rich.console import Console

    from embodied_perceptron_ros.demo.demo import ProgressDisplay
    from embodied_perceptron_ros.players.replaying import (
        ReplayPlan,
        final_perception,
        replay_over_ros,
        walk,
        write_result_files,
    )

    parameters = {} if config is None else {"config_file": str(config.absolute())}
    plan = ReplayPlan(source, out, rate, parameters=parameters, max_frames=max_frames or 0)
    console = Console()
    display = ProgressDisplay(console)
    with display.live:
        outcome = _guarded(lambda: replay_over_ros(plan, display.update))
    write_result_files(out, outcome, final_perception(outcome), walk(source, 1)[0])
    console.print(
        f"{outcome.sent} frames sent, {outcome.status.fused} fused, dropped {outcome.status.dropped or 'none'}"
    )
    if outcome.unexplained:
        typer.secho(f"{outcome.unexplained} frames were lost without a reason", fg=typer.colors.RED, err=True)
    return 1 if outcome.unexplained or not outcome.status.fused else 0


def _guarded(action: Callable[[], Any]) -> Any:
    from embodied_perceptron_ros.demo.simulated import SimulationError
    from embodied_perceptron_ros.players.replaying import ReplayFailedError

    try:
        return action()
    except (ValueError, OSError, SimulationError, ReplayFailedError) as error:
        _fail(error)
