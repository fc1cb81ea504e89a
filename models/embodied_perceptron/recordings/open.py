"""Opening of a recording in any supported format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from embodied_perceptron.recordings.bag import BagRecording, is_bag
from embodied_perceptron.recordings.conventions import (
    MAX_OFFSET_S,
    ConventionError,
    ConvertedRecording,
    convert_pose,
    parse_conventions,
)
from embodied_perceptron.recordings.exports import EXPORT_FORMATS, export_format, open_export
from embodied_perceptron.recordings.recording import Recording, RecordingError
from embodied_perceptron.recordings.tum import TumRecording, is_tum_folder
from embodied_perceptron.sensors.poses import seconds_to_ns

_OF_BAGS = {
    "tf_topic": "it has no transform topics",
    "intrinsics": "its calibration is in its own files",
    "static_tf": "it has no transforms",
}


def open_recording(
    source: str | Path,
    *,
    poses: str | None = None,
    pose_scale: float | None = None,
    pose_offset: float | None = None,
    **options: Any,
) -> Recording:
    """Open a folder (TUM RGB-D layout, or of an app: :mod:`.exports`) or a bag (MCAP, SQLite, ROS 1).

    Args:
        source: the folder or file.
        poses: pose conventions other than that of ROS, names of
            :data:`~embodied_perceptron.recordings.conventions.POSE_CONVENTIONS` separated by commas.
        pose_scale: metres per unit of the poses.
        pose_offset: seconds to add to the stamps of the poses, at most 10.
        options: of :class:`~embodied_perceptron.recordings.tum.TumRecording` or
            :class:`~embodied_perceptron.recordings.bag.BagRecording`.

    Raises:
        RecordingError: unknown format or unreadable data.
        ConventionError: unknown or contradictory conventions.
    """
    names = () if poses is None else parse_conventions(poses)
    scale = 1.0 if pose_scale is None else pose_scale
    if not 0 < scale < float("inf"):
        raise ConventionError(f"pose_scale must be positive, got {scale}")
    offset_s = 0.0 if pose_offset is None else pose_offset
    if not abs(offset_s) <= MAX_OFFSET_S:
        raise ConventionError(f"pose_offset must be within {MAX_OFFSET_S:g} s, got {offset_s}")
    recording = _open(Path(source), options)
    if not names and scale == 1.0 and offset_s == 0.0:
        return recording
    return ConvertedRecording(recording, lambda T: convert_pose(T, names, scale), seconds_to_ns(offset_s))


def _open(path: Path, options: dict[str, Any]) -> Recording:
    if not path.exists():
        raise RecordingError(f"{path} does not exist")
    is_tum = is_tum_folder(path)
    if not is_tum and is_bag(path):
        return BagRecording(path, **options)
    if is_tum or export_format(path):
        for name, lack in _OF_BAGS.items():
            if options.pop(name, None) is not None:
                raise RecordingError(f"{path} is a folder: {lack}")
        return TumRecording(path, **options) if is_tum else open_export(path, **options)
    if path.is_dir() and any([*path.glob("*.mcap"), *path.glob("*.db3")]):
        raise RecordingError(
            f"{path} holds files of a bag, but no metadata.yaml",
            f"name one of the files, or let `ros2 bag reindex {path}` write it",
        )
    raise RecordingError(
        f"{path} is neither a folder in TUM RGB-D layout (rgb.txt, depth.txt, groundtruth.txt, camera.json), "
        f"nor of {', '.join(EXPORT_FORMATS)}, nor a bag (a folder with metadata.yaml, or a file .mcap, .db3 or .bag)"
    )
