"""A recording of any supported format, by what lies at a path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from embodied_perceptron.recordings.bag import BagRecording, is_bag
from embodied_perceptron.recordings.recording import Recording, RecordingError
from embodied_perceptron.recordings.tum import TumRecording, is_tum_folder


def open_recording(source: str | Path, **options: Any) -> Recording:
    """Open a folder (TUM RGB-D layout) or a bag (MCAP, SQLite, ROS 1) by what is found there.

    ``options`` go to :class:`~embodied_perceptron.recordings.tum.TumRecording` or
    :class:`~embodied_perceptron.recordings.bag.BagRecording`.

    Raises:
        RecordingError: nothing that is known lies there, or it cannot be read.
    """
    path = Path(source)
    if not path.exists():
        raise RecordingError(f"{path} does not exist")
    if is_tum_folder(path):
        return TumRecording(path, **options)
    if is_bag(path):
        return BagRecording(path, **options)
    if path.is_dir() and any([*path.glob("*.mcap"), *path.glob("*.db3")]):
        raise RecordingError(
            f"{path} holds files of a bag, but no metadata.yaml: name one of the files, or let "
            f"`ros2 bag reindex {path}` write it"
        )
    if (path / "associations.txt").exists():
        raise RecordingError(
            f"{path} has associations.txt, which is not read: rgb.txt, depth.txt and groundtruth.txt list the images "
            "and poses"
        )
    raise RecordingError(
        f"{path} is neither a folder in TUM RGB-D layout (rgb.txt, depth.txt, groundtruth.txt, camera.json) "
        "nor a bag (a folder with metadata.yaml, or a file .mcap, .db3 or .bag)"
    )
