"""A recording for the Rerun viewer (``.rrd``): the map, its objects, and what the camera saw on its way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.boxes import rotations
from embodied_perceptron.frame import PosedFrame
from embodied_perceptron.geometry import rotation_to_quaternion
from embodied_perceptron.results import Grounding, Perception, SceneObject
from embodied_perceptron.viewing.drawing import color_of_id, label_of

_TIMELINE = "time"


def write_rrd(
    path: str | Path,
    perception: Perception,
    trajectory_m: NDArray[np.float64],
    frames: Iterable[PosedFrame] = (),
    jpeg_quality: int = 80,
    *,
    sightings: Iterable[tuple[int, Sequence[SceneObject]]] = (),
    answers: Iterable[tuple[int, Grounding]] = (),
) -> None:
    """Write a ``.rrd`` file.

    Args:
        path: of the file; replaced where it exists.
        perception: voxels, shown over the whole time; so are its confirmed objects where there are no ``sightings``.
        trajectory_m: (T, 3) positions of the camera in the world frame.
        frames: what to show of the camera, oldest first; times are relative to the first.
        jpeg_quality: of the camera's images.
        sightings: stamp (ns) and objects at that time.
        answers: stamp (ns) and what was answered then.

    Raises:
        ImportError: the viewer extra is not installed (``pip install 'embodied-perceptron[viewer]'``).
        OSError: the file cannot be written.
    """
    import rerun as rr

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    stream = rr.RecordingStream("embodied_perceptron", recording_id=path.stem)
    stream.save(path)
    stream.log("world", rr.ViewCoordinates.RIGHT_HAND_Z_UP, static=True)
    voxels = perception.voxels
    radius = 0.5 * voxels.voxel_size_m
    stream.log("world/voxels", rr.Points3D(voxels.mean_point_m, colors=voxels.mean_color, radii=radius), static=True)
    if len(trajectory_m):
        strip = rr.LineStrips3D([np.asarray(trajectory_m, np.float32)], colors=[(255, 160, 0)], radii=0.01)
        stream.log("world/trajectory", strip, static=True)
    frames, sightings, answers = list(frames), list(sightings), list(answers)
    if perception.objects and not sightings:
        stream.log("world/objects", _boxes(rr, perception.objects), static=True)
    stamps = [posed.frame.stamp_ns for posed in frames] + [stamp for stamp, _ in (*sightings, *answers)]
    first_ns = min(stamps, default=0)

    def at(stamp_ns: int) -> None:
        stream.set_time(_TIMELINE, duration=(stamp_ns - first_ns) * 1e-9)

    for stamp_ns, objects in sightings:
        at(stamp_ns)
        stream.log("world/objects", _boxes(rr, objects))
    for stamp_ns, grounding in answers:
        at(stamp_ns)
        stream.log("queries", rr.TextLog(f"{grounding.text!r}: {grounding.status.name} {grounding.reason}".rstrip()))
        stream.log("world/answer", _boxes(rr, grounding.candidates[:1], grounding.text))
    for posed in frames:
        frame, T = posed.frame, posed.T_world_camera
        at(frame.stamp_ns)
        camera = f"world/{frame.camera}"
        stream.log(camera, rr.Transform3D(translation=T[:3, 3], mat3x3=T[:3, :3]))
        K = frame.intrinsics
        pinhole = rr.Pinhole(image_from_camera=K.matrix, resolution=[K.width, K.height], image_plane_distance=0.4)
        stream.log(f"{camera}/image", pinhole)
        stream.log(f"{camera}/image", rr.Image(frame.color).compress(jpeg_quality=jpeg_quality))
    stream.flush()
    stream.disconnect()


def _boxes(rr: Any, objects: Sequence[SceneObject], said: str = "") -> Any:
    """Boxes with their labels, or with the sentence that meant them."""
    boxes = np.array([thing.box for thing in objects], np.float64).reshape(-1, 9)
    R = rotations(torch.from_numpy(boxes)).numpy()
    return rr.Boxes3D(
        centers=boxes[:, :3],
        half_sizes=boxes[:, 3:6] / 2,
        quaternions=[rr.Quaternion(xyzw=rotation_to_quaternion(r)) for r in R],
        labels=[said or label_of(thing) for thing in objects],
        colors=[(60, 220, 90) if said else color_of_id(thing.id) for thing in objects],
    )
