"""The live map of one robot: frames, perceptions, files, corrections, clearing, statistics.

Voxels, keyframes with image features (the volume), objects, labelled cells, floor height and latest camera poses are
one state: what replaces or moves one of them replaces or moves all. The map has its own place and time
(:mod:`embodied_perceptron.scene.map_frame`): camera poses are given in the world; boxes, voxels and cells lie in the
map, at :attr:`LiveMap.T_world_map`, the identity unless the map is far away or was placed elsewhere.

Locks: the *volume lock* guards voxels, keyframes and cameras; it is held while a frame is fused or a copy is made. The
*scene lock* guards everything else and the reading of image features; it is held for a whole perception, so that
changes of the map wait for the perception in flight and an old copy never updates a new map. Where both are needed, the
scene lock is taken first. The image features guard what fusing and perceiving share of them. Readers take no lock: they
read one frozen value, :attr:`LiveMap.published`, which every change replaces as a whole.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.config import EVERY_SCORE, PerceptronConfig, ScorePolicy, SegmentationConfig, VolumeConfig
from embodied_perceptron.geometry.manhattan import ManhattanFrame
from embodied_perceptron.geometry.transforms import (
    MAX_COORDINATE,
    check_transform,
    invert_transform,
    project,
    transform_points,
)
from embodied_perceptron.inference.predictor import ScenePrediction
from embodied_perceptron.mapping.block_copies import BlockCache
from embodied_perceptron.mapping.correction import Correction
from embodied_perceptron.mapping.export import VolumeCopy
from embodied_perceptron.mapping.keyframes import Keyframe
from embodied_perceptron.mapping.storage import (
    MapFileError,
    SavedMap,
    SavedVolume,
    check_unchanged,
    read_extra,
    read_map,
    unpack_volume,
    write_map,
)
from embodied_perceptron.mapping.volume import FeatureVolume, VolumeStatistics
from embodied_perceptron.mapping.voxel_counts import WallFrame
from embodied_perceptron.mapping.voxels import HITS, StageClock
from embodied_perceptron.recordings.files import atomic_path, read_file, was_interrupted, write_flushed
from embodied_perceptron.recordings.tensor_files import FileState, parse_json
from embodied_perceptron.relocalisation.features import FeatureError, extractor
from embodied_perceptron.relocalisation.places import PlaceMemory, place_of
from embodied_perceptron.relocalisation.search import PlaceEstimate, PlaceSearch
from embodied_perceptron.results import (
    Certainty,
    Detections,
    FusionReport,
    ObjectEvent,
    ObjectState,
    OccupancyGrid2d,
    Perception,
    SceneObject,
    SemanticVoxels,
    VoxelSnapshot,
)
from embodied_perceptron.scene.identity import ImageSampler
from embodied_perceptron.scene.map_frame import MapFrame
from embodied_perceptron.scene.navigation import (
    ApproachOptions,
    SemanticMap,
    approach_pose,
    navigation_grid,
    semantic_voxels,
)
from embodied_perceptron.scene.object_map import Correction as UserCorrection
from embodied_perceptron.scene.object_map import ObjectHistory, ObjectMap
from embodied_perceptron.scene.segmentation.components import find_boxes
from embodied_perceptron.scene.segmentation.floor import FloorHeight, estimate_floor_z
from embodied_perceptron.scene.segmentation.layers import Layers, separate_layers
from embodied_perceptron.sensors.depth_consistency import DepthConsistency
from embodied_perceptron.sensors.frame import LatestCameraPoses, PosedFrame
from embodied_perceptron.sensors.synchronizer import DropReason


@dataclass(frozen=True, eq=False)
class PublishedScene:
    """The scene at one moment, in one world. Queries read one such value and nothing else.

    Perceptions, files and corrections replace it at once. A part that cannot be moved into a corrected world is None
    until the next perception.

    Attributes:
        objects: confirmed objects.
        tentative: objects not confirmed yet.
        gone: objects that are no longer there.
        voxels: the map, for colours of objects.
        prediction: of the network.
        seen: boxes of the prediction as low-confidence candidates; None after a correction of objects.
        grid: navigation grid.
        T_world_map: (4, 4) pose of the map in the world.
    """

    objects: tuple[SceneObject, ...] = ()
    tentative: tuple[SceneObject, ...] = ()
    gone: tuple[SceneObject, ...] = ()
    voxels: VoxelSnapshot | None = None
    prediction: ScenePrediction | None = None
    seen: Detections | None = None
    grid: OccupancyGrid2d | None = None
    T_world_map: NDArray[np.float64] = field(default_factory=lambda: np.eye(4))

    def with_objects(self, objects: Sequence[SceneObject], **others: Any) -> PublishedScene:
        """A copy with other ``objects`` of any state; ``others``: further attributes by name."""
        states = ObjectState.CONFIRMED, ObjectState.TENTATIVE, ObjectState.GONE
        confirmed, tentative, gone = (tuple(o for o in objects if o.state == state) for state in states)
        return replace(self, objects=confirmed, tentative=tentative, gone=gone, **others)

    def approach(
        self, thing: SceneObject, robot_m: NDArray[np.float64] | None = None, robot_radius_m: float = 0.3
    ) -> NDArray[np.float64] | None:
        """(4, 4) approach pose on the floor before an object, in the map; None = there is none.

        ``robot_m``: (2,) or (3,) position of the robot; see :func:`~.navigation.approach_pose`.
        """
        options = ApproachOptions(robot_radius_m)
        return None if self.grid is None else approach_pose(thing.box, self.grid, robot_m, options)


ConditionsOf: TypeAlias = Callable[[Sequence[SceneObject], VoxelSnapshot], Sequence[SceneObject]]

# --------------------------------------------------------------------------------------------------------------------

LABELS_SUFFIX = ".labels.json"
_MAP_SUFFIX, _OTHER_LABELS_SUFFIX = ".safetensors", ".map_labels.json"
_MAX_LABELS_BYTES = 64 * 2**20
_LOG = logging.getLogger(__name__)
LOOKING_FOR_PLACE = "looking_for_place"  # reason of a frame that is not fused
_STATES = (*ObjectState.ALL, ObjectState.GONE)
_CONDITIONS_NS = 2_000_000_000  # between two looks at the conditions of objects
_THROUGH_M, _THROUGH_POINTS = 0.15, 12  # depth behind a point; least number of points
_RECENT = 3  # keyframes in which the appearance of objects is measured
_OBJECTS, _SEMANTIC, _FRAME = "objects", "semantic", "map_frame"  # entries of a map file


def saved_objects(path: str | Path) -> tuple[SceneObject, ...]:
    """Read the confirmed objects of a saved map, without the rest of the file.

    Raises :class:`MapFileError` for a file that is no map or has no objects, ``OSError`` for an unreadable one.
    """
    return _read_objects(path).objects((ObjectState.CONFIRMED,))


def saved_corrections(path: str | Path) -> tuple[UserCorrection, ...]:
    """Read the corrections in a saved map, with the present boxes of objects that still exist. Raises as
    :func:`saved_objects`."""
    objects = _read_objects(path)
    boxes = {o.id: o.box for o in objects.objects()}
    return tuple(
        replace(entry, box=boxes[entry.id]) if entry.label and entry.id in boxes else entry
        for entry in objects.corrections.entries
    )


def _read_objects(path: str | Path) -> ObjectMap:
    objects = ObjectMap()
    saved = read_extra(path).get(_OBJECTS)
    if saved is None:
        raise MapFileError(f"{path}: a map without objects")
    try:
        objects.load_json(saved, str(path))
    except ValueError as error:
        raise MapFileError(f"{path}: {error}") from error
    return objects


@dataclass(frozen=True, eq=False)
class MapCopy:
    """A copy of the map for one perception, with derived values that are computed once, on demand.

    Attributes:
        volume: stored voxels, and keyframes.
        cameras: latest camera poses.
        voxels: means of the same voxels.
        floor_z_m: height of the floor.
        config: sizes and heights of shapes.
        walls: keeps the map's frame along the walls from copy to copy.
    """

    volume: VolumeCopy
    cameras: LatestCameraPoses
    voxels: VoxelSnapshot
    floor_z_m: float
    config: SegmentationConfig
    walls: WallFrame

    @cached_property
    def manhattan(self) -> ManhattanFrame:
        """Frame along the walls."""
        return self.walls.of(self.voxels, self.floor_z_m)

    @cached_property
    def layers(self) -> Layers:
        """Floor, walls and objects."""
        return separate_layers(self.voxels, self.floor_z_m, self.config)

    @cached_property
    def shapes(self) -> Detections:
        """Class-agnostic boxes of the objects in the map; about 0.1 s for a room on one core."""
        return find_boxes(self.voxels, self.layers, self.config)


class LiveMap:
    """See the module docstring.

    Args:
        config: everything tunable.
        volume: voxels, keyframes, features; may hold frames already.
        no_cells: labelled cells of a network before it has predicted any; cells of other classes are not restored from
            files. None = without a network: cells are labelled by geometry, and those of files are restored.
        scores: thresholds of the boxes that update objects.
        name_of: label -> name under which objects are published; see :class:`~.object_map.ObjectMap`.
        reach_m: largest distance of cameras from the map's origin, where the network limits it more than the voxels do.
        on_forget: called under the scene lock when another map replaces this one.
        conditions_of: objects with their conditions ("open"), for the history; None = not followed.

    Attributes:
        published: the present scene for readers.
        loaded_from: the file that the map was loaded from; None = the map is new.
        found_place: result of the search that found the robot's place in the loaded map; None without one.
        scene_lock: held for a whole perception.
    """

    def __init__(
        self,
        config: PerceptronConfig,
        volume: FeatureVolume,
        no_cells: SemanticVoxels | None = None,
        scores: ScorePolicy = EVERY_SCORE,
        name_of: Callable[[str], str] | None = None,
        reach_m: float = float("inf"),
        on_forget: Sequence[Callable[[], None]] = (),
        conditions_of: ConditionsOf | None = None,
    ) -> None:
        self.config = config
        self.volume = volume
        self.published = PublishedScene()
        self.loaded_from: Path | None = None
        self.found_place: PlaceEstimate | None = None
        self._volume_lock = threading.Lock()
        self.scene_lock = threading.Lock()
        self._no_cells = no_cells
        self._scores = scores
        self._name_of = name_of
        self._on_forget = on_forget
        self._conditions_of, self._conditions_ns = conditions_of, 0
        self._objects = ObjectMap(config.objects.tracking, name_of)
        self._semantic = SemanticMap()
        self._floor = FloorHeight(max(config.objects.segmentation.min_height_m, config.grid.min_obstacle_height_m))
        self._walls = WallFrame()
        self._columns = BlockCache()
        self._cameras = LatestCameraPoses()
        self._consistency = DepthConsistency()
        features = config.relocalisation.features
        self._features = None if features == "none" else extractor(features)
        self._places = PlaceMemory(config.relocalisation.max_places)
        self._search: PlaceSearch | None = None
        self._saving = threading.Lock()
        self._files: dict[str, FileState] = {}  # real path -> state of the file after the last read or write
        self._frame = MapFrame(min(reach_m, volume.config.voxel_size_m * MAX_COORDINATE - volume.config.max_range_m))

    # ------------------------------------------------------------------------------------------ frames and perceptions

    def integrate(self, posed: PosedFrame) -> tuple[FusionReport, Keyframe | None]:
        """Fuse one frame; returns the new keyframe, if it became one. Raises as :meth:`Perceptron.integrate`.

        While the robot's place in a loaded map is searched, the frame serves the search and is not fused. A single
        frame whose depth contradicts the frames before it is not fused either.
        """
        if not self._is_placed(posed):
            return FusionReport(posed.frame.stamp_ns, fused=False, reason=LOOKING_FOR_PLACE), None
        if detail := self._consistency.check(posed):
            return FusionReport(
                posed.frame.stamp_ns, fused=False, reason=DropReason.INCONSISTENT_DEPTH, detail=detail
            ), None
        with self._volume_lock:
            in_map = self._frame.enter(posed, fresh=self.volume.is_empty)
            report = self.volume.integrate(in_map)
            self._frame.entered(posed, in_map)
            if report.fused:
                self._cameras = self._cameras.after(in_map)
            keyframe = self.volume.keyframes.newest if report.keyframe else None
        return replace(report, stamp_ns=posed.frame.stamp_ns), keyframe

    def remember(self, keyframe: Keyframe, clock: StageClock) -> None:
        """Remember the view of a keyframe for later relocalisation; from any thread. The map is not locked while
        features are extracted, so the keyframe's pose is read afterwards."""
        if self._features is None:
            return
        place = place_of(keyframe, self._features)
        if place is not None:
            with self._volume_lock:
                for now in self.volume.keyframes:
                    if now.frame is keyframe.frame:
                        self._places.add(replace(place, T_map_camera=now.T_world_camera.copy()))
        clock.lap("place")

    def _is_placed(self, posed: PosedFrame) -> bool:
        """Search the robot's place with a frame, if it is unknown; returns whether it is known."""
        search = self._search
        if search is None:
            return True
        estimate = search.look(posed)
        if not estimate.found or estimate.best is None:
            return False
        with self.scene_lock, self._volume_lock:
            if self._search is not search:  # another map was loaded
                return False
            self._frame.place(estimate.best.T_map_world)
            self._search, self.found_place = None, estimate
            self._publish()
        return True

    @property
    def places(self) -> PlaceMemory:
        """Remembered views; :meth:`remember` adds to them."""
        return self._places

    @property
    def place_estimate(self) -> PlaceEstimate | None:
        """See :attr:`.Perceptron.place_estimate`."""
        search = self._search
        return None if search is None else search.estimate

    @contextmanager
    def perceiving(self) -> Iterator[tuple[MapCopy, StageClock]]:
        """Context with a copy of the map, and a clock that has timed the copying. The scene stays locked: no other
        perception or change of the map, while frames are fused."""
        with self.scene_lock:
            clock = StageClock()
            with self._volume_lock:
                volume, cameras = self.volume.copy(), self._cameras
            self.volume.prepare_copy()
            clock.lap("copy")
            voxels = volume.snapshot()
            clock.lap("snapshot")
            floor_z_m = self._floor.of(voxels)
            clock.lap("floor")
            yield MapCopy(volume, cameras, voxels, floor_z_m, self.config.objects.segmentation, self._walls), clock

    def update(
        self,
        scene: MapCopy,
        found: Detections | None,
        prediction: ScenePrediction | None,
        now_ns: int | None,
        clock: StageClock,
        confirm: bool = False,
    ) -> Perception:
        """Update objects, labelled cells and grid, and publish them; within :meth:`perceiving`.

        Args:
            scene: of :meth:`perceiving`.
            found: boxes after all stages; None changes no object.
            prediction: of the network; None = without a network.
            now_ns, confirm: see :meth:`Perceptron.perceive`.
            clock: of :meth:`perceiving`.

        Raises ``ValueError`` for raw scores where the thresholds are of probabilities.
        """
        now = scene.cameras.stamp_ns if now_ns is None else self._frame.now(now_ns)
        camera_m, radius_m = scene.cameras.camera_m, self.config.volume.radius_m
        region = None if prediction is None else prediction.region
        events: tuple[ObjectEvent, ...] = ()
        if found is not None:
            if self._scores.are_probabilities:
                found.require(Certainty.CALIBRATED)
            self._objects.image = None if prediction is None else self._image_sampler(scene.volume.keyframes)
            self._objects.seen_through = partial(seen_through, scene.volume.keyframes)
            events = self._objects.update(found, scene.voxels, now, camera_m, radius_m, region, self._scores, confirm)
            self._objects.image = self._objects.seen_through = None
            if self._conditions_of is not None and abs(now - self._conditions_ns) >= _CONDITIONS_NS:
                self._conditions_ns = now
                confirmed = self._objects.objects((ObjectState.CONFIRMED,))
                self._objects.note_conditions(self._conditions_of(confirmed, scene.voxels), now)
            newest = scene.cameras.newest
            if newest is not None:
                events = tuple(
                    replace(e, stamp_ns=self._frame.stamp_of(newest.frame.camera, e.stamp_ns)) for e in events
                )
        clock.lap("objects")
        diagnostics = tuple(reason for reason in (self.volume.fault, self._objects.doubt) if reason)
        cells: SemanticVoxels | None
        if prediction is None:
            cells, for_grid = semantic_voxels(scene.voxels, scene.layers, scene.config.cell_size_m), None
        else:
            known = self._semantic.cells()
            if prediction.semantic is not None:
                known = self._semantic.update(prediction.semantic, prediction.answered, camera_m, radius_m)
            cells = for_grid = self._no_cells if known is None else known
            diagnostics += prediction.diagnostics
        assert cells is not None
        clock.lap("semantic")
        grid = navigation_grid(scene.voxels, scene.floor_z_m, self.config.grid, for_grid, self._columns)
        clock.lap("grid")
        perception = self._perception(scene, cells, grid, clock.stage_ms, diagnostics, events)
        seen = None if prediction is None else prediction.detections
        self._publish(voxels=scene.voxels, prediction=prediction, seen=seen, grid=grid)
        clock.lap("objects")
        return perception

    def _image_sampler(self, keyframes: Sequence[Keyframe]) -> ImageSampler | None:
        """Features of the newest keyframes, which the network has read."""
        features = self.volume.features
        if features is None:
            return None

        def sample(points_m: NDArray[np.float64]) -> list[tuple[NDArray[np.float32], NDArray[np.bool_], Any]]:
            return [(*features.look(points_m, k), k.T_world_camera[:3, 3]) for k in keyframes[-_RECENT:]]

        return sample

    def recall(self) -> Perception:
        """See :meth:`Perceptron.recall`."""
        with self.perceiving() as (scene, _):
            cells = self._semantic.cells()
            grid = navigation_grid(scene.voxels, scene.floor_z_m, self.config.grid, cells)
            if cells is None:
                cells = semantic_voxels(scene.voxels, scene.layers, scene.config.cell_size_m)
            perception = self._perception(scene, cells, grid, {}, ())
            self._publish(voxels=scene.voxels, prediction=self.published.prediction, grid=grid)
        return perception

    def _perception(
        self,
        scene: MapCopy,
        cells: SemanticVoxels,
        grid: OccupancyGrid2d,
        stage_ms: dict[str, float],
        diagnostics: tuple[str, ...],
        events: tuple[ObjectEvent, ...] = (),
    ) -> Perception:
        newest, stamp_ns = scene.cameras.newest, 0
        if scene.cameras.poses:
            camera, (map_ns, _) = max(scene.cameras.poses.items(), key=lambda item: item[1][0])
            stamp_ns = self._frame.stamp_of(camera, map_ns)
        return Perception.of(
            self._objects.objects(_STATES),
            events=events,
            stamp_ns=stamp_ns,
            semantic=cells,
            grid=grid,
            voxels=scene.voxels,
            stage_ms=stage_ms,
            diagnostics=diagnostics,
            source=None if newest is None else self._frame.leave_time(newest),
            T_world_map=self.T_world_map,
        )

    def _publish(self, **parts: Any) -> None:
        """Publish the present objects and ``parts`` of :class:`PublishedScene` in the same world; other parts are
        None."""
        self.published = PublishedScene(T_world_map=self.T_world_map).with_objects(
            self._objects.objects(_STATES), **parts
        )

    def _publish_changed(self, volume: VolumeCopy) -> None:
        """Publish after voxels were moved or removed, without the outdated prediction and grid."""
        self._publish(voxels=None if self.published.voxels is None else volume.snapshot())

    # ---------------------------------------------------------------------------------------------- files and changes

    def save(self, path: str | Path) -> None:
        """See :meth:`.Perceptron.save`."""
        with self.scene_lock, self._volume_lock:
            cells, meaning = self._semantic.pack()
            extra = {_OBJECTS: self._objects.to_json(), _SEMANTIC: meaning, _FRAME: self._frame.to_json()}
            tensors, header = self.volume.pack(extra)
            places, described = self._places.pack()
            tensors |= cells | places
            header |= described
            labels = self._labels()
        with self._saving, _written_labels(labels_path(path), labels):
            written = write_map(path, tensors, header, self._files.get(os.path.realpath(path)))
            self._files[os.path.realpath(path)] = written

    def check_unchanged(self, path: str | Path) -> None:
        """Raise :class:`~embodied_perceptron.mapping.storage.MapChangedError` where :meth:`save` would."""
        check_unchanged(path, self._files.get(os.path.realpath(path)))

    def _labels(self) -> dict[str, Any]:
        """Corrections and names by users, as JSON values."""
        names = [o.as_dict() for o in self._objects.objects() if o.user_name]
        return {"version": 1, "corrections": self._objects.corrections.to_list(), "names": names}

    def load(
        self, path: str | Path, T_world_saved: NDArray[np.float64] | None = None, *, find_place: bool = False
    ) -> str:
        """See :meth:`.Perceptron.load`."""
        return self.restore(read_map(path), T_world_saved, find_place=find_place)

    def restore(
        self, saved: SavedMap, T_world_saved: NDArray[np.float64] | None = None, *, find_place: bool = False
    ) -> str:
        """:meth:`load` a file that was read already."""
        path, extra = saved.path, saved.extra
        volume = unpack_volume(saved, self.volume.config)
        places = PlaceMemory.unpack(saved, self.config.relocalisation.max_places)
        semantic = SemanticMap.unpack(path, saved.tensors, extra.get(_SEMANTIC, ""))
        objects = ObjectMap(self.config.objects.tracking, self._name_of)
        frame = MapFrame(self._frame.reach_m)
        try:
            if _OBJECTS in extra:  # a volume alone is saved without objects
                objects.load_json(extra[_OBJECTS], str(path))
            frame.load_json(extra.get(_FRAME, ""), None if extra.get(_FRAME) else _newest_ns(volume, objects))
        except ValueError as error:
            raise MapFileError(f"{path}: {error}") from error
        frame.put(np.eye(4) if T_world_saved is None else T_world_saved)
        cells = semantic.cells()
        if cells is None or (self._no_cells is not None and self._no_cells.classes != cells.classes):
            semantic = SemanticMap()
        search, reason = None, ""
        if find_place:
            try:
                search = PlaceSearch(
                    list(places),
                    _surface_m(volume, self.volume.config),
                    estimate_floor_z,
                    invert_transform(frame.T_world_map),
                )
            except FeatureError as error:
                reason = f"the robot's place cannot be searched, its pose is used as it is: {error}"
        with self.scene_lock, self._volume_lock:
            self.volume.restore(volume)
            self._forget()
            self._places, self._search, self.loaded_from = places, search, path
            self._objects, self._semantic, self._frame = objects, semantic, frame
            self._files[os.path.realpath(path)] = saved.state
            self._publish()
            labels = self._labels()
        if was_interrupted(labels_path(path)):
            with suppress(OSError), _written_labels(labels_path(path), labels):
                _LOG.warning("%s: a save of this map was interrupted; its labels are written again", path)
        return reason

    def reset(self) -> None:
        """See :meth:`.Perceptron.reset`."""
        with self.scene_lock, self._volume_lock:
            self.volume.reset()
            self._forget()
            self.published = PublishedScene()

    def forget_stamps(self, camera: str | None = None) -> None:
        """See :meth:`.Perceptron.forget_stamps`."""
        self._consistency.clear()
        with self._volume_lock:
            self._frame.forget_stamps(camera)

    @property
    def T_world_map(self) -> NDArray[np.float64]:  # noqa: N802  frames in names
        """See :attr:`.Perceptron.T_world_map`."""
        T_world_map: NDArray[np.float64] = self._frame.T_world_map.copy()
        return T_world_map

    def correct_keyframes(self, poses: Mapping[tuple[str, int], NDArray[np.float64]]) -> Correction:
        """See :meth:`.Perceptron.correct_keyframes`."""
        wanted = {name: check_transform(T, f"pose of {name}") for name, T in poses.items()}
        with self.scene_lock:
            with self._volume_lock:
                names = {self._keyframe_name(k): (k.frame.camera, k.frame.stamp_ns) for k in self.volume.keyframes}
                in_map = {names[name]: self._frame.place_in_map(T) for name, T in wanted.items() if name in names}
                correction = self.volume.correct_keyframes(in_map)
                correction = replace(correction, unknown=tuple(name for name in wanted if name not in names))
                if correction.corrected:
                    newest = correction.motions[-1]
                    self._objects.move(correction.at)
                    self._semantic.move(newest)
                    self._floor.forget()
                    self._walls.forget()
                    self._places.move(correction.at)
                    self._cameras = self._cameras.moved(newest)
                volume = self.volume.copy() if correction.corrected else None
            if volume is not None:
                self._publish_changed(volume)
        return correction

    @property
    def newest_frame(self) -> PosedFrame | None:
        """See :attr:`.Perceptron.newest_frame`."""
        newest = self._cameras.newest
        return None if newest is None else self._frame.leave(newest)

    def time_in_map(self, camera: str, stamp_ns: int) -> int:
        """Convert a recent stamp of a camera to the map's time."""
        with self._volume_lock:
            return self._frame.time_in_map(camera, stamp_ns)

    def keyframes(self) -> tuple[Keyframe, ...]:
        """Retained keyframes, oldest first, in the map."""
        with self._volume_lock:
            return tuple(self.volume.keyframes)

    def keyframe_poses(self) -> dict[tuple[str, int], NDArray[np.float64]]:
        """See :meth:`.Perceptron.keyframe_poses`."""
        with self._volume_lock:
            return {self._keyframe_name(k): self._frame.place_in_world(k.T_world_camera) for k in self.volume.keyframes}

    def clear_box(self, box: NDArray[np.float64]) -> int:
        """See :meth:`.Perceptron.clear_box`."""
        with self.scene_lock:
            with self._volume_lock:
                cleared = self.volume.clear_box(box)
                volume = self.volume.copy()
            self._objects.remove_inside(np.asarray(box, dtype=np.float64))
            self._publish_changed(volume)
        return cleared

    def history(self, number: int) -> ObjectHistory:
        """Evidence for state and name of object ``number``. Raises ``LookupError`` for an unknown id."""
        with self.scene_lock:
            return self._objects.history(number)

    def corrections(self) -> tuple[UserCorrection, ...]:
        """Corrections by users, oldest first."""
        with self.scene_lock:
            return tuple(self._objects.corrections.entries)

    def name_object(self, number: int, name: str) -> SceneObject:
        """Set a user's name for object ``number``; empty removes it. Raises as :meth:`ObjectMap.name`."""
        return self._edit(lambda: self._objects.name(number, name))

    def correct_object(self, number: int, label: str = "", not_there: bool = False) -> SceneObject:
        """Set the label of object ``number`` for good, or remove it (``not_there``).

        Returns the object after or before the change. Raises ``ValueError`` for an invalid label, or a label with
        ``not_there``, and ``LookupError`` for an unknown id.
        """
        if not_there and label.strip():
            raise ValueError(f"give either the label {label!r} or not_there")
        if not_there:
            return self._edit(lambda: self._objects.deny(number))
        return self._edit(lambda: self._objects.relabel(number, label))

    def _edit(self, change: Callable[[], SceneObject]) -> SceneObject:
        with self.scene_lock:
            thing = change()
            self.published = self.published.with_objects(self._objects.objects(_STATES), seen=None)
        return thing

    def statistics(self) -> VolumeStatistics:
        """See :meth:`.Perceptron.statistics`."""
        with self._volume_lock:
            return self.volume.statistics()

    def _keyframe_name(self, keyframe: Keyframe) -> tuple[str, int]:
        """Camera and stamp of a keyframe in the world's time."""
        return keyframe.frame.camera, self._frame.stamp_of(keyframe.frame.camera, keyframe.frame.stamp_ns)

    def _forget(self) -> None:
        """Reset everything but the volume."""
        self._objects = ObjectMap(self.config.objects.tracking, self._name_of)
        self._semantic.clear()
        self._floor.forget()
        self._walls.forget()
        self._cameras = LatestCameraPoses()
        self._consistency.clear()
        self._frame.clear()
        self._places.clear()
        self._search = self.loaded_from = self.found_place = None
        for forget in self._on_forget:
            forget()


def seen_through(
    keyframes: Sequence[Keyframe], points: NDArray[np.float64], since_ns: int, until_ns: int, looks: int = 1
) -> float:
    """Largest share of (N, 3) points through which each of ``looks`` keyframes from after ``since_ns`` and before
    ``until_ns`` saw: no object was there then. 0 for too few points or keyframes."""
    shares = [0.0] * looks
    for keyframe in keyframes if len(points) >= _THROUGH_POINTS else ():
        frame = keyframe.frame
        if not since_ns < frame.stamp_ns < until_ns:
            continue
        at = transform_points(invert_transform(keyframe.T_world_camera), points)
        pixels, inside = project(at, frame.intrinsics)
        u, v = np.round(pixels[inside]).astype(np.int64).T
        behind_m = frame.depth_m[v, u] - at[inside, 2]
        shares.append(float((behind_m > _THROUGH_M).sum()) / len(points))
    return sorted(shares)[-looks]


def _surface_m(volume: SavedVolume, config: VolumeConfig) -> NDArray[np.float64]:
    """(N, 3) points of the occupied voxels of a saved volume."""
    rows = volume.rows.where(volume.rows.records[:, HITS] >= max(config.min_hits, 1))
    points: NDArray[np.float64] = VolumeCopy(rows, config.voxel_size_m).snapshot().mean_point_m.astype(np.float64)
    return points


def _newest_ns(volume: SavedVolume, objects: ObjectMap) -> int:
    return max([objects.updated_ns, *(k.frame.stamp_ns for k in volume.keyframes)])


def labels_path(path: str | Path) -> Path:
    """Path of the labels of a map's corrections: ``home.labels.json`` beside ``home.safetensors``, and
    ``home.map_labels.json`` beside a map ``home`` without that suffix."""
    path = Path(path)
    if path.name.endswith(_MAP_SUFFIX):
        return path.with_name(path.name.removesuffix(_MAP_SUFFIX) + LABELS_SUFFIX)
    return path.with_name(path.name + _OTHER_LABELS_SUFFIX)


@contextmanager
def _written_labels(path: Path, labels: dict[str, Any]) -> Iterator[None]:
    """Write or remove the labels of a map that is saved in the context. A file with other labels is not overwritten.

    The labels are on the disk under a temporary name before the map is, so that a kill between the two renames leaves
    that file: :func:`.files.was_interrupted` finds it when the map is loaded.
    """
    any_labels = bool(labels["corrections"] or labels["names"])
    if path.exists() and not _are_map_labels(path):
        _LOG.warning("%s is no labels file of a map and is kept; corrections are saved in the map only", path)
        yield
    elif any_labels or path.exists():
        with atomic_path(path) as temporary:
            write_flushed(temporary, (json.dumps(labels, ensure_ascii=False, indent=1) + "\n").encode("utf-8"))
            yield
        if not any_labels:
            path.unlink(missing_ok=True)
    else:
        yield


def _are_map_labels(path: Path) -> bool:
    try:
        content = parse_json(read_file(path, _MAX_LABELS_BYTES))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and {"corrections", "names"} <= set(content)
