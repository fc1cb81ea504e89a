"""``embodied-perceptron export-map``: a saved map as a file for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from embodied_perceptron.apps.command_line import CommandError, TaskProgress
from embodied_perceptron.apps.reading_options import (
    DepthScale,
    PoseOffset,
    Poses,
    PoseScale,
    TfTopic,
    open_source,
    reading_options,
)
from embodied_perceptron.apps.view_command import open_map

if TYPE_CHECKING:
    from embodied_perceptron.recordings.recording import Recording
    from embodied_perceptron.results import Perception

_KINDS = (".glb", ".ply", ".json", ".bt", ".npz")


def export_map(
    map_path: Annotated[Path, typer.Argument(metavar="MAP", help="A saved map, or a folder with one.")],
    out: Annotated[
        Path,
        typer.Option(
            dir_okay=False,
            help="File to write: .glb (glTF, points and named boxes), .ply (points), .json (objects; labels of COCO "
            "with --recording), .bt (OctoMap) or .npz (labelled cells).",
        ),
    ],
    recording: Annotated[
        Path | None,
        typer.Option(help="Recording: TUM folder or bag that the map was made of; its frames are labelled."),
    ] = None,
    frames: Annotated[int, typer.Option(min=0, help="Number of frames: of the recording, that are labelled.")] = 40,
    poses: Poses = None,
    pose_scale: PoseScale = None,
    pose_offset: PoseOffset = None,
    depth_scale: DepthScale = None,
    tf_topic: TfTopic = None,
) -> None:
    """Write a saved map for other programs: glTF, PLY, OctoMap, cells or objects, by the ending of the file's name.

    With --recording: labels of COCO for its frames, and the frames in images/ beside them.
    """
    if out.suffix not in _KINDS:
        raise CommandError(f"the name of the file must end in {', '.join(_KINDS)}, got {out.name!r}")
    if recording is not None and out.suffix != ".json":
        raise CommandError(f"labels of a recording are written as .json, got {out.name!r}")
    options = reading_options(poses, pose_scale, depth_scale, tf_topic, pose_offset)
    source = None if recording is None else open_source(recording, **options)
    with TaskProgress(f"reading {map_path}"):
        scene = open_map(map_path).recall()
        out.parent.mkdir(parents=True, exist_ok=True)
        told = _write(out, scene) if source is None else _write_labels(out, scene, source, frames)
    typer.echo(f"{out}: {told}")


def _write(out: Path, scene: Perception) -> str:
    """What was written, in words."""
    from embodied_perceptron.recordings.artifacts import write_objects_json, write_occupancy_npz, write_ply
    from embodied_perceptron.recordings.glb import write_glb
    from embodied_perceptron.recordings.octomap import write_octomap
    from embodied_perceptron.visualization.drawing import color_of_id

    if out.suffix == ".npz":
        write_occupancy_npz(out, scene.semantic)
        cells = scene.semantic
        return f"{len(cells.labels)} cells of {cells.cell_size_m:g} m, {len(cells.classes)} classes"
    if out.suffix == ".bt":
        try:
            write_octomap(out, scene.voxels.coords, scene.voxels.voxel_size_m)
        except ValueError as error:
            raise CommandError(str(error)) from error
    elif out.suffix == ".glb":
        write_glb(out, scene.voxels, scene.objects, {o.id: color_of_id(o.id) for o in scene.objects})
    elif out.suffix == ".ply":
        write_ply(out, scene.voxels.mean_point_m, scene.voxels.mean_color)
    else:
        write_objects_json(out, scene.objects)
    return f"{len(scene.voxels)} voxels, {len(scene.objects)} objects"


def _write_labels(out: Path, scene: Perception, source: Recording, count: int) -> str:
    from embodied_perceptron.config import PerceptronConfig
    from embodied_perceptron.recordings.coco_annotations import write_coco
    from embodied_perceptron.recordings.recording import PosedFrameStream

    step = max(1, -(-len(source) // max(count, 1)))
    stream = PosedFrameStream(source, PerceptronConfig().assembler)
    some = (posed for number, posed in enumerate(stream) if number % step == 0 and number // step < count)
    images, labels = write_coco(out, some, scene.objects, scene.T_world_map)
    return f"{images} images, {labels} labels of {len(scene.objects)} objects"


def register(app: typer.Typer) -> None:
    """Add the sub-command to ``app``."""
    app.command("export-map")(export_map)
