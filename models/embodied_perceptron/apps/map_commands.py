"""Commands about saved maps and their objects: ``view``, ``describe``, ``ground``, ``diff``, ``explain``,
``export-map`` and ``mcp``.

Heavy imports stand inside of the commands, so that ``--help`` answers at once.
"""

from __future__ import annotations

import json
import secrets
import signal
import statistics
import threading
import webbrowser
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from embodied_perceptron.apps.command_line import (
    EXIT_BAD_RESULT,
    CommandError,
    TaskProgress,
    in_file,
    load_plugin,
    out_file,
    out_folder,
    user_errors,
    with_option_groups,
)
from embodied_perceptron.apps.reading_options import (
    MAP_NAME,
    ReadingOptions,
    load_settings,
    map_file,
    open_map,
    with_detectors,
    with_network,
)

if TYPE_CHECKING:
    from embodied_perceptron.agents.source import SceneSource
    from embodied_perceptron.apps.explanation import PlaceRecorder
    from embodied_perceptron.config import PerceptronConfig
    from embodied_perceptron.perceptron import Perceptron
    from embodied_perceptron.recordings.recording import Recording
    from embodied_perceptron.results import Perception
    from embodied_perceptron.scene.changes import MapChanges
    from embodied_perceptron.visualization.drawing import Color
    from embodied_perceptron.visualization.web import WebViewer

LIVE_SCENE_GROUP = "embodied_perceptron.live_scene"
TOKEN_VARIABLE = "EMBODIED_PERCEPTRON_TOKEN"

_EXPORT_SUFFIXES = (".glb", ".ply", ".json", ".bt", ".npz")
_CHANGE_COLORS: dict[str, Color] = {
    "appeared": (60, 210, 90),
    "left": (235, 70, 60),
    "moved": (250, 200, 50),
    "renamed": (80, 150, 250),
}


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command("ground")(ground)
    app.command("describe")(describe)
    app.command("view")(view)
    app.command("diff")(diff)
    app.command("explain")(explain)
    app.command("export-map")(export_map)
    app.command("mcp")(mcp)


# --------------------------------------------------------------------------------------------------------------------
# ground, describe


def ground(
    scenes: Annotated[Path, in_file("--scene-file", "--scenes", help="JSON: scenes with detections, queries.")],
    out: Annotated[Path, out_file(help="File to write: answers (JSON).")],
    explain: Annotated[bool, typer.Option("--explain", help="Add the meaning of each sentence and print it.")] = False,
    config: Annotated[
        Path | None, typer.Option(help="YAML configuration: sections, language: {reader: endpoint, ...} for example.")
    ] = None,
) -> None:
    """Answer sentences about the boxes of any detector: scenes and queries in one file, answers in another.

    Scenes: {"scenes": {"a": {"detections": [{"center": [x, y, z], "size": [dx, dy, dz], "category": "chair"}]}},
    "queries": [{"scene": "a", "text": "the chair"}]}. Optional: score, yaw (radians) and color (r, g, b from 0 to 255)
    of a detection, viewpoint (16 numbers of the camera pose) of a scene.

    Answers: {"answers": [{"scene": ..., "text": ..., "status": "FOUND", "boxes": [...], "ms": ...}]}.
    """
    with TaskProgress(f"answering {scenes}"):
        from embodied_perceptron.language.endpoint import reader_of  # torch loads only when needed
        from embodied_perceptron.language.scene_file import answer_file
        from embodied_perceptron.recordings.files import write_atomically

        reader = reader_of(load_settings(config).language)
        try:
            answers = answer_file(json.loads(scenes.read_text(encoding="utf-8")), reader=reader, explain=explain)
        except ValueError as error:  # includes JSON errors
            raise CommandError(f"{scenes}: {error}") from error
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, (json.dumps(answers, ensure_ascii=False, indent=1) + "\n").encode("utf-8", "replace"))
    for answer in answers["answers"] if explain else ():
        typer.echo(
            json.dumps({key: answer[key] for key in ("text", "meaning", "status", "reason")}, ensure_ascii=False)
        )
    ms = [a["ms"] for a in answers["answers"]]
    median = f", median {statistics.median(ms):.1f} ms" if ms else ""
    typer.echo(f"{out}: {len(ms)} answers{median}")


def describe(
    path: Annotated[Path, typer.Argument(metavar="MAP", help="A saved map, or a folder with one.")],
    dense: Annotated[bool, typer.Option("--dense", help="<p>a desk</p>[<obj_3>] instead of a desk <obj_3>.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: text, mentions, relations and boxes.")] = False,
) -> None:
    """Describe a saved map in sentences whose nouns carry the ids of their objects."""
    file = map_file(path)
    with TaskProgress(f"reading {path}"):
        from embodied_perceptron.language.description import describe as describe_objects  # torch loads only here
        from embodied_perceptron.scene.live_map import saved_objects

        objects = saved_objects(file)
        description = describe_objects(objects, "dense" if dense else "plain")
    if not as_json:
        typer.echo(description.text)
        return
    entries = {
        "text": description.text,
        "mentions": [{"phrase": m.phrase, "ids": m.ids, "span": [m.start, m.end]} for m in description.mentions],
        "relations": [{"subject": f.subject, "relation": f.relation, "anchor": f.anchor} for f in description.facts],
        "objects": [o.as_dict() for o in objects],
    }
    typer.echo(json.dumps(entries, ensure_ascii=False, indent=1))


# --------------------------------------------------------------------------------------------------------------------
# view


def view(
    map_path: Annotated[Path, typer.Argument(metavar="MAP", help=f"A saved map, or a folder with {MAP_NAME}.")],
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 = all interfaces, a token is required.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 = any free one.")] = 8085,
    token: Annotated[str, typer.Option(help="Token that a client must show: a browser; generated if needed.")] = "",
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
) -> None:
    """Show a saved map in the browser: ask questions, name and correct objects (stored in the map). Ctrl-C ends it."""
    file = map_file(map_path)
    with TaskProgress(f"reading {map_path}"):
        from embodied_perceptron.visualization.web import WebUnavailableError
        from embodied_perceptron.visualization.web_gate import PortTakenError

        perceptron = open_map(file)
    try:
        viewer = serve_map(perceptron, file, host, port, token)
    except WebUnavailableError as error:
        raise CommandError(str(error), EXIT_BAD_RESULT) from error
    except (PortTakenError, ValueError) as error:
        raise CommandError(str(error)) from error
    with viewer:
        typer.echo(f"{len(perceptron.objects)} objects; the map is served at {viewer.url} (Ctrl-C ends it)")
        if browser:
            webbrowser.open(viewer.url)
        stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        try:
            stop.wait()
        except KeyboardInterrupt:
            typer.echo("")


def serve_map(perceptron: Perceptron, file: Path, host: str, port: int, token: str = "") -> WebViewer:
    """Start a viewer of the map from ``file`` and write names and corrections to it.

    When another program has written the file since, they are refused and nothing changes. Raises as ``WebViewer``.
    """
    from embodied_perceptron.mapping.storage import MapChangedError
    from embodied_perceptron.visualization.web import Controls, WebViewer

    editing = threading.Lock()

    def require_unchanged() -> None:
        try:
            perceptron.map.check_unchanged(file)
        except MapChangedError:
            raise ValueError(
                f"nothing has changed: another program (the robot?) wrote {file.name} since it was opened here; "
                "open it again to name things in the newer map"
            ) from None

    def name(number: int, words: str) -> str:
        with editing:
            require_unchanged()
            thing = perceptron.name_object(number, words)
            save()
        return f"{thing.label} {number} is called {thing.user_name!r}" if thing.user_name else f"{number} has no name"

    def correct(number: int, label: str, not_there: bool) -> str:
        with editing:
            require_unchanged()
            thing = perceptron.correct_object(number, label, not_there)
            save()
        return f"there is no {thing.label} {number}" if not_there else f"object {number} is labelled {thing.label!r}"

    def save() -> None:
        perceptron.save(file)
        viewer.show(perceptron.recall())

    viewer = WebViewer(
        Controls(perceptron.ground, name, correct),
        host=host,
        port=port,
        token=token,
        title=file.resolve().parent.name if file.name == MAP_NAME else file.name,
        on_error=lambda trace: typer.secho(trace, err=True),
    )
    viewer.show(perceptron.recall())
    return viewer


# --------------------------------------------------------------------------------------------------------------------
# diff


def diff(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="The older map, or a folder with one.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="The newer map of the same place.")],
    out: Annotated[Path | None, out_folder(help="Folder to write: changes.json, before.png and after.png.")] = None,
    min_moved: Annotated[float, typer.Option(min=0.01, help="Metres from which on an object counts as moved.")] = 0.2,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: the changes.")] = False,
) -> None:
    """List objects that appeared, left, moved or were renamed between two saved maps in one frame."""
    files = map_file(before), map_file(after)
    with TaskProgress(f"comparing {before} and {after}"):
        from embodied_perceptron.scene.changes import DifferentPlacesError, compare_maps

        older, newer = (open_map(path).recall() for path in files)
        try:
            changes = compare_maps(older, newer, min_moved)
        except DifferentPlacesError as error:
            raise CommandError(f"{before} and {after} cannot be compared: {error}") from error
        if out is not None:
            _write_changes(out, changes, older, newer)
    typer.echo(json.dumps(changes.as_dict(), ensure_ascii=False, indent=1) if as_json else "\n".join(changes.lines()))


def _write_changes(out: Path, changes: MapChanges, before: Perception, after: Perception) -> None:
    """Write ``changes.json`` and a top view of each map with the changed objects."""
    import cv2

    from embodied_perceptron.recordings.files import write_atomically
    from embodied_perceptron.visualization.top_view import render_top_view

    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(changes.as_dict(), ensure_ascii=False, indent=1) + "\n"
    write_atomically(out / "changes.json", text.encode("utf-8", "replace"))
    for side, scene in (("before", before), ("after", after)):
        shown, colors = {}, {}
        for kind, color in _CHANGE_COLORS.items():
            for change in getattr(changes, kind):
                thing = getattr(change, side)
                if thing is not None and thing.id not in shown:
                    shown[thing.id], colors[thing.id] = thing, color
        picture = render_top_view(scene, list(shown.values()), colors=colors)
        write_atomically(out / f"{side}.png", cv2.imencode(".png", picture[:, :, ::-1])[1].tobytes())


# --------------------------------------------------------------------------------------------------------------------
# explain


def explain(
    source: Annotated[
        Path,
        typer.Argument(metavar="MAP_OR_RECORDING", exists=True, help="A saved map, or a recording: TUM folder or bag."),
    ],
    thing: Annotated[int | None, typer.Option("--object", help="Id of an object of the map.")] = None,
    at: Annotated[str | None, typer.Option(metavar="X,Y,Z", help="A place in the map, metres.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML configuration: sections, as for `replay`.")] = None,
    perceive_every: Annotated[float, typer.Option(min=0.01, help="Look for objects every so many seconds.")] = 1.0,
    weights: Annotated[str | None, typer.Option(help="Network: a shipped name, or a weights file.")] = None,
    detector: Annotated[list[Path] | None, typer.Option(help="ONNX file of a 2-D detector; repeatable.")] = None,
    detector_layout: Annotated[
        list[str] | None, typer.Option(help="Layout of its outputs, where the files do not tell; for each of them.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: the verdict, and the lines below it.")] = False,
) -> None:
    """Explain an object or a place: what network and detectors found there, and what the map made of it.

    A recording is replayed and each perception is listed. A map is perceived once, as a whole.
    """
    if (thing is None) == (at is None):
        raise CommandError("give the object or place: --object ID or --at X,Y,Z")
    point = None if at is None else _point(at)
    settings = with_network(with_detectors(load_settings(config), detector, detector_layout), weights, None)
    with TaskProgress(f"reading {source}") as progress:
        import numpy as np

        from embodied_perceptron.apps.explanation import ObservedPerceptron, PlaceRecorder, Spot
        from embodied_perceptron.apps.explanation import explain as explain_spot

        recorder = PlaceRecorder()
        is_map = (source.is_file() and source.suffix == ".safetensors") or (source / MAP_NAME).is_file()
        if is_map:
            perceptron, perception = _perceive_map(source, settings, recorder)
        else:
            from embodied_perceptron.apps.replay import replay
            from embodied_perceptron.recordings.open import open_recording

            result = replay(
                open_recording(source),
                ObservedPerceptron.observed_by(recorder.record, settings),
                perceive_every_s=perceive_every,
                on_progress=lambda p: progress.update(p.frames, p.total, f"fused {p.fused}"),
            )
            perceptron, perception = result.perceptron, result.perception
        if point is not None:
            spot = Spot(np.array(point))
        else:
            every = (*perception.objects, *perception.tentative, *perception.stale)
            meant = [o for o in every if o.id == thing]
            if not meant:
                known = ", ".join(str(o.id) for o in every) or "none"
                raise CommandError(f"there is no object {thing}; the map has {known}")
            spot = Spot.of(meant[0])
        lines = explain_spot(perceptron, perception, recorder, spot)
    found = {"verdict": lines[0], "lines": [line for line in lines[1:] if line]}
    typer.echo(json.dumps(found, ensure_ascii=False, indent=1) if as_json else "\n".join(lines))


def _perceive_map(path: Path, settings: PerceptronConfig, recorder: PlaceRecorder) -> tuple[Perceptron, Perception]:
    """Load a saved map and perceive it once as a whole."""
    from dataclasses import replace

    from embodied_perceptron.mapping.storage import read_map, saved_configs
    from embodied_perceptron.perceptron import Perceptron

    saved = read_map(map_file(path))
    volume, keyframes = saved_configs(saved)
    perceptron = Perceptron.from_config(replace(settings, volume=volume, keyframes=keyframes))
    perceptron.map.restore(saved)
    perception = perceptron.perceive(window_m=float("inf"))
    recorder.record(perceptron, perception)
    return perceptron, perception


def _point(text: str) -> tuple[float, float, float]:
    try:
        x, y, z = (float(part) for part in text.split(","))
    except ValueError:
        raise CommandError(f"--at must be three numbers x,y,z in metres, got {text!r:.100}") from None
    return x, y, z


# --------------------------------------------------------------------------------------------------------------------
# export-map


@with_option_groups
def export_map(
    map_path: Annotated[Path, typer.Argument(metavar="MAP", help="A saved map, or a folder with one.")],
    out: Annotated[
        Path,
        out_file(
            help="File to write: .glb (glTF, points and named boxes), .ply (points), .json (objects; labels of COCO "
            "with --recording), .bt (OctoMap) or .npz (labelled cells).",
        ),
    ],
    recording: Annotated[
        Path | None,
        typer.Option(
            exists=True, help="Recording: TUM folder or bag that the map was built from; its frames are labelled."
        ),
    ] = None,
    frames: Annotated[int, typer.Option(min=0, help="Number of frames: of the recording, to label.")] = 40,
    *,
    reading: ReadingOptions,
) -> None:
    """Write a saved map for other programs: glTF, PLY, OctoMap, cells or objects, by the suffix of the file.

    With --recording: COCO labels of its frames, and the frames in images/ next to them.
    """
    if out.suffix not in _EXPORT_SUFFIXES:
        raise CommandError(f"the file name must end in {', '.join(_EXPORT_SUFFIXES)}, got {out.name!r}")
    if recording is not None and out.suffix != ".json":
        raise CommandError(f"labels of a recording are written as .json, got {out.name!r}")
    file = map_file(map_path)
    source = None if recording is None else reading.open(recording)
    with TaskProgress(f"reading {map_path}"):
        scene = open_map(file).recall()
        out.parent.mkdir(parents=True, exist_ok=True)
        written = _write_map(out, scene) if source is None else _write_labels(out, scene, source, frames)
    typer.echo(f"{out}: {written}")


def _write_map(out: Path, scene: Perception) -> str:
    """Write the map and return a summary."""
    from embodied_perceptron.recordings.artifacts import (
        write_glb,
        write_objects_json,
        write_occupancy_npz,
        write_octomap,
        write_ply,
    )
    from embodied_perceptron.visualization.drawing import color_of_id

    if out.suffix == ".npz":
        write_occupancy_npz(out, scene.semantic)
        cells = scene.semantic
        return f"{len(cells.labels)} cells of {cells.cell_size_m:g} m, {len(cells.classes)} classes"
    if out.suffix == ".bt":
        with user_errors():
            write_octomap(out, scene.voxels.coords, scene.voxels.voxel_size_m)
    elif out.suffix == ".glb":
        write_glb(out, scene.voxels, scene.objects, {o.id: color_of_id(o.id) for o in scene.objects})
    elif out.suffix == ".ply":
        write_ply(out, scene.voxels.mean_point_m, scene.voxels.mean_color)
    else:
        write_objects_json(out, scene.objects)
    return f"{len(scene.voxels)} voxels, {len(scene.objects)} objects"


def _write_labels(out: Path, scene: Perception, source: Recording, count: int) -> str:
    from embodied_perceptron.config import PerceptronConfig
    from embodied_perceptron.recordings.artifacts import write_coco
    from embodied_perceptron.recordings.recording import PosedFrameStream

    step = max(1, -(-len(source) // max(count, 1)))
    stream = PosedFrameStream(source, PerceptronConfig().assembler)
    some = (posed for number, posed in enumerate(stream) if number % step == 0 and number // step < count)
    images, labels = write_coco(out, some, scene.objects, scene.T_world_map)
    return f"{images} images, {labels} labels of {len(scene.objects)} objects"


# --------------------------------------------------------------------------------------------------------------------
# mcp


class LiveScene(Protocol):
    """Entry point of :data:`LIVE_SCENE_GROUP`: the scene of a running node."""

    def __call__(self, *, namespace: str, timeout_s: float) -> AbstractContextManager[SceneSource]:
        """Listen to the node in ``namespace`` while open; tools wait at most ``timeout_s`` for it."""
        ...


def mcp(
    map_path: Annotated[
        Path | None,
        typer.Option("--map", help="A map: its file, or a folder with one; without it, the running node."),
    ] = None,
    namespace: Annotated[str, typer.Option(help="Namespace of the node: as it was given to perceive.")] = "",
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds to wait for the node: to be found and to answer.")
    ] = 10.0,
    http: Annotated[bool, typer.Option("--http", help="Serve over HTTP instead of standard input and output.")] = False,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 = all interfaces.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port to listen on; fixed, because agents are configured with it.")
    ] = 8090,
    token: Annotated[
        str,
        typer.Option(
            envvar=TOKEN_VARIABLE, help="Token that a client must show: over HTTP; generated where not given."
        ),
    ] = "",
    config: Annotated[
        Path | None, typer.Option(help="YAML configuration: sections, of which language counts, with --map.")
    ] = None,
) -> None:
    """Serve the map as tools of a language-model agent (Model Context Protocol): find, list, look, go.

    Ends at the end of its input, or with Ctrl-C.
    """
    if map_path is not None and namespace:
        raise CommandError("--namespace selects a running node and cannot be used with --map")
    if map_path is None and config is not None:
        raise CommandError("--config needs --map: the running node has its own configuration")
    file = None if map_path is None else map_file(map_path)
    with TaskProgress("starting" if map_path is None else f"reading {map_path}"):
        try:
            from embodied_perceptron.agents.server import PATH, serve_http, serve_stdio
        except ImportError as error:
            raise CommandError(
                f"{error}: install the extra agent, pip install 'embodied-perceptron[agent]'", EXIT_BAD_RESULT
            ) from error
        opened = _open_scene(file, namespace, timeout, config)
    with opened as source:
        if not http:
            serve_stdio(source)
            return
        if not token:
            token = secrets.token_urlsafe(24)
            typer.echo(f"token: {token}", err=True)
        typer.echo(f"the map is served at http://{host}:{port}{PATH} (Ctrl-C ends it)", err=True)
        serve_http(source, host, port, token)


def _open_scene(
    map_path: Path | None, namespace: str, timeout_s: float, config: Path | None
) -> AbstractContextManager[SceneSource]:
    if map_path is None:
        connect: LiveScene = load_plugin(LIVE_SCENE_GROUP, "mcp over a running node")
        return connect(namespace=namespace, timeout_s=timeout_s)
    from embodied_perceptron.agents.source import MapSource

    return nullcontext(MapSource(open_map(map_path, config)))
