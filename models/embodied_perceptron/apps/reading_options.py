"""Options of every command that reads recordings whose poses, scale or topics are not what they should be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from embodied_perceptron.recordings.recording import Recording

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


def reading_options(
    poses: str | None = None,
    pose_scale: float | None = None,
    depth_scale: float | None = None,
    tf_topic: str | None = None,
    pose_offset: float | None = None,
) -> dict[str, Any]:
    """Arguments of :func:`~embodied_perceptron.recordings.open.open_recording`, those that are given."""
    given = {
        **{"poses": poses, "pose_scale": pose_scale, "pose_offset": pose_offset},
        **{"depth_scale": depth_scale, "tf_topic": tf_topic},
    }
    return {name: value for name, value in given.items() if value is not None}


def open_source(source: Path, **options: Any) -> Recording:
    """A recording; see :func:`~embodied_perceptron.recordings.open.open_recording`, which is loaded only now."""
    from embodied_perceptron.recordings.open import open_recording

    return open_recording(source, **options)
