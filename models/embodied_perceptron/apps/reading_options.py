"""Options of every command that reads recordings whose poses, scale or topics are not what they should be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from embodied_perceptron.apps.command_line import CommandError

if TYPE_CHECKING:
    from embodied_perceptron.recordings.recording import Recording, TransformSample

Poses = Annotated[
    str | None,
    typer.Option(
        help="Convention of the poses where it is not that of ROS: opengl, body, inverse, wxyz, yup, ydown, arkit; "
        "several with commas."
    ),
]
PoseScale = Annotated[float | None, typer.Option(help="Metres in one unit of the poses.")]
PoseOffset = Annotated[float | None, typer.Option(help="Seconds to add to the stamps of the poses, -0.05 for example.")]
DepthScale = Annotated[float | None, typer.Option(help="Units of the depth images in one metre, 5000 for example.")]
TfTopic = Annotated[
    str | None, typer.Option(help="Topic of the transforms of a bag, where several robots have their own.")
]
Intrinsics = Annotated[
    str | None,
    typer.Option(
        metavar="FX,FY,CX,CY[,W,H]",
        help="Of the one camera of a bag without camera_info, in pixels; its images must be undistorted.",
    ),
]
StaticTf = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PARENT,CHILD,X,Y,Z,QX,QY,QZ,QW",
        help="A transform that a bag lacks: the pose of CHILD in PARENT, metres; repeatable.",
    ),
]


def reading_options(
    poses: str | None = None,
    pose_scale: float | None = None,
    depth_scale: float | None = None,
    tf_topic: str | None = None,
    pose_offset: float | None = None,
    intrinsics: str | None = None,
    static_tf: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Arguments of :func:`~embodied_perceptron.recordings.open.open_recording`, those that are given.

    Raises ``CommandError`` naming the text of intrinsics or of a transform that is none.
    """
    given = {
        "poses": poses,
        "pose_scale": pose_scale,
        "depth_scale": depth_scale,
        "tf_topic": tf_topic,
        "pose_offset": pose_offset,
        "intrinsics": None if intrinsics is None else parse_intrinsics(intrinsics),
        "static_tf": [parse_static_tf(text) for text in static_tf] if static_tf else None,
    }
    return {name: value for name, value in given.items() if value is not None}


def parse_intrinsics(text: str) -> tuple[float, ...]:
    """``fx,fy,cx,cy`` or ``fx,fy,cx,cy,width,height``. Raises ``CommandError`` naming the text."""
    values = _numbers(text.split(","))
    if len(values) not in (4, 6):
        raise CommandError(f"--intrinsics must be fx,fy,cx,cy or fx,fy,cx,cy,width,height in pixels, got {text!r:.200}")
    return values


def parse_static_tf(text: str) -> TransformSample:
    """``parent,child,x,y,z,qx,qy,qz,qw``. Raises ``CommandError`` naming the text."""
    import numpy as np

    from embodied_perceptron.geometry.transforms import transform_from_pose
    from embodied_perceptron.recordings.recording import TransformSample
    from embodied_perceptron.sensors.poses import frame_name

    parts = [part.strip() for part in text.split(",")]
    values = np.array(_numbers(parts[2:]))
    if len(values) != 7:
        raise CommandError(f"--static-tf must be parent,child,x,y,z,qx,qy,qz,qw, got {text!r:.200}")
    try:
        T = transform_from_pose(values[:3], values[3:])
        return TransformSample(0, frame_name(parts[0]), frame_name(parts[1]), T, is_static=True)
    except ValueError as error:
        raise CommandError(f"--static-tf {text!r:.200}: {error}") from error


def _numbers(words: Sequence[str]) -> tuple[float, ...]:
    """Empty where one of them is none."""
    try:
        return tuple(float(word) for word in words)
    except ValueError:
        return ()


def open_source(source: Path, **options: Any) -> Recording:
    """A recording; see :func:`~embodied_perceptron.recordings.open.open_recording`, which is loaded only now."""
    from embodied_perceptron.recordings.open import open_recording

    return open_recording(source, **options)
