"""Conversion of recordings whose poses follow another convention than that of ROS.

After reading, poses are ``T_world_camera`` of the optical frame (x right, y down, z forward) in a world with z up, in
metres, with quaternions x y z w.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from embodied_perceptron.config import SynchronizerConfig
from embodied_perceptron.geometry.transforms import (
    F64,
    FloatArray,
    invert_transform,
    make_transform,
    quaternion_to_rotation,
    rotation_to_quaternion,
)
from embodied_perceptron.recordings.recording import (
    CalibrationSample,
    ColorSample,
    DepthSample,
    Recording,
    Sample,
    TransformSample,
)
from embodied_perceptron.sensors.poses import NS_PER_S, Found, PoseLookup, TooEarly, TransformTree

POSE_CONVENTIONS: Mapping[str, str] = {
    "wxyz": "quaternions with w first",
    "inverse": "inverse poses, T_camera_world (COLMAP)",
    "opengl": "camera axes of OpenGL: x right, y up, z backward (NeRF, Blender)",
    "body": "camera axes of a body: x forward, y left, z up",
    "yup": "a world with y up (Unity)",
    "ydown": "a world with y down: that of a first camera (visual SLAM)",
    "arkit": "a world with y up and camera axes of OpenGL (ARKit, Record3D)",
}
MAX_OFFSET_S = 10.0
_PATIENCE_NS = NS_PER_S
_PARTS = {"arkit": ("opengl", "yup")}
_EXCLUSIVE = (("opengl", "body"), ("yup", "ydown"))
_CAMERA_AXES = {  # T_camera_optical
    "opengl": np.diag([1.0, -1.0, -1.0, 1.0]),
    "body": np.array([[0.0, 0, 1, 0], [-1, 0, 0, 0], [0, -1, 0, 0], [0, 0, 0, 1]]),
}
_WORLD_AXES = {  # T_zup_world
    "yup": np.array([[1.0, 0, 0, 0], [0, 0, -1, 0], [0, 1, 0, 0], [0, 0, 0, 1]]),
    "ydown": np.array([[1.0, 0, 0, 0], [0, 0, 1, 0], [0, -1, 0, 0], [0, 0, 0, 1]]),
}


class ConventionError(ValueError):
    """Unknown or contradictory names of conventions."""


def parse_conventions(text: str) -> tuple[str, ...]:
    """Parse names of :data:`POSE_CONVENTIONS` separated by commas; return them in the order in which they are undone.

    Raises :class:`ConventionError` for unknown or contradictory names.
    """
    given = [name.strip().lower() for name in text.split(",") if name.strip()]
    unknown = [name for name in given if name not in POSE_CONVENTIONS]
    if unknown or not given:
        raise ConventionError(f"poses must be of {', '.join(POSE_CONVENTIONS)}, got {text!r}")
    parts = {part for name in given for part in _PARTS.get(name, (name,))}
    for pair in _EXCLUSIVE:
        if parts.issuperset(pair):
            raise ConventionError(f"poses cannot be both {pair[0]} and {pair[1]}, got {text!r}")
    return tuple(name for name in POSE_CONVENTIONS if name in parts)


def conventions_text(names: Sequence[str]) -> str:
    """Invert :func:`parse_conventions`, with the common name of a combination where there is one."""
    names = list(names)
    for name, parts in _PARTS.items():
        if set(names) >= set(parts):
            names = [n for n in names if n not in parts] + [name]
    return ",".join(names)


def convert_pose(T: FloatArray, names: Sequence[str], scale: float = 1.0) -> F64:
    """Convert a recorded (4, 4) pose to ``T_world_camera``.

    Args:
        T: pose whose quaternion was read as x y z w.
        names: from :func:`parse_conventions`.
        scale: factor for its translation.
    """
    pose = np.array(T, dtype=np.float64)
    pose[:3, 3] *= scale
    for name in names:
        if name == "wxyz":
            w, x, y, z = rotation_to_quaternion(pose[:3, :3])
            pose = make_transform(quaternion_to_rotation(np.array([x, y, z, w])), pose[:3, 3])
        elif name == "inverse":
            pose = invert_transform(pose)
        elif name in _CAMERA_AXES:
            pose = pose @ _CAMERA_AXES[name]
        else:
            pose = _WORLD_AXES[name] @ pose
    return pose


class ConvertedRecording:
    """A recording with converted poses: its transforms are replaced by the pose of each camera at each image.

    Args:
        recording: recording with another pose convention.
        convert: converts a recorded pose to ``T_world_camera``.
        offset_ns: added to the stamps of poses.
    """

    def __init__(self, recording: Recording, convert: Callable[[F64], F64], offset_ns: int = 0) -> None:
        self.original = recording
        self._convert = convert
        self._offset_ns = offset_ns

    def __getattr__(self, name: str) -> Any:
        """Everything else is that of the original."""
        return getattr(self.original, name)

    def __len__(self) -> int:
        """Number of colour images over all cameras."""
        return len(self.original)

    def __iter__(self) -> Iterator[Sample]:
        """See :class:`~embodied_perceptron.recordings.recording.Recording`."""
        tree = TransformTree(max_gap_s=SynchronizerConfig().max_pose_gap_s)
        waiting = deque[ColorSample | DepthSample | CalibrationSample]()
        # with a negative offset the pose of an image may come after it
        patience_ns = _PATIENCE_NS - self._offset_ns if self._offset_ns < 0 else 0
        newest_ns = 0
        for sample in self.original:
            if isinstance(sample, TransformSample):
                if sample.is_static:
                    tree.insert_static(sample.parent, sample.child, sample.T_parent_child)
                else:
                    tree.insert(sample.parent, sample.child, sample.stamp_ns, sample.T_parent_child)
            else:
                waiting.append(sample)
                newest_ns = max(newest_ns, sample.stamp_ns)
            while waiting and (
                waiting[0].stamp_ns <= newest_ns - patience_ns
                or not isinstance(self._lookup(tree, waiting[0]), TooEarly)
            ):
                yield from self._with_pose(tree, waiting.popleft())
        for sample in waiting:
            yield from self._with_pose(tree, sample)

    def _lookup(self, tree: TransformTree, sample: Sample) -> PoseLookup | None:
        """Look up the pose of a colour image; None for other samples."""
        if not isinstance(sample, ColorSample):
            return None
        return tree.lookup(self.world_frame, self.camera_frame(sample.camera), sample.stamp_ns - self._offset_ns)

    def _with_pose(self, tree: TransformTree, sample: Sample) -> Iterator[Sample]:
        answer = self._lookup(tree, sample)
        if isinstance(sample, ColorSample) and isinstance(answer, Found):
            frame = self.camera_frame(sample.camera)
            yield TransformSample(sample.stamp_ns, self.world_frame, frame, self._convert(answer.T))
        yield sample
