"""Rerun recordings of a running perceptron, and of a finished map with its camera images.

Needs the package ``rerun-sdk`` (extra ``viewer``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embodied_perceptron.geometry.boxes import box_rotations
from embodied_perceptron.geometry.transforms import F64, rotation_to_quaternion
from embodied_perceptron.results import Grounding, GroundingStatus, OccupancyGrid2d, Perception, SceneObject
from embodied_perceptron.sensors.frame import PosedFrame
from embodied_perceptron.visualization.drawing import PATH_COLOR, color_of_class, color_of_id, label_of

WORLD = "world"
TIMELINE = "stamp"
_JPEG_QUALITY = 75
_LEVELS = {
    GroundingStatus.FOUND: "INFO",
    GroundingStatus.AMBIGUOUS: "WARN",
    GroundingStatus.NOT_FOUND: "WARN",
    GroundingStatus.INVALID: "ERROR",
}


class ViewerUnavailableError(ImportError):
    """The Rerun SDK is not installed."""


class RerunRecorder:
    """Live recorder to a ``.rrd`` file or a viewer window.

    Use as a context manager, or call :meth:`close`. Not thread-safe.

    Args:
        path: file to write; its folder must exist. None opens a viewer window instead.
        start_ns: stamp that the viewer shows as zero.

    Raises ``ViewerUnavailableError`` without the Rerun SDK and ``FileNotFoundError`` without the folder.
    """

    def __init__(self, path: str | Path | None = None, *, start_ns: int = 0) -> None:
        self._rr = _import_rerun()
        self._start_ns = start_ns
        self._path: list[F64] = []
        self._cameras: list[str] = []
        if path is not None and not Path(path).resolve().parent.is_dir():
            raise FileNotFoundError(f"cannot record to {path}: its folder does not exist")
        self._stream = self._rr.RecordingStream("embodied_perceptron")
        if path is None:
            self._stream.spawn(default_blueprint=self._layout())
        else:
            self._stream.save(str(path), default_blueprint=self._layout())
        self._log(WORLD, self._rr.ViewCoordinates.RIGHT_HAND_Z_UP, static=True)

    def __enter__(self) -> RerunRecorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Flush and end the recording."""
        self._stream.flush()
        self._stream.disconnect()

    def log_frame(self, posed: PosedFrame) -> None:
        """Log a camera image at its pose."""
        rr, frame = self._rr, posed.frame
        self._at(frame.stamp_ns)
        k, T = frame.intrinsics, posed.T_world_camera
        entity = f"{WORLD}/camera/{_part(frame.camera)}"
        if entity not in self._cameras:  # an image view needs its camera, whose name is known only now
            self._cameras.append(entity)
            self._stream.send_blueprint(self._layout())
        self._log(
            entity,
            rr.Transform3D(translation=T[:3, 3], quaternion=rr.Quaternion(xyzw=rotation_to_quaternion(T[:3, :3]))),
        )
        self._log(
            entity,
            rr.Pinhole(
                focal_length=[k.fx, k.fy],
                principal_point=[k.cx + 0.5, k.cy + 0.5],  # the viewer has (0, 0) at the corner of a pixel
                resolution=[k.width, k.height],
                camera_xyz=rr.ViewCoordinates.RDF,
                image_plane_distance=0.3,
            ),
        )
        self._log(f"{entity}/color", rr.Image(frame.color).compress(jpeg_quality=_JPEG_QUALITY))
        self._path.append(T[:3, 3].copy())

    def log_perception(self, perception: Perception) -> None:
        """Log a perception and the path so far."""
        self.log_objects(perception.stamp_ns, perception.objects)
        self._log_boxes("tentative", perception.tentative)
        self.log_map(perception, np.array(self._path).reshape(-1, 3))

    def log_objects(self, stamp_ns: int, objects: Sequence[SceneObject]) -> None:
        """Log the confirmed objects at a time."""
        self._at(stamp_ns)
        self._log_boxes("objects", objects)

    def log_map(self, perception: Perception, trajectory_m: F64, static: bool = False) -> None:
        """Log voxels, classes and grid of a perception, and (T, 3) positions of the camera.

        ``static`` shows them at all times, rather than from the last logged stamp on.
        """
        rr = self._rr
        voxels, semantic = perception.voxels, perception.semantic
        palette = np.array([color_of_class(name) for name in semantic.classes], dtype=np.uint8).reshape(-1, 3)
        self._log(
            f"{WORLD}/voxels",
            rr.Points3D(voxels.mean_point_m, colors=voxels.mean_color, radii=0.5 * voxels.voxel_size_m),
            static,
        )
        self._log(
            f"{WORLD}/semantic",
            rr.Points3D(
                semantic.centers_m,
                colors=palette[semantic.labels],
                radii=0.45 * semantic.cell_size_m,
            ),
            static,
        )
        self._log_grid(perception.grid, static)
        if len(trajectory_m):
            self._log(f"{WORLD}/path", rr.LineStrips3D([trajectory_m], colors=[PATH_COLOR], radii=0.01), static)

    def log_grounding(self, grounding: Grounding, stamp_ns: int | None = None) -> None:
        """Log a query with its answer and boxes; ``stamp_ns``: None = the stamp that was logged last."""
        if stamp_ns is not None:
            self._at(stamp_ns)
        found = ", ".join(label_of(o) for o in grounding.candidates)
        words = f"{grounding.text!r}: {grounding.status.name}"
        words += f" {found}" if found else ""
        words += f" ({grounding.reason})" if grounding.reason else ""
        self._log("queries", self._rr.TextLog(words, level=_LEVELS[grounding.status]))
        self._log_boxes("answer", grounding.candidates)

    # -------------------------------------------------------------------------------------------------------- private

    def _at(self, stamp_ns: int) -> None:
        self._stream.set_time(TIMELINE, duration=np.timedelta64(stamp_ns - self._start_ns, "ns"))

    def _log(self, entity: str, what: Any, static: bool = False) -> None:
        self._stream.log(entity, what, static=static)

    def _log_boxes(self, name: str, objects: Sequence[SceneObject]) -> None:
        rr = self._rr
        boxes = np.array([o.box for o in objects], np.float64).reshape(-1, 9)
        self._log(
            f"{WORLD}/{name}",
            rr.Boxes3D(
                centers=boxes[:, :3],
                half_sizes=boxes[:, 3:6] / 2,
                quaternions=[rr.Quaternion(xyzw=rotation_to_quaternion(R)) for R in box_rotations(boxes)],
                labels=[f"{label_of(o)} ({o.score:.2f})" for o in objects],
                colors=[color_of_id(o.id) for o in objects],
            ),
        )

    def _log_grid(self, grid: OccupancyGrid2d, static: bool) -> None:
        """Log the grid as a texture just below the floor: free bright, occupied dark, unknown transparent."""
        rows, columns = grid.cells.shape
        if not rows or not columns:
            return
        texture = np.zeros((rows, columns, 4), dtype=np.uint8)
        texture[grid.cells == 0] = (214, 220, 226, 255)
        texture[grid.cells > 0] = (52, 58, 70, 255)
        low, high = grid.origin_m, grid.origin_m + np.array([columns, rows]) * grid.resolution_m
        z = grid.floor_z_m - 0.05
        corners = [[low[0], low[1], z], [high[0], low[1], z], [high[0], high[1], z], [low[0], high[1], z]]
        self._log(
            f"{WORLD}/grid",
            self._rr.Mesh3D(
                vertex_positions=corners,
                triangle_indices=[[0, 1, 2], [0, 2, 3]],
                vertex_texcoords=[[0, 0], [1, 0], [1, 1], [0, 1]],
                albedo_texture=texture,
            ),
            static,
        )

    def _layout(self) -> Any:
        """Build the layout: room at the left, camera and answers at the right."""
        blueprint = self._rr.blueprint
        return blueprint.Blueprint(
            blueprint.Horizontal(
                blueprint.Spatial3DView(name="Room", origin=WORLD, contents=["+ $origin/**", f"- {WORLD}/semantic"]),
                blueprint.Vertical(
                    *(blueprint.Spatial2DView(name="Camera", origin=entity) for entity in self._cameras),
                    blueprint.Spatial3DView(
                        name="Classes", origin=WORLD, contents=[f"+ {WORLD}/semantic", f"+ {WORLD}/objects"]
                    ),
                    blueprint.TextLogView(name="Queries", origin="queries"),
                ),
                column_shares=[3, 2],
            ),
            collapse_panels=True,
        )


def _import_rerun() -> Any:
    try:
        import rerun
        import rerun.blueprint
    except ImportError as error:
        raise ViewerUnavailableError(
            f"recording needs the Rerun SDK: pip install 'embodied-perceptron[viewer]' (package rerun-sdk): {error}"
        ) from error
    return rerun


def _part(name: str) -> str:
    """Convert a camera name to one part of an entity path."""
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in name)


def write_rrd(
    path: str | Path,
    perception: Perception,
    trajectory_m: F64,
    frames: Sequence[PosedFrame],
    *,
    sightings: Sequence[tuple[int, Sequence[SceneObject]]],
    answers: Sequence[tuple[int, Grounding]],
) -> None:
    """Write a ``.rrd`` file of a finished map, with the images, objects and answers that led to it.

    Args:
        path: of the file, replaced if it exists; its folder must exist.
        perception: its map is shown all the time.
        trajectory_m: (T, 3) positions of the camera in the world frame, shown all the time.
        frames: camera images to show.
        sightings: stamp (ns) and objects at that time.
        answers: stamp (ns) and answer at that time.

    Raises as :class:`RerunRecorder` does.
    """
    stamps = [posed.frame.stamp_ns for posed in frames] + [stamp for stamp, _ in (*sightings, *answers)]
    with RerunRecorder(path, start_ns=min(stamps, default=0)) as recorder:
        recorder.log_map(perception, trajectory_m, static=True)
        for posed in frames:
            recorder.log_frame(posed)
        for stamp_ns, objects in sightings:
            recorder.log_objects(stamp_ns, objects)
        for stamp_ns, grounding in answers:
            recorder.log_grounding(grounding, stamp_ns)
